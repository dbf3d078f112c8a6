"""The store: one changed input is a miss, damage is said and rebuilt, nothing is half-written."""

import copy
import logging
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from transformers import AutoModel, AutoTokenizer

from claim2source.io.store import Store, _digest, default_root, text_key
from claim2source.models import Encoder, EncoderSettings, Template
from claim2source.models import encoder as encoder_module

TEXTS = ["a b", "claim", "paper works", "a b"]
KEYS = [text_key(text) for text in ("a", "b", "c")]
VECTORS = np.arange(12, dtype=np.float32).reshape(3, 4)


@pytest.fixture(scope="module")
def parts(tiny_folder):
    return AutoModel.from_pretrained(tiny_folder).eval(), AutoTokenizer.from_pretrained(tiny_folder)


@pytest.fixture
def make(parts):
    """An encoder that differs from the standard one in what is named."""

    def encoder(weights=(), template=(), config=(), **settings):
        model, tokenizer = parts
        if config:
            model = copy.copy(model)
            model.config = copy.deepcopy(model.config)
            model.config.update(dict(config))
        prefixes = Template(**{"claim": "query : ", "source": "query : "} | dict(template))
        known = {"base": "b", "adapter": "a", "scale": 1.0, "tokenizer": "t"} | dict(weights)
        return Encoder(
            model,
            tokenizer,
            EncoderSettings(**{"max_length": 16} | settings, template=prefixes),
            known,
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
    again, cost = no_model(make()).encode(TEXTS[::-1], "claim", store=Store(tmp_path))
    assert np.array_equal(again, vectors[::-1])
    assert again.dtype == np.float32
    assert (cost.items, cost.tokens) == (4, 0)
    # The other side has the same prefix here, so its vectors are the same ones.
    other, _ = no_model(make()).encode(TEXTS, "source", store=Store(tmp_path))
    assert np.array_equal(other, vectors)
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
    """peft's where there is an adapter; what only rounds (torch) makes no other vectors."""
    store, real, other = Store(tmp_path), encoder_module.version, set()
    bare = make()
    bare.weights = {"base": "b"}
    for encoder in (make(), bare):
        encoder.encode(TEXTS, "claim", store=store)
    monkeypatch.setattr(
        encoder_module, "version", lambda asked: "9" if asked in other else real(asked)
    )
    for name in ("torch", "tokenizers", "transformers", "peft"):
        other.add(name)
        if name == "torch":
            no_model(make()).encode(TEXTS, "claim", store=store)
        else:
            with pytest.raises(Called):
                no_model(make()).encode(TEXTS, "claim", store=store)
        if name == "peft":
            no_model(bare).encode(TEXTS, "claim", store=store)
        other.clear()
        # What is there stays.
        no_model(make()).encode(TEXTS, "claim", store=store)


def test_weights_in_training_never_store(make, tmp_path):
    encoder = make()
    encoder.weights = None
    encoder.encode(TEXTS, "claim", store=Store(tmp_path))
    assert encoder.key() is None
    assert list(tmp_path.rglob("*.safetensors")) == []
    make().encode(TEXTS, "claim", store=Store(tmp_path))
    with pytest.raises(Called):
        no_model(encoder).encode(TEXTS, "claim", store=Store(tmp_path))


def test_a_stopped_run_goes_on_where_it_was(make, tmp_path, monkeypatch):
    monkeypatch.setattr("claim2source.models.encoder.SHARD_TEXTS", 1)
    encoder, whole = make(), Encoder.vectors
    done = []

    def stop_at_the_third(batch):
        if len(done) == 2:
            raise Called
        done.append(batch)
        return whole(encoder, batch)

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
    whole = path.read_bytes()
    harm(path)
    with caplog.at_level(logging.WARNING):
        again, cost = make().encode(TEXTS, "claim", store=Store(tmp_path))
    assert np.array_equal(again, vectors)
    assert cost.tokens > 0
    (record,) = caplog.records
    assert str(path) in record.getMessage()
    assert "damaged" in record.getMessage()
    assert shard(tmp_path).read_bytes() == whole
    no_model(make()).encode(TEXTS, "claim", store=Store(tmp_path))


def test_keys_that_were_exchanged_are_damage_which_is_said_once(tmp_path, caplog):
    Store(tmp_path).space({"x": 1}).put(KEYS, VECTORS)
    path = shard(tmp_path)
    content = load_file(path)
    content["keys"] = content["keys"][::-1].copy()
    save_file(content, path, metadata={"sha256": path.stem})
    for _ in range(2):
        # Rows may be made again in other shards: the damaged one must not stay for ever.
        Store(tmp_path).space({"x": 1}).put(KEYS[:1], VECTORS[:1])
    assert len(caplog.records) == 1
    assert Store(tmp_path).space({"x": 1}).missing(KEYS) == [1, 2]


def test_a_shard_that_cannot_be_read_is_left_alone(tmp_path, caplog, monkeypatch):
    Store(tmp_path).space({"x": 1}).put(KEYS, VECTORS)

    def refuse(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("claim2source.io.store.safe_open", refuse)
    assert Store(tmp_path).space({"x": 1}).missing(KEYS) == [0, 1, 2]
    assert "cannot be read" in caplog.text
    monkeypatch.undo()
    assert Store(tmp_path).space({"x": 1}).missing(KEYS) == []


def test_shards_are_read_together_and_spaces_are_apart(tmp_path):
    space = Store(tmp_path).space({"x": 1, "y": 2})
    space.put(KEYS[:2], VECTORS[:2])
    space.put(KEYS[2:], VECTORS[2:])
    for found in (space, Store(tmp_path).space({"y": 2, "x": 1})):
        assert np.array_equal(found.get([KEYS[2], KEYS[0], KEYS[2]]), VECTORS[[2, 0, 2]])
        assert KEYS[0] in found
        assert text_key("d") not in found
        assert found.missing([text_key("d"), KEYS[1], text_key("e")]) == [0, 2]
        with pytest.raises(KeyError):
            found.get([KEYS[0], text_key("d")])
    assert Store(tmp_path).space({"x": 1, "y": 3}).missing(KEYS) == [0, 1, 2]


def test_what_is_not_finite_or_does_not_fit_is_not_stored(tmp_path):
    space = Store(tmp_path).space({"x": 1})
    for bad in (np.nan, np.inf):
        vectors = VECTORS.copy()
        vectors[1, 2] = bad
        with pytest.raises(ValueError, match="not finite"):
            space.put(KEYS, vectors)
    with pytest.raises(ValueError, match="3 keys for 2 vectors"):
        space.put(KEYS, VECTORS[:2])
    space.put([], VECTORS[:0])
    assert list(tmp_path.rglob("*.safetensors")) == []
    assert space.missing(KEYS) == [0, 1, 2]


def test_a_killed_write_leaves_nothing_that_is_read(tmp_path, monkeypatch):
    def killed(tensors, path, metadata):
        Path(path).write_bytes(b"half a fi")
        raise KeyboardInterrupt

    monkeypatch.setattr("claim2source.io.store.save_file", killed)
    space = Store(tmp_path).space({"x": 1})
    with pytest.raises(KeyboardInterrupt):
        space.put(KEYS, VECTORS)
    assert space.missing(KEYS) == [0, 1, 2]
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    # A process that was killed outright cannot clean up: its file has another name.
    (space.folder / ".x.safetensors.abc.tmp").write_bytes(b"half a fi")
    assert Store(tmp_path).space({"x": 1}).missing(KEYS) == [0, 1, 2]


def test_where_the_store_is(monkeypatch, tmp_path):
    monkeypatch.setenv("CLAIM2SOURCE_STORE", str(tmp_path / "named"))
    assert Store().root == Store(None).root == default_root() == tmp_path / "named"
    assert Store(tmp_path / "given").root == tmp_path / "given"
    monkeypatch.setenv("CLAIM2SOURCE_STORE", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert default_root() == tmp_path / "cache" / "claim2source"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_root() == Path.home() / ".cache" / "claim2source"


WHOLE = np.eye(3, 16, dtype=np.float32)


@pytest.mark.parametrize(
    ("vectors", "rows", "why"),
    [
        (np.where(WHOLE == 1, np.inf, WHOLE).astype(np.float32), 32, "a vector is not finite"),
        (WHOLE.astype(np.float16), 32, "its vectors are float16 (3, 16)"),
        (WHOLE[:2].copy(), 32, "its keys are uint8 (3, 32), for 2 vectors"),
    ],
)
def test_a_shard_of_wrong_vectors_is_said_and_made_again(
    make, tmp_path, caplog, vectors, rows, why
):
    """Whoever wrote it hashed it rightly: only its content tells."""
    expected, _ = make().encode(["a", "b", "c"], "claim", store=Store(tmp_path))
    path = shard(tmp_path)
    keys = load_file(path)["keys"][:, :rows].copy()
    path.unlink()
    bad = path.with_name("bad.safetensors")
    digest = _digest(keys, vectors)
    save_file({"keys": keys, "vectors": vectors}, bad, metadata={"sha256": digest})
    with caplog.at_level(logging.WARNING):
        found, cost = make().encode(["a", "b", "c"], "claim", store=Store(tmp_path))
    assert np.array_equal(found, expected)
    assert cost.tokens > 0
    (record,) = caplog.records
    assert record.getMessage() == f"store: {bad} is damaged ({why}); its vectors are made again"
    assert shard(tmp_path) == path
