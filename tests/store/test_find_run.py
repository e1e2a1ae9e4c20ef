"""A run by its folder, or by a prefix of its id."""

from __future__ import annotations

from pathlib import Path

import pytest

from isolaw import engine
from isolaw.errors import StoreError
from isolaw.store.sweep import find_run


def test_a_run_by_its_folder_and_by_a_prefix(tiny, tmp_path: Path) -> None:
    engine.sweep(tiny(), tmp_path / "out")
    run, other, *_ = sorted((tmp_path / "out" / "runs").iterdir())
    for name in (run, run.with_name(run.name[:12]), tmp_path / "out" / run.name[:12]):
        assert find_run(name).run_id == run.name
    common = next(i for i in range(64) if run.name[i] != other.name[i])
    ambiguous = "runs with this prefix" if common else "not a run of a sweep"
    with pytest.raises(StoreError, match=ambiguous):
        find_run(tmp_path / "out" / run.name[:common])
    with pytest.raises(StoreError, match=r"found 0 runs with this prefix \(none\); expected one"):
        find_run(tmp_path / "out" / "none")
    with pytest.raises(StoreError, match=r"not a run of a sweep; .*; to list its runs: isolaw read .*/out$"):
        find_run(tmp_path / "out")
    with pytest.raises(StoreError, match=r"not a run of a sweep; expected OUT/runs/<run_id>$"):
        find_run(tmp_path)
