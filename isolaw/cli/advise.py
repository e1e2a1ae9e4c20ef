"""The command ``isolaw advise``: recommend a starting point without any runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from isolaw import commands
from isolaw.cli.common import is_page, json_option, note, print_document, write_page
from isolaw.cli.help import ShortHelp
from isolaw.cli.options import ROLLOUTS, Destination, budget_options

_BILLIONS = {"B": 1.0, "M": 1e-3}


def _size(_: click.Context, option: click.Parameter, text: str | None) -> float | None:
    if text is None:
        return None
    try:
        return float(text.upper().rstrip("BM")) * _BILLIONS.get(text[-1:].upper(), 1.0)
    except ValueError:
        raise click.UsageError(f"{option.opts[0]}: found {text!r}; expected e.g. 7B or 500M") from None


@click.command(cls=ShortHelp)
@click.option("--compute", "--budget", "budget", type=ROLLOUTS, required=True, help="Budget C, in rollouts.")
@click.option(
    "--difficulty", type=click.Choice(["easy", "hard"]),
    help="easy: 0.3 to 0.6 of the base model's answers are right; hard: at most 0.0625.",
)  # fmt: skip
@click.option("--model-size", metavar="7B", callback=_size, help="Number of parameters of your model.")
@budget_options
@click.option(
    "--out",
    type=Destination(),
    help="Write the cheapest sweep that improves the advice to this file, or a page (.html).",
)
@json_option
@click.pass_context
def advise(ctx: click.Context, /, out: str | None, **options: Any) -> int:
    """Recommend a starting point from published results alone.

    Use it before you have any run. isolaw prints n, B_p and M with their ranges, the sources and how they
    differ from your case, and the cheapest sweep that would improve the advice. The exit code is 1 if no
    published result covers the budget.
    """
    from isolaw.design import sweep_file
    from isolaw.design.advice import advise as advice_for
    from isolaw.report.text.advise import document

    page = is_page(out)
    if out is not None and not page:
        sweep_file.check(Path(out))
    found = advice_for(**options)
    words = [own for own in ctx.obj if not (page and own in ("--out", out))]
    again = None if out is not None and not page else str(commands.advise_file(words))
    result = document(found, None if page else out, again)
    print_document(result)
    if out is not None and page:
        write_page(result, out, ctx.obj)
    elif out is not None and found.sweep is not None:
        sweep_file.write_advice(found, Path(out))
        follows = commands.sweep_file(out, sweep_file.FIRST)
        note(f"Sweep file: {out}. Set its problems.set and real.model, then run: {follows}")
    return 0 if found.start is not None else 1
