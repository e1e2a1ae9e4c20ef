"""`Flag`: a reason for care, as a code that programs act on and a text that people read.

Code depends on a flag's `Code` alone, never on its text; `isolaw.report.text.law` prints it. The codes are
part of isolaw's public interface (the site's page of files and keys lists them).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from isolaw.evidence import Simulated
from isolaw.fits.document.codec import Encoded


class Code(StrEnum):
    """The subject of a flag. Each code is its own JSON value, and ``meaning`` explains it in one line.

    >>> Code.ONE_SEED == "one_seed", Code("one_seed").meaning
    (True, 'every configuration has one run, so that runs were never seen to differ')
    """

    meaning: str

    def __new__(cls, value: str, meaning: str = "") -> Code:
        """Create the member with this value and meaning."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.meaning = meaning
        return member

    # What was fitted.
    SIMULATED = "simulated", "a simulator made the runs, which are no evidence about a language model"
    PARTLY_SIMULATED = "partly_simulated", "a simulator made some of the runs"
    AS_READ = "as_read", "a note of the reader of the sources"
    REWARD_CHOSEN = "reward_chosen", "nobody named the reward; the only one it can be was taken"
    AXIS_CHOSEN = "axis_chosen", "nobody named the B_p (or B) to hold; the one with the most n was taken"
    LEFT_OUT = "left_out", "a configuration has too few checkpoints for a curve"
    COPIES = "copies", "runs that are exact copies of others were counted once"
    REWARD_SCALE = "reward_scale", "rewards go beyond 1, and tolerances are those of a reward in [0, 1]"
    NARROW_REWARDS = "narrow_rewards", "all rewards are nearly equal"
    UNSTABLE_BATCH = "unstable_batch", "runs of this B_p did not train stably"
    COLLAPSED = "collapsed", "runs that collapsed, others of their configuration not, count until then"

    # What intervals hold.
    ONE_SEED = "one_seed", "every configuration has one run, so that runs were never seen to differ"
    TWO_SEEDS = "two_seeds", "every configuration has two runs, which differ once"
    LONE_RUNS = "lone_runs", "some configurations have one run, others more"
    FAILED_DRAWS = "failed_draws", "some bootstrap draws failed"
    NO_INTERVALS = "no_intervals", "too many draws failed for intervals"
    NO_DRAWS = "no_draws", "the law has no draws, or their file is missing"
    CONDITIONAL_ERRORS = "conditional_errors", "standard errors hold for independent points only"

    # Curves.
    STILL_RISING = "still_rising", "curves still rise at their end: their ceilings are not determined"
    FLAT_CURVES = "flat_curves", "rewards are flat or fall, which a learning curve cannot show"
    HARDLY_RISES = "hardly_rises", "too few record points, so that all checkpoints are fitted"
    LATE_FALL = "late_fall", "rewards fall late in training, which a learning curve cannot show"
    MISFIT = "misfit", "another curve family fits the checkpoints better"

    # n* and the law.
    GRID_EDGE = "grid_edge", "n* is, or may be, at an end of the n that were measured"
    LACK_OF_FIT = "lack_of_fit", "runs that the surface does not fit; draws are wider for it"
    CENSORED = "censored", "too few n were measured at these budgets to compare them"
    NOT_MONOTONE = "not_monotone", "n* comes down again, which a monotone law does not describe"
    NO_LAW = "no_law", "n* is nowhere more than a bound"
    NO_SATURATION = "no_saturation", "why it is not stated at which n the law levels off"
    ON_BOUND = "on_bound", "points do not determine the law's parameters"

    # Predictions.
    BATCH_EDGE = "batch_edge", "the recommended B_p is at an end of those measured"
    EXTRAPOLATION = "extrapolation", "the budget is beyond what was measured"
    FAR = "far", "the budget is so far beyond what can be compared that isolaw recommends nothing"
    LIMITED = "limited", "larger measured batches do not fit the budget or the cap"
    FLAT = "flat", "no measured n is better than another at this budget"
    UNCERTAIN = "uncertain", "even the best choice is expected to lose more than 0.005"
    EPOCHS = "epochs", "more passes over the problems than the runs made, or than is known"
    COST_UNKNOWN = "cost_unknown", "a configuration whose steps have no known cost"
    COST_EXTRAPOLATED = "cost_extrapolated", "the cost of a step is of other batch sizes than were timed"
    FEWER_PROBLEMS = "fewer_problems", "fewer training problems than the runs had"

    # Simulated predictions.
    PRESET_MISFIT = "preset_misfit", "the calibrated simulator does not describe the runs it was fitted to"
    HARDLY_MOVED = "hardly_moved", "training hardly moved the rewards that the simulator was calibrated to"
    CHOICES_DISAGREE = (
        "choices_disagree",
        "what simulation or law recommends is within 0.005 of the best in less than 5 % of the other's draws",
    )
    REWARDS_DISAGREE = "rewards_disagree", "95 % intervals of simulation and law do not overlap"

    # Studies.
    NOT_COMPARED = "not_compared", "a configuration that only one of two recipes has"
    OTHER_PROBLEMS = "other_problems", "two recipes were trained on different problem sets"
    UNPAIRED = "unpaired", "two recipes share only some seeds, so their runs are drawn apart"
    UNSATURATED = "unsaturated", "the model sizes do not bound K_max and N0 of the model-size law"
    BLOCKS = "blocks", "runs of several recipes, each of which has a level of its own in log N"
    BENT = "bent", "log loss is not straight in log X, as the model-size law has it"

    VERSION_1 = "version_1", "a warning of a law.json of version 1, which had no codes"


@dataclass(frozen=True)
class Flag:
    """A reason for care."""

    code: str  #: a `Code`, or a string that a later version of isolaw wrote
    text: str  #: the reason in words, without the name that `isolaw.report.text.law.flag` may prepend


_SIMULATED = {
    Simulated.NO: [],
    Simulated.PARTLY: [
        Flag(
            Code.PARTLY_SIMULATED,
            "a simulator made some of the runs, which are no evidence about a language model",
        )
    ],
    Simulated.YES: [
        Flag(Code.SIMULATED, "a simulator made the runs, which are no evidence about a language model")
    ],
}


def flags_of_simulated(simulated: Simulated) -> list[Flag]:
    """Return the flag that reports a simulator; empty if none made the runs."""
    return [*_SIMULATED[simulated]]


def simulated_by(flags: Iterable[Flag]) -> Simulated:
    """Invert `flags_of_simulated`.

    >>> simulated_by(flags_of_simulated(Simulated.PARTLY)).words
    'partly simulated'
    """
    codes = {flag.code for flag in flags}
    if Code.SIMULATED in codes:
        return Simulated.YES
    return Simulated.PARTLY if Code.PARTLY_SIMULATED in codes else Simulated.NO


class Flagged(Encoded):
    """A dataclass with flags, which say what it rests on."""

    DERIVED: ClassVar[tuple[str, ...]] = ("simulated",)
    flags: Sequence[Flag]

    @property
    def simulated(self) -> Simulated:
        """Whether a simulator made the runs."""
        return simulated_by(self.flags)


def having(flags: Iterable[Flag], *codes: Code) -> list[Flag]:
    """Return the flags with one of these codes.

    >>> having([Flag(Code.FAR, "a"), Flag(Code.FLAT, "b")], Code.FLAT)[0].text
    'b'
    """
    return [flag for flag in flags if flag.code in codes]
