"""Sweeps mirrored to trackers: read back with the trackers' own libraries, and with our readers."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import isolaw
from isolaw import engine
from isolaw.config import SweepSpec
from isolaw.errors import SpecError
from isolaw.store import SweepStore
from isolaw.trackers import mirror

FOLDERS = {"tensorboard": "tensorboard", "wandb": "wandb"}
ALL = ["tensorboard", pytest.param("wandb", marks=pytest.mark.slow)]
MEASURED = ["problems_per_batch", "rollouts_per_problem", "seed", "step", "eval_set", "metric"]
KEPT = ["problem_set", "algorithm", "compute", "value", "n_problems", "n_samples"]


@pytest.fixture(autouse=True)
def nothing_leaks(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Trackers take settings from the environment and from the user's home."""
    home = str(tmp_path_factory.mktemp("home"))
    for name in ("WANDB_MODE", "WANDB_DIR", "WANDB_PROJECT", "WANDB_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    for name in ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, home)


@pytest.fixture
def spec(tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., SweepSpec]:
    def make(to: str | list[str], compute: float = 20_000, **sections: Any) -> SweepSpec:
        own = sections.pop("tracking", {})
        return tiny(sweep={"compute": compute}, tracking={"to": to, **own}, **sections)

    return make


def assert_mirrored(out: Path, tracker: str, folder: Path | None = None) -> None:
    """What the tracker holds, read as anybody's log, is the sweep's own table."""
    own, read = isolaw.read(out), isolaw.read(folder or out / FOLDERS[tracker])
    left, right = (
        runs.points.sort_values(MEASURED).reset_index(drop=True)[MEASURED + KEPT] for runs in (own, read)
    )
    for column in ("n_problems", "n_samples"):  # a tracker has one of each for a whole run
        right[column] = right[column].where(left[column].notna())
    pd.testing.assert_frame_equal(left, right)
    limits = {"max_batch_rollouts", "framework"}  # of the sweep, and of the reader
    attributes = [
        sorted(str(sorted((k, v) for k, v in a.items() if k not in limits)) for a in runs.attributes.values())
        for runs in (own, read)
    ]
    assert attributes[0] == attributes[1]


def assert_each_once(out: Path, tracker: str) -> None:
    """Every checkpoint is there once, in order, in each of the tracker's curves."""
    store = SweepStore(out)
    wanted = {
        run_id[:8]: [line["compute"] for line in store.run(run_id).recorded().checkpoints]
        for run_id in store.run_ids()
    }
    assert {name: set(map(tuple, item.values())) for name, item in CURVES[tracker](out).items()} == {
        name: {tuple(compute)} for name, compute in wanted.items()
    }


def tensorboard_curves(out: Path) -> dict[str, dict[str, list[int]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    curves = {}
    for folder in (out / "tensorboard").iterdir():
        events = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
        curves[folder.name[-8:]] = {
            # TensorBoard takes a directory's files by name: of one second, the 10th before the 9th.
            tag: sorted(event.step for event in events.Scalars(tag))
            for tag in events.Tags()["scalars"]
        }
    return curves


def wandb_curves(out: Path) -> dict[str, dict[str, list[int]]]:
    """W&B has no reader of its own files: here they are read record by record with its messages."""
    from isolaw.readers.containers.wandb_offline import CONTAINER

    curves: dict[str, dict[str, list[int]]] = {}
    for folder in sorted((out / "wandb").glob("offline-run-*")):
        (log,) = CONTAINER.read(folder)
        own = curves.setdefault(log.run.partition(" ")[0][-8:], {})
        for key, series in log.series.items():
            own.setdefault(key, []).extend(int(log.step[r]) for r in series.record)
    return curves


CURVES = {
    "tensorboard": tensorboard_curves,
    "wandb": wandb_curves,
}


@pytest.mark.parametrize(
    "tracker", ["tensorboard", pytest.param("wandb", marks=[pytest.mark.slow, pytest.mark.nightly])]
)
def test_extended_and_run_again(tracker: str, spec, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for compute in (20_000, 20_000, 60_000):
        isolaw.sweep(spec(tracker, compute), out)
    assert isolaw.read(out).points["compute"].max() == 60_000
    assert_mirrored(out, tracker)
    assert_each_once(out, tracker)


@pytest.mark.nightly
@pytest.mark.parametrize("tracker", ALL)
def test_interrupted_anywhere_and_continued(
    tracker: str, spec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror, "EVERY_S", 0.0)
    monkeypatch.setattr("isolaw.store.run.PUBLISH_EVERY_S", 0.0)
    monkeypatch.setattr("isolaw.store.run.PUBLISHING_SHARE", 1e9)
    out = tmp_path / "out"
    for events_seen in (3, 5, 14):
        with closing(engine.execute(engine.resolve_sweep(spec(tracker), out), out)) as events:
            for _ in range(events_seen):
                next(events)
    isolaw.sweep(spec(tracker), out)
    assert_mirrored(out, tracker)
    assert_each_once(out, tracker)


def test_the_x_axis_is_rollouts_and_names_can_be_read(spec, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    out = tmp_path / "out"
    isolaw.sweep(spec("tensorboard"), out)
    (run_id,) = [
        r for r in SweepStore(out).run_ids() if _is(SweepStore(out).run(r).read_spec(), n=16, seed=1)
    ]
    events = EventAccumulator(str(out / "tensorboard" / f"Bp8-n16-seed1-{run_id[:8]}")).Reload()
    lines = SweepStore(out).run(run_id).recorded().checkpoints
    assert set(events.Tags()["scalars"]) == {
        "validation/avg@4",
        "validation/best@4",
        "validation/worst@4",
        "validation/zero_fraction",
        "validation/gini",
        "train/drift",
        "isolaw/step",
        "isolaw/wall_s",
    }
    scalars = events.Scalars("validation/avg@4")
    assert [e.step for e in scalars] == [line["step"] * 8 * 16 for line in lines]
    assert [e.value for e in scalars] == pytest.approx([line["rows"][0]["value"] for line in lines])
    assert scalars[-1].wall_time - scalars[0].wall_time == pytest.approx(
        lines[-1]["wall_s"] - lines[0]["wall_s"], abs=1e-5
    )
    config = json.loads(events.Tensors("config/text_summary")[0].tensor_proto.string_val[0])["isolaw"]
    assert (config["run_id"], config["problems_per_batch"], config["seed"]) == (run_id, 8, 1)


def _is(run: Any, n: int, seed: int) -> bool:
    return (run.rollouts_per_problem, run.seed) == (n, seed)


@pytest.mark.slow
def test_several_trackers_and_worker_processes(spec, tmp_path: Path) -> None:
    out = tmp_path / "out"
    isolaw.sweep(spec(["tensorboard", "wandb"], executor={"kind": "processes", "jobs": 2}), out)
    for tracker in ("tensorboard", "wandb"):
        assert_mirrored(out, tracker)
        assert_each_once(out, tracker)


def test_only_what_no_resume_cuts_is_mirrored(spec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror, "EVERY_S", 0.0)
    out = tmp_path / "out"
    with closing(engine.execute(engine.resolve_sweep(spec("tensorboard"), out), out)) as events:
        for _, event in zip(range(4), events, strict=False):
            run = SweepStore(out).run(event.run_id)
            assert run.last_state is None  # published once a second
            assert len(run.recorded().checkpoints) > 0
    assert not (out / "tensorboard").exists()


def test_a_run_that_is_long_is_mirrored_while_it_runs(
    spec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror, "EVERY_S", 0.0)
    monkeypatch.setattr("isolaw.store.run.PUBLISH_EVERY_S", 0.0)
    monkeypatch.setattr("isolaw.store.run.PUBLISHING_SHARE", 1e9)
    out = tmp_path / "out"
    with closing(engine.execute(engine.resolve_sweep(spec("tensorboard"), out), out)) as events:
        for _ in range(6):
            next(events)
        ((_, curves),) = tensorboard_curves(out).items()
        assert len(curves["isolaw/step"]) >= 4


def test_what_was_finished_before_is_mirrored_when_it_is_asked_for(spec, tiny, tmp_path: Path) -> None:
    out = tmp_path / "out"
    isolaw.sweep(tiny(), out)
    isolaw.sweep(spec("tensorboard"), out)
    assert_mirrored(out, "tensorboard")


def test_after_a_torn_event_it_goes_on(spec, tmp_path: Path) -> None:
    out = tmp_path / "out"
    isolaw.sweep(spec("tensorboard"), out)
    for file in out.glob("tensorboard/*/events.*"):
        file.write_bytes(file.read_bytes()[:-20])
    isolaw.sweep(spec("tensorboard"), out)
    assert_mirrored(out, "tensorboard")


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """TensorBoard's writer fails whenever it is opened; which runs it was opened for."""
    opened: list[str] = []

    def fail(folder: str) -> None:
        opened.append(folder)
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("tensorboard.summary.writer.event_file_writer.EventFileWriter", fail)
        yield opened


def test_a_tracker_that_fails_warns_once_and_stops_nothing(
    broken: list[str], isolaw, tiny, same, tmp_path: Path
) -> None:
    import isolaw as library

    toml = tmp_path / "sweep.toml"
    toml.write_text(
        "[sweep]\ncompute = 20_000\nseeds = 2\n"
        "[grid]\nproblems_per_batch = [8]\nrollouts_per_problem = [4, 16]\n"
        "[problems]\nn_train = 50\nn_validation = 40\n[evaluation]\npoints = 8\n"
        '[executor]\nkind = "inline"\n[tracking]\nto = ["tensorboard"]\n'
    )
    code, said, notes = isolaw("sweep", toml, "--out", tmp_path / "out")
    assert code == 0
    assert "4 of 4 runs are done" in said
    assert "warning" not in said
    assert notes.count("warning: tensorboard: isolaw stops mirroring") == 1
    assert "No space left on device" in notes
    assert len(broken) == 1
    same(library.read(tmp_path / "out"), engine.sweep(tiny()))
    with pytest.warns(UserWarning, match="No space left on device"):
        library.sweep(toml, tmp_path / "out")


def test_and_the_next_sweep_brings_it_up_to_date(
    spec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr("tensorboard.summary.writer.event_file_writer.EventFileWriter", None)
        with pytest.warns(UserWarning, match="isolaw stops mirroring"):
            isolaw.sweep(spec("tensorboard"), out)
    isolaw.sweep(spec("tensorboard"), out)
    assert_mirrored(out, "tensorboard")


@pytest.mark.parametrize("tracker", ["tensorboard", "wandb"])
def test_a_library_that_is_missing_is_said_before_anything_is_spent(
    tracker: str, spec, tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SpecError) as error:
        isolaw.sweep(spec(tracker), tmp_path / "out")
    (problem,) = error.value.issues
    assert str(problem) == f"tracking.to: {tracker} is not installed: pip install 'isolaw[{tracker}]'"
    assert tree(tmp_path) == {}


def test_a_folder_of_the_same_name_is_no_library(
    spec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wandb").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    (problem,) = mirror.check(spec("wandb").tracking)
    assert "wandb is not installed" in str(problem)


def test_a_tracker_that_is_none(isolaw, tmp_path: Path) -> None:
    code, said, notes = isolaw("sweep", "--out", tmp_path / "out", "--set", "tracking.to=['tensorbord']")
    assert (code, said) == (2, "")
    assert "tracking.to: found 'tensorbord'; expected 'tensorboard' or 'wandb'" in notes
    assert not (tmp_path / "out").exists()


def test_a_directory_that_is_a_file(spec, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SpecError, match=r"tracking\.directory"):
        isolaw.sweep(spec("tensorboard", tracking={"directory": str(tmp_path / "file")}), tmp_path / "out")


def test_a_mirror_changes_no_run(spec, tiny, same, tmp_path: Path) -> None:
    isolaw.sweep(tiny(), tmp_path / "plain")
    isolaw.sweep(spec(["tensorboard"]), tmp_path / "mirrored")
    same(isolaw.read(tmp_path / "plain"), isolaw.read(tmp_path / "mirrored"))
    plain, mirrored = (SweepStore(tmp_path / name).run_ids() for name in ("plain", "mirrored"))
    assert plain == mirrored
