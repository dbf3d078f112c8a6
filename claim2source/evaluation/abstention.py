"""Measure abstention: does a confidence tell claims that are answered right from the others?

A claim's answer is its first source. Abstaining from the claims of low confidence leaves a share
of them answered, the coverage; the risk is the share of these whose answer is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from claim2source.core.config import require
from claim2source.core.tables import Cell, TextTable
from claim2source.metrics.significance import draw_groups
from claim2source.stages.abstain import Tenth

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_RISK = 0.1
LEVEL = 0.95


@dataclass(frozen=True, eq=False)
class Outcomes:
    """Hold the outcomes of claims, [claims] each: a claim may occur several times.

    `present` tells whether its paper is in the collection, `right` whether the first source is
    it; `groups` number the groups of gold papers that are drawn together.
    """

    present: np.ndarray
    right: np.ndarray
    groups: np.ndarray

    def __post_init__(self) -> None:
        shapes = {np.shape(values) for values in (self.present, self.right, self.groups)}
        if len(shapes) != 1 or len(next(iter(shapes))) != 1 or not len(self.present):
            raise ValueError("present, right and groups must be arrays [claims], not empty")
        if (self.right & ~self.present).any():
            raise ValueError("no answer is right where the paper is absent")


@dataclass(frozen=True, eq=False)
class Curve:
    """Hold a risk-coverage curve: a point for every distinct confidence, the highest first.

    At a point the claims of at least `confidence` are answered: `answered` of them, `wrong` of
    these wrongly, [points] each.
    """

    confidence: np.ndarray
    answered: np.ndarray
    wrong: np.ndarray

    @property
    def coverage(self) -> np.ndarray:
        """Share of the claims that are answered, [points]."""
        return self.answered / self.answered[-1]

    @property
    def risk(self) -> np.ndarray:
        """Share of the answered claims that are answered wrongly, [points]."""
        return self.wrong / self.answered

    def as_json(self) -> dict[str, list[float]]:
        """As JSON: a list for each of confidence, coverage and risk."""
        rows = {"confidence": self.confidence, "coverage": self.coverage, "risk": self.risk}
        return {name: row.tolist() for name, row in rows.items()}


@dataclass(frozen=True)
class Point:
    """Describe one point of a curve: its answers, and their risk with its upper bound.

    `upper` bounds the risk from above at 95 % (Clopper and Pearson, one-sided), as if claims
    were independent; `confidence` is None where nothing is answered.
    """

    confidence: float | None
    coverage: float
    risk: float | None
    upper: float
    answered: int
    wrong: int


@dataclass(frozen=True)
class Estimate:
    """Hold a value with its 95 % interval over gold papers."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Abstention:
    """Hold one confidence's measures: AUROC, AUGRC, the coverage at a risk, and its point.

    `better` is the difference in AUROC to a baseline, where there is one.
    """

    auroc: Estimate
    augrc: Estimate
    coverage: Estimate
    point: Point
    better: Estimate | None = None


def auroc(confidence: np.ndarray, present: np.ndarray) -> float:
    """Return the chance that a claim with its paper has more confidence than one without.

    Equal confidences count half. Raises ValueError where there is only one kind of claims.
    """
    if present.all() or not present.any():
        raise ValueError("AUROC needs claims with and without their papers")
    return float(_Order(confidence).auroc(np.ones((1, len(present))), present)[0])


def augrc(confidence: np.ndarray, wrong: np.ndarray) -> float:
    """Return the area under the generalised risk-coverage curve (Traub et al., 2024).

    The generalised risk is the share of all claims that are answered, and wrongly: the area is
    its mean over coverages, 0 at best and 0.5 at worst.
    """
    return float(_Order(confidence).augrc(np.ones((1, len(wrong))), wrong)[0])


def risk_coverage(confidence: np.ndarray, wrong: np.ndarray) -> Curve:
    """Draw the risk-coverage curve of a confidence, higher meaning surer; [claims] each."""
    order, weights = _Order(confidence), np.ones((1, len(wrong)))
    answered, failed = order.cumulate(weights)[0], order.cumulate(weights * wrong)[0]
    values = np.asarray(confidence, np.float64)[order.positions][order.ends]
    return Curve(values, answered.astype(np.int64), failed.astype(np.int64))


def coverage_at_risk(curve: Curve, limit: float = MOST_RISK) -> Point:
    """Return the point of a curve with the most coverage among those of at most this risk."""
    good = np.flatnonzero(curve.risk <= limit)
    return point_at(curve, float(curve.confidence[good[-1]]) if len(good) else None)


def point_at(curve: Curve, confidence: float | None) -> Point:
    """Describe the answers from this confidence on; None: no answer."""
    if confidence is None or not (reached := np.flatnonzero(curve.confidence >= confidence)).size:
        return Point(confidence, 0.0, None, 1.0, 0, 0)
    at = reached[-1]
    answered, wrong = int(curve.answered[at]), int(curve.wrong[at])
    share = float(curve.coverage[at])
    return Point(confidence, share, wrong / answered, upper_bound(wrong, answered), answered, wrong)


def safe_threshold(curve: Curve, limit: float = MOST_RISK) -> float | None:
    """Choose the confidence from which to answer so that the risk is at most `limit`, at 95 %.

    From the surest claims on, confidences are tested in turn until the upper bound of the risk
    exceeds `limit`: in a fixed order, no test needs a correction (Angelopoulos et al., 2021). The
    first test has a tenth of the claims, and as many as pass without a wrong one. None where it
    fails already.
    """
    fewest = max(np.log(1 - LEVEL) / np.log(1 - limit), 0.1 * curve.answered[-1])
    threshold = None
    for at in np.flatnonzero(curve.answered >= fewest):
        if upper_bound(int(curve.wrong[at]), int(curve.answered[at])) > limit:
            break
        threshold = float(curve.confidence[at])
    return threshold


def upper_bound(wrong: int, answered: int) -> float:
    """Bound a risk from above (Clopper and Pearson, one-sided); 1 where nothing is answered."""
    from scipy import stats

    if not 0 <= wrong <= answered:
        raise ValueError(f"{wrong} of {answered} answers cannot be wrong")
    return 1.0 if wrong == answered else float(stats.beta.ppf(LEVEL, wrong + 1, answered - wrong))


def measure(
    confidences: Mapping[str, np.ndarray],
    outcomes: Outcomes,
    baseline: str | None = None,
    limit: float = MOST_RISK,
    repeats: int = 10_000,
    seed: int = 0,
) -> dict[str, Abstention]:
    """Measure confidences [claims], with intervals from the same bootstrap samples of papers.

    `baseline` names the confidence that the others' AUROC is compared with. A sample whose claims
    are all of one kind has no AUROC and is left out of its interval.
    """
    require(0 < limit < 1, "risk", limit, "more than 0 and less than 1")
    present, wrong = outcomes.present.astype(bool), ~outcomes.right.astype(bool)
    distinct, group = np.unique(outcomes.groups, return_inverse=True)
    orders = {name: _Order(values) for name, values in confidences.items()}
    draws_of: dict[str, list[np.ndarray]] = {name: [] for name in orders}
    for times in draw_groups(len(distinct), repeats, seed, len(present)):
        weights = times[:, group]
        for name, order in orders.items():
            draws_of[name].append(order.all(weights, present, wrong, limit))
    samples = {name: np.concatenate(parts, axis=1) for name, parts in draws_of.items()}
    point_values = {
        name: order.all(np.ones((1, len(wrong))), present, wrong, limit)[:, 0]
        for name, order in orders.items()
    }
    measured = {}
    for name, values in confidences.items():
        three = [_bounded(*pair) for pair in zip(point_values[name], samples[name], strict=True)]
        better = None
        if baseline is not None and name != baseline:
            gain = point_values[name][0] - point_values[baseline][0]
            better = _bounded(gain, samples[name][0] - samples[baseline][0])
        point = coverage_at_risk(risk_coverage(values, wrong), limit)
        measured[name] = Abstention(three[0], three[1], three[2], point, better)
    return measured


def abstention_table(rows: Mapping[str, Abstention], limit: float = MOST_RISK) -> TextTable:
    """Tabulate the measures of confidences."""
    at = f"coverage at risk {limit:.0%}".replace("%", " %")
    columns = ["confidence", "AUROC", "95 %", "to baseline", "AUGRC", "95 %", at, "95 %"]
    columns += ["answered", "wrong", "risk at most"]
    cells: list[list[Cell]] = [
        [
            *(name, row.auroc.value, _interval(row.auroc)),
            "-" if row.better is None else f"{row.better.value:+.4f} {_interval(row.better)}",
            *(row.augrc.value, _interval(row.augrc), row.coverage.value, _interval(row.coverage)),
            *(row.point.answered, row.point.wrong, row.point.upper),
        ]
        for name, row in rows.items()
    ]
    return TextTable(columns, cells, numeric=[False, *[True] * (len(columns) - 1)])


def reliability_table(tenths: Sequence[Tenth]) -> TextTable:
    """Tabulate how often the paper was there, by tenths of the probability that it is."""
    from scipy import stats

    rows: list[list[Cell]] = []
    for number, row in enumerate(tenths):
        if row.answers:
            missing = row.answers - row.here
            low = stats.beta.ppf((1 - LEVEL) / 2, row.here, missing + 1) if row.here else 0.0
            high = stats.beta.ppf((1 + LEVEL) / 2, row.here + 1, missing) if missing else 1.0
            share, first = row.here / row.answers, row.first / row.answers
            tenth, bounds = f"{number / 10} to {(number + 1) / 10}", f"{low:.2f} to {high:.2f}"
            gap = share - row.share
            rows.append([tenth, row.answers, row.share, share, gap, bounds, first])
    columns = ["probability", "posts", "mean", "paper there", "gap", "95 %", "paper first"]
    return TextTable(columns, rows, numeric=[False, *[True] * 6])


def curve_table(curves: Mapping[str, Curve], shares: Sequence[float]) -> TextTable:
    """Tabulate the risks of curves where at least these shares of the claims are answered."""
    rows: list[list[Cell]] = []
    for share in shares:
        risks = [c.risk[int(np.argmax(c.coverage >= share - 1e-9))] for c in curves.values()]
        rows.append([f"{share:.0%}".replace("%", " %"), *map(float, risks)])
    return TextTable(["coverage", *curves], rows)


def draw_curves(curves: Mapping[str, Curve], title: str = "") -> Figure:
    """Plot risk by coverage, a line for each curve."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    lines = [axes.plot(curve.coverage, curve.risk, linewidth=1.4)[0] for curve in curves.values()]
    axes.set(xlabel="coverage", ylabel="risk", xlim=(0, 1), ylim=(0, 1))
    axes.set_title(title, parse_math=False, fontsize=10)
    axes.grid(alpha=0.3)
    legend = axes.legend(lines, ["-"] * len(lines), fontsize=8)
    for text, name in zip(legend.get_texts(), curves, strict=True):
        text.set(text=name, parse_math=False)
    return figure


def _interval(bounded: Estimate) -> str:
    return f"[{bounded.low:.4f}, {bounded.high:.4f}]"


def _bounded(value: float, sample: np.ndarray) -> Estimate:
    good = sample[np.isfinite(sample)]
    if not len(good):
        return Estimate(float(value), float("nan"), float("nan"))
    low, high = np.quantile(good, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Estimate(float(value), float(low), float(high))


class _Order:
    """Order claims by confidence, once for all samples; equal confidences are one step."""

    def __init__(self, confidence: np.ndarray) -> None:
        values = np.asarray(confidence, np.float64)
        if values.ndim != 1 or not len(values) or not np.isfinite(values).all():
            raise ValueError("confidences must be finite numbers [claims], not empty")
        self.positions = np.argsort(-values, kind="stable")
        ordered = values[self.positions]
        self.ends = np.append(np.flatnonzero(ordered[1:] != ordered[:-1]), len(ordered) - 1)

    def cumulate(self, weights: np.ndarray) -> np.ndarray:
        """Sum weights [samples, claims] from the surest claim to each step, [samples, steps]."""
        sums: np.ndarray = weights[:, self.positions].cumsum(axis=1)[:, self.ends]
        return sums

    def auroc(self, weights: np.ndarray, present: np.ndarray) -> np.ndarray:
        """Return AUROC by sample; NaN where the claims are all of one kind."""
        good, bad = self.cumulate(weights * present), self.cumulate(weights * ~present)
        pairs = good[:, -1] * bad[:, -1]
        with np.errstate(invalid="ignore"):
            areas: np.ndarray = _area(bad, good) / np.where(pairs > 0, pairs, np.nan)
        return areas

    def augrc(self, weights: np.ndarray, wrong: np.ndarray) -> np.ndarray:
        """Return AUGRC by sample."""
        answered, failed = self.cumulate(weights), self.cumulate(weights * wrong)
        areas: np.ndarray = _area(answered, failed) / answered[:, -1] ** 2
        return areas

    def coverage(self, weights: np.ndarray, wrong: np.ndarray, limit: float) -> np.ndarray:
        """Return the most coverage at a risk of at most `limit`, by sample."""
        answered, failed = self.cumulate(weights), self.cumulate(weights * wrong)
        # A division, as in `Curve.risk`: a product would round otherwise at the border.
        risk = failed / np.maximum(answered, 1)
        covered: np.ndarray = np.where(risk <= limit, answered, 0).max(axis=1) / answered[:, -1]
        return covered

    def all(
        self, weights: np.ndarray, present: np.ndarray, wrong: np.ndarray, limit: float
    ) -> np.ndarray:
        """Return all three, [3, samples]."""
        return np.stack(
            [
                *(self.auroc(weights, present), self.augrc(weights, wrong)),
                self.coverage(weights, wrong, limit),
            ]
        )


def _area(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    left, before = (np.pad(values, ((0, 0), (1, 0)))[:, :-1] for values in (x, y))
    areas: np.ndarray = ((x - left) * (y + before)).sum(axis=1) / 2
    return areas
