"""An index without vectors encodes BM25's first papers when a post comes, each of them once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from claim2source.core.errors import UserError
from claim2source.core.records import Claim
from claim2source.data.loading import load
from claim2source.data.papers import Paper
from claim2source.data.posts import Post
from claim2source.data.store import Store
from claim2source.find.calibrate import calibrate
from claim2source.find.finder import Finder
from claim2source.models import ModelConfig
from claim2source.models.config import NUMPY
from claim2source.search.bm25 import BM25
from claim2source.search.dense import Dense
from claim2source.search.engine import Engine
from claim2source.search.fuse import FusionConfig
from claim2source.search.growing import grow, open_for_writing, re_encode, undo_re_encoding
from claim2source.search.rows import Where
from claim2source.systems.read import read_staged
from tests.refusals import refused

DEV = load("demo", "dev")
POSTS = [claim for claim in DEV.claims if claim.lang == "en"][:3]
MINILM = ModelConfig()

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def dense() -> Dense:
    return Dense(MINILM, device=NUMPY, recorded=MINILM)


def make(folder: Path, dense: Dense, vectors: bool) -> Engine:
    engine = open_for_writing(
        folder,
        dense,
        sentences=False,
        vectors=vectors,
    )
    papers = map(Paper, DEV.sources[:40])
    grow(engine, papers, dense)
    engine.close()
    return engine


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory, dense: Dense) -> Engine:
    folder = tmp_path_factory.mktemp("full")
    return make(folder / "index", dense, True)


@pytest.fixture
def bare(tmp_path: Path, dense: Dense) -> Engine:
    return make(tmp_path / "bare", dense, False)


def counted(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts of papers that the engine's encoder gets from now on."""
    given: list[str] = []
    real = engine.encoder.encode

    def encode(
        texts: Sequence[str],
        side: Any,
        **options: Any,
    ) -> Any:
        if side == "source":
            given.extend(texts)
        return real(texts, side, **options)

    monkeypatch.setattr(engine.encoder, "encode", encode)
    return given


def test_the_first_papers_score_as_an_index_of_vectors_scores_them(
    full: Engine, bare: Engine
) -> None:
    assert not full.manifest.encoded_first
    assert bare.manifest.encoded_first
    assert "vector" not in bare._table.schema.names
    theirs = full.find(POSTS)
    ours = bare.find(POSTS)
    ours_first = bare.manifest.encoded_first
    for claim in POSTS:
        by_words = ours.lexical.run
        their_words = theirs.lexical.run
        assert by_words.scored(claim.id) == their_words.scored(claim.id)

        scores = ours.dense.run.scored(claim.id)
        all_scores = theirs.dense.run.scored(claim.id)
        first = by_words.sources(claim.id, ours_first)
        assert set(scores) == set(first)
        expected = {key: all_scores[key] for key in scores}
        assert scores == pytest.approx(expected, abs=2e-3)

        best = ours.fused.run.sources(claim.id, 1)
        assert best == theirs.fused.run.sources(claim.id, 1)


def test_only_the_first_are_encoded_and_never_twice(
    bare: Engine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bare.manifest = replace(bare.manifest, encoded_first=7)
    given = counted(bare, monkeypatch)
    bare.store = Store(tmp_path / "store")
    posts = POSTS[:1]
    claim_id = POSTS[0].id
    first = bare.find(posts)
    scores = first.fused.run.scored(claim_id)
    assert len(given) == len(set(given)) == 7
    again = bare.find(posts)
    assert len(given) == 7
    assert again.fused.run.scored(claim_id) == scores
    bare.close()

    # Another process finds them in the store.
    other = Engine.open(bare.location)
    other.manifest = replace(other.manifest, encoded_first=7)
    other.use(bare.encoder)
    other.store = Store(tmp_path / "store")
    theirs = other.find(posts)
    near = pytest.approx(scores, abs=1e-6)
    assert theirs.fused.run.scored(claim_id) == near
    assert len(given) == 7

    bare.fusion = FusionConfig(missing="scored")  # then all that terms rank have scores
    found = bare.find(posts)
    assert len(found.dense.run) == len(found.lexical.run)


def test_filters_candidates_and_posts_without_a_known_word(bare: Engine) -> None:
    only = tuple(source.id for source in DEV.sources[:4])
    where = Where(ids=only)
    found = bare.find(POSTS[:1], where=where)
    listed = found.dense.run.sources(POSTS[0].id)
    assert set(listed) <= set(only)

    two = only[:2]
    pooled = replace(POSTS[0], candidates=two)
    bound = bare.find([pooled]).fused
    assert set(bound.run.sources(pooled.id)) <= set(two)

    unknown = Claim("x", "zzqx wwvv", "en")
    fused = bare.find([unknown, *POSTS[:1]]).fused
    assert fused.run.sources("x") == []
    failed = [failure.claim_id for failure in fused.failures]
    assert failed == ["x"]

    vector = np.ones(384)
    with pytest.raises(UserError):
        bare.dense(vector, 3)


def test_answers_have_findings_and_abstention_and_refuse_systems_of_vectors(
    bare: Engine, tmp_path: Path
) -> None:
    abstention = calibrate(bare, load("demo", "dev"))
    bare.note(abstain=abstention.as_json())
    post = Post("0", POSTS[0].text)
    (answer,) = Finder(bare).find([post], 3)
    first = answer.matches[0]
    assert answer.present is not None
    assert first.sentence
    assert set(first.parts) == {"lexical", "dense", "fused"}
    assert answer.of is not None
    assert answer.of.settings["encoded_first"]

    german_post = Post("1", "Masken helfen gegen Covid", lang="de")
    (german,) = Finder(bare).find([german_post])
    assert german.warnings
    file = tmp_path / "dense.yaml"
    file.write_text(f"retrieve: {{dense: {{name: {MINILM.name}}}}}\nstages: [{{rerank: cosine}}]\n")
    with refused(UserError, "vectors"):
        Finder(bare, read_staged(file, None))


def test_another_model_only_changes_the_manifest(bare: Engine, dense: Dense) -> None:
    shorter = replace(MINILM, max_length=64)
    other = Dense(shorter, device=NUMPY, recorded=shorter)
    before = bare.files.listed("papers.lance")
    changed = re_encode(bare, other)
    assert changed.files.listed("papers.lance") == before
    assert changed.manifest.model == shorter
    assert changed.manifest.encoded_first
    changed.use(other.encoder)
    found = changed.find(POSTS[:1])
    assert len(found.dense.run)
    bare.close()
    again = open_for_writing(bare.location, dense, BM25())
    again.delete([DEV.sources[0].id])
    again.build()
    assert undo_re_encoding(again).model == MINILM
    again.close()
    assert Engine.open(bare.location).manifest.papers == 39
