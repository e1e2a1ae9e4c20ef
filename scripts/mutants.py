"""Which small faults the tests notice: python scripts/mutants.py ROOT [--against OTHER] [--results FILE]

Copies the source tree ROOT to a scratch folder, changes one expression or statement of one function at a
time, runs the tests that mirror the changed module, and prints whether one fails that passes without the
change. A mutant that survives is a fault that no test there notices, or a change without effect.

The mutants are spread evenly over five areas of the package. The seed ranks them by a hash of function and
kind of mutation, so two versions of the package share most of theirs. With ``--against OTHER`` they share
them all: only functions that both trees contain are changed, and by the same change where both allow it.

Each result is one line of a JSON Lines file, and a repeated call runs only what the file lacks.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Files of each area; a pattern that starts with "!" takes files out. Older trees have other names for some.
AREAS = {
    "fits": ["fits/**/*.py", "!fits/curves/kernel.py"],
    "store": ["store/**/*.py"],
    "objective": [
        "backends/real/algorithms/**/*.py",
        "backends/real/objective.py",
        "backends/real/advantages.py",
        "backends/real/terms.py",
    ],
    "kernels": ["simulators/*.py", "fits/curves/kernel.py", "!simulators/reference.py"],
    "readers": ["readers/**/*.py", "logs/**/*.py"],
}
# The kinds of mutation that replace one operator class with another.
OPERATORS: dict[str, dict[type[ast.AST], type[ast.AST]]] = {
    "boundary": {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt},
    "negation": {
        ast.Lt: ast.GtE,
        ast.LtE: ast.Gt,
        ast.Gt: ast.LtE,
        ast.GtE: ast.Lt,
        ast.Eq: ast.NotEq,
        ast.NotEq: ast.Eq,
        ast.Is: ast.IsNot,
        ast.IsNot: ast.Is,
        ast.In: ast.NotIn,
        ast.NotIn: ast.In,
    },
    "arithmetic": {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult},
    "logic": {ast.And: ast.Or, ast.Or: ast.And},
}
Function = tuple[str, ...]  # qualified name, then the module's name where an area has the former twice


@dataclass(frozen=True)
class Mutant:
    """One change of one function; ``path`` is relative to the tree, ``start``, ``end`` are byte offsets."""

    area: str
    path: str
    function: str
    kind: str
    line: int
    old: str
    new: str
    start: int
    end: int
    repetition: int  # among equal changes of the function

    @property
    def change(self) -> str:
        return f"{self.old} -> {self.new}"

    @property
    def key(self) -> str:
        return f"{self.path}::{self.function}::{self.kind}::{self.change}::{self.repetition}"


def is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def expressions(node: ast.AST) -> Iterator[tuple[str, str]]:
    """The kinds of mutation of an expression, and the new source of each."""
    match node:
        case ast.Compare(left, ops, comparators):
            for kind in ("boundary", "negation"):
                for i, op in enumerate(ops):
                    if new := OPERATORS[kind].get(type(op)):
                        changed = ast.Compare(left, [*ops[:i], new(), *ops[i + 1 :]], comparators)  # type: ignore[list-item]
                        yield kind, f"({ast.unparse(changed)})"
        case ast.BinOp(left, op, right) if type(op) in OPERATORS["arithmetic"]:
            if not is_text(left) and not is_text(right):
                new = OPERATORS["arithmetic"][type(op)]
                yield "arithmetic", f"({ast.unparse(ast.BinOp(left, new(), right))})"  # type: ignore[arg-type]
        case ast.BoolOp(op, values):
            yield "logic", f"({ast.unparse(ast.BoolOp(OPERATORS['logic'][type(op)](), values))})"  # type: ignore[arg-type]
        case ast.UnaryOp(ast.Not(), operand):
            yield "not removed", f"({ast.unparse(operand)})"
        case ast.Constant(bool() as value):
            yield "truth", repr(not value)
        case ast.Constant(int() as value):
            yield "constant + 1", repr(value + 1)
            if value > 0:
                yield "constant - 1", repr(value - 1)
        case ast.Constant(float() as value):
            yield "constant x 1.1", repr(value * 1.1) if value else "1.1"


def statements(node: ast.AST) -> Iterator[tuple[str, str]]:
    """The kinds of mutation of a statement, and the new source of each."""
    match node:
        case ast.Return(value) if value is not None and not (
            isinstance(value, ast.Constant) and value.value is None
        ):
            yield "return None", "return None"
        case ast.Expr(ast.Call()) | ast.AugAssign() | ast.Continue() | ast.Break() | ast.Delete():
            yield "statement removed", "pass"
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]) | ast.If(orelse=[]):
            yield "statement removed", "pass"


def parts(node: ast.AST) -> Iterator[ast.AST]:
    """``node`` and what is below it, without annotations, texts, nested decorators and what errors say."""
    yield node
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "args") and not isinstance(node, ast.Call):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not is_text(child) and not isinstance(child, ast.Raise):
                yield from parts(child)


def functions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Each function and method of a module with its qualified name; a nested one belongs to the outer."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node
        elif isinstance(node, ast.ClassDef):
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield f"{node.name}.{inner.name}", inner


def mutants(root: Path, area: str) -> Iterator[Mutant]:
    """Every mutant of an area of the tree."""
    package = root / "isolaw"
    taken = {path for pattern in AREAS[area] if pattern[0] != "!" for path in package.glob(pattern)}
    left_out = {path for pattern in AREAS[area] if pattern[0] == "!" for path in package.glob(pattern[1:])}
    for path in sorted(taken - left_out):
        source = path.read_bytes()
        starts = [0]
        for row in source.splitlines(keepends=True):
            starts.append(starts[-1] + len(row))
        for name, function in functions(ast.parse(source)):
            seen: Counter[tuple[str, ...]] = Counter()
            body = function.body[1:] if ast.get_docstring(function) else function.body
            for node in (part for statement in body for part in parts(statement)):
                if not isinstance(node, ast.expr | ast.stmt):
                    continue
                start = starts[node.lineno - 1] + node.col_offset
                end = starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
                for kind, new in [*expressions(node), *statements(node)]:
                    old = ast.unparse(node)
                    repetition = seen[kind, old, new]
                    seen[kind, old, new] += 1
                    where = str(path.relative_to(root))
                    yield Mutant(area, where, name, kind, node.lineno, old, new, start, end, repetition)


def apply(mutant: Mutant, source: bytes) -> bytes:
    return source[: mutant.start] + mutant.new.encode() + source[mutant.end :]


def compiles(mutant: Mutant, root: Path) -> bool:
    try:
        compile(apply(mutant, (root / mutant.path).read_bytes()), mutant.path, "exec")
    except SyntaxError:
        return False
    return True


def rank(*parts: object) -> str:
    return hashlib.sha256(json.dumps([str(part) for part in parts]).encode()).hexdigest()


def by_slot(found: list[Mutant], shared: set[str]) -> dict[tuple[Function, str], list[Mutant]]:
    """The mutants of a tree by function and kind; ``shared`` names need no module to identify a function."""
    slots: dict[tuple[Function, str], list[Mutant]] = defaultdict(list)
    for mutant in found:
        module = Path(mutant.path)
        stem = module.parent.name if module.stem == "__init__" else module.stem
        function = (mutant.function,) if mutant.function in shared else (mutant.function, stem)
        slots[function, mutant.kind].append(mutant)
    return slots


def unique(found: list[Mutant]) -> set[str]:
    """The qualified names that one module alone has."""
    modules = defaultdict(set)
    for mutant in found:
        modules[mutant.function].add(mutant.path)
    return {name for name, paths in modules.items() if len(paths) == 1}


def choose(root: Path, other: Path | None, count: int, seed: int) -> list[Mutant]:
    """``count`` mutants, as many of each area, at most one of a function while there are others."""
    chosen = []
    for place, area in enumerate(AREAS):
        own = list(mutants(root, area))
        theirs = list(mutants(other, area)) if other else own
        shared = unique(own) & unique(theirs)
        here, there = by_slot(own, shared), by_slot(theirs, shared)
        used: Counter[Function] = Counter()
        order = []
        for function, kind in sorted(here.keys() & there.keys(), key=lambda slot: rank(seed, area, *slot)):
            used[function] += 1
            order.append((used[function], len(order), function, kind))
        valid = []
        for _, _, function, kind in sorted(order):
            if len(valid) == count // len(AREAS) + (place < count % len(AREAS)):
                break
            both = {(m.change, m.repetition) for m in there[function, kind]}
            candidates = sorted(
                here[function, kind],
                key=lambda m: ((m.change, m.repetition) not in both, rank(seed, m.change, m.repetition)),
            )
            valid += [mutant for mutant in candidates if compiles(mutant, root)][:1]
        chosen += valid
    return chosen


def tests_of(tree: Path, module: str) -> list[str]:
    """The tests that mirror a module, most telling first: its doctests, the test file of its name, the files
    of its part of the package that mention it, the other files of the folder."""
    path = Path(module)
    folder = tree / "tests" / path.parent.relative_to("isolaw")
    while not folder.is_dir():
        folder = folder.parent
    area = tree / "tests" / path.relative_to("isolaw").parts[0]
    name = path.parent.name if path.stem == "__init__" else path.stem
    mentions = {
        file: len(re.findall(rf"\b{name}\b", file.read_text()))
        for file in {*folder.glob("test_*.py"), *area.rglob("test_*.py")}
    }
    order = sorted(
        (file for file in mentions if mentions[file] or file.parent == folder or file.stem == f"test_{name}"),
        key=lambda file: (file.stem != f"test_{name}", -mentions[file], file),
    )
    doctests = [module] if ">>>" in (tree / module).read_text() else []
    return doctests + [str(file.relative_to(tree)) for file in order]


def run_tests(scratch: Path, tests: list[str], cache: str, limit: float) -> tuple[int | None, list[str]]:
    """Run tests on the copied tree as it is: pytest's exit code (None at the limit), and its output."""
    environment = os.environ | {
        "PYTHONPATH": str(scratch / "tree"),
        "PYTHONDONTWRITEBYTECODE": "1",  # a mutant may have the size and the time stamp of the last one
        "NUMBA_CACHE_DIR": str(scratch / cache),
        "OPENBLAS_NUM_THREADS": "1",
        "TMPDIR": str(scratch / "tmp"),
    }
    environment.pop("CI", None)
    shutil.rmtree(scratch / "tmp", ignore_errors=True)
    (scratch / "tmp").mkdir()
    options = ["-x", "-q", "-n", "0", "-m", "not slow", "-p", "no:cacheprovider"]
    with (scratch / "output").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *options, *tests],
            cwd=scratch / "tree",
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        code = None
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            pass
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return code, (scratch / "output").read_text(errors="replace").splitlines()


def judge(mutant: Mutant, scratch: Path, limit: float) -> dict[str, Any]:
    """Run the tests of a mutant, and the one that failed, once more without the change."""
    file = scratch / "tree" / mutant.path
    source = file.read_bytes()
    tests = tests_of(scratch / "tree", mutant.path)
    # The cache of compiled functions does not notice a change of a function that they call.
    cache = "numba-mutant" if b"numba" in source else "numba"
    begin = time.monotonic()
    file.write_bytes(apply(mutant, source))
    code, lines = run_tests(scratch, tests, cache, limit)
    file.write_bytes(source)
    seconds = time.monotonic() - begin
    shutil.rmtree(scratch / "numba-mutant", ignore_errors=True)
    by = next((line for line in lines if line.startswith(("FAILED", "ERROR "))), "")
    if code is None:
        outcome = "timeout"
    elif code == 0:
        outcome = "survived"
    else:
        test = by.partition(" ")[2].partition(" - ")[0]
        alone, _ = run_tests(scratch, [test] if test else tests, "numba", limit)
        # Without a name the tests did not start, or the interpreter crashed.
        outcome = "killed" if alone == 0 or (alone is None and not test) else "unusable"
        by = by or f"pytest exits with {code}"
    return {"outcome": outcome, "seconds": round(seconds, 1), "by": by[:300]}


def copy_tree(root: Path, scratch: Path) -> None:
    """Copy what git knows of ROOT, and untracked files that it does not ignore."""
    listed = subprocess.run(
        ["git", "-C", root, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        check=True,
        text=True,
    ).stdout
    for name in filter(None, listed.split("\0")):
        source, target = root / name, scratch / "tree" / name
        if source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)
    if (root.parent / "shared").is_dir():  # sample logs, which some tests read
        (scratch / "shared").symlink_to(root.parent / "shared")


def described(mutant: Mutant) -> str:
    old, new = (textwrap.shorten(text, 60, placeholder="…") for text in (mutant.old, mutant.new))
    return f"{mutant.path}:{mutant.line}: {mutant.function}: {mutant.kind}: {old} -> {new}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("root", type=Path, help="the source tree to check")
    parser.add_argument("--against", type=Path, help="another version of the tree, for a comparable choice")
    parser.add_argument("--results", type=Path, default=Path("mutants.jsonl"), help="JSON Lines file")
    parser.add_argument("--count", type=int, default=60, help="number of mutants, over all areas")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=float, default=180.0, help="seconds for the tests of one mutant")
    parser.add_argument("--list", action="store_true", help="print the mutants and run nothing")
    options = parser.parse_args()
    root = options.root.resolve()
    against = options.against.resolve() if options.against else None

    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        scratch = Path(folder)
        copy_tree(root, scratch)
        tree = scratch / "tree"
        chosen = choose(tree, against, options.count, options.seed)
        # One of each area in turn, so that an interrupted run has seen all of them.
        each = [[mutant for mutant in chosen if mutant.area == area] for area in AREAS]
        turns = [item[i] for i in range(max(map(len, each))) for item in each if i < len(item)]
        if options.list:
            for mutant in turns:
                print(f"{mutant.area}: {described(mutant)}")
            return

        known: dict[str, dict[str, Any]] = {}
        if options.results.exists():
            known = {row["key"]: row for row in map(json.loads, options.results.read_text().splitlines())}
        outcomes: dict[str, Counter[str]] = {area: Counter() for area in AREAS}
        for number, mutant in enumerate(turns, 1):
            key = f"{mutant.key}@{hashlib.sha256((tree / mutant.path).read_bytes()).hexdigest()[:12]}"
            if key not in known:
                about = {"key": key, "area": mutant.area, "line": mutant.line, "change": mutant.change}
                known[key] = about | judge(mutant, scratch, options.limit)
                with options.results.open("a") as results:
                    results.write(json.dumps(known[key]) + "\n")
            row = known[key]
            outcomes[mutant.area][row["outcome"]] += 1
            print(f"[{number}/{len(turns)}] {described(mutant)}: {row['outcome']} {row['by']}", flush=True)

        total: Counter[str] = sum(outcomes.values(), Counter())
        for area, counts in [*outcomes.items(), ("all", total)]:
            tried = counts.total() - counts["unusable"]
            share = f"{counts['killed'] / tried:.0%}" if tried else "-"
            detail = ", ".join(f"{counts[name]} {name}" for name in sorted(counts))
            print(f"{area}: {share} killed of {tried} ({detail})")


if __name__ == "__main__":
    main()
