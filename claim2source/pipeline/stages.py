"""Apply stages to results, kept in the store, and join results of different claims."""

from __future__ import annotations

import inspect
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from types import ModuleType

from claim2source.core.files import content_hash
from claim2source.core.records import Claim, Source
from claim2source.core.run import Cost, Result, Run
from claim2source.core.stage import Stage
from claim2source.io.store import Store
from claim2source.rerank.frame import Reranker
from claim2source.retrieve.cache import read_or_search, request_key


def join_results(results: Sequence[Result], claims: Sequence[Claim]) -> Result:
    """Join results over different claims into one, in the order of `claims`."""
    rows = [row for result in results for row in result.run]
    columns = zip(*rows, strict=True) if rows else ((), (), ())
    pool = {claim: ids for r in results for claim, ids in (r.run.pool or {}).items()}
    run = Run.from_rows(*columns, claim_ids=[claim.id for claim in claims], pool=pool or None)
    return Result(
        run,
        notes={claim: note for result in results for claim, note in result.notes.items()},
        failures=tuple(failure for result in results for failure in result.failures),
        cost=sum((result.cost for result in results), Cost()),
        stored=bool(results) and all(result.stored for result in results),
    )


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
) -> Result:
    """Apply a stage to a result, or read from the store what that gave before.

    The key holds the stage's settings, code and model, the claims, the sources and the ranking
    that it was given: a changed stage runs again, and so does everything after it. A re-ranker
    computes on `device`.
    """
    if isinstance(stage, Reranker):
        stage = stage.placed(store, device, progress)
    key = None
    if store is not None:
        asked = request_key(
            claims,
            [[claim.text, claim.translation, claim.lang] for claim in claims],
            content_hash([asdict(source) for source in sources]),
            len(before.run),
        )
        made = [sys.modules[kind.__module__] for kind in type(stage).__mro__]
        code = [inspect.getsource(module) for module in made if _is_python(module)]
        key = {
            "stage": f"{type(stage).__module__}.{type(stage).__qualname__}",
            "settings": asdict(stage),  # type: ignore[call-overload]
            "code": content_hash(code),
            "identity": dict(stage.identity) if isinstance(stage, Reranker) else None,
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

    return read_or_search(store, key, apply)


def _is_python(module: ModuleType) -> bool:
    return bool(getattr(module, "__file__", None)) and module.__name__.partition(".")[0] != "abc"
