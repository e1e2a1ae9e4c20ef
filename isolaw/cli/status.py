"""``isolaw status``: how a sweep stands."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from isolaw.cli.common import print_json, shown

if TYPE_CHECKING:
    from rich.console import Console

    from isolaw.report.watch import Watch

_LINES_EVERY_S = 30.0  # where there is no terminal


@click.command()
@click.argument("directory", type=click.Path())
@click.option("--watch", is_flag=True, help="Go on until the sweep ends, with its pace and the law so far.")
@click.option("--json", "as_json", is_flag=True, help="Print the state as JSON.")
def status(directory: str, watch: bool, as_json: bool) -> None:
    """Say how the sweep in DIRECTORY stands; also while it is running."""
    from isolaw import engine
    from isolaw.report.text.runs import sweep_state

    if watch and as_json:
        raise click.UsageError("--watch shows, --json prints once: one of them")
    if watch:
        from isolaw.report.watch import Watch

        with _until_interrupted() as leave:  # the usual way to leave; the sweep goes on
            _watch(Watch(directory), leave)
        return
    state = engine.status(directory)
    if as_json:
        print_json(state)
        return
    for line in sweep_state(state):
        click.echo(shown(line))


@contextmanager
def _until_interrupted() -> Iterator[threading.Event]:
    """Yield what Ctrl-C sets; as an exception it gets lost where it meets a library's callback."""
    leave = threading.Event()
    before = signal.signal(signal.SIGINT, lambda *_: leave.set())
    try:
        yield leave
    finally:
        signal.signal(signal.SIGINT, before)


def _watch(watch: Watch, leave: threading.Event) -> None:
    """On a terminal one picture that changes; elsewhere lines at intervals."""
    from rich.console import Console

    console = Console()
    if console.is_terminal:
        _live(watch, console, leave)
        return
    said = 0.0
    while watch.look():
        if time.monotonic() - said >= _LINES_EVERY_S or not said:
            watch.fit()
            _say(watch)
            said = time.monotonic()
        if leave.wait(watch.pause_s):
            return
    watch.fit(at_once=True)
    _say(watch)


def _say(watch: Watch) -> None:
    for line in watch.lines():
        click.echo(shown(line))


def _live(watch: Watch, console: Console, leave: threading.Event) -> None:
    from rich.console import RenderableType
    from rich.live import Live
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    def picture() -> Table:
        state = watch.state
        bar = ProgressBar(total=max(state["rollouts_planned"], 1), completed=state["rollouts"])
        head, *rest = (Text(shown(line)) for line in watch.lines())
        table = Table.grid()
        rows: list[RenderableType] = [head, bar, *rest]
        for row in rows:
            table.add_row(row)
        return table

    watch.look()
    with Live(picture(), console=console, auto_refresh=False) as live:
        while watch.state["running"]:
            watch.fit()
            live.update(picture(), refresh=True)
            if leave.wait(watch.pause_s):
                return
            watch.look()
        watch.fit(at_once=True)
        live.update(picture(), refresh=True)
