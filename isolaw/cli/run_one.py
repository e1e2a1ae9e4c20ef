"""``isolaw run-one``: make one run of a sweep; what jobs of a cluster execute."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from isolaw.cli.common import note


@click.command("run-one")
@click.argument("directory", type=click.Path(exists=True, file_okay=False))
def run_one(directory: str) -> int:
    """Make the run in DIRECTORY, OUT/runs/<run_id> of a sweep, or what is left of it.

    SIGINT, SIGTERM or SIGUSR2 let it keep its state and end, with exit code 3; the same command continues.
    """
    with _asked() as asked:  # before threads are started, which numpy does when it is imported
        return _make(directory, asked)


def _make(directory: str, asked: threading.Event) -> int:
    from isolaw.errors import StoreError
    from isolaw.executors.base import execute
    from isolaw.executors.worker import logged
    from isolaw.store import SweepStore, check

    folder = Path(directory).resolve()
    sweep = SweepStore(folder.parent.parent)
    run = sweep.run(folder.name)
    if run.folder != folder or not sweep.exists:
        raise StoreError(f"{directory}: not a run of a sweep; accepted: OUT/runs/<run_id>")
    check.run(run.open())
    spec = run.read_spec()
    nodes = None
    # A task of such a job, not somebody's shell in one.
    if os.environ.get("SLURM_JOB_NUM_NODES", "1") != "1" and "SLURM_NODEID" in os.environ:
        from isolaw.executors.slurm_nodes import Nodes

        nodes = Nodes(run.open())
        if nodes.number:
            nodes.follow()
            return 0
    if run.done_compute() // spec.batch_rollouts >= spec.steps:
        click.echo(f"{directory}: is done")
        return 0
    run.proceed()
    with logged(run):
        *before, last = execute(sweep.directory, folder.name, nodes, asked)
    for event in before:
        if event.kind == "warning":
            note(f"isolaw: {event.cause}")
    if last.kind == "done":
        click.echo(f"{directory}: is done")
    elif last.kind == "stopped":
        why = f" ({last.cause})" if last.cause else ""
        note(f"isolaw: {directory}: stopped{why}; the same command continues")
    else:
        note(f"isolaw: {directory}: {last.cause}")
    return {"done": 0, "stopped": 3}.get(last.kind, 1)


@contextmanager
def _asked() -> Iterator[threading.Event]:
    """What a signal sets that tells the run to end; processes that the run starts are spared SIGUSR2.

    SLURM sends that one to all processes of a job, and it would end those that do not know it. Blocked here,
    it is blocked in them.
    """
    asked, ended = threading.Event(), threading.Event()

    def wait() -> None:
        over = False
        while not over:
            over = ended.wait(0.2)
            # Not sigtimedwait: once a process was held and goes on, that returns what nobody has sent.
            if signal.SIGUSR2 in signal.sigpending():
                signal.sigwait({signal.SIGUSR2})
                asked.set()

    handler: Any = lambda number, frame: asked.set()  # noqa: E731
    before = {name: signal.signal(name, handler) for name in (signal.SIGINT, signal.SIGTERM)}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    try:
        yield asked
    finally:
        ended.set()
        thread.join()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for name, former in before.items():
            signal.signal(name, former)
