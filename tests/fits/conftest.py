"""Configurations to fit surfaces to, of runs with a known truth."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from isolaw.fits.selection import Configuration, Hold, select
from isolaw.fits.surface.estimate import Surface
from isolaw.fits.surface.model import build_model
from isolaw.runs import Runs


def smooth(b: Any, n: Any, compute: Any) -> Any:
    """Ceiling and time scale are smooth in log n, so that n* rises from 8 to 512; B_p = 45 is best."""
    u, v = np.log2(n / 8), np.log2(b / 45)
    ceiling = 0.5 + 0.05 * u - 0.004 * u * u - 0.01 * v * v
    return ceiling - (ceiling - 0.3) * np.exp(-compute / (3e4 * 2 ** (0.7 * u)))


@pytest.fixture(scope="session")
def measured(synthetic: Callable[..., Runs]) -> Callable[..., list[Configuration]]:
    """What a fit makes of synthetic runs (see ``synthetic``); their truth is `smooth`."""

    def make(pairs: Any, reward: Any = smooth, hold: Hold = "B_p", **options: Any) -> Any:
        return select(synthetic(pairs, reward, **options), "avg@4", "validation", hold).configurations

    return make


@pytest.fixture(scope="session")
def truth() -> Callable[[Any, Any, Any], Any]:
    """The truth `smooth` itself."""
    return smooth


def unfitted(configurations: list[Configuration], draws: int = 0, rng: int | None = None) -> Surface:
    """The surface at a θ that is not fitted: the prior's centre, or by ``rng`` half its spread away."""
    model = build_model(configurations, (0.0, 1.0), 1.0)
    away = 0 if rng is None else np.random.default_rng(rng).standard_normal(len(model.names)) / 2
    theta = model.prior[:, 0] + away * model.prior[:, 1]
    return Surface(model, theta, theta[None], np.zeros(draws, np.int64), 7, 0.0)
