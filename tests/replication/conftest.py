"""A battery of a second or two."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from isolaw.replication.battery import Battery, battery

TINY = [
    "sweep.compute=66_000",
    "grid.problems_per_batch=4",
    "grid.rollouts_per_problem=[4, 16, 64, 256, 1024]",
    "problems.n_train=64",
    "problems.n_validation=40",
    "bandit.parameters.r=8",
]


@pytest.fixture(autouse=True)
def _unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of small runs that need not survive a power cut."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture
def small() -> Callable[..., Battery]:
    """Build it; keywords are those of `isolaw.replication.battery.battery`."""

    def make(**keywords: object) -> Battery:
        settings = [*TINY, *keywords.pop("settings", [])]  # type: ignore[misc]
        return battery(seeds=keywords.pop("seeds", (100, 101)), settings=settings, **keywords)  # type: ignore[arg-type]

    return make
