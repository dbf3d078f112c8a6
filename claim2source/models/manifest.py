"""Read and write `manifest.json`, so that a checkpoint is used as it was trained."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, Self

from claim2source.core.config import Settings
from claim2source.core.errors import InputError
from claim2source.core.files import content_hash, file_error, write_json, write_text
from claim2source.core.folders import CHECKPOINTS, RUN_FILE, run_settings
from claim2source.core.validate import Strict, read_json, validated
from claim2source.data.store import default_root
from claim2source.models.config import Dtype, EncoderSettings, Identity
from claim2source.models.local import local_name
from claim2source.models.trained_on import TrainedOn
from claim2source.text import Rendering

FILE = "manifest.json"
EXPORT_FILE = "claim2source.json"
FORMAT = 1
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
# Key of a re-ranker's manifest that replaces `encoder`.
RERANKER = "reranker"
# Key with the sha256 of the claims' hashes, which are in a file next to the manifest.
CLAIMS = "trained_on"
RerankerKind = Literal["cross_encoder", "yes_no"]
# Prefix of a base that was a folder; only the folder's name is recorded.
LOCAL = f".{os.sep}"
# Fields with a default that a manifest must have: without them a checkpoint would be misread.
_REQUIRED = {
    "encoder": ("pooling", "normalize", "max_length", "template", "dtype"),
    "weights": ("kind",),
    "rendering": ("claims", "sources"),
}
# Setting of every training run since 1.0; versions 0.1 and 0.2 did not have it.
NEW_SINCE_0_2 = "warmup_from_zero"
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
    `dense` hashes the layers behind the pooling, which no training changes; None without any.
    """

    kind: Literal["base", "lora", "full"] = "base"
    sha256: str | None = None
    scale: float = 1.0
    config_sha256: str | None = None
    trained: Literal["both", "query_only"] = "both"
    projection: str | None = None
    dense: str | None = None

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
    """Record the model that encodes the sources, if it is another than the claims'.

    `weights` and `config` identify it as in the store, `encoder` are its settings: vectors that
    the store has are read without loading the model.
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
    """Record the data a checkpoint was trained on; None if its manifest does not say.

    `val_seen_share` of each language's claims were held out though their papers were trained
    on; `seen_share_expected` is the share of such claims that was assumed when choosing, and the
    share that val was drawn at if there is no `val_seen_share`. `val_seen_measured` is their share
    of val's claims with a gold. `languages` are those that the run was limited to,
    `train_languages` those of the claims that it trained on.
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
    train_languages: tuple[str, ...] | None = None
    val_seen_measured: float | None = None

    @property
    def chosen_for(self) -> str:
        """Describe for which share of seen papers' claims a checkpoint was chosen; "" if unknown.

        If val has only one part, its scores are not weighted.
        """
        measured = self.val_seen_measured
        if measured is None:
            return ""
        text = f"{measured:.0%} of val's claims mean papers that training claims mean too"
        expected = self.seen_share_expected
        if expected is None or measured in (0.0, 1.0):
            return text
        return f"{text}; choices weigh them by {expected:.0%}"


@dataclass(frozen=True, kw_only=True)
class TrainingRecord(Strict):
    """Record everything needed to use a checkpoint without repeating how it was trained.

    `scores` are the scores by split, `config` the training run's settings as JSON values.
    `trained_on` are the claims that the weights have seen, those of the base included; None if
    they were not recorded. They are in a file of their own next to the manifest.
    """

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
    trained_on: TrainedOn | None = field(default=None, repr=False)

    def write(self, folder: Path) -> None:
        """Write `manifest.json` into `folder`, atomically, without this machine's paths.

        The claims that were trained on are written next to it.
        """
        if self.trained_on is not None:
            self.trained_on.write(folder)
        write_json(folder / FILE, self._as_json())

    def write_export(self, folder: Path, **details: str | float) -> None:
        """Write `claim2source.json`: the manifest of an exported model, without its scores.

        The claims that were trained on are written next to it.
        """
        if self.trained_on is not None:
            self.trained_on.write(folder)
        left_out = ("scores", "config")
        record = {key: value for key, value in self._as_json().items() if key not in left_out}
        write_json(folder / EXPORT_FILE, record | details)

    @classmethod
    def read(cls, folder: str | Path, file: str = FILE) -> Self:
        """Read a checkpoint's `manifest.json`. Raises `InputError` naming file and field."""
        path = Path(folder) / file
        record = _read(path)
        if isinstance(record, cls):
            return record
        if isinstance(record, RerankerManifest):
            reason = "a re-ranker checkpoint; use it in a stage such as {rerank: cross_encoder}"
            raise InputError(path, reason=reason)
        raise InputError(path, field=RERANKER, reason="is missing: not a re-ranker checkpoint")

    def _as_json(self) -> dict[str, Any]:
        """Return the JSON form; remember the folder of a local base."""
        remember_base(self.base.name, self.base.sha256)
        base = replace(self.base, name=base_record(self.base.name))
        values = asdict(replace(self, base=base, trained_on=None))
        values |= {key: without_paths(values[key]) for key in ("data", "config")}
        if self.trained_on is None:
            del values[CLAIMS]
        else:
            values[CLAIMS] = self.trained_on.sha256
        return values


@dataclass(frozen=True, kw_only=True)
class Manifest(TrainingRecord):
    """Record a retriever's checkpoint.

    `soup` has the sha256 of the weights that were averaged. `source_model` encodes the sources
    if that is neither these weights nor the base.
    """

    encoder: EncoderSettings
    soup: tuple[str, ...] = ()
    source_model: SourceModel | None = None

    def _as_json(self) -> dict[str, Any]:
        values = super()._as_json()
        sources = self.source_model
        if sources is not None:
            remember_base(sources.name, sources.sha256)
            values["source_model"]["name"] = base_record(sources.name)
        return values

    @classmethod
    def read_export(cls, folder: Path) -> Self | None:
        """Read the manifest in `claim2source.json`; None for a folder that is not an export."""
        if (folder / EXPORT_FILE).is_file():
            return cls.read(folder, EXPORT_FILE)
        return None


@dataclass(frozen=True)
class RerankerSettings:
    """Define how a trained re-ranker reads a pair of texts.

    Args:
        kind: `cross_encoder`: a classifier of pairs; `yes_no`: a generative model's log-odds of
            yes.
        max_length: tokens of a pair.
        instruction: instruction of a model that takes one.
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

    `scores` are the pipeline's scores on val, after re-ranking. `depth` is how many sources of the
    first stage were re-ranked.
    """

    reranker: RerankerSettings
    depth: int


AnyManifest = Manifest | RerankerManifest


def _read(path: Path) -> AnyManifest:
    """Read a manifest, and find its base and its data set on this machine."""
    if file_error(path) == "no such file":
        raise InputError(path, reason="no such file; a checkpoint has one")
    raw = read_json(path)
    if not isinstance(raw, dict) or raw.get("format") != FORMAT:
        raise InputError(path, field="format", reason=f"this version reads format {FORMAT}")
    version = _older_version(raw)
    if version is not None:
        reason = f"{version}: the last version that reads this checkpoint is 1.0.0; train it again"
        raise InputError(path, field="versions.claim2source", reason=reason)
    kind: type[AnyManifest] = RerankerManifest if RERANKER in raw else Manifest
    if path.name == EXPORT_FILE:  # which has more keys
        raw = {key.name: raw[key.name] for key in fields(kind) if key.name in raw}
    _require_keys(raw, path)
    claims = _read_claims(raw.pop(CLAIMS, None), path)
    # In JSON a list may represent a tuple.
    record: AnyManifest = replace(validated(kind, json.dumps(raw), path), trained_on=claims)
    folder = path.parent
    base_name = find_base(record.base.name, record.base.sha256, folder)
    dataset = find_dataset(record.data.dataset, folder)
    record = replace(
        record,
        base=replace(record.base, name=base_name),
        data=replace(record.data, dataset=dataset),
    )
    if isinstance(record, RerankerManifest) or record.source_model is None:
        return record
    sources = record.source_model
    name = find_base(sources.name, sources.sha256, folder, "teacher")
    return replace(record, source_model=replace(sources, name=name))


def _require_keys(raw: Mapping[str, Any], path: Path) -> None:
    """Raise `InputError` if a part of a manifest lacks a key that has no default."""
    for part, keys in _REQUIRED.items():
        values = raw.get(part)
        if not isinstance(values, dict):
            continue
        for key in keys:
            if key not in values:
                raise InputError(path, field=f"{part}.{key}", reason="is missing")


def _older_version(raw: Mapping[str, Any]) -> str | None:
    """Return the version before 1.0 that wrote a manifest; None for 1.0 and later.

    An editable installation may state an older version than its code, so the settings decide.
    """
    versions = raw.get("versions")
    config = raw.get("config")
    version = None
    if isinstance(versions, dict):
        version = versions.get("claim2source")
    if not isinstance(version, str) or not version.startswith("0."):
        return None
    steps = None
    if isinstance(config, dict):
        steps = config.get("optimisation")
    if isinstance(steps, dict) and NEW_SINCE_0_2 in steps:
        return None
    return version


def _read_claims(sha256: object, path: Path) -> TrainedOn | None:
    """Read the claims next to a manifest, which has their hash; None if it has none."""
    if sha256 is None:
        return None
    if not isinstance(sha256, str):
        raise InputError(path, field=CLAIMS, reason="not a sha256")
    return TrainedOn.read(path.parent, sha256)


def without_paths(value: object) -> object:
    """Replace absolute paths among JSON values by their last part."""
    if isinstance(value, Mapping):
        return {key: without_paths(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_paths(item) for item in value]
    if isinstance(value, str) and os.path.isabs(value):
        return Path(value).name
    return value


def base_record(name: str) -> str:
    """Return the name under which a base is recorded: of a folder `./` and its last part."""
    if os.path.isabs(name):
        return f"{LOCAL}{Path(name).name}"
    return name


def remember_base(name: str, sha256: str) -> None:
    """Record a base's folder in the user's cache, for checkpoints away from their run."""
    if os.path.isabs(name) and Path(name).is_dir():
        try:
            write_text(_note(sha256), name)
        except OSError:
            return  # the run's config names it too


def _note(sha256: str) -> Path:
    return default_root() / "bases" / f"{Path(sha256).name}.txt"


def find_base(
    record: str,
    sha256: str,
    checkpoint: Path,
    group: str = "model",
) -> str:
    """Find the folder of a recorded base; return the record itself if there is none.

    Looks at `name` of this group in the run's config, in the user's cache, in the folder of
    models, next to the checkpoint and in the current folder. The caller must compare its hash.
    """
    if not record.startswith(LOCAL):
        return record
    name = Path(record).name
    paths = [_path_in_run_config(checkpoint, group, "name", name)]
    try:
        paths.append(_note(sha256).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        pass
    beside = checkpoint.resolve().parent / name
    paths += [local_name(record), str(beside), str(Path(name).resolve())]
    for path in paths:
        if path and Path(path).is_dir():
            return path
    return record


def is_lost(name: str) -> bool:
    """Whether a name is the record of a base that was a folder and was not found here."""
    return name.startswith(LOCAL) and not Path(name).is_dir()


def find_dataset(record: str | None, checkpoint: Path) -> str | None:
    """Find the data set of a record in the config of the checkpoint's run; else return it."""
    if not record or os.path.isabs(record):
        return record
    return _path_in_run_config(checkpoint, "data", "dataset", record) or record


def _path_in_run_config(
    checkpoint: Path,
    group: str,
    key: str,
    name: str,
) -> str | None:
    """Read a path from the config of a checkpoint's run, if its last part is `name`."""
    settings = run_settings(checkpoint.resolve().parent.parent).get(group)
    value = None
    if isinstance(settings, dict):
        value = settings.get(key)
    if isinstance(value, str) and Path(value).name == name:
        return value
    return None


def checkpoint_folder(name: str | Path) -> Path:
    """Return the checkpoint that a training run chose; any other folder as it is."""
    folder = Path(local_name(str(name)))
    is_run = (folder / RUN_FILE).is_file() and not (folder / FILE).is_file()
    return chosen_checkpoint(folder) if is_run else folder


def chosen_checkpoint(run_folder: Path) -> Path:
    path = run_folder / RUN_FILE
    run = read_json(path)
    if not isinstance(run, dict) or "chosen" not in run:
        raise InputError(path, field="chosen", reason="missing")
    name = run["chosen"]
    if name is None:
        raise InputError(path, field="chosen", reason="the run has not finished, so none is chosen")
    if not isinstance(name, str):
        raise InputError(path, field="chosen", reason="not a checkpoint's name")
    return run_folder / CHECKPOINTS / Path(name).name


def read_any_manifest(name: str) -> AnyManifest | None:
    """Read the manifest of a retriever's or a re-ranker's checkpoint; None for other models.

    A folder that `train/merge.py` wrote has the manifest of the checkpoint that was exported. So
    does its copy on the hub, once it is downloaded.
    """
    folder = checkpoint_folder(name)
    files = [folder / FILE, folder / EXPORT_FILE]
    if not folder.exists() and _HUB_NAME.fullmatch(name):
        files += _downloaded(name)
    return next((_read(file) for file in files if file.is_file()), None)


def _downloaded(name: str) -> list[Path]:
    """List the export files of a hub's model in the cache, the newest first."""
    from huggingface_hub.constants import HF_HUB_CACHE

    snapshots = Path(HF_HUB_CACHE, f"models--{name.replace('/', '--')}", "snapshots")
    files = snapshots.glob(f"*/{EXPORT_FILE}")
    return sorted(files, key=lambda path: path.lstat().st_mtime, reverse=True)


def trained_reranker(name: str) -> tuple[Path, RerankerManifest] | None:
    """Find a trained re-ranker by a checkpoint's folder, or by a run's folder.

    None for any other model, including a retriever's checkpoint.
    """
    folder = checkpoint_folder(name)
    manifest = None
    if (folder / FILE).is_file():
        manifest = _read(folder / FILE)
    if isinstance(manifest, RerankerManifest):
        return (folder, manifest)
    return None


def read_base_manifest(manifest: AnyManifest) -> AnyManifest | None:
    """Read the manifest of the checkpoint that another was trained from.

    None if that is not a checkpoint, or is no longer found.
    """
    base = read_any_manifest(manifest.base.name)
    folder = checkpoint_folder(manifest.base.name)
    if base is None:
        return None
    # A folder of that name may be another model.
    hashes = base.weights.sha256, _exported_sha256(folder)
    if manifest.base.sha256 in hashes:
        return base
    return None


def _exported_sha256(folder: Path) -> str | None:
    """Return the sha256 of an export's weights, which differs from its checkpoint's."""
    path = folder / EXPORT_FILE
    record = read_json(path) if path.is_file() else None
    sha256 = None
    if isinstance(record, dict):
        sha256 = record.get("sha256")
    return sha256 if isinstance(sha256, str) else None
