"""Judge an index without claims by a model that was fitted to the posts of other collections.

The models are package data, one for each encoder for which every collection that was left out of
the fit was judged well (`scripts/fit_shared_verdict.py`).
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
# Left out, the demo's German and French posts had their papers there more often than they said.
LOW_FOREIGN = "Low probabilities did not hold for posts in another language than the papers"


@dataclass(frozen=True)
class LeftOut:
    """Measure the answers about one collection, by a model that was fitted to the others.

    `posts` were each asked with their papers in the index and without, as were posts of other
    collections. `wrong` is the share of posts about other things, or without their papers, that
    are "found", `found` that of posts whose papers are there. `good` tenths of the probability
    are within 0.1 of how often the paper was there, or their 95 % interval holds it.
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
    """Model for indexes of one encoder, known by the hash of its weights and settings.

    The papers are in `language`. The model's own `tenths` sum those of `collections`.
    """

    encoder: str
    hash: str
    language: str
    collections: tuple[LeftOut, ...]
    model: AbstainModel

    def __post_init__(self) -> None:
        if not (self.model.shared and self.model.languages and self.model.design.shape):
            raise ValueError("model must be shared, name its languages and read shapes")


@dataclass(frozen=True)
class SharedModels:
    """Models that ship with the package, by encoder."""

    models: tuple[SharedModel, ...]
    format: Literal[1] = 1


def read_shared() -> SharedModels:
    """Read the models. Raises `InputError`, with the field that is wrong."""
    values = read_json(PATH)
    return validated(SharedModels, json.dumps(values), PATH)


def shared_model(manifest: IndexManifest) -> AbstainModel | None:
    """Return the model that judges an index; None if there is none for its encoder.

    An index without vectors compares few papers with a post: not as it was measured.
    """
    if manifest.encoded_first:
        return None
    for shared in read_shared().models:
        if manifest.model_hash == shared.hash and manifest.bm25.language == shared.language:
            return replace(shared.model, fitted=f"{shared.encoder}: {shared.model.fitted}")
    return None


def unshared_reason(manifest: IndexManifest) -> str:
    """Explain why no shared model judges an index."""
    if manifest.encoded_first:
        return "the model that judges was not measured on indexes without vectors"
    models = read_shared().models
    encoders = " or ".join(shared.encoder for shared in models)
    if manifest.model_hash in {shared.hash for shared in models}:
        language = language_name(manifest.bm25.language)
        return f"the model that judges was not measured on papers in {language}"
    return f"the model that judges was measured for {encoders} alone"


def language_reason(languages: Sequence[str]) -> str:
    """Explain why a post in none of these languages is not judged."""
    names = ", ".join(map(language_name, languages))
    return f"Verdicts were measured on posts in these languages: {names}"


def note_shared(engine: Engine) -> str:
    """Note the shared model in an index without its own; say which, or why there is none."""
    model = shared_model(engine.manifest)
    if model is None:
        if engine.manifest.abstain is not None:
            engine.note(abstain=None)  # another encoder's
        reason = unshared_reason(engine.manifest)
        return f"answers are not judged: {reason}; --claims DATASET fits one to this index"
    engine.note(abstain=model.as_json())
    return f"answers are judged by posts of other collections ({model.fitted})"
