"""Fit the model-size law: how fast models of different size N learn (Tan et al., arXiv 2509.25300).

    log10 L = −K(N) · log10 X + E(N),    K(N) = K_max / (1 + N0 / N),    L = 1 − pass@1

X is compute (in FLOPs, 6 N T, where T is the number of tokens trained on) or data (prompts). K_max is the
exponent of an infinitely large model, and N0 is the size at which K is half of K_max. E(N) is free for each
size. The fit minimises squared error in L, as the authors do, or in log10 L. Every size has the same weight,
regardless of its number of checkpoints (`isolaw.fits.studies.model_size.solve`).

Intervals come from resampling the mean curves with the run as the unit. Each draw repeats the whole fit.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from isolaw.arguments import checked
from isolaw.errors import DataError, InputError, Refused, shown
from isolaw.fits.document.codec import encoded
from isolaw.fits.flags import Code, Flag
from isolaw.fits.quantity import Quantity, estimated
from isolaw.fits.selection import Floats
from isolaw.fits.studies.model_size.curves import SizeCurves, shifts
from isolaw.fits.studies.model_size.solve import SizeFits, SizeProblem, bounds, exponents

Loss = Literal["reward", "log"]

_LEAST_SIZES_FOR_E = 4
_LEAST_EXPONENT = 1e-9  # smaller exponents are rounding error


@dataclass(frozen=True)
class SizeLaw:
    """A fitted law of the loss L as a function of the model size N and of compute or data X."""

    curves: SizeCurves
    loss: Loss
    fits: SizeFits  # the estimate, followed by D draws
    bends: Floats  # relative change of K per decade of X, (1 + D,); 0 under the law
    unit: Literal["run", "block"]  # unit of resampling; blocks if no size has two runs

    @cached_property
    def N0(self) -> Quantity:
        """The size at which K(N) is half of K_max, in the unit of N."""
        at_zero = self.fits.log_n0 <= bounds(self.curves.sizes)[0]
        found = self._if_saturating(np.where(at_zero, 0.0, np.exp(self.fits.log_n0)))
        return Quantity(0.0, found.interval, "upper_bound") if at_zero[0] else found

    @cached_property
    def K_max(self) -> Quantity:
        """K_max, the exponent of an infinitely large model."""
        return self._if_saturating(self.fits.kappa * (1 + np.exp(self.fits.log_n0) / self.curves.sizes[-1]))

    @cached_property
    def K(self) -> dict[float, Quantity]:
        """The exponent K(N) of each fitted model size N."""
        return self._by_size(self.fits.K)

    @cached_property
    def E(self) -> dict[float, Quantity]:
        """The offset E(N), in log10 L, of each fitted model size N."""
        return self._by_size(self.fits.E)

    @cached_property
    def bend(self) -> Quantity:
        """Relative change of K per decade of X, which is 0 for straight curves."""
        return estimated(self.bends)

    def _by_size(self, values: Floats) -> dict[float, Quantity]:
        return {float(n): estimated(v) for n, v in zip(self.curves.sizes, values.T, strict=True)}

    def _if_saturating(self, values: Floats) -> Quantity:
        """Return a quantity that diverges with N0, with its status.

        If the estimate of N0 is at the upper end of its search range, the quantity is unknown. If only draws
        are, it is a lower bound.
        """
        values = np.where(self.fits.log_n0 >= bounds(self.curves.sizes)[1], np.inf, values)
        if not np.isfinite(values[0]):
            return Quantity(None, None, "not_identified")
        found = estimated(values)
        if found.interval is not None and found.interval[1] is None:
            return Quantity(found.value, found.interval, "lower_bound")
        return found

    def predict(self, size: float, x: float, seed: int = 0) -> Quantity:
        """Return the expected reward (pass@1 = 1 − L) at X = ``x``, the mean over runs.

        A fitted size keeps its E(N), even beyond its checkpoints. For other sizes, E(N) is extrapolated:

            E(N) = K(N) · (a + r · log10 N) + ε

        with a and r fitted by least squares to the S fitted sizes. All lines then reach L = 1 at an X ∝ N^r.
        ε is the scatter of these sizes, drawn with ``seed`` from Student's t with S − 2 degrees of freedom.

        Raises
        ------
        InputError
            ``size`` or ``x`` is not positive.
        Refused
            the size was not fitted, and fewer than four sizes were fitted.
        """
        for name, value in {"N": size, "X": x}.items():
            if not (np.isfinite(value) and value > 0):
                raise InputError(f"{name}: found {value:g}; expected a positive number")
        known = np.flatnonzero(np.isclose(self.curves.sizes, size, rtol=1e-9))
        if known.size:
            K, E = self.fits.K[:, known[0]], self.fits.E[:, known[0]]
        else:
            one = np.array([size])
            K = exponents(self.fits.kappa, self.fits.log_n0, one, self.curves.sizes[-1])[0][:, 0]
            E = self._extrapolated(size, K, np.random.default_rng(seed))
        return estimated(1.0 - 10.0 ** np.clip(E - K * np.log10(x), -300.0, 0.0))

    def _extrapolated(self, size: float, K: Floats, rng: np.random.Generator) -> Floats:
        """Return E for a size that was not fitted, extrapolated in the estimate and in each of D draws."""
        S = len(self.curves.sizes)
        if S < _LEAST_SIZES_FOR_E:
            raise Refused(
                f"N = {size:g} was not fitted, and extrapolating E(N) needs {_LEAST_SIZES_FOR_E} sizes or "
                f"more; found {S}. Add runs of another size, or a short run of this size"
            )
        rows = np.stack([self.fits.K, self.fits.K * np.log10(self.curves.sizes)], axis=2)
        inverse = np.linalg.pinv(rows.transpose(0, 2, 1) @ rows)
        b = np.einsum("dij,dsj,ds->di", inverse, rows, self.fits.E)
        scatter = np.sum((self.fits.E - np.einsum("dsi,di->ds", rows, b))[0] ** 2) / (S - 2)
        new = np.stack([K, K * np.log10(size)], axis=1)
        width = np.sqrt(scatter * (1.0 + np.einsum("i,ij,j->", new[0], inverse[0], new[0])))
        epsilon = np.concatenate([[0.0], width * rng.standard_t(S - 2, len(K) - 1)])
        return np.asarray(np.einsum("di,di->d", new, b) + epsilon)

    def last_x(self, size: float) -> float:
        """Return the largest measured X of the nearest size, rescaled to ``size`` at equal tokens."""
        curves = self.curves
        near = int(np.abs(np.log(curves.sizes / size)).argmin())
        last = float(curves.x[curves.of == near].max())
        return last * size / float(curves.sizes[near]) if curves.x_name == "compute" else last

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-able data, with every estimate as value, interval and status."""
        curves = self.curves
        return {
            "format": "isolaw.size/1",
            "simulated": curves.simulated.json,
            "x": curves.x_name,
            "loss": self.loss,
            "checkpoints": int(curves.x.size),
            "sse": float(self.fits.sse[0]),
            "params": encoded({"K_max": self.K_max, "N0": self.N0}),
            "bend": encoded(self.bend),
            "sizes": encoded([{"model_size": n, "K": self.K[n], "E": self.E[n]} for n in self.K]),
            "warnings": self.warnings,
        }

    @property
    def warnings(self) -> list[str]:
        """The texts of the `flags`."""
        return [flag.text for flag in self.flags]

    @property
    def flags(self) -> list[Flag]:
        """The reasons for care with the fitted law."""
        out = []
        low, high = bounds(self.curves.sizes)
        if self.fits.log_n0[0] >= high:
            text = (
                f"K(N) grows in proportion to N up to N = {self.curves.sizes[-1]:g}: the runs show no "
                "saturation, so K_max and N0 are not identified. Add runs of larger models"
            )
            out.append(Flag(Code.UNSATURATED, text))
        elif self.fits.log_n0[0] <= low:
            text = "K(N) is the same for all sizes: N0 may be 0. Add runs of smaller models"
            out.append(Flag(Code.UNSATURATED, text))
        elif "lower_bound" in (self.N0.status, self.K_max.status):
            text = "N0 and K_max have no upper bound. Add runs of larger models, or more runs of each size"
            out.append(Flag(Code.UNSATURATED, text))
        first, last = self.bend.interval or (None, None)
        if first is not None and last is not None and (first > 0 or last < 0):
            text = (
                f"the curves are less straight than the law assumes: K changes by {100 * self.bends[0]:+.0f} "
                f"% in a decade of {self.curves.x_name} (95 % interval: {100 * first:+.0f} % to "
                f"{100 * last:+.0f} %). Predictions beyond the "
                "checkpoints extrapolate straight lines, and their intervals ignore the change"
            )
            out.append(Flag(Code.BENT, text))
        if self.unit == "block" and len(self.fits.kappa) > 1:
            text = "no size has two runs: intervals leave out the variation between runs"
            out.append(Flag(Code.ONE_SEED, text))
        return out


@checked
def fit_sizes(curves: SizeCurves, loss: Loss = "reward", draws: int = 400, seed: int = 0) -> SizeLaw:
    """Fit the model-size law to three or more sizes.

    ``loss`` is ``reward`` for squared error in L, as in the paper, or ``log`` for squared error in log10 L.
    ``draws`` is the number of draws, and ``seed`` is their seed.

    Raises
    ------
    InputError
        the loss is unknown.
    DataError
        L is 0 at a checkpoint, and ``loss`` is ``log``.
    Refused
        the reward does not rise with X.

    >>> import pandas as pd
    >>> N, step = np.repeat([1.0, 4.0, 16.0, 64.0], 20), np.tile(np.arange(1.0, 21.0), 4)
    >>> L = 10 ** (-0.15 / (1 + 17 / N) * np.log10(512 * step))
    >>> table = pd.DataFrame({"model_size": N, "step": step, "data": 512 * step, "loss": L})
    >>> law = fit_sizes(SizeCurves.from_table(table, "data"), draws=0)
    >>> round(law.K_max.value, 6), round(law.N0.value, 4)
    (0.15, 17.0)
    """
    if loss not in ("reward", "log"):
        raise InputError(f"loss: found {shown(loss)}; expected reward or log")
    log = loss == "log"
    if log and curves.loss.min() <= 0:
        at = int(curves.loss.argmin())
        raise DataError(
            f"N = {curves.sizes[curves.of[at]]:g} has reward 1 at step {curves.step[at]:g}, which has no log "
            "loss; expected loss reward"
        )
    problem = SizeProblem(curves, log)
    low, high = bounds(curves.sizes)
    y = (np.log10(curves.loss) if log else curves.loss)[None]
    estimate = problem.best(y, [(0.05, v) for v in np.linspace(low, high, 9)[1:-1]])
    kappa, log_n0 = float(estimate.kappa[0]), float(estimate.log_n0[0])
    if kappa <= _LEAST_EXPONENT:
        raise Refused(
            f"reward does not rise with {curves.x_name}: no learning speed to fit. Add later checkpoints"
        )
    unit: Literal["run", "block"] = "run" if curves.freedom else "block"
    bends = problem.bend(y, estimate)
    if not draws:
        return SizeLaw(curves, loss, estimate, bends, unit)
    fitted = problem.curve(estimate)[0]
    shift = shifts(curves, fitted, draws, seed)
    if log:
        shift = shift / (np.log(10.0) * fitted)
    near = np.clip(log_n0 + np.array([0.0, -1.5, 1.5]), low, high)
    drawn = problem.best(y + shift, [(kappa, v) for v in near])
    bends = np.concatenate([bends, problem.bend(y + shift, drawn)])
    fits = SizeFits(*(np.concatenate(pair) for pair in zip(estimate, drawn, strict=True)))
    return SizeLaw(curves, loss, fits, bends, unit)
