"""``isolaw report``: a page about the runs and their law."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from isolaw.cli import options as shared
from isolaw.cli.common import note, print_json, print_lines

if TYPE_CHECKING:
    from isolaw.fits.law import Law
    from isolaw.readers.read import Reading
    from isolaw.report.page import Facts
    from isolaw.report.study import Study
    from isolaw.runs import Runs

_BACKTEST_SHARE = 8  # by default the backtest fits checkpoints up to this share of the largest compute
_BACKTEST_DRAWS = 100


@click.command()
@click.argument("sources", nargs=-1, required=True, type=click.Path())
@click.option("--out", "-o", required=True, type=click.Path(), help="Write the page to this HTML file.")
@click.option(
    "--law", "law_file", type=click.Path(), help="Use this law of the same runs (isolaw fit --out)."
)
@click.option("--compute", type=float, help="Budget that the page opens with.  [default: the measured one]")
@shared.budget_options
@click.option(
    "--fit-below", type=float, metavar="C",
    help="Backtest: fit the checkpoints up to C.  [default: an eighth of the largest compute]",
)  # fmt: skip
@click.option(
    "--x", type=click.Choice(["compute", "tokens", "wall_s"]), default="compute",
    help="Unit of the budget.",
)  # fmt: skip
@shared.setting_option(None)
@shared.law_options
@shared.source_options
@shared.json_option
@click.pass_context
def report(ctx: click.Context, /, sources: tuple[str, ...], out: str, as_json: bool, **options: Any) -> None:
    """Write a page about runs and their law.

    The page is one HTML file that opens in any browser. A SOURCE is as in isolaw fit. Without options of a
    fit, isolaw uses the sweep's law.json if it was fitted to the same runs. Otherwise it fits the runs as
    isolaw fit does, with --setting joint if B_p varies.
    """
    from isolaw.report.page import check_replaceable, render, write
    from isolaw.report.text.prediction import advice, prediction_summary

    check_replaceable(out)
    with _status() as show:
        show("reading")
        reading = shared.read_to_fit(sources, options)
        study, origin = _study(ctx, reading.runs, sources, options, show)
        facts = _facts(study, reading, sources, shlex.join(["isolaw", *ctx.obj]), options, show)
        show("drawing")
        path = write(render(study, facts), out)
    budgets = facts.budgets
    if as_json:
        prediction = None if budgets is None else budgets.answer.to_dict()
        print_json({
            "report": str(path), "bytes": path.stat().st_size, "law": origin, "refused": study.refused,
            "prediction": prediction,
        })  # fmt: skip
        return
    if budgets is not None and study.document is not None:
        print_lines(prediction_summary(budgets.answer, study.document, budgets.nearest))
        print_lines(f"Next: {own.what} {own.why}" for own in advice(study.document, budgets.answer))
    print_lines([f"Report: {path}"])


@contextmanager
def _status() -> Iterator[Callable[[str], None]]:
    """Show the current activity on a terminal, nothing elsewhere."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    with console.status("") as status:
        yield status.update


def _study(
    ctx: click.Context,
    runs: Runs,
    sources: tuple[str, ...],
    options: dict[str, Any],
    show: Callable[[str], None],
) -> tuple[Study, str | None]:
    """The runs with their law, and its origin: a file, ``fitted``, or None."""
    import isolaw
    from isolaw.errors import Refused
    from isolaw.fits.metric import choose
    from isolaw.report.study import Study, usual_setting

    names = ("setting", "x", *shared.LAW_NAMES)
    given = [name for name in names if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    law, origin = _saved_law(runs, sources, options["law_file"], given)
    if law is not None:
        note(f"note: the law is {origin}")
        return Study(runs, law.document.metric, law.document.eval_set, law), origin
    keywords = shared.law_keywords(options)
    metric, eval_set, _ = choose(runs, keywords["metric"], keywords["eval_set"])
    setting, fixed = options["setting"] or usual_setting(runs, keywords["fixed"]), keywords["fixed"]
    keywords |= {"metric": metric, "eval_set": eval_set, "setting": setting, "x": options["x"]}
    show("fitting")
    try:
        law = isolaw.fit(runs, **keywords)
    except Refused as error:
        note(f"note: no law: {error}")
        return Study(runs, metric, eval_set, None, str(error), fixed), None
    note(f"note: fitted {metric} on {eval_set}, setting {setting}, method {options['method']}")
    return Study(runs, metric, eval_set, law, fixed=fixed), "fitted"


def _saved_law(
    runs: Runs, sources: tuple[str, ...], file: str | None, given: list[str]
) -> tuple[Law | None, str | None]:
    """The law in ``file``, or in the sweep's directory if it was fitted to these runs, and its file."""
    from isolaw.errors import DataError
    from isolaw.fits.law import Law
    from isolaw.report.study import is_of

    if file is not None:
        if given:
            raise click.UsageError(f"--{given[0].replace('_', '-')} does not go with --law")
        law = Law.load(file)
        if not is_of(law, runs):
            raise DataError(f"{file}: fitted to other runs; without --law isolaw fits these runs")
        return law, file
    path = Path(sources[0]) / "law.json"
    if given or len(sources) > 1 or not path.is_file():
        return None, None
    law = Law.load(path)
    if is_of(law, runs):
        return law, str(path)
    note(f"note: {path} was fitted to other runs, so isolaw fits these runs")
    return None, None


def _facts(
    study: Study,
    reading: Reading,
    sources: tuple[str, ...],
    command: str,
    options: dict[str, Any],
    show: Callable[[str], None],
) -> Facts:
    from isolaw import engine
    from isolaw.report.page import Facts, provenance
    from isolaw.report.page.budgets import budgets

    predictions = None
    if study.law is not None:
        show("predicting")
        limits = {name: options[name] for name in ("max_batch_rollouts", "n_train_problems")}
        predictions = budgets(study.law, options["compute"], **limits)
    sweeps = sorted({run.sources[0] for run in reading.provenance if run.container == "sweep"})
    states = [engine.status(directory) for directory in sweeps]
    continues = len(sources) == len(sweeps) == 1 and states[0]["backend"] != "replay"
    show("backtest")
    return Facts(
        predictions,
        _backtest(study, options),
        [failure for state in states for failure in state["failures"]],
        provenance.sources(file for run in reading.provenance for file in run.sources),
        command,
        [*reading.notes, *study.runs.notes],
        ", ".join(sources),
        sweeps[0] if continues else "",
    )


def _backtest(study: Study, options: dict[str, Any]) -> dict[str, Any] | str:
    """A backtest of these runs, or why there is none."""
    from isolaw.errors import IsolawError
    from isolaw.fits.health import DIAGNOSTICS
    from isolaw.fits.studies.backtest import backtest
    from isolaw.runs import Runs

    d, points = study.document, study.held.points
    if d is None:
        return "there is no law"
    if d.x.name not in ("compute", "steps"):
        return f"isolaw does not backtest budgets in {d.x.unit}"
    needed = points["metric"].isin([study.metric, *DIAGNOSTICS])  # the rest would only take time
    below = options["fit_below"] or max(g.measured[1] for g in d.grid) / _BACKTEST_SHARE
    keywords = shared.law_keywords(options) | {
        "metric": study.metric, "eval_set": study.eval_set, "setting": d.setting, "fixed": d.fixed,
        "method": d.method, "bootstrap": min(_BACKTEST_DRAWS, d.bootstrap.draws),
    }  # fmt: skip
    try:
        return backtest(Runs(points[needed], study.held.attributes, study.held.source), below, **keywords)
    except IsolawError as error:
        if options["fit_below"] is not None:  # the user chose it
            raise
        return str(error)
