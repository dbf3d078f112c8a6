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
    extra: dict[str, Any] = {
        "optimisation__epochs": 1,
        "optimisation__save_every": 0,
    }
    run = tmp_path / "run"
    config = small_config(tiny, run, model__name=folder, **extra)
    finetune_reranker(config)
    checkpoint = run / "checkpoints" / "epoch-1"
    # The export pads too: a batch of pairs of unequal lengths.
    pairs = [("a", "b"), ("a", "b " * 20)]
    raw = torch.nn.Identity()
    model = Theirs(str(checkpoint), device="cpu", activation_fn=raw)
    predictions = []
    for pair in pairs:
        alone = model.predict([pair])
        predictions.append(float(alone[0]))
    together = model.predict(pairs)
    assert np.allclose(together, predictions, atol=1e-4)


@pytest.mark.slow
def test_adapters_leave_a_head_of_two_layers_to_be_trained_in_full(
    tiny: dict[str, Path], tmp_path: Path
) -> None:
    base = Path(shutil.copytree(tiny["cross_encoder"], tmp_path / "base"))
    shape = DistilBertConfig(
        vocab_size=30522,
        num_labels=1,
        dim=16,
        n_heads=2,
        n_layers=1,
    )
    classifier = DistilBertForSequenceClassification(shape)
    classifier.save_pretrained(base)
    extra: dict[str, Any] = {
        "tuning": "lora",
        "optimisation__epochs": 1,
    }
    run = tmp_path / "run"
    config = small_config(tiny, run, model__name=base, **extra)
    finetune_reranker(config)
    checkpoint = run / "checkpoints" / "epoch-1"
    weights = load_file(checkpoint / "adapter_model.safetensors")
    ends = {name.rpartition("base_model.model.")[2] for name in weights}
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
    config = small_config(
        tiny,
        tmp_path / "run",
        model__name=base,
        optimisation__epochs=1,
    )
    reranker = load_to_train(config, ["a claim"], 10)
    folder = tmp_path / "tuned"
    reranker.write_full(folder)
    tuned = Theirs(str(folder), device="cpu")
    wanted = path or torch.nn.Sigmoid
    assert type(tuned.activation_fn) is type(expected) is wanted
    kind = type(expected)
    full_name = f"{kind.__module__}.{kind.__name__}"
    record = json.loads((folder / "config.json").read_text())
    assert record["sentence_transformers"]["activation_fn"] == full_name
    record = json.loads((folder / WHOLE).read_text())
    assert record["activation_fn"] == full_name
    # Training and our stages use logits.
    pair = [("masks work", "a study of masks")]
    identity = torch.nn.Identity()
    theirs = Theirs(str(base), device="cpu", activation_fn=identity)
    raw = theirs.predict(pair)
    ours = reranker.stage.network.predict(pair)
    assert ours[0] == pytest.approx(raw[0], abs=1e-5)
