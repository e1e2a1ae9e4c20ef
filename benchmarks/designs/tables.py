"""The summary of all cells, its checks, and the tables of docs/statistics.md."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import binomtest

import isolaw
from benchmarks.designs import rivals
from benchmarks.designs.cells import COMPUTE, Cell, cells, sample
from benchmarks.designs.judge import BUDGETS, SIZES, best, judge, lost, without_a_sweep

SUMMARY = Path(__file__).parents[1] / "designs.json"
DOCS = Path(__file__).parents[2] / "docs" / "statistics.md"
BEGIN, END = "<!-- designs:begin -->", "<!-- designs:end -->"
QUANTITIES = {"n": "n_star", "b": "b_star", "m": "m_star"}
LEAST_HELD = 0.93  # coverage that its Wilson interval must reach
MOST_REFUSED = 0.10
MOST_LOSS = 1.5  # times what was expected
CLOSE = 0.0005  # of reward
NEAR = 0.002  # of reward, of a rival
SETTLED = 4.0  # doublings: n that are as good over more have no n* to find

Kept = tuple[Cell, dict[int, dict[str, Any]], dict[int, dict[str, Any]]]


def summarise(
    cell: Cell, said: dict[int, dict[str, Any]], paper: dict[int, dict[str, Any]]
) -> dict[str, Any]:
    """Return a cell's entry of the summary."""
    reasons = [next(iter(set(entry) & {"refused", "failed"}), "") for entry in said.values()]
    return {
        "half": cell.half,
        "truth": cell.truth,
        "n": list(cell.levels),
        "problems_per_batch": list(cell.batches),
        "seeds": cell.seeds,
        "noise": cell.noise,
        "horizon": cell.horizon,
        "hold": cell.hold,
        "sweeps": len(said),
        "refused_sweeps": reasons.count("refused"),
        "failed_sweeps": reasons.count("failed"),
        "seconds": _round(np.median([entry["seconds"] for entry in said.values()]), 2),
        "budgets": {budget: _at(cell, said, paper, budget) for budget in BUDGETS},
    }


def _at(cell: Cell, said: dict[int, dict], paper: dict[int, dict], budget: str) -> dict[str, Any]:
    judged = {index: judge(cell, entry, budget) for index, entry in said.items()}
    true = best(cell, budget)
    out: dict[str, Any] = {
        "true": {
            "n": _round(true.n, 1),
            "tied": [_round(v, 1) for v in true.tied],
            "problems_per_batch": _round(true.problems_per_batch, 1),
            "steps": _round(true.steps, 1),
            "reward": _round(true.reward),
        }
    }
    for name, full in QUANTITIES.items():
        found = [j[name] for j in judged.values()]
        if name == "n" or any(found):
            out[full] = _coverage(found)
    losses = {i: j["realised"] for i, j in judged.items() if j["realised"] is not None}
    both = [i for i in losses if judged[i]["expected"] is not None]
    out["silent"] = _round(1 - len(both) / len(judged))
    out["expected_loss"] = _mean([judged[i]["expected"] for i in both])
    out["realised_loss"] = _mean(list(losses.values()))
    out["realised_where_expected"] = _mean([losses[i] for i in both])
    out["baselines"] = _baselines(cell, said, paper, losses, budget)
    rewards = [j["reward"] for j in judged.values() if j["reward"]]
    held = [r["held"] for r in rewards if r["held"] is not None]
    out["reward"] = {
        "error": _mean([r["error"] for r in rewards]),
        "coverage": _round(np.mean(held)) if held else None,
    }
    out["checks"] = _checks(out)
    return out


def _coverage(found: Sequence[dict[str, Any] | None]) -> dict[str, Any]:
    """Return the coverage of intervals; refusals are no intervals, and counted separately."""
    intervals = [f for f in found if f]
    out: dict[str, Any] = {
        "answered": len(intervals),
        "refused": _round(1 - len(intervals) / len(found)),
        "held": sum(f["held"] for f in intervals),
    }
    if intervals:
        out["coverage"] = _round(out["held"] / len(intervals))
        out["wilson"] = [_round(v) for v in _wilson(out["held"], len(intervals))]
        out["one_sided"] = _round(np.mean([f["open"] for f in intervals]))
        out["width"] = _round(np.median([f["width"] for f in intervals]), 3)
    return out


def _wilson(held: int, answered: int) -> tuple[float, float]:
    low, high = binomtest(held, answered).proportion_ci(method="wilson")
    return float(low), float(high)


def _baselines(
    cell: Cell, said: dict[int, dict], paper: dict[int, dict], losses: dict[int, float], budget: str
) -> dict[str, Any]:
    """Return realised losses of the baselines, and isolaw's on the same sweeps."""
    chosen: dict[str, dict[int, Any]] = {
        f"n={n}": dict.fromkeys(losses, without_a_sweep(cell, n)) for n in SIZES
    }
    chosen["highest"] = {i: said[i]["highest"] for i in losses}
    for name in rivals.NAMES:
        chosen[name] = {
            i: own[name] for i in losses if name in (own := said[i]["budgets"][budget].get("rivals", {}))
        }
    chosen["paper"] = {
        i: entry["budgets"][budget]["allocation"]
        for i, entry in paper.items()
        if i in losses and "allocation" in entry.get("budgets", {}).get(budget, {})
    }
    return {
        name: {
            "loss": _mean([lost(cell, budget, place) for place in places.values()]),
            "own": _mean([losses[i] for i in places])["mean"],
        }
        for name, places in chosen.items()
        if places
    }


def _checks(entry: dict[str, Any]) -> dict[str, bool | None]:
    """Return whether each check of a cell and budget holds; None if it does not apply."""
    n, low_high = entry["n_star"], np.log2(entry["true"]["tied"])
    expected, realised = entry["expected_loss"]["mean"], entry["realised_where_expected"]["mean"]
    others = {k: o for k, o in entry["baselines"].items() if k not in rivals.NAMES}.values()
    better = [o for k, o in entry["baselines"].items() if k in rivals.NAMES]
    # If n does not matter, that is the right answer.
    matters = np.ptp(low_high) < SETTLED
    return {
        "held": n["wilson"][1] >= LEAST_HELD if "wilson" in n else None,
        "refused": n["refused"] <= MOST_REFUSED if matters else None,
        "loss": None if expected is None else realised <= MOST_LOSS * expected + CLOSE,
        "baselines": all(o["own"] <= o["loss"]["mean"] + CLOSE for o in others) if others else None,
        "rivals": all(o["own"] <= o["loss"]["mean"] + NEAR for o in better) if better else None,
    }


def _mean(values: Sequence[float]) -> dict[str, Any]:
    if not values:
        return {"mean": None, "se": None}
    error = np.std(values, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else None
    return {"mean": _round(np.mean(values), 5), "se": None if error is None else _round(error, 5)}


def _round(value: Any, digits: int = 4) -> float:
    return round(float(value), digits)


def write(kept: list[Kept], options: Namespace) -> None:
    """Write the summary and put the tables where they belong."""
    if not kept:
        raise SystemExit(f"no answers of version {options.version}: python -m benchmarks.designs fit")
    found = {cell.name: {"version": options.version} | summarise(cell, *r) for cell, *r in kept}
    if options.keep:  # cells that this version answers as the version before
        before = json.loads(SUMMARY.read_text())
        found = {n: {"version": before["version"]} | c for n, c in before["cells"].items()} | found
    summary = {"version": options.version, "fingerprint": fingerprint(), "cells": found}
    options.out.write_text(_lines(summary))
    text = markdown(summary)
    page = options.docs.read_text() if options.docs.exists() else ""
    if options.out == SUMMARY and BEGIN in page and END in page:
        before, after = page.split(BEGIN)[0], page.split(END)[1]
        options.docs.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")
    else:
        print(text)
        print(f"no tables written: {options.docs} has no {BEGIN} … {END}", file=sys.stderr)
    if options.against:
        print("\n" + compared(summary, json.loads(options.against.read_text())))


def _lines(summary: dict[str, Any]) -> str:
    """Return JSON with a line for each cell, so that diffs show the changes."""
    cells = ",\n".join(
        f"{json.dumps(name)}: {json.dumps(cell, allow_nan=False)}" for name, cell in summary["cells"].items()
    )
    head = {key: value for key, value in summary.items() if key != "cells"}
    return f'{json.dumps(head)[:-1]}, "cells": {{\n{cells}\n}}}}\n'


def fingerprint() -> dict[str, list[float]]:
    """Return the estimator's expected loss and reward for one small sweep, by budget.

    If they change, the estimator has changed, even if its version has not.
    """
    law = isolaw.fit(sample(*cells("constant-4nx4-2s-white"), 0), draws=100)
    out = {}
    for budget, factor in BUDGETS.items():
        p = law.predict(factor * COMPUTE)
        out[budget] = [round(float(v or 0.0), 4) for v in (p.options[0].expected_loss, p.reward.value)]
    return out


def markdown(summary: dict[str, Any]) -> str:
    """Return the tables: totals over the cells of a half, losses of rivals, and the missed checks."""
    parts = [_overall(summary), _against(summary), _missed(summary)]
    versions = {c.get("version", summary["version"]) for c in summary["cells"].values()}
    for version in sorted(versions - {summary["version"]}):
        number = sum(c.get("version") == version for c in summary["cells"].values())
        name = version.split("-simulator")[0].replace("-", " ")
        parts.append(f"{number} of these designs were measured with {name}.")
    return "\n\n".join(parts)


TABLED = ("1", "3", "9.9")  # budgets of which the page has the missed checks
WORST = 3  # cells that it names for each
BEYOND = ("3", "9.9")
SHOWN = ("highest", "paper", "process")  # rules beside isolaw in the summary; the next table has all
_OTHERS = (*(f"n={n}" for n in SIZES), "highest", "paper", *rivals.NAMES)
_HALVES = ("judging", "tuning")


def _of(summary: dict[str, Any], half: str) -> list[dict[str, Any]]:
    return [cell for cell in summary["cells"].values() if cell["half"] == half]


def _overall(summary: dict[str, Any]) -> str:
    """Return a row for each budget: the judging half in full, and totals of the tuning half."""
    rows = [[f"{budget} ×"] for budget in BUDGETS]
    head = ["budget"]
    for half in _HALVES:
        own = _of(summary, half)
        rules = SHOWN if half == "judging" else ()
        if own:
            head += [f"{half}: held", "refused", "expected", "realized", *rules, "cells that fail"]
        for row, budget in zip(rows, BUDGETS if own else (), strict=False):
            at = [c["budgets"][budget] for c in own]
            answered, held = (sum(a["n_star"][k] for a in at) for k in ("answered", "held"))
            low, high = _wilson(held, answered) if answered else (0.0, 1.0)
            losses = [_average(a[k]["mean"] for a in at) for k in ("expected_loss", "realised_loss")]
            for o in rules:
                others = (a["baselines"].get(o, {}).get("loss", {}).get("mean") for a in at)
                losses.append(_average(others))
            row += [
                f"{held / max(answered, 1):.1%} ({low:.1%}–{high:.1%})",
                f"{1 - answered / sum(c['sweeps'] for c in own):.1%}",
                *map(_number, losses),
                f"{sum(any(v is False for v in a['checks'].values()) for a in at)} of {len(own)}",
            ]
    return _table(head, rows)


def _against(summary: dict[str, Any]) -> str:
    """Return a rival's loss beyond isolaw's past the runs, on the same sweeps, with its error over cells."""
    halves = [half for half in _HALVES if _of(summary, half)]
    rows = []
    for name in _OTHERS:
        row = [name]
        for half in halves:
            pairs = [
                c["budgets"][budget]["baselines"].get(name) for c in _of(summary, half) for budget in BEYOND
            ]
            more = np.array([p["loss"]["mean"] - p["own"] for p in pairs if p])
            if more.size > 1:
                error = more.std(ddof=1) / np.sqrt(more.size)
                row += [f"{more.mean():+.4f} ± {error:.4f}", f"{(more > 0).mean():.0%}"]
        if len(row) > 1:
            rows.append(row)
    title = f"**Excess loss of each rule over isolaw's loss, at {' and '.join(BEYOND)} × the largest C**"
    head = [text for half in halves for text in (f"{half}: excess loss", "isolaw is better in")]
    return f"{title}\n\n" + _table(["rule", *head], rows)


def _missed(summary: dict[str, Any]) -> str:
    """Return how many cells miss each check, and the worst with the two numbers that the check compares."""
    rows = []
    for budget in TABLED:
        at = {name: cell["budgets"][budget] for name, cell in summary["cells"].items()}
        for check in next(iter(at.values()))["checks"]:
            missed = [name for name, a in at.items() if a["checks"][check] is False]
            judged = sum(a["checks"][check] is not None for a in at.values())
            worst = sorted(missed, key=lambda name: -_missed_by(check, at[name]))[:WORST]
            named = ", ".join(f"{name} {_compared_by(check, at[name])}" for name in worst)
            rows += [[f"{budget} ×", check, f"{len(missed)} of {judged}", named]] if missed else []
    title = "**Failed checks, with the two compared numbers in the worst cells**"
    return f"{title}\n\n" + _table(["budget", "check", "failed in", "worst cells"], rows)


def _missed_by(check: str, at: dict[str, Any]) -> float:
    """By how much a check of `_checks` is missed, to order cells."""
    if check == "held":
        return -float(at["n_star"]["coverage"])
    if check == "refused":
        return float(at["n_star"]["refused"])
    found, accepted = _numbers(check, at)
    return found - accepted


def _compared_by(check: str, at: dict[str, Any]) -> str:
    """Return the numbers that a check of `_checks` compares, as found/accepted."""
    if check == "held":
        return f"{at['n_star']['coverage']:.0%}"
    if check == "refused":
        return f"{at['n_star']['refused']:.0%}"
    return "/".join(map(_number, _numbers(check, at)))


def _numbers(check: str, at: dict[str, Any]) -> tuple[float, float]:
    """The two losses that a check compares."""
    if check == "loss":
        return at["realised_where_expected"]["mean"], at["expected_loss"]["mean"]
    ours = check == "rivals"
    others = [o for name, o in at["baselines"].items() if (name in rivals.NAMES) is ours]
    worst = max(others, key=lambda o: o["own"] - o["loss"]["mean"])
    return worst["own"], worst["loss"]["mean"]


def compared(now: dict[str, Any], before: dict[str, Any]) -> str:
    """Return the widths of the n* intervals that both summaries have, and whether the intervals held."""
    rows = []
    for name in now["cells"].keys() & before["cells"].keys():
        for budget in BUDGETS:
            own, other = (s["cells"][name]["budgets"][budget]["n_star"] for s in (now, before))
            if own["answered"] and other["answered"]:
                covered = "yes" if other["wilson"][1] >= LEAST_HELD else "no"
                rows.append(
                    [name, budget, f"{other['coverage']:.0%}", covered, f"{own['coverage']:.0%}"]
                    + [f"{v['width']:.2f}" for v in (other, own)]
                    + [f"{own['width'] / other['width']:.2f}" if other["width"] else ""]
                )
    head = ["cell", "budget", "held before", "enough", "held now", "width before", "now", "ratio"]
    fair = [float(r[-1]) for r in rows if r[3] == "yes" and r[-1]]
    said = f"Where {before['version']} held: median ratio of widths {np.median(fair):.2f}." if fair else ""
    return _table(head, sorted(rows)) + f"\n\n{said}"


def _average(values: Iterable[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return float(np.mean(known)) if known else None


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}".lstrip("0")


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(cells) + " |" for cells in (head, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]])
