"""Notebooks: the Trainer's progress table and what cells printed, as nbformat 4 keeps them.

The table is as `transformers.utils.notebook` writes it (version 4.5x): a progress bar, then a table of
pandas' class.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import isolaw
from isolaw.errors import DataError
from isolaw.readers.containers.notebook import CONTAINER, _html_tables
from isolaw.readers.how_to_read import HowToRead
from isolaw.readers.survey import survey

REWARDS = [0.125, 0.25, 0.375]
BANNER = (
    "==((====))==  Unsloth - 2x faster free finetuning | Num GPUs used = 1\n"
    "   \\\\   /|    Num examples = 100 | Num Epochs = 1 | Total steps = 30\n"
    "O^O/ \\_/ \\    Batch size per device = 4 | Gradient accumulation steps = 8\n"
    "\\        /    Data Parallel GPUs = 1 | Total batch size (4 x 8 x 1) = 32\n"
)
CODE = "%pip install trl\nSIZE = 4\nargs = GRPOConfig(\n    num_generations=SIZE, num_iterations=1)"


def html(rewards: list[float], every: int = 10) -> str:
    names = ["Step", "Training Loss", "reward", "completions / mean_length", "rewards / correct / mean"]
    rows = [[k * every, "0.000000", f"{r:.6f}", 99.5, f"{r / 2:.6f}"] for k, r in enumerate(rewards, 1)]
    head = "".join(f"<th>{name}</th>" for name in names)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return (
        "<div><progress value='3' max='30'></progress> [30/30 01:00]</div>"
        f'<table border="1" class="dataframe"><thead><tr style="text-align: left;">{head}</tr></thead>'
        f"<tbody>{body}</tbody></table><p>"
    )


def stream(text: str) -> dict[str, Any]:
    return {"output_type": "stream", "name": "stdout", "text": text.splitlines(keepends=True)}


def display(text: str) -> dict[str, Any]:
    return {"output_type": "display_data", "data": {"text/html": [text], "text/plain": ["<IPython>"]}}


def write(path: Path, *outputs: dict[str, Any], code: str = CODE) -> Path:
    cells = [{"cell_type": "markdown", "source": ["# GRPO"]}]
    cells += [{"cell_type": "code", "source": code.splitlines(keepends=True), "outputs": list(outputs)}]
    path.write_text(json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))
    return path


def test_the_trainers_table(tmp_path: Path) -> None:
    path = write(tmp_path / "grpo.ipynb", stream(BANNER), display(html(REWARDS)))
    assert CONTAINER.file(path, path.read_bytes())
    (own,) = survey([tmp_path]).candidates
    assert own.facts["rollouts_per_problem"].origin == "num_generations in the notebook"
    points = isolaw.read(path).points
    train = points.set_index(["metric", "step"])["value"].sort_index()
    assert train["reward"].to_dict() == dict(zip((10, 20, 30), REWARDS, strict=True))
    assert train["rewards/correct"].to_dict() == {10: 0.0625, 20: 0.125, 30: 0.1875}
    assert points[["problems_per_batch", "rollouts_per_problem"]].iloc[0].tolist() == [8, 4]
    assert points["compute"].max() == 960


def test_the_cells_may_follow_the_state_of_widgets(tmp_path: Path) -> None:
    path = write(tmp_path / "colab.ipynb", display(html(REWARDS)))
    document = {"nbformat": 4, "metadata": {"widgets": "x" * 70_000}} | json.loads(path.read_text())
    path.write_text(json.dumps(document | {"metadata": {"widgets": "x" * 70_000}}))
    (notebook,) = survey([path], HowToRead.of(set={"B_p": 8})).candidates
    assert notebook.metrics["train"]["reward"] == len(REWARDS)


def test_arguments_that_are_no_literals_are_asked(tmp_path: Path) -> None:
    for code in (
        "GRPOConfig(num_generations=f())",
        "n = 4\nn = 8\nGRPOConfig(num_generations=n)",  # which one was it?
        "GRPOConfig(num_generations=4)\nGRPOConfig(num_generations=8)",
        "SFTConfig(num_generations=4)",
        "GRPOConfig(num_generations=",
    ):
        path = write(tmp_path / "grpo.ipynb", stream(BANNER), display(html(REWARDS)), code=code)
        assert survey([path]).candidates[0].needs == ["n", "B_p"], code


def test_two_tables_are_two_trainings(tmp_path: Path) -> None:
    path = write(tmp_path / "two.ipynb", stream(BANNER), display(html(REWARDS)), display(html(REWARDS[:2])))
    found = survey([path], HowToRead.of(set=["*#2:seed=1"])).candidates
    assert [result.steps for result in found] == [(10, 30), (10, 20)]


def test_printed_metrics_are_a_console(tmp_path: Path) -> None:
    lines = [f"step:{k} - critic/score/mean:{r} - actor/ppo_kl:0.0\n" for k, r in enumerate(REWARDS, 1)]
    path = write(tmp_path / "verl.ipynb", *map(stream, lines), code="1 +")
    points = isolaw.read(tmp_path, set=["n=4", "B_p=8"]).points
    assert points[points["metric"] == "reward"]["value"].tolist() == REWARDS
    printed = "".join(
        f"{{'loss': 0.0, 'reward': {r}, 'reward_std': 0.1, 'epoch': 0.{k}}}\n" for k, r in enumerate(REWARDS)
    )
    path = write(tmp_path / "trl.ipynb", stream(BANNER + printed))
    points = isolaw.read(path, set=["logging_steps=1"]).points
    assert points[points["metric"] == "reward"]["value"].tolist() == REWARDS
    assert points["run_id"].unique().tolist() == [str(path)]


def test_a_notebook_without_metrics_is_no_log(tmp_path: Path) -> None:
    path = write(tmp_path / "other.ipynb", stream("hello\n"), display("<table><tr><th>a<th>b</tr></table>"))
    assert not CONTAINER.file(path, path.read_bytes())
    with pytest.raises(DataError, match="no cell output has metrics"):
        list(CONTAINER.read(path))
    with pytest.raises(DataError, match="no cell of the notebook has printed metrics of a known framework"):
        isolaw.read(write(path, stream("hello\n")))
    path.write_text('{"cells": 7}')
    assert not CONTAINER.file(path, path.read_bytes())


def test_html_of_pandas() -> None:
    text = "<table><tr><th></th><th>step</th><th>r</th></tr><tr><th>0</th><td>1</td><td>0.5</td></tr></table>"
    assert _html_tables(text) == [(["step", "r"], [["1", "0.5"]])]
    table = pd.DataFrame({"Step": [1, 2], "reward": [0.5, 0.25]})
    assert _html_tables(table.to_html()) == [(["Step", "reward"], [["1", "0.50"], ["2", "0.25"]])]
    assert _html_tables("<table><tr><th>a</th></tr></table><tr><td>") == []
