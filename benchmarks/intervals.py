"""How often intervals hold the truth, in a small check: python benchmarks/intervals.py

Truth is the fit to 30 seeds of the simulator. The same fit to disjoint groups of 3 and of 5 of them
gives intervals for the crossovers of neighbouring n and for the reward on the frontier; the table
says how many hold the truth. Groups are few (10 and 6) and their points dependent, so this finds gross
faults; it is no calibration.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import isolaw

LEVELS = [8, 16, 32, 64, 128, 256, 512, 1024, 2048]
SEEDS = 30
FIT: dict[str, Any] = {"curve": "hill", "records": None}


def holds(interval: list[float | None] | None, truth: float) -> bool:
    """Return whether an interval, open ends included, holds ``truth``; one that is missing holds all."""
    low, high = interval or (None, None)
    return (low is None or low <= truth) and (high is None or truth <= high)


def main() -> None:
    """Print the table."""
    print(f"{'set':5} {'seeds':>5} {'crossover':>10} {'doublings wide':>15} {'reward':>7} {'wide':>7}")
    for problem_set in ("easy", "hard"):
        spec = {
            "sweep": {"compute": 1e7, "seeds": SEEDS},
            "grid": {"rollouts_per_problem": LEVELS},
            "problems": {"set": problem_set},
        }
        points = isolaw.sweep(spec).points
        truth = isolaw.fit(isolaw.Runs(points), bootstrap=0, **FIT).document
        crossings = {(c["from"], c["to"]): c["x"] for c in truth["crossovers"] if c["supported"]}
        rewards = [p["reward"]["value"] for p in truth["frontier"]]
        first, last = truth["x"]["range"]
        for size in (3, 5):
            held, width, reward_held, reward_width = [], [], [], []
            for start in range(0, SEEDS, size):
                own = points[points["seed"].isin(range(start, start + size))]
                found = isolaw.fit(isolaw.Runs(own), bootstrap=200, **FIT).document
                for c in found["crossovers"]:
                    if c["to"] == 2 * c["from"] and (c["from"], c["to"]) in crossings and c["interval"]:
                        held.append(holds(c["interval"], crossings[c["from"], c["to"]]))
                        low, high = c["interval"]
                        width.append(np.log2((high or last) / (low or first)))
                for p, value in zip(found["frontier"], rewards, strict=True):
                    reward_held.append(holds(p["reward"]["interval"], value))
                    reward_width.append(np.subtract(*p["reward"]["interval"][::-1]))
            print(
                f"{problem_set:5} {size:5} {np.mean(held):10.2f} {np.median(width):15.1f} "
                f"{np.mean(reward_held):7.2f} {np.mean(reward_width):7.4f}"
            )


if __name__ == "__main__":
    main()
