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


def _sizes(*values: int) -> dict[str, int]:
    """Name a model's sizes."""
    return dict(zip(SIZES.split(), values, strict=True))


# Sizes of a test, and of the run that is killed and resumed: 1.2 billion weights. Without sizes,
# transformers' Mistral has 7 billion.
TINY = _sizes(32, 64, 2, 4, 2)
MIDDLE = _sizes(2048, 7168, 20, 16, 4)
QWEN = {
    "Qwen3-Reranker-0.6B": _sizes(1024, 3072, 28, 16, 8),
    "Qwen3-Reranker-8B": _sizes(4096, 12_288, 36, 32, 8),
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
    if config.tiny:
        device = "CPU, tiny model"
        claims = 4
        documents = 9
    else:
        device = torch.cuda.get_device_name()
        claims = 64
        documents = 2000
    peak = peak_flops(device)
    parts: dict[str, Callable[[], Measured]] = {
        "attention": partial(attend, config),
        "run": partial(whole_run, config),
        "training, checkpointing False": partial(train, config, peak, claims, False),
        "training, checkpointing True": partial(train, config, peak, claims, True),
        "encoding": partial(encode, config, peak, documents),
    }
    for name, sizes in QWEN.items():
        parts[f"pairs, {name}"] = partial(rerank, config, sizes)

    results = {name: measured(name, part) for name, part in parts.items()}
    shares = [row["share"] for row in results.values() if "loss" in row]
    return {
        "ratio": max(shares, default=None),
        "device": device,
        **results,
    }


def measured(name: str, part: Callable[[], Measured]) -> dict[str, Any]:
    """Measure one part, or describe its failure; print it and free its memory."""
    try:
        result = part()
    except Exception as error:  # kernels raise errors of many kinds
        first_line = str(error).partition("\n")[0]
        result = {"failed": f"{type(error).__name__}: {first_line}"}
    line = json.dumps({name: result})
    print(line, file=sys.stderr, flush=True)
    gc.collect()
    torch.cuda.empty_cache()
    return result


def random_model(
    kind: Any,
    device: str,
    sizes: Mapping[str, Any],
) -> Any:
    """Make a Mistral or Qwen3 with random bf16 weights and MiniLM's tokenizer."""
    tokenizer: Any = resolve(ModelConfig(MINILM), "cpu").encoder.tokenizer
    shape = kind(
        vocab_size=len(tokenizer),
        use_cache=False,
        sliding_window=None,
        **sizes,
    )
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
    settings = EncoderSettings(
        max_length=config.tokens,
        dtype="bfloat16",
    )
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
    recipe = RetrieverRecipe(
        tuning="lora",
        model=ModelConfig(dtype="bfloat16"),
        lora=LoraConfig(r=16, dropout=0.0),
        optimisation=optimisation,
    )
    planned = plan_memory_here(recipe, encoder.model, config.tokens, 1)
    adapt(encoder, planned.recipe)
    recipe, _ = planned.calibrate(encoder)
    drawing = training.Config(texts=config.dataset, batch_size=claims)
    pairs = training.draw_pairs(drawing, config.repeats)
    _, rows, texts = pairs
    if not config.tiny:
        torch.cuda.reset_peak_memory_stats()

    steps = training.train(encoder, recipe.optimisation, pairs, "bf16-mixed")
    seconds = statistics.median(steps.seconds)
    share = claims / len(rows) / seconds
    both_sides = [text for pair in texts for text in pair]
    figures = rates(encoder, both_sides, share, peak, trained=True)
    peak_bytes = peak_memory(gpu=not config.tiny)
    return figures | {
        "chunk_tokens": recipe.optimisation.chunk_tokens,
        "loss": steps.losses[-1],
        "seconds": round(seconds, 4),
        "peak_mb": round(peak_bytes / 2**20),
        "predicted_mb": round(planned.memory.total / 2**20),
    }


def encode(config: Config, peak: float, documents: int) -> Measured:
    encoder = make_encoder(config)
    texts, _ = config.texts(documents, 1)
    warm = max(1, len(texts) // 8)
    encoder.encode(texts[:warm], "source")
    seconds = encoder.encode(texts, "source")[1].seconds
    figures = rates(encoder, texts, 1 / seconds, peak)
    rate = len(texts) / seconds
    return figures | {"documents_per_second": round(rate, 2)}


def rates(
    encoder: Encoder,
    texts: Sequence[str],
    times: float,
    peak: float,
    trained: bool = False,
) -> Measured:
    """Compute tokens and FLOPs per second, if the texts are encoded `times` per second."""
    tokens = encoder.tokenize(texts, "source")
    lengths = [len(text.ids) for text in tokens]
    flops = ModelShape.of(encoder.model)
    if trained:
        operations = flops.training(lengths, "lora")
    else:
        operations = flops.forward(lengths)
    share = operations * times / peak
    tokens_per_second = sum(lengths) * times
    return {
        "share": round(share, 4),
        "tokens_per_second": round(tokens_per_second, 1),
    }


def attend(config: Config) -> Measured:
    """Compare bf16 attention over packed texts with float32 over each text, with gradients."""
    if config.tiny:
        heads = 4
        keys = 1
        size = 8
        lengths = [3, 9, 5]
    else:
        # as in Mistral-7B
        heads = 32
        keys = 8
        size = 128
        lengths = [17, 512, 130, 255, 64] * 8
    bounds = torch.tensor(
        [0, *accumulate(lengths)],
        device=config.device,
        dtype=torch.int32,
    )
    torch.manual_seed(SEED)
    total = sum(lengths)
    shapes = [(total, count, size) for count in (heads, keys, keys)]
    inputs = [torch.randn(shape, device=config.device) for shape in shapes]
    kernel = None if config.tiny else flash_varlen()

    def by_text(*sides: Tensor) -> Tensor:
        parts = [side.transpose(0, 1).split(lengths, dim=1) for side in sides]
        dot = partial(scaled_dot_product_attention, enable_gqa=True)
        outputs = [dot(*text) for text in zip(*parts, strict=True)]
        return torch.cat(outputs, 1).transpose(0, 1)

    def packed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if kernel:
            longest = max(lengths)
            return kernel(q, k, v, bounds, longest, None, False)
        return by_text(q, k, v)

    results = []
    compared = (
        (by_text, torch.float32),
        (packed, torch.bfloat16),
    )
    for attention, dtype in compared:
        copies = [side.to(dtype, copy=True).requires_grad_() for side in inputs]
        output = attention(*copies)
        loss = output.float().square().mean()
        loss.backward()
        gradients = [side.grad for side in copies if side.grad is not None]
        results.append([output, *gradients])

    names = ("output", "q", "k", "v")
    errors: dict[str, float] = {}
    for name, exact, ours in zip(names, *results, strict=True):
        difference = ours.float() - exact
        error = difference.norm() / exact.norm()
        errors[name] = round(float(error.detach()), 5)
    return {
        "kernel": getattr(kernel, "__name__", None),
        **errors,
        "right": max(errors.values()) < 0.02,
    }


def whole_run(config: Config) -> Measured:
    """Train a Mistral with random weights like a user: killed, resumed, merged, loaded."""
    from sentence_transformers import SentenceTransformer

    figures: Measured = {}
    with TemporaryDirectory() as folder:
        base = Path(folder, "base")
        run = Path(folder, "run")
        out = Path(folder, "out")
        sizes = TINY if config.tiny else MIDDLE
        for part in random_model(MistralConfig, "cpu", sizes):
            part.save_pretrained(base)

        size = "--model.dtype bfloat16 --optimisation.precision bf16"
        size = "--data.limit 64 --device cpu" if config.tiny else size
        words = f"""--model.name {base} --model.pooling mean --model.bidirectional true --out {run}
            --model.max_length 128 --data.dataset demo --tuning lora --wandb.mode off
            --optimisation.epochs 2 --optimisation.save_every 2 --optimisation.batch_size 32
            --optimisation.warmup_ratio 0 --store {folder}/store {size}"""
        commands = {
            "killed": f"train/finetune.py {words}",
            "resumed": f"train/finetune.py {words} --resume",
            "merged": f"train/merge.py --checkpoints {run}/checkpoints/epoch-2 --out {out}",
        }
        for name, command in commands.items():
            started = time.perf_counter()
            log = Path(folder, f"{name}.log")
            is_killed = name == "killed"
            kill_after = run / "state.pt" if is_killed else None
            ended = _execute(command, log, kill_after)
            expected = -signal.SIGKILL if is_killed else 0
            seconds = time.perf_counter() - started
            figures[name] = ended == expected
            figures[f"seconds_{name}"] = round(seconds, 1)
            if not figures[name]:
                output = log.read_text(errors="replace")
                return figures | {"failed": output[-400:]}

        theirs = SentenceTransformer(str(out), device=config.device).encode_query(POSTS)
        checkpoint = run / "checkpoints" / "epoch-2"
        ours = resolve(checkpoint, config.device).encoder
        vectors, _ = ours.encode(POSTS, "claim")
        cosines = (theirs * vectors).sum(1)
        lowest = float(cosines.min())
        return figures | {"cosine": round(lowest, 5)}


def _execute(command: str, log: Path, kill_after: Path | None) -> int:
    """Run a program, kill it once a file is there, and return its exit status."""
    with log.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, *command.split()],
            cwd=Path(__file__).resolve().parents[2],
            stdout=file,
            stderr=subprocess.STDOUT,
        )
        while process.poll() is None:
            if kill_after is not None and kill_after.is_file():
                process.kill()
            time.sleep(0.2)
    return process.wait()


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

    source_count, claim_count = (5, 2) if config.tiny else (100, 20)
    sources, claims = config.texts(source_count, claim_count)
    pairs = []
    for claim in claims:
        for source in sources:
            pairs.append(Pair(claim, source))
    list(stage.score(pairs[:4]))

    started = time.perf_counter()
    tokens = sum(scored.tokens for scored in stage.score(pairs))
    seconds = time.perf_counter() - started
    return {
        "pairs_per_second": round(len(pairs) / seconds, 1),
        "tokens": tokens,
    }
