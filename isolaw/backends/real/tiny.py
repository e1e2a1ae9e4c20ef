"""A tiny character-level language model and problem sets for it, made on the spot without a download.

A Qwen2 architecture of 0.13 M parameters reads generated arithmetic character by character. A supervised
warm-up of some seconds on one core stops at a partial accuracy, so that reinforcement learning has
something to raise. ::

    python -m isolaw.backends.real.tiny OUT

writes ``OUT/model`` (Hugging Face format), and the problem sets ``OUT/easy`` and ``OUT/hard``.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import json
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, pre_tokenizers, processors
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from isolaw.backends.real import arithmetic
from isolaw.backends.real.problems import Question, write_set

SPECIAL = ("<pad>", "<bos>", "<eos>", "<unk>")
# Kind of arithmetic, its share of the warm-up, which set it makes.
EASY, HARD = "add-100", "sum3-100"
SHARES = {EASY: 0.8, HARD: 0.2}
HELD_OUT = 2000  # problems of each kind that the warm-up never sees
CONTEXT = 32


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer with a token for each character of arithmetic, ``<bos>`` set before a text.

    >>> tokenizer = make_tokenizer()
    >>> tokenizer("17+25=").input_ids
    [1, 5, 11, 14, 6, 9, 17]
    >>> tokenizer.decode([8, 6, 2], skip_special_tokens=True)
    '42'
    """
    vocabulary = {token: i for i, token in enumerate((*SPECIAL, *arithmetic.CHARACTERS))}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", vocabulary["<bos>"])]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        unk_token="<unk>",
        padding_side="left",
        model_max_length=CONTEXT,
    )


def make_model(seed: int = 0, hidden: int = 64, layers: int = 2) -> Qwen2ForCausalLM:
    """Return an untrained model in float32, its embeddings untied; heads of size 32."""
    # vLLM's attention on a CPU wants heads of 32 or more. With the usual initial standard deviation of 0.02
    # so small a model needs several times the steps.
    config = Qwen2Config(
        vocab_size=len(SPECIAL) + len(arithmetic.CHARACTERS),
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 32,
        num_key_value_heads=hidden // 32,
        max_position_embeddings=CONTEXT,
        initializer_range=0.1,
        tie_word_embeddings=False,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen2ForCausalLM(config).float()


def accuracy(
    model: Qwen2ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    questions: Sequence[Question],
    samples: int = 4,
    temperature: float = 1.0,
    seed: int = 0,
) -> float:
    """Return avg@samples: the mean share of sampled answers that are right."""
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
            max_new_tokens=8,
        )
    texts = tokenizer.batch_decode(out[:, inputs.input_ids.shape[1] :], skip_special_tokens=True)
    return sum(text == questions[i // samples].answer for i, text in enumerate(texts)) / len(texts)


def warm_up(
    model: Qwen2ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    examples: dict[str, list[Question]],
    shares: dict[str, float],
    held_out: Sequence[Question],
    target: float,
    seed: int = 0,
    lr: float = 2e-3,
    batch: int = 64,
    most_steps: int = 3000,
) -> int:
    """Train on answers until avg@4 on ``held_out`` at temperature 1 reaches ``target``; return the steps.

    Cross-entropy of the answer's tokens and the end token; AdamW, 50 steps of rising learning rate.
    """
    rng = random.Random(seed)
    optimiser = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.98))
    model.train()
    for step in range(1, most_steps + 1):
        kinds = rng.choices(list(shares), list(shares.values()), k=batch)
        questions = [rng.choice(examples[kind]) for kind in kinds]
        rows = [(tokenizer(str(q.prompt)).input_ids, tokenizer(q.answer).input_ids[1:]) for q in questions]
        rows = [(prompt, [*answer, tokenizer.eos_token_id]) for prompt, answer in rows]
        longest = max(len(prompt) + len(answer) for prompt, answer in rows)
        ids = torch.zeros(batch, longest, dtype=torch.long)
        labels = torch.full((batch, longest), -100)
        for i, (prompt, answer) in enumerate(rows):
            end = len(prompt) + len(answer)
            ids[i, :end] = torch.tensor(prompt + answer)
            labels[i, len(prompt) : end] = torch.tensor(answer)
        for group in optimiser.param_groups:
            group["lr"] = lr * min(1, step / 50)
        logits = model(ids[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()
        if step % 50 == 0 and accuracy(model, tokenizer, held_out) >= target:
            break
    model.eval()
    return step


def build(out: str | Path, target: float = 0.4, seed: int = 0) -> dict[str, Any]:
    """Write ``out/model``, ``out/easy`` and ``out/hard``; return what was made, in figures."""
    out = Path(out)
    started = time.perf_counter()
    tokenizer, model = make_tokenizer(), make_model(seed)
    lists = {k: arithmetic.generate(k, min(arithmetic.size(k), 100_000), seed) for k in SHARES}
    held_out = {kind: questions[:HELD_OUT] for kind, questions in lists.items()}
    examples = {kind: questions[HELD_OUT:] for kind, questions in lists.items()}
    steps = warm_up(model, tokenizer, examples, SHARES, held_out[EASY][:256], target, seed)
    seconds = time.perf_counter() - started
    model.save_pretrained(out / "model")
    tokenizer.save_pretrained(out / "model")
    sets = {"easy": held_out[EASY], "hard": held_out[HARD]}
    report: dict[str, Any] = {
        "parameters": sum(p.numel() for p in model.parameters()),
        "steps": steps,
        "seconds": round(seconds, 1),
    }
    for name, questions in sets.items():
        write_set(out / name, {"validation": questions[:300], "train": questions[300:]})
        report[name] = {
            f"avg@4 at temperature {t}": round(accuracy(model, tokenizer, questions[:300], 4, t), 3)
            for t in (1.0, 0.6)
        }
    return report


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--target", type=float, default=0.4, help="accuracy at which the warm-up stops")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    sys.stdout.write(json.dumps(build(arguments.out, arguments.target, arguments.seed), indent=1) + "\n")
