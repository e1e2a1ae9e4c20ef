"""Play a design against a truth with known rewards, to measure its spend and loss before it executes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from isolaw.config import SweepSpec
from isolaw.design.decisions import Decision, DecisionStage, Design, RunKey, horizons
from isolaw.design.directory import Adaptive
from isolaw.design.truths import Sample, answers_of, kinds_of, presets
from isolaw.evidence import Simulated
from isolaw.fits.document.codec import Encoded
from isolaw.fits.selection import Configuration, Floats


class Runner(Protocol):
    """Simulates the runs that a design requests."""

    def run(self, key: RunKey) -> tuple[Floats, Floats]:
        """Simulate run (B_p, n, seed) to the target.

        Returns its compute and its measured rewards, both of shape (P,).
        """


def measured(runner: Runner, asked: Mapping[RunKey, int]) -> list[Configuration]:
    """Return the measurements of the runs ``asked`` up to their horizons, in the form that a fit accepts."""
    cells: dict[tuple[int, int], dict[int, int]] = {}
    for (b, n, seed), end in sorted(asked.items()):
        cells.setdefault((b, n), {})[seed] = end
    out = []
    for (b, n), ends in cells.items():
        parts = []
        for i, (seed, end) in enumerate(ends.items()):
            compute, reward = runner.run((b, n, seed))
            inside = compute <= end
            parts.append((compute[inside], reward[inside], np.full(int(inside.sum()), i)))
        compute, reward, run = (np.concatenate(column) for column in zip(*parts, strict=True))
        out.append(Configuration(b, n, compute, reward, run, tuple(ends), float(b * n)))
    return out


def play(design: Design, runner: Runner) -> list[Decision]:
    """Simulate the runs that a design requests, until it stops, and return all its decisions."""
    history: list[Decision] = []
    while not history or history[-1].stage is not DecisionStage.STOP:
        history.append(design.next(history, measured(runner, horizons(history))))
    return history


@dataclass(frozen=True)
class Schedule(Encoded):
    """The decisions of a race if rewards were those of the **simulated** preset named ``truth``."""

    DERIVED = ("simulated",)
    simulated: ClassVar[Simulated] = Simulated.YES
    truth: str
    decisions: tuple[Decision, ...]


def schedule(adaptive: Adaptive, spec: SweepSpec) -> Schedule:
    """Play a race that has not started against the first preset with the same difficulty."""
    race = adaptive.race
    checkpoints = {
        (b, n): np.array(run.schedule(), dtype=float) * (b * n)
        for (b, n, seed), run in adaptive.grid.items()
        if seed == race.seeds[0]
    }
    truth = presets(race.cells, race.target, kinds_of(spec))[0]
    sample = Sample(truth, checkpoints, answers_of(spec), (0, 0))
    return Schedule(truth.name, tuple(play(race, sample)))
