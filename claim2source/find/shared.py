"""Judge an index without claims by a model fitted to the posts of other collections.

The models are package data. There is one for each encoder with good results on every collection
when it was left out of the fit (`scripts/fit_shared_verdict.py`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Literal

from claim2source.core.validate import read_json, validated
from claim2source.find.abstention import AbstainModel, Tenth
from claim2source.find.shapes import DEEPEST_SHAPE
from claim2source.search.engine import Engine
from claim2source.search.manifest import IndexManifest
from claim2source.text.language import language_name

PATH = Path(str(files("claim2source") / "find" / "shared.json"))
TOO_FEW = f"A verdict needs {DEEPEST_SHAPE} different papers to compare the post with"
# When the demo was left out, the probabilities of its German and French posts were too low.
LOW_FOREIGN = "Low probabilities were not reliable for posts in another language than the papers"


@dataclass(frozen=True)
class LeftOut:
    """Reliability on one collection of a model that was fitted to the others.

    Each of `posts` was a query with its papers in the index and without, and so were posts of
    other collections. `wrong` is the share of "found" among posts about other topics or without
    their papers, `found` that among posts whose papers are there. `good` counts the tenths of the
    probability within 0.1 of the observed rate, or whose 95 % interval contains it.
    """

    name: str
    posts: int
    papers: int
    tenths: tuple[Tenth, ...]
    good: int
    wrong: float
    found: float


@dataclass(frozen=True)
class SharedModel:
    """Model for indexes of one encoder, identified by the hash of its weights and settings.

    The papers are in `language`. The model's `tenths` are the sums of those of `collections`.
    """

    encoder: str
    hash: str
    language: str
    collections: tuple[LeftOut, ...]
    model: AbstainModel

    def __post_init__(self) -> None:
        if not (self.model.shared and self.model.languages and self.model.design.shape):
            raise ValueError("model must be shared, have languages and use shapes")


@dataclass(frozen=True)
class SharedModels:
    """Models that ship with the package, by encoder."""

    models: tuple[SharedModel, ...]
    format: Literal[1] = 1


def read_shared() -> SharedModels:
    """Read the models. Raises `InputError` with the wrong field."""
    values = read_json(PATH)
    return validated(SharedModels, json.dumps(values), PATH)


def shared_model(manifest: IndexManifest) -> AbstainModel | None:
    """Return the shared model of an index's encoder; None if there is none.

    An index without vectors has none, because it compares fewer papers than in the measurement.
    """
    if manifest.encoded_first:
        return None
    for shared in read_shared().models:
        if manifest.model_hash == shared.hash and manifest.bm25.language == shared.language:
            return replace(shared.model, fitted=f"{shared.encoder}: {shared.model.fitted}")
    return None


def unshared_reason(manifest: IndexManifest) -> str:
    """Return the reason why there is no shared model for an index."""
    if manifest.encoded_first:
        return "the shipped verdict was not measured on indexes without vectors"
    models = read_shared().models
    encoders = " or ".join(shared.encoder for shared in models)
    if manifest.model_hash in {shared.hash for shared in models}:
        language = language_name(manifest.bm25.language)
        return f"the shipped verdict was not measured on papers in {language}"
    return f"the shipped verdict was measured only for {encoders}"


def language_reason(languages: Sequence[str]) -> str:
    """Return the reason why a post in another language is not judged."""
    names = ", ".join(map(language_name, languages))
    return f"Verdicts were measured on posts in these languages: {names}"


def note_shared(engine: Engine) -> str:
    """Store the shared model in an index without its own; return a note on the result."""
    model = shared_model(engine.manifest)
    if model is None:
        if engine.manifest.abstain is not None:
            engine.note(abstain=None)  # the stored one is another encoder's
        reason = unshared_reason(engine.manifest)
        return f"answers get no verdict: {reason}; --claims DATASET fits one to this index"
    engine.note(abstain=model.as_json())
    return f"answers get the shipped verdict, fitted to posts of other collections ({model.fitted})"
