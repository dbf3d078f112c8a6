"""Define the settings of distillation."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Literal

from claim2source.core.config import (
    Between,
    Repeats,
    Settings,
    list_field,
    require,
)
from claim2source.core.errors import ConfigError
from claim2source.pipeline.results import DEPTH
from claim2source.training.config import FinetuneConfig, RunConfig
from claim2source.training.reranker.config import (
    TAUGHT,
    CandidatesConfig,
    FirstStageConfig,
    RerankerConfig,
    RerankerLossConfig,
    RerankerModelConfig,
    RerankerStepsConfig,
)

# claims: reads claims for the teacher's vectors of sources. retriever: reads both sides, and
# learns the teacher's scores; reranker: reads pairs, and learns them. static: the teacher's vectors
# of single tokens, added up.
Student = Literal["claims", "retriever", "reranker", "static"]


@dataclass(frozen=True)
class StaticConfig(Settings):
    """Set how a teacher becomes static embeddings, by model2vec (the extra `static`).

    Args:
        dimensions: of the vectors, by PCA; none: as many as the teacher has.
        sif: a token weighs sif / (sif + its frequency), which is guessed from its rank.
        max_length: tokens of a text that are read.
    """

    dimensions: Annotated[int, Between(1, 10_000)] | None = 256
    sif: float = 1e-4
    max_length: Annotated[int, Between(8, 10**6)] = 512

    def check(self) -> None:
        require(0 < self.sif < 1, "static.sif", self.sif, "above 0, below 1")


@dataclass(frozen=True)
class RerankerStudent:
    """Hold the settings of a student that re-ranks, as `train/finetune_reranker.py` has them.

    Args:
        model: the re-ranker before training.
        optimisation: batches, epochs and the optimizer.
        first: the first stage, whose sources are re-ranked; its systems are those of `files`.
        candidates: which of the first stage's sources, and random ones, a claim's group has.
        loss: `margin_mse` or `mse`; the teacher ranks the training claims into the folder
            `scores` where nothing lies there yet.
        choose_by: metric on val of the whole pipeline, higher is better.
    """

    model: RerankerModelConfig = field(default_factory=RerankerModelConfig)
    optimisation: RerankerStepsConfig = field(default_factory=RerankerStepsConfig)
    first: FirstStageConfig = field(default_factory=FirstStageConfig)
    candidates: CandidatesConfig = field(default_factory=CandidatesConfig)
    loss: RerankerLossConfig = field(default_factory=RerankerLossConfig)
    choose_by: str = "mrr@5"


@dataclass(frozen=True)
class DistillConfig(FinetuneConfig):
    """Hold the settings of `train/distill.py`: those of the student's training, and of the table.

    Args:
        student: `claims`: the model learns to read claims for the teacher's vectors of sources;
            `retriever`: it learns the teacher's scores of candidates, for both sides
            (`losses.distillation`, whose run the teacher writes where there is none yet);
            `reranker`: a small re-ranker of a first stage learns them (`reranker.loss`);
            `static`: no training, the teacher's vectors of single tokens are added up; `batches`,
            `mining` and `optimisation` are not read.
        teacher: a trained run, a checkpoint or a model; for `retriever` and `reranker` also a
            system of `files`, such as a re-ranker.
        reranker: the settings of `student: reranker`, in place of the retriever's.
        static: how the teacher becomes static embeddings.
        depth: sources kept for each claim.
        beside: name in the table -> a further system of `files`, checkpoint or model.
        measured: claims whose answers are timed one by one; 0: none are.
        repeats: draws of the bootstrap and permutations of the tests, both by gold paper.
    """

    student: Student = "claims"
    reranker: RerankerStudent = field(default_factory=RerankerStudent)
    static: StaticConfig = field(default_factory=StaticConfig)
    depth: Annotated[int, Between(1, 10**6)] = DEPTH
    beside: dict[str, str] = field(default_factory=dict)
    measured: Annotated[int, Between(0, 100_000)] = 100
    repeats: Repeats = 10_000
    out: Path = Path("checkpoints/student")
    files: list[Path] = list_field(help="YAML files of systems; none: all of configs/systems")

    def check(self) -> None:
        for name in ("teacher", "student"):
            allowed = f"other names than {name!r}, which is in the table already"
            require(name not in self.beside, "beside", name, allowed)
        super().check()

    def _check_teacher(self) -> None:
        if self.teacher is None:
            raise ConfigError("teacher.name", None, "a trained run, a checkpoint or a model")
        if self.student == "reranker":
            self._check_reranker()
            return
        good = self.reranker == RerankerStudent()
        require(good, "reranker", "settings", f"none with student: {self.student}")
        if self.student == "claims":
            super()._check_teacher()
            return
        weights = self.losses.alignment.weight, self.losses.distillation.weight
        allowed = f"0 with student: {self.student}"
        require(weights[0] == 0, "losses.alignment.weight", weights[0], allowed)
        if self.student == "retriever":
            key = "losses.distillation.weight"
            require(weights[1] > 0, key, weights[1], "above 0 with student: retriever")

    def _check_reranker(self) -> None:
        plain, loss, first = FinetuneConfig(), self.reranker.loss.kind, self.reranker.first
        allowed = "full or lora with student: reranker"
        require(self.tuning != "qlora", "tuning", self.tuning, allowed)
        own = {one.name for one in fields(FinetuneConfig)} - {one.name for one in fields(RunConfig)}
        for key in sorted((own | {"optimisation"}) - {"teacher"}):
            good = getattr(self, key) == getattr(plain, key)
            require(good, key, "settings", "none with student: reranker, whose own are `reranker`")
        require(loss in TAUGHT, "reranker.loss.kind", loss, " or ".join(TAUGHT))
        allowed = "none: a student answers new claims; name a system"
        require(not first.run, "reranker.first.run", [*map(str, first.run)], allowed)
        allowed = "none: the systems are those of `files`"
        require(not first.files, "reranker.first.files", [*map(str, first.files)], allowed)
        self.reranker_recipe()

    @property
    def scores(self) -> Path | None:
        """Return where the teacher's run of the training claims lies, or is to lie."""
        reranks = self.student == "reranker"
        return self.reranker.loss.scores if reranks else self.losses.distillation.scores

    def reranker_recipe(self) -> RerankerConfig:
        """Return the settings of a re-ranker's training alone."""
        settings = {one.name: getattr(self, one.name) for one in fields(RunConfig)}
        settings |= {one.name: getattr(self.reranker, one.name) for one in fields(RerankerStudent)}
        settings["first"] = replace(self.reranker.first, files=tuple(self.files or ()))
        return RerankerConfig(**settings)

    def recipe(self) -> FinetuneConfig:
        """Return the settings of the student's training alone."""
        settings = {one.name: getattr(self, one.name) for one in fields(FinetuneConfig)}
        if self.student != "claims":
            settings["teacher"] = None
        return FinetuneConfig(**settings)
