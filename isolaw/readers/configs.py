"""Read the configuration file next to a log, which has B_p and n; a log has only curves.

isolaw reads Hydra's ``.hydra/config.yaml`` and ``overrides.yaml``, EasyR1's ``experiment_config.json``, W&B's
``config.yaml`` (``key: {value: …}``), prime-rl's TOML and ``args.json``, and returns flat dotted keys
(``actor_rollout_ref.rollout.n``). It executes nothing, and limits size and nesting.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from isolaw.errors import DataError
from isolaw.readers.limits import DEEPEST, LARGEST_CONFIG, LONGEST_NAME, MB, MOST_SETTINGS, os_errors
from isolaw.readers.literals import literal, parse_yaml, scalar

_DEEPEST_TOML = 10  # parts of a key: tomllib's time is quadratic in them
_LARGEST_TOML = 250_000  # characters; tomllib is ten times slower than the others
# The places of frameworks' and trackers' configurations, relative to the log, the most complete first.
_NAMES = (
    *(".hydra/config.yaml", "experiment_config.json", "config.yaml", "config.yml", "files/config.yaml"),
    *("config.toml", "config.json", "args.json", "configs/latest/resolved/rl.json"),
    *("configs/latest/resolved/orchestrator.json", "configs/rl.toml", "configs/orchestrator.toml"),
    ".hydra/overrides.yaml",
)
# Folders inside a run's directory that may hold its logs.
_INSIDE = re.compile(
    r"checkpoint-\d+|global_step_?\d+|files?|monitors|tensorboard\w*|tb|train|eval|run_default", re.I
)
# The pattern begins only where a key can, and is possessive, so that its time is linear.
_DEEP_KEY = re.compile(
    r"""(?<![^\s\[{,])(?:(?:[A-Za-z0-9_-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+)"""
    f"{{{_DEEPEST_TOML}}}"
)
_LONGEST_REFERENCE = 1_000  # characters
_INTERPOLATION = re.compile(r"\$\{(oc\.select:)?\s*([\w.]+)\s*(?:,\s*([^${}]*))?\}")


def flatten(config: Mapping[Any, Any]) -> dict[str, Any]:
    """Return a nested configuration under dotted keys.

    Lists of plain values stay lists; other lists get numbered keys. W&B's ``{key: {value: …}}`` is unwrapped.
    ``${a.b}`` becomes the value of ``a.b``, or is left out if that is unknown. Raises
    `DataError` beyond 100 levels, 100,000 values (an alias bomb), or 1,000 characters of a key.

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
        if len(prefix) > LONGEST_NAME:  # each key below repeats it
            raise DataError(f"a key longer than {LONGEST_NAME:,} characters: {prefix[:40]}…")
        if depth > DEEPEST:
            raise DataError(f"a configuration nested deeper than {DEEPEST}")
        items: Iterable[tuple[Any, Any]]
        if isinstance(value, Mapping):
            items = value.items()
        elif isinstance(value, list) and any(isinstance(item, Mapping | list) for item in value):
            items = enumerate(value)
        else:
            out[prefix] = value
            continue
        if seen + len(value) > MOST_SETTINGS:
            raise DataError(f"a configuration of more than {MOST_SETTINGS:,} values")
        dot = f"{prefix}." if prefix else ""
        stack.extend([(f"{dot}{key}", inner, depth + 1) for key, inner in items][::-1])
    return _interpolated(out)


def _unwrapped(config: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """Unwrap W&B's form ``lr: {desc: null, value: 1e-6}``, if every key has it."""
    own = {key: value for key, value in config.items() if key not in ("_wandb", "wandb_version")}
    for value in own.values():
        if not (isinstance(value, Mapping) and "value" in value and set(value) <= {"value", "desc"}):
            return own
    return {key: value["value"] for key, value in own.items()}


def _interpolated(flat: dict[str, Any]) -> dict[str, Any]:
    """Resolve OmegaConf's references: Hydra saves the configuration with them unresolved."""
    out = {}
    for key, value in flat.items():
        for _ in range(10):  # also references to references; the limit ends a cycle
            short = isinstance(value, str) and value.startswith("${") and len(value) <= _LONGEST_REFERENCE
            found = _INTERPOLATION.fullmatch(value) if short else None
            if found is None or (found[2] not in flat and not (found[1] and found[3] is not None)):
                break
            value = flat[found[2]] if found[2] in flat else scalar(found[3])
        if not (isinstance(value, str) and value.startswith("${") and value.endswith("}")):
            out[key] = value
    return out


def overrides(words: Iterable[str]) -> dict[str, Any]:
    """Return Hydra's ``key=value`` words (``+key``, ``++key``) as flat keys.

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
    """Return a configuration file (YAML, JSON, TOML, or Hydra's overrides) under flat dotted keys.

    Raises `DataError` if it is missing, larger than 1 MB, of another format, or not a configuration.
    """
    path = Path(path)
    with os_errors(path), path.open("rb") as file:
        content = file.read(LARGEST_CONFIG + 1)
    if len(content) > LARGEST_CONFIG:
        raise DataError(f"{path}: a configuration larger than {LARGEST_CONFIG // MB} MB")
    text = content.decode("utf-8-sig", errors="replace")
    try:
        config = _parse(text, path.suffix)
        if isinstance(config, list):
            config = overrides(word for word in config if isinstance(word, str))
        if not isinstance(config, Mapping):
            raise DataError("not a configuration: it has no keys")
        return flatten(config)
    except DataError as error:
        raise DataError(f"{path}: {error}") from None


def _parse(text: str, suffix: str) -> Any:
    try:
        if suffix == ".toml":
            if len(text) > _LARGEST_TOML:
                raise DataError(f"a TOML file of more than {_LARGEST_TOML:,} characters")
            if deep := _DEEP_KEY.search(text):
                raise DataError(f"a TOML key of more than {_DEEPEST_TOML} parts: {deep[0][:40]}…")
            return tomllib.loads(text)
        if text.lstrip()[:1] in ("{", "["):
            return json.loads(text)
    except (ValueError, RecursionError) as error:
        if suffix in (".toml", ".json"):
            raise DataError(f"not {suffix[1:].upper()} ({error})") from None
    return parse_yaml(text)


def beside(path: str | Path) -> tuple[dict[str, Any], str]:
    """Find the configuration of a log, or of a run's directory; return its flat keys and its file.

    Candidates are a file of the log's own name (``run1.yaml`` next to ``run1.jsonl``), then the names that
    frameworks use, in the log's directory and up to the run's (`home`). A model's ``config.json`` does not
    count. Returns ``({}, "")`` if there is none. For an unreadable file it returns no keys, and a source with
    the reason.
    """
    path = Path(path)
    folder, names = path, list(_NAMES)
    if not path.is_dir():
        folder = path.parent
        names = [path.stem + suffix for suffix in (".yaml", ".yml", ".toml", ".json")] + names
    trouble = ""
    for place in _upwards(folder):
        for name in names:
            candidate = place / name
            if candidate.name == path.name or not candidate.is_file():
                continue
            source = os.path.relpath(candidate, folder)
            try:
                config = read(candidate)
            except DataError as error:
                trouble = trouble or f"{source} (cannot be read: {str(error).partition(': ')[2]})"
                continue
            if config and not {"architectures", "transformers_version"} & set(config):
                return config, source
    return {}, trouble


def home(folder: str | Path) -> Path:
    """Return the run's directory of a log's folder: the one above ``checkpoint-500``, ``files``…"""
    found = _upwards(Path(folder))[-1]
    here = Path.cwd()
    named_so = not Path(folder).is_absolute() and found != here and found.is_relative_to(here)
    return found.relative_to(here) if named_so else found  # runs are named as the user names them


def run_name(path: Path, generic: Collection[str]) -> str:
    """Return the name of a log file's run: its path, or its directory if the file has a generic name."""
    return str(home(path.parent) if path.stem.lower() in generic else path.with_suffix(""))


def _upwards(folder: Path) -> list[Path]:
    """Return a folder and those above it, up to the run's."""
    places = [folder.absolute()]
    while _INSIDE.fullmatch(places[-1].name) and len(places) < 4:
        places.append(places[-1].parent)
    return places
