"""The battery: a small set of ordinary sweeps from which isolaw judges all findings of the paper.

One run gives the rewards at all M, and one sweep serves several findings. All sweeps have the same seeds and
are judged at the same budgets C, two per octave from C/128 to C = ``sweep.compute``. For each budget there
are four evaluations, which `measurements.settled` averages.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from isolaw import backends
from isolaw.config import RunSpec, SweepSpec
from isolaw.errors import Issue, SpecError, collecting, nearest
from isolaw.replication.verdicts import Floats
from isolaw.resolve import resolved_run

MODELS = ("interference",)  # models of many problems; a single problem always uses `tabular`
SETS = ("easy", "hard")
FIRST_SEED, SEEDS = 100, 8  # seeds for judging; presets are tuned on seeds below 100
OCTAVES, PER_OCTAVE, PER_BUDGET = 7, 2, 4  # budgets from C/128 to C, with evaluations for each
ETA_FACTORS = (0.125, 0.25, 0.5, 1.0, 2.0)
MODERATE = (0.5, 1, 2, 4)  # multiples of B_p
N_EST, N_TRAIN = 256, 64
LEAST_LEVELS = 5
_LEAST_B_P = 8
_LEVELS = tuple(2**k for k in range(2, 12))
# The keys that a user can set: these keys, and all keys of the sections below.
_FREE = (
    "sweep.compute", "grid.problems_per_batch", "grid.rollouts_per_problem", "limits.max_batch_rollouts",
    "problems.n_train", "problems.n_validation",
)  # fmt: skip
_FREE_SECTIONS = ("recipe.", "bandit.parameters.")
# One problem, with a constant lr as in the paper's App. H, and with the square-root rule.
TABULAR_LEVELS = tuple(2**k for k in range(1, 10))
TABULAR_RULES = ("constant", "sqrt")
TABULAR_COMPUTE = 20_000  # with more compute, every n solves the problem


def schedule(compute: int) -> Floats:
    """Return the C at which runs are evaluated, from half an octave before C/128 up to C = ``compute``."""
    steps = (OCTAVES * PER_OCTAVE + 1) * PER_BUDGET
    return np.geomspace(round(compute / 2 ** (steps / PER_BUDGET / PER_OCTAVE)), compute, steps + 1)


@dataclass(frozen=True)
class Battery:
    """The simulated model to judge, the seeds, and the parts of the battery to run.

    ``base`` contains the settings shared by all sweeps: budget, grid, recipe, problems, model, preset and
    constants. ``sizes`` is the number of training set sizes D. If ``control`` is true, η is also re-tuned at
    each n and C. ``tabular`` contains the rules lr(n) for the single problem, and ``tabular_constants`` the
    constants of its model.
    """

    base: SweepSpec
    seeds: tuple[int, ...]
    sizes: int = 4
    control: bool = True
    tabular: tuple[str, ...] = TABULAR_RULES
    tabular_constants: Mapping[str, float] = field(default_factory=dict)

    @property
    def levels(self) -> list[int]:
        """The n of the grid, in ascending order."""
        return sorted(set(self.base.grid.rollouts_per_problem))

    @property
    def batch(self) -> int:
        """The B_p of the main sweeps."""
        return self.base.grid.problems_per_batch[0]

    @property
    def compute(self) -> int:
        """The largest budget C at which findings are judged, in rollouts."""
        return self.base.sweep.compute

    @property
    def budgets(self) -> Floats:
        """The budgets C at which findings are judged, an array of shape (X,)."""
        return schedule(self.compute)[PER_BUDGET::PER_BUDGET]

    @property
    def n_train(self) -> int:
        """The number of training problems D."""
        return self.resolved(SETS[0]).problems.n_train or 1

    def eta(self, name: str) -> float:
        """Return η for a problem set, from the recipe or the preset."""
        return self.resolved(name).recipe.lr or 0.0

    @property
    def fixed_batch(self) -> tuple[int, list[int]]:
        """The B of the fixed-B sweeps, and the n that divide it and leave a B_p in range.

        B_p = B / n must lie between 8 (or the main B_p, if that is smaller) and the number of problems.
        """
        batch = self.batch * self.levels[len(self.levels) // 2]
        least = min(_LEAST_B_P, self.batch)
        return batch, [n for n in self.levels if batch % n == 0 and least <= batch // n <= self.n_train]

    @property
    def coarse_levels(self) -> list[int]:
        """Every second n of the grid, including the largest."""
        return self.levels[::-1][::2][::-1]

    @property
    def moderate_batches(self) -> list[int]:
        """The B_p of a moderate range around the main B_p, for finding F4a."""
        return [b for f in MODERATE if 1 <= (b := round(f * self.batch)) <= self.n_train]

    @property
    def training_sizes(self) -> list[int]:
        """D and fractions of D in ascending order, none smaller than a batch."""
        d = self.n_train
        smaller = [max(self.batch, round(d / 4**k)) for k in range(3, 0, -1)][: self.sizes - 1]
        return sorted({*smaller, d})

    def experiments(self) -> dict[str, list[SweepSpec]]:
        """Return the sweeps of the battery by experiment. All sweeps of one experiment share a directory."""
        out = {name: [self._spec(name, sets=["validation", "train"])] for name in SETS}
        batch, levels = self.fixed_batch
        for name in SETS:
            if self.decoupled:
                grid, recipe = {"rollouts_per_problem": [N_EST]}, {"gradient_rollouts": N_TRAIN}
                out[f"{name}-decoupled"] = [self._spec(name, grid=grid, recipe=recipe)]
            grids = [{"problems_per_batch": [batch // n], "rollouts_per_problem": [n]} for n in levels]
            out[f"{name}-fixed-b"] = [self._spec(name, grid=grid) for grid in grids]
            if self.control:
                etas = [self.eta(name) * f for f in ETA_FACTORS if f != 1]
                out[f"{name}-eta"] = [self._spec(name, grid={"lr": etas})]
        others = [b for b in self.moderate_batches if b != self.batch]
        grid = {"problems_per_batch": others, "rollouts_per_problem": self.coarse_levels}
        out["easy-batches"] = [self._spec("easy", grid=grid)]
        for d in self.training_sizes[:-1]:
            out[f"easy-d{d}"] = [self._spec("easy", problems={"n_train": d})]
        return out | {f"tabular-{rule}": [self._tabular(rule)] for rule in self.tabular}

    @property
    def decoupled(self) -> bool:
        """Whether the grid contains the two n with which the decoupled run is compared."""
        return {N_EST, N_TRAIN} <= set(self.levels)

    def resolved(self, name: str) -> RunSpec:
        """Return a run of the main sweep as resolved by the backend."""
        return resolved_run(self._spec(name), (self.batch, self.levels[0]))

    def _spec(self, name: str, sets: Sequence[str] = ("validation",), **own: dict[str, Any]) -> SweepSpec:
        """Return a sweep on one problem set. ``own`` overrides keys of the named sections."""
        data = self.base.model_dump(mode="json", exclude_unset=True)
        data["problems"] = {**data.get("problems", {}), "set": name}
        for section, values in own.items():
            data[section] = {**data.get(section, {}), **values}
        return self._completed(data, sets)

    def _tabular(self, rule: str) -> SweepSpec:
        data: dict[str, Any] = {
            "sweep": {"compute": TABULAR_COMPUTE},
            "grid": {"problems_per_batch": [1], "rollouts_per_problem": list(TABULAR_LEVELS)},
            "recipe": {"lr_scaling": rule},
            "bandit": {"model": "tabular", "parameters": dict(self.tabular_constants)},
        }
        return self._completed(data, ("validation",))

    def _completed(self, data: dict[str, Any], sets: Sequence[str]) -> SweepSpec:
        """Return a sweep with the keys that all sweeps share: seeds, exact evaluations, inline executor."""
        evaluated = schedule(data["sweep"]["compute"])
        data["sweep"] = {**data["sweep"], "seeds": list(self.seeds)}
        data["evaluation"] = {
            "points": evaluated.size,
            "start": round(evaluated[0]),
            "end": round(evaluated[-1]),
            "metrics": ["avg@4", "best@4", "worst@4"],
            "samples": 0,
            "sets": list(sets),
        }
        data["executor"] = {"kind": "inline"}
        return SweepSpec.parse(data)


def battery(
    model: str = MODELS[0],
    preset: str | None = None,
    seeds: Sequence[int] = tuple(range(FIRST_SEED, FIRST_SEED + SEEDS)),
    settings: Iterable[str] = (),
    **options: Any,
) -> Battery:
    """Build a battery from the user's settings.

    ``settings`` are ``section.key=value`` strings that set the budget, grid, problem set sizes, recipe or
    model constants. ``options`` are fields of `Battery`. ``preset`` defaults to the model's first preset.
    Raises `SpecError` with all issues.

    >>> battery(settings=["sweep.compute=1e6"]).budgets[[0, -1]].round(-2)
    array([   7800., 1000000.])
    """
    issues = []
    if model not in MODELS:
        issues.append(Issue("model", found=model, accepted=", ".join(MODELS), nearest=nearest(model, MODELS)))
        model = MODELS[0]
    kept = [
        f"grid.rollouts_per_problem={list(_LEVELS)}",
        "grid.problems_per_batch=[32]",
        "sweep.compute=10_000_000",
        f'bandit.model="{model}"',
        *([f'bandit.preset="{preset}"'] if preset is not None else []),
    ]
    accepted = ", ".join((*_FREE, *(f"{section}…" for section in _FREE_SECTIONS)))
    for setting in settings:
        key = setting.partition("=")[0].strip()
        if key in _FREE or key.startswith(_FREE_SECTIONS):
            kept.append(setting)
        else:
            issues.append(Issue(key, "the battery sets this key", accepted=accepted))
    try:
        base = SweepSpec.read(settings=kept)
    except SpecError as error:
        raise SpecError([*issues, *error.issues]) from None
    found = Battery(base, tuple(seeds), **options)
    issues += _issues(found)
    if issues:
        raise SpecError(list({str(issue): issue for issue in issues}.values()))
    return found


def _issues(found: Battery) -> list[Issue]:
    """Return the issues of a battery: those by its own rules first, then those by the backend's."""
    out = []
    batches, levels = found.base.grid.problems_per_batch, found.levels
    if len(batches) > 1:
        out.append(Issue("grid.problems_per_batch", found=list(batches), accepted="one B_p"))
    if len(levels) < LEAST_LEVELS:
        accepted = f"at least {LEAST_LEVELS} different n"
        out.append(Issue("grid.rollouts_per_problem", found=levels, accepted=accepted))
    else:
        least = max(2**OCTAVES * found.batch * levels[LEAST_LEVELS - 3], found.batch * levels[-1])
        if found.compute < least:
            accepted = f"at least {least:,}: three n need a step by C/128, all n by C"
            out.append(Issue("sweep.compute", found=found.compute, accepted=accepted))
    if len(found.seeds) < 2:
        out.append(Issue("seeds", found=len(found.seeds), accepted="at least 2, for an interval"))
    backend = backends.get(found.base.sweep.backend)
    for name in SETS:
        with collecting(out):
            out += backend.check(found.resolved(name))
    return out
