"""The command ``isolaw status``: show the progress of a sweep."""

from __future__ import annotations

import signal
import threading
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING

import click

from isolaw.cli.common import handling, json_option, print_lines, print_result, shown
from isolaw.cli.help import ShortHelp

if TYPE_CHECKING:
    from rich.table import Table

    from isolaw.report.watch import Watch

_LINES_EVERY_S = 30.0  # interval of output that does not go to a terminal


@click.command(cls=ShortHelp)
@click.argument("directory", type=click.Path())
@click.option("--watch", is_flag=True, help="Update until the sweep ends, with its pace and the law so far.")
@json_option
def status(directory: str, watch: bool) -> None:
    """Show the progress of a sweep, which may still be running."""
    from isolaw import engine
    from isolaw.report.text.sweep import sweep_state

    if watch:
        from isolaw.report.watch import Watch

        leave = threading.Event()  # an exception would be lost inside a library callback
        with handling(lambda *_: leave.set(), signal.SIGINT):
            _watch(Watch(directory), leave)
    else:
        state = engine.status(directory)
        print_result(state, sweep_state(state))


def _watch(watch: Watch, leave: threading.Event) -> None:
    """Refresh one display on a terminal; elsewhere, print lines at intervals."""
    from rich.console import Console
    from rich.live import Live

    console = Console()
    terminal = console.is_terminal
    with Live(console=console, auto_refresh=False) if terminal else nullcontext() as live:

        def show() -> None:
            if live is None:
                print_lines(watch.lines())
            else:
                live.update(_picture(watch), refresh=True)

        shown_at = -_LINES_EVERY_S
        while watch.read():
            if terminal or time.monotonic() - shown_at >= _LINES_EVERY_S:
                watch.fit()
                show()
                shown_at = time.monotonic()
            if leave.wait(watch.pause_s):
                return
        watch.fit(at_once=True)
        show()


def _picture(watch: Watch) -> Table:
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    head, *rest = (Text(shown(line)) for line in watch.lines())
    planned, done = watch.state["rollouts_planned"], watch.state["rollouts"]
    table = Table.grid()  # a Group would lose the line after the bar, since the bar ends without a newline
    table.add_row(head)
    table.add_row(ProgressBar(total=max(planned, 1), completed=done))
    for line in rest:
        table.add_row(line)
    return table
