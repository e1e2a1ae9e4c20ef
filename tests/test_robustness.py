"""What once broke: markers, states and files that lie, and places where nothing can be written."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import isolaw
from isolaw import engine
from isolaw.config import SweepSpec
from isolaw.errors import DataError, SpecError
from isolaw.fits.flags import Code, flags_with
from isolaw.fits.law import Law
from isolaw.readers.how_to_read import HowToRead
from isolaw.readers.table_files import load
from isolaw.readers.tables import read_table
from isolaw.store import SweepStore

TAN = Path(__file__).parents[1] / "examples" / "data" / "tan_rollout_n_base.csv"
REPLAY = {
    "sweep": {"backend": "replay"},
    "executor": {"kind": "inline"},
    "replay": {
        "source": str(TAN),
        "metric": "holdout_acc_raw",
        "columns": {"rollouts_per_problem": "rollout_n", "compute": "prompts_seen*rollout_n"},
        "set": {"problems_per_batch": 512},
    },
}


def one_run(store: SweepStore) -> Path:
    return store.run(store.run_ids()[0]).folder


@pytest.mark.parametrize("damage", ["delete", "empty", "tear"])
def test_done_is_not_believed_without_its_lines(tmp_path: Path, tiny, same, damage: str) -> None:
    whole = engine.sweep(tiny(), tmp_path)
    points = one_run(SweepStore(tmp_path)) / "points.jsonl"
    if damage == "delete":
        points.unlink()
    else:
        points.write_bytes(b"" if damage == "empty" else points.read_bytes()[:-40])
    assert len(engine.resolve_sweep(tiny(), tmp_path).todo) == 1
    same(engine.sweep(tiny(), tmp_path), whole)


@pytest.mark.parametrize("marker", ["{}", '"x"', "null", "", '{"compute": "many"}'])
def test_a_damaged_marker_is_no_end(tmp_path: Path, tiny, same, marker: str) -> None:
    whole = engine.sweep(tiny(), tmp_path)
    (one_run(SweepStore(tmp_path)) / "DONE").write_text(marker)
    same(engine.sweep(tiny(), tmp_path), whole)


@pytest.mark.parametrize("name", ["arrays.npz", "state.json"])
@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 torn", None])
def test_a_damaged_state_starts_the_run_again(
    tmp_path: Path, tiny, same, name: str, content: bytes | None
) -> None:
    small, large = tiny(sweep={"compute": 10_000}), tiny(sweep={"compute": 20_000})
    engine.sweep(small, tmp_path / "whole")
    whole = engine.sweep(large, tmp_path / "whole")
    out = tmp_path / "damaged"
    engine.sweep(small, out)
    run = SweepStore(out).run(SweepStore(out).run_ids()[0])
    state = run.states.folder(run.states.steps()[0])
    (state / name).unlink()
    if content is not None:
        (state / name).write_bytes(content)
    same(engine.sweep(large, out), whole)


@pytest.mark.slow
def test_a_recorded_run_keeps_what_was_recorded(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"recipe\.lr: replay cannot change the recipe"):
        engine.resolve_sweep(SweepSpec.parse({**REPLAY, "recipe": {"lr": 0.1}}), tmp_path / "a")
    constants = {**REPLAY["replay"]["set"], "algorithm": "ppo", "lr": 0.5}
    replay = {**REPLAY["replay"], "set": constants}
    runs = engine.sweep({**REPLAY, "replay": replay}, tmp_path / "b")
    assert set(runs.points["algorithm"]) == {"ppo"}
    assert {a["lr"] for a in runs.attributes.values()} == {0.5}


@pytest.mark.slow
def test_two_recorded_problem_sets(tmp_path: Path) -> None:
    table = pd.read_csv(TAN)
    both = pd.concat([table.assign(problem_set="x"), table.assign(problem_set="y")])
    both.to_csv(tmp_path / "both.csv", index=False)
    replay = {**REPLAY["replay"], "source": str(tmp_path / "both.csv")}
    runs = engine.sweep({**REPLAY, "replay": replay, "problems": {"set": "y"}}, tmp_path / "out")
    assert set(runs.points["problem_set"]) == {"y"}
    with pytest.raises(SpecError, match="expected x, y"):
        engine.resolve_sweep(SweepSpec.parse({**REPLAY, "replay": replay}), tmp_path / "other")


def test_a_copied_law_leaves_the_others_draws_alone(tmp_path: Path, synthetic) -> None:
    runs = synthetic([(32, n) for n in (8, 32, 128)])
    isolaw.fit(runs, draws=10).save(tmp_path / "a.json")
    shutil.copy(tmp_path / "a.json", tmp_path / "b.json")
    isolaw.fit(runs, draws=10, seed=1).save(tmp_path / "b.json")
    assert Law.load(tmp_path / "a.json").predict(5e5).reward.interval is not None
    (tmp_path / "precious.txt").write_text("mine")
    document = json.loads((tmp_path / "a.json").read_text())
    document["bootstrap"]["file"] = "precious.txt"
    (tmp_path / "a.json").write_text(json.dumps(document))
    isolaw.fit(runs, draws=10, seed=2).save(tmp_path / "a.json")
    assert (tmp_path / "precious.txt").read_text() == "mine"


def test_draws_of_another_law_on_the_same_grid(tmp_path: Path, synthetic) -> None:
    pairs = [(32, n) for n in (8, 32, 128)]
    isolaw.fit(synthetic(pairs), draws=10).save(tmp_path / "a.json")
    isolaw.fit(synthetic(pairs, rng=5, noise=0.02), draws=10).save(tmp_path / "b.json")
    document = json.loads((tmp_path / "a.json").read_text())
    other = json.loads((tmp_path / "b.json").read_text())["bootstrap"]["file"]
    document["bootstrap"]["file"] = other
    (tmp_path / "a.json").write_text(json.dumps(document))
    with pytest.raises(DataError, match="belong to another law"):
        Law.load(tmp_path / "a.json")


def test_the_best_n_is_not_left_out_for_starting_high(synthetic) -> None:
    """n = 8 is at its ceiling from the start: few records, and the best all the same."""

    def reward(_b: int, n: int, compute):
        start = 0.602 if n == 8 else 0.2
        return 0.602 - (0.602 - start) * np.exp(-compute / 1e5) - 0.01 * np.log2(n / 8)

    runs = synthetic([(32, n) for n in (8, 16, 32, 64)], reward, noise=0.001)
    law = isolaw.fit(runs, method="paper", draws=10)
    assert {p.n_star_strict for p in law.document.frontier} == {8}
    assert flags_with(law.document.flags, Code.HARDLY_RISES)


def test_rewards_on_another_scale_are_noticed(synthetic) -> None:
    runs = synthetic(
        [(32, n) for n in (8, 32, 128)], lambda b, n, c: 1e-4 * (1 - np.exp(-c / 1e5)), noise=1e-6
    )
    law = isolaw.fit(runs, records=None, draws=0)
    assert flags_with(law.document.flags, Code.NARROW_REWARDS)


@pytest.mark.parametrize("column", [pd.Timestamp("2026-01-01"), pd.Timedelta(1, "s"), True])
def test_what_is_no_number_is_not_one(tmp_path: Path, column) -> None:
    frame = pd.DataFrame({"step": [1, 2], "reward": [0.1, 0.2]}).assign(reward=column)
    frame.to_parquet(tmp_path / "t.parquet")
    constants = {"problems_per_batch": 4, "rollouts_per_problem": 8}
    with pytest.raises(DataError, match="expected numbers"):
        read_table(tmp_path / "t.parquet", HowToRead.of(set=constants, metric="reward"))


def test_two_columns_of_one_name(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("step,score,score\n1,0.1,0.2\n")
    with pytest.raises(DataError, match="two columns are called 'score'"):
        load(tmp_path / "t.csv")


def test_text_names_runs(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("step,score,name\n1,0.1,first\n1,0.2,second\n")
    constants = {"problems_per_batch": 4, "rollouts_per_problem": 8}
    runs = read_table(
        tmp_path / "t.csv", HowToRead.of(columns={"run_id": "name"}, set=constants, metric="score")
    )
    assert sorted(runs.points["run_id"]) == ["first", "second"]


def test_unmapped_columns_that_tell_runs_apart(tmp_path: Path) -> None:
    constants = {"problems_per_batch": 4, "rollouts_per_problem": 8}
    (tmp_path / "t.csv").write_text("step,score,arm\n1,0.1,a\n2,0.2,a\n1,0.3,b\n2,0.4,b\n")
    with pytest.raises(DataError, match=r'differ in arm.*columns=\{"arm": "arm"\}'):
        read_table(tmp_path / "t.csv", HowToRead.of(set=constants, metric="score"))
    (tmp_path / "t.csv").write_text("step,score,arm,trial\n1,0.1,3,0\n1,0.2,4,1\n")
    runs = read_table(
        tmp_path / "t.csv", HowToRead.of(columns={"seed": "trial"}, set=constants, metric="score")
    )
    assert any("not mapped" in note and "arm" in note for note in runs.notes)


def test_nothing_can_be_written(isolaw, tmp_path: Path) -> None:
    code, _, stderr = isolaw("sweep", "--out", tmp_path / ("x" * 300))
    assert code in (1, 2)
    assert "Traceback" not in stderr
    assert len(stderr.strip().splitlines()[-1]) > 10


@pytest.mark.parametrize(
    "settings",
    [
        ["sweep.compute=1e308"],
        ["sweep.seeds=1e9"],
        ["sweep.seeds=-1"],
        ["grid.lr=[]"],
        ["recipe.lr=true"],
        ["evaluation.points=1e9"],
        ["evaluation.samples=1e30"],
        ["problems.n_train=1e12"],
    ],
    ids=str,
)
def test_numbers_beyond_reason(isolaw, tmp_path: Path, settings: list[str]) -> None:
    arguments = [part for hold in settings for part in ("--set", hold)]
    code, stdout, stderr = isolaw("sweep", "--out", tmp_path / "out", *arguments)
    assert (code, stdout) == (2, "")
    assert settings[0].partition("=")[0] in stderr
    assert not (tmp_path / "out").exists()


def test_a_simulation_that_diverges_says_so(tmp_path: Path, tiny) -> None:
    with pytest.raises(isolaw.IsolawError, match="diverged"):
        engine.sweep(tiny(recipe={"lr": 1e160}), tmp_path)
