"""Describe a retriever of a systems file with its further keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, replace
from typing import Any, cast

from claim2source.core.config import as_plain
from claim2source.core.errors import UserError
from claim2source.core.records import Source
from claim2source.core.stage import Index, Retriever
from claim2source.models import ModelConfig
from claim2source.models.trained_on import TRAINED_ON, TrainedOn
from claim2source.search.bm25 import BM25
from claim2source.search.choose import Grid
from claim2source.search.dense import Dense
from claim2source.search.fielded import Fielded
from claim2source.search.fuse import Hybrid
from claim2source.search.routes import Routes
from claim2source.search.saved import Saved
from claim2source.systems.own import Own
from claim2source.systems.runtime import SystemRuntime
from claim2source.systems.stages import stage_label
from claim2source.text import ClaimForm, Rendering, SourceForm

PAPERS_LABEL = "bm25"
# As a model's name: the program's --checkpoint.
CHECKPOINT = "checkpoint"
NO_CHECKPOINT = (
    f"the first stage's dense model is `{CHECKPOINT}`: set --checkpoint, or name its folder there"
)
KINDS: dict[type, str] = {
    BM25: "bm25",
    Fielded: "fielded",
    Dense: "dense",
    Saved: "run",
    Own: "own",
    Hybrid: "hybrid",
    Routes: "routes",
}


@dataclass(frozen=True)
class Retrieval:
    """Retriever of a systems file: a whole first stage, or a part of a hybrid or of routes.

    `claims` is its claim form; None: the one that is evaluated. `unsupported` is the reason why it
    cannot run, `advice` the remedy if weights are missing. Settings are chosen from the lists of
    `grid`; `fitted` is true afterwards.
    """

    retriever: Any
    _: KW_ONLY
    name: str = ""
    label: str | None = None
    claims: ClaimForm | None = None
    unsupported: str | None = None
    advice: str | None = None
    grid: Grid = ()
    fitted: bool = False

    @property
    def kind(self) -> str:
        return KINDS[type(self.retriever)]

    @property
    def display_name(self) -> str:
        """Return the part's name, or its kind if it has none."""
        if not self.name and isinstance(self.retriever, Own):
            return self.retriever.path
        return self.name or self.kind

    @property
    def parts(self) -> tuple[Retrieval, ...]:
        """List the parts of a hybrid, the sparse one first, or of routes."""
        if isinstance(self.retriever, Hybrid | Routes):
            return self.retriever.parts
        return ()

    @property
    def is_fit(self) -> bool:
        """Whether any setting of the part is chosen on held-out claims."""
        retriever = self.retriever
        if self.grid or (isinstance(retriever, Own) and retriever.fits_itself):
            return True
        if isinstance(retriever, Hybrid) and retriever.fits:
            return True
        if isinstance(retriever, Routes) and retriever.is_open:
            return True
        return any(part.is_fit for part in self.parts)

    @property
    def main_model(self) -> ModelConfig | None:
        """Return the dense model that represents the part; None if there is none."""
        retriever = self.retriever
        if isinstance(retriever, Hybrid):
            return self.parts[1].main_model
        if isinstance(retriever, Dense) and isinstance(retriever.model, ModelConfig):
            return retriever.model
        return None

    @property
    def models(self) -> list[str]:
        """List the models of a custom retriever."""
        return self.retriever.models if isinstance(self.retriever, Own) else []

    def walk(self) -> Iterator[Retrieval]:
        """Yield the part, then all parts within it."""
        yield self
        for part in self.parts:
            yield from part.walk()

    def require_supported(self) -> None:
        if self.unsupported is not None:
            raise UserError(self.unsupported)

    def with_parts(self, parts: Sequence[Retrieval]) -> Retrieval:
        """Return a hybrid or routes with other parts, in the order of `parts`."""
        retriever = self.retriever
        if isinstance(retriever, Hybrid):
            first, second = parts
            return replace(self, retriever=replace(retriever, first=first, second=second))
        if not isinstance(retriever, Routes):
            return self
        routes = {}
        for language, candidates in retriever.routes.items():
            numbers = [self.parts.index(candidate) for candidate in candidates]
            routes[language] = tuple(parts[number] for number in numbers)
        return replace(self, retriever=Routes(routes))

    def choose_form(self, form: ClaimForm | None, runtime: SystemRuntime) -> ClaimForm:
        """Return the claim form that the part runs with if `form` is requested."""
        given = self.claims or form
        if given is not None:
            return given
        if isinstance(self.retriever, Dense):
            return self._dense_rendering(self.retriever, runtime).claims
        if isinstance(self.retriever, Hybrid):
            return self.parts[1].choose_form(None, runtime)
        forms = {part.choose_form(None, runtime) for part in self.parts}
        # Each of several parts with different forms runs with its own.
        return forms.pop() if len(forms) == 1 else "original"

    def settled(self, form: ClaimForm | None, runtime: SystemRuntime) -> Retrieval:
        """Return the part with the claim form of all its parts set, if `form` is requested."""
        given = self.claims or form
        own = self.choose_form(form, runtime)
        if isinstance(self.retriever, Hybrid):
            sparse, dense = self.parts
            # The dense part first: its weights may be missing.
            parts = [dense.settled(given, runtime), sparse.settled(own, runtime)]
            return replace(self.with_parts(parts[::-1]), claims=own)
        parts = [part.settled(given, runtime) for part in self.parts]
        return replace(self.with_parts(parts), claims=own)

    def index(self, sources: Sequence[Source], runtime: SystemRuntime | None = None) -> Index:
        """Index sources; claims use the form that was set, else the retriever's own."""
        return self.ready(runtime or SystemRuntime()).index(sources)

    def ready(self, runtime: SystemRuntime) -> Retriever:
        """Return the retriever with its claim form, store and model, ready to index."""
        retriever, form = self.retriever, self.choose_form(None, runtime)
        if isinstance(retriever, BM25):
            return replace(retriever, claims=form, store=runtime.store)
        if isinstance(retriever, Dense):
            rendering = replace(self._dense_rendering(retriever, runtime), claims=form)
            return replace(
                retriever,
                model=runtime.load(_model(retriever)).encoder,
                # A checkpoint determines the form of its sources; only the claims' form may vary.
                rendering=rendering,
                other_sources=None,
                store=runtime.store,
                progress=runtime.progress,
            )
        if isinstance(retriever, Own):
            return replace(retriever, form=form, runtime=runtime)
        if isinstance(retriever, Hybrid):
            first, second = (BoundRetrieval(part, runtime) for part in self.parts)
            return replace(retriever, first=first, second=second)
        if isinstance(retriever, Routes):
            routes = {}
            for language, parts in _routes(retriever).items():
                routes[language] = tuple(BoundRetrieval(part, runtime) for part in parts)
            return Routes(routes)
        own: Retriever = retriever
        return own

    def sources(self, runtime: SystemRuntime) -> SourceForm:
        """Return the form of the sources; that of a plain system if there are several."""
        retriever = self.retriever
        if isinstance(retriever, BM25):
            return retriever.sources
        if isinstance(retriever, Dense):
            return self._dense_rendering(retriever, runtime).sources
        if isinstance(retriever, Hybrid):
            return self.parts[1].sources(runtime)
        forms = {part.sources(runtime) for part in self.parts}
        return forms.pop() if len(forms) == 1 else "title_abstract"

    def _dense_rendering(self, dense: Dense, runtime: SystemRuntime) -> Rendering:
        self.require_supported()
        model = _model(dense)
        if dense.rendering is not None:
            own = runtime.load(model).rendering_for(dense.rendering)
        else:
            own = runtime.rendering(model) or Rendering("original", dense.sources)
        return own if dense.other_sources is None else replace(own, sources=dense.other_sources)

    def full_label(self) -> str:
        return self.label if self.label is not None else self._own_label()

    def _own_label(self) -> str:
        retriever = self.retriever
        if isinstance(retriever, BM25):
            return self._bm25_label()
        if isinstance(retriever, Fielded):
            return _fielded_label(retriever, self.grid)
        if isinstance(retriever, Dense):
            return _model(retriever).name
        if isinstance(retriever, Own):
            grid = "".join(f" {name} fitted" for name, _ in self.grid)
            return stage_label(retriever.path, retriever.retriever).removesuffix("()") + grid
        if isinstance(retriever, Hybrid):
            return self._hybrid_label()
        if isinstance(retriever, Routes):
            return _routes_label(retriever)
        return self.display_name

    def _bm25_label(self) -> str:
        if self.grid:
            return "bm25-tuned"
        # The name alone does not make it the papers' BM25.
        return "bm25-own" if self.display_name.casefold() == PAPERS_LABEL else self.display_name

    def _hybrid_label(self) -> str:
        sparse, dense = (part.full_label() for part in self.parts)
        kind = "tuned-hybrid" if self.is_fit else "hybrid"
        # With another BM25 it is not the papers' hybrid.
        kind = kind if sparse in (PAPERS_LABEL, "bm25-tuned") else f"{sparse}-{kind}"
        return f"{kind}:{dense}"


@dataclass(frozen=True)
class BoundRetrieval:
    """Retrieval bound to a runtime, as a retriever."""

    part: Retrieval
    runtime: SystemRuntime

    @property
    def display_name(self) -> str:
        return self.part.display_name

    def index(self, sources: Sequence[Source]) -> Index:
        return self.part.index(sources, self.runtime)


def _model(dense: Dense) -> ModelConfig:
    if not isinstance(dense.model, ModelConfig):
        raise UserError("a system's dense model is a name, a folder or a ModelConfig")
    return dense.model


def _routes(routes: Routes) -> Mapping[str, tuple[Retrieval, ...]]:
    return cast(Mapping[str, tuple[Retrieval, ...]], routes.routes)


def _fielded_label(fielded: Fielded, grid: Grid) -> str:
    if grid:
        return "fielded-bm25-tuned"
    values, defaults = asdict(fielded), asdict(Fielded())
    changed = [f"{key}-{value}" for key, value in values.items() if value != defaults[key]]
    return "+".join(["fielded-bm25", *changed])


def _routes_label(routes: Routes) -> str:
    labels = []
    for language, parts in sorted(_routes(routes).items()):
        names = "|".join(part.full_label() for part in parts)
        labels.append(f"{language}={names}")
    return f"routes({', '.join(labels)})"


def claims_behind_run(saved: Saved) -> TrainedOn:
    """Read the training claims that our evaluation noted next to its runs; none without a note."""
    joined = TrainedOn()
    for folder in {path.parent for path in saved.files.values()}:
        if (folder / TRAINED_ON).exists():
            joined |= TrainedOn.read(folder)
    return joined


def retrieval_settings(part: Retrieval) -> dict[str, Any]:
    """Return a part's settings as JSON values, in the form of reports and keys."""
    names = ("name", "label", "claims", "unsupported", "advice")
    values: dict[str, Any] = {name: getattr(part, name) for name in names}
    retriever = part.retriever
    fitted = {"fitted": part.fitted}
    grid = {"grid": as_plain(part.grid), **fitted}
    if isinstance(retriever, Hybrid):
        sparse, dense = map(retrieval_settings, part.parts)
        fusion = {"fusion": as_plain(retriever.fusion), "fits": retriever.fits}
        return {**values, "sparse": sparse, "dense": dense, **fusion, **fitted}
    if isinstance(retriever, Routes):
        routes = {}
        for language, parts in _routes(retriever).items():
            routes[language] = [retrieval_settings(one) for one in parts]
        return {**values, "routes": routes}
    if isinstance(retriever, Dense):
        return {**values, **_dense_settings(retriever)}
    if isinstance(retriever, Own):
        own = {"path": retriever.path, "retriever": as_plain(retriever.retriever)}
        return {**values, **own, **grid}
    if isinstance(retriever, Saved):
        return {**values, "run": as_plain(retriever)}
    settings = as_plain(retriever)
    if isinstance(retriever, BM25) and retriever.posts is None:
        # Rows that were stored before this key existed keep their names.
        del settings["posts"]
    return {**values, **grid, part.kind: settings}


def _dense_settings(dense: Dense) -> dict[str, Any]:
    model: Any = as_plain(dense.model)
    if isinstance(dense.model, ModelConfig) and dense.model.truncate_dim is None:
        # Rows that were stored before this key existed keep their names.
        del model["truncate_dim"]
    return {
        "model": model,
        "sources_form": dense.sources,
        "rendering": as_plain(dense.rendering),
        "other_sources": dense.other_sources,
        "claim_length": dense.claim_length,
    }
