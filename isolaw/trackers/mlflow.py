"""MLflow: the server of ``MLFLOW_TRACKING_URI``, else a file store in ``<directory>/mlruns``.

An experiment for the project, a run for each of ours, known by its tag ``isolaw.run_id``. MLflow accepts
no ``@`` in names, so it is written ``_at_``, as veRL does: ``validation/avg_at_4``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from isolaw.readers.configs import flatten
from isolaw.trackers.base import STEP, TrackedRun, Tracker

_TAG = "isolaw.run_id"


class _Writer:
    def __init__(self, run: TrackedRun) -> None:
        from mlflow.entities import Metric, Param

        self._metric = Metric
        self._client = _client(run)
        experiment = self._client.get_experiment_by_name(run.project)
        known = _find(self._client, run)
        if known is not None:
            self._id = known
            self._client.update_run(known, status="RUNNING")
            return
        experiment_id = (
            experiment.experiment_id if experiment else self._client.create_experiment(run.project)
        )
        created = self._client.create_run(experiment_id, run_name=run.name, tags={_TAG: run.run_id})
        self._id = created.info.run_id
        params = [Param(key, str(value)) for key, value in flatten(run.config).items()]
        self._client.log_batch(self._id, params=params)

    def log(self, compute: int, values: Mapping[str, float], at: float) -> None:
        # A batch is written metric by metric: with the step as the last, it says that all are there.
        tags = [*(tag for tag in values if tag != STEP), STEP]
        time_ms = int(at * 1000)
        metrics = [self._metric(_name(tag), float(values[tag]), time_ms, compute) for tag in tags]
        self._client.log_batch(self._id, metrics=metrics)

    def close(self, finished: bool) -> None:
        self._client.set_terminated(self._id, "FINISHED" if finished else "KILLED")


def _client(run: TrackedRun) -> Any:
    # Newer versions accept a file store only when told to.
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    from mlflow import MlflowClient

    run.directory.mkdir(parents=True, exist_ok=True)
    store = (run.directory / "mlruns").resolve().as_uri()
    return MlflowClient(tracking_uri=os.environ.get("MLFLOW_TRACKING_URI") or store)


def _find(client: Any, run: TrackedRun) -> str | None:
    experiment = client.get_experiment_by_name(run.project)
    if experiment is None:
        return None
    found = client.search_runs([experiment.experiment_id], f"tags.`{_TAG}` = '{run.run_id}'", max_results=1)
    return str(found[0].info.run_id) if found else None


def _name(tag: str) -> str:
    return tag.replace("@", "_at_")


def _reached(run: TrackedRun) -> int:
    client = _client(run)
    known = _find(client, run)
    history = client.get_metric_history(known, _name(STEP)) if known else []
    return max((point.step for point in history), default=-1)


TRACKER = Tracker("mlflow", "mlflow", reached=_reached, open=_Writer)
