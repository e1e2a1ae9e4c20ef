"""Samplers, which draw rollouts.

`VLLMSampler` (`vllm_sampler`) is vLLM in the training process. `TransformersSampler` is plain, slow and easy
to verify: the tests' reference, and the sampler where vLLM is not installed. `SamplerGroup` (`sampler_group`)
is any number of them in processes of their own. All return each token's log-probability under the
distribution it was drawn from: softmax(logits / temperature), cut to ``top_p``. Each rollout has a seed
of its own, so that it depends neither on the batch nor on its order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from safetensors import safe_open

from isolaw.backends.real import environment
from isolaw.backends.real.train import head
from isolaw.errors import RunError

Weights = Iterable[tuple[str, torch.Tensor]]
Prompts = Sequence[list[int]]
Seeds = Sequence[Sequence[int]]
Limits = int | Sequence[int]


@dataclass(frozen=True)
class Rollouts:
    """Sampled responses, a row each."""

    prompts: list[list[int]]  # token ids
    tokens: list[list[int]]  # of the response, its end-of-sequence token included
    logprobs: list[list[float]]  # of the response's drawn tokens, under the sampler's distribution
    finished: list[bool]  # False for a response that was cut at max_tokens
    # Which of the response's tokens were not drawn but inserted: the first of each span and the one after its
    # last, [first, end, first, end, …].
    inserted: list[list[int]] = field(default_factory=list)
    # The version of the weights that drew each token; no rows where the same weights drew all of them.
    versions: list[list[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.inserted:
            object.__setattr__(self, "inserted", [[0, 0] for _ in self.tokens])

    @property
    def lengths(self) -> list[int]:
        """Return the number of drawn tokens of each response."""
        spans = zip(self.tokens, self.inserted, strict=True)
        return [len(own) + sum(places[::2]) - sum(places[1::2]) for own, places in spans]

    def __len__(self) -> int:
        return len(self.tokens)

    def __add__(self, other: Rollouts) -> Rollouts:
        return Rollouts(*(mine + vars(other)[name] for name, mine in vars(self).items()))

    def rows(self, index: Sequence[int]) -> Rollouts:
        """Return the rows with these indices."""
        return Rollouts(*([values[i] for i in index] if values else [] for values in vars(self).values()))


class Sampler(Protocol):
    """Draws rollouts from the current weights."""

    # Whether it must `load` before it draws: it has dropped its weights, or the trainer's have changed (then
    # the training loop sets this).
    needs_weights: bool

    def generate(
        self, prompts: Prompts, seeds: Seeds, *, temperature: float, top_p: float, max_tokens: Limits
    ) -> Rollouts:
        """Draw ``len(seeds[i])`` rollouts for prompt i, one from each seed.

        ``max_tokens`` is one limit for all rollouts, or a limit for each in the order of the result.
        """

    def load(self, weights: Weights) -> None:
        """Take over the trainer's weights, by their names in the checkpoint format."""

    def sleep(self) -> None:
        """Release the device's memory until the next `load`, if it has any."""
        return

    def close(self) -> None:
        """Release for good everything that Python would not."""
        return


def parameter_names(model: str) -> frozenset[str]:
    """Return the names under which a trainer hands over a model's weights, tied weights once."""
    with environment.importing():
        from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        shapes = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(model))
    return frozenset(name for name, _ in shapes.named_parameters())


def recording(weights: Weights, names: set[str]) -> Weights:
    """Yield weights and add their names to ``names``."""
    for name, tensor in weights:
        names.add(name)
        yield name, tensor


def check_complete(missing: Iterable[str], who: str) -> None:
    """Raise `RunError` if ``who`` left out weights: the sampler would draw with stale ones.

    Their effect on log-probabilities may stay within rounding for many updates.
    """
    if listed := sorted(missing):
        more = f" and {len(listed) - 3} more" if len(listed) > 3 else ""
        left = f"{', '.join(listed[:3])}{more}"
        raise RunError(f"the sampler would sample with stale weights: {who} left out {left}")


def stored_weights(model: str) -> Weights:
    """Yield the weights of a model's folder."""
    for path in sorted(Path(model).glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118  (not a dictionary)
                yield name, file.get_tensor(name)


class TransformersSampler(Sampler):
    """A plain sampling loop over a `transformers` model, with its key-value cache."""

    def __init__(self, model: str, *, dtype: str, float32_head: bool = False) -> None:
        from transformers import AutoModelForCausalLM

        self.needs_weights = False
        self.device = torch.device("cuda" if environment.gpus() else "cpu")
        loaded = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype))
        self.model = loaded.to(self.device).eval()
        head.chunked(self.model.get_output_embeddings(), float32=float32_head)
        stop = self.model.generation_config.eos_token_id
        self.stop = torch.tensor(stop if isinstance(stop, list) else [stop], device=self.device)
        self.parameters = dict(self.model.named_parameters(remove_duplicate=False))
        self.names = parameter_names(model)

    @torch.no_grad()
    def generate(
        self, prompts: Prompts, seeds: Seeds, *, temperature: float, top_p: float, max_tokens: Limits
    ) -> Rollouts:
        """Draw rollouts by inverting the distribution function at one uniform number a token.

        Rollouts that have the same prompt and the same tokens so far share one row of the model's batch:
        their next token has one distribution. The rollouts of a problem start as one row.
        """
        rows = [list(prompt) for prompt, own in zip(prompts, seeds, strict=True) for _ in own]
        limit = torch.tensor(limits(max_tokens, len(rows)), device=self.device)
        most = int(limit.max())
        uniform = [np.random.default_rng(int(seed)).random(most) for own in seeds for seed in own]
        u = torch.as_tensor(np.stack(uniform), device=self.device)
        number: dict[tuple[int, ...], int] = {}
        # Which rollouts still draw, and the place of each one's text so far in the batch.
        active = torch.arange(len(rows), device=self.device)
        at = torch.tensor([number.setdefault(tuple(row), len(number)) for row in rows], device=self.device)
        width = max(map(len, number))
        ids = torch.tensor([[0] * (width - len(row)) + list(row) for row in number], device=self.device)
        mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in number], device=self.device)
        tokens = torch.zeros(u.shape, dtype=torch.long, device=self.device)
        logprobs = torch.zeros_like(u)
        finished = torch.zeros(len(rows), dtype=torch.bool, device=self.device)
        lengths = torch.zeros(len(rows), dtype=torch.long, device=self.device)
        cache = None
        for t in range(most):
            positions = (mask.cumsum(1) - 1).clamp(min=0)
            out = self.model(
                input_ids=ids,
                attention_mask=mask,
                position_ids=positions[:, -ids.shape[1] :],
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            )
            cache, logits = out.past_key_values, out.logits[:, -1].double()
            chosen, logprobs[active, t] = _draw(logits / temperature, u[active, t], top_p, at)
            tokens[active, t] = chosen
            lengths[active] += 1
            ended = torch.isin(chosen, self.stop)
            finished[active] = ended
            going = ~ended & (lengths[active] < limit[active])
            active = active[going]
            if not len(active):
                break
            texts, at = torch.unique(at[going] * logits.shape[1] + chosen[going], return_inverse=True)
            before = texts // logits.shape[1]
            cache.reorder_cache(before)
            ids = (texts % logits.shape[1])[:, None]
            mask = torch.cat([mask[before], torch.ones_like(ids)], dim=1)
        kept, log_kept = (
            [row[:k] for row, k in zip(values.tolist(), lengths.tolist(), strict=True)]
            for values in (tokens, logprobs)
        )
        return Rollouts(rows, kept, log_kept, finished.tolist())

    @torch.no_grad()
    def load(self, weights: Weights) -> None:
        """Copy the weights."""
        sent: set[str] = set()
        for name, tensor in recording(weights, sent):
            self.parameters[name].copy_(tensor)
        check_complete(self.names - sent, "the trainer")
        self.needs_weights = False


def limits(max_tokens: Limits, rows: int) -> list[int]:
    """Return the limit of each row.

    >>> limits(5, 2)
    [5, 5]
    """
    return [max_tokens] * rows if isinstance(max_tokens, int) else list(max_tokens)


def _draw(
    logits: torch.Tensor, u: torch.Tensor, top_p: float, at: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a token for each of ``u``, by falling probability cut at ``top_p``, and its log-probability.

    ``at`` is the row of ``logits`` that each of ``u`` draws from.
    """
    p, order = torch.sort(torch.softmax(logits, -1), dim=-1, descending=True, stable=True)
    p = torch.where(p.cumsum(-1) - p < top_p, p, 0.0)  # the first token beyond top_p still counts
    p = p / p.sum(-1, keepdim=True)
    index = torch.searchsorted(p.cumsum(-1)[at], u[:, None])
    index = torch.minimum(index, (p > 0).sum(-1)[at, None] - 1)  # rounding of the last cumulative sum
    return order[at, index[:, 0]], p[at, index[:, 0]].log()


@dataclass(frozen=True)
class SamplerSettings:
    """The settings of a sampler; the plain one uses model, dtype and head."""

    kind: str  # vllm or transformers
    model: str
    dtype: str
    max_model_tokens: int  # of the longest prompt and response together
    float32_head: bool = False
    tensor_parallel: int = 1  # consecutive ranks that share a model, each with one GPU
    gpu_memory: float = 0.4  # share of the GPU for weights and KV cache
    # Processes of this rank that only sample, each with a GPU of its own if there are GPUs; None: it samples
    # itself.
    processes: int | None = None
    timeout_hours: float = 4.0  # limit of such a process's silence
    streams: bool = False  # takes weights while it draws (`streaming`), and has its GPU to itself


opened: dict[SamplerSettings, Sampler] = {}  # by `opening.open_sampler`


def forget(sampler: Sampler) -> None:
    """Forget the open sampler, which has ended, so that the next call opens a new one."""
    for settings in [key for key, own in opened.items() if own is sampler]:
        del opened[settings]


def import_sampler(kind: str) -> None:
    """Import the libraries of a kind of sampler, before a trainer exists (`environment.importing`)."""
    if kind == "vllm":
        with environment.importing():
            from vllm import LLM  # noqa: F401


def close_samplers() -> None:
    """Close all open samplers."""
    while opened:
        opened.popitem()[1].close()
