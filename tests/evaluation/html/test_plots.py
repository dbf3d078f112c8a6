"""Plots: every name as it is, plain numbers that do not touch, the page's colours, no styles."""

from __future__ import annotations

import re
from html import unescape
from xml.etree import ElementTree

import pytest

from claim2source.evaluation.html.plots import WIDTH, Bar, Spot, interval_plot, line_plot
from claim2source.evaluation.html.plots import scatter_plot as scatter

NAMES = [
    "_hidden",
    'a$b$<i>&"',
    "x" * 80 + "end",
    "検索" * 9,
    "\x1b[2J\x00\nend",
]
TICK = re.compile(r"[-−]?[\d.,]+")


def draw(kind: str, names: list[str] = NAMES) -> str:
    bars = {}
    for i, name in enumerate(names):
        value = 0.1 * i
        bars[name] = Bar(value, value - 0.05, value + 0.05)
    if kind == "interval":
        panels = {"en": bars, "d$e$": bars}
        return interval_plot(panels, names, "mrr@5")
    if kind == "line":
        points = {}
        for i, name in enumerate(names):
            points[name] = [(1.0, 0.1 * i), (100.0, 0.5)]
        return line_plot(points, "x", "y", True)
    spots = {}
    for i, (name, bar) in enumerate(bars.items()):
        spots[name] = Spot(10.0**i / 100, bar)
    return scatter(spots, "s", "y")


def texts(svg: str) -> list[tuple[str, float, float, str]]:
    """The texts of an SVG, with position and anchor."""
    found = []
    for node in ElementTree.fromstring(svg).iter("text"):
        text = node.text or ""
        x = float(node.get("x", 0))
        y = float(node.get("y", 0))
        anchor = node.get("text-anchor", "")
        found.append((text, x, y, anchor))
    return found


@pytest.mark.parametrize("kind", ["interval", "line", "scatter"])
def test_every_name_is_shown_as_text_and_apart(kind: str) -> None:
    svg = draw(kind)
    parts = []
    for part in texts(svg):
        shown = part[0]
        if shown and not TICK.fullmatch(shown):
            parts.append(part)

    names = {text for text, *_ in parts}
    assert {"_hidden", 'a$b$<i>&"', "\\x1b[2J\\x00 end"} <= names
    assert any("…" in text and text.endswith("end") for text in names)
    assert any(text.startswith("検索") and "…" in text for text in names)
    long_name = "x" * 80 + "end"
    assert long_name in unescape(svg)  # whole in the tooltip
    assert "<i>" not in svg
    assert "mathdefault" not in svg
    assert "\x1b" not in svg

    labels = names - {"x", "y", "s", "en", "d$e$"}
    heights = sorted(y for text, _, y, _ in parts if text in labels)
    neighbours = zip(heights, heights[1:], strict=False)
    assert all(b - a >= 14 for a, b in neighbours)
    for text, x, _, anchor in parts:
        wide = 7 * len(text)
        if anchor == "middle":
            continue
        if anchor == "end":
            assert x - wide >= 0
        else:
            assert x + wide <= WIDTH


@pytest.mark.parametrize("kind", ["interval", "line", "scatter"])
def test_nothing_is_loaded_or_styled_and_the_same_plot_is_the_same_text(kind: str) -> None:
    svg = draw(kind)
    assert svg == draw(kind)
    root = ElementTree.fromstring(svg)
    tags = {element.tag for element in root.iter()}
    assert tags <= {
        "svg",
        "g",
        "defs",
        "path",
        "use",
        "text",
        "title",
        "clipPath",
        "rect",
    }

    values = []
    for element in root.iter():
        values.extend(element.attrib.items())
    for name, value in values:
        assert name != "style"
        assert not name.startswith("on")
        if "href" in name:
            assert value.startswith("#")
    # Every colour is a variable of the page: light or dark.
    colours = {value for name, value in values if name in ("fill", "stroke")}
    for colour in colours:
        assert colour == "none" or colour.startswith("var(--")
    # Only referenced elements have ids, which are unique among all plots of a page.
    ids = [value for name, value in values if name == "id"]
    unique_ids = {*ids}
    assert len(unique_ids) == len(ids)
    assert all(f"#{key}" in svg for key in ids)

    other_kind = "line" if kind != "line" else "interval"
    other_ids = re.findall(r' id="([^"]+)"', draw(other_kind))
    assert not {*other_ids} & unique_ids
    for text in root.iter("text"):
        colour = text.get("fill") or ""
        assert colour.startswith("var(--")


@pytest.mark.parametrize("systems", [1, 12])
@pytest.mark.parametrize("groups", [1, 4, 9])
def test_panels_have_every_system_and_stay_within_the_plot(systems: int, groups: int) -> None:
    bars = {f"system {i}": Bar(0.3, 0.2, 0.9) for i in range(systems)}
    languages = {f"l{g}" for g in range(groups)}
    panels = {f"l{g}": bars for g in range(groups)}
    svg = interval_plot(panels, list(bars), "m", zero=True)
    heights = re.findall(r'viewBox="0 0 800 (\d+)"', svg)
    height = float(heights[0])
    parts = texts(svg)
    for _, x, y, _ in parts:
        assert 0 < y < height
        assert 0 <= x <= WIDTH
    names = {text for text, *_ in parts}
    assert languages <= names
    tip = r"<title>system \d+, l\d: 0.3000 \[0.2000, 0.9000\]</title>"
    tips = re.findall(tip, svg)
    assert len({*tips}) == systems * groups


def test_a_significant_dot_is_filled_and_one_that_is_not_is_hollow() -> None:
    bars = {
        "a": Bar(0.1, 0.0, 0.2, True),
        "b": Bar(0.1, 0.0, 0.2, False),
    }
    names = ["base", "a", "b"]
    svg = interval_plot({"en": bars}, names, "m", zero=True)
    dot = r'<use [^>]*fill="(var\(--\w+\))" stroke="(var\(--\w+\))"'
    dots = re.findall(dot, svg)
    # Colours depend on the position among all systems.
    assert dots == [
        ("var(--c1)", "var(--c1)"),
        ("var(--paper)", "var(--c2)"),
    ]


def test_nine_systems_have_nine_marks_of_another_shape_each() -> None:
    names = [f"system {i}" for i in range(9)]
    svg = draw("line", names)
    shapes = re.findall(r'<path (?:id="[^"]+" )?d="([^"]+)"', svg)
    marks = set()
    href_first = r'<use [^>]*href="#([^"]+)"[^>]*fill="(var\(--c\d\))"'
    for href, fill in re.findall(href_first, svg):
        marks.add((href, fill))
    fill_first = r'<use [^>]*fill="(var\(--c\d\))"[^>]*href="#([^"]+)"'
    for fill, href in re.findall(fill_first, svg):
        marks.add((href, fill))
    assert len(shapes) >= 9
    assert len(marks) >= 9

    by_colour: dict[str, set[str]] = {}
    for href, fill in marks:
        by_colour.setdefault(fill, set()).add(href)
    # The ninth has the first one's colour, and another shape.
    assert len(by_colour["var(--c0)"]) > len(by_colour["var(--c1)"])
