"""The report: one HTML file that opens from disk and asks nothing of the network.

`render` turns a `Study` into it. The template, the style and the script lie in ``assets``, what others
wrote (plotly.js for charts, sortable for tables) in ``vendor``; all of them go into the file. Whatever
comes from data is text: Jinja escapes it, JSON is escaped for its place in a script, plotly.js gets
entities for tags, and a content security policy forbids every script but these (by hash) and every request.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import tempfile
from functools import cache
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from isolaw import __version__
from isolaw.errors import DataError
from isolaw.report.page.build import Facts, content
from isolaw.report.study import Study

__all__ = ["Facts", "check_replaceable", "render", "write"]

_SCRIPTS = (
    "vendor/plotly-cartesian.min.js",
    "vendor/sortable.min.js",
    "vendor/sortable.a11y.min.js",
    "assets/page.js",
)
_GENERATOR = "isolaw report"
# What a browser could read as the end of the script, or as a line's end in it.
_ESCAPED = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}


def render(study: Study, facts: Facts) -> str:
    """Return the page.

    Parameters
    ----------
    study
        the runs and their law.
    facts
        what else stands on the page.
    """
    scripts = [_asset(name) for name in _SCRIPTS]
    page = content(study, facts, plotly_version())
    keys = ("budgets", "first", "charts", "runs", "palette")
    environment = Environment(
        loader=PackageLoader("isolaw.report.page", "assets"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html.j2").render(
        **page,
        generator=_GENERATOR,
        version=__version__,
        style=Markup(_asset("assets/page.css")),
        scripts=[Markup(script) for script in scripts],
        hashes=" ".join(f"'sha256-{_hash(script)}'" for script in scripts),
        data=Markup(as_script({key: page[key] for key in keys})),
    )


def as_script(value: object) -> str:
    """Return JSON that is safe inside a script element.

    >>> as_script({"name": "</script>"})
    '{"name":"\\\\u003c/script\\\\u003e"}'
    """
    text = json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    return text.translate(_ESCAPED)


def write(text: str, path: str | Path) -> Path:
    """Write a page under a temporary name and rename it; replace nothing but a page.

    Raises
    ------
    DataError
        ``path`` is something else, or cannot be written.
    """
    path = Path(path)
    check_replaceable(path)
    target = path.resolve()  # a link stays one
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # Half of a surrogate pair, which a damaged log may hold, has no place in UTF-8.
        temporary.write_text(text, encoding="utf-8", errors="replace")
        temporary.replace(target)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from None
    return path


def check_replaceable(path: str | Path) -> None:
    """Raise `DataError` if ``path`` is something that a report must not replace."""
    path = Path(path)
    if path.is_dir():
        raise DataError(f"{path}: is a directory; accepted: a file's name, as {path / 'report.html'}")
    if path.exists():
        head = path.read_bytes()[:4096] if path.is_file() else b""
        if f'<meta name="generator" content="{_GENERATOR}'.encode() not in head:
            raise DataError(f"{path}: exists and is not a report; nothing was written over")
    above = next(folder for folder in path.absolute().parents if folder.exists())
    try:  # what a page is made for takes long: rather now than then
        with tempfile.NamedTemporaryFile(dir=above, prefix=f".{path.name}.", suffix=".tmp"):
            pass
    except OSError as error:
        raise DataError(f"{path}: nothing can be written in {above} ({error.strerror or error})") from None


@cache
def _asset(name: str) -> str:
    return files("isolaw.report.page").joinpath(name).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def plotly_version() -> str:
    """Return the version of plotly.js that the page carries."""
    found = re.search(r"plotly\.js \(cartesian - minified\) v([\d.]+)", _asset(_SCRIPTS[0]))
    assert found is not None
    return found[1]
