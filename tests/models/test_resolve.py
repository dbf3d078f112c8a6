"""Names to encoders: checkpoints, folders, the packaged copy, the hub."""

import json
import shutil
import sys
from dataclasses import replace
from time import sleep

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from claim2source.core.errors import ConfigError, InputError, UserError
from claim2source.core.files import file_hash
from claim2source.models import EncoderSettings, Manifest, ModelConfig, Template, resolve
from claim2source.models.hub import PACKAGED, tokenizer_hash
from claim2source.models.manifest import chosen_checkpoint
from tests.models.layout import declare
from tests.refusals import refused
from tests.training.points import RENDERING, TEMPLATE, config, write_point

MINILM = "sentence-transformers/all-MiniLM-L6-v2"
TEXTS = ["a b c", "vaccine works .", "claim : paper", ""]


@pytest.fixture
def base(tmp_path, tiny_folder):
    """A copy of the tiny model that a test may damage."""
    return shutil.copytree(tiny_folder, tmp_path / "base")


def vectors(encoder):
    return np.stack([encoder.encode(TEXTS, side)[0] for side in ("claim", "source")])


@pytest.mark.parametrize("training", [False, True])
def test_encoding_sources_by_the_base_leaves_the_tuned_model_in_its_mode(base, tmp_path, training):
    write_point(config(base), tmp_path / "point", "lora")
    manifest = Manifest.read(tmp_path / "point")
    half = replace(manifest, weights=replace(manifest.weights, trained="query_only"))
    half.write(tmp_path / "point")
    encoder = resolve(tmp_path / "point", "cpu").encoder
    expected = vectors(encoder)
    encoder.model.train(training)
    encoder.encode(TEXTS, "source")
    assert {module.training for module in encoder.model.modules()} == {training}
    # The wrapper reports the same mode: dropout only in training.
    assert encoder.source_encoder.model.training is training
    assert np.array_equal(vectors(encoder), expected)


@pytest.mark.parametrize("kind", ["base", "lora", "full"])
def test_a_checkpoint_gives_the_vectors_it_had_in_memory(base, tmp_path, kind):
    base_vectors = vectors(resolve(config(base), "cpu").encoder)
    encoder = write_point(config(base), tmp_path / "point", kind)
    base_hash = file_hash(base / "model.safetensors")
    if kind == "full":  # it needs no base
        shutil.rmtree(base)
    resolved = resolve(tmp_path / "point", "cpu")
    assert np.abs(vectors(resolved.encoder) - vectors(encoder)).max() < 1e-6
    distance = np.abs(vectors(resolved.encoder) - base_vectors).max()
    assert distance == 0 if kind == "base" else distance > 1e-2
    assert resolved.encoder.settings == encoder.settings
    assert resolved.encoder.settings.template == TEMPLATE
    assert resolved.rendering == RENDERING
    assert resolved.base.sha256 == base_hash
    # Vectors stored in training are found after loading the checkpoint.
    assert resolved.encoder.key() == encoder.key()
    assert not resolved.encoder.model.training


def flip(path):
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)


def exchange(base):
    weights = {k: v + 1e-3 for k, v in load_file(base / "model.safetensors").items()}
    save_file(weights, base / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("kind", "harm", "facts"),
    [
        ("lora", lambda p, b: flip(p / "adapter_model.safetensors"), "safetensors: ,sha256"),
        (
            "lora",
            lambda p, b: (p / "adapter_config.json").unlink(),
            "adapter_config.json: ,missing",
        ),
        ("lora", lambda p, b: exchange(b), "manifest.json: base.sha256: "),
        ("lora", lambda p, b: shutil.rmtree(b), "manifest.json: base.name: ,'base'"),
        ("full", lambda p, b: flip(p / "model.safetensors"), "model.safetensors: ,sha256"),
        ("full", lambda p, b: (p / "model.safetensors").unlink(), "model.safetensors: ,missing"),
        ("full", lambda p, b: [f.unlink() for f in p.glob("tokenizer*")], "point: ,tokenizer"),
        ("full", lambda p, b: (p / "manifest.json").write_text('{"format": 9}'), "json: format: "),
    ],
)
def test_a_harmed_checkpoint_is_one_clear_line(base, tmp_path, kind, harm, facts):
    point = tmp_path / "point"
    write_point(config(base), point, kind)
    harm(point, base)
    with refused(UserError, *facts.split(",")) as error:
        resolve(point)
    (_,) = str(error.value).splitlines()


def test_a_checkpoint_is_used_as_it_was_trained(base, tmp_path):
    write_point(config(base), tmp_path / "point", "base")
    changes = {"pooling": "mean", "normalize": True, "max_length": 99, "dtype": "bfloat16"}
    changes |= {"template": Template("x"), "revision": "abc"}
    for key, value in changes.items():
        with refused(ConfigError, f"model.{key}: ", "manifest"):
            resolve(ModelConfig(str(tmp_path / "point"), **{key: value}))


def test_a_runs_folder_stands_for_its_chosen_checkpoint(base, tmp_path):
    run = tmp_path / "run"
    write_point(config(base), run / "checkpoints" / "epoch-1", "full")
    (run / "run.json").write_text('{"chosen": "epoch-1"}', encoding="utf-8")
    assert resolve(run).folder == chosen_checkpoint(run) == run / "checkpoints" / "epoch-1"
    with refused(ConfigError, "model.max_length: 99 "):
        resolve(ModelConfig(str(run), max_length=99))
    for record in ({"chosen": None}, {}, {"chosen": 3}, {"chosen": "epoch-7"}):
        (run / "run.json").write_text(json.dumps(record), encoding="utf-8")
        with refused(
            InputError, run / "run.json" if record.get("chosen") != "epoch-7" else "epoch-7"
        ):
            resolve(run)


def test_the_packaged_copy_is_the_model(minilm):
    assert minilm.base.name == MINILM
    assert minilm.base.sha256.startswith("53aa5117")
    assert minilm.base.sha256 == file_hash(minilm.folder / "model.safetensors")
    assert minilm.encoder.settings == EncoderSettings("mean", True, 256)
    assert minilm.encoder.weights == {
        "base": minilm.base.sha256,
        "tokenizer": tokenizer_hash(minilm.folder),
    }
    assert minilm.manifest is None
    assert minilm.rendering is None


@pytest.fixture
def packaged(tmp_path, monkeypatch, base):
    """A packaged model of ours, for tampering."""
    package = tmp_path / "packages" / "c2s_packaged.py"
    package.parent.mkdir()
    package.write_text(f"def get_model_path():\n    return {str(base)!r}\n")
    monkeypatch.syspath_prepend(package.parent)
    monkeypatch.delitem(sys.modules, "c2s_packaged", raising=False)
    right = file_hash(base / "model.safetensors")
    monkeypatch.setitem(PACKAGED, "org/tiny", ("c2s_packaged", "demo", right))
    return base


def test_a_tampered_packaged_copy_is_refused(packaged, tmp_path):
    assert resolve(config("org/tiny")).base.name == "org/tiny"
    write_point(config("org/tiny"), tmp_path / "point", "lora")
    assert Manifest.read(tmp_path / "point").base.name == "org/tiny"
    flip(packaged / "model.safetensors")
    for name in (config("org/tiny"), tmp_path / "point"):
        with refused(UserError, packaged, "sha256", "package"):
            resolve(name)


def test_a_revision_asks_the_hub_not_the_packaged_copy(packaged):
    with refused(UserError, "'org/tiny'", "hub"):
        resolve(config("org/tiny", revision="abc"))


def test_a_packaged_copy_serves_a_checkpoint_of_a_hub_revision(packaged, tmp_path):
    write_point(config("org/tiny"), tmp_path / "point", "lora")
    manifest = Manifest.read(tmp_path / "point")
    replace(manifest, base=replace(manifest.base, revision="abc")).write(tmp_path / "point")
    assert resolve(tmp_path / "point").folder == packaged


def test_a_short_name_is_the_packaged_model_and_a_mistyped_one_is_suggested(
    packaged, tmp_path, monkeypatch
):
    assert resolve(config("Tiny")).base.name == "org/tiny"
    for name in ("tinny", "other/tiny"):
        with refused(UserError, f"model '{name}': ", "did you mean org/tiny?"):
            resolve(config(name))
    # A folder of that name has priority.
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny").symlink_to(packaged)
    assert resolve(config("tiny")).base.name == str(packaged.resolve())


@pytest.mark.parametrize(
    "name", ["nobody/nothing-at-all", "no-such-folder", "a/b/c/d", "../nowhere"]
)
def test_a_name_that_is_nothing_is_one_line(name):
    with refused(UserError, f"model {name!r}: ") as error:
        resolve(name)
    (line,) = str(error.value).splitlines()
    assert "did you mean" not in line


def test_a_line_says_that_the_hub_is_waited_for_and_none_where_it_answers(monkeypatch, capsys):
    monkeypatch.setattr("claim2source.core.progress.PATIENCE", 0.1)
    for seconds in (0, 1):
        monkeypatch.setattr(
            "huggingface_hub.snapshot_download", lambda *_, s=seconds, **__: sleep(s)
        )
        with pytest.raises(TypeError):
            resolve("nobody/nothing")
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == seconds and all("'nobody/nothing'" in line for line in lines)


def test_a_password_in_the_hubs_address_is_not_printed(monkeypatch, capsys):
    address = "https://me:secret@hub.example:8443"

    def refuse(*_, **__):
        sleep(0.1)
        raise OSError(f"403 Client Error: Forbidden for url: {address}/api/models/nobody/nothing")

    monkeypatch.setattr("claim2source.core.progress.PATIENCE", 0.01)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
    monkeypatch.setattr("huggingface_hub.snapshot_download", refuse)
    with refused(UserError, "https://hub.example:8443/api") as error:
        resolve("nobody/nothing")
    line = capsys.readouterr().err
    assert ", hub.example:8443" in line
    assert "secret" not in f"{error.value}{line}"


def test_sharded_weights_have_one_hash_over_all_shards(base, tmp_path):
    from transformers import AutoModel

    expected = vectors(resolve(config(base)).encoder)
    model = AutoModel.from_pretrained(base)
    (base / "model.safetensors").unlink()
    model.save_pretrained(base, max_shard_size="10KB")
    assert len(shards := sorted(base.glob("*.safetensors"))) > 1
    resolved = resolve(config(base))
    assert np.array_equal(vectors(resolved.encoder), expected)
    save_file({k: v + 1 for k, v in load_file(shards[-1]).items()}, shards[-1], {"format": "pt"})
    assert resolve(config(base)).base.sha256 != resolved.base.sha256


def test_a_plain_folder_must_be_told_pooling_and_length(base):
    with refused(ConfigError, "model.pooling: ", "mean, cls or last"):
        resolve(base)
    with refused(ConfigError, "model.max_length: is missing"):
        resolve(ModelConfig(str(base), pooling="mean"))
    settings = resolve(ModelConfig(str(base), pooling="mean", max_length=9)).encoder.settings
    assert settings == EncoderSettings("mean", True, 9)
    with refused(ConfigError, "model.revision: 'abc'"):
        resolve(config(base, revision="abc"))


def test_positions_that_padding_takes_are_not_counted(base):
    # RoBERTa numbers positions from padding_idx + 1 on: 64 rows serve 62 tokens.
    from transformers import RobertaConfig, RobertaModel

    sizes = {"vocab_size": 20, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    roberta = RobertaConfig(
        **sizes, intermediate_size=16, max_position_embeddings=64, pad_token_id=1
    )
    RobertaModel(roberta).save_pretrained(base)
    with refused(ConfigError, "model.max_length: 63 ", "62"):
        resolve(config(base, max_length=63))
    vectors_of_text, _ = resolve(config(base, max_length=62)).encoder.encode(["a " * 99], "claim")
    assert vectors_of_text.shape == (1, 16)


def test_weights_that_are_absent_are_not_made_up(base):
    weights = load_file(base / "model.safetensors")
    save_file(
        {k: v for k, v in weights.items() if "layer.1.attention.self.query" not in k},
        base / "model.safetensors",
        metadata={"format": "pt"},
    )
    with refused(InputError, base, "encoder.layer.1.attention.self.query", "(2 "):
        resolve(config(base))


def test_a_pooler_that_is_absent_is_not_missed(base):
    before = vectors(resolve(config(base)).encoder)
    weights = load_file(base / "model.safetensors")
    without_pooler = {k: v for k, v in weights.items() if not k.startswith("pooler.")}
    assert len(without_pooler) < len(weights)
    save_file(without_pooler, base / "model.safetensors", metadata={"format": "pt"})
    assert np.array_equal(vectors(resolve(config(base)).encoder), before)


MODES = ("cls_token", "mean_tokens", "max_tokens", "lasttoken")


def old_style(*modes):
    return {f"pooling_mode_{mode}": mode in modes for mode in MODES}


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize(
    ("pooling", "ours"),
    [
        (old_style("mean_tokens"), "mean"),
        ({"pooling_mode": "cls"}, "cls"),
        ({"pooling_mode": "lasttoken"}, "last"),
    ],
)
def test_what_a_sentence_transformers_folder_declares_is_honoured(base, pooling, ours, normalize):
    kinds = ["Transformer", "Pooling", *(["Normalize"] if normalize else [])]
    declare(base, *kinds, pooling=pooling)
    assert resolve(base).encoder.settings == EncoderSettings(ours, normalize, 24)
    spec = ModelConfig(str(base), pooling="cls", normalize=not normalize, max_length=11)
    assert resolve(spec).encoder.settings == EncoderSettings("cls", not normalize, 11)


@pytest.mark.parametrize(
    ("pooling", "modules", "fact"),
    [
        (old_style("max_tokens"), (), "model.pooling: 'max' "),
        ({"pooling_mode": ["mean", "max"]}, (), "model.pooling: 'mean+max'"),
        (old_style("mean_tokens"), ("WordWeights",), "WordWeights"),
    ],
)
def test_what_we_cannot_do_is_not_done_otherwise(base, pooling, modules, fact):
    declare(base, "Transformer", "Pooling", *modules, pooling=pooling)
    with refused(UserError, fact):
        resolve(base)


def test_the_tokenizer_and_the_models_config_are_part_of_the_key(base):
    before = resolve(config(base)).encoder.key()
    tokenizer = base / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text().replace('"lowercase": true', '"lowercase": false'))
    changed = resolve(config(base)).encoder.key()
    assert changed != before
    settings = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps(settings | {"hidden_act": "relu"}))
    assert resolve(config(base)).encoder.key() != changed
    (base / "config.json").write_text(json.dumps(settings | {"transformers_version": "9"}))
    assert resolve(config(base)).encoder.key() == changed
