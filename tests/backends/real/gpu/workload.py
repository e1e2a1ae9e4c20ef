"""Runs of a model with random weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from isolaw.backends.real import random_model
from isolaw.config import RunSpec


class Workload:
    """A random model, problems and runs in a folder, for a device (``cuda`` or ``cpu``)."""

    def __init__(self, folder: Path, device: str) -> None:
        self.folder, self.device, self.on_gpu = folder, device, device == "cuda"
        self.model = folder / "model"

    def make(self, *shapes: dict[str, int]) -> None:
        """Write the model and the problems."""
        random_model.write(self.folder, self.device, *shapes)

    def sections(self, b: int, n: int, **more: dict[str, Any]) -> dict[str, dict[str, Any]]:
        """The content of a sweep file; each argument replaces keys of the section with its name."""
        data = {
            "sweep": {"backend": "real", "seeds": [0]},
            "grid": {"problems_per_batch": [b], "rollouts_per_problem": [n]},
            "limits": {"max_batch_rollouts": 65_536},
            "executor": {"kind": "inline"},
        } | random_model.sections(self.folder, self.device)
        return {name: {**data.get(name, {}), **more.get(name, {})} for name in {**data, **more}}

    def spec(self, steps: int, b: int, n: int, **more: dict[str, Any]) -> RunSpec:
        """The resolved spec of a run."""
        return random_model.spec_of(self.sections(b, n, **more), steps, b, n)
