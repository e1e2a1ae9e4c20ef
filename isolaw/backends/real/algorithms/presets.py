"""Define the defaults of each algorithm, and check recipes for invalid keys.

`resolve_recipe` fills in the keys that a recipe does not set: first from its algorithm's paper
(`ALGORITHMS`), then from the IsoCompute Playbook (arXiv 2603.12151, Table 1 and App. A; `PLAYBOOK`). The
Playbook's regularisation depends on ``problems.difficulty`` (`EASY_TERM_WEIGHTS`). A key without effect
stays None, and `recipe_issues` rejects a recipe that sets it. Otherwise equal runs could have two identities,
and a sweep could use a key without effect as an axis. Importing this module does not load torch.
"""

from __future__ import annotations

from typing import Any

from isolaw.backends.real.algorithms import lora
from isolaw.config import ProblemsSpec, Recipe
from isolaw.config.sections import OFF
from isolaw.errors import Issue, nearest

# The keys that each algorithm sets. Ratios are clipped to [1 - clip_low, 1 + clip_high], which has an effect
# only off-policy. clip_low = 1 means no lower bound.
_NO_TERMS = {"kl": 0.0, "entropy": 0.0}
ALGORITHMS: dict[str, dict[str, Any]] = {
    # arXiv 2402.03300, eq. 3 and 4.1.2; the clip range is PPO's (arXiv 1707.06347).
    "grpo": {"advantage": "group_std", "aggregation": "sequence", "clip_low": 0.2, "clip_high": 0.2},
    # arXiv 2503.20783, section 3: no division by the group's deviation or the response's length; no KL.
    "dr_grpo": {"advantage": "centred", "aggregation": "fixed_length", "clip_low": 0.2, "clip_high": 0.2}
    | _NO_TERMS,
    # arXiv 2503.14476, section 3: clip-higher, dynamic sampling, token mean, soft overlong penalty; no KL.
    # Its equation averages over the tokens of a problem; its code averages over the batch, as isolaw does.
    "dapo": {"advantage": "group_std", "aggregation": "token", "clip_low": 0.2, "clip_high": 0.28}
    | {"dynamic_sampling": True, **_NO_TERMS},
    # arXiv 2506.13585, eq. 4 and 5: no lower bound, no KL. The paper does not give the upper bound; the cap
    # of 5 is from ScaleRL (arXiv 2510.13786). Both papers divide by the tokens of one problem's responses.
    "cispo": {"advantage": "group_std", "aggregation": "prompt", "clip_low": 1.0, "clip_high": 4.0}
    | _NO_TERMS,
    # arXiv 1707.06347 with the defaults of TRL 0.25 and advantages from GAE (`train.ppo`).
    "ppo": {"aggregation": "token", "clip_low": 0.2, "clip_high": 0.2}
    | {"gamma": 1.0, "gae_lambda": 0.95, "value_clip": 0.2},
    # ScaleRL, arXiv 2510.13786, section 4; without interruptions, which ``interrupt_at`` adds:
    #   L = -1/P Σ_x 1/Σ_i |y_i| Σ_i Σ_t sg[min(π(y_it) / μ(y_it), 5)] A_i log π(y_it),  A_i = (r_i - r̄) / σ_A
    # The sum is over the P problems x of a batch that have at least two different rewards r_i. The y_i are
    # the responses to x, r̄ is their mean reward, σ_A is the standard deviation of r - r̄ in the batch, and sg
    # stops the gradient. π is the trainer's policy, and μ is the *sampler's* policy when it drew the token,
    # so the ratio is the only importance weight. The paper tries caps of 4, 5 and 8 on it (A.17.2).
    "scale_rl": {"advantage": "advantage_std", "aggregation": "prompt", "clip_low": 1.0, "clip_high": 4.0}
    | {"zero_variance_filter": True, "no_positive_resampling": 0.9, "float32_head": True, "staleness": 8}
    | {"importance_sampling": "none", **_NO_TERMS},
}
CRITIC_KEYS = ("gamma", "gae_lambda", "value_clip", "critic_lr")  # keys that only PPO has
_CRITIC_LR_FACTOR = 10  # multiple of lr; a common value (verl, OpenRLHF)

# The IsoCompute Playbook's recipe: on-policy, with TIS. Values marked "common" are not from the Playbook.
PLAYBOOK: dict[str, Any] = {
    "lr": 1e-6,
    "warmup_steps": 10,
    "temperature": 0.6,
    "top_p": 1.0,
    "importance_sampling": "token",
    "importance_cap": 2.0,  # common
    "weight_decay": 0.01,  # common: the default of PyTorch's AdamW
    "max_grad_norm": 1.0,  # common
    "max_response_tokens": 1024,  # depends on model and problems: set it
}
# Weights of both terms with problems.difficulty = "easy"; otherwise they are 0. The paper does not give the
# weights; these are common values (KL: arXiv 2501.12948).
EASY_TERM_WEIGHTS: dict[str, float] = {"kl": 1e-3, "entropy": 1e-3}
# max_response_tokens divided by overlong_buffer. DAPO's soft penalty covers the last 4,096 of 20,480 tokens.
_OVERLONG_DIVISOR = 5
# ScaleRL's phrase (arXiv 2510.13786, A.10).
PHRASE = "Okay, time is up. Let me stop thinking and formulate a final answer now.</think>"
_INTERRUPTION_KEYS = ("interrupt_phrase", "answer_tokens")  # these keys have no effect without interrupt_at


def resolve_recipe(recipe: Recipe, difficulty: str | None = None) -> Recipe:
    """Return the recipe with every key that has an effect filled in; resolving it again changes nothing.

    ``difficulty`` is ``problems.difficulty``. With ``"easy"``, the KL term and the entropy bonus are on
    (`EASY_TERM_WEIGHTS`), unless the algorithm's paper excludes them. With ``"hard"`` or None they are off
    (arXiv 2603.12151, section 3).

    Keys can remain None. For two of them None has a meaning: ``gradient_rollouts`` is then the whole group,
    and ``interrupt_at`` is off. Other keys are None because they have no effect: ``clip_low`` and
    ``clip_high`` (on-policy), ``value_clip`` (one update per batch), ``importance_cap`` (no importance
    sampling), ``interrupt_phrase`` and ``answer_tokens`` (no interruption), the critic's keys (not PPO),
    ``lora_alpha`` (full fine-tuning), and ``advantage`` (PPO).

    >>> easy = resolve_recipe(Recipe(), "easy")
    >>> easy.lr, easy.kl, easy.clip_low
    (1e-06, 0.001, None)
    >>> dapo = resolve_recipe(Recipe(algorithm="dapo", staleness=1, max_response_tokens=20480), "easy")
    >>> dapo.clip_low, dapo.clip_high, dapo.dynamic_sampling, dapo.overlong_buffer, dapo.kl
    (0.2, 0.28, True, 4096, 0.0)
    >>> scale_rl = resolve_recipe(Recipe(algorithm="scale_rl", float32_head=False))
    >>> scale_rl.staleness, scale_rl.no_positive_resampling, scale_rl.float32_head
    (8, 0.9, False)
    """
    set_keys = {key: value for key, value in recipe.model_dump().items() if value is not None}
    algorithm = ALGORITHMS.get(recipe.algorithm, ALGORITHMS["grpo"])  # unknown algorithms are rejected later
    term_weights = EASY_TERM_WEIGHTS if difficulty == "easy" else dict.fromkeys(EASY_TERM_WEIGHTS, 0.0)
    filters = {"dynamic_sampling": False, "no_positive_resampling": 0.0}
    values = {**OFF, **PLAYBOOK, **term_weights, **filters, **algorithm, **set_keys}
    if "interrupt_at" in set_keys:
        values |= _interruption(set_keys, values["max_response_tokens"])
    overlong_buffer = values["max_response_tokens"] // _OVERLONG_DIVISOR if recipe.algorithm == "dapo" else 0
    values.setdefault("overlong_buffer", overlong_buffer)
    if recipe.algorithm == "ppo":
        values.setdefault("critic_lr", float(f"{_CRITIC_LR_FACTOR * values['lr']:.15g}"))
    if recipe.lora_rank is not None:
        values.setdefault("lora_alpha", lora.ALPHA)
    unused = ["clip_low", "clip_high"] if _on_policy(recipe) else []
    unused += ["value_clip"] if recipe.updates_per_batch == 1 else []
    if values["importance_sampling"] == "none":
        unused.append("importance_cap")
    return recipe.model_copy(update={k: v for k, v in values.items() if k in set_keys or k not in unused})


def _interruption(set_keys: dict[str, Any], default: int) -> dict[str, Any]:
    """Return the values of all interruption keys, given the keys that a recipe sets with ``interrupt_at``.

    If a response has not ended after ``interrupt_at`` tokens, isolaw appends ``interrupt_phrase``. The model
    then has ``answer_tokens`` more tokens to finish (arXiv 2510.13786, A.10; `rollout.worker`). If
    ``interrupt_at`` is [first, last], the position is drawn at random for each response, as in the paper,
    which uses 10,240 to 12,288 tokens of thinking and 2,048 tokens of answer. The phrase counts neither as
    generated tokens nor toward ``max_response_tokens`` = last + ``answer_tokens``. ``default`` is the
    default of this key.

    >>> changes = _interruption({"interrupt_at": (600, 600), "answer_tokens": 100}, 1024)
    >>> changes["max_response_tokens"]
    700
    """
    last, answer_tokens = set_keys["interrupt_at"][1], set_keys.get("answer_tokens")
    default = last + answer_tokens if answer_tokens else default
    max_response_tokens = set_keys.get("max_response_tokens", default)
    return {
        "interrupt_phrase": set_keys.get("interrupt_phrase", PHRASE),
        "answer_tokens": max_response_tokens - last if answer_tokens is None else answer_tokens,
        "max_response_tokens": max_response_tokens,
    }


def notes_on_defaults(recipe: Recipe, problems: ProblemsSpec) -> list[str]:
    """Return a list with one note if neither the recipe nor ``problems.difficulty`` sets the regularisation.

    >>> notes_on_defaults(Recipe(kl=0.0), ProblemsSpec())
    []
    """
    preset = ALGORITHMS.get(recipe.algorithm, {})
    if problems.difficulty is not None or any(
        getattr(recipe, key) is not None or key in preset for key in EASY_TERM_WEIGHTS
    ):
        return []
    unset = " and ".join(f"recipe.{key} = 0" for key in EASY_TERM_WEIGHTS)
    easy = " and ".join(f"{key} = {value:g}" for key, value in EASY_TERM_WEIGHTS.items())
    return [
        f"problems.difficulty is not set, so {unset}. For easy problems, the paper uses both terms: "
        f'problems.difficulty = "easy" sets {easy}; "hard" confirms 0'
    ]


def _on_policy(recipe: Recipe) -> bool:
    """Return whether every ratio is 1, that is, whether every batch updates the policy that sampled it.

    This is False with staleness, with several updates per batch, and for ScaleRL. ScaleRL's ratios compare
    the trainer with the sampler, which differ by rounding.
    """
    return not recipe.staleness and recipe.updates_per_batch == 1 and recipe.algorithm != "scale_rl"


def recipe_issues(recipe: Recipe, rollouts_per_problem: int) -> list[Issue]:
    """Return all issues of a resolved recipe: unknown values, and keys that have no effect or make no sense.

    >>> recipe = resolve_recipe(Recipe(algorithm="cispo", gradient_rollouts=16))
    >>> for issue in recipe_issues(recipe, rollouts_per_problem=8):
    ...     print(issue)
    recipe.algorithm: with one update on each batch and recipe.staleness = 0, every ratio is 1, and cispo is
    grpo with recipe.aggregation = 'prompt'; found 'cispo'; expected grpo, or recipe.staleness of at least 1,
    or recipe.minibatches or recipe.epochs of at least 2
    recipe.gradient_rollouts: found 16; expected at most n = 8
    """
    r, n = recipe, rollouts_per_problem
    out: list[Issue] = []

    def add_issue(is_wrong: bool, key: str, accepted: str, note: str = "", close: str = "") -> None:
        if is_wrong:
            out.append(Issue(f"recipe.{key}", note, getattr(r, key), accepted, close))

    def add_unused(is_unused: bool, keys: tuple[str, ...], remedy: str, note: str) -> None:
        for key in keys:
            add_issue(is_unused and getattr(r, key) is not None, key, f"no such key, or {remedy}", note)

    close = nearest(r.algorithm, ALGORITHMS)
    add_issue(r.algorithm not in ALGORITHMS, "algorithm", ", ".join(ALGORITHMS), close=close)
    is_on_policy = _on_policy(r)
    ratio_note = "with one update on each batch and recipe.staleness = 0, every ratio is 1"
    more_updates = "recipe.minibatches or recipe.epochs of at least 2"
    off_policy = f"recipe.staleness of at least 1, or {more_updates}"
    note = f"{ratio_note}, and {r.algorithm} is grpo with recipe.aggregation = {r.aggregation!r}"
    add_issue(is_on_policy and r.algorithm == "cispo", "algorithm", f"grpo, or {off_policy}", note)
    add_unused(is_on_policy, ("clip_low", "clip_high"), off_policy, f"{ratio_note} and nothing is clipped")
    note = "ratios are never below 0, so 1 already removes the bound"
    add_issue(not is_on_policy and r.clip_low is not None and r.clip_low > 1, "clip_low", "0 to 1", note)

    is_weighted, cap = r.importance_sampling != "none", r.importance_cap
    note = "with recipe.importance_sampling = 'none' there is nothing to cap"
    add_unused(not is_weighted, ("importance_cap",), "recipe.importance_sampling = 'token'", note)
    note = "it would cut weights of 1, for which sampler and trainer agree"
    add_issue(is_weighted and cap is not None and cap < 1, "importance_cap", "at least 1", note)
    note = (
        "the sampler's log-probabilities then belong to the truncated distribution and give no importance "
        "weight"
    )
    accepted = "1, or recipe.importance_sampling = 'none'"
    add_issue(is_weighted and r.top_p is not None and r.top_p < 1, "top_p", accepted, note)

    is_ppo = r.algorithm == "ppo"
    add_unused(not is_ppo, CRITIC_KEYS, "recipe.algorithm = 'ppo'", "there is no critic")
    add_unused(r.lora_rank is None, ("lora_alpha",), "a recipe.lora_rank", "there are no adapters")
    note = (
        "with one update on each batch, the critic's values cannot have changed, so there is nothing to clip"
    )
    add_unused(is_ppo and r.updates_per_batch == 1, ("value_clip",), more_updates, note)
    note = "PPO has no groups, since advantages come from the critic"
    for key, accepted in (
        ("advantage", "no such key"), ("gradient_rollouts", "no such key"), ("zero_variance_filter", "false"),
        ("dynamic_sampling", "false"),
    ):  # fmt: skip
        add_issue(is_ppo and bool(getattr(r, key)), key, f"{accepted}, or another recipe.algorithm", note)

    if n < 2 and r.advantage != "none" and not is_ppo:
        note = "a group of one rollout has no advantage"
        accepted = "at least 2, recipe.advantage = 'none' or recipe.algorithm = 'ppo'"
        out.append(Issue("grid.rollouts_per_problem", note, n, accepted))
    add_issue((r.gradient_rollouts or 0) > n and not is_ppo, "gradient_rollouts", f"at most n = {n}")
    note = "with recipe.advantage = 'none' it would drop groups of equal rewards, which have a gradient"
    for key in ("zero_variance_filter", "dynamic_sampling"):
        drops_groups = r.advantage == "none" and bool(getattr(r, key))
        add_issue(drops_groups, key, "false, or another recipe.advantage", note)
    is_scale_rl = r.algorithm == "scale_rl"
    note = "the ratio of scale_rl is already the ratio of trainer and sampler"
    add_issue(is_scale_rl and is_weighted, "importance_sampling", "no such key", note)

    max_response_tokens = r.max_response_tokens
    too_long = max_response_tokens is not None and (r.overlong_buffer or 0) > max_response_tokens
    add_issue(too_long, "overlong_buffer", f"at most recipe.max_response_tokens = {max_response_tokens}")
    note = "nothing is interrupted"
    add_unused(r.interrupt_at is None, _INTERRUPTION_KEYS, "recipe.interrupt_at", note)
    if r.interrupt_at is not None:
        last, answer = r.interrupt_at[1], r.answer_tokens or 0
        note = f"recipe.interrupt_at ({last}) leaves no tokens for the answer"
        add_issue(answer < 1, "max_response_tokens", f"at least {last + 1}", note)
        note = f"recipe.interrupt_at ({last}) and recipe.answer_tokens ({answer}) do not add up to it"
        is_not_sum = answer > 0 and last + answer != max_response_tokens
        add_issue(is_not_sum, "max_response_tokens", "no such key, or their sum", note)
    return out
