"""Load the models of re-rankers: safetensors only, own code only where it is allowed by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from claim2source.core.config import require, require_between, require_one_of
from claim2source.core.errors import ConfigError, InputError, UserError
from claim2source.core.files import content_hash, file_hash
from claim2source.models import ModelConfig
from claim2source.models.config import Dtype
from claim2source.models.hub import base_files, check_code, one_line, uses_bin
from claim2source.rerank.frame import Reranker

if TYPE_CHECKING:
    from sentence_transformers import CrossEncoder
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

# Files beside the weights that scores depend on: configs, templates, tokenizers, code.
_TEXTS = (".json", ".jinja", ".txt", ".model", ".py")
# Classes whose heads read the first token of the last layer.
_FIRST_TOKEN = (
    "BertForSequenceClassification",
    "RobertaForSequenceClassification",
    "XLMRobertaForSequenceClassification",
)
DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class LoadSettings:
    """Say how a model is loaded; `own_code` only after `model_files` has allowed it."""

    dtype: Dtype
    device: str | None
    own_code: bool = False


@dataclass(frozen=True, kw_only=True)
class LocalReranker(Reranker):
    """Re-rank with a model that runs here.

    Args:
        model: a folder, or a name on the hub.
        revision: commit of the hub repository; none takes the newest.
        max_length: tokens of a pair; none: as the model's files say.
        dtype: weights' type: float32, bfloat16 or float16; logits are float32 in each.
        batch_tokens: padded tokens of a batch; none: as suits the device.
        allow_remote_code: names of models whose own code may run here; on the hub such a model
            needs `revision`, the full commit.
    """

    model: str = ""
    revision: str | None = None
    max_length: int | None = None
    dtype: Dtype = "float32"
    batch_tokens: int | None = None
    allow_remote_code: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        require(bool(self.model.strip()), "model", self.model, "a folder or a model's name")
        require_between("max_length", self.max_length, 8, 10**6, none=True)
        require_one_of("dtype", self.dtype, DTYPES)
        require_between("batch_tokens", self.batch_tokens, 1, 10**9, none=True)

    @property
    def label(self) -> str:
        """Name the model."""
        return self.model

    def files(self) -> tuple[Path, Mapping[str, object], LoadSettings]:
        """Find the model's files, what identifies them, and how to load them."""
        # Only a re-ranker's head is loaded: how its attention looks is in its own config.
        config = ModelConfig(
            self.model,
            self.revision,
            bidirectional=False,
            allow_remote_code=self.allow_remote_code,
        )
        folder, base = base_files(config)
        if uses_bin(folder):
            raise InputError.at(folder, why="no *.safetensors here; .bin weights are not read")
        own_code = check_code(config, folder)
        beside = {
            str(path.relative_to(folder)): file_hash(path)
            for path in sorted(folder.rglob("*"))
            if path.is_file() and (path.suffix in _TEXTS or path.parent != folder)
        }
        settings = LoadSettings(self.dtype, self.place.device, own_code)
        identity = {
            "weights": base.sha256,
            "files": content_hash(beside),
            "dtype": self.dtype,
            "max_length": self.max_length,
            "libraries": {name: version(name) for name in ("tokenizers", "transformers")},
        }
        return folder, identity, settings


def load_cross_encoder(
    folder: Path, settings: LoadSettings, max_length: int | None, labels: int = 1
) -> CrossEncoder:
    """Load a cross-encoder that gives raw logits. Raises `UserError` for what is none.

    `labels` are the logits of a pair: 1 of a re-ranker.
    """
    import torch
    from sentence_transformers import CrossEncoder

    try:
        model = CrossEncoder(
            str(folder),
            device=_device(settings.device),
            max_length=max_length,
            activation_fn=torch.nn.Identity(),
            trust_remote_code=settings.own_code,
            local_files_only=True,
            model_kwargs={"dtype": settings.dtype, "use_safetensors": True},
        )
    except Exception as error:  # libraries raise anything for files that are damaged
        raise UserError(f"model {folder}: {one_line(error)}") from None
    if model.num_labels != labels:
        found = f"model {folder}: {model.num_labels}"
        if labels == 1:
            raise UserError(f"{found} scores for a pair; a re-ranker has 1")
        raise UserError(f"{found} scores for a pair; {labels} are needed")
    if settings.dtype != "float32":
        # The head in half precision gives many pairs the same logit.
        heads = [
            name
            for name, part in model.named_modules()
            if type(part) is torch.nn.Linear and part.out_features == labels
        ]
        model.set_keep_in_fp32_modules(heads)
    first_token_alone(model[0].auto_model)
    return model.eval()


def first_token_alone(model: Any) -> None:
    """Compute no more of the last layer than its first token: BERT's heads read no other.

    Saves most of a layer: of six about an eighth of the time.
    """
    import torch

    base = getattr(model, getattr(model, "base_model_prefix", ""), None)
    known = type(model).__name__ in _FIRST_TOKEN and model.config._attn_implementation == "sdpa"
    if not known or model.config.is_decoder or base is None:
        return
    layer = base.encoder.layer[-1]
    attention = layer.attention.self

    def forward(hidden: torch.Tensor, mask: torch.Tensor | None = None, *_: Any, **__: Any) -> Any:
        query, key, value = (
            part(rows).unflatten(-1, (attention.num_attention_heads, -1)).transpose(1, 2)
            for part, rows in (
                (attention.query, hidden[:, :1]),
                (attention.key, hidden),
                (attention.value, hidden),
            )
        )
        attended = torch.nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask if mask is None else mask[:, :, :1]
        )
        attended = attended.transpose(1, 2).flatten(2)
        return layer.feed_forward_chunk(layer.attention.output(attended, hidden[:, :1]))

    layer.forward = forward


def load_causal(
    folder: Path, settings: LoadSettings
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a generative model and its tokenizer. Raises `UserError` for what is none."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(folder, trust_remote_code=settings.own_code)
        model: Any = AutoModelForCausalLM.from_pretrained(
            folder,
            trust_remote_code=settings.own_code,
            use_safetensors=True,
            dtype=getattr(torch, settings.dtype),
        )
    except Exception as error:  # libraries raise anything for files that are damaged
        raise UserError(f"model {folder}: {one_line(error)}") from None
    return model.to(_device(settings.device)).eval(), tokenizer


def load_with_code(folder: Path, settings: LoadSettings, name: str) -> Any:
    """Load a model whose own code does the work. Raises `UserError` where that may not run."""
    import torch
    from transformers import AutoModel

    if not settings.own_code:
        raise UserError(
            f"model {name!r} re-ranks by code of its own; to run it write "
            f"allow_remote_code: [{name}] and, for a model of the hub, its commit as revision"
        )
    try:
        model: Any = AutoModel.from_pretrained(
            folder,
            trust_remote_code=settings.own_code,
            use_safetensors=True,
            dtype=getattr(torch, settings.dtype),
        )
    except Exception as error:  # libraries raise anything, and so does a model's code
        raise UserError(f"model {name}: {one_line(error)}") from None
    return model.to(_device(settings.device)).eval()


def _device(device: str | None) -> str:
    import torch

    if device is not None and device.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError("device", device, "cpu: there is no GPU here")
    return device or ("cuda" if torch.cuda.is_available() else "cpu")
