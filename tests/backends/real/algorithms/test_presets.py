"""What each algorithm sets, and which recipes are refused."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import isolaw
from isolaw.backends.real.algorithms.presets import (
    ALGORITHMS,
    CRITIC_KEYS,
    PHRASE,
    notes_on_defaults,
    recipe_issues,
    resolve_recipe,
)
from isolaw.config import ProblemsSpec, Recipe, RunSpec
from tests.backends.keys import KEYS

KINDS = ("easy", "hard", None)


def problems(n: int = 8, kind: str | None = None, **keys: Any) -> dict[str, str]:
    """Where something is wrong, and what is said about it."""
    found = recipe_issues(resolve_recipe(Recipe(**keys), kind), n)
    assert len({p.where for p in found}) == len(found)
    return {p.where: str(p) for p in found}


def test_nothing_heavy_is_imported() -> None:
    code = "import sys, isolaw.backends.real.algorithms.presets\n"
    code += "print(*(m in sys.modules for m in ('torch', 'numpy')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]


def test_the_papers_recipe_is_the_default() -> None:
    easy, hard = (resolve_recipe(Recipe(), kind) for kind in ("easy", "hard"))
    common = {
        "algorithm": "grpo",
        "lr": 1e-6,
        "lr_scaling": "sqrt",
        "warmup_steps": 10,
        "advantage": "group_std",
        "temperature": 0.6,
        "top_p": 1.0,
        "importance_sampling": "token",
        "importance_cap": 2.0,
        "zero_variance_filter": False,
        "dynamic_sampling": False,
        "staleness": 0,
        "overlong_buffer": 0,
        "clip_low": None,
        "clip_high": None,
    }
    for recipe in (easy, hard):
        assert {key: getattr(recipe, key) for key in common} == common
    assert easy.kl == easy.entropy == 1e-3
    assert hard.kl == hard.entropy == 0


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_algorithm_resolves_to_a_recipe_without_problems(algorithm: str, kind: str | None) -> None:
    recipe = resolve_recipe(Recipe(algorithm=algorithm, staleness=1, minibatches=2), kind)
    assert recipe_issues(recipe, 2) == []
    for key, value in ALGORITHMS[algorithm].items():
        assert getattr(recipe, key) == (1 if key == "staleness" else value)
    # All that is still open has no effect, or means that something is off.
    still_open = {key for key, value in recipe.model_dump().items() if value is None}
    allowed = {"gradient_rollouts", "interrupt_at", "interrupt_phrase", "answer_tokens"}
    allowed |= {"importance_cap"} if algorithm == "scale_rl" else set()
    allowed |= {"lora_rank", "lora_alpha"}
    allowed |= {"advantage"} if algorithm == "ppo" else set(CRITIC_KEYS)
    assert still_open == allowed
    Recipe.model_validate(recipe.model_dump())


def test_every_key_that_an_algorithm_sets_is_one() -> None:
    for keys in ALGORITHMS.values():
        assert set(keys) <= set(Recipe.model_fields)


def open_or(*values: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from([None, *values])


@given(
    st.fixed_dictionaries(
        {
            "algorithm": st.sampled_from(sorted(ALGORITHMS)),
            "staleness": st.integers(0, 2),
            "minibatches": st.integers(1, 2),
            "value_clip": open_or(0.1),
            "critic_lr": open_or(1e-5),
            "kl": open_or(0.0, 0.1),
            "entropy": open_or(0.0, 0.1),
            "clip_low": open_or(0.1),
            "clip_high": open_or(0.3),
            "importance_sampling": open_or("none", "token"),
            "importance_cap": open_or(3.0),
            "advantage": open_or("none", "batch_std"),
            "aggregation": open_or("token", "fixed_length"),
            "overlong_buffer": open_or(0, 5),
            "dynamic_sampling": open_or(True, False),
            "lr": open_or(1e-4),
            "max_response_tokens": open_or(16),
            "gradient_rollouts": open_or(2),
        }
    ),
    st.sampled_from(KINDS),
)
def test_what_is_given_stays_and_resolving_twice_is_resolving_once(
    keys: dict[str, Any], kind: str | None
) -> None:
    recipe = resolve_recipe(Recipe(**keys), kind)
    assert {k: v for k, v in keys.items() if v is not None}.items() <= recipe.model_dump().items()
    assert resolve_recipe(recipe, kind) == recipe
    # The keys that may be without effect are refused exactly where they are.
    refused = {p.where.removeprefix("recipe.") for p in recipe_issues(recipe, 8)}
    stale = (recipe.staleness or 0) > 0 or recipe.minibatches > 1 or recipe.algorithm == "scale_rl"
    ppo = recipe.algorithm == "ppo"
    assert ("critic_lr" in refused) == (keys["critic_lr"] is not None and not ppo)
    clipped = ppo and recipe.minibatches > 1
    assert ("value_clip" in refused) == (keys["value_clip"] is not None and not clipped)
    assert ("advantage" in refused) == (keys["advantage"] is not None and ppo)
    for key in ("clip_low", "clip_high"):
        assert (key in refused) == (keys[key] is not None and not stale)
    assert ("importance_cap" in refused) == (
        keys["importance_cap"] is not None and recipe.importance_sampling == "none"
    )
    assert ("algorithm" in refused) == (keys["algorithm"] == "cispo" and not stale)


@pytest.mark.parametrize(
    ("recipe", "difficulty", "told"),
    [
        ({}, None, True),
        ({"algorithm": "grop"}, None, True),
        ({}, "easy", False),
        ({}, "hard", False),
        ({"kl": 0.0}, None, False),
        ({"entropy": 0.1}, None, False),
        ({"algorithm": "dapo"}, None, False),
    ],
)
def test_terms_that_nobody_chose_are_named_with_how_to_choose(
    recipe: dict[str, Any], difficulty: str | None, told: bool
) -> None:
    notes = notes_on_defaults(Recipe(**recipe), ProblemsSpec.model_validate({"difficulty": difficulty}))
    assert len(notes) == told
    for words in ("recipe.kl = 0 and recipe.entropy = 0", 'problems.difficulty = "easy"') if told else ():
        assert words in notes[0]


def test_an_explicit_zero_turns_a_term_off() -> None:
    recipe = resolve_recipe(Recipe(kl=0.0, entropy=0.0), "easy")
    assert recipe.kl == recipe.entropy == 0


def test_papers_without_kl_have_none_on_easy_problems_either() -> None:
    for algorithm in ("dr_grpo", "dapo", "cispo", "scale_rl"):
        recipe = resolve_recipe(Recipe(algorithm=algorithm), "easy")
        assert recipe.kl == recipe.entropy == 0
    assert resolve_recipe(Recipe(algorithm="dapo", kl=0.1), "easy").kl == 0.1


def test_dapo_punishes_the_last_fifth() -> None:
    assert resolve_recipe(Recipe(algorithm="dapo", max_response_tokens=20480), "hard").overlong_buffer == 4096
    assert resolve_recipe(Recipe(algorithm="dapo", overlong_buffer=0), "hard").overlong_buffer == 0
    assert resolve_recipe(Recipe(max_response_tokens=20480), "hard").overlong_buffer == 0


def test_on_policy_cispo_is_refused_with_what_it_is() -> None:
    said = problems(algorithm="cispo")
    assert set(said) == {"recipe.algorithm"}
    assert "cispo is grpo with recipe.aggregation = 'prompt'" in said["recipe.algorithm"]
    assert "recipe.staleness of at least 1" in said["recipe.algorithm"]
    assert problems(algorithm="cispo", staleness=1) == {}


@pytest.mark.parametrize("more", [{"minibatches": 2}, {"epochs": 2}])
def test_several_updates_on_a_batch_are_off_policy(more: dict[str, int]) -> None:
    for algorithm in ALGORITHMS:
        assert problems(algorithm=algorithm, **more) == {}
    assert problems(clip_low=0.1, clip_high=0.3, **more) == {}
    ppo = resolve_recipe(Recipe(algorithm="ppo", **more))
    assert (ppo.clip_low, ppo.value_clip) == (0.2, 0.2)


def test_the_critic_learns_ten_times_as_fast() -> None:
    recipe = resolve_recipe(Recipe(algorithm="ppo", lr=3e-4), "easy")
    assert (recipe.critic_lr, recipe.gamma, recipe.gae_lambda, recipe.value_clip) == (3e-3, 1.0, 0.95, None)
    assert recipe.kl == 1e-3
    assert resolve_recipe(Recipe(algorithm="ppo")).critic_lr == 1e-5


def test_loras_keys_count_with_a_rank_alone() -> None:
    whole, lora = (resolve_recipe(Recipe(lora_rank=rank)) for rank in (None, 8))
    assert (whole.lora_alpha, lora.lora_alpha) == (None, 32.0)
    assert not {"lora_rank", "lora_alpha"} & whole.chosen().keys()
    said = problems(lora_alpha=4.0)
    assert set(said) == {"recipe.lora_alpha"}
    assert "there are no adapters" in said["recipe.lora_alpha"]
    assert problems(lora_rank=8, lora_alpha=4.0) == {}


@pytest.mark.parametrize("algorithm", ["grpo", "dr_grpo", "dapo", "ppo"])
def test_on_policy_the_others_are_fine_and_their_clip_range_is_not(algorithm: str) -> None:
    assert problems(algorithm=algorithm) == {}
    said = problems(algorithm=algorithm, clip_low=0.1, clip_high=0.3)
    assert set(said) == {"recipe.clip_low", "recipe.clip_high"}
    assert "found 0.3" in said["recipe.clip_high"]
    assert problems(algorithm=algorithm, clip_low=0.1, clip_high=0.3, staleness=2) == {}


@pytest.mark.parametrize(
    ("where", "keys"),
    [
        ("algorithm", {"algorithm": "grop"}),
        ("clip_low", {"staleness": 1, "clip_low": 1.5}),
        ("importance_cap", {"importance_sampling": "none", "importance_cap": 2.0}),
        ("importance_cap", {"importance_cap": 0.5}),
        ("top_p", {"top_p": 0.95}),
        ("gradient_rollouts", {"gradient_rollouts": 9}),
        ("zero_variance_filter", {"advantage": "none", "zero_variance_filter": True}),
        ("dynamic_sampling", {"advantage": "none", "algorithm": "dapo"}),
        ("overlong_buffer", {"max_response_tokens": 10, "overlong_buffer": 11}),
        ("gamma", {"gamma": 1.0}),
        ("critic_lr", {"critic_lr": 1e-5}),
        ("value_clip", {"algorithm": "ppo", "value_clip": 0.2}),
        ("advantage", {"algorithm": "ppo", "advantage": "centred"}),
        ("gradient_rollouts", {"algorithm": "ppo", "gradient_rollouts": 9}),
        ("zero_variance_filter", {"algorithm": "ppo", "zero_variance_filter": True}),
        ("dynamic_sampling", {"algorithm": "ppo", "dynamic_sampling": True}),
        ("answer_tokens", {"answer_tokens": 4}),
        ("interrupt_phrase", {"interrupt_phrase": "stop"}),
        ("max_response_tokens", {"interrupt_at": (4, 6), "answer_tokens": 2, "max_response_tokens": 9}),
        ("max_response_tokens", {"interrupt_at": (4, 6), "max_response_tokens": 6}),
        ("max_response_tokens", {"algorithm": "scale_rl", "interrupt_at": 2000}),
        ("importance_sampling", {"algorithm": "scale_rl", "importance_sampling": "token"}),
    ],
)
def test_senseless_recipes_are_refused(where: str, keys: dict[str, Any]) -> None:
    assert set(problems(**keys)) == {f"recipe.{where}"}


NEEDS: dict[str, dict[str, Any]] = {  # what a key needs to have an effect
    "clip_low": {"staleness": 1}, "clip_high": {"staleness": 1}, "importance_sampling": {"top_p": 1.0},
    "algorithm": {"staleness": 1},
    "top_p": {"importance_sampling": "none"},
    "interrupt_phrase": {"interrupt_at": 9}, "answer_tokens": {"interrupt_at": 9},
    **{key: {"algorithm": "ppo"} for key in ("gamma", "gae_lambda", "critic_lr")},
    "value_clip": {"algorithm": "ppo", "epochs": 2},
    "lora_alpha": {"lora_rank": 4},
}  # fmt: skip


@pytest.mark.parametrize("key", Recipe.model_fields)
def test_every_key_of_the_recipe_changes_the_training_or_is_refused(key: str) -> None:
    alone = [resolve_recipe(Recipe(**{key: value})) for value in KEYS[key]]
    assert key in NEEDS or not any(recipe_issues(recipe, 16) for recipe in alone)
    resolved = [resolve_recipe(Recipe(**{**NEEDS.get(key, {}), key: value})) for value in KEYS[key]]
    assert [getattr(recipe, key) for recipe in resolved] == [*KEYS[key]]
    assert not any(recipe_issues(recipe, 16) for recipe in resolved)
    code = "".join(
        path.read_text()
        for folder in ("backends/real", "config")
        for path in (Path(isolaw.__file__).parent / folder).rglob("*.py")
        if path.name not in ("presets.py", "sections.py")
    )
    assert re.search(rf"(recipe|\br)\.{key}\b", code)


@pytest.mark.parametrize(
    "keys",
    [
        {"top_p": 0.95, "importance_sampling": "none"},
        {"gradient_rollouts": 8},
        {"importance_cap": 1.0},
        {"advantage": "none"},
        {"zero_variance_filter": True, "advantage": "batch_std"},
        {"no_positive_resampling": 0.9},
        {"no_positive_resampling": 0.0},
        {"staleness": 1, "clip_low": 1.0},
        {"max_response_tokens": 10, "overlong_buffer": 10},
        {"interrupt_at": (4, 6), "answer_tokens": 2, "max_response_tokens": 8},
        {"interrupt_at": (4, 4)},
        {"algorithm": "scale_rl", "float32_head": False, "zero_variance_filter": False, "staleness": 0},
        {"algorithm": "scale_rl", "no_positive_resampling": 0.0, "interrupt_at": (4, 6)},
        {"algorithm": "scale_rl", "staleness": 4, "advantage": "centred", "clip_high": 7.0},
    ],
)
def test_sensible_recipes_are_not(keys: dict[str, Any]) -> None:
    assert problems(**keys) == {}


def test_a_group_of_one_needs_no_baseline() -> None:
    assert set(problems(n=1)) == {"grid.rollouts_per_problem"}
    assert problems(n=1, advantage="none") == {}
    assert problems(n=1, algorithm="ppo") == {}


def test_a_misspelt_algorithm_is_told_the_right_one_and_nothing_else() -> None:
    said = problems(algorithm="cisp")
    assert list(said) == ["recipe.algorithm"]
    assert "did you mean 'cispo'?" in said["recipe.algorithm"]
    assert "grpo, dr_grpo, dapo, cispo, ppo, scale_rl" in said["recipe.algorithm"]


def test_all_problems_at_once() -> None:
    said = problems(
        n=4,
        algorithm="cispo",
        clip_high=3.0,
        top_p=0.5,
        importance_cap=0.1,
        gradient_rollouts=5,
    )
    keys = ("algorithm", "clip_high", "top_p", "importance_cap", "gradient_rollouts")
    assert set(said) == {f"recipe.{key}" for key in keys}


# ScaleRL


def test_scale_rl_is_the_papers() -> None:
    recipe = resolve_recipe(
        Recipe(algorithm="scale_rl", max_response_tokens=14336, interrupt_at=(10240, 12288)), "easy"
    )
    expected = {
        "aggregation": "prompt", "advantage": "advantage_std", "zero_variance_filter": True,
        "no_positive_resampling": 0.9, "float32_head": True, "staleness": 8, "importance_sampling": "none",
        "interrupt_at": (10240, 12288), "answer_tokens": 2048, "interrupt_phrase": PHRASE,
        "clip_low": 1.0, "clip_high": 4.0, "overlong_buffer": 0, "kl": 0.0, "entropy": 0.0,
    }  # fmt: skip
    assert {key: getattr(recipe, key) for key in expected} == expected


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("aggregation", "sequence"),
        ("advantage", "group_std"),
        ("zero_variance_filter", False),
        ("no_positive_resampling", 0.0),
        ("float32_head", False),
        ("staleness", 0),
    ],
)
def test_a_part_of_scale_rl_that_is_set_back_changes_its_own_key_alone(key: str, value: Any) -> None:
    whole = resolve_recipe(Recipe(algorithm="scale_rl"))
    recipe = resolve_recipe(Recipe(algorithm="scale_rl", **{key: value}))
    assert recipe_issues(recipe, 8) == []
    assert recipe == whole.model_copy(update={key: value}) != whole


def test_scale_rl_interrupts_where_interrupt_at_is_set() -> None:
    assert resolve_recipe(Recipe(algorithm="scale_rl")).interrupt_phrase is None
    keys: dict[str, Any] = {"interrupt_at": (5, 6), "answer_tokens": 5, "interrupt_phrase": "="}
    recipe = resolve_recipe(Recipe(algorithm="scale_rl", **keys))
    assert {key: getattr(recipe, key) for key in keys} == keys
    assert recipe.max_response_tokens == 11
    assert recipe_issues(recipe, 8) == []


def test_what_is_off_has_no_part_in_a_runs_identity() -> None:
    off = Recipe(zero_variance_filter=False, float32_head=False, staleness=0)
    runs = [
        RunSpec(backend="real", problems_per_batch=8, rollouts_per_problem=4, compute=100, recipe=recipe)
        for recipe in (Recipe(), off, Recipe(staleness=1))
    ]
    assert runs[0].run_id == runs[1].run_id != runs[2].run_id
