"""Generated arithmetic, in several difficulties: problem sets that need no download.

A *kind* is a range of operands and an operation; its problems read ``17+25=`` and are answered ``42``.
What is hard is for the model to say: `isolaw split` sorts a pool of these by a base model's success.

=========  ============================================  =========================  =============
kind       operands                                      problems                   example
=========  ============================================  =========================  =============
`add-D`    two numbers below 10^D                        10^D (10^D + 1) / 2        ``17+25=``
`sub-D`    two numbers below 10^D, the larger one first  10^D (10^D + 1) / 2        ``42-17=``
`mul-D`    a number of D digits, a digit from 2 to 9     72 · 10^(D - 1)            ``12*7=``
`sum-K`    K numbers below 100                           C(99 + K, K)               ``17+25+3=``
=========  ============================================  =========================  =============

Terms that may change places make one problem, asked in one order only, so that no validation problem
is a training problem's mirror image.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterable
from pathlib import Path

from isolaw.backends.real.problems import Question, write_set
from isolaw.errors import InputError

CHARACTERS = "0123456789+-*="
_KIND = re.compile(r"(add|sub|mul|sum)-([1-6])")


def size(kind: str) -> int:
    """Return how many problems there are of a kind.

    >>> size("add-2"), size("mul-2")
    (5050, 720)
    """
    operation, k = _parse(kind)
    if operation == "mul":
        return 72 * 10 ** (k - 1)
    if operation == "sum":
        return math.comb(99 + k, k)
    return math.comb(10**k + 1, 2)


def generate(kind: str, count: int, seed: int = 0) -> list[Question]:
    """Return ``count`` distinct problems of a kind, always the same ones for a seed.

    A shorter list is the beginning of a longer one.

    Raises
    ------
    InputError
        an unknown kind, or more problems than there are of it.

    >>> [q.prompt + q.answer for q in generate("add-2", 3)]
    ['49+37=86', '38+26=64', '90+63=153']
    """
    operation, k = _parse(kind)
    if not 0 <= count <= size(kind):
        raise InputError(f"{kind}: {count:,} problems are asked for, there are {size(kind):,}")
    rng = random.Random(f"{kind} {seed}")
    found: dict[tuple[int, ...], Question] = {}
    while len(found) < count:
        operands = _draw(operation, k, rng)
        key = operands if operation == "mul" else tuple(sorted(operands))
        if key not in found:
            found[key] = _question(operation, operands)
    return list(found.values())


def write(
    folder: str | Path, kinds: Iterable[str], n_train: int, n_validation: int, seed: int = 0
) -> dict[str, list[Question]]:
    """Write a problem-set folder of ``kinds`` in equal parts: ``train.jsonl`` and ``validation.jsonl``.

    No problem is in both. Returns what was written, by the name of its file.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp(), "arithmetic")
    >>> parts = write(folder, ["add-2", "sub-2"], n_train=100, n_validation=20)
    >>> {name: len(questions) for name, questions in parts.items()}
    {'train': 100, 'validation': 20}
    >>> folder.joinpath("validation.jsonl").read_text().splitlines()[0]
    """
    kinds = list(kinds)
    of_each = [-(-(n_train + n_validation) // len(kinds))] * len(kinds)
    lists = [generate(kind, count, seed) for kind, count in zip(kinds, of_each, strict=True)]
    mixed = [question for row in zip(*lists, strict=True) for question in row]
    parts = {"validation": mixed[:n_validation], "train": mixed[n_validation:][:n_train]}
    write_set(folder, parts)
    return parts


def _parse(kind: str) -> tuple[str, int]:
    match = _KIND.fullmatch(kind)
    if match is None:
        raise InputError(
            f"kind of arithmetic {kind!r}: accepted: add-D, sub-D, mul-D, sum-K, 1 to 6, as add-2"
        )
    return match[1], int(match[2])


def _draw(operation: str, k: int, rng: random.Random) -> tuple[int, ...]:
    def below(most: int) -> int:
        return int(rng.random() * most)  # of all of its methods, only this one's sequence is promised to stay

    if operation == "mul":
        least = 10 ** (k - 1)
        return least + below(9 * least), 2 + below(8)
    if operation == "sum":
        return tuple(below(100) for _ in range(k))
    pair = below(10**k), below(10**k)
    return pair if operation == "add" else (max(pair), min(pair))


def _question(operation: str, operands: tuple[int, ...]) -> Question:
    sign = {"add": "+", "sub": "-", "mul": "*", "sum": "+"}[operation]
    value = {
        "add": sum(operands),
        "sum": sum(operands),
        "sub": operands[0] - operands[-1],
        "mul": math.prod(operands),
    }[operation]
    text = sign.join(map(str, operands))
    return Question(id=text, prompt=f"{text}=", answer=str(value))
