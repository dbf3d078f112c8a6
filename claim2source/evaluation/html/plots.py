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
_INK = "#000001"
_SOFT = "#000002"
_RULE = "#000003"
_PAPER = "#000004"
_SYSTEMS = [f"#0001{i:02x}" for i in range(COLOURS)]
_VARIABLES = {
    _INK: "ink",
    _SOFT: "soft",
    _RULE: "rule",
    _PAPER: "paper",
    **{colour: f"c{i}" for i, colour in enumerate(_SYSTEMS)},
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
        size = (WIDTH / 72, height / 72)
        self.figure: Figure = Figure(figsize=size, dpi=72)

    def axes(self, left: float, top: float, width: float, height: float) -> Axes:
        """Add axes at a position in units from the top left, without tick lines."""
        bottom = self.height - top - height
        bounds = (
            left / WIDTH,
            bottom / self.height,
            width / WIDTH,
            height / self.height,
        )
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
        style = {
            "marker": marker,
            "color": colour,
            "gid": gid,
            **options,
        }
        fill = colour if filled else _PAPER
        (line,) = axes.plot(across, up, markerfacecolor=fill, **style)
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
        if upright:
            self.mark(axes, number, tip, (x, x), ends, marker="")
        else:
            self.mark(axes, number, tip, ends, (y, y), marker="")
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
            gid = f"mark-{len(self.tips)}"
            text.set(text=_shortened(name), gid=gid)
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
            _, _, tag = element.tag.rpartition("}")
            element.tag = tag
            _plain_attributes(element)
        for defs in root.findall("defs"):
            for style in defs.findall("style"):
                defs.remove(style)
        self._add_tips(root)
        root.attrib = {
            "viewBox": f"0 0 {WIDTH:.0f} {self.height:.0f}",
            "role": "img",
            "aria-label": self.label,
        }
        return ElementTree.tostring(root, encoding="unicode")

    def _add_tips(self, root: ElementTree.Element) -> None:
        """Add every mark's tooltip, and remove the ids that nothing refers to."""
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
                number = int(name.removeprefix("mark-"))
                title = ElementTree.Element("title")
                title.text = printable_line(self.tips[number])
                element.insert(0, title)
                element.set("class", "mark")


def _plain_attributes(element: ElementTree.Element) -> None:
    """Replace a style, which the page's policy forbids, by attributes with the page's colours."""
    style = element.attrib.pop("style", "")
    for declaration in style.split(";"):
        name, _, value = (part.strip() for part in declaration.partition(":"))
        if name and name != "font-family":
            variable = _VARIABLES.get(value)
            element.set(name, f"var(--{variable})" if variable else value)
    links = [name for name in element.attrib if name.endswith("}href")]
    for name in links:
        target = element.attrib.pop(name)
        element.set("href", target)
    # Path data span several lines.
    if "d" in element.attrib:
        path = element.attrib["d"]
        element.set("d", " ".join(path.split()))


def _referenced_id(value: str) -> str:
    if "#" not in value:
        return ""
    link = value.removeprefix("url(").removesuffix(")")
    return link.removeprefix("#")


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

    names = []
    for name in systems:
        if any(name in group for group in panels.values()):
            names.append(name)
    ends: list[float] = []
    for own in panels.values():
        for bar in own.values():
            ends += bar[:3]
    low = min(0.0, *ends)
    high = max(0.01, *ends)

    widths = [_text_width(_shortened(name)) for name in names]
    left = 12 + max(widths)
    across = (WIDTH - left) / min(len(panels), _MOST_PANELS)
    tall = _LINE * len(names)
    down = tall + 60
    rows = math.ceil(len(panels) / _MOST_PANELS)
    drawing = _Drawing(rows * down, f"{label} with intervals: {', '.join(panels)}")
    for n, (group, bars) in enumerate(panels.items()):
        column = n % _MOST_PANELS
        row = n // _MOST_PANELS
        start = left + column * across + 14
        axes = drawing.axes(start, row * down + 26, across - 34, tall)
        axes.set_title(_shortened(group), pad=6)
        margin = (high - low) / 25
        axes.set(xlim=(low - margin, high + margin), ylim=(len(names) - 0.5, -0.5))
        # As many tick labels as fit.
        ticks = max(1, int((across - 34) / 36))
        axes.xaxis.set_major_locator(MaxNLocator(ticks, steps=[1, 2, 5, 10]))
        labels = [_shortened(name) if column == 0 else "" for name in names]
        axes.set_yticks(range(len(names)), labels)
        axes.tick_params(axis="y", labelcolor=_INK)
        axes.spines[["left", "bottom"]].set_visible(False)
        axes.grid(axis="x")
        if zero:
            axes.axvline(0, color=_SOFT, linewidth=1)
        for i, name in enumerate(names):
            if name in bars:
                bar = bars[name]
                tip = f"{name}, {group}: {bar.value:.4f} [{bar.low:.4f}, {bar.high:.4f}]"
                number = systems.index(name)
                drawing.dot(axes, number, tip, bar.value, i, bar, upright=False)
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
        values: set[float] = set()
        for points in lines.values():
            for point in points:
                values.add(point[0])
        ticks = sorted(values)
        labels = [_tick_text(tick) for tick in ticks]
        axes.set_xscale("log")
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xticks(ticks, labels)
    else:
        axes.xaxis.set_major_locator(MaxNLocator(10, integer=True))

    def draw(name: str, rank: int | None) -> Any:
        points = lines[name]
        scores = [f"{up:.4f} at {at:g}" for at, up in points]
        tip = f"{name}: {', '.join(scores)}"
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
    positions = [spot.x for spot in spots.values()]
    reach = max(positions) / min(positions)
    steps = (1, 2, 5) if reach < 1e3 else (1,)
    axes.xaxis.set_major_locator(LogLocator(subs=steps, numticks=8))
    axes.xaxis.set_minor_locator(NullLocator())
    formatter = FuncFormatter(lambda value, _: _tick_text(value))
    axes.xaxis.set_major_formatter(formatter)

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
        rank = highlighted.index(name) if name in highlighted else None
        marks[name] = draw(name, rank)
    named = {name: marks[name] for name in highlighted}
    drawing.legend(named, room)
    return drawing.svg()


def _begin_plot(
    names: Sequence[str],
    x: str,
    y: str,
) -> tuple[_Drawing, Axes, float]:
    """Begin a plot with space for names at its right; also return the width of this space."""
    widths = [_text_width(_shortened(name)) for name in names]
    room = max(widths, default=0) + 44
    height = max(280.0, _LINE * len(names) + 60)
    drawing = _Drawing(height, f"{y} by {x}")
    axes = drawing.axes(62, 14, WIDTH - room - 82, drawing.height - 60)
    axes.set(xlabel=x, ylabel=y)
    axes.grid(axis="y")
    axes.spines["left"].set_visible(False)
    return drawing, axes, room


def _tick_text(value: float) -> str:
    if value >= 1e9:
        return f"{value:,.0f}"
    if value >= 1:
        return f"{value:,.10g}"
    if value > 0:
        digits = max(1, -math.floor(math.log10(value)))
        return f"{value:.{digits}f}"
    return f"{value:g}"


def _shortened(name: str) -> str:
    """Cut the middle out of a long name: names differ at their beginnings and ends."""
    name = printable_line(name)
    if _letters(name) <= _NAME:
        return name
    half = _NAME // 2
    ends = ["", ""]
    for i, letters in enumerate((name, name[::-1])):
        for letter in letters:
            longer = ends[i] + letter
            if _letters(longer) > half:
                break
            ends[i] = longer
    front, back = ends
    return f"{front}…{back[::-1]}"


def _letters(text: str) -> int:
    width = 0
    for letter in text:
        is_wide = unicodedata.east_asian_width(letter) in "WF"
        width += 2 if is_wide else 1
    return width


def _text_width(text: str) -> float:
    return 8.4 * _letters(text)
