"""What a calibration and its forecasts say in words."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from isolaw.calibration.calibrate import Calibration
from isolaw.calibration.forecast import Forecast

_POOR = 1.5  # τ from which the runs are said not to be met


def to_dict(found: Calibration) -> dict[str, Any]:
    """Return JSON-able data."""
    return {
        "simulated": True,
        "preset": found.name,
        "constants": [asdict(c) for c in found.constants],
        "error": found.error,
        "noise": found.posterior.noise,
        "misfit": found.posterior.misfit,
        "covered": found.covered,
        "assumed": list(found.observed.assumed),
    }


def calibration_summary(found: Calibration) -> list[str]:
    """Return the constants, what is identified, and how well the runs are met."""
    cells = found.observed.protocol.cells
    runs = sum(c.runs for c in cells)
    end = max(c.compute[-1] for c in cells)
    lines = [
        f"simulated: a population fitted to {runs} runs of {len(cells)} configurations, to C = {end:,.0f}",
        f"{found.observed.metric} on {found.observed.eval_set}: the runs are met to {found.error:.4f}, "
        f"{found.covered:.0%} of their rewards within the 90 % band",
    ]
    if found.posterior.misfit > _POOR:
        lines.append(
            f"the best constants leave {found.posterior.misfit:.1f} times the variance that noise has: "
            "the mechanism does not describe these runs; take its forecasts as a sketch"
        )
    lines.append("")
    lines.append(f"{'':8}{'estimate':>10}  {'90 % interval':<22}{'':4}what it is")
    for c in found.constants:
        interval = f"{c.interval[0]:.3g} to {c.interval[1]:.3g}"
        mark = "at the edge of the prior" if c.at_edge else "" if c.identified else "not identified"
        lines.append(
            f"{c.name:8}{c.value:>10.3g}  {interval:<22}{'':4}{c.meaning}{f' ({mark})' if mark else ''}"
        )
    if found.observed.assumed:
        lines += ["", *(f"assumed: {text}" for text in found.observed.assumed)]
    return lines


def forecast_summary(found: Forecast) -> list[str]:
    """Return what the ensemble recommends at a budget."""
    data = found.to_dict()
    b, n, m = (data[k] for k in ("problems_per_batch", "rollouts_per_problem", "steps"))
    low, high = data["n_star"]["interval"]
    lines = [
        f"simulated from a calibrated mechanism ({data['preset']}, {data['members']} members), "
        f"C = {data['compute']:,}",
        f"B_p = {b}, n = {n}, M = {m:,}; expected regret {data['expected_regret']:.4f}",
        f"best n of 90 % of the members: {low} to {high}"
        if high > low
        else f"best n of 90 % of the members: {low}",
        "",
        f"{'B_p':>6}{'n':>7}{'M':>10}{'reward':>9}  {'90 % interval':<15}{'regret':>8}{'within 0.005':>14}",
    ]
    ordered = sorted(data["cells"], key=lambda cell: cell["expected_regret"])
    for cell in ordered[:8]:
        band = "{:.3f} to {:.3f}".format(*cell["reward"]["interval"])
        lines.append(
            f"{cell['problems_per_batch']:>6}{cell['rollouts_per_problem']:>7}{cell['steps']:>10,}"
            f"{cell['reward']['value']:>9.3f}  {band:<15}{cell['expected_regret']:>8.4f}"
            f"{cell['within_tolerance']:>14.0%}"
        )
    return lines
