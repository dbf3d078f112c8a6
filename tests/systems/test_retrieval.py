"""Settings of a retriever in a systems file: its claim form is set once for all its parts."""

from __future__ import annotations

from claim2source.search.bm25 import BM25
from claim2source.search.dense import Dense
from claim2source.search.fuse import Hybrid
from claim2source.search.routes import Routes
from claim2source.systems.retrieval import Retrieval
from claim2source.systems.runtime import SystemRuntime
from claim2source.text import Rendering


def test_the_form_of_claims_is_settled_for_all_parts_at_once() -> None:
    runtime = SystemRuntime()
    own = Retrieval(BM25(), claims="bilingual")
    routes = Retrieval(Routes({"de": (own,), "default": (Retrieval(BM25(b=1.0)),)}))
    hybrid = Retrieval(Hybrid(Retrieval(BM25(k1=2.0)), routes))
    forms = [part.claims for part in hybrid.settled("translated", runtime).walk()]
    assert forms == ["translated", "translated", "translated", "bilingual", "translated"]
    # Without a form the sparse part uses that of the dense one.
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
