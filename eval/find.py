"""Find the papers that a post may mean: `python eval/find.py "POST" --index DIR`.

POST is a text, `-` for standard input, or with --fetch the URL of a post on Bluesky or Mastodon.
Prints the top papers with the reasons for each, and whether the post's paper is probably not
among them. For a file of posts, such as a spreadsheet: `--input posts.xlsx --out found.xlsx`.
"""

from __future__ import annotations

import logging
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Annotated

from claim2source import __version__
from claim2source.core.config import (
    Between,
    flag,
    list_field,
    read_config,
    require,
)
from claim2source.core.errors import run_program
from claim2source.core.files import content_hash, file_hash, refuse_input, require_writable
from claim2source.core.languages import primary_language
from claim2source.core.positionals import with_positionals
from claim2source.core.program import next_command
from claim2source.core.progress import Progress
from claim2source.core.terminal import printable_line, say
from claim2source.data.fetch import Fetcher, posts_from
from claim2source.data.post_tables import table_separator
from claim2source.data.posts import Post
from claim2source.data.store import Store
from claim2source.find.bulk import Asking, PostsToAnswer, answer_all
from claim2source.find.finder import Finder, FinderOptions, post_language, with_index
from claim2source.find.journal import Journal, answer_rest
from claim2source.find.marks import NONE, Mark, MarksFile, add_mark, add_marks
from claim2source.find.result_tables import (
    ENDINGS,
    csv_lines,
    json_line,
    require_kind,
    result_columns,
    write_table,
)
from claim2source.find.several import open_finders
from claim2source.models.config import ModelConfig
from claim2source.models.hub import require_model
from claim2source.models.local import with_local_models
from claim2source.search.engine import Engine
from claim2source.search.on_demand import unencoded_summary
from claim2source.search.rows import Where
from claim2source.search.shards import Shards, open_indexes
from claim2source.text.language import CODES, load_detector

log = logging.getLogger(__name__)

# The keys that people need first.
COMMON = (
    "post",
    "index",
    "input",
    "out",
    "k",
    "lang",
    "date",
    "json",
    "fetch",
    "translator",
)

AUTO = "auto"


@dataclass(frozen=True)
class FindConfig(FinderOptions):
    """Settings of `eval/find.py`; POST may come before or after the options.

    Args:
        post: a post's text, `-` to read it from standard input, or with --fetch its URL.
        input: a file of many posts: JSON or JSON lines, .csv, .tsv or .xlsx with a column such as
            text or post (--columns maps others), or an export of Mastodon, Bluesky, X, Reddit or
            Telegram.
        lang: the post's language, such as de; auto detects it.
        date: day of the post; papers that were published later are left out.
        venue: only papers of this venue.
        paper_lang: only papers in this language, such as en.
        k: number of papers to print.
        mark: id of the paper that the post means, or `none` if it is not in the index. It is stored
            as a mark, to which `index` fits the verdict; no search is done.
        marks: file of the marks; none: FOLDER.marks.jsonl next to the index's folder.
        out: file of the answers to `input`, .csv, .xlsx or .jsonl: the input's columns and each
            paper. The same command resumes a stopped run.
        at: version of the index to search, as an earlier answer names it; none: the newest.
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
    out: Path | None = None
    at: Annotated[int, Between(1, 10**9)] | None = None
    columns: list[str] = list_field(
        [],
        help="columns of --input: FIELD=COLUMN, such as text=tweet; the fields are text, id, lang, "
        "date and translation",
    )
    json: bool = flag("print the papers as JSON; with --input one object per line")
    csv: bool = flag("print one CSV row per paper")
    bibtex: bool = flag("print every paper as BibTeX")
    fetch: bool = flag("fetch the post from a URL of Bluesky or Mastodon")
    instances: list[str] = list_field([], help="further Mastodon hosts for --fetch")

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
        self._check_out()
        several = self.json + self.csv + self.bibtex > 1
        require(not several, "csv", True, "one of --json, --csv and --bibtex")
        require(not self.instances or self.fetch, "instances", self.instances, "none without fetch")
        if self.mark is not None:
            require(bool(self.mark.strip()), "mark", self.mark, f"id of a paper, or {NONE}")
            require(self.post is not None, "mark", self.mark, "none with --input")
        is_marked = self.mark is not None or self.marks is None
        require(is_marked, "marks", self.marks, "none without --mark")
        good = self.at is None or len(self.index) == 1
        require(good, "at", self.at, "none with several indexes: each has its own versions")
        self.where  # noqa: B018  checks date and language

    def _check_out(self) -> None:
        out = self.out
        if out is None:
            return
        require(out.suffix.lower() in ENDINGS, "out", out, f"a file named {', '.join(ENDINGS)}")
        require(self.input is not None, "out", out, "none without --input")
        printed = self.json or self.csv or self.bibtex
        require(not printed, "out", out, "none with --json, --csv and --bibtex")

    @property
    def column_map(self) -> dict[str, str]:
        """Map the fields of a post to the columns that --columns names."""
        return dict(pair.split("=", 1) for pair in self.columns)

    @property
    def form(self) -> str:
        """Return the format of printed answers."""
        forms = {"bibtex": self.bibtex, "csv": self.csv, "json": self.json}
        return next((name for name, is_set in forms.items() if is_set), "text")

    @property
    def where(self) -> Where:
        """Return the filter of the papers to search."""
        return Where(self.date, self.paper_lang, self.venue)


def main(argv: Sequence[str] | None = None) -> None:
    """Print the papers for one post, or for each of several."""
    words = with_positionals(FindConfig, sys.argv[1:] if argv is None else argv, ("post",))
    words = with_index(words)
    config = read_config(
        FindConfig,
        words,
        program="eval/find.py",
        description=__doc__,
        common=COMMON,
        positionals=("post",),
    )
    find(config)


@with_local_models
def find(config: FindConfig) -> None:
    """Search an index for posts, and print or write the answers."""
    fetcher = Fetcher(tuple(config.instances)) if config.fetch else None
    is_table = config.out is not None or config.form in ("csv", "json")
    if config.input is not None and is_table:
        find_rows(config, config.input, fetcher)
        return
    posts = posts_from(config.post, config.input, fetcher, config.column_map)
    if config.lang != AUTO:
        posts = (replace(post, lang=config.lang) for post in posts)
    # A post or file is read before the index and the model, so that errors come early.
    posts = chain([next(posts)], posts)
    engine = open_asked(config)
    if config.mark is not None:
        mark_post(engine, next(posts), config)
        return

    from claim2source.find.answers import blocks

    one_post = config.post is not None
    finder = open_finders(config, engine, Store(config.store), progress=True, one_post=one_post)
    answers = finder.find_each(posts, config.k, config.where)
    try:
        for block in blocks(answers, config.form, several=config.input is not None):
            say(block)
    finally:
        engine.close()
    warn_of_failures(finder)


def mark_post(engine: Engine, post: Post, config: FindConfig) -> None:
    """Store which paper a post means, and print the number of marks."""
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
    """Describe how many marks an index has, and the next command."""
    marks = file.read()
    if marks.missing:
        return f"{marks}; `index` needs {marks.missing} more to fit the verdict"
    words = ("--claims", str(marks.path), "--out", location)
    return f"{marks}; next: {next_command('eval/index.py')} {shlex.join(words)}"


def open_asked(config: FindConfig) -> Engine:
    """Open the index, after checking the other things that it needs."""
    if config.model is not None:
        require_model(ModelConfig(name=config.model))
    if config.lang == AUTO:
        load_detector()
    return open_indexes(config.index, config.at)


def find_rows(config: FindConfig, file: Path, fetcher: Fetcher | None) -> None:
    """Answer every record of a file: into --out, or as CSV or JSON lines."""
    out = config.out
    if out is not None:
        require_writable(out, "file")
        refuse_input(out, [file])
    posts = PostsToAnswer(file, config.column_map)
    if out is not None:
        require_kind(out, 1 + posts.posts * config.k + posts.left_out.total())
    lang = "" if config.lang == AUTO else config.lang
    asking = Asking(config.k, config.where, lang, fetcher)
    asking.require_post(posts)
    engine = open_asked(config)
    try:
        if out is None:
            print_rows(config, engine, posts, asking)
        else:
            write_rows(config, engine, posts, asking)
    finally:
        engine.close()


def print_rows(config: FindConfig, engine: Engine, posts: PostsToAnswer, asking: Asking) -> None:
    """Print each answer as soon as it is there."""
    finder = open_finders(config, engine, Store(config.store), progress=True)
    # A progress bar would be mixed with the lines.
    name = None if sys.stdout.isatty() else "find"
    with Progress(name, posts.posts) as progress:
        outcomes = answer_all(finder, posts, asking, progress)
        answered = posts.with_outcomes(outcomes)
        result = result_columns(engine.names)
        lines: Iterator[str] = csv_lines(list(posts.columns), answered, result=result)
        if config.form == "json":
            lines = (json_line(*pair) for pair in answered)
        for line in lines:
            say(line)
    warn_of_failures(finder)


def write_rows(config: FindConfig, engine: Engine, posts: PostsToAnswer, asking: Asking) -> None:
    """Write the answers into --out, after those of an earlier run that was stopped."""
    out = config.out
    assert out is not None
    ids = (post.id for post in posts.to_answer())
    with Journal(out, asked(config, engine, posts), ids) as journal:
        if journal.done:
            say(f"{out}: resumes after {journal.done} of {posts.posts} posts")
        if journal.done < posts.posts:
            finder = open_finders(config, engine, Store(config.store), progress=True)
            answer_rest(finder, posts, asking, journal)
            warn_of_failures(finder)
        answered = posts.with_outcomes(journal.outcomes())
        result = result_columns(engine.names)
        write_table(out, list(posts.columns), answered, table_separator(posts.path), result)
        journal.remove()
    say(summary(out, posts, journal))


def warn_of_failures(finder: Finder) -> None:
    """Describe how many posts the translator or the index's model failed for; "" if none."""
    if finder.translators is not None and (summary := finder.translators.summary()):
        log.warning("%s", printable_line(summary))
    if finder.unencoded:
        log.warning("%s", printable_line(unencoded_summary(finder.unencoded)))


def asked(config: FindConfig, engine: Engine, posts: PostsToAnswer) -> dict[str, object]:
    """Return hashes of the input, the index and the settings, which the answers depend on."""
    where = (config.date, config.venue, config.paper_lang, config.lang)
    pipeline = None if config.pipeline is None else file_hash(config.pipeline)
    model = None if config.model is None else str(config.model)
    settings = (where, pipeline, config.system, config.threshold, config.fetch, model)
    engines = list(engine.indexes().values()) if isinstance(engine, Shards) else [engine]
    states: list[str] = []
    for own in engines:
        manifest = own.manifest
        fitted = (manifest.abstain, manifest.translator)
        state = (own.location, own.version, manifest.model_hash, manifest.papers, *fitted)
        states += map(str, state)
    return {
        "the input": posts.hash,
        "the index": content_hash(states),
        "k": config.k,
        "a setting": content_hash([*settings, config.translate, repr(config.translator)]),
        "the program": __version__,
    }


def summary(out: Path, posts: PostsToAnswer, journal: Journal) -> str:
    """Count the input's records: those with an answer and those that were skipped."""
    reasons = dict(posts.left_out.most_common())
    if journal.left_out:
        reasons["posts that could not be read or searched"] = journal.left_out
    omitted = sum(reasons.values())
    listed = ", ".join(f"{count} {reason}" for reason, count in reasons.items())
    answered = posts.posts - journal.left_out
    records = posts.posts + posts.left_out.total()
    counts = f"{out}: {records} posts: {answered} answered, {omitted} left out"
    return f"{counts} ({listed})" if omitted else counts


if __name__ == "__main__":
    run_program(main)
