"""A reply that cannot replace its text is refused, with the reason."""

from __future__ import annotations

import pytest

from claim2source.text.language import detect, language_name, rewrite_error
from claim2source.text.styles import STYLES, Original

GERMAN = "Die Masken senken das Risiko einer Ansteckung bei Kindern um 25 Prozent"
ENGLISH = "Masks lower the risk of an infection among children by 25 percent"
FRENCH = "Les masques réduisent le risque d'infection chez les enfants de 25 pour cent"
CHINESE = "口罩可将儿童感染风险降低"


def reason(
    reply: str, original: str = GERMAN, language: str = "en", echo: bool = False
) -> str | None:
    return rewrite_error(reply, original, language=language, longest=300, may_repeat=echo)


def test_language_is_detected_where_there_is_enough_text() -> None:
    assert [detect(t) for t in (GERMAN, ENGLISH, FRENCH, CHINESE)] == ["de", "en", "fr", None]
    assert detect("Masken! 123456789 @einlangername https://beispiel.de/ein/langer/pfad") is None
    assert language_name("de") == "German" and language_name("pt-br") == "Portuguese"
    assert language_name("tlh") == "tlh"


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (ENGLISH, None),
        (ENGLISH + "\ud83d", "surrogate"),
        (ENGLISH * 5, "325 characters, at most 300"),
        (GERMAN.upper() + "!", "echo"),
        (GERMAN + " nicht", "German, not English"),
        (FRENCH, "French, not English"),
        (CHINESE, "English"),
        ("I'm sorry, but I can't help with that.", "refusal"),
        ("I can't believe that masks help.", None),
    ],
)
def test_a_translation_that_is_none_is_refused(reply: str, expected: str | None) -> None:
    found = reason(reply)
    assert found == expected or expected and found and expected in found


def test_a_text_that_has_the_style_may_stay_and_a_quotation_too() -> None:
    assert reason(ENGLISH, ENGLISH, echo=True) is None
    assert reason(ENGLISH, ENGLISH) == "an echo of the text"
    assert reason("WHO: COVID-19!", "WHO: COVID-19") is None
    # The data set calls it English, so it may stay German.
    assert reason(GERMAN + ".", GERMAN, "en", echo=True) is None
    assert reason(FRENCH, GERMAN, "en", echo=True) == "in French, not English"


def bad(style: str, original: Original, reply: str) -> str | None:
    text = STYLES[style].judge(original, reply)
    return text.reason if text.kind == "failed" else None


def test_styles_know_language_and_length() -> None:
    claim = Original("1", GERMAN, "de")
    assert bad("C1", claim, GERMAN) is None
    assert bad("C1", claim, ENGLISH) == "in English, not German"
    assert bad("C4", claim, GERMAN) == "an echo of the text"
    assert "far too long" in str(bad("C1", claim, "x " * 201))
    assert bad("C3", claim, "w " * 700) is None
    source = Original("p", FRENCH, title="T")
    assert bad("S3", source, FRENCH + " aussi") is None
    assert "English" in str(bad("S1", Original("p", ENGLISH), CHINESE))
