"""Define the version of isolaw, the module of each public name, and the traits of each backend.

Low-level modules use higher-level modules through public names. For example, the module of a law does not
import the modules of its text and figure.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__version__ = "0.2.0"

PUBLIC = {
    "Advice": "isolaw.design.advice",
    "Allocation": "isolaw.allocation",
    "Answer": "isolaw.report.answer",
    "IsolawError": "isolaw.errors",
    "Law": "isolaw.fits.law",
    "Prediction": "isolaw.fits.prediction",
    "Quantity": "isolaw.fits.quantity",
    "Runs": "isolaw.runs",
    "SizeCurves": "isolaw.fits.studies.model_size.curves",
    "SweepSpec": "isolaw.config",
    "advise": "isolaw.design.advice",
    "answer": "isolaw.report.answer",
    "backtest": "isolaw.fits.studies.backtest",
    "calibrate": "isolaw.calibration.calibrate",
    "check_recipe": "isolaw.recipe_check.check",
    "compare": "isolaw.fits.studies.recipes",
    "compare_by": "isolaw.fits.studies.axis",
    "compare_shapes": "isolaw.fits.studies.shapes",
    "dead_groups": "isolaw.fits.studies.dead_groups",
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
    """Return the object that `isolaw` exports under a name in `PUBLIC`, and import it at first use.

    >>> public("Allocation")(32, 64, 100).compute
    204800
    """
    return getattr(importlib.import_module(PUBLIC[name]), name)


@dataclass(frozen=True)
class Traits:
    """The properties of a backend that isolaw needs without importing its module, `isolaw.backends.NAME`."""

    simulated: bool = False  #: a simulator makes its runs
    recorded: bool = False  #: its runs exist already, and it cannot make others
    trains: bool = False  #: its runs train a model, so their time is the cost of training
    by_command: bool = False  #: another program trains, which decides what it logs, and logs its own times
    plans_gpus: bool = False  #: it plans its runs for the kind and number of GPUs
    packages: tuple[str, ...] = ()  #: `isolaw doctor` calls it not installed without them


#: Each backend has a section of its name in the sweep file.
BACKENDS: Mapping[str, Traits] = {
    "bandit": Traits(simulated=True),
    "replay": Traits(recorded=True),
    "real": Traits(trains=True, plans_gpus=True, packages=("torch", "transformers", "deepspeed")),
    "command": Traits(trains=True, by_command=True),
}


def traits(backend: object) -> Traits:
    """Return the traits of a backend; the backend of a table of runs may be unknown, and then has none.

    >>> traits("bandit").simulated, traits("another").simulated
    (True, False)
    """
    return BACKENDS.get(str(backend), Traits())


class Shown:
    """The base class of results that ``print`` and notebooks show as text and tables.

    `isolaw.report.summary` creates this text.
    """

    def __str__(self) -> str:
        return str(public("summary")(self))

    def _repr_html_(self) -> str:
        return str(public("summary")(self, html=True))
