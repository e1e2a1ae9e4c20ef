"""The ScaleRL recipe (Khatri et al., arXiv 2510.13786, section 4) and its ablations.

    L = -1/P Σ_x 1/Σ_i |y_i| Σ_i Σ_t sg[min(π(y_it) / μ(y_it), 5)] A_i log π(y_it),    A_i = (r_i - r̄) / σ_A

The sum is over the P problems x of a batch that have at least two different rewards r_i. The y_i are the
responses to x, and r̄ is their mean reward. σ_A is the standard deviation of r - r̄ in the batch, and sg
stops the gradient. π is the trainer's policy, and μ is the *sampler's* policy when it drew the token, so the
ratio is the only importance weight. Problems with a pass rate of at least 0.9 are not sampled again. Trainer
and sampler compute logits in float32. Batches are up to 8 updates old, and long responses are interrupted
(below).

The paper's leave-one-out ablation reverts one part at a time to its baseline (section 2 and A.2; `PARTS`).
In isolaw, ``recipe.without`` does this. One baseline differs: the paper replaces PipelineRL-8 by
PPO-off-policy-8, whereas in isolaw each batch then updates the policy that sampled it.

Any algorithm can control the length of responses. If a response has not ended after ``interrupt_at`` tokens,
isolaw appends ``interrupt_phrase``. The model then has ``answer_tokens`` more tokens to finish (A.10;
`rollout.worker`). If ``interrupt_at`` is [first, last], the position is drawn at random for each response, as
in the paper. The phrase counts neither as generated tokens nor toward ``max_response_tokens`` = last +
``answer_tokens``. The paper uses 10,240 to 12,288 tokens of thinking, 2,048 tokens of answer, and a penalty
over the last 2k of 14k tokens. The defaults are the same fractions of ``max_response_tokens``.

Importing this module does not load torch.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from isolaw.config import Recipe
from isolaw.errors import Issue

NAME = "scale_rl"
PHRASE = "Okay, time is up. Let me stop thinking and formulate a final answer now.</think>"
_ANSWER_DIVISOR = 7  # max_response_tokens / answer_tokens: 14,336 / 2,048
_FIRST_POSITION = 10 / 12  # first position of an interruption divided by the last position
_LENGTH_KEYS = ("interrupt_at", "interrupt_phrase", "answer_tokens")


class _Part(NamedTuple):
    """The recipe keys that a part of ScaleRL sets, and their values without it, the baseline."""

    keys: dict[str, Any]
    baseline: dict[str, Any]


PARTS: dict[str, _Part] = {
    # The paper tries caps of 4, 5 and 8 on the ratio (A.17.2). Baseline: DAPO's loss, clipped as in A.16.
    "cispo": _Part({"clip_low": 1.0, "clip_high": 4.0}, {"clip_low": 0.2, "clip_high": 0.26}),
    # Baseline: first average over the tokens of each response, as in GRPO.
    "prompt_aggregation": _Part({"aggregation": "prompt"}, {"aggregation": "sequence"}),
    # Baseline: the group's standard deviation, as in GRPO.
    "batch_normalization": _Part({"advantage": "advantage_std"}, {"advantage": "group_std"}),
    "zero_variance_filter": _Part({"zero_variance_filter": True}, {"zero_variance_filter": False}),
    "no_positive_resampling": _Part({"no_positive_resampling": 0.9}, {"no_positive_resampling": None}),
    "float32_head": _Part({"float32_head": True}, {"float32_head": False}),
    # Baseline: the length penalty on correct responses (eq. 9). Interruptions and penalty both depend on
    # max_response_tokens.
    "interruptions": _Part({}, {"overlong_on": "correct"}),
    "staleness": _Part({"staleness": 8}, {"staleness": 0}),
}
# Keys that configure a part and have no effect without this part.
_KEYS_OF_PART: dict[str, tuple[str, ...]] = {
    "no_positive_resampling": ("no_positive_resampling",),
    "interruptions": _LENGTH_KEYS,
    "staleness": ("staleness",),
}
_COMMON_KEYS: dict[str, Any] = {"importance_sampling": "none", "kl": 0.0, "entropy": 0.0}


def settings(without: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the recipe keys and values of ScaleRL, with the parts in ``without`` at their baselines.

    >>> settings()["staleness"], settings(("staleness", "cispo"))["clip_high"]
    (8, 0.26)
    """
    out = {**_COMMON_KEYS, "without": without}
    for name, part in PARTS.items():
        out |= part.baseline if name in without else part.keys
    return out


def without_parts(recipe: Recipe) -> Recipe:
    """Return a recipe without the settings of the parts in ``recipe.without``; keep the response length.

    One sweep file can therefore configure the parts and use ``without`` as an axis.

    >>> less = without_parts(Recipe(algorithm="scale_rl", staleness=4, without=("staleness",)))
    >>> less.staleness, less.without
    (None, ('staleness',))
    """
    removed_keys = [key for part in recipe.without or () for key in _KEYS_OF_PART.get(part, ())]
    changes: dict[str, Any] = dict.fromkeys(removed_keys)
    if "answer_tokens" in removed_keys and recipe.interrupt_at and recipe.answer_tokens:
        longest = recipe.interrupt_at[1] + recipe.answer_tokens
        changes["max_response_tokens"] = recipe.max_response_tokens or longest
    return recipe.model_copy(update=changes)


def has_part(recipe: Recipe, part: str) -> bool:
    """Return whether a recipe is ScaleRL and includes ``part``."""
    return recipe.algorithm == NAME and part not in (recipe.without or ())


def issues(recipe: Recipe) -> list[Issue]:
    """Return the issues of a resolved recipe's parts of ScaleRL, and of its control of lengths.

    >>> for issue in issues(Recipe(algorithm="scale_rl", **settings() | {"float32_head": False})):
    ...     print(issue)
    recipe.float32_head: a part of scale_rl; found False; expected recipe.without = ["float32_head"]
    """
    return [*_part_issues(recipe), *_length_issues(recipe)]


def _part_issues(recipe: Recipe) -> list[Issue]:
    """Return issues of keys that contradict ``recipe.without`` or ScaleRL's ratio."""
    if recipe.algorithm != NAME:
        if recipe.without is None:
            return []
        note = "only scale_rl has parts that can be removed"
        return [Issue("recipe.without", note, list(recipe.without), f'no such key, or algorithm = "{NAME}"')]
    out = []
    for name, (keys, baseline) in PARTS.items():
        if not keys:
            continue
        is_kept = has_part(recipe, name)
        contradicting, key = (baseline if is_kept else keys), next(iter(keys))
        if all(getattr(recipe, recipe_key) == value for recipe_key, value in contradicting.items()):
            if is_kept:
                accepted, note = f'recipe.without = ["{name}"]', f"a part of {NAME}"
            else:
                accepted, note = "no such key", f"recipe.without removes {name}"
            out.append(Issue(f"recipe.{key}", note, getattr(recipe, key), accepted))
    if recipe.importance_sampling != "none":
        note = f"the ratio of {NAME} is already the ratio of trainer and sampler"
        out.append(Issue("recipe.importance_sampling", note, recipe.importance_sampling, "no such key"))
    return out


def penalty_tokens(longest: int) -> int:
    """Return how many tokens before the limit ScaleRL's length penalty begins."""
    return max(1, longest // _ANSWER_DIVISOR)


def interruption_keys(recipe_keys: dict[str, Any], longest: int) -> dict[str, Any]:
    """Return the values of all interruption keys, given the keys that a recipe sets.

    ``longest`` is the default of ``max_response_tokens``, used if ``recipe_keys`` does not determine it.

    >>> interruption_keys({"max_response_tokens": 14336}, 1024)["interrupt_at"]
    (10240, 12288)
    >>> changes = interruption_keys({"interrupt_at": (600, 600), "answer_tokens": 100}, 1024)
    >>> changes["max_response_tokens"]
    700
    """
    positions, answer_tokens = recipe_keys.get("interrupt_at"), recipe_keys.get("answer_tokens")
    if positions and answer_tokens:
        longest = positions[1] + answer_tokens
    longest = recipe_keys.get("max_response_tokens", longest)
    if answer_tokens is None:
        answer_tokens = longest - positions[1] if positions else max(1, longest // _ANSWER_DIVISOR)
    if positions is None:
        last = longest - answer_tokens
        positions = (max(1, round(last * _FIRST_POSITION)), last)
    phrase = recipe_keys.get("interrupt_phrase", PHRASE)
    values = {"interrupt_at": positions, "interrupt_phrase": phrase, "answer_tokens": answer_tokens}
    return {**values, "max_response_tokens": longest}


def _length_issues(recipe: Recipe) -> list[Issue]:
    """Return the length-control keys of a resolved recipe that have no effect or make no sense."""
    out = []
    if not recipe.overlong_buffer and recipe.overlong_on is not None:
        accepted = "no such key, or recipe.overlong_buffer above 0"
        out.append(Issue("recipe.overlong_on", "there is no penalty", recipe.overlong_on, accepted))
    if recipe.interrupt_at is None:
        accepted = "no such key, or recipe.interrupt_at"
        out += [
            Issue(f"recipe.{key}", "nothing is interrupted", getattr(recipe, key), accepted)
            for key in _LENGTH_KEYS
            if getattr(recipe, key) is not None
        ]
        return out
    last, answer, longest = recipe.interrupt_at[1], recipe.answer_tokens or 0, recipe.max_response_tokens or 0
    if last < 1 or answer < 1 or last + answer != longest:
        note = f"recipe.interrupt_at ({last}) and recipe.answer_tokens ({answer}) do not add up to it"
        accepted = "no such key, or their sum" if last > 0 < answer else "at least 2"
        out.append(Issue("recipe.max_response_tokens", note, longest, accepted))
    return out
