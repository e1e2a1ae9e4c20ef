"""Compute log-probabilities from hidden states: the output head and its softmax, in chunks of tokens.

No tensor is as large as batch × vocabulary, because the backward pass recomputes the logits of each chunk.
Every operator on a chunk's logits reads and writes them in GPU memory, so the code uses few operators, and
they work in place.

Liger's fused kernel has the same arguments (liger-kernel 0.8.5,
``LigerFusedLinearScaledCrossEntropyFunction``), but isolaw does not use it. Liger's kernel returns the
entropy in bfloat16, rounds the gradient of W to bfloat16 after every 512 tokens (1024 on Hopper), and
supports no bias.
"""

from __future__ import annotations

import types
from typing import Any

import torch
from torch import Tensor

from isolaw.backends.real.train.memory.footprint import CHUNK

# The gradient of the head's weight is summed in blocks of this many rows.
_BLOCK = 2**14


class _TokenLogprobs(torch.autograd.Function):  # type: ignore[misc]
    """The autograd function of `_token_logprobs`.

    Let p = softmax(z), and let g and h be the upstream gradients of log p(token) and H. Then

        ∂/∂z_v = g (1[v = token] - p_v) - h p_v (log p_v + H),    z = (W x + b) / temperature

    The gradient of W is summed over chunks in float32.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        tokens: Tensor,
        temperature: float,
        chunk: int,
        logits: torch.dtype,
    ) -> Tensor:
        kind = torch.promote_types(logits, torch.float32)
        logprobs, entropy, normaliser = (hidden.new_empty(len(tokens), dtype=kind) for _ in range(3))
        for part in _parts(len(tokens), chunk):
            z = _logits(hidden[part], weight, bias, logits)
            z = _shifted(z, 1 / temperature, z.new_zeros(1, dtype=kind))
            own = z.gather(-1, tokens[part, None])[:, 0]
            z = z.log_softmax(-1)
            logprobs[part] = z.gather(-1, tokens[part, None])[:, 0]
            normaliser[part] = own - logprobs[part]
            entropy[part] = -z.exp().mul_(z).sum(-1)
            del z
        ctx.save_for_backward(hidden, weight, bias, tokens, normaliser, entropy)
        ctx.temperature, ctx.chunk, ctx.logits = temperature, chunk, logits
        return torch.stack([logprobs, entropy])

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        hidden, weight, bias, tokens, normaliser, entropy = ctx.saved_tensors
        kind = normaliser.dtype
        to_hidden = torch.empty_like(hidden)
        to_weight = torch.zeros_like(weight, dtype=kind) if ctx.needs_input_grad[1] else None
        to_bias = torch.zeros_like(bias, dtype=kind) if bias is not None else None
        for part in _parts(len(tokens), ctx.chunk):
            logits = _logits(hidden[part], weight, bias, ctx.logits)
            z = _shifted(logits, 1 / ctx.temperature, -normaliser[part, None])  # log p
            del logits
            p = z.exp()
            g, h = upstream[:, part, None] / ctx.temperature
            torch.addcmul(-(g + h * entropy[part, None]), -h, z, out=z).mul_(p)
            del p
            z.scatter_add_(1, tokens[part, None], g)
            if to_bias is not None:
                to_bias += z.sum(0)
            z = z.to(hidden.dtype)
            to_hidden[part] = z @ weight.to(z.dtype)
            if to_weight is not None:
                for rows in _parts(len(weight), _BLOCK):
                    to_weight[rows] += _product(z[:, rows].T, hidden[part], ctx.logits)
            del z
        if to_weight is not None:
            to_weight = to_weight.to(weight.dtype)
        if to_bias is not None:
            to_bias = to_bias.to(bias.dtype)
        return to_hidden, to_weight, to_bias, None, None, None, None


def _token_logprobs(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    tokens: Tensor,
    temperature: float,
    chunk: int | None = None,
    logits: torch.dtype | None = None,
) -> Tensor:
    """Return log π(token) and the entropy H of π = softmax(z) with z = (W x + b) / temperature.

        log π(v) = z_v - log Σ_u exp z_u,    H = -Σ_v π_v log π_v,  exact over the vocabulary

    The result has shape (2, K), in nats. ``hidden`` has shape (K, E) and contains the states that predict the
    K ``tokens``. ``weight`` has shape (V, E), and ``bias`` has shape (V,) or is None. ``temperature`` is the
    sampler's. Logits are computed in the type ``logits``, by default the type of ``hidden``; a wider type
    needs a GPU (see `chunked`). Later values are at least float32. Only the logits of ``chunk`` tokens exist
    at a time (default: 2²⁶ logits).

    >>> zeros = torch.zeros(1, 3), torch.zeros(4, 3)
    >>> logp, entropy = _token_logprobs(*zeros, None, torch.tensor([2]), temperature=0.6)
    >>> logp.exp(), entropy
    (tensor([0.2500]), tensor([1.3863]))
    """
    size, kind = chunk or max(1, CHUNK // len(weight)), logits or hidden.dtype
    out: Tensor = _TokenLogprobs.apply(hidden, weight, bias, tokens, temperature, size, kind)
    return out


def chunked(head: torch.nn.Linear, *, float32: bool) -> torch.nn.Linear:
    """Make a model's output head return `_token_logprobs` when called with tokens, in float32 if requested.

    The head remains the same module, so that ZeRO-3 gathers its weight during the call. If called without
    tokens, it returns the logits.

    With ``float32``, W x is summed and stored in float32 (ScaleRL, arXiv 2510.13786, section 3.2, after
    MiniMax-M1, arXiv 2506.13585). The product of two bfloat16 numbers, with 8 bits each, is exact in float32.
    A GPU multiplies bfloat16 operands with a float32 result at the speed of bfloat16. The sum is the same as
    for operands cast to float32, up to the order of summation. vLLM does the same for
    ``head_dtype = "float32"``. Without a GPU, the operands are cast.
    """

    def forward(
        self: torch.nn.Linear, hidden: Tensor, tokens: Tensor | None = None, temperature: float = 1.0
    ) -> Any:
        weight, bias = self.weight, self.bias
        kind = torch.float32 if float32 else hidden.dtype
        if kind != hidden.dtype and not _multiplies(hidden):
            hidden, weight = hidden.to(kind), weight.to(kind)
            bias = None if bias is None else bias.to(kind)
        if tokens is None:
            return _logits(hidden, weight, bias, kind)
        return _token_logprobs(hidden, weight, bias, tokens, temperature, logits=kind)

    head.forward = types.MethodType(forward, head)  # type: ignore[method-assign]
    return head


def _parts(count: int, size: int) -> list[slice]:
    return [slice(i, i + size) for i in range(0, count, size)]


def _multiplies(hidden: Tensor) -> bool:
    """Return whether torch supports `_product` with a float32 result for these operands."""
    return hidden.is_cuda and hidden.dtype in (torch.bfloat16, torch.float16)


def _product(a: Tensor, b: Tensor, kind: torch.dtype) -> Tensor:
    """Return the matrix product in the type ``kind``, which can be wider than the operands."""
    return a @ b if a.dtype == kind else torch.mm(a, b, out_dtype=kind)


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, kind: torch.dtype) -> Tensor:
    """Return W x + b as a new tensor of type ``kind``."""
    if hidden.dtype == kind:
        return torch.nn.functional.linear(hidden, weight, bias)
    out = _product(hidden.reshape(-1, hidden.shape[-1]), weight.T, kind)
    if bias is not None:
        out += bias
    return out.reshape(*hidden.shape[:-1], len(weight))


def _shifted(x: Tensor, scale: float, shift: Tensor) -> Tensor:
    """Return scale · x + shift in the type of ``shift``, in one pass, and in place if x has this type."""
    return torch.add(shift, x, alpha=scale, out=x if x.dtype == shift.dtype else None)
