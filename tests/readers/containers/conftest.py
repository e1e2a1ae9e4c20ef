"""A veRL run with a known table, as its file logger and its console write it, with all the dirt."""

from __future__ import annotations

import copy
import json
import math
import pprint
import random
from dataclasses import dataclass, field
from typing import Any

import pytest

Table = dict[int, dict[str, float]]

# Key names as veRL 0.5 logs them.
TRAINING = [
    "global_seqlen/min", "global_seqlen/balanced_max", "actor/entropy", "actor/kl_loss", "actor/kl_coef",
    "actor/pg_loss", "actor/pg_clipfrac", "actor/ppo_kl", "actor/grad_norm", "perf/mfu/actor", "actor/lr",
    "critic/score/mean", "critic/score/max", "critic/rewards/mean", "critic/advantages/min",
    "response_length/mean", "response_length/clip_ratio", "prompt_length/mean", "timing_s/gen",
    "timing_s/step", "timing_per_token_ms/gen", "perf/total_num_tokens", "perf/throughput",
]  # fmt: skip
VALIDATION = [
    "val-core/openai/gsm8k/acc/mean@4", "val-core/openai/gsm8k/acc/best@4/mean",
    "val-aux/openai/gsm8k/acc/std@4", "val-aux/openai/gsm8k/acc/best@2/mean",
    "val-aux/openai/gsm8k/acc/worst@2/mean", "val-aux/openai/gsm8k/reward/mean@4",
    "val-core/kk logic: 3-people/reward/mean@4", "val-aux/num_turns/mean",
]  # fmt: skip
CHATTER = [
    "<think> Let's analyze each formula step by step:",
    "Step 1: x - 3 = 4, so step:1 - we add 3 to both sides",
    "The set {'a': 1, 'b': 2} has two keys. Therefore step:2 - done.",
    "[Model Response]",
    "epoch 0, step 3",
    "",
    "  Total: -0.5",
    "\\boxed{42} ↔ τ",
    "{'answer': 42, 'work': 'none'}",
    "kl_ctrl - coefficient: 0.001 - done",
]


CONFIG: dict[str, Any] = {
    "actor_rollout_ref": {
        "actor": {
            "clip_ratio": 0.2, "entropy_coeff": 0, "kl_loss_coef": 0.001, "kl_loss_type": "low_var_kl",
            "optim": {"lr": 1e-06, "lr_warmup_steps": -1, "betas": [0.9, 0.999], "weight_decay": 0.01},
            "ppo_epochs": 1, "ppo_mini_batch_size": 256, "use_kl_loss": True, "strategy": "fsdp",
        },
        "hybrid_engine": True,
        "model": {"path": "Qwen/Qwen2.5-7B-Instruct", "external_lib": None, "override_config": {}},
        "rollout": {
            "n": 8, "name": "vllm", "temperature": 1.0, "top_p": 1,
            "val_kwargs": {"n": 4, "do_sample": True, "temperature": 0.6},
        },
    },
    "algorithm": {
        "adv_estimator": "grpo", "gamma": 1.0, "use_kl_in_reward": False, "norm_adv_by_std_in_grpo": True,
        "kl_ctrl": {"kl_coef": 0.001, "type": "fixed"},
    },
    "custom_reward_function": {"name": "compute_score", "path": None},
    "data": {
        "custom_cls": {"name": None, "path": None}, "max_prompt_length": 1024, "max_response_length": 2048,
        "prompt_key": "prompt", "train_batch_size": 256, "train_files": ["/data/gsm8k/train.parquet"],
        "val_files": "/data/gsm8k/test.parquet", "shuffle": True, "seed": 17,
        "chat_template": "{% for m in messages %}{{ m['role'] }}: it's \"{\" and more, and more {% endfor %}",
    },
    "ray_init": {"num_cpus": None, "timeline_json_file": None},
    "trainer": {
        "balance_batch": True, "experiment_name": "qwen2.5_7b_n8", "logger": ["console", "file"],
        "n_gpus_per_node": 8, "nnodes": 1, "project_name": "verl_grpo_gsm8k", "test_freq": 5,
        "total_epochs": 15, "val_before_train": True, "default_local_dir": "checkpoints/a/b",
    },
}  # fmt: skip


@dataclass
class VerlRun:
    """``table``: step → key → value; ``config``: as veRL composes it."""

    steps: int = 12
    first: int = 1
    every: int = 5
    table: Table = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        draw = random.Random(7)
        for step in range(self.first + self.steps):
            own = self.table[step] = {}
            if step >= self.first:
                own |= {key: round(draw.uniform(-3, 3), 6) for key in TRAINING}
                own["perf/total_num_tokens"] = draw.randrange(10**6)
                own |= {"training/global_step": step, "actor/lr": 1e-6}
            if step % self.every == 0:
                own |= {key: round(draw.random(), 6) for key in VALIDATION}
        self.config = self.config or copy.deepcopy(CONFIG)

    def jsonl(self) -> str:
        """As the file logger writes it: NaN becomes null."""
        return "".join(
            json.dumps({"step": step, "data": {k: None if math.isnan(v) else v for k, v in curve.items()}})
            + "\n"
            for step, curve in self.table.items()
        )

    def line(self, step: int, decimals: int | None = None) -> str:
        """As `concat_dict_to_str` writes it: validation is NumPy's."""
        items = [f"step:{step}"]
        for key, value in self.table[step].items():
            shown = f"np.float64({value!r})" if key.startswith("val") else repr(value)
            items.append(f"{key}:{shown if decimals is None else format(value, f'.{decimals}f')}")
        return " - ".join(items)

    def console(self, seed: int = 1) -> bytes:
        """With configuration, prefixes, colours, progress bars, NUL bytes and model output."""
        draw = random.Random(seed)
        ray = "\x1b[36m(TaskRunner pid=21712)\x1b[0m "
        other = "\x1b[36m(WorkerDict pid=21999, ip=10.0.0.2)\x1b[0m "
        out = [
            "+ python3 -m verl.trainer.main_ppo data.train_batch_size=256",
            "2025-07-01 INFO worker.py:1843 --",
        ]
        for line in pprint.pformat(self.config).splitlines():
            out.append(ray + line)
            if draw.random() < 0.2:
                out.append(other + draw.choice([*CHATTER, "{'not': 'the config'}", "  'n': 99}"]))
        values = ", ".join(f"'{key}': np.float64({value})" for key, value in self.table[0].items())
        initial = f"Initial validation metrics: {{{values}}}"
        out += [ray + line for line in pprint.pformat(initial).splitlines()]
        for step in self.table:
            out += [draw.choice([ray, other, ""]) + draw.choice(CHATTER) for _ in range(draw.randrange(6))]
            whole = self.line(step)
            if step % 3 == 2:  # broken anywhere
                at = draw.randrange(whole.index(" - ") + 3, len(whole))
                out += [ray + whole[:at], other + draw.choice(CHATTER[:4]), ray + whole[at:]]
            elif step % 3 == 1:
                bar = f"{ray}\rTraining Progress:  {step}%|▌    | {step}/435 [00:{step:02}<1:02:03, 71.2s/it]"
                out.append(f"{bar}\r{ray}{whole}\x00\x00{bar}")
            else:
                out.append(f"{ray}{whole}\x1b[0m")
        return ("\n".join(out) + "\n").encode()


@pytest.fixture(scope="session")
def verl_run() -> type[VerlRun]:
    return VerlRun


@pytest.fixture(scope="session")
def by_step() -> Any:
    """A log's values as step → key → value, later records over earlier ones."""

    def table(log: Any) -> Table:
        out: Table = {}
        for key, series in log.series.items():
            for record, value in zip(series.record, series.value, strict=True):
                out.setdefault(int(log.step[record]), {})[key] = value
        return dict(sorted(out.items()))

    return table
