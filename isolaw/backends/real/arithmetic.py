"""Generated arithmetic, in several difficulties: problem sets that need no download.

A *kind* is an operation and a bound M; its problems read ``17+25=`` and are answered ``42``. How hard they
are is for a model to say: `isolaw split` sorts a pool of them by a base model's success.

===========  =============================================  ====================  =============
kind         operands                                       problems              example
===========  =============================================  ====================  =============
``add-M``    two numbers below M                            M (M + 1) / 2         ``17+25=``
``sub-M``    two numbers below M, the larger one first      M (M + 1) / 2         ``42-17=``
``mul-M``    two numbers below M                            M (M + 1) / 2         ``12*7=``
``sum3-M``   three numbers below M (or 4, 5, 6 of them)     C(M + 2, 3)           ``17+25+3=``
===========  =============================================  ====================  =============

Terms that may change places make one problem, asked in one order only, so that no validation problem
is a training problem's mirror image.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from isolaw.backends.real.rollout.problems import Problem, write_set
from isolaw.errors import InputError

CHARACTERS = "0123456789+-*="
_KIND = re.compile(r"(add|sub|mul|sum[3-6])-([1-9]\d{0,5})")
_SIGNS = {"add": "+", "sub": "-", "mul": "*", "sum": "+"}


def size(kind: str) -> int:
    """Return how many problems there are of a kind.

    >>> size("add-100"), size("sum3-10")
    (5050, 220)
    """
    _, terms, bound = _parse(kind)
    return math.comb(bound + terms - 1, terms)


def generate(kind: str, count: int, seed: int = 0) -> list[Problem]:
    """Return ``count`` distinct problems of a kind, always the same ones for a seed.

    A shorter list is the beginning of a longer one.

    Raises
    ------
    InputError
        an unknown kind, or more problems than there are of it.

    >>> [q.prompt + q.answer for q in generate("add-100", 3)]
    ['14+34=48', '42+42=84', '50+7=57']
    """
    operation, terms, bound = _parse(kind)
    if not 0 <= count <= size(kind):
        raise InputError(f"{kind}: {count:,} problems are asked for, there are {size(kind):,}")
    rng = random.Random(f"{kind} {seed}")
    found: dict[tuple[int, ...], Problem] = {}
    while len(found) < count:
        # Of all methods of a Random, only this one's sequence is promised to stay what it is.
        operands = [int(rng.random() * bound) for _ in range(terms)]
        key = tuple(sorted(operands, reverse=True))
        if key not in found:
            found[key] = _question(operation, key if operation == "sub" else operands)
    return list(found.values())


def write(
    folder: str | Path, kinds: Iterable[str], n_train: int, n_validation: int, seed: int = 0
) -> dict[str, list[Problem]]:
    """Write a problem-set folder of ``kinds`` in equal parts: ``train.jsonl`` and ``validation.jsonl``.

    No problem is in both. Returns what was written, by the name of its file.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp(), "arithmetic")
    >>> parts = write(folder, ["add-100", "sub-100"], n_train=100, n_validation=20)
    >>> {name: len(questions) for name, questions in parts.items()}
    {'train': 100, 'validation': 20}
    >>> folder.joinpath("validation.jsonl").read_text().splitlines()[0]
    '{"id": "14+34", "prompt": "14+34=", "answer": "48"}'
    """
    kinds = list(kinds)
    of_each = [-(-(n_train + n_validation) // len(kinds))] * len(kinds)
    lists = [generate(kind, count, seed) for kind, count in zip(kinds, of_each, strict=True)]
    mixed = [question for row in zip(*lists, strict=True) for question in row]
    parts = {"train": mixed[n_validation:][:n_train], "validation": mixed[:n_validation]}
    write_set(folder, parts)
    return parts


def _parse(kind: str) -> tuple[str, int, int]:
    """The operation, the number of its terms, and the bound M."""
    match = _KIND.fullmatch(kind)
    if match is None:
        accepted = "add-M, sub-M, mul-M, sum3-M to sum6-M, M up to 999999, as add-100"
        raise InputError(f"kind of arithmetic {kind!r}: accepted: {accepted}")
    operation, bound = match[1], int(match[2])
    return operation[:3], int(operation[3:] or 2), bound


def _question(operation: str, operands: Sequence[int]) -> Problem:
    text = _SIGNS[operation].join(map(str, operands))
    if operation == "sub":
        value = operands[0] - operands[1]
    else:
        value = math.prod(operands) if operation == "mul" else sum(operands)
    return Problem(id=text, prompt=f"{text}=", answer=str(value))
