"""Read TOML and JSON files within limits on size, nesting, key length and numbers.

Reading any file takes at most seconds and a few hundred megabytes. The result is the data, or an `InputError`
that names the file and the fault.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from isolaw.errors import InputError
from isolaw.files import open_file

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]|[\ud800-\udfff]")


def toml_text(data: Mapping[str, Any], prefix: str = "") -> str:
    """Return a mapping of tables as TOML; omit keys with the value None.

    >>> data = {"sweep": {"compute": 1000, "seeds": [0, 1]}, "bandit": {"parameters": {"a b": "x"}}}
    >>> print(toml_text(data))
    [sweep]
    compute = 1000
    seeds = [0, 1]
    <BLANKLINE>
    [bandit]
    <BLANKLINE>
    [bandit.parameters]
    "a b" = "x"
    <BLANKLINE>
    """
    blocks = []
    for name, section in data.items():
        path = f"{prefix}{toml_key(name)}"
        values = {k: v for k, v in section.items() if v is not None and not isinstance(v, Mapping)}
        tables = {k: v for k, v in section.items() if isinstance(v, Mapping)}
        lines = [f"[{path}]", *(f"{toml_key(k)} = {toml_value(v)}" for k, v in values.items())]
        blocks.append("\n".join(lines) + "\n")
        if tables:
            blocks.append(toml_text(tables, f"{path}."))
    return "\n".join(blocks)


def toml_key(name: str) -> str:
    """Return a key as TOML, in quotation marks if TOML requires them."""
    return name if _BARE_KEY.fullmatch(name) else _quoted(name)


def toml_value(value: Any) -> str:
    """Return a boolean, number, text, list or mapping as a TOML value on one line.

    >>> toml_value({"column": "val acc", "percent": True})
    '{ column = "val acc", percent = true }'
    """
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{toml_key(key)} = {toml_value(item)}' for key, item in value.items())} }}"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml_value, value))}]"
    return _quoted(value) if isinstance(value, str) else repr(value)


def _quoted(value: str) -> str:
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


LARGEST = 64 * 2**20  # bytes of a JSON document or text file
LARGEST_TOML = 250_000  # characters; tomllib reads about a megabyte per second
DEEPEST_KEY = 10  # parts of a TOML key; tomllib takes quadratic time in this number
DEEPEST = 40  # levels of nesting
LARGEST_INTEGER = 64  # bits

# The pattern starts only where a key can start and uses possessive quantifiers, so its time is linear.
_DEEP_KEY = re.compile(
    r"""(?<![^\s\[{,])(?:(?:[A-Za-z0-9_-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+)"""
    f"{{{DEEPEST_KEY}}}"
)


def read_bytes(path: str | Path, largest: int = LARGEST) -> bytes:
    """Return the bytes of a file; raise `InputError` if it is missing, too large, or not a regular file."""
    path = Path(path)
    try:
        if path.is_dir():
            raise InputError(f"{path}: found a directory; expected a file")
        with open_file(path) as file:
            content = file.read(largest + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise InputError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    if len(content) > largest:
        raise InputError(f"{path}: found more than {largest:,} bytes; expected a smaller file")
    return content


def read_text(path: str | Path, largest: int = LARGEST) -> str:
    """Return the content of a text file; raise `InputError` if the file cannot be read or is not UTF-8."""
    try:
        return read_bytes(path, largest).decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not a text file (byte {error.start} is not UTF-8)") from None


def read_toml(path: str | Path) -> dict[str, Any]:
    """Return the content of a TOML file; raise `InputError` if it is not TOML."""
    return parse_toml(read_text(path, 4 * LARGEST_TOML), path)


def parse_toml(text: str, source: str | Path) -> dict[str, Any]:
    """Return the content of a TOML text. ``source`` is its name in error messages."""
    if len(text) > LARGEST_TOML:
        raise InputError(f"{source}: a TOML file of more than {LARGEST_TOML:,} characters")
    if deep_key := _DEEP_KEY.search(text):
        raise InputError(f"{source}: a TOML key of more than {DEEPEST_KEY} parts: {deep_key[0][:40]}…")
    try:
        data = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise InputError(f"{source}: not valid TOML: {reason[:300]}") from None
    _check_values(data, source)
    return data


def read_json(path: str | Path) -> dict[str, Any]:
    """Return the object in a JSON file; raise `InputError` if the file contains anything else."""
    content = read_bytes(path)
    try:
        return parse_json(content, path)
    except ValueError as error:
        raise InputError(f"{path}: not a JSON object ({error})") from None


def parse_json(text: bytes | str, source: str | Path = "") -> dict[str, Any]:
    """Return the object in a JSON text, in which `whole_characters` replaces halves of surrogate pairs.

    Raises `ValueError` for anything else, deep nesting, NaN or infinity, and `InputError` for deep nesting or
    large integers if ``source`` is given.
    """
    try:
        data = json.loads(whole_characters(text), parse_constant=_reject_constant, parse_float=_finite_float)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(data, dict):
        raise ValueError("not a JSON object")
    _check_values(data, source)
    return data


def whole_characters(text: bytes | str) -> str:
    r"""Return a JSON text in which half of a surrogate pair, which no file can store, is a question mark.

    Raises `ValueError` or `RecursionError` if the text is not JSON.

    >>> whole_characters('{"note": "\\ud800"}')
    '{"note": "?"}'
    """
    text = text if isinstance(text, str) else text.decode(json.detect_encoding(text), "surrogatepass")
    if not _SURROGATE.search(text):
        return text
    # Written again, the pairs are characters, and only halves of them are left as surrogates.
    return json.dumps(json.loads(text), ensure_ascii=False).encode("utf-8", "replace").decode()


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite_float(text: str) -> float:
    if math.isfinite(number := float(text)):
        return number
    raise ValueError(f"{text[:40]} is not a finite number")


def _check_values(data: Any, source: str | Path) -> None:
    """Raise `InputError` (`ValueError` without a source) for deep nesting or large integers."""
    level: list[Any] = [data]
    text = f"found more than {DEEPEST} levels of nesting"
    for _ in range(DEEPEST):
        next_level: list[Any] = []
        for value in level:
            items: Iterable[Any] = value.values() if isinstance(value, Mapping) else value
            for item in items:
                if isinstance(item, dict | list):
                    next_level.append(item)
                elif type(item) is int and item.bit_length() > LARGEST_INTEGER:
                    text = f"found an integer of more than {LARGEST_INTEGER} bits"
                    raise InputError(f"{source}: {text}") if source else ValueError(text)
        if not next_level:
            return
        level = next_level
    raise InputError(f"{source}: {text}") if source else ValueError(text)
