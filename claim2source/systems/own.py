"""Run a custom retriever: a dataclass that a systems file names by its dotted path."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import Any

from claim2source.core.arguments import whole_number
from claim2source.core.errors import InputError, UserError
from claim2source.core.files import content_hash
from claim2source.core.imports import code_hash
from claim2source.core.machine import peak_memory, reset_peak_memory
from claim2source.core.records import Claim, Dataset, Source
from claim2source.core.report import Choice, Rule
from claim2source.core.run import Result, Run
from claim2source.core.stage import Claims, Index, Retriever, as_claims, as_sources
from claim2source.models.manifest import read_any_manifest
from claim2source.search.cache import read_or_search, request_key
from claim2source.search.choose import DEPTH, Grid, Preference, choose, weigh
from claim2source.search.topk import candidate_pool
from claim2source.systems.heldout import Fitting
from claim2source.systems.runtime import SystemRuntime
from claim2source.systems.stages import is_answered, with_runtime
from claim2source.text import ClaimForm
from claim2source.text.views import claim_parts, render_claim


def render_claims(claims: Sequence[Claim], form: ClaimForm) -> list[Claim]:
    """Return the claims with their rendered form as text, in the language of its first line."""
    rendered: list[Claim] = []
    for claim in claims:
        first_part = claim_parts(claim, form)[0]
        text = render_claim(claim, form)
        rendered.append(replace(claim, text=text, lang=first_part.language))
    return rendered


@dataclass(frozen=True, eq=False)
class OwnIndex:
    """Search the index of a custom retriever, or read its stored runs.

    `path` is the retriever's dotted path. Its index is built for the first search without a stored
    run. It gets claims whose text is in `form`.
    """

    path: str
    retriever: Retriever
    sources: Sequence[Source] = field(repr=False)
    form: ClaimForm
    runtime: SystemRuntime

    @cached_property
    def _index(self) -> Index:
        retriever = _with_runtime(self.retriever, self.runtime)
        index: Index = retriever.index(self.sources)
        if not hasattr(index, "search"):
            kind = type(index).__name__
            reason = f"index(sources) returned a {kind} without `search`"
            raise InputError(self.path, reason=reason)
        return index

    @cached_property
    def _source_ids(self) -> frozenset[str]:
        return frozenset(source.id for source in self.sources)

    @cached_property
    def _sources_hash(self) -> str:
        sources = as_sources(self.sources)
        return content_hash([asdict(source) for source in sources])

    def search(self, claims: Claims, k: int = 100) -> Result:
        """Rank the best `k` sources of every claim, or read the stored run."""
        k = whole_number(k, "k")
        rendered = render_claims(as_claims(claims), self.form)
        key = None
        if self.runtime.store is not None:
            key = self._key(rendered, k)
        try:
            return read_or_search(
                self.runtime.store,
                key,
                lambda: self._search(rendered, k),
                is_answered,
            )
        except UserError as error:
            if not error.model:
                models = own_models(self.retriever)
                error.model = next(iter(models), None)
            raise

    def _key(self, claims: Sequence[Claim], k: int) -> dict[str, Any]:
        texts = [[claim.text, claim.translation, claim.lang] for claim in claims]
        kind = type(self.retriever)
        identity = getattr(self.retriever, "identity", None)
        key = {
            "retriever": f"{kind.__module__}.{kind.__qualname__}",
            "settings": asdict(self.retriever),  # type: ignore[call-overload]
            "code": code_hash(kind),
            "identity": None if identity is None else dict(identity),
            **request_key(claims, texts, self._sources_hash, k),
        }
        try:
            content_hash(key)
        except (TypeError, ValueError):
            reason = "its fields must be JSON values: they are the key of its stored runs"
            raise InputError(self.path, reason=reason) from None
        return key

    def _search(self, claims: Sequence[Claim], k: int) -> Result:
        started = time.perf_counter()
        reset_peak_memory()
        most_excluded = max((len(claim.excluded) for claim in claims), default=0)
        result = self._index.search(claims, k + most_excluded)
        if not isinstance(result, Result):
            kind = type(result).__name__
            reason = f"search(claims, k) must return a Result, not a {kind}"
            raise InputError(self.path, reason=reason)

        run = self._checked_run(result.run, claims, k)
        result = replace(result, run=run)
        if result.cost.seconds:
            return result
        seconds = time.perf_counter() - started
        cost = replace(
            result.cost,
            seconds=seconds,
            items=len(claims),
            peak_memory=peak_memory(gpu=False),
        )
        return replace(result, cost=cost)

    def _checked_run(self, run: Run, claims: Sequence[Claim], k: int) -> Run:
        """Return the claims' lists in order, without sources that are excluded for a claim.

        Raises `InputError` for a claim without a list, or a source that is not indexed.
        """
        unknown = [source for source in run.vocabulary if source not in self._source_ids]
        if unknown:
            reason = f"returned {unknown[0]!r}, which is not indexed"
            raise InputError(self.path, reason=reason)

        ranked_claims = set(run.claim_ids)
        lists: dict[str, list[tuple[str, float]]] = {}
        for claim in claims:
            if claim.id not in ranked_claims:
                reason = f"the result has no list for claim {claim.id!r}; it may be empty"
                raise InputError(self.path, reason=reason)
            allowed = None if claim.candidates is None else set(claim.candidates)
            pairs: list[tuple[str, float]] = []
            for source, score in run.scored(claim.id).items():
                if source in claim.excluded:
                    continue
                if allowed is not None and source not in allowed:
                    continue
                pairs.append((source, score))
            lists[claim.id] = pairs[:k]
        pool = candidate_pool(claims)
        return Run.from_lists(lists, pool=pool)


@dataclass(frozen=True)
class Own:
    """Rank by a custom retriever with the dotted `path`.

    It gets claims whose text is in `form`, and the content of a `runtime`.
    """

    path: str
    retriever: Retriever
    form: ClaimForm = "original"
    runtime: SystemRuntime | None = field(default=None, compare=False, repr=False)

    @property
    def fits_itself(self) -> bool:
        return fits_itself(self.retriever)

    @property
    def models(self) -> list[str]:
        return own_models(self.retriever)

    def index(self, sources: Sequence[Source]) -> OwnIndex:
        runtime = self.runtime or SystemRuntime()
        return OwnIndex(
            self.path,
            self.retriever,
            sources,
            self.form,
            runtime,
        )


def own_models(retriever: Retriever) -> list[str]:
    """Return the name of a retriever's model, which may have been trained on claims."""
    model = getattr(retriever, "model", None)
    if isinstance(model, str) and model:
        return [model]
    return []


def fits_itself(retriever: Retriever) -> bool:
    """Whether a retriever chooses its settings by its own method `fit`."""
    return hasattr(retriever, "fit")


def fit_own(
    path: str,
    retriever: Retriever,
    grid: Grid,
    fitting: Fitting,
    form: ClaimForm,
) -> tuple[Retriever, list[Choice]]:
    """Choose a retriever's settings by its method `fit`, or from the lists of `grid`.

    Both use claims that its model was not trained on; without a model, all of train.
    """
    runtime = fitting.runtime
    models = own_models(retriever)
    if models:
        manifests = [read_any_manifest(model) for model in models]
        val = fitting.held_out.claims(manifests).val
    else:
        val = fitting.train()
    if fits_itself(retriever):
        rendered_claims = render_claims(val.claims, form)
        rendered = val.with_claims(rendered_claims)
        prepared = _with_runtime(retriever, runtime)
        fitted = prepared.fit(rendered)
        return _checked_fit(path, retriever, fitted)

    def search(candidate: Retriever, claims: Sequence[Claim], k: int) -> Result:
        index = OwnIndex(path, candidate, val.sources, form, runtime)
        return index.search(claims, k)

    chosen, choice = choose_own(path, retriever, grid, val, search, fitting.rule)
    return chosen, [choice]


def _with_runtime(retriever: Any, runtime: SystemRuntime) -> Any:
    return with_runtime(
        retriever,
        runtime.store,
        runtime.device,
        runtime.progress,
    )


def _checked_fit(
    path: str,
    retriever: Retriever,
    fitted: object,
) -> tuple[Retriever, list[Choice]]:
    """Return a fitted retriever and its choices. Raises `InputError` for anything else."""
    wanted = "fit(val) must return a retriever of its class, and a Choice or a list of them"
    if not isinstance(fitted, tuple) or len(fitted) != 2:
        raise InputError(path, reason=wanted)
    own, choices = fitted
    if type(own) is not type(retriever):
        raise InputError(path, reason=wanted)
    listed = [choices] if isinstance(choices, Choice) else choices
    if not isinstance(listed, list | tuple):
        raise InputError(path, reason=wanted)
    if not all(isinstance(choice, Choice) for choice in listed):
        raise InputError(path, reason=wanted)
    return own, list(listed)


def choose_own(
    path: str,
    retriever: Retriever,
    grid: Grid,
    val: Dataset,
    search: Callable[[Retriever, Sequence[Claim], int], Result],
    rule: Rule = "one_se",
) -> tuple[Retriever, Choice]:
    """Choose a retriever's settings from lists of values, of which the first is the default.

    Distance from the default is in steps: numbers are sorted, other values keep their order.
    """
    weighing = weigh(val)
    claims = [claim for claim in val.claims if claim.golds]
    names = [name for name, _ in grid]
    orders = [_ordered(values) for _, values in grid]
    settings_by_cell: dict[tuple[int, ...], dict[str, Any]] = {}
    numbers = [range(len(values)) for _, values in grid]
    for cell in product(*numbers):
        settings: dict[str, Any] = {}
        for (name, values), number in zip(grid, cell, strict=True):
            settings[name] = values[number]
        settings_by_cell[cell] = settings

    def retriever_at(cell: tuple[int, ...]) -> Retriever:
        changed: Retriever = replace(retriever, **settings_by_cell[cell])  # type: ignore[type-var]
        return changed

    def distance(cell: tuple[int, ...]) -> float:
        settings = settings_by_cell[cell]
        default_settings = settings_by_cell[default]
        steps = 0
        for name, order in zip(names, orders, strict=True):
            position = order.index(settings[name])
            default_position = order.index(default_settings[name])
            steps += abs(position - default_position)
        return float(steps)

    default = next(iter(settings_by_cell))
    candidates = {
        cell: weighing.of(search(retriever_at(cell), claims, DEPTH).run)
        for cell in settings_by_cell
    }
    chosen, choice = choose(
        path,
        candidates,
        weighing,
        settings=lambda cell: settings_by_cell[cell],
        by=Preference(rule, distance),
        trials=True,
    )
    trials = tuple(replace(trial, scores={}) for trial in choice.tried)
    choice = replace(choice, tried=trials)
    return retriever_at(chosen), choice


def _ordered(values: Sequence[Any]) -> list[Any]:
    are_numbers = all(isinstance(value, int | float) for value in values)
    if are_numbers:
        return sorted(values)
    return list(values)
