"""Draw and reward rollouts of problems, for the training and evaluation of a run.

Every rollout has its own seed, derived from (run, stream, step, problem, sample). Its result therefore does
not depend on other rollouts or on the process that draws it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np

from isolaw.backends.real import models
from isolaw.backends.real.options import RealOptions
from isolaw.backends.real.rollout import rewards
from isolaw.backends.real.rollout.problems import ProblemSet
from isolaw.backends.real.rollout.prompts import encode, encode_phrase, turn_ends
from isolaw.backends.real.rollout.sampler_group import open_sampler
from isolaw.backends.real.rollout.samplers import Prompts, Rollouts, Sampler, SamplerSettings, Seeds
from isolaw.backends.real.train.batch import Batch, RankGroup
from isolaw.config import Recipe, RunSpec

# Keys of random streams that are derived from a rollout's seed; the sampler uses the seed itself.
_POSITION_STREAM, _ANSWER_STREAM = 1, 2


@dataclass(frozen=True)
class _Interruption:
    """Interrupts responses that exceed their thinking budget, so that they end in an answer.

        draw up to one of the ``positions``
        append the phrase to each response that has not ended
        draw the rest

    The phrase is only context for the following tokens, and `Rollouts.inserted` records its position. The
    phrase does not enter log-probabilities, gradients or the count of generated tokens. Draws depend only on
    the rollout's seed.

    If the phrase ends in a special token such as ``</think>``, it closes a section of the response. A
    response that already contains this token continues without the phrase.
    """

    positions: tuple[int, int]  # the first and the last possible one, in tokens
    phrase: list[int]
    answer_tokens: int  # number of tokens after the phrase
    closing_token: int | None = None  # the phrase's last token if it is a special token

    @classmethod
    def of(cls, recipe: Recipe, tokenizer: Any) -> _Interruption | None:
        """Return the interruption of a resolved recipe, or None without ``interrupt_at``."""
        if recipe.interrupt_at is None or recipe.interrupt_phrase is None:
            return None
        phrase = encode_phrase(recipe.interrupt_phrase, tokenizer)
        special = phrase[-1] in tokenizer.get_added_vocab().values()
        return cls(recipe.interrupt_at, phrase, recipe.answer_tokens or 1, phrase[-1] if special else None)

    def draw(self, sampler: Sampler, prompts: Prompts, seeds: Seeds, **sampling: float) -> Rollouts:
        """Draw rollouts with interruptions; ``sampling`` is temperature and top_p of `Sampler.generate`."""
        flat = [seed for group in seeds for seed in group]
        first, last = self.positions
        limits = [int(_stream(seed, _POSITION_STREAM).integers(first, last + 1)) for seed in flat]
        rollouts = sampler.generate(prompts, seeds, max_tokens=limits, **sampling)
        rows = [row for row, finished in enumerate(rollouts.finished) if not finished]
        if not rows:
            return rollouts
        phrases = [[] if self.closing_token in rollouts.tokens[row] else self.phrase for row in rows]
        interrupted = [rollouts.tokens[row] + phrase for row, phrase in zip(rows, phrases, strict=True)]
        continuations = sampler.generate(
            [rollouts.prompts[row] + tokens for row, tokens in zip(rows, interrupted, strict=True)],
            [[int(_stream(flat[row], _ANSWER_STREAM).integers(2**63))] for row in rows],
            max_tokens=[self.answer_tokens] * len(rows),
            **sampling,
        )
        for i, row in enumerate(rows):
            rollouts.inserted[row] = [len(interrupted[i]) - len(phrases[i]), len(interrupted[i])]
            rollouts.tokens[row] = interrupted[i] + continuations.tokens[i]
            rollouts.logprobs[row] = rollouts.logprobs[row] + continuations.logprobs[i]
            rollouts.finished[row] = continuations.finished[i]
        return rollouts


def _stream(seed: int, key: int) -> np.random.Generator:
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(key,)))


_Timer = Callable[[str], AbstractContextManager[None]]


class RolloutWorker:
    """The sampler, problems and reward of a run.

    ``options`` is the spec's section with all keys filled in (`isolaw.backends.real.train.memory.planner`).
    ``clock`` returns a context that adds its duration to a named part of the step.
    """

    def __init__(self, spec: RunSpec, options: RealOptions, ranks: RankGroup, clock: _Timer) -> None:
        self.ranks, self.clock, self.recipe = ranks, clock, spec.recipe
        self.evaluated_at = spec.evaluated_at
        full_set = ProblemSet.read(spec.sources["set"])
        sizes = {"train": spec.problems.n_train, "validation": spec.problems.n_validation}
        # Problems by part of the set: train, validation, and any other evaluation set.
        self.problems = {part: full_set.first_problems(part, sizes.get(part)) for part in full_set.parts}
        self.tokenizer = models.tokenizer(options.model)
        # Encode the whole set, so that the runs of a sweep over n_train can share a sampler.
        encoded = {part: encode(full, self.tokenizer, options.chat) for part, full in full_set.parts.items()}
        self.prompts = {part: encoded[part][: len(problems)] for part, problems in self.problems.items()}
        longest = max(len(prompt) for prompts in encoded.values() for prompt in prompts)
        self.interruption = _Interruption.of(spec.recipe, self.tokenizer)
        phrase_tokens = len(self.interruption.phrase) if self.interruption else 0
        self.reward = rewards.get(
            options.reward, options.reward_processes, options.reward_timeout, folder=options.modules
        )
        self.run_key = int(spec.run_id, 16)
        settings = SamplerSettings(
            options.sampler or "vllm",
            options.model,
            options.dtype or "float32",
            longest + phrase_tokens + (spec.recipe.max_response_tokens or 1),
            bool(spec.recipe.float32_head),
            options.gpu_memory or 0.4,
            processes=len(ranks.own_samplers) if options.streaming else None,
            timeout_hours=options.timeout_hours,
            stop=turn_ends(
                [p for full in full_set.parts.values() for p in full], self.tokenizer, options.chat
            ),
        )
        self.sampler: Sampler = open_sampler(settings)
        self.sampler.needs_weights = True  # it has the weights of the base model or of the previous run

    def draw(
        self, part: str, indices: list[int], n: int, stream: tuple[int, ...], evaluating: bool = False
    ) -> Batch:
        """Return n rewarded rollouts of each problem in ``indices``.

        ``indices`` contains indices into a part of the set. Temperature and top_p are from the recipe or, if
        ``evaluating``, from the evaluation settings.
        """
        with self.clock("generate"):
            arguments = self.sampler_arguments(part, indices, n, stream, evaluating)
            rollouts = Rollouts([], [], [], [])
            if arguments["seeds"] and self.interruption:
                del arguments["max_tokens"]
                rollouts = self.interruption.draw(self.sampler, **arguments)
            elif arguments["seeds"]:
                rollouts = self.sampler.generate(**arguments)
        return self.reward_rollouts(part, indices, n, rollouts)

    def sampler_arguments(
        self, part: str, indices: list[int], n: int, stream: tuple[int, ...], evaluating: bool = False
    ) -> dict[str, Any]:
        """Return the arguments of `Sampler.generate` for this process's rollouts."""
        recipe = {"temperature": self.recipe.temperature, "top_p": self.recipe.top_p}
        sampling = self.evaluated_at if evaluating else recipe
        sequence = np.random.SeedSequence(self.run_key, spawn_key=stream)
        seeds = sequence.generate_state(len(indices) * n, np.uint64) >> np.uint64(1)  # below 2⁶³
        rows = self.ranks.share(len(indices), n)
        return {
            "prompts": [self.prompts[part][indices[row // n]] for row in rows],
            "seeds": seeds[rows, None].tolist(),
            "temperature": sampling["temperature"] or 1.0,
            "top_p": sampling["top_p"] or 1.0,
            "max_tokens": self.recipe.max_response_tokens or 1,
        }

    def reward_rollouts(self, part: str, indices: list[int], n: int, rollouts: Rollouts) -> Batch:
        """Return the batch of the rollouts of all processes, with their rewards.

        ``rollouts`` belong to this process.
        """
        rows, earlier_failures = self.ranks.share(len(indices), n), self.reward.failures
        problems = [self.problems[part][indices[row // n]] for row in rows]
        with self.clock("reward"):
            texts = self.tokenizer.batch_decode(rollouts.tokens, skip_special_tokens=True) if problems else []
            values = np.array(self.reward(problems, texts), dtype=np.float64)
        batch = self.ranks.batch(indices, n, rollouts, values)
        failures = self.reward.failures - earlier_failures
        if failures:
            by_kind = sorted(self.reward.failures_by_kind.items())
            counts = ", ".join(f"{count:,} {kind}" for kind, count in by_kind)
            missing = f"{failures:,} of {len(texts):,} responses received no verdict"
            warnings.warn(f"{missing} (so far: {counts})" if counts else missing, stacklevel=2)
        batch.reward_failures = sum(self.ranks.all_of(failures))
        return batch

    def close(self) -> None:
        """End the processes of the reward, and put the sampler to sleep for the next run."""
        self.reward.close()
        self.sampler.sleep()
