"""What importing costs, and which module may know which."""

from __future__ import annotations

import ast
import subprocess
import sys
import time
from pathlib import Path

import pytest

import isolaw

PACKAGE = Path(isolaw.__file__).parent
MODULES = {
    ".".join(("isolaw", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}

BASE = {
    f"isolaw.{name}" for name in ("allocation", "spec", "parsing", "parquet", "runs", "metrics", "errors")
}
ABOVE = [
    f"isolaw.{name}" for name in ("backends", "planning", "engine", "cli", "executors", "store", "findings")
]
CLUSTER = {"torch", "vllm", "deepspeed", "ray", "submitit"}
DRAWING = {"matplotlib", "click", "rich"}
HEAVY = CLUSTER | {"matplotlib", "numba", "pandas", "scipy", "lmfit", "pyarrow", "pydantic", "rich"}


def imports(text: str, module: str, is_package: bool, for_types: bool = True) -> set[str]:
    """Everything that a module imports anywhere in it: modules, and names from modules."""
    out: set[str] = set()
    tree = ast.parse(text)
    if not for_types:
        for node in ast.walk(tree):
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
                node.body = [ast.Pass()]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            out |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.split(".")
                parts = parts[: len(parts) - node.level + is_package]
                base = ".".join([*parts, base]).rstrip(".")
            out |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
    return out


def imported(module: str, for_types: bool = True) -> set[str]:
    path = MODULES[module]
    return imports(path.read_text(), module, path.name == "__init__.py", for_types)


def prints(text: str) -> bool:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called in ("print", "click.echo", "sys.stdout.write", "sys.stderr.write"):
                return True
    return False


def below(name: str, *parents: str) -> bool:
    return any(name == parent or name.startswith(f"{parent}.") for parent in parents)


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout


def test_import_brings_nothing_heavy() -> None:
    loaded = run("import sys, isolaw; print(*sys.modules)").split()
    assert "isolaw" in loaded
    assert HEAVY & set(loaded) == set()


def test_nothing_ever_brings_a_cluster() -> None:
    loaded = run(
        "import sys, isolaw, isolaw.cli, isolaw.report.figures.law\n"
        "for name in isolaw.__all__: getattr(isolaw, name)\n"
        "print(*sys.modules)"
    ).split()
    assert set(loaded) & CLUSTER == set()
    assert "pandas" in loaded  # the public names were really resolved


def test_public_names() -> None:
    assert set(isolaw.__all__) <= set(dir(isolaw))
    for name in isolaw.__all__:
        assert getattr(isolaw, name) is not None
    with pytest.raises(AttributeError, match="'fitt'"):
        isolaw.fitt  # noqa: B018


def test_help_is_quick(command: str) -> None:
    seconds = []
    for _ in range(3):
        started = time.perf_counter()
        done = subprocess.run([command, "--help"], capture_output=True, text=True, check=True)
        seconds.append(time.perf_counter() - started)
        assert "Usage: isolaw" in done.stdout
    assert min(seconds) < 0.4


# The import rule


def test_the_reader_of_imports_sees_them_all() -> None:
    text = (
        "import a.b, c as d\nfrom isolaw import engine\nfrom isolaw.store import x\nfrom . import y\n"
        "from ..cli import z\ndef f():\n  import lazily\nif TYPE_CHECKING:\n  from typed import t\n"
    )
    at_run_time = {
        "a.b", "c", "isolaw", "isolaw.engine", "isolaw.store", "isolaw.store.x", "isolaw.fits",
        "isolaw.fits.y", "isolaw.cli", "isolaw.cli.z", "lazily",
    }  # fmt: skip
    assert imports(text, "isolaw.fits.law", is_package=False) == at_run_time | {"typed", "typed.t"}
    assert imports(text, "isolaw.fits.law", is_package=False, for_types=False) == at_run_time
    assert imports("from .x import y", "isolaw.fits", is_package=True) == {"isolaw.fits.x", "isolaw.fits.x.y"}
    assert prints("def f():\n  print(1)")
    assert prints("click.echo('x', err=True)")
    assert not prints("pprint(1); x.print()")


def test_every_part_is_there() -> None:
    for part in (*BASE, *ABOVE, "isolaw.simulators", "isolaw.fits", "isolaw.report", "isolaw.readers"):
        assert part in MODULES


@pytest.mark.parametrize("module", sorted(BASE))
def test_the_base_imports_nothing_above_it(module: str) -> None:
    ours = {name for name in imported(module) if below(name, "isolaw")}
    assert {name for name in ours if not below(name, *BASE)} <= {"isolaw"}


@pytest.mark.parametrize("module", MODULES)
def test_import_rule(module: str) -> None:
    names = imported(module)
    if below(module, "isolaw.simulators", "isolaw.fits"):
        assert {name for name in names if below(name, *ABOVE)} == set()
    if below(module, "isolaw.backends"):
        assert {name for name in names if below(name, *ABOVE[1:])} == set()
    if below(
        module, "isolaw.engine", "isolaw.executors", "isolaw.store", "isolaw.readers", "isolaw.trackers"
    ):
        assert not {name for name in names if below(name, "isolaw.findings")}
    if below(module, "isolaw.findings"):
        assert not {name for name in names if below(name, "isolaw.cli", "isolaw.report")}
    if not below(module, "isolaw.cli", "isolaw.report"):
        at_run_time = imported(module, for_types=False)  # `Law.plot` may name what it returns
        assert {name for name in at_run_time if name.split(".")[0] in DRAWING} == set()
        assert not prints(MODULES[module].read_text())
    if not below(module, "isolaw.backends.real", "isolaw.executors"):
        assert {name for name in names if name.split(".")[0] in CLUSTER} == set()
    assert not {name.split(".")[0] for name in names} & {"pickle", "cPickle", "dill", "cloudpickle", "shelve"}
