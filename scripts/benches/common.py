"""Time our work and a peer's in turn, and compute ratios: shared by the cases of bench.py."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from claim2source.core.config import Repeats, Settings, require
from claim2source.core.errors import UserError
from claim2source.data.loading import load
from claim2source.text import Rendering

Clock = Literal["wall", "cpu"]
# Result of a case, printed as JSON, `ratio` first.
Measured = dict[str, object]
MINILM = "sentence-transformers/all-MiniLM-L6-v2"
SEED = 13


@dataclass(frozen=True)
class Bench(Settings):
    """Settings of every case.

    Args:
        repeats: number of repeats, in which the sides run in turn.
        clock: `wall` time, or on a busy machine `cpu` time of all threads of this process.
    """

    repeats: Repeats = 5
    clock: Clock = "wall"


@dataclass(frozen=True)
class DataBench(Bench):
    """Settings of a case on texts of a data set.

    Args:
        dataset: name or folder of a data set.
        split: split of the claims.
    """

    dataset: str = "ct25"
    split: str = "train"

    def texts(self, documents: int, claims: int) -> list[list[str]]:
        """Draw distinct texts of documents and of claims; the seed fixes them."""
        data = load(self.dataset, self.split)
        rendering = Rendering()
        samples = []
        for key, size, texts in (
            ("documents", documents, rendering.source_texts(data.sources)),
            ("claims", claims, rendering.claim_texts(data.claims)),
        ):
            pool = sorted(set(texts))
            draw = np.random.default_rng([SEED, size])
            require(size <= len(pool), key, size, f"at most {len(pool)} of {self.dataset}")
            samples.append([pool[i] for i in draw.choice(len(pool), size=size, replace=False)])
        return samples


def seconds_by(clock: Clock) -> float:
    if clock == "wall":
        return time.perf_counter()
    return time.process_time()


@dataclass
class Watch:
    """Keep seconds by part and repeat; "ours index" is a part of the side "ours"."""

    clock: Clock = "wall"
    seconds: dict[str, list[float]] = field(default_factory=dict)

    @contextmanager
    def __call__(self, part: str, times: float = 1.0) -> Iterator[None]:
        """Add the seconds of a block to a part, multiplied by `times` if it is a sample."""
        started = seconds_by(self.clock)
        yield
        self.seconds.setdefault(part, []).append((seconds_by(self.clock) - started) * times)

    def take_turns(
        self,
        sides: Mapping[str, Callable[[], Any]],
        repeats: int,
    ) -> dict[str, list[Any]]:
        """Time all sides in every repeat, starting with the next one each time; return results."""
        names = list(sides)
        results = {name: list[Any]() for name in sides}
        for repeat in range(repeats):
            first = repeat % len(names)
            for name in [*names[first:], *names[:first]]:
                gc.collect()  # so that no side cleans up after another
                with self(name):
                    result = sides[name]()
                results[name].append(result)
        return results

    def of(self, side: str) -> np.ndarray:
        parts = []
        for name, took in self.seconds.items():
            if f"{name} ".startswith(f"{side} "):
                parts.append(took)
        total: np.ndarray = np.sum(parts, axis=0)
        return total

    def ratio(self, peer: str, ours: str = "ours", prefix: str = "") -> Measured:
        """Compute the peer's seconds divided by ours: median and spread."""
        return measured_ratio(self.of(peer) / self.of(ours), prefix)

    @property
    def medians(self) -> dict[str, float]:
        return {name: median(took, 4) for name, took in self.seconds.items()}


def median(values: Iterable[float], digits: int = 3) -> float:
    return round(float(statistics.median(values)), digits)


def measured_ratio(values: np.ndarray, prefix: str = "") -> Measured:
    """Compute median and spread of a ratio as entries of the JSON."""
    ends = []
    for end in (min(values), max(values)):
        ends.append(round(float(end), 3))
    return {f"{prefix}ratio": median(values), f"{prefix}spread": ends}


def largest_difference(
    ours: np.ndarray,
    peer: np.ndarray,
    limit: float,
    values: str,
) -> float:
    """Compute the largest difference; raise `UserError` above `limit`: the work is not the same."""
    if ours.shape == peer.shape:
        worst = float(np.abs(ours - peer).max())
    else:
        worst = float("inf")
    if not worst <= limit:
        raise UserError(f"the {values} differ by up to {worst:.2g} from the peer's")
    return float(f"{worst:.2g}")


def zipf_texts(
    draw: np.random.Generator,
    words: Sequence[str],
    lengths: np.ndarray,
) -> list[str]:
    """Draw texts of these numbers of words by Zipf's law; the words are sorted by frequency."""
    weights = 1 / np.arange(1, len(words) + 1)
    indices = draw.choice(len(words), size=int(lengths.sum()), p=weights / weights.sum())
    parts = np.split(np.array(words, dtype=object)[indices], np.cumsum(lengths)[:-1])
    return [" ".join(part) for part in parts]


def abstracts_and_posts(
    draw: np.random.Generator,
    abstracts: int,
    posts: int,
    common: Sequence[str] = (),
) -> tuple[list[str], list[str]]:
    """Make up texts as long as abstracts and posts from 60,000 words, the commonest `common`."""
    words = [*common, *(f"w{i:x}" for i in range(60_000 - len(common)))]
    papers = zipf_texts(draw, words, draw.integers(120, 281, abstracts))
    return papers, zipf_texts(draw, words, draw.integers(15, 36, posts))
