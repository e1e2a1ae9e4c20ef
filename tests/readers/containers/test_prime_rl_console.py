"""The console of prime-rl's orchestrator.

The lines are as `src/prime_rl/orchestrator` of github.com/PrimeIntellect-ai/prime-rl writes them, in the
versions that public logs of it show.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import isolaw
from isolaw.errors import DataError
from isolaw.readers.containers.step_console import CONTAINER

LINES = [
    "18:03:14    INFO Starting orchestrator step 0",
    "18:03:15 SUCCESS Step 0 | Time: 420.66s | Reward: 0.1250 | Seq. Length: 6857.1 tokens/sample | "
    "Max. Off-Policy Level: 0",
    "\x1b[32m18:03:16\x1b[0m SUCCESS Step 1 | Time: 13.04s | Reward: 0.2500 | Val. Reward: 0.5000 | "
    "Throughput: 4577.7 tokens/s | Seq. Length: 396.8 tokens/sample | Async Level: 1",
    "18:03:17 SUCCESS Step 1 | Time: 1.02s | Loss: 0.0012 | Entropy: 0.3",
    "18:03:18 SUCCESS Step 2 | Reward: -0.5000 | Throughput: 1.5 tokens/s | Seq. Length: 10.0 tokens/sample",
]


def write(folder: Path, lines: list[str] = LINES) -> Path:
    path = folder / "run" / "orchestrator.log"
    path.parent.mkdir()
    path.write_text("\n".join(lines) + "\n")
    return path


def test_rewards_by_step(tmp_path: Path) -> None:
    path = write(tmp_path)
    (path.parent / "orchestrator.toml").write_text("batch_size = 128\nrollouts_per_example = 16\nseed = 3\n")
    assert CONTAINER.file(path, path.read_bytes())
    points = isolaw.read(path.parent).points
    rewards = points[points["metric"] == "reward"].set_index("compute")["value"].to_dict()
    assert rewards == {128: 0.125, 256: 0.25, 384: -0.5}
    assert set(points["eval_set"]) == {"train"}  # which policy a validation is of, the line does not say
    assert points[["problems_per_batch", "rollouts_per_problem", "seed"]].iloc[0].tolist() == [8, 16, 3]


def test_the_trainers_own_console_has_no_reward(tmp_path: Path) -> None:
    path = write(tmp_path, LINES[3:4])
    assert not CONTAINER.file(path, path.read_bytes())
    with pytest.raises(DataError, match="found no step"):
        list(CONTAINER.read(path))


COLOURS = (
    "\x1b[2m18:03:{}\x1b[0m \x1b[32m\x1b[1mSUCCESS\x1b[0m \x1b[32m\x1b[1m\x1b[22mStep {} | {}\x1b[0m\x1b[0m"
)


@pytest.mark.parametrize(
    "form",
    [
        "Time: 13.04s | Reward: {} | Seq. Length: 396.8 tokens/sample | Async Level: 1",
        "   2m 5s | Reward {} | Trainable 128/128 (100.0%) | Turns 3.2",
        "1h 02m 5s | Reward {} | Trainable 128/128 (100.0%)",
    ],
)
def test_its_files_are_coloured(tmp_path: Path, form: str) -> None:
    rewards = [0.125, -0.5, 0.25]
    path = write(tmp_path, [COLOURS.format(10 + k, k, form.format(r)) for k, r in enumerate(rewards)])
    assert CONTAINER.file(path, path.read_bytes()[:512])
    runs = isolaw.read(path.parent, set=["n=16", "B_p=8"])
    points = runs.points
    assert points[points["metric"] == "reward"]["value"].tolist() == rewards
