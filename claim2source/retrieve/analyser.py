"""Analyse texts into terms without an index, for an engine that stores them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from claim2source.core.provenance import version
from claim2source.core.records import Claim, Source
from claim2source.retrieve.bm25 import (
    BM25Config,
    analysis_of,
    prepared,
    prepared_claims,
    source_text,
)
from claim2source.retrieve.terms import Analysis
from claim2source.text.clean import pipeline_identity
from claim2source.text.views import claim_parts


class Analyser:
    """Turn sources and claims into the terms that `BM25Index` counts for them."""

    def __init__(self, config: BM25Config) -> None:
        self.config = config

    @property
    def versions(self) -> Mapping[str, str]:
        """Name the versions of all that makes a term of a text."""
        libraries = {name: version(name) for name in ("bm25s", "PyStemmer")}
        if self.config.analysis == "lemmas":
            libraries |= pipeline_identity(self.config.pipeline)
        return {"analysis": str(self.config.format), **libraries}

    def sources(self, sources: Sequence[Source]) -> list[list[str]]:
        """List the terms of each source, in text order, repeated ones repeated."""
        return self.texts([source_text(source, self.config) for source in sources])

    def texts(self, texts: Sequence[str]) -> list[list[str]]:
        """List the terms of texts as those of sources."""
        return _terms(analysis_of(self.config), prepared(list(texts), self.config))

    def claim(self, claim: Claim) -> list[str]:
        """List the terms of a claim: each part without the stop words of its own language."""
        terms: list[str] = []
        for part in claim_parts(claim, self.config.claims):
            texts = prepared_claims([part.text], self.config)
            terms += _terms(analysis_of(self.config, part.language), texts)[0]
        return terms


def _terms(analysis: Analysis, texts: Sequence[str]) -> list[list[str]]:
    terms = analysis.sources(texts)
    names = list(analysis.vocabulary)
    return [[names[number] for number in ids] for ids in terms.split()]
