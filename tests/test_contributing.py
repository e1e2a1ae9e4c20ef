"""CONTRIBUTING.md names files that exist, and few of them for each task."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
PATH = re.compile(r"`((?:isolaw|tests|docs|fuzz|scripts|requirements|benchmarks)/[\w./]*[\w])`")


def test_every_path_exists() -> None:
    paths = PATH.findall(TEXT)
    assert len(paths) > 30
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_every_name_is_in_the_code() -> None:
    code = "".join(p.read_text("utf-8") for part in ("isolaw", "tests") for p in (ROOT / part).rglob("*.py"))
    names = re.findall(r"`(_?[A-Z]\w+|_?[a-z]+_\w+)`", TEXT)
    assert len(names) > 15
    assert [name for name in names if not re.search(rf"\b{name}\b", code)] == []


def test_ten_tasks_take_three_files_at_most() -> None:
    section = TEXT.split("## Where things are")[1].split("## ")[0]
    rows = [
        line for line in section.splitlines() if line.startswith("| ") and "open" not in line.split("|")[2]
    ]
    assert len(rows) >= 10
    assert all(1 <= len(PATH.findall(row)) <= 3 for row in rows)


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^make ([\w-]+)", TEXT, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
