"""The site of the documentation: it builds without a warning, and its links and pages are as they should."""

from __future__ import annotations

import html.parser
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).parents[1]
FEW_DRAWS = str(ROOT / "tests" / "few_draws.py")

pytestmark = [pytest.mark.nightly, pytest.mark.slow]


class _Page(html.parser.HTMLParser):
    """What a page refers to, and the anchors that it has."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        own = dict(attrs)
        self.anchors |= {value for key in ("id", "name") if (value := own.get(key))}
        if (href := own.get("href")) is not None:
            (self.links if tag == "a" else self.loaded).append(href)
        if (source := own.get("src")) is not None:
            self.loaded.append(source)


def kernels(folder: Path, python: Path) -> dict[str, str]:
    """An environment in which notebooks run in a Python, with few draws (`few_draws`)."""
    startup = folder / "ipython" / "profile_default" / "startup"
    startup.mkdir(parents=True)
    (startup / "00-few-draws.py").write_text(f"import runpy; runpy.run_path({FEW_DRAWS!r})\n")
    kernel = folder / "jupyter" / "kernels" / "python3"
    kernel.mkdir(parents=True)
    words = [str(python), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    described = {"argv": words, "display_name": "Python 3", "language": "python"}
    (kernel / "kernel.json").write_text(json.dumps(described))
    return {"IPYTHONDIR": str(folder / "ipython"), "JUPYTER_PATH": str(folder / "jupyter")}


@pytest.fixture(scope="module")
def site(preloaded: Path, hasty_shell: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, as `make docs` builds it: a warning is an error, and every tutorial is executed.

    With few draws (`few_draws`), since nobody reads the numbers, and in kernels that have imported isolaw.
    """
    pytest.importorskip("myst_nb", reason="no Sphinx; pip install 'isolaw[docs]'")
    out = tmp_path_factory.mktemp("docs")
    options = "-W --keep-going -E -q -d"
    assert f"sphinx-build {options} " in (ROOT / "Makefile").read_text()
    environment = hasty_shell | kernels(out, preloaded / "python")
    command = [
        sys.executable,
        "-m",
        "sphinx",
        *options.split(),
        str(out / "doctrees"),
        *("-D", "nb_execution_mode=force"),
        "docs",
        str(out / "site"),
    ]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    return out / "site"


def test_links_of_the_site_lead_somewhere_and_it_loads_nothing_from_elsewhere(site: Path) -> None:
    pages = {
        path: _Page(path.read_text()) for path in sorted(site.rglob("*.html")) if "_static" not in path.parts
    }
    assert len(pages) > 20
    for path, page in pages.items():
        where = path.relative_to(site)
        for link in page.links:
            if re.match(r"(https?|mailto):", link):
                continue
            file, _, anchor = unquote(link).partition("#")
            target = (path.parent / file.partition("?")[0]).resolve() if file else path
            assert target.exists(), f"{where}: {link}"
            if anchor and target in pages:
                assert anchor in pages[target].anchors, f"{where}: {link}"
        for source in page.loaded:
            assert not re.match(r"(https?:)?//", source), f"{where} loads {source}"
            if not source.startswith("data:"):
                assert (path.parent / source.partition("?")[0].partition("#")[0]).exists(), (
                    f"{where}: {source}"
                )
    for style in site.rglob("*.css"):
        assert not re.search(r"(@import|url\()\s*[\"']?(https?:)?//", style.read_text()), style


def test_the_site_lists_every_code_of_a_flag(site: Path) -> None:
    from isolaw.fits.flags import Code

    page = (site / "formats.html").read_text()
    for code in Code:
        assert f">{code.value}</span>" in page, code


def test_the_site_in_a_browser(site: Path) -> None:
    """From disk: the search finds, no page is wider than a telephone, and nothing comes from a network."""
    names = ("chromium", "chromium-browser", "google-chrome")
    chromium = next((path for name in names if (path := shutil.which(name))), None)
    if chromium is None:
        pytest.skip("no Chromium on PATH; on Debian: apt-get install chromium")
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="no playwright; pip install 'isolaw[test]'"
    )
    with playwright.sync_playwright() as api:
        browser = api.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        context = browser.new_context(viewport={"width": 390, "height": 800})
        fetched: list[str] = []
        context.on("request", lambda request: fetched.append(request.url))
        page = context.new_page()
        for path in sorted(site.rglob("*.html")):
            if "_static" not in path.parts:
                page.goto(path.as_uri())
                assert page.evaluate("document.documentElement.scrollWidth") == 390, path.name
        page.goto(f"{(site / 'search.html').as_uri()}?q=expected+loss")
        page.locator("#search-results li a").first.wait_for()
        assert "A first look" in page.locator("#search-results").inner_text()
        assert not [url for url in fetched if not url.startswith(("file:", "data:", "blob:"))]
        browser.close()
