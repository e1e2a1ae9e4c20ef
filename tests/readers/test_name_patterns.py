"""Values in the names of runs: only where the user says so, and never in two ways."""

from __future__ import annotations

import pytest

from isolaw.errors import InputError
from isolaw.readers.assignments import applying, parse
from isolaw.readers.name_patterns import NamePattern, offer

RUNS = ["GRPO-s21-p8-n128-m32-ga4", "GRPO-s22-p8-n32-m32-ga4", "GRPO-s21-p8-n8-m32-ga4"]


def values(pattern: str, run: str, sources: tuple[str, ...] = ()) -> dict[str, object]:
    return {own.name: own.value for own in NamePattern(pattern).assigned(run, sources)}


def test_a_number_is_taken_whole() -> None:
    known = {"seed": 21, "problems_per_batch": 8, "rollouts_per_problem": 128}
    assert values("*s{seed}-p{B_p}-n{n}-*", RUNS[0]) == known
    assert values("*-n{n}*", "runs/GRPO-n128") == {"rollouts_per_problem": 128}
    assert values("*n{n}", "n1280/n64") == {
        "rollouts_per_problem": 64
    }  # the last part, before the whole name
    assert values("n{n}-seed{seed}", "W&B name", ("logs/n8-seed1",)) == {"rollouts_per_problem": 8, "seed": 1}
    assert values("n{n}-lr{lr}-*", "n8-lr1e-06-x") == {"rollouts_per_problem": 8, "lr": 1e-06}
    assert values("n{n}", "m8") == {}


def test_a_name_that_can_be_read_in_two_ways_is_refused() -> None:
    with pytest.raises(InputError, match=r"= 16 or .* = 8; include more of the name"):
        values("*n{n}*", "gen8-n16-x")
    assert values("*-n{n}*", "gen8-n16-x") == {"rollouts_per_problem": 16}


@pytest.mark.parametrize("pattern", ["n8", "", "{n}-{rollouts_per_problem}", "{compute}"])
def test_what_is_no_pattern(pattern: str) -> None:
    with pytest.raises(InputError, match="--name-pattern"):
        NamePattern(pattern)


def test_zero_rollouts_are_refused_as_in_any_setting() -> None:
    with pytest.raises(InputError, match="whole number, 1 or more"):
        values("n{n}", "n0")


def test_a_setting_with_a_glob_is_stronger_and_one_without_weaker() -> None:
    rules = [*parse(["*-n8*:n=9", "n=7", "seed=3"]), NamePattern("*-n{n}-*")]
    assert applying(rules, RUNS[0], [])["rollouts_per_problem"].value == 128
    assert applying(rules, RUNS[2], [])["rollouts_per_problem"].value == 9
    assert applying(rules, "x", [])["rollouts_per_problem"].value == 7
    assert applying(rules, RUNS[0], [])["seed"].value == 3


def test_what_is_offered_reads_the_names() -> None:
    pattern, given = offer(RUNS, ["n", "B_p", "seed", "logging_steps"])
    assert (pattern, given) == ("*-s{seed}-p{B_p}-n{n}*", ["n", "B_p", "seed"])
    assert [values(pattern, run)["rollouts_per_problem"] for run in RUNS] == [128, 32, 8]
    assert offer(["a-seed42", "a-seed43"], ["seed"]) == ("*-seed{seed}*", ["seed"])


@pytest.mark.parametrize(
    ("runs", "needs"),
    [
        (["n8"], ["n"]),  # it does not vary
        (["n8-a", "n8-b"], ["n"]),
        (["n8", "x32"], ["n"]),
        (["a/n8", "b/n8"], ["n"]),  # the same names
        (["n8-n16", "n8-n32"], ["n"]),  # in two places
        (["step8", "step16"], ["n", "B_p", "seed"]),
        (["n8", "n16"], ["percent"]),
    ],
)
def test_nothing_is_offered_that_is_not_clear(runs: list[str], needs: list[str]) -> None:
    assert offer(runs, needs) == ("", [])
