"""Last-token and encoder models by config: E5-Mistral, Qwen3-Embedding, Harrier, E5."""

import json
import shutil

import numpy as np
import pytest
import tokenizers
import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
from transformers import AutoTokenizer

from claim2source.core.errors import ConfigError
from claim2source.models import ModelConfig, Template, resolve
from tests.models.layout import change_json
from tests.models.mistral import SIZES, save_mistral, save_tokenizer
from tests.refusals import refused

E5 = Template(claim="Instruct: find the paper\nQuery: ", append_token="</s>")
QWEN = Template(claim="Instruct: find the paper\nQuery:", append_token="<|endoftext|>")
TEXTS = ["the study", "x", "", "a very long post about the study 🦠 " * 9, "ends itself </s>"]


def config(folder, **changes):
    settings = {"pooling": "last", "max_length": 48, "template": E5, "bidirectional": False}
    return ModelConfig(str(folder), **settings | changes)


@pytest.fixture(scope="module")
def mistral(tmp_path_factory):
    return save_mistral(tmp_path_factory.mktemp("last") / "model")


@pytest.fixture(scope="module")
def qwen(tmp_path_factory):
    """Qwen3-Embedding's layout: its tokenizer ends texts with a token other than its eos_token."""
    from transformers import Qwen3Config, Qwen3Model

    folder = tmp_path_factory.mktemp("last") / "qwen"
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    core.normalizer = normalizers.NFC()
    words = tokenizers.pre_tokenizers.Split(Regex(r"\s+|\S+"), "isolated")
    bytes_ = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([words, bytes_])
    core.decoder = decoders.ByteLevel()
    ends = ("<|endoftext|>", "<|im_end|>")
    core.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in ends])
    core.post_processor = tokenizers.processors.TemplateProcessing(
        single="$A <|endoftext|>", special_tokens=[("<|endoftext|>", 256)]
    )
    torch.manual_seed(0)
    Qwen3Model(Qwen3Config(vocab_size=258, head_dim=8, **SIZES)).save_pretrained(folder)
    core.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "Qwen2Tokenizer",
        "eos_token": "<|im_end|>",
        "add_bos_token": False,
        "pad_token": "<|endoftext|>",
        "padding_side": "left",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def ends_once(encoder, end, side):
    for tokens in encoder.tokenize(TEXTS, side):
        assert tokens.ids[-1] == end
        assert tokens.ids.count(end) == 1
        assert len(tokens.ids) <= encoder.settings.max_length
    lengths = [len(t.ids) for t in encoder.tokenize(TEXTS, side)]
    assert max(lengths) == encoder.settings.max_length, "no text was cut: the test shows nothing"


def test_eos_stands_at_the_end_once_whether_or_not_the_tokenizer_adds_it(tmp_path, mistral):
    """Also if the text is cut; the vectors are the same."""
    vectors = []
    for adds_eos in (False, True):
        folder = shutil.copytree(mistral, tmp_path / f"copy-{adds_eos}")
        save_tokenizer(folder, adds_eos=adds_eos)
        assert (AutoTokenizer.from_pretrained(folder)("x")["input_ids"][-1] == 2) is adds_eos
        encoder = resolve(config(folder), "cpu").encoder
        for side in ("claim", "source"):
            ends_once(encoder, 2, side)
        vectors.append(encoder.encode(TEXTS, "claim")[0])
    assert np.array_equal(*vectors)


def test_golden_ids_of_a_query(qwen):
    encoder = resolve(config(qwen, template=QWEN), "cpu").encoder
    (tokens,) = encoder.tokenize(["ab"], "claim")
    decoded = encoder.tokenizer.decode(list(tokens.ids), skip_special_tokens=False)
    assert decoded == "Instruct: find the paper\nQuery:ab<|endoftext|>"
    (tokens,) = encoder.tokenize(["ab"], "source")
    # Bytes in the order of their printable stand-ins: "!" is 0.
    assert tokens.ids == (64, 65, 256)


def test_a_token_that_the_tokenizer_lacks_is_refused(mistral):
    encoder = resolve(config(mistral, template=Template(append_token="</S>")), "cpu").encoder
    with refused(ConfigError, "model.template.append_token: '</S>'", "'</s>'"):
        encoder.tokenize(["x"], "claim")


@pytest.mark.parametrize("kind", ["mistral", "qwen"])
def test_how_a_checkpoint_pads_and_cuts_changes_nothing(request, tmp_path, kind):
    folder = request.getfixturevalue(kind)
    template = E5 if kind == "mistral" else QWEN
    vectors = []
    for padding, cutting in (("left", "right"), ("right", "right"), ("left", "left")):
        copy = shutil.copytree(folder, tmp_path / f"{padding}-{cutting}")
        file = copy / "tokenizer_config.json"
        change_json(file, padding_side=padding, truncation_side=cutting)
        assert AutoTokenizer.from_pretrained(copy).padding_side == padding
        encoder = resolve(config(copy, template=template), "cpu").encoder
        vectors.append(encoder.encode(TEXTS, "claim")[0])
    assert np.array_equal(vectors[0], vectors[1])
    assert np.array_equal(vectors[0], vectors[2])


def test_a_decoder_looks_back_only_unless_told(qwen):
    causal = resolve(config(qwen, bidirectional=None, template=QWEN), "cpu").encoder
    assert causal.settings.bidirectional is False
    ids = torch.tensor([[5, 6, 7], [5, 6, 8]])
    for encoder, seen in (
        (causal, False),
        (resolve(config(qwen, bidirectional=True), "cpu").encoder, True),
    ):
        with torch.inference_mode():
            hidden = encoder.model(input_ids=ids).last_hidden_state
        assert bool((hidden[0, 0] - hidden[1, 0]).abs().max() > 1e-4) is seen


def test_last_token_of_a_left_padding_model_equals_sentence_transformers(qwen):
    st = pytest.importorskip("sentence_transformers")
    from sentence_transformers.sentence_transformer import modules

    parts = [modules.Transformer(str(qwen), max_seq_length=24), modules.Pooling(32, "lasttoken")]
    oracle = st.SentenceTransformer(modules=[*parts, modules.Normalize()], device="cpu")
    assert oracle.tokenizer.padding_side == "left"
    encoder = resolve(config(qwen, template=Template(claim="Query:"), max_length=24), "cpu").encoder
    texts = TEXTS[:2] + TEXTS[3:4]
    ours, _ = encoder.encode(texts, "claim")
    assert np.abs(ours - oracle.encode(texts, prompt="Query:")).max() < 1e-5
