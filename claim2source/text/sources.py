"""Source text: title and abstract, or with labelled metadata (2026 paper, section 3.1)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, get_args

from claim2source.core.errors import ConfigError
from claim2source.core.records import Source
from claim2source.datasets.authors import AFFILIATION, in_reading_order

SourceForm = Literal["title_abstract", "metadata", "metadata_paper_order"]

_MARKS = re.compile(r"^[\d⁰¹²³⁴-⁹*†‡§¶#\s]+|[\d⁰¹²³⁴-⁹*†‡§¶#\s]+$")
_ENDS_SENTENCE = (".", "!", "?")


def clean_authors(authors: Sequence[str], keep: int = 3) -> tuple[str, ...]:
    """First and last `keep` authors, once each, without affiliation debris.

    In a list of "Surname, Given" names are turned; else what follows the first comma of an entry
    is dropped. An entry that is an affiliation itself ("& Tongji Hospital") is dropped whole, as
    are footnote marks and e-mail addresses.
    """
    names: list[str] = []
    for entry in in_reading_order(authors):
        name = " ".join(_MARKS.sub("", entry.split(",")[0]).split())
        if name and not name.startswith("&") and "@" not in name and not AFFILIATION.search(name):
            names.append(name)
    # Before choosing: a repeated name must not take another author's place.
    names = list(dict.fromkeys(names))
    return tuple(names if len(names) <= 2 * keep else names[:keep] + names[-keep:])


def render_source(source: Source, form: SourceForm = "metadata") -> str:
    """Text of a source; empty fields leave no label behind.

    `title_abstract`: "title. abstract". `metadata` (ours): Title, Venue, Authors, Abstract,
    since truncation eats the tail and an abstract can best spare it. `metadata_paper_order`:
    Title, Abstract, Authors, Venue as the paper lists the fields.
    """
    if form not in get_args(SourceForm):
        raise ConfigError("sources", form, ", ".join(get_args(SourceForm)))
    title, abstract = source.title.strip(), source.abstract.strip()
    if form == "title_abstract":
        if title and abstract:
            return title + (" " if title.endswith(_ENDS_SENTENCE) else ". ") + abstract
        return title or abstract
    authors = ", ".join(clean_authors(source.authors))
    fields = {
        "Title": title,
        "Abstract": abstract,
        "Authors": authors,
        "Venue": source.venue.strip(),
    }
    order = (
        ("Title", "Venue", "Authors", "Abstract")
        if form == "metadata"
        else ("Title", "Abstract", "Authors", "Venue")
    )
    return "\n".join(f"{label}: {fields[label]}" for label in order if fields[label])
