"""Pad pairs so that a pair's score does not depend on its batch."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from claim2source.models.hub import read_object

if TYPE_CHECKING:
    from sentence_transformers import CrossEncoder
    from torch import Tensor

PaddingSide = Literal["left", "right"]
# Tables of positions that count from a row's start, including padding.
_TABLES = ("wpe", "position_embeddings", "embed_positions")
_CAUSAL = "ForCausalLM"


def set_padding_side(model: CrossEncoder) -> None:
    """Set the padding side of a cross-encoder's tokenizer to the one that its head supports."""
    network: Any = model[0].model
    side = required_side(type(network), network.config)
    if side is not None:
        model.tokenizer.padding_side = side


def required_side(kind: type, config: Any) -> PaddingSide | None:
    """Return the side on which a classifier's pairs must be padded; None if either works.

    A head on the first token, and positions that count from a row's start, need padding on the
    right; a head on a row's last token needs it on the left.
    """
    from transformers.modeling_layers import GenericForSequenceClassification

    if kind.__name__.endswith(_CAUSAL) or getattr(config, "summary_type", None) == "last":
        return "left"
    if not kind.__module__.startswith("transformers."):
        return None  # unknown for a model with its own code
    # Decoders' heads find a text's last token, and rotary positions are relative.
    rotates = getattr(config.get_text_config(), "rope_parameters", None) is not None
    if issubclass(kind, GenericForSequenceClassification) and rotates:
        return None
    return "right"


def changed_padding(folder: Path) -> str | None:
    """Return the part whose padding differs from a folder's files; None if there is none.

    Stored scores with the padding of the files depended on their batch.
    """
    shape = read_object(folder / "config.json")
    names = shape.get("architectures")
    name = ""
    if isinstance(names, list) and names:
        name = str(names[0])
    if name.endswith(_CAUSAL):
        if any(key.startswith("rope") for key in shape):
            return None
        return "positions"
    declared = _declared_side(folder)
    if declared is None or (declared == "right" and shape.get("model_type") != "xlnet"):
        return None
    from transformers import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING, AutoConfig

    config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    if type(config) not in MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING:
        return None  # loading the model reports the error
    kind: Any = MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING[type(config)]
    required = required_side(kind, config)
    return None if required == declared else required


def _declared_side(folder: Path) -> str | None:
    """Return the padding side in a tokenizer's files; None if they do not set it."""
    values: list[object] = []
    for name in ("sentence_bert_config.json", "tokenizer_config.json", "tokenizer.json"):
        file = folder / name
        content = {}
        if file.is_file() and not values:
            content = read_object(file)
        for key in ("processor_kwargs", "tokenizer_args"):
            options = content.get(key)
            if isinstance(options, Mapping):
                values.append(options.get("padding_side"))
        values.append(content.get("padding_side"))
        padding = content.get("padding")
        if isinstance(padding, Mapping):
            values.append(str(padding.get("direction")).lower())
        values = [value for value in values if isinstance(value, str)]
    if values:
        return str(values[0])
    return None


def counted_positions(model: CrossEncoder, mask: Tensor) -> Tensor | None:
    """Return positions from each text's first token if padding precedes it.

    `mask` is [pairs, tokens]. None for a model without a table of positions, or without such an
    argument.
    """
    network: Any = model[0].model
    if bool(mask[:, 0].all()) or not _has_position_table(network):
        return None
    if "position_ids" not in inspect.signature(network.forward).parameters:
        return None
    return (mask.cumsum(dim=1) - 1).clamp(min=0)


def _has_position_table(network: Any) -> bool:
    from torch.nn import Embedding

    for name, part in network.named_modules():
        if isinstance(part, Embedding) and name.rpartition(".")[2] in _TABLES:
            return True
    return False
