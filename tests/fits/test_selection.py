"""Which runs a fit uses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

import isolaw
from isolaw.errors import DataError, InputError, Refused
from isolaw.fits.flags import Code, Flag, flags_with
from isolaw.fits.selection import Configuration, Selection, select, usual_hold
from isolaw.runs import Runs

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")

Make = Callable[..., Runs]
N = [8, 16, 32, 64]


def chosen(runs: Runs, hold: Any = "B_p", fixed: dict[str, Any] | None = None) -> Selection:
    return select(runs, "avg@4", "validation", hold, fixed)


def pairs(selection: Selection) -> list[tuple[int, int]]:
    return [(c.problems_per_batch, c.rollouts_per_problem) for c in selection.configurations]


def test_checkpoints_of_a_configuration(synthetic: Make) -> None:
    """Run after run, by seed, each in order of compute, whatever the order of the table."""
    runs = synthetic([(32, n) for n in N], seeds=[5, 2, 9])
    shuffled = Runs(runs.to_pandas().sample(frac=1, random_state=0), runs.attributes)
    for selection in (chosen(runs), chosen(shuffled)):
        assert pairs(selection) == [(32, n) for n in N]
        for c in selection.configurations:
            assert c.seeds == (2, 5, 9)
            for index, seed in enumerate(c.seeds):
                own = runs.points[(runs.points["rollouts_per_problem"] == c.rollouts_per_problem)]
                own = own[own["seed"] == seed].sort_values("compute")
                assert c.compute[c.run == index].tolist() == own["compute"].tolist()
                assert c.reward[c.run == index].tolist() == own["value"].tolist()


def test_the_batch_with_most_n_is_the_default_and_is_named(synthetic: Make) -> None:
    runs = synthetic([(16, n) for n in N[:3]] + [(32, n) for n in N] + [(64, n) for n in N])
    selection = chosen(runs)
    assert selection.fixed == {"problems_per_batch": 32}
    assert pairs(selection) == [(32, n) for n in N]
    (flag,) = selection.flags
    assert flag.code == Code.AXIS_CHOSEN
    assert "isolaw chose problems_per_batch = 32, since" in flag.text
    assert "16, 64" in flag.text
    assert not chosen(runs, fixed={"problems_per_batch": 64}).flags


def test_one_batch_size_needs_no_word(synthetic: Make) -> None:
    selection = chosen(synthetic([(32, n) for n in N]))
    assert selection.fixed == {"problems_per_batch": 32}
    assert not selection.flags


def test_fixed_b_keeps_the_product(synthetic: Make) -> None:
    runs = synthetic([(b, n) for b in (8, 16, 32, 64) for n in N])
    selection = chosen(runs, "B")
    assert selection.fixed == {"batch_rollouts": 512}
    assert pairs(selection) == [(8, 64), (16, 32), (32, 16), (64, 8)]
    assert {b * n for b, n in pairs(selection)} == {512}
    assert pairs(chosen(runs, "B", {"batch_rollouts": 1024})) == [(16, 64), (32, 32), (64, 16)]


def test_joint_keeps_everything(synthetic: Make) -> None:
    runs = synthetic([(b, n) for b in (16, 32) for n in N])
    selection = chosen(runs, "nothing")
    assert selection.fixed == {}
    assert pairs(selection) == [(b, n) for b in (16, 32) for n in N]


def learning_rates(synthetic: Make) -> Runs:
    parts = []
    for rate in (0.01, 0.02):
        runs = synthetic([(32, n) for n in N], attributes={"lr": rate})
        table = runs.to_pandas()
        table["run_id"] += f"lr{rate}"
        parts.append(Runs(table, {f"{r}lr{rate}": a for r, a in runs.attributes.items()}))
    return Runs.concat(parts)


def test_several_learning_rates_are_not_mixed(synthetic: Make) -> None:
    runs = learning_rates(synthetic)
    with pytest.raises(DataError, match=r'differ in lr \(0\.01, 0\.02\).*where=\{"lr": 0.01\}'):
        chosen(runs)


@pytest.mark.parametrize("value", [0.02, "0.02"])
def test_one_learning_rate_is_chosen(synthetic: Make, value: Any) -> None:
    runs = learning_rates(synthetic)
    selection = chosen(runs, fixed={"lr": value})
    assert selection.fixed["lr"] == 0.02
    assert [c.seeds for c in selection.configurations] == [(0, 1, 2)] * len(N)
    wanted = [r for r, a in runs.attributes.items() if a["lr"] == 0.02]
    expected = chosen(runs.select(wanted))
    for ours, theirs in zip(selection.configurations, expected.configurations, strict=True):
        assert ours.reward.tolist() == theirs.reward.tolist()


@pytest.mark.parametrize("column", ["problem_set", "algorithm"])
def test_other_mixtures_are_refused_too(synthetic: Make, column: str) -> None:
    table = synthetic([(32, n) for n in N]).to_pandas()
    other = table.assign(**{column: "other", "run_id": table["run_id"] + "other"})
    mixed = Runs(pd.concat([table, other], ignore_index=True))
    with pytest.raises(DataError, match=f'differ in {column}.*where={{"{column}": '):
        chosen(mixed)
    assert len(chosen(mixed, fixed={column: "other"}).configurations) == len(N)


def test_names_that_do_not_exist(synthetic: Make) -> None:
    runs = synthetic([(32, n) for n in N])
    with pytest.raises(DataError, match=r"no metric 'avg@8'.*did you mean 'avg@4'"):
        select(runs, "avg@8", "validation", "B_p")
    with pytest.raises(DataError, match=r"no evaluation set 'validaton'.*did you mean 'validation'"):
        select(runs, "avg@4", "validaton", "B_p")
    with pytest.raises(DataError, match=r"problem_per_batch.*did you mean 'problems_per_batch'"):
        chosen(runs, fixed={"problem_per_batch": 32})
    with pytest.raises(DataError, match=r'"problems_per_batch": 33.*existing values: 32'):
        chosen(runs, fixed={"problems_per_batch": 33})
    with pytest.raises(InputError, match="found 'fixed'; expected B_p, B, n or nothing"):
        isolaw.fit(runs, hold="fixed")  # type: ignore[arg-type]


def test_two_n_are_too_few(synthetic: Make) -> None:
    with pytest.raises(
        Refused, match=r"at least three values of n at the same B_p; found 2 \(n = 8, 16\).*Add runs"
    ):
        chosen(synthetic([(32, 8), (32, 16)]))


def test_fixed_b_points_to_joint(synthetic: Make) -> None:
    with pytest.raises(Refused, match='hold="nothing"'):
        chosen(synthetic([(32, n) for n in N]), "B")


def test_a_curve_of_four_checkpoints_is_left_out(synthetic: Make) -> None:
    table = synthetic([(32, n) for n in N], zero=False).to_pandas()
    first = table.groupby("run_id").cumcount()
    short = Runs(table[(table["rollouts_per_problem"] != 16) | (first < 4)])
    selection = chosen(short)
    assert pairs(selection) == [(32, 8), (32, 32), (32, 64)]
    (flag,) = flags_with(selection.flags, Code.LEFT_OUT)
    assert "n = 16: it has 4 checkpoints, and a curve needs 5" in flag.text
    with pytest.raises(Refused, match="a curve needs 5"):
        chosen(Runs(table[first < 4]))


def test_ranges_that_do_not_meet(synthetic: Make) -> None:
    runs = synthetic(
        [(32, n) for n in N], start=lambda b, n: 3e4 * n, compute=lambda b, n: 5e4 * n, zero=False
    )
    why = r"no three values of n were evaluated at the same compute.*Train the smaller n"
    with pytest.raises(Refused, match=why):
        chosen(runs)


def test_notes_of_the_reader_become_flags(synthetic: Make) -> None:
    runs = synthetic([(32, n) for n in N])
    noted = Runs(runs.points, source="x.csv", notes=("no step column",))
    assert chosen(noted).flags == [Flag(Code.AS_READ, "no step column")]


def test_covers_until_the_next_step_is_paid_for() -> None:
    compute, run = np.array([512.0, 1024.0, 2048.0]), np.zeros(3, dtype=int)
    c = Configuration(32, 8, compute, np.zeros(3), run, (0,), step_cost=256.0)
    assert c.measured == (512.0, 2048.0)
    assert c.covers(np.array([511, 512, 2048, 2303, 2304])).tolist() == [False, True, True, True, False]


def test_epochs(synthetic: Make) -> None:
    selection = chosen(synthetic([(32, n) for n in N], attributes={"n_train_problems": 1000}))
    assert selection.n_train_problems == 1000
    steps = 1_000_000 // (32 * 8)
    assert selection.epochs_seen == pytest.approx(32 * steps / 1000)
    assert chosen(synthetic([(32, n) for n in N])).epochs_seen is None


@pytest.mark.parametrize("value", [0, -5, "many"])
def test_training_problems_that_are_no_number_of_problems(synthetic: Make, value: Any) -> None:
    with pytest.raises(DataError, match="n_train_problems"):
        chosen(synthetic([(32, n) for n in N], attributes={"n_train_problems": value}))


# Budgets in tokens


def in_tokens(synthetic: Make, rate: Callable[[int], float] = lambda seed: 100.0 + seed) -> pd.DataFrame:
    """Each run spends tokens at a pace of its own."""
    table = synthetic([(32, n) for n in N]).to_pandas()
    spent = table["compute"] * table["seed"].map(rate)
    return table.assign(tokens=spent.round().astype("int64"))


def test_another_unit_of_compute(synthetic: Make) -> None:
    table = in_tokens(synthetic)
    selection = select(Runs(table), "avg@4", "validation", "B_p", x="tokens")
    for c in selection.configurations:
        own = table[table["rollouts_per_problem"] == c.rollouts_per_problem]
        assert sorted(c.compute) == sorted(own["tokens"])
        assert c.checkpoints[0] == 0
        ends = own.sort_values("step").groupby("run_id").last()
        assert c.step_cost == pytest.approx(ends["tokens"].sum() / ends["step"].sum())
    rollouts = select(Runs(table), "avg@4", "validation", "B_p")
    assert [c.step_cost for c in rollouts.configurations] == [32.0 * n for n in N]


def test_step_zero_costs_nothing(synthetic: Make) -> None:
    table = in_tokens(synthetic).astype({"tokens": "Int64"})
    table.loc[table["step"] == 0, "tokens"] = pd.NA
    selection = select(Runs(table), "avg@4", "validation", "B_p", x="tokens")
    assert all(c.checkpoints[0] == 0 for c in selection.configurations)


def test_what_was_not_recorded_is_named(synthetic: Make) -> None:
    table = in_tokens(synthetic).astype({"tokens": "Int64"})
    missing = (table["run_id"] == "32x16s0") & (table["step"] > 100)
    some = Runs(table.assign(tokens=table["tokens"].mask(missing)))
    with pytest.raises(DataError, match="tokens was not recorded in run '32x16s0', step "):
        select(some, "avg@4", "validation", "B_p", x="tokens")
    none = synthetic([(32, n) for n in N])
    with pytest.raises(DataError, match="tokens was not recorded"):
        select(none, "avg@4", "validation", "B_p", x="tokens")


def test_what_stands_still_is_named(synthetic: Make) -> None:
    table = in_tokens(synthetic)
    table["tokens"] = table["tokens"].clip(upper=50_000)
    with pytest.raises(DataError, match=r"tokens does not grow at step \d+ of run '32x"):
        select(Runs(table), "avg@4", "validation", "B_p", x="tokens")


def test_units_that_do_not_go_together(synthetic: Make) -> None:
    runs = Runs(in_tokens(synthetic))
    with pytest.raises(InputError, match="found 'dollars'; expected compute or tokens"):
        isolaw.fit(runs, x="dollars")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="where B is fixed the law is in steps"):
        select(runs, "avg@4", "validation", "B", x="tokens")


@pytest.mark.parametrize(
    ("places", "hold"),
    [
        ([(32, 8), (32, 16)], "B_p"),
        ([(32, 8), (16, 16)], "B"),
        ([(32, 8), (16, 8)], "nothing"),
    ],
)
def test_the_usual_hold(synthetic: Make, places: Any, hold: str) -> None:
    assert usual_hold(synthetic(places)) == hold
    assert usual_hold(synthetic(places), {"problems_per_batch": 32, "unknown": 1}) == "B_p"
