"""The real backend: GRPO on language models, vLLM for sampling and DeepSpeed for optimisation.

What is where: `loop` is one run, `sampling` and `trainer` are its two halves, `objective`, `advantages` and
`terms` the equations, `recipes` what each algorithm sets, `problems` and `rewards` what is trained on,
`ranks` runs of several processes, `settings` the ``[real]`` section. This module imports nothing heavy.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from isolaw import metrics
from isolaw.backends.base import Checkpoint, RunContext
from isolaw.backends.real import environment, recipes, rewards, settings
from isolaw.backends.real.problems import ProblemSet
from isolaw.errors import Problem, SpecError, nearest
from isolaw.spec import RunSpec

_NEEDED = ("torch", "transformers", "deepspeed")
_BLOCK = 2**24


class Real:
    """`Backend` over language models."""

    name = "real"
    version = 1

    def resolve(self, spec: RunSpec) -> RunSpec:
        """Fill in the recipe, what depends on this machine, and the hashes of model and problems."""
        options = settings.read(spec)
        set_folder, model = Path(spec.problems.set).resolve(), Path(options.model).resolve()
        problems = [*_model_problems(model), *(_set_problems(str(set_folder), _stamp(set_folder)))]
        if problems:
            raise SpecError(problems)
        stored = _read_set(str(set_folder), _stamp(set_folder))
        recipe = recipes.resolve_recipe(spec.recipe, stored.name)
        sizes = {
            f"n_{part}": limit if (limit := getattr(spec.problems, f"n_{part}")) else len(stored.parts[part])
            for part in ("train", "validation")
        }
        placement = options.model_dump(mode="json", exclude_none=True)
        identity = {key: placement.pop(key) for key in settings.IDENTITY}
        parts = {"train", *spec.evaluation.sets} & set(stored.parts)
        return spec.model_copy(
            update={
                "backend_version": self.version,
                "recipe": recipe,
                "problems": spec.problems.model_copy(update={"set": stored.name, **sizes}),
                "options": identity,
                "content": {
                    "model": _hash_of_model(str(model), _stamp(model)),
                    **{part: stored.digest(part) for part in sorted(parts)},
                    **({"reward": hashed} if (hashed := rewards.digest(options.reward)) else {}),
                },
                "sources": {
                    **placement,
                    "model": str(model),
                    "set": str(set_folder),
                    "max_model_tokens": _context(model),
                },
            }
        )

    def check(self, spec: RunSpec) -> list[Problem]:
        """Return everything that is wrong, before a model is loaded."""
        options = settings.of(spec)
        stored = _read_set(spec.sources["set"], _stamp(Path(spec.sources["set"])))
        return [
            *_missing(options),
            *recipes.recipe_problems(spec.recipe, spec.rollouts_per_problem),
            *rewards.check(options.reward),
            *_size_problems(spec, stored),
            *_evaluation_problems(spec, stored),
            *_placement_problems(options),
            *_prompt_problems(
                spec.sources["set"], spec.sources["model"], spec.recipe.max_response_tokens or 1
            ),
        ]

    def jobs(self, spec: RunSpec) -> int:
        """As many as there are GPUs for their processes, or cores where there is no GPU."""
        return max(1, (environment.gpus() or os.cpu_count() or 1) // settings.of(spec).processes)

    def run(self, spec: RunSpec, ctx: RunContext) -> Iterator[Checkpoint]:
        """Train, from the start or from ``ctx.state``; under torchrun for several processes."""
        options = settings.of(spec)
        environment.choose_gpus(options.processes)
        environment.prepare()
        if options.processes > 1 or options.torchrun:
            from isolaw.backends.real import ranks

            return ranks.launch(spec, ctx.state)
        from isolaw.backends.real import loop

        return loop.train(spec, ctx.state)


BACKEND = Real()


def _missing(options: settings.Options) -> list[Problem]:
    needed = (*_NEEDED, "vllm") if options.sampler == "vllm" else _NEEDED
    return [
        Problem(
            "sweep.backend", f"{name} is not installed; `isolaw doctor` says how to install it", found="real"
        )
        for name in needed
        if not environment.installed(name)
    ]


def _model_problems(model: Path) -> list[Problem]:
    if not (model / "config.json").is_file():
        found = "no such folder" if not model.exists() else "no config.json in it"
        note = f"{model}: {found}"
        return [Problem("real.model", note, accepted="the folder of a model in Hugging Face format")]
    if not any(model.glob("*.safetensors")):
        return [Problem("real.model", f"{model}: no *.safetensors in it", accepted="weights as safetensors")]
    try:
        _context(model)
    except (ValueError, KeyError, TypeError):
        return [Problem("real.model", f"{model / 'config.json'}: no max_position_embeddings in it")]
    return []


def _context(model: Path) -> int:
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    return int((config.get("text_config") or config)["max_position_embeddings"])


def _stamp(folder: Path) -> str:
    """What changes when a folder's files do; the key of what is remembered about it."""
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    return repr([(p.name, p.stat().st_size, p.stat().st_mtime_ns) for p in files if p.is_file()])


@functools.lru_cache(maxsize=8)
def _set_problems(folder: str, stamp: str) -> tuple[Problem, ...]:
    try:
        _read_set(folder, stamp)
    except SpecError as error:
        return tuple(error.problems)
    return ()


@functools.lru_cache(maxsize=8)
def _read_set(folder: str, stamp: str) -> ProblemSet:
    return ProblemSet.read(folder)


@functools.lru_cache(maxsize=8)
def _hash_of_model(folder: str, stamp: str) -> str:
    """SHA-256 over what a model is made of: its JSON files and weights, by name."""
    digest = hashlib.sha256()
    for path in sorted(Path(folder).iterdir()):
        if path.suffix in (".json", ".safetensors", ".model", ".jinja") and path.is_file():
            digest.update(path.name.encode())
            with path.open("rb") as file:
                while block := file.read(_BLOCK):
                    digest.update(block)
    return digest.hexdigest()


def _size_problems(spec: RunSpec, stored: ProblemSet) -> list[Problem]:
    out = []
    for part in ("train", "validation"):
        asked, there = getattr(spec.problems, f"n_{part}"), len(stored.parts[part])
        if asked > there:
            accepted = f"at most the {there:,} of {spec.sources['set']}"
            out.append(Problem(f"problems.n_{part}", found=asked, accepted=accepted))
    assert spec.problems.n_train is not None
    if spec.problems_per_batch > spec.problems.n_train and not spec.recipe.replacement:
        out.append(
            Problem(
                "grid.problems_per_batch",
                "a batch takes distinct problems",
                found=spec.problems_per_batch,
                accepted=f"at most problems.n_train = {spec.problems.n_train}",
            )
        )
    return out


def _evaluation_problems(spec: RunSpec, stored: ProblemSet) -> list[Problem]:
    out = [
        Problem(
            "evaluation.sets",
            found=name,
            accepted=", ".join(stored.parts),
            nearest=nearest(name, stored.parts),
        )
        for name in spec.evaluation.sets
        if name not in stored.parts
    ]
    out += [
        Problem(
            "evaluation.metrics",
            found=name,
            accepted=f"avg@k, best@k, worst@k, k ≤ evaluation.samples = {spec.evaluation.samples}",
        )
        for name in spec.evaluation.metrics
        if (parsed := metrics.parse(name)) is None or parsed[1] > spec.evaluation.samples
    ]
    return out


def _placement_problems(options: settings.Options) -> list[Problem]:
    out = []
    if options.processes % options.tensor_parallel:
        accepted = f"a divisor of real.processes = {options.processes}"
        out.append(Problem("real.tensor_parallel", found=options.tensor_parallel, accepted=accepted))
    if options.tensor_parallel > 1 and not environment.gpus():
        out.append(Problem("real.tensor_parallel", "needs GPUs", found=options.tensor_parallel, accepted="1"))
    if environment.gpus() and options.processes > environment.gpus() and not options.torchrun:
        accepted = f"at most one for each GPU ({environment.gpus()})"
        out.append(Problem("real.processes", found=options.processes, accepted=accepted))
    return out


@functools.lru_cache(maxsize=64)
def _prompt_problems(folder: str, model: str, max_response_tokens: int) -> tuple[Problem, ...]:
    if not environment.installed("transformers"):
        return ()
    environment.prepare()
    from transformers import AutoTokenizer

    from isolaw.backends.real.prompts import check_lengths

    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(model)
    except (OSError, ValueError) as error:
        return (Problem("real.model", f"its tokenizer cannot be loaded: {str(error).splitlines()[0]}"),)
    stored = _read_set(folder, _stamp(Path(folder)))
    return tuple(check_lengths(stored, tokenizer, _context(Path(model)), max_response_tokens))
