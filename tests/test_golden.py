"""Commands print what they printed: ``python -m tests.golden`` stores their outputs anew."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from golden.outputs import GROUPS, HERE, close, difference, outputs

from isolaw.cli import cli

# What every other command is about: one run, a pool of problems, a machine, a model, published results.
WITHOUT_RUNS = {"run-one", "problems", "doctor", "export", "demo", "advise"}


@pytest.mark.slow
@pytest.mark.numbers
@pytest.mark.parametrize("group", GROUPS)
def test_outputs(group: str, tmp_path: Path) -> None:
    changed = []
    for path, now in outputs(group, tmp_path):
        stored = path.read_text(encoding="utf-8") if path.is_file() else ""
        changed.append(difference(stored, now, numbers="-loosely" not in path.stem))
    told = "\n".join(filter(None, changed))
    assert not told, f"{told}\n\nIf this is meant: python -m tests.golden {group}"
    if group in ("mistakes", "usage"):  # which leave nothing but what the group itself saves
        assert not any((tmp_path / name).exists() for name in ("out", "figures"))
    assert {path.stem for path in (HERE / group).glob("*.txt")} == GROUPS[group].keys()


def test_every_command_is_stored() -> None:
    first = {command.split()[0] for commands in GROUPS.values() for command in commands.values()}
    assert {name for name, item in cli.commands.items() if isinstance(item, click.Command)} <= first


@pytest.mark.parametrize("group", ["simulated", "studies"])
def test_what_rests_on_simulated_runs_says_so_first(group: str) -> None:
    for name, command in GROUPS[group].items():
        first, _, shown = (HERE / group / f"{name}.txt").read_text(encoding="utf-8").partition("--- stdout\n")
        if command.split()[0] not in WITHOUT_RUNS:
            begin = '{\n "simulated": true' if command.endswith("--json") else "Simulated runs."
            assert shown.startswith(begin), first


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        ("0.123", "0.124", True), ("0.123", "0.125", False), ("1.5e+06", "1.6e+06", True),
        ("1.5e+06", "1.7e+06", False), ("0.12345678901234", "0.12345678999999", True),
        ("0.12345678901234", "0.12395678999999", False), (".5", "-.5", False),
    ],
)  # fmt: skip
def test_numbers_are_compared_with_a_tolerance(a: str, b: str, same: bool) -> None:
    assert close(a, b) is same
    assert (difference(f"is {a} of", f"is {b} of") == "") is same
    assert difference(f"is {a} of", f"was {b} of") != ""
