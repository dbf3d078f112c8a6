"""Score a retriever on val, and choose a run's epoch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from claim2source.core.records import Dataset
from claim2source.core.report import MAIN_METRIC, Choice, Epoch, SystemReport
from claim2source.search.choose import SEEN, UNSEEN, Preference, Weighing, choose
from claim2source.training.run_folder import RunFolder

# Below these, the interval of a mean over val is wider than the gain from training.
FEWEST_CLAIMS, FEWEST_PAPERS = 30, 10


def val_size_error(val: Dataset) -> str | None:
    """Describe a val with too few claims or papers to choose by; None if it has enough."""
    claims, papers = sum(bool(claim.golds) for claim in val.claims), len(val.golds)
    if claims >= FEWEST_CLAIMS and papers >= FEWEST_PAPERS:
        return None
    return (
        f"val has only {claims} claims of {papers} papers; choosing needs at least {FEWEST_CLAIMS} "
        f"claims and {FEWEST_PAPERS} papers (raise data.val_share)"
    )


def scores_text(entry: Epoch) -> str:
    """Write MRR@5 by language, on both parts, and the score to choose by."""
    line = "  ".join(f"{lang} {row['mrr@5']:.4f}" for lang, row in entry.val.items())
    if not entry.parts:
        return line
    seen, unseen = (entry.parts[part]["macro"]["mrr@5"] for part in (SEEN, UNSEEN))
    by = f"to choose by {entry.score:.4f}"
    return f"{line}  (seen papers {seen:.4f}, unseen {unseen:.4f}, {by})"


def interval_text(report: SystemReport) -> str:
    """Write the macro MRR@5 before training with its interval; empty without intervals."""
    if report.intervals is None or (bounds := report.intervals.of(MAIN_METRIC)) is None:
        return ""
    (low, high), mean = bounds, report.macro[MAIN_METRIC]
    return (
        f"; before training its {MAIN_METRIC} is {mean:.4f} with a 95 % interval from "
        f"{low:.4f} to {high:.4f}, {high - low:.4f} wide"
    )


def scored_epoch(
    number: int, report: SystemReport, values: np.ndarray, weighing: Weighing
) -> Epoch:
    """Make an epoch's entry from its report on val; `values` are each claim's, to choose by."""
    # Without claims of seen papers, val has only one part.
    parts = report.slices if all(report.slices.values()) else {}
    by_claim = dict(zip(weighing.claim_ids, values.tolist(), strict=True))
    return Epoch(number, report.table, None, parts, weighing.score(values), by_claim)


def choose_epoch(
    run: RunFolder, weighing: Weighing, metric: str = MAIN_METRIC
) -> tuple[int, Choice]:
    """Choose an epoch with a checkpoint, or epoch 0, the base, on val.

    The default is the last epoch, and the distance of another is the share of training that it
    lacks. Epochs below the base are not chosen. With `last` only the last epoch is a candidate.
    """
    last = run.file.history[-1].epoch
    entries = {
        entry.epoch: entry
        for entry in run.file.history
        if entry.epoch == last
        or (run.config.choose == "best" and run.checkpoint(entry.epoch).is_dir())
    }
    epoch, choice = choose(
        "checkpoint",
        {
            epoch: np.array([entry.claims[claim] for claim in weighing.claim_ids])
            for epoch, entry in entries.items()
        },
        weighing,
        settings=lambda epoch: {"epoch": epoch},
        by=Preference(
            run.config.rule,
            distance=lambda epoch: 1 - epoch / max(last, 1),
            floor=0 if 0 in entries else None,
        ),
        tables={epoch: entry.val for epoch, entry in entries.items()},
        trials=True,
    )
    # Scores by language are in the history.
    tried = tuple(replace(setting, scores={}) for setting in choice.tried)
    return epoch, replace(choice, tried=tried, metric=metric)
