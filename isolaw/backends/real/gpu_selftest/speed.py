"""Measure tokens per second of sampling and training at small and large n, and the MFU of training."""

from __future__ import annotations

from typing import Any

from isolaw.backends.real.gpu_selftest.record import Record
from isolaw.backends.real.gpu_selftest.workload import Workload
from isolaw.backends.real.rollout.problems import ProblemSet
from isolaw.backends.real.train.memory import step_time
from isolaw.backends.real.train.memory.decoder import Decoder
from isolaw.machine import card_speed

_STEPS = 3  # the first step is a warm-up


def run(work: Workload, record: Record) -> None:
    """Measure a short run at each n; the next run reuses the sampler."""
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

    card, model = card_speed(torch.cuda.get_device_name()), Decoder.read(work.model)
    if card is None or model is None or seconds <= 0:
        return None
    return round(tokens * step_time.flops(model, length, passes=3) / seconds / card.flops, 4)
