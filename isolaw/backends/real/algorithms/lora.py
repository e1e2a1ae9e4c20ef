"""Count the parameters of LoRA adapters on all linear layers; `train.adapters` adds them.

    y = W x + (α / r) B A x,    A (r, inputs), B (outputs, r), W frozen      (arXiv 2106.09685, eq. 3)

Here x and y are a layer's input and output, r is the rank, and α is a scale. A is initialised as in the
paper's code (Kaiming, from the run's seed) and B as 0, so training starts at the base model. α is 32 by
default for any r, because the best lr then hardly depends on r ("LoRA Without Regret",
https://thinkingmachines.ai/blog/lora). In the same study, the best lr for LoRA is ten times the best lr for
full fine-tuning. Adapters on all linear layers work better than adapters on attention layers only. Importing
this module does not load torch.
"""

from __future__ import annotations

from dataclasses import dataclass

from isolaw import commands
from isolaw.backends.real import environment, models
from isolaw.config import Recipe
from isolaw.errors import Issue

ALPHA = 32.0
_PACKAGES = ("peft", "accelerate")


@dataclass(frozen=True)
class LoRA:
    """The LoRA adapters of a run, on all linear layers but the output head."""

    rank: int
    alpha: float = ALPHA
    seed: int = 0

    @classmethod
    def of(cls, recipe: Recipe, seed: int = 0) -> LoRA | None:
        """Return the adapters of a recipe, or None for full fine-tuning."""
        if recipe.lora_rank is None:
            return None
        return cls(recipe.lora_rank, recipe.lora_alpha or ALPHA, seed)

    def parameter_count(self, model: str) -> int:
        """Return the number of adapter parameters for the model in the folder ``model``."""
        decoder = models.decoder(model)
        return decoder.layers * sum(decoder.adapter_sizes(self.rank))


def package_issues(recipe: Recipe) -> list[Issue]:
    """Return an issue if LoRA needs packages that are not installed."""
    names = [name for name in _PACKAGES if recipe.lora_rank is not None and not environment.installed(name)]
    note = f"needs {' and '.join(names)}; `{commands.install('--no-deps', *names)}` installs it"
    return [Issue("recipe.lora_rank", note)] if names else []


def issues(recipe: Recipe, model: str) -> list[Issue]:
    """Return an issue if LoRA's rank is above the full rank of every layer."""
    if recipe.lora_rank is None:
        return []
    full_rank = max(map(min, models.decoder(model).linear.values()))
    if recipe.lora_rank <= full_rank:
        return []
    note = f"larger than the full rank of any layer of {model}"
    return [Issue("recipe.lora_rank", note, recipe.lora_rank, f"at most {full_rank}")]


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
