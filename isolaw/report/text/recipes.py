"""The verdict on two recipes as text: which ends higher, which is faster, what the first half predicts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from isolaw.fits.studies.contrast import side

if TYPE_CHECKING:
    from isolaw.fits.quantity import Quantity
    from isolaw.fits.studies.contrast import RecipeComparison

Names = tuple[str, str]


def verdict(found: RecipeComparison) -> dict[str, str]:
    """Return a sentence each on ``ceiling``, ``speed``, ``reward`` (with a budget) and ``first half``."""
    names = found.names
    rows = {name: row.difference for name, row in found.mean.rows.items()}
    out = {
        "ceiling": _higher(names, rows["A"], "has the higher ceiling"),
        "speed": _speed(names, rows["C_mid"]),
    }
    if found.compute is not None:
        out["reward"] = _higher(names, rows["reward"], f"is better at C = {found.compute:.4g}")
    return {**out, "first half": _first_half(names, rows["end"], rows["predicted"])}


def _higher(names: Names, difference: Quantity, what: str) -> str:
    value = difference.value
    if value is None or difference.status != "ok":
        return f"which {what} is not known: the curves do not determine it"
    if value == 0:
        return f"neither {what}: they are equal"
    ahead, size = names[value > 0], f"{abs(value):.3g}"
    if difference.interval is None:
        return f"{ahead} {what}, by {size} (no interval, so that may be noise)"
    size = f"{size} ({_interval(difference, value < 0)})"
    if not side(difference):
        return f"neither {what} beyond noise: {ahead} by {size}"
    return f"{ahead} {what}, by {size}"


def _speed(names: Names, ratio: Quantity) -> str:
    if ratio.value is None or ratio.status != "ok":
        return "which is faster is not known: the curves do not determine it"
    if ratio.value == 1:
        return "neither is faster: they are equal"
    text = f"C_mid of {names[1]} is {ratio.value:.3g} times that of {names[0]}"
    if ratio.interval is None:
        return f"{text} (no interval, so that may be noise)"
    text = f"{text} ({_interval(ratio)})"
    found = side(ratio, 1.0)
    return f"{names[found < 0]} is faster: {text}" if found else f"neither is faster beyond noise: {text}"


def _first_half(names: Names, measured: Quantity, predicted: Quantity) -> str:
    truth, early = side(measured), side(predicted)
    if measured.value is None:
        return "not tested: the recipes were measured at no common compute"
    if truth is None:
        equal = "they end alike" if measured.value == 0 else "the rewards at the end have no interval"
        return f"not tested: {equal}"
    if truth:
        size = f"{abs(measured.value):.3g} higher ({_interval(measured, truth < 0)})"
        text = f"{names[truth > 0]} ends {size}; the first half"
        outcome = {truth: "predicts it", 0: "does not show it", -truth: "predicts the opposite"}
    else:
        text = f"at the end they differ by no more than noise ({_interval(measured)}); the first half"
        outcome = {0: "predicts no difference either", 1: "predicts one", -1: "predicts one"}
    return f"{text} {'cannot be fitted' if early is None else outcome[early]}"


def _interval(q: Quantity, negated: bool = False) -> str:
    """The interval in words; of the negative, where the sentence is turned round."""
    low, high = q.interval or (None, None)
    if negated:
        low, high = (None if high is None else -high), (None if low is None else -low)
    if low is None or high is None:
        return f"95 %: {high:.3g} or less" if low is None else f"95 %: {low:.3g} or more"
    return f"95 %: {low:.3g} to {high:.3g}"
