"""veRL's console: every dirt gives the known table, model output gives nothing."""

from __future__ import annotations

import contextlib
import copy
import math
import pprint
import re
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import isolaw
from isolaw.errors import DataError
from isolaw.readers.configs import flatten
from isolaw.readers.containers.verl_console import CONTAINER
from isolaw.readers.raw_log import RawLog
from isolaw.readers.survey import survey

REAL = Path(__file__).parents[3] / "../shared/data/logs/verl_console/logic-rl-output.log"
HEAD = 65_536


@pytest.fixture
def read(tmp_path: Path) -> Any:
    def one(content: bytes | str, name: str = "run.log") -> RawLog:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        assert CONTAINER.file(path, path.read_bytes()[:HEAD])
        (log,) = CONTAINER.read(path)
        return log

    return one


# Round trips


@pytest.mark.parametrize("seed", range(12))
def test_round_trip_with_all_the_dirt(read: Any, verl_run: Any, by_step: Any, seed: int) -> None:
    run = verl_run()
    log = read(run.console(seed))
    assert by_step(log) == run.table
    assert log.config == flatten(run.config)
    assert log.config_source == "the printed configuration"
    assert not log.dropped


def test_dirt_is_in_it(verl_run: Any) -> None:
    content = b"".join(verl_run().console(seed) for seed in range(5))
    for dirt in (
        b"\x1b[36m",
        b"\0",
        b"\r",
        b"np.float64(",
        b"(TaskRunner pid=",
        b"Initial validation metrics",
    ):
        assert dirt in content
    fragments = re.findall(rb"\(TaskRunner pid=\d+\)\x1b\[0m [^\n(:]{1,20}:-?[\d.]+ - ", content)
    assert fragments  # a step over two lines


def test_steps_from_zero(read: Any, verl_run: Any, by_step: Any) -> None:
    run = verl_run(first=0, steps=4)
    log = read("\n".join(run.line(step) for step in run.table))
    assert list(log.step) == [0, 1, 2, 3]
    table = by_step(log)
    last = list(run.table[3])[-1]
    assert last not in table[3]  # the file ends in its line
    assert table | {3: table[3] | {last: run.table[3][last]}} == run.table


def test_rounded_values(read: Any, verl_run: Any, by_step: Any) -> None:
    """As the older versions print them, to three decimals."""
    run = verl_run()
    log = read("\n".join(run.line(step, decimals=3) for step in run.table) + "\n")
    expected = {
        step: {k: float(format(v, ".3f")) for k, v in curve.items()} for step, curve in run.table.items()
    }
    assert by_step(log) == expected


# One training after another


def printed(config: dict[str, Any]) -> str:
    return pprint.pformat(config) + "\n"


@pytest.mark.parametrize("changes", [{"n": 16}, {"train_batch_size": 64}, {"lr": 1e-5}])
def test_another_configuration_is_another_training(
    tmp_path: Path, verl_run: Any, by_step: Any, changes: dict[str, Any]
) -> None:
    run = verl_run()
    other = copy.deepcopy(run.config)
    for section in (
        other["actor_rollout_ref"]["rollout"],
        other["data"],
        other["actor_rollout_ref"]["actor"]["optim"],
    ):
        section.update({key: value for key, value in changes.items() if key in section})
    assert other != run.config
    lines = "".join(f"{run.line(step)}\n" for step in run.table)
    path = tmp_path / "run.log"
    path.write_text(printed(run.config) + lines + printed(other) + lines)
    first, second = CONTAINER.read(path)
    assert (by_step(first), by_step(second)) == (run.table, run.table)
    assert (first.config, second.config) == (flatten(run.config), flatten(other))
    names = [candidate.run for candidate in survey([path]).candidates]
    assert names == [first.run, f"{first.run}#2"]


@pytest.mark.parametrize("key", ["n", "train_batch_size"])
def test_a_training_that_goes_on_with_other_rollouts_asks(tmp_path: Path, verl_run: Any, key: str) -> None:
    """C is the sum of B_p · n over the steps, and the log has two of them."""
    run = verl_run()
    other = copy.deepcopy(run.config)
    section = other["actor_rollout_ref"]["rollout"] if key == "n" else other["data"]
    before, section[key] = section[key], section[key] * 2
    lines = [f"{run.line(step)}\n" for step in run.table]
    path = tmp_path / "run.log"
    for again in (3, 2):  # the step after the last, and the last one repeated
        text = printed(run.config) + "".join(lines[:3]) + printed(other)
        path.write_text(text + "".join(lines[again:]))
        with pytest.raises(DataError) as error:
            isolaw.read(path)
        for value, step in zip((before, section[key]), (min(run.table), list(run.table)[again]), strict=True):
            assert f"{value} (" in str(error.value)
            assert f"in the printed configuration before step {step})" in str(error.value)


def test_a_training_that_is_started_again_is_one(read: Any, verl_run: Any, by_step: Any) -> None:
    """From nothing, with less memory for vLLM."""
    run = verl_run()
    again = copy.deepcopy(run.config)
    again["actor_rollout_ref"]["rollout"]["gpu_memory_utilization"] = 0.3
    lines = [f"{run.line(step)}\n" for step in run.table]
    log = read(printed(run.config) + "".join(lines[:3]) + printed(again) + "".join(lines))
    assert by_step(log) == run.table
    assert len(log.step) == 3 + len(lines)


# Lines


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("step:1 - a/b:1.5 - c/d:-0.000", {"a/b": 1.5, "c/d": 0.0}),
        ("step:1 - a/b:1e-06 - c/d:nan - e/f:inf", {"a/b": 1e-6}),
        ("step:1 - val/test_score/a:b:0.5", {"val/test_score/a:b": 0.5}),
        ("step:1 - val/test_score/my data (hard):0.5", {"val/test_score/my data (hard)": 0.5}),
        ("step:1 - val/math - hard/acc:0.5 - a/b:1", {"val/math - hard/acc": 0.5, "a/b": 1}),
        ("step:1 - a-b/c-d:1", {"a-b/c-d": 1}),
        ("step:1 - a/b:np.float64(0.25) - c/d:np.int64(3)", {"a/b": 0.25, "c/d": 3}),
        ("step:1 - a/b:tensor(0.25, device='cuda:0') - c/d:np.float32(3.0)", {"a/b": 0.25, "c/d": 3}),
        ("Training Progress:   1%|          | 1/400 [00:30<3:00, 30s/it]step:1 - a/b:1", {"a/b": 1}),
        ("step:1 - a/b:1 - c/d:2.5Training Progress:   1%|          | 1/400 [00:30]", {"a/b": 1, "c/d": 2.5}),
        ("step:1 - a/b:1 - c/d:2.5(WorkerDict pid=3) hello", {"a/b": 1, "c/d": 2.5}),
        ("[36m(main_task pid=1)[0m step:1 - a/b:1", {"a/b": 1}),
        ("\x1b[36m(main_task pid=1, ip=10.1.2.3)\x1b[0m step:1 - a/\x00b:\x001", {"a/b": 1}),
        ("step:1 - a/b:one - c/d:2 - e/f:3", {"c/d": 2, "e/f": 3}),
        ("(TaskRunner pid=9) step:1 - a/b:1 [repeated 2x across cluster]", {"a/b": 1}),
    ],
)
def test_a_line(read: Any, by_step: Any, text: str, values: dict[str, float]) -> None:
    assert by_step(read(text + "\n")) == {1: values}


def test_two_steps_in_one_line(read: Any, by_step: Any) -> None:
    assert by_step(read("step:1 - a/b:1 - a/c:0.5step:2 - a/b:2\n")) == {
        1: {"a/b": 1, "a/c": 0.5},
        2: {"a/b": 2},
    }


@pytest.mark.parametrize(
    "pieces",
    [
        ("step:7 - actor/lr:0.1 - critic/sco", "re/mean:0.5 - actor/x:2"),
        ("step:7 - actor/lr:0.1 - critic/score/mean:0.", "5 - actor/x:2"),
        ("step:7 - actor/lr:0.1 - critic/score/mean:", "0.5 - actor/x:2"),
        ("step:7 - actor/lr:0.1 - critic/score/mean:np.float64(", "0.5) - actor/x:2"),
        ("step:7 - actor/lr:0.1 -", "critic/score/mean:0.5 - actor/x:2"),
        ("step:7 - actor/lr:0.1", "- critic/score/mean:0.5 - actor/x:2"),
        ("step:7 - ", "actor/lr:0.1 - critic/score/mean:0.5 - actor/x:2"),
        ("step:7 - act", "or/lr:0.1 - critic/score/mean:0.5 - actor/x:2"),
        ("step:7 - actor/lr:0.1 - critic/score", "/mean:0.5 - act", "or/x:2"),
    ],
)
def test_a_step_over_several_lines(read: Any, by_step: Any, pieces: tuple[str, ...]) -> None:
    for after in ("", "\n\nstep by step:\n12\n", "\nstep:8 - actor/x:3\n"):
        table = by_step(read("\n".join(["step:6 - actor/x:1", *pieces]) + "\n" + after))
        assert table[7] == {"actor/lr": 0.1, "critic/score/mean": 0.5, "actor/x": 2}


@pytest.mark.parametrize(
    "after", ["12", "epoch 0, step 2", "0.5 - 0.3 = 0.2", "- first: 1", "a/b", "x:1", ": 5"]
)
def test_what_follows_a_step_is_not_taken_for_it(read: Any, by_step: Any, after: str) -> None:
    assert by_step(read(f"step:1 - a/b:1 - c/d:0.5\n{after}\nstep:2 - a/b:2\n")) == {
        1: {"a/b": 1, "c/d": 0.5},
        2: {"a/b": 2},
    }


def test_unreadable_values_are_counted(read: Any) -> None:
    assert read("step:1 - a/b:one - c/d:2 - e/f:3\n").dropped == {"values that could not be read": 1}
    assert read("step:1 - a/b:nan - c/d:2\n").dropped == {"values that are not finite": 1}


def test_half_a_last_line(read: Any, by_step: Any) -> None:
    log = read("step:1 - a/b:1 - c/d:2\nstep:2 - a/b:1 - c/d:0.4")
    assert by_step(log) == {1: {"a/b": 1, "c/d": 2}, 2: {"a/b": 1}}
    assert log.dropped == {"torn last value": 1}
    log = read("step:1 - a/b:1 - c/d:2\nand then half a wo")
    assert by_step(log) == {1: {"a/b": 1, "c/d": 2}}
    assert not log.dropped


def test_repeated_steps_are_kept_in_order(read: Any) -> None:
    log = read("step:1 - a/b:1\nstep:2 - a/b:2\nstep:2 - a/b:3\n")
    assert list(log.step) == [1, 2, 2]
    assert list(log.series["a/b"].value) == [1, 2, 3]


def test_a_line_of_a_megabyte(read: Any, by_step: Any) -> None:
    log = read("step:1 - a/b:1\n" + "step:2 - a/b:2 - " + "x" * 2_000_000 + "\nstep:3 - a/b:3\n")
    assert by_step(log) == {1: {"a/b": 1}, 3: {"a/b": 3}}
    assert log.dropped == {"lines longer than 1 MB": 1}


# Initial validation


INITIAL = {"val/test_score/a": 0.25, "val/test_score/b": 0.125}


def initial(values: dict[str, float], prefix: str = "") -> str:
    text = pprint.pformat(f"Initial validation metrics: {values}")
    return "".join(f"{prefix}{line}\n" for line in text.splitlines())


@pytest.mark.parametrize("prefix", ["", "(main_task pid=4) "])
def test_initial_validation_counts_once(read: Any, by_step: Any, prefix: str) -> None:
    line = f"{prefix}step:0 - val/test_score/a:0.250 - val/test_score/b:0.125\n"
    log = read(f"{initial(INITIAL, prefix)}{line}step:1 - a/b:1\n")
    assert len(log.step) == 2
    assert by_step(log)[0] == INITIAL


@pytest.mark.parametrize("count", [2, 40])
def test_initial_validation_that_no_step_repeats(read: Any, by_step: Any, count: int) -> None:
    values = {f"val-core/data {i}/acc/mean@1": i / 64 for i in range(count)}
    log = read(f"{initial(values)}step:1 - a/b:1\n")
    assert by_step(log) == {0: values, 1: {"a/b": 1}}


def test_the_first_versions_name_the_initial_validation_otherwise(tmp_path: Path) -> None:
    """veRL 0.1 puts val/ before the later ones only (verl/trainer/ppo/ray_trainer.py)."""
    text = initial({"test_score/a": 0.25}) + "step:0 - test_score/a:0.250\n"
    text += "step:1 - critic/score/mean:0.5\nstep:2 - critic/score/mean:0.5 - val/test_score/a:0.5\n"
    (tmp_path / "run.log").write_text(text)
    points = isolaw.read(tmp_path / "run.log", set={"n": 8, "B_p": 4}).points
    own = points[points["metric"] == "test_score"]
    assert own[["eval_set", "step", "value"]].values.tolist() == [["a", 0, 0.25], ["a", 2, 0.5]]


def test_initial_validation_of_a_resumed_run(read: Any, by_step: Any) -> None:
    log = read(initial(INITIAL) + "step:40 - val/test_score/a:0.25 - val/test_score/b:0.125 - c/d:1\n")
    assert by_step(log) == {40: {**INITIAL, "c/d": 1}}


# The configuration


def test_configuration_of_the_command_over_the_one_beside(read: Any, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(
        "data: {train_batch_size: 1024, seed: 3}\nactor_rollout_ref: {rollout: {n: 4}}"
    )
    log = read("+ python3 -m verl.trainer.main_ppo data.train_batch_size=512\nstep:1 - a/b:1\n")
    assert log.config == {"data.train_batch_size": 512, "data.seed": 3, "actor_rollout_ref.rollout.n": 4}
    assert log.config_source == "config.yaml and the printed command"


def test_configuration_beside(read: Any, tmp_path: Path) -> None:
    (tmp_path / ".hydra").mkdir()
    (tmp_path / ".hydra/config.yaml").write_text("data: {train_batch_size: 1024}")
    log = read("step:1 - a/b:1\n")
    assert (log.config, log.config_source) == ({"data.train_batch_size": 1024}, ".hydra/config.yaml")


def test_no_configuration(read: Any) -> None:
    log = read("{'a': 1, 'b': 2}\nstep:1 - a/b:1\n")
    assert (log.config, log.config_source) == ({}, "")


def test_a_configuration_that_is_torn(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text("{'actor_rollout_ref': {'rollout': {'n': 4,\nstep:1 - critic/score/mean:0.5\n")
    assert "not as a whole dictionary" in next(iter(CONTAINER.read(path))).config_source


def test_run_is_the_file_or_its_folder(read: Any, tmp_path: Path) -> None:
    assert read("step:1 - a/b:1\n", "qwen_n8.log").run == str(tmp_path / "qwen_n8")
    assert read("step:1 - a/b:1\n", "output.log").run == str(tmp_path)


# What it is not


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0" * 1000,
        b"step:1 - do this, then that\n",
        b"Step 1: x/y:2\n",
        b"global_step:1 - a/b:1\n",
        b"{'loss': 0.1, 'reward': 0.5}\n",
        b"step:1\n",
        b"step:1 - loss:0.5\n",
        b'{"step": 1, "text": "step:1 - a/b:1"}\n',
        b"\x89PNG\r\n\x1a\n",
    ],
)
def test_not_a_console(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "log"
    path.write_bytes(content)
    assert not CONTAINER.file(path, content[:HEAD])
    with pytest.raises(DataError, match=r"log: found no step; expected lines like 'step:1 - "):
        list(CONTAINER.read(path))


def test_the_first_step_may_come_late(read: Any, by_step: Any) -> None:
    assert by_step(read("INFO loading weights\n" * 20_000 + "step:1 - a/b:1\n")) == {1: {"a/b": 1}}


def test_nothing_is_evaluated(read: Any, tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    call = f"__import__('pathlib').Path({str(trap)!r}).touch()"
    keys = ", ".join(f"'k{i}': {i}" for i in range(20))
    read(
        f"{{'data': {call}, {keys}}}\nactor_rollout_ref:\n  a: !!python/object/apply:eval [\"{call}\"]\n"
        f"python3 -m verl.trainer.main_ppo a.b=$(touch {trap}) 'c=`touch {trap}`'\n"
        f"step:1 - a/b:1 - c/d:{call} - e/f:1\n"
    )
    assert not trap.exists()


# Arbitrary bytes


DAMAGE = [b"\n", b" - ", b"step:3 - ", b"{'", b"\r", b"'", b"\x1b["]


@settings(max_examples=60)
@given(data=st.data())
def test_damaged_consoles_are_read_or_refused(
    data: st.DataObject, verl_run: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    content = bytearray(verl_run().console(data.draw(st.integers(0, 3))))
    for _ in range(data.draw(st.integers(1, 8))):
        at = data.draw(st.integers(0, len(content)))
        cut = data.draw(st.sampled_from([0, 1, 7, 500]))
        content[at : at + cut] = data.draw(st.binary(max_size=12) | st.sampled_from(DAMAGE))
    path = tmp_path_factory.mktemp("fuzz") / "run.log"
    path.write_bytes(content)
    CONTAINER.file(path, bytes(content[:HEAD]))
    (log,) = CONTAINER.read(path)
    assert len(log.step) >= 8
    assert all(math.isfinite(v) for series in log.series.values() for v in series.value)


@given(content=st.binary(max_size=300))
def test_arbitrary_bytes(content: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "run.log"
    path.write_bytes(content)
    assert not CONTAINER.file(path, content)
    with pytest.raises(DataError, match=r"run\.log"):
        list(CONTAINER.read(path))


STARTS = ("", "step:1 - a/b:1 - ", "{'actor': {'a': 1,\n")


@pytest.mark.parametrize(
    ("i", "piece"),
    list(enumerate(
    [
        "step:1 - ", "step:1 - a/b:1\n", "step:1 - a/b:1 - a", "a - ", "a/b:1 -\n", "{'a': {", "{'a': [\n",
        "{'a': -", "(", "'", "(a pid=1) step:1 - a/b:1\n(b pid=2) - c/d:\n", "data:\n  - [\n", "a/b:np.int(",
        "python3 -m verl.x 'a=1 \\\n", "Initial validation metrics: {'a': 1, '\n", "{'a': 1,\n 'b': 2,\n",
        "step:1 - a/b:1\n12\n- c/d:1\n", "step:", "\x1b[", "step:1 - a/b\n:1 - c\n", "[{'a':1},", "\r\n", ":",
        "step:1 - " + "k" * 290 + "/b:1 - ",
    ])),
)  # fmt: skip
def test_time_is_linear(tmp_path: Path, i: int, piece: str) -> None:
    """At most five seconds of this processor for a megabyte, here a tenth of one."""
    content = (STARTS[i % len(STARTS)] + piece * (100_000 // len(piece))).encode()
    path = tmp_path / "log"
    path.write_bytes(content)
    started = time.process_time()
    CONTAINER.file(path, content[:HEAD])
    with contextlib.suppress(DataError):
        list(CONTAINER.read(path))
    assert time.process_time() - started < 2.5


# A real one


@pytest.mark.skipif(not REAL.exists(), reason="the shared sample logs are not there")
def test_the_real_excerpt(by_step: Any) -> None:
    assert CONTAINER.file(REAL, REAL.read_bytes()[:HEAD])
    (log,) = CONTAINER.read(REAL)
    table = by_step(log)
    assert list(table) == list(range(10))
    assert table[0] == {"val/test_score/logic_assignment": 0.0}
    scores = [curve["critic/score/mean"] for step, curve in table.items() if step]
    assert scores == [0.094, 0.047, 0.062, -0.406, -0.133, -0.117, 0.391, 0.117, 0.977]
    assert {len(curve) for step, curve in table.items() if step} == {48}
    assert not log.dropped
