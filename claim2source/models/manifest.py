"""Read and write `manifest.json`, by which a checkpoint is evaluated as it was trained."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

from claim2source.core.config import Settings
from claim2source.core.errors import InputError
from claim2source.core.files import content_hash, why_not_file, write_json
from claim2source.core.validate import read_json, validated
from claim2source.models.config import EncoderSettings, Identity
from claim2source.models.places import (
    base_record,
    find_base,
    find_dataset,
    remember_base,
    without_paths,
)
from claim2source.text import Rendering

FILE = "manifest.json"
EXPORT_FILE = "claim2source.json"
FORMAT = 1
# The part that a re-ranker's manifest has in place of `encoder`.
RERANKER = "reranker"
Record = TypeVar("Record", bound="TrainingRecord")
# Fields with a default that every manifest has: without them a checkpoint would be misread.
_REQUIRED = {
    "encoder": ("pooling", "normalize", "max_length", "template", "dtype"),
    "weights": ("kind",),
    "rendering": ("claims", "sources"),
}
# Language, or `macro`, -> metric -> value.
ScoreTable = Mapping[str, Mapping[str, int | float]]


@dataclass(frozen=True)
class Base:
    """Record a checkpoint's base model: name, hub revision, sha256 of its weights."""

    name: str
    revision: str | None
    sha256: str


@dataclass(frozen=True)
class Weights(Settings):
    """Record the weights that a checkpoint adds to its base.

    `base`: none (step 0). `lora`: an adapter in this folder, added at `scale`. `full`: a whole
    model in this folder, already at `scale` between the base (0) and what was trained (1).
    `sha256` is that of the safetensors file, `config_sha256` that of its config. With
    `trained: query_only` these weights encode claims, and the base encodes sources, or another
    model (`Manifest.source_model`); `projection` is then the sha256 of the map into its space.
    """

    kind: Literal["base", "lora", "full"] = "base"
    sha256: str | None = None
    scale: float = 1.0
    config_sha256: str | None = None
    trained: Literal["both", "query_only"] = "both"
    projection: str | None = None

    def identity(self, base: Identity) -> Identity:
        """Identify these weights in the store; `base` identifies those of the base model."""
        if self.projection is not None:
            base = {**base, "projection": self.projection}
        if self.kind == "full":
            return {**base, "base": self.sha256}
        if self.kind == "base":
            return base
        adapter = {"adapter": self.sha256, "adapter_config": self.config_sha256}
        return {**base, **adapter, "scale": self.scale}


@dataclass(frozen=True)
class SourceModel:
    """Record the model that encodes the sources, where it is another than the claims'.

    `weights` and `config` identify it as in the store, `encoder` are its settings: vectors that
    the store has are read without loading it.
    """

    name: str
    revision: str | None
    weights: Mapping[str, str | float | None]
    config: str
    dimensions: int
    encoder: EncoderSettings

    @property
    def sha256(self) -> str:
        return content_hash(dict(self.weights))


@dataclass(frozen=True)
class DataRecord:
    """Record the data a checkpoint was trained on; None where its manifest does not say.

    `val_seen_share` of each language's claims were held out though their papers were trained
    on; `seen_share_expected` is the share of such claims that was chosen for.
    """

    dataset: str | None = None
    train_split: str | None = None
    val_share: float | None = None
    val_seed: int | None = None
    languages: tuple[str, ...] | None = None
    train_sha256: str | None = None
    val_sha256: str | None = None
    mined_sha256: str | None = None
    val_seen_share: float | None = None
    seen_share_expected: float | None = None


@dataclass(frozen=True, kw_only=True)
class TrainingRecord:
    """Record everything needed to use a checkpoint without repeating how it was trained.

    `scores` holds the scores by split, `config` the training run's settings as JSON values.
    """

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    base: Base
    weights: Weights
    rendering: Rendering
    epoch: int = 0
    data: DataRecord = DataRecord()
    scores: Mapping[str, ScoreTable] = field(default_factory=dict)
    config: Mapping[str, object] = field(default_factory=dict)
    git: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    format: int = FORMAT

    def write(self, folder: Path) -> None:
        """Write `manifest.json` into `folder`, atomically, without this machine's paths."""
        write_json(folder / FILE, self._as_json())

    def write_export(self, folder: Path, **details: str | float) -> None:
        """Write `claim2source.json`: the manifest of an exported model, without its scores."""
        left_out = ("scores", "config")
        record = {key: value for key, value in self._as_json().items() if key not in left_out}
        write_json(folder / EXPORT_FILE, record | details)

    def _as_json(self) -> dict[str, Any]:
        """Return the JSON form; remember the folder of a local base."""
        remember_base(self.base.name, self.base.sha256)
        base = replace(self.base, name=base_record(self.base.name))
        values = asdict(replace(self, base=base))
        return values | {key: without_paths(values[key]) for key in ("data", "config")}


@dataclass(frozen=True, kw_only=True)
class Manifest(TrainingRecord):
    """Record a retriever's checkpoint.

    `soup` has the sha256 of the weights that were averaged. `source_model` encodes the sources
    where that is neither these weights nor the base.
    """

    encoder: EncoderSettings
    soup: tuple[str, ...] = ()
    source_model: SourceModel | None = None

    def _as_json(self) -> dict[str, Any]:
        values = super()._as_json()
        if (sources := self.source_model) is not None:
            remember_base(sources.name, sources.sha256)
            values["source_model"]["name"] = base_record(sources.name)
        return values

    @classmethod
    def read(cls, folder: str | Path) -> Manifest:
        """Read a checkpoint's `manifest.json`. Raises `InputError` naming file and field."""
        return _parse(Path(folder) / FILE)

    @classmethod
    def read_export(cls, folder: Path) -> Manifest | None:
        """Read the manifest in `claim2source.json`; None for a folder that is no export."""
        path = folder / EXPORT_FILE
        return _parse(path) if path.is_file() else None


def read_raw(path: Path) -> dict[str, Any]:
    """Read a manifest's JSON object. Raises `InputError` where it is none of this format."""
    if why_not_file(path) == "no such file":
        raise InputError(path, why="no such file; not a checkpoint of ours")
    raw = read_json(path)
    if not isinstance(raw, dict) or raw.get("format") != FORMAT:
        raise InputError(path, field="format", why=f"this version reads format {FORMAT}")
    return raw


def parsed(kind: type[Record], raw: dict[str, Any], path: Path) -> Record:
    """Validate a manifest, and find its base and its data set on this machine."""
    if path.name == EXPORT_FILE:  # which says more
        raw = {key.name: raw[key.name] for key in fields(kind) if key.name in raw}
    for part, keys in _REQUIRED.items():
        for key in keys:
            if isinstance(raw.get(part), dict) and key not in raw[part]:
                raise InputError(path, field=f"{part}.{key}", why="is missing")
    # As JSON, where a list may stand for a tuple.
    record = validated(kind, json.dumps(raw), path)
    base, data, folder = record.base, record.data, path.parent
    base = replace(base, name=find_base(base.name, base.sha256, folder))
    data = replace(data, dataset=find_dataset(data.dataset, folder))
    return replace(record, base=base, data=data)


def _parse(path: Path) -> Manifest:
    raw = read_raw(path)
    if RERANKER in raw:
        why = "a re-ranker's checkpoint: it is read by a stage such as {rerank: cross_encoder}"
        raise InputError(path, why=why)
    if (repeats := raw.pop("refit", None)) is not None:
        why = f"was trained on val too, which no version since does; give {repeats!r} beside it"
        raise InputError(path, field="refit", why=why)
    manifest = parsed(Manifest, raw, path)
    if (sources := manifest.source_model) is None:
        return manifest
    name = find_base(sources.name, sources.sha256, path.parent, "teacher")
    return replace(manifest, source_model=replace(sources, name=name))
