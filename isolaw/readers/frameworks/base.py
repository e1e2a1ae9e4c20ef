"""`Framework`: what every framework's module says of its names.

A module holds one `Framework` called ``FRAMEWORK``; `isolaw.readers.frameworks.FRAMEWORKS` lists them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Fact:
    """Something known of a run, and where from.

    ``origin`` is what `isolaw read` prints: ``"data.train_batch_size in config.yaml"``. A value of None is
    not known; ``origin`` then says what it would follow from.
    """

    value: Any
    origin: str


@dataclass(frozen=True)
class Framework:
    """How to understand one framework's logs.

    Attributes
    ----------
    name
        as users write it: ``veRL``.
    recognises
        ``recognises(keys, config)``: whether these metric keys, or this configuration, are its own.
        Keys that several frameworks share (``loss``, ``reward``) must not suffice.
    step_keys
        metric keys that count update steps, the best first; where none is in the log, the container's
        own step counts.
    metric
        ``metric(key)``: (eval_set, metric) in our names, as ``("aime24", "avg@8")``; training metrics are on
        ``train``; None for what is not worth keeping (timings, learning rates). A further name the
        log brings keeps its own.
    facts
        ``facts(config, config_source)``: what the configuration says, under our names:
        ``rollouts_per_problem``, ``problems_per_batch``, ``rollouts_per_step`` (any two give the third),
        ``on_policy`` (bool: one optimiser step for each batch, and no asynchrony), ``seed``,
        ``algorithm``, ``logging_steps`` (updates between records, for logs without steps), and attributes
        of the run (``lr``, ``kl``, ``model``, ``n_train_problems``). Only what is known; no guesses.
    first_step
        what the framework counts the first update as, 1 or 0.
    """

    name: str
    recognises: Callable[[Collection[str], Mapping[str, Any]], bool]
    step_keys: tuple[str, ...]
    metric: Callable[[str], tuple[str, str] | None]
    facts: Callable[[Mapping[str, Any], str], dict[str, Fact]]
    first_step: int = 1
