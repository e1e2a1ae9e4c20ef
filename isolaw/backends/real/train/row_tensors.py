"""Convert rollouts to named tensors, for state files and for the exchange between processes.

A field with a list for each row becomes two tensors: the values of all rows, and ``NAME.lengths``. With
log-probabilities this takes 13 bytes per token. JSON takes 51 bytes per token and seven times as long.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from isolaw.backends.real.rollout.samplers import Rollouts

# Types of fields that are not int32; the other fields are token ids, positions and versions.
_TYPES = {"logprobs": np.float64, "old_logprobs": np.float64}
_OLD, _LENGTHS = "old_logprobs", ".lengths"


def of(rows: Sequence[int], rollouts: Rollouts, old_logprobs: Sequence[Tensor] | None) -> dict[str, Tensor]:
    """Return some rows of a batch as named tensors; float64 values become float32 if this loses nothing.

    >>> two = Rollouts([[1, 2], [3]], [[4], [5, 6]], [[-0.5], [-1.0, -0.25]], [True, False])
    >>> found = of([0, 1], two, None)
    >>> found["logprobs"], found["logprobs.lengths"]
    (tensor([-0.5000, -1.0000, -0.2500]), tensor([1, 2], dtype=torch.int32))
    >>> second, _ = rows_of(found, [1])
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
        out[name] = _narrow(torch.from_numpy(np.fromiter(flat, _TYPES.get(name, np.int32), sum(lengths))))
        out[name + _LENGTHS] = torch.tensor(lengths, dtype=torch.int32)
    if old_logprobs is not None:
        whole = torch.cat([torch.empty(0), *(row.detach().cpu() for row in old_logprobs)])
        out[_OLD] = _narrow(whole)
        out[_OLD + _LENGTHS] = torch.tensor([len(row) for row in old_logprobs], dtype=torch.int32)
    return out


def joined(parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Return the rows of all parts in ascending order; the parts must have the same fields."""
    out = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    order = torch.argsort(out["rows"])
    for name in [name for name in out if name + _LENGTHS in out]:
        lengths = out[name + _LENGTHS].long()
        if len(lengths):  # a field can have no rows
            starts, sorted_lengths = (lengths.cumsum(0) - lengths)[order], lengths[order]
            shift = starts - (sorted_lengths.cumsum(0) - sorted_lengths)
            place = torch.arange(len(out[name])) + shift.repeat_interleave(sorted_lengths)
            out[name], out[name + _LENGTHS] = out[name][place], sorted_lengths.int()
    out["finished"], out["rows"] = out["finished"][order], out["rows"][order]
    return out


def rows_of(tensors: Mapping[str, Tensor], places: Sequence[int]) -> tuple[Rollouts, list[Tensor] | None]:
    """Return the rollouts with the given indices, and their old log-probabilities in float64, else None."""

    def chosen(name: str) -> list[Tensor]:
        lengths = tensors[name + _LENGTHS].tolist()
        parts = tensors[name].split(lengths) if lengths else ()
        return [parts[place] for place in places] if lengths else []

    fields_of_rows: dict[str, Any] = {"finished": tensors["finished"][list(places)].tolist()}
    for field in fields(Rollouts):
        if field.name != "finished":
            fields_of_rows[field.name] = [values.tolist() for values in chosen(field.name)]
    return Rollouts(**fields_of_rows), [row.double() for row in chosen(_OLD)] if _OLD in tensors else None


def _narrow(values: Tensor) -> Tensor:
    single = values.float()
    return single if values.dtype == torch.float64 and torch.equal(single.double(), values) else values
