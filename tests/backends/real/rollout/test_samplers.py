"""vLLM and the plain sampler: what they draw, and which log-probability they give it, is the model's."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

torch = pytest.importorskip("torch")

from isolaw.backends.real.rollout import sampler_group, samplers
from isolaw.backends.real.rollout.problems import ProblemSet
from isolaw.backends.real.rollout.prompts import encode
from isolaw.errors import RunError

pytestmark = [pytest.mark.real, pytest.mark.slow]

EOS = 2


@pytest.fixture(params=["vllm", "transformers_sampler"])
def sampler(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="module")
def model(made) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(made.model, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def prompts(made) -> list[list[int]]:
    """Forty prompts, between 6 and 9 tokens long."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(made.model)
    easy, hard = (ProblemSet.read(folder).parts["validation"][:20] for folder in (made.easy, made.hard))
    encoded = encode([question for pair in zip(easy, hard, strict=True) for question in pair], tokenizer)
    assert len({len(prompt) for prompt in encoded}) > 2
    return encoded


def seeds(problems: int, samples: int, start: int = 0) -> list[list[int]]:
    return (np.arange(problems * samples).reshape(problems, samples) + start).tolist()


def draw(sampler: Any, prompts: list[list[int]], own: list[list[int]], **more: Any) -> samplers.Rollouts:
    return sampler.generate(prompts, own, **{"temperature": 1.0, "top_p": 1.0, "max_tokens": 6, **more})


@torch.no_grad()
def distribution(model: Any, tokens: list[int], temperature: float, top_p: float = 1.0) -> torch.Tensor:
    """The next token's, by a forward pass without padding or cache: as plain as can be."""
    p = torch.softmax(model(torch.tensor([tokens])).logits[0, -1].double() / temperature, -1)
    order = p.argsort(descending=True)
    kept = order[: int((p[order].cumsum(0) < top_p).sum()) + 1]  # the fewest that make up top_p
    out = torch.zeros_like(p)
    out[kept] = p[kept]
    return out / out.sum()


def exact_logprobs(model: Any, rollouts: samplers.Rollouts, *, temperature: float, top_p: float) -> Iterator:
    for prompt, tokens in zip(rollouts.prompts, rollouts.tokens, strict=True):
        for t, token in enumerate(tokens):
            yield float(distribution(model, prompt + tokens[:t], temperature, top_p)[token].log())


@pytest.mark.parametrize(
    "setting", [(1.0, 1.0), pytest.param((0.6, 1.0), marks=pytest.mark.nightly), (1.0, 0.7)], ids=str
)
def test_logprobs_are_those_of_a_plain_forward_pass(sampler, model, prompts, setting) -> None:
    how = dict(zip(("temperature", "top_p"), setting, strict=True))
    rollouts = draw(sampler, prompts, seeds(len(prompts), 3), **how)
    told = [value for row in rollouts.logprobs for value in row]
    exact = list(exact_logprobs(model, rollouts, **how))
    assert len(told) > 300
    assert np.abs(np.subtract(told, exact)).max() <= 1e-4  # not finite where top_p cut what was drawn


@pytest.mark.parametrize("top_p", [1.0, 0.7])
def test_what_is_drawn_has_the_models_distribution(sampler, model, prompts, top_p: float) -> None:
    prompt = prompts[1]
    rollouts = draw(sampler, [prompt], seeds(1, 2500, start=10**6), max_tokens=2, top_p=top_p)
    drawn = Counter(map(tuple, rollouts.tokens))
    expected: dict[tuple[int, ...], float] = {}
    for first, p in enumerate(distribution(model, prompt, 1.0, top_p).tolist()):
        if p == 0 or first == EOS:
            expected |= {(first,): p} if p else {}
            continue
        after = distribution(model, [*prompt, first], 1.0, top_p).tolist()
        expected |= {(first, second): p * q for second, q in enumerate(after) if q}
    assert set(drawn) <= set(expected)
    often = [pair for pair, p in expected.items() if 2500 * p >= 5]
    observed = [drawn[pair] for pair in often]
    hoped = [2500 * expected[pair] for pair in often]
    if (rest := 2500 - sum(hoped)) > 1e-6:
        observed, hoped = [*observed, 2500 - sum(observed)], [*hoped, rest]
    assert len(often) >= 2
    assert stats.chisquare(observed, hoped).pvalue > 1e-3


@pytest.mark.parametrize("kind", ["vllm", "transformers"])
def test_a_response_ends_at_a_stop_token(kind: str, made, prompts) -> None:
    """Of a base model under a chat template whose turns end with a token that is no end of sequence."""
    settings = samplers.SamplerSettings(kind, str(made.model), "float32", 32)
    plain = draw(sampler_group.open_sampler(settings), prompts, seeds(len(prompts), 2))
    often = Counter(row[1] for row in plain.tokens if len(row) > 2).most_common(1)[0][0]
    rollouts = draw(
        sampler_group.open_sampler(replace(settings, stop=(often,))), prompts, seeds(len(prompts), 2)
    )
    for row, before, finished in zip(rollouts.tokens, plain.tokens, rollouts.finished, strict=True):
        cut = before[: before.index(often) + 1] if often in before else before
        assert (row, finished) == (cut, cut[-1] in (often, EOS))


def test_a_rollout_depends_on_its_seed_alone(sampler, prompts) -> None:
    own = seeds(len(prompts), 4)
    together = draw(sampler, prompts, own)
    order = np.random.default_rng(0).permutation(len(prompts))
    for part in (order[:7], order[7:]):  # other company, another order, another number of samples
        apart = draw(sampler, [prompts[i] for i in part], [own[i][::-1][:3] for i in part])
        rows = [4 * i + 3 - j for i in part for j in range(3)]
        assert apart.tokens == [together.tokens[r] for r in rows]
        assert apart.prompts == [together.prompts[r] for r in rows]
        for mine, theirs in zip(apart.logprobs, [together.logprobs[r] for r in rows], strict=True):
            assert mine == pytest.approx(theirs, abs=1e-5)
    assert draw(sampler, prompts, seeds(len(prompts), 4, start=10**6)).tokens != together.tokens


def test_responses_end_with_their_end_token_or_are_cut(sampler, prompts) -> None:
    rollouts = draw(sampler, prompts, seeds(len(prompts), 8), max_tokens=3)
    cut = finished_at_the_limit = 0
    for tokens, logprobs, finished in zip(rollouts.tokens, rollouts.logprobs, rollouts.finished, strict=True):
        assert 1 <= len(tokens) == len(logprobs) <= 3
        assert EOS not in tokens[:-1]
        assert finished == (tokens[-1] == EOS)
        assert finished or len(tokens) == 3
        cut += not finished
        finished_at_the_limit += finished and len(tokens) == 3
    assert cut > 10
    assert finished_at_the_limit > 10


def test_a_response_may_fill_the_context(sampler, prompts) -> None:
    prompt = prompts[0] + prompts[1] + prompts[0]
    rollouts = draw(sampler, [prompt], seeds(1, 8), max_tokens=32 - len(prompt))
    assert max(map(len, rollouts.tokens)) <= 32 - len(prompt)


def test_no_prompt_is_computed_in_pieces_without_a_gpu(vllm) -> None:
    """More tokens than vLLM computes in a step; it would rewind the generator of a prompt that it cuts."""
    budget = vllm.llm.llm_engine.vllm_config.scheduler_config.max_num_batched_tokens
    prompt = [1, *range(3, 13), *range(3, 13)]
    assert 250 * len(prompt) > budget
    drawn = vllm.generate([prompt], [range(250)], temperature=1.0, top_p=1.0, max_tokens=2)
    assert len(drawn) == 250


def test_weights_are_taken_over(sampler, model, prompts) -> None:
    random = torch.Generator().manual_seed(0)
    shifted = {
        name: value + 0.1 * torch.randn(value.shape, generator=random)
        for name, value in model.state_dict().items()
    }
    sampler.load(iter(shifted.items()))
    rollouts = draw(sampler, prompts[:10], seeds(10, 2))
    told = [value for row in rollouts.logprobs for value in row]
    stale = list(exact_logprobs(model, rollouts, temperature=1.0, top_p=1.0))
    assert np.abs(np.subtract(told, stale)).mean() > 0.1
    other = type(model)(model.config).eval()
    other.load_state_dict(shifted)
    assert told == pytest.approx(list(exact_logprobs(other, rollouts, temperature=1.0, top_p=1.0)), abs=1e-4)


def test_a_weight_that_is_left_out_is_named(sampler, model, prompts) -> None:
    """Any of them: what the sampler draws with stale weights differs little from the policy's at first."""
    whole = dict(model.named_parameters())
    for name in whole:
        others = {other: value.detach() for other, value in whole.items() if other != name}
        with pytest.raises(RunError, match=rf"stale weights: (the trainer|vLLM) left out {re.escape(name)}$"):
            sampler.load(iter(others.items()))
    sampler.load((name, value.detach()) for name, value in whole.items())
    rollouts = draw(sampler, prompts[:4], seeds(4, 2))
    told = [value for row in rollouts.logprobs for value in row]
    assert told == pytest.approx(list(exact_logprobs(model, rollouts, temperature=1.0, top_p=1.0)), abs=1e-5)


def test_both_samplers_draw_the_same_distribution(vllm, transformers_sampler, prompts) -> None:
    lengths = []
    for one in (vllm, transformers_sampler):
        rollouts = draw(one, prompts, seeds(len(prompts), 20))
        lengths.append(np.bincount(list(map(len, rollouts.tokens)), minlength=7)[1:])
    table = np.array(lengths)[:, np.sum(lengths, 0) >= 10]
    assert stats.chi2_contingency(table).pvalue > 1e-3


def test_the_plain_draw_inverts_the_distribution_function() -> None:
    logits = torch.log(torch.tensor([[0.1, 0.6, 0.3]], dtype=torch.float64))
    at = torch.zeros(5, dtype=torch.long)
    u = torch.tensor([0.0, 0.59, 0.61, 0.95, 1 - 1e-16], dtype=torch.float64)
    chosen, logprob = samplers._draw(logits, u, 1.0, at)
    assert chosen.tolist() == [1, 1, 2, 0, 0]
    assert logprob.exp().tolist() == pytest.approx([0.6, 0.6, 0.3, 0.1, 0.1])
    chosen, logprob = samplers._draw(logits, u, 0.8, at)
    assert chosen.tolist() == [1, 1, 1, 2, 2]  # of 2/3 and 1/3
    assert logprob.exp().tolist() == pytest.approx([2 / 3, 2 / 3, 2 / 3, 1 / 3, 1 / 3])
    assert samplers._draw(logits, u, 0.01, at)[0].tolist() == [1] * 5


def test_the_plain_sampler_computes_what_rollouts_share_once(transformers_sampler, prompts) -> None:
    batches: list[int] = []
    hook = transformers_sampler.model.register_forward_pre_hook(
        lambda _, __, given: batches.append(len(given["input_ids"])), with_kwargs=True
    )
    try:
        rollouts = draw(transformers_sampler, [*prompts[:3], prompts[0]], seeds(4, 30))
    finally:
        hook.remove()
    texts = [(tuple(a), tuple(b)) for a, b in zip(rollouts.prompts, rollouts.tokens, strict=True)]
    shared = [len({(a, b[:t]) for a, b in texts if len(b) > t}) for t in range(len(batches))]
    assert batches == shared
    assert batches[0] == 3


def test_one_engine_serves_the_runs_of_a_model(made, vllm) -> None:
    assert (
        sampler_group.open_sampler(samplers.SamplerSettings("vllm", str(made.model), "float32", 32)) is vllm
    )


def test_prompts_of_a_step_may_exceed_its_tokens(vllm, model, prompts) -> None:
    """A step of vLLM without a GPU takes 4,096 tokens: the last prompt of a step would be cut in two."""
    prompt = [token for row in prompts for token in row][:27]
    rollouts = draw(vllm, [prompt], seeds(1, 200), max_tokens=1)
    exact = distribution(model, prompt, 1.0).log()
    told = [value for row in rollouts.logprobs for value in row]
    assert told == pytest.approx([float(exact[row[0]]) for row in rollouts.tokens], abs=1e-4)


def test_siblings_share_their_prompt_under_the_current_weights_alone(
    made, model, prompts, tmp_path: Path
) -> None:
    """Blocks of vLLM's cache are of 128 tokens without a GPU: prompts are longer than the model's context."""
    shutil.copytree(made.model, folder := tmp_path / "longer")
    config = json.loads((folder / "config.json").read_text()) | {"max_position_embeddings": 200}
    (folder / "config.json").write_text(json.dumps(config))
    sampler: Any = sampler_group.open_sampler(samplers.SamplerSettings("vllm", str(folder), "float32", 200))
    prompt = [token for row in prompts for token in row][:150]
    outputs: list[Any] = []
    keep = sampler.rollouts
    sampler.rollouts = lambda rows, found: outputs.extend(found) or keep(rows, found)

    def reused() -> list[int]:
        """Return how many tokens of each prompt came from the cache, and check all log-probabilities."""
        outputs.clear()
        rollouts = draw(sampler, [prompt, [5, *prompt]], seeds(2, 3), max_tokens=4)
        told = [value for row in rollouts.logprobs for value in row]
        exact = list(exact_logprobs(current, rollouts, temperature=1.0, top_p=1.0))
        assert told == pytest.approx(exact, abs=1e-4)
        return [output.num_cached_tokens for output in outputs]

    current, siblings = model, [0, 128, 128, 0, 128, 128]
    sampler.load(iter(model.state_dict().items()))
    assert reused() == siblings
    assert reused() == [128] * 6
    current = type(model)(model.config).eval()
    current.load_state_dict({name: 0.7 * value for name, value in model.state_dict().items()})
    sampler.load(iter(current.state_dict().items()))
    assert reused() == siblings
    # While a request is active vLLM keeps its cache: later requests do not read it.
    engine = sampler.llm.llm_engine
    rows, parameters = sampler.requests([prompt], [[0]], temperature=1.0, top_p=1.0, max_tokens=20)
    engine.add_request("active", {"prompt_token_ids": rows[0]}, parameters[0])
    engine.step()
    current = model
    sampler.load(iter(model.state_dict().items()))
    engine.abort_request(["active"])
    assert reused() == [0] * 6
