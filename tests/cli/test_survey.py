"""``isolaw read`` on mixed folders: one table, everything that is sound, and what the rest needs."""

from __future__ import annotations

import json
import math
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from isolaw.readers.frameworks import FRAMEWORKS

Call = Callable[..., tuple[int, str, str]]
LOGS = Path(__file__).parents[2] / "examples" / "logs"
ONE_OF_EACH = (
    *(
        "easyr1/n8-seed0",
        "verl-console/n8-seed0",
        "trl/n8-seed0",
        "tensorboard/n32-seed0",
        "skyrl/n8-seed0.log",
    ),
    *("skyrl/n8-seed0.yaml", "slime/n8-seed0.log", "prime-rl/n8-seed0", "wandb-export/wandb_export.csv"),
    "openrlhf/wandb/offline-run-20260101_000000-n8seed0",
    "open-instruct/wandb/offline-run-20260101_000000-n8seed0",
    "nemo-rl/mlruns/1/716ddd529121aedb3e93309f0e1d614a",
)


def curve(n: int, seed: int, steps: int = 40) -> list[dict[str, float]]:
    """Rewards that rise with the rollouts."""
    out = []
    for step in range(1, steps + 1):
        value = 0.6 - 0.3 * math.exp(-step * n / 400) + 0.01 * math.sin(7 * step + 3 * seed + n)
        out.append({"critic/score/mean": value - 0.1, "val-core/math/acc/mean@4": value})
    return out


def verl(path: Path, n: int, seed: int, config: bool = True, steps: int = 40) -> Path:
    path.mkdir(parents=True)
    rows = [{"step": s, "data": row} for s, row in enumerate(curve(n, seed, steps), 1)]
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if config:
        own = {"data": {"train_batch_size": 32, "seed": seed}, "actor_rollout_ref": {"rollout": {"n": n}}}
        (path / "config.json").write_text(json.dumps(own))
    return path


def zoo(folder: Path) -> Path:
    """Sound runs, and one of everything else that folders hold."""
    for n in (8, 32, 128):
        for seed in (0, 1):
            verl(folder / f"verl/n{n}-s{seed}", n, seed)
    for name in ONE_OF_EACH:
        source, target = LOGS / name, folder / "others" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target)
        else:
            shutil.copy(source, target)
    # Two logs of one run: the console of a run whose metrics are there, too.
    lines = [
        f"step:{step} - " + " - ".join(f"{key}:{value:.4f}" for key, value in row.items())
        for step, row in enumerate(curve(8, 0), 1)
    ]
    (folder / "verl" / "console-of-n8-s0.log").write_text("\n".join(lines) + "\n")
    sft = [{"loss": 2.0 - s / 100, "learning_rate": 1e-5, "epoch": s / 50, "step": s} for s in range(1, 40)]
    (folder / "sft").mkdir()
    (folder / "sft" / "trainer_state.json").write_text(json.dumps({"global_step": 39, "log_history": sft}))
    (folder / "sft" / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in sft))
    empty = folder / "wandb" / "run-20260101_000000-abcd1234"
    (empty / "files").mkdir(parents=True)
    (empty / "run-abcd1234.wandb").write_bytes(b"")
    (folder / "empty.wandb").write_bytes(b"")
    (folder / "killed.log").write_text(
        "Checkpoint tracker file does not exist: /m/latest_checkpointed_iteration.txt\n"
        "Training from scratch\nTraining Progress:   0%|          | 0/9 [00:00<?, ?it/s]\n"
        "CUDA out of memory\n"
    )
    tinker = [{"step": s, "env/all/reward/total": 0.3 + s / 100, "env/all/correct": 0.3} for s in range(9)]
    (folder / "tinker").mkdir()
    (folder / "tinker" / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in tinker))
    own = {"model_name": "m", "dataset_builder": {"groups_per_batch": 32, "group_size": 8}}
    (folder / "tinker" / "config.json").write_text(json.dumps(own))
    consoles = {
        "nanochat": "Step {s}/9 | Average reward: 0.{s} | Average sequence length: 207.5\n",
        "torchforge": "=== [GlobalReduce] - METRICS STEP {s} ===\n"
        "  reward/evaluate_response/avg_total_reward: 0.{s}\n===\n",
    }
    for name, text in consoles.items():
        (folder / f"{name}.log").write_text("".join(text.format(s=s) for s in range(1, 9)))
    names = {  # of frameworks without an example in examples/logs
        "areal": ("ppo_actor/task_reward/avg", "eval-rollout/reward"),
        "art": ("train/reward", "train/exception_rate"),
        "mlx-lm": ("train_total_rewards_mean", "train_kl"),
        "roll": ("critic/score/mean", "val_correct/all/mean"),
    }
    for name, keys in names.items():
        rows = [{"step": s, **{key: 0.2 + s / 99 + k / 7 for k, key in enumerate(keys)}} for s in range(1, 9)]
        (folder / name).mkdir()
        (folder / name / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "stray.json").write_text('{"accuracy": 0.3}')
    (folder / "damaged.wandb").write_bytes(b":W&B" + b"\x00" * 3 + b"\xff" * 60)
    return folder


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return zoo(tmp_path_factory.mktemp("mixed") / "runs")


def listed(isolaw: Call, *arguments: object) -> tuple[int, dict[str, dict[str, Any]]]:
    code, out, err = isolaw("read", *arguments, "--json")
    assert out, err
    return code, {run["run"]: run for run in json.loads(out)["runs"]}


def test_everything_is_in_one_table(isolaw: Call, mixed: Path) -> None:
    code, runs = listed(isolaw, mixed)
    assert code == 3
    status = {Path(name).name: run["status"] for name, run in runs.items()}
    assert {
        name: status[name] for name in status if name.startswith("n") and "-s" in name and "seed" not in name
    } == {f"n{n}-s{seed}": "ready" for n in (8, 32, 128) for seed in (0, 1)}
    expected = {"sft": "no_history", "killed.log": "no_history", "empty.wandb": "no_history"}
    expected |= {"run-20260101_000000-abcd1234": "no_history", "console-of-n8-s0": "duplicate"}
    assert {name: status.get(name) for name in expected} == expected
    duplicate = runs[f"{mixed}/verl/console-of-n8-s0"]
    assert duplicate["duplicate_of"] == f"{mixed}/verl/n8-s0"
    assert runs[f"{mixed}/killed.log"]["framework"] == "veRL"
    frameworks = {run["framework"] for run in runs.values()}
    assert frameworks >= {*FRAMEWORKS} - {"isolaw"}  # a sweep is read as one
    code, out, err = isolaw("read", mixed)
    assert code == 3
    lines = out.splitlines()
    assert lines[1].split() == ["run", "framework", "B_p", "n", "seed", "steps", "C", "metrics", "status"]
    ready = sum(run["status"] == "ready" for run in runs.values())
    assert lines[-1].startswith(f"{ready} of {len(runs)} logs are ready: isolaw fit {mixed}; ")
    assert "no history" in lines[-1]
    assert "files found are not logs" in err
    for name in runs:
        assert sum(line.startswith(name.removeprefix(f"{mixed}/") + " ") for line in lines) >= 1, name


def test_files_that_are_no_logs_are_named(isolaw: Call, mixed: Path, tmp_path: Path) -> None:
    verl(tmp_path / "run", 8, 0)
    for i in range(2):
        (tmp_path / f"tokens{i}.json").write_text("{}")
    _, _, err = isolaw("read", tmp_path)  # few, and so named where they are counted
    names = [str(tmp_path / name) for name in ("run/config.json", "tokens0.json", "tokens1.json")]
    assert f"3 of the files found are not logs ({', '.join(names)})" in err
    (tmp_path / "tokens2.json").write_text("{}")
    _, _, err = isolaw("read", tmp_path)
    assert "4 of the files found are not logs (4 .json)" in err
    every = [*names, str(tmp_path / "tokens2.json")]
    assert json.loads(isolaw("read", tmp_path, "--json")[1])["no_logs"] == every
    _, _, err = isolaw("read", tmp_path, "--verbose")
    assert err.splitlines()[-4:] == [f"  {name}" for name in every]


def test_the_largest_sound_group_is_fitted(isolaw: Call, mixed: Path) -> None:
    code, out, err = isolaw("fit", mixed, "--draws", 0, "--json")
    assert code == 0, err
    law = json.loads(out)
    assert (law["metric"], law["eval_set"]) == ("avg@4", "math")
    assert "left out" in err
    assert " no history" in err
    assert "framework TRL" in err
    assert err.count("n and B_p unknown") <= 2  # not once for each run
    assert "is not known for every run" not in err  # of runs that are left out


def test_only(isolaw: Call, mixed: Path) -> None:
    code, runs = listed(isolaw, mixed, "--only", "*/verl/*", "--only", "!console-*")
    assert (code, len(runs)) == (0, 6)
    more = ("--only", "!*-s1", "--only", "!*/console-of*")
    code, runs = listed(isolaw, mixed, "--only", "*/verl/*", *more)
    assert {Path(run).name for run in runs} == {"n8-s0", "n32-s0", "n128-s0"}
    code, _, err = isolaw("fit", mixed, "--only", "*/verl/n*", "--draws", 0)
    assert code == 0, err
    assert "left out" not in err
    code, _, err = isolaw("read", mixed, "--only", "nothing*")
    assert code == 2
    assert "no log matches" in err


def test_names_carry_what_the_logs_lack(isolaw: Call, tmp_path: Path) -> None:
    for n in (8, 32, 128):
        for seed in (21, 22):
            verl(tmp_path / "runs" / f"GRPO-s{seed}-p32-n{n}-m32-ga4", n, seed, config=False)
    code, out, err = isolaw("read", tmp_path / "runs")
    assert (code, err.count("--set")) == (2, 0)
    (settles,) = (line for line in out.splitlines() if line.startswith("To read these logs: "))
    pattern = "*-s{seed}-p{B_p}-n{n}*"
    assert settles == f"To read these logs: isolaw read {tmp_path}/runs --name-pattern '{pattern}' --save"
    assert out.count("n and B_p unknown") == 1
    assert out.splitlines()[-1] == "0 of 6 logs are ready; 6 need n, B_p"
    code, out, err = isolaw("read", tmp_path / "runs", "--name-pattern", "*-p{B_p}-n{n}-*")
    assert code == 2
    assert "2 runs of one configuration and seed" in out
    (settles,) = (line for line in out.splitlines() if line.startswith("To read these logs: "))
    assert settles.endswith("--name-pattern '*-s{seed}*' --save")
    both = ("--name-pattern", pattern)
    code, runs = listed(isolaw, tmp_path / "runs", *both)
    assert code == 0
    facts = {
        (run["facts"]["seed"]["value"], run["facts"]["rollouts_per_problem"]["value"])
        for run in runs.values()
    }
    assert facts == {(seed, n) for seed in (21, 22) for n in (8, 32, 128)}
    assert {run["facts"]["seed"]["origin"] for run in runs.values()} == {"--name-pattern"}
    assert isolaw("fit", tmp_path / "runs", *both, "--draws", 0)[0] == 0
    code, _, err = isolaw("read", tmp_path / "runs", "--name-pattern", "x{n}")
    assert code == 2
    assert "--name-pattern 'x{n}': no run matches it" in err


def test_all_that_is_needed_is_asked_for_in_one_round(isolaw: Call, tmp_path: Path) -> None:
    """The command that isolaw prints, its numbers filled in, settles everything."""
    for i, n in enumerate((8, 32)):
        verl(tmp_path / "runs" / f"run-{'xy'[i]}", n, 0, config=False)
    verl(tmp_path / "runs" / "known", 128, 0)
    code, out, _ = isolaw("read", tmp_path / "runs")
    assert code == 3
    (settles,) = (line for line in out.splitlines() if line.startswith("To read these logs: "))
    for run in ("run-x", "run-y"):
        assert f"'{run}:n=<number>'" in settles
        assert f"'{run}:B_p=<number>'" in settles  # not for the run that knows it
    words = shlex.split(
        settles.partition(": ")[2].replace("run-y:n=<number>", "run-y:n=8").replace("<number>", "16")
    )
    code, runs = listed(isolaw, *words[2:])
    assert code == 0
    assert [item["facts"]["problems_per_batch"]["value"] for item in runs.values()].count(32) == 1


@pytest.mark.parametrize(
    ("x", "runs", "frameworks", "more"),
    [
        ("train/global_step", ("qwen-n8", "qwen-n32"), "OpenRLHF or TRL", []),
        ("Step", ("trl-n8", "trl-n32"), "isolaw or NeMo-RL or OpenRLHF or ART or TRL", ["logging_steps"]),
    ],
    ids=["names of two", "names of five"],
)
def test_a_panel_that_several_frameworks_may_have_written(
    isolaw: Call, tmp_path: Path, x: str, runs: tuple[str, ...], frameworks: str, more: list[str]
) -> None:
    """A W&B panel of ``train/reward``, a column each run: the framework is asked, then what it lacks."""
    header = ",".join(f'"{name}"' for name in (x, *(f"{run} - train/reward" for run in runs)))
    path = tmp_path / "panel.csv"
    path.write_text("".join(f"{line}\n" for line in (header, *(f"{s},0.{s},0.{s}5" for s in range(1, 9)))))
    filled: list[object] = [path]
    for wanted in ([], ["--set", "framework=TRL"]):
        filled += wanted
        code, out, _ = isolaw("read", *filled)
        assert code == 2
        assert wanted or f"are names of {frameworks}\n" in out
        (settles,) = (line for line in out.splitlines() if line.startswith("To read these logs: "))
        words = shlex.split(settles.partition(": ")[2])
        asked = words[2 + len(filled) :]
        pattern = ["--name-pattern", "*-n{n}*"]
        values = [f"{name}=<number>" for name in ("B_p", *more)] if wanted else ["framework=<name>"]
        expected = [word for value in values for word in ("--set", value)]
        assert [word for word in asked if word not in pattern] == [*expected, "--save"]
    filled = [word.replace("<number>", "16") for word in words[2:]]
    code, found = listed(isolaw, *filled)
    assert (tmp_path / "isolaw.toml").exists()
    assert (code, [result["framework"] for result in found.values()]) == (0, ["TRL", "TRL"])


def test_what_one_log_needs_is_said_in_two_lines(isolaw: Call, tmp_path: Path) -> None:
    verl(tmp_path / "run", 8, 0, config=False)
    code, _, err = isolaw("fit", tmp_path)
    assert code == 2
    assert err.splitlines()[-1] == "  Add --set 'n=<number>' --set 'B_p=<number>'"


def test_a_command_with_many_settings_is_cut_and_says_so(isolaw: Call, tmp_path: Path) -> None:
    for i in range(15):
        rows = [json.dumps({"step": step, "reward": (step + i) / 100}) for step in (1, 2, 3)]
        (tmp_path / f"run-{'abcdefghijklmno'[i]}.jsonl").write_text("\n".join(rows))
    lines = isolaw("read", tmp_path)[1].splitlines()
    (command,) = (line for line in lines if "--set" in line)
    words = shlex.split(command)
    assert words.count("--set") == 12
    assert words[-2:] == ["--metric", "reward"]
    assert "  4 more runs need the same; a name pattern reads values from names." in lines


def test_a_folder_whose_runs_lack_the_same_is_one_option(isolaw: Call, tmp_path: Path) -> None:
    for n in (8, 32):
        verl(tmp_path / "runs" / "a" / f"n{n}-seed0", n, 0, config=False)
        verl(tmp_path / "runs" / "b" / f"n{n}-seed1", n, 1)
    _, out, _ = isolaw("read", tmp_path / "runs")
    (settles,) = (line for line in out.splitlines() if line.startswith("To read these logs: "))
    assert settles.count("--set") == 1
    assert f"--set '{tmp_path}/runs/a/*:B_p=<number>'" in settles
    words = shlex.split(settles.partition(": ")[2].replace("<number>", "32"))
    code, runs = listed(isolaw, *words[2:])
    assert (code, len(runs)) == (0, 4)


def test_a_mix_marks_only_the_runs_concerned(isolaw: Call, tmp_path: Path) -> None:
    for n in (8, 32, 128):
        verl(tmp_path / f"n{n}", n, 0)
    for name in ("again-1", "again-2"):
        verl(tmp_path / name, 8, 7 + (name == "again-2"))
        config = json.loads((tmp_path / name / "config.json").read_text())
        config["data"]["seed"] = 7
        (tmp_path / name / "config.json").write_text(json.dumps(config))
    percent = verl(tmp_path / "percent", 64, 0) / "metrics.jsonl"
    rows = [json.loads(line) for line in percent.read_text().splitlines()]
    for row in rows:
        row["data"]["val-core/math/acc/mean@4"] *= 100
    percent.write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, runs = listed(isolaw, tmp_path)
    assert code == 3
    needs = {Path(name).name: run["needs"] for name, run in runs.items() if run["status"] == "needs"}
    assert needs == {"again-1": ["seed"], "again-2": ["seed"], "percent": ["percent"]}
    assert sum(run["status"] == "ready" for run in runs.values()) == 3
    code, out, _ = isolaw("read", tmp_path)
    assert "--set 'again-2:seed=<number>'" in out
    assert "percent=<true|false>" in out
    assert isolaw("fit", tmp_path, "--draws", 0)[0] == 0


def test_what_a_run_of_other_problems_lacks_concerns_no_other(isolaw: Call, tmp_path: Path) -> None:
    """Runs of two problem sets are not fitted together: one without an lr takes none from the others."""
    for n, problems, lr in ((8, "math", 1e-6), (32, "math", 1e-6), (8, "code", None)):
        path = verl(tmp_path / f"{problems}-n{n}", n, 0)
        config = json.loads((path / "config.json").read_text())
        config["data"]["train_files"] = f"/data/{problems}/train.parquet"
        if lr:
            config["actor_rollout_ref"]["actor"] = {"optim": {"lr": lr}}
        (path / "config.json").write_text(json.dumps(config))
    _, runs = listed(isolaw, tmp_path)
    assert {Path(name).name: "lr" in run["facts"] for name, run in runs.items()} == {
        "math-n8": True, "math-n32": True, "code-n8": False,
    }  # fmt: skip


def test_a_missing_package_blocks_nothing_else(
    isolaw: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verl(tmp_path / "run", 8, 0)
    shutil.copytree(LOGS / "tensorboard" / "n8-seed0", tmp_path / "events")
    monkeypatch.setitem(__import__("sys").modules, "tensorboard.compat.proto.event_pb2", None)
    code, runs = listed(isolaw, tmp_path)
    assert code == 3
    assert sorted(run["status"] for run in runs.values()) == ["not_installed", "ready"]


def test_python_reads_what_is_ready_and_warns(mixed: Path) -> None:
    import isolaw

    with pytest.warns(UserWarning, match="left out"):
        runs = isolaw.read(mixed / "verl", mixed / "sft")
    assert len(runs) == 6
    assert {group.status.value for group in runs.left_out} == {"no_history", "duplicate"}
    assert len(isolaw.read(mixed, only=["*/verl/n*", "!*-s1"])) == 3
    with pytest.raises(isolaw.errors.DataError, match="it logs no reward, only loss, learning_rate, epoch"):
        isolaw.read(mixed / "sft" / "trainer_state.json")


def test_many_runs_are_a_table_and_few_are_shown_in_full(isolaw: Call, tmp_path: Path) -> None:
    for n in (8, 32, 128, 512):
        verl(tmp_path / f"n{n}", n, 0)
    origin = "actor_rollout_ref.rollout.n in config.json"
    assert origin not in isolaw("read", tmp_path)[1]
    assert isolaw("read", tmp_path, "--verbose")[1].count(origin) == 4
    assert isolaw("read", tmp_path / "n8")[1].count(origin) == 1
