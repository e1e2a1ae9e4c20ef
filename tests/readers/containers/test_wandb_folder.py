"""W&B's run folders whose ``.wandb`` holds nothing, or cannot be read: its console can be named instead.

Seen in veRL runs that were copied without the history, and in killed ones: an empty ``.wandb`` and
``files/output.log`` with the console.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import isolaw
from isolaw.errors import NoHistory, NotInstalled
from isolaw.readers.containers.wandb_offline import CONTAINER

CONSOLE = "".join(f"step:{step} - critic/score/mean:{step / 8} - actor/ppo_kl:0.0\n" for step in range(1, 5))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run's folder with an empty history, and a console."""
    run = tmp_path / "wandb" / "run-20250301_120000-abcd1234"
    (run / "files").mkdir(parents=True)
    (run / "logs").mkdir()
    (run / "run-abcd1234.wandb").touch()
    (run / "files" / "output.log").write_text(CONSOLE)
    return run


def test_a_console_beside_an_empty_history(folder: Path) -> None:
    (folder / "files" / "config.yaml").write_text("actor_rollout_ref:\n  value:\n    rollout:\n      n: 16\n")
    with pytest.raises(NoHistory, match=r"no history. If its console has metrics, .*/files/output\.log$"):
        list(CONTAINER.read(folder))
    runs = isolaw.read(folder / "files" / "output.log", set={"B_p": 16})
    assert list(runs.table().index) == [str(folder)]
    reward = runs.points[runs.points["metric"] == "reward"]
    expected = {256 * step: step / 8 for step in range(1, 5)}
    assert dict(zip(reward["compute"], reward["value"], strict=True)) == expected


def test_without_wandb(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command that installs it is named."""
    (folder / "run-abcd1234.wandb").write_bytes(b":W&B\xe1\xbe\x00 and more")
    for name in ("wandb", "wandb.proto", "wandb.proto.wandb_internal_pb2"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(NotInstalled, match="pip install 'isolaw"):
        list(CONTAINER.read(folder))


def test_nothing_at_all(folder: Path) -> None:
    (folder / "files" / "output.log").unlink()
    with pytest.raises(NoHistory, match=r"the W&B run has no history$"):
        list(CONTAINER.read(folder))
