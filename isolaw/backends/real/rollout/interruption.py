"""Interrupt responses that exceed their thinking budget, so that they end in an answer.

    draw up to a position in `Interruption.span`
    append the phrase to each response that has not ended
    draw the rest

The phrase is only context for the following tokens, and `Rollouts.inserted` records its position. The phrase
does not enter log-probabilities, gradients or the count of generated tokens. Draws depend only on the
rollout's seed.

If the phrase ends in a special token such as ``</think>``, it closes a section of the response. A response
that already contains this token continues without the phrase.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from isolaw.backends.real.rollout.prompts import encode_phrase
from isolaw.backends.real.rollout.samplers import Prompts, Rollouts, Sampler, Seeds
from isolaw.config import Recipe

# Keys of random streams that are derived from a rollout's seed; the sampler uses the seed itself.
_PLACE, _ANSWER = 1, 2


@dataclass(frozen=True)
class Interruption:
    """The position of an interruption, the tokens of its phrase, and the number of tokens after it."""

    span: tuple[int, int]  # first and last possible position, in tokens
    phrase: list[int]
    answer_tokens: int
    end: int | None = None  # the phrase's last token if it is a special token

    @classmethod
    def of(cls, recipe: Recipe, tokenizer: Any) -> Interruption | None:
        """Return the interruption of a resolved recipe, or None without ``interrupt_at``."""
        if recipe.interrupt_at is None or recipe.interrupt_phrase is None:
            return None
        phrase = encode_phrase(recipe.interrupt_phrase, tokenizer)
        closing = phrase[-1] in tokenizer.get_added_vocab().values()
        return cls(recipe.interrupt_at, phrase, recipe.answer_tokens or 1, phrase[-1] if closing else None)

    def draw(self, sampler: Sampler, prompts: Prompts, seeds: Seeds, **how: float) -> Rollouts:
        """Draw rollouts with interruptions; ``how`` is temperature and top_p, as in `Sampler.generate`."""
        flat = [seed for some in seeds for seed in some]
        first, last = self.span
        places = [int(_stream(seed, _PLACE).integers(first, last + 1)) for seed in flat]
        drawn = sampler.generate(prompts, seeds, max_tokens=places, **how)
        rows = [row for row, finished in enumerate(drawn.finished) if not finished]
        if not rows:
            return drawn
        phrases = [[] if self.end in drawn.tokens[row] else self.phrase for row in rows]
        begun = [drawn.tokens[row] + phrase for row, phrase in zip(rows, phrases, strict=True)]
        rest = sampler.generate(
            [drawn.prompts[row] + tokens for row, tokens in zip(rows, begun, strict=True)],
            [[int(_stream(flat[row], _ANSWER).integers(2**63))] for row in rows],
            max_tokens=[self.answer_tokens] * len(rows),
            **how,
        )
        for k, row in enumerate(rows):
            drawn.inserted[row] = [len(begun[k]) - len(phrases[k]), len(begun[k])]
            drawn.tokens[row] = begun[k] + rest.tokens[k]
            drawn.logprobs[row] = drawn.logprobs[row] + rest.logprobs[k]
            drawn.finished[row] = rest.finished[k]
        return drawn


def _stream(seed: int, key: int) -> np.random.Generator:
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(key,)))
