"""Make the pictures of README and docs/report.md: ``python scripts/pictures.py DIR`` (a minute; Chromium).

DIR gets the demo (`isolaw demo`) and keeps it. The pictures go to docs/images: the law of the demo, the top
of its page at two widths in both themes, and the frontier of the recorded hard set (docs/real-sweep.md).
docs/images/pictures.json keeps the headline that they show; tests/test_docs.py compares it with the demo's.
The pictures of the findings come from `python -m benchmarks.replication` (docs/simulators.md).
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from matplotlib.figure import Figure
from PIL import Image
from playwright.sync_api import sync_playwright

import isolaw
from isolaw.cli import run
from isolaw.report.figures import draw
from isolaw.report.fitted_runs import FittedRuns
from isolaw.report.page import law_charts
from isolaw.report.page.budgets import budgets

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
# Name, width and height of the window, and theme.
SHOTS = (
    ("report", 1400, 1500, "light"),
    ("report-dark", 1400, 1500, "dark"),
    ("report-phone", 390, 1500, "light"),
    ("report-phone-dark", 390, 1500, "dark"),
)


def main(directory: Path) -> None:
    """Write the pictures."""
    demo = directory / "demo"
    if not (demo / "report.html").exists() and run(["demo", str(demo)]) != 0:
        raise SystemExit("the demo failed")
    law = isolaw.Law.load(demo / "law.json")
    runs = isolaw.read(ROOT / "examples" / "data" / "real-arithmetic.parquet")
    hard = isolaw.fit(runs, where={"problem_set": "hard"})
    study = FittedRuns(runs, hard.document.metric, hard.document.eval_set, hard)
    frontier = law_charts.reward(study, sorted(runs.points["run_id"].unique()), budgets(hard, None))
    real = draw(frontier, len(study.levels), runs.simulated)
    figures: dict[str, Figure] = {"law": law.plot(), "real-hard": real}
    for name, figure in figures.items():
        figure.savefig(IMAGES / f"{name}.png", dpi=160)
    page = directory / "page.html"
    page.write_text(
        (demo / "report.html").read_text().replace(f"{directory}/", "")
    )  # no path of this machine
    headline = photograph(page)
    made = {"headline": headline, "pictures": ["law", *(name for name, *_ in SHOTS)]}
    (IMAGES / "pictures.json").write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n")


def photograph(page: Path) -> str:
    """Write the page's top at every width and theme, and return its headline."""
    chromium = next((p for name in ("chromium", "google-chrome") if (p := shutil.which(name))), None)
    if chromium is None:
        raise SystemExit("no Chromium on PATH; on Debian: apt-get install --no-install-recommends chromium")
    headline = ""
    with sync_playwright() as api:
        arguments = ["--no-sandbox", "--disable-dev-shm-usage"]
        browser = api.chromium.launch(executable_path=chromium, args=arguments)
        for name, width, height, theme in SHOTS:
            size = {"width": width, "height": height}
            context = browser.new_context(viewport=size, color_scheme=theme)  # type: ignore[arg-type]
            shown = context.new_page()
            shown.goto(page.resolve().as_uri())
            shown.wait_for_selector("html[data-drawn]", state="attached")
            shown.screenshot(path=IMAGES / f"{name}.png")
            headline = shown.locator("h1").inner_text().replace("\u00a0", " ")
            context.close()
        browser.close()
    for name, *_ in SHOTS:  # a third of the bytes
        path = IMAGES / f"{name}.png"
        with Image.open(path) as picture:
            picture.convert("RGB").quantize(128, dither=Image.Dither.NONE).save(path, optimize=True)
    return headline


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "build"))
