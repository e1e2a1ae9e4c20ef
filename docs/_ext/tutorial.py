"""What every tutorial does first, in a hidden cell: a folder of its own, with the examples, and ``%%sh``."""

from __future__ import annotations

import atexit
import os
import subprocess
import tempfile
from pathlib import Path

from IPython import get_ipython


def sh(line: str, cell: str) -> None:
    """Print what a command prints; a command that fails fails the build."""
    plain = {name: value for name, value in os.environ.items() if "COLOR" not in name}  # no progress bars
    done = subprocess.run(
        ["sh", "-euc", cell],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        env=plain,
    )
    print(done.stdout, end="")
    done.check_returncode()


shell = get_ipython()
shell.register_magic_function(sh, "cell")
shell.run_line_magic("matplotlib", "inline")
shell.run_line_magic("config", 'InlineBackend.figure_formats = ["svg"]')
scratch = tempfile.TemporaryDirectory()
atexit.register(scratch.cleanup)
os.chdir(scratch.name)
Path("examples").symlink_to(Path(__file__).parents[2] / "examples")
