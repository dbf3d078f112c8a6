"""Estimate a run before you pay for it: tokens, FLOPs, memory and hours on a device.

python scripts/plan.py --config configs/finetune/gritlm_7b.yaml --data.dataset ct26-sized

This is for trainings, and accepts every key of train/finetune.py. For stages that call a language
model, `--systems FILE` estimates requests, tokens and hours instead
(`python scripts/plan.py --systems FILE --help`).

The program counts the texts of the data set; `ct26-sized` means CheckThat! 2026 as published. It
downloads nothing and loads no weights: a model's config.json, or its name, gives the shape.

FLOPs are counted; the rest is an estimate. Peaks are those of the makers (bf16; a fifteenth of it
in fp32). Training is assumed to reach 51 % of them and encoding 60 %, as measured on an H200.
Memory is the sum of weights, optimizer states, and the values that a forward pass keeps for each
token of a chunk. `auto` settings are those that the trainer plans for the card, before it measures
a chunk.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from claim2source.core.config import Between, read_config
from claim2source.core.errors import ConfigError, UserError, run_program
from claim2source.core.progress import duration
from claim2source.core.tables import Cell, TextTable, render
from claim2source.core.terminal import say
from claim2source.data.loading import load
from claim2source.models.config import Template
from claim2source.training.config import FinetuneConfig

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from claim2source.training.memory_plan import MemoryPlan

Card = Literal["h200", "h100", "a100", "l40s", "rtx4090"]
# Dense bf16 FLOPs per second by the makers' data sheets, and GiB of memory.
CARDS: Mapping[str, tuple[float, float]] = {
    "h200": (989e12, 131.0),
    "h100": (989e12, 79.6),
    "a100": (312e12, 79.6),
    "l40s": (362e12, 44.7),
    "rtx4090": (165.2e12, 23.6),
}
# Shares of the bf16 peak that are reached, as measured on an H200, and roughly for fp32.
TRAINING = 0.51
ENCODING = 0.60
FP32 = 1 / 15
COMMON = ("card", "processes", "data.dataset", "model.name", "tuning", "optimisation.batch_size")
CHARACTERS = 4.0  # per token, roughly, without a tokenizer
# Models that need no download here: transformers' config class, and values unlike its defaults.
SHAPES: Mapping[str, tuple[str, Mapping[str, int]]] = {
    "GritLM/GritLM-7B": ("MistralConfig", {}),
    "Qwen/Qwen3-Embedding-8B": (
        "Qwen3Config",
        {
            "vocab_size": 151_665,
            "intermediate_size": 12_288,
            "num_hidden_layers": 36,
            "num_key_value_heads": 8,
        },
    ),
    "intfloat/multilingual-e5-large": (
        "XLMRobertaConfig",
        {
            "vocab_size": 250_002,
            "hidden_size": 1024,
            "intermediate_size": 4096,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "max_position_embeddings": 514,
        },
    ),
}


@dataclass(frozen=True)
class Sizes:
    """Count a data set's texts, and their mean tokens before they are cut.

    Args:
        claims: training claims.
        report: claims of the reported split.
        golds: sources that are a gold of train.
        pool: all sources.
        claim_tokens: tokens of a claim as the config renders it, without the template's.
        source_tokens: tokens of a source.
    """

    claims: int
    report: int
    golds: int
    pool: int
    claim_tokens: float
    source_tokens: float


# CheckThat! 2026 as published: 14,977 English, 1,460 German and 2,807 French training claims, 4,993
# of val, 10,000 papers. The rest is assumed: as many claims per paper as in 2025, posts with 60
# tokens (German and French ones twice, with their translation), papers with 420, authors and venue
# included.
CT26 = Sizes(19_244, 4_993, 9_000, 10_000, 73.0, 420.0)


@dataclass(frozen=True)
class PlanConfig(FinetuneConfig):
    """Settings of a training run and of its cards.

    Args:
        card: h200, h100, a100, l40s or rtx4090.
        processes: number of cards that train together.
    """

    card: Card = "h200"
    processes: Annotated[int, Between(1, 10_000)] = 1


@dataclass(frozen=True)
class Part:
    """Part of a run: its texts and tokens, and the FLOPs needed and computed."""

    name: str
    texts: float
    tokens: float
    flops: float
    computed: float
    trains: bool = False


@dataclass(frozen=True)
class Plan:
    """Cost of a run: its parts, optimizer steps, and the device's memory in a step."""

    parts: tuple[Part, ...]
    steps: int
    memory: MemoryPlan


def empty_model(config: FinetuneConfig) -> PreTrainedModel:
    """Build the config's model without weights. Raises `ConfigError` for an unknown model."""
    import torch
    import transformers

    from claim2source.models.hub import base_files

    name = config.model.name
    if name in SHAPES:
        kind, sizes = SHAPES[name]
        shape = getattr(transformers, kind)(**sizes)
    else:
        try:
            folder, _ = base_files(config.model)
        except UserError as error:
            allowed = f"a folder, a model on this machine, or {', '.join(SHAPES)} ({error})"
            raise ConfigError("model.name", name, allowed) from None
        shape = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
    with torch.device("meta"):
        model: PreTrainedModel = transformers.AutoModel.from_config(shape)
    return model


def own_length(config: FinetuneConfig) -> int:
    """Read the tokens per text in the files of a model on this machine; 0 if unknown."""
    from claim2source.models.hub import base_files
    from claim2source.models.sentence_transformers import declared_length

    if config.model.name in SHAPES:
        return 0
    return declared_length(base_files(config.model)[0]) or 0


def text_lengths(config: FinetuneConfig, sizes: Sizes) -> tuple[float, float]:
    """Return the mean tokens of a claim and of a source, with the model's templates."""
    template = config.model.template or Template()
    claim = sizes.claim_tokens + len(template.claim or "") / CHARACTERS
    source = sizes.source_tokens + len(template.source or "") / CHARACTERS
    return claim, source


def plan(
    config: FinetuneConfig,
    sizes: Sizes,
    processes: int = 1,
    device: float = math.inf,
) -> Plan:
    """Count a run's computation by part, and the memory that it needs on a `device` of bytes."""
    from claim2source.mining.baseline import SAMPLED
    from claim2source.training.memory_plan import plan_memory, trained_length
    from claim2source.training.negatives import mines_after
    from scripts.flops import ModelShape

    model = empty_model(config)
    positions = int(getattr(model.config, "max_position_embeddings", 512))
    longest = trained_length(config.optimisation, config.model.max_length or positions)
    planned = plan_memory(config, model, longest, device)
    config = replace(config, optimisation=planned.recipe.optimisation)
    shape = ModelShape.planned(model, config)
    train = config.optimisation
    limit = config.model.max_length
    lengths = text_lengths(config, sizes)
    claim, source = (round(min(length, limit or length)) for length in lengths)
    seen = config.held_out_seen
    share = config.data.val_share + (config.data.val_share if seen is None else seen)
    pairs = min(sizes.claims * (1 - share), config.data.limit or sizes.claims)
    pairs = round(pairs) * config.data.repeat
    val = round(sizes.claims * share)
    steps = -(-pairs // (train.batch_size * processes * train.accumulation)) * train.epochs

    def encoded(
        name: str,
        claims: float,
        sources: float,
        whole: int = 0,
    ) -> Part:
        counts = zip((claims, sources), lengths, (claim, source), strict=True)
        texts = []
        for n, length, cut in counts:
            texts.append((n, round(min(length, whole)) if whole else cut))
        flops = sum((n * shape.forward([length]) for n, length in texts), 0.0)
        return Part(name, claims + sources, sum(n * length for n, length in texts), flops, flops)

    def trained(name: str, pairs: float) -> Part:
        views = 2 if config.losses.needing("translations") else 1
        read = pairs * train.epochs
        has_both = train.train == "both"
        short = [min(length, train.max_length or length) for length in (claim, source)]
        counts = read * views, read * (1 + train.negatives) if has_both else 0
        texts = list(zip(counts, short, strict=True))
        kind: Literal["full", "lora"] = "full" if config.tuning == "full" else "lora"
        flops = sum((n * shape.training([length], kind) for n, length in texts), 0.0)
        recomputed = sum((n * shape.forward([length]) for n, length in texts), 0.0)
        # Both repeat the forward pass once, and together twice.
        chunked = train.chunk_size is not None or train.chunk_tokens is not None
        twice = chunked + bool(train.gradient_checkpointing)
        tokens = sum(count * length for count, length in texts)
        return Part(name, sum(c for c, _ in texts), tokens, flops, flops + twice * recomputed, True)

    mined = min(round(sizes.claims * (1 - share)), config.data.limit or sizes.claims)
    mines = config.mined is None and train.negatives > 0
    compared = train.train == "query_only" or config.losses.needing("base_vectors")
    # Without mining, a sample shows whether the temperature fits.
    read = mined if mines or compared else min(mined, SAMPLED)
    # Sources that are not trained keep the base's vectors.
    pool = sizes.pool if train.train == "both" else 0
    own = min(own_length(config), positions)
    if limit and limit < own and config.teacher is None:
        # Vectors of texts cut at another length differ, also in the store.
        parts = [encoded("step 0, uncut", val, sizes.pool, own)]
        parts.append(encoded("base: mining", read, sizes.pool))
    else:
        parts = [encoded("base: mining, step 0", read + val, sizes.pool)]
    parts.append(trained("training", pairs))
    parts.append(encoded("val after each epoch", val * train.epochs, pool * train.epochs))
    times = sum(mines_after(train, epoch) for epoch in range(train.epochs))
    if times:
        # The pool's vectors are reused from val's scores.
        parts.append(encoded("mining again", mined * times, 0))
    parts.append(encoded("report: step 0 and chosen", sizes.report * 2, 0))
    return Plan(tuple(parts), steps, planned)


def training_sizes(config: FinetuneConfig) -> Sizes:
    """Count the texts of a data set, and their tokens by their characters."""
    data = config.data
    train = load(data.dataset, data.train_split, config.languages, lenient=data.lenient)
    report = load(data.dataset, data.report_split, config.languages, lenient=data.lenient)
    judged = [claim for claim in train.claims if claim.golds]
    claims = config.rendering.claim_texts(judged)
    sources = config.rendering.source_texts(train.sources)
    pairs = sum(len(claim.golds) for claim in judged)
    golds = len(train.golds)
    means = []
    for texts in (claims, sources):
        means.append(sum(map(len, texts)) / CHARACTERS / max(len(texts), 1))
    return Sizes(pairs, len(report.claims), golds, len(sources), *means)


def peak_flops(card: str) -> float:
    """Look up a card's dense bf16 peak; infinity if unknown, so that shares are 0."""
    words = {*re.findall(r"[a-z0-9]+", card.lower().replace("rtx ", "rtx"))}
    # Other forms of a card are slower.
    if words & {"laptop", "nvl", "pcie"}:
        cards = set()
    else:
        cards = words & CARDS.keys()
    if cards:
        return CARDS[cards.pop()][0]
    return math.inf


def report(config: PlanConfig) -> str:
    if config.data.dataset == "ct26-sized":
        sizes = CT26
    else:
        sizes = training_sizes(config)
    peak, memory = CARDS[config.card]
    estimate = plan(config, sizes, config.processes, memory * 2**30)
    training = TRAINING * peak * (1 if config.optimisation.precision == "bf16" else FP32)
    encoding = ENCODING * peak * (FP32 if config.model.dtype == "float32" else 1)
    rows: list[list[Cell]] = []
    hours = 0.0
    for part in estimate.parts:
        # All processes train; the first one does the rest.
        reached = training * config.processes if part.trains else encoding
        own = part.computed / reached / 3600
        hours += own
        flops = [f"{count / 1e15:,.2f}" for count in (part.flops, part.computed)]
        texts = f"{part.texts:,.0f}"
        tokens = f"{part.tokens / 1e6:,.1f}"
        rows.append([part.name, texts, tokens, *flops, f"{own:,.2f}"])
    columns = ["part", "texts", "million tokens", "PFLOPs needed", "computed", "hours"]
    planned = estimate.memory
    lines = [
        render([TextTable(columns, rows)]) + "\n",
        f"{estimate.steps:,} optimizer steps; {duration(3600 * hours)} on {config.processes} x "
        f"{config.card} at {TRAINING:.0%} of its peak in training, {ENCODING:.0%} in encoding",
        f"{planned}: {'fits' if planned.fits else 'does not fit'}",
    ]
    if config.teacher is not None:
        lines.append("not counted: the teacher's encoding, and texts of losses.alignment")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    about = __doc__ or ""
    words = list(sys.argv[1:] if argv is None else argv)
    if any(word.partition("=")[0] == "--systems" for word in words):
        from scripts.plan_stages import main as plan_stages

        plan_stages(words)
        return
    config = read_config(
        PlanConfig,
        argv,
        program="scripts/plan.py",
        description=about,
        common=COMMON,
    )
    say(report(config))


if __name__ == "__main__":
    run_program(main)
