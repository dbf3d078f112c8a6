"""Results that join the store: found by all that made them, with what they cost when made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from claim2source.core.files import content_hash
from claim2source.core.records import Claim, Source
from claim2source.core.run import Cost, Failure, Result
from claim2source.io.store import Store

# Counted up when a stored result would hold something else.
_FORMAT = 2


def request_key(
    claims: Sequence[Claim],
    claim_texts: Sequence[Any],
    sources: Sequence[Source],
    source_texts: Sequence[Any],
    k: int,
) -> dict[str, Any]:
    """What every stage's result depends on: texts as the stage reads them, ids, pools, depth.

    The texts (JSON values), not the records: a corrected gold changes no ranking.
    """
    pools = [sorted(c.candidates) if c.candidates is not None else None for c in claims]
    asked = [[c.id, *rest] for c, *rest in zip(claims, claim_texts, pools, strict=True)]
    pool = [[s.id, text] for s, text in zip(sources, source_texts, strict=True)]
    return {
        "format": _FORMAT,
        "depth": k,
        "claims": content_hash(asked),
        "sources": content_hash(pool),
    }


def load_result(store: Store | None, key: Mapping[str, Any] | None) -> Result | None:
    """The result kept under `key`: its cost is what it took to make, `about` says `stored`."""
    found = store.run(key) if store is not None and key is not None else None
    if found is None:
        return None
    failures = tuple(Failure(claim, why) for claim, why in found.about["failures"])
    return Result(
        found.run,
        failures=failures,
        cost=Cost(**found.about["cost"]),
        about={**found.about["about"], "stored": True},
    )


def store_result(store: Store | None, key: Mapping[str, Any] | None, made: Result) -> Result:
    """Keep a result that was made now; returns it with `stored` false in its `about`."""
    if store is not None and key is not None:
        store.put_run(
            key,
            made.run,
            {
                "about": dict(made.about),
                "cost": asdict(made.cost),
                "failures": [[failure.claim_id, failure.reason] for failure in made.failures],
            },
        )
    return replace(made, about={**made.about, "stored": False})
