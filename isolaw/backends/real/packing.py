"""Rows of different lengths as one sequence, without padding, and attention that keeps them apart.

A micro-batch is a single sequence of N tokens: row after row, prompt before response, positions from 0 in
each. All layers but attention treat tokens one by one, so nothing is computed for padding. Attention is
within a row and causal: by the variable-length kernel (`torch.nn.attention.varlen`) in half precision on a
GPU; elsewhere rows are laid side by side, padded on the right, for attention alone, where no token sees what
comes after it, the padding included.

Equal rows, of which short answers have many, are packed once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from isolaw.backends.real.sampling import Rollouts

ATTENTION = "isolaw_packed"  # its name among those of transformers


@dataclass(frozen=True)
class Layout:
    """Where U rows are in a sequence of N tokens.

    Attributes
    ----------
    starts
        (U + 1,), int32: row u is at ``starts[u]`` up to ``starts[u + 1]``.
    longest
        tokens of the longest row, L.
    place
        (N,): where each token is in (U, L), flat; None where all rows are as long and nothing is to be moved.
    varlen
        whether attention is computed by the variable-length kernel.
    """

    starts: Tensor
    longest: int
    place: Tensor | None
    varlen: bool


@dataclass(frozen=True)
class Packed:
    """Rows packed for a forward pass.

    Attributes
    ----------
    ids, positions
        (1, N): tokens, and their positions in their rows.
    layout
        of the rows in them.
    predicts, targets
        (K,): where the tokens stand that predict a response token each, and those response tokens.
    mask
        (R, T), bool: which tokens are of a response, for all rows, equal ones too.
    distinct
        (U, T), bool: the same for the rows packed.
    same_as
        (R,): which of them each row equals; None where no two rows are equal.
    """

    ids: Tensor
    positions: Tensor
    layout: Layout
    predicts: Tensor
    targets: Tensor
    mask: Tensor
    distinct: Tensor
    same_as: Tensor | None

    def by_row(self, values: Tensor) -> Tensor:
        """Return a number for each of ``targets`` as (R, T), zeros where the mask is False."""
        rows = values.new_zeros(self.distinct.shape).masked_scatter(self.distinct, values)
        return rows if self.same_as is None else rows[self.same_as]


def pack(rollouts: Rollouts, device: torch.device, *, varlen: bool = False) -> Packed:
    """Return rows packed, for that device; a response without tokens predicts nothing."""
    rows = list(zip(map(tuple, rollouts.prompts), map(tuple, rollouts.tokens), strict=True))
    known: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}
    same_as = [known.setdefault(row, len(known)) for row in rows]
    before = np.array([len(prompt) for prompt, _ in known])
    after = np.array([len(response) for _, response in known])
    lengths = before + after
    starts = np.concatenate([[0], lengths.cumsum()])
    longest = int(lengths.max())
    positions = np.arange(starts[-1]) - np.repeat(starts[:-1], lengths)
    ids = np.fromiter((token for row in known for part in row for token in part), np.int64, starts[-1])
    answers = positions >= np.repeat(before, lengths)
    place = None
    if not varlen and (lengths != longest).any():
        place = positions + np.repeat(longest * np.arange(len(lengths)), lengths)
    distinct = np.arange(max(1, int(after.max()))) < after[:, None]
    repeated = len(known) < len(rows)

    def tensor(values: Any, kind: torch.dtype = torch.long) -> Tensor:
        return torch.as_tensor(values, dtype=kind, device=device)

    own = tensor(distinct, torch.bool)
    again = tensor(same_as) if repeated else None
    return Packed(
        tensor(ids)[None],
        tensor(positions)[None],
        Layout(
            tensor(starts, torch.int32),
            longest,
            None if place is None else tensor(place),
            varlen,
        ),
        tensor(np.flatnonzero(answers) - 1),
        tensor(ids[answers]),
        own if again is None else own[again],
        own,
        again,
    )


def micro_batches(rollouts: Rollouts, tokens: int) -> list[list[int]]:
    """Return rows cut into micro-batches of at most so many tokens: of similar lengths, the longest first.

    Equal rows count once, and stand together. A row that is longer by itself is alone.

    >>> rows = Rollouts([[1], [1], [1], [1, 2]], [[5], [5], [6], [7, 8]], [], [])
    >>> micro_batches(rows, 4)
    [[3], [2, 0, 1]]
    """
    keys = [(len(p) + len(t), p, t) for p, t in zip(rollouts.prompts, rollouts.tokens, strict=True)]
    out: list[list[int]] = []
    room, last = 0, None
    for row in sorted(range(len(keys)), key=keys.__getitem__, reverse=True):
        if keys[row] != last:
            last = keys[row]
            if last[0] > room or not out:
                out.append([])
                room = tokens
            room -= last[0]
        out[-1].append(row)
    return out


def attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    layout: Layout | None = None,
    sliding_window: int | None = None,
    **other: Any,
) -> tuple[Tensor, None]:
    """Causal attention within the rows of a layout, as `transformers` calls it.

    Parameters
    ----------
    module, attention_mask
        not used: a layout says all.
    query, key, value
        (1, heads, N, D), key and value with as many heads or a divisor of them.
    layout
        of the rows; None: the sequences of the batch are the rows.

    Raises
    ------
    NotImplementedError
        for what only some models have: dropout, windows shorter than a row, soft caps, sinks.
    """
    longest = layout.longest if layout else query.shape[2]
    special = [name for name in ("softcap", "s_aux", "position_bias") if other.get(name) is not None]
    if dropout or special or (sliding_window is not None and sliding_window < longest):
        raise NotImplementedError(
            f"attention with {', '.join(special) or ('dropout' if dropout else 'a sliding window')}"
        )
    grouped = query.shape[1] != key.shape[1]
    if layout is None or not layout.varlen:
        parts = (query, key, value) if layout is None else [_apart(x, layout) for x in (query, key, value)]
        out = torch.nn.functional.scaled_dot_product_attention(
            *parts, is_causal=True, scale=scaling, enable_gqa=grouped
        ).transpose(1, 2)
        return (out if layout is None else _together(out, layout)), None
    from torch.nn.attention.varlen import varlen_attn

    flat = (x[0].transpose(0, 1) for x in (query, key, value))
    return varlen_attn(
        *flat,
        layout.starts,
        layout.starts,
        layout.longest,
        layout.longest,
        scale=scaling,
        window_size=(-1, 0),
        enable_gqa=grouped,
    )[None], None


def _apart(x: Tensor, layout: Layout) -> Tensor:
    """(1, H, N, D), rows one after another, as (U, H, L, D), rows side by side."""
    x = x[0].transpose(0, 1)
    rows = len(layout.starts) - 1
    if layout.place is not None:
        x = x.new_zeros(rows * layout.longest, *x.shape[1:]).index_copy(0, layout.place, x)
    return x.reshape(rows, layout.longest, *x.shape[1:]).transpose(1, 2)


def _together(x: Tensor, layout: Layout) -> Tensor:
    """(U, L, H, D) as (1, N, H, D)."""
    x = x.flatten(0, 1)
    return (x if layout.place is None else x[layout.place])[None]


def register() -> None:
    """Make `attention` known to `transformers`, by the name `ATTENTION`."""
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION, attention)
