"""Divide the GPUs of an asynchronous run between trainer processes and sampler processes.

Trainers and samplers work at the same time (`train.pipeline`), so the slower side determines the duration of
a step. With W GPUs for training and S GPUs for sampling, a step of T response tokens takes

    seconds(W, S) = T · max(s / S, t / W)

Here s and t are the GPU seconds to sample a response token and to train on it (`step_time`). An unknown card
counts as an H200, and for an unknown model s = t. Only the ratio of s and t matters, and it varies less
between cards than s or t. If a measured run contradicts this estimate, set ``real.samplers``.
"""

from __future__ import annotations

from collections.abc import Callable

from isolaw.backends.real import environment
from isolaw.backends.real.options import RealOptions
from isolaw.backends.real.train.memory import step_time
from isolaw.backends.real.train.memory.footprint import Demand
from isolaw.config import RunSpec
from isolaw.machine import card_speed


def token_seconds(spec: RunSpec, options: RealOptions, demand: Demand | None) -> tuple[float, float]:
    """Return s and t: the GPU seconds to sample a response token, and to train on it."""
    recipe = spec.recipe
    models = recipe.epochs * step_time.trained_models(spec)
    if demand is None:
        return 1.0, models * step_time.passes(spec, options) / 3
    limit = recipe.max_response_tokens or 1
    lengths = step_time.Lengths(demand.row_tokens - limit, limit, limit)
    card = card_speed(environment.gpu_name()) or card_speed(step_time.MEASURED)
    assert card
    sampled = step_time.sampled_s(demand.model, card, lengths, step_time.number_bytes(options))
    passes = step_time.passes(spec, options)
    trained = step_time.trained_s(demand.model, card, demand.row_tokens, passes)
    return sampled, trained * models * demand.row_tokens / limit


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
    two of GPUs with ``enough`` samplers. Of two equally fast divisions, isolaw chooses the one with fewer
    samplers.

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
