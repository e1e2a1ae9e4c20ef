"""Tokens per second of sampling and of training, at small and at large n."""

from __future__ import annotations

import json
from typing import Any

from isolaw.backends.real import environment, models
from isolaw.backends.real.checkup.cards import Shapes, peak_tflops, training_flops
from isolaw.backends.real.checkup.record import Record
from isolaw.backends.real.checkup.workplace import Workplace
from isolaw.backends.real.rollout.problems import ProblemSet

_STEPS = 3  # the first warms up


def run(work: Workplace, record: Record) -> None:
    """Make a short run at each n; the sampler stays for the next."""
    environment.prepare()
    from isolaw.backends.real.train import loop

    prompts = ProblemSet.read(str(work.problems)).parts["train"]
    prompt = sum(len(str(question.prompt)) + 1 for question in prompts) / len(prompts)  # with its <bos>
    rows: list[dict[str, Any]] = []
    for problems, rollouts in work.sizes.speed:
        spec = work.spec(
            _STEPS,
            grid={"problems_per_batch": [problems], "rollouts_per_problem": [rollouts]},
            recipe={"max_response_tokens": work.sizes.long_response},
        )
        checkpoints = [c for c in loop.train(spec, None) if c.step]
        first, last = checkpoints[0], checkpoints[-1]
        seconds = {part: last.seconds[part] - first.seconds.get(part, 0.0) for part in last.seconds}
        tokens = (last.tokens or 0) - (first.tokens or 0)
        trained = tokens + prompt * (last.compute - first.compute)
        rows.append(
            {
                "problems_per_batch": problems,
                "rollouts_per_problem": rollouts,
                "sampled_tokens_per_s": _rate(tokens, seconds["generate"]),
                "trained_tokens_per_s": _rate(trained, seconds["train"]),
                "mfu": _mfu(
                    work, trained, prompt + tokens / (last.compute - first.compute), seconds["train"]
                ),
                "seconds_of_a_step": {k: v / (last.step - first.step) for k, v in seconds.items()},
            }
        )
        record.measure(speed=rows, sampler=spec.options["sampler"])
    done = all(row["sampled_tokens_per_s"] and row["trained_tokens_per_s"] for row in rows)
    record.check("runs whose speed was measured", len(rows), str(len(work.sizes.speed)), done)


def _rate(tokens: float, seconds: float) -> float | None:
    return round(tokens / seconds, 1) if seconds > 0 else None


def _mfu(work: Workplace, tokens: float, length: float, seconds: float) -> float | None:
    """Return the share of the card's peak that training uses, None where the card is not known."""
    if not work.on_gpu:
        return None
    import torch

    peak = peak_tflops(torch.cuda.get_device_name())
    if peak is None or seconds <= 0:
        return None
    config = json.loads((work.model / "config.json").read_text(encoding="utf-8"))
    shapes = Shapes(models.parameters(work.model), config["num_hidden_layers"], config["hidden_size"])
    return round(training_flops(shapes, tokens, length) / seconds / (peak * 1e12), 4)
