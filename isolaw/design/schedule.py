"""Simulate the decisions that a race would make under an assumed truth, before anything is spent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from isolaw.config import SweepSpec
from isolaw.design.decisions import Decision
from isolaw.design.directory import Adaptive
from isolaw.design.play import play
from isolaw.design.truths import Sample, answers_of, kinds_of, presets
from isolaw.evidence import Simulated
from isolaw.fits.document.codec import Encoded


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
