"""Define the interface of a simulated model, and the parts of an update that all models share.

The modules `tabular` and `interference` define the same names:

- ``PRESETS``: the model's constants for each preset, as a frozen dataclass. The first preset is the default.
  The fields ``lr_easy, lr_hard, kl_easy, kl_hard`` are the η and β of a recipe that sets none;
- ``BOUNDS``: the smallest and the largest value of each constant whose range is not [0, ∞);
- ``SIZES``: the default numbers of training and validation problems (D, V);
- ``create(parameters, difficulty, seed, n_train, n_validation)``: a function that draws the problems from the
  seed and returns a `Model` before its first step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import numba
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Advantage = Literal["none", "leave_one_out", "centred", "group_std", "batch_std"]
ADVANTAGES: tuple[Advantage, ...] = get_args(Advantage)  # kernels use the position in this tuple as a code
_EMA = 0.98
_NONE, _LEAVE_ONE_OUT, _CENTRED, _GROUP_STD, _BATCH_STD = range(5)


@dataclass(frozen=True)
class Update:
    """The recipe that turns a batch of B_p groups into an update, in the form that the kernels accept.

    The baseline and the scale of the advantage come from all n rollouts of a group. With the zero-variance
    filter, the update (including its KL and entropy terms) is the mean over the groups that are neither all
    right nor all wrong. If there is no such group, the update is zero. With staleness k, rollouts wait in a
    queue, which the first k steps only fill. KL and entropy always refer to the updated policy.
    """

    rollouts_per_problem: int  # n, generated for each problem
    step_size: float  # lr(B), the recipe's η scaled to the batch
    kl: float = 0.0  # weight of the penalty on the KL divergence from the initial policy
    entropy: float = 0.0  # weight of the bonus for the policy's entropy
    advantage: Advantage = "group_std"
    gradient_rollouts: int | None = None  # n_train ≤ n random rollouts in the gradient; None for all n
    zero_variance_filter: bool = False
    staleness: int = 0  # k: the model trains on a batch k steps after sampling it

    @property
    def trained(self) -> int:
        """The number of rollouts per group in the gradient, n_train, which is n by default."""
        return self.gradient_rollouts or self.rollouts_per_problem

    @property
    def for_kernel(self) -> tuple[Any, ...]:
        """The arguments ``n, trained, step_size, code, kl, entropy, filtered`` of every kernel."""
        n, code = self.rollouts_per_problem, ADVANTAGES.index(self.advantage)
        return n, self.trained, self.step_size, code, self.kl, self.entropy, self.zero_variance_filter


class Model(ABC):
    """A simulated policy, its problems, and the state that training changes.

    ``made`` (1,) is the number of steps so far, and ``queue`` (k, B_p, …) contains the waiting rollouts.
    """

    state: ClassVar[tuple[str, ...]]  # arrays that training changes, other than ``made`` and ``queue``

    def __init__(self, *row: int) -> None:
        self.made = np.zeros(1, dtype=np.int64)
        self.queue = np.zeros((0, *row), dtype=np.int64)

    @abstractmethod
    def advance(self, batches: Integers, update: Update, rng: np.random.Generator) -> None:
        """Make one update step for each row of ``batches`` (steps, B_p), which indexes training problems.

        The final state is identical to the last bit if the same steps are split over several calls.
        """

    @abstractmethod
    def success(self, train: bool = False) -> Floats:
        """Return p_i of the V validation problems, or of the D training problems if ``train``.

        Values are not finite if the simulation diverged.
        """

    @abstractmethod
    def drift(self) -> float:
        """Return the squared distance of the policy's parameters from their initial values."""

    def arrays(self) -> dict[str, Floats | Integers]:
        """Return copies of the state's arrays by name."""
        return {name: getattr(self, name).copy() for name in (*self.state, "made", "queue")}

    def restore(self, arrays: Mapping[str, Floats | Integers]) -> None:
        """Set the state to the output of `arrays`; raise KeyError or ValueError if it does not fit."""
        for name in (*self.state, "made"):
            getattr(self, name)[:] = arrays[name]
        self.queue = np.array(arrays["queue"], dtype=np.int64)

    def queue_of(self, update: Update, *row: int) -> Integers:
        """Return the queue for `exchange`: k batches of shape ``row``, or none without staleness."""
        if not update.staleness:
            return np.zeros((0, *row), dtype=np.int64)
        if self.queue.shape != (update.staleness, *row):
            self.queue = np.zeros((update.staleness, *row), dtype=np.int64)
        return self.queue


@numba.njit(cache=True, inline="always")
def advantages(code, right, n, batch_std):  # type: ignore[no-untyped-def]
    """Return the advantages of a right and of a wrong rollout in a group with ``right`` of n rollouts right.

    With rewards r ∈ {0, 1}, p̂ = right / n and population standard deviations (divisor n)::

        none           A = r
        leave_one_out  A = r − mean of the other n − 1 = (r − p̂) n / (n − 1)
        centred        A = r − p̂                      Dr. GRPO (arXiv 2503.20783)
        group_std      A = (r − p̂) / √(p̂ (1 − p̂))     GRPO (arXiv 2402.03300); 0 in a group of equals
        batch_std      A = (r − p̂) / std of all rewards of the batch; 0 in a batch of equals

    >>> advantages(ADVANTAGES.index("group_std"), 1, 2, 0.0)
    (1.0, -1.0)
    """
    mean = right / n
    if code == _NONE:
        return 1.0, 0.0
    scale = 1.0
    if code == _LEAVE_ONE_OUT:
        scale = n / (n - 1.0)
    elif code == _GROUP_STD:
        scale = 1.0 / np.sqrt(mean * (1.0 - mean)) if 0 < right < n else 0.0
    elif code == _BATCH_STD:
        scale = 1.0 / batch_std if batch_std > 0.0 else 0.0
    return (1.0 - mean) * scale, -mean * scale


@numba.njit(cache=True)
def exchange(queue, steps_made, batch):  # type: ignore[no-untyped-def]
    """Put a batch of rollouts into the queue, and replace it in place with the batch of k steps ago.

    ``queue`` (k, B_p, …) and ``batch`` (B_p, …) are int64. With k = 0, the batch does not change.
    ``steps_made`` is the number of steps before this step. Returns whether ``batch`` now contains rollouts to
    train on, which is false in the first k steps.
    """
    if queue.shape[0] == 0:
        return True
    slot = steps_made % queue.shape[0]
    for j in range(batch.shape[0]):
        for column in range(batch.shape[1]):
            queue[slot, j, column], batch[j, column] = batch[j, column], queue[slot, j, column]
    return steps_made >= queue.shape[0]


@numba.njit(cache=True, nogil=True)
def learning_rate(step_size, q, norm2, moment):  # type: ignore[no-untyped-def]
    """Return the learning rate ℓ = lr · v̂^(−q/2).

    v̂ is the bias-corrected EMA(0.98) of the squared gradients ``norm2``. ``moment`` (2,) contains v and the
    number of updates, and is changed in place.
    """
    moment[1] += 1.0
    moment[0] = _EMA * moment[0] + (1.0 - _EMA) * norm2
    v = moment[0] / (1.0 - _EMA ** moment[1])
    # If no batch has had a signal so far, v is zero, and the gradient gives no direction.
    return step_size * v ** (-0.5 * q) if v > 0.0 else 0.0
