"""Plan the memory of a run on each GPU, and choose settings that make it fit.

`environment` describes the GPUs of this machine, or of the machine that runs are planned for. The planner
fills in unset keys of the section ``[real]`` so that every phase leaves a twentieth of the GPU's memory free.
The planner tries the fastest settings first, with the largest micro-batch that fits, and then the optimiser
in host memory. The sampler gets the remaining GPU memory. A run that cannot fit is rejected before anything
is loaded.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from isolaw.backends.real import environment, models
from isolaw.backends.real.options import RealOptions
from isolaw.backends.real.rollout.problems import ProblemSet, words_of
from isolaw.backends.real.rollout.prompts import Chat, encode, encode_phrase
from isolaw.backends.real.train.memory.footprint import GIB, Demand, Footprint
from isolaw.config import RunSpec
from isolaw.errors import IsolawError, Issue

# Defaults for a GPU of unknown memory.
_MICRO_BATCH_TOKENS, _GPU_MEMORY = 16_384, 0.4
# Shares of GPU memory: left free, and vLLM's maximum. Tokens: the maximum of a micro-batch, and its step
# size.
_SPARE_SHARE, _LARGEST_SAMPLER_SHARE, _LARGEST_MICRO_BATCH, _TOKEN_STEP = 0.05, 0.9, 32_768, 1_024
# Tokens of the longest prompt if the problems cannot be read. Without a tokenizer, a token has three bytes,
# less than in the vocabularies of Qwen and Llama, and a chat template adds some.
_PROMPT_TOKENS, _BYTES_OF_TOKEN, _TEMPLATE_TOKENS = 1_024, 3, 32
# Concurrent rollouts per GPU. An H200 drew 1.23 times as many tokens per second with 512 as with 256.
_ROLLOUTS_PER_GPU = 512
_PROCESS_COUNTS = (2, 4, 8, 16, 32, 64, 128)
_PLANNED_KEYS = ("micro_batch_tokens", "gradient_checkpointing", "offload_optimizer", "gpu_memory")
_UNSET: dict[str, Any] = dict.fromkeys(_PLANNED_KEYS)


class _MemoryPlan:
    """The memory plan of a run on each of its GPUs, for a section ``[real]`` with all keys filled in."""

    def __init__(self, demand: Demand, options: RealOptions) -> None:
        self.demand, self.options, self.footprint = demand, options, Footprint(demand, options)
        self.phases = self.footprint.phases()  # bytes by phase and part
        totals = {phase: sum(parts.values()) for phase, parts in self.phases.items()}
        self.peak = max(totals.items(), key=lambda pair: pair[1])  # the phase with most bytes, its bytes
        # The bytes of a GPU that the sampler can use.
        self.sampler_bytes = (options.gpu_memory or 0.0) * demand.gpu_bytes

    def fits(self, spare: float = _SPARE_SHARE) -> bool:
        """Return whether every phase leaves a share of GPU and host memory free, and vLLM can start."""
        vllm_starts = self.options.sampler != "vllm" or self.sampler_bytes >= self.footprint.sampler_minimum()
        return self.host_fits(spare) and vllm_starts and self.peak[1] <= (1 - spare) * self.demand.gpu_bytes

    def host_fits(self, spare: float = 0.0) -> bool:
        """Return whether the run leaves a share of host memory free; True if the host memory is unknown."""
        limit = (1 - spare) * self.demand.host_bytes
        return not limit or self.footprint.host_peak() <= limit

    @property
    def cache_bytes(self) -> int:
        """Bytes of a sampler's key-value cache."""
        return self.phases["sample"].get("sampler's cache", 0)

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as JSON-compatible data; ``host_bytes`` is the host memory on each machine."""
        return {
            "gpu_bytes": self.demand.gpu_bytes,
            "host_bytes": self.footprint.host_peak(),
            "row_tokens": self.demand.row_tokens,
            "phases": self.phases,
            **{key: getattr(self.options, key) for key in ("processes", "zero_stage", *_PLANNED_KEYS)},
            **({"samplers": self.options.streaming} if self.options.streaming else {}),
        }


@functools.lru_cache(maxsize=256)  # the runs of a sweep often have equal demands
def fastest(demand: Demand, options: RealOptions) -> _MemoryPlan:
    """Return the plan with the fastest settings that fit for unset keys.

    If no plan leaves the spare share free, return the first one that fits without it, else the last one
    tried.
    """
    recompute_choices = _choices(options.gradient_checkpointing, (False, True))
    first_tight = None
    for offloads, recomputes in itertools.product(
        _choices(options.offload_optimizer, (False, True)), recompute_choices
    ):
        candidate = options.changed(offload_optimizer=offloads, gradient_checkpointing=recomputes)
        plan = _MemoryPlan(demand, _with_tokens(demand, _with_share(demand, candidate)))
        if plan.fits():
            return plan
        if recomputes != recompute_choices[-1]:
            continue
        if first_tight is None and plan.fits(spare=0.0):
            first_tight = plan
        if not plan.host_fits():  # offloading the optimiser would need even more host memory
            break
    return first_tight or plan


def _choices(value: Any, choices: Sequence[Any]) -> Sequence[Any]:
    return choices if value is None else (value,)


def _with_share(demand: Demand, options: RealOptions) -> RealOptions:
    """Fill in the sampler's share of the GPU, which is the memory that the trainer leaves free."""
    if options.gpu_memory is not None:
        return options
    sampling = Footprint(demand, options).phases()["sample"]
    other_bytes = sum(size for part, size in sampling.items() if not part.startswith("sampler"))
    share = int(100 * (1 - _SPARE_SHARE - other_bytes / demand.gpu_bytes)) / 100
    return options.changed(gpu_memory=min(max(share, 0.01), _LARGEST_SAMPLER_SHARE))


def _with_tokens(demand: Demand, options: RealOptions) -> RealOptions:
    """Fill in the largest micro-batch that fits, or else the smallest, which is one row of maximum length.

    If activations are kept instead of recomputed, the micro-batch has at least its default size. A smaller
    micro-batch would cost as much time as keeping activations saves.
    """
    if options.micro_batch_tokens is not None:
        return options
    maximum = max(_LARGEST_MICRO_BATCH, demand.row_tokens)
    minimum = max(demand.row_tokens, 0 if options.gradient_checkpointing else _MICRO_BATCH_TOKENS)
    sizes = (*range(maximum, minimum, -_TOKEN_STEP), minimum)

    def fits(tokens: int) -> bool:
        phases = Footprint(demand, options.changed(micro_batch_tokens=tokens)).phases()
        peak_bytes = max(sum(phases[name].values()) for name in ("compare", "train"))
        return peak_bytes <= (1 - _SPARE_SHARE) * demand.gpu_bytes

    index = bisect.bisect_left(sizes, True, hi=len(sizes) - 1, key=fits)
    return options.changed(micro_batch_tokens=sizes[index])


def plan_of(spec: RunSpec) -> _MemoryPlan | None:
    """Return the plan for the run of a resolved spec, or None for an unknown GPU."""
    demand = _demand(spec)
    return fastest(demand, RealOptions.of(spec)) if demand else None


def runs_at_a_time(spec: RunSpec) -> int:
    """Return how many such runs fit into this machine's host memory, at least 1.

    If the host memory is unknown, return the number of GPUs.
    """
    plan = plan_of(spec)
    if plan is None or not plan.demand.host_bytes:
        return environment.gpus() or 1
    return max(1, plan.demand.host_bytes // plan.footprint.host_peak())


def chosen(spec: RunSpec) -> RealOptions:
    """Return the section of a resolved spec with all placement keys filled in."""
    options = RealOptions.of(spec)
    if all(getattr(options, name) is not None for name in _PLANNED_KEYS):
        return options
    if plan := plan_of(spec):
        return plan.options
    defaults = {
        "micro_batch_tokens": _MICRO_BATCH_TOKENS,
        "offload_optimizer": False,
        "gradient_checkpointing": environment.gpus() > 0,
        "gpu_memory": _LARGEST_SAMPLER_SHARE if options.streaming else _GPU_MEMORY,
    }
    return options.changed(**{k: v for k, v in defaults.items() if getattr(options, k) is None})


def with_placement(spec: RunSpec) -> RunSpec:
    """Return a spec with all placement keys filled in; the first machine of a run decides for all."""
    options = chosen(spec)
    placement = {name: getattr(options, name) for name in _PLANNED_KEYS}
    if environment.gpus():  # write them to the run's log
        message = ", ".join(f"real.{name} = {value}" for name, value in placement.items())
        logging.getLogger(__name__).info(message)
    return spec.model_copy(update={"sources": {**spec.sources, **placement}})


def with_processes(spec: RunSpec) -> RunSpec:
    """Return a resolved spec with the number of processes filled in, which the section does not set.

    It is the smallest power of two for which the run fits and each GPU that samples draws at most
    `_ROLLOUTS_PER_GPU` rollouts of a batch. More GPUs are better used by other concurrent runs. Samplers in
    separate processes get as many GPUs as the trainers, unless the section sets their number.
    """
    options, demand = RealOptions.of(spec), _demand(spec)
    gpus, least_processes = environment.gpus(), -(-spec.batch_rollouts // _ROLLOUTS_PER_GPU)
    ways = [options.changed(processes=2**k) for k in range(gpus.bit_length())]
    # An offloaded optimiser is slow, so more GPUs are preferred.
    for offload in (options.offload_optimizer or False, options.offload_optimizer):
        fitting = [
            way
            for way in ways
            if way.cores <= gpus
            and (demand is None or fastest(demand, way.changed(offload_optimizer=offload)).fits())
        ]
        if fitting:
            enough = (way for way in fitting if options.samplers or way.processes >= least_processes)
            processes = next(enough, fitting[-1]).processes
            return spec.model_copy(update={"sources": {**spec.sources, "processes": processes}})
    return spec


def unplanned_reason(spec: RunSpec) -> str | None:
    """Return the reason why there is no memory plan for a resolved spec, or None if there is one."""
    model, gpus = RealOptions.of(spec).model, environment.gpus()
    if (gpus and _demand(spec)) or (not gpus and models.has_weights(model)):
        return None
    unknown = "does not know the memory of the GPUs here" if gpus else "found no GPU here"
    return (
        f"isolaw {unknown}, so it does not check whether the runs fit; plan for 8 GPUs of 80 GB with "
        "--machine h100-80g:8"
    )


def plan_tables(runs: Sequence[RunSpec]) -> list[dict[str, Any]]:
    """Return the distinct plans of runs as JSON-compatible data, each with its number of runs."""
    table_of_plan: dict[str, dict[str, Any]] = {}
    for run in runs:
        if plan := plan_of(run):
            table = plan.to_dict()
            table_of_plan.setdefault(json.dumps(table), {"runs": 0, **table})["runs"] += 1
    return list(table_of_plan.values())


def _demand(spec: RunSpec) -> Demand | None:
    gpu_bytes, folder = environment.gpu_memory(), spec.sources["model"]
    if not gpu_bytes or not environment.gpus():
        return None
    model = models.decoder(folder)
    recipe, set_folder = spec.recipe, spec.sources["set"]
    chat = RealOptions.of(spec).chat
    row_tokens = _prompt_tokens(set_folder, folder, chat) + (recipe.max_response_tokens or 1)
    if recipe.interrupt_phrase is not None:
        row_tokens += _phrase_tokens(folder, recipe.interrupt_phrase)
    critic = recipe.algorithm == "ppo"
    host_limits = environment.host_memory(), environment.gpus()
    return Demand(model, gpu_bytes, row_tokens, bool(recipe.kl), critic, recipe.lora_rank, *host_limits)


@models.cached(folders=2)
def _prompt_tokens(set_folder: str, model: str, chat: Chat) -> int:
    """Return the number of tokens of the longest prompt in a set; without a tokenizer, from its length."""
    try:
        prompts = [p for problems in ProblemSet.read(set_folder).parts.values() for p in problems]
        if not environment.installed("transformers") or not models.has_weights(model):
            longest = max(len(f"{chat.system or ''}{words_of(p.prompt)}".encode()) for p in prompts)
            return _TEMPLATE_TOKENS + -(-longest // _BYTES_OF_TOKEN)
        return max(map(len, encode(prompts, models.tokenizer(model), chat)))
    except IsolawError:  # reported by `check` of the backend
        return _PROMPT_TOKENS


@models.cached(folders=1)
def _phrase_tokens(model: str, phrase: str) -> int:
    """Return the number of tokens of an interruption's phrase, or an upper bound without a tokenizer."""
    if environment.installed("transformers"):
        with suppress(IsolawError):  # reported by `check` of the backend
            return len(encode_phrase(phrase, models.tokenizer(model)))
    return len(phrase.encode())


# -- what does not fit ------------------------------------------------------------------------------------


def issues(spec: RunSpec) -> list[Issue]:
    """Return the issues of a resolved spec that does not fit the GPUs or the host, with settings that fit."""
    demand, options = _demand(spec), RealOptions.of(spec)
    if demand is None or (plan := fastest(demand, options)).fits(spare=0.0):
        return []
    phase, size = plan.peak
    needs = f"{phase} needs {size / GIB:.1f} GiB of each GPU, which has {demand.gpu_bytes / GIB:.1f}"
    if size <= demand.gpu_bytes and not plan.host_fits():
        needs = (
            f"the run needs {plan.footprint.host_peak() / GIB:.1f} GiB of host memory, but this machine has "
            f"{demand.host_bytes / GIB:.1f}"
        )
    elif size <= demand.gpu_bytes:  # the only other reason is that vLLM cannot start
        needs = (
            f"vLLM needs {plan.footprint.sampler_minimum() / GIB:.1f} GiB of each GPU for its weights, "
            f"its work space and the cache of one row, but its share is {plan.sampler_bytes / GIB:.1f}"
        )
    gpus, fitting = environment.gpus(), _nearest_fitting(demand, options)
    if fitting and fitting.cores <= gpus:
        return [_memory_issue(options, fitting, needs)]
    response = spec.recipe.max_response_tokens or 1
    for fraction, section in itertools.product(range(15, 0, -1), (options, options.changed(**_UNSET))):
        shorter = response * fraction // 16
        row_tokens = demand.row_tokens - response + shorter
        if shorter and (plan := fastest(replace(demand, row_tokens=row_tokens), section)).fits():
            accepted = [f"recipe.max_response_tokens = {shorter}", *_changes(options, plan.options).values()]
            return [Issue("recipe.max_response_tokens", needs, response, " and ".join(accepted))]
    if fitting:
        note = f"; this requires {fitting.cores} GPUs, but the plan has {gpus} (executor.nodes adds machines)"
        return [_memory_issue(options, fitting, needs, note)]
    no_setting = "no setting of [real] fits the run on a machine of this size"
    return [Issue("real.model", f"{needs}; {no_setting}; {models.INSTEAD}")]


def _nearest_fitting(demand: Demand, options: RealOptions) -> RealOptions | None:
    """Return the nearest section that fits, or None.

    Prefer sections for the available GPUs, and among them sections with the optimiser on the GPUs.
    """
    fitting = [plan.options for section in _variations(options) if (plan := fastest(demand, section)).fits()]

    def cost(section: RealOptions) -> tuple[bool, bool]:
        beyond = section.cores > environment.gpus()
        return beyond, bool(section.offload_optimizer) and not beyond

    return min(fitting, key=cost, default=None)


def _variations(options: RealOptions) -> Iterator[RealOptions]:
    """Yield other sections that could fit, the nearest first."""
    for name in _PLANNED_KEYS:
        if getattr(options, name) is not None:
            yield options.changed(**{name: None})
    stages = [stage for stage in (2, 3) if stage > options.zero_stage]
    for stage in stages:
        yield options.changed(zero_stage=stage)
    for stage in (options.zero_stage, *stages):
        yield options.changed(**_UNSET, zero_stage=stage)
    for processes in _PROCESS_COUNTS:
        if processes > options.processes:
            yield options.changed(**_UNSET, zero_stage=3, processes=processes)


def _memory_issue(options: RealOptions, fitting: RealOptions, needs: str, note: str = "") -> Issue:
    changes = _changes(options, fitting)
    key = next(iter(changes))
    return Issue(f"real.{key}", needs, getattr(options, key), " and ".join(changes.values()) + note)


def _changes(options: RealOptions, fitting: RealOptions) -> dict[str, str]:
    """Return the keys that must change, each with its new value as a line of the sweep file."""
    return {
        name: f"real.{name} = {json.dumps(new)}"
        for name in ("processes", "zero_stage", *_PLANNED_KEYS)
        if (old := getattr(options, name)) != (new := getattr(fitting, name))
        and (old is not None or (name == "offload_optimizer" and new))
    }
