"""Problems that a language model answers, and the sets of them.

A problem set is a folder: ``train.jsonl`` and ``validation.jsonl``, or ``.parquet``. Any other file of these
kinds in it is a further evaluation set, named by its stem (``aime24.jsonl``). Each line, or row, is ::

    {"prompt": "17+25=", "answer": "42", "id": "17+25"}

with a prompt that is text or chat messages, an answer that is text or a number, and an id if one likes.
What a set *is* depends on these three alone: neither on its path, nor on its format, nor on the order of
its lines. Questions come in the order of their digests, so that the first n of them are any n.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from isolaw.errors import DataError, Issue, SpecError, nearest

Message = dict[str, str]
_KINDS = (".jsonl", ".parquet")
_SHOWN = 3  # of many lines with the same fault
_LONGEST = 200  # characters of what was found
_COLUMNS = ("prompt", "answer")


@dataclass(frozen=True)
class Problem:
    """One problem: what the model is given, and what the reward compares its response with.

    ``prompt`` is text, or chat messages ``{"role": …, "content": …}``.
    """

    id: str
    prompt: str | list[Message]
    answer: str

    @property
    def digest(self) -> str:
        """SHA-256 of id, prompt and answer."""
        return _sha256([self.id, self.prompt, self.answer])


@dataclass(frozen=True)
class ProblemSet:
    """A folder's questions: by part, ``train``, ``validation``, and any further evaluation set.

    >>> import tempfile
    >>> question = Problem("1", "17+25=", "42")
    >>> folder = Path(tempfile.mkdtemp(), "sums")
    >>> write_set(folder, {"train": [question], "validation": [Problem("2", "1+1=", "2")]})
    >>> ProblemSet.read(folder).parts["train"] == [question]
    True
    """

    name: str
    parts: dict[str, list[Problem]]

    @classmethod
    def read(cls, folder: str | Path) -> ProblemSet:
        """Read a folder; raise `SpecError` with everything that is wrong with it."""
        folder = Path(folder)
        files, problems = _files(folder)
        parts = {}
        for part, path in files.items():
            parts[part], found = _read(path)
            problems += found
        for part in parts:
            if part != "train":
                problems += _trained_on(files[part], parts[part], parts.get("train", []))
        if problems:
            raise SpecError(problems)
        return cls(Path(os.path.abspath(folder)).name, parts)

    def digest(self, part: str) -> str:
        """SHA-256 of a part's content, the same for any path, file format and order of lines."""
        return _sha256([question.digest for question in self.parts[part]])

    def first(self, part: str, count: int | None = None) -> list[Problem]:
        """Return the first ``count`` questions of a part, or all of them.

        Raises
        ------
        DataError
            there are fewer.
        """
        questions = self.parts[part]
        if count is not None and count > len(questions):
            raise DataError(
                f"{self.name}: {count:,} {part} problems are asked for, there are {len(questions):,}"
            )
        return questions[:count]


def check_set(folder: str | Path) -> list[Issue]:
    """Return everything that is wrong with a problem-set folder, each with its file and line."""
    try:
        ProblemSet.read(folder)
    except SpecError as error:
        return error.issues
    return []


def read_questions(path: str | Path) -> list[Problem]:
    """Read one JSONL or Parquet file; raise `SpecError` with everything that is wrong with it."""
    path = Path(path)
    if path.suffix not in _KINDS or not path.is_file():
        found = "no such file" if not path.exists() else "a folder" if path.is_dir() else path.suffix
        raise SpecError([Issue(str(path), found=found, accepted="a .jsonl or .parquet file")])
    questions, problems = _read(path)
    if problems:
        raise SpecError(problems)
    return questions


def write_set(folder: str | Path, parts: Mapping[str, Iterable[Problem]]) -> None:
    """Write a problem-set folder: ``<part>.jsonl`` for each part, a question a line."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for part, questions in parts.items():
        lines = [json.dumps(asdict(question), ensure_ascii=False) + "\n" for question in questions]
        folder.joinpath(f"{part}.jsonl").write_text("".join(lines), encoding="utf-8")


def _files(folder: Path) -> tuple[dict[str, Path], list[Issue]]:
    """The file of each part of a folder, ``train`` and ``validation`` first."""
    if not folder.is_dir():
        what = "a file, not a folder" if folder.exists() else "no such folder"
        above = folder.absolute().parent
        beside = [p.name for p in sorted(above.iterdir()) if p.is_dir()] if above.is_dir() else []
        accepted = "a folder with train.jsonl and validation.jsonl (or .parquet)"
        return {}, [Issue(str(folder), what, accepted=accepted, nearest=nearest(folder.name, beside))]
    found = sorted(p for p in folder.iterdir() if p.suffix in _KINDS and not p.name.startswith("."))
    problems = []
    parts: dict[str, Path] = {}
    for path in sorted(found, key=lambda p: ({"train": 0, "validation": 1}.get(p.stem, 2), p.name)):
        if path.stem in parts:
            problems.append(
                Issue(str(path), f"{parts[path.stem].name} is there, too; accepted: one of the two")
            )
        else:
            parts[path.stem] = path
    for part in ("train", "validation"):
        if part not in parts:
            close = nearest(part, [p.stem for p in found if p.stem not in ("train", "validation")])
            names = ", ".join(p.name for p in found) or "no problems"
            problems.append(
                Issue(str(folder), f"no {part}.jsonl or {part}.parquet", found=names, nearest=close)
            )
    return parts, problems


def _read(path: Path) -> tuple[list[Problem], list[Issue]]:
    """A file's questions in the order of their digests, and everything that is wrong with it."""
    faults = _Faults(path)
    try:
        rows = list(_parquet(path, faults) if path.suffix == ".parquet" else _jsonl(path, faults))
    except OSError as error:
        return [], [Issue(str(path), error.strerror or str(error))]
    except (ValueError, OverflowError, TypeError, NotImplementedError) as error:  # what pyarrow raises
        return [], [Issue(str(path), f"not a Parquet file: {error}")]
    if not rows and not faults:
        return [], [Issue(str(path), "empty: there is no problem in it")]
    columns = list(dict.fromkeys(name for _, row in rows for name in row))
    if rows and faults.missing(columns):
        return [], faults.all()
    questions: dict[str, Problem] = {}
    lines: dict[str, int] = {}
    for line, row in rows:
        question = _question(row, line, faults)
        if question is None:
            continue
        if question.id in lines:
            same = f"id {question.id!r}" if row.get("id") is not None else "prompt, and no id,"
            faults.add("duplicate", line, f"the same {same} as on {faults.unit} {lines[question.id]}")
            continue
        lines[question.id] = line
        questions[question.digest] = question
    return [questions[digest] for digest in sorted(questions)], faults.all()


def _jsonl(path: Path, faults: _Faults) -> Iterator[tuple[int, dict[str, Any]]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
                if not text:
                    continue
                row = json.loads(text)
            except (ValueError, RecursionError) as error:
                faults.add("JSON", number, f"not valid JSON: {error}")
                continue
            if isinstance(row, dict):
                yield number, row
            else:
                faults.add("object", number, "not an object", row, '{"prompt": …, "answer": …}')


def _parquet(path: Path, faults: _Faults) -> Iterator[tuple[int, dict[str, Any]]]:
    import pyarrow.parquet as pq

    file = pq.ParquetFile(path)
    columns = file.schema_arrow.names
    if file.metadata.num_rows and faults.missing(columns):
        return
    # What else is there may be large, or nothing that Python has a type for.
    table = file.read(columns=[name for name in (*_COLUMNS, "id") if name in columns])
    yield from enumerate(table.to_pylist(), 1)


def _question(row: dict[str, Any], line: int, faults: _Faults) -> Problem | None:
    """The question of a line, or None where there is none."""
    before = faults.number
    prompt, answer, given = row.get("prompt"), row.get("answer"), row.get("id")
    if not (_is_text(prompt) or _is_chat(prompt)):
        faults.add("prompt", line, "the prompt", prompt, "text, or messages with a role and a content")
    answer, given = _numeral(answer), _numeral(given)
    if not _is_text(answer):
        faults.add("answer", line, "the answer", answer, "text or a number")
    if given is not None and not _is_text(given):
        faults.add("id", line, "the id", given, "text or a number")
    if faults.number > before:
        return None
    if not isinstance(prompt, str):
        prompt = [{"role": m["role"], "content": m["content"]} for m in prompt or []]
    return Problem(given or _sha256(prompt)[:16], prompt, answer)


def _is_text(value: Any) -> bool:
    """Whether it is text, of which something is left without space, and that can be written down."""
    if not isinstance(value, str) or not value.strip():
        return False
    try:
        value.encode()  # half a surrogate pair cannot
    except UnicodeEncodeError:
        return False
    return True


def _numeral(value: Any) -> Any:
    """A number as text, the same for 42 and 42.0 (a column of a table has one type); else the value."""
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


def _trained_on(path: Path, questions: list[Problem], train: list[Problem]) -> list[Issue]:
    """Evaluation problems that are in the training set as well, by their prompts."""
    trained = {words(q.prompt): q.id for q in train}
    both = [(q.id, trained[words(q.prompt)]) for q in questions if words(q.prompt) in trained]
    if not both:
        return []
    shown = ", ".join(f"{a!r}" if a == b else f"{a!r} (there {b!r})" for a, b in both[:_SHOWN])
    more = f" and {len(both) - _SHOWN:,} more" if len(both) > _SHOWN else ""
    return [Issue(str(path), f"{len(both):,} of its problems occur in training, too: {shown}{more}")]


def words(prompt: str | list[Message]) -> str:
    """What a prompt asks, whatever its white space, and whether as text or as messages."""
    contents = [prompt] if isinstance(prompt, str) else [message["content"] for message in prompt]
    return " ".join(" ".join(contents).split())


def _short(value: Any) -> Any:
    """The value, or where it is long the beginning of its text."""
    text = value if isinstance(value, str) else repr(value)
    return value if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _sha256(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


class _Faults:
    """What is wrong with the lines of a file: the first of each kind one by one, the rest as a number."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.unit = "row" if path.suffix == ".parquet" else "line"
        self.problems: list[Issue] = []
        self.lines: dict[str, list[int]] = defaultdict(list)
        self.number = 0

    def __bool__(self) -> bool:
        return self.number > 0

    def add(self, kind: str, line: int, message: str, *found: Any) -> None:
        """Note a fault; after the message come what was found and what is accepted."""
        found = (_short(found[0]), *found[1:]) if found else ()
        self.number += 1
        self.lines[kind].append(line)
        if len(self.lines[kind]) <= _SHOWN:
            self.problems.append(Issue(f"{self.path}, {self.unit} {line}", message, *found))

    def missing(self, columns: list[str]) -> bool:
        """Note what no line has, and return whether there is any such."""
        names = [name for name in _COLUMNS if name not in columns]
        shown = _short(columns)
        self.problems += [Issue(str(self.path), f"no {name!r} anywhere", found=shown) for name in names]
        self.number += len(names)
        return bool(names)

    def all(self) -> list[Issue]:
        """Return them all."""
        rest = [
            Issue(
                str(self.path),
                f"{len(lines) - _SHOWN:,} more such ({kind}), to {self.unit} {lines[-1]}",
            )
            for kind, lines in self.lines.items()
            if len(lines) > _SHOWN
        ]
        return [*self.problems, *rest]
