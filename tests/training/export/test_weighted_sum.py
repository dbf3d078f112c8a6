"""Sums of checkpoints and base: full weights, deltas of adapters, every scale, refusals."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from claim2source.core.errors import InputError, UserError
from claim2source.core.files import file_hash
from claim2source.models import Encoder, Manifest, resolve
from claim2source.models.manifest import DataRecord
from claim2source.training.export.weighted_sum import ScaledCheckpoint, read_parts, write_sum
from tests.refusals import refused
from tests.training.points import config, write_point
from tests.training.small import save_small_model

TEXTS = ["wow study on coffee", "krass, Studie zu tea", "Effect of salt on health"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_small_model(tmp_path_factory.mktemp("base") / "model")


def saved(model: Path, folder: Path, kind: str, seed: int, **adapter: Any) -> Path:
    """Write a checkpoint with random trained weights and a recorded val."""
    write_point(config(model), folder, kind, 0.1, seed, **adapter)
    manifest = Manifest.read(folder)
    replace(manifest, epoch=seed, data=DataRecord(val_sha256="v")).write(folder)
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


def test_a_sum_names_its_parts_and_of_the_same_weights_is_these_to_the_bit(
    model: Path, tmp_path: Path
) -> None:
    first, second = (saved(model, tmp_path / f"epoch-{i}", "full", i) for i in (1, 2))
    manifest = write_sum(read_parts([first, second]), tmp_path / "soup")
    assert manifest == Manifest.read(tmp_path / "soup") and manifest.epoch == 2
    assert len(manifest.soup) == 2 and manifest.scores == {}
    # Also of three.
    equal_folders = [saved(model, tmp_path / f"same-{i}", "full", 1) for i in range(3)]
    write_sum(read_parts(equal_folders), tmp_path / "equal")
    hashes = [file_hash(f / "model.safetensors") for f in (equal_folders[0], tmp_path / "equal")]
    assert hashes[0] == hashes[1]


# Those that do not sum to 1 leave or take the rest of the base; without any it is the mean.
MORE = [pytest.param(weights, marks=pytest.mark.slow) for weights in ((0.75, 0.25), (0.5, 0.0))]
WEIGHTS = pytest.mark.parametrize("weights", [None, (0.9, 0.4), *MORE])
Pair = tuple[float, float]


@WEIGHTS
def test_deltas_of_adapters_are_summed_not_their_factors(
    weights: Pair | None, model: Path, tmp_path: Path
) -> None:
    tuned = saved(model, tmp_path / "one", "lora", 1, r=4, lora_alpha=8)
    two = saved(model, tmp_path / "two", "lora", 2, r=6, lora_alpha=6)
    scaled = Manifest.read(two)
    replace(scaled, weights=replace(scaled.weights, scale=0.5)).write(two)
    write_sum(read_parts([tuned, two]), tmp_path / "soup", weights)
    parts, delta = [deltas(folder) for folder in (tuned, two)], deltas(tmp_path / "soup")
    assert delta.keys() == parts[0].keys() and len(delta) > 4
    w = weights or (0.5, 0.5)
    for name, value in delta.items():
        assert torch.allclose(value, w[0] * parts[0][name] + w[1] * parts[1][name], atol=1e-5)
    assert json.loads((tmp_path / "soup" / "adapter_config.json").read_text())["r"] == 10
    # It loads, and its vectors are those of the base with the sum of the deltas.
    encoder = resolve(str(tmp_path / "soup"), "cpu").encoder
    merged = encoder.model.merge_and_unload().state_dict()
    base = resolve(config(model), "cpu").encoder.model.state_dict()
    name = next(iter(delta))
    start = name.removeprefix("base_model.model.").replace("lora_A.weight", "weight")
    assert torch.allclose(merged[start], base[start] + delta[name], atol=1e-6)


@WEIGHTS
def test_full_weights_are_summed_with_the_base(
    weights: Pair | None, model: Path, tmp_path: Path
) -> None:
    start = load_file(model / "model.safetensors")
    parts = [saved(model, tmp_path / f"epoch-{i}", "full", i) for i in (1, 2)]
    tuned = [load_file(folder / "model.safetensors") for folder in parts]
    write_sum(read_parts(parts), tmp_path / "full", weights)
    total = load_file(tmp_path / "full" / "model.safetensors")
    for name, base in start.items():
        pairs = zip(weights or (0.5, 0.5), tuned, strict=True)
        delta = sum((weight * (tuned[name] - base) for weight, tuned in pairs), torch.zeros(()))
        assert torch.allclose(total[name], base + delta, atol=1e-6), name


@pytest.fixture(params=["lora", "full"])
def point(request: pytest.FixtureRequest, model: Path, tmp_path: Path) -> Path:
    return saved(model, tmp_path / request.param, request.param, 1)


def encoder_at(model: Path, point: Path, scale: float, folder: Path) -> Encoder:
    """The encoder of one scale, made from the checkpoint's files without any scaling in place."""
    if point.name == "lora":
        shutil.copytree(point, folder)
        manifest = Manifest.read(folder)
        replace(manifest, weights=replace(manifest.weights, scale=scale)).write(folder)
        return resolve(folder, "cpu").encoder
    encoder = resolve(point, "cpu").encoder
    start, tuned = (load_file(f / "model.safetensors") for f in (model, point))
    for name, value in encoder.model.named_parameters():
        value.data = start[name] + scale * (tuned[name] - start[name])
    return encoder


def test_every_scale_is_computed_afresh_in_any_order(
    model: Path, point: Path, tmp_path: Path
) -> None:
    scaled = ScaledCheckpoint(point, "cpu")
    expected = {
        scale: encoder_at(model, point, scale, tmp_path / str(scale)).encode(TEXTS, "claim")[0]
        for scale in (0.0, 0.25, 0.5, 1.0)
    }
    assert np.abs(expected[0.25] - expected[0.5]).max() > 1e-3
    ends = (config(model), point)
    for scale, name in zip((0.0, 1.0), ends, strict=True):
        vectors, _ = resolve(name, "cpu").encoder.encode(TEXTS, "claim")
        assert np.abs(expected[scale] - vectors).max() < 1e-6
    for scale in (0.5, 0.25, 0.5, 0.0, 1.0, 0.25, 1.0, 0.0):
        scaled.set(scale)
        vectors, _ = scaled.encoder.encode(TEXTS, "claim")
        assert np.abs(vectors - expected[scale]).max() < 1e-6, scale


def test_scales_have_keys_of_their_own_and_the_ends_are_shared(model: Path, point: Path) -> None:
    scaled, keys = ScaledCheckpoint(point, "cpu"), []
    for scale in (0.0, 0.25, 0.5, 1.0, 0.5, 0, 1):
        scaled.set(scale)
        keys.append(json.dumps(scaled.encoder.key(), sort_keys=True))
    assert len(set(keys[:4])) == 4 and keys[4:] == [keys[2], keys[0], keys[3]]
    assert json.dumps(resolve(point, "cpu").encoder.key(), sort_keys=True) == keys[3]
    manifest, half = scaled.manifest, scaled.identity(0.5)
    assert half["base"] == manifest.base.sha256
    if point.name == "full":
        assert half["tuned"] == manifest.weights.sha256 and half["scale"] == 0.5


def test_what_has_no_mean_is_refused(model: Path, tmp_path: Path) -> None:
    full, lora = (saved(model, tmp_path / kind, kind, 1) for kind in ("full", "lora"))
    with refused(UserError, lora, "kind of weights", full):
        read_parts([full, lora])
    with refused(UserError, "checkpoints: "):
        read_parts([full, full])
    second = saved(model, tmp_path / "other", "full", 2)
    manifest = Manifest.read(second)
    replace(manifest, base=replace(manifest.base, sha256="0")).write(second)
    with refused(UserError, second, " base ", full):
        read_parts([full, second])
    replace(manifest, data=replace(manifest.data, val_sha256="w")).write(second)
    with refused(UserError, second, " val ", full):
        read_parts([full, second])
    manifest.write(second)
    (second / "model.safetensors").write_bytes(b"damaged")
    with refused(UserError, second / "model.safetensors", "sha256"):
        read_parts([full, second])
    # An adapter of other layers, whichever is named first.
    wide, narrow = (
        saved(model, tmp_path / name, "lora", 1, target_modules=targets)
        for name, targets in (("wide", ["query", "key"]), ("narrow", ["query"]))
    )
    for pair in ([wide, narrow], [narrow, wide]):
        with refused(UserError, wide, ".key"):
            write_sum(read_parts(pair), tmp_path / "sum")
    assert not (tmp_path / "sum").exists()


def edited(folder: Path, change: Callable[[dict[str, torch.Tensor]], None], name: str) -> None:
    """Change a checkpoint's weights, and write a manifest that fits them."""
    state = load_file(folder / name)
    change(state)
    save_file(state, folder / name, {"format": "pt"})
    manifest = Manifest.read(folder)
    weights = replace(manifest.weights, sha256=file_hash(folder / name))
    replace(manifest, weights=weights).write(folder)


@pytest.mark.parametrize("weights", [None, (0.5, 0.2)])
@pytest.mark.parametrize("kind", ["more", "less", "shape"])
def test_weights_that_do_not_fit_each_other_are_named(
    kind: str, weights: tuple[float, float] | None, model: Path, tmp_path: Path
) -> None:
    """Also if the base has a part in the sum."""
    parts = [saved(model, tmp_path / str(i), "full", i) for i in (1, 2)]
    name = "embeddings.LayerNorm.weight"

    def change(state: dict[str, torch.Tensor]) -> None:
        value = state.pop(name)
        state |= {"more": {name: value, "extra": value.clone()}, "shape": {name: value[:-1]}}.get(
            kind, {}
        )

    edited(parts[1], change, "model.safetensors")
    wrong = "extra" if kind == "more" else name
    with refused(InputError, parts[1], f": {wrong}: "):
        write_sum(read_parts(parts), tmp_path / "sum", weights)
    assert not (tmp_path / "sum").exists()


def test_a_weight_that_is_not_its_bases_has_no_scale(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scaled = ScaledCheckpoint(saved(model, tmp_path / "point", "full", 1), "cpu")
    fewer = dict(scaled.base_weights)
    del fewer["embeddings.LayerNorm.weight"]
    monkeypatch.setattr(ScaledCheckpoint, "base_weights", fewer)
    with refused(InputError, ": embeddings.LayerNorm.weight: "):
        scaled.set(0.5)


def test_what_is_no_factor_of_a_delta_is_in_no_sum(model: Path, tmp_path: Path) -> None:
    parts = [saved(model, tmp_path / str(i), "lora", i) for i in (1, 2)]
    for folder in parts:
        edited(folder, lambda state: state.update(bias=torch.zeros(3)), "adapter_model.safetensors")
    with refused(UserError, parts[0], "bias"):
        write_sum(read_parts(parts), tmp_path / "sum")
    assert not (tmp_path / "sum").exists()
