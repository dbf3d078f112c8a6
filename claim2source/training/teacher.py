"""Read a teacher's scores, candidates and vectors of the training texts."""

from __future__ import annotations

import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from claim2source.core.errors import ConfigError, InputError
from claim2source.core.files import content_hash, file_hash
from claim2source.core.records import Claim, Dataset, Source
from claim2source.data.store import Store
from claim2source.data.trec import named_as, read_run
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
from claim2source.text.clean import split_sentences
from claim2source.training.config import RetrieverRecipe
from claim2source.training.distributed import World, first_before_others
from claim2source.training.losses import Alignment

if TYPE_CHECKING:
    from claim2source.models.manifest import SourceModel

# Claim id -> source id -> the teacher's score.
TeacherScores = Mapping[str, Mapping[str, float]]
# Id of a claim or source -> its vector [dimensions].
Vectors = Mapping[str, np.ndarray]
_KEY = "losses.distillation.scores"
# A shorter sentence is mostly a heading: "Methods."
_FEWEST_WORDS = 4


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
            sentence += f"; its scores are divided by {self.spread:.4g}, their spread in a claim"
        return [sentence]


def read_teacher(
    path: Path, train: Dataset, temperature: float | None = None, key: str = _KEY
) -> Teacher:
    """Read a teacher's scores of training claims, divided by their spread without a temperature.

    The run, a file or every `.trec` of a folder, may be any system's; other claims of it are
    ignored. Raises `InputError`, which names the `key`, if there is no file, or it has none of
    the claims, names a source that the data set does not have, or scores a claim in two files.
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
    """List the run that is named, or those of the folder. Raises `InputError` if there is none."""
    if not path.is_dir():
        if not path.is_file():
            raise InputError(path, field=key, reason="no such file")
        return [path]
    files = sorted(path.glob("*.trec"))
    if not files:
        names = sorted(file.name for file in path.iterdir())[:3]
        holds = f"holds {', '.join(names)} .." if names else "is empty"
        reason = f"looked for files NAME.trec (TREC runs, not compressed); this folder {holds}"
        raise InputError(path, field=key, reason=reason)
    if not files[0].is_file():
        raise InputError(path, field=key, reason="no such file")
    return files


def _scores_in(files: Sequence[Path], train: Dataset) -> dict[str, Mapping[str, float]]:
    """Read the scores of training claims: each claim from one file, sources of the data set."""
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
    """Pair claims with their golds and with the teacher's candidates, its highest first.

    Of its ranks `first_rank` to `last_rank`, golds left out, the first `hard` that are in the
    pool. A claim that it does not score gets none.
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


@dataclass(frozen=True, eq=False)
class BaseVectors:
    """Base model's, or a teacher's, vectors of the training texts, by id."""

    claim_vectors: Vectors
    source_vectors: Vectors

    @classmethod
    def encode(
        cls,
        encoder: Encoder,
        rendering: Rendering,
        train: Dataset,
        store: Store,
        progress: bool = False,
    ) -> BaseVectors:
        def by_id(records: Sequence[Claim | Source], texts: Sequence[str], side: Side) -> Vectors:
            name = f"{side}s, base model" if progress else None
            vectors = encoder.encode(texts, side, store=store, progress=name)[0]
            return dict(zip((record.id for record in records), vectors, strict=True))

        return cls(
            by_id(train.claims, rendering.claim_texts(train.claims), "claim"),
            by_id(train.sources, rendering.source_texts(train.sources), "source"),
        )

    def claims(self, ids: Sequence[str]) -> Tensor:
        """Look up the vectors [n, dimensions] of claims, float32, without gradient."""
        return torch.from_numpy(np.stack([self.claim_vectors[name] for name in ids]))

    def sources(self, ids: Sequence[str]) -> Tensor:
        """Look up the vectors [n, dimensions] of sources, float32, without gradient."""
        return torch.from_numpy(np.stack([self.source_vectors[name] for name in ids]))


def pool_texts(sources: Sequence[Source], limit: int | None, seed: int) -> list[str]:
    """List the papers' titles and sentences, each once; of many `limit`, drawn."""
    pooled = [source.title.strip() for source in sources]
    sentences = (text for source in sources for text in split_sentences(source.abstract))
    pooled += [text for text in sentences if len(text.split()) >= _FEWEST_WORDS]
    texts = list(dict.fromkeys(filter(None, pooled)))
    if limit is None or len(texts) <= limit:
        return texts
    return random.Random(seed).sample(texts, limit)


@dataclass(frozen=True, eq=False)
class AlignedTexts:
    """Texts without labels, as the student reads them, and the teacher's vectors of them.

    Both read them as claims. `size` of them go to each batch, with its claims; every epoch begins
    a new order.
    """

    texts: Sequence[str]
    tokens: Sequence[Tokens]
    vectors: np.ndarray
    seed: int
    size: int = 64

    def batch(self, epoch: int, index: int) -> tuple[list[Tokens], Tensor]:
        """Take the texts of the epoch's batch `index`, and their vectors [texts, dimensions]."""
        if not (size := min(self.size, len(self.texts))):
            return [], torch.from_numpy(self.vectors)
        order = np.random.default_rng((self.seed, epoch)).permutation(len(self.texts))
        rows = order.take(range(index * size, (index + 1) * size), mode="wrap")
        return [self.tokens[row] for row in rows], torch.from_numpy(self.vectors[rows])


@dataclass
class SourceTeacher:
    """The `teacher` of a recipe, into whose space `student` has a projection.

    `record` is for manifests; `base` and `aligned` are made by `prepare`.
    """

    recipe: RetrieverRecipe
    student: Encoder
    encoder: Encoder
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
        """Encode claims, sources and texts without labels: `base`, and `aligned` if it is on.

        Where training begins, the projection is fitted too, or taken from the checkpoint of epoch
        0 in `folder`; `untrained` identifies the student's base. None: the saved state has it.
        """
        recipe, losses = self.recipe, self.recipe.losses
        student, encoder, is_first = self.student, self.encoder, world.is_first
        seed = recipe.optimisation.seed
        most: int | None = losses.setting("aligned_texts", "most", Alignment.most)
        texts = pool_texts(train.sources, most, seed)
        with first_before_others(world):
            self.base = BaseVectors.encode(encoder, recipe.rendering, train, store, is_first)
            if losses.needing("aligned_texts"):
                name = "texts without labels, teacher" if is_first else None
                vectors, _ = encoder.encode(texts, "claim", store=store, progress=name)
                tokens = student.tokenize(texts, "claim")
                self.aligned = AlignedTexts(texts, tokens, vectors, seed)
        if folder is None:
            return
        projection: Any = student.dense
        if (folder / FILE).is_file():
            initial = load_projection(folder, projection.in_features)
            projection.load_state_dict(initial.state_dict())
        else:
            own = Encoder(student.model, student.tokenizer, student.settings, untrained)
            texts = list(recipe.rendering.claim_texts(train.claims))
            targets = self.base.claims([claim.id for claim in train.claims])
            if self.aligned is not None:
                texts += self.aligned.texts
                targets = torch.cat((targets, torch.from_numpy(self.aligned.vectors)))
            vectors, _ = own.encode(texts, "claim", store=store, progress="texts, student")
            fit_projection(projection, torch.from_numpy(vectors), targets)
        student.weights = Weights(projection=projection_hash(projection)).identity(untrained)


def load_teacher(recipe: RetrieverRecipe, student: Encoder, device: str | None) -> SourceTeacher:
    """Load the teacher, and give `student` a projection into its space.

    From here on the student's `source_encoder` is the teacher's. Raises `UserError` if the
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
    student.dense = new_projection(student.dimensions, sources.dimensions).to(student.device)
    student.source_encoder = sources
    return SourceTeacher(recipe, student, resolved.encoder, record)
