"""Make a data set from a file of training pairs in the formats of sentence-transformers.

The data set is a folder in the store, named by the hash of the file; programs read it like others.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from claim2source.core.errors import ConfigError, InputError, Problems, UserError
from claim2source.core.records import Claim, Dataset, Qrels, Source
from claim2source.data.beir import CORPUS, write_beir
from claim2source.data.jsonl import Row, json_records
from claim2source.data.split import carve_val
from claim2source.data.store import default_root
from claim2source.data.text_files import id_error, open_spreadsheet, text_error, tsv_rows

log = logging.getLogger(__name__)

TRAIN = "train"
DEV = "dev"
_TABLES = (".csv", ".tsv")
_JSON = (".jsonl", ".json", ".ndjson")
_PARQUET = ".parquet"
# Names of columns, in lower case; the first one that exists is used.
_ANCHOR = ("anchor", "query", "question", "sentence1", "claim", "post", "text1")
_POSITIVE = ("positive", "pos", "document", "passage", "answer", "sentence2", "source", "text2")
_LANGUAGE = ("language", "lang")
_LABEL = ("label", "score")
_NEGATIVE = re.compile(r"(?:hard_)?neg(?:ative)?s?_?[0-9]*")
# Incremented when the same file would become a different data set.
_VERSION = 1
# Share of dev, by positive, and the seed.
_SHARE = 0.1
_SEED = 13


def is_pair_file(name: str | Path) -> bool:
    """Whether a data set's name is the name of a file of pairs."""
    path = Path(name)
    if _suffix(path) not in (*_TABLES, *_JSON, _PARQUET):
        return False
    return path.is_file()


def _suffix(path: Path) -> str:
    unpacked = Path(path.name.removesuffix(".gz"))
    return unpacked.suffix.lower()


def prepared_folder(path: Path) -> Path:
    """Return the data set of a file of pairs; write it if it is not in the store.

    A file with a column `split` keeps its splits. Otherwise all pairs of a tenth of the positives
    are `dev`, the others `train`. Raises `InputError` with the line and field of a problem.
    """
    kind = f"pairs {_VERSION} {_suffix(path)}\n"
    digest = hashlib.sha256(kind.encode())
    with open(path, "rb") as file:
        while block := file.read(2**20):
            digest.update(block)
    name = digest.hexdigest()[:16]
    folder = default_root() / "pairs" / name
    corpus = folder / CORPUS
    if corpus.is_file():
        return folder

    splits = read_pairs(path)
    try:
        write_beir(splits, folder)
    except UserError:
        # Another process of the same training may have written it.
        if not corpus.is_file():
            raise
    return folder


@dataclass
class _Pairs:
    """Texts by id, and judgements by split: 1 of a positive, 0 of a negative."""

    anchors: dict[str, tuple[str, str]] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    grades: dict[str, dict[str, dict[str, int]]] = field(default_factory=dict)
    split: dict[str, str] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)

    def add(self, row: _PairRow) -> None:
        anchor = _text_id(row.anchor)
        split = row.split or TRAIN
        self.anchors.setdefault(anchor, (row.anchor, row.language))
        # All pairs of an anchor are in the split of its first pair.
        split = self.split.setdefault(anchor, split)
        split_grades = self.grades.setdefault(split, {})
        judged = split_grades.setdefault(anchor, {})

        for text in row.positives:
            source = _text_id(text)
            self.texts.setdefault(source, text)
            judged[source] = 1
        for text in row.negatives:
            source = _text_id(text)
            self.texts.setdefault(source, text)
            if source != anchor:
                judged.setdefault(source, 0)

    def dataset(self, name: str, split: str) -> Dataset:
        """Make the data set of a split, without claims that have no positive."""
        sources = tuple(Source(key, "", text) for key, text in self.texts.items())
        claims: list[Claim] = []
        grades: dict[str, dict[str, int]] = {}
        for key, judged in self.grades[split].items():
            golds = tuple(source for source, grade in judged.items() if grade)
            if golds:
                text, language = self.anchors[key]
                claim = Claim(key, text, language or "en", golds=golds)
                claims.append(claim)
                grades[key] = judged
        qrels = Qrels(grades)
        return Dataset(tuple(claims), sources, qrels, split, name)


@dataclass(frozen=True)
class _PairRow:
    """Row in a file of pairs."""

    anchor: str
    positives: tuple[str, ...]
    negatives: tuple[str, ...]
    language: str = ""
    split: str = ""


def read_pairs(path: Path) -> list[Dataset]:
    """Read a file of pairs as the splits of one data set, with all its texts as the pool.

    Equal texts are one source, equal anchors one claim. Rows without an anchor, or without any
    other text, are skipped and counted in a warning.
    """
    problems = Problems()
    pairs = _Pairs()
    for row in _rows(path, problems):
        pair = _pair(row)
        problems.raise_if_any()
        if pair is None:
            pairs.left_out["rows without an anchor or a positive"] += 1
        else:
            pairs.add(pair)
    problems.raise_if_any()

    datasets = [pairs.dataset(path.name, split) for split in pairs.grades]
    splits = [part for part in datasets if part.claims]
    if not splits:
        raise InputError(path, reason="contains no pair of an anchor and a positive")
    for reason, count in pairs.left_out.items():
        log.warning("%s: skipped %d %s", path, count, reason)
    names = [part.split for part in splits]
    if names != [TRAIN]:
        return splits

    try:
        rest, val = carve_val(splits[0], _SHARE, _SEED)
    except ConfigError:
        reason = "needs pairs of two or more positives, because some are held out"
        raise InputError(path, reason=reason) from None
    dev = val.with_claims(val.claims, split=DEV)
    return [rest, dev]


def _text_id(text: str) -> str:
    """Return the id of a text, the same for an anchor and a source: it is not ranked for itself."""
    words = text.split()
    spaced = " ".join(words)
    digest = hashlib.sha256(spaced.encode())
    return "t" + digest.hexdigest()[:15]


def _rows(path: Path, problems: Problems) -> Iterator[Row]:
    suffix = _suffix(path)
    if suffix in _JSON:
        yield from json_records(path, problems)
    elif suffix == _PARQUET:
        yield from _parquet_rows(path, problems)
    else:
        yield from _table_rows(path, problems)


def _table_rows(path: Path, problems: Problems) -> Iterator[Row]:
    known = (*_ANCHOR, *_POSITIVE, *_LANGUAGE, *_LABEL, "negative", "split")
    header, separator, lines = open_spreadsheet(path, problems, known)
    problems.raise_if_any()
    names = [name for name in dict.fromkeys(header) if _is_read(name)]
    _columns(path, header)
    rows = tsv_rows(path, names, problems, lines=lines, delimiter=separator)
    for number, cells in rows:
        record = dict(zip(names, cells, strict=True))
        yield _row(path, number, record, problems)


def _parquet_rows(path: Path, problems: Problems) -> Iterator[Row]:
    from pyarrow import ArrowException, parquet

    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            header = file.schema_arrow.names
            names = [name for name in header if _is_read(name)]
            _columns(path, header)
            for batch in file.iter_batches(columns=names):
                for record in batch.to_pylist():
                    number += 1
                    yield _row(path, number, record, problems)
    except (ArrowException, OSError, ValueError) as error:
        words = str(error).split()
        reason = f"not readable Parquet: {' '.join(words)}"
        problems.add(path, number or None, None, reason)


def _row(
    path: Path,
    number: int,
    record: Mapping[str, object],
    problems: Problems,
) -> Row:
    def complain(name: str, reason: str, kind: str = "", /) -> None:
        problems.add(path, number, name, reason, kind)

    return Row(record, number, complain)


def _is_read(name: str) -> bool:
    small = name.lower()
    known = (
        *_ANCHOR,
        *_POSITIVE,
        *_LANGUAGE,
        *_LABEL,
        "split",
    )
    if small in known:
        return True
    return _NEGATIVE.fullmatch(small) is not None


def _first(names: Mapping[str, str], known: Sequence[str]) -> str | None:
    for name in known:
        if name in names:
            return names[name]
    return None


def _columns(path: Path, header: Sequence[str]) -> None:
    """Raise `InputError` unless a table has an anchor and a positive."""
    names = {name.lower(): name for name in reversed(header)}
    for field_name, known in (("anchor", _ANCHOR), ("positive", _POSITIVE)):
        if _first(names, known) is None:
            others = ", ".join(known[1:])
            listed = ", ".join(header) or "none"
            reason = f"no such column, nor {others}; there are: {listed}"
            raise InputError(path, field=field_name, reason=reason)


def _pair(row: Row) -> _PairRow | None:
    """Parse a row; None if it has no anchor, or nothing else."""
    names: dict[str, str] = {}
    for name in row.record:
        small = name.lower()
        names.setdefault(small, name)
    anchor_name = _first(names, _ANCHOR)
    positive_name = _first(names, _POSITIVE)
    if anchor_name is None or positive_name is None:
        listed = ", ".join(row.record) or "none"
        missing = f"is missing; there are: {listed}"
        if anchor_name is None:
            row.complain("anchor", missing)
        if positive_name is None:
            row.complain("positive", missing)
        return None

    anchors = _texts(row, anchor_name)
    positives = _texts(row, positive_name)
    negatives = _negatives(row, names)
    label_name = _first(names, _LABEL)
    if not _is_positive(row, label_name):
        negatives = [*positives, *negatives]
        positives = []
    language_name = _first(names, _LANGUAGE)
    language = _word(row, language_name)
    split_name = names.get("split")
    split = _word(row, split_name)
    if split:
        reason = _split_error(split)
        if reason:
            row.complain(names["split"], reason)

    has_texts = positives or negatives
    if len(anchors) != 1 or not has_texts:
        return None
    return _PairRow(
        anchors[0],
        tuple(positives),
        tuple(negatives),
        language,
        split,
    )


def _negatives(row: Row, names: Mapping[str, str]) -> list[str]:
    negatives: list[str] = []
    for small, name in names.items():
        if _NEGATIVE.fullmatch(small):
            negatives += _texts(row, name)
    return negatives


def _word(row: Row, name: str | None) -> str:
    """Return a field of one word; "" if it is missing."""
    if name is None:
        return ""
    value = row.record[name]
    if value is None:
        return ""
    text = row.as_text(name, value)
    return text.strip()


def _texts(row: Row, name: str) -> list[str]:
    """Return the texts of a field, which may be a list, without blank ones."""
    value = row.record[name]
    items = value if isinstance(value, list) else [value]
    texts: list[str] = []
    for item in items:
        if item is None:
            continue
        text = row.as_text(name, item).strip()
        if text and text_error(text) is None:
            texts.append(text)
    return texts


def _is_positive(row: Row, name: str | None) -> bool:
    """Whether a row is a positive pair by its label, or has no label."""
    if name is None:
        return True
    value = row.record[name]
    is_blank = isinstance(value, str) and not value.strip()
    if value is None or is_blank:
        return True
    text = str(value)
    try:
        label = float(text)
    except ValueError:
        label = -1.0
    if not 0 <= label <= 1:
        beginning = text[:40]
        row.complain(name, f"{beginning!r} is not a number from 0 to 1, 1 for a pair")
    return label >= 0.5


def _split_error(name: str) -> str | None:
    if re.fullmatch(r"[A-Za-z0-9_.-]{1,60}", name):
        return id_error(name)
    beginning = name[:40]
    return f"{beginning!r} is not the name of a split, such as train"
