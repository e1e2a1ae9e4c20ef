"""The memory that a run takes of each GPU, and the settings that make it fit.

GPUs are those of `environment`: this machine's, or those of the machine that is planned for. The planner
fills in what the section ``[real]`` leaves open so that every phase leaves a twentieth of the card free, the
cheapest way first: the largest micro-batch, then the optimiser in host memory. The sampler gets what the
trainer leaves. A run that cannot fit is refused before anything is loaded.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from isolaw.backends.real import environment, models
from isolaw.backends.real.options import RealOptions
from isolaw.backends.real.rollout.problems import ProblemSet
from isolaw.backends.real.train.memory.decoder import Decoder
from isolaw.backends.real.train.memory.footprint import GIB, Demand, Footprint, Parts
from isolaw.config import RunSpec
from isolaw.errors import IsolawError, Issue

# On a GPU of unknown memory.
_MICRO_BATCH_TOKENS, _GPU_MEMORY = 16_384, 0.4
# Shares of a card: left free, and vLLM's largest. Tokens: of the largest micro-batch, and their unit.
_SPARE, _LARGEST_SHARE, _LARGEST_MICRO_BATCH, _UNIT = 0.05, 0.9, 32_768, 1_024
# Tokens of the longest prompt, without a tokenizer to count them.
_PROMPT_TOKENS = 1_024
_PROCESSES = (2, 4, 8, 16, 32, 64, 128)
_OF_TRAINER = ("micro_batch_tokens", "gradient_checkpointing", "offload_optimizer")
_CHOSEN = (*_OF_TRAINER, "tensor_parallel", "gpu_memory")


@dataclass(frozen=True)
class MemoryPlan:
    """A run's memory on each of its GPUs."""

    options: RealOptions  # the section with nothing left open
    phases: dict[str, Parts]  # bytes by phase and part
    gpu_bytes: int  # of the smallest card
    host_bytes: int  # of host memory, for each process
    sampler_bytes: int  # the least that the sampler takes
    row_tokens: int  # of the longest prompt and its response

    @classmethod
    def of(cls, demand: Demand, options: RealOptions) -> MemoryPlan:
        """Return the plan of a section with nothing left open."""
        own = Footprint(demand, options)
        return cls(
            options, own.phases(), demand.gpu_bytes, own.host(), own.sampler_minimum(), demand.row_tokens
        )

    @property
    def largest(self) -> tuple[str, int]:
        """The phase that takes most, and its bytes."""
        totals = {phase: sum(parts.values()) for phase, parts in self.phases.items()}
        return max(totals.items(), key=lambda pair: pair[1])

    @property
    def sampler_share(self) -> float:
        """The bytes of a card that the sampler may take."""
        return (self.options.gpu_memory or 0.0) * self.gpu_bytes

    def fits(self, spare: float = _SPARE) -> bool:
        """Return whether every phase leaves that share of the card free, and vLLM can start."""
        starts = self.options.sampler != "vllm" or self.sampler_share >= self.sampler_bytes
        return starts and self.largest[1] <= (1 - spare) * self.gpu_bytes

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as data for JSON."""
        own = {key: getattr(self, key) for key in ("gpu_bytes", "host_bytes", "row_tokens", "phases")}
        return own | {key: getattr(self.options, key) for key in ("processes", "zero_stage", *_CHOSEN)}


def _cheapest(demand: Demand, options: RealOptions) -> MemoryPlan:
    """Return the plan of the cheapest way to fill in what is open; if none fits, of the last."""
    return _searched(demand, options.model_dump_json())


@functools.lru_cache(maxsize=256)  # a sweep's runs differ in little else than n and the seed
def _searched(demand: Demand, section: str) -> MemoryPlan:
    options = RealOptions.model_validate_json(section)
    if options.gradient_checkpointing is None:
        options = options.model_copy(update={"gradient_checkpointing": True})
    parallel = [
        tp
        for tp in range(1, options.processes + 1)
        if options.processes % tp == 0 and demand.model.splits(tp) and (tp == 1 or options.sampler == "vllm")
    ]
    tight = None
    for offload in _open(options.offload_optimizer, (False, True)):
        for tensor_parallel in _open(options.tensor_parallel, parallel):
            placed = options.model_copy(
                update={"offload_optimizer": offload, "tensor_parallel": tensor_parallel}
            )
            plan = MemoryPlan.of(demand, _with_tokens(demand, _with_share(demand, placed)))
            if plan.fits():
                return plan
            if tight is None and plan.fits(spare=0.0):
                tight = plan
    return tight or plan


def _open(value: Any, choices: Sequence[Any]) -> Sequence[Any]:
    return choices if value is None else (value,)


def _with_share(demand: Demand, options: RealOptions) -> RealOptions:
    """Give the sampler what the trainer leaves of the card."""
    if options.gpu_memory is not None:
        return options
    sampling = Footprint(demand, options).phases()["sample"]
    others = sum(size for part, size in sampling.items() if not part.startswith("sampler"))
    share = int(100 * (1 - _SPARE - others / demand.gpu_bytes)) / 100
    return options.model_copy(update={"gpu_memory": min(max(share, 0.01), _LARGEST_SHARE)})


def _with_tokens(demand: Demand, options: RealOptions) -> RealOptions:
    """Fill in the largest micro-batch that fits, or else the smallest: one longest row."""
    if options.micro_batch_tokens is not None:
        return options
    largest = max(_LARGEST_MICRO_BATCH, demand.row_tokens)
    sizes = (*range(largest, demand.row_tokens, -_UNIT), demand.row_tokens)

    def fits(tokens: int) -> bool:
        phases = Footprint(demand, options.model_copy(update={"micro_batch_tokens": tokens})).phases()
        passes = max(sum(phases[name].values()) for name in ("compare", "train"))
        return passes <= (1 - _SPARE) * demand.gpu_bytes

    place = bisect.bisect_left(sizes, True, hi=len(sizes) - 1, key=fits)
    return options.model_copy(update={"micro_batch_tokens": sizes[place]})


def plan(spec: RunSpec) -> MemoryPlan | None:
    """Return the plan of a resolved spec's run; None for an unknown GPU or model."""
    demand = _demand(spec)
    return _cheapest(demand, RealOptions.of(spec)) if demand else None


def chosen(spec: RunSpec) -> RealOptions:
    """Return the section of a resolved spec with every open key of placement filled in."""
    options = RealOptions.of(spec)
    if all(getattr(options, name) is not None for name in _CHOSEN):
        return options
    if own := plan(spec):
        return own.options
    defaults = {
        "micro_batch_tokens": _MICRO_BATCH_TOKENS,
        "offload_optimizer": False,
        "gradient_checkpointing": environment.gpus() > 0,
        "tensor_parallel": 1,
        "gpu_memory": _GPU_MEMORY,
    }
    return options.model_copy(update={k: v for k, v in defaults.items() if getattr(options, k) is None})


def settled(spec: RunSpec) -> RunSpec:
    """Return a spec that leaves nothing open: a run's first machine decides for all its processes."""
    options = chosen(spec)
    placement = {name: getattr(options, name) for name in _CHOSEN}
    if environment.gpus():  # into the run's log
        message = ", ".join(f"real.{name} = {value}" for name, value in placement.items())
        logging.getLogger(__name__).warning(message)
    return spec.model_copy(update={"sources": {**spec.sources, **placement}})


def note(spec: RunSpec) -> str | None:
    """Return why there is no plan for the GPUs of a resolved spec's run; None if there is one."""
    if not environment.gpus() or _demand(spec):
        return None
    if not environment.gpu_memory():
        return (
            "isolaw does not know the memory of the GPUs here and does not check the runs against it; "
            "--machine h100-80g:8 plans for 8 such GPUs"
        )
    model = RealOptions.of(spec).model
    if Decoder.read(model):
        return f"{model}: no memory plan: the sizes of its weights differ from its config.json"
    return f"{model}: no memory plan: isolaw plans memory for Llama, Mistral, Qwen2 and Qwen3 only"


def tables(runs: Sequence[RunSpec]) -> list[dict[str, Any]]:
    """Return the distinct plans of runs as data for JSON, each with its number of runs."""
    found: dict[str, dict[str, Any]] = {}
    for run in runs:
        if own := plan(run):
            table = own.to_dict()
            found.setdefault(json.dumps(table), {"runs": 0, **table})["runs"] += 1
    return list(found.values())


def _demand(spec: RunSpec) -> Demand | None:
    gpu_bytes, folder = environment.gpu_memory(), spec.sources["model"]
    model = Decoder.read(folder) if gpu_bytes and environment.gpus() else None
    if model is None:
        return None
    whole = model.parameters  # the files may hold a tied head, too
    if models.parameters(folder) not in (0, whole, whole + model.embedding * model.tied):
        return None
    recipe, set_folder = spec.recipe, spec.sources["set"]
    stamps = models.stamp(Path(set_folder)), models.stamp(Path(folder))
    row = _prompt_tokens(set_folder, folder, stamps) + (recipe.max_response_tokens or 1)
    return Demand(model, gpu_bytes, row, bool(recipe.kl), recipe.float32_head)


@functools.lru_cache(maxsize=8)
def _prompt_tokens(set_folder: str, model: str, stamps: tuple[str, str]) -> int:
    """Return the tokens of the longest prompt of a set."""
    if not environment.installed("transformers"):
        return _PROMPT_TOKENS
    from isolaw.backends.real.rollout.prompts import encode

    try:
        tokenizer = models.tokenizer(model)
        parts = ProblemSet.read(set_folder).parts.values()
        return max(len(ids) for problems in parts for ids in encode(problems, tokenizer))
    except IsolawError:  # which `Real.check` reports
        return _PROMPT_TOKENS


# -- what does not fit ------------------------------------------------------------------------------------


def issues(spec: RunSpec) -> list[Issue]:
    """Return what of a resolved spec does not fit the GPUs, with settings that do."""
    demand, options = _demand(spec), RealOptions.of(spec)
    if demand is None or (own := _cheapest(demand, options)).fits(spare=0.0):
        return []
    phase, size = own.largest
    needs = f"{phase} needs {size / GIB:.1f} GiB of each GPU, which has {own.gpu_bytes / GIB:.1f}"
    if size <= own.gpu_bytes:  # then it is vLLM that cannot start
        needs = (
            f"vLLM needs {own.sampler_bytes / GIB:.1f} GiB of each GPU for its weights, its work space and "
            f"the cache of one row, and may take {own.sampler_share / GIB:.1f}"
        )
    gpus, fitting = environment.gpus(), _nearest(demand, options)
    if fitting and fitting.processes <= gpus:
        return [_issue(options, fitting, needs)]
    response = spec.recipe.max_response_tokens or 1
    for fraction, tried in itertools.product(range(15, 0, -1), (options, _opened(options))):
        shorter = response * fraction // 16
        row = demand.row_tokens - response + shorter
        if shorter and (less := _cheapest(replace(demand, row_tokens=row), tried)).fits():
            accepted = [f"recipe.max_response_tokens = {shorter}", *_changes(options, less.options).values()]
            return [Issue("recipe.max_response_tokens", needs, response, " and ".join(accepted))]
    if fitting:
        more = (
            f"; that takes {fitting.processes} GPUs, more than the {gpus} planned for "
            "(executor.nodes adds machines)"
        )
        return [_issue(options, fitting, needs, more)]
    return [Issue("real.model", f"{needs}; no setting of [real] makes it fit GPUs of that size")]


def _nearest(demand: Demand, options: RealOptions) -> RealOptions | None:
    """Return the nearest section that fits: first on the GPUs available, with the optimiser on them."""
    fitting = [plan.options for other in _others(options) if (plan := _cheapest(demand, other)).fits()]

    def cost(own: RealOptions) -> tuple[bool, bool]:
        beyond = own.processes > environment.gpus()
        return beyond, bool(own.offload_optimizer) and not beyond

    return min(fitting, key=cost, default=None)


def _opened(options: RealOptions, **more: Any) -> RealOptions:
    """Return a section that leaves open all that the planner can choose."""
    return options.model_copy(update={**dict.fromkeys(_CHOSEN), **more})


def _others(options: RealOptions) -> Iterator[RealOptions]:
    """Yield other sections that may fit, the nearest first."""
    for name in _CHOSEN:
        if getattr(options, name) is not None:
            yield options.model_copy(update={name: None})
    stages = [stage for stage in (2, 3) if stage > options.zero_stage]
    for stage in stages:
        yield options.model_copy(update={"zero_stage": stage})
    for stage in (options.zero_stage, *stages):
        yield _opened(options, zero_stage=stage)
    for processes in _PROCESSES:
        if processes > options.processes:
            yield _opened(options, zero_stage=3, processes=processes)


def _issue(options: RealOptions, fitting: RealOptions, needs: str, more: str = "") -> Issue:
    changes = _changes(options, fitting)
    key = next(iter(changes))
    return Issue(f"real.{key}", needs, getattr(options, key), " and ".join(changes.values()) + more)


def _changes(options: RealOptions, fitting: RealOptions) -> dict[str, str]:
    """Return by key what has to change: keys that were set, and those that differ from their defaults."""
    return {
        name: f"real.{name} = {json.dumps(new)}"
        for name in ("processes", "zero_stage", *_CHOSEN)
        if (old := getattr(options, name)) != (new := getattr(fitting, name))
        and (old is not None or (name == "offload_optimizer" and new))
    }
