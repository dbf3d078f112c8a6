"""Adapters, checkpointing and types of weights, on a tiny bidirectional Mistral."""

import numpy as np
import pytest
import torch

from claim2source.core.config import read_config
from claim2source.core.errors import ConfigError, UserError
from claim2source.models import Manifest, ModelConfig, Weights, resolve
from claim2source.text import Rendering
from claim2source.training.checkpoint import adapt, check_layers, save_checkpoint
from claim2source.training.config import FinetuneConfig
from tests.models.mistral import save_mistral
from tests.refusals import refused
from tests.training.export.test_merge import save_experts

SEVEN = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
TEXTS = ["the study", "vaccines work, they say", "x"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_mistral(tmp_path_factory.mktemp("adapt") / "model")


def config_of(folder, *options):
    return read_config(
        FinetuneConfig,
        [
            f"--model.name={folder}",
            "--model.pooling=mean",
            "--model.max_length=64",
            "--model.bidirectional=true",
            "--optimisation.dropout=0",
            "--lora.dropout=0",
            *options,
        ],
        program="t",
        description="t",
    )


def adapted(folder, *options):
    config = config_of(folder, *options)
    torch.manual_seed(0)
    resolved = resolve(config.model, "cpu")
    check_layers(resolved.encoder.model, config, own_code=False)
    adapt(resolved.encoder, config)
    return resolved


def trainable(model):
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def gradients(encoder):
    """Gradients of a sum of cosines; adapters are moved off zero first, so that all get one."""
    with torch.no_grad():
        for name, parameter in sorted(trainable(encoder.model).items()):
            if "lora_B" in name:
                generator = torch.Generator().manual_seed(len(name))
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
    encoder.model.train()
    vectors = encoder.vectors(encoder.collate(encoder.tokenize(TEXTS, "claim")))
    (vectors @ vectors.T)[0].sum().backward()
    return {name: p.grad.clone() for name, p in trainable(encoder.model).items()}


@pytest.mark.parametrize("tuning", ["lora", "full"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_checkpointing_changes_no_gradient(folder, tuning, attention):
    flags = [f"--tuning={tuning}", "--lora.targets", *SEVEN, f"--model.attention={attention}"]
    exact = gradients(adapted(folder, *flags).encoder)
    model = adapted(folder, *flags, "--optimisation.gradient_checkpointing=true").encoder
    layers = [m for m in model.model.modules() if getattr(m, "gradient_checkpointing", False)]
    assert layers, "nothing is checkpointed"
    fresh = gradients(model)
    assert exact.keys() == fresh.keys()
    assert all((exact[name] - fresh[name]).abs().max() <= 1e-6 for name in exact)
    # Not vacuous: every adapter of the first block is reached through the frozen ones above it.
    assert all(gradient.abs().max() > 0 for name, gradient in fresh.items() if "layers.0." in name)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_adapters_are_float32_over_16_bit_weights_and_a_step_moves_them(folder, dtype):
    encoder = adapted(folder, f"--model.dtype={dtype}", "--lora.targets", *SEVEN).encoder
    base = {n: p for n, p in encoder.model.named_parameters() if not p.requires_grad}
    before = {name: p.detach().clone() for name, p in base.items()}
    assert {p.dtype for p in base.values()} == {getattr(torch, dtype)}
    weights = trainable(encoder.model)
    assert {p.dtype for p in weights.values()} == {torch.float32}
    started = {name: p.detach().clone() for name, p in weights.items()}
    # Smaller than bfloat16 could add to the adapters' A: only float32 keeps it.
    optimizer = torch.optim.SGD(weights.values(), lr=1e-7)
    gradients_ = gradients(encoder)
    started |= {n: p.detach().clone() for n, p in weights.items() if "lora_B" in n}
    scale = 1e-5 / (1e-7 * max(g.abs().max() for g in gradients_.values()))
    for parameter in weights.values():
        parameter.grad *= scale
    optimizer.step()
    changed = [name for name, p in weights.items() if not torch.equal(p, started[name])]
    assert sorted(changed) == sorted(weights)
    assert all(torch.equal(p, before[name]) for name, p in base.items())


def test_a_16_bit_run_is_evaluated_with_the_vectors_it_had(folder, tmp_path):
    fresh = adapted(folder, "--model.dtype=bfloat16", "--lora.targets", *SEVEN)
    encoder = fresh.encoder
    gradients(encoder)
    encoder.model.eval()
    manifest = Manifest(
        base=fresh.base, weights=Weights(), encoder=encoder.settings, rendering=Rendering()
    )
    save_checkpoint(tmp_path / "point", encoder, fresh.folder, manifest, "lora")
    reread = resolve(tmp_path / "point", "cpu").encoder
    assert {p.dtype for n, p in reread.model.named_parameters() if "lora_" in n} == {torch.float32}
    assert reread.settings.bidirectional
    assert reread.model.get_base_model().config.is_causal is False
    ours, theirs = (e.encode(TEXTS, "claim")[0] for e in (encoder, reread))
    assert np.abs(ours - theirs).max() < 1e-6


def test_every_weight_in_16_bits_is_not_trained(folder):
    with refused(ConfigError, "model.dtype: 'bfloat16' ", "float32", "tuning: full"):
        config_of(folder, "--tuning=full", "--model.dtype=bfloat16")


def test_a_model_with_code_of_its_own_has_no_full_checkpoint(folder):
    resolved = resolve(config_of(folder).model, "cpu")
    with refused(ConfigError, "tuning: 'full' ", "lora"):
        check_layers(resolved.encoder.model, config_of(folder, "--tuning=full"), own_code=True)


class TestQlora:
    """4 bits without a GPU: the config, the errors, the checkpoint."""

    def test_the_base_is_loaded_in_4_bits(self, folder):
        assert config_of(folder, "--tuning=qlora").model.quantization == "nf4"
        assert config_of(folder, "--tuning=lora").model.quantization is None
        with refused(ConfigError, "model.quantization: 'nf4' ", "tuning: qlora"):
            config_of(folder, "--tuning=lora", "--model.quantization=nf4")

    @pytest.mark.parametrize(
        ("package", "facts"),
        [
            (None, ["qlora", " bitsandbytes: pip install 'claim2source[gpu]'"]),
            (object(), ["model.quantization: 'nf4' ", "GPU"]),
        ],
    )
    def test_without_the_package_or_a_gpu_it_says_so(self, folder, monkeypatch, package, facts):
        monkeypatch.setattr("claim2source.models.load.find_spec", lambda name: package)
        with refused(UserError, *facts):
            resolve(config_of(folder, "--tuning=qlora").model, "cpu")

    def test_gradients_pass_through_4_bit_layers(self, folder, monkeypatch):
        modules = pytest.importorskip("bitsandbytes.nn.modules", reason="needs bitsandbytes")
        if modules.has_avx512bf16():
            pytest.skip("here it packs weights in a way that has no gradient; a GPU has none of it")
        target = "claim2source.models.load._check_machine"
        monkeypatch.setattr(target, lambda *_: None)
        flags = ["--tuning=qlora", "--model.dtype=bfloat16", "--lora.targets", *SEVEN]
        encoder = adapted(folder, *flags).encoder
        kinds = {n.rsplit(".", 1)[-1]: type(m).__name__ for n, m in encoder.model.named_modules()}
        assert kinds["q_proj"] == kinds["down_proj"] == "Linear4bit"
        weights = trainable(encoder.model)
        assert all("lora_" in n and p.dtype == torch.float32 for n, p in weights.items())
        assert all(gradient.abs().max() > 0 for gradient in gradients(encoder).values())


def test_the_last_layers_are_trained_and_nothing_before_them(tiny_folder):
    """No gradient reaches frozen weights, and the vectors still change."""
    words = ["--tuning=full", "--model.bidirectional=null", "--optimisation.train_layers"]
    model = adapted(tiny_folder, *words, "1").encoder.model
    last = len(model.encoder.layer) - 1
    last_names = {name for name, _ in model.named_parameters() if f"layer.{last}." in name}
    assert last >= 1 and last_names
    fresh = trainable(model).keys()
    assert {name for name in fresh if "pooler" not in name} == last_names
    all_layers = adapted(tiny_folder, *words, str(last + 1)).encoder.model
    frozen = {name for name, _ in all_layers.named_parameters()} - trainable(all_layers).keys()
    assert frozen and all(name.startswith("embeddings.") for name in frozen)
    with refused(ConfigError, f"optimisation.train_layers: {last + 2} ", f" {last + 1},"):
        adapted(tiny_folder, *words, str(last + 2))


def test_dropout_over_a_mixtures_experts_is_refused_before_training(tmp_path):
    base = save_experts(tmp_path / "base", "Qwen3Moe")
    encoder = resolve(ModelConfig(str(base), pooling="last", max_length=16), "cpu").encoder
    with refused(ConfigError, "lora.dropout: 0.1 ") as error:
        check_layers(encoder.model, config_of(base, "--lora.dropout=0.1"), own_code=False)
    assert len(error.value.lines) == 1
    check_layers(encoder.model, config_of(base), own_code=False)
    # Adapters of attention layers support dropout.
    check_layers(
        encoder.model,
        config_of(base, "--lora.dropout=0.1", "--lora.targets=[q_proj]"),
        own_code=False,
    )
