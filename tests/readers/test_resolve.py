"""B_p, n and rollouts per step: any two, where from, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from isolaw.readers.frameworks.base import Fact, Framework
from isolaw.readers.how_to_read import HowToRead, settings_of
from isolaw.readers.raw_log import RawLog
from isolaw.readers.resolve import Resolved, resolve


@pytest.fixture
def run(toy_framework: Framework) -> Any:
    def call(*configs: dict[str, Any], settings: tuple[str, ...] = ()) -> Resolved:
        parts = [RawLog(f"f{i}", "toy", "r", dict(config), "toy.yaml") for i, config in enumerate(configs)]
        return resolve(parts, toy_framework, settings_of([HowToRead.of(set=settings)], "r", ["f"]))

    return call


def values(resolved: Resolved) -> tuple[Any, Any, Any]:
    names = ("problems_per_batch", "rollouts_per_problem", "rollouts_per_step")
    b, n, r = (resolved.facts[name].value if name in resolved.facts else None for name in names)
    return b, n, r


@pytest.mark.parametrize(
    ("config", "settings"),
    [
        ({"toy.n": 8, "toy.prompts": 16}, ()),
        ({"toy.n": 8, "toy.rollouts": 128}, ()),
        ({"toy.rollouts": 128, "toy.prompts": 16}, ()),
        ({"toy.n": 8, "toy.prompts": 16, "toy.rollouts": 128}, ()),
        ({"toy.n": "8", "toy.prompts": 16.0}, ()),
        ({"toy.n": 8}, ("B_p=16",)),
        ({"toy.rollouts": 128}, ("n=8",)),
        ({}, ("n=8", "B=128")),
        ({"toy.n": 99, "toy.prompts": 98, "toy.rollouts": 97}, ("n=8", "B_p=16")),
        ({"toy.n": 99, "toy.prompts": 98, "toy.rollouts": 97}, ("B=128", "B_p=16")),
        ({"toy.n": 4, "toy.prompts": 16, "toy.rollouts": 64}, ("n=8", "B=128")),
    ],
)
def test_any_two_give_the_third(run: Any, config: dict[str, Any], settings: tuple[str, ...]) -> None:
    resolved = run(config, settings=settings)
    assert resolved.problems == []
    assert values(resolved) == (16, 8, 128)


def test_each_has_its_origin(run: Any) -> None:
    facts = run({"toy.n": 8, "toy.rollouts": 128}, settings=("seed=3",)).facts
    assert facts["rollouts_per_problem"].origin == "toy.n in toy.yaml"
    assert facts["problems_per_batch"].origin == "rollouts per step / n; toy.rollouts in toy.yaml"
    assert (facts["seed"].value, facts["seed"].origin) == (3, "--set")
    assert (facts["problem_set"].value, facts["problem_set"].origin) == ("unnamed", "unless set")
    facts = run({"toy.n": 8, "toy.prompts": 16}).facts
    assert facts["rollouts_per_step"].origin == "B_p · n"


@pytest.mark.parametrize(
    ("config", "needs", "text"),
    [
        ({}, ["n", "B_p"], "n and B_p unknown"),
        ({"toy.n": 8}, ["B_p"], "B_p unknown (known: n = 8 (toy.n in toy.yaml))"),
        ({"toy.prompts": 8}, ["n"], "n unknown (known: B_p = 8"),
        ({"toy.rollouts": 96}, ["n"], "n and B_p unknown (known: rollouts per step = 96"),
        ({"toy.n": 0, "toy.prompts": 8}, ["n"], "n unknown"),
        ({"toy.n": "${n}", "toy.prompts": 8}, ["n"], "n unknown"),
        ({"toy.n": 8.5, "toy.prompts": 8}, ["n"], "n unknown"),
        ({"toy.n": True, "toy.prompts": 8}, ["n"], "n unknown"),
        ({"toy.n": 10**40, "toy.prompts": 8}, ["n"], "n unknown"),
    ],
)
def test_what_is_unknown_is_asked_for(run: Any, config: dict[str, Any], needs: list[str], text: str) -> None:
    resolved = run(config)
    assert resolved.needs == needs
    assert resolved.problems[0].startswith(text)


@pytest.mark.parametrize(
    ("config", "settings", "words"),
    [
        (
            {"toy.n": 6, "toy.rollouts": 100},
            (),
            ["rollouts per step = 100 (toy.rollouts in toy.yaml) is not a multiple of n = 6"],
        ),
        (
            {"toy.n": 6, "toy.prompts": 10, "toy.rollouts": 96},
            (),
            ["rollouts per step = 96", "B_p · n = 10 · 6 = 60", "set the two of the three that are correct"],
        ),
        (
            {"toy.n": 6, "toy.prompts": 10},
            ("B=96",),
            ["rollouts per step = 96 (--set)", "set the two of the three that are correct"],
        ),
        (
            {"toy.n": 6, "toy.prompts": 10},
            ("n=8",),
            [
                "n = 8 (--set), but the log has 6 (toy.n in toy.yaml)",
                "set two of n, B_p and rollouts_per_step",
            ],
        ),
        ({}, ("n=6", "B_p=10", "B=96"), ["rollouts per step = 96 (--set)", "10 · 6 = 60"]),
    ],
)
def test_contradictions_are_refused(
    run: Any, config: dict[str, Any], settings: tuple[str, ...], words: list[str]
) -> None:
    (problem,) = run(config, settings=settings).problems
    for word in words:
        assert word in problem


def test_what_was_left_aside_is_said(run: Any) -> None:
    given = {"toy.n": 4, "toy.prompts": 16, "toy.rollouts": 64, "toy.seed": 1}
    notes = run(given, settings=("n=8", "B_p=16", "seed=2")).notes
    for note in (
        "rollouts per step = 64 (toy.rollouts in toy.yaml) was replaced, since your values contradict it",
        "n = 8 (--set), but the log has 4 (toy.n in toy.yaml); isolaw replaced the log's value",
        "seed = 2 (--set), but the log has 1 (toy.seed in toy.yaml); isolaw replaced the log's value",
    ):
        assert note in notes


def test_parts_that_differ(run: Any) -> None:
    (problem,) = run({"toy.n": 8, "toy.prompts": 2}, {"toy.n": 16, "toy.prompts": 2}).problems
    for word in (
        "its parts differ in rollouts_per_problem: 8",
        "and 16",
        'group_by="file"',
        'set={"n": "<value>"}',
    ):
        assert word in problem
    agreed = run({"toy.n": 8, "toy.prompts": 2}, {"toy.n": 16, "toy.prompts": 2}, settings=("n=16",))
    assert agreed.problems == []
    assert values(agreed) == (2, 16, 32)
    both = run({"toy.n": 8, "toy.prompts": 2, "toy.lr": 1e-6}, {"toy.lr": 5e-7})
    assert both.problems == []
    assert both.facts["lr"].value == 1e-6
    assert any("lr: 1e-06" in note and "isolaw kept the first" in note for note in both.notes)


def test_attributes_are_plain_values(run: Any) -> None:
    base = {"toy.n": 8, "toy.prompts": 2}
    facts = run(
        {**base, "toy.lr": 1e-6, "toy.model": "m" * 500, "toy.kl": None, "toy.x": [1], "toy.y": float("nan")}
    ).facts
    assert facts["lr"].value == 1e-6
    assert len(facts["model"].value) == 200
    assert "kl" not in facts
    assert "y" not in facts
    assert facts["x"].value == "[1]"


@pytest.mark.parametrize(("value", "seed"), [(7, 7), ("7", 7), (-1, 0), (None, 0), ("random", 0)])
def test_seed(run: Any, value: Any, seed: int) -> None:
    assert run({"toy.n": 8, "toy.prompts": 2, "toy.seed": value}).facts["seed"].value == seed


def test_what_it_would_follow_from_is_said(run: Any) -> None:
    hint = Fact(None, "B_p = train_batch_size (6) · devices / n")
    resolved = run({"toy.n": 6})
    assert "devices" not in resolved.problems[0]
    framework = Framework("Toy", lambda _key: None, more_facts=lambda _c, _f: {"problems_per_batch": hint})
    (problem,) = resolve([RawLog("f", "toy", "r")], framework, {}).problems
    assert problem == "n and B_p unknown (B_p = train_batch_size (6) · devices / n)"
    settings = settings_of([HowToRead.of(set=["n=6", "B_p=16"])], "r", [])
    assert resolve([RawLog("f", "toy", "r")], framework, settings).problems == []


def test_a_name_adds_what_the_log_lacks_and_may_not_contradict_it(toy_framework: Framework) -> None:
    def named(**config: int) -> Resolved:
        ways = [HowToRead.of(name_pattern="n{n}-p{B_p}-s{seed}")]
        part = RawLog("f", "toy", "r", {f"toy.{key}": value for key, value in config.items()}, "toy.yaml")
        return resolve([part], toy_framework, settings_of(ways, "n8-p32-s3", ["f"]))

    assert values(named()) == (32, 8, 256)
    assert named().facts["seed"].value == 3
    assert values(named(n=8, seed=3, rollouts=256)) == (32, 8, 256)
    problems = named(n=16, seed=5).problems
    assert problems[0].startswith("n = 8 (--name-pattern), but the log has 16 (toy.n in toy.yaml)")
    assert problems[1].endswith("leave {seed} out of the pattern")


@pytest.fixture
def counting(toy_framework: Framework) -> Any:
    """A run whose records count the rollouts of a step."""

    def call(
        counts: list[float], config: dict[str, Any] | None = None, settings: tuple[str, ...] = ()
    ) -> Resolved:
        part = RawLog("f", "toy", "r", config or {}, "toy.yaml")
        for step, count in enumerate(counts):
            part.add({"toy/episodes": count}, step)
        framework = replace(toy_framework, counts=("toy/episodes",))
        return resolve([part], framework, settings_of([HowToRead.of(set=settings)], "r", ["f"]))

    return call


def test_what_a_log_counts_completes_what_is_given(counting: Any) -> None:
    found = counting([400, 400], settings=("n=4",))
    assert found.problems == []
    assert values(found) == (100, 4, 400)
    assert found.facts["rollouts_per_step"].origin == "toy/episodes in every record"
    assert counting([400, 400]).problems  # alone it says neither
    assert values(counting([400, 396], settings=("n=4", "B_p=512"))) == (512, 4, 2048)  # it varies


@pytest.mark.parametrize(
    ("config", "settings"),
    [
        ({}, ("n=16", "B_p=512")),
        ({"toy.n": 16, "toy.prompts": 512}, ()),
        ({"toy.n": 4, "toy.prompts": 100}, ("n=16",)),
        ({}, ("n=7",)),
    ],
)
def test_what_a_log_counts_is_not_contradicted(
    counting: Any, config: dict[str, Any], settings: tuple[str, ...]
) -> None:
    problems = counting([400, 400], config, settings).problems
    assert "rollouts per step = 400 (toy/episodes in every record)" in problems[-1]


def test_all_three_that_are_given_hold(counting: Any) -> None:
    found = counting([400, 400], settings=("n=16", "B_p=512", "B=8192"))
    assert (found.problems, values(found)) == ([], (512, 16, 8192))


@pytest.mark.parametrize("algorithm", ["grpo", "GiGPO", "rloo", "group_norm", "reinforce_baseline"])
def test_one_rollout_of_an_algorithm_of_groups_is_asked(run: Any, algorithm: str) -> None:
    config = {"toy.n": 1, "toy.prompts": 8, "toy.algorithm": algorithm}
    found = run(config)
    (problem,) = found.problems
    assert f"n is 1 (toy.n in toy.yaml), but {algorithm}" in problem
    assert found.needs == ["n"]
    assert values(run(config, settings=("n=5",))) == (8, 5, 40)
    assert values(run(config, settings=("n=1",))) == (8, 1, 8)  # the user's word
    assert values(run({**config, "toy.algorithm": "ppo"})) == (8, 1, 8)
