"""What all executors share: one run against its store."""

from __future__ import annotations

from pathlib import Path

import pytest

from isolaw import engine
from isolaw.executors import base
from isolaw.store import SweepStore


@pytest.fixture
def planned(tmp_path: Path, tiny) -> engine.ResolvedSweep:
    """A sweep whose runs wait."""
    planned = engine.resolve_sweep(tiny(), tmp_path)
    directory = SweepStore(tmp_path)
    directory.write_spec(planned.spec, None)
    for run in planned.runs:
        directory.run(run.run_id).create(run)
    return planned


def test_checkpoints_then_done(tmp_path: Path, planned: engine.ResolvedSweep) -> None:
    run_id = planned.todo[0]
    *checkpoints, last = base.execute(tmp_path, run_id)
    assert [e.kind for e in checkpoints] == ["checkpoint"] * len(planned.runs[0].schedule())
    assert (last.kind, last.run_id) == ("done", run_id)
    assert SweepStore(tmp_path).run(run_id).recorded().done_compute == planned.runs[0].compute


def test_each_event_follows_its_line(tmp_path: Path, planned: engine.ResolvedSweep) -> None:
    run = SweepStore(tmp_path).run(planned.todo[0])
    for event in base.execute(tmp_path, planned.todo[0]):
        if event.kind == "checkpoint":
            assert run.recorded().checkpoints[-1]["compute"] == event.compute


@pytest.mark.parametrize("publish_every_s", [0.0, 1e9])
def test_stopped_after_any_checkpoint_it_ends_the_same(
    tmp_path: Path,
    planned: engine.ResolvedSweep,
    tiny,
    same,
    monkeypatch: pytest.MonkeyPatch,
    publish_every_s: float,
) -> None:
    monkeypatch.setattr("isolaw.store.run.PUBLISH_EVERY_S", publish_every_s)
    monkeypatch.setattr("isolaw.store.run.PUBLISHING_SHARE", 1e9)
    for run, stop_after in zip(planned.runs, (1, 4, 7, 2), strict=True):
        events = base.execute(tmp_path, run.run_id)
        for _ in range(stop_after):
            next(events)
        events.close()
    events = [event for run_id in planned.todo for event in base.execute(tmp_path, run_id)]
    assert {event.kind for event in events} == {"checkpoint", "done"}
    same(SweepStore(tmp_path).collect(), engine.sweep(tiny()))


def test_an_error_becomes_an_event(tmp_path: Path, planned: engine.ResolvedSweep) -> None:
    run = SweepStore(tmp_path).run(planned.todo[0])
    (run.folder / "spec.json").write_text("{")
    (event,) = base.execute(tmp_path, planned.todo[0])
    assert event.kind == "failed"
    assert "spec.json: damaged: not JSON" in event.cause
    assert run.failure is not None
    assert run.failure["cause"] == event.cause
    assert run.recorded().done_compute == 0


def test_a_run_has_one_writer(
    tmp_path: Path, planned: engine.ResolvedSweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever comes second is told so, and writes nothing into the folder, no failure either."""
    monkeypatch.setattr("isolaw.store.run.WAIT_FOR_A_RUN_S", 0.1)
    run = SweepStore(tmp_path).run(planned.todo[0])
    events = base.execute(tmp_path, planned.todo[0])
    next(events)
    (event,) = base.execute(tmp_path, planned.todo[0])
    assert event.kind == "busy"
    assert f"{run.folder} is in use by process" in event.cause
    assert run.failure is None
    events.close()
    with run.lock():
        pass


def test_a_run_that_is_asked_to_stop_keeps_its_state(
    tmp_path: Path, planned: engine.ResolvedSweep, tiny, same, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("isolaw.store.run.PUBLISH_EVERY_S", 1e9)
    run = SweepStore(tmp_path).run(planned.todo[0])
    events = base.execute(tmp_path, planned.todo[0])
    next(events)
    run.ask_to_stop()
    assert [e.kind for e in events] == ["checkpoint", "stopped"]
    assert run.settled() == run.recorded().checkpoints
    assert run.last_state == run.recorded().checkpoints[-1]["step"]
    run.proceed()
    for run_id in planned.todo:
        assert list(base.execute(tmp_path, run_id))[-1].kind == "done"
    same(SweepStore(tmp_path).collect(), engine.sweep(tiny()))


def test_asked_to_stop_at_its_end_it_is_done(tmp_path: Path, planned: engine.ResolvedSweep) -> None:
    run = SweepStore(tmp_path).run(planned.todo[0])
    events = base.execute(tmp_path, planned.todo[0])
    for _ in planned.runs[0].schedule():
        next(events)
    run.ask_to_stop()
    assert [e.kind for e in events] == ["done"]
