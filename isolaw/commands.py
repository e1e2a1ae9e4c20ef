"""Every command that isolaw prints: a list of words that is built only here.

Messages, notes, pages and drafted files contain commands to paste. Each is a `Command` from one of the
functions below, which are collected in `PRINTED`. `tests/test_commands.py` runs each command in the situation
that prints it, and refuses other texts in the package that look like a command.

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
    """A command as its words; its text is quoted for a shell.

    A value that only the user knows is a blank, such as ``<number>``. `blanks` lists them, and a message that
    shows such a command asks the user to fill them in.
    """

    words: tuple[str, ...]

    @property
    def blanks(self) -> list[str]:
        """The blanks that the user fills in, each once."""
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
    """Return the path or, if it exists, the first numbered variant that does not.

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
    """Read the same sources with more options: ``sources`` are all words that were given."""
    return _isolaw("read", *sources, *options)


@_printed
def draft_settings(sources: Sequence[str]) -> Command:
    """Write ``isolaw.toml`` with the options given, and with all values that the logs lack to fill in."""
    return _isolaw("read", *sources, "--save")


@_printed
def read_settled(sources: Sequence[str], settings: str) -> Command:
    """Read the logs with a file of settings."""
    return _isolaw("read", *sources, "--settings", settings)


@_printed
def draft_mapping(table: str) -> Command:
    """Write ``isolaw.toml`` for a table whose columns isolaw does not know."""
    return _isolaw("read", table, "--save")


@_printed
def read_mapped(table: str, mapping: str) -> Command:
    """Read a table with a mapping."""
    return _isolaw("read", table, "--mapping", mapping)


@_printed
def read_table(table: str, options: Sequence[str]) -> Command:
    """Read a table with the options that name its columns."""
    return _isolaw("read", table, *options)


@_printed
def read_sweep(directory: object) -> Command:
    """List the runs of a sweep where a law was expected."""
    return _isolaw("read", directory)


# Laws


@_printed
def fit(sources: Sequence[str], options: Sequence[str], out: str = "", figures: str = "") -> Command:
    """Fit the runs that were read or executed; ``options`` are what they require (`isolaw.fits.choices`)."""
    where = [*(["--out", out] if out else []), *(["--figures", figures] if figures else [])]
    return _isolaw("fit", *sources, *options, *where)


@_printed
def answer(sources: Sequence[str], budget: float | str) -> Command:
    """Answer for a budget from the same sources, after more runs."""
    return _isolaw("answer", *sources, "--compute", budget if isinstance(budget, str) else f"{budget:.15g}")


@_printed
def predict(law: str, budget: int) -> Command:
    """Predict from a law that was written."""
    return _isolaw("predict", law, "--compute", budget)


@_printed
def predict_by_preset(preset: str, budget: str) -> Command:
    """Let a calibrated simulator spend a budget."""
    return _isolaw("predict", "--method", "simulate", "--preset", preset, "--compute", budget)


@_printed
def this(words: Sequence[str]) -> Command:
    """The command that was typed, on the page that it made."""
    return _isolaw(*words)


# Sweeps


@_printed
def sweep_file(file: object, out: str) -> Command:
    """Show the plan of a sweep file that was written; without the option it executes."""
    return _isolaw("sweep", file, "--out", unused(out), "--dry-run")


@_printed
def continue_sweep(directory: object) -> Command:
    """Continue a sweep."""
    return _isolaw("sweep", "--out", directory)


@_printed
def rewrite_sweep(file: object, directory: object) -> Command:
    """Write a damaged ``sweep.json`` again, from the file that the sweep began with."""
    return _isolaw("sweep", file, "--out", directory)


@_printed
def extend_sweep(directory: object, keys: Sequence[str]) -> Command:
    """Add runs to a sweep by keys of its file."""
    return _isolaw("sweep", "--out", directory, *(word for key in keys for word in ("--set", key)))


@_printed
def spend(file: object, batch: Sequence[int], budget: int) -> Command:
    """Show the plan of one run of ``batch``, (B_p, n), that spends a budget; ``file`` is a sweep's."""
    keys = ["problems_per_batch", "rollouts_per_problem"]
    own = [f"grid.{key}=[{value}]" for key, value in zip(keys, batch, strict=True)]
    own += [f"sweep.compute={budget}", "sweep.seeds=1", "design.kind=grid"]
    words = (word for key in own for word in ("--set", key))
    return _isolaw("sweep", file, "--out", unused("runs/final"), *words, "--dry-run")


@_printed
def sweep_preset(preset: str) -> Command:
    """Execute a grid on a calibrated simulator."""
    return _isolaw("sweep", "--set", f"bandit.preset={preset}", "--out", unused("runs/calibrated"))


@_printed
def plan_preset(file: str, preset: str) -> Command:
    """Compare sweeps on the members of a calibrated ensemble."""
    return _isolaw("plan", file, "--preset", preset)


@_printed
def dead_groups(counts: object) -> Command:
    """Print the shares of groups without a signal of counted problems."""
    return _isolaw("problems", "--counts", counts)


@_printed
def advise_file(words: Sequence[str]) -> Command:
    """Give the same advice, and write the file of its sweep."""
    return _isolaw(*words, "--out", unused("first.toml"))


@_printed
def plan_larger(file: str, target: int) -> Command:
    """Compare larger sweeps than the first one of an advice."""
    return _isolaw("plan", file, "--compute", target, "--set", "sweep.seeds=3")


# This machine


@_printed
def doctor() -> Command:
    """Print the fix for each fault of this machine."""
    return _isolaw("doctor")


@_printed
def doctor_gpu(*options: str) -> Command:
    """Run the stages of the real backend."""
    return _isolaw("doctor", "--gpu", *options)


def shipped(file: str) -> Path:
    """Return a file that ships with isolaw: an installed isolaw holds it, a clone has it at its top."""
    own = Path(__file__).parent / file
    return own if own.parent.is_dir() else Path(__file__).parents[1] / file


def requirements(name: str) -> Path:
    """Return a file of pinned requirements."""
    return shipped(f"requirements/{name}.txt")


@_printed
def install(*words: str, pinned: str = "") -> Command:
    """Install packages by pip; ``pinned`` names a file of `requirements`, which lists all dependencies."""
    file = ["--no-deps", "-r", str(requirements(pinned))] if pinned else []
    return Command(("pip", "install", *file, *words))


@_printed
def uninstall(*packages: str) -> Command:
    """Uninstall packages that exclude others."""
    return Command(("pip", "uninstall", "-y", *packages))
