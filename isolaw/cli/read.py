"""``isolaw read``: the runs in logs, and the origin of each fact."""

from __future__ import annotations

import shutil
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from isolaw.cli import options as shared
from isolaw.cli.common import note, print_json, shown

if TYPE_CHECKING:
    from isolaw.readers.read import Provenance, Reading


@click.command()
@click.argument("sources", nargs=-1, required=True, type=click.Path())
@shared.source_options
@click.option("--metric", help="Column that holds the reward, in a table.")
@click.option("--out", "-o", type=click.Path(path_type=Path), help="Write the runs to this Parquet table.")
@click.option(
    "--write-mapping", type=click.Path(), metavar="FILE", help="Draft a mapping file for one table, to edit."
)
@shared.json_option
def read(
    sources: tuple[str, ...], out: Path | None, write_mapping: str | None, as_json: bool, **options: Any
) -> None:
    """List the runs in logs, tables or sweeps.

    For each run isolaw prints B_p, n, steps and metrics, and the origin of each fact. A SOURCE is a log or a
    directory of logs (veRL, TRL, OpenRLHF and others; JSON lines, consoles, TensorBoard, W&B, MLflow), a
    sweep's directory, or a table.
    """
    from isolaw.files import check_replaceable, replacing

    if write_mapping is not None:
        if out is not None or as_json:
            raise click.UsageError("--write-mapping does not go with --out or --json")
        _write_mapping(sources, write_mapping)
        return
    if out is not None:
        check_replaceable(out, "a table of runs", "points.parquet", _is_table_of_runs)
    reading = shared.read_sources(sources, options)
    if as_json:
        runs = [run.to_dict() for run in reading.provenance]
        print_json({"runs": runs, "notes": [*reading.notes, *reading.runs.notes]})
    else:
        for run in reading.provenance:
            _print(run)
        click.echo(_total(reading))
        for text in (*reading.notes, *reading.table_notes):
            note(f"note: {text}")
    if out is not None:
        with replacing(out) as temporary:
            reading.runs.to_parquet(temporary)
        if not as_json:
            click.echo(f"Runs: {out}. Next: isolaw fit {out} --out law.json")


def _print(run: Provenance) -> None:
    from isolaw.report.text.numbers import number

    facts = dict(run.facts)
    policy = facts.pop("on_policy", None)
    b, n, batch = (facts.pop(k) for k in ("problems_per_batch", "rollouts_per_problem", "rollouts_per_step"))
    names = ", ".join(name for name in (run.framework, run.container) if name)
    click.echo(f"{click.style(shown(run.run), bold=True)} ({names})")
    more = f" and {len(run.sources) - 1} more" if len(run.sources) > 1 else ""
    rows = [
        ("from", run.sources[0] + more),
        ("B_p", f"{b.value:<8} {b.origin}"),
        ("n", f"{n.value:<8} {n.origin}"),
        ("rollouts/step", f"{batch.value:<8} {batch.origin}"),
        ("steps", f"{run.steps[0]} to {run.steps[1]}, C to {number(run.compute[1])}"),
    ]
    for eval_set in sorted(run.metrics, key=lambda name: (name == "train", name)):
        counts = ", ".join(f"{metric} ({size})" for metric, size in run.metrics[eval_set].items())
        rows.append((eval_set, counts))
    if policy:
        rows.append(("on-policy", f"{'yes' if policy.value else 'no':<8} {policy.origin}"))
    elif run.framework not in ("", "isolaw"):
        rows.append(("on-policy", "not known"))
    by_origin: dict[str, list[str]] = {}
    for name, fact in facts.items():
        by_origin.setdefault(fact.origin, []).append(f"{name} {fact.value}")
    rows += [("also", f"{', '.join(known)} ({origin})") for origin, known in by_origin.items()]
    rows += [("left out", f"{reason}: {times:,}") for reason, times in run.left_out.items()]
    rows += [("note", text) for text in run.notes]
    before = ""
    for label, text in rows:
        click.echo(_wrapped(f"  {shown(label) if label != before else '':<14} ", shown(text)))
        before = label
    click.echo()


def _wrapped(label: str, text: str) -> str:
    """Fold a long row under its label on a terminal; elsewhere it stays one line."""
    if not sys.stdout.isatty():
        return label + text
    width, indent = max(shutil.get_terminal_size().columns, 60), " " * len(label)
    return textwrap.fill(
        text, width, initial_indent=label, subsequent_indent=indent, break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip


def _total(reading: Reading) -> str:
    from isolaw.report.text.numbers import count

    points = reading.runs.points
    b, n = (
        ", ".join(str(value) for value in sorted(points[name].unique()))
        for name in ("problems_per_batch", "rollouts_per_problem")
    )
    return f"{count(len(reading.runs), 'run')}: B_p = {b}; n = {n}"


def _is_table_of_runs(path: Path) -> bool:
    from isolaw.readers.sources import is_ours

    with path.open("rb") as file:
        head = file.read(4)
    return head == b"PAR1" and is_ours(path, head)


def _write_mapping(sources: tuple[str, ...], file: str) -> None:
    from isolaw.errors import DataError
    from isolaw.readers.mapping_draft import draft

    if len(sources) != 1:
        raise click.UsageError(f"--write-mapping: found {len(sources)} sources; expected one table")
    text = draft(sources[0], file)
    try:
        with open(file, "x", encoding="utf-8") as out:  # never overwritten: the user may have edited it
            out.write(text)
    except FileExistsError:
        raise DataError(f"{file}: exists; it is left unchanged") from None
    except OSError as error:
        raise DataError(f"{file}: {error.strerror or error}") from None
    click.echo(f"Mapping: {file}. Edit it, then: isolaw read {sources[0]} --mapping {file}")
