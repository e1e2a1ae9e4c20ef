"""Limit BLAS to one thread for all of a fit, whatever else runs in the process.

The number of BLAS threads can change how a product rounds, and it is a setting of the whole process. If each
part of a fit set and restored it, timing would decide which setting applies to concurrent parts. On matrices
of a few hundred rows, more threads cost more than they save.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import scipy.linalg  # noqa: F401  (brings its own BLAS, which a limit reaches only once it is loaded)
from threadpoolctl import OpenBLASController, threadpool_limits

_lock = threading.Lock()
_inside = 0  # number of uses of `one_blas_thread` that are active
_limits: threadpool_limits | None = None


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit BLAS to one thread until the last of all nested and concurrent uses ends."""
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
    """Make this thread the one that sets the limit: threadpoolctl ignores every thread but the first."""
    OpenBLASController.clear_controlling_thread(force=True)
