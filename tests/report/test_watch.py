"""A sweep that is watched: its pace, the time left, the law so far."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from isolaw import engine
from isolaw.config import SweepSpec
from isolaw.errors import StoreError
from isolaw.report import watch as module
from isolaw.report.watch import Watch

Make = Callable[..., SweepSpec]


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def spec(tiny: Make) -> SweepSpec:
    return tiny(grid={"rollouts_per_problem": [2, 4, 8]}, evaluation={"points": 12})


def test_pace_and_time_left(spec: SweepSpec, tmp_path: Path) -> None:
    clock = Clock()
    out = tmp_path / "sweep"
    with closing(engine.execute(engine.resolve_sweep(spec, out), out)) as events:
        next(events)
        watch = Watch(out, clock)
        assert watch.read()
        before = watch.state["rollouts"]
        assert watch.per_second is None
        assert "pace not yet known" in watch.lines()[1]
        for _ in range(20):
            next(events)
        clock.now = 50.0
        assert watch.read()
        made = watch.state["rollouts"] - before
        assert made > 0
        assert watch.per_second == pytest.approx(made / 50)
        left = watch.state["rollouts_planned"] - watch.state["rollouts"]
        assert watch.left_s == pytest.approx(left / (made / 50))
        assert "rollouts per second, about" in watch.lines()[1]
        # Older than two minutes does not count.
        clock.now = 200.0
        watch.read()
        assert watch.per_second is None
        for _ in events:
            pass
    assert not watch.read()
    assert watch.lines()[0].endswith("6 done, 0 started, 0 waiting, 0 failed")
    assert "rollouts per second" not in watch.lines()[1]


def test_the_law_is_fitted_seldom_and_only_to_something_new(
    spec: SweepSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fits = []
    monkeypatch.setattr(module, "law_so_far", lambda directory: fits.append(directory) or ["law"])
    clock = Clock()
    out = tmp_path / "sweep"
    with closing(engine.execute(engine.resolve_sweep(spec, out), out)) as events:
        next(events)
        watch = Watch(out, clock)

        def go(seconds: float, events_too: int = 0, at_once: bool = False) -> int:
            for _ in range(events_too):
                next(events)
            clock.now += seconds
            watch.read()
            watch.fit(at_once)
            return len(fits)

        assert go(0) == 1
        assert go(5, events_too=3) == 1  # too soon
        assert go(40) == 2
        assert go(40) == 2  # nothing new
        assert go(1, events_too=3) == 3
        assert go(1, events_too=3) == 3  # too soon
        assert go(0, at_once=True) == 4
        assert watch.lines()[-1] == "law"


def test_the_law_so_far(spec: SweepSpec, tmp_path: Path) -> None:
    out = tmp_path / "sweep"
    with closing(engine.execute(engine.resolve_sweep(spec, out), out)) as events:
        next(events)
        assert module._law_so_far(out)[0].startswith("There is no law yet: ")
        for _ in events:
            pass
    said = module._law_so_far(out)
    assert said[0] == "The law so far, without intervals:"
    assert said[1].startswith("  n*, the n with the highest reward, is ")


def test_what_is_counted_is_counted_after_the_fit(
    spec: SweepSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fit takes seconds, in which the sweep goes on."""
    out = tmp_path / "sweep"
    with closing(engine.execute(engine.resolve_sweep(spec, out), out)) as events:
        next(events)
        watch = Watch(out, Clock())
        watch.read()
        before = watch.state["rollouts"]
        monkeypatch.setattr(module, "law_so_far", lambda _: [str(next(events)) and "law" for _ in range(20)])
        watch.fit()
        assert watch.state["rollouts"] > before


def test_no_sweep(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="not a sweep's directory"):
        Watch(tmp_path).read()
