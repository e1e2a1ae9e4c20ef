"""Build every command that isolaw prints. No other module builds commands.

Messages, notes, pages and drafted files contain commands to paste. Each command is a `Command`, a list of
words that one of the functions below returns; `PRINTED` collects these functions. `tests/test_commands.py`
runs each command in the situation in which isolaw prints it. It fails if any other text in the package looks
like a command.

>>> str(read_again(["my logs"], ["--set", "n=8"]))
"isolaw read 'my logs' --set n=8"
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TypeVar

_BLANK = re.compile(r"<[^<>]+>")


@dataclass(frozen=True)
class Command:
    """A command as a list of words, which ``str`` quotes for a shell.

    A value that only the user knows is a blank, such as ``<number>``. `blanks` lists the blanks, and messages
    that show a command with blanks ask the user to fill them in.
    """

    words: tuple[str, ...]

    @property
    def blanks(self) -> list[str]:
        """The distinct blanks that the user must fill in."""
        return blanks(" ".join(self.words))

    def __str__(self) -> str:
        return shlex.join(self.words)


def blanks(text: str) -> list[str]:
    """Return the distinct blanks in a text.

    >>> blanks("--set n=<number> --set B_p=<number>")
    ['<number>']
    """
    return list(dict.fromkeys(_BLANK.findall(text)))


Printed = TypeVar("Printed", bound=Callable[..., Command])
PRINTED: dict[str, Callable[..., Command]] = {}


def _printed(function: Printed) -> Printed:
    PRINTED[function.__name__] = function
    return function


def unused(path: str) -> str:
    """Return a path that does not exist yet: the given path, or its first free numbered variant.

    >>> unused("gone/plan.toml")
    'gone/plan.toml'
    """
    own = Path(path)
    names = (own.with_stem(f"{own.stem}-{i}") if i > 1 else own for i in count(1))
    return next(str(name) for name in names if not name.exists())


def _isolaw(*words: object) -> Command:
    return Command(("isolaw", *map(str, words)))


# Reading


@_printed
def read_again(sources: Sequence[str], options: Sequence[str]) -> Command:
    """Return the command that reads the same sources with more options.

    ``sources`` contains all words of the user's command.
    """
    return _isolaw("read", *sources, *options)


@_printed
def draft_settings(sources: Sequence[str]) -> Command:
    """Return the command that writes ``isolaw.toml`` with the given options and blanks for missing values."""
    return _isolaw("read", *sources, "--save")


@_printed
def read_settled(sources: Sequence[str], settings: str) -> Command:
    """Return the command that reads the logs with a file of settings."""
    return _isolaw("read", *sources, "--settings", settings)


@_printed
def draft_mapping(table: str) -> Command:
    """Return the command that writes ``isolaw.toml`` for a table with unknown columns."""
    return _isolaw("read", table, "--save")


@_printed
def read_mapped(table: str, mapping: str) -> Command:
    """Return the command that reads a table with a mapping file."""
    return _isolaw("read", table, "--mapping", mapping)


@_printed
def read_table(table: str, options: Sequence[str]) -> Command:
    """Return the command that reads a table with the options that name its columns."""
    return _isolaw("read", table, *options)


@_printed
def read_sweep(directory: object) -> Command:
    """Return the command that lists the runs of a sweep, for a user who named a sweep instead of a law."""
    return _isolaw("read", directory)


# Laws


@_printed
def fit(sources: Sequence[str], options: Sequence[str], out: str = "", figures: str = "") -> Command:
    """Return the command that fits runs with the ``options`` that they require (`isolaw.fits.choices`)."""
    where = [*(["--out", out] if out else []), *(["--figures", figures] if figures else [])]
    return _isolaw("fit", *sources, *options, *where)


@_printed
def answer(sources: Sequence[str], budget: float | str) -> Command:
    """Return the command that answers how to spend a budget, from logs, a sweep or a law."""
    return _isolaw("answer", *sources, "--compute", budget if isinstance(budget, str) else f"{budget:.15g}")


@_printed
def predict(law: str, budget: int) -> Command:
    """Return the command that predicts the allocation for a budget from a law's file."""
    return _isolaw("predict", law, "--compute", budget)


@_printed
def predict_by_preset(preset: str, budget: str) -> Command:
    """Return the command that predicts the allocation for a budget with a calibrated simulator."""
    return _isolaw("predict", "--method", "simulate", "--preset", preset, "--compute", budget)


@_printed
def this(words: Sequence[str]) -> Command:
    """Return the command that the user typed, which isolaw repeats on the page that it wrote."""
    return _isolaw(*words)


# Sweeps


@_printed
def sweep_file(file: object, out: str) -> Command:
    """Return the command that shows the plan of a sweep file. Without ``--dry-run`` it runs the sweep."""
    return _isolaw("sweep", file, "--out", unused(out), "--dry-run")


@_printed
def continue_sweep(directory: object) -> Command:
    """Return the command that continues a sweep."""
    return _isolaw("sweep", "--out", directory)


@_printed
def sweep_status(directory: object) -> Command:
    """Return the command that shows the progress of a sweep, with the causes of all failures."""
    return _isolaw("status", directory)


@_printed
def rewrite_sweep(file: object, directory: object) -> Command:
    """Return the command that rewrites a damaged ``sweep.json`` from the sweep's original file."""
    return _isolaw("sweep", file, "--out", directory)


@_printed
def extend_sweep(directory: object, keys: Sequence[str]) -> Command:
    """Return the command that adds runs to a sweep by changing keys of its file."""
    return _isolaw("sweep", "--out", directory, *(word for key in keys for word in ("--set", key)))


@_printed
def spend(file: object, batch: Sequence[int], budget: int) -> Command:
    """Return the command that plans one run with the ``batch`` (B_p, n) for a budget, from a sweep's file."""
    keys = ["problems_per_batch", "rollouts_per_problem"]
    own = [f"grid.{key}=[{value}]" for key, value in zip(keys, batch, strict=True)]
    own += [f"sweep.compute={budget}", "sweep.seeds=1", "design.kind=grid"]
    words = (word for key in own for word in ("--set", key))
    return _isolaw("sweep", file, "--out", unused("runs/final"), *words, "--dry-run")


@_printed
def sweep_preset(preset: str) -> Command:
    """Return the command that executes a grid on a calibrated simulator."""
    return _isolaw("sweep", "--set", f"bandit.preset={preset}", "--out", unused("runs/calibrated"))


@_printed
def plan_preset(file: str, preset: str) -> Command:
    """Return the command that compares sweeps on the members of a calibrated ensemble."""
    return _isolaw("plan", file, "--preset", preset)


@_printed
def dead_groups(counts: object) -> Command:
    """Return the command that prints the share of groups without a signal, from counts of correct answers."""
    return _isolaw("problems", "--counts", counts)


@_printed
def advise_file(words: Sequence[str]) -> Command:
    """Return the command that gives the same advice and writes the sweep file that it suggests."""
    return _isolaw(*words, "--out", unused("first.toml"))


@_printed
def plan_larger(file: str, target: int) -> Command:
    """Return the command that compares sweeps larger than the first sweep that an advice suggests."""
    return _isolaw("plan", file, "--compute", target, "--set", "sweep.seeds=3")


# This machine


@_printed
def doctor() -> Command:
    """Return the command that prints a fix for each fault of this machine."""
    return _isolaw("doctor")


@_printed
def doctor_gpu(*options: str) -> Command:
    """Return the command that tests the stages of the real backend on this machine's GPUs."""
    return _isolaw("doctor", "--gpu", *options)


def shipped(file: str) -> Path:
    """Return the path of a file that ships with isolaw, in the installed package or at the top of a clone."""
    own = Path(__file__).parent / file
    return own if own.parent.is_dir() else Path(__file__).parents[1] / file


@_printed
def install(*words: str, pinned: str = "") -> Command:
    """Return the pip command that installs packages, or the pinned requirements in a file that ships."""
    file = ["--no-deps", "-r", str(shipped(f"requirements/{pinned}.txt"))] if pinned else []
    return Command(("pip", "install", *file, *words))


@_printed
def uninstall(*packages: str) -> Command:
    """Return the pip command that uninstalls packages that conflict with others."""
    return Command(("pip", "uninstall", "-y", *packages))
