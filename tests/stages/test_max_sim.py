"""MaxSim of token vectors: against the plain definition, and as a stage of a system."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import claim2source as c2s
from claim2source.core.records import Claim, Source
from claim2source.core.run import Run
from claim2source.io.store import Store
from claim2source.models import ModelConfig, Template, resolve
from claim2source.stages.max_sim import MaxSim
from claim2source.stages.pairs import Pair
from claim2source.systems.nodes import BM25Node
from claim2source.systems.stages import load_stages


def plain(folder: Path, claim: str, source: str) -> float:
    """A text at a time, without batches: the mean over the claim's tokens of the best cosine."""
    encoder = resolve(ModelConfig(str(folder), pooling="mean", max_length=64), "cpu").encoder

    def vectors(text: str) -> torch.Tensor:
        ids = encoder.tokenizer(text, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            hidden = encoder.model(ids).last_hidden_state[0]
        return hidden / hidden.norm(dim=1, keepdim=True)

    return float((vectors(claim) @ vectors(source).T).max(dim=1).values.mean())


def test_scores_are_the_plain_definitions_whatever_is_in_the_batch(tiny_folder: Path) -> None:
    claims = ["a b c", "vaccine works", "a : b . c claim paper query passage a b c"]
    sources = ["a", "c b a paper works", "query passage vaccine " * 6, "claim ."]
    pairs = [Pair(claim, source) for claim in claims for source in sources][::-1]
    stage = MaxSim(model=str(tiny_folder), max_length=64)
    found = np.full(len(pairs), np.nan)
    tokens = 0
    for batch in stage.score(pairs):
        found[list(batch.places)] = batch.scores
        tokens += batch.tokens
    expected = [plain(tiny_folder, *pair) for pair in pairs]
    assert np.allclose(found, expected, atol=1e-5)
    assert len(np.unique(found.round(4))) > 9
    # Each text is read once, however many pairs it is in.
    tokenizer = stage.encoder.tokenizer
    assert tokens == sum(len(tokenizer(text)["input_ids"]) for text in claims + sources)


def test_a_masked_prefix_has_no_part_in_the_score(
    tmp_path: Path, save_tiny: Callable[..., Path]
) -> None:
    folder = save_tiny(tmp_path / "model")
    template = Template(claim="query : ", source="passage : ", pool_prefix=False)
    config = ModelConfig(str(folder), pooling="cls", max_length=64, template=template)
    encoder = resolve(config, "cpu").encoder
    ((_, found, _),) = encoder.token_vectors(["a b", "a b"], "claim")
    ids = encoder.tokenizer("query : a b")["input_ids"]
    assert [len(vectors) for vectors in found] == [len(ids) - 3] * 2  # a, b and [SEP]
    assert torch.allclose(found[0].norm(dim=1), torch.ones(3), atol=1e-6)


def test_another_model_or_length_has_scores_of_its_own(
    tmp_path: Path, tiny_folder: Path, save_tiny: Callable[..., Path]
) -> None:
    store, other = Store(tmp_path / "store"), save_tiny(tmp_path / "other", seed=1)
    run = Run.from_lists({"0": [("a", 2.0), ("b", 1.0)]})
    sources = [Source("a", "a b claim works"), Source("b", "vaccine paper b c a b c a b c")]

    def reused(**settings: Any) -> int:
        stage = MaxSim(**{"model": str(tiny_folder), "max_length": 64} | settings).with_runtime(
            store, "cpu"
        )
        return stage.apply([Claim("0", "a claim b")], sources, run).cost.reused

    assert [reused(), reused(), reused(model=str(other)), reused(max_length=8)] == [0, 2, 0, 0]
    assert reused(depth=1, mix=0.5) == 1


def test_a_system_names_it_and_ranks_deeper_where_it_looks_deeper(tiny_folder: Path) -> None:
    """The first stage of a system ranks as deep as its re-ranker looks, not 100."""
    entry = {"rerank": "max_sim", "model": str(tiny_folder), "max_length": 64, "depth": 120}
    ((name, stage),) = load_stages([entry])
    assert name == "rerank max_sim"
    assert stage == MaxSim(model=str(tiny_folder), max_length=64, depth=120)
    dev = c2s.load("demo", "dev").in_languages(["en"])
    dev = dev.with_claims(dev.claims[:3])
    system = c2s.System("BM25", BM25Node(), stages=(entry | {"depth": 2},))
    first, second = c2s.run_system(system, dev).stages
    assert first.result.run.top(2).ranks().tolist() == [1, 2] * 3
    for claim in dev.claims:
        before, after = first.result.sources(claim.id), second.result.sources(claim.id)
        assert set(before[:2]) == set(after[:2]) and before[2:] == after[2:]
    deep = {"rerank": "tests.stages.test_pairs.Table", "depth": 120}
    found = c2s.run_system(c2s.System("BM25", BM25Node(), stages=(deep,)), dev)
    assert max(np.diff(found.result.run.offsets)) == 120
