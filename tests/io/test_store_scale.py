"""The store at size: mapped vectors, one hash a file, float16, runs, processes at once."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from claim2source.core.errors import ConfigError
from claim2source.core.run import Run
from claim2source.io import store as module
from claim2source.io.store import Store, text_key
from tests.processes import at_once

REPOSITORY = Path(__file__).resolve().parents[2]
KEYS = [text_key(text) for text in ("a", "b", "c")]
VECTORS = np.arange(12, dtype=np.float32).reshape(3, 4) / 8
MADE_BY = {"x": 1}


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that grows with every content that is hashed."""
    calls: list[int] = []
    real = module._digest

    def noted(*parts: np.ndarray) -> str:
        calls.append(len(parts))
        return real(*parts)

    monkeypatch.setattr(module, "_digest", noted)
    return calls


def shard(root: Path) -> Path:
    (path,) = root.glob("embeddings/*/*.safetensors")
    return path


def harm(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def test_vectors_are_mapped_not_read(tmp_path: Path) -> None:
    space = Store(tmp_path).space(MADE_BY)
    space.put(KEYS, VECTORS)
    for found in (space, Store(tmp_path).space(MADE_BY)):
        (vectors,) = found._vectors.values()
        assert isinstance(vectors, np.memmap) and not vectors.flags.writeable
        assert np.array_equal(found.get(KEYS[::-1]), VECTORS[::-1])


def test_a_file_is_hashed_once_and_again_when_it_changed(
    tmp_path: Path, hashed: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    Store(tmp_path).space(MADE_BY).put(KEYS, VECTORS)
    hashed.clear()
    assert Store(tmp_path).space(MADE_BY).missing(KEYS) == []
    assert len(hashed) == 1
    for _ in range(2):
        assert Store(tmp_path).space(MADE_BY).missing(KEYS) == []
    assert len(hashed) == 1
    path = shard(tmp_path)
    # As whole as before, but touched: hashed once more, and remembered again.
    os.utime(path, ns=(1, 1))
    for _ in range(2):
        assert Store(tmp_path).space(MADE_BY).missing(KEYS) == []
    assert len(hashed) == 2
    harm(path)
    with caplog.at_level(logging.WARNING):
        assert Store(tmp_path).space(MADE_BY).missing(KEYS) == [0, 1, 2]
    assert "damaged" in caplog.text and not path.exists()


def test_damage_of_the_same_size_and_time_in_a_copy_is_seen(tmp_path: Path) -> None:
    Store(tmp_path).space(MADE_BY).put(KEYS, VECTORS)
    mark = shard(tmp_path).with_suffix(".verified")
    mark.write_bytes(b"\xff\xfe")  # a mark of nonsense is written anew
    assert Store(tmp_path).space(MADE_BY).missing(KEYS) == []
    path = shard(tmp_path)
    status = path.stat()
    assert mark.read_text().split()[1] == str(status.st_size)
    other = path.with_name("copy")
    other.write_bytes(path.read_bytes())
    harm(other)
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    os.replace(other, path)
    assert Store(tmp_path).space(MADE_BY).missing(KEYS) == [0, 1, 2]


def test_float16_takes_half_the_room_in_a_space_of_its_own(tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).normal(size=(3, 4096)).astype(np.float32)
    half = Store(tmp_path, "float16").space(MADE_BY)
    half.put(KEYS, vectors)
    assert shard(tmp_path).stat().st_size < vectors.nbytes * 0.52
    for found in (half, Store(tmp_path, "float16").space(MADE_BY)):
        assert found.get(KEYS).dtype == np.float16
        assert np.array_equal(found.get(KEYS), vectors.astype(np.float16))
    assert Store(tmp_path).space(MADE_BY).missing(KEYS) == [0, 1, 2]
    with pytest.raises(ValueError, match="not finite"):
        half.put(KEYS, vectors * 1e6)
    with pytest.raises(ConfigError, match="vectors.*float32, float16"):
        Store(tmp_path, "int8")  # type: ignore[arg-type]


def some_run() -> Run:
    """Three claims, one without sources, one with candidates; a vocabulary not all used."""
    positions = np.array([[2, 0, -1], [-1, -1, -1], [1, 2, 0]])
    scores = np.array([[0.1, 1 / 3, 0], [0, 0, 0], [2, 2, 1]], dtype=np.float32)
    pool = {"c3": frozenset({"ü", "s", "t"})}
    return Run.from_topk(
        ["c1", "c2", "c3"], ["s", "ü", "t", "unused"], positions, scores, pool=pool
    )


def test_a_run_comes_back_as_it_was(tmp_path: Path) -> None:
    run = some_run()
    assert Store(tmp_path).run(MADE_BY) is None
    Store(tmp_path).put_run(MADE_BY, run, {"recall@10": 0.5})
    stored = Store(tmp_path).run(MADE_BY)
    assert stored is not None and stored.about == {"recall@10": 0.5}
    assert list(stored.run) == list(run)
    assert stored.run.claim_ids == run.claim_ids and stored.run.pool == run.pool
    assert stored.run.sources("c3") == ["ü", "t", "s"]
    assert (stored.run.codes.dtype, stored.run.scores.dtype) == (np.int32, np.float32)
    assert Store(tmp_path).run({"x": 2}) is None
    plain = Run.from_lists({"c": [("s", 1.0)], "d": []})
    Store(tmp_path).put_run({"x": 2}, plain)
    again = Store(tmp_path).run({"x": 2})
    assert again is not None and again.run.pool is None and again.about == {}
    assert again.run.claim_ids == ("c", "d")


@pytest.mark.parametrize("place", [-1, 3, 20, None])
def test_a_damaged_run_is_said_and_dropped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, place: int | None
) -> None:
    Store(tmp_path).put_run(MADE_BY, some_run())
    (path,) = (tmp_path / "runs").iterdir()
    if place is None:  # whole, but its scores are exchanged
        with safe_open(path, framework="numpy") as file:
            said = file.metadata()
        parts = load_file(path)
        save_file(parts | {"scores": parts["scores"][::-1].copy()}, path, metadata=said)
    else:
        content = bytearray(path.read_bytes())
        content[place] ^= 1
        path.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert Store(tmp_path).run(MADE_BY) is None
        assert Store(tmp_path).run(MADE_BY) is None
    (record,) = caplog.records
    assert "damaged" in record.getMessage() and str(path) in record.getMessage()


BUSY = """
import sys
import numpy as np
from pathlib import Path
from claim2source.core.run import Run
from claim2source.io.store import Store, text_key
root, seed = sys.argv[1], int(sys.argv[2])
rng = np.random.default_rng(seed)
print("ready", flush=True)
sys.stdin.readline()
for step in range(60):
    space = Store(root).space({"x": 1})
    i = int(rng.integers(12))
    keys = [text_key(f"{i} {j}") for j in range(5)]
    rows = np.array([[i, j] for j in range(5)], dtype=np.float32)
    missing = space.missing(keys)
    assert missing in ([], [0, 1, 2, 3, 4]), missing
    if missing:
        # The same shard in both processes, byte for byte.
        space.put(keys, rows)
    own = [text_key(f"{seed} {step}")]
    Store(root).space({"own": seed}).put(own, rows[:1])
    assert np.array_equal(space.get(keys), rows)
    run = Run.from_lists({f"c{i}": [("s", float(i))]})
    Store(root).put_run({"run": i}, run)
    found = Store(root).run({"run": i})
    assert found is not None and list(found.run) == [(f"c{i}", "s", float(i))]
    if step % 7 == 0:
        # A third party damages a shard now and then, as no process of ours does: by a new file.
        for path in sorted(space.folder.glob("*.safetensors"))[:1]:
            broken = path.with_name(f"broken{seed}")
            broken.write_bytes(b"no shard")
            broken.rename(path)
"""


def test_processes_that_read_write_and_find_damage_at_once(tmp_path: Path) -> None:
    """No process dies, none reads a wrong row, and whole files remain."""
    at_once(BUSY, [[str(tmp_path), seed] for seed in ("1", "2")])
    assert list(tmp_path.rglob("*.tmp")) == []
    space = Store(tmp_path).space(MADE_BY)
    for seed in (1, 2):
        # What one process alone writes and nobody damages is all there.
        own = Store(tmp_path).space({"own": seed})
        assert not own.missing([text_key(f"{seed} {step}") for step in range(60)])
    for i in range(12):
        keys = [text_key(f"{i} {j}") for j in range(5)]
        if not space.missing(keys):
            assert space.get(keys).tolist() == [[i, j] for j in range(5)]
