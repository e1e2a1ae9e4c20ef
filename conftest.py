"""Which files pytest collects: it imports all of them, and some imports take seconds."""

from __future__ import annotations

import functools
import importlib.util
import re
import signal
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent
TORCH = importlib.util.find_spec("torch") is not None
# Files whose tests run vLLM in pytest's own process; then the others that take longest, and all that is left:
# of the tests without PyTorch what waits or has few long tests, then those of the real backend.
_WITH_VLLM = (
    *("test_backend", "train/test_loop", "train/test_adapters"),
    *("rollout/test_samplers", "rollout/test_difficulty"),
)
_LONG = (
    *("test_docs", "executors/test_slurm", "executors/test_real_slurm", "executors/test_ray"),
    *("fits/test_degenerate", "report/page/test_browser", "store/test_killed"),
    "test_golden",
    *("backends/real/test_command", "backends/real/test_gpu_selftest", "backends/real/test_examples"),
    *(
        "backends/real/train/test_pipeline",
        "backends/real/train/test_ranks",
        "backends/real/test_resume",
        "backends/real/test_turns",
        "backends/real/train/test_memory",
        "backends/real/train/test_trainer",
    ),
)
# Where a shell started pytest in the background, it ignores SIGINT, and so would all that the tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)
_IMPORTS_TORCH = re.compile(rb"^(import torch|from torch|torch = pytest\.importorskip)", re.MULTILINE)
_MARK = re.compile(rb"\bmark\.(slow|nightly|gpu|real)\b")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out modules without doctests and, where no test may need it, what imports torch."""
    if collection_path.suffix != ".py":
        return None
    of_the_package = collection_path.is_relative_to(ROOT / "isolaw")
    if of_the_package and b">>>" not in collection_path.read_bytes():
        return True
    expression = config.getoption("markexpr")
    without_torch = "not real" in expression or (of_the_package and not TORCH)
    if without_torch and imports_torch(collection_path):
        return True
    wanted = not expression or takes_unmarked(expression) or has_marks(collection_path)
    return None if wanted else True


@functools.cache
def takes_unmarked(expression: str) -> bool:
    """Return whether ``-m`` with this expression takes tests without a mark."""
    return bool(eval(re.sub(r"\b(?!(?:and|or|not)\b)\w+", "False", expression), {"__builtins__": {}}))


def has_marks(path: Path) -> bool:
    """Return whether a module may have tests with one of isolaw's own marks."""
    return imports_torch(path) or _MARK.search(path.read_bytes()) is not None


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark the tests of a module that imports torch: they need the real extra."""
    if imports_torch(item.path):
        item.add_marker(pytest.mark.real)


@functools.cache
def imports_torch(path: Path) -> bool:
    """Return whether a module imports torch when it is imported."""
    return _IMPORTS_TORCH.search(path.read_bytes()) is not None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With ``--dist loadfile`` vLLM starts in one worker alone, and what takes longest comes first.

    The pages of the documentation are shared out one by one: a worker that had them all would end last.
    ``--dist loadgroup`` would do for the former, but with pytest 9.2 xdist 3.8 ignores its marks.
    """
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    together = {f"tests/backends/real/{name}.py": "vllm" for name in _WITH_VLLM}
    first = ["vllm", *(f"tests/{name}.py" for name in _LONG)]
    for name in [*together, *first[1:]]:
        assert (ROOT / name).is_file(), name

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            alone = re.search(r"::test_(blocks|tutorials)_run\[", nodeid)
            return nodeid if alone else together.get(file, file)

        def _assign_work_unit(self, node: Any) -> None:
            for name in first:
                scopes = (test for test in self.workqueue if test.partition("::")[0] == name)
                if (scope := next(scopes, None)) is not None:
                    self.workqueue.move_to_end(scope, last=False)
                    break
            super()._assign_work_unit(node)

    return Scheduling(config, log)
