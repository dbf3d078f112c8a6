"""Run a system: a tree of first stages, then further stages, with settings chosen on val."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from claim2source.core.arguments import require_kind, whole_number
from claim2source.core.config import as_plain
from claim2source.core.errors import ConfigError, UserError
from claim2source.core.imports import code_hash, is_shipped
from claim2source.core.languages import by_primary_language
from claim2source.core.records import DATASET_WANTED, Claim, Dataset, Source
from claim2source.core.report import Choice
from claim2source.core.run import Cost, Result
from claim2source.core.stage import Index, as_claims, as_sources
from claim2source.core.terminal import one_line
from claim2source.data.store import Store
from claim2source.models import ModelConfig
from claim2source.models.manifest import read_any_manifest
from claim2source.models.trained_on import TrainedOn
from claim2source.search.dense import Dense
from claim2source.search.fuse import Hybrid
from claim2source.search.routes import DEFAULT, Routes
from claim2source.search.saved import Saved
from claim2source.stages.learned import Learned
from claim2source.systems.fit_retrieval import fit_retrieval
from claim2source.systems.heldout import (
    ChoosingOn,
    Fitting,
    HeldOut,
    NothingToChooseOn,
    SelectionData,
)
from claim2source.systems.own import Own
from claim2source.systems.retrieval import Retrieval, claims_behind_run, retrieval_settings
from claim2source.systems.runtime import SystemRuntime
from claim2source.systems.seen import claims_models_saw
from claim2source.systems.stages import (
    StageResult,
    SystemStage,
    apply_stages,
    fit_stages,
    stage_models,
)
from claim2source.text import ClaimForm

DEPTH = 100
FUSE = "fuse"
ROUTE = "route"
RETRIEVE = "retrieve"


@dataclass(frozen=True)
class SystemResult:
    """System's results for one claim form, one per stage; the last is the system's result.

    `cost` is that of all stages; `parameters` counts the weights of its dense models,
    `untrained_base` names the base of an untrained checkpoint (step 0).
    """

    system: str
    form: ClaimForm
    sources: str
    stages: tuple[StageResult, ...]
    cost: Cost
    choices: tuple[Choice, ...] = ()
    parameters: int | None = None
    untrained_base: str | None = None

    def __repr__(self) -> str:
        stages = tuple(stage.name for stage in self.stages)
        return one_line(self, system=self.system, form=self.form, stages=stages)

    @property
    def result(self) -> Result:
        return self.stages[-1].result


@dataclass(frozen=True)
class System:
    """System: its first stage's tree, its further stages, and its claim form.

    `claims` is None if it uses the form that is evaluated. `depth` is the number of sources that
    the first stage keeps for each claim; None: 100, or the depth of the deepest stage.

    Example:
        >>> import claim2source as c2s
        >>> from claim2source.systems.retrieval import Retrieval
        >>> c2s.System("BM25", Retrieval(c2s.BM25(), grid=(("k1", (1.2, 0.9)),))).is_fit
        True
    """

    name: str
    first: Retrieval
    stages: tuple[SystemStage, ...] = ()
    claims: ClaimForm | None = None
    depth: int | None = None
    label: str | None = None
    unsupported: str | None = None
    advice: str | None = None

    @property
    def is_fit(self) -> bool:
        """Whether any setting is chosen on train or on claims held out of it."""
        if self.first.is_fit:
            return True
        return any(stage.fits for stage in self.stages)

    @property
    def is_simulated(self) -> bool:
        """Whether a stage is simulated or gets the golds; such a system is not tested."""
        return any(stage.simulated for stage in self.stages)

    @property
    def reason_not_to_run(self) -> str | None:
        """Return the reason in its files why it cannot run; None if there is none."""
        if self.unsupported is not None:
            return self.unsupported
        for node in self.first.walk():
            if node.unsupported is not None:
                return node.unsupported
        return None

    @property
    def dense_models(self) -> list[ModelConfig]:
        models: list[ModelConfig] = []
        for part in self.first.walk():
            if not isinstance(part.retriever, Dense):
                continue
            model = part.main_model
            if model is not None:
                models.append(model)
        return models

    @property
    def settings(self) -> dict[str, Any]:
        """Return its settings as JSON values, stages as in YAML."""
        return {
            "name": self.name,
            "first": retrieval_settings(self.first),
            "stages": [as_plain(stage.entry) for stage in self.stages],
            "claims": self.claims,
            "depth": self.depth,
            "label": self.label,
            "unsupported": self.unsupported,
            "advice": self.advice,
        }

    def full_label(self, stages: int | None = None) -> str:
        """Return its name in reports and published tables.

        `stages` is the number of stages after the first one to include; None: all.
        """
        first_stages = self.stages[:stages]
        if self.label is not None and first_stages == self.stages:
            return self.label
        stage_labels = [stage.label for stage in first_stages]
        return " + ".join([self.first.full_label(), *stage_labels])

    def first_depth(self, depth: int) -> int:
        """Return how many sources per claim the first stage keeps, at least `depth`."""
        if self.depth:
            return self.depth
        stage_depths = [stage.depth for stage in self.stages]
        return max([depth, *stage_depths])

    def choose_form(self, form: ClaimForm | None, runtime: SystemRuntime) -> ClaimForm:
        """Return the claim form that the system runs with if `form` is requested."""
        return self.first.choose_form(self.claims or form, runtime)

    def models(self) -> list[str]:
        """List the models of its stages and of custom retrievers.

        Any of them may have been trained on claims.
        """
        models: list[str] = []
        for node in self.first.walk():
            models += node.models
        for stage in self.stages:
            models += stage_models(stage.stage)
        return models

    def own_code(self) -> dict[str, str]:
        """Hash the code of custom retrievers and stages, by dotted path."""
        retrievers = [part.retriever for part in self.first.walk()]
        own = [retriever.retriever for retriever in retrievers if isinstance(retriever, Own)]
        stages = [stage.stage for stage in self.stages]
        kinds = {type(part) for part in (*own, *stages)}
        hashes: dict[str, str] = {}
        for kind in kinds:
            if not is_shipped(kind):
                path = f"{kind.__module__}.{kind.__qualname__}"
                hashes[path] = code_hash(kind)
        return hashes

    def fitted_on(self) -> list[TrainedOn]:
        """List the claims that parts without a manifest were fitted on: saved runs, fusions."""
        claims: list[TrainedOn] = []
        for part in self.first.walk():
            if isinstance(part.retriever, Saved):
                claims.append(claims_behind_run(part.retriever))
        for stage in self.stages:
            if isinstance(stage.stage, Learned):
                claims.append(stage.stage.fusion.fitted.trained_on)
        return claims

    def trained_on(self, dataset: str) -> TrainedOn:
        """Return all claims that a part of the system was trained or fitted on.

        For models without a record they are read from their training data, or from `dataset`.
        """
        dense_names = [model.name for model in self.dense_models]
        names = [*dense_names, *self.models()]
        joined = claims_models_saw(names, dataset)
        for trained_on in self.fitted_on():
            joined |= trained_on
        return joined

    def on_checkpoint(
        self,
        path: str,
        routes: Mapping[str, str] | None = None,
        read_as: Dense | None = None,
        name: str = "",
    ) -> System:
        """Replace the dense model by a checkpoint, for some languages by another.

        `read_as` has the settings of a model that is not a checkpoint of ours. `name` is the
        checkpoint's name and becomes the prefix of the system's. The dense part of a hybrid has
        only this name, so that the hybrid is tested against it. Raises `ConfigError` if the system
        has no dense model.
        """
        first = self.first
        if routes and not isinstance(first.retriever, Routes):
            unlabelled = replace(first, label=None, unsupported=None, advice=None)
            with_routes = Routes({DEFAULT: (unlabelled,)})
            first = Retrieval(with_routes)
        first = _with_checkpoint(first, path, routes, read_as)
        own = self.name
        if name:
            own = f"{name}+{self.name}" if self.name else name
            first = replace(first, name=own)
            if isinstance(first.retriever, Hybrid):
                sparse, dense = first.parts
                dense = replace(dense, name=name)
                first = first.with_parts([sparse, dense])
        # With other checkpoints its label would be wrong.
        return replace(
            self,
            name=own,
            first=first,
            label=None,
            unsupported=None,
            advice=None,
        )

    def fit(
        self,
        runtime: SystemRuntime,
        held_out: HeldOut | None = None,
        languages: Sequence[str] = (),
        form: ClaimForm | None = None,
    ) -> FittedSystem:
        """Choose all open settings, on claims that are not reported.

        `languages` are those of the reported claims. Raises `UserError` if the system cannot run.
        """
        if self.unsupported is not None:
            raise UserError(self.unsupported)
        form = self.claims or form
        held_out = held_out or HeldOut("", "")
        fitting = Fitting(held_out, runtime, tuple(languages), form)
        first, choices = fit_retrieval(self.first, fitting)
        system = replace(self, first=first)
        settled = first.settled(form, runtime)
        own = first.choose_form(form, runtime)
        fitted = FittedSystem(system, runtime, settled, own, tuple(choices))
        if not any(stage.fits for stage in self.stages):
            return fitted

        # The stages are fitted on claims that no model of the system was trained on.
        selection = choosing_claims(fitted.system, runtime, held_out)
        labels = selection.labels
        judged = selection.val.with_claims(
            claim for claim in selection.val.claims if claim.golds or claim.id in labels
        )
        depth = self.first_depth(DEPTH)
        first_only = replace(fitted.system, stages=(), depth=depth)
        without_stages = replace(fitted, system=first_only)
        result = without_stages.index(judged.sources).search(judged.claims)
        stages, stage_choices = fit_stages(
            self.stages,
            result.stages,
            judged,
            selection,
            runtime,
            held_out.choosing.rule,
        )
        system = replace(fitted.system, stages=stages)
        all_choices = (*choices, *stage_choices)
        return replace(fitted, system=system, choices=all_choices)


def _with_checkpoint(
    part: Retrieval,
    path: str,
    routes: Mapping[str, str] | None = None,
    read_as: Dense | None = None,
) -> Retrieval:
    # With another model its label would be wrong.
    unlabelled = replace(part, label=None, unsupported=None, advice=None)
    retriever = part.retriever
    if isinstance(retriever, Hybrid):
        sparse, dense = part.parts
        new_dense = _with_checkpoint(dense, path, None, read_as)
        return unlabelled.with_parts([sparse, new_dense])
    if isinstance(retriever, Routes):
        routed = _routes_with_checkpoint(retriever, path, routes or {}, read_as)
        return replace(unlabelled, retriever=routed)
    if not isinstance(retriever, Dense):
        allowed = f"none: the first stage {part.display_name} has no dense model"
        raise ConfigError("checkpoint", path, allowed)
    if read_as is None:
        assert isinstance(retriever.model, ModelConfig)
        model = retriever.model.for_checkpoint(Path(path))
        own = replace(
            retriever,
            model=model,
            rendering=None,
            claim_length=None,
        )
    else:
        assert isinstance(read_as.model, ModelConfig)
        own = replace(
            retriever,
            model=replace(read_as.model, name=path),
            sources=read_as.sources,
            rendering=read_as.rendering,
        )
    return replace(unlabelled, retriever=own)


def _routes_with_checkpoint(
    routes: Routes,
    path: str,
    paths: Mapping[str, str],
    read_as: Dense | None,
) -> Routes:
    routed: dict[str, tuple[Retrieval, ...]] = {}
    own_paths = by_primary_language(paths, "routes")
    languages = dict.fromkeys((*routes.routes, *own_paths))
    for language in languages:
        own = own_paths.get(language, path)
        parts = routes.candidates(language)
        if len(parts) != 1:
            allowed = f"none: {language} has several nodes, one of which is chosen on val"
            raise ConfigError("checkpoint", path, allowed)
        part = _with_checkpoint(parts[0], own, None, read_as)
        named = replace(part, name=part.name or own)
        routed[language] = (named,)
    return Routes(routed)


@dataclass(frozen=True)
class FittedSystem:
    """System with all settings chosen, and the claim form that it runs with.

    `first` is its first stage, with the claim form of every part set.
    """

    system: System
    runtime: SystemRuntime
    first: Retrieval
    form: ClaimForm
    choices: tuple[Choice, ...] = ()

    def index(self, sources: Sequence[Source]) -> SystemIndex:
        sources = as_sources(sources)
        first = self.first.index(sources, self.runtime)
        return SystemIndex(self, sources, first)


@dataclass(frozen=True, eq=False)
class SystemIndex:
    """Search the sources that a fitted system has indexed, and apply its stages."""

    fitted: FittedSystem
    sources: Sequence[Source]
    first: Index

    def __repr__(self) -> str:
        return one_line(self, system=self.fitted.system.name, sources=len(self.sources))

    def search(self, claims: Sequence[Claim], k: int = DEPTH) -> SystemResult:
        fitted = self.fitted
        claims = as_claims(claims)
        k = whole_number(k, "k")
        system = fitted.system
        runtime = fitted.runtime
        first = system.first
        depth = system.first_depth(k)
        result = self.first.search(claims, depth)
        kind = {"hybrid": FUSE, "routes": ROUTE}.get(first.kind, RETRIEVE)
        stages = [*result.parts, (kind, result)]
        after = apply_stages(system.stages, stages, claims, self.sources, runtime)
        stages += after
        cost = result.cost
        for _, stage_result in after:
            cost = cost.over_same(stage_result.cost)

        languages = dict.fromkeys(claim.lang for claim in claims)
        models = _dense_models(first, languages)
        main = first.main_model
        return SystemResult(
            system=system.name,
            form=fitted.form,
            sources=first.sources(runtime),
            stages=tuple(StageResult(*stage) for stage in stages),
            cost=cost,
            choices=fitted.choices,
            parameters=sum(runtime.facts(model).parameters for model in models) or None,
            untrained_base=None if main is None else runtime.facts(main).untrained_base,
        )


@dataclass(frozen=True)
class RunSettings:
    """Settings of running systems.

    Further splits are loaded from the folder `dataset`. `rewrites` are texts that are appended to
    the reported claims, read from `rewrites_file`. `depth` is the number of sources per claim.
    """

    dataset: str = ""
    choosing: ChoosingOn = ChoosingOn()
    rewrites: Mapping[str, str] = field(default_factory=dict, repr=False)
    store: Store | None = None
    device: str | None = None
    depth: int = DEPTH
    progress: bool = True
    rewrites_file: str | None = None


@dataclass(eq=False)
class SystemRunner:
    """Run systems on one split, `reported`; each is fitted once per claim form.

    The last system's index is kept, so that other texts of the claims can be searched in it.
    """

    reported: Dataset
    settings: RunSettings = RunSettings()
    _fitted: list[tuple[System, ClaimForm | None, FittedSystem]] = field(
        default_factory=list,
        init=False,
    )
    _last: SystemIndex | None = field(default=None, init=False)

    @cached_property
    def runtime(self) -> SystemRuntime:
        settings = self.settings
        return SystemRuntime(settings.store, settings.device, settings.progress)

    @cached_property
    def held_out(self) -> HeldOut:
        """Return the claims that settings may be chosen on."""
        settings = self.settings
        return HeldOut(settings.dataset, self.reported.split, settings.choosing)

    def fit(self, system: System, form: ClaimForm | None = None) -> FittedSystem:
        """Choose a system's open settings for a claim form, off the reported split."""
        for other, other_form, fitted in self._fitted:
            if other_form == form and other == system:
                return fitted
        fitted = system.fit(self.runtime, self.held_out, self.reported.languages, form)
        self._fitted.append((system, form, fitted))
        return fitted

    def run(
        self,
        system: System,
        form: ClaimForm | None = None,
        dataset: Dataset | None = None,
    ) -> SystemResult:
        """Run a system for every claim of the reported split, or of another `dataset`.

        `form` is the claim form; None: the system's own. Raises `UserError` if it cannot run.
        """
        data = self.reported if dataset is None else dataset
        fitted = self.fit(system, form)
        last = self._last
        if last is None or last.fitted != fitted or last.sources != data.sources:
            self._last = None  # released before the next one is built
            self._last = fitted.index(data.sources)
        assert self._last is not None
        return self._last.search(data.claims, self.settings.depth)

    def choosing_claims(self, system: System) -> SelectionData:
        return choosing_claims(system, self.runtime, self.held_out)


def run_system(
    system: System,
    dataset: Dataset,
    form: ClaimForm | None = None,
    settings: RunSettings | None = None,
) -> SystemResult:
    """Run one system on a split.

    Example:
        >>> import claim2source as c2s
        >>> dev = c2s.load("demo", "dev")
        >>> system = c2s.make_system("BM25", {"retrieve": {"bm25": {"b": 1.0}}})
        >>> [stage.name for stage in c2s.run_system(system, dev).stages]
        ['retrieve']
    """
    require_kind(system, System, "system", "a System, such as make_system makes")
    require_kind(dataset, Dataset, "dataset", DATASET_WANTED)
    runner = SystemRunner(dataset, settings or RunSettings())
    return runner.run(system, form)


def choosing_claims(
    system: System,
    runtime: SystemRuntime,
    held_out: HeldOut,
) -> SelectionData:
    """Return the claims that a whole system may be fitted on: none of its models has seen them.

    Raises `NothingToChooseOn` if there are none.
    """
    manifests = [runtime.facts(model).record for model in system.dense_models]
    of_stages = map(read_any_manifest, system.models())
    try:
        all_manifests = [*manifests, *of_stages]
        return held_out.claims(all_manifests, system.fitted_on())
    except NothingToChooseOn as error:
        raise NothingToChooseOn(f"{system.name}: {error}") from None


def _dense_models(part: Retrieval, languages: Iterable[str]) -> list[ModelConfig]:
    if isinstance(part.retriever, Routes):
        distinct: list[Retrieval] = []
        for language in languages:
            own = part.retriever.candidates(language)[0]
            if own not in distinct:
                distinct.append(own)
        models: list[ModelConfig] = []
        for own in distinct:
            models += _dense_models(own, languages)
        return models
    if isinstance(part.retriever, Hybrid):
        _, dense = part.parts
        return _dense_models(dense, languages)
    model = part.main_model
    return [] if model is None else [model]
