"""Packed rows: nothing is lost or mixed, and attention is that of each row by itself."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from isolaw.backends.real.rollout.samplers import Rollouts
from isolaw.backends.real.train import packing

CPU = torch.device("cpu")
tokens = st.lists(st.integers(1, 3), min_size=1, max_size=9)
rows = st.lists(st.tuples(tokens, tokens | st.just([])), min_size=1, max_size=20)


def rollouts(pairs: list) -> Rollouts:
    prompts, responses = zip(*pairs, strict=True)
    return Rollouts(list(prompts), list(responses), [[0.0] * len(r) for r in responses], [True] * len(pairs))


@given(rows, st.booleans())
def test_what_is_packed_is_the_rows(pairs: list, varlen: bool) -> None:
    packed = packing.pack(rollouts(pairs), CPU, varlen=varlen)
    starts = packed.layout.starts.tolist()
    known = list(dict.fromkeys((tuple(p), tuple(r)) for p, r in pairs))
    ids, positions = packed.ids[0].tolist(), packed.positions[0].tolist()
    assert [tuple(ids[a:b]) for a, b in itertools.pairwise(starts)] == [p + r for p, r in known]
    assert positions == [i for p, r in known for i in range(len(p + r))]
    assert packed.targets.tolist() == [token for _, r in known for token in r]
    # What stands one place after the token that predicts it.
    assert [ids[i + 1] for i in packed.predicts.tolist()] == packed.targets.tolist()
    by_row = packed.by_row(packed.targets)
    assert packed.mask.sum(1).tolist() == [len(r) for _, r in pairs]
    assert [row[m].tolist() for row, m in zip(by_row, packed.mask, strict=True)] == [r for _, r in pairs]
    assert not by_row[~packed.mask].any()
    blocks = packed.layout.blocks
    assert bool(blocks) != varlen
    if blocks:
        assert sum(block.count for block in blocks) == len(known)
        assert sum(block.tokens for block in blocks) == len(ids)
        assert all(block.count * block.longest * 0.9 <= block.tokens for block in blocks)


@given(rows, st.data())
def test_inserted_tokens_are_context_and_no_targets(pairs: list, data: st.DataObject) -> None:
    spans = [sorted(data.draw(st.integers(0, len(r))) for _ in range(2)) for _, r in pairs]
    own = replace(rollouts(pairs), inserted=spans)
    packed = packing.pack(own, CPU)
    # An even number of the span's ends lies at or before a drawn token.
    drawn = [
        [token for i, token in enumerate(r) if sum(end <= i for end in pair) % 2 == 0]
        for (_, r), pair in zip(pairs, spans, strict=True)
    ]
    by_row = packed.by_row(packed.targets)
    assert [row[m].tolist() for row, m in zip(by_row, packed.mask, strict=True)] == drawn
    assert [len(row) for row in drawn] == own.lengths
    known = {(tuple(p), tuple(r), tuple(s)) for (p, r), s in zip(pairs, spans, strict=True)}
    assert packed.layout.starts[-1] == sum(len(p) + len(r) for p, r, _ in known)  # all are context
    ids = packed.ids[0].tolist()
    assert [ids[i + 1] for i in packed.predicts.tolist()] == packed.targets.tolist()


@given(rows, st.integers(1, 60))
def test_micro_batches_hold_every_row_once_and_keep_the_budget(pairs: list, budget: int) -> None:
    parts = packing.micro_batches(rollouts(pairs), budget)
    assert sorted(row for part in parts for row in part) == list(range(len(pairs)))
    assert all(parts)
    for part in parts:
        distinct = {(tuple(pairs[row][0]), tuple(pairs[row][1])) for row in part}
        total = sum(len(p) + len(r) for p, r in distinct)
        assert total <= budget or len(distinct) == 1
    lengths = [[sum(map(len, pairs[row])) for row in part] for part in parts]
    assert [x for part in lengths for x in part] == sorted(
        (x for part in lengths for x in part), reverse=True
    )
    # Equal rows are computed once: they are never in two micro-batches.
    where = Counter((tuple(pairs[row][0]), tuple(pairs[row][1])) for part in parts for row in set(part))
    spread = {(key, k) for k, part in enumerate(parts) for row in part for key in [str(pairs[row])]}
    assert len(spread) == len(where)


@given(
    st.lists(st.integers(1, 12), min_size=1, max_size=15),
    st.sampled_from([(4, 4), (4, 2), (2, 1)]),
    st.sampled_from([None, 1, 5, 12]),
)
def test_attention_is_that_of_each_row(
    lengths: list[int], heads: tuple[int, int], window: int | None
) -> None:
    random = torch.Generator().manual_seed(sum(lengths))
    n = sum(lengths)
    layout = packing.pack(rollouts([([k], [1] * (x - 1)) for k, x in enumerate(lengths)]), CPU).layout
    assert layout.starts.tolist()[-1] == n
    parts = [
        torch.randn(1, h, n, 8, generator=random, requires_grad=True) for h in (heads[0], heads[1], heads[1])
    ]
    found, _ = packing._attention(None, *parts, None, scaling=0.3, layout=layout, sliding_window=window)
    assert found.shape == (1, n, heads[0], 8)
    alone = []
    for a, x in zip(layout.starts.tolist(), lengths, strict=False):
        q, k, v = (part[:, :, a : a + x] for part in parts)
        k, v = (part.repeat_interleave(heads[0] // heads[1], 1) for part in (k, v))
        unseen = torch.ones(x, x).triu(1).bool() | torch.ones(x, x).tril(-(window or x)).bool()
        scores = (0.3 * q @ k.transpose(2, 3)).masked_fill(unseen, -torch.inf)
        alone.append((scores.softmax(-1) @ v).transpose(1, 2))
    exact = torch.cat(alone, 1)
    torch.testing.assert_close(found, exact, atol=1e-5, rtol=1e-5)
    upstream = torch.randn(found.shape, generator=random)
    for mine, theirs in zip(
        torch.autograd.grad(found, parts, upstream), torch.autograd.grad(exact, parts, upstream), strict=True
    ):
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ({"dropout": 0.1}, "dropout"),
        ({"softcap": 50.0}, "softcap"),
        ({"s_aux": 1}, "s_aux"),
        ({}, "the layout of rows"),
    ],
)
def test_attention_of_another_kind_is_refused(more: dict, what: str) -> None:
    x = torch.zeros(1, 1, 5, 8)
    with pytest.raises(NotImplementedError, match=what):
        packing._attention(None, x, x, x, None, **more)
