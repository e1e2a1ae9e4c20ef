"""What ``--help`` lists, and the names of earlier versions."""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable

import click
import pytest

import isolaw as library
from isolaw import renamed
from isolaw.cli import cli
from isolaw.cli.help import ShortHelp
from isolaw.cli.old_names import COMMANDS, OPTIONS, VALUES, modern

Call = Callable[..., tuple[int, str, str]]
_MOST = 12
KNOWN = {name: frozenset(o for p in own.params for o in p.opts) for name, own in cli.commands.items()}


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
        max(own.opts, key=len) for own in command.params if isinstance(own, click.Option) and not own.hidden
    ]
    assert len(options(text)) <= _MOST
    assert sorted(options(whole)) == sorted(every)
    last = " ".join(text.split("\n\n")[-1].split())
    named = f"isolaw {name} --help-all also lists "
    assert last.startswith(named) == (len(options(text)) < len(every))
    for title in command.groups:
        assert title in last
        assert f"\n{title[0].upper()}{title[1:]}:\n" in whole


def test_every_command_that_is_not_hidden_is_in_a_group(isolaw: Call) -> None:
    text = isolaw("--help")[1]
    sections = dict(re.findall(r"^(Answer|Run|More):\n((?:  .*\n)+)", text, re.M))
    listed = [re.findall(r"^  (\S+)", own, re.M) for own in sections.values()]
    assert listed == list(cli.sections.values())
    assert {name for own in listed for name in own} == cli.commands.keys() - {"run-one"}


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


@pytest.mark.parametrize("old", COMMANDS)
def test_an_old_command_is_todays_with_a_warning(isolaw: Call, old: str) -> None:
    code, out, err = isolaw(old, "--help")
    assert (code, out) == isolaw(COMMANDS[old], "--help")[:2]
    assert err.startswith(f"warning: the command {old} is now {COMMANDS[old]}")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "today", "warned"),
    [
        (["fit", "d", "--setting", "fixed-b", "--fixed", "lr=1"],
         ["fit", "d", "--hold", "B", "--where", "lr=1"],
         ["--setting fixed-b is now --hold B", "--fixed is now --where"]),
        (["figures", "d", "-o", "f", "--bootstrap=9"], ["report", "d", "--figures", "f", "--draws=9"],
         ["the command figures is now report --figures FOLDER", "--bootstrap is now --draws"]),
        (["figures", "d", "-of"], ["report", "d", "--figures", "f"],
         ["the command figures is now report --figures FOLDER"]),
        (["plan", "f", "--target", "1M"], ["plan", "f", "--compute", "1M"], ["--target is now --compute"]),
        (["compare", "d", "--target", ".5"], ["compare", "d", "--target", ".5"], []),
        (["report", "d", "-o", "f"], ["report", "d", "-o", "f"], []),
        (["fit", "--", "--setting"], ["fit", "--", "--setting"], []),
        (["sweep", "--set", "a.b=1"], ["sweep", "--set", "a.b=1"], []),
        (["--version"], ["--version"], []),
    ],
)  # fmt: skip
def test_old_options(words: list[str], today: list[str], warned: list[str]) -> None:
    assert modern(words, KNOWN) == (today, warned)
    assert modern(today, KNOWN) == (today, [])


def test_an_option_under_both_names_is_refused(isolaw: Call) -> None:
    code, _, err = isolaw("fit", "d", "--setting", "joint", "--hold", "B")
    assert code == 2
    assert "found both --setting and --hold" in err


def test_an_old_file_of_settings_still_works_and_names_its_successor(isolaw: Call) -> None:
    code, _, err = isolaw("read", "examples/logs/trl", "--settings", "none.toml")
    assert code == 2
    assert "--settings is replaced by isolaw.toml" in err
    assert "none.toml: No such file" in err


def test_one_table_for_options_and_keywords() -> None:
    assert {old[2:]: new[2:] for old, new in OPTIONS.items()} == renamed.KEYWORDS
    assert VALUES["--hold"] == renamed.HOLDS


@pytest.mark.parametrize("name", ["fit", "answer", "backtest", "compare_shapes", "calibrate", "plan"])
def test_old_keywords_are_accepted_and_warned_of(name: str) -> None:
    function = getattr(library, name)
    own = set(inspect.signature(function).parameters) & {*renamed.KEYWORDS.values()}
    assert own
    for old, new in renamed.KEYWORDS.items():
        if new in own:
            with (
                pytest.warns(DeprecationWarning, match=f"{name}: {old} is now {new}"),
                pytest.raises(TypeError, match=r"missing|unexpected"),
            ):
                function(**{old: None}, no_such_argument=1)
            with warnings.catch_warnings(), pytest.raises(TypeError, match="found both"):
                function(**{old: None, new: None})
