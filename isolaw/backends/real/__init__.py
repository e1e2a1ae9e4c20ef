"""The real backend: GRPO on language models, with vLLM for sampling and DeepSpeed for optimisation.

`train.loop` executes a run. `algorithms` defines the objectives and presets, `rollout` samples and scores
responses, and `train` optimises the model. `options` parses the ``[real]`` section. Importing this module
loads neither torch nor vLLM.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from isolaw import commands, metrics
from isolaw.backend import Backend, Checkpoint, Needs, Outlook, Processes, RunContext
from isolaw.backends.real import environment, models
from isolaw.backends.real.algorithms import lora, presets
from isolaw.backends.real.options import IDENTITY, OPTIONAL_IDENTITY, RealOptions
from isolaw.backends.real.rollout import rewards
from isolaw.backends.real.rollout.problems import ProblemSet
from isolaw.backends.real.rollout.prompts import (
    Chat,
    check_lengths,
    check_phrase,
    encode_phrase,
)
from isolaw.backends.real.train.memory import planner, step_time
from isolaw.config import RunSpec
from isolaw.errors import DataError, Issue, RunError, SpecError, nearest
from isolaw.registry import BACKENDS
from isolaw.step_cost import Cost

_COLDEST = 0.01  # vLLM raises lower temperatures to this value
_STATE_BYTES = 12  # bytes per parameter: weight and both moments in float32


class _RealBackend(Backend):
    """The `Backend` that trains language models."""

    name = "real"
    version = 3

    def resolve(self, spec: RunSpec) -> RunSpec:
        """Fill in the recipe, the machine-dependent keys, and the hashes of the model and the problems."""
        folder, problem_set, issues = _find_problems(spec.problems.set)
        options = None
        try:
            options = RealOptions.read(spec)
        except SpecError as error:
            issues += error.issues
        faulty_keys = {issue.where for issue in issues}
        reward, modules = spec.options.get("reward"), spec.options.get("modules")
        modules_folder = os.path.abspath(modules) if isinstance(modules, str) else None
        if isinstance(name := spec.options.get("model"), str) and "real.model" not in faulty_keys:
            issues += models.check(name, weights=False)
        if isinstance(reward, str) and "real.reward" not in faulty_keys:
            issues += rewards.check(reward, folder=modules_folder)
        recipe = presets.resolve_recipe(spec.recipe, spec.problems.difficulty)
        filled = spec.model_copy(update={"recipe": recipe, "sources": {"set": str(folder)}})
        if problem_set:  # use all problems of a part unless the sweep file sets a number
            sizes = {
                f"n_{part}": getattr(spec.problems, f"n_{part}") or len(problem_set.parts[part])
                for part in ("train", "validation")
            }
            problems = spec.problems.model_copy(update={"set": problem_set.name, **sizes})
            filled = filled.model_copy(update={"problems": problems})
        if issues or problem_set is None or options is None:  # `check` will not run: report its issues here
            issues += _recipe_issues(filled)
            if problem_set:
                issues += [*_size_issues(filled, problem_set), *_evaluation_issues(filled, problem_set)]
            raise SpecError(issues)
        model = Path(options.model).resolve()
        placement = options.model_dump(mode="json", exclude_none=True)
        identity = {key: placement.pop(key) for key in IDENTITY}
        identity |= {key: placement.pop(key) for key in OPTIONAL_IDENTITY if key in placement}
        if options.generation == "async" and recipe.staleness:  # otherwise it affects no result
            identity["generation"] = placement.pop("generation")
        used = sorted({"train", *spec.evaluation.sets} & set(problem_set.parts))
        content = {"model": models.digest(model), **{part: problem_set.digest(part) for part in used}}
        if file_hash := rewards.digest(options.reward, options.modules):
            content["reward"] = file_hash
        sources = {"model": str(model), "set": str(folder), "max_model_tokens": models.context(model)}
        update = {"backend_version": self.version, "options": identity, "content": content}
        resolved = filled.model_copy(update={**update, "sources": placement | sources})
        return resolved if "processes" in spec.options else planner.with_processes(resolved)

    def notes(self, spec: RunSpec) -> list[str]:
        """Return notes on the code that runs execute, on unset objective terms, and on LoRA's defaults."""
        try:
            options = RealOptions.read(spec)
        except SpecError:  # `resolve` reports its issues
            return []
        file = rewards.file_of(options.reward, options.modules)
        code = [f"real.reward = {options.reward!r} executes {file}"] if file else []
        if not models.has_weights(options.model):
            code.append(f"{options.model} has no weights here: isolaw can only plan with the model's sizes")
        return [
            *code,
            *presets.notes_on_defaults(spec.recipe, spec.problems),
            *lora.notes_on_defaults(spec.recipe),
        ]

    def check(self, spec: RunSpec) -> list[Issue]:
        """Return all issues that can be found without loading the model."""
        options = RealOptions.of(spec)
        folder, problem_set, issues = _find_problems(spec.sources["set"])
        if problem_set is None:
            return issues
        response_tokens, phrase = spec.recipe.max_response_tokens or 1, spec.recipe.interrupt_phrase
        placement_issues = [*lora.issues(spec.recipe, options.model), *_placement_issues(options)]
        return [
            *_recipe_issues(spec),
            *_size_issues(spec, problem_set),
            *_evaluation_issues(spec, problem_set),
            *(placement_issues or planner.issues(spec)),
            *_async_issues(spec, options),
            *_prompt_issues(str(folder), options.model, response_tokens, phrase, options.chat),
            *_unreadable_answers(str(folder), options.reward),
        ]

    def check_code(self, spec: RunSpec) -> list[Issue]:
        """Return the issues that a dry run does not have: of packages, weights and reward functions."""
        options = RealOptions.of(spec)
        packages = [*_missing_packages(options), *lora.package_issues(spec.recipe)]
        return [*packages, *models.check(options.model)] or rewards.check_code(
            options.reward, folder=options.modules
        )

    def jobs(self, spec: RunSpec) -> int:
        """Return how many runs fit on this machine at a time, by GPUs and host memory, else by cores."""
        options = RealOptions.of(spec)
        if gpus := environment.gpus():
            return max(1, min(gpus // options.cores, planner.runs_at_a_time(spec)))
        return max(1, environment.cores() // options.cores)

    def needs(self, spec: RunSpec) -> Needs:
        """Return the cores, GPUs and disk space that a run needs.

        Every process gets one core and, if there are GPUs, one GPU. Samplers in separate processes count as
        processes. The disk space is for the weights and the optimiser's moments. If a run uses several
        machines, each gets the same number of trainer processes and the same number of samplers.
        """
        options, folder = RealOptions.of(spec), spec.sources["model"]
        adapters = lora.LoRA.of(spec.recipe)
        decoder = models.decoder(folder)
        state_bytes = _STATE_BYTES * (adapters.parameter_count(folder) if adapters else decoder.parameters)
        if spec.recipe.algorithm == "ppo" and adapters:
            state_bytes *= 2
        elif spec.recipe.algorithm == "ppo":  # includes the critic
            state_bytes += _STATE_BYTES * decoder.critic.parameters
        equal_groups = math.gcd(options.processes, options.streaming)
        return Needs(options.cores, options.cores if environment.gpus() else 0, state_bytes, equal_groups)

    def on_machines(
        self, cpus: int, gpus: int, gpu_bytes: int | None = None, gpu: str = ""
    ) -> AbstractContextManager[None]:
        """Return a context in which precision, sampler and placement are chosen for the given machines."""
        return environment.on_machines(cpus, gpus, gpu_bytes, gpu)

    def outlook(self, runs: Sequence[RunSpec], folder: Callable[[RunSpec], Path], nodes: int = 1) -> Outlook:
        """Return the memory plans of the runs, or a note on why no plan exists."""
        note = planner.unplanned_reason(runs[0]) if runs else None
        return Outlook(memory=planner.plan_tables(runs), notes=[note] if note else [])

    def estimate(self, spec: RunSpec) -> Cost | None:
        """Return the cost of a run's steps, estimated from the sizes of its model, its batch and its GPUs."""
        plan = planner.plan_of(spec)
        if plan is None:
            return None
        return step_time.cost(spec, plan.demand, plan.options, plan.cache_bytes, environment.gpu_name())

    def processes(self, spec: RunSpec) -> Processes | None:
        """Return the processes of a run, or None if it uses a single process."""
        options = RealOptions.of(spec)
        if options.processes == 1:
            return None
        module, on_gpus = "isolaw.backends.real.train.ranks", environment.gpus() > 0
        return Processes(_with_memory_settings(spec), module, options.processes, threaded=on_gpus)

    def run(self, spec: RunSpec, ctx: RunContext) -> Iterator[Checkpoint]:
        """Train from the start, or resume from ``ctx.state``."""
        spec = _with_memory_settings(spec)
        with environment.importing():
            from isolaw.backends.real.train import loop

        return loop.train(spec, ctx.state, ctx.stopping)


BACKEND = _RealBackend()


def _with_memory_settings(spec: RunSpec) -> RunSpec:
    """Return the spec with memory settings for this machine; raise `RunError` if its GPUs are too small."""
    environment.prepare()
    if faults := planner.issues(spec):  # the machine that planned the sweep may not have known these GPUs
        raise RunError("; ".join(map(str, faults)))
    return planner.with_placement(spec)


def _find_problems(name: str) -> tuple[Path, ProblemSet | None, list[Issue]]:
    """Return a problem set's folder, its content, and its issues; the content is None if there are issues."""
    try:
        folder = models.folder(name, "problems.set")
    except SpecError as error:
        return Path(name), None, error.issues
    problem_set, issues = _read_set(str(folder))
    if not folder.is_dir():
        issues = tuple(
            replace(issue, where="problems.set", message=f"{folder}: {issue.message}") for issue in issues
        )
    return folder, problem_set, list(issues)


@models.cached(folders=1)
def _read_set(folder: str) -> tuple[ProblemSet | None, tuple[Issue, ...]]:
    try:
        return ProblemSet.read(folder), ()
    except SpecError as error:
        return None, tuple(error.issues)


@models.cached(folders=1)
def _unreadable_answers(folder: str, reward: str) -> tuple[Issue, ...]:
    problem_set, _ = _read_set(folder)
    assert problem_set is not None
    return tuple(
        issue
        for part, problems in problem_set.parts.items()
        for issue in rewards.answer_issues(reward, problems, str(problem_set.files[part]))
    )


def _missing_packages(options: RealOptions) -> list[Issue]:
    names = (*BACKENDS["real"].packages, *(["vllm"] if options.sampler == "vllm" else []))
    note = f"is not installed; `{commands.doctor()}` prints the command that installs it"
    return [
        Issue("sweep.backend", f"{name} {note}", "real") for name in names if not environment.installed(name)
    ]


def _recipe_issues(spec: RunSpec) -> list[Issue]:
    out = list(presets.recipe_issues(spec.recipe, spec.rollouts_per_problem))
    if (spec.recipe.staleness or 0) >= spec.steps > 0:
        accepted = f"fewer than the run's steps, M = {spec.steps} at n = {spec.rollouts_per_problem}"
        out.append(Issue("recipe.staleness", found=spec.recipe.staleness, accepted=accepted))
    if spec.problems_per_batch % spec.recipe.minibatches:
        accepted = f"a divisor of B_p = {spec.problems_per_batch}"
        out.append(Issue("recipe.minibatches", found=spec.recipe.minibatches, accepted=accepted))
    return out


def _size_issues(spec: RunSpec, problem_set: ProblemSet) -> list[Issue]:
    out = []
    for part in ("train", "validation"):
        size, largest = getattr(spec.problems, f"n_{part}"), len(problem_set.parts[part])
        if size > largest:
            accepted = f"at most the {largest:,} of {spec.sources['set']}"
            out.append(Issue(f"problems.n_{part}", found=size, accepted=accepted))
    n_train = spec.problems.n_train or 0
    if spec.problems_per_batch > n_train and not spec.recipe.replacement:
        note, accepted = "a batch takes distinct problems", f"at most problems.n_train = {n_train}"
        out.append(Issue("grid.problems_per_batch", note, spec.problems_per_batch, accepted))
    return out


def _evaluation_issues(spec: RunSpec, problem_set: ProblemSet) -> list[Issue]:
    set_names, samples = ", ".join(problem_set.parts), spec.evaluation.samples
    out = [
        Issue("evaluation.sets", found=name, accepted=set_names, nearest=nearest(name, problem_set.parts))
        for name in spec.evaluation.sets
        if name not in problem_set.parts
    ]
    if (temperature := spec.evaluation.temperature) is not None and temperature < _COLDEST:
        out.append(Issue("evaluation.temperature", found=temperature, accepted=f"at least {_COLDEST}"))
    accepted = f"avg@k, best@k, worst@k, k ≤ evaluation.samples = {samples}"
    return out + [
        Issue("evaluation.metrics", found=name, accepted=accepted)
        for name in spec.evaluation.metrics
        if (parsed := metrics.parse(name)) is None or parsed[1] > samples
    ]


def _placement_issues(options: RealOptions) -> list[Issue]:
    out = []
    processes, gpus, cores = options.processes, environment.gpus(), environment.cores()
    if gpus and processes > gpus:
        out.append(Issue("real.processes", found=processes, accepted=f"at most one for each GPU ({gpus})"))
    elif gpus > 1 and options.cores > gpus:
        note, key = f"{options.cores} processes train and sample, each on a separate GPU", "samplers"
        accepted = f"at most {gpus - processes} of the {gpus} GPUs with real.processes = {processes}"
        if gpus == processes:
            key, accepted = "processes", f"at most {gpus - 1} of the {gpus} GPUs, and the others sample"
        out.append(Issue(f"real.{key}", note, getattr(options, key), accepted))
    for key, count in (("processes", processes), ("samplers", options.streaming)):
        if not gpus and count > cores:
            out.append(Issue(f"real.{key}", found=count, accepted=f"at most one for each core ({cores})"))
    return out


def _async_issues(spec: RunSpec, options: RealOptions) -> list[Issue]:
    """Return the issues of ``generation`` and ``samplers``: settings that do not work with async sampling."""
    colocated = 'real.generation = "colocated"'
    if options.generation == "colocated":
        note, accepted = "colocated processes do their own sampling", 'none, or real.generation = "async"'
        return [Issue("real.samplers", note, options.samplers, accepted)] if options.samplers else []
    out, gpus = [], environment.gpus()
    if (gpus or environment.cores()) == 1:
        unit = "GPU" if gpus else "core"
        note = f"the sampler needs a separate {unit}"
        out.append(Issue("real.generation", note, "async", f"{colocated}, or a machine with 2 {unit}s"))
    if spec.recipe.interrupt_at is not None:
        note = "interrupting a response requires two requests, but a streaming sampler makes only one"
        accepted = f"no such key, or {colocated}"
        out.append(Issue("recipe.interrupt_at", note, list(spec.recipe.interrupt_at), accepted))
    if spec.recipe.staleness and (spec.recipe.top_p or 1.0) < 1:
        note = "the recorded log-probabilities would belong to the truncated distribution, not to a policy"
        out.append(Issue("recipe.top_p", note, spec.recipe.top_p, f"1, or {colocated}"))
    return out


@models.cached(folders=2, maxsize=64)
def _prompt_issues(
    folder: str, model: str, response_tokens: int, phrase: str | None, chat: Chat
) -> tuple[Issue, ...]:
    """Return issues of the prompts or the interruption phrase, for responses of ``response_tokens``."""
    if not environment.installed("transformers") or not models.has_weights(model):
        return ()
    try:
        tokenizer = models.tokenizer(model)
    except DataError as error:
        return (Issue("real.model", str(error)),)
    if phrase is not None:
        if issues := check_phrase(phrase, tokenizer):
            return tuple(issues)
        response_tokens += len(encode_phrase(phrase, tokenizer))
    problem_set, _ = _read_set(folder)
    assert problem_set is not None
    issues = chat.issues(tokenizer, "real.chat_template")
    issues += check_lengths(problem_set, tokenizer, models.context(model), response_tokens, chat=chat)
    return tuple(issues)
