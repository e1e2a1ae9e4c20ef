"""Adapters: what they say of a run, what they refuse, and what the frameworks' own parsers make of it."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import pytest
from packaging.utils import canonicalize_name

from isolaw import engine
from isolaw.backends.command import BACKEND, template
from isolaw.backends.command.adapters import ADAPTERS
from isolaw.backends.command.options import CommandOptions
from isolaw.config import Recipe, RunSpec, SweepSpec
from isolaw.errors import SpecError
from tests.backends.keys import KEYS

CHECKED_VERSIONS = {
    "veRL": "0.9.1",
    "TRL": "1.16.0",
    "OpenRLHF": "0.11.2",
    "SkyRL": "0.3.0",
    "ms-swift": "4.6.0",
    "prime-rl": "0.4.0",
}
TRAINERS = Path(sys.prefix) / "trainers"  # make trainers
ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs/trainers.md"
WORDLE = ["@", str(ROOT / "examples/prime-rl-wordle.toml")]
BEGIN, END = "<!-- settings -->", "<!-- /settings -->"
RECIPE = {"lr": 3e-6, "temperature": 0.7, "max_response_tokens": 99}


def resolved(recipe: dict[str, Any] | None = None, b: int = 12, n: int = 8, **command: Any) -> RunSpec:
    sweep = SweepSpec.parse(
        {
            "sweep": {"backend": "command", "compute": b * n * 50},
            "grid": {"problems_per_batch": [b], "rollouts_per_problem": [n]},
            "recipe": recipe or {},
            "evaluation": {"points": 5},
            "command": {"run": f"{sys.executable} train.py", **command},
        }
    )
    run = RunSpec(
        backend="command",
        problems_per_batch=b,
        rollouts_per_problem=n,
        seed=7,
        recipe=sweep.recipe,
        problems=sweep.problems,
        options=sweep.command,
        compute=sweep.sweep.compute,
        evaluation=sweep.evaluation.model_copy(update={"start": b * n, "end": sweep.sweep.compute}),
    )
    spec = BACKEND.resolve(run)
    if issues := BACKEND.check(spec):
        raise SpecError(issues)
    return spec


def command(spec: RunSpec, checkpoint: str = "", done: int = 0) -> template.Invocation:
    options = CommandOptions.of(spec)
    return template.command_of(options, template.values_of(spec, options, "/out", checkpoint, done))


def settings(spec: RunSpec, checkpoint: str = "", done: int = 0) -> list[str]:
    return list(command(spec, checkpoint, done).words[2:])


_TRAINER = {  # of Hugging Face's Trainer
    "num_generations": 8,
    "gradient_accumulation_steps": 12,
    "per_device_train_batch_size": 8,
    "num_iterations": 1,
    "max_steps": 50,
    "save_steps": 10,
    "save_total_limit": 2,
    "seed": 7,
    "learning_rate": 3e-6,
    "temperature": 0.7,
    "max_completion_length": 99,
    "output_dir": "/out",
}
# What the parser has to have understood: names of the framework, with values of the run.
UNDERSTOOD: dict[str, dict[str, Any]] = {
    "veRL": {
        "data.train_batch_size": 12,
        "actor_rollout_ref.actor.ppo_mini_batch_size": 12,
        "actor_rollout_ref.actor.ppo_epochs": 1,
        "actor_rollout_ref.rollout.n": 8,
        "trainer.total_training_steps": 50,
        "trainer.save_freq": 10,
        "data.seed": 7,
        "actor_rollout_ref.actor.optim.lr": 3e-6,
        "actor_rollout_ref.actor.optim.lr_scheduler_type": "constant",
        "actor_rollout_ref.rollout.temperature": 0.7,
        "data.max_response_length": 99,
        "trainer.default_local_dir": "/out",
        "trainer.resume_mode": "disable",
        "trainer.logger": ["console", "file"],
        "trainer.max_actor_ckpt_to_keep": 2,
        "trainer.max_critic_ckpt_to_keep": 2,
        "trainer.nnodes": 1,
        # What Ray gives to the actor that writes the log.
        "ray_kwargs.ray_init.runtime_env.env_vars.VERL_FILE_LOGGER_PATH": "/out/metrics-0.jsonl",
    },
    "TRL": _TRAINER
    | {"generation_batch_size": 96, "steps_per_generation": 12, "resume_from_checkpoint": None},
    "OpenRLHF": {
        "rollout.batch_size": 12,
        "rollout.n_samples_per_prompt": 8,
        "train.batch_size": 96,
        "train.max_epochs": 1,
        "train.seed": 7,
        "ckpt.save_steps": 10,
        "ckpt.max_num": 2,
        "actor.adam.lr": 3e-6,
        "actor.lr_scheduler": "constant",
        "rollout.temperature": 0.7,
        "rollout.max_new_tokens": 99,
        "ckpt.load_enable": False,
    },
    "SkyRL": {
        "trainer.train_batch_size": 12,
        "trainer.policy_mini_batch_size": 12,
        "trainer.update_epochs_per_batch": 1,
        "generator.n_samples_per_prompt": 8,
        "trainer.max_training_steps": 50,
        "trainer.ckpt_interval": 10,
        "trainer.max_ckpts_to_keep": 2,
        "trainer.seed": 7,
        "trainer.policy.optimizer_config.lr": 3e-6,
        "trainer.policy.optimizer_config.scheduler": "constant_with_warmup",
        "generator.sampling_params.temperature": 0.7,
        "generator.sampling_params.max_generate_length": 99,
        "trainer.resume_mode": "none",
    },
    "ms-swift": _TRAINER
    | {"add_version": False, "steps_per_generation": None, "generation_batch_size": None},
    "prime-rl": {
        "orchestrator.batch_size": 96,
        "orchestrator.group_size": 8,
        "max_steps": 50,
        "ckpt.interval": 10,
        "ckpt.keep_last": 2,
        "output_dir": "/out",
        "run.name": "run",
        "orchestrator.max_off_policy_steps": 1,
        "trainer.optim.lr": 3e-6,
        "trainer.scheduler.type": "constant",
        "orchestrator.train.sampling.temperature": 0.7,
        "orchestrator.train.sampling.max_completion_tokens": 99,
        "resume": None,
    },
}
RESUMED: dict[str, dict[str, Any]] = {
    "veRL": {"trainer.resume_mode": "resume_path", "trainer.resume_from_path": "/out/global_step_20"},
    "TRL": {"resume_from_checkpoint": "/out/global_step_20"},
    "OpenRLHF": {"ckpt.load_enable": True},
    "SkyRL": {"trainer.resume_mode": "from_path", "trainer.resume_path": "/out/global_step_20"},
    "ms-swift": {"resume_from_checkpoint": "/out/global_step_20"},
    "prime-rl": {"resume.step": 20},
}


def understood(framework: str, *commands: list[str]) -> list[Callable[[str], Any]]:
    """Return what the framework's parser makes of the words of each command, by name."""
    places = [str(TRAINERS / name) for name in (("trl",) if framework == "TRL" else ("parsers", "trl"))]
    if not Path(places[0]).is_dir():
        pytest.skip("needs the frameworks' parsers (make trainers)")
    places += map(str, (ROOT / "tests/data").glob("*.whl"))
    versions = {
        canonicalize_name(distribution.name): distribution.version
        for distribution in distributions(path=places)
    }
    assert (
        versions["prime-rl-configs" if framework == "prime-rl" else framework.lower()]
        == CHECKED_VERSIONS[framework]
    )
    script = str(Path(__file__).with_name("parsers.py"))
    done = subprocess.run(
        [sys.executable, script, framework, json.dumps(commands)],
        env={"PYTHONPATH": os.pathsep.join(places), "HOME": os.environ["HOME"]},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return [functools.partial(value, known) for known in json.loads(done.stdout[done.stdout.index("[{") :])]


def value(known: dict[str, Any], name: str) -> Any:
    return known[name] if name in known else functools.reduce(dict.__getitem__, name.split("."), known)


@pytest.mark.real  # the parsers are installed with it
@pytest.mark.slow
@pytest.mark.parametrize(
    "framework",
    [  # They take long to import.
        pytest.param(name, marks=[pytest.mark.nightly] * (name not in ("veRL", "OpenRLHF")))
        for name in CHECKED_VERSIONS
    ],
)
def test_the_frameworks_own_parser_understands(
    framework: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Started afresh, from a checkpoint, and as the shipped sweep files say, read by one process."""
    spec = resolved(RECIPE | {"lr_scaling": "constant"}, framework=framework)
    (tmp_path / "uv").write_text("#!/bin/sh\n")
    (tmp_path / "uv").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr("isolaw.backends.command.visible_gpus", lambda: list("01234567"))
    monkeypatch.chdir(ROOT)
    own = {"TRL": ["--bf16", "false"], "prime-rl": WORDLE}.get(framework, [])  # TRL: no GPU
    words = [[*own, *settings(spec, *done)] for done in ((), ("/out/global_step_20", 20))]
    shipped = SHIPPED.get(framework, lambda _: [])(tmp_path / "out")
    fresh, resumed, *known = understood(framework, *words, *(composed for composed, _ in shipped))
    assert {name: fresh(name) for name in UNDERSTOOD[framework]} == UNDERSTOOD[framework]
    assert {name: resumed(name) for name in RESUMED[framework]} == RESUMED[framework]
    for (_, check), one in zip(shipped, known, strict=True):
        check(one)


Shipped = list[tuple[list[str], Callable[[Callable[[str], Any]], None]]]


def two_machines(framework: str, out: Path) -> Shipped:
    """A shipped sweep file's run, as it starts with two machines; OpenRLHF as the file of veRL says."""
    name = "trl-slurm.toml" if framework == "TRL" else "verl-slurm.toml"
    changed = ['command.run=["python3", "-m", "openrlhf.cli.train_ppo_ray", "--actor.num_nodes", "{nodes}"]']
    changed = ['command.framework="openrlhf"', *changed] if framework == "OpenRLHF" else []
    run = engine.resolve_sweep(SweepSpec.read(ROOT / "examples/cluster" / name, changed), out).runs[0]
    options = CommandOptions.of(run)
    values = template.values_of(run, options, "/out", nodes=["a", "b"], address="10.0.0.1")
    words = list(template.command_of(options, values).words)
    if framework == "TRL":
        assert "--num_machines=2 --num_processes=16 --machine_rank=$SLURM_NODEID" in " ".join(words)
        assert "--main_process_ip=10.0.0.1" in " ".join(words)
        words = ["--bf16", "false", *words[words.index("--num_generations") :]]  # TRL's own; no GPU
    else:
        words = words[words.index("-m") + 2 :]

    def check(known: Callable[[str], Any]) -> None:
        rollouts = run.problems_per_batch * run.rollouts_per_problem
        if framework == "veRL":
            assert (known("trainer.nnodes"), known("trainer.n_gpus_per_node")) == (2, 8)
            assert known("trainer.logger") == ["console", "file"]
        elif framework == "OpenRLHF":
            assert (known("actor.num_nodes"), known("train.batch_size")) == (2, rollouts)
        else:
            each = known("per_device_train_batch_size") * known("gradient_accumulation_steps")
            assert each * 16 == rollouts

    return [(words, check)]


def several_turns(out: Path) -> Shipped:
    """The runs of the shipped sweep of a task of several turns, by a dry run."""

    def checked(run: RunSpec) -> Callable[[Callable[[str], Any]], None]:
        def check(known: Callable[[str], Any]) -> None:
            assert known("orchestrator.batch_size") == 32 * run.rollouts_per_problem
            assert known("orchestrator.group_size") == run.rollouts_per_problem
            assert known("max_steps") == run.steps
            (source,) = known("orchestrator.train.source")
            assert source["env"]["taskset"]["game"] == "Wordle-v0"
            assert source["sampling"]["max_completion_tokens"] == 512

        return check

    runs = engine.resolve_sweep(SweepSpec.read("examples/prime-rl.toml"), out).runs
    commands = [command(run).words for run in runs]
    assert {words[:4] for words in commands} == {("uv", "run", "rl", "@")}
    return [(list(words[3:]), checked(run)) for run, words in zip(runs, commands, strict=True)]


SHIPPED: dict[str, Callable[[Path], Shipped]] = {
    **{name: functools.partial(two_machines, name) for name in ("veRL", "OpenRLHF", "TRL")},
    "prime-rl": several_turns,
}


def table() -> str:
    """Return what the adapters set, as a table of the documentation."""
    lines = ["| framework | version | keys of `[recipe]` |", "|---|---|---|"]
    for name, adapter in ADAPTERS.items():
        keys = ", ".join(f"`{key}`" for key in adapter.recipe)
        lines.append(f"| {name} | {CHECKED_VERSIONS.get(name, '')} | {keys} |")
    return "\n".join(lines)


def test_the_table_of_the_documentation_is_that_of_the_code() -> None:
    """Executed, this file writes it."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    found, _, after = rest.partition(END)
    expected = f"\n\n{table()}\n\n"
    if __name__ == "__main__":
        PAGE.write_text(before + BEGIN + expected + END + after)
    else:
        assert found == expected


@pytest.mark.parametrize("framework", ADAPTERS)
def test_every_setting_has_a_value(framework: str) -> None:
    adapter = ADAPTERS[framework]
    spec = resolved(RECIPE, framework=framework)
    said = command(spec, "/out/step-20", 20)
    assert not any("{" in word for word in said.words)
    assert not any("{" in value for value in said.environment.values())
    names = adapter.settings(True, [], {})
    assert len({*names}) == len(names)
    assert "{n}" in adapter.always.values()


def test_the_settings_follow_the_command_or_stand_where_it_says() -> None:
    assert settings(resolved(framework="trl"))[:2] == ["--num_generations", "8"]
    line = f"{sys.executable} train.py {{settings}} --last"
    assert settings(resolved(framework="trl", run=line))[-1] == "--last"
    words = command(resolved(framework="trl", run="exec train {settings}; true", shell=True)).words
    assert words[:2] == ("/bin/sh", "-c")
    assert words[2].startswith("exec train --num_generations 8 ")
    assert words[2].endswith("; true")
    # A command that passes n on itself says it all.
    assert settings(resolved(framework="trl", run=f"{sys.executable} train.py {{n}}")) == ["8"]


def test_a_setting_of_the_commands_own_stays() -> None:
    line = f"{sys.executable} train.py --save_steps 3"
    words = settings(resolved(framework="trl", run=line))
    assert words.count("--save_steps") == 1


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"run": f"{sys.executable} train.py --num_generations=4"}, "isolaw sets num_generations"),
        ({"run": f"{sys.executable} train.py --num-generations 4"}, "isolaw sets num_generations"),
        ({"run": f"{sys.executable} train.py --steps_per_generation 4"}, "leave out steps_per_generation"),
        (
            {"recipe": {"clip_high": 0.2}, "run": f"{sys.executable} train.py --loss_type cispo"},
            "epsilon_high is the cap of the weight, not 1 + ε",
        ),
        ({"recipe": {"algorithm": "cispo"}}, "no TRL option for this key; pass {algorithm} in command.run"),
        ({"recipe": {"lr_scaling": "constant"}}, "the trainer's own lr applies to every batch"),
        (
            {"framework": "verl", "run": f"{sys.executable} x trainer.v1.trainer_mode=separate_async"},
            "parameter_sync_step updates a step",
        ),
        (
            {"framework": "verl", "run": f"{sys.executable} x algorithm.filter_groups.enable=True"},
            "it discards groups",
        ),
        (
            {
                "framework": "skyrl",
                "run": f"{sys.executable} x trainer.algorithm.policy_loss_type=cispo",
                "recipe": {"clip_low": 0.1},
            },
            "this loss reads trainer.algorithm.cispo",
        ),
        ({"framework": "prime-rl", "recipe": {"staleness": 0}}, "drops rollouts"),
        ({"framework": "trl", "evaluation_set": "aime"}, "name their evaluation sets"),
        ({"recipe": {"staleness": 3}}, "no TRL option for this key; pass {staleness} in command.run"),
        ({"recipe": {"minibatches": 2}}, "no TRL option for this key; pass {minibatches} in"),
        ({"run": f"{sys.executable} x{{settings}}"}, "{settings}"),
        ({"gpus": 7}, "B_p = 12, n = 8: 96 rollouts on 7 devices"),
        ({"micro_batch": 7}, "96 rollouts on 1 device, in passes of 7"),
        ({"framework": "tlr"}, "TRL"),
    ],
)
def test_what_cannot_be_said_is_refused(more: dict[str, Any], message: str, monkeypatch: Any) -> None:
    monkeypatch.setattr("isolaw.backends.command.visible_gpus", lambda: list("01234567"))
    with pytest.raises(SpecError) as caught:
        resolved(**{"framework": "trl", **more})
    assert message in str(caught.value)


def test_a_tracker_of_the_users_own_stays() -> None:
    line = f"{sys.executable} train.py trainer.logger=['console','wandb'] trainer.project_name=mine"
    assert "trainer.logger=[console,wandb,file]" in settings(resolved(framework="verl", run=line))


@pytest.mark.parametrize("framework", ["none", *ADAPTERS])
def test_every_key_of_the_recipe_reaches_the_trainer_or_is_named(framework: str) -> None:
    """Otherwise a sweep over this key would compare equal trainings under different names."""
    spec, lost = resolved(framework=framework), []
    options = CommandOptions.of(spec)
    for key, values in KEYS.items():
        composed, named = [], []
        for value in values:
            run = spec.model_copy(update={"recipe": Recipe(**{"lr": 1e-6, key: value})})
            issues, notes = template.issues_of(run, options), template.unused(run, options)
            named.append(
                any(f"recipe.{key}" in str(one).split() for one in [*notes, *issues])
                or any(one.where == f"recipe.{key}" for one in issues)
            )
            invocation = command(run)
            # A framework reads no variable of isolaw's; a script in none gets the scaled lr as one.
            composed.append((invocation.words, framework == "none" and invocation.environment["ISOLAW_LR"]))
        if composed[0] == composed[1] and not any(named):
            lost.append(key)
    assert {*KEYS} == {*Recipe.model_fields}
    assert not lost


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"recipe": {"kl": 0.1}}, "recipe.kl as ISOLAW_KL"),
        ({"recipe": {"kl": 0.1}, "run": f"{sys.executable} t {{n}} --kl {{kl}}"}, ""),
        ({"micro_batch": 4}, "command.micro_batch"),
        ({"micro_batch": 4, "framework": "trl"}, ""),
    ],
)
def test_keys_that_the_command_does_not_get_are_noted(more: dict[str, Any], said: str) -> None:
    spec = resolved(**more)
    notes = " ".join(template.unused(spec, CommandOptions.of(spec)))
    assert (said in notes) if said else not notes


def test_every_key_of_the_section_is_used() -> None:
    code = "".join(path.read_text() for path in (ROOT / "isolaw/backends/command").glob("*.py"))
    assert [
        key for key in CommandOptions.model_fields if not re.search(rf"(options|self)\.{key}\b", code)
    ] == []


def test_another_version_of_the_tables_is_another_run(monkeypatch: pytest.MonkeyPatch) -> None:
    before = resolved(framework="trl").run_id
    monkeypatch.setattr("isolaw.backends.command.adapters.VERSION", 1)
    assert resolved(framework="trl").run_id != before
    assert resolved(framework="trl", run=f"{sys.executable} train.py {{n}}").content == {}


if __name__ == "__main__":
    test_the_table_of_the_documentation_is_that_of_the_code()
