"""A framework and a container small enough to see through, registered for one test."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from isolaw.errors import DataError
from isolaw.readers import containers, frameworks
from isolaw.readers.frameworks.base import Config, Facts, Framework
from isolaw.readers.raw_log import Container, RawLog

MAGIC = "TOY LOG\n"
NAMES = {
    "toy.n": "rollouts_per_problem",
    "toy.prompts": "problems_per_batch",
    "toy.rollouts": "rollouts_per_step",
}


def toy_metric(key: str) -> tuple[str, str] | None:
    """``toy/train/<metric>`` and ``toy/eval/<set>/<metric>``."""
    parts = key.split("/")
    if parts[:2] == ["toy", "train"]:
        return "train", parts[2]
    if parts[:2] == ["toy", "eval"]:
        return parts[2], parts[3]
    return None


def toy_facts(config: Config, _facts: Facts) -> Facts:
    return {
        NAMES.get(key, key.removeprefix("toy.")): config.fact(key, value)
        for key, value in config.values.items()
        if key.startswith("toy.")
    }


TOY = Framework(
    "Toy",
    toy_metric,
    own_keys=(("toy/.*",),),
    own_config=(("toy.n",),),
    more_facts=toy_facts,
    step_keys=("toy/step",),
)


def toy_read(path: Path) -> list[RawLog]:
    text = path.read_text()
    try:
        logs = json.loads(text.removeprefix(MAGIC))
    except ValueError:
        raise DataError(f"{path}: a toy that is broken") from None
    out = []
    for item in logs:
        log = RawLog(str(path), "toy", item.get("run") or str(path.parent))
        log.config = item.get("config", {})
        log.config_source = "toy.yaml" if log.config else ""
        for record in item["records"]:
            log.add({k: v for k, v in record.items() if k != "at"}, record.get("at", float("nan")))
        out.append(log)
    return out


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Write a toy log: ``toy(path, records, run=…, config=…)``; a record's ``at`` is the container's step."""
    module: Any = ModuleType("toy_log")
    module.FRAMEWORK = TOY
    module.CONTAINER = Container("toy", toy_read, file=lambda path, head: head.startswith(MAGIC.encode()))
    monkeypatch.setitem(sys.modules, "toy_log", module)
    monkeypatch.setitem(containers.CONTAINERS, "toy", "toy_log")
    monkeypatch.setitem(frameworks.FRAMEWORKS, "Toy", "toy_log")

    def write(
        path: Path,
        records: list[dict[str, Any]] | None = None,
        run: str | None = None,
        config: dict[str, Any] | None = None,
    ) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        content = [{"run": run, "config": config or {}, "records": curve() if records is None else records}]
        path.write_text(MAGIC + json.dumps(content))
        return path

    return write


@pytest.fixture
def toy_curve() -> Callable[..., list[dict[str, Any]]]:
    return curve


def curve(steps: Any = range(1, 11), ceiling: float = 0.5, at: bool = True) -> list[dict[str, Any]]:
    """Records with a reward on train at each step, and avg@8 on aime24 at each fifth."""
    out = []
    for step in steps:
        record: dict[str, Any] = {"toy/train/reward": round(ceiling * step / (step + 5), 6), "toy/time": 1.5}
        if step % 5 == 0:
            record["toy/eval/aime24/avg@8"] = round(ceiling * step / (step + 8), 6)
        out.append({"at": step, **record} if at else record)
    return out


@pytest.fixture
def toy_framework() -> Framework:
    return TOY
