"""Executing the battery's sweeps: each by the sweep engine, inline in a thread, several at a time.

The simulators' kernels release the interpreter's lock, so threads use the cores without processes that would
each load the compiled code again. No result depends on the thread that computed it.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from isolaw import engine
from isolaw.config import RunSpec
from isolaw.errors import Issue, SpecError
from isolaw.executors.base import Event
from isolaw.replication.battery import Battery
from isolaw.runs import Runs
from isolaw.store import SweepStore

_RUN_COSTS = 150_000  # problem visits that take as long as beginning, measuring and storing a run

Progress = Callable[[float], None]


@dataclass(frozen=True)
class Planned:
    """The plans of an experiment's sweeps, in their directory, which has its name."""

    folder: Path
    plans: list[engine.Plan]

    @property
    def work(self) -> int:
        """The remaining work, in problem visits."""
        return sum(_work(run) for plan in self.plans for run in plan.runs if run.run_id in set(plan.todo))


def _work(run: RunSpec) -> int:
    return run.steps * run.problems_per_batch + _RUN_COSTS


def plan(battery: Battery, folder: Path) -> list[Planned]:
    """Plan all sweeps of a battery below ``folder``, and write nothing.

    Raises `SpecError` with all issues of all sweeps, and `StoreError` where a directory holds something else.
    """
    planned: list[Planned] = []
    issues: dict[str, Issue] = {}
    for name, specs in battery.experiments().items():
        plans = []
        for spec in specs:
            try:
                plans.append(engine.plan(spec, folder / name))
            except SpecError as error:
                issues |= {str(issue): issue for issue in error.issues}
        planned.append(Planned(folder / name, plans))
    if issues:
        raise SpecError(list(issues.values()))
    return planned


def execute(
    planned: list[Planned], jobs: int, progress: Progress = lambda _: None
) -> tuple[dict[str, Runs], list[str]]:
    """Execute the remaining work in ``jobs`` threads, the longest sweeps first.

    Returns the runs by experiment, and a message for each failed run. This thread calls ``progress`` with the
    share of the work of each run that ends. An interruption stops all threads at their next checkpoint; the
    same call continues.
    """
    total = sum(p.work for p in planned) or 1
    news: queue.Queue[int | None] = queue.Queue()
    stop = threading.Event()

    def work(one: Planned) -> tuple[Runs, list[str]]:
        try:
            failed = _execute(one, news.put, stop)
            return SweepStore(one.folder).collect(), failed
        finally:
            news.put(None)

    with ThreadPoolExecutor(jobs) as pool:
        longest_first = sorted(planned, key=lambda p: -p.work)
        waiting = {one.folder.name: pool.submit(work, one) for one in longest_first}
        try:
            left = len(waiting)
            while left:
                done = news.get()
                left -= done is None
                progress((done or 0) / total)
            results = {name: waiting[name].result() for name in sorted(waiting)}
        except BaseException:
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise
    failures = [message for _, failed in results.values() for message in failed]
    return {name: runs for name, (runs, _) in results.items()}, failures


def _execute(one: Planned, report: Callable[[int], None], stop: threading.Event) -> list[str]:
    """Execute the plans of one experiment; return a message for each failed run."""
    failed = []
    for planned in one.plans:
        if not planned.todo:
            continue
        by_id = {run.run_id: run for run in planned.runs}
        with closing(cast("Generator[Event]", engine.execute(planned, one.folder))) as events:
            for event in events:
                if stop.is_set():
                    raise KeyboardInterrupt
                if event.kind not in ("done", "failed"):
                    continue
                run = by_id[event.run_id]
                report(_work(run))
                if event.kind == "failed":
                    failed.append(
                        f"{one.folder.name}: B_p = {run.problems_per_batch}, "
                        f"n = {run.rollouts_per_problem}, seed {run.seed}: {event.cause}"
                    )
    return failed
