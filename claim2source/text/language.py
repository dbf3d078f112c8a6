"""Detect and name languages; check a model's rewriting or translation of a text.

`claim2source.llm` checks all replies: whether they are empty, truncated, or an echo of the prompt.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from typing import Any

from claim2source.core.errors import UserError
from claim2source.core.languages import primary_language
from claim2source.core.reasons import Reason
from claim2source.core.records import nfkc
from claim2source.data.text_files import text_error

# Shorter texts, and texts with a lower probability, are not judged.
MIN_LETTERS = 20
SURE = 0.9

# Expected languages of posts.
READ = ("en", "de", "fr")

_NAMES = dict(
    pair.split(":")
    for pair in (
        "ar:Arabic bg:Bulgarian cs:Czech da:Danish de:German el:Greek en:English es:Spanish "
        "fi:Finnish fr:French hu:Hungarian it:Italian ja:Japanese ko:Korean nl:Dutch "
        "no:Norwegian pl:Polish pt:Portuguese ro:Romanian ru:Russian sv:Swedish tr:Turkish "
        "uk:Ukrainian zh:Chinese"
    ).split()
)
# ISO 639-1.
CODES = frozenset(
    "aa ab ae af ak am an ar as av ay az ba be bg bi bm bn bo br bs ca ce ch co cr cs cu cv cy da "
    "de dv dz ee el en eo es et eu fa ff fi fj fo fr fy ga gd gl gn gu gv ha he hi ho hr ht hu hy "
    "hz ia id ie ig ii ik io is it iu ja jv ka kg ki kj kk kl km kn ko kr ks ku kv kw ky la lb lg "
    "li ln lo lt lu lv mg mh mi mk ml mn mr ms mt my na nb nd ne ng nl nn no nr nv ny oc oj om or "
    "os pa pi pl ps pt qu rm rn ro ru rw sa sc sd se sg si sk sl sm sn so sq sr ss st su sv sw ta "
    "te tg th ti tk tl tn to tr ts tt tw ty ug uk ur uz ve vi vo wa wo xh yi yo za zh zu".split()
)
_OTHER_LETTERS = {"ar", "bg", "el", "ja", "ko", "ru", "uk", "zh"}
_NO_WORDS = re.compile(r"https?://\S+|[@#]\w+|[\d_]")


def language_name(code: str) -> str:
    """Return the English name of a language ("de": German); an unknown code is unchanged."""
    return _NAMES.get(primary_language(code), code)


def detect(text: str) -> str | None:
    """Detect a text's language (ISO 639-1); None if it is too short or the result uncertain.

    Addresses, handles, hashtags and digits are ignored.
    """
    words = _words(text)
    if sum(map(str.isalpha, words)) < MIN_LETTERS:
        return None
    lang, probability = load_detector().result().classify(words)
    return str(lang) if probability >= SURE else None


def likeliest(text: str, languages: Sequence[str]) -> str:
    """Detect the language of a text of any length; if uncertain, the most likely of these."""
    detected = detect(text)
    if detected is not None:
        return detected
    words = _words(text)
    if not any(map(str.isalpha, words)):
        return languages[0]
    ranked = [str(language) for language, _ in load_detector().result().rank(words)]
    if not _is_latin(words):
        if ranked:
            return ranked[0]
        return languages[0]
    for language in ranked:
        if language in languages:
            return language
    return languages[0]


def language_error(text: str, language: str) -> str | None:
    """Return the reason if a text is certainly in another language; None if it is not."""
    code = primary_language(language)
    if code not in _OTHER_LETTERS and not _is_latin(text):
        return Reason(f"in other letters than {language_name(language)}", "language")
    detected = detect(text)
    if detected is None or detected == code:
        return None
    return Reason(f"in {language_name(detected)}, not {language_name(language)}", "language")


def _words(text: str) -> str:
    return " ".join(_NO_WORDS.sub(" ", text).split())


def _is_latin(text: str) -> bool:
    letters = 0
    latin = 0
    for character in text:
        if character.isalpha():
            letters += 1
            latin += unicodedata.name(character, "").startswith("LATIN")
    return 2 * latin >= letters


@lru_cache(maxsize=1)
def load_detector() -> Future[Any]:
    """Start loading the detector in the background; the first text waits for it."""
    executor = ThreadPoolExecutor(1)
    loading = executor.submit(_load)
    executor.shutdown(wait=False)
    return loading


def _load() -> Any:
    try:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier
    except ImportError:
        raise UserError(
            "language detection needs py3langid, which is not installed; "
            "pip install 'claim2source[llm]'"
        ) from None
    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


_REFUSAL = re.compile(
    r"(?:(?:i['’]?m|i am) )?sorry\b.{0,20}\bi (?:can(?:not|['’]t)|am unable)|as an ai\b"
    r"|i (?:cannot|can['’]t|am unable to|am not able to) (?:help|assist|comply|fulfil|provide)",
    re.IGNORECASE,
)


def rewrite_error(
    reply: str,
    original: str,
    *,
    language: str | None,
    longest: int,
    may_repeat: bool,
) -> str | None:
    """Return the reason why a reply cannot replace the text that it rewrites; None if it can.

    Args:
        reply: the model's cleaned reply.
        original: the text as it was sent.
        language: required language of the reply; None: any.
        longest: maximum number of characters.
        may_repeat: whether the text itself is a good reply (it may be formal already).
    """
    if not reply.strip():
        return Reason("empty", "empty")
    if reason := text_error(reply):
        return reason
    if len(reply) > longest:
        return Reason(f"far too long: {len(reply)} characters, at most {longest}", "long")
    if _REFUSAL.match(reply.strip()) and not _REFUSAL.match(original.strip()):
        return Reason("a refusal", "refused")
    folded = _folded(reply)
    # A single name is the same in every language.
    if not may_repeat and folded == _folded(original) and len(folded.split()) > 3:
        return Reason("an echo of the text", "echo")
    if language is None:
        return None
    error = language_error(reply, language)
    # A post in another language than its data set claims may stay in that language.
    if error and may_repeat and error == language_error(original, language):
        return None
    return error


def _folded(text: str) -> str:
    return " ".join(re.findall(r"\w+", nfkc(text).lower()))
