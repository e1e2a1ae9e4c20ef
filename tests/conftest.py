"""What all tests share: deterministic hypothesis, no silent skip in CI, and a few fixtures."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import few_draws
import pandas as pd
import psutil
import pytest
from golden.outputs import in_turn
from hypothesis import HealthCheck, settings
from preloaded import locked
from shared_laws import SharedLaws

from isolaw.backends.real import environment
from isolaw.config import SweepSpec

# A busy machine is no reason to fail. An expensive test takes `settings().max_examples // 4`.
for _name, _examples in (("isolaw", 50), ("nightly", 200)):
    settings.register_profile(
        _name,
        max_examples=_examples,
        deadline=None,
        derandomize=True,
        suppress_health_check=[HealthCheck.too_slow],
    )
_PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "isolaw")
settings.load_profile(_PROFILE)


_COMPILING = (
    """
import numpy as np
from isolaw.fits.curves.learning_curves import fit_curves
c = np.geomspace(1, 100, 8)
for family in ("exp", "hill", "power"):
    fit_curves(c, 1 - np.exp(-c / 20)[None], np.ones((1, 8)), family)
""",
    """
from isolaw import engine
for model in ("interference", "tabular"):
    size = {} if model == "tabular" else {"n_train": 16, "n_validation": 16}
    grid = {"problems_per_batch": [1], "rollouts_per_problem": [8]}
    engine.sweep({"sweep": {"compute": 2000, "seeds": 1}, "grid": grid, "problems": size,
        "bandit": {"model": model}, "evaluation": {"points": 2}, "executor": {"kind": "inline"}})
""",
)


def pytest_configure(config: pytest.Config) -> None:
    """Compile the kernels once, side by side, before the workers of pytest-xdist would each do it."""
    if hasattr(config, "workerinput") or not getattr(config.option, "numprocesses", None):
        return
    if config.option.collectonly:
        return
    processes = [subprocess.Popen([sys.executable, "-c", text]) for text in _COMPILING]
    for process in processes:
        process.wait()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without a GPU, tests that need one are deselected; with ``-m gpu`` they are skipped, and say why."""
    if environment.gpus():
        return
    theirs = [item for item in items if item.get_closest_marker("gpu")]
    if "gpu" in config.getoption("markexpr"):
        for item in theirs:
            item.add_marker(pytest.mark.skip(reason="needs a GPU: nvidia-smi lists none that may be used"))
    elif theirs:
        config.hook.pytest_deselected(items=theirs)
        items[:] = [item for item in items if not item.get_closest_marker("gpu")]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Fit and predict with few draws in tests not marked ``numbers``, but not in doctests or nightly runs.

    One thread suffices, since tests go side by side.
    """
    with pytest.MonkeyPatch.context() as patch:
        if item.path.name != "test_blas.py":
            in_turn(patch)
        doctest = not item.path.is_relative_to(Path(__file__).parent)
        if not (doctest or _PROFILE == "nightly" or item.get_closest_marker("numbers")):
            few_draws.apply(patch.setattr, patch.setitem)
        return (yield)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """In CI a skipped test is a failure, unless it needs a GPU."""
    outcome = yield
    report = outcome.get_result()
    if (
        report.skipped
        and os.environ.get("CI")
        and not item.get_closest_marker("gpu")
        and not hasattr(report, "wasxfail")
    ):
        report.outcome = "failed"
        report.longrepr = f"skipped in CI: {report.longrepr}"


@pytest.hookimpl(hookwrapper=True)
def pytest_make_collect_report(collector):
    """The same for a module that leaves itself out, where a package that it needs is not installed."""
    outcome = yield
    report = outcome.get_result()
    if report.skipped and os.environ.get("CI"):
        report.outcome = "failed"
        report.longrepr = f"skipped in CI: {report.longrepr}"


@pytest.fixture(scope="session")
def command() -> str:
    """Path of the console script, for what must happen in a process of its own."""
    return str(Path(sys.executable).with_name("isolaw"))


# Imports what the command line does, later or at once.
_COMMANDS = f"""
import importlib, pkgutil, sys, isolaw
import jinja2, matplotlib.backends.backend_agg, rich.progress, scipy.optimize
for module in pkgutil.walk_packages(isolaw.__path__, "isolaw."):
    if not any(part in module.name for part in (".real", ".ray", ".slurm", ".trackers", "__main__")):
        importlib.import_module(module.name)
sys.modules["isolaw.report.page.budgets"]._E6 = (1.0, 2.0, 5.0)  # a page's slider: each stop is a prediction
{_COMPILING[0]}
"""


@pytest.fixture(scope="session")
def preload() -> Iterator[Callable[[str], Path]]:
    """A folder with a `python` and an `isolaw` that begin after the imports of a program (`preloaded`).

    The workers of pytest-xdist share a server: it ends when none of them holds its standard input any more.
    """
    if not hasattr(os, "pidfd_open"):  # not Linux
        yield lambda code: Path(sys.executable).parent
        return
    session = os.environ.get("PYTEST_XDIST_TESTRUNUID") or uuid.uuid4().hex
    servers: list[subprocess.Popen[bytes]] = []
    with contextlib.ExitStack() as stack:

        @functools.cache
        def start(code: str) -> Path:
            name = hashlib.sha256(f"{session} {code}".encode()).hexdigest()[:16]
            folder = Path(tempfile.gettempdir(), f"preloaded-{name}")
            with locked(folder):
                if not (folder / "socket").exists():
                    serve(folder, code)
                held = os.open(folder / "held", os.O_WRONLY)
            stack.callback(os.close, held)
            return folder

        def serve(folder: Path, code: str) -> None:
            here, script = Path(__file__).parent, str(Path(sys.executable).with_name("isolaw"))
            address, python = str(folder / "socket"), str(folder / "python")
            for name, first in (("python", []), ("isolaw", [script])):
                (folder / name).write_text(
                    f"#!{sys.executable} -SEs\n"
                    f"import sys\n"
                    f"sys.path.insert(0, {str(here)!r})\n"
                    f"from preloaded import program\n"
                    f"program({address!r}, [*{first!r}, *sys.argv[1:]])\n"
                )
                (folder / name).chmod(0o755)
            words = [sys.executable, str(here / "preloaded.py"), "serve", address, python, code]
            one_thread = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
            os.mkfifo(folder / "held")
            held = os.open(folder / "held", os.O_RDONLY | os.O_NONBLOCK)
            writing = os.open(folder / "held", os.O_WRONLY)
            server = subprocess.Popen(words, stdin=held, env=one_thread, start_new_session=True)
            os.close(held)
            stack.callback(os.close, writing)
            servers.append(server)
            while not Path(address).exists():
                assert server.poll() is None, "the server that forks has not started"
                time.sleep(0.05)

        yield start
    if "PYTEST_XDIST_TESTRUNUID" not in os.environ:  # else others may need it
        for server in servers:
            server.wait()


@pytest.fixture(scope="session")
def commands(preload: Callable[[str], Path]) -> Path:
    """`preload` for the command line."""
    return preload(_COMMANDS)


@pytest.fixture(scope="session")
def preloaded(commands: Path) -> Path:
    """`preload` for what the tests of a folder start most."""
    return commands


@pytest.fixture(scope="session")
def shell(preloaded: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment whose `isolaw` fits with few draws: whether a documented command runs needs no more."""
    return _shell(tmp_path_factory.mktemp("bin"), 60, f'"{preloaded / "isolaw"}"')


@pytest.fixture(scope="session")
def hasty_shell(commands: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """`shell` with few draws of everything (`few_draws`), for commands whose output nobody reads."""
    program = f'"{commands / "python"}" "{Path(__file__).with_name("few_draws.py")}" isolaw'
    return _shell(tmp_path_factory.mktemp("hasty"), 20, program)


def _shell(folder: Path, draws: int, program: str, more: str = "") -> dict[str, str]:
    script = folder / "isolaw"
    script.write_text(
        "#!/bin/sh\n"
        'case "$1 $*" in\n'
        "  *--draws*|*nstar*|*--help*) ;;\n"
        f'  fit*|report*|model-size*) set -- "$@" --draws {draws} ;;\n'
        f"{more}"
        "esac\n"
        f'exec {program} "$@"\n'
    )
    script.chmod(0o755)
    path = os.pathsep.join([str(folder), str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**os.environ, "PATH": path}


@pytest.fixture
def isolaw(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run the command line in this process: exit code, standard output, standard error."""
    from isolaw.cli import run

    def call(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        code = run([str(a) for a in arguments])
        return code, *capsys.readouterr()

    return call


@pytest.fixture(scope="session")
def tiny() -> Callable[..., SweepSpec]:
    """A bandit sweep of a few milliseconds; each argument changes keys of a section."""

    def make(**sections: dict[str, Any]) -> SweepSpec:
        data: dict[str, dict[str, Any]] = {
            "sweep": {"compute": 20_000, "seeds": 2},
            "grid": {"problems_per_batch": [8], "rollouts_per_problem": [4, 16]},
            "problems": {"n_train": 50, "n_validation": 40},
            "evaluation": {"points": 8},
            "executor": {"kind": "inline"},
        }
        return SweepSpec.parse(
            data | {name: data.get(name, {}) | section for name, section in sections.items()}
        )

    return make


@pytest.fixture(scope="session")
def same() -> Callable[[Any, Any], None]:
    """Assert that two tables are equal in everything but wall_s."""

    def check(left: Any, right: Any) -> None:
        left, right = (t if isinstance(t, pd.DataFrame) else t.points for t in (left, right))
        assert len(left) > 0
        pd.testing.assert_frame_equal(left.drop(columns="wall_s"), right.drop(columns="wall_s"))

    return check


@pytest.fixture(scope="session")
def ended() -> Callable[[int], bool]:
    """Whether a process is gone, or a zombie that nobody has waited for."""

    def check(pid: int) -> bool:
        try:
            return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    return check


@pytest.fixture(scope="session")
def tree() -> Callable[[Path], dict[str, bytes | None]]:
    """Everything below a folder, with its content: equal before and after, if nothing was written."""

    def files(folder: Path) -> Iterator[tuple[str, bytes | None]]:
        for path in sorted(folder.rglob("*")):
            yield str(path.relative_to(folder)), path.read_bytes() if path.is_file() else None

    return lambda folder: dict(files(folder))


@pytest.fixture(scope="session")
def synthetic() -> Callable[..., Any]:
    """Runs with a known truth: ``reward(B_p, n, C)`` for each (B_p, n), plus noise.

    ``noise`` is the standard deviation of one evaluation, ``between`` that between seeds; ``compute``
    and ``start`` are the range of C, numbers or functions of (B_p, n); ``zero`` adds step 0.
    """
    import numpy as np

    from isolaw.runs import Runs

    def rising(_b: int, n: int, compute: Any) -> Any:
        ceiling = 0.5 + 0.03 * np.log2(n / 8)
        return ceiling - (ceiling - 0.3) * np.exp(-compute / (3e4 * (n / 8) ** 0.7))

    def make(
        configurations: Any,
        reward: Any = rising,
        *,
        seeds: Any = 3,
        noise: float = 1e-3,
        between: float = 0.0,
        checkpoints: int = 30,
        compute: Any = 1e6,
        start: Any = None,
        zero: bool = True,
        attributes: Any = None,
        rng: int = 0,
    ) -> Runs:
        generator = np.random.default_rng(rng)
        parts, facts = [], {}
        for b, n in configurations:
            last = compute(b, n) if callable(compute) else compute
            first = start(b, n) if callable(start) else start or b * n
            steps = np.unique(np.floor(np.geomspace(first, last, checkpoints) / (b * n) + 1e-9).astype(int))
            steps = np.concatenate([[0] if zero else [], steps[steps > 0]]).astype(int)
            for seed in range(seeds) if isinstance(seeds, int) else seeds:
                run_id = f"{b}x{n}s{seed}"
                value = reward(b, n, steps * float(b * n)) + noise * generator.standard_normal(steps.size)
                columns = {"run_id": run_id, "problems_per_batch": b, "rollouts_per_problem": n, "seed": seed}
                columns |= {"step": steps, "compute": steps * b * n}
                columns["value"] = value + between * generator.standard_normal()
                parts.append(pd.DataFrame(columns))
                facts[run_id] = dict(attributes or {})
        table = pd.concat(parts, ignore_index=True)
        return Runs(
            table.assign(problem_set="p", algorithm="grpo", eval_set="validation", metric="avg@4"), facts
        )

    return make


@pytest.fixture(scope="session")
def shared(synthetic: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> SharedLaws:
    """Laws that tests share; the folder is one for all workers of a test run."""
    folder = tmp_path_factory.getbasetemp()
    folder = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
    return SharedLaws(folder / "laws", synthetic)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A Ray cluster of this machine posing as two, with a core each."""
    import ray
    from ray.cluster_utils import Cluster

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    # Where Ray notes the address, whatever folder a cluster has; a new machine has no such folder yet.
    Path(tempfile.gettempdir(), "ray").mkdir(exist_ok=True)
    small = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:  # names are short
        head = {**small, "include_dashboard": False, "temp_dir": folder}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        try:
            cluster.add_node(**small)
            yield cluster
        finally:
            ray.shutdown()
            cluster.shutdown()


@pytest.fixture(scope="session")
def preset_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A preset with the constants of isolaw's population."""
    from dataclasses import asdict

    from isolaw.documents.reading import toml_text
    from isolaw.simulators.interference import PRESETS
    from isolaw.simulators.presets import FORMAT

    constants = {name: float(value) for name, value in asdict(PRESETS["P"]).items()}
    head = {"format": FORMAT, "model": "interference", "problems": "beta(3,4)", "n_train": 100}
    path = tmp_path_factory.mktemp("presets") / "preset.toml"
    path.write_text(toml_text({"preset": head, "constants": constants}))
    return path
