"""Every operation of a fit runs on one BLAS thread, whatever else begins or ends beside it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from threadpoolctl import threadpool_info, threadpool_limits

import isolaw
from isolaw.fits import pipeline
from isolaw.fits.blas import one_blas_thread
from isolaw.runs import Runs

pytestmark = pytest.mark.numbers


def threads() -> set[int]:
    """The number of threads of every BLAS in the process."""
    return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    """A process whose BLAS has two threads, whatever the environment says; the main thread has set them."""
    with threadpool_limits(2, "blas"):
        assert threads() == {2}
        yield
        assert threads() == {2}


def test_a_fit_runs_on_one_thread(synthetic: Callable[..., Runs], monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, set[int]] = {}
    parts = {
        name: getattr(pipeline, name) for name in ("estimate", "resample", "_fit_all_curves", "fit_laws")
    }
    for name, part in parts.items():

        def watched(*arguments: Any, name: str = name, part: Any = part) -> Any:
            seen[name] = threads()
            return part(*arguments)

        monkeypatch.setattr(pipeline, name, watched)
    for method in ("surface", "paper"):
        isolaw.fit(synthetic([(32, n) for n in (8, 32, 128)]), method=method, draws=5)
    assert seen == {name: {1} for name in parts}


def test_the_limit_holds_until_the_last_of_two_threads_is_done() -> None:
    first_inside, second_inside, first_done = (threading.Event() for _ in range(3))

    def first() -> None:
        with one_blas_thread():
            first_inside.set()
            assert second_inside.wait(60)

    def second() -> set[int]:
        assert first_inside.wait(60)
        with one_blas_thread():
            second_inside.set()
            assert first_done.wait(60)
            return threads()

    with ThreadPoolExecutor(2) as pool:
        one, other = pool.submit(first), pool.submit(second)
        one.result()
        first_done.set()
        assert other.result() == {1}


def test_nested_uses_and_errors_leave_the_setting_as_it_was() -> None:
    with one_blas_thread():
        with pytest.raises(ZeroDivisionError), one_blas_thread():
            raise ZeroDivisionError
        assert threads() == {1}
