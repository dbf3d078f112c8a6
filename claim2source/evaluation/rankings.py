"""Convert rankings of other programs: files, mappings, frames, models."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union

from claim2source.core.errors import UserError
from claim2source.core.records import Dataset
from claim2source.core.run import Result, Run
from claim2source.data.frames import is_table, run_from_frame, run_from_scores
from claim2source.data.trec import named_as, read_run
from claim2source.metrics.metrics import coverage
from claim2source.models.in_memory import is_sentence_transformer
from claim2source.search.dense import Dense

if TYPE_CHECKING:
    import datasets
    import pandas
    from sentence_transformers import SentenceTransformer

# A run, the path of its file, claim -> source -> score, a table, or a model that ranks.
Ranking = Union[
    Run,
    Result,
    str,
    Path,
    Mapping[str, Mapping[str, float]],
    "pandas.DataFrame",
    "datasets.Dataset",
    "SentenceTransformer",
]
DEFAULT_NAME = "system"  # the name of a single ranking
DEPTH = 100
_KINDS_ALLOWED = (
    "a Run or Result, a TREC file's path, {claim: {source: score}}, a frame with columns for "
    "claim, source and score, or a SentenceTransformer"
)


def named_results(
    results: Ranking | Mapping[str, Ranking], dataset: Dataset
) -> dict[str, Run | Result]:
    """Read rankings by name, or a single ranking; a model ranks the data set's claims.

    Raises `UserError` if a value is not a ranking, or is a ranking of other claims.
    """
    if isinstance(results, Mapping) and not _is_scores(results):
        return {name: read_ranking(ranking, dataset, name) for name, ranking in results.items()}
    return {DEFAULT_NAME: read_ranking(results, dataset)}


def read_ranking(ranking: Any, dataset: Dataset, name: str = DEFAULT_NAME) -> Run | Result:
    """Read one ranking; a file, mapping or table must contain claims of the data set."""
    if isinstance(ranking, Run | Result):
        return ranking
    if is_sentence_transformer(ranking):
        return Dense(ranking).index(dataset.sources).search(dataset.claims, DEPTH)
    if isinstance(ranking, str | Path):
        golds = {}
        for claim in dataset.qrels.claim_ids:
            golds[claim] = dataset.qrels.golds(claim)
        run = named_as(read_run(ranking), golds).run
    elif isinstance(ranking, Mapping) and _is_scores(ranking):
        run = run_from_scores(ranking, name)
    elif is_table(ranking):
        run = run_from_frame(ranking, name)
    else:
        raise UserError(
            f"{name}: a {type(ranking).__name__} is not a ranking; allowed: {_KINDS_ALLOWED}"
        )
    if dataset.golds:
        coverage(run, dataset.qrels, name)
    return run


def _is_scores(mapping: Mapping[Any, Any]) -> bool:
    """Whether a mapping is one run's scores by claim and source, not several runs by name."""
    values = mapping.values()
    return all(
        isinstance(ranked, Mapping)
        and not any(isinstance(score, Mapping) for score in ranked.values())
        for ranked in values
    )
