"""The command ``isolaw report``: write a page about runs and their law."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
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
    from isolaw.fits.law import Law
    from isolaw.readers.reading import Reading
    from isolaw.report.fitted_runs import FittedRuns
    from isolaw.report.page import PageContent
    from isolaw.report.page.budgets import Budgets
    from isolaw.runs import Runs


@click.command(cls=ShortHelp)
@click.argument("sources", nargs=-1, required=True, type=click.Path())
@click.option(
    "--out", "-o", type=Destination(), default="report.html", help="Write the page to this HTML file."
)
@click.option(
    "--figures", type=Destination(file_okay=False), metavar="FOLDER",
    help="Also draw the figures of arXiv 2603.12151 from the runs, in FOLDER.",
)  # fmt: skip
@click.option(
    "--compute", "--budget", "compute", type=shared.ROLLOUTS,
    help="Budget that the page shows first.  [default: the largest measured one]",
)  # fmt: skip
@shared.batch_option
@shared.hold_option()
@shared.law_options
@shared.source_options
@json_option
@click.pass_context
def report(
    ctx: click.Context, /, sources: tuple[str, ...], out: str, figures: str | None, **options: Any
) -> None:
    """Write a page about runs and their law.

    The page is one HTML file that opens in any browser. A SOURCE is as in isolaw fit. Without fit options,
    isolaw uses the sweep's law.json if that law was fitted to the same runs. Otherwise it fits the runs as
    isolaw fit does.

    With --figures, isolaw also draws the figures of a paper, as PNG, SVG and PDF: frontier, law, and rewards
    at one compute. It names those that the runs do not support, with the reason.
    """
    from isolaw.report.fitted_runs import FittedRuns
    from isolaw.report.page import check_replaceable, render, write
    from isolaw.report.page.budgets import budgets
    from isolaw.report.text.prediction import prediction_lines

    check_replaceable(out)
    chosen = any(name in shared.given(ctx) for name in shared.LAW_NAMES)
    with stages() as progress:
        progress("reading")
        reading = shared.read_to_fit(sources, options)
        progress("fitting the law")
        law, origin = (None, None) if chosen else _saved_law(reading.runs, sources)
        study = _fitted(reading.runs, options) if law is None else FittedRuns.of(law, reading.runs)
        progress("predicting")
        states = _states(reading)
        limits = {"max_batch_rollouts": options["max_batch_rollouts"], "cost": _cost(states)}
        predicted = None if study.law is None else budgets(study.law, options["compute"], **limits)
        tested = study.backtest(progress=partial(progress, "backtesting"))
        facts = facts_of(reading, predicted, tested, str(commands.this(ctx.obj)), states)
        progress("drawing")
        path = write(render(study, facts), out)
    files, reasons = ([], {}) if figures is None else _drawn(study, figures)
    result: dict[str, Any] = {
        "simulated": study.runs.simulated.json,
        "report": str(path), "bytes": path.stat().st_size,
        "law": origin or (None if study.law is None else "fitted"), "refused": study.refused,
        "prediction": None,
        "figures": files, "not_drawn": reasons,
    }  # fmt: skip
    lines = []
    if predicted is not None and study.document is not None:
        result["prediction"] = predicted.answer.to_dict()
        lines += prediction_lines(predicted.answer, predicted.nearest)
    print_result(result, [*lines, *_figure_lines(files), f"Report: {path}"])
    for name, reason in reasons.items():
        note(f"not drawn: {name}: {reason}")


def _drawn(study: FittedRuns, folder: str) -> tuple[list[str], dict[str, str]]:
    """Draw the figures; return the files, and the reason for each figure that was not drawn."""
    from isolaw.report.figures import write_figures

    files, reasons = write_figures(study, folder)
    return [str(file) for file in files], reasons


def _figure_lines(files: Sequence[str]) -> list[str]:
    """Return one line per figure, with the formats of its files."""
    kinds: dict[str, list[str]] = {}
    for file in files:
        name, _, kind = file.rpartition(".")
        kinds.setdefault(name, []).append(kind)
    return [f"{os.path.basename(name)}: {name} ({', '.join(formats)})" for name, formats in kinds.items()]


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
    from isolaw.design.directory import read
    from isolaw.report.page import PageContent, build
    from isolaw.report.text.costs import hours_so_far
    from isolaw.store import SweepStore

    states = _states(reading) if states is None else states
    sweeps = [str(state["directory"]) for state in states]
    alone = len(reading.sources) == len(sweeps) == 1
    continues = alone and not traits(states[0]["backend"]).recorded
    history = read(SweepStore(sweeps[0])) if alone else ()
    return PageContent(
        predicted,
        backtest,
        [failure for state in states for failure in state["failures"]],
        build.sources(file for run in reading.ready for file in run.sources),
        command,
        [*reading.notes, *reading.runs.notes],
        ", ".join(reading.sources),
        sweeps[0] if continues else "",
        [f"{state['directory']}: {hours}" for state in states if (hours := hours_so_far(state))],
        history,
        [one for directory in sweeps for one in SweepStore(directory).responses()],
    )


def _cost(states: list[dict[str, Any]]) -> Cost | None:
    """Return the cost of a step if the source is a single real sweep."""
    from isolaw.costs import read
    from isolaw.errors import DataError

    if len(states) != 1 or states[0]["spent"] is None:
        return None
    try:
        return read(states[0]["directory"])
    except DataError:  # no run has completed a step
        return None


def _saved_law(runs: Runs, sources: tuple[str, ...]) -> tuple[Law | None, str | None]:
    """Return the sweep's law.json and its path, if that law was fitted to these runs."""
    from isolaw.fits.law import Law
    from isolaw.report.fitted_runs import is_of

    path = os.path.join(sources[0], "law.json")
    if len(sources) > 1 or not os.path.isfile(path):
        return None, None
    law = Law.load(path)
    if is_of(law, runs):
        note(f"note: using the law in {path}")
        return law, path
    note(f"note: {path} was fitted to other runs, so isolaw fits these runs")
    return None, None


def _fitted(runs: Runs, options: dict[str, Any]) -> FittedRuns:
    """Return the runs with their law or the reason why there is none, and print a note about the fit."""
    from isolaw.report.fitted_runs import FittedRuns

    study = FittedRuns.fitted_to(runs, shared.law_keywords(options))
    if (d := study.document) is None:
        note(f"note: there is no law: {study.refused}")
    else:
        note(f"note: fitted {d.metric} on {d.eval_set}, with {d.hold} held fixed and method {d.method}")
    return study
