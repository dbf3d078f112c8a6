"""Check and measure models of seven billion weights on a GPU within ten minutes, in one JSON.

The parts run in this order. They are independent, so that one can fail without the others:
attention over packed texts against float32, with gradients; a run of train/finetune.py on a Mistral
with random weights, killed, resumed, merged and loaded in sentence-transformers; training and
encoding at Mistral-7B's shape in bf16, with packed LoRA, in tokens per second, as a share of the
device's bf16 peak, with predicted and measured memory; pairs per second at the shapes of
Qwen3-Reranker-0.6B and 8B. Texts are ct25's in MiniLM's word pieces; nothing is downloaded. `ratio`
is the best share in training; targets are 45 % of the peak in training and 55 % in encoding. Each
finished part is printed to stderr as JSON. Without a GPU nothing is measured; --tiny runs the same
on a CPU.
"""

from __future__ import annotations

import gc
import json
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import MistralConfig, MistralModel, Qwen3Config, Qwen3ForCausalLM

from claim2source.core.config import Number, flag
from claim2source.core.machine import peak_memory
from claim2source.models import Encoder, EncoderSettings, ModelConfig, resolve
from claim2source.models.fused import prepare_for_gpu
from claim2source.models.packed import flash_varlen
from claim2source.stages.pairs import Pair
from claim2source.stages.yes_no import YesNo
from claim2source.training.checkpoint import adapt
from claim2source.training.config import LoraConfig, OptimisationConfig, RetrieverRecipe
from claim2source.training.memory_plan import plan_memory_here
from scripts.benches import training
from scripts.benches.common import MINILM, SEED, DataBench, Measured
from scripts.flops import ModelShape
from scripts.plan import peak_flops

SIZES = "hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads"
# Sizes of a test, and of the run that is killed and resumed: 1.2 billion weights. Without sizes,
# transformers' Mistral has 7 billion.
TINY = dict(zip(SIZES.split(), (32, 64, 2, 4, 2), strict=True))
MIDDLE = dict(zip(SIZES.split(), (2048, 7168, 20, 16, 4), strict=True))
QWEN = {
    "Qwen3-Reranker-0.6B": dict(zip(SIZES.split(), (1024, 3072, 28, 16, 8), strict=True)),
    "Qwen3-Reranker-8B": dict(zip(SIZES.split(), (4096, 12_288, 36, 32, 8), strict=True)),
}
POSTS = ["new study: masks cut outbreaks", "sleep"]


@dataclass(frozen=True)
class Config(DataBench):
    """Settings of `scripts/bench.py gpu`; `repeats` timed steps follow a warm-up step.

    Args:
        tokens: maximum tokens of a text.
    """

    tokens: Number = 512
    tiny: bool = flag("as a test, run on a CPU with a model of two layers and a few texts")

    @property
    def device(self) -> str:
        return "cpu" if self.tiny else "cuda"


def run(config: Config) -> Measured:
    if not config.tiny and not torch.cuda.is_available():
        return {"ratio": None, "device": None}
    device = "CPU, tiny model" if config.tiny else torch.cuda.get_device_name()
    peak = peak_flops(device)
    claims, documents = (4, 9) if config.tiny else (64, 2000)
    parts: dict[str, Callable[[], Measured]] = {
        "attention": partial(attend, config),
        "run": partial(whole_run, config),
        "training, checkpointing False": partial(train, config, peak, claims, False),
        "training, checkpointing True": partial(train, config, peak, claims, True),
        "encoding": partial(encode, config, peak, documents),
    }
    parts |= {f"pairs, {name}": partial(rerank, config, shape) for name, shape in QWEN.items()}
    results = {name: measured(name, part) for name, part in parts.items()}
    shares = [row["share"] for row in results.values() if "loss" in row]
    return {"ratio": max(shares, default=None), "device": device, **results}


def measured(name: str, part: Callable[[], Measured]) -> dict[str, Any]:
    """Measure one part, or describe its failure; print it and free its memory."""
    try:
        result = part()
    except Exception as error:  # kernels raise errors of many kinds
        result = {"failed": f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"}
    print(json.dumps({name: result}), file=sys.stderr, flush=True)
    gc.collect()
    torch.cuda.empty_cache()
    return result


def random_model(kind: Any, device: str, sizes: Mapping[str, Any]) -> Any:
    """Make a Mistral or Qwen3 with random bf16 weights and MiniLM's tokenizer."""
    tokenizer: Any = resolve(ModelConfig(MINILM), "cpu").encoder.tokenizer
    shape = kind(vocab_size=len(tokenizer), use_cache=False, sliding_window=None, **sizes)
    torch.manual_seed(SEED)
    with torch.device(device):
        network: Any = MistralModel if kind is MistralConfig else Qwen3ForCausalLM
        model = network._from_config(shape, dtype=torch.bfloat16).eval()
        return prepare_for_gpu(model), tokenizer


def make_encoder(config: Config) -> Encoder:
    """Make an untrained bidirectional Mistral in bf16."""
    sizes = TINY if config.tiny else {}
    model, tokenizer = random_model(MistralConfig, config.device, sizes)
    model.config.is_causal = False
    settings = EncoderSettings(max_length=config.tokens, dtype="bfloat16")
    return Encoder(model, tokenizer, settings, None)


def train(
    config: Config,
    peak: float,
    claims: int,
    checkpointing: bool,
) -> Measured:
    encoder = make_encoder(config)
    optimisation = OptimisationConfig(
        batch_size=claims,
        chunk_tokens="auto",
        negatives=0,
        dropout=0.0,
        gradient_checkpointing=checkpointing,
        precision="bf16",
        save_every=0,
    )
    model = ModelConfig(dtype="bfloat16")
    lora = LoraConfig(r=16, dropout=0.0)
    recipe = RetrieverRecipe(tuning="lora", model=model, lora=lora, optimisation=optimisation)
    planned = plan_memory_here(recipe, encoder.model, config.tokens, 1)
    adapt(encoder, planned.recipe)
    recipe, _ = planned.calibrate(encoder)
    drawing = training.Config(texts=config.dataset, batch_size=claims)
    _, rows, texts = pairs = training.draw_pairs(drawing, config.repeats)
    if not config.tiny:
        torch.cuda.reset_peak_memory_stats()
    steps = training.train(encoder, recipe.optimisation, pairs, "bf16-mixed")
    seconds = statistics.median(steps.seconds)
    share = claims / len(rows) / seconds
    figures = rates(encoder, [text for pair in texts for text in pair], share, peak, trained=True)
    return figures | {
        "chunk_tokens": recipe.optimisation.chunk_tokens,
        "loss": steps.losses[-1],
        "seconds": round(seconds, 4),
        "peak_mb": round(peak_memory(gpu=not config.tiny) / 2**20),
        "predicted_mb": round(planned.memory.total / 2**20),
    }


def encode(config: Config, peak: float, documents: int) -> Measured:
    encoder = make_encoder(config)
    texts, _ = config.texts(documents, 1)
    encoder.encode(texts[: max(1, len(texts) // 8)], "source")
    seconds = encoder.encode(texts, "source")[1].seconds
    figures = rates(encoder, texts, 1 / seconds, peak)
    return figures | {"documents_per_second": round(len(texts) / seconds, 2)}


def rates(
    encoder: Encoder,
    texts: Sequence[str],
    times: float,
    peak: float,
    trained: bool = False,
) -> Measured:
    """Compute tokens and FLOPs per second, if the texts are encoded `times` per second."""
    lengths = [len(text.ids) for text in encoder.tokenize(texts, "source")]
    flops = ModelShape.of(encoder.model)
    if trained:
        operations = flops.training(lengths, "lora")
    else:
        operations = flops.forward(lengths)
    share = round(operations * times / peak, 4)
    return {"share": share, "tokens_per_second": round(sum(lengths) * times, 1)}


def attend(config: Config) -> Measured:
    """Compare bf16 attention over packed texts with float32 over each text, with gradients."""
    heads, keys, size = (4, 1, 8) if config.tiny else (32, 8, 128)  # as in Mistral-7B
    if config.tiny:
        lengths = [3, 9, 5]
    else:
        lengths = [17, 512, 130, 255, 64] * 8
    bounds = torch.tensor([0, *accumulate(lengths)], device=config.device, dtype=torch.int32)
    torch.manual_seed(SEED)
    shapes = [(sum(lengths), count, size) for count in (heads, keys, keys)]
    inputs = [torch.randn(shape, device=config.device) for shape in shapes]
    kernel = None if config.tiny else flash_varlen()

    def by_text(*sides: Tensor) -> Tensor:
        parts = [side.transpose(0, 1).split(lengths, dim=1) for side in sides]
        dot = partial(scaled_dot_product_attention, enable_gqa=True)
        return torch.cat([dot(*text) for text in zip(*parts, strict=True)], 1).transpose(0, 1)

    def packed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if kernel:
            return kernel(q, k, v, bounds, max(lengths), None, False)
        return by_text(q, k, v)

    results = []
    for attention, dtype in ((by_text, torch.float32), (packed, torch.bfloat16)):
        copies = [side.to(dtype, copy=True).requires_grad_() for side in inputs]
        output = attention(*copies)
        output.float().square().mean().backward()
        results.append([output, *(side.grad for side in copies if side.grad is not None)])
    errors = {
        name: round(float(((ours.float() - exact).norm() / exact.norm()).detach()), 5)
        for name, exact, ours in zip(("output", "q", "k", "v"), *results, strict=True)
    }
    name = getattr(kernel, "__name__", None)
    return {"kernel": name, **errors, "right": max(errors.values()) < 0.02}


def whole_run(config: Config) -> Measured:
    """Train a Mistral with random weights like a user: killed, resumed, merged, loaded."""
    from sentence_transformers import SentenceTransformer

    figures: Measured = {}
    with TemporaryDirectory() as folder:
        base = Path(folder, "base")
        run = Path(folder, "run")
        out = Path(folder, "out")
        for part in random_model(MistralConfig, "cpu", TINY if config.tiny else MIDDLE):
            part.save_pretrained(base)
        size = "--model.dtype bfloat16 --optimisation.precision bf16"
        size = "--data.limit 64 --device cpu" if config.tiny else size
        words = f"""--model.name {base} --model.pooling mean --model.bidirectional true --out {run}
            --model.max_length 128 --data.dataset demo --tuning lora --wandb.mode off
            --optimisation.epochs 2 --optimisation.save_every 2 --optimisation.batch_size 32
            --optimisation.warmup_ratio 0 --store {folder}/store {size}"""
        for name, command in {
            "killed": f"train/finetune.py {words}",
            "resumed": f"train/finetune.py {words} --resume",
            "merged": f"train/merge.py --checkpoints {run}/checkpoints/epoch-2 --out {out}",
        }.items():
            started = time.perf_counter()
            log = Path(folder, f"{name}.log")
            with log.open("w") as file:
                process = subprocess.Popen(
                    [sys.executable, *command.split()],
                    cwd=Path(__file__).resolve().parents[2],
                    stdout=file,
                    stderr=subprocess.STDOUT,
                )
                while process.poll() is None:
                    if name == "killed" and (run / "state.pt").is_file():
                        process.kill()
                    time.sleep(0.2)
            ended = process.wait()
            figures[name] = ended == (-signal.SIGKILL if name == "killed" else 0)
            figures[f"seconds_{name}"] = round(time.perf_counter() - started, 1)
            if not figures[name]:
                return figures | {"failed": log.read_text(errors="replace")[-400:]}
        theirs = SentenceTransformer(str(out), device=config.device).encode_query(POSTS)
        ours = resolve(run / "checkpoints" / "epoch-2", config.device).encoder
        gap = (theirs * ours.encode(POSTS, "claim")[0]).sum(1).min()
        return figures | {"cosine": round(float(gap), 5)}


def rerank(config: Config, sizes: Mapping[str, int]) -> Measured:
    """Score pairs with a yes/no model with random weights."""
    if config.tiny:
        dimensions = {**TINY, "head_dim": 8}
    else:
        dimensions = {**sizes, "head_dim": 128}
    dimensions["max_position_embeddings"] = 4096
    stage = YesNo()
    # Replaces what it would load: see functools.cached_property.
    model, tokenizer = random_model(Qwen3Config, config.device, dimensions)
    stage.__dict__.update(network=(model, tokenizer), tokenizer=tokenizer)
    sources, claims = config.texts(*((5, 2) if config.tiny else (100, 20)))
    pairs = []
    for claim in claims:
        for source in sources:
            pairs.append(Pair(claim, source))
    list(stage.score(pairs[:4]))
    started = time.perf_counter()
    tokens = sum(scored.tokens for scored in stage.score(pairs))
    seconds = time.perf_counter() - started
    return {"pairs_per_second": round(len(pairs) / seconds, 1), "tokens": tokens}
