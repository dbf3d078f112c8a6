"""Encode texts as vectors, for mining, training and evaluation."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from copy import copy, deepcopy
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import Linear, Module, Parameter
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from claim2source.core.errors import ConfigError, UserError
from claim2source.core.machine import peak_memory
from claim2source.core.progress import Progress
from claim2source.core.run import Cost
from claim2source.data.store import EmbeddingSpace, Store, text_key
from claim2source.models.config import EncoderSettings, Identity, Side
from claim2source.models.fused import prepare_for_gpu
from claim2source.models.identity import config_hash, vector_key
from claim2source.models.packed import PackedBatch, can_pack, pack, packed_hidden
from claim2source.models.tokens import TokenBatch, Tokens, grouped, in_rows

# Tokens in a row of packed texts: longer rows are not faster, shorter ones are slower.
_ROW_TOKENS = 4096
# Cost of one more group of texts, in padded tokens: in attention only, in a forward pass, and
# in a training step, whose backward pass adds to the gradient of every weight.
_EXTRA_ATTENTION = 64
_EXTRA_FORWARD = 16
EXTRA_BACKWARD = 96
_EXTRA_GPU = 2048
# Padded tokens of a forward pass on a CPU: few enough for its cache.
_FORWARD_TOKENS = 2048
# Tokens in a row of packed texts in bfloat16 on a CPU: products are fast, so that calls dominate.
_BFLOAT16_ROW = 8192
# Parts of an identity that no training changes.
_UNTRAINED = {"base", "tokenizer", "dense", "modules", "types"}
# The store is written in shards of this many texts, so that a stopped run resumes.
SHARD_TEXTS = 2048


class Encoder:
    """Encode texts with a transformer, its tokenizer and settings.

    `weights` identifies the weights in the store: hashes of base and adapter, and the adapter's
    scale; None while weights are trained, and then nothing is stored. If only the claims' side
    was trained, `source_encoder` is the base model, or the teacher, and encodes the sources.
    `dense` are the Dense layers behind the pooling: those that sentence-transformers declares
    (GTR's), or, if it `projects`, the map into the teacher's space. `own_modules` are all modules
    behind the transformer if one is of the author's own class. `reads_types`: whether the
    tokenizer gives a single text token types other than 0 that the model uses (XLNet).
    `name` is the name of its vectors in the store.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        settings: EncoderSettings,
        weights: Identity | None,
    ) -> None:
        self.model = prepare_for_gpu(model)
        self.tokenizer = tokenizer
        self.settings = settings
        self.weights = weights
        self.name = ""
        self.source_encoder: Encoder | None = None
        self.dense: Module | None = None
        self.projects = False
        self.own_modules: Module | None = None
        self.reads_types = False

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def packs(self) -> bool:
        """Whether `batch` packs texts without padding."""
        if self.own_modules is not None or self.reads_types:
            return False
        return can_pack(self.model, self.settings.max_length)

    @property
    def dimensions(self) -> int:
        last = self.dense if self.own_modules is None else self.own_modules
        width = self.width if last is None else int(last.out_features)  # type: ignore[arg-type]
        return min(width, self.settings.truncate_dim or width)

    @property
    def width(self) -> int:
        """Return the length of a pooled vector, before a Dense layer."""
        return int(self.model.config.hidden_size)

    @property
    def parameters(self) -> int:
        sizes: dict[int, int] = {}
        for part in (self.model, self.dense, self.own_modules):
            if part is not None:
                # While it is trained, a projection is also a part of the model.
                for parameter in part.parameters():
                    sizes[id(parameter)] = parameter.numel()
        return sum(sizes.values())

    def tokenize(
        self,
        texts: Sequence[str],
        side: Side,
        length: int | None = None,
    ) -> list[Tokens]:
        """Tokenize texts with the side's prefix, cut at `length`, or at `max_length` without it.

        The name of a special token in a text is plain text. Raises `ConfigError` if the tokenizer
        cannot apply the template, or the template leaves no room for a text.
        """
        if not texts:
            return []
        prefix = self.settings.template.prefix(side)
        masked = bool(prefix) and not self.settings.template.pools_prefix(side)
        if masked and not self.tokenizer.is_fast:
            allowed = "true: this model's tokenizer does not return offsets"
            raise ConfigError("model.template.pool_prefix", False, allowed)
        end = self.end()
        self._require_room(side, length, len(end))
        encoded = self.tokenizer(
            [prefix + text for text in texts],
            truncation=True,
            max_length=(length or self.settings.max_length) - len(end),
            padding=False,
            split_special_tokens=self.reads_plainly(prefix),
            return_attention_mask=False,
            return_token_type_ids=self.reads_types,
            return_offsets_mapping=masked,
        )
        # A tokenizer without special tokens has no token for an empty text.
        empty = self.tokenizer.eos_token_id or self.tokenizer.pad_token_id or 0
        offsets = encoded["offset_mapping"] if masked else None
        given_types = encoded["token_type_ids"] if self.reads_types else None
        tokens: list[Tokens] = []
        for number, row in enumerate(encoded["input_ids"]):
            ids = (*row, *end) or (empty,)
            skip = 0
            if offsets is not None:
                skip = _covered(offsets[number], len(prefix))
            types: tuple[int, ...] = ()
            if given_types is not None:
                types = _padded_types(given_types[number], len(ids))
            tokens.append(Tokens(ids, min(skip, len(ids) - 1), types))
        return tokens

    def _require_room(self, side: Side, length: int | None, end: int) -> None:
        """Raise `ConfigError` if a side's prefix, with `end` tokens, leaves no room for a text."""
        prefix = self.settings.template.prefix(side)
        if not prefix:
            return
        taken = len(self.tokenizer(prefix)["input_ids"]) + end
        key = "model.max_length" if length is None else "optimisation.max_length"
        most = length or self.settings.max_length
        if most <= taken:
            allowed = f"{taken + 1} or more: the {side} template has {taken} tokens"
            raise ConfigError(key, most, allowed)

    def reads_plainly(self, prefix: str) -> bool:
        """Whether names of special tokens are plain text, so that a post cannot contain one.

        False if the prefix has special tokens.
        """
        return not any(token in prefix for token in self.tokenizer.all_special_tokens)

    def end(self) -> tuple[int, ...]:
        """Return the token to append, unless the tokenizer appends it by itself."""
        name = self.settings.template.append_token
        if not name:
            return ()
        token = self.tokenizer.get_vocab().get(name)
        if token is None:
            end_token = self.tokenizer.eos_token or self.tokenizer.sep_token
            example = f", such as {end_token!r}" if end_token else ""
            allowed = f"a token of this tokenizer{example}"
            raise ConfigError("model.template.append_token", name, allowed)
        if self.tokenizer("")["input_ids"][-1:] == [token]:
            return ()
        return (token,)

    def collate(self, tokens: Sequence[Tokens]) -> TokenBatch:
        """Pad texts on the right to the longest one."""
        rows = [torch.tensor(text.ids) for text in tokens]
        ids = pad_sequence(rows, True, self.tokenizer.pad_token_id or 0)
        positions = torch.arange(ids.shape[1])
        lengths = torch.tensor([[len(text.ids)] for text in tokens])
        skips = torch.tensor([[text.skip] for text in tokens])
        attend = positions < lengths
        pool = attend & (positions >= skips)
        types = None
        if self.reads_types:
            types = pad_sequence([torch.tensor(text.types) for text in tokens], True, 0)
        return TokenBatch(ids, attend.long(), pool.long(), types)

    def hidden(self, batch: TokenBatch) -> Tensor:
        """Compute the last layer's output [n, longest, width]."""
        inputs = {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask}
        if batch.token_types is not None:
            inputs["token_type_ids"] = batch.token_types
        output: Tensor = self.model(**inputs).last_hidden_state
        return output

    def batch(self, tokens: Sequence[Tokens]) -> TokenBatch | PackedBatch:
        """Pack texts without padding if the model allows it, else pad them."""
        if not self.packs:
            return self.collate(tokens)
        extra = _EXTRA_ATTENTION if self.device.type == "cpu" else _EXTRA_GPU
        groups = list(grouped(tokens, self._token_budget(), extra))
        return pack(tokens, groups, self.model)

    def vectors(self, batch: TokenBatch | PackedBatch) -> Tensor:
        """Compute vectors [n, dimensions] in float32, with gradient if it is enabled."""
        if isinstance(batch, PackedBatch):
            pooled = self._pool_packed(packed_hidden(self.model, batch), batch)
        else:
            pooled = self._pool(self.hidden(batch), batch)
        if self.dense is not None:
            pooled = self.dense({"sentence_embedding": pooled})["sentence_embedding"]
        pooled = pooled[:, : self.settings.truncate_dim]
        if self.settings.normalize:
            return torch.nn.functional.normalize(pooled, dim=-1)
        return pooled

    def _pool(self, hidden: Tensor, batch: TokenBatch) -> Tensor:
        if self.own_modules is not None:
            pooled: Tensor = self.own_modules(hidden, batch)
            return pooled
        rows = torch.arange(len(hidden), device=hidden.device)
        # By the mask, not by position: a batch may be padded on either side.
        if self.settings.pooling == "cls":
            return hidden[rows, batch.attention_mask.argmax(dim=1)].float()
        if self.settings.pooling == "last":
            return hidden[rows, batch.attention_mask.cumsum(dim=1).argmax(dim=1)].float()
        # Sum in float32: a bf16 sum over hundreds of tokens loses digits.
        mask = batch.pool_mask.unsqueeze(-1)
        return (hidden.float() * mask).sum(dim=1) / mask.sum(dim=1)

    def _pool_packed(self, hidden: Tensor, batch: PackedBatch) -> Tensor:
        if self.settings.pooling == "cls":
            return hidden[batch.firsts].float()
        if self.settings.pooling == "last":
            return hidden[batch.lasts].float()
        mask = batch.pool_mask[:, None].float()
        zeros = hidden.new_zeros((len(batch.firsts), hidden.shape[1]), dtype=torch.float32)
        total = zeros.index_add(0, batch.owners, hidden.float() * mask)
        return total / zeros[:, :1].index_add(0, batch.owners, mask)

    def with_claim_length(self, length: int) -> Encoder:
        """Return an encoder of the same weights that cuts claims at `length` tokens."""
        claims = copy(self)
        claims.settings = replace(self.settings, max_length=length)
        claims.source_encoder = self.source_encoder or self
        return claims

    def key(self) -> dict[str, object] | None:
        """Return everything except the text that a vector depends on; None while weights change."""
        if self.weights is None:
            return None
        return vector_key(self.weights, self.settings, self.config_hash())

    def config_hash(self) -> str:
        """Hash the model's config, whatever folder it was read from."""
        return config_hash(json.loads(self.model.config.to_json_string()))

    def encode(
        self,
        texts: Sequence[str],
        side: Side,
        *,
        store: Store | None = None,
        progress: str | Progress | None = None,
        token_budget: int | None = None,
    ) -> tuple[np.ndarray, Cost]:
        """Encode texts as float32 vectors [n, dimensions]; returns them and their cost.

        Each distinct text is encoded once, in batches of like length (at most `token_budget`
        padded tokens). Vectors in the `store` are read, new ones are written to it.
        `progress` is the label of a progress bar on stderr, or a bar that counts distinct texts.
        """
        if side == "source" and self.source_encoder is not None:
            return self.source_encoder.encode(
                texts,
                side,
                store=store,
                progress=progress,
                token_budget=token_budget,
            )
        started = time.perf_counter()
        if not len(texts):
            return np.zeros((0, self.dimensions), dtype=np.float32), Cost()
        keys = self.text_keys(texts, side)
        space = self._space(store)
        new, encoded, tokens = self._make(texts, keys, side, space, progress, token_budget)
        if space is not None:
            vectors = space.get(keys)
        else:
            vectors = np.stack([new[key] for key in keys])
        reused = len(set(keys)) - encoded
        cost = Cost(time.perf_counter() - started, len(texts), peak_memory(), tokens, reused)
        return vectors.astype(np.float32, copy=False), cost

    def fill(
        self,
        texts: Sequence[str],
        side: Side,
        store: Store,
        *,
        progress: str | Progress | None = None,
    ) -> tuple[int, Cost]:
        """Write the vectors of `texts` to the store without returning them.

        Returns the number of distinct texts encoded, and their cost. Raises `UserError` while
        weights are trained.
        """
        if side == "source" and self.source_encoder is not None:
            return self.source_encoder.fill(texts, side, store, progress=progress)
        started = time.perf_counter()
        space = self._space(store)
        if space is None:
            raise UserError("vectors cannot be stored while the weights are trained")
        keys = self.text_keys(texts, side)
        _, count, tokens = self._make(texts, keys, side, space, progress, None)
        return count, Cost(time.perf_counter() - started, count, peak_memory(), tokens)

    def in_bfloat16(self) -> Encoder:
        """Copy an encoder to bfloat16 if its processor computes faster in it, else return it.

        Inner products differ in the fourth digit; its vectors are stored separately.
        """
        settings = self.settings
        exact = self.device.type != "cpu" or settings.dtype != "float32"
        # A model's own code may mix types.
        if exact or settings.own_code or not computes_fast():
            return self
        half = copy(self)
        half.settings = replace(settings, dtype="bfloat16")
        half.model = rounded(self.model)
        return half

    def missing(
        self,
        texts: Sequence[str],
        side: Side,
        store: Store | None,
    ) -> list[int]:
        """List the positions of texts whose vectors are not in the store."""
        space = self._space(store)
        if space is None:
            return list(range(len(texts)))
        return space.missing(self.text_keys(texts, side))

    def text_keys(self, texts: Sequence[str], side: Side) -> list[bytes]:
        """Return the keys of texts in this encoder's part of the store."""
        template = self.settings.template
        return [text_key(template.stored_text(text, side)) for text in texts]

    def _space(self, store: Store | None) -> EmbeddingSpace | None:
        key = self.key()
        if store is None or key is None:
            return None
        trained = (self.weights or {}).keys() - _UNTRAINED
        name = f"{self.name} (trained)" if trained else self.name
        return store.space(key, name, self.dimensions)

    def _make(
        self,
        texts: Sequence[str],
        keys: Sequence[bytes],
        side: Side,
        space: EmbeddingSpace | None,
        progress: str | Progress | None,
        token_budget: int | None,
    ) -> tuple[dict[bytes, np.ndarray], int, int]:
        # Keep the first text of each key, in reverse order.
        distinct: dict[bytes, str] = {}
        for key, text in zip(reversed(keys), reversed(texts), strict=True):
            distinct[key] = text
        todo = list(distinct)
        if space is not None:
            todo = [todo[i] for i in space.missing(todo)]
        new: dict[bytes, np.ndarray] = {}
        total = 0
        if isinstance(progress, Progress):
            own = progress
        else:
            own = Progress(progress, len(todo))
        with own as bar:
            for start in range(0, len(todo), SHARD_TEXTS):
                chunk = todo[start : start + SHARD_TEXTS]
                chunk_texts = [distinct[key] for key in chunk]
                vectors, tokens = self._encode_chunk(chunk_texts, side, bar, token_budget)
                total += tokens
                if space is not None:
                    space.put(chunk, vectors)
                else:
                    new.update(zip(chunk, vectors, strict=True))
        return new, len(todo), total

    @torch.inference_mode()
    def _encode_chunk(
        self,
        texts: Sequence[str],
        side: Side,
        bar: Progress,
        token_budget: int | None,
    ) -> tuple[np.ndarray, int]:
        tokens = self.tokenize(texts, side)
        out = np.empty((len(texts), self.dimensions), dtype=np.float32)
        was_training = self.model.training
        if was_training:  # both calls walk through all modules
            self.model.eval()
        try:
            # An epoch of a mixed-precision run must be scored as its checkpoint will be.
            with torch.autocast(self.device.type, enabled=False):
                for rows, batch in self._forward_batches(tokens, token_budget):
                    out[rows] = self.vectors(batch).float().cpu().numpy()
                    bar.update(len(rows))
        finally:
            if was_training:
                self.model.train()
        if not np.isfinite(out).all():
            raise UserError(
                f"the model returned a vector that is not finite (dtype {self.settings.dtype})"
            )
        return out, sum(len(text.ids) for text in tokens)

    def _forward_batches(
        self,
        tokens: Sequence[Tokens],
        token_budget: int | None = None,
    ) -> Iterator[tuple[list[int], TokenBatch | PackedBatch]]:
        """Yield positions of texts and their batch on the device, for passes without gradient."""
        if self.device.type == "cpu" and self.settings.dtype == "bfloat16" and self.packs:
            for rows in in_rows(tokens, token_budget or _BFLOAT16_ROW):
                row = [tokens[position] for position in rows]
                # Texts of one length need no attention mask, which takes a third of the time.
                groups = list(grouped(row, _BFLOAT16_ROW, extra=0))
                yield rows, pack(row, groups, self.model)
        elif self._packs_on_gpu:
            for rows in in_rows(tokens, token_budget or self._token_budget()):
                packed = self.batch([tokens[position] for position in rows])
                yield rows, packed.to(self.device)
        else:
            budget, extra = self._forward_costs()
            for rows in grouped(tokens, token_budget or budget, extra):
                padded = self.collate([tokens[position] for position in rows])
                yield rows, padded.to(self.device)

    @torch.inference_mode()
    def token_vectors(
        self,
        texts: Sequence[str],
        side: Side,
    ) -> Iterator[tuple[list[int], list[Tensor], int]]:
        """Compute a vector of length 1 for every token that is pooled, before pooling.

        Yields batches of like length: positions in `texts`, tensors [tokens, width] in float32,
        and the number of tokens.
        """
        if side == "source" and self.source_encoder is not None:
            yield from self.source_encoder.token_vectors(texts, side)
            return
        tokens = self.tokenize(texts, side)
        self.model.eval()
        with torch.autocast(self.device.type, enabled=False):
            for rows in grouped(tokens, *self._forward_costs()):
                batch = self.collate([tokens[row] for row in rows]).to(self.device)
                hidden = self.hidden(batch).float()
                if self.dense is not None and self.projects:
                    # The claims' tokens are compared with those of another model.
                    hidden = self.dense({"sentence_embedding": hidden})["sentence_embedding"]
                vectors = torch.nn.functional.normalize(hidden, dim=-1)
                masks = batch.pool_mask.bool()
                pooled = [row[mask] for row, mask in zip(vectors, masks, strict=True)]
                yield rows, pooled, batch.real_tokens

    def length_batches(self, tokens: Sequence[Tokens]) -> Iterator[list[int]]:
        if self.packs:
            if self.device.type == "cpu":
                row = _ROW_TOKENS
            else:
                row = self._token_budget()
            return in_rows(tokens, row)
        extra = EXTRA_BACKWARD if self.device.type == "cpu" else _EXTRA_GPU
        return grouped(tokens, self._token_budget(), extra)

    @property
    def _packs_on_gpu(self) -> bool:
        # Flash attention separates the texts of a row.
        return self.device.type != "cpu" and self.settings.dtype != "float32" and self.packs

    def _forward_costs(self) -> tuple[int, int]:
        if self.device.type == "cpu":
            return _FORWARD_TOKENS, _EXTRA_FORWARD
        return self._token_budget(), _EXTRA_GPU

    def _token_budget(self) -> int:
        # Small batches stay in a CPU's cache; on a GPU a wide model's activations must fit in
        # memory next to its weights.
        if self.device.type == "cpu":
            return 4096
        return min(2**17, 2**27 // self.width)


def _padded_types(types: Sequence[int], length: int) -> tuple[int, ...]:
    """Extend token types to appended tokens: they get the type of the token before them."""
    last = types[-1] if types else 0
    return (*types, *[last] * (length - len(types)))


def _covered(offsets: Sequence[tuple[int, int]], length: int) -> int:
    """Count the leading tokens within the first `length` characters, special ones included.

    A token that reaches beyond them is text: byte-level "Ġword" has the prefix's last space.
    """
    for number, (_, end) in enumerate(offsets):
        if end > length:
            return number
    return len(offsets)


def computes_fast() -> bool:
    """Whether this processor has instructions for bfloat16; others emulate it."""
    capabilities: Mapping[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    return bool(capabilities.get("avx512_bf16", False))


def rounded(model: PreTrainedModel) -> PreTrainedModel:
    """Copy a model on the CPU for inference, its weights rounded to bfloat16.

    Buffers, such as a rotary embedding's frequencies, keep their type.
    """
    weights: dict[int, Parameter] = {}
    for weight in model.parameters():
        half = weight.detach().bfloat16()
        weights[id(weight)] = Parameter(half, weight.requires_grad)
    copied: PreTrainedModel = deepcopy(model, weights)
    if hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        _fuse(copied)
    return copied


class _FusedLinear(Linear):
    """Apply a linear layer and the operation after it in one pass.

    PyTorch's Linear copies the bias to the output first, which takes as long as the product.
    """

    then = "none"

    def forward(self, inputs: Tensor) -> Tensor:
        output: Tensor = torch.ops.mkldnn._linear_pointwise(
            inputs,
            self.weight,
            self.bias,
            self.then,
            [],
            "none",
        )
        return output


def _fuse(model: Module) -> None:
    for part in model.modules():
        if type(part) is Linear:
            part.__class__ = _FusedLinear
    for part in [*model.modules()]:
        dense = getattr(part, "dense", None)
        if isinstance(dense, _FusedLinear) and _is_gelu(part, model):
            dense.then = "gelu"
            part.intermediate_act_fn = torch.nn.Identity()


def _is_gelu(part: Module, model: Module) -> bool:
    """Whether the layers of a BERT-like model apply the exact GELU after `dense`."""
    exact = getattr(getattr(model, "config", None), "hidden_act", None) == "gelu"
    return exact and isinstance(getattr(part, "intermediate_act_fn", None), Module)
