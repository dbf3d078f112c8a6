"""The store: a changed input is a miss, damage is logged and repaired, writes are atomic."""

import copy
import logging
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from transformers import AutoModel, AutoTokenizer

from claim2source.core.run import Run
from claim2source.data import store as module
from claim2source.data.store import Store, text_key
from claim2source.models import Encoder, EncoderSettings, Template
from claim2source.models import identity as identity_module
from tests.refusals import refused
from tests.shared_data import REPOSITORY

TEXTS = ["a b", "claim", "paper works", "a b"]
KEYS = [text_key(text) for text in ("a", "b", "c")]
VECTORS = np.arange(12, dtype=np.float32).reshape(3, 4)


@pytest.fixture(scope="module")
def parts(tiny_folder):
    return AutoModel.from_pretrained(tiny_folder).eval(), AutoTokenizer.from_pretrained(tiny_folder)


@pytest.fixture
def make(parts):
    def encoder(weights=(), template=(), config=(), **settings):
        model, tokenizer = parts
        if config:
            model = copy.copy(model)
            model.config = copy.deepcopy(model.config)
            model.config.update(dict(config))
        prefixes = Template(**{"claim": "query : ", "source": "query : "} | dict(template))
        weights_of = {"base": "b", "adapter": "a", "scale": 1.0, "tokenizer": "t"} | dict(weights)
        return Encoder(
            model,
            tokenizer,
            EncoderSettings(**{"max_length": 16} | settings, template=prefixes),
            weights_of,
        )

    return encoder


class Called(Exception):
    pass


def no_model(encoder):
    def refuse(batch):
        raise Called

    encoder.vectors = refuse
    return encoder


def test_what_was_made_once_is_read_and_only_what_is_missing_is_encoded(make, tmp_path):
    vectors, cost = make().encode(TEXTS, "claim", store=Store(tmp_path))
    assert cost.tokens > 0
    rerun, cost = no_model(make()).encode(TEXTS[::-1], "claim", store=Store(tmp_path))
    assert np.array_equal(rerun, vectors[::-1])
    assert rerun.dtype == np.float32
    assert (cost.items, cost.tokens) == (4, 0)
    # The other side has the same prefix here, so its vectors are the same ones.
    newer, _ = no_model(make()).encode(TEXTS, "source", store=Store(tmp_path))
    assert np.array_equal(newer, vectors)
    assert np.array_equal(vectors, make().encode(TEXTS, "claim")[0])
    encoder = make()
    _, cost = encoder.encode([*TEXTS, "vaccine"], "claim", store=Store(tmp_path))
    assert cost.tokens == len(encoder.tokenize(["vaccine"], "claim")[0].ids)


FLIPS = {
    "weights": {"weights": {"base": "B"}},
    "adapter": {"weights": {"adapter": "A"}},
    "scale": {"weights": {"scale": 0.5}},
    "tokenizer": {"weights": {"tokenizer": "T"}},
    "model config": {"config": {"hidden_act": "relu"}},
    "prefix": {"template": {"claim": "claim : "}},
    "pool_prefix": {"template": {"pool_prefix": False}},
    "pooling": {"pooling": "cls"},
    "normalize": {"normalize": False},
    "length": {"max_length": 17},
    "dtype": {"dtype": "bfloat16"},
}


def test_one_changed_input_is_a_miss(make, tmp_path):
    store = Store(tmp_path)
    make().encode(TEXTS, "claim", store=store)
    no_model(make()).encode(TEXTS, "claim", store=store)
    for flip in FLIPS:
        with pytest.raises(Called):
            no_model(make(**FLIPS[flip])).encode(TEXTS, "claim", store=store)
            pytest.fail(f"{flip}: not encoded again")
    with pytest.raises(Called):
        no_model(make()).encode(["a b "], "claim", store=store)
    # A masked prefix is not mistaken for text.
    masked = {"claim": "a ", "source": "", "pool_prefix": False}
    make(template=masked).encode(["b"], "claim", store=store)
    with pytest.raises(Called):
        no_model(make(template=masked)).encode(["a b"], "source", store=store)


def test_another_version_of_a_library_is_a_miss(make, tmp_path, monkeypatch):
    """peft's version if there is an adapter; torch only rounds, so its version does not matter."""
    store, real, newer = Store(tmp_path), identity_module.version, set()
    encoder_without = make()
    encoder_without.weights = {"base": "b"}
    for encoder in (make(), encoder_without):
        encoder.encode(TEXTS, "claim", store=store)
    monkeypatch.setattr(
        identity_module, "version", lambda name: "9" if name in newer else real(name)
    )
    for name in ("torch", "tokenizers", "transformers", "peft"):
        newer.add(name)
        if name == "torch":
            no_model(make()).encode(TEXTS, "claim", store=store)
        else:
            with pytest.raises(Called):
                no_model(make()).encode(TEXTS, "claim", store=store)
        if name == "peft":
            no_model(encoder_without).encode(TEXTS, "claim", store=store)
        newer.clear()
        # Existing rows are kept.
        no_model(make()).encode(TEXTS, "claim", store=store)


def test_a_stopped_run_goes_on_where_it_was(make, tmp_path, monkeypatch):
    monkeypatch.setattr("claim2source.models.encoder.SHARD_TEXTS", 1)
    encoder, vectors_of = make(), Encoder.vectors
    batches = []

    def stop_at_the_third(batch):
        if len(batches) == 2:
            raise Called
        batches.append(batch)
        return vectors_of(encoder, batch)

    encoder.vectors = stop_at_the_third
    with pytest.raises(Called):
        encoder.encode(["a", "b", "c", "works"], "claim", store=Store(tmp_path))
    _, cost = make().encode(["a", "b", "c", "works"], "claim", store=Store(tmp_path))
    assert cost.tokens == 2 * len(encoder.tokenize(["a"], "claim")[0].ids)


def shard(root: Path) -> Path:
    (path,) = root.rglob("*.safetensors")
    return path


def flip_byte(position):
    def harm(path):
        content = bytearray(path.read_bytes())
        content[position] ^= 1
        path.write_bytes(content)

    return harm


@pytest.mark.parametrize(
    "harm",
    [
        pytest.param(flip_byte(-1), id="last byte"),
        pytest.param(flip_byte(20), id="header"),
        pytest.param(lambda p: p.write_bytes(p.read_bytes()[:-7]), id="truncated"),
        pytest.param(lambda p: p.write_bytes(b""), id="empty"),
    ],
)
def test_damage_is_said_and_made_again(make, tmp_path, caplog, harm):
    vectors, _ = make().encode(TEXTS, "claim", store=Store(tmp_path))
    path = shard(tmp_path)
    content = path.read_bytes()
    harm(path)
    with caplog.at_level(logging.WARNING):
        rerun, cost = make().encode(TEXTS, "claim", store=Store(tmp_path))
    assert np.array_equal(rerun, vectors)
    assert cost.tokens > 0
    (record,) = caplog.records
    assert str(path) in record.getMessage()
    assert "damaged" in record.getMessage()
    assert shard(tmp_path).read_bytes() == content
    no_model(make()).encode(TEXTS, "claim", store=Store(tmp_path))


def test_keys_that_were_exchanged_are_damage_which_is_said_once(tmp_path, caplog):
    Store(tmp_path).space({"x": 1}).put(KEYS, VECTORS)
    path = shard(tmp_path)
    content = load_file(path)
    content["keys"] = content["keys"][::-1].copy()
    save_file(content, path, metadata={"sha256": path.stem})
    for _ in range(2):
        # Rows may be computed again in other shards: the damaged one must be removed.
        Store(tmp_path).space({"x": 1}).put(KEYS[:1], VECTORS[:1])
    assert len(caplog.records) == 1
    assert Store(tmp_path).space({"x": 1}).missing(KEYS) == [1, 2]


def test_a_shard_that_cannot_be_read_is_left_alone(tmp_path, caplog, monkeypatch):
    Store(tmp_path).space({"x": 1}).put(KEYS, VECTORS)

    def refuse(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("claim2source.data.store.safe_open", refuse)
    assert Store(tmp_path).space({"x": 1}).missing(KEYS) == [0, 1, 2]
    assert "cannot be read" in caplog.text
    monkeypatch.undo()
    assert Store(tmp_path).space({"x": 1}).missing(KEYS) == []


def test_shards_are_read_together_and_spaces_are_apart(tmp_path):
    space = Store(tmp_path).space({"x": 1, "y": 2})
    space.put(KEYS[:2], VECTORS[:2])
    space.put(KEYS[2:], VECTORS[2:])
    for opened_space in (space, Store(tmp_path).space({"y": 2, "x": 1})):
        assert np.array_equal(opened_space.get([KEYS[2], KEYS[0], KEYS[2]]), VECTORS[[2, 0, 2]])
        assert opened_space.missing([KEYS[0], text_key("d")]) == [1]
        assert opened_space.missing([text_key("d"), KEYS[1], text_key("e")]) == [0, 2]
        with pytest.raises(KeyError):
            opened_space.get([KEYS[0], text_key("d")])
    assert Store(tmp_path).space({"x": 1, "y": 3}).missing(KEYS) == [0, 1, 2]


def test_what_is_not_finite_or_does_not_fit_is_not_stored(tmp_path):
    space = Store(tmp_path).space({"x": 1})
    for bad in (np.nan, np.inf):
        vectors = VECTORS.copy()
        vectors[1, 2] = bad
        with refused(ValueError, "finite"):
            space.put(KEYS, vectors)
    with refused(ValueError, "3 keys", "2 vectors"):
        space.put(KEYS, VECTORS[:2])
    space.put([], VECTORS[:0])
    assert list(tmp_path.rglob("*.safetensors")) == []
    assert space.missing(KEYS) == [0, 1, 2]


MADE_BY = {"x": 1}


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    calls: list[int] = []
    real = module._digest

    def noted(*parts: np.ndarray) -> str:
        calls.append(len(parts))
        return real(*parts)

    monkeypatch.setattr(module, "_digest", noted)
    return calls


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
    # Undamaged but touched: hashed again, and verified again.
    os.utime(path, ns=(1, 1))
    for _ in range(2):
        assert Store(tmp_path).space(MADE_BY).missing(KEYS) == []
    assert len(hashed) == 2
    flip_byte(-1)(path)
    with caplog.at_level(logging.WARNING):
        assert Store(tmp_path).space(MADE_BY).missing(KEYS) == [0, 1, 2]
    assert "damaged" in caplog.text and not path.exists()


def test_damage_of_the_same_size_and_time_in_a_copy_is_seen(tmp_path: Path) -> None:
    Store(tmp_path).space(MADE_BY).put(KEYS, VECTORS)
    mark = shard(tmp_path).with_suffix(".verified")
    mark.write_bytes(b"\xff\xfe")  # an invalid mark is written again
    assert Store(tmp_path).space(MADE_BY).missing(KEYS) == []
    path = shard(tmp_path)
    status = path.stat()
    assert mark.read_text().split()[1] == str(status.st_size)
    newer = path.with_name("copy")
    newer.write_bytes(path.read_bytes())
    flip_byte(-1)(newer)
    os.utime(newer, ns=(status.st_atime_ns, status.st_mtime_ns))
    os.replace(newer, path)
    assert Store(tmp_path).space(MADE_BY).missing(KEYS) == [0, 1, 2]


def some_run() -> Run:
    """Three claims, one without sources, one with candidates; a vocabulary not all used."""
    positions = np.array([[1, 0, -1], [-1, -1, -1], [3, 1, 0]])
    scores = np.array([[0.1, 1 / 3, 0], [0, 0, 0], [2, 2, 1]], dtype=np.float32)
    pool = {"c3": frozenset({"ü", "s", "t"})}
    vocabulary = np.array(["s", "t", "unused", "ü"], dtype=object)
    return Run.from_codes(["c1", "c2", "c3"], vocabulary, positions, scores, pool=pool)


def test_a_run_comes_back_as_it_was(tmp_path: Path) -> None:
    run = some_run()
    assert Store(tmp_path).run(MADE_BY) is None
    Store(tmp_path).put_run(MADE_BY, run, {"recall@10": 0.5})
    stored_run = Store(tmp_path).run(MADE_BY)
    assert stored_run is not None and stored_run.about == {"recall@10": 0.5}
    assert list(stored_run.run) == list(run)
    assert stored_run.run.claim_ids == run.claim_ids and stored_run.run.pool == run.pool
    assert stored_run.run.sources("c3") == ["ü", "t", "s"]
    assert (stored_run.run.codes.dtype, stored_run.run.scores.dtype) == (np.int32, np.float32)
    assert Store(tmp_path).run({"x": 2}) is None
    second_run = Run.from_lists({"c": [("s", 1.0)], "d": []})
    Store(tmp_path).put_run({"x": 2}, second_run)
    rerun = Store(tmp_path).run({"x": 2})
    assert rerun is not None and rerun.run.pool is None and rerun.about == {}
    assert rerun.run.claim_ids == ("c", "d")


@pytest.mark.parametrize("position", [-1, 3, 20, None])
def test_a_damaged_run_is_said_and_dropped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, position: int | None
) -> None:
    Store(tmp_path).put_run(MADE_BY, some_run())
    (path,) = (tmp_path / "runs").iterdir()
    if position is None:  # undamaged, but with exchanged scores
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata()
        parts = load_file(path)
        save_file(parts | {"scores": parts["scores"][::-1].copy()}, path, metadata=metadata)
    else:
        flip_byte(position)(path)
    with caplog.at_level(logging.WARNING):
        assert Store(tmp_path).run(MADE_BY) is None
        assert Store(tmp_path).run(MADE_BY) is None
    (record,) = caplog.records
    assert "damaged" in record.getMessage() and str(path) in record.getMessage()


def at_once(code: str, arguments: Sequence[Sequence[str]]) -> None:
    """Run `code` in a process for each list of arguments; all must succeed.

    The code prints "ready" when it has imported what it needs, and then reads a line.
    """
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", code, *words],
            env=environment,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for words in arguments
    ]
    for worker in workers:
        assert worker.stdout is not None and worker.stdout.readline() == "ready\n"
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    for worker in workers:
        _, errors = worker.communicate(timeout=300)
        assert worker.returncode == 0, errors


BUSY = """
import sys
import numpy as np
from pathlib import Path
from claim2source.core.run import Run
from claim2source.data.store import Store, text_key
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


@pytest.mark.slow
def test_processes_that_read_write_and_find_damage_at_once(tmp_path: Path) -> None:
    at_once(BUSY, [[str(tmp_path), seed] for seed in ("1", "2")])
    assert list(tmp_path.rglob("*.tmp")) == []
    space = Store(tmp_path).space(MADE_BY)
    for seed in (1, 2):
        # Everything that a single process wrote, without damage, is there.
        own = Store(tmp_path).space({"own": seed})
        assert not own.missing([text_key(f"{seed} {step}") for step in range(60)])
    for i in range(12):
        keys = [text_key(f"{i} {j}") for j in range(5)]
        if not space.missing(keys):
            assert space.get(keys).tolist() == [[i, j] for j in range(5)]
