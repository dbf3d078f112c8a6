"""Moves of golds by stages, verifiers' requests, and every claim's ranks in the stages."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from claim2source.core.errors import UserError
from claim2source.core.records import Claim, Dataset, Qrels, Source
from claim2source.core.run import Result, Run
from claim2source.evaluation.html.page import trace_page, traced_claims
from claim2source.evaluation.ranks import Moves, gold_moves, verifier_note


def ranked(order: Sequence[str]) -> list[tuple[str, float]]:
    """Give the sources scores of this order."""
    return [(source, -float(rank)) for rank, source in enumerate(order)]


def test_moves_of_golds_are_counted_by_hand() -> None:
    """Golds g: from 2 to 1, from 1 to 3, from 4 (beyond the depth) to 4, never found."""
    orders = {
        "a": ("xgyz", "gxyz"),
        "b": ("gxyz", "xygz"),
        "c": ("xyzg", "zyxg"),
        "d": ("x", "x"),
    }
    before = Run.from_lists({claim: ranked(order[0]) for claim, order in orders.items()})
    after = Run.from_lists({claim: ranked(order[1]) for claim, order in orders.items()})

    claims: list[Claim] = []
    for claim in orders:
        lang = "de" if claim == "d" else "en"
        claims.append(Claim(claim, claim, lang, golds=("g",)))
    sources = tuple(map(Source, "gxyz"))
    qrels = Qrels({claim: {"g": 1} for claim in orders})
    data = Dataset(tuple(claims), sources, qrels, "dev")
    moves = gold_moves(before, after, data, depth=3)
    assert moves == {
        "en": Moves(3, 2 / 3, 1, 1, 1, 1),
        "de": Moves(1, 0.0, 0, 0, 0, 0),
        "macro": Moves(4, 1 / 3, 1, 1, 1, 1),
    }


def test_a_verifiers_work_and_its_price_are_counted() -> None:
    run = Run.from_lists({c: [("x", 1.0)] for c in "abcd"})
    details = {
        "a": {"asks": 4, "tokens": 100},
        "b": {"asks": 2, "tokens": 50},
        "c": {"asks": 0, "tokens": 0},
    }
    moves = Moves(4, 1.0, 3, 1, 1, 1)
    verified = Result(run, details=details)
    note = verifier_note(verified, moves)
    assert note is not None
    # Requests, tokens, claims with requests of all claims, promoted, tokens for each, demoted.
    numbers = re.findall(r"[\d.]+", note)
    assert numbers == [
        "6",
        "150",
        "2",
        "4",
        "50.0",
        "3",
        "50",
        "1",
    ]
    not_verified = Result(run)
    assert verifier_note(not_verified, moves) is None


def test_the_page_follows_every_candidate_and_escapes_it(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>"
    sources = tuple(Source(key, f"{key} {evil}") for key in "gxyz")
    first_claim = Claim(
        "1",
        f"post {evil}",
        "en",
        f"also {evil}",
        ("g",),
    )
    second_claim = Claim("2", "b", "de")
    claims = (first_claim, second_claim)
    qrels = Qrels({"1": {"g": 1}})
    data = Dataset(claims, sources, qrels, "dev")
    runs: dict[str, Run] = {}
    for number, order in enumerate(("xyg", "xgy", "gx")):
        lists = {"1": ranked(order), "2": [("x", 1.0)]}
        name = f"{evil} {number}"
        runs[name] = Run.from_lists(lists)

    entry = traced_claims(runs, data)[0]
    assert entry.tag == "to rank 1"
    assert entry.ranks == "3 2 1"
    rows = []
    for candidate in entry.candidates:
        letter = candidate.title[0]
        rows.append((letter, candidate.gold, *candidate.ranks))
    assert rows == [
        ("g", True, "3", "2↑", "1↑"),
        ("x", False, "1", "1", "2↓"),
        ("y", False, "2", "3↓", "-↓"),
    ]

    way = tmp_path / "way.html"
    trace_page(runs, data, way, title=evil)
    page = way.read_text(encoding="utf-8")
    assert "<script>alert" not in page
    assert page.count("&lt;script&gt;alert(1)") >= 10
    # Of the one gold: from rank 3 to 1, first from 3 to 2.
    assert "From the first stage to the last: 1 gold promoted (1 to rank 1), 0 demoted" in page
    assert "1: 1 gold promoted (0 to rank 1), 0 demoted (0 from rank 1), 0 as before" in page
    assert page.count("<script>") == 1
    assert "default-src 'none'" in page

    mine = tmp_path / "mine.html"
    mine.write_text("<p>mine</p>")
    with pytest.raises(UserError):
        trace_page(runs, data, mine, title="x")
