"""The queue: what begins when, what is made again, and when a sweep ends."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from isolaw import engine, executors
from isolaw.config import ExecutorSection
from isolaw.errors import SpecError
from isolaw.executors import waiting
from isolaw.executors.waiting import Event, Waiting
from isolaw.store import SweepStore


def queue(
    tmp_path: Path, names: str = "abcdef", stop: threading.Event | None = None, **limits: int
) -> Waiting:
    """Runs that are called by letters."""
    bounds = ExecutorSection.model_validate({"retries": 0, **limits})
    return Waiting(
        tmp_path, dict.fromkeys(names, 10), dict.fromkeys(names, 2), bounds, stop or threading.Event()
    )


def begun(waiting: Waiting) -> str:
    return "".join(iter(waiting.next, None))


def settle(waiting: Waiting, run_id: str, kind: str, cause: str = "") -> list[str]:
    return [event.kind for event in waiting.settle(Event(run_id, kind, cause=cause))]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("limits", "expected"),
    [({}, "abcdef"), ({"jobs": 2}, "ab"), ({"max_rollouts": 35}, "abc"), ({"max_gpus": 4, "jobs": 5}, "ab")],
)
def test_no_more_at_a_time_than_the_limits_allow(tmp_path: Path, limits, expected: str) -> None:
    runs = queue(tmp_path, **limits)
    assert begun(runs) == expected
    assert settle(runs, "a", "done") == ["done"]
    assert begun(runs) == "abcdef"[len(expected) : len(expected) + 1]


def test_a_run_that_does_not_fit_lets_others_pass(tmp_path: Path) -> None:
    sizes = {"a": 6, "b": 6, "c": 4}
    for limits, gpus in (({"max_rollouts": 10}, dict.fromkeys("abc", 0)), ({"max_gpus": 10}, sizes)):
        runs = Waiting(tmp_path, sizes, gpus, ExecutorSection(**limits), threading.Event())
        assert begun(runs) == "ac"


def test_the_same_failure_again_and_again_ends_the_sweep(tmp_path: Path) -> None:
    runs = queue(tmp_path, jobs=1, same_failures=3)
    for step, run_id in enumerate("ab"):
        assert begun(runs) == run_id
        assert settle(runs, run_id, "failed", f"step {step}: not finite at 1.{step}e-3") == ["failed"]
    assert begun(runs) == "c"
    assert settle(runs, "c", "failed", "step 31: not finite at 2.5e-3") == ["failed", "warning"]
    assert runs.halted
    assert not runs.open


def test_what_a_trainer_printed_last_is_no_cause(tmp_path: Path) -> None:
    """Unless it is an error: other errors, and other exit statuses, are other causes."""
    sentence = "the command ended after {} of 20 steps (exit status {})\n  its last lines:\n  | {}"
    last = [(3, 0, "step 3, lr: low"), (4, 0, "eval reward=0.1"), (5, 0, "")]
    runs = queue(tmp_path, jobs=1, same_failures=3)
    for run_id, item in zip("abc", last, strict=True):
        begun(runs)
        settle(runs, run_id, "failed", sentence.format(*item))
    assert runs.halted
    other = [(3, 1, "OSError: no space"), (3, 1, "ValueError: 7\n  | Aborted"), (3, 1, "x"), (3, 2, "x")]
    runs = queue(tmp_path, jobs=1, same_failures=2)
    for run_id, item in zip("abcd", other, strict=True):
        begun(runs)
        settle(runs, run_id, "failed", sentence.format(*item))
    assert not runs.halted


@pytest.mark.parametrize("between", ["done", "another"])
def test_failures_that_are_not_all_the_same_do_not(tmp_path: Path, between: str) -> None:
    runs = queue(tmp_path, same_failures=2)
    begun(runs)
    settle(runs, "a", "failed", "no memory")
    settle(runs, "b", "done" if between == "done" else "failed", "no disk")
    assert settle(runs, "c", "failed", "no memory") == ["failed"]
    assert not runs.halted


def test_a_lost_run_is_made_again_while_it_gets_further(tmp_path: Path) -> None:
    runs = queue(tmp_path, "a", retries=2)
    states = SweepStore(tmp_path).run("a").folder / "state"
    for step in range(1, 8):  # as pre-emption does it, again and again
        assert begun(runs) == "a"
        (states / str(step)).mkdir(parents=True)
        assert settle(runs, "a", "lost", "its machine has gone") == ["warning"]
    for _ in range(1):
        assert begun(runs) == "a"
        assert settle(runs, "a", "lost", "its machine has gone") == ["warning"]
    assert begun(runs) == "a"
    assert settle(runs, "a", "lost", "its machine has gone") == ["failed"]
    failure = SweepStore(tmp_path).run("a").failure
    assert failure is not None
    assert failure["cause"] == "its machine has gone; 3 consecutive attempts without progress"


def test_without_retries_it_fails(tmp_path: Path) -> None:
    (SweepStore(tmp_path).run("a").folder / "state").mkdir(parents=True)
    runs = queue(tmp_path, "a")
    begun(runs)
    assert settle(runs, "a", "lost", "the worker process died") == ["failed"]
    failure = SweepStore(tmp_path).run("a").failure
    assert failure is not None
    assert failure["cause"] == "the worker process died"


def test_a_run_in_use_is_asked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a while, for as long as it takes, and without a place of its own meanwhile."""
    monkeypatch.setattr(waiting, "_BUSY_RETRY_S", 0.05)
    runs = queue(tmp_path, "ab", jobs=1, retries=1)
    assert begun(runs) == "a"
    told = settle(runs, "a", "busy", "it is in use by process 7")
    assert begun(runs) == "b"
    settle(runs, "b", "done")
    for _ in range(3):
        assert runs.next() is None
        assert runs.open
        time.sleep(0.06)
        assert begun(runs) == "a"
        told += settle(runs, "a", "busy", "it is in use by process 7")
    assert told == ["warning"]


def test_what_was_asked_to_end_and_ended_is_no_loss(tmp_path: Path) -> None:
    stop = threading.Event()
    runs = queue(tmp_path, retries=3, jobs=2, stop=stop)
    assert begun(runs) == "ab"
    stop.set()
    assert settle(runs, "a", "lost", "cancelled") == ["stopped"]
    assert settle(runs, "b", "stopped") == ["stopped"]
    assert not runs.open


# What a sweep asks for


def test_the_longest_begin_first_and_last_what_failed(tmp_path: Path, tiny) -> None:
    spec = tiny(grid={"rollouts_per_problem": [16, 4, 8]}, sweep={"seeds": 1})
    planned = engine.resolve_sweep(spec, tmp_path)
    by_id = {run.run_id: run for run in planned.runs}
    assert [by_id[run_id].rollouts_per_problem for run_id in planned.todo] == [4, 8, 16]

    store = SweepStore(tmp_path)
    store.write_spec(spec, None)
    for run in planned.runs:
        store.run(run.run_id).create(run)
    store.run(planned.todo[0]).fail("something", "")
    assert engine.resolve_sweep(spec, tmp_path).todo == [*planned.todo[1:], planned.todo[0]]


def test_a_run_that_is_nearly_done_is_short(tmp_path: Path, tiny) -> None:
    spec = tiny(grid={"rollouts_per_problem": [4, 8]}, sweep={"seeds": 1})
    planned = engine.resolve_sweep(spec, tmp_path)
    events = engine.execute(planned, tmp_path)
    for _ in range(8):
        next(events)
    events.close()  # type: ignore[attr-defined]
    assert engine.resolve_sweep(spec, tmp_path).todo == planned.todo[::-1]


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"nodes": 2}, "nodes: found 2; expected 1; more with executor.kind = 'ray' or 'slurm'"),
        ({"kind": "slurm", "nodes": 2}, "nodes: found 2; expected a divisor of real.processes and real."),
        ({"max_rollouts": 100}, "max_rollouts: found 100; expected at least the largest batch (128)"),
        ({"kind": "ray", "gpus": 2, "max_gpus": 1}, "max_gpus: found 1; expected at least those of one run"),
        ({"kind": "slurm", "time": 1e-3}, "time: found 0.001; expected from a second to a year"),
        ({"kind": "slurm", "partition": "a\nrm"}, "partition: found 'a\\nrm'; expected text without"),
        ({"kind": "slurm", "sbatch": {"account": "a\nrm"}}, "sbatch: found {'account': 'a\\nrm'}; expected"),
        ({"kind": "slurm", "sbatch": {"a\nrm": "b"}}, "sbatch: found {'a\\nrm': 'b'}; expected names of"),
        ({"kind": "slurm", "sbatch": {"job-name": "b"}}, "sbatch: found {'job-name': 'b'}; expected options"),
        ({"kind": "slurm", "time": "soon"}, "time: found 'soon'; expected minutes, or a time as"),
        ({"kind": "rya"}, "kind: found 'rya'; expected 'inline', 'processes', 'ray', 'slurm' or 'scripts'"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_before_it_begins(tmp_path: Path, tiny, section, words: str) -> None:
    with pytest.raises(SpecError) as error:
        engine.resolve_sweep(tiny(executor=section), tmp_path / "out")
    assert f"executor.{words}" in str(error.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("kind", "package"), [("ray", "ray"), ("slurm", "submitit")])
def test_a_missing_package_is_named(
    isolaw, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, package: str
) -> None:
    find = executors.importlib.util.find_spec
    monkeypatch.setattr(
        executors.importlib.util, "find_spec", lambda name: None if name == package else find(name)
    )
    code, _, said = isolaw("sweep", "--out", tmp_path / "out", "--executor", kind)
    assert code == 2
    assert f"executor.kind: {package} is not installed: pip install 'isolaw[{kind}]'; found '{kind}'" in said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("written", "minutes"),
    [
        ("1-00:30:00", 1470),
        ("1-2:30", 1590),
        ("1-2", 1560),
        ("08:00:00", 480),
        ("08:00", 8),
        ("0:00:30", 0.5),
        ("90", 90),
        (90, 90),
        (1.5, 1.5),
    ],
)
def test_times(written, minutes: float) -> None:
    assert ExecutorSection(time=written).time == minutes


def test_keys_of_another_executor_are_named(tmp_path: Path, tiny) -> None:
    spec = tiny(executor={"kind": "processes", "address": "auto", "partition": "short", "time": "1:00:00"})
    notes = engine.resolve_sweep(spec, tmp_path / "out").notes
    assert notes == [
        "with executor.kind = 'processes', isolaw does not use executor.address, executor.partition"
    ]
