"""Prompts as token ids, by a real tokenizer."""

from __future__ import annotations

from typing import Any

import pytest

from isolaw.backends.real.rollout.problems import Problem, ProblemSet
from isolaw.backends.real.rollout.prompts import Chat, check_lengths, encode, turn_ends
from isolaw.errors import DataError

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """Of the tiny model: a token for each character, `<bos>` first, no chat template."""
    from isolaw.backends.real.random_model import make_tokenizer

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


# Thinking on unless it is turned off, as in Qwen3's template.
THINKS = (
    "{% for m in messages %}{{ m.role[0] }}{{ m.content }}-{% endfor %}"
    "{% if enable_thinking is defined and not enable_thinking %}0{% else %}1{% endif %}{{ level or 2 }}"
)


@pytest.fixture
def thinking(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A tokenizer with such a template; `s` and `u` are unknown to the tiny model's, so roles are digits."""
    from isolaw.backends.real.random_model import make_tokenizer

    own = make_tokenizer()
    roles = "{% set r = {'system': '7', 'user': '8', 'assistant': '9'} %}"
    monkeypatch.setattr(own, "chat_template", roles + THINKS.replace("m.role[0]", "r[m.role]"))
    return own


def test_a_system_message_and_arguments_of_the_template(thinking: Any) -> None:
    problems = [Problem("a", "4", "4"), Problem("b", [{"role": "user", "content": "5"}], "4")]

    def told(chat: Chat) -> list[str]:
        return [thinking.decode(row) for row in encode(problems, thinking, chat)]

    assert told(Chat()) == ["<bos>4", "85-12"]
    assert told(Chat.of(None, {"enable_thinking": False})) == ["84-02", "85-02"]
    assert told(Chat.of("3", None)) == ["73-84-12", "73-85-12"]
    assert told(Chat.of("3", {"level": 6, "enable_thinking": True})) == ["73-84-16", "73-85-16"]
    chat = Chat.of("3", {"level": 6})
    assert check_lengths(ProblemSet("s", {"train": problems}), thinking, 16, 8, chat=chat) == []
    (issue,) = check_lengths(ProblemSet("s", {"train": problems}), thinking, 15, 8, chat=chat)
    assert "found '8 tokens'; expected at most 7" in str(issue)


@pytest.mark.parametrize(
    ("template", "token"),
    [
        ("{% for m in messages %}{{ m.content }}<pad>{% endfor %}", "<pad>"),
        ("{% for m in messages %}<bos>{{ m.content }}<eos>{% endfor %}", "<eos>"),
        ("{% for m in messages %}{{ m.content }}-{% endfor %}", None),  # no token of its own
        ("{{ raise_exception('no') }}", None),
    ],
)
def test_the_end_of_a_turn(tokenizer: Any, monkeypatch: Any, template: str, token: str | None) -> None:
    monkeypatch.setattr(tokenizer, "chat_template", template)
    problem = Problem("1", "1+1=", "2")
    ids = () if token is None else (tokenizer.convert_tokens_to_ids(token),)
    assert turn_ends([problem], tokenizer, Chat.of("Be brief.", None)) == ids
    assert turn_ends([problem], tokenizer) == ()  # a text has no turns
    talk = Problem("2", [{"role": "user", "content": "1+1="}], "2")
    assert turn_ends([problem, talk], tokenizer) == ids


def test_two_system_messages(thinking: Any) -> None:
    own = [{"role": "system", "content": "1"}, {"role": "user", "content": "2"}]
    with pytest.raises(DataError, match="problem 'a': found a system message in its prompt"):
        encode([Problem("a", own, "3")], thinking, Chat.of("3", None))
    assert len(encode([Problem("a", own, "3")], thinking, Chat.of(None, {"level": 1}))[0]) == 8


def test_arguments_that_a_template_ignores(thinking: Any, tokenizer: Any) -> None:
    wrong = Chat.of(None, {"enable_thinkin": False, "tokenize": False, "level": 3})
    assert [str(issue) for issue in wrong.issues(thinking, "real.chat_template")] == [
        "real.chat_template.enable_thinkin: the model's chat template does not use this argument "
        "(did you mean 'enable_thinking'?)",
        "real.chat_template.tokenize: isolaw sets it; expected an argument of the template",
    ]
    with pytest.raises(
        DataError, match=r"problem 'a': the settings turn the prompt into a message, .* no chat template"
    ):
        encode([Problem("a", "4", "4")], tokenizer, Chat.of("3", None))


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
        "s/aime: 3 prompts are too long; the longest is the prompt of problem 'of 40'; found '41 tokens'; "
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
    with pytest.raises(
        DataError, match="problem 'c7': the tokenizer's chat template rejects the messages of this problem: "
    ):
        encode([chat], tokenizer)


def test_a_tokenizer_that_cannot_encode() -> None:
    def broken(texts: list[str]) -> Any:
        raise Exception("Unk token not in the vocabulary")

    (problem,) = check_lengths(ProblemSet("s", {"train": sums(3)}), broken, 64, 8)
    told = "s/train: the tokenizer cannot encode the prompts: Exception: Unk token not in the vocabulary"
    assert str(problem) == told
