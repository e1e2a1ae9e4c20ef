"""Problems that a language model answers, and the sets of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

Message = dict[str, str]


@dataclass(frozen=True)
class Question:
    """One problem: what the model is given, and what the reward compares its response with.

    ``prompt`` is text, or chat messages ``{"role": …, "content": …}``.
    """

    id: str
    prompt: str | list[Message]
    answer: str


def write_set(folder: str | Path, parts: Mapping[str, Iterable[Question]]) -> None:
    """Write a problem-set folder: ``<part>.jsonl`` for each part, a question a line."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for part, questions in parts.items():
        lines = [json.dumps(asdict(question), ensure_ascii=False) + "\n" for question in questions]
        folder.joinpath(f"{part}.jsonl").write_text("".join(lines), encoding="utf-8")
