"""The estimator's answer for one sweep, and its distance from the truth.

`answer` fits a sweep and returns the answer, a line of JSON. Only answers are stored, so checks can change
without another fit. `judge` compares an answer with the truth.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

import isolaw
from benchmarks.designs import rivals
from benchmarks.designs.cells import BATCH, Cell, sample
from benchmarks.designs.truths import COMPUTE, SIMULATED, Optimum, loss, optimum, truth
from isolaw.errors import IsolawError

# Times the largest C.
BUDGETS = {"1/64": 1 / 64, "1/16": 1 / 16, "0.3": 0.3, "1": 1.0, "3": 3.0, "9.9": 9.9}
DRAWS = 300
SIZES = (8, 16, 64)  # n that one might choose without a sweep
UNANSWERED = ("refused", "not_identified")
_TENTH = 0.1  # of a run's checkpoints, its last
_SLACK = 1e-3  # of an n: an interval's end at the truth holds it

Quantity = dict[str, Any]


def answer(cell: Cell, index: int, method: str = "surface") -> dict[str, Any]:
    """Fit sweep ``index`` of a cell; return the answer as JSON."""
    runs = sample(cell, index)
    started = time.perf_counter()
    out: dict[str, Any] = {"index": index}
    try:
        law = isolaw.fit(runs, hold=cell.hold, method=method, draws=DRAWS, seed=index)
    except IsolawError as error:
        out["refused"] = f"{type(error).__name__}: {error}"
    except Exception as error:  # a defect, which the tables count
        out["failed"] = repr(error)
    else:
        out["budgets"] = {name: _said(law, factor * COMPUTE) for name, factor in BUDGETS.items()}
    out["seconds"] = round(time.perf_counter() - started, 3)
    if method == "surface":
        out["highest"] = list(highest(runs))
        for name, said in out.get("budgets", {}).items():
            if "allocation" in said:
                said["rivals"] = rivals.chosen(cell, law, BUDGETS[name] * COMPUTE)
    return out


def _said(law: isolaw.Law, compute: float) -> dict[str, Any]:
    try:
        p = law.predict(compute)
    except IsolawError as error:
        return {"refused": f"{type(error).__name__}: {error}"}
    except Exception as error:
        return {"failed": repr(error)}
    said: dict[str, Any] = {}
    for name in ("n_star", "b_star", "m_star"):
        quantity = getattr(p, name, None)
        said[name] = None if quantity is None else quantity.to_dict()
    if p.options:
        best = p.options[0]
        said["allocation"] = [best.allocation.rollouts_per_problem, best.allocation.problems_per_batch]
        said["reward"] = best.reward.to_dict()
        said["expected"] = best.expected_loss
    return said


def highest(runs: isolaw.Runs) -> tuple[int, int]:
    """Return the (n, B_p) with the highest mean over the last tenth of its runs' checkpoints."""
    points = runs.points
    by_run = points.groupby("run_id")["step"]
    late = points[by_run.cumcount(ascending=False) < np.maximum(_TENTH * by_run.transform("size"), 1)]
    mean = late.groupby(["rollouts_per_problem", "problems_per_batch"])["value"].mean()
    n, b = mean.idxmax()
    return int(n), int(b)


@cache
def best(cell: Cell, budget: str) -> Optimum:
    """Return the truth's optimum at a budget.

    It is among the n that may run: from a quarter of the smallest measured to four times the largest, with at
    least 20 steps; within the grid if the truth is unknown beyond. A B_p that varies may be half the smallest
    measured or twice the largest.
    """
    ends = np.log2(cell.levels[0]), np.log2(cell.levels[-1])
    if cell.truth not in SIMULATED:
        places = rivals.allocations(cell, BUDGETS[budget] * COMPUTE)
        ends = np.log2(min(n for n, _ in places)), np.log2(max(n for n, _ in places))
    held = BATCH if cell.hold == "B" else None
    batches = np.log2(cell.batches[0]), np.log2(cell.batches[-1])
    if cell.hold == "nothing":
        batches = np.log2(min(b for _, b in places)), np.log2(max(b for _, b in places))
    return optimum(truth(cell.truth), BUDGETS[budget] * COMPUTE, ends, batches, held)


def lost(cell: Cell, budget: str, allocation: Sequence[int]) -> float:
    """Return the loss of an allocation (n, B_p) against the optimum, under the truth."""
    return loss(truth(cell.truth), best(cell, budget), BUDGETS[budget] * COMPUTE, *allocation)


def without_a_sweep(cell: Cell, n: int) -> tuple[int, int]:
    """Return the measured configuration nearest to this n, at the middle B_p."""
    middle = cell.batches[len(cell.batches) // 2]
    return min(
        cell.grid, key=lambda place: (abs(np.log2(place[0] / n)), abs(np.log2(place[1] / middle)), *place)
    )


def holds(quantity: Quantity, low: float, high: float) -> bool:
    """Return whether an interval, with None for open ends, contains the true value or overlaps its range."""
    a, b = quantity["interval"]
    return (a is None or a * (1 - _SLACK) <= high) and (b is None or b * (1 + _SLACK) >= low)


def answered(quantity: Quantity | None) -> bool:
    """Return whether there is an interval with a closed end."""
    return bool(
        quantity
        and quantity["interval"] is not None
        and quantity["interval"] != [None, None]
        and quantity["status"] not in UNANSWERED
    )


def judge(cell: Cell, said: dict[str, Any], budget: str) -> dict[str, Any]:
    """Compare the answer for a sweep with the truth at one budget.

    Returns
    -------
    ``n``, ``b``, ``m``
        None without an answer; else whether the interval ``held`` the truth, its ``width`` in doublings (an
        open end is the grid's), and whether it is ``open``.
    ``expected``, ``realised``
        the stated loss of the recommended allocation, and its true loss; None if not stated.
    ``reward``
        the prediction minus the truth, and whether its interval held it.
    """
    own = said.get("budgets", {}).get(budget, {})
    true, compute = best(cell, budget), BUDGETS[budget] * COMPUTE
    # If many n are equally good, or B_p is not free, B_p and M have no further check.
    n, b = true.tied, (true.problems_per_batch,) * 2
    places = rivals.allocations(cell, compute)
    ends = {
        "n": (min(n for n, _ in places), max(n for n, _ in places)),
        "b": (min(b for _, b in places), max(b for _, b in places)),
        "m": tuple(compute / size for size in (max(i * j for i, j in places), min(i * j for i, j in places))),
    }
    values = {"n": n, "b": b, "m": (compute / (n[1] * b[0]), compute / (n[0] * b[0]))}
    out: dict[str, Any] = {}
    for name in ("n", "b", "m"):
        quantity = own.get(f"{name}_star")
        out[name] = _held(quantity, values[name], ends[name]) if answered(quantity) else None
    allocation, expected = own.get("allocation"), own.get("expected")
    out["expected"] = None if allocation is None else expected
    out["realised"] = None if allocation is None else lost(cell, budget, allocation)
    out["reward"] = None
    if allocation is not None and own["reward"]["value"] is not None:
        actual = float(truth(cell.truth)(np.log2(allocation[0]), np.log2(allocation[1]), compute))
        known = answered(own["reward"])
        out["reward"] = {
            "error": own["reward"]["value"] - actual,
            "held": holds(own["reward"], actual, actual) if known else None,
        }
    return out


def _held(quantity: Quantity, true: tuple[float, float], ends: tuple[float, float]) -> dict[str, Any]:
    a, b = quantity["interval"]
    low, high = (np.clip(e if e is not None else end, *ends) for e, end in zip((a, b), ends, strict=True))
    return {
        "held": holds(quantity, *true),
        "width": float(np.log2(high / low)),
        "open": a is None or b is None,
    }
