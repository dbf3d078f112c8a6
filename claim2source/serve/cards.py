"""Prepare an answer's papers for the page, with marked words of the post and its evidence."""

from __future__ import annotations

from dataclasses import dataclass, replace

from claim2source.core.languages import primary_language
from claim2source.data.papers import Paper, without_emails
from claim2source.find.answers import about, as_bibtex, format_scores, heading, matching_words
from claim2source.find.finder import Answer, Match, Verdict
from claim2source.find.matching import WORD
from claim2source.search.bm25 import Analyser
from claim2source.serve.evidence import Evidence, Number, compared_numbers, evidence
from claim2source.serve.words import Words

VERDICTS = {"found": "Found", "uncertain": "Uncertain", "not here": "Not here"}
# Text, and whether it is a word of the post.
Piece = tuple[str, bool]


@dataclass(frozen=True)
class PaperCard:
    """Paper on the page."""

    match: Match
    lang: str
    heading: list[Piece]
    about: list[str]
    retraction: str
    words: str
    scores: str
    post_sentence: list[Piece]
    sentence: list[Piece]
    numbers: list[Number]
    abstract: list[Piece]
    bibtex: str
    evidence: Evidence


class Cards:
    """Make cards; words of posts and papers are compared by the index's analyser."""

    def __init__(self, analyser: Analyser) -> None:
        self._analyser = analyser

    def make(self, answer: Answer, words: Words) -> list[PaperCard]:
        """Make the card of each of an answer's papers."""
        claim = answer.post.claim(answer.lang)
        claim = replace(claim, translation=answer.searched or None)
        terms = set(self._analyser.claim(claim))
        return [self._card(answer, match, terms, words) for match in answer.matches]

    def _card(self, answer: Answer, match: Match, terms: set[str], words: Words) -> PaperCard:
        paper = match.paper
        abstract = without_emails(paper.source.abstract)
        texts = "\n".join((match.sentence, without_emails(paper.source.title), abstract))
        shared = set(self._flat(match.words[1]))
        return PaperCard(
            match=match,
            lang=primary_language(paper.lang),
            heading=self._highlight(heading(paper), terms),
            about=about(paper),
            retraction=retraction_text(paper, words),
            words=_words_text(match, words),
            scores=_scores_text(match, answer.verdict, words),
            post_sentence=self._highlight(match.post_sentence or answer.post.text, shared),
            sentence=self._highlight(without_emails(match.sentence), terms),
            numbers=compared_numbers(answer.post.text, texts),
            abstract=self._highlight(abstract, terms),
            bibtex=as_bibtex([replace(answer, matches=(match,))]),
            evidence=evidence(answer, match, self._analyser),
        )

    def _flat(self, words: tuple[str, ...]) -> list[str]:
        terms: list[str] = []
        for own in self._analyser.texts(list(words)):
            terms += own
        return terms

    def _highlight(self, text: str, terms: set[str]) -> list[Piece]:
        """Split a text into words that share a term with others, and the text between."""
        spans = [match.span() for match in WORD.finditer(text)]
        words = self._analyser.texts([text[start:end] for start, end in spans])
        pieces: list[Piece] = []
        last = 0
        for (start, end), own in zip(spans, words, strict=True):
            if not terms.isdisjoint(own):
                pieces.append((text[last:start], False))
                pieces.append((text[start:end], True))
                last = end
        pieces.append((text[last:], False))
        return [piece for piece in pieces if piece[0]]


def verdict_name(verdict: str) -> str:
    """Return the name of a verdict for people; an unknown verdict is unchanged."""
    return VERDICTS.get(verdict, "Not judged" if verdict in ("", "not judged") else verdict)


def retraction_text(paper: Paper, words: Words) -> str:
    """Describe a retraction or correction: its state, in capitals if retracted, and the notice."""
    state, comma, details = paper.retracted.partition(",")
    state = words.message(state.strip())
    state = state.upper() if paper.is_retracted else state[:1].upper() + state[1:]
    return f"{state}{comma}{details}"


def _words_text(match: Match, words: Words) -> str:
    text = matching_words(match)
    return words.message(text)


def _scores_text(match: Match, verdict: Verdict, words: Words) -> str:
    scores = []
    for score in format_scores(match, verdict).split(", "):
        name, _, value = score.rpartition(" ")
        scores.append(f"{words.message(name)} {value}")
    return ", ".join(scores)
