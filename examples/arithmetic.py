"""Problem sets of generated arithmetic, to try the real backend with.

    python examples/arithmetic.py problems/additions --kinds add-100 --train 1000 --validation 200

A *kind* is an operation and a bound M. Its problems read ``17+25=`` and are answered ``42``.

===========  =============================================  ====================  =============
kind         operands                                       problems              example
===========  =============================================  ====================  =============
``add-M``    two numbers below M                            M (M + 1) / 2         ``17+25=``
``sub-M``    two numbers below M, the larger one first      M (M + 1) / 2         ``42-17=``
``mul-M``    two numbers below M                            M (M + 1) / 2         ``12*7=``
``sum3-M``   three numbers below M (or 4, 5, 6 of them)     C(M + 2, 3)           ``17+25+3=``
===========  =============================================  ====================  =============

Operands in another order are the same problem, so no validation problem mirrors a training problem.
"""

from __future__ import annotations

import argparse
import math
import random
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from isolaw.backends.real.rollout.problems import Problem, write_set
from isolaw.errors import InputError

_KIND = re.compile(r"(add|sub|mul|sum[3-6])-([1-9]\d{0,5})")
_SIGNS = {"add": "+", "sub": "-", "mul": "*", "sum": "+"}


def size(kind: str) -> int:
    """Return the number of problems of a kind.

    >>> size("add-100"), size("sum3-10")
    (5050, 220)
    """
    _, terms, bound = _parse(kind)
    return math.comb(bound + terms - 1, terms)


def generate(kind: str, count: int, seed: int = 0) -> list[Problem]:
    """Return ``count`` distinct problems of a kind, the same for the same seed.

    A shorter list is the beginning of a longer one.

    Raises
    ------
    InputError
        an unknown kind, or more problems than the kind has.

    >>> [q.prompt + q.answer for q in generate("add-100", 3)]
    ['14+34=48', '42+42=84', '50+7=57']
    """
    operation, terms, bound = _parse(kind)
    if not 0 <= count <= size(kind):
        raise InputError(f"{kind}: found {count:,} problems; expected at most {size(kind):,}")
    rng = random.Random(f"{kind} {seed}")
    found: dict[tuple[int, ...], Problem] = {}
    while len(found) < count:
        # Python promises a stable sequence for this method of a Random alone.
        operands = [int(rng.random() * bound) for _ in range(terms)]
        key = tuple(sorted(operands, reverse=True))
        if key not in found:
            found[key] = _problem(operation, key if operation == "sub" else operands)
    return list(found.values())


def write(
    folder: str | Path, kinds: Iterable[str], n_train: int, n_validation: int, seed: int = 0
) -> dict[str, list[Problem]]:
    """Write ``train.jsonl`` and ``validation.jsonl`` with ``kinds`` in equal parts; return the problems.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp(), "arithmetic")
    >>> parts = write(folder, ["add-100", "sub-100"], n_train=100, n_validation=20)
    >>> {name: len(problems) for name, problems in parts.items()}
    {'train': 100, 'validation': 20}
    >>> folder.joinpath("validation.jsonl").read_text().splitlines()[0]
    '{"id": "14+34", "prompt": "14+34=", "answer": "48"}'
    """
    kinds = list(kinds)
    each = -(-(n_train + n_validation) // len(kinds))
    rows = zip(*(generate(kind, each, seed) for kind in kinds), strict=True)
    mixed = [problem for row in rows for problem in row]
    parts = {"train": mixed[n_validation:][:n_train], "validation": mixed[:n_validation]}
    write_set(folder, parts)
    return parts


def _parse(kind: str) -> tuple[str, int, int]:
    """Return the operation, the number of its terms, and the bound M."""
    match = _KIND.fullmatch(kind)
    if match is None:
        accepted = "add-M, sub-M, mul-M, sum3-M to sum6-M, M up to 999999, e.g. add-100"
        raise InputError(f"kind of arithmetic: found {kind!r}; expected {accepted}")
    operation, bound = match[1], int(match[2])
    return operation[:3], int(operation[3:] or 2), bound


def _problem(operation: str, operands: Sequence[int]) -> Problem:
    text = _SIGNS[operation].join(map(str, operands))
    if operation == "sub":
        value = operands[0] - operands[1]
    else:
        value = math.prod(operands) if operation == "mul" else sum(operands)
    return Problem(id=text, prompt=f"{text}=", answer=str(value))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kinds", nargs="+", default=["add-100"], help="e.g. add-100 mul-20")
    parser.add_argument("--train", type=int, default=1000, help="training problems")
    parser.add_argument("--validation", type=int, default=200, help="validation problems")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    write(options.folder, options.kinds, options.train, options.validation, options.seed)
