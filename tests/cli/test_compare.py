"""``isolaw compare``: two configurations, in words and as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from isolaw.runs import Runs

Call = Callable[..., tuple[int, str, str]]


def strict(text: str) -> Any:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} in JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.fixture
def source(synthetic: Callable[..., Runs], tmp_path: Path) -> Path:
    """A table of three n."""
    path = tmp_path / "runs.parquet"
    synthetic([(32, 4), (32, 8), (32, 32)], noise=0.004).to_parquet(path)
    return path


@pytest.mark.parametrize(
    ("options", "code", "word"),
    [
        (["--metric", "avg@5"], 2, "found no avg@5"),
        (["--eval-set", "aime"], 2, "found no avg@4 on aime"),
        (["--compute", "much"], 2, "much"),
        (["--compute", "nan"], 2, "expected rollouts"),
        (["--column", "seed"], 2, "expected NAME=VALUE"),
    ],
)
def test_wrong_usage(isolaw: Call, source: Path, options: list[str], code: int, word: str) -> None:
    found, stdout, stderr = isolaw("compare", source, "n=8", "n=4", "--compute", "1e5", *options)
    assert (found, stdout) == (code, "")
    assert word in stderr
    assert "Traceback" not in stderr


@pytest.mark.slow
def test_two_configurations_of_one_source(isolaw: Call, source: Path) -> None:
    code, stdout, stderr = isolaw("compare", source, "n=16", "B_p=32,n=4", "--compute", "5e5")
    assert (code, stderr) == (0, "")
    assert stdout.startswith("A is better at C = 5e5")
    assert "A has no runs, so the surface through 9 runs predicts its reward." in stdout
    code, stdout, _ = isolaw("compare", source, "n=8", "n=4", "--target", "0.45", "--json")
    assert code == 0
    data = strict(stdout)
    assert (data["shapes"], data["quantity"]) == ([[32, 8], [32, 4]], "rollouts")
    for words, message in (
        (["n=8", "n=4"], "expected one of: "),
        (["n=8", "--compute", "1e5"], "expected one of: "),
        (["n=8", "n=4", "--compute", "1e5", "--target", "0.5"], "expected one of: "),
        (["n=8", "n=4", "--target", "0.5,0.6"], "target: found [0.5, 0.6]; expected a finite number"),
        (["k=8", "n=4", "--compute", "1e5"], "found 'k=8'; expected B_p and n, e.g. (128, 8)"),
        (["n=8", "n=4", "--compute", "48h"], "requires the cost of a step: --cost SOURCE"),
        ([], "expected one of: "),
        (["--compute", "1e5"], "expected one of: "),
        (["--target", "high"], "found 'high'; expected rewards"),
    ):
        code, _, stderr = isolaw("compare", source, *words)
        assert code == 2
        assert message in stderr
