"""Turn a task's own files into the native data layout: the program `scripts/prepare.py`."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from claim2source.core.errors import UserError
from claim2source.core.files import require_writable
from claim2source.core.folders import aside
from claim2source.core.program import command_of
from claim2source.core.records import sorted_languages
from claim2source.core.terminal import say
from claim2source.datasets import checkthat2025, checkthat2026, news
from claim2source.datasets.checkthat2026 import Prepared


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Raise `UserError`: argparse would print what was typed as it is."""
        raise UserError(f"{message} (see --help)")


def prepare_2025(options: argparse.Namespace) -> Prepared:
    """Prepare CheckThat! 2025 Task 4b."""
    return Prepared(
        checkthat2025.prepare(options.input, options.output, overwrite=options.overwrite), []
    )


def prepare_2026(options: argparse.Namespace) -> Prepared:
    """Prepare CheckThat! 2026 Task 1, from files or from the hub."""
    if options.hub is None:
        return checkthat2026.prepare(
            options.input, options.output, options.translations, overwrite=options.overwrite
        )
    return checkthat2026.prepare_hub(
        options.hub,
        options.output,
        options.translations,
        options.revision,
        overwrite=options.overwrite,
    )


def prepare_news(options: argparse.Namespace) -> Prepared:
    """Prepare the cross-genre paper's tweets and news."""
    chosen = {name: name in options.filters for name in news.FILTERS}
    filters = news.NewsFilters(**chosen, headline_similarity=options.headline_similarity)
    return news.prepare(options.input, options.output, filters, overwrite=options.overwrite)


def parser() -> argparse.ArgumentParser:
    """Build the command line: one sub-command per task."""
    program = _Parser(
        prog=command_of("scripts/prepare.py"),
        description="Turn a task's own files into the native data layout.",
        allow_abbrev=False,
    )
    tasks = program.add_subparsers(dest="task", metavar="TASK", required=True)

    def task(name: str, what: str) -> argparse.ArgumentParser:
        added = tasks.add_parser(name, help=what, description=what, allow_abbrev=False)
        added.add_argument(
            "--output",
            type=Path,
            required=True,
            metavar="DIR",
            help="folder to write",
        )
        added.add_argument(
            "--overwrite",
            action="store_true",
            help="replace an older data folder there, which is moved to NAME.replaced",
        )
        return added

    old = task(
        "checkthat2025",
        "CheckThat! 2025 Task 4b (subtask4b_collection_data.pkl, subtask4b_query_tweets_*.tsv)",
    )
    old.add_argument("--input", type=Path, required=True, metavar="DIR", help="task's files")
    old.set_defaults(prepare=prepare_2025)
    new = task(
        "checkthat2026",
        "CheckThat! 2026 Task 1 (collection_data.json, {en,de,fr}_{train,dev,test}.json)",
    )
    origin = new.add_mutually_exclusive_group(required=True)
    origin.add_argument("--input", type=Path, metavar="DIR", help="task's files")
    origin.add_argument(
        "--hub", metavar="NAME", help="data set on the Hugging Face hub, with your own login"
    )
    new.add_argument("--revision", help="of the data set on the hub: a commit, branch or tag")
    new.add_argument(
        "--translations",
        type=Path,
        metavar="FILE",
        help='JSONL of English translations: {"index", "lang", "split", "translation"}, or "id" '
        "(such as dev-de-7) in place of the first three",
    )
    new.set_defaults(prepare=prepare_2026)
    tweets = task(
        "news",
        "tweets to news, ADMA 2023 (train.tsv, dev.tsv, test.tsv, newsid_title.tsv; news.jsonl "
        "with bodies and dates, and rss.jsonl, where there are any)",
    )
    tweets.add_argument("--input", type=Path, required=True, metavar="DIR", help="released files")
    tweets.add_argument(
        "--filters",
        nargs="+",
        choices=news.FILTERS,
        default=[],
        metavar="NAME",
        help="posts to leave out: outlets (none of the 22 is named), retweets, headlines (nearly "
        "repeated); the released files need none",
    )
    tweets.add_argument(
        "--headline_similarity",
        type=float,
        default=news.NewsFilters.headline_similarity,
        metavar="SHARE",
        help="of a headline's words, in their order, from which on a post repeats it; default: "
        "%(default)s",
    )
    tweets.set_defaults(prepare=prepare_news)
    return program


def main(argv: Sequence[str] | None = None) -> None:
    """Prepare one task; print what was written and what was absent."""
    program = parser()
    words = sys.argv[1:] if argv is None else argv
    options = program.parse_args(["--help" if word == "--help=all" else word for word in words])
    if getattr(options, "revision", None) is not None and options.hub is None:
        program.error("--revision goes with --hub")
    require_writable(options.output, "folder")
    replaces = options.output.exists() and any(options.output.iterdir())
    splits, notes = options.prepare(options)
    if replaces:
        place = aside(options.output.resolve())
        say(f"{options.output}: the earlier data set is in {place} now")
    say(f"{options.output}: {len(splits[0].sources)} sources")
    for split in splits:
        counts = Counter(claim.lang for claim in split.claims)
        parts = ", ".join(f"{lang} {counts[lang]}" for lang in sorted_languages(counts))
        languages = f" ({parts})" if len(counts) > 1 else ""
        golds = "" if split.qrels.grades else ", no judgements"
        say(f"{options.output}: {split.split}: {len(split.claims)} claims{languages}{golds}")
    for note in notes:
        say(f"note: {note}")
