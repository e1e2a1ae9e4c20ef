"""Forced interruptions: what is drawn, what is inserted, and that nothing learns from what is inserted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from isolaw.backends.real import BACKEND, models
from isolaw.backends.real.algorithms.presets import resolve_recipe
from isolaw.backends.real.rollout.prompts import check_phrase
from isolaw.backends.real.rollout.samplers import Rollouts, token_limits
from isolaw.backends.real.rollout.worker import _Interruption
from isolaw.config import Recipe

EOS, THOUGHT, PHRASE = 2, 9, [7, 8, 9]
HOW = {"temperature": 1.0, "top_p": 1.0}


class Scripted:
    """A sampler whose responses are as long as their seeds say; it writes down what it was asked."""

    def __init__(self, lengths: dict[int, int], says: int = 5) -> None:
        self.lengths, self.says, self.asked = lengths, says, []

    def generate(self, prompts: Any, seeds: Any, *, max_tokens: Any, **how: float) -> Rollouts:
        assert how == HOW
        own = [seed for some in seeds for seed in some]
        most = token_limits(max_tokens, len(own))
        self.asked.append(([list(prompt) for prompt in prompts], own, most))
        whole = [[self.says] * (self.lengths.get(seed, 2) - 1) + [EOS] for seed in own]
        cut = [tokens[:limit] for tokens, limit in zip(whole, most, strict=True)]
        rows = [list(prompt) for prompt, some in zip(prompts, seeds, strict=True) for _ in some]
        return Rollouts(rows, cut, [[-0.5] * len(t) for t in cut], [t[-1] == EOS for t in cut])


def test_only_what_has_not_ended_is_interrupted() -> None:
    sampler = Scripted({0: 3, 1: 40, 2: 4, 3: 5})
    drawn = _Interruption((4, 4), PHRASE, 6).draw(sampler, [[1], [1, 1]], [[0, 1], [2, 3]], **HOW)
    assert drawn.tokens[0] == [5, 5, EOS]
    assert drawn.tokens[2] == [5, 5, 5, EOS]  # ended at its last place
    for row in (1, 3):
        assert drawn.tokens[row] == [5, 5, 5, 5, *PHRASE, 5, EOS]
    assert drawn.inserted == [[0, 0], [4, 7], [0, 0], [4, 7]]
    assert drawn.lengths == [3, 6, 4, 6] == [len(row) for row in drawn.logprobs]
    assert drawn.finished == [True] * 4
    contexts, seeds, most = sampler.asked[1]
    assert contexts == [[1, 5, 5, 5, 5, *PHRASE], [1, 1, 5, 5, 5, 5, *PHRASE]]
    assert most == [6, 6]
    assert not {0, 1, 2, 3} & set(seeds)  # the same numbers would draw the same again
    assert len(set(seeds)) == 2


def test_an_answer_that_is_too_long_is_cut() -> None:
    class Endless(Scripted):
        def generate(self, *asked: Any, **more: Any) -> Rollouts:
            self.lengths = dict.fromkeys((s for some in asked[1] for s in some), 99)
            return super().generate(*asked, **more)

    drawn = _Interruption((4, 4), PHRASE, 6).draw(Endless({}), [[1]], [[0]], **HOW)
    assert (drawn.lengths, drawn.finished) == ([10], [False])


def test_who_is_answering_already_gets_no_phrase() -> None:
    drawn = _Interruption((4, 4), PHRASE, 6, closing_token=5).draw(Scripted({0: 9}), [[1]], [[0]], **HOW)
    assert drawn.tokens == [[5, 5, 5, 5, 5, EOS]]
    assert (drawn.inserted, drawn.lengths) == ([[4, 4]], [6])


def test_the_place_is_drawn_for_each_response_from_its_seed() -> None:
    lengths = dict.fromkeys(range(400), 99)
    places = [
        [
            first
            for first, _ in _Interruption((4, 7), PHRASE, 6)
            .draw(Scripted(lengths), [[1]], [value], **HOW)
            .inserted
        ]
        for value in (list(range(400)), list(range(399, -1, -1)))
    ]
    assert places[0] == places[1][::-1]
    assert np.bincount(places[0])[4:].min() > 60
    assert set(places[0]) == {4, 5, 6, 7}


@pytest.mark.real
def test_the_phrase_is_in_the_models_tokens(made, resolved) -> None:
    tokenizer = models.tokenizer(made.model)
    recipe = resolve_recipe(Recipe(interrupt_at=(4, 4), interrupt_phrase="=1"))
    own = _Interruption.of(recipe, tokenizer)
    assert own == _Interruption(
        (4, 4), tokenizer("=1", add_special_tokens=False).input_ids, recipe.answer_tokens
    )
    assert _Interruption.of(resolve_recipe(Recipe()), tokenizer) is None
    tokenizer.add_tokens(["</think>"])
    ends = recipe.model_copy(update={"interrupt_phrase": "=1</think>"})
    assert _Interruption.of(ends, tokenizer).closing_token == tokenizer.convert_tokens_to_ids("</think>")
    (issue,) = check_phrase("time is 1", tokenizer)
    assert "knows only '1' of the phrase" in str(issue)


@pytest.mark.real
def test_a_phrase_that_the_model_cannot_say_is_refused_and_one_that_it_can_needs_room(resolved) -> None:
    recipe: dict[str, Any] = {"interrupt_at": [8, 10], "answer_tokens": 4, "max_response_tokens": 14}
    spec = resolved(recipe={**recipe, "interrupt_phrase": "="})
    assert spec.recipe.interrupt_at == (8, 10)

    def said(phrase: str) -> str:
        changed = spec.recipe.model_copy(update={"interrupt_phrase": phrase})
        return " ".join(map(str, BACKEND.check(spec.model_copy(update={"recipe": changed}))))

    assert said("=" * 5) == ""
    assert "recipe.interrupt_phrase: the model's tokenizer knows nothing of the phrase" in said("Time is up.")
    assert "too long" in said("=" * 12)  # 32 tokens of context, prompts of up to 9


# train/test_loop.py compares vLLM's with the trainer's over a run.
@pytest.fixture(params=[pytest.param("vllm", marks=pytest.mark.nightly), "transformers_sampler"])
def sampler(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


@pytest.mark.real
@pytest.mark.slow
def test_log_probabilities_are_those_after_the_phrase_and_nothing_is_truncated(made, sampler) -> None:
    """Sums that get two tokens to think: without an interruption most are cut, with one the model answers."""
    from transformers import AutoModelForCausalLM

    tokenizer = models.tokenizer(made.model)
    prompts = [tokenizer(f"{a}+{b}=").input_ids for a in (7, 68, 95, 120) for b in (5, 17, 88)]
    seeds = np.arange(12 * 8).reshape(12, 8).tolist()
    cut = sampler.generate(prompts, seeds, max_tokens=2, **HOW)
    assert np.mean(cut.finished) < 0.3
    own = _Interruption((2, 2), tokenizer("=", add_special_tokens=False).input_ids, 12)
    drawn = own.draw(sampler, prompts, seeds, **HOW)
    assert all(drawn.finished)
    assert own.draw(sampler, prompts, seeds, **HOW) == drawn
    some = own.draw(sampler, prompts[3:5], [row[:2] for row in seeds[3:5]], **HOW)
    assert some.tokens == [drawn.tokens[row] for row in (24, 25, 32, 33)]

    model = AutoModelForCausalLM.from_pretrained(made.model, dtype=torch.float32).eval()
    for prompt, tokens, (first, end), told in zip(
        drawn.prompts, drawn.tokens, drawn.inserted, drawn.logprobs, strict=True
    ):
        assert tokens[first:end] == (own.phrase if end else [])
        with torch.no_grad():
            logits = model(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1].double()
        exact = logits.log_softmax(-1)[range(len(tokens)), tokens]
        drawn_ones = [t for t in range(len(tokens)) if not first <= t < end]
        assert told == pytest.approx(exact[drawn_ones].tolist(), abs=1e-4)


ROWS = Rollouts(
    [[1, 4, 10, 13], [1, 5, 10, 6], [1, 5, 10, 6]],
    [[5, 6, 16, 16, 7, 2], [6, 2], [6, 16, 16, 2]],
    [[-1.0] * 4, [-1.0] * 2, [-1.0] * 2],
    [True] * 3,
    [[2, 4], [0, 0], [1, 3]],
)


@pytest.mark.real
@pytest.mark.slow
def test_the_gradient_is_that_of_the_drawn_tokens(made) -> None:
    from transformers import AutoModelForCausalLM

    from isolaw.backends.real.train.trainer import Trainer

    plain = AutoModelForCausalLM.from_pretrained(made.model, dtype=torch.float32).eval()
    total: Any = 0.0
    for row, (prompt, tokens, (first, end)) in enumerate(
        zip(ROWS.prompts, ROWS.tokens, ROWS.inserted, strict=True)
    ):
        logp = plain(torch.tensor([prompt + tokens])).logits[0].log_softmax(-1)
        for t, token in enumerate(tokens):
            if not first <= t < end:
                total = total + (row + 1) * (t + 1) * logp[len(prompt) + t - 1, token]
    total.backward()

    def loss(rows: Any, packed: Any, logp: Any, entropy: Any) -> Any:
        assert packed.mask.sum(1).tolist() == [ROWS.lengths[row] for row in rows]
        places = [[t for t in range(9) if not ROWS.inserted[r][0] <= t < ROWS.inserted[r][1]] for r in rows]
        weights = torch.tensor(
            [[(r + 1) * (t + 1.0) for t in p[: logp.shape[1]]] for r, p in zip(rows, places, strict=True)]
        )
        return (weights * logp * packed.mask).sum()

    trainer = Trainer(str(made.model), micro_batch_tokens=18, max_grad_norm=0.0)
    try:
        trainer.backward(ROWS, loss, temperature=1.0)
        found = trainer.gradients()
        assert [len(values) for values in trainer.logprobs(ROWS, 1.0)] == ROWS.lengths
    finally:
        trainer.close()
    for name, parameter in plain.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, atol=1e-3, rtol=1e-3)


@pytest.mark.real
@pytest.mark.slow
def test_nothing_changes_with_the_logits_of_an_inserted_token(made) -> None:
    """Perturbed one place at a time, before the head: the loss sees the drawn tokens' places alone."""
    from isolaw.backends.real.train import packing, policy

    loaded = policy.Policy(policy.pretrained(str(made.model), "float32", torch.device("cpu")))
    packed = packing.pack(ROWS.rows([0]), torch.device("cpu"))
    moved: list[int] = []

    def nudge(_: Any, __: Any, hidden: torch.Tensor) -> torch.Tensor:
        out = hidden.clone()
        out[:, moved] += torch.linspace(-1, 1, hidden.shape[-1])
        return out

    hook = loaded.model.model.norm.register_forward_hook(nudge)
    with torch.no_grad():
        before = loaded(packed, 1.0)
        changes = []
        for place in range(10):
            moved[:] = [place]
            changes.append(bool((loaded(packed, 1.0) != before).any()))
    hook.remove()
    # The prompt has four tokens, and a place predicts the next one: 5 and 6 predict the inserted ones.
    assert changes == [False] * 3 + [True, True, False, False, True, True, False]
