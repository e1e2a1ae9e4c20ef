"""The real backend: GRPO on language models, vLLM for sampling and DeepSpeed for optimisation.

`train.loop` is one run; `algorithms` has the equations and presets, `rollout` the half that samples and
rewards, `train` the half that optimises, `options` the ``[real]`` section. This module imports nothing heavy.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from isolaw import metrics
from isolaw.backends.base import Checkpoint, Needs, Processes, RunContext
from isolaw.backends.real import environment, models
from isolaw.backends.real.algorithms import presets
from isolaw.backends.real.options import IDENTITY, RealOptions
from isolaw.backends.real.rollout import rewards
from isolaw.backends.real.rollout.problems import ProblemSet
from isolaw.backends.real.train import memory
from isolaw.backends.real.train.shapes import Decoder
from isolaw.config import RunSpec
from isolaw.errors import DataError, Issue, RunError, SpecError, nearest

_NEEDED = ("torch", "transformers", "deepspeed")
_STATE_BYTES = 12  # a parameter: weight and both moments in float32


class Real:
    """`Backend` over language models."""

    name = "real"
    version = 2

    def resolve(self, spec: RunSpec) -> RunSpec:
        """Fill in the recipe, what depends on this machine, and the hashes of model and problems."""
        problems: list[Issue] = []
        stored = None
        try:
            set_folder = models.folder(spec.problems.set, "problems.set")
        except SpecError as error:
            problems += error.issues
            set_folder = Path(spec.problems.set)
        else:
            problems += _set_issues(str(set_folder), models.stamp(set_folder))
            stored = None if problems else _read_set(str(set_folder), models.stamp(set_folder))
        recipe = presets.resolve_recipe(spec.recipe, spec.problems.difficulty)
        sizes = _sizes(spec, stored) if stored else {}
        try:
            options = RealOptions.read(spec)
            named: dict[str, Any] = {"model": options.model, "reward": options.reward}
        except SpecError as error:
            problems += error.issues
            wrong = {problem.where for problem in problems}
            named = {key: value for key, value in spec.options.items() if f"real.{key}" not in wrong}
        if isinstance(named.get("model"), str):
            problems += models.check(named["model"])
        if isinstance(named.get("reward"), str):
            problems += rewards.check(named["reward"])
        if problems or stored is None:  # what `check` would say that needs none of these, too
            problems += _recipe_issues(spec.model_copy(update={"recipe": recipe}))
            if stored:
                known = spec.problems.model_copy(update=sizes)
                with_sizes = {"recipe": recipe, "problems": known, "sources": {"set": str(set_folder)}}
                filled = spec.model_copy(update=with_sizes)
                problems += [*_size_issues(filled, stored), *_evaluation_issues(filled, stored)]
            raise SpecError(problems)
        model = Path(options.model).resolve()
        placement = options.model_dump(mode="json", exclude_none=True)
        identity = {key: placement.pop(key) for key in IDENTITY}
        parts = {"train", *spec.evaluation.sets} & set(stored.parts)
        return spec.model_copy(
            update={
                "backend_version": self.version,
                "recipe": recipe,
                "problems": spec.problems.model_copy(update={"set": stored.name, **sizes}),
                "options": identity,
                "content": {
                    "model": models.digest(model),
                    **{part: stored.digest(part) for part in sorted(parts)},
                    **({"reward": hashed} if (hashed := rewards.digest(options.reward)) else {}),
                },
                "sources": {
                    **placement,
                    "model": str(model),
                    "set": str(set_folder),
                    "max_model_tokens": models.context(model),
                },
            }
        )

    def notes(self, spec: RunSpec) -> list[str]:
        """Return which terms of the objective nobody chose."""
        return presets.unsaid(spec.recipe, spec.problems)

    def check(self, spec: RunSpec) -> list[Issue]:
        """Return everything that is wrong, before a model is loaded."""
        options = RealOptions.of(spec)
        stored = _read_set(spec.sources["set"], models.stamp(Path(spec.sources["set"])))
        return [
            *_missing(options),
            *_recipe_issues(spec),
            *_size_issues(spec, stored),
            *_evaluation_issues(spec, stored),
            *(_placement_issues(options) or memory.issues(spec)),
            *_prompt_issues(
                spec.sources["set"],
                spec.sources["model"],
                spec.recipe.max_response_tokens or 1,
                (models.stamp(Path(spec.sources["set"])), models.stamp(Path(spec.sources["model"]))),
            ),
        ]

    def jobs(self, spec: RunSpec) -> int:
        """As many as there are GPUs for their processes, or cores where there is no GPU."""
        return max(1, (environment.gpus() or environment.cores()) // RealOptions.of(spec).processes)

    def needs(self, spec: RunSpec) -> Needs:
        """A core for each process and, where there are any, a GPU; weights and moments on the disk."""
        processes = RealOptions.of(spec).processes
        state = _STATE_BYTES * models.parameters(spec.sources["model"])
        return Needs(processes, processes if environment.gpus() else 0, state)

    def on_machines(self, cpus: int, gpus: int, gpu_bytes: int | None = None) -> AbstractContextManager[None]:
        """Precision, sampler and placement are those of such machines."""
        return environment.on_machines(cpus, gpus, gpu_bytes)

    def processes(self, spec: RunSpec) -> Processes | None:
        """Those of ``real.processes``, under torchrun; None for one that torchrun is not asked for."""
        options = RealOptions.of(spec)
        if options.processes == 1 and not options.torchrun:
            return None
        return Processes(
            _prepared(spec),
            "isolaw.backends.real.train.ranks",
            options.processes,
            options.torchrun,
            threaded=environment.gpus() > 0,
        )

    def run(self, spec: RunSpec, ctx: RunContext) -> Iterator[Checkpoint]:
        """Train, from the start or from ``ctx.state``."""
        spec = _prepared(spec)
        from isolaw.backends.real.train import loop

        return loop.train(spec, ctx.state, ctx.stopping)


BACKEND = Real()


def _prepared(spec: RunSpec) -> RunSpec:
    """Choose GPUs and memory settings for this machine; raise `RunError` if its GPUs are too small."""
    environment.choose_gpus(RealOptions.of(spec).processes)
    environment.prepare()
    if faults := memory.issues(spec):  # of GPUs that were not known where the sweep was planned
        raise RunError("; ".join(map(str, faults)))
    return memory.settled(spec)


def _missing(options: RealOptions) -> list[Issue]:
    needed = (*_NEEDED, "vllm") if options.sampler == "vllm" else _NEEDED
    return [
        Issue(
            "sweep.backend", f"{name} is not installed; `isolaw doctor` says how to install it", found="real"
        )
        for name in needed
        if not environment.installed(name)
    ]


@functools.lru_cache(maxsize=8)
def _set_issues(folder: str, stamp: str) -> tuple[Issue, ...]:
    try:
        _read_set(folder, stamp)
    except SpecError as error:
        return tuple(error.issues)
    return ()


@functools.lru_cache(maxsize=8)
def _read_set(folder: str, stamp: str) -> ProblemSet:
    return ProblemSet.read(folder)


def _sizes(spec: RunSpec, stored: ProblemSet) -> dict[str, int]:
    """How many problems of each part: what is asked for, or all."""
    return {
        f"n_{part}": getattr(spec.problems, f"n_{part}") or len(stored.parts[part])
        for part in ("train", "validation")
    }


def _recipe_issues(spec: RunSpec) -> list[Issue]:
    out = list(presets.recipe_issues(spec.recipe, spec.rollouts_per_problem))
    if spec.recipe.staleness >= spec.steps > 0:
        accepted = f"fewer than the run's steps, M = {spec.steps} at n = {spec.rollouts_per_problem}"
        out.append(Issue("recipe.staleness", found=spec.recipe.staleness, accepted=accepted))
    return out


def _size_issues(spec: RunSpec, stored: ProblemSet) -> list[Issue]:
    out = []
    for part in ("train", "validation"):
        asked, there = getattr(spec.problems, f"n_{part}"), len(stored.parts[part])
        if asked > there:
            accepted = f"at most the {there:,} of {spec.sources['set']}"
            out.append(Issue(f"problems.n_{part}", found=asked, accepted=accepted))
    assert spec.problems.n_train is not None
    if spec.problems_per_batch > spec.problems.n_train and not spec.recipe.replacement:
        out.append(
            Issue(
                "grid.problems_per_batch",
                "a batch takes distinct problems",
                found=spec.problems_per_batch,
                accepted=f"at most problems.n_train = {spec.problems.n_train}",
            )
        )
    return out


def _evaluation_issues(spec: RunSpec, stored: ProblemSet) -> list[Issue]:
    out = [
        Issue(
            "evaluation.sets",
            found=name,
            accepted=", ".join(stored.parts),
            nearest=nearest(name, stored.parts),
        )
        for name in spec.evaluation.sets
        if name not in stored.parts
    ]
    out += [
        Issue(
            "evaluation.metrics",
            found=name,
            accepted=f"avg@k, best@k, worst@k, k ≤ evaluation.samples = {spec.evaluation.samples}",
        )
        for name in spec.evaluation.metrics
        if (parsed := metrics.parse(name)) is None or parsed[1] > spec.evaluation.samples
    ]
    return out


def _placement_issues(options: RealOptions) -> list[Issue]:
    out = []
    tensor_parallel = options.tensor_parallel or 1
    if options.processes % tensor_parallel:
        accepted = f"a divisor of real.processes = {options.processes}"
        out.append(Issue("real.tensor_parallel", found=tensor_parallel, accepted=accepted))
    elif (decoder := Decoder.read(options.model)) and not decoder.splits(tensor_parallel):
        heads = f"the model's {decoder.query // decoder.head_size} query heads and "
        heads += f"{decoder.key_value // decoder.head_size} key heads cannot be divided so"
        fitting = [n for n in range(1, options.processes + 1) if options.processes % n == 0]
        accepted = ", ".join(str(n) for n in fitting if decoder.splits(n))
        out.append(Issue("real.tensor_parallel", heads, found=tensor_parallel, accepted=accepted))
    if tensor_parallel > 1 and not environment.gpus():
        out.append(Issue("real.tensor_parallel", "needs GPUs", found=tensor_parallel, accepted="1"))
    if environment.gpus() and options.processes > environment.gpus() and not options.torchrun:
        accepted = f"at most one for each GPU ({environment.gpus()})"
        out.append(Issue("real.processes", found=options.processes, accepted=accepted))
    cores = environment.cores()
    if not environment.gpus() and options.processes > cores:
        accepted = f"at most one for each core ({cores})"
        out.append(Issue("real.processes", found=options.processes, accepted=accepted))
    return out


@functools.lru_cache(maxsize=64)
def _prompt_issues(
    folder: str, model: str, max_response_tokens: int, stamps: tuple[str, str]
) -> tuple[Issue, ...]:
    if not environment.installed("transformers"):
        return ()
    from isolaw.backends.real.rollout.prompts import check_lengths

    try:
        tokenizer = models.tokenizer(model)
    except DataError as error:
        return (Issue("real.model", str(error)),)
    stored = _read_set(folder, stamps[0])
    return tuple(check_lengths(stored, tokenizer, models.context(model), max_response_tokens))
