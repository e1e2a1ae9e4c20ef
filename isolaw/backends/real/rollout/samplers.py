"""Define the interface of samplers, which draw rollouts, and a plain sampler.

`VLLMSampler` (`vllm_sampler`) runs vLLM in the training process. `TransformersSampler` is plain, slow and
easy to verify. It is the reference in tests, and the default if vLLM is not installed. `SamplerGroup`
(`sampler_group`) runs any number of samplers in separate processes. All samplers return each token's
log-probability under the distribution that it was drawn from: softmax(logits / temperature), truncated to
``top_p``. Each rollout has its own seed, so it depends neither on the batch nor on the order of the batch.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

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
_ALIGNMENT = 64  # bytes, in shared memory


@dataclass(frozen=True)
class Rollouts:
    """Sampled responses, with one row for each."""

    prompts: list[list[int]]  # token ids
    tokens: list[list[int]]  # token ids of the response, including its end-of-sequence token
    logprobs: list[list[float]]  # of the drawn tokens, under the sampler's distribution
    finished: list[bool]  # False for a response that was cut off at max_tokens
    # The span of the response that was inserted instead of drawn: [first, end], where end is the index after
    # its last token.
    inserted: list[list[int]] = field(default_factory=list)
    # The version of the weights that drew each token; empty if the same weights drew all tokens.
    versions: list[list[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.inserted:
            object.__setattr__(self, "inserted", [[0, 0] for _ in self.tokens])

    @property
    def lengths(self) -> list[int]:
        """Number of drawn tokens of each response."""
        rows = zip(self.tokens, self.inserted, strict=True)
        return [len(tokens) - (end - first) for tokens, (first, end) in rows]

    def __len__(self) -> int:
        return len(self.tokens)

    def __add__(self, other: Rollouts) -> Rollouts:
        return Rollouts(*(mine + vars(other)[name] for name, mine in vars(self).items()))

    def rows(self, index: Sequence[int]) -> Rollouts:
        """Return the rollouts with the given row indices."""
        return Rollouts(*([values[i] for i in index] if values else [] for values in vars(self).values()))


class Sampler(Protocol):
    """Protocol of a sampler, which draws rollouts with its current weights."""

    # Whether `load` must be called before the next draw. This is True if the sampler has dropped its weights,
    # or if the trainer's weights have changed, in which case the training loop sets it.
    needs_weights: bool

    def generate(
        self, prompts: Prompts, seeds: Seeds, *, temperature: float, top_p: float, max_tokens: Limits
    ) -> Rollouts:
        """Return ``len(seeds[i])`` rollouts for prompt i, one for each seed.

        ``max_tokens`` is one limit for all rollouts, or a list with the limit of each rollout, in the order
        of the result.
        """

    def load(self, weights: Weights) -> None:
        """Adopt the trainer's weights, given by their names in the checkpoint format."""

    def sleep(self) -> None:
        """Release the sampler's GPU memory, if it uses any, until the next `load`."""
        return

    def close(self) -> None:
        """Release all resources that Python's garbage collector would not release."""
        return


def parameter_names(model: str) -> frozenset[str]:
    """Return the names of the weights that a trainer passes to a sampler; tied weights have one name."""
    with environment.importing():
        from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        config = AutoConfig.from_pretrained(model, trust_remote_code=False)
        shapes = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    return frozenset(name for name, _ in shapes.named_parameters())


def recording(weights: Weights, names: set[str]) -> Weights:
    """Yield the weights unchanged, and add their names to ``names``."""
    for name, tensor in weights:
        names.add(name)
        yield name, tensor


def check_complete(missing: Iterable[str], sender: str) -> None:
    """Raise `RunError` if ``sender`` omitted weights, because the sampler would draw with stale weights.

    For many updates, the effect of stale weights on log-probabilities can be as small as rounding.
    """
    if names := sorted(missing):
        others = f" and {len(names) - 3} more" if len(names) > 3 else ""
        omitted = f"{', '.join(names[:3])}{others}"
        raise RunError(f"the sampler would sample with stale weights: {sender} left out {omitted}")


def stored_weights(model: str) -> Weights:
    """Yield the names and tensors of the weights in a model's folder."""
    for path in sorted(Path(model).glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118  (not a dictionary)
                yield name, file.get_tensor(name)


class TransformersSampler(Sampler):
    """A plain sampling loop over a `transformers` model with a key-value cache."""

    def __init__(
        self, model: str, *, dtype: str, float32_head: bool = False, stop: Sequence[int] = ()
    ) -> None:
        from transformers import AutoModelForCausalLM

        self.needs_weights = False
        self.device = torch.device("cuda" if environment.gpus() else "cpu")
        loaded = AutoModelForCausalLM.from_pretrained(
            model, dtype=getattr(torch, dtype), trust_remote_code=False
        )
        self.model = loaded.to(self.device).eval()
        head.chunked(self.model.get_output_embeddings(), float32=float32_head)
        eos = self.model.generation_config.eos_token_id
        ends = [*(eos if isinstance(eos, list) else [eos]), *stop]
        self.stop = torch.tensor(ends, device=self.device)
        self.parameters = dict(self.model.named_parameters(remove_duplicate=False))
        self.weight_names = parameter_names(model)

    @torch.no_grad()
    def generate(
        self, prompts: Prompts, seeds: Seeds, *, temperature: float, top_p: float, max_tokens: Limits
    ) -> Rollouts:
        """Draw each token by inverting its cumulative distribution at one uniform number.

        Rollouts with the same prompt and the same tokens so far share one row of the model's batch, because
        their next token has the same distribution. The rollouts of a problem start as one row.
        """
        rows = [list(prompt) for prompt, seed in zip(prompts, seeds, strict=True) for _ in seed]
        row_limits = torch.tensor(token_limits(max_tokens, len(rows)), device=self.device)
        longest = int(row_limits.max())
        numbers = [np.random.default_rng(int(seed)).random(longest) for group in seeds for seed in group]
        u = torch.as_tensor(np.stack(numbers), device=self.device)
        texts: dict[tuple[int, ...], int] = {}  # distinct prompts and their rows in the batch
        # The indices of unfinished rollouts, and for each of them the batch row with its text so far.
        active = torch.arange(len(rows), device=self.device)
        row_of = torch.tensor([texts.setdefault(tuple(row), len(texts)) for row in rows], device=self.device)
        width = max(map(len, texts))
        ids = torch.tensor([[0] * (width - len(row)) + list(row) for row in texts], device=self.device)
        mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in texts], device=self.device)
        tokens = torch.zeros(u.shape, dtype=torch.long, device=self.device)
        logprobs = torch.zeros_like(u)
        finished = torch.zeros(len(rows), dtype=torch.bool, device=self.device)
        lengths = torch.zeros(len(rows), dtype=torch.long, device=self.device)
        cache = None
        for t in range(longest):
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
            drawn, logprobs[active, t] = _draw(logits / temperature, u[active, t], top_p, row_of)
            tokens[active, t] = drawn
            lengths[active] += 1
            ended = torch.isin(drawn, self.stop)
            finished[active] = ended
            continues = ~ended & (lengths[active] < row_limits[active])
            active = active[continues]
            if not len(active):
                break
            branches = row_of[continues] * logits.shape[1] + drawn[continues]
            branches, row_of = torch.unique(branches, return_inverse=True)
            parent_rows = branches // logits.shape[1]
            cache.reorder_cache(parent_rows)
            ids = (branches % logits.shape[1])[:, None]
            mask = torch.cat([mask[parent_rows], torch.ones_like(ids)], dim=1)
        responses, response_logprobs = (
            [row[:k] for row, k in zip(values.tolist(), lengths.tolist(), strict=True)]
            for values in (tokens, logprobs)
        )
        return Rollouts(rows, responses, response_logprobs, finished.tolist())

    @torch.no_grad()
    def load(self, weights: Weights) -> None:
        """Copy the weights into the model; raise `RunError` if any is missing."""
        sent: set[str] = set()
        for name, tensor in recording(weights, sent):
            self.parameters[name].copy_(tensor)
        check_complete(self.weight_names - sent, "the trainer")
        self.needs_weights = False


def token_limits(max_tokens: Limits, rows: int) -> list[int]:
    """Return the maximum number of tokens of each row.

    >>> token_limits(5, 2)
    [5, 5]
    """
    return [max_tokens] * rows if isinstance(max_tokens, int) else list(max_tokens)


def _draw(
    logits: torch.Tensor, u: torch.Tensor, top_p: float, row_of: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a token for each uniform number in ``u``, and its log-probability.

    Tokens are sorted by falling probability and truncated at ``top_p``. ``row_of`` is the row of
    ``logits`` for each number in ``u``.
    """
    p, order = torch.sort(torch.softmax(logits, -1), dim=-1, descending=True, stable=True)
    p = torch.where(p.cumsum(-1) - p < top_p, p, 0.0)  # keep the token that first exceeds top_p
    p = p / p.sum(-1, keepdim=True)
    index = torch.searchsorted(p.cumsum(-1)[row_of], u[:, None])
    index = torch.minimum(index, (p > 0).sum(-1)[row_of, None] - 1)  # the last cumulative sum can be below 1
    return order[row_of, index[:, 0]], p[row_of, index[:, 0]].log()


@dataclass(frozen=True)
class SamplerSettings:
    """Settings of a sampler; the plain sampler uses ``model``, ``dtype``, ``float32_head`` and ``stop``."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "stop", tuple(self.stop))  # a list if it comes from JSON

    kind: str  # vllm or transformers
    model: str
    dtype: str
    max_model_tokens: int  # maximum tokens of prompt and response together
    float32_head: bool = False
    gpu_memory: float = 0.4  # fraction of the GPU's memory for weights and KV cache
    # Number of sampler processes of this rank, each with its own GPU if there are GPUs. None: the rank
    # samples in its own process.
    processes: int | None = None
    timeout_hours: float = 4.0  # maximum silence of a sampler process
    stop: tuple[int, ...] = ()  # tokens that end a response, in addition to the model's own
    streams: bool = False  # adopts weights while it draws (`sampler_process`), and has a GPU of its own


sampler_of: dict[SamplerSettings, Sampler] = {}  # samplers that `sampler_group.open_sampler` has opened


def forget(sampler: Sampler) -> None:
    """Remove a sampler that has ended from `sampler_of`, so that `open_sampler` opens a new one."""
    for settings in [key for key, other in sampler_of.items() if other is sampler]:
        del sampler_of[settings]


def import_sampler(kind: str) -> None:
    """Import the libraries of a kind of sampler before a trainer is created (`environment.importing`)."""
    if kind == "vllm":
        with environment.importing():
            from vllm import LLM  # noqa: F401


def close_samplers() -> None:
    """Close all open samplers."""
    while sampler_of:
        sampler_of.popitem()[1].close()


class SharedWeights:
    """Weights that trainer and samplers share through the file with this ``descriptor``.

    The file has no name (`os.memfd_create`): the kernel frees it when all processes have ended. The trainer
    writes a version of the weights, and each sampler copies it. Before it writes the next version, the
    trainer waits until all samplers report their copies (`sampler_group`). Samplers therefore never read a
    partly written version.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._memory: mmap.mmap | None = None

    def write(self, weights: Weights) -> list[dict[str, Any]]:
        """Copy weights into the file one by one; return the position of each, in JSON types, for `read`."""
        positions, end = [], 0
        for name, tensor in weights:
            dtype = str(tensor.dtype).removeprefix("torch.")
            positions.append({"name": name, "dtype": dtype, "shape": list(tensor.shape), "offset": end})
            unwritten = memoryview(tensor.contiguous().cpu().reshape(-1).view(torch.uint8).numpy())
            offset, end = end, end + -(-len(unwritten) // _ALIGNMENT) * _ALIGNMENT
            while unwritten:  # one call writes at most 2 GiB
                written = os.pwrite(self.descriptor, unwritten, offset)
                unwritten, offset = unwritten[written:], offset + written
        os.ftruncate(self.descriptor, end)
        return positions

    def read(self, positions: list[dict[str, Any]]) -> Weights:
        """Yield the tensors that `write` stored; they share the memory of the file."""
        if self._memory is None or len(self._memory) != os.fstat(self.descriptor).st_size:
            self._memory = mmap.mmap(self.descriptor, 0)
        for position in positions:
            shape, dtype = torch.Size(position["shape"]), getattr(torch, position["dtype"])
            flat = torch.frombuffer(self._memory, dtype=dtype, count=shape.numel(), offset=position["offset"])
            yield position["name"], flat.view(shape)
