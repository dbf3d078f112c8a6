"""Claim representations."""

import pytest

from claim2source.core.records import Claim
from claim2source.text import Rendering, render_claim
from claim2source.text.render import claim_parts, missing_translations

GERMAN = Claim("1", "Impfung wirkt", "de", "Vaccine works")
ENGLISH = Claim("2", "Vaccine works", "en", "Vaccine works!")
FRENCH = Claim("3", "Le vaccin marche", "fr")
BLANK = Claim("4", "Le vaccin", "fr", "")


@pytest.mark.parametrize(
    ("claim", "form", "text", "languages"),
    [
        (GERMAN, "original", "Impfung wirkt", ("de",)),
        (GERMAN, "translated", "Vaccine works", ("en",)),
        (GERMAN, "bilingual", "Impfung wirkt\nVaccine works", ("de", "en")),
        (ENGLISH, "translated", "Vaccine works", ("en",)),
        (ENGLISH, "bilingual", "Vaccine works", ("en",)),
        (FRENCH, "bilingual", "Le vaccin marche", ("fr",)),
        (GERMAN, "paired", "Impfung wirkt\nVaccine works", ("de", "en")),
        (ENGLISH, "paired", "Vaccine works\nVaccine works", ("en", "en")),
        (BLANK, "paired", "Le vaccin\nLe vaccin", ("fr", "fr")),
    ],
)
def test_forms(claim, form, text, languages):
    assert render_claim(claim, form) == text
    parts = claim_parts(claim, form)
    assert tuple(part.language for part in parts) == languages
    assert "\n".join(part.text for part in parts) == text


def test_missing_translations_name_the_claims_that_a_form_needs_them_for():
    claims = [GERMAN, ENGLISH, FRENCH, BLANK, Claim("5", "x", "en")]
    assert missing_translations(claims, "original") == []
    assert missing_translations(claims, "translated") == ["3", "4"]
    assert missing_translations(tuple(claims), "bilingual") == ["3", "4"]


def test_rendering_keeps_the_order_of_claims():
    texts = Rendering(claims="bilingual").claim_texts(iter([ENGLISH, GERMAN, FRENCH]))
    assert texts == ["Vaccine works", "Impfung wirkt\nVaccine works", "Le vaccin marche"]
    assert Rendering().claims == "original" and render_claim(GERMAN) == "Impfung wirkt"
