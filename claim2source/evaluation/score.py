"""Write the scores of files of ranked lists, and the test of two, as JSON or a table."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from claim2source.core.tables import Cell, Part, TextTable, render
from claim2source.metrics.metrics import Coverage, Scores
from claim2source.metrics.significance import PairedTest


@dataclass(frozen=True)
class RunScores:
    """Hold a run's scores, their coverage by judgements, and the count of repeated rows."""

    scores: Scores
    coverage: Coverage
    repeated: int


def scores_as_json(
    runs: Mapping[str, RunScores], tests: Mapping[str, PairedTest], notes: Sequence[str]
) -> str:
    """Write the report as JSON."""
    report: dict[str, object] = {
        "runs": {name: run.scores.means() for name, run in runs.items()},
        "claims": next(iter(runs.values())).coverage.claims,
        "missing": {name: run.coverage.missing for name, run in runs.items()},
        "repeated": {name: run.repeated for name, run in runs.items()},
        "ignored": {name: run.coverage.ignored for name, run in runs.items()},
        "notes": list(notes),
    }
    if tests:
        metrics = {metric: asdict(test) for metric, test in tests.items()}
        report["paired_test"] = {"runs": list(runs), "metrics": metrics}
    # JSON escapes every control character but DEL.
    return json.dumps(report, indent=2).replace("\x7f", "\\u007f")


def scores_as_text(
    runs: Mapping[str, RunScores], tests: Mapping[str, PairedTest], notes: Sequence[str]
) -> str:
    """Write the report as a table, a legend and, for two runs, the test."""
    first = next(iter(runs.values()))
    columns = ["run", *first.scores.values, "missing", "repeated", "ignored"]
    rows: list[list[Cell]] = [
        [name, *run.scores.means().values(), met.missing, run.repeated, met.ignored]
        for name, run in runs.items()
        for met in [run.coverage]
    ]
    legend = (
        f"{first.coverage.claims} claims with a gold. missing: claims without a prediction (they "
        "count as 0); repeated:\nsources listed again for a claim (dropped); ignored: claims of "
        "the run without a gold."
    )
    parts: list[Part] = [TextTable(columns, rows, digits=6), "\n".join([legend, *notes])]
    if tests:
        test = next(iter(tests.values()))
        head = (
            f"{' - '.join(runs)}: paired randomisation test, {test.repeats} repeats, "
            f"by gold paper ({test.groups} of them)"
        )
        rows = [[metric, test.difference, test.p_value] for metric, test in tests.items()]
        parts += [head, TextTable(["metric", "difference", "p"], rows, digits=6)]
    return render(parts)
