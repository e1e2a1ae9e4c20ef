"""Read the configuration file next to a log. The configuration has B_p and n; the log has only curves.

isolaw reads Hydra's ``.hydra/config.yaml`` and ``overrides.yaml``, EasyR1's ``experiment_config.json``, W&B's
``config.yaml`` (``key: {value: …}``), prime-rl's TOML and ``args.json``. The result has flat dotted keys
(``actor_rollout_ref.rollout.n``). isolaw executes nothing, and limits size and nesting.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from isolaw.documents.reading import parse_toml
from isolaw.errors import DataError, InputError
from isolaw.files import leads_out, open_file
from isolaw.readers import limits
from isolaw.readers.literals import literal, loads, parse_yaml, scalar

# The paths of configurations of frameworks and trackers, relative to the log, the most complete first.
_CONFIG_PATHS = (
    *(".hydra/config.yaml", "experiment_config.json", "config.yaml", "config.yml", "files/config.yaml"),
    *("config.toml", "config.json", "args.json", "configs/latest/resolved/rl.json"),
    *("configs/latest/resolved/orchestrator.json", "configs/rl.toml", "configs/orchestrator.toml"),
    ".hydra/overrides.yaml",
)
# Folders inside a run's directory that can contain its logs.
_LOG_FOLDERS = re.compile(
    r"checkpoint-\d+|global_step_?\d+|files?|monitors|tensorboard\w*|tb|train|eval|run_default", re.I
)
_MAX_REFERENCE = 1_000  # characters
_INTERPOLATION = re.compile(r"\$\{(oc\.select:)?\s*([\w.]+)\s*(?:,\s*([^${}]*))?\}")


def flatten(config: Mapping[Any, Any]) -> dict[str, Any]:
    """Return a nested configuration as a flat one with dotted keys.

    Lists of plain values stay lists; other lists get numbered keys. W&B's ``{key: {value: …}}`` is unwrapped.
    ``${a.b}`` is replaced by the value of ``a.b``, or left out if that is unknown. Raises `DataError` beyond
    100 levels, 100,000 values (an alias bomb), or 1,000 characters in a key.

    >>> flatten({"data": {"train_batch_size": 512}, "n": {"desc": None, "value": 8}})
    {'data.train_batch_size': 512, 'n.desc': None, 'n.value': 8}
    >>> flatten({"n": {"desc": None, "value": 8}, "_wandb": {"value": {}}, "b": {"value": "${n}"}})
    {'n': 8, 'b': 8}
    """
    flat: dict[str, Any] = {}
    stack: list[tuple[str, Any, int]] = [("", _without_wandb_form(config), 0)]
    count = 0
    while stack:
        prefix, value, depth = stack.pop()
        count += 1
        if len(prefix) > limits.LONGEST_NAME:  # all keys below repeat this prefix
            raise DataError(f"a key longer than {limits.LONGEST_NAME:,} characters: {prefix[:40]}…")
        if depth > limits.DEEPEST:
            raise DataError(f"a configuration nested deeper than {limits.DEEPEST}")
        items: Iterable[tuple[Any, Any]]
        if isinstance(value, Mapping):
            items = value.items()
        elif isinstance(value, list) and any(isinstance(item, Mapping | list) for item in value):
            items = enumerate(value)
        else:
            flat[prefix] = value
            continue
        if count + len(value) > limits.MOST_SETTINGS:
            raise DataError(f"a configuration of more than {limits.MOST_SETTINGS:,} values")
        key_prefix = f"{prefix}." if prefix else ""
        stack.extend([(f"{key_prefix}{key}", nested, depth + 1) for key, nested in items][::-1])
    return _resolve_references(flat)


def _without_wandb_form(config: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """Unwrap W&B's form ``lr: {desc: null, value: 1e-6}`` if every key has this form."""
    settings = {key: value for key, value in config.items() if key not in ("_wandb", "wandb_version")}
    for value in settings.values():
        if not (isinstance(value, Mapping) and "value" in value and set(value) <= {"value", "desc"}):
            return settings
    return {key: value["value"] for key, value in settings.items()}


def _resolve_references(flat: dict[str, Any]) -> dict[str, Any]:
    """Resolve OmegaConf references, which Hydra leaves unresolved when it saves the configuration."""
    resolved = {}
    for key, value in flat.items():
        for _ in range(10):  # references can refer to references; the limit ends cycles
            is_reference = isinstance(value, str) and value.startswith("${") and len(value) <= _MAX_REFERENCE
            match = _INTERPOLATION.fullmatch(value) if is_reference else None
            if match is None or (match[2] not in flat and not (match[1] and match[3] is not None)):
                break
            value = flat[match[2]] if match[2] in flat else scalar(match[3])
        if not (isinstance(value, str) and value.startswith("${") and value.endswith("}")):
            resolved[key] = value
    return resolved


def overrides(words: Iterable[str]) -> dict[str, Any]:
    """Return Hydra's ``key=value`` words (``+key``, ``++key``) as a dictionary with flat keys.

    >>> overrides(["data.train_batch_size=512", "+trainer.seed=1", "python3", "~a.b"])
    {'data.train_batch_size': 512, 'trainer.seed': 1}
    """
    settings = {}
    for word in words:
        key, equals, value = word.lstrip("+").removeprefix("--").partition("=")
        if equals and re.fullmatch(r"[A-Za-z_][\w./@-]*", key):
            settings[key] = literal(value)
    return _resolve_references(settings)


def read(path: str | Path) -> dict[str, Any]:
    """Return the settings in a configuration file (YAML, JSON, TOML or Hydra overrides) under dotted keys.

    Raises `DataError` if the file is missing, larger than 1 MB, of another format, or not a configuration.
    """
    path = Path(path)
    with limits.os_errors(path), open_file(path) as file:
        content = file.read(limits.LARGEST_CONFIG + 1)
    if len(content) > limits.LARGEST_CONFIG:
        raise DataError(f"{path}: a configuration larger than {limits.LARGEST_CONFIG // limits.MB} MB")
    text = content.decode("utf-8-sig", errors="replace")
    with limits.errors_in(path):
        config = _parse(text, path)
        if isinstance(config, list):
            config = overrides(word for word in config if isinstance(word, str))
        if not isinstance(config, Mapping):
            raise DataError("not a configuration: it has no keys")
        return flatten(config)


def _parse(text: str, path: Path) -> Any:
    if path.suffix == ".toml":
        try:
            return parse_toml(text, path)
        except InputError as error:
            raise DataError(str(error).removeprefix(f"{path}: ")) from None
    if text.lstrip()[:1] in ("{", "["):
        try:
            return loads(text)
        except (ValueError, RecursionError) as error:
            if path.suffix == ".json":
                raise DataError(f"not JSON ({error})") from None
    return parse_yaml(text)


def find_config(path: str | Path) -> tuple[dict[str, Any], str]:
    """Find the configuration of a log, or of a run's directory; return its flat keys and its path.

    Files with the log's own name (``run1.yaml`` next to ``run1.jsonl``) come first, then files with the names
    that frameworks use. isolaw searches from the log's directory up to the run's directory. The
    ``config.json`` of a model does not count. Returns ``({}, "")`` if there is none. If the file cannot be
    read, or is a link that leads out of the run's directory, returns no keys, and the path with the reason.
    """
    path = Path(path)
    folder, names = path, list(_CONFIG_PATHS)
    if not path.is_dir():
        folder = path.parent
        names = [path.stem + suffix for suffix in (".yaml", ".yml", ".toml", ".json")] + names
    problem = ""
    folders = _folders_upwards(folder)
    for folder_above in folders:
        for name in names:
            config_path = folder_above / name
            if config_path.name == path.name or not config_path.is_file():
                continue
            source = os.path.relpath(config_path, folder)
            if leads_out(config_path, folders[-1]):
                problem = problem or f"{source} (not read: a link that leads out of the folder)"
                continue
            try:
                config = read(config_path)
            except DataError as error:
                problem = problem or f"{source} (cannot be read: {str(error).partition(': ')[2]})"
                continue
            if config and not {"architectures", "transformers_version"} & set(config):
                return config, source
    return {}, problem


def run_directory(folder: str | Path) -> Path:
    """Return the run's directory for a log's folder: the parent of ``checkpoint-500``, ``files`` etc."""
    directory = _folders_upwards(Path(folder))[-1]
    if Path(folder).is_absolute() or directory == Path.cwd() or not directory.is_relative_to(Path.cwd()):
        return directory
    return directory.relative_to(Path.cwd())  # runs get the names that the user uses


def run_name(path: Path, generic: Collection[str]) -> str:
    """Return the run name for a log file: its path, or its directory if the file has a generic name."""
    return str(run_directory(path.parent) if path.stem.lower() in generic else path.with_suffix(""))


def _folders_upwards(folder: Path) -> list[Path]:
    """Return a folder and its parents, up to the run's directory."""
    folders = [folder.absolute()]
    while _LOG_FOLDERS.fullmatch(folders[-1].name) and len(folders) < 4:
        folders.append(folders[-1].parent)
    return folders
