"""Tensors written one by one: the file that safetensors writes, and one tensor in memory at a time."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import load_file, save_file

from isolaw.backends.real.train import row_tensors
from isolaw.errors import RunError

pytestmark = pytest.mark.real
SHAPES = {"b": (3, 5), "a": (), "none": (0, 4), "c": (7,)}


def test_a_file_is_what_safetensors_reads_and_no_two_tensors_are_in_memory(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    kept = {name: torch.randn(shape, generator=generator).bfloat16() for name, shape in SHAPES.items()}
    alive: list[weakref.ref[torch.Tensor]] = []

    def one_by_one() -> Iterator[torch.Tensor]:
        for tensor in kept.values():
            assert sum(ref() is not None for ref in alive) <= 1  # the one that was written last
            copy = tensor.t().contiguous().t() if tensor.dim() == 2 else tensor.clone()
            alive.append(weakref.ref(copy))
            yield copy

    row_tensors.write_float32(tmp_path / "own", SHAPES, one_by_one())
    save_file({name: tensor.float() for name, tensor in kept.items()}, tmp_path / "theirs")
    own, theirs = load_file(tmp_path / "own"), load_file(tmp_path / "theirs")
    assert own.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert (own[name].dtype, own[name].shape) == (torch.float32, tensor.shape)
        assert torch.equal(own[name], tensor)
    assert (tmp_path / "own").stat().st_size >= sum(4 * tensor.numel() for tensor in kept.values())


def test_another_shape_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"own: w: found shape \[3, 2\]; expected \[2, 3\]"):
        row_tensors.write_float32(tmp_path / "own", {"w": (2, 3)}, iter([torch.zeros(3, 2)]))
