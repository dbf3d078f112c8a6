"""The page in a real browser: papers, abstention, a hostile post, 503, keyboard, narrow, dark."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from claim2source.core.records import Source
from claim2source.data.loading import load
from claim2source.data.papers import Paper
from claim2source.data.posts import Post
from claim2source.find.calibrate import calibrate
from claim2source.search.dense import Dense
from claim2source.search.engine import open_index
from claim2source.search.growing import grow, open_for_writing
from claim2source.text import Rendering
from tests.eval.test_report_browser import CONTRASTS, Seen, browser  # noqa: F401  the fixture
from tests.serve.servers import SlowFinder, serving

pytestmark = pytest.mark.slow
# Where screenshots are written: `SCREENSHOTS=docs/images` renews those of the README.
SCREENSHOTS = "SCREENSHOTS"
EVIL = "<script>document.title='owned'</script><img src=x onerror=owned=1>\u202e"
EVIL_PAPER = Paper(
    Source("evil", f"Zebrafish {EVIL}", f"Zebrafish swim. {EVIL}", (EVIL,), EVIL, EVIL),
    url="javascript:owned=1",
)
SIZES = """() => [".best h3", ".papers .title"].map(
  (one) => parseFloat(getComputedStyle(document.querySelector(one)).fontSize))"""
POST = "new study: masks cut outbreaks 3.7x in primary schools"
# What reaches beyond the window.
BEYOND = """() => [document.documentElement, ...document.querySelectorAll("body *")].filter(
  (one) => one.checkVisibility() && one.getBoundingClientRect().right > innerWidth + 1
    || one === document.documentElement && one.scrollWidth > innerWidth
).map((one) => one.outerHTML.slice(0, 300))"""


@pytest.fixture(scope="module")
def finder(minilm: Any, tmp_path_factory: pytest.TempPathFactory) -> SlowFinder:
    """Papers of the demo, and a hostile one; abstention is fitted to their claims."""
    folder, data = tmp_path_factory.mktemp("page") / "idx", load("demo", "train")
    masks = [source for source in data.sources if "mask" in source.title.lower()]
    papers = [Paper(source) for source in dict.fromkeys([*masks, *data.sources[:80]])]
    dense = Dense(minilm, rendering=Rendering("original", "title_abstract"))
    engine = open_for_writing(folder, dense)
    grow(engine, [*papers, EVIL_PAPER], dense)
    engine.note(abstain=calibrate(engine, data).as_json())
    engine.close()
    engine = open_index(folder)
    engine.use(minilm.encoder)
    return SlowFinder(engine)


@pytest.fixture(scope="module")
def address(finder: SlowFinder) -> Iterator[str]:
    with serving(finder, capacity=1) as url:
        yield url


@pytest.fixture
def page(browser: Any, address: str) -> Iterator[Any]:  # noqa: F811
    """The open page; in every test there are no other requests and no script errors."""
    page = browser.new_page(viewport={"width": 1000, "height": 800})
    seen = Seen(page)
    page.goto(address)
    yield page
    owned, title = page.evaluate("typeof owned"), page.title()
    page.close()
    assert all(url.startswith((address, "data:,")) for url in seen.requests), seen.requests
    assert (seen.errors, owned, title) == ([], "undefined", "Find the paper of a post")


def find_titles(page: Any, post: str) -> list[str]:
    page.fill("#post", post)
    page.locator("#post").press("Control+Enter")
    return titles(page)


def titles(page: Any) -> list[str]:
    page.wait_for_selector("#answer:not([aria-busy]) .verdict")
    listed: list[str] = page.locator(".best h3, .papers .title").all_inner_texts()
    return listed


def in_order(finder: SlowFinder, post: str) -> list[str]:
    (answer,) = finder.find([Post("0", post)])
    return [" ".join(match.paper.source.title.split()) for match in answer.matches]


def test_a_post_is_pasted_and_papers_are_seen(
    page: Any, finder: SlowFinder, tmp_path: Path
) -> None:
    assert page.evaluate("document.activeElement.id") == "post"
    expected = in_order(finder, POST)
    assert find_titles(page, POST) == expected and len(expected) == 10
    verdict = page.locator(".verdict").inner_text()
    assert verdict.startswith(("Found: ", "Uncertain: ", "Not here: "))
    assert "% that it is here" in verdict and "held-out posts" in page.inner_text("#answer")
    assert page.locator(".next").inner_text() and page.locator(".evidence meter").count() == 1
    # The best one is highlighted, with the post's number next to its own; the others unfold.
    sizes = page.evaluate(SIZES)
    assert sizes[0] > 1.15 * sizes[1]
    assert page.locator(".best .numbers tbody th").all_inner_texts() == ["3.7x"]
    other = page.locator(".papers > li").first
    assert not other.locator(".sides").is_visible()
    other.locator("summary").click()
    assert other.locator(".sides").is_visible()
    # Marked are the post's words as the paper has them, not all of the paper's.
    marked = set(page.locator("mark").evaluate_all("all => all.map((e) => e.textContent)"))
    assert "outbreaks" in marked and not marked & {"the", "randomised"}
    first = page.locator(".best")
    assert not first.locator(".abstract").is_visible()
    first.locator("summary").click()
    assert first.locator(".abstract").is_visible()
    folder = Path(os.environ.get(SCREENSHOTS) or tmp_path)
    page.evaluate("scrollTo(0, 0)")
    page.set_viewport_size({"width": 860, "height": 900})
    page.screenshot(path=folder / "find.png", animations="disabled")
    assert page.url.rstrip("/").count("/") == 2  # the post is not in the address


def test_hostile_texts_are_shown_as_text(page: Any, address: str) -> None:
    post = f"zebrafish {EVIL}"
    shown = find_titles(page, post)
    assert any("<img src=x onerror=owned=1>" in title for title in shown)
    page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
    assert page.locator("img, iframe, [onerror], #answer script").count() == 0
    assert page.locator("a[href^='javascript:']").all_inner_texts() == ["Find the paper"]
    assert page.locator("a[href*='evil']").count() == 0
    assert page.locator("#history li").first.inner_text().startswith("zebrafish <script>")
    page.goto(f"{address}/?{urlencode({'post': post + '</textarea><b>'})}")
    assert page.locator("#post").input_value() == post + "</textarea><b>"
    assert page.locator("img, b").count() == 0 and len(titles(page)) == 10


def test_earlier_posts_stay_in_the_browser(page: Any, address: str) -> None:
    assert not page.locator("#history").is_visible()
    for post in ("first post", "second post", "first post"):
        find_titles(page, post)
    page.goto(address)
    page.locator("#history summary").click()
    assert page.locator("#history li").all_inner_texts() == ["first post", "second post"]
    page.locator("#history li button").nth(1).click()
    assert len(titles(page)) == 10 and page.locator("#post").input_value() == "second post"
    page.locator("#forget").click()
    assert not page.locator("#history").is_visible()
    assert page.evaluate("localStorage.length") == 0


def test_the_keyboard_reaches_everything(page: Any) -> None:
    find_titles(page, POST)
    assert page.evaluate("document.activeElement.id") == "answer"
    page.locator("#post").focus()
    reached = []
    for _ in range(60):
        page.keyboard.press("Tab")
        at = page.evaluate(
            """() => { const at = document.activeElement, style = getComputedStyle(at);
            return [at.id || at.name || at.className || at.tagName,
              style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0]; }"""
        )
        if at[0] == "BODY":
            break
        reached.append(at)
    names = [name for name, _ in reached]
    order = [names.index(name) for name in ("find", "lang", "date", "SUMMARY", "file", "copy")]
    assert order == sorted(order), names
    # Those of closed lines come with them.
    assert names.count("copy") == 1 and names.count("SUMMARY") == 12, names
    assert {"permalink", "copy-link", "bookmarklet"} <= set(names)
    # The region that only a script focuses, and Chromium's parts of a date, aside.
    assert [name for name, seen in reached if not seen and name != "date"] == []
    page.locator(".papers summary").first.focus()
    page.keyboard.press("Enter")
    assert page.locator(".papers .abstract").first.is_visible()


@pytest.mark.parametrize("width", [320, 390, 1280])
def test_no_page_is_wider_than_its_window(page: Any, address: str, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 700})
    find_titles(page, "zebrafish " + "x" * 500)
    page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
    assert page.evaluate(BEYOND) == []
    page.goto(f"{address}/docs")
    assert page.evaluate(BEYOND) == []
    page.goto(address)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_are_readable(page: Any, scheme: str) -> None:
    page.emulate_media(color_scheme=scheme)
    find_titles(page, POST)
    page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert paper == {"light": "rgb(255, 255, 255)", "dark": "rgb(21, 24, 29)"}[scheme]
    contrasts = page.evaluate(CONTRASTS)
    assert len(contrasts) > 50 and [contrast for contrast in contrasts if contrast[1] < 4.5] == []


def test_a_screen_reader_hears_parts_by_their_names(page: Any) -> None:
    find_titles(page, POST)
    tree = page.locator("body").aria_snapshot()
    for line in (
        'navigation "Language of this page"',
        'textbox "Post"',
        'heading "Find the paper of a post" [level=1]',
        'region "Answer"',
        "article ",
        'heading "Other papers" [level=2]',
        'table "Numbers"',
        'columnheader "in the paper"',
        'rowheader "3.7x"',
    ):
        assert line in tree, line
    assert 'meter "Probability that the paper is in this index"' in tree
    # Headings go down without a gap.
    levels = page.locator("h1, h2, h3, h4").evaluate_all("all => all.map((e) => +e.tagName[1])")
    for above, level in zip(levels, levels[1:], strict=False):
        assert level <= above + 1, levels


@pytest.mark.parametrize(("locale", "lang"), [("de-AT", "de"), ("fr-FR", "fr"), ("es", "en")])
def test_the_page_speaks_the_browsers_language_and_can_be_switched(
    browser: Any,  # noqa: F811
    address: str,
    locale: str,
    lang: str,
) -> None:
    context = browser.new_context(locale=locale)
    page = context.new_page()
    page.goto(address)
    assert page.evaluate("document.documentElement.lang") == lang
    shown = len(find_titles(page, POST))
    first = page.locator(".verdict").inner_text()
    other = "fr" if lang == "de" else "de"
    page.locator(f".languages a[lang={other}]").click()
    page.wait_for_url("**/?ui=" + other)  # the post is not in the address
    assert len(titles(page)) == shown and page.locator("#post").input_value() == POST
    assert page.locator(".verdict").inner_text() != first
    page.goto(address)
    assert page.evaluate("document.documentElement.lang") == other  # kept
    context.close()


def test_a_colleague_opens_the_link_to_an_answer(page: Any) -> None:
    page.select_option("[name=lang]", "en")
    page.fill("[name=date]", "2030-01-31")
    expected = find_titles(page, POST)
    verdict = page.locator(".verdict").inner_text()
    page.goto(page.locator(".permalink").evaluate("e => e.href"))
    assert titles(page) == expected and page.locator(".verdict").inner_text() == verdict
    assert page.locator("[name=date]").input_value() == "2030-01-31"


DROP = """([target, name, text]) => {
  const data = new DataTransfer();
  data.items.add(new File([text], name, {type: "text/csv"}));
  for (const kind of ["dragenter", "dragover", "drop"])
    document.querySelector(target).dispatchEvent(
      new DragEvent(kind, {dataTransfer: data, bubbles: true, cancelable: true}));
}"""


def test_a_table_that_is_dropped_is_answered_and_downloaded(page: Any, tmp_path: Path) -> None:
    text = f"id,text\na,{POST}\nb,=1+1 {EVIL}\n"
    page.evaluate(DROP, ["#many", "posts.csv", text])
    page.wait_for_selector(".download")
    rows = page.locator(".posts tbody tr")
    assert rows.count() == 2 and "2 of 2" in page.locator("#table [role=status]").inner_text()
    assert "<script>" in rows.nth(1).inner_text() and page.locator("#table img").count() == 0
    with page.expect_download() as download:
        page.locator(".download").click()
    assert download.value.suggested_filename == "posts-papers.csv"
    download.value.save_as(tmp_path / "table.csv")
    content = (tmp_path / "table.csv").read_bytes()
    assert content.startswith(b"\xef\xbb\xbfid,text,post,post_text") and b"\nb,'=1+1" in content
    page.set_viewport_size({"width": 390, "height": 800})
    assert page.evaluate(BEYOND) == []
    rows.nth(0).locator("a").first.click()
    assert len(titles(page)) == 10


def test_a_file_that_is_no_table_is_refused_in_words(browser: Any, address: str) -> None:  # noqa: F811
    page = browser.new_page()
    page.goto(address)
    file = {"name": "p.xlsx", "mimeType": "application/zip", "buffer": b"PK"}
    page.locator("#file").set_input_files(files=[file])
    page.wait_for_selector("#table .problem")
    assert "p.xlsx" in page.locator("#table .problem").inner_text()
    assert page.locator("#table .download, #table progress").count() == 0
    page.close()
