"""One BLAS thread for every operation of a fit, whatever runs beside it.

How many threads share a product may decide its rounding, and their number is a setting of the process. Were
each part of a fit to set and restore it, timing would decide under which setting the other parts compute.
On matrices of a few hundred rows more threads cost more than they save.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import scipy.linalg  # noqa: F401  (brings its own BLAS, which a limit reaches only once it is loaded)
from threadpoolctl import OpenBLASController, threadpool_limits

_lock = threading.Lock()
_inside = 0  # how many uses of `one_blas_thread` have begun and not ended
_limits: threadpool_limits | None = None


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Hold BLAS to one thread until the last of all nested and concurrent uses ends."""
    global _inside, _limits
    with _lock:
        if not _inside:
            _take_control()
            _limits = threadpool_limits(1, "blas")
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if not _inside and _limits is not None:
                _take_control()
                _limits.restore_original_limits()
                OpenBLASController.clear_controlling_thread()


def _take_control() -> None:
    """Let this thread set the number: threadpoolctl ignores all threads but the first that did."""
    OpenBLASController.clear_controlling_thread(force=True)
