"""The compiled kernel of `isolaw.fits.curves.varpro`, which fits data sets in sequence without the GIL.

Most functions work on one data set: arrays u, y and weights w of shape (P,), where u is x or log x, and one
or two shape parameters θ. The level of the line is fitted if ``free`` is true, and equals ``origin``
otherwise. `isolaw.fits.curves.varpro` defines which family uses which shape function, and the statuses:

    0   s = 1 − exp(−u e^(−θ0))
    1   s = 1 / (1 + exp(−e^θ1 (u − θ0)))
    2   s = −exp(−θ0 u)

Numba caches the compiled code on disk. Loops replace slices and array expressions, which take Numba three
times as long to compile.
"""

from __future__ import annotations

import numpy as np
from numba import njit

_STARTS = 6
_MOST_STEPS = 500
# With fewer points than parameters, many shapes fit equally well, and rounding must not choose among them. If
# sums of squares differ by less than this share of the constant fit's sum, the smallest slope is chosen.
_TIE = 1e-12
_ROUNDING = 1e-24  # a sum of squares below this share of the original sum is rounding error


@njit(cache=True, nogil=True, inline="always")
def _expit(z):  # type: ignore[no-untyped-def]
    if z >= 0:
        return 1.0 / (1.0 + np.exp(-z))
    e = np.exp(z)
    return e / (1.0 + e)


@njit(cache=True, nogil=True)
def _shape_values(code, u, shape, s):  # type: ignore[no-untyped-def]
    """Write the shape function s of a curve family into ``s``."""
    if code == 0:
        rate = np.exp(-shape[0])
        for p in range(u.size):
            s[p] = -np.expm1(-u[p] * rate)
    elif code == 1:
        steepness = np.exp(shape[1])
        for p in range(u.size):
            s[p] = _expit((u[p] - shape[0]) * steepness)
    else:
        for p in range(u.size):
            s[p] = -np.exp(-shape[0] * u[p])


@njit(cache=True, nogil=True)
def _shape_slopes(code, u, shape, s, derivatives):  # type: ignore[no-untyped-def]
    """Write the derivatives ∂s/∂θ of the shape function into ``derivatives``, given s."""
    if code == 0:
        rate = np.exp(-shape[0])
        for p in range(u.size):
            derivatives[0, p] = -(1.0 - s[p]) * u[p] * rate
    elif code == 1:
        steepness = np.exp(shape[1])
        for p in range(u.size):
            s_slope = s[p] * (1.0 - s[p])
            derivatives[0, p] = -steepness * s_slope
            derivatives[1, p] = (u[p] - shape[0]) * steepness * s_slope if u[p] > -np.inf else 0.0
    else:
        for p in range(u.size):
            derivatives[0, p] = -u[p] * s[p]


@njit(cache=True, nogil=True)
def values_on_grid(code, u, grid):  # type: ignore[no-untyped-def]
    """Evaluate s at each row θ of ``grid`` (G, dimensions), and return an array of shape (G, P)."""
    values = np.empty((grid.shape[0], u.size))
    for g in range(grid.shape[0]):
        _shape_values(code, u, grid[g], values[g])
    return values


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
def _fit_line(s, y, w, origin, free):  # type: ignore[no-untyped-def]
    """Return the level, the slope and the sum of squares of the best non-decreasing line."""
    level, slope = _regress(w, s, y, origin, free)
    if slope < 0:
        level, slope = 0.0, 0.0
    sse = 0.0
    for p in range(s.size):
        residual = level + slope * s[p] - (y[p] - origin)
        sse += w[p] * residual * residual
    return level + origin, slope, sse


@njit(cache=True, nogil=True)
def solve(begin, end, code, u, ys, ws, fixed_level, grid, grid_s, neighbours, low, high, fits):  # type: ignore[no-untyped-def]
    """Fit the data sets from ``begin`` up to but not including ``end``, and write the results into ``fits``.

    Levenberg–Marquardt begins at each of the grid's best local minima. Each row of ``fits`` contains level,
    slope, the sum of squares, the status and θ.
    """
    free, dims, grid_size = np.isnan(fixed_level), grid.shape[1], grid.shape[0]
    shape = np.empty(dims)
    sse, slopes, is_minimum = np.empty(grid_size), np.empty(grid_size), np.empty(grid_size, dtype=np.bool_)
    for i in range(begin, end):
        y, w = ys[min(i, len(ys) - 1)], ws[min(i, len(ws) - 1)]
        sw = wy = total_sse = 0.0
        for p in range(u.size):
            sw += w[p]
            wy += w[p] * y[p]
        if not (sw > 0 and np.isfinite(wy)):
            for j in range(4 + dims):
                fits[i, j] = 3.0 if j == 3 else 0.0
            continue
        origin = wy / sw if free else fixed_level
        for p in range(u.size):
            total_sse += w[p] * (y[p] - origin) ** 2
        # The fallback if y does not rise: a constant, with an arbitrary shape.
        fits[i, 0], fits[i, 1], fits[i, 2], fits[i, 3] = origin, 0.0, total_sse, 2
        for j in range(dims):
            fits[i, 4 + j] = grid[0, j]
        if free and total_sse <= sw * (1e-13 * origin) ** 2:  # all variation is rounding error
            continue
        for g in range(grid_size):
            _, slopes[g], sse[g] = _fit_line(grid_s[g], y, w, origin, free)
        tie, tiny, has_result = _TIE * total_sse, _ROUNDING * total_sse, False
        for g in range(grid_size):
            is_minimum[g] = slopes[g] > 0
            for other in neighbours[g]:
                if other != g and _beats(sse[other], slopes[other], sse[g], slopes[g], tie, other < g):
                    is_minimum[g] = False
        for _ in range(_STARTS):
            best = -1
            for g in range(grid_size):
                if is_minimum[g] and (
                    best < 0 or _beats(sse[g], slopes[g], sse[best], slopes[best], tie, False)
                ):
                    best = g
            if best < 0:
                break
            is_minimum[best] = False
            for j in range(dims):
                shape[j] = grid[best, j]
            status, level, slope, error = _descend(code, u, y, w, origin, free, low, high, tiny, shape)
            if not has_result or _beats(error, slope, fits[i, 2], fits[i, 1], tie, False):
                fits[i, 0], fits[i, 1], fits[i, 2], fits[i, 3] = level, slope, error, status
                for j in range(dims):
                    fits[i, 4 + j] = shape[j]
                has_result = True


@njit(cache=True, nogil=True, inline="always")
def _beats(sse, slope, other_sse, other_slope, tie, if_equal):  # type: ignore[no-untyped-def]
    """Return whether a fit has a smaller error than another, or in a tie a smaller slope.

    The result is ``if_equal`` if the slopes are equal as well.
    """
    if abs(sse - other_sse) > tie:
        return sse < other_sse
    if abs(slope - other_slope) > 1e-9 * abs(other_slope):
        return slope < other_slope
    return if_equal


@njit(cache=True, nogil=True)
def _descend(code, u, y, w, origin, free, low, high, rounding, shape):  # type: ignore[no-untyped-def]
    """Run Levenberg–Marquardt on the shape with the line projected out, and move ``shape`` to the minimum.

    Returns the status, the level, the slope and the sum of squares.
    """
    size, dims = u.size, shape.size
    s, new_s, derivatives = np.empty(size), np.empty(size), np.empty((dims, size))
    new_shape, gradient, step, normal = np.empty(dims), np.empty(dims), np.empty(dims), np.empty((dims, dims))
    _shape_values(code, u, shape, s)
    level, slope, sse = _fit_line(s, y, w, origin, free)
    damping, growth, status = 1e-3, 2.0, 0
    for _ in range(_MOST_STEPS):
        if slope <= 0:
            return 2, level, slope, sse
        _shape_slopes(code, u, shape, s, derivatives)
        _project(derivatives, s, w, free)
        _normal_equations(derivatives, s, y, w, level, slope, gradient, normal)
        improved, is_stationary = False, True
        for j in range(dims):
            outward = (shape[j] <= low[j] and gradient[j] > 0) or (shape[j] >= high[j] and gradient[j] < 0)
            if outward:  # the parameter is on a bound and descent points outside: keep it fixed
                gradient[j] = 0.0
                for i in range(dims):
                    normal[j, i] = normal[i, j] = 1.0 if i == j else 0.0
            # Relative gradient: the cosine of the angle between the residuals and this parameter's
            # derivative.
            if abs(gradient[j]) > 1e-9 * np.sqrt(normal[j, j] * sse) + 1e-300:
                is_stationary = False
        if is_stationary or sse <= rounding:
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
            expected_gain = 0.0
            for j in range(dims):
                expected_gain += step[j] * (gradient[j] + damping * normal[j, j] * step[j])
                new_shape[j] = min(max(shape[j] - step[j], low[j]), high[j])
            _shape_values(code, u, new_shape, new_s)
            new_level, new_slope, new_sse = _fit_line(new_s, y, w, origin, free)
            improved = new_sse < sse
            if improved or expected_gain <= 1e-15 * sse:
                break
            damping *= growth
            growth *= 2.0
        if not improved:  # rounding hides any further improvement
            break
        gain = sse - new_sse
        for j in range(dims):
            shape[j] = new_shape[j]
        s, new_s = new_s, s
        level, slope, sse = new_level, new_slope, new_sse
        # Nielsen's rule: with large residuals, full steps overshoot, and only the gain reveals this.
        damping = max(damping * max(1 / 3, 1 - (2 * gain / max(expected_gain, 1e-300) - 1) ** 3), 1e-12)
        growth = 2.0
        if gain <= 1e-15 * sse:
            break
    else:
        status = 3
    for j in range(dims):
        margin = 1e-3 * (high[j] - low[j])
        if shape[j] < low[j] + margin or shape[j] > high[j] - margin:
            return 1, level, slope, sse
    freedom = -dims - (2 if free else 1)
    for p in range(size):
        freedom += w[p] > 0
    if slope <= 0 or not _identified(normal, sse / max(freedom, 1), low, high):
        return 2, level, slope, sse
    return status, level, slope, sse


@njit(cache=True, nogil=True)
def _identified(normal, variance, low, high):  # type: ignore[no-untyped-def]
    """Return whether the data identify θ: each standard error is below the width of its search range.

    Standard errors come from the inverse of ``normal``.
    """
    if low.size == 1:
        return low[0] == high[0] or variance < normal[0, 0] * (high[0] - low[0]) ** 2
    a, b = normal[0, 0], normal[1, 1]
    det = a * b - normal[0, 1] ** 2
    if det <= 1e-12 * a * b:  # the data determine only a combination of the two parameters
        return False
    first_identified = low[0] == high[0] or variance * b < det * (high[0] - low[0]) ** 2
    return first_identified and (low[1] == high[1] or variance * a < det * (high[1] - low[1]) ** 2)


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})
def _normal_equations(derivatives, s, y, w, level, slope, gradient, normal):  # type: ignore[no-untyped-def]
    """Write half the gradient of the sum of squares into ``gradient``, and JᵀJ into ``normal``.

    J is slope · d.
    """
    for j in range(derivatives.shape[0]):
        total = 0.0
        for p in range(s.size):
            total += w[p] * derivatives[j, p] * (level + slope * s[p] - y[p])
        gradient[j] = slope * total
        for i in range(j + 1):
            total = 0.0
            for p in range(s.size):
                total += w[p] * derivatives[j, p] * derivatives[i, p]
            normal[j, i] = normal[i, j] = slope * slope * total


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})
def _project(derivatives, s, w, free):  # type: ignore[no-untyped-def]
    """Subtract from each row of d its regression on s, which includes a constant if ``free``."""
    for j in range(derivatives.shape[0]):
        level, slope = _regress(w, s, derivatives[j], 0.0, free)
        sum_before = sum_after = 0.0
        for p in range(s.size):
            sum_before += w[p] * derivatives[j, p] * derivatives[j, p]
            derivatives[j, p] -= level + slope * s[p]
            sum_after += w[p] * derivatives[j, p] * derivatives[j, p]
        if sum_after <= _ROUNDING * sum_before:  # the line absorbs everything that this parameter changes
            for p in range(w.size):
                derivatives[j, p] = 0.0
