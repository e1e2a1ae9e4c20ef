"""The commands of single runs: ``run-one``, which cluster jobs call, and ``export``."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import click

from isolaw.cli.common import handling, interruptible, json_option, note, print_lines, print_result
from isolaw.cli.help import ShortHelp
from isolaw.cli.options import Destination


@click.command("run-one", cls=ShortHelp, hidden=True)
@click.argument("directory", type=click.Path(file_okay=False))
def run_one(directory: str) -> int:
    """Execute or continue one run of a sweep.

    DIRECTORY is OUT/runs/<run_id> of the sweep in OUT. An unambiguous prefix of the run id is enough. On
    SIGINT, SIGTERM or SIGUSR2, the run saves its state and ends with exit code 3; the same command continues
    the run.
    """
    with _stop_at_signal() as stop:  # before importing numpy, which starts threads
        return _execute(directory, stop)


def _execute(directory: str, stop: threading.Event) -> int:
    from isolaw.executors.base import execute
    from isolaw.executors.worker import logged
    from isolaw.store.sweep import find_run

    run = find_run(directory)
    run.check()
    spec = run.read_spec()
    nodes = None
    # True in a task of a job on several nodes, but not in a shell inside such a job.
    if os.environ.get("SLURM_JOB_NUM_NODES", "1") != "1" and "SLURM_NODEID" in os.environ:
        from isolaw.executors.slurm import SlurmNodes

        nodes = SlurmNodes(run.open())
        if nodes.node_index:
            nodes.follow()
            return 0
    if run.recorded().is_done(spec):
        print_lines([f"{directory}: is done"])
        return 0
    run.proceed()
    with logged(run):
        *earlier, last = execute(run.sweep.directory, run.run_id, nodes, stop)
    for event in earlier:
        if event.kind == "warning":
            note(f"isolaw: {event.cause}")
    if last.kind == "done":
        print_lines([f"{directory}: is done"])
    elif last.kind == "stopped":
        reason = f" ({last.cause})" if last.cause else ""
        note(f"isolaw: {directory}: stopped{reason}; the same command continues the run")
    else:
        note(f"isolaw: {directory}: {last.cause}")
    return {"done": 0, "stopped": 3}.get(last.kind, 1)


@contextmanager
def _stop_at_signal() -> Iterator[threading.Event]:
    """Yield an event that a signal sets, and shield child processes from SIGUSR2.

    SLURM sends SIGUSR2 to all processes of a job, and the signal kills any process without a handler. Child
    processes inherit the signal mask, so blocking the signal here protects them.
    """
    stop, finished = threading.Event(), threading.Event()

    def watch() -> None:
        while not finished.wait(0.2):
            # Not sigtimedwait: when a stopped process continues, sigtimedwait reports a signal that nobody
            # sent.
            if signal.SIGUSR2 in signal.sigpending():
                signal.sigwait({signal.SIGUSR2})
                stop.set()

    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        with handling(lambda *_: stop.set(), signal.SIGINT, signal.SIGTERM):
            yield stop
    finally:
        finished.set()
        thread.join()
        if signal.SIGUSR2 in signal.sigpending():  # a pending signal would kill the process once unblocked
            signal.sigwait({signal.SIGUSR2})
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@click.command(cls=ShortHelp)
@click.argument("run", type=click.Path())
@click.option("--out", required=True, type=Destination(), help="Folder of the model, new or empty.")
@json_option
@interruptible()
def export(run: str, out: str) -> None:
    """Write the model of a real run as a Hugging Face folder.

    RUN is OUT/runs/<run_id> of the sweep in OUT, or OUT/<run_id>. An unambiguous prefix of the run id is
    enough. isolaw exports the last state that the run saved (the final state if the run is done) and prints
    the step of this state.
    """
    from isolaw.backends.real import export as export_run

    model = export_run.export(run, out)
    lines = [
        f"{out}: step {model['step']:,} of run {model['run_id'][:12]}, after {model['compute']:,} rollouts; "
        f"{model['parameters']:,} parameters in {model['dtype']}",
        f'AutoModelForCausalLM.from_pretrained("{out}") loads it, and so does vLLM.',
    ]
    print_result(model, lines)
