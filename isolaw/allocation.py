"""Split a budget of rollouts as C = B_p · n · M.

C is the number of rollouts *generated*, B_p (`problems_per_batch`) is the number of problems per step, n
(`rollouts_per_problem`) is the number of rollouts per problem, and M (`steps`) is the number of update steps.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Literal

from isolaw.errors import InputError, Issue, shown, wrong_argument

AxisName = Literal["rollouts_per_problem", "problems_per_batch"]


@dataclass(frozen=True)
class Cell:
    """A configuration that is identified only by its B_p and n."""

    problems_per_batch: int
    rollouts_per_problem: int

    @property
    def key(self) -> tuple[int, int]:
        """The pair (B_p, n)."""
        return self.problems_per_batch, self.rollouts_per_problem

    @property
    def batch_rollouts(self) -> int:
        """B = B_p · n, the rollouts of one step."""
        return self.problems_per_batch * self.rollouts_per_problem

    @property
    def place(self) -> tuple[float, float]:
        """The coordinates (log2 n, log2 B_p) of the cell on the reward surface."""
        return math.log2(self.rollouts_per_problem), math.log2(self.problems_per_batch)

    @property
    def label(self) -> str:
        """The configuration's name in messages and charts, such as ``B_p = 32, n = 8``."""
        return f"B_p = {self.problems_per_batch}, n = {self.rollouts_per_problem}"

    def level(self, axis: AxisName) -> int:
        """Return the cell's value on the axis, which is its B_p or its n."""
        return self.problems_per_batch if axis == "problems_per_batch" else self.rollouts_per_problem


def axis_of(cells: Iterable[Cell]) -> AxisName:
    """Return the axis of a law of these cells: B_p if they differ only in B_p, otherwise n.

    >>> axis_of([Cell(8, 16), Cell(32, 16)]), axis_of([Cell(8, 16), Cell(8, 32)])
    ('problems_per_batch', 'rollouts_per_problem')
    """
    problems, rollouts = zip(*(cell.key for cell in cells), strict=True)
    shares_n = len(set(rollouts)) == 1 and len(set(problems)) > 1
    return "problems_per_batch" if shares_n else "rollouts_per_problem"


BatchShape = tuple[int, int]  # (B_p, n)
_SYMBOLS = {"B_p": "problems_per_batch", "n": "rollouts_per_problem"}


def shape_of(
    given: BatchShape | str | Mapping[str, int], known: Mapping[str, Collection[int]] | None = None
) -> BatchShape:
    """Return (B_p, n) of a configuration, given as a pair, as text or as a mapping.

    ``known`` has the values of the runs by name; a configuration need not name what all runs share.

    >>> {shape_of(each) for each in ((128, 8), "B_p=128, n=8", "128x8", {"n": 8, "problems_per_batch": 128})}
    {(128, 8)}
    >>> shape_of("n=8", {"problems_per_batch": {32}})
    (32, 8)
    """
    sizes: Any = given
    if isinstance(given, str):
        pair = re.fullmatch(r"\s*(\d+)\s*[x×]\s*(\d+)\s*", given)
        named = re.fullmatch(r"\s*\w+\s*=\s*\d+\s*(,\s*\w+\s*=\s*\d+\s*)?", given)
        sizes = pair.groups() if pair else dict(re.findall(r"(\w+)\s*=\s*(\d+)", given)) if named else ()
    if isinstance(sizes, Mapping):
        by_name = {_SYMBOLS.get(name, name): size for name, size in sizes.items()}
        known = known if by_name.keys() <= {*_SYMBOLS.values()} else {}
        common = {name: values for name, values in (known or {}).items() if name not in by_name}
        if several := [
            f"{name} = {', '.join(map(str, sorted(v)))}" for name, v in common.items() if len(v) > 1
        ]:
            raise InputError(f"found {shown(given)}; expected B_p and n, since the runs have {several[0]}")
        by_name |= {name: next(iter(values)) for name, values in common.items()}
        sizes = [by_name.get(name) for name in _SYMBOLS.values()] if len(by_name) == len(_SYMBOLS) else []
    try:
        shape = tuple(int(size) for size in sizes)
        if len(shape) == 2 and min(shape) >= 1:
            return shape
    except (TypeError, ValueError):
        pass
    raise InputError(f'found {shown(given)}; expected B_p and n, e.g. (128, 8), "B_p=128, n=8" or "128x8"')


@dataclass(frozen=True, order=True)
class Allocation:
    """One split of a sampling budget into B_p, n and M, which are positive integers.

    M is 0 if the budget does not pay for a step. Raises `InputError` for other values.

    >>> Allocation(32, 64, 10).compute
    20480
    """

    problems_per_batch: int
    rollouts_per_problem: int
    steps: int

    def __post_init__(self) -> None:
        for name, least in (("problems_per_batch", 1), ("rollouts_per_problem", 1), ("steps", 0)):
            value = getattr(self, name)
            if not isinstance(value, Integral) or isinstance(value, bool) or int(value) < least:
                raise wrong_argument(name, value, f"a whole number, at least {least}")

    @property
    def batch_rollouts(self) -> int:
        """B = B_p · n, the number of rollouts per step."""
        return self.problems_per_batch * self.rollouts_per_problem

    @property
    def compute(self) -> int:
        """C = B_p · n · M, the number of rollouts that all steps generate."""
        return self.batch_rollouts * self.steps

    @classmethod
    def within(cls, compute: float, problems_per_batch: int, rollouts_per_problem: int) -> Allocation:
        """Return the longest run that a budget C pays for: M = floor(C / (n · B_p)).

        >>> Allocation.within(1e6, 32, 512)
        Allocation(problems_per_batch=32, rollouts_per_problem=512, steps=61)
        """
        batch = cls(problems_per_batch, rollouts_per_problem, 0).batch_rollouts
        if not isinstance(compute, Real) or isinstance(compute, bool) or not 0 <= compute < math.inf:
            raise wrong_argument("compute", compute, "a number of rollouts")
        steps = int(compute // batch) if compute >= batch else 0  # batch can be beyond floats
        return cls(problems_per_batch, rollouts_per_problem, steps)


def grid(
    problems_per_batch: Iterable[int], rollouts_per_problem: Iterable[int], max_batch_rollouts: int
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Return the pairs (B_p, n) whose B_p · n is within the cap, and the pairs whose B_p · n exceeds it.

    >>> kept, dropped = grid([32, 64], [8, 16], 512)
    >>> kept, dropped
    ([(32, 8), (32, 16), (64, 8)], [(64, 16)])
    """
    pairs = [(b, n) for b in sorted(set(problems_per_batch)) for n in sorted(set(rollouts_per_problem))]
    kept = [(b, n) for b, n in pairs if b * n <= max_batch_rollouts]
    return kept, [(b, n) for b, n in pairs if b * n > max_batch_rollouts]


def grid_issues(
    problems_per_batch: Iterable[int], rollouts_per_problem: Iterable[int], max_batch_rollouts: int
) -> list[Issue]:
    """Return an issue for each B_p or n of a grid whose batches all exceed the cap."""
    problems, rollouts = sorted(set(problems_per_batch)), sorted(set(rollouts_per_problem))
    issues = []
    for name, values, other, least in (
        ("problems_per_batch", problems, "rollouts_per_problem", rollouts[0]),
        ("rollouts_per_problem", rollouts, "problems_per_batch", problems[0]),
    ):
        accepted = f"at most {max_batch_rollouts // least} (limits.max_batch_rollouts = {max_batch_rollouts})"
        for value in (value for value in values if value * least > max_batch_rollouts):
            batch = f"a batch of {value} · {least} = {value * least} rollouts is above the cap"
            message = f"{batch}, even with the smallest {other}"
            issues.append(Issue(f"grid.{name}", message, value, accepted))
    # A single pair is a single mistake. Report only n, since users prefer to change n.
    return issues[-1:] if len(problems) == len(rollouts) == 1 else issues
