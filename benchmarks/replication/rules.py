"""The findings F1 to F7 of arXiv 2603.12151: the effect that measures each, and the rule for its verdict.

An effect is positive if it has the direction that the finding states. The verdict is *yes* if the 95 %
interval of the effect over seeds excludes zero and the effect is at least one doubling of n (for F4a, F5b and
F7: at least 0.01 in reward or in the share of problems). The verdict is *partly* if the interval excludes
zero but the effect is smaller, and otherwise *no* or *not measured*. A finding with several effects gets the
weakest verdict. Arrays of rewards have shape (S, …, N), for S seeds and N values of n at the largest budget,
or (S, N, X), at X budgets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np

from benchmarks.replication.smoothing import Optimum, optimum, path, smooth
from benchmarks.replication.verdicts import (
    DOUBLINGS,
    LEAST,
    PROBLEMS,
    REWARD,
    Effect,
    Finding,
    Floats,
    leave_one_out,
)

_WRONG = 3.0  # doublings: a wrong n or B_p is wrong by a factor of 8


def n_star(levels: Sequence[int], values: Floats) -> Optimum:
    """Return n* from the mean over all seeds, and from the means without each seed, of shape (1 + S, …).

    ``values`` contains the rewards of the seeds, of shape (S, …, N).
    """
    return optimum(np.log2(levels), leave_one_out(values))


def _compared(
    key: str, name: str, statement: str, label: str, rows: Floats, notes: Sequence[str], holds: bool = True
) -> Finding:
    """Return a finding on n*.

    ``rows``, of shape (2, 1 + S), contains the effects on n* and on the smallest n within the tolerance.
    """
    effect, tolerance = (Effect.of(label, DOUBLINGS, row) for row in rows)
    return Finding(key, name, statement, (effect,), tolerance, holds, tuple(notes))


def _at_edge(levels: Sequence[int], **bounds: Floats) -> list[str]:
    """Return a note for each n* that is only a bound because it is at an edge of the grid."""
    edge = {-1.0: levels[0], 1.0: levels[-1]}
    return [f"{name}: n* is at the grid's edge, {edge[float(b)]}" for name, b in bounds.items() if b in edge]


def rises(name: str, levels: Sequence[int], values: Floats, *, key: str = "F1", how: str = "") -> Finding:
    """F1: n* rises with C, then saturates: neither of the two largest n is the best at the largest C."""
    n = path(levels, leave_one_out(values))
    mean = values[:, :, -1].mean(axis=0)
    best = levels[int(np.nanargmax(mean))] if np.isfinite(mean).any() else None
    saturates = best is not None and best not in list(levels)[-2:]
    notes = [
        f"highest at the largest C: n = {best}"
        + ("" if saturates else ", one of the top two: no saturation"),
        f"n* along C: {_along(n.log2_n)}",
        _frontier(n.reward[0]),
        *_at_edge(levels, start=n.bound[0, 0], end=n.bound[0, -1]),
    ]
    statement, label = f"n* rises with C, then saturates{how}", "log2 n* at C minus log2 n* at C/128"
    return _compared(key, name, statement, label, n.both[:, :, -1] - n.both[:, :, 0], notes, saturates)


def retuned(values: Floats) -> tuple[Floats, Floats]:
    """Re-tune η for every n and C, as `isolaw.fits.studies.retune` does.

    ``values`` contains rewards of shape (S, N, X, L) for L values of η. Returns each seed's rewards, of shape
    (S, N, X), at the η that is best on the other seeds, since its own best η is biased upward. Also returns
    how often each η was chosen, as shares of shape (L,).
    """
    others = leave_one_out(values)[1:]
    # An η is not eligible if any run diverged with it.
    usable = np.where(np.isfinite(others) & np.isfinite(values).all(axis=0), others, -np.inf)
    choice = usable.argmax(axis=3)
    chosen = np.take_along_axis(values, choice[..., None], axis=3)[..., 0]
    known = np.isfinite(usable.max(axis=3))
    share = np.bincount(choice[known], minlength=values.shape[3]) / max(int(known.sum()), 1)
    return np.where(known, chosen, np.nan), share


def lr_control(
    name: str, levels: Sequence[int], values: Floats, tuned: Floats, factors: Sequence[float], share: Floats
) -> Finding:
    """F1 lr: how much of the rise remains if η is re-tuned at each C and n (see `retuned`).

    A larger n with lr ∝ √B lowers the noise, as a smaller lr does, so an annealed lr can explain a part of
    F1.
    """
    finding = rises(name, levels, tuned, key="F1 lr", how=", with η re-tuned at each n and C")
    rule = rises(name, levels, values).effect
    edges = ", ".join(f"{100 * share[i]:.0f} % at η × {factors[i]:g}" for i in (0, -1))
    note = (
        f"the square-root rule rises by {rule.value:.2f} doublings; chosen at the ends of its grid: {edges}"
    )
    return replace(finding, notes=(*finding.notes, note))


def harder(levels: Sequence[int], easy: Floats, hard: Floats) -> Finding:
    """F2: harder problem sets saturate at smaller n*."""
    a, b = n_star(levels, easy), n_star(levels, hard)
    notes = [
        f"n* is {_n(a.log2_n[0])} on the easy and {_n(b.log2_n[0])} on the hard set",
        *_at_edge(levels, easy=a.bound[0], hard=b.bound[0]),
    ]
    statement, label = "the harder set saturates at a smaller n*", "log2 n* at C, easy minus hard"
    return _compared("F2", "both", statement, label, a.both - b.both, notes)


def sharpening(name: str, levels: Sequence[int], worst: Floats, best: Floats) -> Finding:
    """F3: on the easy set worst@4 needs a larger n than best@4, and on the hard set the reverse."""
    a, b = n_star(levels, worst), n_star(levels, best)
    sign, larger, smaller = (1, "worst@4", "best@4") if name == "easy" else (-1, "best@4", "worst@4")
    notes = [
        f"n* is {_n(a.log2_n[0])} for worst@4 and {_n(b.log2_n[0])} for best@4",
        *_at_edge(levels, **{"worst@4": a.bound[0], "best@4": b.bound[0]}),
    ]
    statement, label = f"{larger} needs a larger n than {smaller}", f"log2 n* at C, {larger} minus {smaller}"
    return _compared("F3", name, statement, label, sign * (a.both - b.both), notes)


def batches(levels: Sequence[int], sizes: Sequence[int], values: Floats, base: int) -> Finding:
    """F4a: B_p matters little, so a wrong B_p costs less than a wrong n. ``values`` has shape (S, B_p, N)."""
    rows = leave_one_out(values)
    log2_n = np.log2(levels)
    best = optimum(log2_n, rows).reward
    of_batch = best.max(axis=1) - best.min(axis=1)
    at_base = rows[:, list(sizes).index(base)]
    at = optimum(log2_n, at_base).log2_n
    of_n = np.full(len(rows), np.nan)
    if np.isfinite(at_base).all():
        fine, curves = smooth(log2_n, at_base)
        for row, curve in enumerate(curves):
            sides = [u for u in (at[row] - _WRONG, at[row] + _WRONG) if fine[0] <= u <= fine[-1]]
            if sides:
                of_n[row] = curve.max() - np.interp(sides, fine, curve).mean()
    label = "loss at C of an n off by a factor of 8, minus the loss of the worst B_p in an 8-fold range"
    note = (
        f"B_p from {min(sizes)} to {max(sizes)}, each with its best n, changes the reward by "
        f"{of_batch[0]:.4f}; an n off by a factor of 8 costs {of_n[0]:.4f}"
    )
    effect = Effect.of(label, REWARD, of_n - of_batch)
    return Finding("F4a", "easy", "B_p matters little in a moderate range", (effect,), notes=(note,))


def shifts(levels: Sequence[int], batch: int, values: Floats) -> Finding:
    """F4b: at fixed B = B_p · n, a small M needs a large B_p, and a large M needs a large n."""
    n = path(levels, leave_one_out(values))
    label = f"at B = {batch:,}: log2 n* at the largest M minus log2 n* at M/128"
    statement = "at fixed B, a small M needs a large B_p, and a large M needs a large n"
    notes = [f"n* along M: {_along(n.log2_n)}", *_at_edge(levels, start=n.bound[0, 0], end=n.bound[0, -1])]
    return _compared("F4b", "easy", statement, label, n.both[:, :, -1] - n.both[:, :, 0], notes)


def turns(levels: Sequence[int], batch: int, values: Floats) -> Finding:
    """F4c: on the hard set at fixed B, n*(M) is not monotone: it turns, by a doubling each way.

    Because of noise, every path has some largest turn. The position of the turn is therefore chosen on all
    other seeds, and the left-out seed measures how far n* moves before and after it.
    """
    label = f"at B = {batch:,}: how far log2 n* moves {{}} its turn"
    others, single = path(levels, leave_one_out(values)), path(levels, values)

    def legs(chosen_on: Floats, judged_on: Floats) -> list[Effect]:
        moves = [_turn(a, b) for a, b in zip(chosen_on[1:], judged_on, strict=True)]
        before_after = leave_one_out(np.array(moves)).T
        return [
            Effect.of(label.format(when), DOUBLINGS, rows)
            for when, rows in zip(("before", "after"), before_after, strict=True)
        ]

    before_and_after = tuple(legs(others.log2_n, single.log2_n))
    tolerance = min(legs(others.tolerance, single.tolerance), key=lambda e: e.value)
    statement, notes = "at fixed B, n*(M) is not monotone", (f"n* along M: {_along(others.log2_n)}",)
    return Finding("F4c", "hard", statement, before_and_after, tolerance, notes=notes)


def _turn(chosen_on: Floats, judged_on: Floats) -> tuple[float, float]:
    """Return a path's moves before and after the largest turn of another path.

    Both moves are positive if the path turns in the same way.
    """
    if not (np.isfinite(chosen_on).all() and np.isfinite(judged_on).all()):
        return np.nan, np.nan
    a, b, c = np.array(list(combinations(range(chosen_on.size), 3))).T
    up, down = chosen_on[b] - chosen_on[a], chosen_on[b] - chosen_on[c]
    peak, trough = np.minimum(up, down), np.minimum(-up, -down)
    sign, size = (1, peak) if peak.max() >= trough.max() else (-1, trough)
    i = int(size.argmax())
    before, after = judged_on[b[i]] - judged_on[a[i]], judged_on[b[i]] - judged_on[c[i]]
    return sign * before, sign * after


def alone(rule: str, levels: Sequence[int], values: Floats) -> Finding:
    """F5a: on a single problem, more steps beat a larger n."""
    n = path(levels, leave_one_out(values))
    below = float(np.log2(levels).mean()) - n.both.mean(axis=2)
    name = "alone" if rule == "constant" else "alone, lr ∝ √n"
    statement = "on one problem, more steps beat a larger n"
    label = "doublings from n* up to the middle of the grid, mean over C"
    note = f"n* along C: {_along(n.log2_n)}; the grid goes from {levels[0]} to {levels[-1]}"
    return _compared("F5a", name, statement, label, below, [note])


def landscape(name: str, levels: Sequence[int], zero: Floats, gini: Floats, train: Floats) -> Finding:
    """F5b: with many problems, a larger n leaves fewer problems with p < 0.02, and a less skewed pass@1."""
    small, large = len(levels) // 4, 3 * len(levels) // 4
    fewer, flatter, fewer_trained = (v[:, small] - v[:, large] for v in (zero, gini, train))
    at = f"n = {levels[small]} less n = {levels[large]}"
    skew = Effect.of(f"Gini at C, {at}", PROBLEMS, leave_one_out(flatter))
    mean = zero.mean(axis=0)
    note = (
        f"zero-pass {mean[small]:.3f} at n = {levels[small]}, {mean[large]:.3f} at n = {levels[large]}; "
        f"Gini falls by {skew.value:.3f} ({skew.low:.3f} to {skew.high:.3f}); "
        f"of training problems {fewer_trained.mean():.3f} fewer"
    )
    effect = Effect.of(f"zero-pass at C, {at}", PROBLEMS, leave_one_out(fewer))
    statement = "on many problems, a larger n leaves fewer zero-pass problems and less skew"
    return Finding("F5b", name, statement, (effect,), holds=skew.low > 0, notes=(note,))


def capped(levels: Sequence[int], sizes: Sequence[int], values: Floats) -> Finding:
    """F6: a smaller training set caps n* at a lower value. ``values`` has shape (S, D, N)."""
    optima = {d: n_star(levels, values[:, i]) for i, d in enumerate(sizes)}
    along = ", ".join(f"{_n(o.log2_n[0])} ({_n(o.tolerance[0])}) at D = {d}" for d, o in optima.items())
    notes = [f"n* (by tolerance): {along}"]
    if (np.diff([float(o.log2_n[0]) for o in optima.values()]) < -0.5).any():
        notes.append("n* is not monotone in D, so only the smallest and the largest D are compared")
    notes += _at_edge(levels, **{f"D = {d}": o.bound[0] for d, o in optima.items()})
    label = f"log2 n* at C, D = {sizes[-1]} minus D = {sizes[0]}"
    rows = optima[sizes[-1]].both - optima[sizes[0]].both
    return _compared("F6", "easy", "a smaller D caps n* at a lower value", label, rows, notes)


def decoupled(
    name: str, sizes: tuple[int, int], both: Floats, full: Floats, part: Floats, later: Floats
) -> tuple[Finding, Finding]:
    """F7: advantages from n_est rollouts with a gradient from n_train give a reward between both n.

    The rewards, each of shape (S,), are at equal steps M: ``both`` is the decoupled run, which should be
    below ``full`` (n = n_est) and above ``part`` (n = n_train). ``later`` is n = n_train at equal compute,
    for the note. The paper's appendix finds the decoupled run about equal to n = n_train; the second row says
    so if its interval is within 0.01 of zero.
    """
    n_est, n_train = sizes
    below = Effect.of(f"at equal M: n = {n_est} minus decoupled", REWARD, leave_one_out(full - both))
    above = Effect.of(f"at equal M: decoupled minus n = {n_train}", REWARD, leave_one_out(both - part))
    values = (
        f"at equal M: {full.mean():.4f} (n = {n_est}), {both.mean():.4f} (decoupled), {part.mean():.4f} "
        f"(n = {n_train}); at equal C n = {n_train} reaches {later.mean():.4f}"
    )
    equal = -LEAST[REWARD] < above.low and above.high < LEAST[REWARD]
    about = (f"about equal to n = {n_train}, as in the paper's appendix",) if equal else ()
    what = f"n_est = {n_est} with n_train = {n_train} scores"
    return (
        Finding("F7a", name, f"{what} below n = {n_est}", (below,), notes=(values,)),
        Finding("F7b", name, f"{what} above n = {n_train}", (above,), notes=about),
    )


def _along(log2_n: Floats) -> str:
    """Format the n* of the mean over seeds, at every octave of the budget."""
    return ", ".join(_n(u) for u in log2_n[0, ::2])


def _frontier(reward: Floats) -> str:
    """Describe the reward along the frontier, and its maximum if that is before the end."""
    if not np.isfinite(reward[[0, -1]]).all():
        return "the frontier was not measured at every C"
    top = int(np.nanargmax(reward))
    text = f"reward on the frontier: {reward[0]:.3f} at C/128, {reward[-1]:.3f} at C"
    before = 2 ** ((reward.size - 1 - top) / 2)
    return text if top == reward.size - 1 else f"{text}, highest {reward[top]:.3f} at C/{before:.3g}"


def _n(log2_n: float) -> str:
    return f"{2**log2_n:.0f}" if np.isfinite(log2_n) else "unknown"
