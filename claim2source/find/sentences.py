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
    return sentences if len(sentences) > 1 else []


def nearest_sentences(
    engine: Engine, claims: Sequence[Claim], found: FoundPapers
) -> dict[tuple[str, str], tuple[str, str]]:
    """Find each paper's finding nearest to the claim, and the claim's sentence nearest to it.

    Both are found by the index's model, among findings with the claim's numbers if there are any.
    Keys are claim and paper.
    """
    if found.results.unencoded:
        return {}
    papers: dict[str, Paper] = {}
    for ids in found.listed.values():
        papers.update({key: found.papers[key] for key in ids})
    findings = vectors_by_finding(engine, papers, found.vectors)
    nearest: dict[tuple[str, str], tuple[str, str]] = {}
    for claim in claims:
        sentences = found.sentences[claim.id]
        own = np.array([found.results.texts[text] for text in sentences])
        for key in found.listed[claim.id]:
            texts, vectors = findings[key]
            if not texts:
                continue
            positions = keep_numbers(claim.text, texts, range(len(texts)))
            scores = vectors[positions] @ found.results.vectors[claim.id]
            best = positions[int(np.argmax(scores))]
            sentence = ""
            if len(own):
                sentence = sentences[int(np.argmax(own @ vectors[best]))]
            nearest[claim.id, key] = texts[best], sentence
    return nearest
