"""Configurations that a console printed, and command lines."""

from __future__ import annotations

import io
import itertools
import json
import pprint
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from isolaw.readers.configs import flatten
from isolaw.readers.containers.printed_config import PrintedConfig

CONFIG: dict[str, Any] = {
    "data": {
        "train_batch_size": 512,
        "train_files": ["/data/a/train.parquet", "/data/b/train.parquet"],
        "chat_template": "it's {{ 'a' }} and \"b\" {% if x %} { {% endif %} with a text that pprint breaks",
        "seed": None,
    },
    "actor_rollout_ref": {"rollout": {"n": 8, "temperature": 1.0}, "actor": {"optim": {"lr": 1e-06}}},
    "trainer": {"logger": ["console"], "nnodes": 1, "n_gpus_per_node": 8, "val_before_train": True},
}


def collect(text: str, worker: str = "") -> PrintedConfig:
    printed = PrintedConfig()
    for line in text.splitlines():
        printed.add(worker, line)
    printed.close()
    return printed


@pytest.mark.parametrize("width", [40, 80, 200])
def test_a_dictionary_as_pprint_writes_it(width: int) -> None:
    assert collect(pprint.pformat(CONFIG, width=width)).config == flatten(CONFIG)


@pytest.mark.parametrize("indent", [None, 2, 4])
def test_json(indent: int | None) -> None:
    """As EasyR1 prints it."""
    assert collect(json.dumps(CONFIG, indent=indent)).config == flatten(CONFIG)


def test_yaml_as_omegaconf_writes_it() -> None:
    text = yaml.safe_dump(CONFIG, sort_keys=False)
    assert collect(f"some line\n{text}another line\n").config == flatten(CONFIG)


def test_lines_of_others_between() -> None:
    printed = PrintedConfig()
    for line in pprint.pformat(CONFIG).splitlines():
        printed.add("(TaskRunner pid=1)", line)
        printed.add("(WorkerDict pid=2)", "{'a': 1}")
        printed.add("(WorkerDict pid=2)", " 'n': 99,")
    assert printed.config == flatten(CONFIG)


def test_a_few_lines_of_its_own_between() -> None:
    lines = pprint.pformat(CONFIG).splitlines()
    lines[2:2] = ["INFO 05-01 loading weights", "W0501 something else", ""]
    assert collect("\n".join(lines)).config == flatten(CONFIG)


def test_it_ends_where_its_brackets_do() -> None:
    text = pprint.pformat(CONFIG)
    assert collect(f"{text}\n  an indented line\n }}\n").config == flatten(CONFIG)


@pytest.mark.parametrize("every", [1, 2, 3, 7])
def test_tokens_on_lines_of_their_own(every: int) -> None:
    """pprint writes token by token, and in some consoles of Ray's workers many of them end a line."""
    pieces: list[str] = []
    stream = io.StringIO()
    stream.write = lambda text: pieces.append(text) or len(text)  # type: ignore[method-assign,func-returns-value]
    pprint.pprint(CONFIG, stream)
    text = "".join(f"{piece}\n" if i % every == 0 else piece for i, piece in enumerate(pieces))
    assert collect(text).config == flatten(CONFIG)


def test_a_torn_one_is_known() -> None:
    text = pprint.pformat({"algorithm": {}} | CONFIG)
    assert collect(f"{text[:-300]}\nWARNING: something else\n").is_torn
    assert not collect(text).is_torn
    assert not collect("{'answer': {'a':\n").is_torn
    assert collect(f"{text[:-300]}\n{text}").config == flatten({"algorithm": {}} | CONFIG)


def test_the_last_one_holds() -> None:
    later = {**CONFIG, "trainer": {**CONFIG["trainer"], "nnodes": 2}}
    assert collect(f"{pprint.pformat(CONFIG)}\n{pprint.pformat(later)}").config["trainer.nnodes"] == 2


@pytest.mark.parametrize(
    "text",
    [
        "{'a': 1, 'b': 2}",
        "{'answer': 42}\n{'answer': 43}",
        pprint.pformat(CONFIG)[:-40],  # cut
        "data:\n  a: 1\n",
        "{" * 500,
        "{'a': " * 500 + "}" * 500,
    ],
)
def test_what_is_no_configuration(text: str) -> None:
    assert collect(text).config == {}


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("+ python3 -m verl.trainer.main_ppo data.seed=1 a.b=x", {"data.seed": 1, "a.b": "x"}),
        ("python -u -m verl.trainer.main_ppo 'a.b=x y' +c.d=null", {"a.b": "x y", "c.d": None}),
        ("UNBUFFERED=1 python3 -m verl.trainer.main config=c data.n=2", {"config": "c", "data.n": 2}),
        ("python3 -m recipe.dapo.main_dapo \\\n    data.n=16 \\\n    a.b=1\nc.d=2", {"data.n": 16, "a.b": 1}),
        ("python3 -m verl.trainer.main_ppo a.b='not closed c.d=1", {"a.b": "'not", "c.d": 1}),
        # How a log of github.com/eric-haibin-lin/verl-data ends, of a run whose worker was killed.
        (
            "Error executing job with overrides: ['data.train_files=/g/train.parquet', 'actor.lr=1e-6', "
            "'trainer.logger=[console]', 'rollout.n=4']",
            {"data.train_files": "/g/train.parquet", "actor.lr": 1e-6, "trainer.logger": "[console]",
             "rollout.n": 4},
        ),
        ("python3 -m pip install a.b=1", {}),
        ("I ran python3 and a.b=1", {}),
        ("python3 -m verl.trainer.main_ppo", {}),
    ],
)  # fmt: skip
def test_command_lines(text: str, command: dict[str, Any]) -> None:
    assert collect(text).command == command


def test_nothing_is_evaluated(tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    call = f"open({str(trap)!r}, 'w')"
    keys = ", ".join(f"'k{i}': {i}" for i in range(20))
    assert collect(f"{{'a': {call}, {keys}}}").config == {}
    assert collect(f"{{'a': 2 ** 10 ** 10, {keys}}}").config == {}
    assert collect(f"{{'a': [0] * 10 ** 10, {keys}}}").config == {}
    command = collect(f"python3 -m verl.trainer.main_ppo a.b=$({call}) c.d=`{call}`").command
    assert set(command) <= {"a.b", "c.d"}
    assert not trap.exists()


@pytest.mark.parametrize(
    ("piece", "ending"),
    list(
        zip(
            ["-", "[", "(", "'a' ", "1,", "{'a':1,", "'a': 1, ", "not ", "\\", "'", "9", "+1", "1j+"],
            itertools.cycle(["", "}", "]" * 200 + "}"]),
            strict=False,
        )
    ),
)
def test_what_is_held_is_bounded(piece: str, ending: str) -> None:
    """In memory and in time, whatever a line holds that begins like a dictionary."""
    line = "{'a': 1, 'b': 1, 'c': 1, 'd': 1, 'e': 1, 'f': 1, 'g': 1, 'h': " + piece * (200_000 // len(piece))
    line += "}" * line.count("{") + ending
    started = time.process_time()
    collect(f"{line}\n {line}\n{line}\n")
    assert time.process_time() - started < 20


@pytest.mark.parametrize(
    "text",
    [
        "+ python3 -m verl.trainer.main_ppo 'data.train_batch_size=256' \"actor_rollout_ref.rollout.n=8\"",
        # As `subprocess` is given it, and as a launcher quotes the whole.
        "Running: ['python3', '-u', '-m', 'verl.trainer.main_ppo', 'data.train_batch_size=256', "
        "'actor_rollout_ref.rollout.n=8', 'data.train_files=[a,b]']",
        'cmd: "python3 -m verl.trainer.main_ppo data.train_batch_size=256 actor_rollout_ref.rollout.n=8"',
        "sh -c 'python3 -m verl.trainer.main_ppo data.train_batch_size=256 actor_rollout_ref.rollout.n=8'",
        "python -m verl.trainer.main_ppo 'data.train_batch_size=256' actor_rollout_ref.rollout.n='8' x='it's",
    ],
)
def test_quoted_command_lines(text: str) -> None:
    command = collect(text).command
    assert command["data.train_batch_size"] == 256
    assert int(command["actor_rollout_ref.rollout.n"]) == 8
