"""Links of the pages to files outside the site's folder.

A file becomes a download; a README in examples/ becomes the page that includes it; a folder is named. The
reports of examples/pages.sh are part of the site if they exist.
"""

from __future__ import annotations

import re
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

ROOT = Path(__file__).parents[2]
REPORTS = {
    "demo.html": "a simulated sweep",
    "qwen.html": "Qwen2.5-7B, curves of Tan et al.",
    "real.html": "a small language model, trained on sums",
}
# README of the repository → page of the site that includes it.
INCLUDED = {"examples/logs/README.md": "example-logs.md", "examples/data/README.md": "example-data.md"}
_LINK = re.compile(r"\[([^\]]+)\]\(((?!https?:|#)[^)\s#]+)(#[^)\s]*)?\)")


def local(app: Sphinx, document: str, content: list[str]) -> None:
    """Rewrite the links of one page's Markdown."""
    page = Path(app.srcdir, f"{document}.md")
    if page.exists():
        content[0] = _LINK.sub(lambda found: _link(app, page, *found.groups()), content[0])


def included(app: Sphinx, path: Path, document: str, content: list[str]) -> None:
    """The same for a README that a page includes."""
    file = Path(app.srcdir, path).resolve()
    content[0] = _LINK.sub(lambda found: _link(app, file, *found.groups(), page=document), content[0])


def _link(app: Sphinx, file: Path, text: str, target: str, anchor: str | None, page: str = "") -> str:
    docs = Path(app.srcdir).resolve()
    path = (file.parent / target).resolve()
    if path.is_relative_to(docs):
        to = path.relative_to(docs).as_posix()
        return f"[{text}](/{to}{anchor or ''})"
    inside = path.relative_to(docs.parent).as_posix()
    if inside in INCLUDED:
        return f"[{text}](/{INCLUDED[inside]}{anchor or ''})"
    if path.is_file() and path.suffix != ".md":
        return f"{{download}}`{text} </../{inside}>`"
    return f"{text} (`{inside}`)" if text.strip("`") != inside else f"`{inside}`"


def reports() -> list[Path]:
    """Return the reports that ``make docs`` has made, in ``build/docs``."""
    return [page for name in REPORTS if (page := ROOT / "build" / "docs" / name).is_file()]


class Reports(SphinxDirective):
    """``{reports}``: links to the reports that the site includes, or a sentence if it includes none."""

    def run(self) -> list[nodes.Node]:
        items = "".join(f'<li><a href="{p.name}">{REPORTS[p.name]}</a></li>' for p in reports())
        text = f"<p>Reports of example runs:</p><ul>{items}</ul>"
        if not items:
            text = "<p><code>make docs</code> also adds reports of example runs to this page.</p>"
        return [nodes.raw("", text, format="html")]


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("reports", Reports)
    app.connect("source-read", local)
    app.connect("include-read", included)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
