"""Run the stored commands in one process, and compare what they print with what they printed."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import io
import json
import os
import re
import shlex
import tomllib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from isolaw.cli import run

from . import inputs

HERE = Path(__file__).parent
GROUPS: dict[str, dict[str, str]] = tomllib.loads((HERE / "commands.toml").read_text())
WORDS = GROUPS.pop("words")
_NUMBER = re.compile(r"(?<![\w.])-?\d+\.\d+(?:e[+-]?\d+)?|(?<![\w.])-?\d+e[+-]?\d+|(?<![\w.])-?\.\d+")
_LOOSE = re.compile(r"[\s#]*-?[\d.,]*\d(?:e[+-]?\d+)?(?:\s+not identified)?[ ]*")
# What differs from run to run, or from machine to machine, and what stands for it.
_FLAT = re.compile(r"\[[^\[\]{}]*\]")  # a list of values, which takes one line
_UNSTABLE = [
    (re.compile(r"(?<![\d.])\b[0-9a-f]{12,64}\b"), "<hash>"),  # not the digits behind a number's point
    (re.compile(r"\b\d+(\.\d+)? (s|ms|seconds)\b"), "<seconds> s"),
    (re.compile(r"(\"(?:wall_s|bytes|seconds|written|version|heartbeat\w*)\": )[^,\n]*"), r"\1<varies>"),
    (re.compile(r"\b\d+(\.\d+)? (kB|MB|bytes)\b"), "<size>"),
    (re.compile(r"^note: compiling .*\n", re.M), ""),
]


def few_budgets(patch: pytest.MonkeyPatch) -> None:
    """Pages whose slider has three stops to the decade instead of 24: each is a prediction."""
    module = importlib.import_module("isolaw.report.page.budgets")  # its function has its name
    patch.setattr(module, "_E6", (1.0, 2.0, 5.0))


def in_turn(patch: pytest.MonkeyPatch) -> None:
    """Fits on one thread each: tests go side by side already, and the numbers are the same."""
    from isolaw.fits.surface import estimate

    def each(function: Callable[[Any], Any], items: Iterable[Any], rows: int) -> list[Any]:
        return list(map(function, items))

    patch.setattr(estimate, "each", each)


def printed(command: str) -> str:
    """One command's exit code, standard output and standard error, as they are stored."""
    out, err = io.StringIO(), io.StringIO()
    for name, meaning in WORDS.items():
        command = command.replace(f"{{{name}}}", meaning)
    runs = sorted(path.name for path in Path("runs/runs").glob("*")) or ["none"]
    words = shlex.split(command.replace("{run}", runs[0]))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(words)
    text = out.getvalue()
    if command.endswith("--json") and text:
        text = json.dumps(json.loads(text), indent=1, ensure_ascii=False) + "\n"
        text = _FLAT.sub(lambda found: re.sub(r"\n *", " ", found[0]), text)
    parts = [f"$ isolaw {command}\nexit code {code}\n"]
    parts += [
        f"--- {name}\n{value}" for name, value in (("stdout", text), ("stderr", err.getvalue())) if value
    ]
    shown = "".join(parts)
    for pattern, instead in _UNSTABLE:
        shown = pattern.sub(instead, shown)
    return shown


def outputs(group: str, folder: Path) -> Iterator[tuple[Path, str]]:
    """Run the commands of a group in ``folder``: where each output is stored, and what is printed now."""
    (folder / "examples").symlink_to(HERE.parents[1] / "examples")
    with pytest.MonkeyPatch.context() as patch, contextlib.chdir(folder):
        few_budgets(patch)
        in_turn(patch)
        patch.setattr(os, "fsync", lambda _: None)
        patch.setenv("COLUMNS", "100")
        inputs.write(folder, group)
        for name, command in GROUPS[group].items():
            text = printed(command).replace(f"{folder.resolve()}/", "")
            yield HERE / group / f"{name}.txt", text


def difference(stored: str, now: str, numbers: bool = True) -> str:
    """A unified diff; empty where the words are the same and the numbers the same to their tolerance.

    Without ``numbers``, neither they nor what rests on them counts: their width, and whether they are known.
    """
    if not numbers and _LOOSE.sub("#", stored) == _LOOSE.sub("#", now):
        return ""
    if numbers and _NUMBER.sub("#", stored) == _NUMBER.sub("#", now):
        pairs = zip(_NUMBER.findall(stored), _NUMBER.findall(now), strict=True)
        if all(close(a, b) for a, b in pairs):
            return ""
    lines = stored.splitlines(), now.splitlines()
    return "\n".join(difflib.unified_diff(*lines, "stored", "now", n=2, lineterm=""))


def close(a: str, b: str) -> bool:
    """Whether two printed numbers are the same to 0.1 %, or to one in the last of their digits."""
    mantissa, _, exponent = min(a, b, key=len).partition("e")
    last = 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))
    return abs(float(a) - float(b)) <= max(1e-3 * abs(float(a)), 1.001 * last if len(a) < 12 else 1e-6)
