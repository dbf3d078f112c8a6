"""Layers that `lora.targets` names: only those that are trained, exported and summed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import BertConfig, BertModel, Qwen3Config, Qwen3Model

from claim2source.core.errors import ConfigError
from claim2source.training.config import LoraConfig, TrainingRecipe
from claim2source.training.finetune import finetune
from claim2source.training.reranker import finetune_reranker
from claim2source.training.targets import check_targets
from tests.models.mistral import SIZES
from tests.training.reranker.small import small_config as reranker_config
from tests.training.small import small_config

IDS = torch.tensor([[1, 2, 3]])


def recipe_with(*targets: str) -> TrainingRecipe:
    return TrainingRecipe(tuning="lora", lora=LoraConfig(targets=targets))


def hidden_of(model: Any) -> Callable[[], Tensor]:
    return lambda: model(input_ids=IDS).last_hidden_state


@pytest.fixture(scope="module")
def bert() -> BertModel:
    config = BertConfig(
        vocab_size=50,
        intermediate_size=32,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
    )
    return BertModel(config).eval()


@pytest.fixture(scope="module")
def tied() -> Qwen3Model:
    config = Qwen3Config(
        vocab_size=50,
        head_dim=8,
        tie_word_embeddings=True,
        **SIZES,
    )
    return Qwen3Model(config).eval()


@pytest.mark.parametrize(
    "name",
    [
        "LayerNorm",
        "pooler.dense",
        "word_embeddings",
        "no_such",
        "encoder.layer",
        "attention",
    ],
)
def test_targets_that_get_no_adapter_or_one_in_vain_are_refused(bert: Any, name: str) -> None:
    with pytest.raises(ConfigError) as raised:
        check_targets(bert, recipe_with("query", name), hidden_of(bert))
    error = raised.value
    assert error.key == "lora.targets"
    assert error.value == name
    assert len(error.lines) == 1


def test_embeddings_of_a_tied_model_are_refused(tied: Any) -> None:
    recipe = recipe_with("q_proj", "embed_tokens")
    with pytest.raises(ConfigError) as raised:
        check_targets(tied, recipe, hidden_of(tied))
    error = raised.value
    assert error.value == "embed_tokens"


def test_targets_that_are_trained_pass_and_leave_the_model_as_it_was(bert: Any, tied: Any) -> None:
    """`dense` names the pooler's layer too, beside those that are trained."""
    before = hidden_of(bert)()
    bert_recipe = recipe_with("query", "dense", "1.output.dense")
    check_targets(bert, bert_recipe, hidden_of(bert))
    tied_recipe = recipe_with("q_proj", "gate_proj")
    check_targets(tied, tied_recipe, hidden_of(tied))
    after = hidden_of(bert)()
    assert torch.equal(after, before)
    assert all(parameter.grad is None for parameter in bert.parameters())
    # Nothing is run where every weight is trained.
    full = replace(recipe_with("LayerNorm"), tuning="full")
    check_targets(bert, full, lambda: before / 0)


@pytest.mark.parametrize("target", ["LayerNorm", "pooler.dense", "word_embeddings"])
def test_a_training_ends_before_it_mines(
    target: str, setup: tuple[Path, Path], tmp_path: Path
) -> None:
    lora = LoraConfig(targets=(target,))
    out = tmp_path / "run"
    config = small_config(
        *setup,
        out,
        tuning="lora",
        optimisation__epochs=1,
    )
    with pytest.raises(ConfigError) as raised:
        finetune(replace(config, lora=lora))
    error = raised.value
    assert error.key == "lora.targets"
    assert error.value == target
    assert not out.exists()


@pytest.mark.parametrize(
    ("kind", "target"),
    [
        ("cross_encoder", "LayerNorm"),
        ("yes_no", "lm_head"),
    ],
)
def test_a_rerankers_training_ends_before_it_scores(
    kind: str, target: str, tiny: dict[str, Path], tmp_path: Path
) -> None:
    """Only the two answers' rows of the head are used; its layer does not run."""
    out = tmp_path / "run"
    config = reranker_config(tiny, out, model__kind=kind, tuning="lora")
    lora = LoraConfig(targets=(target,))
    with pytest.raises(ConfigError) as raised:
        finetune_reranker(replace(config, lora=lora))
    error = raised.value
    assert error.value == target
    assert not out.exists()


def test_a_cross_encoders_pooler_is_trained(tiny: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "run"
    config = reranker_config(
        tiny,
        out,
        tuning="lora",
        optimisation__epochs=1,
    )
    lora = LoraConfig(targets=("pooler.dense",))
    report = finetune_reranker(replace(config, lora=lora))
    assert report is not None
    assert report.training is not None
