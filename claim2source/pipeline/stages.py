"""Apply stages to results, kept in the store."""

from __future__ import annotations

import inspect
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, asdict, fields, is_dataclass, replace
from types import ModuleType
from typing import Any, Protocol, runtime_checkable

from claim2source.core.files import content_hash, file_hash
from claim2source.core.records import Claim, Source
from claim2source.core.run import Result, Run
from claim2source.core.stage import Stage
from claim2source.io.store import Store
from claim2source.llm.config import LLMConfig
from claim2source.llm.work import is_unanswered
from claim2source.pipeline.when import Conditional
from claim2source.rerank.learned import Learned
from claim2source.retrieve.cache import read_or_search, request_key
from claim2source.text.prompts import read_prompt

# What a report says of a language model, and what it does not say of a server.
_DECODING = ("model", "temperature", "top_p", "seed", "max_tokens", "thinking")
_OF_SERVERS = ("url", "key_env", "concurrency", "timeout", "retries")


@runtime_checkable
class UsesRuntime(Protocol):
    """Fit stages that keep more than their result in the store, or compute on a device."""

    def with_runtime(
        self, store: Store | None, device: str | None, progress: bool = False
    ) -> Stage:
        """Return the same stage with a store and a device."""
        ...


@runtime_checkable
class Informed(Protocol):
    """Fit stages that read what all stages before them gave."""

    def after(self, stages: Mapping[str, Result]) -> Stage:
        """Return the same stage, which knows these results by the stages' names."""
        ...


@runtime_checkable
class Pooled(Protocol):
    """Fit stages whose scores depend on all sources there are, not on those to rank alone."""

    @property
    def counts_terms(self) -> bool:
        """Tell whether this one's do."""
        ...

    def over(self, pool: Sequence[Source]) -> Stage:
        """Return the same stage, which counts over a pool."""
        ...


def counts_terms(stage: Stage) -> bool:
    """Tell whether a stage's scores depend on all sources there are."""
    inner = stage.stage if isinstance(stage, Conditional) else stage
    return isinstance(inner, Pooled) and inner.counts_terms


def over(stage: Stage, pool: Sequence[Source]) -> Stage:
    """Have a stage count over a pool, if it does."""
    if isinstance(stage, Conditional):
        return replace(stage, stage=over(stage.stage, pool))
    return stage.over(pool) if isinstance(stage, Pooled) and stage.counts_terms else stage


def models_of(stage: Stage) -> list[str]:
    """Name the models of a stage, any of which may have been trained on claims."""
    if isinstance(stage, Conditional):
        return models_of(stage.stage)
    if isinstance(stage, Learned):
        found = ((one.name, one.view.model) for one in stage.fusion.views)
        return [stage.models.get(name, one.name) for name, one in found if one is not None]
    model = getattr(stage, "model", None)
    return [model] if isinstance(model, str) else []


def informed(stage: Stage, before: Sequence[tuple[str, Result]], claims: Sequence[Claim]) -> Stage:
    """Tell a stage what the stages before it gave, if it reads that."""
    if isinstance(stage, Conditional):
        return replace(stage, stage=informed(stage.stage, before, claims))
    return stage.after(named_stages(before, claims)) if isinstance(stage, Informed) else stage


def named_stages(
    stages: Sequence[tuple[str, Result]], claims: Sequence[Claim]
) -> dict[str, Result]:
    """Name the stages that rank for all claims; the second of a name is `NAME 2`."""
    wanted = {claim.id for claim in claims}
    named: dict[str, Result] = {}
    for name, result in stages:
        if wanted <= set(result.run.claim_ids):
            times = sum(
                re.fullmatch(rf"{re.escape(name)}( \d+)?", one) is not None for one in named
            )
            named[f"{name} {times + 1}" if times else name] = result
    return named


def with_runtime(
    stage: Stage, store: Store | None, device: str | None, progress: bool = False
) -> Stage:
    """Give a stage a store and a device, if it takes them."""
    if isinstance(stage, Conditional):
        return replace(stage, stage=with_runtime(stage.stage, store, device, progress))
    return stage.with_runtime(store, device, progress) if isinstance(stage, UsesRuntime) else stage


def apply_stage(
    stage: Stage,
    claims: Sequence[Claim],
    sources: Sequence[Source],
    before: Result,
    store: Store | None = None,
    clock: Callable[[], float] = time.perf_counter,
    *,
    device: str | None = None,
    progress: bool = False,
    earlier: Run | None = None,
) -> Result:
    """Apply a stage to a result, or read from the store what that gave before.

    The key holds the stage's settings, code and model, the claims, the sources and the ranking
    that it was given: a changed stage runs again, and so does everything after it. A stage that
    has `with_runtime` keeps more in the store and computes on `device`. `earlier` is the run before
    `before`. A result that a server has not answered wholly is not kept.
    """
    if isinstance(stage, Conditional):
        inner = stage.stage

        def of_asked(asked: Sequence[Claim], run: Run) -> Result:
            given = Result(run)
            return apply_stage(
                inner, asked, sources, given, store, clock, device=device, progress=progress
            )

        result = stage.applied(claims, before.run, earlier, of_asked)
        when = {key: value for key, value in asdict(stage.when).items() if value}
        return replace(result, settings={**stage_settings(inner), "when": when})
    settings = stage_settings(stage)
    stage = with_runtime(stage, store, device, progress)
    key = None
    if store is not None:
        asked = request_key(
            claims,
            [[claim.text, claim.translation, claim.lang] for claim in claims],
            content_hash([asdict(source) for source in sources]),
            len(before.run),
        )
        identity = getattr(stage, "identity", None)
        made = [sys.modules[kind.__module__] for kind in type(stage).__mro__]
        code = [inspect.getsource(module) for module in made if _is_python(module)]
        key = {
            "stage": f"{type(stage).__module__}.{type(stage).__qualname__}",
            "settings": asdict(stage),  # type: ignore[call-overload]
            "code": content_hash(code),
            "identity": dict(identity) if identity is not None else None,
            "ranking": content_hash([list(row) for row in before.run]),
            **asked,
        }

    def apply() -> Result:
        started = clock()
        result = stage.apply(claims, sources, before.run)
        if result.cost.seconds:
            return result
        cost = replace(result.cost, seconds=clock() - started, items=len(claims))
        return replace(result, cost=cost)

    return replace(read_or_search(store, key, apply, is_answered), settings=settings)


def stage_settings(stage: Stage) -> dict[str, Any]:
    """State a stage's settings for a report: numbers and names, decoding, prompts by their files.

    Where its server is and who asks it is left out.
    """
    found: dict[str, Any] = {}
    specs: tuple[Field[Any], ...] = fields(stage) if is_dataclass(stage) else ()
    for spec in specs:
        value = getattr(stage, spec.name)
        if isinstance(value, LLMConfig):
            found[spec.name] = {key: getattr(value, key) for key in _DECODING}
        elif spec.name.endswith("prompt") and isinstance(value, str):
            prompt = read_prompt(value)
            made = {"version": prompt.version, "sha256": file_hash(prompt.path)}
            found[spec.name] = {"name": prompt.name, **made}
        elif isinstance(value, str | int | float) and spec.name not in _OF_SERVERS:
            found[spec.name] = value
    return found


def is_answered(result: Result) -> bool:
    """Tell whether servers have answered, well or not, all that a stage asked."""
    return not any(is_unanswered(failure.reason) for failure in result.failures)


def _is_python(module: ModuleType) -> bool:
    return bool(getattr(module, "__file__", None)) and module.__name__.partition(".")[0] != "abc"
