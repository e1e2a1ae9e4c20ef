"""Count what a maintainer must hold in the head: python scripts/size.py [DIRECTORY …]

Prints a table with a column for each DIRECTORY, a checkout of the project; the default is this one. It reads
the syntax trees and imports nothing:

    lines, code lines       of isolaw/; code lines are without blank lines, comments and docstrings
    public definitions      functions and classes at the top of a module, without a leading underscore
    imported by one         modules that exactly one other module imports
    options                 names such as --metric in calls of `option` in isolaw/cli
    config keys             annotated fields of classes that derive from `Section`
    flag codes              members of classes named `Code`
    named constants         numbers bound at the top of a module, also in tuples
    own, found              bindings of these two names, which say nothing about the thing
    words of docs           README.md, CHANGELOG.md and docs/*.md
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import Counter
from pathlib import Path

SHORT = 80  # a module with fewer lines is a crumb
_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
    tokenize.ENCODING,
}
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def code_lines(text: str, tree: ast.Module) -> int:
    """Return the number of lines with code: neither blank, nor a comment, nor part of a docstring."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            docstring = node.body[0]
            lines.difference_update(range(docstring.lineno, (docstring.end_lineno or 0) + 1))
    return len(lines)


def is_number(node: ast.AST | None) -> bool:
    """Return whether an expression consists of numbers and arithmetic only.

    >>> [is_number(ast.parse(text).body[0].value) for text in ("2**53", "(0.1, -3)", "'1'", "f(2)", "()")]
    [True, True, False, False, False]
    """
    if isinstance(node, ast.Constant):
        return isinstance(node.value, int | float) and not isinstance(node.value, bool)
    if isinstance(node, ast.UnaryOp):
        return is_number(node.operand)
    if isinstance(node, ast.BinOp):
        return is_number(node.left) and is_number(node.right)
    return isinstance(node, ast.Tuple) and bool(node.elts) and all(map(is_number, node.elts))


def bindings(tree: ast.Module) -> Counter[str]:
    """Return how often each name is bound: as a variable or as an argument."""
    names = [
        node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    ]
    return Counter(names + [node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)])


def derives(node: ast.ClassDef, base: str) -> bool:
    """Return whether a base of the class bears this name."""
    return any(ast.unparse(parent).rpartition(".")[2] == base for parent in node.bases)


def imported(tree: ast.Module, modules: set[str]) -> set[str]:
    """Return those of the modules that a module imports, anywhere in it."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names & modules


def option_names(tree: ast.Module) -> list[str]:
    """Return the names of options in the order of their declarations, each declaration's longest one."""
    out = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "option":
            texts = [str(part.value) for part in node.args if isinstance(part, ast.Constant)]
            if flags := [text.split("/")[0] for text in texts if text.startswith("--")]:
                out.append(flags[0])
    return out


def measure(root: Path) -> dict[str, str]:
    """Return the counts of a checkout, by the words of the table."""
    paths = sorted((root / "isolaw").rglob("*.py"))
    texts = {path: path.read_text(encoding="utf-8") for path in paths}
    trees = {path: ast.parse(text) for path, text in texts.items()}
    names = {
        path: ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
        for path in paths
    }
    importers = Counter(name for tree in trees.values() for name in imported(tree, set(names.values())))
    lines = {path: len(text.splitlines()) for path, text in texts.items()}
    top = [node for tree in trees.values() for node in tree.body]
    classes = [node for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    public = sum(isinstance(node, _DOCUMENTED) and not node.name.startswith("_") for node in top)
    options = [
        name for path, tree in trees.items() if path.parent.name == "cli" for name in option_names(tree)
    ]
    commands = sum(
        isinstance(node, ast.FunctionDef)
        and any(ast.unparse(decorator).startswith("click.command") for decorator in node.decorator_list)
        for path, tree in trees.items()
        if path.parent.name == "cli"
        for node in tree.body
    )
    bound = sum((bindings(tree) for tree in trees.values()), Counter[str]())
    constants = sum(
        isinstance(node, ast.Assign | ast.AnnAssign) and is_number(node.value)
        for tree in trees.values()
        for node in tree.body
    )
    pages = [root / "README.md", root / "CHANGELOG.md", *sorted((root / "docs").glob("*.md"))]
    total = sum(lines.values())
    keys = [
        part
        for node in classes
        if derives(node, "Section")
        for part in node.body
        if isinstance(part, ast.AnnAssign)
    ]
    codes = [
        part for node in classes if node.name == "Code" for part in node.body if isinstance(part, ast.Assign)
    ]
    tests = [path.read_text(encoding="utf-8") for path in (root / "tests").rglob("*.py")]
    docs = [path.read_text(encoding="utf-8") for path in pages if path.exists()]
    return {
        "lines": f"{total:,}",
        "code lines": f"{sum(code_lines(texts[path], trees[path]) for path in paths):,}",
        "modules": f"{len(paths)}",
        f"modules under {SHORT} lines": f"{sum(count < SHORT for count in lines.values())}",
        "modules imported by one": f"{sum(importers[name] == 1 for name in names.values())}",
        "public definitions": f"{public:,}",
        "public definitions per 1,000 lines": f"{1000 * public / total:.1f}",
        "commands": f"{commands}",
        "options, declared": f"{len(options)}",
        "options, distinct": f"{len(set(options))}",
        "config keys": f"{len(keys)}",
        "flag codes": f"{len(codes)}",
        "named constants": f"{constants}",
        "bindings of own": f"{bound['own']}",
        "bindings of found": f"{bound['found']}",
        "lines of tests": f"{sum(len(text.splitlines()) for text in tests):,}",
        "words of docs": f"{sum(len(text.split()) for text in docs):,}",
    }


def main(roots: list[Path]) -> None:
    """Print the table, a row for each count and a column for each checkout."""
    columns = [measure(root) for root in roots]
    width = max(map(len, columns[0]))
    for words in columns[0]:
        print(words.ljust(width), *(column[words].rjust(10) for column in columns))


if __name__ == "__main__":
    main([Path(argument) for argument in sys.argv[1:]] or [Path(__file__).resolve().parents[1]])
