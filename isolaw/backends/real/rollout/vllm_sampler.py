"""Run vLLM in the training process; vLLM and the trainer use the GPU's memory alternately.

While it sleeps, vLLM keeps neither weights nor KV cache on the GPU. Sleep level 2 drops the weights, and the
trainer transfers them again before the next draw. (Level 1 would copy the weights to host memory, although
new weights replace them.) vLLM saves and restores buffers, such as RoPE's tables. To wake vLLM, isolaw frees
torch's cached memory, maps the memory of the weights, loads the weights, and maps the KV cache.

The rollouts of a problem share the KV cache of their prompt (vLLM's prefix caching, which is on by default),
and a continued response reuses the cache of its beginning. vLLM does not clear the prefix cache when weights
change, so isolaw does.

The calls were checked against the source of vLLM 0.24, 0.28, 0.32 and 0.33
(`tests/backends/real/data/signatures.json`). These calls have run with vLLM 0.32 without a GPU, and therefore
without sleep.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist

from isolaw.backends.real import environment, models
from isolaw.backends.real.rollout.samplers import (
    Limits,
    Prompts,
    Rollouts,
    SamplerSettings,
    Seeds,
    Weights,
    check_complete,
    import_sampler,
    parameter_names,
    recording,
    stored_weights,
    token_limits,
)
from isolaw.backends.real.train import process_group
from isolaw.errors import RunError

_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"


class VLLMSampler:
    """A sampler that runs vLLM in this process; its log-probabilities are after temperature and top_p.

    vLLM runs eagerly without a GPU. Raise `RunError` if the sampler's share of the GPU is too small, or if
    this version of vLLM does not support a requested float32 head.
    """

    def __init__(self, settings: SamplerSettings) -> None:
        import_sampler("vllm")
        from vllm import LLM, __version__

        _skip_unmappable_objects()
        process_group.start()  # otherwise vLLM before 0.28 starts its own, with a port open to the network
        self.on_gpu = environment.gpus() > 0
        self.asleep = self.needs_weights = False
        self.stop = settings.stop
        self.reads_cache = True  # whether the prefix cache was computed with the current weights
        arguments: dict[str, Any] = {
            "dtype": settings.dtype,
            "max_model_len": settings.max_model_tokens,
            "enforce_eager": not self.on_gpu,
            "logprobs_mode": "processed_logprobs",
            "seed": 0,
            # Weights are random until they are loaded. A missing weight is therefore detected at the first
            # comparison, even if vLLM reports the fused parameter that contains it as loaded.
            "load_format": "dummy",
        }
        if not self.on_gpu:
            # vLLM on a CPU fails if a prompt is split between two steps: it rewinds the request's generator,
            # which torch cannot do on a CPU.
            arguments |= {"enable_chunked_prefill": False}
        if self.on_gpu:
            arguments |= {"gpu_memory_utilization": settings.gpu_memory}
            arguments |= {"enable_sleep_mode": not settings.streams}
        if settings.streams:
            arguments["async_scheduling"] = False
        overrides: dict[str, Any] = {"head_dtype": "float32"} if settings.float32_head else {}
        # vLLM's reload does not update the output head of tied embeddings, so isolaw unties them in vLLM.
        self.tied = _is_tied(settings.model)
        if self.tied:
            overrides["tie_word_embeddings"] = False
        if overrides:
            arguments["hf_overrides"] = overrides
        environment.stop_freezing()
        try:
            with environment.single_process(), _collectable():
                self.llm = LLM(settings.model, **arguments)
        except ValueError as error:  # raised if the share of the GPU or the KV cache does not fit
            if "memory" not in str(error):
                raise
            raise RunError(
                f"vLLM does not start: {error} Change real.gpu_memory (the sampler's share) or "
                "recipe.max_response_tokens. To give the trainer less memory, change real.zero_stage or "
                "real.offload_optimizer"
            ) from error
        # At every reload, vLLM warns about every layer that has buffers and no weights.
        logging.getLogger("vllm.model_executor.model_loader.reload.layerwise").setLevel(logging.ERROR)
        if settings.float32_head and self.llm.model_config.head_dtype != torch.float32:
            raise RunError(f"recipe.float32_head: vLLM {__version__} ignores it; expected 0.28 or newer")
        self.weight_names = parameter_names(settings.model)
        self.llm.apply_model(_remember_loaded)
        # vLLM triggers this warning at every wake-up, when it switches the allocator.
        warnings.filterwarnings("ignore", message=".*_set_allocator_settings is deprecated")
        self._load(stored_weights(settings.model))
        # At level 2, vLLM saves buffers but no other tensors. Models with other tensors sleep at level 1.
        self.sleep_level = 1 if self.on_gpu and any(self.llm.apply_model(_other_tensors)) else 2

    def generate(
        self, prompts: Prompts, seeds: Seeds, *, temperature: float, top_p: float, max_tokens: Limits
    ) -> Rollouts:
        """Draw rollouts; each rollout is a separate vLLM request with its own seed."""
        from vllm import TokensPrompt

        if self.asleep:
            raise RuntimeError("the sampler sleeps without weights; call `load` first")
        row_prompts, parameters = self.requests(
            prompts, seeds, temperature=temperature, top_p=top_p, max_tokens=max_tokens
        )
        inputs = [TokensPrompt(prompt_token_ids=row) for row in row_prompts]
        outputs = self.llm.generate(inputs, parameters, use_tqdm=False)
        return self.rollouts(row_prompts, outputs)

    def requests(
        self, prompts: Prompts, seeds: Seeds, *, temperature: float, top_p: float, max_tokens: Limits
    ) -> tuple[list[list[int]], list[Any]]:
        """Return the prompt of each rollout, and its sampling parameters with the rollout's seed."""
        from vllm import SamplingParams

        shared = SamplingParams(
            temperature=temperature,
            top_p=top_p,
            seed=0,  # replaced in each copy
            stop_token_ids=list(self.stop) or None,
            logprobs=0,
            flat_logprobs=True,
            detokenize=False,
            skip_clone=True,  # shallow copies suffice in isolaw and in vLLM
            skip_reading_prefix_cache=not self.reads_cache,
        )
        parameters, rows = [], []
        for prompt, prompt_seeds in zip(prompts, seeds, strict=True):
            for seed in prompt_seeds:
                rows.append(list(prompt))
                parameters.append(shared.clone())
                parameters[-1].seed = int(seed)
        for parameter, limit in zip(parameters, token_limits(max_tokens, len(rows)), strict=True):
            parameter.max_tokens = limit
        return rows, parameters

    @staticmethod
    def rollouts(prompts: list[list[int]], requests: list[Any]) -> Rollouts:
        """Return the rollouts of vLLM's finished requests."""
        outputs = [request.outputs[0] for request in requests]
        tokens = [list(output.token_ids) for output in outputs]
        logprobs = [list(output.logprobs.logprobs) for output in outputs]  # drawn tokens only
        return Rollouts(prompts, tokens, logprobs, [output.finish_reason != "length" for output in outputs])

    def load(self, weights: Weights) -> None:
        """Load the weights in place with vLLM's ``reload_weights``, and wake the sampler.

        Raise `RunError` if a weight is missing, or if vLLM did not use it.
        """
        sent: set[str] = set()
        self._load(recording(weights, sent))
        check_complete(self.weight_names - sent, "the trainer")

    def _load(self, weights: Weights) -> None:
        if self.asleep:
            self._wake("weights")
        if self.tied:
            weights = _untied(weights)
        self.llm.collective_rpc("reload_weights", kwargs={"weights_iterator": weights})
        # vLLM cannot clear the prefix cache while requests are active (`sampler_process`). Later requests
        # must then not read it.
        self.reads_cache = not self.llm.llm_engine.has_unfinished_requests() and self.llm.reset_prefix_cache()
        check_complete(set().union(*self.llm.apply_model(_not_loaded)), "vLLM")
        if self.asleep:
            self._wake("kv_cache")
        self.asleep = self.needs_weights = False

    def sleep(self) -> None:
        """Release the GPU memory of weights and KV cache; do nothing without a GPU."""
        if self.on_gpu and not self.asleep:
            self.llm.sleep(level=self.sleep_level)
            self.asleep = self.needs_weights = True

    def _wake(self, tag: str) -> None:
        """Map the memory of the weights or the KV cache again.

        This first empties torch's cache, because vLLM cannot use that memory. Garbage is collected only
        before the weights wake, because a collection takes as long as loading the weights.
        """
        if tag == "weights":
            gc.collect()
        torch.cuda.empty_cache()
        self.llm.wake_up(tags=[tag])

    def close(self) -> None:
        """End vLLM, but keep the default process group, which DeepSpeed uses."""
        destroy_group = dist.destroy_process_group
        dist.destroy_process_group = lambda group=None: None if group is None else destroy_group(group)
        try:
            if self.asleep:  # vLLM can only free memory that is mapped
                self._wake("weights")
                self._wake("kv_cache")
            with _collectable():
                self.llm.llm_engine.engine_core.shutdown()
        finally:
            dist.destroy_process_group = destroy_group
        del self.llm


@contextlib.contextmanager
def _collectable() -> Iterator[None]:
    """Prevent vLLM from freezing or unfreezing objects for the garbage collector inside the block.

    After its start, vLLM freezes all existing objects, including a trainer. The weights and the optimiser of
    a run would then stay in memory while the sampler serves later runs.
    """
    freeze, unfreeze = gc.freeze, gc.unfreeze
    gc.freeze = gc.unfreeze = lambda: None
    try:
        yield
    finally:
        gc.freeze, gc.unfreeze = freeze, unfreeze


def _other_tensors(model: torch.nn.Module) -> list[str]:
    """Return the names of a model's GPU tensors that are neither parameters, buffers nor KV cache."""
    return [
        f"{name}.{key}"
        for name, module in model.named_modules()
        for key, value in vars(module).items()
        if isinstance(value, torch.Tensor) and value.is_cuda and key != "kv_cache"
    ]


def _remember_loaded(model: torch.nn.Module) -> None:
    """Make a model store the names of the parameters that its last ``load_weights`` call filled."""
    load = model.load_weights

    def remembering_load(weights: Weights) -> set[str] | None:
        model.names_loaded = load(weights)
        return model.names_loaded

    model.load_weights = remembering_load


def _not_loaded(model: torch.nn.Module) -> set[str]:
    """Return the parameters that the last ``load_weights`` omitted; none if the model reports nothing."""
    if model.names_loaded is None:
        return set()
    return {name for name, _ in model.named_parameters()} - model.names_loaded


def _skip_unmappable_objects() -> None:
    """Make vLLM 0.32's search for CPU kernels skip llvmlite objects, whose ``vars`` is not a mapping."""
    with contextlib.suppress(ImportError):
        from vllm.triton_utils import dispatcher

        def vars_or_empty(value: Any) -> Mapping[str, Any]:
            attributes = vars(value)
            return attributes if isinstance(attributes, Mapping) else {}

        dispatcher.vars = vars_or_empty


def _is_tied(model: str) -> bool:
    """Return whether a model's output head shares the weights of its input embedding."""
    return bool(models.config(model).get("tie_word_embeddings", False))


def _untied(weights: Weights) -> Weights:
    for name, tensor in weights:
        if name == _HEAD:
            continue
        yield name, tensor
        if name == _EMBEDDING:
            yield _HEAD, tensor
