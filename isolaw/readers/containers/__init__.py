"""Containers: the file formats of logs. Each module recognises its files by content and reads them."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator
from typing import TYPE_CHECKING

from isolaw import commands
from isolaw.errors import InputError, unknown

if TYPE_CHECKING:
    from isolaw.readers.raw_log import Container

# Value of --format → its module, imported on demand; the most specific first.
CONTAINERS: dict[str, str] = {
    "mlflow": "isolaw.readers.containers.mlflow",
    "wandb-offline": "isolaw.readers.containers.wandb_offline",
    "tensorboard": "isolaw.readers.containers.tensorboard",
    "trainer-state": "isolaw.readers.containers.json_document",
    "wandb-csv": "isolaw.readers.containers.wandb_csv",
    "notebook": "isolaw.readers.containers.notebook",
    "jsonl": "isolaw.readers.containers.jsonlines",
    "json": "isolaw.readers.containers.json_document",
    "verl-console": "isolaw.readers.containers.verl_console",
    "step-console": "isolaw.readers.containers.step_console",
    "stdout-dicts": "isolaw.readers.containers.stdout_dicts",
}

# Container → the package that it needs beyond isolaw's own. The extra has the package's name.
PACKAGES = {"wandb-offline": "wandb", "tensorboard": "tensorboard"}


def missing(name: str) -> str:
    """Return the command that installs a container's missing package, or "" if none is missing."""
    package = PACKAGES.get(name)
    if package is None or importlib.util.find_spec(package):
        return ""
    return str(commands.install(f"isolaw[{package}]"))


def get(name: str) -> Container:
    """Return the container called ``name``; raise an `InputError` that lists all names if there is none."""
    if name not in CONTAINERS:
        raise InputError(
            commands.argument("format") + f": {unknown('format', name, ['auto', *CONTAINERS], 'expected')}"
        )
    module = importlib.import_module(CONTAINERS[name])
    container: Container = getattr(module, name.upper().replace("-", "_"), None) or module.CONTAINER
    return container


def candidates(name: str = "auto") -> Iterator[Container]:
    """Yield the containers to try, in order: all containers, or the one called ``name``."""
    for container_name in CONTAINERS if name == "auto" else [name]:
        yield get(container_name)
