"""Runs of a W&B project, through a client that answers as W&B's does."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import yaml

import isolaw
from isolaw.cli import run
from isolaw.errors import DataError, NotInstalled

VERL = Path(__file__).parents[2] / "examples" / "logs" / "verl" / "math"
PROJECT = "wandb://me/grid"


class Client:
    """The runs of examples/logs/verl as W&B has them, and the histories that were asked for."""

    def __init__(self) -> None:
        self.scanned: list[str] = []
        self.error: Exception | None = None
        self.all = {path.stem.replace("-", ""): self.run(path) for path in sorted(VERL.glob("*.jsonl"))}

    def run(self, path: Path) -> Any:
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        rows = [
            {
                "_step": line["step"],
                "_runtime": 9.5 * k,
                "_timestamp": 1e9 + k,
                **line["data"],
                "samples": {"a": 1},
            }
            for k, line in enumerate(lines)
        ]
        rows[3]["actor/kl"] = "NaN"  # as W&B writes it
        run_id, config = path.stem.replace("-", ""), yaml.safe_load(path.with_suffix(".yaml").read_text())

        def scan_history() -> list[dict[str, Any]]:
            self.scanned.append(run_id)
            return rows

        last = rows[-1]["_step"]
        return SimpleNamespace(
            id=run_id, name=path.stem, config=config, lastHistoryStep=last, scan_history=scan_history
        )


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Client:
    made = Client()

    class Api:
        def __init__(self, timeout: int) -> None:
            if made.error:
                raise made.error

        def runs(self, path: str) -> list[Any]:
            assert path == "me/grid"
            return [*made.all.values()]

        def run(self, path: str) -> Any:
            return made.all[path.removeprefix("me/grid/")]

    wandb = ModuleType("wandb")
    wandb.Api = Api  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(Path(__file__).parents[2])
    return made


def values(runs: isolaw.Runs) -> Any:
    table = runs.points
    keys = ["problems_per_batch", "rollouts_per_problem", "seed", "step", "compute", "eval_set", "metric"]
    return table.set_index(keys)["value"].sort_index()


def test_a_project_gives_the_runs_of_its_logs(client: Client) -> None:
    runs = isolaw.read(PROJECT)
    expected = values(isolaw.read(str(VERL)))
    assert len(runs) == 8
    assert values(runs).to_dict() == expected.to_dict()
    assert not any("sample" in note for note in runs.notes)  # it is the whole history
    one = isolaw.read(f"{PROJECT}/n8seed0")
    assert len(one) == 1


def test_only_what_is_new_is_downloaded(client: Client, tmp_path: Path) -> None:
    isolaw.read(PROJECT)
    assert len(client.scanned) == 8
    longer = client.all["n8seed0"]
    longer.lastHistoryStep += 1
    del client.all["n512seed1"]
    client.scanned.clear()
    assert len(isolaw.read(PROJECT)) == 7
    assert client.scanned == ["n8seed0"]
    kept = sorted(path.name for path in (tmp_path / "cache/isolaw/wandb/me/grid").iterdir())
    assert len(kept) == 7
    assert f"n8seed0-{longer.lastHistoryStep}.csv" in kept


@pytest.mark.parametrize("name", ["wandb://me", "wandb://../grid", "wandb://me/grid/a/b", "wandb://me/gr id"])
def test_names_that_no_project_has(client: Client, name: str) -> None:
    with pytest.raises(DataError, match="expected wandb://ENTITY/PROJECT"):
        isolaw.read(name)


def test_without_wandb_a_key_or_a_network(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.error = RuntimeError("No API key configured. Use `wandb login` to log in.")
    with pytest.raises(DataError, match=r"not downloaded: RuntimeError: No API key .* `wandb login`"):
        isolaw.read(PROJECT)
    client.error = None
    client.all["n8seed0"].id = "../../n8"
    with pytest.raises(DataError, match="found a run with the id"):
        isolaw.read(PROJECT)
    monkeypatch.delattr(sys.modules["wandb"], "Api")  # as a folder wandb/ with logs, without the package
    with pytest.raises(NotInstalled, match=r"wandb is not installed: pip install 'isolaw\[wandb\]'"):
        isolaw.read(PROJECT)


@pytest.mark.slow
def test_an_answer_from_a_project(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["answer", PROJECT, "--compute", "4M", "--draws", "8"]) == 0
    out, notes = capsys.readouterr()
    assert out.startswith("For 4M rollouts: n = ")
    assert f"{PROJECT}: isolaw read it from " in notes
