"""Validate settings against their models: report all issues, each with its line and nearest valid name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from isolaw.documents.reading import read_text
from isolaw.errors import MOST_ISSUES, Issue, SpecError, nearest

# pydantic's names for the members of a union.
_KINDS = {"str", "int", "bool", "float"}

Validated = TypeVar("Validated", bound=BaseModel)


def parse_section(
    model: type[Validated], data: Mapping[str, Any], prefix: str = "", source: str = ""
) -> Validated:
    """Validate ``data`` as ``model``; raise `SpecError` with an issue for each wrong key below ``prefix``.

    Validators find the ``source``, a file, in their context.
    """
    try:
        return model.model_validate(dict(data), context={"source": source})
    except ValidationError as error:
        raise SpecError(_issues(error, prefix, model), source=source) from None


def _issues(error: ValidationError, prefix: str, model: type[BaseModel]) -> list[Issue]:
    issues: dict[tuple[str, str], Issue] = {}
    for index, fault in enumerate(error.errors(include_url=False)):
        path = [str(part) for part in fault["loc"] if not isinstance(part, int)]
        is_union = bool(path) and path[-1] in _KINDS  # none of several accepted types: report one issue
        if is_union:
            path.pop()
        where = ".".join(part for part in (prefix, *path) if part) or "value"
        key = (where, "" if is_union else str(index))
        if fault["type"] == "extra_forbidden":
            fields = _fields_at(model, path[:-1])
            suggestion = nearest(path[-1], fields) if len(issues) < MOST_ISSUES else ""
            accepted = "" if suggestion else ", ".join(fields)
            issues[key] = Issue(where, "unknown key", fault["input"], accepted, suggestion)
        elif fault["type"] == "missing":
            issues[key] = Issue(where, "a required key is missing")
        else:
            accepted = f"{issues[key].accepted} or " if key in issues else ""
            issues[key] = Issue(where, found=fault["input"], accepted=accepted + _expectation(fault))
    return list(issues.values())


def _expectation(fault: Any) -> str:
    message = str(fault["msg"]).removeprefix("Input should be ").removeprefix("Value error, ")
    message = re.sub(r"^a valid integer.*", "a whole number", message)
    message = re.sub(r"^a valid (tuple|list|set|frozenset)\b.*", "a list", message)
    message = re.sub(r"^a valid (dictionary|mapping)\b.*", "a table", message)
    return re.sub(r"^a valid (\w+).*", r"a \1", message)


def with_lines(error: SpecError, path: str | Path, settings: Iterable[str] = ()) -> SpecError:
    """Return ``error`` with the file's name, and with a line number for each wrong key found in the file.

    Keys in ``settings`` (``section.key=value``) override the file, so their issues have no line number.
    """
    text, keys = read_text(path), [setting.partition("=")[0].strip() for setting in settings]
    issues, names_and_lines = [], _names_and_lines(text)
    for issue in error.issues:
        if any(f"{key}.".startswith(f"{issue.where}.") for key in keys):
            issues.append(replace(issue, where=f"{issue.where} (set by an option)"))
        else:
            section, _, key = issue.where.rpartition(".")
            where, line = names_and_lines.get((section, key), (issue.where, issue.line))
            issues.append(replace(issue, where=where, line=line))
    return SpecError(issues, str(path))


def _fields_at(model: type[BaseModel], path: list[str]) -> list[str]:
    for name in path:
        field_type = model.model_fields[name].annotation if name in model.model_fields else None
        if not (isinstance(field_type, type) and issubclass(field_type, BaseModel)):
            return []
        model = field_type
    return list(model.model_fields)


def _names_and_lines(text: str) -> dict[tuple[str, str], tuple[str, int]]:
    """Return, for each section and key that a file sets, its name in messages and its first line."""
    places: dict[tuple[str, str], tuple[str, int]] = {}
    section = ""
    for number, line in enumerate(text.splitlines(), 1):
        header = re.match(r"\s*\[\s*([\w.@\"-]+)\s*\]", line)
        name, equals, _ = line.partition("=")
        if header:
            section = header[1]
            places.setdefault(("", section), (f"[{section}]", number))
        elif equals:
            key = name.strip().removeprefix('"').removesuffix('"')
            places.setdefault((section, key), (f"{section}.{key}" if section else key, number))
    return places
