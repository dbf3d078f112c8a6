"""Moves of golds by stages, verifiers' requests, and every claim's ranks in the stages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from claim2source.core.errors import UserError
from claim2source.core.records import Claim, Dataset, Qrels, Source
from claim2source.core.run import Result, Run
from claim2source.evaluation.html.page import trace_page, traced_claims
from claim2source.evaluation.ranks import Moves, gold_moves, verifier_note


def test_moves_of_golds_are_counted_by_hand() -> None:
    """Golds g: from 2 to 1, from 1 to 3, from 4 (beyond the depth) to 4, never found."""
    orders = {"a": ("xgyz", "gxyz"), "b": ("gxyz", "xygz"), "c": ("xyzg", "zyxg"), "d": ("x", "x")}
    runs = [
        Run.from_lists({c: [(s, -float(i)) for i, s in enumerate(o[n])] for c, o in orders.items()})
        for n in (0, 1)
    ]
    claims = tuple(Claim(c, c, "de" if c == "d" else "en", golds=("g",)) for c in orders)
    qrels = Qrels({claim: {"g": 1} for claim in orders})
    data = Dataset(claims, tuple(map(Source, "gxyz")), qrels, "dev")
    moves = gold_moves(*runs, data, depth=3)
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
    note = verifier_note(Result(run, details=details), moves)
    assert note is not None
    # Requests, tokens, claims with requests of all claims, promoted, tokens for each, demoted.
    assert re.findall(r"[\d.]+", note) == ["6", "150", "2", "4", "50.0", "3", "50", "1"]
    assert verifier_note(Result(run), moves) is None


def test_the_page_follows_every_candidate_and_escapes_it(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>"
    sources = tuple(Source(key, f"{key} {evil}") for key in "gxyz")
    claims = (Claim("1", f"post {evil}", "en", f"also {evil}", ("g",)), Claim("2", "b", "de"))
    data = Dataset(claims, sources, Qrels({"1": {"g": 1}}), "dev")
    runs = {
        f"{evil} {i}": Run.from_lists(
            {"1": [(s, -float(n)) for n, s in enumerate(order)], "2": [("x", 1.0)]}
        )
        for i, order in enumerate(("xyg", "xgy", "gx"))
    }
    entry = traced_claims(runs, data)[0]
    assert (entry.tag, entry.ranks) == ("to rank 1", "3 2 1")
    assert [
        (candidate.title[0], candidate.gold, *candidate.ranks) for candidate in entry.candidates
    ] == [
        ("g", True, "3", "2↑", "1↑"),
        ("x", False, "1", "1", "2↓"),
        ("y", False, "2", "3↓", "-↓"),
    ]
    trace_page(runs, data, tmp_path / "way.html", title=evil)
    page = (tmp_path / "way.html").read_text(encoding="utf-8")
    assert "<script>alert" not in page and page.count("&lt;script&gt;alert(1)") >= 10
    # Of the one gold: from rank 3 to 1, first from 3 to 2.
    assert "From the first stage to the last: 1 gold promoted (1 to rank 1), 0 demoted" in page
    assert "1: 1 gold promoted (0 to rank 1), 0 demoted (0 from rank 1), 0 as before" in page
    assert page.count("<script>") == 1 and "default-src 'none'" in page
    (tmp_path / "mine.html").write_text("<p>mine</p>")
    with pytest.raises(UserError):
        trace_page(runs, data, tmp_path / "mine.html", title="x")
