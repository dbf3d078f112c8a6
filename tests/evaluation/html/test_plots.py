"""Plots: every name as it is, plain numbers that do not touch, the page's colours, no styles."""

from __future__ import annotations

import re
from html import unescape
from xml.etree import ElementTree

import pytest

from claim2source.evaluation.html.plots import WIDTH, Bar, Spot, interval_plot, line_plot
from claim2source.evaluation.html.plots import scatter_plot as scatter

NAMES = ["_hidden", 'a$b$<i>&"', "x" * 80 + "end", "検索" * 9, "\x1b[2J\x00\nend"]
TICK = re.compile(r"[-−]?[\d.,]+")


def draw(kind: str, names: list[str] = NAMES) -> str:
    bars = {name: Bar(0.1 * i, 0.1 * i - 0.05, 0.1 * i + 0.05) for i, name in enumerate(names)}
    if kind == "interval":
        return interval_plot({"en": bars, "d$e$": bars}, names, "mrr@5")
    if kind == "line":
        points = {name: [(1.0, 0.1 * i), (100.0, 0.5)] for i, name in enumerate(names)}
        return line_plot(points, "x", "y", True)
    return scatter({n: Spot(10.0**i / 100, b) for i, (n, b) in enumerate(bars.items())}, "s", "y")


def texts(svg: str) -> list[tuple[str, float, float, str]]:
    """The texts of an SVG, with position and anchor."""
    return [
        (node.text or "", float(node.get("x", 0)), float(node.get("y", 0)), node.get("text-anchor", ""))
        for node in ElementTree.fromstring(svg).iter("text")
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["interval", "line", "scatter"])
def test_every_name_is_shown_as_text_and_apart(kind: str) -> None:
    svg = draw(kind)
    parts = [text for text in texts(svg) if text[0] and not TICK.fullmatch(text[0])]
    names = {text for text, *_ in parts}
    assert {"_hidden", 'a$b$<i>&"', "\\x1b[2J\\x00 end"} <= names
    assert any("…" in text and text.endswith("end") for text in names)
    assert any(text.startswith("検索") and "…" in text for text in names)
    assert "x" * 80 + "end" in unescape(svg)  # whole in the tooltip
    assert "<i>" not in svg and "mathdefault" not in svg and "\x1b" not in svg
    heights = sorted(y for text, _, y, _ in parts if text in names - {"x", "y", "s", "en", "d$e$"})
    assert all(b - a >= 14 for a, b in zip(heights, heights[1:], strict=False))
    for text, x, _, anchor in parts:
        wide = 7 * len(text)
        assert anchor == "middle" or (x - wide >= 0 if anchor == "end" else x + wide <= WIDTH)


@pytest.mark.parametrize("kind", ["interval", "line", "scatter"])
def test_nothing_is_loaded_or_styled_and_the_same_plot_is_the_same_text(kind: str) -> None:
    svg = draw(kind)
    assert svg == draw(kind)
    root = ElementTree.fromstring(svg)
    tags = {element.tag for element in root.iter()}
    assert tags <= {"svg", "g", "defs", "path", "use", "text", "title", "clipPath", "rect"}
    values = [(name, value) for element in root.iter() for name, value in element.attrib.items()]
    assert not [name for name, _ in values if name == "style" or name.startswith("on")]
    assert all(value.startswith("#") for name, value in values if "href" in name)
    # Every colour is a variable of the page: light or dark.
    colours = {value for name, value in values if name in ("fill", "stroke")}
    assert all(colour == "none" or colour.startswith("var(--") for colour in colours)
    # Only referenced elements have ids, which are unique among all plots of a page.
    ids = [value for name, value in values if name == "id"]
    assert len({*ids}) == len(ids)
    assert all(f"#{key}" in svg for key in ids)
    other_kind = "line" if kind != "line" else "interval"
    assert not {*re.findall(r' id="([^"]+)"', draw(other_kind))} & {*ids}
    for text in root.iter("text"):
        assert (text.get("fill") or "").startswith("var(--")


@pytest.mark.parametrize("systems", [1, 12])
@pytest.mark.parametrize("groups", [1, 4, 9])
def test_panels_have_every_system_and_stay_within_the_plot(systems: int, groups: int) -> None:
    bars = {f"system {i}": Bar(0.3, 0.2, 0.9) for i in range(systems)}
    svg = interval_plot({f"l{g}": bars for g in range(groups)}, list(bars), "m", zero=True)
    height = float(re.findall(r'viewBox="0 0 800 (\d+)"', svg)[0])
    parts = texts(svg)
    assert all(0 < y < height and 0 <= x <= WIDTH for _, x, y, _ in parts)
    assert {f"l{g}" for g in range(groups)} <= {text for text, *_ in parts}
    tips = re.findall(r"<title>system \d+, l\d: 0.3000 \[0.2000, 0.9000\]</title>", svg)
    assert len({*tips}) == systems * groups


def test_a_significant_dot_is_filled_and_one_that_is_not_is_hollow() -> None:
    bars = {"a": Bar(0.1, 0.0, 0.2, True), "b": Bar(0.1, 0.0, 0.2, False)}
    svg = interval_plot({"en": bars}, ["base", "a", "b"], "m", zero=True)
    dots = re.findall(r'<use [^>]*fill="(var\(--\w+\))" stroke="(var\(--\w+\))"', svg)
    # Colours depend on the position among all systems.
    assert dots == [("var(--c1)", "var(--c1)"), ("var(--paper)", "var(--c2)")]


def test_nine_systems_have_nine_marks_of_another_shape_each() -> None:
    svg = draw("line", [f"system {i}" for i in range(9)])
    shapes = re.findall(r'<path (?:id="[^"]+" )?d="([^"]+)"', svg)
    marks = {
        (href, fill)
        for href, fill in re.findall(r'<use [^>]*href="#([^"]+)"[^>]*fill="(var\(--c\d\))"', svg)
    } | {
        (href, fill)
        for fill, href in re.findall(r'<use [^>]*fill="(var\(--c\d\))"[^>]*href="#([^"]+)"', svg)
    }
    assert len(shapes) >= 9 and len(marks) >= 9
    by_colour = {fill: {href for href, own in marks if own == fill} for _, fill in marks}
    # The ninth has the first one's colour, and another shape.
    assert len(by_colour["var(--c0)"]) > len(by_colour["var(--c1)"])
