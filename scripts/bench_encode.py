"""Encoding ct25's documents and claims against sentence-transformers, to the same vectors.

Both sides encode the same texts with the same weights, length and threads, in turn; first their
vectors are compared (1e-5). `ratio` is the peer's time over ours, documents and claims together.
The texts are samples, fixed by the seed. The share of the matrix-multiply rate is the arithmetic
of the real tokens (padding is no work) over what large float32 products reach on this machine.
--int8 also times 8-bit weights (ONNX Runtime), and says what they lose in MRR@5 on a whole split.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from claim2source.core.config import flag, read_config, require
from claim2source.core.errors import UserError, run_program
from claim2source.core.memory import peak_memory
from claim2source.core.tables import plain_table
from claim2source.datasets import load
from claim2source.evaluation.metrics import evaluate, judged_claims
from claim2source.models import Encoder, ModelConfig, Side, resolve
from claim2source.retrieve import Dense
from claim2source.text import Rendering
from scripts.data_folder import data_folder
from scripts.int8 import to_int8

TOLERANCE = 1e-5
SIDES: tuple[Side, ...] = ("source", "claim")
NAMES = {"source": "documents", "claim": "claims"}
# Large enough that a product is arithmetic and nothing else.
_SQUARE = 1536

Texts = dict[Side, list[str]]
Seconds = dict[Side, float]


@dataclass(frozen=True)
class BenchConfig:
    """What to time.

    Args:
        dataset: folder in BEIR layout; none: ct25 in CLAIM2SOURCE_DATA.
        split: split whose claims are encoded.
        model: the model both sides load; without prefixes.
        documents: sources drawn.
        claims: claims drawn.
        repeats: times that everything is encoded, by ours and the peer in turn.
        batch_size: texts in a batch of the peer.
        seed: of the samples.
        int8_split: split that --int8 is scored on.
    """

    dataset: Path | None = None
    split: str = "train"
    model: ModelConfig = field(default_factory=ModelConfig)
    documents: int = 240
    claims: int = 480
    repeats: int = 5
    batch_size: int = 32
    seed: int = 13
    int8: bool = flag("also time 8-bit weights, and score both (the extra `int8`; some minutes)")
    int8_split: str = "dev"

    def __post_init__(self) -> None:
        for key in ("documents", "claims", "repeats", "batch_size"):
            require(getattr(self, key) >= 1, key, getattr(self, key), "1 or more")
        template = self.model.template
        prefixed = bool(template.claim or template.source)
        require(not prefixed, "model.template", template, "no prefixes: the peer adds none")

    @property
    def folder(self) -> Path:
        """Where the texts are."""
        return self.dataset or data_folder("ct25")


@dataclass(frozen=True)
class Timing:
    """Seconds of one repeat by side, and the matrix-multiply rate measured beside it."""

    ours: Seconds
    peer: Seconds
    flops_per_second: float


def drawn(config: BenchConfig) -> Texts:
    """Texts of documents and claims, the same for one seed, in random order of length."""
    data = load(config.folder, config.split)
    rendering, draw = Rendering(), np.random.default_rng(config.seed)
    whole: Texts = {
        "source": sorted(set(rendering.source_texts(data.sources))),
        "claim": sorted(set(rendering.claim_texts(data.claims))),
    }
    texts: Texts = {}
    sizes: dict[Side, int] = {"source": config.documents, "claim": config.claims}
    for side, wanted in sizes.items():
        have = len(whole[side])
        require(wanted <= have, NAMES[side], wanted, f"at most {have}, the texts of this data set")
        texts[side] = [whole[side][i] for i in draw.choice(have, size=wanted, replace=False)]
    return texts


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds that `work` takes, and what it gives."""
    started = time.perf_counter()
    done = work()
    return time.perf_counter() - started, done


def multiply_rate() -> float:
    """Floating-point operations a second of a large float32 product, the best of three."""
    left, right = torch.rand(_SQUARE, _SQUARE), torch.rand(_SQUARE, _SQUARE)
    seconds = min(timed(lambda: torch.mm(left, right))[0] for _ in range(3))
    return 2 * _SQUARE**3 / seconds


def operations(encoder: Encoder, texts: Sequence[str], side: Side) -> int:
    """Floating-point operations that the texts' own tokens need: layers and attention."""
    layers: Any = getattr(encoder.model, "encoder", encoder.model)
    weights = sum(m.weight.numel() for m in layers.modules() if isinstance(m, torch.nn.Linear))
    config = encoder.model.config
    lengths = [len(tokens.ids) for tokens in encoder.tokenize(texts, side)]
    # Scores and their product with the values: two multiplications of length x length x width.
    attention = 4 * config.num_hidden_layers * config.hidden_size
    return sum(2 * weights * n + attention * n * n for n in lengths)


def load_peer(folder: Path, length: int) -> Any:
    """sentence-transformers with the same files and length."""
    from sentence_transformers import SentenceTransformer

    peer = SentenceTransformer(str(folder), device="cpu")
    peer.max_seq_length, peer.default_prompt_name = length, None
    return peer


def run_ours(encoder: Encoder, texts: Sequence[str], side: Side) -> np.ndarray:
    """Our vectors, without a store."""
    return encoder.encode(texts, side)[0]


def run_peer(peer: Any, texts: Sequence[str], batch_size: int) -> np.ndarray:
    """The peer's vectors."""
    return np.asarray(peer.encode(list(texts), batch_size=batch_size, show_progress_bar=False))


def check_same(ours: np.ndarray, theirs: np.ndarray, name: str) -> float:
    """The largest difference; `UserError` where it is above 1e-5: times would compare nothing."""
    worst = float(np.abs(ours - theirs).max()) if ours.shape == theirs.shape else float("inf")
    if not worst < TOLERANCE:
        raise UserError(f"the vectors of {name} differ by up to {worst:.2g} from the peer's")
    return worst


def time_both(
    encoder: Encoder, peer: Any, texts: Texts, batch_size: int, ours_first: bool
) -> Timing:
    """One repeat; who begins alternates, so that a slow moment meets both."""
    seconds: dict[str, Seconds] = {"ours": {}, "peer": {}}
    rate = multiply_rate()
    for side in SIDES:
        work: dict[str, Callable[[], Any]] = {
            "ours": lambda side=side: run_ours(encoder, texts[side], side),  # type: ignore[misc]
            "peer": lambda side=side: run_peer(peer, texts[side], batch_size),  # type: ignore[misc]
        }
        for who in ("ours", "peer") if ours_first else ("peer", "ours"):
            seconds[who][side] = timed(work[who])[0]
    return Timing(seconds["ours"], seconds["peer"], rate)


def measure_int8(config: BenchConfig, encoder: Encoder, texts: Texts) -> dict[str, Any]:
    """Ours over int8 in seconds, interleaved, and both scores on a whole split."""
    small = to_int8(encoder)
    ratios = []
    for repeat in range(config.repeats + 1):
        seconds = [
            timed(lambda who=who: [run_ours(who, texts[side], side) for side in SIDES])[0]  # type: ignore[misc]
            for who in (encoder, small)
        ]
        if repeat:  # the first warms up
            ratios.append(seconds[0] / seconds[1])
    data = load(config.folder, config.int8_split)
    claims = judged_claims(data.qrels)
    scores = {}
    for name, who in (("float32", encoder), ("int8", small)):
        run = Dense(who, progress=True).index(data.sources).search(data.claims, 5).run
        scores[name] = round(evaluate(run, data.qrels, ["mrr@5"], claims).means()["mrr@5"], 4)
    return {
        "speed_up": round(statistics.median(ratios), 3),
        "spread": [round(min(ratios), 3), round(max(ratios), 3)],
        "split": config.int8_split,
        "mrr@5": scores,
        "lost": round(scores["float32"] - scores["int8"], 4),
        "version": metadata.version("onnxruntime"),
    }


def report(
    config: BenchConfig, timings: Sequence[Timing], flops: dict[Side, int], worst: float
) -> dict[str, Any]:
    """What the last line of the output holds."""

    def both(seconds: Seconds) -> float:
        return sum(seconds[side] for side in SIDES)

    def median(values: Sequence[float]) -> float:
        return statistics.median(values)

    whole = [both(t.peer) / both(t.ours) for t in timings]
    done = sum(flops.values())
    # The rate of the same repeat: on a shared machine it is another one each time.
    shares = {
        who: median([done / both(getattr(t, who)) / t.flops_per_second for t in timings])
        for who in ("ours", "peer")
    }
    return {
        "ratio": round(median(whole), 3),
        "spread": [round(min(whole), 3), round(max(whole), 3)],
        **{
            f"{NAMES[side]}_ratio": round(median([t.peer[side] / t.ours[side] for t in timings]), 3)
            for side in SIDES
        },
        "median": {
            f"{who}_{NAMES[side]}_seconds": round(
                median([getattr(t, who)[side] for t in timings]), 4
            )
            for who in ("ours", "peer")
            for side in SIDES
        },
        "multiply_gflops": round(median([t.flops_per_second for t in timings]) / 1e9, 1),
        "multiply_share": round(shares["ours"], 3),
        "peer_multiply_share": round(shares["peer"], 3),
        "largest_difference": float(f"{worst:.2g}"),
        "repeats": config.repeats,
        "documents": config.documents,
        "claims": config.claims,
        "batch_size": config.batch_size,
        "threads": torch.get_num_threads(),
        "peak_memory_mb": round(peak_memory() / 2**20, 1),
        "versions": {
            "python": platform.python_version(),
            **{
                name: metadata.version(name)
                for name in ("torch", "transformers", "sentence-transformers")
            },
        },
        "load_average": [round(load, 2) for load in os.getloadavg()],
    }


def as_table(config: BenchConfig, result: dict[str, Any]) -> str:
    """The same for a person."""
    median, low_high = result["median"], result["spread"]
    parts = [f"{NAMES[side]}_seconds" for side in SIDES]

    def row(name: str, who: str, ratio: float | None, share: float) -> list[Any]:
        seconds = [median[f"{who}_{part}"] for part in parts]
        return [name, *seconds, sum(seconds), ratio, share]

    rows = [
        row("claim2source", "ours", result["ratio"], result["multiply_share"]),
        row("sentence-transformers", "peer", None, result["peer_multiply_share"]),
    ]
    columns = ["", "documents", "claims", "both", "ratio", "share of multiply rate"]
    return "\n".join(
        [
            f"{config.documents} documents, {config.claims} claims, {config.model.name}: median "
            f"seconds of {config.repeats} repeats, {result['threads']} threads",
            plain_table(columns, rows, digits=3),
            f"Ratio from {low_high[0]} to {low_high[1]}; documents {result['documents_ratio']}, "
            f"claims {result['claims_ratio']}. Vectors differ by {result['largest_difference']}.",
            f"float32 products: {result['multiply_gflops']} GFLOP/s",
            f"Load average: {result['load_average']}",
        ]
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Check, time, print a table and one line of JSON."""
    config = read_config(
        BenchConfig, argv, program="scripts/bench_encode.py", description=__doc__ or ""
    )
    texts = drawn(config)
    # The peer is given no prompt either.
    resolved = resolve(replace(config.model, prompts=False), "cpu")
    encoder = resolved.encoder
    peer = load_peer(resolved.folder, encoder.settings.max_length)
    # Warms both up, too.
    worst = max(
        check_same(
            run_ours(encoder, texts[side], side),
            run_peer(peer, texts[side], config.batch_size),
            NAMES[side],
        )
        for side in SIDES
    )
    timings = [
        time_both(encoder, peer, texts, config.batch_size, ours_first=repeat % 2 == 0)
        for repeat in range(config.repeats)
    ]
    flops = {side: operations(encoder, texts[side], side) for side in SIDES}
    result = report(config, timings, flops, worst)
    print(as_table(config, result))
    if config.int8:
        result["int8"] = found = measure_int8(config, encoder, texts)
        print(
            f"int8: {found['speed_up']} times as fast as ours in float32 (from "
            f"{found['spread'][0]} to {found['spread'][1]}); mrr@5 on {found['split']} "
            f"{found['mrr@5']['int8']} instead of {found['mrr@5']['float32']}"
        )
    print(json.dumps(result))


if __name__ == "__main__":
    run_program(main)
