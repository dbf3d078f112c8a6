"""Read and write the `manifest.json` of a re-ranker's checkpoint, by which a stage reads it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from claim2source.core.errors import InputError
from claim2source.models.config import Dtype
from claim2source.models.manifest import (
    EXPORT_FILE,
    FILE,
    RERANKER,
    Manifest,
    TrainingRecord,
    parsed,
    read_raw,
)
from claim2source.models.resolve import checkpoint_folder

RerankerKind = Literal["cross_encoder", "yes_no"]


@dataclass(frozen=True)
class RerankerSettings:
    """Define how a trained re-ranker reads a pair of texts.

    Args:
        kind: `cross_encoder`: a classifier of pairs; `yes_no`: a generative model's log-odds of
            yes.
        max_length: tokens of a pair.
        instruction: what a model that takes one is told.
        template: form of the yes/no prompt.
        labels: logits of a pair: 1, or 2 of irrelevant and relevant.
        dtype: weights' type.
        own_code: the base runs code of its own.
    """

    kind: RerankerKind
    max_length: int | None = None
    instruction: str | None = None
    template: Literal["qwen3", "escaped"] = "qwen3"
    labels: int = 1
    dtype: Dtype = "float32"
    own_code: bool = False


@dataclass(frozen=True, kw_only=True)
class RerankerManifest(TrainingRecord):
    """Record a re-ranker's checkpoint.

    `scores` are those on val of the whole pipeline: the first stage, re-ranked. `depth` is how
    many of its sources were.
    """

    reranker: RerankerSettings
    depth: int

    @classmethod
    def read(cls, folder: str | Path, file: str = FILE) -> RerankerManifest:
        """Read a checkpoint's `manifest.json`. Raises `InputError` naming file and field."""
        path = Path(folder) / file
        raw = read_raw(path)
        if RERANKER not in raw:
            raise InputError(path, field=RERANKER, why="is missing: no re-ranker's checkpoint")
        return parsed(cls, raw, path)


def trained_reranker(name: str) -> tuple[Path, RerankerManifest] | None:
    """Find a trained re-ranker: a checkpoint's folder, or a run's, which chose one.

    None for any other model, a retriever's checkpoint among them.
    """
    folder = checkpoint_folder(name)
    if not (folder / FILE).is_file() or RERANKER not in read_raw(folder / FILE):
        return None
    return folder, RerankerManifest.read(folder)


def manifest_of(name: str) -> Manifest | RerankerManifest | None:
    """Read the manifest of a retriever's or a re-ranker's checkpoint; None for other models.

    A folder that `train/merge.py` wrote has that of the checkpoint that it was exported from.
    """
    if (trained := trained_reranker(name)) is not None:
        return trained[1]
    folder = checkpoint_folder(name)
    if (folder / FILE).is_file():
        return Manifest.read(folder)
    export = folder / EXPORT_FILE
    if export.is_file() and RERANKER in read_raw(export):
        return RerankerManifest.read(folder, EXPORT_FILE)
    return Manifest.read_export(folder)


def manifest_of_base(manifest: Manifest | RerankerManifest) -> Manifest | RerankerManifest | None:
    """Read the manifest of the checkpoint that another was trained from.

    None where that is no checkpoint, or not to be found any more.
    """
    base = manifest_of(manifest.base.name)
    # A folder of that name may be another one.
    same_base = base is not None and base.weights.sha256 == manifest.base.sha256
    return base if same_base else None
