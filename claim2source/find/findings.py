"""Read or compute the vectors of papers' findings, so that answers can quote the nearest one."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import numpy as np

from claim2source.data.boilerplate import cut_boilerplate, without_boilerplate
from claim2source.data.papers import Paper
from claim2source.search.engine import Engine
from claim2source.search.on_demand import UnencodedError, encoding
from claim2source.search.rows import SPLIT, finding_sentences

log = logging.getLogger(__name__)
# Sentences of a paper, and their vectors [sentences, d].
Findings = tuple[list[str], np.ndarray]


def vectors_by_finding(
    engine: Engine,
    papers: Mapping[str, Paper],
    stored: Mapping[str, np.ndarray],
) -> dict[str, Findings]:
    """List papers' findings with their vectors; encode those that are not `stored`.

    If the findings of a paper cannot be encoded, the answer does not quote it.
    """
    if engine.manifest.sentences != SPLIT:
        stored = {}

    findings: dict[str, Findings] = {}
    missing: dict[str, list[str]] = {}
    for key, paper in papers.items():
        # Older indexes, and those of benchmarks, contain copyright lines as findings.
        cut = cut_boilerplate(paper)
        sentences = finding_sentences(cut)
        vectors = stored.get(key)

        # A paper without a title may consist only of a notice.
        texts: list[str] = []
        for text in sentences:
            rest = without_boilerplate(text)
            if rest.strip():
                texts.append(text)

        is_whole = cut is paper and len(texts) == len(sentences)
        if is_whole and vectors is not None and len(vectors) == len(texts):
            findings[key] = texts, vectors.astype(np.float32)
        elif texts:
            missing[key] = texts
        else:
            findings[key] = [], np.empty((0, 0))

    encoded = _encoded(engine, missing)
    return findings | encoded


def _encoded(
    engine: Engine,
    missing: Mapping[str, list[str]],
) -> dict[str, Findings]:
    distinct: dict[str, int] = {}
    for texts in missing.values():
        for text in texts:
            distinct.setdefault(text, len(distinct))
    if not distinct:
        return {}

    findings: dict[str, Findings] = {}
    try:
        with encoding():
            encoded = engine.encode_papers(list(distinct))
    except UnencodedError as error:
        log.warning("sentences of papers are not quoted: %s", error)
        for key in missing:
            findings[key] = [], np.empty((0, 0))
        return findings

    for key, texts in missing.items():
        rows = [distinct[text] for text in texts]
        findings[key] = texts, encoded[rows]
    return findings
