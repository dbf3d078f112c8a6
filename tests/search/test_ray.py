"""Two nodes of Ray encode an index side by side; of a driver that is killed their work stays."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from claim2source.core.records import Source
from claim2source.data.store import Store
from claim2source.models import ModelConfig, resolve
from claim2source.search.engine import open_index
from claim2source.text import Rendering
from tests.shared_data import REPOSITORY

PAPERS = 8_000


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A cluster of two nodes of this machine, with a CPU each, without usage statistics."""
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    pytest.importorskip("ray", reason="needs the `ray` extra")
    from ray.cluster_utils import Cluster

    # Nodes exchange this process's handlers for their own, and leave them.
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    node = {"num_cpus": 1, "object_store_memory": 80 * 2**20, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=node)
    try:
        cluster.add_node(num_cpus=1, object_store_memory=80 * 2**20)
        yield cluster.address
    finally:
        cluster.shutdown()
        for number, handler in before.items():
            signal.signal(number, handler)


def quiet(count: Callable[[], int]) -> int:
    last, since = count(), time.monotonic()
    while time.monotonic() - since < 3:
        time.sleep(0.1)
        if (now := count()) != last:
            last, since = now, time.monotonic()
    return last


@pytest.mark.slow
def test_nodes_encode_side_by_side_and_a_killed_driver_loses_nothing(
    tmp_path: Path, tiny_folder: Path, address: str
) -> None:
    papers = tmp_path / "papers.csv"
    rows = "".join(f"{i},claim {i} {'abc'[i % 3]},vaccine {i} works\n" for i in range(PAPERS))
    papers.write_text(f"id,title,abstract\n{rows}")
    words = [sys.executable, "eval/index.py", str(papers), "--out", str(tmp_path / "idx")]
    words += ["--store", str(tmp_path / "store"), "--batch", "100", "--device", "cpu"]
    words += ["--model", str(tiny_folder), "--model.pooling", "mean", "--model.max_length", "32"]
    words += ["--launcher", "ray", "--ray", address]

    def shards() -> list[Path]:
        return list((tmp_path / "store").rglob("*.safetensors"))

    driver = subprocess.Popen(words, cwd=REPOSITORY)
    while len(shards()) < 6:
        assert driver.poll() is None
        time.sleep(0.02)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    assert not (tmp_path / "idx").exists()
    shard_count = quiet(lambda: len(shards()))  # the workers end a little later
    model = ModelConfig(name=str(tiny_folder), pooling="mean", max_length=32)
    encoder, rendering = resolve(model, "cpu").encoder, Rendering("original", "title_abstract")

    # What the processor computes in bfloat16 has a part of the store of its own.
    encoders = {id(model): model for model in (encoder, encoder.in_bfloat16())}.values()

    def count_stored() -> tuple[int, int]:
        spaces = [encoder._space(Store(tmp_path / "store")) for encoder in encoders]
        sources = [
            Source(str(i), f"claim {i} {'abc'[i % 3]}", f"vaccine {i} works") for i in range(PAPERS)
        ]
        texts = rendering.source_texts(sources)
        keys = encoder.text_keys(texts, "source")
        missing = set.intersection(*({*space.missing(keys)} for space in spaces if space))
        vectors = [part for space in spaces if space for part in space._shards]
        return sum(map(len, vectors)), PAPERS - len(missing)

    vectors, count = count_stored()
    assert 0 < count < PAPERS and count < vectors
    # The second call encodes the rest, and the index itself nothing.
    process = subprocess.run(words, cwd=REPOSITORY, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    assert f"ray: {PAPERS - count} papers encoded into the store on 2 machines" in process.stdout
    assert f"{PAPERS} added" in process.stdout and not re.search("Traceback|usage", process.stderr)
    assert count_stored() == (2 * PAPERS, PAPERS) and len(shards()) > shard_count
    rows = next(open_index(tmp_path / "idx").rows(50))
    texts = rendering.source_texts(paper.source for paper in rows.papers)
    np.testing.assert_allclose(rows.vectors, encoder.encode(texts, "source")[0], atol=0.02)
