"""The configuration of runs: `Recipe`, `RunSpec`, `SweepSpec`, read from TOML and identified by a hash.

A sweep file's sections are the fields of `SweepSpec`. isolaw reports all issues at once, each with its line,
what was found, what is accepted and the nearest valid name. A backend reads its own section (``[bandit]``,
``[replay]``, ``[real]``) itself.
"""

from isolaw.config.executor import ExecutorSection
from isolaw.config.run import RunSpec
from isolaw.config.sections import (
    Count,
    EvaluationSpec,
    Positive,
    ProblemsSpec,
    Recipe,
    Share,
    StoreSection,
    TrackingSection,
)
from isolaw.config.sweep import SweepSpec

__all__ = [
    "Count", "EvaluationSpec", "ExecutorSection", "Positive", "ProblemsSpec", "Recipe", "RunSpec", "Share",
    "StoreSection", "SweepSpec", "TrackingSection",
]  # fmt: skip
