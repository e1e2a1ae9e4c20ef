"""Printing, progress bars and the handling of Ctrl-C for all commands."""

from __future__ import annotations

import functools
import importlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from isolaw import commands
from isolaw.errors import IsolawError, Spelled, lines_of, one_line
from isolaw.evidence import Simulated

if TYPE_CHECKING:
    from isolaw.registry import Shown
    from isolaw.report.document import Document

_JSON = "isolaw --json"  # the key of the option's value in click's context
_MOST_CHARACTERS = 100_000  # most characters to print of one line
# Without a terminal: seconds between two progress lines, and the longest silence while `repeated` is active.
_EVERY, _SILENCE = 60.0, 300.0


def shown(text: str, limit: int = _MOST_CHARACTERS) -> str:
    r"""Return text that is safe to print on a terminal, even if names and logs contain escape sequences.

    Only a `Wording` keeps its line breaks: any other line break comes from a name or another program. Its
    arguments become options.

    >>> from isolaw.errors import Wording
    >>> print(shown(Wording("a\x1b[31m\n  b", "  c: " + commands.option("where", "lr", 0.1))))
    a\u001b[31m\u000a  b
      c: --where lr=0.1
    """
    return "\n".join(_shorten("".join(map(_as_typed, line)), limit) for line in lines_of(text))


def _as_typed(part: str) -> str:
    """Return a part of a message as typed, with a command if the running one lacks the option."""
    if not isinstance(part, Spelled):
        return one_line(part)
    flag, context = part.words[0], click.get_current_context(silent=True)
    root = context and context.find_root().command
    home: list[str] = []
    if context and isinstance(root, click.Group) and flag.startswith("-") and not _has(context.command, flag):
        home = next((["isolaw", name] for name in ("read", "fit") if _has(root.commands[name], flag)), [])
    return commands.quoted([*home, *part.words])


def _has(command: click.Command, flag: str) -> bool:
    return any(flag in option.opts for option in command.params)


def _shorten(line: str, limit: int) -> str:
    excess = len(line) - limit
    return f"{line[:limit]} … ({excess:,} more characters)" if excess > 0 else line


def print_lines(lines: Iterable[str]) -> None:
    """Print lines to standard output."""
    for line in lines:
        click.echo(shown(line))


def _store_json_flag(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    ctx.meta[_JSON] = value


json_option = click.option(
    "--json", "as_json", is_flag=True, expose_value=False, callback=_store_json_flag,
    help="Print the result as JSON.",
)  # fmt: skip


def as_json() -> bool:
    """Return whether the running command has the option ``--json``."""
    return bool(click.get_current_context().meta.get(_JSON))


def print_result(value: Mapping[str, Any], lines: Iterable[str]) -> None:
    """Print a result to standard output, as JSON or as text.

    A result that depends on runs has the key ``simulated`` (`isolaw.evidence`). This key comes first in JSON,
    and the first line of the text states it. In JSON, ``format`` names the command, unless the value is a
    file with its own format. Raises `ValueError` for JSON with NaN or infinity.
    """
    if as_json():
        label = {name: value[name] for name in ("simulated",) if name in value}
        format_name = f"isolaw.{click.get_current_context().info_name}/1"
        document = {**label, "format": format_name, **value}
        print_lines(json.dumps(document, indent=1, allow_nan=False, ensure_ascii=False).split("\n"))
    else:
        print_lines(Simulated.of_json(value).lines(lines))


def print_document(result: Shown | Document) -> None:
    """Print the result of a study, or its document, to standard output, as JSON or as text."""
    from isolaw.report.document import Document
    from isolaw.report.document import document as document_of

    document = result if isinstance(result, Document) else document_of(result)
    if as_json():
        print_result(document.data, ())
    else:
        print_lines(document.lines())


def note(*lines: str) -> None:
    """Print lines to standard error, so that standard output contains only results."""
    for line in lines:
        click.echo(shown(line), err=True)


def print_notes(texts: Iterable[str]) -> None:
    """Print notes about a result to standard error."""
    note(*("note: " + text for text in texts))


@contextmanager
def notes_on_failure(notes: Iterable[str]) -> Iterator[None]:
    """Print the notes about the runs if their fit fails; otherwise the law's flags contain them."""
    try:
        yield
    except IsolawError:
        print_notes(notes)
        raise


@contextmanager
def handling(handler: Any, *signal_numbers: int) -> Iterator[None]:
    """Handle signals with ``handler`` inside the context. Only the main thread can set signal handlers."""
    settable = signal_numbers if threading.current_thread() is threading.main_thread() else ()
    former_handlers = {signal_number: signal.signal(signal_number, handler) for signal_number in settable}
    try:
        yield
    finally:
        for signal_number, former in former_handlers.items():
            signal.signal(signal_number, former)


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise `KeyboardInterrupt` on Ctrl-C inside the context, so that cleanup code runs."""
    is_ignored = not callable(signal.getsignal(signal.SIGINT))  # a process in the background ignores SIGINT
    with handling(signal.default_int_handler, *(() if is_ignored else (signal.SIGINT,))):
        yield


@contextmanager
def progress_bar(task: str, total: float = 1.0) -> Iterator[Callable[..., None]]:
    """Show a progress bar with the time left; without a terminal, print a line at most once a minute.

    Yields a function that accepts ``advance``, ``completed``, ``total`` or ``description``.
    """
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:  # e.g. a log file, which should also show progress
        yield _line_printer(task, total)
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"),
        TimeRemainingColumn(), TextColumn("left"),
    )  # fmt: skip
    with Progress(*columns, console=console, transient=True) as bar:
        yield functools.partial(bar.update, bar.add_task(task, total=total))


@contextmanager
def stages() -> Iterator[Callable[..., None]]:
    """Show a progress bar for each stage of a command; yield a function of the stage and the share done."""
    stage, update = "", None
    with ExitStack() as bar:

        def show(name: str, share: float = 0.0) -> None:
            nonlocal stage, update
            if update is None or name != stage:
                bar.close()
                stage, update = name, bar.enter_context(progress_bar(name))
            update(completed=share)

        yield show


def _line_printer(description: str, total: float) -> Callable[..., None]:
    """Return an update function for `progress_bar` that prints lines in place of a bar."""
    state: dict[str, Any] = {"description": description, "total": total, "completed": 0.0}
    began_at = last_at = time.monotonic()

    def update(advance: float = 0.0, **changes: Any) -> None:
        nonlocal last_at
        state.update(changes)
        if advance:  # calls from the thread of `repeated` have no ``advance``
            state["completed"] += advance
        now, share = time.monotonic(), min(state["completed"] / (state["total"] or 1.0), 1.0)
        if now - last_at < _EVERY:
            return
        last_at = now
        from isolaw.evidence import duration

        time_left = f", about {duration((now - began_at) * (1 / share - 1))} left" if share > 0 else ""
        note(f"{state['description'] or 'progress'}: {100 * share:.0f} %{time_left}")

    return update


@contextmanager
def repeated(update: Callable[..., None]) -> Iterator[None]:
    """Call the update function of a `progress_bar` every five minutes, from a separate thread.

    The thread runs inside the context. Logs should not be silent for longer than that, but one checkpoint of
    a large model can take longer.
    """
    ended = threading.Event()

    def call() -> None:
        while not ended.wait(_SILENCE):
            update()

    threading.Thread(target=call, daemon=True).start()
    try:
        yield
    finally:
        ended.set()


def announce_compilation(module: str = "isolaw.fits.curves.kernel", purpose: str = "solver") -> None:
    """Print a note if a kernel will be compiled, which happens at the first use after an installation."""
    package, _, name = module.rpartition(".")
    cache = Path(importlib.import_module(package).__path__[0]) / "__pycache__"
    if os.access(cache, os.W_OK) and not any(cache.glob(f"{name}.*.nbi")):
        note(f"note: compiling the {purpose}, once after an installation: about ten seconds")
