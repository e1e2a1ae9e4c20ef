"""The half of docs/first-day.md for veRL: its scripts run, and veRL's own code reads what they make."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from isolaw import engine
from isolaw.backends.command import template
from isolaw.backends.command.options import CommandOptions
from isolaw.config import SweepSpec
from tests.backends.command.test_adapters import ROOT, TRAINERS, understood

PAGE = ROOT / "docs/first-day.md"
# A stand-in for veRL, which writes the log that isolaw has told it to write.
TRAINER = """
import json, os, random, sys
steps, n, out = (os.environ[f"ISOLAW_{name}"] for name in ("STEPS", "N", "OUT"))
(path,) = (word.partition("=")[2] for word in sys.argv if "VERL_FILE_LOGGER_PATH" in word)
(every,) = (int(word.partition("=")[2]) for word in sys.argv if word.startswith("trainer.test_freq="))
with open(path, "w") as log:
    for step in range(int(steps) + 1):
        data = {"critic/score/mean": 0.5} if step else {}
        if step % every == 0 or step == int(steps):  # as veRL does
            data["val-core/openai/gsm8k/reward/mean@1"] = 0.4 + 0.3 * step / (step + 1e3 / int(n))
        log.write(json.dumps({"step": step, "data": data}) + "\\n")
"""


def shown(begin: str) -> list[str]:
    """Return the indented blocks of the page that begin with a line."""
    block = rf"^    {re.escape(begin)}\n(?:(?: {{4}}[^\n]*)?\n)*"
    return [textwrap.dedent(text) for text in re.findall(block, PAGE.read_text(), re.M)]


@pytest.fixture
def day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which the scripts of the page have run, on 400 problems."""
    monkeypatch.chdir(tmp_path)
    data = tmp_path / "data/gsm8k/main"
    data.mkdir(parents=True)
    rows = [{"question": f"Add {i} and 1000.", "answer": f"It is so.\n#### {i + 1000:,}"} for i in range(400)]
    for part in ("train", "test"):
        pq.write_table(pa.Table.from_pylist(rows), data / f"{part}-00000-of-00001.parquet")
    for code in shown("import json, pathlib"):
        subprocess.run([sys.executable, "-c", code], check=True)
    (tmp_path / "sweep.toml").write_text(shown("[sweep]")[1])
    return tmp_path


@pytest.mark.real  # veRL's code is installed with it
def test_verls_reward_reads_the_answers(day: Path) -> None:
    file = TRAINERS / "parsers/verl/utils/reward_score/gsm8k.py"
    if not file.is_file():
        pytest.skip("needs the frameworks' parsers (make trainers)")
    spec = importlib.util.spec_from_file_location("gsm8k_score", file)
    assert spec is not None
    assert spec.loader is not None
    score = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(score)
    for part, count in (("validation", 300), ("train", 100)):
        rows = pq.read_table(f"gsm8k/{part}.parquet").to_pylist()
        assert len(rows) == count
        for row in rows:
            truth = row["reward_model"]["ground_truth"]
            assert score.compute_score(f"So it is.\n#### {int(truth):,}", truth) == 1
            assert row["prompt"][0]["content"].endswith('"####".')


@pytest.mark.nightly
@pytest.mark.real
@pytest.mark.slow
def test_verls_parser_reads_the_commands(day: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("isolaw.backends.command.visible_gpus", lambda: list("01234567"))
    runs = engine.resolve_sweep(SweepSpec.read("sweep.toml"), day / "out").runs
    assert len(runs) == 8
    commands = []
    for run in runs:
        options = CommandOptions.of(run)
        words = template.command_of(options, template.values_of(run, options, "/out")).words
        assert words[:3] == ("python3", "-m", "verl.trainer.main_ppo")
        commands.append(list(words[3:]))
    for run, known in zip(runs, understood("veRL", *commands), strict=True):
        assert known("data.train_batch_size") == 32
        assert known("actor_rollout_ref.rollout.n") == run.rollouts_per_problem
        assert known("trainer.total_training_steps") == run.steps
        assert known("data.max_response_length") == 1024
        assert (day / known("data.val_files")).is_file()


@pytest.mark.slow
def test_the_answer_names_an_allocation(day: Path, isolaw: Any) -> None:
    (day / "train.py").write_text(TRAINER)
    run = [sys.executable, "train.py"]
    small = [f"command.run={run}", "command.gpus=0"]
    settings = [word for setting in small for word in ("--set", setting)]
    code, _, stderr = isolaw("sweep", "sweep.toml", "--out", "runs/verl", *settings)
    assert code == 0, stderr
    (line,) = (
        line for line in PAGE.read_text().splitlines() if line.startswith("    isolaw answer runs/verl")
    )
    code, stdout, stderr = isolaw(*line.split()[1:])
    assert code == 0, stdout + stderr
    assert "n = " in stdout.partition("\n")[0]
