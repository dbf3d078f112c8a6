"""Read and write the native layout, a BEIR folder of corpus.jsonl, queries.jsonl and qrels."""

from __future__ import annotations

import json
import logging
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from claim2source.core.errors import ConfigError, InputError, UserError, did_you_mean
from claim2source.core.files import atomic_folder, file_error, folder_error
from claim2source.core.folders import check_aside, put_aside, replaced_folder
from claim2source.core.languages import is_language_tag
from claim2source.core.records import (
    Claim,
    Dataset,
    Qrels,
    Source,
    is_integer_text,
    sorted_languages,
)
from claim2source.data.authors import author_names
from claim2source.data.jsonl import JsonLines, Records, Row
from claim2source.data.lenient import Kind, Traits, is_lenient
from claim2source.data.text_files import first_cells, id_error, text_lines, tsv_rows
from claim2source.data.trec import BEIR_COLUMNS, grade_error, is_grade, write_beir_qrels

log = logging.getLogger(__name__)


CORPUS, QUERIES, QRELS = "corpus.jsonl", "queries.jsonl", "qrels"
# Keys of the metadata of sources and of claims.
OF_SOURCES = ("authors", "venue", "date", "doi", "url", "lang", "retracted")
OF_CLAIMS = ("lang", "translation", "split", "candidates")
# Metadata of sources that `prepare` writes.
NUMERIC_ID = "numeric_id"
_SPLIT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_DECIMAL = re.compile(r"[+-]?(?:[0-9]{1,9}\.[0-9]{0,99}|\.[0-9]{1,99})")
_USUAL_SPLITS = ("train", "val", "dev", "test")


class Judgement(NamedTuple):
    """One judgement and its line."""

    line: int
    claim: str
    source: str
    grade: int


class SplitJudgements(NamedTuple):
    """Judgements of a split (None if there are none), their file or table, and its columns."""

    path: Path
    judgements: list[Judgement] | None
    columns: Sequence[str] = BEIR_COLUMNS


class Query(NamedTuple):
    """Claim in queries.jsonl, its line, and the split in its metadata."""

    line: int
    claim: Claim
    split: str


class _Known(NamedTuple):
    """Ids of the records of a file or table."""

    records: Records
    ids: Collection[str]

    def lacks(self, key: str) -> bool:
        """Whether there is no such record; False if some records could not be read."""
        return self.records.complete and key not in self.ids


def read_beir(
    folder: str | Path,
    split: str,
    languages: Sequence[str] | None = None,
    *,
    lenient: bool = False,
) -> Dataset:
    """Read one split of a BEIR folder; see `load`."""
    folder = Path(folder)
    if reason := folder_error(folder):
        raise InputError(folder, reason=reason)
    problems = Traits(folder, is_lenient(folder, lenient))
    for name in (CORPUS, QUERIES):
        if reason := file_error(folder / name):
            problems.add(folder / name, None, None, reason)
    problems.raise_if_any()

    queries = JsonLines(folder / QUERIES, problems)
    read = read_claims(queries)
    judgements = _read_split(folder, split, read, problems)
    corpus = JsonLines(folder / CORPUS, problems)
    return assembled(
        queries,
        read,
        corpus,
        SplitJudgements(folder / QRELS / f"{split}.tsv", judgements),
        split=split,
        name=folder.resolve().name,
        problems=problems,
        languages=languages,
    )


def assembled(
    queries: Records,
    read: list[Query],
    corpus: Records,
    judged: SplitJudgements,
    *,
    split: str,
    name: str,
    problems: Traits,
    languages: Sequence[str] | None,
) -> Dataset:
    """Read the corpus, and combine claims, sources and judgements.

    Raises `InputError` and `ConfigError` as `load` does.
    """
    sources, numeric_ids = _read_sources(corpus)
    # A rejected record is not reported again as missing by the judgements.
    known_claims = _Known(queries, queries.seen)
    known_sources = _Known(corpus, corpus.seen)
    if problems.lenient:
        known_claims = _Known(queries, {query.claim.id for query in read})
        known_sources = _Known(corpus, {source.id for source in sources})
    if not known_sources.ids and corpus.complete:
        problems.add(corpus.path, None, None, "contains no sources")

    qrels = _read_qrels(judged, known_claims, known_sources, problems)
    by_id = judged.judgements is None
    claims: list[Claim] = []
    for query in read:
        if query.claim.id in qrels.grades or _in_split(query, split, by_id):
            _check_candidates(query, queries.path, known_sources, problems)
            claims.append(_with_golds(query.claim, qrels, known_sources.ids))
    problems.raise_if_any()
    notes = (*problems.omission_notes(split), *_themselves(split, claims))
    for note in notes:
        log.warning("%s", note)
    dataset = Dataset(tuple(claims), sources, qrels, split, name, notes, numeric_ids)
    return dataset if languages is None else _in_languages(dataset, languages)


def _read_qrels(
    judged: SplitJudgements, claims: _Known, sources: _Known, problems: Traits
) -> Qrels:
    """Collect the judgements of known claims; of repeated judgements the highest grade is used."""
    grades: dict[str, dict[str, int]] = {}
    for line, claim, source, grade in judged.judgements or ():
        if claims.lacks(claim):
            reason = f"{claim!r} is not in {claims.records.path.name}"
            problems.add(judged.path, line, judged.columns[0], reason, "stranger")
            continue
        if grade > 0 and sources.lacks(source):
            reason = f"gold {source!r} is not in {sources.records.path.name}"
            problems.add(judged.path, line, judged.columns[1], reason, "absent")
        graded = grades.setdefault(claim, {})
        graded[source] = max(grade, graded.get(source, grade))
    if problems.lenient and judged.judgements and not grades:
        reason = f"has no judgement of a claim in {claims.records.path.name}"
        problems.add(judged.path, None, None, reason)
    return Qrels(grades)


def _check_candidates(query: Query, path: Path, sources: _Known, problems: Traits) -> None:
    for source in query.claim.candidates or ():
        if sources.lacks(source):
            reason = f"{source!r} is not in {sources.records.path.name}"
            problems.add(path, query.line, "metadata.candidates", reason)


def _in_languages(dataset: Dataset, languages: Sequence[str]) -> Dataset:
    """Keep the claims in these languages. Raises `ConfigError` for a language without claims."""
    if not isinstance(languages, Iterable):
        raise ConfigError("languages", languages, "a list of languages, such as en, de")
    requested = [languages] if isinstance(languages, str) else list(languages)
    tried: list[object] = [*requested] or [requested]
    for language in tried:
        if not dataset.in_languages([str(language)]).claims:
            tags = sorted_languages(claim.tag for claim in dataset.claims)
            allowed = dict.fromkeys((*dataset.languages, *tags))
            raise ConfigError("languages", language, ", ".join(allowed))
    return dataset.in_languages(requested)


def _read_sources(corpus: Records) -> tuple[tuple[Source, ...], frozenset[str] | None]:
    """Read the sources, and the ids that were numbers (None if that was not recorded)."""
    longest: dict[str, Source] = {}
    numeric: dict[str, bool] = {}
    for row in corpus.rows(repeated=True):
        record = read_source(row)
        is_numeric = _numeric_id(row)
        if is_numeric is not None:
            numeric.setdefault(record.id, is_numeric)
        before = longest.get(record.id)
        if before is None or text_length(record) > text_length(before):
            longest[record.id] = record
    sources = tuple(record for record in longest.values() if text_length(record))
    if not numeric:
        return sources, None
    return sources, frozenset(key for key, is_numeric in numeric.items() if is_numeric)


def read_claims(queries: Records) -> list[Query]:
    """Read the claims with a text."""
    found = map(_query, queries.rows())
    return [query for query in found if query.claim.text.strip()]


def _with_golds(claim: Claim, qrels: Qrels, pool: Collection[str]) -> Claim:
    golds = tuple(gold for gold in qrels.golds(claim.id) if gold in pool)
    itself: tuple[str, ...] = ()
    if claim.id in pool and claim.id not in golds:
        itself = (claim.id,)
    candidates = claim.candidates
    if candidates is not None:
        candidates = tuple(source for source in candidates if source in pool)
    return replace(claim, golds=golds, candidates=candidates, excluded=itself)


def _themselves(split: str, claims: Sequence[Claim]) -> list[str]:
    ids = [claim.id for claim in claims if claim.excluded]
    if not ids:
        return []
    are = f"{len(ids)} of {len(claims)} claims have the id of a source, such as {ids[0]!r}"
    return [f"{split}: {are}; that source is never ranked for the claim, as in BEIR."]


def _read_split(
    folder: Path, split: str, queries: Sequence[Query], problems: Traits
) -> list[Judgement] | None:
    judged = {path.stem for path in (folder / QRELS).glob("*.tsv")}
    if split in judged:
        path = folder / QRELS / f"{split}.tsv"
        return read_judgements(_qrels_rows(path, problems), path, problems)
    if any(_in_split(query, split, True) for query in queries):
        return None
    splits = judged | {query.split for query in queries if query.split}
    usual = [name for name in _USUAL_SPLITS if name in splits]
    listed = ", ".join(dict.fromkeys([*usual, *sorted(splits)]))
    splits_note = f"no {QRELS}/*.tsv, and no claim names its split"
    if listed:
        splits_note = f"{did_you_mean(split, splits)}splits: {listed}"
    problems.add(folder, None, "split", f"no split {split!r}; {splits_note}")
    problems.raise_if_any()
    return None


def _in_split(query: Query, split: str, by_id: bool) -> bool:
    if query.split:
        return query.split == split
    return by_id and query.claim.id.startswith(f"{split}-")


def _query(row: Row) -> Query:
    row.check_keys(("_id", "text"), OF_CLAIMS)
    text = row.require_text("text")
    lang = row.text("metadata.lang").strip().lower() or "en"
    if not is_language_tag(lang):
        row.complain("metadata.lang", f"{lang!r} is not a language code such as en")
        lang = "en"
    listed = row.list_field("candidates")
    ids = [row.as_id("metadata.candidates", value) for value in listed or ()]
    if len(set(ids)) < len(ids):
        row.complain("metadata.candidates", "lists a source twice")
    candidates = None
    if listed is not None:
        candidates = tuple(dict.fromkeys(filter(None, ids)))
    claim = Claim(
        id=row.key,
        text=text,
        lang=lang,
        translation=row.text("metadata.translation") or None,
        candidates=candidates,
    )
    return Query(row.line, claim, row.text("metadata.split"))


def text_length(source: Source) -> int:
    return len(source.title.strip()) + len(source.abstract.strip())


def read_source(row: Row) -> Source:
    """Read a source from a row of corpus.jsonl; problems are reported."""
    row.check_keys(("_id", "title", "text"), OF_SOURCES)
    row.require_either("title", "text")
    names = row.meta.get("authors")
    if isinstance(names, str):
        names = author_names(row.as_text("metadata.authors", names))
    else:
        listed = row.list_field("authors") or ()
        names = [row.as_text("metadata.authors", name) for name in listed]
    return Source(
        id=row.key,
        title=row.text("title"),
        abstract=row.text("text"),
        authors=tuple(name for name in names if name.strip()),
        venue=row.text("metadata.venue"),
        date=row.text("metadata.date"),
    )


def _numeric_id(row: Row) -> bool | None:
    """Whether the id was a number in the task's own files, as it was if it is one here."""
    if type(row.record.get("_id")) is int:
        return True
    value = row.meta.get(NUMERIC_ID)
    if value is None:
        return None
    if not isinstance(value, bool):
        row.complain(f"metadata.{NUMERIC_ID}", "is neither true nor false")
        return None
    if value and not is_integer_text(row.key):
        row.complain(f"metadata.{NUMERIC_ID}", f"is true, but {row.key[:60]!r} is not an integer")
        return None
    return value


def read_judgements(
    rows: Iterable[tuple[int, list[str]]],
    path: Path,
    problems: Traits,
    columns: Sequence[str] = BEIR_COLUMNS,
) -> list[Judgement]:
    """Parse rows of claim, source and grade, with their lines; problems are reported."""
    before = len(problems)
    judgements: list[Judgement] = []
    first_of: dict[tuple[str, str], Judgement] = {}
    for line, (claim, source, score) in rows:
        are_ids = True
        for column, value in zip(columns[:2], (claim, source), strict=True):
            if reason := id_error(value):
                problems.add(path, line, column, reason)
                are_ids = False
        grade = _grade(score.strip(), path, line, columns[2], problems)
        if grade is None or not are_ids:
            continue
        judgement = Judgement(line, claim, source, grade)
        first = first_of.setdefault((claim, source), judgement)
        if first is not judgement:
            reason = f"{claim!r} is already judged for {source!r} on line {first.line}"
            kind: Kind = "same" if first.grade == grade else "contradicts"
            problems.add(path, line, columns[1], reason, kind)
        judgements.append(judgement)
    if not judgements and len(problems) == before:
        problems.add(path, None, None, "empty split: no judgements")
    return judgements


def _qrels_rows(path: Path, problems: Traits) -> Iterator[tuple[int, list[str]]]:
    lines = [text or "\n" for _, text in text_lines(path, problems)]
    if not any(line.strip() for line in lines):
        return
    header = first_cells(lines)
    added = 0
    if header != list(BEIR_COLUMNS):
        headless = _is_headless(header)
        readable = headless or all(header.count(name) == 1 for name in BEIR_COLUMNS)
        number = next(n for n, line in enumerate(lines, start=1) if line.strip())
        reason = f"the header must be {' <tab> '.join(BEIR_COLUMNS)}"
        problems.add(path, number, None, reason, "header" if readable else "")
        if not (problems.lenient and readable):
            return
        if headless:
            lines.insert(0, "\t".join(BEIR_COLUMNS) + "\n")
            added = 1
    for number, cells in tsv_rows(path, BEIR_COLUMNS, problems, lines=lines):
        yield number - added, cells


def _is_headless(cells: Sequence[str]) -> bool:
    """Whether the first line is a judgement, not a header."""
    if len(cells) != 3:
        return False
    return bool(is_grade(cells[2]) or _DECIMAL.fullmatch(cells[2]))


def _grade(score: str, path: Path, line: int, column: str, problems: Traits) -> int | None:
    """Parse a grade; a decimal one is a problem if strict, else truncated as in trec_eval."""
    reason = grade_error(score)
    if not reason:
        return int(score)
    if not _DECIMAL.fullmatch(score):
        problems.add(path, line, column, reason)
        return None
    kind: Kind = "decimal" if float(score).is_integer() else "cut"
    problems.add(path, line, column, reason, kind)
    return int(float(score)) if problems.lenient else None


def write_beir(
    parts: Dataset | Sequence[Dataset], folder: str | Path, *, overwrite: bool = False
) -> None:
    """Write the splits of one data set as a BEIR folder, completely or not at all.

    A claim without judgements gets `metadata.split`. With `overwrite` an older BEIR folder is
    moved to `NAME.replaced`. Raises `UserError` if `folder` contains anything else, and ValueError
    if there is no split, a split's name is not a file name, or a split or claim is repeated.
    """
    splits = [parts] if isinstance(parts, Dataset) else list(parts)
    _check_splits(splits)
    target = Path(folder).resolve()
    _refuse_foreign(target, overwrite)
    try:
        with atomic_folder(target) as temporary:
            _write_splits(splits, temporary)
            if target.exists() and any(target.iterdir()):
                put_aside(target)
    except OSError as error:
        raise UserError(f"{target}: cannot be written: {error.strerror}") from None


def _check_splits(splits: Sequence[Dataset]) -> None:
    if not splits:
        raise ValueError("no split to write")
    for name, count in Counter(part.split for part in splits).items():
        if count > 1 or not _SPLIT.fullmatch(name):
            raise ValueError(f"split {name!r} is not a file name, or is repeated")
    seen: set[str] = set()
    for part in splits:
        for claim in part.claims:
            if claim.id in seen:
                raise ValueError(f"claim {claim.id!r} is repeated")
            seen.add(claim.id)


def _write_splits(splits: Sequence[Dataset], folder: Path) -> None:
    first = splits[0]
    _write_lines(folder / CORPUS, (_source_json(source, first) for source in first.sources))
    queries = (_claim_json(claim, part) for part in splits for claim in part.claims)
    _write_lines(folder / QUERIES, queries)
    (folder / QRELS).mkdir()
    for part in splits:
        if part.qrels.grades:
            write_beir_qrels(part.qrels, folder / QRELS / f"{part.split}.tsv")


def check_folders(sources: Iterable[Path], target: Path, overwrite: bool = False) -> None:
    """Raise if a folder in `sources` is missing or writing `target` would lose something."""
    target_path = target.resolve()
    for source in sources:
        if reason := folder_error(source):
            raise InputError(source, reason=reason)
        replaced = (target_path, replaced_folder(target_path))
        if any(source.resolve().is_relative_to(folder) for folder in replaced):
            raise UserError(f"{target}: would replace the input {source}")
    _refuse_foreign(target_path, overwrite)


def _refuse_foreign(folder: Path, overwrite: bool) -> None:
    """Raise `UserError` unless `folder` is absent, empty, or a BEIR folder and `overwrite` is set.

    It is moved aside, so a folder that was moved aside before must be a BEIR folder too.
    """
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder}: is not a folder")
    if not folder.exists() or not any(folder.iterdir()):
        return
    name = _foreign(folder)
    if name is not None:
        raise UserError(f"{folder}: contains {name!r}, which would be lost")
    if not overwrite:
        raise UserError(f"{folder}: is a data set; add --overwrite or choose another folder")
    check_aside(folder, _reason_to_keep)


def _foreign(folder: Path) -> str | None:
    """Name the first file that does not belong to a BEIR folder; None if there is none."""
    for path in sorted(folder.iterdir()):
        if path.name not in (CORPUS, QUERIES, QRELS):
            return path.name
    for path in sorted((folder / QRELS).glob("*")):
        if path.suffix != ".tsv":
            return path.name
    return None


def _reason_to_keep(folder: Path) -> str | None:
    if folder.is_symlink() or not (folder / CORPUS).is_file():
        return "is not a data set"
    name = _foreign(folder)
    return None if name is None else f"contains {name!r}"


def _source_json(source: Source, part: Dataset) -> dict[str, object]:
    metadata: dict[str, object] = {
        "authors": list(source.authors),
        "venue": source.venue,
        "date": source.date,
    }
    if part.numeric_ids is not None:
        metadata[NUMERIC_ID] = source.id in part.numeric_ids
    return {"_id": source.id, "title": source.title, "text": source.abstract, "metadata": metadata}


def _claim_json(claim: Claim, part: Dataset) -> dict[str, object]:
    metadata: dict[str, object] = {"lang": claim.tag, "translation": claim.translation}
    if claim.candidates is not None:
        metadata["candidates"] = list(claim.candidates)
    if not part.qrels.grades.get(claim.id):
        metadata["split"] = part.split
    return {"_id": claim.id, "text": claim.text, "metadata": metadata}


def _write_lines(path: Path, records: Iterable[dict[str, object]]) -> None:
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        file.writelines(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
