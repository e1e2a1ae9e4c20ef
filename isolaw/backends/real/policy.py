"""A language model as trained here: packed rows in, log-probabilities and entropies of responses out.

The equations are in `head`, rows and attention in `packing`. Whether a model is one that this is right for
(no other attention, no scaled logits, nothing that leaks from row to row) is measured, not known: `agrees`.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from isolaw.backends.real import head, packing
from isolaw.backends.real.packing import Packed
from isolaw.backends.real.sampling import Rollouts, stored_weights
from isolaw.errors import RunError

# Mean |Δ log p| per token above which a model is computed wrongly: rounding, and nothing else, is below.
_TOLERANCE = {"float32": 1e-4, "bfloat16": 0.1}


class Policy(nn.Module):  # type: ignore[misc]
    """A language model that returns log-probabilities.

    Parameters
    ----------
    model
        a causal language model of `transformers`.
    float32_head
        whether its logits are computed in float32.
    gradient_checkpointing
        whether the activations within a layer are computed again in the backward pass.
    """

    def __init__(
        self, model: Any, *, float32_head: bool = False, gradient_checkpointing: bool = False
    ) -> None:
        super().__init__()
        self.model = model
        head.chunked(model.get_output_embeddings(), float32=float32_head)
        if gradient_checkpointing:
            # What is recomputed is compared by ZeRO-3 with weights that are not there: no check of shapes.
            how = {"use_reentrant": False, "determinism_check": "none", "preserve_rng_state": False}
            model.gradient_checkpointing_enable(how)

    def forward(self, packed: Packed, temperature: float) -> Tensor:
        """Return log-probabilities and entropies of response tokens, (2, R, T), zeros where there is none.

        They are one tensor: ZeRO-3 counts the gradients of what a module returns, and processes of which one
        has no use for the entropy would wait for each other forever.
        """
        hidden = self.model.base_model(
            input_ids=packed.ids, position_ids=packed.positions, use_cache=False, layout=packed.layout
        ).last_hidden_state[0]
        head = self.model.get_output_embeddings()
        return packed.by_row(head(hidden[packed.predicts], packed.targets, temperature))


def load(
    folder: str,
    dtype: str,
    device: torch.device,
    *,
    zero: dict[str, Any] | None = None,
    float32_head: bool = False,
    gradient_checkpointing: bool = False,
) -> Policy:
    """Return the policy of a model's folder on a device.

    Parameters
    ----------
    dtype
        of the weights.
    zero
        DeepSpeed's configuration, where the weights are divided among the processes from the start
        (ZeRO-3): none of them ever holds the whole model.
    """
    from transformers import AutoModelForCausalLM

    packing.register()
    if zero:
        model = _divided(folder, zero, device)
    else:
        model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=getattr(torch, dtype), attn_implementation=packing.ATTENTION
        ).to(device)
    return Policy(model, float32_head=float32_head, gradient_checkpointing=gradient_checkpointing)


def _divided(folder: str, config: dict[str, Any], device: torch.device) -> Any:
    """Build a model with its weights divided, and fill them one by one from the first process's files."""
    import torch.distributed as dist
    from deepspeed import zero
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig
    from transformers.initialization import no_init_weights

    dtype = "bfloat16" if config["bf16"]["enabled"] else "float32"
    build = functools.partial(
        AutoModelForCausalLM.from_config,
        AutoConfig.from_pretrained(folder),
        dtype=getattr(torch, dtype),
        attn_implementation=packing.ATTENTION,
    )
    with no_init_weights():
        # Given a type of its own, DeepSpeed 0.19 takes another one on machines without float16.
        with zero.Init(config_dict_or_path=config):
            model = build()
        with _weightless():
            whole = build()
    model.tie_weights()  # which goes without where weights are not initialised
    for name, buffer in whole.named_buffers():  # which were rounded (RoPE's frequencies) with the weights
        owner, _, own = name.rpartition(".")
        model.get_submodule(owner)._buffers[own] = buffer.to(device)
    if (Path(folder) / "generation_config.json").is_file():
        model.generation_config = GenerationConfig.from_pretrained(folder)
    first = dist.get_rank() == 0
    stored = dict(stored_weights(folder)) if first else {}
    missing = []
    for name, parameter in model.named_parameters():
        with zero.GatheredParameters([parameter], modifier_rank=0), torch.no_grad():
            if first and name in stored:
                parameter.copy_(stored.pop(name))
            elif first:
                missing.append(name)
    told = [missing]
    dist.broadcast_object_list(told, src=0)
    if told[0]:
        raise RunError(f"{folder}: no {told[0][0]} in its files, nor {len(told[0]) - 1} further weights")
    return model


@contextlib.contextmanager
def _weightless() -> Iterator[None]:
    """While entered, modules are made without the memory of their parameters, but with their buffers."""
    register = nn.Module.register_parameter

    def without(self: nn.Module, name: str, value: nn.Parameter | None) -> None:
        register(self, name, None if value is None else nn.Parameter(value.to("meta"), requires_grad=False))

    nn.Module.register_parameter = without
    try:
        yield
    finally:
        nn.Module.register_parameter = register


@torch.no_grad()
def agrees(policy: Any, dtype: str, device: torch.device, *, varlen: bool) -> None:
    """Compare two packed rows with the model's own logits of each.

    Raises
    ------
    RunError
        they differ: the model scales its logits, or mixes rows, or has another kind of attention.
    """
    model = policy.module.model if hasattr(policy, "module") else policy.model
    size = model.get_output_embeddings().out_features
    rows = [[(7 * i + 3 * k) % size for i in range(length)] for k, length in enumerate((9, 6))]
    try:
        packed = packing.pack(
            Rollouts([row[:2] for row in rows], [row[2:] for row in rows], [], []), device, varlen=varlen
        )
        found = policy(packed, 1.0)[0]
        gap, count = 0.0, 0
        for row, values in zip(rows, found, strict=True):
            logits = model(input_ids=torch.tensor([row], device=device), use_cache=False).logits[0].float()
            own = logits.log_softmax(-1)[range(1, len(row) - 1), row[2:]]
            gap += float((own - values[: len(own)]).abs().sum())
            count += len(own)
    except NotImplementedError as error:
        raise RunError(f"{_kind(model)} cannot be trained: {error} is not supported") from None
    if not gap / count <= _TOLERANCE[dtype]:
        raise RunError(
            f"{_kind(model)} cannot be trained: rows packed into one sequence have other log-probabilities "
            f"than each by itself (by {gap / count:.3g} per token)"
        )


def _kind(model: Any) -> str:
    return json.dumps((model.config.architectures or [type(model).__name__])[0]).strip('"')
