"""``isolaw fit --retune``: the law at one lr beside the one with lr chosen anew."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from isolaw.runs import Runs

Call = Callable[..., tuple[int, str, str]]
LRS = (0.005, 0.02, 0.08)


@pytest.fixture(scope="module")
def swept(synthetic: Callable[..., Runs], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A truth in which a larger n does what a smaller lr does, and costs a little."""
    parts = []
    for i, lr in enumerate(LRS):

        def reward(_b: int, n: int, compute: Any, lr: float = lr) -> Any:
            noise = lr * np.sqrt(32 / n)
            return 0.8 - noise - 0.01 * np.log2(n / 8) - 0.5 * np.exp(-compute / (2e3 / noise))

        runs = synthetic([(32, n) for n in (8, 32, 128)], reward, noise=0.002, rng=i, attributes={"lr": lr})
        points = runs.points.assign(run_id=f"{lr} " + runs.points["run_id"])
        parts.append(Runs(points, {f"{lr} {k}": v for k, v in runs.attributes.items()}))
    path = tmp_path_factory.mktemp("swept") / "swept.parquet"
    Runs(
        pd.concat([p.points for p in parts]), {k: v for p in parts for k, v in p.attributes.items()}
    ).to_parquet(path)
    return path


@pytest.mark.slow
def test_both_laws(isolaw: Call, swept: Path, tmp_path: Path) -> None:
    out = tmp_path / "law.json"
    code, stdout, _ = isolaw("fit", swept, "--retune", "lr", "--draws", 10, "--out", out)
    assert code == 0
    lines = stdout.splitlines()
    assert lines[0].startswith(
        "lr = 0.005 everywhere: avg@4 on validation, fitted to 9 runs with n = 8, 32, 128"
    )
    assert any(line.startswith("lr = re-tuned: avg@4 on validation, fitted to 9 runs") for line in lines)
    assert any(line.startswith("At the end of the runs, the best lr is ") for line in lines)
    assert {path.name for path in tmp_path.glob("*.json")} == {"law.json", "law-retuned.json"}
    for path in tmp_path.glob("*.json"):
        assert isolaw("predict", path, "--compute", 1e6)[0] == 0


@pytest.mark.nightly
@pytest.mark.slow
def test_json_and_a_value_of_ones_own(isolaw: Call, swept: Path) -> None:
    code, stdout, _ = isolaw("fit", swept, "--retune", "lr", "--where", "lr=0.08", "--draws", 0, "--json")
    assert code == 0
    found = json.loads(stdout)
    assert (found["retune"], found["lr"]) == ("lr", 0.08)
    assert found["laws"]["one"]["fixed"]["lr"] == 0.08
    assert "lr" not in found["laws"]["retuned"]["fixed"]
    assert [c["rollouts_per_problem"] for c in found["chosen"]] == [8, 32, 128]
    assert {c["lr"] for c in found["chosen"]} <= set(LRS)
    # The noise that a larger n takes away, a smaller lr takes away as well.
    one, retuned = (found["laws"][k]["frontier"][-1] for k in ("one", "retuned"))
    assert one["n_star"]["value"] > 2 * retuned["n_star"]["value"]
    assert retuned["reward"]["value"] > one["reward"]["value"]


def test_rewards_need_no_law(isolaw: Call, swept: Path, tmp_path: Path) -> None:
    """A sweep over lr at one n, which is also what `isolaw advise` starts with."""
    words = ["fit", swept, "--retune", "lr", "--where", "n=8"]
    code, stdout, stderr = isolaw(*words)
    assert code == 0
    assert "no law with lr re-tuned: n*(C) needs at least three values of n" in stderr
    head, *rows, best, edge = stdout.splitlines()[1:]
    assert head.split() == ["B_p", "n", "lr", "reward"]
    assert [row.split()[:3] for row in rows] == [["32", "8", f"{lr:g}"] for lr in LRS]
    found = json.loads(isolaw(*words, "--json")[1])
    rewards = {row["lr"]: row["reward"] for row in found["rewards"]}
    assert [f"{rewards[lr]:.3g}" for lr in LRS] == [row.split()[3] for row in rows]
    assert found["lr"] == found["chosen"][0]["lr"] == max(rewards, key=lambda lr: rewards[lr])
    assert f"the best lr is {found['lr']:g} at B_p = 32, n = 8 (edge)." in best
    assert "An edge is the lowest or the highest value that was run" in edge
    assert isolaw(*words, "--where", "seed=0")[0] == 0
    assert isolaw(*words, "--out", tmp_path / "law.json")[0] == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--retune", "lrr"], 2, "no attribute 'lrr'; did you mean 'lr'?"),
        (["--retune", "lr", "--where", "lr=0.5"], 2, "--where lr=0.5: no run has it; existing values: 0.005"),
    ],
    ids=str,
)
def test_what_cannot_be(isolaw: Call, swept: Path, arguments: list[str], code: int, words: str) -> None:
    got, stdout, stderr = isolaw("fit", swept, *arguments)
    assert (got, stdout) == (code, "")
    assert words in stderr
