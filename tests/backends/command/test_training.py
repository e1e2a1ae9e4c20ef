"""Trainings by a command: killed, resumed, extended, stopped; and commands that do something wrong."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from isolaw import costs, engine
from isolaw.backends.command import training
from isolaw.config import SweepSpec
from isolaw.costs import recorded
from isolaw.documents.reading import toml_text
from isolaw.errors import DataError, RunError, SpecError
from isolaw.report.text.sweep import sweep_state
from isolaw.store import SweepStore

SIMPLE = {"n": (2,), "compute": 160}


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "_GRACE_S", 1.0)
    monkeypatch.setattr(training, "_ENDING_S", 1.0)


def points(out: Path) -> pd.DataFrame:
    return pd.read_parquet(out / "points.parquet").drop(columns="wall_s")


def cause(data: dict[str, Any], out: Path) -> str:
    with pytest.raises(RunError):
        engine.sweep(data, out)
    (failure,) = engine.status(out)["failures"]
    return str(failure["cause"])


def test_a_sweep_has_the_values_of_the_logs(sweep_of: Callable[..., Any], tmp_path: Path) -> None:
    runs = engine.sweep(sweep_of(), tmp_path / "s")
    table = runs.points
    assert not runs.simulated
    assert set(table["metric"]) == {"reward", "avg@4"}
    assert (table["compute"] == table["step"] * 4 * table["rollouts_per_problem"]).all()
    for log in (tmp_path / "s").glob("runs/*/out/0/metrics.jsonl"):
        records = [json.loads(line) for line in log.read_text().splitlines()]
        own = table[table["run_id"] == log.parts[-4]]
        logged = {record["step"]: record["reward"] for record in records if "reward" in record}
        assert dict(own[own["metric"] == "reward"][["step", "value"]].values) == logged


def test_dropped_rollouts_are_counted_in_a_note(sweep_of: Callable[..., Any], tmp_path: Path) -> None:
    """As prime-rl drops those that have become too old; C counts those that were trained on."""
    engine.sweep(sweep_of("logs=dict(dropped_rollouts=2)", **SIMPLE), tmp_path / "s")
    (note,) = engine.status(tmp_path / "s")["run_notes"]
    assert note["text"] == "its trainer dropped 40 rollouts (20%), which C does not count"


@pytest.mark.slow
def test_the_last_evaluation_may_take_long(
    sweep_of: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "_ENDING_S", 0.1)
    table = engine.sweep(sweep_of("evaluates=1", n=(2,), compute=64), tmp_path / "s").points
    assert table.loc[table["metric"] == "avg@4", "step"].tolist() == [4, 8]


@pytest.mark.slow
def test_its_steps_have_a_cost(
    sweep_of: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorded, "APART_S", 0.5)
    engine.sweep(sweep_of("pause=0.06", gpus=0, compute=320, n=(2, 4)), tmp_path / "s")
    cost = costs.read(tmp_path / "s")
    assert (cost.runs, cost.gpus, cost.batches) == (2, None, (8, 16))
    assert 0.055 < cost.step(4, 2) < 0.12  # bursts do not count as steps that take no time
    monkeypatch.setattr(recorded, "APART_S", 1e9)
    with pytest.raises(DataError, match="the cost of a step is unknown"):
        costs.read(tmp_path / "s")


@pytest.mark.nightly
@pytest.mark.slow
def test_killed_at_random_it_equals_a_whole_one(sweep_of: Callable[..., Any], tmp_path: Path) -> None:
    data = sweep_of("pause=0.03", compute=480)
    engine.sweep(data, tmp_path / "whole")
    file = tmp_path / "sweep.toml"
    file.write_text(toml_text(data))
    command = [sys.executable, "-m", "isolaw", "sweep", str(file), "--out", str(tmp_path / "killed")]
    for number, at in ((signal.SIGKILL, 8), (signal.SIGTERM, 30), (signal.SIGKILL, 45)):
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        until = time.monotonic() + 300
        while time.monotonic() < until and process.poll() is None:
            logs = (tmp_path / "killed").glob("runs/*/out/*/metrics.jsonl")
            if sum(log.read_text().count("\n") for log in logs) >= at:
                break
            time.sleep(0.02)
        process.send_signal(number)
        process.wait(120)
    resumed = engine.sweep(data, tmp_path / "killed")
    assert points(tmp_path / "killed").equals(points(tmp_path / "whole"))
    assert not resumed.notes


@pytest.mark.slow
@pytest.mark.parametrize(
    ("checkpoints", "said"),
    [
        (None, "runs end, and start again at step 0 because command.checkpoints is not set"),
        ("step-{step}", "runs end, and continue from the last checkpoint of the trainer"),
    ],
)
def test_ctrl_c_says_where_runs_continue(
    checkpoints: str | None, said: str, sweep_of: Callable[..., Any], tmp_path: Path,
    isolaw: Callable[..., tuple[int, str, str]],
) -> None:  # fmt: skip
    interrupt = f"logs=dict(x=step == 6 and os.kill({os.getpid()}, 2))"
    data = sweep_of(interrupt, "pause=0.2", **SIMPLE, checkpoints=checkpoints)
    if checkpoints is None:
        del data["command"]["checkpoints"]
    file = tmp_path / "sweep.toml"
    file.write_text(toml_text(data))
    code, _, notes = isolaw("sweep", file, "--out", tmp_path / "s")
    assert (code, f"stopping: {said}; press Ctrl-C again" in notes) == (130, True), notes
    assert engine.status(tmp_path / "s")["done"] == 0


@pytest.mark.slow
def test_a_longer_horizon_continues(sweep_of: Callable[..., Any], tmp_path: Path) -> None:
    engine.sweep(sweep_of(), tmp_path / "s")
    engine.sweep(sweep_of(compute=640), tmp_path / "s")
    engine.sweep(sweep_of(compute=640), tmp_path / "whole")
    folders = [[path.name for path in out.iterdir()] for out in (tmp_path / "s").glob("runs/*/out")]
    assert folders == [["0"], ["0"]]
    rows = [points(tmp_path / name) for name in ("s", "whole")]
    trained = [row[row["metric"] == "reward"].reset_index(drop=True) for row in rows]
    assert trained[0].equals(trained[1])


@pytest.mark.slow
def test_a_sweep_that_names_no_problem_set_continues(
    sweep_of: Callable[..., Any], tmp_path: Path, isolaw: Callable[..., tuple[int, str, str]]
) -> None:
    file, out = tmp_path / "sweep.toml", tmp_path / "s"
    file.write_text(toml_text(sweep_of("pause=0")))
    assert isolaw("sweep", file, "--out", out, "--set", "grid.rollouts_per_problem=[2]")[0] == 0
    store = SweepStore(out)
    (first,) = store.run_ids()
    assert store.run(first).read_spec().problems.set == "problems"
    for more in ([], ["--set", "grid.rollouts_per_problem=[2, 4]"]):
        code, _, said = isolaw("sweep", "--out", out, *more)
        assert code == 0, said
    assert len(store.run_ids()) == 2
    assert first in store.run_ids()
    code, _, said = isolaw("sweep", "--out", out, "--set", "problems.set=hard")
    assert (code, "problems.set is 'problems' in the directory and 'hard'" in said) == (2, True)


def test_a_preview_begins_where_the_run_will_continue(
    sweep_of: Callable[..., Any], tmp_path: Path, isolaw: Callable[..., tuple[int, str, str]]
) -> None:
    """At the checkpoint of step 8, although no state was published since the start."""
    file, out = tmp_path / "sweep.toml", tmp_path / "s"
    file.write_text(toml_text(sweep_of("until=10", "pause=0", **SIMPLE)))
    assert isolaw("sweep", file, "--out", out)[0] == 1
    code, said, _ = isolaw("sweep", file, "--out", out, "--dry-run", "--json")
    planned, state = json.loads(said), engine.status(out)
    assert (code, planned["begun"], state["rollouts"]) == (0, 1, 8 * 8)
    assert planned["remaining_rollouts"] == state["rollouts_planned"] - state["rollouts"] == 12 * 8
    (environment,) = (command["environment"] for command in planned["commands"])
    assert environment["ISOLAW_DONE"] == "8"
    assert environment["ISOLAW_RESUME"].endswith("/out/0/step-8")


def test_a_script_that_is_missing(
    sweep_of: Callable[..., Any], tmp_path: Path, isolaw: Callable[..., tuple[int, str, str]]
) -> None:
    file, out = tmp_path / "sweep.toml", tmp_path / "s"
    file.write_text(toml_text(sweep_of(n=(2, 4, 8), run=[sys.executable, "missing.py"])))
    code, said, notes = isolaw("sweep", file, "--out", out, "--set", "executor.same_failures=2")
    assert (code, (out / "points.parquet").exists()) == (1, False)
    assert said.startswith("0 of 3 runs are done (0 now")
    assert said.endswith("with 0 rollouts\n")
    assert notes.count("; the others continue") == 1  # not after the failure that aborts the sweep
    assert "isolaw aborts the sweep; 1 more" in notes


@pytest.mark.slow
def test_without_checkpoints_it_starts_again(sweep_of: Callable[..., Any], tmp_path: Path) -> None:
    data = sweep_of(n=(2,), checkpoints=None)
    data["command"].pop("checkpoints")
    engine.sweep(data, tmp_path / "s")
    data["sweep"]["compute"] = 480
    engine.sweep(data, tmp_path / "s")
    (out,) = (tmp_path / "s").glob("runs/*/out")
    assert sorted(path.name for path in out.iterdir()) == ["0", "1"]
    assert points(tmp_path / "s")["step"].max() == 60


@pytest.mark.slow
def test_a_trainers_checkpoint_that_is_gone_is_named(sweep_of: Callable[..., Any], tmp_path: Path) -> None:
    data = sweep_of("pause=0.12", compute=160, n=(2,))
    engine.sweep(data, tmp_path / "s")
    assert list((tmp_path / "s").glob("runs/*/state/*"))
    for path in (tmp_path / "s").glob("runs/*/out/0/step-*"):
        path.unlink()
    data["sweep"]["compute"] = 320
    said = cause(data, tmp_path / "s")
    assert re.search("has no checkpoint of the trainer from step .* Remove the folder", said)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "command", "message"),
    [
        (["n=7"], {}, r"trains with other values than the run: n is 7 in its log \(n\); expected 2"),
        (["until=5", "status=3", "then=print('why')"], {}, r"after 5 of 20 steps \(exit status 3\).*\| why"),
        (["until=0"], {}, r"after 0 of 20 steps \(exit status 0\).*printed nothing"),
        (["then=print('step 20')"], {"log": "output"}, r'output has 1 line, but none is JSON with "step"'),
        (["until=3", "then=os.abort()"], {}, "SIGABRT"),
        (["nan=6"], {"stop_if": "nan"}, "NaN or infinite"),
        ([], {"stop_if": ["train/reward > 2", "validation/avg@4 >= 0"]}, "at step 4: validation/avg@4 >= 0"),
        (["until=2", "then=time.sleep(600)"], {"silent_minutes": 0.02}, r"no new step for 0\.02 minutes"),
        (["pause=1"], {"limit_hours": 0.0005}, r"more than 0\.0005 hours"),
    ],
)  # fmt: skip
def test_what_goes_wrong_is_said(
    words: list[str], command: dict[str, Any], message: str,
    sweep_of: Callable[..., Any], tmp_path: Path,
) -> None:  # fmt: skip
    assert re.search(message, cause(sweep_of(*words, **SIMPLE, **command), tmp_path / "s"), re.S)


@pytest.mark.parametrize(
    ("logged", "message"),
    [
        ("{'group_size': 7}", r"n is 7 in its log \(group_size\); expected 2"),
        ("{'train/num_generations': 7}", r"n is 7 in its log \(train/num_generations\); expected 2"),
        ("{'prompts-per-step': 7}", r"B_p is 7 in its log \(prompts-per-step\); expected 4"),
        ("{'rollouts_per_step': 7}", r"rollouts per step is 7 in its log .*; expected 8"),
        ("{'random_seed': 7}", r"seed is 7 in its log .*; expected 0"),
        ("{'learning_rate': 0.5}", r"lr is 0\.5 in its log \(learning_rate\); expected 0\.0014"),
    ],
)
def test_a_setting_has_the_names_that_readers_know(
    logged: str, message: str, sweep_of: Callable[..., Any], tmp_path: Path
) -> None:
    data = sweep_of("logs={" + logged + "}", "pause=0", **SIMPLE)
    data["recipe"] = {"lr": 0.0014, "lr_scaling": "constant"}
    assert re.search(message, cause(data, tmp_path / "s"))


@pytest.mark.parametrize(
    "logged",
    [
        "{'lr': 0.0014 * min(1, step / 15)}",  # a warm-up
        "{'lr': 0.0014 * (1 - step / 20)}",
        "{'lr': 0.001}",  # rounded
        "{'lr': 0.0}",
        "{'lr': float('inf')}",
        "{'lr': 0.5 if step < 10 else 0.1}",
        "{'batch_size': 1, 'train_batch_size': 1, 'rollout_batch_size': 3, 'n_rollouts': 8 * step,"
        " 'rng_seed': 17, 'k': 1, 'N': 100, 'b': 0.1, 'eval/n': 100, 'group_size': '2', 'B': 8.0, 'seed': 0}",
    ],
)
def test_what_can_mean_something_else_fails_no_run(
    logged: str, sweep_of: Callable[..., Any], tmp_path: Path
) -> None:
    data = sweep_of("logs={" + logged + "}", "pause=0", **SIMPLE)
    data["recipe"] = {"lr": 0.0014, "lr_scaling": "constant"}
    engine.sweep(data, tmp_path / "s")
    assert points(tmp_path / "s")["step"].max() == 20


def test_a_reward_that_becomes_nan_is_kept_as_a_fact_of_the_run(
    sweep_of: Callable[..., Any], tmp_path: Path
) -> None:
    runs = engine.sweep(sweep_of("nan=6", "hole=3", **SIMPLE), tmp_path / "s")
    assert runs.diverged[["metric", "step"]].to_numpy().tolist() == [["reward", 6]]
    rewards = runs.points[runs.points["metric"] == "reward"]
    assert rewards["step"].tolist() == [1, 2, 4, 5]  # the NaN at step 3 was not measured
    state = engine.status(tmp_path / "s")
    assert state["diverged"] == state["done"] == 1
    assert any("1 of 1 done run diverged" in line for line in sweep_state(state))


HOSTILE = {
    "it ignores SIGTERM": "import signal; signal.signal(15, signal.SIG_IGN); time.sleep(600)",
    "it leaves a process": "os.fork() or (os.setsid(), time.sleep(600))",
    "it never ends a line": "f = open(out + '/metrics.jsonl', 'a')\nwhile True: f.write('x' * 99)",
    "it floods its output": "\nfor _ in range(3000): os.write(1, b'x' * 99_999)",
}


@pytest.mark.slow
@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_commands_end(what: str, sweep_of: Callable[..., Any], tmp_path: Path) -> None:
    words = ["until=2", f"then={HOSTILE[what]}"]
    begun = time.monotonic()
    mark = f"ISOLAW_TEST_MARK={os.getpid()} {what}"
    os.environ["ISOLAW_TEST_MARK"] = mark.partition("=")[2]
    try:
        said = cause(sweep_of(*words, **SIMPLE, silent_minutes=0.03), tmp_path / "s")
    finally:
        del os.environ["ISOLAW_TEST_MARK"]
    assert time.monotonic() - begun < 120
    assert len(said) < 8_000
    assert sum(path.stat().st_size for path in tmp_path.rglob("output*")) <= 3 * training._OUTPUT_BYTES
    left = [path for path in Path("/proc").glob("[0-9]*/environ") if mark.encode() in _bytes(path)]
    assert left == []


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_inline_a_trainer_that_says_nothing_ends_at_ctrl_c(
    sweep_of: Callable[..., Any], tmp_path: Path
) -> None:
    spec = SweepSpec.parse(sweep_of("pause=600", **SIMPLE) | {"executor": {"kind": "inline"}})
    stop = threading.Event()
    threading.Timer(1.0, stop.set).start()
    began = time.monotonic()
    events = list(engine.execute(engine.resolve_sweep(spec, tmp_path / "s"), tmp_path / "s", stop=stop))
    assert [event.kind for event in events] == ["stopped"]
    assert time.monotonic() - began < 60


def test_more_steps_than_asked_are_not_taken(sweep_of: Callable[..., Any], tmp_path: Path) -> None:
    begun = time.monotonic()
    engine.sweep(sweep_of("more=10000", **SIMPLE), tmp_path / "s")
    assert points(tmp_path / "s")["step"].max() == 20
    assert time.monotonic() - begun < 120


def test_a_race_extends_and_drops(sweep_of: Callable[..., Any], tmp_path: Path) -> None:
    data = sweep_of("pause=0", compute=1920, n=(2, 4, 8, 16))
    data["sweep"]["seeds"] = [0, 1]
    data["design"] = {"kind": "race", "spend": 0.9, "metric": "avg@4"}
    runs = engine.sweep(data, tmp_path / "s")
    assert 0 < len(runs) <= 8
    assert SweepStore(tmp_path / "s").exists


def test_a_race_compares_what_the_trainer_logs(sweep_of: Callable[..., Any], tmp_path: Path) -> None:
    data = sweep_of(compute=1920, n=(2, 4, 8, 16)) | {
        "design": {"kind": "race", "metric": "score", "spend": 0.9}
    }
    data["sweep"]["seeds"] = [0, 1]
    assert engine.resolve_sweep(SweepSpec.parse(data), tmp_path / "s").adaptive is not None


@pytest.mark.slow
def test_dry_run_prints_what_would_be_started(
    isolaw: Any, sweep_of: Callable[..., Any], tmp_path: Path
) -> None:
    file = tmp_path / "sweep.toml"
    file.write_text(toml_text(sweep_of()))
    words = ["sweep", file, "--out", tmp_path / "s", "--dry-run"]
    result = json.loads(isolaw(*words, "--json")[1])
    assert [command["environment"]["ISOLAW_N"] for command in result["commands"]] == ["2", "4"]
    code, printed, _ = isolaw(*words)
    assert code == 0
    assert all(command["line"] in printed for command in result["commands"])
    assert not (tmp_path / "s").exists()
    engine.sweep(sweep_of(), tmp_path / "s")
    for command in result["commands"]:
        made = tmp_path / "s" / "runs" / command["run_id"] / "out" / "0" / training.COMMAND_FILE
        assert made.read_text() == f"cd {command['folder']}\n{command['line']}\n"


def test_gpus_that_are_not_there_are_refused_before_anything_is_written(
    sweep_of: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("isolaw.executors.visible_gpus", lambda: ["0"])
    with pytest.raises(SpecError, match=r"command\.gpus: found 2; expected at most 1"):
        engine.sweep(sweep_of(**SIMPLE, gpus=2), tmp_path / "s")
    assert not (tmp_path / "s").exists()
