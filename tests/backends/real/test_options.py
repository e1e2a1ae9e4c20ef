"""The ``[real]`` section."""

from __future__ import annotations

import os
from typing import Any

import pytest

from isolaw.backends.real import environment
from isolaw.backends.real.options import IDENTITY, RealOptions
from isolaw.config import RunSpec
from isolaw.errors import SpecError


def run(**options: Any) -> RunSpec:
    return RunSpec(backend="real", problems_per_batch=1, rollouts_per_problem=2, compute=10, options=options)


@pytest.fixture
def on_gpus(monkeypatch: pytest.MonkeyPatch):
    def set_number(number: int) -> None:
        monkeypatch.setattr(environment, "gpus", lambda: number)

    return set_number


def test_what_depends_on_the_machine(on_gpus, monkeypatch: pytest.MonkeyPatch) -> None:
    on_gpus(0)
    monkeypatch.setattr(environment, "installed", lambda name: True)
    options = RealOptions.read(run(model="m"))
    assert (options.dtype, options.sampler, options.logprob_tolerance) == ("float32", "vllm", 1e-4)
    on_gpus(1)
    monkeypatch.setattr(environment, "installed", lambda name: name != "vllm")
    options = RealOptions.read(run(model="m"))
    assert (options.dtype, options.sampler, options.logprob_tolerance) == ("bfloat16", "transformers", 0.1)
    options = RealOptions.read(run(model="m", processes=8))
    for gpus, cores, workers in ((0, 64, 2), (8, 40, 5), (8, 4, 2), (8, 96, 8)):
        on_gpus(gpus)
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, cores=cores: range(cores))
        assert options.reward_processes == workers
        assert options.changed(reward_workers=3).reward_processes == 3


def test_what_is_given_stays(on_gpus) -> None:
    on_gpus(1)
    options = RealOptions.read(run(model="m", dtype="float32", sampler="transformers", logprob_tolerance=0.5))
    assert (options.dtype, options.sampler, options.logprob_tolerance) == ("float32", "transformers", 0.5)


def test_options_of_torchrun_are_refused() -> None:
    with pytest.raises(SpecError, match=r"real\.torchrun: unknown key"):
        RealOptions.read(run(model="m", torchrun="--nnodes 2"))


def test_one_reward_with_a_time_limit() -> None:
    for wrong, told in (
        ({"reward": ["exact", "a:b"]}, "real.reward: found ['exact', 'a:b']"),
        ({"reward_timeout": 0}, "real.reward_timeout: found 0"),
    ):
        with pytest.raises(SpecError) as raised:
            RealOptions.read(run(model="m", **wrong))
        assert told in str(raised.value)


def test_chat_keys_are_known_by_their_values() -> None:
    plain, empty = (RealOptions.read(run(model="m", **more)) for more in ({}, {"chat_template": {}}))
    assert plain == empty
    assert "chat_template" not in plain.model_dump(exclude_none=True)
    options = RealOptions.read(run(model="m", system="1", chat_template={"enable_thinking": False, "n": 3}))
    assert options.chat.system == "1"
    assert options.chat.arguments == '{"enable_thinking": false, "n": 3}'
    assert hash(options) != hash(plain)
    with pytest.raises(SpecError, match=r"real.chat_template.tools: found \[1\]; expected"):
        RealOptions.read(run(model="m", chat_template={"tools": [1]}))


def test_the_model_is_needed() -> None:
    with pytest.raises(SpecError) as raised:
        RealOptions.read(run(dtype="float32"))
    assert str(raised.value) == "real.model: missing; expected the folder of the model to train"


def test_everything_wrong_at_once() -> None:
    wrong = {
        "modell": "m",
        "zero_stage": 4,
        "micro_batch_tokens": 0,
        "processes": 1.5,
        "gpu_memory": 2.0,
        "dtype": "float16",
        "checkpoint_minutes": 0,
    }
    with pytest.raises(SpecError) as raised:
        RealOptions.read(run(model="m", **wrong))
    problems = {problem.where: str(problem) for problem in raised.value.issues}
    assert set(problems) == {f"real.{key}" for key in wrong}
    assert "did you mean 'model'?" in problems["real.modell"]
    assert "'float32'" in problems["real.dtype"]


def test_a_resolved_run_tells_its_section_again(on_gpus) -> None:
    on_gpus(0)
    options = RealOptions.read(run(model="m", zero_stage=2, micro_batch_tokens=4))
    told = options.model_dump(mode="json", exclude_none=True)
    identity = {key: told.pop(key) for key in IDENTITY}
    again = run(**identity).model_copy(update={"sources": {**told, "set": "s", "max_model_tokens": 32}})
    assert RealOptions.of(again) == options
