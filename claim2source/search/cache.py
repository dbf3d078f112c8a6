"""Keep a search's result in the store, under everything that it depends on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from claim2source.core.files import content_hash
from claim2source.core.records import Claim, Source
from claim2source.core.run import Cost, Failure, Result, Thinking
from claim2source.data.store import Store

# Counted up when a stored result would hold something else.
_FORMAT = 3


def sources_hash(sources: Sequence[Source], texts: Sequence[str]) -> str:
    """Hash sources by id and by text as the retriever reads it.

    Texts, not records: a corrected author changes no ranking that does not read authors.
    """
    return content_hash([[s.id, text] for s, text in zip(sources, texts, strict=True)])


def request_key(
    claims: Sequence[Claim], texts: Sequence[Any], sources: str, k: int
) -> dict[str, Any]:
    """Describe a search: the claims by id, text and candidates, `sources_hash`, depth.

    `texts` are JSON values, one for each claim.
    """
    pools = [sorted(c.candidates) if c.candidates is not None else None for c in claims]
    described = [
        [c.id, text, pool, *([list(c.excluded)] if c.excluded else ())]
        for c, text, pool in zip(claims, texts, pools, strict=True)
    ]
    return {"format": _FORMAT, "depth": k, "claims": content_hash(described), "sources": sources}


def read_or_search(
    store: Store | None,
    key: Mapping[str, Any] | None,
    search: Callable[[], Result],
    is_done: Callable[[Result], bool] | None = None,
) -> Result:
    """Read the result stored under `key`, or search and store the result if it `is_done`.

    A result that was read is `stored`; its cost is what it took to make.
    """
    if store is None or key is None:
        return search()
    run = store.run(key)
    if run is not None:
        about = run.about
        failures = tuple(Failure(claim, reason) for claim, reason in about["failures"])
        cost = Cost(**about["cost"])
        notes, details = about.get("notes", {}), about.get("details", {})
        thinking = tuple(Thinking(**count) for count in about.get("thinking", ()))
        return Result(run.run, notes, failures, cost, True, details, thinking=thinking)
    result = search()
    if is_done is not None and not is_done(result):
        return result
    values: dict[str, Any] = {
        "cost": asdict(result.cost),
        "failures": [[failure.claim_id, failure.reason] for failure in result.failures],
    }
    if result.notes:
        values["notes"] = dict(result.notes)
    if result.details:
        values["details"] = {claim: dict(detail) for claim, detail in result.details.items()}
    if result.thinking:
        values["thinking"] = [asdict(count) for count in result.thinking]
    store.put_run(key, result.run, values)
    return result
