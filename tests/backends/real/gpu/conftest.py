"""Models of random weights on the GPU, or tiny ones on the CPU."""

from __future__ import annotations

import pytest

from tests.backends.real.gpu.workload import Workload

# The shapes of a model whose state of 60 MB is written quickly.
SMALL = {
    "vocab_size": 1024,
    "hidden_size": 256,
    "intermediate_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
}


@pytest.fixture(scope="module")
def device(request: pytest.FixtureRequest) -> str:
    """The device of a module's tests; a module can parametrize it."""
    return getattr(request, "param", "cuda")


@pytest.fixture(scope="module")
def work(device: str, tmp_path_factory: pytest.TempPathFactory) -> Workload:
    """A model with the shapes of Qwen2.5-0.5B."""
    made = Workload(tmp_path_factory.mktemp("work"), device)
    made.make()
    return made


@pytest.fixture(scope="module")
def small(device: str, tmp_path_factory: pytest.TempPathFactory) -> Workload:
    """A small model."""
    made = Workload(tmp_path_factory.mktemp("small"), device)
    made.make(SMALL)
    return made
