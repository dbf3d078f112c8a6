"""Find the articles that report the same event as a linked one (ADMA 2023 paper, section 5.1)."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date
from pathlib import Path
from random import Random
from typing import Annotated

import numpy as np

from claim2source.core.config import Between, Seed, Settings, Share
from claim2source.core.errors import UserError
from claim2source.core.files import write_text
from claim2source.core.records import Dataset, Qrels, Source
from claim2source.datasets.papers import first_day, last_day
from claim2source.io.sheets import write_sheet
from claim2source.io.store import Store
from claim2source.io.trec import write_beir_qrels
from claim2source.models import ModelConfig, resolve
from claim2source.text.clean import SPACY_MODEL, entity_sets

READERS = 2
# Characters of a body that a reader sees.
_SHOWN = 400
COLUMNS = ("set", "article", "id", "date", "title", "text", "similarity", "entities", "same event?")


@dataclass(frozen=True)
class EventsConfig(Settings):
    """Set which articles report the same event; the paper prints `days` and `sample` only.

    Args:
        days: of publication before and after the linked article.
        similarity: least cosine of both headlines; it depends on the model.
        overlap: least share of named entities, of those that either article names in title or
            body, which both name (Jaccard).
        model: encodes headlines.
        pipeline: spaCy's pipeline that finds named entities: a package or a folder.
        sample: sets that two readers are given to check.
        seed: of that sample.
    """

    days: Annotated[int, Between(0, 10**5)] = 5
    similarity: Share = 0.6
    overlap: Share = 0.2
    model: str = ModelConfig.name
    pipeline: str = SPACY_MODEL
    sample: Annotated[int, Between(1, 10**6)] = 50
    seed: Seed = 0


@dataclass(frozen=True)
class Member:
    """Name an article of a linked one's event, with what it has in common with that."""

    id: str
    similarity: float
    overlap: float


# Linked article -> the other articles of its event, most similar first.
EventSets = Mapping[str, tuple[Member, ...]]


def event_sets(
    sources: Sequence[Source],
    linked: Collection[str],
    config: EventsConfig,
    *,
    store: Store | None = None,
    device: str | None = None,
) -> dict[str, tuple[Member, ...]]:
    """Find the same-event set of each linked article that has one.

    A set holds articles within the days, then above both thresholds. An article without a date
    is in none. Raises `UserError` where no linked article has a date (`metadata.date`, such as
    2020-04-30).
    """
    days = {source.id: day for source in sources if (day := _day(source.date)) is not None}
    if not any(article in days for article in linked):
        raise UserError("same-event sets need dates: no linked article has a metadata.date")
    published: dict[int, list[str]] = {}
    for article, day in days.items():
        published.setdefault(day, []).append(article)
    near = {
        article: [
            other
            for step in range(-config.days, config.days + 1)
            for other in published.get(days[article] + step, ())
            if other != article
        ]
        for article in linked
        if article in days
    }
    by_id = {source.id: source for source in sources}
    alike = _alike_headlines(near, by_id, config, store, device)
    wanted = list(dict.fromkeys([*alike, *(o for pairs in alike.values() for o in pairs)]))
    texts = [f"{by_id[article].title}\n{by_id[article].abstract}" for article in wanted]
    named = dict(zip(wanted, entity_sets(texts, config.pipeline), strict=True))
    found = {}
    for article, pairs in alike.items():
        members = [
            Member(other, similarity, overlap)
            for other, similarity in pairs.items()
            if (overlap := _jaccard(named[article], named[other])) >= config.overlap and overlap
        ]
        if members:
            found[article] = tuple(sorted(members, key=lambda m: (-m.similarity, m.id)))
    return found


def _alike_headlines(
    near: Mapping[str, Sequence[str]],
    by_id: Mapping[str, Source],
    config: EventsConfig,
    store: Store | None,
    device: str | None,
) -> dict[str, dict[str, float]]:
    """Keep the candidates whose headlines are similar: article -> candidate -> cosine."""
    wanted = list(dict.fromkeys([*near, *(other for others in near.values() for other in others)]))
    encoder = resolve(ModelConfig(name=config.model), device).encoder
    titles = [by_id[article].title for article in wanted]
    vectors, _ = encoder.encode(titles, "source", store=store, progress="headlines")
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    vectors = vectors / np.maximum(lengths, np.finfo(np.float32).tiny)
    row = {article: place for place, article in enumerate(wanted)}
    found = {}
    for article, others in near.items():
        cosines = vectors[[row[other] for other in others]] @ vectors[row[article]]
        pairs = zip(others, cosines.tolist(), strict=True)
        found[article] = {other: c for other, c in pairs if c >= config.similarity}
    return {article: pairs for article, pairs in found.items() if pairs}


def _day(text: str) -> int | None:
    """Number a day; None for what is no day such as 2020-04-30 or 30 April 2020."""
    day = first_day(text)
    if not day or day != last_day(text):
        return None
    return date(day // 10_000, day // 100 % 100, day % 100).toordinal()


def _jaccard(one: frozenset[str], other: frozenset[str]) -> float:
    either = len(one | other)
    return len(one & other) / either if either else 0.0


def with_events(dataset: Dataset, sets: EventSets) -> Dataset:
    """Count all articles of a gold's event as relevant too."""
    claims, grades = [], dict(dataset.qrels.grades)
    for claim in dataset.claims:
        others = [member.id for gold in claim.golds for member in sets.get(gold, ())]
        if claim.candidates is not None:
            others = [other for other in others if other in claim.candidates]
        more = tuple(dict.fromkeys([*claim.golds, *others]))
        claims.append(replace(claim, golds=more))
        if others:
            grades[claim.id] = {**grades[claim.id], **dict.fromkeys(more, 1)}
    return replace(dataset, claims=tuple(claims), qrels=Qrels(grades))


def write_events(
    sets: EventSets, dataset: Dataset, relevant: Dataset, config: EventsConfig, folder: Path
) -> None:
    """Write the sets, the extended judgements, and a sheet of the same sample for each reader."""
    lines = (
        {"article": article, "same_event": list(map(asdict, members))}
        for article, members in sets.items()
    )
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    write_text(folder / "sets.jsonl", text)
    write_beir_qrels(relevant.qrels, folder / "qrels.tsv")
    sampled = Random(config.seed).sample(sorted(sets), min(config.sample, len(sets)))
    rows = _sheet_rows(sampled, sets, {source.id: source for source in dataset.sources})
    for reader in range(1, READERS + 1):
        write_sheet(folder / f"reader_{reader}.csv", COLUMNS, rows)


def _sheet_rows(
    sampled: Sequence[str], sets: EventSets, by_id: Mapping[str, Source]
) -> list[list[str]]:
    rows = []
    for number, article in enumerate(sampled, start=1):
        members = [(article, "linked", "", ""), *(_told(member) for member in sets[article])]
        for key, role, similarity, overlap in members:
            source = by_id[key]
            shown = [source.date, source.title, source.abstract[:_SHOWN]]
            rows.append([str(number), role, key, *shown, similarity, overlap, ""])
    return rows


def _told(member: Member) -> tuple[str, str, str, str]:
    return member.id, "other", f"{member.similarity:.3f}", f"{member.overlap:.3f}"
