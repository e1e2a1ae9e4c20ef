"""W&B's run folders whose ``.wandb`` holds nothing, or cannot be read: what lies next to it is.

Seen in veRL runs that were copied without the history, and in killed ones: an empty ``.wandb``,
``logs/debug.log`` with the configuration (wandb/sdk/wandb_init.py of github.com/wandb/wandb writes it),
``files/output.log`` with the console.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import isolaw
from isolaw.errors import NoHistory, NotInstalled
from isolaw.readers.containers.wandb_offline import CONTAINER

VERL = {"data": {"train_batch_size": 32, "seed": 3}, "actor_rollout_ref": {"rollout": {"n": 8}}}
DEBUG = """\
2025-03-01 12:00:00,120 INFO    MainThread:77 [wandb_init.py:init():761] calling init triggers
2025-03-01 12:00:00,120 INFO    MainThread:77 [init():766] wandb.init called with sweep_config: {{}}
config: {config}
2025-03-01 12:00:01,000 INFO    MainThread:77 [wandb_init.py:init():784] starting backend
"""
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


def debug(folder: Path, config: object) -> None:
    (folder / "logs" / "debug.log").write_text(DEBUG.format(config=config))


def test_a_console_beside_an_empty_history(folder: Path) -> None:
    debug(folder, VERL)
    runs = isolaw.read(folder.parent.parent)
    reward = runs.points[runs.points["metric"] == "reward"]
    assert dict(zip(reward["compute"], reward["value"], strict=True)) == {
        256 * step: step / 8 for step in range(1, 5)
    }
    assert reward["seed"].tolist() == [3] * 4


def test_where_the_configuration_is_from(folder: Path) -> None:
    debug(folder, VERL)
    (log,) = CONTAINER.read(folder)
    assert log.config["actor_rollout_ref.rollout.n"] == 8
    assert log.config_source == "logs/debug.log"


def test_what_was_added_later(folder: Path) -> None:
    """The Trainer's callback adds its arguments; one of them may be no literal."""
    debug(folder, {})
    with (folder / "logs" / "debug.log").open("a") as file:
        file.write(
            "2025-03-01 12:00:02,000 INFO    MainThread:77 [_config_callback():1390] config_cb None None "
            "{'num_generations': 8, 'seed': 5, 'dtype': torch.bfloat16, 'x': <at 0x7f>, 'beta': 0.04}\n"
        )
    (log,) = CONTAINER.read(folder)
    assert (log.config["num_generations"], log.config["seed"], log.config["beta"]) == (8, 5, 0.04)


def test_a_configuration_in_the_files_comes_first(folder: Path) -> None:
    debug(folder, VERL)
    (folder / "files" / "config.yaml").write_text("actor_rollout_ref:\n  value:\n    rollout:\n      n: 16\n")
    (log,) = CONTAINER.read(folder)
    assert log.config == {"actor_rollout_ref.rollout.n": 16}


@pytest.mark.parametrize("config", ["{" * 50_000, "{'a': __import__('os').abort()}", "{'a': 1", "text", "{}"])
def test_nothing_is_evaluated(config: str, folder: Path) -> None:
    debug(folder, config)
    (log,) = CONTAINER.read(folder)
    assert set(log.config) <= {"a"}


def test_without_wandb(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The console is read without it; a history is not."""
    (folder / "run-abcd1234.wandb").write_bytes(b":W&B\xe1\xbe\x00 and more")
    for name in ("wandb", "wandb.proto", "wandb.proto.wandb_internal_pb2"):
        monkeypatch.setitem(sys.modules, name, None)
    (log,) = CONTAINER.read(folder)
    assert list(log.step) == [1, 2, 3, 4]
    (folder / "files" / "output.log").write_text("hello\n")
    with pytest.raises(NotInstalled, match="pip install 'isolaw"):
        list(CONTAINER.read(folder))


def test_nothing_at_all(folder: Path) -> None:
    (folder / "files" / "output.log").unlink()
    with pytest.raises(NoHistory, match="the W&B run has no history"):
        list(CONTAINER.read(folder))
