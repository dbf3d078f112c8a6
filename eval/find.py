"""Find the papers that a post may mean: `python eval/find.py "POST" --index DIR`.

POST is a text, `-` for standard input, or with --fetch the address of a post on Bluesky or
Mastodon. The first papers are printed with the reasons for them, and whether the paper is
probably none of these.
"""

from __future__ import annotations

import logging
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Annotated

from claim2source.core.config import (
    Between,
    flag,
    list_field,
    read_config,
    require,
)
from claim2source.core.errors import run_program
from claim2source.core.languages import primary_language
from claim2source.core.positionals import with_positionals
from claim2source.core.program import program_command
from claim2source.core.terminal import printable_line, say
from claim2source.data.fetch import Fetcher, posts_from
from claim2source.data.posts import Post
from claim2source.data.store import Store
from claim2source.find.finder import FinderOptions, post_language, with_index
from claim2source.find.marks import NONE, Mark, MarksFile, add_mark, add_marks
from claim2source.models.config import ModelConfig
from claim2source.models.hub import require_model
from claim2source.models.local import with_local_models
from claim2source.search.engine import Engine
from claim2source.search.rows import Where
from claim2source.search.shards import Shards, open_indexes
from claim2source.text.language import CODES, load_detector

log = logging.getLogger(__name__)

AUTO = "auto"


@dataclass(frozen=True)
class FindConfig(FinderOptions):
    """Settings of `eval/find.py`; POST may stand before or after the options.

    Args:
        post: a post's text, `-` to read it from standard input, or with --fetch its address.
        input: posts in place of one: JSON or JSON lines, a .csv, .tsv or .xlsx file, or an export
            of Mastodon, Bluesky, X, Reddit or Telegram.
        lang: the post's language, such as de; auto detects it.
        date: day of the post: only papers published until then, or on an unknown day, count.
        venue: only papers of this venue.
        paper_lang: only papers in this language, such as en.
        k: papers to print.
        mark: id of the paper that the post means, or `none` of the index: the answer is kept as a
            mark, to which `index` fits abstention, and nothing is searched.
        marks: file of the marks; none: FOLDER.marks.jsonl beside the index's folder.
        at: version of the index to ask, as an earlier answer names it; none: the newest.
    """

    post: str | None = None
    input: Path | None = None
    lang: str = AUTO
    date: str | None = None
    venue: str | None = None
    paper_lang: str | None = None
    k: Annotated[int, Between(1, 1_000)] = 10
    mark: str | None = None
    marks: Path | None = None
    at: Annotated[int, Between(1, 10**9)] | None = None
    columns: list[str] = list_field(
        [], help="of --input: FIELD=COLUMN, such as text=tweet; id, text, lang, date, translation"
    )
    json: bool = flag("print a list of papers as JSON; with --input one object a line")
    csv: bool = flag("print a row for each paper")
    bibtex: bool = flag("print every paper as BibTeX")
    fetch: bool = flag("read the post at an address of Bluesky or Mastodon")
    instances: list[str] = list_field([], help="further hosts of Mastodon for --fetch")

    def check(self) -> None:
        is_one = (self.post is None) != (self.input is None)
        require(is_one, "post", self.post, "a post, or --input FILE")
        super().check()
        is_file = self.input is not None or not self.columns
        require(is_file, "columns", self.columns, "none without --input")
        for pair in self.columns:
            require("=" in pair, "columns", pair, "FIELD=COLUMN")
        good = self.lang == AUTO or primary_language(self.lang) in CODES
        require(good, "lang", self.lang, "auto, or a language's ISO 639-1 code such as de")
        several = self.json + self.csv + self.bibtex > 1
        require(not several, "csv", True, "one of --json, --csv and --bibtex")
        require(not self.instances or self.fetch, "instances", self.instances, "none without fetch")
        if self.mark is not None:
            require(bool(self.mark.strip()), "mark", self.mark, f"id of a paper, or {NONE}")
            require(self.post is not None, "mark", self.mark, "none with --input")
        is_marked = self.mark is not None or self.marks is None
        require(is_marked, "marks", self.marks, "none without --mark")
        good = self.at is None or len(self.index) == 1
        require(good, "at", self.at, "none with several indexes: each has versions of its own")
        self.where  # noqa: B018  it checks date and language

    @property
    def where(self) -> Where:
        """Restrict the search to some papers."""
        return Where(self.date, self.paper_lang, self.venue)


def main(argv: Sequence[str] | None = None) -> None:
    """Print the papers for one post, or for each of several."""
    words = with_positionals(FindConfig, sys.argv[1:] if argv is None else argv, ("post",))
    find(read_config(FindConfig, with_index(words), program="eval/find.py", description=__doc__))


@with_local_models
def find(config: FindConfig) -> None:
    """Search an index for posts, and print the answers."""
    fetcher = Fetcher(tuple(config.instances)) if config.fetch else None
    columns = dict(pair.split("=", 1) for pair in config.columns)
    posts = posts_from(config.post, config.input, fetcher, columns)
    if config.lang != AUTO:
        posts = (replace(post, lang=config.lang) for post in posts)
    # A post or file that cannot be read is known before index and model are.
    posts = chain([next(posts)], posts)
    if config.model is not None:
        require_model(ModelConfig(name=config.model))
    if config.lang == AUTO:
        load_detector()
    engine = open_indexes(config.index, config.at)
    if config.mark is not None:
        mark_post(engine, next(posts), config)
        return

    from claim2source.find.answers import blocks
    from claim2source.find.several import open_finders

    one_post = config.post is not None
    finder = open_finders(config, engine, Store(config.store), progress=True, one_post=one_post)
    answers = finder.find_each(posts, config.k, config.where)
    forms = {"bibtex": config.bibtex, "csv": config.csv, "json": config.json}
    form = next((name for name, is_set in forms.items() if is_set), "text")
    for block in blocks(answers, form, several=config.input is not None):
        say(block)
    if finder.translators is not None and (summary := finder.translators.summary()):
        log.warning("%s", printable_line(summary))


def mark_post(engine: Engine, post: Post, config: FindConfig) -> None:
    """Keep which paper a post means, and say how many marks there are."""
    file = None if config.marks is None else MarksFile(config.marks)
    paper = None if config.mark in (None, NONE) else config.mark
    lang, date = post_language(post, engine), config.date or post.date
    if isinstance(engine, Shards):
        mark = add_marks(engine, file, Mark(post.text, paper, lang, date), config.store)
        index, locations = mark.index, [own.location for own in engine.indexes().values()]
        meaning = "none of the indexes" if paper is None else f"{paper} of {index}"
    else:
        locations = [engine.location]
        own_file = file or MarksFile.beside(engine.location, config.store)
        add_mark(engine, own_file, post.text, lang, date, paper)
        meaning = "none of the index" if paper is None else paper
    say(f"marked: {meaning}")
    for location in locations:
        say(next_mark(file or MarksFile.beside(location, config.store), location))


def next_mark(file: MarksFile, location: str) -> str:
    """Say how many marks an index has, and what comes next."""
    marks = file.read()
    if marks.missing:
        return f"{marks}; {marks.missing} more are missing until `index` fits abstention to them"
    words = ("--claims", str(marks.path), "--out", location)
    return f"{marks}; next: {program_command('eval/index.py')} {shlex.join(words)}"


if __name__ == "__main__":
    run_program(main)
