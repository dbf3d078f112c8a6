"""Re-rankers to train: checkpoints keep the settings in their folders."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import DistilBertConfig, DistilBertForSequenceClassification

from claim2source.training.reranker import finetune_reranker
from claim2source.training.reranker_models import load_to_train
from tests.stages.tiny import save_qwen
from tests.training.reranker.small import small_config

WHOLE = "config_sentence_transformers.json"


def test_a_classifier_without_a_padding_token_is_trained_and_read(
    tiny: dict[str, Path], tmp_path: Path
) -> None:
    from sentence_transformers import CrossEncoder as Theirs

    folder = save_qwen(tmp_path / "qwen", pads=False)
    extra: dict[str, Any] = {"optimisation__epochs": 1, "optimisation__save_every": 0}
    finetune_reranker(small_config(tiny, tmp_path / "run", model__name=folder, **extra))
    checkpoint = tmp_path / "run" / "checkpoints" / "epoch-1"
    # The export pads too: a batch of pairs of unequal lengths.
    pairs = [("a", "b"), ("a", "b " * 20)]
    model = Theirs(str(checkpoint), device="cpu", activation_fn=torch.nn.Identity())
    predictions = [float(model.predict([pair])[0]) for pair in pairs]
    assert np.allclose(model.predict(pairs), predictions, atol=1e-4)


def test_adapters_leave_a_head_of_two_layers_to_be_trained_in_full(
    tiny: dict[str, Path], tmp_path: Path
) -> None:
    base = Path(shutil.copytree(tiny["cross_encoder"], tmp_path / "base"))
    shape = DistilBertConfig(vocab_size=30522, num_labels=1, dim=16, n_heads=2, n_layers=1)
    DistilBertForSequenceClassification(shape).save_pretrained(base)
    extra: dict[str, Any] = {"tuning": "lora", "optimisation__epochs": 1}
    finetune_reranker(small_config(tiny, tmp_path / "run", model__name=base, **extra))
    file = tmp_path / "run" / "checkpoints" / "epoch-1" / "adapter_model.safetensors"
    ends = {name.rpartition("base_model.model.")[2] for name in load_file(file)}
    assert {"classifier.weight", "pre_classifier.weight"} < ends
    assert any(".lora_A." in name for name in ends)


@pytest.mark.parametrize("activation", ["Sigmoid", "Identity", "Tanh", None])
def test_a_tuned_cross_encoder_keeps_its_bases_activation(
    activation: str | None, tiny: dict[str, Path], tmp_path: Path
) -> None:
    """In both its configs, read by versions of sentence-transformers before and since 6."""
    from sentence_transformers import CrossEncoder as Theirs

    base = Path(shutil.copytree(tiny["cross_encoder"], tmp_path / "base"))
    path = None if activation is None else getattr(torch.nn, activation)
    if path is not None:
        model = Theirs(str(base), device="cpu", activation_fn=path())
        model.save_pretrained(str(base))
    expected = Theirs(str(base), device="cpu").activation_fn
    config = small_config(tiny, tmp_path / "run", model__name=base, optimisation__epochs=1)
    reranker = load_to_train(config, ["a claim"], 10)
    reranker.write_full(tmp_path / "tuned")
    tuned = Theirs(str(tmp_path / "tuned"), device="cpu")
    assert type(tuned.activation_fn) is type(expected) is (path or torch.nn.Sigmoid)
    full_name = f"{type(expected).__module__}.{type(expected).__name__}"
    for file, part in (("config.json", "sentence_transformers"), (WHOLE, None)):
        record = json.loads((tmp_path / "tuned" / file).read_text())
        assert (record if part is None else record[part])["activation_fn"] == full_name
    # Training and our stages use logits.
    pair = [("masks work", "a study of masks")]
    raw = Theirs(str(base), device="cpu", activation_fn=torch.nn.Identity()).predict(pair)
    assert reranker.stage.network.predict(pair)[0] == pytest.approx(raw[0], abs=1e-5)
