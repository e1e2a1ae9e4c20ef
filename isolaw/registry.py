"""Where the package's public names are, and its version.

A lower module calls by its public name what is made of it above: a law knows neither its words nor its
figure.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.2.0"

PUBLIC = {
    "Allocation": "isolaw.allocation",
    "IsolawError": "isolaw.errors",
    "Law": "isolaw.fits.law",
    "Runs": "isolaw.runs",
    "SizeCurves": "isolaw.fits.studies.model_size.curves",
    "SweepSpec": "isolaw.config",
    "advise": "isolaw.design.advice",
    "backtest": "isolaw.fits.studies.backtest",
    "calibrate": "isolaw.calibration.calibrate",
    "check_recipe": "isolaw.recipe_check.check",
    "compare": "isolaw.fits.studies.recipes",
    "compare_by": "isolaw.fits.studies.axis",
    "diagnose": "isolaw.doctor",
    "export": "isolaw.backends.real.export",
    "findings": "isolaw.replication.findings",
    "fit": "isolaw.fits.pipeline",
    "fit_points": "isolaw.fits.laws.fit_points",
    "fit_sizes": "isolaw.fits.studies.model_size.law",
    "law_figure": "isolaw.report.figures.law",
    "paper_figures": "isolaw.report.figures.paper",
    "plan": "isolaw.design.forecast",
    "predict_by_simulation": "isolaw.calibration.splits",
    "read": "isolaw.readers.read",
    "read_cost": "isolaw.costs",
    "retune": "isolaw.fits.studies.retune",
    "split": "isolaw.backends.real.rollout.split",
    "status": "isolaw.engine",
    "summary": "isolaw.report.summary",
    "sweep": "isolaw.engine",
    "to_target": "isolaw.fits.studies.targets",
    "write_report": "isolaw.report.page",
}


def public(name: str) -> Any:
    """Return what `isolaw` offers under a name of `PUBLIC`, imported when it is first asked for.

    >>> public("Allocation")(32, 64, 100).compute
    204800
    """
    return getattr(importlib.import_module(PUBLIC[name]), name)
