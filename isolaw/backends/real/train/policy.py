"""Load language models for training, which map packed rows to log-probabilities and entropies of responses.

`head` has the equations, and `packing` defines packed rows and their attention. `check_packing` checks that a
model can be trained this way: it must support this attention, must not scale its logits, and must not leak
information between rows.
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
    """A causal language model of `transformers` that computes hidden states of packed rows."""

    def __init__(self, model: Any, *, gradient_checkpointing: bool = False) -> None:
        super().__init__()
        self.model = model
        self.longest_row = _longest_row(model.config)
        if gradient_checkpointing:
            # No determinism check, because ZeRO-3 would compare recomputed tensors with released weights.
            arguments = {"use_reentrant": False, "determinism_check": "none", "preserve_rng_state": False}
            model.gradient_checkpointing_enable(arguments)

    def states(self, packed: Packed) -> Tensor:
        """Return the last hidden states that predict response tokens, as an array of shape (K, E)."""
        if self.longest_row is not None and packed.layout.longest > self.longest_row:
            raise RunError(
                f"{_class_name(self.model.config)} cannot be trained on a row of {packed.layout.longest} "
                f"tokens: beyond {self.longest_row}, its positions (longrope) depend on the other rows; "
                f"expected at most {self.longest_row} tokens of prompt and response; {models.INSTEAD}"
            )
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
    try:
        if zero:
            return _load_partitioned(folder, zero, device, **arguments)
        return AutoModelForCausalLM.from_pretrained(folder, **arguments).to(device)
    except KeyError as error:
        if error.args != (packing.ATTENTION,):
            raise
        raise RunError(
            f"{_class_name(config)} cannot be trained: its attention does not use transformers' interface; "
            + models.INSTEAD
        ) from None


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


@torch.no_grad()
def check_packing(policy: Any, dtype: str, device: torch.device, *, varlen: bool) -> None:
    """Check that packing does not change a model's results.

    Compare two packed rows with the same rows computed separately by the model's own attention. Raise
    `RunError` if the results differ. Also raise it if other rows could differ, because the model scales or
    caps its logits, mixes rows, or has another kind of attention.
    """
    model = policy.module.model if hasattr(policy, "module") else policy.model
    vocabulary = model.get_output_embeddings().out_features
    rows = [[(7 * i + 3 * k) % vocabulary for i in range(length)] for k, length in enumerate((9, 6))]
    rollouts = Rollouts([row[:2] for row in rows], [row[2:] for row in rows], [], [])
    try:
        packed_logprobs = policy(packing.pack(rollouts, device, varlen=varlen), 1.0)[0]
    except NotImplementedError as error:
        raise _refusal(model, str(error)) from None
    except (AttributeError, TypeError) as error:  # raised by models with another structure
        raise _refusal(model, f"it cannot be called with packed rows ({error})") from error
    if _mixes_rows(model, policy, rollouts, device):
        raise _refusal(model, "its layers pass a state from row to row")
    difference, count = 0.0, 0
    for row, values in zip(rows, packed_logprobs, strict=True):
        logits = _logits(model, torch.tensor([row], device=device))
        expected = logits.log_softmax(-1)[range(1, len(row) - 1), row[2:]]
        difference += float((expected - values[: len(expected)]).abs().sum())
        count += len(expected)
    if not difference / count <= TOLERANCE[dtype]:
        change = f"by {difference / count:.3g} per token"
        raise _refusal(model, f"packing rows into one sequence changes their log-probabilities ({change})")


def _mixes_rows(model: Any, policy: Any, rollouts: Rollouts, device: torch.device) -> bool:
    """Return whether NaN in the first row spreads to the second row.

    The rows are packed in padded blocks here, because a variable-length kernel can load values that it does
    not use.
    """

    def spoil_first_row(_: Any, __: Any, embedded: Tensor) -> Tensor:
        length = len(rollouts.prompts[0] + rollouts.tokens[0])
        return embedded.index_fill(1, torch.arange(length, device=device), torch.nan)

    hook = model.get_input_embeddings().register_forward_hook(spoil_first_row)
    try:
        logprobs = policy(packing.pack(rollouts, device), 1.0)[0]
    finally:
        hook.remove()
    return bool(logprobs[1].isnan().any())


def _logits(model: Any, ids: Tensor) -> Tensor:
    """Return the logits of a row, of shape (tokens, V), computed with the model's own attention.

    To detect scaled or capped logits, a hook multiplies the head's logits by 100, and the model must return
    them unchanged.
    """
    head_logits: list[Tensor] = []

    def scale_logits(_: Any, __: Any, logits: Tensor) -> Tensor:
        head_logits.append(logits.float())
        return logits * 100

    hook = model.get_output_embeddings().register_forward_hook(scale_logits)
    model.set_attn_implementation("eager")
    try:
        scaled = model(input_ids=ids, use_cache=False).logits.float()
    finally:
        model.set_attn_implementation(packing.ATTENTION)
        hook.remove()
    if not torch.allclose(scaled, head_logits[0] * 100, rtol=0.01):
        raise _refusal(model, "it scales or caps the logits of its output head")
    return head_logits[0][0]


def _longest_row(config: Any) -> int | None:
    """Return the maximum length of rows whose positions do not depend on other rows; None means no limit."""
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") != "longrope":
        return None
    return int(rope.get("original_max_position_embeddings") or config.original_max_position_embeddings)


def _refusal(model: Any, reason: str) -> RunError:
    return RunError(f"{_class_name(model.config)} cannot be trained: {reason}; {models.INSTEAD}")


def _class_name(config: Any) -> str:
    return str((config.architectures or [type(config).__name__])[0])
