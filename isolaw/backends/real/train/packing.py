"""Pack rows of different lengths into one sequence without padding; attention stays within each row.

A micro-batch is a single sequence of N tokens, which contains one row after another. In each row, the prompt
precedes the response, and positions start at 0. All layers except attention process tokens independently, so
no computation is spent on padding. Attention is causal within a row. In half precision on a GPU, it uses the
variable-length kernel (`torch.nn.attention.varlen`). Otherwise, attention is computed for blocks of rows with
similar lengths, padded on the right for attention only.

Identical rows, which are common among short answers, are packed once.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from isolaw.backends.real.rollout.samplers import Rollouts

ATTENTION = "isolaw_packed"  # name of the attention implementation in transformers
_PADDING = 0.1  # maximum fraction of padding in a block, if there is no variable-length kernel


@dataclass(frozen=True)
class _Block:
    """Consecutive rows of similar lengths: their number, their total tokens, and the longest row's tokens.

    ``padded_index`` has shape (tokens,) and gives the index of each token in the flattened padded block of
    count · longest tokens. It is None if all rows have the same length.
    """

    count: int
    tokens: int
    longest: int
    padded_index: Tensor | None


@dataclass(frozen=True)
class _Layout:
    """Where U distinct rows are in a sequence of N tokens."""

    starts: Tensor  # int32 of shape (U + 1,): row u has the tokens from starts[u] up to starts[u + 1]
    longest: int  # tokens of the longest row
    blocks: tuple[_Block, ...]  # the rows in padded blocks; empty for the variable-length kernel


@dataclass(frozen=True)
class Packed:
    """Rows that are packed for a forward pass."""

    ids: Tensor  # token ids, shape (1, N)
    positions: Tensor  # position of each token in its row, shape (1, N)
    layout: _Layout
    predicts: Tensor  # indices of the tokens that predict a drawn response token, shape (K,)
    targets: Tensor  # the drawn response tokens, without inserted tokens, shape (K,)
    mask: Tensor  # mask of the drawn response tokens of all rows, shape (R, T)
    distinct_mask: Tensor  # the same mask for the distinct rows, which are packed, shape (U, T)
    distinct_index: Tensor | None  # each row's distinct row, shape (R,); None if all are distinct

    def by_row(self, values: Tensor) -> Tensor:
        """Return values of shape (…, K), one for each target, as (…, R, T), with zeros outside the mask."""
        rows = values.new_zeros(*values.shape[:-1], *self.distinct_mask.shape)
        rows = rows.masked_scatter(self.distinct_mask, values)
        return rows if self.distinct_index is None else rows.index_select(-2, self.distinct_index)


def pack(rollouts: Rollouts, device: torch.device, *, varlen: bool = False) -> Packed:
    """Return the rows packed on a device; a response without tokens has no targets."""
    columns = (rollouts.prompts, rollouts.tokens, rollouts.inserted)
    rows = list(zip(*(map(tuple, column) for column in columns), strict=True))
    distinct: dict[tuple[tuple[int, ...], ...], int] = {}
    distinct_index = [distinct.setdefault(row, len(distinct)) for row in rows]
    prompt_lengths, response_lengths = (np.array([len(row[column]) for row in distinct]) for column in (0, 1))
    if not prompt_lengths.all():
        raise ValueError("found a row without a prompt, in which nothing predicts the first token")
    lengths = prompt_lengths + response_lengths
    starts = np.concatenate([[0], lengths.cumsum()])
    positions = np.arange(starts[-1]) - np.repeat(starts[:-1], lengths)
    ids = np.fromiter((x for row in distinct for column in row[:2] for x in column), np.int64, starts[-1])
    response_positions = positions - np.repeat(prompt_lengths, lengths)  # index in the response
    is_target = response_positions >= 0
    drawn_lengths = response_lengths.copy()
    for u, row in enumerate(distinct):
        start, end = row[2]
        is_target[starts[u] + prompt_lengths[u] + start : starts[u] + prompt_lengths[u] + end] = False
        drawn_lengths[u] -= end - start
    is_drawn = np.arange(max(1, int(drawn_lengths.max()))) < drawn_lengths[:, None]
    has_repeats = len(distinct) < len(rows)

    def tensor(values: Any, dtype: torch.dtype = torch.long) -> Tensor:
        return torch.as_tensor(values, dtype=dtype, device=device)

    mask = tensor(is_drawn, torch.bool)
    index = tensor(distinct_index) if has_repeats else None
    return Packed(
        tensor(ids)[None],
        tensor(positions)[None],
        _Layout(tensor(starts, torch.int32), int(lengths.max()), () if varlen else _blocks(lengths, device)),
        tensor(np.flatnonzero(is_target) - 1),
        tensor(ids[is_target]),
        mask if index is None else mask[index],
        mask,
        index,
    )


def _blocks(lengths: np.ndarray, device: torch.device) -> tuple[_Block, ...]:
    """Cut rows into consecutive blocks, each as long as possible with at most a tenth of padding."""
    blocks = []
    start = 0
    while start < len(lengths):
        following = lengths[start:]
        longest = np.maximum.accumulate(following)
        too_wide = np.arange(1, len(following) + 1) * longest * (1 - _PADDING) > following.cumsum()
        count = int(too_wide.argmax()) if too_wide.any() else len(following)
        tokens, width = following[:count], int(longest[count - 1])
        padded_index = None
        if (tokens != width).any():
            ends = tokens.cumsum()
            positions = np.arange(ends[-1]) - np.repeat(ends - tokens, tokens)
            positions += np.repeat(width * np.arange(count), tokens)
            padded_index = torch.as_tensor(positions, device=device)
        blocks.append(_Block(count, int(tokens.sum()), width, padded_index))
        start += count
    return tuple(blocks)


def micro_batches(rollouts: Rollouts, max_tokens: int) -> list[list[int]]:
    """Return the row indices of micro-batches of at most ``max_tokens`` tokens each, the longest rows first.

    Equal rows count once and are in the same micro-batch. A row that exceeds the limit gets its own
    micro-batch.

    >>> rows = Rollouts([[1], [1], [1], [1, 2]], [[5], [5], [6], [7, 8]], [], [])
    >>> micro_batches(rows, 4)
    [[3], [2, 0, 1]]
    """
    columns = (rollouts.prompts, rollouts.tokens, rollouts.inserted)
    keys = [(len(row[0]) + len(row[1]), *row) for row in zip(*columns, strict=True)]
    batches: list[list[int]] = []
    tokens_left, last_key = 0, None
    for row in sorted(range(len(keys)), key=keys.__getitem__, reverse=True):
        if keys[row] != last_key:
            last_key = keys[row]
            if last_key[0] > tokens_left or not batches:
                batches.append([])
                tokens_left = max_tokens
            tokens_left -= last_key[0]
        batches[-1].append(row)
    return batches


def _attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    layout: _Layout | None = None,
    sliding_window: int | None = None,
    **other: Any,
) -> tuple[Tensor, None]:
    """Return causal attention within the rows of a layout; `transformers` calls this function.

    Query, key and value have shape (1, heads, N, D). The number of key and value heads must divide the number
    of query heads. The model's layers must pass ``layout`` to this function. A token attends to
    ``sliding_window`` tokens, including itself (None: all). Raise `NotImplementedError` if there is no
    layout, and for dropout, masks, soft caps or sinks, which only some models have.
    """
    unsupported = [name for name in ("softcap", "s_aux", "position_bias") if other.get(name) is not None]
    unsupported += ["dropout"] * bool(dropout) + ["a mask of its own"] * (attention_mask is not None)
    if unsupported:
        raise NotImplementedError(f"attention with {', '.join(unsupported)} is not supported")
    if layout is None:
        raise NotImplementedError("the model's layers do not pass the layout of rows to attention")
    window = sliding_window if sliding_window and sliding_window < layout.longest else None
    queries_per_key = query.shape[1] // key.shape[1]
    options: dict[str, Any] = {"scale": scaling, "enable_gqa": queries_per_key > 1}
    flat = [x[0].transpose(0, 1) for x in (query, key, value)]  # (N, heads, D)
    if layout.blocks:
        sizes = [block.tokens for block in layout.blocks]
        of_blocks = zip(layout.blocks, *(x.split(sizes) for x in flat), strict=True)
        outputs = [
            _unpad(_padded_attention([_pad(x, block) for x in columns], window, options), block)
            for block, *columns in of_blocks
        ]
        return torch.cat(outputs)[None], None
    from torch.nn.attention.varlen import varlen_attn

    if "enable_gqa" not in inspect.signature(varlen_attn).parameters:  # before torch 2.12
        del options["enable_gqa"]
        flat[1:] = [x.repeat_interleave(queries_per_key, 1) for x in flat[1:]]
    lengths = (layout.starts, layout.starts, layout.longest, layout.longest)
    earlier = -1 if window is None else window - 1  # the kernel's window does not include the token itself
    return varlen_attn(*flat, *lengths, window_size=(earlier, 0), **options)[None], None


def _padded_attention(rows: list[Tensor], window: int | None, options: dict[str, Any]) -> Tensor:
    """Return causal attention in a sliding window, over padded rows of shape (rows, heads, longest, D)."""
    longest = rows[0].shape[2]
    sdpa = torch.nn.functional.scaled_dot_product_attention
    if window is None or longest <= window:
        return sdpa(*rows, is_causal=True, **options)
    visible = torch.ones(longest, longest, dtype=torch.bool, device=rows[0].device)
    return sdpa(*rows, attn_mask=visible.tril().triu(1 - window), **options)


def _pad(x: Tensor, block: _Block) -> Tensor:
    """Convert packed rows of shape (tokens, H, D) to padded rows of shape (rows, H, longest, D)."""
    if block.padded_index is not None:
        x = x.new_zeros(block.count * block.longest, *x.shape[1:]).index_copy(0, block.padded_index, x)
    return x.reshape(block.count, block.longest, *x.shape[1:]).transpose(1, 2)


def _unpad(x: Tensor, block: _Block) -> Tensor:
    """Convert padded rows to packed rows: the inverse of `_pad`."""
    x = x.transpose(1, 2).flatten(0, 1)
    return x if block.padded_index is None else x[block.padded_index]


def register() -> None:
    """Register `_attention` with `transformers` as `ATTENTION`."""
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION, _attention)
