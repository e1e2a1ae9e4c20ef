"""Choose the layers that get LoRA adapters, and count the adapters' parameters; `train.adapters` adds them.

    y = W x + (α / r) B A x,    A (r, inputs), B (outputs, r), W frozen      (arXiv 2106.09685, eq. 3)

Here x and y are a layer's input and output, r is the rank, and α is a scale. A is initialised as in the
paper's code (Kaiming, from the run's seed) and B as 0, so training starts at the base model. α is 32 by
default for any r, because the best lr then hardly depends on r ("LoRA Without Regret",
https://thinkingmachines.ai/blog/lora). In the same study, the best lr for LoRA is ten times the best lr for
full fine-tuning. Adapters on all layers work better than adapters on attention layers only. Importing this
module does not load torch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from isolaw import commands
from isolaw.backends.real import environment, models
from isolaw.backends.real.train.memory.decoder import Decoder
from isolaw.config import Recipe
from isolaw.errors import Issue, nearest

ALPHA = 32.0
_PACKAGES = ("peft", "accelerate")
KEYS = ("lora_alpha", "lora_targets")  # these keys have no effect without a rank


@dataclass(frozen=True)
class LoRA:
    """The LoRA adapters of a run.

    ``targets`` are suffixes of the names of the adapted layers; None means all linear layers.
    """

    rank: int
    alpha: float = ALPHA
    targets: tuple[str, ...] | None = None
    seed: int = 0

    @classmethod
    def of(cls, recipe: Recipe, seed: int = 0) -> LoRA | None:
        """Return the adapters of a recipe, or None for full fine-tuning."""
        if recipe.lora_rank is None:
            return None
        return cls(recipe.lora_rank, recipe.lora_alpha or ALPHA, recipe.lora_targets, seed)

    def adapted(self, names: Iterable[str]) -> list[str]:
        """Return the names of the layers that get adapters.

        Only numbered layers can get adapters, which excludes the embedding and the output head.

        >>> LoRA(8, targets=("q_proj",)).adapted(["layers.0.attn.q_proj", "layers.0.attn.xq_proj", "head"])
        ['layers.0.attn.q_proj']
        """
        numbered = [name for name in names if any(part.isdigit() for part in name.split("."))]
        if self.targets is None:
            return numbered
        suffixes = tuple(f".{target}" for target in self.targets)
        return [name for name in numbered if f".{name}".endswith(suffixes)]

    def parameter_count(self, model: str) -> int:
        """Return the number of adapter parameters for the model in the folder ``model``."""
        shapes = _linear_layers(model)
        return sum(self.rank * sum(shapes[name]) for name in self.adapted(shapes))


def _linear_layers(model: str) -> dict[str, tuple[int, int]]:
    """Return the (outputs, inputs) shape of each weight matrix by name.

    The shapes are from the model's weight files or, if there are none, from its configuration.
    """
    layers = {
        name.removesuffix(".weight"): (shape[0], shape[1])
        for name, shape in models.shapes(model).items()
        if name.endswith(".weight") and len(shape) == 2
    }
    if layers or (decoder := Decoder.read(model)) is None:
        return layers
    return {
        f"layers.{k}.{name}": shape for k in range(decoder.layers) for name, shape in decoder.linear.items()
    }


def package_issues(recipe: Recipe) -> list[Issue]:
    """Return an issue if LoRA needs packages that are not installed."""
    names = [name for name in _PACKAGES if recipe.lora_rank is not None and not environment.installed(name)]
    note = f"needs {' and '.join(names)}; `{commands.install('--no-deps', *names)}` installs it"
    return [Issue("recipe.lora_rank", note)] if names else []


def issues(recipe: Recipe, model: str) -> list[Issue]:
    """Return LoRA's issues: a rank above full rank, or targets that match no layer."""
    if recipe.lora_rank is None:
        return []
    out = []
    shapes = _linear_layers(model)
    names, adapted_names = LoRA(1).adapted(shapes), LoRA(1, targets=recipe.lora_targets).adapted(shapes)
    full_rank = max((min(shapes[name]) for name in adapted_names), default=recipe.lora_rank)
    if recipe.lora_rank > full_rank:
        note = f"larger than the full rank of any layer of {model}"
        out.append(Issue("recipe.lora_rank", note, recipe.lora_rank, f"at most {full_rank}"))
    known_names = sorted({name.rpartition(".")[2] for name in names})
    for target in recipe.lora_targets or ():
        if names and not LoRA(1, targets=(target,)).adapted(names):
            note, accepted = f"no linear layer of {model} has this name", ", ".join(known_names)
            out.append(Issue("recipe.lora_targets", note, target, accepted, nearest(target, known_names)))
    return out


def notes_on_defaults(recipe: Recipe) -> list[str]:
    """Return notes on the defaults of LoRA keys that the recipe does not set.

    >>> notes_on_defaults(Recipe()), notes_on_defaults(Recipe(lora_rank=16, lora_alpha=16.0, lr=1e-5))
    ([], [])
    """
    if recipe.lora_rank is None:
        return []
    out = []
    if recipe.lora_alpha is None:
        out.append(f"recipe.lora_alpha is not set; isolaw uses {ALPHA:g} and scales adapters by alpha / rank")
    if recipe.lr is None:
        note = (
            "recipe.lr is not set; isolaw uses the lr of full fine-tuning, but LoRA usually needs a larger lr"
        )
        out.append(note)
    return out
