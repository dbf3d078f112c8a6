"""Models with their own code, and pickled weights: loaded only if they are named."""

import json
import pickle
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from claim2source.core.errors import ConfigError, InputError, UserError
from claim2source.models import Manifest, ModelConfig, Weights, resolve
from claim2source.text import Rendering
from tests.models.mistral import declare_code

COMMIT = "0123456789abcdef0123456789abcdef01234567"
NAME = "org/odd-model"
TEXTS = ["a b c", "vaccine works ."]
CODE = """
import pathlib
from transformers import BertConfig, BertModel
pathlib.Path({ran!r}).touch()
class OddConfig(BertConfig):
    model_type = "odd-bert"
class OddModel(BertModel):
    config_class = OddConfig
    def forward(self, *args, **kwargs):
        out = super().forward(*args, **kwargs)
        out.last_hidden_state = -out.last_hidden_state
        return out
"""


@pytest.fixture(autouse=True)
def _no_trace_of_foreign_code(monkeypatch, tmp_path_factory):
    """Code that is allowed to run is copied and imported by transformers: here, and forgotten."""
    modules = tmp_path_factory.mktemp("modules")
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(modules))
    before, path = set(sys.modules), list(sys.path)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - before:
        if name.startswith("transformers_modules"):
            del sys.modules[name]


@pytest.fixture
def base(tmp_path, tiny_folder):
    return shutil.copytree(tiny_folder, tmp_path / "base")


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """Put a folder into a cache of the hub as a snapshot; no network is used."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))

    def add_model(folder, name=NAME):
        place = tmp_path / "hub" / f"models--{name.replace('/', '--')}"
        shutil.copytree(folder, place / "snapshots" / COMMIT)
        (place / "refs").mkdir()
        (place / "refs" / "main").write_text(COMMIT)
        return place / "snapshots" / COMMIT

    return add_model


def config(name, **changes):
    return ModelConfig(str(name), **{"pooling": "mean", "max_length": 12} | changes)


def vectors(model):
    return model.encoder.encode(TEXTS, "claim")[0]


@pytest.fixture
def odd(base, tmp_path):
    """A model that only its own code can make: BERT with every state negated."""
    record = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps(record | {"model_type": "odd-bert"}))
    declare_code(base, {"AutoConfig": "odd.OddConfig", "AutoModel": "odd.OddModel"})
    tokenizer = json.loads((base / "tokenizer_config.json").read_text())
    tokenizer["tokenizer_class"] = "PreTrainedTokenizerFast"
    (base / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    (base / "odd.py").write_text(CODE.format(ran=str(tmp_path / "ran")))
    return base


def refused(model, tmp_path, parts, error=UserError):
    with pytest.raises(error) as error_info:
        resolve(model, "cpu")
    (line,) = str(error_info.value).splitlines()
    assert all(part in line for part in parts), line
    assert not (tmp_path / "ran").exists(), "code ran"


def test_a_models_own_code_does_not_run_by_itself(odd, hub, tmp_path):
    refused(config(odd), tmp_path, [f"model.allow_remote_code: [{odd}]"])
    hub(odd)
    line = [f"model.allow_remote_code: [{NAME}] and model.revision: its full commit"]
    for revision in (None, COMMIT):
        refused(config(NAME, revision=revision), tmp_path, line)
        spec = config(NAME, revision=revision, allow_remote_code=("org/other", "odd-model"))
        refused(spec, tmp_path, line)


@pytest.mark.parametrize("revision", [None, "main", COMMIT[:12], COMMIT.upper()])
def test_the_code_must_be_pinned(odd, hub, tmp_path, revision):
    copy = hub(odd)
    if revision is not None:
        (copy.parent.parent / "refs" / revision).write_text(COMMIT)
    spec = config(NAME, revision=revision, allow_remote_code=(NAME,))
    refused(spec, tmp_path, ["model.revision", "40 hex digits", "allow_remote_code"], ConfigError)


def test_code_that_is_allowed_and_pinned_runs(odd, hub, tmp_path, tiny_folder):
    hub(odd)
    resolved = resolve(config(NAME, revision=COMMIT, allow_remote_code=(NAME,)), "cpu")
    assert (tmp_path / "ran").exists()
    assert type(resolved.encoder.model).__name__ == "OddModel"
    assert resolved.base.revision == COMMIT
    native = resolve(config(tiny_folder), "cpu")
    assert np.abs(vectors(resolved) + vectors(native)).max() < 1e-6
    assert resolved.encoder.settings.own_code
    assert resolved.encoder.key() != native.encoder.key()
    # A folder is allowed by its name.
    resolved = resolve(config(odd, allow_remote_code=(str(odd),)), "cpu")
    assert type(resolved.encoder.model).__name__ == "OddModel"


@pytest.mark.parametrize("key", ["AutoConfig", "AutoModel", "AutoTokenizer"])
def test_code_of_another_repository_is_not_pinned_by_this_ones_commit(odd, hub, tmp_path, key):
    file = "tokenizer_config.json" if key == "AutoTokenizer" else "config.json"
    settings = json.loads((odd / file).read_text()).get("auto_map", {})
    declare_code(odd, settings | {key: "evil/repo--odd.OddModel"}, file)
    hub(odd)
    spec = config(NAME, revision=COMMIT, allow_remote_code=(NAME,))
    refused(spec, tmp_path, [NAME, "(evil/repo)", "model.revision"])


@pytest.mark.parametrize(
    "auto_map",
    [{"AutoTokenizer": ["odd.Slow", None]}, ["odd.Slow", "odd.Fast"], {"AutoTokenizer": "odd.T"}],
)
def test_a_tokenizer_with_code_of_its_own_is_refused_too(base, tmp_path, auto_map):
    declare_code(base, auto_map, "tokenizer_config.json")
    refused(config(base, bidirectional=False), tmp_path, ["allow_remote_code"])


def checkpoint(folder, model):
    manifest = Manifest(
        base=model.base, weights=Weights(), encoder=model.encoder.settings, rendering=Rendering()
    )
    folder.mkdir()
    manifest.write(folder)
    return manifest


def test_a_checkpoint_runs_code_only_if_its_user_allows_it(odd, hub, tmp_path):
    hub(odd)
    resolved = resolve(config(NAME, revision=COMMIT, allow_remote_code=(NAME,)), "cpu")
    checkpoint(tmp_path / "point", resolved)
    (tmp_path / "ran").unlink()
    for name in list(sys.modules):
        if name.startswith("transformers_modules"):
            del sys.modules[name]
    refused(str(tmp_path / "point"), tmp_path, [f"model.allow_remote_code: [{NAME}]"])
    rerun = resolve(ModelConfig(str(tmp_path / "point"), allow_remote_code=(NAME,)), "cpu")
    assert np.array_equal(vectors(rerun), vectors(resolved))
    assert rerun.encoder.key() == resolved.encoder.key()


def test_a_manifest_cannot_turn_code_on(base, odd, tmp_path, tiny_folder):
    native = resolve(config(tiny_folder), "cpu")
    manifest = checkpoint(tmp_path / "point", native)
    claimed = replace(manifest, encoder=replace(manifest.encoder, own_code=True))
    claimed.write(tmp_path / "point")
    model_config = ModelConfig(str(tmp_path / "point"), allow_remote_code=(str(tiny_folder),))
    refused(model_config, tmp_path, ["encoder.own_code", str(tiny_folder)], InputError)
    # A whole model in a checkpoint is loaded as a native one, or not at all.
    from claim2source.core.files import file_hash

    shutil.copytree(odd, tmp_path / "point", dirs_exist_ok=True)
    weights = Weights(
        "full", file_hash(odd / "model.safetensors"), config_sha256=file_hash(odd / "config.json")
    )
    replace(claimed, weights=weights).write(tmp_path / "point")
    model_config = ModelConfig(
        str(tmp_path / "point"), allow_remote_code=(str(tmp_path / "point"),)
    )
    refused(model_config, tmp_path, ["encoder.own_code"], InputError)
    replace(manifest, weights=weights).write(tmp_path / "point")
    refused(model_config, tmp_path, [str(tmp_path / "point")])


def to_bin(folder):
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def test_bin_weights_are_not_read_by_themselves(base, hub, tmp_path):
    to_bin(base)
    refused(config(base), tmp_path, ["no *.safetensors", f"model.allow_bin: [{base}]"], InputError)
    hub(base)
    line = [f"model.allow_bin: [{NAME}] and model.revision: its full commit"]
    refused(config(NAME, revision=COMMIT), tmp_path, line, InputError)
    refused(config(NAME, revision=COMMIT, allow_bin=("org/other",)), tmp_path, line, InputError)
    # One permission does not imply the other.
    refused(config(NAME, revision=COMMIT, allow_remote_code=(NAME,)), tmp_path, line, InputError)
    pin = ["model.revision", "40 hex digits", "allow_bin"]
    refused(config(NAME, allow_bin=(NAME,)), tmp_path, pin, ConfigError)


def test_bin_weights_that_are_allowed_and_pinned_are_the_model(base, hub, tiny_folder):
    to_bin(base)
    hub(base)
    native = resolve(config(tiny_folder), "cpu")
    for spec in (
        config(NAME, revision=COMMIT, allow_bin=(NAME,)),
        config(base, allow_bin=(str(base),)),
    ):
        resolved = resolve(spec, "cpu")
        assert np.array_equal(vectors(resolved), vectors(native))
        assert resolved.encoder.key() != native.encoder.key()
    # Their hash is over their bytes.
    weights = torch.load(base / "pytorch_model.bin", weights_only=True)
    torch.save({k: v + 1e-3 for k, v in weights.items()}, base / "pytorch_model.bin")
    assert resolve(spec, "cpu").base.sha256 != resolved.base.sha256
    # Where there are both, safetensors are read.
    shutil.copy(tiny_folder / "model.safetensors", base)
    assert np.array_equal(vectors(resolve(spec, "cpu")), vectors(native))


def test_a_checkpoint_over_bin_weights_asks_for_the_same_permission(base, hub, tmp_path):
    to_bin(base)
    hub(base)
    resolved = resolve(config(NAME, revision=COMMIT, allow_bin=(NAME,)), "cpu")
    checkpoint(tmp_path / "point", resolved)
    refused(str(tmp_path / "point"), tmp_path, [f"model.allow_bin: [{NAME}]"], InputError)
    rerun = resolve(ModelConfig(str(tmp_path / "point"), allow_bin=(NAME,)), "cpu")
    assert np.array_equal(vectors(rerun), vectors(resolved))


class Evil:
    def __init__(self, ran):
        self.ran = ran

    def __reduce__(self):
        return (Path.touch, (Path(self.ran),))


@pytest.mark.parametrize("how", ["torch", "pickle"])
def test_a_bin_file_that_is_more_than_tensors_is_refused(base, tmp_path, how):
    weights = {**load_file(base / "model.safetensors"), "evil": Evil(str(tmp_path / "ran"))}
    (base / "model.safetensors").unlink()
    if how == "torch":
        torch.save(weights, base / "pytorch_model.bin")
    else:
        (base / "pytorch_model.bin").write_bytes(pickle.dumps(weights))
    refused(config(base, allow_bin=(str(base),)), tmp_path, [str(base)])
