"""Prepare an answer's papers for the page, with marked words of the post and its evidence."""

from __future__ import annotations

from dataclasses import dataclass, replace

from claim2source.core.languages import primary_language
from claim2source.data.papers import Paper, without_emails
from claim2source.find.answers import about, as_bibtex, format_scores, heading, matching_words
from claim2source.find.finder import Answer, Match, Verdict
from claim2source.find.matching import WORD
from claim2source.search.analyser import Analyser
from claim2source.serve.evidence import Evidence, Number, compared_numbers, evidence
from claim2source.serve.words import Words

VERDICTS = {
    "found": "Found",
    "uncertain": "Uncertain",
    "not here": "Not here",
}
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
        claim_terms = self._analyser.claim(claim)
        terms = set(claim_terms)
        return [self._card(answer, match, terms, words) for match in answer.matches]

    def _card(
        self,
        answer: Answer,
        match: Match,
        terms: set[str],
        words: Words,
    ) -> PaperCard:
        paper = match.paper
        abstract = without_emails(paper.source.abstract)
        title = without_emails(paper.source.title)
        texts = "\n".join((match.sentence, title, abstract))

        paper_words = match.words[1]
        paper_terms = self._flat(paper_words)
        shared = set(paper_terms)
        post = answer.post.text
        post_sentence = match.post_sentence or post
        sentence = without_emails(match.sentence)
        own_answer = replace(answer, matches=(match,))

        return PaperCard(
            match=match,
            lang=primary_language(paper.lang),
            heading=self._highlight(heading(paper), terms),
            about=about(paper),
            retraction=retraction_text(paper, words),
            words=_words_text(match, words),
            scores=_scores_text(match, answer.verdict, words),
            post_sentence=self._highlight(post_sentence, shared),
            sentence=self._highlight(sentence, terms),
            numbers=compared_numbers(post, texts),
            abstract=self._highlight(abstract, terms),
            bibtex=as_bibtex([own_answer]),
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
        words = [text[start:end] for start, end in spans]
        terms_by_word = self._analyser.texts(words)

        pieces: list[Piece] = []
        last = 0
        for (start, end), own in zip(spans, terms_by_word, strict=True):
            if terms.isdisjoint(own):
                continue
            between = text[last:start]
            word = text[start:end]
            pieces.append((between, False))
            pieces.append((word, True))
            last = end

        rest = text[last:]
        pieces.append((rest, False))
        return [piece for piece in pieces if piece[0]]


def verdict_name(verdict: str) -> str:
    """Return the name of a verdict for people; an unknown verdict is unchanged."""
    if verdict in ("", "not judged"):
        return "Not judged"
    return VERDICTS.get(verdict, verdict)


def retraction_text(paper: Paper, words: Words) -> str:
    """Describe a retraction or correction: its state, in capitals if retracted, and the notice."""
    state, comma, details = paper.retracted.partition(",")
    state = words.message(state.strip())
    if paper.is_retracted:
        shown = state.upper()
    else:
        shown = state[:1].upper() + state[1:]
    return f"{shown}{comma}{details}"


def _words_text(match: Match, words: Words) -> str:
    text = matching_words(match)
    return words.message(text)


def _scores_text(match: Match, verdict: Verdict, words: Words) -> str:
    parts: list[str] = []
    formatted = format_scores(match, verdict)
    for score in formatted.split(", "):
        name, _, value = score.rpartition(" ")
        shown_name = words.message(name)
        parts.append(f"{shown_name} {value}")
    return ", ".join(parts)
