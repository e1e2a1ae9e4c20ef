"""``isolaw figures``: the paper's figures of one's own runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from isolaw.cli import options as shared
from isolaw.cli.common import note, print_result
from isolaw.cli.options import Destination


@click.command()
@click.argument("sources", nargs=-1, required=True, type=click.Path())
@click.option(
    "--out", "-o", required=True, type=Destination(), metavar="DIR", help="Write the figures to DIR."
)
@shared.law_options
@shared.source_options
@shared.json_option
def figures(sources: tuple[str, ...], out: str, as_json: bool, **options: Any) -> None:
    """Draw the figures of arXiv 2603.12151 from runs.

    The figures of the runs in SOURCE… are PNG, SVG and PDF files, with the paper's numbers:

    \b
    figure-2-frontier     reward against compute at one B_p, with the frontier
    figure-3-law          n*(C) at one B_p
    figure-4-best-worst   best@k and worst@k by n
    figure-5-fixed-b      reward and n*, B_p* against M, where n trades with B_p at one B
    figure-6-sensitivity  reward over B_p at each n, and over n at each B_p
    figure-7-joint        reward and n*, B_p against C, where both vary
    tokens                reward and n* for budgets in tokens
    d-sweep               n*(C) for each number of training problems

    isolaw names the figures that the runs do not support, and why.
    """
    from isolaw.report.figures.paper import paper_figures

    if not out or Path(out).is_file():
        raise click.UsageError(f"--out: found {out!r}; expected a directory")
    runs = shared.read_to_fit(sources, options).runs
    paths, reasons = paper_figures(runs, out, **shared.law_keywords(options))
    kinds: dict[str, list[str]] = {}
    for path in paths:
        kinds.setdefault(path.stem, []).append(path.suffix[1:])
    lines = [f"{name}: {Path(out) / name} ({', '.join(own)})" for name, own in kinds.items()]
    files = [str(path) for path in paths]
    result = {"simulated": runs.simulated.json, "files": files, "not_drawn": reasons}
    print_result(as_json, result, lines)
    for name, reason in {} if as_json else reasons.items():
        note(f"not drawn: {name}: {reason}")
