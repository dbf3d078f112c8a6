"""Manifest of an index: encoder, analyser, BM25, and measurements of the last build."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self

from claim2source.core.config import require
from claim2source.core.errors import InputError, UserError
from claim2source.core.files import content_hash
from claim2source.core.validate import parsed_json, validated
from claim2source.models import ENGLISH, ModelConfig
from claim2source.search.analyser import Analyser
from claim2source.search.bm25 import BM25
from claim2source.search.dense import Dense, TextEncoder, encoder_keys, of_model
from claim2source.search.files import IndexFiles, open_files
from claim2source.search.rows import SPLIT
from claim2source.search.translator import TranslatorConfig
from claim2source.text import Rendering

log = logging.getLogger(__name__)

MANIFEST = "manifest.json"
# LanceDB's BM25 settings.
K1, B = 1.2, 0.75
_WIDEST = 65_536
# Number of BM25's first papers to encode for a post. On 300 train posts of ct25 MiniLM has an MRR@5
# of 0.559 with 10, 0.572 with 20, 0.578 with 30, 0.580 with 50, 0.575 with 100; BM25 alone 0.544.
FIRST = 30
# Their number is the root of the papers'.
_MOST_PARTITIONS = 2**24
_TABLE = re.compile(r"[a-z0-9-]{1,64}")


def check_bm25(bm25: BM25) -> None:
    """Raise `ConfigError` for settings that LanceDB's BM25 does not support."""
    require(bm25.analysis == "terms", "bm25.analysis", bm25.analysis, "terms")
    require(bm25.k1 == K1, "bm25.k1", bm25.k1, f"{K1}: fixed by LanceDB")
    require(bm25.b == B, "bm25.b", bm25.b, f"{B}: fixed by LanceDB")
    require(bm25.posts is None, "bm25.posts", bm25.posts, "none: an index holds only papers")


@dataclass(frozen=True)
class IndexManifest:
    """Describe an index.

    `encoders` names everything that its vectors were made by, `analyser` the code that made its
    terms. What follows is of the last build: `papers`; where
    the vectors are divided into `partitions` (0 or 1: all are compared), of which `probes` are
    searched with the sampled `recall`, on `trained` papers. `stale`: papers were replaced or
    removed since then. `abstain` is the model of abstention (`find.abstention.AbstainModel`) that
    was fitted to the index.
    `names` is the weight of authors and venues in the lexical search. `translator` is what
    translates posts; who did not make the index allows it first (`find.allowed`). `table` is where
    the papers
    are. `sentences` is the version of the split (`search.rows.SPLIT`) of the sentences whose
    vectors it keeps; 0: it keeps none. `encoded_first` is how many of a post's first papers by
    terms are encoded when it is asked about, as no paper's vector is stored; 0: all are.
    `refined`: partitions hold codes of the vectors, and of the best by these so many times as are
    wanted are compared in full; 0: partitions hold vectors in full.
    """

    encoders: Mapping[str, object]
    model: ModelConfig | None
    rendering: Rendering
    bm25: BM25
    analyser: Mapping[str, str]
    dimensions: int
    papers: int = 0
    partitions: int = 0
    probes: int = 0
    recall: float = 1.0
    trained: int = 0
    stale: bool = False
    abstain: Mapping[str, object] | None = None
    sentences: int = 0
    names: float = 0.0
    translator: TranslatorConfig | None = None
    encoded_first: int = 0
    refined: int = 0
    table: str = "papers"
    index: Literal["lancedb"] = "lancedb"
    format: Literal[2] = 2

    def __post_init__(self) -> None:
        check_bm25(self.bm25)
        counts = (self.papers, self.partitions, self.probes, self.trained, self.sentences)
        if min(*counts, self.encoded_first, self.refined) < 0 or not 0 < self.dimensions <= _WIDEST:
            raise ValueError("counts must be 0 or more, and dimensions from 1 to 65536")
        if self.partitions > _MOST_PARTITIONS:
            raise ValueError(f"partitions must be at most {_MOST_PARTITIONS}")
        if self.probes > self.partitions or (self.partitions > 0) != (self.probes > 0):
            raise ValueError("probes must be from 1 to partitions, or both 0")
        if not (0 <= self.recall <= 1 and 0 <= self.names <= 100):
            raise ValueError("recall must be from 0 to 1, and names from 0 to 100")
        if self.encoded_first and (self.sentences or self.partitions):
            raise ValueError("encoded_first must be 0 if vectors are stored")
        if not _TABLE.fullmatch(self.table):
            raise ValueError("table must be a name of small letters, digits and -")

    @classmethod
    def of(
        cls,
        dense: Dense,
        bm25: BM25 | None = None,
        sentences: bool = True,
        vectors: bool = True,
    ) -> Self:
        """Make the manifest of a new index that `dense` encodes, at search time without `vectors`.

        Raises `UserError` during training, because such vectors cannot be identified later.
        """
        keys = encoder_keys(dense.encoder)
        if keys is None:
            raise UserError("weights in training have no name, so they cannot make an index")
        bm25 = bm25 or BM25()
        source: Any = dense.encoder.source_encoder or dense.encoder
        return cls(
            json.loads(json.dumps(keys)),
            dense.recorded_model,
            dense.rendered_as,
            bm25,
            Analyser(bm25).versions,
            source.dimensions,
            sentences=SPLIT if sentences and vectors else 0,
            encoded_first=0 if vectors else FIRST,
        )

    @classmethod
    def read(cls, files: IndexFiles, name: str = MANIFEST) -> Self:
        """Read the manifest of an index. Raises `InputError` with the wrong field."""
        data, path = files.read(name), f"{files.uri}/{name}"
        if data is None:
            reason = files.absence_reason() or f"not an index: it has no {name}"
            raise InputError(files.uri, reason=reason)
        values = parsed_json(data, path)
        if isinstance(values, dict) and values.get("format") == 1:
            reason = (
                "an older version of this program made this index; index again into another --out"
            )
            raise InputError(path, reason=reason)
        manifest = validated(cls, json.dumps(values), path)
        if manifest.model is None:
            return manifest
        # Only the user may allow what a model runs or reads, not a file.
        model = replace(manifest.model, allow_remote_code=(), allow_bin=())
        return replace(manifest, model=model)

    def write(self, files: IndexFiles, name: str = MANIFEST) -> None:
        """Write the manifest atomically."""
        text = json.dumps(asdict(self), ensure_ascii=False, indent=2, allow_nan=False)
        files.write(name, f"{text}\n".encode())

    @property
    def stored_dimensions(self) -> int:
        """Return the length of the papers' stored vectors; 0 if there are none."""
        return 0 if self.encoded_first else self.dimensions

    @property
    def post_terms(self) -> BM25:
        """Return the BM25 settings for posts, which use the translation if there is one."""
        if self.bm25.claims != "original" or self.bm25.language != "en":
            return self.bm25
        return replace(self.bm25, claims="translated")

    @property
    def post_rendering(self) -> Rendering:
        """Return the rendering of posts; an English model uses the translation if there is one."""
        name = "" if self.model is None else self.model.name
        if self.rendering.claims != "original" or name not in ENGLISH:
            return self.rendering
        return replace(self.rendering, claims="translated")

    @property
    def model_hash(self) -> str:
        """Return the identity of the model that made the vectors: its weights and settings."""
        return content_hash(of_model(self.encoders))[:12]

    def is_made_by(self, encoder: TextEncoder) -> bool:
        """Whether this model made the vectors, whatever the versions of its libraries."""
        keys = encoder_keys(encoder)
        return content_hash(of_model(keys)) == content_hash(of_model(self.encoders))

    def check_encoder(self, encoder: TextEncoder, location: str) -> None:
        """Raise `UserError` if another model made the vectors.

        Other versions of its libraries only cause a warning, because few change a vector.
        """
        if not self.is_made_by(encoder):
            model = "" if self.model is None else f", {self.model.name}"
            raise UserError(
                f"{location}: another model made this index{model}: its weights or settings differ"
            )
        if content_hash(encoder_keys(encoder)) != content_hash(self.encoders):
            log.warning("%s: other versions of the model's libraries made this index", location)

    def check_analyser(self, bm25: BM25, location: str) -> None:
        """Raise `UserError` if terms were made with other settings, or by another analysis."""
        own = asdict(self.bm25)
        for key, value in asdict(bm25).items():
            # The claim form does not affect the index.
            if key != "claims" and own[key] != value:
                have, want = getattr(self.bm25, key), getattr(bm25, key)
                reason = f"the index was made with {have}, not {want}"
                raise UserError(f"{location}: bm25.{key}: {reason}")
        mine = Analyser(bm25).versions
        if mine["analysis"] != self.analyser.get("analysis"):
            raise UserError(
                f"{location}: another version of this program made its terms; index again"
            )
        if mine != self.analyser:
            log.warning("%s: other versions of the stemmer or stop words made this index", location)


def is_engine(location: str | Path) -> bool:
    """Whether an index is there."""
    return open_files(location).stamp(MANIFEST) != ""
