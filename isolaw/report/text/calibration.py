"""A calibration and a prediction from it, as text and as JSON-able data."""

from __future__ import annotations

from dataclasses import asdict
from math import hypot
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isolaw import commands
from isolaw.calibration.splits import MISSED, POOR
from isolaw.evidence import Simulated
from isolaw.report.text import costs
from isolaw.report.text.law import notes
from isolaw.report.text.numbers import columns, count, number, share
from isolaw.report.text.prediction import prediction_summary

if TYPE_CHECKING:
    from isolaw.calibration.calibrate import Calibration, Constant
    from isolaw.calibration.splits import SimulatedPrediction, SplitForecast
    from isolaw.fits.document.schema import LawDocument

_SHOWN = 8  # configurations of a prediction


def to_dict(found: Calibration) -> dict[str, Any]:
    """Return a calibration as JSON-able data."""
    return {
        "simulated": Simulated.among([found.observed.runs.simulated, Simulated.YES]).json,
        "preset": found.name,
        "metric": found.observed.metric,
        "eval_set": found.observed.eval_set,
        "constants": [asdict(c) for c in found.constants],
        "error": found.error,
        "noise": found.posterior.noise,
        "discrepancy": found.posterior.discrepancy,
        "covered": found.covered,
        "moved": found.moved,
        "seeds_apart": found.seeds_apart,
        "assumed": list(found.observed.assumed),
    }


def calibration_summary(found: Calibration, out: str | None = None) -> list[str]:
    """Return how well the runs are met, and what they tell about each constant; ``out`` is the preset."""
    rows = [["constant", "estimate", "90 % interval", "", "meaning"]]
    rows += [[c.name, number(c.value), ends(c.interval), mark(c), c.meaning] for c in found.constants]
    lines = [fitted_to(found), fit(found), *cautions(found), "", *columns(rows, "<><<<"), *marks(found)]
    if found.observed.assumed:
        lines += ["", "Assumptions:", *(f"- {text}" for text in found.observed.assumed)]
    if out is not None:
        first, *others = following(found, out)
        lines += ["", f"Next: {first}", *(f"      {command}" for command in others)]
    return lines


def fitted_to(found: Calibration) -> str:
    """Return what was fitted, and to which runs."""
    cells = found.observed.protocol.cells
    return (
        f"The interference simulator, fitted to {count(sum(c.runs for c in cells), 'run')} of "
        f"{count(len(cells), 'configuration')} up to C = {number(_end(found))} "
        f"({found.observed.metric} on {found.observed.eval_set})."
    )


def fit(found: Calibration) -> str:
    """Return how well the ensemble meets the runs."""
    return (
        f"Fit: measured rewards differ from the ensemble's mean by {found.error:.4f} (root mean square); "
        f"{found.covered:.0%} of them are within its 90 % band."
    )


def cautions(found: Calibration) -> list[str]:
    """Return cautions where rewards hardly move and where even the best constants miss the runs."""
    out = []
    if not found.moved:
        out.append(
            "Caution: nothing learned. Training changed no configuration's reward by more than noise: how "
            "rewards go on is the prior's, not the runs'. Extend runs until rewards move; calibrate again."
        )
    if found.posterior.discrepancy > POOR:
        out.append(
            "Caution: no constants meet these runs. Apart from noise, the best miss them by "
            f"{found.posterior.discrepancy:.3f}. Predictions start from what they leave; do not trust "
            "smaller differences between configurations that were not run."
        )
    explained = hypot(found.posterior.noise, found.posterior.discrepancy)
    if found.error > MISSED * explained:
        out.append(
            f"Caution: the ensemble misses these runs. Its mean differs from them by {found.error:.3f}, "
            f"where noise explains {explained:.3f}. Calibrate again with another --seed, and compare."
        )
    if (apart := found.seeds_apart) is not None:
        out.append(
            f"Caution: seeds differ. Runs of one configuration have mean rewards {apart[0]:.3f} apart "
            f"(standard deviation), simulated ones {apart[1]:.3f}. The ensemble is of your seeds' mean; "
            "its intervals hold neither single runs nor what other seeds would change in the mean."
        )
    return out


def mark(c: Constant) -> str:
    """Return what is to know about the estimate of a constant."""
    return "at the edge" if c.at_edge else "" if c.identified else "not identified"


def marks(found: Calibration) -> list[str]:
    """Return what the marks of these constants mean."""
    lines = []
    if any(not c.identified for c in found.constants):
        lines.append(
            "not identified: the runs determine it little better than the prior; the members of the ensemble "
            "differ in it."
        )
    if any(c.at_edge for c in found.constants):
        lines.append("at the edge: the estimate is outside 95 % of the prior.")
    return lines


def following(found: Calibration, out: str) -> list[str]:
    """Return the commands that use the preset file ``out``."""
    budget = f"{10 * _end(found):.0e}".replace("e+0", "e")
    planned = Path(str(found.observed.runs.source or ""), "sweep.toml")
    return [
        str(commands.predict_by_preset(out, budget)),
        *([str(commands.plan_preset(str(planned), out))] if planned.is_file() else []),
        str(commands.sweep_preset(out)),
    ]


def ends(interval: tuple[float, float]) -> str:
    """Return an interval of a constant."""
    return f"{number(interval[0])} to {number(interval[1])}"


def _end(found: Calibration) -> float:
    return max(found.observed.ends)


def simulated_prediction(found: SimulatedPrediction, document: LawDocument | None = None) -> list[str]:
    """Return what the ensemble recommends, the law's answer (``document`` is its law), and cautions."""
    ahead, best = found.forecast, found.best
    budget = found.asked or f"C = {number(found.compute)} rollouts"
    lines = [
        f"From a calibrated mechanism: preset {ahead.preset.name}, "
        f"{count(len(ahead.rewards), 'member')}, fitted to {ahead.preset.reward} "
        f"up to C = {number(ahead.preset.measured)}.",
        f"For a budget of {budget}: n = {best.rollouts_per_problem} rollouts for each of "
        f"B_p = {best.problems_per_batch} problems, M = {best.steps:,} steps.",
        *([] if found.cost is None else [costs.spent(found.spent(best), found.cost)]),
        f"Expected loss: {best.expected_regret:.4f} against the best configuration; within 0.005 of it in "
        f"{share(best.probability)} of members.",
        f"Reward: {best.reward:.3f} ({_span(best)}). Intervals are of 90 % of the members. "
        + "; ".join(
            f"{name}: {low:,}" + (f"–{high:,}" if high > low else "")
            for name, (low, high) in zip(("B_p*", "n*", "M*"), map(ahead.interval, range(3)), strict=True)
        )
        + ".",
        f"Epochs: {number(found.epochs)} passes over {ahead.preset.n_train:,} training problems.",
        "",
        *_table(found),
        *(f"Caution: {text}." for text in notes(found.flags)),
        "",
    ]
    if found.law is None or document is None:
        return [*lines[:-1], "isolaw predict also takes a law of the same runs, and compares the two."]
    return [*lines, "The fitted law:", *(f"  {line}" for line in prediction_summary(found.law, document))]


def _table(found: SimulatedPrediction) -> list[str]:
    rows = [["B_p", "n", "M", "reward", "90 % interval", "expected loss", "within 0.005", ""]]
    rows += [
        [
            str(option.problems_per_batch),
            f"{option.rollouts_per_problem:,}",
            f"{option.steps:,}",
            f"{option.reward:.3f}",
            _span(option),
            f"{option.expected_regret:.4f}",
            share(option.probability),
            "" if option.measured else "not measured",
        ]
        for option in found.options[:_SHOWN]
    ]
    more = len(found.options) - _SHOWN
    note = [f"and {count(more, 'configuration')} with a larger expected loss"] if more > 0 else []
    return columns(rows, ">>>>>>><") + note


def _span(option: SplitForecast) -> str:
    low, high = option.interval
    return f"{low:.3f}–{high:.3f}"
