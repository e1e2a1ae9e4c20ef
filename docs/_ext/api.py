"""Docstrings as the reference shows them: equations stay as they are typed, and ``n*`` is no emphasis."""

from __future__ import annotations

import re
from typing import Any

from sphinx.application import Sphinx

_LITERAL = re.compile(r"(``.+?``|`[^`]+`)")


def prepare(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Rewrite one docstring in place, before numpydoc reads it.

    An indented paragraph before the first section is a literal block. A doctest behind a section gets the
    heading ``Examples``, which numpydoc needs to tell it from the section.
    """
    out: list[str] = []
    sections = literal = example = named = False
    for number, line in enumerate(lines):
        after_blank = number == 0 or not lines[number - 1].strip()
        if re.fullmatch(r"-{3,}", line):
            sections, named = True, named or lines[number - 1] == "Examples"
        if line.startswith(">>>") and after_blank and sections and not named:
            out += ["Examples", "--------"]
            named = True
        example = line.lstrip().startswith(">>>") or (example and bool(line.strip()))
        if line.strip() and not line.startswith("    "):
            literal = line.endswith("::")
        elif line.strip() and after_blank and not literal and not sections and not example:
            out += ["::", ""]
            literal = True
        out.append(line if literal or example else _escaped(line))
    lines[:] = out


def _escaped(line: str) -> str:
    """``*`` and ``|`` of the text as they are: no docstring uses them as markup."""
    parts = _LITERAL.split(line)
    return "".join(part if i % 2 else re.sub(r"([*|])", r"\\\1", part) for i, part in enumerate(parts))


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", prepare, priority=100)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
