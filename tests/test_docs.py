"""The documentation: its commands run, and its links and names exist."""

from __future__ import annotations

import ast
import functools
import importlib
import json
import os
import re
import subprocess
from pathlib import Path

import click
import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
FEW_DRAWS = str(ROOT / "tests" / "few_draws.py")
PAGES = [ROOT / "README.md", *sorted(p for p in DOCS.rglob("*.md") if p.parent != DOCS / "gpu")]
MARKDOWN = [*PAGES, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "examples").glob("*/README.md"))]


def blocks(page: Path) -> list[tuple[str, str, str]]:
    """Every block of commands or Python, and the text below it, which may be the output."""
    shown = r"(?:\n((?: {4}[^\n]*\n|\n(?= {4}))+))?"
    return re.findall(rf"^```(sh|python)\n(.*?)^```\n{shown}", page.read_text(), flags=re.M | re.S)


# Whose commands take the longest.
LONG = {"critical-batch.md", "model-size.md", "two-configurations.md", "real-sweep.md"}
LONG |= {"index.md", "simulators.md"}  # the former has commands of README.md and answer.md
LONG |= {"race.md", "cluster.md"}  # tests/golden has a race, tests/executors has what runs on clusters
RUN = [pytest.param(p, marks=[pytest.mark.nightly] * (p.name in LONG)) for p in PAGES if blocks(p)]


@pytest.mark.slow
@pytest.mark.parametrize("page", RUN, ids=lambda own: own.name)
def test_blocks_run(
    page: Path, shell: dict[str, str], hasty_shell: dict[str, str], preloaded: Path, tmp_path: Path
) -> None:
    """With the fewer draws the less of their output is on the page."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    every_draw = {**shell, "PATH": shell["PATH"].partition(os.pathsep)[2]}
    for kind, text, shown in blocks(page):
        python = [preloaded / "python"] if shown else [preloaded / "python", FEW_DRAWS]
        command = ["sh", "-euc", text] if kind == "sh" else [*python, "-c", text]
        env = every_draw if "interval" in shown else shell if shown else hasty_shell
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{text}\n{done.stderr}"
        printed, lines = (
            [" ".join(line.split()) for line in value.splitlines()]
            for value in (f"{done.stdout}\n{done.stderr}", shown.strip())
        )
        if {*lines} & {*printed} - {""}:  # else it is another text, such as a file
            wanted = [re.compile(re.escape(line).replace("…", ".*")) for line in lines]
            missing = [pattern.pattern for pattern in wanted if not any(map(pattern.fullmatch, printed))]
            assert missing == [], done.stdout


def cells_of(tutorial: Path) -> list[str]:
    """Its cells but for the first, which makes a folder (`docs/_ext/tutorial.py`)."""
    return re.findall(r"^```{code-cell} ipython3\n(.*?)^```", tutorial.read_text(), flags=re.M | re.S)[1:]


@pytest.mark.slow
@pytest.mark.parametrize("tutorial", sorted((DOCS / "tutorials").glob("[!i]*.md")), ids=lambda p: p.name)
def test_tutorials_run(tutorial: Path, hasty_shell: dict[str, str], preloaded: Path, tmp_path: Path) -> None:
    """Cell by cell, without the notebook in which the site executes them."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    shell = "import subprocess; subprocess.run(['sh', '-euc', {!r}], check=True)\n"
    cells = [shell.format(cell[5:]) if cell.startswith("%%sh") else cell for cell in cells_of(tutorial)]
    command = [preloaded / "python", FEW_DRAWS, "-c", "\n".join(cells)]
    done = subprocess.run(command, cwd=tmp_path, env=hasty_shell, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_dataframe_tutorial_nests_no_dictionary() -> None:
    cells = cells_of(DOCS / "tutorials" / "dataframe.md")
    assert 12 <= len(cells) <= 16
    for cell in cells:
        dictionaries = [node for node in ast.walk(ast.parse(cell)) if isinstance(node, ast.Dict)]
        assert not any(
            isinstance(value, ast.Dict) for dictionary in dictionaries for value in dictionary.values
        ), cell


def prose(page: Path) -> str:
    """A page without its code."""
    text = re.sub(r"^(```+).*?^\1", "", page.read_text(), flags=re.M | re.S)
    return re.sub(r"`[^`\n]*`", "`code`", text)


@functools.cache
def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and the site make them."""
    titles = re.findall(r"^#+ +(.+)$", re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S), re.M)
    plain = [re.sub(r"[`*\\]|\]\(.*?\)|\[", "", title) for title in titles]
    return {re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-") for title in plain}


@pytest.mark.parametrize("page", MARKDOWN, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", prose(page)):
        file, _, anchor = target.partition("#")
        path = (page.parent / file).resolve() if file else page
        assert path.exists(), target
        if anchor and path.suffix == ".md":
            assert anchor in anchors(path), (
                f"{target}: found no such heading; expected one of {anchors(path)}"
            )


def test_every_page_is_in_the_site() -> None:
    listed = {
        (page.parent / f"{name.strip()}.md").resolve()
        for page in PAGES
        for block in re.findall(r"```{toctree}\n(.*?)```", page.read_text(), re.S)
        for name in re.findall(r"^(?:.*<([^>]+)>|([\w\-/]+))$", block, re.M)
        for name in name
        if name
    }
    assert {p for p in PAGES if p.is_relative_to(DOCS)} - listed == {DOCS / "index.md"}


@pytest.mark.parametrize("page", MARKDOWN, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_names_of_modules_exist(page: Path) -> None:
    text = page.read_text()
    for path in re.findall(
        r"\b(?:isolaw|benchmarks|examples|scripts|fuzz)/[\w/\-]+\.(?:py|sh|toml|md)\b", text
    ):
        assert (ROOT / path).exists() or path.endswith("/isolaw.toml"), path  # which isolaw writes
    for name in re.findall(r"(?<![\w./\"-])isolaw(?:\.[A-Za-z_]\w*)+(?![\w/-])", text):
        parts = name.split(".")
        if parts[1] in ("law", "checkup", "attributes", "json", "toml"):  # files, and their formats
            continue
        for end in range(len(parts), 0, -1):
            try:
                found = importlib.import_module(".".join(parts[:end]))
            except ModuleNotFoundError:
                continue
            break
        for part in parts[end:]:
            assert hasattr(found, part), name
            found = getattr(found, part)


def test_every_public_name_is_in_the_reference() -> None:
    import isolaw

    page = (DOCS / "api.md").read_text()
    for name in isolaw.__all__:
        assert re.search(rf":: isolaw\.{name}$", page, re.M), name


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_options_of_commands_exist(page: Path) -> None:
    from isolaw.cli import cli

    text = re.sub(r"\s*\\\n\s*", " ", page.read_text())
    code = [line for block in re.findall(r"^```.*?^```", text, re.M | re.S) for line in block.splitlines()]
    code += re.findall(r"^    .*$", text, re.M)
    for name, rest in [
        found.groups() for line in code if (found := re.match(r" *isolaw ([a-z][\w-]*)(.*)", line))
    ]:
        command = cli.commands[name]
        known = {o for p in command.params if isinstance(p, click.Option) for o in p.opts} | {"--help", "-h"}
        for option in re.findall(r"(?<=\s)(--?[a-z][\w-]*)", rest.split(" # ")[0]):
            assert option in known, f"isolaw {name} {option}"


def test_readme_is_short_and_names_both_commands() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) < 150
    assert re.findall(r"^    make (\w+) ", text, re.M)[:2] == ["demo", "test"]


def test_the_pictures_show_the_demo_of_the_readme() -> None:
    """`scripts/pictures.py` keeps the headline of the pictures; the demo is compared with README below."""
    made = json.loads((DOCS / "images" / "pictures.json").read_text())
    assert f"    {made['headline']}\n" in (ROOT / "README.md").read_text()
    for name in made["pictures"]:
        assert f"images/{name}.png" in (DOCS / "report.md").read_text() + (ROOT / "README.md").read_text()


def test_examples_parse() -> None:
    from isolaw import SweepSpec

    files = sorted((ROOT / "examples").glob("*.toml"))
    files.remove(ROOT / "examples" / "prime-rl-wordle.toml")  # a configuration of prime-rl
    assert len(files) >= 3
    for file in files:
        SweepSpec.read(file)


@pytest.mark.parametrize("file", sorted((ROOT / "examples").glob("real-*.toml")), ids=lambda p: p.stem)
def test_examples_of_real_models_lack_only_the_model(file: Path, tmp_path: Path) -> None:
    import arithmetic

    from isolaw import SweepSpec, engine
    from isolaw.errors import SpecError

    problems = tmp_path / file.stem.rpartition("-")[2]
    arithmetic.write(problems, ["add-100"], n_train=1000, n_validation=300)
    spec = SweepSpec.read(file, [f"problems.set={problems}"])
    if "tiny" not in file.name:  # isolaw plans with the sizes of a model that it knows
        resolved = engine.resolve_sweep(spec, tmp_path / "out")
        assert any("has no weights here" in note for note in resolved.notes)
        return
    with pytest.raises(SpecError) as raised:
        engine.resolve_sweep(spec, tmp_path / "out")
    assert {problem.where for problem in raised.value.issues} == {"real.model"}


def test_every_key_of_a_sweep_file_is_documented() -> None:
    from isolaw import SweepSpec
    from isolaw.backends.command.options import CommandOptions
    from isolaw.backends.real.options import RealOptions

    page = (ROOT / "docs" / "formats.md").read_text()
    sections = {name: field.annotation for name, field in SweepSpec.model_fields.items()}
    keys = [key for section in sections.values() for key in getattr(section, "model_fields", {})]
    assert "staleness" in keys
    missing = [
        key
        for key in [*keys, *RealOptions.model_fields, *CommandOptions.model_fields]
        if f"`{key}`" not in page
    ]
    assert missing == ["horizons"]  # filled in when a sweep begins


@pytest.mark.slow
def test_the_demo_prints_what_the_readme_shows(
    shell: dict[str, str], preloaded: Path, tmp_path: Path
) -> None:
    """Words and whole numbers to the letter; decimals may differ in their last digits between processors."""
    command, every_draw = [str(preloaded / "isolaw"), "demo"], shell["PATH"].partition(os.pathsep)[2]
    env = {**shell, "PATH": every_draw}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    shown = re.search(
        r"^    Simulated runs\. For 6M .*?(?=\n\n)", (ROOT / "README.md").read_text(), re.M | re.S
    )
    assert shown is not None
    readme = [line.removeprefix("    ") for line in shown[0].splitlines()]
    decimal = r"-?\d+\.\d+(?:e\d+)?"
    texts = [re.sub(decimal, "#", "\n".join(value)) for value in (done.stdout.splitlines(), readme)]
    assert texts[0] == texts[1]
    values = [
        [float(x) for x in re.findall(decimal, "\n".join(value))]
        for value in (done.stdout.splitlines(), readme)
    ]
    assert values[0] == pytest.approx(values[1], rel=0.1, abs=0.003)
    assert len(readme) <= 9
    assert (tmp_path / "demo" / "report.html").stat().st_size > 1_000_000
    assert (tmp_path / "demo" / "law.json").is_file()
