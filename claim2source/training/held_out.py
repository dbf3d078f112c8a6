"""Refuse a base, first stage or teacher that was trained on the claims of val."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from claim2source.core.errors import ConfigError, UserError
from claim2source.core.records import Claim, Dataset
from claim2source.datasets import carve_val, load
from claim2source.models import Manifest, checkpoint_folder
from claim2source.models.local import local_models, local_name
from claim2source.models.manifest import DataRecord
from claim2source.models.reranker_manifest import RerankerManifest, manifest_of
from claim2source.systems.nodes import DenseNode
from claim2source.systems.system import System
from claim2source.training.config import RunConfig

log = logging.getLogger(__name__)

Trained = Manifest | RerankerManifest


def require_held_out(key: str, names: Iterable[str], val: Dataset, config: RunConfig) -> None:
    """Raise `ConfigError` where a model was trained on claims of `val`, which it would know.

    A model was, where its manifest says so or that of what it was trained from: checkpoints,
    training runs and exports, of the retriever or a re-ranker. `key` is what names them. Claims
    are the same with the same id and text, in whatever data set. A model whose manifest does not
    say what it was trained on gets a warning.
    """
    for name in dict.fromkeys(names):
        for place, manifest in _trained(name):
            if manifest.data.dataset is None:
                log.warning(
                    "%s: %s does not say which claims it was trained on; val may have some of them",
                    *(key, place),
                )
            elif why := _why_known(manifest, val, config):
                which = "it" if place == name else f"it was made from {place}, which"
                raise ConfigError(key, name, f"a model that val's claims are new to; {which} {why}")


def models_of(system: System, folder: Path | None = None) -> list[str]:
    """Name the models of a system and its stages; those in `folder` by their place."""
    nodes = system.first.walk()
    found = [node.model.name for node in nodes if isinstance(node, DenseNode)] + system.models()
    with local_models(folder):
        return [local_name(model) for model in found]


def _trained(name: str) -> Iterator[tuple[str, Trained]]:
    """Find the manifests of a model and of what it was made from, where it was trained by us."""
    waiting, known = [name], set()
    while waiting:
        place = waiting.pop()
        folder = checkpoint_folder(place)
        manifest = manifest_of(place)
        if manifest is None or folder.resolve() in known:
            continue
        known.add(folder.resolve())
        if manifest.epoch:
            yield place, manifest
        waiting.append(manifest.base.name)
        if isinstance(manifest, Manifest) and manifest.source_model is not None:
            waiting.append(manifest.source_model.name)


def _why_known(manifest: Trained, val: Dataset, config: RunConfig) -> str | None:
    """Say that a model was trained on claims of val, and what to do; None where it was not."""
    record = manifest.data
    if record.val_sha256 == val.fingerprint:
        return None
    claims = _claims_of(record, config)
    if claims is None:
        here = config.data
        same = Path(str(record.dataset)).name == Path(here.dataset).name
        if not same or record.train_split != here.train_split:
            return None
        said = "was trained on claims of this data set, and held out others"
    else:
        trained = {(claim.id, claim.text) for claim in claims}
        known = sum((claim.id, claim.text) in trained for claim in val.claims)
        if not known:
            return None
        said = f"was trained on {known} of its {len(val.claims)}"
    seen = record.val_seen_share or 0.0
    languages = "" if record.languages is None else f", languages {', '.join(record.languages)}"
    return (
        f"{said}: set data.val_share {record.val_share}, data.val_seed {record.val_seed} and "
        f"data.val_seen_share {seen:g}, as it was trained{languages}, or train it with this run's"
    )


def _claims_of(record: DataRecord, config: RunConfig) -> Sequence[Claim] | None:
    """List the claims that a model was trained on; None where they are not here any more.

    They are taken from the data set that is named, if the same val is held out there, or from
    this run's, if it is the same at another place.
    """
    for place in dict.fromkeys((record.dataset, config.data.dataset)):
        if place is None or record.train_split is None or record.val_share is None:
            continue
        languages = None if record.languages is None else list(record.languages)
        try:
            whole = load(place, record.train_split, languages, lenient=True)
            rest, val = carve_val(
                whole,
                record.val_share,
                13 if record.val_seed is None else record.val_seed,
                seen_share=record.val_seen_share or 0.0,
            )
        except UserError:
            continue
        # Parts of a data set may hold out the same claims.
        same = place == record.dataset or rest.fingerprint == record.train_sha256
        if same and val.fingerprint == record.val_sha256:
            return rest.claims
    return None
