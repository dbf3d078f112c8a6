"""Single similarities, each against its plain definition."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from claim2source.core.errors import ConfigError
from claim2source.core.records import Claim, Source
from claim2source.data.store import Store
from claim2source.models import ModelConfig, resolve
from claim2source.search.bm25 import BM25
from claim2source.stages.pairs import Runtime
from claim2source.stages.similarities import Scorer, ViewConfig, decimal_year
from tests.counting import loads
from tests.refusals import refused

SOURCES = [
    Source("s1", "Masks cut outbreaks", "We counted people. Masks work.", ("Ada Lovelace",), "Lancet", "2020-07-01"),
    Source("s2", "Work outbreaks", "Cut masks are worn by people.", ("B. Author",), "Nature", "2019"),
    Source("s3", "Tea", "Nothing here. Vaccines and paper", date="unknown"),
]  # fmt: skip


def scores(view: ViewConfig, text: str, ids: list[str], pool: list[Source] = SOURCES) -> list[float]:  # fmt: skip
    (values,) = Scorer(pool).scores(view, [Claim("c", text)], [ids])
    return values.tolist()


def test_bm25_is_that_of_the_pool_in_units_of_its_rarest_term_in_the_order_asked() -> None:
    config = BM25(k1=1.5, title_weight=2)
    own = config.index(SOURCES).search([Claim("c", "masks work")]).run.scored("c")
    values = scores(ViewConfig(bm25=config), "masks work", ["s3", "s2", "s1"])
    assert values == pytest.approx([0.0, *(own[s] / math.log1p(2.5 / 1.5) for s in ("s2", "s1"))])
    # A claim's own candidates do not restrict the scored ones.
    (with_candidates,) = Scorer(SOURCES).scores(
        ViewConfig(bm25=config), [Claim("c", "masks work", candidates=("s1",))], [["s2"]]
    )
    assert with_candidates.tolist() == pytest.approx([values[1]])


def test_parts_of_sources_are_read_alone() -> None:
    ids = ["s1", "s2", "s3"]

    def hits(part: str, text: str) -> list[bool]:
        return [score > 0 for score in scores(ViewConfig(part=part), text, ids)]  # type: ignore[arg-type]

    assert hits("title", "people outbreaks") == [True, True, False]
    assert hits("abstract", "outbreaks") == [False, False, False]
    assert hits("abstract", "worn counted") == [True, True, False]
    assert hits("all", "lovelace nature") == [False, False, False]
    assert hits("metadata", "lovelace nature masks tea") == [True, True, False]
    with_names = ViewConfig(bm25=BM25(metadata=True))
    assert [s > 0 for s in scores(with_names, "lovelace", ids)] == [True, False, False]


def test_a_part_that_a_source_lacks_is_unknown_and_not_a_bad_match() -> None:
    pool = [Source("t", "masks"), Source("a", "", "masks"), Source("v", "masks", "x", venue="BMJ")]
    parts = ("title", "abstract", "metadata", "all")
    known_parts = {
        part: [
            not math.isnan(s) for s in scores(ViewConfig(part=part), "tea", ["t", "a", "v"], pool)
        ]  # type: ignore[arg-type]
        for part in parts
    }
    assert known_parts == {
        "title": [True, False, True],
        "abstract": [False, True, True],
        "metadata": [False, False, True],
        "all": [True, True, True],
    }


def test_bigrams_need_words_in_a_row_and_characters_forgive_spelling() -> None:
    ids = ["s1", "s2", "s3"]
    # Stop words may separate the words of a bigram, and words are compared by their stems.
    assert scores(ViewConfig(terms="bigrams"), "outbreaks cut masks", ["s1"]) == [0]
    assert scores(ViewConfig(), "outbreaks cut masks", ["s1"]) > [0]
    values = scores(ViewConfig(terms="bigrams"), "a cut of the outbreak", ids)
    assert values[0] > 0 and values[1:] == [0, 0]
    # No bigram spans the title's last word and the abstract's first.
    assert scores(ViewConfig(terms="bigrams"), "outbreaks counted", ids) == [0, 0, 0]
    assert scores(ViewConfig(), "antivaccine", ids) == [0, 0, 0]
    assert scores(ViewConfig(terms="characters"), "antivaccine", ids)[2] > 0
    assert scores(ViewConfig(terms="characters", part="title"), "antivaccine", ids) == [0, 0, 0]


def test_cosines_are_the_encoders_and_the_best_sentence_the_best_of_them(tiny_folder: Path) -> None:
    model = ModelConfig(str(tiny_folder), pooling="cls", max_length=32, normalize=False)
    encoder = resolve(model, "cpu").encoder

    def unit(texts: list[str], side: str) -> np.ndarray:
        vectors, _ = encoder.encode(texts, side, store=None, progress=None)  # type: ignore[arg-type]
        return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))

    pool = [
        Source("a", "a vaccine", "b works. A c paper works! Query b"),
        Source("b", "paper", ""),
        Source("c", "", "c"),
    ]
    claim = unit(["a b works"], "claim")[0]
    ids = ["b", "a", "c"]
    full = unit(["paper", "a vaccine. b works. A c paper works! Query b", "c"], "source") @ claim
    view = ViewConfig(score="cosine", model=model)
    assert scores(view, "a b works", ids, pool) == pytest.approx(full.tolist(), abs=1e-5)
    titles = unit(["paper", "a vaccine"], "source") @ claim
    view = ViewConfig(score="cosine", part="title", model=model)
    *values, unknown = scores(view, "a b works", ids, pool)
    assert values == pytest.approx(titles.tolist(), abs=1e-5) and math.isnan(unknown)
    parts = unit(["a vaccine", "b works.", "A c paper works!", "Query b"], "source") @ claim
    expected = [full[0], parts.max(), full[2]]
    view = ViewConfig(score="best_sentence", model=model)
    assert scores(view, "a b works", ids, pool) == pytest.approx(expected, abs=1e-5)
    assert parts.max() - parts.min() > 0.01


def test_a_model_is_loaded_once_and_let_go_for_another(
    tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For its key, for scores from the store and for fresh ones alike."""
    counts = loads(monkeypatch)
    model = ModelConfig(str(tiny_folder), pooling="mean", max_length=32)
    cosine = ViewConfig(score="cosine", model=model)
    # Sentences use the same encoder, so no other model; another length is another model.
    views = [cosine, replace(cosine, score="best_sentence")]
    longer = replace(cosine, model=replace(model, max_length=16))
    claims, lists = [Claim("c", "a b"), Claim("d", "b c")], [["s1"], ["s2"]]

    def ask(scorer: Scorer, view: ViewConfig) -> str:
        scorer.key(view)
        stored = scorer.scores(view, claims, lists)
        fresh = scorer.scores(view, claims, lists, fresh=True)
        assert np.concatenate(stored) == pytest.approx(np.concatenate(fresh))
        return scorer.key(view)

    scorer = Scorer(SOURCES, Runtime(Store(tmp_path / "store"), "cpu"))
    for turn in (1, 2):
        for view in (*views, longer):
            ask(scorer, view)
        assert counts == {"encoders": 2 * turn}
    # Several may stay.
    counts.clear()
    all_models = Scorer(SOURCES, Runtime(None, "cpu"), several=True)
    assert len({ask(all_models, view) for view in [*views, longer] * 2}) == 2
    # Another pool's scorer shares them.
    ask(all_models.for_sources(SOURCES), longer)
    assert counts == {"encoders": 2}


def test_another_version_of_a_library_is_no_other_model(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To a fusion; vectors in the store are of one version."""
    model = ModelConfig(str(tiny_folder), pooling="mean", max_length=32)
    view = ViewConfig(score="cosine", model=model)

    def key_and_identity() -> tuple[str, object]:
        scorer = Scorer(SOURCES)
        return scorer.key(view), scorer.resolved(view).encoder.key()

    key, identity = key_and_identity()
    monkeypatch.setattr("claim2source.models.identity.version", lambda name: "0")
    now, changed = key_and_identity()
    assert key == now and identity != changed


def test_fresh_vectors_are_neither_read_from_the_store_nor_written(
    tmp_path: Path, tiny_folder: Path
) -> None:
    model = ModelConfig(str(tiny_folder), pooling="mean", max_length=32)
    scorer = Scorer(SOURCES, Runtime(Store(tmp_path / "store"), "cpu"))
    view, encoded = ViewConfig(score="cosine", model=model), []
    encoder = scorer.resolved(view).encoder
    real = encoder.encode

    def encode(
        texts: Sequence[str], side: str, *, store: Store | None, progress: str | None
    ) -> Any:
        vectors, note = real(texts, side, store=store, progress=progress)  # type: ignore[arg-type]
        encoded.append((side, store is not None))
        return vectors, note

    object.__setattr__(encoder, "encode", encode)
    for fresh in (True, False):
        encoded.clear()
        scorer.scores(view, [Claim("c", "a b")], [["s1", "s2"]], fresh=fresh)
        assert encoded == [("source", True), ("claim", not fresh)]


def test_years_are_read_with_their_month_and_are_unknown_without_a_date() -> None:
    years = scores(ViewConfig(score="year"), "x", ["s1", "s2", "s3"])
    assert years[:2] == [2020.5, 2019.0] and math.isnan(years[2])
    assert decimal_year("2021-13") == 2021.0 and math.isnan(decimal_year(""))
    # As people and registries write them, too.
    assert decimal_year("2021-04-30") == decimal_year("30 April 2021") == 2021.25
    assert decimal_year("Spring 2003") == 2003.0 and math.isnan(decimal_year("soon"))


def test_nothing_is_asked_for_a_claim_without_candidates(tiny_folder: Path) -> None:
    model = ModelConfig(str(tiny_folder), pooling="mean", max_length=32)
    for view in (ViewConfig(), ViewConfig(score="best_sentence", model=model), ViewConfig(score="year")):  # fmt: skip
        lists = Scorer(SOURCES).scores(view, [Claim("c", "a"), Claim("d", "b")], [[], ["s1"]])
        assert [len(one) for one in lists] == [0, 1], view


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"score": "best_sentence", "part": "title"}, "part"),
        ({"score": "cosine", "terms": "bigrams"}, "terms"),
        ({"score": "cosine", "part": "metadata"}, "part"),
        ({"terms": "bigrams", "part": "metadata"}, "part"),
        ({"score": "year", "model": ModelConfig()}, "model"),
        ({"model": ModelConfig()}, "model"),
        ({"bm25": BM25("whitespace")}, "bm25.analysis"),
    ],
)
def test_a_view_that_means_nothing_is_refused(settings: dict[str, object], key: str) -> None:
    with refused(ConfigError, key):
        ViewConfig(**settings)  # type: ignore[arg-type]
