"""Every command and every Python block of the README runs, in order, in one folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path) -> list[tuple[str, str]]:
    return re.findall(r"^```(sh|python)\n(.*?)^```", page.read_text(), flags=re.M | re.S)


@pytest.mark.slow
@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p)], ids=lambda p: p.name)
def test_blocks_run(page: Path, tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    for kind, text in blocks(page):
        command = ["sh", "-euc", text] if kind == "sh" else [sys.executable, "-c", text]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{text}\n{done.stderr}"


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_examples_parse() -> None:
    from isolaw import SweepSpec

    files = sorted((ROOT / "examples").glob("*.toml"))
    assert len(files) >= 3
    for file in files:
        SweepSpec.read(file)


@pytest.mark.parametrize("file", sorted((ROOT / "examples").glob("real-*.toml")), ids=lambda p: p.stem)
def test_examples_of_real_models_lack_only_the_model(file: Path, tmp_path: Path) -> None:
    from isolaw import SweepSpec, engine
    from isolaw.backends.real import arithmetic
    from isolaw.errors import SpecError

    problems = tmp_path / file.stem.rpartition("-")[2]
    arithmetic.write(problems, ["add-100"], n_train=1000, n_validation=300)
    with pytest.raises(SpecError) as raised:
        engine.plan(SweepSpec.read(file, [f"problems.set={problems}"]), tmp_path / "out")
    assert {problem.where for problem in raised.value.issues} == {"real.model"}


def test_every_key_of_a_sweep_file_is_documented() -> None:
    from isolaw import SweepSpec
    from isolaw.backends.real.options import RealOptions

    page = (ROOT / "docs" / "formats.md").read_text()
    sections = {name: field.annotation for name, field in SweepSpec.model_fields.items()}
    keys = [key for section in sections.values() for key in getattr(section, "model_fields", {})]
    assert "staleness" in keys
    missing = [key for key in [*keys, *RealOptions.model_fields] if f"`{key}`" not in page]
    assert missing == ["horizons"]  # filled in when a sweep begins


def test_the_codes_of_flags_are_documented() -> None:
    from isolaw.fits.document.flags import Code

    page = (ROOT / "docs" / "formats.md").read_text()
    table = page.partition("\n### Flags\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.+) \|$", table, flags=re.M)
    assert rows == [(code.value, code.meaning.replace("n*", r"n\*")) for code in Code]


@pytest.mark.slow
def test_demo_recommends_and_names_its_figure(tmp_path: Path) -> None:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    out = tmp_path / "demo"
    done = subprocess.run(
        ["sh", "examples/demo.sh", str(out)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"n = \d+ rollouts for each of B_p = \d+ problems, M = [\d,]+ steps", done.stdout)
    assert "95 % of draws" in done.stdout
    assert str(out / "figures" / "law.png") in done.stdout.splitlines()[-1]
    assert (out / "figures" / "law.png").stat().st_size > 10_000
    assert (out / "report.html").stat().st_size > 1_000_000
