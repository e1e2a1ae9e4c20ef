"""The commands ``answer``, ``predict``, ``advise`` and ``demo``: recommend how to spend a budget."""

from __future__ import annotations

import io
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from isolaw import commands
from isolaw.cli import options as shared
from isolaw.cli.common import (
    announce_compilation,
    json_option,
    note,
    notes_on_failure,
    print_document,
    print_lines,
    print_result,
    stages,
)
from isolaw.cli.help import ShortHelp
from isolaw.cli.options import Destination

if TYPE_CHECKING:
    from isolaw.readers.reading import Reading
    from isolaw.report.answer import Answer


@click.command(cls=ShortHelp)
@click.argument("sources", nargs=-1, required=True, type=click.Path(), metavar="LOGS|SWEEP")
@shared.answer_options
@shared.law_options
@shared.source_options
@click.option(
    "--out", "-o", type=Destination(file_okay=False), metavar="DIR",
    help="Write law.json and report.html to DIR.",
)  # fmt: skip
@json_option
@click.pass_context
def answer(ctx: click.Context, /, sources: tuple[str, ...], out: str | None, **options: Any) -> int:
    """Recommend how to split a budget, and what to train next.

    isolaw reads the runs, fits a law, predicts the reward, and backtests the law, in one step.

    The exit code is 1 if isolaw recommends no allocation for the budget, and 2 if the logs lack values that
    only you know. isolaw then lists the missing values as isolaw read does.
    """
    import isolaw

    compute, limits = options["compute"], shared.limits_of(options)
    files = _output_files(out) if out is not None else None
    with stages() as progress:
        progress("reading")
        reading = shared.read_to_fit(sources, options)
    if not reading.ready:
        return _print_unready(ctx, reading, sources, options["metric"])
    if files is not None:  # they contain laws of n*(C), which the solver fits
        announce_compilation()
    limits["cost"] = limits["cost"] or shared.recorded_cost(reading)
    keywords = shared.law_keywords(options)
    with notes_on_failure(reading.runs.notes), stages() as progress:
        result = isolaw.answer(reading.runs, compute, progress=progress, **keywords, **limits)
    if files is not None:  # before a reader of the output, such as head, can end the command
        _write_files(result, compute, reading, files, str(commands.this(ctx.obj)))
    print_document(result)
    if files is not None:
        note(f"Saved the law to {files[0]} and the page to {files[1]}.")
    return 0 if result.prediction.options else 1


def _print_unready(ctx: click.Context, reading: Reading, sources: tuple[str, ...], metric: str | None) -> int:
    """Print the output of ``isolaw read`` for logs that cannot be fitted, and return the exit code."""
    from isolaw.report.text.reading import found_lines, none_fitted

    note(*found_lines(reading, shared.words_of(ctx, sources), metric))
    can_settle = any(not log.status.settled for log in reading.candidates)
    hint = "; isolaw answer accepts the same options as isolaw read" if can_settle else ""
    note(f"isolaw: {none_fitted(reading)}{hint}")
    return 2


def _output_files(out: str) -> tuple[Path, Path]:
    """Return the paths to write in --out. Raises `DataError` if isolaw may not replace a file there."""
    from isolaw.fits.document.files import check_writable
    from isolaw.report.page import check_replaceable

    folder = Path(out)
    law, page = folder / "law.json", folder / "report.html"
    check_writable(law)
    check_replaceable(page)
    return law, page


def _write_files(
    result: Answer, budget: float | str, reading: Reading, files: tuple[Path, Path], command: str
) -> None:
    """Write the law and the page about it and its runs."""
    from isolaw.report.page import PageContent, render, write
    from isolaw.report.page.budgets import budgets

    law, page = files
    law.parent.mkdir(parents=True, exist_ok=True)
    result.law.save(law)
    slider_budgets = budgets(result.law, budget, **result.limits)
    write(render(result.study, PageContent.of(reading, slider_budgets, result.backtest, command)), page)


@click.command(cls=ShortHelp)
@click.argument("law", type=click.Path())
@shared.question_options
@json_option
def predict(law: str, **options: Any) -> int:
    """Recommend an allocation of a budget.

    LAW is a file of isolaw fit --out. Beyond ten times the compute that three n reached, isolaw recommends
    no allocation. It then names the runs to extend, prints the recommendation for the largest budget that has
    one, and exits with 1.
    """
    from isolaw.fits.law import Law
    from isolaw.report.text.prediction import largest_with_recommendation, prediction_lines

    fitted, limits = Law.load(law), shared.limits_of(options)
    prediction = fitted.predict(options["compute"], **limits)
    nearest = largest_with_recommendation(fitted, prediction, **limits)
    print_result(prediction.to_dict(), prediction_lines(prediction, nearest))
    return 0 if prediction.options else 1


_BILLIONS_BY_SUFFIX = {"B": 1.0, "M": 1e-3}


def _parse_size(_: click.Context, option: click.Parameter, text: str | None) -> float | None:
    if text is None:
        return None
    try:
        return float(text.upper().rstrip("BM")) * _BILLIONS_BY_SUFFIX.get(text[-1:].upper(), 1.0)
    except ValueError:
        raise click.UsageError(f"{option.opts[0]}: found {text!r}; expected e.g. 7B or 500M") from None


@click.command(cls=ShortHelp)
@click.option(
    "--compute", "--budget", "budget", type=shared.BudgetOption(), required=True, metavar="1M|1344gpuh",
    help="Budget for the sweeps and the final run: rollouts, or with --cost GPU hours (1344gpuh) or hours.",
)  # fmt: skip
@click.option(
    "--difficulty", type=click.Choice(["easy", "hard"]),
    help="easy: 0.3 to 0.6 of the base model's answers are right; hard: at most 0.0625.",
)  # fmt: skip
@click.option("--model-size", metavar="7B", callback=_parse_size, help="Number of parameters of your model.")
@shared.budget_options
@click.option(
    "--backend", type=click.Choice(["real", "command", "bandit"]), default="real",
    help="What the sweeps run on: models, your trainer, or the simulator for a rehearsal.",
)  # fmt: skip
@shared.cost_option
@click.option("--write", "folder", type=Destination(), metavar="DIR", help="Write the sweep files to DIR.")
@json_option
@click.pass_context
def advise(ctx: click.Context, /, folder: str | None, **options: Any) -> int:
    """Recommend where to start and what to run first, without any runs.

    Use it before you have any run. isolaw prints n, B_p and M with their ranges, the race to run with its
    cost, and how to find its learning rate first; then the sources. The exit code is 1 if no published result
    covers the budget, and no sweep fits into it.
    """
    from isolaw.first_sweeps import advise as advice_for
    from isolaw.report.text.advise import document

    advice = advice_for(**{**options, "cost": shared.cost_of(options)})
    new_folder = commands.unused("first")
    paths = [] if folder is None else advice.write(folder)
    write_command = "" if paths else str(commands.write_advised(ctx.obj, new_folder))
    print_document(document(advice, folder if folder and paths else new_folder, write_command))
    if paths:
        note(f"Sweep files: {', '.join(map(str, paths))}")
    return 0 if advice.start is not None or advice.sweeps else 1


_DEMO_SWEEP = "examples/bandit-easy.toml"
# Three times the compute of the sweep's runs, and a smaller budget.
_DEMO_BUDGET, _SMALLER_BUDGET = "6e6", "4M"


@click.command(cls=ShortHelp)
@click.argument("directory", default="demo", type=click.Path(path_type=Path))
@click.pass_context
def demo(ctx: click.Context, directory: Path) -> int:
    """Simulate a small sweep in DIRECTORY, and split a larger budget.

    isolaw simulates 45 runs in seconds, writes the runs, their law and their page to DIRECTORY, and answers
    for three times the compute of the runs.
    """
    from rich.console import Console

    group, out = cast(click.Group, ctx.find_root().command), str(directory)

    def run(*words: str) -> int:
        return group.main(args=[*words], prog_name="isolaw", standalone_mode=False, obj=[*words]) or 0

    output = io.StringIO()  # output that is only shown on failure, so that the answer comes first
    with Console(stderr=True).status("simulating and fitting 45 runs"):  # shows only on a terminal
        with redirect_stdout(output), redirect_stderr(output):
            exit_code = run("sweep", str(commands.shipped(_DEMO_SWEEP)), "--out", out)
        if exit_code == 0:
            with redirect_stderr(output):
                exit_code = run("answer", out, "--compute", _DEMO_BUDGET, "--out", out)
    if exit_code != 0:
        note(output.getvalue().rstrip())
        return exit_code
    print_lines([f"For another budget: {commands.answer([out], _SMALLER_BUDGET)}"])
    note(output.getvalue().splitlines()[-1])  # says where the law and the page are
    return 0
