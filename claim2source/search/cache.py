"""Store the results of searches, under everything that they depend on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from claim2source.core.energy import EnergyMeter
from claim2source.core.files import content_hash
from claim2source.core.records import Claim, Source
from claim2source.core.run import Cost, Failure, Result, Run, Thinking
from claim2source.data.store import Store

# Increased if the content of a stored result changes.
_FORMAT = 3


def sources_hash(sources: Sequence[Source], texts: Sequence[str]) -> str:
    """Hash sources by id and by their text for the retriever.

    Texts, not records: a corrected author does not change a ranking without authors.
    """
    pairs = []
    for source, text in zip(sources, texts, strict=True):
        pairs.append([source.id, text])
    return content_hash(pairs)


def request_key(
    claims: Sequence[Claim],
    texts: Sequence[Any],
    sources: str,
    k: int,
) -> dict[str, Any]:
    """Return the key of a search: the claims by id, text and candidates, `sources_hash`, depth.

    `texts` are JSON values, one for each claim.
    """
    described = []
    for claim, text in zip(claims, texts, strict=True):
        pool: list[str] | None = None
        if claim.candidates is not None:
            pool = sorted(claim.candidates)
        description = [claim.id, text, pool]
        if claim.excluded:
            excluded = list(claim.excluded)
            description.append(excluded)
        described.append(description)
    return {
        "format": _FORMAT,
        "depth": k,
        "claims": content_hash(described),
        "sources": sources,
    }


def read_or_search(
    store: Store | None,
    key: Mapping[str, Any] | None,
    search: Callable[[], Result],
    is_done: Callable[[Result], bool] | None = None,
) -> Result:
    """Read the result stored under `key`, or search and store the result if it `is_done`.

    A result from the store is `stored`; its cost is that of its search, with the machine's energy
    if that is known.
    """
    if store is None or key is None:
        return _with_energy(search)
    stored = store.run(key)
    if stored is not None:
        return _as_result(stored.run, stored.about)
    result = _with_energy(search)
    if is_done is None or is_done(result):
        values = _as_values(result)
        store.put_run(key, result.run, values)
    return result


def _with_energy(search: Callable[[], Result]) -> Result:
    meter = EnergyMeter()
    result = search()
    joules = meter.joules()
    if joules is None:
        return result
    cost = result.cost
    is_measured = cost.joules is not None
    if is_measured or cost == Cost():
        return result
    with_energy = replace(cost, joules=joules)
    return replace(result, cost=with_energy)


def _as_result(run: Run, values: Mapping[str, Any]) -> Result:
    """Make a result from a stored run and its values."""
    failures: list[Failure] = []
    for claim, reason in values["failures"]:
        failures.append(Failure(claim, reason))
    cost = Cost(**values["cost"])
    counts = values.get("thinking", ())
    thinking = [Thinking(**count) for count in counts]
    return Result(
        run,
        notes=values.get("notes", {}),
        failures=tuple(failures),
        cost=cost,
        stored=True,
        details=values.get("details", {}),
        thinking=tuple(thinking),
    )


def _as_values(result: Result) -> dict[str, Any]:
    """Return the stored values of a result besides its run, as JSON values."""
    failures: list[list[str]] = []
    for failure in result.failures:
        failures.append([failure.claim_id, failure.reason])
    values: dict[str, Any] = {
        "cost": asdict(result.cost),
        "failures": failures,
    }
    if result.notes:
        values["notes"] = dict(result.notes)
    if result.details:
        details = result.details.items()
        values["details"] = {claim: dict(detail) for claim, detail in details}
    if result.thinking:
        values["thinking"] = [asdict(count) for count in result.thinking]
    return values
