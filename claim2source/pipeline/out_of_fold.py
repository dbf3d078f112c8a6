"""Read and write out-of-fold rankings: of each training claim by a model not trained on it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Literal

from claim2source.core.errors import InputError, UserError
from claim2source.core.files import file_hash, write_json
from claim2source.core.records import Dataset
from claim2source.core.report import Table
from claim2source.core.run import Run
from claim2source.core.stage import Index
from claim2source.core.validate import read_json, validated
from claim2source.io.trec import read_run, write_trec_run
from claim2source.models import Manifest, Resolved
from claim2source.models.manifest import FILE as MANIFEST
from claim2source.retrieve.fuse import score_missing
from claim2source.text import Rendering

FILE, RUN_FILE = "folds.json", "folds.trec"
# What two trainings must have in common to be one recipe.
_RECIPE = ("tuning", "lora", "mining", "optimisation", "batches", "losses", "choose", "scales")


@dataclass(frozen=True)
class Fold:
    """Name the model of a fold, and the claims that it ranked.

    `checkpoint` lies in the folder of the folds. `train_sha256` is the fingerprint of the claims
    that the model was trained on; of the `claims` it ranked, it was trained on other claims of
    the papers of those in `seen`.
    """

    checkpoint: str
    train_sha256: str
    claims: tuple[str, ...]
    seen: tuple[str, ...]


@dataclass(frozen=True)
class OutOfFold:
    """Describe a run of training claims, each ranked once by a model not trained on it.

    `scores` are MRR@5 and the other metrics by language, of all claims, and of those of `seen`
    and `unseen` papers.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    dataset: str
    split: str
    languages: tuple[str, ...] | None
    data_sha256: str
    base_sha256: str
    rendering: Rendering
    depth: int
    run_sha256: str
    folds: tuple[Fold, ...]
    scores: Mapping[str, Table] = field(default_factory=dict)
    version: Literal[1] = 1

    @property
    def seen(self) -> frozenset[str]:
        """Return the claims of papers that their models were trained on."""
        return frozenset(claim for fold in self.folds for claim in fold.seen)

    @property
    def claims(self) -> frozenset[str]:
        """Return the ids of all claims."""
        return frozenset(claim for fold in self.folds for claim in fold.claims)


def write_out_of_fold(folder: Path, found: OutOfFold, run: Run) -> None:
    """Write the run, then the record that names its hash."""
    write_trec_run(run, folder / RUN_FILE, "out-of-fold")
    written = replace(found, run_sha256=file_hash(folder / RUN_FILE))
    write_json(folder / FILE, asdict(written))


def read_out_of_fold(folder: Path) -> tuple[OutOfFold, Run]:
    """Read what `train/folds.py` wrote.

    Raises `InputError` where a claim was ranked twice, by another model than is named, or where
    the run is not the one that the record names.
    """
    path = folder / FILE
    if not path.is_file():
        raise InputError.at(path, why="no such file: train/folds.py writes it when all is ranked")
    found = validated(OutOfFold, json.dumps(read_json(path)), path)
    times = Counter(claim for fold in found.folds for claim in fold.claims)
    if repeated := next((claim for claim, count in times.items() if count > 1), None):
        raise InputError.at(path, field="folds", why=f"claim {repeated!r} is in two folds")
    if file_hash(folder / RUN_FILE) != found.run_sha256:
        raise InputError.at(folder / RUN_FILE, why="is not the run that folds.json names")
    for fold in found.folds:
        place = folder / fold.checkpoint
        if not (place / MANIFEST).is_file():
            continue  # a checkpoint may be deleted: its ranking is kept
        if Manifest.read(place).data.train_sha256 != fold.train_sha256:
            why = "was trained on other claims than the fold's, perhaps on those that it ranked"
            raise InputError.at(place, why=why)
    return found, read_run(folder / RUN_FILE).run


def check_model(folder: Path, found: OutOfFold, resolved: Resolved) -> str:
    """Say where the folds' recipe differs from a checkpoint's; "" where it does not.

    Raises `UserError` for a model that is no training of the same base and rendering.
    """
    manifest = resolved.manifest
    if manifest is None or not resolved.is_trained:
        raise UserError(f"{folder}: scores of tuned models; this one was not trained")
    if manifest.base.sha256 != found.base_sha256:
        raise UserError(f"{folder}: its models are of another base than {manifest.base.name}")
    if manifest.rendering != found.rendering:
        raise UserError(f"{folder}: its models read other renderings than this checkpoint")
    places = (folder / fold.checkpoint for fold in found.folds)
    known = [place for place in places if (place / MANIFEST).is_file()]
    if not known:
        return "the folds' checkpoints are gone: their recipe is not compared"
    other = Manifest.read(known[0]).config
    differs = [key for key in _RECIPE if other.get(key) != manifest.config.get(key)]
    return f"the folds' recipe differs in {', '.join(differs)}" if differs else ""


def score_out_of_fold(
    folder: Path,
    found: OutOfFold,
    index_of: Callable[[Path], Index],
    data: Dataset,
    own: Run,
    other: Run,
) -> Run | None:
    """Score what only `other` ranks by each claim's own model; None where a model is gone.

    `index_of` gives the index of the sources by a checkpoint's model; one is held at a time.
    """
    rows: list[tuple[str, str, float]] = []
    for fold in found.folds:
        place = folder / fold.checkpoint
        if not (place / MANIFEST).is_file():
            return None
        mine = set(fold.claims)
        claims = [claim for claim in data.claims if claim.id in mine]
        rows += score_missing(index_of(place), claims, own, other).run
    return Run.from_rows(*zip(*rows, strict=True)) if rows else Run.from_lists({})
