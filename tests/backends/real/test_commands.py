"""The commands of docs/real.md for what one asks for at once, with the tiny model in place of large ones."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from isolaw.store import SweepStore

pytestmark = [pytest.mark.real, pytest.mark.slow]
ROOT = Path(__file__).parents[3]
SMALL = {
    "sweep.compute": "64", "sweep.seeds": "1", "grid.rollouts_per_problem": "[2]", "evaluation.points": "2",
    "problems.n_validation": "8", "real.sampler": "transformers", "executor.kind": "inline",
}  # fmt: skip
REWARDS = """
def brief(prompt, response, answer): return 1.0 / (1 + len(response))
"""


def documented(name: str, words: str) -> list[str]:
    """The arguments of the one documented command ``isolaw NAME`` with these words in it."""
    page = re.sub(r" *\\\n +", " ", (ROOT / "docs" / "real.md").read_text())
    (found,) = [
        line for line in page.splitlines() if line.startswith(f"    isolaw {name} ") and words in line
    ]
    return shlex.split(found)[1:]


@pytest.fixture
def place(made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with what the commands name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "my_rewards.py").write_text(REWARDS)
    (tmp_path / "demo-real").mkdir()
    (tmp_path / "demo-real" / "base").symlink_to(made.model.parent)
    (tmp_path / "models").mkdir()
    shutil.copytree(made.model, tmp_path / "models" / "Qwen3-8B")
    template = "{% for m in messages %}{{ m.content }}{% endfor %}{{ '=' if enable_thinking else '+0=' }}"
    (tmp_path / "models" / "Qwen3-8B" / "chat_template.jinja").write_text(template)
    lines = (made.model.parent / "pool.jsonl").read_text().splitlines()[:8]
    (tmp_path / "pool.jsonl").write_text("\n".join(lines).replace('="', '"') + "\n")
    return tmp_path


def done(isolaw: Any, *words: str) -> str:
    code, stdout, stderr = isolaw(*words)
    assert code == 0, stderr
    return str(stdout)


def test_splits(isolaw: Any, place: Path) -> None:
    words = documented("problems", "pool.jsonl --chat")
    small = ["--max-response-tokens", "6", "--samples", "4", "--more-samples", "4"]
    report = json.loads(done(isolaw, *words, *small, "--sampler", "transformers", "--json"))
    assert report["problems"] == 8
    header = json.loads((Path(words[words.index("--out") + 1]) / "split.json").read_text())
    assert header["settings"]["chat_template"] == {"enable_thinking": False}


def test_sweeps_an_export_and_a_report(isolaw: Any, place: Path) -> None:
    settings = [part for key, value in SMALL.items() for part in ("--set", f"{key}={value}")]
    cooler = ("--set", "recipe.temperature=1.0", "--set", "evaluation.temperature=0.6")
    own = ("--set", "real.reward=my_rewards:brief")
    done(isolaw, "sweep", "examples/real-tiny.toml", *cooler, *own, "--out", "demo-real/two", *settings)
    (cool,) = SweepStore("demo-real/two").specs()[0].values()
    assert cool.identity()["evaluation"] == {"temperature": 0.6}
    points = pd.read_parquet("demo-real/two/points.parquet")
    assert {"reward", "avg@4"} <= set(points["metric"])
    done(isolaw, *documented("sweep", "lora_rank"), *settings)
    adapted = SweepStore("demo-real/lora").specs()[0].values()
    assert {(spec.recipe.lora_rank, spec.recipe.lora_alpha) for spec in adapted} == {(4, 32.0), (64, 32.0)}
    done(isolaw, "sweep", "examples/real-tiny.toml", "--out", "demo-real/sweep", *settings)
    (run_id,) = SweepStore("demo-real/sweep").specs()[0]
    words = [word.replace("1f2e3d4c", run_id[:8]) for word in documented("export", "--out")]
    assert f"step 2 of run {run_id[:12]}, after 64 rollouts" in done(isolaw, *words)
    code, _, stderr = isolaw("export", "demo-real/sweep", "--out", "models/other")
    assert code == 2
    assert "to list its runs: isolaw read demo-real/sweep" in stderr
    done(isolaw, *documented("report", "demo-real/sweep"))
    page = Path("report.html").read_text()
    assert page.count('class="said"') == 3 * 8 * 3  # prompts, responses and answers at three evaluations
