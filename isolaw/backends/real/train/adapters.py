"""Add LoRA adapters to a model with peft, and merge them into its weights.

Only the adapters are trained. The sampler draws from the merged weights W + (α / r) B A, computed in float32
and rounded once to the type of W. The transfer to the sampler merges one matrix at a time. W itself never
changes, so rounding errors do not accumulate over steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from isolaw.backends.real import environment
from isolaw.backends.real.algorithms.lora import LoRA

_ADAPTER = "default"  # name of the only adapter in peft
_WRAPPED = ".base_layer"  # part of the names of weights in layers that peft has wrapped


class Adapters:
    """The adapters of a model; the constructor adds them and freezes the model's own parameters."""

    def __init__(self, model: Any, lora: LoRA) -> None:
        with environment.importing():
            from peft import LoraConfig, inject_adapter_in_model

        # Layers have a number in their names; the output head has none.
        linear = [name for name, module in model.named_modules() if type(module) is nn.Linear]
        names = [name for name in linear if any(part.isdigit() for part in name.split("."))]
        config = LoraConfig(r=lora.rank, lora_alpha=lora.alpha, target_modules=names)
        model.requires_grad_(False)
        with torch.random.fork_rng(devices=[]):  # in host memory, so that all machines draw the same numbers
            torch.manual_seed(lora.seed)
            inject_adapter_in_model(config, model, adapter_name=_ADAPTER)
        self.model, self.layers = model, {name: model.get_submodule(name) for name in names}

    def merged(self, gather: Callable[..., AbstractContextManager[Any]]) -> Iterator[tuple[str, Tensor]]:
        """Yield the model's own parameters with the adapters merged, by their names in the model's files.

        ``gather`` returns a context in which ZeRO-3 has gathered the given parameters.
        """
        for name, parameter in self.model.named_parameters():
            if ".lora_A." in name or ".lora_B." in name:
                continue
            layer, wrapped_part, parameter_name = name.rpartition(f"{_WRAPPED}.")
            has_adapter = wrapped_part and parameter_name == "weight"
            factors = self._factors(layer) if has_adapter else []
            with gather(parameter, *factors):
                value = parameter.detach()
                yield name.replace(_WRAPPED, ""), self._merged_weight(layer) if has_adapter else value

    @torch.no_grad()
    def remove(self) -> None:
        """Merge the adapters into the model's own weights, and remove the adapters."""
        for name, layer in self.layers.items():
            layer.base_layer.weight.copy_(self._merged_weight(name))
            self.model.set_submodule(name, layer.base_layer)

    def without_adapters(self, policy: Any) -> Callable[..., Tensor]:
        """Return a function that calls ``policy`` with the adapters disabled."""

        def compute(*inputs: Any) -> Tensor:
            scaling = {name: layer.scaling[_ADAPTER] for name, layer in self.layers.items()}
            try:
                for layer in self.layers.values():
                    layer.scaling[_ADAPTER] = 0.0
                out: Tensor = policy(*inputs)
                return out
            finally:
                for name, layer in self.layers.items():
                    layer.scaling[_ADAPTER] = scaling[name]

        return compute

    def _factors(self, name: str) -> list[nn.Parameter]:
        """Return the matrices A and B of a layer."""
        return [factor[_ADAPTER].weight for factor in (self.layers[name].lora_A, self.layers[name].lora_B)]

    def _merged_weight(self, name: str) -> Tensor:
        """Return the merged weight W + (α / r) B A of a layer, rounded once from float32 to the type of W."""
        layer, (a, b) = self.layers[name], (factor.detach().float() for factor in self._factors(name))
        weight = layer.base_layer.weight.detach()
        return torch.addmm(weight.float(), b, a, alpha=layer.scaling[_ADAPTER]).to(weight.dtype)
