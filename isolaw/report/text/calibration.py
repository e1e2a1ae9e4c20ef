"""The document of a calibration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from math import hypot
from typing import TYPE_CHECKING, Any

import numpy as np

from isolaw import commands
from isolaw.calibration.calibrate import BANDS, SIMULATIONS
from isolaw.calibration.space import BOUND
from isolaw.calibration.splits import MISSED, POOR
from isolaw.report.document import (
    Bar,
    Bullets,
    Caution,
    Document,
    Drawing,
    Passage,
    Snippet,
    Table,
    TableCell,
)
from isolaw.report.text.numbers import count, number

if TYPE_CHECKING:
    from isolaw.calibration.calibrate import Calibration, Constant

_PRIOR = 1.645  # 90 % of the prior is within ±1.645
_IN_PRIOR, _OF_PRIOR = "in the prior", "90 % of the prior"
_PICTURE = (
    "Points are measured rewards. Each member of the ensemble replays the runs: the lines are medians over "
    "the members, and the band contains 90 % of the members. The error is the difference between the points "
    "and the ensemble's mean. The discrepancy δ is the error of the best constants, apart from noise."
)
_BARS = (
    "In the column “in the prior”, the gray bar is 90 % of the prior, the line is 90 % of the posterior, and "
    "the dot is the estimate."
)


def document(found: Calibration, out: str | None = None) -> Document:
    """Return the document: how well the ensemble fits the runs, and an estimate of each constant.

    If the preset was written to a file, ``out`` is its path.
    """
    from isolaw.report.figures.calibration import calibration_figure

    of = found.posterior
    picture = Drawing(
        lambda: calibration_figure(found),
        "Measured rewards and the 90 % band of the calibrated simulator against C, with a panel for each n",
        f"{_PICTURE} δ = {of.discrepancy:.4f}; noise: {of.noise:.4f}; {SIMULATIONS:,} simulations.",
    )
    assumed = [Bullets("", found.observed.assumed)] if found.observed.assumed else []
    following = [] if out is None else [Snippet(_following(found, out), "Next: ")]
    return Document(
        f"calibration of {found.observed.runs.source or 'runs'}",
        [
            Passage("", [_fitted_to(found), _fit(found), *cautions(found)]),
            Passage("Measured and simulated rewards", [picture]),
            Passage("Constants", [_constants(found), *_marks(found)]),
            *(Passage("Assumptions", [own], printed=True) for own in assumed),
            *(Passage("What to run next", [own]) for own in following),
        ],
        _data(found),
    )


def _data(found: Calibration) -> dict[str, Any]:
    return {
        "simulated": found.simulated.json,
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


def _constants(found: Calibration) -> Table:
    """Return a table of the constants. A page also shows each estimate relative to its prior."""
    quantiles = np.quantile(found.posterior.draws, (BANDS[0], 0.5, BANDS[1]), axis=0).T
    low, high = _on_bar([-_PRIOR, _PRIOR])
    heads = ["constant", "estimate", "90 % interval", _OF_PRIOR, _IN_PRIOR, "", "meaning"]
    rows: list[list[str | TableCell]] = [[*heads]]
    for c, x in zip(found.constants, quantiles, strict=True):
        start, middle, end = _on_bar(x)
        bar = TableCell("", bar=Bar(start, middle, end, (low, high)))
        mark = TableCell(_mark(c), kind="bad" * c.at_edge)
        rows.append([c.name, number(c.value), _ends(c.interval), _ends(c.prior), bar, mark, c.meaning])
    caption = _BARS
    if found.space.problems is None:
        caption += " The priors of mean and spread come from the runs."
    return Table.of(rows, "<><<<", caption=caption, page_only=(_OF_PRIOR, _IN_PRIOR))


def _on_bar(x: Sequence[float] | np.ndarray[Any, Any]) -> list[float]:
    """Convert values between −`BOUND` and `BOUND` to percent of a bar's width, clipping values outside.

    >>> _on_bar([-1.5, 0.0, 3.0])
    [25.0, 50.0, 100.0]
    """
    return [round(50 * (1 + float(np.clip(v, -BOUND, BOUND)) / BOUND), 1) for v in x]


def _fitted_to(found: Calibration) -> str:
    """Describe the fitted data and the runs that it comes from."""
    cells = found.observed.protocol.cells
    return (
        f"isolaw fitted the interference simulator to {count(sum(c.runs for c in cells), 'run')} of "
        f"{count(len(cells), 'configuration')} up to C = {number(_end(found))} "
        f"({found.observed.metric} on {found.observed.eval_set})."
    )


def _fit(found: Calibration) -> str:
    """Describe how well the ensemble fits the runs."""
    return (
        f"Measured rewards differ from the ensemble's mean by {found.error:.4f} (root mean square); "
        f"{100 * found.covered:.0f} % of the rewards are within the ensemble's 90 % band."
    )


def cautions(found: Calibration) -> list[Caution]:
    """Return cautions, e.g. if rewards hardly moved, or if even the best constants do not fit the runs."""
    out: list[str] = []
    if not found.moved:
        out.append(
            "nothing learned. Training changed no configuration's reward by more than noise: "
            "predictions of later rewards come from the prior, not from the runs. "
            "Extend runs until rewards move; calibrate again."
        )
    if found.posterior.discrepancy > POOR:
        out.append(
            "no constants reproduce these runs. Apart from noise, the error of the best constants is "
            f"{found.posterior.discrepancy:.3f}. Predictions keep the residuals of the runs. Between "
            "configurations that were not run, do not trust differences smaller than this error."
        )
    explained = hypot(found.posterior.noise, found.posterior.discrepancy)
    if found.error > MISSED * explained:
        out.append(
            f"the ensemble does not fit these runs. Its mean differs from their rewards by "
            f"{found.error:.3f}, but noise and discrepancy explain only {explained:.3f}. Calibrate again "
            "with another --seed, and compare the results."
        )
    if (apart := found.seeds_apart) is not None:
        out.append(
            "seeds differ. The mean rewards of one configuration's runs have a standard deviation of "
            f"{apart[0]:.3f}; simulated runs have {apart[1]:.3f}. The ensemble describes the mean of your "
            "seeds; its intervals include neither single runs nor how other seeds would change this mean."
        )
    return [Caution(text) for text in out]


def _mark(c: Constant) -> str:
    """Return the table's mark for the estimate of a constant; empty for an ordinary estimate."""
    return "at the edge" if c.at_edge else "" if c.identified else "not identified"


def _marks(found: Calibration) -> list[str]:
    """Return one line of explanation for each mark that the table contains."""
    lines: list[str] = []
    if any(not c.identified for c in found.constants):
        lines.append(
            "not identified: the runs constrain the constant little more than the prior does, so the members "
            "of the ensemble have different values."
        )
    if any(c.at_edge for c in found.constants):
        lines.append("at the edge: the estimate is outside the central 95 % of the prior.")
    return lines


def _following(found: Calibration, out: str) -> list[str]:
    """Return the next commands, which use the preset file ``out``."""
    budget = f"{10 * _end(found):.0e}".replace("e+0", "e")
    return [str(commands.predict_by_preset(out, budget)), str(commands.sweep_preset(out))]


def _ends(interval: tuple[float, float]) -> str:
    """Return an interval of a constant as text."""
    return f"{number(interval[0])} to {number(interval[1])}"


def _end(found: Calibration) -> float:
    return max(found.observed.ends)
