"""What a framework makes of a log: records as its trainer writes them, a known table as it should be read."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest

from isolaw.readers.frameworks.base import Framework
from isolaw.readers.raw_log import RawLog
from isolaw.readers.resolve import resolve
from isolaw.readers.stitch import stitch

Table = dict[tuple[str, str], dict[int, float]]
SPLIT = ("problems_per_batch", "rollouts_per_problem", "rollouts_per_step")


@pytest.fixture(scope="session")
def read_as() -> Callable[..., Table]:
    """Stitch records, each with the step that the container counts (NaN: none), as a framework's."""

    def table(framework: Framework, records: Iterable[tuple[float, Mapping[str, Any]]]) -> Table:
        log = RawLog("log", "test", "run")
        for step, values in records:
            log.add(values, step)
        assert framework.recognises(log.series, {})
        return {
            target: dict(zip(curve.step.tolist(), curve.value.tolist(), strict=True))
            for target, curve in stitch([log], framework).of.items()
        }

    return table


@pytest.fixture(scope="session")
def split_of() -> Callable[..., tuple[Any, Any, Any]]:
    """B_p, n and rollouts per step that a configuration gives; None for what stays unknown."""

    def split(framework: Framework, config: Mapping[str, Any]) -> tuple[Any, Any, Any]:
        log = RawLog("log", "test", "run", dict(config), "config.yaml")
        out = resolve([log], framework, {})
        known = [out.facts[name].value if name in out.facts else None for name in SPLIT]
        assert bool(out.problems) == (None in known)
        return known[0], known[1], known[2]

    return split


@pytest.fixture(scope="session")
def unknown() -> float:
    """A step that the container does not count."""
    return math.nan
