"""Convert rollouts to named tensors, for state files and for the exchange between processes.

A field with a list for each row becomes two tensors: the values of all rows, and ``NAME.lengths``. With
log-probabilities this takes 13 bytes per token. JSON takes 51 bytes per token and seven times as long.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from isolaw.backends.real.rollout.samplers import Rollouts
from isolaw.errors import RunError

# Types of fields that are not int32; the other fields are token ids, positions and versions.
_TYPES = {"logprobs": np.float64, "old_logprobs": np.float64}
_OLD, _LENGTHS = "old_logprobs", ".lengths"


def pack(rows: Sequence[int], rollouts: Rollouts, old_logprobs: Sequence[Tensor] | None) -> dict[str, Tensor]:
    """Return some rows of a batch as named tensors; float64 values become float32 if this loses nothing.

    >>> two = Rollouts([[1, 2], [3]], [[4], [5, 6]], [[-0.5], [-1.0, -0.25]], [True, False])
    >>> result = pack([0, 1], two, None)
    >>> result["logprobs"], result["logprobs.lengths"]
    (tensor([-0.5000, -1.0000, -0.2500]), tensor([1, 2], dtype=torch.int32))
    >>> second, _ = unpack(result, [1])
    >>> second.tokens, second.finished
    ([[5, 6]], [False])
    """
    out = {"rows": torch.tensor(list(rows), dtype=torch.int64)}
    for name, values in vars(rollouts).items():
        if name == "finished":
            out[name] = torch.tensor(values, dtype=torch.bool)
            continue
        lengths = [len(row) for row in values]
        flat = itertools.chain.from_iterable(values)
        out[name] = _as_float32(torch.from_numpy(np.fromiter(flat, _TYPES.get(name, np.int32), sum(lengths))))
        out[name + _LENGTHS] = torch.tensor(lengths, dtype=torch.int32)
    if old_logprobs is not None:
        flat_logprobs = torch.cat([torch.empty(0), *(row.detach().cpu() for row in old_logprobs)])
        out[_OLD] = _as_float32(flat_logprobs)
        out[_OLD + _LENGTHS] = torch.tensor([len(row) for row in old_logprobs], dtype=torch.int32)
    return out


def join(parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Return the rows of all parts in ascending order; the parts must have the same fields."""
    out = {name: torch.cat([tensors[name] for tensors in parts]) for name in parts[0]}
    order = torch.argsort(out["rows"])
    for name in [name for name in out if name + _LENGTHS in out]:
        lengths = out[name + _LENGTHS].long()
        if len(lengths):  # a field can have no rows
            starts, sorted_lengths = (lengths.cumsum(0) - lengths)[order], lengths[order]
            shift = starts - (sorted_lengths.cumsum(0) - sorted_lengths)
            source = torch.arange(len(out[name])) + shift.repeat_interleave(sorted_lengths)
            out[name], out[name + _LENGTHS] = out[name][source], sorted_lengths.int()
    out["finished"], out["rows"] = out["finished"][order], out["rows"][order]
    return out


def unpack(tensors: Mapping[str, Tensor], rows: Sequence[int]) -> tuple[Rollouts, list[Tensor] | None]:
    """Return the rollouts with the given indices, and their old log-probabilities in float64, else None."""

    def select(name: str) -> list[Tensor]:
        lengths = tensors[name + _LENGTHS].tolist()
        row_values = tensors[name].split(lengths) if lengths else ()
        return [row_values[row] for row in rows] if lengths else []

    values_of_field: dict[str, Any] = {"finished": tensors["finished"][list(rows)].tolist()}
    for field in fields(Rollouts):
        if field.name != "finished":
            values_of_field[field.name] = [values.tolist() for values in select(field.name)]
    return Rollouts(**values_of_field), [row.double() for row in select(_OLD)] if _OLD in tensors else None


def _as_float32(values: Tensor) -> Tensor:
    single = values.float()
    return single if values.dtype == torch.float64 and torch.equal(single.double(), values) else values


def write_float32(path: Path, shapes: Mapping[str, Sequence[int]], tensors: Iterable[torch.Tensor]) -> None:
    """Write tensors as float32 to a safetensors file, in the order of ``shapes``.

    A file consists of the length of its header (8 bytes), the header, and the bytes of the tensors. The
    header is JSON with type, shape and offsets of each tensor (https://huggingface.co/docs/safetensors).
    ``safetensors.torch.save_file`` writes the same file but needs all tensors in memory. Weights and moments
    of P parameters are 12 P bytes, which is 85 GiB for 7B.

    Each tensor is written before the next one is taken from the iterator. Raise `RunError` if a tensor has
    another shape.

    >>> import tempfile
    >>> from safetensors.torch import load_file
    >>> path = Path(tempfile.mkdtemp()) / "two.safetensors"
    >>> write_float32(path, {"w": [1, 2], "b": []}, iter([torch.ones(1, 2), torch.tensor(3.0)]))
    >>> load_file(path)["w"], load_file(path)["b"]
    (tensor([[1., 1.]]), tensor(3.))
    """
    header, end = {}, 0
    for name, shape in shapes.items():
        begin, end = end, end + 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # aligns the tensors to 8 bytes
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for (name, shape), tensor in zip(shapes.items(), tensors, strict=True):
            if list(tensor.shape) != list(shape):
                raise RunError(f"{path}: {name}: found shape {list(tensor.shape)}; expected {list(shape)}")
            file.write(tensor.detach().float().cpu().contiguous().reshape(-1).numpy())
