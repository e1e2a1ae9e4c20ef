"""What a run does, with vLLM and DeepSpeed in this process: what counts, what is updated and measured."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import load_file, save_file

from isolaw.backend import UnreadableState
from isolaw.backends import bandit
from isolaw.backends.real.algorithms import advantages as adv
from isolaw.backends.real.rollout import samplers, vllm_sampler
from isolaw.backends.real.train.loop import Run
from isolaw.backends.real.train.loop import train as steps
from isolaw.config import Recipe, RunSpec
from isolaw.errors import RunError

pytestmark = [pytest.mark.real, pytest.mark.slow]

EVERY_STEP = {"points": 1000}
# Answers have up to four tokens, the end included: most are interrupted.
SCALE_RL: dict[str, Any] = {"algorithm": "scale_rl", "interrupt_at": [2, 3], "answer_tokens": 8}
SCALE_RL |= {"interrupt_phrase": "=", "max_response_tokens": None}
# Right for some responses of any model, so that there is something to learn.
HAS_A_ONE = "return float('1' in response)"


@pytest.fixture
def run(resolved):
    """A run that is made step by step, and closed."""
    made = []

    def begin(**more: Any) -> Run:
        made.append(one := Run(resolved(**more)))
        one._sync()
        return one

    yield begin
    for one in made:
        one.close()


def weights(run: Run) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in run.trainer.weights()}


def same_weights(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


# -- counting ---------------------------------------------------------------------------------------------


def test_a_step_is_one_batch_and_what_it_measures(train) -> None:
    curve = train(evaluation=EVERY_STEP, real={"sampler": "vllm"})
    assert curve.steps == [0, 1, 2, 3, 4, 5]
    assert [c.compute for c in curve.checkpoints] == [0, 32, 64, 96, 128, 160]
    assert [c.final for c in curve.checkpoints] == [False] * 5 + [True]
    tokens = np.diff([c.tokens for c in curve.checkpoints])
    lengths = curve["train", "response_length"]
    assert tokens.tolist() == pytest.approx([32 * lengths[step] for step in range(1, 6)])
    assert set(curve["train", "generated_rollouts"].values()) == {32.0}
    assert set(curve["train", "ratio"].values()) == {1.0}  # on-policy
    assert set(curve["train", "clip_fraction"].values()) == {0.0}
    assert max(curve["train", "mismatch_max"].values()) <= 1e-4
    for name in ("reward", "grad_norm", "entropy", "zero_fraction", "gini", "informative_fraction"):
        values = list(curve["train", name].values())
        assert len(values) == 5
        assert all(map(math.isfinite, values))
    assert min(curve["train", "grad_norm"].values()) > 0
    assert {"generate", "reward", "train", "sync", "evaluate"} <= set(curve.last.seconds)
    assert curve.last.line(0.0)["machine"]["gpus"] == torch.cuda.is_available()


def test_counts_of_problems_are_what_the_metrics_are_made_of(train, made) -> None:
    curve = train(evaluation={"metrics": ["avg@4", "best@2", "worst@4", "avg@8"], "samples": 8})
    for checkpoint in curve.checkpoints:
        (counts,) = checkpoint.counts
        assert (counts.eval_set, counts.samples, len(counts.problem_ids)) == ("validation", 8, 16)
        share = np.array(counts.correct) / 8
        assert curve["avg@8"][checkpoint.step] == pytest.approx(share.mean())
        assert curve["avg@4"][checkpoint.step] == pytest.approx(share.mean())
        pairs = 1 - (8 - 8 * share) * (7 - 8 * share) / 56
        assert curve["best@2"][checkpoint.step] == pytest.approx(pairs.mean())
        assert curve["zero_fraction"][checkpoint.step] == (share == 0).mean()
    known = {json.loads(line)["id"] for line in (made.easy / "validation.jsonl").open()}
    assert set(curve.last.counts[0].problem_ids) <= known


def test_evaluations_have_a_temperature_of_their_own(train) -> None:
    """Cold, all samples of a problem are alike, and the trainer still agrees; training stays warm."""
    cold = train(evaluation={"temperature": 0.01, "top_p": 0.9})
    for checkpoint in cold.checkpoints:
        mixed = [count for count in checkpoint.counts[0].correct if count not in (0, 4)]
        assert len(mixed) <= 1  # two answers can be nearly as likely
    warm = train()
    assert not set(warm.last.counts[0].correct) <= {0, 4}
    assert cold.last.rows != warm.last.rows
    entropies = [list(curve["train", "entropy"].values()) for curve in (cold, warm)]
    assert entropies[0] == pytest.approx(entropies[1], rel=0.5)
    assert min(entropies[0]) > 0.3


def test_an_evaluation_keeps_responses(train, made) -> None:
    curve = train(evaluation={"responses": 3}, real={"sampler": "transformers"})
    for checkpoint in curve.checkpoints:
        said = checkpoint.responses
        assert [one.problem_id for one in said] == list(checkpoint.counts[0].problem_ids)[:3]
        for one in said:
            assert one.prompt == f"<bos>{one.problem_id}="
            assert one.reward == float(one.response == one.answer)
            assert 1 <= one.tokens <= 6
        assert len(checkpoint.line(0.0)["responses"]) == 3
    none = train(evaluation={"responses": 0}, real={"sampler": "transformers"})
    assert "responses" not in none.last.line(0.0)
    assert none.last.rows == curve.last.rows  # it changes nothing that is measured


def test_prompts_pass_through_the_template_with_the_sections_keys(run, resolved, made, tmp_path) -> None:
    shutil.copytree(made.model, tmp_path / "chat")
    template = "{% for m in messages %}{{ m.content }}{% endfor %}{{ '-' if enable_thinking else '=' }}"
    (tmp_path / "chat" / "chat_template.jinja").write_text(template)
    own = {"model": str(tmp_path / "chat"), "sampler": "transformers"}
    chat = {**own, "system": "7+", "chat_template": {"enable_thinking": True}}
    plain, told = resolved(real=own), resolved(real=chat)
    assert told.options == {**plain.options, "system": "7+", "chat_template": {"enable_thinking": True}}
    assert told.run_id != plain.run_id == resolved(real={**own, "chat_template": {}}).run_id
    worker = run(real=chat).worker
    asked = worker.problems["train"][0].prompt
    assert worker.tokenizer.decode(worker.prompts["train"][0]) == f"7+{asked}-"


@pytest.mark.nightly
def test_responses_are_graded_while_others_are_drawn(run, monkeypatch: pytest.MonkeyPatch) -> None:
    """math-verify takes 7 ms a response, which a step would otherwise spend after its last response."""
    one = run(real={"reward": "math", "sampler": "vllm"})
    reward, asked, waited = one.worker.reward._rewards[0], [], []
    ask, replies = reward.pool.ask, reward.pool.replies
    monkeypatch.setattr(reward.pool, "ask", lambda row: asked.append(row) or ask(row))
    monkeypatch.setattr(reward.pool, "replies", lambda rows: waited.append(rows) or replies(rows))
    batch = one.generate()
    assert {*asked} == {
        (one.worker.problems["train"][problem].answer, text) for problem, text in texts(one, batch)
    }
    assert waited == [[]]
    exact = [
        float(text.strip() == one.worker.problems["train"][problem].answer)
        for problem, text in texts(one, batch)
    ]
    assert batch.rewards.flatten().tolist() == exact


def texts(one: Any, batch: Any) -> list[tuple[int, str]]:
    """The problem and the text of each response."""
    decoded = one.worker.tokenizer.batch_decode(batch.rollouts.tokens, skip_special_tokens=True)
    return [(batch.visited[row // batch.n], text) for row, text in zip(batch.rows, decoded, strict=True)]


def test_dynamic_sampling_counts_what_it_discards(train, run) -> None:
    pairs: dict[str, Any] = {"recipe": {"algorithm": "dapo"}, "grid": {"rollouts_per_problem": [2]}}
    curve = train(**pairs, evaluation=EVERY_STEP)
    generated = np.diff([c.compute for c in curve.checkpoints])
    assert max(generated) > 16
    assert all(count % 16 == 0 for count in generated)
    told = curve["train", "generated_rollouts"]  # the mean of the steps since the last look
    updates = np.diff(curve.steps)
    assert [told[step] for step in curve.steps[1:]] == pytest.approx((generated / updates).tolist())
    shares = curve["train", "informative_fraction"]
    for step, count in zip(curve.steps[1:], generated / updates, strict=True):
        assert shares[step] < 1  # of all groups that were drawn, at least B_p of them informative
        assert shares[step] >= 16 / (2 * count) * 0.5
    assert curve.last.compute >= 160 > curve.checkpoints[-2].compute
    batch = run(**pairs).generate()
    assert len(batch.visited) == 8
    assert (batch.rewards.amax(1) > batch.rewards.amin(1)).all()
    assert batch.generated_tokens > int(batch.lengths.sum())


def test_dynamic_sampling_gives_up(run, reward) -> None:
    one = run(recipe={"algorithm": "dapo"}, real=reward("return 1.0"))
    with pytest.raises(RunError, match="step 1: 10 batches had only 0 problems whose rewards differ"):
        one.advance()


# -- what is updated --------------------------------------------------------------------------------------


def test_a_batch_that_the_filter_empties_makes_no_update(run, reward) -> None:
    one = run(recipe={"zero_variance_filter": True}, real=reward("return 1.0"))
    before = weights(one)
    one.advance()
    assert same_weights(weights(one), before)
    assert (one.step, one.compute) == (1, 32)
    rows = {row.metric: row.value for row in one.evaluate()[0] if row.eval_set == "train"}
    assert rows["grad_norm"] == 0
    assert rows["informative_fraction"] == 0


def test_only_the_first_rollouts_of_a_group_are_trained_on(run) -> None:
    one = run(
        recipe={"gradient_rollouts": 2, "zero_variance_filter": True},
        grid={"problems_per_batch": [24], "rollouts_per_problem": [3]},
    )
    batches, trained = [], []
    generate, backward = one.generate, one.trainer.backward
    one.generate = lambda: batches.append(generate()) or batches[-1]
    one.trainer.backward = lambda rows, *more, **also: trained.append(rows) or backward(rows, *more, **also)
    one.advance()
    (batch,), (rows,) = batches, trained
    kept = torch.nonzero(batch.rewards.amax(1) > batch.rewards.amin(1))[:, 0].tolist()
    assert 0 < len(kept) < 24
    assert rows.tokens == [batch.rollouts.tokens[3 * j + i] for j in kept for i in range(2)]


def test_mastered_problems_are_not_asked_again(run) -> None:
    one = run(
        recipe={"no_positive_resampling": 0.5, "lr": 1e-9},
        problems={"n_train": 32},
        grid={"problems_per_batch": [4]},
    )
    for _ in range(8):  # an epoch
        one.advance()
    rate = one.pass_rates.rates
    mastered = set(np.flatnonzero(rate >= 0.5).tolist())
    assert 4 < len(mastered) < 28
    visited = [p for _ in range((32 - len(mastered)) // 4) for p in one.order.take()]
    assert not mastered & set(visited)


def test_the_length_penalty_comes_off_the_rewards(run, monkeypatch: pytest.MonkeyPatch) -> None:
    one = run(recipe={"max_response_tokens": 4, "overlong_buffer": 2, "lr": 0.01})
    batch = one.generate()
    batch.lengths[:, 1:] -= 1
    batch.lengths[:, 2:] -= 1
    expected = ((batch.lengths.double() - 2) / 2).clamp(0, 1)
    assert len(expected.unique()) > 2
    torch.testing.assert_close(one.learner.penalties(batch), expected)
    compared = []
    advantages = adv.advantages
    monkeypatch.setattr(adv, "advantages", lambda r, *more: compared.append(r) or advantages(r, *more))
    one.learner.update(batch, one.step)
    torch.testing.assert_close(compared[0], batch.rewards - expected)
    assert float(batch.rewards.amax()) <= 1.0  # what is measured has no penalty in it
    assert float(batch.rewards.amin()) >= 0.0


@torch.no_grad()
def exact(model: Any, batch: Any) -> list[torch.Tensor]:
    """Log-probabilities of each row's tokens, a row at a time, by the model's own attention."""
    packed = model.config._attn_implementation
    model.set_attn_implementation("eager")
    out = []
    for prompt, tokens in zip(batch.rollouts.prompts, batch.rollouts.tokens, strict=True):
        logits = model(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
        out.append(torch.log_softmax(logits, -1)[range(len(tokens)), tokens])
    model.set_attn_implementation(packed)
    return out


@pytest.mark.nightly
def test_the_kl_term_holds_the_policy_at_the_base_model(train, reward) -> None:
    more = {"sweep": {"compute": 32 * 12}, "evaluation": EVERY_STEP, "real": reward(HAS_A_ONE)}
    free, held = (train(recipe={"kl": kl, "lr": 5e-3}, **more)["train", "kl"] for kl in (1e-6, 5.0))
    assert free[1] == pytest.approx(0, abs=1e-6)
    assert free[12] > 0.05
    assert held[12] < free[12] / 4


def test_a_stale_policy_has_ratios(train) -> None:
    more = {"recipe": {"staleness": 2, "clip_low": 0.01, "clip_high": 0.01}, "evaluation": EVERY_STEP}
    curve = train(**more)
    ratio, clipped = curve["train", "ratio_max"], curve["train", "clip_fraction"]
    assert ratio[1] == pytest.approx(1, abs=1e-5)  # sampled by the policy that it updates
    assert min(ratio[step] for step in (2, 3, 4, 5)) > 1.01
    assert (clipped[1], min(clipped[step] for step in (2, 3, 4, 5)) > 0) == (0, True)
    assert max(curve["train", "mismatch_max"].values()) <= 1e-4  # against the policy that sampled
    assert [c.compute for c in curve.checkpoints] == [0, 32, 64, 96, 128, 160]


@pytest.mark.parametrize(
    ("scaling", "power", "trained"),
    [("sqrt", 0.5, 2), pytest.param("linear", 1.0, 2, marks=pytest.mark.nightly)],
)
def test_the_learning_rate(train, scaling: str, power: float, trained: int) -> None:
    """It follows the rollouts in the gradient, and is that of a simulated run (whose unit is lr at B = 1)."""
    recipe = {"lr": 1e-3, "lr_scaling": scaling, "warmup_steps": 4, "gradient_rollouts": trained}
    lr = train(recipe=recipe, evaluation=EVERY_STEP)["train", "lr"]
    top = 1e-3 * (8 * trained / 1024) ** power
    assert list(lr.values()) == pytest.approx([top / 4, top / 2, top * 3 / 4, top, top])
    del recipe["warmup_steps"]
    run = RunSpec(
        backend="bandit", problems_per_batch=8, rollouts_per_problem=4, recipe=Recipe(**recipe), compute=160
    )
    assert bandit._update_of(bandit.BACKEND.resolve(run)).step_size / 32 == pytest.approx(top)


def test_a_run_is_a_function_of_its_spec(train) -> None:
    still = {"recipe": {"lr": 1e-30, "weight_decay": 0.0}, "evaluation": EVERY_STEP}
    first, second = train(**still), train(**still)
    assert first.lines() == second.lines()
    assert len(set(first["avg@4"].values())) > 1  # every look draws anew
    assert len(set(first["train", "response_length"].values())) > 1
    assert min(first["train", "grad_norm"].values()) > 0
    assert max(first["train", "kl"].values() or [0]) == 0
    assert train(sweep={"seeds": [1]}, **still).lines() != first.lines()


# -- ScaleRL ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampler", [pytest.param("vllm", marks=pytest.mark.nightly), "transformers"])
def test_interrupted_responses_end_and_only_what_is_drawn_counts(train, run, sampler: str) -> None:
    # An answer and its end take three or four tokens, so that some responses end by themselves.
    recipe = SCALE_RL | {"staleness": 2, "interrupt_at": [3, 4], "answer_tokens": 16}
    more: dict[str, Any] = {"recipe": recipe, "evaluation": EVERY_STEP, "real": {"sampler": sampler}}
    short = {"recipe": {"max_response_tokens": 3}, "evaluation": EVERY_STEP, "real": {"sampler": sampler}}
    assert min(train(**short)["validation", "truncated_fraction"].values()) > 0.3
    curve = train(**more)
    assert set(curve["validation", "truncated_fraction"].values()) == {0.0}
    assert set(curve["train", "truncated_fraction"].values()) == {0.0}
    assert max(curve["train", "mismatch_max"].values()) <= 1e-4  # before and after the phrase
    tokens = np.diff([c.tokens for c in curve.checkpoints])
    lengths = curve["train", "response_length"]
    assert tokens.tolist() == pytest.approx([32 * lengths[step] for step in range(1, 6)])
    batch = run(**more).generate()
    rows = batch.rollouts
    interrupted = sum(end > 0 for _, end in rows.inserted)
    assert 8 < interrupted < 32
    assert batch.generated_tokens == sum(map(len, rows.tokens)) - interrupted == sum(map(len, rows.logprobs))
    assert batch.lengths.flatten().tolist() == rows.lengths


@pytest.mark.nightly
def test_scale_rl_learns(train, made) -> None:
    recipe = {**SCALE_RL, "interrupt_at": [4, 5], "answer_tokens": 4, "lr": 1.5e-3, "warmup_steps": 10}
    rises = []
    for seed in range(3):
        curve = train(
            sweep={"compute": 16_384, "seeds": [seed]},
            grid={"problems_per_batch": [32]},
            recipe=recipe,
            problems={"set": str(made.sums), "n_train": None, "n_validation": None},
            evaluation={"points": 4},
        )
        assert curve["validation", "truncated_fraction"][128] < 0.01
        rises.append(curve["avg@4"][128] - curve["avg@4"][0])
    assert np.mean(rises) >= 0.1  # of one seed, rounding decides which of 0.09 to 0.25 it is
    assert min(rises) >= 0.05


# -- the looks --------------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_further_evaluation_sets_and_the_training_set(train, made, tmp_path: Path) -> None:
    shutil.copytree(made.easy, folder := tmp_path / "easy")
    shutil.copy(made.hard / "validation.jsonl", folder / "three.jsonl")
    curve = train(
        problems={"set": str(folder)}, evaluation={"sets": ["validation", "three", "train"], **EVERY_STEP}
    )
    third = len((folder / "three.jsonl").read_text().splitlines())
    for name, problems in (("validation", 16), ("three", third), ("train", 64)):
        assert list(curve[name, "avg@4"]) == curve.steps
        rows = [row for row in curve.last.rows if (row.eval_set, row.metric) == (name, "avg@4")]
        assert [(row.n_problems, row.n_samples) for row in rows] == [(problems, 4)]
    keys = [(row.eval_set, row.metric) for row in curve.last.rows]
    assert len(keys) == len(set(keys))
    assert ("train", "grad_norm") in keys
    assert curve["three", "avg@4"][5] < curve["validation", "avg@4"][5] - 0.05  # the hard ones
    assert [count.eval_set for count in curve.last.counts] == ["three", "train", "validation"]


# -- sampler and trainer ----------------------------------------------------------------------------------


@pytest.mark.parametrize("sampler", ["vllm", pytest.param("transformers", marks=pytest.mark.nightly)])
def test_stale_weights_stop_the_run(train, reward, monkeypatch: pytest.MonkeyPatch, sampler: str) -> None:
    kinds = {"vllm": vllm_sampler.VLLMSampler, "transformers": samplers.TransformersSampler}
    loads = []

    def once(self: Any, weights: Any, load: Any = kinds[sampler].load) -> None:
        if not loads:
            load(self, weights)
        loads.append(1)

    monkeypatch.setattr(kinds[sampler], "load", once)
    wanted = (
        r"step \d: sampler and trainer differ by .* more than .* Either weights of the trainer do not reach"
    )
    with pytest.raises(RunError, match=wanted):
        train(real={"sampler": sampler, **reward(HAS_A_ONE)})
    assert len(loads) >= 2  # the first batches may hold nothing to learn from


@pytest.fixture
def tied(made, tmp_path: Path) -> Path:
    """The tiny model with its embedding for a head: it makes no sense, and can learn."""
    shutil.copytree(made.model, folder := tmp_path / "tied")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": True}))
    stored = load_file(folder / "model.safetensors")
    del stored["lm_head.weight"]
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.mark.nightly
def test_tied_embeddings(train, tied: Path, reward) -> None:
    more: dict[str, Any] = {
        "sweep": {"compute": 32 * 6},
        "real": {"model": str(tied), "sampler": "vllm", **reward(HAS_A_ONE)},
        "evaluation": EVERY_STEP,
    }
    curve = train(**more)
    assert max(curve["train", "mismatch_max"].values()) <= 1e-4
    assert max(curve["train", "kl"].values() or [0]) == 0
    assert min(curve["train", "grad_norm"].values()) > 0.01
    samplers.close_samplers()


@pytest.mark.nightly
def test_runs_of_several_models_in_one_process(train, made, tmp_path: Path) -> None:
    shutil.copytree(made.model, other := tmp_path / "other")
    curves = [train(real={"model": str(model), "sampler": "vllm"}) for model in (made.model, other)]
    assert torch.distributed.is_initialized()  # DeepSpeed's too
    assert curves[1]["train", "reward"] == curves[0]["train", "reward"]


@pytest.mark.parametrize("sampler", [pytest.param("vllm", marks=pytest.mark.nightly), "transformers"])
def test_bfloat16_with_and_without_a_float32_head(train, sampler: str) -> None:
    for head in (False, True):
        curve = train(
            recipe={"float32_head": head, "kl": 0.01},
            real={"dtype": "bfloat16", "sampler": sampler},
            evaluation=EVERY_STEP,
        )
        assert curve.last.compute == 160
        assert max(curve["train", "mismatch"].values()) < 0.1
        if sampler == "vllm":  # the other one computes as the trainer does
            assert max(curve["train", "mismatch_max"].values()) > 1e-4
        assert curve["train", "kl"][1] == pytest.approx(0, abs=1e-3)
        assert curve["train", "kl"][5] > curve["train", "kl"][1]


# -- interruptions ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "recipe",
    [
        pytest.param(
            {"staleness": 1, "kl": 0.01, "no_positive_resampling": 0.7}, marks=pytest.mark.nightly, id="grpo"
        ),
        pytest.param(SCALE_RL | {"staleness": 2}, id="scale_rl"),
    ],
)
def test_it_continues_from_any_checkpoint(resolved, train, tmp_path: Path, recipe: dict[str, Any]) -> None:
    more: dict[str, Any] = {
        "grid": {"problems_per_batch": [4]},
        "sweep": {"compute": 16 * 12},
        "problems": {"n_train": 20},
        "recipe": recipe,
        "evaluation": {"points": 4},
    }
    whole = train(**more)
    assert whole.steps == [0, 1, 2, 5, 12]
    # A point between looks after every step: nothing that is measured depends on them.
    more["real"] = {"checkpoint_minutes": 1e-9}
    states = {}
    for checkpoint in steps(resolved(**more), None):
        folder = tmp_path / str(checkpoint.step)
        folder.mkdir()
        checkpoint.save(folder)
        states[checkpoint.step] = folder
    assert list(states) == list(range(13))
    for step in (0, 5, 9):  # at and after an evaluation
        rest = list(steps(resolved(**more), states[step]))
        assert [c.step for c in rest] == list(range(step + 1, 13))
        lines = [c.line(0.0) for c in rest if c.rows]
        for line in lines:
            del line["seconds"], line["machine"]
        assert lines == [line for line in whole.lines() if line["step"] > step]
    assert list(steps(resolved(**more), states[12])) == []


def test_a_state_that_cannot_be_read_is_named(run, tmp_path: Path) -> None:
    one = run()
    one.advance()
    (tmp_path / "whole").mkdir()
    one.save(tmp_path / "whole")
    for name in ("model.safetensors", "exp_avg.safetensors", "loop.json", "optimizer.json"):
        for how in ("cut", "gone", "foreign"):
            shutil.copytree(tmp_path / "whole", folder := tmp_path / f"{name}-{how}")
            path = folder / name
            if how == "gone":
                path.unlink()
            elif how == "cut":
                path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
            elif path.suffix == ".json":
                path.write_text("{}")
            else:
                save_file({"other.weight": torch.zeros(1)}, path)
            with pytest.raises(UnreadableState):
                one.restore(folder)
    one.restore(tmp_path / "whole")


def test_out_of_memory_says_what_to_lower(resolved, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Run) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB.\nmore")

    monkeypatch.setattr(Run, "advance", fail)
    with pytest.raises(RunError, match=r"^out of memory \(CUDA.*GiB\.\); lower real\.micro_batch"):
        list(steps(resolved(), None))
