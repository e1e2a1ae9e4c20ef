"""What the simulators have in common: how a batch becomes an update, and the interface of a model.

`tabular`, `arms` and `interference` are modules with the same five names:

- ``Parameters``, a frozen dataclass of the model's constants; among them ``lr_easy, lr_hard, kl_easy,
  kl_hard``, the η and β of a recipe that names none;
- ``PRESETS``, a dict of them by name, the default first;
- ``BOUNDS``, the least and the largest value of each constant that is not in [0, ∞);
- ``SIZES``, the default numbers of training and of validation problems (D, V);
- ``create(parameters, difficulty, seed, n_train, n_validation)``, which draws the problems from the
  seed and returns a `Model` before its first step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

import numba
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Advantage = Literal["none", "leave_one_out", "centred", "group_std", "batch_std"]
ADVANTAGES: tuple[Advantage, ...] = get_args(Advantage)  # the kernels' code is the place in this list
_NONE, _LEAVE_ONE_OUT, _CENTRED, _GROUP_STD, _BATCH_STD = range(5)


@dataclass(frozen=True)
class Update:
    """How a batch of B_p groups becomes an update: the recipe as the kernels take it.

    Attributes
    ----------
    rollouts_per_problem
        n, rollouts generated for each problem; the advantage's baseline and scale come from all of them.
    step_size
        lr(B), the recipe's η scaled to the batch.
    kl, entropy
        weights of the KL to the initial policy, a penalty, and of the policy's entropy, a bonus.
    advantage
        one of `ADVANTAGES`, see `advantages`.
    gradient_rollouts
        n_train ≤ n, how many of a group's rollouts enter the gradient, chosen blindly; None: all n.
    zero_variance_filter
        leave out groups that are all right or all wrong: the update is then the mean over the other
        groups (the whole of it, KL and entropy terms included), and nothing if there are none.
    staleness
        k: a batch is trained on k steps after it was sampled. Rollouts wait in a queue, which the
        first k steps only fill. KL and entropy are those of the policy that is updated.
    """

    rollouts_per_problem: int
    step_size: float
    kl: float = 0.0
    entropy: float = 0.0
    advantage: Advantage = "group_std"
    gradient_rollouts: int | None = None
    zero_variance_filter: bool = False
    staleness: int = 0

    @property
    def advantage_code(self) -> int:
        """The advantage as a kernel knows it."""
        return ADVANTAGES.index(self.advantage)

    @property
    def trained(self) -> int:
        """n_train, with its default n."""
        return self.gradient_rollouts or self.rollouts_per_problem


class Model(Protocol):
    """A simulated policy, its problems, and all that changes while it is trained."""

    def advance(self, batches: NDArray[np.int64], update: Update, rng: np.random.Generator) -> None:
        """Make one step per row of ``batches`` (steps, B_p), indices of training problems, repeats allowed.

        The same steps asked for in pieces give the same state to the last bit.
        """
        ...

    def success(self, train: bool = False) -> Floats:
        """Return p_i of the validation problems, shape (V,), or of the training problems, shape (D,).

        Not finite where the simulation diverged.
        """
        ...

    def drift(self) -> float:
        """Return the squared distance of the policy's parameters from where they started."""
        ...

    def arrays(self) -> dict[str, NDArray[np.float64] | NDArray[np.int64]]:
        """Return copies of all that changes, by name; problems and parameters are not in it."""
        ...

    def restore(self, arrays: Mapping[str, NDArray[np.float64] | NDArray[np.int64]]) -> None:
        """Continue from what `arrays` returned; raise KeyError or ValueError where it does not fit."""
        ...


@numba.njit(cache=True, inline="always")
def advantages(code, right, n, batch_std):  # type: ignore[no-untyped-def]
    """Return the advantages of a right and of a wrong rollout in a group with ``right`` right of n.

    With rewards r ∈ {0, 1}, p̂ = right / n and population standard deviations (divisor n)::

        none           A = r
        leave_one_out  A = r − mean of the other n − 1 = (r − p̂) n / (n − 1)
        centred        A = r − p̂                              Dr. GRPO (arXiv 2503.20783)
        group_std      A = (r − p̂) / √(p̂ (1 − p̂))             GRPO (arXiv 2402.03300); 0 in a group of equals
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
def exchange(queue, made, batch):  # type: ignore[no-untyped-def]
    """Put a batch of rollouts into the queue and take out the one of k steps ago, in place.

    Parameters
    ----------
    queue
        int64, shape (k, B_p, …); with k = 0 the batch is taken at once.
    made
        steps made before this one.
    batch
        int64, shape (B_p, …): what was sampled; afterwards what is to be trained on.

    Returns whether there is something to train on: not in the first k steps.
    """
    if queue.shape[0] == 0:
        return True
    slot = made % queue.shape[0]
    for j in range(batch.shape[0]):
        for c in range(batch.shape[1]):
            queue[slot, j, c], batch[j, c] = batch[j, c], queue[slot, j, c]
    return made >= queue.shape[0]
