"""veRL and its descendants (EasyR1, DAPO's recipe, rLLM): their metric names, and where B_p and n stand.

Validation is ``val-core|val-aux/<data>/<variable>/<statistic>``. The variable ``acc`` is correctness: its
mean@N is avg@N, and best@k, worst@k, maj@k keep their names. Any other variable is a reward of the user's
own, which need not lie in [0, 1]: ``reward`` has ``reward@N`` and ``reward_best@k``. The older
``val/test_score/<data>`` is such a reward too, over a number of samples that is not in the log.

veRL draws best@k with replacement from its N samples. It is biased low against pass@k, most where k is near
N: at k = N, a problem that one of the N samples solved counts 0.63, not 1. Compare it with itself only.

Batch sizes count prompts, ``ppo_mini_batch_size`` too (veRL multiplies it by n). Tokens are logged for
each step: ``step_tokens``, prompts included.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import PurePosixPath
from typing import Any

from isolaw.logs.frameworks.base import Fact, Framework
from isolaw.logs.plain_yaml import scalar

_OWN = (
    "val-core/",
    "val-aux/",
    "val/test_score/",
    "critic/score/",
    "critic/rewards/",
    "timing_per_token_ms/",
    "global_seqlen/",
    "actor/ppo_kl",
    "actor/pg_clipfrac",
)
_STATISTIC = re.compile(r"(mean|best|worst|maj)(?:@|_at_)(\d{1,7})(/mean)?")  # MLflow allows no @
_TRAINING = {
    "critic/score/mean": "reward",
    "critic/rewards/mean": "reward_with_kl",
    "actor/entropy": "entropy",
    "actor/entropy_loss": "entropy",
    "actor/kl_loss": "kl",  # to the reference model, as a loss or in the reward
    "actor/reward_kl_penalty": "kl",
    "critic/kl": "kl",
    "actor/ppo_kl": "ppo_kl",  # between the policies before and after the step
    "actor/grad_norm": "grad_norm",
    "response_length/mean": "response_length",
    "response_length/clip_ratio": "truncated_fraction",
    "perf/total_num_tokens": "step_tokens",
    "train/num_gen_batches": "num_gen_batches",
}
_NOT_KEPT = re.compile(
    r"(?:timing|perf|mfu|global_seqlen|prompt_length|num_turns|tool_call_counts|system)\w*/"
    r"|(?:actor|critic)/lr$|training/(?:global_step|epoch)$|.*/(?:max|min|std)$"
)


def metric(key: str) -> tuple[str, str] | None:
    """Return (eval_set, metric) of one of veRL's keys.

    >>> metric("val-core/openai/gsm8k/acc/mean@8"), metric("val-aux/aime24/acc/best@4/mean")
    (('openai/gsm8k', 'avg@8'), ('aime24', 'best@4'))
    >>> metric("val-core/kk_logic/reward/mean@1"), metric("val/test_score/logic")
    (('kk_logic', 'reward@1'), ('logic', 'test_score'))
    >>> metric("critic/score/mean"), metric("val-aux/aime24/acc/std@8"), metric("timing_s/gen")
    (('train', 'reward'), None, None)
    """
    if key in _TRAINING:
        return "train", _TRAINING[key]
    section, _, rest = key.partition("/")
    if section in ("val-core", "val-aux"):
        return _validation(rest)
    if section == "val":
        data = rest.removeprefix("test_score/")
        return (data, "test_score") if data not in ("", rest) else ("validation", rest)
    if not rest or _NOT_KEPT.match(key) or section.startswith("val_"):
        return None
    return "train", key


def _validation(rest: str) -> tuple[str, str] | None:
    """``<data>/<variable>/mean@8`` or ``<data>/<variable>/best@4/mean``; the data's name may hold slashes."""
    parts = rest.rsplit("/", 3 if rest.endswith("/mean") else 2)
    if len(parts) == 4:
        parts = [*parts[:2], f"{parts[2]}/{parts[3]}"]
    found = _STATISTIC.fullmatch(parts[-1])
    if len(parts) != 3 or not parts[0] or not found or (found[1] == "mean") == bool(found[3]):
        return None
    data, variable, _ = parts
    name = "avg" if found[1] == "mean" else found[1]
    if variable != "acc":
        name = variable if name == "avg" else f"{variable}_{name}"
    return data, f"{name}@{int(found[2])}"


def recognises(keys: Collection[str], config: Mapping[str, Any]) -> bool:
    """Return whether these metric keys, or this configuration, are veRL's or EasyR1's."""
    if any(key.startswith(_OWN) for key in keys):
        return True
    config = _dotted(config)
    return "actor_rollout_ref.rollout.n" in config or {"worker.rollout.n", "data.rollout_batch_size"} <= set(
        config
    )


def facts(config: Mapping[str, Any], config_source: str) -> dict[str, Fact]:
    """Return what veRL's, or EasyR1's, configuration says of the run."""
    return _Reader(_dotted(config), config_source).facts()


def _dotted(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """EasyR1's TensorBoard flattens with slashes, and so does MLflow, which holds texts only."""
    if not any("/" in key for key in config):
        return config
    return {
        key.replace("/", "."): scalar(value) if isinstance(value, str) else value
        for key, value in config.items()
    }


class _Reader:
    def __init__(self, config: Mapping[str, Any], source: str) -> None:
        self.config = config
        self.where = f" in {source}" if source else ""
        easy = "worker.rollout.n" in config or "data.rollout_batch_size" in config
        self.actor = "worker.actor" if easy else "actor_rollout_ref.actor"
        self.batch = "data.rollout_batch_size" if easy else "data.train_batch_size"
        self.mini = f"{self.actor}.{'global_batch_size' if easy else 'ppo_mini_batch_size'}"
        self.rollout = "worker.rollout" if easy else "actor_rollout_ref.rollout"

    def facts(self) -> dict[str, Fact]:
        out: dict[str, Fact | None] = {
            "rollouts_per_problem": self.count(f"{self.rollout}.n"),
            "problems_per_batch": self.problems_per_batch(),
            "on_policy": self.on_policy(),
            "seed": self.count("data.seed", least=0),
            "algorithm": self.text("algorithm.adv_estimator"),
            "problem_set": self.problem_set(),
            "lr": self.number(f"{self.actor}.optim.lr"),
            "kl": self.kl(),
            "entropy": self.number(f"{self.actor}.entropy_coeff"),
            "temperature": self.number(f"{self.rollout}.temperature"),
            "model": self.text("actor_rollout_ref.model.path") or self.text("worker.actor.model.model_path"),
        }
        return {name: fact for name, fact in out.items() if fact is not None}

    def problems_per_batch(self) -> Fact | None:
        trained = self.count(self.batch)
        if trained is None or self.config.get("algorithm.filter_groups.enable") is not True:
            return trained
        generated = self.count("data.gen_batch_size") or trained
        return Fact(
            generated.value,
            f"{generated.origin} (dynamic sampling: so many for each of num_gen_batches batches a step, of "
            f"which it trains on {trained.value}; compute counts one batch)",
        )

    def on_policy(self) -> Fact | None:
        for key in self.config:
            if key.startswith("async_training."):
                return Fact(False, f"{key}{self.where}: rollouts are generated while the policy is trained")
        hybrid = "actor_rollout_ref.hybrid_engine"
        if self.config.get(hybrid) is False:
            return Fact(
                False, f"{hybrid} = False{self.where}: rollouts are generated while the policy is trained"
            )
        batch, mini = self.count(self.batch), self.count(self.mini)
        if batch is None or mini is None:
            return None
        epochs = self.count(f"{self.actor}.ppo_epochs")
        passes = epochs.value if epochs else 1
        same = mini.value >= batch.value and passes == 1
        return Fact(
            same,
            f"{self.mini} = {mini.value}, {self.batch} = {batch.value}, "
            f"{self.actor}.ppo_epochs = {passes}{'' if epochs else ' (unless set)'}{self.where}",
        )

    def kl(self) -> Fact | None:
        """The coefficient that acts: in the loss, or in the reward; 0 where neither is on."""
        if self.config.get("algorithm.disable_kl") is True:
            return Fact(0.0, f"algorithm.disable_kl = True{self.where}")
        if "algorithm.kl_coef" in self.config:  # EasyR1: one coefficient for both
            return self.number("algorithm.kl_coef")
        in_loss, in_reward = f"{self.actor}.use_kl_loss", "algorithm.use_kl_in_reward"
        if self.config.get(in_loss) is True:
            return self.number(f"{self.actor}.kl_loss_coef")
        if self.config.get(in_reward, True) is True:  # the older versions have no such switch
            return self.number("algorithm.kl_ctrl.kl_coef")
        if in_loss in self.config:
            return Fact(0.0, f"{in_loss} and {in_reward} = False{self.where}")
        return None

    def problem_set(self) -> Fact | None:
        files = self.config.get("data.train_files")
        if isinstance(files, str):
            files = files.strip("[]").split(",") if files.startswith("[") else [files]
        if files is None:  # MLflow numbers a list
            files = [self.config.get(f"data.train_files.{i}") for i in range(20)]
            files = [file for file in files if file is not None]
        if not isinstance(files, list) or not files or not all(isinstance(file, str) for file in files):
            return None
        names = dict.fromkeys(_named(file.strip(" '\"")) for file in files)
        return Fact("+".join(names), f"data.train_files{self.where}") if all(names) else None

    def number(self, key: str) -> Fact | None:
        value = self.config.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        return Fact(value, f"{key}{self.where}")

    def count(self, key: str, least: int = 1) -> Fact | None:
        value = self.config.get(key)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**31:
            return None
        return Fact(value, f"{key}{self.where}")

    def text(self, key: str) -> Fact | None:
        value = self.config.get(key)
        return Fact(value, f"{key}{self.where}") if isinstance(value, str) and value else None


def _named(file: str) -> str:
    """A problem set's name from its file: the file's own, or its folder's.

    >>> [_named(f) for f in ("/data/gsm8k/train.parquet", "/data/dapo-17k.parquet", "org/math12k@train")]
    ['gsm8k', 'dapo-17k', 'org/math12k']
    """
    if "@" in file and not file.startswith(("/", ".", "~")):
        return file.partition("@")[0]
    path = PurePosixPath(file)
    return path.parent.name or path.stem if path.stem in ("train", "training", "data") else path.stem


FRAMEWORK = Framework("veRL", recognises, ("training/global_step",), metric, facts)
