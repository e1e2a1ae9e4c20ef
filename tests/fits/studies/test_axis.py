"""The recipes along an axis: each against one of them, by the name that a table gives it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from isolaw.config import Recipe, RunSpec
from isolaw.errors import DataError, InputError
from isolaw.fits.studies.axis import compare_by
from isolaw.fits.studies.recipes import compare, sign_of_difference
from isolaw.runs import Runs
from isolaw.store.tables import attributes_of

pytestmark = pytest.mark.numbers

Make = Callable[..., Runs]


@pytest.fixture(scope="module")
def runs(synthetic: Make) -> Runs:
    """A sweep of three recipes: without ``cispo`` it ends lower, without the other part nothing changes."""
    parts = []
    for k, (without, ceiling) in enumerate({"nothing": 0.65, "cispo": 0.6, "float32_head": 0.65}.items()):

        def reward(_b: int, _n: int, compute: Any, a: float = ceiling) -> Any:
            return 0.35 + (a - 0.35) / (1 + (1e5 / np.maximum(compute, 1e-9)) ** 1.5)

        own = synthetic([(32, 16)], reward, noise=0.004, rng=k, attributes={"without": without, "k": 8.0})
        table = own.to_pandas()
        renamed = table.assign(run_id=without + table["run_id"])
        parts.append(Runs(renamed, {without + run: facts for run, facts in own.attributes.items()}))
    return Runs.concat(parts)


def test_each_value_is_compared_with_the_base(runs: Runs) -> None:
    found = compare_by(runs, "without", draws=60)
    assert (found.base, list(found.comparisons)) == ("nothing", ["cispo", "float32_head"])
    ids = runs.table()["without"]
    sides = [runs.select(ids.index[ids == name]) for name in ("nothing", "cispo")]
    alone = compare(*sides, names=("nothing", "cispo"), draws=60)
    assert found.comparisons["cispo"].to_dict() == alone.to_dict()
    rows = {name: comparison.mean.rows["A"] for name, comparison in found.comparisons.items()}
    assert rows["cispo"].difference.interval[1] < 0 < rows["float32_head"].difference.interval[1]
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["by"] == "without"


def test_any_value_may_be_the_base(runs: Runs) -> None:
    found = compare_by(runs, "without", "cispo", draws=0)
    assert list(found.comparisons) == ["float32_head", "nothing"]
    assert found.comparisons["nothing"].names == ("cispo", "nothing")


def test_refusals(runs: Runs) -> None:
    with pytest.raises(DataError, match="no column 'witout'; did you mean 'without'"):
        compare_by(runs, "witout")
    with pytest.raises(InputError, match=r"base: found gspo; .* without: cispo, float32_head, nothing"):
        compare_by(runs, "without", "gspo")
    with pytest.raises(InputError, match="one of two or more values of k: 8"):
        compare_by(runs, "k", 8)


def test_lists_have_readable_names() -> None:
    recipe = Recipe(interrupt_at=(10, 12))
    spec = RunSpec(backend="real", problems_per_batch=8, rollouts_per_problem=4, compute=64, recipe=recipe)
    assert attributes_of(spec)["interrupt_at"] == "10-12"


@pytest.mark.slow
def test_no_part_of_the_recorded_leave_one_out_has_an_effect_beyond_noise() -> None:
    root = Path(__file__).parents[3]
    found = compare_by(str(root / "examples/data/real-scale-rl.parquet"), "without", compute=65_536)
    rows = [c.mean.rows["reward"] for c in found.comparisons.values()]
    assert all(sign_of_difference(row.difference) == 0 for row in rows)
    assert rows[0].first.value == pytest.approx(0.580, abs=5e-4)
