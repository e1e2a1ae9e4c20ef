"""Execute a battery's sweeps with the sweep engine, several at a time, each inline in its own thread.

The simulators' kernels release the GIL, so threads use all cores. Each process would have to load the
compiled code again. No result depends on the thread that computed it.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import cast

from benchmarks.replication.battery import Battery
from isolaw import engine
from isolaw.config import RunSpec
from isolaw.errors import Issue, SpecError, collecting
from isolaw.executors.waiting import Event
from isolaw.runs import Runs
from isolaw.store import SweepStore

_RUN_COSTS = 150_000  # overhead of starting, evaluating and storing a run, in problem visits

Progress = Callable[[float], None]


def work(plans: Sequence[engine.ResolvedSweep]) -> int:
    """Return the remaining work of these plans, in problem visits."""
    return sum(_costs(run) for plan in plans for run in plan.unfinished)


def _costs(run: RunSpec) -> int:
    return run.steps * run.problems_per_batch + _RUN_COSTS


def plan(battery: Battery, folder: Path) -> dict[Path, list[engine.ResolvedSweep]]:
    """Plan all sweeps of a battery without writing anything; return the plans by directory in ``folder``.

    Raises `SpecError` with all issues of all sweeps, and `StoreError` if a directory contains something else.
    """
    planned: dict[Path, list[engine.ResolvedSweep]] = {}
    issues: list[Issue] = []
    for name, specs in battery.experiments().items():
        for spec in specs:
            with collecting(issues):
                planned.setdefault(folder / name, []).append(engine.resolve_sweep(spec, folder / name))
    if issues:
        raise SpecError(list({str(issue): issue for issue in issues}.values()))
    return planned


def execute(
    planned: Mapping[Path, Sequence[engine.ResolvedSweep]], jobs: int, progress: Progress = lambda _: None
) -> tuple[dict[str, Runs], list[str]]:
    """Execute the remaining work in ``jobs`` threads, longest sweeps first.

    Returns the runs by experiment, and a message for each failed run. Whenever a run ends, the calling thread
    calls ``progress`` with the run's share of the work. An interruption stops all threads at their next
    checkpoint; the same call then continues.
    """
    total = sum(map(work, planned.values())) or 1
    news: queue.Queue[int | None] = queue.Queue()
    stop = threading.Event()

    def finish(folder: Path) -> tuple[Runs, list[str]]:
        try:
            failed = _execute(folder, planned[folder], news.put, stop)
            return SweepStore(folder).collect(), failed
        finally:
            news.put(None)

    with ThreadPoolExecutor(jobs) as pool:
        longest_first = sorted(planned, key=lambda folder: -work(planned[folder]))
        waiting = {folder.name: pool.submit(finish, folder) for folder in longest_first}
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


def _execute(
    folder: Path, plans: Sequence[engine.ResolvedSweep], report: Callable[[int], None], stop: threading.Event
) -> list[str]:
    """Execute the plans of one experiment and return a message for each failed run."""
    failed = []
    for planned in plans:
        if not planned.todo:
            continue
        by_id = {run.run_id: run for run in planned.runs}
        with closing(cast("Generator[Event]", engine.execute(planned, folder))) as events:
            for event in events:
                if stop.is_set():
                    raise KeyboardInterrupt
                if event.kind not in ("done", "failed"):
                    continue
                run = by_id[event.run_id]
                report(_costs(run))
                if event.kind == "failed":
                    place = f"B_p = {run.problems_per_batch}, n = {run.rollouts_per_problem}"
                    failed.append(f"{folder.name}: {place}, seed {run.seed}: {event.cause}")
    return failed
