"""The findings of `isolaw replicate` as a document and as a Markdown table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isolaw.evidence import Simulated
from isolaw.files import replacing
from isolaw.report.document import Bullets, Document, Drawing, Passage, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_HEAD = ("finding", "set", "effect, 95 % interval", "by tolerance", "verdict", "jittered: yes, partly")
_PLACES = {"doublings of n": 1, "reward": 3, "share of problems": 3}


def document(found: Mapping[str, Any]) -> Document:
    """Return the document: the table of findings, then the statement of each. A page also has the figures."""

    @cache
    def drawn() -> Mapping[str, Figure]:
        from isolaw.report.figures.findings import figures

        return figures(found)

    statements = [
        Bullets(
            f"{own['finding']} {own['set']}: {own['statement']}",
            [own["effect"]["label"], *own["notes"]],
            "  ",
        )
        for own in found["findings"]
    ]
    drawings = [Drawing(partial(lambda name: drawn()[name], name), name, "") for name in found["pictures"]]
    passages = [
        Passage("", [_about(found)]),
        Passage("Findings", [Table.of(_rows(found))]),
        Passage("Statements", statements),
        Passage("Figures", drawings),
    ]
    return Document(f"findings on {found['model']}", passages, found)


def markdown(document: Mapping[str, Any], folder: str | Path) -> Path:
    """Write the table to ``findings.md`` in ``folder`` and return its path."""
    path = Path(folder) / "findings.md"
    statements = ["what", *(finding["statement"] for finding in document["findings"])]
    rows = [[*row[:2], what, *row[2:]] for row, what in zip(_rows(document), statements, strict=True)]
    notes = [
        f"- {f['finding']} {f['set']}: {'; '.join(f['notes'])}" for f in document["findings"] if f["notes"]
    ]
    text = [Simulated.of_json(document).first(_about(document)), "", *_markdown(rows), "", *notes]
    with replacing(path) as temporary:
        temporary.write_text("\n".join(text) + "\n", encoding="utf-8")
    return path


def table(document: Mapping[str, Any]) -> list[str]:
    """Return the lines of the Markdown table, without the statements of the findings."""
    return _markdown(_rows(document))


def _markdown(rows: Sequence[Sequence[str]]) -> list[str]:
    cells = [_cells(row) for row in rows]
    return [cells[0], "|" + "---|" * len(rows[0]), *cells[1:]]


def _cells(row: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("n*", "n\\*") for cell in row) + " |"


def _about(d: Mapping[str, Any]) -> str:
    constants = ", ".join(f"{k} = {v:g}" for k, v in d["constants"].items())
    n = d["rollouts_per_problem"]
    return (
        f"{d['model']}, preset {d['preset']}{' with ' if constants else ''}{constants}: "
        f"{len(d['seeds'])} seeds from {d['seeds'][0]}, B_p = {d['problems_per_batch']}, "
        f"n = {n[0]} to {n[-1]}, C up to {d['compute']:,}, D = {d['n_train']}."
    )


def _rows(document: Mapping[str, Any]) -> list[list[str]]:
    """Return the rows of the table, its header first. Only results with ``jitter`` have the last column."""
    jitter = document["jitter"]
    out = [list(_HEAD)]
    if jitter and jitter.get("members"):
        out[0][-1] = "members: yes, partly"
    for finding in document["findings"]:
        counts = (jitter or {}).get("verdicts", {}).get(f"{finding['finding']} {finding['set']}")
        share = "" if counts is None else f"{counts['yes']}, {counts['partly']} of {jitter['presets']}"
        tolerance = finding["tolerance"]
        by = "" if tolerance is None else f"{_value(tolerance)} {tolerance['verdict']}"
        row = [finding["finding"], finding["set"], effect(finding["effect"]), by, finding["verdict"], share]
        out.append(row)
    return out if jitter else [row[:-1] for row in out]


def effect(e: Mapping[str, Any]) -> str:
    """Return an effect and its interval as text.

    >>> effect({"unit": "reward", "value": 0.0213, "interval": [0.01, 0.0326]})
    '+0.021 (+0.010 to +0.033)'
    """
    if e["value"] is None:
        return "not measured"
    low, high = (_signed(v, e["unit"]) for v in e["interval"])
    return f"{_value(e)} ({low} to {high})"


def _value(e: Mapping[str, Any]) -> str:
    return "not measured" if e["value"] is None else _signed(e["value"], e["unit"])


def _signed(value: float, unit: str) -> str:
    places = _PLACES[unit]
    return f"{round(value, places) + 0.0:+.{places}f}"
