"""`Law`: a fitted allocation law, its predictions and tables, and its files.

On disk, a law consists of ``law.json`` (`isolaw.fits.document.schema`) and a Parquet file of its draws, named
by the hash of its content (`isolaw.fits.draws`). Without the Parquet file, the law predicts without
intervals.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from isolaw.arguments import checked
from isolaw.errors import DataError, InputError, shown
from isolaw.evidence import COLUMN, Interval, Quantity, number
from isolaw.files import replacing
from isolaw.fits.allocations import reached_compute
from isolaw.fits.document import files
from isolaw.fits.document.codec import Malformed
from isolaw.fits.draws import Draws, LawPosterior
from isolaw.fits.laws.equations import equation
from isolaw.fits.predict import Prediction, predict
from isolaw.parquet import frame_of, read_parquet
from isolaw.registry import Shown, public
from isolaw.runs import SYMBOL_OF
from isolaw.step_cost import Cost, multiplied, parse_budget

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Law(Shown, LawPosterior):
    """A fitted law with its learning curves and draws.

    >>> import isolaw
    >>> runs = isolaw.read("examples/data/tan_rollout_n_base.csv", metric="holdout_acc_raw",
    ...     columns={"rollouts_per_problem": "rollout_n", "compute": "prompts_seen*rollout_n"},
    ...     set={"problems_per_batch": 512})
    >>> law = isolaw.fit(runs, metric="holdout_acc_raw", draws=20)
    >>> law
    <Law: B_p = 512, n in 4..32, C in 20,480..1.7e6>
    >>> str(law.document.flags[0].code)
    'one_seed'
    """

    TEXT = "text.prediction.fitted"

    def __repr__(self) -> str:
        document = self.document
        low, high = document.x.range
        parts = [f"{SYMBOL_OF.get(name, name)} = {value}" for name, value in document.fixed.items()]
        parts.append(f"{SYMBOL_OF[document.axis]} in {self.levels[0]}..{self.levels[-1]}")
        parts.append(f"{'M' if document.x.name == 'steps' else 'C'} in {number(low)}..{number(high)}")
        return f"<Law: {document.simulated.title(', '.join(parts))}>"

    @checked
    def predict(
        self,
        compute: float | str,
        *,
        max_batch_rollouts: int | None = None,
        n_train_problems: int | None = None,
        cost: Cost | None = None,
    ) -> Prediction:
        """Return the recommended allocation for a budget, with its predicted reward.

        Parameters
        ----------
        compute
            C in rollouts, which the allocation never exceeds. With ``cost``, the budget can also be in GPU
            hours (``"384gpuh"``) or machine hours (``"48h"``); the compute of each (B_p, n) then follows from
            the cost of its steps.
        max_batch_rollouts
            the hardware's cap on B_p · n.
        n_train_problems
            D, the number of training problems, from which isolaw counts epochs.
        cost
            cost of steps (`isolaw.read_cost`). The prediction then includes hours, and GPU
            hours and money if known.

        Raises
        ------
        InputError
            the budget does not pay for one step of the smallest batch.

        >>> import isolaw
        >>> runs = isolaw.sweep({"sweep": {"compute": 400_000, "seeds": 3},
        ...     "grid": {"rollouts_per_problem": [8, 32, 128, 512]}, "executor": {"kind": "inline"}})
        >>> p = isolaw.fit(runs, draws=20).predict(compute=5e5)
        >>> p.allocation.compute + p.unspent == 500_000
        True
        """
        return predict(self, compute, max_batch_rollouts, n_train_problems, cost)

    def rewards(self, *, n: Any, compute: Any, problems_per_batch: Any = None) -> NDArray[np.float64]:
        """Return the rewards of configurations at budgets: the estimate, followed by its draws.

        Only the rewards of one call are drawn together, so that their differences have the right intervals.

        Parameters
        ----------
        n, problems_per_batch
            a configuration, or lists of Q; B_p is by default the one that the law holds fixed. With the
            method ``paper``, they must have runs.
        compute
            the budget C in the law's unit, e.g. ``1e6``, ``"1M"`` or ``"4x"``, or a list.

        Returns
        -------
        array
            of shape (1 + D,), or (1 + D, Q) for lists: the estimate and D draws.

        >>> import isolaw
        >>> runs = isolaw.sweep({"sweep": {"compute": 400_000, "seeds": 3},
        ...     "grid": {"rollouts_per_problem": [8, 32, 128, 512]}, "executor": {"kind": "inline"}})
        >>> both = isolaw.fit(runs, draws=20).rewards(n=[8, 64], compute=4e5)
        >>> both.shape[1], bool((both[1:, 1] > both[1:, 0]).mean() > 0.5)
        (2, True)
        """
        fixed, reach = self.document.fixed, reached_compute(self.document.grid)
        budget_list = [compute] if isinstance(compute, str | float | int) else list(compute)
        budgets = [parse_budget(multiplied(parse_budget(budget), reach)) for budget in budget_list]
        if hours := [budget for budget in budgets if isinstance(budget, str)]:
            raise InputError(f"compute: found {shown(hours[0])}; expected rollouts, e.g. 1e6 or 1M")
        b = problems_per_batch or fixed.get("problems_per_batch")
        if b is None and "batch_rollouts" in fixed:
            b = fixed["batch_rollouts"] / np.asarray(n)
        if b is None:
            raise InputError("problems_per_batch: found none; the law has several B_p")
        counts = [np.atleast_1d(np.asarray(value, np.float64)) for value in (n, b, budgets)]
        if any((value < 1).any() for value in counts):
            raise InputError(f"found n = {shown(n)}, B_p = {shown(b)}; expected at least 1")
        n_values, batches, computes = np.broadcast_arrays(*counts)
        if self.surface is None:
            cells = zip(batches.astype(int).tolist(), n_values.astype(int).tolist(), computes, strict=True)
            rewards = np.array([self.curves(*cell)(np.array([x]))[:, 0] for *cell, x in cells]).T
        else:
            rewards = self.surface.drawn().rewards(np.log2(n_values), np.log2(batches), computes)
        is_scalar = all(np.ndim(value) == 0 for value in (n, b)) and isinstance(compute, str | float | int)
        return np.asarray(rewards[:, 0] if is_scalar else rewards)

    def residuals(self) -> pd.DataFrame:
        """Return what the law was fitted to, and what it misses: a row for each configuration and bin of C.

        The columns are ``problems_per_batch``, ``rollouts_per_problem``, ``compute``, ``reward``, ``fitted``
        and ``residual``, the reward minus the fitted one. A law of the method ``paper`` keeps no rewards, so
        its table is empty.
        """
        names = ["problems_per_batch", "rollouts_per_problem", "compute", "reward", "fitted", "residual"]
        if self.surface is None:
            return pd.DataFrame(columns=names)
        data = self.surface.model.observations
        fitted = self.surface.means(data.log2_n, data.log2_b, np.exp(data.t))
        counts = (np.round(np.exp2(axis)).astype(np.int64) for axis in (data.log2_b, data.log2_n))
        columns = (*counts, np.exp(data.t), data.reward, fitted, data.reward - fitted)
        return pd.DataFrame(dict(zip(names, columns, strict=True)))

    def frontier(self) -> pd.DataFrame:
        """Return the compute-optimal frontier as a table with one row per budget.

        The first column is the budget: ``compute`` in rollouts, ``tokens``, or ``steps`` with fixed B.
        ``n_star`` is the best n, with its 95 % interval from ``n_star_low`` to ``n_star_high``.
        ``n_star_strict`` is the measured n with the highest curve, ``n_star_tolerance`` is the smallest n
        within the tolerance of its reward, and ``reward`` is the reward at n*. If ``censored``, n* is only a
        bound, for the reasons in ``censored_by``.
        """
        return pd.DataFrame([
            {
                self.document.x.name: point.x,
                **_quantity_columns("n_star", point.n_star),
                "n_star_strict": point.n_star_strict,
                "n_star_tolerance": point.n_star_tolerance,
                **_quantity_columns("reward", point.reward),
                "censored": point.censored,
                "censored_by": ", ".join(point.censored_by),
                **({COLUMN: True} if self.document.simulated else {}),
            }
            for point in self.document.frontier
        ])  # fmt: skip

    def crossovers(self) -> pd.DataFrame:
        """Return the budgets at which one n overtakes another, as a table with one row per pair of n.

        ``n_from`` and ``n_to`` are rollouts per problem. The columns of the budget, its 95 % interval and its
        status are named as in `frontier`. ``supported`` is true if both n were measured at this budget.
        """
        x = self.document.x.name
        columns = ["n_from", "n_to", x, f"{x}_low", f"{x}_high", f"{x}_status", "supported"]
        rows = [
            (c.from_, c.to, c.x, *_interval_columns(x, c.interval).values(), c.status, c.supported)
            for c in self.document.crossovers
        ]
        return pd.DataFrame(rows, columns=columns).astype(dict.fromkeys(columns[2:5], "float64"))

    @property
    def formula(self) -> str:
        """The preferred law as a formula, such as ``n* = 0.003 C^0.78``; empty if no law is preferred."""
        return equation(self.document)

    def summary(self) -> str:
        """Return the results as `isolaw fit` prints them, with a table of the compared laws and the notes.

        ``print(law)`` shows the same text.
        """
        return str(public("summary")(self))

    def to_dict(self) -> dict[str, Any]:
        """Return the law as JSON-able data, the content of ``law.json``."""
        return self.document.to_dict()

    def plot(self) -> Figure:
        """Plot n*(C) with the law, its band, its censored parts and the edge of the grid."""
        figure: Figure = public("law_figure")(self)
        return figure

    @checked
    def save(self, path: str | Path) -> Path:
        """Write the law to ``path`` and its draws next to it, and return the path.

        Raises
        ------
        DataError
            ``path`` exists and is not a law, or cannot be written.
        """
        path = Path(path)
        files.check_writable(path)
        table = self.draws.table()
        digest = hashlib.sha256(pd.util.hash_pandas_object(table).to_numpy().tobytes()).hexdigest()[:16]
        name = f"{path.stem}-{digest}.draws.parquet"
        old_name = files.read(path).get("bootstrap", {}).get("file") if path.exists() else None
        with replacing(path.with_name(name)) as temporary:
            table.to_parquet(temporary)
        self.document = replace(self.document, bootstrap=replace(self.document.bootstrap, file=name))
        files.save(self.document, path)
        match = re.fullmatch(rf"{re.escape(path.stem)}-[0-9a-f]{{16}}\.draws\.parquet", str(old_name))
        if match and old_name != name:
            path.with_name(str(old_name)).unlink(missing_ok=True)  # the draws of the law that was replaced
        return path

    @classmethod
    @checked
    def load(cls, path: str | Path) -> Law:
        """Read a law from its file, and its draws if their file exists.

        Raises
        ------
        DataError
            the file is not a law, or is damaged.
        """
        path = Path(path)
        document = files.load(path)
        file = path.with_name(document.bootstrap.file) if document.bootstrap.file else None
        table = frame_of(read_parquet(file), file) if file is not None and file.is_file() else None
        try:
            return cls(document, Draws.from_table(document, table))
        except Malformed as error:
            raise DataError(
                f"{path}: the law{f' with its draws in {file}' if file else ''} is damaged: {error}"
            ) from None


def _quantity_columns(name: str, q: Quantity) -> dict[str, Any]:
    """Return a quantity's columns: its value, the ends of its interval and its status."""
    value = float("nan") if q.value is None else q.value
    return {name: value, **_interval_columns(name, q.interval), f"{name}_status": str(q.status)}


def _interval_columns(name: str, interval: Interval | None) -> dict[str, float]:
    low, high = interval or (None, None)
    nan = float("nan")
    return {f"{name}_low": nan if low is None else low, f"{name}_high": nan if high is None else high}
