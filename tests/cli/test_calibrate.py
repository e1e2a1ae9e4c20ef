"""``isolaw calibrate``, and ``isolaw predict --method simulate`` with what it made."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest

import isolaw as library
from isolaw.runs import Runs

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def table(synthetic: Callable[..., Runs], tmp_path: Path) -> Path:
    runs = synthetic(
        [(8, 4), (8, 16)], seeds=1, checkpoints=10, compute=20_000, attributes={"lr": 1e-3, "kl": 0.0}
    )
    runs.to_parquet(tmp_path / "runs.parquet")
    return tmp_path / "runs.parquet"


@pytest.mark.usefixtures("quick_calibration")
def test_a_calibration_and_what_follows_it(isolaw: Call, table: Path, tmp_path: Path) -> None:
    out, figure, few = tmp_path / "mine.toml", tmp_path / "mine.png", ("--n-train", 100, "--jobs", 1)
    code, text, err = isolaw("calibrate", table, "--out", out, "--figure", figure, *few)
    assert code == 0, err
    lines = text.splitlines()
    assert lines[0].startswith(
        "Partly simulated runs. isolaw fitted the interference simulator to 2 runs of 2 "
    )
    assert any(line.split()[:1] == ["kappa"] for line in lines)
    assert "Assumptions:" in lines
    assert str(figure) in err
    assert figure.read_bytes()[:4] == b"\x89PNG"
    command = next(line for line in lines if line.startswith("Next: isolaw predict")).split()[2:]
    code, text, err = isolaw(*command, "--jobs", "1")
    assert code == 0, err
    assert "preset mine with 8 members" in text
    page = tmp_path / "mine.html"
    code, text, err = isolaw("calibrate", table, *few, "--report", page, "--json")
    data = json.loads(text)
    assert data["simulated"] == "partly"
    assert {"lr", "sigma2", "mean"} <= {c["name"] for c in data["constants"]}
    assert "add --out" in err
    assert f"Report: {page}" in err
    shown = page.read_text()
    assert f"<code>isolaw calibrate {table} --n-train 100" in shown
    assert hashlib.sha256(table.read_bytes()).hexdigest() in shown


def test_mistakes_are_named_before_anything_is_simulated(isolaw: Call, table: Path, tmp_path: Path) -> None:
    code, _, err = isolaw("calibrate", table, "--figure", tmp_path / "mine.jpg")
    assert (code, "expected a file ending in .png, .svg, .pdf" in err) == (2, True)
    (tmp_path / "notes.toml").write_text("[notes]\n")
    code, _, err = isolaw("calibrate", table, "--out", tmp_path / "notes.toml")
    assert code == 2
    assert "notes.toml" in err
    (tmp_path / "notes.html").write_text("<p>notes</p>")
    code, _, err = isolaw("calibrate", table, "--report", tmp_path / "notes.html")
    assert (code, "notes.html: exists and is not a report; it is left unchanged" in err) == (2, True)
    code, _, err = isolaw("calibrate", table, "--problems", "esay")
    assert (code, "did you mean 'easy'" in err) == (2, True)
    code, _, err = isolaw("calibrate", table, "--where", "n=4")
    assert (code, "at least 2 configurations; found 1" in err) == (1, True)


def test_predictions_side_by_side(
    isolaw: Call, synthetic: Callable[..., Runs], preset_file: Path, tmp_path: Path
) -> None:
    runs = synthetic([(8, n) for n in (4, 8, 16, 32)], compute=2e5, checkpoints=15)
    law = library.fit(runs, draws=20).save(tmp_path / "law.json")
    words = ["predict", law, "--method", "simulate", "--preset", preset_file, "--jobs", 1, "--compute"]
    code, text, err = isolaw(*words, "3e5")
    assert code == 0, err
    assert text.startswith(
        "Simulated runs. This prediction is from a calibrated simulator: preset preset with 4 members"
    )
    assert "The fitted law:" in text
    data = json.loads(isolaw(*words, "3e5", "--json")[1])
    assert data["law"]["simulated"] is False
    assert data["simulated"] is True
    code, text, err = isolaw(*words, "9e6")  # beyond the law, which recommends nothing
    assert code == 0, err
    assert "isolaw recommends no allocation for this budget." in text
    code, _, err = isolaw(*words, "9e9")
    assert (code, "at most 100 times" in err) == (1, True)


def test_options_that_go_together(isolaw: Call, preset_file: Path) -> None:
    for words in (["--method", "simulate"], ["--preset", preset_file]):
        code, _, err = isolaw("predict", "law.json", "--compute", "1e5", *words)
        assert (code, "require each other" in err) == (2, True)
    code, _, err = isolaw("predict", "--compute", "1e5")
    assert (code, "expected LAW" in err) == (2, True)
    code, _, err = isolaw("predict", "--method", "simulate", "--preset", "gone.toml", "--compute", "1e5")
    assert (code, "gone.toml: No such file" in err) == (2, True)
