"""Turn a task's own files into the native data layout: `prepare.py TASK --input DIR --output DIR`.

TASK is checkthat2025 (Task 4b: subtask4b_collection_data.pkl, subtask4b_query_tweets_*.tsv),
checkthat2026 (Task 1: collection_data.json, {en,de,fr}_{train,dev,test}.json), news (tweets to
news, ADMA 2023: train.tsv, dev.tsv, test.tsv, newsid_title.tsv; news.jsonl with bodies and dates,
and rss.jsonl, where there are any) or mixed, which joins data sets (`--sets`) into one to train on.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from claim2source.core.config import (
    Between,
    Settings,
    flag,
    list_field,
    read_config,
    require,
)
from claim2source.core.files import require_writable
from claim2source.core.folders import replaced_folder
from claim2source.core.program import with_places
from claim2source.core.records import sorted_languages
from claim2source.core.terminal import say
from claim2source.datasets import checkthat, news
from claim2source.datasets.checkthat import PreparedSplits
from claim2source.datasets.mixed import mix

PROGRAM = "scripts/prepare.py"


@dataclass(frozen=True)
class PrepareConfig(Settings):
    """Settings of `scripts/prepare.py`.

    Args:
        task: whose files they are.
        output: folder to write.
        input: folder of the task's files; `mixed` has none.
        hub: checkthat2026 alone, in place of `input`: data set on the Hugging Face hub, read with
            your own login.
        revision: of the data set on the hub: a commit, branch or tag.
        translations: checkthat2026 alone: JSONL of English translations: {"index", "lang",
            "split", "translation"}.
        distractors: mixed alone: sources of each set that are no gold, drawn by their ids; none:
            all of them. Val is scored over all sources, so that fewer of them save time.
    """

    task: Literal["checkthat2025", "checkthat2026", "news", "mixed"]
    output: Path
    input: Path | None = None
    hub: str | None = None
    revision: str | None = None
    translations: Path | None = None
    distractors: Annotated[int, Between(0, 10**9)] | None = None
    sets: list[str] = list_field([], help="mixed alone: folders or names of the data sets")
    overwrite: bool = flag("replace an older data folder there, which is moved to NAME.replaced")

    def check(self) -> None:
        for key, task in (("hub", "checkthat2026"), ("translations", "checkthat2026")):
            value = getattr(self, key)
            require(value is None or self.task == task, key, value, f"nothing: it is of {task}")
        allowed = "two or more data sets with mixed, otherwise none"
        require(bool(self.sets) == (self.task == "mixed"), "sets", self.sets, allowed)
        is_mixed_or_unset = self.distractors is None or self.task == "mixed"
        require(is_mixed_or_unset, "distractors", self.distractors, "nothing: it is of mixed")
        if self.task == "mixed":
            require(self.input is None, "input", self.input, "none: mixed reads `sets`")
            return
        is_one = (self.input is None) != (self.hub is None)
        require(
            is_one, "input", self.input, "a folder of the task's files, or --hub of checkthat2026"
        )
        require(
            self.revision is None or self.hub is not None, "revision", self.revision, "with --hub"
        )


def prepare(config: PrepareConfig) -> PreparedSplits:
    """Write the data set of a task; its files may be on the hub."""
    target, overwrite = config.output, config.overwrite
    if config.task == "mixed":
        return mix(config.sets, target, config.distractors, overwrite=overwrite)
    if config.hub is not None:
        return checkthat.prepare_hub(
            config.hub, target, config.translations, config.revision, overwrite=overwrite
        )
    assert config.input is not None
    if config.task == "checkthat2025":
        return checkthat.prepare_2025(config.input, target, overwrite=overwrite)
    if config.task == "checkthat2026":
        return checkthat.prepare_2026(
            config.input, target, config.translations, overwrite=overwrite
        )
    return news.prepare(config.input, target, overwrite=overwrite)


def read_options(argv: Sequence[str] | None) -> PrepareConfig:
    """Read the command line, whose first word is the task."""
    words = with_places(sys.argv[1:] if argv is None else argv, ("task",))
    return read_config(PrepareConfig, words, program=PROGRAM, description=__doc__)


def main(argv: Sequence[str] | None = None) -> None:
    """Prepare one task; print the files written and those absent."""
    config = read_options(argv)
    require_writable(config.output, "folder")
    replaces = config.output.exists() and any(config.output.iterdir())
    splits, notes = prepare(config)
    if replaces:
        replaced = replaced_folder(config.output.resolve())
        say(f"{config.output}: the earlier data set is in {replaced} now")
    say(f"{config.output}: {len(splits[0].sources)} sources")
    for split in splits:
        counts = Counter(claim.lang for claim in split.claims)
        parts = ", ".join(f"{lang} {counts[lang]}" for lang in sorted_languages(counts))
        languages = f" ({parts})" if len(counts) > 1 else ""
        golds = "" if split.qrels.grades else ", no judgements"
        say(f"{config.output}: {split.split}: {len(split.claims)} claims{languages}{golds}")
    for note in notes:
        say(f"note: {note}")
