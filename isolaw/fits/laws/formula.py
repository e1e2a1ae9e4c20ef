"""The fitted law of n*(C) as a formula with its numbers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from isolaw.fits.quantity import interval

if TYPE_CHECKING:
    from isolaw.fits.document.schema import LawDocument, LawEntry

# Each law as an equation, and the names of θ.
_FORMS = {
    "constant": ("n* = n0", ("n0",)),
    "linear": ("n* = α + β {x}", ("α", "β")),
    "power": ("log2 n* = α + β {x}", ("α", "β")),
    "logistic": ("log2 n* = b + L / (1 + exp(−k ({x} − x0)))", ("b", "L", "k", "x0")),
    "non-monotone": ("log2 n* = α + β {x} + γ {x2}", ("α", "β", "γ")),
}


def signed(value: float) -> str:
    """Return a number as text with three significant digits and a true minus sign."""
    return f"{value:.3g}".replace("-", "−")


def form_equation(law: str, document: LawDocument) -> str:
    """Return the equation of a law's form, with the names of its parameters instead of numbers."""
    x, squared = _terms(document)
    return _FORMS[law][0].format(x=x, x2=squared)


def parameters(law: str, entry: LawEntry) -> str:
    """Return θ of a law, each parameter with its 95 % interval; empty if θ is unknown."""
    natural = {"n0": lambda v: 2**v, "k": math.exp}  # the constant is fitted as log2 n0, k as log k
    out = []
    for i, (name, value) in enumerate(zip(_FORMS[law][1], entry.theta, strict=False)):
        values = (value, *entry.interval[i]) if entry.interval else (value,)
        at, *ends = (signed(natural.get(name, float)(v)) for v in values)
        out.append(f"{name} = {at}" + (f" ({ends[0]} to {ends[1]})" if ends else ""))
    return ", ".join(out)


def _terms(document: LawDocument) -> tuple[str, str]:
    """Return the symbol of the law's variable, and of its square."""
    return ("log10 C", "(log10 C)²") if document.x.log10 else ("M", "M²")


def preferred(document: LawDocument) -> str | None:
    """Return the law that the draws prefer, or None; for method paper, the logistic."""
    return "logistic" if document.method == "paper" else document.comparison.preferred


def equation(document: LawDocument) -> str:
    """Return the equation of the preferred law with its fitted numbers; empty if no law is preferred."""
    name = preferred(document)
    law = document.comparison.laws.get(name or "")
    if name == "logistic":
        return _logistic(document)
    if name is None or law is None or not law.theta:
        return ""
    theta, ends = law.theta, law.interval
    if name == "constant":
        around = f" ({interval([2**e for e in ends[0]])})" if ends else ""
        return f"n* = {2 ** theta[0]:.3g}{around}"
    if name == "power" and document.x.log10:  # log2 n* = α + β log10 C
        around = f" (exponent, {interval([e * math.log10(2) for e in ends[1]])})" if ends else ""
        return f"n* = {2 ** theta[0]:.3g} C^{theta[1] * math.log10(2):.3g}{around}"
    terms = "".join(
        f" {'+' if t >= 0 else '−'} {abs(t):.3g} {x}"
        for t, x in zip(theta[1:], _terms(document), strict=False)
    )
    return f"{'n*' if name == 'linear' else 'log2 n*'} = {signed(theta[0])}{terms}"


def _logistic(document: LawDocument) -> str:
    """Return the logistic with its numbers; empty if one of them is unknown."""
    b, slope, k, x0 = (document.params[name].value for name in ("b", "L", "k", "x0"))
    if b is None or slope is None or k is None or x0 is None:
        return ""
    x, _ = _terms(document)
    return f"log2 n* = {signed(b)} + {signed(slope)} / (1 + exp(−{signed(k)} ({x} − {signed(x0)})))"
