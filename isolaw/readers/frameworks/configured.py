"""`Configured`: a framework's configuration, asked for facts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from isolaw.readers.frameworks.base import Fact
from isolaw.readers.raw import number


class Configured:
    """A configuration under flat keys, and where it was read.

    Each method takes the names that a setting has had, and returns the first that is there as a `Fact`;
    None if none is, or none is of the kind.

    >>> config = Configured({"n": 8, "lr": "1e-6", "name": ""}, "config.yaml")
    >>> config.count("group_size", "n")
    Fact(value=8, origin='n in config.yaml')
    >>> config.number("lr").value, config.text("name"), config.truth("n")
    (1e-06, None, None)
    """

    def __init__(self, config: Mapping[str, Any], source: str) -> None:
        self.config = config
        self.where = f" in {source}" if source else ""

    def fact(self, name: str, value: Any) -> Fact:
        """Return ``value`` as what the setting ``name`` says."""
        return Fact(value, f"{name}{self.where}")

    def number(self, *names: str) -> Fact | None:
        """Return a number, also one that was written as text."""
        for name in names:
            value = number(self.config.get(name))
            if value is not None and math.isfinite(value):
                return self.fact(name, value)
        return None

    def count(self, *names: str, least: int = 1) -> Fact | None:
        """Return a whole number, at least ``least``."""
        for name in names:
            found = self.number(name)
            if found and found.value == round(found.value) and least <= found.value < 2**31:
                return self.fact(name, int(found.value))
        return None

    def text(self, *names: str) -> Fact | None:
        """Return a text that is not empty."""
        for name in names:
            value = self.config.get(name)
            if isinstance(value, str) and value:
                return self.fact(name, value)
        return None

    def truth(self, *names: str) -> Fact | None:
        """Return a bool."""
        for name in names:
            value = self.config.get(name)
            if isinstance(value, bool):
                return self.fact(name, value)
        return None

    def says(self, name: str) -> bool:
        """Return whether the setting is there and true."""
        return self.config.get(name) is True


def known(facts: Mapping[str, Fact | None]) -> dict[str, Fact]:
    """Return the facts that there are."""
    return {name: fact for name, fact in facts.items() if fact is not None}


def one_update(
    batch: int, trained: Fact | None, passes: Fact | None, apart: Fact | None, what: str = "rollouts"
) -> Fact | None:
    """Return whether each batch of rollouts makes one optimiser step, and is made by the policy it updates.

    Parameters
    ----------
    batch
        rollouts generated for a step, or what else ``what`` says.
    trained
        how many an optimiser step takes.
    passes
        how often a batch is gone through; once unless given.
    apart
        whether generation runs beside training, on older weights; None where that cannot be known.
    """
    if apart and apart.value:
        return Fact(False, f"{apart.origin}: rollouts are generated while the policy is trained")
    if trained is None:
        return None
    epochs = f"; {passes.origin} = {passes.value}" if passes else ""
    said = f"{trained.value} {what} an update ({trained.origin}), {batch} a batch{epochs}"
    if trained.value < batch or (passes is not None and passes.value > 1):
        return Fact(False, said)
    return Fact(True, said) if apart else None
