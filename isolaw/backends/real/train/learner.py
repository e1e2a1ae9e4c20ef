"""Update the policy from a batch of rollouts.

    penalties   for length and, for PPO, β times the KL estimate of each token, are subtracted from rewards
    advantages  are computed from the rewards (`advantages`, or `ppo` for PPO)
    then, for each mini-batch of each epoch (`_updates`; by default one mini-batch, the whole batch):
    loss        is summed over micro-batches and processes, with the mini-batch's weights (`objective`)
    step        of the policy's optimiser (`trainer`), and of the critic's optimiser

There are ``epochs`` passes over a batch. Each pass shuffles the problems and makes ``minibatches`` optimiser
steps on equal numbers of problems. With one pass, k mini-batches are PPO-off-policy-k (ScaleRL, arXiv
2510.13786, section 3.1). Ratios are relative to the policy at the start of the batch. C counts each rollout
once; the metric ``reuse`` counts how often it is used.

Sampler and trainer alternate on each GPU. All training computation goes through `Learner.take_gpu`, which
puts the sampler to sleep.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from isolaw.backend import RunNote
from isolaw.backends.real.algorithms import advantages as adv
from isolaw.backends.real.algorithms import objective
from isolaw.backends.real.options import RealOptions
from isolaw.backends.real.rollout.samplers import Rollouts
from isolaw.backends.real.rollout.worker import RolloutWorker
from isolaw.backends.real.train.batch import Batch
from isolaw.backends.real.train.packing import Packed
from isolaw.backends.real.train.ppo import PPO
from isolaw.backends.real.train.trainer import Trainer, trainer_arguments
from isolaw.config import RunSpec
from isolaw.errors import RunError

# Number of responses in an evaluation whose log-probabilities are compared with the trainer's.
_COMPARED_RESPONSES = 32
_SHUFFLE_STREAM = 2  # key of a random stream
# The comparisons after which weights are known to reach the sampler, and limits of the mismatch: relative to
# the one before the first update, and to the tolerance (`Learner._check_mismatch`).
_PROVEN_AFTER, _LIMIT_FACTOR, _FATAL_FACTOR = 10, 3.0, 10.0


def _updates(in_gradient: Tensor, epochs: int, minibatches: int, key: tuple[int, int]) -> Iterator[Tensor]:
    """Yield for each update on a batch the mask of its rollouts; skip updates without rollouts.

    ``in_gradient`` marks the rollouts of the batch that enter the gradient. All masks have shape (B_p, n). A
    mini-batch consists of whole groups. The shuffles depend only on ``key``, the run's seed and the step.

    >>> [mask[:, 0].tolist() for mask in _updates(torch.ones(2, 1).bool(), 1, 2, (0, 1))]
    [[False, True], [True, False]]
    """
    seed, step = key
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(_SHUFFLE_STREAM, step)))
    for _ in range(epochs):
        for problems in np.array_split(rng.permutation(len(in_gradient)), minibatches):
            update_mask = torch.zeros_like(in_gradient)
            update_mask[problems] = in_gradient[problems]
            if bool(update_mask.any()):
                yield update_mask


class _UpdateMeans:
    """Metrics of the updates on a batch, averaged over their tokens or over the updates.

    >>> means = _UpdateMeans(torch.ones(2, 1).bool())
    >>> for _ in range(2):
    ...     means.add(torch.ones(2, 1).bool(), "grad_norm", 3.0, {"tokens": torch.tensor(4.0)})
    >>> means.means()
    {'grad_norm': 3.0}
    >>> means.reuse()
    {'reuse': 2.0, 'updates': 2.0}
    """

    def __init__(self, in_gradient: Tensor) -> None:
        self.rollouts = int(in_gradient.sum())
        self.update_rollouts: dict[str, int] = {}  # the keys of these three are the names of the norms
        self.norms: dict[str, list[float]] = {}
        self.sums: dict[str, dict[str, Tensor]] = {}

    def add(self, update_mask: Tensor, name: str, norm: float, sums: dict[str, Tensor]) -> None:
        """Add an update on the rollouts of a mask: its metric sums, and ``norm`` under the key ``name``."""
        self.update_rollouts[name] = self.update_rollouts.get(name, 0) + int(update_mask.sum())
        self.norms.setdefault(name, []).append(norm)
        self.sums[name] = objective.merge(self.sums.get(name, {}), sums)

    def means(self) -> dict[str, float]:
        """Return the means of all metrics."""
        out = {name: sum(norms) / len(norms) for name, norms in self.norms.items()}
        for sums in self.sums.values():
            out |= objective.means(sums)
        return {"grad_norm": 0.0, **out}

    def reuse(self) -> dict[str, float]:
        """Return the mean number of policy updates per rollout in the gradient, and the number of updates."""
        uses, count = self.update_rollouts.get("grad_norm", 0), len(self.norms.get("grad_norm", []))
        return {"reuse": uses / max(self.rollouts, 1), "updates": float(count)}


class Learner:
    """The trainer of a run, the reference model if there is a KL term, and the critic for PPO."""

    def __init__(self, spec: RunSpec, options: RealOptions, trainer: Trainer, worker: RolloutWorker) -> None:
        self.spec, self.recipe, self.options, self.trainer = spec, spec.recipe, options, trainer
        self.prompts = worker.prompts["train"]
        self.sampler, self.ranks, self.clock = worker.sampler, worker.ranks, worker.clock
        self.temperature = self.recipe.temperature or 1.0
        self.reference = trainer.frozen_policy(options.model) if self.recipe.kl else None
        self.notes: list[RunNote] = []  # for the next checkpoint
        self._mismatch: float | None = None  # mismatch before the first update
        self._agreements, self._is_noted = 0, False
        self.ppo = None
        if self.recipe.algorithm == "ppo":
            self.ppo = PPO(self.recipe, self.ranks, options.model, **trainer_arguments(spec, options))

    def take_gpu(self) -> Trainer:
        """Put the sampler to sleep, which releases its GPU memory, and return the trainer."""
        self.sampler.sleep()
        return self.trainer

    def logprobs(self, rollouts: Rollouts) -> list[Tensor]:
        """Return the log-probabilities of each row's drawn tokens under the current weights."""
        return self.take_gpu().logprobs(rollouts, self.temperature)

    def update(self, batch: Batch, step: int) -> dict[str, float]:
        """Make the updates of a step and return their metrics."""
        recipe = self.recipe
        with self.clock("prepare"):
            kept = torch.ones(len(batch.rewards), dtype=torch.bool)
            if recipe.zero_variance_filter or recipe.dynamic_sampling:
                kept = adv.informative(batch.rewards)
            in_gradient = adv.gradient_rows(kept, batch.n, recipe.gradient_rollouts)
            prompts = torch.tensor([len(self.prompts[problem]) for problem in batch.visited])
            tokens = batch.lengths + prompts[:, None]
            batch.balance(self.ranks, in_gradient, tokens)
            has_several_updates = recipe.updates_per_batch > 1
            if has_several_updates and batch.old_logprobs is None:
                batch.old_logprobs = self.logprobs(batch.rollouts)
            penalised = batch.rewards - self.penalties(batch)
            targets = None
            if self.ppo:
                targets = self.ppo.targets(batch, penalised, self.token_penalties(batch))
                advantages = targets.advantages
            else:
                advantages = batch.local(adv.advantages(penalised, recipe.advantage or "group_std", kept))
        # The learning rate is lr · `RunSpec.lr_factor`, with a linear increase over the warm-up steps.
        factor = self.spec.lr_factor * min(1.0, step / max(recipe.warmup_steps or 0, 1))
        lr, critic_lr = (recipe.lr or 0.0) * factor, (recipe.critic_lr or 0.0) * factor
        update_means = _UpdateMeans(in_gradient)
        for update_mask in _updates(in_gradient, recipe.epochs, recipe.minibatches, (self.spec.seed, step)):
            weights = objective.row_weights(
                batch.lengths, update_mask, recipe.aggregation or "sequence", recipe.max_response_tokens
            )
            rows = batch.training_rows(update_mask)
            with self.clock("train"):
                sums = self._backward(batch, advantages, weights, rows)
            sums = self.ranks.merge_sums(sums)
            if self.options.generation == "async" and recipe.staleness:
                # The old log-probabilities are the sampler's, so only evaluations can detect a mismatch.
                del sums["mismatch"], sums["mismatch_max"]
            else:
                self._check_mismatch(sums, step, recipe.top_p)
            with self.clock("train"):
                update_means.add(update_mask, "grad_norm", self.trainer.update(lr), sums)
                if self.ppo and targets:
                    sums, norm = self.ppo.update(batch, targets, rows, weights, critic_lr)
                    update_means.add(update_mask, "critic_grad_norm", norm, sums)
            self.sampler.needs_weights = True
        reuse = update_means.reuse() if has_several_updates else {}
        extra = {"critic_lr": critic_lr, **targets.metrics} if targets else {}
        return {"lr": lr, **update_means.means(), **reuse, **extra}

    def _backward(
        self, batch: Batch, advantages: Tensor, weights: Tensor, rows: list[int]
    ) -> dict[str, Tensor]:
        """Accumulate the gradient of some of this process's rows; return the sums of their metrics.

        ``advantages`` covers all rows that this process holds. Its shape is (R,), or (R, T) if each token has
        its own advantage.
        """
        rollouts, device = batch.rollouts.rows(rows), self.trainer.device
        row_advantages, row_weights = (x[rows].to(device) for x in (advantages, batch.local(weights)))
        sums: dict[str, Tensor] = {}

        def loss_of(indices: Sequence[int], packed: Packed, logp: Tensor, entropy: Tensor) -> Tensor:
            nonlocal sums
            reference_logprobs = None
            if self.reference is not None:
                with torch.no_grad():
                    reference_logprobs = self.reference(packed, self.temperature)[0]
            if not indices:
                return logp.sum() * 0.0
            sampler_logprobs = [logprob for i in indices for logprob in rollouts.logprobs[i]]
            old_logprobs = None  # on-policy
            if batch.old_logprobs is not None:
                old_logprobs = _padded(torch.cat([batch.old_logprobs[rows[i]] for i in indices]), packed.mask)
            advantages = row_advantages[list(indices)]
            loss, loss_sums = objective.loss(
                self.recipe,
                logprobs=logp,
                mask=packed.mask,
                advantages=advantages if advantages.dim() == 1 else advantages[:, : logp.shape[1]],
                weights=row_weights[list(indices)],
                old_logprobs=old_logprobs,
                sampler_logprobs=_padded(torch.tensor(sampler_logprobs, dtype=torch.float64), packed.mask),
                reference_logprobs=reference_logprobs,
                entropy=entropy,
            )
            sums = objective.merge(sums, loss_sums)
            return loss

        self.take_gpu().backward(rollouts, loss_of, temperature=self.temperature)
        return sums

    def penalties(self, batch: Batch) -> Tensor:
        """Return the length penalties on the rewards, as an array of shape (B_p, n)."""
        recipe = self.recipe
        if not recipe.overlong_buffer:
            return torch.zeros_like(batch.rewards)
        assert recipe.max_response_tokens is not None
        return -adv.overlong_penalty(batch.lengths, recipe.max_response_tokens, recipe.overlong_buffer)

    def token_penalties(self, batch: Batch) -> list[Tensor] | None:
        """Return PPO's penalty on each token of this process's rows, or None without a KL term.

        The penalty is β · log π / π_ref at the token, with the mean β · KL(π ‖ π_ref) (arXiv 2203.02155).
        """
        recipe = self.recipe
        if not recipe.kl:
            return None
        sampled_logprobs = self.logprobs(batch.rollouts) if batch.old_logprobs is None else batch.old_logprobs
        reference_logprobs = self.take_gpu().logprobs(batch.rollouts, self.temperature, self.reference)
        return [
            recipe.kl * (p.double() - q.double())
            for p, q in zip(sampled_logprobs, reference_logprobs, strict=True)
        ]

    def save(self, folder: Path) -> None:
        """Write the state of policy and critic; all processes must call this, and the first one writes."""
        for trainer in self._trainers():
            trainer.save(folder)

    def restore(self, folder: Path) -> None:
        """Restore the state that `save` wrote."""
        self.sampler.sleep()
        for trainer in self._trainers():
            trainer.restore(folder)

    def close(self) -> None:
        """Release the memory of the policy's and the critic's engines."""
        for trainer in self._trainers():
            trainer.close()

    def _trainers(self) -> list[Trainer]:
        return [self.trainer, *([self.ppo.critic] if self.ppo else [])]

    def compare(self, rollouts: Rollouts, step: int) -> None:
        """Check the sampler's log-probabilities of some evaluation responses, as `update` checks a batch."""
        sample = rollouts.rows(range(min(_COMPARED_RESPONSES, len(rollouts))))
        sampling = self.spec.evaluated_at
        logprobs = self.take_gpu().logprobs(sample, sampling["temperature"] or 1.0)
        difference = torch.zeros((), dtype=torch.float64)
        for ours, theirs in zip(logprobs, sample.logprobs, strict=True):
            difference += (ours.cpu().double() - torch.tensor(theirs, dtype=torch.float64)).abs().sum()
        sums = {"tokens": torch.tensor(sum(sample.lengths)).double(), "mismatch": difference}
        self._check_mismatch(self.ranks.merge_sums(sums), step, sampling["top_p"])

    def _check_mismatch(self, sums: dict[str, Tensor], step: int, top_p: float | None) -> None:
        """Check that sampler and trainer agree on log-probabilities: else their weights may differ.

        Before the first update, the sampler has the weights of the model's files. For `_PROVEN_AFTER` further
        comparisons, the limit is `_LIMIT_FACTOR` that difference, because a transfer that leaves a weight out
        shows in the first updates. Raise `RunError` above the limit. Later, weights are known to arrive, and
        a policy that becomes unstable amplifies rounding. The difference is then a note, up to
        `_FATAL_FACTOR` times the tolerance.
        """
        mean = objective.means(sums)["mismatch"]
        tolerance = self.options.logprob_tolerance or 0.0
        # Truncation at top_p increases the sampler's log-probabilities by at most -log top_p.
        slack, limit = -math.log(top_p or 1.0), tolerance
        if step and self._mismatch is not None and self._agreements < _PROVEN_AFTER:
            limit = min(tolerance, max(_LIMIT_FACTOR * self._mismatch, tolerance / 5))
        if mean <= limit + slack:
            self._agreements += step > 0
            if not step:
                self._mismatch = mean
            return
        before = "" if self._mismatch is None else f"; it was {self._mismatch:.3g} before the first update"
        text = (
            f"sampler and trainer differ by {mean:.3g} in log-probability per token, more than {limit:.3g} "
            f"(real.logprob_tolerance = {tolerance:g}{before}). Either weights of the trainer do not reach "
            "the sampler, or the policy is unstable: compare entropy and grad_norm"
        )
        if self._agreements < _PROVEN_AFTER or not mean <= _FATAL_FACTOR * tolerance + slack:
            raise RunError(f"step {step}: {text}")
        if not self._is_noted:
            self._is_noted = True
            self.notes.append(RunNote("mismatch", f"at step {step:,}, {text}", {"step": step, "mean": mean}))


def _padded(values: Tensor, mask: Tensor) -> Tensor:
    """Return a flat array of one number per response token as shape (R, T), with zeros outside the mask."""
    out = torch.zeros(mask.shape, dtype=torch.float64, device=mask.device)
    out[mask] = values.to(out)
    return out
