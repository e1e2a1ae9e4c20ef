"""The sweep engine: plan, skip what is done, execute, extend."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pandas as pd
import pytest

from isolaw import engine
from isolaw.config import SweepSpec
from isolaw.errors import NotOurs, RunError, SpecError, StoreError
from isolaw.executors.waiting import Event
from isolaw.simulators.interference import PRESETS
from isolaw.store import SweepStore

PRESET = next(iter(PRESETS.values()))
BOOM = 1e200  # a learning rate after which nothing is finite: the run fails by itself


def looks(out: Path) -> pd.Series:
    """Number of evaluated steps of each run, by (n, seed)."""
    points = SweepStore(out).collect().points
    return points.groupby(["rollouts_per_problem", "seed"])["step"].nunique()


# Plan


def test_planning_writes_nothing(tmp_path: Path, tiny, tree) -> None:
    planned = engine.resolve_sweep(tiny(), tmp_path / "out")
    assert tree(tmp_path) == {}
    assert len(planned.runs) == len(planned.todo) == 4
    assert planned.remaining_rollouts == planned.rollouts == 2 * (20_000 // 32 * 32 + 20_000 // 128 * 128)
    json.dumps(planned.to_dict(), allow_nan=False)


def test_configurations_above_the_cap_are_left_out_and_said(tmp_path: Path, tiny) -> None:
    planned = engine.resolve_sweep(
        tiny(grid={"problems_per_batch": [8, 16]}, limits={"max_batch_rollouts": 128}), tmp_path
    )
    pairs = {(r.problems_per_batch, r.rollouts_per_problem) for r in planned.runs}
    assert pairs == {(8, 4), (8, 16), (16, 4)}
    assert any("B_p = 16 with n = 16" in note for note in planned.notes)


def test_every_axis_of_the_recipe_is_crossed(tmp_path: Path, tiny) -> None:
    planned = engine.resolve_sweep(tiny(grid={"lr": [0.01, 0.02], "kl": [0.0, 0.5]}), tmp_path)
    assert len({r.run_id for r in planned.runs}) == len(planned.runs) == 2 * 2 * 4
    assert {(r.recipe.lr, r.recipe.kl) for r in planned.runs} == {
        (lr, kl) for lr in (0.01, 0.02) for kl in (0.0, 0.5)
    }


@pytest.mark.parametrize(
    "twice",
    [
        {"sweep": {"seeds": [0, 1, 1]}},
        {"grid": {"rollouts_per_problem": [4, 16, 4]}},
        {"grid": {"kl": [PRESET.kl_easy, PRESET.kl_easy]}},
        {"evaluation": {"metrics": ["avg@4", "best@4", "worst@4", "avg@4"]}},
        {"evaluation": {"sets": ["validation", "validation"]}},
    ],
    ids=str,
)
def test_what_is_named_twice_counts_once(tmp_path: Path, tiny, same, twice) -> None:
    spec = tiny(**twice)
    planned = engine.resolve_sweep(spec, tmp_path / "twice")
    assert len(set(planned.todo)) == len(planned.todo) == 4
    same(engine.sweep(spec, tmp_path / "twice"), engine.sweep(tiny(), tmp_path / "once"))


def test_budget_below_one_batch(tmp_path: Path, tiny) -> None:
    with pytest.raises(SpecError, match=r"sweep\.compute: found 100; expected at least one batch, 128"):
        engine.resolve_sweep(tiny(sweep={"compute": 100}), tmp_path)


@pytest.mark.parametrize(("backend", "hint"), [("bandti", "'bandit'"), ("rael", "'real'")])
def test_unknown_backend(tmp_path: Path, tiny, backend: str, hint: str) -> None:
    with pytest.raises(SpecError) as error:
        engine.resolve_sweep(tiny(sweep={"backend": backend}), tmp_path)
    assert hint in str(error.value)
    assert "expected bandit, replay" in str(error.value)


# Again, longer, wider


def test_the_same_again_has_nothing_left(tmp_path: Path, tiny, same) -> None:
    first = engine.sweep(tiny(), tmp_path)
    planned = engine.resolve_sweep(tiny(), tmp_path)
    assert (planned.todo, planned.remaining_rollouts) == ([], 0)
    assert list(engine.execute(planned, tmp_path)) == []
    pd.testing.assert_frame_equal(first.points, SweepStore(tmp_path).collect().points)


def test_extending_equals_having_gone_that_far_at_once(tmp_path: Path, tiny, same) -> None:
    engine.sweep(tiny(), tmp_path / "extended")
    old = SweepStore(tmp_path / "extended").collect().points
    planned = engine.resolve_sweep(tiny(sweep={"compute": 60_000}), tmp_path / "extended")
    assert len(planned.todo) == 4
    done = 2 * (20_000 // 32 * 32 + 20_000 // 128 * 128)
    assert planned.remaining_rollouts == planned.rollouts - done
    extended = engine.sweep(tiny(sweep={"compute": 60_000}), tmp_path / "extended")
    kept = SweepStore(tmp_path / "extended").read_spec().evaluation
    at_once = tiny(sweep={"compute": 60_000}, evaluation={"start": kept.start, "end": kept.end})
    same(extended, engine.sweep(at_once, tmp_path / "fresh"))
    assert extended.points["compute"].max() > old["compute"].max()
    merged = old.merge(extended.points, on=list(old.columns.drop("wall_s")))
    assert len(merged) == len(old)


@pytest.mark.parametrize("stop_after", [1, 2, 3, 5, 8, 11])
def test_extending_in_pieces_is_the_same(tmp_path: Path, tiny, same, stop_after: int) -> None:
    longer = tiny(sweep={"compute": 60_000})
    for name in ("through", "pieces"):
        engine.sweep(tiny(), tmp_path / name)
    planned = engine.resolve_sweep(longer, tmp_path / "pieces")
    with closing(engine.execute(planned, tmp_path / "pieces")) as events:
        for _ in range(stop_after):
            next(events)
    left = engine.resolve_sweep(longer, tmp_path / "pieces")
    assert 0 < len(left.todo) <= 4
    same(engine.sweep(longer, tmp_path / "pieces"), engine.sweep(longer, tmp_path / "through"))


@pytest.mark.slow
def test_seeds_and_n_can_be_added_at_any_time(tmp_path: Path, tiny, same) -> None:
    wide = {"sweep": {"compute": 60_000, "seeds": 3}, "grid": {"rollouts_per_problem": [4, 8, 16]}}
    engine.sweep(tiny(), tmp_path / "grown")
    engine.sweep(tiny(sweep={"seeds": 3}), tmp_path / "grown")
    engine.sweep(tiny(grid={"rollouts_per_problem": [4, 8, 16]}, sweep={"seeds": 3}), tmp_path / "grown")
    grown = engine.sweep(tiny(**wide), tmp_path / "grown")
    assert len(grown) == 9
    again = looks(tmp_path / "grown").unstack()
    assert again.nunique(axis=1).eq(1).all()  # whenever a run was added, it got the same looks

    engine.sweep(tiny(**(wide | {"sweep": {"compute": 20_000, "seeds": 3}})), tmp_path / "wide")
    same(grown, engine.sweep(tiny(**wide), tmp_path / "wide"))


def test_a_late_seed_looks_where_the_others_looked(tmp_path: Path, tiny) -> None:
    """Also at the ends of horizons that are long passed and lie on no common grid."""
    for compute in (20_000, 31_337, 44_444):
        engine.sweep(tiny(sweep={"compute": compute}), tmp_path)
    engine.sweep(tiny(sweep={"compute": 60_000, "seeds": 3}), tmp_path)
    points = SweepStore(tmp_path).collect().points
    steps = points.groupby(["rollouts_per_problem", "seed"])["step"].apply(lambda s: tuple(sorted(set(s))))
    assert steps.unstack().nunique(axis=1).eq(1).all()
    assert {31_337 // 32, 44_444 // 32} <= set(steps[4, 2])


def test_a_seed_added_alone_keeps_the_others(tmp_path: Path, tiny) -> None:
    engine.sweep(tiny(), tmp_path)
    engine.sweep(tiny(sweep={"seeds": [7]}), tmp_path)
    assert set(SweepStore(tmp_path).collect().points["seed"]) == {0, 1, 7}
    assert looks(tmp_path).unstack().nunique(axis=1).eq(1).all()


def test_a_shorter_horizon_shortens_nothing(tmp_path: Path, tiny, same) -> None:
    before = engine.sweep(tiny(), tmp_path)
    planned = engine.resolve_sweep(tiny(sweep={"compute": 5_000}), tmp_path)
    assert planned.todo == []
    assert any("isolaw does not shorten runs" in note for note in planned.notes)
    same(engine.sweep(tiny(sweep={"compute": 5_000}), tmp_path), before)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"recipe": {"lr": 0.5}}, ["recipe.lr", f"{PRESET.lr_easy} in the directory", "0.5 in this sweep"]),
        ({"recipe": {"kl": 0.0}}, ["recipe.kl"]),
        ({"recipe": {"lr_scaling": "linear"}}, ["recipe.lr_scaling", "'linear' in this sweep"]),
        ({"problems": {"set": "hard"}}, ["problems.set", "'easy' in the directory", "'hard' in this sweep"]),
        ({"problems": {"n_train": 51}}, ["problems.n_train", "50 in the directory", "51 in this sweep"]),
        ({"bandit": {"parameters": {"kappa": 0.5}}}, ["options.parameters"]),
        ({"evaluation": {"points": 9}}, ["evaluation.points", "found 9", "8"]),
        ({"evaluation": {"samples": 8}}, ["evaluation.samples", "found 8", "4"]),
        ({"evaluation": {"metrics": ["avg@4"]}}, ["evaluation.metrics"]),
        ({"evaluation": {"sets": ["train"]}}, ["evaluation.sets"]),
        ({"evaluation": {"end": 30_000}}, ["evaluation.end", "30000", "20000"]),
    ],
    ids=str,
)
def test_another_sweep_in_the_same_directory(tmp_path: Path, tiny, tree, change, words: list[str]) -> None:
    engine.sweep(tiny(), tmp_path)
    before = tree(tmp_path)
    with pytest.raises((StoreError, SpecError)) as error:
        engine.sweep(tiny(**change), tmp_path)
    for word in [str(tmp_path), *words]:
        assert word in str(error.value)
    assert tree(tmp_path) == before


# Executors


@pytest.mark.slow
def test_where_runs_execute_makes_no_difference(tmp_path: Path, tiny, same) -> None:
    inline = engine.sweep(tiny(), tmp_path / "inline")
    for jobs in (1, 2):
        spec = tiny(executor={"kind": "processes", "jobs": jobs})
        same(engine.sweep(spec, tmp_path / f"{jobs} processes"), inline)


def test_the_order_of_runs_makes_no_difference(tmp_path: Path, tiny, same) -> None:
    planned = engine.resolve_sweep(tiny(), tmp_path / "reversed")
    planned.todo.reverse()
    list(engine.execute(planned, tmp_path / "reversed"))
    same(SweepStore(tmp_path / "reversed").collect(), engine.sweep(tiny(), tmp_path / "forward"))


def test_events(tmp_path: Path, tiny) -> None:
    events: list[Event] = []
    runs = engine.sweep(tiny(), tmp_path, on_event=events.append)
    done = [e for e in events if e.kind == "done"]
    assert sorted(e.run_id for e in done) == sorted(set(runs.points["run_id"]))
    checkpoints = [(e.run_id, e.compute) for e in events if e.kind == "checkpoint"]
    recorded = runs.points[["run_id", "compute"]].drop_duplicates()
    assert sorted(checkpoints) == sorted(recorded.itertuples(index=False, name=None))


# Failures


def test_the_cause_of_a_failure_can_be_printed(tmp_path: Path, tiny) -> None:
    engine.sweep(tiny(), tmp_path)
    store = SweepStore(tmp_path)
    run = store.run(next(iter(store.specs()[0])))
    run.fail("half a pair: \ud800", "\udfff")
    assert run.failure is not None
    assert run.failure["cause"] == "half a pair: ?"
    assert run.failure["details"] == "?"


def test_a_run_that_fails_stands_alone(tmp_path: Path, tiny, same) -> None:
    spec = tiny(grid={"rollouts_per_problem": [4], "lr": [0.02, BOOM]})
    runs = engine.sweep(spec, tmp_path)
    state = engine.status(tmp_path)
    assert (state["done"], state["failed"]) == (2, 2)
    assert {f["seed"] for f in state["failures"]} == {0, 1}
    assert all(f["cause"] for f in state["failures"])
    failed = SweepStore(tmp_path).run(state["failures"][0]["run_id"])
    assert failed.failure is not None
    assert "Traceback" in failed.failure["details"]
    good = [r for r in runs.attributes if runs.attributes[r]["lr"] == 0.02]
    alone = engine.sweep(tiny(grid={"rollouts_per_problem": [4], "lr": [0.02]}), tmp_path / "alone")
    same(runs.select(good), alone)

    retried: list[Event] = []
    engine.sweep(spec, tmp_path, on_event=retried.append)
    assert {e.run_id for e in retried} == {f["run_id"] for f in state["failures"]}


@pytest.mark.parametrize(
    "broken",
    [{"recipe": {"lr": BOOM}}, {"bandit": {"parameters": {"s": 1.7e308, "r": 1}}}],
    ids=["after step 0", "before step 0"],
)
def test_when_every_run_fails(tmp_path: Path, tiny, broken) -> None:
    with pytest.raises(RunError, match="every run failed"):
        engine.sweep(tiny(**broken), tmp_path)
    assert engine.status(tmp_path)["failed"] == 4


def test_a_cause_that_went_away(tmp_path: Path, tiny, same) -> None:
    """The failed run's folder was damaged; mended, the same command makes the run."""
    planned = engine.resolve_sweep(tiny(), tmp_path / "damaged")
    events: Iterator[Event] = engine.execute(planned, tmp_path / "damaged")
    next(events)
    obstacle = SweepStore(tmp_path / "damaged").run(planned.todo[2]).folder / "points.jsonl"
    obstacle.mkdir()
    assert [e.run_id for e in events if e.kind == "failed"] == [planned.todo[2]]
    with pytest.raises(NotOurs, match=r"points\.jsonl: found a folder; expected a file"):
        engine.status(tmp_path / "damaged")
    obstacle.rmdir()
    state = engine.status(tmp_path / "damaged")
    assert (state["done"], state["failed"]) == (3, 1)
    mended = engine.sweep(tiny(), tmp_path / "damaged")
    assert engine.status(tmp_path / "damaged")["failed"] == 0
    same(mended, engine.sweep(tiny(), tmp_path / "whole"))


def test_a_worker_that_died_after_the_end_of_its_run(tmp_path: Path, tiny) -> None:
    """DONE was written, the event never arrived: the run is done, and not failed for ever."""
    engine.sweep(tiny(), tmp_path)
    store = SweepStore(tmp_path)
    store.run(store.run_ids()[0]).fail("the worker process died (exit status -9)", "")
    engine.sweep(tiny(), tmp_path)
    state = engine.status(tmp_path)
    assert (state["done"], state["failed"]) == (4, 0)


# The library's door


def test_sweep_takes_a_file_a_mapping_or_nothing_but_a_directory(tmp_path: Path, tiny, same) -> None:
    text = (
        "# mine\n[sweep]\ncompute = 20_000\nseeds = 2\n[grid]\nproblems_per_batch = 8\n"
        "rollouts_per_problem = [4, 16]\n[problems]\nn_train = 50\nn_validation = 40\n"
        "[evaluation]\npoints = 8\n[executor]\nkind = 'inline'\n"
    )
    file = tmp_path / "sweep.toml"
    file.write_text(text)
    runs = engine.sweep(file, tmp_path / "file")
    assert (tmp_path / "file" / "sweep.toml").read_text() == text
    same(runs, engine.sweep(tiny().model_dump(mode="json"), tmp_path / "mapping"))
    same(runs, engine.sweep(str(file)))


def test_status_of_no_sweep(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(StoreError, match=r"no sweep\.json"):
            engine.status(path)


def test_status_counts(tmp_path: Path, tiny) -> None:
    spec: SweepSpec = tiny()
    with closing(engine.execute(engine.resolve_sweep(spec, tmp_path), tmp_path)) as events:
        next(event for event in events if event.kind == "done")
        next(events)
        state = engine.status(tmp_path)
    counts = {k: state[k] for k in ("runs", "done", "started", "waiting", "failed")}
    assert counts == {"runs": 4, "done": 1, "started": 1, "waiting": 2, "failed": 0}
    assert (state["running"], state["at_work"]) == (True, 1)
    state = engine.status(tmp_path)
    assert (state["running"], state["at_work"]) == (False, 0)
    assert state["rollouts_planned"] == engine.resolve_sweep(spec, tmp_path).rollouts
    assert state["rollouts"] == 20_000 // 32 * 32


def test_a_start_after_the_end_is_one_message(tmp_path: Path, tiny) -> None:
    with pytest.raises(SpecError, match=r"evaluation\.start: found 5000; expected at most .* 256"):
        engine.resolve_sweep(tiny(sweep={"compute": 256}, evaluation={"start": 5000}), tmp_path)


@pytest.mark.parametrize(("name", "value"), [("q", float("nan")), ("lr_easy", 0.0)])
def test_parameters_without_an_identity_or_a_use(tmp_path: Path, tiny, name: str, value: float) -> None:
    with pytest.raises(SpecError, match=rf"bandit\.parameters\.{name}: found"):
        engine.resolve_sweep(tiny(bandit={"parameters": {name: value}}), tmp_path)
