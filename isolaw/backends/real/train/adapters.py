"""LoRA's adapters in a model (peft): what is trained in place of its weights, and the sum of both.

The sampler draws from merged weights, W + (α / r) B A in float32, rounded once to the type of W. They are
made one matrix at a time on the way to the sampler; W itself stays as it is, so nothing adds up over steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from isolaw.backends.real import environment
from isolaw.backends.real.algorithms.lora import LoRA
from isolaw.errors import RunError

_NAME = "default"  # peft's of the only adapter
_WITHIN = ".base_layer"  # in the names of weights that peft has wrapped


class Adapters:
    """The adapters of a model, which gets them here; its own parameters are frozen."""

    def __init__(self, model: Any, lora: LoRA) -> None:
        with environment.importing():
            from peft import LoraConfig, inject_adapter_in_model

        names = lora.chosen(name for name, module in model.named_modules() if type(module) is nn.Linear)
        if not names:
            raise RunError(f"recipe.lora_targets: no linear layer of {type(model).__name__} has such a name")
        config = LoraConfig(r=lora.rank, lora_alpha=lora.alpha, target_modules=names)
        model.requires_grad_(False)
        with torch.random.fork_rng(devices=[]):  # in host memory: the same on every machine
            torch.manual_seed(lora.seed)
            inject_adapter_in_model(config, model, adapter_name=_NAME)
        self.layers: dict[str, Any] = {name: model.get_submodule(name) for name in names}

    def parts(self, name: str, parameter: nn.Parameter) -> list[nn.Parameter]:
        """Return the parameters that `merged` reads for one of the model's."""
        if self._is_adapter(name):
            return []
        layer = self._layer(name)
        return (
            [parameter, *(own[_NAME].weight for own in (layer.lora_A, layer.lora_B))]
            if layer
            else [parameter]
        )

    def merged(self, name: str, parameter: nn.Parameter) -> Iterator[tuple[str, Tensor]]:
        """Yield a parameter with its adapter, under its name in the model's files; nothing for an adapter."""
        if self._is_adapter(name):
            return
        value, layer = parameter.detach(), self._layer(name)
        if layer:
            a, b = (own[_NAME].weight.detach() for own in (layer.lora_A, layer.lora_B))
            value = merge(value, a, b, layer.scaling[_NAME])
        yield name.replace(_WITHIN, ""), value

    @torch.no_grad()
    def remove(self, model: Any) -> None:
        """Merge the adapters into the model's own weights, and take them out."""
        for name, layer in self.layers.items():
            weight = layer.base_layer.weight
            _, merged = next(self.merged(f"{name}{_WITHIN}.weight", weight))
            weight.copy_(merged)
            model.set_submodule(name, layer.base_layer)

    def without(self, policy: Any) -> Callable[..., Tensor]:
        """Return a policy that computes as if there were no adapters."""

        def compute(*inputs: Any) -> Tensor:
            scaling = {name: layer.scaling[_NAME] for name, layer in self.layers.items()}
            try:
                for layer in self.layers.values():
                    layer.scaling[_NAME] = 0.0
                out: Tensor = policy(*inputs)
                return out
            finally:
                for name, layer in self.layers.items():
                    layer.scaling[_NAME] = scaling[name]

        return compute

    def _layer(self, name: str) -> Any:
        """Return the layer whose wrapped weight has that name, or None."""
        layer, found, kind = name.rpartition(f"{_WITHIN}.")
        return self.layers[layer] if found and kind == "weight" else None

    def _is_adapter(self, name: str) -> bool:
        return ".lora_A." in name or ".lora_B." in name


def merge(weight: Tensor, a: Tensor, b: Tensor, scaling: float) -> Tensor:
    """Return W + s B A, computed in float32 and rounded once to the type of W."""
    return torch.addmm(weight.float(), b.float(), a.float(), alpha=scaling).to(weight.dtype)
