"""Write the fitted law of n*(C) as a formula with its numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from isolaw.evidence import interval
from isolaw.fits.document.schema import LawDocument, LawEntry
from isolaw.fits.laws.equations import LAWS


def signed(value: float) -> str:
    """Return a number as text with three significant digits and a true minus sign."""
    return f"{value:.3g}".replace("-", "−")


def form_equation(law: str, document: LawDocument) -> str:
    """Return the equation of a law with the names of its parameters instead of numbers."""
    x, squared = _terms(document)
    return LAWS[law].equation.format(x=x, x2=squared)


def parameters(law: str, entry: LawEntry) -> str:
    """Return a law's parameters and their 95 % intervals as text, or an empty string if θ is unknown."""
    form, out = LAWS[law], []
    for i, (name, value) in enumerate(zip(form.parameters, entry.theta, strict=False)):
        values = (value, *entry.interval[i]) if entry.interval else (value,)
        at, *ends = (signed(form.natural.get(name, float)(v)) for v in values)
        out.append(f"{name} = {at}" + (f" ({ends[0]} to {ends[1]})" if ends else ""))
    return ", ".join(out)


def _terms(document: LawDocument) -> tuple[str, str]:
    """Return the symbols of the law's variable and of its square."""
    return ("log10 C", "(log10 C)²") if document.x.log10 else ("M", "M²")


def preferred(document: LawDocument) -> str | None:
    """Return the name of the preferred law, or None if no law is preferred.

    For the method ``paper``, it is the logistic law.
    """
    return "logistic" if document.method == "paper" else document.comparison.preferred


def equation(document: LawDocument) -> str:
    """Return the equation of the preferred law with fitted numbers, or "" if no law is preferred."""
    name = preferred(document)
    law = document.comparison.laws.get(name or "")
    if name == "logistic":  # includes the method paper, which compares no laws
        values = [document.params[p].value for p in LAWS[name].parameters]
        return "" if None in values else _with(name, document, [v for v in values if v is not None])
    if name is None or law is None or not law.theta:
        return ""
    theta, ends = law.theta, law.interval
    if name == "constant":
        around = f" ({interval([2**e for e in ends[0]])})" if ends else ""
        return f"n* = {2 ** theta[0]:.3g}{around}"
    if name == "power" and document.x.log10:  # log2 n* = α + β log10 C
        around = f" (exponent, {interval([e * math.log10(2) for e in ends[1]])})" if ends else ""
        return f"n* = {2 ** theta[0]:.3g} C^{theta[1] * math.log10(2):.3g}{around}"
    form = LAWS[name]
    return _with(
        name, document, [form.natural.get(p, float)(t) for p, t in zip(form.parameters, theta, strict=True)]
    )


def _with(law: str, document: LawDocument, values: Sequence[float]) -> str:
    """Return a law's equation with numbers for its parameters."""
    numbers = dict(zip(LAWS[law].parameters, map(signed, values), strict=True))
    names = "|".join(sorted(numbers, key=len, reverse=True))
    text = re.sub(rf"(?<!\w)({names})(?!\w)", lambda m: numbers[m[0]], LAWS[law].equation)
    x, squared = _terms(document)
    return text.format(x=x, x2=squared).replace("+ −", "− ").replace("− −", "+ ")
