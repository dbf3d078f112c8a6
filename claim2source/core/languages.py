"""Normalise languages: every look-up uses the primary subtag of a tag (BCP 47, ISO 639)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import TypeVar

from claim2source.core.errors import ConfigError

Value = TypeVar("Value")
_TAG = re.compile(r"[a-z]{2,3}(?:-[a-z0-9]{1,8})*")
# These need no look-up, and so no import of langcodes.
_USUAL = ("en", "de", "fr")


@lru_cache(maxsize=4096)
def language_tag(text: str) -> str:
    """Write a language as a tag: lower case, hyphens. "de_AT" is "de-at"."""
    return text.strip().lower().replace("_", "-")


def is_language_tag(text: str) -> bool:
    """Whether a text has the form of a language tag, such as de, de-AT or ger."""
    return _TAG.fullmatch(language_tag(text)) is not None


@lru_cache(maxsize=4096)
def primary_language(text: str) -> str:
    """Return the primary subtag of a language, its ISO 639-1 code if it has one.

    An unknown code is returned in lower case.

    Example:
        >>> [primary_language(tag) for tag in ("de-AT", "DE", "ger", "fra", "iw", "cmn-Hans", "xx")]
        ['de', 'de', 'de', 'fr', 'he', 'zh', 'xx']
    """
    code = language_tag(text).partition("-")[0]
    if code in _USUAL or not _TAG.fullmatch(code):
        return code
    import langcodes

    language = langcodes.get(code).language or code
    if len(language) == 2:
        return language
    # Tagalog's code tl is used for Filipino too, whose own code has three letters.
    if len(code) == 2:
        return code
    # A language without a two-letter code may belong to one that has it: Mandarin to Chinese.
    macro = langcodes.get(langcodes.standardize_tag(language, macro=True)).language
    if macro and len(macro) == 2:
        return macro
    return language


def is_in_language(text: str, wanted: str) -> bool:
    """Whether a tag is in a wanted language: "de-AT" is in "de", "ger" and "de-at", not in "de-CH".

    Example:
        >>> is_in_language("de-AT", "ger"), is_in_language("de", "de-AT")
        (True, False)
    """
    own = _normalised(text)
    other = _normalised(wanted)
    return own == other or own.startswith(f"{other}-")


def by_primary_language(values: Mapping[str, Value], key: str) -> dict[str, Value]:
    """Key values by their language's primary subtag. Raises `ConfigError` if two have the same."""
    primary: dict[str, Value] = {}
    for language, value in values.items():
        code = primary_language(language)
        if code in primary:
            raise ConfigError(f"{key}.{language}", language, f"one key for {code}")
        primary[code] = value
    return primary


def _normalised(text: str) -> str:
    _, hyphen, rest = language_tag(text).partition("-")
    return f"{primary_language(text)}{hyphen}{rest}"
