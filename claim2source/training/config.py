"""The trainer's settings; their defaults are the base of every config file."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from claim2source.core.config import flag, list_field, require
from claim2source.mining import MiningConfig
from claim2source.models import ModelConfig
from claim2source.text import Rendering
from claim2source.training.losses import LossesConfig


@dataclass(frozen=True)
class DataConfig:
    """What is trained on, selected on and reported on.

    Args:
        dataset: folder in BEIR layout, or its name in CLAIM2SOURCE_DATA, or `demo`, the set that
            ships with the package.
        train_split: split whose claims are trained on; `val` is carved from it.
        report_split: split that is scored at the end, and for nothing else.
        val_share: share of each language's claims that goes to val, by gold paper.
        val_seed: which papers those are.
    """

    dataset: str = "demo"
    train_split: str = "train"
    report_split: str = "dev"
    val_share: float = 0.1
    val_seed: int = 13

    def __post_init__(self) -> None:
        require(0 < self.val_share < 1, "data.val_share", self.val_share, "above 0, below 1")
        require(self.val_seed >= 0, "data.val_seed", self.val_seed, "0 or more")


@dataclass(frozen=True)
class LoraConfig:
    """Low-rank adapters, by peft (2026 paper, table 6).

    Args:
        r: rank.
        alpha: the update is scaled by alpha / r.
        dropout: on the adapter's input.
        targets: names of the layers that get one, such as q_proj; empty takes every linear
            layer.
    """

    r: int = 16
    alpha: int = 64
    dropout: float = 0.1
    targets: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require(self.r >= 1, "lora.r", self.r, "1 or more")
        require(0 < self.alpha < math.inf, "lora.alpha", self.alpha, "above 0, and finite")
        require(0 <= self.dropout < 1, "lora.dropout", self.dropout, "0 or more, below 1")


@dataclass(frozen=True)
class OptimisationConfig:
    """How the weights are moved.

    Args:
        epochs: passes over the training pairs.
        batch_size: claims per process; their sources are each other's in-batch negatives.
        chunk_size: texts per forward pass (GradCache): memory stays that of one chunk, however
            large the batch; none: the whole batch at once. The gradients are the same.
        gather: with several processes, the sources of all of them are negatives; false: only
            a process's own.
        accumulation: batches per optimizer step. It does not enlarge the pool of negatives.
        negatives: mined negatives used per claim and epoch, hardest first.
        train: `both` sides, or `query_only`: sources keep the base model's vectors, so that an
            index of them stays valid.
        remine_every: mine again with the current model after every so many epochs (ANCE);
            0: once, before training.
        temperature: cosine similarities are divided by it.
        learning_rate: peak of AdamW's.
        warmup_ratio: share of the steps in which it rises; then it falls as a cosine.
        weight_decay: of AdamW; biases and norms are left out.
        max_grad_norm: gradients are clipped to this norm; 0 does not clip.
        dropout: of the base model while training; none leaves the model's own. 0 trains
            nearly twice as fast on a CPU.
        gradient_checkpointing: trade time for memory.
        precision: of the training arithmetic; bf16 only helps on a GPU.
        seed: of batches, adapters and dropout.
        save_every: optimizer steps between saves of the resumable state; 0: at epochs' ends.
        log_every: optimizer steps between log lines.
    """

    epochs: int = 3
    batch_size: int = 32
    chunk_size: int | None = None
    gather: bool = True
    accumulation: int = 1
    negatives: int = 1
    train: Literal["both", "query_only"] = "both"
    remine_every: int = 0
    temperature: float = 0.05
    learning_rate: float = 5e-5
    warmup_ratio: float = 0.05
    weight_decay: float = 0.01
    max_grad_norm: float = 1.0
    dropout: float | None = None
    gradient_checkpointing: bool = False
    precision: Literal["fp32", "bf16"] = "fp32"
    seed: int = 42
    save_every: int = 50
    log_every: int = 1

    def __post_init__(self) -> None:
        for key in ("epochs", "batch_size", "accumulation", "log_every"):
            require(getattr(self, key) >= 1, f"optimisation.{key}", getattr(self, key), "1 or more")
        for key in ("negatives", "remine_every", "weight_decay", "max_grad_norm", "save_every"):
            value = getattr(self, key)
            require(0 <= value < math.inf, f"optimisation.{key}", value, "0 or more, and finite")
        require(
            self.chunk_size is None or self.chunk_size >= 1,
            "optimisation.chunk_size",
            self.chunk_size,
            "1 or more, or none",
        )
        for key in ("temperature", "learning_rate"):
            value = getattr(self, key)
            require(0 < value < math.inf, f"optimisation.{key}", value, "above 0, and finite")
        # NumPy takes no seed below 0, Lightning none above.
        require(
            0 <= self.seed < 2**32,
            "optimisation.seed",
            self.seed,
            f"0 to {2**32 - 1}",
        )
        require(
            0 <= self.warmup_ratio < 1,
            "optimisation.warmup_ratio",
            self.warmup_ratio,
            "0 or more, below 1",
        )
        require(
            self.dropout is None or 0 <= self.dropout < 1,
            "optimisation.dropout",
            self.dropout,
            "none, or 0 or more and below 1",
        )


@dataclass(frozen=True)
class BatchesConfig:
    """Which pairs share a batch; one paper's claims are always kept apart where possible.

    Args:
        order: `mixed`; `language`: one language per batch; `length`: texts of like length.
        alpha: a language with n claims gets a share of an epoch that goes as n to this power:
            1 leaves the shares as they are, 0 makes them equal. Every claim keeps its turn: a
            language that gets less than its claims goes on with the others in the next epoch.
        rotate_negatives: each epoch uses the next of the mined negatives, hard and random in the
            list's proportion, not the hardest again; a list that is mined anew
            (`optimisation.remine_every`) goes on at the place where the one before stood.
    """

    order: Literal["mixed", "language", "length"] = "mixed"
    alpha: float = 1.0
    rotate_negatives: bool = False

    def __post_init__(self) -> None:
        require(0 <= self.alpha <= 1, "batches.alpha", self.alpha, "0 to 1")


@dataclass(frozen=True)
class WandbConfig:
    """Weights & Biases.

    Args:
        mode: `auto`: online with a key, offline without; or online, offline, off.
        project: where runs go.
        name: of this run; none: the output folder's.
    """

    mode: Literal["auto", "online", "offline", "off"] = "auto"
    project: str = "claim2source"
    name: str | None = None


@dataclass(frozen=True)
class AfterConfig:
    """What is scored beside the run once it has ended, on `data.report_split`.

    It goes to the run's folder `evaluation`, with every kept checkpoint; `report.json` is not
    touched. What fails there is said, and the run is finished all the same.

    Args:
        baselines: names of systems in `files`; claims are represented as in the run.
        report: write `report.html`, one page of figures of checkpoints and baselines.
        files: YAML files of systems; empty: all of configs/baselines.
        models: folder of models by the last part of their name, taken before the hub's.
    """

    baselines: tuple[str, ...] = ()
    report: bool = False
    files: tuple[Path, ...] = ()
    models: Path | None = None


@dataclass(frozen=True)
class FinetuneConfig:
    """Everything `train/finetune.py` can be told.

    Args:
        data: what is trained, selected and reported on.
        rendering: representation of claims and sources.
        model: the base model.
        tuning: `lora` adds adapters, `qlora` adds them to a base in 4 bits (GPU only), `full`
            moves every weight.
        lora: the adapters.
        mining: hard negatives, when they are mined here.
        mined: a file of `train/mine.py`, used instead of mining.
        optimisation: how the weights are moved.
        batches: which pairs share a batch.
        losses: what is minimised.
        choose: the checkpoint that the run stands for: the epoch that is best on val, the model
            before training among them, or the last one.
        keep: checkpoints of all epochs, or only of the best and the last.
        after: baselines and a page of figures at the end.
        wandb: Weights & Biases.
        out: the run's folder.
        store: folder of the embedding store; none: the user's cache.
        device: none takes a GPU if there is one.
        threads: CPU threads of each process; none: all cores, shared by this machine's processes
            where the launcher was not told (it would give each a single one).
    """

    data: DataConfig = field(default_factory=DataConfig)
    rendering: Rendering = field(default_factory=Rendering)
    model: ModelConfig = field(default_factory=ModelConfig)
    tuning: Literal["lora", "qlora", "full"] = "lora"
    lora: LoraConfig = field(default_factory=LoraConfig)
    mining: MiningConfig = field(default_factory=MiningConfig)
    mined: Path | None = None
    optimisation: OptimisationConfig = field(default_factory=OptimisationConfig)
    batches: BatchesConfig = field(default_factory=BatchesConfig)
    losses: LossesConfig = field(default_factory=LossesConfig)
    choose: Literal["best", "last"] = "best"
    keep: Literal["all", "best"] = "all"
    after: AfterConfig = field(default_factory=AfterConfig)
    wandb: WandbConfig = field(default_factory=WandbConfig)
    out: Path = Path("checkpoints/run")
    store: Path | None = None
    device: Literal["cpu", "cuda"] | None = None
    threads: int | None = None
    scales: list[float] | None = list_field(
        float, help="tried on val at the end: 0 is the base, 1 the chosen epoch as trained"
    )
    languages: list[str] | None = list_field(str, help="train and report on these languages only")
    resume: bool = flag("go on from the run's last saved state")
    overwrite: bool = flag("replace a run that is in the output folder")

    def __post_init__(self) -> None:
        if self.tuning == "qlora":
            # The manifest takes it from here: a checkpoint is used over the base it was made on.
            object.__setattr__(self, "model", replace(self.model, quantization="nf4"))
        require(
            self.tuning == "qlora" or self.model.quantization is None,
            "model.quantization",
            self.model.quantization,
            f"none with tuning: {self.tuning}; write tuning: qlora",
        )
        require(
            self.tuning != "full" or self.model.dtype == "float32",
            "model.dtype",
            self.model.dtype,
            "float32 with tuning: full; 16 bits lose small steps",
        )
        wanted, mined = self.optimisation.negatives, self.mining.hard + self.mining.random
        # A file's rows may be longer; what is mined anew is not.
        by_file_alone = self.mined is not None and self.optimisation.remine_every == 0
        require(
            by_file_alone or wanted <= mined,
            "optimisation.negatives",
            wanted,
            f"at most mining.hard + mining.random ({mined})",
        )
        require(
            self.threads is None or self.threads >= 1, "threads", self.threads, "1 or more, or none"
        )
        good = all(math.isfinite(scale) and scale >= 0 for scale in self.scales or ())
        require(good, "scales", self.scales, "numbers, 0 or more")
        require(not (self.resume and self.overwrite), "overwrite", True, "not with resume")
