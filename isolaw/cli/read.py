"""The command ``isolaw read``: list logs, which of them can be fitted, and the source of each value."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from isolaw import commands
from isolaw.cli import options as shared
from isolaw.cli.common import as_json, json_option, note, print_lines, print_notes, print_result, shown
from isolaw.cli.help import Further, ShortHelp
from isolaw.cli.options import Destination

if TYPE_CHECKING:
    from isolaw.readers.found_logs import FoundLog
    from isolaw.readers.reading import Reading

_DETAILS_GROUP = "the reward's column and the origin of values"
_MOST_IN_FULL = 3  # up to this many logs are printed in full without --verbose


@click.command(cls=ShortHelp)
@click.argument("sources", nargs=-1, required=True, type=click.Path())
@shared.reading_options({})
@click.option("--out", "-o", type=Destination(path_type=Path), help="Write the runs to this Parquet table.")
@click.option(
    "--save", is_flag=True,
    help="Write these options to isolaw.toml in the folder of the logs, where all commands find them.",
)  # fmt: skip
@click.option("--metric", cls=Further, group=_DETAILS_GROUP, help="Column of the table with the reward.")
@click.option(
    "--verbose", "-v", is_flag=True, cls=Further, group=_DETAILS_GROUP,
    help="Print every run in full, with the origin of each value.",
)  # fmt: skip
@json_option
@click.pass_context
def read(
    ctx: click.Context, /, sources: tuple[str, ...], out: Path | None, save: bool, verbose: bool,
    **options: Any,
) -> int:  # fmt: skip
    """List the logs in a folder, and which of them can be fitted.

    A SOURCE is a log or a directory of logs (veRL, TRL, OpenRLHF and others; JSON lines, consoles,
    TensorBoard, W&B, MLflow), a sweep's directory, a table, or hf://datasets/OWNER/NAME[@REVISION][/PATH],
    a data set on the Hugging Face Hub, or wandb://ENTITY/PROJECT[/RUN_ID].

    The exit code is 0 if all runs are ready, 3 if only some runs are ready because others lack a value, and 2
    if no run is ready. Runs without history and duplicates do not change the exit code.
    """
    from isolaw.errors import DataError
    from isolaw.files import check_replaceable, replacing
    from isolaw.report.text.reading import fit_command, found_lines, none_fitted

    if out is not None:
        check_replaceable(out, "a table of runs", "points.parquet", _is_runs_table)
    reading = shared.read_sources(sources, options)
    words = shared.words_of(ctx, sources)
    if save:
        _save(reading, sources, options)
    if len(reading.candidates) == 1 and not (as_json() or reading.ready):
        print_notes(reading.read_as)
        raise DataError(reading.none_ready())
    if as_json():
        runs = [log.to_dict() for log in reading.candidates]
        notes = [*reading.notes, *(reading.runs.notes if reading.ready else ())]
        result = {"runs": runs, "ready": len(reading.ready), "notes": notes, "no_logs": reading.no_logs}
        print_result({"simulated": reading.simulated.json, **result}, ())
    else:
        print_lines(reading.simulated.lines([]))
        if verbose or len(reading.candidates) <= _MOST_IN_FULL:
            for log in reading.ready:
                _print_log(log)
        print_lines(found_lines(reading, words, options["metric"]))
        print_notes((*reading.table_notes, *reading.notes))
        note(*(f"  {path}" for path in reading.no_logs if verbose))
    if out is not None and reading.ready:
        with replacing(out) as temporary:
            reading.runs.to_parquet(temporary)
        if not as_json():
            fit, _ = fit_command(reading.runs, [commands.path(out)], None, "law.json")
            print_lines([f"Runs: {out}." + (f" Next: {fit}" if fit else "")])
    if not reading.ready:
        note(f"isolaw: {none_fitted(reading)}")
        return 2
    return 0 if all(log.status.settled for log in reading.candidates) else 3


def _print_log(log: FoundLog) -> None:
    from isolaw.report.text.reading import log_rows

    names = ", ".join(name for name in (log.framework, log.container) if name)
    click.echo(f"{click.style(shown(log.run), bold=True)} ({names})")
    previous_label = ""
    for label, text in log_rows(log):
        click.echo(_wrap(f"  {shown(label) if label != previous_label else '':<14} ", shown(text)))
        previous_label = label
    click.echo()


def _wrap(label: str, text: str) -> str:
    """Wrap a long row under its label on a terminal; elsewhere, keep it on one line."""
    if not sys.stdout.isatty():
        return label + text
    width, indent = max(shutil.get_terminal_size().columns, 60), " " * len(label)
    return textwrap.fill(
        text, width, initial_indent=label, subsequent_indent=indent, break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip


def _is_runs_table(path: Path) -> bool:
    from isolaw.files import open_file
    from isolaw.readers.sources import is_ours

    with open_file(path) as file:
        head = file.read(4)
    return head == b"PAR1" and is_ours(path, head)


def _save(reading: Reading, sources: tuple[str, ...], options: dict[str, Any]) -> None:
    """Write the options of reading to ``isolaw.toml`` if some runs are ready with them."""
    from isolaw.errors import DataError, Wording
    from isolaw.files import check_destination, is_utf8
    from isolaw.readers.how_to_read import HowToRead, place

    if (place_and_files := place(sources)) is None:
        names = ", ".join(sources)
        raise click.UsageError(f"--save: found {names}; expected one folder, or files of one folder")
    path, files = place_and_files
    how_to_read = shared.how_to_read(options)
    if how_to_read == HowToRead():
        raise DataError("--save: found no option of reading; there is nothing to save")
    text = how_to_read.but(files=files).toml()
    if os.path.lexists(path):
        raise DataError(
            Wording(
                f"{path}: exists and stays unchanged. Add by hand what --save would write:",
                *(f"    {line}" for line in text.split("\n") if line),
            )
        )
    check_destination(path)
    if not reading.ready:
        note(f"note: {path} is not written, because no run is ready")
        return
    if not is_utf8(text):
        raise DataError(f"{path}: not written, because a value or name is not UTF-8")
    try:
        with open(path, "x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from None
    answer = commands.answer(sources, commands.Placeholder("rollouts"))
    note(f"note: saved {path}, which all commands find. Next, with your budget for <rollouts>: {answer}")
