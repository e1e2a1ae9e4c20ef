"""Dictionaries as Python prints them."""

from __future__ import annotations

import ast
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isolaw.readers.literals import parse_dictionary

# What repr() puts into quotes as it is.
TEXTS = st.text(st.characters(min_codepoint=32, max_codepoint=126, exclude_characters="\\'\""), max_size=30)


@given(
    st.dictionaries(
        TEXTS.filter(bool), st.floats(allow_nan=False) | st.integers(-9999, 9999) | TEXTS, max_size=8
    )
)
def test_as_python_reads_it(values: dict[str, Any]) -> None:
    text = repr(values)
    assert "inf" in text or ast.literal_eval(text) == values
    found, end = parse_dictionary(text + " and more", 0)
    assert found == {key: value if isinstance(value, str) else repr(value) for key, value in values.items()}
    assert end == len(text)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        (
            "{'kl': nan, 'reward': -inf, 'x': np.float64(0.5)}",
            {"kl": "nan", "reward": "-inf", "x": "np.float64(0.5)"},
        ),
        (
            "{'a': tensor(0.5, device='cuda:0'), 'b': 1e-05}",
            {"a": "tensor(0.5, device='cuda:0')", "b": "1e-05"},
        ),
        ("{'a': None, 'b': [1, {'c': 2}, 'x}'], 'd': {'e': 1}, 'f': 3}", {"a": "None", "f": "3"}),
        ("{'a': 'it\\'s }', \"b'c\": 2}", {"b'c": "2"}),
        ("{'a': '1',\n 'b': '2'}", {"a": "1", "b": "2"}),
        ("{}", {}),
    ],
)
def test_values(text: str, values: dict[str, str]) -> None:
    assert parse_dictionary(text) == (values, len(text))


@pytest.mark.parametrize(
    "text", ["{'loss': 0.25, 'kl", "{'loss': 0.2", "{'loss'", "{", "{'a': [1, ", "{'a': 1,"]
)
def test_it_may_go_on(text: str) -> None:
    values, end = parse_dictionary(text)
    assert values is None
    assert end >= len(text) or text == "{'loss'"


@pytest.mark.parametrize("text", ["{'a', 'b'} - more", "{a: 1} - more", "{'a': 1] - more", "{1: 2} - more"])
def test_it_is_none(text: str) -> None:
    values, end = parse_dictionary(text)
    assert values is None
    assert end < len(text)


def test_linear_time() -> None:
    size = 300_000
    for text in (
        "{'a':" * size,
        "{" + " " * size,
        "{'a': " + "[" * size,
        "{'a': 1," * size,
        "{'" + "a" * size,
    ):
        began = time.process_time()
        parse_dictionary(text)
        assert time.process_time() - began < 5


@given(st.text(max_size=200))
def test_any_text(text: str) -> None:
    values, end = parse_dictionary("{" + text)
    assert end > 0
    assert values is None or end <= len(text) + 1
