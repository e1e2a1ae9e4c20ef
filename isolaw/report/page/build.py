"""The content of the page, section by section, and a list of results that the data cannot show."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from isolaw import engine
from isolaw.evidence import amount
from isolaw.fits.document.schema import LawDocument
from isolaw.readers.reading import Reading
from isolaw.registry import __version__
from isolaw.report.fitted_runs import FittedRuns
from isolaw.report.page import law_charts, responses, run_charts
from isolaw.report.page.budgets import Budgets, budget_texts
from isolaw.report.page.chart import PageSection, palette, text
from isolaw.report.text import law as law_text
from isolaw.report.text.costs import hours_so_far
from isolaw.report.text.prediction import after_backtest, backtest_failed, backtest_line
from isolaw.runs import Runs
from isolaw.store import SweepStore
from isolaw.store.sweep import SavedResponses

_MOST_SOURCES = 12


def _sources(names: Iterable[str]) -> list[str]:
    """Return the distinct files and sweeps in ``names``. Many files are listed as their folder."""
    paths = list(dict.fromkeys(names))
    files = [path for path in paths if not Path(path).is_dir()]
    if len(files) <= _MOST_SOURCES:
        return paths
    directories = [path for path in paths if path not in files]
    return [*directories, f"{os.path.commonpath(files)} ({len(files):,} files)"]


def _versions(plotly: str) -> str:
    """Return the versions of isolaw, Python, the numerical packages and plotly.js."""
    packages = ", ".join(f"{name} {version(name)}" for name in ("numpy", "scipy", "pandas", "numba"))
    return f"isolaw {__version__}, Python {platform.python_version()}, {packages}, plotly.js {plotly}"


def _seeds(runs: Runs) -> str:
    """Return the seeds of the runs as text."""
    numbers = sorted(int(seed) for seed in runs.points["seed"].unique())
    if len(numbers) > 2 and numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"{numbers[0]} to {numbers[-1]}"
    return ", ".join(map(str, numbers))


def _options(document: LawDocument) -> str:
    """Return the keywords of `isolaw.fit` that give this law."""
    d, records = document, "off" if document.records is None else document.records
    keywords = {
        "metric": d.metric, "eval_set": d.eval_set, "hold": d.hold, "where": d.fixed, "method": d.method,
        "x": "compute" if d.x.name == "steps" else d.x.name,
        "draws": d.bootstrap.draws, "seed": d.bootstrap.seed,
    }  # fmt: skip
    if d.curve is not None:
        keywords |= {"curve": d.curve, "records": records}
    return ", ".join(f"{name}={value!r}" for name, value in keywords.items())


@dataclass(frozen=True)
class PageContent:
    """The content of the page in addition to the study."""

    budgets: Budgets | None  # predictions at the slider's stops; None without a law
    backtest: Mapping[str, Any] | str  # the result of `isolaw.backtest`, or the reason why there is none
    failed: Sequence[Mapping[str, Any]] = ()  # runs of sweeps, from `isolaw.engine.status`
    sources: Sequence[str] = ()  # files and sweeps that were read (`_sources`)
    command: str = ""  # the command that repeats the report
    notes: Sequence[str] = ()  # assumptions of the readers
    title: str = ""  # the sources as the user named them
    hours: Sequence[str] = ()  # the cost of real sweeps so far
    responses: Sequence[SavedResponses] = ()  # responses that the runs of sweeps kept

    @classmethod
    def of(
        cls, reading: Reading, budgets: Budgets | None, backtest: Mapping[str, Any] | str, command: str
    ) -> PageContent:
        """Return the content of the page about logs that were read; ``command`` recreates the page."""
        directories = sorted({run.sources[0] for run in reading.ready if run.container == "sweep"})
        sweeps = {directory: engine.status(directory) for directory in directories}
        hours = {directory: hours_so_far(state) for directory, state in sweeps.items()}
        return cls(
            budgets,
            backtest,
            [failure for state in sweeps.values() for failure in state["failures"]],
            _sources(file for run in reading.ready for file in run.sources),
            command,
            [*reading.notes, *reading.runs.notes],
            ", ".join(reading.sources),
            [f"{directory}: {text}" for directory, text in hours.items() if text],
            [saved for directory in directories for saved in SweepStore(directory).responses()],
        )


def content(study: FittedRuns, facts: PageContent, plotly: str) -> dict[str, Any]:
    """Return everything that the template shows and the script draws."""
    document, budgets = study.document, facts.budgets
    run_ids = sorted(study.runs.points["run_id"].unique())
    results = [
        law_charts.section(study, budgets),
        PageSection("reward", "The runs", charts=[law_charts.reward(study, run_ids, budgets)]),
        run_charts.at_one_compute(study),
        responses.section(facts.responses),
        run_charts.health_section(study, facts.failed),
        run_charts.backtest(facts.backtest),
    ]
    sections = [section for section in results if isinstance(section, PageSection)]
    texts = []
    if study.law and budgets:
        predictions = [after_backtest(p, facts.backtest) for p in budgets.predictions]
        texts = [budget_texts(p, study.law, budgets) for p in predictions]
    fitted = study.fitted_rows()
    buys = law_charts.buys(study, budgets) if budgets and budgets.recommended and document else None
    charts = [*([buys] if buys else []), *(chart for section in sections for chart in section.charts)]
    return {
        "title": study.runs.simulated.title(facts.title or study.runs.source),
        "simulated": f"{study.runs.simulated.words} runs" if study.runs.simulated else "",
        "study": study,
        "refused": study.no_law,
        "buys": buys,
        "best": law_charts.BEST,
        "evidence": "" if document is None else f"Backtest: {backtest_line(facts.backtest, study.metric)}",
        "failed": backtest_failed(facts.backtest),
        "tolerance": "" if document is None else f"{document.tolerance:g}",
        "facts": _facts(study),
        "warnings": law_text.notes(document.flags) if document else list(facts.notes),
        "budgets": texts,
        "first": 0 if budgets is None else budgets.first,
        "drawn": {
            symbol: sorted(int(value) for value in fitted[name].unique())
            for symbol, name in {"n": "rollouts_per_problem", "b": "problems_per_batch"}.items()
        },
        "sections": sections,
        "left_out": [reason for reason in results if isinstance(reason, str)],
        "how": _origin_facts(study, facts, plotly),
        "palette": palette(len(study.levels)),
        "charts": [chart.to_dict() for chart in charts],
        "runs": _names(study, run_ids),
    }


def _facts(study: FittedRuns) -> list[tuple[str, str]]:
    points = study.metric_rows()
    return [
        ("reward", f"{study.metric} on {study.eval_set}"),
        ("runs", f"{points['run_id'].nunique():,}"),
        ("seeds", f"{points['seed'].nunique():,}"),
        ("n", _numbers_text(study.levels)),
        ("B_p", _numbers_text(study.batches)),
        ("largest C", amount(int(points["compute"].max()))),
    ]


def _numbers_text(values: Sequence[int]) -> str:
    if len(values) > 4:
        return f"{values[0]:,} … {values[-1]:,} ({len(values)})"
    return ", ".join(f"{value:,}" for value in values)


def _origin_facts(study: FittedRuns, facts: PageContent, plotly: str) -> list[tuple[str, list[str]]]:
    """Return the facts needed to reproduce the page, as (name, lines) pairs."""
    document = study.document
    lines_by_name = {
        "command": [facts.command] if facts.command else [],
        "data": list(facts.sources),
        "as read": list(facts.notes),
        "fit": [_options(document)] if document else [],
        "intervals": law_text.intervals(document) if document else [],
        "time": list(facts.hours),
        "seeds of the runs": [_seeds(study.runs)],
        "versions": [_versions(plotly)],
    }
    return [(name, lines) for name, lines in lines_by_name.items() if lines]


def _names(study: FittedRuns, run_ids: Sequence[str]) -> list[str]:
    """Return the hover text of each run."""
    first = study.runs.points.drop_duplicates("run_id").set_index("run_id")
    names = run_charts.labels(run_ids)
    texts = []
    for run_id in run_ids:
        b, n, seed = (first.at[run_id, key] for key in ("problems_per_batch", "rollouts_per_problem", "seed"))
        texts.append(f"{text(names[run_id])}<br>n = {n:,}, B_p = {b:,}, seed {seed}")
    return texts
