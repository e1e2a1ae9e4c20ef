"""The output head in chunks: log-probabilities, entropies and gradients against torch's own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from isolaw.backends.real.train import head

CHUNKS = [1, 3, 100]


def made(seed: int, spread: float = 1.0, *, bias: bool = True) -> tuple:
    """Hidden states (7, 5), weight (11, 5), bias (11,) in float64, and tokens (7,)."""
    random = torch.Generator().manual_seed(seed)
    hidden, weight, own = (
        torch.randn(*shape, generator=random, dtype=torch.float64, requires_grad=True)
        for shape in ((7, 5), (11, 5), (11,))
    )
    tokens = torch.randint(0, 11, (7,), generator=random)
    return (spread * hidden).detach().requires_grad_(), weight, own if bias else None, tokens


@given(st.integers(0, 2**32 - 1), st.floats(0.1, 3), st.floats(0.01, 30), st.sampled_from(CHUNKS))
def test_values_are_those_of_torch_distributions(
    seed: int, temperature: float, spread: float, chunk: int
) -> None:
    hidden, weight, bias, tokens = made(seed, spread)
    logp, entropy = head._token_logprobs(hidden, weight, bias, tokens, temperature, chunk)
    logits = torch.nn.functional.linear(hidden, weight, bias) / temperature
    policy = torch.distributions.Categorical(logits=logits)
    torch.testing.assert_close(logp, policy.log_prob(tokens), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(entropy, policy.entropy(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("bias", [True, False])
def test_gradients_are_exact(chunk: int, bias: bool) -> None:
    hidden, weight, own, tokens = made(5, bias=bias)

    def both(*parts: torch.Tensor) -> tuple:
        return head._token_logprobs(*parts[:2], parts[2] if bias else None, tokens, 0.6, chunk)

    parts = (hidden, weight, own) if bias else (hidden, weight)
    assert torch.autograd.gradcheck(both, parts)
    for which in (0, 1):  # where only one of the two enters the loss
        assert torch.autograd.gradcheck(lambda *p, i=which: both(*p)[i], parts)


def test_a_frozen_head_passes_the_gradient_on() -> None:
    hidden, weight, _, tokens = made(6, bias=False)
    head._token_logprobs(hidden, weight, None, tokens, 1.0)[0].sum().backward()
    (whole,) = torch.autograd.grad(
        head._token_logprobs(hidden, weight.detach(), None, tokens, 1.0, 2)[0].sum(), hidden
    )
    torch.testing.assert_close(whole, hidden.grad)


def test_bfloat16_is_taken_in_float32_and_its_gradient_is_summed_there(monkeypatch) -> None:
    random = torch.Generator().manual_seed(0)
    hidden, weight = (torch.randn(n, 8, generator=random).bfloat16() for n in (4000, 64))
    tokens = torch.randint(0, 64, (4000,), generator=random)
    weight.requires_grad_()
    logp, entropy = head._token_logprobs(hidden, weight, None, tokens, 0.6, 8)
    assert logp.dtype == entropy.dtype == torch.float32
    logits = (hidden @ weight.T).float() / 0.6
    torch.testing.assert_close(logp, logits.log_softmax(-1)[range(4000), tokens], rtol=1e-5, atol=1e-5)
    monkeypatch.setattr(head, "_BLOCK", 10)
    (found,) = torch.autograd.grad(logp.sum(), weight)
    logits = logits.detach()
    upstream = (torch.nn.functional.one_hot(tokens, 64) - logits.softmax(-1)) / 0.6
    exact = upstream.T.double() @ hidden.double()
    # One rounding to bfloat16, 2⁻⁹ at most, beside that of each chunk's product; not one of every sum.
    assert float((found.double() - exact).norm().detach() / exact.norm()) < 4e-3


def test_no_tensor_is_as_large_as_tokens_times_vocabulary() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    largest = 0

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            nonlocal largest
            out = function(*args, **(kwargs or {}))
            for value in out if isinstance(out, tuple | list) else [out]:
                if isinstance(value, torch.Tensor):
                    largest = max(largest, value.numel())
            return out

    hidden, weight = torch.randn(512, 4, requires_grad=True), torch.randn(300, 4, requires_grad=True)
    with Watch():
        logp, entropy = head._token_logprobs(
            hidden, weight, None, torch.zeros(512, dtype=torch.long), 1.0, 16
        )
        (logp + entropy).sum().backward()
    assert largest == 16 * 300


def half(rows: int = 40, inputs: int = 48, words: int = 90) -> tuple[torch.Tensor, ...]:
    """Hidden states, weight and bias in bfloat16, and tokens."""
    random = torch.Generator().manual_seed(3)
    hidden, weight, bias = (
        torch.randn(*n, generator=random) for n in ((rows, inputs), (words, inputs), (words,))
    )
    tokens = torch.randint(0, words, (rows,), generator=random)
    return hidden.bfloat16(), (weight * 0.4).bfloat16(), bias.bfloat16(), tokens


def test_a_float32_head_on_a_gpu_multiplies_bfloat16_into_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not as float32, which takes several times as long; neither forwards nor backwards."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils._python_dispatch import TorchDispatchMode

    low, full = torch.bfloat16, torch.float32
    products: list[tuple[torch.dtype, ...]] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            out = function(*args, **(kwargs or {}))
            if "mm" in str(function):
                products.append((*(x.dtype for x in args if isinstance(x, torch.Tensor)), out.dtype))
            return out

    def run() -> list[torch.dtype]:
        """Return the types of the gradients of hidden states and weight."""
        products.clear()
        with FakeTensorMode(), Watch():
            linear = torch.nn.Linear(48, 90, bias=False, dtype=low)
            hidden = torch.empty(40, 48, dtype=low, requires_grad=True)
            tokens = torch.empty(40, dtype=torch.long)
            logp, entropy = head.chunked(linear, float32=True)(hidden, tokens, 0.6)
            grads = torch.autograd.grad((logp + entropy).sum(), [hidden, *linear.parameters()])
        assert logp.dtype == full
        return [grad.dtype for grad in grads]

    with FakeTensorMode():  # torch cannot compute on a device that does not exist
        assert head._multiplies(torch.empty(1, device="cuda", dtype=low))
        assert not head._multiplies(torch.empty(1, device="cuda"))
        assert not head._multiplies(torch.empty(1, dtype=low))
    assert run() == [low] * 2
    assert products == [(full, full, full)] * 4
    monkeypatch.setattr(head, "_multiplies", lambda _: True)
    assert run() == [low] * 2
    # Logits forwards and backwards, the gradient of hidden states (as they are), and that of W.
    assert products == [(low, low, full)] * 2 + [(low, low, low), (low, low, full)]


def test_bfloat16_operands_with_a_float32_result_are_float32_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their products are exact in float32, so only the order of summation differs."""
    hidden, weight, bias, tokens = half()
    products = hidden.float()[:, None] * weight.float()
    assert torch.equal(products.double(), hidden.double()[:, None] * weight.double())

    def product(a: torch.Tensor, b: torch.Tensor, kind: torch.dtype) -> torch.Tensor:
        """What a GPU does: other orders of the same sums."""
        wide = a.to(kind).flip(1) @ b.to(kind).flip(0)
        return wide if a.dtype != torch.bfloat16 or kind != torch.bfloat16 else wide.bfloat16()

    monkeypatch.setattr(head, "_product", product)
    parts = [x.requires_grad_() for x in (hidden, weight, bias)]
    exact = [x.detach().double().requires_grad_() for x in parts]
    found = head._token_logprobs(*parts, tokens, 0.6, 7, torch.float32)
    policy = torch.distributions.Categorical(logits=torch.nn.functional.linear(*exact) / 0.6)
    expected = torch.stack([policy.log_prob(tokens), policy.entropy()])
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
    rounded = head._token_logprobs(*parts, tokens, 0.6, 7)
    assert (rounded - expected).abs().max() > 1e-2  # logits in bfloat16
    upstream = torch.linspace(-1, 1, 2 * len(tokens)).reshape(2, -1)
    ours = torch.autograd.grad((found * upstream).sum(), parts)
    theirs = torch.autograd.grad((expected * upstream).sum(), exact)
    for grad, right in zip(ours, theirs, strict=True):  # in bfloat16, as are the operands of its products
        assert grad.dtype == torch.bfloat16
        assert float((grad.double() - right).norm() / right.norm()) < 4e-3
