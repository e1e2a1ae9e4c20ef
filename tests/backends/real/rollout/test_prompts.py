"""Prompts as token ids, by a real tokenizer."""

from __future__ import annotations

from typing import Any

import pytest

from isolaw.backends.real.rollout.problems import Problem, ProblemSet
from isolaw.backends.real.rollout.prompts import check_lengths, encode
from isolaw.errors import DataError

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """Of the tiny model: a token for each character, `<bos>` first, no chat template."""
    from isolaw.backends.real.checkup.model import make_tokenizer

    return make_tokenizer()


def sums(*lengths: int) -> list[Problem]:
    return [Problem(f"of {n}", "1" * n, "2") for n in lengths]


def test_text_is_encoded_as_the_tokenizer_does(tokenizer: Any) -> None:
    ids = encode([Problem("a", "17+25=", "42"), Problem("b", "1", "1")], tokenizer)
    assert ids == [tokenizer("17+25=").input_ids, tokenizer("1").input_ids]
    assert [tokenizer.decode(row) for row in ids] == ["<bos>17+25=", "<bos>1"]
    assert encode([], tokenizer) == []


def test_messages_pass_through_the_chat_template(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer, "chat_template", "{% for m in messages %}{{ m.content }}-{% endfor %}="
                        "{% if add_generation_prompt %}+{% endif %}")  # fmt: skip
    chat = [{"role": "system", "content": "1"}, {"role": "user", "content": "2"}]
    ids = encode([Problem("a", chat, "3"), Problem("b", "4", "4")], tokenizer)
    assert [tokenizer.decode(row) for row in ids] == ["1-2-=+", "<bos>4"]


def test_messages_without_a_chat_template(tokenizer: Any) -> None:
    chat = Problem("c7", [{"role": "user", "content": "1+1"}], "2")
    with pytest.raises(
        DataError, match=r"problem 'c7': its prompt is a list of messages, .* no chat template"
    ):
        encode([*sums(1), chat], tokenizer)
    (problem,) = check_lengths(ProblemSet("s", {"train": [chat]}), tokenizer, 32, 8)
    assert str(problem).startswith("s/train: problem 'c7': its prompt is a list of messages")


def test_prompts_that_leave_no_room(tokenizer: Any) -> None:
    """With `<bos>`, n characters are n + 1 tokens."""
    stored = ProblemSet("s", {"train": sums(3, 23), "validation": sums(24), "aime": sums(2, 30, 40, 25)})
    assert [str(problem) for problem in check_lengths(stored, tokenizer, 32, 8)] == [
        "s/validation: too long: problem 'of 24'; found '25 tokens'; "
        "expected at most 24 (32 of context − 8 of response)",
        "s/aime: 3 prompts are too long, the longest that of problem 'of 40'; found '41 tokens'; "
        "expected at most 24 (32 of context − 8 of response)",
    ]
    assert check_lengths(stored, tokenizer, 64, 8) == []


def test_what_has_no_room_at_all_is_told_once(tokenizer: Any) -> None:
    stored = ProblemSet("s", {"train": sums(3), "validation": sums(4)})
    told = "recipe.max_response_tokens: found 64; expected fewer than the context of 64"
    assert [str(problem) for problem in check_lengths(stored, tokenizer, 64, 64)] == [told]


@pytest.mark.parametrize("template", ["{{ raise_exception('no system') }}", "{{ 1 / 0 }}", "{% if %}"])
def test_a_template_that_refuses(tokenizer: Any, monkeypatch: pytest.MonkeyPatch, template: str) -> None:
    monkeypatch.setattr(tokenizer, "chat_template", template)
    chat = Problem("c7", [{"role": "system", "content": "1"}], "2")
    with pytest.raises(DataError, match="problem 'c7': the tokenizer's chat template refuses its messages: "):
        encode([chat], tokenizer)


def test_a_tokenizer_that_cannot_encode() -> None:
    def broken(texts: list[str]) -> Any:
        raise Exception("Unk token not in the vocabulary")

    (problem,) = check_lengths(ProblemSet("s", {"train": sums(3)}), broken, 64, 8)
    told = "s/train: the tokenizer cannot encode its prompts: Exception: Unk token not in the vocabulary"
    assert str(problem) == told
