"""Write the texts of the page and the API in English, German or French.

The English text is the key of its translation, as with gettext, in `page/words/de.json` and
`page/words/fr.json`. A text with `{fields}` is a template, which also translates a finished
message of another package, such as the reason of an error. Texts without a translation stay
English.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from urllib.parse import parse_qs

from starlette.datastructures import Headers
from starlette.types import Scope

from claim2source.serve.access import cookie_value

FOLDER = Path(__file__).parent / "page" / "words"
ENGLISH = "en"
# Languages of the page, each by its own name.
LANGUAGES = {ENGLISH: "English", "de": "Deutsch", "fr": "Français"}
# The URL parameter that chooses the page's language, and the cookie that stores it.
PARAMETER, COOKIE = "ui", "claim2source_ui"
# Signs between groups of thousands, and of decimals.
_SIGNS = {ENGLISH: (",", "."), "de": (".", ","), "fr": ("\u202f", ",")}
_FIELD = re.compile(r"\{(\w+)\}")
# Longer messages have no template.
_LONGEST = 2_000


@dataclass(frozen=True)
class Words:
    """Texts in one language."""

    lang: str = ENGLISH

    def __call__(self, text: str, **values: object) -> str:
        """Translate a text, and fill its fields."""
        template = self.texts.get(text, text)
        if values:
            return template.format(**values)
        return template

    @cached_property
    def texts(self) -> Mapping[str, str]:
        """Translations by English text; empty for English."""
        if self.lang == ENGLISH:
            return {}
        texts: dict[str, str] = json.loads((FOLDER / f"{self.lang}.json").read_text("utf-8"))
        return texts

    @cached_property
    def _templates(self) -> list[tuple[re.Pattern[str], str]]:
        """Patterns of the texts with fields, the most specific first."""
        templates = []
        for text in sorted(self.texts, key=len, reverse=True):
            if _FIELD.search(text):
                templates.append((_pattern(text), self.texts[text]))
        return templates

    def message(self, text: str) -> str:
        """Translate a finished English message; return it unchanged if no template matches."""
        if text in self.texts:
            return self.texts[text]
        if self.lang == ENGLISH or len(text) > _LONGEST:
            return text
        for pattern, translation in self._templates:
            match = pattern.fullmatch(text)
            if match is not None:
                fields = {}
                for name, value in match.groupdict().items():
                    fields[name] = self.texts.get(value, value)
                return translation.format(**fields)
        return text

    def number(self, number: int) -> str:
        """Format an integer with groups of thousands."""
        thousands, _ = _SIGNS[self.lang]
        return f"{number:,}".replace(",", thousands)

    def percent(self, share: float) -> str:
        """Format a share of 1 in percent."""
        return f"{share:.0%}".replace("%", "\u00a0%")


@lru_cache(maxsize=len(LANGUAGES))
def words_in(lang: str) -> Words:
    """Return the texts in a language, which are read once."""
    return Words(lang)


def _pattern(text: str) -> re.Pattern[str]:
    """Make the pattern of a template's messages, in which a field is any text."""
    parts = []
    last = 0
    for match in _FIELD.finditer(text):
        parts += [re.escape(text[last : match.start()]), f"(?P<{match[1]}>.+?)"]
        last = match.end()
    parts.append(re.escape(text[last:]))
    return re.compile("".join(parts), re.DOTALL)


def accepted_language(header: str) -> str:
    """Return the language that an Accept-Language header prefers; English by default."""
    best, most = ENGLISH, 0.0
    for part in header[:_LONGEST].split(","):
        tag, _, parameters = part.partition(";")
        lang = tag.strip().lower().partition("-")[0]
        weight = _weight(parameters)
        if lang in LANGUAGES and weight > most:
            best, most = lang, weight
    return best


def _weight(parameters: str) -> float:
    match = re.fullmatch(r"\s*q\s*=\s*([01](?:\.[0-9]{0,3})?)\s*", parameters, re.IGNORECASE)
    if match is not None:
        return float(match[1])
    return 0.0 if parameters.strip() else 1.0


def api_words(headers: Headers) -> Words:
    """Return the texts in the language that a program requests."""
    return words_in(accepted_language(headers.get("accept-language", "")))


@dataclass(frozen=True)
class Visit:
    """Request for a page: its path, its parameters, and the language to show.

    `is_chosen`: whether the URL sets the language.
    """

    path: str
    query: Mapping[str, list[str]]
    words: Words
    is_chosen: bool = False

    @classmethod
    def to(cls, scope: Scope) -> Visit:
        """Choose the language by the URL, else by the cookie, else by the browser."""
        headers = Headers(scope=scope)
        query = parse_qs(scope["query_string"].decode("latin-1"), max_num_fields=None)
        chosen = query.get(PARAMETER, [""])[0]
        if chosen in LANGUAGES:
            return cls(scope["path"], query, words_in(chosen), is_chosen=True)
        kept = cookie_value(headers.get("cookie", ""), COOKIE)
        words = words_in(kept) if kept in LANGUAGES else api_words(headers)
        return cls(scope["path"], query, words)
