"""Rewrite texts in a style by rules: without a model or a server, and reproducibly.

The rules replace a language model in tests and in `configs/style_grid/rules.yaml`; their results
say nothing about the papers' styles. The rules are for English; other texts keep their words.
"""

from __future__ import annotations

import re
from functools import lru_cache

from claim2source.text.clean import EMOJI, LINK

TWEET = 280  # characters
ABSTRACT = 150  # words

_TAG = re.compile(r"(?<![\w@#])[@#](\w+)")
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z][a-z])")
_QUOTES = re.compile(r"[\"“”„«»‹›]")
# Not after abbreviations such as "e.g.", before a lower-case letter.
_SENTENCES = re.compile(r"(?<=[.!?])\s+(?=[^a-z\s])")
_WORD = re.compile(r"[^\W\d_][\w-]{4,}")
_DIGIT = re.compile(r"\d")

_OPENING = re.compile(
    r"(?:(?:just in|breaking|new(?: (?:study|preprint|paper|research))?|wow|omg|fyi|psa|thread|read"
    r"|via|study|preprint|paper|ok|hey|lol|interesting|important)\b[^.:!?]{0,20}:\s*)+",
    re.IGNORECASE,
)
_ENDING = re.compile(r"[\s,;–-]*(?:source|link|read more|via|pdf|h/t)\b[^.!?]{0,30}[:.]?\s*$", re.I)
# Informal words -> formal ones.
_FORMAL = dict(
    pair.strip().split("=")
    for pair in """
ppl=people; u=you; ur=your; w/=with; w/o=without; b/c=because; bc=because; thru=through;
kids=children; docs=physicians; jab=vaccination; jabs=vaccinations; vax=vaccination;
vaxx=vaccination; covid=COVID-19; covid19=COVID-19; can't=cannot; won't=will not;
don't=do not; doesn't=does not; didn't=did not; isn't=is not; aren't=are not;
wasn't=was not; it's=it is; that's=that is
""".split(";")
) | dict.fromkeys("lol omg wow yikes tbh imo smh".split(), "")
_WORDS = "|".join(sorted(map(re.escape, _FORMAL), key=len, reverse=True))
_INFORMAL = re.compile(rf"(?<![\w/'-])(?:{_WORDS})(?![\w/'-])", re.IGNORECASE)

_HEADER = re.compile(
    r"(?:^|(?<=[.!?]\s))(?:BACKGROUND|INTRODUCTION|OBJECTIVES?|AIMS?|PURPOSE|METHODS?|DESIGN|SETTING"
    r"|RESULTS?|FINDINGS|INTERPRETATION|CONCLUSIONS?|DISCUSSION|IMPORTANCE)\b[^.:]{0,30}:\s*",
    re.IGNORECASE,
)
_SELF = re.compile(
    r"(?:in th(?:is|e present) (?:study|paper|article|review|work|report),?\s*)?"
    r"(?:here,?\s*)?"
    r"(?:(?:we|our (?:study|results|data|findings)|this (?:study|paper|article|review|report)"
    r"|the (?:study|results|findings)|results)\s+(?:also |further )?(?:show|report|find|found"
    r"|demonstrate|suggest|indicate|reveal|conclude)(?:s|ed)?\s+that\s+)?",
    re.IGNORECASE,
)
_FILLER = [
    (re.compile(filler, re.IGNORECASE), replacement)
    for filler, replacement in (
        ("it is important to note that ", ""),
        ("it should be noted that ", ""),
        ("in order to ", "to "),
        ("due to the fact that ", "because "),
        ("a large number of ", "many "),
        ("with respect to ", "regarding "),
        ("as well as ", "and "),
    )
]
_FINDING = re.compile(
    r"\b(?:found|find|show|showed|shown|suggest|indicate|reveal|conclu|associated|increas|decreas"
    r"|reduc|higher|lower|signific|demonstrat|results?)",
    re.IGNORECASE,
)
_METHOD = re.compile(
    r"\b(?:trial|cohort|survey|sample|patients|participants|randomi[sz]ed|model(?:l?ed)?|analy[sz]ed"
    r"|sequenc|retrospective|prospective|cross-sectional)",
    re.IGNORECASE,
)
# Sentences that pad an abstract without adding information.
_FRAMES = (
    "The question has been raised in public discussion, where it was stated without further "
    "detail.",
    "The statement is considered here as it was made, and nothing is added to what it says.",
    "The terms that it uses are kept, since they identify the subject of the underlying work.",
    "Where a method is named it is the one that the statement names; none is assumed otherwise.",
    "Quantities are those of the statement, and no further estimate is derived from them.",
    "Its scope is limited to the population, the place and the time that the statement mentions.",
    "The finding is significant to the extent that the statement itself claims.",
    "Further evidence would have to be sought in the scientific literature on this subject.",
    "Neither agreement nor disagreement with the statement is expressed here.",
)


def formal(text: str, title: str | None = None) -> str:
    """Write a post plainly (C1): no addresses, emojis, hash signs, quotes or line breaks."""

    def tag_words(tag: re.Match[str]) -> str:
        if tag[1] == "user":
            return ""
        return _CAMEL.sub(" ", tag[1])

    text = LINK.sub(" ", text)
    text = EMOJI.sub(" ", text)
    text = _TAG.sub(tag_words, text)
    text = _QUOTES.sub("", text)
    text = re.sub(r"([!?.])[!?.]+", r"\1", text)
    text = _closed_up(text)
    return _sentence(text.strip(" ,;:-–—|"))


def claim(text: str, title: str | None = None) -> str:
    """Write a post as a scientific claim (C2): formal words, statements."""
    text = formal(text).rstrip(".")
    text = _OPENING.sub("", text, count=1)
    text = _ENDING.sub("", text)
    text = _INFORMAL.sub(lambda word: _FORMAL[word[0].lower()], text)
    text = _closed_up(text).strip(" ,;:-–—")
    statement = text.replace("!", ".").replace("?", ".")
    return _sentence(statement) or formal(text)


def abstract(text: str, title: str | None = None) -> str:
    """Write a post as an abstract of about 150 words (C3): the claim, and padding.

    The claim occurs twice, because an abstract repeats its finding.
    """
    text_of_claim = claim(text)
    words = text_of_claim.split()
    if len(words) > ABSTRACT:
        return " ".join(words[:ABSTRACT])
    parts = [f"This work addresses the following statement. {text_of_claim}"]
    if 2 * len(words) < ABSTRACT:
        parts.append(f"In summary, the statement holds that {_lowered(text_of_claim)}")
    for frame in _FRAMES:
        longer = " ".join([*parts, frame])
        if len(longer.split()) > ABSTRACT:
            break
        parts.insert(-1 if len(parts) > 1 else 1, frame)
    return " ".join(parts)


def question(text: str, title: str | None = None) -> str:
    """Write a post as one scientific question (C4)."""
    joined = re.sub(r"[.?!]+\s+", "; ", claim(text))
    statement = _lowered(joined.rstrip(".?! ")).replace("?", "")
    return f"Which scientific evidence exists that {statement}?"


# Two further styles begin with it.
@lru_cache(maxsize=2**14)
def plain_abstract(text: str, title: str | None = None) -> str:
    """Write an abstract plainly (S1): no headers, filler or references to the paper itself."""
    text = _HEADER.sub("", " ".join(text.split()))
    sentences = [_SELF.sub("", sentence, count=1) for sentence in _SENTENCES.split(text)]
    for filler, replacement in _FILLER:
        sentences = [filler.sub(replacement, sentence) for sentence in sentences]
    capitalised = [_capital(sentence) for sentence in sentences if sentence]
    return _sentence(" ".join(capitalised))


def summary(text: str, title: str | None = None) -> str:
    """Summarise an abstract (S2): its three sentences with most findings, methods and numbers."""
    return " ".join(_best(plain_abstract(text), 3))


def tweet(text: str, title: str | None = None) -> str:
    """Write an abstract as a post of at most 280 characters (S3): a finding and two hashtags."""
    sentence = " ".join(_best(plain_abstract(text), 1))
    words = dict.fromkeys(_WORD.findall((title or text).lower()))
    tags: list[str] = []
    for word in sorted(words, key=len, reverse=True)[:2]:
        tag = "#" + word.replace("-", "")
        tags.append(tag[:40])
    ending = " ".join(tags)
    room = TWEET - len(ending) - 1
    if len(sentence) > room:
        beginning, *_ = sentence[: room - 1].rsplit(" ", 1)
        sentence = beginning.rstrip(" ,;:(") + "…"
    return f"{sentence} {ending}".strip()


def _best(text: str, limit: int) -> list[str]:
    sentences, numbers = _by_worth(text)
    return [sentences[number] for number in sorted(numbers[:limit])]


@lru_cache(maxsize=2**14)
def _by_worth(text: str) -> tuple[list[str], list[int]]:
    sentences = _SENTENCES.split(text)

    def worth(number: int) -> tuple[int, int]:
        sentence = sentences[number]
        points = 2 * bool(_FINDING.search(sentence)) + 2 * bool(_DIGIT.search(sentence))
        points += bool(_METHOD.search(sentence)) + (number == len(sentences) - 1) - (number == 0)
        return points, number

    return sentences, sorted(range(len(sentences)), key=worth, reverse=True)


def _closed_up(text: str) -> str:
    """Collapse spaces, and remove those before punctuation."""
    return re.sub(r"\s+([,;.!?])", r"\1", " ".join(text.split()))


def _sentence(text: str) -> str:
    text = _capital(text.strip())
    if not text or text[-1] in ".!?…":
        return text
    return f"{text}."


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _lowered(text: str) -> str:
    """Lower a sentence's first letter, unless it begins an acronym or a name."""
    first = text.split(" ", 1)[0]
    if any(map(str.isupper, first[1:])):
        return text
    return text[:1].lower() + text[1:]
