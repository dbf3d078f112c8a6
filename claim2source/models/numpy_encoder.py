"""Encode texts with a BERT model in NumPy: PyTorch and transformers take longer to import."""

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

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from claim2source.data.store import Store

# What transformers writes of a config that does not say it.
_DEFAULTS: dict[str, object] = {
    "add_cross_attention": False,
    "attention_probs_dropout_prob": 0.1,
    "bos_token_id": None,
    "classifier_dropout": None,
    "eos_token_id": None,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 768,
    "initializer_range": 0.02,
    "intermediate_size": 3072,
    "is_decoder": False,
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 512,
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "pad_token_id": 0,
    "tie_word_embeddings": True,
    "type_vocab_size": 2,
    "vocab_size": 30522,
}
# A config that says one of these otherwise is of another model than the one below.
_FIXED = {
    "model_type": "bert",
    "hidden_act": "gelu",
    "is_decoder": False,
    "add_cross_attention": False,
    "position_embedding_type": "absolute",
}
# Tokenizers that transformers reads from tokenizer.json, and one whose normaliser its config sets.
_PLAIN_TOKENIZERS = ("PreTrainedTokenizerFast", "TokenizersBackend")
_BERT = ("BertTokenizer", "BertTokenizerFast")
_TABLE = "embeddings.word_embeddings.weight"
# Tokens of a forward pass: few enough for the processor's cache.
_TOKENS = 2048


class NumpyEncoder:
    """Encode texts as an `Encoder` does; no vector is kept in a store.

    `weights` maps tensors to arrays in float32, but for the table of words, of which rows are read.
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
            raise UserError("the model gave a vector that is not finite")
        row_of = {text: row for row, text in enumerate(distinct)}
        rows_of_texts = [row_of[text] for text in texts]
        seconds = time.perf_counter() - started
        tokens = 0
        if len(ends):
            tokens = int(ends[-1])
        cost = Cost(seconds, len(texts), peak_memory(), tokens)
        return vectors[rows_of_texts], cost

    def _vectors(self, ids: Sequence[Sequence[int]]) -> np.ndarray:
        """Compute vectors [n, dimensions]; only attention keeps the texts of the row apart."""
        lengths = [len(text) for text in ids]
        ends = np.cumsum(lengths).tolist()
        bounds = list(pairwise([0, *ends]))
        hidden = self._embed(ids)
        for number in range(self.config["num_hidden_layers"]):
            layer = f"encoder.layer.{number}"
            heads = self._attention(hidden, f"{layer}.attention.self", bounds)
            attended = self._linear(heads, f"{layer}.attention.output.dense")
            hidden = self._norm(hidden + attended, f"{layer}.attention.output.LayerNorm")
            inner = self._linear(hidden, f"{layer}.intermediate.dense", "gelu")
            outer = self._linear(inner, f"{layer}.output.dense")
            hidden = self._norm(hidden + outer, f"{layer}.output.LayerNorm")
        return self._pool(hidden, lengths)

    def _embed(self, ids: Sequence[Sequence[int]]) -> np.ndarray:
        """Look up the tokens and their positions: [tokens, width]."""
        rows: list[np.ndarray] = []
        positions: list[np.ndarray] = []
        for text in ids:
            positions.append(np.arange(len(text)))
            for token in text:
                rows.append(self._table[token : token + 1])
        places = np.asarray(self._tensors["embeddings.position_embeddings.weight"])
        types = np.asarray(self._tensors["embeddings.token_type_embeddings.weight"])
        hidden = np.concatenate(rows) + places[np.concatenate(positions)]
        hidden += types[0]
        return self._norm(hidden, "embeddings.LayerNorm")

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
    ) -> np.ndarray:
        heads = self.config["num_attention_heads"]
        shape = (len(hidden), heads, -1)
        query = self._linear(hidden, f"{layer}.query").reshape(shape)
        key = self._linear(hidden, f"{layer}.key").reshape(shape)
        value = self._linear(hidden, f"{layer}.value").reshape(shape)
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
        output += self._tensors[f"{name}.bias"]
        if then == "gelu":
            return gelu(output)
        return output

    def _norm(self, hidden: np.ndarray, name: str) -> np.ndarray:
        centred = hidden - hidden.mean(axis=-1, keepdims=True)
        variance = np.square(centred).mean(axis=-1, keepdims=True)
        centred /= np.sqrt(variance + np.float32(self.config["layer_norm_eps"]))
        scaled: np.ndarray = centred * self._tensors[f"{name}.weight"]
        return scaled + self._tensors[f"{name}.bias"]


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
    """Load a folder of model files; None if `load` alone reads it, or says what is wrong.

    With `shorten`, texts are cut to what the model has positions for.
    """
    from safetensors import safe_open

    config = _DEFAULTS | read_object(folder / "config.json")
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
    if settings != default or _FIXED | config != config | _FIXED or has_dense:
        return None
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
    """Load the tokenizer as transformers does; None if that would take more than this."""
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
        return None  # types other than 0, which an `Encoder` reads
    tokenizer.no_padding()
    tokenizer.enable_truncation(settings.max_length)
    # A special token's name in a text is plain text.
    tokenizer.encode_special_tokens = True
    return tokenizer
