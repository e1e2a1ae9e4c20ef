"""The replay backend: real curves played back as they were recorded."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import isolaw
from isolaw import engine
from isolaw.backends import replay
from isolaw.config import SweepSpec
from isolaw.errors import InputError, SpecError, StoreError
from isolaw.runs import Runs
from isolaw.store import SweepStore

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "examples" / "data" / "tan_rollout_n_base.csv"
MAPPED: dict[str, Any] = {
    "metric": "holdout_acc_raw",
    "columns": {"rollouts_per_problem": "rollout_n", "compute": "prompts_seen*rollout_n"},
    "set": {"problems_per_batch": 512, "problem_set": "tan-math"},
}
INLINE = {"kind": "inline"}


def qwen(source: Path = TABLE, **sections: Any) -> SweepSpec:
    data = {
        "sweep": {"backend": "replay"},
        "replay": {"source": str(source), **MAPPED},
        "executor": INLINE,
    }
    return SweepSpec.parse(data | {name: data.get(name, {}) | section for name, section in sections.items()})


def curves(runs: Runs) -> pd.DataFrame:
    points = runs.points.drop(columns=["run_id", "wall_s"])
    return points.sort_values(["rollouts_per_problem", "seed", "step"], ignore_index=True)


def test_the_shipped_example_is_that_sweep(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(ROOT)
    shipped = SweepSpec.read("examples/replay-qwen.toml")
    ids = [run.run_id for run in engine.resolve_sweep(shipped, tmp_path).runs]
    assert ids == [run.run_id for run in engine.resolve_sweep(qwen(), tmp_path).runs]


def test_the_grid_is_all_that_the_table_offers(tmp_path: Path) -> None:
    planned = engine.resolve_sweep(qwen(), tmp_path)
    assert planned.spec.grid.problems_per_batch == (512,)
    assert planned.spec.grid.rollouts_per_problem == (4, 8, 16, 32)
    assert planned.spec.sweep.seeds == (0,)
    frame = pd.read_csv(TABLE)
    assert planned.spec.sweep.compute == (frame["prompts_seen"] * frame["rollout_n"]).max()
    assert planned.spec.limits.max_batch_rollouts == 512 * 32


def test_what_the_user_says_wins(tmp_path: Path) -> None:
    planned = engine.resolve_sweep(
        qwen(grid={"rollouts_per_problem": [8, 16]}, sweep={"backend": "replay", "compute": 300_000}),
        tmp_path,
    )
    assert planned.spec.grid.rollouts_per_problem == (8, 16)
    assert planned.spec.sweep.compute == 300_000


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"grid": {"rollouts_per_problem": [8, 6]}}, "B_p = 512, n = 6, seed = 0"),
        ({"grid": {"rollouts_per_problem": [8, 64]}}, "B_p = 512, n = 64, seed = 0"),
        ({"grid": {"problems_per_batch": 256}}, "B_p = 256, n = 4, seed = 0"),
        ({"sweep": {"backend": "replay", "seeds": [0, 3]}}, "B_p = 512, n = 4, seed = 3"),
    ],
    ids=str,
)
def test_a_configuration_that_was_not_recorded(tmp_path: Path, asked: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError) as error:
        engine.resolve_sweep(qwen(**asked), tmp_path)
    assert f"no recorded run has {words}" in str(error.value)
    assert "(512, 4, 0), (512, 8, 0), (512, 16, 0), (512, 32, 0)" in str(error.value)


@pytest.mark.slow
def test_the_horizon_cuts_and_extended_it_is_played_back_exactly(tmp_path: Path) -> None:
    short = qwen(sweep={"backend": "replay", "compute": 200_000})
    points = engine.sweep(short, tmp_path).points
    assert points["compute"].max() <= 200_000
    assert len(points) < 382
    engine.sweep(qwen(), tmp_path)
    recorded = isolaw.read(TABLE, **MAPPED)
    assert len(recorded.points) == 382
    pd.testing.assert_frame_equal(curves(SweepStore(tmp_path).collect()), curves(recorded))


@pytest.mark.slow
def test_stopped_anywhere_it_ends_the_same(tmp_path: Path, same) -> None:
    planned = engine.resolve_sweep(qwen(), tmp_path / "stopped")
    events = engine.execute(planned, tmp_path / "stopped")
    for _ in range(150):
        next(events)
    events.close()
    same(engine.sweep(qwen(), tmp_path / "stopped"), engine.sweep(qwen(), tmp_path / "whole"))


@pytest.mark.slow
def test_the_same_table_elsewhere_is_the_same_sweep(tmp_path: Path) -> None:
    copy = tmp_path / "moved.csv"
    copy.write_bytes(TABLE.read_bytes())
    engine.sweep(qwen(), tmp_path / "out")
    assert engine.resolve_sweep(qwen(copy), tmp_path / "out").todo == []
    copy.write_text(TABLE.read_text() + "base,4,9999,5119488,0.9,0.9\n")
    with pytest.raises(StoreError, match=r"contains another sweep \(content\.runs is"):
        engine.resolve_sweep(qwen(copy, sweep={"backend": "replay", "compute": 10**6}), tmp_path / "out")


def small(path: Path, text: str) -> SweepSpec:
    path.write_text(text)
    return SweepSpec.parse(
        {
            "sweep": {"backend": "replay"},
            "replay": {"source": str(path), "metric": "r"},
            "executor": {"kind": "processes", "jobs": 1},
        }
    )


SMALL = "problems_per_batch,rollouts_per_problem,seed,step,r\n" + "".join(
    f"4,{n},{seed},{step},0.{n}{seed}{step}\n" for n in (2, 8) for seed in (0, 1) for step in (1, 2, 3)
)


@pytest.mark.slow
@pytest.mark.parametrize("text", [SMALL.replace("0.8", "0.1"), None], ids=["changed", "gone"])
def test_a_sweep_plays_what_it_was_resolved_with(tmp_path: Path, text: str | None) -> None:
    spec, out = small(tmp_path / "t.csv", SMALL), tmp_path / "out"
    recorded = isolaw.read(tmp_path / "t.csv", metric="r")
    resolved = engine.resolve_sweep(spec, out)
    (tmp_path / "t.csv").unlink()
    if text is not None:
        (tmp_path / "t.csv").write_text(text)
    assert {event.kind for event in engine.execute(resolved, out)} == {"checkpoint", "done"}
    pd.testing.assert_frame_equal(curves(SweepStore(out).collect()), curves(recorded))


@pytest.mark.slow
def test_metrics_and_sets_of_a_long_table(tmp_path: Path) -> None:
    rows = [
        f"4,2,{step},{8 * step},{s},{m},0.{step}{len(m)},30,{k}\n"
        for step in (0, 1, 2)
        for s in ("validation", "aime24")
        for m, k in (("avg@4", 4), ("entropy", ""))
    ]
    head = "problems_per_batch,rollouts_per_problem,step,compute,eval_set,metric,value,n_problems,n_samples\n"
    path = tmp_path / "long.csv"
    path.write_text(head + "".join(rows))
    spec = SweepSpec.parse(
        {"sweep": {"backend": "replay"}, "replay": {"source": str(path)}, "executor": INLINE}
    )
    played = engine.sweep(spec, tmp_path / "out")
    keys = ["step", "eval_set", "metric"]
    left, right = (
        r.points.drop(columns=["run_id", "wall_s"]).sort_values(keys, ignore_index=True)
        for r in (played, isolaw.read(path))
    )
    pd.testing.assert_frame_equal(left, right)


@pytest.mark.parametrize(
    ("replay", "words"),
    [
        ({}, ["replay.source"]),
        ({"source": "nowhere.csv"}, ["replay.source", "nowhere.csv", "No such file"]),
        ({"source": str(TABLE), **MAPPED, "metric": "holdout_acc"}, ["holdout_acc", "'holdout_acc_raw'"]),
        ({"source": str(TABLE), "sourc": 1}, ["replay.sourc", "'source'"]),
        (
            {"source": str(TABLE), "metric": "holdout_acc_raw"},
            ["B_p (problems_per_batch): found no column", "nearest: 'rollout_n'"],
        ),
    ],
    ids=str,
)
def test_a_source_that_cannot_be_played(tmp_path: Path, tree, replay: dict[str, Any], words) -> None:
    spec = SweepSpec.parse({"sweep": {"backend": "replay"}, "replay": replay})
    with pytest.raises(InputError) as error:
        engine.sweep(spec, tmp_path / "out")
    for word in words:
        assert word in str(error.value)
    assert tree(tmp_path) == {}


FRAME = pd.DataFrame(
    [
        {"B_p": 4, "n": n, "seed": seed, "step": step, "r": 0.1 * step + 0.01 * seed}
        for n, seeds in ((2, (0, 1)), (8, (0,)))  # no full grid
        for seed in seeds
        for step in (1, 2, 3)
    ]
)


def replaying(source: Any, jobs: int = 0) -> dict[str, Any]:
    executor = {"kind": "processes", "jobs": jobs} if jobs else INLINE
    return {
        "sweep": {"backend": "replay"},
        "replay": {"source": source, "metric": "r"},
        "executor": executor,
    }


@pytest.mark.slow
def test_tables_in_memory_are_played_as_their_file_is(tmp_path: Path) -> None:
    """Workers of other processes read them from the sweep's directory, which also continues them."""
    runs = isolaw.read(FRAME, metric="r")
    played = isolaw.sweep(replaying(FRAME, jobs=1), tmp_path / "frame")
    pd.testing.assert_frame_equal(curves(played), curves(runs))
    ids = set(played.points["run_id"])
    assert set(isolaw.sweep({**replaying(runs), "replay": {"source": runs}}).points["run_id"]) == ids
    again = SweepStore(tmp_path / "frame").read_spec()
    assert engine.resolve_sweep(again, tmp_path / "frame").todo == []
    assert again.replay["source"] == str(tmp_path / "frame" / "recorded.parquet")


@pytest.mark.slow
def test_a_table_in_memory_with_a_mapping(tmp_path: Path) -> None:
    frame = pd.read_csv(TABLE)
    spec = {"sweep": {"backend": "replay"}, "replay": {"source": frame, **MAPPED}, "executor": INLINE}
    pd.testing.assert_frame_equal(curves(isolaw.sweep(spec)), curves(isolaw.read(TABLE, **MAPPED)))


@pytest.mark.slow
def test_what_a_sweeps_directory_keeps_is_checked(tmp_path: Path) -> None:
    out = tmp_path / "out"
    spec = SweepSpec.parse(replaying(FRAME))
    planned = engine.resolve_sweep(spec, out)
    assert not out.exists()
    list(zip(range(1), engine.execute(planned, out), strict=False))
    replay._runs_by_hash.clear()
    isolaw.read(FRAME.assign(r=0.5), metric="r").to_parquet(tmp_path / "other.parquet")
    (tmp_path / "other.parquet").replace(out / "recorded.parquet")
    with pytest.raises(InputError, match=r"recorded\.parquet: the runs changed since the sweep was resolved"):
        engine.resolve_sweep(SweepStore(out).read_spec(), out)
    with pytest.raises(StoreError, match=r"contains another sweep \(content\.runs is"):
        isolaw.sweep(replaying(FRAME.assign(r=0.5)), out)


def test_logs_are_played_from_their_folder(tmp_path: Path) -> None:
    """Where they are is no part of a run's identity, and the sweep does without them once it began."""
    ids = []
    for place in ("a", "b"):
        for n in (4, 8):
            folder = tmp_path / place / f"n{n}"
            folder.mkdir(parents=True)
            (folder / "config.json").write_text(json.dumps({"groups_per_batch": 16, "group_size": n}))
            rows = [{"step": i, "env/all/reward/total": 0.1 * i, "optim/lr": 1e-5} for i in range(1, 5)]
            (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        spec = SweepSpec.parse({**replaying(""), "replay": {"source": str(tmp_path / place)}})
        planned = engine.resolve_sweep(spec, tmp_path / "out")
        ids.append([run.run_id for run in planned.runs])
        shutil.rmtree(tmp_path / place)
    assert ids[0] == ids[1]
    assert len(ids[0]) == 2
    list(engine.execute(planned, tmp_path / "out"))
    assert engine.status(tmp_path / "out")["done"] == 2


def test_a_table_is_no_specification() -> None:
    with pytest.raises(InputError, match=r"found DataFrame; .* \"replay\": {\"source\": runs}"):
        isolaw.sweep(FRAME)  # type: ignore[arg-type]
