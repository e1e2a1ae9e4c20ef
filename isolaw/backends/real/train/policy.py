"""Load language models for training, which map packed rows to log-probabilities and entropies of responses.

`head` has the equations, and `packing` defines packed rows and their attention. The models that
`models.check` accepts support this attention, and neither scale their logits nor leak information between
rows.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from isolaw.backends.real import environment
from isolaw.backends.real.train import head, packing, process_group
from isolaw.backends.real.train.packing import Packed
from isolaw.errors import RunError


class Backbone(nn.Module):  # type: ignore[misc]
    """A causal language model of `transformers` that computes hidden states of packed rows."""

    def __init__(self, model: Any, *, gradient_checkpointing: bool = False) -> None:
        super().__init__()
        self.model = model
        if gradient_checkpointing:
            # No determinism check, because ZeRO-3 would compare recomputed tensors with released weights.
            arguments = {"use_reentrant": False, "determinism_check": "none", "preserve_rng_state": False}
            model.gradient_checkpointing_enable(arguments)

    def states(self, packed: Packed) -> Tensor:
        """Return the last hidden states that predict response tokens, as an array of shape (K, E)."""
        hidden = self.model.base_model(
            input_ids=packed.ids, position_ids=packed.positions, use_cache=False, layout=packed.layout
        ).last_hidden_state[0]
        return hidden[packed.predicts]


class Policy(Backbone):
    """A causal language model that returns the log-probability and entropy at each response token."""

    def __init__(
        self, model: Any, *, float32_head: bool = False, gradient_checkpointing: bool = False
    ) -> None:
        super().__init__(model, gradient_checkpointing=gradient_checkpointing)
        head.chunked(model.get_output_embeddings(), float32=float32_head)

    def forward(self, packed: Packed, temperature: float = 1.0) -> Tensor:
        """Return log-probabilities and entropies of response tokens, with zeros in the padding.

        The result is one tensor of shape (2, R, T), because ZeRO-3 counts the gradients of a module's
        outputs. With two tensors, it would wait forever for a process that does not use the entropy.
        """
        head = self.model.get_output_embeddings()
        return packed.by_row(head(self.states(packed), packed.targets, temperature))


def pretrained(folder: str, dtype: str, device: torch.device, *, zero: dict[str, Any] | None = None) -> Any:
    """Load the model in a folder to a device, with weights of type ``dtype`` and packed attention.

    ``zero`` is DeepSpeed's configuration for ZeRO-3, which partitions the weights among the processes from
    the start. No device then holds the whole model at any time, and only the first process reads it, into
    host memory.
    """
    with environment.importing():
        from transformers import AutoConfig, AutoModelForCausalLM

    packing.register()
    config = _without_dropout(AutoConfig.from_pretrained(folder, trust_remote_code=False))
    arguments = {
        "config": config, "dtype": getattr(torch, dtype), "attn_implementation": packing.ATTENTION,
        "trust_remote_code": False,
    }  # fmt: skip
    if zero:
        return _load_partitioned(folder, zero, device, **arguments)
    return AutoModelForCausalLM.from_pretrained(folder, **arguments).to(device)


def _without_dropout(config: Any) -> Any:
    """Set all dropout rates in a configuration to 0, as in the sampler, and return the configuration."""
    for name, value in vars(config).items():
        if ("dropout" in name or name.endswith("_pdrop")) and isinstance(value, float):
            setattr(config, name, 0.0)
    return config


def _load_partitioned(folder: str, zero_config: dict[str, Any], device: torch.device, **options: Any) -> Any:
    """Return a model with partitioned weights, copied one by one from the first process's weights."""
    import torch.distributed as dist
    from deepspeed import zero
    from transformers import AutoModelForCausalLM, GenerationConfig
    from transformers.initialization import no_init_weights

    build = functools.partial(AutoModelForCausalLM.from_config, **options)
    with no_init_weights():
        # No dtype is given, because DeepSpeed 0.19 replaces it on machines without float16.
        with zero.Init(config_dict_or_path=zero_config):
            model = build()
        with _without_weights():
            full_model = build()
    model.tie_weights()  # part of the initialisation, which no_init_weights skips
    for name, buffer in full_model.named_buffers():  # `model` has rounded its buffers (RoPE) like its weights
        owner, _, attribute = name.rpartition(".")
        model.get_submodule(owner)._buffers[attribute] = buffer.to(device)
    if (Path(folder) / "generation_config.json").is_file():
        model.generation_config = GenerationConfig.from_pretrained(folder)
    is_first = dist.get_rank() == 0
    stored: dict[str, Any] = {}
    missing: list[str] = []
    if is_first:  # loaded by transformers, because the names in the files can differ
        full_model, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True, **options)
        stored, missing = dict(full_model.named_parameters()), sorted(info["missing_keys"])
    for name, parameter in model.named_parameters():
        with zero.GatheredParameters([parameter], modifier_rank=0), torch.no_grad():
            if is_first:
                parameter.copy_(stored.pop(name))
    if missing := process_group.exchange(missing)[0]:
        raise RunError(f"{folder}: no {missing[0]} in its files, nor {len(missing) - 1} further weights")
    return model


@contextlib.contextmanager
def _without_weights() -> Iterator[None]:
    """Create modules inside the block without memory for their parameters; buffers are created as usual."""
    register = nn.Module.register_parameter

    def register_on_meta(self: nn.Module, name: str, value: nn.Parameter | None) -> None:
        register(self, name, None if value is None else nn.Parameter(value.to("meta"), requires_grad=False))

    nn.Module.register_parameter = register_on_meta
    try:
        yield
    finally:
        nn.Module.register_parameter = register
