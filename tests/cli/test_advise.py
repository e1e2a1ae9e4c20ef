"""``isolaw advise``: in words, as JSON, and the sweep file."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from isolaw import SweepSpec

Call = Callable[..., tuple[int, str, str]]
PAGE = Path(__file__).parents[2] / "docs" / "advise.md"


def test_the_page_shows_what_it_prints(isolaw: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    command, shown = re.search(
        r"```sh\nisolaw (.+?)\n```\n\nprints\n\n(.+?)\n\n\S", PAGE.read_text(), re.S
    ).groups()  # type: ignore[union-attr]
    code, stdout, _ = isolaw(*command.split())
    assert code == 0
    parts = [part.splitlines() for part in re.sub("^    ", "", shown, flags=re.M).split("\n…\n")]
    printed = stdout.rstrip().splitlines()
    assert (printed[: len(parts[0])], printed[-len(parts[-1]) :]) == (parts[0], parts[-1])
    assert all("\n".join(part) in stdout for part in parts)


def test_it_says_first_what_it_rests_on(isolaw: Call) -> None:
    for budget in ("1M", "1e9"):
        _, stdout, _ = isolaw("advise", "--compute", budget)
        assert stdout.startswith("From published results alone: n")
        assert "no run of your model" in stdout.splitlines()[1]
        _, stdout, _ = isolaw("advise", "--budget", budget, "--json")
        data = json.loads(stdout)
        assert list(data)[:4] == ["simulated", "format", "evidence", "own_runs"]
        assert (data["evidence"], data["simulated"], data["own_runs"]) == ("published", False, 0)


def test_json_has_what_the_text_has(isolaw: Call) -> None:
    code, stdout, _ = isolaw(
        "advise", "--budget", "3e6", "--difficulty", "easy", "--model-size", "500M", "--json"
    )
    assert code == 0
    data = json.loads(stdout)
    assert data["model_size"] == 0.5
    start = data["start"]
    assert start["problems_per_batch"] * start["rollouts_per_problem"] * start["steps"] <= 3e6
    assert start["n_range"]["low"] <= start["rollouts_per_problem"] <= start["n_range"]["high"]
    assert {own["source"]["publication"] for own in data["sources"]} == {
        "arXiv 2603.12151", "arXiv 2509.25300", "isolaw",
    }  # fmt: skip
    assert data["caveats"] == ["one_publication"]
    assert data["sweep_rollouts"] == data["sweep"]["sweep"]["compute"] * 3


def test_no_source_no_number(isolaw: Call) -> None:
    code, stdout, _ = isolaw("advise", "--budget", "1e9", "--json")
    assert code == 1
    assert json.loads(stdout)["start"] is None
    code, stdout, _ = isolaw("advise", "--budget", "1e9")
    assert code == 1
    assert "no starting point" in stdout.splitlines()[0]
    assert "n* is at least 250 at C = 1e7" in stdout
    assert "Start with " not in stdout
    code, stdout, _ = isolaw("advise", "--budget", "1e6", "--difficulty", "hard")
    assert code == 1
    assert "no n* is known on hard problems" in stdout.splitlines()[0]
    assert "its problems are easy, and yours are hard" in stdout
    assert "Publications disagree: n* rises with C" in stdout.splitlines()[2]


def test_the_answer_is_in_the_first_three_lines(isolaw: Call) -> None:
    _, stdout, _ = isolaw("advise", "--budget", "1e6", "--difficulty", "easy", "--model-size", "7B")
    first, second, third = stdout.splitlines()[:3]
    assert "n = 64, B_p = 64, M = 244. In the sources, n* is 57 (15–246)" in first
    assert "easy problems; a model of 7B" in second
    assert "It Takes Two" in third
    assert "IsoCompute, BroRL" in third
    _, stdout, _ = isolaw("advise", "--budget", "1e6", "--json")
    assert len({own["publication"] for own in json.loads(stdout)["statements"]}) == 7


def test_a_size_a_hundred_times_away_gets_no_answer(isolaw: Call) -> None:
    code, stdout, _ = isolaw("advise", "--budget", "1e6", "--model-size", "2000B")
    assert code == 1
    assert (
        "over 100 times larger or smaller than all models in the sources (0.13M–7.6B)"
        in stdout.splitlines()[0]
    )
    assert "These publications comment" not in stdout
    code, stdout, _ = isolaw("advise", "--budget", "1e6", "--model-size", "700B", "--json")
    assert code == 0


def test_the_sweep_file(isolaw: Call, tmp_path: Path) -> None:
    out = tmp_path / "first.toml"
    words = [
        "advise",
        "--budget",
        "1e6",
        "--max-batch-rollouts",
        "8192",
        "--difficulty",
        "easy",
        "--out",
        out,
    ]
    code, stdout, stderr = isolaw(*words)
    assert code == 0
    assert f"isolaw sweep {out} --out runs/first --dry-run" in stderr
    spec = SweepSpec.read(out)
    assert spec.limits.max_batch_rollouts == 8192
    assert spec.problems.difficulty == "easy"
    levels = ", ".join(map(str, spec.grid.rollouts_per_problem))
    assert f"n = {levels} with B_p = {spec.grid.problems_per_batch[0]} and one seed" in stdout
    assert isolaw(*words)[0] == 0  # its own file is replaced
    out.write_text("[sweep]\n")
    code, stdout, stderr = isolaw(*words)
    assert (code, stdout) == (2, "")
    assert "left unchanged" in stderr


@pytest.mark.slow
def test_the_commands_that_it_ends_with(isolaw: Call, tmp_path: Path) -> None:
    """The sweep, on a simulator: isolaw fits it, and recommends for the budget."""
    first, runs, law = (tmp_path / name for name in ("first.toml", "runs", "law.json"))
    assert isolaw("advise", "--budget", "3e5", "--difficulty", "easy", "--out", first)[0] == 0
    plan = [
        "plan",
        first,
        "--compute",
        "300000",
        "--set",
        "sweep.seeds=3",
        "--repetitions",
        "1",
        "--jobs",
        "1",
    ]
    assert isolaw(*plan)[0] == 0
    simulated = first.read_text().partition("[problems]")[0].replace('"real"', '"bandit"')
    first.write_text(simulated + '[executor]\nkind = "inline"\n')
    assert isolaw("sweep", first, "--out", runs)[0] == 0
    assert isolaw("fit", runs, "--draws", "20", "--out", law)[0] == 0
    assert isolaw("predict", law, "--compute", "300000")[0] == 0


def test_mistakes(isolaw: Call) -> None:
    code, _, stderr = isolaw("advise", "--budget", "-1", "--n-train-problems", "5", "--model-size", "0")
    assert code == 2
    assert "budget: found -1" in stderr
    assert "model_size: found 0" in stderr
    code, _, stderr = isolaw("advise", "--budget", "1e6", "--model-size", "7X")
    assert code == 2
    assert "--model-size: found '7X'; expected e.g. 7B or 500M" in stderr


def test_a_page_instead_of_a_sweep_file(isolaw: Call, tmp_path: Path) -> None:
    page, mine = tmp_path / "advice.html", tmp_path / "mine.html"
    code, stdout, stderr = isolaw("advise", "--budget", "1e6", "--out", page)
    assert (code, f"Report: {page}" in stderr) == (0, True)
    assert f"<h1>{stdout.splitlines()[0]}</h1>" in page.read_text()
    assert f"<code>isolaw advise --budget 1e6 --out {page}</code>" in page.read_text()
    mine.write_text("<p>mine</p>")
    code, _, stderr = isolaw("advise", "--budget", "1e6", "--out", mine)
    assert (code, "exists and is not a report" in stderr) == (2, True)
