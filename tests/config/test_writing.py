"""Sweep files that isolaw writes: TOML reads back what was written."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isolaw.config import SweepSpec
from isolaw.documents.reading import toml_text

ROOT = Path(__file__).parents[2]
TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
VALUES = st.recursive(
    st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=5,
)


@pytest.mark.slow
@given(st.dictionaries(TEXT, st.dictionaries(TEXT, VALUES | st.dictionaries(TEXT, VALUES, max_size=2))))
def test_what_is_written_is_read_back(data: dict) -> None:
    assert tomllib.loads(toml_text(data)) == data


FILES = {*(ROOT / "examples").glob("*.toml")} - {ROOT / "examples" / "prime-rl-wordle.toml"}


@pytest.mark.parametrize("file", sorted(FILES), ids=lambda path: path.stem)
def test_examples_keep_their_meaning(file: Path) -> None:
    spec = SweepSpec.read(file)
    written = toml_text(spec.model_dump(mode="json", exclude_unset=True))
    assert SweepSpec.parse(tomllib.loads(written)) == spec
