"""Read a re-ranker's first stage, and make the groups of pairs to train on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from claim2source.core.config import require_one_of
from claim2source.core.errors import ConfigError
from claim2source.core.files import content_hash
from claim2source.core.records import Claim, Dataset
from claim2source.core.run import Result
from claim2source.data.grouping import connected_groups
from claim2source.mining import MinedRow
from claim2source.search.bm25 import BM25
from claim2source.stages.pairs import Pair
from claim2source.systems.read import read_systems
from claim2source.systems.retrieval import Retrieval
from claim2source.systems.system import System
from claim2source.text.views import untranslated_sentences
from claim2source.training.batches import in_turn
from claim2source.training.reranker_config import FirstStageConfig, RerankerRecipe
from claim2source.training.splits import TrainingData
from claim2source.training.teacher_scores import TeacherScores


def first_system(settings: FirstStageConfig) -> System:
    """Read the first stage: the named system, or a plain BM25.

    Raises `ConfigError` if it does not exist or cannot run.
    """
    if settings.system is None:
        retrieval = Retrieval(BM25(), name="BM25")
        return System("BM25", retrieval)
    systems = read_systems(settings.files or None)
    names = list(systems)
    require_one_of("first.system", settings.system, names)
    system = systems[settings.system]
    if settings.checkpoint is not None:
        return system.on_checkpoint(settings.checkpoint)
    reason = system.reason_not_to_run
    if reason is not None:
        raise ConfigError("first.system", settings.system, f"another: {reason}")
    return system


def rankings_hash(
    rankings: Iterable[Result],
    depth: int,
) -> str:
    """Hash every claim's first sources, which are re-ranked."""
    candidates: list[dict[str, list[str]]] = []
    for result in rankings:
        run = result.run
        by_claim = {claim: run.sources(claim, depth) for claim in run.claim_ids}
        candidates.append(by_claim)
    return content_hash(candidates)


class RerankerPairs:
    """Training pairs with their group in each epoch: the gold, then negatives.

    `teacher` has scores by claim and source. If it is set, candidates without a score are left
    out, and so are pairs with fewer than two candidates; `untaught` counts these pairs.
    """

    def __init__(
        self,
        train: Dataset,
        rows: Sequence[MinedRow],
        recipe: RerankerRecipe,
        teacher: TeacherScores | None = None,
    ) -> None:
        rendering = recipe.rendering
        self.negatives = recipe.optimisation.negatives
        self.teacher = teacher
        claims: Mapping[str, Claim] = {claim.id: claim for claim in train.claims}
        self.rows: list[MinedRow] = []
        for row in rows:
            ids = self.group(row, 0)
            if len(ids) > 1:
                self.rows.append(row)
        self.untaught = len(rows) - len(self.rows)
        row_claims = [claims[row.claim] for row in self.rows]
        self.golds = [claim.golds for claim in row_claims]
        self.languages = [claim.lang for claim in row_claims]
        self._claims = rendering.claim_texts(row_claims)
        self._untranslated = untranslated_sentences(train.claims, rendering.claims)

        source_ids: set[str] = set()
        for row in self.rows:
            source_ids.add(row.positive)
            for negative in row.negatives:
                source_ids.add(negative.source)
        sources = [source for source in train.sources if source.id in source_ids]
        texts = rendering.source_texts(sources)
        self._sources: dict[str, str] = {}
        for source, text in zip(sources, texts, strict=True):
            self._sources[source.id] = text

    @classmethod
    def of_training(
        cls,
        data: TrainingData,
        rows: Sequence[MinedRow],
        recipe: RerankerRecipe,
    ) -> RerankerPairs:
        """Make the pairs from mined rows, with the teacher's scores if there are any."""
        scores: TeacherScores | None = None
        if data.teacher is not None:
            scores = data.teacher.scores
        return cls(data.train, rows, recipe, scores)

    def sentences(self) -> list[str]:
        """List translations that are missing, and count the pairs that are left out."""
        lines = list(self._untranslated)
        if self.untaught:
            lines.append(f"{self.untaught} pairs are left out: fewer than two scored candidates")
        return lines

    def groups(self) -> list[int]:
        """Number the pairs' groups of connected golds, which are kept apart."""
        return connected_groups(self.golds)

    def group(
        self,
        row: MinedRow,
        epoch: int,
    ) -> list[str]:
        """List the ids of a pair's sources in an epoch, its gold first."""
        gold = [row.positive]
        negatives = list(row.negatives)
        if self.teacher is not None:
            scored = self.teacher.get(row.claim, {})
            gold = [source for source in gold if source in scored]
            negatives = [negative for negative in negatives if negative.source in scored]
        # Without the gold, one more negative is needed to compare with.
        count = self.negatives + 1 - len(gold)
        if len(negatives) > count:
            negatives = in_turn(negatives, count, epoch)
        negatives.sort(key=lambda negative: negative.origin == "random")
        negative_ids = [negative.source for negative in negatives]
        return [*gold, *negative_ids]

    def pairs(
        self,
        number: int,
        ids: Sequence[str],
    ) -> list[Pair]:
        claim = self._claims[number]
        return [Pair(claim, self._sources[source]) for source in ids]
