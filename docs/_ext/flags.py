"""``{flags}``: the codes of flags and what each means, from `isolaw.fits.flags.Code`."""

from __future__ import annotations

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from isolaw.fits.flags import Code


def markdown() -> str:
    """A row for every code."""
    rows = (f"| `{code.value}` | {code.meaning.replace('*', chr(92) + '*')} |" for code in Code)
    return "\n".join(["| code | meaning |", "|---|---|", *rows]) + "\n"


class Flags(SphinxDirective):
    def run(self) -> list[nodes.Node]:
        return self.parse_text_to_nodes(markdown())


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("flags", Flags)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
