"""Judge a simulator by the paper's findings: ``python -m benchmarks.replication COMMAND``

judge   run the battery, print the verdicts; --out DIR keeps runs, figures and findings.json
table   write findings.json next to this file from DIR/findings.json, and the table in docs/simulators.md
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.replication import figures
from benchmarks.replication.battery import FIRST_SEED, SEEDS, battery
from benchmarks.replication.jitter import check, study
from benchmarks.replication.judging import judge, save
from isolaw.errors import IsolawError
from isolaw.evidence import columns

SUMMARY = Path(__file__).with_name("findings.json")
DOCS = Path(__file__).parents[2] / "docs" / "simulators.md"
MARKS = "<!-- published -->", "<!-- /published -->"
_KEPT = ("preset", "constants", "backend_version", "seeds", "jitter")
_OF_A_FINDING = ("finding", "set", "effect", "tolerance", "verdict")
_PLACES = {"doublings of n": 1, "reward": 3, "share of problems": 3}


def findings(
    preset: str | None = None,
    seeds: int = SEEDS,
    settings: Iterable[str] = (),
    out: Path | None = None,
    jobs: int = 1,
    jitter: int = 0,
    progress: Callable[[str, float], None] = lambda task, share: None,
) -> dict[str, Any]:
    """Test the findings F1 to F7 on a simulator, and return the document of `judge`.

    ``out`` stores the runs, and a second call continues them. ``jitter`` is the number of similar presets to
    judge as well. ``progress`` is called with the current task and the share of it done since the last call.
    Raises `SpecError`, `StoreError` or `InputError` before it runs anything.
    """
    chosen = battery(preset, range(FIRST_SEED, FIRST_SEED + seeds), settings)
    check(chosen, jitter)
    document = judge(chosen, out, jobs, partial(progress, "the battery"))
    if jitter:
        document["jitter"] = study(chosen, jitter, out, jobs, partial(progress, f"{jitter} more presets"))
    return document


def text(document: Mapping[str, Any]) -> list[str]:
    """Return the table of verdicts, then the statement and the notes of each finding."""
    rows = [
        ["finding", "set", "effect, 95 % interval", "by tolerance", "verdict", "similar presets: yes, partly"]
    ]
    for finding in document["findings"]:
        tolerance = finding["tolerance"]
        by_tolerance = "" if tolerance is None else f"{_value(tolerance)} {tolerance['verdict']}"
        row = [
            finding["finding"],
            finding["set"],
            effect(finding["effect"]),
            by_tolerance,
            finding["verdict"],
        ]
        rows.append([*row, _counts(document, finding)])
    lines = ["Simulated runs.", *columns(rows if document["jitter"] else [row[:-1] for row in rows])]
    for finding in document["findings"]:
        lines.append(f"{finding['finding']} {finding['set']}: {finding['statement']}")
        lines += [f"  {note}" for note in (finding["effect"]["label"], *finding["notes"])]
    return lines + [f"failed: {failure}" for failure in document["failed_runs"]]


def lines(summary: Mapping[str, Any]) -> list[str]:
    """Return the table of docs/simulators.md."""
    head = ["finding", "set", "effect, 95 % interval", "verdict", "members: yes, partly"]
    rows = [
        [f["finding"], f["set"], effect(f["effect"]), f["verdict"], _counts(summary, f)]
        for f in summary["findings"]
    ]
    first, *others = (f"| {' | '.join(row)} |" for row in (head, *rows))
    return [first, "|---" * len(head) + "|", *others]


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


def _counts(document: Mapping[str, Any], finding: Mapping[str, Any]) -> str:
    """Return how many similar presets have the finding, empty if none was judged for it."""
    jitter = document["jitter"] or {}
    counts = jitter.get("verdicts", {}).get(f"{finding['finding']} {finding['set']}")
    return "" if counts is None else f"{counts['yes']}, {counts['partly']} of {jitter['presets']}"


def write_table(folder: Path) -> None:
    """Write the summary of ``folder/findings.json``, and the table of docs/simulators.md."""
    document = json.loads((folder / "findings.json").read_text(encoding="utf-8"))
    summary: dict[str, Any] = {name: document[name] for name in _KEPT}
    summary["findings"] = [{name: f[name] for name in _OF_A_FINDING} for f in document["findings"]]
    SUMMARY.write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    before, after = DOCS.read_text(encoding="utf-8").split(MARKS[0])
    rows = "\n".join([MARKS[0], "", *lines(summary), "", MARKS[1]])
    DOCS.write_text(before + rows + after.split(MARKS[1])[1], encoding="utf-8")


def main(words: list[str] | None = None) -> None:
    """Run a command."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.replication",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    judging = commands.add_parser("judge")
    judging.add_argument("--preset", help="name or file of a preset; by default the simulator's first")
    judging.add_argument("--seeds", type=int, default=SEEDS)
    judging.add_argument("--set", dest="settings", action="append", default=[], metavar="SECTION.KEY=VALUE")
    judging.add_argument(
        "--jitter", type=int, default=0, metavar="PRESETS", help="also judge similar presets"
    )
    judging.add_argument("--out", type=Path)
    # More threads than cores, since some wait for the disk.
    judging.add_argument("--jobs", type=int, default=(os.cpu_count() or 1) + 2)
    commands.add_parser("table").add_argument("folder", type=Path, metavar="DIR")
    given = vars(parser.parse_args(words))
    if given.pop("command") == "table":
        write_table(given["folder"])
        return
    done: dict[str, float] = {}

    def progress(task: str, share: float) -> None:
        done[task] = done.get(task, 0.0) + share
        print(f"\r{task}: {done[task]:.0%}", end="", flush=True)

    try:
        document = findings(**given, progress=progress)
    except IsolawError as error:
        raise SystemExit(f"error: {error}") from None
    print("\r" + "\n".join(text(document)))
    if given["out"] is not None:
        save(document, given["out"] / "findings.json")
        figures.write(document, given["out"])


if __name__ == "__main__":
    main()
