"""Name an index's rankings and languages as abstention and answers read them."""

from __future__ import annotations

from claim2source.core.run import Result
from claim2source.engines import Engine, SearchResults
from claim2source.retrieve import FusionConfig, fuse
from claim2source.stages.abstain import DEEPEST
from claim2source.text.language import READ

LEXICAL, DENSE, FUSED = "lexical", "dense", "fused"


def stages_of(results: SearchResults) -> dict[str, Result]:
    """Name an index's rankings, fused with the default weights, as deep as abstention reads."""
    lexical, dense = results.lexical.top(DEEPEST), results.dense.top(DEEPEST)
    fused = fuse(lexical, dense, FusionConfig(), k=DEEPEST, alphas=results.alphas)
    return {LEXICAL: lexical, DENSE: dense, FUSED: fused}


def languages_of(engine: Engine) -> tuple[str, ...]:
    """List the languages among which a short post's is decided, the papers' first."""
    return tuple(dict.fromkeys((engine.manifest.bm25.language, *READ)))
