"""Search, in rounds of simulation, for the constants with which the simulator reproduces the measurements.

The first round draws constants from the prior. Each later round draws them from the posterior of an
`Emulator` fitted to the latest simulations, so simulations concentrate where the posterior is high. Where
there are no simulations, the emulator is uncertain and the posterior wide, so later rounds also explore these
regions. emcee (Foreman-Mackey et al. 2013) draws from the posteriors.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from benchmarks.calibration import each
from benchmarks.calibration.emulator import Emulator
from benchmarks.calibration.simulation import Protocol
from benchmarks.calibration.space import BOUND, Space, arguments_of
from isolaw.fits.blas import one_blas_thread
from isolaw.simulators.model import Floats

FIRST, NEXT, ROUNDS = 400, 200, 8
MEMBERS = 100
_WALKERS, _THIN = 128, 20
_STEPS = {False: (150, 200), True: (300, 500)}  # burn-in and kept steps of emcee; True: after the last round
_WALK, _CHOICE = 1, 2  # random streams


@dataclass(frozen=True)
class Round:
    """The points of one round, of shape (J, d), and the rewards simulated there, of shape (J, P)."""

    x: Floats
    rewards: Floats


@dataclass(frozen=True)
class Posterior:
    """Posterior draws, of shape (J, d), with the emulator's δ as a root mean square in reward.

    ``covariance`` is the emulator's.
    """

    draws: Floats
    discrepancy: float
    covariance: Floats

    @property
    def noise(self) -> float:
        """The standard deviation of a reward over repetitions of the runs, as a root mean square."""
        return float(np.sqrt(np.diag(self.covariance).mean()))


def simulated(protocol: Protocol, space: Space, x: Floats, seeds: list[int], jobs: int | None) -> Floats:
    """Simulate the runs at each point of ``x``, each with a seed, and return the rewards.

    ``x`` has shape (J, d), and the rewards have shape (J, P).
    """
    arguments = [arguments_of(space.member(point), seed) for point, seed in zip(x, seeds, strict=True)]
    return np.array(each(protocol.simulate, arguments, jobs))


def search(
    protocol: Protocol, space: Space, measured: Floats, seed: int, jobs: int | None = None
) -> Posterior:
    """Simulate all rounds, and return the posterior given them."""
    rounds: list[Round] = []
    for index in range(ROUNDS):
        rng = np.random.default_rng([seed, index, _CHOICE])
        if index == 0:
            x = np.clip(rng.standard_normal((FIRST, space.size)), -BOUND, BOUND)
        else:
            draws = _posterior(rounds, measured, seed, last=False).draws
            x = draws[rng.choice(len(draws), NEXT, replace=False)]
        before = sum(len(r.x) for r in rounds)
        seeds = [hash_of(seed, before + i) for i in range(len(x))]
        rounds.append(Round(x, simulated(protocol, space, x, seeds, jobs)))
    return _posterior(rounds, measured, seed, last=True)


@one_blas_thread()
def _posterior(rounds: list[Round], measured: Floats, seed: int, last: bool) -> Posterior:
    """Return posterior draws given these rounds. The posterior after the ``last`` round has more draws."""
    import emcee

    x, rewards = np.concatenate([r.x for r in rounds]), np.concatenate([r.rewards for r in rounds])
    emulator = Emulator.fit(x, rewards, measured)
    rng = np.random.default_rng([seed, len(rounds) - 1, _WALK])
    density = emulator.log_posterior(x)
    start = x[rng.choice(np.argsort(-density)[:_WALKERS], _WALKERS)]
    moved = start + 0.05 * rng.standard_normal(start.shape)
    start = np.where(np.isfinite(emulator.log_posterior(moved))[:, None], moved, start)
    moves = [(emcee.moves.DEMove(), 0.8), (emcee.moves.StretchMove(), 0.2)]
    sampler = emcee.EnsembleSampler(_WALKERS, x.shape[1], emulator.log_posterior, moves=moves, vectorize=True)
    sampler.random_state = np.random.RandomState(int(rng.integers(2**31))).get_state()
    burn_in, steps = _STEPS[last]
    sampler.run_mcmc(start, burn_in + steps, skip_initial_state_check=True)
    draws = sampler.get_chain(discard=burn_in, thin=_THIN, flat=True)
    discrepancy = emulator.discrepancy * float(np.sqrt(emulator.measured.size / len(measured)))
    return Posterior(draws, discrepancy, emulator.covariance)


def hash_of(seed: int, index: int) -> int:
    """Return the random seed of a simulation, below 2³² and different for each index."""
    return int(np.random.SeedSequence([seed, index]).generate_state(1)[0])
