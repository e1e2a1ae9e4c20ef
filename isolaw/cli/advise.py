"""The command ``isolaw advise``: recommend where to start, and what to run first."""

from __future__ import annotations

from typing import Any

import click

from isolaw import commands
from isolaw.cli.common import json_option, note, print_document
from isolaw.cli.help import ShortHelp
from isolaw.cli.options import BudgetOption, Destination, budget_options, cost_of, cost_option

_BILLIONS = {"B": 1.0, "M": 1e-3}


def _size(_: click.Context, option: click.Parameter, text: str | None) -> float | None:
    if text is None:
        return None
    try:
        return float(text.upper().rstrip("BM")) * _BILLIONS.get(text[-1:].upper(), 1.0)
    except ValueError:
        raise click.UsageError(f"{option.opts[0]}: found {text!r}; expected e.g. 7B or 500M") from None


@click.command(cls=ShortHelp)
@click.option(
    "--compute", "--budget", "budget", type=BudgetOption(), required=True,
    help="Budget for the sweeps and the final run: rollouts, or with --cost GPU hours (1344gpuh) or hours.",
)  # fmt: skip
@click.option(
    "--difficulty", type=click.Choice(["easy", "hard"]),
    help="easy: 0.3 to 0.6 of the base model's answers are right; hard: at most 0.0625.",
)  # fmt: skip
@click.option("--model-size", metavar="7B", callback=_size, help="Number of parameters of your model.")
@budget_options
@click.option(
    "--backend", type=click.Choice(["real", "command", "bandit"]), default="real",
    help="What the sweeps run on: models, your trainer, or the simulator for a rehearsal.",
)  # fmt: skip
@cost_option
@click.option("--write", "folder", type=Destination(), metavar="DIR", help="Write the sweep files to DIR.")
@json_option
@click.pass_context
def advise(ctx: click.Context, /, folder: str | None, **options: Any) -> int:
    """Recommend where to start and what to run first, without any runs.

    Use it before you have any run. isolaw prints n, B_p and M with their ranges, the race to run with its
    cost, and how to find its learning rate first; then the sources, and how they differ from your case. The
    exit code is 1 if no published result covers the budget, and no sweep fits into it.
    """
    from isolaw.first_sweeps import advise as advice_for
    from isolaw.report.text.advise import document

    advice = advice_for(**{**options, "cost": cost_of(options)})
    unwritten = commands.unused("first")
    written = [] if folder is None else advice.write(folder)
    again = None if written else str(commands.write_advised(ctx.obj, unwritten))
    print_document(document(advice, folder if folder and written else unwritten, again))
    if written:
        note(f"Sweep files: {', '.join(map(str, written))}")
    return 0 if advice.start is not None or advice.sweeps else 1
