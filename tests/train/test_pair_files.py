"""A file of pairs is trained on: its own negatives are the hard ones."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from claim2source.train.finetune import main

from claim2source.core.report import Report
from claim2source.data.loading import load
from tests.training.small import TOPICS, arguments


def write_pairs(path: Path, *, negatives: bool) -> None:
    names = ["anchor", "positive", "negative_1", "negative_2", "language"]
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(names if negatives else names[:2])
        for number in range(72):
            topic, other, third = (TOPICS[(number + step) % 24] for step in (0, 1, 2))
            row = [f"claim {number} on {topic}", f"Effect of {topic} on health"]
            if negatives:
                row += [f"Effect of {other} on health", f"History of {third}", "de"]
            writer.writerow(row)


@pytest.mark.parametrize("negatives", [True, False])
def test_pairs_are_trained_on_with_their_own_negatives(
    negatives: bool, setup: tuple[Path, Path], tmp_path: Path
) -> None:
    pairs = tmp_path / "pairs.csv"
    write_pairs(pairs, negatives=negatives)
    small: dict[str, object] = {"optimisation__epochs": 1, "optimisation__negatives": 2}
    main(arguments(setup[0], pairs, tmp_path / "run", **small))
    train, dev = load(pairs, "train"), load(pairs, "dev")
    assert train.golds.isdisjoint(dev.golds)
    report = Report.read(tmp_path / "run")
    assert report.split == "dev" and report.training is not None
    lines = (tmp_path / "run" / "mined.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    origins = {negative["origin"] for row in rows for negative in row["negatives"]}
    # All pairs of a positive are trained on, or all are held out.
    trained = {row["positive"] for row in rows}
    left = [claim for claim in train.claims if claim.id not in {row["claim"] for row in rows}]
    assert left and not any(trained.intersection(claim.golds) for claim in left)
    if not negatives:
        assert "given" not in origins
        return
    assert origins == {"given"} and all(len(row["negatives"]) == 2 for row in rows)
    texts = {source.id: source.abstract for source in train.sources}
    claims = {claim.id: claim for claim in train.claims}
    for row in rows:
        number = int(claims[row["claim"]].text.split()[1])
        wanted = [f"Effect of {TOPICS[(number + 1) % 24]} on health"]
        wanted.append(f"History of {TOPICS[(number + 2) % 24]}")
        assert [texts[negative["source"]] for negative in row["negatives"]] == wanted
    assert {claim.lang for claim in train.claims} == {"de"}
