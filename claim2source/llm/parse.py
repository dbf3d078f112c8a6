"""Read replies: a cleaned text, a JSON object that fits its schema, or one of some words."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from claim2source.llm.work import Answer, Request, Schema
from claim2source.text.control import without_control, without_thoughts

# Why a reply is no good, in the words that reports count.
TRUNCATED = "cut off by max_tokens"
EMPTY = "empty"
ECHO = "an echo of the prompt"
TOO_LONG = "far too long"
NOT_JSON = "not JSON"
NOT_A_CHOICE = "not one of the choices"
NO_FIT = "does not fit the schema"
REFUSED = "refused by the server's filter"
UNFINISHED = "not ended by itself: finish_reason"
# A reply may be this many times as long as what the user's message holds, or LONGEST characters.
TIMES, LONGEST = 3, 2500
# Lines of the prompt that are shorter may stand in a good reply.
ECHOED = 40
MOST_BRACES = 1000
FENCE = "```"
_LABEL = re.compile(r"^(?:- |[A-Z][a-z]+: )")

# So many layers of fences, quotes and preambles are taken off.
MOST_LAYERS = 8
# Characters of a reply that is read at all, and of an object that stands within other text.
MOST_READ, MOST_WITHIN = 2**20, 2**16
_INFO = re.compile(r"[ \t]*+\w*+[ \t]*+\n")
_NOUN = (
    r"(?:translat(?:ion|ed)|rewrit(?:e|ten|ing)|pre-?processed|cleaned|formal|scientific|"
    r"academic|english|style|transferred|final|revised|version|text|tweet|post|claims?|abstract|"
    r"question|summary|output|answer|result|response|the|of|your|a|an|in|into|more|to|for)"
)
_PREAMBLES = (
    # "Sure! Here is the translation of the tweet:", alone on its line.
    re.compile(
        r"\A(?:(?:sure|certainly|of course|okay|ok|absolutely)\b[^\n]{0,40}?)?"
        r"\b(?:here(?:'s|’s| is| are)|below is) (?:the|your|an?|my) [^\n]{0,60}?"
        r"(?:translation|translated|rewrit|pre-?processed|cleaned|version|text|tweet|post|claim|"
        r"abstract|question|summary)[^\n]{0,60}:[ \t]*\n+",
        re.IGNORECASE,
    ),
    re.compile(
        rf"\A(?:sure|certainly|of course|okay|ok)?[,!. ]*here(?:'s|’s| is| are) {_NOUN}"
        rf"(?:[ -]{_NOUN})*:[ \t]*",
        re.IGNORECASE,
    ),
    re.compile(r"\A(?:sure|certainly|of course|okay|ok|absolutely)[!.:,]?[ \t]*\n+", re.IGNORECASE),
    # "**Translation:** ..." and "Rewritten tweet: ..."
    re.compile(
        rf"\A[*_#]{{0,3}}[ \t]*(?:(?:english |final )?translation|output|summary|abstract|"
        rf"question|tweet|(?:rewritten|translated|pre-?processed|cleaned|scientific) {_NOUN})"
        r"[*_]{0,2}[ \t]*:[*_]{0,2}\s*",
        re.IGNORECASE,
    ),
)
_QUOTES = (('"', '"'), ("“", "”"), ("„", "“"), ("„", "”"), ("«", "»"), ("'", "'"), ("‘", "’"))


def read_reply(request: Request, raw: str, finish: str | None) -> Answer:
    """Judge a reply: an answer with text, data or choice, or one with a `failure`."""
    answer = Answer(request.id, raw=raw)
    if (why := why_unfinished(request, raw, finish)) is not None:
        return replace(answer, failure=why)
    if len(raw) > MOST_READ:
        return replace(answer, failure=TOO_LONG)
    reply = without_thoughts(raw).strip()
    text = without_control(reply)
    if request.choices:
        choice = _choice(request, text)
        return replace(answer, text=choice or "", failure=None if choice else NOT_A_CHOICE)
    if not text:
        return replace(answer, failure=EMPTY)
    if request.schema is not None:
        data, failure = json_object(text, request.schema)
        if data is None and text != reply:
            # A token within a string of the object is no end.
            data, failure = json_object(reply, request.schema)
        return replace(answer, text=text, data=data, failure=failure)
    text = cleaned(text, _tags(request))
    return replace(answer, text=text, failure=_why_not_text(request, text))


def why_unfinished(request: Request, raw: str, finish: str | None) -> str | None:
    """Explain why a reply did not end by itself; the next run asks anew for such a one.

    A cut choice is whole where no other one begins with it: one token is all there is room for.
    """
    if finish == "stop":
        return None
    if finish == "length":
        text = without_control(without_thoughts(raw[:MOST_READ]))
        choice = _choice(request, text) if request.choices else None
        choices = (text for text in request.choices if text != choice)
        is_complete = choice is not None and not any(text.startswith(choice) for text in choices)
        return None if is_complete else TRUNCATED
    return REFUSED if finish == "content_filter" else f"{UNFINISHED} {finish or 'null'}"


def cleaned(text: str, tags: frozenset[str] = frozenset()) -> str:
    """Remove the wrapping of a model's text: fences, tags of the prompt, preambles and quotes."""
    text = text.strip()
    for _ in range(MOST_LAYERS):
        before = text
        text = _unfenced(text)
        for tag in tags:
            if text.startswith(f"<{tag}>") and text.endswith(f"</{tag}>"):
                text = text[len(tag) + 2 : -len(tag) - 3].strip()
        for preamble in _PREAMBLES:
            # A preamble of nothing is the text itself.
            text = preamble.sub("", text, count=1).strip() or text
        for left, right in _QUOTES:
            inner = text[len(left) : -len(right)]
            around = len(text) > 1 and text.startswith(left) and text.endswith(right)
            if around and left not in inner and right not in inner:
                text = inner.strip()
        if text == before:
            break
    return text


def _unfenced(text: str) -> str:
    info = _INFO.match(text, len(FENCE)) if text.startswith(FENCE) else None
    if info is None or not text.endswith(FENCE) or len(text) < info.end() + len(FENCE):
        return text
    return text[info.end() : -len(FENCE)].strip()


def json_object(text: str, schema: Schema) -> tuple[dict[str, object] | None, str | None]:
    """Find the object in a reply that fits the schema: all of it, a fenced one, the last one.

    Returns it, or why there is none.
    """
    from jsonschema import validators

    kind: Any = validators.validator_for(dict(schema))
    checker = kind(dict(schema))
    failure = NOT_JSON
    for candidate in _json_objects(text):
        if checker.is_valid(candidate):
            return candidate, None
        failure = NO_FIT
    return None, failure


def _json_objects(text: str) -> Iterator[dict[str, object]]:
    """Yield the JSON objects of a reply, the most credible first."""
    fenced = [part for part in text.split(FENCE)[1:-1] if "{" in part and _INFO.match(part)]
    candidates = [_INFO.sub("", part, count=1) for part in fenced[: -MOST_BRACES - 1 : -1]]
    candidates.insert(0, text)
    for candidate in candidates:
        try:
            value = _DECODER.decode(candidate.strip())
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            yield value
    yield from reversed(_balanced(text))


def _balanced(text: str) -> list[dict[str, object]]:
    objects, start = [], text.find("{")
    for _ in range(MOST_BRACES):
        if start < 0:
            break
        try:
            value, length = _DECODER.raw_decode(text[start : start + MOST_WITHIN])
            objects.append(value)
            end = start + length
        except (ValueError, RecursionError):
            end = start + 1
        start = text.find("{", end)
    return objects


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text} is not finite")
    return number


_DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=_finite)


def _choice(request: Request, text: str) -> str | None:
    if text in request.choices:
        return text
    folded = text.strip().strip("\"'`*.").strip().casefold()
    choices = [choice for choice in request.choices if choice.casefold() == folded]
    return choices[0] if len(choices) == 1 else None


def _tags(request: Request) -> frozenset[str]:
    users = (m.content for m in request.messages if m.role == "user")
    names = (re.findall(r"^</([a-z0-9-]+)>$", content, re.MULTILINE) for content in users)
    return frozenset(tag for tags in names for tag in tags)


def _why_not_text(request: Request, text: str) -> str | None:
    if not any(c.isalnum() for c in text):
        return EMPTY
    if len(text) > max(LONGEST, TIMES * len(request.messages[-1].content)):
        return TOO_LONG
    flat = " ".join(text.split()).casefold()
    lines = (
        " ".join(_LABEL.sub("", line).split()).casefold()
        for message in request.messages
        if message.role == "system"
        for line in message.content.split("\n")
    )
    echoed = any(len(line) >= ECHOED and line in flat for line in lines)
    fence = any(f"</{tag}>" in text or f"<{tag}>" in text for tag in _tags(request))
    return ECHO if echoed or fence else None
