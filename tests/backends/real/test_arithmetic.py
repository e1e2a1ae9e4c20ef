"""Generated arithmetic: right answers, no problem twice, nothing in both parts."""

from __future__ import annotations

import ast
import doctest
import itertools
import math
import subprocess
import sys
from collections import Counter
from pathlib import Path

import arithmetic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isolaw.backends.real.rollout.problems import Problem, ProblemSet
from isolaw.errors import InputError

KINDS = ["add-12", "sub-12", "mul-12", "sum3-7", "sum4-5"]
kinds = st.sampled_from([*KINDS, "add-100", "sub-1000", "mul-100", "sum3-100", "sum6-10"])


def test_the_documented_examples_hold() -> None:
    assert doctest.testmod(arithmetic).failed == 0


def operands(question: Problem) -> tuple[int, ...]:
    """What is added, subtracted or multiplied, largest first."""
    tree = ast.parse(question.id, mode="eval")
    return tuple(sorted((n.value for n in ast.walk(tree) if isinstance(n, ast.Constant)), reverse=True))


@given(kinds, st.integers(0, 200), st.integers(0, 5))
def test_answers_are_right_and_problems_differ(kind: str, count: int, seed: int) -> None:
    questions = arithmetic.generate(kind, min(count, arithmetic.size(kind)), seed)
    for question in questions:
        assert question.prompt == f"{question.id}="
        assert set(question.prompt) <= set("0123456789+-*=")
        assert set(question.answer) <= set("0123456789")
        assert str(eval(question.id)) == question.answer
    assert len({operands(question) for question in questions}) == len(questions)


@pytest.mark.parametrize("kind", KINDS)
def test_all_problems_of_a_kind_can_be_had(kind: str) -> None:
    name, _, bound = kind.partition("-")
    terms = int(name[3:] or 2)
    every = set(itertools.combinations_with_replacement(range(int(bound) - 1, -1, -1), terms))
    questions = arithmetic.generate(kind, arithmetic.size(kind))
    assert len(every) == arithmetic.size(kind)
    assert {operands(question) for question in questions} == every


def test_terms_come_in_either_order_and_a_difference_is_never_negative() -> None:
    sums = [tuple(map(int, q.id.split("+"))) for q in arithmetic.generate("add-100", 2000)]
    assert 0.4 < sum(a > b for a, b in sums) / 2000 < 0.6
    assert 0.4 < sum(a < 50 for a, _ in sums) / 2000 < 0.6
    assert all(int(q.answer) >= 0 for q in arithmetic.generate("sub-100", 2000))


@pytest.mark.slow
def test_a_seed_gives_the_same_problems_anywhere() -> None:
    code = "from arithmetic import *; print([q.id for q in generate('add-100', 20, 7)])"
    command = [sys.executable, "-R", "-c", code]
    there = Path(arithmetic.__file__).parent
    elsewhere = subprocess.run(command, cwd=there, capture_output=True, text=True, check=True).stdout
    here = [q.id for q in arithmetic.generate("add-100", 20, 7)]
    assert ast.literal_eval(elsewhere) == here
    assert [q.id for q in arithmetic.generate("add-100", 50, 7)][:20] == here
    assert [q.id for q in arithmetic.generate("add-100", 20, 8)] != here


def test_problems_are_drawn_evenly() -> None:
    """χ² of the first of two numbers over the ten digits of its tens; 99.9 % quantile of 9 degrees: 27.9."""
    firsts = Counter(int(q.id.split("+")[0]) // 100 for q in arithmetic.generate("add-1000", 20_000))
    assert sum((firsts[tens] - 2000) ** 2 / 2000 for tens in range(10)) < 27.9


def test_a_folder_is_a_problem_set_of_its_kinds(tmp_path: Path) -> None:
    arithmetic.write(tmp_path / "mixed", ["add-50", "mul-20"], n_train=90, n_validation=31)
    stored = ProblemSet.read(tmp_path / "mixed")
    train, validation = (stored.parts[name] for name in ("train", "validation"))
    assert (len(train), len(validation)) == (90, 31)
    assert not {operands(q) for q in train if "+" in q.id} & {operands(q) for q in validation if "+" in q.id}
    assert Counter("*" in q.id for q in train + validation) in ({True: 60, False: 61}, {True: 61, False: 60})
    arithmetic.write(tmp_path / "again", ["add-50", "mul-20"], n_train=90, n_validation=31)
    for part in stored.parts:
        assert ProblemSet.read(tmp_path / "again").digest(part) == stored.digest(part)


@pytest.mark.parametrize("kind", ["add", "add-0", "add-1e3", "div-10", "sum2-10", "sum3", "add-10 ", ""])
def test_an_unknown_kind(kind: str) -> None:
    with pytest.raises(InputError, match="expected add-M, sub-M"):
        arithmetic.generate(kind, 1)


def test_more_than_there_are() -> None:
    assert arithmetic.size("mul-10") == math.comb(11, 2)
    with pytest.raises(InputError, match=r"mul-10: found 56 problems; expected at most 55"):
        arithmetic.generate("mul-10", 56)
