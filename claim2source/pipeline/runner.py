"""Run systems: first stages, fusion and further stages, with everything chosen on val."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from claim2source.core.config import require
from claim2source.core.errors import UserError
from claim2source.core.records import Dataset, Source
from claim2source.core.report import Choice
from claim2source.core.run import Result, Run, join_results
from claim2source.core.stage import Index, Retriever
from claim2source.models import Resolved, resolve
from claim2source.models.local import local_models
from claim2source.pipeline.choosing import choose
from claim2source.pipeline.results import RunSettings, StageResult, SystemResult
from claim2source.pipeline.selection import (
    BM25_GRID,
    FUSION_GRID,
    SelectionData,
    choose_bm25,
    choose_fusion,
    load_train,
    one_val,
    selection_data,
)
from claim2source.pipeline.stages import apply_stage, informed
from claim2source.pipeline.systems import (
    HybridConfig,
    SystemConfig,
    Systems,
    all_parts,
    candidates,
    dense_of,
    expanded,
    load_stages,
    model_of,
    stage_depth,
)
from claim2source.retrieve import BM25, BM25Config, Dense, FusionConfig, fuse
from claim2source.retrieve.fuse import score_missing
from claim2source.retrieve.saved import SavedRun
from claim2source.text import ClaimForm, Rendering
from claim2source.text.rewrites import with_rewrites

_DEFAULT_ROUTE = "default"
# As deep as the metric that routes are chosen by.
_CUT = 5


@dataclass(frozen=True)
class _Model:
    """Remember what a model said of itself when it was loaded."""

    rendering: Rendering
    parameters: int
    untrained_base: str | None


@dataclass(frozen=True)
class _Rankings:
    """Hold what a fusion is chosen on: claims, both rankings, and the scores they lack."""

    selection: SelectionData
    first: Run
    second: Run
    scored: tuple[Run, Run] | None


# Sources, their index, and how it renders them.
_KnownIndex = tuple[Sequence[Source], Index, Rendering]


class SystemRunner:
    """Run systems on one split, holding one dense model at a time.

    Results of parts are kept while another system may need them.
    """

    def __init__(
        self, systems: Systems, dataset: Dataset, settings: RunSettings | None = None
    ) -> None:
        self.systems, self.reported = expanded(systems), dataset
        self.settings = settings or RunSettings()
        self._train: Dataset | None = None
        self._splits = [dataset]
        self._selections: dict[str, SelectionData] = {}
        self._rewritten: dict[tuple[int, ClaimForm], Dataset] = {}
        self._results: dict[tuple[str, ClaimForm, int], tuple[Result, Rendering]] = {}
        self._indexes: dict[tuple[str, ClaimForm], _KnownIndex] = {}
        self._bm25: dict[tuple[str, ClaimForm], tuple[BM25Config, Choice]] = {}
        self._fusions: dict[tuple[str, ClaimForm], tuple[FusionConfig, Choice]] = {}
        self._routed_by_val: dict[tuple[str, str, ClaimForm | None], tuple[str, Choice]] = {}
        self._taken: dict[str, tuple[str, ...]] = {}
        self._resolved: tuple[str, Resolved] | None = None
        self._models: dict[str, _Model] = {}
        self._refused: dict[str, str] = {}

    def run(
        self, name: str, form: ClaimForm | None = None, dataset: Dataset | None = None
    ) -> SystemResult:
        """Run a system for every claim of the reported split.

        `form` is the claim form; none: the system's own. `dataset` holds the split with other
        texts; settings are chosen as for the reported one. Raises `UserError` where it cannot run.
        """
        self._keep_only(all_parts(name, self.systems))
        data = self.reported if dataset is None else self._once(dataset)
        with local_models(self.settings.models):
            return self._run(name, form, data, self.settings.depth)

    def _run(
        self, name: str, asked: ClaimForm | None, dataset: Dataset, depth: int
    ) -> SystemResult:
        system = self.systems[name]
        if system.unsupported is not None:
            raise UserError(system.unsupported)
        asked = system.claims or asked  # its parts are run with its claims
        form = self.form_of(name, asked)
        depth = system.depth or max(depth, stage_depth(system))
        if system.routes is not None:
            found = self._routed(name, asked, dataset, depth)
        elif system.hybrid is not None:
            found = self._fused(name, asked, dataset, depth)
        else:
            result, rendering = self._ranked(name, form, dataset)
            chosen = [self._bm25[name, form][1]] if (name, form) in self._bm25 else []
            found = self._result(name, rendering, [("retrieve", result.top(depth))], chosen)
        data, stages, cost = self.data(form, dataset), list(found.stages), found.cost
        for stage_name, stage in load_stages(system.stages):
            result = apply_stage(
                informed(stage, [(one.name, one.result) for one in stages], data.claims),
                data.claims,
                data.sources,
                stages[-1].result,
                self.settings.store,
                device=self.settings.device,
                progress=self.settings.progress,
                earlier=stages[-2].result.run if len(stages) > 1 else None,
            )
            stages.append(StageResult(stage_name, result))
            cost = cost.over_same(result.cost)
        return replace(found, stages=tuple(stages), cost=cost)

    def form_of(self, name: str, form: ClaimForm | None) -> ClaimForm:
        """Return the claim form that a system is run with, asked for `form`."""
        system = self.systems[name]
        if system.claims is not None:
            return system.claims
        if form is not None:
            return form
        if system.hybrid is not None:
            return self.form_of(system.hybrid.dense, None)
        if system.routes is not None:
            parts = self._candidates(name, self.reported).values()
            several = dict.fromkeys(part for names in parts for part in names)
            forms = {self.form_of(part, None) for part in several}
            # Parts of different forms are each run with their own.
            return forms.pop() if len(forms) == 1 else "original"
        if system.model is None:
            return "original"
        if name not in self._models:
            self.model(name)
        return self._models[name].rendering.claims

    def data(self, form: ClaimForm, dataset: Dataset | None = None) -> Dataset:
        """Return a split, by default the reported one, with the rewritings appended."""
        dataset = self.reported if dataset is None else dataset
        if not self.settings.rewrites:
            return dataset
        key = id(dataset), form
        if key not in self._rewritten:
            self._rewritten[key] = with_rewrites(dataset, self.settings.rewrites, form)
        return self._rewritten[key]

    def train(self) -> Dataset:
        """Load the split that settings are chosen on.

        If none is named, it is the one that the dense part of a tuned hybrid was trained on.
        """
        if self._train is None:
            settings, split = self.settings, self.settings.choosing.split
            tuned = [system.hybrid for system in self.systems.values() if system.tune]
            dense = next((hybrid.dense for hybrid in tuned if hybrid is not None), None)
            if split is None and dense is not None:
                self._train = self._selection(dense).train
            else:
                lenient = settings.choosing.lenient
                train = load_train(settings.dataset, self.reported.split, split, lenient)
                self._train = self._once(train)
        return self._train

    def _once(self, dataset: Dataset) -> Dataset:
        """Return the equal split that was met before, so that it is ranked once."""
        for known in self._splits:
            same = known.split == dataset.split and known.claims == dataset.claims
            if same and known.sources == dataset.sources:
                return known
        self._splits.append(dataset)
        return dataset

    def model(self, name: str) -> Resolved:
        """Load the model of a dense system, letting go of the one before."""
        model = self.systems[name].model
        assert model is not None
        if (why := self.systems[name].unsupported) is not None:
            raise UserError(why)
        if name in self._refused:
            raise UserError(self._refused[name])
        if self._resolved is None or self._resolved[0] != name:
            self._resolved = None  # before the next one is read: two may not fit
            try:
                with local_models(self.settings.models):
                    resolved = resolve(model, self.settings.device)
            except UserError as error:
                # Not asked again for every form and hybrid: the hub may take long to say no.
                self._refused[name] = str(error)
                raise
            self._resolved = name, resolved
            untrained = resolved.manifest is not None and not resolved.is_trained
            self._models[name] = _Model(
                self._own_rendering(name, resolved),
                resolved.encoder.parameters,
                resolved.base.name if untrained else None,
            )
        return self._resolved[1]

    def _own_rendering(self, name: str, resolved: Resolved) -> Rendering:
        """Return a checkpoint's own rendering, else the system's."""
        system = self.systems[name]
        if system.rendering is not None:
            return resolved.rendering_for(system.rendering)
        return resolved.rendering or Rendering("original", system.sources)

    def _fused(
        self, name: str, form: ClaimForm | None, dataset: Dataset, depth: int
    ) -> SystemResult:
        system = self.systems[name]
        assert system.hybrid is not None
        sparse, dense, fusion = system.hybrid.sparse, system.hybrid.dense, system.hybrid.fusion
        # The dense part first: where its weights are missing, BM25 need not be tuned.
        second, rendering = self._ranked(dense, form, dataset)
        form = self.form_of(name, form)
        first, _ = self._ranked(sparse, form, dataset)
        own = self.form_of(sparse, form)
        choices = [self._bm25[sparse, own][1]] if (sparse, own) in self._bm25 else []
        if system.tune:
            fusion, choice = self._fusion(name, system.hybrid, form)
            choices.append(choice)
        # As deep as was chosen, also where fewer sources are fused than are kept.
        kept = None if system.tune else depth
        lacked = None
        if fusion.missing == "scored":
            deep = max(fusion.depth, kept or 0)
            lacked = self._scored(system.hybrid, form, dataset, first.top(deep), second.top(deep))
        fused = fuse(first, second, fusion, k=kept, scored=lacked).top(depth)
        stages = [(sparse, first), (dense, second), ("fuse", fused)]
        return self._result(name, rendering, stages, choices)

    def _fusion(
        self, name: str, hybrid: HybridConfig, form: ClaimForm
    ) -> tuple[FusionConfig, Choice]:
        """Choose a tuned hybrid's fusion, once for each claim form."""
        if (name, form) not in self._fusions:
            parts = self._chosen_on(hybrid, form)
            data = self.data(form, parts.selection.val)
            self._fusions[name, form] = choose_fusion(
                parts.first,
                parts.second,
                data,
                note=parts.selection.note,
                scored=parts.scored,
                weighing=parts.selection.weighing(data),
                rule=self.settings.choosing.rule,
            )
        return self._fusions[name, form]

    def _chosen_on(self, parts: HybridConfig, form: ClaimForm) -> _Rankings:
        """Rank the claims that a fusion is chosen on by both parts."""
        selection = self._selection(parts.dense)
        first, second = (
            self._ranked(part, form, selection.val)[0] for part in (parts.sparse, parts.dense)
        )
        scored = self._scored(parts, form, selection.val, first, second)
        return _Rankings(selection, first.run, second.run, (scored[0].run, scored[1].run))

    def _scored(
        self, parts: HybridConfig, form: ClaimForm, dataset: Dataset, first: Result, second: Result
    ) -> tuple[Result, Result]:
        """Score with each part what only the other ranks."""

        def scored(name: str, own: Result, other: Result) -> Result:
            own_form = self.form_of(name, form)
            claims = self.data(own_form, dataset).claims
            index, _ = self._index(name, own_form, dataset)
            return score_missing(index, claims, own.run, other.run)

        return scored(parts.sparse, first, second), scored(parts.dense, second, first)

    def _routed(
        self, name: str, asked: ClaimForm | None, dataset: Dataset, depth: int
    ) -> SystemResult:
        """Run each language's system on its claims, and join the results."""
        routes, parts = {}, []
        choices: list[Choice] = []
        for language, names in self._candidates(name, dataset).items():
            routes[language] = names[0]
            if len(names) > 1:
                routes[language], choice = self._route(name, language, names, asked)
                choices.append(choice)
        self._taken[name] = tuple(dict.fromkeys(routes.values()))
        for part in self._taken[name]:
            mine = dataset.in_languages([lang for lang in routes if routes[lang] == part])
            parts.append((part, self._run(part, asked, self._once(mine), depth)))
        stages = [(part, replace(found.result, cost=found.cost)) for part, found in parts]
        joined = join_results([result for _, result in stages], dataset.claims)
        choices += [choice for _, found in parts for choice in found.choices]
        rendering = Rendering(self.form_of(name, asked), self.systems[name].sources)
        return self._result(name, rendering, [*stages, ("route", joined)], choices)

    def _candidates(self, name: str, dataset: Dataset) -> dict[str, tuple[str, ...]]:
        """Name the systems for each language of a split. Raises `ConfigError` without one."""
        routes, found = candidates(self.systems[name]), {}
        for language in dataset.languages:
            allowed = f"a system for {language!r} claims, or for {_DEFAULT_ROUTE!r}"
            there = language in routes or _DEFAULT_ROUTE in routes
            require(there, "routes", self.systems[name].routes, allowed)
            found[language] = routes.get(language) or routes[_DEFAULT_ROUTE]
        return found

    def _route(
        self, name: str, language: str, parts: Sequence[str], asked: ClaimForm | None
    ) -> tuple[str, Choice]:
        """Choose the system that ranks a language's claims, on that language's claims of val."""
        key = name, language, asked
        if key not in self._routed_by_val:
            held_out = {part: self._selection(dense_of(part, self.systems)) for part in parts}
            selection = one_val(language, held_out)
            mine = self._once(selection.val.in_languages([language]))
            weighing = selection.weighing(mine, language)
            tried = {
                part: weighing.of(self._run(part, asked, mine, _CUT).result.run) for part in parts
            }
            self._routed_by_val[key] = choose(
                f"route {language}",
                tried,
                weighing,
                settings=lambda part: {"system": part, **model_of(part, self.systems)},
                rule=self.settings.choosing.rule,
                trials=True,
                note=selection.note,
            )
        return self._routed_by_val[key]

    def _selection(self, dense: str) -> SelectionData:
        """Find the claims that the fusion with this dense part may be chosen on."""
        if dense not in self._selections:
            settings, model = self.settings, self.systems[dense].model
            manifest = self.model(dense).record if model is not None else None
            found = selection_data(
                settings.dataset, self.reported.split, settings.choosing, manifest
            )
            self._selections[dense] = replace(
                found, train=self._once(found.train), val=self._once(found.val)
            )
        return self._selections[dense]

    def _result(
        self,
        name: str,
        rendering: Rendering,
        stages: Sequence[tuple[str, Result]],
        choices: Sequence[Choice],
    ) -> SystemResult:
        """Describe what a system gave."""
        model = self._models.get(dense_of(name, self.systems))
        return SystemResult(
            name,
            rendering.claims,
            rendering.sources,
            tuple(StageResult(*stage) for stage in stages),
            stages[-1][1].cost,
            tuple(choices),
            self._parameters(name) or None,
            model.untrained_base if model is not None else None,
        )

    def _parameters(self, name: str) -> int:
        """Count the weights of a system's dense models."""
        system = self.systems[name]
        if system.hybrid is not None:
            return self._parameters(system.hybrid.dense)
        if system.routes is not None:
            return sum(self._parameters(part) for part in self._taken.get(name, ()))
        return self._models[name].parameters if name in self._models else 0

    def _ranked(
        self, name: str, asked: ClaimForm | None, dataset: Dataset
    ) -> tuple[Result, Rendering]:
        """Rank for a part's claims, as deep as any fusion asks, and keep the result."""
        form = self.form_of(name, asked)
        key = (name, form, id(dataset))
        if key not in self._results and self.systems[name].routes is not None:
            routed = self._routed(name, asked, dataset, self._depth)
            self._results[key] = routed.result, Rendering(routed.form, self.systems[name].sources)
        elif key not in self._results:
            index, rendering = self._index(name, form, dataset)
            found = index.search(self.data(form, dataset).claims, self._depth)
            self._results[key] = found, rendering
        return self._results[key]

    def _index(self, name: str, form: ClaimForm, dataset: Dataset) -> tuple[Index, Rendering]:
        """Return a part's index of a split's sources, the last one where they are the same."""
        sources = self.data(form, dataset).sources
        known = self._indexes.get((name, form))
        if known is None or known[0] != sources:
            retriever, rendering = self._retriever(name, form)
            known = sources, retriever.index(sources), rendering
            self._indexes[name, form] = known
        return known[1], known[2]

    @property
    def _depth(self) -> int:
        """How deep parts are ranked: as deep as the deepest fusion asks."""
        mixes = [system for system in self.systems.values() if system.hybrid is not None]
        depths = [system.hybrid.fusion.depth for system in mixes if system.hybrid is not None]
        if any(system.tune for system in mixes):
            depths += [fusion.depth for fusion in FUSION_GRID]
        depths += [system.depth or stage_depth(system) for system in self.systems.values()]
        return max([self.settings.depth, *depths])

    def _retriever(self, name: str, form: ClaimForm) -> tuple[Retriever, Rendering]:
        system, settings = self.systems[name], self.settings
        if system.unsupported is not None:
            raise UserError(system.unsupported)
        rendering = Rendering(form, system.sources)
        if system.bm25 is not None:
            config = self._bm25_config(name, form)
            return BM25(config, store=settings.store), Rendering(form, config.sources)
        if system.run is not None:
            return SavedRun(system.run), rendering
        resolved = self.model(name)
        # A checkpoint's sources are as it was trained; the claims' form is what is compared.
        rendering = replace(self._models[name].rendering, claims=form)
        dense = Dense(
            resolved.encoder,
            rendering=rendering,
            store=settings.store,
            index=system.index,
            passages=system.passages,
            progress=settings.progress,
        )
        return dense, rendering

    def dense(self, name: str, form: ClaimForm | None = None) -> Dense:
        """Return the retriever of a dense system, as it is run with this claim form."""
        retriever, _ = self._retriever(name, self.form_of(name, form))
        assert isinstance(retriever, Dense)
        return retriever

    def _bm25_config(self, name: str, form: ClaimForm) -> BM25Config:
        system = self.systems[name]
        assert system.bm25 is not None
        base = replace(system.bm25, claims=form)
        if not system.tune:
            return base
        if (name, form) not in self._bm25:
            self._bm25[name, form] = choose_bm25(
                self.data(form, self.train()), base, BM25_GRID, self.settings.choosing.rule
            )
        return self._bm25[name, form][0]

    def _keep_only(self, needed: Sequence[str]) -> None:
        """Let go of what neither these systems nor any later BM25 hybrid can use."""
        self._results = {
            key: value
            for key, value in self._results.items()
            if key[0] in needed or self.systems[key[0]].bm25 is not None
        }
        self._indexes = {key: value for key, value in self._indexes.items() if key[0] in needed}
        if self._resolved is not None and self._resolved[0] not in needed:
            self._resolved = None


def run_system(
    system: SystemConfig | Mapping[str, SystemConfig],
    dataset: Dataset,
    form: ClaimForm | None = None,
    settings: RunSettings | None = None,
) -> SystemResult:
    """Run one system on a split; of several, the last one, whose parts the others are.

    Example:
        >>> import claim2source as c2s
        >>> from claim2source.pipeline.systems import SystemConfig
        >>> from claim2source.retrieve import BM25Config
        >>> dev = c2s.load("demo", "dev")
        >>> found = c2s.run_system(SystemConfig(bm25=BM25Config()), dev)
        >>> [stage.name for stage in found.stages]
        ['retrieve']
    """
    systems = dict(system) if isinstance(system, Mapping) else {"system": system}
    return SystemRunner(systems, dataset, settings).run(list(systems)[-1], form)
