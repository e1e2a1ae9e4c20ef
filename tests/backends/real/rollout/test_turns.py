"""Rollouts of several turns: what is drawn, what is trained on, what is counted."""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from isolaw.backends.real import BACKEND
from isolaw.backends.real.options import RealOptions
from isolaw.backends.real.rollout.problems import Problem
from isolaw.backends.real.rollout.prompts import Chat, encode_reply
from isolaw.backends.real.rollout.samplers import Rollouts
from isolaw.backends.real.train.loop import Run
from isolaw.backends.real.train.loop import train as steps
from isolaw.errors import RunError

pytestmark = pytest.mark.real

MODULE = """
async def one(problem, generate):
    return [problem.prompt, await generate([problem.prompt])]
async def two(problem, generate):
    conversation = [problem.prompt, await generate([problem.prompt]), problem.prompt]
    conversation.append(await generate(conversation))
    return conversation, float("1" in conversation[-1])
async def ever(problem, generate):
    conversation = [problem.prompt]
    while True: conversation += [await generate(conversation), "="]
async def some_fail(problem, generate):
    if int(problem.answer) % 4 == 1: raise ValueError("odd from the start")
    conversation = [problem.prompt, await generate([problem.prompt]), "="]
    if int(problem.answer) % 2: raise ValueError("odd")
    return [*conversation, await generate(conversation)]
async def all_fail(problem, generate):
    await generate([problem.prompt])
    raise ValueError("never")
"""


@pytest.fixture(scope="module", autouse=True)
def module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("led")
    (folder / "led_rollouts.py").write_text(MODULE)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield
    sys.modules.pop("led_rollouts", None)


def led(name: str, **more: Any) -> dict[str, Any]:
    return {"rollout": f"led_rollouts:{name}", "sampler": "transformers", **more}


ROOM: dict[str, Any] = {"max_response_tokens": 23}  # prompts have up to 9 of the 32 tokens


class Scripted:
    """A sampler that writes "5" and the end, or what it is told, and keeps what it was asked."""

    def __init__(self, *turns: list[int]) -> None:
        self.turns, self.asked = list(turns), []

    def generate(self, prompts: Any, seeds: Any, *, max_tokens: Any, **how: Any) -> Rollouts:
        self.asked.append(SimpleNamespace(prompts=prompts, seeds=seeds, limits=max_tokens))
        own = self.turns.pop(0) if self.turns else [8, 2]
        rows = [own[:limit] for limit in max_tokens]
        return Rollouts(prompts, rows, [[-1.0] * len(r) for r in rows], [r[-1] == 2 for r in rows])


def drawn(sampler: Scripted, count: int = 1, tokens: int = 20, **options: Any) -> list[Any]:
    from isolaw.backends.real.gpu_selftest.model import make_tokenizer
    from isolaw.backends.real.rollout.turns import Turns

    tokenizer = make_tokenizer()
    if options.pop("template", False):
        # A turn ends with <eos> and "=", as others end with <|im_end|> and a new line.
        tokenizer.chat_template = (
            "{% for m in messages %}{{ {'user': '+', 'assistant': '-', 'system': '*'}[m.role] }}"
            "{{ m.content }}<eos>={% endfor %}{% if add_generation_prompt %}-{% endif %}"
        )
    turns = Turns(RealOptions(model="m", **options), tokenizer, 7 + tokens)
    problems = [Problem(str(k), "17+25=", "42") for k in range(count)]
    try:
        return turns.draw(
            sampler,  # type: ignore[arg-type]
            problems,
            prompts=[[1, 4, 10, 13, 5, 8, 16]] * count,
            seeds=[[100 + k] for k in range(count)],
            temperature=1.0,
            top_p=1.0,
            max_tokens=tokens,
        )
    finally:
        turns.close()


def test_tokens_stay_as_they_were_drawn_and_draws_depend_on_seed_and_turn_alone() -> None:
    sampler = Scripted([17, 8, 2])  # <17> is no text that a tokenizer would return
    (row,) = drawn(sampler, rollout="led_rollouts:two")
    assert row.tokens == [17, 8, 2, 4, 10, 13, 5, 8, 16, 8, 2]
    assert (row.inserted, row.environment_tokens, row.turns) == ([3, 9], 6, 2)
    assert len(row.logprobs) == 5
    assert (row.written, row.finished, row.failed) == ("5", True, "")
    first, second = sampler.asked
    assert second.prompts == [row.prompt + row.tokens[:9]]
    assert (first.seeds, first.limits, second.limits) == ([[100]], [20], [11])
    several = Scripted()
    drawn(several, 3, rollout="led_rollouts:two", reward_workers=3)
    assert several.asked[0].seeds == [[100], [101], [102]]
    assert several.asked[1].seeds[0] == second.seeds[0]  # all rollouts at once, each with its own
    assert len({seed for (seed,) in several.asked[0].seeds + several.asked[1].seeds}) == 6


@pytest.mark.parametrize(
    ("limit", "turns"), [({"rollout_turns": 3}, 3), ({"tokens": 12}, 4), ({"tokens": 3}, 1)]
)
def test_a_rollout_without_turns_or_tokens_left_is_cut(limit: dict[str, Any], turns: int) -> None:
    """Each turn takes two tokens, and the environment one between them; the last one is the model's."""
    (row,) = drawn(Scripted(), rollout="led_rollouts:ever", **limit)
    assert (row.turns, row.finished, row.failed) == (turns, False, "")
    assert len(row.tokens) == 3 * turns - 1
    assert row.tokens[-1] == 2


class Thinking:
    """A tokenizer of characters whose template, like Qwen3's, writes a block into the last answer alone."""

    eos_token_id = ord("$")

    def apply_chat_template(self, messages: list[dict[str, str]], **_: Any) -> list[int]:
        last = len(messages) - 1
        text = "".join(
            f"<{m['role'][0]}>{'[]' * (m['role'] == 'assistant' and k == last)}{m['content']}$;"
            for k, m in enumerate(messages)
        )
        return [ord(c) for c in text + "<a>"]


@pytest.mark.parametrize(("last", "ended", "text"), [("$", True, ";<t>7$;<a>"), ("5", False, "$;<t>7$;<a>")])
def test_what_follows_an_answer_does_not_depend_on_how_the_template_writes_the_last(
    last: str, ended: bool, text: str
) -> None:
    problem = Problem("p", "1+1=", "2")
    added = encode_reply(problem, [ord(last)], ended, [{"role": "tool", "content": "7"}], Thinking(), Chat())
    assert "".join(map(chr, added)) == text
    other = encode_reply(
        problem, [ord("#")], True, [], Thinking(), Chat()
    )  # an end that is not the template's
    assert "".join(map(chr, other)) == "$;<a>"


def test_in_a_chat_the_template_writes_what_is_between_two_turns() -> None:
    """After a turn that was cut off, its end, too."""
    from isolaw.backends.real.gpu_selftest.model import make_tokenizer

    chat = {"rollout": "led_rollouts:two", "template": True, "system": "7", "tokens": 30}
    for turn, text, end in ((None, "5", ""), ([8, 8, 8], "555", "<eos>")):
        (row,) = drawn(Scripted(*[turn] * bool(turn)), **chat)
        whole = make_tokenizer().decode(row.prompt + row.tokens)
        assert whole == f"*7<eos>=+17+25=<eos>=-{text}{end or '<eos>'}=+17+25=<eos>=-5<eos>"
        assert row.tokens[row.inserted[0] :][:2] == ([2, 16] if end else [16, 13])


@pytest.mark.slow
@pytest.mark.parametrize("sampler", [pytest.param("vllm", marks=pytest.mark.nightly), "transformers"])
def test_a_function_of_one_turn_changes_no_number(resolved, sampler: str) -> None:
    """To the last bit: the metrics of three steps, and the weights. The seeds are of the run's identity."""
    found = []
    for own in ({"sampler": sampler}, led("one", sampler=sampler)):
        with closing(Run(resolved(real=own))) as run:
            run.worker.key = 7
            for _ in range(3):
                run.advance()
            rows, counts, responses = run.evaluate()
            found.append((rows, counts, responses, dict(run.trainer.weights())))
    plain, one = found
    more = [row for row in one[0] if row not in plain[0]]
    assert [row for row in one[0] if row in plain[0]] == plain[0]
    assert {row.metric: row.value for row in more} == {
        "turns": 1.0, "environment_tokens": 0.0, "failed_fraction": 0.0,
    }  # fmt: skip
    assert one[1:3] == plain[1:3]
    assert all(torch.equal(one[3][name], value) for name, value in plain[3].items())


@pytest.mark.slow
def test_the_environments_tokens_have_no_gradient(resolved) -> None:
    """GRPO with a KL term and an entropy bonus, against the loss in plain torch, a row at a time."""
    from transformers import AutoModelForCausalLM

    recipe = {**ROOM, "kl": 0.5, "kl_in": "loss", "entropy": 0.1, "importance_sampling": "none", "lr": 0.02}
    spec = resolved(recipe={**recipe, "temperature": 0.8}, real=led("two"))
    with closing(Run(spec)) as run:
        for _ in range(2):
            run.advance()
        batch = run.generate()
        assert float(batch.turns[..., 1].mean()) > 2  # some were cut before the environment's
        policy = AutoModelForCausalLM.from_pretrained(spec.sources["model"]).eval()
        policy.load_state_dict(dict(run.trainer.weights()), strict=False)
        places, found = _watched(run)
        run.learner.update(batch, 3)
    reference = AutoModelForCausalLM.from_pretrained(spec.sources["model"]).eval()
    std = batch.rewards.std(1, correction=0, keepdim=True)
    advantages = ((batch.rewards - batch.rewards.mean(1, keepdim=True)) / (std + 1e-6)).flatten()
    total, rollouts = 0.0, batch.rollouts
    for row, (prompt, tokens, spans) in enumerate(
        zip(rollouts.prompts, rollouts.tokens, rollouts.inserted, strict=True)
    ):
        ids = torch.tensor([prompt + tokens])
        logits = [model(ids).logits[0, len(prompt) - 1 : -1].double() / 0.8 for model in (policy, reference)]
        logp, base = (x.log_softmax(-1) for x in logits)
        mine = [t for t in range(len(tokens)) if not spans[0] <= t < spans[1]]  # one span, or none
        own, ref = (x[mine, [tokens[t] for t in mine]] for x in (logp, base.detach()))
        entropy = -(logp.exp() * logp).sum(-1)[mine]
        k3 = (ref - own).exp() - (ref - own) - 1
        total = total + (-advantages[row] * own + 0.5 * k3 - 0.1 * entropy).sum() / (
            len(mine) * len(rollouts)
        )
    total.backward()
    for name, parameter in policy.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, atol=2e-5, rtol=1e-3)
    # At the head, a place that predicts a token of the environment has a gradient of exactly zero.
    assert places["zero"] == {0.0}
    assert places["drawn"] > 0


def _watched(run: Run) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Keep the gradients of the next update: of the head's input, by place, and of the weights."""
    places: dict[str, Any] = {"zero": set(), "drawn": 0.0}
    found: dict[str, torch.Tensor] = {}
    pack, packed = run.trainer.pack, []

    def hook(_: Any, __: Any, hidden: torch.Tensor) -> None:
        if not hidden.requires_grad:
            return
        predicts = packed[-1].predicts

        def of(gradient: torch.Tensor) -> None:
            size = gradient[0].abs().amax(-1)
            others = torch.ones(len(size), dtype=torch.bool)
            others[predicts] = False
            assert int(others.sum()) > 4 * len(packed[-1].distinct)  # prompts, and what is inserted
            places["zero"].add(float(size[others].amax()))
            places["drawn"] = max(places["drawn"], float(size[predicts].amax()))

        hidden.register_hook(of)

    run.trainer.pack = lambda rows: packed.append(pack(rows)) or packed[-1]  # type: ignore[method-assign]
    run.trainer.module.model.norm.register_forward_hook(hook)

    def update(lr: float) -> float:
        found.update(run.trainer.gradients())
        return 1.0

    run.trainer.update = update  # type: ignore[method-assign]
    return places, found


@pytest.mark.slow
def test_failures_and_limits_are_counted(train) -> None:
    with pytest.warns(
        UserWarning, match=r"rollouts of led_rollouts:some_fail failed and got reward 0: .* odd"
    ):
        curve = train(recipe=ROOM, real=led("some_fail"), sweep={"compute": 64})
    for where in ("train", "validation"):
        failed = list(curve[where, "failed_fraction"].values())
        assert all(0 < share < 1 for share in failed)
    assert curve.last.compute == 64
    whole = sum(curve["train", "response_length"].values()) / len(curve["train", "response_length"])
    assert whole < 23
    cut = train(
        recipe=ROOM, real=led("ever", rollout_turns=2, reward=["exact", "rollout"]), sweep={"compute": 64}
    )
    assert set(cut["train", "truncated_fraction"].values()) == {1.0}
    assert set(cut["train", "turns"].values()) == {2.0}
    assert set(cut["train", "environment_tokens"].values()) == {1.0}
    assert set(cut["train", "reward/rollout"].values()) == {0.0}
    with (
        pytest.warns(UserWarning, match="never"),
        pytest.raises(RunError, match="all 64 rollouts of a batch failed; the first: it"),
    ):
        train(recipe=ROOM, real=led("all_fail"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "recipe",
    [
        {"staleness": 1},
        pytest.param({"algorithm": "ppo", "minibatches": 2}, marks=pytest.mark.nightly),
        pytest.param({"algorithm": "dapo"}, marks=pytest.mark.nightly),
        pytest.param({"kl": 0.1, "kl_in": "reward", "lora_rank": 4}, marks=pytest.mark.nightly),
    ],
    ids=["stale", "ppo", "dapo", "lora"],
)
def test_a_run_that_continues_is_an_uninterrupted_one(
    resolved, tmp_path: Path, recipe: dict[str, Any]
) -> None:
    spec = resolved(
        recipe={**ROOM, **recipe},
        real=led("two", reward="rollout"),
        sweep={"compute": 128},
        evaluation={"points": 1000},
    )
    whole, kept = [], tmp_path / "state"
    kept.mkdir()
    for checkpoint in steps(spec, None):
        whole.append(checkpoint)
        if checkpoint.step == 2:
            checkpoint.save(kept)
    again = list(steps(spec, kept))
    assert [c.step for c in again] == [c.step for c in whole if c.step > 2]
    for one, other in zip(again, [c for c in whole if c.step > 2], strict=True):
        assert (one.counts, one.tokens) == (other.counts, other.tokens)
        for mine, theirs in zip(one.rows, other.rows, strict=True):
            assert mine.metric == theirs.metric
            assert math.isclose(mine.value, theirs.value, rel_tol=1e-3, abs_tol=1e-4)


def test_what_does_not_go_with_rollouts_is_refused_before_anything_is_spent(resolved) -> None:
    spec = resolved(recipe=ROOM, real=led("two"))

    def said(recipe: dict[str, Any] | None = None, **changed: Any) -> str:
        own = {**spec.options, **changed}
        own = {key: value for key, value in own.items() if value is not None}
        changed_spec = spec.model_copy(
            update={"options": own, "recipe": spec.recipe.model_copy(update=recipe or {})}
        )
        return " | ".join(map(str, BACKEND.check(changed_spec)))

    assert said() == ""
    assert 'expected "colocated", or no real.rollout' in said(generation="async")
    assert "real.tensor_parallel: each process controls its own" in said(tensor_parallel=2, processes=2)
    interrupted = {"interrupt_at": (8, 8), "interrupt_phrase": "=", "answer_tokens": 15}
    assert 'with scale_rl: recipe.without = ["interruptions"]' in said(interrupted)
    none = said(rollout=None, rollout_turns=3, reward="rollout")
    assert "real.rollout_turns: this key requires a rollout function; found 3; expected no such key" in none
    assert "real.reward: there is no rollout function; found 'rollout'; expected exact, math" in none


def test_the_function_and_the_columns_are_part_of_a_runs_identity(resolved) -> None:
    plain, one, two = (resolved(recipe=ROOM, real=own) for own in ({}, led("one"), led("two")))
    assert len({plain.run_id, one.run_id, two.run_id, resolved(real=led("two", rollout_turns=2)).run_id}) == 4
    assert "rollout" not in plain.options | plain.content
    assert one.content["rollout"] == hashlib.sha256(MODULE.encode()).hexdigest()
