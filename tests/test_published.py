"""Published numbers: points, drawn curves and a real sweep, read from examples/data."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import curve_fit

import isolaw as library
from isolaw.fits.laws.equations import fit_logistic, logistic

Call = Callable[..., tuple[int, str, str]]
DATA = Path(__file__).parents[1] / "examples" / "data"


# The IsoCompute Playbook's (C, n*), arXiv 2603.12151: least squares, not the printed parameters.

POINTS = {
    "nstar_joint_easy.csv": (
        "compute_rollouts_snapped",
        50,
        {"L": (6.02, 0.22), "k": (7.02, 0.90), "x0": (6.10, 0.02), "b": (3.00, 0.13)},
        11.4,
    ),
    "nstar_fixedBp_easy.csv": (
        "compute_rollouts",
        36,
        {"L": (6.15, 0.60), "k": (4.51, 0.96), "x0": (5.90, 0.05), "b": (2.80, 0.39)},
        14.3,
    ),
}


@pytest.mark.parametrize("name", POINTS)
def test_least_squares_on_the_published_points(name: str) -> None:
    column, size, expected, sse = POINTS[name]
    table = pd.read_csv(DATA / name)
    x, y = np.log10(table[column].to_numpy()), np.log2(table["n_star"].to_numpy())
    assert x.size == size
    law = fit_logistic(x, y[None])
    found = [float(getattr(law, key)[0]) for key in ("b", "L", "k", "x0")]
    assert found == pytest.approx([expected[key][0] for key in ("b", "L", "k", "x0")], rel=0.01)
    best, covariance = curve_fit(logistic, x, y, found)
    assert found == pytest.approx(best, rel=1e-4)
    assert np.sqrt(np.diag(covariance)) == pytest.approx(
        [expected[key][1] for key in ("b", "L", "k", "x0")], abs=0.005
    )
    assert float(np.sum((y - law(x)[0]) ** 2)) == pytest.approx(sse, abs=0.05)


# The playbook's fitted curves as drawn, B_p = 32.

CROSSINGS = [(32, 128), (128, 256), (256, 512)]


@pytest.fixture(scope="module")
def drawn() -> pd.DataFrame:
    table = pd.read_csv(DATA / "frontier_crossovers_easy.csv")
    return table[table["figure"] == "sec3_q1_fixBprob_frontier"].set_index(["n_from", "n_to"])


@pytest.mark.parametrize(("method", "factor"), [("paper", 1.03), ("surface", 1.4)])
def test_drawn_curves_cross_where_they_are_drawn_to(drawn: pd.DataFrame, method: str, factor: float) -> None:
    """The surface knows nothing of the shape of curves, and has one of each n: a third is near."""
    columns = {"rollouts_per_problem": "n", "problems_per_batch": "B_p", "compute": "compute_rollouts"}
    document = library.fit(
        DATA / "frontier_curves_fixedBp_main_easy.csv", "validation_reward",
        columns=columns, records="off", draws=20, method=method,
    ).to_dict()  # fmt: skip
    found = {(c["from"], c["to"]): c["x"] for c in document["crossovers"]}
    for pair in CROSSINGS:
        row = drawn.loc[pair]
        published = row["crossover_compute_rollouts"]
        allowed = max(2 * row["halfwidth_rollouts"], (factor - 1) * published)
        assert found[pair] == pytest.approx(published, abs=allowed)


# A real sweep of n: Tan et al., arXiv 2509.25300, Qwen2.5-7B base, B_p = 512, one seed.

TAN = (
    DATA / "tan_rollout_n_base.csv",
    *("--metric", "holdout_acc_raw", "--column", "rollouts_per_problem=rollout_n"),
    *("--set", "problems_per_batch=512", "--column", "compute=prompts_seen*rollout_n"),
    *("--draws", "100", "--method", "paper"),
)


@pytest.fixture(scope="module")
def measured() -> dict[int, tuple[float, float]]:
    """The range of C over which each n was measured, from the file itself."""
    table = pd.read_csv(DATA / "tan_rollout_n_base.csv")
    table["compute"] = table["prompts_seen"] * table["rollout_n"]
    return {int(n): (computes.min(), computes.max()) for n, computes in table.groupby("rollout_n")["compute"]}


def tan(records: Any) -> dict[str, Any]:
    """The law of the real sweep, fitted to record points or to all checkpoints."""
    return library.fit(
        TAN[0], "holdout_acc_raw", columns={"n": "rollout_n", "C": "prompts_seen*rollout_n"},
        set={"B_p": 512}, draws=100, method="paper", records=records,
    ).to_dict()  # fmt: skip


@pytest.mark.parametrize("records", ["auto", "off"])
def test_a_real_sweep(measured: dict[int, tuple[float, float]], records: str) -> None:
    document = tan(records)
    assert document["fixed"] == {"problems_per_batch": 512}
    assert [g["measured"] for g in document["grid"]] == [list(measured[n]) for n in (4, 8, 16, 32)]
    assert {(c["from"], c["to"]) for c in document["crossovers"]} == set(
        itertools.combinations((4, 8, 16, 32), 2)
    )
    supported = [c for c in document["crossovers"] if c["supported"]]
    assert supported
    for c in supported:
        low, high = measured[c["to"]][0], measured[c["from"]][1]
        assert low <= c["x"] <= high
        assert c["interval"] is not None
        for end in c["interval"]:
            assert end is None or low <= end <= high
    beyond = [p for p in document["frontier"] if p["x"] > 8.5e5]
    assert len(beyond) >= 5
    assert all(p["censored"] for p in beyond)
    assert all(p["n_star"]["status"] != "ok" for p in beyond)
    codes = [flag["code"] for flag in document["warnings"]]
    assert codes[:2] == ["one_seed", "grid_edge"]
    assert document["params"]["saturation"] == {"value": None, "interval": None, "status": "refused"}
    assert document["bootstrap"]["unit"] == "block"


def test_all_checkpoints_of_the_real_sweep_cross_where_published() -> None:
    """Saturating exponentials on all checkpoints cross near 1.6e5 and 2.6e5; 16 → 32 has no support."""
    found = {(c["from"], c["to"]): c for c in tan("off")["crossovers"]}
    assert found[4, 8]["supported"]
    assert found[8, 16]["supported"]
    assert found[4, 8]["x"] == pytest.approx(1.6e5, rel=0.1)
    assert found[8, 16]["x"] == pytest.approx(2.6e5, rel=0.1)
    assert not found[16, 32]["supported"]
    assert found[16, 32]["status"] != "ok"
    assert found[16, 32]["x"] == pytest.approx(1e6, rel=0.1)


def test_record_points_raise_the_ceilings_of_the_real_sweep() -> None:
    """Records are selected upward: about 0.03 on this sweep."""
    at_end = []
    for records in ("auto", "off"):
        document = tan(records)
        at_end.append(np.array([p["reward"]["value"] for p in document["frontier"]]))
    assert 0.015 < np.mean(at_end[0] - at_end[1]) < 0.045


@pytest.mark.parametrize("method", ["surface", "paper"])
def test_a_prediction_from_the_real_sweep_is_guarded(isolaw: Call, tmp_path: Path, method: str) -> None:
    """Three n ran to 4.3e5: from three times that the paper's n* is a bound; beyond ten nothing is said."""
    law = tmp_path / "qwen.json"
    assert isolaw("fit", *TAN, "--method", method, "--draws", 40, "--out", law)[0] == 0
    for budget, flags in {
        "6e5": ["one_seed"],
        "1.7e6": ["censored", "one_seed"],
        "1e7": ["extrapolation", "far", "one_seed"],
    }.items():
        code, stdout, _ = isolaw("predict", law, "--compute", budget, "--json")
        assert code == (1 if budget == "1e7" else 0)  # refused
        data = json.loads(stdout)
        assert set(flags) <= {flag["code"] for flag in data["flags"]}
        if method == "paper" or budget == "1e7":
            assert (data["n_star"]["status"] == "ok") == (budget == "6e5")
        assert set(data["rules"]) == (set() if budget == "1e7" else {"best_measured", "isoflop"})
        assert (data["rollouts_per_problem"] is None) == (budget == "1e7")


def test_the_sources_are_named() -> None:
    text = (DATA / "README.md").read_text()
    for path in DATA.glob("*.csv"):
        assert path.name in text
    for source in ("2603.12151", "2509.25300", "Apache-2.0"):
        assert source in text
