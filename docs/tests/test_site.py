"""Reads the rendered notes as a visitor does: headless Chromium on the built site, served from this process.

Needs `nox -s docs` first, and Debian's packages `chromium` and `chromium-driver`. COOKBOOK_SITE names another build.
"""

from __future__ import annotations

import doctest
import functools
import http.server
import json
import os
import re
import shutil
import threading
import time
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import stages
from selenium import webdriver
from selenium.webdriver import ActionChains
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.expected_conditions import url_to_be
from selenium.webdriver.support.ui import WebDriverWait

ROOT = Path(__file__).resolve().parents[2]
SITE = Path(os.environ.get("COOKBOOK_SITE", ROOT / "build" / "html"))
CHAPTERS = stages.chapters(ROOT)
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-proxy-server",
    # The site must work offline: any other host cannot be resolved, and the failure is an error on the console.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)
WAIT_S = 20
DOCTEST = re.compile(r"^```\{doctest\}[^\n]*\n(.*?)^```$", re.DOTALL | re.MULTILINE)

# What sticks out to the right of the window without a box of its own that scrolls. The boxes around the article do not
# count: the theme lets the whole column scroll, which is what a reader must not have to do.
STICKS_OUT = """
const scrolls = e => ["auto", "scroll"].includes(getComputedStyle(e).overflowX);
const out = [];
for (const e of document.querySelectorAll("article *")) {
  const box = e.getBoundingClientRect();
  if (box.width == 0 || box.right <= window.innerWidth + 1) continue;
  let inside = e;
  while (inside.tagName != "ARTICLE" && !scrolls(inside)) inside = inside.parentElement;
  if (inside.tagName == "ARTICLE") out.push(e.outerHTML.slice(0, 120));
}
return {width: document.documentElement.scrollWidth, window: window.innerWidth, out: out.slice(0, 3)};
"""


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    """Serves files without a line on stderr for each."""

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    """The address of the built site."""
    if not (SITE / "docs" / "index.html").exists():
        pytest.fail(f"expected the built notes in {SITE}; run `nox -s docs` first")
    handler = functools.partial(QuietHandler, directory=str(SITE))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for the browser's profile and downloads."""
    return tmp_path_factory.mktemp("chromium")


@pytest.fixture(scope="module")
def browser(site: str, profile: Path) -> Iterator[webdriver.Chrome]:
    """Headless Chromium with a fresh profile; selenium downloads nothing, both programs are the system's."""
    programs = {name: shutil.which(name) for name in ("chromium", "chromedriver")}
    if missing := [name for name, path in programs.items() if path is None]:
        pytest.fail(f"{' and '.join(missing)} not found; on Debian: apt install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = str(programs["chromium"])
    for flag in (*FLAGS, f"--user-data-dir={profile / 'profile'}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(programs["chromedriver"]))
    driver.set_page_load_timeout(WAIT_S)
    driver.set_script_timeout(WAIT_S)
    driver.execute_cdp_cmd(
        "Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(profile / "downloads")}
    )
    driver.execute_cdp_cmd(
        "Browser.grantPermissions", {"origin": site, "permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]}
    )
    yield driver
    driver.quit()


def console_errors(browser: webdriver.Chrome) -> list[str]:
    """What went wrong on the console since the last call."""
    entries = browser.execute("getLog", {"type": "browser"})["value"]
    return [str(entry["message"]) for entry in entries if entry["level"] == "SEVERE"]


@pytest.fixture(autouse=True)
def clean_console(browser: webdriver.Chrome) -> Iterator[None]:
    """Every test begins at desktop size and ends with a console without errors."""
    resize(browser, 1440, 900)
    console_errors(browser)
    yield
    errors = console_errors(browser)
    assert not errors, f"errors on the browser's console: {errors}"


def resize(browser: webdriver.Chrome, width: int, height: int) -> None:
    """Set the size of the page, as a phone would have it for a narrow one."""
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def wait_for(browser: webdriver.Chrome, selector: str) -> WebElement:
    """The first element that matches, as soon as there is one."""
    return WebDriverWait(browser, WAIT_S).until(lambda b: b.find_element(By.CSS_SELECTOR, selector), selector)


def show(browser: webdriver.Chrome, element: WebElement) -> WebElement:
    """Scroll to an element at once: the theme scrolls smoothly, and a click on a moving element misses it."""
    browser.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", element)
    return element


def copy(browser: webdriver.Chrome, pre: WebElement) -> str:
    """What the clipboard holds after a click on a block's copy button."""
    button = pre.find_element(By.XPATH, "./following-sibling::button[contains(@class, 'copybtn')]")
    browser.execute_async_script("navigator.clipboard.writeText('nothing was copied').then(arguments[0])")
    ActionChains(browser, duration=0).move_to_element(show(browser, button)).click().perform()
    return str(browser.execute_async_script("navigator.clipboard.readText().then(arguments[0])"))


def test_there_are_chapters() -> None:
    """The other tests walk over the chapters, and none must pass because there is nothing to walk over."""
    assert next(iter(CHAPTERS)) == 1
    assert len(CHAPTERS) >= 5


@pytest.mark.parametrize(("width", "height"), [(390, 844), (1440, 900)])
def test_no_page_scrolls_sideways(browser: webdriver.Chrome, site: str, width: int, height: int) -> None:
    pages = sorted(p.relative_to(SITE).as_posix() for p in SITE.rglob("*.html") if "_static" not in p.parts)
    assert len(pages) >= len(CHAPTERS) + 3
    resize(browser, width, height)
    wrong = {}
    for page in pages:
        browser.get(f"{site}/{page}")
        seen = browser.execute_script(STICKS_OUT)
        assert seen["window"] == width
        if seen["width"] > width or seen["out"]:
            wrong[page] = seen
    assert not wrong


def test_the_root_leads_to_the_landing_page(browser: webdriver.Chrome, site: str) -> None:
    browser.get(f"{site}/")
    WebDriverWait(browser, WAIT_S).until(url_to_be(f"{site}/docs/index.html"))


def test_landing_fits_one_screen(browser: webdriver.Chrome, site: str) -> None:
    """What this is, the three ways to use it and the first chapter are on the screen, each chapter is in the list."""
    browser.get(f"{site}/docs/index.html")
    cards = browser.find_elements(By.CSS_SELECTOR, ".uses .sd-card")
    links = browser.find_elements(By.CSS_SELECTOR, "ul.chapters a")
    assert len(cards) == 3
    assert [str(link.get_attribute("href")).rsplit("/", 1)[1] for link in links] == [
        f"chapter-{n}.html" for n in CHAPTERS
    ]
    for element in (*cards, links[0]):
        assert element.rect["y"] + element.rect["height"] <= 900


@pytest.mark.parametrize("word", ["weave", "cell"])
def test_search_finds_a_word(browser: webdriver.Chrome, site: str, word: str) -> None:
    browser.get(f"{site}/docs/index.html")
    box = browser.find_element(By.CSS_SELECTOR, ".sidebar-search")
    box.send_keys(word, Keys.ENTER)
    found = wait_for(browser, "#search-results li a[href*='how-the-book-works']")
    found.click()
    text = wait_for(browser, "article").text
    assert browser.find_element(By.CSS_SELECTOR, "h1").text.startswith("How the book works")
    assert word in text.lower()


def test_search_finds_each_chapter(browser: webdriver.Chrome, site: str) -> None:
    for n, page in CHAPTERS.items():
        title = page.read_text("utf-8").split("\n# ", 1)[-1].split("\n", 1)[0]
        word = max(re.findall(r"[A-Za-z]+", title), key=len)
        browser.get(f"{site}/search.html?q={word}")
        wait_for(browser, f"#search-results li a[href*='chapter-{n}.html']")


@pytest.mark.parametrize("n", CHAPTERS)
def test_copy_gives_a_cells_text(browser: webdriver.Chrome, site: str, n: int) -> None:
    """Exactly the cell as of the chapter: no caption, no mark, no removed line."""
    tree = stages.read(ROOT)
    fences = stages.fences(CHAPTERS[n].name, CHAPTERS[n].read_text("utf-8"))
    browser.get(f"{site}/tutorials/chapter-{n}.html")
    blocks = browser.find_elements(By.CSS_SELECTOR, ".cell pre")
    assert len(blocks) == len(fences) > 0
    for fence, block in zip(fences, blocks, strict=True):
        cell = [line for line in tree[fence.path] if line.cell == fence.cell]
        assert copy(browser, block) == "\n".join(line.text for line in stages.tidy(cell, n)), (
            f"{fence.path} {fence.cell}; if the code is newer than the site, build it again: nox -s docs"
        )


@pytest.mark.parametrize("n", CHAPTERS)
def test_copy_gives_what_an_example_types(browser: webdriver.Chrome, site: str, n: int) -> None:
    """Source lines without prompts and without output."""
    fences = DOCTEST.findall(CHAPTERS[n].read_text("utf-8"))
    browser.get(f"{site}/tutorials/chapter-{n}.html")
    blocks = browser.find_elements(By.CSS_SELECTOR, ".doctest pre")
    assert len(blocks) == len(fences) > 0
    for fence, block in zip(fences, blocks, strict=True):
        source = "".join(example.source for example in doctest.DocTestParser().get_examples(fence))
        typed = [re.sub(r"\s*# doctest:.*", "", line) for line in source.splitlines()]
        copied = copy(browser, block).splitlines()
        assert [line for line in copied if line.strip()] == [line for line in typed if line.strip()]


def test_next_leads_through_all_chapters(browser: webdriver.Chrome, site: str) -> None:
    browser.get(f"{site}/docs/index.html")
    for n in CHAPTERS:
        show(browser, wait_for(browser, "a.next-page")).click()
        WebDriverWait(browser, WAIT_S).until(url_to_be(f"{site}/tutorials/chapter-{n}.html"), f"next to chapter {n}")
    for n in [*reversed(CHAPTERS)][1:]:
        show(browser, wait_for(browser, "a.prev-page")).click()
        WebDriverWait(browser, WAIT_S).until(
            url_to_be(f"{site}/tutorials/chapter-{n}.html"), f"previous to chapter {n}"
        )


@pytest.mark.parametrize("n", CHAPTERS)
def test_downloads(browser: webdriver.Chrome, site: str, profile: Path, n: int) -> None:
    """The zip is the clean tree, the Markdown is the page, the notebook has each example as a code cell."""
    browser.get(f"{site}/tutorials/chapter-{n}.html")
    links = {
        str(link.get_attribute("href")).rsplit(".", 1)[1]: link
        for link in browser.find_elements(By.CSS_SELECTOR, ".chapter-downloads a")
    }
    assert set(links) == {"zip", "md", "ipynb"}

    links["zip"].click()
    target = profile / "downloads" / f"chapter-{n}.zip"
    end = time.monotonic() + WAIT_S
    while not target.exists() and time.monotonic() < end:
        time.sleep(0.05)
    with zipfile.ZipFile(target) as archive:
        texts = {name.split("/", 1)[1]: archive.read(name).decode("utf-8") for name in archive.namelist()}
    assert "CMakeLists.txt" in texts
    assert "LICENSE" in texts
    marked = [
        name for name, text in texts.items() if re.search(r"^\s*(//|#)\s*%%|COOKBOOK_CHAPTER", text, re.MULTILINE)
    ]
    assert not marked, f"marks of the book in the clean tree: {marked}"

    page = CHAPTERS[n].read_text("utf-8")
    with urllib.request.urlopen(str(links["md"].get_attribute("href"))) as answer:
        assert answer.read().decode("utf-8") == page
    with urllib.request.urlopen(str(links["ipynb"].get_attribute("href"))) as answer:
        cells = json.loads(answer.read())["cells"]
    examples = [example for fence in DOCTEST.findall(page) for example in doctest.DocTestParser().get_examples(fence)]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert code == [example.source.rstrip("\n") for example in examples]
    assert not [cell for cell in cells if cell["cell_type"] == "markdown" and "```{" in "".join(cell["source"])]


def test_dark_mode_toggles(browser: webdriver.Chrome, site: str) -> None:
    """The toggle reaches both themes, and in the dark one page, code and table heads are dark."""
    browser.get(f"{site}/tutorials/chapter-1.html")
    colours: dict[str, dict[str, int]] = {}
    for _ in range(3):
        browser.find_element(By.CSS_SELECTOR, ".theme-toggle-content .theme-toggle").click()
        theme = str(browser.execute_script("return document.body.dataset.theme"))
        colours[theme] = {
            selector: sum(
                int(part)
                for part in re.findall(
                    r"\d+",
                    browser.execute_script(
                        "return getComputedStyle(document.querySelector(arguments[0])).backgroundColor", selector
                    ),
                )[:3]
            )
            for selector in ("body", ".highlight pre", ".code-block-caption")
        }
    assert set(colours) == {"auto", "light", "dark"}
    for selector, brightness in colours["dark"].items():
        assert brightness < 200, selector
        assert colours["light"][selector] > 600, selector
