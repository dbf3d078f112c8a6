"""Find the papers that a post may mean: `python eval/find.py "POST" --index DIR`.

POST is a text, `-` for standard input, or with --fetch the address of a post on Bluesky or
Mastodon. The first papers are printed with the reasons for them, and whether the paper is
probably none of these.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from claim2source.core.config import flag, list_field, read_config, require, require_between
from claim2source.core.errors import ConfigError, InputError, UserError, run_program
from claim2source.core.keys import with_places
from claim2source.core.terminal import say
from claim2source.engines import Where, open_engine
from claim2source.io.fetch import Fetcher, is_address
from claim2source.io.posts import MOST, Post, read_posts
from claim2source.io.store import Store

INDEX = "CLAIM2SOURCE_INDEX"
AUTO = "auto"


@dataclass(frozen=True)
class FindConfig:
    """Settings of `eval/find.py`; POST may stand first.

    Args:
        post: a post's text, `-` to read it from standard input, or with --fetch its address.
        input: JSON lines of posts, {"text"} with perhaps "id", "lang", "date" and "translation",
            in place of one post.
        index: folder of the index; none: CLAIM2SOURCE_INDEX.
        lang: the post's language, such as de; auto detects it.
        date: day of the post: only papers published until then, or on an unknown day, count.
        venue: only papers of this venue.
        paper_lang: only papers in this language, such as en.
        k: papers to print.
        pipeline: YAML file of a system whose stages follow the index, which is its first stage.
        system: which system of that file; none: the one that has stages.
        threshold: probability that the paper is there below which it is none of these; none: as
            it was fitted to the index.
        model: the model that made the index, where it lies elsewhere now.
        store: folder of the store, in which stages keep what they gave; none: the user's cache.
        device: none takes a GPU if there is one.
    """

    post: str | None = None
    input: Path | None = None
    index: str | None = None
    lang: str = AUTO
    date: str | None = None
    venue: str | None = None
    paper_lang: str | None = None
    k: int = 10
    pipeline: Path | None = None
    system: str | None = None
    threshold: float | None = None
    model: str | None = None
    store: Path | None = None
    device: Literal["cpu", "cuda"] | None = None
    json: bool = flag("print a list of papers as JSON; with --input one object a line")
    csv: bool = flag("print a row for each paper")
    bibtex: bool = flag("print every paper as BibTeX")
    fetch: bool = flag("read the post at an address of Bluesky or Mastodon")
    instances: list[str] = list_field(str, [], help="further hosts of Mastodon for --fetch")

    def __post_init__(self) -> None:
        one = (self.post is None) != (self.input is None)
        require(one, "post", self.post, "a post, or --input FILE")
        require(self.index is not None, "index", None, f"a folder, or {INDEX}")
        good = self.lang == AUTO or re.fullmatch("[a-z]{2,3}", self.lang) is not None
        require(good, "lang", self.lang, "auto, or a language code such as de")
        require_between("k", self.k, 1, 1_000)
        require_between("threshold", self.threshold, 0, 1, none=True)
        several = self.json + self.csv + self.bibtex > 1
        require(not several, "csv", True, "one of --json, --csv and --bibtex")
        require(self.system is None or self.pipeline is not None, "system", self.system, "none")
        require(not self.instances or self.fetch, "instances", self.instances, "none without fetch")
        self.where  # noqa: B018  it checks date and language

    @property
    def where(self) -> Where:
        """Say among which papers to search."""
        return Where(self.date, self.paper_lang, self.venue)


def main(argv: Sequence[str] | None = None) -> None:
    """Print what is found for the post, or for each of several."""
    words = with_places(sys.argv[1:] if argv is None else argv, ("post",))
    if not any(word.partition("=")[0] in ("--index", "--help", "--config") for word in words):
        words += [f"--index={os.environ[INDEX]}"] if os.environ.get(INDEX) else []
    config = read_config(FindConfig, words, program="eval/find.py", description=__doc__)
    engine = open_engine(config.index or "")
    posts = in_language(posts_of(config), config.lang)
    if config.input is None:
        posts = iter([next(posts)])  # a post that cannot be read is known before a model is

    from claim2source.pipeline.answers import as_bibtex, as_csv, as_json, as_json_line, as_text
    from claim2source.pipeline.asking import Finder
    from claim2source.pipeline.staged import read_pipeline

    pipeline = None if config.pipeline is None else read_pipeline(config.pipeline, config.system)
    engine.device = config.device
    if config.model is not None:
        from claim2source.models import resolve

        engine.use(resolve(config.model, config.device).encoder)
    finder = Finder(
        engine,
        pipeline,
        threshold=config.threshold,
        store=Store(config.store),
        device=config.device,
        progress=pipeline is not None,
    )
    answers = finder.found(posts, config.k, config.where)
    if config.bibtex:
        say(as_bibtex(answers))
    elif config.csv:
        header = True
        for answer in answers:
            print(as_csv([answer], header), end="", flush=True)
            header = False
    elif config.json:
        for answer in answers:
            say(as_json(answer) if config.input is None else as_json_line(answer))
    else:
        for place, answer in enumerate(answers):
            say(("\n" if place else "") + as_text(answer, several=config.input is not None))


def posts_of(config: FindConfig) -> Iterator[Post]:
    """Read the posts that are asked about; addresses are fetched."""
    if config.input is not None:
        posts = read_posts(config.input)
    elif config.post == "-":
        posts = iter([Post("0", standard_input())])
    else:
        posts = iter([Post("0", config.post or "")])
    fetcher = Fetcher(tuple(config.instances))
    for post in posts:
        if not is_address(post.text):
            yield post
        elif config.fetch:
            fetched = fetcher.post(post.text, post.id)
            yield replace(fetched, date=post.date or fetched.date, lang=post.lang or fetched.lang)
        else:
            raise UserError(f"{post.text.strip()}: is an address; --fetch reads the post there")


def in_language(posts: Iterator[Post], lang: str) -> Iterator[Post]:
    """Give posts the language that was asked for; with `auto` they keep their own, if any."""
    return posts if lang == AUTO else (replace(post, lang=lang) for post in posts)


def standard_input() -> str:
    """Read a post from standard input. Raises `InputError` where it is none."""
    data = sys.stdin.buffer.read(4 * MOST + 1)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError.at("standard input", why="is not UTF-8") from None
    if not text.strip():
        raise ConfigError("post", text[:40], "a text; standard input holds none")
    return text


if __name__ == "__main__":
    run_program(main)
