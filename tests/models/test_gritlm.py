"""GritLM, exactly: ids, mask, attention and vectors, on a tiny random Mistral."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from claim2source.core.errors import ConfigError
from claim2source.models import Encoder, ModelConfig, Template, Tokens, resolve
from tests.models.mistral import CLAIM, SOURCE, VOCABULARY, save_mistral
from tests.refusals import refused

GRITLM = Template(claim=CLAIM, source=SOURCE, pool_prefix=False)
TEXTS = [
    "the study: vaccines work",
    "x",
    "Impfung schützt, sagt die Studie 🦠 " * 4,
    "\n\nétude naïve",
    "  two  spaces",
    "<|embed|>\nthe",
    "#covid @who https://t.co/x",
]


def config(folder, **changes):
    said = {
        "pooling": "mean",
        "max_length": 128,
        "template": GRITLM,
        "bidirectional": True,
    }
    return ModelConfig(str(folder), **said | changes)


def encoder_with(folder, **changes):
    """The encoder of the folder, with changed settings."""
    changed = config(folder, **changes)
    return resolve(changed, "cpu").encoder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    parent = tmp_path_factory.mktemp("gritlm")
    return save_mistral(parent / "model")


@pytest.fixture(scope="module")
def gritlm(folder):
    """Do not change it."""
    return encoder_with(folder)


def with_template(encoder, **changes):
    template = Template(**changes)
    said = dataclasses.replace(encoder.settings, template=template)
    return Encoder(encoder.model, encoder.tokenizer, said, None)


def ids_of(*tokens):
    return tuple(VOCABULARY.index(token) for token in tokens)


def test_golden_ids_of_a_claim(gritlm):
    encoder = with_template(
        gritlm,
        claim="<|user|>\nfi x\n<|embed|>\n",
        pool_prefix=False,
    )
    (tokens,) = encoder.tokenize(["the é🦠"], "claim")
    written = "<s> ▁< | user | > <0x0A> f i ▁ x <0x0A> < | embed | > <0x0A>".split()
    text = "the ▁ é <0xF0> <0x9F> <0xA6> <0xA0>".split()
    ids = ids_of(*written, *text)
    assert tokens == Tokens(ids, skip=18)
    assert tokens.ids[:7] == (1, 361, 349, 356, 349, 289, 13)


def test_golden_ids_of_a_source(gritlm):
    (tokens,) = gritlm.tokenize(["ab the"], "source")
    template = ["<s>", "▁<", "|", "embed", "|", ">", "<0x0A>", "ab", "▁the"]
    ids = ids_of(*template)
    assert tokens == Tokens(ids, skip=7)


@pytest.mark.parametrize("side", ["claim", "source"])
def test_bos_stands_once_and_first_and_no_eos_is_added(gritlm, side):
    hostile = [
        "<s>",
        "</s>",
        "a <s> b</s>",
        "<unk>",
        "",
        *TEXTS,
    ]
    for tokens in gritlm.tokenize(hostile, side):
        first, *others = tokens.ids
        assert first == 1
        assert not {0, 1, 2} & set(others)


def package_rule(encoder, side):
    """GritLM masks as many tokens as its tokenised instruction has, BOS among them."""
    prefix = encoder.settings.template.prefix(side)
    tokenized = encoder.tokenizer(prefix)
    return len(tokenized["input_ids"])


# What a random text hardly ever is.
ODD = ("👩‍🔬", "e\u0301", "<0x0A>", "|>", "<|user|>", "\r\nx", "▁x", "  x", "العلم", "<s>")


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(ODD) | st.text(min_size=1, max_size=12), st.sampled_from(["claim", "source"])
)
def test_the_mask_ends_where_the_package_ends_it_for_any_text(gritlm, text, side):
    (tokens,) = gritlm.tokenize([text], side)
    assert tokens.skip == package_rule(gritlm, side)


def test_code_beside_a_known_type_asks_which_attention_is_meant(folder):
    with refused(ConfigError, "model.bidirectional: is missing", "true or false", "GritLM"):
        resolve(config(folder, bidirectional=None))
    causal = encoder_with(folder, bidirectional=False)
    assert not sees_the_last(causal)


def states(encoder, ids):
    mask = torch.ones_like(ids)
    with torch.inference_mode():
        output = encoder.model(input_ids=ids, attention_mask=mask)
        return output.last_hidden_state


def is_another(hidden):
    """Whether the first tokens of two rows have different vectors."""
    first = hidden[0, 0]
    second = hidden[1, 0]
    return (first - second).abs().max() > 1e-4


def sees_the_last(encoder):
    ids = torch.tensor([[1, 300, 301, 302], [1, 300, 301, 303]])
    hidden = states(encoder, ids)
    return bool(is_another(hidden))


@pytest.mark.parametrize("attention", ["sdpa", "eager", None])
def test_token_0_sees_the_last_token(folder, attention):
    encoder = encoder_with(folder, attention=attention)
    assert sees_the_last(encoder)
    # In a padded batch too, where the mask is built another way.
    rows = torch.tensor([[1, 300, 302, 0], [1, 300, 303, 0]])
    mask = torch.tensor([[1, 1, 1, 0]] * 2)
    with torch.inference_mode():
        output = encoder.model(input_ids=rows, attention_mask=mask)
        hidden = output.last_hidden_state
    assert is_another(hidden)


def test_kernels_give_the_same_vectors_and_share_the_store(folder, gritlm):
    eager = encoder_with(folder, attention="eager")
    assert eager.model.config._attn_implementation == "eager"
    assert gritlm.model.config._attn_implementation == "sdpa"
    by_eager, _ = eager.encode(TEXTS, "claim")
    by_sdpa, _ = gritlm.encode(TEXTS, "claim")
    assert np.abs(by_eager - by_sdpa).max() < 1e-5
    default = encoder_with(folder)
    assert eager.key() == default.key()


def test_direction_and_template_are_part_of_the_key(folder):
    with_prefix = dataclasses.replace(GRITLM, pool_prefix=True)
    with_end = dataclasses.replace(GRITLM, append_token="</s>")
    all_changes = (
        {},
        {"bidirectional": False},
        {"template": with_prefix},
        {"template": with_end},
    )
    keys = [encoder_with(folder, **changes).key() for changes in all_changes]
    distinct = {json.dumps(key) for key in keys}
    assert len(distinct) == len(keys)


def test_a_model_that_looks_back_only_is_refused(folder, monkeypatch):
    from transformers.models.mistral import modeling_mistral

    forward = modeling_mistral.MistralModel.forward

    def causal_forward(self, **extra):
        causal = extra | {"is_causal": True}
        return forward(self, **causal)

    monkeypatch.setattr(modeling_mistral.MistralModel, "forward", causal_forward)
    with refused(ConfigError, "model.bidirectional: true ", "mistral"):
        resolve(config(folder))


def by_hand(encoder, text, side):
    """One text alone, with only the instruction excluded from the mean."""
    (tokens,) = encoder.tokenize([text], side)
    ids = torch.tensor([tokens.ids])
    hidden = states(encoder, ids)
    rows = hidden[0, tokens.skip :].double().numpy()
    mean = rows.mean(axis=0)
    return mean / np.linalg.norm(mean)


@pytest.mark.parametrize("side", ["claim", "source"])
def test_the_mean_is_over_the_texts_tokens_only(gritlm, side):
    ours, _ = gritlm.encode(TEXTS, side)
    expected = np.stack([by_hand(gritlm, text, side) for text in TEXTS])
    assert np.abs(ours - expected).max() < 1e-5
    lengths = np.linalg.norm(ours, axis=1)
    assert np.abs(lengths - 1).max() < 1e-6


def test_a_config_that_declares_its_direction_is_believed(tmp_path, folder):
    copy = shutil.copytree(folder, tmp_path / "copy")
    file = copy / "config.json"
    record = json.loads(file.read_text())
    del record["auto_map"]
    record["is_causal"] = False
    file.write_text(json.dumps(record))
    cases = (
        (None, True),
        (True, True),
        (False, False),
    )
    for setting, expected in cases:
        encoder = encoder_with(copy, bidirectional=setting)
        assert encoder.settings.bidirectional is expected
        assert sees_the_last(encoder) is expected
