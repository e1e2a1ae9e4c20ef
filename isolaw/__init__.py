"""isolaw: compute-optimal allocation of sampling budgets in RL post-training.

A budget of C rollouts is split as C = B_p · n · M. From small runs, isolaw estimates the best split.

    isolaw.answer("DIR", 1e7)                       read, fit, predict and backtest: how to spend a budget
    runs = isolaw.read("DIR")                       read a sweep, logs of other frameworks, or tables
    law = isolaw.fit(runs, metric="avg@4")          fit n*(C), with intervals
    law.predict(compute=1e7)                        predict the best allocation of a budget
    isolaw.advise(1e6)                              where to start without runs, from published results
    isolaw.plan("sweep.toml", spend="20%")          plan which runs to make, with simulated runs
    isolaw.check_recipe("sweep.toml", out="DIR")    check the learning rate first
    isolaw.sweep("sweep.toml", out="DIR")           make the runs
    isolaw.calibrate(runs, out="preset.toml")       fit the simulator to runs, to predict far beyond them
    isolaw.write_report(runs, law, "report.html")   write a page about the results

Every command has a function in this package. Functions are imported at first use, so the import is fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from isolaw.registry import PUBLIC, __version__, public

if TYPE_CHECKING:
    from isolaw.allocation import Allocation
    from isolaw.backends.real.export import export
    from isolaw.backends.real.rollout.split import split
    from isolaw.calibration.calibrate import calibrate
    from isolaw.calibration.splits import predict_by_simulation
    from isolaw.config import SweepSpec
    from isolaw.costs import read_cost
    from isolaw.design.advice import Advice, advise
    from isolaw.design.forecast import plan
    from isolaw.doctor import diagnose
    from isolaw.engine import status, sweep
    from isolaw.errors import IsolawError
    from isolaw.fits.law import Law
    from isolaw.fits.laws.fit_points import fit_points
    from isolaw.fits.pipeline import fit
    from isolaw.fits.prediction import Prediction
    from isolaw.fits.quantity import Quantity
    from isolaw.fits.studies.axis import compare_by
    from isolaw.fits.studies.backtest import backtest
    from isolaw.fits.studies.dead_groups import dead_groups
    from isolaw.fits.studies.model_size.curves import SizeCurves
    from isolaw.fits.studies.model_size.law import fit_sizes
    from isolaw.fits.studies.recipes import compare
    from isolaw.fits.studies.retune import retune
    from isolaw.fits.studies.shapes import compare_shapes
    from isolaw.fits.studies.targets import to_target
    from isolaw.readers.read import read
    from isolaw.recipe_check.check import check_recipe
    from isolaw.replication.findings import findings
    from isolaw.report.answer import Answer, answer
    from isolaw.report.figures.law import law_figure
    from isolaw.report.figures.paper import paper_figures
    from isolaw.report.page import write_report
    from isolaw.report.summary import summary
    from isolaw.runs import Runs

__all__ = [
    "Advice", "Allocation", "Answer", "IsolawError", "Law", "Prediction", "Quantity", "Runs",
    "SizeCurves", "SweepSpec", "__version__", "advise", "answer", "backtest", "calibrate", "check_recipe",
    "compare", "compare_by", "compare_shapes", "dead_groups", "diagnose", "export", "findings", "fit",
    "fit_points", "fit_sizes", "law_figure", "paper_figures", "plan", "predict_by_simulation", "read",
    "read_cost", "retune", "split", "status", "summary", "sweep", "to_target", "write_report",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in PUBLIC:
        raise AttributeError(f"module 'isolaw' has no attribute {name!r}")
    return public(name)


def __dir__() -> list[str]:
    return __all__
