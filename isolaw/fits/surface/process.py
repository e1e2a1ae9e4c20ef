"""The surface's prior: a Gaussian process for the reward r over u = log2 n, v = log2 B_p and t = log C.

    r(u, v, t) = m(t − d(u, v)) + δ₀(u, v, t) + g(t) [ δ(u, v, t) + z(u, v, t) + λ χ(u, t) ]

- m is the trend that all allocations share, with a free level and covariance s_m² I(t, t'; ℓ_m). Allocations
  follow the trend with a delay d of κ e-folds of C per doubling of n, and κ_v per doubling of B_p. If reward
  depends only on steps, κ = κ_v = log 2.
- δ is the smooth difference between allocations, with covariance k(h_u / ℓ_u) k(h_v / ℓ_v) (a² + s² I(t, t';
  ℓ)). k is the Matérn function of order 5/2, and h_u = u − u' − ρ (t − t'); h_v is defined likewise. A
  pattern over n recurs at another C, shifted by ρ doublings of n per e-fold of C. Without ρ, a rise of n*
  would stop where the runs end.
- δ₀ is the difference that exists from the first step, with covariance b² k(h_u / ℓ_u) k(h_v / ℓ_v).
- z is rough, with covariance c² e^(−|u − u'| / 2 − |v − v'| / 2 − |t − t'| / 10). This part allows for kinks
  in mostly smooth differences, since no run shows the rewards between neighbouring points of the grid.
- χ is 1 on the low side of one gap between two n, and λ is the height of this step. A cliff in n therefore
  does not require a rough surface elsewhere.
- g(t) is the share of the reward's rise that was learnt by t.
- I(t, t'; ℓ) is the covariance of the integral of an Ornstein–Uhlenbeck process of length ℓ that begins at 0.
  Curves therefore continue with their slope, with growing uncertainty, and do not revert to a mean. Past the
  last checkpoint of any run, the slopes of δ have an additional variance of (s / 2)².

The mean of runs (`isolaw.fits.surface.observations`) has three more terms. The effect of each seed is shared
by all allocations; half of its variance is constant, and half persists for some e-folds. Its size is drawn,
since few seeds determine it poorly. The runs' own effects are a constant o0 and a drift o1, both ∝ n^−γ.
Checkpoints have noise ε. Rewards are centred and divided by their standard deviation.

The posterior of the hyperparameters θ combines the marginal likelihood of the observations and of the runs'
residuals with weak priors (`PRIORS`). The priors are part of the model. They were chosen on the true rewards
of one half of ``benchmarks/designs`` and evaluated on the other half.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from scipy.linalg import solve_triangular
from scipy.linalg.blas import dsymv
from scipy.linalg.lapack import dpotrf, dpotri
from scipy.special import polygamma

from isolaw.fits.selection import Floats, varies_in_batch
from isolaw.fits.surface.covariance import Covariance, Pairs, Points, Theta, matern
from isolaw.fits.surface.observations import Observations

# Centre and standard deviation of each hyperparameter's logarithm, or of its value if it is in SIGNED. Times
# are in e-folds of C, lengths in doublings.
PRIORS = {
    "step": (0.02, 2.0),
    "rho": (0.0, 0.7),
    "rho_b": (0.0, 0.7),
    "delay": (0.0, 0.3),
    "delay_b": (0.0, 0.3),
    "s_m": (0.3, 1.0),
    "l_m": (3.0, 0.5),
    "base": (0.02, 1.5),
    "a": (0.05, 1.5),
    "s": (0.15, 0.7),
    "l": (5.0, 0.5),
    "l_u": (3.0, 0.6),
    "l_v": (3.0, 0.6),
    "rough": (0.008, 1.5),
    "o0": (0.03, 1.5),
    "o1": (0.03, 1.5),
    "noise": (0.05, 1.5),
    "gamma": (0.0, 0.2),
    "seed": (1.0, 1.0),  # the standard deviation depends on the number of seeds
}
SIGNED = ("rho", "rho_b", "delay", "delay_b", "gamma")
_DRIFT, _SEED = 2.0, 4.0  # e-folds over which a run's drift and a seed's effect persist
_JITTER = 1e-8


def _of_a_variance(freedom: int) -> float:
    """Return the standard error of the log of a standard deviation with ``freedom`` degrees of freedom.

    >>> round(_of_a_variance(1), 2), round(_of_a_variance(4), 2)
    (1.11, 0.4)
    """
    return float(np.sqrt(polygamma(1, max(freedom, 1) / 2)) / 2)


class Process:
    """The Gaussian process given observations.

    ``names`` lists the hyperparameters that these observations involve, in the order of θ. ``gap`` contains
    the two neighbouring log2 n with the largest difference of rewards, ``height · scale``; only they can have
    a step between them.
    """

    def __init__(self, observations: Observations) -> None:
        self.observations = o = observations
        plane = varies_in_batch(o.log2_n, o.log2_b)
        absent = set() if plane else {"l_v", "rho_b", "delay_b"}
        if o.run_place.size == len(o.places) and np.unique(o.run_seed).size < 2:
            absent.add("gamma")  # one run per configuration: the data show no variation between runs
        if o.seed_variance == 0:
            absent.add("seed")
        priors = PRIORS | {"seed": (1.0, _of_a_variance(np.unique(o.run_seed).size - 1))}
        self.names = [name for name in PRIORS if name not in absent]
        self.prior = np.array(
            [(c if n in SIGNED else np.log(c), sd) for n, (c, sd) in priors.items() if n in self.names]
        )
        self.centre, self.scale = float(o.reward.mean()), max(float(o.reward.std()), 1e-12)
        self.y = (o.reward - self.centre) / self.scale
        self.start, self.end = float(o.t.min()), float(o.t.max())
        u, v = ((float(x.min()) + float(x.max())) / 2 for x in o.places.T)
        self.covariance = Covariance(self.start, (u, v), plane)
        self.gap, self.height = self._gap()

    def named(self, theta: Floats) -> dict[str, float]:
        """Return the hyperparameters by name, on their natural scales.

        Hyperparameters that are not in ``names`` get values that have no effect.
        """
        out = dict.fromkeys(PRIORS, 0.0) | {"l_v": 1.0}
        for name, value in zip(self.names, theta, strict=True):
            out[name] = float(value if name in SIGNED else np.exp(value))
        return out

    def learnt(self, t: Floats, share: float) -> Floats:
        """Return g(t). Past the last checkpoint, g rises by a ``share`` of its extrapolated rise."""
        at, value = self.observations.learnt
        until = np.interp(np.minimum(t, self.end), at, value)
        return np.asarray(until + share * (np.interp(t, at, value) - until))

    def _gap(self) -> tuple[tuple[float, float], float]:
        o = self.observations
        above = (o.reward - np.interp(o.t, o.learnt[0, : o.trend.size], o.trend)) / self.scale
        late = o.t >= np.median(o.t)
        levels = np.unique(o.log2_n[late])
        mean = np.array([above[late & (o.log2_n == u)].mean() for u in levels])
        if levels.size < 2:
            return (float(levels[0]), float(levels[0])), 0.0
        at = int(np.abs(np.diff(mean)).argmax())
        return (float(levels[at]), float(levels[at + 1])), float(np.abs(np.diff(mean))[at])

    @cached_property
    def points(self) -> Points:
        """The points (n, B_p, C) at which the rewards were observed."""
        o = self.observations
        none = np.zeros(o.t.size)
        return Points(o.log2_n, o.log2_b, o.t, o.t, self.learnt(o.t, 1.0), none, o.log2_n <= self.gap[0])

    @cached_property
    def _pairs(self) -> Pairs:
        return Pairs(self.points)

    @cached_property
    def _fixed(self) -> dict[str, Floats]:
        """Return the parts of the pairs' covariance that do not depend on θ.

        A run's weight depends only on its n, so the noise of runs is a sum over n. ``own`` (effects of runs)
        and ``looks`` (noise of checkpoints) have a row for each n. ``levels`` contains log2 n minus its mean
        over runs.
        """
        o, pairs = self.observations, self._pairs
        apart = np.abs(pairs.difference(pairs.a.t, pairs.a.t))
        slowly = (1 + matern(apart / _SEED)[0]) / 2  # half of the seed effect's variance is constant
        i, j = pairs.lower
        shared = o.combined @ np.eye(o.run_seed.max() + 1)[o.run_seed]
        same = o.bin[i] == o.bin[j]
        looks = o.combined / np.maximum(o.counts[:, o.bin].T, 1.0)
        u = o.places[o.run_place, 0]
        levels = np.unique(u)
        return {
            "seeds": o.seed_variance / self.scale**2 * slowly * (shared @ shared.T)[i, j],
            "drift": np.exp(-apart / _DRIFT),
            "levels": levels - u.mean(),
            "own": np.array([(o.combined[:, u == x] @ o.combined[:, u == x].T)[i, j] for x in levels]),
            "looks": np.array([same * (looks[:, u == x] @ o.combined[:, u == x].T)[i, j] for x in levels]),
        }

    def noise(self, p: Theta) -> Floats:
        """Return the covariance (O, O) of all noise: the effects of seeds, runs and checkpoints."""
        _, of_run, looks, lasting = self._of_runs(p)
        out = of_run * lasting + looks * p["noise"] ** 2
        return self._pairs.matrix(out + p["seed"] ** 2 * self._fixed["seeds"])

    def _of_runs(self, p: Theta) -> tuple[Floats, Floats, Floats, Floats]:
        """Return each n's weight, the pairs' weights of runs and of checkpoints, and the runs' covariance."""
        f = self._fixed
        weight = np.exp2(-2 * p["gamma"] * f["levels"])
        lasting = p["o0"] ** 2 + p["o1"] ** 2 * f["drift"]
        return weight, weight @ f["own"], weight @ f["looks"], lasting

    def _observed(self, p: Theta, slopes: dict[str, Floats] | None = None) -> Floats:
        """Return the covariance of each pair of observations, without the jitter that `observed` adds.

        The derivatives with respect to θ are added to ``slopes``.
        """
        f = self._fixed
        weight, of_run, looks, lasting = self._of_runs(p)
        out = self.covariance(p, self._pairs, slopes)
        out += p["seed"] ** 2 * f["seeds"] + of_run * lasting + p["noise"] ** 2 * looks
        if slopes is not None:
            slopes |= {
                "o0": 2 * p["o0"] ** 2 * of_run,
                "o1": 2 * p["o1"] ** 2 * of_run * f["drift"],
                "noise": 2 * p["noise"] ** 2 * looks,
                "seed": 2 * p["seed"] ** 2 * f["seeds"],
            }
            if "gamma" in self.names:
                weight *= -2 * np.log(2) * f["levels"]
                slopes["gamma"] = (weight @ f["own"]) * lasting + p["noise"] ** 2 * (weight @ f["looks"])
        return out

    def observed(self, p: Theta) -> Floats:
        """Return the covariance of the observations, of shape (O, O)."""
        return self._pairs.matrix(self._observed(p)) + _JITTER * np.eye(self.y.size)

    def loss(self, theta: Floats) -> float:
        """Return the negative log posterior of the hyperparameters θ (P,), up to a constant."""
        p = self.named(theta)
        try:
            root = np.linalg.cholesky(self.observed(p))
        except np.linalg.LinAlgError:
            return 1e10
        z = solve_triangular(root, self.y, lower=True)
        away = (theta - self.prior[:, 0]) / self.prior[:, 1]
        out = 0.5 * z @ z + np.log(np.diag(root)).sum() + 0.5 * away @ away
        return float(out + self._residuals(p)[0])

    def loss_and_slope(self, theta: Floats) -> tuple[float, Floats]:
        """Return the negative log posterior of θ, equal to `loss`, and its gradient (P,)."""
        p = self.named(theta)
        change: dict[str, Floats] = {}
        i, j = self._pairs.lower
        covariance = np.empty((self.y.size,) * 2, order="F")
        covariance[i, j] = self._observed(p, change)
        covariance[np.diag_indices_from(covariance)] += _JITTER
        root, failed = dpotrf(covariance, lower=True, clean=False, overwrite_a=True)
        if failed:
            return 1e10, np.zeros_like(theta)
        log_det = np.log(np.diag(root)).sum()
        inverse = dpotri(root, lower=True, overwrite_c=True)[0]
        alpha = dsymv(1.0, inverse, self.y, lower=True)
        away = (theta - self.prior[:, 0]) / self.prior[:, 1]
        value, of_residuals = self._residuals(p)
        value += 0.5 * self.y @ alpha + log_det + 0.5 * away @ away
        # ½ tr[(K⁻¹ − α αᵀ) dK]; each off-diagonal pair stands for two entries.
        inward = (inverse[i, j] - alpha[i] * alpha[j]) * np.where(i == j, 0.5, 1.0)
        slope = [inward @ change[n] + of_residuals.get(n, 0.0) for n in self.names]
        return float(value), np.array(slope) + away / self.prior[:, 1]

    @cached_property
    def _patterns(self) -> list[tuple[Floats, Floats, Floats, Floats]]:
        """The runs' residuals, grouped by runs with equal numbers of checkpoints in each bin.

        Each group is a tuple: t (k,), numbers of checkpoints (k,), residuals (r, k) and centred u (r,).
        """
        o = self.observations
        if not o.freedom:
            return []
        known = ~np.isnan(o.residuals)
        alike: dict[bytes, list[int]] = {}
        for run, counts in enumerate(np.where(known, o.counts, 0.0)):
            alike.setdefault(counts.tobytes(), []).append(run)
        u = o.places[o.run_place, 0] - o.places[o.run_place, 0].mean()
        out = []
        for runs in alike.values():
            bins = np.flatnonzero(known[runs[0]])
            centre = np.array([o.t[o.bin == k].mean() for k in bins])
            out.append((centre, o.counts[runs[0], bins], o.residuals[runs][:, bins] / self.scale, u[runs]))
        return out

    def _residuals(self, p: Theta) -> tuple[float, dict[str, float]]:
        """Return the negative log likelihood of the runs' residuals and its derivatives.

        Residuals have fewer degrees of freedom than entries, which makes them smaller than the runs' own
        effects. Each residual therefore counts as ``freedom`` observations.
        """
        nu = self.observations.freedom
        value, slope = 0.0, dict.fromkeys(("o0", "o1", "noise", "gamma"), 0.0)
        for t, looks, left, u in self._patterns:
            drift = np.exp(-np.abs(t[:, None] - t) / _DRIFT)
            covariance = p["o0"] ** 2 + p["o1"] ** 2 * drift + np.diag(p["noise"] ** 2 / looks)
            covariance[np.diag_indices_from(covariance)] += _JITTER
            inverse = np.linalg.inv(covariance)
            log_weight = -2 * p["gamma"] * np.log(2) * u
            whitened = left * np.exp(-log_weight / 2)[:, None]
            square = np.einsum("rk,kl,rl->r", whitened, inverse, whitened)
            runs = len(left)
            log_det = runs * np.linalg.slogdet(covariance)[1] + t.size * log_weight.sum()
            value += 0.5 * float(nu * log_det + square.sum())
            inward = nu * runs * inverse - inverse @ (whitened.T @ whitened) @ inverse
            slope["o0"] += float(p["o0"] ** 2 * inward.sum())
            slope["o1"] += float(p["o1"] ** 2 * np.vdot(inward, drift))
            slope["noise"] += float(p["noise"] ** 2 * np.sum(np.diag(inward) / looks))
            slope["gamma"] += float(np.sum((nu * t.size - square) * -np.log(2) * u))
        return value, slope
