"""Fit the logistic law to ready-made points (C, n*), for example from a published figure.

This is the only fit for which isolaw reports least-squares standard errors. Standard errors assume
independent points, but points on a computed frontier are dependent. The errors are therefore labelled
*conditional*.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import ArrayLike

from isolaw.arguments import checked, numbers
from isolaw.errors import DataError, InputError, Refused
from isolaw.evidence import Quantity
from isolaw.fits.document.schema import Axis, PointsDocument, StandardErrors
from isolaw.fits.flags import Code, Flag
from isolaw.fits.laws.equations import fit_logistic, logistic

if TYPE_CHECKING:
    from lmfit.model import ModelResult

_LEAST_POINTS = 5
LABEL = "conditional on independent points"


@checked
def fit_points(
    x_values: ArrayLike, n_star: ArrayLike, x: Literal["compute", "steps"] = "compute"
) -> tuple[PointsDocument, ModelResult]:
    """Fit the logistic law to points by least squares.

    ``x_values`` (X,) contains C in rollouts; the law is then a function of log10 C. If ``x`` is ``steps``,
    it contains M, and the law is a function of M. ``n_star`` (X,) is n* at each point. Returns the law's
    document and the lmfit result behind it, which can compute profile intervals.

    Raises
    ------
    DataError, InputError
        values are not positive and finite.
    Refused
        there are fewer than five points with different x, or all points have one n.

    >>> C = np.geomspace(1e5, 1e7, 50)
    >>> document, result = fit_points(C, 2 ** logistic(np.log10(C), 3.0, 6.0, 7.0, 6.1))
    >>> round(document.params["k"].value, 4), document.standard_errors.label
    (7.0, 'conditional on independent points')
    """
    from lmfit import Model

    if x not in ("compute", "steps"):
        raise InputError(f"x: found {x!r}; expected compute or steps")
    raw, n = numbers(x, x_values), numbers("n_star", n_star)
    if raw.shape != n.shape or raw.ndim != 1:
        raise InputError(f"{x} and n_star: found shapes {raw.shape} and {n.shape}; expected one length")
    for name, values in {x: raw, "n_star": n}.items():
        bad = np.flatnonzero(~(np.isfinite(values) & (values > 0)))
        if bad.size:
            raise DataError(f"{name}: point {bad[0] + 1}: found {values[bad[0]]}; expected a positive number")
    different = np.unique(raw).size
    if raw.size < _LEAST_POINTS or different < _LEAST_POINTS:
        raise Refused(
            f"found {raw.size} points at {different} different {x}; a law has four parameters and needs "
            f"{_LEAST_POINTS} different ones"
        )
    if np.unique(n).size < 2:
        raise Refused(f"all points have n* = {n[0]:g}: a constant determines no law")
    abscissa = np.log10(raw) if x == "compute" else raw
    y = np.log2(n)
    start = fit_logistic(abscissa, y[None])
    model = Model(logistic, independent_vars=["x"])
    parameters = model.make_params(b=start.b[0], L=start.L[0], k=start.k[0], x0=start.x0[0])
    parameters["L"].min = 0.0
    parameters["k"].min = 0.0
    result = model.fit(y, parameters, x=abscissa)
    fitted = {name: float(p.value) for name, p in result.params.items()}
    # A fit that stops on a bound or lacks a covariance has no valid error bars, even if lmfit reports some.
    stuck = bool(start.on_bound[0] or not result.success or not result.errorbars or fitted["L"] <= 1e-9)
    # A step between two points, or a rise that ends outside the points, has no valid error bars either.
    gaps = np.diff(np.unique(abscissa))
    stuck |= bool(fitted["k"] * gaps.min() > 4 or fitted["L"] > 2 * float(np.ptp(y)))
    errors = {
        name: None if stuck or p.stderr is None else float(p.stderr) for name, p in result.params.items()
    }
    conditional = f"standard errors are {LABEL}; points on a computed frontier are not independent"
    flags = [Flag(Code.CONDITIONAL_ERRORS, conditional)]
    if stuck:
        flags.append(Flag(Code.ON_BOUND, "the fit stopped on a bound: the points do not determine the law"))
    ends = float(raw.min()), float(raw.max())
    document = PointsDocument(
        x=Axis(x, "rollouts" if x == "compute" else "steps", x == "compute", ends),
        points=int(raw.size),
        params={n: Quantity(v, None, "not_identified" if stuck else "ok") for n, v in fitted.items()},
        standard_errors=StandardErrors(LABEL, **errors),
        sse=float(np.sum(result.residual**2)),
        flags=tuple(flags),
    )
    return document, result
