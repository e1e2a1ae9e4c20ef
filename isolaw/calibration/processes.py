"""Simulations side by side, a process for each core."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any, TypeVar

T = TypeVar("T")


def each(
    function: Callable[..., T],
    arguments: Sequence[tuple[Any, ...]],
    jobs: int | None = None,
    report: Callable[[int], None] = lambda _: None,
) -> list[T]:
    """Return ``function`` of each of the arguments, in their order; ``report`` is told how many are done.

    ``jobs`` is the number of processes, by default one for each core.
    """
    out: list[T] = []
    jobs = jobs or len(os.sched_getaffinity(0))
    if jobs == 1:
        for one in arguments:
            out.append(function(*one))
            report(len(out))
        return out
    # Forked, so that a script of the user's needs no guard; Ctrl-C is for this process.
    ignore = (signal.SIGINT, signal.SIG_IGN)
    pool = ProcessPoolExecutor(jobs, get_context("fork"), signal.signal, ignore)
    try:
        for found in pool.map(function, *zip(*arguments, strict=True), chunksize=4):
            out.append(found)
            report(len(out))
    finally:
        pool.shutdown(cancel_futures=True)
    return out
