"""Execute one run of GRPO: sample and reward batches, update the policy, and evaluate it.

    for each step:
        problems  ← the next B_p problems in the order
        rollouts  ← n of each problem, from the sampler (`samplers`), seeded by (run, round, problem, sample)
        rewards   ← the rewards of the responses (`rewards`)
        update    ← update the policy (`learner`); the sampler gets the weights before it draws again

A step uses exactly B_p · n rollouts and makes one optimiser step. With ``recipe.epochs`` and ``minibatches``
it makes several optimiser steps on the same rollouts, which count once. There are two exceptions. Dynamic
sampling draws more batches until B_p groups are informative. With a staleness of k, a batch is drawn k
updates before it is used. Samplers in separate processes draw it up to k updates before (`pipeline`). Batches
in flight are not yet counted in ``compute``. If a filter removes all rollouts of a batch, there is no update.

Sampler and trainer alternate on each GPU. All training computation goes through the `learner`, which puts the
sampler to sleep. Before the loop samples, it wakes the sampler with the trainer's weights. Every process of a
run executes this loop on its part of a batch (`batch`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import torch

from isolaw.backend import AnswerCounts, Checkpoint, Measurement, Response, UnreadableState
from isolaw.backends.real.algorithms import advantages as adv
from isolaw.backends.real.rollout import samplers
from isolaw.backends.real.rollout.problems import ProblemOrder
from isolaw.backends.real.rollout.worker import RolloutWorker
from isolaw.backends.real.train import evaluation, process_group
from isolaw.backends.real.train.batch import Batch, RankGroup
from isolaw.backends.real.train.learner import Learner
from isolaw.backends.real.train.memory import planner
from isolaw.backends.real.train.pipeline import Pipeline, sampler_logprobs
from isolaw.backends.real.train.trainer import Trainer, trainer_arguments
from isolaw.config import RunSpec
from isolaw.errors import RunError

# Keys of a run's random streams, in addition to the stream of the problem order.
_ROLLOUTS, _EVALUATION = range(2)
# Dynamic sampling fails after this many batches for one step (10 in DAPO's code).
_MOST_ROUNDS = 10
_COUNTERS = ("step", "round", "compute", "tokens")  # counters of a run that are part of its state
_COUNTED = {"generated_rollouts": "generated", "reward_failures": "reward_failures"}  # metrics of a batch
_WAITING = "waiting_{}.safetensors"  # files of the waiting batches in a state, oldest first


class Run:
    """A run in execution, created from a resolved spec."""

    def __init__(self, spec: RunSpec) -> None:
        self.spec, self.recipe = spec, spec.recipe
        self.options = o = planner.chosen(spec)
        process_group.start(o.timeout_hours)
        if o.generation == "colocated":
            samplers.import_sampler(o.sampler or "vllm")
        self.trainer = own = Trainer(o.model, **trainer_arguments(spec, o))
        self.ranks = RankGroup(own.rank, own.world, own.device, o.streaming)
        self.worker = RolloutWorker(spec, o, self.ranks, self.clock)
        self.worker.sampler.sleep()
        self.learner = Learner(spec, o, own, self.worker)
        n_train = len(self.worker.problems["train"])
        self.order = ProblemOrder(
            n_train, spec.problems_per_batch, spec.seed, spec.content["train"], self.recipe.replacement
        )
        self.pipeline: Pipeline | None = None
        if o.generation == "async":
            self.pipeline = Pipeline(self.worker, spec.rollouts_per_problem, self.recipe.staleness or 0)
        self.step = self.round = self.compute = self.tokens = 0
        self.waiting: list[Batch] = []
        self.pass_rates = evaluation.PassRates(n_train)
        self.means = evaluation.StepMeans()
        self.seconds: dict[str, float] = {}
        on_gpu = own.device.type == "cuda"  # each process has one GPU
        name = {"gpu": torch.cuda.get_device_name(own.device)} if on_gpu else {}
        self.machine = {"gpus": own.world + o.streaming if on_gpu else 0, **name}

    def advance(self) -> None:
        """Execute one training step."""
        while len(self.waiting) <= (0 if self.pipeline else self.recipe.staleness or 0):
            self.waiting.append(self.generate())
        batch = self.waiting.pop(0)
        self.compute += batch.generated
        self.tokens += batch.generated_tokens
        self.step += 1
        ages = self.pipeline.ages(batch, self.step) if self.pipeline else {}
        counted = {name: float(getattr(batch, of)) for name, of in _COUNTED.items()}
        self.means.add({**batch.measured, **counted, **ages, **self.learner.update(batch, self.step)})
        if self.pipeline:
            self.pipeline.set_version(self.step)

    def generate(self) -> Batch:
        """Return a rewarded batch of B_p groups, drawn with the current weights."""
        batch, measured = self._sample(), evaluation.StepMeans()
        measured.add(evaluation.of_batch(batch))
        rounds = 1
        while self.recipe.dynamic_sampling and (left := batch.keep_informative(self.spec.problems_per_batch)):
            if rounds == _MOST_ROUNDS:
                raise RunError(
                    f"step {self.step + 1}: {_MOST_ROUNDS} batches had only "
                    f"{self.spec.problems_per_batch - left} problems whose rewards differ; turn off "
                    "recipe.dynamic_sampling, or choose problems that the model sometimes solves"
                )
            more = self._sample()
            measured.add(evaluation.of_batch(more))
            batch.extend(more)
            rounds += 1
        batch.measured = measured.take()
        if self.recipe.staleness:
            batch.old_logprobs = (
                sampler_logprobs(batch, self.trainer.device)
                if self.pipeline
                else self.learner.logprobs(batch.rollouts)
            )
        return batch

    def _sync(self) -> None:
        """Transfer the current weights to the sampler, which wakes it, unless it already has them."""
        if self.worker.sampler.needs_weights:
            with self.clock("sync"):
                self.worker.sampler.load(self.trainer.weights())

    def _sample(self) -> Batch:
        """Return a batch with n rollouts of each of the next problems."""
        self._sync()
        if self.pipeline is None:
            n = self.spec.rollouts_per_problem
            batch = self.worker.draw("train", self.order.take(), n, (_ROLLOUTS, self.round))
            self.round += 1
        else:
            while not self.pipeline.full:
                self.pipeline.request(self.order.take(), (_ROLLOUTS, self.round))
                self.round += 1
            batch = self.pipeline.take()
        self.pass_rates.visit(batch)
        if self.recipe.no_positive_resampling:
            mastered = adv.mastered(batch.rewards, self.recipe.no_positive_resampling).tolist()
            self.order.retire(problem for problem, out in zip(batch.visited, mastered, strict=True) if out)
        return batch

    def evaluate(self) -> tuple[list[Measurement], list[AnswerCounts], list[Response]]:
        """Evaluate the current policy on all evaluation sets.

        Returns three lists: the metrics, the number of correct answers to each problem, and some responses.
        The metrics include the training metrics since the last evaluation.
        """
        wanted, problems = self.spec.evaluation, self.worker.problems
        rows: list[Measurement] = []
        counts: list[AnswerCounts] = []
        responses: list[Response] = []
        kept = evaluation.RESPONSES if wanted.responses is None else wanted.responses
        self._sync()  # its time counts as part of the step, not of the evaluation
        before = dict(self.seconds)
        with self.clock("evaluate"):
            drawn = {
                name: self.worker.draw(
                    name,
                    list(range(len(problems[name]))),
                    wanted.samples,
                    (_EVALUATION, index, self.step),
                    True,
                )
                for index, name in enumerate(sorted(wanted.sets))
            }
            for name, batch in drawn.items():
                self.learner.compare(batch.rollouts, self.step)
                more, count = evaluation.of_set(name, problems[name], batch, wanted.metrics)
                rows += more
                counts.append(count)
                responses += evaluation.responses_of(
                    name, problems[name], batch, kept, self.ranks, self.worker.tokenizer
                )
        self.seconds = {**before, "evaluate": self.seconds["evaluate"]}  # drop its parts from the step's
        b, n = self.spec.problems_per_batch, self.spec.rollouts_per_problem
        training = [Measurement("train", name, value, b, n) for name, value in self.means.take().items()]
        training += self.pass_rates.rows(n)
        known = {(row.eval_set, row.metric) for row in rows}
        return rows + [row for row in training if (row.eval_set, row.metric) not in known], counts, responses

    @contextmanager
    def clock(self, part: str) -> Iterator[None]:
        """Add the duration of the block to the seconds of a part of the step."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[part] = self.seconds.get(part, 0.0) + time.perf_counter() - began

    def save(self, folder: Path) -> None:
        """Write the run's state to a folder; all processes must call this, and the first one writes."""
        self.learner.save(folder)
        for k, batch in enumerate(self.waiting):
            batch.save(folder / _WAITING.format(k), self.ranks)
        if self.trainer.rank == 0:
            state = {
                **{key: getattr(self, key) for key in _COUNTERS},
                "order": self.order.state(),
                "landscape": self.pass_rates.state(),
                "since": vars(self.means),
                "seconds": self.seconds,
                "waiting": len(self.waiting),
                "asked": self.pipeline.state() if self.pipeline else [],
            }
            (folder / "loop.json").write_text(json.dumps(state))

    def restore(self, folder: Path) -> None:
        """Restore the state that `save` wrote; raise `UnreadableState` if that fails."""
        try:
            state = json.loads((folder / "loop.json").read_text())
            self.learner.restore(folder)
            self.worker.sampler.needs_weights = True
            for key in _COUNTERS:
                setattr(self, key, int(state[key]))
            self.order.restore(state["order"])
            self.pass_rates.restore(state["landscape"])
            self.means = evaluation.StepMeans(**state["since"])
            self.seconds = state["seconds"]
            files = [folder / _WAITING.format(k) for k in range(state["waiting"])]
            self.waiting = [Batch.load(file, self.ranks) for file in files]
            if self.pipeline:
                self.pipeline.restore(state["asked"], self.step)
        except torch.OutOfMemoryError:  # reported by `train`
            raise
        except Exception as error:
            raise UnreadableState(folder, error) from error

    def close(self) -> None:
        """Release all resources that the next run does not reuse."""
        if self.pipeline:
            self.pipeline.sampler.drop()  # it stays open for the next run
        self.worker.close()
        self.learner.close()


def train(
    spec: RunSpec, state: Path | None, stopping: Callable[[], bool] = lambda: False
) -> Iterator[Checkpoint]:
    """Execute a run, starting from ``state`` if it is given, and yield its checkpoints.

    All processes of the run yield the same checkpoints. Each evaluation in ``spec.schedule()`` takes place at
    the first step that has generated enough rollouts. If ``stopping()`` is true in the first process, a
    checkpoint follows the current step. Raise `RunError` if memory runs out, weights do not reach the
    sampler, a reward fails, or dynamic sampling finds too few informative problems.
    """
    try:
        with closing(Run(spec)) as run:
            if run.pipeline:
                run.pipeline.sampler.watch(stopping)
            if state is not None:
                run.restore(state)
            schedule = [step * spec.batch_rollouts for step in spec.schedule()]
            due = [compute for compute in schedule if state is None or compute > run.compute]
            minutes = run.options.checkpoint_minutes
            yielded = time.monotonic()
            while due:
                if run.compute < due[0]:
                    run.advance()
                rows: list[Measurement] = []
                counts: list[AnswerCounts] = []
                responses: list[Response] = []
                if run.compute >= due[0]:
                    rows, counts, responses = run.evaluate()
                    due = [compute for compute in due if compute > run.compute]
                elif not run.ranks.all_of(time.monotonic() - yielded > 60 * minutes or stopping())[0]:
                    continue  # the value in the first process decides
                yield Checkpoint(
                    run.step, run.compute, rows, run.save, run.tokens, not due, counts, responses,
                    dict(run.seconds), run.machine, run.learner.notes.copy(),
                )  # fmt: skip
                run.learner.notes.clear()
                yielded = time.monotonic()
    except RuntimeError as error:  # vLLM's allocator has no specific exception class
        if "out of memory" not in str(error):
            raise
        raise RunError(
            f"out of memory ({str(error).splitlines()[0]}); lower real.micro_batch_tokens (tokens of a "
            "forward and backward pass), real.gpu_memory (the sampler's share) or "
            "recipe.max_response_tokens, or raise real.zero_stage or real.processes"
        ) from error
