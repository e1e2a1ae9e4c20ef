"""A law is the same on every processor, whichever kernel BLAS takes, with a thread or two, in scalar code."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from isolaw import engine
from isolaw.config import SweepSpec

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.numbers]

DATA = Path(__file__).parents[2] / "examples" / "data"
# "generic" and the tunables stand for a processor without AVX2 and FMA, in Numba's code and in libm.
PLAIN = {"NUMBA_CPU_NAME": "generic", "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-FMA"}
PROCESSORS = {
    "Haswell": {"OPENBLAS_NUM_THREADS": "2"},
    "Prescott": {"OPENBLAS_NUM_THREADS": "1", **PLAIN},
    "SkylakeX": {"OPENBLAS_NUM_THREADS": "1"},
}
SWEEP = SweepSpec.parse(
    {
        "sweep": {"compute": 300_000, "seeds": 3},
        "grid": {"problems_per_batch": [16, 32, 64], "rollouts_per_problem": [8, 16, 32, 64, 128]},
        "problems": {"n_train": 300, "n_validation": 200},
        "evaluation": {"points": 30},
        "executor": {"kind": "inline"},
    }
)
QWEN = [
    *(str(DATA / "tan_rollout_n_base.csv"), "--metric", "holdout_acc_raw", "--set", "B_p=512"),
    *("--column", "n=rollout_n", "--column", "C=prompts_seen*rollout_n"),
]
FITS = {
    "B_p": ["{sweep}", "--where", "problems_per_batch=32"],
    "B": ["{sweep}", "--hold", "B"],
    "joint": ["{sweep}", "--hold", "nothing"],
    "paper": ["{sweep}", "--method", "paper", "--where", "problems_per_batch=32"],
    "joint paper": ["{sweep}", "--method", "paper", "--hold", "nothing"],
    "one seed": ["{sweep}", "--hold", "nothing", "--where", "seed=0"],
    "qwen": QWEN,
    "qwen paper": [*QWEN, "--method", "paper"],
    "arithmetic": [str(DATA / "real-arithmetic.parquet"), "--where", "problem_set=hard"],
}
BUDGETS = ("100000", "1e6")

# Run in a process of its own: the kernel is chosen when NumPy is imported.
WORK = """
import contextlib, ctypes, io, json, pathlib, sys
import numpy, scipy.linalg
from isolaw.cli import run
fits, budgets = json.loads(sys.argv[1])
out = {"kernels": []}
for package in (numpy, scipy):
    library, = pathlib.Path(package.__file__).parent.with_suffix(".libs").glob("*openblas*")
    name = "scipy_openblas_get_corename" + ("64_" if package is numpy else "")
    corename = getattr(ctypes.CDLL(str(library)), name)
    corename.restype = ctypes.c_char_p
    out["kernels"].append(corename().decode())
def call(*arguments):
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(io.StringIO()):
        code = run(arguments)
    assert code == 0 or (arguments[0] == "predict" and code == 1)  # nothing is recommended
    return said.getvalue()
for name, arguments in fits.items():
    fit = "fit", *arguments, "--draws", "60", "--out", "law.json", "--json"
    out[name] = {"law": json.loads(call(*fit))}
    for budget in budgets:
        predict = "predict", "law.json", "--compute", budget
        out[name][budget] = {"json": json.loads(call(*predict, "--json")), "text": call(*predict).split()}
json.dump(out, sys.stdout)
"""


def found(kernel: str, sweep: Path, folder: Path) -> dict[str, Any]:
    """All laws and predictions, as a process with this kernel finds them."""
    folder.mkdir()
    fits = {name: [a.format(sweep=sweep) for a in arguments] for name, arguments in FITS.items()}
    command = [sys.executable, "-c", WORK, json.dumps([fits, BUDGETS])]
    environment = os.environ | PROCESSORS[kernel] | {"OPENBLAS_CORETYPE": kernel}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    out: dict[str, Any] = json.loads(done.stdout)
    return out


def has_avx512() -> bool:
    info = Path("/proc/cpuinfo")
    return info.is_file() and "avx512f" in info.read_text()


_NOWHERE = 1e3  # doublings, or decades: so far only what nothing determines goes


def differing(a: Any, b: Any, where: str = "") -> list[str]:
    """The leaves that are not the same, numbers to more than rounding."""
    if "/params/" in where and isinstance(a, dict) and a["status"] not in ("ok", "lower_bound"):
        a, b = (
            a["status"],
            b["status"],
        )  # a law that is not determined: far parameters fit as well as farther ones
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        return [line for key in a for line in differing(a[key], b[key], f"{where}/{key}")]
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        return [line for i in range(len(a)) for line in differing(a[i], b[i], f"{where}/{i}")]
    if type(a) is type(b) is float:
        # A law's likelihood is searched to the few digits that a comparison of laws needs. Where a draw does
        # not determine its law, the search ends somewhere along a flat valley, and an interval shows it.
        of_a_law = "/comparison/laws/" in where or ("/interval/" in where and "/params/" in where)
        digits = 1e-2 if of_a_law else 1e-4 if "/surface/theta/" in where else 1e-5
        same = math.isclose(a, b, rel_tol=digits, abs_tol=1e-8)
        same |= of_a_law and min(abs(a), abs(b)) > _NOWHERE and (a > 0) == (b > 0)
    else:
        same = a == b or where.endswith("bootstrap/file")  # which is named by its bytes
    return [] if same else [f"{where}: {a!r}, {b!r}"]


@pytest.mark.skipif(
    sys.platform != "linux" or os.uname().machine != "x86_64", reason="kernels of Linux on x86-64"
)
def test_a_law_is_the_same_on_every_processor(tmp_path: Path) -> None:
    sweep = tmp_path / "sweep"
    engine.sweep(SWEEP, sweep)
    kernels = [k for k in PROCESSORS if k != "SkylakeX" or has_avx512()]
    laws = {k: found(k, sweep, tmp_path / k) for k in kernels}
    ran = {k: law.pop("kernels") for k, law in laws.items()}
    assert len({tuple(names) for names in ran.values()}) == len(kernels), ran
    for kernel in kernels[1:]:
        different = differing(laws["Haswell"], laws[kernel])
        assert not different, f"{kernel}: " + "\n".join(different)
