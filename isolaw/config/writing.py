"""Format the data of a sweep file as TOML."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def toml_text(data: Mapping[str, Any], prefix: str = "") -> str:
    """Return a mapping of tables as TOML; omit keys with the value None.

    >>> data = {"sweep": {"compute": 1000, "seeds": [0, 1]}, "bandit": {"histograms": {"a b": "x"}}}
    >>> print(toml_text(data))
    [sweep]
    compute = 1000
    seeds = [0, 1]
    <BLANKLINE>
    [bandit]
    <BLANKLINE>
    [bandit.histograms]
    "a b" = "x"
    <BLANKLINE>
    """
    parts = []
    for name, section in data.items():
        path = f"{prefix}{toml_key(name)}"
        values = {k: v for k, v in section.items() if v is not None and not isinstance(v, Mapping)}
        tables = {k: v for k, v in section.items() if isinstance(v, Mapping)}
        lines = [f"[{path}]", *(f"{toml_key(key)} = {toml_value(value)}" for key, value in values.items())]
        parts.append("\n".join(lines) + "\n")
        if tables:
            parts.append(toml_text(tables, f"{path}."))
    return "\n".join(parts)


def toml_key(name: str) -> str:
    """Return a key as TOML, in quotation marks if TOML requires them."""
    return name if _BARE.fullmatch(name) else _text(name)


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
    return _text(value) if isinstance(value, str) else repr(value)


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
