"""Refuse models whose files lack weights: libraries would draw those at random."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any

from claim2source.core.errors import InputError
from claim2source.models.hub import ADAPTER_CONFIG_FILE, ADAPTER_FILE, one_line

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# A buffer of integers, which older versions wrote and newer ones compute.
_POSITIONS = "position_ids"


def require_weights(folder: Path, missing: Iterable[str]) -> None:
    """Raise `InputError` if a model's files lack weights that it computes with.

    `missing` are the `missing_keys` of transformers' loading info: tied weights are not among them.
    """
    absent = sorted(key for key in missing if key.rpartition(".")[2] != _POSITIONS)
    if not absent:
        return
    reason = f"the weights lack {absent[0]} ({len(absent)} missing); they would be random"
    raise InputError(folder, reason=reason)


def missing_weights(folder: Path, model: PreTrainedModel) -> list[str]:
    """List the weights of a loaded model that its folder lacks, or has in another shape.

    For libraries that do not return transformers' loading info. The files are read again, but only
    their shapes; nothing is computed.
    """
    kind: Any = type(model)
    _, loading = kind.from_pretrained(
        folder,
        config=deepcopy(model.config),
        device_map="meta",
        dtype=model.dtype,
        use_safetensors=True,
        local_files_only=True,
        ignore_mismatched_sizes=True,
        output_loading_info=True,
    )
    mismatched = [entry[0] for entry in loading["mismatched_keys"]]
    return sorted({*loading["missing_keys"], *mismatched})


def belongs_to_head(key: str, model: PreTrainedModel) -> bool:
    """Whether a weight belongs to a model's head, whose first layer is a pooler."""
    prefix = f"{model.base_model_prefix}."
    return not key.startswith(prefix) or key.startswith(f"{prefix}pooler.")


def with_adapter(model: Any, folder: Path) -> Any:
    """Add a trained adapter to a model, in place; return the adapted model.

    Raises `InputError` for one that does not fit the model, or lacks weights.
    """
    from peft import PeftModel, get_peft_model_state_dict
    from safetensors import safe_open

    file = folder / ADAPTER_FILE
    try:
        adapted = PeftModel.from_pretrained(model, str(folder)).eval()
        with safe_open(file, "pt") as stored:
            present = set(stored.keys())
    except Exception as error:  # libraries raise anything for files that are damaged
        reason = f"this adapter does not fit its base: {one_line(error)}"
        raise InputError(folder / ADAPTER_CONFIG_FILE, reason=reason) from None
    # Do not check whether embeddings were saved too: peft would contact the hub.
    wanted = get_peft_model_state_dict(adapted, save_embedding_layers=False)
    require_weights(file, wanted.keys() - present)
    return adapted
