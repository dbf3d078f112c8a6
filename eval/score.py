"""Score runs against judgements; with two runs, test whether they differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
from claim2source.core.terminal import say
from claim2source.datasets.grouping import gold_groups
from claim2source.evaluation.score import RunScores, scores_as_json, scores_as_text
from claim2source.io.released import RankedBy, read_selections, with_selected
from claim2source.io.trec import named_as, read_qrels, read_run, run_names
from claim2source.metrics.metrics import (
    ALLOWED,
    coverage,
    cutoff,
    depth_notes,
    evaluate,
    without_themselves,
)
from claim2source.metrics.significance import PairedTest, paired_randomisation
from claim2source.retrieve.saved import complete_run

METRICS = ["mrr@1", "mrr@5", "mrr@10", "recall@10", "recall@100"]


@dataclass
class Config(Settings):
    """Set the runs to score, the judgements, and the metrics.

    Args:
        qrels: TREC qrels, BEIR's TSV or the lab's gold TSV.
        repeats: Sign flips of the paired test.
        seed: Seed of the paired test.
        selections: The 2026 paper's selections by an LLM: each run is also scored with the
            selected sources first.
        ranked_by: Which ranking of a score JSON: reranker, if one ran, or embedding.
    """

    qrels: Path
    run: list[Path] = list_field(help="TREC runs, the lab's TSVs or the 2026 paper's score JSON")
    metrics: list[str] = list_field(METRICS, help="mrr@K recall@K hit@K p@K ndcg@K map map@K")
    json: bool = flag("print JSON, and nothing else, to stdout")
    repeats: Repeats = 10_000
    seed: Seed = 0
    selections: Path | None = None
    ranked_by: RankedBy = "reranker"

    def check(self) -> None:
        """Check the settings before any file is read."""
        require(bool(self.run), "run", self.run, "one or more files: --run FILE")
        require(bool(self.metrics), "metrics", self.metrics, f"one or more of {ALLOWED}")
        for metric in self.metrics:
            cutoff(metric)


def main(argv: Sequence[str] | None = None) -> None:
    """Read the files, score every run, print a table or JSON."""
    config = read_config(Config, argv, program="eval/score.py", description=__doc__ or "")
    qrels = read_qrels(config.qrels)
    runs: dict[str, RunScores] = {}
    lists: dict[str, Run] = {}
    left_out: list[str] = []
    golds = {claim: qrels.golds(claim) for claim in qrels.claim_ids}
    selections_path = config.selections
    selections = None if selections_path is None else read_selections(selections_path)
    for name, path in zip(run_names(config.run), config.run, strict=True):
        file = named_as(read_run(path, config.ranked_by), golds)
        scored = {name: file.run}
        if selections_path is not None and selections is not None:
            language = file.language_among(list(selections))
            selected = with_selected(complete_run(file), selections_path, selections, language)
            scored[f"{name} + {selections_path.stem}"] = selected
        scored, own = without_themselves(scored, qrels)
        left_out += own
        for run_name, run in scored.items():
            lists[run_name] = run
            covered = coverage(run, qrels, str(path))
            runs[run_name] = RunScores(evaluate(run, qrels, config.metrics), covered, file.repeated)
    tests: dict[str, PairedTest] = {}
    if len(runs) == 2:
        first, second = (run.scores for run in runs.values())
        groups = gold_groups(qrels, first.claim_ids)
        for metric in first.values:
            tests[metric] = paired_randomisation(
                first[metric], second[metric], groups, config.repeats, config.seed
            )
    notes = [*depth_notes(lists, config.metrics), *left_out]
    as_text = scores_as_json if config.json else scores_as_text
    say(as_text(runs, tests, notes))


if __name__ == "__main__":
    run_program(main)
