"""Read a teacher's scores from its run, and take hard negatives from its candidates."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from claim2source.core.errors import InputError
from claim2source.core.files import content_hash, file_hash
from claim2source.core.records import Dataset
from claim2source.io.trec import named_as, read_run
from claim2source.mining import MinedRow, MiningConfig, Negative
from claim2source.training.losses import DistillationConfig

# Claim id -> source id -> the teacher's score.
TeacherScores = Mapping[str, Mapping[str, float]]
_KEY = "losses.distillation.scores"


@dataclass(frozen=True)
class Teacher:
    """Hold a teacher's scores of training claims, divided by `spread` where that is set."""

    scores: TeacherScores
    spread: float | None
    claims: int

    def sentences(self) -> list[str]:
        """Say how many training claims are scored, and by what the scores are divided."""
        said = f"the teacher scores {len(self.scores)} of {self.claims} training claims"
        if self.spread is not None:
            said += f"; its scores are divided by {self.spread:.4g}, their spread in a claim"
        return [said]


def run_files(path: Path, key: str = _KEY) -> list[Path]:
    """List the files of a run: itself, or every `.trec` of a folder.

    Raises `InputError`, which names the `key`, where there is none.
    """
    if path.is_dir():
        files = sorted(path.glob("*.trec"))
        if not files:
            held = sorted(file.name for file in path.iterdir())[:3]
            holds = f"holds {', '.join(held)} .." if held else "is empty"
            why = f"looked for files NAME.trec (TREC runs, not compressed); this folder {holds}"
            raise InputError.at(path, field=key, why=why)
        return files
    if not path.is_file():
        raise InputError.at(path, field=key, why="no such file")
    return [path]


def run_hash(path: Path, key: str = _KEY) -> str:
    """Hash a run: of a file its own, of a folder that of all its files."""
    if path.is_file():
        return file_hash(path)
    return content_hash([file_hash(file) for file in run_files(path, key)])


def read_teacher(config: DistillationConfig, train: Dataset) -> Teacher:
    """Read a teacher's scores of the training claims from a run of any system.

    Claims of other splits are ignored. Raises `InputError` when the run has none of the training
    claims, names a source that the data set does not have, or scores a claim in two files.
    """
    assert config.scores is not None
    return teacher_of(config.scores, train, config.temperature)


def teacher_of(path: Path, train: Dataset, temperature: float | None, key: str = _KEY) -> Teacher:
    """Read a teacher's scores from a run, divided by their spread without a temperature."""
    scores = run_scores([path], train, key)
    if temperature is not None:
        return Teacher(scores, None, len(train.claims))
    by = _spread(scores)
    divided = {claim: {s: v / by for s, v in scored.items()} for claim, scored in scores.items()}
    return Teacher(divided, by, len(train.claims))


def run_scores(paths: Sequence[Path], data: Dataset, key: str) -> TeacherScores:
    """Read what runs say of a split's claims, best first; claims of other splits are ignored.

    Raises `InputError` when they have none of the claims, name a source that the data set does
    not have, or score a claim in two files.
    """
    known = {source.id for source in data.sources}
    golds = {claim.id: claim.golds for claim in data.claims}
    scores: dict[str, Mapping[str, float]] = {}
    for file in [file for path in paths for file in run_files(path, key)]:
        run = named_as(read_run(file), golds).run
        for claim in data.claims:
            if not (scored := run.scored(claim.id)):
                continue
            if claim.id in scores:
                raise InputError.at(file, field="claim", why=f"{claim.id} is in another file too")
            if wrong := next((source for source in scored if source not in known), None):
                raise InputError.at(file, field="source", why=f"{wrong} is not in the data set")
            scores[claim.id] = scored
    if not scores:
        split = "training" if data.split == "train" else data.split
        why = f"scores no claim of the {split} split"
        raise InputError.at(paths[0], field="claim", why=why)
    return scores


def _spread(scores: TeacherScores) -> float:
    """Return the mean standard deviation of a claim's scores; 1 where no claim's scores differ."""
    found = [statistics.pstdev(scored.values()) for scored in scores.values() if len(scored) > 1]
    return (statistics.fmean(found) if found else 0.0) or 1.0


def teachers_rows(teacher: Teacher, train: Dataset, config: MiningConfig) -> list[MinedRow]:
    """Pair claims with their golds and with the teacher's candidates, its highest first.

    Of its ranks `first_rank` to `last_rank`, golds left out, the first `hard` that are in the
    pool. A claim that it does not score gets none.
    """
    golds = train.golds
    rows = []
    for claim in train.claims:
        scored = teacher.scores.get(claim.id, {})
        others = [pair for pair in scored.items() if pair[0] not in claim.golds]
        listed = [
            Negative(source, score, "teacher")
            for source, score in others[config.first_rank - 1 : config.last_rank]
            if config.pool == "all" or source in golds
        ]
        rows += [MinedRow(claim.id, gold, tuple(listed[: config.hard])) for gold in claim.golds]
    return rows
