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

TEXTS = ["a b c", "vaccine works .", "claim : paper", "works", "a vaccine paper works : " * 5]
# The W of the tiny model that is compared, and the adapter's names for it.
LAYER = "encoder.layer.1.attention.self.value"
ADAPTER = f"base_model.model.{LAYER}"


@pytest.fixture
def base(tmp_path: Path, tiny_folder: Path) -> Path:
    return Path(shutil.copytree(tiny_folder, tmp_path / "base"))


def export(checkpoint: Path, out: Path, **options: Any) -> Path:
    scale = options.pop("scale", None)
    options["scales"] = None if scale is None else [scale]
    merge(MergeConfig([str(checkpoint)], out, **options))
    return out


def vectors(encoder: Encoder) -> np.ndarray:
    return np.stack([encoder.encode(TEXTS, side)[0] for side in ("claim", "source")])


def their_vectors(folder: Path) -> np.ndarray:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device="cpu")
    return np.stack([model.encode_query(TEXTS), model.encode_document(TEXTS)])


def model_weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def hashes(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): file_hash(path) for path in files}


def test_a_bidirectional_decoder_with_a_masked_template_is_the_same_there(tmp_path: Path) -> None:
    """Like GritLM: the mean over only the text's tokens, which attend to later ones."""
    base = gritlm.save_mistral(tmp_path / "mistral")
    template = Template(gritlm.CLAIM, gritlm.SOURCE, pool_prefix=False)
    model = config(base, template=template, bidirectional=True, max_length=200)
    encoder = write_point(model, tmp_path / "point", "lora")
    out = export(tmp_path / "point", tmp_path / "out")
    expected = vectors(encoder)
    assert np.abs(their_vectors(out) - expected).max() < 1e-5
    exported = resolve(out, "cpu").encoder
    assert exported.settings == encoder.settings and exported.settings.bidirectional
    assert np.abs(vectors(exported) - expected).max() < 1e-5
    # Causal attention, or pooling the instruction, gives other vectors.
    for name, key, value in (
        ("config.json", "is_causal", True),
        ("1_Pooling/config.json", "include_prompt", True),
    ):
        text = (out / name).read_text()
        (out / name).write_text(json.dumps(json.loads(text) | {key: value}))
        assert np.abs(their_vectors(out) - expected).max() > 1e-2, key
        (out / name).write_text(text)


def test_a_prefix_pooled_on_one_side_alone_is_not_exported(base: Path, tmp_path: Path) -> None:
    template = replace(TEMPLATE, pool_prefix="claim")
    write_point(config(base, template=template), tmp_path / "point", "lora")
    with refused(UserError, "template.pool_prefix: claim: "):
        export(tmp_path / "point", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def save_experts(folder: Path, kind: str) -> Path:
    """A mixture of experts, which are one parameter in transformers."""
    import transformers

    torch.manual_seed(0)
    experts = "num_local_experts" if kind == "Mixtral" else "num_experts"
    own = {"vocab_size": 300, "moe_intermediate_size": 24, "head_dim": 8, "num_experts_per_tok": 2}
    sizes = gritlm.SIZES | own | {experts: 4}
    shape = getattr(transformers, f"{kind}Config")(**sizes)
    getattr(transformers, f"{kind}Model")(shape).save_pretrained(folder)
    byte_level(folder, pad=True)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["Mixtral", "Qwen3Moe"])
def test_adapters_over_experts_are_merged(kind: str, tmp_path: Path) -> None:
    model = config(save_experts(tmp_path / "base", kind), pooling="last", max_length=32)
    encoder = write_point(model, tmp_path / "point", "lora", move=0.1, lora_dropout=0.0)
    wrapped = {m.parameter_name for m in encoder.model.modules() if hasattr(m, "parameter_name")}
    assert wrapped >= {"gate_up_proj", "down_proj"}
    base_vectors = vectors(resolve(model, "cpu").encoder)
    assert np.abs(base_vectors - vectors(encoder)).max() > 1e-2
    set_adapter_scale(encoder.model, 0.5)
    out = export(tmp_path / "point", tmp_path / "out", scale=0.5)
    assert model_weights(out).keys() == model_weights(tmp_path / "base").keys()
    assert np.abs(their_vectors(out) - vectors(encoder)).max() < 1e-4
    assert np.abs(vectors(resolve(out, "cpu").encoder) - vectors(encoder)).max() < 1e-4
    with refused(InputError, "target_parameters"):
        second = write_point(model, tmp_path / "other", "lora", move=0.2, lora_dropout=0.0)
        assert second is not encoder
        write_sum(read_parts([tmp_path / "point", tmp_path / "other"]), tmp_path / "soup")


@pytest.mark.parametrize(
    "scale",
    [None, 0.5, *(pytest.param(scale, marks=pytest.mark.slow) for scale in (0.0, 1.0, 1.5))],
)
def test_lora_is_the_base_plus_scaled_delta(
    scale: float | None, base: Path, tmp_path: Path
) -> None:
    write_point(config(base), tmp_path / "point", "lora")
    point, out, scales = tmp_path / "point", tmp_path / "out", None if scale is None else [scale]
    lines = merge(MergeConfig([str(point)], out, scales=scales))
    adapter = load_file(point / "adapter_model.safetensors")
    a, b = (adapter[f"{ADAPTER}.lora_{x}.weight"] for x in "AB")
    base_weights, merged = model_weights(base), model_weights(out)
    factor = 1.0 if scale is None else scale
    expected = base_weights[f"{LAYER}.weight"] + factor * (8 / 2) * (b @ a)
    assert torch.allclose(merged[f"{LAYER}.weight"], expected, atol=1e-6)
    assert (b @ a).abs().max() > 1e-2
    assert merged.keys() == base_weights.keys()
    assert torch.equal(merged[f"{LAYER}.bias"], base_weights[f"{LAYER}.bias"])
    record = json.loads((out / "claim2source.json").read_text())
    assert record["scale"] == record["weights"]["scale"] == factor
    # Its origin is written next to it, and printed.
    assert record["base"]["sha256"] == file_hash(base / "model.safetensors")
    assert record["weights"]["sha256"] == file_hash(point / "adapter_model.safetensors")
    assert record["sha256"] == file_hash(out / "model.safetensors")
    assert (record["weights"]["kind"], record["encoder"]["max_length"], record["epoch"]) == (
        "lora",
        12,
        1,
    )
    assert f"scale {factor:g}" in lines[0] and record["base"]["sha256"] in lines[1]
    assert not (out / "manifest.json").exists()


def test_a_plain_export_of_full_weights_needs_no_base(base: Path, tmp_path: Path) -> None:
    encoder = write_point(config(base), tmp_path / "point", "full")
    shutil.rmtree(base)
    out = export(tmp_path / "point", tmp_path / "out")
    assert np.abs(vectors(resolve(out, "cpu").encoder) - vectors(encoder)).max() < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["lora", "full"])
def test_the_base_is_the_same_after_every_export(kind: str, base: Path, tmp_path: Path) -> None:
    """Also if several scales are written one after the other."""
    write_point(config(base), tmp_path / "point", kind)
    before = hashes(base), hashes(tmp_path / "point")
    scaled = ScaledCheckpoint(tmp_path / "point", "cpu", "float32")
    for turn, scale in enumerate([1.0, 0.5, 0.0, 0.5, 1.0]):
        scaled.save_model(tmp_path / f"m{turn}", scale, "float32")
        fresh = export(tmp_path / "point", tmp_path / f"o{turn}", scale=scale)
        in_turn, by_itself = model_weights(tmp_path / f"m{turn}"), model_weights(fresh)
        assert all(torch.equal(in_turn[name], by_itself[name]) for name in by_itself)
        assert (hashes(base), hashes(tmp_path / "point")) == before


def test_a_bfloat16_base_is_merged_in_float32_and_cast_once(base: Path, tmp_path: Path) -> None:
    from transformers import AutoModel

    AutoModel.from_pretrained(base, dtype=torch.bfloat16).save_pretrained(base)
    # Many small moves: each is lost when it is added to a bfloat16 weight by itself.
    write_point(config(base, dtype="bfloat16"), tmp_path / "point", "lora", move=0.02)
    adapter = load_file(tmp_path / "point" / "adapter_model.safetensors")
    a, b = (adapter[f"{ADAPTER}.lora_{x}.weight"] for x in "AB")
    assert a.dtype == torch.float32
    exact = model_weights(base)[f"{LAYER}.weight"].float() + 0.5 * 4 * (b @ a)
    out = export(tmp_path / "point", tmp_path / "out", scale=0.5)
    weight = model_weights(out)[f"{LAYER}.weight"]
    assert weight.dtype == torch.bfloat16
    assert torch.equal(weight, exact.to(torch.bfloat16))
    naive = model_weights(base)[f"{LAYER}.weight"] + (0.5 * 4 * (b @ a)).to(torch.bfloat16)
    assert not torch.equal(weight, naive)
    full = export(tmp_path / "point", tmp_path / "f32", scale=0.5, dtype="float32")
    full_weight = model_weights(full)[f"{LAYER}.weight"]
    assert full_weight.dtype == torch.float32 and torch.allclose(full_weight, exact, atol=1e-7)
    assert resolve(out).encoder.model.dtype == torch.float32  # as asked, not as the file is
    assert json.loads((out / "claim2source.json").read_text())["encoder"]["dtype"] == "bfloat16"


def test_an_adapter_trained_over_4_bits_is_merged_without_a_gpu(base: Path, tmp_path: Path) -> None:
    """Into the base's own weights, in float32, without a trace of 4 bits in the export."""
    write_point(config(base), tmp_path / "point", "lora")
    half = export(tmp_path / "point", tmp_path / "plain", scale=0.5)
    manifest = Manifest.read(tmp_path / "point")
    four = replace(manifest, encoder=replace(manifest.encoder, quantization="nf4"))
    four.write(tmp_path / "point")
    lines = merge(MergeConfig([str(tmp_path / "point")], tmp_path / "out", scales=[0.5]))
    assert any("nf4" in line and "own weights" in line for line in lines)
    merged, expected = model_weights(tmp_path / "out"), model_weights(half)
    assert merged.keys() == expected.keys()
    assert all(torch.equal(merged[name], expected[name]) for name in expected)
    assert "quantization_config" not in json.loads((tmp_path / "out" / "config.json").read_text())
    assert resolve(tmp_path / "out", "cpu").encoder.settings.quantization is None
    record = json.loads((tmp_path / "out" / "claim2source.json").read_text())
    assert record["encoder"]["quantization"] is None
    # Used as it was trained it still needs its 4 bits.
    with refused(UserError, "quantization"):
        resolve(tmp_path / "point", "cpu")


@pytest.mark.parametrize("kind", ["lora", pytest.param("full", marks=pytest.mark.slow)])
def test_what_its_base_may_do_is_said_by_the_user(kind: str, base: Path, tmp_path: Path) -> None:
    torch.save(load_file(base / "model.safetensors"), base / "pytorch_model.bin")
    (base / "model.safetensors").unlink()
    allowed = config(base, allow_bin=(str(base),))
    write_point(allowed, tmp_path / "point", kind)
    with refused(InputError, "model.allow_bin"):
        export(tmp_path / "point", tmp_path / "out", scale=0.5)
    model_config = ModelConfig(allow_bin=(str(base),), attention="eager")
    export(tmp_path / "point", tmp_path / "out", scale=0.5, model=model_config)
    scaled = ScaledCheckpoint(tmp_path / "point", "cpu", model=model_config)
    assert scaled.encoder.model.config._attn_implementation == "eager"
    with refused(ConfigError, "model.pooling"):
        export(tmp_path / "point", tmp_path / "more", model=replace(model_config, pooling="cls"))


@pytest.mark.parametrize("kind", ["lora", pytest.param("full", marks=pytest.mark.slow)])
def test_an_export_for_claims_alone_reads_sources_by_the_base(
    kind: str, base: Path, tmp_path: Path, save_tiny: Callable[..., Path]
) -> None:
    write_point(config(base), tmp_path / "point", kind)
    manifest = Manifest.read(tmp_path / "point")
    half = replace(manifest, weights=replace(manifest.weights, trained="query_only"))
    half.write(tmp_path / "point")
    out = export(tmp_path / "point", tmp_path / "out")
    point, merged = resolve(tmp_path / "point", "cpu").encoder, resolve(out, "cpu").encoder
    assert np.abs(vectors(merged) - vectors(point)).max() < 1e-5
    before = resolve(config(base), "cpu").encoder
    assert np.abs(merged.encode(TEXTS, "source")[0] - before.encode(TEXTS, "source")[0]).max() == 0
    assert np.abs(merged.encode(TEXTS, "claim")[0] - before.encode(TEXTS, "claim")[0]).max() > 1e-2
    assert merged.source_encoder is not None and merged.source_encoder.key() == before.key()
    save_tiny(base, seed=5)
    with refused(InputError, out / "claim2source.json", ": base.sha256: "):
        resolve(out, "cpu")


@pytest.mark.slow
def test_the_base_is_hashed_again_once_all_is_written(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, save_tiny: Callable[..., Path]
) -> None:
    write_point(config(base), tmp_path / "point", "lora")
    write_point(config(base), tmp_path / "full", "full")

    def line(point: str, **options: Any) -> str:
        lines = merge(MergeConfig([str(tmp_path / point)], tmp_path / f"out-{point}", **options))
        return next(line for line in lines if line.startswith("base "))

    assert "unchanged: hashed again" in line("point")
    assert "not read" in line("full") and "unchanged" not in line("full", overwrite=True)
    assert "unchanged: hashed again" in line("full", overwrite=True, scales=[0.5])
    real = exporting.write_modules
    spoils = lambda *a: (real(*a), save_tiny(base, seed=5))  # noqa: E731
    monkeypatch.setattr(exporting, "write_modules", spoils)
    with refused(UserError, f"{base}: "):
        export(tmp_path / "point", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_is_asked_for_goes_before_what_an_export_says(base: Path, tmp_path: Path) -> None:
    write_point(config(base), tmp_path / "point", "lora")
    out = export(tmp_path / "point", tmp_path / "out")
    template = Template("claim : ", "", True)
    resolved = resolve(ModelConfig(str(out), template=template), "cpu")
    assert resolved.encoder.settings.template == template
    assert resolved.rendering_for(None) == RENDERING
    assert resolved.rendering_for(Rendering("translated")) == Rendering("translated")
    record = json.loads((out / "claim2source.json").read_text())
    for harm, reason in (
        ({"rendering": {"claims": "sung", "sources": "metadata"}}, "rendering.claims: 'sung'"),
        ({"encoder": {}}, "encoder.pooling: "),
    ):
        (out / "claim2source.json").write_text(json.dumps(record | harm))
        with refused(InputError, f"{out / 'claim2source.json'}: {reason}"):
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
    values = json.loads((base / "config.json").read_text()) | {"vocab_size": 300}
    from transformers import BertConfig, BertModel

    BertModel(BertConfig(**values)).save_pretrained(base)
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
    write_point(config(base), tmp_path / "point", "lora")
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.tex").write_text("mine")
    for out in (mine, tmp_path / "point"):
        with refused(UserError, f"{out}: ", "--out"):
            export(tmp_path / "point", out, overwrite=True)
    out = export(tmp_path / "point", tmp_path / "out")
    before = hashes(out)
    with refused(UserError, f"{out}: ", "--overwrite"):
        export(tmp_path / "point", out, scale=0.5)
    with monkeypatch.context() as patch:
        patch.setattr(exporting, "write_modules", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            export(tmp_path / "point", out, scale=0.5, overwrite=True)
    assert hashes(out) == before
    assert not list(tmp_path.glob(".*"))
    export(tmp_path / "point", out, scale=0.5, overwrite=True)
    assert json.loads((out / "claim2source.json").read_text())["scale"] == 0.5
    assert (mine / "thesis.tex").read_text() == "mine"
