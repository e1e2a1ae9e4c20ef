"""isolaw: compute-optimal allocation of sampling budgets in RL post-training.

A budget of C rollouts is split as C = B_p · n · M. isolaw fits, from small runs, which split to use.

    runs = isolaw.read("DIR")                       a sweep, logs of other frameworks, or tables
    law = isolaw.fit(runs, metric="avg@4")          n*(C), with intervals
    law.predict(compute=1e7)                        the allocation for a budget
    isolaw.sweep("sweep.toml", out="DIR")           make the runs

Everything is imported when it is first used; importing the package costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isolaw.allocation import Allocation
    from isolaw.config import SweepSpec
    from isolaw.engine import sweep
    from isolaw.errors import IsolawError
    from isolaw.fits.law import Law
    from isolaw.fits.laws.fit_points import fit_points
    from isolaw.fits.pipeline import fit
    from isolaw.readers.read import read
    from isolaw.report.figures.law import law_figure
    from isolaw.runs import Runs

__version__ = "0.2.0"

_WHERE = {
    "Allocation": "isolaw.allocation",
    "IsolawError": "isolaw.errors",
    "Law": "isolaw.fits.law",
    "Runs": "isolaw.runs",
    "SweepSpec": "isolaw.config",
    "fit": "isolaw.fits.pipeline",
    "fit_points": "isolaw.fits.laws.fit_points",
    "law_figure": "isolaw.report.figures.law",
    "read": "isolaw.readers.read",
    "sweep": "isolaw.engine",
}
__all__ = [
    "Allocation",
    "IsolawError",
    "Law",
    "Runs",
    "SweepSpec",
    "__version__",
    "fit",
    "fit_points",
    "law_figure",
    "read",
    "sweep",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'isolaw' has no attribute {name!r}")
    return getattr(importlib.import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    return __all__
