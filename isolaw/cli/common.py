"""How commands print, show progress, and end on Ctrl-C."""

from __future__ import annotations

import functools
import importlib
import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from isolaw.errors import IsolawError
from isolaw.evidence import Simulated

if TYPE_CHECKING:
    from isolaw.report.document import Document

_LONGEST = 100_000  # characters of a line or a message that are printed
# Where there is no terminal: seconds between two lines of progress, and at most while `repeated`.
_EVERY, _SILENCE = 60.0, 300.0
# What a terminal would obey or could not print: control characters, characters that turn the text's
# direction, halves of a character. isolaw indents the line after its own line breaks, names do not.
_UNSAFE = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]|\n(?! )"
)


def shown(text: str) -> str:
    r"""Return text that is safe on a terminal, whatever names and logs contain.

    >>> print(shown("a\x1b[31m\n  b"))
    a\u001b[31m
      b
    """
    if len(text) > _LONGEST:
        text = f"{text[:_LONGEST]} … ({len(text) - _LONGEST:,} more characters)"
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def print_lines(lines: Iterable[str]) -> None:
    """Print lines to standard output."""
    for line in lines:
        click.echo(shown(line))


def print_json(value: Any) -> None:
    """Print JSON to standard output; NaN is a defect, not a value."""
    print_lines(json.dumps(value, indent=1, allow_nan=False, ensure_ascii=False).split("\n"))


def print_result(as_json: bool, value: Mapping[str, Any], lines: Iterable[str]) -> None:
    """Print a result to standard output, as JSON or as text.

    A result that rests on runs has the key ``simulated`` (`isolaw.evidence`): JSON begins with it, and the
    first line of the text reports it. ``format`` in JSON names the command, unless it is a file's format.
    """
    if as_json:
        first = {name: value[name] for name in ("simulated",) if name in value}
        kind = f"isolaw.{click.get_current_context().info_name}/1"
        print_json({**first, "format": kind, **value})
    else:
        print_lines(Simulated.of_json(value).lines(lines))


def is_page(path: str | None) -> bool:
    """Return whether a command's ``--out`` names a page; raise `DataError` if isolaw may not write it."""
    if path is None or not path.endswith((".html", ".htm")):
        return False
    from isolaw.report.page import check_replaceable

    check_replaceable(path)
    return True


def write_page(
    document: Document, path: str | Path, words: Iterable[str], sources: Iterable[Any] = ()
) -> None:
    """Write the page with the result of the command line ``words`` for the ``sources``."""
    from isolaw import commands
    from isolaw.report.page import document as page
    from isolaw.report.page import provenance

    made = page.write_page(document, path, str(commands.this([*words])), provenance.sources(sources))
    note(f"Report: {made}")


def print_document(as_json: bool, document: Document) -> None:
    """Print the result of a study to standard output, as JSON or as text."""
    if as_json:
        print_result(True, document.data, ())
    else:
        print_lines(document.lines())


def note(text: str) -> None:
    """Print a note as one line to standard error, apart from the results."""
    click.echo(shown(text), err=True)


@contextmanager
def notes_on_failure(notes: Iterable[str]) -> Iterator[None]:
    """Print the notes about the runs if their fit fails; otherwise they are among the law's flags."""
    try:
        yield
    except IsolawError:
        for text in notes:
            note(f"note: {text}")
        raise


@contextmanager
def handling(handler: Any, *numbers: int) -> Iterator[None]:
    """Handle signals with this handler inside the context; only the main thread can set one."""
    ours = numbers if threading.current_thread() is threading.main_thread() else ()
    before = {number: signal.signal(number, handler) for number in ours}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)


@contextmanager
def interruptible() -> Iterator[None]:
    """Turn Ctrl-C into an exception inside the context, which then ends child processes and temporary
    folders."""
    ignored = not callable(signal.getsignal(signal.SIGINT))  # in the background
    with handling(signal.default_int_handler, *(() if ignored else (signal.SIGINT,))):
        yield


@contextmanager
def progress_bar(task: str, total: float = 1.0) -> Iterator[Callable[..., None]]:
    """Show a bar with the time left on a terminal; elsewhere print it as a line, at most once a minute.

    Yields a function that takes ``advance``, ``completed``, ``total`` or ``description``.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if not console.is_terminal:  # a log, which should not end in silence
        yield _lines(task, total)
        return
    columns = (
        TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"),
        TimeRemainingColumn(), TextColumn("left"),
    )  # fmt: skip
    with Progress(*columns, console=console, transient=True) as bar:
        yield functools.partial(bar.update, bar.add_task(task, total=total))


def _lines(description: str, total: float) -> Callable[..., None]:
    """Return a function like the one `progress_bar` yields, but one that prints lines."""
    state: dict[str, Any] = {"description": description, "total": total, "completed": 0.0}
    began = last = time.monotonic()

    def update(advance: float = 0.0, **given: Any) -> None:
        nonlocal last
        state.update(given)
        if advance:  # `repeated` passes none from another thread
            state["completed"] += advance
        now, share = time.monotonic(), min(state["completed"] / (state["total"] or 1.0), 1.0)
        if now - last < _EVERY:
            return
        last = now
        from isolaw.report.text.numbers import duration

        left = f", about {duration((now - began) * (1 / share - 1))} left" if share > 0 else ""
        note(f"{state['description'] or 'progress'}: {100 * share:.0f} %{left}")

    return update


@contextmanager
def repeated(update: Callable[..., None]) -> Iterator[None]:
    """While entered, call the function of a `progress_bar` every five minutes, from a thread of its own.

    A log should not be silent for longer, and a checkpoint of a large model takes longer.
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


def announce_compilation(module: str = "isolaw.fits.curves.kernel", what: str = "solver") -> None:
    """Print a note if a kernel will be compiled, at its first use after an installation."""
    package, _, name = module.rpartition(".")
    cache = Path(importlib.import_module(package).__path__[0]) / "__pycache__"
    if os.access(cache, os.W_OK) and not any(cache.glob(f"{name}.*.nbi")):
        note(f"note: compiling the {what}, once after an installation: about ten seconds")
