"""Compute metrics from counts of correct answers: avg@k, best@k, worst@k, and the pass@1 landscape.

For one problem with K samples and c correct samples, these are unbiased estimates over subsets of k ≤ K
samples (Chen et al. 2021, arXiv 2107.03374, for best@k = pass@k; worst@k is analogous)::

    avg@k   = c / K
    best@k  = 1 − C(K − c, k) / C(K, k)      at least one of k correct
    worst@k = C(c, k) / C(K, k)              all k correct

where C(·, ·) is the binomial coefficient. The metric of a problem set is the mean over its problems.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from isolaw.errors import InputError, shown

STEP_SECONDS = "step_seconds"  # metric on train: the seconds of a step, according to a log
_METRIC_NAME = re.compile(r"(avg|best|worst)@([1-9]\d*)")
_SHARE_NAME = re.compile(r"(?:avg|best|worst|pass|maj)@[1-9]\d*")
_LOSSES = {"error", "errors", "err", "loss", "perplexity", "ppl", "nll", "wer", "cer", "mistakes"}
_MEAN_NAME = re.compile(r"avg@[1-9]\d*|pass@1")
_REWARDS = {"reward", "rewards", "rew", "return", "returns", "score", "scores"}
_SOLVED = {"pass", "success", "solve", "solved", "correct", "win"}  # of which a rate or a mean is an accuracy
_REWARDS |= _SOLVED - {"pass"}
_SPREADS = {"std", "min", "max", "var", "stddev"}


class _Landscape(NamedTuple):
    """The distribution of pass@1 over problems: the share at zero, and the Gini coefficient."""

    zero_fraction: float
    gini: float


def parse(metric: str) -> tuple[str, int] | None:
    """Return the kind and the k of a metric, such as ``("best", 4)`` for ``"best@4"``.

    Returns None for any other name.
    """
    match = _METRIC_NAME.fullmatch(metric)
    return (match[1], int(match[2])) if match else None


def is_accuracy(metric: str) -> bool:
    """Return whether a name denotes a share of correct answers, whose values are in [0, 1].

    >>> [is_accuracy(name) for name in ("avg@8", "pass_rate", "holdout_acc", "exact_match,strict", "reward")]
    [True, True, True, True, False]
    """
    return bool(_SHARE_NAME.fullmatch(metric)) or _is_plain_accuracy(metric)


def is_mean_accuracy(metric: str) -> bool:
    """Return whether a name denotes the mean share of correct answers, rather than the best of several.

    >>> [is_mean_accuracy(name) for name in ("avg@8", "pass@1", "accuracy", "best@8", "pass@8")]
    [True, True, True, False, False]
    """
    return bool(_MEAN_NAME.fullmatch(metric)) or _is_plain_accuracy(metric)


def is_reward(metric: str) -> bool:
    """Return whether a name denotes an accuracy, a reward, a score or a rate of solved problems.

    >>> [is_reward(name) for name in ("acc", "mean_reward", "success_rate", "reward_std", "kl")]
    [True, True, True, False, False]
    """
    words = set(_words(metric))
    return is_accuracy(metric) or (not words.isdisjoint(_REWARDS) and not words & (_SPREADS | _LOSSES))


def falls(metric: str) -> bool:
    """Return whether a name denotes a metric that falls as training improves, such as a loss.

    >>> [falls(name) for name in ("error_rate", "val/loss", "PPL", "avg@4", "lossless")]
    [True, True, True, False, False]
    """
    return not _LOSSES.isdisjoint(_words(metric))


def _is_plain_accuracy(metric: str) -> bool:
    words = set(_words(metric))
    is_rate = bool(words & _SOLVED) and bool(words & {"rate", "mean", "pct", "percent", "fraction", "frac"})
    return is_rate or {"exact", "match"} <= words or not words.isdisjoint({"acc", "accuracy", "em"})


def _words(metric: str) -> list[str]:
    return re.split(r"[^a-z]+", metric.lower())


def _all_correct(correct: NDArray[np.int64], samples: int, k: int) -> NDArray[np.float64]:
    """Return C(c, k) / C(K, k), computed as a product of k ratios without overflow or loss of digits."""
    index = np.arange(k)
    ratios = np.clip(correct[..., None] - index, 0, None) / (samples - index)
    return np.asarray(np.prod(ratios, axis=-1))


def _kind_and_k(metric: str) -> tuple[str, int]:
    parsed = parse(metric)
    if parsed is None:
        raise InputError(f"metric: found {shown(metric)}; expected avg@k, best@k or worst@k")
    return parsed


def per_problem(metric: str, correct: ArrayLike, samples: int) -> NDArray[np.float64]:
    """Return the metric (``avg@k``, ``best@k`` or ``worst@k``) of each problem.

    ``correct``, an array of any shape, contains the number of correct samples of each problem, as integers
    from 0 to ``samples``. ``samples`` is K ≥ k, the number of samples per problem.

    >>> per_problem("best@2", [0, 1, 4], samples=4)
    array([0. , 0.5, 1. ])
    """
    statistic, k = _kind_and_k(metric)
    counts = np.asarray(correct, dtype=np.int64)
    if k > samples:
        raise InputError(f"metric {metric!r} needs at least {k} samples per problem; found {samples}")
    if counts.size and (counts.min() < 0 or counts.max() > samples):
        raise InputError(f"correct counts must be within 0..{samples}")
    if statistic == "avg":
        return np.asarray(counts / samples)
    if statistic == "best":
        return np.asarray(1.0 - _all_correct(samples - counts, samples, k))
    return _all_correct(counts, samples, k)


def evaluate(metric: str, correct: ArrayLike, samples: int) -> float:
    """Return the metric of a problem set, which is the mean of `per_problem` over the problems.

    >>> evaluate("avg@4", [0, 2, 4], samples=4)
    0.5
    """
    counts = np.asarray(correct, dtype=np.int64).ravel()
    if counts.size <= samples:
        return float(np.mean(per_problem(metric, counts, samples)))
    # The metric depends only on the numbers of problems with 0, 1, … K correct, so evaluate each count once.
    if counts.min() < 0 or counts.max() > samples:
        raise InputError(f"correct counts must be within 0..{samples}")
    return float(np.bincount(counts, minlength=samples + 1) @ _value_by_count(metric, samples) / counts.size)


@lru_cache(maxsize=64)
def _value_by_count(metric: str, samples: int) -> NDArray[np.float64]:
    return per_problem(metric, np.arange(samples + 1), samples)


def expected(metric: str, p: ArrayLike) -> float:
    """Return the expectation of a metric over k samples.

    ``p`` (problems,) contains the success probabilities. Then avg@k = mean p, best@k = mean 1 − (1 − p)^k,
    and worst@k = mean p^k.

    >>> expected("best@2", [0.0, 0.5])
    0.375
    """
    statistic, k = _kind_and_k(metric)
    success = np.asarray(p, dtype=np.float64)
    if statistic == "best":
        success = 1.0 - (1.0 - success) ** k
    elif statistic == "worst":
        success = success**k
    return float(np.mean(success))


def landscape(pass_at_1: ArrayLike, zero_below: float = 0.02) -> _Landscape:
    """Return the pass@1 landscape of a problem set.

    ``pass_at_1`` (problems,) contains the success probability of each problem, or its estimate. A problem
    below ``zero_below`` counts as zero-pass (the paper's p < 0.02).

    >>> shape = landscape([0.0, 0.0, 1.0, 1.0])
    >>> shape.zero_fraction, shape.gini
    (0.5, 0.5)
    """
    p = np.sort(np.asarray(pass_at_1, dtype=np.float64))
    total = p.sum()
    gini = float(np.arange(1 - p.size, p.size, 2) @ p / (p.size * total)) if total > 0 else 0.0
    return _Landscape(float(np.searchsorted(p, zero_below) / p.size), gini)
