"""Score runs against judgements; with two runs, test whether they differ."""

from __future__ import annotations

import json as json_format
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from claim2source.core.config import flag, list_field, read_config, require
from claim2source.core.errors import run_program
from claim2source.core.records import Qrels
from claim2source.core.tables import Cell, plain_table
from claim2source.datasets.grouping import gold_groups
from claim2source.evaluation.metrics import ALLOWED, Coverage, Scores, coverage, cutoff, evaluate
from claim2source.evaluation.significance import paired_randomisation
from claim2source.io.trec import read_qrels, read_run, run_names

METRICS = ["mrr@1", "mrr@5", "mrr@10", "recall@10", "recall@100"]


@dataclass
class Config:
    """What to score.

    Args:
        qrels: TREC qrels, BEIR's TSV or the lab's gold TSV.
        repeats: Sign flips of the paired test.
        seed: Seed of the paired test.
    """

    qrels: Path
    run: list[Path] = list_field(Path, repeats=True, help="TREC runs or the lab's TSVs")
    metrics: list[str] = list_field(str, METRICS, help="mrr@K recall@K hit@K p@K ndcg@K map map@K")
    json: bool = flag("print JSON, and nothing else, to stdout")
    repeats: int = 10_000
    seed: int = 0

    def __post_init__(self) -> None:
        """Check what can be checked before any file is read."""
        require(bool(self.run), "run", self.run, "one or more files: --run FILE")
        require(self.repeats > 0, "repeats", self.repeats, "1 or more")
        require(self.seed >= 0, "seed", self.seed, "0 or more")
        require(bool(self.metrics), "metrics", self.metrics, f"one or more of {ALLOWED}")
        for metric in self.metrics:
            cutoff(metric)


def main(argv: Sequence[str] | None = None) -> None:
    """Read the files, score every run, print a table or JSON."""
    config = read_config(Config, argv, program="score.py", description=__doc__ or "")
    qrels = read_qrels(config.qrels)
    files = dict(zip(run_names(config.run), map(read_run, config.run), strict=True))
    covered = {name: coverage(file.run, qrels, str(file.path)) for name, file in files.items()}
    scores = {name: evaluate(file.run, qrels, config.metrics) for name, file in files.items()}
    repeated = {name: file.repeated for name, file in files.items()}
    test = paired_test(scores, qrels, config) if len(scores) == 2 else None
    if config.json:
        print(json_format.dumps(as_json(scores, covered, repeated, test), indent=2))
    else:
        print(as_text(scores, covered, repeated, test))


def paired_test(scores: dict[str, Scores], qrels: Qrels, config: Config) -> dict[str, Any]:
    """The paired randomisation test of two runs, for every metric."""
    (name, one), (other_name, other) = scores.items()
    groups = gold_groups(qrels, one.claim_ids)
    tests = {
        metric: asdict(
            paired_randomisation(one[metric], other[metric], groups, config.repeats, config.seed)
        )
        for metric in one.values
    }
    return {"runs": [name, other_name], "metrics": tests}


def as_json(
    scores: dict[str, Scores],
    covered: dict[str, Coverage],
    repeated: dict[str, int],
    test: dict[str, Any] | None,
) -> dict[str, Any]:
    """The report as JSON-ready values."""
    report: dict[str, Any] = {
        "runs": {name: score.means() for name, score in scores.items()},
        "claims": next(iter(covered.values())).claims,
        "missing": {name: cover.missing for name, cover in covered.items()},
        "repeated": repeated,
        "ignored": {name: cover.ignored for name, cover in covered.items()},
    }
    return report if test is None else {**report, "paired_test": test}


def as_text(
    scores: dict[str, Scores],
    covered: dict[str, Coverage],
    repeated: dict[str, int],
    test: dict[str, Any] | None,
) -> str:
    """The report as a table, a legend and, for two runs, the test."""
    metrics = list(next(iter(scores.values())).values)
    rows: list[list[Cell]] = []
    for name, score in scores.items():
        counts = covered[name].missing, repeated[name], covered[name].ignored
        rows.append([name, *score.means().values(), *counts])
    lines = [
        plain_table(["run", *metrics, "missing", "repeated", "ignored"], rows, digits=6),
        "",
        f"{next(iter(covered.values())).claims} claims with a gold. missing: claims without a "
        "prediction (they count as 0); repeated:",
        "sources listed again for a claim (dropped); ignored: claims of the run without a gold.",
    ]
    if test is not None:
        one, other = test["runs"]
        shown = next(iter(test["metrics"].values()))
        lines += [
            "",
            f"{one} - {other}: paired randomisation test, {shown['repeats']} repeats, "
            f"by gold paper ({shown['groups']} of them)",
            plain_table(
                ["metric", "difference", "p"],
                [[m, t["difference"], t["p_value"]] for m, t in test["metrics"].items()],
                digits=6,
            ),
        ]
    return "\n".join(lines)


if __name__ == "__main__":
    run_program(main)
