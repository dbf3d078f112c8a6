"""Draw plots as inline SVG: text is text, and colours are classes of the page's style."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from html import escape
from typing import NamedTuple

WIDTH = 800.0
COLOURS = 8  # classes c0 to c7; systems beyond them use the colours again
_LINE = 22.0  # height of a row of text
_MOST_PANELS = 4  # beside each other
_NAME = 34  # characters of a name that are shown; all of it is in the tooltip
Point = tuple[float, float]
Box = tuple[float, float, float, float]  # left, top, right, bottom


class Bar(NamedTuple):
    """Hold a value with its interval; `filled` sets a dot apart from hollow ones."""

    value: float
    low: float
    high: float
    filled: bool = True


class Spot(NamedTuple):
    """Hold a point with an interval upwards; a hollow one lies further right than drawn."""

    x: float
    bar: Bar
    named: bool = True


def interval_plot(
    panels: Mapping[str, Mapping[str, Bar]], systems: Sequence[str], label: str, zero: bool = False
) -> str:
    """Draw a panel for each group, with a row for each system; all panels share their axis.

    A system's colour is by its place in `systems`. `zero` draws the line of no difference.
    """
    names = [name for name in systems if any(name in group for group in panels.values())]
    ends = [end for group in panels.values() for bar in group.values() for end in bar[:3]]
    ends += [0.0, min(0.0, *ends) + 0.01]  # never less, which would need longer numbers
    left = 12 + max(_text_width(_short(name)) for name in names)
    columns = min(len(panels), _MOST_PANELS)
    across = (WIDTH - left) / columns
    wide = across - 40
    for most in range(6, 1, -1):  # as many as do not touch
        ticks = inner_ticks(min(ends), max(ends), most)
        gap = (ticks[-1] - ticks[0]) / max(len(ticks) - 1, 1) / (max(ends) - min(ends))
        if gap * wide > 10 + max(_text_width(_plain(tick, ticks)) for tick in ticks):
            break
    low, high = min(ends), max(ends)
    down = _LINE * len(names) + 56
    parts = []
    for n, (group, found) in enumerate(panels.items()):
        column, top = n % _MOST_PANELS, n // _MOST_PANELS * down
        start = left + column * across + 18
        bottom = top + 24 + _LINE * len(names)
        at = {tick: start + (tick - low) / (high - low) * wide for tick in [*ticks, 0.0]}
        parts.append(_text(start + wide / 2, top + 14, group, "middle", "head"))
        for tick in ticks:
            parts.append(_path(f"M{at[tick]:.1f} {top + 22:.1f}V{bottom:.1f}", "grid"))
            parts.append(_text(at[tick], bottom + 15, _plain(tick, ticks), "middle", "tick"))
        if zero:
            parts.append(_path(f"M{at[0.0]:.1f} {top + 22:.1f}V{bottom:.1f}", "axis"))
        for i, name in enumerate(names):
            y = top + 24 + _LINE * (i + 0.5)
            if column == 0:
                parts.append(_name(left - 4, y + 4, name, "end"))
            if name in found:
                bar = found[name]
                x, x1, x2 = (start + (end - low) / (high - low) * wide for end in bar[:3])
                said = f"{name}, {group}: {bar.value:.4f} [{bar.low:.4f}, {bar.high:.4f}]"
                line = f"M{x1:.1f} {y:.1f}H{x2:.1f}"
                parts.append(_mark(systems.index(name), x, y, line, said, bar.filled))
    rows = math.ceil(len(panels) / _MOST_PANELS)
    return _svg(parts, rows * down, f"{label} with intervals: {', '.join(panels)}")


def line_plot(
    lines: Mapping[str, Sequence[Point]],
    x: str,
    y: str,
    log: bool = False,
    named: Collection[str] | None = None,
) -> str:
    """Draw one line a system, named at its end; with `log`, x is logarithmic.

    Where lines are `named`, the others stand behind them in grey. The ticks of x are its values.
    """
    values = sorted({point[0] for points in lines.values() for point in points})
    heights = [point[1] for points in lines.values() for point in points]
    shown = [name for name in lines if named is None or name in named]
    height = max(260, 15 * len(shown) + 60)
    frame = _Frame.of(shown, height, values, linear_ticks(min(heights), max(heights)), log)
    parts = frame.axes(_thinned(values, frame), x, y)
    for name in sorted(lines, key=lambda name: name in shown):
        spots = [frame.at(point) for point in lines[name]]
        path = "M" + "L".join(f"{px:.1f} {py:.1f}" for px, py in spots)
        dots = "".join(
            f'<circle cx="{px:.1f}" cy="{py:.1f}" r="3">'
            f"<title>{escape(f'{name}: {point[1]:.4f} at {point[0]:g}')}</title></circle>"
            for (px, py), point in zip(spots, lines[name], strict=True)
        )
        kind = f"c{shown.index(name) % COLOURS}" if name in shown else "other"
        parts.append(f'<g class="{kind}">{_path(path, "line")}{dots}</g>')
    ends = [frame.at(lines[name][-1]) for name in shown]
    places = spread([at[1] for at in ends], 15, 14, frame.bottom)
    for i, (name, end, place) in enumerate(zip(shown, ends, places, strict=True)):
        leader = f"M{end[0] + 5:.1f} {end[1]:.1f}L{frame.right + 12:.1f} {place:.1f}"
        parts.append(f'<g class="c{i % COLOURS}">{_path(leader, "leader")}</g>')
        parts.append(_name(frame.right + 16, place + 4, name, "start"))
    return _svg(parts, frame.bottom + 44, f"{y} by {x}")


def scatter_plot(spots: Mapping[str, Spot], x: str, y: str) -> str:
    """Draw one point a system with its interval, x on a logarithmic axis."""
    heights = [end for spot in spots.values() for end in (spot.bar.low, spot.bar.high)]
    across = [spot.x for spot in spots.values()]
    ticks = log_ticks(min(across), max(across))
    named = [name for name, spot in spots.items() if spot.named]
    frame = _Frame.of(
        named,
        max(280, 15 * len(named) + 60),
        [*across, *ticks],
        linear_ticks(min(heights), max(heights)),
        True,
    )
    parts = frame.axes(ticks, x, y)
    order = {name: i for i, name in enumerate(spots)}
    at = {name: frame.at((spot.x, spot.bar.value)) for name, spot in spots.items()}
    # A name stands beside its point; in a column on the right where it would hide something.
    taken = [
        (
            px - 6,
            min(frame.at((spots[n].x, spots[n].bar.high))[1], py - 6),
            px + 6,
            max(frame.at((spots[n].x, spots[n].bar.low))[1], py + 6),
        )
        for n, (px, py) in at.items()
    ]
    beside = {name: _beside(at[name], _text_width(_short(name)), frame, taken) for name in named}
    for name, place in beside.items():
        if place is not None:
            parts.append(_name(place[0], place[1] + 4, name, "start"))
    far = sorted((name for name in named if beside[name] is None), key=lambda name: at[name][1])
    places = spread([at[name][1] for name in far], 15, 14, frame.bottom)
    for name, place_y in zip(far, places, strict=True):
        leader = f"M{at[name][0] + 6:.1f} {at[name][1]:.1f}L{frame.right + 12:.1f} {place_y:.1f}"
        parts.append(f'<g class="c{order[name] % COLOURS}">{_path(leader, "leader")}</g>')
        parts.append(_name(frame.right + 16, place_y + 4, name, "start"))
    for name, spot in spots.items():
        px, py = frame.at((spot.x, spot.bar.value))
        low, high = (frame.at((spot.x, end))[1] for end in (spot.bar.low, spot.bar.high))
        said = f"{name}: {spot.bar.value:.4f}, {spot.x:g} {x}"
        line = f"M{px:.1f} {low:.1f}V{high:.1f}"
        parts.append(_mark(order[name], px, py, line, said, spot.bar.filled))
    return _svg(parts, frame.bottom + 44, f"{y} by {x}")


def linear_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Choose at most `most` round numbers from at most `low` to at least `high`."""
    spread_of = (high - low) or abs(high) or 1.0
    size = 10.0 ** math.floor(math.log10(spread_of / most))
    for step in (size, 2 * size, 5 * size, 10 * size, 20 * size):
        first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
        if max(last, first + 1) - first < most:
            break
    return [i * step + 0.0 for i in range(first, max(last, first + 1) + 1)]


def inner_ticks(low: float, high: float, most: int) -> list[float]:
    """Choose at most `most` round numbers, zero or a multiple of one step, within a range."""
    size = 10.0 ** math.floor(math.log10((high - low) or 1.0)) / 10
    for step in (factor * size for factor in (1, 2, 5, 10, 20, 50)):
        ticks = [
            i * step + 0.0
            for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
        ]
        if len(ticks) <= most:
            break
    return ticks or [0.0]


def log_ticks(low: float, high: float) -> list[float]:
    """Choose powers of ten around a range; with 2 and 5 between them where it is short."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    last = max(last, first + 1)
    if last - first > 2:
        return [10.0**power for power in range(first, last + 1, math.ceil((last - first) / 7))]
    ticks = [factor * 10.0**power for power in range(first, last) for factor in (1, 2, 5)]
    ticks.append(10.0**last)
    below = [tick for tick in ticks if tick <= low][-1]
    above = [tick for tick in ticks if tick >= high][0]
    return [tick for tick in ticks if below <= tick <= above]


def spread(places: Sequence[float], gap: float, top: float, bottom: float) -> list[float]:
    """Move places apart, in their order, until neighbours are at least `gap` from each other."""
    order = sorted(range(len(places)), key=lambda i: places[i])
    moved: list[float] = []
    for i in order:
        moved.append(max(places[i], top, moved[-1] + gap if moved else top))
    limit = max(bottom, top + gap * (len(places) - 1))
    for n in range(len(moved) - 1, -1, -1):
        moved[n] = min(moved[n], limit)
        limit = moved[n] - gap
    found = [0.0] * len(places)
    for i, place in zip(order, moved, strict=True):
        found[i] = place
    return found


def _beside(at: Point, width: float, frame: _Frame, taken: list[Box]) -> Point | None:
    """Find where a name fits to the right or left of its point, and take that space."""
    for x in (at[0] + 10, at[0] - 10 - width):
        box = (x, at[1] - 8, x + width, at[1] + 8)
        free = all(
            box[2] < left or right < box[0] or box[3] < top or bottom < box[1]
            for left, top, right, bottom in taken
        )
        if free and x > frame.left and box[2] < frame.right + 10:
            taken.append(box)
            return x, at[1]
    return None


class _Frame(NamedTuple):
    """Place values within the axes of a plot."""

    left: float
    right: float
    top: float
    bottom: float
    x: tuple[float, float]
    y: Sequence[float]
    log: bool

    @classmethod
    def of(
        cls,
        names: Mapping[str, object] | Sequence[str],
        height: float,
        across: Sequence[float],
        ticks: Sequence[float],
        log: bool,
    ) -> _Frame:
        room = max((_text_width(_short(name)) for name in names), default=0) + 24
        left = 26 + max(_text_width(_plain(tick, ticks)) for tick in ticks)
        reach = (min(across), max(across))
        return cls(left, WIDTH - room, 14, height - 44, reach, ticks, log)

    def at(self, point: Point) -> Point:
        low, high, value = *self.x, point[0]
        if self.log:
            low, high, value = math.log10(low), math.log10(high), math.log10(value)
        part = (value - low) / (high - low) if high > low else 0.5
        up = (point[1] - self.y[0]) / (self.y[-1] - self.y[0])
        width = self.right - self.left - 20
        return self.left + 10 + part * width, self.bottom - up * (self.bottom - self.top)

    def axes(self, ticks: Sequence[float], x: str, y: str) -> list[str]:
        parts = []
        for tick in self.y:
            height = self.at((self.x[0], tick))[1]
            parts.append(_path(f"M{self.left:.1f} {height:.1f}H{self.right:.1f}", "grid"))
            parts.append(_text(self.left - 6, height + 4, _plain(tick, self.y), "end", "tick"))
        parts.append(_path(f"M{self.left:.1f} {self.bottom:.1f}H{self.right:.1f}", "axis"))
        for tick in ticks:
            place = self.at((tick, self.y[0]))[0]
            parts.append(_path(f"M{place:.1f} {self.bottom:.1f}v4", "axis"))
            parts.append(_text(place, self.bottom + 18, _whole(tick), "middle", "tick"))
        middle = (self.left + self.right) / 2
        parts.append(_text(middle, self.bottom + 38, x, "middle", "tick"))
        across = (self.top + self.bottom) / 2
        turned = f' transform="rotate(-90 12 {across:.1f})"'
        parts.append(_text(12, across, y, "middle", "tick", turned))
        return parts


def _thinned(values: Sequence[float], frame: _Frame) -> list[float]:
    """Leave out ticks whose numbers would touch the number before."""
    kept: list[float] = []
    last = -math.inf
    for value in values:
        place, half = frame.at((value, frame.y[0]))[0], _text_width(_whole(value)) / 2
        if place - half > last + 6:
            kept.append(value)
            last = place + half
    return kept


def _plain(tick: float, ticks: Sequence[float]) -> str:
    """Write a number with the decimals that the ticks' step needs."""
    step = abs(ticks[1] - ticks[0]) if len(ticks) > 1 else 1.0
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    return f"{0.0 if abs(tick) < step / 1e6 else tick:.{decimals}f}"


def _whole(value: float) -> str:
    """Write a number of any size without an exponent."""
    if value >= 1:
        return f"{value:,.10g}" if value < 1e9 else f"{value:,.0f}"
    return f"{value:.{max(1, -math.floor(math.log10(value)))}f}" if value > 0 else f"{value:g}"


def _short(name: str) -> str:
    """Cut the middle out of a long name: beginnings and ends tell names apart."""
    half = _NAME // 2
    return name if len(name) <= _NAME else f"{name[:half]}…{name[-half:]}"


def _text_width(text: str) -> float:
    """Estimate the width of a text of the page's size in a plot."""
    return sum(14.0 if unicodedata.east_asian_width(c) in "WF" else 7.6 for c in text)


def _name(x: float, y: float, name: str, anchor: str) -> str:
    return _text(x, y, _short(name), anchor, "name", title=name)


def _text(
    x: float, y: float, text: str, anchor: str, kind: str, more: str = "", title: str = ""
) -> str:
    tip = f"<title>{escape(title)}</title>" if title and title != text else ""
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{kind}"'
    return f"<text {place}{more}>{tip}{escape(text)}</text>"


def _path(line: str, kind: str) -> str:
    return f'<path d="{line}" class="{kind}"/>'


def _mark(i: int, x: float, y: float, line: str, said: str, filled: bool) -> str:
    """Draw a dot with its interval and a tooltip."""
    kind = "" if filled else ' class="hollow"'
    dot = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4"{kind}/>'
    title = f"<title>{escape(said)}</title>"
    return f'<g class="c{i % COLOURS}">{title}{_path(line, "line")}{dot}</g>'


def _svg(parts: Sequence[str], height: float, label: str) -> str:
    size = f'viewBox="0 0 {WIDTH:.0f} {height:.0f}"'
    return f'<svg {size} role="img" aria-label="{escape(label)}">{"".join(parts)}</svg>'
