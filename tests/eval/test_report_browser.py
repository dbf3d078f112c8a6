"""The HTML pages in a real browser: filters, links, keyboard, narrow, dark, printed, hostile."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from claim2source.eval.report import main

from claim2source.core.run import Run
from claim2source.evaluation.html.page import trace_page
from tests.eval.test_report import EVIL, data, save

pytestmark = pytest.mark.slow
OPTIONS = (
    "--no-sandbox --disable-gpu --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
).split()
# The ratio of contrast of every text that is seen, and of dots and lines, to what is behind it.
CONTRASTS = """() => {
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const light = (color) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
    if (a === 0) return null;
    const [x, y, z] = [r, g, b].map((part) => part / 255).map(
      (part) => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const found = light(getComputedStyle(at).backgroundColor);
      if (found !== null) return found;
    }
    return 1;
  };
  const ratio = (a, b) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  const said = [];
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    const style = getComputedStyle(element);
    const drawn = element.matches("svg .mark > path, svg .mark use");
    if ((!own && !drawn) || element.matches("script, style, title")) continue;
    if (!element.checkVisibility()) continue;
    const color = drawn ? style.stroke : element.closest("svg") ? style.fill : style.color;
    said.push([element.textContent.slice(0, 20), ratio(light(color), behind(element)), drawn]);
  }
  return said;
}"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of two hostile systems: see `tests.eval.test_report.data`."""
    root = tmp_path_factory.mktemp("browser")
    folder, reports = save(root)
    main(
        [f"--reports={reports}", f"--dataset={folder}", f"--html={root / 'o.html'}", "--repeats=50"]
    )
    return root / "o.html"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    chromium = os.environ.get("CHROMIUM") or "chromium"
    path = shutil.which(chromium) or shutil.which("chromium-browser")
    if path is None:
        pytest.skip("no Chromium: run `make browser`, or name one in CHROMIUM")
    api = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
    with api.sync_playwright() as play:
        started = play.chromium.launch(executable_path=path, args=OPTIONS)
        yield started
        started.close()


class Seen:
    """Collect the requests and the errors of a page."""

    def __init__(self, page: Any) -> None:
        self.requests: list[str] = []
        self.errors: list[str] = []
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", lambda message: self.errors.append(message.text))
        page.on("dialog", lambda dialog: (self.errors.append(dialog.message), dialog.dismiss()))


@pytest.fixture
def page(browser: Any, report: Path, request: pytest.FixtureRequest) -> Iterator[Any]:
    """The page, opened; whatever a test does, nothing is fetched and no script fails."""
    page = browser.new_page(viewport={"width": 1000, "height": 800})
    seen = Seen(page)
    page.goto(report.as_uri())
    yield page
    urls = {url.split("#")[0] for url in seen.requests}
    title, owned = page.title(), page.evaluate("typeof owned")
    page.close()
    assert (urls, seen.errors) == ({report.as_uri()}, [])
    assert (title, owned) == ("data, dev: mrr@5", "undefined")


def posts(page: Any) -> list[str]:
    """The first words of the posts that are shown, in order."""
    shown = page.locator(".claim:not([hidden]) .post").all_inner_texts()
    return [" ".join(text.split()[:2]) for text in shown]


ALL = [
    'post <script>document.title="owned"</script><img',
    "only the",
    "beide finden",
    "keiner findet",
]


def test_hostile_text_is_shown_as_text(page: Any) -> None:
    page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
    page.hover("svg .mark use >> nth=0")
    assert page.locator("img, iframe, [onerror], [onload]").count() == 0
    assert "<img src=x onerror=" in page.locator("#claim-0 .post").inner_text()
    # What turns the direction of writing ends with the post.
    assert page.locator("#claim-0 .post").evaluate("e => getComputedStyle(e).unicodeBidi") in (
        "isolate",
        "isolate-override",
    )


def test_claims_are_filtered(page: Any) -> None:
    assert page.locator("#count").inner_text() == "4 of 4 claims"
    assert posts(page) == [" ".join(ALL[0].split()[:2]), *ALL[1:]]
    page.select_option("#language", "de")
    assert posts(page) == ALL[2:]
    page.select_option("#tag", "nobody")
    assert posts(page) == ["keiner findet"]
    page.fill("#text", "BEIDE")
    assert posts(page) == [] and page.locator("#count").inner_text() == "0 of 4 claims"
    page.select_option("#tag", "")
    assert posts(page) == ["beide finden"]
    page.select_option("#language", "")
    page.fill("#text", "")
    assert len(posts(page)) == 4


def test_claims_are_sorted(page: Any) -> None:
    page.select_option("#order", label="rank with epoch-0, worst first")
    assert posts(page)[:2] == ["keiner findet", "only the"]
    page.select_option("#order", label="rank with epoch-1, worst first")
    assert posts(page)[1] == "keiner findet" and posts(page)[0].startswith("post")
    page.select_option("#order", "")
    assert posts(page)[1:] == ALL[1:]


def test_tables_are_sorted(page: Any) -> None:
    page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
    table = page.locator("table.sortable").first
    names = table.locator("tbody th")
    head = table.locator("thead th").nth(0)
    assert names.all_inner_texts() == ["epoch-0", "epoch-1"]
    head.locator("button").click()
    assert (names.all_inner_texts(), head.get_attribute("aria-sort")) == (
        ["epoch-0", "epoch-1"],
        "ascending",
    )
    head.locator("button").click()
    assert (names.all_inner_texts(), head.get_attribute("aria-sort")) == (
        ["epoch-1", "epoch-0"],
        "descending",
    )
    # Numbers are compared as numbers, the largest first; "-" comes last.
    tests = page.locator("table.sortable").nth(1)
    tests.locator("thead button", has_text="difference").click()
    assert tests.locator("tbody tr td:nth-child(3)").all_inner_texts()[-1] == "-"
    costs = page.locator("table.sortable").last
    seconds = costs.locator("thead button", has_text="seconds")
    for expected in (["3.0", "2.0"], ["2.0", "3.0"]):
        seconds.click()
        assert costs.locator("tbody td:nth-child(3)").all_inner_texts() == expected


def test_a_number_of_claims_links_to_them(page: Any) -> None:
    page.locator('a[data-ranks="0:2:5 1:1:1"]').click()
    assert posts(page) == ["only the"]
    clear = page.locator("#clear")
    assert clear.inner_text() == "Rank 2-5 with epoch-0, 1 with epoch-1: show all again"
    clear.click()
    assert len(posts(page)) == 4 and clear.is_hidden()
    page.locator('a[data-ranks="0:0:0 1:0:0"]').click()
    assert posts(page) == ["keiner findet"]
    # Every number is that of the claims that its link shows.
    for link in page.locator("a[data-ranks]").all():
        link.click()
        assert len(posts(page)) == int(link.inner_text())


def test_a_claim_has_a_link_and_its_ranks_beside_each_other(page: Any, report: Path) -> None:
    claim = page.locator("#claim-3")
    assert not claim.locator("table").is_visible()
    page.select_option("#language", "de")
    page.goto(f"{report.as_uri()}#claim-3")  # of an English claim, which the filter hides
    assert claim.locator("table").is_visible()
    assert claim.locator("thead th").all_inner_texts() == ["source", "epoch-0", "epoch-1"]
    assert claim.locator("tr:has(.gold) td").all_inner_texts() == ["2", "1"]


def test_the_keyboard_reaches_and_works_everything(page: Any) -> None:
    page.evaluate("document.activeElement.blur()")
    reached = []
    for _ in range(80):
        page.keyboard.press("Tab")
        element = page.evaluate(
            """() => { const at = document.activeElement, style = getComputedStyle(at);
            return [at.id || at.className || at.tagName, at.textContent.slice(0, 12),
              style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0,
              at.getBoundingClientRect().top]; }"""
        )
        if element[0] == "BODY":
            break
        reached.append(element)
    assert all(visible for _, _, visible, _ in reached), reached
    ids = [element[0] for element in reached]
    order = [ids.index(name) for name in ("A", "scroll", "SUMMARY", "language", "tag", "text")]
    assert order == sorted(order), ids
    assert sum(1 for name in ids if name == "SUMMARY") >= 8  # sections and claims
    # Open the first claim, and sort a table, without a mouse.
    page.locator("#claim-3 summary").focus()
    page.keyboard.press("Enter")
    assert page.locator("#claim-3 table").is_visible()
    page.keyboard.press("Space")
    assert not page.locator("#claim-3 table").is_visible()
    page.locator("section:first-of-type details summary").first.focus()
    page.keyboard.press("Space")
    page.keyboard.press("Tab")  # the box of the table, then its heads
    page.keyboard.press("Tab")
    page.keyboard.press("Space")
    assert page.locator('th[aria-sort="ascending"]').count() == 1
    page.locator("#language").focus()
    page.keyboard.press("d")
    assert posts(page) == ALL[2:]


@pytest.mark.parametrize("width", [360, 1000, 1600])
def test_no_page_is_wider_than_its_window(page: Any, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 700})
    page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    overflowing = page.evaluate(
        """() => [...document.querySelectorAll("body *")].filter((one) =>
        !one.closest(".scroll") && one.checkVisibility()
        && one.getBoundingClientRect().right > innerWidth + 1).map((one) => one.outerHTML)"""
    )
    assert overflowing == []
    # A wider table scrolls within its own box; lines of text are not too long.
    boxes = page.locator(".scroll").evaluate_all(
        "all => all.map((e) => e.scrollWidth - e.clientWidth)"
    )
    assert any(boxes) or width > 360
    widths = page.locator("p, summary").evaluate_all("all => all.map((e) => e.clientWidth)")
    assert len(widths) > 20 and max(widths) <= 840


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_and_plots_are_readable(page: Any, scheme: str) -> None:
    page.emulate_media(color_scheme=scheme)
    page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert paper == {"light": "rgb(255, 255, 255)", "dark": "rgb(21, 24, 29)"}[scheme]
    texts = page.evaluate(CONTRASTS)
    assert len(texts) > 200 and {is_drawn for *_, is_drawn in texts} == {True, False}
    assert [text for text in texts if text[1] < (3 if text[2] else 4.5)] == []


def test_printed_it_shows_the_numbers_and_no_controls(browser: Any, report: Path) -> None:
    page = browser.new_page(color_scheme="dark")
    page.goto(report.as_uri())
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not page.locator("#language").is_visible() and not page.locator("nav").is_visible()
    for table in page.locator("table:not(.claim table)").all():
        assert table.evaluate("e => e.checkVisibility({contentVisibilityAuto: true})")
        assert table.bounding_box()["height"] > 20
    assert page.pdf().startswith(b"%PDF")
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_of_claims_through_stages_opens_in_a_browser(
    browser: Any, tmp_path: Path, scheme: str
) -> None:
    hostile = data()
    ranks = {
        "first stage": {"c1": ["p2", "p1"], "c2": ["p2", "p3"], "c3": ["p2"], "c4": ["p1", "p3"]},
        f"1. rerank {EVIL}": {
            "c1": ["p1", "p2"], "c2": ["p3", "p2"], "c3": ["p2"], "c4": ["p1", "p3"]
        },
    }  # fmt: skip
    runs = {
        stage: Run.from_lists(
            {claim: [(s, -float(i)) for i, s in enumerate(ids)] for claim, ids in lists.items()}
        )
        for stage, lists in ranks.items()
    }
    path = tmp_path / "claims.html"
    trace_page(runs, hostile, path, title="mine")
    page = browser.new_page(viewport={"width": 360, "height": 700}, color_scheme=scheme)
    seen = Seen(page)
    page.goto(path.as_uri())
    assert page.title() == "mine: claims through 2 stages"
    assert page.locator("#count").inner_text() == "4 of 4 claims"
    page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
    # The sources in the order of the last stage, with the gold's way from rank 2 to rank 1.
    rows = page.locator("#claim-0 tbody tr")
    assert rows.nth(0).locator("td").all_inner_texts() == ["2", "1↑"]
    assert rows.nth(1).locator("td").all_inner_texts() == ["1", "2↓"]
    assert rows.nth(0).locator("th.gold").inner_text().startswith("Title <script>")
    assert page.locator("img, iframe, [onerror], [onload]").count() == 0
    texts = page.evaluate(CONTRASTS)
    assert len(texts) > 50 and [text for text in texts if text[1] < 4.5] == []
    # A narrow window scrolls the tables, not the page.
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.select_option("#tag", "to rank 1")
    assert posts(page) == [" ".join(ALL[0].split()[:2])]
    page.select_option("#tag", "demoted")
    assert posts(page) == ["beide finden"]
    page.select_option("#tag", "")
    page.select_option("#order", "1")
    assert posts(page)[0] == "keiner findet" and posts(page)[-1] == " ".join(ALL[0].split()[:2])
    page.fill("#text", "keiner")
    assert page.locator("#count").inner_text() == "1 of 4 claims"
    page.goto(path.as_uri() + "#claim-1")
    assert page.locator("#claim-1").evaluate("e => e.open && !e.hidden")
    urls, owned = {url.split("#")[0] for url in seen.requests}, page.evaluate("typeof owned")
    page.close()
    assert (urls, seen.errors, owned) == ({path.as_uri()}, [], "undefined")
