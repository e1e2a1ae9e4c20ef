"""A language model for training: packed rows in, log-probabilities and entropies of responses out.

`head` has the equations, and `packing` rows and attention. `agrees` tests whether a model can be trained this
way: with this attention, without scaled logits, and without leaks between rows.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from isolaw.backends.real import environment, models
from isolaw.backends.real.options import TOLERANCE
from isolaw.backends.real.rollout.samplers import Rollouts
from isolaw.backends.real.train import head, packing, process_group
from isolaw.backends.real.train.packing import Packed
from isolaw.errors import RunError


class Backbone(nn.Module):  # type: ignore[misc]
    """A causal language model of `transformers` on packed rows, apart from its head."""

    def __init__(self, model: Any, *, gradient_checkpointing: bool = False) -> None:
        super().__init__()
        self.model = model
        self.longest = _longest(model.config)
        if gradient_checkpointing:
            # No check of shapes: ZeRO-3 would compare recomputed tensors with weights that it has released.
            how = {"use_reentrant": False, "determinism_check": "none", "preserve_rng_state": False}
            model.gradient_checkpointing_enable(how)

    def states(self, packed: Packed) -> Tensor:
        """Return the last hidden states that predict response tokens, (K, E)."""
        if self.longest is not None and packed.layout.longest > self.longest:
            raise RunError(
                f"{_kind(self.model.config)} cannot be trained on a row of {packed.layout.longest} tokens: "
                f"beyond {self.longest}, its positions (longrope) depend on the other rows; "
                f"expected at most {self.longest} tokens of prompt and response; {models.INSTEAD}"
            )
        hidden = self.model.base_model(
            input_ids=packed.ids, position_ids=packed.positions, use_cache=False, layout=packed.layout
        ).last_hidden_state[0]
        return hidden[packed.predicts]


class Policy(Backbone):
    """A causal language model that returns log-probabilities."""

    def __init__(
        self, model: Any, *, float32_head: bool = False, gradient_checkpointing: bool = False
    ) -> None:
        super().__init__(model, gradient_checkpointing=gradient_checkpointing)
        head.chunked(model.get_output_embeddings(), float32=float32_head)

    def forward(self, packed: Packed, temperature: float = 1.0) -> Tensor:
        """Return log-probabilities and entropies of response tokens, (2, R, T), zeros elsewhere.

        They are one tensor: ZeRO-3 counts the gradients of a module's outputs, and would wait for ever for a
        process that does not use the entropy.
        """
        head = self.model.get_output_embeddings()
        return packed.by_row(head(self.states(packed), packed.targets, temperature))


def load(
    folder: str,
    dtype: str,
    device: torch.device,
    *,
    zero: dict[str, Any] | None = None,
    float32_head: bool = False,
    gradient_checkpointing: bool = False,
) -> Policy:
    """Return the policy of a model's folder (`pretrained`)."""
    model = pretrained(folder, dtype, device, zero=zero)
    return Policy(model, float32_head=float32_head, gradient_checkpointing=gradient_checkpointing)


def pretrained(folder: str, dtype: str, device: torch.device, *, zero: dict[str, Any] | None = None) -> Any:
    """Return the model of a folder on a device, with weights of type ``dtype`` and packed attention.

    ``zero`` is DeepSpeed's configuration for ZeRO-3, which divides the weights among the processes from the
    start: no device ever holds the whole model, and only the first process reads it, into host memory.
    """
    with environment.importing():
        from transformers import AutoConfig, AutoModelForCausalLM

    packing.register()
    config = _without_dropout(AutoConfig.from_pretrained(folder))
    how = {"config": config, "dtype": getattr(torch, dtype), "attn_implementation": packing.ATTENTION}
    try:
        if zero:
            return _divided(folder, zero, device, **how)
        return AutoModelForCausalLM.from_pretrained(folder, **how).to(device)
    except KeyError as error:
        if error.args != (packing.ATTENTION,):
            raise
        raise RunError(
            f"{_kind(config)} cannot be trained: its attention does not use transformers' interface; "
            + models.INSTEAD
        ) from None


def _without_dropout(config: Any) -> Any:
    """Return a configuration without dropout, which the sampler does not have."""
    for name, value in vars(config).items():
        if ("dropout" in name or name.endswith("_pdrop")) and isinstance(value, float):
            setattr(config, name, 0.0)
    return config


def _divided(folder: str, zero_config: dict[str, Any], device: torch.device, **how: Any) -> Any:
    """Return a model with divided weights, filled one by one from the first process's weights."""
    import torch.distributed as dist
    from deepspeed import zero
    from transformers import AutoModelForCausalLM, GenerationConfig
    from transformers.initialization import no_init_weights

    build = functools.partial(AutoModelForCausalLM.from_config, **how)
    with no_init_weights():
        # Without a dtype: DeepSpeed 0.19 replaces a given one on machines without float16.
        with zero.Init(config_dict_or_path=zero_config):
            model = build()
        with _weightless():
            whole = build()
    model.tie_weights()  # part of the initialisation that is left out here
    for name, buffer in whole.named_buffers():  # in `model` they are rounded with the weights (RoPE)
        owner, _, own = name.rpartition(".")
        model.get_submodule(owner)._buffers[own] = buffer.to(device)
    if (Path(folder) / "generation_config.json").is_file():
        model.generation_config = GenerationConfig.from_pretrained(folder)
    first = dist.get_rank() == 0
    stored: dict[str, Any] = {}
    missing: list[str] = []
    if first:  # as transformers reads them: names in files may differ
        whole, found = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True, **how)
        stored, missing = dict(whole.named_parameters()), sorted(found["missing_keys"])
    for name, parameter in model.named_parameters():
        with zero.GatheredParameters([parameter], modifier_rank=0), torch.no_grad():
            if first:
                parameter.copy_(stored.pop(name))
    if missing := process_group.exchange(missing)[0]:
        raise RunError(f"{folder}: no {missing[0]} in its files, nor {len(missing) - 1} further weights")
    return model


@contextlib.contextmanager
def _weightless() -> Iterator[None]:
    """While entered, new modules have buffers, but no memory for their parameters."""
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
    """Compare two packed rows with each by itself, under the model's own attention.

    Raise `RunError` if they differ, or could in other rows: the model scales or caps its logits, its layers
    mix rows, or its attention is of another kind.
    """
    model = policy.module.model if hasattr(policy, "module") else policy.model
    size = model.get_output_embeddings().out_features
    rows = [[(7 * i + 3 * k) % size for i in range(length)] for k, length in enumerate((9, 6))]
    rollouts = Rollouts([row[:2] for row in rows], [row[2:] for row in rows], [], [])
    try:
        packed_logprobs = policy(packing.pack(rollouts, device, varlen=varlen), 1.0)[0]
    except NotImplementedError as error:
        raise _refusal(model, str(error)) from None
    except (AttributeError, TypeError) as error:  # models built differently raise
        raise _refusal(model, f"it cannot be called with packed rows ({error})") from error
    if _mixes(model, policy, rollouts, device):
        raise _refusal(model, "its layers pass a state from row to row")
    gap, count = 0.0, 0
    for row, values in zip(rows, packed_logprobs, strict=True):
        logits = _logits(model, torch.tensor([row], device=device))
        own = logits.log_softmax(-1)[range(1, len(row) - 1), row[2:]]
        gap += float((own - values[: len(own)]).abs().sum())
        count += len(own)
    if not gap / count <= TOLERANCE[dtype]:
        raise _refusal(
            model,
            "packing rows into one sequence changes their log-probabilities "
            f"(by {gap / count:.3g} per token)",
        )


def _mixes(model: Any, policy: Any, rollouts: Rollouts, device: torch.device) -> bool:
    """Return whether NaN in the first row gets into the second.

    Attention computes the rows side by side, so that a kernel may load more than it uses.
    """

    def spoil(_: Any, __: Any, embedded: Tensor) -> Tensor:
        first = torch.arange(embedded.shape[1], device=device) < len(rollouts.prompts[0] + rollouts.tokens[0])
        return embedded.masked_fill(first[:, None], torch.nan)

    hook = model.get_input_embeddings().register_forward_hook(spoil)
    try:
        found = policy(packing.pack(rollouts, device), 1.0)[0]
    finally:
        hook.remove()
    return bool(found[1].isnan().any())


def _logits(model: Any, ids: Tensor) -> Tensor:
    """Return the logits of a row, (tokens, V), by the model's own attention.

    The head's logits times 100 have to be what the model returns: this reveals scaling and capping.
    """
    heads: list[Tensor] = []

    def widen(_: Any, __: Any, logits: Tensor) -> Tensor:
        heads.append(logits.float())
        return logits * 100

    hook = model.get_output_embeddings().register_forward_hook(widen)
    model.set_attn_implementation("eager")
    try:
        found = model(input_ids=ids, use_cache=False).logits.float()
    finally:
        model.set_attn_implementation(packing.ATTENTION)
        hook.remove()
    if not torch.allclose(found, heads[0] * 100, rtol=0.01):
        raise _refusal(model, "it scales or caps the logits of its output head")
    return heads[0][0]


def _longest(config: Any) -> int | None:
    """Return the length of the longest row whose positions do not depend on other rows; None: no limit."""
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") != "longrope":
        return None
    return int(rope.get("original_max_position_embeddings") or config.original_max_position_embeddings)


def _refusal(model: Any, why: str) -> RunError:
    return RunError(f"{_kind(model.config)} cannot be trained: {why}; {models.INSTEAD}")


def _kind(config: Any) -> str:
    return str((config.architectures or [type(config).__name__])[0])
