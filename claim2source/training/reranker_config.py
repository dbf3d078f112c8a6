"""Define the settings for training a re-ranker, with their defaults."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from claim2source.core.config import Between, Positive, Settings, require
from claim2source.core.errors import ConfigError
from claim2source.models.config import Dtype
from claim2source.models.manifest import RerankerKind
from claim2source.stages.pairs import DEEPEST
from claim2source.training.config import RunConfig, StepsConfig, TrainingRecipe

# Logged besides the loss: the share of groups whose scores are all equal.
ALIKE = "alike"
Loss = Literal["listwise", "lambda", "bce", "cross_entropy", "margin_mse"]


@dataclass(frozen=True)
class RerankerModelConfig(Settings):
    """Choose the re-ranker to train and its input format.

    Args:
        kind: `cross_encoder`: a classifier of pairs; `yes_no`: a generative model's log-odds of
            yes, like Qwen3-Reranker.
        name: a folder, a packaged model or a name on the hub. A cross-encoder may be an encoder
            without a head: its head is initialised at random.
        revision: commit of the hub repository; none takes the newest.
        max_length: tokens of a pair, prompt included; none: as the model's files say.
        dtype: type of the weights: float32, bfloat16 or float16; adapters and heads are float32.
        labels: logits of a cross-encoder: 1, or 2 of irrelevant and relevant.
        instruction: instruction of a model that takes one; for yes_no `released`, `detailed` or a
            text; none: `released` for yes_no, else no instruction.
        template: form of the yes/no prompt: `qwen3`, or `escaped`, as in the 2026 paper's code.
        allow_remote_code: names of models whose own code may run on this machine; on the hub such
            a model needs `revision`, the full commit.
    """

    kind: RerankerKind = "cross_encoder"
    name: str = "cross-encoder/ms-marco-MiniLM-L6-v2"
    revision: str | None = None
    max_length: Annotated[int, Between(8, 10**6)] | None = None
    dtype: Dtype = "float32"
    labels: Annotated[int, Between(1, 2)] = 1
    instruction: str | None = None
    template: Literal["qwen3", "escaped"] = "qwen3"
    allow_remote_code: tuple[str, ...] = ()

    def check(self) -> None:
        require(bool(self.name.strip()), "model.name", self.name, "a folder or a model's name")
        is_one = self.labels == 1 or self.kind == "cross_encoder"
        require(is_one, "model.labels", self.labels, "1: only a cross_encoder has two")
        has_words = self.instruction is None or bool(self.instruction.strip())
        require(has_words, "model.instruction", self.instruction, "a text, or none")


@dataclass(frozen=True)
class FirstStageConfig(Settings):
    """Name the first stage, whose sources are re-ranked on val and in the report.

    A dense model that was trained on the claims of train ranks them better than new ones. In that
    case, mine with `mining.max_share`.

    Args:
        system: name of a system in `files`; none: BM25 with default settings for a re-ranker, and
            BM25 fused with the model in `train/mine.py`.
        files: YAML files of systems; none: all of configs/systems.
        checkpoint: replaces the system's dense model: a checkpoint, the folder of a training run,
            or a model's name.
        depth: number of a claim's first sources to re-rank, up to 2,000.
    """

    system: str | None = None
    files: tuple[Path, ...] = ()
    checkpoint: str | None = None
    depth: Annotated[int, Between(1, DEEPEST)] = 100

    def check(self) -> None:
        has_system = self.checkpoint is None or self.system is not None
        require(has_system, "first.checkpoint", self.checkpoint, "none without first.system")


@dataclass(frozen=True)
class RerankerLossConfig(Settings):
    """Choose the loss over a claim's group: its gold and its negatives.

    All are sentence-transformers' own, on raw logits.

    Args:
        kind: `listwise`: cross-entropy of the softmax over the group; `lambda`: LambdaLoss
            (NDCG-Loss2++) of the first 5; `bce`: binary cross-entropy of every pair;
            `cross_entropy`: of two logits, irrelevant and relevant; `margin_mse`: on the teacher's
            margins between the gold and each negative.
        scores: for margin_mse, run file (TREC) with the teacher's scores of training claims'
            candidates, or a folder of them. Candidates without a score are left out. Scores are
            divided by the mean standard deviation of a claim's scores.
    """

    kind: Loss = "listwise"
    scores: Path | None = None

    def check(self) -> None:
        has_teacher = self.kind == "margin_mse"
        allowed = (
            "a run file with the teacher's scores" if has_teacher else f"none with {self.kind}"
        )
        require(has_teacher == (self.scores is not None), "loss.scores", self.scores, allowed)


@dataclass(frozen=True)
class RerankerStepsConfig(StepsConfig):
    """Configure batches, epochs and the optimizer for training a re-ranker.

    Args:
        batch_size: claims per process; each has one gold and its negatives.
        negatives: mined negatives used per claim and epoch; if the file has more, each epoch
            takes the next, hard and random in its proportion.
        chunk_size: pairs per forward pass (GradCache): memory is that of one chunk, and the
            gradients are the same; none: all pairs of a batch at once.
        gradient_checkpointing: recompute activations in the backward pass: less memory, more time.
    """

    epochs: Annotated[int, Between(1, 10_000)] = 2
    batch_size: Annotated[int, Between(1, 10**6)] = 8
    learning_rate: Positive = 2e-5
    negatives: Annotated[int, Between(1, 10_000)] = 8
    chunk_size: Annotated[int, Between(1, 10**6)] | None = None
    gradient_checkpointing: bool = False


@dataclass(frozen=True)
class RerankerRecipe(TrainingRecipe):
    """Configure how a re-ranker is trained.

    Args:
        model: the re-ranker to train.
        tuning: `full` trains every weight, `lora` adds adapters (and trains a head in full).
        optimisation: batches, epochs and the optimizer.
        loss: the loss to minimise.
    """

    tuning: Literal["lora", "full"] = "full"
    optimisation: RerankerStepsConfig = field(default_factory=RerankerStepsConfig)
    model: RerankerModelConfig = field(default_factory=RerankerModelConfig)
    loss: RerankerLossConfig = field(default_factory=RerankerLossConfig)

    @property
    def unsharded(self) -> str | None:
        """Return the allowed strategies: a re-ranker cannot be sharded."""
        return "auto or ddp for a re-ranker"

    @property
    def models(self) -> dict[str, str]:
        """Return the name of the base by its key."""
        return {"model.name": self.model.name}

    @property
    def measures(self) -> tuple[str, ...]:
        """Return the logged name of the share of groups with equal scores."""
        return (ALIKE,)


@dataclass(frozen=True)
class RerankerConfig(RerankerRecipe, RunConfig):
    """All settings of `train/finetune_reranker.py`.

    Args:
        first: the first stage, whose sources are re-ranked.
        choose_by: metric of the whole pipeline on val: mrr@1, mrr@5, mrr@10 or recall@5.
    """

    first: FirstStageConfig = field(default_factory=FirstStageConfig)
    choose_by: Literal["mrr@1", "mrr@5", "mrr@10", "recall@5"] = "mrr@5"
    out: Path = Path("checkpoints/reranker")

    def check(self) -> None:
        super().check()
        model, loss, full = self.model, self.loss.kind, self.tuning == "full"
        allowed = "float32 with tuning: full; 16 bits lose small steps"
        require(not full or model.dtype == "float32", "model.dtype", model.dtype, allowed)
        two = model.labels == 2
        kinds = "cross_entropy with model.labels: 2" if two else "another with model.labels: 1"
        require(two == (loss == "cross_entropy"), "loss.kind", loss, kinds)

    def require_mined(self) -> Path:
        """Return the file of negatives. Raises `ConfigError` if none is named."""
        if self.mined is None:
            allowed = "a file of train/mine.py, whose negatives are trained on"
            raise ConfigError("mined", None, allowed)
        return self.mined
