"""Convert a task's files: `python scripts/prepare.py TASK --input DIR --output DIR`.

The result is a data set for training and evaluation, a folder in BEIR layout. `index` and `find`
need no preparation: they take files of papers and posts as they are. TASK is one of these:

  checkthat2025  Task 4b: subtask4b_collection_data.pkl or .csv, subtask4b_query_tweets_*.tsv
  checkthat2026  Task 1: collection_data.json, {en,de,fr}_{train,dev,test}.json or
                 final_{en,de,fr}_test.json
  news           tweets to news, ADMA 2023: train.tsv, dev.tsv, test.tsv, newsid_title.tsv;
                 optionally news.jsonl with bodies and dates, and rss.jsonl
  mixed          joins data sets (--sets) into one training set
  val            moves claims of a data set's train to a split val (--seen_share_expected)
  my_task.Forum  the dotted path of your own class that reads a folder
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from claim2source.core.config import (
    Between,
    Settings,
    Share,
    flag,
    list_field,
    make,
    read_config,
    require,
)
from claim2source.core.errors import InputError
from claim2source.core.files import content_hash, require_writable
from claim2source.core.folders import replaced_folder
from claim2source.core.imports import import_dataclass
from claim2source.core.positionals import with_positionals
from claim2source.core.records import Claim, Dataset, Qrels, Source, sorted_languages
from claim2source.core.terminal import say
from claim2source.data.beir import QRELS, check_folders, write_beir
from claim2source.data.checkthat import (
    files_2025,
    files_2026,
    read_2025,
    read_2026,
    read_hub,
)
from claim2source.data.folders import dataset_folder
from claim2source.data.loading import load
from claim2source.data.news import news_files, read_news
from claim2source.data.split import MIX, SHARE, VAL, carve_val, seen_claims

PROGRAM = "scripts/prepare.py"
# The keys that people need first.
COMMON = (
    "task",
    "input",
    "output",
    "hub",
    "splits",
    "sets",
    "translations",
    "seen_share_expected",
    "settings",
    "overwrite",
)
# Number of files that a note names.
MOST_NAMED = 20
TASKS = ("checkthat2025", "checkthat2026", "news", "mixed", VAL)
OWN_TASK = "the dotted path of your own dataclass, such as my_task.Forum"


@dataclass(frozen=True)
class PrepareConfig(Settings):
    """Settings of `scripts/prepare.py`.

    Args:
        task: task of the files: checkthat2025, checkthat2026, news, mixed, val, or the dotted path
            of your own dataclass with a method `read(folder)` that returns one Dataset per split.
        output: folder to write.
        input: folder of the task's files; with `val` a data set; not used by `mixed`.
        settings: fields of your own task, such as `--settings.delimiter ";"`.
        hub: only checkthat2026, instead of `input`: data set on the Hugging Face hub, downloaded
            with your own login.
        revision: commit, branch or tag of the data set on the hub.
        translations: only checkthat2026: JSONL of English translations: {"index", "lang", "split",
            "translation"}.
        splits: splits to write, which must exist; by default all of them.
        distractors: only mixed: number of sources of each set that are not gold, drawn by their
            ids; by default all of them. Val is scored over all sources, so fewer save time.
        seen_share_expected: only val: share of val's claims whose papers keep a training claim,
            0 to 1; by default half of them.
    """

    task: str
    output: Path
    input: Path | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    hub: str | None = None
    revision: str | None = None
    translations: Path | None = None
    distractors: Annotated[int, Between(0, 10**9)] | None = None
    seen_share_expected: Share | None = None
    splits: list[str] | None = None
    sets: list[str] = list_field([], help="only mixed: folders or names of the data sets")
    overwrite: bool = flag("replace an older data folder, which is moved to NAME.replaced")

    @property
    def is_own(self) -> bool:
        """Whether the task is the user's own class, named by its dotted path."""
        return self.task not in TASKS

    def check(self) -> None:
        allowed = f"{', '.join(TASKS)}, or {OWN_TASK}"
        require(not self.is_own or "." in self.task, "task", self.task, allowed)
        allowed = f"none, because {self.task} has no settings"
        require(self.is_own or not self.settings, "settings", self.settings, allowed)
        tasks = {"hub": "checkthat2026", "translations": "checkthat2026", "distractors": "mixed"}
        tasks[MIX] = VAL
        for key, task in tasks.items():
            value = getattr(self, key)
            require(value is None or self.task == task, key, value, f"only with the task {task}")
        require(self.splits != [], "splits", self.splits, "one or more names, or leave it out")
        allowed = "two or more data sets with mixed, otherwise none"
        require(bool(self.sets) == (self.task == "mixed"), "sets", self.sets, allowed)
        if self.task == "mixed":
            require(self.input is None, "input", self.input, "none, because mixed reads `sets`")
            return
        allowed = "a folder of the task's files, or --hub of checkthat2026"
        require((self.input is None) != (self.hub is None), "input", self.input, allowed)
        is_read = self.revision is None or self.hub is not None
        require(is_read, "revision", self.revision, "only with --hub")


def prepare(config: PrepareConfig) -> tuple[list[Dataset], list[str]]:
    """Write the splits of a task as a BEIR folder; return them, and notes on missing files.

    Raises `InputError` on bad input, a line per problem, and `UserError` if `output` is not empty
    (with `overwrite`, if it is not an older BEIR folder); then nothing is written.
    """
    if config.input is None:
        folders = [dataset_folder(name) for name in config.sets]
    elif config.task == VAL:
        folders = [dataset_folder(str(config.input))]
    else:
        folders = [config.input]
    check_folders(folders, config.output, config.overwrite)
    splits, notes = _read(config)
    if config.splits is not None:
        splits = _named_splits(splits, config.splits)
    if config.input is not None and config.task != VAL and not config.is_own:
        notes = [*notes, *_unread_notes(config)]
    try:
        write_beir(splits, config.output, overwrite=config.overwrite)
    except ValueError as error:  # only the user's own task can repeat a split or a claim
        raise InputError(config.task, reason=str(error)) from None
    return splits, notes


def _named_splits(splits: Sequence[Dataset], names: Sequence[str]) -> list[Dataset]:
    """Keep the splits with these names. Raises `ConfigError` if one is missing."""
    available = [part.split for part in splits]
    for name in names:
        allowed = f"splits with a file; there are: {', '.join(available)}"
        require(name in available, "splits", name, allowed)
    return [part for part in splits if part.split in names]


def _unread_notes(config: PrepareConfig) -> list[str]:
    """Note the files in the input folder that are not read, except hidden ones."""
    assert config.input is not None
    if config.task == "checkthat2025":
        known = files_2025(config.input)
    elif config.task == "checkthat2026":
        known = files_2026()
    else:
        known = news_files()
    unread: list[str] = []
    for path in sorted(config.input.iterdir()):
        is_translations = config.translations is not None and path == config.translations
        if path.name not in known and not path.name.startswith(".") and not is_translations:
            unread.append(path.name)
    if not unread:
        return []
    more = ""
    if len(unread) > MOST_NAMED:
        more = f" and {len(unread) - MOST_NAMED} more"
    return [f"{config.input}: not read: {', '.join(unread[:MOST_NAMED])}{more}"]


def _read(config: PrepareConfig) -> tuple[list[Dataset], list[str]]:
    if config.hub is not None:
        return read_hub(config.hub, config.translations, config.revision)
    if config.input is None:
        return _mix(config.sets, config.distractors)
    if config.is_own:
        return _read_own(config, config.input)
    if config.task == VAL:
        return _hold_out(str(config.input), config.seen_share_expected)
    if config.task == "checkthat2025":
        return read_2025(config.input), []
    if config.task == "checkthat2026":
        return read_2026(config.input, config.translations)
    return read_news(config.input)


def _read_own(config: PrepareConfig, folder: Path) -> tuple[list[Dataset], list[str]]:
    """Read a folder with the user's own class; return its splits and notes."""
    kind = import_dataclass("task", config.task, "read", OWN_TASK)
    task: Any = make(kind, config.settings, "settings.")
    splits = task.read(folder)
    is_list = isinstance(splits, list | tuple) and len(splits) > 0
    if not is_list or not all(isinstance(part, Dataset) for part in splits):
        raise InputError(
            config.task, reason="read(folder) must return a list of one or more Datasets"
        )
    notes: list[str] = []
    for part in splits:
        if part.sources != splits[0].sources:
            reason = f"splits {splits[0].split!r} and {part.split!r} must have the same sources"
            raise InputError(config.task, reason=reason)
        for note in part.notes:
            if note not in notes:
                notes.append(note)
    return list(splits), notes


def _hold_out(name: str, mix: float | None) -> tuple[list[Dataset], list[str]]:
    """Move a fifth of train's claims to val, as a training would hold them out.

    Raises `ConfigError` if there is a val, or if too few papers have several claims for `mix`.
    """
    folder = dataset_folder(name)
    names = sorted(file.stem for file in (folder / QRELS).glob("*.tsv"))
    require(VAL not in names, "input", name, "a data set without a split val")
    train = load(name, "train")
    rest, val = carve_val(train, seen_share=SHARE, mix=mix)
    others = [load(name, split) for split in names if split != "train"]
    judged = [claim for claim in val.claims if claim.golds]
    known = len(seen_claims(rest, val))
    notes = [*train.notes]
    notes.append(f"{known} of val's {len(judged)} claims mean papers that claims of train mean too")
    unjudged = sum(not claim.golds for claim in train.claims)
    if unjudged:
        notes.append(f"{unjudged} claims of train have no gold")
    return [rest, val, *others], notes


def _mix(sets: Sequence[str], distractors: int | None) -> tuple[list[Dataset], list[str]]:
    """Join the judged splits and the sources of several data sets, with their notes.

    Ids are `<name of the set>/<id>`. A split has the claims of all sets with that split, in the
    order of the sets. `distractors` is the number of a set's sources that are kept although they
    are not gold in any split, drawn by their ids (None: all). Raises `ConfigError` for fewer than
    two sets, or two with the same name.
    """
    folders = [dataset_folder(name) for name in sets]
    names = [folder.resolve().name for folder in folders]
    require(len(set(names)) == len(names) > 1, "sets", sets, "two or more with different names")
    parts: list[Dataset] = []
    for folder, name in zip(folders, names, strict=True):
        for split in sorted(file.stem for file in (folder / QRELS).glob("*.tsv")):
            parts.append(_renamed(load(folder, split), name))
    sources = _distinct_sources(parts, distractors)
    by_split: dict[str, list[Dataset]] = {}
    for part in parts:
        by_split.setdefault(part.split, []).append(part)
    splits = [_join(same_split, sources) for same_split in by_split.values()]
    notes: list[str] = []
    for part in parts:
        notes += part.notes
    return splits, notes


def _renamed(data: Dataset, name: str) -> Dataset:
    def ids(values: Iterable[str]) -> tuple[str, ...]:
        return tuple(f"{name}/{value}" for value in values)

    claims: list[Claim] = []
    for claim in data.claims:
        candidates = None if claim.candidates is None else ids(claim.candidates)
        renamed = replace(
            claim,
            id=f"{name}/{claim.id}",
            golds=ids(claim.golds),
            candidates=candidates,
            excluded=ids(claim.excluded),
        )
        claims.append(renamed)
    grades: dict[str, dict[str, int]] = {}
    for claim_id, graded in data.qrels.grades.items():
        grades[f"{name}/{claim_id}"] = {f"{name}/{key}": grade for key, grade in graded.items()}
    sources = tuple(replace(source, id=f"{name}/{source.id}") for source in data.sources)
    return Dataset(tuple(claims), sources, Qrels(grades), data.split, name, data.notes)


def _distinct_sources(parts: Sequence[Dataset], distractors: int | None) -> tuple[Source, ...]:
    """Collect every source once; of sources that are not gold, `distractors` of each set."""
    golds: set[str] = set()
    for part in parts:
        golds |= part.golds
    pool: dict[str, Source] = {}
    for part in parts:
        others = [source.id for source in part.sources if source.id not in golds]
        kept = golds.union(sorted(others, key=content_hash)[:distractors])
        for source in part.sources:
            if source.id in kept:
                pool[source.id] = source
    return tuple(pool.values())


def _join(parts: Sequence[Dataset], sources: tuple[Source, ...]) -> Dataset:
    claims: list[Claim] = []
    judged: dict[str, dict[str, int]] = {}
    pool = {source.id for source in sources}
    for part in parts:
        claims += part.claims
        for claim, graded in part.qrels.grades.items():
            # A judged source that was not drawn is not gold.
            judged[claim] = {
                key: grade for key, grade in graded.items() if key in pool or grade > 0
            }
    return Dataset(tuple(claims), sources, Qrels(judged), parts[0].split)


def read_options(argv: Sequence[str] | None) -> PrepareConfig:
    words = with_positionals(PrepareConfig, sys.argv[1:] if argv is None else argv, ("task",))
    return read_config(
        PrepareConfig,
        words,
        program=PROGRAM,
        description=__doc__,
        common=COMMON,
        positionals=("task",),
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Prepare one task; print the written splits and notes on missing files."""
    config = read_options(argv)
    require_writable(config.output, "folder")
    replaces = config.output.exists() and any(config.output.iterdir())
    splits, notes = prepare(config)
    if replaces:
        replaced = replaced_folder(config.output.resolve())
        say(f"{config.output}: moved the earlier data set to {replaced}")
    say(f"{config.output}: {len(splits[0].sources)} sources")
    for split in splits:
        say(f"{config.output}: {_description(split)}")
    for note in notes:
        say(f"note: {note}")


def _description(split: Dataset) -> str:
    """Describe a split in one line: its claims by language, and whether it has judgements."""
    text = f"{split.split}: {len(split.claims)} claims"
    counts = Counter(claim.lang for claim in split.claims)
    if len(counts) > 1:
        parts = ", ".join(f"{lang} {counts[lang]}" for lang in sorted_languages(counts))
        text += f" ({parts})"
    if not split.qrels.grades:
        text += ", no judgements"
    return text
