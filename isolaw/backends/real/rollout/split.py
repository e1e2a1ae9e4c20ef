"""Sort problems into sets by a base model's pass rate on them (`isolaw problems`).

The sets are defined as in the IsoCompute Playbook (arXiv 2603.12151, App. A). With c correct answers in K =
16 samples of a problem, they are ::

    easy             0.3 ≤ c / K ≤ 0.6
    hard             c / K ≤ 0.0625, and solved at least once
    extremely hard   never solved in these 16 samples or in 128 more: pass@128 = 0

Other problems belong to no set. The same samples select the problems and measure avg@16. A set's avg@16
therefore regresses to the mean of the pool when measured again. For example, the tiny model's hard set has
0.029 at selection and 0.07 in new samples.

The folder of a split contains the sets, ``split.json`` and ``counts.jsonl``. The file ``split.json`` has the
settings and, after the end, the report. The file ``counts.jsonl`` has each problem's samples and correct
answers, written as they are measured. The seeds of samples are derived from the problem, so the same command
continues an interrupted split with the same result.

A pool of problems is a .jsonl or .parquet file.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from isolaw import commands
from isolaw.backends.real import environment, models
from isolaw.backends.real.rollout import rewards
from isolaw.backends.real.rollout.problems import Problem, ProblemSet, read_pool, words_of, write_set
from isolaw.backends.real.rollout.prompts import Chat, check_lengths, encode, turn_ends
from isolaw.documents.reading import read_json
from isolaw.errors import DataError, InputError, Issue, SpecError
from isolaw.files import check_destination, open_file, replacing

_EASY_MINIMUM, _EASY_MAXIMUM, _HARD_MAXIMUM = 0.3, 0.6, 0.0625
_SETS = ("easy", "hard", "extremely-hard")
_VALIDATION_SIZE = 300  # held-out problems of a set, as in the paper, but at most a fifth of the set
_FORMAT = "isolaw.split/1"
_ROLLOUTS_AT_ONCE = 4096
_GPU_MEMORY = 0.9  # there is no trainer that needs GPU memory

# A function that samples responses. Arguments: the problems, and the seeds of each problem. Returns the texts
# of the responses, grouped by problem.
Draw = Callable[[Sequence[Problem], Sequence[Sequence[int]]], list[str]]


@dataclass(frozen=True)
class _SplitSettings:
    """The settings that determine the result of a split."""

    model: str  # content hash of the model
    pool: str  # content hash of the problems
    reward: str  # name of the reward; a response with a reward of at least 1 solves a problem
    sampler: str  # vllm and transformers draw different samples from the same seed
    temperature: float
    max_response_tokens: int
    samples: int = 16  # samples of each problem
    more_samples: int = 128  # additional samples of each unsolved problem
    validation: int | None = None  # held-out problems of each set; None: 300, but at most a fifth
    seed: int = 0  # seed of the samples
    system: str | None = None  # a system message before each prompt
    chat_template: dict[str, Any] | None = None  # arguments for the tokenizer's chat template


def _difficulty(correct: int, samples: int, more_correct: int | None = None) -> str | None:
    """Return the set of a problem with ``correct`` of ``samples`` solved, or None if it belongs to no set.

    ``more_correct`` is the number of correct answers in the additional samples of an unsolved problem.

    >>> [_difficulty(c, 16) for c in (16, 9, 5, 4, 2, 1)]
    [None, 'easy', 'easy', None, None, 'hard']
    >>> _difficulty(0, 16, more_correct=1), _difficulty(0, 16, more_correct=0)
    ('hard', 'extremely-hard')
    """
    pass_rate = correct / samples
    if _EASY_MINIMUM <= pass_rate <= _EASY_MAXIMUM:
        return "easy"
    if pass_rate > _HARD_MAXIMUM:
        return None
    return "hard" if correct or more_correct else "extremely-hard"


class SplitFolder:
    """A complete or incomplete split in a folder.

    Only the first of several problems with the same prompt is used. Raise `DataError` if the folder already
    contains sets, or a split with other settings; the folder is then left unchanged.
    """

    def __init__(self, folder: str | Path, problems: Sequence[Problem], settings: _SplitSettings) -> None:
        self.folder, self.settings = Path(folder), settings
        for name in ("split.json", "counts.jsonl", "split.log"):
            check_destination(self.folder / name)  # any of these files could be a link
        self._stages = (settings.samples, settings.more_samples)  # samples of a problem in each stage
        self.problems = list({words_of(p.prompt): p for p in reversed(problems)}.values())[::-1]
        self.repeated_prompts = len(problems) - len(self.problems)
        self._header, self._counts_file = self.folder / "split.json", self.folder / "counts.jsonl"
        self.report = self._read_header()
        # Correct answers in the first and the additional samples, by the id of the problem.
        self.counts: dict[str, list[int]] = {}
        if self._counts_file.exists():
            self._read_counts()

    def _read_header(self) -> dict[str, Any] | None:
        """Return the report of a complete split, else None; raise `DataError` if it has other data."""
        if not os.path.lexists(self._header):
            names = [name for name in (*_SETS, self._counts_file.name) if os.path.lexists(self.folder / name)]
            if names:
                raise DataError(
                    f"{self.folder}: the folder already contains {', '.join(names)}; choose another folder"
                )
            return None
        try:
            state = read_json(self._header)
            stored, report = dict(state["settings"]), state["report"]
        except (InputError, ValueError, KeyError, TypeError):
            raise DataError(f"{self._header}: not a file of isolaw problems; it is left unchanged") from None
        ours = asdict(self.settings)
        differences = [f"{k} {stored.get(k)!r}, not {ours[k]!r}" for k in ours if stored.get(k) != ours[k]]
        if differences:
            raise DataError(
                f"{self.folder}: the folder contains another split ({'; '.join(differences)}); "
                "choose another folder"
            )
        return report

    def _read_counts(self) -> None:
        """Read the counts; skip an incomplete last line."""
        try:
            content = _whole_lines(self._counts_file)
        except OSError as error:
            raise DataError(f"{self._counts_file}: {error.strerror or error}") from None
        for number, line in enumerate(content.split(b"\n")[:-1], 1):
            try:
                count = json.loads(line)
                counts, correct = self.counts.setdefault(str(count["id"]), []), count["correct"]
                samples = self._stages[len(counts)]
                if type(correct) is not int or count["samples"] != samples or not 0 <= correct <= samples:
                    raise ValueError
            except (ValueError, KeyError, TypeError, IndexError, RecursionError):
                where = f"{self._counts_file}:{number}"
                raise DataError(f"{where}: not a line of isolaw problems; it is left unchanged") from None
            counts.append(correct)

    @property
    def left(self) -> int:
        """Number of remaining rollouts known so far; each unsolved problem adds more."""
        return sum(samples * len(self._remaining(stage)) for stage, samples in enumerate(self._stages))

    def _remaining(self, stage: int) -> list[Problem]:
        """Return the problems to sample in a stage: 0 for all problems, 1 for those unsolved in stage 0."""
        return [p for p in self.problems if self.counts.get(p.id, []) == [0] * stage]

    def measure(self, draw: Draw, reward: rewards.Reward) -> Iterator[tuple[int, int]]:
        """Sample the remaining problems; after each batch, yield the number of rollouts done and in total."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self._header.exists():
            self._write_header()
        if self._counts_file.exists():  # remove an incomplete last line
            os.truncate(self._counts_file, len(_whole_lines(self._counts_file)))
        done = 0
        with self._counts_file.open("a", encoding="utf-8") as file:
            for stage, samples in enumerate(self._stages):
                remaining = self._remaining(stage)
                at_once = max(1, _ROLLOUTS_AT_ONCE // samples)
                for start in range(0, len(remaining), at_once):
                    batch = remaining[start : start + at_once]
                    seeds = [_seeds(self.settings.seed, problem, stage, samples) for problem in batch]
                    repeated_problems = [problem for problem in batch for _ in range(samples)]
                    solved = rewards.is_correct(reward(repeated_problems, draw(batch, seeds)))
                    counts = solved.reshape(len(batch), samples).sum(1).tolist()
                    for problem, correct in zip(batch, counts, strict=True):
                        self.counts.setdefault(problem.id, []).append(correct)
                        line = {"id": problem.id, "samples": samples, "correct": correct}
                        file.write(json.dumps(line) + "\n")
                    file.flush()
                    done += samples * len(batch)
                    yield done, done + self.left

    def write(self) -> dict[str, Any]:
        """Write the problem sets and the report, and return the report."""
        if self.report is None:
            samples = self.settings.samples
            sets: dict[str, list[Problem]] = {name: [] for name in _SETS}
            for problem in sorted(self.problems, key=lambda p: p.digest):  # independent of the pool's order
                correct, *more_correct = self.counts[problem.id]
                if name := _difficulty(correct, samples, *more_correct):
                    sets[name].append(problem)
            correct_counts = np.array([self.counts[p.id][0] for p in self.problems])
            self.report = {
                "problems": len(self.problems),
                "repeated_prompts": self.repeated_prompts,
                "histogram": np.bincount(correct_counts, minlength=samples + 1).tolist(),
                f"avg@{samples}": float(correct_counts.mean() / samples),
                "sets": {name: self._write_set(name, problems) for name, problems in sets.items()},
            }
            self._write_header()
        return self.report

    def _write_set(self, name: str, problems: list[Problem]) -> dict[str, Any]:
        held_out = self.settings.validation or min(_VALIDATION_SIZE, len(problems) // 5)
        summary: dict[str, Any] = {"problems": len(problems)}
        if problems:
            mean_accuracy = float(np.mean([self.counts[p.id][0] for p in problems])) / self.settings.samples
            summary[f"avg@{self.settings.samples}"] = mean_accuracy
        if not 0 < held_out < len(problems):
            return summary | {"written": False}
        folder, temporary = self.folder / name, self.folder / f".{name}.new"
        if not folder.exists():  # it exists if an earlier call was killed before it wrote the report
            write_set(temporary, {"validation": problems[:held_out], "train": problems[held_out:]})
            temporary.replace(folder)
        return summary | {"written": True, "train": len(problems) - held_out, "validation": held_out}

    def _write_header(self) -> None:
        content = {"format": _FORMAT, "settings": asdict(self.settings), "report": self.report}
        with replacing(self._header) as temporary:
            temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _whole_lines(path: Path) -> bytes:
    with open_file(path) as file:
        content = file.read()
    return content[: content.rfind(b"\n") + 1]


def _seeds(seed: int, problem: Problem, stage: int, samples: int) -> list[int]:
    """Return seeds below 2^63 for a problem's samples, derived from its content and not its position."""
    stream = np.random.SeedSequence([seed, int(problem.digest[:16], 16), stage])
    return [int(word >> np.uint64(1)) for word in stream.generate_state(samples, np.uint64)]


def open_split(model: str, pool: str, out: str, options: dict[str, Any]) -> SplitFolder:
    """Return the split of a pool of problems by the model in a folder; the split is in the folder ``out``.

    ``pool`` is a file of problems. ``options`` are the other fields of `_SplitSettings`. The default sampler
    is vLLM, if it is installed. Raise `SpecError` with all issues of the model, the problems and their
    lengths, the reward, and the folder.
    """
    options["sampler"] = options["sampler"] or ("vllm" if environment.installed("vllm") else "transformers")
    wrong_model = models.check(model, where="--model")
    issues = [*wrong_model, *_output_issues(out)]
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
        problems = read_pool(Path(pool))
    except SpecError as error:
        issues += error.issues
    if problems:
        issues += rewards.answer_issues(options["reward"], problems, "--problems")
    problem_set = ProblemSet(pool, {"": problems})
    if problems and (options.get("validation") or 0) >= len(problems):
        accepted = f"fewer than the {len(problems):,} problems"
        issues.append(Issue("validation", found=options.get("validation"), accepted=accepted))
    if problems and not wrong_model and environment.installed("transformers"):
        try:
            tokenizer, key = models.tokenizer(model), "--max-response-tokens"
            limit = options["max_response_tokens"]
            chat = Chat.of(options.get("system"), options.get("chat_template"))
            issues += chat.issues(tokenizer, "--chat-template")
            issues += check_lengths(problem_set, tokenizer, models.context(model), limit, key, chat)
        except DataError as error:
            issues.append(Issue("--model", str(error)))
    if issues:
        raise SpecError(issues)
    settings = _SplitSettings(model=models.digest(model), pool=problem_set.digest(""), **options)
    return SplitFolder(out, problems, settings)


def _output_issues(out: str) -> list[Issue]:
    try:
        models.folder(out, "--out")
    except SpecError as error:
        return error.issues
    target = Path(out).absolute()
    ancestor = next(path for path in (target, *target.parents) if os.path.lexists(path))
    if ancestor.is_dir():
        return []
    note = f"{ancestor}: {'a file' if ancestor.exists() else 'a broken link'}"
    return [Issue("--out", note, accepted="a new folder, or the folder of an earlier split")]


def open_draw(model: str, problems: Sequence[Problem], settings: _SplitSettings) -> Draw:
    """Load the model into a sampler with enough context for these problems; return a `Draw` function."""
    environment.prepare()
    from isolaw.backends.real.rollout.sampler_group import open_sampler
    from isolaw.backends.real.rollout.samplers import SamplerSettings

    dtype = "bfloat16" if environment.gpus() else "float32"
    tokenizer, limit = models.tokenizer(model), settings.max_response_tokens
    chat = Chat.of(settings.system, settings.chat_template)
    longest = max((len(prompt) for prompt in encode(problems, tokenizer, chat)), default=1)
    gpus = environment.gpus()
    sampling = SamplerSettings(
        settings.sampler, model, dtype, longest + limit, gpu_memory=_GPU_MEMORY,
        processes=gpus if gpus > 1 else None, stop=turn_ends(problems, tokenizer, chat),
    )  # fmt: skip
    sampler = open_sampler(sampling)

    def draw(problems: Sequence[Problem], seeds: Sequence[Sequence[int]]) -> list[str]:
        prompts, temperature = encode(problems, tokenizer, chat), settings.temperature
        rollouts = sampler.generate(prompts, seeds, temperature=temperature, top_p=1.0, max_tokens=limit)
        return list(tokenizer.batch_decode(rollouts.tokens, skip_special_tokens=True))

    return draw
