"""Logs of supervised training, which have losses and no metric of RL."""

from __future__ import annotations

import re
from collections.abc import Iterable

_LOSS = re.compile(r"(?:(?:train|eval|val|valid|validation|test)[/_])?(?:loss|nll|perplexity|ppl)", re.I)
# Names that a trainer logs with a loss; a table of samples with losses has none of them.
_TRAINER = re.compile(
    r"(?:(?:train|eval|val)[/_])?(?:lr\b.*|learning_rate|epoch|(?:global_?)?step|grad_?norm"
    r"|num_tokens|mean_token_accuracy|runtime)",
    re.I,
)
# DPO has no rollouts: rewards/chosen and rewards/margins are computed from a data set. token_acc and seq_acc
# are shares of the labels, in ms-swift's supervised training.
_OF_RL = re.compile(
    r"(?:^|[/_.])(?:rewards?(?!s?/(?:chosen|rejected|margins|accuracies))|scores?|advantages?|returns?|kl"
    r"|pass|rollouts?|completions?|response_length|actor|critic|ppo|policy|(?<!token_)(?<!seq_)acc|avg)"
    r"(?:$|[/_.@])",
    re.I,
)


def is_supervised(keys: Iterable[str]) -> bool:
    """Return whether metric keys belong to supervised training.

    >>> is_supervised(["loss", "token_acc", "learning_rate"]), is_supervised(["loss", "epoch", "reward"])
    (True, False)
    """
    keys = list(keys)
    return (
        any(_LOSS.fullmatch(key) for key in keys)
        and any(_TRAINER.fullmatch(key) for key in keys)
        and not any(_OF_RL.search(key) for key in keys)
    )
