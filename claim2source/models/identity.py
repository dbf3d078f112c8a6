"""Build the cache key of an encoder's vectors: weights, config, settings, libraries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict

from claim2source.core.files import content_hash
from claim2source.core.provenance import version
from claim2source.models.config import EncoderSettings, Identity

# Parts of a model's config that do not affect what it computes.
_ORIGIN = (
    "_name_or_path",
    "architectures",
    "dtype",
    "torch_dtype",
    "transformers_version",
    "use_cache",
)
# Settings that older stores do not have: if they are off, vectors are as before.
_NEWER = ("lower_case", "truncate_dim")


def vector_key(
    weights: Identity,
    settings: EncoderSettings,
    config: str,
) -> dict[str, object]:
    """Return everything except the text that a vector depends on; `config` is a `config_hash`."""
    key_settings = asdict(settings)
    for name in _NEWER:
        if not key_settings[name]:
            del key_settings[name]
    # The prefix is hashed with the text: two sides with one prefix share their vectors.
    template = key_settings.pop("template")
    ends = {key: template[key] for key in ("pool_prefix", "append_token")}
    # Attention kernels are left out: they differ only by rounding, as do batches, devices
    # and versions of torch.
    libraries = {name: version(name) for name in _libraries(weights)}
    return {"weights": weights, "config": config, "libraries": libraries, **key_settings, **ends}


def config_hash(config: Mapping[str, object]) -> str:
    """Hash a model's config as transformers writes it, whatever folder it was read from."""
    # The same weights under another config (activation, rotary base) are another model.
    return content_hash({key: value for key, value in config.items() if key not in _ORIGIN})


def _libraries(weights: Identity) -> Iterator[str]:
    yield from ("tokenizers", "transformers")
    parts = weights.keys()
    if "adapter" in parts:
        yield "peft"
    if not parts.isdisjoint(("dense", "projection")):
        yield "sentence-transformers"
