"""Failures sorted by proxies."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from claim2source.core.records import Claim, Dataset, Qrels, Source
from claim2source.core.run import Run
from claim2source.core.tables import render
from claim2source.evaluation.analysis.news_errors import (
    ADDED,
    NO_FACT,
    OTHER,
    SECOND_HALF,
    ErrorConfig,
    errors_parts,
    proxy,
    sort_claims,
    write_errors,
)

FIRST = "masks reduced infections " * 60
SECOND = "otters carried viruses " * 60
LONG = Source("long", "Masks", FIRST + SECOND)
POST = "Otters carried 17 viruses: study"


@pytest.mark.parametrize(
    ("post", "article", "kind"),
    [
        ("Heartbreaking! what a mess this country became #COVID19", LONG, NO_FACT),
        ("Wow 17", LONG, NO_FACT),  # too few words
        (POST, LONG, SECOND_HALF),
        ("Masks reduced 17 infections", LONG, OTHER),
        # The halves of a short text are not told apart.
        (
            "Otters carried 17 viruses",
            Source("s", "Masks", "masks reduced otters carried viruses"),
            OTHER,
        ),
        (
            "Otters carried viruses, Trump must resign in disgrace now",
            Source("s", "", "otters"),
            ADDED,
        ),
        ("They say Trump must resign in disgrace over these deaths", LONG, ADDED),
    ],
)
def test_proxies(post: str, article: Source, kind: str) -> None:
    assert proxy(post, article, ErrorConfig()) == kind


def test_thresholds_are_settings() -> None:
    assert proxy("Wow 17", LONG, ErrorConfig(least_terms=1)) == ADDED
    assert proxy(POST, LONG, ErrorConfig(long_words=10**6)) == OTHER
    assert proxy(POST, LONG, ErrorConfig(long_words=10**6, added=0.2)) == ADDED


def data() -> tuple[Run, Dataset]:
    claims = tuple(Claim(str(i), POST, golds=("long",)) for i in range(4))
    qrels = Qrels({claim.id: {"long": 1} for claim in claims})
    ranked = {"0": 1, "1": 5, "2": 6}  # and claim 3 finds nothing
    others = [f"x{i}" for i in range(6)]
    run = Run.from_lists(
        {
            claim: [(s, 9.0 - i) for i, s in enumerate(others[: rank - 1] + ["long"])]
            for claim, rank in ranked.items()
        }
    )
    return run, Dataset(claims, (LONG, *map(Source, others)), qrels, "dev")


def test_a_failure_is_a_gold_below_the_cutoff_beside_the_others(tmp_path: Path) -> None:
    found = sort_claims(*data(), ErrorConfig())
    assert [one.rank for one in found] == [1, 5, 6, None]
    text = render(errors_parts(found, ErrorConfig()))
    assert "first 5: 2 of 4 claims" in text and "proxies" in text
    (line,) = (line for line in text.splitlines() if line.startswith(SECOND_HALF))
    assert line.split()[2:] == ["2", "100.0%", "2", "100.0%"]
    write_errors(found, ErrorConfig(), tmp_path / "errors.csv")
    with open(tmp_path / "errors.csv", encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["claim"], row["rank"], row["proxy"]) for row in rows] == [
        ("2", "6", SECOND_HALF),
        ("3", "", SECOND_HALF),
    ]
