"""Define adapters: settings of a framework under which one step is B_p · n rollouts and one update.

An `Adapter` maps the framework's settings to texts with the placeholders of `template.values_of`.
docs/trainers.md describes each adapter for users, and tests/backends/command/test_adapters.py shows that the
framework's parser accepts its settings.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

VERSION = 2  # version of all adapters, part of a run's identity; increase it if the training changes


@dataclass(frozen=True)
class Adapter:
    """The settings of a framework; ``{…}`` are placeholders.

    Every run gets the settings in ``always``. A new run also gets ``fresh``, and a run that continues from a
    checkpoint also gets ``resumed``. Settings in ``defaults`` apply only if the command does not set them and
    their placeholders have values. ``recipe`` maps recipe keys to settings; a run gets these settings if the
    sweep file sets the key. A setting with the value ``None`` is a flag. ``required_element`` is a list
    setting and the element that isolaw needs in it; the command can name others.

    ``refused_values`` maps settings to the values (a regular expression) with which a step is no longer B_p ·
    n rollouts and one update, and the reason. ``conflicts`` maps a recipe key to the setting and the values
    of it under which the framework reads the key's setting differently, and the reason.
    """

    style: str  # "key=value" or "--key value"
    always: Mapping[str, str | None]
    recipe: Mapping[str, tuple[str, ...]]
    defaults: Mapping[str, str | None] = field(default_factory=dict)
    fresh: Mapping[str, str | None] = field(default_factory=dict)
    resumed: Mapping[str, str | None] = field(default_factory=dict)
    required_element: tuple[str, str] | None = None
    refused_values: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    conflicts: Mapping[str, tuple[str, str, str]] = field(default_factory=dict)
    minimums: Mapping[str, tuple[float, str]] = field(default_factory=dict)  # of recipe keys, and why
    log: str = "output"
    checkpoints: str = ""
    reader: str = ""  # name of the reader of its logs, if it differs from the framework's name

    def settings(
        self, resumes: bool, values: Iterable[str], in_command: Mapping[str, str]
    ) -> dict[str, str | None]:
        """Return the settings of a run, with placeholders.

        ``values`` lists the placeholders that have values, and ``in_command`` the settings in the command.
        """
        placeholders = {f"{{{name}}}" for name in values}
        recipe = {name: f"{{{key}}}" for key in values for name in self.recipe.get(key, ())}
        defaults = {
            name: value
            for name, value in self.defaults.items()
            if plain_name(name) not in in_command and {*re.findall(r"\{\w+\}", value or "")} <= placeholders
        }
        lists = {}
        if self.required_element:
            name, element = self.required_element
            elements = re.findall(r"[\w.-]+", in_command.get(plain_name(name), "console"))
            lists[name] = f"[{','.join(dict.fromkeys([*elements, element]))}]"
        always = {**self.always, **(self.resumed if resumes else self.fresh)}
        return {**always, **defaults, **lists, **recipe}

    def settings_in(self, words: Sequence[str]) -> dict[str, str]:
        """Return the settings that the command sets itself, by `plain_name`, with their values.

        >>> ADAPTERS["TRL"].settings_in(["train.py", "--max-steps=9", "--bf16", "true", "--log"])
        {'max_steps': '9', 'bf16': 'true', 'log': ''}
        >>> ADAPTERS["veRL"].settings_in(["+data.seed=1"])
        {'data.seed': '1'}
        """
        pattern = r"\+*([\w.]+)=(.*)" if self.style == "key=value" else r"--([\w.-]+)(?:=(.*))?"
        settings = {}
        for i, word in enumerate(words):
            if match := re.fullmatch(pattern, word, re.S):
                next_word = words[i + 1] if i + 1 < len(words) else "--"
                settings[plain_name(match[1])] = match[2] or ("" if next_word.startswith("--") else next_word)
        return settings

    def words(self, settings: Mapping[str, str | None]) -> list[str]:
        """Return settings as command-line words.

        >>> ADAPTERS["veRL"].words({"trainer.nnodes": "1"}), ADAPTERS["TRL"].words({"seed": "0"})
        (['trainer.nnodes=1'], ['--seed', '0'])
        """
        if self.style == "key=value":
            return [f"{name}={value}" for name, value in settings.items()]
        pairs = ([f"--{name}"] if value is None else [f"--{name}", value] for name, value in settings.items())
        return [word for pair in pairs for word in pair]


def plain_name(name: str) -> str:
    """Return a setting's name without its spelling: parsers of options accept ``-`` for ``_``."""
    return name.lstrip("+").replace("-", "_")


_ON_VALUES = "(?i)(?!false$|0$|null$|none$).*"  # values that switch a setting on
_DISCARDS_GROUPS = "it discards groups, whose rollouts C would not count"
_SEVERAL_UPDATES = "a step would not be one update on B_p · n rollouts"
_TRAINER_ALWAYS: dict[str, str | None] = {  # settings of Hugging Face's Trainer
    "num_generations": "{n}",
    "per_device_train_batch_size": "{micro_batch}",
    "gradient_accumulation_steps": "{accumulation}",
    "num_iterations": "1",
    "max_steps": "{steps}",
    "seed": "{seed}",
    "output_dir": "{out}",
    "logging_steps": "1",
}
_TRAINER_DEFAULTS: dict[str, str | None] = {
    "lr_scheduler_type": "constant_with_warmup",
    "save_strategy": "steps",
    "save_steps": "{every}",
    "eval_steps": "{every}",
    "save_total_limit": "2",
    "num_generations_eval": "2",  # the default n would have to divide the evaluation batch
}
_EPSILON_IS_CAP = "there epsilon_high is the cap of the weight, not 1 + ε: pass it in command.run"
_NOT_CLIPPED = "this loss does not clip the ratio"
_TRAINER_UNLIKE = {
    "clip_high": ("loss_type", "cispo", _EPSILON_IS_CAP),
    "clip_low": ("loss_type", "cispo|sapo|vespo|real", _NOT_CLIPPED),
}
_TRAINER_REFUSED = dict.fromkeys(("steps_per_generation", "generation_batch_size"), (".*", _SEVERAL_UPDATES))
_TRAINER_RECIPE = {
    "lr": ("learning_rate",),
    "warmup_steps": ("warmup_steps",),
    "weight_decay": ("weight_decay",),
    "max_grad_norm": ("max_grad_norm",),
    "kl": ("beta",),
    "clip_low": ("epsilon",),
    "clip_high": ("epsilon_high",),
    "temperature": ("temperature",),
    "top_p": ("top_p",),
    "max_response_tokens": ("max_completion_length",),
}

_SKYRL_CISPO = ("trainer.algorithm.policy_loss_type", "cispo", "this loss reads trainer.algorithm.cispo")

ADAPTERS: dict[str, Adapter] = {
    "veRL": Adapter(
        "key=value",
        always={
            "data.train_batch_size": "{B_p}",
            "actor_rollout_ref.rollout.n": "{n}",
            "actor_rollout_ref.actor.ppo_mini_batch_size": "{B_p}",
            "actor_rollout_ref.actor.ppo_epochs": "1",
            "trainer.total_training_steps": "{steps}",
            "trainer.total_epochs": "{steps}",
            "data.seed": "{seed}",
            "actor_rollout_ref.actor.data_loader_seed": "{seed}",
            "actor_rollout_ref.rollout.seed": "{seed}",
            "trainer.default_local_dir": "{out}",
            # The actor that writes the log gets it from Ray, not from this process. The name includes the
            # step, because veRL's file logger truncates an existing file when it starts.
            "+ray_kwargs.ray_init.runtime_env.env_vars.VERL_FILE_LOGGER_PATH": "{out}/metrics-{done}.jsonl",
        },
        defaults={
            "trainer.save_freq": "{every}",
            "trainer.test_freq": "{every}",
            "trainer.max_actor_ckpt_to_keep": "2",
            "trainer.max_critic_ckpt_to_keep": "2",
            "trainer.nnodes": "{nodes}",
            "trainer.n_gpus_per_node": "{gpus_per_node}",
        },
        required_element=("trainer.logger", "file"),
        refused_values={
            "algorithm.filter_groups.enable": (_ON_VALUES, _DISCARDS_GROUPS),
            "trainer.v1.trainer_mode": ("separate_async", "it makes parameter_sync_step updates a step"),
        },
        conflicts=dict.fromkeys(
            ("clip_low", "clip_high"),
            (
                "actor_rollout_ref.actor.policy_loss.loss_mode",
                "dppo_.*|sapo|gpg|kl_cov|dro|bypass_mode",
                "this loss does not clip the ratio to [1 - ε, 1 + ε]",
            ),
        ),
        fresh={"trainer.resume_mode": "disable"},
        resumed={"trainer.resume_mode": "resume_path", "trainer.resume_from_path": "{resume}"},
        recipe={
            "lr": ("actor_rollout_ref.actor.optim.lr",),
            "warmup_steps": ("actor_rollout_ref.actor.optim.lr_warmup_steps",),
            "weight_decay": ("actor_rollout_ref.actor.optim.weight_decay",),
            "max_grad_norm": ("actor_rollout_ref.actor.optim.clip_grad",),
            "entropy": ("actor_rollout_ref.actor.entropy_coeff",),
            "clip_low": ("actor_rollout_ref.actor.clip_ratio_low",),
            "clip_high": ("actor_rollout_ref.actor.clip_ratio_high",),
            "temperature": ("actor_rollout_ref.rollout.temperature",),
            "top_p": ("actor_rollout_ref.rollout.top_p",),
            "max_response_tokens": ("data.max_response_length",),
        },
        log="{out}/metrics-*.jsonl",
        checkpoints="{out}/global_step_{step}/data.pt",
    ),
    "TRL": Adapter(
        "--key value",
        always=_TRAINER_ALWAYS,
        defaults=_TRAINER_DEFAULTS,
        resumed={"resume_from_checkpoint": "{resume}"},
        recipe=_TRAINER_RECIPE,
        refused_values=_TRAINER_REFUSED,
        conflicts=_TRAINER_UNLIKE,
        log="{out}/checkpoint-*/trainer_state.json",
        checkpoints="{out}/checkpoint-{step}/trainer_state.json",
    ),
    "OpenRLHF": Adapter(
        "--key value",
        always={
            "rollout.batch_size": "{B_p}",
            "rollout.n_samples_per_prompt": "{n}",
            "train.batch_size": "{B}",
            "train.max_epochs": "1",
            "train.num_episodes": "{steps}",
            "train.seed": "{seed}",
            "ckpt.path": "{out}/checkpoints",
            "ckpt.output_dir": "{out}/model",
            "logger.logging_steps": "1",
        },
        defaults={
            "actor.lr_scheduler": "constant",
            "eval.steps": "{every}",
            "ckpt.save_steps": "{every}",
            "ckpt.max_num": "2",
        },
        refused_values={"algo.dynamic_filtering_enable": (_ON_VALUES, _DISCARDS_GROUPS)},
        resumed={"ckpt.load_enable": None},
        recipe={
            "lr": ("actor.adam.lr",),
            "weight_decay": ("actor.adam.weight_decay",),
            "max_grad_norm": ("actor.max_norm",),
            "kl": ("algo.kl.init_coef",),
            "entropy": ("actor.entropy_coef",),
            "temperature": ("rollout.temperature",),
            "top_p": ("rollout.top_p",),
            "max_response_tokens": ("rollout.max_new_tokens",),
        },
        checkpoints="{out}/checkpoints/_actor/global_step{step}",
    ),
    "SkyRL": Adapter(
        "key=value",
        always={
            "trainer.train_batch_size": "{B_p}",
            "trainer.policy_mini_batch_size": "{B_p}",
            "trainer.update_epochs_per_batch": "1",
            "generator.n_samples_per_prompt": "{n}",
            "trainer.max_training_steps": "{steps}",
            "trainer.epochs": "{steps}",
            "trainer.seed": "{seed}",
            "trainer.ckpt_path": "{out}/checkpoints",
            "trainer.export_path": "{out}/exports",
            "trainer.logger": "console",
        },
        defaults={
            "trainer.eval_interval": "{every}",
            "trainer.ckpt_interval": "{every}",
            "trainer.max_ckpts_to_keep": "2",
        },
        refused_values={"trainer.algorithm.dynamic_sampling.type": (_ON_VALUES, _DISCARDS_GROUPS)},
        conflicts=dict.fromkeys(("clip_low", "clip_high"), _SKYRL_CISPO),
        fresh={"trainer.resume_mode": "none"},
        resumed={"trainer.resume_mode": "from_path", "trainer.resume_path": "{resume}"},
        recipe={
            "lr": ("trainer.policy.optimizer_config.lr",),
            "warmup_steps": ("trainer.policy.optimizer_config.num_warmup_steps",),
            "weight_decay": ("trainer.policy.optimizer_config.weight_decay",),
            "max_grad_norm": ("trainer.policy.optimizer_config.max_grad_norm",),
            "clip_low": ("trainer.algorithm.eps_clip_low",),
            "clip_high": ("trainer.algorithm.eps_clip_high",),
            "temperature": ("generator.sampling_params.temperature",),
            "top_p": ("generator.sampling_params.top_p",),
            "max_response_tokens": ("generator.sampling_params.max_generate_length",),
        },
        checkpoints="{out}/checkpoints/global_step_{step}/trainer_state.pt",
    ),
    "ms-swift": Adapter(
        "--key value",
        always=_TRAINER_ALWAYS | {"add_version": "false"},
        defaults=_TRAINER_DEFAULTS,
        resumed={"resume_from_checkpoint": "{resume}"},
        recipe=_TRAINER_RECIPE,
        refused_values=_TRAINER_REFUSED | {"dynamic_sample": (_ON_VALUES, _DISCARDS_GROUPS)},
        conflicts=_TRAINER_UNLIKE,
        log="{out}/logging.jsonl",
        checkpoints="{out}/checkpoint-{step}/trainer_state.json",
        reader="TRL",
    ),
    "prime-rl": Adapter(
        "--key value",
        always={
            "orchestrator.batch-size": "{B}",
            "orchestrator.group-size": "{n}",
            "max-steps": "{steps}",
            "output-dir": "{out}",
            "run.name": "run",
        },
        defaults={
            "ckpt.interval": "{every}",
            "ckpt.keep-last": "2",
            "orchestrator.max-off-policy-steps": "1",
        },
        minimums={
            "staleness": (1, "at 0, prime-rl drops rollouts that a new policy overtakes, mostly long ones")
        },
        resumed={"resume.step": "{done}"},
        recipe={
            "lr": ("trainer.optim.lr",),
            "weight_decay": ("trainer.optim.weight-decay",),
            "max_grad_norm": ("trainer.optim.max-norm",),
            "staleness": ("orchestrator.max-off-policy-steps",),
            "temperature": ("orchestrator.train.sampling.temperature",),
            "max_response_tokens": ("orchestrator.train.sampling.max-completion-tokens",),
        },
        log="{out}/run/**/metrics.jsonl",
        checkpoints="{out}/run/checkpoints/step_{step}/trainer",
    ),
}


def trainer_overrides(
    framework: str, problems_per_batch: int, rollouts_per_problem: int, steps: int
) -> list[str]:
    """Return the settings of an allocation as words of the trainer's command line; empty without an adapter.

    Trainers that count rollouts per GPU (TRL) get n and M, since the rest depends on the number of GPUs.
    OpenRLHF gets no M: it counts episodes, which are passes over the prompts.

    >>> trainer_overrides("veRL", 128, 12, 300)[:2]
    ['data.train_batch_size=128', 'actor_rollout_ref.rollout.n=12']
    >>> trainer_overrides("TRL", 128, 12, 300), trainer_overrides("mine", 128, 12, 300)
    (['--num_generations', '12', '--max_steps', '300'], [])
    """
    if (adapter := ADAPTERS.get(framework)) is None:
        return []
    values = {
        "{B_p}": problems_per_batch, "{n}": rollouts_per_problem, "{steps}": steps,
        "{B}": problems_per_batch * rollouts_per_problem,
    }  # fmt: skip
    settings = {name: str(values[text]) for name, text in adapter.always.items() if text in values}
    passes = [name for name in settings if re.search("epoch|episode", name)]  # only limits on M
    return adapter.words({name: value for name, value in settings.items() if name not in passes})
