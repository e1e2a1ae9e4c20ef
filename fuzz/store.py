"""Damage sweeps' directories, and see that isolaw mends or refuses them: ``python fuzz/store.py``.

Each case copies a sweep (in progress, finished, extended), damages it one to three times (a flipped bit, a
cut, a file swapped for another, a folder, a link, a pipe, another version, …), and gives the sweep's own
command. What must hold: rows that can be read are those of an undamaged sweep; the command either mends the
sweep, so that its table equals the undamaged one, or refuses with one message that names the entry, and
without that entry mends it; what links lead to is as it was; no exception.

Links lead to a folder of the scratch directory. Where mount namespaces are to be had, nothing else can be
written either.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

ROOT = Path(__file__).parents[1]
ALONE = "ISOLAW_FUZZ_ALONE"  # set where all but the scratch directory is read-only
SWEEP = """\
[sweep]
compute = 20_000
seeds = 2
[grid]
problems_per_batch = [8]
rollouts_per_problem = [4, 16]
[problems]
n_train = 50
n_validation = 40
[evaluation]
points = 8
[executor]
kind = "inline"
"""
LARGER = ("--set", "sweep.compute=4e4")
# Entries that isolaw makes, and that may be damaged, in a directory of another's choosing.
NAMED = re.compile(r"(?:isolaw: |  - )(/[^:\n]+): ")


@dataclass(frozen=True)
class Base:
    """A sweep to damage, the options of the command that goes on with it, and the rows that must come out."""

    folder: Path
    options: tuple[str, ...]
    rows: dict[tuple[Any, ...], Any]


def command(out: Path, *options: str) -> list[str]:
    return ["sweep", str(out.parent / "sweep.toml"), "--out", str(out), *options]


def call(arguments: list[str]) -> tuple[int, str, str]:
    from isolaw.cli import run

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(arguments)
    return code, out.getvalue(), err.getvalue()


def rows(runs: Any) -> dict[tuple[Any, ...], Any]:
    """Everything but wall_s, by key."""
    table = runs.to_pandas().drop(columns="wall_s").astype(object)
    return {tuple(row[:1] + row[5:]): row for row in table.where(table.notna(), None).itertuples(index=False)}


def bases(scratch: Path) -> dict[str, Base]:
    from isolaw import engine
    from isolaw.config import SweepSpec

    (scratch / "sweep.toml").write_text(SWEEP)

    def spec(*options: str) -> SweepSpec:
        return SweepSpec.read(scratch / "sweep.toml", [word for word in options if word != "--set"])

    def begun(name: str, events: int, *options: str) -> Path:
        """Killed after so many events, with states that are and are not published."""
        folder = scratch / name
        made = engine.execute(engine.resolve_sweep(spec(*options), folder), folder, SWEEP)
        for _ in range(events):
            next(made)
        made.close()
        (folder / "lock").write_text(f"process {2**22 + 1} on {socket.gethostname()}\nmark\n")
        return folder

    def truth(*stages: tuple[str, ...]) -> dict[tuple[Any, ...], Any]:
        folder = scratch / f"truth-{len(list(scratch.iterdir()))}"
        return rows([engine.sweep(spec(*options), folder) for options in stages][-1])

    whole = truth(())
    extended = truth((), LARGER)
    with publishing_often():
        in_progress = begun("in-progress", 15)
    finished = scratch / "finished"
    engine.sweep(scratch / "sweep.toml", finished)
    more = scratch / "extended"
    shutil.copytree(finished, more)
    with publishing_often():
        begun("extended", 7, *LARGER)
    return {
        "in progress": Base(in_progress, (), whole),
        "finished": Base(finished, (), whole),
        "finished, then extended": Base(finished, LARGER, extended),
        "extended": Base(more, LARGER, extended),
    }


@contextlib.contextmanager
def publishing_often() -> Any:
    """States are published at every other checkpoint, however short the run."""
    from isolaw.store import run

    kept = run.PUBLISH_EVERY_S, run.PUBLISHING_SHARE
    run.PUBLISH_EVERY_S, run.PUBLISHING_SHARE = 0.0005, 1e9
    try:
        yield
    finally:
        run.PUBLISH_EVERY_S, run.PUBLISHING_SHARE = kept


# -- damage ------------------------------------------------------------------------------------------------


def entries(out: Path) -> list[Path]:
    """All that can be damaged, in an order that does not depend on the file system."""
    return sorted(path for path in out.rglob("*"))


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def on_content(change: Callable[[bytearray, int], Any]) -> Callable[[Path, int, list[Path], Path], None]:
    def damage(path: Path, number: int, everything: list[Path], mine: Path) -> None:
        if path.is_file() and not path.is_symlink():
            content = bytearray(path.read_bytes())
            if content:
                changed = change(content, number)
                path.write_bytes(content if changed is None else changed)

    return damage


def flip(content: bytearray, number: int) -> None:
    content[number // 8 % len(content)] ^= 1 << number % 8


def digit(content: bytearray, number: int) -> None:
    """Another digit for one: what no parser minds."""
    places = [at for at, byte in enumerate(content) if byte in b"0123456789"]
    if places:
        content[places[number % len(places)]] = ord("0") + number // 7 % 10


def overwrite(content: bytearray, number: int) -> None:
    at = number % len(content)
    content[at : at + 16] = number.to_bytes(8, "little") * 2


def version(content: bytearray, number: int) -> bytes:
    old = [b"isolaw.sweep/1", b'"crc": "', b"20000", b'"step": ', b'"compute":', b"bandit"]
    new = [b"isolaw.sweep/9", b'"crd": "', b"60000", b'"stop": ', b'"computf":', b"arctic"]
    return bytes(content).replace(old[number % 6], new[number % 6])


def unsealed(content: bytearray, _number: int) -> bytes:
    return re.sub(rb',\s*"crc": ?"[0-9a-f]{8}"', b"", bytes(content))


def instead(make: Callable[[Path, Path, int], None]) -> Callable[[Path, int, list[Path], Path], None]:
    """Something of another kind in the place of an entry."""

    def damage(path: Path, number: int, everything: list[Path], mine: Path) -> None:
        if os.path.lexists(path):
            remove(path)
            make(path, mine, number)

    return damage


def swap(path: Path, number: int, everything: list[Path], mine: Path) -> None:
    """Two entries of one name (of two runs, say) change places; or any two of one folder."""
    others = [p for p in everything if p.name == path.name and p != path] or list(path.parent.iterdir())
    other = others[number % len(others)]
    inside = path.is_relative_to(other) or other.is_relative_to(path)
    if os.path.lexists(path) and os.path.lexists(other) and not inside:
        aside = path.with_name("aside")
        path.rename(aside)
        other.rename(path)
        aside.rename(other)


def link(path: Path, mine: Path, number: int) -> None:
    path.symlink_to([mine, mine / "file", mine / "nothing", mine / "runs"][number % 4])


def move_and_link(path: Path, number: int, everything: list[Path], mine: Path) -> None:
    """As somebody does who needs room on this disk."""
    if os.path.lexists(path) and not path.is_symlink():
        target = mine / f"moved-{len(list(mine.iterdir()))}"
        shutil.move(path, target)
        path.symlink_to(target)


def folder(path: Path, mine: Path, number: int) -> None:
    path.mkdir()
    if number % 2:
        (path / "mine").write_text("mine")


DAMAGE: dict[str, Callable[[Path, int, list[Path], Path], None]] = {
    "flip": on_content(flip),
    "flip more": on_content(lambda content, number: [flip(content, number * k) for k in (1, 3, 7)] and None),
    "digit": on_content(digit),
    "cut": on_content(lambda content, number: content[: number % len(content)]),
    "empty": on_content(lambda content, number: b""),
    "zeros": on_content(lambda content, number: content[: number % len(content)] + bytes(64)),
    "garbage": on_content(lambda content, number: content + number.to_bytes(8, "little")),
    "overwrite": on_content(overwrite),
    "nested": on_content(lambda content, number: b"[" * 100_000),
    "infinite": on_content(lambda content, number: b'{"compute": Infinity, "step": 1, "checkpoints": 1}\n'),
    "version": on_content(version),
    "unsealed": on_content(unsealed),
    "delete": lambda path, number, everything, mine: remove(path),
    "file": instead(lambda path, mine, number: path.write_bytes(b"mine" * (number % 2)) and None),
    "folder": instead(folder),
    "link": instead(link),
    "move and link": move_and_link,
    "pipe": instead(lambda path, mine, number: os.mkfifo(path)),
    "swap": swap,
}
damages = st.tuples(st.sampled_from(sorted(DAMAGE)), st.integers(0, 10**6), st.integers(0, 2**40))


# -- what must hold ----------------------------------------------------------------------------------------


def digest(folder: Path) -> dict[str, Any]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


def forgotten(out: Path) -> bool:
    """Whether nothing is left that says what the sweep was."""
    from isolaw.errors import Damaged, StoreError
    from isolaw.store import SweepStore

    store = SweepStore(out)
    try:
        try:
            return not store.exists or store.read_spec() is None
        except Damaged:
            return not store.run_ids()
    except StoreError:  # something else in the place of its files
        return False


def said_once(err: str, out: Path) -> None:
    """One message, which names something below the directory."""
    messages = [line for line in err.splitlines() if line.startswith("isolaw: ")]
    assert len(messages) == 1, err
    assert str(out) in messages[0], err


def check(base: Base, kinds: list[tuple[str, int, int]], scratch: Path) -> str:
    """Damage a copy, mend it, and say how that went."""
    from isolaw.errors import NoHistory, StoreError
    from isolaw.store import SweepStore

    case = scratch / "case"
    shutil.rmtree(case, ignore_errors=True)
    case.mkdir()
    out, mine = case / "out", case / "mine"
    (case / "sweep.toml").write_text(SWEEP)
    shutil.copytree(base.folder, out)
    (mine / "runs").mkdir(parents=True)
    (mine / "file").write_text("mine")
    (mine / "12").mkdir()
    (mine / "12" / "state.json").write_text("mine")
    for kind, place, number in kinds:
        everything = entries(out)
        if everything:
            DAMAGE[kind](everything[place % len(everything)], number, everything, mine)
    before = digest(mine)

    code, _, err = call(["status", str(out)])
    if code:
        said_once(err, out)
    with contextlib.suppress(StoreError, NoHistory, FileNotFoundError):  # nothing can be read
        read = rows(SweepStore(out).collect())
        wrong = [key for key, row in read.items() if base.rows.get(key) != row]
        assert not wrong, f"rows that nobody made: {wrong[:3]}"

    refused = 0
    while True:
        if forgotten(out):
            return "nothing of a sweep left"
        code, _, err = call(command(out, *base.options))
        assert digest(mine) == before, "what a link leads to has changed"
        if code == 0:
            break
        assert code == 2, f"exit code {code}: {err}"
        said_once(err, out)
        named = [
            path for path in map(Path, NAMED.findall(err)) if out in path.parents and os.path.lexists(path)
        ]
        if not named and "is in use by" in err:
            named = [out / "lock"]
        assert named, f"names nothing that is there: {err}"
        for path in named:
            remove(path)
        refused += 1
        assert refused < 9, err
    assert rows(SweepStore(out).collect()) == base.rows
    assert call(["status", str(out)])[0] == 0
    return "refused, then mended" if refused else "mended"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="isolaw-fuzz-") as name:
        scratch = Path(name)
        if ALONE not in os.environ and (how := namespace(scratch)):
            sys.exit(subprocess.run(how, env={**os.environ, ALONE: str(scratch)}, check=False).returncode)
        warnings.simplefilter("ignore")
        run(Path(os.environ.get(ALONE, scratch)), options.cases, options.seed)


def run(scratch: Path, cases: int, number: int) -> None:
    counts: Counter[str] = Counter()
    made = bases(scratch)

    @seed(number)
    @settings(
        max_examples=cases,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    @given(st.sampled_from(sorted(made)), st.lists(damages, min_size=1, max_size=3))
    def attack(name: str, kinds: list[tuple[str, int, int]]) -> None:
        counts[f"{name}: {check(made[name], kinds, scratch)}"] += 1

    attack()
    for line, count in sorted(counts.items()):
        print(f"{count:6}  {line}")
    place = "nothing but {} could be written" if ALONE in os.environ else "in {}"
    print(f"{sum(counts.values()):6}  cases, seed {number}; {place.format(scratch)}")


def namespace(scratch: Path) -> list[str]:
    """The command that is this one where nothing but the scratch directory, and caches, can be written."""
    caches = [str(path) for path in ROOT.glob("isolaw/**/__pycache__")]
    script = (
        'set -eu; mount --make-rprivate /; for d in "$@"; do mount --bind "$d" "$d"; done\n'
        # Last ones first: what lies above a mount is still to be seen.
        "cut -d' ' -f2 /proc/self/mounts | tac | while read -r m; do m=$(printf '%b' \"$m\"); keep=\n"
        '  for d in "$@"; do [ "$m" = "$d" ] && keep=1; done\n'
        "  case $m in /proc*|/sys*|/dev*) keep=1;; esac\n"
        '  [ -n "$keep" ] || mount -o remount,bind,ro "$m" 2>/dev/null || true; done\n'
        'if touch "$HOME/.isolaw-fuzz" 2>/dev/null; then rm -f "$HOME/.isolaw-fuzz"; exit 9; fi\n'
        f'cd "$1"; exec "{sys.executable}" -P "{Path(__file__).resolve()}" $ISOLAW_FUZZ_WORDS'
    )
    for how in (["unshare", "-m"], ["unshare", "-rm"]):
        probe = subprocess.run([*how, "mount", "--bind", "/", "/"], capture_output=True, check=False)
        if probe.returncode == 0:
            os.environ["ISOLAW_FUZZ_WORDS"] = " ".join(sys.argv[1:])
            return [*how, "sh", "-c", script, "sh", str(scratch), *caches]
    return []


if __name__ == "__main__":
    main()
