"""``isolaw status``: the progress of a sweep."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from isolaw.cli.common import print_json, print_lines, shown
from isolaw.cli.options import json_option

if TYPE_CHECKING:
    from rich.console import Console

    from isolaw.report.watch import Watch

_LINES_EVERY_S = 30.0  # where the output is no terminal


@click.command()
@click.argument("directory", type=click.Path())
@click.option("--watch", is_flag=True, help="Update until the sweep ends, with its pace and the law so far.")
@json_option
def status(directory: str, watch: bool, as_json: bool) -> None:
    """Show the progress of a sweep, also while it runs."""
    from isolaw import engine
    from isolaw.report.text.sweep import sweep_state

    if watch and as_json:
        raise click.UsageError("--watch does not go with --json")
    if watch:
        from isolaw.report.watch import Watch

        with _until_interrupted() as leave:
            _watch(Watch(directory), leave)
    elif as_json:
        print_json(engine.status(directory))
    else:
        print_lines(sweep_state(engine.status(directory)))


@contextmanager
def _until_interrupted() -> Iterator[threading.Event]:
    """Yield an event that Ctrl-C sets; as an exception it would be lost inside a library's callback."""
    leave = threading.Event()
    before = signal.signal(signal.SIGINT, lambda *_: leave.set())
    try:
        yield leave
    finally:
        signal.signal(signal.SIGINT, before)


def _watch(watch: Watch, leave: threading.Event) -> None:
    """Refresh one picture on a terminal; elsewhere print lines at intervals."""
    from rich.console import Console

    console = Console()
    if console.is_terminal:
        _live(watch, console, leave)
        return
    printed_at = -_LINES_EVERY_S
    while watch.read():
        if time.monotonic() - printed_at >= _LINES_EVERY_S:
            watch.fit()
            print_lines(watch.lines())
            printed_at = time.monotonic()
        if leave.wait(watch.pause_s):
            return
    watch.fit(at_once=True)
    print_lines(watch.lines())


def _live(watch: Watch, console: Console, leave: threading.Event) -> None:
    from rich.console import Group
    from rich.live import Live
    from rich.progress_bar import ProgressBar
    from rich.text import Text

    def picture() -> Group:
        state = watch.state
        bar = ProgressBar(total=max(state["rollouts_planned"], 1), completed=state["rollouts"])
        head, *rest = (Text(shown(line)) for line in watch.lines())
        return Group(head, bar, *rest)

    watch.read()
    with Live(picture(), console=console, auto_refresh=False) as live:
        while watch.state["running"]:
            watch.fit()
            live.update(picture(), refresh=True)
            if leave.wait(watch.pause_s):
                return
            watch.read()
        watch.fit(at_once=True)
        live.update(picture(), refresh=True)
