"""Texts in one row give the vectors and gradients of padded ones."""

from __future__ import annotations

import copy
import inspect
import itertools
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
import transformers
from peft import LoraConfig, get_peft_model

from claim2source.models import Encoder, EncoderSettings, Tokens
from claim2source.models.encoder import computes_fast
from claim2source.models.packed import (
    KERNEL,
    PackedBatch,
    _varlen_for,
    can_pack,
    enable_checkpointing,
    flash_varlen,
    pack,
)
from claim2source.models.query_only import base_encoder
from claim2source.models.tokens import TokenBatch

LENGTHS = [3, 7, 1, 5, 7, 2, 5, 6]
DECODERS = ("mistral", "gritlm", "qwen3", "llama")


class NoTokenizer:
    pad_token_id = 1


ENCODERS = ("bert", "xlm", "nomic")
KINDS = {
    "bert": "Bert",
    "xlm": "XLMRoberta",
    "nomic": "NomicBert",
    "qwen3": "Qwen3",
    "llama": "Llama",
}


def index_model(kind: str, **changes: Any) -> Any:
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
    if kind in DECODERS:
        # Two heads of queries share one of keys.
        sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
        sizes |= {"use_cache": False}
    name = KINDS.get(kind, "Mistral")
    config = getattr(transformers, f"{name}Config")(**sizes | changes)
    model = getattr(transformers, f"{name}Model")(config)
    if kind == "gritlm":
        model.config.is_causal = False
    return model


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
    parameters = encoder.model.named_parameters()
    return vectors.detach(), {n: p.grad for n, p in parameters if p.grad is not None}


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
@pytest.mark.parametrize("kind", [*ENCODERS, *DECODERS])
def test_vectors_and_gradients_are_those_of_padded_texts(kind: str, pooling: str) -> None:
    encoder, tokens = encoder_of(index_model(kind), pooling), tokens_of()
    packed = encoder.batch(tokens)
    assert isinstance(packed, PackedBatch)
    assert packed.real_tokens == packed.padded_tokens == sum(LENGTHS)
    expected, theirs = gradients(encoder, encoder.collate(tokens))
    # In a causal decoder, the first token attends only to itself.
    if pooling != "cls" or kind in (*ENCODERS, "gritlm"):
        assert len(expected.unique(dim=0)) == len(LENGTHS)
    for groups in ([[7, 1, 4], [3], [6, 0, 5], [2]], [[2, 1, 0, 4, 3, 7, 6, 5]]):
        vectors, ours = gradients(encoder, pack(tokens, groups, encoder.model))
        assert torch.allclose(vectors, expected, atol=1e-6)
        assert ours.keys() == theirs.keys()
        for name, gradient in ours.items():
            assert torch.allclose(gradient, theirs[name], rtol=1e-4, atol=1e-5), name
    assert torch.allclose(gradients(encoder, packed)[0], expected, atol=1e-6)


@pytest.mark.skipif(not computes_fast(), reason="this processor has no bfloat16")
@pytest.mark.parametrize("kind", [*ENCODERS, *DECODERS])
def test_a_copy_in_bfloat16_gives_nearly_the_vectors_of_float32(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("claim2source.models.encoder._BFLOAT16_ROW", 9)  # several rows
    encoder, tokens = encoder_of(index_model(kind).eval()), tokens_of()
    fast = encoder.in_bfloat16()
    assert fast.settings.dtype == "bfloat16" and fast.in_bfloat16() is fast
    assert {tensor.dtype for tensor in fast.model.parameters()} == {torch.bfloat16}
    assert {tensor.dtype for tensor in encoder.model.parameters()} == {torch.float32}
    assert torch.bfloat16 not in {tensor.dtype for tensor in fast.model.buffers()}
    own = Encoder(encoder.model, encoder.tokenizer, replace(encoder.settings, own_code=True), None)
    assert own.in_bfloat16() is own
    with torch.inference_mode():
        expected = torch.nn.functional.normalize(encoder.vectors(encoder.collate(tokens)))
        batches = list(fast._forward_batches(tokens))
        assert len(batches) > 2 and sorted(i for rows, _ in batches for i in rows) == [*range(8)]
        for rows, batch in batches:
            assert isinstance(batch, PackedBatch) and {group.mask for group in batch.groups} == {
                None
            }
            vectors = torch.nn.functional.normalize(fast.vectors(batch))
            assert (vectors * expected[rows]).sum(dim=1).min() > 0.999


@pytest.mark.skipif(not computes_fast(), reason="this processor has no bfloat16")
@torch.inference_mode()
def test_the_base_beneath_an_adapter_is_copied_to_bfloat16_too() -> None:
    lora, tokens = LoraConfig(target_modules=["query"], init_lora_weights=False), tokens_of()
    base = base_encoder(encoder_of(get_peft_model(index_model("bert"), lora).eval()), None)
    fast = base.in_bfloat16()
    expected = torch.nn.functional.normalize(base.vectors(base.collate(tokens)))
    for rows, batch in fast._forward_batches(tokens):
        vectors = torch.nn.functional.normalize(fast.vectors(batch))
        assert isinstance(batch, PackedBatch) and (vectors * expected[rows]).sum(1).min() > 0.999


@pytest.mark.parametrize("kind", ["bert", "gritlm"])
def test_packed_texts_are_computed_again_as_such(kind: str) -> None:
    encoder, tokens = encoder_of(index_model(kind)), tokens_of()
    encoder.model.train()
    batch = pack(tokens, [[7, 1, 4], [3], [6, 0, 5], [2]], encoder.model)
    _, direct = gradients(encoder, batch)
    enable_checkpointing(encoder.model)
    encoder.model = copy.deepcopy(encoder.model)  # as where weights are sharded
    passes = []
    linear = next(m for m in encoder.model.modules() if isinstance(m, torch.nn.Linear))
    linear.register_forward_pre_hook(lambda *_: passes.append(1))
    _, recomputed = gradients(encoder, batch)
    assert sum(passes) == 2 and direct.keys() == recomputed.keys()
    assert all(torch.equal(direct[name], recomputed[name]) for name in direct)
    assert encoder.model.config._attn_implementation == "sdpa"
    # Padded ones then too.
    _, padded = gradients(encoder, encoder.collate(tokens))
    assert all(torch.allclose(direct[name], padded[name], rtol=1e-4, atol=1e-5) for name in direct)


def test_attention_dropout_is_on_in_training_alone() -> None:
    model = index_model("bert", attention_probs_dropout_prob=0.5)
    encoder, tokens = encoder_of(model), tokens_of()
    packed = pack(tokens, [list(range(len(tokens)))], model)
    model.eval()
    assert torch.equal(encoder.vectors(packed), encoder.vectors(packed))
    model.train()
    assert not torch.allclose(encoder.vectors(packed), encoder.vectors(packed))


def test_only_what_is_known_to_be_the_same_is_packed() -> None:
    model = index_model("bert")
    assert can_pack(model, 16)
    model.set_attn_implementation("eager")
    assert not can_pack(model, 16)
    assert isinstance(encoder_of(model).batch(tokens_of()), TokenBatch)
    assert not can_pack(index_model("bert", is_decoder=True), 16)
    # A window as long as the texts hides nothing.
    assert can_pack(index_model("mistral", sliding_window=16), 16)
    assert not can_pack(index_model("mistral", sliding_window=15), 16)
    assert not can_pack(index_model("qwen3", use_sliding_window=True, sliding_window=8), 16)


def by_hand(q: Any, k: Any, v: Any, bounds: Any, longest: int, scale: Any, causal: bool) -> Any:
    """What flash attention computes, text by text: the last key's weight on an earlier query is 0."""
    assert bounds.dtype == torch.int32 and longest == max(LENGTHS)
    assert len(k) == len(v) == len(q) == bounds[-1]
    outputs = []
    times = q.shape[1] // k.shape[1]
    for start, end in itertools.pairwise(bounds.tolist()):
        queries, keys, values = q[start:end], k[start:end], v[start:end]
        keys, values = (side.repeat_interleave(times, dim=1) for side in (keys, values))
        weights = torch.einsum("qhd,khd->hqk", queries, keys) * scale
        if causal:
            later = torch.ones(end - start, end - start).triu(1).bool()
            weights = weights.masked_fill(later, -torch.inf)
        outputs.append(torch.einsum("hqk,khd->qhd", weights.softmax(-1), values))
    return torch.cat(outputs)


@pytest.mark.parametrize("kind", ["bert", *DECODERS])
def test_flash_attention_gets_the_texts_bounds(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel itself needs a GPU: its inputs give the vectors of padded texts."""
    encoder, tokens = encoder_of(index_model(kind), "last"), tokens_of()
    expected, theirs = gradients(encoder, encoder.collate(tokens))
    queries = []
    monkeypatch.setattr(
        "claim2source.models.packed._varlen_for", lambda query: queries.append(query) or by_hand
    )
    batch = encoder.batch(tokens)
    assert isinstance(batch, PackedBatch)
    assert batch.bounds.diff().sort().values.tolist() == sorted(LENGTHS)
    assert [int(batch.positions[i]) for i in batch.bounds[:-1]] == [0] * len(LENGTHS)
    vectors, ours = gradients(encoder, batch)
    assert len(queries) == 2  # layers
    assert torch.allclose(vectors, expected, atol=1e-5)
    assert all(torch.allclose(ours[name], theirs[name], atol=1e-4) for name in theirs)


def test_no_flash_attention_on_a_cpu_or_with_dropout(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _varlen_for(torch.zeros(1, 2, 3, 8, dtype=torch.bfloat16)) is None
    model = index_model("bert", attention_probs_dropout_prob=0.5).train()
    monkeypatch.setattr("claim2source.models.packed._varlen_for", lambda query: by_hand)
    encoder, tokens = encoder_of(model), tokens_of()
    assert not torch.equal(*(encoder.vectors(encoder.batch(tokens)) for _ in range(2)))


@pytest.mark.parametrize("groups", [True, False])
def test_torchs_attention_for_packed_texts_takes_what_it_is_given(
    groups: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its arguments by name, of torch 2.11 without groups of heads and later; a GPU alone
    computes with them."""
    import torch.nn.attention.varlen as library

    arguments: dict[str, Any] = {}
    real = inspect.signature(library.varlen_attn)
    if not groups:
        older = [value for name, value in real.parameters.items() if name != "enable_gqa"]
        real = real.replace(parameters=older)
    elif "enable_gqa" not in real.parameters:
        pytest.skip("torch 2.11")

    def note(*values: Any, **extra: Any) -> torch.Tensor:
        arguments.update(real.bind(*values, **extra).arguments)
        return torch.empty(1)

    note.__signature__ = real  # type: ignore[attr-defined]
    monkeypatch.setattr(library, "varlen_attn", note)
    flash_varlen.cache_clear()
    try:
        varlen = flash_varlen()
        q, k, bounds = torch.zeros(5, 4, 8), torch.rand(5, 2, 8), torch.tensor([0, 2, 5])
        varlen(q, k, k + 1, bounds, 3, 0.5, True)
        assert arguments["query"] is q and arguments["cu_seq_q"] is arguments["cu_seq_k"] is bounds
        heads = [0, 1] if groups else [0, 0, 1, 1]
        assert arguments["key"].equal(k[:, heads]) and arguments["value"].equal(k[:, heads] + 1)
        assert arguments["max_q"] == arguments["max_k"] == 3 and arguments["scale"] == 0.5
        assert arguments["window_size"] == (-1, 0) and arguments.get("enable_gqa", True)
        varlen(q, q, q, bounds, 3, 0.5, False)
        assert arguments["key"] is q and arguments["window_size"] == (-1, -1)
        assert not arguments.get("enable_gqa", False)
    finally:
        flash_varlen.cache_clear()


def test_a_batch_moves_as_a_whole() -> None:
    batch = pack(tokens_of(), [[1, 0], [2, 3, 4, 5, 6, 7]], index_model("bert")).to("meta")
    for part in (batch, *batch.groups):
        values = [getattr(part, field.name) for field in fields(part)]
        tensors = [value for value in values if isinstance(value, torch.Tensor)]
        assert tensors and all(value.is_meta for value in tensors)
    assert batch.real_tokens == sum(LENGTHS)


def test_the_models_own_attention_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, tokens = encoder_of(index_model("bert")), tokens_of()
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
    encoder = encoder_of(peft.get_peft_model(index_model("bert"), config))
    tokens = tokens_of()
    expected, theirs = gradients(encoder, encoder.collate(tokens))
    batch = encoder.batch(tokens)
    assert isinstance(batch, PackedBatch)
    vectors, ours = gradients(encoder, batch)
    assert torch.allclose(vectors, expected, atol=1e-5)
    assert ours.keys() == theirs.keys() and any(trained in name for name in ours)
    for name, gradient in ours.items():
        assert torch.allclose(gradient, theirs[name], rtol=1e-3, atol=1e-4), name


def test_a_passs_gradient_of_the_table_holds_its_own_rows_alone_and_adds_up() -> None:
    encoder, tokens = encoder_of(index_model("bert")), tokens_of()
    table = encoder.model.get_input_embeddings().weight
    arrived: list[int] = []
    table.register_hook(lambda gradient: arrived.append(gradient._values().shape[0]))  # sparse
    _, full = gradients(encoder, encoder.batch(tokens))
    assert arrived == [sum(LENGTHS)] and table.grad.layout == torch.strided
    encoder.model.zero_grad(set_to_none=True)
    weights = torch.arange(len(tokens) * 16).reshape(-1, 16).sin()
    for part in (slice(0, 3), slice(3, None)):
        (encoder.vectors(encoder.batch(tokens[part])) * weights[part]).sum().backward()
    assert arrived[1:] == [sum(LENGTHS[:3]), sum(LENGTHS[3:])]
    assert torch.allclose(table.grad, full["embeddings.word_embeddings.weight"], atol=1e-5)
    with torch.no_grad():
        encoder.model.zero_grad(set_to_none=True)
        encoder.vectors(encoder.batch(tokens))
    assert table.grad is None  # vectors without a gradient leave no trace
