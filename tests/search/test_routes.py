"""Hybrids and routes choose on val what their parts have for them."""

from __future__ import annotations

import pytest

from claim2source.core.errors import ConfigError
from claim2source.core.records import Dataset
from claim2source.core.run import Run
from claim2source.data.loading import load
from claim2source.search.bm25 import BM25
from claim2source.search.fuse import FusionConfig, Hybrid
from claim2source.search.routes import Routes


@pytest.fixture(scope="module")
def dev() -> Dataset:
    return load("demo", "dev")


def test_every_language_is_ranked_by_its_own_retriever(dev: Dataset) -> None:
    words, terms = BM25("whitespace"), BM25()
    result = Routes({"de": (words,), "default": (terms,)}).index(dev.sources).search(dev.claims, 5)
    german, others = (retriever.index(dev.sources) for retriever in (words, terms))
    for claim in dev.claims:
        own = (german if claim.lang == "de" else others).search([claim], 5)
        assert result.run.scored(claim.id) == own.run.scored(claim.id)
    with pytest.raises(ConfigError):
        Routes({"de": (words,)}).index(dev.sources).search(dev.claims)


def test_hybrids_and_routes_choose_on_val(dev: Dataset) -> None:
    """A part that ranks well gets the weight, and the language."""
    good, bad = BM25(), BM25(abstracts=False, stop_words=False, stemmer=False)
    hybrid, choice = Hybrid(bad, good).fit(dev, rule="best")
    assert hybrid.parts == (bad, good) and choice.best_score is not None
    default = Hybrid(bad, good, FusionConfig()).index(dev.sources).search(dev.claims)
    chosen = hybrid.index(dev.sources).search(dev.claims)
    first = {claim.id: claim.golds[0] for claim in dev.claims if claim.golds}

    def hits(run: Run) -> int:
        return sum(gold in run.sources(claim, 5) for claim, gold in first.items())

    assert hits(chosen.run) >= hits(default.run)
    routes, choices = Routes({"default": (bad, good)}).fit(dev, rule="best")
    assert {choice.what for choice in choices} == {"route en", "route de", "route fr"}
    ranked = routes.index(dev.sources).search(dev.claims, 5)
    assert hits(ranked.run) >= hits(bad.index(dev.sources).search(dev.claims, 5).run)
    assert not routes.is_open or set(routes.routes) > set(dev.languages)
