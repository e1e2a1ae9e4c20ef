"""``isolaw model-size``: the published fit from the command line, JSON, predictions, messages."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

Call = Callable[..., tuple[int, str, str]]
DATA = Path(__file__).parents[2] / "examples" / "data"
MEANS, SINGLE = DATA / "tan_qwen_holdout_mean_base.csv", DATA / "tan_qwen_holdout_per_run_base.csv"
MAPPED = [
    *("--column", "model_size=model_size_B", "--column", "compute=compute_C_flops"),
    *("--column", "data=prompts_D", "--column", "loss=test_loss"),
]


@pytest.fixture
def table(tmp_path: Path) -> Callable[[str], Path]:
    """The rows of the means that meet a condition, as a file."""

    def written(condition: str) -> Path:
        pd.read_csv(MEANS).query(condition).to_csv(tmp_path / "means.csv", index=False)
        return tmp_path / "means.csv"

    return written


def strict(text: str) -> Any:
    """JSON without the NaN and Infinity that Python would let through."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} in JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.mark.parametrize(("x", "N0"), [("compute", "13.1"), ("data", "11.5")])
def test_the_printed_numbers(isolaw: Call, table: Callable[[str], Path], x: str, N0: str) -> None:
    intra = [table("in_intra_fit == 1"), *MAPPED]
    code, stdout, stderr = isolaw("model-size", *intra, "--x", x, "--draws", 0)
    lines = stdout.splitlines()
    assert code == 0
    assert "there are no intervals" in stderr
    assert lines[0] == (f"The law is fitted to 7 model sizes, N = 0.5 to 72, and 172 checkpoints. X is {x}.")
    assert lines[1:3] == ["K_max = 0.135", f"N0 = {N0}"]
    assert len(lines) == 4 + 7


def test_intervals_from_single_runs(isolaw: Call, table: Callable[[str], Path]) -> None:
    intra = [table("in_intra_fit == 1"), *MAPPED]
    code, stdout, stderr = isolaw(
        "model-size", *intra, "--column", "runs=n_runs", "--runs", SINGLE, "--draws", 50, "--json"
    )
    document = strict(stdout)
    assert code == 0
    assert stderr == ""
    assert document["warnings"] == []
    assert document["format"] == "isolaw.size/1"
    assert document["sources"] == [str(intra[0]), str(SINGLE)]
    assert document["bootstrap"] == {"draws": 50, "seed": 0}
    assert document["params"]["K_max"]["value"] == pytest.approx(0.13489, abs=1e-5)
    assert [s["model_size"] for s in document["sizes"]] == [0.5, 1.5, 3, 7, 14, 32, 72]
    for q in (*document["params"].values(), *(s[k] for s in document["sizes"] for k in "KE")):
        assert q["interval"][0] < q["value"] < q["interval"][1]
