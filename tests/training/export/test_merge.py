"""Exports: the vectors of sentence-transformers, the weights by hand, a base left as it was."""

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
from claim2source.train.merge import MergeConfig, merge
from safetensors.torch import load_file

from claim2source.core.errors import ConfigError, InputError, UserError
from claim2source.core.files import file_hash
from claim2source.models import Encoder, Manifest, ModelConfig, Template, resolve
from claim2source.models.resolve import set_adapter_scale
from claim2source.text import Rendering
from claim2source.training.export import sentence_transformers as exporting
from claim2source.training.export.weighted_sum import ScaledCheckpoint, read_parts, write_sum
from tests.models import mistral as gritlm
from tests.refusals import refused
from tests.training.points import RENDERING, TEMPLATE, byte_level, config, write_point

TEXTS = [
    "a b c",
    "vaccine works .",
    "claim : paper",
    "works",
    "a vaccine paper works : " * 5,
]
# The W of the tiny model that is compared, and the adapter's names for it.
LAYER = "encoder.layer.1.attention.self.value"
ADAPTER = f"base_model.model.{LAYER}"


@pytest.fixture
def base(tmp_path: Path, tiny_folder: Path) -> Path:
    copy = shutil.copytree(tiny_folder, tmp_path / "base")
    return Path(copy)


def export(checkpoint: Path, out: Path, **options: Any) -> Path:
    scale = options.pop("scale", None)
    options["scales"] = None if scale is None else [scale]
    merge_config = MergeConfig([str(checkpoint)], out, **options)
    merge(merge_config)
    return out


def vectors(encoder: Encoder) -> np.ndarray:
    claims, _ = encoder.encode(TEXTS, "claim")
    sources, _ = encoder.encode(TEXTS, "source")
    return np.stack([claims, sources])


def their_vectors(folder: Path) -> np.ndarray:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device="cpu")
    claims = model.encode_query(TEXTS)
    sources = model.encode_document(TEXTS)
    return np.stack([claims, sources])


def largest_difference(found: np.ndarray, expected: np.ndarray) -> np.floating:
    """Return the largest absolute difference of two arrays of vectors."""
    differences = np.abs(found - expected)
    return differences.max()


def model_weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def adapter_factors(checkpoint: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Read A and B of the layer that is compared."""
    adapter = load_file(checkpoint / "adapter_model.safetensors")
    first = adapter[f"{ADAPTER}.lora_A.weight"]
    second = adapter[f"{ADAPTER}.lora_B.weight"]
    return first, second


def exported_record(folder: Path) -> dict[str, Any]:
    """Read what an export says of itself."""
    text = (folder / "claim2source.json").read_text()
    record: dict[str, Any] = json.loads(text)
    return record


def hashes(folder: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    for path in folder.rglob("*"):
        if path.is_file():
            name = str(path.relative_to(folder))
            found[name] = file_hash(path)
    return found


def test_a_bidirectional_decoder_with_a_masked_template_is_the_same_there(tmp_path: Path) -> None:
    """Like GritLM: the mean over only the text's tokens, which attend to later ones."""
    base = gritlm.save_mistral(tmp_path / "mistral")
    template = Template(gritlm.CLAIM, gritlm.SOURCE, pool_prefix=False)
    model = config(
        base,
        template=template,
        bidirectional=True,
        max_length=200,
    )
    encoder = write_point(model, tmp_path / "point", "lora")
    out = export(tmp_path / "point", tmp_path / "out")
    expected = vectors(encoder)
    assert largest_difference(their_vectors(out), expected) < 1e-5
    exported = resolve(out, "cpu").encoder
    assert exported.settings == encoder.settings
    assert exported.settings.bidirectional
    assert largest_difference(vectors(exported), expected) < 1e-5
    # Causal attention, or pooling the instruction, gives other vectors.
    for name, key, value in (
        ("config.json", "is_causal", True),
        ("1_Pooling/config.json", "include_prompt", True),
    ):
        file = out / name
        text = file.read_text()
        changed = json.loads(text) | {key: value}
        file.write_text(json.dumps(changed))
        assert largest_difference(their_vectors(out), expected) > 1e-2, key
        file.write_text(text)


def test_a_prefix_pooled_on_one_side_alone_is_not_exported(base: Path, tmp_path: Path) -> None:
    template = replace(TEMPLATE, pool_prefix="claim")
    model = config(base, template=template)
    write_point(model, tmp_path / "point", "lora")
    with refused(UserError, "template.pool_prefix: claim: "):
        export(tmp_path / "point", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def save_experts(folder: Path, kind: str) -> Path:
    """A mixture of experts, which are one parameter in transformers."""
    import transformers

    torch.manual_seed(0)
    experts = "num_local_experts" if kind == "Mixtral" else "num_experts"
    own = {
        "vocab_size": 300,
        "moe_intermediate_size": 24,
        "head_dim": 8,
        "num_experts_per_tok": 2,
        experts: 4,
    }
    sizes = gritlm.SIZES | own
    config_class = getattr(transformers, f"{kind}Config")
    model_class = getattr(transformers, f"{kind}Model")
    model = model_class(config_class(**sizes))
    model.save_pretrained(folder)
    byte_level(folder, pad=True)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["Mixtral", "Qwen3Moe"])
def test_adapters_over_experts_are_merged(kind: str, tmp_path: Path) -> None:
    base = save_experts(tmp_path / "base", kind)
    model = config(base, pooling="last", max_length=32)
    point = tmp_path / "point"
    encoder = write_point(model, point, "lora", move=0.1, lora_dropout=0.0)
    modules = encoder.model.modules()
    wrapped = set()
    for module in modules:
        if hasattr(module, "parameter_name"):
            wrapped.add(module.parameter_name)
    assert wrapped >= {"gate_up_proj", "down_proj"}
    base_vectors = vectors(resolve(model, "cpu").encoder)
    assert largest_difference(base_vectors, vectors(encoder)) > 1e-2
    set_adapter_scale(encoder.model, 0.5)
    out = export(point, tmp_path / "out", scale=0.5)
    assert model_weights(out).keys() == model_weights(base).keys()
    assert largest_difference(their_vectors(out), vectors(encoder)) < 1e-4
    exported = resolve(out, "cpu").encoder
    assert largest_difference(vectors(exported), vectors(encoder)) < 1e-4
    other = tmp_path / "other"
    with refused(InputError, "target_parameters"):
        second = write_point(model, other, "lora", move=0.2, lora_dropout=0.0)
        assert second is not encoder
        write_sum(read_parts([point, other]), tmp_path / "soup")


@pytest.mark.parametrize(
    "scale",
    [
        None,
        0.5,
        pytest.param(0.0, marks=pytest.mark.slow),
        pytest.param(1.0, marks=pytest.mark.slow),
        pytest.param(1.5, marks=pytest.mark.slow),
    ],
)
def test_lora_is_the_base_plus_scaled_delta(
    scale: float | None, base: Path, tmp_path: Path
) -> None:
    point = tmp_path / "point"
    out = tmp_path / "out"
    write_point(config(base), point, "lora")
    scales = None if scale is None else [scale]
    merge_config = MergeConfig([str(point)], out, scales=scales)
    lines = merge(merge_config)
    a, b = adapter_factors(point)
    base_weights = model_weights(base)
    merged = model_weights(out)
    factor = 1.0 if scale is None else scale
    delta = factor * (8 / 2) * (b @ a)
    expected = base_weights[f"{LAYER}.weight"] + delta
    assert torch.allclose(merged[f"{LAYER}.weight"], expected, atol=1e-6)
    assert (b @ a).abs().max() > 1e-2
    assert merged.keys() == base_weights.keys()
    bias = base_weights[f"{LAYER}.bias"]
    assert torch.equal(merged[f"{LAYER}.bias"], bias)
    record = exported_record(out)
    assert record["scale"] == record["weights"]["scale"] == factor
    # Its origin is written next to it, and printed.
    assert record["base"]["sha256"] == file_hash(base / "model.safetensors")
    adapter_hash = file_hash(point / "adapter_model.safetensors")
    assert record["weights"]["sha256"] == adapter_hash
    assert record["sha256"] == file_hash(out / "model.safetensors")
    assert record["weights"]["kind"] == "lora"
    assert record["encoder"]["max_length"] == 12
    assert record["epoch"] == 1
    assert f"scale {factor:g}" in lines[0]
    assert record["base"]["sha256"] in lines[1]
    assert not (out / "manifest.json").exists()


def test_a_plain_export_of_full_weights_needs_no_base(base: Path, tmp_path: Path) -> None:
    encoder = write_point(config(base), tmp_path / "point", "full")
    shutil.rmtree(base)
    out = export(tmp_path / "point", tmp_path / "out")
    exported = resolve(out, "cpu").encoder
    assert largest_difference(vectors(exported), vectors(encoder)) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["lora", "full"])
def test_the_base_is_the_same_after_every_export(kind: str, base: Path, tmp_path: Path) -> None:
    """Also if several scales are written one after the other."""
    point = tmp_path / "point"
    write_point(config(base), point, kind)
    base_before = hashes(base)
    point_before = hashes(point)
    scaled = ScaledCheckpoint(point, "cpu", "float32")
    for turn, scale in enumerate([1.0, 0.5, 0.0, 0.5, 1.0]):
        folder = tmp_path / f"m{turn}"
        scaled.save_model(folder, scale, "float32")
        fresh = export(point, tmp_path / f"o{turn}", scale=scale)
        in_turn = model_weights(folder)
        by_itself = model_weights(fresh)
        for name, weight in by_itself.items():
            assert torch.equal(in_turn[name], weight)
        assert hashes(base) == base_before
        assert hashes(point) == point_before


def test_a_bfloat16_base_is_merged_in_float32_and_cast_once(base: Path, tmp_path: Path) -> None:
    from transformers import AutoModel

    half_model = AutoModel.from_pretrained(base, dtype=torch.bfloat16)
    half_model.save_pretrained(base)
    point = tmp_path / "point"
    # Many small moves: each is lost when it is added to a bfloat16 weight by itself.
    half_config = config(base, dtype="bfloat16")
    write_point(half_config, point, "lora", move=0.02)
    a, b = adapter_factors(point)
    assert a.dtype == torch.float32
    base_weight = model_weights(base)[f"{LAYER}.weight"]
    delta = 0.5 * 4 * (b @ a)
    exact = base_weight.float() + delta
    out = export(point, tmp_path / "out", scale=0.5)
    weight = model_weights(out)[f"{LAYER}.weight"]
    assert weight.dtype == torch.bfloat16
    assert torch.equal(weight, exact.to(torch.bfloat16))
    naive = base_weight + delta.to(torch.bfloat16)
    assert not torch.equal(weight, naive)
    full = export(point, tmp_path / "f32", scale=0.5, dtype="float32")
    full_weight = model_weights(full)[f"{LAYER}.weight"]
    assert full_weight.dtype == torch.float32
    assert torch.allclose(full_weight, exact, atol=1e-7)
    encoder = resolve(out).encoder
    assert encoder.model.dtype == torch.float32  # as asked, not as the file is
    assert exported_record(out)["encoder"]["dtype"] == "bfloat16"


def test_an_adapter_trained_over_4_bits_is_merged_without_a_gpu(base: Path, tmp_path: Path) -> None:
    """Into the base's own weights, in float32, without a trace of 4 bits in the export."""
    point = tmp_path / "point"
    out = tmp_path / "out"
    write_point(config(base), point, "lora")
    half = export(point, tmp_path / "plain", scale=0.5)
    manifest = Manifest.read(point)
    quantized = replace(manifest.encoder, quantization="nf4")
    four = replace(manifest, encoder=quantized)
    four.write(point)
    merge_config = MergeConfig([str(point)], out, scales=[0.5])
    lines = merge(merge_config)
    assert any("nf4" in line and "own weights" in line for line in lines)
    merged = model_weights(out)
    expected = model_weights(half)
    assert merged.keys() == expected.keys()
    for name, weight in expected.items():
        assert torch.equal(merged[name], weight)
    text = (out / "config.json").read_text()
    model_config = json.loads(text)
    assert "quantization_config" not in model_config
    exported = resolve(out, "cpu").encoder
    assert exported.settings.quantization is None
    record = exported_record(out)
    assert record["encoder"]["quantization"] is None
    # Used as it was trained it still needs its 4 bits.
    with refused(UserError, "quantization"):
        resolve(point, "cpu")


@pytest.mark.parametrize("kind", ["lora", pytest.param("full", marks=pytest.mark.slow)])
def test_what_its_base_may_do_is_said_by_the_user(kind: str, base: Path, tmp_path: Path) -> None:
    safe_file = base / "model.safetensors"
    torch.save(load_file(safe_file), base / "pytorch_model.bin")
    safe_file.unlink()
    allow_bin = (str(base),)
    allowed = config(base, allow_bin=allow_bin)
    point = tmp_path / "point"
    out = tmp_path / "out"
    write_point(allowed, point, kind)
    with refused(InputError, "model.allow_bin"):
        export(point, out, scale=0.5)
    model_config = ModelConfig(allow_bin=allow_bin, attention="eager")
    export(point, out, scale=0.5, model=model_config)
    scaled = ScaledCheckpoint(point, "cpu", model=model_config)
    assert scaled.encoder.model.config._attn_implementation == "eager"
    other_pooling = replace(model_config, pooling="cls")
    with refused(ConfigError, "model.pooling"):
        export(point, tmp_path / "more", model=other_pooling)


@pytest.mark.parametrize("kind", ["lora", pytest.param("full", marks=pytest.mark.slow)])
def test_an_export_for_claims_alone_reads_sources_by_the_base(
    kind: str, base: Path, tmp_path: Path, save_tiny: Callable[..., Path]
) -> None:
    write_point(config(base), tmp_path / "point", kind)
    manifest = Manifest.read(tmp_path / "point")
    weights = replace(manifest.weights, trained="query_only")
    half = replace(manifest, weights=weights)
    half.write(tmp_path / "point")
    out = export(tmp_path / "point", tmp_path / "out")
    point = resolve(tmp_path / "point", "cpu").encoder
    merged = resolve(out, "cpu").encoder
    assert largest_difference(vectors(merged), vectors(point)) < 1e-5
    before = resolve(config(base), "cpu").encoder
    claims, sources = vectors(merged)
    claims_before, sources_before = vectors(before)
    assert largest_difference(sources, sources_before) == 0
    assert largest_difference(claims, claims_before) > 1e-2
    assert merged.source_encoder is not None
    assert merged.source_encoder.key() == before.key()
    save_tiny(base, seed=5)
    record = out / "claim2source.json"
    with refused(InputError, record, ": base.sha256: "):
        resolve(out, "cpu")


@pytest.mark.slow
def test_the_base_is_hashed_again_once_all_is_written(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, save_tiny: Callable[..., Path]
) -> None:
    write_point(config(base), tmp_path / "point", "lora")
    write_point(config(base), tmp_path / "full", "full")

    def line(point: str, **options: Any) -> str:
        checkpoint = str(tmp_path / point)
        out = tmp_path / f"out-{point}"
        merge_config = MergeConfig([checkpoint], out, **options)
        lines = merge(merge_config)
        return next(line for line in lines if line.startswith("base "))

    assert "unchanged: hashed again" in line("point")
    assert "not read" in line("full")
    assert "unchanged" not in line("full", overwrite=True)
    scaled = line("full", overwrite=True, scales=[0.5])
    assert "unchanged: hashed again" in scaled
    real = exporting.write_modules

    def spoils(*arguments: Any) -> None:
        real(*arguments)
        save_tiny(base, seed=5)

    monkeypatch.setattr(exporting, "write_modules", spoils)
    with refused(UserError, f"{base}: "):
        export(tmp_path / "point", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_is_asked_for_goes_before_what_an_export_says(base: Path, tmp_path: Path) -> None:
    write_point(config(base), tmp_path / "point", "lora")
    out = export(tmp_path / "point", tmp_path / "out")
    template = Template("claim : ", "", True)
    model = ModelConfig(str(out), template=template)
    resolved = resolve(model, "cpu")
    assert resolved.encoder.settings.template == template
    assert resolved.rendering_for(None) == RENDERING
    translated = Rendering("translated")
    assert resolved.rendering_for(translated) == translated
    file = out / "claim2source.json"
    record = exported_record(out)
    for harm, reason in (
        (
            {"rendering": {"claims": "sung", "sources": "metadata"}},
            "rendering.claims: 'sung'",
        ),
        ({"encoder": {}}, "encoder.pooling: "),
    ):
        file.write_text(json.dumps(record | harm))
        with refused(InputError, f"{file}: {reason}"):
            resolve(out, "cpu")


def test_another_base_than_it_was_trained_from_is_refused(
    base: Path, tmp_path: Path, save_tiny: Callable[..., Path]
) -> None:
    write_point(config(base), tmp_path / "point", "full")
    save_tiny(base, seed=5)
    with refused(InputError, ": base.sha256: "):
        export(tmp_path / "point", tmp_path / "out", scale=0.5)


def test_a_prefix_that_sentence_transformers_would_cut_elsewhere_is_refused(
    base: Path, tmp_path: Path
) -> None:
    """In this tokenizer the space at the prefix's end belongs to the next word."""
    (base / "tokenizer.json").unlink()
    byte_level(base, join="A", pad=True)
    text = (base / "config.json").read_text()
    shape = json.loads(text)
    values = shape | {"vocab_size": 300}
    from transformers import BertConfig, BertModel

    smaller = BertModel(BertConfig(**values))
    smaller.save_pretrained(base)
    for name, template in (
        ("bad", Template("q: ", "", False)),
        ("good", Template("q:", "", False)),
    ):
        model: ModelConfig = config(base, template=template, max_length=30)
        write_point(model, tmp_path / name, "lora")
    with refused(UserError, "template.claim: 'q: '"):
        export(tmp_path / "bad", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    export(tmp_path / "good", tmp_path / "out")


def test_nothing_is_overwritten_by_accident_and_nothing_left_half(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    point = tmp_path / "point"
    write_point(config(base), point, "lora")
    mine = tmp_path / "mine"
    mine.mkdir()
    thesis = mine / "thesis.tex"
    thesis.write_text("mine")
    for out in (mine, point):
        with refused(UserError, f"{out}: ", "--out"):
            export(point, out, overwrite=True)
    out = export(point, tmp_path / "out")
    before = hashes(out)
    with refused(UserError, f"{out}: ", "--overwrite"):
        export(point, out, scale=0.5)
    with monkeypatch.context() as patch:
        patch.setattr(exporting, "write_modules", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            export(point, out, scale=0.5, overwrite=True)
    assert hashes(out) == before
    assert not list(tmp_path.glob(".*"))
    export(point, out, scale=0.5, overwrite=True)
    assert exported_record(out)["scale"] == 0.5
    assert thesis.read_text() == "mine"
