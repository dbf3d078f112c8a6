"""Explain claims lost as posted but won in translation or in English.

The papers leave the German errors open. For every such claim this lists which terms, numbers
and names of the gold are in the text that won and not in the text that lost.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from claim2source.core.records import Claim, Dataset, Source, nfkc
from claim2source.core.run import Run
from claim2source.core.tables import Cell, Part, TextTable
from claim2source.evaluation.slices import NUMBER, first_ranks
from claim2source.text import clean_authors

How = Literal["translation", "english"]

_WORD = re.compile(r"[^\W_]+(?:[-'’][^\W_]+)*")
# Languages that separate thousands by a point and decimals by a comma.
_COMMA_LANGUAGES = ("de", "fr", "es", "it", "nl", "pt", "pl")
_MOST_FREQUENT = 20
_KINDS = ("terms", "numbers", "names")


@dataclass(frozen=True)
class Overlap:
    """Hold terms, numbers and names of a gold that only the winning text has.

    `only_here` are those only in the losing text; `kept` counts those in both.
    """

    terms: tuple[str, ...]
    numbers: tuple[str, ...]
    names: tuple[str, ...]
    only_here: tuple[str, ...]
    kept: int


@dataclass(frozen=True)
class LostClaim:
    """Hold a claim whose gold is not among the first k, and the text that finds it there."""

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
    """Hold lost claims and, to compare with, the overlaps of claims that both texts win."""

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
    """Find claims in `language` that `run` misses and that win in translation or in English.

    `run` ranks the claims as posted, in all languages; `translated` the same claims by their
    translations. English wins by another claim: the best-ranked English one about the same
    gold. A claim that wins both ways is listed under its translation, its closest text. Raises
    `UserError` when no claim in `language` has a gold.
    """
    sources = {source.id: source for source in dataset.sources}
    frequency = _document_frequency(dataset.sources)
    mine = [claim for claim in dataset.claims if claim.lang == language and claim.golds]
    rank = _ranks(run, dataset, mine)
    other = _ranks(translated, dataset, mine) if translated is not None else {}
    english = _english_wins(dataset, run, k)
    lost: list[LostClaim] = []
    both: list[Overlap] = []
    for claim in mine:
        gold = next((g for g in claim.golds if g in sources), None)
        if gold is None:
            continue
        if (other_rank := other.get(claim.id, np.inf)) <= k and claim.translation:
            how: How = "translation"
            text = claim.translation
        elif gold in english:
            how, (text, other_rank) = "english", english[gold]
        else:
            continue
        overlap = overlap_of(claim.text, language, text, sources[gold], frequency)
        if rank[claim.id] <= k:
            both.append(overlap)
            continue
        ranks = rank[claim.id], other_rank
        lost.append(LostClaim(claim.id, gold, how, claim.text, text, *ranks, overlap))
    missed = sum(rank[claim.id] > k for claim in mine)
    return LostReport(language, k, len(mine), missed, tuple(lost), tuple(both))


def _ranks(run: Run, dataset: Dataset, claims: Sequence[Claim]) -> dict[str, float]:
    """Map each claim to the rank of its first gold."""
    ids, ranks = first_ranks(run, dataset.qrels, [claim.id for claim in claims])
    return dict(zip(ids, ranks.tolist(), strict=True))


def _english_wins(dataset: Dataset, run: Run, k: int) -> dict[str, tuple[str, float]]:
    """Map each gold to the text and rank of its best English claim, if among the first k."""
    claims = [claim for claim in dataset.claims if claim.lang == "en" and claim.golds]
    ranks = _ranks(run, dataset, claims) if claims else {}
    best: dict[str, tuple[str, float]] = {}
    for claim in claims:
        rank = ranks[claim.id]
        for gold in claim.golds if rank <= k else ():
            if gold not in best or rank < best[gold][1]:
                best[gold] = claim.text, rank
    return best


def overlap_of(
    text: str, language: str, other: str, gold: Source, frequency: Mapping[str, int]
) -> Overlap:
    """Find what of the gold the English text `other` has and `text` lacks, rarest terms first.

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
    only = (here - there) | (numbers_here - numbers_there)
    only |= {stems[stem] for stem in terms_here - terms_there}
    kept = len(here & there) + len(numbers_here & numbers_there) + len(terms_here & terms_there)
    return Overlap(
        terms=tuple(spelt[stem] for stem in rare),
        numbers=tuple(sorted(numbers_there - numbers_here, key=float)),
        names=tuple(sorted(there - here)),
        only_here=tuple(sorted(only)),
        kept=kept,
    )


def numbers_in(text: str, language: str) -> set[str]:
    """Read the numbers of a text as decimals: German 1.000,50 and English 1,000.50 are 1000.5.

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
    """Find the names in a source, case folded: its authors' surnames and words written as names.

    A word is written as a name when it has a capital beyond its first letter, or letters and
    digits, or a capital within a sentence of the abstract, and never occurs in lower case.
    """
    abstract = nfkc(source.abstract)
    words = _WORD.findall(f"{nfkc(source.title)}\n{abstract}")
    plain = {word for word in words if word == word.casefold() and not _mixed(word)}
    names = {word for word in words if _mixed(word)}
    for match in _WORD.finditer(abstract):
        before = abstract[: match.start()].rstrip(" \"'“‘(")
        if match[0][0].isupper() and before and before[-1] not in ".!?:\n":
            names.add(match[0])
    surnames = {author.split()[-1] for author in clean_authors(source.authors) if author.split()}
    found = {nfkc(name).casefold() for name in names | surnames} - plain
    return frozenset(name for name in found if len(name) > 1)


def _mixed(word: str) -> bool:
    letters = any(letter.isalpha() for letter in word)
    return any(c.isupper() for c in word[1:]) or letters and any(c.isdecimal() for c in word)


def _holds(text: str, name: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", nfkc(text).casefold()) is not None


def _stems(text: str) -> dict[str, str]:
    """Map each stem to its word as written, without English stop words."""
    from Stemmer import Stemmer

    words, stems = (_tokens([text], stemmer)[0] for stemmer in (None, Stemmer("english")))
    return dict(zip(reversed(stems), reversed(words), strict=True))


def _document_frequency(sources: Sequence[Source]) -> Counter[str]:
    """Count the sources that each stem occurs in."""
    from Stemmer import Stemmer

    stems = _tokens([f"{s.title}\n{s.abstract}" for s in sources], Stemmer("english"))
    return Counter(stem for found in stems for stem in set(found))


def _tokens(texts: list[str], stemmer: object) -> list[list[str]]:
    import bm25s

    tokens: list[list[str]] = bm25s.tokenize(
        [*map(nfkc, texts)], stopwords="en", stemmer=stemmer, return_ids=False, show_progress=False
    )
    return tokens


def lost_parts(report: LostReport) -> list[Part]:
    """Tabulate a report: counts, causes, then the claims."""
    groups = {
        f"lost, won in {how}": [c.lost for c in report.lost if c.how == how]
        for how in ("translation", "english")
    } | {"won by both": list(report.won_by_both)}
    rows: list[list[Cell]] = []
    for name, overlaps in groups.items():
        lists = (*_KINDS, "only_here")
        counts = [[*(len(getattr(one, kind)) for kind in lists), one.kept] for one in overlaps]
        means = np.mean(counts, axis=0).tolist() if counts else [None] * 5
        rows.append([name, len(overlaps), *means])
    common = []
    for kind in _KINDS:
        counted = Counter(word for c in report.lost for word in getattr(c.lost, kind))
        words = ", ".join(f"{word} ({n})" for word, n in counted.most_common(_MOST_FREQUENT))
        common.append([kind, words or "none"])
    listed = [
        [
            *(c.claim_id, c.how),
            *(f"{r:.0f}" if np.isfinite(r) else "-" for r in (c.rank, c.other_rank)),
            *(c.gold, *(", ".join(getattr(c.lost, kind)) for kind in _KINDS)),
        ]
        for c in report.lost
    ]
    columns = ["claim", "won in", "rank", "there", "gold", *_KINDS]
    return [
        f"{report.language}: {report.missed} of {report.claims} claims miss their gold among "
        f"the first {report.k}; {len(report.lost)} of these win in translation or in English.",
        "Of the gold, per claim: what only the other text has, what only this one has, what "
        "both have.",
        TextTable(["claims", "number", *_KINDS, "only here", "both"], rows, 2),
        "Lost most often:",
        TextTable(["what", "words (claims)"], common),
        *([TextTable(columns, listed)] if listed else []),
    ]
