"""The table and the pictures of `isolaw replicate`, from a document written by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from isolaw.errors import DataError
from isolaw.report.figures.findings import figures, write
from isolaw.report.page import render_document
from isolaw.report.text.findings import document as shown
from isolaw.report.text.findings import effect, markdown


def _effect(value: float | None, unit: str = "doublings of n", verdict: str = "yes") -> dict[str, Any]:
    ends = None if value is None else [value - 0.5, value + 0.5]
    return {"label": "what is compared", "unit": unit, "value": value, "interval": ends, "verdict": verdict}


def _row(key: str, name: str, verdict: str, own: dict[str, Any], tolerance: Any = None) -> dict[str, Any]:
    return {
        "finding": key, "set": name, "statement": "n* rises | and saturates", "verdict": verdict,
        "effect": own,
        "effects": [own], "tolerance": tolerance, "notes": ["n* from 8 to 64"],
    }  # fmt: skip


def _curve(points: int = 3) -> dict[str, list[float | None]]:
    up = [2.0 + i for i in range(points)]
    return {"value": [None, *up[1:]], "low": [None, *up[1:]], "high": [None, *(v + 1 for v in up[1:])]}


@pytest.fixture
def document() -> dict[str, Any]:
    levels, both = [4, 8, 16], {"easy": _curve(), "hard": _curve()}
    along = {"x": [1e4, 1e5, 1e6], "levels": levels}
    pairs = {name: {"a": _curve(), "b": _curve()} for name in both}
    steps = {label: _curve() for label in ("n = 256", "decoupled", "n = 64")}
    return {
        "format": "isolaw.findings/1", "simulated": True,
        "model": "interference", "preset": "X", "constants": {"sigma2": 70.0},
        "compute": 1_000_000, "problems_per_batch": 32, "rollouts_per_problem": levels, "n_train": 500,
        "seeds": [100, 101], "failed_runs": [],
        "findings": [
            _row("F1", "easy", "partly", _effect(2.04), _effect(1.0, verdict="no")),
            _row("F2", "both", "no", _effect(None)),
            _row("F5b", "hard", "yes", _effect(0.0213, "share of problems")),
        ],
        "jitter": None,
        "pictures": {
            "F1": {**along, "curves": {name: {"sqrt": _curve(), "retuned": _curve()} for name in both}},
            "F2": {"levels": levels, "curves": both},
            "F3": {"levels": levels, "curves": pairs},
            "F4": {
                "levels": levels, "batches": {"16": _curve(), "32": _curve()}, "batch": 256,
                "x": along["x"], "fixed_levels": levels, "curves": both,
            },
            "F5a": {**along, "curves": {"constant": _curve(), "sqrt": _curve()}},
            "F5b": {"levels": levels, "curves": pairs},
            "F6": {**along, "curves": {"32": _curve(), "500": _curve()}},
            "F7": {"x": [1.0, 10.0, 100.0], "curves": dict.fromkeys(both, steps)},
        },
    }  # fmt: skip


def test_the_table(document: dict[str, Any]) -> None:
    text = shown(document).lines()
    assert text[0].startswith(
        "Simulated runs. interference, preset X with sigma2 = 70: 2 seeds from 100, B_p = 32, n = 4 to 16"
    )
    head, first, second, third = text[2:6]
    assert head.split() == ["finding", "set", "effect,", "95", "%", "interval", "by", "tolerance", "verdict"]
    assert first.split() == ["F1", "easy", "+2.0", "(+1.5", "to", "+2.5)", "+1.0", "no", "partly"]
    assert second.split() == ["F2", "both", "not", "measured", "no"]
    assert "+0.021 (-0.479 to +0.521)" in third
    assert "F1 easy: n* rises | and saturates" in text
    assert "  n* from 8 to 64" in text


def test_shares_over_jittered_presets(document: dict[str, Any]) -> None:
    document["jitter"] = {"presets": 100, "verdicts": {"F1 easy": {"yes": 71, "partly": 12, "no": 17}}}
    text = shown(document).lines()
    assert text[2].endswith("jittered: yes, partly")
    assert text[3].endswith("71, 12 of 100")
    assert text[4].endswith("no")


def test_the_same_as_a_page(document: dict[str, Any], tmp_path: Path) -> None:
    text = markdown(document, tmp_path).read_text()
    assert text.startswith("Simulated runs. ")
    assert render_document(shown(document)).count("<figure>") == len(document["pictures"])
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len(rows) == 2 + 3
    assert len({row.replace("\\|", "").count("|") for row in rows}) == 1
    assert "n\\* rises \\| and saturates" in rows[2]


def test_numbers() -> None:
    own = {"unit": "doublings of n", "value": -0.04, "interval": [-1.0, 0.96]}
    assert effect(own) == "+0.0 (-1.0 to +1.0)"


def test_a_picture_for_each_finding(document: dict[str, Any], tmp_path: Path) -> None:
    drawn = figures(document)
    assert list(drawn) == ["F1", "F2", "F3", "F4", "F5a", "F5b", "F6", "F7"]
    assert drawn["F1"].get_suptitle() == "simulated runs: F1 easy: partly"
    assert [len(figure.axes) for figure in drawn.values()] == [2, 1, 2, 3, 1, 2, 1, 2]
    # n* is kept as its log2: the last point, 4, is n* = 16.
    assert drawn["F1"].axes[0].lines[0].get_ydata()[-1] == 16
    paths = write(document, tmp_path)
    assert [p.name for p in paths] == [f"{name}.png" for name in drawn]
    assert all(p.read_bytes()[:4] == b"\x89PNG" for p in paths)


def test_a_folder_that_cannot_be_written(document: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "figures").write_text("a file")
    with pytest.raises(DataError, match="cannot write figures"):
        write(document, tmp_path)
