"""Read a teacher's scores, candidates and vectors of the training texts."""

from __future__ import annotations

import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from claim2source.core.errors import ConfigError, InputError
from claim2source.core.files import content_hash, file_hash
from claim2source.core.records import Claim, Dataset, Source
from claim2source.io.store import Store
from claim2source.io.trec import named_as, read_run
from claim2source.mining import MinedRow, MiningConfig, Negative
from claim2source.models import Encoder, Identity, ModelConfig, Side, Tokens, Weights, resolve
from claim2source.models.projection import (
    FILE,
    fit_projection,
    load_projection,
    new_projection,
    projection_hash,
)
from claim2source.models.query_only import source_model
from claim2source.text import Rendering
from claim2source.text.clean import sentences_of
from claim2source.training.config import RetrieverRecipe
from claim2source.training.distributed import World, barrier

if TYPE_CHECKING:
    from sentence_transformers.sentence_transformer.modules import Dense

    from claim2source.models.manifest import SourceModel

# Claim id -> source id -> the teacher's score.
TeacherScores = Mapping[str, Mapping[str, float]]
_KEY = "losses.distillation.scores"


@dataclass(frozen=True)
class Teacher:
    """Hold a teacher's scores of training claims, divided by `spread` where that is set.

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
            sentence += f"; its scores are divided by {self.spread:.4g}, their spread in a claim"
        return [sentence]


def run_files(path: Path, key: str = _KEY) -> list[Path]:
    """List the files of a run: itself, or every `.trec` of a folder.

    Raises `InputError`, which names the `key`, where there is none.
    """
    if path.is_dir():
        files = sorted(path.glob("*.trec"))
        if not files:
            names = sorted(file.name for file in path.iterdir())[:3]
            holds = f"holds {', '.join(names)} .." if names else "is empty"
            why = f"looked for files NAME.trec (TREC runs, not compressed); this folder {holds}"
            raise InputError(path, field=key, why=why)
        return files
    if not path.is_file():
        raise InputError(path, field=key, why="no such file")
    return [path]


def read_teacher(
    path: Path, train: Dataset, temperature: float | None = None, key: str = _KEY
) -> Teacher:
    """Read a teacher's scores of training claims, divided by their spread without a temperature.

    The run may be any system's; other claims of it are ignored. Raises `InputError`, which names
    the `key`, when it has none of the claims, names a source that the data set does not have, or
    scores a claim in two files.
    """
    source_ids, by = {source.id for source in train.sources}, None
    golds = {claim.id: claim.golds for claim in train.claims}
    scores: dict[str, Mapping[str, float]] = {}
    files = run_files(path, key)
    for file in files:
        run = named_as(read_run(file), golds).run
        for claim in train.claims:
            if not (scored := run.scored(claim.id)):
                continue
            if claim.id in scores:
                raise InputError(file, field="claim", why=f"{claim.id} is in another file too")
            if wrong := next((source for source in scored if source not in source_ids), None):
                raise InputError(file, field="source", why=f"{wrong} is not in the data set")
            scores[claim.id] = scored
    if not scores:
        raise InputError(path, field="claim", why="scores no claim of the training split")
    if temperature is None:
        by = _spread(scores)
        scores = {claim: {s: v / by for s, v in row.items()} for claim, row in scores.items()}
    hashes = [file_hash(file) for file in files]
    sha256 = hashes[0] if path.is_file() else content_hash(hashes)
    return Teacher(scores, by, len(train.claims), sha256)


def _spread(scores: TeacherScores) -> float:
    """Return the mean standard deviation of a claim's scores; 1 where no claim's scores differ."""
    deviations = [
        statistics.pstdev(scored.values()) for scored in scores.values() if len(scored) > 1
    ]
    return (statistics.fmean(deviations) if deviations else 0.0) or 1.0


def teachers_rows(teacher: Teacher, train: Dataset, config: MiningConfig) -> list[MinedRow]:
    """Pair claims with their golds and with the teacher's candidates, its highest first.

    Of its ranks `first_rank` to `last_rank`, golds left out, the first `hard` that are in the
    pool. A claim that it does not score gets none.
    """
    golds = train.golds
    rows = []
    for claim in train.claims:
        scored = teacher.scores.get(claim.id, {})
        non_golds = [pair for pair in scored.items() if pair[0] not in claim.golds]
        negatives = [
            Negative(source, score, "teacher")
            for source, score in non_golds[config.first_rank - 1 : config.last_rank]
            if config.pool == "all" or source in golds
        ]
        rows += [MinedRow(claim.id, gold, tuple(negatives[: config.hard])) for gold in claim.golds]
    return rows


class BaseVectors:
    """Hold the base model's, or a teacher's, vectors of the training texts, encoded once."""

    def __init__(
        self,
        encoder: Encoder,
        rendering: Rendering,
        claims: Sequence[Claim],
        sources: Sequence[Source],
        store: Store,
        progress: bool = False,
    ) -> None:
        def encode(texts: Sequence[str], side: Side) -> np.ndarray:
            name = f"{side}s, base model" if progress else None
            return encoder.encode(texts, side, store=store, progress=name)[0]

        self._claims = encode(rendering.claim_texts(claims), "claim")
        self._sources = encode(rendering.source_texts(sources), "source")
        self._claim_rows = {claim.id: row for row, claim in enumerate(claims)}
        self._source_rows = {source.id: row for row, source in enumerate(sources)}

    def claims(self, ids: Sequence[str]) -> Tensor:
        """Look up the vectors [n, dimensions] of claims, float32, without gradient."""
        return torch.from_numpy(self._claims[[self._claim_rows[name] for name in ids]])

    def sources(self, ids: Sequence[str]) -> Tensor:
        """Look up the vectors [n, dimensions] of sources, float32, without gradient."""
        return torch.from_numpy(self._sources[[self._source_rows[name] for name in ids]])


# A shorter sentence is mostly a heading: "Methods."
_FEWEST_WORDS = 4
SIZE = 64


def pool_texts(sources: Sequence[Source], limit: int | None, seed: int) -> list[str]:
    """List the papers' titles and sentences, each once; of many `limit`, drawn."""
    pooled = [source.title.strip() for source in sources]
    sentences = (text for source in sources for text in sentences_of(source.abstract))
    pooled += [text for text in sentences if len(text.split()) >= _FEWEST_WORDS]
    texts = list(dict.fromkeys(filter(None, pooled)))
    if limit is None or len(texts) <= limit:
        return texts
    return random.Random(seed).sample(texts, limit)


class AlignedTexts:
    """Hold texts without labels, as the student reads them, and the teacher's vectors of them.

    Both read them as claims. `size` of them go to each batch, beside its claims; every epoch begins
    a new order.
    """

    def __init__(
        self,
        texts: Sequence[str],
        student: Encoder,
        teacher: Encoder,
        store: Store,
        seed: int,
        size: int = SIZE,
        progress: bool = False,
    ) -> None:
        self.texts, self.seed = texts, seed
        self.size = min(size, len(texts))
        self.tokens = student.tokenize(texts, "claim")
        name = "texts without labels, teacher" if progress else None
        self.vectors: np.ndarray = teacher.encode(texts, "claim", store=store, progress=name)[0]

    def batch(self, epoch: int, index: int) -> tuple[list[Tokens], Tensor]:
        """Take the texts of the epoch's batch `index`, and their vectors [texts, dimensions]."""
        if not self.size:
            return [], torch.from_numpy(self.vectors)
        order = np.random.default_rng((self.seed, epoch)).permutation(len(self.texts))
        rows = order.take(range(index * self.size, (index + 1) * self.size), mode="wrap")
        return [self.tokens[row] for row in rows], torch.from_numpy(self.vectors[rows])


@dataclass
class SourceTeacher:
    """Hold the `teacher` of a recipe, and the projection of `student` into its space.

    `record` is for manifests; `base` and `aligned` are made by `prepare`.
    """

    recipe: RetrieverRecipe
    student: Encoder
    encoder: Encoder
    projection: Dense
    record: SourceModel
    base: BaseVectors | None = None
    aligned: AlignedTexts | None = None

    @property
    def sha256(self) -> str:
        return content_hash([dict(self.encoder.weights or {}), dict(self.record.weights)])

    def prepare(
        self,
        train: Dataset,
        store: Store,
        world: World,
        untrained: Identity,
        folder: Path | None,
    ) -> None:
        """Encode claims, sources and texts without labels: `base`, and `aligned` where it is on.

        Where training begins, the projection is fitted too, or taken from the checkpoint of epoch
        0 in `folder`; `untrained` identifies the student's base. None: the saved state has it.
        """
        recipe, alignment = self.recipe, self.recipe.losses.alignment
        seed = recipe.optimisation.seed
        texts = pool_texts(train.sources, alignment.most, seed)
        # The first process encodes; the others then read the vectors from the store.
        for turn in (True, False):
            if world.is_first is turn:
                inputs = recipe.rendering, train.claims, train.sources
                self.base = BaseVectors(self.encoder, *inputs, store, progress=turn)
                if alignment.weight:
                    of = texts, self.student, self.encoder, store
                    self.aligned = AlignedTexts(*of, seed, progress=turn)
            barrier(world)
        if folder is not None:
            self._begin_projection(train, store, untrained, folder)

    def _begin_projection(
        self, train: Dataset, store: Store, untrained: Identity, folder: Path
    ) -> None:
        """Give the projection its first weights, and the student's weights their name."""
        projection = self.projection
        if (folder / FILE).is_file():
            initial = load_projection(folder, projection.in_features)
            projection.load_state_dict(initial.state_dict())
        else:
            student = Encoder(
                self.student.model, self.student.tokenizer, self.student.settings, untrained
            )
            texts = list(self.recipe.rendering.claim_texts(train.claims))
            assert self.base is not None
            targets = self.base.claims([claim.id for claim in train.claims])
            if self.aligned is not None:
                texts += self.aligned.texts
                targets = torch.cat((targets, torch.from_numpy(self.aligned.vectors)))
            vectors, _ = student.encode(texts, "claim", store=store, progress="texts, student")
            fit_projection(projection, torch.from_numpy(vectors), targets)
        self.student.weights = Weights(projection=projection_hash(projection)).identity(untrained)


def load_teacher(recipe: RetrieverRecipe, student: Encoder, device: str | None) -> SourceTeacher:
    """Load the teacher, and give `student` a projection into its space.

    From here on the student's `source_encoder` is the teacher's. Raises `UserError` where the
    teacher cannot be loaded, or reads sources otherwise.
    """
    assert recipe.teacher is not None
    if student.settings.truncate_dim is not None:
        allowed = "a model whose folder states no truncate_dim: a student has its teacher's length"
        raise ConfigError("model.name", recipe.model.name, allowed)
    resolved = resolve(ModelConfig(recipe.teacher.name), device)
    resolved.rendering_for(recipe.rendering)
    sources = resolved.encoder.source_encoder or resolved.encoder
    revision = None if resolved.manifest is not None else resolved.base.revision
    record = source_model(sources, recipe.teacher.name, revision)
    projection = new_projection(student.dimensions, sources.dimensions)
    student.dense = projection.to(student.device)
    student.source_encoder = sources
    return SourceTeacher(recipe, student, resolved.encoder, projection, record)
