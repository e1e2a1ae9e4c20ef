"""Consoles of AReaL 1.0.4, NeMo-RL 0.6, mlx-lm-lora 3.1 and 1.0, and ROLL 0.3, as their loggers print them.

`areal/utils/printing.py` (tabulate's "fancy_grid", several pairs in a row), `nemo_rl/algorithms/grpo.py`,
`mlx_lm_lora/trainer/grpo_trainer.py`, `roll/utils/tracking.py`.
"""

from __future__ import annotations

import json
from pathlib import Path
from pprint import pformat
from typing import Any

import pytest

import isolaw
from isolaw.errors import DataError
from isolaw.readers.containers.step_console import CONTAINER
from isolaw.readers.found_logs import LogStatus
from isolaw.readers.how_to_read import HowToRead
from isolaw.readers.survey import survey

REWARDS = [0.125, 0.25, 0.375, 0.5]
NOISE = "INFO 10:00 loading weights: 100%|██████| 3/3 [00:01]\n• not a value: 1\n"


def areal(rewards: list[float]) -> str:
    lines = []
    for k, reward in enumerate(rewards, 1):
        lines.append(f"20260102-10:00:0{k}.123 StatsLogger INFO: Epoch 1/1 Step {k}/9 Train step {k}/9 done.")
        lines.append("20260102-10:00:00.123 StatsLogger INFO: Stats (1/1):")
        cells = [("ppo_actor/task_reward/avg", reward), ("ppo_actor/n_seqs", 64.0),
                 ("eval-rollout/reward", reward / 2), ("timeperf/rollout", 12.0)]  # fmt: skip
        rows = [cells[0:4:2], cells[1:4:2]]
        grid = ["│ " + " │ ".join(f"{key:<26} │ {value:10.4e}" for key, value in row) + " │" for row in rows]
        lines += ["╒═══╤═══╕", grid[0], "├───┼───┤", grid[1], "╘═══╧═══╛"]
    return NOISE + "\n".join(lines) + "\n"


def nemo(rewards: list[float], per_epoch: int = 99, first: int = 0) -> str:
    lines, bar = ["🔍 Running initial validation..."], "=" * 25
    if not first:
        lines += ["📊 Validation Results:", "    • Accuracy: 0.0625", "    • Samples processed: 32"]
    for k, reward in enumerate(rewards, first):
        epoch, step = divmod(k, per_epoch)
        lines += [f"{bar} Epoch {epoch + 1}/9 {bar}"] if not step or k == first else []
        lines += [
            f"{bar} Step {step + 1}/{per_epoch} {bar}",
            "▶ Generating responses for batch of size 64...",
        ]
        lines += ["📊 Training Results:", "  • Loss: -0.0012", "  • Generation KL Error: 0.0010"]
        lines += [f"  • Avg Reward: {reward:.4f}", "  • Mean Generation Length: 301.2500", "⏱️  Timing:"]
        lines += ["  • Total step time: 35.70s", "  • generation: 20.00s (56.0%)"]
    return NOISE + "\n".join(lines) + "\n"


def mlx(rewards: list[float]) -> str:
    lines = ["Iter 1: Val loss 0.000, Val took 12.5s"]
    for k, reward in enumerate(rewards, 1):
        if k % 2 == 0:  # before the update
            values = (
                f"total_rewards_mean {reward / 2:.3f}, Val kl 0.000, Val r1_accuracy_reward_func_mean 0.250"
            )
            lines.append(f"Iter {k}: Val loss 0.000, Val {values}, Val took 3.0s")
        lines.append(
            f"Iter {k}: Train loss 0.000, Total rewards mean {reward:.3f}, Total rewards std 0.331, "
            f"Grouped rewards mean {reward:.3f}, Grouped rewards std 0.000, KL 0.001, r1_accuracy mean "
            f"{reward / 2:.4f}, r1_accuracy std 0.100, Learning Rate 1.000e-05, It/sec 0.042, Tokens/sec "
            "9.500, Peak mem 11.500 GB"
        )
    return NOISE + "\n".join(lines) + f"\nIter {len(rewards)}: Saved adapter weights to a.safetensors.\n"


def mlx_lines(rewards: list[float]) -> str:
    lines = []
    for k, reward in enumerate(rewards, 1):
        lines += ["=" * 80, f"Iter {k}:", "-" * 80, "Loss: 0.000", f"Total Rewards:  μ={reward:.3f}, σ=0.331"]
        lines += [f"Group Rewards:  μ={reward:.3f}, σ=0.000", "KL Divergence: 0.001000000000", "-" * 80]
        lines += ["Generation Stats:", "  • Avg tokens: 99.5", "  • Max tokens: 128 (limit: 128)"]
        lines += [
            f"  • r1_accuracy: μ={reward / 2:.4f}, σ=0.100, cov=100.00%",
            "Speed: 0.042 it/s, 9.5 tok/s",
        ]
    return NOISE + "\n".join(lines) + "\n"


def roll(rewards: list[float]) -> str:
    lines = []
    for k, reward in enumerate(rewards):
        values: dict[str, Any] = {
            "critic/score/mean": reward,
            "tokens/response_length/mean": 9.5,
            "time/a": 1,
        }
        if k % 2 == 0:
            values["val_correct/all/mean"] = reward / 2
        text = json.dumps({"step": k, "metrics": values})
        lines.append(
            f"(RLVRPipeline pid=7) [2026-01-02 10:00:00] [tracking.py (161)] [INFO] metrics_tag: {text}"
        )
    return NOISE + "\n".join(lines) + "\n"


def write(folder: Path, text: str) -> Path:
    path = folder / "console.out"
    path.write_text(text)
    return path


@pytest.mark.parametrize("console", [areal, nemo, mlx, mlx_lines, roll])
def test_rewards_by_step(tmp_path: Path, console: Any) -> None:
    path = write(tmp_path, console(REWARDS))
    assert CONTAINER.file(path, path.read_bytes())
    points = isolaw.read(tmp_path, set=["n=4", "B_p=16"]).points
    train = points[(points["metric"] == "reward") & (points["eval_set"] == "train")]
    assert dict(zip(train["compute"], train["value"], strict=True)) == dict(
        zip((64, 128, 192, 256), REWARDS, strict=True)
    )


def test_what_else_they_hold(tmp_path: Path) -> None:
    expected = {
        areal: {("validation", "reward"): {1: 0.0625, 2: 0.125, 3: 0.1875, 4: 0.25}},
        nemo: {("validation", "accuracy"): {0: 0.0625}, ("train", "response_length"): {4: 301.25}},
        mlx: {
            ("train", "r1_accuracy_mean"): {4: 0.25},
            ("train", "kl"): {1: 0.001},
            ("validation", "reward"): {1: 0.125, 3: 0.25},
            ("validation", "r1_accuracy_reward_func_mean"): {3: 0.25},
        },
        mlx_lines: {("train", "r1_accuracy_mean"): {4: 0.25}, ("train", "response_length"): {1: 99.5}},
        roll: {("validation", "accuracy"): {0: 0.0625, 2: 0.1875}},
    }
    for console, curves in expected.items():
        points = isolaw.read(write(tmp_path, console(REWARDS)), set=["n=4", "B_p=16"]).points
        own = points.set_index(["eval_set", "metric", "step"])["value"].sort_index()
        for target, values in curves.items():
            assert {step: own[target][step] for step in values} == values, console
        assert len(own[("train", "reward")]) == 4


def test_steps_that_start_again_with_an_epoch_go_on(tmp_path: Path) -> None:
    text = nemo(REWARDS[:3], per_epoch=2) + nemo(
        REWARDS[2:], per_epoch=2, first=2
    )  # a resumed job repeats step 3
    points = isolaw.read(write(tmp_path, text), set=["n=4"]).points
    train = points[(points["metric"] == "reward")]
    assert train["step"].tolist() == [1, 2, 3, 4]
    assert train["value"].tolist() == REWARDS


@pytest.mark.parametrize("console", [areal, nemo, mlx, mlx_lines, roll])
def test_one_training_after_another_are_two(tmp_path: Path, console: Any) -> None:
    path = write(tmp_path, console(REWARDS) + console([0.75, 0.875]))
    found = survey([path], HowToRead.of(set=["n=4", "B_p=16", "*#2:seed=1"])).candidates
    assert [result.steps and result.steps[1] for result in found] == [4, 2]
    assert [result.run.endswith("#2") for result in found] == [False, True]


def test_a_configuration_printed_again_is_of_a_resumed_run_or_of_another(tmp_path: Path) -> None:
    config = {"grpo": {"num_prompts_per_step": 16, "num_generations_per_prompt": 4, "seed": 7},
              "policy": {"model_name": "m", "train_global_batch_size": 64, "max_total_sequence_length": 512},
              "data": {"dataset_name": "math"}, "cluster": {"num_nodes": 1}}  # fmt: skip
    head = f"Final config:\n{pformat(config)}\n"
    second = "========================= Step 2/"
    begun, rest = head + nemo(REWARDS[:3]), nemo(REWARDS)
    rest = second + rest.partition("Step 2/")[2].replace(str(REWARDS[1]), "0.9000")
    (own,) = survey([write(tmp_path, begun + head + rest)]).candidates
    assert (own.facts["problems_per_batch"].value, own.n, own.steps) == (16, 4, (0, 4))
    text = head + nemo([0.0, *REWARDS[1:3]]) + head + nemo(REWARDS)
    found = survey([write(tmp_path, text)]).candidates
    assert [result.steps for result in found] == [(0, 3), (1, 4)]
    assert all(result.needs == ["seed"] for result in found)
    other = f"Final config:\n{pformat(config | {'grpo': config['grpo'] | {'seed': 8}})}\n"
    found = survey([write(tmp_path, head + nemo(REWARDS) + other + nemo(REWARDS))]).candidates
    assert [result.facts["seed"].value for result in found] == [7, 8]


def test_a_count_of_five_printed_digits_is_no_evidence(tmp_path: Path) -> None:
    text = areal(REWARDS).replace("6.4000e+01", "1.3107e+05")
    (own,) = survey([write(tmp_path, text)], HowToRead.of(set=["n=4", "B_p=32768"])).candidates
    assert own.facts["rollouts_per_step"].value == 131_072


def test_other_consoles_are_none_of_them(tmp_path: Path) -> None:
    for text in ("Iter 1: Train loss 2.5, It/sec 3\n" * 3, "===== Step 1/9 =====\n• a: 1\n", NOISE):
        path = write(tmp_path, text)
        found = CONTAINER.file(path, path.read_bytes())
        assert not found or "Train loss" in text
        if not found:
            with pytest.raises(DataError, match="found no step"):
                list(CONTAINER.read(path))
        elif text:  # mlx-lm's supervised training
            assert survey([path]).candidates[0].status is not LogStatus.READY


SETTINGS: dict[Any, tuple[str, dict[str, Any]]] = {
    areal: ("gconfig.n_samples", {"gconfig": {"n_samples": 4}, "train_dataset": {"batch_size": 16}}),
    nemo: (
        "grpo.num_generations_per_prompt",
        {"grpo": {"num_prompts_per_step": 16, "num_generations_per_prompt": 4, "seed": 7}},
    ),
    mlx: ("group_size", {"group_size": 4, "batch_size": 16, "grpo_loss_type": "grpo"}),
    roll: ("num_return_sequences_in_group", {"num_return_sequences_in_group": 4, "rollout_batch_size": 16}),
}


@pytest.mark.parametrize("console", SETTINGS)
def test_another_n_in_the_middle_is_asked(tmp_path: Path, console: Any) -> None:
    """A job that goes on with other settings: C is the sum over both parts."""
    key, config = SETTINGS[console]
    fill = {f"setting_{i}": {"value": i, "text": "x" * 60} for i in range(9)}
    name = key.rpartition(".")[2]

    def printed(n: int) -> str:
        return f"Config:\n{pformat({**config, **fill})}\n".replace(f"{name}': 4", f"{name}': {n}")

    def uncounted(rewards: list[float]) -> str:
        return str(console(rewards)).replace("batch of size 64", "batch").replace("6.4000e+01", "nan")

    begun = uncounted(REWARDS[:2])
    rest = "".join(line for line in uncounted(REWARDS).splitlines(True) if line not in begun.splitlines(True))
    (own,) = survey([write(tmp_path, printed(4) + begun + printed(4) + rest)]).candidates
    assert (own.status, own.n, own.steps and own.steps[1]) == (LogStatus.READY, 4, 4)
    (own,) = survey([write(tmp_path, printed(4) + begun + printed(8) + rest)]).candidates
    assert (own.status, own.needs) == (LogStatus.NEEDS, ["n"])
    places = [f"{n} ({key} in the printed configuration before step " for n in (4, 8)]
    assert all(place in own.message for place in places), own.message


def test_another_count_in_the_middle_is_asked(tmp_path: Path) -> None:
    one, two, three, four, five = areal(REWARDS).split("6.4000e+01")
    text = "6.4000e+01".join([one, two, three]) + "1.2800e+02" + four + "1.2800e+02" + five
    (own,) = survey([write(tmp_path, text)], HowToRead.of(set=["n=4", "B_p=16"])).candidates
    assert own.status is LogStatus.NEEDS
    assert "64 (" in own.message
    assert "128 (ppo_actor/n_seqs in every record from record 3 on)" in own.message
