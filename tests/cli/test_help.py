"""What ``--help`` lists, and the names of earlier versions."""

from __future__ import annotations

import re
from collections.abc import Callable

import click
import pytest

from isolaw.cli import cli
from isolaw.cli.help import ShortHelp

Call = Callable[..., tuple[int, str, str]]
_MOST = 12
KNOWN = {name: frozenset(o for p in item.params for o in p.opts) for name, item in cli.commands.items()}


def options(text: str) -> list[str]:
    """The options that a help page lists, each by its long name."""
    return re.findall(r"^  (?:-\w, )?(--[\w-]+)", text.partition("\nOptions:\n")[2], re.M)


@pytest.mark.parametrize("name", cli.commands)
def test_help_lists_twelve_options_at_most_and_help_all_the_others(isolaw: Call, name: str) -> None:
    command = cli.commands[name]
    assert isinstance(command, ShortHelp)
    code, text, _ = isolaw(name, "--help")
    whole = isolaw(name, "--help-all")[1]
    assert code == 0
    every = [
        max(param.opts, key=len)
        for param in command.params
        if isinstance(param, click.Option) and not param.hidden
    ]
    assert len(options(text)) <= _MOST
    assert sorted(options(whole)) == sorted(every)
    last = " ".join(text.split("\n\n")[-1].split())
    named = f"isolaw {name} --help-all also lists "
    assert last.startswith(named) == (len(options(text)) < len(every))
    for title in command.groups:
        assert title in last
        assert f"\n{title[0].upper()}{title[1:]}:\n" in whole


COMMANDS = {
    *("answer", "read", "fit", "predict", "report", "sweep", "status", "advise", "compare", "problems"),
    *("model-size", "export", "doctor", "demo", "run-one"),
}


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_a_command_has_sixteen_options_at_most(name: str) -> None:
    # --set and --only replace --constant and --exclude, and --column takes arithmetic in place of --derive.
    replaced = {"exclude", "derive", "constants"}
    every = [
        param for param in cli.commands[name].params if isinstance(param, click.Option) and not param.hidden
    ]
    assert len([option for option in every if option.name not in replaced]) <= 16


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["doctor", "--device", "cpu"], "--device requires --gpu"),
    ],
)
def test_a_combination_without_meaning_is_refused(isolaw: Call, words: list[str], message: str) -> None:
    code, _, err = isolaw(*words)
    assert (code, f"Error: {message}\n" in err) == (2, True)


def test_every_command_that_is_not_hidden_is_in_a_group(isolaw: Call) -> None:
    text = isolaw("--help")[1]
    sections = dict(re.findall(r"^(Answer|Run|More):\n((?:  .*\n)+)", text, re.M))
    listed = [re.findall(r"^  (\S+)", section, re.M) for section in sections.values()]
    assert listed == list(cli.sections.values())
    assert {name for option in listed for name in option} == cli.commands.keys() - {"run-one"}


@pytest.mark.parametrize(
    ("words", "nearest"),
    [
        (["fit", "x", "--columm", "n=k"], "--column"),
        (["answer", "x", "--name-patern", "n"], "--name-pattern"),
    ],
)
def test_a_mistake_names_the_nearest_option_of_either_kind(
    isolaw: Call, words: list[str], nearest: str
) -> None:
    code, _, err = isolaw(*words)
    assert code == 2
    assert nearest in err
