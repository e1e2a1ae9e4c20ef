"""The simulators' speed: python benchmarks/simulators.py [kernel | grid]

``kernel``: one problem visit (a group of n rollouts, and its share of the update) by the compiled kernel of
`interference`, by its equations in plain NumPy (`tests/simulators/reference.py`), and by the *floor*: a
compiled loop of one exponential and one binomial draw for each visit, with the same p, by Numba's own
``binomial``; *least* is the same loop with the kernel's draws (`simulators.draws`). They take turns on one
core; the figure is the processor time of the fastest turn. Last come the other two simulators.

``grid``: the paper's grid (B_p 32…1024, n 8…2048, B ≤ 65,536: 39 configurations), C = 1e7, 5 seeds, by
``isolaw sweep`` on two processes, once the kernel is compiled; wall time, processor time, and the largest
resident memory of all its processes together.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numba
import numpy as np

from isolaw.simulators import interference, tabular
from isolaw.simulators.draws import successes
from isolaw.simulators.model import Update
from isolaw.simulators.problems import difficulty, population

sys.path.append(str(Path(__file__).parents[1] / "tests" / "simulators"))

from reference import Reference

EASY = difficulty("easy")
PRESET = next(iter(interference.PRESETS.values()))
TURNS, VISITS, VISITS_NUMPY = 7, 400_000, 40_000
WARM_UP = 500

GRID = """
[sweep]
compute = 1e7
seeds = 5
[grid]
problems_per_batch = [32, 64, 128, 256, 512, 1024]
rollouts_per_problem = [8, 16, 32, 64, 128, 256, 512, 1024, 2048]
[limits]
max_batch_rollouts = 65536
"""


@numba.njit(cache=True)
def floor(rng, batches, z, n):  # type: ignore[no-untyped-def]
    """Run only the exponential and the binomial draw of each visit."""
    total = 0
    for t in range(batches.shape[0]):
        for j in range(batches.shape[1]):
            total += rng.binomial(n, 1.0 / (1.0 + np.exp(-z[batches[t, j]])))
    return total


@numba.njit(cache=True)
def least(rng, batches, z, n):  # type: ignore[no-untyped-def]
    """Run the same loop with the kernel's own draws."""
    total = 0
    for t in range(batches.shape[0]):
        for j in range(batches.shape[1]):
            total += successes(rng, n, 1.0 / (1.0 + np.exp(-z[batches[t, j]])))
    return total


def batches(steps: int, size: int, problems: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    epochs = -(-steps * size // (problems // size * size))
    whole = problems // size * size
    order = np.concatenate([rng.permutation(problems)[:whole] for _ in range(epochs)])
    return order[: steps * size].reshape(steps, size)


def taking_turns(works: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Return the processor seconds of the fastest turn of each function."""
    best = dict.fromkeys(works, np.inf)
    for _ in range(TURNS):
        for name, work in works.items():
            started = time.process_time()
            work()
            best[name] = min(best[name], time.process_time() - started)
    return best


def visit(size: int, n: int) -> dict[str, float]:
    """Return the µs of one visit on the easy set, soon after the start."""
    update = Update(n, PRESET.lr_easy * (size * n) ** 0.5, kl=PRESET.kl_easy)
    rows = batches(VISITS // size, size, 2000)
    few = rows[: VISITS_NUMPY // size]
    model = interference.create(PRESET, EASY, 0, 2000, 10)
    model.advance(rows[:WARM_UP], update, np.random.default_rng(0))
    start, p = model.arrays(), model.success(train=True)
    z = np.log(p / (1 - p))
    for loop in (floor, least):
        loop(np.random.default_rng(0), rows[:1], z, n)

    def compiled() -> None:
        model.restore(start)
        model.advance(rows, update, np.random.default_rng(1))

    def plain() -> None:
        reference = Reference(population(EASY, 0, 2000, 10, PRESET.s, PRESET.m, PRESET.r), PRESET)
        rng = np.random.default_rng(1)
        for row in few:
            reference.step(row, update, rng)

    took = taking_turns(
        {
            "kernel": compiled,
            "NumPy": plain,
            "floor": lambda: floor(np.random.default_rng(1), rows, z, n),
            "least": lambda: least(np.random.default_rng(1), rows, z, n),
        }
    )
    visits = {**dict.fromkeys(took, rows.size), "NumPy": few.size}
    return {name: 1e6 * seconds / visits[name] for name, seconds in took.items()}


def kernel() -> None:
    """Print the µs per problem visit."""
    names = ("kernel", "NumPy", "floor", "least")
    print(
        f"{'B_p':>5} {'n':>5}",
        *(f"{name:>8}" for name in names),
        "  NumPy/kernel  kernel/floor  kernel/least",
    )
    for size in (32, 256, 1024):
        for n in (8, 64, 512):
            took = visit(size, n)
            ratios = [took["NumPy"] / took["kernel"], *(took["kernel"] / took[k] for k in ("floor", "least"))]
            times = " ".join(f"{took[name]:8.3f}" for name in names)
            print(f"{size:>5} {n:>5} {times}", *(f"{ratio:13.2f}" for ratio in ratios))
    for name, module, size in (("tabular", tabular, 1),):
        preset = next(iter(module.PRESETS.values()))
        model = module.create(preset, EASY, 0, *module.SIZES)
        update = Update(64, preset.lr_easy * (size * 64) ** 0.5)
        rows = batches(VISITS // 8 // size, size, module.SIZES[0])
        took = taking_turns({name: partial(model.advance, rows, update, np.random.default_rng(1))})[name]
        print(f"{name}, n = 64: {1e6 * took / rows.size:.3f} µs")


def grid() -> None:
    """Time the paper's grid in the sweep engine."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "grid.toml"
        path.write_text(GRID)
        isolaw = str(Path(sys.executable).with_name("isolaw"))
        warm = [isolaw, "sweep", "--out", f"{folder}/warm", "--set", "sweep.compute=1e5", "--jobs", "1"]
        subprocess.run(warm, check=True, capture_output=True)
        before, started = os.times(), time.monotonic()
        command = [isolaw, "sweep", str(path), "--out", f"{folder}/out", "--jobs", "2"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        most = 0.0
        while process.poll() is None:
            most = max(most, sum(resident(pid) for pid in family(process.pid)))
            time.sleep(0.05)
        wall, after = time.monotonic() - started, os.times()
        cpu = sum(after[2:4]) - sum(before[2:4])
        assert process.stdout is not None
        print(process.stdout.readline().strip())
        print(f"{wall:.1f} s, {cpu:.1f} s of the processor on {os.cpu_count()} cores, {most:.0f} MB")


def family(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [pid, *(p for child in children for p in family(int(child)))]


def resident(pid: int) -> float:
    """Return resident memory in MB; memory that processes share counts for each of them."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) / 1000 for line in lines if line.startswith("VmRSS"))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    chosen = sys.argv[1:] or ["kernel", "grid"]
    for name in chosen:
        {"kernel": kernel, "grid": grid}[name]()
