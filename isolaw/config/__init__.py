"""The configuration of runs: `Recipe`, `RunSpec` and `SweepSpec`, read from TOML and identified by a hash.

The sections of a sweep file are the fields of `SweepSpec`. isolaw reports all issues at once, each with its
line, what was found, what is accepted and the nearest valid name. Each backend validates its own section
(``[bandit]``, ``[replay]``, ``[real]``, ``[command]``).
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
