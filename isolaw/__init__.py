"""isolaw: compute-optimal allocation of sampling budgets in RL post-training.

A budget of C rollouts is split as C = B_p · n · M. From small runs, isolaw estimates the best split.

    best = isolaw.answer("DIR", 1e7)                read, fit, predict and backtest: how to spend a budget
    best.write_page("report.html")                  write a page about the answer, its runs and their law
    runs = isolaw.read("DIR")                       read a sweep, logs of other frameworks, or tables
    law = isolaw.fit(runs, metric="avg@4")          fit n*(C), with intervals
    law.predict(compute=1e7)                        predict the best allocation of a budget
    isolaw.advise(1e6)                              where to start without runs, from published results
    isolaw.sweep("sweep.toml", out="DIR")           make the runs

All commands but `problems`, `report` and `demo` have a function in this package. Functions are imported at
first use, so the import is fast.
"""

from __future__ import annotations

import os
from typing import Any

from isolaw.registry import PUBLIC, public
from isolaw.registry import __version__ as __version__

# Otherwise numba unpickles compiled functions from the cache that a stranger's .numba_config.yaml names.
os.environ.setdefault("NUMBA_CACHE_DIR", "")

__all__ = sorted([*PUBLIC, "__version__"])


def __getattr__(name: str) -> Any:
    if name not in PUBLIC:
        raise AttributeError(f"module 'isolaw' has no attribute {name!r}")
    return public(name)


def __dir__() -> list[str]:
    return __all__
