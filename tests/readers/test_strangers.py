"""Logs of people's own trainers and of issue threads: what each of them means, or the question it raises."""

from __future__ import annotations

import json
import pprint
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import isolaw
from isolaw.errors import DataError
from isolaw.readers.found_logs import FoundLog, LogStatus
from isolaw.readers.how_to_read import HowToRead
from isolaw.readers.survey import survey

CASES = Path(__file__).parents[2] / "../shared/data/cases/logs"
SET = {"n": 4, "B_p": 8}


def found(path: Path, metric: str | None = None, **values: Any) -> list[FoundLog]:
    return survey([path], HowToRead.of(set=values, metric=metric)).candidates


def write(folder: Path, name: str, text: str) -> Path:
    (folder / name).write_text(text)
    return folder / name


def lines(form: str, steps: int = 6) -> str:
    return "".join(form.format(s=s, r=f"0.{s}") + "\n" for s in range(1, steps + 1))


# Which set a metric belongs to


@pytest.mark.parametrize(
    "name",
    ["running_r", "r", "R", "mean_r", "pass_rate", "return", "mean_return", "avg_return", "ep_rew", "solved"],
)
@pytest.mark.parametrize("beside", ["loss", "kl", "lr", "grad_norm"])
def test_what_is_printed_with_a_loss_is_of_training(tmp_path: Path, name: str, beside: str) -> None:
    path = write(tmp_path, "a.log", lines(f"[step {{s}}/9] {beside}=0.5 {name}={{r}}"))
    runs = isolaw.read(path, metric=name, set=SET)
    assert set(runs.points["eval_set"]) == {"train"}
    assert any(note.startswith(f"{name} is next to {beside}, so isolaw assumes") for note in runs.notes)


def test_an_accuracy_on_lines_of_its_own_is_of_an_evaluation(tmp_path: Path) -> None:
    rows = [{"step": s, "loss": 0.5} for s in range(1, 9)] + [{"step": s, "acc": s / 10} for s in (4, 8)]
    text = "".join(json.dumps(row) + "\n" for row in sorted(rows, key=lambda row: row["step"]))
    runs = isolaw.read(write(tmp_path, "a.jsonl", text), set=SET)
    assert set(runs.points["eval_set"]) == {"validation"}
    assert "isolaw uses acc, the only accuracy" in runs.notes


@pytest.mark.parametrize("name", ["train/accuracy", "correct_rate", "success_rate", "pct_correct"])
def test_an_accuracy_is_no_supervised_training(tmp_path: Path, name: str) -> None:
    text = "".join(json.dumps({"step": s, "loss": 0.5, "lr": 1e-6, name: s / 10}) + "\n" for s in range(1, 9))
    (own,) = found(write(tmp_path, "a.jsonl", text), **SET)
    assert (own.status, list(own.metrics["train"])) == (LogStatus.READY, [name])


# Settings


def test_a_group_that_feeds_several_updates(tmp_path: Path) -> None:
    history = [
        {"step": s, "reward": s / 10, "reward_std": 0.1, "completions/mean_length": 9.0} for s in range(1, 9)
    ]
    state = {"global_step": 8, "train_batch_size": 1, "log_history": history}
    args = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 2, "num_generations": 8,
            "generation_batch_size": 8, "steps_per_generation": 8, "num_iterations": 1,
            "world_size": 1}  # fmt: skip
    path = write(tmp_path, "trainer_state.json", json.dumps(state))
    for values in ({"n": 8, "rollouts_per_step": 2}, {"n": 8, "B_p": 1, "updates_per_batch": 4}):
        (own,) = found(path, **values)
        assert (own.status, own.facts["problems_per_batch"].value, own.compute) == (
            LogStatus.READY,
            1,
            (2, 16),
        )
    write(tmp_path, "args.json", json.dumps(args))
    (own,) = found(path)
    assert (own.facts["problems_per_batch"].value, own.facts["updates_per_batch"].value) == (1, 4)
    assert own.compute == (2, 16)


CONFIG = {
    "actor_rollout_ref": {"rollout": {"n": 16}, "actor": {"ppo_mini_batch_size": 8, "ppo_epochs": 1}},
    "algorithm": {"adv_estimator": "grpo", "use_kl_in_reward": False},
    "data": {"seed": 3, "train_batch_size": 8, "train_files": "/d/train.parquet"},
    "trainer": {"experiment_name": "a", "nnodes": 1, "total_epochs": 1},
}
NEMO = {
    "grpo": {"num_prompts_per_step": 8, "num_generations_per_prompt": 16, "seed": 3, "max_num_steps": 9},
    "policy": {"model_name": "m-4b", "train_global_batch_size": 128, "generation": {"temperature": 1.0}},
    "loss_fn": {"reference_policy_kl_penalty": 0.01},
}
BAR = "Filtering prompts (num_proc=8):  {i}%|##   | {i}0/1000 [00:00<00:05, 167.00 examples/s]"


@pytest.mark.parametrize("between", ["bar", "glued", "glued by another worker", "glued with numbers", "many"])
def test_a_printed_configuration_with_other_output_inside(tmp_path: Path, between: str) -> None:
    text = pprint.pformat(CONFIG, width=60).splitlines()
    for at in (3, 8):
        if between in ("bar", "many"):
            text[at:at] = [BAR.format(i=i) for i in range(25 if between == "bar" else 400)]
    if between.startswith("glued"):
        at = next(i for i, line in enumerate(text) if "'seed': 3" in line)
        text[at] += {"glued": BAR.format(i=1), "glued with numbers": "Loading 3 files, 1 of 3"}.get(
            between, " (WorkerDict pid=7) hello {'a': 1}"
        )
    printed = "".join(f"(TaskRunner pid=1) {line}\n" for line in text)
    steps = lines("(TaskRunner pid=1) step:{s} - critic/score/mean:{r} - actor/grad_norm:0.1")
    (own,) = found(write(tmp_path, "a.log", printed + steps))
    shape = [own.facts[name].value for name in ("rollouts_per_problem", "problems_per_batch", "seed")]
    assert shape == [16, 8, 3]


ARGUMENTS = "GRPOConfig(\nnum_generations=16,\nper_device_train_batch_size=16,\nworld_size=1,\nseed=3,\n"
ARGUMENTS += "gradient_accumulation_steps=8,\nnum_iterations=1,\nlogging_steps=1,\n)"
MEGATRON = f"{'-' * 20} arguments {'-' * 20}\n" + "".join(
    f"  {name} {'.' * 20} {value}\n"
    for name, value in {"hf_checkpoint": "m", "n_samples_per_prompt": 16, "rollout_batch_size": 8,
                        "rollout_seed": 3}.items()
) + f"{'-' * 15} end of arguments {'-' * 15}"  # fmt: skip
DICTS = "{{'loss': '0.1', 'reward': '{r}', 'reward_std': '0.1', 'completions/mean_length': '9.5', "
DICTS += "'epoch': '{r}'}}"


def as_notebook(text: str) -> str:
    output = {"output_type": "stream", "name": "stdout", "text": text}
    return json.dumps({"nbformat": 4, "cells": [{"cell_type": "code", "source": "", "outputs": [output]}]})


@pytest.mark.parametrize("many", [3, 60])
@pytest.mark.parametrize(
    ("name", "printed", "steps", "most"),
    [
        ("a.log", pprint.pformat(NEMO, width=60),
         "========== Step {s}/9 ==========\n  • Avg Reward: {r}\n", 60),
        ("a.ipynb", pprint.pformat(CONFIG, width=60), "step:{s} - critic/score/mean:{r} - a/b:1", 60),
        ("b.log", json.dumps(CONFIG, indent=1), "step:{s} - critic/score/mean:{r} - a/b:1", 60),
        ("c.log", ARGUMENTS, DICTS, 3),
        ("d.log", MEGATRON, "rollout {s}: {{'rollout/raw_reward': {r}, 'rollout/response_lengths': 9.5}}", 3),
    ],
)  # fmt: skip
def test_what_other_containers_print_with_other_output_inside(
    tmp_path: Path, name: str, printed: str, steps: str, most: int, many: int
) -> None:
    """Values that were printed are read, or asked for: never lost in silence, nor others."""
    first, *rest = printed.splitlines()
    text = "\n".join([first, *(BAR.format(i=i) for i in range(many)), *rest]) + "\n" + lines(steps)
    (own,) = found(write(tmp_path, name, as_notebook(text) if name.endswith("ipynb") else text))
    if many > most:
        assert {"n", "B_p"} <= {*own.needs}
    else:
        shape = [own.facts[name].value for name in ("rollouts_per_problem", "problems_per_batch", "seed")]
        assert shape == [16, 8, 3]


@pytest.mark.parametrize("container", ["jsonl", "json", "dictionaries"])
@pytest.mark.parametrize(
    "header",
    [
        {"event": "config", "batch_size": 128, "num_generations": 8, "seed": 42},
        {"type": "start", "config": {"num_generations": 8, "seed": 42}},
        {"hparams": {"num_generations": 8, "lr": 1e-6, "seed": 42}},
        {"args": {"num_generations": 8, "seed": 42}, "time": 1.0},
        {"num_generations": 8, "seed": 42, "model": "m-4b"},
    ],
)
def test_settings_in_the_first_record(tmp_path: Path, header: dict[str, Any], container: str) -> None:
    rows = [header, *({"step": s, "loss": 0.1, "solve_rate": s / 9} for s in range(1, 7)), {"event": "done"}]
    text = {
        "jsonl": "".join(json.dumps(row) + "\n" for row in rows),
        "json": json.dumps(rows, indent=1),
        "dictionaries": "".join(f"{row}\n" for row in rows),
    }[container]
    column = next((f"{key}." for key, value in header.items() if isinstance(value, dict)), "")
    path = write(tmp_path, "a.json" if container == "json" else "a.jsonl", text)
    how = HowToRead.of(set={"B_p": 16}, columns={"n": f"{column}num_generations", "seed": f"{column}seed"})
    (own,) = survey([path], how).candidates
    if container == "dictionaries" and column:  # a printed dictionary is read without what it nests
        assert f"no column '{column}num_generations'" in own.message
        return
    assert (own.status, own.n, own.facts["seed"].value, own.steps) == (LogStatus.READY, 8, 42, (1, 6))
    assert list(own.metrics) == ["train"]


# Forms


@pytest.mark.parametrize(
    "form",
    [
        "[step {s}] rewards=[{r}, 0.0, 0.0, {r}] loss=0.1",
        "[step {s}/9] loss=0.1 rewards: ['{r}', '0.0', '0.0', '{r}']",
        '{{"step": {s}, "loss": 0.1, "rewards": [{r}, 0.0, 0.0, {r}]}}',
    ],
)
def test_a_list_of_rewards_is_its_mean_and_n(tmp_path: Path, form: str) -> None:
    path = write(tmp_path, "a.log", lines(form))
    (own,) = found(path, "rewards", B_p=2)
    assert (own.n, own.steps, list(own.metrics)) == (4, (1, 6), ["train"])
    (own,) = found(path, "rewards", n=2)
    assert own.facts["problems_per_batch"].value == 2
    with pytest.raises(DataError, match=r"have 4 values, which is neither n = 3 nor a multiple"):
        isolaw.read(path, metric="rewards", set={"n": 3})


@pytest.mark.parametrize("as_columns", [False, True])
@pytest.mark.parametrize("keys", [("n=4", "n=8"), ("train", "eval"), ("x", "y")])
def test_lists_below_several_keys_are_refused(
    tmp_path: Path, keys: tuple[str, str], as_columns: bool
) -> None:
    def curve(n: int) -> Any:
        rows = [{"step": s, "acc": s * n / 100} for s in range(1, 7)]
        return {key: [row[key] for row in rows] for key in rows[0]} if as_columns else rows

    text = json.dumps({"base": {key: curve(4 + i) for i, key in enumerate(keys)}}, indent=1)
    (own,) = found(write(tmp_path, "a.json", text), **SET)
    assert own.status is LogStatus.UNKNOWN_FORMAT
    assert "found 2 lists of objects with the same keys; expected one" in own.message


def test_nanochat_and_torchforge(tmp_path: Path) -> None:
    text = "Total sequences per step: 64\n"
    for s in range(6):
        text += f"Step {s} | Pass@1: 0.{s}000, Pass@2: 0.{s}500\n" if s % 2 == 0 else ""
        text += "".join(
            f"Step {s}/9 | Example step {k} | Pass 0 | loss: 0.1 | Average reward: 9.0\n" for k in (0, 1)
        )
        text += f"Step {s}/9 | Average reward: 0.{s}000 | Average sequence length: 207.56\n"
    (own,) = found(write(tmp_path, "a.log", text), n=16)
    assert (own.framework, own.facts["problems_per_batch"].value, own.steps) == ("nanochat", 4, (0, 6))
    assert own.metrics["validation"] == {"pass@1": 3, "best@2": 3}
    blocks = lines(
        "=== [GlobalReduce] - METRICS STEP {s} ===\n  buffer/x/count: 3\n"
        "  reward/evaluate_response/avg_total_reward: {r}\n==="
    )
    (own,) = found(write(tmp_path, "b.log", blocks), **SET)
    assert (own.framework, own.steps, own.metrics["train"]["reward"]) == ("torchforge", (1, 6), 6)


# Rebuilt inputs of people whose logs were misread


@pytest.mark.slow
@pytest.mark.skipif(not CASES.is_dir(), reason="needs the rebuilt logs")
@pytest.mark.parametrize(
    ("path", "metric", "values", "expected"),
    [
        ("blank-cells-of-sparse-validation/run_a.csv", "val/success_rate", SET, (8, 4, (0, 8))),
        ("called-supervised/solve_rate.log", None, SET, (8, 4, (1, 5))),
        ("called-supervised/train-acc.jsonl", None, SET, (8, 4, (1, 8))),
        ("called-supervised/train-solve_rate.jsonl", None, SET, (8, 4, (1, 8))),
        ("group-size-elsewhere-searchr1/train.log", None, {}, (8, 5, (1, 4))),
        ("group-size-elsewhere-verlagent/train.log", None, {}, (16, 8, (1, 4))),
        ("jsonl-config-record/event.jsonl", None, SET, "num_samples_per_prompt says 8"),
        ("jsonl-config-record/type.jsonl", None, SET, "num_samples_per_prompt says 8"),
        ("n-called-compute/final.csv", None, {"B_p": 32, "n": 8}, "Export the runs' histories"),
        ("nanochat-console/rl.log", None, {"n": 16}, (16, 16, (0, 13))),
        ("own-console/a.log", None, SET, (8, 4, (1, 5))),
        ("own-console/b.log", "correct", {"n": 4, "B_p": 1}, (1, 4, (1, 5))),
        ("own-console-list-and-examples/list.log", "rewards", {"B_p": 1}, (1, 4, (1, 6))),
        ("own-suggestion-refused", "acc", {"n": 8, "B_p": 16}, "3 runs of one configuration"),
        ("prime-rl-coloured-console/new", None, {"n": 16, "B_p": 8}, (8, 16, (1, 4))),
        ("prime-rl-coloured-console/old", None, {"n": 16, "B_p": 8}, (8, 16, (1, 4))),
        ("ready-but-fit-refuses", None, {}, (8, 2, (1, 12))),
        ("per-step-rollout-count/metrics.jsonl", "accuracy", {"n": 5, "B_p": 8}, "rollout_count counts 20"),
        ("per-step-rollout-count/metrics.jsonl", "accuracy", {"n": 5}, (4, 5, (1, 12))),
        ("product-in-log-ignored/metrics.jsonl", None, {"n": 4}, (100, 4, (1, 4))),
        ("product-in-log-ignored/metrics.jsonl", None, {"n": 16, "B_p": 512}, "400"),
        ("repeated-steps-jsonl/training_history.jsonl", "mean_reward", SET, "3 runs of one configuration"),
        ("train-as-validation/own_mean_reward.log", "mean_reward", SET, (8, 4, (1, 5))),
        ("train-as-validation/own_r.log", "r", SET, (8, 4, (1, 5))),
        ("train-as-validation/own_running_r.log", "running_r", SET, (8, 4, (1, 5))),
        ("train-as-validation/tab_running_r.jsonl", "running_r", SET, (8, 4, (1, 5))),
        ("train-score-called-validation/curve.csv", "critic/score/mean", {"n": 8, "B_p": 1}, (1, 8, (1, 4))),
        ("trl-generation-batch-over-several-updates/genbatch", None, {}, (1, 8, (1, 6))),
        ("trl-generation-batch-over-several-updates/spg", None, {}, (1, 8, (1, 6))),
        ("two-trainings-one-console/train.log", None, {"n": 4, "logging_steps": 1}, "total_train_batch_size"),
        ("unread-frameworks/areal.log", None, {"n": 8}, (128, 8, (1, 3))),
        ("unread-frameworks/mlx_lm.log", None, SET, (8, 4, (1, 3))),
        ("unread-frameworks/nemo_rl.log", None, {"n": 16}, (32, 16, (1, 3))),
        ("verl-config-interleaved/bar_25.log", None, {}, (8, 16, (1, 8))),
    ],
)  # fmt: skip
def test_the_rebuilt_logs(path: str, metric: str | None, values: dict[str, int], expected: Any) -> None:
    own = found(CASES / path, metric, **values)[0]
    if isinstance(expected, str):
        assert own.status is not LogStatus.READY
        assert expected in own.message
    else:
        assert (own.status, own.facts["problems_per_batch"].value, own.n, own.steps) == (
            LogStatus.READY,
            *expected,
        )


def test_a_number_of_values_is_no_reward_and_may_be_the_batch(tmp_path: Path) -> None:
    """Public logs: ``n_reward_points`` was proposed as the reward, and 176 samples a step as n alone."""
    rows = [
        {"step": s, "n_reward_points": 12, "train_reward": s / 9, "other_score": s, "n_samples": 176}
        for s in range(6)
    ]
    (asked,) = found(write(tmp_path, "a.json", json.dumps(rows)))
    assert asked.offered["metric"] == ("metric", "other_score")
    assert "nearest: 'n_samples'; if it counts rollouts: " in asked.message
    accuracies = [{"step": s, "accuracy": s / 9, "n_samples": 176} for s in range(6)]
    (read,) = found(write(tmp_path, "b.json", json.dumps(accuracies)), n=4, B_p=44)
    assert read.metrics == {"validation": {"accuracy": 6}}
    reading = survey([tmp_path / "b.json"], HowToRead.of(set={"n": 4, "B_p": 44}))
    assert any("accuracy has no prefix, so isolaw assumes" in note for note in reading.table_notes)


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("a.log", "step:{s} - response_length/mean:9.5 - actor/ppo_kl:{r}"),
        ("b.log", "========== Step {s}/9 ==========\n  • Loss: {r}\n  • Mean Generation Length: 9.5\n"),
        ("c.log", "rollout {s}: {{'rollout/response_lengths': 9.5, 'train/grad_norm': {r}}}"),
        ("metrics.jsonl", '{{"step": {s}, "optim/grad_norm": {r}, "mismatch_kl/mean": 0.1}}'),
        ("w.csv", "{s},{s}.5,0.{s},9.5"),
    ],
)
def test_a_log_of_any_container_without_a_reward_is_not_ready(tmp_path: Path, name: str, form: str) -> None:
    head = "_step,_runtime,actor/ppo_kl,response_length/mean\n" if name == "w.csv" else ""
    (own,) = found(write(tmp_path, name, head + lines(form)), **SET)
    assert (own.status, own.framework != "") == (LogStatus.UNKNOWN_FORMAT, True)
    assert "it logs no reward and no accuracy, only " in own.message


@pytest.mark.parametrize("kind", ["csv", "jsonl", "json", "parquet"])
def test_a_folder_names_the_columns_that_its_table_has(tmp_path: Path, kind: str) -> None:
    rows = [{"idx": s, "val_acc": s / 9} for s in range(6)]
    frame = pd.DataFrame(rows)
    if kind == "parquet":
        frame.to_parquet(tmp_path / "t.parquet")
    else:
        texts = {"csv": frame.to_csv(index=False), "json": json.dumps(rows)}
        texts["jsonl"] = "".join(json.dumps(row) + "\n" for row in rows)
        write(tmp_path, f"t.{kind}", texts[kind])
    (own,) = found(tmp_path, "val_acc", **SET)
    assert own.status is LogStatus.NEEDS
    assert "step or compute: found no column" in own.message
    assert "columns: idx, val_acc" in own.message


@pytest.mark.parametrize("repeats", [2, 4, 8])
def test_parts_of_a_batch_are_no_steps(tmp_path: Path, repeats: int) -> None:
    """A public W&B run logs its reward in each micro-batch, all at ``train/global_step`` 0."""
    names = "_step,_runtime,train/global_step,train/reward,train/completions/mean_length\n"
    rows = [f"{at},{at}.5,0,0.{at + 1},9.5\n" for at in range(repeats)]
    (own,) = found(write(tmp_path, "a.csv", names + "".join(rows)), **SET)
    assert (own.status is LogStatus.READY) == (repeats < 4)
    assert repeats < 4 or "has several values at 1 step, e.g. at step 1: 0.1 and 0.2" in own.message


def test_times_that_trl_logs_at_each_call_are_no_metric(tmp_path: Path) -> None:
    """TRL logs ``profiling/…`` to W&B at each call, several times a step, so that a sound run was refused."""
    called = "profiling/Time taken: GRPOTrainer._prepare_inputs"
    text = f"_step,_runtime,train/global_step,train/reward,train/completions/mean_length,{called}\n"
    for step in range(1, 7):
        text += "".join(f"{3 * step + at},1.5,{step},,,{at}.5\n" for at in (0, 1))
        text += f"{3 * step + 2},2.5,{step},0.{step},9.5,\n"
    (own,) = found(write(tmp_path, "a.csv", text), **SET)
    assert (own.status, own.steps, own.metrics) == (
        LogStatus.READY, (1, 6), {"train": {"reward": 6, "response_length": 6}}
    )  # fmt: skip
