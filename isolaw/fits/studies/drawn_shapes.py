"""Draw the rewards of two configurations jointly, from the surface."""

from __future__ import annotations

import math

import numpy as np

from isolaw.allocation import BatchShape, Cell
from isolaw.errors import Refused
from isolaw.evidence import number
from isolaw.fits.allocations import FAR, REACH
from isolaw.fits.flags import Code, Flag
from isolaw.fits.selection import Configuration, Floats
from isolaw.fits.surface.estimate import Surface
from isolaw.step_cost import Cost

_POINTS = 32  # number of C at which curves are drawn


class DrawnShapes:
    """Joint draws of the rewards of two configurations, given the runs."""

    def __init__(
        self,
        surface: Surface,
        shapes: tuple[BatchShape, BatchShape],
        configurations: list[Configuration],
    ) -> None:
        self.surface = surface.drawn()
        self.configurations = configurations
        self.shapes = shapes
        self.places = np.array([Cell(*shape).place for shape in shapes])
        self.log_ends = np.log([_nearby_end(place, configurations) for place in self.places])

    def rewards(self, compute: tuple[float, float], flags: list[Flag]) -> Floats:
        """Return the rewards of both configurations, each at its own compute, with shape (1 + D, 2)."""
        self._check(np.array(compute), flags)
        return self.surface.rewards(self.places[:, 0], self.places[:, 1], np.array(compute))

    def curves(self, max_compute: float) -> tuple[Floats, Floats]:
        """Return computes (P,) up to ``max_compute``, and the rewards of both configurations there.

        The rewards have shape (1 + D, 2, P).
        """
        start = min(c.checkpoints[c.checkpoints > 0][0] for c in self.configurations)
        compute = np.geomspace(start, max_compute, _POINTS)
        u, v = (np.repeat(axis, _POINTS) for axis in self.places.T)
        rewards = self.surface.rewards(u, v, np.tile(compute, 2))
        return compute, rewards.reshape(len(rewards), 2, _POINTS)

    def at_each(self, compute: Floats, flags: list[Flag]) -> Floats:
        """Return the rewards at computes that differ between draws, with shape (1 + D, 2)."""
        self._check(compute[0], flags)
        grid, rewards = self.curves(float(compute.max()))
        log_grid = np.log(grid)
        interpolated = np.empty_like(compute)
        for draw, curves in enumerate(rewards):
            interpolated[draw] = [np.interp(np.log(compute[draw, k]), log_grid, curves[k]) for k in range(2)]
        return interpolated

    def _check(self, compute: Floats, flags: list[Flag]) -> None:
        """Raise `Refused` for computes too far past the runs, and flag other computes past the runs."""
        ends = np.exp(self.log_ends)
        ratios = compute / ends
        if ratios.max() > FAR:
            worst = int(ratios.argmax())
            raise Refused(
                f"{Cell(*self.shapes[worst]).label}: C = {number(compute[worst])} is {ratios[worst]:.3g} "
                f"times the compute of the runs there ({number(ends[worst])}); isolaw compares up to {FAR:g} "
                f"times. Extend these runs to {number(compute[worst] / FAR)} or more"
            )
        if ratios.max() > 1 + 1e-6:
            text = f"the comparison is at {ratios.max():.3g} times the compute of the runs"
            flags.append(Flag(Code.EXTRAPOLATION, text))


def _nearby_end(place: Floats, configurations: list[Configuration]) -> float:
    """Return the compute to which runs went near a place: a mean over configurations by distance."""
    weights = np.array([1 / (((c.place - place) ** 2).sum() + 1e-3) ** 2 for c in configurations])
    return float(np.exp(weights @ np.log([c.end for c in configurations]) / weights.sum()))


def check_near(shapes: tuple[BatchShape, BatchShape], configurations: list[Configuration]) -> None:
    """Raise `Refused` if a configuration is far from the runs, or differs in a value that all runs share."""
    problems = []
    for axis, name in enumerate(("B_p", "n")):
        levels = sorted({c.key[axis] for c in configurations})
        for shape in dict.fromkeys(shapes):
            value, low, high = shape[axis], levels[0], levels[-1]
            if low <= value <= high:
                continue
            if len(levels) == 1:
                problems.append(f"{name} = {value}: all runs have {name} = {low}")
            elif not low / REACH <= value <= high * REACH:
                problems.append(f"{name} = {value}: more than {REACH} times outside the runs ({low}–{high})")
    if problems:
        raise Refused(f"{'; '.join(problems)}. First run a configuration with this value and one seed")


def step_seconds(pair: DrawnShapes, cost: Cost) -> Floats:
    """Return draws of the seconds of a step for both configurations, with shape (1 + D, 2).

    Half of the variance of log seconds is common to both configurations.
    """
    steps = [cost.seconds(*shape, 1) for shape in pair.shapes]
    untimed = [Cell(*shape).label for shape, step in zip(pair.shapes, steps, strict=True) if step is None]
    if untimed:
        raise Refused(f"cost: found no step time for {'; '.join(untimed)}; time a step of each configuration")
    timed = [step for step in steps if step is not None]
    seconds = np.array([float(step) for step in timed])
    highest = [float(step) if step.interval is None else step.interval[1] for step in timed]
    deviation = np.log(np.array(highest) / seconds) / 1.96
    z = np.random.default_rng((pair.surface.seed, 7)).standard_normal((pair.surface.of_draw.size, 3))
    noise = deviation * (z[:, :1] + z[:, 1:]) / math.sqrt(2)
    return np.asarray(np.vstack([seconds, seconds * np.exp(noise)]))
