"""Analyse texts into the terms of `BM25Index`, for an engine's own index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from claim2source.core.records import Claim, Source
from claim2source.search.bm25 import (
    BM25,
    library_versions,
    make_analysis,
    prepared,
    prepared_claims,
    source_text,
)
from claim2source.search.terms import Analysis
from claim2source.text.views import claim_parts


class Analyser:
    """Analyse sources and claims into the terms of `BM25Index`, for an engine's own index."""

    def __init__(self, config: BM25) -> None:
        self.config = config

    @property
    def versions(self) -> Mapping[str, str]:
        return {
            "analysis": str(self.config.format),
            **library_versions(self.config),
        }

    def sources(self, sources: Sequence[Source]) -> list[list[str]]:
        """List the terms of each source, in text order, with repeats."""
        texts = [source_text(source, self.config) for source in sources]
        return self.texts(texts)

    def texts(self, texts: Sequence[str]) -> list[list[str]]:
        analysis = make_analysis(self.config)
        prepared_texts = prepared(list(texts), self.config)
        return _terms(analysis, prepared_texts)

    def claim(self, claim: Claim) -> list[str]:
        """List the terms of a claim; each part is without the stop words of its own language."""
        terms: list[str] = []
        for part in claim_parts(claim, self.config.claims):
            texts = prepared_claims([part.text], self.config)
            analysis = make_analysis(self.config, part.language)
            lists = _terms(analysis, texts)
            terms += lists[0]
        return terms


def _terms(analysis: Analysis, texts: Sequence[str]) -> list[list[str]]:
    terms = analysis.sources(texts)
    names = list(analysis.vocabulary)
    lists: list[list[str]] = []
    for ids in terms.split():
        own = [names[number] for number in ids]
        lists.append(own)
    return lists
