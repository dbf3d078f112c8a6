"""Fit abstention to an index: claims with and without their papers, and posts of other topics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from claim2source.core.errors import UserError
from claim2source.core.records import Dataset
from claim2source.core.run import Result, Run
from claim2source.core.tables import Cell, Part, TextTable
from claim2source.engines import Engine
from claim2source.find.abstention import (
    DEEPEST,
    AbstainModel,
    Design,
    Tenth,
    fit,
    tenths_of,
)
from claim2source.find.elsewhere import posts_from_elsewhere
from claim2source.find.paired import FOLDS, PairedResults, choose_design, papers_of_claims
from claim2source.find.rankings import DENSE, LEXICAL, languages_of, stages_of

# More claims tell little more.
MAX_CLAIMS = 1_000
# Posts of other topics.
FEWEST, MOST_ELSEWHERE = 150, 300
# Probability below which a paper is not here; above, it is uncertain.
NOT_HERE = 0.3
# Of the model of topics.
PENALTY = 1.0


@dataclass(frozen=True, eq=False)
class Questions:
    """Hold an index's answers to claims with and without their papers, and to other posts.

    `elsewhere` is of the latter, `kinds` [posts] number the kinds that they are of.
    """

    paired: PairedResults
    post_ids: Sequence[str]
    elsewhere: Mapping[str, Result]
    kinds: np.ndarray

    @property
    def is_present(self) -> np.ndarray:
        """Tell where the paper is in the index, [2 x claims + posts]."""
        return np.concatenate([self.paired.present, np.zeros(len(self.post_ids), bool)])

    @property
    def first(self) -> np.ndarray:
        """Tell where the first paper is the right one, [2 x claims + posts]."""
        return np.concatenate([self.paired.right, np.zeros(len(self.post_ids), bool)])

    def features(self, design: Design) -> np.ndarray:
        """Describe all of them, [2 x claims + posts, features]."""
        parts = [self.paired.features(design), design.features(self.post_ids, self.elsewhere)]
        return np.concatenate(parts)

    def shares(self, model: AbstainModel) -> np.ndarray:
        """Return the probability of each that its paper is here, [2 x claims + posts]."""
        probabilities = model.probabilities(self.features(model.design))
        return probabilities if model.topic is None else probabilities * self.shares(model.topic)


def ask_index(engine: Engine, dataset: Dataset, seed: int = 13) -> Questions:
    """Ask an index the claims of a data set whose papers it has, without these, and other posts.

    Raises `UserError` where it has the papers of none.
    """
    golds = sorted(dataset.golds)
    stamps = engine.stamps(golds)
    claims = [claim for claim in dataset.claims if claim.golds and set(claim.golds) <= set(stamps)]
    if len(claims) > MAX_CLAIMS:
        sample = np.random.default_rng(seed).choice(len(claims), MAX_CLAIMS, replace=False)
        claims = [claims[i] for i in sorted(sample)]
    if not claims:
        name = dataset.name or "the data set"
        raise UserError(f"{name}: no claim of {dataset.split!r} has its papers in the index")
    removed = papers_of_claims(dataset.with_claims(claims))
    results = engine.find(claims, DEEPEST + max(map(len, removed.values())))
    absent = replace(
        results,
        lexical=_without_sources(results.lexical, removed),
        dense=_without_sources(results.dense, removed),
    )
    count = min(MOST_ELSEWHERE, max(FEWEST, len(claims) // 2))
    posts, kinds = posts_from_elsewhere(languages_of(engine), count, seed)
    elsewhere = stages_of(engine.find(posts, DEEPEST))
    paired = PairedResults.of(claims, stages_of(results), stages_of(absent))
    return Questions(paired, [post.id for post in posts], elsewhere, kinds)


def calibrate(engine: Engine, dataset: Dataset, seed: int = 13) -> AbstainModel:
    """Fit abstention on the claims of a data set whose papers are in the index, and measure it.

    It is measured on papers, and on kinds of other posts, that it was not fitted on. Raises
    `UserError` where there are too few.
    """
    questions = ask_index(engine, dataset, seed)
    paired, papers = questions.paired, engine.stats().papers
    design, penalty = choose_design(paired, seed)
    fitted = (
        f"{len(paired.claim_ids)} claims of {len(np.unique(paired.groups))} papers of "
        f"{dataset.name}, {dataset.split}, each with its papers in the index and without, and "
        f"{len(questions.post_ids)} posts of other topics; the index has {papers} papers"
    )
    rng = np.random.default_rng(seed)
    groups = [_deal_folds(labels, rng) for labels in (paired.groups, questions.kinds)]
    fold = np.concatenate(groups)
    shares = np.empty(len(fold))
    for n in range(FOLDS):
        shares[fold == n] = questions.shares(_fit_model(questions, design, penalty, fold != n))[
            fold == n
        ]
    model = _fit_model(questions, design, penalty, np.ones(len(fold), bool))
    tenths = tenths_of(shares, questions.is_present, questions.first)
    return replace(model, threshold=NOT_HERE, fitted=fitted, papers=papers, tenths=tenths)


def reliability(engine: Engine, model: AbstainModel, dataset: Dataset) -> tuple[Tenth, ...]:
    """Measure an index's abstention on the claims of a data set, asked with and without papers."""
    paired = ask_index(engine, dataset).paired
    stages = (paired.stages, paired.absent)
    shares = np.concatenate([model.shares(paired.claim_ids, stage) for stage in stages])
    return tenths_of(shares, paired.present, paired.right)


def reliability_parts(title: str, tenths: Sequence[Tenth], model: AbstainModel) -> list[Part]:
    """Tabulate the reliability on claims that `title` names, and that of the fitting."""
    parts: list[Part] = [
        f"{title}, each once with its papers in the index and once without them, by the "
        "probability that the paper is there:",
        reliability_table(tenths),
    ]
    if model.tenths:
        head = "On papers and kinds of other posts that it was not fitted on"
        parts += [f"{head} ({model.fitted}):", reliability_table(model.tenths)]
    return parts


def reliability_table(tenths: Sequence[Tenth]) -> TextTable:
    """Tabulate how often the paper was there, by tenths of the probability that it is."""
    from scipy import stats

    rows: list[list[Cell]] = []
    for number, row in enumerate(tenths):
        if row.answers:
            missing = row.answers - row.here
            low = stats.beta.ppf(0.025, row.here, missing + 1) if row.here else 0.0
            high = stats.beta.ppf(0.975, row.here + 1, missing) if missing else 1.0
            share, first = row.here / row.answers, row.first / row.answers
            tenth, bounds = f"{number / 10} to {(number + 1) / 10}", f"{low:.2f} to {high:.2f}"
            gap = share - row.share
            rows.append([tenth, row.answers, row.share, share, gap, bounds, first])
    columns = ["probability", "posts", "mean", "paper there", "gap", "95 %", "paper first"]
    return TextTable(columns, rows, numeric=[False, *[True] * 6])


def reliability_line(model: AbstainModel) -> str:
    """Write how often the paper was in the index by verdict, over held-out claims."""
    edges = (0.0, model.threshold, model.sure, 1.1)
    names = ("not here", "uncertain", "found")
    tenths = [model.measured(*edge) for edge in zip(edges, edges[1:], strict=False)]
    parts = [
        f'{tenth.here} of {tenth.answers} that are "{name}"'
        for name, tenth in zip(names, tenths, strict=True)
        if tenth.answers
    ]
    return f"held out, the paper was there for {', '.join(parts)}"


def _fit_model(
    questions: Questions, design: Design, penalty: float, rows: np.ndarray
) -> AbstainModel:
    """Fit a model of the paper, times a model of the topic, to rows of the questions (bool)."""
    paired, claims = questions.paired, 2 * len(questions.paired.claim_ids)
    mask = rows[:claims]
    model = fit(design, paired.features(design)[mask], paired.present[mask], penalty)
    run = questions.elsewhere[DENSE].run
    firsts = [run.rows(post_id).start for post_id in questions.post_ids]
    first = run.scores[firsts][rows[claims:]]
    usual = tuple(round(float(score), 6) for score in first)
    topic = Design((LEXICAL, DENSE), 1, of_usual=DENSE, usual=usual)
    is_claim = np.arange(len(rows)) < claims
    return replace(
        model, topic=fit(topic, questions.features(topic)[rows], is_claim[rows], PENALTY)
    )


def _deal_folds(groups: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    names, number = np.unique(groups, return_inverse=True)
    folds: np.ndarray = (rng.permutation(len(names)) % FOLDS)[number]
    return folds


def _without_sources(result: Result, removed: Mapping[str, frozenset[str]]) -> Result:
    rows = [row for row in result.run if row[1] not in removed.get(row[0], ())]
    columns = zip(*rows, strict=True) if rows else ((), (), ())
    run = Run.from_rows(*columns, claim_ids=result.run.claim_ids, pool=result.run.pool)
    return replace(result, run=run)
