"""Check the folder of a language model in Hugging Face format, and read facts without loading the model.

A dry run needs the sizes of the model only: a folder with ``config.json`` or, where there is no such folder,
its name, if isolaw knows a model of this name.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

from isolaw.backends.real import environment
from isolaw.backends.real.train.memory.decoder import TYPES, Decoder
from isolaw.errors import DataError, InputError, Issue, SpecError, nearest, shown
from isolaw.files import open_file

_SUFFIXES = (".json", ".safetensors", ".model", ".jinja")
_BLOCK_BYTES = 2**24
CachedFunction = TypeVar("CachedFunction", bound=Callable[..., Any])
INSTEAD = 'backend = "command" sweeps with a trainer of your own (docs/trainers.md)'
# From the config.json of each model on the Hugging Face Hub: model_type, hidden_size, intermediate_size,
# num_hidden_layers, num_attention_heads, num_key_value_heads, head_dim, vocab_size, tie_word_embeddings.
_SIZES_OF = {
    "qwen2.5-0.5b": ("qwen2", 896, 4864, 24, 14, 2, 64, 151_936, True),
    "qwen2.5-1.5b": ("qwen2", 1536, 8960, 28, 12, 2, 128, 151_936, True),
    "qwen2.5-3b": ("qwen2", 2048, 11_008, 36, 16, 2, 128, 151_936, True),
    "qwen2.5-7b": ("qwen2", 3584, 18_944, 28, 28, 4, 128, 152_064, False),
    "qwen2.5-14b": ("qwen2", 5120, 13_824, 48, 40, 8, 128, 152_064, False),
    "qwen2.5-32b": ("qwen2", 5120, 27_648, 64, 40, 8, 128, 152_064, False),
    "qwen3-0.6b": ("qwen3", 1024, 3072, 28, 16, 8, 128, 151_936, True),
    "qwen3-1.7b": ("qwen3", 2048, 6144, 28, 16, 8, 128, 151_936, True),
    "qwen3-4b": ("qwen3", 2560, 9728, 36, 32, 8, 128, 151_936, True),
    "qwen3-8b": ("qwen3", 4096, 12_288, 36, 32, 8, 128, 151_936, False),
    "qwen3-14b": ("qwen3", 5120, 17_408, 40, 40, 8, 128, 151_936, False),
    "qwen3-32b": ("qwen3", 5120, 25_600, 64, 64, 8, 128, 151_936, False),
    "llama-3.2-1b": ("llama", 2048, 8192, 16, 32, 8, 64, 128_256, True),
    "llama-3.2-3b": ("llama", 3072, 8192, 28, 24, 8, 128, 128_256, True),
    "llama-3.1-8b": ("llama", 4096, 14_336, 32, 32, 8, 128, 128_256, False),
}
_SIZE_KEYS = (
    "model_type", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "head_dim", "vocab_size", "tie_word_embeddings",
)  # fmt: skip
_CONTEXT = 32_768  # tokens that all of them accept


def cached(folders: int, maxsize: int = 8) -> Callable[[CachedFunction], CachedFunction]:
    """Cache a function of positional arguments, of which the first ``folders`` are folders.

    The function is called again if the name, size or modification time of a file in these folders changes.
    """

    def decorate(function: CachedFunction) -> CachedFunction:
        @functools.lru_cache(maxsize)
        def compute(stamps: tuple[str, ...], *arguments: Any) -> Any:
            return function(*arguments)

        @functools.wraps(function)
        def lookup(*arguments: Any) -> Any:
            return compute(tuple(_stamp(Path(argument)) for argument in arguments[:folders]), *arguments)

        return cast(CachedFunction, lookup)

    return decorate


def _stamp(folder: Path) -> str:
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    return repr([(p.name, p.stat().st_size, p.stat().st_mtime_ns) for p in files if p.is_file()])


def check(model: str | Path, where: str = "real.model", weights: bool = True) -> list[Issue]:
    """Return the issues of a model's folder; without ``weights``, only those of its sizes."""
    try:
        model = folder(str(model), where)
    except SpecError as error:
        return error.issues
    if not weights and not model.exists() and _known_config(model):
        return []
    if not (model / "config.json").is_file():
        reason = "the folder has no config.json" if model.exists() else "no such folder"
        accepted = "the folder of a model in Hugging Face format"
        similar = nearest(model.name.lower(), _SIZES_OF) if not weights else ""
        accepted += f", or for a dry run a known model: {', '.join(_SIZES_OF)}" * (not weights)
        return [Issue(where, f"{model}: {reason}", accepted=accepted, nearest=similar)]
    # Libraries that load the model would wait for a pipe, or read a device forever.
    if special_files := [
        path for path in model.iterdir() if path.exists() and not (path.is_file() or path.is_dir())
    ]:
        return [Issue(where, f"{min(special_files)}: found a special file; expected a file")]
    files = sorted(model.glob("*.safetensors"))
    if weights and not files:
        return [Issue(where, f"{model}: the folder has no *.safetensors", accepted="weights as safetensors")]
    faults = [f"{path}: incomplete safetensors file" for path in files if not _is_whole(path)]
    faults += [f"{model / 'config.json'}: {fault}" for fault in _config_faults(model)]
    return [Issue(where, fault) for fault in faults]


def folder(name: str, where: str) -> Path:
    """Return ``name`` as an absolute path; raise `SpecError` for the key ``where`` if it is invalid."""
    try:
        path = Path(name).resolve()
        path.exists()
    except (OSError, RuntimeError, ValueError) as error:  # name too long, loop of links, null byte
        why = getattr(error, "strerror", None) or str(error)
        raise SpecError(
            [Issue(where, f"not a folder's name: {why[:200]}", f"{name[:80]}…" if len(name) > 80 else name)]
        ) from None
    return path


def config(model: str | Path) -> Any:
    """Return the content of a model's ``config.json``, of this file itself, or of a known model.

    Raise `InputError` if there is neither such a folder nor such a file, and no known model has this name.
    """
    path = Path(model)
    if not os.path.exists(path):  # also for a name that no file can have
        if known_config := _known_config(path):
            return known_config
        hint = f" (did you mean {similar}?)" if (similar := nearest(path.name.lower(), _SIZES_OF)) else ""
        accepted = f"a config.json, its folder, or a known model: {', '.join(_SIZES_OF)}"
        raise InputError(f"found {shown(str(model))}; expected {accepted}{hint}")
    with open_file(path / "config.json" if path.is_dir() else path) as file:
        return json.load(file)


def _known_config(model: Path) -> dict[str, Any]:
    """Return the configuration of a model that isolaw knows by name, or an empty dictionary."""
    sizes = _SIZES_OF.get(model.name.lower().removesuffix("-instruct"))
    return {**dict(zip(_SIZE_KEYS, sizes, strict=True)), "max_position_embeddings": _CONTEXT} if sizes else {}


def has_weights(model: str | Path) -> bool:
    """Return whether a folder has weights; without them, isolaw only plans."""
    return os.path.isdir(model) and any(Path(model).glob("*.safetensors"))


def _config_faults(model: Path) -> list[str]:
    try:
        content = config(model)
    except (OSError, ValueError, RecursionError) as error:
        return [f"not valid JSON: {error}"]
    if not isinstance(content, dict):
        return ["not a JSON object"]
    faults = []
    classes = content.get("architectures")
    names = classes if isinstance(classes, list) else []
    if classes is not None and not any(str(name).endswith(("ForCausalLM", "LMHeadModel")) for name in names):
        faults.append(f"architectures: found {str(classes)[:200]}; expected a causal language model")
    kind = content.get("model_type")
    if kind not in TYPES:
        faults.append(f"model_type: found {shown(kind)}; expected one of {', '.join(TYPES)}; {INSTEAD}")
    elif Decoder.of(content) is None:
        faults.append(f"the sizes of a model of type {kind} are incomplete or invalid")
    rope = content.get("rope_parameters") or content.get("rope_scaling") or {}
    if isinstance(rope, dict) and "longrope" in (rope.get("rope_type"), rope.get("type")):
        # transformers chooses the factors by the longest row, for all rows that are packed together.
        faults.append(f"rope_type: found longrope, with which positions depend on other rows; {INSTEAD}")
    try:
        context(model)
    except (KeyError, TypeError, AttributeError):
        faults.append("max_position_embeddings is missing")
    except ValueError as error:
        faults.append(str(error))
    return faults


def decoder(model: str | Path) -> Decoder:
    """Return the sizes of a model in a folder, or of a known model; raise `InputError` if it has none."""
    if sizes := Decoder.of(config(model)):
        return sizes
    raise InputError(f"{model}: expected a model of type {', '.join(TYPES)}; {INSTEAD}")


def _is_whole(path: Path) -> bool:
    """Return whether a safetensors file has a valid header and all the bytes that the header lists."""
    try:
        start, tensors = _tensors(path)
        ends = [tensor["data_offsets"][1] for tensor in tensors]
        has_shapes = all(math.prod(tensor["shape"]) >= 0 for tensor in tensors)
        return has_shapes and bool(start + max(ends, default=0) <= path.stat().st_size)
    except (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
        return False


def _tensors(path: Path) -> tuple[int, list[dict[str, Any]]]:
    """Return the byte offset of the tensors in a safetensors file, and the header entry of each tensor.

    The file consists of the header's length (8 bytes, little-endian), the header in JSON, and the tensors.
    The format is described at https://huggingface.co/docs/safetensors.
    """
    size = path.stat().st_size
    with open_file(path) as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= size - 8:
            raise ValueError(f"{path}: incomplete safetensors file")
        header = json.loads(file.read(length))
    tensors = [{"name": name, **entry} for name, entry in header.items() if name != "__metadata__"]
    return 8 + length, tensors


def context(model: str | Path) -> int:
    """Return the model's context length: the maximum number of tokens of prompt and response together."""
    content = config(model)
    tokens = content["max_position_embeddings"]
    if type(tokens) is not int or tokens < 1:
        raise ValueError(f"max_position_embeddings: found {tokens!r}; expected an integer of at least 1")
    return tokens


@cached(folders=1)
def digest(model: str | Path) -> str:
    """Return the SHA-256 of a model's JSON files, weights and tokenizer files, in order of their names."""
    checksum = hashlib.sha256()
    for path in sorted(Path(model).glob("*")):
        if path.suffix in _SUFFIXES and path.is_file():
            checksum.update(path.name.encode())
            with path.open("rb") as file:
                while block := file.read(_BLOCK_BYTES):
                    checksum.update(block)
    return checksum.hexdigest()


def tokenizer(model: str | Path) -> Any:
    """Load a model's tokenizer (`transformers`); raise `DataError` if that fails."""
    if not Path(model).is_dir():  # transformers would take it for a name on the Hub
        raise DataError(f"{model}: no such folder")
    with environment.importing():
        from transformers import AutoTokenizer

    try:
        loaded = AutoTokenizer.from_pretrained(str(model), trust_remote_code=False)
    except Exception as error:  # a damaged file can raise any exception
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(f"{model}: isolaw cannot load its tokenizer: {reason}") from None
    # If its files are missing, the tokenizer has special tokens only.
    if len(loaded) <= len(set(loaded.all_special_tokens)):
        raise DataError(f"{model}: isolaw cannot load its tokenizer: the folder has no vocabulary")
    # `prompts.check_lengths` reports prompts that are too long.
    getattr(loaded, "deprecation_warnings", {})["sequence-length-is-longer-than-the-specified-maximum"] = True
    return loaded
