"""Eight laws for tests that need a law: each is fitted once a test run, and workers share its file.

A name is the method ("surface", "paper") and what all runs have in common ("B_p", "B", "nothing"), or
"equal" where the reward never changes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from preloaded import locked

from isolaw.fits.law import Law
from isolaw.fits.pipeline import fit
from isolaw.runs import Runs

LEVELS = [8, 32, 128, 512]
NOISE = {"noise": 0.004, "between": 0.004}
REACH = 1e6  # where all runs end
METHODS = ("surface", "paper")
_GRIDS: dict[str, tuple[list[tuple[int, int]], dict[str, Any]]] = {
    "B_p": ([(32, n) for n in LEVELS], {**NOISE, "attributes": {"n_train_problems": 2000}}),
    "B": ([(1024 // n, n) for n in LEVELS], NOISE),
    "nothing": ([(b, n) for b in (16, 32, 64) for n in LEVELS], NOISE),
    "equal": ([(32, n) for n in LEVELS], {"noise": 0}),
}
NAMES = [f"{method} {hold}" for method in METHODS for hold in _GRIDS]


def rewards(b: int, n: int, compute: Any) -> Any:
    """Larger n are better, later; B_p = 16 costs 0.02, B_p = 32 costs 0.002."""
    ceiling = 0.5 + 0.03 * math.log2(n / 8) - {16: 0.02, 32: 0.002}.get(b, 0.0)
    return ceiling - (ceiling - 0.3) * np.exp(-compute / (3e4 * (n / 8) ** 0.7))


def _equal(_b: int, _n: int, compute: Any) -> Any:
    return 0.1 + 0.2 + 0 * compute


class SharedLaws:
    """The laws by name, their runs, and their files in the folder of a test run."""

    def __init__(self, folder: Path, synthetic: Callable[..., Runs]) -> None:
        self._folder, self._synthetic = folder, synthetic
        self.runs = functools.cache(self._runs)
        self.law = functools.cache(lambda name: Law.load(self.path(name)))

    def _runs(self, name: str) -> Runs:
        hold = name.partition(" ")[2]
        pairs, options = _GRIDS[hold]
        return self._synthetic(
            pairs, (lambda b, n, c: 0.3 + 0 * c) if hold == "equal" else rewards, **options
        )

    def path(self, name: str) -> Path:
        """The law as a file, which one worker writes."""
        folder = self._folder / name
        with locked(folder):
            if not (folder / "whole").exists():
                method, _, hold = name.partition(" ")
                options = {"hold": "B_p", "records": "off"} if hold == "equal" else {"hold": hold}
                (folder / "part").mkdir(exist_ok=True)
                fit(self.runs(name), method=method, draws=50, **options).save(folder / "part" / "law.json")
                (folder / "part").rename(folder / "whole")
        return folder / "whole" / "law.json"
