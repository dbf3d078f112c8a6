"""The site of docs/: figures and tables are described, it builds strictly, its search finds."""

from __future__ import annotations

import functools
import http.server
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.eval.test_report_browser import browser  # noqa: F401  the fixture
from tests.shared_data import REPOSITORY

DOCS = REPOSITORY / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
MARKDOWN = [*(REPOSITORY / name for name in ("README.md", "BENCHMARKS.md", "SKILL.md")), *PAGES]
# A desktop and a phone.
WIDTHS = (1280, 390)
# What readers look for, and the pages that may come first.
SEARCHES = {
    "resume": ("train/",),
    "LoRA": ("settings/", "train/"),
    "OpenAlex": ("find/",),
}
# What stands outside the window and cannot be scrolled to, text that should be a table or bold,
# and images that are absent or not described.
FAULTS = """() => {
  const width = document.documentElement.clientWidth;
  const faults = [];
  if (document.documentElement.scrollWidth > width) faults.push("the page is wider than its window");
  const scrolls = (element) => {
    for (let e = element.parentElement; e; e = e.parentElement)
      if (e !== document.body && getComputedStyle(e).overflowX !== "visible") return true;
    return false;
  };
  for (const element of document.querySelectorAll(".md-content *"))
    if (element.getBoundingClientRect().right > width + 1 && !scrolls(element))
      faults.push("outside: " + element.textContent.slice(0, 60));
  for (const text of document.querySelectorAll(".md-content p"))
    if (/^\\s*\\|.*\\||\\*\\*|\\]\\(/.test(text.textContent))
      faults.push("markup: " + text.textContent.slice(0, 60));
  for (const table of document.querySelectorAll(".md-content table"))
    if (!table.querySelector("th")) faults.push("a table without a head");
  for (const image of document.querySelectorAll(".md-content img"))
    if (!image.alt || !image.naturalWidth) faults.push("image: " + image.src);
  return faults;
}"""


def name_of(page: Path) -> str:
    return str(page.relative_to(REPOSITORY))


def without_code(page: Path) -> list[str]:
    """The lines of a page; those of code and comments are empty."""
    text = page.read_text(encoding="utf-8")
    text = re.sub(r"^```.*?^```$", blank, text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"<!--.*?-->", blank, text, flags=re.DOTALL).split("\n")


def blank(found: re.Match[str]) -> str:
    return "\n" * found[0].count("\n")


def cells(row: str) -> int:
    return len(re.findall(r"(?<!\\)\|", row))


@pytest.mark.parametrize("page", MARKDOWN, ids=name_of)
def test_every_table_is_whole_and_is_introduced_by_a_sentence(page: Path) -> None:
    lines = without_code(page)
    above, start = "", 0
    for number, line in enumerate(lines):
        if not line.startswith("|"):
            start = number + 1
            above = line.strip() or above
            continue
        if number > start:
            assert cells(line) == cells(lines[start]), f"{number + 1}: {line}"
            continue
        is_table = re.fullmatch(r"\|[-:| ]+\|", lines[number + 1])
        assert is_table, f"{number + 1}: no head: {line}"
        assert above and not above.startswith(("#", "|")), f"{number + 1}: {line}"
        above = line


@pytest.mark.parametrize("page", MARKDOWN, ids=name_of)
def test_every_image_is_described(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for alt, file in re.findall(r"!\[(.*?)\]\((.*?)\)", text):
        assert len(alt.split()) >= 3 and (page.parent / file).is_file(), file
    assert "<img" not in text


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the site, which is built in strict mode: a warning fails."""
    pytest.importorskip("mkdocs", reason="needs the `docs` extra")
    folder = tmp_path_factory.mktemp("site")
    process = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=REPOSITORY,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert process.returncode == 0 and "WARNING" not in process.stderr, process.stderr[-3000:]
    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serve a folder without a log."""

    def log_message(self, format: str, *words: Any) -> None:
        return


@pytest.mark.slow
@pytest.mark.parametrize("width", WIDTHS)
def test_no_page_is_broken_or_loads_from_another_server(
    site: str,
    browser: Any,  # noqa: F811
    width: int,
) -> None:
    page = browser.new_page(viewport={"width": width, "height": 900})
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    for file in PAGES:
        path = file.relative_to(DOCS).with_suffix("").as_posix()
        page.goto(site if path == "index" else f"{site}{path}/", wait_until="load")
        assert page.evaluate(FAULTS) == [], path
    assert all(url.startswith((site, "data:", "blob:")) for url in requests)
    page.close()


@pytest.mark.slow
@pytest.mark.parametrize("words", SEARCHES)
def test_search_of_the_site_finds(site: str, browser: Any, words: str) -> None:  # noqa: F811
    page = browser.new_page()
    page.goto(site)
    page.click("input.md-search__input")
    page.type("input.md-search__input", words, delay=20)
    first = page.wait_for_selector("a.md-search-result__link", timeout=60_000)
    address = first.get_attribute("href").removeprefix(site)
    assert address.startswith(SEARCHES[words]), address
    page.close()
