"""Logs as runs: what is read, what is said of it, and what is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import isolaw
from isolaw.errors import DataError, InputError
from isolaw.readers.found_logs import LogStatus
from isolaw.readers.how_to_read import HowToRead
from isolaw.readers.reading import Reading
from isolaw.readers.survey import survey

Toy = Callable[..., Path]
Curve = Callable[..., list[dict[str, Any]]]
KNOWN = {"toy.n": 8, "toy.prompts": 4}


def refusal(*sources: Any, **arguments: Any) -> str:
    with pytest.raises(DataError) as error:
        isolaw.read(*sources, **arguments)
    return str(error.value)


def series(runs: isolaw.Runs, metric: str = "reward", eval_set: str = "train") -> dict[str, list[float]]:
    points = runs.points[(runs.points["metric"] == metric) & (runs.points["eval_set"] == eval_set)]
    return {str(run): rows["value"].tolist() for run, rows in points.groupby("run_id")}


def test_a_log_is_the_known_table(toy: Toy, tmp_path: Path) -> None:
    records = [
        {"at": 0, "toy/eval/aime24/avg@8": 0.125},
        {"at": 1, "toy/train/reward": -0.5, "toy/time": 3},
        {"at": 2, "toy/train/reward": 0.25, "toy/eval/aime24/avg@8": 0.5},
    ]
    path = toy(tmp_path / "run" / "log", records, "exp1", KNOWN | {"toy.lr": 1e-6, "toy.seed": 3})
    runs = isolaw.read(path)
    columns = ["run_id", "step", "compute", "eval_set", "metric", "value"]
    assert runs.points[columns].values.tolist() == [
        ["exp1", 0, 0, "aime24", "avg@8", 0.125],
        ["exp1", 1, 32, "train", "reward", -0.5],
        ["exp1", 2, 64, "aime24", "avg@8", 0.5],
        ["exp1", 2, 64, "train", "reward", 0.25],
    ]
    fixed = ["problem_set", "algorithm", "problems_per_batch", "rollouts_per_problem", "seed"]
    assert runs.points[fixed].drop_duplicates().values.tolist() == [["unnamed", "grpo", 4, 8, 3]]
    assert runs.attributes == {"exp1": {"lr": 1e-6, "framework": "Toy"}}
    assert runs.source == str(path)


def test_an_account_says_where_from(toy: Toy, tmp_path: Path) -> None:
    path = toy(tmp_path / "log", config={"toy.n": 8, "toy.rollouts": 32, "toy.on_policy": True})
    (provenance,) = survey([path], HowToRead.of(set=["seed=5"])).ready
    assert (provenance.framework, provenance.container, provenance.sources) == ("Toy", "toy", [str(path)])
    facts = {name: (fact.value, fact.origin) for name, fact in provenance.facts.items()}
    assert facts["rollouts_per_problem"] == (8, "toy.n in toy.yaml")
    assert facts["problems_per_batch"] == (4, "rollouts per step / n; toy.rollouts in toy.yaml")
    assert facts["seed"] == (5, "--set")
    assert facts["on_policy"] == (True, "toy.on_policy in toy.yaml")
    assert provenance.metrics == {"train": {"reward": 10}, "aime24": {"avg@8": 2}}
    assert (provenance.steps, provenance.compute) == ((1, 10), (32, 320))
    assert provenance.left_out == {"names that are not metrics (such as timings)": 1}
    json.dumps(provenance.to_dict(), allow_nan=False)


def test_an_interrupted_run_is_one(toy: Toy, toy_curve: Curve, tmp_path: Path) -> None:
    toy(tmp_path / "run" / "part-1", toy_curve(range(1, 8), 0.4), config=KNOWN)
    toy(tmp_path / "run" / "part-2", toy_curve(range(5, 11), 0.6), config=KNOWN)
    runs = isolaw.read(tmp_path)
    assert len(runs) == 1
    (values,) = series(runs).values()
    expected = [*toy_curve(range(1, 5), 0.4), *toy_curve(range(5, 11), 0.6)]
    assert values == [expectation["toy/train/reward"] for expectation in expected]
    assert runs.notes == ("3 steps repeated with other values; isolaw kept the later values",)


def test_what_makes_one_run(toy: Toy, toy_curve: Curve, tmp_path: Path) -> None:
    for i, (folder, seed) in enumerate([("a", 1), ("a", 2), ("b", 1)]):
        config = KNOWN | {"toy.seed": seed, "name": f"s{seed}"}
        toy(tmp_path / folder / f"log{i}", toy_curve(ceiling=0.4 + i / 10), f"run{i}", config)

    def names(**arguments: Any) -> list[str]:
        found = isolaw.read(tmp_path, **arguments).points["run_id"]
        return sorted(str(name).removeprefix(f"{tmp_path}/") for name in found.unique())

    set_seeds = {"*log0:seed": 0, "*log1:seed": 1, "*log2:seed": 2}
    assert names(set=set_seeds) == ["run0", "run1", "run2"]
    assert names(set=set_seeds, group_by="file") == ["a/log0", "a/log1", "b/log2"]
    assert names(set={"*a:seed": 0, "*b:seed": 1}, group_by="directory") == ["a", "b"]
    with pytest.raises(InputError, match="group_by: found 'name'; expected file or directory"):
        isolaw.read(tmp_path, group_by="name")  # type: ignore[arg-type]


def test_what_is_unknown_is_asked_for_of_every_run_at_once(
    toy: Toy, toy_curve: Curve, tmp_path: Path
) -> None:
    toy(tmp_path / "a" / "log", toy_curve(ceiling=0.5), run="a", config={"toy.n": 8})
    toy(tmp_path / "b" / "log", toy_curve(ceiling=0.6), run="b")
    text = refusal(tmp_path)
    for word in (
        "none of 2 logs can be fitted",
        "a: B_p unknown (known: n = 8 (toy.n in toy.yaml))",
        "b: n and B_p unknown",
        'Add set={"B_p": <number>, "b:n": <number>}',
    ):
        assert word in text
    toy(tmp_path / "c" / "log", toy_curve(ceiling=0.7), "c", KNOWN | {"toy.seed": 1})
    found = {
        candidate.run: (candidate.status, candidate.needs) for candidate in survey([tmp_path]).candidates
    }
    assert found == {
        "a": (LogStatus.NEEDS, ["B_p"]), "b": (LogStatus.NEEDS, ["n", "B_p"]), "c": (LogStatus.READY, []),
    }  # fmt: skip
    runs = isolaw.read(tmp_path, set=["B_p=4", "b:n=16"])
    assert runs.table()["rollouts_per_problem"].to_dict() == {"a": 8, "b": 16, "c": 8}
    assert 'set={"n": <number>, "B_p": <number>}' in refusal(tmp_path / "b")


def test_settings_that_nobody_heeds(toy: Toy, tmp_path: Path, tiny: Any) -> None:
    path = toy(tmp_path / "log", run="a", config=KNOWN)
    text = refusal(path, set=["z*:n=8"])
    for word in ("--set z*:rollouts_per_problem=8", "no run matches 'z*'", str(path)):
        assert word in text
    isolaw.sweep(tiny(), tmp_path / "sweep")
    assert "no run uses it" in refusal(tmp_path / "sweep", set=["n=8"])


def test_off_policy_among_on_policy(toy: Toy, toy_curve: Curve, tmp_path: Path) -> None:
    for name, policy in (("a", True), ("b", False), ("c", True)):
        config = KNOWN | {"toy.on_policy": policy, "toy.seed": ord(name)}
        toy(tmp_path / name, toy_curve(ceiling=ord(name)), name, config)
    (left_out,) = survey([tmp_path]).left_out
    assert (left_out.run, left_out.status) == ("b", LogStatus.OFF_POLICY)
    assert "off-policy, while the runs in use are on-policy (toy.on_policy in toy.yaml)" in left_out.message
    for name in ("d", "e"):
        config = KNOWN | {"toy.on_policy": False, "toy.seed": ord(name)}
        toy(tmp_path / "off" / name, toy_curve(ceiling=ord(name)), name, config)
    assert {group.run: group.status for group in survey([tmp_path]).left_out} == {
        "a": LogStatus.ON_POLICY, "c": LogStatus.ON_POLICY,
    }  # fmt: skip
    shutil.rmtree(tmp_path / "off")
    assert len(isolaw.read(tmp_path, set={"b:on_policy": True})) == 3
    assert len(isolaw.read(tmp_path / "a", tmp_path / "c")) == 2
    (provenance,) = survey([tmp_path / "b"]).ready
    assert provenance.facts["on_policy"].value is False


def test_two_runs_with_one_identity(toy: Toy, toy_curve: Curve, tmp_path: Path) -> None:
    a = toy(tmp_path / "a", toy_curve(ceiling=0.5), "a", KNOWN)
    b = toy(tmp_path / "b", toy_curve(ceiling=0.6), "b", KNOWN)
    text = refusal(a, b)
    for word in (
        "a, b: 2 runs of one configuration and seed (B_p = 4, n = 8, seed 0)",
        'set={"a:seed": <number>, "b:seed": <number>}',
    ):
        assert word in text
    assert "identical" not in text
    assert isolaw.read(a, b, set=["b:seed=1"]).table()["seed"].to_dict() == {"a": 0, "b": 1}
    other = toy(tmp_path / "c", toy_curve(ceiling=0.7), "c", KNOWN | {"toy.lr": 1.0})
    assert "a, c" in refusal(a, other)  # lr is known of one only, so it cannot tell them apart


def test_the_same_run_twice(toy: Toy, toy_curve: Curve, tmp_path: Path) -> None:
    a = toy(tmp_path / "a", toy_curve(), "a", KNOWN)
    rounded = [{k: round(v, 4) for k, v in point.items()} for point in toy_curve(range(1, 6))]
    b = toy(tmp_path / "b", rounded, "b", KNOWN)
    found = survey([a, b])  # as a console and event files are
    assert [group.run for group in found.ready] == ["a"]
    assert any(f"isolaw leaves out a copy of this run in {b} (toy)" in note for note in found.ready[0].notes)
    (left_out,) = found.left_out
    assert (left_out.run, left_out.status, left_out.duplicate_of) == ("b", LogStatus.DUPLICATE, "a")


def test_what_one_log_of_a_run_says_holds_for_the_other(toy: Toy, toy_curve: Curve, tmp_path: Path) -> None:
    """trainer_state.json has all the values, and the event files n and the seed."""
    toy(tmp_path / "state", toy_curve(), "state", {"toy.prompts": 4})
    toy(tmp_path / "events", toy_curve(range(1, 6)), "events", KNOWN | {"toy.seed": 42})
    toy(tmp_path / "other", toy_curve(range(1, 6)), "other", KNOWN | {"toy.seed": 43})  # says that it differs
    found = survey([tmp_path])
    assert {candidate.run: candidate.status for candidate in found.candidates} == {
        "state": LogStatus.READY, "events": LogStatus.DUPLICATE, "other": LogStatus.READY,
    }  # fmt: skip
    state = next(group for group in found.ready if group.run == "state")
    assert (state.facts["rollouts_per_problem"].value, state.facts["seed"].value) == (8, 42)
    assert state.steps == (1, 10)


def test_a_run_that_goes_on_is_no_copy(toy: Toy, toy_curve: Curve, tmp_path: Path) -> None:
    """A resumed run may repeat some steps with the same values; what came after them is not lost."""
    toy(tmp_path / "run" / "1.out", toy_curve(range(1, 13)), "first", KNOWN)
    toy(tmp_path / "run" / "2.out", toy_curve(range(10, 41)), "second", KNOWN)
    text = refusal(tmp_path)
    assert 'If one continues the other: group_by="directory"' in text
    assert "identical" not in text
    (provenance,) = survey([tmp_path], HowToRead.of(group_by="directory")).ready
    assert provenance.steps == (1, 40)
    assert "3 steps repeated with the same values; isolaw counts them once" in provenance.notes


def test_flat_curves_are_no_fingerprint(toy: Toy, tmp_path: Path) -> None:
    """Two seeds that never solve anything are two runs."""
    zeros = [{"at": s, "toy/eval/aime24/avg@8": 0.0} for s in range(10)]
    for name in "ab":
        toy(tmp_path / name, zeros, name, KNOWN)
    assert 'set={"a:seed": <number>, "b:seed": <number>}' in refusal(tmp_path)


def test_an_attribute_half_known(toy: Toy, toy_curve: Curve, tmp_path: Path) -> None:
    toy(tmp_path / "a", toy_curve(ceiling=0.5), "a", KNOWN | {"toy.lr": 1e-6, "toy.kl": 0.1})
    toy(tmp_path / "b", toy_curve(ceiling=0.6), "b", KNOWN | {"toy.kl": 0.2})
    runs = isolaw.read(tmp_path)
    assert {name: attribute["kl"] for name, attribute in runs.attributes.items()} == {"a": 0.1, "b": 0.2}
    assert any("lr is not known for every run" in note for note in runs.notes)
    assert isolaw.read(tmp_path, set=["b:lr=2e-6"]).attributes["b"]["lr"] == 2e-6


def test_percent(toy: Toy, toy_curve: Curve, tmp_path: Path) -> None:
    path = toy(tmp_path / "log", toy_curve(ceiling=50), "a", KNOWN)
    runs = isolaw.read(path)
    assert series(runs, "avg@8", "aime24")["a"] == pytest.approx([0.5 * 5 / 13, 0.5 * 10 / 18], rel=1e-5)
    assert max(series(runs)["a"]) > 30  # a reward is never rescaled
    assert any("avg@8 on aime24 was in percent (up to 27.7778): divided by 100" in n for n in runs.notes)
    kept = isolaw.read(path, set={"percent": False})
    assert max(series(kept, "avg@8", "aime24")["a"]) > 20


def test_names_of_nobody(toy: Toy, toy_curve: Curve, tmp_path: Path) -> None:
    records = [{"at": s, "my_reward": 0.1 * s, "my_loss": 1.0} for s in range(1, 5)]
    path = toy(tmp_path / "log", records)
    text = refusal(path)
    for word in (
        "no known framework uses its names: my_reward, my_loss",
        "Toy",
        'set={"framework": "<name>"}',
    ):
        assert word in text
    assert "it has no value of a known metric; its keys are my_reward" in refusal(
        path, set=["framework=toy", "n=8", "B_p=4"]
    )
    with pytest.raises(InputError) as error:
        isolaw.read(path, set=["framework=tay"])
    assert "expected: isolaw, " in str(error.value)
    assert "it has no number with a name" in refusal(toy(tmp_path / "none", []))


def test_all_that_is_wrong_is_said_at_once(toy: Toy, toy_curve: Curve, tmp_path: Path) -> None:
    toy(tmp_path / "broken").write_text("TOY LOG\n[")
    toy(tmp_path / "unknown", [{"at": 1, "x": 1.0}], "u")
    toy(tmp_path / "silent", toy_curve(ceiling=0.3), run="s")
    toy(tmp_path / "a", toy_curve(ceiling=0.5), "a", KNOWN)
    toy(tmp_path / "b", toy_curve(ceiling=0.6), "b", KNOWN)
    text = refusal(tmp_path)
    for word in (
        "none of 5 logs can be fitted",
        f"{tmp_path}/broken: a toy that is broken",
        "u: it logs no reward, only x",
        "s: n and B_p unknown",
        "a, b: 2 runs",
    ):
        assert word in text


def test_steps_that_no_number_holds(toy: Toy, tmp_path: Path) -> None:
    records = [{"at": 1, "toy/train/reward": 0.5}, {"at": 2**40, "toy/train/reward": 0.7}]
    runs = isolaw.read(toy(tmp_path / "log", records), set=["n=100000", "B_p=100000"])
    assert runs.points["step"].tolist() == [1]


def test_values_for_columns_of_ours(toy: Toy, tmp_path: Path) -> None:
    path = toy(tmp_path / "log", config=KNOWN)
    points = isolaw.read(path, set=["n_samples=8", "n_problems=30", "problem_set=math", "D=6000"]).points
    assert set(points["n_samples"]) == {8}
    assert set(points["n_problems"]) == {30}
    assert set(points["problem_set"]) == {"math"}
    assert points["tokens"].isna().all()


def test_sweeps_tables_and_logs_together(toy: Toy, tiny: Any, tmp_path: Path) -> None:
    made = isolaw.sweep(tiny(), tmp_path / "all" / "sweep")
    toy(tmp_path / "all" / "log", run="theirs", config=KNOWN)
    made.points.assign(run_id="copy-" + made.points["run_id"]).to_csv(
        tmp_path / "all" / "table.csv", index=False
    )
    reading: Reading = survey([tmp_path / "all"], HowToRead.of(set=["seed=7"]))
    assert len(reading.runs) == 2 * len(made) + 1
    assert {provenance.container for provenance in reading.ready} == {"sweep", "table", "toy"}
    seeds = reading.runs.table()["seed"]
    assert seeds["theirs"] == 7
    assert set(seeds.drop("theirs")) == {0, 1}  # a sweep knows its seeds


def test_a_single_sweep_is_read_as_ever(tiny: Any, same: Any, tmp_path: Path) -> None:
    made = isolaw.sweep(tiny(), tmp_path / "sweep")
    same(isolaw.read(tmp_path / "sweep"), made)
    assert isolaw.read(tmp_path / "sweep").notes == made.notes


def test_settings_give_a_table_what_it_lacks(tmp_path: Path) -> None:
    path = tmp_path / "n8.csv"
    pd.DataFrame({"step": [1, 2, 3], "avg@4": [0.1, 0.2, 0.3]}).to_csv(path, index=False)
    runs = isolaw.read(path, set=["n=8", "n8:B=32", "lr=0.5"])
    assert runs.points["compute"].tolist() == [32, 64, 96]
    assert next(iter(runs.attributes.values())) == {"lr": 0.5}
    text = refusal(path)
    assert "B_p (problems_per_batch)" in text
    assert "not a known log" not in text  # it is a table, which lacks two values
    path.write_text("a,b\n1,2\n")
    for word in ("4 columns or values are missing", "not a known log either", "--column names the columns"):
        assert word in refusal(path)


def test_the_runs_of_a_table_are_in_natural_order(tmp_path: Path) -> None:
    rows = [{"n": n, "B_p": 4, "step": step, "avg@4": 0.1} for n in (32, 8, 128) for step in (1, 2)]
    pd.DataFrame(rows).to_csv(tmp_path / "mine.csv", index=False)
    assert [log.n for log in survey([tmp_path / "mine.csv"]).candidates] == [8, 32, 128]


def test_a_run_that_ended_early_is_noted(tmp_path: Path) -> None:
    rows = [
        {"n": n, "B_p": 4, "seed": seed, "step": step, "avg@4": 0.1}
        for n, seed, steps in ((8, 0, 40), (8, 1, 19), (8, 2, 20), (32, 0, 10))
        for step in range(1, steps + 1)
    ]
    pd.DataFrame(rows).to_csv(tmp_path / "mine.csv", index=False)
    (note,) = survey([tmp_path / "mine.csv"]).notes
    text = "/n=8/seed=1 (C = 608) ended before half of the 1,280 rollouts of the configuration"
    assert note.endswith(text)


def test_a_table_that_lacks_a_column_needs_it_and_is_no_unknown_format(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "mine.csv"
    path.parent.mkdir()
    frame = pd.DataFrame({"n": [8, 16], "B_p": 4, "step": 1, "avg@4": [0.1, 0.2]})
    named = {"B_p": "B_p (problems_per_batch)", "step": "step or compute", "avg@4": "the reward"}
    for column, lines in named.items():
        frame.drop(columns=column).to_csv(path, index=False)
        for source in (path, path.parent):
            (own,) = survey([source]).candidates
            assert (own.status, len(own.needs)) == (LogStatus.NEEDS, 1)
            assert own.message.startswith(f"{lines}: found no column")
            assert refusal(source).count("=<") + refusal(source).count(": <") <= 1  # one suggestion, not two


def test_a_way_that_numbers_nothing_adds_nothing_to_one_that_does() -> None:
    from isolaw.readers.assemble import _most_exact_last
    from isolaw.readers.raw_log import RawLog

    state, printed = RawLog("a", "trainer-state", "r"), RawLog("b", "stdout-dicts", "r")
    state.add({"reward": 0.5}, 5)
    printed.add({"reward": 0.5})
    assert _most_exact_last([printed, state]) == _most_exact_last([state, printed]) == [state]
    printed.add({"reward": 0.6}, 10)
    assert _most_exact_last([state, printed]) == [printed, state]
    again = RawLog("c", "trainer-state", "r")
    again.add({"reward": 0.5})
    assert _most_exact_last([state, again]) == [state, again]


@pytest.mark.parametrize(
    ("lrs", "expected"),
    [
        ({8: 3.5e-7, 32: 7.1e-7, 128: 1.41e-6}, {9.97e-7}),  # B = 128, 512, 2048
        ({8: 3.5e-7, 32: 7.1e-7, 128: 7.1e-7}, {3.5e-7, 7.1e-7}),
        ({8: 1e-6, 32: 1e-6, 128: 1e-6}, {1e-6}),
        ({8: 0, 32: 1e-6, 128: 1e-6}, {0, 1e-6}),
    ],
)
def test_a_learning_rate_that_follows_the_batch_is_one_recipe(
    toy: Toy, toy_curve: Curve, tmp_path: Path, lrs: dict[int, float], expected: set[float]
) -> None:
    for n, lr in lrs.items():
        toy(tmp_path / f"n{n}", toy_curve(), f"n{n}", {"toy.n": n, "toy.prompts": 16, "toy.lr": lr})
    runs = isolaw.read(tmp_path)
    assert {attribute["lr"] for attribute in runs.attributes.values()} == expected
    follows = len(set(lrs.values())) == 3
    assert any("lr follows √B" in note for note in runs.notes) == follows
    assert ("lr_scaling" in runs.attributes["n8"]) == follows
