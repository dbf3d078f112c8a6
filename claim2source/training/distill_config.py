"""Define the settings of distillation."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Literal

from claim2source.core.config import (
    list_field,
    require,
    require_between,
    require_repeats,
)
from claim2source.core.errors import ConfigError
from claim2source.pipeline.results import DEPTH
from claim2source.training.config import FinetuneConfig

# claims: reads claims for the teacher's vectors of sources. retriever: reads both sides, and
# learns the teacher's scores. static: the teacher's vectors of single tokens, added up.
Student = Literal["claims", "retriever", "static"]


@dataclass(frozen=True)
class StaticConfig:
    """Set how a teacher becomes static embeddings, by model2vec (the extra `static`).

    Args:
        dimensions: of the vectors, by PCA; none: as many as the teacher has.
        sif: a token weighs sif / (sif + its frequency), which is guessed from its rank.
        max_length: tokens of a text that are read.
    """

    dimensions: int | None = 256
    sif: float = 1e-4
    max_length: int = 512

    def __post_init__(self) -> None:
        require_between("static.dimensions", self.dimensions, 1, 10_000, none=True)
        require(0 < self.sif < 1, "static.sif", self.sif, "above 0, below 1")
        require_between("static.max_length", self.max_length, 8, 10**6)


@dataclass(frozen=True)
class DistillConfig(FinetuneConfig):
    """Hold the settings of `train/distill.py`: those of the student's training, and of the table.

    Args:
        student: `claims`: the model learns to read claims for the teacher's vectors of sources;
            `retriever`: it learns the teacher's scores of candidates, for both sides
            (`losses.distillation`, whose run the teacher writes where there is none yet);
            `static`: no training, the teacher's vectors of single tokens are added up.
        teacher: a trained run, a checkpoint or a model; for `retriever` also a system of `files`,
            such as a re-ranker.
        static: how the teacher becomes static embeddings.
        depth: sources kept for each claim.
        beside: name in the table -> a further system of `files`, checkpoint or model.
        measured: claims whose answers are timed one by one; 0: none are.
        repeats: draws of the bootstrap and permutations of the tests, both by gold paper.
    """

    student: Student = "claims"
    static: StaticConfig = field(default_factory=StaticConfig)
    depth: int = DEPTH
    beside: dict[str, str] = field(default_factory=dict)
    measured: int = 100
    repeats: int = 10_000
    out: Path = Path("checkpoints/student")
    files: list[Path] = list_field(Path, help="YAML files of systems; none: all of configs/systems")

    def __post_init__(self) -> None:
        require_between("depth", self.depth, 1, 10**6)
        require_between("measured", self.measured, 0, 100_000)
        require_repeats("repeats", self.repeats)
        for name in ("teacher", "student"):
            allowed = f"other names than {name!r}, which is in the table already"
            require(name not in self.beside, "beside", name, allowed)
        super().__post_init__()

    def _check_teacher(self) -> None:
        if self.teacher is None:
            raise ConfigError("teacher.name", None, "a trained run, a checkpoint or a model")
        if self.student == "claims":
            super()._check_teacher()
            return
        weights = self.losses.alignment.weight, self.losses.distillation.weight
        allowed = f"0 with student: {self.student}"
        require(weights[0] == 0, "losses.alignment.weight", weights[0], allowed)
        if self.student == "retriever":
            key = "losses.distillation.weight"
            require(weights[1] > 0, key, weights[1], "above 0 with student: retriever")

    @property
    def teacher_name(self) -> str:
        """Return the teacher's name."""
        assert self.teacher is not None
        return self.teacher.name

    def recipe(self) -> FinetuneConfig:
        """Return the settings of the student's training alone."""
        settings = {one.name: getattr(self, one.name) for one in fields(FinetuneConfig)}
        if self.student != "claims":
            settings["teacher"] = None
        return FinetuneConfig(**settings)
