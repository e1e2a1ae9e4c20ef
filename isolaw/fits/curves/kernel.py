"""The compiled kernel of `isolaw.fits.curves.solve`: one data set after the other, without the GIL.

Each function works on one data set: arrays x, y, weights w (P,), one or two shape parameters θ. Families are
numbered as `isolaw.fits.curves.solve.CODES`, statuses as its `Status`. Compiled at the first call and kept on
disk.
"""

from __future__ import annotations

import numpy as np
from numba import njit

_STARTS = 6
_STEPS = 500
_ROUNDS = 30  # of reweighting, under the robust loss
_HUBER = 1.345  # 95 % efficient where errors are normal
_MAD = 1.4826
# Where points are fewer than parameters, many shapes fit alike, and rounding, which differs between
# processors, must not choose. Of sums of squares that differ by less than this share of the constant's, the
# kernel takes the one with the smallest slope, which claims least beyond the points.
_TIE = 1e-12
_NOTHING = 1e-24  # of a sum of squares: what is left of it is rounding


@njit(cache=True, nogil=True, inline="always")
def _expit(z):  # type: ignore[no-untyped-def]
    if z >= 0:
        return 1.0 / (1.0 + np.exp(-z))
    e = np.exp(z)
    return e / (1.0 + e)


@njit(cache=True, nogil=True)
def _value(code, x, log_x, shape, s):  # type: ignore[no-untyped-def]
    """s at one shape."""
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
    """∂s/∂θ at one shape, where s is known."""
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
    out = np.empty((grid.shape[0], x.size))
    for g in range(grid.shape[0]):
        _value(code, x, log_x, grid[g], out[g])
    return out


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})
def _line(s, y, w, origin, low):  # type: ignore[no-untyped-def]
    """low, slope and sum of squares at one s; y and low are taken about ``origin``."""
    sw = 0.0
    ws = 0.0
    wss = 0.0
    wy = 0.0
    wsy = 0.0
    for p in range(s.size):
        sw += w[p]
        ws += w[p] * s[p]
        wss += w[p] * s[p] * s[p]
        wy += w[p] * (y[p] - origin)
        wsy += w[p] * s[p] * (y[p] - origin)
    if np.isnan(low):
        css = wss - ws * ws / sw
        csy = wsy - ws * wy / sw
        # Where s hardly varies over the data, rounding decides: such a shape explains nothing.
        slope = max(csy, 0.0) / css if css > 1e-12 * wss else 0.0
        base = (wy - slope * ws) / sw
    else:
        base = low - origin
        slope = max(wsy - base * ws, 0.0) / wss if wss > 0 else 0.0
    sse = 0.0
    for p in range(s.size):
        r = base + slope * s[p] - (y[p] - origin)
        sse += w[p] * r * r
    return base + origin if np.isnan(low) else low, slope, sse


@njit(cache=True, nogil=True)
def solve(first, last, code, x, log_x, ys, ws, low, grid, grid_s, neighbours, lo, hi, robust, out):  # type: ignore[no-untyped-def]
    size = x.size
    w = np.empty(size)
    r = np.empty(size)
    last_r = np.empty(size)
    for d in range(first, last):
        y = ys[d] if ys.shape[0] > 1 else ys[0]
        weight = ws[d] if ws.shape[0] > 1 else ws[0]
        w[:] = weight
        _search(code, x, log_x, y, w, low, grid, grid_s, neighbours, lo, hi, out[d])
        if not robust or out[d, 3] == 3:
            continue
        last_r[:] = np.inf
        for _ in range(_ROUNDS):
            _value(code, x, log_x, out[d, 4:], r)
            moved = 0.0
            for p in range(size):
                r[p] = abs(out[d, 0] + out[d, 1] * r[p] - y[p])
                moved = max(moved, abs(r[p] - last_r[p]))
            scale = _MAD * _median(r, weight)
            if moved <= 1e-9 * scale or scale <= 0:
                break
            last_r[:] = r
            for p in range(size):
                w[p] = weight[p] * min(1.0, _HUBER * scale / max(r[p], 1e-300))
            _search(code, x, log_x, y, w, low, grid, grid_s, neighbours, lo, hi, out[d])


@njit(cache=True, nogil=True)
def _median(r, weight):  # type: ignore[no-untyped-def]
    """The median of r when each is there ``weight`` times."""
    order = np.argsort(r)
    half = 0.5 * weight.sum()
    total = 0.0
    for i in range(r.size):
        total += weight[order[i]]
        if total > half:
            return r[order[i]]
        if total == half:
            following = i + 1
            while weight[order[following]] == 0:
                following += 1
            return 0.5 * (r[order[i]] + r[order[following]])
    return np.nan


@njit(cache=True, nogil=True)
def _search(code, x, log_x, y, w, low, grid, grid_s, neighbours, lo, hi, out):  # type: ignore[no-untyped-def]
    """The best of Levenberg–Marquardt from the grid's best local minima, into ``out``."""
    sw = 0.0
    wy = 0.0
    for p in range(x.size):
        sw += w[p]
        wy += w[p] * y[p]
    if not (sw > 0 and np.isfinite(wy)):
        out[:] = 0.0
        out[3] = 3
        return
    origin = wy / sw
    total = 0.0
    for p in range(x.size):
        total += w[p] * (y[p] - origin) ** 2
    if np.isnan(low) and total <= sw * (1e-13 * origin) ** 2:  # what varies is rounding
        out[0], out[1], out[2], out[3] = origin, 0.0, total, 2
        out[4:] = grid[0]
        return
    points = grid.shape[0]
    sse = np.empty(points)
    slopes = np.zeros(points)
    _grid_sse(grid_s, y, w, origin, low, sse, slopes)
    # What stands if y rises nowhere: the level, and no shape in particular.
    level = origin if np.isnan(low) else low
    out[0], out[1], out[2], out[3] = level, 0.0, total + sw * (level - origin) ** 2, 2
    out[4:] = grid[0]
    tie, nothing = _TIE * out[2], _NOTHING * out[2]
    found = False
    minimum = sse < np.inf
    for g in range(points):
        for other in neighbours[g]:
            if other != g and _better(sse[other], slopes[other], sse[g], slopes[g], tie, other < g):
                minimum[g] = False
    shape = np.empty(grid.shape[1])
    for _ in range(_STARTS):
        best = -1
        for g in range(points):
            if minimum[g] and (best < 0 or _better(sse[g], slopes[g], sse[best], slopes[best], tie, False)):
                best = g
        if best < 0:
            break
        minimum[best] = False
        shape[:] = grid[best]
        status, base, slope, value = _descend(code, x, log_x, y, w, origin, low, lo, hi, nothing, shape)
        if not found or _better(value, slope, out[2], out[1], tie, False):
            out[0], out[1], out[2], out[3] = base, slope, value, status
            out[4:] = shape
            found = True


@njit(cache=True, nogil=True, inline="always")
def _better(sse, slope, other_sse, other_slope, tie, equal):  # type: ignore[no-untyped-def]
    """Whether one fit goes before another; ``equal``: also if they do not differ."""
    if abs(sse - other_sse) > tie:
        return sse < other_sse
    if abs(slope - other_slope) > 1e-9 * abs(other_slope):
        return slope < other_slope
    return equal


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})
def _grid_sse(grid_s, y, w, origin, low, sse, slopes):  # type: ignore[no-untyped-def]
    """The sum of squares of the best line at each grid point, ∞ where none rises.

    By subtraction, which is fast, and too few digits for anything but the choice of starts.
    """
    level = 0.0 if np.isnan(low) else low - origin
    wy = np.empty(y.size)
    sw = 0.0
    swy = 0.0
    total = 0.0
    for p in range(y.size):
        wy[p] = w[p] * (y[p] - origin - level)
        sw += w[p]
        swy += wy[p]
        total += wy[p] * (y[p] - origin - level)
    for g in range(sse.size):
        s = grid_s[g]
        ws = 0.0
        wss = 0.0
        along = 0.0
        for p in range(y.size):
            ws += w[p] * s[p]
            wss += w[p] * s[p] * s[p]
            along += wy[p] * s[p]
        spread = wss
        if np.isnan(low):
            spread -= ws * ws / sw
            along -= ws * swy / sw
        rises = along > 0 and spread > 1e-12 * wss
        slopes[g] = along / spread if rises else 0.0
        # An upper bound: where s hardly varies, rounding may have taken more off than there was.
        sse[g] = total - along * slopes[g] + 1e-15 * slopes[g] ** 2 * wss if rises else np.inf


@njit(cache=True, nogil=True)
def _descend(code, x, log_x, y, w, origin, low, lo, hi, nothing, shape):  # type: ignore[no-untyped-def]
    """Levenberg–Marquardt on the shape, the line projected out; ``shape`` is moved to the minimum."""
    size, dims = x.size, shape.size
    s = np.empty(size)
    tried_s = np.empty(size)
    d = np.empty((dims, size))
    tried = np.empty(dims)
    gradient = np.empty(dims)
    normal = np.empty((dims, dims))
    step = np.empty(dims)
    _value(code, x, log_x, shape, s)
    base, slope, sse = _line(s, y, w, origin, low)
    damping = 1e-3
    growth = 2.0
    converged = False
    for _ in range(_STEPS):
        if slope <= 0:
            return 2, base, slope, sse
        _slopes(code, x, log_x, shape, s, d)
        _project(d, s, w, np.isnan(low))
        _normal(d, s, y, w, base, slope, gradient, normal)
        moved = False
        stuck = True
        for k in range(dims):
            outward = (shape[k] <= lo[k] and gradient[k] > 0) or (shape[k] >= hi[k] and gradient[k] < 0)
            if outward:  # on a bound, and downhill lies beyond it: hold this one
                gradient[k] = 0.0
                for m in range(dims):
                    normal[k, m] = normal[m, k] = 0.0
                normal[k, k] = 1.0
            # The gradient's share of what is left of the residuals: the cosine of their angle.
            if abs(gradient[k]) > 1e-9 * np.sqrt(normal[k, k] * sse) + 1e-300:
                stuck = False
        if stuck or sse <= nothing:
            converged = True
            break
        for _ in range(40):
            if dims == 1:
                step[0] = gradient[0] / (normal[0, 0] * (1 + damping) + 1e-300)
            else:
                a, b = normal[0, 0] * (1 + damping) + 1e-300, normal[1, 1] * (1 + damping) + 1e-300
                c = normal[0, 1]
                det = a * b - c * c
                if det <= 0:  # rounding: no more damping than this separates the two
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
            tried_base, tried_slope, tried_sse = _line(tried_s, y, w, origin, low)
            if tried_sse < sse:
                moved = True
                break
            if expected <= 1e-15 * sse:
                break
            damping *= growth
            growth *= 2.0
        if not moved:
            converged = True  # nothing better in any direction that rounding can tell
            break
        gain = sse - tried_sse
        shape[:] = tried
        s, tried_s = tried_s, s
        base, slope, sse = tried_base, tried_slope, tried_sse
        # Nielsen's rule: with large residuals full steps overshoot, and only the gain shows it.
        damping = max(damping * max(1 / 3, 1 - (2 * gain / max(expected, 1e-300) - 1) ** 3), 1e-12)
        growth = 2.0
        if gain <= 1e-15 * sse:
            converged = True
            break
    for k in range(dims):
        margin = 1e-3 * (hi[k] - lo[k])
        if shape[k] < lo[k] + margin or shape[k] > hi[k] - margin:
            return 1, base, slope, sse
    used = 0
    for p in range(size):
        used += w[p] > 0
    free = used - dims - (2 if np.isnan(low) else 1)
    if slope <= 0 or not _identified(normal, sse / max(free, 1), lo, hi):
        return 2, base, slope, sse
    return 0 if converged else 3, base, slope, sse


@njit(cache=True, nogil=True)
def _identified(normal, variance, lo, hi):  # type: ignore[no-untyped-def]
    """Whether each standard error, from the inverse of ``normal``, is narrower than its search."""
    if lo.size == 1:
        return lo[0] == hi[0] or variance < normal[0, 0] * (hi[0] - lo[0]) ** 2
    a, b = normal[0, 0], normal[1, 1]
    det = a * b - normal[0, 1] ** 2
    if det <= 1e-12 * a * b:  # only a combination of the two has an effect
        return False
    first = lo[0] == hi[0] or variance * b < det * (hi[0] - lo[0]) ** 2
    return first and (lo[1] == hi[1] or variance * a < det * (hi[1] - lo[1]) ** 2)


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})
def _normal(d, s, y, w, base, slope, gradient, normal):  # type: ignore[no-untyped-def]
    """Half the gradient of the sum of squares, and JᵀJ, where J = slope · d."""
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
    """Take out of each row of d what 1 and s (or s alone) explain of it."""
    size = s.size
    sw = 0.0
    ws = 0.0
    wss = 0.0
    for p in range(size):
        sw += w[p]
        ws += w[p] * s[p]
        wss += w[p] * s[p] * s[p]
    for k in range(d.shape[0]):
        wd = 0.0
        wsd = 0.0
        wdd = 0.0
        for p in range(size):
            wd += w[p] * d[k, p]
            wsd += w[p] * s[p] * d[k, p]
            wdd += w[p] * d[k, p] * d[k, p]
        if free:
            css = wss - ws * ws / sw
            along = (wsd - ws * wd / sw) / css if css > 0 else 0.0
            mean = (wd - along * ws) / sw
        else:
            along = wsd / wss if wss > 0 else 0.0
            mean = 0.0
        left = 0.0
        for p in range(size):
            d[k, p] -= mean + along * s[p]
            left += w[p] * d[k, p] * d[k, p]
        if left <= _NOTHING * wdd:  # this shape parameter moves no point that the line does not move back
            d[k, :] = 0.0
