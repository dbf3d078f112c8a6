"""Measure training and encoding of a 7B model on a GPU: tokens per second, memory, documents.

Weights are random, of Mistral-7B's shape in bf16, and attend both ways; the texts are ct25's in
MiniLM's word pieces, and nothing is downloaded. Training is the trainer's own: RetrieverModule with
Lightning and LoRA on every linear layer; all texts at once, in chunks, and in chunks by the GPU's
memory, without and with checkpointing. `share` is the FLOPs that the real tokens need in relation
to the device's bf16 peak, and `ratio` the best share of a training. Each finished part goes to
stderr as JSON; one that fails says why, and spoils no other. Targets are 45 % of the peak in
training and 55 % in encoding. Without a GPU nothing is measured; --tiny runs the same on a CPU.
"""

from __future__ import annotations

import gc
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch.utils.benchmark import Timer
from transformers import MistralConfig, MistralModel

from claim2source.core.config import Number, flag
from claim2source.core.memory import peak_memory
from claim2source.models import Encoder, EncoderSettings, ModelConfig, resolve
from claim2source.training.checkpoint import adapt
from claim2source.training.config import FinetuneConfig, LoraConfig, OptimisationConfig
from claim2source.training.data import TrainingPairs
from claim2source.training.losses import LossesConfig
from claim2source.training.memory_plan import ModelShape, Tuning, settle_here
from claim2source.training.module import RetrieverModule
from scripts.benches import training
from scripts.benches.common import MINILM, Bench, Measured, drawn_texts
from scripts.plan import peak_flops

# Of the tiny model; the defaults of transformers are Mistral-7B's.
TINY = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
LORA = LoraConfig(r=16, dropout=0.0)
Chunk = int | Literal["auto"] | None


@dataclass(frozen=True)
class Config(Bench):
    """Settings of `scripts/bench.py gpu`; `repeats` are the timed steps, after one that is not.

    Args:
        dataset: name or folder of a data set with a train split.
        tokens: the most tokens of a text.
    """

    dataset: str = "ct25"
    tokens: Number = 256
    tiny: bool = flag("run on a CPU with a model of two layers and a few texts, as a test")


def run(config: Config) -> Measured:
    """Measure every part; without a GPU say that there is none."""
    if not config.tiny and not torch.cuda.is_available():
        return {"ratio": None, "device": None}
    device = "CPU, tiny model" if config.tiny else torch.cuda.get_device_name()
    peak = peak_flops(device)
    # Claims a step with every text's activations, claims and texts at once in chunks, documents.
    whole, batch, chunk, documents = (2, 4, 4, 9) if config.tiny else (16, 64, 32, 2000)
    settings: list[tuple[int, Chunk]] = [(whole, None), (batch, chunk), (batch, "auto")]
    parts: dict[str, Callable[[], Measured]] = {
        f"training, {claims} claims, chunk {size}, checkpointing {again}": partial(
            train, config, peak, claims, size, again
        )
        for claims, size in settings
        for again in (False, True)
    }
    kinds: tuple[Tuning, ...] = ("full", "lora")
    parts |= {f"encoding, {kind}": partial(encode, config, peak, kind, documents) for kind in kinds}
    found = {name: measured(name, part) for name, part in parts.items()}
    shares = [row["share"] for name, row in found.items() if "share" in row and name[0] == "t"]
    size, kind = (256, "cpu") if config.tiny else (8192, "cuda")
    both = [torch.randn(size, size, device=kind, dtype=torch.bfloat16) for _ in range(2)]
    limit = 2 * size**3 / Timer("torch.mm(*both)", globals={"both": both}).timeit(5).median
    return {"ratio": max(shares, default=None), "device": device, "matmul_flops": limit, **found}


def measured(name: str, part: Callable[[], Measured]) -> dict[str, Any]:
    """Measure one part, or say why it failed; print it, and free its memory."""
    try:
        found = part()
    except Exception as error:  # kernels raise errors of many kinds
        found = {"failed": f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"}
    print(json.dumps({name: found}), file=sys.stderr, flush=True)
    gc.collect()
    torch.cuda.empty_cache()
    return found


def make_encoder(config: Config) -> Encoder:
    """Make an untrained bidirectional Mistral in bf16."""
    tokenizer = resolve(ModelConfig(MINILM), "cpu").encoder.tokenizer
    shape: Any = MistralConfig(
        vocab_size=len(tokenizer),
        sliding_window=None,
        use_cache=False,
        **(TINY if config.tiny else {}),  # type: ignore[arg-type]
    )
    shape.is_causal = False
    torch.manual_seed(config.seed)
    with torch.device("cpu" if config.tiny else "cuda"):
        model = MistralModel._from_config(shape, dtype=torch.bfloat16)
    settings = EncoderSettings(max_length=config.tokens, dtype="bfloat16")
    return Encoder(model, tokenizer, settings, None)


def train(config: Config, peak: float, claims: int, chunk: Chunk, checkpointing: bool) -> Measured:
    """Train some steps and measure them."""
    encoder = make_encoder(config)
    optimisation = OptimisationConfig(
        batch_size=claims,
        chunk_size=chunk,
        negatives=0,
        dropout=0.0,
        gradient_checkpointing=checkpointing,
        precision="bf16",
        save_every=0,
    )
    model = ModelConfig(dtype="bfloat16")
    recipe = FinetuneConfig(tuning="lora", model=model, lora=LORA, optimisation=optimisation)
    recipe, _ = settle_here(recipe, encoder.model, config.tokens, 1)
    adapt(encoder, recipe)
    drawn = training.Config(batch_size=claims, steps=config.repeats, seed=config.seed)
    cell = training.Cell(drawn, config.dataset, "lora", "plain")
    data, rows, texts = cell.pairs()
    pairs = TrainingPairs(data, rows, encoder, training.RENDERING, 0)
    sampler = training.sampler_of(cell, rows)
    steps = sampler.optimizer_steps
    module = RetrieverModule(encoder, pairs, recipe.optimisation, LossesConfig(), steps)
    if not config.tiny:
        torch.cuda.reset_peak_memory_stats()
    seconds = statistics.median(training.fit(module, sampler, "bf16-mixed")[1:])
    share = claims / len(rows) / seconds
    figures = rates(encoder, [text for pair in texts for text in pair], "lora", share, peak)
    most = round(peak_memory(gpu=not config.tiny) / 2**20)
    return figures | {"seconds": round(seconds, 4), "peak_mb": most, "loss": module.losses[-1]}


def encode(config: Config, peak: float, kind: Tuning, documents: int) -> Measured:
    """Encode documents with plain weights, or with adapters beside them."""
    encoder = make_encoder(config)
    if kind == "lora":
        adapt(encoder, FinetuneConfig(tuning=kind, lora=LORA))
    texts, _ = drawn_texts(config.dataset, "train", config.seed, documents, 1)
    encoder.encode(texts[: max(1, len(texts) // 8)], "source")
    seconds = encoder.encode(texts, "source")[1].seconds
    figures = rates(encoder, texts, None, 1 / seconds, peak)
    return figures | {"documents_per_second": round(len(texts) / seconds, 2)}


def rates(
    encoder: Encoder, texts: Sequence[str], trained: Tuning | None, times: float, peak: float
) -> Measured:
    """Compute tokens and FLOPs a second, where the texts are read `times` a second."""
    lengths, shape = [len(text.ids) for text in encoder.tokenize(texts, "source")], encoder.model
    flops = ModelShape.of(shape)
    needed = flops.training(lengths, trained) if trained else flops.forward(lengths)
    share = round(needed * times / peak, 4)
    return {"share": share, "tokens_per_second": round(sum(lengths) * times, 1)}
