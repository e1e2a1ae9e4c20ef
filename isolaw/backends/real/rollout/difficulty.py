"""``isolaw split``: problems sorted by how often a base model solves them, into sets of one difficulty.

As in the IsoCompute Playbook (arXiv 2603.12151, App. A), with c correct of K = 16 samples of a problem ::

    easy             0.3 ≤ c / K ≤ 0.6
    hard             c / K ≤ 0.0625, and solved at least once
    extremely hard   never solved, neither in these 16 samples nor in 128 more: pass@128 = 0

The rest belongs to no set. The samples that choose a problem flatter the choice: measured anew, a set's
avg@16 is nearer to that of the whole pool (the tiny model's hard set: 0.029 when chosen, then 0.07).

A folder holds the sets, ``split.json`` (the settings, and at the end the report) and ``counts.jsonl`` (each
problem's samples and correct answers, written as they come). Samples are seeded by the problem, so the same
command continues an interrupted split with the same result.
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

from isolaw.backends.real import environment, models
from isolaw.backends.real.rollout import rewards
from isolaw.backends.real.rollout.problems import Problem, ProblemSet, read_problems, words, write_set
from isolaw.backends.real.rollout.prompts import check_lengths, encode
from isolaw.errors import DataError, Issue, SpecError

EASY_LEAST, EASY_MOST, HARD_MOST = 0.3, 0.6, 0.0625
SETS = ("easy", "hard", "extremely-hard")
VALIDATION = 300  # as many as the paper holds out, but at most a fifth
_FORMAT = "isolaw.split/1"
_ROLLOUTS_AT_ONCE = 4096
_GPU_MEMORY = 0.9  # no trainer needs the rest

# Sample responses: problems and the seeds of each in, the responses' texts out, a problem's together.
Draw = Callable[[Sequence[Problem], Sequence[Sequence[int]]], list[str]]


@dataclass(frozen=True)
class SplitSettings:
    """What decides the result of a split."""

    model: str  # content hash
    pool: str  # content hash of the problems
    reward: str  # its name; a response with a reward of at least 1 solves a problem
    sampler: str  # vllm and transformers draw different samples from the same seed
    temperature: float
    max_response_tokens: int
    samples: int = 16  # of each problem
    more_samples: int = 128  # of each that is never solved
    validation: int | None = None  # problems held out of each set; by default 300, but at most a fifth
    seed: int = 0  # of the samples


def difficulty(correct: int, samples: int, later: int | None = None) -> str | None:
    """Return the set of a problem with ``correct`` of ``samples``, None if it belongs to none.

    ``later`` counts the correct ones of the further samples of a problem that was not solved.

    >>> [difficulty(c, 16) for c in (16, 9, 5, 4, 2, 1)]
    [None, 'easy', 'easy', None, None, 'hard']
    >>> difficulty(0, 16, later=1), difficulty(0, 16, later=0)
    ('hard', 'extremely-hard')
    """
    share = correct / samples
    if EASY_LEAST <= share <= EASY_MOST:
        return "easy"
    if share > HARD_MOST:
        return None
    return "hard" if correct or later else "extremely-hard"


class Split:
    """A split in a folder, complete or not; of problems with the same prompt the first one counts.

    Raises
    ------
    DataError
        the folder has sets in it, or a split with other settings: it is left unchanged.
    """

    def __init__(self, folder: str | Path, problems: Sequence[Problem], settings: SplitSettings) -> None:
        self.folder, self.settings = Path(folder), settings
        self.problems = list({words(p.prompt): p for p in reversed(problems)}.values())[::-1]
        self.repeated = len(problems) - len(self.problems)
        self._file, self._counts_file = self.folder / "split.json", self.folder / "counts.jsonl"
        self.report = self._read_header()
        # Of each problem, by its id: correct answers of the first samples, and of the further ones.
        self.counts: dict[str, list[int]] = {}
        if self._counts_file.exists():
            self._read_counts()

    def _read_header(self) -> dict[str, Any] | None:
        """Return the report of a complete split; raise if the folder is not this split's."""
        if not os.path.lexists(self._file):
            names = [name for name in (*SETS, self._counts_file.name) if os.path.lexists(self.folder / name)]
            if names:
                raise DataError(f"{self.folder}: {', '.join(names)} exists; the folder is left unchanged")
            return None
        try:
            found = json.loads(self._file.read_text(encoding="utf-8"))
            theirs, report = dict(found["settings"]), found["report"]
        except (OSError, ValueError, KeyError, TypeError):
            raise DataError(f"{self._file}: not a file of isolaw split; it is left unchanged") from None
        ours = asdict(self.settings)
        other = [f"{k} {theirs.get(k)!r}, not {ours[k]!r}" for k in ours if theirs.get(k) != ours[k]]
        if other:
            raise DataError(f"{self.folder}: holds another split ({'; '.join(other)}); choose another folder")
        return report

    def _read_counts(self) -> None:
        """Read the counts, but for a last line that was cut."""
        try:
            content = _whole_lines(self._counts_file)
        except OSError as error:
            raise DataError(f"{self._counts_file}: {error.strerror or error}") from None
        for number, line in enumerate(content.split(b"\n")[:-1], 1):
            try:
                count = json.loads(line)
                own, correct = self.counts.setdefault(str(count["id"]), []), count["correct"]
                samples = (self.settings.samples, self.settings.more_samples)[len(own)]
                if type(correct) is not int or count["samples"] != samples or not 0 <= correct <= samples:
                    raise ValueError
            except (ValueError, KeyError, TypeError, IndexError, RecursionError):
                where = f"{self._counts_file}:{number}"
                raise DataError(f"{where}: not a line of isolaw split; the file is left unchanged") from None
            own.append(correct)

    @property
    def left(self) -> int:
        """Rollouts left, as far as is known: a problem that is never solved adds more."""
        first = self.settings.samples * sum(p.id not in self.counts for p in self.problems)
        return first + self.settings.more_samples * len(self._never_solved())

    def _never_solved(self) -> list[Problem]:
        """Return the problems without a correct answer that have no further samples yet."""
        return [p for p in self.problems if self.counts.get(p.id) == [0]]

    def measure(self, draw: Draw, reward: rewards.Reward) -> Iterator[tuple[int, int]]:
        """Sample what is left; yield after each portion the rollouts done, and all as far as is known."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self._file.exists():
            self._write_header()
        if self._counts_file.exists():  # drop a line that was cut
            os.truncate(self._counts_file, len(_whole_lines(self._counts_file)))
        done = 0
        with self._counts_file.open("a", encoding="utf-8") as file:
            for stage, samples in enumerate((self.settings.samples, self.settings.more_samples)):
                new = [p for p in self.problems if p.id not in self.counts]
                todo = self._never_solved() if stage else new
                at_once = max(1, _ROLLOUTS_AT_ONCE // samples)
                for start in range(0, len(todo), at_once):
                    some = todo[start : start + at_once]
                    seeds = [_seeds(self.settings.seed, problem, stage, samples) for problem in some]
                    repeated = [problem for problem in some for _ in range(samples)]
                    solved = rewards.correct(reward(repeated, draw(some, seeds)))
                    counts = solved.reshape(len(some), samples).sum(1).tolist()
                    for problem, correct in zip(some, counts, strict=True):
                        self.counts.setdefault(problem.id, []).append(correct)
                        line = {"id": problem.id, "samples": samples, "correct": correct}
                        file.write(json.dumps(line) + "\n")
                    file.flush()
                    done += samples * len(some)
                    yield done, done + self.left

    def write(self) -> dict[str, Any]:
        """Write the sets and return the report."""
        if self.report is None:
            samples = self.settings.samples
            sets: dict[str, list[Problem]] = {name: [] for name in SETS}
            for problem in sorted(self.problems, key=lambda p: p.digest):  # any order that is not the pool's
                first, *later = self.counts[problem.id]
                if name := difficulty(first, samples, *later):
                    sets[name].append(problem)
            correct = np.array([self.counts[p.id][0] for p in self.problems])
            self.report = {
                "problems": len(self.problems),
                "repeated_prompts": self.repeated,
                "histogram": np.bincount(correct, minlength=samples + 1).tolist(),
                f"avg@{samples}": float(correct.mean() / samples),
                "sets": {name: self._write_set(name, problems) for name, problems in sets.items()},
            }
            self._write_header()
        return self.report

    def _write_set(self, name: str, problems: list[Problem]) -> dict[str, Any]:
        held_out = self.settings.validation or min(VALIDATION, len(problems) // 5)
        summary: dict[str, Any] = {"problems": len(problems)}
        if problems:
            average = float(np.mean([self.counts[p.id][0] for p in problems])) / self.settings.samples
            summary[f"avg@{self.settings.samples}"] = average
        if not 0 < held_out < len(problems):
            return summary | {"written": False}
        folder, new = self.folder / name, self.folder / f".{name}.new"
        if not folder.exists():  # it does if a run was killed before the report
            write_set(new, {"validation": problems[:held_out], "train": problems[held_out:]})
            new.replace(folder)
        return summary | {"written": True, "train": len(problems) - held_out, "validation": held_out}

    def _write_header(self) -> None:
        new = self._file.with_name(".split.json.new")
        content = {"format": _FORMAT, "settings": asdict(self.settings), "report": self.report}
        new.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        new.replace(self._file)


def _whole_lines(path: Path) -> bytes:
    content = path.read_bytes()
    return content[: content.rfind(b"\n") + 1]


def _seeds(seed: int, problem: Problem, stage: int, samples: int) -> list[int]:
    """Return seeds of a problem's samples, below 2^63, which depend on its content, not its place."""
    stream = np.random.SeedSequence([seed, int(problem.digest[:16], 16), stage])
    return [int(word >> np.uint64(1)) for word in stream.generate_state(samples, np.uint64)]


def split(
    model: str,
    problems: str,
    out: str,
    *,
    reward: str = "exact",
    sampler: str | None = None,
    temperature: float = 0.6,
    max_response_tokens: int = 1024,
    **options: Any,
) -> dict[str, Any]:
    """Sort a pool of problems into easy, hard and extremely hard sets by a base model's success.

    Arguments and result are those of ``isolaw split``; ``options`` are further fields of `SplitSettings`. A
    second call with the same ``out`` continues.

    Raises
    ------
    SpecError
        everything wrong with the arguments, before a model is loaded.
    """
    chosen = {"reward": reward, "sampler": sampler, "temperature": temperature, **options}
    work = open_split(model, problems, out, {**chosen, "max_response_tokens": max_response_tokens})
    if work.left:
        judge = rewards.get(work.settings.reward)
        try:
            for _ in work.measure(open_draw(model, work.problems, work.settings), judge):
                pass
        finally:
            judge.close()
    return work.write()


def open_split(model: str, pool: str, out: str, options: dict[str, Any]) -> Split:
    """Return the split of the problems in file ``pool`` by the model in a folder, in folder ``out``.

    ``options`` are the other fields of `SplitSettings`; without a sampler vLLM, if it is installed.

    Raises
    ------
    SpecError
        everything wrong with the model, the problems and their lengths, the reward, and the folder, at once.
    """
    options["sampler"] = options["sampler"] or ("vllm" if environment.installed("vllm") else "transformers")
    wrong_model = models.check(model, where="--model")
    issues = [*wrong_model, *_out_issues(out)]
    issues += [
        Issue(f"--{key}", f"{name} is not installed; `isolaw doctor` prints the command that installs it")
        for key, name in (("model", "transformers"), ("model", "torch"), ("sampler", options["sampler"]))
        if not environment.installed(name)
    ]
    issues += rewards.check(options["reward"], where="--reward")
    if not math.isfinite(options["temperature"]):
        issues.append(Issue("--temperature", found=options["temperature"], accepted="above 0, at most 10"))
    problems: list[Problem] = []
    try:
        models.folder(pool, "--problems")
        problems = read_problems(pool)
    except SpecError as error:
        issues += error.issues
    stored = ProblemSet(pool, {"": problems})
    if problems and (options.get("validation") or 0) >= len(problems):
        accepted = f"fewer than the {len(problems):,} problems"
        issues.append(Issue("--validation", found=options.get("validation"), accepted=accepted))
    if problems and not wrong_model and environment.installed("transformers"):
        try:
            tokenizer, key = models.tokenizer(model), "--max-response-tokens"
            room = options["max_response_tokens"]
            issues += check_lengths(stored, tokenizer, models.context(model), room, key)
        except DataError as error:
            issues.append(Issue("--model", str(error)))
    if issues:
        raise SpecError(issues)
    settings = SplitSettings(model=models.digest(model), pool=stored.digest(""), **options)
    return Split(out, problems, settings)


def _out_issues(out: str) -> list[Issue]:
    try:
        folder = models.folder(out, "--out")
    except SpecError as error:
        return error.issues
    above = next((path for path in (folder, *folder.parents) if os.path.lexists(path)), folder)
    note = ""
    if os.path.islink(out) and not os.path.exists(out):
        note = f"{out}: a link to nothing"
    elif above.exists() and not above.is_dir():
        note = f"{above}: a file"
    return [Issue("--out", note, accepted="a new folder, or the folder of a split")] if note else []


def open_draw(model: str, problems: Sequence[Problem], settings: SplitSettings) -> Draw:
    """Load the model into a sampler with room for responses to these problems, and return its `Draw`."""
    environment.prepare()
    from isolaw.backends.real.rollout.samplers import open_sampler

    dtype = "bfloat16" if environment.gpus() else "float32"
    tokenizer, room = models.tokenizer(model), settings.max_response_tokens
    longest = max((len(prompt) for prompt in encode(problems, tokenizer)), default=1)
    sampler = open_sampler(settings.sampler, model, dtype, longest + room, gpu_memory=_GPU_MEMORY)

    def draw(problems: Sequence[Problem], seeds: Sequence[Sequence[int]]) -> list[str]:
        prompts, temperature = encode(problems, tokenizer), settings.temperature
        drawn = sampler.generate(prompts, seeds, temperature=temperature, top_p=1.0, max_tokens=room)
        return list(tokenizer.batch_decode(drawn.tokens, skip_special_tokens=True))

    return draw
