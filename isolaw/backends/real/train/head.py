"""The output head and its softmax, in chunks of tokens: from hidden states to log-probabilities.

Nothing as large as batch × vocabulary exists: the backward pass recomputes a chunk's logits.
"""

from __future__ import annotations

import types
from typing import Any

import torch
from torch import Tensor

from isolaw.backends.real.train.memory.footprint import CHUNK

# Rows of the head's weight whose gradient is summed at a time.
_BLOCK = 2**14


class _TokenLogprobs(torch.autograd.Function):  # type: ignore[misc]
    """The autograd function of `token_logprobs`.

    With p = softmax(z), and upstream gradients g of log p(token) and h of H,

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
    ) -> Tensor:
        kind = torch.promote_types(hidden.dtype, torch.float32)
        logprobs, entropy, normaliser = (hidden.new_empty(len(tokens), dtype=kind) for _ in range(3))
        for part in _parts(len(tokens), chunk):
            z = _scaled(hidden[part], weight, bias, temperature, kind)
            normaliser[part] = z.logsumexp(-1)
            logprobs[part] = z.gather(-1, tokens[part, None])[:, 0] - normaliser[part]
            p = z.sub(normaliser[part, None]).exp_()
            entropy[part] = normaliser[part] - p.mul_(z).sum(-1)
            del z, p
        ctx.save_for_backward(hidden, weight, bias, tokens, normaliser, entropy)
        ctx.temperature, ctx.chunk = temperature, chunk
        return torch.stack([logprobs, entropy])

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        hidden, weight, bias, tokens, normaliser, entropy = ctx.saved_tensors
        kind = normaliser.dtype
        to_hidden = torch.empty_like(hidden)
        to_weight = torch.zeros_like(weight, dtype=kind) if ctx.needs_input_grad[1] else None
        to_bias = torch.zeros_like(bias, dtype=kind) if bias is not None else None
        for part in _parts(len(tokens), ctx.chunk):
            z = _scaled(hidden[part], weight, bias, ctx.temperature, kind).sub_(normaliser[part, None])
            p = z.exp()
            g, h = upstream[:, part, None]
            z.add_(entropy[part, None]).mul_(h).add_(g).mul_(p).neg_()
            del p
            z.scatter_add_(1, tokens[part, None], g)
            if to_bias is not None:
                to_bias += z.sum(0) / ctx.temperature
            z = z.div_(ctx.temperature).to(hidden.dtype)
            to_hidden[part] = z @ weight.to(z.dtype)
            if to_weight is not None:
                for rows in _parts(len(weight), _BLOCK):
                    to_weight[rows] += z[:, rows].T @ hidden[part]
            del z
        if to_weight is not None:
            to_weight = to_weight.to(weight.dtype)
        if to_bias is not None:
            to_bias = to_bias.to(bias.dtype)
        return to_hidden, to_weight, to_bias, None, None, None


def token_logprobs(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    tokens: Tensor,
    temperature: float,
    chunk: int | None = None,
) -> Tensor:
    """Return log π(token) and the entropy H of π = softmax(z), z = (W x + b) / temperature.

        log π(v) = z_v - log Σ_u exp z_u,    H = -Σ_v π_v log π_v,  exact over the vocabulary

    The result is (2, K), in nats. ``hidden``, (K, E), are the states that predict the ``tokens``, (K,);
    logits have its type, and later values are float32 or better. ``weight`` is (V, E), ``bias`` (V,) or None,
    ``temperature`` is the sampler's. Logits of only ``chunk`` tokens exist at a time (default: 2²⁶ logits).

    >>> zeros = torch.zeros(1, 3), torch.zeros(4, 3)
    >>> logp, entropy = token_logprobs(*zeros, None, torch.tensor([2]), temperature=0.6)
    >>> logp.exp(), entropy
    (tensor([0.2500]), tensor([1.3863]))
    """
    size = chunk or max(1, CHUNK // len(weight))
    out: Tensor = _TokenLogprobs.apply(hidden, weight, bias, tokens, temperature, size)
    return out


def chunked(head: torch.nn.Linear, *, float32: bool) -> torch.nn.Linear:
    """Make a model's output head return `token_logprobs` when called with tokens, in float32 if requested.

    It stays the same module, whose weight ZeRO-3 gathers during the call.
    """

    def forward(
        self: torch.nn.Linear, hidden: Tensor, tokens: Tensor | None = None, temperature: float = 1.0
    ) -> Any:
        weight, bias = self.weight, self.bias
        if float32:
            hidden, weight = hidden.float(), weight.float()
            bias = None if bias is None else bias.float()
        if tokens is None:
            return torch.nn.functional.linear(hidden, weight, bias)
        return token_logprobs(hidden, weight, bias, tokens, temperature)

    head.forward = types.MethodType(forward, head)  # type: ignore[method-assign]
    return head


def _parts(count: int, size: int) -> list[slice]:
    return [slice(i, i + size) for i in range(0, count, size)]


def _scaled(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, temperature: float, kind: torch.dtype
) -> Tensor:
    """Return logits over the temperature, as a new tensor."""
    return torch.nn.functional.linear(hidden, weight, bias).to(kind).div_(temperature)
