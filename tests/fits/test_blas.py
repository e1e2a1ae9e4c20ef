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
from isolaw.fits.surface.estimate import estimate
from isolaw.runs import Runs

pytestmark = pytest.mark.numbers


def threads() -> set[int]:
    """The number of threads of every BLAS in the process."""
    return {own["num_threads"] for own in threadpool_info() if own["user_api"] == "blas"}


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    """A process whose BLAS has two threads, whatever the environment says; the main thread has set them."""
    with threadpool_limits(2, "blas"):
        assert threads() == {2}
        yield
        assert threads() == {2}


def test_neither_part_of_a_fit_waits_for_the_other(
    synthetic: Callable[..., Runs], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search of the surface ends before the curves are fitted, and all runs on one thread."""
    drawn, searched = threading.Event(), threading.Event()
    seen: dict[str, set[int]] = {}

    def search(*arguments: Any) -> Any:
        seen["before the search"] = threads()
        assert drawn.wait(60)
        found = estimate(*arguments)
        seen["after the search"] = threads()
        searched.set()
        return found

    def draw(*arguments: Any) -> Any:
        seen["draws"] = threads()
        found = resample(*arguments)
        drawn.set()
        return found

    def curves(*arguments: Any, **options: Any) -> Any:
        assert searched.wait(60)
        seen["curves"] = threads()
        return fit_all(*arguments, **options)

    def laws(*arguments: Any) -> Any:
        seen["laws"] = threads()
        return fit_laws(*arguments)

    resample, fit_all, fit_laws = pipeline.resample, pipeline._fit_all, pipeline.fit_laws
    for name, replacement in {
        "estimate": search,
        "resample": draw,
        "_fit_all": curves,
        "fit_laws": laws,
    }.items():
        monkeypatch.setattr(pipeline, name, replacement)
    isolaw.fit(synthetic([(32, n) for n in (8, 32, 128)]), draws=5)
    assert seen == {
        name: {1} for name in ("before the search", "after the search", "draws", "curves", "laws")
    }


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
