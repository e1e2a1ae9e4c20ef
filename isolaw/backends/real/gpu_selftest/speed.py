"""Measure tokens per second of sampling and training at small and large n, and the MFU of training."""

from __future__ import annotations

from typing import Any

from isolaw.backends.real import environment
from isolaw.backends.real.gpu_selftest.record import Record
from isolaw.backends.real.gpu_selftest.workload import Workload
from isolaw.backends.real.rollout.problems import ProblemSet
from isolaw.backends.real.train.memory.decoder import Decoder

_STEPS = 3  # the first step is a warm-up
# Peak TFLOP/s in dense bfloat16 with float32 accumulation, from NVIDIA's data sheets. Most data sheets give
# twice this number, "with sparsity". Keys are parts of the names that nvidia-smi prints; the first match
# wins.
_PEAKS = {
    "B200": 2250.0,
    "H200 NVL": 835.5,
    "H200": 989.4,
    "H100 NVL": 835.5,
    "H100 PCIe": 756.5,
    "H100": 989.4,
    "A100": 312.0,
    "L40S": 362.1,
    "RTX 4090": 165.2,
    "RTX 3090": 71.2,
}


def peak_tflops(name: str) -> float | None:
    """Return the peak TFLOP/s of a GPU in bfloat16, or None for an unknown GPU.

    >>> peak_tflops("NVIDIA H100 80GB HBM3"), peak_tflops("NVIDIA H100 PCIe"), peak_tflops("NVIDIA H20")
    (989.4, 756.5, None)
    """
    words = f"{name} "
    return next((peak for card, peak in _PEAKS.items() if f"{card} " in words or f"{card}-" in words), None)


def training_flops(model: Decoder, tokens: float, length: float) -> float:
    """Return the FLOPs of a forward and backward pass over ``tokens`` tokens in rows of ``length``.

    Per token, these are 6 · parameters, plus 6 · layers · query width · length for attention. The second
    factor is 12 in Chowdhery et al. (PaLM, arXiv 2204.02311, app. B). It is 6 here, because causal attention
    covers half of the row on average. The second forward pass of gradient checkpointing is not counted.
    """
    return tokens * 6 * (model.parameters + model.layers * model.query * length)


def run(work: Workload, record: Record) -> None:
    """Measure a short run at each n; the next run reuses the sampler."""
    environment.prepare()
    from isolaw.backends.real.train import loop

    prompts = ProblemSet.read(work.problems).parts["train"]
    prompt = sum(len(str(problem.prompt)) + 1 for problem in prompts) / len(prompts)  # with its <bos>
    rows: list[dict[str, Any]] = []
    for problems, rollouts in work.speed_batches:
        spec = work.spec(
            _STEPS,
            grid={"problems_per_batch": [problems], "rollouts_per_problem": [rollouts]},
            recipe={"max_response_tokens": work.long_response},
        )
        checkpoints = [c for c in loop.train(spec, None) if c.step]
        first, last = checkpoints[0], checkpoints[-1]
        seconds = {part: last.seconds[part] - first.seconds.get(part, 0.0) for part in last.seconds}
        tokens, responses = (last.tokens or 0) - (first.tokens or 0), last.compute - first.compute
        trained = tokens + prompt * responses
        rows.append(
            {
                "problems_per_batch": problems,
                "rollouts_per_problem": rollouts,
                "sampled_tokens_per_s": _rate(tokens, seconds["generate"]),
                "trained_tokens_per_s": _rate(trained, seconds["train"]),
                "mfu": _mfu(work, trained, trained / responses, seconds["train"]),
                "seconds_of_a_step": {k: v / (last.step - first.step) for k, v in seconds.items()},
            }
        )
        record.measure(speed=rows, sampler=spec.options["sampler"])
    done = all(row["sampled_tokens_per_s"] and row["trained_tokens_per_s"] for row in rows)
    record.check("runs whose speed was measured", len(rows), str(len(work.speed_batches)), done)


def _rate(tokens: float, seconds: float) -> float | None:
    return round(tokens / seconds, 1) if seconds > 0 else None


def _mfu(work: Workload, tokens: float, length: float, seconds: float) -> float | None:
    """Return the MFU of training, the share of the GPU's peak FLOP/s, or None for an unknown GPU."""
    if not work.on_gpu:
        return None
    import torch

    peak, model = peak_tflops(torch.cuda.get_device_name()), Decoder.read(work.model)
    if peak is None or model is None or seconds <= 0:
        return None
    return round(training_flops(model, tokens, length) / seconds / (peak * 1e12), 4)
