"""Choose the open settings of first stages, on claims that are not reported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from claim2source.core.report import Choice
from claim2source.models import Manifest
from claim2source.models.manifest import read_any_manifest
from claim2source.models.trained_on import TrainedOn
from claim2source.search.bm25 import BM25
from claim2source.search.dense import Dense
from claim2source.search.fielded import Fielded
from claim2source.search.fuse import Hybrid
from claim2source.search.routes import Routes, choose_route
from claim2source.search.saved import Saved
from claim2source.systems.heldout import Fitting, one_val
from claim2source.systems.own import Own, fit_own
from claim2source.systems.retrieval import BoundRetrieval, Retrieval, claims_behind_run
from claim2source.systems.runtime import SystemRuntime
from claim2source.systems.seen import Trained


def fit_retrieval(part: Retrieval, fitting: Fitting) -> tuple[Retrieval, list[Choice]]:
    """Choose the open settings of a part and of its inner parts."""
    part.require_supported()
    if isinstance(part.retriever, Hybrid):
        return _fit_hybrid(part, part.retriever, fitting)
    if isinstance(part.retriever, Routes):
        return _fit_routes(part, part.retriever, fitting)
    if not part.is_fit or part.fitted:
        return part, []
    retriever, choices = _fit_leaf(part, fitting)
    return replace(part, retriever=retriever, fitted=True), choices


def _fit_leaf(part: Retrieval, fitting: Fitting) -> tuple[Any, list[Choice]]:
    """Choose the settings of a retriever; on all of train if it has no trained model."""
    retriever = part.retriever
    grid = part.grid
    train_split = fitting.train_split
    if isinstance(retriever, Fielded):
        made_of = retriever, grid, train_split
        scores = fitting.held_out.shared(made_of)
        original = replace(fitting, form="original")
        fielded, choice = original.get_or_make(
            made_of,
            lambda: retriever.fit(fitting.train(), grid, fitting.rule, scores),
        )
        return fielded, [choice]

    form = part.choose_form(fitting.form, fitting.runtime)
    fitting = replace(fitting, form=form)
    if isinstance(retriever, Own):
        own = retriever.path, retriever.retriever, grid
        chosen, choices = fitting.get_or_make(
            (*own, train_split),
            lambda: fit_own(*own, fitting, form),
        )
        return replace(retriever, retriever=chosen), choices

    base: BM25 = replace(retriever, claims=form)
    bm25, choice = fitting.get_or_make(
        (base, grid, train_split),
        lambda: base.fit(fitting.train(), grid, fitting.rule),
    )
    return bm25, [choice]


def _fit_hybrid(
    part: Retrieval,
    hybrid: Hybrid,
    fitting: Fitting,
) -> tuple[Retrieval, list[Choice]]:
    """Fit both parts, then choose the fusion on claims that training held out."""
    fitting = replace(fitting, form=part.claims or fitting.form)
    sparse, dense = part.parts
    # The dense part first: if its weights are missing, BM25 need not be fitted.
    dense, dense_choices = fit_retrieval(dense, fitting)
    form = part.choose_form(fitting.form, fitting.runtime)
    manifest = _main_manifest(dense, fitting.runtime)
    sparse_fitting = replace(fitting, form=form)
    manifest_splits = hybrid.fits and fitting.train_split is None
    if manifest_splits and manifest is not None:
        train_split = manifest.data.train_split
        sparse_fitting = replace(sparse_fitting, train_split=train_split)
    sparse, sparse_choices = fit_retrieval(sparse, sparse_fitting)
    part = part.with_parts([sparse, dense])
    choices = [*dense_choices, *sparse_choices]
    if not hybrid.fits or part.fitted:
        return part, choices

    def choose_here() -> tuple[Hybrid, Choice]:
        models = _manifests(part, fitting.runtime) or [manifest]
        runs = _claims_behind_runs(part)
        selection = fitting.held_out.claims(models, runs)
        settled = part.settled(fitting.form, fitting.runtime)
        ready = settled.ready(fitting.runtime)
        assert isinstance(ready, Hybrid)
        weighing = selection.weighing()
        return ready.fit(selection.val, fitting.rule, weighing, selection.note)

    unnamed = _unnamed(part)
    chosen, choice = fitting.get_or_make(unnamed, choose_here)
    choices.append(choice)
    fitted = replace(part.retriever, fusion=chosen.fusion)
    return replace(part, retriever=fitted, fitted=True), choices


def _fit_routes(
    part: Retrieval,
    routes: Routes,
    fitting: Fitting,
) -> tuple[Retrieval, list[Choice]]:
    """Fit the parts of the reported languages, and choose each language's on its val."""
    fitting = replace(fitting, form=part.claims or fitting.form)
    fitted_routes: dict[str, tuple[Retrieval, ...]] = {}
    choices: list[Choice] = []
    distinct: list[Retrieval] = []
    for language in fitting.languages or tuple(routes.routes):
        candidates: tuple[Retrieval, ...] = routes.candidates(language)
        own = candidates[0]
        if len(candidates) > 1:
            fitted = [fit_retrieval(candidate, fitting)[0] for candidate in candidates]
            number, choice = _choose_route(language, fitted, fitting)
            own = candidates[number]
            choices.append(choice)
        # Settings that were chosen before are not chosen again.
        fitted_own, _ = fit_retrieval(own, fitting)
        fitted_routes[language] = (fitted_own,)
        if own not in distinct:
            distinct.append(own)

    for own in distinct:
        _, own_choices = fit_retrieval(own, fitting)
        choices += own_choices
    retriever = Routes(fitted_routes)
    return replace(part, retriever=retriever), choices


def _choose_route(
    language: str,
    parts: Sequence[Retrieval],
    fitting: Fitting,
) -> tuple[int, Choice]:
    runtime = fitting.runtime
    held_out = {}
    for part in parts:
        manifests = _manifests(part, runtime)
        runs = _claims_behind_runs(part)
        held_out[part.display_name] = fitting.held_out.claims(manifests, runs)
    selection = one_val(language, held_out)
    own_val = selection.val.in_languages([language])

    bound: list[BoundRetrieval] = []
    for part in parts:
        settled = part.settled(fitting.form, runtime)
        bound.append(BoundRetrieval(settled, runtime))
    return choose_route(
        language,
        bound,
        selection.weighing(own_val, language),
        fitting.rule,
        selection.note,
        [_route_settings(part) for part in parts],
    )


def _route_settings(part: Retrieval) -> Mapping[str, str]:
    model = part.main_model
    if model is None:
        return {"system": part.display_name}
    return {
        "system": part.display_name,
        "model": model.name,
    }


def _unnamed(part: Retrieval) -> Retrieval:
    """Keep only the settings that a part's rankings depend on; routes keep parts' names."""
    if isinstance(part.retriever, Hybrid):
        unnamed_parts = [_unnamed(own) for own in part.parts]
        part = part.with_parts(unnamed_parts)
    return replace(
        part,
        name="",
        label=None,
        unsupported=None,
        advice=None,
    )


def _main_manifest(part: Retrieval, runtime: SystemRuntime) -> Manifest | None:
    model = part.main_model
    if model is None:
        return None
    return runtime.facts(model).record


def _manifests(part: Retrieval, runtime: SystemRuntime) -> list[Trained | None]:
    """List the manifests of all models of a part, of both parts of a hybrid and of routes."""
    manifests: list[Trained | None] = []
    for own in part.walk():
        if isinstance(own.retriever, Dense):
            manifests.append(_main_manifest(own, runtime))
        for model in own.models:
            manifests.append(read_any_manifest(model))
    return manifests


def _claims_behind_runs(part: Retrieval) -> list[TrainedOn]:
    """List the claims that the systems of a part's saved runs were trained on."""
    claims: list[TrainedOn] = []
    for own in part.walk():
        if isinstance(own.retriever, Saved):
            claims.append(claims_behind_run(own.retriever))
    return claims
