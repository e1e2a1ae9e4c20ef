"""Parts of the real backend on a GPU, and nightly on the CPU: gradients, weights, memory, a kill, all-reduce.

Two of them run this file as a program, in processes of their own. ``pytest -rP`` prints what they measure.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from isolaw import children
from isolaw.backends.real import environment
from isolaw.children import GROUP
from tests.backends.real.gpu.workload import Workload

DEVICES = [pytest.param("cuda", marks=pytest.mark.gpu), pytest.param("cpu", marks=pytest.mark.nightly)]
pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.parametrize("device", DEVICES, indirect=True)]
GIB = 2**30
HERE = {"PYTHONPATH": str(Path(__file__).parents[4])}  # of the programs that this file is


# The trainer's gradient at each ZeRO stage, against a float32 gradient on the CPU


def step_spec(work: Workload, dtype: str, stage: int) -> Any:
    # The tolerance is large because sampling and training can differ in precision.
    real = {"dtype": dtype, "zero_stage": stage, "sampler": "transformers", "logprob_tolerance": 1.0}
    return work.spec(1, 8, 8, real=real, recipe={"max_response_tokens": 64 if work.on_gpu else 16})


def gradient(work: Workload, dtype: str, stage: int) -> dict[str, Any]:
    """Return the gradient of a step on the saved batch."""
    from isolaw.backends.real.train.batch import Batch
    from isolaw.backends.real.train.loop import Run

    run = Run(step_spec(work, dtype, stage))
    batch = Batch.load(work.folder / "batch.safetensors", run.ranks)
    run.generate = lambda: batch
    update, out = run.trainer.update, {}

    def watched(lr: float) -> float:
        out.update(run.trainer.gradients())
        return update(lr)

    run.trainer.update = watched
    try:
        run.advance()
        return out
    finally:
        run.close()


def write_exact(folder: str, device: str) -> None:
    """Write the float32 gradient of the saved batch, computed on the CPU."""
    environment.prepare()
    from safetensors.torch import save_file

    work = Workload(Path(folder), device)
    whole = {name: value.contiguous() for name, value in gradient(work, "float32", 0).items()}
    save_file(whole, work.folder / "gradient.safetensors")
    environment.leave(0)


def test_gradients_are_those_of_float32_on_the_cpu(work: Workload) -> None:
    from safetensors.torch import load_file

    from isolaw.backends.real.train.loop import Run

    drawn = Run(step_spec(work, "bfloat16", 0))
    drawn.generate().save(work.folder / "batch.safetensors", drawn.ranks)
    drawn.close()
    cores = {"OMP_NUM_THREADS": str(os.cpu_count() or 1)} if work.on_gpu else {}
    without_gpu = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu", **cores, **HERE}
    command = [sys.executable, "-P", __file__, "gradient", str(work.folder), work.device]
    children.run(command, 300.0, env=without_gpu).check_returncode()
    exact = load_file(work.folder / "gradient.safetensors")
    whole = sum(float(value.double().square().sum()) for value in exact.values())
    # In float32, a GPU uses padded blocks of rows instead of bfloat16's variable-length attention kernel.
    for dtype, stage in [("float32", 0)] * work.on_gpu + [("bfloat16", stage) for stage in range(4)]:
        mine = gradient(work, dtype, stage)
        assert mine.keys() == exact.keys()
        square = sum(float((mine[name].double() - exact[name].double()).square().sum()) for name in mine)
        difference = math.sqrt(square / whole)
        print(f"ZeRO {stage}, {dtype}: relative difference {difference:.4g}")
        # bfloat16 has 8 significant bits, and rounding errors add up over the layers: 0.02 for the tiny model
        # on a CPU, and 0.145 for the model of 24 layers on an H200.
        assert difference <= (0.2 if dtype == "bfloat16" else 1e-3)


# Weights that arrive, and memory that stays


def growth(rows: list[dict[str, float]], kind: str) -> float:
    """Return by how much the last 5 cycles use more than cycles 6 to 10; the first 5 fill caches."""
    return max(row[kind] for row in rows[-5:]) - max(row[kind] for row in rows[5:10])


def test_weights_arrive_in_20_cycles_of_sleep_and_wake(work: Workload) -> None:
    from isolaw.backends.real.train import loop

    spec = work.spec(
        20,
        *(8, 8),
        recipe={"staleness": 1, "max_response_tokens": 128 if work.on_gpu else 8},
        real={"sampler": "vllm", "logprob_tolerance": 10.0},
        evaluation={"points": 1000},  # after every step
    )
    rows: list[dict[str, float]] = []
    for checkpoint in loop.train(spec, None):
        if checkpoint.step:
            measured = {row.metric: row.value for row in checkpoint.rows if row.eval_set == "train"}
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            memory = {"host": pages * os.sysconf("SC_PAGE_SIZE") / 2**20}
            if work.on_gpu:  # of the whole device: torch would include the memory of a sleeping vLLM
                free, total = torch.cuda.mem_get_info()
                memory["gpu"] = (total - free) / 2**20
            rows.append({key: measured[key] for key in ("mismatch", "ratio_max")} | memory)
            print(json.dumps(rows[-1] | checkpoint.seconds))
    assert len(rows) == 20
    largest = max(row["mismatch"] for row in rows)
    assert largest <= (0.15 if work.on_gpu else 1e-4)
    if work.on_gpu:  # on a CPU (float32), both are only rounding, and the limit above is tight
        assert largest <= 1.25 * rows[0]["mismatch"]
    # An update changes log-probabilities by more than the mismatch: stale weights would show.
    assert math.log(max(row["ratio_max"] for row in rows)) > largest
    for kind in ("host", "gpu") if work.on_gpu else ("host",):
        assert growth(rows, kind) <= 128.0


def test_the_planned_peak_is_the_measured_one(work: Workload) -> None:
    from isolaw.backends.real.train.loop import Run
    from isolaw.backends.real.train.memory import planner

    if not work.on_gpu:
        pytest.skip("torch counts a process's allocations on GPUs only; needs a GPU")
    spec = work.spec(2, 8, 8, real={"sampler": "transformers", "logprob_tolerance": 1e3})
    run = Run(spec)
    batch = run.generate()
    # One batch twice, so that both updates have the same shapes. The second update is then off-policy.
    run.generate = lambda: batch
    run.advance()  # creates AdamW's moments
    others = sum(p.numel() * p.element_size() for p in run.worker.sampler.model.parameters() if p.is_cuda)
    torch.cuda.reset_peak_memory_stats()
    run.advance()
    peak = torch.cuda.max_memory_allocated() - others
    run.close()
    planned = planner.plan_of(spec).footprint.tensor_bytes()
    print(f"planned {planned / GIB:.3f} GiB, measured {peak / GIB:.3f} GiB")
    assert planned == pytest.approx(peak, rel=0.15)


# A sweep that is killed halfway, and resumed


def test_a_killed_sweep_is_resumed(small: Workload) -> None:
    import pandas as pd

    steps, keys = 16, ["run_id", "step", "eval_set", "metric"]
    processes = environment.gpus() if small.on_gpu else 1
    sections = small.sections(
        processes * 8,
        8,
        sweep={"compute": steps * processes * 64},
        recipe={"max_response_tokens": 8, "lr": 1e-3},
        problems={"n_validation": 32},
        evaluation={"points": 6, "samples": 4, "metrics": ["avg@4"]},
        real={"processes": processes},
    )
    file = small.folder / "sweep.toml"
    rows = []
    for name, section in sections.items():
        rows += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in section.items())]
    file.write_text("\n".join(rows) + "\n", encoding="utf-8")

    def written(out: Path) -> int:
        return sum(path.read_bytes().count(b"\n") for path in out.glob("runs/*/points.jsonl"))

    tables = {}
    for name in ("killed", "whole"):
        out = small.folder / name
        command = [sys.executable, "-P", "-m", "isolaw", "sweep", str(file), "--out", str(out)]
        if name == "killed":
            process, until = children.start(command), time.monotonic() + 200
            while written(out) < steps // 2 and process.poll() is None and time.monotonic() < until:
                time.sleep(0.005)
            children.end(process)
            assert process.returncode == -signal.SIGKILL
            assert 0 < written(out) <= steps
        children.run(command, 300.0).check_returncode()
        table = pd.read_parquet(out / "points.parquet").drop(columns="wall_s")
        tables[name] = table.sort_values(keys, ignore_index=True)
    killed, whole = tables["killed"], tables["whole"]
    assert killed[keys].equals(whole[keys])
    print("identical:", killed.equals(whole))
    if small.on_gpu:  # sums depend on the order of threads
        difference = (killed.value - whole.value)[whole.metric == "avg@4"].abs().max()
        # Three standard errors of the difference between two evaluations with 32 problems × 4 samples.
        assert difference <= 0.2
    else:
        assert killed.equals(whole)


# All-reduce over all GPUs of this machine (NCCL), or over two processes (gloo)

SIZES = {"cuda": (2**10, 2**20, 2**26, 2**29), "cpu": (2**10, 2**20, 2**24)}  # bytes


def reduce_all(out: str, device: str) -> None:
    """Reduce arrays that differ between ranks, and compare the result with the known sum in each process."""
    import torch.distributed as dist

    from isolaw.backends.real.train import process_group

    rank = int(os.environ["LOCAL_RANK"])
    place, wait = torch.device("cpu"), torch.cpu.synchronize
    if device == "cuda":
        place, wait = torch.device("cuda", rank), torch.cuda.synchronize
        torch.cuda.set_device(place)
    # The time limit matters if another process has ended.
    process_group.start(60 / 3600, "nccl" if device == "cuda" else "gloo")
    world = dist.get_world_size()
    rows = []
    for size in SIZES[device]:
        pattern = torch.arange(size // 4, device=place).remainder(251).float()  # sums are exact
        seconds = []
        for _ in range(5):
            values = pattern * (dist.get_rank() + 1)
            dist.barrier()
            wait()
            began = time.perf_counter()
            dist.all_reduce(values)
            wait()
            seconds.append(time.perf_counter() - began)
        wrong = (values != pattern * (world * (world + 1) // 2)).sum()
        dist.all_reduce(wrong)
        # Bus bandwidth as in nccl-tests: the traffic per link, comparable for any number of processes.
        traffic = 2 * (world - 1) / world * size / 1e9 / min(seconds)
        rows.append({"bytes": size, "seconds": min(seconds), "bus_gb_per_s": traffic, "wrong": int(wrong)})
    if dist.get_rank() == 0:
        Path(out).write_text(json.dumps(rows), encoding="utf-8")
    dist.destroy_process_group()


def test_all_reduce_sums(device: str, tmp_path: Path) -> None:
    count = environment.gpus() if device == "cuda" else 2
    out = tmp_path / "all-reduce.json"
    group = json.dumps({"file": str(tmp_path / "all-reduce.store")})
    until = time.monotonic() + 200
    ranks: list[subprocess.Popen[bytes]] = []
    try:
        for place in map(str, range(count)):
            rank = {"RANK": place, "LOCAL_RANK": place, "WORLD_SIZE": str(count), GROUP: group}
            command = [sys.executable, "-P", __file__, "all-reduce", str(out), device]
            ranks.append(
                children.start(command, stdin=subprocess.DEVNULL, env={**os.environ, **rank, **HERE})
            )
        assert [rank.wait(max(until - time.monotonic(), 0.0)) for rank in ranks] == [0] * count
    finally:
        for process in ranks:
            children.end(process)
    rows = json.loads(out.read_text(encoding="utf-8"))
    print(json.dumps(rows))
    assert [row["wrong"] for row in rows] == [0] * len(SIZES[device])


if __name__ == "__main__":
    {"gradient": write_exact, "all-reduce": reduce_all}[sys.argv[1]](*sys.argv[2:])
