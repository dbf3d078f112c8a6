"""Find the claims that settings may be chosen on: neither trained on nor reported."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

from claim2source.core.config import require
from claim2source.core.errors import ConfigError, InputError, UserError
from claim2source.core.records import Dataset
from claim2source.core.report import MACRO, Rule
from claim2source.data.grouping import plain_text
from claim2source.data.loading import load
from claim2source.data.split import carve_val, expected_seen_share, seen_claims
from claim2source.models import DataRecord
from claim2source.models.manifest import is_lost, read_base_manifest
from claim2source.models.trained_on import TrainedOn
from claim2source.search.choose import Weighing, weigh
from claim2source.systems.runtime import SystemRuntime
from claim2source.systems.seen import (
    Trained,
    claims_seen,
    model_label,
    rebuilt_claims,
    val_shares,
    warn_if_unrecorded,
)
from claim2source.text import ClaimForm

log = logging.getLogger(__name__)

Value = TypeVar("Value")
TRAIN_SPLIT = "train"

_DIFFERS = "the val carved here is not the val that training held out: the data differ"
_KNOWS_TRAIN = "val: the model was trained on train; only `carved` is unseen"
_MODEL_SAW = "the model was trained on"


@dataclass(frozen=True)
class ChoosingOn:
    """Name the claims that settings are chosen on.

    BM25's settings are chosen on all of `split` (None: the split in the checkpoint's manifest, else
    train), because BM25 has no trained weights. A fusion's are chosen on the part that training
    carves out (`carved`: as in the manifest, else by the training defaults), on all of the split
    (`train`), or on what its dense part allows (`auto`). `rule` is the rule of the choice;
    `lenient` is passed on when the data set is loaded.
    """

    split: str | None = None
    val: Literal["auto", "carved", "train"] = "auto"
    lenient: bool = False
    rule: Rule = "one_se"


class NothingToChooseOn(UserError):
    """Raised if no claims are left to choose settings on."""


@dataclass(frozen=True)
class SelectionData:
    """Claims that settings are chosen on; `note` says if training held out other claims.

    `seen` are the claims of val whose papers stay in train; `seen_share` is their weight in the
    choice. `labels` are verdicts by claim, if there are any.
    """

    train: Dataset
    val: Dataset
    note: str = ""
    seen: frozenset[str] = frozenset()
    seen_share: float | None = None
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def measured_share(self) -> float:
        """Return the share of val's judged claims whose paper also has a training claim."""
        judged = [claim for claim in self.val.claims if claim.golds]
        known = sum(claim.id in self.seen for claim in judged)
        return known / max(len(judged), 1)

    @property
    def trained_golds(self) -> frozenset[str] | None:
        """Return the golds of the training claims; None if nothing was trained."""
        if self.val is self.train:
            return None
        held_out = {claim.id for claim in self.val.claims}
        trained = (claim for claim in self.train.claims if claim.id not in held_out)
        return frozenset(gold for claim in trained for gold in claim.golds)

    def without(self, claims: Collection[str], note: str = "") -> SelectionData:
        """Return the selection without the claims of these ids; `note` describes them."""
        unknown = [claim for claim in self.val.claims if claim.id not in claims]
        if len(unknown) == len(self.val.claims):
            return self
        notes = "; ".join(filter(None, (self.note, note)))
        return replace(self, val=self.val.with_claims(unknown, "val"), note=notes)

    def unknown_to(self, trained_on: TrainedOn, whose: str) -> SelectionData:
        """Return the selection without claims that were trained on; the note begins with `whose`.

        Raises `NothingToChooseOn` if no claim with a gold is left.
        """
        known = {claim.id for claim in self.val.claims if trained_on.knows(claim)}
        if not known:
            return self
        counted = f"{len(known)} of {len(self.val.claims)} claims"
        rest = self.without(known, f"without {counted} that {whose}")
        if not rest.val.golds:
            raise NothingToChooseOn(f"{whose} {counted}; no claim with a gold is left")
        return rest

    def weighing(self, data: Dataset | None = None, language: str = MACRO) -> Weighing:
        """Weigh val's claims; `data` are the same claims in another form."""
        return weigh(self.val if data is None else data, self.seen, self.seen_share, language)


def carve(
    dataset: Dataset,
    share: float,
    seed: int,
    seen_share: float | None,
    expected: float | None = None,
) -> SelectionData:
    """Carve val out of a split; the rest may be trained on.

    `expected` is the weight of claims of seen papers; None: their share in the split. If
    `seen_share` is None, an expected share is also their share of val, else it is `share`.
    """
    mix = expected if seen_share is None else None
    part = share if seen_share is None else seen_share
    rest, val = carve_val(dataset, share, seed, seen_share=part, mix=mix)
    weight = expected_seen_share(dataset) if expected is None else expected
    return SelectionData(rest, val, "", seen_claims(rest, val), weight)


def unknown_to_all(selections: Sequence[SelectionData]) -> SelectionData:
    """Return the claims that none of several models was trained on.

    Weights are those of the first model that held claims out. Raises `NothingToChooseOn` if no
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
        raise NothingToChooseOn("every claim of train was seen by one of the models")
    val = first.val if len(unknown) == len(first.val.claims) else first.val.with_claims(unknown)
    notes = dict.fromkeys(selection.note for selection in selections if selection.note)
    return replace(first, val=val, note="; ".join(notes))


def one_val(language: str, selections: Mapping[str, SelectionData]) -> SelectionData:
    """Return the claims to choose among several systems on: none of them was trained on these.

    Systems without trained weights can use all of train. Trained systems must have held out the
    same val. Raises `UserError` if they did not, `NothingToChooseOn` if no claim of the language
    with a gold is left.
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
    """Find the claims of a data set that settings may be chosen on, for one reported split.

    `manifests` are those of all trained models that the choice involves; their training must not
    have seen the claims. None is a model without a manifest. `own_train` has the claims if they
    are not a data set's train, with `labels`, their verdicts.
    """

    dataset: str
    reported: str
    choosing: ChoosingOn = ChoosingOn()
    own_train: Dataset | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    _values: dict[str, Any] = field(default_factory=dict, init=False)
    _shared: dict[str, dict[str, np.ndarray]] = field(default_factory=dict, init=False)

    def without(self, claims: Collection[str]) -> HeldOut:
        """Remove claims that are reported: a fold of a cross-validation."""
        assert self.own_train is not None
        rest = self.own_train.with_claims(
            claim for claim in self.own_train.claims if claim.id not in claims
        )
        reduced = HeldOut(self.dataset, self.reported, self.choosing, rest, self.labels)
        reduced._shared = self._shared
        return reduced

    def shared(self, key: object) -> dict[str, np.ndarray]:
        """Return values by claim id that do not depend on other claims; folds share them."""
        return self._shared.setdefault(repr(key), {})

    def get_or_make(self, key: object, make: Callable[[], Value]) -> Value:
        """Return the value for a key of the same content; make it if there is none."""
        text = repr(key)
        if text not in self._values:
            self._values[text] = make()
        value: Value = self._values[text]
        return value

    def train(self, split: str | None = None) -> Dataset:
        """Load the claims for parts without weights: all of train, or of the named split.

        Raises `NothingToChooseOn` if the split is reported, is missing, or has no golds.
        """
        if self.own_train is not None:
            return self._with_golds(self.own_train)
        split = self.choosing.split or split or TRAIN_SPLIT
        return self.get_or_make(split, lambda: self._load(split))

    def _load(self, split: str) -> Dataset:
        if split == self.reported:
            raise NothingToChooseOn(
                f"split: settings are chosen on {split!r}, so it cannot be reported on"
            )
        try:
            train = load(self.dataset, split, lenient=self.choosing.lenient)
        except InputError as error:
            raise NothingToChooseOn(str(error)) from None
        return self._with_golds(train)

    def _with_golds(self, data: Dataset) -> Dataset:
        if not data.golds:
            raise NothingToChooseOn(f"{self.dataset}: no claim of {data.split!r} has a gold")
        return data

    def claims(
        self, manifests: Iterable[Trained | None], fitted_on: Iterable[TrainedOn] = ()
    ) -> SelectionData:
        """Load the claims that no model was trained on; all of train if no model is trained.

        The training claims of a model are recorded next to its manifest. Without this record, val
        is carved as in the manifest. A model that was trained from another checkpoint has also seen
        the other's claims; these are known only if the data of both are here, else a warning names
        the risk. `fitted_on` are claims that other parts were fitted on, such as a learned fusion.
        Raises `UserError` for settings that contradict a trained model's, `NothingToChooseOn` if
        no claim with a gold is left.
        """
        models = list(manifests) or [None]
        key = [(model, None if model is None else model.trained_on) for model in models]
        selection = self.get_or_make(
            [(model, None if record is None else record.sha256) for model, record in key],
            lambda: self._unknown_to_models(models),
        )
        for trained_on in fitted_on:
            note = warn_if_unrecorded(self.dataset, trained_on)
            selection = selection.unknown_to(trained_on, "a part of the system was fitted on")
            notes = "; ".join(filter(None, (selection.note, note)))
            selection = replace(selection, note=notes)
        return selection

    def _unknown_to_models(self, models: Sequence[Trained | None]) -> SelectionData:
        if self.own_train is None:
            return unknown_to_all([self._unknown_to(model) for model in models])
        selection = SelectionData(self.own_train, self.own_train, labels=self.labels)
        for model in models:
            if model is None:
                continue
            trained_on = claims_seen(model, self.dataset)
            warn_if_unrecorded(self.dataset, trained_on)
            selection = selection.unknown_to(trained_on, _MODEL_SAW)
        return selection

    def _unknown_to(self, manifest: Trained | None) -> SelectionData:
        """Find the claims that a model and its bases were not trained on."""
        record = None if manifest is None else manifest.trained_on
        if manifest is None or record is None:
            return self._unknown_by_data(manifest)
        if not record.unrecorded:
            return self._unknown_by_record(manifest, record)
        note = warn_if_unrecorded(self.dataset, record)
        selection = self._unknown_by_data(manifest).unknown_to(record, _MODEL_SAW)
        return replace(selection, note="; ".join(filter(None, (selection.note, note))))

    def _unknown_by_record(self, manifest: Trained, trained_on: TrainedOn) -> SelectionData:
        """Return the claims that are not recorded as trained on.

        They are the val that training held out if it used this data set; else all claims of train
        that it did not use.
        """
        data, choosing = manifest.data, self.choosing
        trained, carves = manifest.weights.kind != "base", choosing.val == "carved"
        self._require_split(data, trained)
        train = self.train(data.train_split)
        known = {claim.id for claim in train.claims if trained_on.knows(claim)}
        if choosing.val == "train" and known:
            raise UserError(_KNOWS_TRAIN)
        if choosing.val == "train" or (choosing.val == "auto" and not trained and not known):
            return SelectionData(train, train)
        try:
            carved = replace(self.carved(data), train=train)
        except ConfigError:
            # The data set is not the training's: other languages or too few claims.
            if carves:
                raise
            carved = SelectionData(train, train, seen_share=expected_seen_share(train))
        counted = f"{sum(claim.id in known for claim in carved.val.claims)} claims"
        held_out = carved.without(known, f"without {counted} that {_MODEL_SAW}")
        prints = carved.val.fingerprint, held_out.val.fingerprint
        if (trained and data.val_sha256 in prints) or (carves and not trained):
            if not held_out.val.golds:
                raise NothingToChooseOn(
                    f"{self.dataset}: the model was trained on every claim of val that has a gold"
                )
            return held_out
        return self._without(train, known, carved)

    def _require_split(self, data: DataRecord, trained: bool) -> None:
        """Raise `ConfigError` if the split to choose on is not the model's training split."""
        if trained and None not in (self.choosing.split, data.train_split):
            is_same = self.choosing.split == data.train_split
            allowed = f"{data.train_split}, the split in the checkpoint's manifest"
            require(is_same, "train_split", self.choosing.split, allowed)

    def _unknown_by_data(self, manifest: Trained | None) -> SelectionData:
        """Return the claims that a model and its base held out, by the data of their trainings."""
        selection = self._held_out_by(manifest)
        base = None if manifest is None else read_base_manifest(manifest)
        if manifest is not None and is_lost(manifest.base.name):
            note = warn_if_unrecorded(
                self.dataset, TrainedOn(unrecorded=(Path(manifest.base.name).name,))
            )
            return replace(selection, note="; ".join(filter(None, (selection.note, note))))
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
        """Return the claims that a model's last training held out; all of train if untrained."""
        data, choosing = DataRecord() if manifest is None else manifest.data, self.choosing
        trained = manifest is not None and manifest.weights.kind != "base"
        self._require_split(data, trained)
        if choosing.val == "train" and trained:
            raise UserError(_KNOWS_TRAIN)
        train = self.train(data.train_split)
        if choosing.val == "train" or (choosing.val == "auto" and not trained):
            return SelectionData(train, train)
        selection = self.carved(data)
        note = ""
        if trained and data.val_sha256 != selection.val.fingerprint:
            claims = rebuilt_claims(data, self.dataset)
            if claims is not None:
                texts = {plain_text(claim.text) for claim in claims}
                known = {claim.id for claim in train.claims if plain_text(claim.text) in texts}
                return self._without(train, known, selection)
            note = _DIFFERS
            if data.dataset is not None:
                note += f", and its training data {data.dataset} are missing"
            warn_if_unrecorded(self.dataset, TrainedOn(unrecorded=(model_label(manifest),)))
        if not selection.val.golds:
            raise NothingToChooseOn(f"{self.dataset}: no claim of val has a gold")
        return replace(selection, train=train, note=note)

    def _without(
        self, train: Dataset, known: Collection[str], carved: SelectionData
    ) -> SelectionData:
        """Return the claims of train that a training on other data did not see, by their ids.

        Claims of a paper with a seen claim are weighted as in `carved`. If the training saw no
        claim and `carved` ones are wanted, `carved` is returned.
        """
        unknown = [claim for claim in train.claims if claim.id not in known]
        if not known:
            carves = self.choosing.val == "carved"
            return replace(carved, train=train) if carves else SelectionData(train, train)
        val = train.with_claims(unknown, "val")
        if not val.golds:
            reason = f"{len(known)} of the {len(train.claims)} claims of {train.split!r}"
            raise NothingToChooseOn(f"{self.dataset}: {_MODEL_SAW} {reason}")
        note = f"without the {len(known)} claims of {train.split} that training on other data saw"
        papers = {gold for c in train.claims if c.id in known for gold in c.golds}
        seen = frozenset(claim.id for claim in unknown if papers & set(claim.golds))
        return SelectionData(train, val, note, seen, carved.seen_share)

    def carved(self, data: DataRecord) -> SelectionData:
        """Carve val out of train as a training did; defaults fill gaps of its manifest.

        `train` of the result is the rest, in the languages of the training.
        """
        train = self.train(data.train_split)
        if data.languages:  # val was carved only from these
            train = load(self.dataset, train.split, data.languages, lenient=self.choosing.lenient)
        return carve(train, *val_shares(data), data.seen_share_expected)


@dataclass(frozen=True)
class Fitting:
    """Input of fitting a system: held-out claims, the claim form, the reported languages.

    `form` is None if every part is run with its own; `train_split` is the training split of a
    checkpoint in the system, by its manifest.
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
        """Choose a setting once for equal parts, form and texts, whatever their names."""
        return self.held_out.get_or_make((made_of, self.form), make)
