"""Run module classes that a sentence-transformers folder ships itself, if they are allowed."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from claim2source.core.errors import InputError, UserError
from claim2source.models.config import EncoderSettings
from claim2source.models.encoder import Encoder
from claim2source.models.hub import MODULES, is_own_class, module_types, one_line
from claim2source.models.tokens import TokenBatch

# Read by a module of the author's own and by ours: they must give the same.
_PROBES = ("a claim", "Masks in schools. A trial of 31 schools.")
_LARGEST_DIFFERENCE = 1e-3


class OwnModules(torch.nn.Module):
    """Turn token vectors into a text's vector by all modules behind the transformer."""

    def __init__(self, parts: Sequence[Any]) -> None:
        super().__init__()
        self.parts = torch.nn.ModuleList(parts)
        self.out_features = 0

    def forward(self, hidden: Tensor, batch: TokenBatch) -> Tensor:
        """Compute vectors [n, dimensions] of token vectors [n, tokens, width], in float32."""
        features: dict[str, Any] = {
            "input_ids": batch.input_ids,
            "attention_mask": batch.attention_mask,
            "token_embeddings": hidden.float(),
        }
        for part in self.parts:
            features = part(features)
        vectors: Tensor = features["sentence_embedding"]
        return vectors.float()


def add_own_modules(encoder: Encoder, folder: Path, target: str) -> None:
    """Have an encoder run the modules of a folder that has classes of its own among them.

    The caller has checked that they may run. Raises `UserError` if they cannot be loaded, or do
    what is not done here.
    """
    types = module_types(folder)
    if not any(is_own_class(kind) for kind, _ in types):
        return
    try:
        parts = [_load_part(kind, path, folder) for kind, path in types]
        modules = OwnModules(parts[1:]).eval().requires_grad_(False).to(target)
        if is_own_class(types[0][0]):
            _compare_transformer(encoder, parts[0], types[0][0], folder)
        encoder.own_modules = modules
        modules.out_features = _width(encoder, modules)
    except UserError:
        raise
    except Exception as error:  # code of its own raises anything
        raise UserError(f"model {folder}: {one_line(error)}") from None
    _require_pooled_prompts(encoder.settings, parts, folder)


@torch.inference_mode()
def _width(encoder: Encoder, modules: OwnModules) -> int:
    """Return the length of a vector."""
    batch = encoder.collate(encoder.tokenize(_PROBES[:1], "claim")).to(encoder.device)
    return int(modules(encoder.hidden(batch), batch).shape[1])


def _load_part(kind: str, path: Path, folder: Path) -> Any:
    """Load a module as sentence-transformers does, but its Transformer, which is read here."""
    from sentence_transformers.util import import_module_class

    if path == folder and not is_own_class(kind):
        return None
    code: Any = import_module_class(
        kind, model_name_or_path=str(folder), trust_remote_code=True, local_files_only=True
    )
    if len(inspect.signature(code.load).parameters) == 1:
        return code.load(str(path))
    return code.load(
        str(folder),
        subfolder=str(path.relative_to(folder)) if path != folder else "",
        token=None,
        cache_folder=None,
        revision=None,
        local_files_only=True,
        trust_remote_code=True,
        model_kwargs={"use_safetensors": True},
        processor_kwargs=None,
        config_kwargs=None,
        backend="torch",
    )


def _compare_transformer(encoder: Encoder, part: Any, kind: str, folder: Path) -> None:
    """Raise `InputError` if a Transformer of the author's own reads texts otherwise than this."""
    part = part.eval().to(encoder.device)
    tokenize = getattr(part, "preprocess", None) or part.tokenize
    for text in _PROBES:
        features = tokenize([text])
        ids = [row.ids for row in encoder.tokenize([text], "claim")]
        same = features["input_ids"].tolist() == [list(row) for row in ids]
        if same and not encoder.settings.template.claim:
            batch = encoder.collate(encoder.tokenize([text], "claim")).to(encoder.device)
            with torch.inference_mode():
                theirs = part({k: _moved(v, encoder.device) for k, v in features.items()})
                difference = (theirs["token_embeddings"] - encoder.hidden(batch)).abs().max()
            same = float(difference) < _LARGEST_DIFFERENCE
        if not same:
            reason = f"{kind} reads texts otherwise than sentence-transformers' Transformer"
            raise InputError(folder / MODULES, field="type", why=f"{reason}: not supported")


def _moved(value: Any, device: torch.device) -> Any:
    return value.to(device) if isinstance(value, Tensor) else value


def _require_pooled_prompts(settings: EncoderSettings, parts: Sequence[Any], folder: Path) -> None:
    template = settings.template
    if not (template.claim or template.source):
        return
    left_out = any(getattr(part, "include_prompt", True) is False for part in parts)
    if left_out or template.pool_prefix is not True:
        reason = "modules of the author's own cannot leave a prompt out: model.prompts: false"
        raise InputError(folder / MODULES, field="type", why=reason)
