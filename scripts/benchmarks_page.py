"""Write the page of results: `python scripts/benchmarks_page.py --results DIR --out FILE.md`.

The folder contains the figures, which are JSON files such as an evaluation's `report.json` under
another name, and the texts, in `benchmarks.yaml`. A text whose figures are missing is an error that
names them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from claim2source.core.config import Settings, read_config, read_yaml
from claim2source.core.costs import SystemCost
from claim2source.core.errors import InputError, did_you_mean, run_program
from claim2source.core.files import write_text
from claim2source.core.folders import require_output_file
from claim2source.core.report import (
    MACRO,
    MAIN_METRIC,
    Report,
    SystemReport,
)
from claim2source.core.tables import Cell, Part, TextTable, render
from claim2source.core.terminal import say
from claim2source.core.validate import Strict, read_json, validated

TITLE = "# Benchmarks and results"
WORDS = "benchmarks.yaml"
PROGRAM = "scripts/benchmarks_page.py"


@dataclass(frozen=True)
class BenchmarksConfig(Settings):
    """Settings of `scripts/benchmarks_page.py`.

    Args:
        results: folder of the figures and texts.
        out: Markdown file to write.
    """

    results: Path
    out: Path


def main(argv: Sequence[str] | None = None) -> None:
    """Write the page of a folder of results."""
    config = read_config(BenchmarksConfig, argv, program=PROGRAM, description=__doc__ or "")
    require_output_file(config.out, TITLE)
    write_text(config.out, Benchmarks(config.results).page())
    say(f"results in {config.out}")


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
    """Paired test of two systems; `p` is a text, because older tables rounded it."""

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
    """Figures that are no longer in a report, and their `source`."""

    source: str
    rows: Mapping[str, Figure] = field(default_factory=dict)
    tests: tuple[Difference, ...] = ()


@dataclass(frozen=True)
class ResultSet(Strict):
    """Show rows of a file of figures, label -> name in the file, with date and command."""

    set: str
    figures: str
    date: str
    command: str
    rows: Mapping[str, str]
    metric: str = MAIN_METRIC


@dataclass(frozen=True)
class Finding(Strict):
    """State a finding in Markdown; `tests` are tuples (file of figures, system, baseline)."""

    text: str
    tests: tuple[tuple[str, str, str], ...] = ()


@dataclass(frozen=True)
class Words(Strict):
    """Texts of the page."""

    introduction: str
    sets: tuple[ResultSet, ...]
    findings: tuple[Finding, ...] = ()
    did_not_help: tuple[Finding, ...] = ()
    pages: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Benchmarks:
    """Page of a folder of results; its figures are read at first use."""

    folder: Path

    @cached_property
    def words(self) -> Words:
        """Read the texts. Raises `InputError` with the key that is wrong."""
        path = self.folder / WORDS
        return validated(Words, json.dumps(read_yaml(path), default=str), path)

    def figures(self, name: str, metric: str = MAIN_METRIC) -> Figures:
        """Read `NAME.json`, an evaluation's report or a file of figures."""
        path = self.folder / f"{name}.json"
        raw = read_json(path)
        if isinstance(raw, dict) and "systems" in raw:
            return _report_figures(Report.read(path), metric)
        return validated(Figures, json.dumps(raw), path)

    def page(self) -> str:
        """Write the page in Markdown. Raises `InputError` for a text without its figures."""
        words = self.words
        parts: list[Part] = [TITLE, words.introduction.strip(), *self._sets()]
        parts += self._section("## Findings", words.findings)
        parts += self._section("## What did not help", words.did_not_help)
        if words.pages:
            links = [f"- [{title}](docs/results/{page})" for title, page in words.pages.items()]
            parts += ["## Tables, ablations and timings", "\n".join(links)]
        return f"{render(parts, 'markup')}\n"

    def _sets(self) -> list[Part]:
        """Tabulate the sets' rows, and list the commands that made them by number."""
        commands: dict[str, str] = {}
        rows: list[list[Cell]] = []
        for part in self.words.sets:
            command = part.command.strip()
            number = commands.setdefault(command, str(len(commands) + 1))
            rows += self._set_rows(part, number)
        columns = ["set", "system", MAIN_METRIC.upper(), "95 %", "cost", "date", "command"]
        numeric = [False, False, True, False, True, False, True]
        listed = [f"# {number}\n{command}" for command, number in commands.items()]
        block = "```bash\n" + "\n".join(listed) + "\n```"
        return [TextTable(columns, rows, numeric=numeric), block]

    def _set_rows(self, part: ResultSet, number: str) -> list[list[Cell]]:
        """List the rows of a set; the first one has its name."""
        name = part.set
        if part.metric != MAIN_METRIC:
            name = f"{part.set}, {part.metric}"
        figures = self.figures(part.figures, part.metric).rows
        rows: list[list[Cell]] = []
        for label, row in part.rows.items():
            figure = self._look_up(figures, row, part.figures)
            cells = [figure.score, figure.interval, figure.cost or None]
            rows.append([name, label, *cells, part.date, number])
            name = ""
        return rows

    def _section(self, heading: str, findings: Sequence[Finding]) -> list[Part]:
        """List findings under a heading; empty without any."""
        if not findings:
            return []
        lines = []
        for number, finding in enumerate(findings, start=1):
            lines.append(f"{number}. {self._finding(finding)}")
        return [heading, "\n".join(lines)]

    def _look_up(
        self,
        rows: Mapping[str, Figure],
        name: str,
        file: str,
    ) -> Figure:
        if name not in rows:
            reason = f"has no row {name!r}; {did_you_mean(name, rows)}rows: {', '.join(rows)}"
            raise InputError(self.folder / f"{file}.json", reason=reason)
        return rows[name]

    def _finding(self, finding: Finding) -> str:
        text = " ".join(finding.text.split())
        if not finding.tests:
            return text
        tests = [str(self._test(*names)) for names in finding.tests]
        return f"{text} {', '.join(tests)}."

    def _test(self, file: str, system: str, baseline: str) -> Difference:
        for test in self.figures(file).tests:
            if (test.system, test.baseline) == (system, baseline):
                return test
        reason = f"has no test of {system!r} against {baseline!r}"
        raise InputError(self.folder / f"{file}.json", reason=reason)


def _report_figures(report: Report, metric: str) -> Figures:
    rows = {}
    for name, system in report.systems.items():
        if metric in system.macro and not system.simulated:
            rows[name] = _figure(system, metric)
    return Figures(report.dataset, rows, _differences(report))


def _differences(report: Report) -> tuple[Difference, ...]:
    """List the tests of a report; of several averages only the macro average's."""
    tests: dict[tuple[str, str], Difference] = {}
    for average in ("micro", MACRO):
        for family in report.tests:
            if family.average != average:
                continue
            for comparison in family.comparisons:
                tests[comparison.system, comparison.baseline] = Difference(
                    comparison.system,
                    comparison.baseline,
                    comparison.difference,
                    f"{comparison.p_holm:.4f}",
                    comparison.low,
                    comparison.high,
                )
    return tuple(tests.values())


def _figure(system: SystemReport, metric: str) -> Figure:
    low, high = system.interval(metric) or (None, None)
    return Figure(float(system.macro[metric]), low, high, _cost_text(system.cost))


def _cost_text(cost: SystemCost | None) -> str:
    if cost is None or not cost.seconds:
        return ""
    prefix = ">" if cost.reused else ""
    return f"{prefix}{cost.seconds:.1f} s"


if __name__ == "__main__":
    run_program(main)
