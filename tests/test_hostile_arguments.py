"""Every argument of every public function, with hostile values: a result or an error of isolaw, soon."""

from __future__ import annotations

import enum
import inspect
import time
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import isolaw
from isolaw.errors import IsolawError, Refused
from isolaw.fits.law import Law
from isolaw.runs import Runs

# Seconds of processor time for a wrong argument; a fit of the runs below takes about as long.
_SOON = 2.0


class _Eight(enum.IntEnum):
    EIGHT = 8


class _Name(enum.StrEnum):
    NAME = "avg@4"


HOSTILE: dict[str, Any] = {
    "nan": float("nan"),
    "inf": float("inf"),
    "-inf": float("-inf"),
    "True": True,
    "-1": -1,
    "0": 0,
    "level 95": 95,
    "1e300": 1e300,
    "10**400": 10**400,
    "int64": np.int64(8),
    "float32": np.float32(0.5),
    "bool_": np.bool_(True),
    "0-d": np.array(5),
    "array": np.arange(3.0),
    "Decimal": Decimal("1e5"),
    "Fraction": Fraction(1, 3),
    "complex": 1j,
    "IntEnum": _Eight.EIGHT,
    "StrEnum": _Name.NAME,
    "4x": "4x",
    "empty": "",
    "NUL": "a\0b",
    "surrogate": "a\ud800b",
    "long": "x" * 100_000,
    "bytes": b"runs",
    "path": Path("no/such/file"),
    "long path": Path("x" * 5000),
    "NA": pd.NA,
    "NaT": pd.NaT,
    "date": pd.Timestamp("2026-01-01", tz="Europe/Berlin"),
    "list": [1, "a", None],
    "nested": [[1, 2], [3]],
    "set": {1},
    "dict": {"a": {"b": 1}},
    "keys": {1: 2},
    "long key": {"x" * 1000: "y" * 1000},
    "generator": (i for i in ()),
    "object": object(),
    "class": int,
    "frame": pd.DataFrame({"a": [1]}),
    "no rows": pd.DataFrame({"avg@4": []}),
    "no columns": pd.DataFrame(),
    "twice": pd.DataFrame([[1, 2]], columns=["a", "a"]),
    "levels": pd.DataFrame([[1, 2]], columns=pd.MultiIndex.from_tuples([("a", 1), ("b", 2)])),
    "arrow": pa.table({"a": [1]}),
    "series": pd.Series([1, 2]),
}


# Functions that train a model, download one, or examine the machine; and classes that only contain results.
LEFT_OUT = {
    "calibrate", "check_recipe", "findings", "predict_by_simulation", "split", "diagnose",
    "Advice", "Answer", "IsolawError", "Prediction", "Quantity", "Allocation", "SizeCurves", "SweepSpec",
    "__version__",
}  # fmt: skip


# Where functions begin to compute, after their last check.
FITS = (
    "isolaw.fits.pipeline._misfit",
    "isolaw.fits.studies.recipes.resample",
    "isolaw.fits.studies.shapes.estimate",
    "isolaw.fits.studies.backtest._splits",
    "isolaw.engine.execute",
    "isolaw.fits.law.predict",
)


def _accepted(*_: Any, **__: Any) -> None:
    raise Refused("the arguments are accepted")


@pytest.fixture(scope="module")
def runs(synthetic: Callable[..., Runs]) -> Runs:
    return synthetic([(32, n) for n in (8, 16, 32)], seeds=2, checkpoints=10)


@pytest.fixture(scope="module")
def law(runs: Runs) -> Law:
    return isolaw.fit(runs, draws=5)


@pytest.fixture(scope="module")
def calls(runs: Runs, law: Law, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    """The arguments of a call that works, or nearly, for each public function."""
    folder = tmp_path_factory.mktemp("calls")
    spec = {"sweep": {"compute": 2000, "seeds": 1}, "executor": {"kind": "inline"}}
    law.save(folder / "law.json")
    runs.to_parquet(folder / "runs.parquet")
    quick = {"draws": 0}
    return {
        "advise": {"budget": 1e6},
        "answer": {"source": runs, "compute": 1e5, **quick},
        "backtest": {"runs": runs, "fit_below": 1e5, **quick},
        "compare": {"first": runs, "second": runs, **quick},
        "compare_by": {"runs": runs, "by": "seed", "base": 0, **quick},
        "compare_shapes": {"runs": runs, "a": (32, 8), "b": (32, 16), "compute": 1e5, **quick},
        "dead_groups": {"correct": [1, 2], "samples": [4, 4]},
        "export": {"run": folder / "none", "out": folder / "exported"},
        "fit": {"runs": runs, **quick},
        "fit_points": {"x_values": [1e4, 1e5, 1e6, 1e7, 1e8], "n_star": [8, 9, 20, 60, 64]},
        "fit_sizes": {"curves": None, **quick},
        "law_figure": {"law": law},
        "paper_figures": {"runs": runs, "folder": folder / "figures", **quick},
        "plan": {"sweep": {"sweep": {"backend": "none"}}},
        "read": {"sources": runs},
        "read_cost": {"source": {"throughput": {}}},
        "retune": {"runs": runs, "metric": "avg@4", "eval_set": "validation", "name": "lr"},
        "status": {"out": folder},
        "summary": {"found": law},
        "sweep": {"spec": {**spec, "grid": {"rollouts_per_problem": [8]}}, "out": folder / "sweep"},
        "to_target": {"runs": runs},
        "write_report": {"runs": runs, "law": law, "path": folder / "report.html"},
        "Law.predict": {"self": law, "compute": 1e5},
        "Law.predictions": {"self": law, "computes": [1e5]},
        "Law.save": {"self": law, "path": folder / "law.json"},
        "Law.load": {"path": folder / "law.json"},
        "Law.is_file": {"path": folder / "law.json"},
        "Runs": {"points": runs.points},
        "Runs.metrics": {"self": runs, "eval_set": "validation"},
        "Runs.to_parquet": {"self": runs, "path": folder / "saved.parquet"},
        "Runs.from_parquet": {"path": folder / "runs.parquet"},
    }


def public() -> dict[str, Any]:
    """Public functions, and public methods with arguments, by name."""
    out = {}
    for name in set(isolaw.__all__) - LEFT_OUT:
        out[name] = getattr(isolaw, name)
        if inspect.isclass(out[name]):
            for method, raw in vars(out[name]).items():
                own = getattr(raw, "__func__", raw)
                takes = inspect.isfunction(own) and len(inspect.signature(own).parameters) > 1
                if (takes or isinstance(raw, staticmethod)) and not method.startswith("_"):
                    out[f"{name}.{method}"] = getattr(out[name], method)
    out.pop("Law"), [out.pop(f"Runs.{name}") for name in ("select", "concat")]  # they take results of isolaw
    return out


def arguments() -> Iterator[tuple[str, str]]:
    for name, function in sorted(public().items()):
        for argument, parameter in inspect.signature(function).parameters.items():
            if argument not in ("self", "on_event", "progress", "options"):
                yield name, (argument if parameter.kind is not parameter.VAR_KEYWORD else "columns")


def call(function: Any, given: dict[str, Any]) -> Any:
    positional = [given.pop(name) for name in ("self", "sources") if name in given]
    return function(*positional, **given)


@pytest.mark.parametrize(("name", "argument"), arguments())
def test_a_hostile_argument_gives_a_result_or_an_error_of_isolaw(
    name: str, argument: str, calls: Mapping[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for place in FITS:  # accepted: the fit itself need not follow
        monkeypatch.setattr(place, _accepted)
    function, wrong = public()[name], []
    for label, value in HOSTILE.items():
        began = time.process_time()
        try:
            call(function, {**calls[name], argument: value})
            continue  # an accepted value may take longer
        except IsolawError as error:
            if len(str(error)) > 5000:
                wrong.append(f"{label}: a message of {len(str(error)):,} characters")
        except Exception as error:
            wrong.append(f"{label}: {type(error).__name__}: {str(error)[:200]}")
        if (took := time.process_time() - began) > _SOON:
            wrong.append(f"{label}: {took:.1f} s")
    assert not wrong
