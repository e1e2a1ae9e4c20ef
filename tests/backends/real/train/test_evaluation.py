"""The responses that an evaluation keeps."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from isolaw.backend import cut
from isolaw.backends.real.rollout.problems import Problem
from isolaw.backends.real.rollout.samplers import Rollouts
from isolaw.backends.real.train.batch import RankGroup
from isolaw.backends.real.train.evaluation import responses_of

PROBLEMS = [Problem(f"id{j}", f"{j}?", f"{j}") for j in range(4)]
TOKENIZER = SimpleNamespace(decode=lambda ids, skip_special_tokens=False: " ".join(map(str, ids)))


def test_a_long_text_keeps_both_ends() -> None:
    assert cut("x" * 2000, 2000) == "x" * 2000
    long = cut("a" * 5000 + "boxed{1}", 2000)
    assert len(long) == 2000
    assert long.startswith("aaaa")
    assert long.endswith("boxed{1}")


@pytest.mark.parametrize("world", [1, 2, 3])
def test_they_are_the_first_of_the_first_problems_for_any_number_of_processes(world: int) -> None:
    n, everything = 3, [(j, i) for j in range(4) for i in range(3)]
    alone = RankGroup(0, 1, torch.device("cpu"))
    texts = Rollouts(
        [[j] for j, _ in everything], [[9, j, i] for j, i in everything], [], [True] * 11 + [False]
    )
    texts = replace(texts, logprobs=[[0.0] * 3] * 12)
    batch = alone.batch(list(range(4)), n, texts, np.arange(12) % 2 * 1.0)
    parts: list[Any] = []
    for rank in range(world):
        ranks = RankGroup(rank, world, torch.device("cpu"))
        rows = ranks.share(4, n)
        own = replace(batch, rows=rows, rollouts=texts.rows(rows))
        asked = SimpleNamespace(all_of=lambda value: parts.append(value) or [value])
        responses_of("validation", PROBLEMS, own, 2, asked, TOKENIZER)
    gathered = SimpleNamespace(all_of=lambda _: parts)
    found = responses_of("validation", PROBLEMS, own, 2, gathered, TOKENIZER)
    assert [(one.problem_id, one.prompt, one.response, one.answer) for one in found] == [
        ("id0", "0", "9 0 0", "0"), ("id1", "1", "9 1 0", "1"),
    ]  # fmt: skip
    assert [(one.reward, one.tokens, one.truncated) for one in found] == [(0.0, 3, False), (1.0, 3, False)]
