"""The table of `isolaw findings`, for a terminal and for a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_HEAD = ("finding", "set", "effect, 95 % interval", "by tolerance", "verdict", "jittered: yes, partly")
_PLACES = {"doublings of n": 1, "reward": 3, "share of problems": 3}


def lines(document: Mapping[str, Any]) -> list[str]:
    """Return the table, and under it what each row is about."""
    rows = _rows(document)
    width = [max(len(row[i]) for row in [_HEAD, *rows]) for i in range(len(_HEAD))]
    keep = [i for i in range(len(_HEAD)) if i != 5 or document["jitter"]]

    def line(row: Sequence[str]) -> str:
        return "  ".join(row[i].ljust(width[i]) for i in keep).rstrip()

    out = [*_about(document), "", line(_HEAD), *(line(row) for row in rows), ""]
    for finding in document["findings"]:
        out.append(f"{finding['finding']} {finding['set']}: {finding['statement']}")
        out.append(f"  {finding['effect']['label']}")
        out += [f"  {text}" for text in finding["notes"]]
    return out


def markdown(document: Mapping[str, Any], folder: str | Path) -> Path:
    """Write the table as ``findings.md``."""
    path = Path(folder) / "findings.md"
    keep = [i for i in range(len(_HEAD)) if i != 5 or document["jitter"]]
    head = ["finding", "set", "what", *(_HEAD[i] for i in keep[2:])]
    text = [*_about(document), "", _cells(head), "|" + "---|" * len(head)]
    for finding, row in zip(document["findings"], _rows(document), strict=True):
        text.append(_cells([row[0], row[1], finding["statement"], *(row[i] for i in keep[2:])]))
    notes = [
        f"- {f['finding']} {f['set']}: {'; '.join(f['notes'])}" for f in document["findings"] if f["notes"]
    ]
    path.write_text("\n".join([*text, "", *notes]) + "\n", encoding="utf-8")
    return path


def _cells(row: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("n*", "n\\*") for cell in row) + " |"


def _about(document: Mapping[str, Any]) -> list[str]:
    d = document
    constants = ", ".join(f"{k} = {v:g}" for k, v in d["constants"].items())
    n = d["rollouts_per_problem"]
    return [
        f"{d['model']}, preset {d['preset']}" + (f" with {constants}" if constants else "") + ": "
        f"{len(d['seeds'])} seeds from {d['seeds'][0]}, B_p = {d['problems_per_batch']}, "
        f"n = {n[0]} to {n[-1]}, C up to {d['compute']:,}, D = {d['n_train']}."
    ]


def _rows(document: Mapping[str, Any]) -> list[tuple[str, ...]]:
    jitter = document["jitter"]
    out: list[tuple[str, ...]] = []
    for finding in document["findings"]:
        counts = (jitter or {}).get("verdicts", {}).get(f"{finding['finding']} {finding['set']}")
        share = "" if counts is None else f"{counts['yes']}, {counts['partly']} of {jitter['presets']}"
        tolerance = finding["tolerance"]
        out.append(
            (
                finding["finding"],
                finding["set"],
                effect(finding["effect"]),
                "" if tolerance is None else f"{_value(tolerance)} {tolerance['verdict']}",
                finding["verdict"],
                share,
            )
        )
    return out


def effect(e: Mapping[str, Any]) -> str:
    """Return an effect with its interval.

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
