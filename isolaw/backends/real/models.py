"""The folder of a language model in Hugging Face format: what can be known of it without loading it."""

from __future__ import annotations

import functools
import hashlib
import json
import math
from pathlib import Path
from typing import Any

from isolaw.backends.real import environment
from isolaw.errors import DataError, Issue, SpecError

_PARTS = (".json", ".safetensors", ".model", ".jinja")
_BLOCK = 2**24


def check(model: str | Path, where: str = "real.model") -> list[Issue]:
    """Return what is wrong with the folder of a model."""
    try:
        model = folder(str(model), where)
    except SpecError as error:
        return error.issues
    if not (model / "config.json").is_file():
        found = "no such folder" if not model.exists() else "no config.json in it"
        note = f"{model}: {found}"
        return [Issue(where, note, accepted="the folder of a model in Hugging Face format")]
    weights = sorted(model.glob("*.safetensors"))
    if not weights:
        return [Issue(where, f"{model}: no *.safetensors in it", accepted="weights as safetensors")]
    damaged = [path for path in weights if not _is_whole(path)]
    problems = [Issue(where, f"{path}: not a whole safetensors file") for path in damaged]
    return problems + [Issue(where, f"{model / 'config.json'}: {fault}") for fault in _config_faults(model)]


def folder(name: str, where: str) -> Path:
    """Return the absolute path of that name, there or not; raise `SpecError` where no path can have it."""
    try:
        path = Path(name).resolve()
        path.exists()
    except (OSError, RuntimeError, ValueError) as error:  # too long, a loop of links, a zero byte
        why = getattr(error, "strerror", None) or str(error)
        found = f"{name[:80]}…" if len(name) > 80 else name
        raise SpecError([Issue(where, f"not a folder's name: {why[:200]}", found=found)]) from None
    return path


def _config_faults(model: Path) -> list[str]:
    try:
        config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        return [f"not valid JSON: {error}"]
    if not isinstance(config, dict):
        return ["not a JSON object"]
    faults = []
    named = config.get("architectures")
    # Of models that see, the part that writes can be loaded alone.
    ends = ("ForCausalLM", "LMHeadModel", *(["ForConditionalGeneration"] if "text_config" in config else []))
    if named is not None and not (
        isinstance(named, list) and any(str(name).endswith(ends) for name in named)
    ):
        faults.append(f"its architectures, {str(named)[:200]}, are not of a causal language model")
    try:
        context(model)
    except (KeyError, TypeError, AttributeError):
        faults.append("no max_position_embeddings in it")
    except ValueError as error:
        faults.append(str(error))
    return faults


def parameters(model: str | Path) -> int:
    """Return how many parameters a model has, a tied one once."""
    return _parameters(str(model), stamp(Path(model)))


@functools.lru_cache(maxsize=8)
def _parameters(folder: str, stamp: str) -> int:
    headers = [_tensors(path)[1] for path in sorted(Path(folder).glob("*.safetensors"))]
    return sum(math.prod(tensor["shape"]) for tensors in headers for tensor in tensors)


def _is_whole(path: Path) -> bool:
    """Whether a safetensors file has a header and all the bytes that it speaks of."""
    try:
        start, tensors = _tensors(path)
        ends = [tensor["data_offsets"][1] for tensor in tensors]
        has_shapes = all(math.prod(tensor["shape"]) >= 0 for tensor in tensors)
        return has_shapes and bool(start + max(ends, default=0) <= path.stat().st_size)
    except (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
        return False


def _tensors(path: Path) -> tuple[int, list[dict[str, Any]]]:
    """Return where the tensors of a safetensors file begin, and what its header says of each.

    The format: the header's length (8 bytes, little-endian), the header (JSON, by tensor its place in the
    rest), the rest. https://huggingface.co/docs/safetensors
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= size - 8:
            raise ValueError(f"{path}: not a whole safetensors file")
        header = json.loads(file.read(length))
    return 8 + length, [tensor for name, tensor in header.items() if name != "__metadata__"]


def context(model: str | Path) -> int:
    """Return how many tokens a prompt and its response may have together."""
    config = json.loads((Path(model) / "config.json").read_text(encoding="utf-8"))
    found = (config.get("text_config") or config)["max_position_embeddings"]
    if type(found) is not int or found < 1:
        raise ValueError(f"max_position_embeddings: found {found!r}; accepted: a whole number of at least 1")
    return found


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
    except Exception as error:  # of transformers and tokenizers, which raise anything for a damaged file
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(f"{model}: its tokenizer cannot be loaded: {why}") from None
    # From a folder without its files comes one that knows its special tokens alone.
    if len(loaded) <= len(set(loaded.all_special_tokens)):
        raise DataError(f"{model}: its tokenizer cannot be loaded: there is no vocabulary in the folder")
    # How long a prompt may be is checked and told here, with its problem.
    getattr(loaded, "deprecation_warnings", {})["sequence-length-is-longer-than-the-specified-maximum"] = True
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
