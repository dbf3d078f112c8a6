"""GradCache: the gradients of the plain loss, whatever the chunks, dropout included."""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from claim2source.models import Encoder, ModelConfig, Template, Tokens, resolve
from claim2source.models.packed import PackedBatch, enable_checkpointing
from claim2source.training.data import length_chunks, token_chunks
from claim2source.training.loss_list import Losses
from claim2source.training.losses import LossInputs, LossTargets, combined
from claim2source.training.module import GradCache
from claim2source.training.resume import random_state
from tests.models.mistral import CLAIM, SOURCE, save_mistral
from tests.training.own_losses import NearBase, Uniformity
from tests.training.small import relative_gap, save_small_model

TEXTS = [
    "masks cut outbreaks",
    "a study",
    "Effect of masks on health. We studied masks in 100 adults.",
    "coffee",
    "Effect of coffee on sleep. A trial.",
    "vitamin D does nothing, says new trial",
    "Vitamin D and death",
    "statins save lives, they found in a huge trial of adults",
    "tea",
    "Aspirin in old age: a randomised trial in Australia",
    "aspirin useless?",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_small_model(tmp_path_factory.mktemp("model"), dropout=0.2)


@pytest.fixture(scope="module")
def bert(folder: Path) -> Encoder:
    """The encoder, in training; its weights do not change."""
    return loaded(folder)


@pytest.fixture(scope="module")
def gritlm_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_mistral(tmp_path_factory.mktemp("gritlm") / "model", attention_dropout=0.2)


@pytest.fixture(params=["bert", "gritlm"])
def either(request: pytest.FixtureRequest) -> Path:
    """A BERT, and a bidirectional decoder that does not pool its instruction."""
    name = "folder" if request.param == "bert" else "gritlm_folder"
    return Path(request.getfixturevalue(name))


@pytest.fixture(params=["padded", "as_trained"])
def encode(request: pytest.FixtureRequest) -> Callable[[Encoder, list[Tokens]], torch.Tensor]:
    """Vectors of padded texts, and as in training: packed if possible."""
    if request.param == "padded":
        return lambda encoder, tokens: encoder.vectors(encoder.collate(tokens))

    def packed(encoder: Encoder, tokens: list[Tokens]) -> torch.Tensor:
        batch = encoder.batch(tokens)
        assert isinstance(batch, PackedBatch)
        return encoder.vectors(batch)

    return packed


def loaded(folder: Path, *, checkpointing: bool = False, lora: bool = False) -> Encoder:
    spec = ModelConfig(name=str(folder), pooling="mean", max_length=24)
    if json.loads((folder / "config.json").read_text())["model_type"] == "mistral":
        template = Template(claim=CLAIM, source=SOURCE, pool_prefix=False)
        spec = replace(spec, max_length=160, template=template, bidirectional=True)
    encoder = resolve(spec, "cpu").encoder
    if lora:
        from peft import LoraConfig, get_peft_model

        torch.manual_seed(1)
        config = LoraConfig(
            r=4, lora_dropout=0.2, target_modules="all-linear", init_lora_weights=False
        )
        encoder.model = get_peft_model(encoder.model, config)  # type: ignore[assignment]
    if checkpointing:
        enable_checkpointing(encoder.model)
        if lora:
            encoder.model.enable_input_require_grads()
    encoder.model.train()
    return encoder


LOSSES = {
    "ours": Losses(),
    "own": Losses([Uniformity(0.3), NearBase(0.2, noise=0.0)]),
}


def batch_loss(
    temperature: float, losses: Losses = LOSSES["ours"]
) -> Callable[[torch.Tensor], torch.Tensor]:
    def loss(vectors: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):
            claims, sources, views = vectors[:4], vectors[4:9], vectors[9:]
            masked = torch.zeros(4, len(sources), dtype=torch.bool)
            targets = LossTargets(
                positives=torch.arange(4),
                masked=masked,
                base_claims=torch.ones_like(claims).div(8).detach(),
                owners=torch.tensor([0, 2]),
            )
            inputs = LossInputs(claims, sources, views, views[:0], targets, temperature)
            return combined(losses.active, inputs)[0]

    return loss


def gradients(
    whole: bool,
    encoder: Encoder,
    encode: Callable[[Encoder, list[Tokens]], torch.Tensor],
    tokens: list[Tokens],
    chunks: Sequence[Sequence[int]],
    temperature: float,
    *,
    seed: int = 5,
    autocast: bool = False,
    losses: Losses = LOSSES["ours"],
) -> tuple[float, dict[str, torch.Tensor]]:
    encoder.model.zero_grad(set_to_none=True)
    torch.manual_seed(seed)

    def vectors(rows: Sequence[int]) -> torch.Tensor:
        return encode(encoder, [tokens[row] for row in rows])

    # A weight's cast that all chunks of the plain pass share would sum its gradient in bf16.
    context: Any = (
        torch.autocast("cpu", torch.bfloat16, cache_enabled=not whole)
        if autocast
        else nullcontext()
    )
    with context:
        cache = GradCache(chunks, vectors, batch_loss(temperature, losses), whole)
        loss = cache.forward()
        cache.backward(loss)
    gradient_of = {
        name: weight.grad.clone()
        for name, weight in encoder.model.named_parameters()
        if weight.grad is not None
    }
    return float(loss.detach()), gradient_of


@pytest.mark.parametrize("size", [1, 4, 11])
@pytest.mark.parametrize(("temperature", "name"), [(0.02, "ours"), (1.0, "ours"), (1.0, "own")])
def test_gradients_are_the_plain_ones_with_dropout(
    bert: Encoder, encode: Any, size: int, temperature: float, name: str
) -> None:
    """Also for a user's losses; a text, four or all of them a chunk."""
    losses, encoder = LOSSES[name], bert
    tokens = encoder.tokenize(TEXTS, "claim")
    chunks = length_chunks([len(text.ids) for text in tokens], size)
    assert sorted(row for rows in chunks for row in rows) == list(range(len(TEXTS)))
    reference = gradients(True, encoder, encode, tokens, chunks, temperature, losses=losses)
    after = random_state()["cpu"]
    chunked = gradients(False, encoder, encode, tokens, chunks, temperature, losses=losses)
    assert chunked[0] == pytest.approx(reference[0], rel=1e-6)
    assert relative_gap(reference[1], chunked[1]) < 1e-5
    # The RNG state is that after the plain pass, or the next step would differ.
    assert torch.equal(after, random_state()["cpu"])
    # Dropout is on, and it matters: another RNG state gives other gradients.
    reseeded = gradients(False, encoder, encode, tokens, chunks, temperature, seed=6, losses=losses)
    assert relative_gap(reference[1], reseeded[1]) > 1e-2


ALWAYS = [(True, True, True)]


@pytest.mark.parametrize(
    ("lora", "checkpointing", "autocast"),
    [
        pytest.param(*on, marks=() if on in ALWAYS else pytest.mark.slow)
        for on in product([False, True], repeat=3)
    ],
)
def test_with_checkpointing_adapters_and_autocast(
    either: Path, encode: Any, lora: bool, checkpointing: bool, autocast: bool
) -> None:
    encoder = loaded(either, lora=lora, checkpointing=checkpointing)
    tokens = encoder.tokenize(TEXTS, "claim")
    chunks = length_chunks([len(text.ids) for text in tokens], 3)
    reference = gradients(True, encoder, encode, tokens, chunks, 0.05, autocast=autocast)
    chunked = gradients(False, encoder, encode, tokens, chunks, 0.05, autocast=autocast)
    trained = {n for n, p in encoder.model.named_parameters() if p.requires_grad}
    # BERT's pooler is not used.
    assert {n for n in trained if "pooler" not in n} == reference[1].keys()
    assert relative_gap(reference[1], chunked[1]) < 1e-5
    # Dropout is on, in a decoder too: another RNG state gives other gradients.
    reseeded = gradients(False, encoder, encode, tokens, chunks, 0.05, autocast=autocast, seed=6)
    assert relative_gap(reference[1], reseeded[1]) > 1e-2


def test_the_last_chunk_is_encoded_once_and_is_full_of_the_longest_texts(bert: Encoder) -> None:
    encoder = bert
    tokens = encoder.tokenize(TEXTS, "claim")
    lengths = [len(text.ids) for text in tokens]
    chunks = length_chunks(lengths, 3)
    assert length_chunks(lengths, 50) == length_chunks(lengths, 11)
    calls: list[list[int]] = []

    def encode(rows: Sequence[int]) -> torch.Tensor:
        calls.append(list(rows))
        return encoder.vectors(encoder.batch([tokens[row] for row in rows]))

    cache = GradCache(chunks, encode, batch_loss(0.05))
    loss = cache.forward()
    assert calls == chunks
    cache.backward(loss)
    assert calls == [*chunks, *chunks[:-1]] and len(chunks) == 4
    longest = sorted(len(text.ids) for text in tokens)[-3:]
    assert [len(tokens[row].ids) for row in chunks[-1]] == longest


@settings(max_examples=40)
@given(st.permutations(range(6)), st.sets(st.integers(1, 5)), st.booleans())
def test_the_loss_has_all_rows_in_their_own_order(
    rows: list[int], cuts: set[int], whole: bool
) -> None:
    """However they are cut into chunks; each row has its own gradient."""
    table = torch.arange(12.0).view(6, 2).requires_grad_()
    weights = torch.arange(12.0).view(6, 2) + 1
    chunks = [rows[start:end] for start, end in pairwise([0, *sorted(cuts), 6])]

    def loss(vectors: torch.Tensor) -> torch.Tensor:
        assert torch.equal(vectors, table)
        return (vectors * weights).sum()

    cache = GradCache(chunks, lambda chunk: table[list(chunk)], loss, whole)
    cache.backward(cache.forward())
    assert table.grad is not None and torch.equal(table.grad, weights)


@given(st.lists(st.integers(1, 40), max_size=30), st.integers(8, 100), st.booleans())
def test_chunks_of_tokens(lengths: list[int], budget: int, packed: bool) -> None:
    """Every text once, the longest last, no chunk too large, and none that the next would fit."""
    chunks = token_chunks(lengths, budget, packed=packed)
    assert sorted(row for rows in chunks for row in rows) == list(range(len(lengths)))
    sizes = [[lengths[row] for row in rows] for rows in chunks]
    assert [size for part in sizes for size in part] == sorted(lengths)

    def tokens(part: list[int]) -> int:
        return sum(part) if packed else len(part) * max(part)

    assert all(part and (len(part) == 1 or tokens(part) <= budget) for part in sizes)
    for shorter, part in pairwise(sizes):
        assert tokens([shorter[-1], *part]) > budget


class Saved:
    """A tensor that a graph keeps for its backward pass, alive exactly as long as it is kept."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor.detach()  # an output that holds its own graph would keep it alive


def test_activations_of_one_chunk_at_a_time(bert: Encoder) -> None:
    """The first pass keeps no graph, and the second drops each before the next is made."""
    encoder = bert
    tokens = encoder.tokenize(TEXTS, "claim")
    chunks = length_chunks([len(text.ids) for text in tokens], 1)
    tensors: weakref.WeakSet[Saved] = weakref.WeakSet()

    def pack(tensor: torch.Tensor) -> Saved:
        tensors.add(saved := Saved(tensor))
        return saved

    def most_kept(whole: bool) -> int:
        """Most tensors that are kept while another chunk is encoded."""
        before: list[int] = []

        def vectors(rows: Sequence[int]) -> torch.Tensor:
            before.append(len(tensors))
            return encoder.vectors(encoder.batch([tokens[row] for row in rows]))

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved.tensor):
            cache = GradCache(chunks, vectors, batch_loss(0.05), whole)
            cache.backward(cache.forward())
        del cache
        assert not tensors and len(before) >= len(chunks)
        return max(before)

    # A variant that keeps the graphs of all chunks is detected.
    assert 10 * most_kept(False) < most_kept(True)
