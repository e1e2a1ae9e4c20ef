"""Samplers: where rollouts come from.

`VLLMSampler` is vLLM in the training process; `TransformersSampler` is plain, slow and obviously right:
the reference in the tests, and what is used where vLLM is not installed. Both return, for every sampled
token, its log-probability under the distribution it was drawn from: softmax(logits / temperature), cut to
``top_p``. Each rollout has a seed of its own, so what is drawn depends on neither batch nor order.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
import torch.distributed as dist
from safetensors import safe_open

from isolaw.backends.real import environment

Weights = Iterable[tuple[str, torch.Tensor]]
_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"


@dataclass(frozen=True)
class Rollouts:
    """Sampled responses, n rows for each prompt, those of one prompt together.

    Attributes
    ----------
    prompts, tokens
        token ids of each row's prompt and response; the end-of-sequence token is part of the response.
    logprobs
        log-probability of each response token under the sampler's distribution.
    finished
        False where a response was cut at ``max_tokens``.
    """

    prompts: list[list[int]]
    tokens: list[list[int]]
    logprobs: list[list[float]]
    finished: list[bool]

    def __len__(self) -> int:
        return len(self.tokens)

    def rows(self, index: Sequence[int]) -> Rollouts:
        """Return some of the rows."""
        return Rollouts(
            [self.prompts[i] for i in index],
            [self.tokens[i] for i in index],
            [self.logprobs[i] for i in index],
            [self.finished[i] for i in index],
        )


class Sampler(Protocol):
    """What draws rollouts from the current weights."""

    def generate(
        self,
        prompts: Sequence[list[int]],
        seeds: Sequence[Sequence[int]],
        *,
        temperature: float,
        top_p: float,
        max_tokens: int,
    ) -> Rollouts:
        """Draw ``len(seeds[i])`` rollouts for prompt i, one from each seed."""
        ...

    def load(self, weights: Weights) -> None:
        """Take over the trainer's weights, by their names in the checkpoint format."""
        ...

    def sleep(self) -> None:
        """Give the device's memory to the trainer until the next `load` or `generate`."""
        ...

    def close(self) -> None:
        """Release everything; nothing is drawn any more."""
        ...


class VLLMSampler:
    """vLLM in this process; eager, without prefix caching, log-probabilities after temperature and top_p."""

    def __init__(
        self,
        model: str,
        *,
        dtype: str,
        max_model_tokens: int,
        tensor_parallel: int = 1,
        processes: int = 1,
        gpu_memory: float = 0.4,
    ) -> None:
        environment.prepare()
        from vllm import LLM

        _guard_dispatcher()
        self.on_gpu = environment.gpus() > 0
        self.asleep: set[str] = set()
        options: dict[str, Any] = {}
        if self.on_gpu:
            options = {"gpu_memory_utilization": gpu_memory, "enable_sleep_mode": True}
        if tensor_parallel > 1:
            options |= {
                "tensor_parallel_size": tensor_parallel,
                "distributed_executor_backend": "external_launcher",
            }
            if processes > tensor_parallel:
                options["data_parallel_size"] = processes // tensor_parallel
        arguments = {
            "dtype": dtype,
            "max_model_len": max_model_tokens,
            "enforce_eager": not self.on_gpu,
            "logprobs_mode": "processed_logprobs",
            "enable_prefix_caching": False,
            "seed": 0,
            **options,
        }
        # With tied embeddings vLLM's reload leaves the output head stale: it is untied there, and
        # both halves are always loaded.
        self.tied = is_tied(model)
        if self.tied:
            arguments |= {"hf_overrides": {"tie_word_embeddings": False}, "load_format": "dummy"}
        if tensor_parallel > 1:
            self.llm = LLM(model, **arguments)
        else:
            with environment.single_process():
                self.llm = LLM(model, **arguments)
        if self.tied:
            self.load(stored_weights(model))

    def generate(
        self,
        prompts: Sequence[list[int]],
        seeds: Sequence[Sequence[int]],
        *,
        temperature: float,
        top_p: float,
        max_tokens: int,
    ) -> Rollouts:
        """Draw rollouts: one request for each, with its own seed."""
        from vllm import SamplingParams, TokensPrompt

        self._wake()
        common = SamplingParams(
            temperature=temperature,
            top_p=top_p,
            max_tokens=max_tokens,
            seed=0,  # of each copy its own
            logprobs=0,
            flat_logprobs=True,
            detokenize=False,
            skip_clone=True,  # shallow copies will do, here and in vLLM
        )
        requests, parameters, rows = [], [], []
        for prompt, own in zip(prompts, seeds, strict=True):
            for seed in own:
                rows.append(list(prompt))
                requests.append(TokensPrompt(prompt_token_ids=list(prompt)))
                parameters.append(common.clone())
                parameters[-1].seed = int(seed)
        outputs = [request.outputs[0] for request in self.llm.generate(requests, parameters, use_tqdm=False)]
        tokens = [list(output.token_ids) for output in outputs]
        logprobs = [list(output.logprobs.logprobs) for output in outputs]  # of the tokens drawn alone
        return Rollouts(rows, tokens, logprobs, [o.finish_reason != "length" for o in outputs])

    def load(self, weights: Weights) -> None:
        """Hand the weights over in place (vLLM's ``reload_weights``)."""
        if self.tied:
            weights = _untied(weights)
        self._wake("weights")
        self.llm.collective_rpc("reload_weights", kwargs={"weights_iterator": weights})

    def sleep(self) -> None:
        """Move the weights to host memory and drop the cache (GPUs only)."""
        if self.on_gpu and not self.asleep:
            self.llm.sleep(level=1)
            self.asleep = {"weights", "kv_cache"}

    def _wake(self, *parts: str) -> None:
        """Bring parts back, or all: the weights alone before a sync, so that both copies fit."""
        if waking := self.asleep & set(parts or self.asleep):
            self.llm.wake_up(tags=sorted(waking))
            self.asleep -= waking

    def close(self) -> None:
        """End vLLM, but not the process's default group with it: that is DeepSpeed's too."""
        destroy = dist.destroy_process_group
        dist.destroy_process_group = lambda group=None: None if group is None else destroy(group)
        try:
            self.llm.llm_engine.engine_core.shutdown()
        finally:
            dist.destroy_process_group = destroy
        del self.llm


def _guard_dispatcher() -> None:
    """Let vLLM's search for kernels pass over objects of other libraries.

    vLLM 0.32 on CPUs looks at ``vars(x)`` of everything in every module, and fails on llvmlite's (once numba
    has been used), where that is no mapping.
    """
    with contextlib.suppress(ImportError):
        from vllm.triton_utils import dispatcher

        def safe(value: Any) -> Mapping[str, Any]:
            found = vars(value)
            return found if isinstance(found, Mapping) else {}

        dispatcher.vars = safe


def is_tied(model: str) -> bool:
    """Return whether a model's output head is its input embedding."""
    config = json.loads((Path(model) / "config.json").read_text(encoding="utf-8"))
    return bool(config.get("tie_word_embeddings", False))


def stored_weights(model: str) -> Weights:
    """Yield the weights of a model's folder."""
    for path in sorted(Path(model).glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118  (not a dictionary)
                yield name, file.get_tensor(name)


def _untied(weights: Weights) -> Weights:
    for name, tensor in weights:
        if name == _HEAD:
            continue
        yield name, tensor
        if name == _EMBEDDING:
            yield _HEAD, tensor


class TransformersSampler:
    """A plain sampling loop over a `transformers` model, with its key-value cache."""

    def __init__(self, model: str, *, dtype: str) -> None:
        from transformers import AutoModelForCausalLM

        self.device = torch.device("cuda" if environment.gpus() else "cpu")
        loaded = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype))
        self.model = loaded.to(self.device).eval()
        stop = self.model.generation_config.eos_token_id
        self.stop = torch.tensor(stop if isinstance(stop, list) else [stop], device=self.device)
        self.parameters = dict(self.model.named_parameters(remove_duplicate=False))

    @torch.no_grad()
    def generate(
        self,
        prompts: Sequence[list[int]],
        seeds: Sequence[Sequence[int]],
        *,
        temperature: float,
        top_p: float,
        max_tokens: int,
    ) -> Rollouts:
        """Draw rollouts by inverting the distribution function at one uniform number a token."""
        rows = [list(prompt) for prompt, own in zip(prompts, seeds, strict=True) for _ in own]
        flat = [int(seed) for own in seeds for seed in own]
        uniform = np.stack([np.random.default_rng(seed).random(max_tokens) for seed in flat])
        u = torch.as_tensor(uniform, device=self.device)
        width = max(map(len, rows))
        ids = torch.tensor([[0] * (width - len(row)) + row for row in rows], device=self.device)
        mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows], device=self.device)
        cache, tokens, logprobs = None, [], []
        open_rows = torch.ones(len(rows), dtype=torch.bool, device=self.device)
        lengths = torch.zeros(len(rows), dtype=torch.long, device=self.device)
        for t in range(max_tokens):
            positions = (mask.cumsum(1) - 1).clamp(min=0)
            out = self.model(
                input_ids=ids,
                attention_mask=mask,
                position_ids=positions[:, -ids.shape[1] :],
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            )
            cache = out.past_key_values
            chosen, logprob = _draw(out.logits[:, -1].double() / temperature, u[:, t], top_p)
            tokens.append(chosen)
            logprobs.append(logprob)
            lengths += open_rows
            open_rows &= ~torch.isin(chosen, self.stop)
            ids = chosen[:, None]
            mask = torch.cat([mask, torch.ones_like(ids)], dim=1)
            if not bool(open_rows.any()):
                break
        drawn, drawn_logprobs = torch.stack(tokens, 1).tolist(), torch.stack(logprobs, 1).tolist()
        return Rollouts(
            rows,
            [row[:k] for row, k in zip(drawn, lengths.tolist(), strict=True)],
            [row[:k] for row, k in zip(drawn_logprobs, lengths.tolist(), strict=True)],
            (~open_rows).tolist(),
        )

    @torch.no_grad()
    def load(self, weights: Weights) -> None:
        """Copy the weights."""
        for name, tensor in weights:
            self.parameters[name].copy_(tensor)

    def sleep(self) -> None:
        """Nothing: the reference keeps its memory."""

    def close(self) -> None:
        """Nothing that Python would not do."""


def _draw(logits: torch.Tensor, u: torch.Tensor, top_p: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw a token of each row, and its log-probability: rows by falling probability, cut at ``top_p``."""
    p, order = torch.sort(torch.softmax(logits, -1), dim=-1, descending=True, stable=True)
    p = torch.where(p.cumsum(-1) - p < top_p, p, 0.0)  # the first token beyond top_p still counts
    p = p / p.sum(-1, keepdim=True)
    index = (p.cumsum(-1) < u[:, None]).sum(-1, keepdim=True)
    index = torch.minimum(index, (p > 0).sum(-1, keepdim=True) - 1)  # rounding of the last cumulative sum
    return order.gather(-1, index)[:, 0], p.gather(-1, index).log()[:, 0]


_opened: dict[tuple[Any, ...], Sampler] = {}


def open_sampler(
    kind: str,
    model: str,
    dtype: str,
    max_model_tokens: int,
    tensor_parallel: int = 1,
    processes: int = 1,
    gpu_memory: float = 0.4,
) -> Sampler:
    """Return the sampler ``kind`` (``vllm``, ``transformers``); the next run of the same model reuses it."""
    key = (kind, model, dtype, max_model_tokens, tensor_parallel, processes, gpu_memory)
    if key not in _opened:
        close_samplers()  # first: vLLM's parts find each other through globals of the process
        if kind == "transformers":
            _opened[key] = TransformersSampler(model, dtype=dtype)
        else:
            _opened[key] = VLLMSampler(
                model,
                dtype=dtype,
                max_model_tokens=max_model_tokens,
                tensor_parallel=tensor_parallel,
                processes=processes,
                gpu_memory=gpu_memory,
            )
    return _opened[key]


def close_samplers() -> None:
    """Close what `open_sampler` keeps."""
    while _opened:
        _opened.popitem()[1].close()
