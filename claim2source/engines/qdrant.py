"""Store papers in a collection of Qdrant: on a server, or a cluster of them.

BM25's weights are sparse vectors: what a term weighs in a paper is made here, with an average
length that is frozen until the next build; how rare it is, Qdrant counts when it is asked.
"""

from __future__ import annotations

import base64
import contextlib
import json
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Any, Self

import numpy as np

from claim2source.core.config import require
from claim2source.core.errors import InputError, UserError
from claim2source.datasets.papers import Paper
from claim2source.engines.address import KEY, Address
from claim2source.engines.columns import (
    PAPER,
    SENTENCES,
    half_of,
    paper_of,
    schema_of,
    table_of,
)
from claim2source.engines.engine import Engine, Hits, Stats
from claim2source.engines.lease import RENEW, Lease
from claim2source.engines.manifest import IndexManifest
from claim2source.engines.probes import MIXED, QUERIES, TARGET, chosen_probes, sampled_queries
from claim2source.engines.rows import EVERYWHERE, Rows, Where, venue_key

DENSE, SPARSE = "dense", "terms"
# Fields of a collection's metadata.
MANIFEST, WRITER = "claim2source", "claim2source_writer"
# Below so many papers every vector is compared, and terms are counted over living papers only.
EXACT = 50_000
# Weights are made again where the average length they were made with is off by a larger share:
# a score is off by less than this share of itself.
DRIFT = 2e-5
# Papers in a request: 4,096 numbers of a vector are 80 kB of JSON, those of 40 sentences 440 kB,
# and a server takes 32 MB.
WRITTEN, READ, LENGTHS = 32, 256, 10_000
# The most papers that a search of the graph looks at (`hnsw_ef`).
EF = 4096
# Seconds between questions whether a server has built its graph.
PAUSE = 0.5
# Of papers without terms: a point without a sparse vector would not count as a paper.
_NO_TERM = 0


class QdrantEngine(Engine):
    """Search a collection of Qdrant."""

    def __init__(
        self, address: Address, client: Any, manifest: IndexManifest, *, exact_below: int = EXACT
    ) -> None:
        self.address, self.manifest, self.where = address, manifest, str(address)
        self.exact_below = exact_below
        self._client = client
        self._lease: Lease | None = None

    @classmethod
    def create(cls, place: str | Path, manifest: IndexManifest, **options: Any) -> Self:
        """Make an empty index where there is no such collection, and lock it."""
        from qdrant_client import models

        analysis = manifest.bm25.analysis
        require(analysis == "terms", "bm25.analysis", analysis, "terms")
        address = Address.parsed(place)
        made = cls(address, address.connect(), manifest, **options)
        if made._metadata() is not None:
            why = "exists and is not an index: it is not replaced"
            raise InputError.at(str(address), why=why)
        replicas = address.replicas
        made._ask(
            "create_collection",
            vectors_config={
                DENSE: models.VectorParams(
                    size=manifest.dimensions,
                    distance=models.Distance.DOT,
                    datatype=models.Datatype.FLOAT16,
                )
            },
            sparse_vectors_config={SPARSE: models.SparseVectorParams(modifier=models.Modifier.IDF)},
            shard_number=address.shards,
            replication_factor=replicas,
            # What is acknowledged lies on most of the replicas.
            write_consistency_factor=None if replicas is None else replicas // 2 + 1,
            metadata={MANIFEST: _written(manifest)},
        )
        if MANIFEST not in (made._metadata() or {}):
            made._ask("delete_collection")
            raise UserError(f"{address}: the server keeps no manifest; Qdrant 1.20 or later does")
        made._index_fields()
        made.lock()
        return made

    @classmethod
    def open(cls, place: str | Path, **options: Any) -> Self:
        """Open an index. Raises `UserError` where there is none, or no server answers."""
        address = Address.parsed(place)
        found = cls._found(address)
        if found is None:
            raise InputError.at(str(address), why="there is no such collection")
        client, metadata = found
        return cls(address, client, _manifest_of(metadata, address), **options)

    @classmethod
    def exists(cls, place: str | Path) -> bool:
        """Tell whether a collection is there that is an index."""
        found = cls._found(Address.parsed(place))
        return found is not None and MANIFEST in found[1]

    @classmethod
    def _found(cls, address: Address) -> tuple[Any, dict[str, Any]] | None:
        """Return a client and the collection's metadata; None where there is no collection."""
        if not address.is_there:
            return None
        client = address.connect()
        metadata = _metadata(client, address)
        return None if metadata is None else (client, metadata)

    def _metadata(self) -> dict[str, Any] | None:
        return _metadata(self._client, self.address)

    def _ask(self, method: str, **values: Any) -> Any:
        return _ask(self._client, self.address, method, **values)

    def lock(self) -> None:
        """Keep other writers out until `close`, as far as a server can.

        The collection names its writer, who looks there before each write. Two that begin within
        the same moment may both see none; the first then stops at its next write.
        """
        if self._lease is not None:
            return
        metadata = self._metadata() or {}
        held = Lease.read(metadata.get(WRITER))
        if held is not None and held.holds:
            raise UserError(f"{self.where}: in use by {held}; wait for it, or stop it")
        # Another process may have built it since it was opened.
        self.manifest = _manifest_of(metadata, self.address)
        lease = Lease()
        self._ask("update_collection", metadata={WRITER: lease.written()})
        self._lease = lease
        self._hold()

    def _hold(self) -> None:
        """Lock, or look whether the lock is still ours, and renew it."""
        self.lock()
        assert self._lease is not None
        held = Lease.read((self._metadata() or {}).get(WRITER))
        if held is None or held.token != self._lease.token:
            self._lease = None
            raise UserError(f"{self.where}: {held or 'another process'} took over as its writer")
        fresh = Lease(token=self._lease.token)
        if fresh.until - self._lease.until > RENEW:
            self._ask("update_collection", metadata={WRITER: fresh.written()})
            self._lease = fresh

    def close(self) -> None:
        """Let others write; safe to call twice."""
        lease, self._lease = self._lease, None
        if lease is None:
            return
        # A server that is gone cannot be told; the lease then ends by itself.
        with contextlib.suppress(UserError):
            held = Lease.read((self._metadata() or {}).get(WRITER))
            if held is not None and held.token == lease.token:
                self._ask("update_collection", metadata={WRITER: ""})

    def upsert(self, rows: Rows) -> None:
        """Add papers, and replace those whose ids are there; each part counts once acknowledged."""
        if not len(rows):
            return
        self._hold()
        schema = schema_of(self.manifest.dimensions, self.manifest.sentences > 0)
        payloads = table_of(rows, schema).drop_columns(["vector"]).to_pylist()
        for payload in payloads if self.manifest.sentences else ():
            payload[SENTENCES] = base64.b64encode(payload[SENTENCES]).decode("ascii")
        if self.stamps([payload["id"] for payload in payloads]):
            self._make_stale()
        mean = float(np.mean([payload["length"] for payload in payloads]))
        average = self.manifest.average_length or mean
        for start in range(0, len(payloads), WRITTEN):
            part = payloads[start : start + WRITTEN]
            vectors = rows.vectors[start : start + WRITTEN].astype(np.float32).tolist()
            self._ask("upsert", wait=True, points=self._points(part, vectors, average))

    def _points(
        self, payloads: list[dict[str, Any]], vectors: list[list[float]], average: float
    ) -> list[Any]:
        from qdrant_client import models

        return [
            models.PointStruct(
                id=_point_id(payload["id"]),
                vector={DENSE: vector, SPARSE: self._weights(payload["terms"], average)},
                payload={**payload, "average": average, "fresh": True},
            )
            for payload, vector in zip(payloads, vectors, strict=True)
        ]

    def _weights(self, text: str, average: float) -> Any:
        """Weigh a paper's terms as Lucene's BM25 does, but for how rare they are."""
        terms, k1, b = text.split(), self.manifest.bm25.k1, self.manifest.bm25.b
        norm = k1 * (1 - b + b * len(terms) / average) if terms else 0.0
        counts = Counter(terms).items()
        return _sparse((term, count / (count + norm)) for term, count in counts)

    def delete(self, ids: Sequence[str]) -> int:
        """Remove papers; return how many of them were there."""
        from qdrant_client import models

        self._hold()
        there = list(self.stamps(ids))
        if there:
            self._make_stale()
            points = models.PointIdsList(points=[_point_id(one) for one in there])
            self._ask("delete", wait=True, points_selector=points)
        return len(there)

    def note(self, **values: Any) -> None:
        """Change the manifest."""
        self.manifest = replace(self.manifest, **values)
        self._ask("update_collection", metadata={MANIFEST: _written(self.manifest)})

    def build(self, say: Callable[[str], None] = lambda line: None) -> None:
        """Weigh terms by the average length of now, wait for the server, measure the recall."""
        from qdrant_client import models

        self._hold()
        self._index_fields()
        papers = total = 0
        for points in self._scrolled(LENGTHS, with_payload=["length"]):
            papers += len(points)
            total += sum(int(_field(self.address, point, "length")) for point in points)
        average = total / papers if papers else 0.0
        # Where this is stopped it goes on, whatever was weighed by then.
        self._weigh_again(average)
        self._ask(
            "set_payload",
            payload={"fresh": False},
            points=models.Filter(must=[_is("fresh", True)]),
            wait=True,
        )
        found: dict[str, Any] = {"probes": 0, "recall": 1.0}
        if papers >= self.exact_below:
            found = self._tune(papers, say)
        self.note(papers=papers, average_length=average, stale=False, **found)

    def _weigh_again(self, average: float) -> None:
        from qdrant_client import models

        near = models.Range(gte=average * (1 - DRIFT), lte=average * (1 + DRIFT))
        off = models.Filter(must_not=[models.FieldCondition(key="average", range=near)])
        for points in self._scrolled(READ, with_payload=["terms"], scroll_filter=off):
            self._hold()
            weighed = [
                models.PointVectors(
                    id=point.id,
                    vector={SPARSE: self._weights(_field(self.address, point, "terms"), average)},
                )
                for point in points
            ]
            self._ask("update_vectors", points=weighed, wait=True)
            ids = [point.id for point in points]
            self._ask("set_payload", payload={"average": average}, points=ids, wait=True)

    def _tune(self, papers: int, say: Callable[[str], None]) -> dict[str, Any]:
        """Choose how many papers a search of the graph looks at, once the graph is there."""
        from qdrant_client import models

        while str(getattr(self._ask("get_collection").status, "value", "green")) == "yellow":
            self._hold()
            time.sleep(PAUSE)
        sampled = self._ask(
            "query_points",
            query=models.SampleQuery(sample=models.Sample.RANDOM),
            limit=min(MIXED * QUERIES, papers),
            with_vectors=[DENSE],
        ).points
        queries = sampled_queries(_vectors(sampled))
        chosen = chosen_probes(
            queries,
            EF,
            exact=lambda vector, k: self._nearest(vector, k, EVERYWHERE, 0),
            probed=lambda vector, k, probes: self._nearest(vector, k, EVERYWHERE, probes),
        )
        say(
            f"hnsw_ef {chosen.probes}: recall@{chosen.k} {chosen.recall:.4f} on {len(queries)} "
            f"sampled queries (at least {TARGET})"
        )
        return {"probes": chosen.probes, "recall": chosen.recall}

    def _index_fields(self) -> None:
        """Have a server index what is filtered by; it changes nothing that is indexed already."""
        if self.address.folder is not None:
            return
        from qdrant_client.models import PayloadSchemaType as Kind

        kinds = {"day": Kind.INTEGER, "lang": Kind.KEYWORD, "venue_key": Kind.KEYWORD}
        for name, kind in (kinds | {"average": Kind.FLOAT, "fresh": Kind.BOOL}).items():
            self._ask("create_payload_index", field_name=name, field_schema=kind, wait=True)

    def dense(self, vector: np.ndarray, k: int, where: Where = EVERYWHERE) -> Hits:
        """Find the best `k` papers by inner product with a vector [d].

        Where few papers are left to choose from, all of them are compared.
        """
        probes = self.manifest.probes
        if probes and (chosen := _filter(where)) is not None:
            left = self._ask("count", count_filter=chosen, exact=False).count
            probes = 0 if left < self.exact_below else probes
        return self._nearest(vector, k, where, probes)

    def _nearest(self, vector: np.ndarray, k: int, where: Where, probes: int) -> Hits:
        """Look at `probes` papers of the graph; 0: at all there are."""
        from qdrant_client import models

        params = models.SearchParams(hnsw_ef=probes) if probes else models.SearchParams(exact=True)
        # Local mode compares everything, and would warn.
        local = self.address.folder is not None
        return self._hits(
            vector.astype(np.float32).tolist(), DENSE, k, where, None if local else params
        )

    def lexical(self, terms: Sequence[str], k: int, where: Where = EVERYWHERE) -> Hits:
        """Find the best `k` papers that hold one of the terms, by BM25."""
        from qdrant_client import models

        if not terms:
            return []
        params = None
        if self.manifest.papers < self.exact_below:
            # By itself a server counts removed papers until it tidies up.
            params = models.SearchParams(idf=models.IdfCorpusParams(corpus=models.Filter()))
        return self._hits(_sparse(Counter(terms).items()), SPARSE, k, where, params)

    def _hits(self, query: Any, using: str, k: int, where: Where, params: Any) -> Hits:
        if k < 1 or where.ids == ():
            return []
        found = self._ask(
            "query_points",
            query=query,
            using=using,
            limit=k,
            query_filter=_filter(where),
            search_params=params,
            with_payload=["id"],
        )
        return [(_field(self.address, point, "id"), float(point.score)) for point in found.points]

    def fetch(self, ids: Sequence[str]) -> dict[str, Paper]:
        """Read papers by id."""
        points = self._read(ids, PAPER)
        papers = (_paper(self.address, point) for point in points)
        return {paper.source.id: paper for paper in papers}

    def stamps(self, ids: Sequence[str]) -> dict[str, str]:
        """Read the stamps of papers by id."""
        points = self._read(ids, ("id", "stamp"))
        return {
            _field(self.address, point, "id"): _field(self.address, point, "stamp")
            for point in points
        }

    def sentences(self, ids: Sequence[str]) -> dict[str, tuple[str, np.ndarray]]:
        """Read the stamps of papers by id, and the vectors of their sentences."""
        if not self.manifest.sentences:
            return {}
        points = self._read(ids, ("id", "stamp", SENTENCES))
        return {
            _field(self.address, point, "id"): (
                _field(self.address, point, "stamp"),
                self._sentences(point),
            )
            for point in points
        }

    def _sentences(self, point: Any) -> np.ndarray:
        stored = base64.b64decode(_field(self.address, point, SENTENCES))
        return half_of(stored, self.manifest.dimensions)

    def _read(self, ids: Sequence[str], fields: Sequence[str]) -> Iterator[Any]:
        points = [_point_id(one) for one in ids]
        for start in range(0, len(points), READ):
            part = points[start : start + READ]
            yield from self._ask("retrieve", ids=part, with_payload=list(fields))

    def rows(self, size: int = 2048) -> Iterator[Rows]:
        """Yield everything that is stored, at most `size` papers at a time.

        Pages are read one after another: what is written meanwhile may be in it or not.
        """
        for points in self._scrolled(min(size, READ), with_payload=True, with_vectors=[DENSE]):
            yield Rows(
                [_paper(self.address, point) for point in points],
                [_field(self.address, point, "terms") for point in points],
                _vectors(points),
                [_field(self.address, point, "stamp") for point in points],
                [*map(self._sentences, points)] if self.manifest.sentences else None,
            )

    def _scrolled(self, size: int, **values: Any) -> Iterator[list[Any]]:
        offset: Any = None
        while True:
            points, offset = self._ask("scroll", limit=size, offset=offset, **values)
            if points:
                yield points
            if offset is None:
                return

    def stats(self) -> Stats:
        """Count what is stored; a server does not say how large it is."""
        from qdrant_client import models

        fresh = models.Filter(must=[_is("fresh", True)])
        papers, unbuilt = (
            int(self._ask("count", count_filter=chosen, exact=True).count)
            for chosen in (None, fresh)
        )
        return Stats(papers, unbuilt)


def _ask(client: Any, address: Address, method: str, **values: Any) -> Any:
    """Call a client's method for the collection. Raises `UserError` in one line."""
    from qdrant_client.http.exceptions import ResponseHandlingException, UnexpectedResponse

    try:
        return getattr(client, method)(address.collection, **values)
    except ResponseHandlingException as error:
        why = " ".join(str(error).split())[:200] or type(error.source).__name__
        raise UserError(
            f"{address}: the server cannot be reached, or is no Qdrant: {why}"
        ) from None
    except UnexpectedResponse as error:
        if error.status_code in (401, 403):
            why = f"refuses the key in {KEY}" if address.key else f"asks for a key: set {KEY}"
        elif error.status_code == 404:
            why = "has no such collection"
        else:
            why = f"answers {error.status_code}: {' '.join(str(error).split())[:300]}"
        raise UserError(f"{address}: the server {why}") from None


def _metadata(client: Any, address: Address) -> dict[str, Any] | None:
    """Read a collection's metadata; None where there is no such collection."""
    if not _ask(client, address, "collection_exists"):
        return None
    return dict(_ask(client, address, "get_collection").config.metadata or {})


def _written(manifest: IndexManifest) -> str:
    return json.dumps(asdict(manifest))


def _manifest_of(metadata: dict[str, Any], address: Address) -> IndexManifest:
    """Read the manifest in a collection's metadata. Raises `InputError` where there is none."""
    if not isinstance(text := metadata.get(MANIFEST), str):
        raise InputError.at(str(address), why="a collection, but not an index: it has no manifest")
    manifest = IndexManifest.parsed(text, Path(str(address)))
    if manifest.index != "qdrant":
        raise InputError.at(str(address), field="index", why=f"an index of {manifest.index}")
    return manifest


def _point_id(paper: str) -> str:
    """Name the point of a paper: Qdrant's points have numbers or UUIDs."""
    return str(uuid.UUID(bytes=sha256(paper.encode("utf-8", "surrogatepass")).digest()[:16]))


def _number(term: str) -> int:
    """Number a term. Of a million terms one in 4,300 shares its number with another."""
    return 1 + int.from_bytes(blake2b(term.encode(), digest_size=8).digest()) % (2**32 - 1)


def _sparse(values: Iterable[tuple[str, float]]) -> Any:
    from qdrant_client import models

    weights: Counter[int] = Counter()
    for term, value in values:
        weights[_number(term)] += value  # type: ignore[assignment]
    weights = weights or Counter({_NO_TERM: 1})
    return models.SparseVector(indices=list(weights), values=list(weights.values()))


def _is(name: str, value: str | bool) -> Any:
    from qdrant_client import models

    return models.FieldCondition(key=name, match=models.MatchValue(value=value))


def _filter(where: Where) -> Any:
    """Write a filter in Qdrant's conditions; None where all papers are meant."""
    from qdrant_client import models

    parts: list[Any] = []
    if where.last_day is not None:
        # Unknown days are 0.
        parts.append(models.FieldCondition(key="day", range=models.Range(lte=where.last_day)))
    if where.language is not None:
        parts.append(_is("lang", where.language))
    if where.venue is not None:
        parts.append(_is("venue_key", venue_key(where.venue)))
    if where.ids is not None:
        parts.append(models.HasIdCondition(has_id=[_point_id(one) for one in where.ids]))
    return models.Filter(must=parts) if parts else None


def _field(address: Address, point: Any, name: str) -> Any:
    try:
        return point.payload[name]
    except (KeyError, TypeError):
        raise InputError.at(str(address), why=f"point {point.id} is no paper of ours") from None


def _paper(address: Address, point: Any) -> Paper:
    return paper_of({name: _field(address, point, name) for name in PAPER})


def _vectors(points: Sequence[Any]) -> np.ndarray:
    return np.array([point.vector[DENSE] for point in points], dtype=np.float16)
