"""Texts in one row give the vectors and gradients of padded ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from claim2source.models import Encoder, EncoderSettings, Tokens
from claim2source.models.packed import KERNEL, PackedBatch, can_pack, pack
from claim2source.models.tokens import TokenBatch

LENGTHS = [3, 7, 1, 5, 7, 2, 5, 6]


class NoTokenizer:
    pad_token_id = 1


def model_of(kind: str, **changes: Any) -> Any:
    from transformers import BertConfig, BertModel, XLMRobertaConfig, XLMRobertaModel

    sizes: dict[str, Any] = {
        "vocab_size": 40,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "max_position_embeddings": 16,
        "initializer_range": 0.5,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "pad_token_id": 1,
    }
    torch.manual_seed(0)
    kinds: Any = {"bert": (BertConfig, BertModel), "xlm": (XLMRobertaConfig, XLMRobertaModel)}
    config, model = kinds[kind]
    return model(config(**sizes | changes))


def encoder_of(model: Any, pooling: Any = "mean") -> Encoder:
    settings = EncoderSettings(pooling=pooling, normalize=False, max_length=16)
    return Encoder(model, NoTokenizer(), settings, None)  # type: ignore[arg-type]


def tokens_of(lengths: list[int] = LENGTHS) -> list[Tokens]:
    draw = torch.Generator().manual_seed(1)
    return [
        Tokens(tuple(torch.randint(2, 40, (n,), generator=draw).tolist()), skip=min(1, n - 1))
        for n in lengths
    ]


def gradients(encoder: Encoder, batch: TokenBatch | PackedBatch) -> tuple[Any, dict[str, Any]]:
    encoder.model.zero_grad(set_to_none=True)
    vectors = encoder.vectors(batch)
    weights = torch.arange(vectors.numel()).reshape(vectors.shape).sin()
    (vectors * weights).sum().backward()
    named = encoder.model.named_parameters()
    return vectors.detach(), {n: p.grad for n, p in named if p.grad is not None}


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
@pytest.mark.parametrize("kind", ["bert", "xlm"])
def test_vectors_and_gradients_are_those_of_padded_texts(kind: str, pooling: str) -> None:
    encoder, tokens = encoder_of(model_of(kind), pooling), tokens_of()
    packed = encoder.batch(tokens)
    assert isinstance(packed, PackedBatch)
    assert packed.real_tokens == packed.padded_tokens == sum(LENGTHS)
    expected, theirs = gradients(encoder, encoder.collate(tokens))
    assert len(expected.unique(dim=0)) == len(LENGTHS)
    for groups in ([[7, 1, 4], [3], [6, 0, 5], [2]], [[2, 1, 0, 4, 3, 7, 6, 5]]):
        found, ours = gradients(encoder, pack(tokens, groups, encoder.model))
        assert torch.allclose(found, expected, atol=1e-6)
        assert ours.keys() == theirs.keys()
        for name, gradient in ours.items():
            assert torch.allclose(gradient, theirs[name], rtol=1e-4, atol=1e-5), name
    assert torch.allclose(gradients(encoder, packed)[0], expected, atol=1e-6)


def test_no_text_sees_another() -> None:
    encoder, tokens = encoder_of(model_of("bert")), tokens_of()
    groups = [[4, 1, 7, 3], [6, 0, 5, 2]]
    before = encoder.vectors(pack(tokens, groups, encoder.model))
    other = tuple((number + 5) % 38 + 2 for number in tokens[1].ids)
    changed = [Tokens(other, 1) if i == 1 else text for i, text in enumerate(tokens)]
    after = encoder.vectors(pack(changed, groups, encoder.model))
    same = (before == after).all(dim=1).tolist()
    assert same == [i != 1 for i in range(len(tokens))]


def test_attention_dropout_is_on_in_training_alone() -> None:
    model = model_of("bert", attention_probs_dropout_prob=0.5)
    encoder, tokens = encoder_of(model), tokens_of()
    packed = pack(tokens, [list(range(len(tokens)))], model)
    model.eval()
    assert torch.equal(encoder.vectors(packed), encoder.vectors(packed))
    model.train()
    assert not torch.allclose(encoder.vectors(packed), encoder.vectors(packed))


def test_only_what_is_known_to_be_the_same_is_packed(tiny_folder: Path) -> None:
    from transformers import MistralConfig, MistralModel

    model = model_of("bert")
    assert can_pack(model)
    model.gradient_checkpointing_enable()
    assert not can_pack(model)
    model.gradient_checkpointing_disable()
    assert can_pack(model)
    model.set_attn_implementation("eager")
    assert not can_pack(model)
    assert isinstance(encoder_of(model).batch(tokens_of()), TokenBatch)
    assert not can_pack(model_of("bert", is_decoder=True))
    sizes: dict[str, Any] = {"num_attention_heads": 2, "num_key_value_heads": 2}
    mistral = MistralConfig(
        vocab_size=40, hidden_size=16, intermediate_size=32, num_hidden_layers=1, **sizes
    )
    assert not can_pack(MistralModel(mistral))


def test_the_models_own_attention_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, tokens = encoder_of(model_of("bert")), tokens_of()
    encoder.vectors(encoder.batch(tokens))
    assert encoder.model.config._attn_implementation == "sdpa"
    packed = encoder.batch(tokens)

    def fails(**_: Any) -> None:
        assert encoder.model.config._attn_implementation == KERNEL
        raise ValueError("no")

    monkeypatch.setattr(encoder.model, "forward", fails)
    with pytest.raises(ValueError, match="no"):
        encoder.vectors(packed)
    assert encoder.model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize(
    ("targets", "trained"),
    [("all-linear", "lora_A"), (["word_embeddings"], "lora_embedding")],  # the table itself, too
)
def test_a_lora_adapter_is_trained_alike(targets: Any, trained: str) -> None:
    import peft

    config = peft.LoraConfig(r=2, target_modules=targets, init_lora_weights=False)
    encoder = encoder_of(peft.get_peft_model(model_of("bert"), config))
    tokens = tokens_of()
    expected, theirs = gradients(encoder, encoder.collate(tokens))
    batch = encoder.batch(tokens)
    assert isinstance(batch, PackedBatch)
    found, ours = gradients(encoder, batch)
    assert torch.allclose(found, expected, atol=1e-5)
    assert ours.keys() == theirs.keys() and any(trained in name for name in ours)
    for name, gradient in ours.items():
        assert torch.allclose(gradient, theirs[name], rtol=1e-3, atol=1e-4), name


def test_a_passs_gradient_of_the_table_holds_its_own_rows_alone_and_adds_up() -> None:
    encoder, tokens = encoder_of(model_of("bert")), tokens_of()
    table = encoder.model.get_input_embeddings().weight
    arrived: list[int] = []
    table.register_hook(lambda gradient: arrived.append(gradient._values().shape[0]))  # sparse
    _, whole = gradients(encoder, encoder.batch(tokens))
    assert arrived == [sum(LENGTHS)] and table.grad.layout == torch.strided
    encoder.model.zero_grad(set_to_none=True)
    weights = torch.arange(len(tokens) * 16).reshape(-1, 16).sin()
    for part in (slice(0, 3), slice(3, None)):
        (encoder.vectors(encoder.batch(tokens[part])) * weights[part]).sum().backward()
    assert arrived[1:] == [sum(LENGTHS[:3]), sum(LENGTHS[3:])]
    assert torch.allclose(table.grad, whole["embeddings.word_embeddings.weight"], atol=1e-5)
    with torch.no_grad():
        encoder.model.zero_grad(set_to_none=True)
        encoder.vectors(encoder.batch(tokens))
    assert table.grad is None  # vectors without a gradient leave no trace
