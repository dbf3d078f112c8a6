"""Measure training and encoding of a 7B model on a GPU: tokens per second, memory, documents.

Weights are random, of Mistral-7B's shape; nothing is downloaded. Training is the trainer's own:
RetrieverModule with Lightning, bf16 weights, LoRA in fp32 on every linear layer, all texts of the
same length. `share` is the FLOPs that a step needs in relation to the device's bf16 peak;
`hardware_share` also counts what is computed twice (checkpointing, chunks). `ratio` is the best
share of a training row without torch.compile; `compiled_ratio` is that of the other rows. Then the
largest chunked batch again with chunks by the GPU's memory, flash attention, a base in 4 bits
(QLoRA) and FSDP2 on one rank; encoding; and the ct25 recipe with seeds. A row whose packages are
absent says so. Each finished row goes to stderr as JSON. Targets are 45 % of the peak in training
and 55 % in encoding. Without a GPU nothing is measured.
"""

from __future__ import annotations

import gc
import json
import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import MistralConfig, MistralModel, PreTrainedTokenizerFast

from claim2source.core.config import flag, list_field, require
from claim2source.core.errors import run_program
from claim2source.core.memory import peak_memory
from claim2source.core.records import Claim, Dataset, Qrels, Source
from claim2source.core.tables import Cell, plain_table
from claim2source.mining import MinedRow, Negative
from claim2source.models import Encoder, EncoderSettings, ModelConfig
from claim2source.text import Rendering
from claim2source.training.adapt import adapt
from claim2source.training.config import FinetuneConfig, LoraConfig, OptimisationConfig
from claim2source.training.data import TrainingPairs
from claim2source.training.distributed import World
from claim2source.training.losses import LossesConfig
from claim2source.training.memory_plan import settle_here
from claim2source.training.model_shape import ModelShape
from claim2source.training.module import RetrieverModule
from claim2source.training.strategies import chosen_strategy
from scripts.flops import matmul_rate, peak_flops
from scripts.gpu_recipe import train_seeds
from scripts.measure import circumstances, read_flat, require_positive
from scripts.timing_common import InOrder, fit

MISTRAL_7B = {
    "vocab_size": 32_000,
    "hidden_size": 4096,
    "intermediate_size": 14_336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
}
# What the largest chunked batch is trained with as well.
VARIANTS = ("auto", "flash_attention_2", "qlora", "fsdp2")
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
    """Settings of `scripts/bench_gpu.py`.

    Args:
        tokens: length of every training text, claims and sources alike.
        negatives: negatives per claim, its group together with the gold.
        plain_batch: claims per step of the rows that keep every text's activations.
        chunk: texts per forward pass of the chunked rows.
        steps: timed steps of a row, after one that is not timed.
        lora_r: rank of the adapters.
        lora_dropout: dropout of the adapters' input, by default that of the configs of 7B models.
        documents: number of documents to encode; some of them warm up first.
        document_tokens: their mean length; lengths vary from half to one and a half of it.
        seed: of weights and texts.
        recipe: config of `train/finetune.py` that is trained with each of `seeds`.
    """

    tokens: int = 256
    negatives: int = 8
    plain_batch: int = 4
    chunk: int = 32
    steps: int = 2
    lora_r: int = 16
    lora_dropout: float = 0.0
    documents: int = 2_000
    document_tokens: int = 300
    seed: int = 13
    recipe: str = "configs/finetune/ct25_minilm.yaml"
    seeds: list[int] = list_field([1, 2, 3], help="seeds of the recipe")
    batches: list[int] = list_field([8, 64], help="claims per step of the chunked rows")
    compiled: bool = flag("measure with torch.compile too", True)
    variants: bool = flag("measure the largest batch with other kernels and weights too", True)
    seeded: bool = flag("train the recipe with each seed", True)
    tiny: bool = flag("run on a CPU with a model of two layers, as a test")

    def __post_init__(self) -> None:
        require_positive(self, "plain_batch", "chunk", "steps", "lora_r", "documents")
        require(self.negatives >= 0, "negatives", self.negatives, "0 or more")
        for key in ("tokens", "document_tokens"):
            require(getattr(self, key) >= 8, key, getattr(self, key), "8 or more")
        good = bool(self.batches) and min(self.batches) >= 1
        require(good, "batches", self.batches, "numbers of claims, 1 or more")

    @property
    def device(self) -> str:
        """The device's type for torch."""
        return "cpu" if self.tiny else "cuda"

    @property
    def group(self) -> int:
        """Number of sources per claim."""
        return 1 + self.negatives


@dataclass(frozen=True)
class Setting:
    """A way to train.

    Args:
        batch: claims per step.
        chunk: texts per forward pass; None: all; auto: by the device's memory.
        checkpointing: whether activations are recomputed.
        compiled: whether torch.compile is used.
        variant: what else differs, one of `VARIANTS`.
    """

    batch: int
    chunk: int | Literal["auto"] | None
    checkpointing: bool
    compiled: bool
    variant: str = ""


def make_encoder(config: BenchConfig) -> Encoder:
    """Make an untrained bidirectional Mistral in bf16; its tokens are words ("7 8 9" has three)."""
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
    # Special tokens are matched within words too: a digit as one would split numbers.
    words = {"[PAD]": 0, "[EOS]": 1} | {str(i): i for i in range(2, sizes["vocab_size"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[EOS]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", eos_token="[EOS]")
    settings = EncoderSettings(max_length=longest, dtype="bfloat16")
    return Encoder(model, fast, settings, None)


def made_up(config: BenchConfig, lengths: Sequence[int], seed: int) -> list[str]:
    """Make a text for each length in words."""
    vocabulary = (TINY if config.tiny else MISTRAL_7B)["vocab_size"]
    draw = np.random.default_rng([config.seed, seed])
    return [" ".join(map(str, draw.integers(2, vocabulary, length))) for length in lengths]


def training_pairs(config: BenchConfig, encoder: Encoder, claims: int) -> TrainingPairs:
    """Make claims with a gold and negatives each, all texts distinct."""
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
    # Renders the title alone, without a label: its words are the text's tokens.
    rendering = Rendering(sources="title_abstract")
    return TrainingPairs(dataset, rows, encoder, rendering, config.negatives)


def settings_of(config: BenchConfig) -> list[Setting]:
    """List the rows: whole batches and chunks, with and without checkpointing and compile."""
    found = []
    for compiled in (False, True) if config.compiled else (False,):
        for checkpointing in (False, True):
            found.append(Setting(config.plain_batch, None, checkpointing, compiled))
            found += [
                Setting(batch, config.chunk, checkpointing, compiled) for batch in config.batches
            ]
    return found


def variants_of(config: BenchConfig) -> list[Setting]:
    """List the rows of the largest chunked batch with each variant."""
    if not config.variants:
        return []
    largest = max(config.batches)
    return [
        Setting(largest, "auto" if name == "auto" else config.chunk, False, False, name)
        for name in VARIANTS
    ]


def time_training(config: BenchConfig, setting: Setting) -> dict[str, Any]:
    """Measure one row: seconds, tokens and FLOPs per second, peak memory; or why it failed."""
    row: dict[str, Any] = {"claims": setting.batch, "chunk": setting.chunk}
    row |= {"checkpointing": setting.checkpointing, "compiled": setting.compiled}
    row["variant"] = setting.variant
    try:
        row |= train(config, setting)
    except Exception as error:  # compilers and kernels raise errors of many kinds
        known = setting.compiled or setting.variant
        if not (known or isinstance(error, torch.cuda.OutOfMemoryError)):
            raise
        nothing = {"seconds": None, "tokens_per_second": None, "peak_mb": None}
        row |= nothing | {"failed": reason(error)}
    return show_row(row)


def reason(error: Exception) -> str:
    """Give an error's type and first line."""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


def show_row(row: dict[str, Any]) -> dict[str, Any]:
    """Print a finished row to stderr, in case the run is cut short, and free its memory."""
    print(json.dumps(row), file=sys.stderr, flush=True)
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return row


def train(config: BenchConfig, setting: Setting) -> dict[str, Any]:
    """Train a few steps in one setting and measure them."""
    encoder, variant = make_encoder(config), setting.variant
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
    model = ModelConfig(dtype="bfloat16")
    recipe = FinetuneConfig(
        tuning="qlora" if variant == "qlora" else "lora",
        model=model,
        lora=lora,
        optimisation=optimisation,
    )
    if variant == "flash_attention_2":
        encoder.model.set_attn_implementation(variant)
    if variant == "qlora":
        quantise(encoder.model, config.device)
    recipe, _ = settle_here(recipe, encoder.model, config.tokens, 1)
    optimisation = recipe.optimisation
    adapt(encoder, recipe)
    shape = ModelShape.of(encoder.model)
    if setting.compiled:
        encoder.model.compile(dynamic=True, backend="eager" if config.tiny else "inductor")
    pairs = training_pairs(config, encoder, setting.batch * (config.steps + 1))
    sampler = InOrder(len(pairs), setting.batch)
    module = RetrieverModule(
        encoder,
        pairs,
        optimisation,
        LossesConfig(),
        sampler.optimizer_steps,
    )
    if config.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    strategy = chosen_strategy("fsdp2" if variant == "fsdp2" else "auto", World())
    seconds = statistics.median(fit(module, sampler, precision="bf16", strategy=strategy)[1:])
    peak = torch.cuda.max_memory_allocated() if config.device == "cuda" else peak_memory(gpu=False)
    texts = setting.batch * (1 + config.group)
    lengths = [config.tokens] * texts
    needed, again = shape.training(lengths, "lora"), shape.forward(lengths)
    # The last chunk, a full one, is encoded once, the others twice.
    size = optimisation.chunk_size
    assert size != "auto"
    if optimisation.chunk_tokens is not None:
        size = max(1, optimisation.chunk_tokens // config.tokens)
    chunked = 0.0 if size is None else 1 - min(size, texts) / texts
    repeated = again * (int(setting.checkpointing) + chunked)
    return {
        "seconds": round(seconds, 4),
        "tokens_per_second": round(sum(lengths) / seconds, 1),
        "flops_per_second": needed / seconds,
        "hardware_flops_per_second": (needed + repeated) / seconds,
        "peak_mb": round(peak / 2**20, 1),
        "loss": module.losses[-1],
    }


def quantise(model: torch.nn.Module, device: str) -> None:
    """Replace a model's linear layers by layers in 4 bits (NF4), as `tuning: qlora` loads them."""
    import bitsandbytes

    for name, module in [*model.named_modules()]:
        if isinstance(module, torch.nn.Linear):
            sizes, kind = (module.in_features, module.out_features), module.weight.dtype
            layer = bitsandbytes.nn.Linear4bit(
                *sizes, bias=False, compute_dtype=kind, compress_statistics=True, quant_type="nf4"
            )
            layer.weight = bitsandbytes.nn.Params4bit(
                module.weight.data.cpu(), requires_grad=False, quant_type="nf4"
            )
            parent, _, last = name.rpartition(".")
            # It is quantised on its way to the device.
            setattr(model.get_submodule(parent), last, layer.to(device))


def time_encoding(config: BenchConfig) -> dict[str, Any]:
    """Measure documents per second of `Encoder.encode`: merged weights, then adapters."""
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
            row |= {
                "documents_per_second": None,
                "tokens_per_second": None,
                "failed": reason(error),
            }
        else:
            row |= {
                "documents_per_second": round(len(texts) / cost.seconds, 2),
                "tokens_per_second": round(sum(lengths) / cost.seconds, 1),
                "flops_per_second": ModelShape.of(encoder.model).forward(lengths) / cost.seconds,
            }
        found[name] = show_row(row)
    return found


def with_shares(result: dict[str, Any], peak: float) -> dict[str, Any]:
    """Add FLOPs per second as shares of the peak to every row; 0 where the peak is unknown."""
    rows = [*result["training"], *result["variants"]]
    rows += [result["encoding"]["merged"], result["encoding"]["adapter"]]
    for row in rows:
        for key in ("", "hardware_"):
            if f"{key}flops_per_second" in row:
                row[f"{key}share"] = round(row[f"{key}flops_per_second"] / peak, 4)
    return result


def best_share(training: Sequence[dict[str, Any]], compiled: bool) -> float | None:
    """Find the best share of the rows with or without torch.compile; None if there is none."""
    shares = [row.get("share") or 0.0 for row in training if row["compiled"] is compiled]
    return max(shares, default=0.0) or None


def memory_growth(training: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Compare the peaks of the largest and the smallest chunked batch of every setting."""
    found = []
    for compiled in (False, True):
        for checkpointing in (False, True):
            rows = [
                row
                for row in training
                if row["chunk"] is not None
                and row["peak_mb"] is not None
                and (row["compiled"], row["checkpointing"]) == (compiled, checkpointing)
            ]
            if len(rows) < 2:
                continue
            small, large = (pick(rows, key=lambda row: row["claims"]) for pick in (min, max))
            found.append(
                {
                    "checkpointing": checkpointing,
                    "compiled": compiled,
                    "batch_times": round(large["claims"] / small["claims"], 2),
                    "memory_times": round(large["peak_mb"] / small["peak_mb"], 3),
                }
            )
    return found


def as_table(config: BenchConfig, result: dict[str, Any]) -> str:
    """Format the result for a terminal."""
    peak, encoded = result["peak_flops"], result["encoding"]
    rows, recipe = [*result["training"], *result["variants"]], result["recipe"]

    def percent(share: float | None) -> Cell:
        return None if share is None else 100 * share if peak else "unknown"

    def yes(value: bool) -> str:
        return "yes" if value else "no"

    training: list[list[Cell]] = [
        [
            row["claims"],
            row["chunk"] or "whole",
            yes(row["checkpointing"]),
            yes(row["compiled"]),
            row["variant"] or "-",
            row["tokens_per_second"],
            percent(row.get("share")),
            percent(row.get("hardware_share")),
            row["peak_mb"],
        ]
        for row in rows
    ]
    encodings = {name: row for name, row in encoded.items() if isinstance(row, dict)}
    encoding: list[list[Cell]] = [
        [name, row["documents_per_second"], row["tokens_per_second"], percent(row.get("share"))]
        for name, row in encodings.items()
    ]
    shown = f"{peak / 1e12:.0f} TFLOP/s" if peak else "unknown, and so are shares"
    lines = [
        f"{result['device']}: bf16 peak {shown}; torch.mm reaches "
        f"{result['matmul_flops'] / 1e12:.3f} TFLOP/s",
        f"training, group {config.group}, {config.tokens} tokens a text, median of {config.steps} "
        "steps; - : failed, see below",
        plain_table(
            [
                "claims",
                "chunk",
                "checkpointing",
                "compiled",
                "variant",
                "tokens/s",
                "% of peak",
                "% with repeats",
                "MB",
            ],
            training,
            digits=1,
        ),
        *(f"row {i}: {row['failed']}" for i, row in enumerate(rows, 1) if "failed" in row),
        *(
            f"encoding, {name}: {row['failed']}"
            for name, row in encodings.items()
            if "failed" in row
        ),
        *(
            f"memory: {ends['batch_times']} times the batch takes {ends['memory_times']} times the "
            f"memory (checkpointing {yes(ends['checkpointing'])}, compiled {yes(ends['compiled'])})"
            for ends in result["memory"]
        ),
        f"encoding {encoded['documents']} documents of {encoded['mean_tokens']} tokens on average",
        plain_table(["weights", "documents/s", "tokens/s", "% of peak"], encoding, digits=1),
        *recipe_lines(recipe),
        f"Load average: {result['load_average']}",
    ]
    return "\n".join(lines)


def recipe_lines(recipe: dict[str, Any] | None) -> list[str]:
    """Write the scores of the recipe's seeds, or why there are none."""
    if recipe is None:
        return []
    cells: list[list[Cell]] = [[r["seed"], r["score"], r["seconds"]] for r in recipe["runs"]]
    table = plain_table(["seed", recipe["metric"], "seconds"], cells)
    failed = [f"seed {r['seed']}: {r['failed']}" for r in recipe["runs"] if "failed" in r]
    return [f"{recipe['recipe']}, {recipe['metric']} of the reported split", table, *failed]


def measure(config: BenchConfig) -> dict[str, Any]:
    """Measure every row of every table."""
    name = "CPU (tiny model)" if config.tiny else torch.cuda.get_device_name()
    peak = math.inf if config.tiny else peak_flops(name)
    limit = matmul_rate(256 if config.tiny else 8192, config.device, torch.bfloat16)
    training = [time_training(config, setting) for setting in settings_of(config)]
    variants = [time_training(config, setting) for setting in variants_of(config)]
    result = with_shares(
        {"training": training, "variants": variants, "encoding": time_encoding(config)}, peak
    )
    device = [f"--device={config.device}"]
    result["recipe"] = train_seeds(config.recipe, config.seeds, *device) if config.seeded else None
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
        **circumstances("torch", "transformers", "peft", "pytorch-lightning"),
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print tables and one line of JSON; without a GPU print that there is none."""
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
