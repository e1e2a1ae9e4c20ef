"""Define the configuration of runs: `Recipe`, `RunSpec` and `SweepSpec`, read from TOML.

The sections of a sweep file are the fields of `SweepSpec`, and each run is identified by a hash. isolaw
reports all issues together. Each issue has its line, the value found, the accepted values and the nearest
valid name. Each backend validates its own section, e.g. ``[bandit]``.
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
    TrackingSection,
)
from isolaw.config.sweep import SweepSpec

__all__ = [
    "Count", "EvaluationSpec", "ExecutorSection", "Positive", "ProblemsSpec", "Recipe", "RunSpec", "Share",
    "SweepSpec", "TrackingSection",
]  # fmt: skip
