"""Analyse texts with a spaCy pipeline: lemmas of content words, and named entities."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

from claim2source.core.errors import UserError
from claim2source.core.progress import watched
from claim2source.core.records import nfkc

MODEL = "en_core_web_sm"
# What neither lemmas nor entities need is not computed.
_FOR_LEMMAS = ("parser", "ner", "senter", "entity_ruler", "entity_linker")
_FOR_ENTITIES = ("parser", "tagger", "lemmatizer", "attribute_ruler", "senter")


def lemma_texts(texts: Sequence[str], model: str = MODEL) -> list[str]:
    """Reduce texts to the lemmas of their content words, lower case, between spaces.

    As the ADMA 2023 paper's released script: commas are removed, then stop words and tokens that
    are not letters and digits alone, so that handles, emojis and hash signs go too. Raises
    `UserError` where spaCy or its pipeline is missing.
    """
    given = (text.replace(",", "") for text in texts)
    return [
        " ".join(t.lemma_ for t in doc if not t.is_stop and t.text.isalnum()).lower()
        for doc in watched(_analysed(given, model, _FOR_LEMMAS), "lemmas", len(texts))
    ]


def entity_sets(texts: Sequence[str], model: str = MODEL) -> list[frozenset[str]]:
    """Find the named entities of texts, case, white space and Unicode form aside.

    Raises as `lemma_texts`.
    """
    docs = watched(_analysed(texts, model, _FOR_ENTITIES), "named entities", len(texts))
    return [frozenset(" ".join(nfkc(e.text).casefold().split()) for e in doc.ents) for doc in docs]


def pipeline_identity(model: str = MODEL) -> dict[str, str]:
    """Describe spaCy and a pipeline, for the key of what they made. Raises as `lemma_texts`."""
    meta = load_pipeline(model).meta
    return {
        "spacy": str(meta.get("spacy_version", "")),
        "pipeline": f"{meta.get('lang')}_{meta.get('name')}-{meta.get('version')}",
    }


@lru_cache(maxsize=2)
def load_pipeline(model: str) -> Any:
    """Load a spaCy pipeline by its package's name, or from a folder.

    Raises `UserError` where spaCy or the pipeline is missing.
    """
    try:
        import spacy
    except ImportError:
        raise UserError("spaCy is not installed: pip install 'claim2source[spacy]'") from None
    try:
        return spacy.load(model)
    except (OSError, ValueError) as error:
        why = " ".join(str(error).split())
        advice = f"python -m spacy download {model}, or name the folder of a pipeline"
        raise UserError(f"spaCy has no pipeline {model!r} here: {advice} ({why[:120]})") from None


def _analysed(texts: Iterable[str], model: str, without: Sequence[str]) -> Iterator[Any]:
    pipeline = load_pipeline(model)
    unused = [name for name in without if name in pipeline.pipe_names]
    yield from pipeline.pipe(texts, disable=unused, batch_size=256)
