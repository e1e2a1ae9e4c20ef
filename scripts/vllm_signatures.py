"""Write what isolaw relies on in vLLM and torch: python scripts/vllm_signatures.py [VERSION …] > FILE

Reads a few Python files out of the GPU wheels on PyPI, by range requests (some MB of wheels of 300 and more),
and parses them without importing anything. ``tests/backends/real/test_signatures.py`` compares what isolaw
passes with the file that this wrote, tests/backends/real/data/signatures.json.
"""

from __future__ import annotations

import ast
import io
import json
import re
import sys
import urllib.request
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

VLLM = ("0.24.0", "0.28.0", "0.32.0", "0.33.0")
TORCH = ("2.11.0", "2.13.0", "2.14.0")

# A file's text, by its path in the wheel; `KeyError` where there is none.
Read = Callable[[str], str]

FUNCTIONS = {
    "LLM": ("vllm/entrypoints/llm.py", "LLM.__init__"),
    "LLM.sleep": ("vllm/entrypoints/llm.py", "LLM.sleep"),
    "LLM.wake_up": ("vllm/entrypoints/llm.py", "LLM.wake_up"),
    "LLM.generate": ("vllm/entrypoints/llm.py", "LLM.generate"),
    "LLM.collective_rpc": ("vllm/entrypoints/llm.py", "LLM.collective_rpc"),
    "LLM.apply_model": ("vllm/entrypoints/llm.py", "LLM.apply_model"),
    "LLM.reset_prefix_cache": ("vllm/entrypoints/llm.py", "LLM.reset_prefix_cache"),
    "LLMEngine.has_unfinished_requests": (
        "vllm/v1/engine/llm_engine.py",
        "LLMEngine.has_unfinished_requests",
    ),
    "SamplingParams.clone": ("vllm/sampling_params.py", "SamplingParams.clone"),
    "Worker.sleep": ("vllm/v1/worker/gpu_worker.py", "Worker.sleep"),
    "Worker.wake_up": ("vllm/v1/worker/gpu_worker.py", "Worker.wake_up"),
    "Worker.reload_weights": ("vllm/v1/worker/gpu_worker.py", "Worker.reload_weights"),
    "runner V1 reload_weights": ("vllm/v1/worker/gpu_model_runner.py", "GPUModelRunner.reload_weights"),
    "runner V2 reload_weights": ("vllm/v1/worker/gpu/model_runner.py", "GPUModelRunner.reload_weights"),
    "Scheduler._preempt_request": ("vllm/v1/core/sched/scheduler.py", "Scheduler._preempt_request"),
}
FIELDS = {
    "EngineArgs": ("vllm/engine/arg_utils.py", "EngineArgs"),
    "SamplingParams": ("vllm/sampling_params.py", "SamplingParams"),
    "FlatLogprobs": ("vllm/logprobs.py", "FlatLogprobs"),
}
LITERALS = {"logprobs_mode": ("vllm/config/model.py", "LogprobsMode")}
ENVIRONMENT = (
    "VLLM_ENABLE_V1_MULTIPROCESSING",
    "VLLM_USE_V2_MODEL_RUNNER",
    "VLLM_LOGGING_LEVEL",
    "VLLM_NO_USAGE_STATS",
    "VLLM_ALLREDUCE_USE_SYMM_MEM",
    "VLLM_ALLREDUCE_USE_FLASHINFER",
)
_EXECUTOR, _WORKER = "vllm/v1/executor/abstract.py", "vllm/v1/worker/gpu_worker.py"
_ALLOCATOR, _RELOAD = "vllm/device_allocator/cumem.py", "vllm/model_executor/model_loader/reload/layerwise.py"
_HEAD, _CONFIG = "vllm/model_executor/layers/logits_processor.py", "vllm/config/vllm.py"
_CLIENT, _CORE = "vllm/v1/engine/core_client.py", "vllm/v1/engine/core.py"


def of_vllm(read: Read) -> dict[str, Any]:
    """Return what isolaw relies on in a vLLM whose files ``read`` returns."""
    functions = {
        name: {"file": file, "arguments": _arguments(_find(read(file), path))}
        for name, (file, path) in FUNCTIONS.items()
    }
    fields = {
        name: {"file": file, "names": _fields(_find(read(file), path))}
        for name, (file, path) in FIELDS.items()
    }
    literals = {
        name: {"file": file, "values": _constants(_assigned(read(file), variable))}
        for name, (file, variable) in LITERALS.items()
    }
    worker = ast.parse(read(_WORKER))
    sleep, wake = (_find(read(_WORKER), f"Worker.{name}") for name in ("sleep", "wake_up"))
    allocator = _find(read(_ALLOCATOR), "CuMemAllocator.wake_up")
    default_v2 = _assigned(read(_CONFIG), "DEFAULT_V2_MODEL_RUNNER_ARCHITECTURES")
    facts = {
        # Parts that sleep, as the executor names them and as the worker allocates them.
        "sleep tags": (_EXECUTOR, _sleep_tags(read(_EXECUTOR))),
        "allocated tags": (_WORKER, sorted({k.value.value for k in _keywords(worker, "tag")})),
        # Sleep level 2 saves buffers, and waking restores them.
        "buffers survive sleep": (_WORKER, all("named_buffers" in ast.dump(f) for f in (sleep, wake))),
        "empties the cache before it wakes": (_ALLOCATOR, "empty_cache" in ast.dump(allocator)),
        # recipe.float32_head: the head of a generating model, and not of a pooling one alone.
        "head_dtype of logits": (_HEAD, "head_dtype" in read(_HEAD)),
        # With the model's operands and a float32 result.
        "mm into head_dtype": (_HEAD, _has_call(ast.parse(read(_HEAD)), "torch.mm", "out_dtype")),
        # Where it is not the default: the architectures for which it is.
        "runner V2 by default": (_CONFIG, _constants(default_v2) if default_v2 else True),
        "scheduler in the process": (
            _CLIENT,
            _sets_attribute(_find(read(_CLIENT), "InprocClient"), "engine_core")
            and _sets_attribute(_find(read(_CORE), "EngineCore"), "scheduler"),
        ),
        "warns of layers without weights": (_RELOAD, "Failed to load weights" in read(_RELOAD)),
        "environment": (
            "vllm/envs.py",
            [name for name in ENVIRONMENT if f'"{name}"' in read("vllm/envs.py")],
        ),
    }
    return {
        "functions": functions,
        "fields": fields,
        "literals": literals,
        "facts": {name: {"file": file, "value": value} for name, (file, value) in facts.items()},
    }


def of_torch(read: Read) -> dict[str, Any]:
    """Return what isolaw relies on in a torch whose files ``read`` returns."""
    varlen, group = "torch/nn/attention/varlen.py", "torch/distributed/distributed_c10d.py"
    return {
        "functions": {
            name: {"file": file, "arguments": _arguments(_find(read(file), name))}
            for file, name in ((varlen, "varlen_attn"), (group, "init_process_group"))
        },
        "facts": {
            name: {"file": group, "value": name in read(group)}
            for name in ("default_pg_timeout", "default_pg_nccl_timeout")
        },
    }


def _find(source: str, path: str) -> Any:
    """Return the class or function at a dotted path; of overloads the last one."""
    node: Any = ast.parse(source)
    for name in path.split("."):
        node = [
            n for n in ast.walk(node) if isinstance(n, ast.ClassDef | ast.FunctionDef) and n.name == name
        ][-1]
    return node


def _arguments(function: ast.FunctionDef) -> dict[str, str | None]:
    """Return names and defaults; ``**`` stands for whatever else."""
    a = function.args
    names = [argument.arg for argument in (*a.posonlyargs, *a.args)]
    defaults = [None] * (len(names) - len(a.defaults)) + [ast.unparse(value) for value in a.defaults]
    named = dict(zip(names, defaults, strict=True))
    for argument, value in zip(a.kwonlyargs, a.kw_defaults, strict=True):
        named[argument.arg] = ast.unparse(value) if value else None
    named.pop("self", None)
    return named | ({"**": None} if a.kwarg else {})


def _fields(node: ast.ClassDef) -> list[str]:
    return sorted(
        n.target.id for n in node.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)
    )


def _assigned(source: str, name: str) -> ast.expr | None:
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and any(
            isinstance(t, ast.Name) and t.id == name for t in node.targets
        ):
            return node.value
    return None


def _constants(node: Any) -> list[str]:
    return sorted(n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str))


def _keywords(node: ast.AST, name: str) -> list[ast.keyword]:
    found = [n for n in ast.walk(node) if isinstance(n, ast.keyword) and n.arg == name]
    return [n for n in found if isinstance(n.value, ast.Constant)]


def _sleep_tags(source: str) -> list[str]:
    """Return the names of ``SLEEP_TAGS``, or of what `Executor.sleep` assigns to ``sleeping_tags``."""
    if (named := _assigned(source, "SLEEP_TAGS")) is not None:
        return _constants(named)
    sets = [n.value for n in ast.walk(_find(source, "Executor.sleep")) if isinstance(n, ast.Assign)]
    return _constants(next(value for value in sets if isinstance(value, ast.Set)))


def _has_call(node: ast.AST, function: str, keyword: str) -> bool:
    calls = [n for n in ast.walk(node) if isinstance(n, ast.Call) and ast.unparse(n.func) == function]
    return any(k.arg == keyword for n in calls for k in n.keywords)


def _sets_attribute(node: ast.AST, name: str) -> bool:
    return any(
        isinstance(n, ast.Attribute) and n.attr == name and isinstance(n.ctx, ast.Store)
        for n in ast.walk(node)
    )


# -- wheels ------------------------------------------------------------------------------------------


class Remote(io.RawIOBase):
    """A file behind a URL, read by range requests."""

    def __init__(self, url: str, size: int) -> None:
        self.url, self.size, self.place = url, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.place

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self.place = offset + (0, self.place, self.size)[whence]
        return self.place

    def readinto(self, buffer: Any) -> int:
        end = min(self.size, self.place + len(buffer))
        if self.place >= end:
            return 0
        wanted = urllib.request.Request(self.url, headers={"Range": f"bytes={self.place}-{end - 1}"})
        with urllib.request.urlopen(wanted, timeout=120) as answer:
            if answer.status != 206:
                raise OSError(f"{self.url}: no range requests (status {answer.status})")
            content = answer.read()
        buffer[: len(content)] = content
        self.place += len(content)
        return len(content)


def wheel(package: str, version: str, tag: str) -> zipfile.ZipFile:
    """Open a package's Linux wheel on PyPI."""
    accept = {"Accept": "application/vnd.pypi.simple.v1+json"}
    listing = urllib.request.Request(f"https://pypi.org/simple/{package}/", headers=accept)
    with urllib.request.urlopen(listing, timeout=120) as answer:
        files = json.load(answer)["files"]
    wanted = re.compile(rf"{package}-{re.escape(version)}-{tag}-manylinux.*x86_64\.whl")
    file = next(file for file in files if wanted.fullmatch(file["filename"]))
    return zipfile.ZipFile(io.BufferedReader(Remote(file["url"], file["size"]), 1 << 18))  # type: ignore[type-var]


def reader(archive: zipfile.ZipFile) -> Read:
    return lambda path: archive.read(path).decode()


def folder_reader(folder: Path) -> Read:
    """Return what reads an installed package's files: ``folder`` is site-packages."""
    return lambda path: (folder / path).read_text(encoding="utf-8")


def main(versions: list[str]) -> None:
    found: dict[str, Any] = {"vllm": {}, "torch": {}}
    for version in versions or VLLM:
        read = reader(archive := wheel("vllm", version, "cp38-abi3"))
        metadata = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        pinned = re.search(r"^Requires-Dist: torch==(\S+)", read(metadata), re.MULTILINE)
        found["vllm"][version] = {"torch": pinned[1] if pinned else None, **of_vllm(read)}
        print(f"vllm {version}", file=sys.stderr)
    for version in TORCH:
        found["torch"][version] = of_torch(reader(wheel("torch", version, "cp311-cp311")))
        print(f"torch {version}", file=sys.stderr)
    json.dump(found, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main(sys.argv[1:])
