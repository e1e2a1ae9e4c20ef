"""Write the stored outputs anew: python -m tests.golden [GROUP…]; then read what git diff shows."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from .outputs import GROUPS, HERE, outputs

for group in sys.argv[1:] or GROUPS:
    with tempfile.TemporaryDirectory() as folder:
        written = set()
        for path, text in outputs(group, Path(folder)):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
            written.add(path)
    for path in {*(HERE / group).glob("*.txt")} - written:
        path.unlink()
    print(f"{group}: {len(written)} commands")
