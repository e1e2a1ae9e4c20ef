"""Weights that arrive while responses are drawn, and the memory in which they arrive."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from isolaw.backends.real.rollout.sampler_process import _PlainStream, _VLLMStream
from isolaw.backends.real.rollout.samplers import SharedWeights, stored_weights

PROMPTS = [[1, 4, 10, 13, 5, 8, 16], [1, 5, 13, 6, 16]]
ASKED = {
    "prompts": PROMPTS,
    "seeds": [[3, 4, 6], [5, 8, 9]],
    "temperature": 1.0,
    "top_p": 1.0,
    "max_tokens": 6,
}


def finished(stream, ticket: int):
    """The rollouts of a ticket, after as many steps as it takes."""
    while stream.busy():
        for done, rollouts in stream.step():
            if done == ticket:
                return rollouts
    raise AssertionError("never drawn")


@pytest.mark.nightly
@pytest.mark.real
@pytest.mark.slow
def test_new_weights_draw_the_next_token_of_every_response(vllm, made) -> None:
    old = vllm.generate(**ASKED)
    other = [(name, value * 0.7) for name, value in stored_weights(str(made.model))]
    vllm.load(other)
    new = vllm.generate(**ASKED)
    assert new.logprobs != old.logprobs
    stream = _VLLMStream(vllm)
    stream.load(stored_weights(str(made.model)), 7)
    stream.add(1, ASKED)
    assert not list(stream.step())  # the first tokens
    stream.load(other, 8)
    stream.add(2, ASKED)
    drawn = finished(stream, 1)
    assert drawn.prompts == [PROMPTS[0]] * 3 + [PROMPTS[1]] * 3
    for row, versions in enumerate(drawn.versions):
        assert versions == [7, 8, 8, 8, 8, 8][: len(drawn.tokens[row])]
        assert drawn.tokens[row][0] == old.tokens[row][0]
        assert drawn.logprobs[row][0] == pytest.approx(old.logprobs[row][0], abs=1e-5)
    pairs = zip(drawn.logprobs, old.logprobs, strict=True)
    assert any(abs(ours[1] - theirs[1]) > 0.01 for ours, theirs in pairs)
    late = finished(stream, 2)
    assert {version for row in late.versions for version in row} == {8}
    assert late.tokens == new.tokens
    assert not stream.busy()


@pytest.mark.nightly
@pytest.mark.real
@pytest.mark.slow
def test_what_is_dropped_is_gone(vllm) -> None:
    stream = _VLLMStream(vllm)
    stream.add(1, ASKED)
    list(stream.step())
    stream.drop()
    assert not stream.busy()
    assert not stream.engine.has_unfinished_requests()
    assert vllm.generate(**ASKED).tokens  # and nothing else


@pytest.mark.real
@pytest.mark.slow
def test_the_plain_sampler_takes_weights_between_batches(transformers_sampler, made) -> None:
    stream = _PlainStream(transformers_sampler)
    expected = transformers_sampler.generate(**ASKED)
    stream.load(stored_weights(str(made.model)), 3)
    stream.add(1, ASKED)
    stream.add(2, {**ASKED, "seeds": [[9], [10]]})
    ((first, rollouts),) = stream.step()
    assert (first, rollouts.versions) == (1, [[3] * len(row) for row in rollouts.tokens])
    assert replace(rollouts, versions=[]) == expected
    stream.load(stored_weights(str(made.model)), 4)
    ((second, rollouts),) = stream.step()
    assert (second, {v for row in rollouts.versions for v in row}) == (2, {4})
    assert not stream.busy()


@pytest.mark.real
def test_weights_arrive_unchanged() -> None:
    number = os.memfd_create("test")
    writer, reader = SharedWeights(number), SharedWeights(os.dup(number))
    first = {
        "a": torch.randn(3, 5),
        "b": torch.arange(7, dtype=torch.bfloat16),
        "c": torch.tensor(2.5).double(),
    }
    for weights in (first, {**first, "d": torch.randn(1000)}, {"a": torch.zeros(2)}):
        places = writer.write(weights.items())
        read = dict(reader.read(places))
        assert read.keys() == weights.keys()
        for name, value in weights.items():
            assert read[name].dtype == value.dtype
            assert torch.equal(read[name], value)
