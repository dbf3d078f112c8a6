"""Parse replies: cleaned text, a JSON object that fits its schema, or one of several words."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from claim2source.core.reasons import Reason
from claim2source.llm.endings import MODEL_REFUSED, ending_kind
from claim2source.llm.work import STRING, Answer, Request, Schema, object_schema
from claim2source.text.control import held_thoughts, strip_reasoning, without_control
from claim2source.text.prompts import Parts

# Failures of replies, in the words that reports count.
TRUNCATED = Reason("cut off by max_tokens", "cut")
EMPTY = Reason("empty", "empty")
ECHO = Reason("an echo of the prompt", "echo")
TOO_LONG = Reason("far too long", "long")
NOT_JSON = Reason("not JSON", "schema")
NOT_A_CHOICE = Reason("not one of the choices", "schema")
NO_FIT = Reason("does not fit the schema", "schema")
SEVERAL = Reason("several objects that differ", "schema")
REFUSED = Reason("refused by the server's filter", "refused")
REFUSED_BY_MODEL = Reason("refused by the model", "refused")
UNFINISHED = "not ended by itself: finish_reason"
# A reply may be this many times as long as the user's message, or LONGEST characters.
TIMES = 3
LONGEST = 2500
# A good reply may repeat shorter lines of the prompt.
ECHOED = 40
MOST_BRACES = 1000
FENCE = "```"
# What stands before a tag in a prompt: `English translation of the post:`.
_HEADING = re.compile(r"\A[^\n<>]{1,60}:[ \t]*\n(?=<)")
_LABEL = re.compile(r"^(?:- |[A-Z][a-z]+: )")

# So many layers of fences, quotes and preambles are removed.
MOST_LAYERS = 8
# Maximal characters of a reply, and of an object within other text.
MOST_READ = 2**20
MOST_WITHIN = 2**16
# So many braces are tried as the start of an object of any length.
MOST_WHOLE = 16
# Placeholders of objects while thoughts and control tokens are removed.
_OPEN = "{\ue000"
_CLOSE = "\ue001}"
_COVER = re.compile("[\ue000\ue001]")
_COVERED = re.compile(f"{re.escape(_OPEN)}(\\d+){re.escape(_CLOSE)}")
_BRACE = re.compile("[{}]")
_SENTENCES = re.compile(r".*[.!?](?=\s)", re.DOTALL)
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
    """Parse a reply into an answer with text, data or choice, or with a `failure`."""
    answer = Answer(request.id, raw=raw)
    if len(raw) > MOST_READ:
        return replace(answer, failure=unfinished_reason(request, raw, finish) or TOO_LONG)
    covered = None
    if request.schema is not None:
        covered = _Covered.of(raw)
    whole = raw if covered is None else covered.text
    rest = strip_reasoning(whole)
    answer = replace(answer, reasoned=held_thoughts(whole, rest))
    reason = unfinished_reason(request, raw, finish)
    if reason is not None:
        return replace(answer, failure=reason)
    text = without_control(rest.strip())
    if covered is not None and request.schema is not None:
        return _object_answer(answer, covered.again(text), request.schema)
    if request.choices:
        choice = _choice(request, text)
        return replace(answer, text=choice or "", failure=None if choice else NOT_A_CHOICE)
    if not text:
        return replace(answer, failure=EMPTY)
    tags = _tags(request)
    if tags and _folded(text) == _folded(request.messages[-1].content):
        return replace(answer, text=text, failure=ECHO)
    text = _joined(request.parts, cleaned(text, tags))
    return replace(answer, text=text, failure=_text_error(request, text))


def _joined(parts: Parts, text: str) -> str:
    """Join the parts of a text if the reply is an object of them; otherwise keep it as it is."""
    if not parts:
        return text
    data, _ = json_object(text, object_schema(**dict.fromkeys(parts, STRING)))
    if data is None:
        return text
    texts: list[str] = []
    for name, (_, most) in parts.items():
        texts.append(_whole_sentences(str(data[name]).strip(), most))
    return " ".join(texts)


def _whole_sentences(text: str, most: int) -> str:
    """Remove what the server cut off: a sentence, or a word, at the maximal length of a part."""
    if len(text) < most - 1 or text.endswith((".", "!", "?")):
        return text
    sentences = _SENTENCES.match(text)
    return sentences[0] if sentences else text.rpartition(" ")[0] or text


def unfinished_reason(request: Request, raw: str, finish: str | None) -> str | None:
    """Return the reason why a reply is incomplete; the next run requests such a reply again.

    A truncated choice is complete if no other choice begins with it: there is room for one token.
    """
    kind = ending_kind(finish)
    if kind == "whole":
        return None
    if kind == "cut":
        return None if _is_whole_choice(request, raw) else TRUNCATED
    if kind == "refused":
        return REFUSED_BY_MODEL if finish == MODEL_REFUSED else REFUSED
    return Reason(f"{UNFINISHED} {finish or 'null'}", "cut")


def _is_whole_choice(request: Request, raw: str) -> bool:
    """Whether a truncated reply is a choice that is not the prefix of another."""
    if not request.choices:
        return False
    text = without_control(strip_reasoning(raw[:MOST_READ]))
    choice = _choice(request, text)
    if choice is None:
        return False
    for other in request.choices:
        if other != choice and other.startswith(choice):
            return False
    return True


def cleaned(text: str, tags: frozenset[str] = frozenset()) -> str:
    """Remove the wrapping of a model's text: fences, tags of the prompt, preambles and quotes."""
    text = text.strip()
    for _ in range(MOST_LAYERS):
        before = text
        text = _unfenced(text)
        for tag in tags:
            text = _untagged(text, tag)
        for preamble in _PREAMBLES:
            # A preamble of nothing is the text itself.
            text = preamble.sub("", text, count=1).strip() or text
        for left, right in _QUOTES:
            text = _unquoted(text, left, right)
        if text == before:
            break
    return text


def _untagged(text: str, tag: str) -> str:
    """Remove a tag of the prompt around a text, with the prompt's words before it, or a part."""
    opened = _HEADING.sub("", text, count=1)
    if opened.startswith(f"<{tag}>"):
        text = opened.removeprefix(f"<{tag}>")
    return text.removesuffix(f"</{tag}>").strip()


def _unquoted(text: str, left: str, right: str) -> str:
    """Remove the quotes around a text without others."""
    is_quoted = len(text) > 1 and text.startswith(left) and text.endswith(right)
    if not is_quoted:
        return text
    inner = text[len(left) : -len(right)]
    if left in inner or right in inner:
        return text
    return inner.strip()


def _unfenced(text: str) -> str:
    info = None
    if text.startswith(FENCE):
        info = _INFO.match(text, len(FENCE))
    if info is None or not text.endswith(FENCE) or len(text) < info.end() + len(FENCE):
        return text
    return text[info.end() : -len(FENCE)].strip()


def _object_answer(answer: Answer, visible: _Covered, schema: Schema) -> Answer:
    """Parse an object in the rest of a reply; its strings were replaced and are complete."""
    if not visible.text:
        return replace(answer, failure=EMPTY)
    data, failure = visible.fitting(schema)
    return replace(answer, text=visible.restored, data=data, failure=failure)


def json_object(text: str, schema: Schema) -> tuple[dict[str, object] | None, str | None]:
    """Find the object in a reply that fits the schema, whatever text surrounds it.

    Returns the object, or the reason for none. Several different objects are not an answer, because
    one of them may be a quotation. An object within braces that are not an object, such as a
    malformed outer one, is not an answer either.
    """
    return _Covered.of(text).fitting(schema)


@dataclass(frozen=True)
class _Covered:
    """Reply whose JSON objects are replaced by numbered placeholders that do not occur in it."""

    text: str
    objects: tuple[dict[str, object], ...]
    originals: tuple[str, ...]
    # Whether there are more braces than were tried, perhaps in thoughts.
    is_open: bool = True

    @classmethod
    def of(cls, text: str) -> _Covered:
        return cls("", (), ()).again(_COVER.sub("\ufffd", text))

    def again(self, text: str) -> _Covered:
        """Replace the objects of a text, some of which are already replaced."""
        if not self.is_open:
            return replace(self, text=text)
        parts: list[str] = []
        objects = list(self.objects)
        originals = list(self.originals)
        end = tries = 0
        start = text.find("{")
        while start >= 0 and tries < MOST_BRACES:
            if text.startswith(_OPEN, start):
                start = text.find("{", start + 1)
                continue
            window = MOST_READ if tries < MOST_WHOLE else MOST_WITHIN
            value, length = _decoded(text[start : start + window])
            tries += 1
            # Replacing an inner object may have repaired a malformed outer one.
            if value is None or _OPEN in text[start : start + length]:
                start = text.find("{", start + 1)
                continue
            parts += [text[end:start], f"{_OPEN}{len(objects)}{_CLOSE}"]
            objects.append(value)
            originals.append(text[start : start + length])
            end = start + length
            start = text.find("{", end)
        covered = "".join([*parts, text[end:]])
        return _Covered(covered, tuple(objects), tuple(originals), is_open=start >= 0)

    @property
    def restored(self) -> str:
        return _COVERED.sub(lambda match: self.originals[int(match[1])], self.text)

    def fitting(self, schema: Schema) -> tuple[dict[str, object] | None, str | None]:
        """Return the only object that fits, or the reason for none."""
        from jsonschema import validators

        kind: Any = validators.validator_for(dict(schema))
        checker = kind(dict(schema))
        answer: dict[str, object] | None = None
        failure = NOT_JSON
        for number in self._outermost():
            candidate = self.objects[number]
            if not checker.is_valid(candidate):
                failure = NO_FIT
            elif answer is None:
                answer = candidate
            elif answer != candidate:
                return None, SEVERAL
        return answer, failure if answer is None else None

    def _outermost(self) -> Iterator[int]:
        """Yield the numbers of the objects that are not within other braces."""
        depth = end = 0
        for match in _COVERED.finditer(self.text):
            # Braces right before the object are its own, doubled.
            before = self.text[end : match.start()].rstrip("{ \n\t\r")
            for brace in _BRACE.findall(before):
                depth = max(depth + (1 if brace == "{" else -1), 0)
            if not depth:
                yield int(match[1])
            end = match.end()


def _decoded(text: str) -> tuple[dict[str, object] | None, int]:
    """Decode the object at the beginning of a text; None if there is none."""
    try:
        value, length = _DECODER.raw_decode(text)
    except (ValueError, RecursionError):
        return None, 0
    return value, length


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is not finite")
    return number


_DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=_finite)


def _choice(request: Request, text: str) -> str | None:
    if text in request.choices:
        return text
    folded = text.strip().strip("\"'`*.").strip().casefold()
    choices = [choice for choice in request.choices if choice.casefold() == folded]
    if len(choices) == 1:
        return choices[0]
    return None


def _tags(request: Request) -> frozenset[str]:
    """Return the tags that close a part of a user's message."""
    tags: set[str] = set()
    for message in request.messages:
        if message.role == "user":
            tags.update(re.findall(r"^</([a-z0-9-]+)>$", message.content, re.MULTILINE))
    return frozenset(tags)


def _text_error(request: Request, text: str) -> str | None:
    if not any(c.isalnum() for c in text):
        return EMPTY
    if len(text) > max(LONGEST, TIMES * len(request.messages[-1].content)):
        return TOO_LONG
    for tag in _tags(request):
        if f"</{tag}>" in text or f"<{tag}>" in text:
            return ECHO
    return ECHO if _is_echo(request, text) else None


def _is_echo(request: Request, text: str) -> bool:
    """Whether a text repeats a long line of the prompt's own words."""
    words = request.own_words
    if not words:
        system = [message.content for message in request.messages if message.role == "system"]
        words = "\n".join(system)
    folded = _folded(text)
    for line in words.split("\n"):
        own = _folded(_LABEL.sub("", line))
        if len(own) >= ECHOED and own in folded:
            return True
    return False


def _folded(text: str) -> str:
    return " ".join(text.split()).casefold()
