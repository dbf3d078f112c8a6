"""Cosines of embeddings: those of sentence-transformers, also with sentence-T5's Dense layer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from claim2source.io.store import Store
from claim2source.stages.max_sim import Cosine
from claim2source.stages.pairs import Pair
from tests.models.test_dense_layer import save_t5

st = pytest.importorskip("sentence_transformers")
CLAIMS, SOURCES = ["the user", "a b c d e f g"], ["in a thing", "the the user", "about a"]
PAIRS = [Pair(claim, source) for claim in CLAIMS for source in SOURCES][::-1]


def test_scores_are_sentence_transformers_cosines(tmp_path: Path) -> None:
    folder = save_t5(tmp_path, bias=False)
    model = st.SentenceTransformer(str(folder), device="cpu")
    vectors = {text: model.encode(text) for text in CLAIMS + SOURCES}
    expected = [float(st.util.cos_sim(vectors[p.claim], vectors[p.source])) for p in PAIRS]
    stage = Cosine(model=str(folder)).with_runtime(Store(tmp_path / "store"), "cpu")
    found = stage.pair_scores(PAIRS)
    assert np.allclose(found.scores, expected, atol=1e-5) and len(set(np.round(expected, 3))) > 4
    assert found.tokens and not found.why and not found.reused
    again = stage.pair_scores(PAIRS)
    assert (again.scores == found.scores).all() and again.reused == len(PAIRS) and not again.tokens


def test_vectors_that_are_not_of_length_one_are_made_so(tmp_path: Path) -> None:
    folder = save_t5(tmp_path, bias=False)
    modules = folder / "modules.json"
    text = modules.read_text()
    modules.write_text(text[: text.rindex("{")].rstrip().rstrip(",") + "]")
    model = st.SentenceTransformer(str(folder), device="cpu")
    one, other = model.encode([PAIRS[0].claim, PAIRS[0].source])
    assert np.linalg.norm(one) > 1.1
    found = Cosine(model=str(folder)).with_runtime(None, "cpu").pair_scores(PAIRS[:1])
    assert found.scores[0] == pytest.approx(float(st.util.cos_sim(one, other)), abs=1e-5)
