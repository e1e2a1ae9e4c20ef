"""Which files pytest collects: it imports all of them, and some imports take seconds."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent
TORCH = importlib.util.find_spec("torch") is not None
_IMPORTS_TORCH = re.compile(rb"^(import torch|from torch|torch = pytest\.importorskip)", re.MULTILINE)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out modules without doctests and, where no test may need it, what imports torch."""
    if collection_path.suffix != ".py":
        return None
    text = collection_path.read_bytes()
    if collection_path.is_relative_to(ROOT / "isolaw") and b">>>" not in text:
        return True
    of_the_package = collection_path.is_relative_to(ROOT / "isolaw")
    without_torch = "not real" in config.getoption("markexpr") or (of_the_package and not TORCH)
    return True if without_torch and _IMPORTS_TORCH.search(text) else None
