"""Find the sentences of posts and papers that are nearest to each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from claim2source.core.records import Claim
from claim2source.core.run import Result
from claim2source.data.papers import Paper
from claim2source.find.findings import vectors_by_finding
from claim2source.search.engine import Engine
from claim2source.search.table import SearchResults
from claim2source.text.clean import keep_numbers, split_sentences

# Most sentences of a post to compare.
_SENTENCES = 20


@dataclass(frozen=True)
class FoundPapers:
    """Papers found for some claims.

    `stages` are the results of every stage, by name and in order; `papers` are all papers that a
    stage ranks; `listed` are the ids of each claim's answer; `sentences` are those of each claim,
    if it has several; `vectors` are the stored ones of the papers' sentences.
    """

    results: SearchResults
    stages: Sequence[tuple[str, Result]]
    papers: Mapping[str, Paper]
    listed: Mapping[str, Sequence[str]]
    sentences: Mapping[str, Sequence[str]]
    vectors: Mapping[str, np.ndarray]


def several_sentences(claim: Claim) -> list[str]:
    """List the sentences of a post to compare with papers; [] if it has only one."""
    sentences = split_sentences(claim.text)[:_SENTENCES]
    if len(sentences) > 1:
        return sentences
    return []


def nearest_sentences(
    engine: Engine,
    claims: Sequence[Claim],
    found: FoundPapers,
) -> dict[tuple[str, str], tuple[str, str]]:
    """Find each paper's finding nearest to the claim, and the claim's sentence nearest to it.

    Both are found by the index's model, among findings with the claim's numbers if there are any.
    Keys are claim and paper.
    """
    results = found.results
    if results.unencoded:
        return {}

    papers: dict[str, Paper] = {}
    for ids in found.listed.values():
        for key in ids:
            papers[key] = found.papers[key]
    findings = vectors_by_finding(engine, papers, found.vectors)

    nearest: dict[tuple[str, str], tuple[str, str]] = {}
    for claim in claims:
        sentences = found.sentences[claim.id]
        own_vectors = [results.texts[text] for text in sentences]
        own = np.array(own_vectors)
        for key in found.listed[claim.id]:
            texts, vectors = findings[key]
            if not texts:
                continue

            places = range(len(texts))
            positions = keep_numbers(claim.text, texts, places)
            scores = vectors[positions] @ results.vectors[claim.id]
            first = int(np.argmax(scores))
            best = positions[first]

            sentence = ""
            if len(own):
                likeness = own @ vectors[best]
                sentence = sentences[int(np.argmax(likeness))]
            nearest[claim.id, key] = texts[best], sentence
    return nearest
