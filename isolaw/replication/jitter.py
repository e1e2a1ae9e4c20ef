"""Test whether a finding also holds for presets similar to the judged preset.

For a calibrated preset, the similar presets are the members of its ensemble, which differ in what the runs do
not determine. Constants set by the user apply to all members. For any other preset, isolaw multiplies each
nonzero constant by its own 2^U, with U uniform in [−1, 1], and clips it to the bounds of the model. Jitter
includes η and β, but not integers such as the number of features. The same rules judge each preset on a
smaller battery: 4 other seeds, no smallest n, two training set sizes, and no re-tuned η. With 4 seeds,
intervals are wider (t₃ = 3.2 instead of t₇ = 2.4), so the shares of "yes" are conservative.
"""

from __future__ import annotations

import hashlib
import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np

from isolaw.backends.bandit.options import is_calibrated, simulator
from isolaw.calibration.space import parameters
from isolaw.documents.reading import read_json
from isolaw.documents.seal import canonical_json
from isolaw.errors import InputError
from isolaw.replication.battery import LEAST_LEVELS, SETS, TABULAR_RULES, Battery
from isolaw.replication.document import description, judge, save
from isolaw.replication.execution import Progress
from isolaw.replication.verdicts import VERDICTS
from isolaw.simulators.presets import Preset, read_preset

_FIRST_SEED, _SEEDS = 1000, 4
_STREAM = 2603  # seed of the jitter, which no run uses


def constants_of(model: str, preset: str, changed: Mapping[str, float]) -> dict[str, float]:
    """Return the constants of a preset that jitter varies, by name."""
    constants = simulator(model).PRESETS[preset]
    whole = {f.name for f in fields(constants) if f.type == "int"}
    values = asdict(constants) | dict(changed)
    return {k: float(v) for k, v in values.items() if v and k not in whole}


def jittered(model: str, constants: Mapping[str, float], index: int) -> dict[str, float]:
    """Return the jittered constants of preset number ``index``.

    >>> around = jittered("interference", {"sigma2": 100.0}, 3)
    >>> 50 <= around["sigma2"] <= 200, around == jittered("interference", {"sigma2": 100.0}, 3)
    (True, True)
    """
    rng = np.random.default_rng(np.random.SeedSequence(_STREAM, spawn_key=(index,)))
    bounds = simulator(model).BOUNDS
    names = sorted(constants)
    factors = 2 ** rng.uniform(-1, 1, len(names))
    return {
        name: float(np.clip(constants[name] * factor, *bounds.get(name, (0.0, np.inf))))
        for name, factor in zip(names, factors, strict=True)
    }


def ensemble(battery: Battery) -> Preset | None:
    """Return the calibrated preset that a battery judges, or None if its preset is not calibrated."""
    name = battery.base.options.get("preset")
    return read_preset(name) if name is not None and is_calibrated(name) else None


def check(battery: Battery, presets: int) -> None:
    """Raise `InputError` if an ensemble has fewer members than ``presets``."""
    found = ensemble(battery)
    if found is not None and presets > len(found.members):
        text = f"found {presets}; expected at most {len(found.members)}, the members of {found.name}"
        raise InputError(f"jitter: {text}")


def around(battery: Battery, index: int) -> Battery:
    """Return the smaller battery for preset number ``index``."""
    run = battery.resolved(SETS[0])
    model, preset = run.options["model"], run.options["preset"]
    own = dict(battery.base.options.get("parameters", {}))
    if (found := ensemble(battery)) is not None:
        varied = {**asdict(parameters(found.members[index])), **own}
    else:
        constants = constants_of(model, preset, run.options["parameters"])
        varied = {**run.options["parameters"], **jittered(model, constants, index)}
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
    out: str | Path | None = None,
    jobs: int = 1,
    progress: Progress = lambda _: None,
) -> dict[str, Any]:
    """Judge ``presets`` presets around a battery's own preset, and count their verdicts.

    The parameters are those of `document.judge`. ``out/jitter`` stores the verdicts of each preset but not
    its runs; stored presets are not judged again. Returns ``presets``, ``members`` (whether they are members
    of an ensemble), ``seeds``, ``constants`` (those that vary) and ``verdicts``. For each row of the table,
    such as ``F1 easy``, ``verdicts`` contains the number of presets with each verdict.
    """
    counts: dict[str, Counter[str]] = {}
    for index in range(presets):
        verdicts = _judged(around(battery, index), index, out, jobs, lambda share: progress(share / presets))
        for row, verdict in verdicts.items():
            counts.setdefault(row, Counter())[verdict] += 1
    return {
        "presets": presets,
        "members": ensemble(battery) is not None,
        "seeds": _SEEDS,
        "constants": sorted(around(battery, 0).base.options["parameters"]),
        "verdicts": {row: {v: found[v] for v in VERDICTS} for row, found in counts.items()},
    }


def _judged(
    battery: Battery, index: int, out: str | Path | None, jobs: int, progress: Progress
) -> dict[str, str]:
    """Return the verdicts of one preset by row, from its file if the file belongs to this preset."""
    key = {**description(battery), "alone": dict(battery.tabular_constants), "seeds": list(battery.seeds)}
    mark = hashlib.sha256(canonical_json(key).encode()).hexdigest()
    path = None if out is None else Path(out) / "jitter" / f"{index:03d}.json"
    if path is not None and path.is_file():
        kept = _kept(path)
        if kept.get("of") == mark:
            progress(1.0)
            return dict(kept["verdicts"])
    rows = {f"{f['finding']} {f['set']}": f for f in judge(battery, None, jobs, progress)["findings"]}
    verdicts = {name: row["verdict"] for name, row in rows.items()}
    if path is not None:
        effects = {name: row["effect"] for name, row in rows.items()}
        save({"of": mark, "constants": key["constants"], "verdicts": verdicts, "effects": effects}, path)
    return verdicts


def _kept(path: Path) -> dict[str, Any]:
    """Return the content of a file. An unreadable file counts as empty, with a warning."""
    try:
        kept = read_json(path)
        if not isinstance(kept.get("verdicts"), dict):
            raise InputError(f"{path}: found no verdicts")
        return kept
    except InputError as error:
        warnings.warn(f"{error}; isolaw judges this preset again", stacklevel=3)
        return {}
