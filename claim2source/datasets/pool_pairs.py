"""Make training pairs of a pool's papers alone: title -> abstract, sentence -> paper."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Literal

from claim2source.core.errors import UserError
from claim2source.core.records import Claim, Dataset, Qrels, Source

Kind = Literal["title", "sentence"]

# A shorter title names no paper: "Editorial".
_TITLE_WORDS = 3
_WORDS = re.compile(r"\w+").findall
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[^\W_a-zß-ÿ]|[\"'“(\[])")


@dataclass(frozen=True)
class PoolPairs:
    """Hold the splits to write, and what was left out."""

    train: Dataset
    dev: Dataset
    notes: tuple[str, ...]


def pool_pairs(
    sources: Sequence[Source],
    kinds: Collection[Kind],
    *,
    seed: int = 13,
    dev_share: float = 0.05,
    min_words: int = 8,
    lang: str = "en",
) -> PoolPairs:
    """Pair papers with a text of their own, which their source in the new pool does not have.

    With `title`, a paper's title is a claim and every source is without its title. With
    `sentence`, a sentence of the abstract is a claim and leaves that abstract; it is drawn by
    `seed` and the paper's id. Titles and sentences that other papers have too, or that the rest of
    the paper repeats, are no claims; sentences have `min_words` or more, as has what they leave. Of
    papers with one abstract the first is kept. `dev_share` of the papers are in `dev`, drawn alike.

    Raises `UserError` where train or dev would have no pair.
    """
    kept = _distinct(sources)
    titles = Counter(_plain(source.title) for source in kept)
    split = {source.id: sentences_of(source.abstract) for source in kept}
    sentences = Counter(_plain(text) for texts in split.values() for text in texts)
    pool: list[Source] = []
    claims: dict[str, list[Claim]] = {"train": [], "dev": []}
    for source in kept:
        hidden = replace(source, title="") if "title" in kinds else source
        found: dict[str, str] = {}
        if "sentence" in kinds:
            drawn = _drawn(hidden, split[source.id], sentences, seed, min_words)
            if drawn is not None:
                found["sentence"], hidden = drawn
        title = _plain(source.title)
        if "title" in kinds and titles[title] == 1 and len(title.split()) >= _TITLE_WORDS:
            if f" {title} " not in f" {_plain(hidden.abstract)} ":
                found["title"] = source.title.strip()
        pool.append(hidden)
        part = "dev" if _draw(seed, "dev", source.id) < dev_share else "train"
        claims[part] += [
            Claim(f"{kind}-{source.id}", text, lang, golds=(source.id,))
            for kind, text in found.items()
        ]
    if not claims["train"] or not claims["dev"]:
        counts = " and ".join(f"{len(found)} for {part}" for part, found in claims.items())
        raise UserError(f"the pool gives {counts}: too few pairs to train on and to report on")
    parts = {
        part: Dataset(tuple(found), tuple(pool), _qrels(found), part)
        for part, found in claims.items()
    }
    return PoolPairs(parts["train"], parts["dev"], _notes(sources, pool, claims, kinds))


def _notes(
    sources: Sequence[Source],
    pool: Sequence[Source],
    claims: Mapping[str, Sequence[Claim]],
    kinds: Collection[Kind],
) -> tuple[str, ...]:
    notes = [
        f"{len(sources) - len(pool)} of {len(sources)} papers are left out: they have no abstract, "
        "or that of an earlier paper"
    ]
    made = Counter(claim.id.partition("-")[0] for found in claims.values() for claim in found)
    notes += [
        f"{len(pool) - made[kind]} papers give no {kind}: it is not theirs alone, too short, or "
        "repeated in the rest"
        for kind in sorted(kinds)
    ]
    return tuple(notes)


def _distinct(sources: Sequence[Source]) -> list[Source]:
    """Keep the papers with an abstract, of those with the same one the first."""
    first: dict[str, Source] = {}
    for source in sources:
        if plain := _plain(source.abstract):
            first.setdefault(plain, source)
    return list(first.values())


def _drawn(
    source: Source, sentences: Sequence[str], known: Mapping[str, int], seed: int, min_words: int
) -> tuple[str, Source] | None:
    """Draw a sentence of a paper; return it and the paper without it, or None."""
    order = sorted(range(len(sentences)), key=lambda i: _draw(seed, str(i), source.id))
    for i in order:
        plain = _plain(sentences[i])
        rest = " ".join([*sentences[:i], *sentences[i + 1 :]])
        left = _plain(rest)
        long = min(len(plain.split()), len(left.split())) >= min_words
        repeated = f" {plain} " in f" {_plain(source.title)} {left} "
        if long and known[plain] == 1 and not repeated:
            return sentences[i], replace(source, abstract=rest)
    return None


def sentences_of(abstract: str) -> list[str]:
    """Split an abstract where a sentence ends and a capital, a digit or a bracket follows."""
    return [text for text in _SENTENCE_END.split(" ".join(abstract.split())) if text]


def _plain(text: str) -> str:
    """Reduce a text to its words: case, punctuation and Unicode form do not count."""
    return " ".join(_WORDS(unicodedata.normalize("NFKC", text).casefold()))


def _draw(seed: int, what: str, paper: str) -> float:
    """Draw a number from 0 to 1 for a paper: other papers do not change it."""
    digest = sha256(f"{seed}\0{what}\0{paper}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def _qrels(claims: Sequence[Claim]) -> Qrels:
    return Qrels({claim.id: dict.fromkeys(claim.golds, 1) for claim in claims})
