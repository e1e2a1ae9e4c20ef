"""Fit a simulator to runs: an ensemble of populations that reproduce their rewards. See README.md."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any


def each(
    function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], jobs: int | None = None
) -> list[Any]:
    """Return the results of ``function`` for each tuple of arguments, in forks unless ``jobs`` is 1."""
    if jobs == 1:
        return [function(*one) for one in arguments]
    with ProcessPoolExecutor(jobs, get_context("fork")) as pool:
        return list(pool.map(function, *zip(*arguments, strict=True)))
