"""Rank a training's claims with its first stage, and make the groups a re-ranker learns from."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from claim2source.core.config import require_one_of
from claim2source.core.errors import ConfigError, UserError
from claim2source.core.files import content_hash, file_hash
from claim2source.core.records import Claim, Dataset
from claim2source.core.run import Result, Run
from claim2source.datasets.grouping import connected_groups, golds_by_text
from claim2source.io.store import Store
from claim2source.mining import MinedRow, Negative, read_mined, write_mined
from claim2source.mining.mine import SHORT
from claim2source.mining.near_duplicates import GoldDuplicates, NearDuplicates
from claim2source.models import checkpoint_folder
from claim2source.models.hub import weight_files, weights_hash
from claim2source.models.local import local_model, local_models
from claim2source.models.manifest import FILE
from claim2source.stages.pairs import Pair
from claim2source.systems.heldout import ChoosingOn
from claim2source.systems.nodes import BM25Node, DenseNode
from claim2source.systems.read import Systems, named_systems
from claim2source.systems.system import RunSettings, System, SystemRunner
from claim2source.text import Rendering
from claim2source.training.distributed import World, gather_values
from claim2source.training.held_out import models_of
from claim2source.training.negatives import KeptNegatives
from claim2source.training.reranker_config import CandidatesConfig, RerankerConfig
from claim2source.training.run_folder import RunFolder
from claim2source.training.teacher import TeacherScores, run_hash, run_scores

KEY = "first.run"
PLAIN = "BM25"


def system_hash(system: System, folder: Path | None = None) -> str:
    """Hash what decides a system's ranking, beside the data: its settings, its models' weights.

    Models in `folder` are taken before the hub's. A checkpoint is known by its manifest, wherever
    it lies.
    """
    with local_models(folder):
        models = [node.model for node in system.first.walk() if isinstance(node, DenseNode)]
        weights = [_weights(local_model(model).name) for model in models]
        # A fitted fusion, or a trained re-ranker: another may lie there by now.
        named = list(_strings(list(system.stages)))
        files = [file_hash(one) for one in named if Path(one).is_file()]
        behind = [one for one in map(_weights, named) if one is not None]
        # Of a checkpoint the weights say more than its place.
        places = dict.fromkeys(m.name for m, known in zip(models, weights, strict=True) if known)
        settings = repr(system)
        for place in places:
            settings = settings.replace(repr(place), "")
        return content_hash([settings, weights, files, behind])


def _weights(name: str) -> str | None:
    """Hash a checkpoint's manifest, or the weights in a folder; None for other names."""
    try:
        folder = checkpoint_folder(name)
        if (folder / FILE).is_file():
            return file_hash(folder / FILE)
        return weights_hash(folder) if folder.is_dir() and weight_files(folder) else None
    except UserError:
        return None  # a run that has not ended


def _strings(value: object) -> Iterator[str]:
    """List the texts in a setting, at any depth."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for one in value.values() if isinstance(value, Mapping) else value:
            yield from _strings(one)


class FirstStage:
    """Rank claims, and say what the ranking depends on.

    Raises `ConfigError` for a system that the files do not have.
    """

    def __init__(self, config: RerankerConfig) -> None:
        self.config, self.first = config, config.first
        if self.first.system is not None:
            require_one_of("first.system", self.first.system, list(self.systems))
            system = self.systems[self.first.system]
            if (why := system.reason_not_to_run) is not None and self.first.checkpoint is None:
                raise ConfigError("first.system", self.first.system, f"another: {why}")

    @cached_property
    def systems(self) -> Systems:
        """Read the systems."""
        if self.first.system is None:
            return {PLAIN: System(PLAIN, BM25Node(name=PLAIN))}
        return named_systems(self.first.files, None)[0]

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
        return self.first.system or PLAIN

    @property
    def depth(self) -> int:
        """Return how many sources of a claim are needed."""
        return max(self.first.depth, self.config.candidates.last_rank)

    def hash(self) -> str:
        """Hash what decides the ranking, beside the data."""
        if self.first.run:
            return content_hash([run_hash(path, KEY) for path in self.first.run])
        return system_hash(self.system, self.first.models)

    @property
    def models(self) -> list[str]:
        """Name the models of the first stage; none of runs that are given."""
        if self.first.run:
            return []
        return models_of(self.system, self.first.models)

    def rank(
        self, splits: Mapping[str, Dataset], reported: Dataset, store: Store
    ) -> dict[str, Result]:
        """Rank the claims of splits, by the splits' names; `reported` is one of them."""
        if self.first.run:
            return {name: Result(self._given(data)) for name, data in splits.items()}
        config = self.config
        settings = RunSettings(
            config.data.dataset,
            ChoosingOn(lenient=config.data.lenient),
            models=self.first.models,
            store=store,
            device=config.device,
            depth=self.depth,
        )
        runner = SystemRunner(reported, settings)
        return {name: runner.run(self.system, None, one).result for name, one in splits.items()}

    def _given(self, data: Dataset) -> Run:
        scored = run_scores(self.first.run, data, KEY)
        lists: dict[str, Sequence[tuple[str, float]]] = {
            claim.id: list(scored.get(claim.id, {}).items())[: self.depth] for claim in data.claims
        }
        return Run.from_lists(lists)


# Share of its title's words (Jaccard) above which a source counts as the gold's paper.
SAME_TITLE = 0.9
_SEED = 13  # of what is drawn at random
# Random sources that are looked at for a claim, at most, for each that is wanted.
_TRIES = 20


@dataclass
class CandidateCounts:
    """Count the pairs that are trained on, and what was left out."""

    rows: int = 0
    hard: int = 0
    random: int = 0
    missed: int = 0
    injected: int = 0
    alone: int = 0
    short: int = 0
    without_hard: int = 0
    missing_hard: int = 0
    missing_random: int = 0
    same: int = 0
    close: int = 0

    def sentences(self, config: CandidatesConfig) -> list[str]:
        """Describe the counts in sentences."""
        lines = [
            f"{self.rows} pairs with {self.hard} hard negatives of ranks {config.first_rank} to "
            f"{config.last_rank} and {self.random} random ones to take turns",
            f"left out {self.same} sources that are a gold or titled like one, {self.close} that "
            "score too near to the gold",
        ]
        if self.injected:
            lines.append(f"{self.injected} pairs have a gold that the first stage missed")
        if self.missed:
            lines.append(f"{self.missed} pairs are left out: the first stage missed their gold")
        if self.alone:
            lines.append(f"{self.alone} pairs are left out: no negative is allowed")
        if self.short:
            lines.append(
                f"{self.short} pairs could not be filled: {self.missing_hard} hard and "
                f"{self.missing_random} random negatives are missing"
            )
        pairs = self.rows + self.alone
        if self.short > SHORT * pairs:
            lines.append(
                f"warning: {self.short / pairs:.0%} of the pairs are short of negatives "
                f"({self.without_hard / pairs:.0%} have no hard one): raise candidates.last_rank "
                "or candidates.max_share, or ask for fewer with candidates.hard"
            )
        return lines

    def count(self, hard: int, random: int, config: CandidatesConfig) -> None:
        """Count the negatives of one pair, and what an epoch lacks of them."""
        self.rows += hard + random > 0
        self.alone += hard + random == 0
        self.hard += hard
        self.random += random
        self.without_hard += not hard and config.hard > 0
        self.missing_hard += max(config.hard - hard, 0)
        self.missing_random += max(config.random - random, 0)
        self.short += hard < config.hard or random < config.random


@dataclass
class CandidateMiner:
    """Take negatives of training claims from a first stage's run, and at random from the pool.

    Every pair gets as many as `epochs` epochs can use, so that its draw depends on the claim alone.
    """

    train: Dataset
    run: Run
    config: CandidatesConfig
    epochs: int
    depth: int
    counts: CandidateCounts = field(default_factory=CandidateCounts)

    def __post_init__(self) -> None:
        sources, config = self.train.sources, self.config
        self.place = {source.id: number for number, source in enumerate(sources)}
        golds = self.train.golds
        self.ids = [s.id for s in sources if config.pool == "all" or s.id in golds]
        self.pool = frozenset(self.ids)
        self.golds = golds_by_text(self.train.claims)
        nothing = np.empty((len(sources), 0), dtype=np.float32)
        self.alike = NearDuplicates(sources, nothing, SAME_TITLE, None, None)

    def mine(self) -> Iterator[MinedRow]:
        """Yield a row for each claim and gold: its hard negatives, then its random ones."""
        for claim in self.train.claims:
            scored = self.run.scored(claim.id)
            ranked = list(scored.items())
            first = {source for source, _ in ranked[: self.depth]}
            last = min(scored.values(), default=0.0)
            golds = self.golds[claim.id]
            alike = self.alike.of(self.place[gold] for gold in golds if gold in self.place)
            for gold in claim.golds:
                if gold not in first:
                    if not self.config.inject_gold:
                        self.counts.missed += 1
                        continue
                    self.counts.injected += 1
                limit = self._limit(scored.get(gold), last)
                allowed = list(self._allowed(ranked, golds, alike, limit))
                # Seeded by the claim: other claims do not change its draw.
                draw = np.random.default_rng([_SEED, _number(f"{claim.id}\0{gold}")])
                hard = self._hard(allowed, draw)
                listed = first.union(negative.source for negative in hard)
                random = list(self._random(golds, alike, listed, draw))
                self.counts.count(len(hard), len(random), self.config)
                if hard or random:
                    yield MinedRow(claim.id, gold, (*hard, *random))

    def _limit(self, gold: float | None, last: float) -> float:
        """Return the highest score of a negative, for a gold's and the last one of its list."""
        config = self.config
        limits = [np.inf if config.max_score is None else config.max_score]
        if gold is not None:
            if config.max_share is not None and config.share_of == "above_last":
                limits.append(last + config.max_share * (gold - last))
            elif config.max_share is not None:
                # A share of a negative score is above it: there the limit is as far below.
                limits.append(gold * (config.max_share if gold >= 0 else 2 - config.max_share))
            if config.margin is not None:
                limits.append(gold - config.margin)
        return min(limits)

    def _allowed(
        self,
        ranked: Sequence[tuple[str, float]],
        golds: frozenset[str],
        alike: GoldDuplicates,
        limit: float,
    ) -> Iterator[Negative]:
        for source, score in ranked[self.config.first_rank - 1 : self.config.last_rank]:
            if source not in self.pool:
                continue
            if source in golds or self.place[source] in alike:
                self.counts.same += 1
            elif score > limit:
                self.counts.close += 1
            else:
                yield Negative(source, float(score), "first")

    def _hard(self, allowed: list[Negative], draw: np.random.Generator) -> list[Negative]:
        if self.config.pick == "hardest":
            return allowed[: self.config.hard]
        wanted = min(self.config.hard * self.epochs, len(allowed))
        return [allowed[i] for i in draw.permutation(len(allowed))[:wanted].tolist()]

    def _random(
        self,
        golds: frozenset[str],
        alike: GoldDuplicates,
        listed: set[str],
        draw: np.random.Generator,
    ) -> Iterator[Negative]:
        """Draw sources that the first stage does not rank high; random ones are easy by that."""
        wanted = self.config.random * self.epochs
        places = draw.permutation(len(self.ids))[: wanted * _TRIES] if wanted else ()
        for place in places:
            source = self.ids[place]
            if source in golds or source in listed or self.place[source] in alike:
                continue
            yield Negative(source, 0.0, "random")
            wanted -= 1
            if not wanted:
                return


class RunCandidates(KeptNegatives):
    """Take a run's candidates from its first stage, or read a file of mined ones."""

    def __init__(
        self, config: RerankerConfig, train: Dataset, run: RunFolder, world: World
    ) -> None:
        super().__init__(train, run, world)
        self.config = config

    def first(self, ranking: Run | None) -> list[MinedRow]:
        """Write what is trained on; `ranking` is the first stage's, known to the first process."""
        made = gather_values(self.current.is_file(), self.world)[0]
        if self.world.is_first and not made:
            config = self.config
            if config.mined is not None:
                write_mined(read_mined(config.mined, self.train), self.current)
            else:
                assert ranking is not None
                epochs, depth = config.optimisation.epochs, config.first.depth
                miner = CandidateMiner(self.train, ranking, config.candidates, epochs, depth)
                write_mined(miner.mine(), self.current)
                self.sentences = miner.counts.sentences(config.candidates)
        return self._read()


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
        config: CandidatesConfig,
        teacher: TeacherScores | None = None,
    ) -> None:
        self.config, self.teacher = config, teacher
        claims: Mapping[str, Claim] = {claim.id: claim for claim in train.claims}
        self.rows = [row for row in rows if len(self._ids(row, 0)) > 1]
        self.untaught = len(rows) - len(self.rows)
        asked = [claims[row.claim] for row in self.rows]
        self.golds = [claim.golds for claim in asked]
        self.languages = [claim.lang for claim in asked]
        self._claims = rendering.claim_texts(asked)
        wanted = {n.source for row in self.rows for n in row.negatives}
        wanted |= {row.positive for row in self.rows}
        known = [source for source in train.sources if source.id in wanted]
        texts = rendering.source_texts(known)
        self._sources = {s.id: text for s, text in zip(known, texts, strict=True)}

    def groups(self) -> list[int]:
        """Number the pairs' groups of connected golds: such pairs are kept apart."""
        return connected_groups(self.golds)

    def sources(self, number: int, epoch: int) -> list[str]:
        """List the ids of a pair's group in an epoch, its gold first."""
        return self._ids(self.rows[number], epoch)

    def _ids(self, row: MinedRow, epoch: int) -> list[str]:
        scored = None if self.teacher is None else self.teacher.get(row.claim, {})
        negatives = [n for n in row.negatives if scored is None or n.source in scored]
        hard = [n.source for n in negatives if n.origin != "random"]
        random = [n.source for n in negatives if n.origin == "random"]
        gold = [row.positive] if scored is None or row.positive in scored else []
        config = self.config
        # Mined at random, each epoch has its own; the hardest stay the same. Without the gold, one
        # more is there to compare with.
        turn, wanted = 0 if config.pick == "hardest" else epoch, config.hard + 1 - len(gold)
        return [*gold, *_turn(hard, wanted, turn), *_turn(random, config.random, epoch)]

    def pairs(self, number: int, ids: Sequence[str]) -> list[Pair]:
        """Write the texts of a pair's claim and of sources."""
        return [Pair(self._claims[number], self._sources[source]) for source in ids]

    def taught(self, number: int, ids: Sequence[str]) -> list[float]:
        """Look up the teacher's scores."""
        assert self.teacher is not None
        scored = self.teacher[self.rows[number].claim]
        return [scored[source] for source in ids]


def _turn(listed: Sequence[str], wanted: int, turn: int) -> list[str]:
    """Take the next `wanted` of an endlessly repeated list, without a repeat among them."""
    if len(listed) <= wanted:
        return list(listed)
    return [listed[i % len(listed)] for i in range(turn * wanted, (turn + 1) * wanted)]


def _number(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:8], "big")
