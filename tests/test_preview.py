"""What a sweep took, and what is left of it: from its lines, and from the cost of a step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from isolaw import engine, preview
from isolaw.config import SweepSpec
from isolaw.step_cost import Cost, CostOrigin, StepPart

ROOT = Path(__file__).parents[1]
COST = Cost(
    {"step": StepPart(3.0, 0.5)}, 1.0, "rollouts", CostOrigin.RATE, gpus=4, evaluation_s=7.0, start_s=100.0
)


def seconds(plan: engine.ResolvedSweep, out: Path) -> float:
    runs = [run for run in plan.runs if run.run_id in plan.todo]
    left = preview.remaining_cost(out, runs, replace(COST, price=2.0))
    assert left is not None
    assert left.gpu_hours is not None
    assert left.money is not None
    assert (
        left.money.value == pytest.approx(2 * left.gpu_hours.value) == pytest.approx(2 * 4 * left.hours.value)
    )
    return left.seconds.value


def test_what_is_left(tiny: Callable[..., SweepSpec], tmp_path: Path) -> None:
    plan = engine.resolve_sweep(tiny(), tmp_path / "out")
    (few, many), runs = (
        sorted({run.batch_rollouts for run in plan.runs}),
        {r.batch_rollouts: r for r in plan.runs},
    )

    def of(step: int, batch: int) -> float:  # two seeds
        run = runs[batch]
        evaluations = sum(item > step for item in run.schedule())
        return 2 * ((run.steps - max(step, 0)) * (3 + batch / 2) + 7 * evaluations + 100)

    assert seconds(plan, tmp_path / "out") == pytest.approx(of(-1, few) + of(-1, many))
    engine.sweep(tiny(), tmp_path / "out")
    assert seconds(engine.resolve_sweep(tiny(), tmp_path / "out"), tmp_path / "out") == 0
    longer = engine.resolve_sweep(tiny(sweep={"compute": 30_000}), tmp_path / "out")
    done = {batch: run.steps for batch, run in runs.items()}
    runs = {run.batch_rollouts: run for run in longer.runs}
    assert seconds(longer, tmp_path / "out") == pytest.approx(of(done[few], few) + of(done[many], many))
    one = Cost({"step": StepPart(1.0, 0.0)}, 1.0, "rollouts", CostOrigin.RECORDED, batches=(few,))
    assert preview.remaining_cost(tmp_path / "out", longer.runs, one) is None


def line(wall_s: float, machine: dict[str, Any], **parts: float) -> dict[str, Any]:
    return {"wall_s": wall_s, "machine": machine, "seconds": parts}


def test_hours_so_far() -> None:
    eight, four = {"gpus": 8, "gpu": "H100"}, {"gpus": 4, "gpu": "H100"}
    runs = [
        [
            line(60.0, eight, evaluate=10.0),
            line(3600.0, eight, generate=2000.0, train=1000.0, evaluate=100.0),
        ],
        [line(30.0, four, evaluate=10.0), line(1800.0, four, generate=1000.0, train=600.0, evaluate=50.0)],
        [],
    ]
    found = engine._spent_so_far(runs)
    assert found is not None
    assert found["hours"] == pytest.approx(1.5)
    assert found["gpu_hours"] == pytest.approx(8 + 2)
    assert found["seconds"] == {
        "generate": 3000.0, "train": 1600.0, "evaluate": 150.0, "start": 70.0, "rest": 580.0,
    }  # fmt: skip
    assert sum(found["seconds"].values()) == 5400
    for unknown in ({}, {"gpus": 0}):
        mixed = engine._spent_so_far([*runs, [line(10.0, unknown)]])
        assert mixed is not None
        assert mixed["gpu_hours"] is None
    assert engine._spent_so_far([]) is None


@pytest.mark.real
def test_a_dry_run_says_what_is_left(
    isolaw: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    recorded = ROOT / "examples" / "data" / "real-arithmetic.parquet"
    command = (
        "sweep",
        ROOT / "examples" / "real-sweep" / "easy.toml",
        "--out",
        tmp_path / "out",
        "--cost",
        f"{recorded},0.5/h",
    )
    code, _, notes = isolaw(*command, "--dry-run")
    assert code == 0
    assert (
        "Cost: 0.572 hours of run time (95 % interval: 0.349–0.937), 0.286 at 0.5 per hour, estimated from"
        in notes
    )
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_the_page_has_the_hours(isolaw: Callable[..., Any], tmp_path: Path) -> None:
    recorded = ROOT / "examples" / "data" / "real-arithmetic.parquet"
    chosen = ("--where", "problem_set=easy", "--where", "lr=1e-3", "--draws", "20")
    code, out, _ = isolaw("answer", recorded, *chosen, "--cost", recorded, "--compute", "8e4", "-o", tmp_path)
    assert code == 0
    said = next(line for line in out.splitlines() if line.startswith("Cost: "))
    assert said.endswith(f"from 36 recorded runs ({recorded}; GPUs not recorded).")
    assert (tmp_path / "report.html").read_text().count(
        said.removeprefix("Cost: ")
    ) == 2  # in the text, and at the slider's stop
