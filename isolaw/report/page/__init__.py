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
from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Unpack

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from isolaw import files
from isolaw.arguments import checked
from isolaw.errors import DataError, wrong_argument
from isolaw.fits.law import Law
from isolaw.registry import __version__
from isolaw.report.document import Document
from isolaw.report.fitted_runs import FittedRuns, is_of
from isolaw.report.page.budgets import budgets
from isolaw.report.page.build import PageContent, content
from isolaw.runs import ReadKeywords, Source
from isolaw.step_cost import Cost

__all__ = [
    "PageContent", "check_replaceable", "notebook", "render", "write", "write_report",
]  # fmt: skip

_SCRIPTS = (
    "vendor/plotly-cartesian.min.js",
    "vendor/sortable.min.js",
    "vendor/sortable.a11y.min.js",
    "assets/page.js",
)
_GENERATOR = "isolaw report"
# A browser could read these characters as the end of the script, or of a line in it.
_ESCAPES = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}


@checked
def write_report(
    runs: Source,
    law: Law,
    path: str | Path,
    *,
    compute: float | None = None,
    cost: Cost | None = None,
    backtest: Mapping[str, Any] | str = "isolaw.backtest was not run",
    **reading: Unpack[ReadKeywords],
) -> Path:
    """Write a page about runs and the law fitted to them: one HTML file that opens in any browser.

    Parameters
    ----------
    runs, law
        runs from `isolaw.read` or `isolaw.sweep` (or a source for `isolaw.read`), and the law from
        `isolaw.fit`.
    path
        the HTML file; isolaw replaces an earlier page there, but no other file.
    compute
        budget, in the law's unit, that the page's slider opens with; by default the largest measured one.
    cost
        as in `Law.predict`; the page then shows the hours of allocations.
    backtest
        ``to_dict()`` of the result of `isolaw.backtest`, or the reason why there is none.
    reading
        keywords of `isolaw.read`, if ``runs`` is a source.

    Raises
    ------
    DataError
        ``law`` was fitted to other runs, or ``path`` is a file other than such a page, or cannot be written.
    InputError
        ``compute`` is less than one step.
    """
    check_replaceable(path)
    if not isinstance(backtest, str) and "rules" not in backtest:
        raise wrong_argument("backtest", backtest, "to_dict() of the result of isolaw.backtest, or a reason")
    from isolaw.readers.read import as_runs

    runs = as_runs(runs, law.document.metric, **reading)
    if not is_of(law, runs):
        raise DataError("the law was fitted to other runs")
    predictions = budgets(law, compute, cost=cost)
    page = PageContent(predictions, backtest, notes=runs.notes, title=str(runs.source or ""))
    return write(render(FittedRuns.of(law, runs), page), path)


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
