"""Read the configuration file next to a log. The configuration has B_p and n; the log has only curves.

isolaw reads Hydra's ``.hydra/config.yaml`` and ``overrides.yaml``, EasyR1's ``experiment_config.json``, W&B's
``config.yaml`` (``key: {value: …}``), prime-rl's TOML and ``args.json``. The result has flat dotted keys
(``actor_rollout_ref.rollout.n``). isolaw executes nothing, and limits size and nesting.
"""

from __future__ import annotations

import os
import re
import shlex
import tomllib
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from isolaw.errors import DataError
from isolaw.files import leads_out, open_file
from isolaw.readers import limits
from isolaw.readers.literals import literal, loads, parse_yaml, scalar

_DEEPEST_TOML = 10  # parts of a key; tomllib takes quadratic time in this number
_LARGEST_TOML = 250_000  # characters; tomllib is ten times slower than the others
# The paths of configurations of frameworks and trackers, relative to the log, the most complete first.
_NAMES = (
    *(".hydra/config.yaml", "experiment_config.json", "config.yaml", "config.yml", "files/config.yaml"),
    *("config.toml", "config.json", "args.json", "configs/latest/resolved/rl.json"),
    *("configs/latest/resolved/orchestrator.json", "configs/rl.toml", "configs/orchestrator.toml"),
    ".hydra/overrides.yaml",
)
# Folders inside a run's directory that can contain its logs.
_INSIDE = re.compile(
    r"checkpoint-\d+|global_step_?\d+|files?|monitors|tensorboard\w*|tb|train|eval|run_default", re.I
)
# The pattern starts only where a key can start and uses possessive quantifiers, so its time is linear.
_DEEP_KEY = re.compile(
    r"""(?<![^\s\[{,])(?:(?:[A-Za-z0-9_-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+)"""
    f"{{{_DEEPEST_TOML}}}"
)
_LONGEST_REFERENCE = 1_000  # characters
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
    out: dict[str, Any] = {}
    stack: list[tuple[str, Any, int]] = [("", _unwrapped(config), 0)]
    seen = 0
    while stack:
        prefix, value, depth = stack.pop()
        seen += 1
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
            out[prefix] = value
            continue
        if seen + len(value) > limits.MOST_SETTINGS:
            raise DataError(f"a configuration of more than {limits.MOST_SETTINGS:,} values")
        dot = f"{prefix}." if prefix else ""
        stack.extend([(f"{dot}{key}", inner, depth + 1) for key, inner in items][::-1])
    return _interpolated(out)


def _unwrapped(config: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """Unwrap W&B's form ``lr: {desc: null, value: 1e-6}`` if every key has this form."""
    kept = {key: value for key, value in config.items() if key not in ("_wandb", "wandb_version")}
    for value in kept.values():
        if not (isinstance(value, Mapping) and "value" in value and set(value) <= {"value", "desc"}):
            return kept
    return {key: value["value"] for key, value in kept.items()}


def _interpolated(flat: dict[str, Any]) -> dict[str, Any]:
    """Resolve OmegaConf references, which Hydra leaves unresolved when it saves the configuration."""
    out = {}
    for key, value in flat.items():
        for _ in range(10):  # references can refer to references; the limit ends cycles
            short = isinstance(value, str) and value.startswith("${") and len(value) <= _LONGEST_REFERENCE
            match = _INTERPOLATION.fullmatch(value) if short else None
            if match is None or (match[2] not in flat and not (match[1] and match[3] is not None)):
                break
            value = flat[match[2]] if match[2] in flat else scalar(match[3])
        if not (isinstance(value, str) and value.startswith("${") and value.endswith("}")):
            out[key] = value
    return out


def overrides(words: Iterable[str]) -> dict[str, Any]:
    """Return Hydra's ``key=value`` words (``+key``, ``++key``) as a dictionary with flat keys.

    >>> overrides(["data.train_batch_size=512", "+trainer.seed=1", "python3", "~a.b"])
    {'data.train_batch_size': 512, 'trainer.seed': 1}
    """
    out = {}
    for word in words:
        key, equals, value = word.lstrip("+").removeprefix("--").partition("=")
        if equals and re.fullmatch(r"[A-Za-z_][\w./@-]*", key):
            out[key] = literal(value)
    return _interpolated(out)


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
        config = _parse(text, path.suffix)
        if isinstance(config, list):
            config = overrides(word for word in config if isinstance(word, str))
        if not isinstance(config, Mapping):
            raise DataError("not a configuration: it has no keys")
        return flatten(config)


def read_settings(path: Path) -> dict[str, Any]:
    """Return the settings in a configuration file, a printed configuration or a command line.

    Raises `DataError` if the file has none.
    """
    with limits.os_errors(path), open_file(path) as file:
        text = file.read(limits.LARGEST_CONFIG).decode("utf-8-sig", "replace")
    if path.suffix.lower() in (".yaml", ".yml", ".toml", ".json"):
        return read(path)
    try:
        words = shlex.split(text.replace("\\\n", " "), comments=True)
    except ValueError:
        words = text.split()
    out = overrides(word for word in words if not word.startswith("-"))
    for at, word in enumerate(words):
        name, equals, value = word.partition("=")
        if not re.fullmatch(r"--[A-Za-z][\w.-]*", name):
            continue
        after = words[at + 1] if at + 1 < len(words) else "--"
        flag = after.startswith("--") or not after
        out[name[2:].replace("-", "_")] = literal(value) if equals else True if flag else literal(after)
    if not out:
        raise DataError(f"{path}: found no settings")
    return out


def _parse(text: str, suffix: str) -> Any:
    try:
        if suffix == ".toml":
            if len(text) > _LARGEST_TOML:
                raise DataError(f"a TOML file of more than {_LARGEST_TOML:,} characters")
            if deep := _DEEP_KEY.search(text):
                raise DataError(f"a TOML key of more than {_DEEPEST_TOML} parts: {deep[0][:40]}…")
            return tomllib.loads(text)
        if text.lstrip()[:1] in ("{", "["):
            return loads(text)
    except (ValueError, RecursionError) as error:
        if suffix in (".toml", ".json"):
            raise DataError(f"not {suffix[1:].upper()} ({error})") from None
    return parse_yaml(text)


def beside(path: str | Path) -> tuple[dict[str, Any], str]:
    """Find the configuration of a log, or of a run's directory; return its flat keys and its path.

    Files with the log's own name (``run1.yaml`` next to ``run1.jsonl``) come first, then files with the names
    that frameworks use. isolaw searches from the log's directory up to the run's directory (`home`). The
    ``config.json`` of a model does not count. Returns ``({}, "")`` if there is none. If the file cannot be
    read, or is a link that leads out of the run's directory, returns no keys, and the path with the reason.
    """
    path = Path(path)
    folder, names = path, list(_NAMES)
    if not path.is_dir():
        folder = path.parent
        names = [path.stem + suffix for suffix in (".yaml", ".yml", ".toml", ".json")] + names
    trouble = ""
    places = _upwards(folder)
    for place in places:
        for name in names:
            candidate = place / name
            if candidate.name == path.name or not candidate.is_file():
                continue
            source = os.path.relpath(candidate, folder)
            if leads_out(candidate, places[-1]):
                trouble = trouble or f"{source} (not read: a link that leads out of the folder)"
                continue
            try:
                config = read(candidate)
            except DataError as error:
                trouble = trouble or f"{source} (cannot be read: {str(error).partition(': ')[2]})"
                continue
            if config and not {"architectures", "transformers_version"} & set(config):
                return config, source
    return {}, trouble


def home(folder: str | Path) -> Path:
    """Return the run's directory for a log's folder: the parent of ``checkpoint-500``, ``files`` etc."""
    upward = _upwards(Path(folder))[-1]
    here = Path.cwd()
    named_so = not Path(folder).is_absolute() and upward != here and upward.is_relative_to(here)
    return upward.relative_to(here) if named_so else upward  # runs get the names that the user uses


def run_name(path: Path, generic: Collection[str]) -> str:
    """Return the run name for a log file: its path, or its directory if the file has a generic name."""
    return str(home(path.parent) if path.stem.lower() in generic else path.with_suffix(""))


def _upwards(folder: Path) -> list[Path]:
    """Return a folder and its parents, up to the run's directory."""
    places = [folder.absolute()]
    while _INSIDE.fullmatch(places[-1].name) and len(places) < 4:
        places.append(places[-1].parent)
    return places
