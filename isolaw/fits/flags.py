"""`Flag`: a reason for care with a result, as a code for programs and a text for people.

Programs depend only on a flag's `Code`, never on its text. `isolaw.report.text.law` prints the text. The
codes are part of isolaw's public interface (the site's page of files and keys lists them).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from isolaw.evidence import Simulated
from isolaw.fits.document.codec import Encoded


class Code(StrEnum):
    """The subject of a flag. A code equals its JSON value, and ``meaning`` explains it in one line.

    >>> Code.ONE_SEED == "one_seed", Code("one_seed").meaning
    (True, 'every configuration has one run, so the variation between seeds was not measured')
    """

    meaning: str

    def __new__(cls, value: str, meaning: str = "") -> Code:
        """Create the member with this value, and keep its meaning as an attribute."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.meaning = meaning
        return member

    # The fitted data.
    SIMULATED = "simulated", "a simulator made some or all runs, which are no evidence about a language model"
    AS_READ = "as_read", "a note from reading the sources"
    REWARD_CHOSEN = "reward_chosen", "no metric was given; isolaw fits the only candidate"
    AXIS_CHOSEN = "axis_chosen", "no B_p (or B) was given; isolaw holds the one with the most n"
    LEFT_OUT = "left_out", "a configuration has too few checkpoints for a curve"
    COPIES = "copies", "runs that are exact copies of others were counted once"
    REWARD_SCALE = (
        "reward_scale",
        "the metric is not on the scale of a share, and isolaw's tolerance follows its range",
    )
    NARROW_REWARDS = "narrow_rewards", "all rewards are nearly equal"
    UNSTABLE_BATCH = "unstable_batch", "runs of this B_p did not train stably"
    DIVERGED = "diverged", "the reward of a run became NaN; isolaw uses the run up to there"
    COLLAPSED = (
        "collapsed",
        "a run collapsed while others of its configuration did not; isolaw uses it up to the collapse",
    )

    # The intervals.
    ONE_SEED = "one_seed", "every configuration has one run, so the variation between seeds was not measured"
    TWO_SEEDS = (
        "two_seeds",
        "every configuration has two runs, so the variation between seeds is poorly known",
    )
    LONE_RUNS = "lone_runs", "some configurations have one run, others have more"
    FAILED_DRAWS = "failed_draws", "some bootstrap draws failed"
    NO_INTERVALS = "no_intervals", "too many draws failed for intervals"
    NO_DRAWS = "no_draws", "the law has no draws, or their file is missing"

    # Curves.
    STILL_RISING = "still_rising", "curves still rise at their end: their ceilings are not determined"
    FLAT_CURVES = "flat_curves", "rewards are flat or fall, which a learning curve cannot describe"
    HARDLY_RISES = "hardly_rises", "a curve has too few record points, so isolaw fits all its checkpoints"
    LATE_FALL = "late_fall", "rewards fall late in training"

    # n* and the law.
    GRID_EDGE = "grid_edge", "n* is, or may be, outside the measured n or at their edge"
    LACK_OF_FIT = "lack_of_fit", "few draws describe the model of the runs, so isolaw widens the intervals"
    CENSORED = "censored", "too few n were measured at these budgets to compare them"
    NOT_MONOTONE = "not_monotone", "n* falls at larger budgets, which a monotone law cannot describe"
    NO_LAW = "no_law", "n* is only a bound at every budget"
    NO_SATURATION = "no_saturation", "why isolaw does not state the n at which the law levels off"

    # Predictions.
    BATCH_EDGE = "batch_edge", "the recommended B_p is the smallest or the largest measured one"
    EXTRAPOLATION = "extrapolation", "the budget is beyond what was measured"
    FAR = "far", "the budget is too far beyond the compute that three n reached; isolaw recommends nothing"
    LIMITED = (
        "limited",
        "measured configurations do not fit the budget or the cap, or ended before a tenth of it",
    )
    FLAT = "flat", "no measured n is better than another at this budget, or the reward never changed"
    NO_GAIN = "no_gain", "the predicted reward is higher at a smaller budget"
    UNCERTAIN = (
        "uncertain",
        "even the best choice is expected to lose more than the tolerance (0.005 for an accuracy)",
    )
    EPOCHS = (
        "epochs",
        "the allocation makes more passes over the problems than the runs are known to have made",
    )
    COST_UNKNOWN = "cost_unknown", "isolaw left out a configuration because the cost of its steps is unknown"
    COST_EXTRAPOLATED = (
        "cost_extrapolated",
        "the cost of a step is extrapolated from timed steps of other sizes",
    )
    FEWER_PROBLEMS = "fewer_problems", "the budget is for fewer training problems than the runs had"

    # Studies.
    UNSATURATED = "unsaturated", "the model sizes do not bound K_max and N0 of the model-size law"
    BLOCKS = "blocks", "the runs are of several recipes, each with its own level in log N"


@dataclass(frozen=True)
class Flag:
    """A reason for care with a result: a code for programs, and a sentence for people."""

    code: str  #: a `Code`, or a string that a later version of isolaw wrote
    text: str  #: the reason in words


def flags_of_simulated(simulated: Simulated) -> list[Flag]:
    """Return the flag that reports a simulator, or an empty list if no simulator made the runs."""
    text = "a simulator made the runs, which are no evidence about a language model"
    return [Flag(Code.SIMULATED, text)] if simulated else []


def simulated_from_flags(flags: Iterable[Flag]) -> Simulated:
    """Return whether a simulator made the runs, according to these flags (inverts `flags_of_simulated`).

    >>> simulated_from_flags(flags_of_simulated(Simulated.YES)).words
    'simulated'
    """
    return Simulated.among(flag.code == Code.SIMULATED for flag in flags)


class Flagged(Encoded):
    """The base class of results with ``flags``."""

    DERIVED: ClassVar[tuple[str, ...]] = ("simulated",)
    flags: Sequence[Flag]

    @property
    def simulated(self) -> Simulated:
        """Whether a simulator made the runs, according to the flags."""
        return simulated_from_flags(self.flags)


def flags_with(flags: Iterable[Flag], *codes: Code) -> list[Flag]:
    """Return the flags with one of these codes.

    >>> flags_with([Flag(Code.FAR, "a"), Flag(Code.FLAT, "b")], Code.FLAT)[0].text
    'b'
    """
    return [flag for flag in flags if flag.code in codes]
