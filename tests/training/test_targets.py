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
    shape: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    return BertModel(BertConfig(vocab_size=50, intermediate_size=32, **shape)).eval()


@pytest.fixture(scope="module")
def tied() -> Qwen3Model:
    config = Qwen3Config(vocab_size=50, head_dim=8, tie_word_embeddings=True, **SIZES)
    return Qwen3Model(config).eval()


@pytest.mark.parametrize(
    "name",
    ["LayerNorm", "pooler.dense", "word_embeddings", "no_such", "encoder.layer", "attention"],
)
def test_targets_that_get_no_adapter_or_one_in_vain_are_refused(bert: Any, name: str) -> None:
    with pytest.raises(ConfigError) as error:
        check_targets(bert, recipe_with("query", name), hidden_of(bert))
    assert (error.value.key, error.value.value) == ("lora.targets", name)
    assert len(error.value.lines) == 1


def test_embeddings_of_a_tied_model_are_refused(tied: Any) -> None:
    with pytest.raises(ConfigError) as error:
        check_targets(tied, recipe_with("q_proj", "embed_tokens"), hidden_of(tied))
    assert error.value.value == "embed_tokens"


def test_targets_that_are_trained_pass_and_leave_the_model_as_it_was(bert: Any, tied: Any) -> None:
    """`dense` names the pooler's layer too, beside those that are trained."""
    before = hidden_of(bert)()
    check_targets(bert, recipe_with("query", "dense", "1.output.dense"), hidden_of(bert))
    check_targets(tied, recipe_with("q_proj", "gate_proj"), hidden_of(tied))
    assert torch.equal(hidden_of(bert)(), before)
    assert all(parameter.grad is None for parameter in bert.parameters())
    # Nothing is run where every weight is trained.
    check_targets(bert, replace(recipe_with("LayerNorm"), tuning="full"), lambda: before / 0)


@pytest.mark.parametrize("target", ["LayerNorm", "pooler.dense", "word_embeddings"])
def test_a_training_ends_before_it_mines(
    target: str, setup: tuple[Path, Path], tmp_path: Path
) -> None:
    lora = LoraConfig(targets=(target,))
    config = small_config(*setup, tmp_path / "run", tuning="lora", optimisation__epochs=1)
    with pytest.raises(ConfigError) as error:
        finetune(replace(config, lora=lora))
    assert (error.value.key, error.value.value) == ("lora.targets", target)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("kind", "target"), [("cross_encoder", "LayerNorm"), ("yes_no", "lm_head")]
)
def test_a_rerankers_training_ends_before_it_scores(
    kind: str, target: str, tiny: dict[str, Path], tmp_path: Path
) -> None:
    """Only the two answers' rows of the head are used; its layer does not run."""
    config = reranker_config(tiny, tmp_path / "run", model__kind=kind, tuning="lora")
    with pytest.raises(ConfigError) as error:
        finetune_reranker(replace(config, lora=LoraConfig(targets=(target,))))
    assert error.value.value == target and not (tmp_path / "run").exists()


def test_a_cross_encoders_pooler_is_trained(tiny: dict[str, Path], tmp_path: Path) -> None:
    config = reranker_config(tiny, tmp_path / "run", tuning="lora", optimisation__epochs=1)
    report = finetune_reranker(replace(config, lora=LoraConfig(targets=("pooler.dense",))))
    assert report is not None and report.training is not None
