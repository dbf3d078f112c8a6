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
        config = config_hash(self.config)
        return vector_key(self.weights, self.settings, config)

    def token_ids(self, texts: Sequence[str], side: Side) -> list[list[int]]:
        prefix = self.settings.template.prefix(side)
        prefixed = [prefix + text for text in texts]
        encoded = self.tokenizer.encode_batch(prefixed)
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
        shape = (len(distinct), self.dimensions)
        vectors = np.zeros(shape, np.float32)
        lengths = [len(text) for text in ids]
        ends = np.cumsum(lengths)
        group = (ends - 1) // _TOKENS
        with progress if isinstance(progress, Progress) else Progress(None, None) as bar:
            for number in np.unique(group):
                rows = np.flatnonzero(group == number)
                row_ids = [ids[row] for row in rows]
                vectors[rows] = self._vectors(row_ids)
                bar.update(len(rows))
        if not np.isfinite(vectors).all():
            raise UserError("the model returned a vector that is not finite")

        row_of = {text: row for row, text in enumerate(distinct)}
        rows_of_texts = [row_of[text] for text in texts]
        seconds = time.perf_counter() - started
        tokens = 0
        if len(ends):
            tokens = int(ends[-1])
        cost = Cost(
            seconds,
            len(texts),
            peak_memory(),
            tokens,
        )
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
        layer_count = self.config["num_hidden_layers"]
        for number in range(layer_count):
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

    def _embed(
        self,
        ids: Sequence[Sequence[int]],
        positions: np.ndarray,
    ) -> np.ndarray:
        """Look up embeddings of tokens and, unless these rotate, of positions: [tokens, width]."""
        rows: list[np.ndarray] = []
        for text in ids:
            for token in text:
                row = self._table[token : token + 1]
                rows.append(row)
        hidden = np.concatenate(rows)
        if not self.layout.rotates:
            stored_places = self._tensors["embeddings.position_embeddings.weight"]
            places = np.asarray(stored_places)
            hidden = hidden + places[positions]
        stored_types = self._tensors["embeddings.token_type_embeddings.weight"]
        types = np.asarray(stored_types)
        return self._norm(hidden + types[0], self.layout.embedding_norm)

    def _turns(
        self,
        positions: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """Compute cosines and sines [tokens, 1, head width] of rotations; None without rotation."""
        base = rotation_base(self.config)
        if not self.layout.rotates or base is None:
            return None
        hidden_width = int(self.config["hidden_size"])
        heads = int(self.config["num_attention_heads"])
        width = hidden_width // heads
        exponents = np.arange(0, width, 2) / width
        exact_speeds = 1 / base**exponents
        speeds = exact_speeds.astype(np.float32)
        column = positions[:, None]
        half_angles = column.astype(np.float32) * speeds
        angles = np.concatenate([half_angles, half_angles], axis=1)
        angles = angles[:, None]
        return np.cos(angles), np.sin(angles)

    def _pool(self, hidden: np.ndarray, lengths: Sequence[int]) -> np.ndarray:
        """Pool the tokens [tokens, width] of each text: vectors [n, dimensions]."""
        pooling = self.settings.pooling
        ends = np.cumsum(lengths)
        pooled: list[np.ndarray] = []
        for row in np.split(hidden, ends[:-1]):
            if pooling == "mean":
                pooled.append(row.mean(0))
            elif pooling == "cls":
                pooled.append(row[0])
            else:
                pooled.append(row[-1])

        vectors = np.stack(pooled)[:, : self.dimensions]
        if self.settings.normalize:
            norms = np.linalg.norm(vectors, axis=1, keepdims=True)
            vectors /= np.maximum(norms, 1e-12)
        return vectors

    def _attention(
        self,
        hidden: np.ndarray,
        layer: str,
        bounds: Sequence[tuple[int, int]],
        turns: tuple[np.ndarray, np.ndarray] | None,
    ) -> np.ndarray:
        heads = self.config["num_attention_heads"]
        shape = (len(hidden), heads, -1)
        sides = [self._linear(hidden, f"{layer}.{name}") for name in self.layout.sides]
        if len(sides) == 1:
            sides = np.split(sides[0], 3, axis=1)
        query, key, value = (side.reshape(shape) for side in sides)
        if turns is not None:
            cosines, sines = turns
            query = rotate(query, cosines, sines)
            key = rotate(key, cosines, sines)
        head_width = query.shape[-1]
        query = query / np.float32(head_width**0.5)

        attended = np.empty_like(value)
        for start, end in bounds:
            own_query = query[start:end].transpose(1, 0, 2)
            own_key = key[start:end].transpose(1, 2, 0)
            own_value = value[start:end].transpose(1, 0, 2)
            scores = own_query @ own_key
            scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
            scores /= scores.sum(axis=-1, keepdims=True)
            attended[start:end] = (scores @ own_value).transpose(1, 0, 2)
        return attended.reshape(len(hidden), -1)

    def _linear(
        self,
        hidden: np.ndarray,
        name: str,
        then: str = "none",
    ) -> np.ndarray:
        weight = self._tensors[f"{name}.weight"]
        output: np.ndarray = hidden @ weight.T
        if self.layout.biases:
            output += self._tensors[f"{name}.bias"]
        if then == "gelu":
            return gelu(output)
        if then == "swish":
            return output / (1 + np.exp(-output))
        return output

    def _norm(self, hidden: np.ndarray, name: str) -> np.ndarray:
        epsilon = np.float32(self.config["layer_norm_eps"])
        weight = self._tensors[f"{name}.weight"]
        bias = self._tensors[f"{name}.bias"]
        mean = hidden.mean(axis=-1, keepdims=True)
        centred = hidden - mean
        variance = np.square(centred).mean(axis=-1, keepdims=True)
        centred /= np.sqrt(variance + epsilon)
        scaled: np.ndarray = centred * weight
        return scaled + bias


def rotate(
    side: np.ndarray,
    cosines: np.ndarray,
    sines: np.ndarray,
) -> np.ndarray:
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
    factors = (
        1.061405429,
        -1.453152027,
        1.421413741,
        -0.284496736,
        0.254829592,
    )
    for factor in factors:
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
    folders = module_folders(folder)
    has_dense = any(module == "Dense" for module, _ in folders)
    is_known = {**layout.fixed, **config} == {**config, **layout.fixed}
    if settings != default or not is_known or has_dense:
        return None
    if layout.rotates and (rotation_base(config) is None or "head_dim" not in config):
        return None  # the authors' config, which `load` translates, or another rotation
    try:
        if settings.max_length > length and not shorten:
            return None
        shorter = min(settings.max_length, length)
        settings = replace(settings, max_length=shorter)
        tokenizer = _tokenizer(folder, settings)
        if tokenizer is None:
            return None
        path = folder / "model.safetensors"
        with safe_open(path, "np") as file:
            table = file.get_slice(_TABLE)
            weights: dict[str, np.ndarray] = {}
            for name in file.keys():
                tensor = file.get_slice(name)
                is_table = name == _TABLE
                if not is_table and tensor.get_dtype() == "F32":
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
    kinds = (*_PLAIN_TOKENIZERS, *_BERT)
    if kind not in kinds or not path.is_file():
        return None
    content = path.read_text(encoding="utf-8")
    tokenizer: Tokenizer = Tokenizer.from_str(content)
    if kind in _BERT:
        tokenizer.normalizer = normalizers.BertNormalizer(
            handle_chinese_chars=config.get("tokenize_chinese_chars", True),
            strip_accents=config.get("strip_accents"),
            lowercase=config.get("do_lower_case", True),
        )
    prefixes = settings.template.claim + settings.template.source
    special = tokenizer.get_added_tokens_decoder().values()
    has_special = any(token.content in prefixes for token in special)
    if has_special or not tokenizer.encode("").ids:
        return None
    letter = tokenizer.encode("a")
    if any(letter.type_ids):
        return None  # types other than 0, which `Encoder` supports
    tokenizer.no_padding()
    tokenizer.enable_truncation(settings.max_length)
    # The name of a special token in a text is plain text.
    tokenizer.encode_special_tokens = True
    return tokenizer
