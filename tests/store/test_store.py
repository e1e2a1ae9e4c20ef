"""A sweep's directory: what a kill leaves behind never reaches the results."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from isolaw import backends, engine
from isolaw.backend import AnswerCounts, Checkpoint, Measurement, Response, RunContext
from isolaw.config import RunSpec
from isolaw.errors import NoHistory, StoreError
from isolaw.simulators.interference import PRESETS
from isolaw.store import RunStore, SweepStore, tables
from isolaw.store.checksums import Lines, line
from isolaw.store.folder import Folder

PUBLISHED = 5  # checkpoints whose state was published; two more were recorded


@pytest.fixture(scope="module")
def spec(tiny) -> RunSpec:
    return engine.resolve_sweep(tiny(), "nowhere").runs[0]


def go_on(run: RunStore, spec: RunSpec) -> Iterator[object]:
    state, wall_s = run.resume()
    yield from run.record(backends.get(spec.backend).run(spec, RunContext(state)), wall_s)


def results(run: RunStore) -> list[dict[str, object]]:
    return [{k: v for k, v in line.items() if k != "wall_s"} for line in run.recorded().checkpoints]


@pytest.fixture(scope="module")
def expected(spec: RunSpec, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, object]]:
    run = SweepStore(tmp_path_factory.mktemp("whole")).run(spec.run_id)
    run.create(spec)
    list(go_on(run, spec))
    return results(run)


@pytest.fixture
def run(spec: RunSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunStore:
    """A run that stopped two checkpoints after its last published state."""
    run = SweepStore(tmp_path).run(spec.run_id)
    run.create(spec)
    monkeypatch.setattr("isolaw.store.run.PUBLISH_EVERY_S", 0.0)
    monkeypatch.setattr("isolaw.store.run.PUBLISHING_SHARE", 1e9)
    checkpoints = go_on(run, spec)
    for _ in range(PUBLISHED):
        next(checkpoints)
    monkeypatch.setattr("isolaw.store.run.PUBLISH_EVERY_S", 1e9)
    next(checkpoints)
    next(checkpoints)
    checkpoints.close()
    assert len(run.recorded().checkpoints) == PUBLISHED + 2
    return run


def steps(run: RunStore) -> list[int]:
    return [line["step"] for line in run.recorded().checkpoints]


def test_lines_beyond_the_last_state_are_cut(run: RunStore, spec: RunSpec, expected) -> None:
    recorded = steps(run)
    state, wall_s = run.resume()
    assert state is not None
    assert steps(run) == recorded[:PUBLISHED]
    assert int(state.name) == recorded[PUBLISHED - 1]
    assert wall_s == run.recorded().checkpoints[-1]["wall_s"]
    assert run.damage == []
    list(go_on(run, spec))
    assert results(run) == expected


def test_a_torn_last_line_is_dropped(run: RunStore, spec: RunSpec, expected) -> None:
    whole = run.recorded().checkpoints
    with (run.folder / "points.jsonl").open("ab") as file:
        file.write(b'{"step": 99, "comp')
    assert run.recorded().checkpoints == whole
    list(go_on(run, spec))
    assert results(run) == expected


@pytest.mark.parametrize("share", [0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99])
def test_cut_anywhere_the_run_ends_the_same(run: RunStore, spec: RunSpec, expected, share: float) -> None:
    with (run.folder / "points.jsonl").open("r+b") as file:
        file.truncate(int(share * (run.folder / "points.jsonl").stat().st_size))
    list(go_on(run, spec))
    assert results(run) == expected


def test_a_state_without_its_line_restarts_the_run(run: RunStore, spec: RunSpec, expected) -> None:
    points = run.folder / "points.jsonl"
    points.write_bytes(points.read_bytes().split(b"\n", 1)[0] + b"\n")
    assert run.resume() == (None, 0.0)
    (said,) = run.damage
    assert "points.jsonl has no line for this state; the run starts again" in said
    assert run.recorded().checkpoints == []
    list(go_on(run, spec))
    assert results(run) == expected


def test_lines_without_a_state_restart_the_run(run: RunStore, spec: RunSpec, expected) -> None:
    state = run.states.folder(run.states.steps()[0])
    state.rename(state.with_name(f".{state.name}"))  # as a kill just before the rename leaves it
    assert run.resume() == (None, 0.0)
    list(go_on(run, spec))
    assert results(run) == expected


def test_leftovers_are_removed_and_what_is_not_ours_stays(run: RunStore) -> None:
    states = run.folder / "state"
    (last,) = run.states.steps()
    (states / ".7").mkdir()
    (states / ".7" / "arrays.npz").write_bytes(b"half")
    (states / "0").mkdir(exist_ok=True)  # a kill between the rename and the removal of the old one
    (states / "notes").mkdir()
    (states / "notes" / "mine").write_text("mine")
    (run.folder / ".points.jsonl.123.tmp").write_text("half")
    (run.folder / ".mine.123.tmp").write_text("mine")
    run.fail("something", "")
    state, _ = run.resume()
    assert state == states / str(last)
    assert sorted(p.name for p in states.iterdir()) == [str(last), "notes"]
    assert (states / "notes" / "mine").read_text() == "mine"
    assert sorted(p.name for p in run.folder.iterdir()) == [
        ".mine.123.tmp", "points.jsonl", "spec.json", "state",
    ]  # fmt: skip


@pytest.mark.parametrize("damage", [b"\0" * 40, b'{"step": 1', b"", b'"a"', b"[1]", b"{}", b"[" * 10_000])
def test_a_damaged_line_is_cut_with_all_that_follows(
    run: RunStore, spec: RunSpec, expected, damage: bytes
) -> None:
    points = run.folder / "points.jsonl"
    whole, lines = run.recorded().checkpoints, points.read_bytes().split(b"\n")
    lines[1] = damage
    points.write_bytes(b"\n".join(lines))
    assert run.recorded().checkpoints == whole[:1]
    assert run.resume() == (None, 0.0)
    assert any("points.jsonl: line 2 is damaged" in said for said in run.damage)
    list(go_on(run, spec))
    assert results(run) == expected


@pytest.mark.parametrize("change", ["swap", "repeat", "lose", "digit", "another run's"])
def test_lines_that_look_sound_and_are_not(run: RunStore, spec: RunSpec, expected, change: str) -> None:
    points = run.folder / "points.jsonl"
    whole, lines = run.recorded().checkpoints, points.read_bytes().splitlines(keepends=True)
    if change == "swap":
        lines[1], lines[2] = lines[2], lines[1]
    elif change == "repeat":
        lines[1:1] = [lines[0]]
    elif change == "lose":
        del lines[1]
    elif change == "digit":
        lines[1] = lines[1].replace(b'"value": 0.', b'"value": 1.', 1)
    else:
        lines = [line for line, _ in chained("f" * 64, whole)]
    points.write_bytes(b"".join(lines))
    assert run.recorded().checkpoints == whole[: 0 if change == "another run's" else 1]
    list(go_on(run, spec))
    assert results(run) == expected


def chained(run_id: str, checkpoints: list[dict[str, object]]) -> Iterator[tuple[bytes, int]]:
    crc = Lines.of(run_id, b"").crcs[-1]
    for checkpoint in checkpoints:
        text, crc = line(checkpoint, crc)
        yield text, crc


@pytest.mark.parametrize("change", ["flip", "lose", "add", "rename"])
def test_a_state_that_is_not_as_it_was_written_restarts_the_run(
    run: RunStore, spec: RunSpec, expected, change: str
) -> None:
    state = run.states.folder(run.states.steps()[0])
    arrays = state / "arrays.npz"
    if change == "flip":
        content = bytearray(arrays.read_bytes())
        content[8] ^= 4  # the compression field
        arrays.write_bytes(content)
    elif change == "lose":
        arrays.unlink()
    elif change == "add":
        (state / "more").touch()
    else:
        state.rename(state.with_name("3"))
    assert run.resume() == (None, 0.0)
    (said,) = run.damage
    assert "the run starts again" in said
    list(go_on(run, spec))
    assert results(run) == expected


def test_of_two_states_the_last_sound_one_counts(run: RunStore, spec: RunSpec, expected) -> None:
    """As after a kill between the publication of a state and the removal of the one before."""
    before = run.states.folder(run.states.steps()[0])
    shutil.copytree(before, run.folder / "kept")
    list(go_on(run, spec))
    after = run.states.folder(run.states.steps()[0])
    (run.folder / "kept").rename(before)
    (after / "state.json").write_text("{}")
    assert run.resume()[0] == before
    assert f"continues from step {before.name}" in run.damage[0]
    list(go_on(run, spec))
    assert results(run) == expected


def test_wall_s_goes_on_where_it_stopped(run: RunStore, spec: RunSpec) -> None:
    seconds = [line["wall_s"] for line in run.recorded().checkpoints][:PUBLISHED]
    list(go_on(run, spec))
    again = [line["wall_s"] for line in run.recorded().checkpoints]
    assert again[:PUBLISHED] == seconds
    assert again == sorted(again)


# The whole directory


@pytest.fixture
def done(tiny, tmp_path: Path) -> SweepStore:
    engine.sweep(tiny(), tmp_path / "sweep")
    return SweepStore(tmp_path / "sweep")


def test_layout(done: SweepStore) -> None:
    assert {p.name for p in done.directory.iterdir()} == {"lock", "sweep.json", "runs", "points.parquet"}
    assert len(done.run_ids()) == 4
    for run_id in done.run_ids():
        run = done.run(run_id)
        assert {p.name for p in run.folder.iterdir()} == {
            "spec.json",
            "points.jsonl",
            "state",
            "DONE",
            "lock",
        }
        assert run.read_spec().run_id == run_id
        assert [p.name for p in (run.folder / "state").iterdir()] == [str(run.read_spec().steps)]
        assert run.recorded().done_compute == 20_000


def test_points_parquet_can_be_rebuilt(done: SweepStore, tiny) -> None:
    path = done.directory / "points.parquet"
    before = pd.read_parquet(path)
    path.unlink()
    engine.sweep(tiny(), done.directory)
    pd.testing.assert_frame_equal(pd.read_parquet(path), before)


def test_unfinished_runs_can_be_read(done: SweepStore) -> None:
    run = done.run(done.run_ids()[0])
    lines = (run.folder / "points.jsonl").read_bytes().splitlines(keepends=True)
    (run.folder / "points.jsonl").write_bytes(b"".join(lines[:3]) + lines[3][:10])
    points = done.collect().points
    assert points[points["run_id"] == run.folder.name]["step"].nunique() == 3


def test_attributes_ride_on_the_run(done: SweepStore) -> None:
    table = done.collect().table()
    assert set(table["lr"]) == {next(iter(PRESETS.values())).lr_easy}
    assert set(table["n_train_problems"]) == {50}


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ((10240, 12288), "10240-12288"),
        ((10240, 10240), "10240"),
    ],
)
def test_tuples_of_a_recipe_are_text_that_selects_runs(spec: RunSpec, values, text: str) -> None:
    recipe = spec.recipe.model_copy(update={"interrupt_at": values})
    assert tables.attributes_of(spec.model_copy(update={"recipe": recipe}))["interrupt_at"] == text


def test_collect_before_anything_is_there(tmp_path: Path) -> None:
    with pytest.raises(NoHistory, match="no checkpoint"):
        SweepStore(tmp_path).collect()


def lose(path: Path) -> None:
    path.unlink()


def flip(path: Path) -> None:
    path.write_text(path.read_text().replace("20000", "30000", 1))


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lose, "missing"),
        (flip, "its checksum does not match"),
        (lambda path: path.write_text(""), "the file is empty"),
        (lambda path: path.write_text(path.read_text()[:-1]), "not JSON"),
        (lambda path: path.write_text("[" * 100_000), "nested too deeply"),
        (lambda path: path.write_text('{"a": Infinity}'), "Infinity is not JSON"),
    ],
)
def test_a_damaged_spec_is_told_and_written_anew(done: SweepStore, tiny, isolaw, damage, why: str) -> None:
    before, (run_id, *_) = done.collect(), done.run_ids()
    path = done.run(run_id).folder / "spec.json"
    damage(path)
    (note,) = done.collect().notes
    assert f"{path}: " in note
    assert why in note
    (said,) = engine.status(done.directory)["damaged"]
    assert said["run_id"] == run_id
    for command in (["status"], ["fit", "--out", done.directory.parent / "law.json"]):
        _, out, err = isolaw(*command, done.directory)
        assert str(path) in out + err
    engine.sweep(tiny(), done.directory)
    assert engine.status(done.directory)["damaged"] == []
    pd.testing.assert_frame_equal(done.collect().points, before.points)


@pytest.mark.parametrize("damage", [lose, flip, lambda path: path.write_text("[" * 100_000)])
def test_a_damaged_sweep_json_is_written_anew_by_the_sweeps_own_command(
    done: SweepStore, tiny, same, isolaw, damage
) -> None:
    larger = tiny(sweep={"compute": 40_000})
    whole = engine.sweep(larger, done.directory.parent / "whole")
    path = done.directory / "sweep.json"
    damage(path)
    for command in (["status", done.directory], ["sweep", "--out", done.directory]):
        code, out, err = isolaw(*command)
        assert (code, out) == (2, "")
        assert f"{path}: " in err
    engine.sweep(tiny(), done.directory.parent / "whole2")
    runs = engine.sweep(larger, done.directory)
    same(runs, engine.sweep(larger, done.directory.parent / "whole2"))
    assert engine.status(done.directory)["done"] == 4
    assert len(runs) == len(whole)


def test_a_damaged_failure_is_one(done: SweepStore) -> None:
    run = done.run(done.run_ids()[0])
    (run.folder / "DONE").unlink()
    (run.folder / "FAILED.json").write_text('{"cause": ')
    (failure,) = engine.status(done.directory)["failures"]
    assert failure["cause"].startswith("the cause is unknown: ")


# Claim and lock


@pytest.mark.parametrize("name", ["notes.txt", "points.parquet", "runs", ".git"])
def test_a_directory_that_holds_something_else(tmp_path: Path, tiny, tree, name: str) -> None:
    (tmp_path / name).write_text("mine")
    before = tree(tmp_path)
    with pytest.raises(StoreError, match=f"contains other files \\({name}\\)"):
        engine.sweep(tiny(), tmp_path)
    assert tree(tmp_path) == before


def test_a_file_in_the_place_of_the_directory(tmp_path: Path, tiny) -> None:
    path = tmp_path / "out"
    path.write_text("mine")
    with pytest.raises(StoreError, match="is a file"):
        engine.sweep(tiny(), path)
    assert path.read_text() == "mine"


def test_an_empty_directory_is_accepted(tmp_path: Path, tiny) -> None:
    assert len(engine.sweep(tiny(), tmp_path)) == 4


def test_a_start_that_was_killed_is_no_obstacle(tmp_path: Path, tiny) -> None:
    (tmp_path / "lock").write_text(f"process 1 on {socket.gethostname()}\nmark\n")
    (tmp_path / ".sweep.json.123.tmp").write_text('{"format":')
    assert len(engine.sweep(tiny(), tmp_path)) == 4
    assert not list(tmp_path.glob(".*"))


def test_one_engine_at_a_time(done: SweepStore) -> None:
    with done.lock():
        assert done.in_use
        with (
            pytest.raises(StoreError, match=f"in use by process {os.getpid()} on "),
            SweepStore(done.directory).lock(),
        ):
            pass
    assert not done.in_use
    with done.lock():
        pass


def test_the_lock_of_a_process_that_was_killed_is_free(done: SweepStore) -> None:
    script = (
        "import sys, time; from isolaw.store import SweepStore\n"
        "with SweepStore(sys.argv[1]).lock(): print('held', flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(done.directory)], stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        assert done.in_use
        with pytest.raises(StoreError, match=f"process {holder.pid} "), done.lock():
            pass
        holder.kill()
    with done.lock():
        pass


def test_a_look_does_not_keep_an_engine_from_starting(done: SweepStore) -> None:
    import fcntl

    look = (done.directory / "lock").open()
    fcntl.flock(look, fcntl.LOCK_SH)  # what `in_use` holds for an instant
    threading.Timer(0.05, look.close).start()
    with done.lock():
        assert look.closed


def test_nothing_is_pickled(done: SweepStore) -> None:
    for path in done.directory.rglob("*"):
        assert path.suffix not in (".pkl", ".pickle")
    import numpy as np

    for path in done.directory.rglob("*.npz"):
        with np.load(path, allow_pickle=False) as arrays:
            assert all(arrays[name].dtype != object for name in arrays)
    assert json.loads((done.directory / "sweep.json").read_text())["format"] == "isolaw.sweep/1"


def test_results_of_single_problems_are_kept_beside_the_table(spec: RunSpec, tmp_path: Path) -> None:
    sweep = SweepStore(tmp_path / "sweep")
    run = sweep.run(spec.run_id)
    run.create(spec)
    counts = [
        AnswerCounts("validation", 4, ["x", "y"], [4, 0]),
        AnswerCounts("aime24", 2, ["z"], [1]),
    ]
    row = Measurement("validation", "avg@4", 0.5)
    made = [
        Checkpoint(step, step * spec.batch_rollouts, [row], lambda folder: None, counts=counts)
        for step in (0, 1)
    ]
    run.resume()
    list(run.record(iter(made), 0.0))
    problems = sweep.collect().problems
    assert problems is not None
    assert len(problems) == 6
    first = problems[(problems["step"] == 1) & (problems["eval_set"] == "validation")]
    assert first[["problem_id", "correct", "samples"]].to_numpy().tolist() == [["x", 4, 4], ["y", 0, 4]]
    tables.publish(sweep, sweep.collect())
    written = pd.read_parquet(sweep.directory / "problems.parquet")
    pd.testing.assert_frame_equal(written, problems, check_dtype=False)
    selected = sweep.collect().select([spec.run_id]).problems
    assert selected is not None
    assert len(selected) == 6
    ids = run.folder / "problems.json"
    ids.write_text(ids.read_text().replace('"x"', '"w"'))
    damaged = sweep.collect()
    assert damaged.problems is None
    assert any(str(ids) in note for note in damaged.notes)


def test_responses_share_the_fate_of_their_checkpoint(spec: RunSpec, tmp_path: Path) -> None:
    """They are read back as they were, cut on resume with their line, and lost with a damaged one."""
    sweep = SweepStore(tmp_path / "sweep")
    run = sweep.run(spec.run_id)
    run.create(spec)
    said = Response("validation", "p\u2028", "1+1=\x00", '</script>\n"2"', "2", 1.0, 3, False)
    row = Measurement("validation", "avg@4", 0.5)

    def made(steps: range) -> Iterator[Checkpoint]:
        for step in steps:
            own = [replace(said, reward=float(step))]
            yield Checkpoint(step, step * spec.batch_rollouts, [row], lambda _: None, responses=own)

    run.resume()
    recording = run.record(made(range(4)), 0.0)
    next(recording)
    run.ask_to_stop()  # the next one publishes a state
    next(recording)
    recording.close()
    run.proceed()
    (first, second) = sweep.responses()
    assert (first.step, first.compute, first.responses) == (0, 0, [replace(said, reward=0.0)])
    points = run.folder / "points.jsonl"
    before = points.read_bytes()
    again = sweep.run(spec.run_id)
    again.resume()
    lost = again.record(made(range(2, 4)), 0.0)
    next(lost)
    lost.close()  # killed before it publishes a state
    assert [one.step for one in sweep.responses()] == [0, 1, 2]
    sweep.run(spec.run_id).resume()
    assert points.read_bytes() == before
    assert [one.step for one in sweep.responses()] == [0, 1]
    points.write_bytes(before.replace(b"</script>", b"</scripx>", 1))
    assert list(sweep.responses()) == []
    assert second.responses == [replace(said, reward=1.0)]


@pytest.mark.parametrize(("seconds", "synced"), [(0.01, False), (2.0, True)])
def test_runs_of_less_than_a_second_leave_syncing_to_the_engine(
    spec: RunSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, synced: bool
) -> None:
    clock, calls = [0.0], []
    run = SweepStore(tmp_path).run(spec.run_id)
    run.create(spec)
    run.resume()
    monkeypatch.setattr("isolaw.store.run.time.monotonic", lambda: clock[0])
    monkeypatch.setattr("isolaw.store.run.os.fsync", calls.append)

    def checkpoints() -> Iterator[Checkpoint]:
        for step in range(4):
            clock[0] += seconds

            def save(folder: Path) -> None:
                (folder / "weights").write_bytes(b"1")

            yield Checkpoint(step, step * spec.batch_rollouts, [], save, final=step == 3)

    list(run.record(checkpoints(), 0.0))
    assert bool(calls) == synced
    assert run.recorded_at > 0
    assert SweepStore(tmp_path).run("f" * 64).recorded_at == 0


@pytest.mark.parametrize("sync", [False, True])
def test_a_file_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch, sync: bool) -> None:
    synced = []
    monkeypatch.setattr(
        "isolaw.store.folder.os.fsync",
        lambda file: synced.append((os.fstat(file).st_size, (tmp_path / "table").exists())),
    )
    Folder.at(tmp_path).write("table", b"123", sync)
    assert synced[:1] == ([(3, False)] if sync else [])


def test_a_state_that_takes_long_to_write_is_written_seldom(
    spec: RunSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Saving a large model takes at most a tenth of a run's time."""
    clock = [0.0]
    monkeypatch.setattr("isolaw.store.run.time.monotonic", lambda: clock[0])
    run = SweepStore(tmp_path).run(spec.run_id)
    run.create(spec)
    saved = []

    def checkpoints() -> Iterator[Checkpoint]:
        for step in range(200):
            clock[0] += 1.0

            def save(folder: Path, step: int = step) -> None:
                clock[0] += 5.0
                saved.append(step)

            yield Checkpoint(step, step * spec.batch_rollouts, [], save, final=step == 199)

    run.resume()
    list(run.record(checkpoints(), 0.0))
    assert saved == [0, 50, 100, 150, 199]
