"""Problems sorted by how often a base model solves them: easy, hard and extremely hard sets.

As in the IsoCompute Playbook (arXiv 2603.12151, App. A), with c correct of K = 16 samples of a problem ::

    easy             0.3 ≤ c / K ≤ 0.6
    hard             c / K ≤ 0.0625, and solved at least once
    extremely hard   never solved, neither in these 16 samples nor in 128 more: pass@128 = 0

The rest belongs to no set. The samples that chose a problem flatter the choice: measured anew, a set's avg@16
lies nearer to the whole pool's (of the tiny model's, hard was chosen at 0.029 and is 0.07).

A folder holds, beside the sets, ``split.json`` (what was asked for, and at the end what came of it) and
``counts.jsonl`` (each problem's samples and correct answers, written as they come). Samples are seeded by
the problem, so the same command continues what was interrupted, and finds the same.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from isolaw.backends.real import environment, models
from isolaw.backends.real.rollout import rewards
from isolaw.backends.real.rollout.problems import Problem, ProblemSet, read_questions, words, write_set
from isolaw.backends.real.rollout.prompts import check_lengths, encode
from isolaw.errors import DataError, Issue, SpecError

EASY_LEAST, EASY_MOST, HARD_MOST = 0.3, 0.6, 0.0625
SETS = ("easy", "hard", "extremely-hard")
VALIDATION = 300  # as many as the paper holds out, but never more than a fifth
_FORMAT = "isolaw.split/1"
_ROLLOUTS_AT_ONCE = 4096
_GPU_MEMORY = 0.9  # nothing is trained beside it

# Sample responses to a question: its seeds in, its responses' texts out.
Draw = Callable[[Sequence[Problem], Sequence[Sequence[int]]], list[str]]


class Progress(NamedTuple):
    """Rollouts done, and to do as far as is known."""

    done: int
    total: int


@dataclass(frozen=True)
class Settings:
    """What decides the result of a split.

    Attributes
    ----------
    model, pool
        content hashes of the model and of the problems.
    reward
        its name; a problem is solved by a response with a reward of at least 1.
    sampler
        ``vllm`` or ``transformers``: from the same seed they draw other samples.
    temperature, max_response_tokens
        of sampling.
    samples, more_samples
        of each problem; more of those that were never solved.
    validation
        problems held out of each set; unless given 300, but at most a fifth.
    seed
        of the samples.
    """

    model: str
    pool: str
    reward: str
    sampler: str
    temperature: float
    max_response_tokens: int
    samples: int = 16
    more_samples: int = 128
    validation: int | None = None
    seed: int = 0


def difficulty(correct: int, samples: int, later: int | None = None) -> str | None:
    """Return the set of a problem, None where it belongs to none.

    Parameters
    ----------
    correct, samples
        c of the first K samples.
    later
        correct ones of the further samples, where there were any.

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
    """A split in a folder, done in part or in whole.

    Parameters
    ----------
    folder
        new, empty of sets, or of a split with the same settings, which is continued.
    questions
        the pool; of those with the same prompt the first one counts.

    Raises
    ------
    DataError
        the folder has sets in it, or a split with other settings: nothing is written over.
    """

    def __init__(self, folder: str | Path, questions: Sequence[Problem], settings: Settings) -> None:
        self.folder, self.settings = Path(folder), settings
        self.questions = list({words(q.prompt): q for q in reversed(questions)}.values())[::-1]
        self.repeated = len(questions) - len(self.questions)
        self._file = self.folder / "split.json"
        self._counts_file = self.folder / "counts.jsonl"
        self.report: dict[str, Any] | None = None
        self._open()
        # Of each problem, by its id: correct answers of the first samples, and of the further ones.
        self.counts: dict[str, list[int]] = {}
        if self._counts_file.exists():
            self._read_counts()

    def _open(self) -> None:
        if not os.path.lexists(self._file):
            there = [name for name in (*SETS, self._counts_file.name) if os.path.lexists(self.folder / name)]
            if there:
                raise DataError(f"{self.folder}: {', '.join(there)} exists; nothing is written over")
            return
        try:
            found = json.loads(self._file.read_text(encoding="utf-8"))
            theirs, self.report = dict(found["settings"]), found["report"]
        except (OSError, ValueError, KeyError, TypeError):
            raise DataError(f"{self._file}: not what a split writes; nothing is written over") from None
        ours = asdict(self.settings)
        other = [
            f"{key} {theirs.get(key)!r}, not {ours[key]!r}" for key in ours if theirs.get(key) != ours[key]
        ]
        if other:
            raise DataError(
                f"{self.folder}: another split is there: {'; '.join(other)}; choose another folder"
            )

    @property
    def left(self) -> Progress:
        """What is to do, as far as is known: a problem that was never solved brings more."""
        first = self.settings.samples * sum(q.id not in self.counts for q in self.questions)
        return Progress(0, first + self.settings.more_samples * len(self._never_solved()))

    def _never_solved(self) -> list[Problem]:
        """Problems without a correct answer that were not looked at again."""
        return [q for q in self.questions if self.counts.get(q.id) == [0]]

    def measure(self, draw: Draw, reward: rewards.Reward) -> Iterator[Progress]:
        """Sample what is left; yield after each portion.

        Parameters
        ----------
        draw
            takes questions, each with the seeds of its samples, and returns the responses' texts, those
            to one question together.
        reward
            of a response.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self._file.exists():
            self._write_header()
        if self._counts_file.exists():  # what comes next must not stand behind a line that was cut
            os.truncate(self._counts_file, len(_whole_lines(self._counts_file)))
        done = 0
        with self._counts_file.open("a", encoding="utf-8") as file:
            for stage, samples in enumerate((self.settings.samples, self.settings.more_samples)):
                todo = (
                    self._never_solved() if stage else [q for q in self.questions if q.id not in self.counts]
                )
                at_once = max(1, _ROLLOUTS_AT_ONCE // samples)
                for start in range(0, len(todo), at_once):
                    some = todo[start : start + at_once]
                    for question, correct in zip(
                        some, self._correct(some, stage, samples, draw, reward), strict=True
                    ):
                        self.counts.setdefault(question.id, []).append(correct)
                        line = {"id": question.id, "samples": samples, "correct": correct}
                        file.write(json.dumps(line) + "\n")
                    file.flush()
                    done += samples * len(some)
                    yield Progress(done, done + self.left.total)

    def _correct(
        self, questions: list[Problem], stage: int, samples: int, draw: Draw, reward: rewards.Reward
    ) -> list[int]:
        seeds = [_seeds(self.settings.seed, question, stage, samples) for question in questions]
        repeated = [question for question in questions for _ in range(samples)]
        correct = rewards.correct(reward(repeated, draw(questions, seeds)))
        return [int(c) for c in correct.reshape(len(questions), samples).sum(1)]

    def write(self) -> dict[str, Any]:
        """Write the sets, and return what came of it."""
        if self.report is not None:
            return self.report
        s = self.settings
        sets: dict[str, list[Problem]] = {name: [] for name in SETS}
        for question in sorted(self.questions, key=lambda q: q.digest):  # any order that is not the pool's
            name = difficulty(self.counts[question.id][0], s.samples, *self.counts[question.id][1:])
            if name:
                sets[name].append(question)
        report: dict[str, Any] = {"problems": len(self.questions), "repeated_prompts": self.repeated}
        first = np.array([self.counts[q.id][0] for q in self.questions])
        report["histogram"] = np.bincount(first, minlength=s.samples + 1).tolist()
        report[f"avg@{s.samples}"] = float(first.mean() / s.samples)
        report["sets"] = {name: self._write_one(name, questions) for name, questions in sets.items()}
        self.report = report
        self._write_header()
        return report

    def _write_one(self, name: str, questions: list[Problem]) -> dict[str, Any]:
        held_out = self.settings.validation or min(VALIDATION, len(questions) // 5)
        counts = [self.counts[q.id][0] for q in questions]
        summary: dict[str, Any] = {"problems": len(questions)}
        if questions:
            summary[f"avg@{self.settings.samples}"] = float(np.mean(counts)) / self.settings.samples
        if not 0 < held_out < len(questions):
            return summary | {"written": False}
        folder, new = self.folder / name, self.folder / f".{name}.new"
        if not folder.exists():  # else it was written, and the report was not
            write_set(new, {"validation": questions[:held_out], "train": questions[held_out:]})
            new.replace(folder)
        return summary | {
            "written": True,
            "train": len(questions) - held_out,
            "validation": held_out,
        }

    def _write_header(self) -> None:
        new = self._file.with_name(".split.json.new")
        content = {"format": _FORMAT, "settings": asdict(self.settings), "report": self.report}
        new.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        new.replace(self._file)

    def _read_counts(self) -> None:
        """Take over what is there, but for a last line that was cut."""
        try:
            content = _whole_lines(self._counts_file)
        except OSError as error:
            raise DataError(f"{self._counts_file}: {error.strerror or error}") from None
        for number, line in enumerate(content.split(b"\n")[:-1], 1):
            try:
                count = json.loads(line)
                name, correct = str(count["id"]), count["correct"]
                samples = (self.settings.samples, self.settings.more_samples)[len(self.counts.get(name, []))]
                if type(correct) is not int or count["samples"] != samples or not 0 <= correct <= samples:
                    raise ValueError
            except (ValueError, KeyError, TypeError, IndexError, RecursionError):
                where = f"{self._counts_file}, line {number}"
                raise DataError(f"{where}: not what a split writes; nothing is written over") from None
            self.counts.setdefault(name, []).append(correct)


def _whole_lines(path: Path) -> bytes:
    content = path.read_bytes()
    return content[: content.rfind(b"\n") + 1]


def _seeds(seed: int, question: Problem, stage: int, samples: int) -> list[int]:
    """Seeds of a question's samples, below 2^63: of itself, not of its place in the pool."""
    stream = np.random.SeedSequence([seed, int(question.digest[:16], 16), stage])
    return [int(word >> np.uint64(1)) for word in stream.generate_state(samples, np.uint64)]


def drawn_by(sampler: Any, tokenizer: Any, temperature: float, max_response_tokens: int) -> Draw:
    """Return a `Draw` from a sampler (`isolaw.backends.real.rollout.samplers`) and its model's tokenizer."""

    def draw(questions: Sequence[Problem], seeds: Sequence[Sequence[int]]) -> list[str]:
        prompts = encode(questions, tokenizer)
        rollouts = sampler.generate(
            prompts, seeds, temperature=temperature, top_p=1.0, max_tokens=max_response_tokens
        )
        return list(tokenizer.batch_decode(rollouts.tokens, skip_special_tokens=True))

    return draw


def plan(model: str, pool: str, out: str, options: dict[str, Any]) -> Split:
    """Check everything that can be checked without loading the model, and return what is to do.

    Parameters
    ----------
    model, pool, out
        the model's folder, the file of problems, the folder of the split.
    options
        the keys of `Settings` beside model and pool; the sampler is vLLM, where it is installed.

    Raises
    ------
    SpecError
        a model that is not there, problems that are not, prompts too long, no such reward, no place for the
        sets; all at once.
    """
    options["sampler"] = options["sampler"] or ("vllm" if environment.installed("vllm") else "transformers")
    wrong_model = models.check(model, where="--model")
    problems = [*wrong_model, *_out_issues(out)]
    problems += [
        Issue(f"--{where}", f"{name} is not installed; `isolaw doctor` says how to install it")
        for where, name in (("model", "transformers"), ("model", "torch"), ("sampler", options["sampler"]))
        if not environment.installed(name)
    ]
    problems += rewards.check(options["reward"], where="--reward")
    if not math.isfinite(options["temperature"]):
        problems.append(Issue("--temperature", found=options["temperature"], accepted="above 0, at most 10"))
    questions: list[Problem] = []
    try:
        models.folder(pool, "--problems")
        questions = read_questions(pool)
    except SpecError as error:
        problems += error.issues
    if questions and (options.get("validation") or 0) >= len(questions):
        accepted = f"fewer than the {len(questions):,} problems"
        problems.append(Issue("--validation", found=options.get("validation"), accepted=accepted))
    if questions and not wrong_model and environment.installed("transformers"):
        problems += _length_issues(model, ProblemSet(pool, {"": questions}), options["max_response_tokens"])
    if problems:
        raise SpecError(problems)
    content = ProblemSet(pool, {"": questions}).digest("")
    return Split(out, questions, Settings(model=models.digest(model), pool=content, **options))


def _out_issues(out: str) -> list[Issue]:
    try:
        folder = models.folder(out, "--out")
    except SpecError as error:
        return error.issues
    above = next((path for path in (folder, *folder.parents) if os.path.lexists(path)), folder)
    if os.path.islink(out) and not os.path.exists(out):
        return [Issue("--out", f"{out}: a link to what is not there", accepted="a folder, new or of a split")]
    if above.exists() and not above.is_dir():
        return [Issue("--out", f"{above}: a file", accepted="a folder, new or of a split")]
    return []


def _length_issues(model: str, pool: ProblemSet, max_response_tokens: int) -> list[Issue]:
    try:
        tokenizer = models.tokenizer(model)
    except DataError as error:
        return [Issue("--model", str(error))]
    key = "--max-response-tokens"
    return check_lengths(pool, tokenizer, models.context(model), max_response_tokens, key)


def open_draw(model: str, questions: Sequence[Problem], settings: Settings) -> Draw:
    """Load the model into the sampler, with room for responses to these questions."""
    environment.prepare()
    from isolaw.backends.real.rollout.samplers import open_sampler

    dtype = "bfloat16" if environment.gpus() else "float32"
    tokenizer, room = models.tokenizer(model), settings.max_response_tokens
    longest = max((len(prompt) for prompt in encode(questions, tokenizer)), default=1)
    sampler = open_sampler(settings.sampler, model, dtype, longest + room, gpu_memory=_GPU_MEMORY)
    return drawn_by(sampler, tokenizer, settings.temperature, room)
