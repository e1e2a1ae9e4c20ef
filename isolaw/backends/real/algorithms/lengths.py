"""Control the length of responses by forced interruptions and by reward penalties on long responses.

If a response has not ended after ``interrupt_at`` tokens, isolaw appends ``interrupt_phrase``. The model then
has ``answer_tokens`` more tokens to finish (ScaleRL, arXiv 2510.13786, A.10; `rollout.worker`). If
``interrupt_at`` is [first, last], the position is drawn at random for each response, as in the paper. The
phrase counts neither as generated tokens nor toward ``max_response_tokens`` = last + ``answer_tokens``.

The paper uses 10,240 to 12,288 tokens of thinking, 2,048 tokens of answer, and a penalty over the last 2k of
14k tokens. The defaults are the same fractions of ``max_response_tokens``. Importing this module does not
load torch.
"""

from __future__ import annotations

from typing import Any

from isolaw.config import Recipe
from isolaw.errors import Issue

PHRASE = "Okay, time is up. Let me stop thinking and formulate a final answer now.</think>"
_ANSWER_PART = 7  # max_response_tokens / answer_tokens: 14,336 / 2,048
_FIRST = 10 / 12  # first position of an interruption divided by the last position
KEYS = ("interrupt_at", "interrupt_phrase", "answer_tokens")


def penalty_tokens(longest: int) -> int:
    """Return how many tokens before the limit ScaleRL's length penalty begins."""
    return max(1, longest // _ANSWER_PART)


def interruption(given: dict[str, Any], longest: int) -> dict[str, Any]:
    """Return the values of all interruption keys, given the keys that a recipe sets.

    ``longest`` is the default of ``max_response_tokens``, used if ``given`` does not determine this key.

    >>> interruption({"max_response_tokens": 14336}, 1024)["interrupt_at"]
    (10240, 12288)
    >>> changes = interruption({"interrupt_at": (600, 600), "answer_tokens": 100}, 1024)
    >>> changes["max_response_tokens"]
    700
    """
    at, answer = given.get("interrupt_at"), given.get("answer_tokens")
    if at and answer:
        longest = at[1] + answer
    longest = given.get("max_response_tokens", longest)
    if answer is None:
        answer = longest - at[1] if at else max(1, longest // _ANSWER_PART)
    if at is None:
        last = longest - answer
        at = (max(1, round(last * _FIRST)), last)
    phrase = given.get("interrupt_phrase", PHRASE)
    values = {"interrupt_at": at, "interrupt_phrase": phrase, "answer_tokens": answer}
    return {**values, "max_response_tokens": longest}


def issues(recipe: Recipe) -> list[Issue]:
    """Return the length-control keys of a resolved recipe that have no effect or make no sense."""
    out = []
    if not recipe.overlong_buffer and recipe.overlong_on is not None:
        accepted = "no such key, or recipe.overlong_buffer above 0"
        out.append(Issue("recipe.overlong_on", "there is no penalty", recipe.overlong_on, accepted))
    if recipe.interrupt_at is None:
        accepted = "no such key, or recipe.interrupt_at"
        out += [
            Issue(f"recipe.{key}", "nothing is interrupted", getattr(recipe, key), accepted)
            for key in KEYS
            if getattr(recipe, key) is not None
        ]
        return out
    last, answer, longest = recipe.interrupt_at[1], recipe.answer_tokens or 0, recipe.max_response_tokens or 0
    if last < 1 or answer < 1 or last + answer != longest:
        note = f"recipe.interrupt_at ({last}) and recipe.answer_tokens ({answer}) do not add up to it"
        accepted = "no such key, or their sum" if last > 0 < answer else "at least 2"
        out.append(Issue("recipe.max_response_tokens", note, longest, accepted))
    return out
