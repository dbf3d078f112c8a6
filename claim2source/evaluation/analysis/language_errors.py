"""What a language costs: claims lost as posted but won in translation or in English, and why.

The papers leave the German errors open. For every such claim this lists which terms, numbers
and names of the gold stand in the text that won and not in the text that lost.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from claim2source.core.records import Claim, Dataset, Source
from claim2source.core.run import Run
from claim2source.evaluation.ranks import first_ranks
from claim2source.evaluation.slices import NUMBER
from claim2source.text import clean_authors

How = Literal["translation", "english"]

_WORD = re.compile(r"[^\W_]+(?:[-'’][^\W_]+)*")
# What separates thousands; in the other languages the two signs change places.
_COMMA_LANGUAGES = ("de", "fr", "es", "it", "nl", "pt", "pl")
_SHOWN = 20


@dataclass(frozen=True)
class Overlap:
    """Terms, numbers and names of a gold: those only in the text that won, only in the other.

    `kept` counts those in both.
    """

    terms: tuple[str, ...]
    numbers: tuple[str, ...]
    names: tuple[str, ...]
    only_here: tuple[str, ...]
    kept: int


@dataclass(frozen=True)
class LostClaim:
    """A claim whose gold is not among the first k, beside the text that finds it there."""

    claim_id: str
    gold: str
    how: How
    text: str
    other_text: str
    rank: float
    other_rank: float
    lost: Overlap


@dataclass(frozen=True)
class LostReport:
    """Lost claims, and the overlaps of the claims that both texts win, to compare with."""

    language: str
    k: int
    claims: int
    missed: int
    lost: tuple[LostClaim, ...]
    won_by_both: tuple[Overlap, ...]


def lost_claims(
    dataset: Dataset,
    run: Run,
    translated: Run | None = None,
    *,
    language: str = "de",
    k: int = 5,
) -> LostReport:
    """Claims in `language` that `run` misses and that win in translation or in English.

    `run` ranks the claims as posted, in all languages; `translated` the same claims by their
    translations. English wins by another claim: the best-ranked English one about the same
    gold. A claim that wins both ways is listed under its translation, its closest text. Raises
    `UserError` when no claim in `language` has a gold.
    """
    sources = {source.id: source for source in dataset.sources}
    frequency = _document_frequency(dataset.sources)
    mine = [claim for claim in dataset.claims if claim.lang == language and claim.golds]
    ids, ranks = first_ranks(run, dataset.qrels, [claim.id for claim in mine])
    rank = dict(zip(ids, ranks.tolist(), strict=True))
    other: dict[str, float] = {}
    if translated is not None:
        ids, ranks = first_ranks(translated, dataset.qrels, [claim.id for claim in mine])
        other = dict(zip(ids, ranks.tolist(), strict=True))
    english = _english_wins(dataset, run, k)
    lost: list[LostClaim] = []
    both: list[Overlap] = []
    for claim in mine:
        gold = next((g for g in claim.golds if g in sources), None)
        if gold is None:
            continue
        how, text, other_rank = _winner(claim, gold, other, english, k)
        if how is None:
            continue
        overlap = overlap_of(claim.text, language, text, sources[gold], frequency)
        if rank[claim.id] > k:
            lost.append(
                LostClaim(
                    claim.id, gold, how, claim.text, text, rank[claim.id], other_rank, overlap
                )
            )
        else:
            both.append(overlap)
    missed = sum(rank[claim.id] > k for claim in mine)
    return LostReport(language, k, len(mine), missed, tuple(lost), tuple(both))


def _english_wins(dataset: Dataset, run: Run, k: int) -> dict[str, tuple[Claim, float]]:
    """Gold -> its best-ranked English claim, where that is among the first k."""
    claims = [claim for claim in dataset.claims if claim.lang == "en" and claim.golds]
    if not claims:
        return {}
    _, ranks = first_ranks(run, dataset.qrels, [claim.id for claim in claims])
    best: dict[str, tuple[Claim, float]] = {}
    for claim, rank in zip(claims, ranks.tolist(), strict=True):
        for gold in claim.golds if rank <= k else ():
            if gold not in best or rank < best[gold][1]:
                best[gold] = claim, rank
    return best


def _winner(
    claim: Claim,
    gold: str,
    translated: Mapping[str, float],
    english: Mapping[str, tuple[Claim, float]],
    k: int,
) -> tuple[How | None, str, float]:
    rank = translated.get(claim.id, np.inf)
    if rank <= k and claim.translation:
        return "translation", claim.translation, rank
    if gold in english:
        return "english", english[gold][0].text, english[gold][1]
    return None, "", np.inf


def overlap_of(
    text: str, language: str, other: str, gold: Source, frequency: Mapping[str, int]
) -> Overlap:
    """What of the gold is in the English text `other` and not in `text`, rarest terms first.

    Names are authors' surnames and what the gold writes with capitals or digits inside a
    sentence; a number is equal by value (1.000 in German is 1,000); terms are stems of words
    that are neither, spelt as in the text.
    """
    whole = f"{gold.title}\n{gold.abstract}"
    names = names_of(gold)
    here, there = (frozenset(n for n in names if _holds(t, n)) for t in (text, other))
    gold_numbers = numbers_in(whole, "en")
    numbers_here = gold_numbers & numbers_in(text, language)
    numbers_there = gold_numbers & numbers_in(other, "en")
    parts = {part for name in names for part in _stems(name)}
    stems = {s: w for s, w in _stems(whole).items() if s not in parts and not s.isdecimal()}
    terms_here, terms_there = ({s for s in _stems(t) if s in stems} for t in (text, other))
    spelt = {**stems, **_stems(other)}
    rare = sorted(terms_there - terms_here, key=lambda s: (frequency.get(s, 0), s))
    only = {
        *(here - there),
        *(numbers_here - numbers_there),
        *(stems[s] for s in terms_here - terms_there),
    }
    kept = len(here & there) + len(numbers_here & numbers_there) + len(terms_here & terms_there)
    return Overlap(
        terms=tuple(spelt[stem] for stem in rare),
        numbers=tuple(sorted(numbers_there - numbers_here, key=float)),
        names=tuple(sorted(there - here)),
        only_here=tuple(sorted(only)),
        kept=kept,
    )


def numbers_in(text: str, language: str) -> set[str]:
    """Numbers of a text as plain decimals: 1.000,50 in German and 1,000.50 in English are 1000.5.

    A separator of thousands counts as one only before exactly three digits; else it is read
    as the decimal sign.
    """
    thousands = "." if language in _COMMA_LANGUAGES else ","
    found = set()
    for match in NUMBER.findall(text):
        if not match.isascii():
            continue
        plain = re.sub(rf"(?<=\d)\{thousands}(?=\d{{3}}(?!\d))", "", match).replace(",", ".")
        if plain.count(".") <= 1:  # else a date or a version
            found.add(f"{float(plain):.10g}")
    return found


def names_of(source: Source) -> frozenset[str]:
    """Names in a source, case folded: surnames of its authors, and words written as names.

    A word is written as a name when it has a capital beyond its first letter, or letters and
    digits, or a capital within a sentence of the abstract, and never occurs in lower case.
    """
    words = _WORD.findall(f"{source.title}\n{source.abstract}")
    plain = {word for word in words if word == word.casefold() and not _mixed(word)}
    names = {word for word in words if _mixed(word)}
    for match in _WORD.finditer(source.abstract):
        before = source.abstract[: match.start()].rstrip(" \"'“‘(")
        if match[0][0].isupper() and before and before[-1] not in ".!?:\n":
            names.add(match[0])
    surnames = {author.split()[-1] for author in clean_authors(source.authors) if author.split()}
    found = {name.casefold() for name in names | surnames} - plain
    return frozenset(name for name in found if len(name) > 1)


def _mixed(word: str) -> bool:
    letters = any(letter.isalpha() for letter in word)
    return any(c.isupper() for c in word[1:]) or letters and any(c.isdecimal() for c in word)


def _holds(text: str, name: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text.casefold()) is not None


def _stems(text: str) -> dict[str, str]:
    """Stem -> word as it stands, of the words that are no English stop words."""
    import bm25s
    import Stemmer

    words, stems = (
        bm25s.tokenize(
            [text], stopwords="en", stemmer=stemmer, return_ids=False, show_progress=False
        )[0]
        for stemmer in (None, Stemmer.Stemmer("english"))
    )
    return dict(zip(reversed(stems), reversed(words), strict=True))


def _document_frequency(sources: Sequence[Source]) -> Counter[str]:
    """Stem -> sources that it occurs in."""
    import bm25s
    import Stemmer

    texts = [f"{source.title}\n{source.abstract}" for source in sources]
    stems = bm25s.tokenize(
        texts,
        stopwords="en",
        stemmer=Stemmer.Stemmer("english"),
        return_ids=False,
        show_progress=False,
    )
    return Counter(stem for found in stems for stem in set(found))


def lost_text(report: LostReport, table: Callable[..., str]) -> str:
    """The report for a person, its tables drawn by `table`: counts, causes, then claims."""
    kinds = ("terms", "numbers", "names")
    groups = {
        f"lost, won in {how}": [c.lost for c in report.lost if c.how == how]
        for how in ("translation", "english")
    } | {"won by both": list(report.won_by_both)}
    rows: list[list[Any]] = []
    for name, overlaps in groups.items():
        means = [_mean([len(getattr(o, kind)) for o in overlaps]) for kind in kinds]
        here = _mean([len(o.only_here) for o in overlaps])
        rows.append([name, len(overlaps), *means, here, _mean([o.kept for o in overlaps])])
    most = {
        kind: Counter(word for c in report.lost for word in getattr(c.lost, kind)) for kind in kinds
    }
    common = [
        [kind, ", ".join(f"{word} ({n})" for word, n in counted.most_common(_SHOWN)) or "none"]
        for kind, counted in most.items()
    ]
    listed = [
        [
            c.claim_id,
            c.how,
            _rank(c.rank),
            _rank(c.other_rank),
            c.gold,
            *(", ".join(getattr(c.lost, kind)) for kind in kinds),
        ]
        for c in report.lost
    ]
    return "\n\n".join(
        [
            f"{report.language}: {report.missed} of {report.claims} claims miss their gold among "
            f"the first {report.k}; {len(report.lost)} of these win in translation or in English.",
            "Of the gold, per claim: what only the other text has, what only this one has, what "
            "both have.",
            table(["claims", "number", *kinds, "only here", "both"], rows, 2),
            "Lost most often:",
            table(["what", "words (claims)"], common),
            *(
                [table(["claim", "won in", "rank", "there", "gold", *kinds], listed)]
                if listed
                else []
            ),
        ]
    )


def _mean(counts: Sequence[int]) -> float | None:
    return sum(counts) / len(counts) if counts else None


def _rank(rank: float) -> str:
    return f"{rank:.0f}" if np.isfinite(rank) else "-"
