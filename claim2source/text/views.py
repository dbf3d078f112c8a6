"""Render records as text: claim forms, source forms and rewritings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from claim2source.core.config import Settings, require_one_of
from claim2source.core.errors import Problems
from claim2source.core.records import Claim, Source
from claim2source.data.authors import AFFILIATION, in_reading_order
from claim2source.data.jsonl import JsonLines

ClaimForm = Literal["original", "translated", "bilingual", "paired"]
SourceForm = Literal[
    "title_abstract",
    "metadata",
    "metadata_paper_order",
    "released",
    "released_unlabelled",
    "title",
    "organisers",
]
_CLAIM_FORMS = get_args(ClaimForm)
_SOURCE_FORMS = get_args(SourceForm)
# The paper's forms; `paired` is only in its released code.
FORMS: tuple[ClaimForm, ...] = ("original", "translated", "bilingual")

_MARKS = re.compile(r"^[\d⁰¹²³⁴-⁹*†‡§¶#\s]+|[\d⁰¹²³⁴-⁹*†‡§¶#\s]+$")


@dataclass(frozen=True)
class Rendering(Settings):
    """Choose the representation of claims and sources; part of a checkpoint's manifest.

    Args:
        claims: original, translated (English translation), bilingual (both), or paired (both,
            and English twice, as in the 2026 paper's code).
        sources: title_abstract, title, metadata (ours: metadata before the abstract) or
            metadata_paper_order; released and released_unlabelled are from the 2026 paper's code,
            the latter for its style transfer; organisers is the form of the organisers' 2026
            baseline: title, venue, abstract and authors.
    """

    claims: ClaimForm = "original"
    sources: SourceForm = "metadata"

    def claim_texts(self, claims: Iterable[Claim]) -> list[str]:
        return [render_claim(claim, self.claims) for claim in claims]

    def source_texts(self, sources: Iterable[Source]) -> list[str]:
        return [render_source(source, self.sources) for source in sources]


class ClaimPart(NamedTuple):
    """Part of a rendered claim in one language."""

    text: str
    language: str


def render_claim(claim: Claim, form: ClaimForm = "original") -> str:
    """Render a claim: as posted, as its English translation, or both on two lines.

    English claims are the same in all forms except `paired`, which has their text on both lines; a
    claim without a translation is rendered as posted (`missing_translations` lists those).
    """
    return "\n".join(part.text for part in claim_parts(claim, form))


def claim_parts(claim: Claim, form: ClaimForm = "original") -> tuple[ClaimPart, ...]:
    """Return the parts of a rendered claim, for analysers that need their languages.

    The rendered text cannot be split into its parts, because posts may have line breaks.
    """
    posted = ClaimPart(claim.text, claim.lang)
    if form == "original":
        return (posted,)
    require_one_of("claims", form, _CLAIM_FORMS)
    if not _has_forms(claim):
        if form == "paired":
            return (posted, posted)
        return (posted,)
    english = ClaimPart(str(claim.translation), "en")
    if form == "translated":
        return (english,)
    return (posted, english)


def _has_forms(claim: Claim) -> bool:
    return claim.lang != "en" and bool(claim.translation)


def missing_translations(claims: Iterable[Claim], form: ClaimForm) -> list[str]:
    """List the ids of claims without a translation, if `form` needs one."""
    if form == "original":
        return []
    found: list[str] = []
    for claim in claims:
        if claim.lang != "en" and not claim.translation:
            found.append(claim.id)
    return found


def untranslated_sentences(claims: Sequence[Claim], form: ClaimForm) -> list[str]:
    """Report the claims without the translation that `form` needs; no sentence if all have one."""
    missing = len(missing_translations(claims, form))
    if missing == 0:
        return []
    return [f"{missing} of {len(claims)} claims have no translation and are used as posted"]


def same_forms_reason(claims: Iterable[Claim]) -> str | None:
    """Return the reason if all forms except `paired` are equal for these claims, else None."""
    are_english = True
    for claim in claims:
        if _has_forms(claim):
            return None
        if claim.lang != "en":
            are_english = False
    return "all claims are English" if are_english else "no claim has a translation"


def distinct_forms(
    names: Sequence[str], claims: Iterable[Claim]
) -> tuple[list[ClaimForm], list[str]]:
    """List the claim forms that differ here, with a note on the dropped ones."""
    forms = [form for form in _CLAIM_FORMS if form in names]
    reason = same_forms_reason(claims)
    if reason is None:
        return forms, []
    distinct: list[ClaimForm] = []
    if forms != ["paired"]:
        distinct.append("original")
    if "paired" in forms:
        distinct.append("paired")
    dropped = [form for form in forms if form in FORMS[1:]]
    if not dropped:
        return distinct, []
    return distinct, [f"{' and '.join(dropped)}: the same as original here, since {reason}."]


def render_source(source: Source, form: SourceForm = "metadata") -> str:
    """Render a source; empty fields have no label.

    `title_abstract`: "title. abstract". `title`: only the title. `metadata` (ours): Title, Venue,
    Authors, Abstract, because truncation cuts the end, and an abstract suffers least.
    `metadata_paper_order`: Title, Abstract, Authors, Venue, in the paper's order. `released`, from
    the paper's code: "title abstract Venue: .. Authors: .." on one line, with labels even for empty
    fields. `released_unlabelled`, from its style transfer: the same without labels. `organisers`,
    from their 2026 baseline: "title. venue. abstract. authors", with all authors.
    """
    require_one_of("sources", form, _SOURCE_FORMS)
    if form == "released" or form == "released_unlabelled":
        return _released_text(source, has_labels=form == "released")
    title = source.title.strip()
    if form == "title":
        return title
    abstract = source.abstract.strip()
    if form == "title_abstract":
        return _title_and_abstract(title, abstract)
    venue = source.venue.strip()
    if form == "organisers":
        texts = (title, venue, abstract, ", ".join(source.authors))
        return ". ".join(filter(None, texts))
    authors = ", ".join(clean_authors(source.authors))
    if form == "metadata":
        fields = {"Title": title, "Venue": venue, "Authors": authors, "Abstract": abstract}
    else:
        fields = {"Title": title, "Abstract": abstract, "Authors": authors, "Venue": venue}
    return "\n".join(f"{label}: {text}" for label, text in fields.items() if text)


def _released_text(source: Source, *, has_labels: bool) -> str:
    authors = ", ".join(_released_authors(source.authors))
    if has_labels:
        return f"{source.title} {source.abstract} Venue: {source.venue} Authors: {authors}"
    return f"{source.title} {source.abstract} {source.venue} {authors}".strip()


def _title_and_abstract(title: str, abstract: str) -> str:
    if not abstract:
        return title
    if not title:
        return abstract
    stop = "."
    if title.endswith((".", "!", "?")):
        stop = ""
    return f"{title}{stop} {abstract}"


def clean_authors(authors: Sequence[str], keep: int = 3) -> tuple[str, ...]:
    """Keep the first and last `keep` distinct authors, without remains of affiliations.

    Names in a list of "Surname, Given" are turned; otherwise the text after an entry's first comma
    is dropped. Affiliations ("& Tongji Hospital"), footnote marks and e-mail addresses are dropped.
    """
    if not authors:
        return ()
    # Duplicates are removed first, so that they do not replace another author.
    distinct: dict[str, None] = {}
    for entry in in_reading_order(authors):
        before_comma, _, _ = entry.partition(",")
        unmarked = _MARKS.sub("", before_comma)
        name = " ".join(unmarked.split())
        if _is_author(name):
            distinct[name] = None
    names = tuple(distinct)
    if len(names) <= 2 * keep:
        return names
    return names[:keep] + names[-keep:]


def _is_author(name: str) -> bool:
    """Whether a name belongs to a person, unlike an affiliation or an e-mail address."""
    if not name or name.startswith("&") or "@" in name:
        return False
    return not AFFILIATION.search(name)


def _released_authors(authors: Sequence[str], keep: int = 3) -> list[str]:
    """Keep the first and last `keep` authors like the 2026 paper's code, including affiliations.

    The text after an entry's first comma is dropped, and so are last authors among the first ones.
    """
    names: list[str] = []
    for entry in authors:
        before_comma, _, _ = entry.partition(",")
        name = before_comma.strip()
        if name:
            names.append(name)
    if len(names) <= 2 * keep:
        return names
    first = names[:keep]
    last = [name for name in names[-keep:] if name not in first]
    return first + last


def read_rewrites(path: Path) -> dict[str, str]:
    """Read claim id -> rewritten text, from lines {"_id": .., "text": ..}.

    Claims of other splits are allowed. Raises `InputError`, with a line per problem.
    """
    problems = Problems()
    texts: dict[str, str] = {}
    for row in JsonLines(path, problems).rows():
        text = row.text("text").strip()
        if text:
            texts[row.key] = text
    problems.raise_if_any()
    return texts


def with_claim_texts(
    claims: Iterable[Claim],
    texts: Mapping[str, str],
    form: ClaimForm,
    *,
    append: bool = False,
) -> tuple[Claim, ...]:
    """Replace the text of claims that `form` uses by other texts, or append these to it.

    An appended text is on a separate line. A claim without another text is unchanged.
    """

    def with_text(claim: Claim) -> Claim:
        if claim.id not in texts:
            return claim
        # The other forms end with the translation, so the text is appended there, once.
        is_posted = claim_parts(claim, form)[-1].language == claim.lang
        before = claim.text if is_posted else claim.translation
        text = f"{before}\n{texts[claim.id]}" if append else texts[claim.id]
        if is_posted:
            return replace(claim, text=text)
        return replace(claim, translation=text)

    return tuple(map(with_text, claims))


def with_source_texts(
    sources: Iterable[Source],
    texts: Mapping[str, str],
    *,
    keep_title: bool = True,
) -> tuple[Source, ...]:
    """Replace the abstracts of sources by other texts; keep or remove the title."""
    replaced: list[Source] = []
    for source in sources:
        if source.id in texts:
            title = source.title if keep_title else ""
            source = replace(source, title=title, abstract=texts[source.id])
        replaced.append(source)
    return tuple(replaced)
