"""Whatever bytes lie there: an answer or one message, in bounded time, and nothing in them is run."""

from __future__ import annotations

import json
import pickle
import random
import time
from pathlib import Path

import pytest
from hypothesis import settings

from isolaw.errors import InputError
from isolaw.readers.how_to_read import HowToRead
from isolaw.readers.survey import survey
from isolaw.runs import Runs

SETTINGS = {"n": 8, "B_p": 16, "framework": "veRL"}


class Bomb:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return Path.touch, (self.target,)  # type: ignore[return-value]


def seeds(target: Path) -> dict[str, bytes]:
    """A small sound file of each text form, some of them with what would run if it were run."""
    call = f"__import__('pathlib').Path({str(target)!r}).touch()"
    keys = {"critic/score/mean": 0.5, "val-core/aime24/acc/mean@8": 0.25}
    steps = range(1, 6)
    return {
        "metrics.jsonl": b"".join(json.dumps({"step": s, "data": keys}).encode() + b"\n" for s in steps),
        "rows.jsonl": b"".join(json.dumps({"step": s, "acc": 0.5}).encode() + b"\n" for s in steps),
        "train.log": "".join(
            f"step:{s} - critic/score/mean:np.float64(0.5) - actor/entropy:{call} - actor/kl_loss:0.1\n"
            for s in steps
        ).encode(),
        "stdout.txt": "".join(
            f"{{'loss': {call}, 'reward': 0.5, 'reward_std': 0.1, 'epoch': 0.{s}}}\n" for s in steps
        ).encode()
        + b"{'loss': 0.1, 'reward': '0.5', 'reward_std': 0.1, 'epoch': 0.9}\n",
        "trainer_state.json": json.dumps(
            {"global_step": 2, "log_history": [{"step": s, "reward": 0.5, "reward_std": 0.1} for s in steps]}
        ).encode(),
        "wandb.csv": b"Step,run - critic/score/mean,run - critic/score/mean__MIN\n1,0.5,0.5\n2,0.6,0.6\n",
        "long.csv": b"run_name,metric,step,value\nr,critic/score/mean,1,0.5\n",
        "config.yaml": f"actor_rollout_ref: !!python/object/apply:os.system ['touch {target}']\n".encode(),
        "training_args.bin": pickle.dumps(Bomb(target)),
    }


def attempt(source: Path) -> str:
    """Read it with and without settings; the worst is a message."""
    said = ""
    for values in (SETTINGS, None):
        began = time.process_time()
        try:
            assert isinstance(survey([source], HowToRead.of(set=values)).runs, Runs)
        except InputError as error:
            said = str(error)
            assert said
        assert time.process_time() - began < 25
    return said


def test_nothing_in_a_log_is_run(tmp_path: Path) -> None:
    target = tmp_path / "was-run"
    folder = tmp_path / "logs"
    folder.mkdir()
    for name, content in seeds(target).items():
        (folder / name).write_bytes(content)
        attempt(folder / name)
    attempt(folder)
    assert not target.exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(seeds(Path("x"))))
def test_bytes_that_went_wrong(tmp_path: Path, name: str) -> None:
    whole = seeds(tmp_path / "was-run")[name]
    rng = random.Random(name)
    path = tmp_path / name
    for _ in range(settings().max_examples // 5):
        content = bytearray(whole)
        for _ in range(rng.randint(1, 6)):
            at = rng.randrange(len(content))
            kind = rng.randrange(5)
            if kind == 0:
                content[at] = rng.randrange(256)
            elif kind == 1:
                del content[at : at + rng.randint(1, 40)]
            elif kind == 2:
                content[at:at] = rng.choice(
                    [b"\0" * 9, b"{" * 50, b"[" * 50, b"1e999", b"\xff\xfe", b"NaN", b"\n"]
                )
            elif kind == 3:
                content[at:at] = content[max(0, at - 60) : at]
            else:
                del content[at:]
            if not content:
                break
        path.write_bytes(bytes(content))
        attempt(path)
    assert not (tmp_path / "was-run").exists()


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n",
        b"\0" * 100_000,
        b"{" * 300_000,
        b"[" * 300_000,
        b'{"a":' * 100_000,
        b"step:1 - " * 50_000,
        b"a," * 200_000,
        b'"' * 300_001,
        b"'epoch': " * 50_000 + b"{'loss': 1",
        b"(" * 300_000,
        b"step:1 - a:" + b"1" * 300_000 + b" - b:2\n",
        b'{"step":1,"data":{"critic/score/mean":' + b"9" * 300_000 + b"}}\n",
        b"\xff\xfes\0t\0e\0p\0",
        bytes(range(256)) * 1_000,
    ],
    ids=range(15),
)
def test_content_of_no_form(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    attempt(path)
    attempt(tmp_path)
