"""The decisions of a race against an assumed truth, before anything is spent."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from isolaw.config import SweepSpec
from isolaw.design.decisions import Decision
from isolaw.design.directory import Adaptive
from isolaw.design.play import play
from isolaw.design.truths import Sample, answers_of, kinds_of, presets


@dataclass(frozen=True)
class Schedule:
    """The decisions of a race if rewards were those of one **simulated** preset, named ``truth``."""

    truth: str
    decisions: tuple[Decision, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-able data."""
        return {"simulated": True, **asdict(self)}


def schedule(adaptive: Adaptive, spec: SweepSpec) -> Schedule:
    """Play a race that has not begun against the first preset of its difficulty."""
    race = adaptive.race
    checkpoints = {
        (b, n): np.array(run.schedule(), dtype=float) * (b * n)
        for (b, n, seed), run in adaptive.grid.items()
        if seed == race.seeds[0]
    }
    truth = presets(race.cells, race.target, kinds_of(spec))[0]
    sample = Sample(truth, checkpoints, answers_of(spec), (0, 0))
    return Schedule(truth.name, tuple(play(race, sample)))
