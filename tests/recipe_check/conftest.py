"""A check of a second or two."""

from __future__ import annotations

import os
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def _unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many small runs that need not survive a power cut."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture
def small() -> dict[str, Any]:
    """The sections of its sweep file."""
    return {
        "sweep": {"compute": 60_000, "seeds": 2},
        "grid": {"problems_per_batch": 8, "rollouts_per_problem": [4, 8, 16, 32, 64]},
        "problems": {"n_train": 64, "n_validation": 100},
        "evaluation": {"points": 20},
        "executor": {"kind": "inline"},
    }
