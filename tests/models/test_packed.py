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
from torch import allclose
from torch.nn.functional import normalize

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
        sizes |= {
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "use_cache": False,
        }
    name = KINDS.get(kind, "Mistral")
    config_type = getattr(transformers, f"{name}Config")
    model_type = getattr(transformers, f"{name}Model")
    config = config_type(**sizes | changes)
    model = model_type(config)
    if kind == "gritlm":
        model.config.is_causal = False
    return model


def encoder_of(model: Any, pooling: Any = "mean") -> Encoder:
    settings = EncoderSettings(pooling=pooling, normalize=False, max_length=16)
    return Encoder(model, NoTokenizer(), settings, None)  # type: ignore[arg-type]


def tokens_of(lengths: list[int] = LENGTHS) -> list[Tokens]:
    draw = torch.Generator().manual_seed(1)
    found = []
    for n in lengths:
        ids = torch.randint(2, 40, (n,), generator=draw)
        tokens = Tokens(tuple(ids.tolist()), skip=min(1, n - 1))
        found.append(tokens)
    return found


def gradients(encoder: Encoder, batch: TokenBatch | PackedBatch) -> tuple[Any, dict[str, Any]]:
    encoder.model.zero_grad(set_to_none=True)
    vectors = encoder.vectors(batch)
    numbers = torch.arange(vectors.numel())
    weights = numbers.reshape(vectors.shape).sin()
    (vectors * weights).sum().backward()
    found = {}
    for name, parameter in encoder.model.named_parameters():
        if parameter.grad is not None:
            found[name] = parameter.grad
    return vectors.detach(), found


def check_gradients(ours: dict[str, Any], theirs: dict[str, Any], rtol: float, atol: float) -> None:
    """Check the gradients of all parameters."""
    for name, gradient in ours.items():
        assert allclose(gradient, theirs[name], rtol=rtol, atol=atol), name


MIXED = [[7, 1, 4], [3], [6, 0, 5], [2]]


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
@pytest.mark.parametrize("kind", [*ENCODERS, *DECODERS])
def test_vectors_and_gradients_are_those_of_padded_texts(kind: str, pooling: str) -> None:
    model = index_model(kind)
    encoder = encoder_of(model, pooling)
    tokens = tokens_of()
    packed = encoder.batch(tokens)
    total = sum(LENGTHS)
    assert isinstance(packed, PackedBatch)
    assert packed.real_tokens == total
    assert packed.padded_tokens == total

    padded = encoder.collate(tokens)
    expected, theirs = gradients(encoder, padded)
    # In a causal decoder, the first token attends only to itself.
    if pooling != "cls" or kind in (*ENCODERS, "gritlm"):
        distinct = expected.unique(dim=0)
        assert len(distinct) == len(LENGTHS)
    one_group = [[2, 1, 0, 4, 3, 7, 6, 5]]
    for groups in (MIXED, one_group):
        batch = pack(tokens, groups, encoder.model)
        vectors, ours = gradients(encoder, batch)
        assert allclose(vectors, expected, atol=1e-6)
        assert ours.keys() == theirs.keys()
        check_gradients(ours, theirs, rtol=1e-4, atol=1e-5)
    vectors, _ = gradients(encoder, packed)
    assert allclose(vectors, expected, atol=1e-6)


@pytest.mark.skipif(not computes_fast(), reason="this processor has no bfloat16")
@pytest.mark.parametrize("kind", [*ENCODERS, *DECODERS])
def test_a_copy_in_bfloat16_gives_nearly_the_vectors_of_float32(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("claim2source.models.encoder._BFLOAT16_ROW", 9)  # several rows
    model = index_model(kind).eval()
    encoder = encoder_of(model)
    tokens = tokens_of()
    fast = encoder.in_bfloat16()
    fast_types = {tensor.dtype for tensor in fast.model.parameters()}
    own_types = {tensor.dtype for tensor in encoder.model.parameters()}
    buffer_types = {tensor.dtype for tensor in fast.model.buffers()}
    assert fast.settings.dtype == "bfloat16"
    assert fast.in_bfloat16() is fast
    assert fast_types == {torch.bfloat16}
    assert own_types == {torch.float32}
    assert torch.bfloat16 not in buffer_types

    settings = replace(encoder.settings, own_code=True)
    own = Encoder(encoder.model, encoder.tokenizer, settings, None)
    assert own.in_bfloat16() is own
    with torch.inference_mode():
        padded = encoder.collate(tokens)
        expected = normalize(encoder.vectors(padded))
        batches = list(fast._forward_batches(tokens))
        assert len(batches) > 2
        all_rows = sorted(i for rows, _ in batches for i in rows)
        assert all_rows == [*range(8)]
        for rows, batch in batches:
            assert isinstance(batch, PackedBatch)
            masks = {group.mask for group in batch.groups}
            assert masks == {None}
            vectors = normalize(fast.vectors(batch))
            similarities = (vectors * expected[rows]).sum(dim=1)
            assert similarities.min() > 0.999


@pytest.mark.skipif(not computes_fast(), reason="this processor has no bfloat16")
@torch.inference_mode()
def test_the_base_beneath_an_adapter_is_copied_to_bfloat16_too() -> None:
    lora = LoraConfig(target_modules=["query"], init_lora_weights=False)
    tokens = tokens_of()
    model = get_peft_model(index_model("bert"), lora).eval()
    base = base_encoder(encoder_of(model), None)
    fast = base.in_bfloat16()
    padded = base.collate(tokens)
    expected = normalize(base.vectors(padded))
    for rows, batch in fast._forward_batches(tokens):
        vectors = normalize(fast.vectors(batch))
        assert isinstance(batch, PackedBatch)
        similarities = (vectors * expected[rows]).sum(1)
        assert similarities.min() > 0.999


@pytest.mark.parametrize("kind", ["bert", "gritlm"])
def test_packed_texts_are_computed_again_as_such(kind: str) -> None:
    encoder = encoder_of(index_model(kind))
    tokens = tokens_of()
    encoder.model.train()
    batch = pack(tokens, MIXED, encoder.model)
    _, direct = gradients(encoder, batch)
    enable_checkpointing(encoder.model)
    encoder.model = copy.deepcopy(encoder.model)  # as where weights are sharded
    passes = []
    modules = encoder.model.modules()
    linear = next(module for module in modules if isinstance(module, torch.nn.Linear))
    linear.register_forward_pre_hook(lambda *_: passes.append(1))
    _, recomputed = gradients(encoder, batch)
    assert sum(passes) == 2
    assert direct.keys() == recomputed.keys()
    for name in direct:
        assert torch.equal(direct[name], recomputed[name])
    assert encoder.model.config._attn_implementation == "sdpa"
    # Padded ones then too.
    _, padded = gradients(encoder, encoder.collate(tokens))
    check_gradients(direct, padded, rtol=1e-4, atol=1e-5)


def test_attention_dropout_is_on_in_training_alone() -> None:
    model = index_model("bert", attention_probs_dropout_prob=0.5)
    encoder = encoder_of(model)
    tokens = tokens_of()
    one_group = [list(range(len(tokens)))]
    packed = pack(tokens, one_group, model)

    def twice() -> tuple[Any, Any]:
        first = encoder.vectors(packed)
        second = encoder.vectors(packed)
        return first, second

    model.eval()
    first, second = twice()
    assert torch.equal(first, second)
    model.train()
    first, second = twice()
    assert not allclose(first, second)


def test_only_what_is_known_to_be_the_same_is_packed() -> None:
    model = index_model("bert")
    assert can_pack(model, 16)
    model.set_attn_implementation("eager")
    assert not can_pack(model, 16)
    batch = encoder_of(model).batch(tokens_of())
    assert isinstance(batch, TokenBatch)
    decoder = index_model("bert", is_decoder=True)
    assert not can_pack(decoder, 16)
    # A window as long as the texts hides nothing.
    as_long = index_model("mistral", sliding_window=16)
    shorter = index_model("mistral", sliding_window=15)
    qwen3 = index_model(
        "qwen3",
        use_sliding_window=True,
        sliding_window=8,
    )
    assert can_pack(as_long, 16)
    assert not can_pack(shorter, 16)
    assert not can_pack(qwen3, 16)


def by_hand(q: Any, k: Any, v: Any, bounds: Any, longest: int, scale: Any, causal: bool) -> Any:
    """What flash attention computes, text by text: the last key's weight on an earlier query is 0."""
    assert bounds.dtype == torch.int32
    assert longest == max(LENGTHS)
    length = len(q)
    assert len(k) == length
    assert len(v) == length
    assert length == bounds[-1]
    outputs = []
    times = q.shape[1] // k.shape[1]
    for start, end in itertools.pairwise(bounds.tolist()):
        queries = q[start:end]
        keys = k[start:end].repeat_interleave(times, dim=1)
        values = v[start:end].repeat_interleave(times, dim=1)
        weights = torch.einsum("qhd,khd->hqk", queries, keys) * scale
        if causal:
            square = torch.ones(end - start, end - start)
            later = square.triu(1).bool()
            weights = weights.masked_fill(later, -torch.inf)
        shares = weights.softmax(-1)
        output = torch.einsum("hqk,khd->qhd", shares, values)
        outputs.append(output)
    return torch.cat(outputs)


@pytest.mark.parametrize("kind", ["bert", *DECODERS])
def test_flash_attention_gets_the_texts_bounds(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel itself needs a GPU: its inputs give the vectors of padded texts."""
    encoder = encoder_of(index_model(kind), "last")
    tokens = tokens_of()
    padded = encoder.collate(tokens)
    expected, theirs = gradients(encoder, padded)
    queries = []

    def varlen_for(query: Any) -> Any:
        queries.append(query)
        return by_hand

    monkeypatch.setattr("claim2source.models.packed._varlen_for", varlen_for)
    batch = encoder.batch(tokens)
    assert isinstance(batch, PackedBatch)
    lengths = batch.bounds.diff().sort().values
    firsts = [int(batch.positions[i]) for i in batch.bounds[:-1]]
    assert lengths.tolist() == sorted(LENGTHS)
    assert firsts == [0] * len(LENGTHS)
    vectors, ours = gradients(encoder, batch)
    assert len(queries) == 2  # layers
    assert allclose(vectors, expected, atol=1e-5)
    for name, gradient in theirs.items():
        assert allclose(ours[name], gradient, atol=1e-4)


def test_no_flash_attention_on_a_cpu_or_with_dropout(monkeypatch: pytest.MonkeyPatch) -> None:
    query = torch.zeros(1, 2, 3, 8, dtype=torch.bfloat16)
    assert _varlen_for(query) is None
    model = index_model("bert", attention_probs_dropout_prob=0.5).train()
    monkeypatch.setattr("claim2source.models.packed._varlen_for", lambda query: by_hand)
    encoder = encoder_of(model)
    tokens = tokens_of()
    first = encoder.vectors(encoder.batch(tokens))
    second = encoder.vectors(encoder.batch(tokens))
    assert not torch.equal(first, second)


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
        bound = real.bind(*values, **extra)
        arguments.update(bound.arguments)
        return torch.empty(1)

    note.__signature__ = real  # type: ignore[attr-defined]
    monkeypatch.setattr(library, "varlen_attn", note)
    flash_varlen.cache_clear()
    try:
        varlen = flash_varlen()
        q = torch.zeros(5, 4, 8)
        k = torch.rand(5, 2, 8)
        bounds = torch.tensor([0, 2, 5])
        varlen(q, k, k + 1, bounds, 3, 0.5, True)
        assert arguments["query"] is q
        assert arguments["cu_seq_q"] is bounds
        assert arguments["cu_seq_k"] is bounds
        heads = [0, 1] if groups else [0, 0, 1, 1]
        keys = k[:, heads]
        assert arguments["key"].equal(keys)
        assert arguments["value"].equal(keys + 1)
        assert arguments["max_q"] == 3
        assert arguments["max_k"] == 3
        assert arguments["scale"] == 0.5
        assert arguments["window_size"] == (-1, 0)
        assert arguments.get("enable_gqa", True)
        varlen(q, q, q, bounds, 3, 0.5, False)
        assert arguments["key"] is q
        assert arguments["window_size"] == (-1, -1)
        assert not arguments.get("enable_gqa", False)
    finally:
        flash_varlen.cache_clear()


def test_a_batch_moves_as_a_whole() -> None:
    groups = [[1, 0], [2, 3, 4, 5, 6, 7]]
    model = index_model("bert")
    batch = pack(tokens_of(), groups, model).to("meta")
    for part in (batch, *batch.groups):
        values = [getattr(part, field.name) for field in fields(part)]
        tensors = [value for value in values if isinstance(value, torch.Tensor)]
        assert tensors
        assert all(value.is_meta for value in tensors)
    assert batch.real_tokens == sum(LENGTHS)


def test_the_models_own_attention_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = encoder_of(index_model("bert"))
    tokens = tokens_of()
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
    [
        ("all-linear", "lora_A"),
        (["word_embeddings"], "lora_embedding"),  # the table itself, too
    ],
)
def test_a_lora_adapter_is_trained_alike(targets: Any, trained: str) -> None:
    import peft

    config = peft.LoraConfig(r=2, target_modules=targets, init_lora_weights=False)
    model = peft.get_peft_model(index_model("bert"), config)
    encoder = encoder_of(model)
    tokens = tokens_of()
    padded = encoder.collate(tokens)
    expected, theirs = gradients(encoder, padded)
    batch = encoder.batch(tokens)
    assert isinstance(batch, PackedBatch)
    vectors, ours = gradients(encoder, batch)
    assert allclose(vectors, expected, atol=1e-5)
    assert ours.keys() == theirs.keys()
    assert any(trained in name for name in ours)
    check_gradients(ours, theirs, rtol=1e-3, atol=1e-4)


def test_a_passs_gradient_of_the_table_holds_its_own_rows_alone_and_adds_up() -> None:
    encoder = encoder_of(index_model("bert"))
    tokens = tokens_of()
    table = encoder.model.get_input_embeddings().weight
    arrived: list[int] = []

    def note(gradient: Any) -> None:
        rows = gradient._values()  # sparse
        arrived.append(rows.shape[0])

    table.register_hook(note)
    _, full = gradients(encoder, encoder.batch(tokens))
    assert arrived == [sum(LENGTHS)]
    assert table.grad.layout == torch.strided

    encoder.model.zero_grad(set_to_none=True)
    numbers = torch.arange(len(tokens) * 16)
    weights = numbers.reshape(-1, 16).sin()
    for part in (slice(0, 3), slice(3, None)):
        batch = encoder.batch(tokens[part])
        weighted = encoder.vectors(batch) * weights[part]
        weighted.sum().backward()
    first = sum(LENGTHS[:3])
    second = sum(LENGTHS[3:])
    whole = full["embeddings.word_embeddings.weight"]
    assert arrived[1:] == [first, second]
    assert allclose(table.grad, whole, atol=1e-5)

    with torch.no_grad():
        encoder.model.zero_grad(set_to_none=True)
        encoder.vectors(encoder.batch(tokens))
    assert table.grad is None  # vectors without a gradient leave no trace
