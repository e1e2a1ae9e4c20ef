"""``isolaw run-one``: make one run of a sweep; what jobs of a cluster execute."""

from __future__ import annotations

import os
import signal
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
    from isolaw.errors import StoreError
    from isolaw.executors.base import execute
    from isolaw.executors.worker import logged
    from isolaw.store import SweepStore

    folder = Path(directory).resolve()
    sweep = SweepStore(folder.parent.parent)
    run = sweep.run(folder.name)
    if not sweep.exists or run.folder != folder or not (folder / "spec.json").is_file():
        raise StoreError(f"{directory}: not a run of a sweep; accepted: OUT/runs/<run_id>")
    nodes = None
    if int(os.environ.get("SLURM_JOB_NUM_NODES", "1")) > 1:
        from isolaw.executors import slurm

        nodes = slurm.Nodes(folder)
        if nodes.number:
            nodes.follow()
            return 0
    spec = run.read_spec()
    if run.done_compute() // spec.batch_rollouts >= spec.steps:
        click.echo(f"{directory}: is done")
        return 0

    def ask_to_stop(number: int, frame: Any) -> None:
        run.ask_to_stop()

    run.proceed()
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2):
        signal.signal(name, ask_to_stop)
    with logged(run.log):
        *_, last = execute(sweep.directory, folder.name, nodes)
    if last.kind == "failed":
        note(f"isolaw: {directory}: {last.cause}")
    elif last.kind == "busy":
        note(f"isolaw: {last.cause}")
    elif last.kind == "stopped":
        note(f"isolaw: {directory}: stopped at C = {last.compute:,}; the same command continues")
    else:
        click.echo(f"{directory}: is done")
    return {"done": 0, "stopped": 3}.get(last.kind, 1)
