"""Read the rumours of CheckThat! 2024 Task 5; read and write systems' outputs for them.

A rumour has a timeline of authorities' tweets. Evidence is a TREC run of at most five tweets a
rumour, its columns parted by tabs; verdicts are a JSON list of {"id", "predicted_label",
"predicted_evidence"}.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple, get_args

from claim2source.core.errors import InputError, Problems
from claim2source.core.files import write_json
from claim2source.core.records import Claim, Dataset, Qrels, Source
from claim2source.core.run import Run
from claim2source.core.validate import read_json, validated
from claim2source.io.jsonl import json_records
from claim2source.io.text_files import why_not_id
from claim2source.io.trec import read_run, write_trec_run

Label = Literal["SUPPORTS", "REFUTES", "NOT ENOUGH INFO"]
LABELS: tuple[Label, ...] = get_args(Label)
SUPPORTS, REFUTES, UNVERIFIABLE = LABELS
MAX_TWEETS = 5
_ARABIC = re.compile("[\u0620-\u064a\u0671-\u06d3]")
Language = Literal["en", "ar"]
Verdicts = Mapping[str, Label | None]


class Tweet(NamedTuple):
    """Hold an authority's tweet: the account's address, the tweet's id and its text."""

    account: str
    id: str
    text: str


@dataclass(frozen=True)
class Rumor:
    """Hold a rumour and the only tweets that may be evidence for it.

    `evidence` are ids of the timeline, `label` the verdict; None where it is not known (a blind
    test set), and then `evidence` is empty.
    """

    id: str
    text: str
    timeline: tuple[Tweet, ...]
    label: Label | None = None
    evidence: tuple[str, ...] = ()

    @cached_property
    def tweets(self) -> dict[str, Tweet]:
        """Map the timeline by tweet id."""
        return {tweet.id: tweet for tweet in self.timeline}


@dataclass(frozen=True)
class Rumors:
    """Hold the rumours of one file; `language` is that of most letters in it."""

    rumors: tuple[Rumor, ...]
    name: str
    split: str
    language: Language = "en"

    @property
    def is_labelled(self) -> bool:
        """Tell whether labels and evidence are known."""
        return all(rumor.label is not None for rumor in self.rumors)

    @cached_property
    def dataset(self) -> Dataset:
        """Return rumours as claims and tweets as sources, whose ids `source_id` makes.

        A claim's candidates are its rumour's timeline. Two rumours may have one tweet in their
        timelines: it is a source of each.
        """
        claims = tuple(map(self._claim, self.rumors))
        sources = tuple(source for rumor in self.rumors for source in self.sources(rumor))
        grades = {claim.id: dict.fromkeys(claim.golds, 1) for claim in claims if claim.golds}
        return Dataset(claims, sources, Qrels(grades), self.split, self.name)

    @property
    def labels(self) -> dict[str, str]:
        """Map rumours to their labels, where these are known."""
        return {rumor.id: rumor.label for rumor in self.rumors if rumor.label is not None}

    def _claim(self, rumor: Rumor) -> Claim:
        golds = tuple(source_id(rumor.id, tweet) for tweet in rumor.evidence)
        timeline = tuple(source_id(rumor.id, tweet.id) for tweet in rumor.timeline)
        return Claim(rumor.id, rumor.text, self.language, golds=golds, candidates=timeline)

    @staticmethod
    def sources(rumor: Rumor) -> list[Source]:
        """Return a rumour's timeline as sources, in order."""
        return [
            Source(source_id(rumor.id, tweet.id), abstract=tweet.text) for tweet in rumor.timeline
        ]


def source_id(rumor_id: str, tweet_id: str) -> str:
    """Name a tweet of a rumour's timeline among those of all rumours."""
    return f"{rumor_id}/{tweet_id}"


def tweet_id(source: str) -> str:
    """Return the tweet's own id."""
    return source.rpartition("/")[2]


@dataclass(frozen=True)
class _Record:
    __pydantic_config__: ClassVar = {"extra": "forbid"}

    id: str
    rumor: str
    timeline: list[Tweet]
    label: Label | None = None
    evidence: list[Tweet] | None = None

    def faults(self) -> Iterator[tuple[str, str]]:
        """Yield the fields that are wrong, and why."""
        if why := "holds a /" if "/" in self.id else why_not_id(self.id):
            yield "id", f"{self.id!r} {why}"
        if not self.rumor.strip():
            yield "rumor", "is empty"
        if not self.timeline:
            yield "timeline", "is empty"
        by_id: dict[str, Tweet] = {}
        for number, tweet in enumerate(self.timeline):
            if why := why_not_id(tweet.id):
                yield f"timeline.{number}.id", why
            if by_id.setdefault(tweet.id, tweet) is not tweet:
                yield f"timeline.{number}.id", f"{tweet.id!r} is there already"
        if (self.label is None) != (self.evidence is None):
            yield ("evidence" if self.evidence is None else "label"), "is missing beside the other"
        elif self.evidence is not None and bool(self.evidence) == (self.label == UNVERIFIABLE):
            has = "has evidence" if self.evidence else "has no evidence"
            yield "label", f"{self.label}, but the rumour {has}"
        for number, tweet in enumerate(self.evidence or ()):
            if tweet.id not in by_id:
                yield f"evidence.{number}.id", f"{tweet.id!r} is not in the timeline"
            elif by_id[tweet.id].account != tweet.account:
                why = f"{tweet.account!r} is not the account of this tweet in the timeline"
                yield f"evidence.{number}.account", why


def load_rumors(path: str | Path, split: str | None = None) -> Rumors:
    """Read a file of the organisers: a JSON list of rumours, or one rumour on each line.

    Labels and evidence are in all rumours or in none. Without a `split` it is what the file's
    name ends with (`English_dev.json`: dev). Raises `InputError`, which names the rumour's place,
    from 0, and the field (`7.timeline.3.id`).
    """
    path, problems = Path(path), Problems()
    values = [row.record for row in json_records(path, problems)]
    problems.raise_if_any()
    records = validated(list[_Record], values, path)
    if not records:
        raise InputError(path, why="holds no rumours")
    place_of: dict[str, int] = {}
    for number, record in enumerate(records):
        for field, why in record.faults():
            raise InputError(path, field=f"{number}.{field}", why=why)
        if place_of.setdefault(record.id, number) != number:
            why = f"{record.id!r} is rumour {place_of[record.id]} already"
            raise InputError(path, field=f"{number}.id", why=why)
        if (record.label is None) != (records[0].label is None):
            raise InputError(path, field=f"{number}.label", why="is in some rumours, not in all")
    rumors = [
        Rumor(
            record.id,
            record.rumor,
            tuple(record.timeline),
            record.label,
            tuple(tweet.id for tweet in record.evidence or ()),
        )
        for record in records
    ]
    return Rumors(tuple(rumors), path.stem, split or split_of(path), _language(rumors))


def split_of(path: Path) -> str:
    """Read the split from a file's name, else take the whole stem."""
    match = re.search(r"(?:^|[_.-])(train|dev|test)$", path.stem, re.IGNORECASE)
    return match[1].lower() if match else path.stem


def _language(rumors: Iterable[Rumor]) -> Language:
    text = "".join(rumor.text for rumor in rumors)
    letters = sum(character.isalpha() for character in text)
    return "ar" if 2 * len(_ARABIC.findall(text)) > letters else "en"


def write_evidence(run: Run, path: str | Path, tag: str) -> None:
    """Write the evidence of every rumour, best first, at most five tweets."""
    top = run.top(MAX_TWEETS)
    rows = [(claim, tweet_id(source), score) for claim, source, score in top]
    columns = zip(*rows, strict=True) if rows else ((), (), ())
    write_trec_run(Run.from_rows(*columns), path, tag, separator="\t")


def write_verification(rumors: Rumors, run: Run, verdicts: Verdicts, path: str | Path) -> None:
    """Write label and evidence of every rumour; a system without verdicts has null for a label."""
    entries = [
        {
            "id": rumor.id,
            "predicted_label": verdicts.get(rumor.id),
            "predicted_evidence": [
                [*rumor.tweets[tweet_id(source)], score]
                for source, score in list(run.scored(rumor.id).items())[:MAX_TWEETS]
            ],
        }
        for rumor in rumors.rumors
    ]
    write_json(path, entries)


def read_evidence(path: str | Path, rumors: Rumors) -> Run:
    """Read a run of evidence; its sources are named as `Rumors.dataset` does.

    Raises `InputError` with a line for each problem: a rumour that is not there, more than five
    tweets, one that is not in its timeline.
    """
    path, problems = Path(path), Problems()
    file = read_run(path)
    if file.repeated:
        problems.add(path, None, "authority_tweet_id", f"{file.repeated} rows repeat a tweet")
    ranked = {claim: list(file.run.scored(claim).items()) for claim in file.run.claim_ids}
    return _checked(ranked, path, rumors, problems)


@dataclass(frozen=True)
class _Output:
    id: str
    predicted_label: Label | None
    predicted_evidence: list[tuple[str, str, str, float]]  # a tweet and its score


def read_verification(path: str | Path, rumors: Rumors) -> tuple[dict[str, Label | None], Run]:
    """Read the verdict of every rumour, and the evidence that it names.

    A system without verdicts has null in all entries. Raises `InputError` for a rumour that is
    missing, twice or not there, another label, evidence as for `read_evidence`.
    """
    path = Path(path)
    entries = validated(list[_Output], read_json(path), path)
    labels = {entry.id: entry.predicted_label for entry in entries}
    if len(labels) < len(entries):
        raise InputError(path, field="id", why="a rumour is there twice")
    if None in labels.values() and any(labels.values()):
        raise InputError(path, field="predicted_label", why="must be null in all entries or none")
    missing = [rumor.id for rumor in rumors.rumors if rumor.id not in labels]
    if missing:
        raise InputError(path, why=f"no entry for {len(missing)} rumours, such as {missing[0]!r}")
    ranked = {
        entry.id: [(tweet, score) for _, tweet, _, score in entry.predicted_evidence]
        for entry in entries
    }
    return labels, _checked(ranked, path, rumors, Problems())


def _checked(
    ranked: Mapping[str, list[tuple[str, float]]], path: Path, rumors: Rumors, problems: Problems
) -> Run:
    by_id = {rumor.id: rumor for rumor in rumors.rumors}
    rankings: dict[str, list[tuple[str, float]]] = {claim: [] for claim in by_id}
    for claim, tweets in ranked.items():
        if claim not in by_id:
            problems.add(path, None, claim, f"no such rumour in {rumors.name}")
            continue
        ids = [tweet for tweet, _ in tweets]
        if len(ids) > MAX_TWEETS:
            problems.add(path, None, claim, f"{len(ids)} tweets; {MAX_TWEETS} at most")
        for tweet in dict.fromkeys(ids):
            if tweet not in by_id[claim].tweets:
                problems.add(path, None, claim, f"tweet {tweet!r} is not in its timeline")
            elif ids.count(tweet) > 1:
                problems.add(
                    path, None, claim, f"tweet {tweet!r} is there {ids.count(tweet)} times"
                )
        rankings[claim] = [(source_id(claim, tweet), score) for tweet, score in tweets]
    problems.raise_if_any()
    return Run.from_lists(rankings)
