"""Describe first stages as trees of dataclasses: each is fitted, indexed and searched alike."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, Self

from claim2source.core.arguments import whole_number
from claim2source.core.config import require
from claim2source.core.errors import ConfigError, UserError
from claim2source.core.languages import primary_language
from claim2source.core.records import Source
from claim2source.core.report import Choice
from claim2source.core.run import Result, join_results
from claim2source.core.stage import Claims, Index, Retriever, as_claims
from claim2source.models import Manifest, ModelConfig
from claim2source.models.manifest import read_any_manifest
from claim2source.models.trained_on import TRAINED_ON, TrainedOn
from claim2source.search.bm25 import BM25, BM25Config
from claim2source.search.choose import (
    DEPTH,
    FUSION_DEPTHS,
    Grid,
    choose,
    choose_bm25,
    choose_fusion,
)
from claim2source.search.dense import Dense
from claim2source.search.fielded import Fielded
from claim2source.search.fuse import FusionConfig, HybridIndex
from claim2source.search.saved import Saved
from claim2source.systems.heldout import Fitting, one_val
from claim2source.systems.own import OwnIndex, fit_own, fits_itself, own_models
from claim2source.systems.runtime import SystemRuntime
from claim2source.systems.seen import Trained
from claim2source.systems.stages import stage_label
from claim2source.text import ClaimForm, Rendering, SourceForm

PAPERS_LABEL = "bm25"
DEFAULT = "default"
FUSE, ROUTE, RETRIEVE = "fuse", "route", "retrieve"
# In place of a model's name: the checkpoint that the program is given.
CHECKPOINT = "checkpoint"
NO_CHECKPOINT = (
    f"the first stage's dense model is `{CHECKPOINT}`: give --checkpoint, or write its folder there"
)
_DEEPEST_FUSION = max(FUSION_DEPTHS)


@dataclass(frozen=True, kw_only=True)
class Node:
    """Fields that all nodes share: the system's name and label, and its claim form.

    `unsupported` says why it cannot run, `advice` what to do where weights are missing.
    """

    name: str = ""
    label: str | None = None
    claims: ClaimForm | None = None
    unsupported: str | None = None
    advice: str | None = None

    kind = "node"

    @property
    def display_name(self) -> str:
        """Return the node's name, or its kind if it has none."""
        return self.name or self.kind

    @property
    def parts(self) -> tuple[Any, ...]:
        """List the nodes that this one is made of."""
        return ()

    @property
    def is_fit(self) -> bool:
        """Whether anything of the node is chosen on held-out claims."""
        return any(part.is_fit for part in self.parts)

    @property
    def main_model(self) -> ModelConfig | None:
        """Return the dense model that the node is known by; None without one."""
        return None

    @property
    def models(self) -> list[str]:
        """Name the models of a retriever of the user's own."""
        return []

    def walk(self) -> Iterator[Any]:
        """Yield the node and, after it, everything that it is made of."""
        yield self
        for part in self.parts:
            yield from part.walk()

    def require_supported(self) -> None:
        if self.unsupported is not None:
            raise UserError(self.unsupported)

    def choose_form(self, form: ClaimForm | None, runtime: SystemRuntime) -> ClaimForm:
        """Return the claim form that the node is run with where `form` is wanted."""
        return self.claims or form or "original"

    def fit(self, fitting: Fitting) -> tuple[Self, list[Choice]]:
        """Choose the open settings, off the reported claims."""
        self.require_supported()
        return self, []

    def sources(self, runtime: SystemRuntime) -> SourceForm:
        """Name the representation of sources that is read: that of a plain system."""
        return "title_abstract"

    def full_label(self) -> str:
        return self.label if self.label is not None else self.own_label()

    def own_label(self) -> str:
        return self.display_name


@dataclass(frozen=True, kw_only=True)
class GridNode(Node, ABC):
    """Share a `grid` between BM25 nodes; its settings are chosen on all of train."""

    grid: Grid = ()
    fitted: bool = False

    @property
    def is_fit(self) -> bool:
        return bool(self.grid)

    def fit(self, fitting: Fitting) -> tuple[Self, list[Choice]]:
        self.require_supported()
        if not self.grid or self.fitted:
            return self, []
        node, choice = self.choose_settings(fitting)
        return replace(node, fitted=True), [choice]

    @abstractmethod
    def choose_settings(self, fitting: Fitting) -> tuple[Self, Choice]:
        """Choose the settings of the grid."""


@dataclass(frozen=True, kw_only=True)
class BM25Node(GridNode):
    """Rank by BM25."""

    bm25: BM25Config = field(default_factory=BM25Config)

    kind = "bm25"

    def choose_settings(self, fitting: Fitting) -> tuple[Self, Choice]:
        form = self.choose_form(fitting.form, fitting.runtime)
        base = replace(self.bm25, claims=form)
        bm25, choice = replace(fitting, form=form).get_or_make(
            (base, self.grid, fitting.train_split),
            lambda: choose_bm25(fitting.train(), base, self.grid, fitting.rule),
        )
        return replace(self, bm25=bm25), choice

    def index(
        self, sources: Sequence[Source], runtime: SystemRuntime, form: ClaimForm | None = None
    ) -> Index:
        form = self.choose_form(form, runtime)
        return BM25(replace(self.bm25, claims=form), store=runtime.store).index(sources)

    def sources(self, runtime: SystemRuntime) -> SourceForm:
        return self.bm25.sources

    def own_label(self) -> str:
        if self.grid:
            return "bm25-tuned"
        # A name alone does not make it the papers'.
        return "bm25-own" if self.display_name.casefold() == PAPERS_LABEL else self.display_name


@dataclass(frozen=True, kw_only=True)
class FieldedNode(GridNode):
    """Rank tweets by BM25 over text and hashtags; a claim's candidates are its own index."""

    fielded: Fielded = field(default_factory=Fielded)

    kind = "fielded"

    def choose_settings(self, fitting: Fitting) -> tuple[Self, Choice]:
        made_of = self.fielded, self.grid, fitting.train_split
        scores = fitting.held_out.shared(made_of)
        fielded, choice = replace(fitting, form="original").get_or_make(
            made_of,
            lambda: self.fielded.fit(fitting.train(), self.grid, fitting.rule, scores),
        )
        return replace(self, fielded=fielded), choice

    def index(
        self, sources: Sequence[Source], runtime: SystemRuntime, form: ClaimForm | None = None
    ) -> Index:
        return self.fielded.index(sources)

    def own_label(self) -> str:
        if self.grid:
            return "fielded-bm25-tuned"
        values, defaults = asdict(self.fielded), asdict(Fielded())
        return "+".join(
            ["fielded-bm25", *(f"{k}-{values[k]}" for k in values if values[k] != defaults[k])]
        )


@dataclass(frozen=True, kw_only=True)
class DenseNode(Node):
    """Rank by a dense model's vectors; a checkpoint has its own rendering.

    `other_sources` takes the place of the sources that it was trained with. `claim_length` cuts
    claims earlier than the model's `max_length`, which is the sources' then.
    """

    model: ModelConfig
    sources_form: SourceForm = "title_abstract"
    rendering: Rendering | None = None
    other_sources: SourceForm | None = None
    claim_length: int | None = None

    kind = "dense"

    @property
    def main_model(self) -> ModelConfig | None:
        return self.model

    def choose_form(self, form: ClaimForm | None, runtime: SystemRuntime) -> ClaimForm:
        return self.claims or form or self._own_rendering(runtime).claims

    def _own_rendering(self, runtime: SystemRuntime) -> Rendering:
        self.require_supported()
        if self.rendering is not None:
            own = runtime.load(self.model).rendering_for(self.rendering)
        else:
            rendering = runtime.rendering(self.model)
            own = rendering or Rendering("original", self.sources_form)
        return own if self.other_sources is None else replace(own, sources=self.other_sources)

    def index(
        self, sources: Sequence[Source], runtime: SystemRuntime, form: ClaimForm | None = None
    ) -> Index:
        encoder = runtime.load(self.model).encoder
        if self.claim_length is not None:
            allowed = f"8 to {encoder.settings.max_length}, with a model that PyTorch runs"
            can_cut = hasattr(encoder, "with_claim_length")
            is_shorter = self.claim_length <= encoder.settings.max_length
            require(can_cut and is_shorter, "claim_length", self.claim_length, allowed)
            encoder = encoder.with_claim_length(self.claim_length)
        # A checkpoint's sources are as it was trained; the claims' form is what is compared.
        retriever = Dense(
            encoder,
            rendering=replace(self._own_rendering(runtime), claims=self.choose_form(form, runtime)),
            store=runtime.store,
            progress=runtime.progress,
        )
        return retriever.index(sources)

    def sources(self, runtime: SystemRuntime) -> SourceForm:
        return self._own_rendering(runtime).sources

    def own_label(self) -> str:
        return self.model.name


@dataclass(frozen=True, kw_only=True)
class RunNode(Node):
    """Rank as files of another program do."""

    run: Saved

    kind = "run"

    @cached_property
    def trained_on(self) -> TrainedOn:
        """Read the claims that an evaluation of ours noted with its runs; none without a note."""
        joined = TrainedOn()
        for folder in {path.parent for path in self.run.files.values()}:
            if (folder / TRAINED_ON).exists():
                joined |= TrainedOn.read(folder)
        return joined

    def index(
        self, sources: Sequence[Source], runtime: SystemRuntime, form: ClaimForm | None = None
    ) -> Index:
        return self.run.index(sources)


@dataclass(frozen=True, kw_only=True)
class OwnNode(Node):
    """Rank by a retriever of the user's own, which a dotted `path` names.

    Its settings are chosen from the lists of `grid`, or by its own method `fit`.
    """

    path: str
    retriever: Retriever
    grid: Grid = ()
    fitted: bool = False

    kind = "own"

    @property
    def display_name(self) -> str:
        return self.name or self.path

    @property
    def fits_itself(self) -> bool:
        return fits_itself(self.retriever)

    @property
    def is_fit(self) -> bool:
        return bool(self.grid) or self.fits_itself

    @property
    def models(self) -> list[str]:
        return own_models(self.retriever)

    def fit(self, fitting: Fitting) -> tuple[Self, list[Choice]]:
        """Choose its settings on claims that no model of it was trained on."""
        self.require_supported()
        if not self.is_fit or self.fitted:
            return self, []
        form = self.choose_form(fitting.form, fitting.runtime)
        made_of = self.path, self.retriever, self.grid, fitting.train_split
        retriever, choices = replace(fitting, form=form).get_or_make(
            made_of,
            lambda: fit_own(self.path, self.retriever, self.grid, fitting, form),
        )
        return replace(self, retriever=retriever, fitted=True), choices

    def index(
        self, sources: Sequence[Source], runtime: SystemRuntime, form: ClaimForm | None = None
    ) -> Index:
        form = self.choose_form(form, runtime)
        return OwnIndex(self.path, self.retriever, sources, form, runtime)

    def own_label(self) -> str:
        grid = "".join(f" {name} fitted" for name, _ in self.grid)
        return stage_label(self.path, self.retriever).removesuffix("()") + grid


@dataclass(frozen=True, kw_only=True)
class HybridNode(Node):
    """Fuse two nodes' rankings; with `fits` the fusion is chosen on held-out claims.

    `sparse` is the part that `fusion.alpha` weighs.
    """

    sparse: AnyNode
    dense: AnyNode
    fusion: FusionConfig = field(default_factory=FusionConfig)
    fits: bool = False
    fitted: bool = False

    kind = "hybrid"

    @property
    def parts(self) -> tuple[AnyNode, ...]:
        return self.sparse, self.dense

    @property
    def is_fit(self) -> bool:
        return self.fits or super().is_fit

    @property
    def main_model(self) -> ModelConfig | None:
        return self.dense.main_model

    def choose_form(self, form: ClaimForm | None, runtime: SystemRuntime) -> ClaimForm:
        return self.claims or form or self.dense.choose_form(None, runtime)

    def fit(self, fitting: Fitting) -> tuple[Self, list[Choice]]:
        """Fit both parts, then choose the fusion on claims that training held out."""
        self.require_supported()
        fitting = replace(fitting, form=self.claims or fitting.form)
        # The dense part first: where its weights are missing, BM25 need not be fitted.
        dense, of_dense = self.dense.fit(fitting)
        form = self.choose_form(fitting.form, fitting.runtime)
        manifest = _manifest_of(dense, fitting.runtime)
        of_sparse = replace(fitting, form=form)
        if self.fits and manifest is not None and fitting.train_split is None:
            of_sparse = replace(of_sparse, train_split=manifest.data.train_split)
        sparse, choices = self.sparse.fit(of_sparse)
        node = replace(self, sparse=sparse, dense=dense)
        choices = [*of_dense, *choices]
        if not self.fits or self.fitted:
            return node, choices

        def choose_here() -> tuple[FusionConfig, Choice]:
            models = _manifests(node, fitting.runtime) or [manifest]
            selection = fitting.held_out.claims(models, _claims_behind_runs(node))
            index = node.index(selection.val.sources, fitting.runtime, fitting.form)
            first, second = index.rankings(selection.val.claims, _DEEPEST_FUSION)
            scored = index.score_missing(selection.val.claims, first, second)
            return choose_fusion(
                first.run,
                second.run,
                selection.val,
                note=selection.note,
                scored=(scored[0].run, scored[1].run),
                weighing=selection.weighing(),
                rule=fitting.rule,
            )

        fusion, choice = fitting.get_or_make(_unnamed(node), choose_here)
        return replace(node, fusion=fusion, fitted=True), [*choices, choice]

    def index(
        self, sources: Sequence[Source], runtime: SystemRuntime, form: ClaimForm | None = None
    ) -> HybridIndex:
        form = self.claims or form
        dense = self.dense.index(sources, runtime, form)
        sparse = self.sparse.index(sources, runtime, self.choose_form(form, runtime))
        names = self.sparse.display_name, self.dense.display_name
        # One depth for all that may be chosen: how deep the lists are is then no choice's doing.
        return HybridIndex(sparse, dense, self.fusion, names, _DEEPEST_FUSION if self.fits else 0)

    def sources(self, runtime: SystemRuntime) -> SourceForm:
        return self.dense.sources(runtime)

    def own_label(self) -> str:
        sparse = self.sparse.full_label()
        kind = "tuned-hybrid" if self.is_fit else "hybrid"
        # Fused with another BM25 than the papers' it is not their hybrid.
        kind = kind if sparse in (PAPERS_LABEL, "bm25-tuned") else f"{sparse}-{kind}"
        return f"{kind}:{self.dense.full_label()}"


@dataclass(frozen=True, kw_only=True)
class RouteNode(Node):
    """Rank each language's claims by a node of its own; of several candidates val chooses one.

    `routes` maps languages to candidates; `default` is for the languages that are not named.
    """

    routes: Mapping[str, tuple[AnyNode, ...]]

    kind = "routes"

    @property
    def parts(self) -> tuple[AnyNode, ...]:
        parts: list[AnyNode] = []
        for nodes in self.routes.values():
            parts += [node for node in nodes if node not in parts]
        return tuple(parts)

    @property
    def is_fit(self) -> bool:
        return super().is_fit or any(len(nodes) > 1 for nodes in self.routes.values())

    def candidates(self, language: str) -> tuple[AnyNode, ...]:
        """List a language's candidates. Raises `ConfigError` if it has none."""
        nodes = self.routes.get(primary_language(language)) or self.routes.get(DEFAULT)
        if nodes is None:
            allowed = f"a system for {language!r} claims, or for {DEFAULT!r}"
            raise ConfigError("routes", ", ".join(self.routes), allowed)
        return nodes

    def choose_form(self, form: ClaimForm | None, runtime: SystemRuntime) -> ClaimForm:
        if (own_form := self.claims or form) is not None:
            return own_form
        forms = {part.choose_form(None, runtime) for part in self.parts}
        # Parts of different forms are each run with their own.
        return forms.pop() if len(forms) == 1 else "original"

    def fit(self, fitting: Fitting) -> tuple[Self, list[Choice]]:
        """Fit the parts of the reported languages, and choose each language's on its val."""
        self.require_supported()
        fitting = replace(fitting, form=self.claims or fitting.form)
        routes, choices, distinct = {}, [], list[AnyNode]()
        for language in fitting.languages or tuple(self.routes):
            parts = self.candidates(language)
            part = parts[0]
            if len(parts) > 1:
                fitted = [part.fit(fitting)[0] for part in parts]
                number, choice = _choose_route(language, fitted, fitting)
                part = parts[number]
                choices.append(choice)
            # What was chosen before is not chosen again.
            routes[language] = (part.fit(fitting)[0],)
            distinct += [] if part in distinct else [part]
        choices += [choice for part in distinct for choice in part.fit(fitting)[1]]
        return replace(self, routes=routes), choices

    def index(
        self, sources: Sequence[Source], runtime: SystemRuntime, form: ClaimForm | None = None
    ) -> Index:
        return _RouteIndex(self, sources, runtime, self.claims or form)

    def sources(self, runtime: SystemRuntime) -> SourceForm:
        forms = {part.sources(runtime) for part in self.parts}
        return forms.pop() if len(forms) == 1 else "title_abstract"

    def own_label(self) -> str:
        labels = {
            language: "|".join(part.full_label() for part in parts)
            for language, parts in self.routes.items()
        }
        return f"routes({', '.join(f'{lang}={labels[lang]}' for lang in sorted(labels))})"


@dataclass(frozen=True)
class _RouteIndex:
    node: RouteNode
    sources: Sequence[Source] = field(repr=False)
    runtime: SystemRuntime
    form: ClaimForm | None

    def search(self, claims: Claims, k: int = 100) -> Result:
        claims, k = as_claims(claims), whole_number(k, "k")
        languages = dict.fromkeys(claim.lang for claim in claims)
        groups: list[tuple[AnyNode, list[str]]] = []
        for language in languages:
            part = self.node.candidates(language)[0]
            group = next((group for group in groups if group[0] == part), None)
            if group is None:
                groups.append((part, [language]))
            else:
                group[1].append(language)
        parts = []
        for part, mine in groups:
            index = part.index(self.sources, self.runtime, self.form)
            routed = [claim for claim in claims if claim.lang in mine]
            parts.append((part.display_name, index.search(routed, k)))
        return replace(join_results([result for _, result in parts], claims), parts=tuple(parts))


AnyNode = BM25Node | FieldedNode | DenseNode | RunNode | OwnNode | HybridNode | RouteNode


def _unnamed(node: AnyNode) -> AnyNode:
    """Reduce a node to the settings that its rankings depend on; routes keep parts' names."""
    unlabelled = replace(node, name="", label=None, unsupported=None, advice=None)
    if isinstance(unlabelled, HybridNode):
        return replace(
            unlabelled, sparse=_unnamed(unlabelled.sparse), dense=_unnamed(unlabelled.dense)
        )
    return unlabelled


def _manifest_of(node: AnyNode, runtime: SystemRuntime) -> Manifest | None:
    model = node.main_model
    return None if model is None else runtime.facts(model).record


def _manifests(node: AnyNode, runtime: SystemRuntime) -> list[Trained | None]:
    """List the manifests of all models of a node, of both parts of a hybrid and of routes."""
    manifests: list[Trained | None] = []
    for part in node.walk():
        if isinstance(part, DenseNode):
            manifests.append(_manifest_of(part, runtime))
        elif isinstance(part, OwnNode):
            manifests += [read_any_manifest(model) for model in part.models]
    return manifests


def _claims_behind_runs(node: AnyNode) -> list[TrainedOn]:
    """List the claims that the systems of a node's saved runs were trained on."""
    return [part.trained_on for part in node.walk() if isinstance(part, RunNode)]


def _choose_route(language: str, parts: Sequence[AnyNode], fitting: Fitting) -> tuple[int, Choice]:
    held_out = {
        part.display_name: fitting.held_out.claims(
            _manifests(part, fitting.runtime), _claims_behind_runs(part)
        )
        for part in parts
    }
    selection = one_val(language, held_out)
    mine = selection.val.in_languages([language])
    weighing = selection.weighing(mine, language)

    def values(part: AnyNode) -> Result:
        index = part.index(mine.sources, fitting.runtime, fitting.form)
        return index.search(mine.claims, DEPTH)

    models = {number: part.main_model for number, part in enumerate(parts)}
    return choose(
        f"route {language}",
        {number: weighing.of(values(part).run) for number, part in enumerate(parts)},
        weighing,
        settings=lambda number: {
            "system": parts[number].display_name,
            **({} if (model := models[number]) is None else {"model": model.name}),
        },
        rule=fitting.rule,
        trials=True,
        note=selection.note,
    )
