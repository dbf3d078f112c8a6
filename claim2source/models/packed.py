"""Pack texts end to end in one row, without padding, if the model's layers allow it.

Only attention combines tokens. On a GPU in 16 bits flash attention separates the texts of a row;
elsewhere texts of like length are padded for attention. All other layers (most of the arithmetic)
see no padding, and every weight's gradient is computed at once.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface

from claim2source.models.tokens import Tokens, changed

KERNEL = "claim2source_packed"
# Model types that accept positions, which start at 0 or after the padding's.
_ABSOLUTE = "bert"
_BEHIND_PADDING = "xlm-roberta"
# Decoders and one encoder that rotate by positions and pass arguments through to attention.
_ROTARY = ("llama", "mistral", "qwen2", "qwen3", "nomic_bert")
# Config of the model that is in a forward pass of packed texts; None outside of one.
_packing: ContextVar[Any] = ContextVar("packing", default=None)
# query [t, heads, d], key and value [t, fewer heads, d], texts' bounds [n + 1], longest text,
# scale, whether tokens look back only -> [t, heads, d]
Varlen = Callable[[Tensor, Tensor, Tensor, Tensor, int, "float | None", bool], Tensor]


@dataclass(frozen=True, slots=True)
class AttentionGroup:
    """Texts padded together in attention: their `tokens` in the row, and index maps.

    `padded` [texts * longest] maps padded positions to tokens, `back` [tokens] tokens to padded
    positions. `mask` is [texts, 1, 1, longest], None if all texts have one length.
    """

    tokens: int
    padded: Tensor
    back: Tensor
    mask: Tensor | None
    texts: int


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """All texts' tokens in one row [t]: id, position in the text, number of the text, if pooled.

    `firsts` and `lasts` [n] are each text's first and last token, in the order of the texts.
    `bounds` [n + 1], int32, are the texts' beginnings and the last one's end, in the order of the
    row (flash attention's cu_seqlens); `longest` is the length of the longest.
    """

    input_ids: Tensor
    positions: Tensor
    owners: Tensor
    pool_mask: Tensor
    firsts: Tensor
    lasts: Tensor
    groups: tuple[AttentionGroup, ...]
    bounds: Tensor
    longest: int

    @property
    def real_tokens(self) -> int:
        return self.input_ids.numel()

    @property
    def padded_tokens(self) -> int:
        """Count the tokens: only attention is padded."""
        return self.real_tokens

    def to(self, device: torch.device | str, non_blocking: bool = False) -> PackedBatch:
        return self._changed(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> PackedBatch:
        return self._changed(Tensor.pin_memory)

    def _changed(self, change: Callable[[Tensor], Tensor]) -> PackedBatch:
        groups = tuple(changed(group, change) for group in self.groups)
        return replace(changed(self, change), groups=groups)


def can_pack(model: Any, longest: int) -> bool:
    """Whether packing texts of at most `longest` tokens gives the same vectors."""
    config = model.config
    if config.model_type in _ROTARY:
        # Qwen's configs have a window that is not used; Llama's and Nomic's have none.
        is_used = getattr(config, "use_sliding_window", True)
        window = getattr(config, "sliding_window", None) if is_used else None
        is_known = window is None or longest <= window
    else:
        is_encoder = not getattr(config, "is_decoder", False)
        positions = getattr(config, "position_embedding_type", None)
        has_table = config.model_type in (_ABSOLUTE, _BEHIND_PADDING)
        is_known = has_table and is_encoder and positions in (None, "absolute")
    # The previous one, if another thread is in a forward pass of packed texts.
    return is_known and config._attn_implementation in ("sdpa", KERNEL)


def pack(
    tokens: Sequence[Tokens],
    groups: Sequence[Sequence[int]],
    model: Any,
) -> PackedBatch:
    """Pack texts into one row, group after group; attention pads the texts of a group."""
    order: list[int] = []
    for rows in groups:
        order += rows
    ids: list[int] = []
    for row in order:
        ids += tokens[row].ids
    lengths = torch.tensor([len(tokens[row].ids) for row in order])
    ends = lengths.cumsum(0)
    starts = ends - lengths
    text_of = torch.repeat_interleave(torch.arange(len(order)), lengths)
    positions = torch.arange(len(text_of)) - starts[text_of]
    skips = torch.tensor([tokens[row].skip for row in order])
    owner = torch.tensor(order)
    back = torch.empty_like(owner)
    back[owner] = torch.arange(len(order))
    config = model.config
    first = config.pad_token_id + 1 if config.model_type == _BEHIND_PADDING else 0
    attending: list[AttentionGroup] = []
    start = 0
    for rows in groups:
        end = start + len(rows)
        attending.append(_group(lengths[start:end]))
        start = end
    return PackedBatch(
        input_ids=torch.tensor(ids),
        positions=positions + first,
        owners=owner[text_of],
        pool_mask=positions >= skips[text_of],
        firsts=starts[back],
        lasts=ends[back] - 1,
        groups=tuple(attending),
        bounds=torch.nn.functional.pad(ends, (1, 0)).int(),
        longest=int(lengths.max()),
    )


def _group(lengths: Tensor) -> AttentionGroup:
    position = torch.arange(int(lengths.max()))
    real = position < lengths[:, None]
    # Padding repeats a text's last token; its result is masked and never used.
    column = torch.minimum(position.expand_as(real), lengths[:, None] - 1)
    padded = ((lengths.cumsum(0) - lengths)[:, None] + column).flatten()
    if bool(real.all()):
        mask = None
    else:
        mask = real[:, None, None, :]
    return AttentionGroup(
        int(lengths.sum()),
        padded,
        real.flatten().nonzero().flatten(),
        mask,
        len(lengths),
    )


def packed_hidden(model: Any, batch: PackedBatch) -> Tensor:
    """Compute the last layer's output [t, width] for the tokens of the row."""
    with _kernel(model.config):
        output = model(
            **_inputs(model, batch.input_ids[None]),
            position_ids=batch.positions[None],
            packed=batch,
        )
    hidden: Tensor = output.last_hidden_state[0]
    return hidden


def _inputs(model: Any, ids: Tensor) -> dict[str, Tensor]:
    """Return the ids or, if their embedding table is trained, its rows.

    Each row's gradient is then added to the table's, instead of a whole table for every pass. A
    GPU adds a table faster than it sorts rows.
    """
    if ids.device.type != "cpu" or not torch.is_grad_enabled():
        return {"input_ids": ids}
    table = model.get_input_embeddings()
    # A sharded table is complete only in the forward pass.
    is_plain = type(table) is torch.nn.Embedding and type(table.weight) is torch.nn.Parameter
    if not (is_plain and table.weight.requires_grad and not table.scale_grad_by_freq):
        return {"input_ids": ids}
    if table.weight.grad is None:
        table.weight.grad = torch.zeros_like(table.weight)
    rows = torch.nn.functional.embedding(ids, table.weight, table.padding_idx, sparse=True)
    return {"inputs_embeds": rows}


@contextmanager
def _kernel(config: Any) -> Iterator[None]:
    before = config._attn_implementation_internal
    config._attn_implementation_internal = KERNEL
    packing = _packing.set(config)
    try:
        yield
    finally:
        _packing.reset(packing)
        config._attn_implementation_internal = before


def enable_checkpointing(model: Any) -> None:
    """Have a model recompute activations in the backward pass, also for packed texts."""
    # Reentrant checkpointing would pass no gradient through a frozen first block.
    model.gradient_checkpointing_enable({"use_reentrant": False, "context_fn": _contexts})


def _contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    # Of the model that computes: a sharded model is a copy of the one that was prepared.
    config = _packing.get()
    if config is None:
        return nullcontext(), nullcontext()
    return nullcontext(), _kernel(config)


class _GatherTokens(torch.autograd.Function):
    """Gather padded positions [n, ..] as tokens [t, ..], each position at most once."""

    @staticmethod
    def forward(ctx: Any, padded: Tensor, back: Tensor) -> Tensor:
        ctx.save_for_backward(back)
        ctx.length = len(padded)
        return padded.index_select(0, back)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (back,) = ctx.saved_tensors
        zeros = gradients[0].new_zeros((ctx.length, *gradients[0].shape[1:]))
        return zeros.index_copy_(0, back, gradients[0]), None


class _SpreadTokens(torch.autograd.Function):
    """Spread tokens [t, ..] to padded positions [n, ..]; padding has no gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        tokens: Tensor,
        padded: Tensor,
        back: Tensor,
    ) -> Tensor:
        ctx.save_for_backward(back)
        return tokens.index_select(0, padded)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (back,) = ctx.saved_tensors
        return gradients[0].index_select(0, back), None, None


def _attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    packed: PackedBatch,
    dropout: float = 0.0,
    scaling: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attend within each text: [1, heads, t, d] to [1, t, heads, d].

    Key and value may have fewer heads. A decoder's attention is causal unless its config says
    otherwise.
    """
    causal = bool(module.is_causal and getattr(module.config, "is_causal", True))
    rows = []
    for side in (query, key, value):
        rows.append(side.squeeze(0).transpose(0, 1))
    varlen = None if dropout else _varlen_for(query)
    if varlen is not None:
        queries, keys, values = rows
        bounds = packed.bounds
        longest = packed.longest
        attended = varlen(queries, keys, values, bounds, longest, scaling, causal)
        return attended[None], None
    sizes = [group.tokens for group in packed.groups]
    # Not slices: a slice's gradient is as large as the whole tensor.
    split = [side.split(sizes) for side in rows]
    parts: list[Tensor] = []
    for group, *sides in zip(packed.groups, *split, strict=True):
        if group.mask is not None:
            sides = [_SpreadTokens.apply(side, group.padded, group.back) for side in sides]  # type: ignore[no-untyped-call]
        q, k, v = (side.unflatten(0, (group.texts, -1)).transpose(1, 2) for side in sides)
        attended = torch.nn.functional.scaled_dot_product_attention(
            q,
            k,
            v,
            # Padding comes last, so that causal attention never sees it.
            attn_mask=None if causal else group.mask,
            dropout_p=dropout,
            is_causal=causal,
            scale=scaling,
            enable_gqa=q.shape[1] != k.shape[1],
        )
        attended = attended.transpose(1, 2).flatten(0, 1)
        if group.mask is not None:
            attended = _GatherTokens.apply(attended, group.back)  # type: ignore[no-untyped-call]
        parts.append(attended)
    return torch.cat(parts)[None], None


def _varlen_for(query: Tensor) -> Varlen | None:
    if query.device.type != "cuda" or query.dtype not in (torch.bfloat16, torch.float16):
        return None
    width = query.shape[-1]
    if width > 256 or width % 8:
        return None
    if torch.cuda.get_device_capability(query.device) < (8, 0):
        return None
    return flash_varlen()


@cache
def flash_varlen() -> Varlen:
    """Load torch's flash attention over texts in a row."""
    from torch.nn.attention.varlen import varlen_attn

    attend: Any = varlen_attn
    has_groups = "enable_gqa" in inspect.signature(attend).parameters

    def varlen(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        bounds: Tensor,
        longest: int,
        scale: Any,
        causal: bool,
    ) -> Tensor:
        groups = q.shape[1] // k.shape[1]
        if groups > 1 and not has_groups:  # torch 2.11 needs equal numbers of heads
            k, v = (side.repeat_interleave(groups, dim=1) for side in (k, v))
        attended = attend(
            *(q, k, v, bounds, bounds, longest, longest),
            scale=scale,
            window_size=(-1, 0 if causal else -1),
            **({"enable_gqa": groups > 1} if has_groups else {}),
        )
        assert isinstance(attended, Tensor)
        return attended

    return varlen


AttentionInterface.register(KERNEL, _attention)
