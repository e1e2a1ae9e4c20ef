"""`Law`: a fitted allocation law, on disk and in use.

On disk it is ``law.json`` (`isolaw.fits.document.schema`) and, beside it, the draws as a Parquet file named
by their hash: row 0 is the estimate, the others are bootstrap draws, so that any later question has an
interval. Without the draws file a law still predicts, without intervals.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from isolaw.errors import DataError
from isolaw.fits.curves.learning_curves import FAMILIES, Curves
from isolaw.fits.document import version_1
from isolaw.fits.document.codec import Malformed
from isolaw.fits.document.schema import FORMAT, LawDocument, PointsDocument
from isolaw.fits.laws.equations import Logistic
from isolaw.fits.quantity import Quantity
from isolaw.parquet import read_parquet

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from isolaw.fits.prediction import Prediction
    from isolaw.fits.surface.estimate import Surface

_LAW = ("b", "L", "k", "x0")


class Law:
    """A law with its curves and draws.

    Attributes
    ----------
    document
        the content of ``law.json``.
    draws
        one row per draw, row 0 the estimate: ``b, L, k, x0`` (absent when the law was refused),
        ``<B_p>x<n>.<parameter>`` for every curve, ``law.<name>.<i>`` for θ of every law that was compared,
        and ``surface.…``: the hyperparameters and shares of the surface, and which of them a draw has.

    >>> import isolaw
    >>> runs = isolaw.read("examples/data/tan_rollout_n_base.csv", metric="holdout_acc_raw",
    ...     columns={"rollouts_per_problem": "rollout_n"}, constants={"problems_per_batch": 512},
    ...     derive={"compute": "prompts_seen*rollout_n"})
    >>> law = isolaw.fit(runs, metric="holdout_acc_raw", bootstrap=20)
    >>> law
    <Law: fixed-bp, problems_per_batch = 512, n in 4..32, C in 2.05e+04..1.7e+06>
    >>> law.document.flags[0].text
    'the variation between runs is taken from how they scatter about a smooth function of n'
    """

    def __init__(self, document: LawDocument, draws: pd.DataFrame) -> None:
        self.document = document
        self.draws = draws

    def __repr__(self) -> str:
        d = self.document
        low, high = d.x.range
        fixed = "".join(f", {k} = {v}" for k, v in d.fixed.items())
        symbol = "M" if d.x.name == "steps" else "C"
        return (
            f"<Law: {d.setting}{fixed}, n in {self.levels[0]}..{self.levels[-1]}, "
            f"{symbol} in {low:.3g}..{high:.3g}>"
        )

    @property
    def levels(self) -> NDArray[np.int64]:
        """The measured n, ascending."""
        return np.unique([g.rollouts_per_problem for g in self.document.grid])

    @property
    def params(self) -> dict[str, Quantity]:
        """The law's parameters: b, L, k, x0, and the n at which it saturates."""
        return self.document.params

    @property
    def logistic(self) -> Logistic | None:
        """The fitted law, estimate first, then its draws; None when it was refused."""
        if not set(_LAW) <= set(self.draws.columns):
            return None
        b, rise, k, x0 = (self.draws[name].to_numpy(np.float64) for name in _LAW)
        return Logistic(b, rise, k, x0, np.zeros(b.size, dtype=bool))

    def curves(self, problems_per_batch: int, rollouts_per_problem: int) -> Curves:
        """Return the learning curve of one configuration, estimate first, then its draws."""
        family = self.document.curve
        names = FAMILIES[family].parameters
        prefix = f"{problems_per_batch}x{rollouts_per_problem}."
        return Curves.from_parameters(family, {n: self.draws[prefix + n].to_numpy(np.float64) for n in names})

    def theta(self, name: str) -> NDArray[np.float64] | None:
        """Return θ of a law that was compared, estimate first, then its draws, (1 + D, P)."""
        columns = [c for c in self.draws.columns if c.startswith(f"law.{name}.")]
        if columns:
            return self.draws[columns].to_numpy(np.float64)
        entry = self.document.comparison.laws.get(name)
        return np.array([entry.theta]) if entry is not None and entry.theta else None

    @cached_property
    def surface(self) -> Surface | None:
        """The surface of rewards; None by the paper's method, and in laws of version 1."""
        from isolaw.fits.surface.stored import restored

        return restored(self.document.surface, self.draws, self.document.bootstrap.seed)

    def predict(
        self, compute: float, *, max_batch_rollouts: int | None = None, n_train_problems: int | None = None
    ) -> Prediction:
        """Return the allocation for a budget.

        Parameters
        ----------
        compute
            C in rollouts; a prediction never exceeds it.
        max_batch_rollouts
            the hardware's cap on B_p · n.
        n_train_problems
            D, to count epochs.

        Raises
        ------
        InputError
            the budget does not pay for one step of the smallest batch.

        >>> import isolaw
        >>> runs = isolaw.read("examples/data/tan_rollout_n_base.csv", metric="holdout_acc_raw",
        ...     columns={"rollouts_per_problem": "rollout_n"}, constants={"problems_per_batch": 512},
        ...     derive={"compute": "prompts_seen*rollout_n"})
        >>> law = isolaw.fit(runs, metric="holdout_acc_raw", bootstrap=20)
        >>> p = law.predict(compute=5e5)
        >>> p.allocation.compute + p.unspent == 500_000
        True
        """
        from isolaw.fits.predict import predict

        try:
            return predict(self, compute, max_batch_rollouts, n_train_problems)
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise DataError(f"the law is damaged, or the budget is no number ({error!r})") from error

    def to_dict(self) -> dict[str, Any]:
        """Return the content of ``law.json``."""
        return self.document.to_dict()

    def plot(self) -> Figure:
        """Return the figure of n*(C): law, band, censored parts, the grid's edge."""
        from isolaw.report.figures.law import law_figure

        return law_figure(self)

    def save(self, path: str | Path) -> Path:
        """Write ``law.json`` and its draws; refuse to replace a file that is not a law.

        Raises
        ------
        DataError
            ``path`` exists and is something else, or cannot be written.
        """
        path = Path(path)
        check_writable(path)
        digest = hashlib.sha256(pd.util.hash_pandas_object(self.draws).to_numpy().tobytes()).hexdigest()[:16]
        name = f"{path.stem}-{digest}.draws.parquet"
        before = _read(path).get("bootstrap", {}).get("file") if path.exists() else None
        self.document = replace(self.document, bootstrap=replace(self.document.bootstrap, file=name))
        temporary = path.with_name(f".{name}.{os.getpid()}.tmp")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self.draws.to_parquet(temporary)
            temporary.replace(path.with_name(name))
        except OSError as error:
            raise DataError(f"{path}: {error.strerror or error}") from None
        save_document(self.document, path)
        own = re.fullmatch(rf"{re.escape(path.stem)}-[0-9a-f]{{16}}\.draws\.parquet", str(before))
        if own and before != name:
            path.with_name(str(before)).unlink(missing_ok=True)  # the draws of the law that was replaced
        return path

    @classmethod
    def load(cls, path: str | Path) -> Law:
        """Read a law.

        Raises
        ------
        DataError
            not a law, or a damaged one.
        """
        path = Path(path)
        document = _document(path)
        name = document.bootstrap.file
        if name is not None and Path(name).name != name:
            raise DataError(f"{path}: bootstrap.file must be a file's name beside the law, found {name!r}")
        try:
            estimates = _estimates(document)
        except KeyError as error:
            raise DataError(f"{path}: a damaged law: no {error} among its curves") from None
        draws = path.with_name(name) if name else None
        if draws is None or not draws.is_file():
            return cls(document, estimates)._of(path)
        table = read_parquet(draws).to_pandas()
        if not set(estimates.columns) <= set(table.columns) or table.empty:
            raise DataError(f"{draws}: these are the draws of another law than {path}")
        values = table[list(estimates.columns)].to_numpy(np.float64, na_value=np.nan)
        if not np.isfinite(values).all() or not np.allclose(values[0], estimates.iloc[0], rtol=1e-6):
            raise DataError(f"{draws}: damaged, or the draws of another law than {path}")
        return cls(document, table)._of(path)

    def _of(self, path: Path) -> Law:
        """This law, if its surface is one."""
        try:
            _ = self.surface
        except Malformed as error:
            raise DataError(f"{path}: a damaged law: {error}") from None
        return self


def check_writable(path: str | Path) -> None:
    """Raise `DataError` if ``path`` is something that a law must not replace."""
    path = Path(path)
    if path.is_dir():
        raise DataError(f"{path}: is a directory; accepted: a file's name, as {path / 'law.json'}")
    if path.exists():
        try:
            _read(path)
        except DataError:
            raise DataError(f"{path}: exists and is not a law; nothing was written over") from None


def save_document(document: LawDocument | PointsDocument, path: str | Path) -> None:
    """Write a law's document under a temporary name and rename it; replaces nothing but a law."""
    path = Path(path)
    check_writable(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(document.to_dict(), indent=1, allow_nan=False)
        temporary.write_text(f"{text}\n", encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from None


def _read(path: Path) -> dict[str, Any]:
    if path.is_dir():
        raise DataError(f"{path}: a directory, not a law; make one with isolaw fit {path} --out law.json")
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from None
    except ValueError:
        raise DataError(f"{path}: not a law (it is not JSON); make one with isolaw fit … --out") from None
    found = document.get("format") if isinstance(document, dict) else None
    if found not in (FORMAT, version_1.FORMAT):
        raise DataError(f"{path}: not a law: format {found!r}; accepted: {FORMAT!r}, {version_1.FORMAT!r}")
    return dict(document)


def _document(path: Path) -> LawDocument:
    data = _read(path)
    if data.get("method") == "points":
        raise DataError(f"{path}: a law of ready-made points has no learning curves to predict from")
    try:
        document = LawDocument.from_dict(
            version_1.converted(data) if data["format"] == version_1.FORMAT else data
        )
    except Malformed as error:
        raise DataError(f"{path}: a damaged law: {error}") from None
    except (KeyError, TypeError, AttributeError) as error:  # of version 1
        raise DataError(
            f"{path}: a damaged law: something is missing or of the wrong kind ({error})"
        ) from None
    places = [
        [(own.problems_per_batch, own.rollouts_per_problem) for own in part]
        for part in (document.grid, document.curves)
    ]
    if places[0] != places[1] or not places[0] or not document.frontier:
        raise DataError(f"{path}: a damaged law: its curves are not those of its grid, or there are none")
    if any(q.value is None for curve in document.curves for q in curve.parameters.values()):
        raise DataError(f"{path}: a damaged law: a curve lacks the value of a parameter")
    if any(g.step_cost <= 0 for g in document.grid):
        raise DataError(f"{path}: a damaged law: grid: a step costs nothing")
    return document


def _estimates(document: LawDocument) -> pd.DataFrame:
    """The one row of estimates that the document itself holds."""
    row: dict[str, float | None] = {}
    row |= {name: q.value for name, q in document.params.items() if name in _LAW and q.value is not None}
    for curve in document.curves:
        prefix = f"{curve.problems_per_batch}x{curve.rollouts_per_problem}."
        for name in FAMILIES[document.curve].parameters:
            row[prefix + name] = curve.parameters[name].value
    return pd.DataFrame([row])
