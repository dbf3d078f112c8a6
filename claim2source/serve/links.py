"""Make the URLs of answers and pages."""

from __future__ import annotations

from urllib.parse import urlencode

from claim2source.serve.schemas import Question
from claim2source.serve.words import PARAMETER, Visit

# Parameters of an answer's URL: the post and the filters.
FIELDS = ("post", "lang", "date", "k", "venue", "paper_lang", "fetch")
# Most characters of a URL: mail programs break longer ones.
LONGEST = 8_000


def answer_link(question: Question) -> str:
    """Return the URL of an answer, which a colleague can open; "" if it is too long."""
    values: dict[str, object] = question.model_dump(include=set(FIELDS), exclude_defaults=True)
    if question.fetch:
        values["fetch"] = "true"
    values["post"] = question.post.encode("utf-8", "replace").decode("utf-8")
    link = f"/?{urlencode(values)}"
    return link if len(link) <= LONGEST else ""


def language_link(visit: Visit, lang: str) -> str:
    """Return the URL of a page in another language, with the post and filters."""
    query: dict[str, str] = {}
    for name in FIELDS:
        value = visit.query.get(name, [""])[0]
        if value.strip():
            query[name] = value
    return f"{visit.path}?{urlencode({**query, PARAMETER: lang})}"
