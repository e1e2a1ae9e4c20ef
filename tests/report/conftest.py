"""What is written of predictions does not depend on how exactly they are known."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module", autouse=True)
def _rough(rough_predictions: None) -> None:
    """Every prediction here is a rough one."""
