"""The page about a calibration: one HTML file without a script; the figure and the bars are SVG in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO

import matplotlib as mpl
import numpy as np
from markupsafe import Markup

from isolaw.calibration.calibrate import BANDS, SIMULATIONS, Calibration, Constant
from isolaw.calibration.space import BOUND
from isolaw.registry import __version__
from isolaw.report.figures.calibration import calibration_figure, label
from isolaw.report.figures.style import STYLE
from isolaw.report.page import check_replaceable, filled, write
from isolaw.report.page.chart import palette
from isolaw.report.text import calibration as text
from isolaw.report.text.numbers import number

__all__ = ["check_replaceable", "render", "write"]

_PRIOR = 1.645  # |x| within which 90 % of the prior is


@dataclass(frozen=True)
class Bar:
    """Where a constant's draws are: their 5 %, 50 % and 95 % in percent of a bar from x = -3 to 3."""

    low: float
    middle: float
    high: float

    @classmethod
    def of(cls, x: Sequence[float]) -> Bar:
        """Return the bar of three coordinates x.

        >>> Bar.of([-1.5, 0.0, 3.0])
        Bar(low=25.0, middle=50.0, high=100.0)
        """
        return cls(*(round(50 * (1 + float(np.clip(v, -BOUND, BOUND)) / BOUND), 1) for v in x))


@dataclass(frozen=True)
class ConstantRow:
    """A row of the table of constants."""

    name: str
    estimate: str
    interval: str
    prior: str
    bar: Bar
    mark: str
    meaning: str

    @classmethod
    def of(cls, c: Constant, x: Sequence[float]) -> ConstantRow:
        """Return the row of a constant with quantiles x of its draws."""
        intervals = text.ends(c.interval), text.ends(c.prior)
        return cls(c.name, number(c.value), *intervals, Bar.of(x), text.mark(c), c.meaning)


def render(
    found: Calibration,
    command: str = "",
    sources: Sequence[tuple[str, str, str]] = (),
    out: str | None = None,
) -> str:
    """Return the page.

    Parameters
    ----------
    found
        from `isolaw.calibrate`.
    command
        repeats the calibration.
    sources
        name, kind and hash of what was read (`isolaw.report.page.provenance.sources`).
    out
        the preset file, if it was written.
    """
    posterior = found.posterior
    quantiles = np.quantile(posterior.draws, (BANDS[0], 0.5, BANDS[1]), axis=0).T
    facts = [
        ("error, root mean square", f"{found.error:.4f}"),
        ("noise of the rewards", f"{posterior.noise:.4f}"),
        ("discrepancy δ", f"{posterior.discrepancy:.4f}"),
        ("rewards within the 90 % band", f"{found.covered:.0%}"),
    ]
    how = [
        ("command", [command] if command else []),
        ("sources", [f"{name} ({kind}, SHA-256 {digest})" for name, kind, digest in sources]),
        ("simulations", [f"{SIMULATIONS:,} of the interference simulator"]),
        ("version", [f"isolaw {__version__}"]),
    ]
    return filled(
        "calibration.html.j2",
        title=label(found).title(f"calibration of {found.observed.runs.source or 'runs'}"),
        palette=palette(1),
        answer=text.fitted_to(found),
        cautions=text.cautions(found),
        facts=facts,
        figure=_figure(found),
        rows=[ConstantRow.of(c, x) for c, x in zip(found.constants, quantiles, strict=True)],
        prior=Bar.of([-_PRIOR, 0.0, _PRIOR]),
        marks=text.marks(found),
        from_runs=found.space.problems is None,
        assumed=found.observed.assumed,
        following=[] if out is None else text.following(found, out),
        how=[(name, lines) for name, lines in how if lines],
    )


def _figure(found: Calibration) -> Markup:
    """The figure as an SVG element; matplotlib escapes the text in it."""
    file = StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with mpl.rc_context(STYLE):
        calibration_figure(found).savefig(file, format="svg", transparent=True, metadata=nothing)
    svg = file.getvalue()
    return Markup(svg[svg.index("<svg") :])
