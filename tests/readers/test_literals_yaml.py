"""YAML read as events: what PyYAML's safe loader reads, without its traps."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from isolaw.errors import DataError
from isolaw.readers.literals import parse_yaml

words = st.text(alphabet="abcxyz /._-é", min_size=1, max_size=12).map(str.strip).filter(bool)
scalars = (
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.floats(-1e9, 1e9) | words.map("w ".__add__)
)
documents = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words.map("k".__add__), inner, max_size=4),
    max_leaves=25,
)


@given(document=documents)
@pytest.mark.parametrize("flow", [True, False, None])
def test_it_reads_what_pyyaml_writes(document: Any, flow: bool | None) -> None:
    text = yaml.safe_dump(document, default_flow_style=flow, allow_unicode=True)
    assert parse_yaml(text) == document
    assert yaml.safe_load(text) == document


def test_it_reads_what_omegaconf_means() -> None:
    text = (
        "lr: 1e-6\non: on\ndate: 2025-01-01\noctal: 010\nlist:\n- 1\n- two\nblock: |\n  a\n  b\nquoted: '8'\n"
    )
    assert parse_yaml(text) == {
        "lr": 1e-6,
        "on": "on",
        "date": "2025-01-01",
        "octal": 10,
        "list": [1, "two"],
        "block": "a\nb\n",
        "quoted": "8",
    }


def test_aliases_are_references() -> None:
    assert parse_yaml("a: &a {x: 1}\nb: *a\nc: &c [1]\nd: [*c, *c]\n") == {
        "a": {"x": 1},
        "b": {"x": 1},
        "c": [1],
        "d": [[1], [1]],
    }


def test_keys_of_any_kind() -> None:
    assert parse_yaml("1: a\n1.5: b\ntrue: c\nnull: d\n? [x, y]\n: e\n") == {
        "1": "a",
        "1.5": "b",
        "True": "c",
        "null": "d",
        "<list>": "e",
    }


def test_first_document_only() -> None:
    assert parse_yaml("a: 1\n---\nb: 2\n") == {"a": 1}
    assert parse_yaml("") is None


def test_not_yaml_says_where() -> None:
    with pytest.raises(DataError, match="line 2, column"):
        parse_yaml("a: 1\n b: 2\n")


def test_a_bomb_as_a_key_is_not_written_out() -> None:
    levels = [f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 9)}]\n" for i in range(1, 12)]
    found = parse_yaml("l0: &l0 [x]\n" + "".join(levels) + "? *l11\n: 1\n")
    assert found["<list>"] == 1
