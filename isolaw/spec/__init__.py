"""What is to be run: `Recipe`, `RunSpec`, `SweepSpec`; TOML in, canonical JSON and its hash out.

A sweep file's sections are the fields of `SweepSpec`. Everything wrong with it is reported at once,
each with its line, what was found, what is accepted and the nearest valid name. What belongs to one
backend (``[bandit]``, ``[replay]``, ``[real]``) is passed on to it unread.
"""

from isolaw.spec.executor import ExecutorSection
from isolaw.spec.run import RunSpec, canonical_json
from isolaw.spec.sections import EvaluationSpec, ProblemsSpec, Recipe, StoreSection, TrackingSection
from isolaw.spec.sweep import SweepSpec
from isolaw.spec.values import Count, Positive, Share

__all__ = [
    "Count", "EvaluationSpec", "ExecutorSection", "Positive", "ProblemsSpec", "Recipe", "RunSpec", "Share",
    "StoreSection", "SweepSpec", "TrackingSection", "canonical_json",
]  # fmt: skip
