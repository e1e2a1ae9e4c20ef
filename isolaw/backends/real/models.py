"""The folder of a language model in Hugging Face format: what can be known of it without loading it."""

from __future__ import annotations

import functools
import hashlib
import json
from pathlib import Path
from typing import Any

from isolaw.backends.real import environment
from isolaw.errors import DataError, Problem

_PARTS = (".json", ".safetensors", ".model", ".jinja")
_BLOCK = 2**24


def check(model: str | Path, where: str = "real.model") -> list[Problem]:
    """Return what is wrong with the folder of a model."""
    model = Path(model)
    if not (model / "config.json").is_file():
        found = "no such folder" if not model.exists() else "no config.json in it"
        note = f"{model}: {found}"
        return [Problem(where, note, accepted="the folder of a model in Hugging Face format")]
    if not any(model.glob("*.safetensors")):
        return [Problem(where, f"{model}: no *.safetensors in it", accepted="weights as safetensors")]
    try:
        context(model)
    except (ValueError, KeyError, TypeError, AttributeError):
        return [Problem(where, f"{model / 'config.json'}: no max_position_embeddings in it")]
    return []


def context(model: str | Path) -> int:
    """Return how many tokens a prompt and its response may have together."""
    config = json.loads((Path(model) / "config.json").read_text(encoding="utf-8"))
    return int((config.get("text_config") or config)["max_position_embeddings"])


def digest(model: str | Path) -> str:
    """Return the SHA-256 over what a model is made of: its JSON files and weights, by name."""
    return _digest(str(model), stamp(Path(model)))


def tokenizer(model: str | Path) -> Any:
    """Load a model's tokenizer (`transformers`).

    Raises
    ------
    DataError
        there is none, or none that can be loaded.
    """
    environment.prepare()
    from transformers import AutoTokenizer

    try:
        loaded = AutoTokenizer.from_pretrained(str(model))
    except (OSError, ValueError) as error:
        raise DataError(f"{model}: its tokenizer cannot be loaded: {str(error).splitlines()[0]}") from None
    # From a folder without its files comes one that knows its special tokens alone.
    if len(loaded) <= len(set(loaded.all_special_tokens)):
        raise DataError(f"{model}: its tokenizer cannot be loaded: there is no vocabulary in the folder")
    return loaded


def stamp(folder: Path) -> str:
    """Return what changes when a folder's files do; the key of what is remembered about it."""
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    return repr([(p.name, p.stat().st_size, p.stat().st_mtime_ns) for p in files if p.is_file()])


@functools.lru_cache(maxsize=8)
def _digest(folder: str, stamp: str) -> str:
    found = hashlib.sha256()
    for path in sorted(Path(folder).iterdir()):
        if path.suffix in _PARTS and path.is_file():
            found.update(path.name.encode())
            with path.open("rb") as file:
                while block := file.read(_BLOCK):
                    found.update(block)
    return found.hexdigest()
