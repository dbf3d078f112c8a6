"""Check a language model's rewriting or translation of a text.

What any reply may lack (it is empty, cut, or an echo of the prompt) `claim2source.llm` sees.
"""

from __future__ import annotations

import re

from claim2source.core.records import nfkc
from claim2source.io.text_files import why_not_text
from claim2source.text.language import why_not_in

_REFUSAL = re.compile(
    r"(?:(?:i['’]?m|i am) )?sorry\b.{0,20}\bi (?:can(?:not|['’]t)|am unable)|as an ai\b"
    r"|i (?:cannot|can['’]t|am unable to|am not able to) (?:help|assist|comply|fulfil|provide)",
    re.IGNORECASE,
)


def why_bad_reply(
    reply: str,
    original: str,
    *,
    language: str | None,
    longest: int,
    may_repeat: bool,
) -> str | None:
    """Say why a reply cannot stand for the text that it was to rewrite; None where it can.

    Args:
        reply: what the model answered, cleaned.
        original: the text as it was sent.
        language: that the reply must be in; None: any.
        longest: most characters.
        may_repeat: whether the text itself is a good reply (it may be formal already).
    """
    if not reply.strip():
        return "empty"
    if why := why_not_text(reply):
        return why
    if len(reply) > longest:
        return f"far too long: {len(reply)} characters, at most {longest}"
    if _REFUSAL.match(reply.strip()) and not _REFUSAL.match(original.strip()):
        return "a refusal"
    plain, source = _plain(reply), _plain(original)
    # A name alone is the same in every language.
    if not may_repeat and plain == source and len(plain.split()) > 3:
        return "an echo of the text"
    wrong = None if language is None else why_not_in(reply, language)
    # A post that is in another language than its data set says may stay in it.
    if wrong and language and may_repeat and wrong == why_not_in(original, language):
        return None
    return wrong


def _plain(text: str) -> str:
    return " ".join(re.findall(r"\w+", nfkc(text).lower()))
