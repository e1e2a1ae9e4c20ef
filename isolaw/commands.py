"""Every command that isolaw prints; no other module builds one.

Messages, notes, pages and drafted files contain commands to paste. Each of them is a `Command`, a list of
words, from one of the functions below, which `PRINTED` collects. `tests/test_commands.py` runs each command
in the situation in which isolaw prints it, and fails for any other text in the package that looks like a
command.

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
    """A command as a list of words; ``str`` quotes them for a shell.

    A value that only the user knows is a blank, such as ``<number>``. `blanks` lists the blanks, and a
    message that shows such a command asks the user to fill them in.
    """

    words: tuple[str, ...]

    @property
    def blanks(self) -> list[str]:
        """The blanks that the user must fill in, each once."""
        return blanks(" ".join(self.words))

    def __str__(self) -> str:
        return shlex.join(self.words)


def blanks(text: str) -> list[str]:
    """Return the blanks in a text, each once.

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
    """Return a path that does not exist yet: the given one, or else its first free numbered variant.

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
    """The command that reads the same sources with more options; ``sources`` are all words of the user's."""
    return _isolaw("read", *sources, *options)


@_printed
def draft_settings(sources: Sequence[str]) -> Command:
    """The command that writes ``isolaw.toml`` with the given options, and with blanks for missing values."""
    return _isolaw("read", *sources, "--save")


@_printed
def read_settled(sources: Sequence[str], settings: str) -> Command:
    """The command that reads the logs with a file of settings."""
    return _isolaw("read", *sources, "--settings", settings)


@_printed
def draft_mapping(table: str) -> Command:
    """The command that writes ``isolaw.toml`` for a table whose columns isolaw does not know."""
    return _isolaw("read", table, "--save")


@_printed
def read_mapped(table: str, mapping: str) -> Command:
    """The command that reads a table with a mapping file."""
    return _isolaw("read", table, "--mapping", mapping)


@_printed
def read_table(table: str, options: Sequence[str]) -> Command:
    """The command that reads a table with the options that name its columns."""
    return _isolaw("read", table, *options)


@_printed
def read_sweep(directory: object) -> Command:
    """The command that lists the runs of a sweep; for a user who named a sweep instead of a law."""
    return _isolaw("read", directory)


# Laws


@_printed
def fit(sources: Sequence[str], options: Sequence[str], out: str = "", figures: str = "") -> Command:
    """The command that fits runs; ``options`` are those that the runs require (`isolaw.fits.choices`)."""
    where = [*(["--out", out] if out else []), *(["--figures", figures] if figures else [])]
    return _isolaw("fit", *sources, *options, *where)


@_printed
def answer(sources: Sequence[str], budget: float | str) -> Command:
    """The command that answers for a budget from logs, a sweep or a law."""
    return _isolaw("answer", *sources, "--compute", budget if isinstance(budget, str) else f"{budget:.15g}")


@_printed
def predict(law: str, budget: int) -> Command:
    """The command that predicts for a budget from a law's file."""
    return _isolaw("predict", law, "--compute", budget)


@_printed
def predict_by_preset(preset: str, budget: str) -> Command:
    """The command that predicts for a budget by a calibrated simulator."""
    return _isolaw("predict", "--method", "simulate", "--preset", preset, "--compute", budget)


@_printed
def this(words: Sequence[str]) -> Command:
    """The command that the user typed, which isolaw repeats on the page that it wrote."""
    return _isolaw(*words)


# Sweeps


@_printed
def sweep_file(file: object, out: str) -> Command:
    """The command that shows the plan of a sweep file; without ``--dry-run`` it executes the sweep."""
    return _isolaw("sweep", file, "--out", unused(out), "--dry-run")


@_printed
def continue_sweep(directory: object) -> Command:
    """The command that continues a sweep."""
    return _isolaw("sweep", "--out", directory)


@_printed
def rewrite_sweep(file: object, directory: object) -> Command:
    """The command that writes a damaged ``sweep.json`` again, from the sweep's original file."""
    return _isolaw("sweep", file, "--out", directory)


@_printed
def extend_sweep(directory: object, keys: Sequence[str]) -> Command:
    """The command that adds runs to a sweep by changing keys of its file."""
    return _isolaw("sweep", "--out", directory, *(word for key in keys for word in ("--set", key)))


@_printed
def spend(file: object, batch: Sequence[int], budget: int) -> Command:
    """The command that plans one run with ``batch``, (B_p, n), for a budget, from a sweep's ``file``."""
    keys = ["problems_per_batch", "rollouts_per_problem"]
    own = [f"grid.{key}=[{value}]" for key, value in zip(keys, batch, strict=True)]
    own += [f"sweep.compute={budget}", "sweep.seeds=1", "design.kind=grid"]
    words = (word for key in own for word in ("--set", key))
    return _isolaw("sweep", file, "--out", unused("runs/final"), *words, "--dry-run")


@_printed
def sweep_preset(preset: str) -> Command:
    """The command that executes a grid on a calibrated simulator."""
    return _isolaw("sweep", "--set", f"bandit.preset={preset}", "--out", unused("runs/calibrated"))


@_printed
def plan_preset(file: str, preset: str) -> Command:
    """The command that compares sweeps on the members of a calibrated ensemble."""
    return _isolaw("plan", file, "--preset", preset)


@_printed
def dead_groups(counts: object) -> Command:
    """The command that prints the share of groups without a signal, from counts of correct answers."""
    return _isolaw("problems", "--counts", counts)


@_printed
def advise_file(words: Sequence[str]) -> Command:
    """The command that gives the same advice, and writes the file of the sweep that it suggests."""
    return _isolaw(*words, "--out", unused("first.toml"))


@_printed
def plan_larger(file: str, target: int) -> Command:
    """The command that compares larger sweeps than the first one that an advice suggests."""
    return _isolaw("plan", file, "--compute", target, "--set", "sweep.seeds=3")


# This machine


@_printed
def doctor() -> Command:
    """The command that prints a fix for each fault of this machine."""
    return _isolaw("doctor")


@_printed
def doctor_gpu(*options: str) -> Command:
    """The command that tests the stages of the real backend on this machine's GPUs."""
    return _isolaw("doctor", "--gpu", *options)


def shipped(file: str) -> Path:
    """Return a file that ships with isolaw, from the installed package or from the top of a clone."""
    own = Path(__file__).parent / file
    return own if own.parent.is_dir() else Path(__file__).parents[1] / file


def requirements(name: str) -> Path:
    """Return the path of a file of pinned requirements that ships with isolaw."""
    return shipped(f"requirements/{name}.txt")


@_printed
def install(*words: str, pinned: str = "") -> Command:
    """The pip command that installs packages; ``pinned`` names a file of `requirements` instead."""
    file = ["--no-deps", "-r", str(requirements(pinned))] if pinned else []
    return Command(("pip", "install", *file, *words))


@_printed
def uninstall(*packages: str) -> Command:
    """The pip command that uninstalls packages that exclude others."""
    return Command(("pip", "uninstall", "-y", *packages))
