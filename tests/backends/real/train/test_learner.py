"""The check that sampler and trainer agree, and what it says of a policy that has become unstable."""

from types import SimpleNamespace

import pytest
import torch

from isolaw.backends.real.train import learner
from isolaw.errors import RunError


def checked(*gaps: float, tolerance: float = 0.1) -> SimpleNamespace:
    """Check the mismatch of step 0, 1, …"""
    own = SimpleNamespace(
        options=SimpleNamespace(logprob_tolerance=tolerance),
        notes=[],
        _mismatch=None,
        _agreements=0,
        _is_noted=False,
    )
    for step, gap in enumerate(gaps):
        sums = {"tokens": torch.tensor(10.0), "mismatch": torch.tensor(10 * gap)}
        learner.Learner._check_mismatch(own, sums, step, 1.0)
    return own


def test_weights_that_do_not_arrive_show_in_the_first_updates() -> None:
    """Below the tolerance of bfloat16 too: the limit is a multiple of what the files' weights show."""
    assert not checked(0.01, *[0.02] * 20).notes
    with pytest.raises(RunError, match=r"step 2: .* more than 0.03 .* it was 0.01 before the first update"):
        checked(0.01, 0.02, 0.065)
    with pytest.raises(RunError, match="do not reach the sampler, or the policy is unstable"):
        checked(0.01, 0.2)


def test_a_policy_that_becomes_unstable_is_noted_once_and_goes_on() -> None:
    (note,) = checked(0.01, *[0.02] * 10, 0.15, 0.2, 0.05).notes
    assert note.code == "mismatch"
    assert "at step 11, sampler and trainer differ by 0.15" in note.text
    for hopeless in (1.5, float("nan")):
        with pytest.raises(RunError):
            checked(0.01, *[0.02] * 10, hopeless)
