"""A teacher's scores of training claims' candidates, from run files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from claim2source.core.errors import InputError
from claim2source.core.records import Dataset
from claim2source.io.trec import read_run


def read_teacher(path: Path, train: Dataset) -> Mapping[str, Mapping[str, float]]:
    """Claim id -> source id -> score. Any stage's run is a teacher.

    Claims of other splits are passed over. Raises `InputError` when the run knows none of the
    training claims, or names a source that the data set does not have.
    """
    if not path.is_file():
        raise InputError.at(path, field="losses.distillation.scores", why="no such file")
    run = read_run(path).run
    known = {source.id for source in train.sources}
    scores: dict[str, Mapping[str, float]] = {}
    for claim in train.claims:
        found = run.scored(claim.id)
        for source in found:
            if source not in known:
                raise InputError.at(path, field="source", why=f"{source} is not in the data set")
        if found:
            scores[claim.id] = found
    if not scores:
        raise InputError.at(path, field="claim", why="scores no claim of the training split")
    return scores
