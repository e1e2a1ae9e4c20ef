"""Other people's logs, compared with a parse without isolaw's code: python benchmarks/survey.py LIST.toml

A person downloads public files and lists them; the repository keeps none of them. For each set, isolaw reads
the paths as they are (round 1) and, if it needs more, with the person's settings (round 2)::

    [[set]]
    source = "owner/name: logs/train.log"    # where the files are from
    what = "multi-turn; veRL, console"
    paths = ["name/train.log"]               # relative to the list
    set = ["n=8"]                            # round 2: as of `isolaw read --set`
    columns = {}                             # round 2, for tables; also `metric`
    [[set.truth]]                            # what a run's curve is
    run = "*"                                # a glob of its name
    curve = "train: reward"                  # isolaw's evaluation set and metric
    file = "name/train.log"
    form = "verl"                            # verl, dicts, records, csv, html, lines
    key = "critic/score/mean"                # of `lines`: a regular expression with the groups step and value
    n = 8                                    # and B_p, from the repository's scripts
    updates = 1                              # between two records, where these have no step (dicts)

``silently wrong`` counts the runs that isolaw calls ready although a value, a step, n or B_p differs from the
truth. --out FILE keeps the outcome as JSON; --table prints a kept outcome as the table of
benchmarks/survey.md.
"""

from __future__ import annotations

import argparse
import ast
import csv
import fnmatch
import json
import math
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from isolaw.errors import IsolawError
from isolaw.readers.found_logs import LogStatus
from isolaw.readers.how_to_read import HowToRead
from isolaw.readers.reading import Reading
from isolaw.readers.survey import survey

Curve = dict[int, float]
EQUAL = 1e-9  # relative


def true_curve(truth: dict[str, Any], folder: Path) -> Curve:
    """Return a curve by step, parsed by plain means; of two values of one step, the later."""
    text = (folder / truth["file"]).read_text("utf-8", errors="replace")
    key, step = truth["key"], truth.get("step", "step")
    return dict(PARSERS[truth["form"]](text, key, step, truth.get("updates", 1)))


def _number(value: Any) -> float:
    found = re.search(r"-?\d+(?:\.\d+)?(?:e[-+]?\d+)?|nan", str(value).rpartition("(")[2])
    return float(found[0]) if found else math.nan


def _verl(text: str, key: str, _step: str, _updates: int) -> Iterator[tuple[int, float]]:
    plain = re.sub(r"\x1b\[[0-9;]*m|\[\d+m", "", text)
    begins = [*re.finditer(r"(?<![\w/])step:(\d+) - ", plain)]  # a step's line may be broken by other output
    for at, begin in enumerate(begins):
        end = begins[at + 1].start() if at + 1 < len(begins) else len(plain)
        if value := re.search(rf"(?:- |\n){re.escape(key)}:\s*([^ \n]+)", plain[begin.end() - 2 : end]):
            yield int(begin[1]), _number(value[1])


def _dicts(text: str, key: str, _step: str, updates: int) -> Iterator[tuple[int, float]]:
    count = 0
    for found in re.finditer(r"\{'[^{}\n]*\}", text):
        record = ast.literal_eval(re.sub(r"\bnan\b", "None", found[0]))
        if key in record and "epoch" in record and "train_runtime" not in record:  # the summary
            count += 1
            yield count * updates, _number(record[key])


def _records(text: str, key: str, step: str, _updates: int) -> Iterator[tuple[int, float]]:
    """Yield every object of a JSON document, or JSON lines, that has the step and the key."""
    try:
        parts = [json.loads(text)]
    except ValueError:
        parts = [json.loads(line) for line in text.splitlines() if line.strip()]
    while parts:
        part = parts.pop(0)
        if isinstance(part, dict) and step in part and part.get(key) is not None:
            yield int(part[step]), float(part[key])
        elif isinstance(part, dict | list):
            parts += list(part.values() if isinstance(part, dict) else part)


def _csv(text: str, key: str, step: str, _updates: int) -> Iterator[tuple[int, float]]:
    for row in csv.DictReader(text.splitlines()):
        if row[key]:
            yield int(float(row[step])), float(row[key])


def _html(text: str, key: str, step: str, _updates: int) -> Iterator[tuple[int, float]]:
    """Return the last table of a notebook with both columns."""
    shown = re.findall(r"<table.*?</table>", json.dumps(json.loads(text)), re.S)
    table = next(entry for entry in reversed(shown) if f"<th>{key}</th>" in entry)
    names = re.findall(r"<th>(.*?)</th>", table)
    cells = re.findall(r"<td>(.*?)</td>", table)
    for at in range(0, len(cells), len(names)):
        row = dict(zip(names, cells[at : at + len(names)], strict=True))
        yield int(row[step]), float(row[key])


def _lines(text: str, key: str, _step: str, _updates: int) -> Iterator[tuple[int, float]]:
    for found in re.finditer(key, text):
        yield int(found["step"]), float(found["value"])


PARSERS = {"verl": _verl, "dicts": _dicts, "records": _records, "csv": _csv, "html": _html, "lines": _lines}


def attempt(own: dict[str, Any], folder: Path, informed: bool) -> tuple[Reading | None, str]:
    """Read a set as it is, or with the person's settings; return the result, or the reason for none."""
    paths = [folder / path for path in own["paths"]]
    known = own if informed else {}
    keys = ("metric", "columns", "set", "name_pattern")
    try:
        reading = survey(paths, HowToRead.of(**{key: known[key] for key in keys if key in known}))
        return reading, "" if reading.ready else reading.none_ready()
    except IsolawError as error:
        return None, str(error)


def outcome(own: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return how a set was read, and how its curves compare."""
    reading, first = attempt(own, folder, informed=False)
    rounds = 1
    unread = [one for one in reading.candidates if one.status is LogStatus.NEEDS] if reading else []
    verdict = (
        "read"
        if reading and reading.ready
        else "asked"
        if unread or "values are missing" in first
        else "refused"
    )
    if {"set", "columns", "metric", "name_pattern"} & set(own) and (
        unread or not reading or not reading.ready
    ):
        rounds = 2
        reading, second = attempt(own, folder, informed=True)
        first = first if reading and reading.ready else second
    found = {
        "source": own["source"],
        "what": own["what"],
        "rounds": rounds,
        "first": verdict,
        "message": first[:400],
    }
    counts = {
        "runs": 0,
        "ready": 0,
        "curves": 0,
        "equal": 0,
        "missing": 0,
        "wrong": 0,
        "more": 0,
        "cut": 0,
        "unread": 0,
    }
    wrong: list[str] = []
    if reading:
        counts |= {"runs": len(reading.candidates), "ready": len(reading.ready)}
        points = reading.runs.points if reading.ready else None
        for truth in own.get("truth", ()):
            eval_set, _, metric = truth["curve"].partition(": ")
            names = [one.run for one in reading.ready if fnmatch.fnmatch(one.run, truth["run"])]
            curve = true_curve(truth, folder)
            counts["curves"] += 1
            if len(names) != 1 or points is None:
                counts["unread"] += len(curve)  # of a run that is not ready, or a copy
                wrong += [f"{truth['run']}: {len(names)} runs"] if len(names) > 1 else []
                continue
            rows = points[
                (points["run_id"] == names[0])
                & (points["eval_set"] == eval_set)
                & (points["metric"] == metric)
            ]
            values = dict(zip(rows["step"], rows["value"], strict=True))
            same = [step for step in curve if step in values and _same(values[step], curve[step])]
            counts["equal"] += len(same)
            differing = [step for step in values if step in curve and step not in same]
            absent = [step for step in curve if step not in values and not math.isnan(curve[step])]
            lacking = [step for step in absent if step < max(values, default=math.inf)]
            counts["cut"] += len(absent) - len(lacking)  # a killed run's tracker ends before its console
            counts["missing"] += len(lacking)
            counts["wrong"] += len(differing)
            counts["more"] += len([step for step in values if step not in curve])  # a console may be cut
            facts = {"n": "rollouts_per_problem", "B_p": "problems_per_batch"}
            wrong += [f"{names[0]}: steps {[*differing, *lacking][:5]}"] if differing or lacking else []
            if len(rows):
                wrong += [
                    f"{names[0]}: {name} {rows[column].iloc[0]}, expected {truth[name]}"
                    for name, column in facts.items()
                    if name in truth and rows[column].iloc[0] != truth[name]
                ]
                per_step = rows["problems_per_batch"] * rows["rollouts_per_problem"]
                wrong += [f"{names[0]}: C"] if (rows["compute"] != rows["step"] * per_step).any() else []
    return found | counts | {"silently_wrong": wrong}


def _same(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=EQUAL, abs_tol=1e-12) or math.isclose(
        100 * one, other, rel_tol=EQUAL
    )


def table(outcomes: list[dict[str, Any]]) -> str:
    """Return the table of the documentation."""
    lines = ["| source | what | first command | ready | values equal | remark |", "|---|---|---|---|---|---|"]
    for item in outcomes:
        of = item["equal"] + item["missing"]
        equal = f"all {of:,}" if item["equal"] == of else f"{item['equal']:,} of {of:,}"
        cells = [
            f"`{item['source']}`", item["what"], item["first"], f"{item['ready']} of {item['runs']}",
            equal if of else "", item.get("remark", ""),
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    wrong = sum(len(item["silently_wrong"]) for item in outcomes)
    ready = sum(item["ready"] for item in outcomes)
    return "\n".join([*lines, "", f"Wrong: {wrong} of {ready} ready runs."]) + "\n"


def main() -> None:
    """Judge the sets of a list."""
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("list", type=Path)
    parser.add_argument("--only", default="*", help="glob of the sources to judge")
    parser.add_argument("--out", type=Path, help="keep the outcome as JSON")
    parser.add_argument("--table", action="store_true", help="LIST is a kept outcome: print it as a table")
    given = parser.parse_args()
    if given.table:
        print(table(json.loads(given.list.read_text())), end="")
        return
    outcomes = []
    for entry in tomllib.loads(given.list.read_text())["set"]:
        if fnmatch.fnmatch(entry["source"], given.only):
            outcomes.append(
                outcome(entry, given.list.parent) | ({"remark": entry["remark"]} if "remark" in entry else {})
            )
            print(json.dumps(outcomes[-1], indent=1, ensure_ascii=False))
    if given.out:
        kept = [{key: value for key, value in item.items() if key != "message"} for item in outcomes]
        given.out.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n")
    wrong = sum(len(outcome["silently_wrong"]) for outcome in outcomes)
    print(f"{len(outcomes)} sets, silently wrong: {wrong}")


if __name__ == "__main__":
    main()
