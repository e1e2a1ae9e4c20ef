"""Divide the GPUs of an asynchronous run between the processes that train and those that sample.

The two sides work at the same time (`train.pipeline`), so a step of T response tokens takes as long as the
slower one. With W GPUs that train and S that sample,

    seconds(W, S) = T · max(s / S, t / W)

for s and t, the GPU seconds to sample a response token and to train on it (`step_time`). The card is
assumed to be an H200 if it is unknown, and both are assumed equal if the model is: only their quotient
matters, which changes less from card to card than either. Where a measured run contradicts it,
``real.samplers`` decides.
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
    """Return the GPU seconds of a response token to sample it, and to train on it: s and t."""
    recipe = spec.recipe
    models = recipe.epochs * (2 if recipe.algorithm == "ppo" else 1)
    if demand is None:
        return 1.0, models * step_time.passes(spec, options) / 3
    limit = recipe.max_response_tokens or 1
    lengths = step_time.Lengths(demand.row_tokens - limit, limit, limit)
    card = card_speed(environment.gpu_name()) or card_speed(step_time.MEASURED)
    assert card
    size = 2 if options.dtype == "bfloat16" else 4
    sampled = step_time.sampled_s(demand.model, card, lengths, size)
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
    """Return the section with the division of at most ``gpus`` GPUs; None if no division fits.

    ``processes`` and ``options.samplers`` are kept unless None. If one is set, the other is the least that
    does not slow the run down. If both are open, the run takes the fewest GPUs, a power of two, that have
    ``enough`` samplers. Of two divisions of equal speed the one with fewer samplers is chosen.

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
