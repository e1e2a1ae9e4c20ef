"""Implement ``isolaw problems``: check its arguments, open the split in its folder, and load the model.

A pool of problems is a file, or a data set: a folder of Parquet and JSONL files, here or on the Hugging Face
Hub (``hf://datasets/OWNER/NAME``, `isolaw.readers.hub`).

The *parts* of a data set are its files without shard numbers, such as ``main/train`` for
``main/train-00000-of-00002.parquet``. If there are several parts, the user must name one.
"""

from __future__ import annotations

import math
import os
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from isolaw import commands
from isolaw.arguments import checked
from isolaw.backends.real import environment, models
from isolaw.backends.real.rollout import rewards
from isolaw.backends.real.rollout.difficulty import Draw, SplitFolder, SplitSettings
from isolaw.backends.real.rollout.problems import KINDS, Problem, ProblemSet, read_files
from isolaw.backends.real.rollout.prompts import Chat, check_lengths, encode
from isolaw.errors import DataError, Issue, SpecError, nearest
from isolaw.files import Walk
from isolaw.readers.hub import local

_SHARD = re.compile(r"-\d{5}-of-\d{5}(-[0-9a-f]+)?$|/\d{4}$")
_SHOWN = 12
_GPU_MEMORY = 0.9  # there is no trainer that needs GPU memory


@checked
def split(
    model: str | Path,
    problems: str,
    out: str | Path,
    *,
    reward: str = "exact",
    sampler: str | None = None,
    temperature: float = 0.6,
    max_response_tokens: int = 1024,
    **options: Any,
) -> dict[str, Any]:
    """Sort a pool of problems into easy, hard and extremely hard sets by a base model's pass rate.

    Arguments and result are as in ``isolaw problems``. ``options`` can contain ``part`` and ``columns`` of
    the pool, and other fields of `SplitSettings`. A second call with the same ``out`` continues the split.
    Raise `SpecError` with all issues of the arguments before a model is loaded.
    """
    chosen = {"reward": reward, "sampler": sampler, "temperature": temperature, **options}
    work = open_split(str(model), problems, str(out), {**chosen, "max_response_tokens": max_response_tokens})
    if work.left:
        with closing(rewards.get(reward, where="--reward", folder=os.getcwd())) as judge:
            for _ in work.measure(open_draw(str(model), work.problems, work.settings), judge):
                pass
    return work.write()


def open_split(model: str, pool: str, out: str, options: dict[str, Any]) -> SplitFolder:
    """Return the split of a pool of problems by the model in a folder; the split is in the folder ``out``.

    `_read_pool` reads ``pool``. ``options`` are ``part`` and ``columns`` of the pool, and the other fields
    of `SplitSettings`. The default sampler is vLLM, if it is installed. Raise `SpecError` with all issues of
    the model, the problems and their lengths, the reward, and the folder.
    """
    options["sampler"] = options["sampler"] or ("vllm" if environment.installed("vllm") else "transformers")
    part, columns = options.pop("part", None), options.pop("columns", None)
    wrong_model = models.check(model, where="--model")
    issues = [*wrong_model, *_out_issues(out)]
    issues += [
        Issue(
            f"--{key}", f"{name} is not installed; `{commands.doctor()}` prints the command that installs it"
        )
        for key, name in (("model", "transformers"), ("model", "torch"), ("sampler", options["sampler"]))
        if not environment.installed(name)
    ]
    issues += rewards.check(options["reward"], where="--reward", folder=os.getcwd())
    if not math.isfinite(options["temperature"]):
        issues.append(Issue("--temperature", found=options["temperature"], accepted="above 0, at most 10"))
    problems: list[Problem] = []
    try:
        models.folder(pool, "--problems")
        problems = _read_pool(pool, part, columns)
    except SpecError as error:
        issues += error.issues
    if problems:
        issues += rewards.answer_issues(options["reward"], problems, "--problems")
    stored = ProblemSet(pool, {"": problems})
    if problems and (options.get("validation") or 0) >= len(problems):
        accepted = f"fewer than the {len(problems):,} problems"
        issues.append(Issue("validation", found=options.get("validation"), accepted=accepted))
    if problems and not wrong_model and environment.installed("transformers"):
        try:
            tokenizer, key = models.tokenizer(model), "--max-response-tokens"
            room = options["max_response_tokens"]
            chat = Chat.of(options.get("system"), options.get("chat_template"))
            issues += chat.issues(tokenizer, "--chat-template")
            issues += check_lengths(stored, tokenizer, models.context(model), room, key, chat)
        except DataError as error:
            issues.append(Issue("--model", str(error)))
    if issues:
        raise SpecError(issues)
    settings = SplitSettings(model=models.digest(model), pool=stored.digest(""), **options)
    return SplitFolder(out, problems, settings)


def _out_issues(out: str) -> list[Issue]:
    try:
        models.folder(out, "--out")
    except SpecError as error:
        return error.issues
    target = Path(out).absolute()
    above = next(path for path in (target, *target.parents) if os.path.lexists(path))
    if above.is_dir():
        return []
    note = f"{above}: {'a file' if above.exists() else 'a broken link'}"
    return [Issue("--out", note, accepted="a new folder, or the folder of an earlier split")]


def open_draw(model: str, problems: Sequence[Problem], settings: SplitSettings) -> Draw:
    """Load the model into a sampler with enough context for these problems; return a `Draw` function."""
    environment.prepare()
    from isolaw.backends.real.rollout.sampler_group import open_sampler
    from isolaw.backends.real.rollout.samplers import SamplerSettings

    dtype = "bfloat16" if environment.gpus() else "float32"
    tokenizer, room = models.tokenizer(model), settings.max_response_tokens
    chat = Chat.of(settings.system, settings.chat_template)
    longest = max((len(prompt) for prompt in encode(problems, tokenizer, chat)), default=1)
    gpus = environment.gpus()
    sampling = SamplerSettings(
        settings.sampler, model, dtype, longest + room, gpu_memory=_GPU_MEMORY,
        processes=gpus if gpus > 1 else None,
    )  # fmt: skip
    sampler = open_sampler(sampling)

    def draw(problems: Sequence[Problem], seeds: Sequence[Sequence[int]]) -> list[str]:
        prompts, temperature = encode(problems, tokenizer, chat), settings.temperature
        drawn = sampler.generate(prompts, seeds, temperature=temperature, top_p=1.0, max_tokens=room)
        return list(tokenizer.batch_decode(drawn.tokens, skip_special_tokens=True))

    return draw


def _read_pool(name: str, part: str | None = None, columns: Mapping[str, str] | None = None) -> list[Problem]:
    """Return the problems of a file, or of a part of a data set.

    ``columns`` maps ``prompt``, ``answer`` and ``id`` to the data set's column names, with dots for nested
    fields (``answer=reward_model.ground_truth``). In a data set, rows with the same prompt and no id are
    different problems; a split uses only the first of them. Raise `SpecError` with all issues.
    """
    try:
        place = Path(local(name))
    except DataError as error:
        raise SpecError([Issue("--problems", str(error))]) from None
    if not place.is_dir():
        if part is not None:
            raise SpecError([Issue("--part", "only a data set has splits", part)])
        return read_files([place], columns, repeats=place != Path(name))
    parts = _parts_of(place)
    shown = ", ".join([*parts][:_SHOWN]) + (" …" if len(parts) > _SHOWN else "")
    if not parts:
        accepted = f"{' or '.join(KINDS)} files"
        raise SpecError([Issue("--problems", f"{place}: the folder has no data", accepted=accepted)])
    if part is None and len(parts) > 1:
        raise SpecError([Issue("--part", f"{name} has several splits", accepted=f"one of {shown}")])
    if part is not None and part not in parts:
        raise SpecError([Issue("--part", found=part, accepted=shown, nearest=nearest(part, parts))])
    return read_files(parts[part or next(iter(parts))], columns, repeats=True)


def _parts_of(place: Path) -> dict[str, list[Path]]:
    """Return the files of each part of a data set, in the order of their names."""
    parts: dict[str, list[Path]] = defaultdict(list)
    for path in sorted(Walk(place)):
        if path.suffix not in KINDS:
            continue
        parts[_SHARD.sub("", str(path.relative_to(place).with_suffix("")))].append(path)
    return dict(parts)
