"""Encode papers into the store with the workers of a Ray cluster."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from claim2source.core.arguments import is_digits
from claim2source.core.errors import UserError
from claim2source.core.progress import Progress
from claim2source.data.paper_files import Format, PaperFiles
from claim2source.data.store import Store
from claim2source.models import ModelConfig
from claim2source.search.growing import PaperEncoder, fill_store
from claim2source.text import Rendering

# Parts of the work per worker: if a worker is slow or its machine is lost, others take over.
PARTS = 4


@dataclass(frozen=True)
class FillJob:
    """Work of every worker: papers, model, and the store for the vectors.

    `source` and `store` are paths that every machine of the cluster can access.
    """

    source: str
    columns: Mapping[str, str]
    format: Format | None
    lenient: bool
    model: ModelConfig
    device: Literal["cpu", "cuda"] | None
    rendering: Rendering
    store: Path
    sentences: bool
    batch: int


class FillWorker:
    """Encode parts of the papers, with one model and one store for all of them."""

    def __init__(self, job: FillJob, parts: int) -> None:
        import ray

        from claim2source.models import resolve

        self.job = job
        self.parts = parts
        self.node = ray.get_runtime_context().get_node_id()
        encoder = resolve(job.model, job.device).encoder
        store = Store(job.store, keeps_open=True)
        self.encoder = PaperEncoder(encoder, job.rendering, store, job.sentences)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Encode the parts numbered in `id`; return each part's count of papers, or its error."""
        job = self.job
        counts: list[int] = []
        errors: list[str] = []
        papers = PaperFiles.of(job.source, job.columns, job.format, job.lenient)
        papers.check = False
        for part in batch["id"]:
            count, error = 0, ""
            try:
                count = fill_store(papers, self.encoder, int(part), self.parts, batch=job.batch)
            except UserError as failure:
                error = str(failure)
            counts.append(count)
            errors.append(error)
        nodes = [self.node] * len(counts)
        return {"count": np.array(counts), "error": np.array(errors), "node": np.array(nodes)}


def fill_by_ray(
    job: FillJob, address: str | None = None, workers: int | None = None, progress: bool = False
) -> tuple[int, int]:
    """Encode papers into the store with Ray Data; count them, and the machines that encoded them.

    `address` is that of a cluster; None: that of RAY_ADDRESS, or a cluster on only this machine,
    which ends with the call. By default there is a worker for each of its GPUs or, without any,
    CPUs. Encoded papers stay in the store, whatever is killed. Raises `UserError` if no cluster can
    be reached, or if a worker fails.
    """
    # A cluster that is started here must not send usage statistics.
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise UserError(
            f"launcher ray needs {error.name}, which is not installed; "
            "pip install 'claim2source[ray]'"
        ) from None
    own = not ray.is_initialized()
    if own:
        _join_cluster(address or os.environ.get("RAY_ADDRESS") or None)
    try:
        return _fill(job, workers, progress)
    except ray.exceptions.RayError as error:
        raise UserError(f"ray: {_last_line(error)}") from error
    finally:
        if own:
            ray.shutdown()


def _join_cluster(address: str | None) -> None:
    """Join the cluster at an address; None: start one. Raises `UserError` if there is none."""
    import ray

    try:
        _require_listener(address)
        ray.init(
            address=address,
            include_dashboard=None if address else False,
            log_to_driver=False,
            logging_level=logging.WARNING,
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise UserError(f"ray: no cluster at {address}: {_last_line(error)}") from None


def _fill(job: FillJob, workers: int | None, progress: bool) -> tuple[int, int]:
    """Encode all parts with the workers of the cluster; count papers and machines."""
    import ray
    import ray.data

    resources = ray.cluster_resources()
    gpus = 0
    if job.device != "cpu":
        gpus = int(resources.get("GPU", 0))
    workers = workers or gpus or max(1, int(resources.get("CPU", 1)))
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    for name in ("ray", "ray.data"):
        logging.getLogger(name).setLevel(logging.ERROR)

    parts = workers * PARTS
    # Not `range`, because reading it would wait for a CPU that workers use.
    numbers = ray.data.from_items([{"id": i} for i in range(parts)], override_num_blocks=parts)
    results = numbers.map_batches(
        FillWorker,
        fn_constructor_args=(job, parts),
        batch_size=1,
        compute=ray.data.ActorPoolStrategy(size=workers),
        num_cpus=1,
        num_gpus=1 if gpus else 0,
    )
    encoded = 0
    nodes: set[str] = set()
    with Progress("parts" if progress else None, parts) as bar:
        for row in results.iter_rows():
            if row["error"]:
                raise UserError(row["error"])
            encoded += int(row["count"])
            nodes.add(row["node"])
            bar.update()
    return encoded, len(nodes)


def _require_listener(address: str | None) -> None:
    """Raise OSError if nothing listens at HOST:PORT: Ray would try for minutes."""
    host, _, port = (address or "").rpartition(":")
    if host and "/" not in host and is_digits(port):
        socket.create_connection((host, int(port)), timeout=10).close()


def _last_line(error: BaseException) -> str:
    """Return the last line of a worker's error, without its traceback."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
