"""``isolaw report``: a page to look at."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from isolaw.cli.common import announce_compilation, constants, note, print_json, shown
from isolaw.cli.options import law_keywords, law_options, setting_option
from isolaw.cli.read import read_sources, source_options

if TYPE_CHECKING:
    from isolaw.fits.law import Law
    from isolaw.readers.read import Reading
    from isolaw.report.page import Facts
    from isolaw.report.study import Study
    from isolaw.runs import Runs

_OF_A_LAW = (
    "metric", "eval_set", "setting", "fixed", "x", "method", "curve", "records", "robust", "bootstrap",
    "seed",
)  # fmt: skip
_SMALL = 8  # the backtest sees an eighth of the largest compute, unless told
_DRAWS = 100  # of each fit of the backtest


@click.command()
@click.argument("sources", nargs=-1, required=True, type=click.Path())
@click.option("--out", "-o", required=True, type=click.Path(), help="Write the page here, as report.html.")
@click.option(
    "--law", "law_file", type=click.Path(), help="A law of these runs, made with isolaw fit … --out."
)
@click.option(
    "--compute", type=float, help="The budget that the page opens with; what was measured unless given."
)
@click.option("--max-batch-rollouts", type=click.IntRange(min=1), help="The hardware's cap on B_p · n.")
@click.option("--n-train-problems", type=click.IntRange(min=1), help="D, to count epochs.")
@click.option(
    "--fit-below", type=float, metavar="C",
    help="What the backtest sees; an eighth of the largest compute unless given.",
)  # fmt: skip
@click.option(
    "--x", type=click.Choice(["compute", "tokens", "wall_s"]), default="compute", show_default=True,
    help="What a budget counts.",
)  # fmt: skip
@setting_option(None)
@law_options
@source_options
@click.option("--json", "as_json", is_flag=True, help="Print what was written as JSON.")
@click.pass_context
def report(ctx: click.Context, /, sources: tuple[str, ...], out: str, as_json: bool, **options: Any) -> None:
    """Write a page about SOURCE… and the law of their runs: one file that opens in any browser.

    A sweep's law.json is used if it is of these runs and no option of a fit is given; otherwise they are
    fitted here, as isolaw fit does. Where B_p varies among the runs, it varies in the fit (--setting joint).
    """
    from isolaw.report.page import check_replaceable, render, write
    from isolaw.report.text import answer as answer_words
    from isolaw.report.text.advice import advice

    check_replaceable(out)
    with _working() as say:
        say("reading")
        reading = read_sources(sources, options["metric"], options)
        for text in reading.notes:
            note(f"note: {text}")
        announce_compilation()
        study, origin = _study(ctx, reading, sources, options, say)
        facts = _facts(study, reading, sources, command_line(ctx), options, say)
        say("drawing")
        path = write(render(study, facts), out)
    answer = None if facts.budgets is None else facts.budgets.answer
    if as_json:
        prediction = None if answer is None else answer.to_dict()
        size = path.stat().st_size
        print_json(
            {
                "report": str(path), "bytes": size, "law": origin, "refused": study.refused,
                "prediction": prediction,
            }
        )  # fmt: skip
        return
    if answer is not None and study.document is not None:
        nearest = None if facts.budgets is None else facts.budgets.nearest
        for line in answer_words.prediction_summary(answer, study.document, nearest):
            click.echo(shown(line))
        for own in advice(study.document, answer):
            click.echo(shown(f"Next: {own.what} {own.why}"))
    click.echo(shown(f"Report: {path}"))


@contextmanager
def _working() -> Iterator[Callable[[str], None]]:
    """Say on a terminal what is being done, nothing elsewhere."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    with console.status("") as status:
        yield status.update


def _study(
    ctx: click.Context,
    reading: Reading,
    sources: tuple[str, ...],
    options: dict[str, Any],
    say: Callable[[str], None],
) -> tuple[Study, str | None]:
    """The runs with their law, and where that is from: a file, ``fitted``, or None."""
    import isolaw
    from isolaw.errors import Refused
    from isolaw.fits.metric import choose
    from isolaw.report.study import Study, usual_setting

    runs = reading.runs
    asked = [name for name in _OF_A_LAW if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    law, origin = _law_there(runs, sources, options["law_file"], asked)
    if law is not None:
        d = law.document
        note(f"note: the law is that of {origin}")
        return Study(runs, d.metric, d.eval_set, law), origin
    metric, eval_set, _ = choose(runs, options["metric"], options["eval_set"])
    fixed = constants(options["fixed"], "--fixed")
    setting = options["setting"] or usual_setting(runs, fixed)
    keywords = {**law_keywords(options), "metric": metric, "eval_set": eval_set, "setting": setting}
    say("fitting")
    try:
        law = isolaw.fit(runs, fixed=dict(fixed), x=options["x"], **keywords)
    except Refused as error:
        note(f"note: no law: {error}")
        return Study(runs, metric, eval_set, None, str(error), fixed), None
    note(f"note: fitted {metric} on {eval_set}, setting {setting}, method {options['method']}")
    return Study(runs, metric, eval_set, law, fixed=fixed), "fitted"


def _law_there(
    runs: Runs, sources: tuple[str, ...], named: str | None, asked: list[str]
) -> tuple[Law | None, str | None]:
    """The law in the file that was named, or that lies in the sweep's directory, and the file."""
    from isolaw.errors import DataError
    from isolaw.fits.law import Law
    from isolaw.report.study import is_of

    if named is not None:
        if asked:
            raise click.UsageError(
                f"--{asked[0].replace('_', '-')} is not for --law, which is fitted already"
            )
        law = Law.load(named)
        if not is_of(law, runs):
            raise DataError(f"{named}: fitted to other runs than these; without --law they are fitted here")
        return law, named
    beside = Path(sources[0]) / "law.json"
    if asked or len(sources) > 1 or not beside.is_file():
        return None, None
    law = Law.load(beside)
    if not is_of(law, runs):
        note(f"note: {beside} was fitted to other runs than are there now, so they are fitted here")
        return None, None
    return law, str(beside)


def _facts(
    study: Study,
    reading: Reading,
    sources: tuple[str, ...],
    command: str,
    options: dict[str, Any],
    say: Callable[[str], None],
) -> Facts:
    from isolaw import engine
    from isolaw.report.page import Facts, provenance
    from isolaw.report.page.budgets import budgets

    predicted = None
    if study.law is not None:
        say("predicting")
        names = ("compute", "max_batch_rollouts", "n_train_problems")
        predicted = budgets(study.law, *(options[name] for name in names))
    sweeps = sorted({a.sources[0] for a in reading.accounts if a.container == "sweep"})
    states = [engine.status(directory) for directory in sweeps]
    continues = len(sources) == len(sweeps) == 1 and states[0]["backend"] != "replay"
    say("backtest")
    return Facts(
        predicted,
        _backtest(study, options),
        [failure for state in states for failure in state["failures"]],
        provenance.sources(file for account in reading.accounts for file in account.sources),
        command,
        [*reading.notes, *study.runs.notes],
        ", ".join(sources),
        sweeps[0] if continues else "",
    )


def _backtest(study: Study, options: dict[str, Any]) -> dict[str, Any] | str:
    """What a backtest of these runs finds, or why there is none."""
    from isolaw.errors import IsolawError
    from isolaw.fits.health import DIAGNOSTICS
    from isolaw.fits.studies.backtest import backtest
    from isolaw.runs import Runs

    document = study.document
    if document is None:
        return "there is no law"
    if document.x.name not in ("compute", "steps"):
        return f"budgets in {document.x.unit} are not backtested"
    points = study.held.points
    needed = points["metric"].isin([study.metric, *DIAGNOSTICS])  # the rest would only take time
    runs = Runs(points[needed], study.held.attributes, study.held.source)
    below = options["fit_below"] or max(g.measured[1] for g in document.grid) / _SMALL
    keywords = {
        **law_keywords(options),
        "setting": document.setting,
        "fixed": document.fixed,
        "method": document.method,
    }
    draws = min(_DRAWS, document.bootstrap.draws)
    try:
        return backtest(
            runs,
            below,
            **{**keywords, "metric": study.metric, "eval_set": study.eval_set, "bootstrap": draws},
        )
    except IsolawError as error:
        if options["fit_below"] is not None:  # it was asked for
            raise
        return str(error)


def command_line(ctx: click.Context) -> str:
    """Return the command that was given, as one would type it again."""
    parts = ["isolaw", str(ctx.info_name)]
    for parameter in ctx.command.params:
        name, value = str(parameter.name), ctx.params.get(str(parameter.name))
        if ctx.get_parameter_source(name) is not ParameterSource.COMMANDLINE:
            continue
        if isinstance(parameter, click.Argument):
            parts += map(str, value if isinstance(value, tuple) else [value])
        elif value is True:
            parts.append(parameter.opts[0])
        else:
            for own in value if isinstance(value, tuple) else [value]:
                parts += [parameter.opts[0], f"{own:.12g}" if isinstance(own, float) else str(own)]
    return shlex.join(parts)
