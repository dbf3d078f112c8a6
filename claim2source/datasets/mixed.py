"""Join data sets into one, whose training sees the claims and sources of all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from claim2source.core.config import require
from claim2source.core.files import content_hash
from claim2source.core.records import Claim, Dataset, Qrels, Source
from claim2source.datasets.beir import QRELS, check_folders, folder_of, write_beir
from claim2source.datasets.checkthat import PreparedSplits
from claim2source.datasets.loading import load


def mix(
    sets: Sequence[str],
    target: str | Path,
    distractors: int | None = None,
    *,
    overwrite: bool = False,
) -> PreparedSplits:
    """Write a BEIR folder `target` with the judged splits and the sources of several data sets.

    Sets are folders or names as `load` takes them. Ids are `<name of the set>/<id>`. A split has
    the claims of every set that has it, in the order of `sets`. Of a set's sources that are no gold
    of any split `distractors` are drawn by their ids (None: all of them). Raises `ConfigError` for
    less than two sets or two of one name, otherwise as `load` and `write_beir`; nothing is written
    then.
    """
    folders = [folder_of(name) for name in sets]
    names = [folder.resolve().name for folder in folders]
    require(len(set(names)) == len(names) > 1, "sets", list(sets), "two or more of different names")
    for folder in folders:
        check_folders(folder, Path(target), overwrite)
    parts = [
        _renamed(load(folder, split), name)
        for folder, name in zip(folders, names, strict=True)
        for split in sorted(file.stem for file in (folder / QRELS).glob("*.tsv"))
    ]
    sources = _distinct_sources(parts, distractors)
    splits = [
        _join([part for part in parts if part.split == split], sources)
        for split in dict.fromkeys(part.split for part in parts)
    ]
    write_beir(splits, target, overwrite=overwrite)
    return PreparedSplits(splits, [note for part in parts for note in part.notes])


def _renamed(data: Dataset, name: str) -> Dataset:
    def ids(values: Iterable[str]) -> tuple[str, ...]:
        return tuple(f"{name}/{value}" for value in values)

    claims = [
        replace(
            claim,
            id=f"{name}/{claim.id}",
            golds=ids(claim.golds),
            candidates=None if claim.candidates is None else ids(claim.candidates),
            excluded=ids(claim.excluded),
        )
        for claim in data.claims
    ]
    grades = {
        f"{name}/{claim}": {f"{name}/{source}": grade for source, grade in graded.items()}
        for claim, graded in data.qrels.grades.items()
    }
    sources = tuple(replace(source, id=f"{name}/{source.id}") for source in data.sources)
    return Dataset(tuple(claims), sources, Qrels(grades), data.split, name, data.notes)


def _distinct_sources(parts: Sequence[Dataset], distractors: int | None) -> tuple[Source, ...]:
    """Collect every source once; of those that are no gold `distractors` of each set."""
    golds = {gold for part in parts for gold in part.golds}
    pool: dict[str, Source] = {}
    for part in parts:
        candidates = [source.id for source in part.sources if source.id not in golds]
        distractor_ids = set(sorted(candidates, key=content_hash)[:distractors])
        pool |= {s.id: s for s in part.sources if s.id in golds or s.id in distractor_ids}
    return tuple(pool.values())


def _join(parts: Sequence[Dataset], sources: tuple[Source, ...]) -> Dataset:
    claims: list[Claim] = [claim for part in parts for claim in part.claims]
    grades = {claim: graded for part in parts for claim, graded in part.qrels.grades.items()}
    pool = {source.id for source in sources}
    # A judgement of a source that was not drawn says that it is no gold.
    judged = {
        claim: {source: grade for source, grade in graded.items() if source in pool or grade > 0}
        for claim, graded in grades.items()
    }
    return Dataset(tuple(claims), sources, Qrels(judged), parts[0].split)
