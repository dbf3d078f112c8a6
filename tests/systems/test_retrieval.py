"""What a systems file says of a retriever: its claim form is settled once, its store is no setting."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import pytest

from claim2source.core.records import Dataset
from claim2source.data.loading import load
from claim2source.data.store import Store
from claim2source.search.bm25 import BM25
from claim2source.search.dense import Dense
from claim2source.search.fuse import FusionConfig, Hybrid
from claim2source.search.routes import Routes
from claim2source.systems.retrieval import Retrieval
from claim2source.systems.runtime import SystemRuntime
from claim2source.text import Rendering


@pytest.fixture(scope="module")
def dev() -> Dataset:
    return load("demo", "dev")


def test_a_store_is_no_setting_and_stays_with_changed_settings(
    dev: Dataset, tmp_path: Path
) -> None:
    plain, stored = BM25(k1=1.5), BM25(k1=1.5, store=Store(tmp_path))
    assert plain == stored and repr(plain) == repr(stored) and "store" not in asdict(stored)
    changed = replace(stored, b=0.5)
    assert not changed.index(dev.sources).search(dev.claims).stored
    assert changed.index(dev.sources).search(dev.claims).stored
    assert not replace(plain, b=0.5).index(dev.sources).search(dev.claims).stored


def test_the_form_of_claims_is_settled_for_all_parts_at_once() -> None:
    runtime = SystemRuntime()
    own = Retrieval(BM25(), claims="bilingual")
    routes = Retrieval(Routes({"de": (own,), "default": (Retrieval(BM25(b=1.0)),)}))
    hybrid = Retrieval(Hybrid(Retrieval(BM25(k1=2.0)), routes))
    forms = [part.claims for part in hybrid.settled("translated", runtime).walk()]
    assert forms == ["translated", "translated", "translated", "bilingual", "translated"]
    # Without a form the sparse part reads what the dense one does.
    dense = Retrieval(Dense("no/model"), claims="paired")
    mixed = Retrieval(Hybrid(Retrieval(BM25()), dense)).settled(None, runtime)
    assert [part.claims for part in mixed.walk()] == ["paired"] * 3


def test_what_a_choice_is_remembered_by_tells_dense_models_apart() -> None:
    same = Dense("m", progress=True), Dense("m", device="cpu")
    others = [
        Dense("m", sources="title"),
        Dense("m", other_sources="title"),
        Dense("m", claim_length=9),
        Dense("m", rendering=Rendering("paired")),
        Dense("n"),
    ]
    assert same[0] == same[1] and len({repr(dense) for dense in (*same, *others)}) == 6


def test_hybrids_and_routes_choose_on_val(dev: Dataset) -> None:
    """A part that ranks well gets the weight, and the language."""
    good, bad = BM25(), BM25(abstracts=False, stop_words=False, stemmer=False)
    hybrid, choice = Hybrid(bad, good).fit(dev, rule="best")
    assert hybrid.parts == (bad, good) and choice.best_score is not None
    default = Hybrid(bad, good, FusionConfig()).index(dev.sources).search(dev.claims)
    chosen = hybrid.index(dev.sources).search(dev.claims)
    first = {claim.id: claim.golds[0] for claim in dev.claims if claim.golds}

    def hits(run: object) -> int:
        return sum(gold in run.sources(claim, 5) for claim, gold in first.items())  # type: ignore[attr-defined]

    assert hits(chosen.run) >= hits(default.run)
    routes, choices = Routes({"default": (bad, good)}).fit(dev, rule="best")
    assert {choice.what for choice in choices} == {"route en", "route de", "route fr"}
    ranked = routes.index(dev.sources).search(dev.claims, 5)
    assert hits(ranked.run) >= hits(bad.index(dev.sources).search(dev.claims, 5).run)
    assert not routes.is_open or set(routes.routes) > set(dev.languages)
