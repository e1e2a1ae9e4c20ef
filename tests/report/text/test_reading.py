"""The table of logs."""

from __future__ import annotations

from isolaw.readers.found_logs import FoundLog
from isolaw.report.text.reading import _log_lines as listing
from isolaw.report.text.reading import _ordered_metrics as metrics


def test_rewards_come_first() -> None:
    """Held-out ones, then those of training, then lengths, entropies and spreads."""
    train = ["entropy", "frac_reward_zero_std", "kl", "reward", "reward_std", "rewards/format"]
    own = FoundLog(
        "a",
        metrics={
            "train": dict.fromkeys(train, 1),
            "validation": dict.fromkeys(["best@4", "response_length", "avg@4"], 1),
        },
    )
    assert metrics(own) == [
        ("validation", "avg@4"),
        ("validation", "best@4"),
        ("train", "reward"),
        ("train", "rewards/format"),
        ("validation", "response_length"),
        ("train", "entropy"),
        ("train", "frac_reward_zero_std"),
        ("train", "kl"),
        ("train", "reward_std"),
    ]
    assert "avg@4 on validation, best@4 on validation, 7 more" in listing([own])[1]
