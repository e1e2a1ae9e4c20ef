"""Test whether a finding also holds for presets similar to the judged preset.

For a fitted preset, the similar presets are the members of its ensemble, which differ in what the runs do
not determine. Constants set by the user apply to all members. For any other preset, each nonzero constant is
multiplied by its own 2^U, with U uniform in [−1, 1], and clipped to the bounds of the model. Jitter includes
η and β, but not integers such as the number of features. The same rules judge each preset on a smaller
battery: 4 other seeds, no smallest n, two training set sizes, and no re-tuned η. With 4 seeds, intervals are
wider (t₃ = 3.2 instead of t₇ = 2.4), so the shares of "yes" are conservative.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.calibration.ensemble import Ensemble, read_ensemble
from benchmarks.calibration.space import parameters
from benchmarks.replication.battery import LEAST_LEVELS, SETS, TABULAR_RULES, Battery
from benchmarks.replication.execution import Progress
from benchmarks.replication.judging import description, judge, save
from benchmarks.replication.verdicts import VERDICTS
from isolaw.backends.bandit.options import simulator
from isolaw.errors import InputError

_MODEL = "interference"
_FIRST_SEED, _SEEDS = 1000, 4
_STREAM = 2603  # seed of the jitter, which no run uses


def constants_of(model: str, preset: str, changed: Mapping[str, float]) -> dict[str, float]:
    """Return the constants of a preset that jitter varies, by name."""
    constants = simulator(model).PRESETS[preset]
    whole = {f.name for f in fields(constants) if f.type == "int"}
    values = asdict(constants) | dict(changed)
    return {k: float(v) for k, v in values.items() if v and k not in whole}


def jittered(model: str, constants: Mapping[str, float], index: int) -> dict[str, float]:
    """Return the jittered constants of preset number ``index``."""
    rng = np.random.default_rng(np.random.SeedSequence(_STREAM, spawn_key=(index,)))
    bounds = simulator(model).BOUNDS
    names = sorted(constants)
    factors = 2 ** rng.uniform(-1, 1, len(names))
    return {
        name: float(np.clip(constants[name] * factor, *bounds.get(name, (0.0, np.inf))))
        for name, factor in zip(names, factors, strict=True)
    }


def ensemble_of(battery: Battery) -> Ensemble | None:
    """Return the ensemble of the preset that a battery judges, or None if the preset was not fitted."""
    name = battery.base.options.get("preset")
    return None if name is None or name in simulator(_MODEL).PRESETS else read_ensemble(name)


def check(battery: Battery, presets: int) -> None:
    """Raise `InputError` if an ensemble has fewer members than ``presets``."""
    ensemble = ensemble_of(battery)
    if ensemble is not None and presets > len(ensemble.members):
        text = f"found {presets}; expected at most {len(ensemble.members)}, the members of {ensemble.name}"
        raise InputError(f"jitter: {text}")


def around(battery: Battery, index: int) -> Battery:
    """Return the smaller battery for preset number ``index``."""
    run = battery.resolved(SETS[0])
    ensemble = ensemble_of(battery)
    if ensemble is not None:
        given = battery.base.options.get("parameters", {})
        varied = {**asdict(parameters(ensemble.members[index])), **given}
    else:
        constants = constants_of(_MODEL, run.options["preset"], run.options["parameters"])
        varied = {**run.options["parameters"], **jittered(_MODEL, constants, index)}
    alone = constants_of("tabular", next(iter(simulator("tabular").PRESETS)), {})
    data = battery.base.model_dump(mode="json", exclude_unset=True)
    data["bandit"] = {**data["bandit"], "parameters": varied}
    levels = battery.levels
    data["grid"] = {**data["grid"], "rollouts_per_problem": levels[len(levels) > LEAST_LEVELS :]}
    return Battery(
        type(battery.base).parse(data),
        tuple(range(_FIRST_SEED, _FIRST_SEED + _SEEDS)),
        sizes=2,
        control=False,
        tabular=TABULAR_RULES[:1],
        tabular_constants=jittered("tabular", alone, index),
    )


def study(
    battery: Battery,
    presets: int,
    out: Path | None = None,
    jobs: int = 1,
    progress: Progress = lambda _: None,
) -> dict[str, Any]:
    """Judge ``presets`` presets similar to a battery's preset, and count their verdicts.

    The parameters are those of `judge`. ``out/jitter`` stores the verdicts of each preset but not its runs;
    stored presets are not judged again. Returns ``presets``, ``members`` (whether they are members of an
    ensemble), ``seeds``, ``constants`` (those that vary) and ``verdicts``. For each row of the table, such as
    ``F1 easy``, ``verdicts`` contains the number of presets with each verdict.
    """
    counts: dict[str, Counter[str]] = {}
    for index in range(presets):
        path = None if out is None else out / "jitter" / f"{index:03d}.json"
        verdicts = _judged(around(battery, index), path, jobs, lambda share: progress(share / presets))
        for row, verdict in verdicts.items():
            counts.setdefault(row, Counter())[verdict] += 1
    return {
        "presets": presets,
        "members": ensemble_of(battery) is not None,
        "seeds": _SEEDS,
        "constants": sorted(around(battery, 0).base.options["parameters"]),
        "verdicts": {row: {v: count[v] for v in VERDICTS} for row, count in counts.items()},
    }


def _judged(battery: Battery, path: Path | None, jobs: int, progress: Progress) -> dict[str, str]:
    """Return the verdicts of one preset by row, from its file if the file belongs to this preset."""
    key = {**description(battery), "alone": battery.tabular_constants, "seeds": list(battery.seeds)}
    if path is not None and path.exists():
        kept = json.loads(path.read_text(encoding="utf-8"))
        if kept["of"] == json.loads(json.dumps(key)):
            progress(1.0)
            return dict(kept["verdicts"])
    rows = {f"{f['finding']} {f['set']}": f for f in judge(battery, None, jobs, progress)["findings"]}
    verdicts = {name: row["verdict"] for name, row in rows.items()}
    if path is not None:
        effects = {name: row["effect"] for name, row in rows.items()}
        save({"of": key, "verdicts": verdicts, "effects": effects}, path)
    return verdicts
