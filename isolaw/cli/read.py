"""``isolaw read``: what logs hold, and where each thing is known from."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from isolaw.cli.common import constants, note, pairs, print_json, shown

if TYPE_CHECKING:
    from isolaw.readers.provenance import Account
    from isolaw.readers.read import Reading

Command = TypeVar("Command", bound=Callable[..., Any])


def source_options(command: Command) -> Command:
    """Add the options that say how sources are read: the same for every command that reads them."""
    for option in reversed(
        [
            click.option(
                "--format", default="auto", show_default=True, help="How logs are written; auto finds out."
            ),
            click.option(
                "--set",
                "settings",
                multiple=True,
                metavar="[GLOB:]NAME=VALUE",
                help="What a log does not say, as n=16, B_p=512 or 'runs/a*:seed=1'.",
            ),
            click.option(
                "--group-by",
                metavar="file|directory|KEY",
                help="What makes one run of several logs; KEY is of their configuration.",
            ),
            click.option(
                "--mapping", type=click.Path(), help="For tables: the file that maps their columns."
            ),
            click.option(
                "--column", multiple=True, metavar="NAME=COLUMN", help="Our name for a column of a table."
            ),
            click.option(
                "--derive",
                multiple=True,
                metavar="NAME=ARITHMETIC",
                help='As "compute=prompts_seen*rollout_n".',
            ),
            click.option(
                "--constant", multiple=True, metavar="NAME=VALUE", help="As problems_per_batch=512."
            ),
        ]
    ):
        command = option(command)
    return command


def read_sources(sources: tuple[str, ...], metric: str | None, options: dict[str, Any]) -> Reading:
    """Read what a command line names."""
    from isolaw.readers.read import survey
    from isolaw.readers.table import Mapped

    mapped = Mapped(
        pairs(options["column"], "--column"),
        pairs(options["derive"], "--derive"),
        constants(options["constant"], "--constant"),
    )
    return survey(
        sources,
        metric,
        mapped,
        options["mapping"],
        options["settings"],
        options["format"],
        options["group_by"],
    )


@click.command()
@click.argument("sources", nargs=-1, required=True, type=click.Path())
@source_options
@click.option("--metric", help="In a table: the column that holds the rewards.")
@click.option("--out", "-o", type=click.Path(), help="Write the runs here, as a Parquet table.")
@click.option(
    "--write-mapping", type=click.Path(), metavar="FILE", help="Draft a mapping for one table, to be edited."
)
@click.option("--json", "as_json", is_flag=True, help="Print the same as JSON.")
def read(
    sources: tuple[str, ...],
    metric: str | None,
    out: str | None,
    write_mapping: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Say what SOURCE… hold: for each run B_p, n, steps and metrics, and where that is known from.

    A source is a log or a directory of logs (veRL, TRL, OpenRLHF and others; JSON lines, consoles,
    TensorBoard, W&B, MLflow), a sweep's directory, or a table.
    """
    if write_mapping is not None:
        if out is not None or as_json:
            raise click.UsageError(
                "--write-mapping drafts a mapping and reads nothing else: no --out, no --json"
            )
        _write_mapping(sources, write_mapping)
        return
    if out is not None:
        _check_table(Path(out))
    reading = read_sources(sources, metric, options)
    if as_json:
        accounts = [account.to_dict() for account in reading.accounts]
        print_json({"runs": accounts, "notes": [*reading.notes, *reading.runs.notes]})
    else:
        for account in reading.accounts:
            _print(account)
        click.echo(_total(reading))
        told = {own for account in reading.accounts for own in account.notes}
        for text in (*reading.notes, *(own for own in reading.runs.notes if not any(t in own for t in told))):
            note(f"note: {text}")
    if out is not None:
        _write_table(reading, Path(out))
        if not as_json:
            click.echo(f"Runs: {out}. Next: isolaw fit {out} --out law.json")


def _print(account: Account) -> None:
    from isolaw.report.text.words import number

    facts = account.facts
    b, n, batch = (facts[k] for k in ("problems_per_batch", "rollouts_per_problem", "rollouts_per_step"))
    whose = ", ".join(part for part in (account.framework, account.container) if part)
    click.echo(f"{click.style(shown(account.run), bold=True)} ({whose})")
    several = f" and {len(account.sources) - 1} more" if len(account.sources) > 1 else ""
    rows = [
        ("from", account.sources[0] + several),
        ("B_p", f"{b.value:<8} {b.origin}"),
        ("n", f"{n.value:<8} {n.origin}"),
        ("rollouts/step", f"{batch.value:<8} {batch.origin}"),
        ("steps", f"{account.steps[0]} to {account.steps[1]}, C to {number(account.compute[1])}"),
    ]
    for eval_set in sorted(account.metrics, key=lambda own: (own == "train", own)):
        counts = ", ".join(f"{metric} ({size})" for metric, size in account.metrics[eval_set].items())
        rows.append((eval_set, counts))
    policy = facts.get("on_policy")
    if account.framework not in ("", "isolaw") or policy:
        rows.append(
            ("on-policy", f"{'yes' if policy.value else 'no':<8} {policy.origin}" if policy else "not known")
        )
    named = {"problems_per_batch", "rollouts_per_problem", "rollouts_per_step", "on_policy"}
    rest: dict[str, list[str]] = {}
    for name, fact in facts.items():
        if name not in named:
            rest.setdefault(fact.origin, []).append(f"{name} {fact.value}")
    rows += [("also", f"{', '.join(known)} ({origin})") for origin, known in rest.items()]
    rows += [("left out", f"{reason}: {times:,}") for reason, times in account.left_out.items()]
    rows += [("note", text) for text in account.notes]
    before = ""
    for label, text in rows:
        click.echo(_wrapped(f"  {shown(label) if label != before else '':<14} ", shown(text)))
        before = label
    click.echo()


def _wrapped(label: str, text: str) -> str:
    """Fold a long row under its label for a terminal; what goes elsewhere stays one line."""
    if not sys.stdout.isatty():
        return label + text
    width = max(shutil.get_terminal_size().columns, 60)
    return textwrap.fill(
        text,
        width,
        initial_indent=label,
        subsequent_indent=" " * len(label),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _total(reading: Reading) -> str:
    points = reading.runs.points
    b, n = (
        ", ".join(str(value) for value in sorted(points[name].unique()))
        for name in ("problems_per_batch", "rollouts_per_problem")
    )
    runs = len(reading.runs)
    return f"{runs} run{'' if runs == 1 else 's'}: B_p = {b}; n = {n}"


def _check_table(path: Path) -> None:
    """Refuse before the work what could not be written after it."""
    from isolaw.errors import DataError
    from isolaw.readers.sources import is_ours

    if path.is_dir():
        raise DataError(f"{path}: is a directory; accepted: a file's name, as {path / 'points.parquet'}")
    if path.exists():
        head = b""
        if path.is_file():  # opening a pipe would wait
            with path.open("rb") as file:
                head = file.read(4)
        if head != b"PAR1" or not is_ours(path, head):
            raise DataError(f"{path}: exists and is not a table of runs; nothing was written over")
    above = next(folder for folder in path.absolute().parents if folder.exists())
    if not above.is_dir() or not os.access(above, os.W_OK):
        raise DataError(f"{path}: nothing can be written in {above}")


def _write_table(reading: Reading, path: Path) -> None:
    from isolaw.errors import DataError

    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        reading.runs.to_parquet(temporary)
        temporary.replace(path)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from None


def _write_mapping(sources: tuple[str, ...], file: str) -> None:
    from isolaw.errors import DataError
    from isolaw.readers.draft import draft

    if len(sources) != 1:
        raise click.UsageError("--write-mapping takes one table")
    text = draft(sources[0], file)
    try:
        with open(file, "x", encoding="utf-8") as out:  # it may have been edited: never written over
            out.write(text)
    except FileExistsError:
        raise DataError(f"{file}: exists; nothing was written over") from None
    except OSError as error:
        raise DataError(f"{file}: {error.strerror or error}") from None
    click.echo(f"Mapping: {file}. Look it over; next: isolaw read {sources[0]} --mapping {file}")
