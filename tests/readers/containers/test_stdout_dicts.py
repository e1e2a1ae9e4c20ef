"""Consoles in which metrics are Python dictionaries: Trainer, slime, OpenRLHF, SkyRL, with all the dirt."""

from __future__ import annotations

import math
import pprint
import time
import tracemalloc
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import isolaw
from isolaw.errors import DataError, NoHistory
from isolaw.readers.containers import candidates
from isolaw.readers.containers.stdout_dicts import CONTAINER
from isolaw.readers.found_logs import LogStatus
from isolaw.readers.how_to_read import HowToRead
from isolaw.readers.raw_log import RawLog
from isolaw.readers.survey import survey

ROOT = Path(__file__).parents[3]
SAMPLE = ROOT.parent / "shared" / "data" / "logs" / "trl" / "nhockid235"
REWARD = {5: 0.25, 10: 0.375, 15: 0.5, 20: 0.4375}
EVALUATED = {10: 0.3, 20: 0.34}
SUMMARY = "{'train_runtime': 60.5, 'train_samples_per_second': 3.2, 'train_loss': 0.0012, 'epoch': 0.2}"


def old(step: int) -> str:
    """transformers 4."""
    return (
        "{'loss': 0.0, 'grad_norm': 0.0048, 'learning_rate': 5e-07, 'rewards/format': nan, "
        f"'reward': {REWARD[step]}, "
        f"'reward_std': 0.3, 'completion_length': 3323.5, 'kl': 0.00015, 'epoch': {step / 100}}}"
    )


def new(step: int) -> str:
    """transformers 5: numbers as texts."""
    return (
        "{'loss': '-1.2e-05', 'grad_norm': '0.0048', 'num_tokens': '1.2e+04', "
        "'completions/mean_length': '310.2', "
        f"'rewards/format/mean': 'nan', 'reward': '{REWARD[step]}', 'frac_reward_zero_std': '0.25', "
        f"'clip_ratio/region_mean': '0', 'epoch': '{step / 100}'}}"
    )


def evaluation(step: int) -> str:
    values = f"'eval_reward': '{EVALUATED[step]}', 'eval_runtime': '3.1', 'epoch': '{step / 100}'"
    return f"{{'eval_loss': '1e-06', {values}}}"


def bar(step: int, total: int = 100) -> str:
    return f"\r{step * 100 // total:3d}%|▌         | {step}/{total} [{step:02d}:14<1:02:33, 314.48s/it]"


def trainer(form: object = new, bars: bool = True, evaluations: bool = True, after: str = "") -> str:
    """A console as the Trainer writes it: the bar is wiped before a dictionary and drawn again after it."""
    out = [
        "Loading checkpoint shards: 100%|██████| 2/2 [00:01<00:00,  1.9it/s]\n"
        "Map:  50%|█ | 50/100 [00:00<?]\n"
    ]
    shown = bar if bars else lambda *_: ""
    out.append(shown(0))
    for step in range(1, 21):
        out.append(shown(step))
        if step % 5 == 0:
            out.append("\r" + " " * 50 + "\r" if bars else "")
            out.append(f"{form(step)}\n{shown(step)}")  # type: ignore[operator]
        if evaluations and step in EVALUATED:
            out += [shown(1, 8), shown(8, 8), f"\r   \r{evaluation(step)}\n{shown(step)}\n"]
    return "".join(out) + f"\r   \r{SUMMARY}\n" + after


def write(folder: Path, text: str | bytes, name: str = "train.log") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def read(folder: Path, text: str | bytes) -> RawLog:
    path = write(folder, text)
    assert CONTAINER.file(path, path.read_bytes()[:65_536])
    found = next(candidate for candidate in candidates() if candidate.file(path, path.read_bytes()[:65_536]))
    assert found.name == "stdout-dicts"  # and nobody else's
    (log,) = CONTAINER.read(path)
    return log


def curve(log: RawLog, key: str) -> dict[float, float]:
    own = log.series[key]
    return {log.step[r]: v for r, v in zip(own.record, own.value, strict=True)}


# transformers' Trainer


@pytest.mark.parametrize("form", [old, new])
def test_known_table(tmp_path: Path, form: object) -> None:
    log = read(tmp_path, trainer(form))
    assert curve(log, "reward") == REWARD
    assert curve(log, "eval_reward") == EVALUATED
    assert len(log.step) == len(REWARD) + len(EVALUATED)  # the summary is no step
    assert not {key for key in log.series if key.startswith("train_")}
    assert log.dropped == {"values that are not finite": 4}
    assert log.notes == ["isolaw read the steps from the progress bar (of 100)"]
    assert log.run == str(tmp_path / "train.log")


def test_without_a_bar_records_have_no_step(tmp_path: Path) -> None:
    log = read(tmp_path, trainer(bars=False))
    assert all(math.isnan(step) for step in log.step)
    assert list(log.series["reward"].value) == list(REWARD.values())
    assert list(log.series["eval_reward"].record) == [2, 5]  # where they stand among the others


def test_bars_that_were_buffered_apart(tmp_path: Path) -> None:
    """All dictionaries come after all bars: the epochs count the records."""
    text = "".join(bar(step) for step in range(21)) + "\n" + "\n".join(new(step) for step in REWARD)
    assert all(math.isnan(step) for step in read(tmp_path, text).step)
    (run,) = survey([tmp_path], HowToRead.of(set={"n": 8, "B_p": 2})).candidates
    assert run.needs == ["logging_steps"]
    runs = isolaw.read(tmp_path, set={"n": 8, "B_p": 2, "logging_steps": 5})
    rewards = runs.points[runs.points["metric"] == "reward"]
    assert dict(zip(rewards["step"], rewards["value"], strict=True)) == REWARD


def test_a_described_bar_is_none_of_training(tmp_path: Path) -> None:
    text = "".join(f"Map (num_proc=8): {bar(step)[1:]}\n{new(step)}\n" for step in REWARD)
    assert all(math.isnan(step) for step in read(tmp_path, text).step)


def test_evaluated_before_training(tmp_path: Path) -> None:
    first = bar(0) + "\r   \r{'eval_loss': 0.0, 'eval_reward': 0.125, 'epoch': 0}\n"
    assert curve(read(tmp_path, first + trainer()), "eval_reward") == {0: 0.125, **EVALUATED}


def test_resumed_in_the_same_console(tmp_path: Path) -> None:
    text = trainer(evaluations=False) + "".join(
        f"{bar(s)}\n{new(s).replace('0.5', '0.75')}\n" for s in (15, 20)
    )
    log = read(tmp_path, text)
    assert list(log.step) == [5, 10, 15, 20, 15, 20]
    assert list(log.series["reward"].value) == [0.25, 0.375, 0.5, 0.4375, 0.75, 0.4375]


def test_dirt(tmp_path: Path) -> None:
    text = trainer(
        lambda step: f"\x1b[32mNUL\x00 {old(step)}\x1b[0m".replace("0.00015", "np.float64(0.25)").replace(
            "0.3,", "tensor(0.5, device='cuda:0'),"
        )
    )
    chatter = (
        "{'question': 'What is 2 + 2?', 'answer': '4'}\n{'answer': 4}\nA: {'loss': 'yes'}\n```{'a'```\n{'\n"
    )
    log = read(tmp_path, (chatter + text.replace("}\n", "}\n" + chatter)).encode() + b"\xff\xfe\n")
    assert curve(log, "reward") == REWARD
    assert curve(log, "kl") == dict.fromkeys(REWARD, 0.25)
    assert curve(log, "reward_std") == dict.fromkeys(REWARD, 0.5)
    assert "answer" not in log.series


def test_torn_last_line(tmp_path: Path) -> None:
    text = trainer(evaluations=False)
    log = read(tmp_path, text[: text.rindex("'reward'") + 12])
    assert curve(log, "reward") == {5: 0.25, 10: 0.375, 15: 0.5}
    assert log.dropped["torn dictionaries"] == 1


def test_torn_in_the_middle(tmp_path: Path) -> None:
    text = f"{new(5)[:90]}\n{new(10)}\n{new(15)}\n"
    log = read(tmp_path, text)
    assert list(log.series["reward"].value) == [0.375, 0.5]
    assert log.dropped["torn dictionaries"] == 1


def test_a_long_preamble(tmp_path: Path) -> None:
    path = write(tmp_path, "INFO vllm: nothing yet\n" * 10_000 + trainer())
    assert CONTAINER.file(path, path.read_bytes()[:65_536])


ARGUMENTS = """\
10:00:00 - INFO - __main__ - Model parameters ModelConfig(model_name_or_path='Qwen/Qwen3-0.6B', dtype=None)
10:00:00 - INFO - __main__ - Training parameters GRPOConfig(
_n_gpu=1,
accelerator_config={'split_batches': False, 'dispatch_batches': None},
beta=0.04,
generation_batch_size=96,
gradient_accumulation_steps=16,
learning_rate=1e-06,
logging_steps=5,
lr_scheduler_type=SchedulerType.COSINE,
num_generations=6,
num_iterations=1,
per_device_train_batch_size=6,
seed=42,
steps_per_generation=16,
system_prompt=You think
first,
)
"""


# github.com/modelscope/ms-swift, as its issue 4146 shows it (there of DPO).
SWIFT = (
    "{{'loss': 0.0001, 'grad_norm': 0.5, 'learning_rate': 1e-06, 'memory(GiB)': 69.19, "
    "'train_speed(iter/s)': 0.010367, 'completions/mean_length': 310.5, 'completions/clipped_ratio': 0.1, "
    "'rewards/MathAccuracy/mean': 0.5, 'reward': {reward}, 'reward_std': 0.25, 'kl': 0.001, "
    "'entropy/mean': 0.75, 'epoch': 0.26, 'global_step/max_steps': '{step}/94', 'percentage': '12.77%', "
    "'elapsed_time': '18m 26s', 'remaining_time': '2h 5m 59s'}}\n"
)


@pytest.mark.parametrize("step_key", ["global_step/max_steps", "iteration"])  # the second of Megatron
def test_ms_swift(tmp_path: Path, step_key: str) -> None:
    bars = "Train:  12%|#         | 11/94 [16:51<2:07:13, 91.5s/it]"
    text = "".join(bars + "\r" + SWIFT.format(step=step, reward=record) for step, record in REWARD.items())
    log = read(tmp_path, text.replace("global_step/max_steps", step_key) + SUMMARY)
    assert curve(log, "reward") == REWARD
    assert log.notes == []


def test_a_job_whose_lines_have_labels(tmp_path: Path) -> None:
    """What ``srun --label`` writes; the bar in the labelled lines is the training's."""
    text = "".join(f"0:   1%|# | {s}/1000 [01:00<20:00, 6s/it]\n0: {old(s)}\n" for s in REWARD)
    log = read(tmp_path, "0: Setting ds_accelerator to cuda\n1: INFO\n" + text)
    assert curve(log, "reward") == REWARD


# github.com/unslothai/unsloth prints it before the first step; the bar is a notebook's.
UNSLOTH = """\
==((====))==  Unsloth - 2x faster free finetuning | Num GPUs used = 1
   \\\\   /|    Num examples = 7,473 | Num Epochs = 1 | Total steps = 1,000
O^O/ \\_/ \\    Batch size per device = 6 | Gradient accumulation steps = 4
\\        /    Data Parallel GPUs = 1 | Total batch size (6 x 4 x 1) = 24
 "-____-"     Trainable parameters = 119,734,272 of 3,000,000,000 (3.92% trained)
  0% 0/1000 [00:00<?, ?it/s]
"""


def test_unsloth(tmp_path: Path) -> None:
    text = UNSLOTH + "".join(f"  1% {s}/1000 [01:00<20:00, 6s/it]\n{old(s)}\n" for s in REWARD)
    log = read(tmp_path, text)
    assert curve(log, "reward") == REWARD
    assert log.config == {
        "total_steps": 1000, "per_device_train_batch_size": 6, "gradient_accumulation_steps": 4,
        "world_size": 1, "total_train_batch_size": 24,
    }  # fmt: skip


def test_the_trainers_banner_gives_the_devices(tmp_path: Path) -> None:
    """With the arguments it gives the batch: 2 devices here, which no argument says."""
    banner = (
        "***** Running training *****\n  Num examples = 960\n  Num Epochs = 1\n"
        "  Instantaneous batch size per device = 6\n"
        "  Total train batch size (w. parallel, distributed & accumulation) = 192\n"
        "  Gradient Accumulation steps = 16\n  Total optimization steps = 100\n"
    )
    less = ("generation_batch_size", "steps_per_generation")
    arguments = "".join(line for line in ARGUMENTS.splitlines(True) if not line.startswith(less))
    path = write(tmp_path, arguments + banner + trainer())
    (run,) = isolaw.read(path).table().to_dict("records")
    assert (run["problems_per_batch"], run["rollouts_per_problem"]) == (32, 6)


def test_printed_arguments(tmp_path: Path) -> None:
    log = read(tmp_path, ARGUMENTS + trainer())
    assert log.config_source == "train.log"
    wanted = {"generation_batch_size": 96, "num_generations": 6, "learning_rate": 1e-06, "seed": 42}
    assert wanted.items() <= log.config.items()
    assert log.config["model_name_or_path"] == "Qwen/Qwen3-0.6B"


def test_configuration_beside_it(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("num_generations: 8\nseed: 1\n")
    log = read(tmp_path, trainer())
    assert (log.config, log.config_source) == ({"num_generations": 8, "seed": 1}, "config.yaml")
    log = read(tmp_path, ARGUMENTS + trainer())
    assert log.config["num_generations"] == 6  # what was printed is what ran


# slime, OpenRLHF, SkyRL

RAY = "\x1b[36m(RolloutManager pid=71, ip=10.0.0.2)\x1b[0m "
OTHER = "\x1b[36m(MegatronTrainRayActor pid=99)\x1b[0m "
MEGATRON = """\
------------------------ arguments ------------------------
  global_batch_size ............................... 256
  hf_checkpoint ................................... /models/Qwen3-4B
  lr .............................................. 1e-06
  n_samples_per_prompt ............................ 8
  rollout_batch_size .............................. 32
  use_kl_loss ..................................... True
-------------------- end of arguments ---------------------
"""


def slime(steps: Iterable[int]) -> str:
    out = [OTHER + line for line in MEGATRON.splitlines()]
    head = "[10:00:00] rollout.py:400 - "
    for step in steps:
        if step == 0:
            out.append(f"{RAY}{head}eval 0: {{'eval/aime': 0.125, 'eval/aime-truncated_ratio': 0.5}}")
        out.append(f"{OTHER}Training: {{'not': 'a metric'}}")
        out.append(
            f"{RAY}{head}perf {step}: {{'rollout/response_len/mean': np.float64(512.5), 'perf/time': 3}}"
        )
        out.append(
            f"{OTHER}{head}rollout {step}: {{'rollout/raw_reward': {step / 10}, 'rollout/log_probs': -0.25}}"
        )
        out.append(f"{OTHER}{head}step {step}: {{'train/loss': 0.0, 'train/grad_norm': 0.5, 'train/lr': 0}}")
        if step % 2:
            out.append(
                f"{RAY}{head}eval {step}: {{'eval/aime': {step / 20}, 'eval/aime-truncated_ratio': 0.25}}"
            )
    return "\n".join(out) + "\n"


def test_slime(tmp_path: Path) -> None:
    log = read(tmp_path, slime(range(4)))
    assert curve(log, "rollout/raw_reward") == {0: 0, 1: 0.1, 2: 0.2, 3: 0.3}
    assert curve(log, "eval/aime") == {0: 0.125, 1: 0.05, 3: 0.15}
    assert curve(log, "rollout/response_len/mean") == dict.fromkeys(range(4), 512.5)
    assert curve(log, "train/grad_norm") == dict.fromkeys(range(4), 0.5)
    assert log.config == {
        "global_batch_size": 256, "hf_checkpoint": "/models/Qwen3-4B", "lr": 1e-06, "n_samples_per_prompt": 8,
        "rollout_batch_size": 32, "use_kl_loss": True,
    }  # fmt: skip
    assert "not" not in log.series


def test_openrlhf(tmp_path: Path) -> None:
    ray = "(PPOTrainer pid=5) INFO 09-01 10:00:00 ppo_trainer.py:551] ✨ "
    text = "".join(
        f"{ray}Global step {step}: {{'policy_loss': 0.1, 'actor_lr': 0, 'rollout/reward_mean': {step / 8}}}\n"
        for step in (1, 2)
    )
    text += f"{ray}Evaluation completed in 0:01:02, global_step 2, eval_metrics: {{'eval_aime_pass1': 0.5}}\n"
    log = read(tmp_path, text)
    assert curve(log, "rollout/reward_mean") == {1: 0.125, 2: 0.25}
    assert curve(log, "eval_aime_pass1") == {2: 0.5}


def test_skyrl_over_several_lines(tmp_path: Path) -> None:
    ray = "\x1b[36m(skyrl_entrypoint pid=8)\x1b[0m "
    out = []
    for step in (0, 1, 2):
        values = {"eval/all/avg_score": f"{step / 4:.4f}", "vllm/x": {"nested": "1.0"}}
        if step:
            values |= {
                "reward/avg_raw_reward": f"{step / 8:.4f}",
                "trainer/global_step": step,
                "loss/avg_kl": "nan",
            }
            values |= {f"generate/some_long_name_{i}": "1.0000" for i in range(20)}
        head = f"10:00:00.000 | INFO     | skyrl.train.utils.tracking:log:189 - Step {step}: "
        lines = [head, *pprint.pformat(values).splitlines()]
        out += [ray + lines[0], OTHER + "{'from': 'another worker'}"]
        for line in lines[1:]:
            out += [ray + line, OTHER + "in between"]
    log = read(tmp_path, "\n".join(out) + "\n")
    assert curve(log, "eval/all/avg_score") == {0: 0, 1: 0.25, 2: 0.5}
    assert curve(log, "reward/avg_raw_reward") == {1: 0.125, 2: 0.25}
    assert log.dropped == {"values that are not finite": 2}


# What is refused, and how much it may cost


def test_only_the_summary(tmp_path: Path) -> None:
    """A run of fewer steps than logging_steps."""
    bar = "100%|##########| 6/6 [15:39<00:00, 161.57s/it]"
    path = write(
        tmp_path, f"{bar}{{'train_runtime': 943.6, 'train_loss': 0.1, 'reward': 0.7, 'epoch': 1.64}}\n"
    )
    with pytest.raises(NoHistory, match=r"(?s)no step was logged.*Lower logging_steps"):
        list(CONTAINER.read(path))


def test_nothing_in_it(tmp_path: Path) -> None:
    path = write(tmp_path, "Hello\n{'a': 1}\nstep 3: {'a': 'b'}\n")
    assert not CONTAINER.file(path, b"Hello\n{'a': 1}\n")
    with pytest.raises(DataError, match="no metrics printed") as error:
        list(CONTAINER.read(path))
    assert str(path) in str(error.value)
    with pytest.raises(DataError, match="No such file"):
        list(CONTAINER.read(tmp_path / "none.log"))


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b'{"loss": 0.5, "epoch": 0.1}\n',
        b"{'prompt': 'epoch', 'epoch': 3}\n",
        b"step:1 - critic/score/mean:0.5\n",
        b"{'question': 'x', 'answer': '5'}\n",
    ],
)
def test_what_it_is_not(tmp_path: Path, head: bytes) -> None:
    assert not CONTAINER.file(write(tmp_path, head), head)


class Bomb:
    """Raises when it is evaluated; its repr is code."""


def test_nothing_is_evaluated(tmp_path: Path) -> None:
    code = "__import__('os').abort()"
    text = trainer(lambda step: new(step).replace("'0.25', 'clip", f"{code}, 'clip"))
    text += f"step 1: {{'a/b': {code}, 'c/d': 1}}\n{{'loss': {code}, 'epoch': 1}}\n"
    assert curve(read(tmp_path, text), "reward") == REWARD


HOSTILE = {
    "open": "{'loss': " * 110_000,
    "lines": "{'loss': 1,\n" + " '}': {'\n" * 100_000,
    "nested": "step 1: {'a': {'b': 1,\n" + " 'x': {}}\n" * 100_000,
    "spaces": "step 1: {'a'" + " " * 1_000_000,
    "bars": "1%|" * 330_000,
    "bars of all lengths": "".join(f"\r 1%|x| 1/{i} [" for i in range(60_000)),
    "epochs": "'epoch': " * 110_000,
    "steps": "step 1 " * 140_000,
    "numbers": "step " + "1" * 1_000_000 + ": {'a/b': 1}",
    "arguments": "GRPOConfig(\n" + "a=1,\n" * 200_000,
    "dots": "------------------------ arguments ------------------------\n" + "a . . . . \n" * 90_000,
    "dictionaries": "step 1: {'a/b': 1}\n" * 50_000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_megabytes(tmp_path: Path, name: str) -> None:
    path = write(tmp_path, HOSTILE[name])
    began = time.process_time()
    CONTAINER.file(path, path.read_bytes()[:65_536])
    with suppress(DataError):
        list(CONTAINER.read(path))
    assert time.process_time() - began < 25


def test_memory(tmp_path: Path) -> None:
    text = "".join(f"\r 1%|x| 1/{i} [" for i in range(100))
    path = write(tmp_path, text + "\n{'loss': 1, 'epoch': 1}" * 8_000 + "{'loss': " * 50_000)
    tracemalloc.start()
    (log,) = CONTAINER.read(path)
    used = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(log.step) == 8_000
    assert used < 50e6


@given(st.binary(max_size=200), st.integers(0, 3_000))
def test_any_bytes(tmp_path_factory: pytest.TempPathFactory, garbage: bytes, at: int) -> None:
    content = trainer().encode() + slime(range(2)).encode()
    path = write(tmp_path_factory.mktemp("console"), content[:at] + garbage + content[at:])
    CONTAINER.file(path, path.read_bytes())
    with suppress(DataError):
        list(CONTAINER.read(path))


@pytest.mark.skipif(not SAMPLE.is_dir(), reason="the shared sample logs are not here")
def test_a_real_console_agrees_with_its_trainer_state() -> None:
    from isolaw.readers.containers.json_document import TRAINER_STATE as STATE

    (console,) = CONTAINER.read(SAMPLE / "training.log")
    (state,) = STATE.read(SAMPLE / "reproduce_openrs_rs2_42" / "trainer_state.json")
    for key in ("reward", "kl", "completion_length", "grad_norm"):
        assert curve(console, key) == curve(state, key)


@pytest.mark.parametrize("between", ["", "Num examples = 100 | Total steps = 3\n"])
@pytest.mark.parametrize("ends", [True, False])
def test_one_training_after_another(tmp_path: Path, between: str, ends: bool) -> None:
    """Each is a run of its own, whether the first came to its end or was started again from nothing."""

    def records(rewards: list[float], epochs: float, tokens: int) -> str:
        return "".join(
            f"{{'loss': 0.1, 'num_tokens': {tokens * k}.0, 'reward': {r}, 'epoch': {epochs * k:.2f}}}\n"
            for k, r in enumerate(rewards, 1)
        )

    end = "{'train_runtime': 9.0, 'train_loss': 0.1, 'epoch': 0.04}\n" if ends else ""
    path = tmp_path / "train.log"
    first, second = [0.1, 0.2, 0.3, 0.4], [0.5, 0.6, 0.7]
    path.write_text(records(first, 0.01, 1000) + end + between + records(second, 0.1, 300) + end)
    logs = list(CONTAINER.read(path))
    assert [list(log.series["reward"].value) for log in logs] == [first, second]
    assert [log.run for log in logs] == [str(path), f"{path}#2"]


def test_a_count_of_tokens_with_an_exponent_starts_no_training(tmp_path: Path) -> None:
    """transformers 5 prints four digits: 1.1e+05 comes after 9.2e+04, and 1.0e+06 after 9.2e+05."""
    path = tmp_path / "train.log"
    tokens = [float(f"{4.4e4 * k:.4g}") for k in range(1, 31)]
    path.write_text(
        "".join(
            f"{{'loss': '0.1', 'num_tokens': '{count:.3e}', 'reward': '{k / 100}', 'epoch': '{k / 50}'}}\n"
            for k, count in enumerate(tokens, 1)
        )
    )
    (log,) = CONTAINER.read(path)
    assert list(log.series["num_tokens"].value) == pytest.approx(tokens, rel=1e-3)


@pytest.mark.parametrize("buffered", [True, False])
def test_a_callback_that_prints_no_epoch(tmp_path: Path, buffered: bool) -> None:
    """Its records are the training, not the line for the best sample of a batch."""
    path = tmp_path / "train.log"
    bars = [bar(step, 40) + "\r" for step in range(1, 41)]
    records = [
        f"{{'reward': '0.{step + 10}', 'loss': '1e-05', 'grad_norm': '0.68', 'frac_reward_zero_std': '0'}}\n"
        + f"[step {step}] best of last batch  reward=0.991\n" * (step % 10 == 0)
        for step in range(1, 41)
    ]
    lines = (
        [*bars, *records] if buffered else [text for pair in zip(bars, records, strict=True) for text in pair]
    )
    path.write_text("".join(lines))
    how = {"logging_steps": 1} if buffered else {}
    points = isolaw.read(path, set={"n": 8, "B_p": 2, **how}).points
    rewards = points[points["metric"] == "reward"]
    assert rewards["step"].tolist() == list(range(1, 41))
    assert rewards["value"].tolist() == [float(f"0.{step + 10}") for step in range(1, 41)]


def test_an_evaluation_after_the_end_is_of_the_training_that_ended(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(
        "{'loss': 0.1, 'reward': 0.25, 'epoch': 0.5}\n{'loss': 0.1, 'reward': 0.5, 'epoch': 1.0}\n"
        "{'train_runtime': 9.0, 'train_loss': 0.1, 'epoch': 1.0}\nSaved.\n"
        "{'eval_reward': 0.75, 'epoch': 1.0}\n"
    )
    (log,) = CONTAINER.read(path)
    assert list(log.series["eval_reward"].value) == [0.75]


def test_a_second_training_that_is_torn_off_hides_no_first(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    first = "{'loss': 0.1, 'reward': 0.25, 'epoch': 0.5}\n{'loss': 0.1, 'reward': 0.5, 'epoch': 1.0}\n"
    path.write_text(first + "{'loss': 0.1, 'epoch': 0.5, 'rewa")
    (log,) = CONTAINER.read(path)
    assert list(log.series["reward"].value) == [0.25, 0.5]


def openrlhf(steps: Iterable[int]) -> str:
    ray = "(PPOTrainer pid=5) INFO 09-01 10:00:00 ppo_trainer.py:551] ✨ "
    return "".join(
        f"{ray}Global step {s}: {{'actor_lr': 0, 'rollout/reward_mean': {s / 8}}}\n" for s in steps
    )


@pytest.mark.parametrize("of", ["trl", "slime", "openrlhf"])
def test_another_n_in_the_middle_is_asked(tmp_path: Path, of: str) -> None:
    """Printed arguments were merged, so that the last ones held for all steps."""
    arguments = "".join(f"{OTHER}{line}\n" for line in MEGATRON.splitlines())
    if of == "trl":
        head, end, (name, n) = ARGUMENTS, trainer().index(SUMMARY), ("num_generations=", 6)
        cut = trainer().index(new(15))
        first, rest = trainer()[:cut], trainer()[cut:end]
    else:
        head, (name, n) = arguments, ("n_samples_per_prompt ............................ ", 8)
        form = (lambda own: slime(own).replace(arguments, "")) if of == "slime" else openrlhf
        first, rest = form(range(1, 4)), form(range(4, 7))
    if of == "openrlhf":
        head = head.replace("hf_checkpoint ........", "micro_rollout_batch_size")
    other = head.replace(f"{name}{n}", f"{name}{2 * n}")
    assert other != head
    (same,) = survey([write(tmp_path, head + first + head + rest)]).candidates
    assert (same.status, same.n) == (LogStatus.READY, n)
    (own,) = survey([write(tmp_path, head + first + other + rest)]).candidates
    assert own.status is LogStatus.NEEDS
    setting = name.split("=")[0].split(" ")[0]
    assert f"rollouts_per_problem: {n} ({setting} in train.log before step " in own.message
    assert f"and {2 * n} ({setting} in train.log before step " in own.message


@pytest.mark.parametrize(
    ("argument", "needs"),
    [
        ("logging_steps=5,", []),
        ("logging_steps=0.05,\nmax_steps=100,", []),
        ("logging_steps=0.05,", ["logging_steps"]),
        ("logging_steps=5,\nlogging_strategy=IntervalStrategy.EPOCH,", ["logging_steps"]),
    ],
)
def test_the_interval_of_records_is_in_steps_or_is_asked(
    tmp_path: Path, argument: str, needs: list[str]
) -> None:
    path = write(tmp_path, ARGUMENTS.replace("logging_steps=5,", argument) + trainer(bars=False))
    (run,) = survey([path], HowToRead.of(set={"B_p": 16})).candidates
    assert run.needs == needs
    assert needs or run.steps == (5, 20)
