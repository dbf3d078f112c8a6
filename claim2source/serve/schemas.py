"""Define the API's input and output; the names are those of `claim2source find`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    WithJsonSchema,
)
from pydantic import GetJsonSchemaHandler as JsonHandler
from pydantic_core import CoreSchema
from pydantic_core.core_schema import no_info_before_validator_function

from claim2source.core.languages import primary_language
from claim2source.data.posts import Post
from claim2source.find.answers import headline, json_rows, next_step, notes
from claim2source.find.finder import Answer, Verdict
from claim2source.search.rows import Where
from claim2source.serve.words import Words
from claim2source.text.language import CODES

AUTO = "auto"
# A post whose paper is in the demo.
EXAMPLE = "new study: masks cut outbreaks 3.7x in primary schools"
# Most characters of a post, posts of a batch, papers of an answer.
CHARACTERS = 20_000
POSTS = 32
PAPERS = 100
# White space as Python strips it is not a text; only ASCII digits.
_TEXT = r"[^\s\x1c-\x1f]"
_TIME = r"[Tt ]([01][0-9]|2[0-3])(:?[0-5][0-9](:?([0-5][0-9]|60)([.,][0-9]+)?)?)?"
_TIME += r"([Zz]|[+-]([01][0-9]|2[0-3])(:?[0-5][0-9])?)?"
_MONTH = "(0[1-9]|1[0-2])"
_DATE = "(0[1-9]|[12][0-9]|3[01])"
_DAY = rf"^[1-9][0-9]{{3}}(-{_MONTH}(-{_DATE}({_TIME})?)?|{_MONTH}{_DATE}({_TIME})?)?$"
_NOTHING = r"^[ \t\r\n]*$"


@dataclass(frozen=True)
class Optional:
    """Treat null and "" in a field as its default, also in the schema."""

    default: Any = None

    def value_or_default(self, value: object) -> object:
        """Return a value, or the default if it is blank."""
        is_blank = isinstance(value, str) and not value.strip(" \t\r\n")
        if value is None or is_blank:
            return self.default
        return value

    def __get_pydantic_core_schema__(self, kind: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Check the value before its type is checked."""
        return no_info_before_validator_function(self.value_or_default, handler(kind))

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: JsonHandler) -> Any:
        """Add null and empty text to the type's schema."""
        schema = handler(core)
        about = {}
        for name in ("description", "examples"):
            if name in schema:
                about[name] = schema.pop(name)
        null = {"type": "null"}
        kinds = []
        for kind in schema.get("anyOf", [schema]):
            if kind != null:
                kinds.append(kind)
        kinds += [{"type": "string", "pattern": _NOTHING}, null]
        return {"anyOf": kinds, **about}


def iso_day(value: object) -> object:
    """Reduce an ISO time to its day; return any other value unchanged."""
    if not isinstance(value, str) or len(value) <= len("2020-05"):
        return value
    if not re.fullmatch(_DAY.strip("^$"), value):
        return value
    if value[4] == "-":
        return value[:10]
    return f"{value[:4]}-{value[4:6]}-{value[6:8]}"


Text = Annotated[
    str,
    Field(
        min_length=1,
        max_length=CHARACTERS,
        pattern=_TEXT,
        description="the post's text, or with `fetch` its URL",
    ),
]
Fetch = Annotated[
    bool,
    Field(
        strict=True,
        description="fetch the post from its URL on Bluesky or Mastodon, by their public APIs",
    ),
    Optional(False),
]


def language(value: str) -> str:
    """Check that a post's language is valid. Raises ValueError."""
    code = primary_language(value)
    if code not in (AUTO, *CODES):
        raise ValueError(f"must be {AUTO}, or an ISO 639-1 code such as de")
    return code


_CODES = sorted(CODES)
Lang = Annotated[
    str,
    AfterValidator(language),
    # Pattern of the text; null and "" are also allowed.
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "enum": [AUTO, *_CODES]},
                {"type": "string", "pattern": f"^({'|'.join(_CODES)})(-[A-Za-z0-9]{{1,8}})+$"},
            ]
        }
    ),
    Field(
        description="the post's language, ISO 639-1, such as de; auto detects it",
        examples=[AUTO],
    ),
    Optional(AUTO),
]
Date = Annotated[
    str | None,
    Field(
        pattern=_DAY,
        description="day of the post, such as 2021-05-04, 2021-05, 2021 or "
        "2021-05-04T10:00:00Z; papers that were published later are left out",
        examples=["2021-05-04"],
    ),
    BeforeValidator(iso_day),
    Optional(),
]
DEFAULT_PAPERS = 10


def count(value: object) -> int:
    """Refuse values that pydantic would convert to an integer: true and "3". Raises ValueError."""
    if isinstance(value, float) and value.is_integer():
        return int(value)  # in JSON Schema 5.0 is an integer
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError("must be a whole number")
    return value


Papers = Annotated[
    int,
    Field(ge=1, le=PAPERS, description="number of papers"),
    BeforeValidator(count),
    Optional(DEFAULT_PAPERS),
]
Venue = Annotated[
    str | None,
    Field(min_length=1, max_length=1_000, description="only papers of this venue"),
    Optional(),
]
PaperLang = Annotated[
    str | None,
    Field(
        pattern="^[A-Za-z]{2,3}([-_][A-Za-z0-9]{1,8})*$",
        description="only papers in this language, such as de",
    ),
    Optional(),
]
Translation = Annotated[
    str,
    Field(max_length=CHARACTERS, description="an English translation of the post, if any"),
    Optional(""),
]
Id = Annotated[str, Field(max_length=1_000, description="returned with the answer"), Optional("")]


class Strict(BaseModel):
    """Model that refuses unknown keys."""

    model_config = ConfigDict(extra="forbid")


class Question(Strict):
    """Request for the papers that a post may mean."""

    post: Text
    lang: Lang = AUTO
    date: Date = None
    translation: Translation = ""
    k: Papers = DEFAULT_PAPERS
    venue: Venue = None
    paper_lang: PaperLang = None
    fetch: Fetch = False

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"post": EXAMPLE}]})

    def as_post(self) -> Post:
        return Post("0", self.post, "" if self.lang == AUTO else self.lang, "", self.translation)

    @property
    def where(self) -> Where:
        return Where(self.date, self.paper_lang, self.venue)


class PostIn(Strict):
    """One of several posts."""

    text: Text
    id: Id = ""
    lang: Lang = AUTO
    date: Date = None
    translation: Translation = ""
    fetch: Fetch = False

    def as_post(self) -> Post:
        lang = "" if self.lang == AUTO else self.lang
        return Post(self.id, self.text, lang, self.date or "", self.translation)


class Batch(Strict):
    """Request for the papers of several posts."""

    posts: Annotated[list[PostIn], Field(min_length=1, max_length=POSTS)]
    k: Papers = DEFAULT_PAPERS
    venue: Venue = None
    paper_lang: PaperLang = None

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"posts": [{"text": EXAMPLE}]}]},
    )

    @property
    def where(self) -> Where:
        return Where(None, self.paper_lang, self.venue)


Searched = Annotated[
    str, Field(description="translation used as the query; empty: the post itself")
]
Indexes = Annotated[
    list[str], Field(description="names of the searched indexes, if there are several")
]
Lost = Annotated[list[str], Field(description="names of indexes that could not be read")]
Untranslated = Annotated[
    bool, Field(description="the translator failed; the original post was the query")
]


class PaperFound(BaseModel):
    """Paper that a post may mean."""

    rank: int
    id: str
    title: str
    score: Annotated[
        float | None, Field(description="of the last stage; null if the answer was not judged")
    ]
    abstained: Annotated[
        bool | None, Field(description="whether it is probably none of these; null: not judged")
    ]
    present: Annotated[
        float | None,
        Field(description="probability that the paper is in the index; null: not judged"),
    ]
    authors: list[str]
    venue: str
    date: str
    doi: str
    link: str
    lang: str
    parts: Annotated[dict[str, float], Field(description="scores of every stage that ranks it")]
    sentence: Annotated[str, Field(description="finding of the abstract, nearest to the post")]
    post_sentence: Annotated[
        str, Field(description="of the post, nearest to it; empty if the post has only one")
    ]
    reasoning: Annotated[str, Field(description="a verifier's")]
    verdict: Annotated[Verdict, Field(description="whether the post's paper is among these")]
    retracted: Annotated[
        str,
        Field(description="retracted, withdrawn, expression of concern, corrected; empty: neither"),
    ]
    words: Annotated[
        dict[str, list[str]], Field(description="words of the post, and of the paper, that match")
    ]
    index: Annotated[
        dict[str, Any] | None,
        Field(description="version, model hash, settings, and name if there are several indexes"),
    ]
    searched: Searched
    untranslated: Untranslated


class AnswerOut(BaseModel):
    """Papers that a post may mean, best first, even if it is probably none of these."""

    post: Annotated[str, Field(description="id of the post")]
    lang: str
    abstained: bool | None
    present: float | None
    reasoning: str
    verdict: Verdict
    headline: Annotated[str, Field(description="the verdict in a sentence")]
    next: Annotated[str, Field(description="what to do next, in a sentence")]
    notes: Annotated[list[str], Field(description="how far to trust it, and reasons for less")]
    searched: Searched
    untranslated: Untranslated
    indexes: Indexes
    lost: Lost
    papers: list[PaperFound]

    @classmethod
    def of(cls, answer: Answer, words: Words) -> AnswerOut:
        """Make the API's answer; `headline`, `next` and `notes` are in a person's language."""
        papers: list[Any] = json_rows(answer)
        return cls(
            post=answer.post.id,
            lang=answer.lang,
            abstained=answer.abstained,
            present=answer.present,
            reasoning=answer.reasoning,
            verdict=answer.verdict,
            headline=words.message(headline(answer)),
            next=words.message(next_step(answer)),
            notes=[words.message(note) for note in notes(answer)],
            searched=answer.searched,
            untranslated=answer.untranslated,
            indexes=list(answer.indexes),
            lost=list(answer.lost),
            papers=papers,
        )


class AnswersOut(BaseModel):
    """Answers to the posts, in order."""

    answers: list[AnswerOut]


class Health(BaseModel):
    """Answer of a running server."""

    status: str
    version: str
    waiting: Annotated[int, Field(description="posts that wait or are searched")]
    places: Annotated[int, Field(description="maximal number of waiting or searched posts")]
    lost: Lost
    untranslated: Annotated[int, Field(description="posts so far that the translator failed for")]
    unencoded: Annotated[
        int, Field(description="posts so far ranked only by words: encoding of the papers failed")
    ]


class Problem(BaseModel):
    """Error response with its reason."""

    error: str
    field: Annotated[str | None, Field(description="the wrong part of the request")] = None


# Our messages by pydantic's error type or, for patterns, by the field.
_REASONS = {
    "date": "must be a day such as 2021-05-04, 2021-05 or 2021",
    "post": "must not be empty",
    "text": "must not be empty",
    "paper_lang": "must be a language's code such as en",
    "greater_than_equal": "must be {ge} or more",
    "less_than_equal": "must be {le} or less",
    "int_parsing": "must be a whole number",
    "int_type": "must be a whole number",
    "model_attributes_type": "must be a JSON object",
    "string_type": "must be text",
    "string_unicode": "must be text",
    "string_too_short": "must not be empty",
    "string_too_long": "must have at most {max_length} characters",
    "too_short": "must not be empty",
    "too_long": "must be at most {max_length}",
    "extra_forbidden": "is not known",
    "missing": "is missing",
}


def first_problem(errors: Sequence[Any]) -> tuple[str, str]:
    """Return the field of pydantic's first error, and the reason in plain words."""
    first = errors[0]
    path = [str(part) for part in first["loc"]]
    if path[:1] == ["body"] and len(path) > 1:
        path = path[1:]
    field = ".".join(path)
    kind = first["type"]
    if kind == "string_pattern_mismatch":
        kind = path[-1]
    if kind in _REASONS:
        return field, _REASONS[kind].format(**first.get("ctx", {}))
    return field, first["msg"].removeprefix("Value error, ")
