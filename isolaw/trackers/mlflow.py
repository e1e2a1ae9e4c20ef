"""Write to MLflow: to the server in ``MLFLOW_TRACKING_URI`` or, if unset, to ``<directory>/mlruns``.

A project is an experiment in MLflow, and each run of isolaw is an MLflow run with the tag ``isolaw.run_id``.
MLflow does not accept ``@`` in names, so isolaw replaces it by ``_at_``, as veRL does.
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
        from mlflow.entities import Param

        self._client, experiment, known = _find(run)
        if known is not None:
            self._id = known
            self._client.update_run(known, status="RUNNING")
            return
        created = self._client.create_run(
            experiment or self._client.create_experiment(run.project),
            run_name=run.name,
            tags={_TAG: run.run_id},
        )
        self._id = created.info.run_id
        params = [Param(key, str(value)) for key, value in flatten(run.config).items()]
        self._client.log_batch(self._id, params=params)

    def log(self, compute: int, values: Mapping[str, float], at: float) -> None:
        from mlflow.entities import Metric

        # MLflow writes a batch metric by metric. The step is last, so its presence means a complete batch.
        tags = [*(tag for tag in values if tag != STEP), STEP]
        metrics = [Metric(_name(tag), float(values[tag]), int(at * 1000), compute) for tag in tags]
        self._client.log_batch(self._id, metrics=metrics)

    def close(self, finished: bool) -> None:
        self._client.set_terminated(self._id, "FINISHED" if finished else "KILLED")


def _find(run: TrackedRun) -> tuple[Any, str | None, str | None]:
    """Return a client, the id of the experiment and the id of the MLflow run; missing ids are None."""
    # Newer versions reject a file store without this variable.
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    from mlflow import MlflowClient

    run.directory.mkdir(parents=True, exist_ok=True)
    store = (run.directory / "mlruns").resolve().as_uri()
    client = MlflowClient(tracking_uri=os.environ.get("MLFLOW_TRACKING_URI") or store)
    experiment = client.get_experiment_by_name(run.project)
    if experiment is None:
        return client, None, None
    of_run = f"tags.`{_TAG}` = '{run.run_id}'"
    matches = client.search_runs([experiment.experiment_id], of_run, max_results=1)
    return client, experiment.experiment_id, matches[0].info.run_id if matches else None


def _name(tag: str) -> str:
    return tag.replace("@", "_at_")


def _reached(run: TrackedRun) -> int:
    client, _, known = _find(run)
    history = client.get_metric_history(known, _name(STEP)) if known else []
    return max((point.step for point in history), default=-1)


TRACKER = Tracker("mlflow", reached=_reached, open=_Writer)
