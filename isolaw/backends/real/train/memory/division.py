"""Divide the GPUs of an asynchronous run between trainer processes and sampler processes.

Trainers and samplers work at the same time (`train.pipeline`), so the slower side determines the duration of
a step. With W GPUs for training and S GPUs for sampling, a step of T response tokens takes

    seconds(W, S) = T · max(s / S, t / W)
    s = 1 / SAMPLED
    t = 1 / TRAINED · (p + τ) / τ · epochs · (1 + reference / 3 + critic)

Here s and t are GPU seconds per response token, for responses of τ tokens and prompts of p tokens. A step
costs as much as three forward passes. A reference model adds one forward pass, and a critic adds as much as a
step. The rates are tokens per second on one H200 with Qwen2.5-0.5B (docs/gpu/2026-11-27-h200-2). Only their
ratio matters, and it varies less between models and GPUs than either rate. If a measured run contradicts this
estimate, set ``real.samplers``.
"""

from __future__ import annotations

from collections.abc import Callable

from isolaw.backends.real.options import RealOptions
from isolaw.backends.real.train.memory.footprint import Demand
from isolaw.config import RunSpec

SAMPLED, TRAINED = 43_850.8, 43_916.4  # tokens per second with 512 rollouts of 512 tokens


def token_seconds(spec: RunSpec, demand: Demand | None) -> tuple[float, float]:
    """Return s and t: the GPU seconds to sample a response token, and to train on it."""
    recipe = spec.recipe
    response = recipe.max_response_tokens or 1
    rows = demand.row_tokens / response if demand else 1.0
    passes = recipe.epochs * (1 + bool(recipe.kl) / 3 + (recipe.algorithm == "ppo"))
    return 1 / SAMPLED, rows * passes / TRAINED


def divided(
    options: RealOptions,
    gpus: int,
    seconds: tuple[float, float],
    *,
    processes: int | None,
    enough: int,
    fits: Callable[[RealOptions], bool],
) -> RealOptions | None:
    """Return the section with a division of at most ``gpus`` GPUs, or None if no division fits.

    ``processes`` and ``options.samplers`` are kept unless they are None. If one of them is set, the other is
    the smallest number that does not slow the run down. If both are None, the run gets the smallest power of
    two of GPUs with ``enough`` samplers. Of two equally fast divisions, the one with fewer samplers is
    chosen.

    >>> own = divided(RealOptions(model="m", generation="async"), 8, (1.0, 3.0), processes=None, enough=2,
    ...     fits=lambda options: True)
    >>> own.processes, own.samplers
    (6, 2)
    """

    def slower(own: RealOptions) -> float:
        sampled, trained = seconds
        return max(sampled / own.streaming, trained / own.processes)

    both = processes is None and options.samplers is None
    best: list[RealOptions] = []
    for total in [2**k for k in range(1, gpus.bit_length())] if both else range(2, gpus + 1):
        ways = [options.changed(processes=w, samplers=total - w) for w in range(total - 1, 0, -1)]
        kept = [
            own
            for own in ways
            if processes in (None, own.processes) and options.samplers in (None, own.samplers) and fits(own)
        ]
        best += [min(kept, key=slower)] if kept else []
    if both:
        return next((own for own in best if own.streaming >= enough), best[-1] if best else None)
    return min(best, key=slower, default=None)
