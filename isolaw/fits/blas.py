"""Run the parts of a fit on all cores, each with one thread of BLAS, so that results do not depend on timing.

The number of BLAS threads can change the rounding of a product, and it is a setting of the whole process. If
each part of a fit set and restored it, the setting during concurrent parts would depend on timing. On
matrices of a few hundred rows, more threads cost more time than they save.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar

import scipy.linalg  # noqa: F401  (loads SciPy's own BLAS, since a limit only affects loaded libraries)
from threadpoolctl import OpenBLASController, ThreadpoolController

S = TypeVar("S")
T = TypeVar("T")
_LEAST_ROWS = 150  # rows of a matrix from which threads save time
_lock = threading.Lock()
_active_uses = 0  # number of active uses of `one_blas_thread`
_limits: Any = None
# The search for loaded libraries takes 10 ms, and numpy's and SciPy's are loaded by now.
_libraries = cache(ThreadpoolController)


def each(function: Callable[[S], T], items: Iterable[S], rows: int = _LEAST_ROWS) -> list[T]:
    """Apply ``function`` to each item on all cores, and return the results.

    Threads suffice, since NumPy and the kernels release the GIL. With matrices of few ``rows``, most of the
    time is Python's, and threads would only wait for each other.
    """
    if rows < _LEAST_ROWS:
        return [function(item) for item in items]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        return list(pool.map(function, items))


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit BLAS to one thread until the last nested or concurrent use of this context ends."""
    global _active_uses, _limits
    with _lock:
        if not _active_uses:
            _take_control()
            _limits = _libraries().limit(limits=1, user_api="blas")
        _active_uses += 1
    try:
        yield
    finally:
        with _lock:
            _active_uses -= 1
            if not _active_uses and _limits is not None:
                _take_control()
                _limits.restore_original_limits()
                OpenBLASController.clear_controlling_thread()


def _take_control() -> None:
    """Make the current thread threadpoolctl's controlling thread, since calls from all others are ignored."""
    OpenBLASController.clear_controlling_thread(force=True)
