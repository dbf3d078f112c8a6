"""Load a data set from a folder or its name, or from tables of papers, posts and pairs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from claim2source.core.config import require
from claim2source.core.errors import ConfigError, InputError
from claim2source.core.records import Dataset, Table
from claim2source.data.beir import (
    OF_CLAIMS,
    OF_SOURCES,
    QRELS,
    SplitJudgements,
    assembled,
    read_beir,
    read_claims,
    read_judgements,
)
from claim2source.data.folders import dataset_folder
from claim2source.data.frames import (
    ANY_TABLE,
    CLAIM_COLUMNS,
    GRADE_COLUMNS,
    SOURCE_COLUMNS,
    Frame,
    FrameRecords,
    cell_text,
)
from claim2source.data.lenient import TABLES, Traits

PAPERS, POSTS, PAIRS = "papers", "posts", "pairs"
# Keys of a BEIR file, each with its possible columns; the first one that exists is used.
_OF_PAPERS: Mapping[str, Sequence[str]] = {
    "_id": ("_id", "id", *SOURCE_COLUMNS[:-1]),
    "title": ("title",),
    "text": ("text", "abstract"),
}
_OF_POSTS: Mapping[str, Sequence[str]] = {
    "_id": ("_id", "id", *CLAIM_COLUMNS[:-1]),
    "text": ("text", "query"),
}


def load(
    folder: str | Path | None = None,
    split: str | None = None,
    languages: Sequence[str] | None = None,
    *,
    papers: Table | None = None,
    posts: Table | None = None,
    pairs: Table | None = None,
    columns: Mapping[str, str] | None = None,
    lenient: bool = False,
) -> Dataset:
    """Load one split of a data set from its folder or name, or from tables.

    The name `demo` is the packaged set; another plain name that is not a folder here is looked up
    in the folder CLAIM2SOURCE_DATA.

    Claims are those with judgements in `qrels/<split>.tsv`, in the order of queries.jsonl; their
    `golds` are the sources graded above 0. Sources are the entire corpus. Claims without judgements
    belong to a split by their `metadata.split`, or, if the split has no qrels file, by an id that
    begins with `<split>-`; their golds are empty. A source with a claim's id is the claim itself,
    unless it is judged to be its gold, and is never ranked for it.

    `papers`, `posts` and `pairs` are pandas frames, Hugging Face `Dataset`s, lists of dicts, or
    lists of texts (with the ids `paper-1`, `post-1`, ..). They replace the three files and are
    checked in the same way. `columns` maps other names to these: `{"tweet": "text"}`. Papers have
    the columns `_id` (or `id`), `title`, `text` (or `abstract`); posts have `_id` (or `id`) and
    `text` (or `query`). Metadata is a column `metadata` or separate columns (`authors`, `venue`,
    `date`; `lang`, `translation`, `split`, `candidates`). Pairs are judgements by id: `query-id`
    (or `query_id`, `qid`, `claim`), `corpus-id` (or `corpus_id`, `doc_id`, `docno`, `docid`,
    `source`) and optionally `score` (or `relevance`, `label`; 1 by default). Without pairs no post
    has a gold. Errors name the row, counted from 1: `posts:3: text: is empty`.

    With `lenient`, or `lenient: true` in the folder's `dataset.yaml`, sources and claims that are
    empty or repeated are skipped, and so are judgements of unknown claims and metadata with another
    meaning. Unknown golds stay in the judgements, but are never found. If a source is judged twice
    for a claim, the highest grade is used; decimal grades are truncated. Omissions and changes are
    logged and listed in the data set's `notes`.

    Raises `InputError` on bad input (a line per problem) and `ConfigError` for a language without
    claims in the split.

    Example:
        >>> import claim2source as c2s
        >>> dev = c2s.load("demo", "dev", ["de"])
        >>> {claim.lang for claim in dev.claims}, len(dev.sources) > 400
        ({'de'}, True)
    """
    tables = {PAPERS: papers, POSTS: posts, PAIRS: pairs}
    names = [name for name, table in tables.items() if table is not None]
    if folder is None:
        require(bool(names), "load", None, "a folder and a split, or papers, posts and pairs")
        return _load_tables(tables, columns or {}, split or "test", languages, lenient)
    if not isinstance(folder, str | Path):
        raise ConfigError(
            "folder", type(folder).__name__, "a path or name; or papers=, posts=, pairs="
        )
    require(not names, "folder", folder, f"none together with {' and '.join(names)}")
    require(not columns, "columns", columns, "none for a folder, whose files have fixed keys")
    require(split is not None, "split", split, "the name of a split, such as dev")
    return read_beir(dataset_folder(folder), str(split), languages, lenient=lenient)


def require_golds(folder: str | Path, split: str, *, lenient: bool = False) -> None:
    """Raise `UserError` if no claim of a split has a gold; only its judgements are read.

    If they contain none, the data set is loaded, so that its own errors are reported first.
    """
    path = dataset_folder(folder) / QRELS / f"{split}.tsv"
    if path.is_file():
        with path.open(encoding="utf-8", errors="replace") as lines:
            if any(map(_is_gold, lines)):
                return
    if not load(folder, split, lenient=lenient).golds:
        reason = f"no claim of {split!r} has a gold: qrels/{split}.tsv has none, or does not exist"
        raise InputError(dataset_folder(folder), field="split", reason=reason)


def _is_gold(line: str) -> bool:
    try:
        return float(line.rpartition("\t")[2]) > 0
    except ValueError:
        return False


def _load_tables(
    tables: Mapping[str, Table | None],
    columns: Mapping[str, str],
    split: str,
    languages: Sequence[str] | None,
    lenient: bool,
) -> Dataset:
    problems = Traits(None, lenient)
    frames: dict[str, Frame] = {}
    for name, table in tables.items():
        if table is not None:
            frames[name] = Frame(table, name, columns)
    _check_renamed(columns, frames.values())
    for name in (PAPERS, POSTS):
        if name not in frames:
            raise ConfigError(name, None, ANY_TABLE)
    corpus = FrameRecords(frames[PAPERS], problems, _OF_PAPERS, OF_SOURCES)
    queries = FrameRecords(frames[POSTS], problems, _OF_POSTS, OF_CLAIMS)
    problems.raise_if_any()  # reports a missing column once, not for every row
    read = read_claims(queries)
    if not read and queries.complete:
        problems.add(queries.path, None, None, "contains no claims")
    if PAIRS in frames:
        judged = _read_pairs(frames[PAIRS], problems)
    else:
        # There is no other split to which they could belong.
        read = [query._replace(split=query.split or split) for query in read]
        judged = SplitJudgements(Path(PAIRS), None)
    return assembled(
        queries,
        read,
        corpus,
        judged,
        split=split,
        name=TABLES,
        problems=problems,
        languages=languages,
    )


def _check_renamed(columns: Iterable[str], frames: Collection[Frame]) -> None:
    """Raise `ConfigError` if no table has a column that should be renamed."""
    available = {column for frame in frames for column in frame.names}
    listed = ", ".join(sorted(available))
    for old in columns:
        require(old in available, "columns", old, f"a column of a table; there are: {listed}")


def _read_pairs(pairs: Frame, problems: Traits) -> SplitJudgements:
    claim = pairs.choose(CLAIM_COLUMNS)
    source = pairs.choose(SOURCE_COLUMNS)
    grades = next((name for name in GRADE_COLUMNS if name in pairs.columns), None)
    names = (claim, source, grades or GRADE_COLUMNS[0])
    rows = _judged_rows(pairs, claim, source, grades)
    judgements = read_judgements(rows, Path(PAIRS), problems, names)
    return SplitJudgements(Path(PAIRS), judgements, names)


def _judged_rows(
    pairs: Frame, claim: str, source: str, grades: str | None
) -> Iterator[tuple[int, list[str]]]:
    columns = [pairs.column(claim), pairs.column(source)]
    columns += [pairs.column(grades) if grades else ["1"] * len(columns[0])]
    for number, cells in enumerate(zip(*columns, strict=True), start=1):
        yield number, [cell_text(cell) for cell in cells]
