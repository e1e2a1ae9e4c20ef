"""A task of two turns: multiply by calling a calculator. Model, problems and rollout function. ::

    python examples/calculator.py demo-real/calculator
    isolaw sweep examples/real-calculator.toml --out demo-real/calculator/sweep

The prompt is ``17*23=``. A turn with an operator, such as ``17*23``, calls the calculator, which adds
``391=`` to the conversation; the model's last turn is its answer. The tiny model of `tiny_model` cannot
multiply. A supervised warm-up shows it both ways, to call and to answer at once; reinforcement learning has
to find out which of them is right.
"""

from __future__ import annotations

import argparse
import random
import re
from pathlib import Path
from typing import Any

KIND = "mul-100"
TARGET = 0.9  # share of the calculator's replies that the model copies after its warm-up
CALLS = 0.4  # share of the warm-up's examples that call the calculator


async def rollout(problem: Any, generate: Any) -> list[Any]:
    """Lead a conversation: the calculator replies to each turn that has an operator."""
    conversation = [problem.prompt]
    while True:
        written = await generate(conversation)
        conversation.append(written)
        if not set(written) & set("+-*"):
            return conversation
        conversation.append(f"{calculate(written)}=")


def calculate(text: str) -> int:
    """Return the value of a product, sum or difference of two numbers, or 0 for anything else.

    >>> calculate("17*23"), calculate("17*")
    (391, 0)
    """
    match = re.fullmatch(r"(\d+)([+*-])(\d+)", text)
    if match is None:
        return 0
    a, b = int(match[1]), int(match[3])
    return {"+": a + b, "-": a - b, "*": a * b}[match[2]]


def build(out: Path, seed: int = 0) -> int:
    """Write ``out/problems``, and ``out/model`` after its warm-up; return the steps of the warm-up.

    It ends once the model copies 90 % of the calculator's replies.
    """
    import arithmetic
    from tiny_model import make_model, make_tokenizer, warm_up

    from isolaw.backends.real.rollout.problems import Problem, write_set

    problems = arithmetic.generate(KIND, arithmetic.size(KIND), seed)
    write_set(out / "problems", {"validation": problems[:200], "train": problems[200:1200]})
    tokenizer, model, rng = make_tokenizer(), make_model(seed), random.Random(seed)
    replied = [
        Problem(q.id, f"{q.prompt}{q.id}{tokenizer.eos_token}{q.answer}=", q.answer) for q in problems[200:]
    ]
    examples = []
    for problem, after in zip(problems[200:], replied, strict=True):
        calls = rng.random() < CALLS
        examples += [Problem(problem.id, problem.prompt, problem.id), after] if calls else [problem]
    steps = warm_up(model, tokenizer, examples, replied[:100], TARGET, seed)
    model.save_pretrained(out / "model")
    tokenizer.save_pretrained(out / "model")
    return steps


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("out", type=Path)
    print(f"{build(parser.parse_args().out)} steps of warm-up")
