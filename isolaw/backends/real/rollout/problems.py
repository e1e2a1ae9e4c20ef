"""Read and write sets of problems for a language model, and order them for a run.

A problem set is a folder with ``train.jsonl`` and ``validation.jsonl``, or with ``.parquet`` files. Any other
file of these kinds is an additional evaluation set, named after the file (``aime24.jsonl``). Each line or row
is ::

    {"prompt": "17+25=", "answer": "42", "id": "17+25"}

The prompt is text or chat messages, the answer is text or a number, and the id is optional. The identity of a
set depends only on these three columns, and not on the path, the format or the order of lines. Problems are
sorted by their digests, so the first n problems are an arbitrary sample.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from isolaw.errors import DataError, Issue, SpecError, nearest
from isolaw.files import check_destination, open_file

Message = dict[str, str]
FORMATS = (".jsonl", ".parquet")
_FAULTS_SHOWN = 3  # maximum number of lines to report with the same fault
_VALUE_CHARACTERS = 200  # maximum number of characters to report of a value
_ACCEPTED = {
    "prompt": "text, or messages with a role and a content",
    "answer": "text or a number",
    "id": "text or a number",
}
_NumberedRow = tuple[int, dict[str, Any]]  # a line number, and the object on this line
# The kind, the line, a message (if empty, the kind is the key), the value found, and the accepted values.
_Fault = tuple[Any, ...]


@dataclass(frozen=True)
class Problem:
    """A prompt for the model, and the answer that the reward compares the response with.

    ``prompt`` is text, or a list of chat messages ``{"role": …, "content": …}``.
    """

    id: str
    prompt: str | list[Message]
    answer: str
    line: int = field(default=0, compare=False)  # of its file

    @property
    def digest(self) -> str:
        """SHA-256 of the problem's id, prompt and answer."""
        return _sha256([self.id, self.prompt, self.answer])


@dataclass(frozen=True)
class ProblemSet:
    """The problems of a folder by part: ``train``, ``validation``, and any additional evaluation set.

    >>> import tempfile
    >>> problem = Problem("1", "17+25=", "42")
    >>> folder = Path(tempfile.mkdtemp(), "sums")
    >>> write_set(folder, {"train": [problem], "validation": [Problem("2", "1+1=", "2")]})
    >>> ProblemSet.read(folder).parts["train"] == [problem]
    True
    """

    name: str
    parts: dict[str, list[Problem]]
    files: dict[str, Path] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: str | Path) -> ProblemSet:
        """Read a folder; raise `SpecError` with all its issues."""
        folder = Path(folder)
        files, issues = _find_files(folder)
        parts = {}
        for part, path in files.items():
            parts[part], faults = _read_file(path)
            issues += faults
        id_of_prompt = {words_of(p.prompt): p.id for p in parts.get("train", [])}
        for part, problems in parts.items():
            if part != "train":
                issues += _overlap_issues(files[part], problems, id_of_prompt)
        if issues:
            raise SpecError(issues)
        return cls(Path(os.path.abspath(folder)).name, parts, files)

    def digest(self, part: str) -> str:
        """Return the SHA-256 of a part's content, which does not depend on path, format or order of lines."""
        return _sha256([problem.digest for problem in self.parts[part]])

    def first_problems(self, part: str, count: int | None = None) -> list[Problem]:
        """Return the first ``count`` problems of a part (None: all); raise `DataError` if it has fewer."""
        problems = self.parts[part]
        if count is not None and count > len(problems):
            raise DataError(f"{self.name}/{part}: found {len(problems):,} problems; expected {count:,}")
        return problems[:count]


def read_pool(path: Path) -> list[Problem]:
    """Read the problems of a file; raise `SpecError` with all issues of the file."""
    if path.suffix not in FORMATS or not path.is_file():
        fault = "no such file" if not path.exists() else "a folder" if path.is_dir() else path.suffix
        raise SpecError([Issue(str(path), found=fault, accepted="a .jsonl or .parquet file")])
    problems, issues = _read_file(path)
    if issues:
        raise SpecError(issues)
    return problems


def write_set(folder: str | Path, parts: Mapping[str, Iterable[Problem]]) -> None:
    """Write a problem-set folder with ``<part>.jsonl`` for each part and one problem per line."""
    folder = check_destination(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for part, problems in parts.items():
        rows = ({"id": p.id, "prompt": p.prompt, "answer": p.answer} for p in problems)
        lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
        folder.joinpath(f"{part}.jsonl").write_text("".join(lines), encoding="utf-8")


def _find_files(folder: Path) -> tuple[dict[str, Path], list[Issue]]:
    """Return the file of each part of a folder, ``train`` and ``validation`` first, and the issues."""
    if not folder.is_dir():
        note = "found a file" if folder.exists() else "no such folder"
        parent = folder.absolute().parent
        siblings = [p.name for p in sorted(parent.iterdir()) if p.is_dir()] if parent.is_dir() else []
        accepted = "a folder with train.jsonl and validation.jsonl (or .parquet)"
        return {}, [Issue(str(folder), note, accepted=accepted, nearest=nearest(folder.name, siblings))]
    paths = sorted(p for p in folder.iterdir() if p.suffix in FORMATS and not p.name.startswith("."))
    issues = []
    files: dict[str, Path] = {}
    for path in sorted(paths, key=lambda p: ({"train": 0, "validation": 1}.get(p.stem, 2), p.name)):
        if path.stem in files:
            issues.append(
                Issue(str(path), f"found {files[path.stem].name} as well; expected only one of the two files")
            )
        else:
            files[path.stem] = path
    for part in ("train", "validation"):
        if part not in files:
            similar = nearest(part, [p.stem for p in paths if p.stem not in ("train", "validation")])
            names = ", ".join(p.name for p in paths) or "no problems"
            note = f"no {part}.jsonl or {part}.parquet"
            issues.append(Issue(str(folder), note, found=names, nearest=similar))
    return files, issues


def _read_file(path: Path) -> tuple[list[Problem], list[Issue]]:
    """Return a file's problems in the order of their digests, and the issues of the file."""
    faults: list[_Fault] = []
    is_jsonl = path.suffix == ".jsonl"
    try:
        names, rows = _read_jsonl(path, faults) if is_jsonl else _read_parquet(path)
    except OSError as error:
        return [], [Issue(str(path), error.strerror or str(error))]
    except (ValueError, OverflowError, TypeError, NotImplementedError) as error:  # raised by pyarrow
        return [], [Issue(str(path), f"not a Parquet file: {error}")]
    if not rows:
        return [], _fault_issues(path, faults) or [Issue(str(path), "the file is empty; expected problems")]
    if missing := [column for column in ("prompt", "answer") if column not in names]:
        issues = [Issue(str(path), f"no {name!r} anywhere", found=_shorten(names)) for name in missing]
        return [], [*_fault_issues(path, faults), *issues]
    problems: dict[str, Problem] = {}
    line_of_id: dict[str, int] = {}
    for line, row in rows:
        problem = _parse_problem(row, line, faults)
        if problem is None:
            continue
        if problem.id in line_of_id:
            repeated = f"id {problem.id!r}" if row.get("id") is not None else "prompt, and no id,"
            unit = "line" if is_jsonl else "row"
            faults.append(("duplicate", line, f"the same {repeated} as on {unit} {line_of_id[problem.id]}"))
            continue
        line_of_id[problem.id] = line
        problems[problem.digest] = problem
    return [problems[digest] for digest in sorted(problems)], _fault_issues(path, faults)


def _read_jsonl(path: Path, faults: list[_Fault]) -> tuple[list[str], list[_NumberedRow]]:
    """Return all keys in a JSON Lines file, and each object with its line number; add to the ``faults``."""
    rows = []
    with open_file(path) as file:
        for number, line in enumerate(file, 1):
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
                row = json.loads(text) if text else None
            except (ValueError, RecursionError) as error:
                faults.append(("JSON", number, f"not valid JSON: {error}"))
                continue
            if isinstance(row, dict):
                rows.append((number, row))
            elif text:
                faults.append(("object", number, "not an object", row, '{"prompt": …, "answer": …}'))
    return list(dict.fromkeys(name for _, row in rows for name in row)), rows


def _read_parquet(path: Path) -> tuple[list[str], list[_NumberedRow]]:
    """Return the column names of a Parquet file, and its rows with the columns of a problem.

    Other columns are skipped, because they can be large or have a type that Python lacks.
    """
    import pyarrow.parquet as pq

    with open_file(path) as opened_file:
        parquet = pq.ParquetFile(opened_file)
        columns = parquet.schema_arrow.names
        table = parquet.read(columns=[name for name in columns if name in _ACCEPTED])
    return columns, list(enumerate(table.to_pylist(), 1))


def _parse_problem(row: dict[str, Any], line: int, faults: list[_Fault]) -> Problem | None:
    """Return the problem of a line, or None if a column is invalid; add its issues to ``faults``."""
    prompt, answer, name = row.get("prompt"), _as_text(row.get("answer")), _as_text(row.get("id"))
    valid = (_is_text(prompt) or _is_chat(prompt), _is_text(answer), name is None or _is_text(name))
    for key, value, is_valid in zip(_ACCEPTED, (prompt, answer, name), valid, strict=True):
        if not is_valid:
            faults.append((key, line, "", value, _ACCEPTED[key]))
    if not all(valid):
        return None
    if not isinstance(prompt, str):
        prompt = [{"role": m["role"], "content": m["content"]} for m in prompt or []]
    return Problem(name or _sha256(prompt)[:16], prompt, answer, line)


def _is_text(value: Any) -> bool:
    """Return whether a value is text that is not blank and that UTF-8 can encode."""
    if not isinstance(value, str) or not value.strip():
        return False
    try:
        value.encode()  # fails for half of a surrogate pair
    except UnicodeEncodeError:
        return False
    return True


def _as_text(value: Any) -> Any:
    """Return a number as text, and any other value unchanged.

    42 and 42.0 become the same text, because all values of a table column have one type.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, float) or not math.isfinite(value):
        return value
    return str(int(value)) if value == int(value) else repr(value)


def _is_chat(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(m, dict) and _is_text(m.get("role")) and _is_text(m.get("content")) for m in value)
    )


def _overlap_issues(path: Path, problems: list[Problem], id_of_prompt: dict[str, str]) -> list[Issue]:
    """Return an issue if prompts of evaluation problems are in the training set, else an empty list."""
    prompts = [(p.id, words_of(p.prompt)) for p in problems]
    overlap = [(key, id_of_prompt[prompt]) for key, prompt in prompts if prompt in id_of_prompt]
    if not overlap:
        return []
    ids = ", ".join(f"{a!r}" if a == b else f"{a!r} (there {b!r})" for a, b in overlap[:_FAULTS_SHOWN])
    others = f" and {len(overlap) - _FAULTS_SHOWN:,} more" if len(overlap) > _FAULTS_SHOWN else ""
    return [Issue(str(path), f"{len(overlap):,} of its problems also occur in training: {ids}{others}")]


def words_of(prompt: str | list[Message]) -> str:
    """Return the words of a prompt, independent of white space and of the form as text or messages."""
    contents = [prompt] if isinstance(prompt, str) else [message["content"] for message in prompt]
    return " ".join(" ".join(contents).split())


def _shorten(value: Any) -> Any:
    """Return the value, or the beginning of its text if the text is long."""
    text = value if isinstance(value, str) else repr(value)
    return value if len(text) <= _VALUE_CHARACTERS else f"{text[:_VALUE_CHARACTERS]}…"


def _sha256(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _fault_issues(path: Path, faults: list[_Fault]) -> list[Issue]:
    """Return the first issues of each kind, and for each kind one issue that counts the remaining ones."""
    issues: list[Issue] = []
    lines: dict[str, list[int]] = defaultdict(list)
    for kind, line, message, *values in faults:
        lines[kind].append(line)
        if len(lines[kind]) <= _FAULTS_SHOWN:
            where = f"{path}:{line}" if path.suffix == ".jsonl" else f"{path}, row {line}"
            values[:1] = map(_shorten, values[:1])
            issues.append(Issue(where if message else f"{where}: {kind}", message, *values))
    unit = "line" if path.suffix == ".jsonl" else "row"
    return issues + [
        Issue(str(path), f"{len(numbers) - _FAULTS_SHOWN:,} more such ({kind}), to {unit} {numbers[-1]}")
        for kind, numbers in lines.items()
        if len(numbers) > _FAULTS_SHOWN
    ]


class ProblemOrder:
    """Batches of problems, in epochs that are random permutations of the training set.

    An incomplete last batch of an epoch is dropped. The permutations depend only on the seed and on
    ``content``, the hexadecimal hash of the training set. All configurations of a sweep therefore visit the
    problems in the same order. With ``replacement``, every problem of every batch is drawn independently.
    ``n_train`` is D, and ``batch_size`` is B_p ≤ D.

    >>> order = ProblemOrder(6, batch=3, seed=0, content="ab")
    >>> sorted(order.take() + order.take())
    [0, 1, 2, 3, 4, 5]
    """

    def __init__(self, n_train: int, batch: int, seed: int, content: str, replacement: bool = False) -> None:
        self.n_train, self.batch_size, self.replacement = n_train, batch, replacement
        self.rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(int(content[:8], 16),)))
        self.waiting: list[int] = []
        self.retired: set[int] = set()

    def take(self) -> list[int]:
        """Return the problems of the next batch."""
        if self.replacement:
            return [int(i) for i in self.rng.integers(self.n_train, size=self.batch_size)]
        if len(self.waiting) < self.batch_size:
            if self.n_train - len(self.retired) < self.batch_size:
                self.retired.clear()  # reuse all problems if fewer than one batch remain
            shuffled = self.rng.permutation(self.n_train)
            self.waiting = [int(i) for i in shuffled if int(i) not in self.retired]
        batch, self.waiting = self.waiting[: self.batch_size], self.waiting[self.batch_size :]
        return batch

    def retire(self, problems: Iterable[int]) -> None:
        """Exclude these problems from later epochs (no-positive-resampling)."""
        self.retired.update(problems)

    def state(self) -> dict[str, Any]:
        """Return the position in the order as JSON-compatible data."""
        return {"rng": self.rng.bit_generator.state, "waiting": self.waiting, "retired": sorted(self.retired)}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore the position from the result of `state`."""
        self.rng.bit_generator.state = state["rng"]
        self.waiting = [int(i) for i in state["waiting"]]
        self.retired = {int(i) for i in state["retired"]}
