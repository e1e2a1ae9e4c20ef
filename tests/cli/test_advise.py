"""``isolaw advise``: in words and as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from isolaw.cli import cli

Call = Callable[..., tuple[int, str, str]]
PAGE = Path(__file__).parents[2] / "docs" / "advise.md"


def test_the_page_shows_what_it_prints(isolaw: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "examples").symlink_to(PAGE.parents[1] / "examples")
    monkeypatch.chdir(tmp_path)
    command, shown = re.search(
        r"```sh\nisolaw (.+?)\n```\n\nprints\n\n(.+?)\n\n\S", PAGE.read_text(), re.S
    ).groups()  # type: ignore[union-attr]
    code, stdout, _ = isolaw(*command.split())
    assert code == 0
    first, *parts = re.sub("^    ", "", shown, flags=re.M).removesuffix("\n…").split("\n…\n")
    assert stdout.startswith(first)
    assert all(part in stdout for part in parts)


def test_it_says_first_what_it_rests_on(isolaw: Call) -> None:
    for budget in ("1M", "1e9"):
        _, stdout, _ = isolaw("advise", "--compute", budget)
        assert stdout.startswith("From published results alone, ")
        assert "no run of your model" in stdout.splitlines()[4]
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
    assert {source["source"]["publication"] for source in data["sources"]} == {
        "arXiv 2603.12151", "arXiv 2509.25300", "isolaw",
    }  # fmt: skip
    assert data["caveats"] == ["one_publication"]
    assert list(data["sweeps"]) == ["lr", "batch", "grid"]
    assert data["sweeps"]["grid"]["file"]["design"]["kind"] == "race"
    assert data["sweeps"]["grid"]["cost"] is None


def test_no_source_no_number(isolaw: Call) -> None:
    code, stdout, _ = isolaw("advise", "--budget", "1e9", "--json")
    assert code == 0
    assert json.loads(stdout)["start"] is None
    code, stdout, _ = isolaw("advise", "--budget", "1e9")
    assert code == 0
    assert "no starting point" in stdout.splitlines()[0]
    assert "n* is at least 250 at C = 1e7" in stdout
    assert "start with " not in stdout.casefold()
    code, stdout, _ = isolaw("advise", "--budget", "1e6", "--difficulty", "hard")
    assert code == 0
    assert "no n* is known on hard problems" in stdout.splitlines()[0]
    assert "Publications disagree: n* rises with C" in stdout.splitlines()[5]


def test_the_answer_is_in_the_first_four_lines(isolaw: Call) -> None:
    """Where to start and why; which race with its hours and price; how to find its lr first."""
    words = ["advise", "--budget", "1e6", "--difficulty", "easy", "--model-size", "7B"]
    _, stdout, _ = isolaw(*words, "--cost", "12/s@8,2/h")
    first, second, third, total, fourth, fifth = stdout.splitlines()[:6]
    assert "start with n = 64, B_p = 64, M = 244: the sources have n* = 57 (15–246)" in first
    assert "Let a race choose n: n = 16, 32, 64, 128 with B_p = 32 and 2 seeds, up to C = 1e5" in second
    assert "GPU hours" in second
    assert "at 2 per GPU hour" in second
    assert "5 lr at n = 4 with B_p = 32" in third
    assert "lr ∝ √B at n = 2 and 8" in third
    assert "that remain buy a final run of M = " in total
    assert "easy problems; a model of 7B" in fourth
    assert "It Takes Two" in fifth
    assert "IsoCompute, BroRL" in fifth


def test_a_size_a_hundred_times_away_gets_no_answer(isolaw: Call) -> None:
    code, stdout, _ = isolaw("advise", "--budget", "1e6", "--model-size", "2000B")
    assert code == 0
    assert (
        "over 100 times larger or smaller than all models in the sources (0.13M–7.6B)"
        in stdout.splitlines()[0]
    )
    code, stdout, _ = isolaw("advise", "--budget", "1e6", "--model-size", "700B", "--json")
    assert code == 0


def test_mistakes(isolaw: Call) -> None:
    code, _, stderr = isolaw("advise", "--budget", "-1")
    assert (code, "found -1; expected a number of rollouts" in stderr) == (2, True)
    code, _, stderr = isolaw("advise", "--budget", "1e6", "--model-size", "0")
    assert (code, "model_size: found 0" in stderr) == (2, True)
    code, _, stderr = isolaw("advise", "--budget", "1e6", "--model-size", "7X")
    assert code == 2
    assert "--model-size: found '7X'; expected e.g. 7B or 500M" in stderr


def test_at_most_twelve_options() -> None:
    assert len(cli.commands["advise"].params) + 1 <= 12  # and --help
