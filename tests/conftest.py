"""What all tests share: deterministic hypothesis, no silent skip in CI, and a few fixtures."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import settings

from isolaw.spec import SweepSpec

settings.register_profile("isolaw", deadline=None, derandomize=True)
settings.load_profile("isolaw")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """In CI a skipped test is a failure, unless it needs a GPU."""
    outcome = yield
    report = outcome.get_result()
    if report.skipped and os.environ.get("CI") and not item.get_closest_marker("gpu"):
        report.outcome = "failed"
        report.longrepr = f"skipped in CI: {report.longrepr}"


@pytest.fixture(scope="session")
def command() -> str:
    """Path of the console script, for what must happen in a process of its own."""
    return str(Path(sys.executable).with_name("isolaw"))


@pytest.fixture
def isolaw(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run the command line in this process: exit code, standard output, standard error."""
    from isolaw.cli import run

    def call(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        code = run([str(a) for a in arguments])
        return code, *capsys.readouterr()

    return call


@pytest.fixture(scope="session")
def tiny() -> Callable[..., SweepSpec]:
    """A bandit sweep of a few milliseconds; each argument changes keys of a section."""

    def make(**sections: dict[str, Any]) -> SweepSpec:
        data: dict[str, dict[str, Any]] = {
            "sweep": {"compute": 20_000, "seeds": 2},
            "grid": {"problems_per_batch": [8], "rollouts_per_problem": [4, 16]},
            "problems": {"n_train": 50, "n_validation": 40},
            "evaluation": {"points": 8},
            "executor": {"kind": "inline"},
        }
        return SweepSpec.parse(data | {name: data.get(name, {}) | own for name, own in sections.items()})

    return make


@pytest.fixture(scope="session")
def same() -> Callable[[Any, Any], None]:
    """Assert that two tables are equal in everything but wall_s."""

    def check(left: Any, right: Any) -> None:
        left, right = (t if isinstance(t, pd.DataFrame) else t.to_pandas() for t in (left, right))
        assert len(left) > 0
        pd.testing.assert_frame_equal(left.drop(columns="wall_s"), right.drop(columns="wall_s"))

    return check


@pytest.fixture(scope="session")
def tree() -> Callable[[Path], dict[str, bytes | None]]:
    """Everything below a folder, with its content: equal before and after, if nothing was written."""

    def files(folder: Path) -> Iterator[tuple[str, bytes | None]]:
        for path in sorted(folder.rglob("*")):
            yield str(path.relative_to(folder)), path.read_bytes() if path.is_file() else None

    return lambda folder: dict(files(folder))
