"""Compare re-ranking by a cross-encoder with sentence-transformers' CrossEncoder.predict.

Both sides score the same pairs of ct25's claims and sources with the same weights, length and
threads, in turn; that their scores agree (1e-4) is checked first. `ratio` is the peer's time at its
default batch size divided by ours, `best_ratio` that at the best of its batch sizes. Without
--model MiniLM's weights with a random head are scored. With --qwen, and a GPU, the shapes of
Qwen3-Reranker-0.6B with random weights are timed too. --cpu_time compares the processors' seconds:
for a machine that others use.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from claim2source.core.config import flag, list_field, read_config, require
from claim2source.core.errors import UserError, run_program
from claim2source.core.memory import peak_memory
from claim2source.core.tables import Cell, plain_table
from claim2source.datasets import load
from claim2source.models import ModelConfig, resolve
from claim2source.rerank.cross_encoder import CrossEncoder
from claim2source.rerank.frame import Pair, Reranker
from claim2source.rerank.yes_no import YesNo
from claim2source.text import Rendering
from scripts.data_folder import REPOSITORY, data_folder
from scripts.measure import circumstances, median, ratio_and_spread, require_positive, take_turns

TOLERANCE = 1e-4
DEFAULT_BATCH = 32
MINILM = "sentence-transformers/all-MiniLM-L6-v2"
# Qwen3-Reranker-0.6B's config.json.
QWEN = {
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40960,
    "max_window_layers": 28,
    "layer_types": ["full_attention"] * 28,
}
Score = Callable[[], np.ndarray]


@dataclass(frozen=True)
class BenchConfig:
    """Settings of `scripts/bench_rerank.py`.

    Args:
        dataset: folder in BEIR layout; default: ct25 in CLAIM2SOURCE_DATA.
        split: split whose claims are scored.
        model: folder of a cross-encoder; none: MiniLM with a random head.
        claims: number of claims drawn.
        sources: number of sources drawn for each claim.
        repeats: repeats of everything, all sides in turn.
        seed: of the draws and of random weights.
    """

    dataset: Path | None = None
    split: str = "dev"
    model: Path | None = None
    claims: int = 8
    sources: int = 32
    repeats: int = 5
    seed: int = 13
    batch_sizes: list[int] = list_field([1, 8, DEFAULT_BATCH], help="of the peer")
    cpu_time: bool = flag("compare processor seconds instead of seconds")
    qwen: bool = flag("also time Qwen3-Reranker-0.6B's shapes with random weights, on a GPU")

    def __post_init__(self) -> None:
        require_positive(self, "claims", "sources", "repeats")
        good = DEFAULT_BATCH in self.batch_sizes and min(self.batch_sizes) >= 1
        require(good, "batch_sizes", self.batch_sizes, f"numbers of pairs, {DEFAULT_BATCH} too")

    @property
    def folder(self) -> Path:
        """The folder of the data set."""
        return self.dataset or data_folder("ct25")


def drawn(config: BenchConfig) -> list[Pair]:
    """Draw pairs of claims and sources; the seed fixes them."""
    data = load(config.folder, config.split)
    draw, rendering = np.random.default_rng(config.seed), Rendering()
    claims, sources = rendering.claim_texts(data.claims), rendering.source_texts(data.sources)
    for name, wanted, have in (
        ("claims", config.claims, len(claims)),
        ("sources", config.sources, len(sources)),
    ):
        require(wanted <= have, name, wanted, f"at most {have}, those of this data set")
    return [
        Pair(claims[claim], sources[source])
        for claim in draw.choice(len(claims), size=config.claims, replace=False)
        for source in draw.choice(len(sources), size=config.sources, replace=False)
    ]


def write_minilm(folder: Path, seed: int) -> None:
    """Write a cross-encoder of MiniLM's weights and a random head."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    base = resolve(ModelConfig(MINILM), "cpu").folder
    torch.manual_seed(seed)
    model: Any = AutoModelForSequenceClassification.from_pretrained(base, num_labels=1)
    # Scores that differ enough to be compared.
    model.classifier.weight.data *= 20
    model.save_pretrained(folder)
    tokenizer: Any = AutoTokenizer.from_pretrained(base)
    tokenizer.model_max_length = model.config.max_position_embeddings
    tokenizer.save_pretrained(folder)


def write_qwen(folder: Path, seed: int, **sizes: Any) -> Path:
    """Write a model of Qwen3-Reranker-0.6B's shapes: random weights, a small vocabulary."""
    from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

    small = data_folder("vllm/model")
    tokenizer: Any = AutoTokenizer.from_pretrained(small)
    tokenizer.chat_template = (REPOSITORY / "configs/vllm/qwen3_reranker.jinja").read_text()
    tokenizer.save_pretrained(folder)
    torch.manual_seed(seed)
    shape: Any = Qwen3Config.from_pretrained(small, **{**QWEN, **sizes})
    model: Any = Qwen3ForCausalLM(shape)
    model.to(torch.bfloat16).save_pretrained(folder)
    return folder


def ours(reranker: Reranker, pairs: Sequence[Pair]) -> np.ndarray:
    """Score with ours, without a store."""
    found = np.full(len(pairs), np.nan, dtype=np.float32)
    for batch in reranker.score(pairs):
        found[list(batch.places)] = batch.scores
    return found


def peers(model: Any, pairs: Sequence[Pair], batch_size: int, **more: Any) -> np.ndarray:
    """Score with sentence-transformers."""
    texts = [tuple(pair) for pair in pairs]
    found = model.predict(texts, batch_size=batch_size, show_progress_bar=False, **more)
    return np.asarray(found)


def check_same(found: np.ndarray, theirs: np.ndarray, tolerance: float = TOLERANCE) -> float:
    """Compute the largest difference of scores; raise `UserError` if it exceeds `tolerance`."""
    worst = float(np.abs(found - theirs).max()) if found.shape == theirs.shape else float("inf")
    if not worst <= tolerance:
        raise UserError(f"scores differ by up to {worst:.2g} from the peer's")
    return worst


def time_all(
    sides: dict[str, Score], repeats: int, clock: Callable[[], float]
) -> dict[str, list[float]]:
    """Time all sides in turn; seconds by side and repeat."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}

    def run(name: str) -> None:
        started = clock()
        sides[name]()
        seconds[name].append(clock() - started)

    take_turns([partial(run, name) for name in sides], repeats)
    return seconds


def profile(model: Any, score: Score, clock: Callable[[], float]) -> dict[str, float]:
    """Measure where one pass goes: tokenizing, the model, the rest; and the share of padding."""
    taken = {"tokenize": 0.0, "model": 0.0}
    tokens = {"real": 0, "padded": 0}
    read, network = model.preprocess, model[0].forward

    def preprocess(*given: Any, **named: Any) -> Any:
        started = clock()
        found = read(*given, **named)
        taken["tokenize"] += clock() - started
        return found

    def forward(features: Any, *given: Any, **named: Any) -> Any:
        mask = features["attention_mask"]
        tokens["real"] += int(mask.sum())
        tokens["padded"] += mask.numel()
        started = clock()
        found = network(features, *given, **named)
        taken["model"] += clock() - started
        return found

    model.preprocess, model[0].forward = preprocess, forward
    try:
        started = clock()
        score()
        whole = clock() - started
    finally:
        del model.preprocess, model[0].forward
    shares = {name: round(value / whole, 3) for name, value in taken.items()}
    padding = round(1 - tokens["real"] / max(tokens["padded"], 1), 3)
    return {**shares, "rest": round(1 - sum(taken.values()) / whole, 3), "padding": padding}


def measure_qwen(config: BenchConfig, pairs: Sequence[Pair], **sizes: Any) -> dict[str, Any]:
    """Time random weights of Qwen3-Reranker-0.6B's shapes; without a GPU say so."""
    name = "Qwen3-Reranker-0.6B's shapes"
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and not sizes:
        return {"skipped": f"{name}: no GPU here"}
    from sentence_transformers import CrossEncoder as Peer

    with tempfile.TemporaryDirectory() as place:
        folder = write_qwen(Path(place), config.seed, **sizes)
        stage = YesNo(model=str(folder), dtype="bfloat16").placed(None, device)
        peer = Peer(
            str(folder),
            device=device,
            activation_fn=torch.nn.Identity(),
            model_kwargs={"dtype": "bfloat16"},
        )

        def synchronised(score: Score) -> np.ndarray:
            found = score()
            if device == "cuda":
                torch.cuda.synchronize()
            return found

        sides: dict[str, Score] = {
            "ours": lambda: synchronised(partial(ours, stage, pairs)),
            "peer": lambda: synchronised(partial(peers, peer, pairs, DEFAULT_BATCH)),
        }
        both = [score() for score in sides.values()]
        taken = time_all(sides, config.repeats, time.perf_counter)
    ratios = np.array(taken["peer"]) / np.array(taken["ours"])
    differences = float(np.abs(both[0] - both[1]).max())
    return {
        "model": name,
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        **ratio_and_spread(ratios, digits=3),
        "pairs_per_second": round(len(pairs) / median(taken["ours"]), 1),
        "largest_difference_bf16": round(differences, 3),
    }


def report(
    config: BenchConfig, seconds: dict[str, list[float]], worst: float, count: int
) -> dict[str, Any]:
    """Compute what the last line of the output holds."""
    own = np.array(seconds["ours"])
    by_size = {size: np.array(seconds[f"batch {size}"]) for size in config.batch_sizes}
    # The best size is the one with the least median: not the luckiest of each repeat.
    best = min(by_size, key=lambda size: float(np.median(by_size[size])))
    rates = {name: round(count / median(taken), 1) for name, taken in seconds.items()}
    return {
        **ratio_and_spread(by_size[DEFAULT_BATCH] / own, digits=3),
        "best_batch_size": best,
        **ratio_and_spread(by_size[best] / own, "best_", digits=3),
        "pairs_per_second": rates,
        "seconds": "processor" if config.cpu_time else "wall",
        "largest_difference": float(f"{worst:.2g}"),
        "pairs": count,
        "repeats": config.repeats,
        "threads": torch.get_num_threads(),
        "peak_memory_mb": round(peak_memory() / 2**20, 1),
        **circumstances("torch", "transformers", "sentence-transformers"),
    }


def as_table(result: dict[str, Any]) -> str:
    """Format the result for a terminal."""
    rows: list[list[Cell]] = []
    for name, rate in result["pairs_per_second"].items():
        shown = "claim2source" if name == "ours" else f"CrossEncoder.predict, {name}"
        parts = result["profile"].get(name, {})
        rows.append(
            [shown, rate, *(parts.get(p) for p in ("tokenize", "model", "rest", "padding"))]
        )
    columns = [
        "",
        f"pairs a second ({result['seconds']})",
        "tokenizing",
        "model",
        "rest",
        "padding",
    ]
    low, high = result["spread"]
    return "\n".join(
        [
            plain_table(columns, rows, digits=3),
            f"Ratio {result['ratio']} (from {low} to {high}); against its best batch size, "
            f"{result['best_batch_size']}, {result['best_ratio']}. Scores differ by "
            f"{result['largest_difference']}.",
        ]
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Check that scores agree, time all sides, print a table and one line of JSON."""
    config = read_config(
        BenchConfig, argv, program="scripts/bench_rerank.py", description=__doc__ or ""
    )
    from sentence_transformers import CrossEncoder as Peer

    pairs = drawn(config)
    clock = time.process_time if config.cpu_time else time.perf_counter
    with tempfile.TemporaryDirectory() as place:
        folder = config.model or Path(place)
        if config.model is None:
            write_minilm(folder, config.seed)
        stage = CrossEncoder(model=str(folder)).placed(None, "cpu")
        peer = Peer(
            str(folder), device="cpu", activation_fn=torch.nn.Identity(), local_files_only=True
        )
        sides: dict[str, Score] = {"ours": partial(ours, stage, pairs)}
        for size in config.batch_sizes:
            sides[f"batch {size}"] = partial(peers, peer, pairs, size)
        # Warms up, too.
        found = {name: score() for name, score in sides.items()}
        worst = max(check_same(found["ours"], scores) for scores in found.values())
        seconds = time_all(sides, config.repeats, clock)
        profiles = {
            name: profile(stage.network if name == "ours" else peer, score, clock)
            for name, score in sides.items()
        }
    result = report(config, seconds, worst, len(pairs))
    result["profile"] = profiles
    print(as_table(result))
    if config.qwen:
        result["qwen"] = measure_qwen(config, pairs)
        print(result["qwen"].get("skipped") or f"{result['qwen']['model']}: {result['qwen']}")
    print(json.dumps(result))


if __name__ == "__main__":
    run_program(main)
