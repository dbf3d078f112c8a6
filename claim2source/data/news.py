"""Convert the released files of the cross-genre paper (ADMA 2023), tweets to news, into BEIR."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from claim2source.core.errors import Problems
from claim2source.core.files import file_error
from claim2source.core.records import Claim, Dataset, Qrels, Source, nfkc
from claim2source.data.beir import read_source
from claim2source.data.jsonl import JsonLines
from claim2source.data.text_files import id_error, text_error, text_lines

SPLITS = ("train", "dev", "test")
TITLES = "newsid_title.tsv"
ARTICLES = "news.jsonl"
RSS = "rss.jsonl"
# The paper's section 3.1.
RSS_WORDS = (
    "corona",
    "coronavirus",
    "covid",
    "covid-19",
    "pandemic",
    "quarantine",
)


def names_one(text: str, words: Iterable[str]) -> bool:
    """Whether a text contains one of the keywords as a whole word, in any case."""
    patterns: list[str] = []
    for word in words:
        parts = map(re.escape, word.split())
        patterns.append(r"\s+".join(parts))
    pattern = "|".join(patterns)
    whole_word = rf"(?<!\w)(?:{pattern})(?!\w)"
    found = re.search(whole_word, nfkc(text), re.IGNORECASE)
    return found is not None


def news_files() -> set[str]:
    """Return the names of all files that `read_news` can read."""
    split_files = [f"{split}.tsv" for split in SPLITS]
    return {
        TITLES,
        ARTICLES,
        RSS,
        *split_files,
    }


def read_news(source: Path) -> tuple[list[Dataset], list[str]]:
    """Read the splits of the released files in the folder `source`, with notes on missing files.

    `train.tsv`, `dev.tsv` and `test.tsv` have lines of text, tab, news id, without a header;
    `newsid_title.tsv` has id, tab, title. Two files are optional: `news.jsonl` (records of a BEIR
    corpus) adds bodies (`text`), dates or both to these articles, and `rss.jsonl` has further
    articles, which are added if they contain one of the paper's six keywords. A claim's id is its
    split and line, `dev-17`. Raises `InputError` on bad input, a line per problem.
    """
    problems = Problems()
    splits = [split for split in SPLITS if (source / f"{split}.tsv").exists()]
    wanted_splits = splits or SPLITS[:1]
    for name in (*(f"{split}.tsv" for split in wanted_splits), TITLES):
        reason = file_error(source / name)
        if reason:
            problems.add(source / name, None, None, reason)
    problems.raise_if_any()

    articles = _titles(source / TITLES, problems)
    bodies_note = _add_bodies(source / ARTICLES, articles, problems)
    distractors, rss_note = _distractors(source / RSS, articles, problems)
    claims = {split: _posts(source / f"{split}.tsv", articles, problems) for split in splits}
    problems.raise_if_any()
    notes = [bodies_note, rss_note]
    notes += [f"no {split}.tsv" for split in SPLITS if split not in splits]

    sources = (*articles.values(), *distractors)
    parts: list[Dataset] = []
    for split, claims_of_split in claims.items():
        grades = {claim.id: {claim.golds[0]: 1} for claim in claims_of_split}
        dataset = Dataset(
            tuple(claims_of_split),
            sources,
            Qrels(grades),
            split,
        )
        parts.append(dataset)
    given_notes = [note for note in notes if note]
    return parts, given_notes


def _titles(path: Path, problems: Problems) -> dict[str, Source]:
    titles: dict[str, Source] = {}
    columns = ("id", "title")
    rows = _texts_and_ids(path, columns, problems, id_first=True)
    for line, title, key in rows:
        if key in titles:
            problems.add(path, line, "id", f"{key!r} is repeated")
        article = Source(key, title)
        titles.setdefault(key, article)
    if not titles and not len(problems):
        problems.add(path, None, None, "contains no titles")
    return titles


def _posts(
    path: Path,
    articles: dict[str, Source],
    problems: Problems,
) -> list[Claim]:
    before = len(problems)
    posts: list[Claim] = []
    columns = ("text", "news id")
    rows = _texts_and_ids(path, columns, problems)
    for line, text, news in rows:
        if news not in articles:
            problems.add(path, line, "news id", f"{news!r} is not in {TITLES}")
            continue
        key = f"{path.stem}-{line}"
        post = Claim(key, text, golds=(news,))
        posts.append(post)
    if not posts and len(problems) == before:
        problems.add(path, None, None, "no posts")
    return posts


def _texts_and_ids(
    path: Path,
    columns: tuple[str, str],
    problems: Problems,
    *,
    id_first: bool = False,
) -> Iterator[tuple[int, str, str]]:
    """Yield line, text and id of every line; a text may contain tabs."""
    of_id, of_text = columns if id_first else columns[::-1]
    for number, line in text_lines(path, problems):
        if line is None or not line.strip():
            continue
        line = line.rstrip("\r\n")
        if id_first:
            key, tab, text = line.partition("\t")
        else:
            text, tab, key = line.rpartition("\t")
        if not tab:
            problems.add(path, number, None, f"must be {' <tab> '.join(columns)}")
            continue

        key = key.strip()
        text = _unquoted(text)
        id_reason = id_error(key)
        text_reason = text_error(text) if text.strip() else "is empty"
        if id_reason:
            problems.add(path, number, of_id, id_reason)
        if text_reason:
            problems.add(path, number, of_text, text_reason)
        is_valid = not (id_reason or text_reason)
        if is_valid:
            yield number, text, key


def _unquoted(cell: str) -> str:
    inner = cell[1:-1]
    is_quoted = len(cell) >= 2 and cell[0] == '"' and cell[-1] == '"'
    if not is_quoted:
        return cell
    without_pairs = inner.replace('""', "")
    if '"' in without_pairs:
        return cell
    return inner.replace('""', '"')


def _add_bodies(
    path: Path,
    articles: dict[str, Source],
    problems: Problems,
) -> str:
    if not path.exists():
        return f"no {ARTICLES}: articles have only a title"
    lines = JsonLines(path, problems)
    for row in lines.rows():
        if row.key not in articles:
            problems.add(path, row.line, "_id", f"{row.key!r} is not in {TITLES}")
            continue
        title = articles[row.key].title
        own_title = row.text("title")
        if not own_title.strip():
            row.record = {**row.record, "title": title}
        article = read_source(row)
        articles[row.key] = replace(article, title=title)
    with_body = sum(bool(article.abstract.strip()) for article in articles.values())
    return f"{with_body} of {len(articles)} articles have a body"


def _distractors(
    path: Path,
    article_ids: Collection[str],
    problems: Problems,
) -> tuple[list[Source], str]:
    if not path.exists():
        return [], ""
    sources: list[Source] = []
    count = 0
    lines = JsonLines(path, problems)
    for row in lines.rows():
        source = read_source(row)
        count += 1
        if row.key in article_ids:
            problems.add(path, row.line, "_id", f"{row.key!r} is in {TITLES} too")
        text = f"{source.title}\n{source.abstract}"
        if names_one(text, RSS_WORDS):
            sources.append(source)
    note = f"{len(sources)} of {count} articles of {RSS} have one of the six keywords"
    return sources, note
