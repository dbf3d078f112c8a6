"""Damaged model files: one line that names the model, whatever libraries raise."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from claim2source.core.errors import UserError
from claim2source.models import ModelConfig, resolve
from tests.refusals import refused


@pytest.mark.parametrize(
    ("file", "text"),
    [
        # A value of the wrong type, for which transformers has its own error.
        ("config.json", {"num_attention_heads": "two"}),
        ("config.json", {"model_type": "no-such-type"}),
        ("config.json", "{"),
        ("adapter_config.json", "{}"),
        ("config.json", "[" * 100_000 + "]" * 100_000),
        ("tokenizer.json", '"\\ud800'),
        ("tokenizer_config.json", '{"model_max_length": [1], "tokenizer_class": "BertTokenizer"}'),
        ("model.safetensors", "x" * 100),
    ],
)
def test_a_damaged_file_is_one_line(
    tiny_folder: Path, tmp_path: Path, file: str, text: str | dict[str, str]
) -> None:
    model = tmp_path / "model"
    shutil.copytree(tiny_folder, model)
    if isinstance(text, dict):
        text = json.dumps(json.loads((model / file).read_text()) | text)
    (model / file).write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=str(model)) as error:
        resolve(ModelConfig(str(model), pooling="mean", max_length=16), "cpu")
    (line,) = error.value.lines
    assert len(line) < 600


@pytest.mark.parametrize("file", ["config.json", "1_Pooling/config.json", "manifest.json"])
def test_a_pipe_among_the_files_is_no_reason_to_wait(
    tiny_folder: Path, tmp_path: Path, file: str
) -> None:
    model = tmp_path / "model"
    shutil.copytree(tiny_folder, model)
    (model / file).parent.mkdir(exist_ok=True)
    (model / file).unlink(missing_ok=True)
    os.mkfifo(model / file)
    with refused(UserError, model / file):
        resolve(ModelConfig(str(model), pooling="mean", max_length=16), "cpu")
