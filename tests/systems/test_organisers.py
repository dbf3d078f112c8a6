"""The organisers' baseline of 2026: its texts, prefixes and lengths."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from claim2source.core.errors import ConfigError
from claim2source.core.records import Claim, Source
from claim2source.models import ModelConfig
from claim2source.search.dense import Dense
from claim2source.systems.read import make_system, read_systems
from claim2source.systems.retrieval import Retrieval
from claim2source.systems.runtime import SystemRuntime
from claim2source.text.views import render_source
from tests.shared_data import REPOSITORY

FILE = REPOSITORY / "configs" / "systems" / "organisers_2026.yaml"


def test_the_baseline_is_set_as_the_organisers_do() -> None:
    dense = read_systems([FILE])["Organisers-2026"].first.retriever
    assert isinstance(dense, Dense) and isinstance(dense.model, ModelConfig)
    assert (dense.model.max_length, dense.claim_length) == (512, 128)
    assert (dense.model.template.claim, dense.model.template.source) == ("query: ", "passage: ")
    source = Source("1", "A title", "An abstract", ("Jane Doe", "R. Roe"), "A venue")
    text = render_source(source, dense.sources)
    assert text == "A title. A venue. An abstract. Jane Doe, R. Roe"
    assert render_source(Source("1", "A title"), dense.sources) == "A title"


def test_claims_are_cut_earlier_than_sources(
    tmp_path: Path, save_tiny: Callable[..., Path]
) -> None:
    model = ModelConfig(str(save_tiny(tmp_path / "m")), pooling="mean", max_length=24)
    words = " ".join(["masks"] * 6 + ["tea"] * 12)
    runtime = SystemRuntime(progress=False)
    short = runtime.load(model).encoder.with_claim_length(8)
    whole = runtime.load(model).encoder
    assert len(short.tokenize([words], "claim")[0].ids) == 8
    claims, sources = (short.encode([words], side)[0] for side in ("claim", "source"))
    assert np.array_equal(sources, whole.encode([words], "source")[0])
    assert not np.allclose(claims, whole.encode([words], "claim")[0])
    assert short.key() != whole.key()
    # As a system: its scores differ from those with whole claims, over the same sources.
    pool = [Source("a", "masks " * 6), Source("b", "tea " * 12)]
    dense = Dense(model, sources="title_abstract")
    scores = [
        Retrieval(one).index(pool, runtime).search([Claim("1", words)], 2).run.scored("1")
        for one in (dense, replace(dense, claim_length=8))
    ]
    assert scores[0].keys() == scores[1].keys() and scores[0] != scores[1]
    with pytest.raises(ConfigError) as error:
        Retrieval(replace(dense, claim_length=25)).index(pool, runtime)
    assert error.value.key == "claim_length"
    with pytest.raises(ConfigError):
        make_system("x", {"retrieve": {"dense": "m", "claim_length": 1}})
