"""What learns: one update of the policy from a batch of rollouts.

    penalties   are taken off the rewards: for length, and β times the KL in the reward
    advantages  of the rewards, and weights of the whole batch (`advantages`, `objective`)
    loss        summed over micro-batches and processes, one optimiser step (`objective`, `trainer`)

Sampler and trainer share each GPU and take turns: what computes goes through `Learner.training`, which puts
the sampler to sleep.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from isolaw.backends.real.algorithms import advantages as adv
from isolaw.backends.real.algorithms import objective
from isolaw.backends.real.algorithms.loss_terms import sequence_kl
from isolaw.backends.real.options import RealOptions
from isolaw.backends.real.rollout.samplers import Rollouts
from isolaw.backends.real.rollout.worker import RolloutWorker
from isolaw.backends.real.train.batch import Batch
from isolaw.backends.real.train.packing import Packed
from isolaw.backends.real.train.trainer import Trainer
from isolaw.config import RunSpec
from isolaw.errors import RunError

# Responses of an evaluation whose log-probabilities are compared with the trainer's.
_COMPARED = 32


class Learner:
    """The trainer of a run and, with a KL term, the reference model."""

    def __init__(self, spec: RunSpec, options: RealOptions, trainer: Trainer, worker: RolloutWorker) -> None:
        self.spec, self.recipe, self.options, self.trainer = spec, spec.recipe, options, trainer
        self.sampler, self.ranks, self.clock = worker.sampler, worker.ranks, worker.clock
        self.temperature = self.recipe.temperature or 1.0
        self.reference = trainer.frozen(options.model) if self.recipe.kl else None

    def training(self) -> Trainer:
        """Return the trainer, after the sampler has given up its GPU memory."""
        self.sampler.sleep()
        return self.trainer

    def logprobs(self, rollouts: Rollouts) -> list[Tensor]:
        """Return the log-probabilities of each row's response tokens under the current weights."""
        return self.training().logprobs(rollouts, self.temperature)

    def update(self, batch: Batch, step: int) -> dict[str, float]:
        """Make the update of a step and return what it measures; no update if no rollout enters it."""
        recipe = self.recipe
        with self.clock("prepare"):
            kept = torch.ones(len(batch.rewards), dtype=torch.bool)
            if recipe.zero_variance_filter or recipe.dynamic_sampling:
                kept = adv.informative(batch.rewards)
            penalised = batch.rewards - self.penalties(batch)
            advantages = adv.advantages(penalised, recipe.advantage or "group_std", kept)
            enters = adv.gradient_rows(kept, batch.n, recipe.gradient_rollouts)
            weights = objective.row_weights(
                batch.lengths, enters, recipe.aggregation or "sequence", recipe.max_response_tokens
            )
        # lr · `RunSpec.lr_factor`, reached over the warm-up steps.
        lr = (recipe.lr or 0.0) * self.spec.lr_factor * min(1.0, step / max(recipe.warmup_steps or 0, 1))
        if not bool(enters.any()):
            return {"grad_norm": 0.0, "lr": lr}
        with self.clock("train"):
            sums = self._backward(batch, advantages, weights, batch.own_rows(enters))
        sums = self.ranks.merged(sums)
        if batch.rollouts.versions and batch.old_logprobs is not None:
            # The sampler's own log-probabilities are the old ones: only an evaluation compares with it.
            del sums["mismatch"], sums["mismatch_max"]
        else:
            self._check_mismatch(sums, step)
        with self.clock("train"):
            norm = self.trainer.update(lr)
        self.sampler.needs_weights = True
        return {"grad_norm": norm, "lr": lr, **objective.means(sums)}

    def _backward(
        self, batch: Batch, advantages: Tensor, weights: Tensor, rows: list[int]
    ) -> dict[str, Tensor]:
        """Accumulate the gradient of this process's rows; return the sums of their metrics."""
        trained, device = batch.rollouts.rows(rows), self.trainer.device
        own_advantages, own_weights = (batch.own(x)[rows].to(device) for x in (advantages, weights))
        sums: dict[str, Tensor] = {}

        def loss_of(part: Sequence[int], packed: Packed, logp: Tensor, entropy: Tensor) -> Tensor:
            nonlocal sums
            reference = None
            if self.reference is not None:
                with torch.no_grad():
                    reference = self.reference(packed, self.temperature)[0]
            if not part:
                return logp.sum() * 0.0
            sampled = torch.tensor([x for i in part for x in trained.logprobs[i]], dtype=torch.float64)
            old = None  # on-policy
            if batch.old_logprobs is not None:
                old = _padded(torch.cat([batch.old_logprobs[rows[i]] for i in part]), packed.mask)
            value, more = objective.loss(
                self.recipe,
                logprobs=logp,
                mask=packed.mask,
                advantages=own_advantages[list(part)],
                weights=own_weights[list(part)],
                old_logprobs=old,
                sampler_logprobs=_padded(sampled, packed.mask),
                reference_logprobs=reference,
                entropy=entropy,
            )
            sums = objective.merge(sums, more) if sums else more
            return value

        self.training().backward(trained, loss_of, temperature=self.temperature)
        return sums

    def penalties(self, batch: Batch) -> Tensor:
        """Return what is taken off the rewards, (B_p, n): DAPO's for length, β times the KL in the reward."""
        recipe = self.recipe
        out = torch.zeros_like(batch.rewards)
        if recipe.overlong_buffer:
            assert recipe.max_response_tokens is not None
            out -= adv.overlong_penalty(batch.lengths, recipe.max_response_tokens, recipe.overlong_buffer)
        if recipe.kl and recipe.kl_in == "reward":
            old = self.logprobs(batch.rollouts) if batch.old_logprobs is None else batch.old_logprobs
            reference = self.training().logprobs(batch.rollouts, self.temperature, self.reference)
            estimator = recipe.kl_estimator or "k1"
            own = [
                float(sequence_kl(p[None], q[None], torch.ones_like(p[None], dtype=torch.bool), estimator))
                for p, q in zip(old, reference, strict=True)
            ]
            out += recipe.kl * self.ranks.gathered(batch, own)
        return out

    def compare(self, rollouts: Rollouts, step: int) -> None:
        """Check the log-probabilities of some responses of an evaluation, as `update` does of a batch's."""
        some = rollouts.rows(range(min(_COMPARED, len(rollouts))))
        gap = torch.zeros((), dtype=torch.float64)
        for ours, theirs in zip(self.logprobs(some), some.logprobs, strict=True):
            gap += (ours.cpu().double() - torch.tensor(theirs, dtype=torch.float64)).abs().sum()
        tokens = torch.tensor(sum(map(len, some.tokens)), dtype=torch.float64)
        self._check_mismatch(self.ranks.merged({"tokens": tokens, "mismatch": gap}), step)

    def _check_mismatch(self, sums: dict[str, Tensor], step: int) -> None:
        """Stop the run if sampler and trainer disagree on the sampled tokens: the weights did not arrive."""
        mean = objective.means(sums)["mismatch"]
        tolerance = self.options.logprob_tolerance or 0.0
        # The sampler's are those of the distribution cut at top_p, larger by at most -log top_p.
        if not mean <= tolerance - math.log(self.recipe.top_p or 1.0):
            raise RunError(
                f"step {step}: sampler and trainer differ by {mean:.3g} in log-probability per "
                f"token, more than real.logprob_tolerance = {tolerance:g}: the sampler has other weights "
                "than the trainer"
            )


def _padded(values: Tensor, mask: Tensor) -> Tensor:
    """Return a number for each response token, row after row, as (R, T), zeros where the mask is False."""
    out = torch.zeros(mask.shape, dtype=torch.float64, device=mask.device)
    out[mask] = values.to(out)
    return out
