"""Asynchronous generation against synchronous, the same work in turn: python benchmarks/pipeline.py

Trainings of a tiny model with ``real.generation = "colocated"`` and ``"async"``, one after the other, round
after round, with the same staleness k: the same problems in the same batches, and as many updates. Each is a
process of its own, with its sampler's. The benchmark measures wall-clock time and processor time (user + sys)
of all processes per update, after the first updates, without loading, evaluating and saving. Their ratios are
medians over the rounds. Processor times help to interpret wall-clock times on a shared machine. A colocated
update computes the log-probabilities of the sampling policy once more; an asynchronous one has those that the
sampler has recorded.

    --leak UPDATES    instead: the resident memory of trainer and sampler in one training of each kind
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

TINY_MODEL = Path(__file__).parents[1] / "examples" / "tiny_model.py"
B_P, N, RESPONSE, WARM_UP = 32, 8, 6, 5


def train(folder: Path, generation: str, staleness: int, updates: int, every: int = 0) -> dict[str, Any]:
    """Make the updates of one training in this process; return the times of each update."""
    from isolaw.backends.real import BACKEND, environment
    from isolaw.config import EvaluationSpec, ProblemsSpec, Recipe, RunSpec

    environment.prepare()
    compute = B_P * N * (updates + WARM_UP)
    spec = RunSpec(
        backend="real",
        problems_per_batch=B_P,
        rollouts_per_problem=N,
        recipe=Recipe(
            lr=5e-4, kl=0.0, entropy=0.0, temperature=1.0, staleness=staleness, max_response_tokens=RESPONSE
        ),
        problems=ProblemsSpec(set=str(folder / "easy")),
        options={"model": str(folder / "model"), "dtype": "float32", "generation": generation},
        compute=compute,
        evaluation=EvaluationSpec(points=2, start=compute, end=compute),
    )
    spec = BACKEND.resolve(spec)
    assert (issues := BACKEND.check(spec)) == [], issues
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
    return {
        "wall": took,
        "cpu": used,
        **{name: means[name] for name in ("age", "age_max", "reward", "response_length") if name in means},
        "seconds": {name: value / (updates + WARM_UP) for name, value in run.seconds.items()},
        "resident": resident,
        "load": os.getloadavg()[0],
    }


def elsewhere(*words: Any) -> dict[str, Any]:
    """Run `train` in a process of its own."""
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
    parser.add_argument("--leak", type=int, default=0)
    parser.add_argument("--worker", nargs=5, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.worker:
        folder, generation, *numbers = chosen.worker
        answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # libraries' output must not mix with answers
        print(json.dumps(train(Path(folder), generation, *map(int, numbers))), file=answers, flush=True)
        os._exit(0)
    with tempfile.TemporaryDirectory() as scratch:
        folder = chosen.folder or Path(scratch)
        if chosen.folder is None:
            subprocess.run([sys.executable, TINY_MODEL, folder], check=True, capture_output=True)
        if chosen.leak:
            for kind in ("async", "colocated"):
                found = elsewhere(folder, kind, chosen.staleness[0], chosen.leak - WARM_UP, 50)
                print(f"{kind}: MiB of {'trainer and sampler' if kind == 'async' else 'the one process'}")
                for step, *sizes in found["resident"]:
                    print(f"{step:7d} updates  {'  '.join(f'{size:5d}' for size in sizes)}", flush=True)
            return
        for k in chosen.staleness:
            ratios: dict[str, list[float]] = {"wall": [], "cpu": []}
            for number in range(chosen.rounds):
                kinds = ("colocated", "async")[:: 1 if number % 2 == 0 else -1]
                found = {kind: elsewhere(folder, kind, k, chosen.updates, 0) for kind in kinds}
                for name, values in ratios.items():
                    values.append(found["colocated"][name] / found["async"][name])
                for kind, one in sorted(found.items(), reverse=True):
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
