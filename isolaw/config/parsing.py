"""Settings checked against their models: every fault at once, each with its line and nearest name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from isolaw.errors import InputError, Issue, SpecError, nearest


def read_text(path: str | Path) -> str:
    """Return a text file's content, or raise `InputError` naming the file and the reason."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not a text file (byte {error.start} is not UTF-8)") from None
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None


# What pydantic calls the members of a union.
_KINDS = {"str", "int", "bool", "float"}

Model = TypeVar("Model", bound=BaseModel)


def parse_section(model: type[Model], data: Mapping[str, Any], prefix: str = "", source: str = "") -> Model:
    """Validate ``data`` as ``model``; raise `SpecError` naming every key below ``prefix``."""
    try:
        return model.model_validate(dict(data))
    except ValidationError as error:
        problems = issues_of(error, prefix, model)
    except SpecError as error:
        problems = error.issues
    raise SpecError(problems, source=source) from None


def issues_of(error: ValidationError, prefix: str, model: type[BaseModel]) -> list[Issue]:
    """Return pydantic's findings as problems, keys named below ``prefix``."""
    out: list[Issue] = []
    tried = None
    for item in error.errors():
        *place, last = path = [str(part) for part in item["loc"] if not isinstance(part, int)] or [""]
        if last in _KINDS:  # one of several that a value may be of, and is of none
            path = place
        where = ".".join(part for part in (prefix, *path) if part) or "value"
        if last in _KINDS and tried == path:
            accepted = f"{out[-1].accepted} or {_expectation(item)}"
            out[-1] = Issue(where, found=item["input"], accepted=accepted)
            continue
        tried = path if last in _KINDS else None
        if item["type"] == "extra_forbidden":
            valid = _fields_at(model, path[:-1])
            close = nearest(path[-1], valid)
            accepted = "" if close else ", ".join(valid)
            out.append(Issue(where, "unknown key", found=item["input"], accepted=accepted, nearest=close))
        else:
            out.append(Issue(where, found=item["input"], accepted=_expectation(item)))
    return out


def _expectation(item: Any) -> str:
    message = str(item["msg"]).removeprefix("Input should be ").removeprefix("Value error, ")
    message = re.sub(r"^a valid integer.*", "a whole number", message)
    return re.sub(r"^a valid (\w+).*", r"a \1", message)


def located(error: SpecError, path: str | Path, settings: Iterable[str] = ()) -> SpecError:
    """Return ``error`` with the file's name and, where its keys can be found there, their lines.

    Keys of ``settings`` (``section.key=value``) took the place of what the file says.
    """
    text, keys = read_text(path), [setting.partition("=")[0].strip() for setting in settings]
    problems = []
    for problem in error.issues:
        if any(f"{key}.".startswith(f"{problem.where}.") for key in keys):
            problems.append(replace(problem, where=f"{problem.where} (set by an option)"))
        else:
            problems.append(_with_line(problem, text))
    return SpecError(problems, str(path), error.rest)


def _fields_at(model: type[BaseModel], path: list[str]) -> list[str]:
    for part in path:
        inner = model.model_fields[part].annotation if part in model.model_fields else None
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            return []
        model = inner
    return list(model.model_fields)


def _with_line(problem: Issue, text: str) -> Issue:
    """Add the line of the file on which the key stands, where it can be found."""
    *sections, key = problem.where.split(".")
    section = ""
    for number, line in enumerate(text.splitlines(), 1):
        header = re.match(r"\s*\[\s*([\w.@\"-]+)\s*\]", line)
        if header:
            section = header[1]
            if not sections and section == key:
                return replace(problem, where=f"line {number}, [{key}]")
        elif re.match(rf"\s*\"?{re.escape(key)}\"?\s*=", line) and section == ".".join(sections):
            return replace(problem, where=f"line {number}, {problem.where}")
    return problem
