"""``--set``: what is accepted, for which runs it holds, and what is told of the rest."""

from __future__ import annotations

import pytest

from isolaw.errors import InputError
from isolaw.readers.assignments import Assignment, applying, parse
from isolaw.readers.resolve import only, option


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("n=16", ("rollouts_per_problem", 16, "")),
        ("rollouts_per_problem=16", ("rollouts_per_problem", 16, "")),
        ("B_p=512", ("problems_per_batch", 512, "")),
        ("B=4096", ("rollouts_per_step", 4096, "")),
        ("seed=0", ("seed", 0, "")),
        ("lr=1e-6", ("lr", 1e-6, "")),
        ("model=Qwen/Qwen2.5-7B", ("model", "Qwen/Qwen2.5-7B", "")),
        ("model=hf:org/name", ("model", "hf:org/name", "")),
        ("on_policy=True", ("on_policy", True, "")),
        ("percent=false", ("percent", False, "")),
        ("problem_set=17", ("problem_set", "17", "")),
        ("runs/*:n=8", ("rollouts_per_problem", 8, "runs/*")),
        ("*n=8*:n=8", ("rollouts_per_problem", 8, "*n=8*")),
        ("a:1:seed=3", ("seed", 3, "a:1")),
        (" n = 8".replace(" ", ""), ("rollouts_per_problem", 8, "")),
    ],
)
def test_forms(text: str, expected: tuple[str, object, str]) -> None:
    (found,) = parse([text])
    assert (found.name, found.value, found.glob) == expected


def test_a_mapping_says_the_same() -> None:
    assert parse({"n": 16, "a*:seed": 1, "on_policy": True}) == parse(["n=16", "a*:seed=1", "on_policy=true"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("n", ["NAME=VALUE", "GLOB:NAME=VALUE"]),
        ("n=", ["NAME=VALUE"]),
        ("=3", ["NAME=VALUE"]),
        ("n=0", ["rollouts_per_problem must be a whole number, 1 or more"]),
        ("n=8.5", ["whole number"]),
        ("n=many", ["whole number"]),
        ("n=1e9999", ["whole number"]),
        ("seed=-1", ["seed must be a whole number, 0 or more"]),
        ("on_policy=maybe", ["true or false"]),
        ("rollouts_per_prblem=8", ["did you mean 'rollouts_per_problem'?"]),
        ("seeds=8", ["did you mean 'seed'?"]),
        ("compute=1", ["compute comes from the log"]),
        ("C=1", ["compute comes from the log"]),
        ("value=1", ["cannot be set"]),
    ],
)
def test_refused(text: str, words: list[str]) -> None:
    with pytest.raises(InputError) as error:
        parse([text])
    for word in ["--set", *words]:
        assert word in str(error.value)


def test_one_text_is_not_a_list_of_them() -> None:
    with pytest.raises(InputError, match="a list of texts"):
        parse("n=16")


def test_a_glob_goes_before_none_and_the_later_before_the_earlier() -> None:
    settings = parse(["runs/a*:n=8", "n=16", "n=32", "*a:n=4", "seed=1"])

    def n(run: str, *sources: str) -> object:
        return {name: own.value for name, own in applying(settings, run, sources).items()}

    assert n("runs/a") == {"rollouts_per_problem": 4, "seed": 1}
    assert n("runs/ab") == {"rollouts_per_problem": 8, "seed": 1}
    assert n("runs/b") == {"rollouts_per_problem": 32, "seed": 1}


@pytest.mark.parametrize("glob", ["runs/n8", "n8", "runs/*", "*.jsonl", "/data/runs/n8/*"])
def test_a_glob_is_of_the_name_or_of_a_source(glob: str) -> None:
    assert Assignment("seed", 1, glob).matches("runs/n8", ["/data/runs/n8/metrics.jsonl"])
    assert not Assignment("seed", 1, glob).matches("other/n16", ["/x/n16/metrics.log"])


@pytest.mark.parametrize("run", ["runs/a", "n=8/seed=1", "a:n=8", "[x] *?", "it's", "x y"])
def test_what_is_suggested_is_accepted_and_is_for_that_run_alone(run: str) -> None:
    flag, text = option(only(run), "seed", 1).words
    assert flag == "--set"
    (setting,) = parse([text])
    assert (setting.name, setting.value) == ("seed", 1)
    assert setting.matches(run, [])
    assert not setting.matches(run + "2", [])
