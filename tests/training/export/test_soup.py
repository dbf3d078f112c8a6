"""Means of checkpoints: full weights, deltas of adapters, and what has no mean."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from claim2source.core.errors import UserError
from claim2source.core.files import file_hash
from claim2source.models import Base, Encoder, EncoderSettings, Manifest, Weights, resolve
from claim2source.models.hub import weights_hash
from claim2source.models.manifest import DataRecord
from claim2source.text import Rendering
from claim2source.training.adapt import adapt
from claim2source.training.checkpoint import save_checkpoint
from claim2source.training.export.soup import read_ingredients, save_soup
from tests.training.small import save_small_model, small_config


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_small_model(tmp_path_factory.mktemp("base") / "model")


def saved(model: Path, folder: Path, kind: str, seed: int, **lora: object) -> Path:
    """Write a checkpoint whose trained weights are random."""
    config = small_config(model, folder, folder, tuning=kind, **lora)
    encoder: Encoder = resolve(config.model, "cpu").encoder
    adapt(encoder, config)
    torch.manual_seed(seed)
    with torch.no_grad():
        for weight in encoder.model.parameters():
            if weight.requires_grad:
                weight.add_(torch.randn_like(weight) * 0.1)
    manifest = Manifest(
        Base(str(model), None, weights_hash(model)),
        Weights(),
        EncoderSettings(pooling="mean", max_length=24),
        Rendering(),
        epoch=seed,
        data=DataRecord(val_sha256="v"),
    )
    save_checkpoint(folder, encoder, model, manifest, kind)  # type: ignore[arg-type]
    return folder


def deltas(folder: Path) -> dict[str, torch.Tensor]:
    """The deltas B A of an adapter, at the scale of its config and manifest."""
    state = load_file(folder / "adapter_model.safetensors")
    config = json.loads((folder / "adapter_config.json").read_text())
    scale = config["lora_alpha"] / config["r"] * Manifest.read(folder).weights.scale
    return {
        name: scale * state[name.replace("lora_A", "lora_B")] @ state[name]
        for name in state
        if "lora_A" in name
    }


def test_full_weights_are_averaged(model: Path, tmp_path: Path) -> None:
    first, second = (saved(model, tmp_path / f"epoch-{i}", "full", i) for i in (1, 2))
    manifest = save_soup(read_ingredients([first, second]), tmp_path / "soup")
    weights = [load_file(folder / "model.safetensors") for folder in (first, second)]
    found = resolve(str(tmp_path / "soup"), "cpu").encoder.model.state_dict()
    for name, value in weights[0].items():
        assert torch.allclose(found[name], (value + weights[1][name]) / 2, atol=1e-7)
    assert manifest == Manifest.read(tmp_path / "soup") and manifest.epoch == 2
    assert len(manifest.soup) == 2 and manifest.scores == {}
    # A mean of the same weights is these weights, to the bit; also of three.
    same = [saved(model, tmp_path / f"same-{i}", "full", 1) for i in range(3)]
    save_soup(read_ingredients(same), tmp_path / "equal")
    hashes = [file_hash(f / "model.safetensors") for f in (same[0], tmp_path / "equal")]
    assert hashes[0] == hashes[1]


def test_deltas_of_adapters_are_averaged_not_their_factors(model: Path, tmp_path: Path) -> None:
    one = saved(model, tmp_path / "one", "lora", 1, lora__r=4, lora__alpha=8)
    two = saved(model, tmp_path / "two", "lora", 2, lora__r=6, lora__alpha=6)
    scaled = Manifest.read(two)
    replace(scaled, weights=replace(scaled.weights, scale=0.5)).write(two)
    save_soup(read_ingredients([one, two]), tmp_path / "soup")
    parts, found = [deltas(folder) for folder in (one, two)], deltas(tmp_path / "soup")
    assert found.keys() == parts[0].keys() and len(found) > 4
    for name, value in found.items():
        assert torch.allclose(value, (parts[0][name] + parts[1][name]) / 2, atol=1e-6)
    assert json.loads((tmp_path / "soup" / "adapter_config.json").read_text())["r"] == 10
    # It loads, and its vectors are those of the base with the mean of the deltas.
    encoder = resolve(str(tmp_path / "soup"), "cpu").encoder
    merged = encoder.model.merge_and_unload().state_dict()
    base = resolve(small_config(model, tmp_path, tmp_path).model, "cpu").encoder.model.state_dict()
    name = next(iter(found))
    plain = name.removeprefix("base_model.model.").replace("lora_A.weight", "weight")
    assert torch.allclose(merged[plain], base[plain] + found[name], atol=1e-6)


def test_what_has_no_mean_is_refused(model: Path, tmp_path: Path) -> None:
    full, lora = (saved(model, tmp_path / kind, kind, 1) for kind in ("full", "lora"))
    with pytest.raises(UserError, match="kind of weights"):
        read_ingredients([full, lora])
    with pytest.raises(UserError, match="two or more"):
        read_ingredients([full, full])
    other = saved(model, tmp_path / "other", "full", 2)
    manifest = Manifest.read(other)
    replace(manifest, base=replace(manifest.base, sha256="0")).write(other)
    with pytest.raises(UserError, match="base is not that of"):
        read_ingredients([full, other])
    replace(manifest, data=replace(manifest.data, val_sha256="w")).write(other)
    with pytest.raises(UserError, match="val is not that of"):
        read_ingredients([full, other])
    manifest.write(other)
    (other / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(UserError, match="sha256"):
        read_ingredients([full, other])
