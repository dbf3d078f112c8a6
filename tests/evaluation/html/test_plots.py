"""Plots: plain numbers on the axes, every name, nothing over anything else."""

from __future__ import annotations

import re
from html import unescape
from xml.etree import ElementTree

import pytest

from claim2source.evaluation.html.plots import (
    WIDTH,
    Bar,
    Spot,
    inner_ticks,
    interval_plot,
    line_plot,
    linear_ticks,
    log_ticks,
    scatter_plot,
    spread,
)

NAMES = ["_hidden", 'a$b<i>&"', "x" * 80 + "end", "検索" * 9]


def texts(svg: str, kind: str) -> list[tuple[str, float, float]]:
    """What an SVG says in texts of a class, with their places."""
    root = ElementTree.fromstring(svg)
    return [
        ("".join(node.itertext()), float(node.get("x", "0")), float(node.get("y", "0")))
        for node in root.iter("text")
        if node.get("class") == kind
    ]


def drawn(kind: str) -> str:
    bars = {name: Bar(0.1 * i, 0.1 * i - 0.05, 0.1 * i + 0.05) for i, name in enumerate(NAMES)}
    if kind == "interval":
        return interval_plot({"en": bars, "de": bars}, NAMES, "mrr@5")
    if kind == "line":
        return line_plot(
            {name: [(1, 0.1 * i), (100, 0.5)] for i, name in enumerate(NAMES)}, "x", "y", True
        )
    return scatter_plot(
        {n: Spot(10.0**i / 100, b) for i, (n, b) in enumerate(bars.items())}, "s", "y"
    )


@pytest.mark.parametrize("kind", ["interval", "line", "scatter"])
def test_every_name_is_shown_and_apart(kind: str) -> None:
    svg = drawn(kind)
    shown = texts(svg, "name")
    assert {"_hidden", 'a$b<i>&"', "検索" * 9} <= {text for text, *_ in shown}
    assert any("…" in text and text.endswith("end") for text, *_ in shown)
    assert "x" * 80 + "end" in unescape(svg)  # whole in the tooltip
    heights = sorted(y for *_, y in shown)
    assert kind == "scatter" or all(
        below - above >= 14 for above, below in zip(heights, heights[1:], strict=False)
    )
    assert all(0 <= x <= WIDTH for _, x, _ in shown)
    assert "<i>" not in svg


def test_names_of_points_hide_nothing() -> None:
    near = {f"system {i}": Spot(1 + 0.02 * i, Bar(0.5 + 0.001 * i, 0.4, 0.6)) for i in range(9)}
    alone = {
        "far away": Spot(900.0, Bar(0.3, 0.2, 0.35)),
        "unnamed": Spot(5.0, Bar(0.1, 0, 0.2), False),
    }
    svg = scatter_plot(near | alone, "s", "y")
    shown = texts(svg, "name")
    assert {text for text, *_ in shown} == {*near, "far away"}
    points = [
        (float(x), float(y)) for x, y in re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)"', svg)
    ]
    boxes = [(x, y - 12, x + 6 * len(text), y + 3) for text, x, y in shown]
    for n, (left, top, right, bottom) in enumerate(boxes):
        assert right < WIDTH
        assert not [p for p in points if left < p[0] < right and top < p[1] < bottom]
        for other in boxes[n + 1 :]:
            assert right < other[0] or other[2] < left or bottom <= other[1] or other[3] <= top


@pytest.mark.parametrize("kind", ["interval", "line", "scatter"])
def test_numbers_are_plain_and_do_not_touch(kind: str) -> None:
    ticks = texts(drawn(kind), "tick")
    rows: dict[float, list[tuple[float, float]]] = {}
    for text, x, y in ticks:
        if re.fullmatch(r"-?[\d.,]+", text):
            half = 3.8 * len(text)
            rows.setdefault(y, []).append((x - half, x + half))
        else:
            assert text in ("x", "y", "s")  # no exponent, no mathematics
    for row in rows.values():
        row.sort()
        assert all(end < start for (_, end), (start, _) in zip(row, row[1:], strict=False))


@pytest.mark.parametrize("systems", [1, 12])
@pytest.mark.parametrize("groups", [1, 4, 9])
def test_panels_stay_within_the_plot(systems: int, groups: int) -> None:
    bars = {f"system {i}": Bar(0.3, 0.2, 0.9) for i in range(systems)}
    svg = interval_plot({f"l{g}": bars for g in range(groups)}, list(bars), "m", zero=True)
    height = float(re.findall(r'viewBox="0 0 800 (\d+)"', svg)[0])
    assert all(y < height for kind in ("name", "tick", "head") for *_, y in texts(svg, kind))
    assert len(texts(svg, "head")) == groups and svg.count("<circle") == systems * groups
    across = [float(x) for x in re.findall(r"[MH]([\d.]+)", svg)]
    assert max(across) <= WIDTH


@pytest.mark.parametrize("high", [0.0, 0.0003, 0.05, 0.11, 0.51, 0.66, 1.0])
@pytest.mark.parametrize("low", [0.0, -0.0001, -0.049, -0.32])
def test_numbers_of_panels_do_not_touch(low: float, high: float) -> None:
    bars = {"long name of a system": Bar(high / 2, low, high)}
    svg = interval_plot(dict.fromkeys("abcd", bars), list(bars), "m", zero=True)
    ticks = sorted(texts(svg, "tick"), key=lambda tick: tick[1])
    assert "0" in {re.sub(r"\.0+$", "", text) for text, *_ in ticks}
    for (one, left, _), (other, right, _) in zip(ticks, ticks[1:], strict=False):
        assert right - left > 3.5 * (len(one) + len(other)), ticks


def test_a_significant_dot_is_filled_and_one_that_is_not_is_hollow() -> None:
    bars = {"a": Bar(0.1, 0.0, 0.2, True), "b": Bar(0.1, 0.0, 0.2, False)}
    svg = interval_plot({"en": bars}, ["base", "a", "b"], "m", zero=True)
    first, second = re.findall(r'<g class="(c\d)">.*?(hollow|/></g>)', svg)
    assert first == ("c1", "/></g>") and second == ("c2", "hollow")  # colours by place


def test_ticks() -> None:
    assert linear_ticks(0.0, 0.33) == pytest.approx([0, 0.1, 0.2, 0.3, 0.4])
    assert linear_ticks(0.5, 0.5)[0] <= 0.5 <= linear_ticks(0.5, 0.5)[-1]
    assert inner_ticks(-0.04, 0.61, 3) == pytest.approx([0, 0.5])
    assert inner_ticks(0.0, 0.0, 3) == [0.0]
    assert log_ticks(0.08, 0.4) == pytest.approx([0.05, 0.1, 0.2, 0.5])
    assert log_ticks(0.002, 150) == pytest.approx([0.001, 0.01, 0.1, 1, 10, 100, 1000])
    assert log_ticks(1, 1)[0] <= 1 <= log_ticks(1, 1)[-1]
    assert len(log_ticks(1e-12, 1e12)) <= 8


def test_labels_are_spread_in_their_order() -> None:
    assert spread([50.0, 10.0, 11.0], 15, 0, 100) == [50.0, 10.0, 25.0]
    assert spread([99.0, 98.0, 97.0], 15, 0, 100) == [100.0, 85.0, 70.0]
    # Too many for the space: as few beyond it as can be.
    assert spread([5.0] * 4, 15, 0, 20) == [0.0, 15.0, 30.0, 45.0]
