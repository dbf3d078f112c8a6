"""The Encoder against sentence-transformers and against arithmetic by hand."""

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from claim2source.core.errors import ConfigError, UserError
from claim2source.data.store import Store
from claim2source.models import Encoder, EncoderSettings, ModelConfig, Template, Tokens, resolve
from tests.refusals import refused
from tests.training.points import byte_level

TEXTS = [
    "Vaccines work.",
    "",
    "a",
    "Ivermectin! 🦠 https://t.co/x #covid @who",
    "Étude française: naïve Impfstoffwirksamkeit",
    "long " * 300,
    "  spaces\tand\nlines  ",
    "one two three four five six seven eight nine ten " * 4,
]
SHORT = [
    "a b c",
    "",
    "vaccine works .",
    "a",
    "claim : paper a b c works papers",
    "c b a",
]


@pytest.fixture(scope="module")
def oracle(minilm):
    st = pytest.importorskip("sentence_transformers")
    folder = str(minilm.folder)
    return st.SentenceTransformer(folder, device="cpu")


@pytest.fixture
def tiny(tiny_folder):
    """A tiny encoder with settings on request."""
    tokenizer = AutoTokenizer.from_pretrained(tiny_folder)
    model = AutoModel.from_pretrained(tiny_folder).eval()

    def make(**settings):
        all_settings = {"max_length": 16} | settings
        return Encoder(model, tokenizer, EncoderSettings(**all_settings), None)

    return make


def test_equals_sentence_transformers(minilm, oracle):
    ours, _ = minilm.encoder.encode(TEXTS, "claim")
    assert ours.dtype == np.float32
    theirs = oracle.encode(TEXTS)
    assert np.abs(ours - theirs).max() < 1e-5


def test_an_empty_text_behind_a_masked_prefix_still_has_a_vector(tiny):
    template = Template(claim="query : ", pool_prefix=False)
    encoder = tiny(template=template)
    (tokens,) = encoder.tokenize([""], "claim")
    assert tokens.skip == len(tokens.ids) - 1
    vectors, _ = encoder.encode([""], "claim")
    assert np.isfinite(vectors).all()


@pytest.fixture
def joining(tiny, tmp_path):
    """An encoder without special tokens; one of its words includes the space before it."""
    byte_level(tmp_path, join="w", pad=True)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    model = tiny().model

    def make(**settings):
        all_settings = EncoderSettings(max_length=16, **settings)
        return Encoder(model, tokenizer, all_settings, None)

    return make


def test_a_token_that_joins_prefix_and_text_belongs_to_the_text(joining):
    template = Template(claim="q: ", pool_prefix=False)
    encoder = joining(template=template)
    texts = encoder.tokenizer.convert_ids_to_tokens
    (joined, separate) = encoder.tokenize(["w", "x"], "claim")
    joined_texts = texts(list(joined.ids))
    separate_texts = texts(list(separate.ids))
    assert joined_texts == ["q", ":", "Ġw"]
    assert joined.skip == 2
    assert separate_texts == ["q", ":", "Ġ", "x"]
    assert separate.skip == 3


def test_an_empty_text_has_a_token_even_without_special_tokens(joining):
    encoder = joining()
    empty = encoder.tokenize(["", "w"], "claim")[0]
    assert empty == Tokens((1,))  # its end
    encoder.tokenizer.eos_token = None
    empty = encoder.tokenize(["", "w"], "claim")[0]
    assert empty == Tokens((0,))  # else its padding


@pytest.mark.parametrize("masked", [True, False])
def test_a_template_that_leaves_no_room_is_refused(tiny, masked):
    template = Template(
        claim="query : " * 5,
        source="",
        pool_prefix=not masked,
    )
    encoder = tiny(template=template, max_length=64)
    (text,) = encoder.tokenize(["a"], "claim")
    (none,) = encoder.tokenize([""], "claim")
    minimum = len(none.ids) + 1
    length = len(text.ids)
    assert length == minimum
    assert minimum > 9

    fits = tiny(template=template, max_length=minimum)
    assert fits.tokenize(["a"], "claim") == [text]
    too_small = minimum - 1
    short = tiny(template=template, max_length=too_small)
    with refused(ConfigError, f"model.max_length: {too_small} ", f" {minimum} "):
        short.tokenize(["a"], "claim")
    assert short.tokenize(["a"], "source")  # which has no template


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
def test_batches_and_padding_change_nothing(tiny, pooling, monkeypatch):
    encoder = tiny(pooling=pooling)
    at_once, _ = encoder.encode(SHORT, "claim", token_budget=10_000)
    one_by_one, _ = encoder.encode(SHORT, "claim", token_budget=1)
    pairs, _ = encoder.encode(SHORT, "claim", token_budget=20)
    parts = [encoder.encode([text], "claim")[0] for text in SHORT]
    single = np.concatenate(parts)
    monkeypatch.setattr("claim2source.models.encoder.SHARD_TEXTS", 4)
    backwards, _ = encoder.encode(SHORT[::-1], "claim")
    sharded = backwards[::-1]
    # As a GPU computes in 16 bits: no text is padded.
    monkeypatch.setattr(Encoder, "_packs_on_gpu", True)
    monkeypatch.setattr(Encoder, "collate", None)
    packed, _ = encoder.encode(SHORT, "claim", token_budget=20)
    for vectors in (one_by_one, pairs, single, sharded, packed):
        assert np.abs(at_once - vectors).max() < 1e-6


def test_order_and_duplicates(tiny):
    encoder = tiny()
    vector_of = {}
    for text in SHORT:
        alone, _ = encoder.encode([text], "claim")
        vector_of[text] = alone[0]
    texts_given = [*SHORT, *reversed(SHORT), SHORT[2]]
    vectors, cost = encoder.encode(texts_given, "claim")
    for text, vector in zip(texts_given, vectors, strict=True):
        difference = np.abs(vector - vector_of[text])
        assert difference.max() < 1e-6
    assert cost.items == len(texts_given)
    none, _ = encoder.encode([], "claim")
    assert none.shape == (0, 16)

    # Distinct texts are encoded once: 6 texts with 2 special tokens each.
    tokenized = encoder.tokenize(SHORT, "claim")
    count = sum(len(tokens.ids) for tokens in tokenized)
    assert cost.tokens == count


def test_tokens_do_not_depend_on_their_company_or_on_what_was_asked_before(tiny):
    encoder = tiny(max_length=8)
    one_by_one = [encoder.tokenize([text], "claim")[0] for text in SHORT]
    encoder.tokenizer(
        ["a b", "c"],
        padding="max_length",
        max_length=12,
        truncation=True,
    )
    encoder.encode(SHORT, "source")
    together = encoder.tokenize(SHORT, "claim")
    assert together == one_by_one


@pytest.mark.parametrize("training", [True, False])
def test_encoding_is_without_dropout_and_puts_the_training_mode_back(tiny, training, monkeypatch):
    encoder = tiny()
    encoder.model.train(training)
    first, _ = encoder.encode(SHORT, "claim")
    assert encoder.model.training is training
    encoder.model.eval()
    second, _ = encoder.encode(SHORT, "claim")
    assert np.array_equal(first, second)
    encoder.model.train(training)
    monkeypatch.setattr(Encoder, "vectors", lambda self, batch: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        encoder.encode(SHORT, "claim")
    assert encoder.model.training is training


def test_a_vector_that_is_not_finite_is_said(tiny):
    encoder = tiny()
    table = encoder.model.embeddings.word_embeddings
    table.weight.data[4] = float("inf")
    with refused(UserError, "finite", "float32"):
        encoder.encode(["a"], "claim")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_vectors_are_float32_of_length_one_whatever_the_weights(tiny_folder, dtype):
    config = ModelConfig(
        str(tiny_folder),
        pooling="mean",
        max_length=16,
        dtype=dtype,
    )
    encoder = resolve(config, "cpu").encoder
    weight = next(encoder.model.parameters())
    assert weight.dtype == getattr(torch, dtype)
    vectors, _ = encoder.encode(SHORT, "claim")
    assert vectors.dtype == np.float32
    lengths = np.linalg.norm(vectors, axis=1)
    assert np.abs(lengths - 1).max() < 1e-6


def test_the_store_of_sources_is_filled_by_their_own_encoder(tiny, tmp_path):
    encoder = tiny()
    base = tiny()
    encoder.weights = {"base": "b"}
    base.weights = {"base": "other"}
    encoder.source_encoder = base
    encoder.fill(SHORT, "source", Store(tmp_path))
    _, of_base = base.encode(SHORT, "claim", store=Store(tmp_path))
    assert of_base.tokens == 0
    _, of_claims = encoder.encode(SHORT, "claim", store=Store(tmp_path))
    assert of_claims.tokens > 0
