"""Find and merge records of the same paper, by DOI, by id, or by title, year and author."""

from __future__ import annotations

import re
import unicodedata
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, replace
from hashlib import blake2b, sha256

from claim2source.data.beir import text_length
from claim2source.data.dates import iso_date
from claim2source.data.doi import plain_doi
from claim2source.data.papers import Paper, without_markup
from claim2source.data.retractions import plain_title, worst

# Ids of registries, PubMed and OpenAlex, in their addresses.
_PMID = re.compile(r"(?:pubmed\.ncbi\.nlm\.nih\.gov|ncbi\.nlm\.nih\.gov/pubmed)/([0-9]+)")
_OPENALEX = re.compile(r"openalex\.org/(?:works/)?(W[0-9]+)", re.IGNORECASE)
# A title of so many words identifies a paper even if its year or author is not known.
_DISTINCT = 4
BY_DOI = "doi"
BY_NUMBER = "id of PubMed or OpenAlex"
BY_TITLE = "title"
BY_ID = "id"


@dataclass(frozen=True, slots=True)
class Identity:
    """Hashes that identify a paper, the same in every process; 0 or empty if unknown.

    `label` is its id in the library that it was read from, which other libraries do not share.
    """

    label: int
    doi: int = 0
    pmid: int = 0
    openalex: int = 0
    title: int = 0
    words: int = 0
    year: int = 0
    author: tuple[int, ...] = ()

    @classmethod
    def read(cls, paper: Paper) -> Identity:
        source = paper.source
        doi = plain_doi(paper.doi)
        pmid = _PMID.search(paper.url)
        openalex = _OPENALEX.search(paper.url)
        title = title_key(source.title)
        year = iso_date(source.date)[:4]
        first_author = author_words(source.authors[:1])
        return cls(
            label=_hash("id", source.id),
            doi=_hash("doi", doi),
            pmid=_hash("pmid", pmid[1] if pmid else ""),
            openalex=_hash("openalex", openalex[1].upper() if openalex else ""),
            title=_hash("title", title),
            words=len(source.title.split()),
            year=int(year or 0),
            author=tuple(_hash("author", word) for word in first_author),
        )

    @property
    def keys(self) -> list[int]:
        """List the keys that another record of the same paper may share."""
        keys = [self.doi, self.pmid, self.openalex]
        if self.words >= _DISTINCT:
            keys.append(self.title)
        elif self.title:  # "Editorial"
            with_year = f"{self.title} {self.year}"
            with_label = f"{self.title} {self.label}"
            keys.append(_hash("year", with_year))
            keys.append(_hash("label", with_label))
        return [key for key in keys if key]

    @property
    def all_keys(self) -> list[int]:
        """List the keys including that of its id, by which it is found in an index."""
        return [self.label, *self.keys]

    def common(self, other: Identity) -> str:
        """Return the evidence that two records are of one paper; "" if there is none."""
        registered = (
            (self.doi, other.doi, BY_DOI),
            (self.pmid, other.pmid, BY_NUMBER),
            (self.openalex, other.openalex, BY_NUMBER),
        )
        for own, others, reason in registered:
            if own and others:
                return reason if own == others else ""
        return BY_TITLE if self._shares_title(other) else ""

    def _shares_title(self, other: Identity) -> bool:
        """Whether two records have the same title, and do not differ in year or author."""
        if not self.title or self.title != other.title:
            return False
        if self.year and other.year and self.year != other.year:
            return False
        if self.author and other.author:
            own_words = set(self.author)
            if own_words.isdisjoint(other.author):
                return False
        known = (
            self.year,
            other.year,
            self.author,
            other.author,
        )
        if all(known):
            return True
        is_distinct = self.words >= _DISTINCT
        return is_distinct or self.label == other.label

    def is_other(self, other: Identity) -> bool:
        """Whether two records are certainly of different papers, whatever they share."""
        pairs = (
            (self.doi, other.doi),
            (self.pmid, other.pmid),
            (self.openalex, other.openalex),
        )
        return any(own and others and own != others for own, others in pairs)

    def with_unknown(self, other: Identity) -> Identity:
        """Fill unknown hashes from another record of the same paper."""
        return Identity(
            self.label,
            self.doi or other.doi,
            self.pmid or other.pmid,
            self.openalex or other.openalex,
            self.title or other.title,
            self.words or other.words,
            self.year or other.year,
            self.author or other.author,
        )


def _hash(kind: str, text: str) -> int:
    if not text:
        return 0
    content = f"{kind} {text}".encode(errors="surrogatepass")
    digest = blake2b(content, digest_size=8).digest()
    return int.from_bytes(digest, signed=True)


def title_key(title: str) -> str:
    """Normalise a title for comparison: no case, accents, signs, markup or state."""
    plain = plain_title(without_markup(title))
    text = plain.replace("&", " and ")
    if not text.isascii():
        text = unicodedata.normalize("NFKD", text)
    folded = text.casefold()
    return "".join(sign for sign in folded if sign.isalnum())


def author_words(names: tuple[str, ...]) -> list[str]:
    """List the words of names, without initials: "J. Doe" and "Doe, Jane" share one."""
    joined = " ".join(names)
    decomposed = unicodedata.normalize("NFKD", joined).casefold()
    text = "".join(sign for sign in decomposed if not unicodedata.combining(sign))
    words = re.split(r"[\W\d_]+", text)
    return [word for word in words if len(word) > 1]


def distinct_id(paper: Paper) -> str:
    """Make an id for a paper whose id belongs to another paper; the same one in every import."""
    source = paper.source
    known = plain_doi(paper.doi) or paper.url
    if not known:
        author = " ".join(author_words(source.authors[:1]))
        title = title_key(source.title or source.abstract)
        year = iso_date(source.date)[:4]
        known = f"{title} {year} {author}"
    digest = sha256(known.encode()).hexdigest()
    return f"{source.id}-{digest[:8]}"


def filled(paper: Paper, other: Paper) -> Paper:
    """Fill the gaps of a paper's record from another record of it."""
    own = paper.source
    others = other.source
    source = replace(
        own,
        title=own.title or others.title,
        abstract=own.abstract or others.abstract,
        authors=own.authors or others.authors,
        venue=own.venue or others.venue,
        date=own.date or others.date,
    )
    return replace(
        paper,
        source=source,
        doi=paper.doi or other.doi,
        url=paper.url or other.url,
        lang=paper.lang or other.lang,
        retracted=worst((paper.retracted, other.retracted)),
    )


def merged(first: Paper, second: Paper) -> Paper:
    """Merge two records of one paper: the fuller one, completed from the other one.

    The id is that of the first one.
    """
    fuller = first
    other = second
    first_length = text_length(first.source)
    second_length = text_length(second.source)
    if second_length > first_length:
        fuller = second
        other = first
    paper = filled(fuller, other)
    source = replace(paper.source, id=first.source.id)
    return replace(paper, source=source)


def is_alike(paper: Paper, other: Paper) -> bool:
    """Whether one text is a version of the other: most words of the shorter one are in both."""
    words = _words(paper)
    others = _words(other)
    if not words or not others:
        return True
    common = len(words & others)
    shorter = min(len(words), len(others))
    return 2 * common >= shorter


def _words(paper: Paper) -> set[str]:
    text = f"{paper.source.title} {paper.source.abstract}".casefold()
    words = re.findall(r"\w+", text)
    return set(words)


class Identities:
    """Number papers by their identities, to which each further record adds."""

    def __init__(self) -> None:
        self.known: list[Identity] = []
        self._numbers: dict[int, tuple[int, ...]] = {}
        self._labels: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self.known)

    def may_have(self, identity: Identity) -> bool:
        """Whether a paper shares a key with a record."""
        if identity.label in self._labels:
            return True
        return any(key in self._numbers for key in identity.keys)

    def labelled(self, label: int) -> int | None:
        """Return the number of the paper with this id."""
        return self._labels.get(label)

    def find(self, identity: Identity) -> Iterator[tuple[int, str]]:
        """Yield the papers to which a record may belong, with the evidence, most certain first."""
        seen: set[int] = set()
        for key in identity.keys:
            for number in self._numbers.get(key, ()):
                if number in seen:
                    continue
                reason = self.known[number].common(identity)
                seen.add(number)
                if reason:
                    yield number, reason

    def add(self, identity: Identity, labelled: bool = True) -> int:
        """Add a paper; if its id is in use, that id keeps its first paper."""
        number = len(self.known)
        self.known.append(identity)
        self._note(identity, number)
        if labelled:
            self._labels.setdefault(identity.label, number)
        return number

    def learn(self, number: int, identity: Identity) -> None:
        """Add another record's knowledge to a paper."""
        before = self.known[number]
        self.known[number] = before.with_unknown(identity)
        self._note(identity, number)

    def _note(self, identity: Identity, number: int) -> None:
        for key in identity.keys:
            numbers = self._numbers.get(key, ())
            if number not in numbers:
                self._numbers[key] = (*numbers, number)


@dataclass(frozen=True, slots=True)
class Placed:
    """A record's paper: its number, its id, and the evidence for it, "" if it is new."""

    number: int
    id: str
    reason: str = ""


class ImportedPapers:
    """Number the records of an import by paper, in order; each paper has its own id.

    Ids of a data set are kept: only they decide which of its records are the same paper.
    """

    def __init__(self, labels_only: bool) -> None:
        self.labels_only = labels_only
        self.identities = Identities()
        self._ids: list[str] = []
        self._parents: list[int] = []
        self._founders: list[int] = []
        # First records of papers that later turned out to be duplicates, with the evidence.
        self.joined: dict[int, str] = {}
        self._records = array("q")
        self._left: dict[int, int] = {}
        self._pending: dict[int, Paper] = {}

    def __len__(self) -> int:
        """Count the papers."""
        numbered = enumerate(self._parents)
        return sum(parent == number for number, parent in numbered)

    @property
    def records(self) -> int:
        return len(self._records)

    def place(self, paper: Paper, keeps_id: bool) -> Placed:
        """Find the paper of the next record, or add a new one."""
        identity = self._read(paper)
        if keeps_id:
            placed = self._by_id(identity)
        else:
            placed = self._by_identity(identity)
        if placed is None:
            placed = self._add(paper, identity)
        else:
            self.identities.learn(placed.number, identity)
        self._records.append(placed.number)
        return placed

    def _add(self, paper: Paper, identity: Identity) -> Placed:
        """Add a paper whose first record is the next one."""
        number = self.identities.add(identity)
        self._parents.append(number)
        self._founders.append(len(self._records))
        is_free = self.identities.labelled(identity.label) == number
        key = paper.source.id if is_free else distinct_id(paper)
        self._ids.append(key)
        return Placed(number, self._ids[number])

    def _read(self, paper: Paper) -> Identity:
        if self.labels_only:
            label = _hash("id", paper.source.id)
            return Identity(label)
        return Identity.read(paper)

    def _by_id(self, identity: Identity) -> Placed | None:
        number = self.identities.labelled(identity.label)
        if number is None:
            return None
        root = self._root(number)
        return Placed(root, self._ids[root], BY_ID)

    def _by_identity(self, identity: Identity) -> Placed | None:
        placed: Placed | None = None
        known = self.identities.known
        for number, reason in list(self.identities.find(identity)):
            root = self._root(number)
            if placed is None:
                placed = Placed(root, self._ids[root], reason)
                continue
            before = known[placed.number]
            if known[root].is_other(before):
                continue
            first, second = sorted((root, placed.number))
            if first == second:
                continue
            self._join(first, second, reason)
            placed = Placed(first, self._ids[first], placed.reason)
        return placed

    def _join(self, first: int, second: int, reason: str) -> None:
        """Join two papers that turned out to be the same one."""
        founder = self._founders[second]
        self.joined[founder] = reason
        self._parents[second] = first
        identity = self.identities.known[second]
        self.identities.learn(first, identity)

    def _root(self, number: int) -> int:
        while self._parents[number] != number:
            number = self._parents[number]
        return number

    def start_merging(self) -> None:
        """Prepare for passing all records again, in the same order, to `merge`."""
        self._left = {}
        self._pending = {}
        for number in self._records:
            root = self._root(number)
            before = self._left.get(root, 0)
            self._left[root] = before + 1

    def merge(self, record: int, paper: Paper) -> Paper | None:
        """Merge a record into its paper; return the paper after its last record, else None."""
        number = self._records[record]
        root = self._root(number)
        before = self._pending.pop(root, None)
        source = replace(paper.source, id=self._ids[root])
        paper = replace(paper, source=source)
        if before is not None:
            paper = merged(before, paper)
        self._left[root] -= 1
        if not self._left[root]:
            return paper
        self._pending[root] = paper
        return None

    def kept_id(self, record: int) -> str:
        number = self._records[record]
        root = self._root(number)
        return self._ids[root]
