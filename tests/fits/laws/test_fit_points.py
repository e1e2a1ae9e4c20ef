"""The law of ready-made points: least squares, with errors that are conditional and say so."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy.optimize import curve_fit

import isolaw
from isolaw.errors import DataError, InputError, Refused
from isolaw.fits.document.schema import Axis, PointsDocument
from isolaw.fits.flags import Code, having
from isolaw.fits.laws.equations import logistic
from isolaw.fits.laws.fit_points import LABEL

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")

C = np.geomspace(1e5, 1e7, 40)
STEPS = np.linspace(20, 2000, 40)
LAW = {"b": 3.0, "L": 6.0, "k": 7.0, "x0": 6.1}
STEPWISE = {"b": 3.0, "L": 4.0, "k": 0.006, "x0": 700.0}


def values(document: PointsDocument) -> dict[str, float]:
    return {name: q.value for name, q in document.params.items()}


def noisy(seed: int, sigma: float = 0.3) -> np.ndarray:
    noise = sigma * np.random.default_rng(seed).standard_normal(C.size)
    return 2 ** (logistic(np.log10(C), **LAW) + noise)


def test_exact_points_give_the_law() -> None:
    document, _ = isolaw.fit_points(C, 2 ** logistic(np.log10(C), **LAW))
    assert values(document) == pytest.approx(LAW, rel=1e-6)
    assert document.x == Axis("compute", "rollouts", log10=True, range=(1e5, 1e7))


def test_the_form_linear_in_steps() -> None:
    document, _ = isolaw.fit_points(STEPS, 2 ** logistic(STEPS, **STEPWISE), "steps")
    assert values(document) == pytest.approx(STEPWISE, rel=1e-6)
    assert document.x == Axis("steps", "steps", log10=False, range=(20.0, 2000.0))


@pytest.mark.parametrize("seed", range(12))
def test_estimates_and_errors_are_those_of_curve_fit(seed: int) -> None:
    n_star = noisy(seed)
    document, result = isolaw.fit_points(C, n_star)
    best, covariance = curve_fit(logistic, np.log10(C), np.log2(n_star), [3, 6, 7, 6.1])
    sse = float(np.sum((np.log2(n_star) - logistic(np.log10(C), *best)) ** 2))
    assert document.sse <= sse * (1 + 1e-6)
    assert list(values(document).values()) == pytest.approx(best, rel=1e-3)
    errors = [getattr(document.standard_errors, name) for name in LAW]
    assert errors == pytest.approx(np.sqrt(np.diag(covariance)), rel=0.02)
    assert all(q.status == "ok" for q in document.params.values())
    assert result.ci_out is None  # intervals are made only when asked for
    assert result.params["k"].value == document.params["k"].value


def test_errors_are_labelled_and_are_not_intervals() -> None:
    document, _ = isolaw.fit_points(C, noisy(0))
    assert document.standard_errors.label == LABEL == "conditional on independent points"
    assert all(q.interval is None for q in document.params.values())
    (flag,) = document.flags
    assert flag.code == Code.CONDITIONAL_ERRORS
    assert LABEL in flag.text
    data = json.loads(json.dumps(document.to_dict(), allow_nan=False))
    assert (data["format"], data["method"]) == ("isolaw.law/1", "points")
    assert data["standard_errors"]["label"] == LABEL
    assert data["warnings"] == [{"code": "conditional_errors", "text": flag.text}]


def test_order_does_not_matter() -> None:
    n_star = noisy(1)
    order = np.random.default_rng(0).permutation(C.size)
    straight, shuffled = isolaw.fit_points(C, n_star)[0], isolaw.fit_points(C[order], n_star[order])[0]
    assert values(shuffled) == pytest.approx(values(straight), rel=1e-5)


@pytest.mark.parametrize(
    "n_star",
    [
        2.0 ** np.linspace(9, 3, 12),
        2.0 ** np.linspace(3, 9, 12),
        np.where(np.arange(12) < 6, 8, 64),
        np.where(np.arange(12) < 11, 8, 64),
    ],
    ids=["falling", "straight", "step", "last one higher"],
)
def test_points_that_determine_no_law(n_star: np.ndarray) -> None:
    """No error bars, and no claim, where a parameter could be anything."""
    document, _ = isolaw.fit_points(np.geomspace(1e5, 1e7, 12), n_star)
    json.dumps(document.to_dict(), allow_nan=False)
    assert document.params["k"].status == "not_identified"
    assert document.standard_errors.k is None
    assert having(document.flags, Code.ON_BOUND)


@pytest.mark.parametrize("bad", [0.0, -8.0, np.nan, np.inf])
def test_values_that_have_no_logarithm(bad: float) -> None:
    n_star, compute = noisy(0), C.copy()
    n_star[4] = bad
    with pytest.raises(DataError, match=r"n_star: point 5: found .*; expected a positive"):
        isolaw.fit_points(C, n_star)
    compute[2] = bad
    with pytest.raises(DataError, match=r"compute: point 3: found .*; expected a positive"):
        isolaw.fit_points(compute, noisy(0))


def test_too_few_points() -> None:
    with pytest.raises(Refused, match="found 4 points at 4 different compute"):
        isolaw.fit_points(C[:4], noisy(0)[:4])


def test_too_few_different_budgets() -> None:
    with pytest.raises(Refused, match="found 12 points at 3 different compute"):
        isolaw.fit_points(np.repeat([1e5, 1e6, 1e7], 4), noisy(0)[:12])


def test_one_n_needs_no_law() -> None:
    with pytest.raises(Refused, match="n\\* = 8"):
        isolaw.fit_points(C, np.full(C.size, 8))


def test_lengths_differ() -> None:
    with pytest.raises(InputError, match="40"):
        isolaw.fit_points(C, [8, 16, 32, 64, 128, 256])


def test_unknown_x() -> None:
    with pytest.raises(InputError, match="found 'tokens'; expected compute or steps"):
        isolaw.fit_points(C, noisy(0), "tokens")  # type: ignore[arg-type]
