"""Read an index's rankings, languages and abstention as answers need them."""

from __future__ import annotations

from claim2source.core.errors import InputError
from claim2source.core.run import Result
from claim2source.engines import Engine, SearchResults
from claim2source.engines.manifest import MANIFEST
from claim2source.find.abstention import DEEPEST, AbstainModel
from claim2source.retrieve import FusionConfig, fuse
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


def abstention_of(engine: Engine) -> AbstainModel | None:
    """Read the model of abstention that is fitted to an index; None where there is none.

    Raises `InputError` where the manifest holds something else.
    """
    values, path = engine.manifest.abstain, f"{engine.location}/{MANIFEST}"
    try:
        return None if values is None else AbstainModel.of_json(values, path)
    except InputError as error:
        first = error.problems[0]
        why = f"{first.why}; fit abstention again: index --claims DATASET --out {engine.location}"
        field = ".".join(filter(None, ("abstain", first.field)))
        raise InputError(path, field=field, why=why) from None
