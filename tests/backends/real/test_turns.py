"""Sampler and trainer take turns on a GPU's memory: whole runs with a vLLM that only keeps the books."""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import shutil
import subprocess
import weakref
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("deepspeed")

from safetensors.torch import load_file, save_file

from isolaw.config import RunSpec
from isolaw.errors import RunError

pytestmark = [pytest.mark.real, pytest.mark.slow]

HERE = Path(__file__).parent
# What computes beside the update, and the way to every one of them.
RECIPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "stale": {"recipe": {"staleness": 1}},
    "kl in the loss": {"recipe": {"kl": 0.01}},
    "kl in the reward": {"recipe": {"algorithm": "ppo", "kl": 0.01}},
    "stale, kl in the reward": {"recipe": {"algorithm": "ppo", "kl": 0.01, "staleness": 1}},
    "dynamic sampling": {"recipe": {"algorithm": "dapo"}},
    "two sets": {"evaluation": {"sets": ["validation", "train"], "points": 100}},
    "ZeRO 1": {"real": {"zero_stage": 1}},
    "ZeRO 2": {"real": {"zero_stage": 2}},
    "ZeRO 3": {"recipe": {"kl": 0.01, "staleness": 1}, "real": {"zero_stage": 3}},
}


@pytest.fixture(scope="module")
def stand_in() -> ModuleType:
    spec = importlib.util.spec_from_file_location("stand_in", HERE / "stand_in.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def spec(resolved: Callable[..., RunSpec]) -> Callable[..., RunSpec]:
    """A run of three steps, each looked at, whose sampler is vLLM."""

    def make(**more: Any) -> RunSpec:
        short = {"sweep": {"compute": 96}, "evaluation": {"points": 100}, "problems": {"n_train": 16}}
        sections = {name: {**short.get(name, {}), **more.get(name, {})} for name in {**short, **more}}
        sections["real"] = {"sampler": "vllm", **sections.get("real", {})}
        return resolved(**sections)

    return make


@pytest.fixture
def tied(made: Any, tmp_path: Path) -> str:
    """The tiny model with its embedding for a head."""
    shutil.copytree(made.model, folder := tmp_path / "tied")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": True}))
    stored = load_file(folder / "model.safetensors")
    del stored["lm_head.weight"]
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    return str(folder)


def turns(events: list[str]) -> list[str]:
    """What follows what, repetitions left out."""
    return [event for place, event in enumerate(events) if place == 0 or events[place - 1] != event]


CYCLE = ["sleep 2", "forward", "wake weights", "load", "wake kv_cache", "generate"]


@pytest.mark.parametrize("name", RECIPES)
def test_nothing_computes_while_the_sampler_is_awake(spec, stand_in: ModuleType, name: str) -> None:
    books, _ = stand_in.run(spec(**RECIPES[name]))
    assert books.faults == []
    assert {"forward", "generate", "load", "sleep 2"} <= set(books.events)


def test_a_turn_of_each(spec, stand_in: ModuleType) -> None:
    """Sleep, compute, wake with the new weights, draw; and nothing twice."""
    books, _ = stand_in.run(spec())
    told = turns(books.events)
    begin, end = 6, 6 * len(CYCLE)
    assert told[:begin] == ["load", "sleep 2", *CYCLE[2:]]  # vLLM starts; the first evaluation
    # A comparison after each evaluation, and an update after each batch.
    assert told[begin : begin + end] == CYCLE * 6
    assert told[begin + end :] == ["sleep 2", "forward", "wake weights", "wake kv_cache"]  # and closed


def test_the_next_run_finds_its_sampler_asleep(spec, stand_in: ModuleType) -> None:
    """Of another recipe with the same longest response: the trainer is made while the sampler sleeps."""
    from isolaw.backends.real.train import loop

    with stand_in.installed() as books:
        for more in ({}, {"recipe": {"kl": 0.01}, "problems": {"n_train": 24}}):
            list(loop.train(spec(**more), None))
    assert books.faults == []
    assert len(books.arguments) == 1


def test_a_trainer_is_gone_after_its_run(spec, stand_in: ModuleType) -> None:
    """Also the one that was there when vLLM started and froze all that there was."""
    from isolaw.backends.real.train import loop

    with stand_in.installed() as books:
        run = loop.Run(spec())
        held = [weakref.ref(run.trainer.engine), *map(weakref.ref, run.trainer.model.parameters())]
        run.advance()
        run.close()
        del run
        gc.collect()
        assert len(books.llms) == 1
        assert [one for one in held if one()] == []


def test_a_run_continues_in_turns(spec, stand_in: ModuleType, tmp_path: Path) -> None:
    from isolaw.backends.real.train import loop

    with stand_in.installed() as books:
        for checkpoint in loop.train(spec(recipe={"staleness": 1}), None):
            if checkpoint.step == 2:
                checkpoint.save(tmp_path)
        list(loop.train(spec(recipe={"staleness": 1}), tmp_path))
    assert books.faults == []


def test_tied_embeddings_are_loaded_as_two(spec, stand_in: ModuleType, tied: str) -> None:
    books, _ = stand_in.run(spec(real={"model": tied}))
    assert books.faults == []
    (arguments,) = books.arguments
    assert arguments["hf_overrides"] == {"tie_word_embeddings": False}
    assert arguments["load_format"] == "dummy"


def test_vllm_is_asked_for_what_was_planned(spec, stand_in: ModuleType, made: Any) -> None:
    books, _ = stand_in.run(spec(real={"gpu_memory": 0.3}))
    longest = max(
        len(json.loads(line)["prompt"]) for file in made.easy.glob("*.jsonl") for line in file.open()
    )
    assert books.arguments == [
        {
            "dtype": "float32",
            "max_model_len": longest + 1 + 6,  # a token a character, and one that begins; responses of six
            "enforce_eager": False,
            "logprobs_mode": "processed_logprobs",
            "seed": 0,
            "load_format": "dummy",
            "gpu_memory_utilization": 0.3,
            "enable_sleep_mode": True,
        }
    ]


def test_a_float32_head_on_both_sides(spec, stand_in: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    head = {"recipe": {"float32_head": True}, "real": {"dtype": "bfloat16"}}
    books, _ = stand_in.run(spec(**head))
    assert books.arguments[0]["hf_overrides"] == {"head_dtype": "float32"}
    assert books.faults == []

    class Older(stand_in.LLM):
        """As vLLM 0.24, which has it for pooling models only, and says so in its log."""

        def __init__(self, model: str, **arguments: Any) -> None:
            super().__init__(model, **arguments)
            self.model_config.head_dtype = torch.bfloat16

    monkeypatch.setattr(stand_in, "LLM", Older)
    with pytest.raises(RunError, match=r"^recipe\.float32_head: vLLM .* ignores it"):
        stand_in.run(spec(**head))


@pytest.mark.parametrize(
    "told",
    ["To serve at least one request, 9 GiB KV cache memory is needed.", "Free memory on device: 3 GiB."],
)
def test_too_little_memory_names_the_keys(stand_in: ModuleType, made: Any, monkeypatch, told: str) -> None:
    from isolaw.backends.real.rollout.sampler_group import open_sampler
    from isolaw.backends.real.rollout.samplers import SamplerSettings

    def refuse(*_: Any, **__: Any) -> None:
        raise ValueError(told)

    monkeypatch.setattr(stand_in.LLM, "__init__", refuse)
    with (
        stand_in.installed(),
        pytest.raises(RunError, match=r"real\.gpu_memory .*max_response_tokens") as raised,
    ):
        open_sampler(SamplerSettings("vllm", str(made.model), "float32", 20))
    assert told in str(raised.value)


def test_a_model_with_tensors_beside_parameters_and_buffers_sleeps_at_level_1() -> None:
    from isolaw.backends.real.rollout.vllm_sampler import _other_tensors

    model = torch.nn.Sequential(torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 2))
    assert _other_tensors(model) == []

    class OnGpu(torch.Tensor):
        is_cuda = True

    model[1].scale = torch.zeros(1).as_subclass(OnGpu)
    model[1].kv_cache = torch.zeros(1).as_subclass(OnGpu)
    model[1].on_the_host = torch.zeros(1)
    assert _other_tensors(model) == ["1.scale"]


@pytest.mark.nightly
def test_two_ranks(spec, stand_in: ModuleType, preloaded: Path, tmp_path: Path) -> None:
    """In turns on each, with shares that differ (and one that is empty)."""
    odd = {
        "grid": {"problems_per_batch": [5], "rollouts_per_problem": [3]},
        "sweep": {"compute": 45},
        "problems": {"n_validation": 1},
        "evaluation": {"metrics": ["avg@1"], "samples": 1},
    }
    kinds = {
        "ZeRO 0, kl in the reward": {"recipe": {"algorithm": "ppo", "kl": 0.01}},
        "ZeRO 2, stale": {"recipe": {"staleness": 1}, "real": {"zero_stage": 2}},
        "ZeRO 3, kl in the loss": {"recipe": {"kl": 0.01}, "real": {"zero_stage": 3}},
    }
    alone = {name: spec(**odd, **more) for name, more in kinds.items()}
    jobs = {name: one.model_dump(mode="json") for name, one in alone.items()}
    (tmp_path / "jobs.json").write_text(json.dumps(jobs))
    torchrun = [preloaded / "python", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    words = [*torchrun, str(HERE / "stand_in.py"), str(tmp_path / "jobs.json"), str(tmp_path)]
    done = subprocess.run(words, env={**os.environ}, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    for name, one in alone.items():
        _, lines = stand_in.run(one)
        for rank in ranks:
            assert rank[name]["faults"] == []
            assert rank[name]["lines"] == ranks[0][name]["lines"]
        for mine, theirs in zip(lines, ranks[0][name]["lines"], strict=True):
            ours, others = (
                {(row["eval_set"], row["metric"]): row["value"] for row in line["rows"]}
                for line in (mine, theirs)
            )
            assert others == pytest.approx(ours, rel=1e-3, abs=1e-4), name
