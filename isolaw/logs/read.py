"""`read`: a sweep's directory, or a table, as `Runs`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from isolaw.errors import DataError
from isolaw.logs.table import Mapped, read_table
from isolaw.runs import Runs
from isolaw.store import SweepStore


def read(
    source: str | Path,
    *,
    metric: str | None = None,
    columns: Mapping[str, str] | None = None,
    derive: Mapping[str, str] | None = None,
    constants: Mapping[str, Any] | None = None,
) -> Runs:
    """Read recorded runs.

    Parameters
    ----------
    source
        a sweep's directory (also one that is still running), or a Parquet or CSV table.
    metric
        in a wide table, the column that holds the rewards.
    columns, derive, constants
        our names → the table's columns, arithmetic on them, or one value
        (`isolaw.logs.table.Mapped`).

    Raises
    ------
    DataError, StoreError
        nothing readable there; the message says what was found and what is accepted.

    >>> read("examples/data/tan_rollout_n_base.csv", metric="holdout_acc_raw",
    ...      columns={"rollouts_per_problem": "rollout_n"}, constants={"problems_per_batch": 512},
    ...      derive={"compute": "prompts_seen*rollout_n"})
    <Runs: 4 runs, 4 configurations, 382 rows>
    """
    path = Path(source)
    mapped = Mapped(columns or {}, derive or {}, constants or {})
    if not path.is_dir():
        return read_table(path, mapped, metric)
    store = SweepStore(path)
    if mapped:
        raise DataError(f"{path}: a sweep's directory needs no column mapping")
    if store.exists:
        return store.collect()
    raise DataError(f"{path}: not a sweep's directory (it has no sweep.json)")
