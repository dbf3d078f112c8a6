"""Rank sources by the inner product of an encoder's vectors."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Union, cast

import numpy as np

from claim2source.core.arguments import whole_number
from claim2source.core.config import require
from claim2source.core.errors import InputError
from claim2source.core.machine import peak_memory, reset_peak_memory
from claim2source.core.progress import Progress
from claim2source.core.provenance import version
from claim2source.core.records import Claim, Source
from claim2source.core.run import Cost, Result
from claim2source.core.stage import Claims, as_claims, as_sources
from claim2source.core.terminal import one_line
from claim2source.data.store import Store
from claim2source.models import ModelConfig, Resolved, Side, resolve
from claim2source.models.in_memory import InMemoryEncoder, is_sentence_transformer
from claim2source.search.cache import read_or_search, request_key, sources_hash
from claim2source.search.faiss_index import VectorIndex
from claim2source.text import Rendering, SourceForm

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


class TextEncoder(Protocol):
    """Protocol of an object that encodes texts like an `Encoder`."""

    source_encoder: Any
    settings: Any

    def encode(
        self,
        texts: Sequence[str],
        side: Side,
        *,
        store: Store | None,
        progress: str | Progress | None,
    ) -> tuple[np.ndarray, Cost]:
        """Encode texts as vectors [texts, dimensions] float32; return the cost too."""
        ...

    def key(self) -> dict[str, Any] | None:
        """Return the identity that vectors depend on besides the text; None during training."""
        ...


Model = Union[str, Path, ModelConfig, Resolved, TextEncoder, "SentenceTransformer"]


@dataclass(frozen=True)
class Dense:
    """Rank sources by the vectors of a model.

    `model` is a checkpoint's folder, a model's name or settings, or a result of `resolve`; an
    encoder; or a `SentenceTransformer` in its state at the time of encoding. It is loaded on first
    use. Records are rendered as in a checkpoint's training; for other models by `rendering`, or
    only `sources`. `other_sources` replaces the source form of any model. `claim_length` limits
    claims to fewer tokens than the model's `max_length`, which then applies only to sources. With a
    `store` and named weights, vectors and runs are stored: the same claims and sources are neither
    encoded nor searched again. `recorded` are the settings by which an index names the model, if
    they differ from `model`. `index` raises `UserError` if the model cannot be loaded, or if
    `rendering` differs from a checkpoint's own.

    Example:
        >>> import claim2source as c2s
        >>> papers = c2s.load("demo", "dev").sources[:6]
        >>> dense = c2s.Dense("sentence-transformers/all-MiniLM-L6-v2").index(papers)
        >>> len(dense.search("masks cut outbreaks 3.7x", k=5).sources("0"))
        5
    """

    model: Model
    _: KW_ONLY
    rendering: Rendering | None = None
    sources: SourceForm = "metadata"
    other_sources: SourceForm | None = None
    claim_length: int | None = None
    store: Store | None = field(default=None, compare=False, repr=False)
    device: str | None = field(default=None, compare=False, repr=False)
    progress: bool = field(default=False, compare=False, repr=False)
    recorded: ModelConfig | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        model = self.model
        if isinstance(model, str | Path):
            vars(self)["model"] = ModelConfig(name=str(model))
        elif not isinstance(model, ModelConfig | Resolved):
            is_encoder = is_sentence_transformer(model) or hasattr(model, "encode")
            wanted = "a model's name or folder, ModelConfig, encoder or SentenceTransformer"
            if not is_encoder:
                raise InputError("model", reason=f"is a {type(model).__name__}; wanted: {wanted}")

    def __repr__(self) -> str:
        if not isinstance(self.model, ModelConfig):
            return one_line(self, model=encoder_name(self.model, self.model))
        # Complete, because a system's choices are cached under it.
        named = [f"{spec.name}={getattr(self, spec.name)!r}" for spec in fields(self) if spec.repr]
        return f"Dense({', '.join(named)})"

    @cached_property
    def _resolved(self) -> Resolved | None:
        """Load the model; None if it is an encoder already."""
        if isinstance(self.model, ModelConfig):
            return resolve(self.model, self.device)
        return self.model if isinstance(self.model, Resolved) else None

    @cached_property
    def encoder(self) -> TextEncoder:
        """Return the model's encoder, loaded once."""
        model: object = self.model if self._resolved is None else self._resolved.encoder
        encoder: Any = InMemoryEncoder(model) if is_sentence_transformer(model) else model
        if self.claim_length is not None:
            allowed = f"8 to {encoder.settings.max_length}, with a model that PyTorch runs"
            can_cut = hasattr(encoder, "with_claim_length")
            is_shorter = self.claim_length <= encoder.settings.max_length
            require(can_cut and is_shorter, "claim_length", self.claim_length, allowed)
            encoder = encoder.with_claim_length(self.claim_length)
        return cast(TextEncoder, encoder)

    @cached_property
    def rendered_as(self) -> Rendering:
        """Return the rendering of records: that of a checkpoint's training, else the given one."""
        resolved, given = self._resolved, self.rendering
        if resolved is not None and (given is not None or resolved.rendering is not None):
            given = resolved.rendering_for(given)
        own = given or Rendering(sources=self.sources)
        return own if self.other_sources is None else replace(own, sources=self.other_sources)

    @property
    def recorded_model(self) -> ModelConfig | None:
        """Return the settings by which an index names the model; None for an encoder."""
        named = self.recorded
        if named is None and isinstance(self.model, ModelConfig):
            named = self.model
        if named is None:
            return None
        # Only the user may allow what a model runs or reads, not a file.
        return replace(named, allow_remote_code=(), allow_bin=())

    def index(self, sources: Sequence[Source]) -> DenseIndex:
        """Return the index of these sources; its first search encodes them."""
        return DenseIndex(
            sources,
            self.encoder,
            self.rendered_as,
            store=self.store,
            progress=self.progress,
            model=self.recorded_model,
        )


class DenseIndex:
    """Search sources by the vectors of an encoder; `model` names it."""

    def __init__(
        self,
        sources: Sequence[Source],
        encoder: TextEncoder,
        rendering: Rendering | None = None,
        *,
        store: Store | None = None,
        progress: bool = False,
        model: object = None,
    ) -> None:
        self.rendering = rendering or Rendering()
        self._sources, self.encoder, self._model = as_sources(sources), encoder, model
        self._store, self._progress = store, progress
        self._vectors: VectorIndex | None = None
        self._sources_hash: str | None = None
        # Vectors of the last search's claims by text: a fusion needs some of them again.
        self._last: tuple[dict[str, int], np.ndarray] | None = None

    def __repr__(self) -> str:
        count = len(self._sources) if self._vectors is None else len(self._vectors.ids)
        return one_line(self, sources=count, model=encoder_name(self._model, self.encoder))

    def _built(self) -> tuple[VectorIndex, Cost]:
        """Return the index of the vectors, and the cost of building it in this call."""
        if self._vectors is not None:
            return self._vectors, Cost()
        texts = self.rendering.source_texts(self._sources)
        vectors, cost = self._encode(texts, "source")
        ids = [source.id for source in self._sources]
        self._vectors = VectorIndex(ids, vectors)
        return self._vectors, cost

    def _encode(self, texts: Sequence[str], side: Side) -> tuple[np.ndarray, Cost]:
        progress = f"{side}s" if self._progress else None
        return self.encoder.encode(texts, side, store=self._store, progress=progress)

    def _encode_claims(self, texts: Sequence[str]) -> tuple[np.ndarray, Cost]:
        """Return vectors [claims, d], those of the last search if it had all these texts."""
        if self._last is not None and all(text in self._last[0] for text in texts):
            rows, vectors = self._last
            return vectors[[rows[text] for text in texts]], Cost()
        vectors, cost = self._encode(texts, "claim")
        if self._store is None:
            self._last = {text: row for row, text in enumerate(texts)}, vectors
        return vectors, cost

    def search(self, claims: Claims, k: int = 100) -> Result:
        """Rank the best `k` sources of every claim, or read that ranking from the store."""
        started = time.perf_counter()
        reset_peak_memory()
        claims, k = as_claims(claims), whole_number(k, "k")
        texts = self.rendering.claim_texts(claims)

        def search() -> Result:
            index, built = self._built()
            vectors, read = self._encode_claims(texts)
            run = index.rank(claims, vectors, k)
            cost = Cost(
                time.perf_counter() - started,
                len(claims),
                peak_memory(),
                built.tokens + read.tokens,
                built.reused + read.reused,
            )
            return Result(run, cost=cost)

        return read_or_search(self._store, self._run_key(claims, texts, k), search)

    def _run_key(
        self, claims: Sequence[Claim], texts: Sequence[str], k: int
    ) -> dict[str, Any] | None:
        """Return the key of a run, with all it depends on; None without a store or in training."""
        if self._store is None or (stage := self._stage_key(self._store)) is None:
            return None
        if self._sources_hash is None:
            source_texts = self.rendering.source_texts(self._sources)
            self._sources_hash = sources_hash(self._sources, source_texts)
        return {**stage, **request_key(claims, texts, self._sources_hash, k)}

    def _stage_key(self, store: Store) -> dict[str, Any] | None:
        """Return the part of the key without claims and sources; None during training."""
        import faiss

        encoders = encoder_keys(self.encoder)
        if encoders is None:
            return None
        return {
            "stage": "dense",
            **encoders,
            "vectors": "float32",
            "versions": {
                "faiss": faiss.__version__,
                **{name: version(name) for name in ("torch", "transformers")},
            },
        }


def encoder_name(model: object, encoder: object) -> str:
    """Return a model's name for a `repr`: that of its settings, else its class."""
    return str(getattr(model, "name", None) or type(encoder).__name__)


def of_model(keys: object) -> object:
    """Return the keys of encoders without the versions of libraries."""
    if isinstance(keys, list):
        return [of_model(key) for key in keys]
    if not isinstance(keys, Mapping):
        return keys
    return {name: of_model(value) for name, value in keys.items() if name != "libraries"}


def unit_vectors(vectors: np.ndarray) -> np.ndarray:
    """Scale vectors [n, d] to length 1; zero vectors are unchanged."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    scaled: np.ndarray = vectors / np.maximum(lengths, np.finfo(np.float32).tiny)
    return scaled


def encoder_keys(encoder: TextEncoder) -> dict[str, Any] | None:
    """Return the identities of the vectors of claims and sources; None during training."""
    sources = encoder.source_encoder or encoder
    keys = {"claim": encoder.key(), "source": sources.key()}
    if None in keys.values():
        return None
    return {
        "encoders": keys,
        "template": asdict(encoder.settings.template),
        "source_template": asdict(sources.settings.template),
    }
