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

TEXTS = [
    "wow study on coffee",
    "krass, Studie zu tea",
    "Effect of salt on health",
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    return save_small_model(folder / "model")


def saved(
    model: Path,
    folder: Path,
    kind: str,
    seed: int,
    **adapter: Any,
) -> Path:
    """Write a checkpoint with random trained weights and a recorded val."""
    write_point(config(model), folder, kind, 0.1, seed, **adapter)
    manifest = Manifest.read(folder)
    data = DataRecord(val_sha256="v")
    replace(manifest, epoch=seed, data=data).write(folder)
    return folder


def deltas(folder: Path) -> dict[str, torch.Tensor]:
    """The deltas B A of an adapter, at the scale of its config and manifest."""
    state = load_file(folder / "adapter_model.safetensors")
    text = (folder / "adapter_config.json").read_text()
    config = json.loads(text)
    of_config = config["lora_alpha"] / config["r"]
    scale = of_config * Manifest.read(folder).weights.scale
    found = {}
    for name in state:
        if "lora_A" in name:
            second_factor = state[name.replace("lora_A", "lora_B")]
            found[name] = scale * second_factor @ state[name]
    return found


def test_a_sum_names_its_parts_and_of_the_same_weights_is_these_to_the_bit(
    model: Path, tmp_path: Path
) -> None:
    first = saved(model, tmp_path / "epoch-1", "full", 1)
    second = saved(model, tmp_path / "epoch-2", "full", 2)
    soup = tmp_path / "soup"
    parts = read_parts([first, second])
    manifest = write_sum(parts, soup)
    assert manifest == Manifest.read(soup)
    assert manifest.epoch == 2
    assert len(manifest.soup) == 2
    assert manifest.scores == {}
    # Also of three.
    equal_folders = [saved(model, tmp_path / f"same-{i}", "full", 1) for i in range(3)]
    equal = tmp_path / "equal"
    write_sum(read_parts(equal_folders), equal)
    hash_of_one = file_hash(equal_folders[0] / "model.safetensors")
    hash_of_sum = file_hash(equal / "model.safetensors")
    assert hash_of_one == hash_of_sum


# Those that do not sum to 1 leave or take the rest of the base; without any it is the mean.
MORE = [
    pytest.param((0.75, 0.25), marks=pytest.mark.slow),
    pytest.param((0.5, 0.0), marks=pytest.mark.slow),
]
WEIGHTS = pytest.mark.parametrize("weights", [None, (0.9, 0.4), *MORE])
Pair = tuple[float, float]


@WEIGHTS
def test_deltas_of_adapters_are_summed_not_their_factors(
    weights: Pair | None, model: Path, tmp_path: Path
) -> None:
    tuned = saved(
        model,
        tmp_path / "one",
        "lora",
        1,
        r=4,
        lora_alpha=8,
    )
    two = saved(
        model,
        tmp_path / "two",
        "lora",
        2,
        r=6,
        lora_alpha=6,
    )
    scaled = Manifest.read(two)
    half = replace(scaled.weights, scale=0.5)
    replace(scaled, weights=half).write(two)
    soup = tmp_path / "soup"
    write_sum(read_parts([tuned, two]), soup, weights)

    first_deltas = deltas(tuned)
    second_deltas = deltas(two)
    delta = deltas(soup)
    assert delta.keys() == first_deltas.keys()
    assert len(delta) > 4
    first_weight, second_weight = weights or (0.5, 0.5)
    for name, value in delta.items():
        first_part = first_weight * first_deltas[name]
        second_part = second_weight * second_deltas[name]
        expected = first_part + second_part
        assert torch.allclose(value, expected, atol=1e-5)
    text = (soup / "adapter_config.json").read_text()
    adapter_config = json.loads(text)
    assert adapter_config["r"] == 10

    # It loads, and its vectors are those of the base with the sum of the deltas.
    encoder = resolve(str(soup), "cpu").encoder
    merged = encoder.model.merge_and_unload().state_dict()
    untrained = resolve(config(model), "cpu").encoder
    base = untrained.model.state_dict()
    name = next(iter(delta))
    in_model = name.removeprefix("base_model.model.")
    start = in_model.replace("lora_A.weight", "weight")
    expected = base[start] + delta[name]
    assert torch.allclose(merged[start], expected, atol=1e-6)


@WEIGHTS
def test_full_weights_are_summed_with_the_base(
    weights: Pair | None, model: Path, tmp_path: Path
) -> None:
    start = load_file(model / "model.safetensors")
    parts = [
        saved(model, tmp_path / "epoch-1", "full", 1),
        saved(model, tmp_path / "epoch-2", "full", 2),
    ]
    tuned = [load_file(folder / "model.safetensors") for folder in parts]
    write_sum(read_parts(parts), tmp_path / "full", weights)
    total = load_file(tmp_path / "full" / "model.safetensors")
    shares = weights or (0.5, 0.5)
    for name, base in start.items():
        delta = torch.zeros(())
        for share, part in zip(shares, tuned, strict=True):
            delta = delta + share * (part[name] - base)
        expected = base + delta
        assert torch.allclose(total[name], expected, atol=1e-6), name


@pytest.fixture(params=["lora", "full"])
def point(request: pytest.FixtureRequest, model: Path, tmp_path: Path) -> Path:
    kind = request.param
    return saved(model, tmp_path / kind, kind, 1)


def encoder_at(model: Path, point: Path, scale: float, folder: Path) -> Encoder:
    """The encoder of one scale, made from the checkpoint's files without any scaling in place."""
    if point.name == "lora":
        shutil.copytree(point, folder)
        manifest = Manifest.read(folder)
        weights = replace(manifest.weights, scale=scale)
        replace(manifest, weights=weights).write(folder)
        return resolve(folder, "cpu").encoder
    encoder = resolve(point, "cpu").encoder
    start = load_file(model / "model.safetensors")
    tuned = load_file(point / "model.safetensors")
    for name, value in encoder.model.named_parameters():
        delta = tuned[name] - start[name]
        value.data = start[name] + scale * delta
    return encoder


def test_every_scale_is_computed_afresh_in_any_order(
    model: Path, point: Path, tmp_path: Path
) -> None:
    scaled = ScaledCheckpoint(point, "cpu")
    expected = {}
    for scale in (0.0, 0.25, 0.5, 1.0):
        folder = tmp_path / str(scale)
        encoder = encoder_at(model, point, scale, folder)
        vectors, _ = encoder.encode(TEXTS, "claim")
        expected[scale] = vectors
    moved = np.abs(expected[0.25] - expected[0.5])
    assert moved.max() > 1e-3
    ends = (
        (0.0, config(model)),
        (1.0, point),
    )
    for scale, name in ends:
        encoder = resolve(name, "cpu").encoder
        vectors, _ = encoder.encode(TEXTS, "claim")
        error = np.abs(expected[scale] - vectors)
        assert error.max() < 1e-6
    for scale in (0.5, 0.25, 0.5, 0.0, 1.0, 0.25, 1.0, 0.0):
        scaled.set(scale)
        vectors, _ = scaled.encoder.encode(TEXTS, "claim")
        error = np.abs(vectors - expected[scale])
        assert error.max() < 1e-6, scale


def test_scales_have_keys_of_their_own_and_the_ends_are_shared(model: Path, point: Path) -> None:
    scaled = ScaledCheckpoint(point, "cpu")
    keys = []
    for scale in (0.0, 0.25, 0.5, 1.0, 0.5, 0, 1):
        scaled.set(scale)
        key = scaled.encoder.key()
        keys.append(json.dumps(key, sort_keys=True))
    assert len(set(keys[:4])) == 4
    assert keys[4:] == [keys[2], keys[0], keys[3]]
    key = resolve(point, "cpu").encoder.key()
    assert json.dumps(key, sort_keys=True) == keys[3]
    manifest = scaled.manifest
    half = scaled.identity(0.5)
    assert half["base"] == manifest.base.sha256
    if point.name == "full":
        assert half["tuned"] == manifest.weights.sha256
        assert half["scale"] == 0.5


def test_what_has_no_mean_is_refused(model: Path, tmp_path: Path) -> None:
    full = saved(model, tmp_path / "full", "full", 1)
    lora = saved(model, tmp_path / "lora", "lora", 1)
    with refused(UserError, lora, "kind of weights", full):
        read_parts([full, lora])
    with refused(UserError, "checkpoints: "):
        read_parts([full, full])

    second = saved(model, tmp_path / "other", "full", 2)
    manifest = Manifest.read(second)
    other_base = replace(manifest.base, sha256="0")
    replace(manifest, base=other_base).write(second)
    with refused(UserError, second, " base ", full):
        read_parts([full, second])
    other_val = replace(manifest.data, val_sha256="w")
    replace(manifest, data=other_val).write(second)
    with refused(UserError, second, " val ", full):
        read_parts([full, second])
    manifest.write(second)
    weights_file = second / "model.safetensors"
    weights_file.write_bytes(b"damaged")
    with refused(UserError, weights_file, "sha256"):
        read_parts([full, second])

    # An adapter of other layers, whichever is named first.
    wide = saved(
        model,
        tmp_path / "wide",
        "lora",
        1,
        target_modules=["query", "key"],
    )
    narrow = saved(
        model,
        tmp_path / "narrow",
        "lora",
        1,
        target_modules=["query"],
    )
    for pair in ([wide, narrow], [narrow, wide]):
        with refused(UserError, wide, ".key"):
            write_sum(read_parts(pair), tmp_path / "sum")
    assert not (tmp_path / "sum").exists()


State = dict[str, torch.Tensor]


def edited(folder: Path, change: Callable[[State], None], name: str) -> None:
    """Change a checkpoint's weights, and write a manifest that fits them."""
    state = load_file(folder / name)
    change(state)
    save_file(state, folder / name, {"format": "pt"})
    manifest = Manifest.read(folder)
    sha256 = file_hash(folder / name)
    weights = replace(manifest.weights, sha256=sha256)
    replace(manifest, weights=weights).write(folder)


@pytest.mark.parametrize("weights", [None, (0.5, 0.2)])
@pytest.mark.parametrize("kind", ["more", "less", "shape"])
def test_weights_that_do_not_fit_each_other_are_named(
    kind: str, weights: Pair | None, model: Path, tmp_path: Path
) -> None:
    """Also if the base has a part in the sum."""
    parts = [saved(model, tmp_path / str(i), "full", i) for i in (1, 2)]
    name = "embeddings.LayerNorm.weight"

    def change(state: State) -> None:
        value = state.pop(name)
        if kind == "more":
            state[name] = value
            state["extra"] = value.clone()
        if kind == "shape":
            state[name] = value[:-1]

    edited(parts[1], change, "model.safetensors")
    wrong = "extra" if kind == "more" else name
    with refused(InputError, parts[1], f": {wrong}: "):
        write_sum(read_parts(parts), tmp_path / "sum", weights)
    assert not (tmp_path / "sum").exists()


def test_a_weight_that_is_not_its_bases_has_no_scale(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = saved(model, tmp_path / "point", "full", 1)
    scaled = ScaledCheckpoint(checkpoint, "cpu")
    fewer = dict(scaled.base_weights)
    del fewer["embeddings.LayerNorm.weight"]
    monkeypatch.setattr(ScaledCheckpoint, "base_weights", fewer)
    with refused(InputError, ": embeddings.LayerNorm.weight: "):
        scaled.set(0.5)


def test_what_is_no_factor_of_a_delta_is_in_no_sum(model: Path, tmp_path: Path) -> None:
    def add_bias(state: State) -> None:
        state["bias"] = torch.zeros(3)

    parts = [saved(model, tmp_path / str(i), "lora", i) for i in (1, 2)]
    for folder in parts:
        edited(folder, add_bias, "adapter_model.safetensors")
    with refused(UserError, parts[0], "bias"):
        write_sum(read_parts(parts), tmp_path / "sum")
    assert not (tmp_path / "sum").exists()
