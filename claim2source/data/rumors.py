"""Read the rumours of CheckThat! 2024 Task 5; read and write systems' outputs for them.

A rumour has a timeline of authorities' tweets. Evidence is a tab-separated TREC run with at most
five tweets per rumour; verdicts are a JSON list of {"id", "predicted_label", "predicted_evidence"}.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal, NamedTuple, cast, get_args

from claim2source.core.errors import InputError, Problems, value_text
from claim2source.core.files import write_json
from claim2source.core.records import Claim, Dataset, Qrels, Source
from claim2source.core.run import Run
from claim2source.data.jsonl import Row, parse_json
from claim2source.data.text_files import read_lines
from claim2source.data.trec import read_run, write_trec_run

Label = Literal["SUPPORTS", "REFUTES", "NOT ENOUGH INFO"]
LABELS: tuple[Label, ...] = get_args(Label)
SUPPORTS, REFUTES, UNVERIFIABLE = LABELS
TWEET = ("account", "id", "text")
MAX_TWEETS = 5
# Means "nothing retrieved": relevant in the organisers' qrels for a rumour without evidence.
NOTHING = "-1"
_KEYS = (
    "id",
    "rumor",
    "timeline",
    "label",
    "evidence",
)
_GIVEN_WITH_LABELS = _KEYS[3:]
_OF_OUTPUT = (
    "id",
    "predicted_label",
    "predicted_evidence",
)
_EVIDENCE = (*TWEET, "score")
_ARABIC = re.compile("[\u0620-\u064a\u0671-\u06d3]")
Language = Literal["en", "ar"]
Verdicts = Mapping[str, Label | None]


class Tweet(NamedTuple):
    """Tweet of an authority: the account's address, the tweet's id and its text.

    `numeric_id` is whether the id is a number in the organisers' file, and so in outputs.
    """

    account: str
    id: str
    text: str
    numeric_id: bool = False

    @property
    def file_id(self) -> str | int:
        """The id with its type in the organisers' file."""
        if self.numeric_id:
            return int(self.id)
        return self.id


@dataclass(frozen=True)
class Rumor:
    """Rumour and the only tweets that may be evidence for it.

    `evidence` are ids in the timeline, `label` is the verdict. In a blind test set `label` is None
    and `evidence` is empty. `numeric_id` has the same meaning as for a tweet.
    """

    id: str
    text: str
    timeline: tuple[Tweet, ...]
    label: Label | None = None
    evidence: tuple[str, ...] = ()
    numeric_id: bool = False

    @property
    def file_id(self) -> str | int:
        """Return the id as the organisers' file has it."""
        if self.numeric_id:
            return int(self.id)
        return self.id

    @cached_property
    def tweets(self) -> dict[str, Tweet]:
        return {tweet.id: tweet for tweet in self.timeline}


@dataclass(frozen=True)
class Rumors:
    """Rumours of one file; `language` is detected by the script of most letters."""

    rumors: tuple[Rumor, ...]
    name: str
    split: str
    language: Language = "en"

    @property
    def is_labelled(self) -> bool:
        return all(rumor.label is not None for rumor in self.rumors)

    @cached_property
    def dataset(self) -> Dataset:
        """Return rumours as claims and tweets as sources, with ids from `source_id`.

        A claim's candidates are its rumour's timeline. A tweet in the timelines of two rumours is
        a separate source for each.
        """
        claims = tuple(map(self._claim, self.rumors))
        sources: list[Source] = []
        for rumor in self.rumors:
            for tweet in rumor.timeline:
                key = source_id(rumor.id, tweet.id)
                source = Source(key, abstract=tweet.text)
                sources.append(source)
        grades: dict[str, dict[str, int]] = {}
        for claim in claims:
            if claim.golds:
                grades[claim.id] = dict.fromkeys(claim.golds, 1)
        qrels = Qrels(grades)
        return Dataset(claims, tuple(sources), qrels, self.split, self.name)

    @property
    def labels(self) -> dict[str, str]:
        return {rumor.id: rumor.label for rumor in self.rumors if rumor.label is not None}

    def _claim(self, rumor: Rumor) -> Claim:
        golds = tuple(source_id(rumor.id, tweet) for tweet in rumor.evidence)
        timeline = tuple(source_id(rumor.id, tweet.id) for tweet in rumor.timeline)
        return Claim(rumor.id, rumor.text, self.language, golds=golds, candidates=timeline)


def source_id(rumor_id: str, tweet_id: str) -> str:
    return f"{rumor_id}/{tweet_id}"


def tweet_id(source: str) -> str:
    return source.rpartition("/")[2]


def load_rumors(path: str | Path, split: str | None = None) -> Rumors:
    """Read a file of the organisers: a JSON list of rumours, or one rumour per line.

    Either all rumours or none have labels and evidence. The default `split` is the end of the
    file's name (`English_dev.json`: dev). Raises `InputError` with a line per problem, which has
    the rumour's position, from 0, and the field (`7.timeline.3.id`).
    """
    path = Path(path)
    problems = Problems()
    records = _read_list(path, problems)
    rumors: list[Rumor] = []
    seen = _Seen()
    for number, record in enumerate(records):
        row = _object_row(record, path, problems, str(number), _KEYS)
        if row is not None:
            rumor = _read_rumor(row, number, seen)
            rumors.append(rumor)
    if not records and not len(problems):
        problems.add(path, None, None, "contains no rumours")
    problems.raise_if_any()
    split = split or get_split(path)
    language = _language(rumors)
    return Rumors(tuple(rumors), path.stem, split, language)


@dataclass
class _Seen:
    """Rumours so far: their number, the positions of their ids, and the first labelled one."""

    count: int = 0
    ids: dict[str, int] = field(default_factory=dict)
    labelled: int | None = None


def _read_rumor(row: Row, number: int, seen: _Seen) -> Rumor:
    is_labelled = _check_labelled(row, number, seen)
    raw_id = row.record.get("id")
    key = row.as_id("id", raw_id)
    if key is not None:
        if "/" in key:
            row.complain("id", f"{key!r} contains a /")
        first = seen.ids.setdefault(key, number)
        if first != number:
            row.complain("id", f"{key!r} is already the id of rumour {first}")
    text = row.require_text("rumor")
    timeline = _tweets(row, "timeline")
    is_list = isinstance(row.record.get("timeline"), list)
    if is_list and not timeline:
        row.complain("timeline", "is empty")

    label: Label | None = None
    evidence: tuple[str, ...] = ()
    if is_labelled:
        label, evidence = _judgement(row, timeline)
    is_numeric = type(raw_id) is int
    seen.count += 1
    return Rumor(
        key or "",
        text,
        tuple(timeline),
        label,
        evidence,
        is_numeric,
    )


def _check_labelled(row: Row, number: int, seen: _Seen) -> bool:
    """Whether a rumour has label and evidence; complain unless all or no rumours have both."""
    keys = [key for key in _GIVEN_WITH_LABELS if row.record.get(key) is not None]
    if len(keys) == 1:
        missing_key = next(key for key in _GIVEN_WITH_LABELS if key not in keys)
        row.complain(missing_key, f"is missing, but {keys[0]} is there")
    elif keys and seen.labelled is None and seen.count:
        row.complain("label", "is there, but earlier rumours have none")
    elif not keys and seen.labelled is not None:
        row.complain("label", f"is missing, but rumour {seen.labelled} has one")
    if keys and seen.labelled is None:
        seen.labelled = number
    return len(keys) == 2


def get_split(path: Path) -> str:
    match = re.search(r"(?:^|[_.-])(train|dev|test)$", path.stem, re.IGNORECASE)
    if match is None:
        return path.stem
    return match[1].lower()


def _read_list(path: Path, problems: Problems) -> Sequence[object]:
    lines = read_lines(path)
    first = next(line for line in lines if line.strip())
    begins = first.lstrip("\ufeff \t")
    if begins.startswith("{"):
        objects: list[object] = []
        for number, line in enumerate(lines, start=1):
            if line.strip():
                record = parse_json(line, path, problems, number)
                objects.append(record)
        problems.raise_if_any()
        return objects

    text = "".join(lines)
    records = parse_json(text, path, problems)
    problems.raise_if_any()
    if not isinstance(records, list):
        problems.add(path, None, None, "is not a JSON list")
        problems.raise_if_any()
    return cast(list[object], records)


def _object_row(
    record: object,
    path: Path,
    problems: Problems,
    location: str,
    keys: Sequence[str],
) -> Row | None:
    def complain(field: str, reason: str, kind: str = "", /) -> None:
        problems.add(path, None, f"{location}.{field}", reason)

    if not isinstance(record, dict):
        problems.add(path, None, location, "is not an object")
        return None
    for key in record:
        if key not in keys:
            listed = ", ".join(keys)
            complain(str(key), f"no such field; there are: {listed}")
    return Row(record, 0, complain)


def _tweets(row: Row, field: str) -> list[Tweet]:
    listed = row.record.get(field)
    if not isinstance(listed, list):
        reason = "is missing" if listed is None else "is not a list of tweets"
        row.complain(field, reason)
        return []
    tweets: list[Tweet] = []
    seen: dict[str, int] = {}
    for number, cells in enumerate(listed):
        location = f"{field}.{number}"
        if not isinstance(cells, list) or len(cells) != len(TWEET):
            names = ", ".join(TWEET)
            row.complain(location, f"is not a list of {len(TWEET)}: {names}")
            continue
        raw_account, raw_id, raw_text = cells
        key = row.as_id(f"{location}.id", raw_id)
        if key is not None:
            first = seen.setdefault(key, number)
            if first != number:
                row.complain(f"{location}.id", f"{key!r} is already the id of {field}.{first}")
        account = row.as_text(f"{location}.account", raw_account)
        text = row.as_text(f"{location}.text", raw_text)
        is_numeric = type(raw_id) is int
        tweet = Tweet(account, key or "", text, is_numeric)
        tweets.append(tweet)
    return tweets


def _judgement(row: Row, timeline: Iterable[Tweet]) -> tuple[Label | None, tuple[str, ...]]:
    label = row.record["label"]
    evidence = _tweets(row, "evidence")
    is_list = isinstance(row.record["evidence"], list)
    has_evidence = bool(evidence)
    is_unverifiable = label == UNVERIFIABLE
    if label not in LABELS:
        beginning = str(label)[:40]
        names = ", ".join(LABELS)
        row.complain("label", f"{beginning!r} is not one of {names}")
    elif is_list and has_evidence == is_unverifiable:
        has = "has evidence" if has_evidence else "has no evidence"
        row.complain("label", f"{label}, but the rumour {has}")
    _check_evidence(row, timeline, evidence)
    ids = tuple(tweet.id for tweet in evidence)
    return cast(Label, label), ids


def _check_evidence(
    row: Row,
    timeline: Iterable[Tweet],
    evidence: Sequence[Tweet],
) -> None:
    """Complain about evidence that is not in the timeline, unless the timeline is empty."""
    by_id = {tweet.id: tweet for tweet in timeline}
    if not by_id:
        return
    for number, tweet in enumerate(evidence):
        if not tweet.id:
            continue
        known = by_id.get(tweet.id)
        if known is None:
            row.complain(f"evidence.{number}.id", f"{tweet.id!r} is not in the timeline")
        elif known.account != tweet.account:
            reason = f"{tweet.account!r} is not the account of this tweet in the timeline"
            row.complain(f"evidence.{number}.account", reason)


def _language(rumors: Iterable[Rumor]) -> Language:
    text = "".join(rumor.text for rumor in rumors)
    letters = sum(character.isalpha() for character in text)
    arabic_letters = len(_ARABIC.findall(text))
    is_arabic = 2 * arabic_letters > letters
    return "ar" if is_arabic else "en"


def write_evidence(run: Run, path: str | Path, tag: str) -> None:
    """Write the evidence of every rumour, best first, at most five tweets."""
    top = run.top(MAX_TWEETS)
    rows = [(claim, tweet_id(source), score) for claim, source, score in top]
    columns = zip(*rows, strict=True) if rows else ((), (), ())
    evidence = Run.from_rows(*columns)
    write_trec_run(evidence, path, tag, separator="\t")


def write_verification(
    rumors: Rumors,
    run: Run,
    verdicts: Verdicts,
    path: str | Path,
) -> None:
    """Write label and evidence of every rumour; the label is null for a system without verdicts."""
    entries: list[dict[str, object]] = []
    for rumor in rumors.rumors:
        ranked = list(run.scored(rumor.id).items())
        evidence: list[list[str | int | float]] = []
        for source, score in ranked[:MAX_TWEETS]:
            key = tweet_id(source)
            cells = _evidence_cells(rumor.tweets[key], score)
            evidence.append(cells)
        entry: dict[str, object] = {
            "id": rumor.file_id,
            "predicted_label": verdicts.get(rumor.id),
            "predicted_evidence": evidence,
        }
        entries.append(entry)
    write_json(path, entries)


def _evidence_cells(tweet: Tweet, score: float) -> list[str | int | float]:
    return [tweet.account, tweet.file_id, tweet.text, score]


def read_evidence(path: str | Path, rumors: Rumors) -> Run:
    """Read a run of evidence; its sources have the ids of `Rumors.dataset`.

    A rumour with the single tweet -1 has no evidence. Raises `InputError` with a line per problem:
    an unknown rumour, more than five tweets, or a tweet that is not in the timeline.
    """
    path = Path(path)
    problems = Problems()
    file = read_run(path)
    if file.repeated:
        reason = f"{file.repeated} rows repeat a tweet"
        problems.add(path, None, "authority_tweet_id", reason)
    ranked: dict[str, list[tuple[str, float]]] = {}
    for claim in file.run.claim_ids:
        scores = file.run.scored(claim)
        ranked[claim] = list(scores.items())
    return _checked(ranked, path, rumors, problems)


def read_verification(path: str | Path, rumors: Rumors) -> tuple[dict[str, Label | None], Run]:
    """Read the verdict of every rumour, with its evidence.

    A system without verdicts has null in all entries. Raises `InputError` with a line per problem,
    which has the entry's position, from 0, and the field: a missing, repeated or unknown rumour, an
    unknown label, an id of another type than the rumour's, or a problem of `read_evidence`.
    """
    path = Path(path)
    problems = Problems()
    labels: dict[str, Label | None] = {}
    silent: list[Row] = []
    ranked: dict[str, list[tuple[str, float]]] = {}
    by_id = {rumor.id: rumor for rumor in rumors.rumors}
    records = _read_list(path, problems)
    for position, record in enumerate(records):
        row = _object_row(record, path, problems, str(position), _OF_OUTPUT)
        if row is None:
            continue
        raw_id = row.record.get("id")
        key = row.as_id("id", raw_id) or ""
        rumor = by_id.get(key)
        _check_type(row, "id", raw_id, rumor)
        if key in labels:
            row.complain("id", f"{key!r} is repeated")
        label = _predicted_label(row)
        labels[key] = label
        if label is None and "predicted_label" in row.record:
            silent.append(row)
        ranked[key] = _predicted_evidence(row, rumor)

    has_verdicts = any(label is not None for label in labels.values())
    if has_verdicts:
        names = ", ".join(LABELS)
        for row in silent:
            reason = f"null is not one of {names}; it must be in all entries or in none"
            row.complain("predicted_label", reason)
    problems.raise_if_any()
    missing = [rumor.id for rumor in rumors.rumors if rumor.id not in labels]
    if missing:
        reason = f"no entry for {len(missing)} rumours, such as {missing[0]!r}"
        raise InputError(path, reason=reason)
    run = _checked(ranked, path, rumors, problems)
    return labels, run


def _predicted_label(row: Row) -> Label | None:
    """Return a verdict; None if it is null or missing (reported)."""
    label = row.record.get("predicted_label")
    if "predicted_label" not in row.record:
        row.complain("predicted_label", "is missing")
    elif label is not None and label not in LABELS:
        names = ", ".join(LABELS)
        reason = f"{value_text(label)} is not one of {names}"
        row.complain("predicted_label", reason)
    return cast("Label | None", label)


def _predicted_evidence(row: Row, rumor: Rumor | None) -> list[tuple[str, float]]:
    """Return the tweets of an entry with their scores; report unreadable ones."""
    evidence = row.record.get("predicted_evidence")
    if not isinstance(evidence, list):
        row.complain("predicted_evidence", "is missing or not a list of tweets")
        return []
    ranked: list[tuple[str, float]] = []
    for number, cells in enumerate(evidence):
        location = f"predicted_evidence.{number}"
        if not isinstance(cells, list) or len(cells) != len(_EVIDENCE):
            names = ", ".join(_EVIDENCE)
            row.complain(location, f"is not a list of {len(_EVIDENCE)}: {names}")
            continue
        raw_id = cells[1]
        score = cells[3]
        id_field = f"{location}.id"
        tweet = row.as_id(id_field, raw_id)
        is_number = type(score) in (int, float) and math.isfinite(score)
        if not is_number:
            row.complain(f"{location}.score", f"{value_text(score)} is not a number")
        elif tweet is not None:
            ranked.append((tweet, float(score)))
            known = None if rumor is None else rumor.tweets.get(tweet)
            _check_type(row, id_field, raw_id, known)
    return ranked


def _check_type(
    row: Row,
    field: str,
    value: object,
    known: Rumor | Tweet | None,
) -> None:
    """Complain about an id that is a text but a number in the organisers' file, or vice versa."""
    if known is None or value == known.file_id:
        return
    kind = "number" if known.numeric_id else "text"
    row.complain(field, f"{value!r} is not a {kind}, unlike in the rumours")


def _checked(
    ranked: Mapping[str, list[tuple[str, float]]],
    path: Path,
    rumors: Rumors,
    problems: Problems,
) -> Run:
    by_id = {rumor.id: rumor for rumor in rumors.rumors}
    rankings: dict[str, list[tuple[str, float]]] = {claim: [] for claim in by_id}
    for claim, tweets in ranked.items():
        if claim not in by_id:
            problems.add(path, None, claim, f"no such rumour in {rumors.name}")
            continue
        ids = [tweet for tweet, _ in tweets]
        if ids == [NOTHING]:
            continue
        if len(ids) > MAX_TWEETS:
            reason = f"{len(ids)} tweets; at most {MAX_TWEETS} are allowed"
            problems.add(path, None, claim, reason)
        timeline = by_id[claim].tweets
        counts = Counter(ids)
        for tweet, count in counts.items():
            if tweet not in timeline:
                problems.add(path, None, claim, f"tweet {tweet!r} is not in its timeline")
            elif count > 1:
                problems.add(path, None, claim, f"tweet {tweet!r} is listed {count} times")
        rankings[claim] = [(source_id(claim, tweet), score) for tweet, score in tweets]
    problems.raise_if_any()
    return Run.from_lists(rankings)
