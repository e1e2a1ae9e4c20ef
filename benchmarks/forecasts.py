"""Do the forecasts of `isolaw plan` hold the losses of designs? ``python -m benchmarks.forecasts``

The forecast rests on the truths of one problem set that ship with isolaw (`benchmarks.calibration.truths`).
Designs then play against other truths: on each problem set, simulated runs of four jittered presets
(`benchmarks.design.JUDGING`), and two members of the published preset's ensemble. A forecast holds a loss
if its 90 % interval contains it. The table goes to docs/plan.md.
"""

from __future__ import annotations

import argparse
import json
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import design
from benchmarks.calibration.ensemble import read_ensemble
from benchmarks.calibration.truths import truths_of
from isolaw.backends.bandit import Bandit
from isolaw.design import forecast
from isolaw.design.candidate_sweeps import DesignKind
from isolaw.design.play import play
from isolaw.design.question import question
from isolaw.design.truths import Sample, Truth, answers_of
from isolaw.fits import SURFACE

SUMMARY = Path(__file__).with_suffix(".json")
DOCS = Path(__file__).parents[1] / "docs" / "plan.md"
SPENDS = (0.1, 0.2, 0.35)
REPETITIONS = 5
MEMBERS = (12, 62)  # of the published presets, none of `benchmarks.calibration.truths.MEMBERS`
JOINT = (DesignKind.RACE, DesignKind.HALF)  # over three B_p, with a quarter of that grid; once in each truth
JOINT_SPEND, JOINT_REPETITIONS = 0.25, 2


def _sweep(kind: str, batches: tuple[int, ...] = (32,)) -> dict[str, Any]:
    return {
        "sweep": {"compute": design.TARGET, "seeds": 3},
        "grid": {"problems_per_batch": list(batches), "rollouts_per_problem": list(design.LEVELS)},
        "limits": {"max_batch_rollouts": max(batches) * design.LEVELS[-1]},
        "problems": {"set": kind, "n_validation": 300},
        "evaluation": {"samples": 4, "start": 1024, "points": 40},
    }


@cache
def _members(kind: str) -> list[Truth]:
    cells = [(32, n) for n in design.LEVELS]
    return truths_of(read_ensemble(f"published-{kind}"), cells, design.TARGET, MEMBERS, 1)


def realised(kind: str, index: int, repetition: int, spend: float) -> list[dict[str, Any]]:
    """Return the loss of each design in one truth: a jittered preset, or below 0 a published member."""
    asked = question(_sweep(kind), spend=spend)
    if index < 0:
        member = _members(kind)[-1 - index]
        truth: Any = Sample(member, asked.checkpoints, answers_of(asked.spec), (repetition,))
        rewards = {n: reward for (_, n), reward in member.rewards().items()}
    else:
        truth = design.Preset(kind, index, repetition)
        rewards = {n: truth.reward(32, n) for n in design.LEVELS}
    top, out = max(rewards.values()), []
    for candidate in asked.candidates():
        best = play(candidate.design, truth)[-1].best
        lost = top - (rewards[best[1]] if best else np.mean(list(rewards.values())))
        out.append({"set": kind, "spend": spend, "design": candidate.kind, "loss": float(lost)})
    return out


def _joint(task: tuple[str, int, int]) -> list[dict[str, Any]]:
    """Return the losses of designs over three B_p on one preset."""
    truth = design.Preset(*task, design.BATCHES)
    cells = [(b, n) for b in design.BATCHES for n in design.LEVELS]
    top = max(truth.reward(*key) for key in cells)
    out = []
    for candidate in question(_sweep(task[0], design.BATCHES), spend=JOINT_SPEND).candidates():
        if candidate.kind in JOINT:
            best = play(candidate.design, truth)[-1].best
            assert best is not None
            out.append({"set": task[0], "design": candidate.kind, "loss": top - truth.reward(*best)})
    return out


def joint(jobs: int) -> None:
    """Print the forecasts of designs over three B_p, and how many realised losses they hold."""
    tasks = [(k, i, r) for k in design.SETS for i in design.JUDGING for r in range(JOINT_REPETITIONS)]
    with ProcessPoolExecutor(jobs) as pool:
        found = [entry for part in pool.map(_joint, tasks) for entry in part]
    held = []
    for kind in design.SETS:
        sweep = _sweep(kind, design.BATCHES)
        for row in forecast.plan(sweep, spend=JOINT_SPEND, repetitions=1, jobs=jobs).rows:
            own = [e["loss"] for e in found if (e["set"], e["design"]) == (kind, row.candidate.kind)]
            held += [row.loss.low - 1e-9 <= value <= row.loss.high + 1e-9 for value in own]
            if own:
                print(f"{kind}, {row.candidate.name}: {row.loss}, realised {np.mean(own):.4f}")
    print(f"held: {sum(held)} of {len(held)}")


def _task(task: tuple[str, int, int, float]) -> list[dict[str, Any]]:
    return realised(*task)


def summary(jobs: int) -> list[dict[str, Any]]:
    """Return the forecast and the realised losses for each spend and design."""
    rows = []
    for spend in SPENDS:
        tasks = [
            (kind, index, repetition, spend)
            for kind in design.SETS
            for index in (*design.JUDGING, *(-1 - i for i in range(len(MEMBERS))))
            for repetition in range(REPETITIONS)
        ]
        with ProcessPoolExecutor(jobs) as pool:
            found = [entry for part in pool.map(_task, tasks) for entry in part]
        for kind in design.SETS:
            for row in forecast.plan(_sweep(kind), spend=spend, jobs=jobs).rows:
                own = [
                    e["loss"]
                    for e in found
                    if (e["set"], e["spend"], e["design"]) == (kind, spend, row.candidate.kind)
                ]
                low, high = row.loss.low - 1e-9, row.loss.high + 1e-9
                rows.append(
                    {
                        "set": kind, "spend": spend, "design": row.candidate.name,
                        "horizon": row.candidate.horizon, "expected": row.loss.value,
                        "interval": [row.loss.low, row.loss.high], "realised": float(np.mean(own)),
                        "held": float(np.mean([low <= value <= high for value in own])), "plays": len(own),
                    }
                )  # fmt: skip
                print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    return rows


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Return the designs of least expected loss as Markdown, and the share of all forecasts that hold."""
    least: dict[tuple[float, str], dict[str, Any]] = {}
    for row in sorted(rows, key=lambda row: row["expected"]):
        least.setdefault((row["spend"], row["set"]), row)
    out = [
        "| spend | problem set | design | expected × 1000 (90 %) | realized × 1000 | held |",
        "|--:|---|---|--:|--:|--:|",
    ]
    for _, row in sorted(least.items()):
        low, high = (1e3 * end for end in row["interval"])
        cut = (
            ""
            if row["horizon"] in (None, design.TARGET)
            else f", cut to {row['horizon'] / design.TARGET:.0%}"
        )
        out.append(
            f"| {row['spend']:.0%} | {row['set']} | {row['design']}{cut} | "
            f"{1e3 * row['expected']:.1f} ({low:.1f}–{high:.1f}) | "
            f"{1e3 * row['realised']:.1f} | {row['held']:.0%} |"
        )
    held = np.average([row["held"] for row in rows], weights=[row["plays"] for row in rows])
    plays = sum(row["plays"] for row in rows)
    return [*out, "", f"The intervals of all designs contain {held:.0%} of the {plays} realized losses."]


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.forecasts", description=__doc__)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--tables", action="store_true", help="only write the kept table into docs/plan.md")
    parser.add_argument("--joint", action="store_true", help="only print the check over three B_p")
    options = parser.parse_args(arguments)
    if options.joint:
        joint(options.jobs)
        return
    if not options.tables:
        found = {"surface": SURFACE, "simulator": Bandit.version, "rows": summary(options.jobs)}
        SUMMARY.write_text(json.dumps(found, indent=1) + "\n")
    begin, end = "<!-- forecasts -->", "<!-- /forecasts -->"
    before, rest = DOCS.read_text().split(begin)
    lines = table(json.loads(SUMMARY.read_text())["rows"])
    DOCS.write_text(before + "\n".join([begin, "", *lines, "", end]) + rest.split(end)[1])


if __name__ == "__main__":
    main()
