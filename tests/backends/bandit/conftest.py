"""A small resolved run of the bandit backend."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from isolaw.backend import Checkpoint, RunContext
from isolaw.backends.bandit import BACKEND
from isolaw.config import RunSpec


@pytest.fixture(scope="session")
def spec() -> Callable[..., RunSpec]:
    """Resolve a run of 312 steps on 50 problems; each argument replaces a field."""

    def make(**changes: Any) -> RunSpec:
        base: dict[str, Any] = {
            "backend": "bandit",
            "problems_per_batch": 8,
            "rollouts_per_problem": 4,
            "compute": 10_000,
            "problems": {"n_train": 50, "n_validation": 40},
            "evaluation": {"points": 8, "sets": ["validation", "train"], "samples": 8},
        }
        return BACKEND.resolve(RunSpec.model_validate(base | changes))

    return make


@pytest.fixture(scope="session")
def run() -> Callable[..., list[Checkpoint]]:
    """Make a run, or what is left of it."""

    def make(spec: RunSpec, state: Path | None = None) -> list[Checkpoint]:
        return list(BACKEND.run(spec, RunContext(state)))

    return make


@pytest.fixture(scope="session")
def values(run) -> Callable[[RunSpec], dict[tuple[int, str, str], float]]:
    """Make a run and return its values by (step, set, metric)."""

    def make(spec: RunSpec) -> dict[tuple[int, str, str], float]:
        return {(c.step, r.eval_set, r.metric): r.value for c in run(spec) for r in c.rows}

    return make
