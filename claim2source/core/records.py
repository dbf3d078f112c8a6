"""Define records of claims, sources, relevance judgements and data sets."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Union

from claim2source.core.files import content_hash
from claim2source.core.languages import is_in_language, language_tag, primary_language
from claim2source.core.terminal import one_line

if TYPE_CHECKING:
    import datasets
    import pandas

Table = Union["pandas.DataFrame", "datasets.Dataset", Sequence[Mapping[str, object]], Sequence[str]]
# The wording of the error about any other argument.
DATASET_WANTED = "a Dataset, such as load(..) returns"
_WORDS = re.compile(r"\w+").findall
# Signs that NFKC would turn into letters of the word before them.
_SIGNS = str.maketrans("\u2122\u2120", "  ")


def nfkc(text: str) -> str:
    """Normalise accents, ligatures, subscripts, full-width letters (NFKC); blank trademark signs.

    ASCII is unchanged.

    Example:
        >>> nfkc("CO\u2082, \ufb01brosis and Vaxil\u2122")
        'CO2, fibrosis and Vaxil '
    """
    if text.isascii():
        return text
    return unicodedata.normalize("NFKC", text.translate(_SIGNS))


@dataclass(frozen=True, slots=True)
class Claim:
    """Post that refers to a paper without naming it.

    `lang` is its language's primary subtag (ISO 639-1: de for de-AT, DE and ger), `tag` the
    language as spelled in the data, `translation` its English translation, `golds` the ids of its
    sources (empty if unknown), `candidates` the ids that may be ranked (None: the entire pool),
    and `excluded` ids that are never ranked for it, such as the claim's own.

    Example:
        >>> import claim2source as c2s
        >>> c2s.Claim("1", "masks cut outbreaks 3.7x").lang, c2s.Claim("2", "ja", "de-AT").lang
        ('en', 'de')
    """

    id: str
    text: str
    lang: str = "en"
    translation: str | None = None
    golds: tuple[str, ...] = ()
    candidates: tuple[str, ...] | None = None
    excluded: tuple[str, ...] = ()
    tag: str = ""

    def __post_init__(self) -> None:
        lang = primary_language(self.lang)
        tag = language_tag(self.tag)
        if not tag or primary_language(tag) != lang:
            tag = language_tag(self.lang)
        object.__setattr__(self, "lang", lang)
        object.__setattr__(self, "tag", tag)

    def __repr__(self) -> str:
        names = ("id", "text", "lang", "translation", "golds", "candidates", "excluded")
        return one_line(self, **{name: getattr(self, name) for name in names})


# An integer in canonical form: "007" and "+7" are not.
_CANONICAL_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,4299}")


def is_integer_text(text: str) -> bool:
    """Whether a text is an integer in the form that Python prints, in ASCII digits."""
    return _CANONICAL_INTEGER.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class Source:
    """Document that a claim may refer to: a paper, an article, a post by an authority.

    Example:
        >>> import claim2source as c2s
        >>> papers = [c2s.Source("p1", "Masks and outbreaks", "Masks cut outbreaks.")]
        >>> c2s.BM25().index(papers).search("do masks work?").sources("0")
        ['p1']
    """

    id: str
    title: str = ""
    abstract: str = ""
    authors: tuple[str, ...] = ()
    venue: str = ""
    date: str = ""

    def __repr__(self) -> str:
        names = ("id", "title", "abstract", "authors", "venue", "date")
        return one_line(self, **{name: getattr(self, name) for name in names})


@dataclass(frozen=True)
class Qrels:
    """Relevance judgements: claim id -> source id -> grade (above 0 is relevant).

    Example:
        >>> import claim2source as c2s
        >>> c2s.Qrels({"q1": {"p1": 1, "p2": 0}}).golds("q1")
        ('p1',)
    """

    grades: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def __repr__(self) -> str:
        judgements = sum(map(len, self.grades.values()))
        return one_line(self, claims=len(self.grades), judgements=judgements)

    def golds(self, claim_id: str) -> tuple[str, ...]:
        """List the relevant sources of a claim, in file order."""
        return self._golds.get(claim_id, ())

    @cached_property
    def _golds(self) -> dict[str, tuple[str, ...]]:
        golds: dict[str, tuple[str, ...]] = {}
        for claim, graded in self.grades.items():
            golds[claim] = tuple(source for source, grade in graded.items() if grade > 0)
        return golds

    def restricted(self, claim_ids: Iterable[str]) -> Qrels:
        kept: dict[str, Mapping[str, int]] = {}
        for claim in claim_ids:
            if claim in self.grades:
                kept[claim] = self.grades[claim]
        return Qrels(kept)

    @property
    def claim_ids(self) -> tuple[str, ...]:
        """Ids of the judged claims, in file order."""
        return tuple(self.grades)

    def __len__(self) -> int:
        return len(self.grades)


@dataclass(frozen=True)
class Dataset:
    """Claims, sources and judgements of one split.

    `notes` list what a lenient loader skipped or changed. `numeric_ids` are the sources whose id
    was a number, not a text, in the original files (None if unknown): a submission to the lab
    writes it as a number again. Rankings do not depend on it.

    Example:
        >>> import claim2source as c2s
        >>> papers = [{"id": "p1", "title": "Masks and outbreaks"}, {"id": "p2", "title": "Tea"}]
        >>> posts = [{"id": "q1", "tweet": "masks work!"}]
        >>> pairs = [{"claim": "q1", "source": "p1"}]
        >>> c2s.Dataset.from_frames(papers, posts, pairs, columns={"tweet": "text"}).golds
        frozenset({'p1'})
    """

    claims: tuple[Claim, ...]
    sources: tuple[Source, ...]
    qrels: Qrels
    split: str
    name: str = ""
    notes: tuple[str, ...] = field(default=(), compare=False)
    numeric_ids: frozenset[str] | None = field(default=None, compare=False)

    def __repr__(self) -> str:
        return one_line(
            self,
            name=self.name,
            split=self.split,
            claims=len(self.claims),
            languages=self.languages,
            sources=len(self.sources),
        )

    @classmethod
    def from_frames(
        cls,
        papers: Table,
        posts: Table,
        pairs: Table | None = None,
        *,
        split: str = "test",
        columns: Mapping[str, str] | None = None,
        lenient: bool = False,
    ) -> Dataset:
        """Make a data set from tables, as `load(papers=.., posts=.., pairs=..)` does."""
        from claim2source import load

        return load(
            split=split,
            papers=papers,
            posts=posts,
            pairs=pairs,
            columns=columns,
            lenient=lenient,
        )

    @property
    def languages(self) -> tuple[str, ...]:
        """Languages of the claims: English, German, French first, then by name."""
        return sorted_languages(claim.lang for claim in self.claims)

    @property
    def golds(self) -> frozenset[str]:
        """All sources that are gold for a claim of this split."""
        return frozenset(gold for claim in self.claims for gold in claim.golds)

    def with_claims(self, claims: Iterable[Claim], split: str | None = None) -> Dataset:
        """Return a copy with the same pool, but only these claims and their judgements."""
        selected = tuple(claims)
        qrels = self.qrels.restricted(claim.id for claim in selected)
        return replace(self, claims=selected, qrels=qrels, split=split or self.split)

    def in_languages(self, languages: Iterable[str]) -> Dataset:
        """Keep the claims in these languages: `de` keeps all German ones, `de-AT` only its own."""
        wanted = [languages] if isinstance(languages, str) else list(languages)
        kept: list[Claim] = []
        for claim in self.claims:
            if any(is_in_language(claim.tag, language) for language in wanted):
                kept.append(claim)
        return self.with_claims(kept)

    @cached_property
    def twins(self) -> Mapping[str, str]:
        """Map sources to the first one with the same title and abstract, if there are several.

        Case, punctuation and Unicode form are ignored.
        """
        first: dict[str, str] = {}
        first_of: dict[str, str] = {}
        for source in self.sources:
            text = nfkc(f"{source.title}\n{source.abstract}").casefold()
            words = " ".join(_WORDS(text))
            if not words:
                continue
            twin = first.setdefault(words, source.id)
            if twin != source.id:
                first_of[twin] = twin
                first_of[source.id] = twin
        return first_of

    @cached_property
    def fingerprint(self) -> str:
        """Hash of all claims, sources and judgements: the data hash of a manifest."""
        claims = [asdict(claim) for claim in self.claims]
        for claim in claims:
            del claim["excluded"]  # implied by the ids
            claim["lang"] = claim.pop("tag")
        sources = [asdict(source) for source in self.sources]
        qrels = {claim: dict(grades) for claim, grades in self.qrels.grades.items()}
        return content_hash({"claims": claims, "sources": sources, "qrels": qrels})


def sorted_languages(languages: Iterable[str]) -> tuple[str, ...]:
    """Sort distinct languages as every table does: en, de, fr, then the others."""
    rest = set(languages)
    ordered: list[str] = []
    for language in ("en", "de", "fr"):
        if language in rest:
            ordered.append(language)
            rest.remove(language)
    return (*ordered, *sorted(rest))
