"""``isolaw predict``: the recommendation in words and as JSON."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from shared_laws import SharedLaws

from isolaw.fits.law import Law

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def law(shared: SharedLaws) -> Path:
    return shared.path("surface B_p")


def strict(text: str) -> Any:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} in JSON")

    return json.loads(text, parse_constant=refuse)


def test_in_words(isolaw: Call, law: Path) -> None:
    code, stdout, stderr = isolaw("predict", law, "--compute", "5e5")
    a = Law.load(law).predict(5e5).allocation
    assert (code, stderr) == (0, "")
    assert stdout.startswith(f"For 500k rollouts: n = {a.rollouts_per_problem}, ")
    assert f"M = {a.steps:,} steps" in stdout
    assert "95 % interval" in stdout


def test_as_json(isolaw: Call, law: Path) -> None:
    code, stdout, stderr = isolaw("predict", law, "--compute", "1e7", "--json")
    assert (code, stderr) == (0, "")
    data = strict(stdout)
    estimates = {"reward", "n_star", "b_star", "m_star"}
    assert {"compute", "options", "expected_loss", "probability_within_tolerance", "flags"} <= set(data)
    assert data["compute"] == 10_000_000
    for name in estimates:
        assert set(data[name]) == {"value", "interval", "status"}
    n, b, steps = (data[k] for k in ("rollouts_per_problem", "problems_per_batch", "steps"))
    assert n * b * steps + data["unspent"] == 10_000_000
    losses = [option["expected_loss"] for option in data["options"]]
    assert losses[0] == data["expected_loss"]
    assert max(losses[1:], default=0.0) <= 0.005
    assert "extrapolation" in [flag["code"] for flag in data["flags"]]
    assert data.pop("format") == "isolaw.predict/1"
    assert data == Law.load(law).predict(1e7).to_dict()


def test_a_budget_too_far_away_is_refused(isolaw: Call, law: Path) -> None:
    code, stdout, stderr = isolaw("predict", law, "--compute", "1e8")
    assert (code, stderr) == (1, "")
    first, why, step, answer, *_ = stdout.splitlines()
    assert first == "isolaw recommends no allocation for 100M rollouts."
    assert why.startswith("Long extrapolation: ")
    assert step.startswith("Next: Train n = ")
    assert answer.startswith("The largest budget with a recommendation is 10M rollouts: n = ")
    code, stdout, _ = isolaw("predict", law, "--compute", "1e8", "--json")
    data = strict(stdout)
    assert code == 1
    nothing = ("rollouts_per_problem", "problems_per_batch", "steps", "unspent", "expected_loss", "epochs")
    assert {data[name] for name in (*nothing, "probability_within_tolerance")} == {None}
    assert data["reward"] == {"value": None, "interval": None, "status": "refused"}
    assert data["options"] == []
    assert data["comparable"] >= 10_000_000
    assert "far" in {flag["code"] for flag in data["flags"]}


@pytest.mark.parametrize("budget", ["1e6", "1000000", "1000000.0", "1_000_000", "1,000,000", "1M", "1000k"])
def test_ways_to_write_a_budget(isolaw: Call, law: Path, budget: str) -> None:
    code, stdout, _ = isolaw("predict", law, "--compute", budget, "--json")
    assert code == 0
    assert strict(stdout)["compute"] == 1_000_000


def test_cap_and_training_problems(isolaw: Call, law: Path) -> None:
    options = ("--max-batch-rollouts", 4096, "--n-train-problems", 100)
    data = strict(isolaw("predict", law, "--compute", "9e6", *options, "--json")[1])
    assert data["rollouts_per_problem"] * data["problems_per_batch"] <= 4096
    assert data["epochs"] == pytest.approx(32 * data["steps"] / 100)
    assert {"limited", "epochs"} <= {flag["code"] for flag in data["flags"]}


@pytest.mark.parametrize(
    "content", [b"", b"notes", b"{}", b"[1]", b"\xff\x00", b'{"format": "isolaw.law/1"}']
)
def test_not_a_law(isolaw: Call, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "law.json"
    path.write_bytes(content)
    code, stdout, stderr = isolaw("predict", path, "--compute", "1e6", "--json")
    assert (code, stdout) == (2, "")
    assert str(path) in stderr
    assert path.read_bytes() == content


def test_no_such_law(isolaw: Call, tmp_path: Path) -> None:
    code, stdout, stderr = isolaw("predict", tmp_path / "gone.json", "--compute", "1e6")
    assert (code, stdout) == (2, "")
    assert "No such file" in stderr


@pytest.mark.slow
def test_as_a_program(command: str, law: Path) -> None:
    def script(*arguments: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [command, "predict", *map(str, arguments)], capture_output=True, text=True, check=False
        )

    done = script(law, "--compute", "5e5", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert strict(done.stdout)["compute"] == 500_000


def test_what_it_costs(isolaw: Call, law: Path) -> None:
    own = "12/s@8"
    code, stdout, stderr = isolaw("predict", law, "--budget", "384gpuh", "--cost", f"{own},2.5/h")
    assert (code, stderr) == (0, "")
    first, *_ = lines = stdout.splitlines()
    assert first.startswith("For 384gpuh: n = ")
    (cost,) = [line for line in lines if line.startswith("Cost: ")]
    assert re.fullmatch(
        r"Cost: 38[2-4] GPU hours, (48|47\.[89]) hours on 8 GPUs, 9\d\d at 2\.5 per GPU hour, estimated from "
        r"the given throughputs \(12/s@8; 8 GPUs\)\.",
        cost,
    )
    code, stdout, _ = isolaw("predict", law, "--compute", "5e5", "--cost", own, "--json")
    data = strict(stdout)
    step = 32 * data["rollouts_per_problem"] / 12
    assert data["cost"]["gpu_hours"]["value"] == pytest.approx(data["steps"] * step * 8 / 3600)
    assert (data["cost"]["source"], data["cost"]["money"], data["budget"]) == ("rate", None, None)
    # Beyond ten times the compute of the runs, the largest budget with an answer, in hours.
    code, stdout, _ = isolaw("predict", law, "--budget", "1e6gpuh", "--cost", own)
    assert code == 1
    found = re.search(r"The largest budget with a recommendation is ([\d.e+]+gpuh): n = ", stdout)
    assert found
    code, *_ = isolaw("predict", law, "--budget", found[1], "--cost", own)
    assert code == 0
    for wrong in (
        ["--budget", "1h"],
        ["--compute", "1e5", "--cost", f"{own},0/h"],
        [],
        ["--compute", "1", "--budget", "1h"],
    ):
        assert isolaw("predict", law, *wrong)[0] == 2
