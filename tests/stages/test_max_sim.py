"""MaxSim of token vectors: against the plain definition, and as a stage of a system."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

import claim2source as c2s
from claim2source.models import ModelConfig, Template, resolve
from claim2source.stages.max_sim import MaxSim
from claim2source.stages.pairs import Pair


def max_sim_of(folder: Path, claim: str, source: str) -> float:
    """A text at a time, without batches: the mean over the claim's tokens of the best cosine."""
    config = ModelConfig(str(folder), pooling="mean", max_length=64)
    encoder = resolve(config, "cpu").encoder

    def vectors(text: str) -> torch.Tensor:
        ids = encoder.tokenizer(text, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            output = encoder.model(ids)
            hidden = output.last_hidden_state[0]
        lengths = hidden.norm(dim=1, keepdim=True)
        return hidden / lengths

    cosines = vectors(claim) @ vectors(source).T
    best = cosines.max(dim=1).values
    return float(best.mean())


def test_scores_are_the_plain_definitions_whatever_is_in_the_batch(tiny_folder: Path) -> None:
    claims = [
        "a b c",
        "vaccine works",
        "a : b . c claim paper query passage a b c",
    ]
    sources = [
        "a",
        "c b a paper works",
        "query passage vaccine " * 6,
        "claim .",
    ]
    pairs = [Pair(claim, source) for claim in claims for source in sources]
    pairs.reverse()
    stage = MaxSim(model=str(tiny_folder), max_length=64)
    scores = np.full(len(pairs), np.nan)
    tokens = 0
    for batch in stage.score(pairs):
        positions = list(batch.positions)
        scores[positions] = batch.scores
        tokens += batch.tokens
    expected = [max_sim_of(tiny_folder, *pair) for pair in pairs]
    assert np.allclose(scores, expected, atol=1e-5)
    distinct = np.unique(scores.round(4))
    assert len(distinct) > 9
    # Each text is encoded once, however many pairs it is in.
    tokenizer = stage.encoder.tokenizer
    expected_tokens = 0
    for text in claims + sources:
        ids = tokenizer(text)["input_ids"]
        expected_tokens += len(ids)
    assert tokens == expected_tokens


def test_a_masked_prefix_has_no_part_in_the_score(
    tmp_path: Path, save_tiny: Callable[..., Path]
) -> None:
    folder = save_tiny(tmp_path / "model")
    template = Template(
        claim="query : ",
        source="passage : ",
        pool_prefix=False,
    )
    config = ModelConfig(
        str(folder),
        pooling="cls",
        max_length=64,
        template=template,
    )
    encoder = resolve(config, "cpu").encoder
    ((_, vectors_of_texts, _),) = encoder.token_vectors(["a b", "a b"], "claim")
    ids = encoder.tokenizer("query : a b")["input_ids"]
    counts = [len(vectors) for vectors in vectors_of_texts]
    assert counts == [len(ids) - 3] * 2  # a, b and [SEP]
    lengths = vectors_of_texts[0].norm(dim=1)
    assert torch.allclose(lengths, torch.ones(3), atol=1e-6)


def test_the_first_stage_ranks_as_deep_as_its_reranker_looks() -> None:
    """Not 100."""
    dev = c2s.load("demo", "dev").in_languages(["en"])
    deep = {"rerank": "tests.stages.test_pairs.Table", "depth": 120}
    entry = {
        "retrieve": {"bm25": {}},
        "stages": [deep],
    }
    system = c2s.make_system("BM25", entry)
    three = dev.with_claims(dev.claims[:3])
    system_result = c2s.run_system(system, three)
    depths = np.diff(system_result.result.run.offsets)
    assert max(depths) == 120
