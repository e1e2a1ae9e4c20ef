"""Write the example logs of this folder: ``python examples/logs/make.py examples/logs``.

Eight simulated runs (B_p = 32; n = 8, 32, 128, 512; two seeds) are written as veRL, TRL and others write
theirs, with their key names. Only steps at which something was evaluated are in them, to keep them small, and
the training reward is the validation's with the noise of one batch: the simulator has none of its own.
"""

from __future__ import annotations

import hashlib
import json
import pprint
import struct
import sys
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

import isolaw

B_P = 32
SIZES = [8, 32, 128, 512]
LR = 1e-6
START = 1_767_225_600  # seconds: 2026 begins
Values = dict[str, float]
Names = dict[str, str]  # ours → the framework's


@dataclass
class Run:
    """``train`` and ``held_out``: step → our name → value; training has no step 0."""

    n: int
    seed: int
    train: dict[int, Values]
    held_out: dict[int, Values]

    @property
    def name(self) -> str:
        return f"n{self.n}-seed{self.seed}"

    def records(self, names: Names) -> dict[int, Values]:
        """Return both under a framework's names."""
        both = {step: self.train.get(step, {}) | values for step, values in self.held_out.items()}
        return {step: {names[k]: v for k, v in pair.items() if k in names} for step, pair in both.items()}


def simulated() -> list[Run]:
    sweep = {"compute": 2e6, "seeds": 2}
    grid = {"problems_per_batch": [B_P], "rollouts_per_problem": SIZES}
    points = isolaw.sweep({"sweep": sweep, "grid": grid, "evaluation": {"points": 24}}).points
    noise = np.random.default_rng(0)
    out = []
    for (n, seed), rows in points[points["metric"] == "avg@4"].groupby(["rollouts_per_problem", "seed"]):
        held_out = {int(s): {"score": round(v, 4)} for s, v in zip(rows["step"], rows["value"], strict=True)}
        train = {}
        for step, values in held_out.items():
            p = values["score"]
            drawn = float(np.clip(noise.normal(p, (p * (1 - p) / (B_P * n)) ** 0.5), 0, 1))
            length = round(400 + 50 * float(np.log1p(step)) + noise.normal(0, 5), 1)
            train[step] = {"reward": round(drawn, 4), "length": length, "grad_norm": 0.25}
        del train[0]
        out.append(Run(int(n), int(seed), train, held_out))
    return out


# Ways of writing


def text(path: Path, lines: Iterable[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines))


def nested(flat: dict[str, Any], at: str = ".") -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in flat.items():
        *outer, last = key.split(at)
        inside = out
        for part in outer:
            inside = inside.setdefault(part, {})
        inside[last] = value
    return out


def events(path: Path, records: dict[int, Values], config: dict[str, Any]) -> None:
    """TensorBoard, with the text that Hugging Face's callback writes."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

    told = TensorProto(dtype=7, string_val=[json.dumps(config).encode()])
    all_events = [
        Event(wall_time=START, file_version="brain.Event:2"),
        Event(wall_time=START, summary=Summary(value=[Summary.Value(tag="args/text_summary", tensor=told)])),
    ]
    for step, values in records.items():
        for tag, value in values.items():
            scalar = Summary.Value(tag=tag, simple_value=value)
            all_events.append(Event(step=step, wall_time=START + step, summary=Summary(value=[scalar])))
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        for event in all_events:
            data = event.SerializeToString()
            size = struct.pack("<Q", len(data))
            file.write(size + struct.pack("<I", masked_crc32c(size)))
            file.write(data + struct.pack("<I", masked_crc32c(data)))


def wandb(folder: Path, run: Run, records: dict[int, Values], config: dict[str, Any]) -> None:
    """An offline run: blocks of 32 KiB with chunks of protocol buffers."""
    from wandb.proto.wandb_internal_pb2 import Record

    run_id = run.name.replace("-", "")
    first = Record()
    first.run.run_id, first.run.display_name = run_id, run.name
    for key, value in config.items():
        first.run.config.update.add(key=key, value_json=json.dumps(value))
    told = [first.SerializeToString()]
    for calls, values in enumerate(records.values()):
        record = Record()
        record.history.step.num = calls  # W&B's own count
        for key, value in values.items():
            record.history.item.add(key=key, value_json=json.dumps(value))
        told.append(record.SerializeToString())
    out = bytearray(b":W&B\xe1\xbe\x00")
    for data in told:
        left = 32_768 - len(out) % 32_768
        if left < len(data) + 7:
            raise ValueError("a record over a block's end: not needed here, so not written")
        crc = zlib.crc32(data, zlib.crc32(b"\x01"))
        out += struct.pack("<IHB", crc, len(data), 1) + data
    path = folder / "wandb" / f"offline-run-20260101_000000-{run_id}" / f"run-{run_id}.wandb"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(out)


# Frameworks

VERL = {
    "reward": "critic/score/mean",
    "length": "response_length/mean",
    "grad_norm": "actor/grad_norm",
    "score": "val-core/math/acc/mean@4",
}


def verl_config(run: Run) -> dict[str, Any]:
    return nested(
        {
            "data.train_batch_size": B_P,
            "data.train_files": "/data/math/train.parquet",
            "data.seed": run.seed,
            "actor_rollout_ref.rollout.n": run.n,
            "actor_rollout_ref.rollout.temperature": 1.0,
            "actor_rollout_ref.actor.ppo_mini_batch_size": B_P,
            "actor_rollout_ref.actor.ppo_epochs": 1,
            "actor_rollout_ref.actor.optim.lr": LR,
            "actor_rollout_ref.hybrid_engine": True,
            "algorithm.adv_estimator": "grpo",
            "trainer.project_name": "math",
            "trainer.experiment_name": run.name,
        }
    )


def verl(top: Path, run: Run) -> None:
    """Write the file logger's log, and Hydra's configuration next to it under the log's name."""
    records = run.records(VERL)
    rows = [json.dumps({"step": step, "data": values}) for step, values in records.items()]
    text(top / "math" / f"{run.name}.jsonl", rows)
    text(top / "math" / f"{run.name}.yaml", [yaml.safe_dump(verl_config(run)).rstrip()])


def verl_console(top: Path, run: Run) -> None:
    """Write the console as Ray prints it; one of the runs was killed and resumed."""
    ray = "\x1b[36m(TaskRunner pid=4711)\x1b[0m "
    said = [ray + line for line in pprint.pformat(verl_config(run)).splitlines()]
    steps = []
    for step, values in run.records(VERL).items():
        items = [f"{k}:np.float64({v})" if k.startswith("val") else f"{k}:{v}" for k, v in values.items()]
        steps.append(f"{ray}step:{step} - {' - '.join(items)}")
    folder = top / run.name
    if run.name != "n8-seed1":
        text(folder / "slurm-1001.out", [*said, *steps])
        return
    text(folder / "slurm-1001.out", [*said, *steps[:15], steps[15][:70]])
    text(folder / "slurm-1002.out", [*said, *steps[12:]])


def easyr1(top: Path, run: Run) -> None:
    names = {"reward": "critic/score/mean", "grad_norm": "actor/grad_norm", "score": "val/accuracy_reward"}
    config = {
        "data.rollout_batch_size": B_P,
        "data.seed": run.seed,
        "worker.rollout.n": run.n,
        "worker.actor.global_batch_size": B_P,
        "worker.actor.optim.lr": LR,
        "algorithm.adv_estimator": "grpo",
    }
    rows = [json.dumps({"step": s, **nested(values, "/")}) for s, values in run.records(names).items()]
    text(top / run.name / "experiment_log.jsonl", rows)
    text(top / run.name / "experiment_config.json", [json.dumps(nested(config), indent=2)])


TRL = {
    "reward": "reward",
    "length": "completions/mean_length",
    "grad_norm": "grad_norm",
    "score": "eval_rewards/accuracy_reward/mean",
}


def trl(top: Path, run: Run) -> None:
    """Write the states of two checkpoints; the later one repeats the earlier one's history."""
    history: list[dict[str, Any]] = []
    for step, values in run.records(TRL).items():
        train = {key: value for key, value in values.items() if not key.startswith("eval_")}
        held_out = {key: value for key, value in values.items() if key.startswith("eval_")}
        history += [{"step": step, "epoch": step / 1000, **item} for item in (train, held_out) if item]
    for part in (history[: len(history) // 2], history):
        last = part[-1]["step"]
        state = {"global_step": last, "logging_steps": 1, "train_batch_size": 16, "log_history": part}
        text(top / run.name / f"checkpoint-{last}" / "trainer_state.json", [json.dumps(state)])


def tensorboard(top: Path, run: Run) -> None:
    """Write TRL's event files, which include its arguments."""
    names = {key: f"train/{record}" for key, record in TRL.items()}
    names["score"] = "eval/rewards/accuracy_reward/mean"
    config = {
        "num_generations": run.n,
        "per_device_train_batch_size": 16,
        "gradient_accumulation_steps": 2,
        "steps_per_generation": 2,
        "generation_batch_size": B_P * run.n,
        "num_iterations": 1,
        "learning_rate": LR,
        "beta": 0.0,
        "seed": run.seed,
        "loss_type": "dapo",
    }
    events(top / run.name / "events.out.tfevents.1767225600.node1.4711.0", run.records(names), config)


def openrlhf(top: Path, run: Run) -> None:
    """Write an offline W&B run, whose steps are among the values."""
    names = {
        "reward": "train/rollout/reward_mean",
        "length": "train/rollout/response_length_mean",
        "grad_norm": "train/actor_grad_norm",
        "score": "eval/eval_math_pass1",
    }
    records: dict[int, Values] = {}
    for step, values in run.records(names).items():
        for scope in ("train", "eval"):
            own = {key: value for key, value in values.items() if key.startswith(f"{scope}/")}
            if own:
                records[len(records)] = own | {f"{scope}/global_step": step}
    config = {
        "rollout": f"namespace(batch_size={B_P}, n_samples_per_prompt={run.n}, temperature=1.0)",
        "train": f"namespace(batch_size={B_P * run.n}, max_epochs=1, async_enable=False, seed={run.seed})",
        "actor": f"namespace(adam=namespace(lr={LR}))",
    }
    wandb(top, run, records, config)


def prime_rl(top: Path, run: Run) -> None:
    names = {
        "reward": "train/agg/effective/agent/reward/mean",
        "length": "train/agg/effective/agent/num_output_tokens/mean",
        "grad_norm": "optim/grad_norm",
        "score": "eval/math/effective/agent/avg@4",
    }
    records = run.records(names)
    rows = [json.dumps({"step": s, "time": START + s, **values}) for s, values in records.items()]
    text(top / run.name / "monitors" / "file" / "metrics.jsonl", rows)
    orchestrator = {
        "batch_size": B_P * run.n,
        "group_size": run.n,
        "seed": run.seed,
        "max_off_policy_steps": 8,
        "train": {"env": [{"name": "math"}]},
    }
    config = {"trainer": {"optim": {"lr": LR}}, "orchestrator": orchestrator}
    text(top / run.name / "configs" / "latest" / "resolved" / "rl.json", [json.dumps(config, indent=2)])


def nemo_rl(top: Path, run: Run) -> None:
    """Write an MLflow file store, a folder of metrics and one of parameters; one seed, for its many files."""
    if run.seed:
        return
    names = {"reward": "train/reward", "length": "train/mean_gen_tokens_per_sample"}
    names |= {"score": "validation/accuracy"}
    params = {
        "grpo.num_prompts_per_step": B_P,
        "grpo.num_generations_per_prompt": run.n,
        "grpo.seed": run.seed,
        "policy.train_global_batch_size": B_P * run.n,
        "grpo.async_grpo.enabled": False,
    }
    folder = top / "mlruns" / "1" / hashlib.md5(run.name.encode()).hexdigest()
    text(folder / "meta.yaml", [f"run_name: {run.name}", "lifecycle_stage: active"])
    for name, value in params.items():
        path = folder / "params" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(str(value))
    lines: dict[str, list[str]] = {}
    for step, values in run.records(names).items():
        for key, value in values.items():
            lines.setdefault(key, []).append(f"{(START + step) * 1000} {value} {step}")
    for key, line in lines.items():
        text(folder / "metrics" / key, line)


def skyrl(top: Path, run: Run) -> None:
    """Write its console, and its configuration next to it."""
    names = {
        "reward": "reward/avg_raw_reward",
        "length": "generate/avg_num_tokens",
        "grad_norm": "policy/raw_grad_norm",
        "score": "eval/all/avg_score",
    }
    lines = []
    for step, values in run.records(names).items():
        lines.append(
            f"2026-01-01 00:00:00.000 | INFO     | skyrl_train.utils.tracking:log:89 - Step {step}: "
        )
        lines += pprint.pformat({key: f"{value:.4f}" for key, value in values.items()}).splitlines()
    text(top / f"{run.name}.log", lines)
    config = {
        "trainer.train_batch_size": B_P,
        "trainer.policy_mini_batch_size": B_P,
        "trainer.update_epochs_per_batch": 1,
        "trainer.placement.colocate_all": True,
        "trainer.seed": run.seed,
        "generator.n_samples_per_prompt": run.n,
    }
    text(top / f"{run.name}.yaml", [yaml.safe_dump(nested(config)).rstrip()])


def slime(top: Path, run: Run) -> None:
    """Write its console: Megatron prints the arguments, slime the values of each batch, counted from 0."""
    names = {"reward": "rollout/raw_reward", "length": "rollout/response_lengths", "score": "eval/math"}
    arguments = {
        "rollout_batch_size": B_P,
        "n_samples_per_prompt": run.n,
        "global_batch_size": B_P * run.n,
        "rollout_seed": run.seed,
        "hf_checkpoint": "/models/Qwen3-4B",
        "colocate": True,
        "lr": LR,
    }
    said = ["------------------------ arguments ------------------------"]
    said += [f"  {name} {'.' * (45 - len(name))} {value}" for name, value in arguments.items()]
    said += ["-------------------- end of arguments ---------------------"]
    for step, values in run.records(names).items():
        for what in ("rollout", "eval"):
            own = {key: value for key, value in values.items() if key.startswith(f"{what}/")}
            if own and (what, step) != ("eval", 1):  # its number would be 0, as of the one before training
                said.append(f"(RolloutManager pid=4711) {what} {max(step - 1, 0)}: {own}")
    text(top / f"{run.name}.log", said)


def open_instruct(top: Path, run: Run) -> None:
    names = {
        "reward": "scores",
        "length": "val/sequence_lengths",
        "grad_norm": "optim/grad_norm",
        "score": "eval/pass_at_1",
    }
    records = {s: {**values, "training_step": s} for s, values in run.records(names).items()}
    config = {
        "num_unique_prompts_rollout": B_P,
        "num_samples_per_prompt_rollout": run.n,
        "async_steps": 1,
        "num_mini_batches": 1,
        "num_epochs": 1,
        "seed": run.seed,
        "learning_rate": LR,
    }
    wandb(top, run, records, config)


def wandb_export(top: Path, runs: list[Run]) -> None:
    """Write the "Export CSV" of a panel: a column for each run, with its range in the bin."""
    curves = {
        f"{run.name} - {VERL['score']}": {s: v["score"] for s, v in run.held_out.items()} for run in runs
    }
    ends = ("", "__MIN", "__MAX")
    steps = sorted({step for curve in curves.values() for step in curve})
    rows = [["Step", *(name + end for name in curves for end in ends)]]
    rows += [[str(s), *(str(curve.get(s, "")) for curve in curves.values() for _ in ends)] for s in steps]
    text(top / "wandb_export.csv", [",".join(f'"{cell}"' for cell in row) for row in rows])


def table(top: Path, runs: list[Run]) -> None:
    """Write a user's own table, with accuracy in percent."""
    rows = ["prompts_per_step,group_size,seed,step,test_acc"]
    for run in runs:
        rows += [f"{B_P},{run.n},{run.seed},{s},{100 * v['score']:.2f}" for s, v in run.held_out.items()]
    text(top / "results.csv", rows)


WRITERS: dict[str, Callable[[Path, Run], None]] = {
    "verl": verl,
    "verl-console": verl_console,
    "easyr1": easyr1,
    "trl": trl,
    "tensorboard": tensorboard,
    "openrlhf": openrlhf,
    "prime-rl": prime_rl,
    "nemo-rl": nemo_rl,
    "skyrl": skyrl,
    "slime": slime,
    "open-instruct": open_instruct,
}


def write(top: Path) -> None:
    """Write all logs below ``top``."""
    runs = simulated()
    for name, writer in WRITERS.items():
        for run in runs:
            writer(top / name, run)
    wandb_export(top / "wandb-export", runs)
    table(top / "table", runs)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
