"""Sweeps that last long enough to be hurt."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from isolaw import engine
from isolaw.config import SweepSpec
from isolaw.executors.waiting import Event
from isolaw.store import SweepStore


@pytest.fixture(scope="session")
def long(tiny) -> Callable[..., SweepSpec]:
    """A sweep of two runs of some seconds each; each argument changes keys of a section."""

    def make(**sections: dict[str, Any]) -> SweepSpec:
        data: dict[str, dict[str, Any]] = {
            "sweep": {"compute": 75_000_000},
            "grid": {"rollouts_per_problem": [2]},
            "evaluation": {"points": 60},
        }
        return tiny(**{k: {**data.get(k, {}), **sections.get(k, {})} for k in {**data, **sections}})

    return make


@pytest.fixture(scope="session")
def make() -> Callable[..., list[Event]]:
    """Make a sweep, and meanwhile hurt it, if that is given; its events."""

    def made(spec: SweepSpec, out: Path, hurt: Callable[[Event], None] = lambda _: None) -> list[Event]:
        events = []
        for event in engine.execute(engine.resolve_sweep(spec, out), out):
            events.append(event)
            hurt(event)
        return events

    return made


@pytest.fixture(scope="session")
def holder() -> Callable[[Path, str], int]:
    """The process that makes a run, by the run's lock; 0 if there is none."""

    def find(out: Path, run_id: str) -> int:
        path = SweepStore(out).run(run_id).folder / "lock"
        words = path.read_text().split() if path.is_file() else []
        return int(words[1]) if words else 0

    return find


@pytest.fixture(scope="session")
def with_a_state() -> Callable[[Path], list[str]]:
    """Runs of a sweep that could be continued from beyond their start."""

    def find(out: Path) -> list[str]:
        store = SweepStore(out)
        return [run_id for run_id in store.run_ids() if store.run(run_id).last_state]

    return find


@pytest.fixture(scope="session")
def wait_for() -> Callable[..., None]:
    def wait(condition: Callable[[], object], seconds: float = 300.0) -> None:
        until = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < until, "it did not come to pass"
            time.sleep(0.02)

    return wait
