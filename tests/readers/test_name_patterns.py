"""Values in the names of runs: only where the user says so, and never in two ways."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isolaw.errors import InputError
from isolaw.readers.how_to_read import HowToRead, settings_of
from isolaw.readers.name_patterns import NamePattern, suggest
from isolaw.readers.names import WHOLE, settable

RUNS = ["GRPO-s21-p8-n128-m32-ga4", "GRPO-s22-p8-n32-m32-ga4", "GRPO-s21-p8-n8-m32-ga4"]


def values(pattern: str, run: str, sources: tuple[str, ...] = ()) -> dict[str, object]:
    return NamePattern(pattern).read(run, sources)


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
    assert values("*a*a{n}", "xaxa8") == {"rollouts_per_problem": 8}


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
    ways = [HowToRead.of(set=["*-n8*:n=9", "n=7", "seed=3"], name_pattern="*-n{n}-*")]
    assert settings_of(ways, RUNS[0], [])["rollouts_per_problem"].value == 128
    assert settings_of(ways, RUNS[2], [])["rollouts_per_problem"].value == 9
    assert settings_of(ways, "x", [])["rollouts_per_problem"].value == 7
    assert settings_of(ways, RUNS[0], [])["seed"].value == 3


def test_what_is_offered_reads_the_names() -> None:
    pattern, given = suggest(RUNS, ["n", "B_p", "seed", "logging_steps"])
    assert (pattern, given) == ("*-s{seed}-p{B_p}-n{n}*", ["n", "B_p", "seed"])
    assert [values(pattern, run)["rollouts_per_problem"] for run in RUNS] == [128, 32, 8]
    assert suggest(["a-seed42", "a-seed43"], ["seed"]) == ("*-seed{seed}*", ["seed"])


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
    assert suggest(runs, needs) == ("", [])


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("*a*a*a*a*a*aX{n}", "a" * 60),
        ("*a*a*a*a*a*a*a*aX{n}", "X1" + "a" * 900),
        ("*{n}*{lr}*{seed}*{kl}X", "1e1-" * 250),
        ("{lr}{kl}{tau}{beta}{eps}X*", "1" * 999),
        ("*1*1*1*1*1*1*1*1{n}*X{seed}", "1-" * 480 + "X"),
        ("*/*/*/*/*/*/*/*/n{n}", "a/" * 480 + "n"),
    ],
)
def test_a_pattern_takes_no_time_that_grows_with_its_stars(pattern: str, name: str) -> None:
    began = time.process_time()
    assert NamePattern(pattern).values(name) == {}
    assert time.process_time() - began < 2


def test_a_pattern_has_a_limit() -> None:
    with pytest.raises(InputError, match=r"found 51 values and .*; expected at most 40"):
        NamePattern("*a" * 50 + "{n}")
    assert NamePattern("*n{n}*").values("x" * 1_000 + "n8") == {}  # no log has so long a name


@pytest.mark.parametrize("unit", ["a_", "a1", "a-", "1", "a", "-lr1e", "run", " "])
def test_an_offer_takes_no_time_that_grows_with_names(unit: str) -> None:
    began = time.process_time()
    names = [unit * 2_000 + end for end in ("n8", "n16", "n32")]
    suggest(names, ["n", "B_p", "seed"])
    assert time.process_time() - began < 2


def as_expression(pattern: str, name: str, anything: str) -> dict[str, str]:
    """What a regular expression reads, which tries all combinations."""
    text = ""
    for i, part in enumerate(re.split(r"\{(\w+)\}", pattern)):
        if i % 2 == 0:
            text += anything.join(map(re.escape, part.split("*")))
        else:
            whole = settable(part, "") in WHOLE
            kind = "(?<![0-9])[0-9]++" if whole else "(?>[0-9.]+e-?[0-9]+|[^-_/ ]+)"
            text += f"(?P<{settable(part, '')}>{kind})"
    found = re.fullmatch(text, name, re.S)
    return found.groupdict() if found else {}


@given(
    st.lists(st.sampled_from(["*", "-", "a", "1", "e", "{n}", "{lr}", "{kl}", "*-"]), min_size=1, max_size=7),
    st.text("12.eaan-_ 0s", max_size=14),
)
def test_a_pattern_reads_as_a_regular_expression_would(parts: list[str], name: str) -> None:
    text = "".join(dict.fromkeys(parts)) + "{seed}*"
    most, least = (as_expression(text, name, anything) for anything in (".*", ".*?"))
    if most != least:
        with pytest.raises(InputError, match="include more of the name"):
            NamePattern(text).values(name)
    else:
        assert NamePattern(text).values(name) == most
