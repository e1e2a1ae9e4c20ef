"""`LawPosterior`: the estimate of a law and its draws."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from isolaw.fits.curves.learning_curves import Curves
from isolaw.fits.document.schema import LawDocument
from isolaw.fits.draws import Draws
from isolaw.fits.frontier import levels_of
from isolaw.fits.laws.equations import Logistic
from isolaw.fits.quantity import Quantity

if TYPE_CHECKING:
    from isolaw.fits.surface.estimate import Surface
    from isolaw.fits.surface.pool import ModelPool


class LawPosterior:
    """A law's document with its draws of rewards, of learning curves, and of θ of the laws of n*(C)."""

    def __init__(self, document: LawDocument, draws: Draws) -> None:
        self.document = document  #: the content of ``law.json``
        self.draws = draws  #: the parameters of the estimate and of every draw

    @property
    def levels(self) -> NDArray[np.int64]:
        """The measured values of the law's axis (n, or B_p), ascending."""
        return levels_of(self.document.grid)

    @property
    def params(self) -> dict[str, Quantity]:
        """The parameters b, L, k and x0 of the logistic law, and the n at which n* saturates."""
        return self.document.params

    @property
    def logistic(self) -> Logistic | None:
        """The logistic law: the estimate, followed by its draws. None if it was refused."""
        return self.draws.logistic

    @property
    def surface(self) -> Surface | None:
        """The reward surface; None for the paper's method and for laws of version 1."""
        return self.draws.surface

    @cached_property
    def pool(self) -> ModelPool:
        """The pool of reward models for budgets and allocations beyond the runs, built on first use.

        Raises
        ------
        AttributeError
            the law has no surface.
        """
        from isolaw.fits.surface.pool import ModelPool

        if self.surface is None:
            raise AttributeError("only a law of the method surface has a pool")
        return ModelPool(self.surface.drawn())

    def curves(self, problems_per_batch: int, rollouts_per_problem: int) -> Curves:
        """Return the learning curves of one configuration: the estimate, followed by its draws."""
        parameters = self.draws.curves[problems_per_batch, rollouts_per_problem]
        return Curves.from_parameters(self.document.curve, parameters)

    def theta(self, name: str) -> NDArray[np.float64] | None:
        """Return θ of a compared law, as an array of shape (1 + D, P): the estimate, then its draws."""
        return self.draws.laws.get(name)
