"""A race in a sweep's directory: interrupted, killed, failed, continued, changed."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import isolaw as package
from isolaw import engine
from isolaw.config import SweepSpec
from isolaw.design import directory
from isolaw.design.decisions import DecisionStage, Ending, horizons
from isolaw.design.directory import read
from isolaw.documents import seal
from isolaw.documents.seal import canonical_json
from isolaw.errors import SpecError, StoreError
from isolaw.store import SweepStore

RACE = {
    "sweep": {"compute": 100_000, "seeds": 2},
    "grid": {"problems_per_batch": [8], "rollouts_per_problem": [2, 4, 8, 16, 32, 64, 128]},
    "problems": {"n_train": 100, "n_validation": 100},
    "evaluation": {"points": 12},
    "design": {"kind": "race", "spend": 0.8, "tolerance": 1e-4},
    "executor": {"kind": "inline"},
}


def spec(**sections: dict) -> SweepSpec:
    return SweepSpec.parse({**RACE, **{k: {**RACE.get(k, {}), **section} for k, section in sections.items()}})


def keys(runs: package.Runs) -> set[tuple[int, int, int]]:
    names = ["problems_per_batch", "rollouts_per_problem", "seed"]
    return set(runs.points[names].itertuples(index=False, name=None))


def results(out: Path) -> dict[str, object]:
    points = SweepStore(out).collect().points.drop(columns="wall_s")
    return {"decisions": (out / "decisions.jsonl").read_bytes(), "points": points.to_json()}


@pytest.fixture(scope="module")
def raced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("race") / "sweep"
    package.sweep(spec(), out)
    return out


@pytest.fixture
def copy(raced: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(raced, tmp_path / "sweep"))


def test_runs_end_where_the_race_leaves_them(raced: Path) -> None:
    history = read(SweepStore(raced))
    assert history[-1].stage is DecisionStage.STOP
    asked = horizons(history)
    ends = SweepStore(raced).collect().points.groupby(["problems_per_batch", "rollouts_per_problem", "seed"])
    reached = ends["compute"].max().to_dict()
    assert reached == {(b, n, s): end // (b * n) * b * n for (b, n, s), end in asked.items()}
    assert len(set(asked.values())) > 1
    state = engine.status(raced)
    assert state["done"] == state["runs"] == len(asked)
    assert state["rollouts"] == history[-1].spent <= 0.8 * 14 * 100_000


@pytest.mark.slow
def test_the_same_command_again_does_nothing(copy: Path, tree) -> None:
    before = tree(copy)
    planned = engine.resolve_sweep(spec(), copy)
    assert planned.todo == []
    assert planned.adaptive is not None
    assert planned.adaptive.ended
    events = list(engine.execute(planned, copy))
    after = tree(copy)
    changed = {name for name in before if before[name] != after.get(name)}
    assert [e.kind for e in events if e.kind != "decision"] == []
    assert changed <= {"points.parquet", "lock", "sweep.json"}


@pytest.mark.slow
@pytest.mark.parametrize("number", [pytest.param(4, marks=pytest.mark.nightly), 20])
def test_stopped_after_any_event_it_comes_to_the_same_end(raced: Path, tmp_path: Path, number: int) -> None:
    running = engine.execute(engine.resolve_sweep(spec(), tmp_path), tmp_path)
    for _ in range(number):
        if next(running, None) is None:
            break
    running.close()
    package.sweep(spec(), tmp_path)
    assert results(tmp_path) == results(raced)


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["torn", pytest.param("changed", marks=pytest.mark.nightly), "link"])
def test_decisions_that_are_lost_are_made_again(raced: Path, copy: Path, damage: str) -> None:
    path = copy / "decisions.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    if damage == "link":
        path.unlink()
        path.symlink_to(raced / "decisions.jsonl")
        with pytest.raises(StoreError, match=r"decisions\.jsonl"):
            engine.resolve_sweep(spec(), copy)
        return
    if damage == "torn":
        path.write_bytes(b"".join(lines)[:-20])
    if damage == "changed":
        path.write_bytes(lines[0] + lines[1].replace(b'"spent":', b'"spend":') + b"".join(lines[2:]))
    package.sweep(spec(), copy)
    assert results(copy) == results(raced)


@pytest.mark.slow
def test_more_to_spend_goes_on_and_makes_nothing_twice(tmp_path: Path) -> None:
    out = tmp_path / "sweep"
    package.sweep(spec(design={"spend": 0.3}), out)
    first = read(SweepStore(out))
    assert first[-1].ending is Ending.SPENT
    before = {p: p.read_bytes() for p in out.glob("runs/*/points.jsonl")}
    package.sweep(spec(), out)
    later = read(SweepStore(out))
    assert later[: len(first) - 1] == first[:-1]
    assert later[-1].spent > first[-1].spent
    assert all(p.read_bytes().startswith(content) for p, content in before.items())


def test_a_plain_sweep_extends_what_the_race_left(copy: Path) -> None:
    runs = package.sweep(spec(design={"kind": "grid"}), copy)
    assert len(runs) == 14
    ends = runs.points.groupby("run_id")["compute"].max()
    assert (ends > 100_000 - 8 * 128).all()


def test_another_target_is_refused(copy: Path) -> None:
    with pytest.raises(StoreError, match="its runs go to C = 100000"):
        engine.resolve_sweep(spec(sweep={"compute": 200_000}), copy)


@pytest.mark.slow
def test_a_failing_run_is_left_out_and_the_race_goes_on(tmp_path: Path, monkeypatch) -> None:
    from isolaw.backends import bandit

    whole = bandit._Bandit.run

    def run(self, own, ctx):
        for checkpoint in whole(self, own, ctx):
            if own.rollouts_per_problem == 32 and checkpoint.compute > 6000:
                raise ValueError("broken")
            yield checkpoint

    monkeypatch.setattr(bandit._Bandit, "run", run)
    out = tmp_path / "sweep"
    package.sweep(spec(), out)
    history = read(SweepStore(out))
    assert (8, 32, 0) in history[1].failed
    assert history[-1].ending not in (None, Ending.FAILED)
    assert engine.status(out)["failed"] == 1


def test_a_smaller_grid_than_the_races_is_refused(copy: Path) -> None:
    with pytest.raises(StoreError, match="which the grid"):
        engine.resolve_sweep(spec(grid={"rollouts_per_problem": [2, 4, 8, 16]}), copy)


@pytest.mark.nightly
@pytest.mark.slow
def test_recorded_runs_need_not_fill_the_grid(raced: Path, tmp_path: Path) -> None:
    points = package.read(raced).points
    table = points[(points["seed"] == 0) | (points["rollouts_per_problem"] == 128)]
    recorded = {"sweep": {"backend": "replay"}, "replay": {"source": table}, "executor": RACE["executor"]}
    runs = package.sweep(recorded | {"design": {"kind": "race", "spend": 1.0}}, tmp_path / "replayed")
    assert {(n, s) for _, n, s in keys(runs)} <= {(n, s) for _, n, s in keys(package.read(raced))}


def test_all_issues_at_once() -> None:
    wrong = spec(
        design={"pinned": [[8, 5]], "start": 16, "metric": "avg@8"},
        grid={"lr": [0.1, 0.2]},
        evaluation={"sets": ["train"]},
    )
    with pytest.raises(SpecError) as error:
        engine.resolve_sweep(wrong, "nowhere")
    text = str(error.value)
    for name in ("design.pinned", "design.start", "design.metric", "design.kind", "evaluation.sets"):
        assert name in text
    with pytest.raises(SpecError, match=r"design\.spend"):
        engine.resolve_sweep(spec(design={"spend": 0.1}), "nowhere")
    with pytest.raises(SpecError, match=r"grid\.rollouts_per_problem"):
        engine.resolve_sweep(spec(design={"forbidden": [[8, n] for n in (4, 8, 16, 32, 64)]}), "nowhere")


def test_decisions_are_json_a_user_can_read(raced: Path) -> None:
    lines = [json.loads(line) for line in (raced / "decisions.jsonl").read_text().splitlines()]
    assert [line["stage"] for line in lines[:2]] == ["rung", "rung"]
    assert lines[-1]["ending"] in list(Ending)


@pytest.mark.nightly
@pytest.mark.slow
def test_a_grid_that_grows_around_the_best_is_looked_at(raced: Path, copy: Path) -> None:
    best = read(SweepStore(raced))[-1].best
    assert best is not None
    batches = [8, 16]
    package.sweep(spec(grid={"problems_per_batch": batches}), copy)
    history = read(SweepStore(copy))
    assert (16, best[1]) in {key[:2] for key in horizons(history)}
    assert history[: len(read(SweepStore(raced))) - 1] == read(SweepStore(raced))[:-1]


def test_a_state_says_how_far_a_race_is(raced: Path) -> None:
    race, last = engine.status(raced)["race"], read(SweepStore(raced))[-1]
    assert race["ending"] == last.ending
    assert race["asked"] == last.spent <= race["spend"]
    assert race["decisions"] == len(read(SweepStore(raced)))


def test_what_is_pinned_cannot_be_forbidden() -> None:
    with pytest.raises(SpecError) as raised:
        engine.resolve_sweep(spec(design={"pinned": [[8, 32]], "forbidden": [[8, 32], [8, 2]]}), "nowhere")
    assert [issue.where for issue in raised.value.issues] == ["design.pinned"]


@pytest.mark.nightly
@pytest.mark.slow
def test_decisions_of_another_sweep_count_for_nothing(copy: Path, tmp_path: Path) -> None:
    """They are of other runs, whatever their checksums say."""
    other = tmp_path / "other"
    package.sweep(spec(recipe={"lr": 0.02}), other)
    theirs = engine.status(other)["race"]
    shutil.copy(copy / "decisions.jsonl", other / "decisions.jsonl")
    assert read(SweepStore(other)) == []
    assert engine.status(other)["race"] is None
    package.sweep(spec(recipe={"lr": 0.02}), other)
    assert engine.status(other)["race"] == theirs


@pytest.mark.slow
def test_forged_decisions_are_made_again(raced: Path, copy: Path) -> None:
    """With a checksum that is right: the results do not say so."""
    history = read(SweepStore(copy))
    ids = _ids(copy)
    forged = [*history[:-1], replace(history[-1], expected_loss=1e-9)]
    lines = [
        canonical_json(seal.sealed(item.to_dict(), f"{directory._owner(forged[: i + 1], ids)} {i}"))
        for i, item in enumerate(forged)
    ]
    (copy / "decisions.jsonl").write_text("".join(f"{line}\n" for line in lines))
    assert read(SweepStore(copy))[-1].expected_loss == 1e-9
    newer = {**forged[-1].to_dict(), "note": "of a newer version"}
    line = canonical_json(seal.sealed(newer, f"{directory._owner(forged, ids)} {len(forged) - 1}"))
    (copy / "decisions.jsonl").write_text("".join(f"{line}\n" for line in [*lines[:-1], line]))
    assert read(SweepStore(copy)) == history[:-1]
    (copy / "decisions.jsonl").write_text("".join(f"{line}\n" for line in lines))
    planned = engine.resolve_sweep(spec(), copy)
    assert planned.adaptive is not None
    assert planned.adaptive.history == history
    list(engine.execute(planned, copy))
    assert results(copy) == results(raced)


def _ids(out: Path) -> dict[tuple[int, int, int], str]:
    return {directory._key_of(run): run_id for run_id, run in SweepStore(out).specs()[0].items()}
