"""Convert laws of format ``isolaw.law/1`` to the current format.

Version 1 stored warnings as sentences. isolaw identifies the warnings that affect its results by their first
words. All other warnings become flags with the code ``version_1``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from isolaw.fits.flags import Code

FORMAT = "isolaw.law/1"
_OLD = "fitted by an older isolaw: predictions follow its learning curves alone; fit the runs again"
_BEGAN = {
    "one seed per configuration: ": Code.ONE_SEED,
    "two seeds per configuration: ": Code.TWO_SEEDS,
    "no saturation level is stated: ": Code.NO_SATURATION,
}
_UNITS = {"run (its distance": "lack of fit", "run (": "run", "block of": "block"}
_BOUND_BY = {"grid edge": "grid_edge", "a neighbouring n was not measured here": "neighbour"}
_NOT_PARAMETERS = (
    "problems_per_batch", "rollouts_per_problem", "ceiling", "rms", "late", "measured",
)  # fmt: skip


def converted(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return a law of version 1 in the current format.

    Damaged laws raise KeyError, TypeError or AttributeError.
    """
    comparison, warnings = data["comparison"], data["warnings"]
    if not isinstance(warnings, list):
        raise TypeError("warnings is not a list")
    families = {name: own for name, own in comparison.get("curves", {}).items() if name != "basis"}
    fewest = min((g["runs"] for g in data["grid"]), default=0)
    # Early laws lack these keys, since they are older than intervals of θ and refused preferences.
    none: dict[str, Any] = {"theta": [], "interval": None}
    # With fixed B, laws were functions of log10 C; now they are functions of M.
    after = none if data["setting"] == "fixed-b" else {}
    laws = {name: {**none, **own, **after} for name, own in comparison.get("laws", {}).items()}
    return {
        **data,
        "frontier": [
            {"band": None, **p, "censored_by": [_BOUND_BY[why] for why in p["censored_by"]]}
            for p in data["frontier"]
        ],
        "curves": [_curve(curve) for curve in data["curves"]],
        "bootstrap": {**data["bootstrap"], "unit": _begins(data["bootstrap"]["unit"], _UNITS)},
        "comparison": {"seeds": fewest, **comparison, "laws": laws, "curves": families},
        "surface": None,
        "warnings": [*(_flag(text) for text in warnings), {"code": str(Code.VERSION_1), "text": _OLD}],
    }


def _curve(curve: Mapping[str, Any]) -> dict[str, Any]:
    own = {name: curve[name] for name in _NOT_PARAMETERS}
    return {**own, "parameters": {k: q for k, q in curve.items() if k not in _NOT_PARAMETERS}}


def _flag(text: str) -> dict[str, str]:
    if text.startswith("--curve "):
        return {"code": str(Code.MISFIT), "text": text}
    for start, code in _BEGAN.items():
        if text.startswith(start):
            return {"code": str(code), "text": text.removeprefix(start)}
    return {"code": str(Code.VERSION_1), "text": text}


def _begins(text: str, known: Mapping[str, str]) -> str:
    return next((value for start, value in known.items() if text.startswith(start)), text)
