"""How mean curves of the model sizes would differ with other runs: the draws of the model-size law.

A draw shifts each size's mean curve (`isolaw.fits.studies.model_size.curves`) by

    √(L (1 − L) / R) · Σ_d h_d e_d / √ν · √(ν / χ²_ν),    h_d ~ N(0, 1)

over the deviations e_d of the runs of *all* sizes, with R runs in the mean and ν = runs − sizes degrees of
freedom. The last factor, one for each draw, makes normal intervals Student's t: there are few runs. It
assumes that runs of all sizes differ alike in that unit. Where no size has two runs, the residuals of each
curve are drawn in blocks instead, which leaves out the variation between runs.
"""

from __future__ import annotations

import numpy as np

from isolaw.fits.studies.model_size.curves import Floats, SizeCurves

# A draw of Student's t beyond this many times the normal one would bend curves, and moves no quantile.
_MOST_INFLATED = 10.0
_PARAMETERS = 2  # of one size's curve, for its residuals


def shifts(curves: SizeCurves, fitted: Floats, draws: int, seed: int) -> Floats:
    """Return what each draw adds to the mean curves.

    Parameters
    ----------
    curves
        of all sizes, P checkpoints.
    fitted
        the law's L there, (P,).
    draws, seed
        how many, and their stream.

    Returns
    -------
    (draws, P), in L.
    """
    return (_runs if curves.freedom else _blocks)(curves, fitted, draws, np.random.default_rng(seed))


def _runs(curves: SizeCurves, fitted: Floats, draws: int, rng: np.random.Generator) -> Floats:
    """What other runs would have changed in the mean curves, (D, P)."""
    inflation = np.minimum(np.sqrt(curves.freedom / rng.chisquare(curves.freedom, draws)), _MOST_INFLATED)
    scale = np.sqrt(np.clip(fitted * (1.0 - fitted), 0.0, None) / (curves.runs * curves.freedom))
    out = np.empty((draws, fitted.size))
    for size in range(len(curves.sizes)):
        step = curves.step[curves.of == size]
        pairs = [_at_steps(step, *deviation) for deviation in curves.deviations]
        within, beyond = (np.array(part) for part in zip(*pairs, strict=True))
        h = rng.standard_normal((2, draws, len(pairs)))
        out[:, curves.of == size] = h[0] @ within + h[1] @ beyond
    return out * scale * inflation[:, None]


def _at_steps(step: Floats, known: Floats, e: Floats) -> tuple[Floats, Floats]:
    """A run's deviation at ``step`` where it was measured, and, mirrored at both ends, where it was not.

    The two are drawn apart: were the same errors to come back at other steps, they would cancel in K.
    """
    last = known.size - 1
    before, after = known[0] - step, step - known[-1]
    position = np.interp(step, known, np.arange(known.size))
    position = np.where(before > 0, before / (known[1] - known[0]), position)
    position = np.where(after > 0, last + after / (known[-1] - known[-2]), position)
    index = np.rint(position).astype(np.int64) % (2 * last)
    values = e[np.where(index > last, 2 * last - index, index)]
    measured = (before <= 0) & (after <= 0)
    return np.where(measured, values, 0.0), np.where(measured, 0.0, values)


def _blocks(curves: SizeCurves, fitted: Floats, draws: int, rng: np.random.Generator) -> Floats:
    """Residuals of each curve in circular blocks of about P^(1/3) checkpoints, (D, P)."""
    out = np.empty((draws, fitted.size))
    for size in range(len(curves.sizes)):
        mine = np.flatnonzero(curves.of == size)
        residual = (curves.loss - fitted)[mine] * np.sqrt(mine.size / (mine.size - _PARAMETERS))
        length = max(1, round(mine.size ** (1 / 3)))
        starts = rng.integers(0, mine.size, (draws, -(-mine.size // length)))
        index = (starts[:, :, None] + np.arange(length)).reshape(draws, -1)[:, : mine.size] % mine.size
        out[:, mine] = residual[index] - residual.mean()
    return out
