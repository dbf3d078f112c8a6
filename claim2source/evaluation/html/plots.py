"""Draw plots with matplotlib as inline SVG: text stays text, and the page sets the colours."""

from __future__ import annotations

import io
import math
import unicodedata
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec
from xml.etree import ElementTree

from claim2source.core.terminal import printable_line

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

P = ParamSpec("P")
WIDTH = 800.0
COLOURS = 8  # variables c0 to c7 of the page's style
_LINE = 22.0  # height of a row of text
_MOST_PANELS = 4  # in one row
_NAME = 34  # width of a displayed name, in letters; the tooltip has all of it
# One more than colours, so that each of 72 systems has its own pair of both.
_MARKERS = "os^DvPX<>"
# These colours of matplotlib are replaced by those of the page, light or dark.
_INK, _SOFT, _RULE, _PAPER = "#000001", "#000002", "#000003", "#000004"
_SYSTEMS = [f"#0001{i:02x}" for i in range(COLOURS)]
_VARIABLES = {_INK: "ink", _SOFT: "soft", _RULE: "rule", _PAPER: "paper"} | {
    colour: f"c{i}" for i, colour in enumerate(_SYSTEMS)
}
_STYLE: Any = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.size": 13,
    "text.color": _INK,
    "axes.labelcolor": _SOFT,
    "axes.edgecolor": _SOFT,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 13,
    "axes.titleweight": "bold",
    "axes.formatter.useoffset": False,
    "axes.formatter.limits": (-9, 9),
    "figure.facecolor": "none",
    "grid.color": _RULE,
    "xtick.color": _SOFT,
    "ytick.color": _SOFT,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "lines.markersize": 7,
    "lines.markeredgewidth": 1.6,
}


class Bar(NamedTuple):
    """Value with its interval; `filled`: whether its dot is filled or hollow."""

    value: float
    low: float
    high: float
    filled: bool = True


class Spot(NamedTuple):
    """Scatter point with its interval; a hollow point's true x is larger than drawn."""

    x: float
    bar: Bar
    has_label: bool = True


class _Drawing:
    def __init__(self, height: float, label: str) -> None:
        from matplotlib.figure import Figure

        self.label = printable_line(label)
        self.tips = list[str]()
        self.height = height
        self.figure: Figure = Figure(figsize=(WIDTH / 72, height / 72), dpi=72)

    def axes(self, left: float, top: float, width: float, height: float) -> Axes:
        """Add axes at a position in units from the top left, without tick lines."""
        bottom = self.height - top - height
        bounds = (left / WIDTH, bottom / self.height, width / WIDTH, height / self.height)
        axes = self.figure.add_axes(bounds)
        axes.set_axisbelow(True)
        axes.tick_params(length=0)
        return axes

    def mark(
        self,
        axes: Axes,
        number: int | None,
        tip: str,
        across: Sequence[float],
        up: Sequence[float],
        filled: bool = True,
        **options: Any,
    ) -> Any:
        """Draw a system's line or dots with a tooltip; grey if the system has no colour."""
        gid = f"mark-{len(self.tips)}"
        colour = _RULE if number is None else _SYSTEMS[number % COLOURS]
        marker = _MARKERS[(number or 0) % len(_MARKERS)]
        self.tips.append(tip)
        style = {"marker": marker, "color": colour, "gid": gid, **options}
        (line,) = axes.plot(across, up, markerfacecolor=colour if filled else _PAPER, **style)
        return line

    def dot(
        self,
        axes: Axes,
        number: int | None,
        tip: str,
        x: float,
        y: float,
        bar: Bar,
        upright: bool,
    ) -> Any:
        ends = (bar.low, bar.high)
        point = (y, y) if not upright else (x, x)
        self.mark(axes, number, tip, *((point, ends) if upright else (ends, point)), marker="")
        return self.mark(axes, number, tip, [x], [y], bar.filled, linestyle="")

    def legend(self, marks: Mapping[str, Any], room: float) -> None:
        legend = self.figure.legend(
            list(marks.values()),
            ["-"] * len(marks),
            loc="center left",
            bbox_to_anchor=((WIDTH - room) / WIDTH, 0.5),
            handlelength=1.5,
        )
        # Set afterwards: matplotlib omits names that begin with "_" from a legend.
        for text, name in zip(legend.get_texts(), marks, strict=True):
            text.set(text=_shortened(name), gid=f"mark-{len(self.tips)}")
            self.tips.append(printable_line(name))

    def svg(self) -> str:
        """Return the figure as SVG for a page, without links and styles, with all text escaped."""
        from matplotlib import rc_context

        buffer = io.BytesIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        # Ids are unique on the page and the same in every run.
        with rc_context({"svg.hashsalt": self.label}), warnings.catch_warnings():
            # The page's font has letters that matplotlib's font lacks.
            warnings.simplefilter("ignore")
            self.figure.savefig(buffer, format="svg", metadata=nothing)
        root = ElementTree.fromstring(buffer.getvalue())
        for element in root.iter():
            element.tag = element.tag.rpartition("}")[2]
            _plain_attributes(element)
        for defs in root.findall("defs"):
            for style in defs.findall("style"):
                defs.remove(style)
        parts = list(root.iter())
        ids = set()
        for part in parts:
            for value in map(_referenced_id, part.attrib.values()):
                ids.add(value)
        for element in parts:
            name = element.get("id", "")
            if name not in ids:
                element.attrib.pop("id", None)
            if name.startswith("mark-"):
                title = ElementTree.Element("title")
                title.text = printable_line(self.tips[int(name.removeprefix("mark-"))])
                element.insert(0, title)
                element.set("class", "mark")
        root.attrib = {
            "viewBox": f"0 0 {WIDTH:.0f} {self.height:.0f}",
            "role": "img",
            "aria-label": self.label,
        }
        return ElementTree.tostring(root, encoding="unicode")


def _plain_attributes(element: ElementTree.Element) -> None:
    """Replace a style, which the page's policy forbids, by attributes with the page's colours."""
    for declaration in element.attrib.pop("style", "").split(";"):
        name, _, value = (part.strip() for part in declaration.partition(":"))
        if name and name != "font-family":
            variable = _VARIABLES.get(value)
            element.set(name, f"var(--{variable})" if variable else value)
    for name in [name for name in element.attrib if name.endswith("}href")]:
        element.set("href", element.attrib.pop(name))
    # Path data span several lines.
    if "d" in element.attrib:
        element.set("d", " ".join(element.attrib["d"].split()))


def _referenced_id(value: str) -> str:
    return value.removeprefix("url(").removesuffix(")").removeprefix("#") if "#" in value else ""


def _styled(draw: Callable[P, str]) -> Callable[P, str]:

    @wraps(draw)
    def within(*arguments: P.args, **options: P.kwargs) -> str:
        from matplotlib import rc_context

        with rc_context(_STYLE):
            return draw(*arguments, **options)

    return within


@_styled
def interval_plot(
    panels: Mapping[str, Mapping[str, Bar]],
    systems: Sequence[str],
    label: str,
    zero: bool = False,
) -> str:
    """Draw a panel for each group, with a row for each system; all panels share their axis.

    A system's position in `systems` sets its colour. `zero` draws the line of no difference.
    """
    from matplotlib.ticker import MaxNLocator

    names = [name for name in systems if any(name in group for group in panels.values())]
    ends = [end for group in panels.values() for bar in group.values() for end in bar[:3]]
    low = min(0.0, *ends)
    high = max(0.01, *ends)
    left = 12 + max(_text_width(_shortened(name)) for name in names)
    across = (WIDTH - left) / min(len(panels), _MOST_PANELS)
    tall = _LINE * len(names)
    down = tall + 60
    rows = math.ceil(len(panels) / _MOST_PANELS)
    drawing = _Drawing(rows * down, f"{label} with intervals: {', '.join(panels)}")
    for n, (group, bars) in enumerate(panels.items()):
        column = n % _MOST_PANELS
        row = n // _MOST_PANELS
        axes = drawing.axes(left + column * across + 14, row * down + 26, across - 34, tall)
        axes.set_title(_shortened(group), pad=6)
        margin = (high - low) / 25
        axes.set(xlim=(low - margin, high + margin), ylim=(len(names) - 0.5, -0.5))
        # As many tick labels as fit.
        ticks = max(1, int((across - 34) / 36))
        axes.xaxis.set_major_locator(MaxNLocator(ticks, steps=[1, 2, 5, 10]))
        axes.set_yticks(range(len(names)), [_shortened(n) if column == 0 else "" for n in names])
        axes.tick_params(axis="y", labelcolor=_INK)
        axes.spines[["left", "bottom"]].set_visible(False)
        axes.grid(axis="x")
        if zero:
            axes.axvline(0, color=_SOFT, linewidth=1)
        for i, name in enumerate(names):
            if name in bars:
                bar = bars[name]
                tip = f"{name}, {group}: {bar.value:.4f} [{bar.low:.4f}, {bar.high:.4f}]"
                drawing.dot(axes, systems.index(name), tip, bar.value, i, bar, upright=False)
    return drawing.svg()


@_styled
def line_plot(
    lines: Mapping[str, Sequence[tuple[float, float]]],
    x: str,
    y: str,
    log: bool = False,
    names: Collection[str] | None = None,
) -> str:
    """Draw one line a system; with `log`, x is logarithmic, and its ticks are its values.

    With `names`, all other lines are drawn in grey behind these.
    """
    from matplotlib.ticker import MaxNLocator, NullLocator

    highlighted = [name for name in lines if names is None or name in names]
    drawing, axes, room = _begin_plot(highlighted, x, y)
    if log:
        values = sorted({point[0] for points in lines.values() for point in points})
        axes.set_xscale("log")
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xticks(values, [_tick_text(value) for value in values])
    else:
        axes.xaxis.set_major_locator(MaxNLocator(10, integer=True))

    def draw(name: str, rank: int | None) -> Any:
        points = lines[name]
        tip = f"{name}: {', '.join(f'{up:.4f} at {at:g}' for at, up in points)}"
        across, up = zip(*points, strict=True)
        return drawing.mark(axes, rank, tip, across, up)

    return _draw_systems(drawing, lines, highlighted, draw, room)


@_styled
def scatter_plot(spots: Mapping[str, Spot], x: str, y: str) -> str:
    """Draw one point a system with its interval, x on a logarithmic axis."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    highlighted = [name for name, spot in spots.items() if spot.has_label]
    drawing, axes, room = _begin_plot(highlighted, x, y)
    axes.set_xscale("log")
    reach = max(spot.x for spot in spots.values()) / min(spot.x for spot in spots.values())
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if reach < 1e3 else (1,), numticks=8))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _tick_text(value)))

    def draw(name: str, rank: int | None) -> Any:
        at, bar, _ = spots[name]
        tip = f"{name}: {bar.value:.4f}, {at:g} {x}"
        return drawing.dot(axes, rank, tip, at, bar.value, bar, upright=True)

    return _draw_systems(drawing, spots, highlighted, draw, room)


def _draw_systems(
    drawing: _Drawing,
    names: Iterable[str],
    highlighted: Sequence[str],
    draw: Callable[[str, int | None], Any],
    room: float,
) -> str:
    """Draw every system; the `highlighted` ones have names, the others are grey behind them."""
    marks = {}
    for name in sorted(names, key=lambda name: name in highlighted):
        marks[name] = draw(name, highlighted.index(name) if name in highlighted else None)
    drawing.legend({name: marks[name] for name in highlighted}, room)
    return drawing.svg()


def _begin_plot(names: Sequence[str], x: str, y: str) -> tuple[_Drawing, Axes, float]:
    """Begin a plot with space for names at its right; also return the width of this space."""
    room = max((_text_width(_shortened(name)) for name in names), default=0) + 44
    drawing = _Drawing(max(280.0, _LINE * len(names) + 60), f"{y} by {x}")
    axes = drawing.axes(62, 14, WIDTH - room - 82, drawing.height - 60)
    axes.set(xlabel=x, ylabel=y)
    axes.grid(axis="y")
    axes.spines["left"].set_visible(False)
    return drawing, axes, room


def _tick_text(value: float) -> str:
    if value >= 1:
        return f"{value:,.10g}" if value < 1e9 else f"{value:,.0f}"
    return f"{value:.{max(1, -math.floor(math.log10(value)))}f}" if value > 0 else f"{value:g}"


def _shortened(name: str) -> str:
    """Cut the middle out of a long name: names differ at their beginnings and ends."""
    name = printable_line(name)
    if _letters(name) <= _NAME:
        return name
    half = _NAME // 2
    ends = ["", ""]
    for i, letters in enumerate((name, name[::-1])):
        for letter in letters:
            if _letters(ends[i] + letter) > half:
                break
            ends[i] += letter
    return f"{ends[0]}…{ends[1][::-1]}"


def _letters(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)


def _text_width(text: str) -> float:
    return 8.4 * _letters(text)
