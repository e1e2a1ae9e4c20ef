"""Asynchronous generation against synchronous, the same work in turn: python benchmarks/pipeline.py

Trainings of a tiny model with ``real.generation = "colocated"`` and ``"async"``, one after the other, round
after round, with the same staleness k: the same problems in the same batches, and as many updates. Each is a
process of its own, with its sampler's. The benchmark measures wall-clock time and processor time (user + sys)
of all processes per update, after the first updates, without loading, evaluating and saving. Their ratios are
medians over the rounds. Processor times help to interpret wall-clock times on a shared machine. A colocated
update computes the log-probabilities of the sampling policy once more; an asynchronous one has those that the
sampler has recorded.

    --processes C W S   C colocated processes against W that train and S that sample; the default is 1 1 1,
                        and where C or W is larger, processor times are not measured
    --share SHARE       each process that trains or samples gets this share of a core, like a device of its
                        own (control groups, version 1 or 2; as root). Without it, W + S processes compete for
                        the cores that C processes have to themselves
    --leak UPDATES      instead: the resident memory of trainer and sampler in one training of each kind
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil

TINY_MODEL = Path(__file__).parents[1] / "examples" / "tiny_model.py"
B_P, N, RESPONSE, WARM_UP = 32, 8, 6, 5
CONTROL, PERIOD_US = Path("/sys/fs/cgroup"), 10_000


def planned(
    folder: Path, generation: str, staleness: int, updates: int, processes: int, samplers: int
) -> Any:
    """Return the spec of one training, which evaluates after the first updates and at the end."""
    from isolaw.backends.real import BACKEND, environment
    from isolaw.config import EvaluationSpec, ProblemsSpec, Recipe, RunSpec

    environment.prepare()
    compute = B_P * N * (updates + WARM_UP)
    apart = {"samplers": samplers} if generation == "async" else {}
    spec = RunSpec(
        backend="real",
        problems_per_batch=B_P,
        rollouts_per_problem=N,
        recipe=Recipe(
            lr=5e-4, kl=0.0, entropy=0.0, temperature=1.0, staleness=staleness, max_response_tokens=RESPONSE
        ),
        problems=ProblemsSpec(set=str(folder / "easy"), n_validation=16),
        options={"model": str(folder / "model"), "dtype": "float32", "generation": generation}
        | {"processes": processes, **apart},
        compute=compute,
        evaluation=EvaluationSpec(points=2, start=B_P * N * WARM_UP, end=compute, samples=4),
    )
    spec = BACKEND.resolve(spec)
    assert (issues := BACKEND.check(spec)) == [], issues
    return spec


def limit(share: float, groups: dict[int, Path]) -> None:
    """Give each process below this one that trains or samples a control group with its share of a core."""
    first = CONTROL / "cpu" if (CONTROL / "cpu").is_dir() else CONTROL
    while True:
        for child in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error, OSError):
                if child.pid in groups or not any("isolaw.backends.real" in word for word in child.cmdline()):
                    continue
                own = groups[child.pid] = first / f"isolaw-{child.pid}"
                own.mkdir()
                quota = round(share * PERIOD_US)
                if (own / "cpu.max").exists():
                    (own / "cpu.max").write_text(f"{quota} {PERIOD_US}")
                else:
                    (own / "cpu.cfs_period_us").write_text(str(PERIOD_US))
                    (own / "cpu.cfs_quota_us").write_text(str(quota))
                (own / "cgroup.procs").write_text(str(child.pid))
        time.sleep(0.2)


def launch(spec: Any, updates: int, share: float) -> dict[str, Any]:
    """Make the updates of one training in several processes; return the times of each update."""
    from isolaw.backend import RunContext
    from isolaw.backends.real import BACKEND
    from isolaw.executors import launcher

    groups: dict[int, Path] = {}
    if share:
        threading.Thread(target=limit, args=(share, groups), daemon=True).start()
    at: list[tuple[float, float]] = []
    for checkpoint in launcher.launch(BACKEND.processes(spec), RunContext()):
        at.append((time.perf_counter(), checkpoint.seconds["evaluate"]))
    for group in groups.values():
        with contextlib.suppress(OSError):  # a process that has not ended
            group.rmdir()
    (began, before), (ended, after) = at[-2:]
    means = {row.metric: row.value for row in checkpoint.rows if row.eval_set == "train"}
    parts = {name: value / (updates + WARM_UP) for name, value in checkpoint.seconds.items()}
    return found(((ended - began) - (after - before)) / updates, float("nan"), means, parts, [])


def found(
    wall: float, cpu: float, means: dict[str, float], seconds: dict[str, float], resident: list[Any]
) -> dict[str, Any]:
    kept = {name: means[name] for name in ("age", "age_max", "reward", "response_length") if name in means}
    seconds.pop("evaluate", None)
    own = {"wall": wall, "cpu": cpu, **kept, "seconds": seconds, "resident": resident}
    return own | {"load": os.getloadavg()[0]}


def train(spec: Any, updates: int, every: int = 0) -> dict[str, Any]:
    """Make the updates of one training in this process; return the times of each update."""
    from isolaw.backends.real import environment

    with environment.importing():
        from isolaw.backends.real.train.loop import Run

    run = Run(spec)
    here = psutil.Process()
    processes = [here, *here.children()]

    def spent() -> float:
        return sum(sum(one.cpu_times()[:2]) for one in processes)

    resident = []
    for step in range(updates + WARM_UP):
        if step == WARM_UP:
            wall, cpu = time.perf_counter(), spent()
        run.advance()
        if every and (step + 1) % every == 0:
            resident.append([step + 1, *(one.memory_info().rss >> 20 for one in processes)])
    took, used = (time.perf_counter() - wall) / updates, (spent() - cpu) / updates
    means = run.means.take()
    run.close()
    parts = {name: value / (updates + WARM_UP) for name, value in run.seconds.items()}
    return found(took, used, means, parts, resident)


def elsewhere(*words: Any) -> dict[str, Any]:
    """Make one training in a process of its own."""
    command = [sys.executable, __file__, "--worker", *map(str, words)]
    ran = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return json.loads(ran.stdout.splitlines()[-1])


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--updates", type=int, default=60)
    parser.add_argument("--staleness", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--folder", type=Path, help="of examples/tiny_model.py, if it exists")
    parser.add_argument("--processes", type=int, nargs=3, default=[1, 1, 1], metavar=("C", "W", "S"))
    parser.add_argument("--leak", type=int, default=0)
    parser.add_argument("--share", type=float, default=0.0)
    parser.add_argument("--worker", nargs=8, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    colocated, trainers, samplers = chosen.processes
    if chosen.worker:
        folder, generation, *numbers, share = chosen.worker
        staleness, updates, every, processes, samplers = map(int, numbers)
        answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # libraries' output must not mix with answers
        spec = planned(Path(folder), generation, staleness, updates, processes, samplers)
        answer = launch(spec, updates, float(share)) if processes > 1 else train(spec, updates, every)
        print(json.dumps(answer), file=answers, flush=True)
        os._exit(0)
    with tempfile.TemporaryDirectory() as scratch:
        folder = chosen.folder or Path(scratch)
        if chosen.folder is None:
            subprocess.run([sys.executable, TINY_MODEL, folder], check=True, capture_output=True)
        if chosen.leak:
            for kind in ("async", "colocated"):
                one = elsewhere(folder, kind, chosen.staleness[0], chosen.leak - WARM_UP, 50, 1, 1, 0.0)
                print(f"{kind}: MiB of {'trainer and sampler' if kind == 'async' else 'the one process'}")
                for step, *sizes in one["resident"]:
                    print(f"{step:7d} updates  {'  '.join(f'{size:5d}' for size in sizes)}", flush=True)
            return
        for k in chosen.staleness:
            ratios: dict[str, list[float]] = {"wall": [], "cpu": []}
            for number in range(chosen.rounds):
                kinds = ("colocated", "async")[:: 1 if number % 2 == 0 else -1]
                count = {"colocated": colocated, "async": trainers}
                timed = {
                    kind: elsewhere(folder, kind, k, chosen.updates, 0, count[kind], samplers, chosen.share)
                    for kind in kinds
                }
                for name, values in ratios.items():
                    values.append(timed["colocated"][name] / timed["async"][name])
                for kind, one in sorted(timed.items(), reverse=True):
                    parts = ", ".join(f"{name} {value:.3f}" for name, value in one["seconds"].items())
                    ages = f"; age {one['age']:.2f}, at most {one['age_max']:.0f}" if "age" in one else ""
                    times = f"{one['wall']:.3f} s wall, {one['cpu']:.3f} s processor"
                    more = f"{parts}{ages}; load {one['load']:.1f}"
                    print(f"k = {k}, round {number + 1}, {kind:9s}: {times} an update ({more})", flush=True)
            medians = {name: statistics.median(values) for name, values in ratios.items()}
            print(
                f"k = {k}: colocated / async {medians['wall']:.2f} wall, {medians['cpu']:.2f} processor "
                f"(wall by round: {', '.join(f'{value:.2f}' for value in ratios['wall'])})",
                flush=True,
            )


if __name__ == "__main__":
    main()
