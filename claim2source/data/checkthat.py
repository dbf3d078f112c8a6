"""Convert CheckThat! 2025 Task 4b and 2026 Task 1 into the native layout."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from claim2source.core.errors import InputError, Problems, UserError
from claim2source.core.files import file_error
from claim2source.core.languages import primary_language
from claim2source.core.progress import waiting
from claim2source.core.records import Claim, Dataset, Qrels, Source
from claim2source.data.authors import author_names, turned_names
from claim2source.data.frame_pickle import read_frame
from claim2source.data.jsonl import JsonLines, Row, parse_json, parse_row
from claim2source.data.text_files import id_error, text_error, text_lines, tsv_rows

COLLECTION = "collection_data.json"
SPLITS = ("train", "dev", "test")
LANGUAGES = ("en", "de", "fr")
# The task's files and copies of them spell the gold's field in two ways.
GOLD = ("pubkey", "pub_key")
HUB_COLLECTION = "collection"
HUB_TEST = "test"
# The organisers' name for the posts of the official test.
FINAL_TEST = "final_{}_test.json"
COLLECTION_2025 = "subtask4b_collection_data.pkl"
# The same table in two formats; the first one that exists is read.
COLLECTION_2025_CSV = "subtask4b_collection_data.csv"
TWEETS = "subtask4b_query_tweets_{}.tsv"
COLUMNS = (
    "cord_uid",
    "title",
    "abstract",
    "authors",
    "journal",
    "publish_time",
)


class _Table(NamedTuple):
    """Entries of one file, or of one split of a hub configuration, with its name."""

    name: str
    entries: list[object]


_Parts = dict[tuple[str, str], _Table]


def read_2026(source: Path, translations: Path | None = None) -> tuple[list[Dataset], list[str]]:
    """Read the splits of the task's JSON files in `source`; return them and notes on missing files.

    Claim ids are `<split>-<language>-<index>`, because the task's `index` is unique only within a
    file. The collection is required. Missing files of claims (`<language>_<split>.json`, or
    `final_<language>_test.json`) are noted; it is an error if all of them are missing.
    `translations` is a JSONL file of English translations: {"index", "lang", "split",
    "translation"}. Raises `InputError` on bad input, a line per problem.
    """
    problems = Problems()
    collection = _read_json(source / COLLECTION, problems)
    parts: _Parts = {}
    notes = []
    for split, lang in product(SPLITS, LANGUAGES):
        path = _claims_file(source, split, lang, problems)
        if file_error(path) == "no such file":
            notes.append(f"{path}: no such file; skipped")
            continue
        table = _read_json(path, problems)
        if table is not None:
            parts[split, lang] = table
    # An unreadable file would make the checks of the others wrong.
    problems.raise_if_any()
    assert collection is not None
    return _splits(str(source), collection, parts, notes, translations)


def files_2026() -> set[str]:
    """Return the names of all files that `read_2026` can read."""
    names = {f"{lang}_{split}.json" for split, lang in product(SPLITS, LANGUAGES)}
    final_tests = map(FINAL_TEST.format, LANGUAGES)
    return {COLLECTION, *names, *final_tests}


def _claims_file(
    source: Path,
    split: str,
    lang: str,
    problems: Problems,
) -> Path:
    """Choose the file of a split's claims; two test files of one language must be equal."""
    path = source / f"{lang}_{split}.json"
    final = source / FINAL_TEST.format(lang)
    if split != "test" or not final.is_file():
        return path
    if not path.is_file():
        return final
    if path.read_bytes() != final.read_bytes():
        problems.add(final, None, None, f"differs from {path.name}; keep one of them")
    return path


def read_hub(
    name: str,
    translations: Path | None = None,
    revision: str | None = None,
) -> tuple[list[Dataset], list[str]]:
    """Read the task from a data set on the Hugging Face hub (or a folder with its layout).

    The set has the configurations `collection`, `en`, `de`, `fr` (splits train, dev) and `test`
    (splits en, de, fr). A gated set needs your own login or HF_TOKEN. Needs `datasets`, the extra
    `hub`. Raises `UserError` if the set cannot be loaded, and the errors of `read_2026`.
    """
    tables = _load_hub(name, revision)
    if HUB_COLLECTION not in tables:
        names = ", ".join(tables) or "none of this task"
        raise UserError(f"{name}: no configuration {HUB_COLLECTION!r}; there are: {names}")
    entries: list[object] = []
    for split_entries in tables[HUB_COLLECTION].values():
        entries.extend(split_entries)
    collection = _Table(f"{name}/{HUB_COLLECTION}", entries)

    parts: _Parts = {}
    notes = []
    for split, lang in product(SPLITS, LANGUAGES):
        config = lang
        part = split
        if split == "test":
            config = HUB_TEST
            part = lang
        table = f"{name}/{config}/{part}"
        config_parts = tables.get(config, {})
        if part in config_parts:
            parts[split, lang] = _Table(table, config_parts[part])
        else:
            notes.append(f"{table}: no such split; skipped")
    return _splits(name, collection, parts, notes, translations)


def _load_hub(name: str, revision: str | None) -> dict[str, dict[str, list[object]]]:
    try:
        import datasets
        from huggingface_hub import get_token
    except ImportError:
        raise UserError("--hub needs `datasets`: pip install 'claim2source[hub]'") from None
    try:
        with waiting(f"{name}: waiting for the hub"):
            available = datasets.get_dataset_config_names(name, revision=revision)
            loaded: dict[str, Any] = {}
            for config in (HUB_COLLECTION, *LANGUAGES, HUB_TEST):
                if config in available:
                    loaded[config] = datasets.load_dataset(name, config, revision=revision)
        tables: dict[str, dict[str, list[object]]] = {}
        for config, parts in loaded.items():
            tables[config] = {str(split): part.to_list() for split, part in parts.items()}
        return tables
    # The library, the hub and the network fail in many ways; none of these is our bug.
    except Exception as error:
        lines = str(error).splitlines()
        message = lines[0] if lines else ""
        token = get_token() or "\0"
        message = message.replace(token, "<token>")
        kind = type(error).__name__
        raise UserError(
            f"{name}: cannot be loaded: {kind}: {message} (a gated set needs "
            "access granted on its page, and your login: `hf auth login` or HF_TOKEN)"
        ) from None


def _splits(
    origin: str,
    collection: _Table,
    parts: _Parts,
    notes: list[str],
    translations: Path | None,
) -> tuple[list[Dataset], list[str]]:
    problems = Problems()
    papers, numeric_ids = _papers(collection, problems)
    ids = {paper.id for paper in papers}
    claims: dict[str, dict[str, Claim]] = {}
    for (split, lang), table in parts.items():
        before = len(problems)
        table_claims = _claims(table, split, lang, ids, problems)
        own = {claim.id: claim for claim in table_claims}
        split_claims = claims.setdefault(split, {})
        split_claims.update(own)
        if not table.entries and len(problems) == before:
            problems.add(table.name, None, None, "contains no claims")
    if not parts:
        raise InputError(origin, reason="contains no claims: no train, dev or test in en, de or fr")
    if translations is not None:
        untranslated = _add_translations(claims, translations, problems)
        notes = notes + untranslated
    problems.raise_if_any()

    splits = []
    for split, own in claims.items():
        own_claims = tuple(own.values())
        qrels = _gold_qrels(own_claims)
        dataset = Dataset(own_claims, papers, qrels, split, numeric_ids=numeric_ids)
        splits.append(dataset)
    type_notes = _gold_type_notes(parts, numeric_ids)
    return splits, [*notes, *type_notes]


def _gold_qrels(claims: Iterable[Claim]) -> Qrels:
    """Judge the golds of claims as relevant; a claim without golds is not judged."""
    grades: dict[str, dict[str, int]] = {}
    for claim in claims:
        if claim.golds:
            grades[claim.id] = dict.fromkeys(claim.golds, 1)
    return Qrels(grades)


def _read_json(path: Path, problems: Problems) -> _Table | None:
    before = len(problems)
    lines = text_lines(path, problems)
    text = "".join(line or "" for _, line in lines)
    if len(problems) != before:
        return None
    entries = parse_json(text, path, problems)
    if isinstance(entries, list):
        return _Table(str(path), entries)
    if len(problems) == before:
        problems.add(path, None, None, "is not a list of entries")
    return None


def _rows(table: _Table, problems: Problems) -> Iterator[Row]:
    path = Path(table.name)
    for number, entry in enumerate(table.entries, start=1):
        if isinstance(entry, dict):
            # It has a meaning in our layout, but not in this one.
            entry.pop("metadata", None)
        location = f"entry {number}"
        row = parse_row(entry, path, problems, number, location)
        if row is not None:
            yield row


def _papers(table: _Table, problems: Problems) -> tuple[tuple[Source, ...], frozenset[str]]:
    """Read the collection, and the ids of papers that are numbers in it."""
    numeric: set[str] = set()
    first_entries: dict[str, int] = {}
    papers = []
    for row in _rows(table, problems):
        field = _id_field(row)
        raw_id = row.record.get(field)
        key = row.as_id(field, raw_id) or ""
        if key:
            first_entry = first_entries.setdefault(key, row.line)
            if first_entry != row.line:
                row.complain(field, f"{key!r} is already entry {first_entry}")
        row.require_either("title", "abstract")
        title = row.text("title")
        abstract = row.text("abstract")
        venue = row.text("venue")
        authors = _authors(row)
        paper = Source(key, title, abstract, authors, venue)
        papers.append(paper)
        if type(raw_id) is int:
            numeric.add(key)
    if not table.entries:
        problems.add(table.name, None, None, "contains no papers")
    return tuple(papers), frozenset(numeric)


def _id_field(row: Row) -> str:
    """Return the name of an entry's id: the first spelling that has a value."""
    for name in GOLD:
        if row.record.get(name) is not None:
            return name
    return GOLD[0]


def _gold_type_notes(parts: _Parts, numeric_ids: Collection[str]) -> list[str]:
    """Note golds that are texts if the collection's ids are numbers, or the other way round.

    Submissions use the collection's ids, and a scorer compares them with the golds.
    """
    notes = []
    for table in parts.values():
        other = _golds_of_other_type(table, numeric_ids)
        if other:
            notes.append(
                f"{table.name}: {len(other)} golds, such as {other[0]!r}, have another type than "
                "in the collection; submissions use the collection's ids"
            )
    return notes


def _golds_of_other_type(table: _Table, numeric_ids: Collection[str]) -> list[object]:
    """Collect golds that are numbers, but not in the collection, or the other way round."""
    other: list[object] = []
    for entry in table.entries:
        if not isinstance(entry, dict):
            continue
        gold = _raw_gold(entry)
        if gold is None:
            continue
        is_number = isinstance(gold, int)
        is_numeric_id = str(gold) in numeric_ids
        if is_number != is_numeric_id:
            other.append(gold)
    return other


def _raw_gold(entry: Mapping[str, object]) -> object:
    for name in GOLD:
        value = entry.get(name)
        if value not in (None, ""):
            return value
    return None


def _authors(row: Row) -> tuple[str, ...]:
    raw = row.record.get("authors")
    if isinstance(raw, list):
        names = [row.as_text("authors", name) for name in raw if name is not None]
        return tuple(name for name in names if name.strip())
    text = row.text("authors")
    return author_names(text)


def _claims(
    table: _Table,
    split: str,
    lang: str,
    source_ids: set[str],
    problems: Problems,
) -> Iterator[Claim]:
    has_golds = split != "test"
    first_entries: dict[str, int] = {}
    for row in _rows(table, problems):
        raw_index = row.record.get("index")
        index = row.as_id("index", raw_index)
        if index:
            first_entry = first_entries.setdefault(index, row.line)
            if first_entry != row.line:
                row.complain("index", f"{index!r} is already entry {first_entry}")
        text = row.require_text("text")
        gold = _gold(row, required=has_golds)
        if gold and gold not in source_ids:
            row.complain(GOLD[0], f"gold {gold!r} is not in the collection")
        claim_id = f"{split}-{lang}-{index}"
        golds = (gold,) if gold else ()
        yield Claim(claim_id, text, lang, golds=golds)


def _gold(row: Row, required: bool) -> str | None:
    fields = [name for name in GOLD if row.record.get(name) not in (None, "")]
    ids = [row.as_id(name, row.record[name]) for name in fields]
    if not fields and required:
        row.complain(GOLD[0], "is missing")
    if len(set(ids)) > 1:
        row.complain(GOLD[1], f"{ids[1]!r} is not the pubkey, {ids[0]!r}")
    return ids[0] if ids else None


def _add_translations(
    claims: dict[str, dict[str, Claim]],
    path: Path,
    problems: Problems,
) -> list[str]:
    """Add translations to the claims; return notes on claims without one."""
    file = JsonLines(path, problems)
    claim_splits: dict[str, str] = {}
    for split, own in claims.items():
        claim_splits |= dict.fromkeys(own, split)
    for row in file.records():
        language = row.require_text("lang")
        lang = primary_language(language)
        text = row.require_text("translation")
        raw_index = row.record.get("index")
        index = row.as_id("index", raw_index)
        split = row.require_text("split").strip()
        if not (index and lang and split):
            continue

        key = f"{split}-{lang}-{index}"
        if key not in claim_splits:
            row.complain("index", f"no claim {key!r} (its split, lang and index)")
            continue
        first_line = file.seen.setdefault(key, row.line)
        if first_line != row.line:
            row.complain("index", f"{key!r} is already on line {first_line}")
            continue
        own = claims[claim_splits[key]]
        own[key] = replace(own[key], translation=text)
    return _untranslated_notes(claims)


def _untranslated_notes(claims: Mapping[str, Mapping[str, Claim]]) -> list[str]:
    notes: list[str] = []
    for split, own in claims.items():
        foreign = [claim for claim in own.values() if claim.lang != "en"]
        without = [claim for claim in foreign if claim.translation is None]
        if without:
            number = f"{len(without)} of {len(foreign)}"
            notes.append(f"{split}: {number} de and fr claims not translated")
    return notes


def read_2025(source: Path) -> list[Dataset]:
    """Read the splits of Task 4b of 2025 in the folder `source`.

    Claim ids are `<split>-<post_id>`. The collection is a pickle, or a CSV file with the same
    columns. train and dev are required; test is read from the gold file if it exists, else from
    the tweets (without qrels), else skipped. Raises `InputError` on bad input, a line per problem.
    """
    problems = Problems()
    collection = _collection_file(source)
    required = (
        collection,
        TWEETS.format("train"),
        TWEETS.format("dev"),
    )
    for name in required:
        path = source / name
        reason = file_error(path)
        if reason:
            problems.add(path, None, None, reason)
    problems.raise_if_any()

    papers = _read_collection(source / collection, problems)
    ids = {paper.id for paper in papers}
    splits: list[Dataset] = []
    for split in ("train", "dev"):
        path = source / TWEETS.format(split)
        judged = _read_tweets(path, split, papers, ids, collection, problems)
        splits.append(judged)

    gold = source / TWEETS.format("test_gold")
    unlabelled = source / TWEETS.format("test")
    if gold.is_file():
        test = _read_tweets(gold, "test", papers, ids, collection, problems)
        splits.append(test)
        if unlabelled.is_file():
            _same_posts(unlabelled, gold, problems)
    elif unlabelled.is_file():
        test = _read_tweets(unlabelled, "test", papers, None, collection, problems)
        splits.append(test)
    problems.raise_if_any()
    return splits


def files_2025(source: Path) -> set[str]:
    """Return the names of all files that `read_2025` reads from a folder."""
    tweets = {TWEETS.format(name) for name in (*SPLITS, "test_gold")}
    return {_collection_file(source), *tweets}


def _collection_file(source: Path) -> str:
    has_pickle = (source / COLLECTION_2025).exists()
    has_csv = (source / COLLECTION_2025_CSV).exists()
    if has_csv and not has_pickle:
        return COLLECTION_2025_CSV
    return COLLECTION_2025


def _collection_rows(path: Path, problems: Problems) -> Iterator[Row]:
    """Yield the rows of the collection, numbered by line in a CSV file, by row in a pickle."""
    if path.suffix == ".csv":
        for line, cells in tsv_rows(path, COLUMNS, problems, delimiter=","):
            record = dict(zip(COLUMNS, cells, strict=True))
            row = parse_row(record, path, problems, line)
            if row is not None:
                yield row
        return

    table = read_frame(path)
    for column in COLUMNS:
        if column not in table:
            problems.add(path, None, column, "the column is missing")
    problems.raise_if_any()
    columns = [table[column] for column in COLUMNS]
    rows = zip(*columns, strict=True)
    for number, values in enumerate(rows):
        record = dict(zip(COLUMNS, values, strict=True))
        location = f"row {number}"
        row = parse_row(record, path, problems, number, location)
        if row is not None:
            yield row


def _read_collection(path: Path, problems: Problems) -> tuple[Source, ...]:
    before = len(problems)
    first_rows: dict[str, Row] = {}
    papers = []
    for row in _collection_rows(path, problems):
        raw_id = row.record["cord_uid"]
        key = row.as_id("cord_uid", raw_id) or ""
        first = first_rows.setdefault(key, row) if key else row
        if first is not row:
            place = first.location if isinstance(first.location, str) else f"line {first.line}"
            row.complain("cord_uid", f"{key!r} is already used in {place}")
        row.require_either("title", "abstract")
        title, abstract, author_list, venue, date = map(row.text, COLUMNS[1:])
        authors = turned_names(author_list)
        paper = Source(key, title, abstract, authors, venue, date)
        papers.append(paper)
    if not papers and len(problems) == before:
        problems.add(path, None, None, "contains no papers")
    # Otherwise every gold would be reported as missing.
    if len(problems) > before and path.suffix == ".csv":
        problems.raise_if_any()
    return tuple(papers)


def _read_tweets(
    path: Path,
    split: str,
    papers: tuple[Source, ...],
    source_ids: set[str] | None,
    collection: str,
    problems: Problems,
) -> Dataset:
    """Read one split; `source_ids` are the ids that golds may have, None if golds are unknown."""
    before = len(problems)
    claims: list[Claim] = []
    grades: dict[str, dict[str, int]] = {}
    first_lines: dict[str, int] = {}
    columns = ["post_id", "tweet_text"]
    if source_ids is not None:
        columns.append("cord_uid")
    for line, (post, tweet, *golds) in tsv_rows(path, columns, problems):
        text_reason = text_error(tweet) if tweet.strip() else "is empty"
        reasons = [id_error(post), text_reason, *map(id_error, golds)]
        first_line = first_lines.setdefault(post, line)
        if first_line != line:
            problems.add(path, line, "post_id", f"{post!r} is already on line {first_line}")
        for gold in golds:
            if source_ids is not None and gold and gold not in source_ids:
                reasons[2] = f"gold {gold!r} is not in {collection}"
        for column, reason in zip(columns, reasons, strict=True):
            if reason:
                problems.add(path, line, column, reason)

        key = f"{split}-{post}"
        known_golds = tuple(filter(None, golds))
        claim = Claim(key, tweet, golds=known_golds)
        claims.append(claim)
        if claim.golds:
            grades[key] = dict.fromkeys(claim.golds, 1)
    if not claims and len(problems) == before:
        problems.add(path, None, None, "empty split: no posts")
    qrels = Qrels(grades)
    return Dataset(tuple(claims), papers, qrels, split)


def _same_posts(unlabelled: Path, gold: Path, problems: Problems) -> None:
    columns = ["post_id"]
    judged_rows = tsv_rows(gold, columns, Problems())
    judged = {post for _, (post,) in judged_rows}
    for line, (post,) in tsv_rows(unlabelled, columns, problems):
        if post not in judged:
            problems.add(unlabelled, line, "post_id", f"{post!r} is not in {gold.name}")
