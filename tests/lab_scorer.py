"""Score submissions as described by the labs, without code of the library.

Ids are compared with their type in the lab's files: the number 9444 is not the text "9444".
"""

from __future__ import annotations

import ast
import csv
import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

LANGUAGES = ("en", "de", "fr")
Label = str | int


def score_2026(gold_folder: Path, submission: Path) -> dict[str, float]:
    """Return MRR@5 for each language, and "macro"; golds are `<language>_test.json`."""
    scores = {}
    for lang in LANGUAGES:
        text = (gold_folder / f"{lang}_test.json").read_text(encoding="utf-8")
        golds = {int(entry["index"]): entry["pubkey"] for entry in json.loads(text)}
        rows = _rows(submission, f"predictions_{lang}.tsv")
        predicted = {int(row["index"]): ast.literal_eval(row["preds"]) for row in rows}
        assert len(predicted) == len(rows)
        scores[lang] = _mean_reciprocal_rank(predicted, golds)
    scores["macro"] = sum(scores.values()) / len(LANGUAGES)
    return scores


def score_2025(gold_file: Path, submission: Path) -> float:
    """Return MRR@5; golds are a TSV with the columns post_id and cord_uid."""
    with open(gold_file, encoding="utf-8", newline="") as file:
        golds = {row["post_id"]: row["cord_uid"] for row in csv.DictReader(file, delimiter="\t")}
    rows = _rows(submission, "predictions.tsv")
    predicted = {row["post_id"]: ast.literal_eval(row["preds"]) for row in rows}
    assert len(predicted) == len(rows)
    return _mean_reciprocal_rank(predicted, golds)


def _rows(submission: Path, name: str) -> list[dict[str, str]]:
    """Read a file from a zip, or from a folder with the same files."""
    if submission.is_dir():
        text = (submission / name).read_text(encoding="utf-8")
    else:
        with zipfile.ZipFile(submission) as archive:
            text = archive.read(name).decode("utf-8")
    return list(csv.DictReader(io.StringIO(text), delimiter="\t"))


def _mean_reciprocal_rank(
    predicted: Mapping[Any, Sequence[Label]], golds: Mapping[Any, Label]
) -> float:
    assert predicted.keys() == golds.keys()
    total = 0.0
    for claim, gold in golds.items():
        first = list(predicted[claim])[:5]
        if gold in first:
            total += 1 / (first.index(gold) + 1)
    return total / len(golds)
