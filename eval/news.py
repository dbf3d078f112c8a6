"""Find news for tweets: `python eval/news.py --config FILE.yaml --dataset DIR --out DIR`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from claim2source.core.config import read_config
from claim2source.core.errors import run_program
from claim2source.core.terminal import say
from claim2source.pipeline.news import PROGRAM, NewsConfig, evaluate_news
from claim2source.pipeline.staged import pipeline_words


def main(argv: Sequence[str] | None = None) -> None:
    """Run the system, score it as the paper does, print the tables."""
    words = pipeline_words(sys.argv[1:] if argv is None else argv)
    config = read_config(NewsConfig, words, program=PROGRAM, description=__doc__)
    say(evaluate_news(config))


if __name__ == "__main__":
    run_program(main)
