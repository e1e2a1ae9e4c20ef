"""Build every command that isolaw prints. No other module builds commands.

Messages, notes, pages and files contain commands to paste. Each command is a `_Command`, a list of
words that one of the functions below returns; `PRINTED` collects these functions. `tests/test_commands.py`
runs each command in the situation in which isolaw prints it. It fails if any other text in the package looks
like a command.

>>> str(read_again(["my logs"], ["--set", "n=8"]))
"isolaw read 'my logs' --set n=8"
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TypeVar

from isolaw.errors import Spelled, one_line, shown

# Words that bash, dash and zsh leave as they are. zsh replaces =NAME with the path of a program.
_BARE = re.compile(r"(?!.*(?:^|[=:])=)[A-Za-z0-9_@%+=:,./-]+")
_LONGEST_WORD = 4096  # characters; the limit on paths in common file systems


class Word(str):
    """A word of a command, or a part of one, with its placeholders."""

    placeholders: tuple[str, ...] = ()


class Placeholder(Word):
    """A value that only the user knows: ``Placeholder("number")`` appears as ``<number>``.

    It is a type, since a name in a file can also look like ``<number>``.
    """

    def __new__(cls, name: str) -> Placeholder:
        """Return the placeholder with this name."""
        self = super().__new__(cls, f"<{name}>")
        self.placeholders = (str(self),)
        return self


def word(*parts: object) -> Word:
    """Join parts to one word, which keeps their placeholders.

    >>> word("n", "=", Placeholder("number")).placeholders, word("n", "=", "<number>").placeholders
    (('<number>',), ())
    """
    self = Word("".join(map(str, parts)))
    self.placeholders = tuple(
        placeholder for part in parts if isinstance(part, Word) for placeholder in part.placeholders
    )
    return self


def path(name: object) -> str:
    """Return a path as an argument, which must not begin like an option.

    >>> path("-x.csv"), path("x.csv")
    ('./-x.csv', 'x.csv')
    """
    return f"./{name}" if str(name).startswith("-") else str(name)


def quoted(words: Iterable[str]) -> str:
    """Return words as typed in a shell. This is the only place that quotes.

    No quoting for all shells keeps a line break or another control character on one line, and nobody reads a
    word that is longer than a path can be, so such words result in a sentence.

    >>> quoted(["--where", "set=a<$(x)"]), quoted(["=ls"])
    ("--where 'set=a<$(x)'", "'=ls'")
    >>> quoted(["isolaw", "fit", "DIR", "--metric", "x" * 10_000])
    '(no command, because one of its words has 10,000 characters: repeat yours with --metric)'
    """
    words = [*words]
    if (longest := max(map(len, words), default=0)) > _LONGEST_WORD:
        flags = ", ".join(text for text in words if text.startswith("--") and len(text) < _LONGEST_WORD)
        how = f"repeat yours with {shown(flags, str)}" if flags else "use Python"
        return f"(no command, because one of its words has {longest:,} characters: {how})"
    if (unsafe := next((text for text in words if one_line(text) != text or "\t" in text), None)) is not None:
        return f"(no command, because {unsafe!r} contains a control character: rename it, or use Python)"
    return " ".join(text if _BARE.fullmatch(text) else _in_quotes(text) for text in words)


def _in_quotes(text: str) -> str:
    return "'" + text.replace("'", "'\"'\"'") + "'"


def placeholders(words: Iterable[object]) -> list[str]:
    """Return the distinct placeholders of words.

    >>> placeholders([word("n=", Placeholder("number")), word("B_p=", Placeholder("number")), "<name>"])
    ['<number>']
    """
    return list(
        dict.fromkeys(
            placeholder for each in words if isinstance(each, Word) for placeholder in each.placeholders
        )
    )


@dataclass(frozen=True)
class _Command:
    """A command as a list of words, which ``str`` quotes for a shell.

    Messages that show a command with `placeholders` ask the user to fill them in.
    """

    words: tuple[str, ...]

    @property
    def placeholders(self) -> list[str]:
        """The distinct placeholders that the user must fill in."""
        return placeholders(self.words)

    def __str__(self) -> str:
        return quoted(self.words)


def argument(keyword: str, value: object = None) -> Spelled:
    """Return an argument of a function, which is an option at the command line; without a value, its name.

    >>> print(argument("hold", "n"), argument("group_by"))
    hold="n" group_by
    >>> argument("hold", "n").words, argument("group_by").words
    (('--hold', 'n'), ('--group-by',))
    """
    flag = f"--{keyword.replace('_', '-')}"
    return Spelled(keyword, [flag]) if value is None else Spelled(_given(keyword, value), [flag, word(value)])


def option(keyword: str, name: str, value: object) -> Spelled:
    """Return the argument that gives ``name`` a value, as a mapping in Python and an option elsewhere.

    >>> print(option("columns", "seed", "trial"))
    columns={"seed": "trial"}
    >>> option("columns", "seed", "trial").words
    ('--column', 'seed=trial')
    """
    flag = f"--{keyword.removesuffix('s')}"
    return Spelled(_given(keyword, {name: value}), [flag, word(name, "=", value)])


def _given(keyword: str, value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return f"{keyword}={shown(text, str, _LONGEST_WORD)}"


Printed = TypeVar("Printed", bound=Callable[..., _Command])
PRINTED: dict[str, Callable[..., _Command]] = {}


def _printed(function: Printed) -> Printed:
    PRINTED[function.__name__] = function
    return function


def unused(path: str) -> str:
    """Return a path that does not exist yet: the given path, or its first free numbered variant.

    >>> unused("gone/first.toml")
    'gone/first.toml'
    """
    wanted = Path(path)
    names = (wanted.with_stem(f"{wanted.stem}-{i}") if i > 1 else wanted for i in count(1))
    return next(str(name) for name in names if not name.exists())


def _isolaw(*words: object) -> _Command:
    return _Command(("isolaw", *(text if isinstance(text, str) else str(text) for text in words)))


# Reading


@_printed
def read_again(sources: Sequence[str], options: Sequence[str]) -> _Command:
    """Return the command that reads the same sources with more options.

    ``sources`` contains all words of the user's command.
    """
    return _isolaw("read", *sources, *options)


@_printed
def read_sweep(directory: object) -> _Command:
    """Return the command that lists the runs of a sweep, for a user who named it as a law or as a run."""
    return _isolaw("read", path(directory))


# Laws


@_printed
def fit(sources: Sequence[str], options: Sequence[str], out: str = "") -> _Command:
    """Return the command that fits runs with the ``options`` they require (`isolaw.fits.fit_options`)."""
    return _isolaw("fit", *sources, *options, *(["--out", out] if out else []))


@_printed
def answer(sources: Sequence[str], budget: float | str) -> _Command:
    """Return the command that answers how to spend a budget, from logs or a sweep."""
    return _isolaw("answer", *map(path, sources), "--compute", _budget(budget))


@_printed
def predict(law: str, budget: float | str) -> _Command:
    """Return the command that predicts the allocation for a budget from a law's file."""
    return _isolaw("predict", path(law), "--compute", _budget(budget))


def _budget(budget: float | str) -> str:
    return budget if isinstance(budget, str) else f"{budget:.15g}"


@_printed
def this(words: Sequence[str]) -> _Command:
    """Return the command that the user typed, which isolaw repeats on the page that it wrote."""
    return _isolaw(*words)


# Sweeps


@_printed
def sweep_file(file: object, out: str) -> _Command:
    """Return the command that previews a sweep file. Without ``--dry-run`` it runs the sweep."""
    return _isolaw("sweep", path(file), "--out", unused(out), "--dry-run")


@_printed
def continue_sweep(directory: object) -> _Command:
    """Return the command that continues a sweep."""
    return _isolaw("sweep", "--out", directory)


@_printed
def sweep_status(directory: object) -> _Command:
    """Return the command that shows the progress of a sweep, with the causes of all failures."""
    return _isolaw("status", path(directory))


@_printed
def rewrite_sweep(file: object, directory: object) -> _Command:
    """Return the command that rewrites a damaged ``sweep.json`` from the sweep's original file."""
    return _isolaw("sweep", path(file), "--out", directory)


@_printed
def extend_sweep(directory: object, settings: Sequence[str]) -> _Command:
    """Return the command that adds runs to a sweep by changing keys of its file."""
    words = (each for setting in settings for each in ("--set", setting))
    return _isolaw("sweep", "--out", directory, *words)


@_printed
def spend(file: object, batch: Sequence[int], budget: int) -> _Command:
    """Return the command that previews a run of the ``batch`` (B_p, n) for a budget, from a sweep file."""
    keys = ["problems_per_batch", "rollouts_per_problem"]
    settings = [f"grid.{key}=[{value}]" for key, value in zip(keys, batch, strict=True)]
    settings += [f"sweep.compute={budget}", "sweep.seeds=1", "design.kind=grid"]
    words = (each for setting in settings for each in ("--set", setting))
    return _isolaw("sweep", path(file), "--out", unused("runs/final"), *words, "--dry-run")


@_printed
def write_advised(words: Sequence[str], folder: str) -> _Command:
    """Return the command that gives the same advice and writes the files of its sweeps to a folder."""
    return _isolaw(*words, "--write", folder)


# This machine


@_printed
def doctor() -> _Command:
    """Return the command that prints a fix for each fault of this machine."""
    return _isolaw("doctor")


@_printed
def doctor_gpu(*options: str) -> _Command:
    """Return the command that tests the stages of the real backend on this machine's GPUs."""
    return _isolaw("doctor", "--gpu", *options)


def shipped(file: str) -> Path:
    """Return the path of a file that ships with isolaw, in the installed package or at the top of a clone."""
    packaged = Path(__file__).parent / file
    return packaged if packaged.parent.is_dir() else Path(__file__).parents[1] / file


@_printed
def install(*words: str, pinned: str = "") -> _Command:
    """Return the pip command that installs packages, or the pinned requirements in a file that ships."""
    file = ["--no-deps", "-r", str(shipped(f"requirements/{pinned}.txt"))] if pinned else []
    return _Command(("pip", "install", *file, *words))


@_printed
def uninstall(*packages: str) -> _Command:
    """Return the pip command that uninstalls packages that conflict with others."""
    return _Command(("pip", "uninstall", "-y", *packages))
