"""Damaged documents: ``python fuzz/documents.py [--cases 1000]``.

Presets and a race's decisions are cut, flipped and spliced at random. Each is then read, refused
with an `InputError`, or made again; nothing else may happen, and none takes 2 s.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from isolaw import engine
from isolaw.design import directory
from isolaw.errors import InputError
from isolaw.simulators.presets import FOLDER, read_preset
from isolaw.store import SweepStore

LIMIT_S = 2.0
RACE = {
    "sweep": {"compute": 20_000, "seeds": 1},
    "grid": {"problems_per_batch": [8], "rollouts_per_problem": [2, 4, 8, 16]},
    "problems": {"n_train": 50, "n_validation": 50},
    "evaluation": {"points": 8},
    "design": {"kind": "race", "spend": 0.9},
    "executor": {"kind": "inline"},
}
SPLICED = (b"nan", b"inf", b"1e999", b"9" * 500, b"[" * 300, b"\0" * 50, b"a." * 300)


def damaged(sound: bytes, rng: random.Random) -> bytes:
    """Return a document with some bytes flipped, cut out, repeated, or replaced by hostile text."""
    out = bytearray(sound)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(out) + 1)
        end = min(len(out), at + rng.choice((1, 8, 200, len(out))))
        what = rng.randrange(5)
        if what == 0 and out[at:end]:
            out[at] ^= 1 << rng.randrange(8)
        elif what == 1:
            del out[at:end]
        elif what == 2:
            out[at:at] = out[at:end]
        elif what == 3:
            out[at:at] = rng.choice(
                (b"nan", b"inf", b"1e999", b"9" * 500, b"[" * 300, b"\0" * 50, b"a." * 300)
            )
        else:
            out = out[:at]
        out = out[:2_000_000] or bytearray(b"\n")
    return bytes(out)


def kinds(folder: Path) -> dict[str, tuple[Path, bytes, Callable[[], object]]]:
    """Of each kind: where it is read, a sound one, and what reads it."""
    engine.sweep(RACE, folder / "race")
    store = SweepStore(folder / "race")
    decisions = folder / "race" / "decisions.jsonl"
    preset = folder / "preset.toml"
    shipped = (FOLDER / "published-easy.toml").read_bytes()
    return {
        "preset": (preset, shipped, lambda: read_preset(preset)),
        "decisions": (decisions, decisions.read_bytes(), lambda: directory.race_state(store)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=1000)
    options = parser.parse_args()
    rng = random.Random(34)
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory(prefix="isolaw-documents-") as name:
        for kind, (path, sound, read) in kinds(Path(name)).items():
            counts, slowest = Counter[str](), 0.0
            for _ in range(options.cases):
                path.write_bytes(damaged(sound, rng))
                began = time.monotonic()
                try:
                    read()
                    counts["read, or made again"] += 1
                except InputError:
                    counts["refused"] += 1
                slowest = max(slowest, time.monotonic() - began)
                assert slowest < LIMIT_S, f"{kind}: {slowest:.1f} s"
            shown = ", ".join(f"{what}: {count}" for what, count in sorted(counts.items()))
            print(f"{kind}: {shown}; slowest {slowest:.2f} s", flush=True)


if __name__ == "__main__":
    main()
