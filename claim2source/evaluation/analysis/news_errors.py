"""Sort failures as the news paper does (section 5.2), by proxies that a program can measure.

Two people read the paper's failures. A proxy counts words: it says where to look, not why a claim
failed. Each share stands beside that among the claims whose gold was found.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np

from claim2source.core.config import Between, Settings, Share
from claim2source.core.records import Claim, Dataset, Source, nfkc
from claim2source.core.run import Run
from claim2source.core.tables import Cell, Part, TextTable
from claim2source.evaluation.metrics import judged_claims
from claim2source.evaluation.ranks import first_ranks
from claim2source.evaluation.slices import HASHTAG, NUMBER
from claim2source.io.sheets import write_sheet
from claim2source.text.clean import clean_post

NO_FACT, SECOND_HALF, ADDED, OTHER = "no fact", "second half", "added statement", "none of these"
KINDS = (NO_FACT, SECOND_HALF, ADDED, OTHER)
COLUMNS = ("claim", "proxy", "rank", "post", "gold", "title")
# A capital within a sentence: a name, or an acronym.
_NAME = re.compile(r"(?<=[\w,;:'’)] )[A-Z]\w|(?<!\w)[A-Z]{2,}(?!\w)")
_TERMS = re.compile(r"\b\w\w+\b").findall


@dataclass(frozen=True)
class ErrorConfig(Settings):
    """Set what counts as a failure, and the proxies of its causes.

    Args:
        cutoff: a gold below this rank is a failure.
        least_terms: a post with fewer distinct content words states no fact; nor does one without
            a number and a name.
        long_words: words from which on a text is long, so that its second half may be cut.
        added: share of a post's content words that its article lacks, from which on the post
            adds a statement.
    """

    cutoff: Annotated[int, Between(1, 10**6)] = 5
    least_terms: Annotated[int, Between(0, 10**6)] = 4
    long_words: Annotated[int, Between(2, 10**9)] = 150
    added: Share = 0.5


@dataclass(frozen=True)
class SortedClaim:
    """Hold a claim's proxy, the rank of its first gold (None: not found), and that gold."""

    claim: Claim
    kind: str
    rank: int | None
    gold: Source


def sort_claims(run: Run, dataset: Dataset, config: ErrorConfig) -> list[SortedClaim]:
    """Give every claim with a gold the first proxy that holds of it and its first gold."""
    judged, ranks = first_ranks(run, dataset.qrels, judged_claims(dataset.qrels))
    claims = {claim.id: claim for claim in dataset.claims}
    sources = {source.id: source for source in dataset.sources}
    found = []
    for key, rank in zip(judged, ranks.tolist(), strict=True):
        golds = [gold for gold in dataset.qrels.golds(key) if gold in sources]
        if golds:
            claim, gold = claims[key], sources[golds[0]]
            known = int(rank) if np.isfinite(rank) else None
            found.append(SortedClaim(claim, proxy(claim.text, gold, config), known, gold))
    return found


def proxy(post: str, article: Source, config: ErrorConfig) -> str:
    """Name the first proxy that holds: no fact, second half, added statement, or none of these."""
    plain = clean_post(HASHTAG.sub(" ", post))
    terms = content_terms(clean_post(post))
    names = NUMBER.search(plain) or _NAME.search(plain)
    if len(terms) < config.least_terms or not names:
        return NO_FACT
    words = article.abstract.split()
    if len(words) >= config.long_words:
        half = len(words) // 2
        first = content_terms(f"{article.title} {' '.join(words[:half])}")
        second = content_terms(" ".join(words[half:]))
        if len(terms & second - first) > len(terms & first - second):
            return SECOND_HALF
    lacking = terms - content_terms(f"{article.title} {article.abstract}")
    return ADDED if len(lacking) >= config.added * len(terms) else OTHER


def content_terms(text: str) -> frozenset[str]:
    """Take the stems of a text's words, English stop words left out."""
    import Stemmer
    from bm25s.stopwords import STOPWORDS_EN

    words = {word for word in _TERMS(nfkc(text).lower()) if word not in STOPWORDS_EN}
    return frozenset(Stemmer.Stemmer("english").stemWords(sorted(words)))


def errors_parts(found: Sequence[SortedClaim], config: ErrorConfig) -> list[Part]:
    """Tabulate the proxies among failures, and among the other claims for comparison."""
    failed = [one for one in found if is_failure(one, config)]
    others = [one for one in found if not is_failure(one, config)]
    rows: list[list[Cell]] = []
    for kind in KINDS:
        row: list[Cell] = [kind]
        for group in (failed, others):
            count = sum(one.kind == kind for one in group)
            row += [count, f"{count / len(group):.1%}" if group else None]
        rows.append(row)
    head = (
        f"Gold not among the first {config.cutoff}: {len(failed)} of {len(found)} claims, by "
        "proxies that count words (docs/news.md), beside the others:"
    )
    columns = ["proxy", "failures", "share", "others", "share of others"]
    return [head, TextTable(columns, rows, numeric=[False, *[True] * 4])]


def is_failure(one: SortedClaim, config: ErrorConfig) -> bool:
    """Tell whether a claim's first gold is below the cut-off."""
    return one.rank is None or one.rank > config.cutoff


def write_errors(found: Sequence[SortedClaim], config: ErrorConfig, path: Path) -> None:
    """Write the failures as a sheet, to be read by people."""
    rows = [
        [
            *(one.claim.id, one.kind, "" if one.rank is None else str(one.rank)),
            *(one.claim.text, one.gold.id, one.gold.title),
        ]
        for one in found
        if is_failure(one, config)
    ]
    write_sheet(path, COLUMNS, rows)
