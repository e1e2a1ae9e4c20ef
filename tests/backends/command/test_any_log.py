"""Whatever a trainer does to its log, isolaw goes on, and notices it at each look."""

from __future__ import annotations

import errno
import json
import os
import pprint
import resource
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from isolaw import engine
from isolaw.backends.command import training
from isolaw.backends.command.following import GrowingLog, plain_framework
from isolaw.config import SweepSpec
from isolaw.errors import DataError, RunError
from isolaw.readers import frameworks
from isolaw.report.text.sweep import sweep_state
from isolaw.store import SweepStore

SIMPLE = {"n": (2,), "compute": 160}
LOG = "out + '/metrics.jsonl'"


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "_GRACE_S", 1.0)
    monkeypatch.setattr(training, "_ENDING_S", 1.0)


@pytest.fixture
def printing(sweep_of: Callable[..., Any]) -> Callable[..., Any]:
    """A sweep of a script that isolaw reads from its printed lines."""

    def make(code: str, **command: Any) -> Any:
        data = sweep_of(**SIMPLE, **command)
        data["command"]["run"] = [sys.executable, "-c", f"import os, sys, time, json\n{code}", "2"]
        for key in ("log", "checkpoints"):
            del data["command"][key]
        return data

    return make


def cause(data: dict[str, Any], out: Path) -> str:
    with pytest.raises(RunError):
        engine.sweep(data, out)
    (failure,) = engine.status(out)["failures"]
    return str(failure["cause"])


def notes(data: dict[str, Any], out: Path) -> list[dict[str, Any]]:
    engine.sweep(data, out)
    state = engine.status(out)
    assert state["done"] == 1
    shown = sum(line.startswith("note: ") for line in sweep_state(state))
    assert bool(shown) == bool(state["run_notes"]) == bool(SweepStore(out).collect().notes)
    return list(state["run_notes"])


def lines(*steps: int, **values: Any) -> str:
    return "".join(json.dumps({"step": step, "reward": step / 50, **values}) + "\n" for step in steps)


def bind(path: Path) -> None:
    folder = os.open(path.parent, os.O_RDONLY)  # the name of a socket has at most 107 bytes
    socket.socket(socket.AF_UNIX).bind(f"/proc/self/fd/{folder}/{path.name}")
    os.close(folder)


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2**40)


REPLACED: dict[str, tuple[Callable[[Path], Any], str]] = {
    "pipe": (os.mkfifo, "found a pipe; expected a file"),
    "socket": (bind, "found a socket; expected a file"),
    "device": (lambda path: path.symlink_to("/dev/zero"), "found a device; expected a file"),
    "folder": (os.mkdir, "found a folder; expected a file"),
    "dangling link": (lambda path: path.symlink_to("none"), "No such file or directory"),
    "link to itself": (lambda path: path.symlink_to(path.name), "Too many levels of symbolic links"),
    "sparse": (sparse, r"1,099,511 MB; isolaw reads logs of up to 10,000 MB"),
}


@pytest.mark.parametrize("what", REPLACED)
@pytest.mark.parametrize("framework", ["none", "veRL"])
def test_what_replaces_a_log_is_named_and_holds_nobody_up(what: str, framework: str, tmp_path: Path) -> None:
    replace, message = REPLACED[what]
    path = tmp_path / "log.jsonl"
    path.write_text(lines(1, 2, 3))
    known = plain_framework("validation") if framework == "none" else frameworks.named(framework)
    log = GrowingLog(str(path), known, 3)
    path.unlink()
    replace(path)
    for final in (False, True):
        log._next_read = 0.0
        log.read(final)
        log.facts(final=True)
        assert log.unread_reason() == f"isolaw cannot read log.jsonl: {message}"
    os.rmdir(path) if what == "folder" else path.unlink()
    path.write_text(lines(1, 2, 3, 4))
    log._next_read = 0.0
    assert 4 in log.read() or framework != "none"
    assert log.unusable_files == {}


@pytest.mark.parametrize("number", [errno.EACCES, errno.ESTALE, errno.EIO])
def test_a_log_that_cannot_be_opened_is_named(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> int:
        raise OSError(number, os.strerror(number))

    path = tmp_path / "log.jsonl"
    path.write_text(lines(1))
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", refuse)
        log = GrowingLog(str(path), plain_framework("validation"), 0)
    assert log.unread_reason() == f"isolaw cannot read log.jsonl: {os.strerror(number)}"
    assert list(log.read(final=True)) == [1]


@pytest.mark.parametrize("replaces", ["os.mkfifo", "os.mkdir"])
def test_a_run_ends_when_its_log_is_replaced(
    replaces: str, sweep_of: Callable[..., Any], tmp_path: Path
) -> None:
    words = ["until=5", f"then=os.remove({LOG}); {replaces}({LOG}); time.sleep(600)"]
    said = cause(sweep_of(*words, **SIMPLE, silent_minutes=0.01), tmp_path / "s")
    assert "the command has logged no new step for 0.01 minutes (command.silent_minutes)" in said
    assert "; isolaw cannot read metrics.jsonl: found a" in said


def test_a_sweep_stops_when_a_log_is_a_pipe(sweep_of: Callable[..., Any], tmp_path: Path) -> None:
    words = ["until=5", f"then=os.remove({LOG}); os.mkfifo({LOG}); time.sleep(600)"]
    spec = SweepSpec.parse(sweep_of(*words, **SIMPLE))
    stop = threading.Event()
    threading.Timer(1.0, stop.set).start()
    events = list(engine.execute(engine.resolve_sweep(spec, tmp_path / "s"), tmp_path / "s", stop=stop))
    assert events[-1].kind == "stopped"


@pytest.mark.parametrize("what", ["pipe", "socket", "device", "folder", "dangling link"])
def test_isolaws_own_files_are_files(what: str, tmp_path: Path) -> None:
    REPLACED[what][0](tmp_path / "output")
    with pytest.raises(OSError, match="output"):
        training._open_to_append(tmp_path / "output")
    output = training._Output(tmp_path / "output")
    output.write(b"x" * 9)
    output.close()
    assert output.lost_bytes == 9
    assert output.reason


# What a trainer does to a log with the steps 1 to 4, and the steps that it adds.
CHANGED: dict[str, tuple[Callable[[Path], Any], list[int]]] = {
    "deleted and written anew": (lambda p: (os.remove(p), p.write_text(lines(5, 6))), [5, 6]),
    "and longer": (lambda p: (os.remove(p), p.write_text(lines(*range(5, 20)))), [*range(5, 20)]),
    "truncated": (lambda p: p.write_text(lines(1, 2)), []),
    "the same first line": (lambda p: p.write_text(lines(1, *range(5, 20))), [*range(5, 20)]),
    "in place": (lambda p: p.write_text(lines(*range(1, 9), loss=1)), [5, 6, 7, 8]),
    "another file": (
        lambda p: (p.with_name("x").write_text(lines(*range(11, 30))), p.with_name("x").replace(p)),
        [*range(11, 30)],
    ),
    "appended": (lambda p: p.open("a").write(lines(5)), [5]),
    "the same and more": (
        lambda p: (p.with_name("x").write_text(lines(1, 2, 3, 4, 5)), p.with_name("x").replace(p)),
        [5],
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", CHANGED)
@pytest.mark.parametrize("times", [1, 2])
def test_a_changed_log_is_noticed_at_each_look(what: str, times: int, tmp_path: Path) -> None:
    change, new = CHANGED[what]
    path = tmp_path / "log.jsonl"
    log = GrowingLog(str(path), plain_framework("validation"), 0)
    for _ in range(times):
        path.write_text(lines(1, 2, 3, 4))
        log._next_read = log.taken_step = 0
        log.read()
        change(path)
        log._next_read = 0.0
        assert set(log.read()) == {1, 2, 3, 4, *new}


def test_a_log_that_is_written_anew_is_read_on(sweep_of: Callable[..., Any], tmp_path: Path) -> None:
    again = f"(time.sleep(0.6), os.remove({LOG}), globals().update(log=open({LOG}, 'a')))"
    data = sweep_of("pause=0", f"logs=dict(x=step == 11 and {again} and 0)", **SIMPLE)
    runs = engine.sweep(data, tmp_path / "s")
    assert {*range(1, 21)} <= {*runs.points["step"]}
    assert engine.status(tmp_path / "s")["done"] == 1


@pytest.mark.parametrize(
    "logged",
    ["x=10**400", "x=-10**400", "x=10**5000", "eval_x=10**400", "reward=10**400", "x=[10**400]"],
)
def test_a_huge_integer_is_no_value(logged: str, sweep_of: Callable[..., Any], tmp_path: Path) -> None:
    unlimited = "sys.set_int_max_str_digits(0)"
    data = sweep_of(f"logs=({unlimited}, dict({logged}) if step == 6 else dict())[1]", **SIMPLE)
    runs = engine.sweep(data, tmp_path / "s")
    assert engine.status(tmp_path / "s")["failed"] == 0
    rewards = runs.points[runs.points["metric"] == "reward"]
    assert {*range(1, 21)} - {*rewards["step"]} <= {6}


def test_a_huge_n_is_another_n(sweep_of: Callable[..., Any], tmp_path: Path) -> None:
    said = cause(sweep_of("logs=dict(group_size=10**400 if step == 15 else 2)", **SIMPLE), tmp_path / "s")
    assert "n is inf in its log (group_size); expected 2" in said


def test_only_nan_is_said(sweep_of: Callable[..., Any], tmp_path: Path) -> None:
    with pytest.raises(RunError, match="all values that its runs recorded are NaN"):
        engine.sweep(sweep_of("nan=1", "every=100", **SIMPLE), tmp_path / "s")
    assert engine.status(tmp_path / "s")["diverged"] == 1
    with pytest.raises(DataError, match="all values that its runs recorded are NaN"):
        SweepStore(tmp_path / "s").collect()


@pytest.mark.parametrize(
    ("then", "code", "facts"),
    [
        ("sys.exit(3)", "ended_badly", {"exit_status": 3}),
        ("os._exit(255)", "ended_badly", {"exit_status": 255}),
        ("os.kill(os.getpid(), 9)", "ended_badly", {"signal": "SIGKILL"}),
        ("os.abort()", "ended_badly", {"signal": "SIGABRT"}),
        ("os.kill(os.getpid(), 40)", "ended_badly", {"signal": "signal 40"}),
        ("raise ValueError", "ended_badly", {"exit_status": 1}),
        ("time.sleep(600)", "did_not_end", {}),
        ("pass", "", {}),
    ],
)
def test_how_a_command_ends_is_noted(
    then: str, code: str, facts: dict[str, Any], sweep_of: Callable[..., Any], tmp_path: Path
) -> None:
    found = notes(sweep_of(f"then={then}", "pause=0", **SIMPLE), tmp_path / "s")
    assert [(result["code"], result["facts"]) for result in found] == [(code, facts)] * bool(code)


@pytest.mark.parametrize(
    ("logged", "message"),
    [
        ("n=7 if step == 15 else 2", "n is 7"),
        ("n=7 if step == 20 else 2", "n is 7"),
        ("group_size=7 if step > 12 else 2", "n is 7"),
        ("prompts_per_step=7 if step == 11 else 4", "B_p is 7"),
        ("rollouts_per_step=7 if step == 11 else 8", "rollouts per step is 7"),
        ("random_seed=7 if step == 11 else 0", "seed is 7"),
        ("lr=0.5 if step > 2 else None", "lr is 0.5"),
    ],
)
def test_each_record_is_compared_with_the_run(
    logged: str, message: str, sweep_of: Callable[..., Any], tmp_path: Path
) -> None:
    data = sweep_of(f"logs=dict({logged})", "pause=0.02", **SIMPLE)
    data["recipe"] = {"lr": 0.0014, "lr_scaling": "constant"}
    assert f"trains with other values than the run: {message} in its log" in cause(data, tmp_path / "s")


def test_each_part_of_a_frameworks_log_is_compared(tmp_path: Path) -> None:
    path = tmp_path / "trainer.log"
    log = GrowingLog(str(path), frameworks.named("veRL"), 0)
    for n, steps, expected in ((4, (1, 2), {4}), (8, (3, 4), {4, 8})):
        settings = {"rollout": {"n": n}, "actor": {"ppo_mini_batch_size": 4, "optim": {"lr": 1e-6}}}
        data = {"train_batch_size": 4, "seed": 3, "train_files": "a" * 40}
        more = {"algorithm": {"adv_estimator": "grpo"}, "data": data, "trainer": {"nnodes": 1}}
        config = {"actor_rollout_ref": settings, **more}
        with path.open("a") as file:
            print(pprint.pformat(config), file=file)
            for step in steps:
                print(f"step:{step} - critic/score/mean:0.5 - actor/entropy:0.5", file=file)
        log._next_read = 0.0
        log.read()
        facts = log.facts(final=True)
        assert {fact.value for name, fact in facts if name == "rollouts_per_problem"} == expected


def test_what_was_trained_again_is_not_compared(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(lines(1, 2, 3, n=2) + lines(4, 5, n=7))
    log = GrowingLog(str(path), plain_framework("validation"), 3)
    assert [fact.value for _, fact in log.facts()] == [2]
    path.open("a").write(lines(4, n=9))
    log.read(final=True)
    assert [fact.value for _, fact in log.facts()] == [2, 9]


@contextmanager
def full(size: int) -> Iterator[None]:
    """Let no file grow beyond a size, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_output_waits_for_a_full_disk(tmp_path: Path) -> None:
    output = training._Output(tmp_path / "output")
    text = [lines(step).encode() for step in range(1, 100)]
    with full(1000):
        for line in text[:50]:
            output.write(line)
        assert (tmp_path / "output").stat().st_size == 1000
    for line in text[50:]:
        output.write(line)
    output.close()
    assert (output.lost_bytes, (tmp_path / "output").read_bytes()) == (0, b"".join(text))


@pytest.mark.parametrize("row", ['{"step": %d, "reward": 0.25}\n', "%d,0.25,1234567\n"])
@pytest.mark.parametrize("size", [1000, 1003, 1011])
def test_output_that_is_lost_makes_no_false_values(
    row: str, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "_WAITING_BYTES", 2000)
    head = "" if row.startswith("{") else "step,reward,tokens\n"
    output = training._Output(tmp_path / "output")
    with full(size):
        output.write(head.encode())
        for step in range(1000, 2000):
            output.write((row % step).encode())
    for step in range(2000, 2010):
        output.write((row % step).encode())
    output.close()
    assert output.lost_bytes
    found = GrowingLog(str(tmp_path / "output"), plain_framework("validation"), 10**6).read(final=True)
    assert {*range(1000, 1010), *range(2000, 2010)} <= {*found} <= {*range(1000, 2010)}
    assert {values["train", "reward"] for values in found.values()} == {0.25}


@pytest.mark.slow
def test_a_full_disk_blocks_no_trainer(
    printing: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "_WAITING_BYTES", 10_000)
    code = """
for step in range(1, 21):
    print(json.dumps(dict(step=step, reward=0.5)), flush=True)
    if step == 10:
        [print("x" * 999) for _ in range(2000)]
        print(end="", flush=True)
        time.sleep(0.5)
"""
    out = tmp_path / "s"
    data = printing(code)
    with full(200_000):
        said = cause(data, out)
    assert "after 10 of 20 steps (exit status 0); " in said
    assert "bytes of its output are not in output: File too large" in said
    assert signal.getsignal(signal.SIGXFSZ) == signal.SIG_IGN
    data["command"]["log"] = "{out}/log"
    data["command"]["run"][2] = code.replace(
        ", flush=True)", ", file=open(os.environ['ISOLAW_OUT'] + '/log', 'a'))", 1
    )
    data["command"]["run"][2] = f"import os, json, time\n{data['command']['run'][2]}"
    with full(200_000):
        (note,) = notes(data, tmp_path / "t")
    assert note["code"] == "output_lost"
    assert note["facts"]["bytes"] > 10**6
