"""Encode texts with BERT or Nomic BERT in NumPy: importing PyTorch would take longer."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from claim2source.core.errors import UserError
from claim2source.core.machine import peak_memory
from claim2source.core.progress import Progress
from claim2source.core.run import Cost
from claim2source.models.config import EncoderSettings, Identity, Side, Template
from claim2source.models.hub import module_folders, read_object
from claim2source.models.identity import config_hash, vector_key
from claim2source.models.layouts import LAYOUTS, Layout, rotation_base

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from claim2source.data.store import Store

# Tokenizers that transformers loads from tokenizer.json, and one whose config sets its normaliser.
_PLAIN_TOKENIZERS = ("PreTrainedTokenizerFast", "TokenizersBackend")
_BERT = ("BertTokenizer", "BertTokenizerFast")
_TABLE = "embeddings.word_embeddings.weight"
# Tokens of a forward pass: few enough for the processor's cache.
_TOKENS = 2048


class NumpyEncoder:
    """Encode texts as an `Encoder` does, without storing vectors.

    `weights` maps tensors to arrays in float32, except the word embeddings, which are read by row.
    `layout` names them.
    """

    source_encoder: Any = None
    reads_types = False

    def __init__(
        self,
        tokenizer: Tokenizer,
        table: Any,
        weights: Mapping[str, np.ndarray],
        config: Mapping[str, Any],
        settings: EncoderSettings,
    ) -> None:
        self.tokenizer = tokenizer
        self._table = table
        self._tensors: dict[str, Any] = dict(weights)
        self.layout: Layout = LAYOUTS[config["model_type"]]
        self.config = config
        self.settings = settings
        self.weights: Identity | None = None
        self.name = ""

    @property
    def dimensions(self) -> int:
        width = int(self.config["hidden_size"])
        return min(width, self.settings.truncate_dim or width)

    def key(self) -> dict[str, object] | None:
        if self.weights is None:
            return None
        return vector_key(self.weights, self.settings, config_hash(self.config))

    def token_ids(self, texts: Sequence[str], side: Side) -> list[list[int]]:
        prefix = self.settings.template.prefix(side)
        encoded = self.tokenizer.encode_batch([prefix + text for text in texts])
        return [text.ids for text in encoded]

    def encode(
        self,
        texts: Sequence[str],
        side: Side,
        *,
        store: Store | None = None,
        progress: str | Progress | None = None,
    ) -> tuple[np.ndarray, Cost]:
        started = time.perf_counter()
        distinct = list(dict.fromkeys(texts))
        ids = self.token_ids(distinct, side)
        vectors = np.zeros((len(distinct), self.dimensions), np.float32)
        ends = np.cumsum([len(text) for text in ids])
        group = (ends - 1) // _TOKENS
        with progress if isinstance(progress, Progress) else Progress(None, None) as bar:
            for number in np.unique(group):
                rows = np.flatnonzero(group == number)
                vectors[rows] = self._vectors([ids[row] for row in rows])
                bar.update(len(rows))
        if not np.isfinite(vectors).all():
            raise UserError("the model returned a vector that is not finite")
        row_of = {text: row for row, text in enumerate(distinct)}
        rows_of_texts = [row_of[text] for text in texts]
        seconds = time.perf_counter() - started
        tokens = 0
        if len(ends):
            tokens = int(ends[-1])
        cost = Cost(seconds, len(texts), peak_memory(), tokens)
        return vectors[rows_of_texts], cost

    def _vectors(self, ids: Sequence[Sequence[int]]) -> np.ndarray:
        """Compute vectors [n, dimensions] from one row of texts that only attention separates."""
        lengths = [len(text) for text in ids]
        ends = np.cumsum(lengths).tolist()
        bounds = list(pairwise([0, *ends]))
        positions = np.concatenate([np.arange(length) for length in lengths])
        hidden = self._embed(ids, positions)
        turns = self._turns(positions)
        names = self.layout
        for number in range(self.config["num_hidden_layers"]):
            layer = names.layer.format(number)
            heads = self._attention(hidden, layer, bounds, turns)
            attended = self._linear(heads, f"{layer}.{names.attended}")
            hidden = self._norm(hidden + attended, f"{layer}.{names.attention_norm}")
            if names.gate is None:
                inner = self._linear(hidden, f"{layer}.{names.inner}", "gelu")
            else:
                inner = self._linear(hidden, f"{layer}.{names.gate}", "swish")
                inner *= self._linear(hidden, f"{layer}.{names.inner}")
            outer = self._linear(inner, f"{layer}.{names.outer}")
            hidden = self._norm(hidden + outer, f"{layer}.{names.output_norm}")
        return self._pool(hidden, lengths)

    def _embed(self, ids: Sequence[Sequence[int]], positions: np.ndarray) -> np.ndarray:
        """Look up embeddings of tokens and, unless these rotate, of positions: [tokens, width]."""
        rows: list[np.ndarray] = []
        for text in ids:
            for token in text:
                rows.append(self._table[token : token + 1])
        hidden = np.concatenate(rows)
        if not self.layout.rotates:
            places = np.asarray(self._tensors["embeddings.position_embeddings.weight"])
            hidden = hidden + places[positions]
        types = np.asarray(self._tensors["embeddings.token_type_embeddings.weight"])
        return self._norm(hidden + types[0], self.layout.embedding_norm)

    def _turns(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        """Compute cosines and sines [tokens, 1, head width] of rotations; None without rotation."""
        base = rotation_base(self.config)
        if not self.layout.rotates or base is None:
            return None
        width = int(self.config["hidden_size"]) // int(self.config["num_attention_heads"])
        speeds = (1 / base ** (np.arange(0, width, 2) / width)).astype(np.float32)
        angles = positions[:, None].astype(np.float32) * speeds
        angles = np.concatenate([angles, angles], axis=1)[:, None]
        return np.cos(angles), np.sin(angles)

    def _pool(self, hidden: np.ndarray, lengths: Sequence[int]) -> np.ndarray:
        """Pool the tokens [tokens, width] of each text: vectors [n, dimensions]."""
        pooling = self.settings.pooling
        pooled: list[np.ndarray] = []
        for row in np.split(hidden, np.cumsum(lengths)[:-1]):
            if pooling == "mean":
                pooled.append(row.mean(0))
            else:
                pooled.append(row[0] if pooling == "cls" else row[-1])
        vectors = np.stack(pooled)[:, : self.dimensions]
        if self.settings.normalize:
            vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        return vectors

    def _attention(
        self,
        hidden: np.ndarray,
        layer: str,
        bounds: Sequence[tuple[int, int]],
        turns: tuple[np.ndarray, np.ndarray] | None,
    ) -> np.ndarray:
        shape = (len(hidden), self.config["num_attention_heads"], -1)
        parts = [self._linear(hidden, f"{layer}.{name}") for name in self.layout.sides]
        sides = np.split(parts[0], 3, axis=1) if len(parts) == 1 else parts
        query, key, value = (side.reshape(shape) for side in sides)
        if turns is not None:
            query = rotate(query, *turns)
            key = rotate(key, *turns)
        query = query / np.float32(query.shape[-1] ** 0.5)
        attended = np.empty_like(value)
        for a, b in bounds:
            scores = query[a:b].transpose(1, 0, 2) @ key[a:b].transpose(1, 2, 0)
            scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
            scores /= scores.sum(axis=-1, keepdims=True)
            attended[a:b] = (scores @ value[a:b].transpose(1, 0, 2)).transpose(1, 0, 2)
        return attended.reshape(len(hidden), -1)

    def _linear(
        self,
        hidden: np.ndarray,
        name: str,
        then: str = "none",
    ) -> np.ndarray:
        output: np.ndarray = hidden @ self._tensors[f"{name}.weight"].T
        if self.layout.biases:
            output += self._tensors[f"{name}.bias"]
        if then == "gelu":
            return gelu(output)
        if then == "swish":
            return output / (1 + np.exp(-output))
        return output

    def _norm(self, hidden: np.ndarray, name: str) -> np.ndarray:
        centred = hidden - hidden.mean(axis=-1, keepdims=True)
        variance = np.square(centred).mean(axis=-1, keepdims=True)
        centred /= np.sqrt(variance + np.float32(self.config["layer_norm_eps"]))
        scaled: np.ndarray = centred * self._tensors[f"{name}.weight"]
        return scaled + self._tensors[f"{name}.bias"]


def rotate(side: np.ndarray, cosines: np.ndarray, sines: np.ndarray) -> np.ndarray:
    """Rotate [tokens, heads, width]: the halves of each head are the two axes of a plane."""
    first, second = np.split(side, 2, axis=-1)
    turned: np.ndarray = side * cosines + np.concatenate([-second, first], axis=-1) * sines
    return turned


def gelu(x: np.ndarray) -> np.ndarray:
    """Compute x times the normal distribution's share below x, to 3e-7.

    The error function is Abramowitz and Stegun's 7.1.26: SciPy's takes 0.3 s to import.
    """
    size = np.abs(x) * np.float32(0.5**0.5)
    t = 1 / (1 + np.float32(0.3275911) * size)
    tail = np.zeros_like(t)
    for factor in (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592):
        tail = (tail + np.float32(factor)) * t
    tail *= np.exp(-size * size) / 2
    return x * np.where(x < 0, tail, 1 - tail)


def load_numpy(
    folder: Path,
    settings: EncoderSettings,
    shorten: bool,
    kind: type[NumpyEncoder] = NumpyEncoder,
) -> NumpyEncoder | None:
    """Load a folder of model files; None if `load` must load it, or report what is wrong.

    With `shorten`, texts are cut to the model's number of positions.
    """
    from safetensors import safe_open

    written = read_object(folder / "config.json")
    layout = LAYOUTS.get(written.get("model_type"))
    if layout is None:
        return None
    config: dict[str, Any] = {**layout.defaults, **written}
    template = Template(settings.template.claim, settings.template.source)
    default = EncoderSettings(
        settings.pooling,
        settings.normalize,
        settings.max_length,
        template,
        truncate_dim=settings.truncate_dim,
    )
    length: Any = config["max_position_embeddings"]
    has_dense = any(module == "Dense" for module, _ in module_folders(folder))
    is_known = {**layout.fixed, **config} == {**config, **layout.fixed}
    if settings != default or not is_known or has_dense:
        return None
    if layout.rotates and (rotation_base(config) is None or "head_dim" not in config):
        return None  # the authors' config, which `load` translates, or another rotation
    try:
        if settings.max_length > length and not shorten:
            return None
        settings = replace(settings, max_length=min(settings.max_length, length))
        tokenizer = _tokenizer(folder, settings)
        if tokenizer is None:
            return None
        with safe_open(folder / "model.safetensors", "np") as file:
            table = file.get_slice(_TABLE)
            weights: dict[str, np.ndarray] = {}
            for name in file.keys():
                tensor = file.get_slice(name)
                if name != _TABLE and tensor.get_dtype() == "F32":
                    weights[name] = tensor[:]
        encoder = kind(tokenizer, table, weights, config, settings)
        encoder.encode(["a"], "claim")
    except Exception:  # libraries raise anything for files that are damaged
        return None
    return encoder


def _tokenizer(folder: Path, settings: EncoderSettings) -> Tokenizer | None:
    """Load the tokenizer as transformers does; None if transformers does more than is done here."""
    from tokenizers import Tokenizer, normalizers

    config: Mapping[str, Any] = read_object(folder / "tokenizer_config.json")
    kind = config.get("tokenizer_class")
    path = folder / "tokenizer.json"
    if kind not in (*_PLAIN_TOKENIZERS, *_BERT) or not path.is_file():
        return None
    tokenizer: Tokenizer = Tokenizer.from_str(path.read_text(encoding="utf-8"))
    if kind in _BERT:
        tokenizer.normalizer = normalizers.BertNormalizer(
            handle_chinese_chars=config.get("tokenize_chinese_chars", True),
            strip_accents=config.get("strip_accents"),
            lowercase=config.get("do_lower_case", True),
        )
    prefixes = settings.template.claim + settings.template.source
    special = tokenizer.get_added_tokens_decoder().values()
    if any(token.content in prefixes for token in special) or not tokenizer.encode("").ids:
        return None
    if any(tokenizer.encode("a").type_ids):
        return None  # types other than 0, which `Encoder` supports
    tokenizer.no_padding()
    tokenizer.enable_truncation(settings.max_length)
    # The name of a special token in a text is plain text.
    tokenizer.encode_special_tokens = True
    return tokenizer
