"""The report of the paper's grid, made and opened: python benchmarks/report.py [DIRECTORY]

39 configurations (B_p = 32 … 1024, n = 8 … 2048, B ≤ 65,536), 5 seeds, 60 checkpoints each, simulated (kept
in DIRECTORY if one is given). It prints the seconds that `isolaw report` takes and the page's size. In
Chromium, without a GPU, it prints the seconds until the page is loaded, until the first and until every chart
is drawn, the longest time without a response, and the times of frames while the page scrolls from top to
bottom and while the slider moves.
"""

from __future__ import annotations

import json
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

SWEEP = [
    "sweep.compute=3e6", "sweep.seeds=5", "grid.problems_per_batch=[32, 64, 128, 256, 512, 1024]",
    "grid.rollouts_per_problem=[8, 16, 32, 64, 128, 256, 512, 1024, 2048]", "limits.max_batch_rollouts=65536",
]  # fmt: skip
OPENED = 5
WATCHING = """
window.busy = [];
new PerformanceObserver((list) => busy.push(...list.getEntries().map((e) => e.duration)))
  .observe({ type: "longtask", buffered: true });
addEventListener("DOMContentLoaded", () => {
  const seen = new MutationObserver(() => {
    if (!window.first && document.querySelector(".plot svg.main-svg path")) window.first = performance.now();
  });
  seen.observe(document.body, { childList: true, subtree: true });
});
"""
FRAMES = """
async (act) => {
  const times = [];
  let on = true;
  const tick = (now) => { times.push(now); if (on) requestAnimationFrame(tick); };
  requestAnimationFrame(tick);
  if (act === "scroll") {
    for (let y = 0; y < document.body.scrollHeight; y += 40) {
      scrollTo({ top: y, behavior: "instant" });
      await new Promise(requestAnimationFrame);
    }
  } else {
    const slider = document.querySelector("#slider");
    for (let i = 0; i <= slider.max; i++) {
      slider.value = i;
      slider.dispatchEvent(new Event("input"));
      await new Promise(requestAnimationFrame);
    }
  }
  on = false;
  return times.slice(1).map((t, i) => t - times[i]);
}
"""


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as folder:
        sweep = Path(sys.argv[1] if len(sys.argv) > 1 else folder) / "grid"
        settings = [part for key in SWEEP for part in ("--set", key)]
        isolaw("sweep", "--out", str(sweep), *settings)
        page = Path(folder) / "report.html"
        started, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        isolaw("report", str(sweep), "-o", str(page))
        made, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
        processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        text = page.read_text()
        data = json.loads(text.partition('id="data">')[2].partition("</script>")[0])
        print(
            f"made in {made:.1f} s ({processor:.1f} s of the processor); {page.stat().st_size / 1e6:.2f} MB, "
            f"{len(data['runs'])} runs, {len(data['charts'])} charts, {len(data['budgets'])} budgets"
        )
        with sync_playwright() as api:
            browser = api.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            opened = [measure(browser, page, frames=i == 0) for i in range(OPENED)]
            browser.close()
    for name in opened[1]:
        values = [item[name] for item in opened]
        print(f"{name}: median {statistics.median(values):.2f} s of {OPENED}, longest {max(values):.2f} s")
    for name in ("scroll", "slider"):
        frames = sorted(opened[0][name])
        print(
            f"{name}: {len(frames)} frames, median {statistics.median(frames):.0f} ms, "
            f"95 % below {frames[int(0.95 * len(frames))]:.0f} ms, longest {frames[-1]:.0f} ms"
        )


def isolaw(*arguments: str) -> None:
    """Run a command."""
    command = Path(sys.executable).with_name("isolaw")
    subprocess.run([command, *arguments], check=True, capture_output=True)


def measure(browser: Any, page: Path, frames: bool) -> dict[str, Any]:
    """Open the page once."""
    context = browser.new_context(viewport={"width": 1400, "height": 900})
    tab = context.new_page()
    tab.add_init_script(WATCHING)
    tab.goto(page.as_uri())
    tab.wait_for_selector("html[data-drawn]", state="attached")
    out = {
        "loaded": tab.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd / 1000"),
        "first chart": tab.evaluate("window.first / 1000"),
        "every chart": tab.evaluate("performance.now() / 1000"),
        "longest without an answer": tab.evaluate("Math.max(0, ...busy) / 1000"),
    }
    if frames:
        out |= {act: tab.evaluate(FRAMES, act) for act in ("scroll", "slider")}
    context.close()
    return out


if __name__ == "__main__":
    main()
