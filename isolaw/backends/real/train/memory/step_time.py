"""Estimate the seconds of a step from the sizes of the model, the batch and the GPUs, before anything runs.

Each GPU that samples draws R rollouts, and each GPU that trains processes R' of them. Responses have τ tokens
on average and at most l tokens, and prompts have p. The parts of a step take::

    generate   k (D + b N / m) + R (τ (2 N / f + c (p + τ / 2) / m + S) + 2 N p / (n f))
    reward     R G / w
    train      R' (p + τ) (2 A (N + L Q (p + τ) / 2) / f + T) + U + X
    sync       H + b N / o

    k = l + max(0, R / slots - 1) τ    decoding steps; vLLM decodes at most ``slots`` rows at a time, and the
                                       longest response of the last rows ends the step
    X = x (W - 1) / W b N / u    traffic of W processes: x is 3 for each micro-batch with ZeRO-3 (two gathers
                                 and a reduction), 1 with ZeRO-2, else 2 for each update
    f = 0.416 · the card's FLOP/s,    m = 0.7 · the bandwidth of its memory
    G    7 ms of math-verify, else 0, by w workers
    N    parameters in matrix products: without the embedding, unless it is the head
    A    passes: 1 forward, 2 backward (1 with LoRA), 1 if activations are recomputed, 1 of a reference model
    c    bytes of a token in the key-value cache; b bytes of a number; L layers; Q width of a token's queries

A colocated step takes the sum of its parts. An asynchronous step takes max(generate, train) + sync. The
rollouts of an epoch are trained on once per epoch, and PPO trains a second model of the same size.

D, S, T, U, H and the factor 0.416 are measurements of one H200 with Qwen2.5-0.5B, and 1.5B for T and 0.416
(docs/gpu/2026-11-27-h200-2). The factor 0.7, u = 150 GB/s between GPUs and o = 10 GB/s from trainer to
sampler are assumptions, and H is that of 0.5B. The same measurements also check A. Steps with
recomputed activations, with a reference model, and with LoRA on 7B took 0.94 to 1.02 times the estimate.
Steps with ZeRO-3 on one GPU took 1.1 to 1.6 times. No step on several GPUs has been measured. The cost has
the seconds of an evaluation of the validation set apart from the step, and excludes the start of a run.
"""

from __future__ import annotations

from typing import NamedTuple

from isolaw.backends.real.options import FEWEST_REWARD_WORKERS, RealOptions
from isolaw.backends.real.train.memory.decoder import Decoder
from isolaw.backends.real.train.memory.footprint import Demand
from isolaw.config import RunSpec
from isolaw.machine import CardSpeed, card_speed
from isolaw.step_cost import Cost, CostOrigin, StepPart

EFFICIENCY, BANDWIDTH = 0.416, 0.7
DECODE_S, SAMPLED_S, TRAINED_S, UPDATE_S, SYNC_S = 2.33e-3, 14.3e-6, 13.4e-6, 0.68, 1.45  # D, S, T, U, H
LINK, LOADING, GRADED_S = 150e9, 10e9, 7e-3  # u, o and G
SLOTS = 1_024  # vLLM's default on a card of 70 GiB or more


class _Lengths(NamedTuple):
    """Tokens of a prompt, of the mean response and of the longest response: p, τ and l."""

    prompt: float
    mean: float
    longest: float


def flops(model: Decoder, length: float, passes: float) -> float:
    """Return the FLOPs of a token in a row of ``length`` tokens: 2 A (N + L Q length / 2).

    Causal attention covers half of the row on average (Chowdhery et al., PaLM, arXiv 2204.02311, app. B, has
    12 L Q length for three passes, without the causal half).
    """
    return 2 * passes * (_dense_size(model) + model.layers * model.query * length / 2)


def _sampled_s(model: Decoder, card: CardSpeed, length: _Lengths, dtype_bytes: int) -> float:
    """Return the seconds per response token in a full batch, without the decoding step's constant D."""
    cache_bytes = _token_cache_bytes(model, dtype_bytes) * (length.prompt + length.mean / 2)
    compute = 2 * _dense_size(model) / (EFFICIENCY * card.flops)
    return compute + cache_bytes / (BANDWIDTH * card.bandwidth) + SAMPLED_S


def _trained_s(model: Decoder, card: CardSpeed, length: float, passes: float) -> float:
    """Return the seconds to train on a token of a row of ``length`` tokens."""
    return flops(model, length, passes) / (EFFICIENCY * card.flops) + TRAINED_S


def _passes(spec: RunSpec, options: RealOptions) -> float:
    """Return A, the number of forward passes that take as long as training on a token."""
    recipe = spec.recipe
    backward = 1 if recipe.lora_rank else 2
    return 1 + backward + bool(options.gradient_checkpointing) + bool(recipe.kl)


def cost(spec: RunSpec, demand: Demand, options: RealOptions, cache_bytes: int, gpu: str) -> Cost | None:
    """Return the estimated cost of a run's steps; None for a GPU of unknown speed.

    The mean response is assumed to have half of ``recipe.max_response_tokens``. ``cache_bytes`` is the size
    of a sampler's key-value cache, and 0 if the sampler needs none.
    """
    card, model, recipe = card_speed(gpu), demand.model, spec.recipe
    if card is None:
        return None
    limit = recipe.max_response_tokens or 1
    length = _Lengths(demand.row_tokens - limit, limit / 2, limit)
    row_tokens, number_bytes = length.prompt + length.mean, _number_bytes(options)
    samplers = options.streaming or options.processes
    row_cache_bytes = row_tokens * _token_cache_bytes(model, number_bytes)
    slots = max(min(SLOTS, cache_bytes / row_cache_bytes or SLOTS), 1.0)
    read_s = number_bytes * _dense_size(model) / (BANDWIDTH * card.bandwidth)
    reward_s = (
        GRADED_S / (options.reward_workers or FEWEST_REWARD_WORKERS) if options.reward == "math" else 0.0
    )

    def sampling_s(rollouts: float, n: int) -> tuple[float, float]:
        """Return the seconds to generate and to reward rollouts on one GPU, n of each prompt."""
        steps = length.longest + max(0.0, rollouts / slots - 1) * length.mean
        prefill = 2 * _dense_size(model) * length.prompt / n / (EFFICIENCY * card.flops)
        rollout_s = length.mean * _sampled_s(model, card, length, number_bytes) + prefill
        return steps * (DECODE_S + read_s) + rollouts * rollout_s, rollouts * reward_s

    generate, reward = sampling_s(spec.batch_rollouts / samplers, spec.rollouts_per_problem)
    tokens = recipe.epochs * spec.batch_rollouts / options.processes * row_tokens
    train = _trained_s(model, card, row_tokens, _passes(spec, options)) * tokens + UPDATE_S
    train += _traffic_s(spec, options, model, tokens, number_bytes)
    train *= _trained_models(spec)
    sync = SYNC_S + number_bytes * model.parameters / LOADING
    if options.streaming:  # the faster side waits
        generate += reward
        generate, reward, train = (generate, 0.0, 0.0) if generate > train else (0.0, 0.0, train)
    parts = {"generate": generate, "reward": reward, "train": train, "sync": sync}
    evaluated = (spec.problems.n_validation or 0) * spec.evaluation.samples / samplers
    return Cost(
        {name: StepPart(seconds, 0.0) for name, seconds in parts.items() if seconds or name != "reward"},
        length.mean, "tokens", CostOrigin.ESTIMATE, gpus=options.cores, gpu=gpu,
        evaluation_s=sum(sampling_s(evaluated, max(spec.evaluation.samples, 1))) if evaluated else None,
        batches=(spec.batch_rollouts,), configurations=1,
    )  # fmt: skip


def _traffic_s(spec: RunSpec, options: RealOptions, model: Decoder, tokens: float, size: int) -> float:
    """Return X, the seconds in which the trainers of a step exchange weights and gradients."""
    w, updates = options.processes, spec.recipe.updates_per_batch
    micro_batches = max(tokens / (options.micro_batch_tokens or tokens), updates)
    transfers = {3: 3 * micro_batches, 2: micro_batches}.get(options.zero_stage, 2 * updates)
    return transfers * (w - 1) / w * size * model.parameters / LINK


def _number_bytes(options: RealOptions) -> int:
    """Return b, the bytes of a number."""
    return 2 if options.dtype == "bfloat16" else 4


def _trained_models(spec: RunSpec) -> int:
    """Return the number of models that a step trains: PPO also trains a critic."""
    return 2 if spec.recipe.algorithm == "ppo" else 1


def _token_cache_bytes(model: Decoder, dtype_bytes: int) -> int:
    """Return c, the bytes of a token in the key-value cache."""
    return 2 * dtype_bytes * model.layers * model.key_value


def _dense_size(model: Decoder) -> int:
    """Return N, the parameters in matrix products; an embedding lookup is no matrix product."""
    return model.parameters - (0 if model.tied else model.embedding_size)
