"""Convert the files of CheckThat! 2025 Task 4b into the native layout."""

from __future__ import annotations

from pathlib import Path

from claim2source.core.errors import Problems
from claim2source.core.files import why_not_file
from claim2source.core.records import Claim, Dataset, Qrels, Source
from claim2source.datasets.authors import turned_names
from claim2source.datasets.beir import check_folders, write_beir
from claim2source.datasets.frame_pickle import read_frame
from claim2source.io.jsonl import Row
from claim2source.io.text_files import tsv_rows, why_not_id, why_not_text

COLLECTION = "subtask4b_collection_data.pkl"
TWEETS = "subtask4b_query_tweets_{}.tsv"
COLUMNS = ("cord_uid", "title", "abstract", "authors", "journal", "publish_time")


def prepare(source: str | Path, target: str | Path, *, overwrite: bool = False) -> list[Dataset]:
    """Read the task's folder `source`, write a BEIR folder `target`, return the splits.

    Claim ids are `<split>-<post_id>`. train and dev are required; test is taken from the gold
    file if it exists, else from the tweets alone (without qrels), else left out. Raises
    `InputError` on bad input, a line per problem, and `UserError` where `target` holds anything
    but, with `overwrite`, an older BEIR folder; nothing is written then.
    """
    source, target = Path(source), Path(target)
    check_folders(source, target, overwrite)
    problems = Problems()
    for name in (COLLECTION, TWEETS.format("train"), TWEETS.format("dev")):
        if why := why_not_file(source / name):
            problems.add(source / name, None, None, why)
    problems.raise_if_any()

    papers = read_collection(source / COLLECTION, problems)
    known = {paper.id for paper in papers}
    splits = []
    for split in ("train", "dev", "test"):
        gold, plain = source / TWEETS.format(f"{split}_gold"), source / TWEETS.format(split)
        if split == "test" and not gold.is_file() and not plain.is_file():
            continue
        judged = split != "test" or gold.is_file()
        path = gold if split == "test" and judged else plain
        splits.append(_read_split(path, split, papers, known if judged else None, problems))
        if path == gold and plain.is_file():
            _same_posts(plain, gold, problems)
    problems.raise_if_any()
    write_beir(splits, target, overwrite=overwrite)
    return splits


def read_collection(path: Path, problems: Problems) -> tuple[Source, ...]:
    """Read the papers of the collection pickle, in order; bad rows are added to `problems`."""
    table = read_frame(path)
    for column in COLUMNS:
        if column not in table:
            problems.add(path, None, column, "the column is missing")
    problems.raise_if_any()
    row_of: dict[str, int] = {}
    papers = []
    for number, cells in enumerate(zip(*(table[column] for column in COLUMNS), strict=True)):

        def complain(field: str, why: str, kind: str = "", /, number: int = number) -> None:
            problems.add(path, None, field, f"row {number}: {why}")

        row = Row(dict(zip(COLUMNS, cells, strict=True)), number, complain)
        key = row.as_id("cord_uid", row.record["cord_uid"]) or ""
        if key and row_of.setdefault(key, number) != number:
            complain("cord_uid", f"{key!r} is already in row {row_of[key]}")
        row.require_either("title", "abstract")
        title, abstract, authors, venue, date = map(row.text, COLUMNS[1:])
        papers.append(Source(key, title, abstract, turned_names(authors), venue, date))
    if not papers:
        problems.add(path, None, None, "holds no papers")
    return tuple(papers)


def _read_split(
    path: Path, split: str, papers: tuple[Source, ...], known: set[str] | None, problems: Problems
) -> Dataset:
    """Read one split; `known` holds the ids that a gold may have, None where golds are unknown."""
    before = len(problems)
    claims: list[Claim] = []
    grades: dict[str, dict[str, int]] = {}
    line_of: dict[str, int] = {}
    columns = ["post_id", "tweet_text", *(["cord_uid"] if known is not None else [])]
    for line, (post, tweet, *golds) in tsv_rows(path, columns, problems):
        whys = [why_not_id(post), why_not_text(tweet), *map(why_not_id, golds)]
        if line_of.setdefault(post, line) != line:
            problems.add(path, line, "post_id", f"{post!r} is already on line {line_of[post]}")
        if not tweet.strip():
            whys[1] = "is empty"
        for gold in golds:
            if known is not None and gold and gold not in known:
                whys[2] = f"gold {gold!r} is not in {COLLECTION}"
        for column, why in zip(columns, whys, strict=True):
            if why:
                problems.add(path, line, column, why)
        key = f"{split}-{post}"
        claims.append(Claim(key, tweet, golds=tuple(filter(None, golds))))
        if claims[-1].golds:
            grades[key] = dict.fromkeys(claims[-1].golds, 1)
    if not claims and len(problems) == before:
        problems.add(path, None, None, "empty split: no posts")
    return Dataset(tuple(claims), papers, Qrels(grades), split)


def _same_posts(plain: Path, gold: Path, problems: Problems) -> None:
    judged = {post for _, (post,) in tsv_rows(gold, ["post_id"], Problems())}
    for line, (post,) in tsv_rows(plain, ["post_id"], problems):
        if post not in judged:
            problems.add(plain, line, "post_id", f"{post!r} is not in {gold.name}")
