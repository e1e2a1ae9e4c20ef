"""One run of GRPO: sample a batch, reward it, make one update, hand the weights to the sampler, evaluate.

    for each step:
        problems  ← the next B_p of the order
        rollouts  ← n of each, from the sampler (`samplers`), seeded by (run, round, problem, sample)
        rewards   ← of the responses (`rewards`)
        update    ← advantages, weights of the batch, loss (`advantages`, `objective`), one optimiser
                    step (`trainer`); the sampler takes the weights over before it draws again

A step is exactly B_p · n rollouts and one optimiser step, with two exceptions: dynamic sampling draws further
batches until B_p groups are informative, and with a staleness of k a batch is drawn k updates before it is
used (k batches are then in flight beyond ``compute``). If a filter leaves no rollout of a batch, there is no
update.

Sampler and trainer share each GPU and take turns: what computes goes through `Run.training`, which puts the
sampler to sleep, and what draws through `Run.draw`, which wakes it with the trainer's weights.

Every process of a run executes this on its part of a batch (`batch`).
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from isolaw.backends.base import Checkpoint, Counts, Row, UnreadableState
from isolaw.backends.real.algorithms import advantages as adv
from isolaw.backends.real.algorithms import objective
from isolaw.backends.real.algorithms.loss_terms import sequence_kl
from isolaw.backends.real.rollout.samplers import Rollouts
from isolaw.backends.real.rollout.worker import RolloutWorker
from isolaw.backends.real.train import evaluation, process_group
from isolaw.backends.real.train.batch import Batch, RankGroup
from isolaw.backends.real.train.memory import planner
from isolaw.backends.real.train.packing import Packed
from isolaw.backends.real.train.problem_order import ProblemOrder
from isolaw.backends.real.train.trainer import Trainer
from isolaw.config import RunSpec
from isolaw.errors import RunError

# Streams of random numbers of a run, apart from the problem order's.
_ROLLOUTS, _EVALUATION = range(2)
# Dynamic sampling stops after this many batches for one step (DAPO's code: 10).
_MOST_ROUNDS = 10
_COUNTERS = ("step", "round", "compute", "tokens")  # of a run, in its state
# Responses of an evaluation whose log-probabilities are compared with the trainer's.
_COMPARED = 32


class Run:
    """The state of one run, from a resolved spec."""

    def __init__(self, spec: RunSpec) -> None:
        self.spec, self.recipe, self.options = spec, spec.recipe, planner.chosen(spec)
        o = self.options
        process_group.start(o.timeout_hours)
        self.trainer = Trainer(
            o.model,
            dtype=o.dtype or "float32",
            zero_stage=o.zero_stage,
            weight_decay=self.recipe.weight_decay or 0.0,
            max_grad_norm=self.recipe.max_grad_norm or 0.0,
            micro_batch_tokens=o.micro_batch_tokens or 1,
            gradient_checkpointing=bool(o.gradient_checkpointing),
            offload_optimizer=bool(o.offload_optimizer),
            float32_head=self.recipe.float32_head,
        )
        own = self.trainer
        self.ranks = RankGroup(own.rank, own.world, o.tensor_parallel or 1, own.device)
        self.worker = RolloutWorker(spec, o, self.ranks, self.clock)
        self.worker.sampler.sleep()
        self.reference = self.trainer.frozen(o.model) if self.recipe.kl else None
        self.temperature = self.recipe.temperature or 1.0
        n_train, b, content = (
            len(self.worker.problems["train"]),
            spec.problems_per_batch,
            spec.content["train"],
        )
        self.order = ProblemOrder(n_train, b, spec.seed, content, self.recipe.replacement)
        self.step = self.round = self.compute = self.tokens = 0
        self.waiting: list[Batch] = []
        self.pass_rates = evaluation.PassRates(n_train)
        self.means = evaluation.StepMeans()
        self.seconds: dict[str, float] = {}

    # -- a step ---------------------------------------------------------------------------------------

    def advance(self) -> None:
        """Make one step."""
        while len(self.waiting) <= self.recipe.staleness:
            self.waiting.append(self.generate())
        batch = self.waiting.pop(0)
        self.compute += batch.generated
        self.tokens += batch.generated_tokens
        self.step += 1
        self._update(batch)

    def generate(self) -> Batch:
        """Return a rewarded batch of B_p groups from the current weights."""
        batch = self._sample()
        rounds = 1
        while self.recipe.dynamic_sampling and (left := batch.keep_informative(self.spec.problems_per_batch)):
            if rounds == _MOST_ROUNDS:
                raise RunError(
                    f"step {self.step + 1}: {_MOST_ROUNDS} batches had only "
                    f"{self.spec.problems_per_batch - left} problems whose rewards differ; turn "
                    "recipe.dynamic_sampling off, or choose problems that the model sometimes solves"
                )
            batch.extend(self._sample())
            rounds += 1
        if self.recipe.staleness:
            batch.old_logprobs = self.training().logprobs(batch.rollouts, self.temperature)
        return batch

    def training(self) -> Trainer:
        """Return the trainer, after the sampler has given up its GPU memory."""
        self.worker.sampler.sleep()
        return self.trainer

    def draw(self, part: str, visited: list[int], n: int, stream: tuple[int, ...]) -> Batch:
        """Return n rewarded rollouts of each of the problems ``visited``, under the current weights."""
        self._sync()
        return self.worker.draw(part, visited, n, stream)

    def _sync(self) -> None:
        """Hand the sampler the current weights, unless it has them."""
        if self.worker.sampler.needs_weights:
            with self.clock("sync"):
                self.worker.sampler.load(self.trainer.weights())

    def _sample(self) -> Batch:
        """Draw the next batch of problems and n rollouts of each."""
        batch = self.draw("train", self.order.take(), self.spec.rollouts_per_problem, (_ROLLOUTS, self.round))
        self.round += 1
        self.pass_rates.visit(batch)
        if self.recipe.no_positive_resampling:
            mastered = adv.mastered(batch.rewards, self.recipe.no_positive_resampling).tolist()
            self.order.retire(problem for problem, out in zip(batch.visited, mastered, strict=True) if out)
        return batch

    def _update(self, batch: Batch) -> None:
        recipe = self.recipe
        with self.clock("prepare"):
            kept = torch.ones(len(batch.rewards), dtype=torch.bool)
            if recipe.zero_variance_filter or recipe.dynamic_sampling:
                kept = adv.informative(batch.rewards)
            penalised = batch.rewards - self._penalties(batch)
            advantages = adv.advantages(penalised, recipe.advantage or "group_std", kept)
            enters = adv.gradient_rows(kept, batch.rewards.shape[1], recipe.gradient_rollouts)
            weights = objective.row_weights(
                batch.lengths, enters, recipe.aggregation or "sequence", recipe.max_response_tokens
            )
            rows = batch.own_rows(enters)
        sums: dict[str, Tensor] = {}
        norm = 0.0
        if bool(enters.any()):
            trained = batch.rollouts.rows(rows)
            own_advantages = batch.own(advantages)[rows].to(self.trainer.device)
            own_weights = batch.own(weights)[rows].to(self.trainer.device)

            def loss_of(part: Sequence[int], packed: Packed, logp: Tensor, entropy: Tensor) -> Tensor:
                nonlocal sums
                reference = None
                if self.reference is not None:
                    with torch.no_grad():
                        reference = self.reference(packed, self.temperature)[0]
                if not part:
                    return logp.sum() * 0.0
                value, more = objective.loss(
                    recipe,
                    logprobs=logp,
                    mask=packed.mask,
                    advantages=own_advantages[list(part)],
                    weights=own_weights[list(part)],
                    old_logprobs=batch.old(rows, part, packed.mask),
                    sampler_logprobs=_padded([trained.logprobs[i] for i in part], packed.mask),
                    reference_logprobs=reference,
                    entropy=entropy,
                )
                sums = objective.merge(sums, more) if sums else more
                return value

            with self.clock("train"):
                self.training().backward(trained, loss_of, temperature=self.temperature)
            sums = self.ranks.merged(sums)
            self._check_mismatch(sums)
            with self.clock("train"):
                norm = self.trainer.update(self._lr())
            self.worker.sampler.needs_weights = True
        measured = objective.means(sums) if sums else {}
        self.means.add({**evaluation.of_batch(batch), "grad_norm": norm, "lr": self._lr(), **measured})

    def _penalties(self, batch: Batch) -> Tensor:
        """Return what is taken off the rewards, (B_p, n): DAPO's for length, β times the KL in the reward."""
        recipe = self.recipe
        out = torch.zeros_like(batch.rewards)
        if recipe.overlong_buffer:
            assert recipe.max_response_tokens is not None
            out -= adv.overlong_penalty(batch.lengths, recipe.max_response_tokens, recipe.overlong_buffer)
        if recipe.kl and recipe.kl_in == "reward":
            trainer, old = self.training(), batch.old_logprobs
            if old is None:
                old = trainer.logprobs(batch.rollouts, self.temperature)
            reference = trainer.logprobs_of(self.reference, batch.rollouts, self.temperature)
            pairs = [(p[None], q[None]) for p, q in zip(old, reference, strict=True)]
            estimator = recipe.kl_estimator or "k1"
            every = [torch.ones_like(p, dtype=torch.bool) for p, _ in pairs]
            own = [
                float(sequence_kl(*pair, mask, estimator)) for pair, mask in zip(pairs, every, strict=True)
            ]
            out += recipe.kl * self.ranks.gathered(batch, own)
        return out

    def _lr(self) -> float:
        """lr · `RunSpec.lr_factor`, reached over the warm-up steps."""
        lr = (self.recipe.lr or 0.0) * self.spec.lr_factor
        return lr * min(1.0, self.step / max(self.recipe.warmup_steps or 0, 1))

    def _check_mismatch(self, sums: dict[str, Tensor]) -> None:
        """Stop the run if sampler and trainer disagree on the sampled tokens: the weights did not arrive."""
        mean = objective.means(sums)["mismatch"]
        tolerance = self.options.logprob_tolerance or 0.0
        # The sampler's are those of the distribution cut at top_p, larger by at most -log top_p.
        if not mean <= tolerance - math.log(self.recipe.top_p or 1.0):
            raise RunError(
                f"step {self.step}: sampler and trainer differ by {mean:.3g} in log-probability per "
                f"token, more than real.logprob_tolerance = {tolerance:g}: the sampler has other weights "
                "than the trainer"
            )

    # -- evaluation -------------------------------------------------------------------------------------

    def evaluate(self) -> tuple[list[Row], list[Counts]]:
        """Return the metrics of the evaluation sets now, and of training since the last evaluation."""
        rows: list[Row] = []
        counts = []
        wanted = self.spec.evaluation
        self._sync()  # counts as part of the step
        kept, self.seconds = self.seconds, {}  # the generation of an evaluation does not
        began = time.perf_counter()
        drawn = {}
        for index, name in enumerate(sorted(wanted.sets)):
            every = list(range(len(self.worker.problems[name])))
            drawn[name] = self.draw(name, every, wanted.samples, (_EVALUATION, index, self.step))
        for name, batch in drawn.items():
            self._compare(batch.rollouts)
            more, count = evaluation.of_set(name, self.worker.problems[name], batch, wanted.metrics)
            rows += more
            counts.append(count)
        self.seconds = kept
        self.seconds["evaluate"] = self.seconds.get("evaluate", 0.0) + time.perf_counter() - began
        b, n = self.spec.problems_per_batch, self.spec.rollouts_per_problem
        training = [Row("train", name, value, b, n) for name, value in self.means.take().items()]
        training += self.pass_rates.rows(n)
        known = {(row.eval_set, row.metric) for row in rows}
        return rows + [row for row in training if (row.eval_set, row.metric) not in known], counts

    def _compare(self, rollouts: Rollouts) -> None:
        """Check the log-probabilities of some responses of an evaluation."""
        some = rollouts.rows(range(min(_COMPARED, len(rollouts))))
        trainers = self.training().logprobs(some, self.temperature)
        gap = torch.zeros((), dtype=torch.float64)
        for ours, theirs in zip(trainers, some.logprobs, strict=True):
            gap += (ours.cpu().double() - torch.tensor(theirs, dtype=torch.float64)).abs().sum()
        tokens = torch.tensor(sum(map(len, some.tokens)), dtype=torch.float64)
        self._check_mismatch(self.ranks.merged({"tokens": tokens, "mismatch": gap}))

    @contextmanager
    def clock(self, part: str) -> Iterator[None]:
        """Add up the seconds of a part of a step."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[part] = self.seconds.get(part, 0.0) + time.perf_counter() - began

    # -- state --------------------------------------------------------------------------------------------

    def save(self, folder: Path) -> None:
        """Write what continues the run; all processes take part, the first one writes."""
        self.trainer.save(folder)
        waiting = [batch.gathered_state(self.ranks) for batch in self.waiting]
        if self.trainer.rank == 0:
            state = {
                **{key: getattr(self, key) for key in _COUNTERS},
                "order": self.order.state(),
                "landscape": self.pass_rates.state(),
                "since": vars(self.means),
                "seconds": self.seconds,
                "waiting": waiting,
            }
            (folder / "loop.json").write_text(json.dumps(state))

    def restore(self, folder: Path) -> None:
        """Continue from what `save` wrote."""
        try:
            state = json.loads((folder / "loop.json").read_text())
            self.training().restore(folder)
            self.worker.sampler.needs_weights = True
            for key in _COUNTERS:
                setattr(self, key, int(state[key]))
            self.order.restore(state["order"])
            self.pass_rates.restore(state["landscape"])
            self.means = evaluation.StepMeans(**state["since"])
            self.seconds = state["seconds"]
            self.waiting = [Batch.from_state(one, self.ranks) for one in state["waiting"]]
        except torch.OutOfMemoryError:  # `train` reports it
            raise
        except Exception as error:
            raise UnreadableState(folder, error) from error

    def close(self) -> None:
        """Release what the next run does not reuse."""
        self.worker.close()
        self.trainer.close()


def _padded(values: list[list[float]], mask: Tensor) -> Tensor:
    """Return rows of numbers as a tensor (R, T), zeros where the mask is False."""
    out = torch.zeros(mask.shape, dtype=torch.float64)
    out[mask.cpu()] = torch.tensor([x for row in values for x in row], dtype=torch.float64)
    return out.to(mask.device)


def train(
    spec: RunSpec, state: Path | None, stopping: Callable[[], bool] = lambda: False
) -> Iterator[Checkpoint]:
    """Make a run, or what is left of it after ``state``; all its processes yield the same checkpoints.

    Evaluations are those of ``spec.schedule()``, in rollouts generated: at the first step that reaches each.
    After the first process sees ``stopping()``, a checkpoint follows the current step.

    Raises
    ------
    RunError
        out of memory, weights that did not arrive, a reward that failed, or dynamic sampling without end.
    """
    run = None
    try:
        run = Run(spec)
        schedule = [step * spec.batch_rollouts for step in spec.schedule()]
        due = 0
        if state is not None:
            run.restore(state)
            due = sum(compute <= run.compute for compute in schedule)
        minutes = run.options.checkpoint_minutes
        yielded = time.monotonic()
        while due < len(schedule):
            if run.compute < schedule[due]:
                run.advance()
            rows: list[Row] = []
            counts: list[Counts] = []
            if run.compute >= schedule[due]:
                rows, counts = run.evaluate()
                due = sum(compute <= run.compute for compute in schedule)
            elif not run.ranks.agreed(time.monotonic() - yielded > 60 * minutes or stopping()):
                continue
            yield Checkpoint(
                run.step,
                run.compute,
                rows,
                run.save,
                tokens=run.tokens,
                final=due == len(schedule),
                counts=counts,
                seconds=dict(run.seconds),
            )
            yielded = time.monotonic()
    except torch.OutOfMemoryError as error:
        raise RunError(
            f"out of memory ({str(error).splitlines()[0]}); lower real.micro_batch_tokens (tokens of a "
            "forward and backward pass), real.gpu_memory (the sampler's share) or "
            "recipe.max_response_tokens, or raise real.zero_stage or real.processes"
        ) from error
    finally:
        if run is not None:
            run.close()
