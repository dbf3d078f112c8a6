"""Read a teacher's scores of training claims, and its candidates."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from claim2source.core.errors import InputError
from claim2source.core.files import content_hash, file_hash
from claim2source.core.records import Dataset
from claim2source.data.trec import named_as, read_run
from claim2source.mining import MinedRow, MiningConfig, Negative

# Claim id -> source id -> the teacher's score.
TeacherScores = Mapping[str, Mapping[str, float]]
_KEY = "losses.distillation.scores"


@dataclass(frozen=True)
class Teacher:
    """Teacher's scores of training claims, divided by `spread` if that is set.

    `sha256` is its run's.
    """

    scores: TeacherScores
    spread: float | None
    claims: int
    sha256: str = ""

    def sentences(self) -> list[str]:
        """Describe how many training claims are scored, and the divisor of the scores."""
        sentence = f"the teacher scores {len(self.scores)} of {self.claims} training claims"
        if self.spread is not None:
            sentence += f"; its scores are divided by their spread in a claim, {self.spread:.4g}"
        return [sentence]


def read_teacher(
    path: Path, train: Dataset, temperature: float | None = None, key: str = _KEY
) -> Teacher:
    """Read a teacher's scores of training claims, divided by their spread without a temperature.

    The run, a file or every `.trec` of a folder, may come from any system; its other claims are
    ignored. Raises `InputError` with the `key` if there is no file, or if it has none of the
    claims, names a source that the data set does not have, or scores a claim in two files.
    """
    files = _run_files(path, key)
    scores = _scores_in(files, train)
    if not scores:
        raise InputError(path, field="claim", reason="scores no claim of the training split")
    spread = None
    if temperature is None:
        spread = _mean_spread(scores)
        scores = {
            claim: {source: score / spread for source, score in row.items()}
            for claim, row in scores.items()
        }
    hashes = [file_hash(file) for file in files]
    sha256 = hashes[0] if path.is_file() else content_hash(hashes)
    return Teacher(scores, spread, len(train.claims), sha256)


def _run_files(path: Path, key: str) -> list[Path]:
    """List the run file, or the run files of a folder. Raises `InputError` if there is none."""
    if not path.is_dir():
        if not path.is_file():
            raise InputError(path, field=key, reason="no such file")
        return [path]
    files = sorted(path.glob("*.trec"))
    if not files:
        names = sorted(file.name for file in path.iterdir())[:3]
        holds = f"holds {', '.join(names)} .." if names else "is empty"
        reason = f"no NAME.trec (uncompressed TREC runs); this folder {holds}"
        raise InputError(path, field=key, reason=reason)
    if not files[0].is_file():
        raise InputError(path, field=key, reason="no such file")
    return files


def _scores_in(files: Sequence[Path], train: Dataset) -> dict[str, Mapping[str, float]]:
    """Read the scores of training claims, each claim from one file, for the data set's sources."""
    source_ids = {source.id for source in train.sources}
    golds = {claim.id: claim.golds for claim in train.claims}
    scores: dict[str, Mapping[str, float]] = {}
    for file in files:
        run = named_as(read_run(file), golds).run
        for claim in golds:
            scored = run.scored(claim)
            if not scored:
                continue
            if claim in scores:
                raise InputError(file, field="claim", reason=f"{claim} is in another file too")
            for source in scored:
                if source not in source_ids:
                    raise InputError(
                        file, field="source", reason=f"{source} is not in the data set"
                    )
            scores[claim] = scored
    return scores


def _mean_spread(scores: Mapping[str, Mapping[str, float]]) -> float:
    """Average the standard deviations of claims' scores; 1 if no claim's scores differ."""
    rows = [list(scored.values()) for scored in scores.values() if len(scored) > 1]
    if not rows:
        return 1.0
    return statistics.fmean(map(statistics.pstdev, rows)) or 1.0


def teachers_rows(teacher: Teacher, train: Dataset, config: MiningConfig) -> list[MinedRow]:
    """Pair claims with their golds and with the teacher's candidates, highest score first.

    The candidates are the first `hard` sources in the pool among its ranks `first_rank` to
    `last_rank`, without golds. A claim without scores gets none.
    """
    golds, rows = train.golds, []
    for claim in train.claims:
        scored = teacher.scores.get(claim.id, {}).items()
        non_golds = [pair for pair in scored if pair[0] not in claim.golds]
        negatives = [
            Negative(source, score, "teacher")
            for source, score in non_golds[config.first_rank - 1 : config.last_rank]
            if config.pool == "all" or source in golds
        ]
        rows += [MinedRow(claim.id, gold, tuple(negatives[: config.hard])) for gold in claim.golds]
    return rows
