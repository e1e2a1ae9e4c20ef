"""What commands share: settings of the form NAME=VALUE, and JSON."""

from __future__ import annotations

import importlib
import json
import math
import os
import re
import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from isolaw.errors import IsolawError

# What a terminal would obey or could not print: control characters, those that turn the direction of what
# follows, halves of a character. Our own line breaks go on with an indented line; a name's need not.
_UNSHOWN = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]|\n(?! )"
)


def shown(text: str) -> str:
    r"""Return a text as it may stand on a terminal, whatever names and logs had in them.

    >>> print(shown("a\x1b[31m\n  b"))
    a\u001b[31m
      b
    """
    return _UNSHOWN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def pairs(values: Iterable[str], option: str) -> dict[str, str]:
    """Return ``NAME=VALUE`` options as a dictionary; a usage error names the one that is not."""
    out = {}
    for value in values:
        name, equals, rest = value.partition("=")
        if not equals or not name.strip() or not rest.strip():
            raise click.UsageError(f"{option} {value!r}: accepted: NAME=VALUE")
        out[name.strip()] = rest.strip()
    return out


def constants(values: Iterable[str], option: str) -> dict[str, Any]:
    """Return ``NAME=VALUE`` options with numbers as numbers."""
    return {name: _number(text) for name, text in pairs(values, option).items()}


def _number(text: str) -> Any:
    for kind in (int, float):
        try:
            number = kind(text)
        except ValueError:
            continue
        return number if math.isfinite(number) else text
    return text


def print_json(value: Any) -> None:
    """Print JSON to standard output; NaN is a defect, not a value."""
    text = json.dumps(value, indent=1, allow_nan=False, ensure_ascii=False)
    click.echo("\n".join(shown(line) for line in text.split("\n")))


@contextmanager
def interruptible() -> Iterator[None]:
    """While entered, Ctrl-C is an exception: what was started, and folders of the moment, end with it."""
    before = signal.getsignal(signal.SIGINT)
    mine = threading.current_thread() is threading.main_thread() and callable(before)
    if mine:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        if mine:
            signal.signal(signal.SIGINT, before)


def note(text: str) -> None:
    """Print a note to standard error."""
    click.echo(shown(text), err=True)


@contextmanager
def noted(notes: Iterable[str]) -> Iterator[None]:
    """Print what was noted of the runs where a fit of them fails; a law has it among its flags."""
    try:
        yield
    except IsolawError:
        for text in notes:
            note(f"note: {text}")
        raise


def announce_compilation(module: str = "isolaw.fits.curves.kernel", what: str = "solver") -> None:
    """Say that the first use after an installation compiles a kernel, which takes a while."""
    package, _, name = module.rpartition(".")
    cache = Path(importlib.import_module(package).__path__[0]) / "__pycache__"
    if os.access(cache, os.W_OK) and not any(cache.glob(f"{name}.*.nbi")):
        note(f"note: compiling the {what}, once after an installation: about ten seconds")
