"""The training phase on rows of different lengths, packed and padded: benchmarks/packing.py [--rounds N]

Forward and backward pass of the same rows (responses of 16 to 256 tokens) through the same model, in turn:

- packed: isolaw's trainer, without padding (`isolaw.backends.real.train.packing`);
- padded, sorted: micro-batches of rows of similar lengths, padded to the longest with a mask, with the same
number of tokens each, as isolaw did before;
- padded, as they come: micro-batches in the batch's order, as TRL's trainer does.

Both paddings compute log-probabilities of whole logits, as `transformers` returns them. Times are the
processor's, on one thread; ratios are medians over the rounds. The gradients are compared, too.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

ROWS, SHORTEST, LONGEST, TOKENS, VOCABULARY = 96, 16, 256, 16_384, 512
TEMPERATURE = 0.7


def model_folder(folder: str) -> None:
    """Write a model of random weights."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
    )
    model = Qwen2ForCausalLM(config)
    model.save_pretrained(folder)
    print(
        f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f} M parameters, {VOCABULARY} tokens, float32"
    )


def padded_backward(model: Any, prompts: Any, responses: Any, weights: Any, order: list[int]) -> None:
    """Accumulate the gradient from micro-batches of padded rows, taken in that order."""
    import torch

    lengths = [len(p) + len(r) for p, r in zip(prompts, responses, strict=True)]
    parts: list[list[int]] = [[]]
    for row in order:
        width = max([lengths[i] for i in parts[-1]] + [lengths[row]])
        if parts[-1] and width * (len(parts[-1]) + 1) > TOKENS:
            parts.append([])
        parts[-1].append(row)
    for part in parts:
        before, after = max(len(prompts[i]) for i in part), max(len(responses[i]) for i in part)
        ids, mask = torch.zeros(len(part), before + after, dtype=torch.long), None
        attention = torch.zeros_like(ids)
        for k, i in enumerate(part):
            start, end = before - len(prompts[i]), before + len(responses[i])
            ids[k, start:end] = torch.tensor(prompts[i] + responses[i])
            attention[k, start:end] = 1
        mask = attention[:, before:]
        positions = (attention.cumsum(1) - 1).clamp(min=0)
        out = model(
            input_ids=ids,
            attention_mask=attention,
            position_ids=positions,
            use_cache=False,
            logits_to_keep=after + 1,
        )
        z = out.logits[:, :-1].float() / TEMPERATURE
        logp = z.gather(-1, ids[:, before:, None])[..., 0] - z.logsumexp(-1)
        (weights[part][:, None] * mask * logp.double()).sum().backward()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    from isolaw.backends.real import environment

    environment.prepare()
    import torch
    from transformers import AutoModelForCausalLM

    from isolaw.backends.real.rollout.samplers import Rollouts
    from isolaw.backends.real.train.trainer import Trainer

    names = ("torch", "transformers", "deepspeed")
    print(", ".join(f"{name} {version(name)}" for name in names), f"load {os.getloadavg()[0]:.1f}")
    rng = random.Random(0)

    def some(least: int, most: int) -> list[int]:
        return [rng.randrange(3, VOCABULARY) for _ in range(rng.randint(least, most))]

    prompts, responses = zip(*((some(5, 20), some(SHORTEST, LONGEST)) for _ in range(ROWS)), strict=True)
    logprobs = [[0.0] * len(r) for r in responses]
    rollouts = Rollouts(list(prompts), list(responses), logprobs, [True] * ROWS)
    weights = torch.linspace(-1, 1, ROWS).double()
    with tempfile.TemporaryDirectory() as folder:
        model_folder(folder)
        trainer = Trainer(folder, gradient_checkpointing=False, micro_batch_tokens=TOKENS)
        plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).train()
    torch.set_num_threads(1)
    in_order = list(range(ROWS))
    by_length = sorted(in_order, key=lambda i: len(prompts[i]) + len(responses[i]))

    def packed() -> None:
        trainer.backward(
            rollouts,
            lambda part, rows, logp, _: (weights[list(part)][:, None] * rows.mask * logp.double()).sum(),
            temperature=TEMPERATURE,
        )

    ways: dict[str, Callable[[], None]] = {
        "packed": packed,
        "padded, sorted": lambda: padded_backward(plain, prompts, responses, weights, by_length),
        "padded, as they come": lambda: padded_backward(plain, prompts, responses, weights, in_order),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(given.rounds + 1):
        for name, way in ways.items():
            began = time.process_time()
            way()
            times[name].append(time.process_time() - began)
            if name == "packed":
                mine = trainer.gradients()
                trainer.update(0.0)
            else:
                theirs = {n: p.grad for n, p in plain.named_parameters()}
                off = max(float((mine[n] - g).norm() / g.norm()) for n, g in theirs.items())
                assert off < 1e-4, f"the gradients differ by {off:.1g}"
                plain.zero_grad()
    total = sum(len(p) + len(r) for p, r in zip(prompts, responses, strict=True))
    print(f"{ROWS} rows, {total:,} tokens, micro-batches of {TOKENS:,}; {given.rounds} rounds\n")
    for name, spent in times.items():
        ratio = statistics.median(a / b for a, b in zip(spent[1:], times["packed"][1:], strict=True))
        print(f"{name:22s}{statistics.median(spent[1:]):8.2f} s{ratio:8.2f} ×")


if __name__ == "__main__":
    main()
