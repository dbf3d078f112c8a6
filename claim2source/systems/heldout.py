"""Find the claims that settings may be chosen on: nothing was trained or is reported on them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

import numpy as np

from claim2source.core.config import require
from claim2source.core.errors import ConfigError, InputError, UserError
from claim2source.core.records import Claim, Dataset
from claim2source.core.report import MACRO, Rule
from claim2source.datasets import carve_val, expected_seen_share, load, seen_claims
from claim2source.datasets.grouping import plain_text
from claim2source.models import DataRecord, checkpoint_folder
from claim2source.models.manifest import Manifest, RerankerManifest, manifest_of, manifest_of_base
from claim2source.systems.choose import Weighing, weigh
from claim2source.systems.runtime import SystemRuntime
from claim2source.text import ClaimForm

log = logging.getLogger(__name__)

Value = TypeVar("Value")
Trained = Manifest | RerankerManifest
TRAIN_SPLIT, VAL_SHARE, VAL_SEED = "train", 0.1, 13

_DIFFERS = "the val carved here is not the one training held out: the data differ"
_KNOWS_TRAIN = "val: the model was trained on train; only `carved` is unseen"


@dataclass(frozen=True)
class ChoosingOn:
    """Name the claims that settings are chosen on.

    BM25's are chosen on all of `split` (none: as the checkpoint's manifest says, else train): it
    has no weights that could know those claims. A fusion's are chosen on the part that training
    carves out (`carved`: as the manifest says, else by the training defaults), on all of it
    (`train`), or as its dense part allows (`auto`). `rule` is how is chosen. `lenient`: how the
    data set is loaded.
    """

    split: str | None = None
    val: Literal["auto", "carved", "train"] = "auto"
    lenient: bool = False
    rule: Rule = "one_se"


class NothingToChooseOn(UserError):
    """Report that there are no claims to choose settings on besides those reported."""


@dataclass(frozen=True)
class SelectionData:
    """Hold the claims that settings are chosen on; `note` says where training held out others.

    `seen` are the claims of val whose papers stay in train, `seen_share` the mix of both parts to
    choose for. `labels` are verdicts by claim, where there are any.
    """

    train: Dataset
    val: Dataset
    note: str = ""
    seen: frozenset[str] = frozenset()
    seen_share: float | None = None
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def trained_golds(self) -> frozenset[str] | None:
        """Return the golds of the claims that were trained on; None where nothing was trained."""
        if self.val is self.train:
            return None
        held_out = {claim.id for claim in self.val.claims}
        trained = (claim for claim in self.train.claims if claim.id not in held_out)
        return frozenset(gold for claim in trained for gold in claim.golds)

    def weighing(self, data: Dataset | None = None, language: str = MACRO) -> Weighing:
        """Weigh val's claims; `data` are the same claims in another form."""
        return weigh(self.val if data is None else data, self.seen, self.seen_share, language)


def carve(
    dataset: Dataset, share: float, seed: int, seen_share: float, mix: float | None = None
) -> SelectionData:
    """Carve val out of a split; the rest may be trained on.

    `mix` is the share of claims of seen papers to choose for; none: what is expected.
    """
    rest, val = carve_val(dataset, share, seed, seen_share=seen_share)
    mix = expected_seen_share(dataset) if mix is None else mix
    return SelectionData(rest, val, "", seen_claims(rest, val), mix)


def unknown_to_all(selections: Sequence[SelectionData]) -> SelectionData:
    """Return the claims that none of several models was trained on.

    They are weighed as those of the first that held some out. Raises `NothingToChooseOn` where no
    claim with a gold is left.
    """
    first = next(
        (selection for selection in selections if selection.val is not selection.train),
        selections[0],
    )
    shared = set.intersection(
        *({claim.id for claim in selection.val.claims} for selection in selections)
    )
    unknown = [claim for claim in first.val.claims if claim.id in shared]
    if not any(claim.golds for claim in unknown):
        raise NothingToChooseOn("no claim of train is unknown to all of the models")
    val = first.val if len(unknown) == len(first.val.claims) else first.val.with_claims(unknown)
    notes = dict.fromkeys(selection.note for selection in selections if selection.note)
    return replace(first, val=val, note="; ".join(notes))


def one_val(language: str, selections: Mapping[str, SelectionData]) -> SelectionData:
    """Return the claims that none of several systems was trained on, to choose among them.

    Systems without trained weights have all of train; of trained ones, each must have held out the
    same val. Raises `UserError` where they have not, `NothingToChooseOn` where no claim of the
    language with a gold is left.
    """
    held_out = {
        name: selection
        for name, selection in selections.items()
        if selection.val is not selection.train
    }
    selection = next(iter((held_out or selections).values()))
    for name, of_route in held_out.items():
        if of_route.val.fingerprint != selection.val.fingerprint:
            raise UserError(
                f"routes.{language}: {next(iter(held_out))} and {name} held out other claims of "
                "train: train them with the same data.val_share, val_seed and val_seen_share"
            )
    mine = selection.val.in_languages([language])
    if not mine.golds:
        raise NothingToChooseOn(f"routes.{language}: no {language} claim of val has a gold")
    return selection


@dataclass(eq=False)
class HeldOut:
    """Answer which claims of a data set something may be chosen on, for one reported split.

    `manifests` are those of all that was trained and is part of what is chosen: their training
    must not have seen the claims. None stands for a model without one. `own_train` are the
    claims themselves, in place of a data set's train, with `labels`, their verdicts.
    """

    dataset: str
    reported: str
    choosing: ChoosingOn = ChoosingOn()
    own_train: Dataset | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    _values: dict[str, Any] = field(default_factory=dict, init=False)
    _shared: dict[str, dict[str, np.ndarray]] = field(default_factory=dict, init=False)

    def without(self, claims: Collection[str]) -> HeldOut:
        """Remove some of the given claims, which are reported: a fold of a cross-validation."""
        assert self.own_train is not None
        rest = self.own_train.with_claims(
            claim for claim in self.own_train.claims if claim.id not in claims
        )
        reduced = HeldOut(self.dataset, self.reported, self.choosing, rest, self.labels)
        reduced._shared = self._shared
        return reduced

    def shared(self, key: object) -> dict[str, np.ndarray]:
        """Return the values per claim, by id, that depend on no other claim; folds share them."""
        return self._shared.setdefault(repr(key), {})

    def get_or_make(self, key: object, make: Callable[[], Value]) -> Value:
        """Return the value made for a key of the same content, else make it."""
        text = repr(key)
        if text not in self._values:
            self._values[text] = make()
        value: Value = self._values[text]
        return value

    def train(self, split: str | None = None) -> Dataset:
        """Load the claims for parts without weights: all of train, or of the split that is named.

        Raises `NothingToChooseOn` where it is the reported one, is not there, or has no golds.
        """
        if self.own_train is not None:
            return self._with_golds(self.own_train)
        split = self.choosing.split or split or TRAIN_SPLIT
        return self.get_or_make(split, lambda: self._load(split))

    def _load(self, split: str) -> Dataset:
        if split == self.reported:
            raise NothingToChooseOn(
                f"split: {split!r} is the split to choose settings on, and not reported on"
            )
        try:
            train = load(self.dataset, split, lenient=self.choosing.lenient)
        except InputError as error:
            raise NothingToChooseOn(str(error)) from None
        return self._with_golds(train)

    def _with_golds(self, data: Dataset) -> Dataset:
        if not data.golds:
            raise NothingToChooseOn(
                f"{self.dataset}: no claim of {data.split!r} has a gold to choose by"
            )
        return data

    def claims(self, manifests: Iterable[Trained | None]) -> SelectionData:
        """Load the claims that none of several models knows; all of train where none is trained.

        A checkpoint's manifest says how its val was carved. One that was trained from another
        checkpoint knows the claims of both, where the data of both are here. Raises
        `UserError` for settings that contradict a trained one's, `NothingToChooseOn` where no
        claim with a gold is left.
        """
        if self.own_train is not None:
            return SelectionData(self.own_train, self.own_train, labels=self.labels)
        models = list(manifests) or [None]
        return self.get_or_make(
            models, lambda: unknown_to_all([self._unknown_to(model) for model in models])
        )

    def _unknown_to(self, manifest: Trained | None) -> SelectionData:
        """Find the claims that a model and its base held out."""
        selection = self._held_out_by(manifest)
        base = None if manifest is None else manifest_of_base(manifest)
        if base is None:
            return selection
        own = HeldOut(self.dataset, self.reported, ChoosingOn(lenient=self.choosing.lenient))
        try:
            of_base = own._unknown_to(base)
        except NothingToChooseOn:
            return selection
        if _DIFFERS in of_base.note or of_base.val is of_base.train:
            return selection  # the base was trained on other data, or not at all
        if self.choosing.val == "train":
            raise UserError(_KNOWS_TRAIN)
        return unknown_to_all([selection, of_base])

    def _held_out_by(self, manifest: Trained | None) -> SelectionData:
        """Find the claims that a model's last training held out; all of train without one."""
        data, choosing = DataRecord() if manifest is None else manifest.data, self.choosing
        trained = manifest is not None and manifest.weights.kind != "base"
        if trained and None not in (choosing.split, data.train_split):
            allowed = f"{data.train_split}, as the checkpoint's manifest says"
            require(choosing.split == data.train_split, "train_split", choosing.split, allowed)
        if choosing.val == "train" and trained:
            raise UserError(_KNOWS_TRAIN)
        train = self.train(data.train_split)
        if choosing.val == "train" or (choosing.val == "auto" and not trained):
            return SelectionData(train, train)
        selection = self.carved(data)
        note = ""
        if trained and data.val_sha256 != selection.val.fingerprint:
            claims = _claims_of(data, self.dataset)
            if claims is not None:
                return self._without(train, claims, selection)
            note = _DIFFERS
            if data.dataset is not None:
                note += f", and {data.dataset}, which it was trained on, is not here"
        if not selection.val.golds:
            raise NothingToChooseOn(f"{self.dataset}: no claim of val has a gold to choose by")
        return replace(selection, train=train, note=note)

    def _without(
        self, train: Dataset, trained: Sequence[Claim], carved: SelectionData
    ) -> SelectionData:
        """Return the claims of train that a training on other data did not see, by their text.

        Those of a paper with a claim that it saw are weighed as in `carved`, which is returned
        where it saw none and `carved` claims are wanted.
        """
        texts = {plain_text(claim.text) for claim in trained}
        unknown = [claim for claim in train.claims if plain_text(claim.text) not in texts]
        if len(unknown) == len(train.claims):
            carves = self.choosing.val == "carved"
            return replace(carved, train=train) if carves else SelectionData(train, train)
        val = self._with_golds(train.with_claims(unknown, "val"))
        trained_on = len(train.claims) - len(unknown)
        note = f"without the {trained_on} claims of {train.split} that training on other data saw"
        papers = {gold for c in train.claims if plain_text(c.text) in texts for gold in c.golds}
        seen = frozenset(claim.id for claim in unknown if papers & set(claim.golds))
        return SelectionData(train, val, note, seen, carved.seen_share)

    def carved(self, data: DataRecord) -> SelectionData:
        """Carve val out of train as a training did; the usual settings fill gaps of its manifest.

        `train` is what is left, in the languages of the training.
        """
        train = self.train(data.train_split)
        if data.languages:  # of these alone val was carved
            train = load(self.dataset, train.split, data.languages, lenient=self.choosing.lenient)
        share = VAL_SHARE if data.val_share is None else data.val_share
        seed = VAL_SEED if data.val_seed is None else data.val_seed
        # A manifest of version 0.1.0 does not say it: its val has unseen papers only.
        unsaid = VAL_SHARE if data.val_share is None else 0.0
        seen_share = unsaid if data.val_seen_share is None else data.val_seen_share
        return carve(train, share, seed, seen_share, data.seen_share_expected)


@dataclass(frozen=True)
class Fitting:
    """Hold the input of fitting a system: claims held out, the claim form, the reported languages.

    `form` is none where every part is run with its own; `train_split` is the train of a
    checkpoint beside it, by its manifest.
    """

    held_out: HeldOut
    runtime: SystemRuntime
    languages: tuple[str, ...] = ()
    form: ClaimForm | None = None
    train_split: str | None = None

    def train(self) -> Dataset:
        """Load the claims for parts without weights."""
        return self.held_out.train(self.train_split)

    @property
    def rule(self) -> Rule:
        return self.held_out.choosing.rule

    def get_or_make(self, made_of: object, make: Callable[[], Value]) -> Value:
        """Choose a setting, once for equal parts, form and texts, whatever they are called."""
        return self.held_out.get_or_make((made_of, self.form), make)


class TrainedOn(Protocol):
    """Name the data set and split that a training reads."""

    @property
    def dataset(self) -> str: ...

    @property
    def train_split(self) -> str: ...


def require_held_out(key: str, names: Iterable[str], val: Dataset, data: TrainedOn) -> None:
    """Raise `ConfigError` where a model was trained on claims of `val`, which it would know.

    A model was, where its manifest says so or that of what it was trained from: checkpoints,
    training runs and exports, of the retriever or a re-ranker. `key` is what names them. Claims
    are the same with the same id and text, in whatever data set, also where it is mixed with
    others. A model whose manifest does not say what it was trained on gets a warning.
    """
    for name in dict.fromkeys(names):
        for model, manifest in _trained_bases(name):
            if manifest.data.dataset is None:
                log.warning(
                    "%s: %s does not say which claims it was trained on; val may have some of them",
                    *(key, model),
                )
            elif why := _reason_known(manifest, val, data):
                which = "it" if model == name else f"it was made from {model}, which"
                raise ConfigError(key, name, f"a model that val's claims are new to; {which} {why}")


def _trained_bases(name: str) -> Iterator[tuple[str, Trained]]:
    """Find the manifests of a model and of its bases, as far as they were trained here."""
    waiting, visited = [name], set()
    while waiting:
        model = waiting.pop()
        folder = checkpoint_folder(model)
        manifest = manifest_of(model)
        if manifest is None or folder.resolve() in visited:
            continue
        visited.add(folder.resolve())
        if manifest.epoch:
            yield model, manifest
        waiting.append(manifest.base.name)
        if isinstance(manifest, Manifest) and manifest.source_model is not None:
            waiting.append(manifest.source_model.name)


def _reason_known(manifest: Trained, val: Dataset, current: TrainedOn) -> str | None:
    """Report that a model was trained on claims of val, and a remedy; None where it was not."""
    record = manifest.data
    if record.val_sha256 == val.fingerprint:
        return None
    claims = _claims_of(record, current.dataset)
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
    seen = record.val_seen_share or 0.0
    languages = "" if record.languages is None else f", languages {', '.join(record.languages)}"
    return (
        f"{reason}: set data.val_share {record.val_share}, data.val_seed {record.val_seed} and "
        f"data.val_seen_share {seen:g}, as it was trained{languages}, or train it with this run's"
    )


def _keys_of(claim: Claim) -> set[tuple[str, str]]:
    # A mixed data set puts the set's name and a slash before its ids.
    return {(name, claim.text) for name in (claim.id, claim.id.partition("/")[2]) if name}


def _claims_of(record: DataRecord, dataset: str) -> Sequence[Claim] | None:
    """List the claims that a model was trained on; None where they are not here any more.

    They are taken from the data set that is named, if the same val is held out there, or from
    this run's, if it is the same at another place.
    """
    for name in dict.fromkeys((record.dataset, dataset)):
        if name is None or record.train_split is None or record.val_share is None:
            continue
        try:
            selection = HeldOut(name, "", ChoosingOn(lenient=True)).carved(record)
        except UserError:
            continue
        # Parts of a data set may hold out the same claims.
        same_train = name == record.dataset or selection.train.fingerprint == record.train_sha256
        if same_train and selection.val.fingerprint == record.val_sha256:
            return selection.train.claims
    return None
