"""The compiled kernel of `isolaw.fits.curves.varpro`, which fits data sets in sequence without the GIL.

Most functions work on one data set: arrays x, y and weights w of shape (P,), and one or two shape parameters
θ. The level of the line is fitted if ``free`` is true, and equals ``origin`` otherwise. The family codes are
defined in `isolaw.fits.curves.varpro.CODES`, and the statuses in its `FitStatus`. Numba caches the compiled
code on disk. Loops replace slices and array expressions, which take Numba three times as long to compile.
"""

from __future__ import annotations

import numpy as np
from numba import njit

_STARTS = 6
_STEPS = 500
# With fewer points than parameters, many shapes fit equally well, and rounding must not choose among them. If
# sums of squares differ by less than this share of the constant fit's sum, the smallest slope is chosen.
_TIE = 1e-12
_NOTHING = 1e-24  # a sum of squares below this share of the original sum is rounding error


@njit(cache=True, nogil=True, inline="always")
def _expit(z):  # type: ignore[no-untyped-def]
    if z >= 0:
        return 1.0 / (1.0 + np.exp(-z))
    e = np.exp(z)
    return e / (1.0 + e)


@njit(cache=True, nogil=True)
def _value(code, x, log_x, shape, s):  # type: ignore[no-untyped-def]
    """Write the shape function s(x; θ) of a curve family into ``s``."""
    if code == 0:
        rate = np.exp(-shape[0])
        for p in range(x.size):
            s[p] = -np.expm1(-x[p] * rate)
    elif code == 1:
        power = np.exp(shape[1])
        for p in range(x.size):
            s[p] = _expit((log_x[p] - shape[0]) * power) if x[p] > 0 else 0.0
    elif code == 2:
        k = np.exp(shape[0])
        for p in range(x.size):
            s[p] = _expit((x[p] - shape[1]) * k)
    else:
        for p in range(x.size):
            s[p] = -np.exp(-shape[0] * log_x[p]) if x[p] > 0 else -np.inf


@njit(cache=True, nogil=True)
def _slopes(code, x, log_x, shape, s, d):  # type: ignore[no-untyped-def]
    """Write the derivatives ∂s/∂θ of the shape function into ``d``, given s."""
    if code == 0:
        rate = np.exp(-shape[0])
        for p in range(x.size):
            d[0, p] = -(1.0 - s[p]) * x[p] * rate
    elif code == 1:
        power = np.exp(shape[1])
        for p in range(x.size):
            bend = s[p] * (1.0 - s[p])
            d[0, p] = -power * bend
            d[1, p] = (log_x[p] - shape[0]) * power * bend if x[p] > 0 else 0.0
    elif code == 2:
        k = np.exp(shape[0])
        for p in range(x.size):
            bend = s[p] * (1.0 - s[p])
            d[0, p] = (x[p] - shape[1]) * k * bend
            d[1, p] = -k * bend
    else:
        for p in range(x.size):
            d[0, p] = -log_x[p] * s[p]


@njit(cache=True, nogil=True)
def on_grid(code, x, log_x, grid):  # type: ignore[no-untyped-def]
    """Evaluate s at each row θ of ``grid`` (G, dimensions), and return an array of shape (G, P)."""
    out = np.empty((grid.shape[0], x.size))
    for g in range(grid.shape[0]):
        _value(code, x, log_x, grid[g], out[g])
    return out


@njit(cache=True, nogil=True, inline="always")
def _regress(w, s, y, origin, free):  # type: ignore[no-untyped-def]
    """Regress y − origin on s by weighted least squares, and return the level and the slope.

    The level is 0 unless ``free``.
    """
    sw = ws = wss = wy = wsy = 0.0
    for p in range(w.size):
        sw += w[p]
        ws += w[p] * s[p]
        wss += w[p] * s[p] * s[p]
        wy += w[p] * (y[p] - origin)
        wsy += w[p] * s[p] * (y[p] - origin)
    css, csy = (wss - ws * ws / sw, wsy - ws * wy / sw) if free else (wss, wsy)
    # If s hardly varies over the data, the slope is rounding error; such a shape explains nothing.
    slope = csy / css if css > 1e-12 * wss else 0.0
    return (wy - slope * ws) / sw if free else 0.0, slope


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})
def _line(s, y, w, origin, free):  # type: ignore[no-untyped-def]
    """Return the level, the slope and the sum of squares of the best non-decreasing line."""
    base, slope = _regress(w, s, y, origin, free)
    if slope < 0:
        base, slope = 0.0, 0.0
    sse = 0.0
    for p in range(s.size):
        r = base + slope * s[p] - (y[p] - origin)
        sse += w[p] * r * r
    return base + origin, slope, sse


@njit(cache=True, nogil=True)
def solve(first, last, code, x, log_x, ys, ws, low, grid, grid_s, neighbours, lo, hi, out):  # type: ignore[no-untyped-def]
    """Fit the data sets from ``first`` up to but not including ``last``, and write the results into ``out``.

    Levenberg–Marquardt begins at each of the grid's best local minima. Each row of ``out`` contains low,
    slope, the sum of squares, the status and θ.
    """
    free, dims, points = np.isnan(low), grid.shape[1], grid.shape[0]
    shape = np.empty(dims)
    sse, slopes, minimum = np.empty(points), np.empty(points), np.empty(points, dtype=np.bool_)
    for d in range(first, last):
        y, w = ys[min(d, len(ys) - 1)], ws[min(d, len(ws) - 1)]
        sw = wy = total = 0.0
        for p in range(x.size):
            sw += w[p]
            wy += w[p] * y[p]
        if not (sw > 0 and np.isfinite(wy)):
            for k in range(4 + dims):
                out[d, k] = 3.0 if k == 3 else 0.0
            continue
        origin = wy / sw if free else low
        for p in range(x.size):
            total += w[p] * (y[p] - origin) ** 2
        # The fallback if y does not rise: a constant, with an arbitrary shape.
        out[d, 0], out[d, 1], out[d, 2], out[d, 3] = origin, 0.0, total, 2
        for k in range(dims):
            out[d, 4 + k] = grid[0, k]
        if free and total <= sw * (1e-13 * origin) ** 2:  # all variation is rounding error
            continue
        _grid_sse(grid_s, y, w, origin, free, sw, total, sse, slopes)
        tie, nothing, any_best = _TIE * total, _NOTHING * total, False
        for g in range(points):
            minimum[g] = sse[g] < np.inf
            for other in neighbours[g]:
                if other != g and _better(sse[other], slopes[other], sse[g], slopes[g], tie, other < g):
                    minimum[g] = False
        for _ in range(_STARTS):
            best = -1
            for g in range(points):
                if minimum[g] and (
                    best < 0 or _better(sse[g], slopes[g], sse[best], slopes[best], tie, False)
                ):
                    best = g
            if best < 0:
                break
            minimum[best] = False
            for k in range(dims):
                shape[k] = grid[best, k]
            status, base, slope, value = _descend(code, x, log_x, y, w, origin, free, lo, hi, nothing, shape)
            if not any_best or _better(value, slope, out[d, 2], out[d, 1], tie, False):
                out[d, 0], out[d, 1], out[d, 2], out[d, 3] = base, slope, value, status
                for k in range(dims):
                    out[d, 4 + k] = shape[k]
                any_best = True


@njit(cache=True, nogil=True, inline="always")
def _better(sse, slope, other_sse, other_slope, tie, equal):  # type: ignore[no-untyped-def]
    """Return whether a fit has a smaller error than another, or in a tie a smaller slope.

    The result is ``equal`` if the slopes are equal as well.
    """
    if abs(sse - other_sse) > tie:
        return sse < other_sse
    if abs(slope - other_slope) > 1e-9 * abs(other_slope):
        return slope < other_slope
    return equal


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})
def _grid_sse(grid_s, y, w, origin, free, sw, total, sse, slopes):  # type: ignore[no-untyped-def]
    """Write the best line's sum of squares at each grid point into ``sse``, and its slope into ``slopes``.

    The sum is infinite where the best line does not rise. These values select the starts of the search.
    """
    for g in range(sse.size):
        ws = wss = along = 0.0
        for p in range(y.size):
            s = grid_s[g, p]
            ws += w[p] * s
            wss += w[p] * s * s
            along += w[p] * (y[p] - origin) * s
        spread = wss - ws * ws / sw if free else wss
        rises = along > 0 and spread > 1e-12 * wss
        slopes[g] = along / spread if rises else 0.0
        # Keep this an upper bound: if s hardly varies, rounding can have subtracted too much.
        sse[g] = total - along * slopes[g] + 1e-15 * slopes[g] ** 2 * wss if rises else np.inf


@njit(cache=True, nogil=True)
def _descend(code, x, log_x, y, w, origin, free, lo, hi, nothing, shape):  # type: ignore[no-untyped-def]
    """Run Levenberg–Marquardt on the shape with the line projected out, and move ``shape`` to the minimum.

    Returns the status, the level, the slope and the sum of squares.
    """
    size, dims = x.size, shape.size
    s, tried_s, d = np.empty(size), np.empty(size), np.empty((dims, size))
    tried, gradient, step, normal = np.empty(dims), np.empty(dims), np.empty(dims), np.empty((dims, dims))
    _value(code, x, log_x, shape, s)
    base, slope, sse = _line(s, y, w, origin, free)
    damping, growth, status = 1e-3, 2.0, 0
    for _ in range(_STEPS):
        if slope <= 0:
            return 2, base, slope, sse
        _slopes(code, x, log_x, shape, s, d)
        _project(d, s, w, free)
        _normal(d, s, y, w, base, slope, gradient, normal)
        moved, stuck = False, True
        for k in range(dims):
            outward = (shape[k] <= lo[k] and gradient[k] > 0) or (shape[k] >= hi[k] and gradient[k] < 0)
            if outward:  # the parameter is on a bound and descent points outside: keep it fixed
                gradient[k] = 0.0
                for m in range(dims):
                    normal[k, m] = normal[m, k] = 1.0 if m == k else 0.0
            # Relative gradient: the cosine of the angle between the residuals and this parameter's
            # derivative.
            if abs(gradient[k]) > 1e-9 * np.sqrt(normal[k, k] * sse) + 1e-300:
                stuck = False
        if stuck or sse <= nothing:
            break
        for _ in range(40):
            if dims == 1:
                step[0] = gradient[0] / (normal[0, 0] * (1 + damping) + 1e-300)
            else:
                a, b = normal[0, 0] * (1 + damping) + 1e-300, normal[1, 1] * (1 + damping) + 1e-300
                c = normal[0, 1]
                det = a * b - c * c
                if det <= 0:  # rounding: the two parameters cannot be separated without more damping
                    damping *= growth
                    growth *= 2.0
                    continue
                step[0] = (b * gradient[0] - c * gradient[1]) / det
                step[1] = (a * gradient[1] - c * gradient[0]) / det
            expected = 0.0
            for k in range(dims):
                expected += step[k] * (gradient[k] + damping * normal[k, k] * step[k])
                tried[k] = min(max(shape[k] - step[k], lo[k]), hi[k])
            _value(code, x, log_x, tried, tried_s)
            tried_base, tried_slope, tried_sse = _line(tried_s, y, w, origin, free)
            moved = tried_sse < sse
            if moved or expected <= 1e-15 * sse:
                break
            damping *= growth
            growth *= 2.0
        if not moved:  # rounding hides any further improvement
            break
        gain = sse - tried_sse
        for k in range(dims):
            shape[k] = tried[k]
        s, tried_s = tried_s, s
        base, slope, sse = tried_base, tried_slope, tried_sse
        # Nielsen's rule: with large residuals, full steps overshoot, and only the gain reveals this.
        damping = max(damping * max(1 / 3, 1 - (2 * gain / max(expected, 1e-300) - 1) ** 3), 1e-12)
        growth = 2.0
        if gain <= 1e-15 * sse:
            break
    else:
        status = 3
    for k in range(dims):
        margin = 1e-3 * (hi[k] - lo[k])
        if shape[k] < lo[k] + margin or shape[k] > hi[k] - margin:
            return 1, base, slope, sse
    freedom = -dims - (2 if free else 1)
    for p in range(size):
        freedom += w[p] > 0
    if slope <= 0 or not _identified(normal, sse / max(freedom, 1), lo, hi):
        return 2, base, slope, sse
    return status, base, slope, sse


@njit(cache=True, nogil=True)
def _identified(normal, variance, lo, hi):  # type: ignore[no-untyped-def]
    """Return whether the data identify θ: each standard error is below the width of its search range.

    Standard errors come from the inverse of ``normal``.
    """
    if lo.size == 1:
        return lo[0] == hi[0] or variance < normal[0, 0] * (hi[0] - lo[0]) ** 2
    a, b = normal[0, 0], normal[1, 1]
    det = a * b - normal[0, 1] ** 2
    if det <= 1e-12 * a * b:  # the data determine only a combination of the two parameters
        return False
    first = lo[0] == hi[0] or variance * b < det * (hi[0] - lo[0]) ** 2
    return first and (lo[1] == hi[1] or variance * a < det * (hi[1] - lo[1]) ** 2)


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})
def _normal(d, s, y, w, base, slope, gradient, normal):  # type: ignore[no-untyped-def]
    """Write half the gradient of the sum of squares into ``gradient``, and JᵀJ into ``normal``.

    J is slope · d.
    """
    for k in range(d.shape[0]):
        total = 0.0
        for p in range(s.size):
            total += w[p] * d[k, p] * (base + slope * s[p] - y[p])
        gradient[k] = slope * total
        for m in range(k + 1):
            total = 0.0
            for p in range(s.size):
                total += w[p] * d[k, p] * d[m, p]
            normal[k, m] = normal[m, k] = slope * slope * total


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})
def _project(d, s, w, free):  # type: ignore[no-untyped-def]
    """Subtract from each row of d its regression on s, which includes a constant if ``free``."""
    for k in range(d.shape[0]):
        base, along = _regress(w, s, d[k], 0.0, free)
        before = after = 0.0
        for p in range(s.size):
            before += w[p] * d[k, p] * d[k, p]
            d[k, p] -= base + along * s[p]
            after += w[p] * d[k, p] * d[k, p]
        if after <= _NOTHING * before:  # the line absorbs everything that this parameter changes
            for p in range(w.size):
                d[k, p] = 0.0
