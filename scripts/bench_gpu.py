"""A GPU's speed on a 7B model: training tokens a second, memory against batch, documents a second.

Weights are random, of Mistral-7B's shape; nothing is downloaded. Training is the trainer's own:
RetrieverModule under Lightning, bf16 weights, LoRA on every linear layer in fp32, all texts of
the same length. `share` is of the device's bf16 peak, by the FLOPs that the step needs;
`hardware_share` counts what is computed twice (checkpointing, chunks) as well. `ratio` is the
best share of a training row that is not compiled, as the trainer is not; `compiled_ratio` that of
the others. Rows go to stderr, as JSON, when they are done. Without a GPU nothing is measured.
"""

from __future__ import annotations

import gc
import json
import math
import os
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import MistralConfig, MistralModel, PreTrainedTokenizerFast

from claim2source.core.config import flag, list_field, require
from claim2source.core.errors import run_program
from claim2source.core.records import Claim, Dataset, Qrels, Source
from claim2source.core.tables import plain_table
from claim2source.mining import MinedRow, Negative
from claim2source.models import Encoder, EncoderSettings
from claim2source.text import Rendering
from claim2source.training.adapt import adapt
from claim2source.training.config import FinetuneConfig, LoraConfig, OptimisationConfig
from claim2source.training.data import TrainingPairs
from claim2source.training.losses import LossesConfig
from claim2source.training.module import RetrieverModule
from scripts.timing_common import (
    InOrder,
    ModelShape,
    fit,
    library_versions,
    matmul_rate,
    memory_growth,
    own_peak,
    peak_flops,
    read_flat,
)

MISTRAL_7B = {
    "vocab_size": 32_000,
    "hidden_size": 4096,
    "intermediate_size": 14_336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
}
TINY = {
    "vocab_size": 200,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


@dataclass(frozen=True)
class BenchConfig:
    """What to measure.

    Args:
        tokens: of every training text, claims and sources alike.
        negatives: per claim; with its source they are its group.
        plain_batch: claims per step of the rows that keep every text's activations.
        chunk: texts per forward pass of the chunked rows.
        steps: timed steps of a row, after one that is not.
        lora_r: rank of the adapters.
        lora_dropout: on the adapters' input, as the trainer's default.
        documents: encoded once to warm up in part, then timed.
        document_tokens: their mean length; lengths lie between half and one and a half of it.
        seed: of weights and texts.
    """

    tokens: int = 256
    negatives: int = 8
    plain_batch: int = 4
    chunk: int = 32
    steps: int = 2
    lora_r: int = 16
    lora_dropout: float = 0.1
    documents: int = 2_000
    document_tokens: int = 300
    seed: int = 13
    batches: list[int] = list_field(int, [8, 64], help="claims per step of the chunked rows")
    compiled: bool = flag("also with torch.compile", True)
    tiny: bool = flag("the same on a CPU with a model of two layers: shows that it runs")

    def __post_init__(self) -> None:
        for key in ("plain_batch", "chunk", "steps", "lora_r", "documents"):
            require(getattr(self, key) >= 1, key, getattr(self, key), "1 or more")
        require(self.negatives >= 0, "negatives", self.negatives, "0 or more")
        for key in ("tokens", "document_tokens"):
            require(getattr(self, key) >= 8, key, getattr(self, key), "8 or more")
        good = bool(self.batches) and min(self.batches) >= 1
        require(good, "batches", self.batches, "numbers of claims, 1 or more")

    @property
    def device(self) -> str:
        """Where it runs."""
        return "cpu" if self.tiny else "cuda"

    @property
    def group(self) -> int:
        """Sources per claim."""
        return 1 + self.negatives


@dataclass(frozen=True)
class Setting:
    """A way to train: claims per step, texts per pass (None: all), and what is switched on."""

    batch: int
    chunk: int | None
    checkpointing: bool
    compiled: bool


def make_encoder(config: BenchConfig) -> Encoder:
    """An untrained bidirectional Mistral in bf16, whose tokens are words: "7 8 9" has three."""
    sizes = dict(TINY if config.tiny else MISTRAL_7B)
    longest = max(config.tokens, 2 * config.document_tokens)
    sizes |= {"max_position_embeddings": longest}
    shape: Any = MistralConfig.from_dict({**sizes, "sliding_window": None})
    shape.is_causal = False
    shape.use_cache = False
    torch.manual_seed(config.seed)
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(config.device):
            model = MistralModel(shape)
    finally:
        torch.set_default_dtype(default)
    # Special tokens are looked for within words: a digit would cut numbers in pieces.
    words = {"[PAD]": 0, "[EOS]": 1} | {str(i): i for i in range(2, sizes["vocab_size"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[EOS]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", eos_token="[EOS]")
    settings = EncoderSettings(max_length=longest, dtype="bfloat16")
    return Encoder(model, fast, settings, None)


def made_up(config: BenchConfig, lengths: Sequence[int], seed: int) -> list[str]:
    """A text of so many words for each length."""
    vocabulary = (TINY if config.tiny else MISTRAL_7B)["vocab_size"]
    draw = np.random.default_rng([config.seed, seed])
    return [" ".join(map(str, draw.integers(2, vocabulary, length))) for length in lengths]


def training_pairs(config: BenchConfig, encoder: Encoder, claims: int) -> TrainingPairs:
    """Claims with a source and negatives of their own, no text twice."""
    lengths = [config.tokens] * claims
    names = [[f"s{i}-{j}" for j in range(config.group)] for i in range(claims)]
    flat = [name for group in names for name in group]
    texts = made_up(config, [config.tokens] * len(flat), 1)
    dataset = Dataset(
        tuple(
            Claim(f"c{i}", text, golds=(names[i][0],))
            for i, text in enumerate(made_up(config, lengths, 0))
        ),
        tuple(Source(name, title=text) for name, text in zip(flat, texts, strict=True)),
        Qrels(),
        "train",
    )
    rows = [
        MinedRow(f"c{i}", group[0], tuple(Negative(name, 0.0, "random") for name in group[1:]))
        for i, group in enumerate(names)
    ]
    # The title alone, without a label in front: its words are the text's tokens.
    rendering = Rendering(sources="title_abstract")
    return TrainingPairs(dataset, rows, encoder, rendering, config.negatives)


def settings_of(config: BenchConfig) -> list[Setting]:
    """Every row: whole batches and chunks, with and without checkpointing and compile."""
    found = []
    for compiled in (False, True) if config.compiled else (False,):
        for checkpointing in (False, True):
            found.append(Setting(config.plain_batch, None, checkpointing, compiled))
            found += [
                Setting(batch, config.chunk, checkpointing, compiled) for batch in config.batches
            ]
    return found


def time_training(config: BenchConfig, setting: Setting) -> dict[str, Any]:
    """One row: seconds, tokens and FLOPs a second, peak memory; or why it `failed`, and None."""
    row: dict[str, Any] = {"claims": setting.batch, "chunk": setting.chunk}
    row |= {"checkpointing": setting.checkpointing, "compiled": setting.compiled}
    try:
        row |= _train(config, setting)
    except Exception as error:  # torch.compile's backends raise many kinds
        if not (setting.compiled or isinstance(error, torch.cuda.OutOfMemoryError)):
            raise
        nothing = {"seconds": None, "tokens_per_second": None, "peak_mb": None}
        row |= nothing | {"failed": _why(error)}
    return _done(row)


def _why(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


def _done(row: dict[str, Any]) -> dict[str, Any]:
    """Show a row, so that a run that is cut short has said what it knows; free its memory."""
    print(json.dumps(row), file=sys.stderr, flush=True)
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return row


def _train(config: BenchConfig, setting: Setting) -> dict[str, Any]:
    encoder = make_encoder(config)
    optimisation = OptimisationConfig(
        batch_size=setting.batch,
        chunk_size=setting.chunk,
        negatives=config.negatives,
        temperature=0.02,
        dropout=0.0,
        gradient_checkpointing=setting.checkpointing,
        precision="bf16",
        save_every=0,
    )
    lora = LoraConfig(r=config.lora_r, dropout=config.lora_dropout)
    adapt(encoder, FinetuneConfig(tuning="lora", lora=lora, optimisation=optimisation))
    shape = ModelShape.of(encoder.model)
    if setting.compiled:
        # In place, so that the encoder's model stays the one that peft made.
        encoder.model.compile(dynamic=True, backend="eager" if config.tiny else "inductor")
    pairs = training_pairs(config, encoder, setting.batch * (config.steps + 1))
    sampler = InOrder(len(pairs), setting.batch)
    module = RetrieverModule(
        encoder,
        pairs,
        optimisation,
        LossesConfig(),
        sampler.optimizer_steps,
        lambda epoch: None,
        lambda: None,
    )
    if config.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    seconds = statistics.median(fit(module, sampler, precision="bf16")[1:])
    peak = torch.cuda.max_memory_allocated() if config.device == "cuda" else own_peak()
    texts = setting.batch * (1 + config.group)
    lengths = [config.tokens] * texts
    needed, again = shape.training(lengths, "lora"), shape.forward(lengths)
    # The last chunk, a full one, is encoded only once.
    chunked = 0.0 if setting.chunk is None else 1 - min(setting.chunk, texts) / texts
    repeated = again * (int(setting.checkpointing) + chunked)
    return {
        "seconds": round(seconds, 4),
        "tokens_per_second": round(sum(lengths) / seconds, 1),
        "flops_per_second": needed / seconds,
        "hardware_flops_per_second": (needed + repeated) / seconds,
        "peak_mb": round(peak / 2**20, 1),
        "loss": module.losses[-1],
    }


def time_encoding(config: BenchConfig) -> dict[str, Any]:
    """Documents a second through `Encoder.encode`, by the base model (as merged) and by LoRA."""
    encoder = make_encoder(config)
    draw = np.random.default_rng([config.seed, 2])
    mean = config.document_tokens
    lengths = draw.integers(mean // 2, mean + mean // 2 + 1, config.documents).tolist()
    texts = made_up(config, lengths, 3)
    found: dict[str, Any] = {"documents": len(texts), "mean_tokens": round(np.mean(lengths), 1)}
    for name in ("merged", "adapter"):
        row: dict[str, Any] = {"weights": name}
        if name == "adapter":
            lora = LoraConfig(r=config.lora_r, dropout=config.lora_dropout)
            adapt(encoder, FinetuneConfig(tuning="lora", lora=lora))
        try:
            encoder.encode(texts[: max(1, len(texts) // 8)], "source")
            _, cost = encoder.encode(texts, "source")
        except torch.cuda.OutOfMemoryError as error:
            row |= {"documents_per_second": None, "tokens_per_second": None, "failed": _why(error)}
        else:
            row |= {
                "documents_per_second": round(len(texts) / cost.seconds, 2),
                "tokens_per_second": round(sum(lengths) / cost.seconds, 1),
                "flops_per_second": ModelShape.of(encoder.model).forward(lengths) / cost.seconds,
            }
        found[name] = _done(row)
    return found


def with_shares(result: dict[str, Any], peak: float) -> dict[str, Any]:
    """FLOPs a second as shares of the peak, in place; 0 where it is unknown."""
    rows = [*result["training"], result["encoding"]["merged"], result["encoding"]["adapter"]]
    for row in rows:
        for key in ("", "hardware_"):
            if f"{key}flops_per_second" in row:
                row[f"{key}share"] = round(row[f"{key}flops_per_second"] / peak, 4)
    return result


def best_share(training: Sequence[dict[str, Any]], compiled: bool) -> float | None:
    """The best of the rows that are compiled, or of those that are not; None: there is none."""
    shares = [row.get("share") or 0.0 for row in training if row["compiled"] is compiled]
    return max(shares, default=0.0) or None


def as_table(config: BenchConfig, result: dict[str, Any]) -> str:
    """The same for a person."""

    def percent(share: float | None) -> float | str | None:
        return None if share is None else 100 * share if result["peak_flops"] else "unknown"

    def yes(value: bool) -> str:
        return "yes" if value else "no"

    training = [
        [
            row["claims"],
            row["chunk"] or "whole",
            yes(row["checkpointing"]),
            yes(row["compiled"]),
            row["tokens_per_second"],
            percent(row.get("share")),
            percent(row.get("hardware_share")),
            row["peak_mb"],
        ]
        for row in result["training"]
    ]
    encoding = [
        [
            name,
            found["documents_per_second"],
            found["tokens_per_second"],
            percent(found.get("share")),
        ]
        for name, found in result["encoding"].items()
        if isinstance(found, dict)
    ]
    peak = result["peak_flops"]
    said = f"{peak / 1e12:.0f} TFLOP/s" if peak else "unknown, so that shares are too"
    lines = [
        f"{result['device']}: bf16 peak {said}; torch.mm reaches "
        f"{result['matmul_flops'] / 1e12:.3f} TFLOP/s",
        f"training, group {config.group}, {config.tokens} tokens a text, median of {config.steps} "
        "steps; - : see below",
        plain_table(
            [
                "claims",
                "chunk",
                "checkpointing",
                "compiled",
                "tokens/s",
                "% of peak",
                "% with repeats",
                "MB",
            ],
            training,
            digits=1,
        ),
        *(
            f"row {i}: {row['failed']}"
            for i, row in enumerate(result["training"], 1)
            if "failed" in row
        ),
        *(
            f"encoding, {row['weights']}: {row['failed']}"
            for row in result["encoding"].values()
            if isinstance(row, dict) and "failed" in row
        ),
        *(
            f"memory: {ends['batch_times']} times the batch takes {ends['memory_times']} times the "
            f"memory (checkpointing {yes(ends['checkpointing'])}, compiled {yes(ends['compiled'])})"
            for ends in result["memory"]
        ),
        f"encoding {result['encoding']['documents']} documents of "
        f"{result['encoding']['mean_tokens']} tokens on average",
        plain_table(["weights", "documents/s", "tokens/s", "% of peak"], encoding, digits=1),
        f"Load average: {result['load_average']}",
    ]
    return "\n".join(lines)


def measure(config: BenchConfig) -> dict[str, Any]:
    """Every row of every table."""
    name = "CPU (tiny model)" if config.tiny else torch.cuda.get_device_name()
    peak = math.inf if config.tiny else peak_flops(name)
    limit = matmul_rate(256 if config.tiny else 8192, config.device, torch.bfloat16)
    training = [time_training(config, setting) for setting in settings_of(config)]
    result = with_shares({"training": training, "encoding": time_encoding(config)}, peak)
    return {
        "ratio": best_share(training, False),
        "compiled_ratio": best_share(training, True),
        "device": name,
        "peak_flops": None if math.isinf(peak) else peak,
        "matmul_flops": limit,
        **result,
        "memory": memory_growth(training),
        "lora_r": config.lora_r,
        "lora_dropout": config.lora_dropout,
        "versions": library_versions("torch", "transformers", "peft", "pytorch-lightning"),
        "load_average": [round(load, 2) for load in os.getloadavg()],
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print tables and one line of JSON; without a GPU say so."""
    config = read_flat(BenchConfig, argv, "scripts/bench_gpu.py", __doc__ or "")
    if not config.tiny and not torch.cuda.is_available():
        rows = [["training, share of peak", None], ["encoding, share of peak", None]]
        print(plain_table(["no GPU here, nothing measured", "value"], rows, digits=1))
        print("--tiny runs the same code on a CPU")
        print(json.dumps({"ratio": None, "device": None}))
        return
    result = measure(config)
    print(as_table(config, result))
    print(json.dumps(result))


if __name__ == "__main__":
    run_program(main)
