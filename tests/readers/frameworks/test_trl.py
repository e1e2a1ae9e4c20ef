"""TRL: names old and new, and how many rollouts an optimiser step generates."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from isolaw.readers.containers.json_document import TRAINER_STATE as STATE
from isolaw.readers.containers.stdout_dicts import CONTAINER as STDOUT
from isolaw.readers.frameworks.trl import FRAMEWORK
from isolaw.readers.frameworks.trl import _metric as metric
from isolaw.readers.how_to_read import HowToRead, settings_of
from isolaw.readers.raw_log import RawLog
from isolaw.readers.resolve import Resolved, resolve
from isolaw.readers.stitch import RunCurves, stitch

ROOT = Path(__file__).parents[3]
SAMPLES = ROOT.parent / "shared" / "data" / "logs" / "trl"
needs_samples = pytest.mark.skipif(not SAMPLES.is_dir(), reason="the shared sample logs are not here")

# log_history, newest names: every 5 steps, evaluated before training and every 10.
NEW = [
    {"eval_loss": 0.0, "eval_reward": 0.125, "eval_rewards/correct/mean": 0.125, "epoch": 0, "step": 0},
    *(
        {
            "loss": 0.001, "grad_norm": 0.5, "learning_rate": 1e-06, "num_tokens": 1000.0 * step,
            "completions/mean_length": 200.5 + step,
            "completions/max_length": 512.0,
            "completions/clipped_ratio": 0.125, "completions/min_length": 1.0,
            "rewards/correct/mean": step / 40, "reward": step / 40, "reward_std": 0.25,
            "rewards/correct/std": 0.3,
            "frac_reward_zero_std": 0.25, "sampling/sampling_logp_difference/mean": 0.01, "kl": 0.002,
            "sampling/sampling_logp_difference/max": 0.2, "step_time": 31.5, "entropy": 0.4,
            "clip_ratio/low_mean": 0.0, "clip_ratio/low_min": 0.0, "clip_ratio/region_mean": 0.0,
            "epoch": step / 100, "step": step,
        }
        for step in (5, 10, 15, 20)
    ),
    {"eval_loss": 0.0, "eval_reward": 0.3, "eval_rewards/correct/mean": 0.3, "eval_runtime": 5.0,
     "eval_completions/mean_length": 190.0, "eval_samples_per_second": 3.0, "epoch": 0.1, "step": 10},
    {"eval_loss": 0.0, "eval_reward": 0.4, "eval_rewards/correct/mean": 0.4, "epoch": 0.2, "step": 20},
    {"train_runtime": 60.5, "train_loss": 0.001, "total_flos": 0.0, "epoch": 0.2, "step": 20},
]  # fmt: skip
NEW.sort(key=lambda record: record["step"])
STEPS = (5, 10, 15, 20)
TABLE = {
    ("train", "reward"): {step: step / 40 for step in STEPS},
    ("train", "step_seconds"): dict.fromkeys(STEPS, 31.5),
    ("train", "rewards/correct"): {step: step / 40 for step in STEPS},
    ("train", "response_length"): {step: 200.5 + step for step in STEPS},
    ("train", "truncated_fraction"): dict.fromkeys(STEPS, 0.125),
    ("train", "tokens"): {step: 1000.0 * step for step in STEPS},
    ("train", "entropy"): dict.fromkeys(STEPS, 0.4),
    ("train", "kl"): dict.fromkeys(STEPS, 0.002),
    ("train", "grad_norm"): dict.fromkeys(STEPS, 0.5),
    ("train", "reward_std"): dict.fromkeys(STEPS, 0.25),
    ("train", "frac_reward_zero_std"): dict.fromkeys(STEPS, 0.25),
    ("train", "loss"): dict.fromkeys(STEPS, 0.001),
    ("train", "clip_ratio/low_mean"): dict.fromkeys(STEPS, 0.0),
    ("train", "clip_ratio/region_mean"): dict.fromkeys(STEPS, 0.0),
    ("train", "sampling/sampling_logp_difference"): None,
    ("validation", "reward"): {0: 0.125, 10: 0.3, 20: 0.4},
    ("validation", "rewards/correct"): {0: 0.125, 10: 0.3, 20: 0.4},
    ("validation", "response_length"): {10: 190.0},
    ("validation", "loss"): {0: 0.0, 10: 0.0, 20: 0.0},
}
TABLE[("train", "sampling/sampling_logp_difference/mean")] = dict.fromkeys(STEPS, 0.01)
del TABLE[("train", "sampling/sampling_logp_difference")]


def trainer_state(folder: Path, history: list[dict[str, Any]]) -> RawLog:
    path = folder / "trainer_state.json"
    path.write_text(
        json.dumps({"global_step": 20, "log_history": history, "logging_steps": 5, "train_batch_size": 6})
    )
    (log,) = STATE.read(path)
    return log


def stdout(folder: Path, history: list[dict[str, Any]]) -> RawLog:
    """As transformers 5 prints it, without a progress bar."""
    shown = [
        {k: f"{v:.8g}" if isinstance(v, float) else v for k, v in r.items() if k != "step"} for r in history
    ]
    (folder / "train.log").write_text("\n".join(map(str, shown)) + "\n")
    (log,) = STDOUT.read(folder / "train.log")
    return log


def table(curves: RunCurves) -> dict[tuple[str, str], dict[int, float]]:
    return {
        target: dict(zip(curve.step.tolist(), curve.value.tolist(), strict=True))
        for target, curve in curves.of.items()
    }


def test_known_table(tmp_path: Path) -> None:
    assert table(stitch([trainer_state(tmp_path, NEW)], FRAMEWORK)) == TABLE


def test_stdout_is_the_same_table(tmp_path: Path) -> None:
    log = stdout(tmp_path, NEW)
    curves = stitch([log], FRAMEWORK, logging_steps=5)
    assert table(curves) == TABLE
    assert any("by epoch, one every 5 steps" in note for note in curves.notes)


@pytest.mark.parametrize(
    ("key", "target"),
    [
        ("completion_length", ("train", "response_length")),
        ("completions/mean_length", ("train", "response_length")),
        ("eval_completion_length", ("validation", "response_length")),
        ("rewards/format", ("train", "rewards/format")),
        ("rewards/format/mean", ("train", "rewards/format")),
        ("eval_rewards/format/mean", ("validation", "rewards/format")),
        ("train/rewards/format/mean", ("train", "rewards/format")),
        ("eval/rewards/format/mean", ("validation", "rewards/format")),
        ("eval/reward", ("validation", "reward")),
        ("train/reward", ("train", "reward")),
        ("clip_ratio", ("train", "clip_ratio")),
        *((key, None) for key in (
            "epoch", "train/epoch", "train/global_step", "step", "learning_rate", "train/learning_rate",
            "train_loss", "train/train_loss", "eval_runtime", "eval/steps_per_second", "total_flos",
            "rewards/format/std", "completions/max_length", "clip_ratio/high_max", "", "eval_", "train/",
        )),
    ],
)  # fmt: skip
def test_names(key: str, target: tuple[str, str] | None) -> None:
    assert metric(key) == target


@pytest.mark.parametrize(
    "keys",
    [
        ["loss", "reward", "reward_std", "completion_length", "kl", "epoch"],
        ["reward", "rewards/format"],
        ["train/reward", "train/frac_reward_zero_std"],
        ["train/reward", "eval/rewards/format/mean"],
    ],
)
def test_recognised(keys: list[str]) -> None:
    assert FRAMEWORK.recognises(keys, {})


@pytest.mark.parametrize(
    "keys", [[], ["loss", "reward"], ["rewards/chosen", "rewards/margins", "loss"], ["scores"]]
)
def test_not_recognised(keys: list[str]) -> None:
    assert not FRAMEWORK.recognises(keys, {"train_batch_size": 6})


# Rollouts for an optimiser step

FULL = {
    "per_device_train_batch_size": 6, "gradient_accumulation_steps": 16, "num_generations": 8,
    "num_iterations": 1, "steps_per_generation": 16, "generation_batch_size": 384, "learning_rate": 1e-06,
    "beta": 0.04, "seed": 42, "logging_steps": 5, "temperature": 0.9, "loss_type": "dapo",
    "model_config._name_or_path": "Qwen/Qwen3-0.6B",
}  # fmt: skip


def resolved(config: Mapping[str, Any], *settings: str) -> Resolved:
    log = RawLog("trainer_state.json", "trainer-state", "run", dict(config), "config.yaml")
    return resolve([log], FRAMEWORK, settings_of([HowToRead.of(set=settings)], "run", [log.source]))


def split(config: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    out = resolved(config).facts
    names = ("problems_per_batch", "rollouts_per_problem", "rollouts_per_step")
    return tuple(out[name].value if name in out else None for name in names)  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, (48, 8, 384)),  # 4 devices of 6, 16 times
        # Half as much generated at a time: twice for each step.
        ({"steps_per_generation": 8, "generation_batch_size": 192}, (48, 8, 384)),
        # Twice as much: shared by two steps, the second of which is off-policy.
        ({"steps_per_generation": 32, "generation_batch_size": 768}, (48, 8, 384)),
        ({"num_iterations": 2}, (24, 8, 192)),
        ({"generation_batch_size": "384"}, (48, 8, 384)),  # MLflow keeps texts
    ],
)
def test_resolved_arguments(change: dict[str, Any], expected: tuple[int, int, int]) -> None:
    """As 0.18 and later resolve them: no number of devices is needed."""
    out = resolved(FULL | change)
    assert not out.problems
    assert split(FULL | change) == expected


def test_origins_say_the_arithmetic() -> None:
    assert FRAMEWORK.facts(FULL, "config.yaml")["rollouts_per_step"].origin == (
        "generation_batch_size 384 · gradient_accumulation_steps 16 / "
        "(steps_per_generation 16 · num_iterations 1) in config.yaml"
    )


OF_0_16 = {
    key: value for key, value in FULL.items() if key not in ("steps_per_generation", "generation_batch_size")
}


def test_devices_of_0_16_and_0_17() -> None:
    assert split(OF_0_16) == (None, 8, None)
    assert split(OF_0_16 | {"world_size": 4}) == (48, 8, 384)
    assert split(OF_0_16 | {"num_processes": 4, "num_iterations": 3}) == (16, 8, 128)


def test_prompts_or_completions() -> None:
    """Nothing in an old configuration tells, so nothing is assumed."""
    old = {
        "per_device_train_batch_size": 6,
        "gradient_accumulation_steps": 16,
        "num_generations": 8,
        "world_size": 4,
    }
    assert split(old) == (None, 8, None)
    out = resolved(old)
    assert out.needs == ["B_p"]
    hint = FRAMEWORK.facts(old, "c.yaml")["problems_per_batch"]
    assert hint.value is None
    assert (
        "per_device_train_batch_size in c.yaml (6) · devices · gradient_accumulation_steps (16) / n"
        in hint.origin
    )
    assert "older than 0.15" in hint.origin
    assert split({**old, "log_completions": False}) == (48, 8, 384)  # 0.15 has it, 0.14 has not


def test_rollouts_that_are_no_whole_number() -> None:
    out = resolved(FULL | {"num_iterations": 7})
    assert "rollouts_per_step" not in out.facts
    assert any("rollouts_per_step" in note for note in out.notes)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, True),
        ({"num_iterations": 2}, False),
        ({"steps_per_generation": 32}, False),
        ({"steps_per_generation": 8}, True),
        ({"steps_per_generation": 12}, False),
    ],
)
def test_on_policy(change: dict[str, Any], expected: bool) -> None:
    assert FRAMEWORK.facts(FULL | change, "")["on_policy"].value is expected


def test_on_policy_unless_set() -> None:
    plain = {"num_generations": 8, "per_device_train_batch_size": 6}
    assert FRAMEWORK.facts(plain, "")["on_policy"].value is True
    assert "on_policy" not in FRAMEWORK.facts(plain | {"generation_batch_size": 96}, "")  # in how many steps?
    assert "on_policy" not in FRAMEWORK.facts({"train_batch_size": 6}, "")


def test_rollouts_that_ms_swift_samples_again_are_noted() -> None:
    origin = FRAMEWORK.facts(FULL | {"dynamic_sample": True}, "args.json")["rollouts_per_step"].origin
    assert origin.endswith("(with dynamic sampling, C does not count discarded rollouts)")
    assert (
        "discarded" not in FRAMEWORK.facts(FULL | {"dynamic_sample": False}, "")["rollouts_per_step"].origin
    )


def test_other_facts() -> None:
    found = FRAMEWORK.facts(FULL | {"dataset_name": "openai/gsm8k"}, "args/text_summary")
    values = {name: fact.value for name, fact in found.items()}
    assert values == {
        "rollouts_per_problem": 8, "rollouts_per_step": 384, "on_policy": True, "seed": 42, "lr": 1e-06,
        "kl": 0.04, "temperature": 0.9, "loss_type": "dapo", "model": "Qwen/Qwen3-0.6B", "logging_steps": 5,
        "problem_set": "openai/gsm8k",
    }  # fmt: skip
    assert found["seed"].origin == "seed in args/text_summary"
    assert FRAMEWORK.facts({}, "") == {}


# Real logs


@needs_samples
@pytest.mark.parametrize("name", ["a2_vi_42", "a3_enlang_42", "reproduce_openrs_rs2_42"])
def test_old_names(name: str) -> None:
    """R1-distill, 6 per device times 16, n = 6, on one device: 16 problems a step."""
    (log,) = STATE.read(SAMPLES / "nhockid235" / name / "trainer_state.json")
    assert FRAMEWORK.recognises(log.series, log.config)
    out = resolve([log], FRAMEWORK, {})
    (problem,) = out.problems
    assert out.needs == ["n", "B_p"]
    assert "B_p = train_batch_size in trainer_state.json (6) · devices" in problem
    out = resolve([log], FRAMEWORK, settings_of([HowToRead.of(set=["n=6", "B_p=16"])], log.run, [log.source]))
    assert not out.problems
    assert out.facts["rollouts_per_step"].value == 96
    curves = stitch([log], FRAMEWORK)
    assert curves.steps == (5, 50)
    raw = json.loads((SAMPLES / "nhockid235" / name / "trainer_state.json").read_text())["log_history"]
    assert table(curves)["train", "reward"] == {record["step"]: record["reward"] for record in raw}
    assert {metric for _, metric in curves.of} >= {"response_length", "rewards/r1_correctness", "kl"}


@needs_samples
def test_old_names_counting_prompts() -> None:
    (log,) = STATE.read(SAMPLES / "IMJONEZZ-UnslothGRPO" / "trainer_state.json")
    assert FRAMEWORK.recognises(log.series, log.config)
    assert "older than 0.15" in FRAMEWORK.facts(log.config, log.config_source)["problems_per_batch"].origin
    out = resolve([log], FRAMEWORK, settings_of([HowToRead.of(set=["n=6", "B_p=1"])], log.run, [log.source]))
    assert not out.problems
    assert out.facts["rollouts_per_step"].value == 6
    assert stitch([log], FRAMEWORK).steps == (1, 250)


@needs_samples
def test_old_console() -> None:
    (log,) = STDOUT.read(SAMPLES / "nhockid235" / "training.log")
    assert FRAMEWORK.recognises(log.series, log.config)
    assert stitch([log], FRAMEWORK).steps == (5, 50)
