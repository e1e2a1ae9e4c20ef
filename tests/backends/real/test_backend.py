"""The real backend as a user meets it: a sweep that learns, and everything that is refused before that."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from isolaw import engine
from isolaw.backends import real
from isolaw.backends.real import BACKEND, environment
from isolaw.backends.real.algorithms import lora
from isolaw.backends.real.options import RealOptions
from isolaw.config import Recipe, SweepSpec
from isolaw.errors import SpecError
from isolaw.store import SweepStore

# -- bad input --------------------------------------------------------------------------------------------

CONFIG = {
    "model_type": "llama", "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1,
    "num_attention_heads": 2, "vocab_size": 32, "max_position_embeddings": 32,
}  # fmt: skip
GOOD = [{"prompt": f"{i}+1=", "answer": i + 1} for i in range(8)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a problem set, and what passes for a model as long as nothing is loaded."""
    (tmp_path / "sums").mkdir()
    write(tmp_path / "sums" / "train.jsonl", GOOD)
    write(tmp_path / "sums" / "validation.jsonl", [{"prompt": f"{i}+2=", "answer": i + 2} for i in range(4)])
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "model" / "model.safetensors").write_bytes(b"\2" + bytes(7) + b"{}")  # of no tensor
    return tmp_path


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def refused(folder: Path, **more: dict[str, Any]) -> list[str]:
    """What a plan of a sweep of the folder's model and set complains of."""
    data: dict[str, dict[str, Any]] = {
        "sweep": {"backend": "real", "compute": 160, "seeds": [0]},
        "grid": {"problems_per_batch": [4], "rollouts_per_problem": [2]},
        "recipe": {"max_response_tokens": 6},
        "problems": {"set": str(folder / "sums")},
        "real": {"model": str(folder / "model")},
    }
    sections = {name: {**data.get(name, {}), **more.get(name, {})} for name in {**data, **more}}
    with pytest.raises(SpecError) as raised:
        engine.resolve_sweep(SweepSpec.parse(sections), folder / "out")
    assert not (folder / "out").exists()
    return [str(problem) for problem in raised.value.issues]


def test_problem_files(folder: Path) -> None:
    train, validation = (folder / "sums" / f"{part}.jsonl" for part in ("train", "validation"))
    write(train, [*GOOD[:3], {"prompt": "9+9="}, {"prompt": "", "answer": 1}])
    write(
        validation, [{"prompt": "7+7=", "answer": 14, "id": "a"}, {"prompt": "0+1=", "answer": 1, "id": "a"}]
    )
    told = refused(folder)
    assert [line.removeprefix(f"{folder}/sums/") for line in told] == [
        "train.jsonl:4: answer: found None; expected text or a number",
        "train.jsonl:5: prompt: found ''; expected text, or messages with a role and a content",
        "validation.jsonl:2: the same id 'a' as on line 1",
    ]
    write(validation, [{"prompt": " 0+1= ", "answer": 1}, {"prompt": "7+7=", "answer": 14}])
    write(train, GOOD)
    (told,) = refused(folder)
    assert told.startswith(f"{validation}: 1 of its problems also occur in training")
    train.write_text("")
    assert f"{train}: the file is empty; expected problems" in refused(folder)
    train.unlink()
    assert any("no train.jsonl or train.parquet" in line for line in refused(folder))


def test_everything_at_once(folder: Path) -> None:
    write(folder / "sums" / "train.jsonl", [{"prompt": "1+1=", "anwser": 2}])
    told = refused(
        folder,
        real={"model": str(folder / "modell"), "reward": "exakt"},
        recipe={"algorithm": "cispo", "clip_low": 0.1, "answer_tokens": 2},
        grid={"rollouts_per_problem": [1, 4]},
    )
    accepted = "expected exact, math, or package.module:function"
    wanted = [
        f"{folder / 'sums' / 'train.jsonl'}: no 'answer' anywhere",
        f"real.model: {folder / 'modell'}: no such folder",
        f"real.reward: found 'exakt'; {accepted} (did you mean 'exact'?)",
        "recipe.algorithm: with one update on each batch and recipe.staleness = 0, every ratio is 1",
        "recipe.clip_low: with one update on each batch and recipe.staleness = 0, every ratio is 1 and",
        "recipe.answer_tokens: nothing is interrupted",
        "grid.rollouts_per_problem: a group of one rollout has no advantage",
    ]
    assert all(any(line.startswith(start) for line in told) for start in wanted), told
    assert len(told) == len(set(told)) == len(wanted)
    told = refused(folder, real={"model": 3, "zero_stag": 1})
    assert {line.split(":")[0] for line in told[-2:]} == {"real.model", "real.zero_stag"}
    assert "no 'answer' anywhere" in told[0]


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        ("config.json", "the folder has no config.json"),
        (None, "max_position_embeddings is missing"),
    ],
)
def test_models(folder: Path, damage: str | None, told: str) -> None:
    if damage:
        (folder / "model" / damage).unlink()
    else:
        sizes = {key: value for key, value in CONFIG.items() if key != "max_position_embeddings"}
        (folder / "model" / "config.json").write_text(json.dumps(sizes))
    (line,) = refused(folder)
    assert line.startswith("real.model: ")
    assert told in line


def test_lora(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (line,) = refused(folder, recipe={"lora_rank": 0})
    assert line.startswith("recipe.lora_rank: found 0")
    installed = environment.installed
    monkeypatch.setattr(
        environment, "installed", lambda name: name == "accelerate" or (name != "peft" and installed(name))
    )
    (issue,) = lora.package_issues(Recipe(lora_rank=2))
    assert str(issue) == "recipe.lora_rank: needs peft; `pip install --no-deps peft` installs it"


@pytest.mark.parametrize(
    ("reward", "told"),
    [
        ("math-verify", "found 'math-verify'; expected exact, math, or package.module:function"),
        ("no.such.module:f", "no module 'no.such.module' in "),
    ],
)
def test_rewards(folder: Path, reward: str, told: str) -> None:
    (line,) = refused(folder, real={"reward": reward})
    assert line.startswith(f"real.reward: {told}")


def test_names_that_no_folder_can_have(folder: Path) -> None:
    (folder / "loop").symlink_to(folder / "loop")
    told = refused(folder, problems={"set": str(folder / "loop")}, real={"model": "m" * 5000})
    assert [line.split(": ")[:2] for line in told] == [
        ["problems.set", "not a folder's name"],
        ["real.model", "not a folder's name"],
    ]


def test_mini_batches_divide_the_problems(folder: Path) -> None:
    told = refused(folder, recipe={"minibatches": 3})
    assert [
        line for line in told if line.startswith("recipe.minibatches: found 3; expected a divisor of B_p")
    ]


def test_one_section_hides_nothing_of_the_others(folder: Path) -> None:
    told = refused(
        folder,
        real={"model": str(folder / "modell"), "reward": "exakt", "zero_stag": 1, "gpu_memory": 0.0},
        problems={"n_train": 9},
        evaluation={"sets": ["valid"]},
        recipe={"staleness": 20},
    )
    starts = ("real.zero_stag: ", "real.gpu_memory: ", "real.model: ", "real.reward: ", "recipe.staleness: ")
    for start in (*starts, "problems.n_train: found 9", "evaluation.sets: found 'valid'"):
        assert sum(line.startswith(start) for line in told) == 1, (start, told)
    assert any("fewer than the run's steps, M = 20 at n = 2" in line for line in told)
    assert len(told) == 7


def test_a_model_that_changes_is_checked_anew(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(real.environment, "installed", lambda name: True)
    characters = lambda texts: SimpleNamespace(input_ids=[list(range(len(text))) for text in texts])  # noqa: E731
    monkeypatch.setattr(real.models, "tokenizer", lambda model: characters)
    for context in (9, 10, 9):  # prompts of four characters, responses of six tokens
        changed = CONFIG | {"max_position_embeddings": context}
        (folder / "model" / "config.json").write_text(json.dumps(changed))
        if context == 9:
            told = refused(folder)
            assert len(told) == 2
            assert all("at most 3 (9 of context − 6 of response)" in line for line in told)
        else:
            (line,) = refused(folder, evaluation={"sets": ["valid"]})
            assert line.startswith("evaluation.sets: ")


@pytest.mark.real
@pytest.mark.parametrize("name", ["easy", "hard"])
def test_a_folders_name_decides_nothing(made, tmp_path: Path, name: str) -> None:
    shutil.copytree(made.sums, folder := tmp_path / name)
    sections: dict[str, dict[str, Any]] = {
        "sweep": {"backend": "real", "compute": 160, "seeds": [0]},
        "grid": {"problems_per_batch": [4], "rollouts_per_problem": [2, 4]},
        "recipe": {"max_response_tokens": 6},
        "problems": {"set": str(folder)},
        "real": {"model": str(made.model)},
    }
    plan = engine.resolve_sweep(SweepSpec.parse(sections), tmp_path / "out")
    assert {(run.recipe.kl, run.recipe.entropy) for run in plan.runs} == {(0.0, 0.0)}
    assert (plan.defaults["kl"], plan.defaults["entropy"], plan.defaults["lr"]) == ([0.0], [0.0], [1e-6])
    assert sum("problems.difficulty is not set" in note for note in plan.notes) == 1
    sections["problems"]["difficulty"] = "easy"
    plan = engine.resolve_sweep(SweepSpec.parse(sections), tmp_path / "out")
    assert {(run.recipe.kl, run.recipe.entropy) for run in plan.runs} == {(1e-3, 1e-3)}
    assert plan.notes == []


def test_processes_without_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(real.environment, "gpus", lambda: 0)
    monkeypatch.setattr(real.environment, "cores", lambda: 2)
    (problem,) = real._placement_issues(RealOptions(model="m", processes=3))
    assert str(problem) == "real.processes: found 3; expected at most one for each core (2)"


@pytest.mark.slow
def test_nothing_heavy_is_imported_to_refuse(folder: Path) -> None:
    (folder / "model" / "config.json").unlink()
    (folder / "sums" / "train.jsonl").write_text("{}\n")
    code = (
        "import sys; from isolaw.cli import run; code = run(sys.argv[1:]); "
        "print({'torch', 'vllm', 'deepspeed', 'transformers'} & set(sys.modules)); sys.exit(code)"
    )
    settings = {"sweep.backend": "real", "problems.set": folder / "sums", "real.model": folder / "model"}
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    command = [sys.executable, "-c", code, "sweep", "--out", str(folder / "out"), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout.splitlines()[-1] == "set()"
    assert "the folder has no config.json" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.real
def test_what_takes_the_tokenizer_to_see(made, sections: Callable[..., Any], tmp_path: Path) -> None:
    def told(**more: dict[str, Any]) -> list[str]:
        with pytest.raises(SpecError) as raised:
            engine.resolve_sweep(SweepSpec.parse(sections(**more)), tmp_path / "out")
        return [str(problem) for problem in raised.value.issues]

    lines = told(
        recipe={"max_response_tokens": 26},
        grid={"problems_per_batch": [65], "rollouts_per_problem": [2]},
        problems={"n_validation": 10_000},
        evaluation={"metrics": ["avg@4", "best@5", "maj@4"], "sets": ["validation", "valid"]},
    )
    wanted = {
        "easy/train: ": "tokens",
        "easy/validation: ": "tokens",
        "problems.n_validation: ": "found 10000; expected at most the ",
        "grid.problems_per_batch: ": "found 65; expected at most problems.n_train = 64",
        "evaluation.metrics: found 'best@5'": "k ≤ evaluation.samples = 4",
        "evaluation.metrics: found 'maj@4'": "avg@k",
        "evaluation.sets: found 'valid'": "did you mean 'validation'?",
    }
    for start, then in wanted.items():
        assert any(line.startswith(start) and then in line for line in lines), (start, lines)
    assert len(lines) == len(wanted)
    shutil.copytree(made.model, tmp_path / "mute")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "mute" / name).unlink()
    (line,) = told(real={"model": str(tmp_path / "mute")})
    assert "cannot load its tokenizer" in line


# -- identity ---------------------------------------------------------------------------------------------


@pytest.mark.real
def test_what_makes_a_run_the_same_run(resolved: Callable[..., Any], made, tmp_path: Path) -> None:
    first = resolved()
    elsewhere = tmp_path / "elsewhere" / "easy"
    shutil.copytree(made.easy, elsewhere)
    shutil.copytree(made.model, tmp_path / "model")
    same = [
        resolved(problems={"set": str(elsewhere)}, real={"model": str(tmp_path / "model")}),
        resolved(real={"zero_stage": 3, "micro_batch_tokens": 2, "processes": 2, "checkpoint_minutes": 1}),
        resolved(sweep={"compute": 320}),
        resolved(real={"generation": "async"}),
        resolved(recipe={"algorithm": "grpo", "lr": 2e-3, "top_p": 1.0, "aggregation": "sequence"}),
    ]
    assert {run.run_id for run in same} == {first.run_id}
    train = elsewhere / "train.jsonl"
    train.write_text(train.read_text() + '{"prompt": "0+0=", "answer": "0"}\n')
    config = tmp_path / "model" / "config.json"
    config.write_text(config.read_text().replace("silu", "gelu"))
    others = [
        resolved(problems={"set": str(elsewhere)}),
        resolved(real={"model": str(tmp_path / "model")}),
        resolved(real={"sampler": "vllm"}),
        resolved(real={"dtype": "bfloat16"}),
        resolved(recipe={"temperature": 0.6}),
        resolved(problems={"n_train": 63}),
        resolved(sweep={"seeds": [1]}),
        resolved(recipe={"staleness": 1}),
        resolved(recipe={"staleness": 1}, real={"generation": "async"}),
    ]
    assert len({run.run_id for run in [first, *others]}) == 10
    # Terms by difficulty or by hand are the same terms.
    open_ = {"kl": None, "entropy": None}
    easy = resolved(problems={"difficulty": "easy"}, recipe=open_)
    assert easy.run_id == resolved(recipe={"kl": 1e-3, "entropy": 1e-3}).run_id != first.run_id
    assert resolved(problems={"difficulty": "hard"}, recipe=open_).run_id == first.run_id
    assert str(tmp_path) not in json.dumps(first.identity())


@pytest.mark.real
def test_how_many_runs_a_machine_makes_at_a_time(resolved: Callable[..., Any], monkeypatch) -> None:
    one, two = resolved(), resolved(real={"processes": 2})
    monkeypatch.setattr(environment, "gpus", lambda: 8)
    assert (BACKEND.jobs(one), BACKEND.jobs(two)) == (8, 4)
    monkeypatch.setattr(environment, "gpus", lambda: 1)
    assert BACKEND.jobs(two) == 1
    monkeypatch.setattr(environment, "gpus", lambda: 0)
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert (BACKEND.jobs(one), BACKEND.jobs(two)) == (6, 3)


@pytest.mark.real
def test_samplers_of_their_own_need_cores_or_gpus(resolved: Callable[..., Any], monkeypatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    run = resolved(real={"generation": "async"}, recipe={"staleness": 1})
    needs = BACKEND.needs(run)
    assert (needs.cpus, needs.gpus, needs.processes, BACKEND.jobs(run)) == (2, 0, 1, 3)

    def told(recipe: dict[str, Any] | None = None, **options: Any) -> list[str]:
        more = {"sources": {**run.sources, **options}, "recipe": run.recipe.model_copy(update=recipe or {})}
        return list(map(str, BACKEND.check(run.model_copy(update=more))))

    several = run.model_copy(update={"sources": {**run.sources, "processes": 4, "samplers": 2}})
    needs = BACKEND.needs(several)
    assert (needs.cpus, needs.gpus, needs.processes, BACKEND.jobs(several)) == (6, 0, 2, 1)
    assert told(processes=2) == []
    (line,) = told(samplers=7)
    assert line == "real.samplers: found 7; expected at most one for each core (6)"
    plain = resolved(real={"generation": "async", "samplers": 2})
    colocated = plain.model_copy(update={"sources": {**plain.sources, "generation": "colocated"}})
    (line,) = map(str, BACKEND.check(colocated))
    assert line.startswith(
        "real.samplers: colocated processes do their own sampling; found 2; expected none, or"
    )
    (line,) = told({"top_p": 0.9, "importance_sampling": "none", "importance_cap": None})
    assert line.startswith("recipe.top_p: the recorded log-probabilities")
    fresh = {"staleness": 0, "clip_low": None, "clip_high": None}
    assert told({"top_p": 0.9, "importance_sampling": "none", "importance_cap": None, **fresh}) == []
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    (line,) = told()
    assert line.startswith("real.generation: the sampler needs a separate core; found 'async'; expected ")
    monkeypatch.setattr(environment, "gpus", lambda: 8)
    assert told() == told(processes=6, samplers=2) == []
    assert (BACKEND.needs(several).gpus, BACKEND.jobs(run), BACKEND.jobs(several)) == (6, 4, 1)
    (line,) = told(processes=6, samplers=3)
    assert line.endswith("found 3; expected at most 2 of the 8 GPUs with real.processes = 6")
    (line,) = told(processes=8)
    assert line.endswith("found 8; expected at most 7 of the 8 GPUs, and the others sample")
    monkeypatch.setattr(environment, "gpus", lambda: 1)
    (line,) = told()
    assert line.startswith("real.generation: the sampler needs a separate GPU; found 'async'; expected ")


# -- sweeps -----------------------------------------------------------------------------------------------

LEARNS: dict[str, dict[str, Any]] = {
    "sweep": {"compute": 8_192},
    "grid": {"problems_per_batch": [32]},
    "recipe": {"lr": 1.5e-3, "warmup_steps": 10},
    "problems": {"n_train": None, "n_validation": None},
    "evaluation": {"points": 7, "start": 128, "end": 8_192},
    "real": {"sampler": "vllm"},
}


@pytest.fixture(scope="module")
def learned(
    made, sections: Callable[..., Any], sweep_file, preloaded: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A sweep of one run from the command line, in processes of its own."""
    folder = tmp_path_factory.mktemp("learned")
    problems = {**LEARNS["problems"], "set": str(made.sums)}
    data = sections(**{**LEARNS, "problems": problems, "executor": {"kind": "processes"}})
    sweep_file(folder / "sweep.toml", data)
    words = [preloaded / "isolaw", "sweep", folder / "sweep.toml", "--out", folder / "out", "--jobs", "1"]
    subprocess.run(words, check=True, capture_output=True, timeout=600)
    return folder / "out"


@pytest.mark.real
@pytest.mark.slow
def test_a_sweep_learns(learned: Path) -> None:
    table = pd.read_parquet(learned / "points.parquet")
    held_out = table[(table.eval_set == "validation") & (table.metric == "avg@4")].set_index("step")["value"]
    assert held_out.index.min() == 0
    assert held_out.index.max() == 64
    assert held_out.iloc[-1] - held_out.loc[0] >= 0.15
    assert table["wall_s"].max() < 240
    training = table[table.eval_set == "train"].pivot_table(index="step", columns="metric", values="value")
    assert len(training) == len(held_out) - 1
    assert training["mismatch_max"].max() <= 1e-4
    assert training["reward"].iloc[-1] > training["reward"].loc[:8].mean() + 0.15
    assert engine.status(learned)["done"] == 1


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.nightly  # in train/test_ppo.py an update is that of plain loops, and a run continues
def test_ppo_learns(train, made) -> None:
    problems = {**LEARNS["problems"], "set": str(made.sums)}
    recipe = {**LEARNS["recipe"], "algorithm": "ppo"}
    curve = train(**{**LEARNS, "problems": problems, "recipe": recipe})
    assert curve["avg@4"][64] - curve["avg@4"][0] >= 0.15
    explained = curve["train", "explained_variance"]
    assert explained[64] > 0.005 > abs(explained[1])  # rewards are rare, and noisy


@pytest.mark.real
@pytest.mark.slow
def test_states_are_as_large_as_planned(
    learned: Path, made, sections: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = SweepSpec.parse(sections(sweep={"seeds": 3}))
    planned = engine.resolve_sweep(spec, tmp_path / "out")
    assert not any("GiB" in note for note in planned.notes)
    run = SweepStore(learned).run(SweepStore(learned).run_ids()[0])
    state = run.states.folder(run.states.steps()[0])
    written = sum(path.stat().st_size for path in state.rglob("*") if path.is_file())
    assert written == pytest.approx(BACKEND.needs(planned.runs[0]).disk_bytes, rel=0.05)
    needed = len(planned.runs) * BACKEND.needs(planned.runs[0]).disk_bytes
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=needed - 1))
    (note,) = (note for note in engine.resolve_sweep(spec, tmp_path / "out").notes if "GiB" in note)
    assert note.startswith(f"the disk may become full: the states of {len(planned.runs)} runs take")


@pytest.mark.real
@pytest.mark.slow
def test_results_of_single_problems_are_those_of_the_metrics(learned: Path, made) -> None:
    runs = SweepStore(learned).collect()
    problems = pd.read_parquet(learned / "problems.parquet")
    table = runs.to_pandas()
    known = {json.loads(line)["id"] for line in (made.sums / "validation.jsonl").open()}
    for step, rows in problems.groupby("step"):
        assert set(rows["problem_id"]) == known
        assert set(rows["samples"]) == {4}
        row = table[(table.step == step) & (table.eval_set == "validation")].set_index("metric")["value"]
        assert row["avg@4"] == pytest.approx((rows["correct"] / 4).mean())
        assert row["best@4"] == pytest.approx((rows["correct"] > 0).mean())
        assert row["worst@4"] == pytest.approx((rows["correct"] == 4).mean())


@pytest.mark.nightly
@pytest.mark.real
@pytest.mark.slow
def test_the_same_seed_gives_the_same_curve_also_in_a_process_that_made_other_runs(
    learned: Path, made, sections: Callable[..., Any], same, tmp_path: Path
) -> None:
    # Another run first: what it leaves in vLLM and DeepSpeed must not matter.
    problems = {**LEARNS["problems"], "set": str(made.sums)}
    engine.sweep(sections(recipe={"lr": 5e-2}), tmp_path / "other")
    again = engine.sweep(sections(**{**LEARNS, "sweep": {"compute": 2_048}, "problems": problems}))
    first = pd.read_parquet(learned / "points.parquet").query("step <= 16").reset_index(drop=True)
    assert first["step"].max() == 16
    same(again, first)


@pytest.mark.nightly
@pytest.mark.real
@pytest.mark.slow
def test_a_process_in_which_vllm_was_first(
    made, sections: Callable[..., Any], preloaded: Path, same, tmp_path: Path
) -> None:
    """As where problems were split before: the process group is vLLM's then."""
    code = (
        "import json, sys\nfrom isolaw import engine\n"
        "from isolaw.backends.real.rollout.sampler_group import open_sampler\n"
        "from isolaw.backends.real.rollout.samplers import SamplerSettings\n"
        "open_sampler(SamplerSettings('vllm', sys.argv[1], 'float32', 32))\n"
        "engine.sweep(json.loads(sys.argv[2]), sys.argv[3])"
    )
    data = sections(real={"sampler": "vllm"})
    words = [preloaded / "python", "-c", code, str(made.model), json.dumps(data), str(tmp_path / "out")]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    same(pd.read_parquet(tmp_path / "out" / "points.parquet"), engine.sweep(data))


@pytest.mark.real
@pytest.mark.slow
def test_an_extended_run_equals_a_longer_one(sections: Callable[..., Any], same, tmp_path: Path) -> None:
    def sweep(name: str, compute: int) -> pd.DataFrame:
        more = {"sweep": {"compute": compute}, "evaluation": {"points": 3, "start": 32, "end": 160}}
        return engine.sweep(sections(**more), tmp_path / name).to_pandas()

    sweep("extended", 160)
    extended, at_once = sweep("extended", 480), sweep("at once", 480)
    assert extended["step"].max() == at_once["step"].max() == 15
    same(extended, at_once)


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "told"),
    [
        pytest.param(
            "return None", "it returned None; expected a finite number", marks=pytest.mark.nightly
        ),  # tests/backends/real/rollout/test_rewards.py has all
        ("if '9' in prompt: raise ValueError('a nine')\nreturn 0.0", "it raised ValueError: a nine"),
    ],
    ids=["none", "raises"],
)
def test_a_reward_that_fails_names_the_problem(
    sections: Callable[..., Any], reward, tmp_path: Path, body: str, told: str
) -> None:
    named = reward(body)
    spec = SweepSpec.parse(sections(real={"sampler": "transformers", **named}))
    events = list(engine.execute(engine.resolve_sweep(spec, tmp_path / "out"), tmp_path / "out"))
    assert events[-1].kind == "failed"
    (path,) = (tmp_path / "out").glob("runs/*/FAILED.json")
    cause = json.loads(path.read_text())["cause"]
    assert cause.startswith(f"reward {named['reward']}, problem '")
    assert cause.endswith(told)
