"""``isolaw figures``: the paper's figures of one's own runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from isolaw.cli.common import announce_compilation, constants, note, print_json, shown
from isolaw.cli.options import law_keywords, law_options
from isolaw.cli.read import read_sources, source_options


@click.command()
@click.argument("sources", nargs=-1, required=True, type=click.Path())
@click.option("--out", "-o", required=True, type=click.Path(), metavar="DIR", help="Write the figures there.")
@law_options
@source_options
@click.option("--json", "as_json", is_flag=True, help="Print what was drawn, and what not and why, as JSON.")
def figures(sources: tuple[str, ...], out: str, as_json: bool, **options: Any) -> None:
    """Draw the figures of arXiv 2603.12151 of the runs in SOURCE…, as PNG, SVG and PDF.

    \b
    frontier    reward against compute at one B_p, with the frontier
    law         n*(C) at one B_p
    fixed-b     reward and n*, B_p* against M, where n trades with B_p at one B
    joint       reward and n*, B_p against C, where both vary
    best-worst  best@k and worst@k by n
    tokens      reward and n* for budgets in tokens
    d-sweep     n*(C) for each number of training problems

    Those that the runs cannot carry are named, with the reason.
    """
    from isolaw.report.figures.paper import Material, write

    if not out or Path(out).is_file():
        raise click.UsageError(f"--out {out}: not a directory's name")
    reading = read_sources(sources, options["metric"], options)
    for text in reading.notes:
        note(f"note: {text}")
    announce_compilation()
    fixed = constants(options["fixed"], "--fixed")
    paths, reasons = write(Material(reading.runs, fixed, law_keywords(options)), out)
    if as_json:
        print_json({"files": [str(path) for path in paths], "not_drawn": reasons})
        return
    for name in dict.fromkeys(path.stem for path in paths):
        kinds = ", ".join(path.suffix[1:] for path in paths if path.stem == name)
        click.echo(shown(f"{name}: {Path(out) / name} ({kinds})"))
    for name, reason in reasons.items():
        note(f"not drawn: {name}: {reason}")
