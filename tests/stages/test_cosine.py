"""Cosines of embeddings: those of sentence-transformers, also with sentence-T5's Dense layer."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from claim2source.core.files import write_json
from claim2source.data.store import Store
from claim2source.stages.max_sim import Cosine
from claim2source.stages.pairs import Pair
from tests.models.test_dense_layer import save_t5

st = pytest.importorskip("sentence_transformers")
CLAIMS, SOURCES = ["the user", "a b c d e f g"], ["in a thing", "the the user", "about a"]
PAIRS = [Pair(claim, source) for claim in CLAIMS for source in SOURCES][::-1]


def test_scores_are_sentence_transformers_cosines(tmp_path: Path) -> None:
    """Also of a model whose vectors are not of length one."""
    folder = save_t5(tmp_path, bias=False)
    modules = folder / "modules.json"
    write_json(modules, json.loads(modules.read_text())[:-1])  # without Normalize
    model = st.SentenceTransformer(str(folder), device="cpu")
    vectors = {text: model.encode(text) for text in CLAIMS + SOURCES}
    assert min(map(np.linalg.norm, vectors.values())) > 1.1
    expected = [float(st.util.cos_sim(vectors[p.claim], vectors[p.source])) for p in PAIRS]
    stage = Cosine(model=str(folder)).with_runtime(Store(tmp_path / "store"), "cpu")
    batch = stage.pair_scores(PAIRS)
    assert np.allclose(batch.scores, expected, atol=1e-5) and len(set(np.round(expected, 3))) > 4
    assert batch.tokens and not batch.reason and not batch.reused
    rerun = stage.pair_scores(PAIRS)
    assert (rerun.scores == batch.scores).all() and rerun.reused == len(PAIRS) and not rerun.tokens
