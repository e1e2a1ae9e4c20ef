"""Pages: HTML files that open from disk and make no network requests.

`render` creates the report of `FittedRuns`, and `notebook` the HTML that a notebook shows for a `Document`.
The templates, style sheet and script are in ``assets``, third-party scripts (plotly.js for charts, sortable
for tables) in ``vendor``; a page embeds what it needs of them. Values from
data are always text: Jinja escapes HTML, JSON is escaped for its script element, and plotly.js receives tags
as entities. A content security policy permits only the embedded scripts, by hash, and no requests.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from isolaw import files
from isolaw.registry import __version__
from isolaw.report.document import Document
from isolaw.report.fitted_runs import FittedRuns
from isolaw.report.page.build import PageContent, content

__all__ = ["PageContent", "check_replaceable", "notebook", "render", "write"]

_SCRIPTS = (
    "vendor/plotly-cartesian.min.js",
    "vendor/sortable.min.js",
    "vendor/sortable.a11y.min.js",
    "assets/page.js",
)
_GENERATOR = "isolaw report"
# A browser could read these characters as the end of the script, or of a line in it.
_ESCAPES = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}


def render(study: FittedRuns, page: PageContent) -> str:
    """Return the page about the runs and their law as HTML."""
    scripts = [_asset(name) for name in _SCRIPTS]
    template_values = content(study, page, _plotly_version())
    keys = ("budgets", "first", "charts", "runs", "palette", "simulated")
    return _render_template(
        "page.html.j2",
        **template_values,
        scripts=[Markup(script) for script in scripts],
        hashes=" ".join(f"'sha256-{_hash(script)}'" for script in scripts),
        data=Markup(_script_json({key: template_values[key] for key in keys})),
    )


def notebook(document: Document) -> str:
    """Return the HTML that a notebook shows for a document: the passages of the page, without style."""
    parts = _templates().get_template("parts.html.j2").module
    return str(parts.passages(document.labelled)).strip()  # type: ignore[attr-defined]


def _render_template(template: str, **content: Any) -> str:
    """Render a template of ``assets`` with its content, the style sheet and the marker of isolaw's pages."""
    return (
        _templates()
        .get_template(template)
        .render(**content, generator=_GENERATOR, version=__version__, style=Markup(_asset("assets/page.css")))
    )


def _templates() -> Environment:
    """Return the Jinja environment for ``assets``, which escapes everything except markup."""
    return Environment(
        loader=PackageLoader("isolaw.report.page", "assets"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _script_json(value: object) -> str:
    """Return ``value`` as JSON that is safe inside a script element.

    >>> _script_json({"name": "</script>"})
    '{"name":"\\\\u003c/script\\\\u003e"}'
    """
    text = json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    return text.translate(_ESCAPES)


def write(text: str, path: str | Path) -> Path:
    """Write a page atomically. Raises `DataError` if ``path`` is not a page or cannot be written."""
    path = Path(path)
    check_replaceable(path)
    with files.replacing(path) as temporary:
        # A damaged log may contain half of a surrogate pair, which UTF-8 cannot encode.
        temporary.write_text(text, encoding="utf-8", errors="replace")
    return path


def check_replaceable(path: str | Path) -> None:
    """Raise `DataError` if ``path`` cannot be written, or is a file other than a page."""
    marker = f'<meta name="generator" content="{_GENERATOR}'.encode()
    files.check_replaceable(Path(path), "a report", "report.html", lambda p: marker in p.read_bytes()[:4096])


@cache
def _asset(name: str) -> str:
    return resources.files("isolaw.report.page").joinpath(name).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _plotly_version() -> str:
    """Return the version of the embedded plotly.js."""
    match = re.search(r"plotly\.js \(cartesian - minified\) v([\d.]+)", _asset(_SCRIPTS[0]))
    assert match is not None
    return match[1]
