"""What sentence-transformers writes next to a transformers model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from claim2source.core.files import write_json


def declare(folder: Path, *kinds: str, pooling: Any = "mean", **keys: Any) -> Path:
    """Make a folder a sentence-transformers model: modules, pooling, length, and what is `keys`.

    `pooling` is a name, or what the config of pooling holds; `keys` are values by file: `sbert`,
    `whole` or `tokenizer`.
    """
    kinds = kinds or ("Transformer", "Pooling", "Normalize")
    modules = [
        {
            "idx": i,
            "name": str(i),
            "path": f"{i}_{kind}" if i else "",
            "type": f"sentence_transformers.models.{kind}",
        }
        for i, kind in enumerate(kinds)
    ]
    write_json(folder / "modules.json", modules)
    width = json.loads((folder / "config.json").read_text())["hidden_size"]
    (folder / "1_Pooling").mkdir(exist_ok=True)
    mode = {"pooling_mode": pooling} if isinstance(pooling, str) else pooling
    write_json(folder / "1_Pooling" / "config.json", {"embedding_dimension": width} | mode)
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": 24} | keys.get("sbert", {}))
    write_json(folder / "config_sentence_transformers.json", keys.get("whole", {}))
    change_json(folder / "tokenizer_config.json", **keys.get("tokenizer", {}))
    return folder


def change_json(file: Path, **values: Any) -> None:
    """Set keys of a JSON file; `...` removes a key."""
    changed = json.loads(file.read_text()) | values
    write_json(file, {key: value for key, value in changed.items() if value is not ...})
