"""What the tests of the real backend share: real vLLM, real DeepSpeed, and a tiny model.

Tests marked `real` need the real extra. In CI, where a skip is a failure, it is installed.

``tiny.safetensors`` has the weights of the tiny model after its warm-up, of which half precision is kept. A
warm-up on the spot ends elsewhere on another processor, and what is learned after it with it. Where the model
changes, make them again::

    python examples/tiny_model.py OUT --pool 2500
    python -c "from safetensors.torch import load_file, save_file; save_file({k: v.half() for k, v in
        load_file('OUT/model/model.safetensors').items()}, 'tests/backends/real/tiny.safetensors')"
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib
import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import arithmetic
import pandas as pd
import pytest

from isolaw.backend import Checkpoint
from isolaw.backends.real import BACKEND, environment, random_model
from isolaw.backends.real.rollout import split
from isolaw.backends.real.rollout.problems import Problem, read_pool, write_set
from isolaw.config import RunSpec, SweepSpec

EXAMPLES = Path(__file__).parents[3] / "examples"
WEIGHTS = Path(__file__).with_name("tiny.safetensors")
# Before any test module imports torch.
environment.prepare()

OF_MACHINE = ("seconds", "machine")  # in a line
MISSING = [name for name in ("torch", "transformers", "deepspeed", "vllm") if not environment.installed(name)]


def pytest_runtest_setup(item: pytest.Item) -> None:
    if MISSING and item.get_closest_marker("real"):
        pytest.skip(f"needs the real extra: {', '.join(MISSING)} not installed (make real-cpu)")


# Imports what a worker of a sweep does.
_WORKER = """
from isolaw.backends.real import environment
environment.prepare()
import deepspeed.ops
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from vllm import LLM, SamplingParams, TokensPrompt
from isolaw import engine
from isolaw.backends.real.train import loop
"""


@pytest.fixture(scope="session")
def preloaded(preload: Callable[[str], Path]) -> Path:
    """`preload` for sweeps with a real model; where there is a GPU, the usual programs."""
    return Path(sys.executable).parent if environment.gpus() or MISSING else preload(_WORKER)


@dataclass(frozen=True)
class Made:
    """Folders of the tiny model and its problem sets.

    ``sums`` are additions of numbers below 50, on which it is bad; those of their validation set it has
    not met in its warm-up either.
    """

    model: Path
    easy: Path
    hard: Path
    sums: Path


@pytest.fixture(scope="session")
def made(request: pytest.FixtureRequest) -> Made:
    """The tiny model and its problem sets, made once for all workers of pytest and kept in pytest's cache."""
    sources = [
        WEIGHTS,
        *EXAMPLES.glob("*.py"),
        Path(split.__file__),
        Path(random_model.__file__),
    ]
    content = b"".join(source.read_bytes() for source in sorted(sources)) + version("torch").encode()
    key = hashlib.sha256(content).hexdigest()[:16]
    folder = request.config.cache.mkdir("isolaw-tiny-model") / key
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").is_file():
            shutil.rmtree(folder, ignore_errors=True)
            _warmed().save_pretrained(folder / "warm")
            # In this process, which has imported torch: other workers wait for it.
            importlib.import_module("tiny_model").build(folder, 2500, model=folder / "warm")
            unseen = {problem.id for problem in read_pool(folder / "pool.jsonl")}
            parts: dict[str, list[Problem]] = {"train": [], "validation": []}
            for problem in arithmetic.generate("add-50", arithmetic.size("add-50"), 0):
                swapped = "+".join(reversed(problem.id.split("+")))
                parts["validation" if unseen & {problem.id, swapped} else "train"].append(problem)
            write_set(folder / "sums", parts)
            (folder / "complete").touch()
    return Made(folder / "model", folder / "easy", folder / "hard", folder / "sums")


def _warmed() -> Any:
    from safetensors.torch import load_file
    from tiny_model import make_model

    model = make_model()
    model.load_state_dict({name: tensor.float() for name, tensor in load_file(WEIGHTS).items()})
    return model


Sections = dict[str, dict[str, Any]]


@pytest.fixture(scope="session")
def sections(made: Made) -> Callable[..., Sections]:
    """A sweep of some seconds, as data; each argument changes keys of a section.

    Its sampler is the plain one: vLLM takes 17 s of a core to start, and tests of what it does name it.
    """

    def make(**more: dict[str, Any]) -> Sections:
        data: Sections = {
            "sweep": {"backend": "real", "compute": 160, "seeds": [0]},
            "grid": {"problems_per_batch": [8], "rollouts_per_problem": [4]},
            "recipe": {"lr": 2e-3, "warmup_steps": 1, "kl": 0.0, "entropy": 0.0}
            | {"temperature": 1.0, "max_response_tokens": 6},
            "problems": {"set": str(made.easy), "n_train": 64, "n_validation": 16},
            "evaluation": {"points": 2},
            "real": {"model": str(made.model), "dtype": "float32", "sampler": "transformers"},
            "executor": {"kind": "inline"},
        }
        return {name: {**data.get(name, {}), **more.get(name, {})} for name in {**data, **more}}

    return make


@pytest.fixture(scope="session")
def resolved(sections: Callable[..., Sections]) -> Callable[..., RunSpec]:
    """The single run of such a sweep, as the backend resolves it."""

    def make(**more: dict[str, Any]) -> RunSpec:
        sweep = SweepSpec.parse(sections(**more))
        compute = sweep.sweep.compute
        (b,), (n,) = sweep.grid.problems_per_batch, sweep.grid.rollouts_per_problem
        run = RunSpec(
            backend="real",
            problems_per_batch=b,
            rollouts_per_problem=n,
            seed=sweep.sweep.seeds[0],
            recipe=sweep.recipe,
            problems=sweep.problems,
            options=sweep.real,
            compute=compute,
            evaluation=sweep.evaluation.model_copy(update={"start": b * n, "end": compute}),
        )
        spec = BACKEND.resolve(run)
        assert BACKEND.check(spec) == []
        return spec

    return make


@pytest.fixture
def vllm(made: Made) -> Any:
    """vLLM with the tiny model's own weights; the runs of a process share its one engine."""
    from isolaw.backends.real.rollout.sampler_group import open_sampler
    from isolaw.backends.real.rollout.samplers import SamplerSettings, stored_weights

    sampler = open_sampler(SamplerSettings("vllm", str(made.model), "float32", 32))
    sampler.load(stored_weights(str(made.model)))
    return sampler


@pytest.fixture
def transformers_sampler(made: Made) -> Any:
    from isolaw.backends.real.rollout.samplers import TransformersSampler

    return TransformersSampler(str(made.model), dtype="float32")


class Curve:
    """What a run has measured: ``curve["avg@4"]`` and ``curve["train", "lr"]`` are values by step."""

    def __init__(self, checkpoints: list[Checkpoint]) -> None:
        self.checkpoints = checkpoints
        self.steps = [checkpoint.step for checkpoint in checkpoints]
        self.last = checkpoints[-1]

    def __getitem__(self, name: str | tuple[str, str]) -> dict[int, float]:
        wanted = ("validation", name) if isinstance(name, str) else name
        return {
            checkpoint.step: row.value
            for checkpoint in self.checkpoints
            for row in checkpoint.rows
            if (row.eval_set, row.metric) == wanted
        }

    def lines(self) -> list[dict[str, Any]]:
        """What is kept of the checkpoints that measured something, but for the time that they took."""
        lines = [checkpoint.line(0.0) for checkpoint in self.checkpoints if checkpoint.rows]
        return [{key: value for key, value in line.items() if key not in OF_MACHINE} for line in lines]


@pytest.fixture(scope="session")
def train(resolved: Callable[..., RunSpec]) -> Callable[..., Curve]:
    """Make the single run of a sweep in this process."""

    def make(**more: dict[str, Any]) -> Curve:
        from isolaw.backends.real.train import loop

        return Curve(list(loop.train(resolved(**more), None)))

    return make


@pytest.fixture
def reward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], dict[str, str]]:
    """Write the body of a reward function of a prompt, a response and an answer; return what names it."""

    def make(body: str) -> dict[str, str]:
        name = (
            f"reward_{hashlib.sha256(body.encode()).hexdigest()[:8]}"  # its name is part of a run's identity
        )
        lines = "".join(f"    {line}\n" for line in body.splitlines())
        (tmp_path / f"{name}.py").write_text(f"def reward(prompt, response, answer):\n{lines}")
        monkeypatch.syspath_prepend(tmp_path)
        return {"reward": f"{name}:reward"}

    return make


@pytest.fixture(scope="session")
def compare() -> Callable[[pd.DataFrame, pd.DataFrame], None]:
    """Assert that two curves are equal but for what rounding does in another order of summation."""

    def check(left: pd.DataFrame, right: pd.DataFrame) -> None:
        keys = ["run_id", "step", "eval_set", "metric"]
        left, right = (
            table.drop(columns="wall_s").sort_values(keys, ignore_index=True) for table in (left, right)
        )
        rounded = left["metric"].str.startswith(
            ("mismatch", "grad_norm", "entropy", "kl", "importance", "ratio")
        )
        pd.testing.assert_frame_equal(left[~rounded], right[~rounded], check_exact=False, rtol=1e-12)
        pd.testing.assert_frame_equal(left[rounded], right[rounded], check_exact=False, rtol=1e-3, atol=1e-4)

    return check


@pytest.fixture(scope="session")
def sweep_file() -> Callable[[Path, Sections], Path]:
    """Write a sweep as TOML."""

    def write(path: Path, data: Sections) -> Path:
        lines = []
        for name, section in data.items():
            lines.append(f"[{name}]")
            lines += [f"{key} = {json.dumps(value)}" for key, value in section.items() if value is not None]
        path.write_text("\n".join(lines) + "\n")
        return path

    return write
