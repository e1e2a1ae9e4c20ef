"""Sample one group of rollouts of a softmax policy over K answers (arms), and compute its logit gradient.

The first ``correct`` arms are right (reward 1), and the other arms are wrong (reward 0). n answers are drawn
from the policy π, and n' ≤ n of them enter the gradient. x_a of these n' answers are arm a, with advantage
A_a (`model.advantages`). With the initial policy π0, the weight β of the KL penalty and the weight γ of the
entropy bonus, the policy gradient in logit a is::

    (1/n') (x_a A_a − π_a Σ_b x_b A_b) − β π_a (log π_a/π0_a − KL) − γ π_a (log π_a + H)

where KL = Σ_a π_a log π_a/π0_a and H = −Σ_a π_a log π_a. The last two terms are exact, not sampled.
"""

from __future__ import annotations

import numba
import numpy as np

from isolaw.simulators.draws import successes
from isolaw.simulators.model import advantages


@numba.njit(cache=True, nogil=True)
def softmax(logits, log_pi):  # type: ignore[no-untyped-def]
    """Write log softmax(``logits``) into ``log_pi``."""
    largest = logits.max()
    total = 0.0
    for a in range(logits.size):
        total += np.exp(logits[a] - largest)
    log_total = largest + np.log(total)
    for a in range(logits.size):
        log_pi[a] = logits[a] - log_total


@numba.njit(cache=True, nogil=True)
def sample(rng, log_pi, correct, n, trained, counts):  # type: ignore[no-untyped-def]
    """Draw n answers, and return how many are right; ``counts`` receives x_a of the first ``trained``."""
    arms = log_pi.size
    right = 0
    remaining, remaining_share = trained, 1.0
    for a in range(arms):
        probability = np.exp(log_pi[a])
        is_last = a == arms - 1 or probability >= remaining_share
        counts[a] = remaining if is_last else successes(rng, remaining, probability / remaining_share)
        remaining -= counts[a]
        remaining_share -= probability
        if a < correct:
            right += counts[a]
    if trained < n:
        p = 0.0
        for a in range(correct):
            p += np.exp(log_pi[a])
        right += successes(rng, n - trained, min(p, 1.0))
    return right


@numba.njit(cache=True, nogil=True)
def gradient(  # type: ignore[no-untyped-def]
    log_pi, log_pi0, correct, counts, right, n, code, batch_std, kl, entropy, slope
):
    """Write the gradient in the logits into ``slope``, an array of shape (K,)."""
    arms = log_pi.size
    advantage_right, advantage_wrong = advantages(code, right, n, batch_std)
    trained, total = 0, 0.0
    divergence, policy_entropy = 0.0, 0.0
    for a in range(arms):
        trained += counts[a]
        slope[a] = counts[a] * (advantage_right if a < correct else advantage_wrong)
        total += slope[a]
        if kl > 0.0 or entropy > 0.0:
            probability = np.exp(log_pi[a])
            divergence += probability * (log_pi[a] - log_pi0[a])
            policy_entropy -= probability * log_pi[a]
    for a in range(arms):
        probability = np.exp(log_pi[a])
        slope[a] = (slope[a] - probability * total) / trained
        if kl > 0.0:
            slope[a] -= kl * probability * (log_pi[a] - log_pi0[a] - divergence)
        if entropy > 0.0:
            slope[a] -= entropy * probability * (log_pi[a] + policy_entropy)


def start(p, arms: int, correct: int):  # type: ignore[no-untyped-def]
    """Return log π0 of policies with success probability p, uniform over right and over wrong answers.

    For p of shape (…), the result has shape (…, K).

    >>> np.exp(start(np.array([0.6]), arms=4, correct=2)).round(2).tolist()
    [[0.3, 0.3, 0.2, 0.2]]
    """
    p = np.asarray(p, dtype=np.float64)[..., None]
    is_right = np.arange(arms) < correct
    return np.where(is_right, np.log(p / correct), np.log((1 - p) / (arms - correct)))
