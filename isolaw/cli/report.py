"""The command ``isolaw report``: write a page about runs and their law."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from isolaw import commands
from isolaw.cli import options as shared
from isolaw.cli.common import json_option, note, print_result, stages
from isolaw.cli.help import ShortHelp
from isolaw.cli.options import Destination
from isolaw.registry import traits

if TYPE_CHECKING:
    from isolaw.costs import Cost
    from isolaw.design.decisions import Decision
    from isolaw.design.value import Purchase
    from isolaw.fits.law import Law
    from isolaw.readers.reading import Reading
    from isolaw.report.page import PageContent
    from isolaw.report.page.budgets import Budgets
    from isolaw.report.study import Study
    from isolaw.runs import Runs

# Options of the page or its law, which are rejected if only figures are drawn.
_OF_A_PAGE = {
    *("law_file", "compute", "max_batch_rollouts", "n_train_problems", "cost", "price", "fit_below", "x"),
    "hold",
}


@click.command(cls=ShortHelp)
@click.argument("sources", nargs=-1, required=True, type=click.Path())
@click.option("--out", "-o", type=Destination(), help="Write the page to this HTML file.")
@click.option(
    "--figures", type=Destination(), metavar="FOLDER",
    help="Write the figures of arXiv 2603.12151, drawn from the runs, to FOLDER.",
)  # fmt: skip
@click.option(
    "--law", "law_file", type=click.Path(), help="Use this law of the same runs (isolaw fit --out)."
)
@click.option(
    "--compute", "--budget", "compute", type=shared.ROLLOUTS,
    help="Budget that the page shows first.  [default: the largest measured one]",
)  # fmt: skip
@shared.further_budget_options
@shared.further_cost_options
@click.option(
    "--fit-below", type=shared.ROLLOUTS,
    help="Backtest: fit the checkpoints up to C.  [default: an eighth of the largest compute, or where that "
    "is too little, a quarter or half]",
)  # fmt: skip
@click.option(
    "--x", type=click.Choice(["compute", "tokens", "wall_s"]), default="compute",
    help="Unit of the budget.",
)  # fmt: skip
@shared.hold_option(None)
@shared.law_options
@shared.source_options
@json_option
@click.pass_context
def report(
    ctx: click.Context, /, sources: tuple[str, ...], out: str | None, figures: str | None, **options: Any
) -> None:
    """Write a page about runs and their law.

    The page is one HTML file that opens in any browser. A SOURCE is as in isolaw fit. Without fit options,
    isolaw uses the sweep's law.json if that law was fitted to the same runs. Otherwise it fits the runs as
    isolaw fit does, with --hold nothing if B_p varies.

    With --figures, isolaw draws the figures of the paper that the runs support, as PNG, SVG and PDF. It names
    the other figures with the reason. The figures are frontier and law (at one B_p), fixed-b (n trades with
    B_p at one B), joint (both vary), best-worst (best@k and worst@k by n), tokens, and d-sweep (n*(C) for
    each number of training problems). Without --out, isolaw writes no page.
    """
    if out is None and figures is None:
        raise click.UsageError("expected --out FILE.html, --figures FOLDER, or both")
    if figures is not None and (not figures or Path(figures).is_file()):
        raise click.UsageError(f"--figures: found {figures!r}; expected a directory")
    if out is None:
        for name, option in shared.given(ctx).items():
            if name in _OF_A_PAGE:
                raise click.UsageError(f"{option.opts[0]} applies to the page, and requires --out")
        reading = shared.read_to_fit(sources, options)
        files, reasons = _drawn(reading.runs, str(figures), options)
        drawn = {"simulated": reading.runs.simulated.json, "figures": files, "not_drawn": reasons}
        print_result(drawn, _figure_lines(files))
        _say_why(reasons)
        return
    from isolaw.report.page import check_replaceable, render, write
    from isolaw.report.page.budgets import budgets
    from isolaw.report.study import Study
    from isolaw.report.text.prediction import prediction_summary

    check_replaceable(out)
    given = [name for name in ("hold", "x", *shared.LAW_NAMES) if name in shared.given(ctx)]
    if given and options["law_file"] is not None:
        raise click.UsageError(f"--{given[0].replace('_', '-')} cannot be combined with --law")
    with stages() as progress:
        progress("reading")
        reading = shared.read_to_fit(sources, options)
        progress("fitting the law")
        law, origin = (None, None) if given else _saved_law(reading.runs, sources, options["law_file"])
        study = _fitted(reading.runs, options) if law is None else Study.of(law, reading.runs)
        progress("predicting")
        states = _states(reading)
        limits = {name: options[name] for name in ("max_batch_rollouts", "n_train_problems", "price")}
        limits["cost"] = _cost(options, states)
        predicted = None if study.law is None else budgets(study.law, options["compute"], **limits)
        keywords = shared.law_keywords(options)
        tested = study.backtest(options["fit_below"], keywords, partial(progress, "backtesting"))
        facts = facts_of(reading, predicted, tested, str(commands.this(ctx.obj)), states)
        progress("drawing")
        path = write(render(study, facts), out)
    files, reasons = ([], {}) if figures is None else _drawn(reading.runs, figures, options)
    result: dict[str, Any] = {
        "simulated": study.runs.simulated.json,
        "report": str(path), "bytes": path.stat().st_size,
        "law": origin or (None if study.law is None else "fitted"), "refused": study.refused,
        "prediction": None, "further": facts.further and facts.further.to_dict(),
        "figures": files, "not_drawn": reasons,
    }  # fmt: skip
    lines = []
    if predicted is not None and study.document is not None:
        result["prediction"] = predicted.answer.to_dict()
        lines += prediction_summary(predicted.answer, study.document, predicted.nearest, facts.race)
    print_result(result, [*lines, *_figure_lines(files), f"Report: {path}"])
    _say_why(reasons)


def _drawn(runs: Runs, folder: str, options: dict[str, Any]) -> tuple[list[str], dict[str, str]]:
    """Draw the paper's figures; return the files, and the reason for each figure that was not drawn."""
    from isolaw.report.figures.paper import paper_figures

    files, reasons = paper_figures(runs, folder, **shared.law_keywords(options))
    return [str(file) for file in files], reasons


def _figure_lines(files: Sequence[str]) -> list[str]:
    """Return one line per figure, with the formats of its files."""
    kinds: dict[str, list[str]] = {}
    for file in files:
        name, _, kind = file.rpartition(".")
        kinds.setdefault(name, []).append(kind)
    return [f"{os.path.basename(name)}: {name} ({', '.join(own)})" for name, own in kinds.items()]


def _say_why(reasons: Mapping[str, str]) -> None:
    for name, reason in reasons.items():
        note(f"not drawn: {name}: {reason}")


def _states(reading: Reading) -> list[dict[str, Any]]:
    """Return the progress of each sweep that was read."""
    from isolaw import engine

    sweeps = sorted({run.sources[0] for run in reading.ready if run.container == "sweep"})
    return [engine.status(directory) for directory in sweeps]


def facts_of(
    reading: Reading,
    predicted: Budgets | None,
    backtest: Mapping[str, Any] | str,
    command: str,
    states: list[dict[str, Any]] | None = None,
) -> PageContent:
    """Return the content of the page in addition to the study; ``command`` recreates the page."""
    from isolaw.report.page import PageContent, provenance
    from isolaw.report.text.costs import hours_so_far
    from isolaw.store import SweepStore
    from isolaw.store.responses import kept

    states = _states(reading) if states is None else states
    sweeps = [str(state["directory"]) for state in states]
    alone = len(reading.sources) == len(sweeps) == 1
    continues = alone and not traits(states[0]["backend"]).recorded
    history, further = _race(sweeps[0], continues) if alone else ((), None)
    return PageContent(
        predicted,
        backtest,
        [failure for state in states for failure in state["failures"]],
        provenance.sources(file for run in reading.ready for file in run.sources),
        command,
        [*reading.notes, *reading.runs.notes],
        ", ".join(reading.sources),
        sweeps[0] if continues else "",
        [f"{state['directory']}: {hours}" for state in states if (hours := hours_so_far(state))],
        history,
        further,
        [one for directory in sweeps for one in kept(SweepStore(directory))],
    )


def _race(directory: str, continues: bool) -> tuple[Sequence[Decision], Purchase | None]:
    """Return the decisions of a race and, if it can continue, the value of spending more."""
    from isolaw.design.directory import ahead, read
    from isolaw.store import SweepStore

    store = SweepStore(directory)
    history = read(store)
    return history, ahead(store, history) if continues else None


def _cost(options: dict[str, Any], states: list[dict[str, Any]]) -> Cost | None:
    """Return the cost named by --cost or, if the source is a single real sweep, the cost of that sweep."""
    from isolaw.costs import read
    from isolaw.errors import DataError

    if options["cost"] is not None or len(states) != 1 or states[0]["spent"] is None:
        return shared.cost_of(options)
    try:
        return read(states[0]["directory"])
    except DataError:  # no run has completed a step
        return None


def _saved_law(runs: Runs, sources: tuple[str, ...], file: str | None) -> tuple[Law | None, str | None]:
    """Return the law and its path: from --law, or the sweep's law.json if it was fitted to these runs."""
    from isolaw.errors import DataError
    from isolaw.fits.law import Law
    from isolaw.report.study import is_of

    path = file or os.path.join(sources[0], "law.json")
    if file is None and (len(sources) > 1 or not os.path.isfile(path)):
        return None, None
    law = Law.load(path)
    if is_of(law, runs):
        note(f"note: using the law in {path}")
        return law, path
    if file is not None:
        raise DataError(f"{file}: fitted to other runs; without --law isolaw fits these runs")
    note(f"note: {path} was fitted to other runs, so isolaw fits these runs")
    return None, None


def _fitted(runs: Runs, options: dict[str, Any]) -> Study:
    """Return the runs with their law or the reason why there is none, and print a note about the fit."""
    from isolaw.report.study import Study

    keywords = {**shared.law_keywords(options), "x": options["x"], "hold": options["hold"]}
    study = Study.fitted_to(runs, keywords)
    if (d := study.document) is None:
        note(f"note: there is no law: {study.refused}")
    else:
        note(f"note: fitted {d.metric} on {d.eval_set}, with {d.hold} held fixed and method {d.method}")
    return study
