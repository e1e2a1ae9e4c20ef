"""A tiny character-level language model that half knows how to add, and problem sets for it. ::

    python examples/tiny_model.py OUT

writes ``OUT/model`` (Hugging Face format), ``OUT/pool.jsonl``, the problem sets ``OUT/easy``, ``OUT/hard``
and ``OUT/extremely-hard``, and their figures as ``OUT/tiny.json``. It downloads nothing.

The model is a Qwen2 of 0.13 M parameters. A supervised warm-up of some seconds on one core stops at a partial
accuracy. `isolaw problems` then sorts problems that the model has not seen by how often it solves them, so
that reinforcement learning can raise its accuracy. Rounding differs between processors, so the warm-up ends
elsewhere on another one; ``--model`` takes the model of an earlier warm-up.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import arithmetic

from isolaw.backends.real import environment
from isolaw.backends.real.rollout import rewards, split
from isolaw.backends.real.rollout.problems import Problem, write_set

environment.prepare()

import torch  # noqa: E402
from transformers import PreTrainedTokenizerFast, Qwen2ForCausalLM  # noqa: E402
from transformers.utils import logging  # noqa: E402

from isolaw.backends.real.random_model import make_model, make_tokenizer  # noqa: E402

KIND = "add-200"  # 20,100 problems
MAX_RESPONSE_TOKENS = 6  # three digits, the end token, and room for errors
TEMPERATURE = 0.6


def accuracy(
    model: Qwen2ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    questions: Sequence[Problem],
    samples: int = 4,
    temperature: float = 1.0,
    seed: int = 0,
) -> float:
    """Return avg@samples: the mean share of correct samples."""
    inputs = tokenizer([str(q.prompt) for q in questions], return_tensors="pt", padding=True)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        out: Any = model.generate(
            input_ids=inputs.input_ids,
            attention_mask=inputs.attention_mask,
            do_sample=True,
            temperature=temperature,
            top_k=0,
            top_p=1.0,
            num_return_sequences=samples,
            max_new_tokens=MAX_RESPONSE_TOKENS,
        )
    texts = tokenizer.batch_decode(out[:, inputs.input_ids.shape[1] :], skip_special_tokens=True)
    return sum(text == questions[i // samples].answer for i, text in enumerate(texts)) / len(texts)


def warm_up(
    model: Qwen2ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    examples: Sequence[Problem],
    held_out: Sequence[Problem],
    target: float,
    seed: int = 0,
    lr: float = 2e-3,
    batch: int = 64,
    most_steps: int = 3000,
) -> int:
    """Train on answers until avg@4 on ``held_out`` at temperature 1 reaches ``target``; return the steps.

    Cross-entropy of the answer's tokens and the end token; AdamW, 50 steps of rising learning rate; an
    evaluation every 50 steps.
    """
    rng = random.Random(seed)
    optimiser = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.98))
    for step in range(1, most_steps + 1):
        ids, labels = _batch(tokenizer, [examples[int(rng.random() * len(examples))] for _ in range(batch)])
        for group in optimiser.param_groups:
            group["lr"] = lr * min(1, step / 50)
        logits = model(ids[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()
        if step % 50 == 0 and accuracy(model, tokenizer, held_out) >= target:
            break
    return step


def _batch(
    tokenizer: PreTrainedTokenizerFast, questions: Sequence[Problem]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids padded on the right, and labels that are -100 outside the answers; (questions, longest)."""
    prompts = tokenizer([str(q.prompt) for q in questions]).input_ids
    answers = tokenizer([q.answer for q in questions], add_special_tokens=False).input_ids
    answers = [[*answer, tokenizer.eos_token_id] for answer in answers]
    longest = max(len(prompt) + len(answer) for prompt, answer in zip(prompts, answers, strict=True))
    ids = torch.full((len(questions), longest), tokenizer.pad_token_id)
    labels = torch.full((len(questions), longest), -100)
    for i, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        end = len(prompt) + len(answer)
        ids[i, :end] = torch.tensor(prompt + answer)
        labels[i, len(prompt) : end] = torch.tensor(answer)
    return ids, labels


def build(
    out: str | Path, pool: int = 5000, target: float = 0.35, seed: int = 0, model: str | Path | None = None
) -> dict[str, Any]:
    """Make the model and the problem sets in ``out``; return their figures.

    Parameters
    ----------
    out
        a folder.
    pool
        problems that the warm-up does not see, from which the sets are made.
    target
        accuracy at temperature 1 at which the warm-up stops.
    seed
        seed of the problems, the weights and the warm-up.
    model
        the folder of a model after its warm-up, in place of a new one.
    """
    out = Path(out)
    logging.disable_progress_bar()
    started = time.perf_counter()
    tokenizer, steps = make_tokenizer(), 0
    questions = arithmetic.generate(KIND, arithmetic.size(KIND), seed)
    unseen, examples = questions[:pool], questions[pool:]
    if model is not None:
        warm = Qwen2ForCausalLM.from_pretrained(model)
    else:
        warm = make_model(seed)
        steps = warm_up(warm, tokenizer, examples, unseen[:256], target, seed)
    warm.save_pretrained(out / "model")
    warmed = time.perf_counter()
    tokenizer.save_pretrained(out / "model")
    write_set(out, {"pool": unseen})
    parts = _split(out, seed)
    report = {
        "parameters": sum(p.numel() for p in warm.parameters()),
        "steps": steps,
        "seconds": {"warm-up": round(warmed - started, 1), "split": round(time.perf_counter() - warmed, 1)},
        "accuracy": {t: round(accuracy(warm, tokenizer, unseen[:1000], 4, t), 3) for t in (1.0, TEMPERATURE)},
        **parts,
    }
    (out / "tiny.json").write_text(json.dumps(report, indent=1) + "\n")
    return report


def _split(out: Path, seed: int) -> dict[str, Any]:
    options = {
        "reward": "exact",
        "sampler": "transformers",
        "temperature": TEMPERATURE,
        "max_response_tokens": MAX_RESPONSE_TOKENS,
        "seed": seed,
    }
    work = split.open_split(str(out / "model"), str(out / "pool.jsonl"), str(out), options)
    reward = rewards.get("exact")
    for _ in work.measure(split.open_draw(str(out / "model"), work.problems, work.settings), reward):
        pass
    return work.write()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--pool", type=int, default=5000, help="problems that the warm-up does not see")
    parser.add_argument("--target", type=float, default=0.35, help="accuracy at which the warm-up stops")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", type=Path, help="a model after its warm-up, in place of a new one")
    build(**vars(parser.parse_args()))
