"""What real runs start listens on loopback alone, and does not outlive them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from marked_processes import is_loopback, seen

pytestmark = [pytest.mark.real, pytest.mark.slow]


@pytest.mark.nightly
@pytest.mark.parametrize(
    "real",
    [
        pytest.param(
            {"processes": 2, "sampler": "transformers", "generation": "async"},
            marks=pytest.mark.nightly,  # how ranks meet is also in tests/executors/test_listeners.py
            id="ranks and samplers",
        ),
        pytest.param({"generation": "async", "sampler": "vllm"}, id="async"),
    ],
)
def test_real_runs(real: dict[str, Any], sections: Callable[..., Any], tmp_path: Path) -> None:
    found, _ = seen(sections(real=real, executor={"kind": "processes", "jobs": 1}), tmp_path)
    assert bool(found) or "processes" not in real  # gloo's, of the ranks
    assert [result for result in found if not is_loopback(result[1])] == []
