"""Find the claims that models were trained on, by their record or from the training data."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from claim2source.core.errors import ConfigError, UserError
from claim2source.core.records import Claim, Dataset
from claim2source.data.loading import load
from claim2source.data.split import carve_val
from claim2source.models import DataRecord, checkpoint_folder
from claim2source.models.manifest import Manifest, RerankerManifest, is_lost, read_any_manifest
from claim2source.models.trained_on import TrainedOn

log = logging.getLogger(__name__)

Trained = Manifest | RerankerManifest
VAL_SHARE, VAL_SEED = 0.1, 13


class TrainedOnData(Protocol):
    """Data set and split of a training."""

    @property
    def dataset(self) -> str: ...

    @property
    def train_split(self) -> str: ...


def require_held_out(key: str, names: Iterable[str], val: Dataset, data: TrainedOnData) -> None:
    """Raise `ConfigError` if a model was trained on claims of `val`.

    Checkpoints, training runs and exports, of the retriever or a re-ranker, record the claims that
    they and their bases were trained on. Without a record, the claims are those of its manifest's
    data and of its base's. Claims are the same if they have the same id and text, also in another
    or a mixed data set. `key` is the setting that names the models. A model whose claims are
    unknown gets a warning.
    """
    for name in dict.fromkeys(names):
        for model, manifest in _trained_bases(name):
            which = "it" if model == name else f"it was made from {model}, which"
            allowed = f"a model not trained on validation claims; {which}"
            if manifest is None:
                warn_if_unrecorded(key, TrainedOn(unrecorded=(Path(model).name,)))
                continue
            record = manifest.trained_on
            if record is not None and (count := sum(map(record.knows, val.claims))):
                reason = f"was trained on {count} of its {len(val.claims)}"
                raise ConfigError(key, name, f"{allowed} {reason}: {_remedy(manifest.data, val)}")
            if record is not None:
                warn_if_unrecorded(key, record)
            elif cause := _reason_known(manifest, val, data):
                raise ConfigError(key, name, f"{allowed} {cause}")
            elif not _is_rebuilt(manifest.data, val, data.dataset):
                warn_if_unrecorded(key, TrainedOn(unrecorded=(model,)))


def warn_if_unrecorded(subject: str, trained_on: TrainedOn) -> str:
    """Warn of models whose training claims are not recorded; return the warning as a note.

    The note is "" if all are recorded. `subject` is the part that the claims are chosen for.
    """
    if not trained_on.unrecorded:
        return ""
    names = ", ".join(trained_on.unrecorded)
    note = (
        f"the training claims of {names} are not recorded, and its training data are missing: it "
        "may have seen some of these claims, and its score on them would then be too high"
    )
    log.warning("%s: %s", subject, note)
    return note


def claims_models_saw(names: Iterable[str], dataset: str) -> TrainedOn:
    """Return the claims that any of several models, or one of their bases, was trained on.

    If they are not recorded, they are read from the training data, else from `dataset`.
    """
    trained_on = TrainedOn()
    for name in dict.fromkeys(names):
        trained_on |= _joined(_trained_bases(name), dataset)
    return trained_on


def claims_seen(manifest: Trained, dataset: str) -> TrainedOn:
    """Return the claims that a model or one of its bases was trained on.

    Like `claims_models_saw`, but for a manifest.
    """
    return _joined(_with_bases(model_label(manifest), manifest), dataset)


def _joined(models: Iterable[tuple[str, Trained | None]], dataset: str) -> TrainedOn:
    trained_on = TrainedOn()
    for name, manifest in models:
        record = None if manifest is None else manifest.trained_on
        if record is None:
            claims = None if manifest is None else rebuilt_claims(manifest.data, dataset)
            named = TrainedOn(unrecorded=(Path(name).name,))
            record = named if claims is None else TrainedOn.on(claims)
        trained_on |= record
    return trained_on


def model_label(manifest: Trained | None) -> str:
    """Describe a model by its base and data, if its name is unknown."""
    if manifest is None:
        return "the model"
    base, data = Path(manifest.base.name).name, manifest.data.dataset
    return f"the model tuned from {base}" + (f" on {Path(data).name}" if data else "")


def _trained_bases(name: str) -> Iterator[tuple[str, Trained | None]]:
    """Return the manifests of a model and of its bases, as far as they were trained here."""
    manifest = read_any_manifest(name)
    if manifest is not None:
        yield from _with_bases(name, manifest)


def _with_bases(name: str, manifest: Trained) -> Iterator[tuple[str, Trained | None]]:
    """List a model and its trained bases; a record includes the claims of its bases.

    A base whose folder is missing has no manifest; it may have been trained.
    """
    waiting: list[tuple[str, Trained | None]] = [(name, manifest)]
    visited: set[Path] = set()
    while waiting:
        model, current = waiting.pop()
        folder = checkpoint_folder(model).resolve()
        if folder in visited:
            continue
        visited.add(folder)
        if is_lost(model) or (current is not None and current.trained_on is not None):
            yield model, current
            continue
        if current is None:
            continue
        if current.epoch:
            yield model, current
        parts = [current.base.name]
        if isinstance(current, Manifest) and current.source_model is not None:
            parts.append(current.source_model.name)
        waiting += [(part, read_any_manifest(part)) for part in parts]


def _reason_known(manifest: Trained, val: Dataset, current: TrainedOnData) -> str | None:
    """Describe that a model was trained on claims of val, with a remedy; None if it was not."""
    record = manifest.data
    if record.val_sha256 == val.fingerprint:
        return None
    claims = rebuilt_claims(record, current.dataset)
    if claims is None:
        same_data = Path(str(record.dataset)).name == Path(current.dataset).name
        if not same_data or record.train_split != current.train_split:
            return None
        reason = "was trained on claims of this data set, and held out others"
    else:
        trained = {key for claim in claims for key in _keys_of(claim)}
        count = sum(not trained.isdisjoint(_keys_of(claim)) for claim in val.claims)
        if not count:
            return None
        reason = f"was trained on {count} of its {len(val.claims)}"
    return f"{reason}: {_remedy(record, val)}"


def _remedy(record: DataRecord, val: Dataset) -> str:
    """Return the settings that hold out the same val as the base, whose record this is."""
    if record.val_share is None or record.val_sha256 == val.fingerprint:
        return "use another model, or train it without these claims"
    _, _, seen_share = val_shares(record)
    seen = f"data.val_seen_share {seen_share or 0:g}"
    if seen_share is None:
        seen = f"data.seen_share_expected {record.seen_share_expected:g}"
    languages = "" if record.languages is None else f", languages {', '.join(record.languages)}"
    return (
        f"set data.val_share {record.val_share}, data.val_seed {record.val_seed} and "
        f"{seen}, as in its training{languages}, or train it with this run's"
    )


def _is_rebuilt(record: DataRecord, val: Dataset, dataset: str) -> bool:
    """Whether the claims of a training without a record can be read from the data here."""
    return record.val_sha256 == val.fingerprint or rebuilt_claims(record, dataset) is not None


def _keys_of(claim: Claim) -> set[tuple[str, str]]:
    # A mixed data set puts the set's name and a slash before its ids.
    return {(name, claim.text) for name in (claim.id, claim.id.partition("/")[2]) if name}


def rebuilt_claims(record: DataRecord, dataset: str) -> Sequence[Claim] | None:
    """List the claims that a model was trained on; None if they are missing.

    They are read from the named data set, if the same val is held out there, or from this run's,
    if it is the same data set in another folder.
    """
    for name in dict.fromkeys((record.dataset, dataset)):
        if name is None or record.train_split is None or record.val_share is None:
            continue
        share, seed, seen_share = val_shares(record)
        mix = record.seen_share_expected if seen_share is None else None
        try:
            train = load(name, record.train_split, record.languages or None, lenient=True)
            part = share if seen_share is None else seen_share
            rest, val = carve_val(train, share, seed, seen_share=part, mix=mix)
        except UserError:
            continue
        # Parts of a data set may hold out the same claims.
        same_train = name == record.dataset or rest.fingerprint == record.train_sha256
        if same_train and val.fingerprint == record.val_sha256:
            return rest.claims
    return None


def val_shares(data: DataRecord) -> tuple[float, int, float | None]:
    """Return share, seed and share of seen papers of a training's val; defaults fill gaps.

    The share of seen papers is None if the expected one is also their share of val.
    """
    share = VAL_SHARE if data.val_share is None else data.val_share
    seed = VAL_SEED if data.val_seed is None else data.val_seed
    if data.val_seen_share is not None:
        return share, seed, data.val_seen_share
    if data.val_share is None:
        return share, seed, VAL_SHARE
    # A manifest with neither share of seen papers: its val has only unseen papers.
    return share, seed, None if data.seen_share_expected is not None else 0.0
