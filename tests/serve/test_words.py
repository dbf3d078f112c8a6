"""The page's languages: every text is there in each, and the right one is chosen."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from claim2source.core.records import Source
from claim2source.data.papers import Paper
from claim2source.data.posts import Post
from claim2source.find.abstention import Tenth
from claim2source.find.answers import ABOUT_SCORES, headline, matching_words, next_step, notes
from claim2source.find.finder import Answer, Match
from claim2source.find.shared import LOW_FOREIGN, TOO_FEW, language_reason
from claim2source.serve import access, app, batcher, marking, page, schemas, table, words
from claim2source.serve.cards import VERDICTS
from claim2source.serve.words import LANGUAGES, Visit, accepted_language, words_in

FOREIGN = [lang for lang in LANGUAGES if lang != "en"]
FIELD = re.compile(r"\{\w+\}")
MATCH = Match(1, Paper(Source("1", "A title")), 0.5, {}, "", words=(("mask",), ("masks",)))
ANSWER = Answer(Post("0", "masks"), "en", (MATCH,))


def shown_texts() -> set[str]:
    """List the texts of the templates and the script, and those passed to the page."""
    texts = set()
    for path in [*page.FOLDER.glob("*.html"), *(page.STATIC / name for name in page.SCRIPTS)]:
        texts.update(re.findall(r'\bt\("([^"]+)"', path.read_text("utf-8")))
    return texts | {
        *page.LABELS.values(),
        *page.POST_LANGUAGES.values(),
        *VERDICTS.values(),
        table.LEFT_OUT,
    }


def messages() -> list[str]:
    """List the API's texts about answers and refusals."""
    texts = [ABOUT_SCORES, matching_words(MATCH), *map(str, schemas._REASONS.values())]
    tenth = Tenth(answers=10, here=9, first=8)
    for verdict, present in (
        ("found", 0.9),
        ("uncertain", 0.5),
        ("not here", 0.1),
        ("not judged", None),
    ):
        answer = replace(ANSWER, verdict=verdict, present=present, measured=tenth)  # type: ignore[arg-type]
        texts += [headline(answer), next_step(answer), *notes(answer)]
    texts += notes(replace(ANSWER, untranslated=True))
    texts += notes(replace(ANSWER, unencoded=True))
    texts += notes(replace(ANSWER, verdict="found", present=0.9, measured=tenth, shared=True))
    for reason in (LOW_FOREIGN, TOO_FEW, language_reason(["en", "de", "fr"])):
        texts += notes(replace(ANSWER, unjudged=reason))
    texts += [headline(replace(ANSWER, matches=())), next_step(replace(ANSWER, matches=()))]
    texts.append("is larger than 16 MiB unpacked: save it as .csv")
    texts += [str(refusal["description"]) for refusal in app.REFUSALS.values()]
    for module in (access, app, batcher, marking, page, table):
        source = Path(str(module.__file__)).read_text("utf-8")
        texts += re.findall(r'reason = f?"([^"{]+)"', source)
        texts += re.findall(r'NoAnswer\(\d+, f?"([^"{]+)"', source)
    return texts


@pytest.mark.parametrize("lang", FOREIGN)
def test_every_text_is_there_in_each_language(lang: str) -> None:
    t = words_in(lang)
    texts = shown_texts()
    assert len(texts) > 90 and sorted(texts - t.texts.keys()) == []
    for text, translation in t.texts.items():
        assert sorted(FIELD.findall(text)) == sorted(FIELD.findall(translation)), text
        assert translation.strip() == translation != ""
    untranslated = [text for text in messages() if t.message(text) == text and text != "BM25"]
    assert untranslated == []


def test_catalogues_have_the_same_texts() -> None:
    catalogues = [json.loads((words.FOLDER / f"{lang}.json").read_text()) for lang in FOREIGN]
    assert [list(catalogue) for catalogue in catalogues[1:]] == [list(catalogues[0])]


def test_a_message_keeps_its_values() -> None:
    german = words_in("de")
    assert "100" in german.message("must be 100 or less") != "must be 100 or less"
    assert german.message("a sentence of nobody") == "a sentence of nobody"
    hostile = "no answer within <b>{x}{0.__class__}</b> s"
    assert "<b>{x}{0.__class__}</b>" in german.message(hostile)
    assert german.number(10_000) == "10.000" and words_in("en").number(10_000) == "10,000"


@pytest.mark.parametrize(
    ("header", "lang"),
    [
        ("", "en"),
        ("de-AT,de;q=0.9,en;q=0.8", "de"),
        ("es, fr;q=0.5, en;q=0.4", "fr"),
        ("en;q=0.1, FR-ca ;q=1.0", "fr"),
        ("de;q=0, *", "en"),
        ("de;q=x,,;;", "en"),
        ("ja" * 5_000, "en"),
    ],
)
def test_the_language_that_is_liked_best(header: str, lang: str) -> None:
    assert accepted_language(header) == lang


@pytest.mark.parametrize(
    ("query", "cookie", "lang"),
    [
        ("", "", "fr"),
        ("", "claim2source_ui=de", "de"),
        ("ui=en&post=x", "claim2source_ui=de", "en"),
        ("ui=xx", "claim2source_ui=../..", "fr"),
    ],
)
def test_a_chosen_language_goes_before_the_browsers(query: str, cookie: str, lang: str) -> None:
    headers = [(b"accept-language", b"fr"), (b"cookie", cookie.encode())]
    scope = {"path": "/", "query_string": query.encode(), "headers": headers}
    visit = Visit.to(scope)
    assert (visit.words.lang, visit.is_chosen) == (lang, "ui=en" in query)
