"""The table of conventions in docs/real.md: how far the updates of other trainers are from isolaw's."""

from pathlib import Path

import torch

from isolaw.backends.real.algorithms.advantages import advantages
from isolaw.backends.real.algorithms.objective import kl_estimate, row_weights

PAGE = Path(__file__).parents[4] / "docs" / "real.md"


def batch(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return rewards and lengths of 256 groups; pass rates are uniform, and lengths log-normal."""
    torch.manual_seed(0)
    rates = torch.rand(256, 1, dtype=torch.float64).expand(256, n)
    lengths = (400 * torch.randn(256, n, dtype=torch.float64).mul(0.5).exp()).long().clamp(1, 2048)
    return torch.bernoulli(rates), lengths


def update(
    n: int = 8, aggregation: str = "sequence", epsilon: float = 0.0, parts: int = 1, less: int = 0
) -> torch.Tensor:
    """Return the factor of each token's ∇ log π on-policy, by rollout and as often as its length asks.

    The group's deviation divides by n - ``less``.
    """
    rewards, lengths = batch(n)
    deviation = rewards.std(1, correction=0, keepdim=True)
    a = advantages(rewards, "group_std") * ((n - less) / n) ** 0.5
    a = a * deviation / (deviation + epsilon) if epsilon else a
    pieces = []
    for rows in torch.arange(256).chunk(parts):
        own = lengths[rows]
        w = row_weights(own, torch.ones_like(own, dtype=torch.bool), aggregation, 2048) / parts
        pieces.append(w * own.sqrt() * a[rows])
    return torch.cat(pieces).flatten()


def differs(one: torch.Tensor, other: torch.Tensor, *, direction: bool = False) -> float:
    """Return the relative difference of two updates in percent; with ``direction``, after scaling."""
    if direction:
        one = one * (one @ other) / (one @ one)
    return float(100 * (one - other).norm() / other.norm())


def test_the_differences_on_the_page_are_the_measured_ones() -> None:
    rewards, _ = batch(8)
    kept = (rewards.amax(1) > rewards.amin(1)).double().mean()
    u = torch.linspace(0, 5, 5001, dtype=torch.float64)
    beyond = u[kl_estimate(torch.zeros_like(u), u) > 10][0]
    measured = {
        "n - 1 at n = 2": differs(update(2, less=1), update(2)),
        "n - 1 at n = 8": differs(update(8, less=1), update(8)),
        "ε": differs(update(epsilon=1e-4), update()),
        "token": differs(update(aggregation="token"), update(), direction=True),
        "micro-batch": differs(update(aggregation="token", parts=32), update(aggregation="token")),
        "fixed": differs(update(aggregation="fixed_length"), update(), direction=True),
        "filter": float(100 * (1 - kept)),
        "warm-up": 100 * (1 - 45 / 55),
        "clamp": float(beyond),
    }
    assert {name: float(f"{value:.2g}") for name, value in measured.items()} == {
        "n - 1 at n = 2": 29, "n - 1 at n = 8": 6.5, "ε": 0.024, "token": 47, "micro-batch": 6.3, "fixed": 47,
        "filter": 22, "warm-up": 18, "clamp": 2.6,
    }  # fmt: skip
    page = PAGE.read_text()
    for shown in (
        "29 % at n = 2, 6.5 % at 8",
        "0.02 %",
        "(47 %)",
        "6.3 %",
        "22 % of",
        "18 % less",
        "u = 2.6",
    ):
        assert shown in page
