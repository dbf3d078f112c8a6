"""Describe the leaves of a system's tree: BM25, fields of tweets, dense models, saved runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from claim2source.core.errors import UserError
from claim2source.core.records import Dataset, Source
from claim2source.core.report import Choice, Rule
from claim2source.core.run import Result
from claim2source.core.stage import Claims, Index, as_claims
from claim2source.models import ModelConfig
from claim2source.retrieve import BM25, BM25Config, Dense, IndexConfig
from claim2source.retrieve.fielded import FieldedConfig, FieldedIndex
from claim2source.retrieve.saved import SavedRun, SavedRunConfig
from claim2source.systems.choose import (
    Grid,
    choose_bm25,
    choose_fielded,
)
from claim2source.systems.heldout import HeldOut, Made
from claim2source.systems.runtime import SystemRuntime
from claim2source.text import ClaimForm, Rendering, SourceForm
from claim2source.text.views import PassageConfig

PAPERS_LABEL = "bm25"


@dataclass(frozen=True)
class Fitting:
    """Hold what a system is fitted with: claims held out, the claim form, the reported languages.

    `form` is none where every part is run with its own.
    """

    held_out: HeldOut
    runtime: SystemRuntime
    languages: tuple[str, ...] = ()
    form: ClaimForm | None = None

    @property
    def rule(self) -> Rule:
        """Return how a setting is chosen."""
        return self.held_out.choosing.rule

    def once(self, made_of: object, make: Callable[[], Made]) -> Made:
        """Choose a setting, once for equal parts, form and texts, whatever they are called."""
        runtime = self.runtime
        return self.held_out.once((made_of, self.form, runtime.rewrites, runtime.models), make)


@dataclass(frozen=True, kw_only=True)
class Node:
    """Hold what all nodes have: the name and label of the system that it is, and its claim form.

    `unsupported` says why it cannot run, `advice` what to do where weights are missing.
    """

    name: str = ""
    label: str | None = None
    claims: ClaimForm | None = None
    unsupported: str | None = None
    advice: str | None = None

    kind = "node"

    @property
    def shown(self) -> str:
        """Return the node's name, or its kind where it has none."""
        return self.name or self.kind

    @property
    def parts(self) -> tuple[Any, ...]:
        """List the nodes that this one is made of."""
        return ()

    @property
    def is_fit(self) -> bool:
        """Tell whether anything of the node is chosen on held-out claims."""
        return any(part.is_fit for part in self.parts)

    @property
    def main_model(self) -> ModelConfig | None:
        """Return the dense model that the node is known by; None without one."""
        return None

    def walk(self) -> Iterator[Any]:
        """Yield the node and, after it, everything that it is made of."""
        yield self
        for part in self.parts:
            yield from part.walk()

    def require_supported(self) -> None:
        """Raise `UserError` where the node cannot run."""
        if self.unsupported is not None:
            raise UserError(self.unsupported)

    def form_of(self, form: ClaimForm | None, runtime: SystemRuntime) -> ClaimForm:
        """Return the claim form that the node is run with where `form` is wanted."""
        return self.claims or form or "original"


@dataclass(frozen=True, kw_only=True)
class BM25Node(Node):
    """Rank by BM25; with a `grid` settings are chosen of it on all of train."""

    bm25: BM25Config = field(default_factory=BM25Config)
    grid: Grid = ()
    fitted: bool = False

    kind = "bm25"

    @property
    def is_fit(self) -> bool:
        """Tell whether settings are chosen."""
        return bool(self.grid)

    def fit(self, fitting: Fitting, train_split: str | None = None) -> tuple[Self, list[Choice]]:
        """Choose settings on train; `train_split` names it."""
        self.require_supported()
        if not self.grid or self.fitted:
            return self, []
        form = self.form_of(fitting.form, fitting.runtime)
        base = replace(self.bm25, claims=form)

        def chosen() -> tuple[BM25Config, Choice]:
            train = _train(fitting, train_split, form)
            return choose_bm25(train, base, self.grid, fitting.rule)

        made_of = base, self.grid, train_split
        bm25, choice = replace(fitting, form=form).once(made_of, chosen)
        return replace(self, bm25=bm25, fitted=True), [choice]

    def index(
        self, sources: Sequence[Source], runtime: SystemRuntime, form: ClaimForm | None = None
    ) -> Index:
        """Index sources."""
        self.require_supported()
        form = self.form_of(form, runtime)
        index = BM25(replace(self.bm25, claims=form), store=runtime.store).index(sources)
        return _rewriting(index, runtime, form)

    def sources(self, runtime: SystemRuntime) -> SourceForm:
        """Name the representation of sources that is read."""
        return self.bm25.sources

    def label_of(self) -> str:
        """Return the name by which reports and published tables know it."""
        if self.label is not None:
            return self.label
        if self.grid:
            return "bm25-tuned"
        # A name alone does not make it the papers'.
        return "bm25-own" if self.shown.casefold() == PAPERS_LABEL else self.shown


@dataclass(frozen=True, kw_only=True)
class FieldedNode(Node):
    """Rank tweets by BM25 over text and hashtags; with a `grid` settings are chosen of it.

    A claim's candidates are an index of their own.
    """

    fielded: FieldedConfig = field(default_factory=FieldedConfig)
    grid: Grid = ()
    fitted: bool = False

    kind = "fielded"

    @property
    def is_fit(self) -> bool:
        """Tell whether settings are chosen."""
        return bool(self.grid)

    def fit(self, fitting: Fitting, train_split: str | None = None) -> tuple[Self, list[Choice]]:
        """Choose settings on train; `train_split` names it."""
        self.require_supported()
        if not self.grid or self.fitted:
            return self, []
        base, held_out = self.fielded, fitting.held_out
        known = held_out.shared((base, self.grid, train_split))

        def chosen() -> tuple[FieldedConfig, Choice]:
            train = _train(fitting, train_split, "original")
            return choose_fielded(train, base, self.grid, fitting.rule, known)

        fielded, choice = fitting.once((base, self.grid, train_split), chosen)
        return replace(self, fielded=fielded, fitted=True), [choice]

    def index(
        self, sources: Sequence[Source], runtime: SystemRuntime, form: ClaimForm | None = None
    ) -> Index:
        """Index sources."""
        self.require_supported()
        return _rewriting(FieldedIndex(sources, self.fielded), runtime, "original")

    def sources(self, runtime: SystemRuntime) -> SourceForm:
        """Name the representation of sources that is read: a tweet is an abstract."""
        return "title_abstract"

    def label_of(self) -> str:
        """Return the name by which reports and published tables know it, with what is changed."""
        if self.label is not None:
            return self.label
        if self.grid:
            return "fielded-bm25-tuned"
        given, plain = asdict(self.fielded), asdict(FieldedConfig())
        return "+".join(
            ["fielded-bm25", *(f"{k}-{given[k]}" for k in given if given[k] != plain[k])]
        )


def _train(fitting: Fitting, split: str | None, form: ClaimForm) -> Dataset:
    """Load the claims that BM25 is chosen on, with their rewritings."""
    train = fitting.held_out.train(split)
    return train.with_claims(fitting.runtime.claims(train.claims, form))


@dataclass(frozen=True, kw_only=True)
class DenseNode(Node):
    """Rank by a dense model's vectors; a checkpoint has its own rendering.

    `other_sources` takes the place of the sources that it was trained with.
    """

    model: ModelConfig
    sources_form: SourceForm = "title_abstract"
    rendering: Rendering | None = None
    passages: PassageConfig | None = None
    vectors: IndexConfig | None = None
    other_sources: SourceForm | None = None

    kind = "dense"

    @property
    def main_model(self) -> ModelConfig | None:
        """Return the model."""
        return self.model

    def form_of(self, form: ClaimForm | None, runtime: SystemRuntime) -> ClaimForm:
        """Return the claim form that is wanted; without one, the checkpoint's own."""
        return self.claims or form or self._own(runtime).claims

    def _own(self, runtime: SystemRuntime) -> Rendering:
        """Return a checkpoint's own rendering, else the node's."""
        self.require_supported()
        if self.rendering is not None:
            own = runtime.pool.load(self.model).rendering_for(self.rendering)
        else:
            known = runtime.pool.facts(self.model).rendering
            own = known or Rendering("original", self.sources_form)
        return own if self.other_sources is None else replace(own, sources=self.other_sources)

    def fit(self, fitting: Fitting, train_split: str | None = None) -> tuple[Self, list[Choice]]:
        """Return the node as it is: nothing of it is chosen here."""
        self.require_supported()
        return self, []

    def retriever(self, runtime: SystemRuntime, form: ClaimForm | None = None) -> Dense:
        """Make the retriever, as it is run with a claim form."""
        self.require_supported()
        resolved = runtime.pool.load(self.model)
        # A checkpoint's sources are as it was trained; the claims' form is what is compared.
        rendering = replace(self._own(runtime), claims=self.form_of(form, runtime))
        return Dense(
            resolved.encoder,
            rendering=rendering,
            store=runtime.store,
            index=self.vectors,
            passages=self.passages,
            progress=runtime.progress,
        )

    def index(
        self, sources: Sequence[Source], runtime: SystemRuntime, form: ClaimForm | None = None
    ) -> Index:
        """Index sources: they are encoded by the first search."""
        index = self.retriever(runtime, form).index(sources)
        return _rewriting(index, runtime, self.form_of(form, runtime))

    def sources(self, runtime: SystemRuntime) -> SourceForm:
        """Name the representation of sources that is read."""
        return self._own(runtime).sources

    def label_of(self) -> str:
        """Return the name by which reports and published tables know it."""
        return self.label if self.label is not None else self.model.name


@dataclass(frozen=True, kw_only=True)
class RunNode(Node):
    """Rank as files of another program do."""

    run: SavedRunConfig

    kind = "run"

    def fit(self, fitting: Fitting, train_split: str | None = None) -> tuple[Self, list[Choice]]:
        """Return the node as it is: nothing of it is chosen here."""
        self.require_supported()
        return self, []

    def index(
        self, sources: Sequence[Source], runtime: SystemRuntime, form: ClaimForm | None = None
    ) -> Index:
        """Read the files."""
        self.require_supported()
        return SavedRun(self.run).index(sources)

    def sources(self, runtime: SystemRuntime) -> SourceForm:
        """Name the representation of sources that is read: that of a plain system."""
        return "title_abstract"

    def label_of(self) -> str:
        """Return the name by which reports and published tables know it."""
        return self.label if self.label is not None else self.shown


class Unwritten:
    """Refuse to be written: a system is not an index in a folder."""

    def save(self, folder: str | Path) -> None:
        """Refuse: `eval/index.py` writes an index."""
        raise UserError(f"{folder}: a system is not written; eval/index.py makes an index")


@dataclass(frozen=True)
class _RewritingIndex(Unwritten):
    index: Index
    runtime: SystemRuntime
    form: ClaimForm

    def search(self, claims: Claims, k: int = 100) -> Result:
        """Rank claims with their rewritings appended."""
        return self.index.search(self.runtime.claims(as_claims(claims), self.form), k)


def _rewriting(index: Index, runtime: SystemRuntime, form: ClaimForm) -> Index:
    return _RewritingIndex(index, runtime, form) if runtime.rewrites else index
