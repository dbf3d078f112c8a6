"""Read papers from JSON; the kind of each record is detected by its keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from claim2source.core.errors import Problems
from claim2source.data import paper_services as services
from claim2source.data.headings import match_columns
from claim2source.data.jsonl import Row, json_records, parse_row
from claim2source.data.paper_json import ADDRESS, read_crossref, read_openalex, row_to_paper
from claim2source.data.paper_tables import record_to_paper
from claim2source.data.papers import Paper

# Nested keys of the works in an answer of OpenAlex, Crossref, Europe PMC, bioRxiv, DataCite, Lens,
# Semantic Scholar and Zotero.
_LISTS = (
    "results",
    "items",
    "message",
    "data",
    "collection",
    "resultList",
    "result",
    "recommendedPapers",
    "citingPaper",
    "citedPaper",
    "papers",
    "works",
    "references",
)
# A record with one of these keys is a work itself.
_OWN = frozenset(
    "_id id DOI doi title itemType paperId paper_id corpusid lens_id preprint_title".split()
)
_SEARCH = "esearchresult"

Reader = Callable[[Row, Path, Problems], Paper | None]


@dataclass(frozen=True)
class _Kind:
    """Kind of record: keys of which it has at least one, other possible keys, and its reader."""

    name: str
    marks: frozenset[str]
    others: frozenset[str]
    read: Reader

    def count(self, keys: frozenset[str]) -> int:
        """Count the keys of a record that belong to this kind; 0 if none of its marks is there."""
        if not self.marks & keys:
            return 0
        return len((self.marks | self.others) & keys)


def _kind(name: str, marks: str, others: str, read: Reader) -> _Kind:
    return _Kind(name, frozenset(marks.split()), frozenset(others.split()), read)


def _service(read: Callable[[services.Record], Paper | None]) -> Reader:
    return lambda row, path, problems: read(services.Record(row, path, problems))


def _read_row(row: Row, path: Path, problems: Problems) -> Paper | None:
    return row_to_paper(row)


_KINDS = (
    _kind("beir", "_id", "title text metadata", _read_row),
    _kind(
        "openalex",
        "openalex-id abstract_inverted_index authorships primary_location display_name",
        "id title doi publication_year publication_date ids language is_retracted locations type "
        "type_crossref open_access cited_by_count biblio concepts topics keywords abstract "
        "referenced_works related_works counts_by_year updated_date created_date host_venue",
        read_openalex,
    ),
    _kind(
        "crossref",
        "DOI container-title issued people accessed citation-key title-short published "
        "published-print published-online posted update-to updated-by date-parts",
        "id type title author abstract URL language publisher page volume issue ISSN ISBN created "
        "subtitle institution editor source note event-place publisher-place PMID PMCID "
        "journalAbbreviation reference reference-count indexed deposited prefix member score "
        "is-referenced-by-count short-title original-title relation license link subject resource",
        read_crossref,
    ),
    _kind(
        "zotero",
        "itemType",
        "key itemKey itemID version title creators abstractNote date DOI url language "
        "publicationTitle publisher pages volume issue ISSN ISBN shortTitle accessDate "
        "libraryCatalog callNumber rights extra tags collections relations dateAdded "
        "dateModified journalAbbreviation note attachments notes parentItem contentType uri "
        "citationKey citekey place series archive filename linkMode",
        _service(services.read_zotero),
    ),
    _kind(
        "semanticscholar",
        "paperId corpusId corpusid externalIds externalids paper_id metadata-title",
        "title abstract authors venue year journal publicationDate publicationdate url s2_url doi "
        "external_ids body_text metadata content pubmed_id pmc_id arxiv_id publicationTypes "
        "referenceCount citationCount openAccessPdf tldr fieldsOfStudy s2FieldsOfStudy "
        "isOpenAccess publicationVenue influentialCitationCount",
        _service(services.read_semantic_scholar),
    ),
    _kind(
        "europepmc",
        "authorString abstractText journalInfo authorList pubTypeList firstPublicationDate "
        "isOpenAccess inEPMC",
        "id source pmid pmcid doi title pubYear pubModel language publicationStatus pageInfo "
        "affiliation citedByCount fullTextUrlList commentCorrectionList journalTitle pubType "
        "hasPDF hasReferences inPMC meshHeadingList keywordList dateOfCreation",
        _service(services.read_europe_pmc),
    ),
    _kind(
        "lens",
        "lens_id date_published year_published",
        "title abstract authors source external_ids source_urls publication_type "
        "retraction_updates languages references scholarly_citations fields_of_study open_access "
        "keywords volume issue start_page end_page created year_published",
        _service(services.read_lens),
    ),
    _kind(
        "biorxiv",
        "jatsxml author_corresponding preprint_doi biorxiv_doi preprint_title server",
        "doi title authors date version type license category abstract published "
        "author_corresponding_institution preprint_authors preprint_date preprint_abstract "
        "preprint_platform preprint_category published_doi published_journal published_date funder",
        _service(services.read_biorxiv),
    ),
    _kind(
        "arxiv",
        "authors_parsed versions journal-ref report-no submitter",
        "id title abstract authors comments doi categories license update_date",
        _service(services.read_arxiv),
    ),
    _kind(
        "datacite",
        "attributes creators titles",
        "id type relationships doi descriptions publicationYear dates publisher types subjects",
        _service(services.read_datacite),
    ),
)
_BY_NAME = {kind.name: kind for kind in _KINDS}


def read_json(path: Path, problems: Problems, kind: str | None) -> Iterator[Paper | None]:
    """Yield the papers of a file; None for a record that is reported or counted instead.

    `kind` is the kind of all records; by default it is detected for each record.
    """
    reported = len(problems)
    for row in json_records(path, problems):
        if len(problems) > reported:
            yield None  # for earlier lines, which are not JSON
        for work in _works(row, path, problems):
            if kind is not None:
                yield _BY_NAME[kind].read(work, path, problems)
            else:
                yield _chosen_reader(work)(work, path, problems)
        reported = len(problems)


def _works(row: Row, path: Path, problems: Problems) -> Iterator[Row]:
    """Yield the works in a record: those of all its lists, or the record itself."""
    works = list(_inner(row.record))
    if len(works) == 1 and works[0] is row.record:
        yield row
        return
    for number, work in enumerate(works, start=1):
        parsed = parse_row(work, path, problems, number, f"work {number}")
        if parsed is not None:
            yield parsed


def _inner(value: object) -> Iterator[object]:
    if isinstance(value, list):
        for item in value:
            yield from _inner(item)
        return
    if not isinstance(value, Mapping) or _OWN & set(value):
        yield value
        return
    inner = [value[key] for key in _LISTS if isinstance(value.get(key), dict | list)]
    if not inner:
        yield value
    for item in inner:
        yield from _inner(item)


def _chosen_reader(row: Row) -> Reader:
    keys = _marks(row.record)
    if _SEARCH in keys:
        return _refuse_search
    best = max(_KINDS, key=lambda kind: kind.count(keys))
    # A single key may be in any record: the kind must match as many keys as the table headings.
    known = 0 if "_id" in keys else len(match_columns(sorted(keys), {}).names)
    return best.read if best.count(keys) >= max(known, 1) else record_to_paper


def _marks(record: Mapping[str, object]) -> frozenset[str]:
    """List a record's keys, and marks for values if the key is ambiguous."""
    keys = set(record)
    if not isinstance(record.get("_id", ""), str | int):
        keys.discard("_id")  # a database's own, such as {"$oid": ..}
    if str(record.get("id", "")).startswith(ADDRESS):
        keys.add("openalex-id")
    metadata = record.get("metadata")
    if "body_text" in record or isinstance(metadata, Mapping) and "title" in metadata:
        keys.add("metadata-title")
    people = record.get("author")
    if isinstance(people, list) and any(isinstance(person, Mapping) for person in people):
        keys.add("people")
    return frozenset(keys)


def _refuse_search(row: Row, path: Path, problems: Problems) -> Paper | None:
    row.complain("", "is a search result of PubMed without articles: export RIS or XML")
    return None
