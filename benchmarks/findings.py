"""How much of the paper follows from its own easy curves? ``python -m benchmarks.findings DIR``

DIR is what the command of docs/simulators.md, "On the published curves", wrote with ``--out``:

    isolaw replicate --preset published-easy --set bandit.parameters.kl_hard=0 --jitter 100 --out DIR

Writes what the table needs to benchmarks/findings.json, and the table between its marks on that page.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from isolaw.report.text.findings import table

SUMMARY = Path(__file__).with_suffix(".json")
DOCS = Path(__file__).parents[1] / "docs" / "simulators.md"
MARKS = "<!-- published -->", "<!-- /published -->"
KEPT = ("preset", "constants", "backend_version", "seeds", "jitter")
BY_TOLERANCE = 4  # the column of `table` that the page leaves out
OF_A_FINDING = ("finding", "set", "effect", "tolerance", "verdict")


def lines(found: dict[str, Any]) -> list[str]:
    """Return the table of docs/simulators.md."""
    rows = (row.split("|") for row in table(found))
    return ["|".join(cells[:BY_TOLERANCE] + cells[BY_TOLERANCE + 1 :]) for cells in rows]


def main() -> None:
    """Write the summary and the table."""
    document = json.loads((Path(sys.argv[1]) / "findings.json").read_text(encoding="utf-8"))
    found: dict[str, Any] = {name: document[name] for name in KEPT}
    found["findings"] = [{name: f[name] for name in OF_A_FINDING} for f in document["findings"]]
    SUMMARY.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    before, after = DOCS.read_text(encoding="utf-8").split(MARKS[0])
    rows = "\n".join([MARKS[0], "", *lines(found), "", MARKS[1]])
    DOCS.write_text(before + rows + after.split(MARKS[1])[1], encoding="utf-8")


if __name__ == "__main__":
    main()
