"""Define the trainer's settings; their defaults are the base of every config file."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from claim2source.core.config import (
    Amount,
    Between,
    Count,
    Number,
    PartialShare,
    Positive,
    Repeats,
    Seed,
    Settings,
    Share,
    SplitShare,
    flag,
    list_field,
    require,
)
from claim2source.core.errors import ConfigError
from claim2source.core.report import Rule
from claim2source.data.pair_files import is_pair_file
from claim2source.mining import MiningConfig
from claim2source.models import ModelConfig
from claim2source.text import Rendering
from claim2source.training.loss_list import Losses
from claim2source.training.losses import Distillation
from claim2source.training.trainer import TrainerSettings, check_names


@dataclass(frozen=True)
class DataConfig(Settings):
    """Choose the data for training, choosing and reporting.

    Args:
        dataset: folder in BEIR layout, or its name in CLAIM2SOURCE_DATA, or `demo`, the set that
            ships with the package; or a file of pairs (CSV, TSV, JSON lines, Parquet).
        train_split: split whose claims are trained on; a part of it is held out as val.
        report_split: split that is scored at the end and used for nothing else.
        val_share: share of each language's claims that are held out as val, with all claims of
            their papers.
        val_seed: seed that selects the papers of val.
        val_seen_share: share of each language's claims that also go to val, although their papers
            stay in train; none: as val_share with `choose: best`, else 0.
        seen_share_expected: share of claims of seen papers, 0 to 1, to expect when choosing.
            Without val_seen_share val has twice val_share of the claims and this share among them;
            more than the papers' claims allow is refused. none: the share of the training split's
            claims whose paper has another claim.
        limit: train only on the first claims, this many (val is held out before); none: all.
        repeat: how often an epoch uses each training pair; more than 1 means fewer evaluations
            and checkpoints for the same number of optimizer steps.
        lenient: skip rows of the data set that cannot be loaded; their number is logged.
    """

    dataset: str = "demo"
    train_split: str = "train"
    report_split: str = "dev"
    val_share: SplitShare = 0.1
    val_seed: Seed = 13
    val_seen_share: Annotated[float, Between(0, 0.9)] | None = None
    seen_share_expected: Share | None = None
    limit: Number | None = None
    repeat: Annotated[int, Between(1, 10_000)] = 1
    lenient: bool = False

    def check(self) -> None:
        is_distinct = self.report_split != self.train_split
        allowed = "another split than data.train_split"
        require(is_distinct, "data.report_split", self.report_split, allowed)


@dataclass(frozen=True)
class LoraConfig(Settings):
    """Configure low-rank adapters, by peft (2026 paper, table 6).

    Args:
        r: rank.
        alpha: the update is scaled by alpha / r.
        dropout: dropout on the adapter's input.
        targets: names of the layers that get an adapter, such as q_proj; empty: every linear
            layer.
    """

    r: Annotated[int, Between(1, 10_000)] = 16
    alpha: Number = 64
    dropout: PartialShare = 0.1
    targets: tuple[str, ...] = ()


@dataclass(frozen=True)
class StepsConfig(Settings):
    """Configure batches, epochs and the optimizer of any training.

    Args:
        epochs: passes over the training pairs.
        batch_size: claims per process.
        accumulation: batches per optimizer step (gradient accumulation); it adds no in-batch
            negatives.
        learning_rate: highest learning rate of AdamW.
        warmup_ratio: share of the optimizer steps in which the learning rate rises; afterwards it
            falls like a cosine.
        warmup_from_zero: begin the rise at 0, as before version 0.3, so that the first step changes
            nothing. false: begin at 1 / (steps of the rise + 1).
        warmup_rounding: how warmup_ratio is rounded to steps: to the `nearest` number, or `up`, as
            in transformers.
        weight_decay: weight decay of AdamW; biases and norms have none.
        max_grad_norm: gradients are clipped to this norm; 0 does not clip.
        dropout: dropout of the base model while training; none: the model's own. 0 trains nearly
            twice as fast on a CPU.
        train_layers: with tuning: full, train only this many last layers, and freeze the word
            embeddings and lower layers: half of the layers take two thirds of the time, and
            in multilingual models the embeddings are most of the weights; none: all.
        precision: precision of training; bf16 is slow without a GPU or bfloat16 instructions.
        seed: seed of batches, adapters and dropout.
        save_every: optimizer steps between saved states, from which a run resumes; 0: only at
            the ends of epochs.
    """

    epochs: Annotated[int, Between(1, 10_000)] = 3
    batch_size: Repeats = 32
    accumulation: Repeats = 1
    learning_rate: Positive = 5e-5
    warmup_ratio: PartialShare = 0.05
    warmup_from_zero: bool = False
    warmup_rounding: Literal["nearest", "up"] = "nearest"
    weight_decay: Amount = 0.01
    max_grad_norm: Amount = 1.0
    dropout: PartialShare | None = None
    train_layers: Annotated[int, Between(1, 10_000)] | None = None
    precision: Literal["fp32", "bf16"] = "fp32"
    seed: Seed = 42
    save_every: Count = 50


@dataclass(frozen=True)
class OptimisationConfig(StepsConfig):
    """Configure batches, negatives and the optimizer of a retriever's training.

    Args:
        batch_size: claims per process; their sources are each other's in-batch negatives.
        chunk_size: texts per forward pass (GradCache): memory is that of one chunk, however
            large the batch, and the gradients are the same; none: the whole batch at once, unless
            `chunk_tokens` is set.
        chunk_tokens: tokens per forward pass, padding included, instead of texts, so that chunks
            of short texts have more of them. A longer text is a chunk by itself. `auto`: as many
            as fit into memory; on a GPU the longest chunk is run once to measure its peak.
        gather: with several processes, use the sources of all processes as negatives; false: only
            a process's own.
        negatives: mined hard negatives used per claim and epoch, hardest first.
        train: `both` sides, or `query_only`: sources keep the base model's vectors, so that an
            index of them stays valid.
        remine_every: mine again with the current model every this many epochs (ANCE);
            0: once, before training.
        temperature: divisor of cosine similarities.
        max_length: tokens per text in training steps, at most `model.max_length`, which still
            applies to mining, scores and the checkpoint; none: the same.
        gradient_checkpointing: recompute activations in the backward pass: less memory, more
            time; `auto`: only if the batch, or a chunk of it, would not fit otherwise.
    """

    chunk_size: Repeats | None = None
    chunk_tokens: Annotated[int, Between(8, 10**9)] | Literal["auto"] | None = None
    gather: bool = True
    negatives: Count = 1
    train: Literal["both", "query_only"] = "both"
    remine_every: Count = 0
    temperature: Positive = 0.05
    max_length: Annotated[int, Between(8, 10**6)] | None = None
    gradient_checkpointing: bool | Literal["auto"] = False

    def check(self) -> None:
        group = "optimisation"
        is_one = self.chunk_size is None or self.chunk_tokens is None
        require(is_one, f"{group}.chunk_tokens", self.chunk_tokens, f"none with {group}.chunk_size")


@dataclass(frozen=True)
class BatchesConfig(Settings):
    """Choose which pairs share a batch; claims of one paper are kept apart if possible.

    Args:
        order: `mixed`, or `language`: one language per batch.
        alpha: a language with n claims gets a share of an epoch proportional to n to this power:
            1 leaves the shares as they are, 0 makes them equal. Every claim is used: a language
            whose share is smaller than its number of claims continues in the next epoch.
        rotate_negatives: every use of a pair, within or between epochs, takes the next of its
            mined negatives, hard and random in the list's proportion, instead of the hardest
            again. A list that is mined again (`optimisation.remine_every`) begins at its hardest.
    """

    order: Literal["mixed", "language"] = "mixed"
    alpha: Share = 1.0
    rotate_negatives: bool = False


@dataclass(frozen=True)
class WandbConfig:
    """Configure Weights & Biases.

    Args:
        mode: `auto`: online if there is a key (`wandb login`), else offline; or online, offline,
            off.
        project: project of the run.
        name: name of the run; none: the output folder's.
    """

    mode: Literal["auto", "online", "offline", "off"] = "auto"
    project: str = "claim2source"
    name: str | None = None


@dataclass(frozen=True)
class TrainingRecipe(Settings):
    """Configure how weights are trained, independently of data, machine and folder.

    Args:
        rendering: form of claims and sources.
        tuning: `lora` adds adapters, `full` trains every weight.
        lora: the adapters.
        optimisation: batches, epochs and the optimizer.
        trainer: arguments of Lightning's `pl.Trainer`, such as `callbacks` (a list of `class_path`
            and `init_args`), `profiler`, `fast_dev_run`, `overfit_batches`, `max_steps`,
            `limit_train_batches` and `strategy`; one that contradicts the run is refused.
    """

    rendering: Rendering = field(default_factory=Rendering)
    tuning: Literal["lora", "qlora", "full"] = "lora"
    lora: LoraConfig = field(default_factory=LoraConfig)
    optimisation: StepsConfig = field(default_factory=StepsConfig)
    trainer: TrainerSettings = field(default_factory=dict)

    @property
    def unsharded(self) -> str | None:
        """Return the strategies that are allowed if this training cannot be sharded, else None."""
        return None

    @property
    def measures(self) -> tuple[str, ...]:
        """Return the names logged at every step of this kind of training, besides the loss."""
        return ()


Recipe = TypeVar("Recipe", bound=TrainingRecipe)


@dataclass(frozen=True)
class RunConfig(TrainingRecipe):
    """Settings of every training run.

    Args:
        data: data for training, choosing and reporting.
        choose: which checkpoint the run chooses: the `best` on val by `rule`, which may be the
            model before training, or the `last` epoch.
        rule: `one_se`: the candidate nearest to the last epoch among those that are within one
            standard error of the best on val, by paper, and not below the model before training;
            or the plain `best`.
        keep: checkpoints of all epochs, or only of the best and the last.
        mined: file of negatives from `train/mine.py`.
        wandb: Weights & Biases.
        out: the run's folder.
        store: folder of the embedding store; none: the user's cache.
        device: none takes a GPU if the machine has one.
        threads: CPU threads of each process; none: all cores, divided among this machine's
            processes unless the launcher sets a number.
    """

    data: DataConfig = field(default_factory=DataConfig)
    choose: Literal["best", "last"] = "best"
    rule: Rule = "one_se"
    keep: Literal["all", "best"] = "all"
    mined: Path | None = None
    wandb: WandbConfig = field(default_factory=WandbConfig)
    out: Path = Path("checkpoints/run")
    store: Path | None = None
    device: Literal["cpu", "cuda"] | None = None
    threads: Annotated[int, Between(1, 1024)] | None = None
    languages: list[str] | None = list_field(help="train and report on these languages only")
    resume: bool = flag("continue from the run's last saved state")
    overwrite: bool = flag("replace a run in the output folder")

    def check(self) -> None:
        check_names(self.trainer)
        layers = self.optimisation.train_layers
        allowed = f"none with tuning: {self.tuning}, which trains only adapters"
        is_good = layers is None or self.tuning == "full"
        require(is_good, "optimisation.train_layers", layers, allowed)
        require(not (self.resume and self.overwrite), "overwrite", True, "not with resume")
        # A file of mined negatives has claims beyond the limit.
        good = self.data.limit is None or self.mined is None
        require(good, "data.limit", self.data.limit, "none with a file of mined negatives")

    def recipe(self, kind: type[Recipe]) -> Recipe:
        """Return the settings that determine the weights, without the run's own."""
        return kind(**{spec.name: getattr(self, spec.name) for spec in fields(kind)})

    @property
    def held_out_seen(self) -> float | None:
        """Return the share of claims that are held out although their papers are trained on.

        None if val is drawn at the expected share of such claims.
        """
        if self.data.val_seen_share is not None:
            return self.data.val_seen_share
        if self.data.seen_share_expected is not None:
            return None
        if is_pair_file(self.data.dataset):  # all pairs of a positive are on one side
            return 0.0
        return self.data.val_share if self.choose == "best" else 0.0


@dataclass(frozen=True)
class TeacherConfig(Settings):
    """Name the model that encodes the sources instead of the base.

    Args:
        name: a trained run, a checkpoint or a model; its folder sets how it encodes.
    """

    name: str

    def check(self) -> None:
        allowed = "a trained run, a checkpoint or a model"
        require(bool(self.name.strip()), "teacher.name", self.name, allowed)


@dataclass(frozen=True)
class RetrieverRecipe(TrainingRecipe):
    """Configure how a retriever is trained.

    Args:
        model: the base model.
        tuning: `lora` adds adapters, `qlora` adds them to a base in 4 bits (GPU only), `full`
            trains every weight.
        mining: hard negatives, if the run mines them.
        optimisation: batches, negatives and the optimizer.
        batches: choice of the pairs that share a batch.
        losses: a list of losses whose weighted sum is minimised, each a name with its settings,
            such as `[{info_nce: {}}, {keep_base: {weight: 0.1}}]`; a dotted path names your own
            dataclass. A flag such as `--losses.keep_base.weight 0.1` changes one, or adds it.
        teacher: with `optimisation.train: query_only`, a model that encodes the sources instead of
            the base; this model, with a projection, learns to encode claims for its vectors.
        self_check: check two training steps of the model's first layers, and the predicted memory,
            on this device: `true`: check and do not train; none: check first if there is a GPU;
            `false`: do not check.
    """

    optimisation: OptimisationConfig = field(default_factory=OptimisationConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    mining: MiningConfig = field(default_factory=MiningConfig)
    batches: BatchesConfig = field(default_factory=BatchesConfig)
    losses: Losses = field(default_factory=Losses)
    teacher: TeacherConfig | None = None
    self_check: bool | None = None

    @property
    def unsharded(self) -> str | None:
        """Return the strategies that are allowed if this training cannot be sharded, else None."""
        if self.tuning == "qlora":
            return "auto or ddp with tuning: qlora: weights in 4 bits are not sharded"
        if self.teacher is not None:
            return "auto or ddp with a `teacher`: a small encoder is not sharded"
        return None

    @property
    def models(self) -> dict[str, str]:
        """Return the names of the base and the teacher by their keys."""
        names = {"model.name": self.model.name}
        if self.teacher is not None:
            names["teacher.name"] = self.teacher.name
        return names

    @property
    def measures(self) -> tuple[str, ...]:
        """Return the names of the loss's terms."""
        return tuple(f"loss/{name}" for name in self.losses.active)


@dataclass(frozen=True)
class FinetuneConfig(RetrieverRecipe, RunConfig):
    """All settings of `train/finetune.py`.

    Args:
        after: YAML file of an evaluation that follows the run, such as baselines and a page of
            figures; none: no evaluation.
    """

    after: Path | None = None

    def check(self) -> None:
        if self.tuning == "qlora":
            # The manifest copies this, so that the checkpoint uses the same 4-bit base.
            object.__setattr__(self, "model", replace(self.model, quantization="nf4"))
        model, allowed = self.model, f"none with tuning: {self.tuning}; set tuning: qlora instead"
        is_good = self.tuning == "qlora" or model.quantization is None
        require(is_good, "model.quantization", model.quantization, allowed)
        allowed = "float32 with tuning: full; 16 bits lose small steps"
        is_good = self.tuning != "full" or model.dtype == "float32"
        require(is_good, "model.dtype", model.dtype, allowed)
        negatives, mined = self.optimisation.negatives, self.mining.hard + self.mining.random
        # A file may have more negatives than the config mines, unless the run mines again.
        from_file = self.mined is not None and self.optimisation.remine_every == 0
        allowed = f"at most mining.hard + mining.random ({mined})"
        require(from_file or negatives <= mined, "optimisation.negatives", negatives, allowed)
        distillation = self.losses.find(Distillation)
        if distillation is not None and distillation.candidates:
            key = "losses.distillation.candidates"
            require(self.mined is None, "mined", self.mined, f"none with {key}")
            remine_every = self.optimisation.remine_every
            require(remine_every == 0, "optimisation.remine_every", remine_every, f"0 with {key}")
            allowed = f"at most mining.hard ({self.mining.hard}) with {key}"
            require(negatives <= self.mining.hard, "optimisation.negatives", negatives, allowed)
        super().check()
        self._check_teacher()

    def _check_teacher(self) -> None:
        if self.teacher is None:
            allowed = "0 without a `teacher`, whose vectors it needs"
            for name, loss in self.losses.needing("aligned_texts").items():
                raise ConfigError(f"losses.{name}.weight", loss.weight, allowed)
            return
        train = self.optimisation.train
        allowed = "query_only with a `teacher`, because the teacher encodes the sources"
        require(train == "query_only", "optimisation.train", train, allowed)
        allowed = "0 with a `teacher`; use losses.alignment instead"
        for name, loss in self.losses.needing("base_vectors").items():
            raise ConfigError(f"losses.{name}.weight", loss.weight, allowed)
        require(self.tuning != "qlora", "tuning", self.tuning, "full or lora with a `teacher`")
