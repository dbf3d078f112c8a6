"""Rank a training's claims with its first stage, and make the groups a re-ranker learns from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from claim2source.core.config import require_one_of
from claim2source.core.errors import ConfigError, UserError
from claim2source.core.files import content_hash, file_hash
from claim2source.core.records import Claim, Dataset
from claim2source.core.run import Result, Run
from claim2source.datasets.grouping import connected_groups
from claim2source.io.store import Store
from claim2source.mining import MinedRow
from claim2source.models import checkpoint_folder
from claim2source.models.hub import weight_files, weights_hash
from claim2source.models.local import local_model, local_models, local_name
from claim2source.models.manifest import FILE
from claim2source.stages.pairs import Pair
from claim2source.systems.heldout import ChoosingOn
from claim2source.systems.nodes import BM25Node
from claim2source.systems.read import Systems, read_systems
from claim2source.systems.system import RunSettings, System, SystemRunner
from claim2source.text import Rendering
from claim2source.training.data import TrainingData, in_turn, load_splits
from claim2source.training.reranker_config import FirstStageConfig, RerankerConfig
from claim2source.training.teacher import TeacherScores, read_teacher, run_hash, run_scores

KEY = "first.run"
BM25_NAME = "BM25"


def system_hash(system: System, folder: Path | None = None) -> str:
    """Hash a system's settings and its models' weights, which decide its ranking beside the data.

    Models in `folder` are taken before the hub's. A checkpoint is known by its manifest, wherever
    it lies.
    """
    with local_models(folder):
        models = system.dense_models
        weights = [_weights_hash(local_model(model).name) for model in models]
        # A fitted fusion, or a trained re-ranker: another may lie there by now.
        names_in_stages = list(_texts_in([stage.entry for stage in system.stages]))
        files = [file_hash(value) for value in names_in_stages if Path(value).is_file()]
        stage_models = [
            sha256 for sha256 in map(_weights_hash, names_in_stages) if sha256 is not None
        ]
        # Of a checkpoint the weights say more than its place.
        names = dict.fromkeys(m.name for m, sha256 in zip(models, weights, strict=True) if sha256)
        settings = repr(system.settings)
        for name in names:
            settings = settings.replace(repr(name), "")
        return content_hash([settings, weights, files, stage_models])


def _weights_hash(name: str) -> str | None:
    """Hash a checkpoint's manifest, or the weights in a folder; None for other names."""
    try:
        folder = checkpoint_folder(name)
        if (folder / FILE).is_file():
            return file_hash(folder / FILE)
        return weights_hash(folder) if folder.is_dir() and weight_files(folder) else None
    except UserError:
        return None  # a run that has not ended


def _texts_in(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _texts_in(part)


class FirstStage:
    """Rank the first `depth` sources of claims with a system or from given runs."""

    def __init__(self, first: FirstStageConfig, depth: int | None = None) -> None:
        self.first, self.depth = first, first.depth if depth is None else depth

    def check(self) -> None:
        """Raise `ConfigError` for a system that the files do not have, or that cannot run."""
        if self.first.system is not None:
            require_one_of("first.system", self.first.system, list(self.systems))
            system = self.systems[self.first.system]
            if (why := system.reason_not_to_run) is not None and self.first.checkpoint is None:
                raise ConfigError("first.system", self.first.system, f"another: {why}")

    @cached_property
    def systems(self) -> Systems:
        """Read the systems."""
        if self.first.system is None:
            return {BM25_NAME: System(BM25_NAME, BM25Node(name=BM25_NAME))}
        return read_systems(self.first.files or None)

    @cached_property
    def system(self) -> System:
        """Return the first stage, with the checkpoint in the place of its dense model."""
        system = self.systems[self.name]
        checkpoint = self.first.checkpoint
        return system if checkpoint is None else system.on_checkpoint(checkpoint)

    @property
    def name(self) -> str:
        """Name the first stage."""
        if self.first.run:
            return ", ".join(path.name for path in self.first.run)
        return self.first.system or BM25_NAME

    def hash(self) -> str:
        """Hash the system, or the runs, that decide the ranking beside the data."""
        if self.first.run:
            return content_hash([run_hash(path, KEY) for path in self.first.run])
        return system_hash(self.system, self.first.models)

    @property
    def models(self) -> list[str]:
        """Name the models of the first stage; none of runs that are given."""
        if self.first.run:
            return []
        names = [model.name for model in self.system.dense_models]
        with local_models(self.first.models):
            return [local_name(model) for model in (*names, *self.system.models())]

    def rank(
        self,
        splits: Mapping[str, Dataset],
        reported: Dataset,
        dataset: str,
        store: Store,
        *,
        lenient: bool = False,
        device: str | None = None,
    ) -> dict[str, Result]:
        """Rank the claims of splits, by the splits' names; nothing is chosen on `reported`."""
        if self.first.run:
            return {name: Result(self._read_run_files(data)) for name, data in splits.items()}
        settings = RunSettings(
            dataset,
            ChoosingOn(lenient=lenient),
            store=store,
            device=device,
            depth=self.depth,
        )
        runner, system = SystemRunner(reported, settings), self.system
        with local_models(self.first.models):
            return {name: runner.run(system, None, split).result for name, split in splits.items()}

    def _read_run_files(self, data: Dataset) -> Run:
        scored = run_scores(self.first.run, data, KEY)
        lists: dict[str, Sequence[tuple[str, float]]] = {
            claim.id: list(scored.get(claim.id, {}).items())[: self.depth] for claim in data.claims
        }
        return Run.from_lists(lists)


def load_data(config: RerankerConfig) -> TrainingData:
    """Load the splits, carve val out of train, and read the teacher's scores.

    Raises `UserError` for a run or mined negatives that do not fit the claims.
    """
    data = load_splits(config)
    if config.loss.scores is None:
        return data
    teacher = read_teacher(config.loss.scores, data.train, key="loss.scores")
    return replace(data, teacher=teacher)


class RerankerPairs:
    """Hold training pairs, and give the group of each in an epoch: its gold, then its negatives.

    `teacher` are scores by claim and source; a candidate without one is left out then, and so is a
    pair with fewer than two. `untaught` counts those.
    """

    def __init__(
        self,
        train: Dataset,
        rows: Sequence[MinedRow],
        rendering: Rendering,
        negatives: int,
        teacher: TeacherScores | None = None,
    ) -> None:
        self.negatives, self.teacher = negatives, teacher
        claims: Mapping[str, Claim] = {claim.id: claim for claim in train.claims}
        self.rows = [row for row in rows if len(self._ids(row, 0)) > 1]
        self.untaught = len(rows) - len(self.rows)
        row_claims = [claims[row.claim] for row in self.rows]
        self.golds = [claim.golds for claim in row_claims]
        self.languages = [claim.lang for claim in row_claims]
        self._claims = rendering.claim_texts(row_claims)
        source_ids = {n.source for row in self.rows for n in row.negatives}
        source_ids |= {row.positive for row in self.rows}
        sources = [source for source in train.sources if source.id in source_ids]
        texts = rendering.source_texts(sources)
        self._sources = {s.id: text for s, text in zip(sources, texts, strict=True)}

    def groups(self) -> list[int]:
        """Number the pairs' groups of connected golds: such pairs are kept apart."""
        return connected_groups(self.golds)

    def sources(self, number: int, epoch: int) -> list[str]:
        """List the ids of a pair's group in an epoch, its gold first."""
        return self._ids(self.rows[number], epoch)

    def _ids(self, row: MinedRow, epoch: int) -> list[str]:
        scored = None if self.teacher is None else self.teacher.get(row.claim, {})
        negatives = [n for n in row.negatives if scored is None or n.source in scored]
        gold = [row.positive] if scored is None or row.positive in scored else []
        # Without the gold, one more is there to compare with.
        count = self.negatives + 1 - len(gold)
        group = in_turn(negatives, count, epoch) if len(negatives) > count else negatives
        group.sort(key=lambda negative: negative.origin == "random")
        return [*gold, *(negative.source for negative in group)]

    def pairs(self, number: int, ids: Sequence[str]) -> list[Pair]:
        """Write the texts of a pair's claim and of sources."""
        return [Pair(self._claims[number], self._sources[source]) for source in ids]

    def taught(self, number: int, ids: Sequence[str]) -> list[float]:
        """Look up the teacher's scores."""
        assert self.teacher is not None
        scored = self.teacher[self.rows[number].claim]
        return [scored[source] for source in ids]
