"""``isolaw compare``: two sources side by side, in words and as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import isolaw as library
from isolaw.fits.studies.recipes import compare
from isolaw.report.text.comparisons import _verdict as verdict
from isolaw.runs import Runs

Call = Callable[..., tuple[int, str, str]]


def strict(text: str) -> Any:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} in JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.fixture(scope="module")
def recipes(synthetic: Callable[..., Runs], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two Parquet tables: the second learns twice as slowly, to a higher ceiling."""
    folder = tmp_path_factory.mktemp("recipes")
    out = []
    for i, (name, ceiling, tau) in enumerate([("old", 0.6, 1e5), ("new", 0.7, 2e5)]):

        def reward(_b: int, _n: int, compute: Any, a: float = ceiling, tau: float = tau) -> Any:
            return 0.3 + (a - 0.3) / (1 + (tau / np.maximum(compute, 1e-9)) ** 1.5)

        runs = synthetic([(32, 8), (32, 16)], reward, noise=0.004, rng=i, attributes={"lr": 0.1 * (i + 1)})
        out.append(folder / f"{name}.parquet")
        runs.to_parquet(out[-1])
    return out[0], out[1]


@pytest.mark.slow
def test_in_words(isolaw: Call, recipes: tuple[Path, Path]) -> None:
    code, stdout, stderr = isolaw("compare", *recipes, "--compute", "5e5")
    assert (code, stderr) == (0, "")
    lines = stdout.splitlines()
    assert lines[0] == (
        "isolaw compares avg@4 on validation of old.parquet and new.parquet. They differ in lr (0.1 and 0.2)."
    )
    heads = [line.split("  ")[0] for line in lines if line.endswith("difference")]
    assert heads == ["B_p = 32, n = 8", "B_p = 32, n = 16", "mean of 2"]
    assert "Intervals are 95 % bootstrap intervals over runs, paired by seed." in lines
    said = {line.split(":")[0]: line for line in lines[-4:]}
    assert said["Ceiling"].startswith("Ceiling: new.parquet has the higher ceiling, by 0.")
    assert said["Speed"].startswith("Speed: old.parquet is faster, since the C_mid of new.parquet is ")
    assert said["Reward"].startswith("Reward: new.parquet is better at C = 5e5, by 0.0")
    assert said["First half"].startswith("First half: new.parquet ends 0.0")


@pytest.mark.slow
def test_as_json(isolaw: Call, recipes: tuple[Path, Path]) -> None:
    code, stdout, stderr = isolaw("compare", *recipes, "--json")
    assert (code, stderr) == (0, "")
    data = strict(stdout)
    runs = [library.read(path) for path in recipes]
    found = compare(*runs, names=("old.parquet", "new.parquet"))
    assert data == {**found.to_dict(), "format": "isolaw.compare/1", "verdict": verdict(found)}
    assert [c["configurations"][0]["rollouts_per_problem"] for c in data["contrasts"]] == [8, 16]
    for row in ("A", "B", "C_mid", "end", "predicted", "error"):
        for column in ("first", "second", "difference"):
            assert set(data["mean"][row][column]) == {"value", "interval", "status"}
    assert "reward" not in data["mean"]


@pytest.mark.slow
def test_notes_go_to_standard_error(isolaw: Call, recipes: tuple[Path, Path], tmp_path: Path) -> None:
    runs = library.read(recipes[0])
    one = runs.select(runs.points.query("rollouts_per_problem == 8 and seed == 0")["run_id"].unique())
    one.to_parquet(tmp_path / "one.parquet")
    code, stdout, stderr = isolaw("compare", tmp_path / "one.parquet", recipes[1], "--json")
    assert code == 0
    assert "note: not compared: only new.parquet has (B_p = 32, n = 16)" in stderr
    assert "note: one.parquet: one seed" in stderr
    assert strict(stdout)["notes"] == [line.removeprefix("note: ") for line in stderr.splitlines()]


@pytest.mark.slow
def test_columns_of_both_tables_are_mapped(isolaw: Call, recipes: tuple[Path, Path], tmp_path: Path) -> None:
    tables = []
    for path in recipes:
        frame = library.read(path).to_pandas()
        wide = frame[["rollouts_per_problem", "seed", "step", "value"]]
        tables.append(tmp_path / f"{path.stem}.csv")
        wide.set_axis(["group", "seed", "step", "accuracy"], axis=1).to_csv(tables[-1], index=False)
    mapping = ["--column", "rollouts_per_problem=group", "--set", "problems_per_batch=32"]
    mapping += ["--column", "compute=step*group*32", "--metric", "accuracy"]
    code, stdout, stderr = isolaw("compare", *tables, *mapping, "--json")
    assert (code, stderr) == (0, "")
    mapped, direct = strict(stdout), strict(isolaw("compare", *recipes, "--json")[1])
    for row in ("A", "C_mid", "end"):
        found = mapped["mean"][row]["difference"]["value"]
        assert found == pytest.approx(direct["mean"][row]["difference"]["value"], rel=1e-6)


@pytest.mark.slow
def test_a_sweep_and_a_table(isolaw: Call, tiny: Callable[..., Any], tmp_path: Path) -> None:
    """The mapping is for the table; the sweep has names of its own."""
    runs = library.sweep(tiny(), out=tmp_path / "sweep")
    rows = runs.points.query("metric == 'avg@4'")[
        ["problems_per_batch", "rollouts_per_problem", "seed", "step", "value"]
    ]
    rows.rename(columns={"value": "score"}).to_csv(tmp_path / "table.csv", index=False)
    arguments = ["compare", tmp_path / "sweep", tmp_path / "table.csv", "--json"]
    code, stdout, _ = isolaw(*arguments, "--column", "avg@4=score")
    assert code == 0
    assert strict(stdout)["mean"]["end"]["difference"]["value"] == pytest.approx(0)
    code, stdout, stderr = isolaw("compare", tmp_path / "sweep", tmp_path / "sweep", "--column", "a=b")
    assert (code, stdout) == (2, "")
    assert "needs no columns" in stderr


@pytest.mark.slow
def test_names_that_are_alike_are_told_apart(
    isolaw: Call, recipes: tuple[Path, Path], tmp_path: Path
) -> None:
    copy = tmp_path / recipes[0].name
    copy.write_bytes(recipes[1].read_bytes())
    assert strict(isolaw("compare", recipes[0], copy, "--json")[1])["names"] == [str(recipes[0]), str(copy)]
    same = strict(isolaw("compare", copy, copy, "--json")[1])
    assert same["names"] == ["first", "second"]
    assert same["mean"]["A"]["difference"]["value"] == 0


@pytest.mark.parametrize(
    ("options", "code", "word"),
    [
        (["--metric", "avg@5"], 2, "did you mean 'avg@4'?"),
        (["--eval-set", "aime"], 2, "no evaluation set 'aime'"),
        (["--compute", "much"], 2, "much"),
        (["--compute", "nan"], 2, "expected rollouts"),
        (["--column", "seed"], 2, "expected NAME=VALUE"),
    ],
)
def test_wrong_usage(
    isolaw: Call, recipes: tuple[Path, Path], options: list[str], code: int, word: str
) -> None:
    found, stdout, stderr = isolaw("compare", *recipes, *options)
    assert (found, stdout) == (code, "")
    assert word in stderr
    assert "Traceback" not in stderr


@pytest.mark.slow
def test_nothing_in_common_is_refused(isolaw: Call, recipes: tuple[Path, Path], tmp_path: Path) -> None:
    runs = library.read(recipes[0])
    table = runs.to_pandas().assign(problems_per_batch=64)
    Runs(table, runs.attributes).to_parquet(tmp_path / "other.parquet")
    code, stdout, stderr = isolaw("compare", recipes[0], tmp_path / "other.parquet")
    assert (code, stdout) == (1, "")
    assert "the recipes share no (B_p, n)" in stderr
    assert "only old.parquet has (B_p = 32, n = 8), (B_p = 32, n = 16)" in stderr
    code, _, stderr = isolaw("compare", recipes[0], tmp_path / "gone")
    assert code == 2
    assert "gone" in stderr


@pytest.mark.slow
def test_the_recipes_of_an_axis(isolaw: Call, recipes: tuple[Path, Path], tmp_path: Path) -> None:
    both = Runs.concat([named(library.read(path), path.stem) for path in recipes])
    both.to_parquet(tmp_path / "both.parquet")
    words = ["compare", tmp_path / "both.parquet", "--by", "lr"]
    code, stdout, _ = isolaw(*words)
    assert code == 0
    lines = stdout.splitlines()
    assert lines[0] == (
        "avg@4 on validation, mean over B_p = 32, n = 8, B_p = 32, n = 16. Differences are from lr = 0.1."
    )
    assert [line.split()[0] for line in lines[1:4]] == ["lr", "0.1", "0.2"]
    code, stdout, _ = isolaw(*words, "--json")
    data = strict(stdout)
    assert (data["by"], data["base"], list(data["comparisons"])) == ("lr", 0.1, ["0.2"])
    direct = compare(*(library.read(path) for path in recipes)).mean.rows["A"].difference
    found = data["comparisons"]["0.2"]["mean"]["A"]["difference"]
    assert found["value"] == pytest.approx(direct.value)
    for wrong in ([recipes[0]], [*recipes, "--cost", "x"]):
        code, _, stderr = isolaw("compare", *wrong)
        assert code == 2
        assert "expected one of: FIRST SECOND; SOURCE --by NAME; " in stderr


@pytest.mark.slow
def test_where_selects_the_runs_of_recipes(isolaw: Call, recipes: tuple[Path, Path]) -> None:
    code, stdout, _ = isolaw("compare", *recipes, "--where", "n=8", "--json")
    assert code == 0
    (contrast,) = strict(stdout)["contrasts"]
    assert contrast["configurations"] == [{"problems_per_batch": 32, "rollouts_per_problem": 8}]


def named(runs: Runs, name: str) -> Runs:
    """The runs with other ids, to put two tables into one."""
    table = runs.to_pandas()
    attributes = {name + run: attribute for run, attribute in runs.attributes.items()}
    return Runs(table.assign(run_id=name + table["run_id"]), attributes)


@pytest.mark.slow
def test_two_configurations_of_one_source(
    isolaw: Call, synthetic: Callable[..., Runs], tmp_path: Path
) -> None:
    synthetic([(32, 4), (32, 8), (32, 32)], noise=0.004).to_parquet(tmp_path / "runs.parquet")
    source = tmp_path / "runs.parquet"
    code, stdout, stderr = isolaw("compare", source, "n=16", "B_p=32,n=4", "--compute", "5e5")
    assert (code, stderr) == (0, "")
    assert stdout.startswith("A is better at C = 5e5")
    assert "A has no runs, so the surface through 9 runs predicts its reward." in stdout
    code, stdout, _ = isolaw("compare", source, "n=8", "n=4", "--target", "0.45", "--json")
    assert code == 0
    data = strict(stdout)
    assert (data["shapes"], data["quantity"]) == ([[32, 8], [32, 4]], "rollouts")
    for words, message in (
        (["n=8", "n=4"], "expected one of: "),
        (["n=8", "--compute", "1e5"], "expected one of: "),
        (["n=8", "n=4", "--compute", "1e5", "--target", "0.5"], "expected one of: "),
        (["n=8", "n=4", "--target", "0.5,0.6"], "target: found [0.5, 0.6]; expected a finite number"),
        (["k=8", "n=4", "--compute", "1e5"], "found 'k=8'; expected B_p and n, e.g. (128, 8)"),
        (["n=8", "n=4", "--compute", "48h"], "requires the cost of a step: --cost SOURCE"),
        (["--by", "lr", "--target", "0.5"], "expected one of: "),
        (["--target", "high"], "found 'high'; expected rewards"),
    ):
        code, _, stderr = isolaw("compare", source, *words)
        assert code == 2
        assert message in stderr
