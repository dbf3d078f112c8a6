"""Claim representations of the 2026 paper (section 3.1): original, translated, bilingual."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, get_args

from claim2source.core.errors import ConfigError
from claim2source.core.records import Claim

ClaimForm = Literal["original", "translated", "bilingual"]


def render_claim(claim: Claim, form: ClaimForm = "original") -> str:
    """Text of a claim: as posted, its English translation, or both on two lines.

    English claims are the same in all three forms. A claim without a translation is
    rendered as posted: `missing_translations` counts those, so that callers can say so.
    """
    if form not in get_args(ClaimForm):
        raise ConfigError("claims", form, ", ".join(get_args(ClaimForm)))
    if form == "original" or claim.lang == "en" or not claim.translation:
        return claim.text
    if form == "translated":
        return claim.translation
    return f"{claim.text}\n{claim.translation}"


def missing_translations(claims: tuple[Claim, ...] | list[Claim], form: ClaimForm) -> list[str]:
    """Ids of the claims that `form` would need a translation for and that have none."""
    if form == "original":
        return []
    return [claim.id for claim in claims if claim.lang != "en" and not claim.translation]


def why_same_forms(claims: Iterable[Claim]) -> str | None:
    """Why these claims are the same text in every form; None where they are not."""
    foreign = [claim for claim in claims if claim.lang != "en"]
    if any(claim.translation for claim in foreign):
        return None
    return "no claim has a translation" if foreign else "all claims are English"


def untranslated_sentences(claims: tuple[Claim, ...] | list[Claim], form: ClaimForm) -> list[str]:
    """How many claims `form` would need a translation for in vain, for a person; none, if none."""
    missing = len(missing_translations(claims, form))
    if not missing:
        return []
    return [f"{missing} of {len(claims)} claims have no translation and are read as posted"]


def text_languages(claim: Claim, form: ClaimForm) -> tuple[str, ...]:
    """Languages that occur in the rendered text, for analysers that need to know."""
    if form == "original" or claim.lang == "en" or not claim.translation:
        return (claim.lang,)
    return ("en",) if form == "translated" else (claim.lang, "en")
