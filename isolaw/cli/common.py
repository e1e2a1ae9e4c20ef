"""What commands share: settings of the form NAME=VALUE, and JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any

import click


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
    click.echo(json.dumps(value, indent=1, allow_nan=False, ensure_ascii=False))


def note(text: str) -> None:
    """Print a note to standard error."""
    click.echo(text, err=True)
