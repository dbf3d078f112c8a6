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
    Source(
        "s1",
        "Masks cut outbreaks",
        "We counted people. Masks work.",
        ("Ada Lovelace",),
        "Lancet",
        "2020-07-01",
    ),
    Source(
        "s2",
        "Work outbreaks",
        "Cut masks are worn by people.",
        ("B. Author",),
        "Nature",
        "2019",
    ),
    Source(
        "s3",
        "Tea",
        "Nothing here. Vaccines and paper",
        date="unknown",
    ),
]


def scores(
    view: ViewConfig,
    text: str,
    ids: list[str],
    pool: list[Source] = SOURCES,
) -> list[float]:
    claim = Claim("c", text)
    (values,) = Scorer(pool).scores(view, [claim], [ids])
    return values.tolist()


def mean_model(folder: Path) -> ModelConfig:
    """A small encoder with mean pooling."""
    return ModelConfig(str(folder), pooling="mean", max_length=32)


def test_bm25_is_that_of_the_pool_in_units_of_its_rarest_term_in_the_order_asked() -> None:
    config = BM25(k1=1.5, title_weight=2)
    view = ViewConfig(bm25=config)
    claim = Claim("c", "masks work")
    own = config.index(SOURCES).search([claim]).run.scored("c")
    values = scores(view, "masks work", ["s3", "s2", "s1"])
    rarest = math.log1p(2.5 / 1.5)
    expected = [
        0.0,
        own["s2"] / rarest,
        own["s1"] / rarest,
    ]
    assert values == pytest.approx(expected)

    # A claim's own candidates do not restrict the scored ones.
    with_own = Claim("c", "masks work", candidates=("s1",))
    (with_candidates,) = Scorer(SOURCES).scores(view, [with_own], [["s2"]])
    assert with_candidates.tolist() == pytest.approx([values[1]])


def test_parts_of_sources_are_read_alone() -> None:
    ids = ["s1", "s2", "s3"]

    def hits(part: str, text: str) -> list[bool]:
        view = ViewConfig(part=part)  # type: ignore[arg-type]
        return [score > 0 for score in scores(view, text, ids)]

    assert hits("title", "people outbreaks") == [True, True, False]
    assert hits("abstract", "outbreaks") == [False, False, False]
    assert hits("abstract", "worn counted") == [True, True, False]
    assert hits("all", "lovelace nature") == [False, False, False]
    assert hits("metadata", "lovelace nature masks tea") == [True, True, False]
    with_names = ViewConfig(bm25=BM25(metadata=True))
    values = scores(with_names, "lovelace", ids)
    assert [value > 0 for value in values] == [True, False, False]


def test_a_part_that_a_source_lacks_is_unknown_and_not_a_bad_match() -> None:
    pool = [
        Source("t", "masks"),
        Source("a", "", "masks"),
        Source("v", "masks", "x", venue="BMJ"),
    ]
    known_parts: dict[str, list[bool]] = {}
    for part in ("title", "abstract", "metadata", "all"):
        view = ViewConfig(part=part)  # type: ignore[arg-type]
        values = scores(view, "tea", ["t", "a", "v"], pool)
        known_parts[part] = [not math.isnan(value) for value in values]
    assert known_parts == {
        "title": [True, False, True],
        "abstract": [False, True, True],
        "metadata": [False, False, True],
        "all": [True, True, True],
    }


def test_bigrams_need_words_in_a_row_and_characters_forgive_spelling() -> None:
    ids = ["s1", "s2", "s3"]
    words = ViewConfig()
    bigrams = ViewConfig(terms="bigrams")
    # Stop words may separate the words of a bigram, and words are compared by their stems.
    assert scores(bigrams, "outbreaks cut masks", ["s1"]) == [0]
    assert scores(words, "outbreaks cut masks", ["s1"]) > [0]
    first, *others = scores(bigrams, "a cut of the outbreak", ids)
    assert first > 0
    assert others == [0, 0]
    # No bigram spans the title's last word and the abstract's first.
    assert scores(bigrams, "outbreaks counted", ids) == [0, 0, 0]

    characters = ViewConfig(terms="characters")
    characters_of_title = ViewConfig(terms="characters", part="title")
    assert scores(words, "antivaccine", ids) == [0, 0, 0]
    assert scores(characters, "antivaccine", ids)[2] > 0
    assert scores(characters_of_title, "antivaccine", ids) == [0, 0, 0]


def test_cosines_are_the_encoders_and_the_best_sentence_the_best_of_them(tiny_folder: Path) -> None:
    model = ModelConfig(
        str(tiny_folder),
        pooling="cls",
        max_length=32,
        normalize=False,
    )
    encoder = resolve(model, "cpu").encoder

    def unit(texts: list[str], side: str) -> np.ndarray:
        vectors, _ = encoder.encode(texts, side, store=None, progress=None)  # type: ignore[arg-type]
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        return np.asarray(vectors / lengths)

    pool = [
        Source("a", "a vaccine", "b works. A c paper works! Query b"),
        Source("b", "paper", ""),
        Source("c", "", "c"),
    ]
    text = "a b works"
    claim = unit([text], "claim")[0]
    ids = ["b", "a", "c"]

    full_texts = [
        "paper",
        "a vaccine. b works. A c paper works! Query b",
        "c",
    ]
    full = unit(full_texts, "source") @ claim
    view = ViewConfig(score="cosine", model=model)
    values = scores(view, text, ids, pool)
    assert values == pytest.approx(full.tolist(), abs=1e-5)

    titles = unit(["paper", "a vaccine"], "source") @ claim
    view = ViewConfig(score="cosine", part="title", model=model)
    *values, unknown = scores(view, text, ids, pool)
    assert values == pytest.approx(titles.tolist(), abs=1e-5)
    assert math.isnan(unknown)

    sentences = [
        "a vaccine",
        "b works.",
        "A c paper works!",
        "Query b",
    ]
    parts = unit(sentences, "source") @ claim
    expected = [full[0], parts.max(), full[2]]
    view = ViewConfig(score="best_sentence", model=model)
    values = scores(view, text, ids, pool)
    assert values == pytest.approx(expected, abs=1e-5)
    assert parts.max() - parts.min() > 0.01


def test_a_model_is_loaded_once_and_let_go_for_another(
    tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For its key, for scores from the store and for fresh ones alike."""
    counts = loads(monkeypatch)
    model = mean_model(tiny_folder)
    cosine = ViewConfig(score="cosine", model=model)
    # Sentences use the same encoder, so no other model; another length is another model.
    sentence = replace(cosine, score="best_sentence")
    longer_model = replace(model, max_length=16)
    longer = replace(cosine, model=longer_model)
    views = (cosine, sentence, longer)
    claims = [Claim("c", "a b"), Claim("d", "b c")]
    lists = [["s1"], ["s2"]]

    def ask(scorer: Scorer, view: ViewConfig) -> str:
        scorer.key(view)
        stored = scorer.scores(view, claims, lists)
        fresh = scorer.scores(view, claims, lists, fresh=True)
        stored_values = np.concatenate(stored)
        fresh_values = np.concatenate(fresh)
        assert stored_values == pytest.approx(fresh_values)
        return scorer.key(view)

    store = Store(tmp_path / "store")
    scorer = Scorer(SOURCES, Runtime(store, "cpu"))
    for turn in (1, 2):
        for view in views:
            ask(scorer, view)
        assert counts == {"encoders": 2 * turn}
    # Several may stay.
    counts.clear()
    all_models = Scorer(SOURCES, Runtime(None, "cpu"), several=True)
    keys = {ask(all_models, view) for view in views * 2}
    assert len(keys) == 2
    # Another pool's scorer shares them.
    of_another_pool = all_models.for_sources(SOURCES)
    ask(of_another_pool, longer)
    assert counts == {"encoders": 2}


def test_another_version_of_a_library_is_no_other_model(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To a fusion; vectors in the store are of one version."""
    model = mean_model(tiny_folder)
    view = ViewConfig(score="cosine", model=model)

    def key_and_identity() -> tuple[str, object]:
        scorer = Scorer(SOURCES)
        key = scorer.key(view)
        encoder = scorer.resolved(view).encoder
        return key, encoder.key()

    key, identity = key_and_identity()
    monkeypatch.setattr("claim2source.models.identity.version", lambda name: "0")
    now, changed = key_and_identity()
    assert key == now
    assert identity != changed


def test_fresh_vectors_are_neither_read_from_the_store_nor_written(
    tmp_path: Path, tiny_folder: Path
) -> None:
    model = mean_model(tiny_folder)
    store = Store(tmp_path / "store")
    scorer = Scorer(SOURCES, Runtime(store, "cpu"))
    view = ViewConfig(score="cosine", model=model)
    encoded: list[tuple[str, bool]] = []
    encoder = scorer.resolved(view).encoder
    real = encoder.encode

    def encode(
        texts: Sequence[str],
        side: str,
        *,
        store: Store | None,
        progress: str | None,
    ) -> Any:
        vectors, note = real(texts, side, store=store, progress=progress)  # type: ignore[arg-type]
        has_store = store is not None
        encoded.append((side, has_store))
        return vectors, note

    object.__setattr__(encoder, "encode", encode)
    for fresh in (True, False):
        encoded.clear()
        claim = Claim("c", "a b")
        scorer.scores(view, [claim], [["s1", "s2"]], fresh=fresh)
        assert encoded == [("source", True), ("claim", not fresh)]


def test_years_are_read_with_their_month_and_are_unknown_without_a_date() -> None:
    years = scores(ViewConfig(score="year"), "x", ["s1", "s2", "s3"])
    assert years[:2] == [2020.5, 2019.0]
    assert math.isnan(years[2])
    assert decimal_year("2021-13") == 2021.0
    assert math.isnan(decimal_year(""))
    # As people and registries write them, too.
    assert decimal_year("2021-04-30") == 2021.25
    assert decimal_year("30 April 2021") == 2021.25
    assert decimal_year("Spring 2003") == 2003.0
    assert math.isnan(decimal_year("soon"))


def test_nothing_is_asked_for_a_claim_without_candidates(tiny_folder: Path) -> None:
    model = mean_model(tiny_folder)
    claims = [Claim("c", "a"), Claim("d", "b")]
    views = (
        ViewConfig(),
        ViewConfig(score="best_sentence", model=model),
        ViewConfig(score="year"),
    )
    for view in views:
        scorer = Scorer(SOURCES)
        lists = scorer.scores(view, claims, [[], ["s1"]])
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
