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
INTRA = [MEANS, *MAPPED, "--where", "in_intra_fit=1"]


def strict(text: str) -> Any:
    """JSON without the NaN and Infinity that Python would let through."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} in JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.mark.parametrize(("x", "N0"), [("compute", "13.1"), ("data", "11.5")])
def test_the_printed_numbers(isolaw: Call, x: str, N0: str) -> None:
    code, stdout, stderr = isolaw("model-size", *INTRA, "--x", x, "--draws", 0)
    lines = stdout.splitlines()
    assert (code, stderr) == (0, "")
    assert lines[0] == (
        f"The law is fitted to 7 model sizes, N = 0.5 to 72, and 172 checkpoints. X is {x}, and the fit "
        "minimizes the squared error in L."
    )
    assert lines[1:3] == ["K_max = 0.135", f"N0 = {N0}"]
    assert len(lines) == 4 + 7


def test_intervals_from_single_runs(isolaw: Call) -> None:
    code, stdout, stderr = isolaw(
        "model-size", *INTRA, "--column", "runs=n_runs", "--runs", SINGLE, "--draws", 50, "--json"
    )
    document = strict(stdout)
    assert code == 0
    assert stderr.startswith("note: the curves are less straight than the law assumes: K changes by +56 %")
    assert document["warnings"] == [stderr.removeprefix("note: ").strip()]
    assert document["bend"]["interval"][0] > 0
    assert document["format"] == "isolaw.size/1"
    assert document["sources"] == [str(MEANS), str(SINGLE)]
    assert document["bootstrap"] == {"unit": "run", "draws": 50, "seed": 0}
    assert document["params"]["K_max"]["value"] == pytest.approx(0.13489, abs=1e-5)
    assert [s["model_size"] for s in document["sizes"]] == [0.5, 1.5, 3, 7, 14, 32, 72]
    for q in (*document["params"].values(), *(s[k] for s in document["sizes"] for k in "KE")):
        assert q["interval"][0] < q["value"] < q["interval"][1]


def test_single_runs(isolaw: Call) -> None:
    code, stdout, stderr = isolaw("model-size", SINGLE, *MAPPED, "--where", "step>=30", "--draws", 20)
    assert code == 0
    assert "K_max = not identified\nN0 = not identified\n" in stdout
    assert stderr.startswith("note: K(N) grows in proportion to N up to N = 14")


def test_predictions(isolaw: Call) -> None:
    inter = [MEANS, *MAPPED, "--where", "in_inter_fit=1", "--x", "data", "--draws", 50]
    asked = ["--predict", "N=72", "--predict", "N=14"]
    code, stdout, _ = isolaw("model-size", *inter, *asked)
    unseen, seen = stdout.splitlines()[-2:]
    assert code == 0
    assert unseen.startswith("N = 72 at data = 53,248: reward 0.58")
    assert unseen.endswith("(E(N) is extrapolated)")
    assert seen.startswith("N = 14 at data = 53,760: reward 0.4")
    assert "extrapolated" not in seen
    document = strict(isolaw("model-size", *inter, *asked, "--at", 1e5, "--at", 2e5, "--json")[1])
    found = document["predictions"]
    assert [(p["model_size"], p["data"]) for p in found] == [(72, 1e5), (72, 2e5), (14, 1e5), (14, 2e5)]
    assert [p["extrapolated_size"] for p in found] == [True, True, False, False]
    assert found[0]["reward"]["interval"][0] < found[0]["reward"]["value"] < found[1]["reward"]["value"]


def test_the_last_compute_of_an_unseen_size_has_as_many_tokens(isolaw: Call) -> None:
    small = [MEANS, *MAPPED, "--where", "model_size<=32", "--draws", 0, "--json"]
    found = strict(isolaw("model-size", *small, "--predict", "N=72", "--predict", "N=32")[1])["predictions"]
    assert found[0]["compute"] == pytest.approx(found[1]["compute"] * 72 / 32)


def test_the_log_loss(isolaw: Call) -> None:
    document = strict(isolaw("model-size", *INTRA, "--loss", "log", "--draws", 0, "--json")[1])
    assert document["loss"] == "log"
    assert document["params"]["N0"]["value"] == pytest.approx(13.361, abs=0.001)


def test_conditions(isolaw: Call, tmp_path: Path) -> None:
    table = pd.read_csv(MEANS).assign(kind=["base", "other"] * 366)
    table.to_csv(tmp_path / "t.csv", index=False)

    def rows(*conditions: str) -> int:
        options = [option for c in conditions for option in ("--where", c)]
        code, stdout, stderr = isolaw(
            "model-size", tmp_path / "t.csv", *MAPPED, *options, "--draws", 0, "--json"
        )
        assert code == 0, stderr
        return strict(stdout)["checkpoints"]

    assert rows() == 732
    assert rows("kind=base") == 366
    assert rows("step <= 20", "model_size_B>=3") == 100
