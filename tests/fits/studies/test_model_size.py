"""The model-size law: published numbers, closed forms, an independent fit, draws, statuses, refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import least_squares

from isolaw.errors import DataError, Refused
from isolaw.fits.flags import Code
from isolaw.fits.studies.model_size import SizeCurves, SizeLaw, _shifts, fit_sizes

DATA = Path(__file__).parents[3] / "examples" / "data"
NAMES = {
    "model_size_B": "model_size", "compute_C_flops": "compute", "prompts_D": "data", "test_loss": "loss",
    "n_runs": "runs",
}  # fmt: skip
# Tan et al., base models: K_max and N0 (in billions) as printed.
PRINTED = {
    ("compute", "intra"): ("0.135", "13.1"),
    ("compute", "inter"): ("0.152", "17.4"),
    ("data", "intra"): ("0.135", "11.5"),
    ("data", "inter"): ("0.163", "17.0"),
}
SIZES = (0.5, 1.5, 3.0, 7.0, 14.0, 32.0)


@pytest.fixture(scope="module")
def means() -> pd.DataFrame:
    return pd.read_csv(DATA / "tan_qwen_holdout_mean_base.csv").rename(columns=NAMES)


@pytest.fixture(scope="module")
def single() -> pd.DataFrame:
    return pd.read_csv(DATA / "tan_qwen_holdout_per_run_base.csv").rename(columns=NAMES)


def synthetic(
    K_max: float = 0.15,
    N0: float = 12.0,
    sizes: tuple[float, ...] = SIZES,
    *,
    runs: int = 1,
    problems: int | None = None,
    steps: Any = tuple(range(1, 31)),
    pivot: float = 1.6,
    seed: int = 0,
) -> pd.DataFrame:
    """Curves of the law with E(N) = K(N) · pivot; answers to ``problems`` questions, or exact."""
    rng = np.random.default_rng(seed)
    parts = []
    for n in sizes:
        K = K_max / (1 + N0 / n)
        for run in range(runs):
            x = 512.0 * np.asarray(steps)
            L = 10 ** (K * (pivot - np.log10(x)))
            loss = L if problems is None else rng.binomial(problems, L) / problems
            columns = {"model_size": n, "run": run, "step": steps, "data": x, "loss": loss}
            parts.append(pd.DataFrame(columns))
    return pd.concat(parts, ignore_index=True)


def fit(table: pd.DataFrame, draws: int = 0) -> SizeLaw:
    return fit_sizes(SizeCurves.from_table(table, "data"), draws)


# Published numbers


@pytest.mark.parametrize(("x", "scenario"), PRINTED)
def test_published_parameters(means: pd.DataFrame, x: Any, scenario: str) -> None:
    window = means[means[f"in_{scenario}_fit"] == 1]
    law = fit_sizes(SizeCurves.from_table(window, x), draws=0)
    assert law.K_max.value is not None
    assert law.N0.value is not None
    assert (f"{law.K_max.value:.3f}", f"{law.N0.value:.1f}") == PRINTED[x, scenario]


@pytest.mark.parametrize(("x", "scenario"), PRINTED)
def test_published_lines(means: pd.DataFrame, x: Any, scenario: str) -> None:
    window = means[means[f"in_{scenario}_fit"] == 1]
    law = fit_sizes(SizeCurves.from_table(window, x), draws=0)
    lines = pd.read_csv(DATA / "tan_authors_fit_lines_base.csv")
    own = lines[(lines["scenario"] == scenario) & (lines["x"] == {"compute": "C", "data": "D"}[x])]
    for _, row in own[own["model_size_B"].isin(list(law.K))].iterrows():
        assert law.K[row["model_size_B"]].value == pytest.approx(row["k"], rel=1e-5)
        assert law.E[row["model_size_B"]].value == pytest.approx(row["E_log10"], rel=1e-4, abs=1e-5)


def test_intervals_from_single_runs(means: pd.DataFrame, single: pd.DataFrame) -> None:
    """The paper has none: the windows are the authors', the runs' deviations those of 0.5B to 14B."""
    curves = SizeCurves.from_table(means[means["in_intra_fit"] == 1], "compute", single)
    assert (len(curves.deviations), curves.freedom) == (15, 10)
    law = fit_sizes(curves, seed=1)
    for found, low, high in ((law.K_max, 0.12, 0.155), (law.N0, 10.0, 18.0)):
        assert found.status == "ok"
        assert found.value is not None
        assert found.interval is not None
        assert found.interval[0] is not None
        assert found.interval[1] is not None
        assert low < found.interval[0] < found.value < found.interval[1] < high


def test_without_the_largest_sizes_nothing_saturates(single: pd.DataFrame) -> None:
    law = fit_sizes(SizeCurves.from_table(single[single["step"] >= 30], "compute"), draws=50)
    assert law.N0.to_dict() == {"value": None, "interval": None, "status": "not_identified"}
    assert law.K_max.status == "not_identified"
    assert law.flags[0].code == Code.UNSATURATED
    assert "the runs show no saturation" in law.flags[0].text
    assert all(k.interval is not None for k in law.K.values())
    open_above = fit_sizes(SizeCurves.from_table(single, "compute"), draws=100)
    assert open_above.N0.status == "lower_bound"
    assert open_above.N0.interval is not None
    assert open_above.N0.interval[1] is None
    assert "no upper bound" in open_above.flags[0].text


# The fit


@pytest.mark.parametrize("seed", range(3))
def test_an_independent_fit_agrees(seed: int) -> None:
    curves = SizeCurves.from_table(synthetic(problems=200, seed=seed), "data")
    law = fit_sizes(curves, draws=0)
    weight = 1 / np.sqrt(np.bincount(curves.of))[curves.of]
    log_x, S = np.log10(curves.x), len(curves.sizes)

    def residual(theta: Any) -> Any:
        K = theta[0] / (1 + np.exp(theta[1]) / curves.sizes)
        line = theta[2:][curves.of] - K[curves.of] * log_x
        return weight * (10**line - curves.loss)

    tight = {"xtol": 1e-15, "ftol": 1e-15, "gtol": 1e-15}
    start = np.concatenate([[0.1, np.log(10.0)], np.full(S, 0.1)])
    other = least_squares(residual, start, method="lm", x_scale="jac", **tight)
    assert law.fits.sse[0] == pytest.approx(2 * other.cost, rel=1e-9)
    assert law.K_max.value == pytest.approx(other.x[0], rel=1e-5)
    assert law.N0.value == pytest.approx(np.exp(other.x[1]), rel=1e-5)
    assert [e.value for e in law.E.values()] == pytest.approx(other.x[2:], rel=1e-4, abs=1e-6)


@given(
    K_max=st.floats(0.01, 0.5),
    N0=st.floats(0.5, 100.0),
    pivot=st.floats(-1.0, 2.5),
)
@settings(max_examples=settings().max_examples // 4)
def test_exact_curves_return_their_law(K_max: float, N0: float, pivot: float) -> None:
    law = fit(synthetic(K_max, N0, pivot=pivot))
    assert law.K_max.value == pytest.approx(K_max, rel=1e-5)
    assert law.N0.value == pytest.approx(N0, rel=1e-4)
    for n, found in law.E.items():
        assert found.value == pytest.approx(pivot * K_max / (1 + N0 / n), rel=1e-4, abs=1e-6)


@given(scale=st.floats(1e-3, 1e9), stretch=st.floats(1e-3, 1e12))
@settings(max_examples=settings().max_examples // 8)
def test_units(scale: float, stretch: float) -> None:
    table = synthetic(problems=500)
    law = fit(table)
    moved = table.assign(model_size=table["model_size"] * scale, data=table["data"] * stretch)
    other = fit(moved)
    assert law.N0.value is not None
    assert other.N0.value == pytest.approx(law.N0.value * scale, rel=1e-5)
    assert other.K_max.value == pytest.approx(law.K_max.value, rel=1e-5)
    pairs = zip(law.K.values(), law.E.values(), other.E.values(), strict=True)
    for K, E, E_moved in pairs:
        assert E.value is not None
        assert K.value is not None
        assert E_moved.value == pytest.approx(E.value + K.value * np.log10(stretch), rel=1e-4, abs=1e-5)


def test_each_size_counts_the_same() -> None:
    curves = SizeCurves.from_table(synthetic(problems=100), "data")
    law = fit_sizes(curves, draws=0)
    log_x = np.log10(curves.x)
    error = 10 ** (law.fits.E[0][curves.of] - law.fits.K[0][curves.of] * log_x) - curves.loss
    by_size = [np.mean(error[curves.of == s] ** 2) for s in range(len(SIZES))]
    assert law.fits.sse[0] == pytest.approx(sum(by_size), rel=1e-12)


def test_runs_are_averaged_step_by_step(single: pd.DataFrame) -> None:
    curves = SizeCurves.from_table(single, "compute")
    one = (curves.of == 1) & (curves.step == 50)
    own = single[(single["model_size"] == 1.5) & (single["step"] == 50)]
    assert curves.loss[one] == pytest.approx([own["loss"].mean()])
    assert curves.x[one] == pytest.approx([own["compute"].mean()])
    assert curves.runs[one] == [3]
    assert curves.runs[(curves.of == 1) & (curves.step == 105)] == [2]  # of no known run, but not lost


def test_the_first_step_has_no_logarithm() -> None:
    table = synthetic()
    before = pd.DataFrame({"model_size": SIZES, "run": 0, "step": 0, "data": 0.0, "loss": 0.5})
    assert fit(pd.concat([before, table])).K_max == fit(table).K_max


# Draws


def test_draws_have_the_variance_of_other_runs() -> None:
    """Evaluations on 500 problems and nothing else: a mean of R runs varies by L (1 − L) / (500 R)."""
    curves = SizeCurves.from_table(synthetic(runs=4, problems=500, steps=range(1, 101)), "data")
    drawn = _shifts(curves, curves.loss, 4000, seed=0)
    inflated = curves.freedom / (curves.freedom - 2)  # the variance of Student's t
    expected = curves.loss * (1 - curves.loss) / (500 * 4) * inflated
    ratio = drawn.var(axis=0) / expected
    assert ratio.mean() == pytest.approx(1.0, abs=0.06)
    assert np.corrcoef(drawn[:, 10], drawn[:, 11])[0, 1] == pytest.approx(0, abs=0.5)


def test_a_lasting_deviation_lasts_in_the_draws() -> None:
    table = synthetic(runs=3)
    table["loss"] += 0.02 * (table["run"] - 1) * np.sqrt(table["loss"] * (1 - table["loss"]))
    curves = SizeCurves.from_table(table, "data")
    drawn = _shifts(curves, curves.loss, 500, seed=0)[:, curves.of == 2]
    assert np.corrcoef(drawn[:, 0], drawn[:, -1])[0, 1] > 0.99
    law = fit_sizes(curves, draws=200)
    level = np.ptp(law.fits.E[1:, 2] - law.fits.K[1:, 2] * 4)  # of the line, in its middle
    assert level > 0.01
    assert law.K_max.interval is not None


def test_errors_beyond_the_runs_do_not_come_back(means: pd.DataFrame, single: pd.DataFrame) -> None:
    """Steps 1 to 10 have no single runs; what stands in for them is drawn apart from the other steps."""
    curves = SizeCurves.from_table(means, "data", single)
    drawn = _shifts(curves, curves.loss, 2000, seed=0)[:, curves.of == 3]
    correlation = np.corrcoef(drawn[:, :10].T, drawn[:, 11:104].T)[:10, 10:]
    assert np.abs(correlation).max() < 0.15
    assert drawn[:, :10].std() == pytest.approx(drawn[:, 11:21].std(), rel=0.5)


def test_one_curve_a_size_gives_no_intervals(means: pd.DataFrame) -> None:
    law = fit_sizes(SizeCurves.from_table(means[means["in_intra_fit"] == 1], "data"), draws=100)
    assert law.flags[-1].code == Code.ONE_SEED
    assert law.N0.value is not None
    assert law.N0.interval is None


def test_the_same_seed_draws_the_same() -> None:
    curves = SizeCurves.from_table(synthetic(runs=2, problems=300), "data")
    first, again, other = (fit_sizes(curves, draws=30, seed=s) for s in (1, 1, 2))
    assert np.array_equal(first.fits.K, again.fits.K)
    assert not np.array_equal(first.fits.K, other.fits.K)
    assert first.fits.K[0] == pytest.approx(other.fits.K[0], rel=1e-12)


@pytest.mark.nightly
@pytest.mark.slow
def test_intervals_hold_the_truth() -> None:
    """60 data sets of 3 runs: with 4 quantities, dependent within a data set."""
    truth = {n: 0.15 / (1 + 12 / n) for n in SIZES}
    held: dict[str, list[bool]] = {}
    for seed in range(60):
        table = synthetic(
            runs=3, problems=500, steps=np.unique(np.geomspace(1, 105, 40).astype(int)), seed=seed
        )
        law = fit_sizes(SizeCurves.from_table(table, "data"), draws=100, seed=seed)
        quantities = {
            "K_max": (law.K_max, 0.15),
            "N0": (law.N0, 12.0),
            "K(3)": (law.K[3.0], truth[3.0]),
            "E(14)": (law.E[14.0], 1.6 * truth[14.0]),
        }
        for name, (found, true) in quantities.items():
            assert found.interval is not None
            low, high = (np.inf * s if v is None else v for s, v in zip((-1, 1), found.interval, strict=True))
            held.setdefault(name, []).append(low <= true <= high)
    for name, hits in held.items():
        assert 0.88 <= np.mean(hits) <= 1.0, name
    assert 0.91 <= np.mean(list(held.values())) <= 0.985


# What cannot be identified, and what is refused


def test_one_exponent_for_all_sizes() -> None:
    law = fit(synthetic(0.1, 1e-6, runs=3, problems=2000), draws=60)
    if law.N0.value == 0.0:
        assert law.N0.status == "upper_bound"
        assert "N0 may be 0" in law.flags[0].text
    assert law.K_max.value == pytest.approx(0.1, abs=0.01)
    exact = fit(synthetic(0.1, 1e-9))
    assert exact.N0.to_dict() == {"value": 0.0, "interval": None, "status": "upper_bound"}
    assert exact.K_max.value == pytest.approx(0.1, rel=0.05)


def test_exponents_in_proportion_to_size() -> None:
    law = fit(synthetic(15.0, 1e4, sizes=(0.5, 1.5, 3.0, 7.0)))
    assert law.N0.value is None
    assert law.K_max.status == "not_identified"
    assert law.K[7.0].value == pytest.approx(15 / (1 + 1e4 / 7), rel=0.05)


REFUSED: dict[str, tuple[Any, str]] = {
    "flat": (lambda t: t.assign(loss=0.5), "does not rise"),
    "falling": (lambda t: t.assign(loss=1 - t["loss"]), "does not rise"),
    "two sizes": (lambda t: t[t["model_size"] < 2], "model sizes 0.5, 1.5.*Add runs of other sizes"),
    "four checkpoints": (lambda t: t[(t["step"] < 5) | (t["model_size"] > 1)], "N = 0.5 has .* 4 different"),
    "one X": (lambda t: t.assign(data=1.0), "1 different data; 5 are needed"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str) -> None:
    change, words = REFUSED[name]
    with pytest.raises(Refused, match=words):
        fit(change(synthetic()))


def cell(column: str, value: Any) -> Any:
    return lambda t: t.astype({column: object}).assign(**{column: [value, *t[column].iloc[1:]]})


BAD: dict[str, tuple[Any, str]] = {
    "no size": (lambda t: t.drop(columns="model_size"), "no column 'model_size'.*columns={\"model_size\": "),
    "no X": (lambda t: t.rename(columns={"data": "dat"}), "no column 'data'; did you mean 'dat'"),
    "no outcome": (lambda t: t.drop(columns="loss"), "no column 'reward or loss'"),
    "percent": (lambda t: t.assign(loss=100 * t["loss"]), "row 0: loss: found .* a share from 0 to 1"),
    "a word": (cell("loss", "low"), "found 'low'"),
    "missing": (cell("loss", None), "row 0: loss"),
    "infinite X": (cell("data", np.inf), "row 0: data: found 'inf'"),
    "negative size": (cell("model_size", -1.0), "row 0: model_size: found '-1.0'; expected a positive"),
    "no runs in a mean": (lambda t: t.assign(runs=0), "row 0: runs"),
    "twice": (lambda t: pd.concat([t, t.iloc[:1]]), 'N = 0.5 has several rows of step 1.*columns={"run": '),
    "runs not told apart": (lambda t: pd.concat([t, t]).drop(columns="run"), 'columns={"run": '),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_tables(name: str) -> None:
    change, words = BAD[name]
    with pytest.raises(DataError, match=words):
        fit(change(synthetic()))


def test_messages_name_the_table() -> None:
    good, bad = synthetic(), synthetic().drop(columns="step")
    with pytest.raises(DataError, match=r"^means\.csv: "):
        SizeCurves.from_table(bad, "data", good, ("means.csv", "runs.csv"))
    with pytest.raises(DataError, match=r"^runs\.csv: "):
        SizeCurves.from_table(good, "data", bad, ("means.csv", "runs.csv"))


@given(data=st.data())
@settings(max_examples=settings().max_examples // 4)
def test_anything_else_is_a_law_or_a_refusal(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.floats(1e-3, 1e3), min_size=3, max_size=5, unique=True))
    runs = data.draw(st.integers(1, 3))
    losses = st.one_of(st.sampled_from([0.0, 0.5, 1.0]), st.floats(0, 1))
    parts = []
    for n in sizes:
        for run in range(runs):
            loss = data.draw(st.lists(losses, min_size=6, max_size=6))
            parts.append(
                pd.DataFrame(
                    {"model_size": n, "run": run, "step": range(1, 7), "data": range(1, 7), "loss": loss}
                )
            )
    try:
        law = fit(pd.concat(parts, ignore_index=True), draws=8)
    except (Refused, DataError):
        return
    for found in (law.K_max, law.N0, *law.K.values(), *law.E.values()):
        assert found.value is None or np.isfinite(found.value)
        if found.interval is not None and None not in found.interval:
            assert found.interval[0] < found.interval[1]  # type: ignore[operator]
