"""Making the battery's sweeps: each by the sweep engine, inline in a thread, some at a time.

The simulators' kernels release the interpreter's lock, so threads use the cores without starting
processes that would each load the compiled code again. No result depends on which thread made it.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

from isolaw import engine
from isolaw.config import RunSpec
from isolaw.errors import Issue, SpecError
from isolaw.executors.base import Event
from isolaw.findings.experiments import Battery, Experiment
from isolaw.runs import Runs
from isolaw.store import SweepStore

_RUN_COSTS = 150_000  # problem visits that take as long as beginning, measuring and storing a run

Progress = Callable[[float], None]


@dataclass(frozen=True)
class Planned:
    """The plans of an experiment's sweeps, in their directory."""

    experiment: Experiment
    folder: Path
    plans: list[engine.Plan]

    @property
    def work(self) -> float:
        """What is left to do, in problem visits."""
        return sum(_cost(run) for plan in self.plans for run in plan.runs if run.run_id in set(plan.todo))


@dataclass
class Made:
    """The runs of each experiment by its name, and what failed, in words."""

    runs: dict[str, Runs] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)


def _cost(run: RunSpec) -> float:
    return run.steps * run.problems_per_batch + _RUN_COSTS


def plan(battery: Battery, folder: Path) -> list[Planned]:
    """Plan all sweeps of a battery below ``folder``; nothing is written.

    Raises
    ------
    SpecError
        all that is wrong with any of them, at once.
    StoreError
        a directory holds something else.
    """
    planned: list[Planned] = []
    problems: dict[str, Issue] = {}
    for experiment in battery.experiments():
        plans = []
        for spec in experiment.specs:
            try:
                plans.append(engine.plan(spec, folder / experiment.name))
            except SpecError as error:
                problems |= {str(p): p for p in error.issues}
        planned.append(Planned(experiment, folder / experiment.name, plans))
    if problems:
        raise SpecError(list(problems.values()))
    return planned


@contextmanager
def directory(out: str | Path | None) -> Iterator[Path]:
    """Yield ``out``, where runs are kept and continued, or a temporary folder."""
    if out is not None:
        yield Path(out)
        return
    with TemporaryDirectory(prefix="isolaw-") as folder:
        yield Path(folder)


def execute(planned: list[Planned], jobs: int, progress: Progress = lambda _: None) -> Made:
    """Make what is left to make, the longest first.

    Parameters
    ----------
    planned
        from `plan`.
    jobs
        threads.
    progress
        called, in this thread, with the share of the work that was done since the last call.

    An interruption stops all threads at their next checkpoint; the same call continues.
    """
    made = Made()
    total = sum(p.work for p in planned) or 1.0
    news: queue.Queue[float | None] = queue.Queue()
    stop = threading.Event()

    def make(one: Planned) -> tuple[str, Runs, list[str]]:
        try:
            failed = _make(one, news.put, stop)
            return one.experiment.name, SweepStore(one.folder).collect(), failed
        finally:
            news.put(None)

    with ThreadPoolExecutor(jobs) as pool:
        waiting = [pool.submit(make, one) for one in sorted(planned, key=lambda p: -p.work)]
        try:
            left = len(waiting)
            while left:
                done = news.get()
                left -= done is None
                progress((done or 0.0) / total)
            results = [future.result() for future in waiting]
        except BaseException:
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise
    for name, runs, failed in sorted(results, key=lambda r: r[0]):
        made.runs[name] = runs
        made.failed += failed
    return made


def _make(one: Planned, report: Callable[[float], None], stop: threading.Event) -> list[str]:
    """Execute the plans of one experiment; return which runs failed, and why."""
    failed = []
    for planned in one.plans:
        if not planned.todo:
            continue
        by_id = {run.run_id: run for run in planned.runs}
        reached = dict.fromkeys(by_id, 0)
        with closing(cast("Generator[Event]", engine.execute(planned, one.folder))) as events:
            for event in events:
                if stop.is_set():
                    raise KeyboardInterrupt
                run = by_id[event.run_id]
                if event.compute > reached[event.run_id]:
                    report((event.compute - reached[event.run_id]) / run.rollouts_per_problem)
                    reached[event.run_id] = event.compute
                if event.kind in ("done", "failed"):
                    report(_RUN_COSTS)
                if event.kind == "failed":
                    failed.append(
                        f"{one.experiment.name}: B_p = {run.problems_per_batch}, "
                        f"n = {run.rollouts_per_problem}, seed {run.seed}: {event.cause}"
                    )
    return failed
