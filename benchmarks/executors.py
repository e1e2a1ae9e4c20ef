"""The overhead of a run: python benchmarks/executors.py [--runs 1000] [--tune-runs 100]

Many short runs of one simulated configuration, seed after seed, each with eight evaluations. One function,
`work`, is driven by

    isolaw        a sweep with the executor `processes`: a line on disk for every evaluation, runs that can be
                  continued or extended, and a table at the end
    Optuna        a study that reports each evaluation, in memory and in a journal file
    Ray Tune      a grid search over seeds that reports each evaluation and reuses actors

on this machine, one after the other, with one worker and with one for each core. The overhead of a run is
(wall time - work / workers) / runs, work being what the function takes for all runs in a plain loop. Starting
workers and loading compiled code is part of it. Needs ``pip install 'isolaw[ray]' optuna tensorboardX``; what
is not installed is left out.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from isolaw import SweepSpec, backends, engine
from isolaw.backend import RunContext
from isolaw.config import RunSpec

Report = Callable[[int, float], None]


def sweep(runs: int, jobs: int) -> SweepSpec:
    """The sweep: 31 steps of 128 rollouts for each seed."""
    return SweepSpec.parse(
        {
            "sweep": {"compute": 4000, "seeds": runs},
            "grid": {"problems_per_batch": [8], "rollouts_per_problem": [16]},
            "problems": {"n_train": 50, "n_validation": 40},
            "evaluation": {"points": 8},
            "executor": {"jobs": jobs},
        }
    )


def work(run: RunSpec, report: Report) -> None:
    """Make a run and report avg@4 at each evaluation."""
    for checkpoint in backends.get(run.backend).run(run, RunContext()):
        report(checkpoint.step, checkpoint.rows[0].value)


def planned(runs: int) -> list[RunSpec]:
    return engine.resolve_sweep(sweep(runs, 1), "nowhere").runs


def alone(runs: int) -> None:
    for run in planned(runs):
        work(run, lambda step, value: None)


def with_isolaw(runs: int, jobs: int, folder: Path) -> None:
    spec = sweep(runs, jobs)
    done = sum(event.kind == "done" for event in engine.execute(engine.resolve_sweep(spec, folder), folder))
    assert done == runs


def with_optuna(runs: int, jobs: int, folder: Path | None) -> None:
    import optuna
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    specs = planned(runs)

    def objective(trial: Any) -> float:
        last = 0.0

        def report(step: int, value: float) -> None:
            nonlocal last
            last = value
            trial.report(value, step)

        work(specs[trial.number], report)
        return last

    storage = folder and optuna.storages.JournalStorage(JournalFileBackend(str(folder / "journal")))
    # Its grid sampler takes time that grows with the number of trials; seeds are counted instead.
    study = optuna.create_study(storage=storage, sampler=optuna.samplers.RandomSampler())
    study.optimize(objective, n_trials=runs, n_jobs=jobs)
    assert len(study.trials) == runs


def with_tune(runs: int, jobs: int, folder: Path) -> None:
    from ray import tune

    specs = [run.model_dump_json() for run in planned(runs)]

    def trainable(config: dict[str, Any]) -> None:
        run = RunSpec.model_validate_json(specs[config["seed"]])
        work(run, lambda step, value: tune.report({"step": step, "reward": value}))

    tuner = tune.Tuner(
        tune.with_resources(trainable, {"cpu": 1}),
        param_space={"seed": tune.grid_search(list(range(runs)))},
        tune_config=tune.TuneConfig(max_concurrent_trials=jobs, reuse_actors=True),
        run_config=tune.RunConfig(storage_path=str(folder), verbose=0),
    )
    results = tuner.fit()
    assert len(results) == runs
    assert not results.errors


@contextlib.contextmanager
def quiet_ray(jobs: int) -> Iterator[None]:
    import ray

    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AIR_NEW_OUTPUT": "0"}
    own = {"num_cpus": jobs, "include_dashboard": False, "log_to_driver": False}
    ray.init("local", logging_level=logging.ERROR, **own)
    try:
        yield
    finally:
        ray.shutdown()


def seconds(what: Callable[[], None]) -> float:
    began = time.perf_counter()
    what()
    return time.perf_counter() - began


def compare(name: str, jobs: int, runs: int, drive: Callable[[int, int, Path], None], folder: Path) -> None:
    """Print a line of the table."""
    own = seconds(lambda: alone(runs)) / jobs
    (place := folder / f"{name}, {jobs}").mkdir()
    try:
        took = seconds(lambda: drive(runs, jobs, place))
    except ImportError as error:
        print(f"{name:22} {jobs:7}   left out: {error}")
        return
    overhead = 1000 * (took - own) / runs
    print(f"{name:22} {jobs:7} {runs:6} {own:9.2f} {took:9.2f} {overhead:18.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--tune-runs", type=int, default=100)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    alone(20)  # compile and load
    print("driven by              workers   runs  work (s)  wall (s)  overhead (ms/run)")
    # Nothing is deleted before the end: ext4 makes files slowly where others have just been deleted.
    with tempfile.TemporaryDirectory(prefix="isolaw-") as name:
        folder = Path(name)
        for jobs in sorted({1, os.cpu_count() or 1}):
            compare("isolaw, processes", jobs, options.runs, with_isolaw, folder)
            compare("Optuna, in memory", jobs, options.runs, lambda n, j, _: with_optuna(n, j, None), folder)
            compare("Optuna, journal file", jobs, options.runs, with_optuna, folder)
            with contextlib.suppress(ImportError), quiet_ray(jobs):
                compare("Ray Tune", jobs, options.tune_runs, with_tune, folder)


if __name__ == "__main__":
    main()
