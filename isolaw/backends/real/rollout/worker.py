"""The acting half of a run: it draws rollouts of problems and rewards them, for training and evaluation.

Every rollout has a seed of its own, keyed on (run, stream, step, problem, sample): what is drawn depends
on neither the other rollouts nor on where it is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import numpy as np

from isolaw.backends.real.options import RealOptions
from isolaw.backends.real.rollout import rewards
from isolaw.backends.real.rollout.problems import Problem, ProblemSet
from isolaw.backends.real.rollout.prompts import encode
from isolaw.backends.real.rollout.samplers import Rollouts, Sampler, open_sampler
from isolaw.backends.real.train.batch import Batch, Processes
from isolaw.config import RunSpec

Clock = Callable[[str], AbstractContextManager[None]]


class Actor:
    """Sampler, problems and reward of a run.

    Parameters
    ----------
    spec
        resolved.
    options
        its section, with nothing left open (`isolaw.backends.real.train.memory`).
    processes
        those of the run.
    clock
        counts the seconds of a part of a step.

    Attributes
    ----------
    questions
        by part of the problem set: ``train``, ``validation``, and any further evaluation set.
    sampler
        the current policy's.
    """

    def __init__(self, spec: RunSpec, options: RealOptions, processes: Processes, clock: Clock) -> None:
        from transformers import AutoTokenizer

        self.processes, self.clock, self.recipe = processes, clock, spec.recipe
        stored = ProblemSet.read(spec.sources["set"])
        limits = {"train": spec.problems.n_train, "validation": spec.problems.n_validation}
        self.questions = {part: stored.first(part, limits.get(part)) for part in stored.parts}
        self.tokenizer = AutoTokenizer.from_pretrained(options.model)
        # Of the whole set, so that the runs of a sweep over n_train share a sampler.
        encoded = {part: encode(stored.parts[part], self.tokenizer) for part in stored.parts}
        self.prompts = {part: encoded[part][: len(own)] for part, own in self.questions.items()}
        longest = max(len(prompt) for prompts in encoded.values() for prompt in prompts)
        self.reward = rewards.get(options.reward)
        self.key = int(spec.run_id, 16)
        self.sampler: Sampler = open_sampler(
            options.sampler or "vllm",
            options.model,
            options.dtype or "float32",
            longest + (spec.recipe.max_response_tokens or 1),
            float32_head=spec.recipe.float32_head,
            tensor_parallel=options.tensor_parallel or 1,
            gpu_memory=options.gpu_memory or 0.4,
        )
        self.sampler.needs_weights = True  # it has the base model's, or the previous run's

    def draw(self, part: str, visited: list[int], n: int, stream: tuple[int, ...]) -> Batch:
        """Return n rewarded rollouts of each of the problems ``visited`` of a part of the set."""
        seeds = self._seeds(stream, len(visited) * n)
        rows = self.processes.share(len(visited), n)
        problems = [visited[row // n] for row in rows]
        with self.clock("generate"):
            rollouts = self._generate([self.prompts[part][problem] for problem in problems], seeds[rows])
        before = self.reward.failures
        with self.clock("reward"):
            values = self._rewards([self.questions[part][problem] for problem in problems], rollouts)
        batch = self.processes.batch(visited, n, rollouts, values)
        failures = self.processes.all_of(self.reward.failures - before)
        batch.reward_failures = sum(failures[:: self.processes.tensor_parallel])
        return batch

    def _generate(self, prompts: list[list[int]], seeds: np.ndarray) -> Rollouts:
        if not prompts:
            return Rollouts([], [], [], [])
        return self.sampler.generate(
            prompts,
            seeds[:, None].tolist(),
            temperature=self.recipe.temperature or 1.0,
            top_p=self.recipe.top_p or 1.0,
            max_tokens=self.recipe.max_response_tokens or 1,
        )

    def _seeds(self, stream: tuple[int, ...], count: int) -> np.ndarray:
        """Return seeds of single rollouts, below 2⁶³."""
        sequence = np.random.SeedSequence(self.key, spawn_key=stream)
        return sequence.generate_state(count, np.uint64) >> np.uint64(1)

    def _rewards(self, questions: Sequence[Problem], rollouts: Rollouts) -> np.ndarray:
        texts = []
        if len(rollouts):
            texts = self.tokenizer.batch_decode(rollouts.tokens, skip_special_tokens=True)
        return np.asarray(self.reward(questions, texts), dtype=np.float64)

    def close(self) -> None:
        """End what the reward has started; the sampler stays for the next run, and sleeps until then."""
        self.reward.close()
        self.sampler.sleep()
