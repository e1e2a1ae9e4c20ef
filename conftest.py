"""Which files pytest collects: it imports all of them, and some imports take seconds."""

from __future__ import annotations

import functools
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
    of_the_package = collection_path.is_relative_to(ROOT / "isolaw")
    if of_the_package and b">>>" not in collection_path.read_bytes():
        return True
    without_torch = "not real" in config.getoption("markexpr") or (of_the_package and not TORCH)
    return True if without_torch and imports_torch(collection_path) else None


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark the tests of a module that imports torch: they need the real extra."""
    if imports_torch(item.path):
        item.add_marker(pytest.mark.real)


@functools.cache
def imports_torch(path: Path) -> bool:
    """Return whether a module imports torch when it is imported."""
    return _IMPORTS_TORCH.search(path.read_bytes()) is not None
