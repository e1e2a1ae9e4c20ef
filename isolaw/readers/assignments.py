"""``--set NAME=VALUE`` and ``--set GLOB:NAME=VALUE``: what the user knows and a log does not say.

A setting with a glob holds for the runs whose name or source it matches, and goes before one without;
of two that match alike the later one holds.

>>> parse(["n=16", "*seed1*:seed=1"])
[Setting(name='rollouts_per_problem', value=16, glob=''), Setting(name='seed', value=1, glob='*seed1*')]
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import PurePath
from typing import Any

from isolaw.errors import InputError
from isolaw.runs import COLUMNS

# What is accepted for the names in code.
SYMBOLS = {
    "n": "rollouts_per_problem",
    "B_p": "problems_per_batch",
    "B": "rollouts_per_step",
    "batch_rollouts": "rollouts_per_step",
    "M": "step",
    "C": "compute",
    "D": "n_train_problems",
}
SPLIT = ("problems_per_batch", "rollouts_per_problem", "rollouts_per_step")
_WHOLE = {
    **dict.fromkeys([*SPLIT, "n_problems", "n_samples", "n_train_problems", "logging_steps"], 1),
    "seed": 0,
}
_TRUTHS = ("on_policy", "percent")
_TEXTS = ("problem_set", "algorithm", "framework")
_MEASURED = set(COLUMNS) - {*SPLIT, "seed", "n_problems", "n_samples", "problem_set", "algorithm"}
_LARGEST = 2**31
_FORM = re.compile(r"(?s)(?:(?P<glob>.*?):)?(?P<name>[A-Za-z_][\w.-]*)=(?P<value>.*)")


@dataclass(frozen=True)
class Setting:
    """One name of a run, set by the user; ``glob`` is empty when it is for all runs."""

    name: str
    value: Any
    glob: str = ""

    def matches(self, run: str, sources: Iterable[str]) -> bool:
        """Return whether it is for the run of this name, read from these files."""
        names = [run, PurePath(run).name, *sources]
        return not self.glob or any(fnmatchcase(name, self.glob) for name in names)

    def __str__(self) -> str:
        return f"--set {self.glob + ':' if self.glob else ''}{self.name}={self.value}"


def parse(settings: Iterable[str] | Mapping[str, Any] | None) -> list[Setting]:
    """Read settings, as ``["n=16", "GLOB:seed=1"]`` or ``{"n": 16, "GLOB:seed": 1}``.

    Raises
    ------
    InputError
        not of that form, a name that cannot be set, or a value that it cannot have.
    """
    if isinstance(settings, str):
        raise InputError(f"settings {settings!r}: accepted: a list of texts, or a mapping")
    if isinstance(settings, Mapping):
        settings = [f"{name}={value}" for name, value in settings.items()]
    return [_one(text) for text in settings or ()]


def applying(settings: Iterable[Setting], run: str, sources: Iterable[str]) -> dict[str, Setting]:
    """Return what is set for a run, by name."""
    sources = list(sources)
    mine = [setting for setting in settings if setting.matches(run, sources)]
    return {setting.name: setting for setting in sorted(mine, key=lambda s: bool(s.glob))}


def _one(text: str) -> Setting:
    form = _FORM.fullmatch(text.strip())
    if form is None or not form["value"].strip():
        raise InputError(f"--set {text!r}: accepted: NAME=VALUE, or GLOB:NAME=VALUE for the runs that match")
    name = SYMBOLS.get(form["name"], form["name"])
    if name in _MEASURED:
        raise InputError(f"--set {text!r}: {name} is what a log measures; it cannot be set")
    known = [*SYMBOLS, *_WHOLE, *_TRUTHS, *_TEXTS]
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
    if name not in known and close:
        raise InputError(f"--set {text!r}: no name {name!r}; did you mean {close[0]!r}?")
    return Setting(name, _value(name, form["value"].strip(), text), form["glob"] or "")


def _value(name: str, value: str, text: str) -> Any:
    if name in _TRUTHS:
        if value.lower() not in ("true", "false"):
            raise InputError(f"--set {text!r}: {name} is true or false")
        return value.lower() == "true"
    if name in _TEXTS:
        return value
    number = plain_number(value)
    if name in _WHOLE:
        least = _WHOLE[name]
        if not isinstance(number, int) or not least <= number <= _LARGEST:
            raise InputError(f"--set {text!r}: {name} is a whole number, {least} or more")
    return number


def plain_number(text: str) -> Any:
    """Return a text as the number or truth that it writes, else the text itself."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            number = kind(text)
        except ValueError:
            continue
        return number if math.isfinite(number) else text
    return text
