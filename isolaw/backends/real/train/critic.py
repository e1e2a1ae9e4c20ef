"""Define PPO's critic: the base model with a scalar output head, under its own DeepSpeed engine.

The value is V(s) = w · h(s) in float32. Here h is the last hidden state at the token before the predicted
token, and w is the head's weight, which is initially 0. There is no bias, because DeepSpeed's ZeRO-3 cannot
restore a parameter with fewer numbers than there are processes.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from isolaw.backends.real.rollout.samplers import Rollouts
from isolaw.backends.real.train.packing import Packed
from isolaw.backends.real.train.policy import Backbone, pretrained
from isolaw.backends.real.train.trainer import Trainer


class ScalarHead(nn.Linear):  # type: ignore[misc]
    """A linear map to one number, in float32."""

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the K values of hidden states of shape (K, E)."""
        return nn.functional.linear(hidden.float(), self.weight.float())[:, 0]


class ValueModel(Backbone):
    """A causal language model whose head is a `ScalarHead`."""

    def forward(self, packed: Packed) -> Tensor:
        """Return the value before each response token, as shape (1, R, T) with zeros in the padding."""
        return packed.by_row(self.model.get_output_embeddings()(self.states(packed)))[None]


class Critic(Trainer):
    """The trainer of a value model, which starts from the base model and has its own state files."""

    prefix = "critic_"

    def _build(self, folder: str, *, gradient_checkpointing: bool = False) -> ValueModel:
        model = pretrained(folder, self.dtype, self.device, zero=self._zero)
        model.set_output_embeddings(_scalar_head(model, self._zero))
        return ValueModel(model, gradient_checkpointing=gradient_checkpointing)

    def _train_beside(self, policy: Any) -> None:
        policy.model.get_output_embeddings().requires_grad_(True)

    @torch.no_grad()
    def values(self, rollouts: Rollouts) -> list[Tensor]:
        """Return the value V before each response token, as one array for each row."""
        return self.by_row(rollouts, self.engine)


def _scalar_head(model: Any, zero_config: dict[str, Any] | None) -> ScalarHead:
    head = model.get_output_embeddings()
    divided: Any = nullcontext()
    if zero_config:
        from deepspeed import zero

        divided = zero.Init(config_dict_or_path=zero_config)
    with divided:
        scalar = ScalarHead(head.in_features, 1, bias=False, dtype=head.weight.dtype)
    whole: Any = nullcontext()
    if zero_config:
        whole = zero.GatheredParameters([scalar.weight], modifier_rank=0)
    with whole, torch.no_grad():
        scalar.weight.zero_()
    return scalar.to(head.weight.device)
