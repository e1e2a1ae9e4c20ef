"""What importing costs, and which module may know which."""

from __future__ import annotations

import ast
import functools
import graphlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import isolaw

PACKAGE = Path(isolaw.__file__).parent
MODULES = {
    ".".join(("isolaw", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}

# From the ground up: a module imports from its own room and from lower floors, for types too.
FLOORS = (
    {"errors"},
    {"commands", "guard", "registry"},
    {"children", "evidence", "files"},
    {
        "allocation",
        "machine",
        "metrics",
        "parquet",
        "step_cost",
    },
    {"arguments", "documents"},
    {"config", "runs"},
    {"backend", "simulators"},
    {"store"},
    {"readers"},
    {"costs", "fits"},
    {"doctor"},
    {"backends"},
    {"design"},
    {"executors"},
    {"trackers"},
    {"resolve"},
    {"engine", "preview"},
    {"first_sweeps"},
    {"report"},
    {"cli"},
    {"__main__"},
)
FLOOR = {f"isolaw.{room}": height for height, rooms in enumerate(FLOORS) for room in rooms}
SCHEDULERS = {"ray", "submitit"}
CLUSTER = {"torch", "vllm", "deepspeed"} | SCHEDULERS
DRAWING = {"matplotlib", "click", "rich"}
HEAVY = CLUSTER | {"matplotlib", "numba", "pandas", "scipy", "pyarrow", "pydantic", "rich"}


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
            names = {f"{base}.{alias.name}" for alias in node.names}
            out |= names if names <= MODULES.keys() else {base, *names}
    return out


@functools.cache
def imported(module: str, for_types: bool = True) -> set[str]:
    path = MODULES[module]
    return imports(path.read_text(), module, path.name == "__init__.py", for_types)


def prints(text: str) -> bool:
    if not re.search(r"print\(|echo|stdout|stderr", text):  # to look at all calls takes longest
        return False
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


@pytest.mark.slow
def test_nothing_ever_brings_a_cluster() -> None:
    loaded = run(
        "import sys, isolaw, isolaw.cli, isolaw.report.figures\n"
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


def test_a_folder_names_no_cache_of_compiled_functions(tmp_path: Path) -> None:
    (tmp_path / ".numba_config.yaml").write_text("cache_dir: here\n")
    command = (
        "import isolaw, isolaw.simulators.draws; from numba.core import config; print(repr(config.CACHE_DIR))"
    )
    done = subprocess.run(
        [sys.executable, "-c", command], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout == "''\n"


def test_help_loads_nothing_heavy() -> None:
    """What takes time at the start of a command is imports (benchmarks/startup.py)."""
    loaded = run("import sys\nfrom isolaw.cli import run\nrun(['--help'])\nprint(*sys.modules)")
    assert "Usage: isolaw" in loaded
    assert (HEAVY | {"numpy"}) & set(loaded.split()) == set()


# The import rule


def test_the_reader_of_imports_sees_them_all() -> None:
    text = (
        "import a.b, c as d\nfrom isolaw import engine\nfrom isolaw.store import x\nfrom . import y\n"
        "from ..cli import z\ndef f():\n  import lazily\nif TYPE_CHECKING:\n  from typed import t\n"
    )
    at_run_time = {
        "a.b", "c", "isolaw.engine", "isolaw.store", "isolaw.store.x", "isolaw.fits",
        "isolaw.fits.y", "isolaw.cli", "isolaw.cli.z", "lazily",
    }  # fmt: skip
    assert imports(text, "isolaw.fits.law", is_package=False) == at_run_time | {"typed", "typed.t"}
    assert imports(text, "isolaw.fits.law", is_package=False, for_types=False) == at_run_time
    assert imports("from .x import y", "isolaw.fits", is_package=True) == {"isolaw.fits.x", "isolaw.fits.x.y"}
    assert prints("def f():\n  print(1)")
    assert prints("click.echo('x', err=True)")
    assert not prints("pprint(1); x.print()")


def room(name: str) -> str | None:
    """The room that a module, or a name in it, belongs to."""
    while name not in FLOOR and name:
        name = name.rpartition(".")[0]
    return name or None


def test_every_module_has_a_room() -> None:
    assert [name for name in FLOOR if name not in MODULES] == []
    assert [name for name in MODULES if room(name) is None] == ["isolaw"]


@pytest.mark.slow
def test_no_floor_imports_from_a_higher_one() -> None:
    wrong = []
    for module in MODULES:
        here = room(module)
        for name in imported(module) if here else ():
            there = room(name)
            if there and here != there and FLOOR[there] >= FLOOR[here]:
                wrong.append(f"{module} imports {name}")
    assert wrong == []


@pytest.mark.slow
def test_nobody_goes_through_the_door_from_inside() -> None:
    """`isolaw` leads everywhere: only commands, which are outside, use it."""
    through = {"isolaw"} | {f"isolaw.{name}" for name in isolaw.__all__ if f"isolaw.{name}" not in MODULES}
    wrong = [
        f"{module} imports {sorted(names)}"
        for module in MODULES
        if not below(module, "isolaw.cli") and module != "isolaw" and (names := through & imported(module))
    ]
    assert wrong == []


def test_no_modules_import_each_other() -> None:
    """Also for types, and within functions. `isolaw` itself is the door, and no room."""
    graph = {module: imported(module) & MODULES.keys() - {module, "isolaw"} for module in MODULES}
    graphlib.TopologicalSorter(graph).prepare()  # a CycleError names the circle


@pytest.mark.slow
def test_what_only_some_may_import() -> None:
    """Drawing and printing, frameworks of training and clusters, and nothing that executes what it loads."""
    wrong = []
    for module, path in MODULES.items():
        packages = {name.split(".")[0] for name in imported(module)}
        forbidden = {"pickle", "cPickle", "dill", "cloudpickle", "shelve"}
        if module == "isolaw.backends.real.train.process_group":  # it refuses what others pickle
            forbidden.remove("pickle")
        if not below(module, "isolaw.backends.real"):
            forbidden |= CLUSTER - SCHEDULERS
        if not below(module, "isolaw.executors"):
            forbidden |= SCHEDULERS
        if not below(module, "isolaw.cli", "isolaw.report"):
            at_run_time = {name.split(".")[0] for name in imported(module, for_types=False)}
            wrong += [f"{module} imports {name}" for name in at_run_time & DRAWING]  # types may be named
            wrong += [f"{module} prints"] * prints(path.read_text())
        wrong += [f"{module} imports {name}" for name in packages & forbidden]
    assert wrong == []


def test_one_name_has_one_meaning() -> None:
    """A class or an alias that two modules define is the same in both."""
    meanings: dict[str, set[str]] = {}
    for module, path in MODULES.items():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                name, meaning = node.name, f"a class of {module}"
            elif isinstance(node, ast.Assign) and isinstance(target := node.targets[0], ast.Name):
                name, meaning = target.id, ast.unparse(node.value)
            else:
                continue
            if name[0].isupper() and not name.isupper():
                meanings.setdefault(name, set()).add(meaning)
    assert {name: item for name, item in meanings.items() if len(item) > 1} == {}


@pytest.mark.slow
def test_no_code_of_a_model_is_executed() -> None:
    for name, path in MODULES.items():
        text = path.read_text()
        for call in ast.walk(ast.parse(text)) if ".from_" in text else ():
            of = call.func if isinstance(call, ast.Call) else None
            if isinstance(of, ast.Attribute) and ast.unparse(of).startswith("Auto"):
                is_spread = "**" in ast.unparse(call) and '"trust_remote_code": False' in text
                assert is_spread or "trust_remote_code=False" in ast.unparse(call), name
