"""What a run takes of each GPU's memory, and the settings that make it fit.

The equations are in `footprint`, the GPUs those that `environment` knows: of this machine, or of the one that
is planned for. What the section ``[real]`` leaves open is chosen so that every phase leaves a twentieth of
the card free, the cheapest way first: the largest micro-batch, then the optimiser in host memory; the
sampler has what the trainer leaves. What cannot fit is refused before anything is loaded.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from isolaw.backends.real import environment, models
from isolaw.backends.real.options import RealOptions
from isolaw.backends.real.rollout.problems import ProblemSet
from isolaw.backends.real.train import footprint
from isolaw.backends.real.train.footprint import GIB, Load, Parts
from isolaw.backends.real.train.shapes import Decoder
from isolaw.config import RunSpec
from isolaw.errors import IsolawError, Issue

# Where nothing is known of a GPU.
_MICRO_BATCH_TOKENS, _GPU_MEMORY = 16_384, 0.4
# Of a card, what is left free; what vLLM never takes alone; tokens of the largest micro-batch and their unit.
_SPARE, _LARGEST_SHARE, _LARGEST_MICRO_BATCH, _UNIT = 0.05, 0.9, 32_768, 1_024
# Tokens of the longest prompt, where there is no tokenizer to count them.
_PROMPT_TOKENS = 1_024
_PROCESSES = (2, 4, 8, 16, 32, 64, 128)
_CHOSEN = (
    "micro_batch_tokens",
    "gradient_checkpointing",
    "offload_optimizer",
    "tensor_parallel",
    "gpu_memory",
)


@dataclass(frozen=True)
class Plan:
    """A run's memory on each of its GPUs.

    Attributes
    ----------
    options
        the section with nothing left open.
    phases
        bytes by phase and part.
    gpu_bytes, host_bytes
        of the smallest card; of host memory, for each process.
    sampler_bytes
        the least that the sampler takes.
    row_tokens
        of the longest prompt and its response.
    """

    options: RealOptions
    phases: dict[str, Parts]
    gpu_bytes: int
    host_bytes: int
    sampler_bytes: int
    row_tokens: int

    @property
    def largest(self) -> tuple[str, int]:
        """The phase that takes most, and its bytes."""
        totals = {phase: sum(parts.values()) for phase, parts in self.phases.items()}
        return max(totals.items(), key=lambda pair: pair[1])

    def fits(self, spare: float = _SPARE) -> bool:
        """Whether every phase leaves that share of the card free, and the sampler can begin."""
        share = (self.options.gpu_memory or 0.0) * self.gpu_bytes
        begins = self.options.sampler != "vllm" or share >= self.sampler_bytes
        return begins and self.largest[1] <= (1 - spare) * self.gpu_bytes

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as JSON-able data."""
        shown = {name: getattr(self.options, name) for name in ("processes", "zero_stage", *_CHOSEN)}
        out = asdict(self)
        return {**{key: out[key] for key in ("gpu_bytes", "host_bytes", "row_tokens", "phases")}, **shown}


@dataclass(frozen=True)
class _Job:
    """What is known of a run but for its section."""

    model: Decoder
    gpu_bytes: int
    row_tokens: int
    reference: bool
    float32_head: bool

    def plan(self, options: RealOptions) -> Plan:
        """Return the plan of a section with nothing left open."""
        load = Load(
            number_bytes=2 if options.dtype == "bfloat16" else 4,
            processes=options.processes,
            zero_stage=options.zero_stage,
            offload_optimizer=bool(options.offload_optimizer),
            gradient_checkpointing=bool(options.gradient_checkpointing),
            # A longer row is computed alone.
            micro_batch_tokens=max(options.micro_batch_tokens or 0, self.row_tokens),
            tensor_parallel=options.tensor_parallel or 1,
            row_tokens=self.row_tokens,
            reference=self.reference,
            float32_head=self.float32_head,
            vllm=options.sampler == "vllm",
            gpu_bytes=self.gpu_bytes,
            gpu_memory=options.gpu_memory or 0.0,
        )
        return Plan(
            options,
            footprint.footprint(self.model, load),
            self.gpu_bytes,
            footprint.host(self.model, load),
            footprint.sampler_needs(self.model, load),
            self.row_tokens,
        )

    def cheapest(self, options: RealOptions) -> Plan:
        """Return the plan of the cheapest way to fill in what is open; where none fits, of the last."""
        return _cheapest(self, options.model_dump_json())

    def search(self, options: RealOptions) -> Plan:
        """Do what `cheapest` remembers: the first way that leaves enough free, or else that fits at all."""
        kept = options.gradient_checkpointing
        options = options.model_copy(update={"gradient_checkpointing": True if kept is None else kept})
        parallel = [
            tp
            for tp in range(1, options.processes + 1)
            if options.processes % tp == 0
            and self.model.splits(tp)
            and (tp == 1 or options.sampler == "vllm")
        ]
        ways = itertools.product(
            _open(options.offload_optimizer, (False, True)), _open(options.tensor_parallel, parallel)
        )
        tight = None
        for offload, tensor_parallel in ways:
            placed = options.model_copy(
                update={"offload_optimizer": offload, "tensor_parallel": tensor_parallel}
            )
            plan = self.plan(self._with_tokens(self._with_share(placed)))
            if plan.fits():
                return plan
            if tight is None and plan.fits(spare=0.0):
                tight = plan
        return tight or plan

    def _with_share(self, options: RealOptions) -> RealOptions:
        """Give the sampler what the trainer leaves of the card."""
        if options.gpu_memory is not None:
            return options
        sampling = self.plan(options).phases["sample"]
        others = sum(size for part, size in sampling.items() if not part.startswith("sampler"))
        share = int(100 * (1 - _SPARE - others / self.gpu_bytes)) / 100
        return options.model_copy(update={"gpu_memory": min(max(share, 0.01), _LARGEST_SHARE)})

    def _with_tokens(self, options: RealOptions) -> RealOptions:
        """Fill in the largest micro-batch that fits, or else the smallest: of the longest row."""
        if options.micro_batch_tokens is not None:
            return options
        largest = max(_LARGEST_MICRO_BATCH, self.row_tokens)
        sizes = (*range(largest, self.row_tokens, -_UNIT), self.row_tokens)

        def fits(tokens: int) -> bool:
            phases = self.plan(options.model_copy(update={"micro_batch_tokens": tokens})).phases
            passes = max(sum(phases[name].values()) for name in ("compare", "train"))
            return passes <= (1 - _SPARE) * self.gpu_bytes

        place = bisect.bisect_left(sizes, True, hi=len(sizes) - 1, key=fits)
        return options.model_copy(update={"micro_batch_tokens": sizes[place]})


@functools.lru_cache(maxsize=256)  # a sweep's runs differ in little else than n and the seed
def _cheapest(job: _Job, options: str) -> Plan:
    return job.search(RealOptions.model_validate_json(options))


def plan(spec: RunSpec) -> Plan | None:
    """Return the plan of a resolved spec's run; None where GPU or model are not known."""
    job = _job(spec)
    return job.cheapest(RealOptions.of(spec)) if job else None


def chosen(spec: RunSpec) -> RealOptions:
    """Return the section of a resolved spec with every open key of placement filled in."""
    options = RealOptions.of(spec)
    if all(getattr(options, name) is not None for name in _CHOSEN):
        return options
    if own := plan(spec):
        return own.options
    plain = {
        "micro_batch_tokens": _MICRO_BATCH_TOKENS,
        "offload_optimizer": False,
        "gradient_checkpointing": environment.gpus() > 0,
        "tensor_parallel": 1,
        "gpu_memory": _GPU_MEMORY,
    }
    return options.model_copy(
        update={name: value for name, value in plain.items() if getattr(options, name) is None}
    )


def settled(spec: RunSpec) -> RunSpec:
    """Return a spec that leaves nothing open, decided on a run's first machine for all its processes."""
    options = chosen(spec)
    if environment.gpus():  # into the run's log
        told = ", ".join(f"real.{name} = {getattr(options, name)}" for name in _CHOSEN)
        logging.getLogger(__name__).warning(told)
    return spec.model_copy(
        update={"sources": {**spec.sources, **{name: getattr(options, name) for name in _CHOSEN}}}
    )


def issues(spec: RunSpec) -> list[Issue]:
    """Return what of a resolved spec does not fit the GPUs, with settings that do."""
    job, options = _job(spec), RealOptions.of(spec)
    if job is None or (own := job.cheapest(options)).fits(spare=0.0):
        return []
    phase, size = own.largest
    needs = f"{phase} needs {size / GIB:.1f} GiB of each GPU, which has {own.gpu_bytes / GIB:.1f}"
    if size <= own.gpu_bytes:  # then it is the sampler that cannot begin
        given = (own.options.gpu_memory or 0.0) * own.gpu_bytes
        needs = (
            f"vLLM needs {own.sampler_bytes / GIB:.1f} GiB of each GPU for its weights, its work space and "
            f"the cache of one row, and may take {given / GIB:.1f}"
        )
    gpus, fitting = environment.gpus(), _fitting(job, options)
    if fitting and fitting.options.processes <= gpus:
        return [_problem(options, fitting.options, needs)]
    response = spec.recipe.max_response_tokens or 1
    for fraction, tried in itertools.product(range(15, 0, -1), (options, _opened(options))):
        shorter = response * fraction // 16
        row = job.row_tokens - response + shorter
        if shorter and (less := replace(job, row_tokens=row).cheapest(tried)).fits():
            accepted = [f"recipe.max_response_tokens = {shorter}", *_changes(options, less.options).values()]
            return [Issue("recipe.max_response_tokens", needs, response, " and ".join(accepted))]
    if fitting:
        taken = fitting.options.processes
        more = f"; that takes {taken} GPUs, more than the {gpus} planned for (executor.nodes adds machines)"
        problem = _problem(options, fitting.options, needs)
        return [replace(problem, accepted=problem.accepted + more)]
    return [Issue("real.model", f"{needs}; no setting of [real] makes it fit GPUs of that size")]


def _fitting(job: _Job, options: RealOptions) -> Plan | None:
    """Return the plan of a section that fits: on the GPUs that there are, with the optimiser on them."""
    plans = [own for other in _others(options) if (own := job.cheapest(other)).fits()]

    def cost(own: Plan) -> tuple[bool, bool]:
        beyond = own.options.processes > environment.gpus()
        return beyond, bool(own.options.offload_optimizer) and not beyond

    return min(plans, key=cost, default=None)  # of equals the first, which is the nearest


def note(spec: RunSpec) -> str | None:
    """Return why nothing is planned for the GPUs of a resolved spec's run, where that is so."""
    if not environment.gpus() or _job(spec):
        return None
    if not environment.gpu_memory():
        return (
            "the memory of the GPUs is not known here, and nothing was checked against it; "
            "--machine h100-80g:8 plans for 8 such GPUs"
        )
    model = RealOptions.of(spec).model
    if Decoder.read(model):
        return f"{model}: no memory is planned: its weights have other sizes than its config.json says"
    return f"{model}: memory is planned for Llama, Mistral, Qwen2 and Qwen3 alone"


def tables(runs: Sequence[RunSpec]) -> list[dict[str, Any]]:
    """Return the plans of runs as JSON-able data, each distinct one once, with how many runs it is of."""
    found: dict[str, dict[str, Any]] = {}
    for run in runs:
        if own := plan(run):
            table = own.to_dict()
            found.setdefault(json.dumps(table), {"runs": 0, **table})["runs"] += 1
    return list(found.values())


def _job(spec: RunSpec) -> _Job | None:
    gpu_bytes, folder = environment.gpu_memory(), spec.sources["model"]
    decoder = Decoder.read(folder) if gpu_bytes and environment.gpus() else None
    if decoder is None or models.parameters(folder) not in (0, *decoder.stored):
        return None
    recipe, set_folder = spec.recipe, spec.sources["set"]
    stamps = models.stamp(Path(set_folder)), models.stamp(Path(folder))
    row = _prompt_tokens(set_folder, folder, stamps) + (recipe.max_response_tokens or 1)
    return _Job(decoder, gpu_bytes, row, bool(recipe.kl), recipe.float32_head)


@functools.lru_cache(maxsize=8)
def _prompt_tokens(set_folder: str, model: str, stamps: tuple[str, str]) -> int:
    """Tokens of the longest prompt of a set."""
    if not environment.installed("transformers"):
        return _PROMPT_TOKENS
    from isolaw.backends.real.rollout.prompts import encode

    try:
        tokenizer = models.tokenizer(model)
        parts = ProblemSet.read(set_folder).parts.values()
        return max(len(ids) for questions in parts for ids in encode(questions, tokenizer))
    except IsolawError:  # which is refused elsewhere
        return _PROMPT_TOKENS


def _open(value: Any, choices: Sequence[Any]) -> Sequence[Any]:
    return choices if value is None else (value,)


def _opened(options: RealOptions, **more: Any) -> RealOptions:
    """Return a section that leaves all that can be chosen open."""
    return options.model_copy(update={**dict.fromkeys(_CHOSEN), **more})


def _others(options: RealOptions) -> Iterator[RealOptions]:
    """Other sections that may fit, the nearest first."""
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


def _problem(options: RealOptions, fitting: RealOptions, needs: str) -> Issue:
    """Name what has to change."""
    changes = _changes(options, fitting)
    key = next(iter(changes))
    return Issue(f"real.{key}", needs, getattr(options, key), " and ".join(changes.values()))


def _changes(options: RealOptions, fitting: RealOptions) -> dict[str, str]:
    """By key what has to change: keys that were given, and those that differ from their defaults."""
    return {
        name: f"real.{name} = {json.dumps(getattr(fitting, name))}"
        for name in ("processes", "zero_stage", *_CHOSEN)
        if getattr(options, name) != getattr(fitting, name)
        and (
            getattr(options, name) is not None or (name == "offload_optimizer" and fitting.offload_optimizer)
        )
    }
