"""The command ``isolaw status``: show the progress of a sweep."""

from __future__ import annotations

import signal
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from isolaw import engine
from isolaw.cli.common import handling, json_option, print_lines, print_result, shown
from isolaw.cli.help import ShortHelp
from isolaw.errors import IsolawError
from isolaw.evidence import Simulated
from isolaw.report.fitted_runs import usual_hold
from isolaw.report.text.law import ends
from isolaw.report.text.numbers import duration, number
from isolaw.report.text.sweep import sweep_state

if TYPE_CHECKING:
    from rich.table import Table


_WINDOW_S = 120.0  # averaging window of the pace
_FIT_EVERY_S = 30.0
_SHARE = 0.1  # largest share of the time for reading and fitting


class _Watch:
    """Reads a sweep's directory repeatedly, without affecting the sweep. Tests replace ``clock``."""

    def __init__(self, directory: str | Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.directory = Path(directory)
        self.clock = clock
        self.state: dict[str, Any] = {}
        self.law: list[str] = []
        self.pause_s = 1.0  # seconds until the next reading
        self._rollouts: deque[tuple[float, int]] = deque()
        self._fitted_at: tuple[float, int] | None = None  # (time, rollouts) of the last fit
        self._fit_took = 0.0

    def read(self) -> bool:
        """Read the directory and return whether the sweep is running; raise `StoreError` if there is none."""
        began = self.clock()
        self.state = engine.status(self.directory)
        self._rollouts.append((began, self.state["rollouts"]))
        while self._rollouts[-1][0] - self._rollouts[0][0] > _WINDOW_S:
            self._rollouts.popleft()
        self.pause_s = max(1.0, (self.clock() - began) / _SHARE)
        return bool(self.state["running"])

    @property
    def per_second(self) -> float | None:
        """Rollouts per second over the last two minutes, or None before the first new rollout."""
        (first, less), (last, more) = self._rollouts[0], self._rollouts[-1]
        return (more - less) / (last - first) if last > first and more > less else None

    @property
    def left_s(self) -> float | None:
        """Seconds left at the current pace, or None if the pace is not known."""
        pace = self.per_second
        return (self.state["rollouts_planned"] - self.state["rollouts"]) / pace if pace else None

    def fit(self, at_once: bool = False) -> None:
        """Fit the checkpoints without draws if there are new ones, at most every 30 s unless ``at_once``."""
        now, rollouts = self.clock(), self.state["rollouts"]
        if self._fitted_at is not None:
            when, before = self._fitted_at
            soon = now - when < max(_FIT_EVERY_S, self._fit_took / _SHARE)
            if rollouts == before or (soon and not at_once):
                return
        self.law = _law_so_far(self.directory)
        self._fitted_at = now, rollouts
        self._fit_took = self.clock() - now
        self.read()  # the sweep advanced during the fit

    def lines(self) -> list[str]:
        """Return the lines with progress, pace and law."""
        pace = "pace not yet known"
        if self.per_second is not None and self.left_s is not None:
            per_second = number(float(f"{self.per_second:.3g}"))
            pace = f"{per_second} rollouts per second, about {duration(self.left_s)} left"
        return Simulated.of_json(self.state).lines([*sweep_state(self.state, pace), *self.law])


def _law_so_far(directory: Path) -> list[str]:
    """Return the law of the checkpoints in a sweep's directory, or the reason why there is none yet."""
    from isolaw.fits.pipeline import fit
    from isolaw.store import SweepStore

    try:
        runs = SweepStore(directory).collect()
        document = fit(runs, hold=usual_hold(runs), draws=0).document
    except IsolawError as error:
        return [f"There is no law yet: {error}"]
    return ["The law so far, without intervals:", f"  {ends(document)}"]


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
        leave = threading.Event()  # an exception would be lost inside a library callback
        with handling(lambda *_: leave.set(), signal.SIGINT):
            _watch(_Watch(directory), leave)
    else:
        state = engine.status(directory)
        print_result(state, sweep_state(state))


def _watch(watch: _Watch, leave: threading.Event) -> None:
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


def _picture(watch: _Watch) -> Table:
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
