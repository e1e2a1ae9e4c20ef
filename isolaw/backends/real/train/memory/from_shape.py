"""Estimate the cost of steps from the shape of a model and the GPUs alone: no weights, tokenizer or torch.

The text ``MODEL@GPU:COUNT``, such as ``qwen2.5-7b@h100-80g:8``, names a known model, or a ``config.json`` (or
its folder), and the GPUs of a run. ``/TOKENS`` is ``recipe.max_response_tokens``. The memory plan and
the seconds of a step are those of a dry run (`planner`, `step_time`), with the smallest ZeRO stage that fits.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

from isolaw.backends.real import models
from isolaw.backends.real.algorithms.presets import resolve_recipe
from isolaw.backends.real.options import RealOptions
from isolaw.backends.real.train.memory import step_time
from isolaw.backends.real.train.memory.decoder import Decoder
from isolaw.backends.real.train.memory.footprint import Demand
from isolaw.backends.real.train.memory.planner import fastest
from isolaw.config import Recipe, RunSpec
from isolaw.errors import InputError, shown
from isolaw.machine import Cards, card_speed, cards
from isolaw.step_cost import Cost, CostOrigin, StepPart

_TEXT = re.compile(r"(?P<model>.+)(?<!/s)@(?P<gpus>[\w.-]+(?::\d+)?)(?:/(?P<tokens>[1-9]\d{0,5}))?")
_PROMPT_TOKENS = 256  # assumed tokens of a prompt; problems of GSM8K and MATH have about 100 to 300
_REFERENCE = (32, 16)  # the (B_p, n) whose parts of a step stand for all


@dataclass(frozen=True)
class _ShapeCost(Cost):
    """A cost that estimates the step of each (B_p, n) separately."""

    seconds_of: Callable[[int, int], Cost] = field(kw_only=True, repr=False, compare=False)

    def step(self, problems_per_batch: int, rollouts_per_problem: int) -> float | None:
        """Return the seconds of a step."""
        return self.seconds_of(problems_per_batch, rollouts_per_problem).step(
            problems_per_batch, rollouts_per_problem
        )


def cost_of_shape(text: str) -> Cost | None:
    """Return the estimated cost of steps, or None if ``text`` has another form than ``MODEL@GPU:COUNT``.

    Raises `InputError` for an unknown model or GPU, and for a model that does not fit on the GPUs.

    >>> cost = cost_of_shape("qwen2.5-7b@h100-80g:8")
    >>> round(cost.gpu_hours(32, 64, steps=100).value)
    11
    """
    match = _TEXT.fullmatch(text)
    if match is None or os.path.lexists(text):
        return None
    try:
        config = models.config(match["model"])
    except InputError as error:
        raise InputError(f"cost: {error}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{match['model']}: not valid JSON: {error}") from None
    model = Decoder.of(config) if isinstance(config, dict) else None
    if model is None:
        raise InputError(
            f"{match['model']}: isolaw estimates the steps of Llama, Mistral, Qwen2 and Qwen3 only"
        )
    gpus = cards(match["gpus"])
    if card_speed(gpus.name) is None:
        raise InputError(f"cost: found {shown(match['gpus'])}; expected GPUs of known speed, e.g. h100-80g:8")
    recipe = resolve_recipe(Recipe(max_response_tokens=int(match["tokens"]) if match["tokens"] else None))
    seconds_of = _estimator(model, gpus, recipe, text)
    reference = seconds_of(*_REFERENCE)
    parts = {name: StepPart(part.step_s, 0.0) for name, part in reference.parts.items()}
    note = (
        f"nothing was timed. isolaw assumes prompts of {_PROMPT_TOKENS} tokens, and responses of "
        f"{reference.per_rollout:g} on average, half of their limit"
    )
    return _ShapeCost(
        parts, reference.per_rollout, "tokens", CostOrigin.ESTIMATE, text, gpus.count, gpus.name,
        match["model"], billions=float(f"{model.parameters / 1e9:.2g}"), notes=(note,), seconds_of=seconds_of,
    )  # fmt: skip


def _estimator(model: Decoder, gpus: Cards, recipe: Recipe, text: str) -> Callable[[int, int], Cost]:
    """Return a function that estimates the cost of a step of (B_p, n)."""
    row_tokens = _PROMPT_TOKENS + (recipe.max_response_tokens or 1)
    demand = Demand(model, gpus.gpu_bytes, row_tokens, bool(recipe.kl), gpus=gpus.count)
    options = RealOptions(model=text, sampler="vllm", dtype="bfloat16", processes=gpus.count)
    plans = (fastest(demand, options.changed(zero_stage=stage)) for stage in (0, 2, 3))
    plan = next((plan for plan in plans if plan.fits()), None)
    if plan is None:
        raise InputError(f"cost: {text} does not fit; expected more GPUs, or GPUs with more memory")

    @cache
    def cost(b: int, n: int) -> Cost:
        spec = RunSpec(
            backend="real", problems_per_batch=b, rollouts_per_problem=n, compute=b * n, recipe=recipe
        )
        estimated = step_time.cost(spec, demand, plan.options, plan.cache_bytes, gpus.name)
        assert estimated is not None  # the speed of the GPU is known
        return estimated

    return cost
