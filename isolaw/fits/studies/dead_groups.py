"""Estimate the share of dead groups: groups of n rollouts that are all right or all wrong, without advantage.

If the model solves a problem with probability p, the share is p^n + (1 − p)^n, averaged over problems. The
data are c correct of k samples of each problem. Using c / k for p overestimates the share, since p^n and
(1 − p)^n are convex (``plugged_in`` shows this estimate). Two estimates avoid the bias:

- n ≤ k: C(c, n) / C(k, n) + C(k − c, n) / C(k, n), unbiased for every problem (Chen et al. 2021, arXiv
  2107.03374: worst@n and 1 − best@n of `isolaw.metrics`).
- n > k: E[p^n] + E[(1 − p)^n] under a maximum-likelihood fit of c: a beta-binomial distribution (Griffiths
  1973, Biometrics 29) with an additional mass at p = 0. k samples do not determine the share for n > k: two
  distributions of p can agree in all counts of k samples and still differ in this share. The interval
  therefore assumes no model. The interval spans the shares of all distributions of p that agree with the
  counts: each of their k + 1 frequencies is within its (Bonferroni) 95 % interval. Two linear programs find
  its ends. The interval can be wide; more samples of each problem narrow it.

For n ≤ k, intervals come from a bootstrap over problems, which treats them as a sample of the training
problems. Pass rates belong to the sampled model, and change as it is trained.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betaln, expit, gammaln

from isolaw.arguments import checked, numbers
from isolaw.documents.reading import read_bytes
from isolaw.errors import DataError, InputError
from isolaw.evidence import Quantity, from_draws
from isolaw.fits.document.codec import Encoded
from isolaw.fits.selection import Floats
from isolaw.metrics import per_problem
from isolaw.parquet import frame_of, read_parquet
from isolaw.registry import Shown

SIZES = (2, 4, 8, 16, 32, 64, 128, 256, 512)
_DRAWS = 1000
_MOST_SAMPLES = 1_000_000
_GRID = np.concatenate([[0.0], np.geomspace(1e-4, 0.02, 30)[:-1], np.linspace(0.02, 0.5, 97)])
_P = np.concatenate([_GRID, 1 - _GRID[-2::-1]])  # pass rates of the linear programs
_FORMATS = (".jsonl", ".csv", ".parquet")


@dataclass(frozen=True)
class GroupSize(Encoded):
    """The expected shares of groups of n rollouts with and without a signal (an advantage).

    The shares are averaged over problems.
    """

    DERIVED = ("live", "per_thousand_rollouts")

    rollouts_per_problem: int
    dead: Quantity  #: share of groups without a signal
    wrong: float  #: share of groups that are all wrong
    right: float  #: share of groups that are all right
    plugged_in: float  #: ``dead`` estimated with c / k for p, which is too high
    basis: Literal["unbiased", "model"]  #: ``model`` if n exceeds the fewest samples of a problem

    @property
    def live(self) -> float:
        """The share of groups with a signal. Of B_p problems, B_p · live contribute to the gradient."""
        return 1.0 - (self.dead.value or 0.0)

    @property
    def per_thousand_rollouts(self) -> float:
        """The number of groups with a signal among 1,000 rollouts."""
        return 1000.0 / self.rollouts_per_problem * self.live


@dataclass(frozen=True)
class DeadGroups(Encoded, Shown):
    """The share of dead groups of a problem set, for each n."""

    TEXT = "text.studies.dead_groups"

    DERIVED = ("format",)
    format: ClassVar[str] = "isolaw.dead-groups/1"

    problems: int
    samples: tuple[int, int]  #: the fewest and the most samples of a problem
    mean: float  #: mean share of correct samples (avg@k)
    sizes: tuple[GroupSize, ...]


@checked
def dead_groups(
    correct: ArrayLike, samples: ArrayLike, sizes: Sequence[int] = SIZES, seed: int = 0
) -> DeadGroups:
    """Return the share of dead groups of a problem set, for groups of the given sizes.

    ``correct`` contains the number of right answers to each problem, and ``samples`` the number of samples,
    or one number for all problems. ``seed`` is the seed of the bootstrap.

    Raises
    ------
    InputError
        there are no problems, a count is impossible, or a group size is below 2.

    >>> result = dead_groups([0, 2, 4, 4], 4, sizes=[2, 4])
    >>> [round(each.dead.value, 3) for each in result.sizes]
    [0.833, 0.75]
    """
    given = numbers("correct", correct), numbers("samples", samples)
    if not given[0].size or given[0].ndim != 1 or given[1].shape not in ((), given[0].shape):
        shapes = f"{given[0].shape} and {given[1].shape}"
        raise InputError(f"correct and samples: found shapes {shapes}; expected one number for each problem")
    if any(np.any((values != np.round(values)) | (abs(values) > _MOST_SAMPLES)) for values in given):
        raise InputError("dead groups: expected a whole number of correct answers for each problem")
    c, k = np.broadcast_arrays(*(values.astype(np.int64) for values in given))
    wrong = (k < 1) | (c < 0) | (c > k)
    if wrong.any():
        at = int(wrong.argmax())
        raise InputError(
            f"dead groups: problem {at}: found {c[at]} correct of {k[at]}; expected 0 to samples"
        )
    if min(sizes, default=0) < 2:
        raise InputError(f"dead groups: found groups of {min(sizes, default='no size')}; expected 2 or more")
    seen, where = np.unique(np.stack([c, k], axis=1), axis=0, return_inverse=True)
    many = np.bincount(where.ravel())
    rng = np.random.default_rng(seed)
    drawn = rng.multinomial(c.size, many / c.size, size=_DRAWS).astype(np.float64)
    least, most = int(k.min()), int(k.max())
    theta = _fitted(seen, many.astype(np.float64)) if max(sizes) > least else _START
    out = []
    for n in sizes:
        plugged = float(many @ ((seen[:, 0] / seen[:, 1]) ** n + (1 - seen[:, 0] / seen[:, 1]) ** n) / c.size)
        if n <= least:
            right, bad = _unbiased(seen, n)
            shares = many @ np.stack([right, bad], axis=1) / c.size
            dead = from_draws(float(shares.sum()), drawn @ (right + bad) / c.size)
            if dead.interval is None:  # all problems have the same share: use the rule of three
                most_wrong = 3.0 / c.size
                dead = Quantity(
                    dead.value, (max(shares.sum() - most_wrong, 0), min(shares.sum() + most_wrong, 1))
                )
            out.append(GroupSize(n, dead, float(shares[1]), float(shares[0]), plugged, "unbiased"))
        else:
            good, bad_n = _of_model(theta, n)
            low, high = _possible(seen, many, least, n)
            dead = Quantity(min(max(good + bad_n, low), high), (low, high))
            out.append(GroupSize(n, dead, bad_n, good, plugged, "model"))
    return DeadGroups(int(c.size), (least, most), float(np.mean(c / k)), tuple(out))


def read_counts(path: str | Path) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the numbers of correct answers and of samples of each problem, from a table.

    The table has the columns ``correct`` and ``samples``. It is a ``counts.jsonl`` of `isolaw problems`, or
    another .jsonl, .csv or .parquet file with a row for each problem. If it has a column ``id``, as
    ``counts.jsonl`` has, only the first row of each ``id`` counts, since the result of the first samples
    determines whether there are more. If it has a column ``problem_id``, the rows of each problem are summed.
    If it has a column ``step``, only the first step (the base model) counts.

    Raises
    ------
    DataError
        the file is not such a table.
    """
    import pandas as pd

    path = Path(path)
    if path.suffix not in _FORMATS:
        raise DataError(f"{path}: expected a table of counts: {', '.join(_FORMATS)}")
    try:
        if path.suffix == ".parquet":
            table = frame_of(read_parquet(path), path)
        elif path.suffix == ".csv":
            table = pd.read_csv(io.BytesIO(read_bytes(path)))
        else:
            names = {"id": str, "problem_id": str}
            table = pd.read_json(io.BytesIO(read_bytes(path)), lines=True, dtype=names)
    except ValueError as error:
        raise DataError(f"{path}: not a table: {error}") from None
    if missing := [name for name in ("correct", "samples") if name not in table.columns]:
        raise DataError(
            f"{path}: no column {', '.join(missing)}; found {', '.join(map(str, table.columns)) or 'none'}"
        )
    if "step" in table.columns:
        table = table[table["step"] == table["step"].min()]
    numbers = table[["correct", "samples"]].apply(pd.to_numeric, errors="coerce")
    bad = numbers.isna().any(axis=1) | (numbers["correct"] < 0) | (numbers["correct"] > numbers["samples"])
    bad |= (numbers["samples"] < 1) | (numbers != numbers.round()).any(axis=1)
    if bad.any():
        row = table.loc[bad.idxmax()]
        raise DataError(
            f"{path}: {int(bad.sum())} of {len(table)} rows hold impossible counts, e.g. correct = "
            f"{row['correct']} of samples = {row['samples']} (row {table.index.get_loc(bad.idxmax()) + 1})"
        )
    table = table.assign(**numbers.astype(np.int64))
    if "problem_id" in table.columns:
        table = table.groupby("problem_id")[["correct", "samples"]].sum()
    elif "id" in table.columns:
        table = table.drop_duplicates("id")
    return table["correct"].to_numpy(), table["samples"].to_numpy()


def _unbiased(seen: NDArray[np.int64], n: int) -> tuple[Floats, Floats]:
    """Return the unbiased estimates of p^n and (1 − p)^n at each distinct (c, k)."""
    right, wrong = (
        np.array(
            [
                float(per_problem(f"worst@{n}", [c], int(k))[0])
                for c, k in zip(counts, seen[:, 1], strict=True)
            ]
        )
        for counts in (seen[:, 0], seen[:, 1] - seen[:, 0])
    )
    return right, wrong


# Start of the fit: log a and log b of the beta distribution, and the logit of the mass at p = 0
_START = np.array([0.0, 0.0, -3.0])
_WIDE = np.array([3.0, 3.0, 4.0])  # standard deviations of a weak prior, which keeps parameters finite


def _fitted(seen: NDArray[np.int64], weight: Floats) -> Floats:
    """Return the most likely parameters of the beta-binomial distribution with a mass at p = 0.

    ``weight`` contains the number of problems with each (c, k).
    """
    from scipy.optimize import minimize

    c, k = seen.T.astype(np.float64)
    choose = gammaln(k + 1) - gammaln(c + 1) - gammaln(k - c + 1)

    def loss(theta: Floats) -> float:
        a, b = np.exp(np.clip(theta[:2], -8, 8))
        zero = expit(np.clip(theta[2], -30, 30))
        log = np.log1p(-zero) + choose + betaln(c + a, k - c + b) - betaln(a, b)
        log = np.where(c == 0, np.logaddexp(log, math.log(zero + 1e-300)), log)
        return float(-(weight @ log) + 0.5 * np.sum(((theta - _START) / _WIDE) ** 2))

    optimum = minimize(loss, _START, method="Nelder-Mead", options={"xatol": 1e-3, "fatol": 1e-4})
    return np.asarray(optimum.x)


def _of_model(theta: Floats, n: int) -> tuple[float, float]:
    """Return E[p^n] and E[(1 − p)^n] of the fitted distribution."""
    a, b = np.exp(np.clip(theta[:2], -8, 8))
    zero = float(expit(theta[2]))
    right, wrong = (math.exp(betaln(x + n, y) - betaln(a, b)) for x, y in ((a, b), (b, a)))
    return (1 - zero) * right, zero + (1 - zero) * wrong


def _possible(seen: NDArray[np.int64], many: NDArray[np.int64], k: int, n: int) -> tuple[float, float]:
    """Return the range of the share over all distributions of p that agree with the counts of k samples.

    A problem with more than k samples contributes its hypergeometric frequencies for k samples.
    """
    from scipy.optimize import linprog
    from scipy.stats import binom, hypergeom, norm

    counts, size = np.arange(k + 1), many.sum()
    seen_k = hypergeom.pmf(counts, seen[:, 1:], seen[:, :1], k)
    frequency = many @ seen_k / size
    spread = np.sqrt(np.maximum(many @ seen_k**2 / size - frequency**2, 0) / size) + 1 / size
    chance = binom.pmf(counts[:, None], k, _P)
    share = _P**n + (1 - _P) ** n
    ends = []
    for sign in (1.0, -1.0):
        wide = norm.ppf(1 - 0.025 / (k + 1))
        for _ in range(6):  # widen the intervals if, by chance, no distribution agrees
            within = np.concatenate([frequency + wide * spread, wide * spread - frequency])
            solution = linprog(
                sign * share, np.vstack([chance, -chance]), within, np.ones((1, _P.size)), [1.0], (0, None)
            )
            if solution.success:
                break
            wide *= 1.5
        ends.append(sign * float(solution.fun) if solution.success else (0.0 if sign > 0 else 1.0))
    return ends[0] if ends[0] > 1e-6 else 0.0, ends[1]  # smaller values are the solver's error
