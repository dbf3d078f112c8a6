"""Module classes that a folder ships itself: refused, or run as sentence-transformers runs them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from claim2source.core.errors import ConfigError, InputError, UserError
from claim2source.models import ModelConfig, resolve
from claim2source.stages.cross_encoder import CrossEncoder
from claim2source.stages.pairs import Pair
from tests.models.layout import declare
from tests.models.test_trust import (  # noqa: F401  the fixtures of that name
    COMMIT,
    NAME,
    _no_trace_of_foreign_code,
    hub,
)
from tests.refusals import refused
from tests.stages.tiny import save_cross_encoder

TEXTS = ["vaccine works .", "a b c claim paper", "claim"]
CODE = """
import pathlib
import torch
from sentence_transformers.sentence_transformer import modules
pathlib.Path({ran!r}).touch()
class Pooling(torch.nn.Module):
    def forward(self, features):
        mask = features["attention_mask"].unsqueeze(-1).float()
        hidden = features["token_embeddings"].masked_fill(mask == 0, -1e9)
        features["sentence_embedding"] = torch.cat([hidden.amax(1), hidden[:, 0]], dim=1)
        return features
    def save(self, path, *args, **kwargs):
        pass
    @staticmethod
    def load(path):
        return Pooling()
class Transformer(modules.Transformer):
    pass
class Loud(modules.Transformer):
    def forward(self, features, **kwargs):
        features = super().forward(features, **kwargs)
        features["token_embeddings"] = features["token_embeddings"] * 2 + 1
        return features
"""


@pytest.fixture
def folder(tmp_path: Path, tiny_folder: Path) -> Path:
    """A folder with the author's own pooling class: largest values, and the first token."""
    model = declare(Path(shutil.copytree(tiny_folder, tmp_path / "own")))
    (model / "custom_pool.py").write_text(CODE.format(ran=str(tmp_path / "ran")))
    return set_type(model, 1, "custom_pool.Pooling")


def set_type(folder: Path, position: int, kind: str) -> Path:
    modules = json.loads((folder / "modules.json").read_text())
    modules[position]["type"] = kind
    (folder / "modules.json").write_text(json.dumps(modules))
    return folder


def vectors(config: ModelConfig) -> np.ndarray:
    return resolve(config, "cpu").encoder.encode(TEXTS, "claim")[0]


def allowed(folder: Path) -> ModelConfig:
    return ModelConfig(str(folder), allow_remote_code=(str(folder),))


@pytest.mark.parametrize(
    "kind", ["custom_pool.Pooling", "Pooling", "", "sentence_transformers_own.models.Pooling"]
)
@pytest.mark.parametrize("device", ["cpu", "numpy", "prepacked"])
def test_a_class_of_the_authors_own_is_refused(
    folder: Path, tmp_path: Path, kind: str, device: str
) -> None:
    set_type(folder, 1, kind)
    with pytest.raises(UserError) as error:
        resolve(ModelConfig(str(folder)), device)
    (line,) = error.value.lines
    assert str(folder) in line and kind in line and "model.allow_remote_code" in line
    assert not (tmp_path / "ran").exists(), "code ran"


def test_a_class_that_is_allowed_computes_what_sentence_transformers_does(folder: Path) -> None:
    expected = SentenceTransformer(str(folder), device="cpu", trust_remote_code=True)
    resolved = resolve(allowed(folder), "cpu")
    ours = resolved.encoder.encode(TEXTS, "claim")[0]
    assert resolved.encoder.dimensions == ours.shape[1] == 32
    assert np.abs(ours - expected.encode(TEXTS)).max() < 1e-5
    # Other code makes other vectors, so stored vectors of the old code are not used.
    key = resolved.encoder.key()
    (folder / "custom_pool.py").write_text((folder / "custom_pool.py").read_text() + "\n")
    assert resolve(allowed(folder), "cpu").encoder.key() != key


def test_code_of_modules_must_be_pinned_too(folder: Path, hub, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    hub(folder)
    with refused(ConfigError, "model.revision: "):
        resolve(ModelConfig(NAME, allow_remote_code=(NAME,)), "cpu")
    assert not (tmp_path / "ran").exists()
    pinned = ModelConfig(NAME, COMMIT, allow_remote_code=(NAME,))
    assert np.array_equal(vectors(pinned), vectors(allowed(folder)))
    other = set_type(folder, 1, "evil/repo--custom_pool.Pooling")
    with refused(UserError, str(other), "evil/repo"):
        resolve(allowed(other), "cpu")


def test_a_transformer_of_the_authors_own_must_read_as_the_librarys(
    folder: Path, tiny_folder: Path
) -> None:
    set_type(folder, 0, "custom_pool.Transformer")
    expected = SentenceTransformer(str(folder), device="cpu", trust_remote_code=True)
    assert np.abs(vectors(allowed(folder)) - expected.encode(TEXTS)).max() < 1e-5
    set_type(folder, 0, "custom_pool.Loud")
    with refused(InputError, "modules.json: type: custom_pool.Loud"):
        resolve(allowed(folder), "cpu")


@pytest.mark.parametrize(
    ("transformer", "pooling"),
    [
        ("sentence_transformers.models.Transformer", "sentence_transformers.models.Pooling"),
        (
            "sentence_transformers.base.modules.transformer.Transformer",
            "sentence_transformers.sentence_transformer.modules.pooling.Pooling",
        ),
    ],
)
def test_the_librarys_classes_have_old_and_new_paths(
    folder: Path, transformer: str, pooling: str
) -> None:
    set_type(set_type(folder, 0, transformer), 1, pooling)
    expected = SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
    assert np.abs(vectors(ModelConfig(str(folder))) - expected).max() < 1e-5


def test_a_cross_encoders_module_of_its_own_is_refused_too(
    folder: Path, tmp_path: Path, tiny_folder: Path
) -> None:
    model = save_cross_encoder(tmp_path / "cross", tiny_folder)
    shutil.copyfile(folder / "modules.json", model / "modules.json")
    stage = CrossEncoder(model=str(model)).with_runtime(None, "cpu")
    with refused(UserError, "custom_pool.Pooling"):
        list(stage.score([Pair("a", "b")]))
