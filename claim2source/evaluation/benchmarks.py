"""Write the page of results: figures are JSON files of a folder, words its `benchmarks.yaml`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from claim2source.core.config import read_yaml
from claim2source.core.errors import InputError, did_you_mean
from claim2source.core.report import MACRO, MAIN_METRIC, Report, SystemReport
from claim2source.core.tables import Cell, Part, TextTable, render
from claim2source.core.validate import Strict, read_json, validated

TITLE = "# Benchmarks and results"
WORDS = "benchmarks.yaml"


@dataclass(frozen=True)
class Figure:
    """System's score, its 95 % interval and its cost in words."""

    score: float
    low: float | None = None
    high: float | None = None
    cost: str = ""

    @property
    def interval(self) -> str | None:
        return None if self.low is None else f"{self.low:.4f} to {self.high:.4f}"


@dataclass(frozen=True)
class Difference:
    """Paired test of two systems; `p` is a text, as older tables rounded it."""

    system: str
    baseline: str
    difference: float
    p: str
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        bounds = "" if self.low is None else f"{self.low:+.4f} to {self.high:+.4f}; "
        return f"{self.difference:+.4f} ({bounds}p {self.p})"


@dataclass(frozen=True)
class Figures(Strict):
    """Figures that no report has any more, and if they stood (`source`)."""

    source: str
    rows: Mapping[str, Figure] = field(default_factory=dict)
    tests: tuple[Difference, ...] = ()


@dataclass(frozen=True)
class ResultSet(Strict):
    """Show rows of one file of figures, label -> its name there, with date and command."""

    set: str
    figures: str
    date: str
    command: str
    rows: Mapping[str, str]
    metric: str = MAIN_METRIC


@dataclass(frozen=True)
class Finding(Strict):
    """State a finding in Markdown; `tests` are its (file of figures, system, baseline)."""

    text: str
    tests: tuple[tuple[str, str, str], ...] = ()


@dataclass(frozen=True)
class Words(Strict):
    """Words of the page."""

    introduction: str
    sets: tuple[ResultSet, ...]
    findings: tuple[Finding, ...] = ()
    did_not_help: tuple[Finding, ...] = ()
    pages: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Benchmarks:
    """Read a folder of results; its figures are read at first use."""

    folder: Path

    @cached_property
    def words(self) -> Words:
        """Read the words. Raises `InputError` naming the key that is wrong."""
        path = self.folder / WORDS
        return validated(Words, json.dumps(read_yaml(path), default=str), path)

    def figures(self, name: str, metric: str = MAIN_METRIC) -> Figures:
        """Read `NAME.json`, an evaluation's report or figures of their own."""
        path = self.folder / f"{name}.json"
        raw = read_json(path)
        if isinstance(raw, dict) and "systems" in raw:
            return _report_figures(Report.read(path), metric)
        return validated(Figures, json.dumps(raw), path)

    def page(self) -> str:
        words = self.words
        commands: dict[str, str] = {}
        rows: list[list[Cell]] = []
        for part in words.sets:
            number = commands.setdefault(part.command.strip(), str(len(commands) + 1))
            figures = self.figures(part.figures, part.metric).rows
            name = part.set if part.metric == MAIN_METRIC else f"{part.set}, {part.metric}"
            for label, row in part.rows.items():
                figure = self._look_up(figures, row, part.figures)
                cells = [figure.score, figure.interval, figure.cost or None]
                rows.append([name, label, *cells, part.date, number])
                name = ""
        columns = ["set", "system", MAIN_METRIC.upper(), "95 %", "cost", "date", "command"]
        numeric = [False, False, True, False, True, False, True]
        listed = [f"# {number}\n{command}" for command, number in commands.items()]
        parts: list[Part] = [
            TITLE,
            words.introduction.strip(),
            TextTable(columns, rows, numeric=numeric),
            "```bash\n" + "\n".join(listed) + "\n```",
        ]
        for heading, findings in (
            ("## Findings", words.findings),
            ("## What did not help", words.did_not_help),
        ):
            lines = [
                f"{i}. {self._finding(finding)}" for i, finding in enumerate(findings, start=1)
            ]
            parts += [heading, "\n".join(lines)] if lines else []
        if words.pages:
            links = [f"- [{title}](docs/results/{page})" for title, page in words.pages.items()]
            parts += ["## Tables, ablations and timings", "\n".join(links)]
        return f"{render(parts, 'markup')}\n"

    def _look_up(self, rows: Mapping[str, Figure], name: str, file: str) -> Figure:
        if name not in rows:
            reason = f"has no row {name!r}; {did_you_mean(name, rows)}there are: {', '.join(rows)}"
            raise InputError(self.folder / f"{file}.json", reason=reason)
        return rows[name]

    def _finding(self, finding: Finding) -> str:
        tests = [str(self._test(*names)) for names in finding.tests]
        text = " ".join(finding.text.split())
        return f"{text} {', '.join(tests)}." if tests else text

    def _test(self, file: str, system: str, baseline: str) -> Difference:
        for test in self.figures(file).tests:
            if (test.system, test.baseline) == (system, baseline):
                return test
        reason = f"has no test of {system!r} against {baseline!r}"
        raise InputError(self.folder / f"{file}.json", reason=reason)


def _report_figures(report: Report, metric: str) -> Figures:
    rows = {
        name: _figure(system, metric)
        for name, system in report.systems.items()
        if metric in system.macro and not system.simulated
    }
    overall = [family for family in report.tests if family.average in (MACRO, "micro")]
    tests = {
        (comparison.system, comparison.baseline): Difference(
            comparison.system,
            comparison.baseline,
            comparison.difference,
            f"{comparison.p_holm:.4f}",
            comparison.low,
            comparison.high,
        )
        # The macro average's test is the one that is told.
        for family in sorted(overall, key=lambda family: family.average == MACRO)
        for comparison in family.comparisons
    }
    return Figures(report.dataset, rows, tuple(tests.values()))


def _figure(system: SystemReport, metric: str) -> Figure:
    low, high = system.interval(metric) or (None, None)
    cost = system.cost
    prefix = ">" if cost is not None and cost.reused else ""
    seconds = f"{prefix}{cost.seconds:.1f} s" if cost is not None and cost.seconds else ""
    return Figure(float(system.macro[metric]), low, high, seconds)
