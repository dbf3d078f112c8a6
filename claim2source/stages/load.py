"""Load re-ranking models: only safetensors, and remote code only if it is allowed by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from claim2source.core.config import Between, require
from claim2source.core.errors import ConfigError, InputError, UserError
from claim2source.core.files import content_hash, file_hash
from claim2source.models import ModelConfig
from claim2source.models.config import Dtype
from claim2source.models.hub import (
    ADAPTER_CONFIG_FILE,
    base_files,
    check_code,
    one_line,
    read_object,
    uses_bin,
)
from claim2source.models.local import local_model
from claim2source.models.manifest import FILE as MANIFEST
from claim2source.models.manifest import (
    Base,
    RerankerKind,
    RerankerManifest,
    read_any_manifest,
    trained_reranker,
)
from claim2source.models.resolve import ADAPTER_FILE, check_hash
from claim2source.models.trained_on import TRAINED_ON
from claim2source.models.weights import (
    belongs_to_head,
    missing_weights,
    require_weights,
    with_adapter,
)
from claim2source.stages.pair_padding import set_padding_side
from claim2source.stages.pairs import Reranker
from claim2source.text import Rendering

if TYPE_CHECKING:
    from sentence_transformers import CrossEncoder
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

# Further files that scores depend on: configs, templates, tokenizers, code.
_TEXTS = (".json", ".jinja", ".txt", ".model", ".py")
# Classes whose heads read the first token of the last layer.
_FIRST_TOKEN = (
    "BertForSequenceClassification",
    "RobertaForSequenceClassification",
    "XLMRobertaForSequenceClassification",
)
# Suffixes of classes with a re-ranking head.
_HEADS = (
    "ForSequenceClassification",
    "ForCausalLM",
    "LMHeadModel",
    "ForConditionalGeneration",
)
DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class LoadSettings:
    """Settings of loading a model; `own_code` only after `model_files` has allowed it.

    `adapter` is the folder of a trained adapter, `labels` the number of logits of a pair.
    """

    dtype: Dtype
    device: str | None
    own_code: bool = False
    adapter: Path | None = None
    labels: int = 1


@dataclass(frozen=True, kw_only=True)
class LocalReranker(Reranker):
    """Re-rank with a local model.

    Args:
        model: a folder, or a name on the hub.
        revision: commit of the hub repository; none: the newest.
        max_length: maximal tokens of a pair; none: the length in the model's files.
        dtype: type of the weights: float32, bfloat16 or float16; logits are always float32. The
            default means a trained model's own type.
        batch_tokens: padded tokens of a batch; none: chosen for the device.
        allow_remote_code: names of models whose own code may run; a model on the hub then also
            needs `revision`, the full commit.
    """

    model: str = ""
    revision: str | None = None
    max_length: Annotated[int, Between(8, 10**6)] | None = None
    dtype: Dtype = "float32"
    batch_tokens: Annotated[int, Between(1, 10**9)] | None = None
    allow_remote_code: tuple[str, ...] = ()
    # The kind of trained re-rankers that this stage loads.
    kind: ClassVar[RerankerKind | None] = None

    def check(self) -> None:
        super().check()
        require(bool(self.model.strip()), "model", self.model, "a folder or a model's name")

    @property
    def label(self) -> str:
        return self.model

    @cached_property
    def trained(self) -> tuple[Path, RerankerManifest] | None:
        """Return the checkpoint and its manifest, if the model was trained here.

        Raises `ConfigError` if the checkpoint belongs to another stage.
        """
        checkpoint = trained_reranker(self.model)
        if checkpoint is not None:
            kind = checkpoint[1].reranker.kind
            allowed = f"a {self.kind} model" if self.kind else "an untrained model"
            allowed += f"; load this one with rerank: {kind}"
            require(kind == self.kind, "model", self.model, allowed)
        return checkpoint

    @cached_property
    def rendering(self) -> Rendering:
        """Return the rendering of texts: the checkpoint's, else that of the settings."""
        if self.trained is None:
            return super().rendering
        own = self.trained[1].rendering
        return Rendering(
            checkpoint_setting(self, "claims", own.claims),
            checkpoint_setting(self, "sources", own.sources),
        )

    @cached_property
    def files(self) -> tuple[Path, Mapping[str, object], LoadSettings]:
        """Return the model's files, their identity, and the settings to load them."""
        name = self.model
        revision = self.revision
        adapter = None
        dtype = self.dtype
        if self.trained is not None:
            name, revision, adapter = model_weights(*self.trained)
            if dtype == LocalReranker.dtype:
                dtype = self.trained[1].reranker.dtype
        # An export has the head of its checkpoint.
        own = read_any_manifest(self.model)
        labels = 1
        if isinstance(own, RerankerManifest):
            labels = own.reranker.labels
        # Only a re-ranker's head is loaded; its attention is set in its own config.
        config = local_model(
            ModelConfig(
                name,
                revision,
                bidirectional=False,
                allow_remote_code=self.allow_remote_code,
            )
        )
        folder, base = base_files(config)
        if uses_bin(folder):
            raise InputError(folder, reason="has no *.safetensors; .bin weights are not supported")
        if self.trained is not None:
            check_base(*self.trained, base)
        own_code = check_code(config, folder)
        settings = LoadSettings(dtype, self.runtime.device, own_code, adapter, labels)
        identity: dict[str, object] = {
            "weights": base.sha256,
            "files": content_hash(_text_hashes(folder)),
            "dtype": dtype,
            "max_length": self.max_length,
            "libraries": {name: version(name) for name in ("tokenizers", "transformers")},
        }
        architecture = self._other_architecture(folder, own_code)
        if architecture is not None:
            identity["architecture"] = architecture
        if self.trained is not None:
            _, manifest = self.trained
            identity |= {"trained": asdict(manifest.weights), "reads": asdict(manifest.reranker)}
            identity |= {"writes": asdict(manifest.rendering)}
        return folder, identity, settings

    def _other_architecture(self, folder: Path, own_code: bool) -> str | None:
        """Return a model's class in its config if it lacks this head; None if it has it.

        Scores that were stored for a model without a head were random.
        """
        if own_code or (folder / "modules.json").is_file():
            return None
        names = read_object(folder / "config.json").get("architectures")
        name = "none"
        if isinstance(names, list) and names:
            name = str(names[0])
        return None if name.endswith(_HEADS) else name


def _text_hashes(folder: Path) -> dict[str, str]:
    """Hash the files besides the weights that scores depend on, by their path in the folder."""
    hashes: dict[str, str] = {}
    for path in sorted(folder.rglob("*")):
        if not path.is_file() or path.name in (MANIFEST, TRAINED_ON):
            continue
        if path.suffix in _TEXTS or path.parent != folder:
            hashes[str(path.relative_to(folder))] = file_hash(path)
    return hashes


def checkpoint_setting(stage: Reranker, key: str, trained: Any) -> Any:
    """Return a checkpoint's setting. Raises `ConfigError` if a stage contradicts it.

    A stage that leaves the setting at its default does not contradict.
    """
    own = getattr(stage, key)
    default = next(spec.default for spec in fields(stage) if spec.name == key)
    allowed = f"{trained!r}, the checkpoint's setting in training, or unset"
    require(own in (default, trained), key, own, allowed)
    return trained


def model_weights(folder: Path, manifest: RerankerManifest) -> tuple[str, str | None, Path | None]:
    """Return the model of a checkpoint, or its base, and its adapter.

    Raises `InputError` if the weights are not those of the manifest.
    """
    weights = manifest.weights
    base = manifest.base
    if weights.kind == "full":
        check_hash(folder / "model.safetensors", weights.sha256)
        check_hash(folder / "config.json", weights.config_sha256)
        return str(folder), None, None
    if weights.kind == "base":
        return base.name, base.revision, None
    check_hash(folder / ADAPTER_FILE, weights.sha256)
    check_hash(folder / ADAPTER_CONFIG_FILE, weights.config_sha256)
    return base.name, base.revision, folder


def check_base(folder: Path, manifest: RerankerManifest, base: Base) -> None:
    """Raise `InputError` if a base's weights are not those that a checkpoint was trained from."""
    if manifest.weights.kind != "full" and base.sha256 != manifest.base.sha256:
        reason = f"{base.name} has other weights ({base.sha256[:12]}...) than this was trained from"
        raise InputError(folder / MANIFEST, field="base.sha256", reason=reason)


def load_cross_encoder(
    folder: Path,
    settings: LoadSettings,
    max_length: int | None,
    labels: int | None = None,
    *,
    trains: bool = False,
    new_head: bool = False,
) -> CrossEncoder:
    """Load a cross-encoder that returns raw logits. Raises `UserError` for any other model.

    `labels` is the number of logits of a pair, by default that of the settings: 1 for a re-ranker.
    `trains` leaves every layer unchanged. Only with `new_head` may the files lack the head, which
    is then random: `model.headless`. The activation in its files is kept as
    `model.named_activation`.
    """
    import torch
    from sentence_transformers import CrossEncoder

    labels = settings.labels if labels is None else labels
    options: dict[str, Any] = {"dtype": settings.dtype, "use_safetensors": True}
    if new_head:
        options["ignore_mismatched_sizes"] = True
    try:
        model = CrossEncoder(
            str(folder),
            device=_device(settings.device),
            num_labels=labels if trains else None,
            max_length=max_length,
            trust_remote_code=settings.own_code,
            local_files_only=True,
            model_kwargs=options,
        )
    except Exception as error:  # libraries raise anything for files that are damaged
        raise UserError(f"model {folder}: {one_line(error)}") from None
    if model.num_labels != labels:
        needed = "a re-ranker has 1" if labels == 1 else f"{labels} are needed"
        raise UserError(f"model {folder}: has {model.num_labels} scores for a pair; {needed}")
    network = model[0].model
    missing = missing_weights(folder, network)
    head: list[str] = []
    if new_head:
        head = [key for key in missing if belongs_to_head(key, network)]
    require_weights(folder, set(missing).difference(head))
    _set_padding(folder, network.config.get_text_config(), model.tokenizer)
    set_padding_side(model)
    _limit_length(model, max_length, "model.max_length" if trains else "max_length")
    if settings.adapter is not None:
        with_adapter(network, settings.adapter)
    # Outside the modules: an activation is a module, but not a part of the network.
    object.__setattr__(model, "named_activation", model.activation_fn)
    object.__setattr__(model, "headless", bool(head))
    model.activation_fn = torch.nn.Identity()
    if settings.dtype != "float32":
        keep_head(model)
    if not trains:
        first_token_alone(model[0].model)
    return model.eval()


def _limit_length(model: CrossEncoder, max_length: int | None, key: str) -> None:
    """Limit pairs to a model's positions. Raises `ConfigError` if `max_length` is larger."""
    from claim2source.models.load import count_positions

    positions = count_positions(model[0].model)
    if positions is None:
        return
    if max_length is not None and max_length > positions:
        raise ConfigError(key, max_length, f"at most {positions}")
    tokenizer = model.tokenizer
    tokenizer.model_max_length = min(tokenizer.model_max_length, positions)


def _set_padding(folder: Path, config: Any, tokenizer: Any) -> None:
    """Set a classifier's missing padding token: its tokenizer's, else the end token.

    Without one a batch can have only one pair. Raises `InputError` if there is neither.
    """
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    if config.pad_token_id is None:
        config.pad_token_id = tokenizer.pad_token_id
    if config.pad_token_id is None:
        raise InputError(folder, reason="has no pad_token_id, no pad token and no end token")


def keep_head(model: CrossEncoder) -> None:
    """Compute a cross-encoder's head in float32: half precision gives many pairs the same logit."""
    import torch

    labels = model.num_labels
    heads = []
    for name, part in model.named_modules():
        if type(part) is torch.nn.Linear and part.out_features == labels:
            heads.append(name)
    model.set_keep_in_fp32_modules(heads)


def first_token_alone(model: Any) -> None:
    """Compute only the first token in the last layer, because BERT's heads use no other.

    This saves most of a layer: about an eighth of the time of six layers.
    """
    import torch

    base = getattr(model, getattr(model, "base_model_prefix", ""), None)
    is_known = type(model).__name__ in _FIRST_TOKEN and model.config._attn_implementation == "sdpa"
    if not is_known or model.config.is_decoder or base is None:
        return
    layer = base.encoder.layer[-1]
    attention = layer.attention.self

    def by_head(rows: torch.Tensor) -> torch.Tensor:
        return rows.unflatten(-1, (attention.num_attention_heads, -1)).transpose(1, 2)

    def forward(hidden: torch.Tensor, mask: torch.Tensor | None = None, *_: Any, **__: Any) -> Any:
        first = hidden[:, :1]
        query = by_head(attention.query(first))
        key = by_head(attention.key(hidden))
        value = by_head(attention.value(hidden))
        first_mask = None
        if mask is not None:
            first_mask = mask[:, :, :1]
        attended = torch.nn.functional.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=first_mask,
        )
        attended = attended.transpose(1, 2).flatten(2)
        return layer.feed_forward_chunk(layer.attention.output(attended, first))

    layer.forward = forward


def load_tokenizer(folder: Path, settings: LoadSettings) -> PreTrainedTokenizerBase:
    """Load a generative model's tokenizer. Raises `UserError` if it cannot be read."""
    from transformers import AutoTokenizer

    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            folder,
            trust_remote_code=settings.own_code,
        )
    except Exception as error:  # libraries raise anything for files that are damaged
        raise UserError(f"model {folder}: {one_line(error)}") from None
    return tokenizer


def load_causal(folder: Path, settings: LoadSettings) -> PreTrainedModel:
    """Load a generative model. Raises `UserError` for any other model."""
    import torch
    from transformers import AutoModelForCausalLM

    from claim2source.models.fused import prepare_for_gpu

    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder,
            trust_remote_code=settings.own_code,
            use_safetensors=True,
            dtype=getattr(torch, settings.dtype),
            output_loading_info=True,
        )
    except Exception as error:  # libraries raise anything for files that are damaged
        raise UserError(f"model {folder}: {one_line(error)}") from None
    model, loading = loaded
    require_weights(folder, loading["missing_keys"])
    if settings.adapter is not None:
        with_adapter(model, settings.adapter)
    prepared: PreTrainedModel = prepare_for_gpu(model.to(_device(settings.device)).eval())
    return prepared


def _device(device: str | None) -> str:
    import torch

    if device is not None and device.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError("device", device, "cpu: there is no GPU here")
    return device or ("cuda" if torch.cuda.is_available() else "cpu")
