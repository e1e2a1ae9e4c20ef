"""Limit BLAS to one thread during a fit, so that results do not depend on other work in the process.

The number of BLAS threads can change the rounding of a product, and it is a setting of the whole process. If
each part of a fit set and restored it, the setting during concurrent parts would depend on timing. On
matrices of a few hundred rows, more threads cost more time than they save.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import scipy.linalg  # noqa: F401  (loads SciPy's own BLAS, since a limit only affects loaded libraries)
from threadpoolctl import OpenBLASController, threadpool_limits

_lock = threading.Lock()
_inside = 0  # number of active uses of `one_blas_thread`
_limits: threadpool_limits | None = None


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit BLAS to one thread until the last nested or concurrent use of this context ends."""
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
    """Make the current thread threadpoolctl's controlling thread, since calls from all others are ignored."""
    OpenBLASController.clear_controlling_thread(force=True)
