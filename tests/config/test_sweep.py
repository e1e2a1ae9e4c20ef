"""Specs: identity, the evaluation schedule, and messages that name everything that is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from isolaw import backends, engine
from isolaw.config import EvaluationSpec, RunSpec, SweepSpec
from isolaw.documents.seal import canonical_json
from isolaw.errors import InputError, SpecError
from isolaw.simulators.interference import PRESETS

# Identity

NAME, PRESET = next(iter(PRESETS.items()))


def resolved(**changes: Any) -> RunSpec:
    base: dict[str, Any] = {
        "backend": "bandit",
        "problems_per_batch": 32,
        "rollouts_per_problem": 8,
        "compute": 100_000,
    }
    return backends.get("bandit").resolve(RunSpec.model_validate(base | changes))


def shuffled(value: Any, random: Random) -> Any:
    if not isinstance(value, dict):
        return value
    keys = list(value)
    random.shuffle(keys)
    return {key: shuffled(value[key], random) for key in keys}


SWEEP = {
    "sweep": {"compute": 30_000, "seeds": [0, 3]},
    "grid": {"problems_per_batch": [16], "rollouts_per_problem": [8, 16], "lr": [0.01, 0.02]},
    "recipe": {"kl": 0.1, "lr_scaling": "linear"},
    "bandit": {"parameters": {"kappa": 0.5, "sigma2": 100.0}},
}


def ids(data: dict[str, Any], out: Path) -> list[str]:
    return [run.run_id for run in engine.resolve_sweep(SweepSpec.parse(data), out).runs]


@given(st.randoms(use_true_random=False))
def test_identity_does_not_depend_on_key_order(random: Random) -> None:
    run = resolved(recipe={"kl": 0.1, "lr": 0.3}, options={"parameters": {"kappa": 0.5, "sigma2": 9.0}})
    other = RunSpec.model_validate(shuffled(run.model_dump(mode="json"), random))
    assert list(other.model_dump()) == list(run.model_dump())
    assert other.run_id == run.run_id
    nowhere = Path("does-not-exist")
    assert ids(shuffled(SWEEP, random), nowhere) == ids(SWEEP, nowhere)


def test_canonical_json_has_one_form() -> None:
    assert canonical_json({"b": [1, {"d": 1, "c": None}], "a": "ü"}) == (
        '{"a":"\\u00fc","b":[1,{"c":null,"d":1}]}'
    )
    with pytest.raises(ValueError, match="JSON"):
        canonical_json(float("nan"))


WRITTEN_OUT: list[dict[str, Any]] = [
    {"recipe": {"algorithm": "grpo"}},
    {"recipe": {"lr": PRESET.lr_easy}},
    {"recipe": {"kl": PRESET.kl_easy}},
    {"recipe": {"entropy": 0}},
    {"recipe": {"lr_scaling": "sqrt"}},
    {"recipe": {"advantage": "group_std"}},
    {"problems": {"set": "easy"}},
    {"problems": {"n_train": 2000.0}},
    {"problems": {"n_validation": 1000}},
    {"options": {"model": "interference"}},
    {"options": {"preset": NAME}},
    {"options": {"parameters": {"sigma2": PRESET.sigma2, "r": PRESET.r}}},
    {"seed": 0},
    {"rollouts_per_problem": 8.0},
]


@given(st.lists(st.sampled_from(WRITTEN_OUT), max_size=len(WRITTEN_OUT)))
def test_identity_does_not_depend_on_defaults_written_out(parts: list[dict[str, Any]]) -> None:
    merged: dict[str, Any] = {}
    for part in parts:
        for key, value in part.items():
            merged[key] = {**merged.get(key, {}), **value} if isinstance(value, dict) else value
    assert resolved(**merged).run_id == resolved().run_id


def test_recipe_keys_at_their_default_are_not_in_the_identity() -> None:
    """So that a key which is added to the recipe later changes no identity."""
    filled_in = {
        "lr": PRESET.lr_easy,
        "kl": PRESET.kl_easy,
        "entropy": 0.0,
        "advantage": "group_std",
    }
    assert resolved().identity()["recipe"] == filled_in
    linear = resolved(recipe={"lr_scaling": "linear"}).identity()["recipe"]
    assert linear == {**filled_in, "lr_scaling": "linear"}


@given(
    compute=st.integers(256, 10**12),
    points=st.integers(2, 500),
    samples=st.integers(1, 64),
    sets=st.sampled_from([["validation"], ["train", "validation"]]),
    start=st.none() | st.integers(1, 10**6),
    horizons=st.lists(st.integers(1, 10**9)),
)
def test_identity_does_not_depend_on_horizon_or_schedule(compute: int, **evaluation: Any) -> None:
    assert resolved(compute=compute, evaluation=evaluation).run_id == resolved().run_id


def test_identity_does_not_depend_on_the_path(tmp_path: Path) -> None:
    def run(path: Path, text: str) -> RunSpec:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        section = {"source": str(path), "metric": "r", "set": {"problems_per_batch": 4}}
        spec = SweepSpec.parse({"sweep": {"backend": "replay"}, "replay": section})
        return engine.resolve_sweep(spec, path.with_suffix("")).runs[0]

    table = "rollouts_per_problem,step,r\n8,1,0.5\n8,2,0.6\n"
    here, there = run(tmp_path / "a.csv", table), run(tmp_path / "else" / "b.csv", table)
    assert here.sources != there.sources
    assert here.run_id == there.run_id
    assert run(tmp_path / "a.csv", table.replace("0.6", "0.7")).run_id != here.run_id


CONFIGURATIONS = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 2),
        "rollouts_per_problem": st.sampled_from([8, 16]),
        "problems_per_batch": st.sampled_from([8, 16]),
        "recipe": st.fixed_dictionaries(
            {"lr": st.sampled_from([0.01, 0.02]), "kl": st.sampled_from([0.0, 0.5])}
        ),
        "problems": st.fixed_dictionaries(
            {"set": st.sampled_from(["easy", "hard"]), "n_train": st.sampled_from([100, 200])}
        ),
        "options": st.fixed_dictionaries(
            {"parameters": st.dictionaries(st.sampled_from(["kappa", "q"]), st.sampled_from([0.1, 0.2]))}
        ),
    }
)


@given(CONFIGURATIONS, CONFIGURATIONS)
def test_equal_identity_means_equal_configuration(a: dict[str, Any], b: dict[str, Any]) -> None:
    assert (resolved(**a).run_id == resolved(**b).run_id) == (a == b)


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"rollouts_per_problem": 16},
        {"problems_per_batch": 16},
        {"recipe": {"lr": 0.03}},
        {"recipe": {"lr_scaling": "constant"}},
        {"problems": {"set": "hard"}},
        {"problems": {"n_train": 1999}},
        {"options": {"parameters": {"sigma2": 201.5}}},
        {"evaluation": {"temperature": 0.7}},
        {"evaluation": {"top_p": 0.9}},
    ],
)
def test_identity_depends_on(change: dict[str, Any]) -> None:
    assert resolved(**change).run_id != resolved().run_id


def test_an_evaluation_at_the_recipes_temperature_changes_no_identity() -> None:
    def run(**evaluation: float) -> RunSpec:
        return RunSpec.model_validate(
            {"backend": "real", "problems_per_batch": 4, "rollouts_per_problem": 2, "compute": 80}
            | {"recipe": {"temperature": 0.6, "top_p": 1.0}, "evaluation": evaluation}
        )

    assert "evaluation" not in run(points=5).identity()
    assert run(temperature=0.6, top_p=1.0).run_id == run().run_id
    assert run(temperature=0.7, top_p=1.0).identity()["evaluation"] == {"temperature": 0.7}
    assert run(top_p=0.9).evaluated_at == {"temperature": 0.6, "top_p": 0.9}


def test_swapped_axes_are_two_runs() -> None:
    a = resolved(problems_per_batch=8, rollouts_per_problem=16)
    b = resolved(problems_per_batch=16, rollouts_per_problem=8)
    assert a.run_id != b.run_id


# The schedule


def test_looks_begin_before_they_end() -> None:
    with pytest.raises(SpecError, match=r"start = 20 is after end = 10"):
        SweepSpec.parse({"evaluation": {"start": 20, "end": 10}})


BIG = 10**13


@st.composite
def runs(draw: st.DrawFn) -> RunSpec:
    b, n = draw(st.integers(1, 1024)), draw(st.integers(1, 2048))
    start = draw(st.none() | st.integers(1, 10**6))
    return RunSpec(
        backend="bandit",
        problems_per_batch=b,
        rollouts_per_problem=n,
        compute=draw(st.integers(b * n, max(b * n, 10**9)) | st.integers(b * n, BIG)),
        evaluation=EvaluationSpec(
            points=draw(st.integers(2, 80)),
            start=start,
            end=draw(st.none() | st.integers(start or 1, 10**8)),
        ),
    )


@example(RunSpec(backend="b", problems_per_batch=7, rollouts_per_problem=9, compute=63 * 10**11 + 62))
@example(RunSpec(backend="b", problems_per_batch=7, rollouts_per_problem=9, compute=63 * 10**4 + 62))
@given(runs())
def test_schedule_ascends_from_0_to_the_last_step(run: RunSpec) -> None:
    steps = run.schedule()
    assert steps[0] == 0
    assert steps[-1] == run.steps == run.compute // run.batch_rollouts
    assert steps == sorted(set(steps))
    if run.compute <= (run.evaluation.end or run.compute):
        assert len(steps) <= run.evaluation.points + 2


@given(runs(), st.integers(1, 10**4), st.integers(1, 100))
def test_an_extended_schedule_begins_with_the_old_one(run: RunSpec, once: int, twice: int) -> None:
    evaluation = run.evaluation.model_copy(
        update={
            "start": run.evaluation.start or run.batch_rollouts,
            "end": run.evaluation.end or run.compute,
            "horizons": (run.compute,),
        }
    )
    old = run.model_copy(update={"evaluation": evaluation})
    for factor in (once, twice):
        compute = old.compute + factor * old.batch_rollouts
        evaluation = old.evaluation.model_copy(update={"horizons": (*old.evaluation.horizons, compute)})
        new = old.model_copy(update={"compute": compute, "evaluation": evaluation})
        assert [s for s in new.schedule() if s <= old.steps] == old.schedule()
        old = new


@given(st.integers(2, 60), st.integers(0, 6), st.integers(0, 6))
def test_equal_batches_look_at_equal_compute(points: int, i: int, j: int) -> None:
    evaluation = EvaluationSpec(points=points, start=64, end=10**6, horizons=(10**6,))

    def looks(b: int, n: int) -> list[int]:
        run = RunSpec(
            backend="b", problems_per_batch=b, rollouts_per_problem=n, compute=10**6, evaluation=evaluation
        )
        return [step * b * n for step in run.schedule()]

    assert looks(2**i, 2 ** (12 - i)) == looks(2**j, 2 ** (12 - j))


def test_each_look_is_the_last_step_a_common_budget_pays_for() -> None:
    evaluation = EvaluationSpec(points=4, start=100, end=100_000)
    run = RunSpec(
        backend="b", problems_per_batch=10, rollouts_per_problem=30, compute=100_000, evaluation=evaluation
    )
    assert run.schedule() == [0, *(c // 300 for c in (1_000, 10_000, 100_000))]


# Messages


def problems(data: dict[str, Any]) -> list[str]:
    with pytest.raises(SpecError) as error:
        SweepSpec.parse(data)
    return [str(p) for p in error.value.issues]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"grids": {}}, ["grids", "unknown key", "'grid'"]),
        ({"sweep": {"computes": 1}}, ["sweep.computes", "unknown key", "'compute'"]),
        ({"grid": {"rollouts_per_prblem": [8]}}, ["grid.rollouts_per_prblem", "'rollouts_per_problem'"]),
        ({"grid": {"advantge": ["centred"]}}, ["grid.advantge", "'advantage'"]),
        ({"recipe": {"zzz": 1}}, ["recipe.zzz", "expected algorithm, lr"]),
        ({"grid": {"rollouts_per_problem": [8, 0]}}, ["grid.rollouts_per_problem", "found 0", "1"]),
        ({"grid": {"rollouts_per_problem": []}}, ["grid.rollouts_per_problem"]),
        ({"grid": {"lr": [0.1, -1]}}, ["grid.lr", "found -1", "greater than 0"]),
        ({"sweep": {"compute": 10.5}}, ["sweep.compute", "found 10.5"]),
        ({"sweep": {"compute": "lots"}}, ["sweep.compute", "found 'lots'"]),
        ({"sweep": {"compute": True}}, ["sweep.compute", "found True"]),
        ({"sweep": {"seeds": [-1]}}, ["sweep.seeds", "found -1"]),
        ({"sweep": {"seeds": 0}}, ["sweep.seeds", "found 0"]),
        (
            {"sweep": {"seeds": "3"}},
            ["sweep.seeds: found '3'; expected a number of seeds from 1 to 10,000, or"],
        ),
        ({"sweep": {"compute": "48h"}}, ["sweep.compute: found '48h'; expected a whole number"]),
        ({"sweep": 3}, ["sweep", "found 3"]),
        ({"recipe": {"lr": float("nan")}}, ["recipe.lr", "nan"]),
        ({"recipe": {"lr": 0}}, ["recipe.lr", "greater than 0"]),
        ({"recipe": {"lr_scaling": "cube"}}, ["recipe.lr_scaling", "'cube'", "'sqrt'"]),
        ({"evaluation": {"points": 1}}, ["evaluation.points", "found 1"]),
        ({"executor": {"kind": "threads"}}, ["executor.kind", "'threads'", "'inline'"]),
        ({"executor": {"jobs": 0}}, ["executor.jobs", "found 0"]),
    ],
)
def test_a_fault_is_named(data: dict[str, Any], words: list[str]) -> None:
    (text,) = problems(data)
    for word in words:
        assert word in text


@pytest.mark.parametrize(
    "faults",
    [
        [("sweep", "computes"), ("recipe", "lrs"), ("limits", "max")],
        [("sweep", "computes"), ("grid", "rollouts_per_prblem")],
    ],
)
def test_all_faults_at_once(faults: list[tuple[str, str]]) -> None:
    found = problems({section: {key: 1} for section, key in faults})
    assert sorted(text.split(":")[0] for text in found) == sorted(".".join(fault) for fault in faults)


@pytest.mark.parametrize(
    "data",
    [
        {"grid": {"rollouts_per_problem": [0]}},
        {"evaluation": {"start": 1e9}},
        {"limits": {"max_batch_rollouts": 8}, "grid": {"rollouts_per_problem": [16]}},
    ],
)
def test_a_wrong_backend_hides_no_other_issue(data: dict[str, Any]) -> None:
    def issues(backend: str) -> set[str]:
        try:
            return set(map(str, engine.issues_of(SweepSpec.parse({"sweep": {"backend": backend}, **data}))))
        except SpecError:
            with pytest.raises(SpecError) as error:
                SweepSpec.parse({"sweep": {"backend": backend}, **data}, check=engine.issues_of)
            return set(map(str, error.value.issues))

    others = issues("bandit")
    (more,) = issues("bandti") - others
    assert others
    assert others < issues("bandti")
    assert "did you mean 'bandit'" in more


def test_bad_values_and_unknown_axes_at_once() -> None:
    found = problems({"grid": {"rollouts_per_problem": [0], "bogus": [1], "lr": [-1]}})
    assert {text.split(":")[0] for text in found} == {"grid.rollouts_per_problem", "grid.bogus", "grid.lr"}


def test_lines_are_named(tmp_path: Path) -> None:
    file = tmp_path / "sweep.toml"
    file.write_text(
        "# seeds = 0\n[sweep]\nseeds = 2\ncompute = 'x'\n\n"
        "[recipe]\n  lrs = 1\n[grid]\nlr = [1]\n[bogus]\nlr = 1\n"
    )
    with pytest.raises(SpecError) as error:
        SweepSpec.read(file)
    text = str(error.value)
    assert text.startswith(f"{file}: 3 issues")
    for word in (f"{file}:4: sweep.compute", f"{file}:7: recipe.lrs", f"{file}:10: [bogus]"):
        assert word in text


def test_what_an_option_sets_is_not_looked_for_in_the_file(isolaw, tmp_path: Path) -> None:
    file = tmp_path / "sweep.toml"
    file.write_text(
        "[sweep]\nbackend = 'real'\n[real]\nmodel = 'here'\n[executor]\nkind = 'ray'\nnodes = 2\n"
    )
    with pytest.raises(SpecError) as error:
        SweepSpec.read(file, ["sweep.seeds=0", "executor.kind=slrum"])
    assert str(error.value).splitlines()[1:] == [
        "  - sweep.seeds (set by an option): found 0; "
        "expected a number of seeds from 1 to 10,000, or a list of seeds",
        "  - executor.kind (set by an option): found 'slrum'; "
        "expected 'inline', 'processes', 'ray', 'slurm' or 'scripts'",
    ]
    code, _, err = isolaw("sweep", file, "--out", tmp_path / "out", "--set", f"real.model={tmp_path}/gone")
    assert code == 2
    assert f"real.model (set by an option): {tmp_path}/gone: no such folder" in err
    # Nor is what hangs on a wrong kind wrong.
    code, _, err = isolaw("sweep", file, "--out", tmp_path / "out", "--executor", "slrum")
    assert code == 2
    assert "executor.kind (set by an option)" in err
    assert f"{file}:4: real.model" in err
    assert "executor.nodes" not in err


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"[sweep\ncompute = 1\n", ["not valid TOML", "line 1"]),
        (b"[sweep]\ncompute = \n", ["not valid TOML", "line 2"]),
        (b"\x93\x00\xff\xfe", ["not a text file", "byte 0"]),
        (b"[sweep]\n\x00", ["not valid TOML", "line 2"]),
        (None, ["No such file"]),
    ],
)
def test_unreadable_files(tmp_path: Path, content: bytes | None, words: list[str]) -> None:
    file = tmp_path / "sweep.toml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(InputError) as error:
        SweepSpec.read(file)
    for word in [str(file), *words]:
        assert word in str(error.value)


# Reading


def test_an_empty_file_is_the_default(tmp_path: Path) -> None:
    file = tmp_path / "sweep.toml"
    file.write_text("")
    assert SweepSpec.read(file) == SweepSpec.read() == SweepSpec()


def test_settings_win_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "sweep.toml"
    file.write_text('[sweep]\ncompute = 1e5\nseeds = [4]\n[problems]\nset = "easy"\n')
    settings = [
        "sweep.compute=2e5",
        "problems.set=hard",
        "grid.rollouts_per_problem=[4, 8]",
        "grid.lr=0.1",
        "bandit.parameters.kappa=0",
        "executor.kind = 'inline'",
    ]
    spec = SweepSpec.read(file, settings)
    assert spec.sweep.compute == 200_000
    assert spec.sweep.seeds == (4,)
    assert spec.problems.set == "hard"
    assert spec.grid.rollouts_per_problem == (4, 8)
    assert spec.grid.recipe_axes == {"lr": [0.1]}
    assert spec.bandit == {"parameters": {"kappa": 0}}
    assert spec.executor.kind == "inline"


@pytest.mark.parametrize("setting", ["sweep.compute", "compute=1", "sweep.=1", "=", "", "sweep.seeds.x.y=1"])
def test_settings_that_are_none(setting: str) -> None:
    with pytest.raises(InputError):
        SweepSpec.read(settings=["sweep.seeds=2", setting])


def test_the_resolved_form_is_json_and_comes_back() -> None:
    spec = SweepSpec.parse(SWEEP)
    assert SweepSpec.parse(json.loads(json.dumps(spec.model_dump(mode="json")))) == spec


def test_run_spec_comes_back() -> None:
    run = resolved(evaluation={"start": 5, "horizons": [7]}, options={"parameters": {"kappa": 0.5}})
    assert RunSpec.model_validate(json.loads(run.model_dump_json())) == run


def test_seeds_are_a_number_or_a_list() -> None:
    assert SweepSpec.parse({"sweep": {"seeds": 3}}).sweep.seeds == (0, 1, 2)
    assert SweepSpec.parse({"sweep": {"seeds": [7, 2]}}).sweep.seeds == (7, 2)


def test_preset_defaults_are_the_papers_regularisation() -> None:
    easy, hard = resolved().recipe, resolved(problems={"set": "hard"}).recipe
    assert (easy.lr, easy.kl) == (PRESET.lr_easy, PRESET.kl_easy)
    assert (hard.lr, hard.kl) == (PRESET.lr_hard, 0.0)


def test_a_value_that_may_be_of_several_kinds_is_one_problem() -> None:
    with pytest.raises(SpecError) as caught:
        SweepSpec.parse({"executor": {"sbatch": {"exclusive": [1], "qos": [1]}, "setup": ["\x1b[31m"]}})
    assert [str(problem).partition(": ")[0] for problem in caught.value.issues] == [
        "executor.sbatch.exclusive", "executor.sbatch.qos", "executor.setup"
    ]  # fmt: skip
    assert "a string or a whole number or a boolean" in str(caught.value)


def test_a_changed_copy_is_another_run() -> None:
    run = RunSpec(backend="bandit", problems_per_batch=1, rollouts_per_problem=2, compute=10)
    known = run.run_id
    assert run.model_copy(update={"seed": 1}).run_id != known
    assert run.model_copy(update={"compute": 20}).run_id == known == run.run_id
    assert run.model_copy() == run
