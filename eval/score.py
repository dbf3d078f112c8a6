"""Score runs against qrels; with two runs, test whether they differ."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from claim2source.core.config import (
    Repeats,
    Seed,
    Settings,
    flag,
    list_field,
    read_config,
    require,
)
from claim2source.core.errors import run_program
from claim2source.core.run import Run
from claim2source.core.tables import Cell, Part, TextTable, render
from claim2source.core.terminal import say
from claim2source.data.grouping import gold_groups
from claim2source.data.released import RankedBy, read_selections, with_selected
from claim2source.data.trec import named_as, read_qrels, read_run, run_names
from claim2source.metrics.metrics import (
    ALLOWED,
    Coverage,
    Scores,
    coverage,
    cutoff,
    depth_notes,
    evaluate,
    without_themselves,
)
from claim2source.metrics.significance import PairedTest, paired_randomisation
from claim2source.search.saved import complete_run

METRICS = ["mrr@1", "mrr@5", "mrr@10", "recall@10", "recall@100"]


@dataclass
class Config(Settings):
    """Set the runs to score, the qrels, and the metrics.

    Args:
        qrels: TREC qrels, BEIR's TSV or the lab's gold TSV.
        repeats: sign flips of the paired test.
        seed: seed of the paired test.
        selections: the 2026 paper's selections by an LLM; each run is also scored with the
            selected sources first.
        ranked_by: the ranking of a score JSON to use: reranker, if one ran, or embedding.
    """

    qrels: Path
    run: list[Path] = list_field(help="TREC runs, the lab's TSVs or the 2026 paper's score JSON")
    metrics: list[str] = list_field(METRICS, help="mrr@K recall@K hit@K p@K ndcg@K map map@K")
    json: bool = flag("print only JSON to stdout")
    repeats: Repeats = 10_000
    seed: Seed = 0
    selections: Path | None = None
    ranked_by: RankedBy = "reranker"

    def check(self) -> None:
        require(bool(self.run), "run", self.run, "one or more files: --run FILE")
        require(bool(self.metrics), "metrics", self.metrics, f"one or more of {ALLOWED}")
        for metric in self.metrics:
            cutoff(metric)


@dataclass(frozen=True)
class RunScores:
    """Run's scores, their coverage by the qrels, and the number of repeated rows."""

    run: Run
    scores: Scores
    coverage: Coverage
    repeated: int


def main(argv: Sequence[str] | None = None) -> None:
    """Read the files, score every run, print a table or JSON."""
    config = read_config(Config, argv, program="eval/score.py", description=__doc__ or "")
    qrels = read_qrels(config.qrels)
    runs: dict[str, RunScores] = {}
    left_out: list[str] = []
    golds = {}
    for claim in qrels.claim_ids:
        golds[claim] = qrels.golds(claim)
    selections = None if config.selections is None else read_selections(config.selections)
    for name, path in zip(run_names(config.run), config.run, strict=True):
        file = named_as(read_run(path, config.ranked_by, keep_places=True), golds)
        if file.repeated and file.has_places:
            left_out.append(_repeat_note(name, file.repeated))
        read = {name: file.run}
        if config.selections is not None and selections is not None:
            language = file.language_among(list(selections))
            selected = with_selected(complete_run(file), config.selections, selections, language)
            read[f"{name} + {config.selections.stem}"] = selected
        read, own = without_themselves(read, qrels)
        left_out += own
        for run_name, run in read.items():
            covered = coverage(run, qrels, str(path))
            scores = evaluate(run, qrels, config.metrics)
            runs[run_name] = RunScores(run, scores, covered, file.repeated)
    tests: dict[str, PairedTest] = {}
    if len(runs) == 2:
        first, second = (run.scores for run in runs.values())
        groups = gold_groups(qrels, first.claim_ids)
        for metric in first.values:
            tests[metric] = paired_randomisation(
                first[metric],
                second[metric],
                groups,
                config.repeats,
                config.seed,
            )
    lists = {name: scored.run for name, scored in runs.items()}
    notes = [*depth_notes(lists, config.metrics), *left_out]
    say((_as_json if config.json else _as_text)(runs, tests, notes))


def _repeat_note(name: str, repeated: int) -> str:
    return (
        f"{name}: {repeated} ids are repeated for their claim. They keep their ranks, as in "
        "the lab's function: later ids do not move up, and only a claim's first row counts."
    )


def _as_json(
    runs: Mapping[str, RunScores],
    tests: Mapping[str, PairedTest],
    notes: Sequence[str],
) -> str:
    report: dict[str, object] = {
        "runs": {name: run.scores.means() for name, run in runs.items()},
        "claims": next(iter(runs.values())).coverage.claims,
        "missing": {name: run.coverage.missing for name, run in runs.items()},
        "repeated": {name: run.repeated for name, run in runs.items()},
        "ignored": {name: run.coverage.ignored for name, run in runs.items()},
        "notes": list(notes),
    }
    if tests:
        metrics = {}
        for metric, test in tests.items():
            metrics[metric] = asdict(test)
        report["paired_test"] = {"runs": list(runs), "metrics": metrics}
    # JSON escapes every control character but DEL.
    return json.dumps(report, indent=2).replace("\x7f", "\\u007f")


def _as_text(
    runs: Mapping[str, RunScores],
    tests: Mapping[str, PairedTest],
    notes: Sequence[str],
) -> str:
    first = next(iter(runs.values()))
    columns = ["run", *first.scores.values, "missing", "repeated", "ignored"]
    rows: list[list[Cell]] = []
    for name, run in runs.items():
        for met in [run.coverage]:
            rows.append(
                [name, *run.scores.means().values(), met.missing, run.repeated, met.ignored]
            )
    legend = (
        f"{first.coverage.claims} claims with a gold. missing: claims without a prediction (they "
        "score 0); repeated:\nsources repeated for a claim (the repetition never scores); ignored: "
        "claims of the run without a gold."
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


if __name__ == "__main__":
    run_program(main)
