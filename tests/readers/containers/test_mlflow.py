"""MLflow's file store, written by MLflow's own client."""

from __future__ import annotations

import logging
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import isolaw
from isolaw.errors import DataError
from isolaw.readers.containers.mlflow import CONTAINER
from isolaw.readers.raw_log import RawLog

# veRL replaces what MLflow does not accept in a name: @.
HELD_OUT = "val-core/aime24/acc/mean_at_8"
TABLE = {
    "critic/score/mean": {1: 0.25, 2: 0.3125, 3: 0.75},
    HELD_OUT: {0: 0.1, 3: 0.123456789},
}


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A client of a store in ``tmp_path/mlruns``."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # newer versions ask for it
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    logging.getLogger("mlflow").setLevel(logging.ERROR)
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=(tmp_path / "mlruns").as_uri())


def test_a_run_as_verl_logs_it(client, tmp_path: Path) -> None:
    from mlflow.entities import Metric, Param

    experiment = client.create_experiment("p")
    run = client.create_run(experiment, run_name="qwen n8").info.run_id
    params = {
        "data/train_batch_size": 32,
        "actor_rollout_ref/rollout/n": 8,
        "actor_rollout_ref/actor/lr": 1e-6,
    }
    params |= {"algorithm/adv_estimator": "grpo", "algorithm/use_kl_in_reward": False, "trainer/seed": None}
    metrics = [
        Metric(key, value, 1_720_000_000_000 + 60_000 * step, step)
        for key, steps in TABLE.items()
        for step, value in steps.items()
    ]
    client.log_batch(run, metrics=metrics, params=[Param(key, str(value)) for key, value in params.items()])
    folder = tmp_path / "mlruns" / experiment / run
    assert CONTAINER.directory(folder)
    assert not CONTAINER.directory(folder.parent)  # the experiment
    assert not CONTAINER.directory(tmp_path / "mlruns")
    (log,) = CONTAINER.read(folder)
    assert table(log) == TABLE
    assert list(log.step) == [0, 1, 2, 3]
    assert list(log.wall_s) == [0, 60, 120, 180]
    assert log.run == f"qwen n8 ({run[:8]})"
    assert log.config == {
        "data.train_batch_size": 32,
        "actor_rollout_ref.rollout.n": 8,
        "actor_rollout_ref.actor.lr": 1e-6,
        "algorithm.adv_estimator": "grpo",
        "algorithm.use_kl_in_reward": False,
        "trainer.seed": None,
    }
    assert (log.config_source, log.dropped) == ("params", {})


def test_a_store_becomes_runs(client, tmp_path: Path) -> None:
    experiment = client.create_experiment("p")
    for seed in (1, 2):
        run = client.create_run(experiment, run_name=f"seed {seed}").info.run_id
        for key, value in {
            "data/train_batch_size": 32,
            "actor_rollout_ref/rollout/n": 8,
            "data/seed": seed,
        }.items():
            client.log_param(run, key, value)
        for key, steps in TABLE.items():
            for step, value in steps.items():
                client.log_metric(run, key, value, step=step)
    client.delete_run(client.create_run(experiment).info.run_id)
    runs = isolaw.read(tmp_path / "mlruns")
    held_out = runs.points[(runs.points["eval_set"] == "aime24") & (runs.points["metric"] == "avg@8")]
    assert dict(zip(held_out["compute"], held_out["value"], strict=True)) == {
        step * 32 * 8: value for step, value in TABLE[HELD_OUT].items()
    }
    assert sorted(runs.table()["seed"]) == [1, 2]


def test_deleted_runs_are_left_out(client, tmp_path: Path) -> None:
    experiment = client.create_experiment("p")
    runs = [client.create_run(experiment).info.run_id for _ in range(2)]
    for run in runs:
        client.log_metric(run, "reward", 0.5, step=1)
    client.delete_run(runs[0])
    assert [len(list(CONTAINER.read(tmp_path / "mlruns" / experiment / run))) for run in runs] == [0, 1]
    client.delete_experiment(experiment)
    (gone,) = (tmp_path / "mlruns" / ".trash").glob(f"*/{runs[1]}")
    assert list(CONTAINER.read(gone)) == []


def table(log: RawLog) -> dict[str, dict[int, float]]:
    return {
        key: {int(log.step[r]): v for r, v in zip(curve.record, curve.value, strict=True)}
        for key, curve in log.series.items()
    }


def written(folder: Path, metrics: str | bytes, name: str = "reward") -> RawLog:
    """A run by hand, in the layout that MLflow documents."""
    (folder / "metrics").mkdir(parents=True, exist_ok=True)
    (folder / "meta.yaml").write_text("lifecycle_stage: active\nrun_name: 'a run'\n")
    (folder / "metrics" / name).write_bytes(metrics.encode() if isinstance(metrics, str) else metrics)
    (log,) = CONTAINER.read(folder)
    return log


def test_a_step_that_is_repeated_after_a_resume(tmp_path: Path) -> None:
    log = written(tmp_path, "1000 0.1 1\n2000 0.2 2\n3000 0.3 3\n9000 0.25 2\n10000 0.35 3\n11000 0.4 4\n")
    assert list(log.step) == [1, 2, 3, 4, 2, 3]
    assert list(log.series["reward"].value) == [0.1, 0.2, 0.3, 0.4, 0.25, 0.35]
    assert table(log) == {"reward": {1: 0.1, 2: 0.25, 3: 0.35, 4: 0.4}}


def test_metrics_without_a_step(tmp_path: Path) -> None:
    log = written(tmp_path, "1000 0.1 0\n2000 0.2 0\n3000 0.3 0\n")
    assert all(math.isnan(step) for step in log.step)
    assert list(log.series["reward"].value) == [0.1, 0.2, 0.3]
    (log,) = [written(tmp_path / "one", "1000 0.1 0\n")]
    assert list(log.step) == [0]


def test_a_metric_of_a_data_set_has_five_fields(tmp_path: Path) -> None:
    assert table(written(tmp_path, "1000 0.5 7 aime24 0123abcd\n")) == {"reward": {7: 0.5}}


def test_half_a_last_line(tmp_path: Path) -> None:
    log = written(tmp_path, "1000 0.5 7\n2000 0.75 1")  # of 14
    assert table(log) == {"reward": {7: 0.5}}
    assert log.dropped == {"torn metric lines": 1}


def test_lines_that_are_none(tmp_path: Path) -> None:
    log = written(tmp_path, b"\0\0\n1000 x 7\n\n1000 0.5\n\xff\xfe 1 2\n1 2 nan\n1000 0.5 7\n5 inf 8\n")
    assert table(log) == {"reward": {7: 0.5}}
    assert log.dropped["metric lines that are not 'time value step'"] == 5
    assert log.dropped["values that are not finite"] == 1


def test_a_line_without_an_end(tmp_path: Path) -> None:
    log = written(tmp_path, b"9" * 100_000)
    assert log.series == {}
    assert set(log.dropped) == {"torn metric lines"}


def test_only_a_run_is_taken(tmp_path: Path) -> None:
    assert not CONTAINER.directory(tmp_path)
    (tmp_path / "meta.yaml").write_text("experiment_id: '0'\n")
    assert not CONTAINER.directory(tmp_path)
    assert not CONTAINER.file(tmp_path / "meta.yaml", b"experiment_id: '0'\n")


def test_a_configuration_beyond_all_bounds(tmp_path: Path) -> None:
    (tmp_path / "params").mkdir()
    (tmp_path / "params" / "n").write_bytes(b"8" * 3_000_000)
    (tmp_path / "params" / "m").write_bytes(b"\xff\0")
    log = written(tmp_path, "1 0.5 1\n")
    assert set(log.config) == {"n", "m"}
    assert len(log.config["n"]) <= 1 << 20


def test_a_name_is_that_of_the_tag(tmp_path: Path) -> None:
    assert written(tmp_path, "1 0.5 1\n").run == f"a run ({tmp_path.name[:8]})"
    (tmp_path / "tags").mkdir()
    (tmp_path / "tags" / "mlflow.runName").write_text("renamed")
    assert written(tmp_path, "1 0.5 1\n").run == f"renamed ({tmp_path.name[:8]})"


def test_a_meta_file_of_any_kind_is_quick(tmp_path: Path) -> None:
    written(tmp_path, "1 0.5 1\n")
    (tmp_path / "meta.yaml").write_bytes(b"run_name:" + b" " * 1_000_000 + b"x" + b"\0\xff" * 10)
    (log,) = CONTAINER.read(tmp_path)
    assert table(log) == {"reward": {1: 0.5}}


def test_what_cannot_be_read(tmp_path: Path) -> None:
    written(tmp_path, "1 0.5 1\n")
    (tmp_path / "metrics" / "locked").mkdir()
    (tmp_path / "metrics" / "locked" / "x").symlink_to(tmp_path / "metrics" / "locked" / "x")
    (log,) = CONTAINER.read(tmp_path)  # a link in a circle is no file
    assert table(log) == {"reward": {1: 0.5}}
    with pytest.raises(DataError, match="gone: not a run"):
        list(CONTAINER.read(tmp_path / "gone"))


POINT = st.from_regex(rb"[0-9]{1,13} [0-9.eE+-]{1,9} [0-9-]{1,9}\n?")


@given(st.lists(st.binary(max_size=60) | POINT, max_size=9))
def test_any_bytes_are_survived(tmp_path_factory: pytest.TempPathFactory, lines: list[bytes]) -> None:
    run = tmp_path_factory.mktemp("run")
    content = b"".join(lines)
    for name in ("meta.yaml", "metrics/critic/score/mean", "params/a.b", "tags/mlflow.runName"):
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_bytes(content)
    for log in CONTAINER.read(run):
        assert all(math.isfinite(value) for curve in log.series.values() for value in curve.value)


def test_links_of_a_run_stay_in_it(tmp_path: Path) -> None:
    outside, run = tmp_path / "outside", tmp_path / "run"
    for folder in (outside, run / "metrics", run / "tags"):
        folder.mkdir(parents=True)
    (outside / "secret").write_text("theirs")
    (run / "meta.yaml").write_text("run_name: own\n")
    (run / "metrics" / "reward").write_text("1 0.5 1\n")
    (run / "tags" / "mlflow.runName").symlink_to(outside / "secret")
    (run / "params").symlink_to(outside)
    (log,) = CONTAINER.read(run)
    assert log.run == "own (run)"
    assert log.config == {}
    assert list(log.series) == ["reward"]
