"""Search indexes whose scores are not comparable, and merge their answers.

Indexes with the same model and analysis are searched as one (`search.shards`). Other indexes each
rank their own papers, which are then merged by their ranks and by BM25 over all; this found more
on train posts than ranks alone (docs/log.md).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from claim2source.core.config import require
from claim2source.core.errors import UserError
from claim2source.core.terminal import one_line
from claim2source.data.identity import Identity, filled
from claim2source.data.posts import Post
from claim2source.data.store import Store
from claim2source.find.abstention import LEXICAL
from claim2source.find.finder import (
    NOT_JUDGED,
    TRANSLATION,
    Answer,
    Finder,
    FinderOptions,
    Match,
    post_language,
)
from claim2source.search.engine import Engine
from claim2source.search.fuse import FusionConfig
from claim2source.search.rows import Where
from claim2source.search.translator import Translators


class SeveralFinders(Finder):
    """Find papers with several finders, without a verdict whether a post's paper is among them.

    Posts are translated once for all finders. If a finder fails, answers name it, and the others
    continue. Raises `UserError` if none is left.
    """

    def __init__(self, finders: Sequence[Finder], translators: Translators | None = None) -> None:
        self.finders = tuple(finders)
        self.engine = finders[0].engine
        self.translators = translators
        self.on_part = lambda part: None
        self._system = None

    def __repr__(self) -> str:
        return one_line(self, indexes=self.names)

    @property
    def names(self) -> tuple[str, ...]:
        names: list[str] = []
        for finder in self.finders:
            names += finder.engine.names
        return tuple(names)

    @property
    def papers(self) -> int:
        return sum(finder.papers for finder in self.finders)

    @property
    def lost(self) -> tuple[str, ...]:
        names: list[str] = []
        for finder in self.finders:
            names += finder.lost
        return tuple(names)

    @property
    def unencoded(self) -> Counter[str]:  # type: ignore[override]
        """Count the posts for which a model of an index without vectors failed, by reason."""
        total: Counter[str] = Counter()
        for finder in self.finders:
            total += finder.unencoded
        return total

    def warm_up(self) -> None:
        """Load the models and the indexes."""
        for finder in self.finders:
            finder.warm_up()

    def _find(self, posts: Sequence[Post], k: int, where: Where) -> list[Answer]:
        asked, untranslated = self._translate(posts)
        found: list[list[Answer]] = []
        for finder in self.finders:
            finder.on_part = self.on_part
            try:
                found.append(finder._find(asked, k, where))
            except UserError:
                if not found and finder is self.finders[-1]:
                    raise
        answers = []
        for number, post in enumerate(posts):
            answer = fuse_answers([own[number] for own in found], k)
            answer = replace(answer, post=post, indexes=self.names, lost=self.lost)
            answers.append(replace(answer, untranslated=post.id in untranslated))
        return answers

    def _translate(self, posts: Sequence[Post]) -> tuple[list[Post], set[str]]:
        """Add translations to the posts; return the ids of those whose translation failed."""
        if self.translators is None:
            return list(posts), set()
        self.on_part(TRANSLATION)
        claims = [post.claim(post_language(post, self.engine)) for post in posts]
        claims, untranslated = self.translators.translate_claims(claims)
        translated = []
        for post, claim in zip(posts, claims, strict=True):
            text = claim.translation or ""
            translated.append(replace(post, lang=claim.lang, translation=text))
        return translated, untranslated


def open_finders(
    options: FinderOptions,
    engine: Engine,
    store: Store | None,
    *,
    progress: bool = False,
    sentences: bool = True,
    one_post: bool = False,
) -> Finder:
    """Make a finder of an index, or of several; arguments are those of `open_finder`.

    Raises `UserError` if settings do not match the indexes.
    """
    if not engine.others:
        return options.open_finder(
            engine, store, progress=progress, sentences=sentences, one_post=one_post
        )
    for key in ("pipeline", "model", "threshold"):
        allowed = "none: the indexes have different models or analyses"
        require(getattr(options, key) is None, key, getattr(options, key), allowed)
    plain = replace(options, translator=None, translate=False)
    finders = []
    for own in (engine, *engine.others):
        finders.append(plain.open_finder(own, store, sentences=sentences, one_post=one_post))
    return SeveralFinders(finders, options.open_translators(engine, store))


def fuse_answers(answers: Sequence[Answer], k: int) -> Answer:
    """Merge several answers to one post; each paper is listed once."""
    matches: list[Match] = []
    for answer in answers:
        matches += answer.matches
    listed = _distinct(_by_ranks(matches))[:k]
    ranked = [replace(match, rank=rank) for rank, match in enumerate(listed, 1)]
    warnings: dict[str, None] = {}
    for answer in answers:
        warnings |= dict.fromkeys(answer.warnings)
    return replace(
        answers[0],
        matches=tuple(ranked),
        abstained=None,
        present=None,
        verdict=NOT_JUDGED,
        of=None,
        measured=None,
        unjudged="",
        shared=False,
        unencoded=any(answer.unencoded for answer in answers),
        warnings=tuple(warnings),
        searched=max((answer.searched for answer in answers), key=bool),
    )


def _by_ranks(matches: Sequence[Match]) -> list[Match]:
    """Order papers by the sum of reciprocal ranks: in their own list, and by BM25 over all."""
    by_words = sorted(matches, key=_words_score, reverse=True)
    constant = FusionConfig().rrf_k
    scores: dict[int, float] = {}
    for place, match in enumerate(by_words, 1):
        scores[id(match)] = 1 / (constant + match.rank) + 1 / (constant + place)
    return sorted(matches, key=lambda match: -scores[id(match)])


def _words_score(match: Match) -> float:
    return match.parts.get(LEXICAL, 0.0)


def _distinct(matches: Sequence[Match]) -> list[Match]:
    """List each paper once, merged with its other records."""
    listed: list[Match] = []
    seen: list[Identity] = []
    for match in matches:
        identity = Identity.read(match.paper)
        for place, other in enumerate(seen):
            if identity.common(other) and match.of != listed[place].of:
                paper = filled(listed[place].paper, match.paper)
                listed[place] = replace(listed[place], paper=paper)
                break
        else:
            seen.append(identity)
            listed.append(match)
    return listed
