"""Laws of B_p at one n: the hold ``"n"``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import isolaw
from isolaw.errors import Refused
from isolaw.fits.law import Law
from isolaw.runs import Runs

pytestmark = pytest.mark.numbers

BATCHES = (8, 16, 32, 64, 128, 256)


def best_grows(b: int, _n: int, compute: Any) -> Any:
    """The best B_p is 16 at C = 1e4 and doubles with every doubling and a half of C."""
    away = np.log2(b / 16) - np.log2(np.maximum(compute, 1.0) / 1e4) / 1.5
    return 0.7 - 0.4 * np.exp(-compute / 2e5) - 0.004 * away**2


@pytest.fixture(scope="module")
def runs(synthetic: Callable[..., Runs]) -> Runs:
    return synthetic(
        [(b, 16) for b in BATCHES], best_grows, noise=0.002, compute=4e5, start=2_000, zero=False
    )


@pytest.fixture(scope="module")
def law(runs: Runs) -> Law:
    return isolaw.fit(runs, hold="n", draws=60)


def test_b_p_follows_the_truth_and_holds_n(law: Law, tmp_path: Path) -> None:
    document = law.document
    assert (document.axis, document.fixed) == ("problems_per_batch", {"rollouts_per_problem": 16})
    assert law.levels.tolist() == list(BATCHES)
    for point in document.frontier:
        if not point.censored and 1e4 < point.x < 2e5:
            truth = 16 * 2 ** (np.log2(point.x / 1e4) / 1.5)
            assert abs(np.log2(point.n_star.value / truth)) < 0.7
    assert document.to_dict()["axis"] == "problems_per_batch"
    law.save(tmp_path / "law.json")
    loaded = isolaw.Law.load(tmp_path / "law.json")
    found = loaded.predict(100_000)
    assert found.n_star.value == 16
    assert found.b_star.value == pytest.approx(16 * 2 ** (np.log2(10) / 1.5), rel=0.5)
    assert found.allocation is not None
    assert found.allocation.rollouts_per_problem == 16


def test_sentences_are_of_b_p(law: Law) -> None:
    from isolaw.report.text.law import law_summary, notes

    lines = law_summary(law.document)
    assert "B_p = 8, 16, 32, 64, 128, 256 and n = 16" in lines[1]
    assert [line for line in (*lines, *notes(law.document.flags)) if "n*" in line] == []


def test_other_settings_offer_it(runs: Runs, isolaw: Any, tmp_path: Path) -> None:
    runs.to_parquet(tmp_path / "runs.parquet")
    code, _, error = isolaw("fit", tmp_path / "runs.parquet")
    assert code == 1
    assert "--hold n" in error
    two = runs.select(runs.table().query("problems_per_batch < 32").index)
    with pytest.raises(Refused, match=r"B_p\*\(C\) needs at least three values of B_p at the same n"):
        __import__("isolaw").fit(two, hold="n", draws=0)


def test_rollouts_to_a_target_at_the_command_line(runs: Runs, isolaw: Any, tmp_path: Path) -> None:
    path = tmp_path / "runs.parquet"
    runs.to_parquet(path)
    code, printed, _ = isolaw("compare", path, "--target", "0.5,0.55")
    assert code == 0
    assert printed.splitlines()[2].split()[:3] == ["n", "to", "runs"]
