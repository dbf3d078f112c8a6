"""A folder of models replaces the hub for every model of every stage of the shipped systems."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pytest

from claim2source.core.errors import ConfigError, InputError, UserError
from claim2source.core.records import Claim, Source
from claim2source.core.run import Result, Run
from claim2source.models import ModelConfig, checkpoint_folder, resolve
from claim2source.models.local import local_model, local_models, local_name
from claim2source.search.dense import Dense
from claim2source.stages.load import LocalReranker
from claim2source.stages.max_sim import EncoderReranker
from claim2source.systems.read import SYSTEMS_FOLDER, read_systems
from claim2source.systems.stages import apply_stage
from tests.refusals import refused
from tests.training.reranker.small import small_rerankers
from tests.training.small import say_pooling

CLAIMS = (Claim("c", "masks stop flu", "de", "masks stop flu"),)
SOURCES = tuple(Source(f"s{i}", f"masks and flu {i}", f"flu {i}") for i in range(3))
FIRST = Result(Run.from_lists({"c": [(source.id, 3.0 - i) for i, source in enumerate(SOURCES)]}))


@pytest.fixture
def asked_names(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names requested from a hub that delivers nothing."""
    names: list[str] = []

    def download(name: str, *_: Any, **__: Any) -> str:
        names.append(name)
        raise OSError(f"asked the hub for {name}")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    return names


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """An encoder, a cross-encoder and a generative model, long enough for every config."""
    from transformers import BertConfig, BertForSequenceClassification, BertModel

    dirs = small_rerankers(tmp_path_factory.mktemp("small"))
    for name, kind in (("encoder", BertModel), ("cross_encoder", BertForSequenceClassification)):
        shape = BertConfig.from_pretrained(dirs[name], max_position_embeddings=8192)
        kind(shape).save_pretrained(dirs[name])
    say_pooling(dirs["encoder"], 512)
    return dirs


@pytest.mark.slow
def test_every_model_of_the_shipped_systems_is_taken_from_the_folder(
    small: dict[str, Path], tmp_path: Path, asked_names: list[str]
) -> None:
    systems = read_systems(sorted(SYSTEMS_FOLDER.glob("*.yaml")))
    kinds = {"CrossEncoder": "cross_encoder", "YesNo": "yes_no"}
    # The re-rankers that run locally, including optional stages.
    all_stages = [stage.stage for system in systems.values() for stage in system.stages]
    inner = [getattr(stage, "stage", stage) for stage in all_stages]
    stages = [stage for stage in inner if isinstance(stage, EncoderReranker | LocalReranker)]
    # A user's checkpoint is named like a model and may also be in the folder.
    parts = [part for system in systems.values() for part in system.first.walk()]
    parts = [part for part in parts if isinstance(part.retriever, Dense) and not part.unsupported]
    dense = [part.retriever.model for part in parts]
    assert len(dense) > 30 and {type(stage).__name__ for stage in stages} == {*kinds, "MaxSim"}
    for name in {model.model for model in stages} | {model.name for model in dense}:
        path = tmp_path / Path(name).name
        if not path.exists():
            path.symlink_to(small["encoder"])
    for stage in stages:
        path = tmp_path / Path(stage.model).name
        if (kind := kinds.get(type(stage).__name__)) is not None:
            path.unlink(missing_ok=True)
            path.symlink_to(small[kind])
    with local_models(tmp_path):
        for model in {model.name: model for model in dense}.values():
            resolved = resolve(model, "cpu")
            assert Path(resolved.base.name) == small["encoder"].resolve(), model.name
        for stage in {(type(stage), stage.model): stage for stage in stages}.values():
            result = apply_stage(stage, CLAIMS, SOURCES, FIRST, device="cpu")
            assert not result.failures and len(result.run.sources("c")) == 3, stage.model
    assert asked_names == []
    # Without the folder, all of them would be requested from the hub.
    for model in dense[:1]:
        with refused(UserError, model.name):
            resolve(model, "cpu")
    assert asked_names


def test_what_the_folder_stands_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = ModelConfig(
        "org/net", revision="a" * 40, pooling="cls", allow_bin=("org/net", "org/base")
    )
    assert local_model(model) == model
    (tmp_path / "models" / "net").mkdir(parents=True)
    path = str(tmp_path / "models" / "net")
    with local_models(tmp_path / "models"):
        model_config = local_model(model)
        assert (model_config.name, model_config.revision) == (path, None)
        assert model_config.allow_bin == (path, "org/base") and model_config.allow_remote_code == ()
        assert model_config.pooling == "cls" and checkpoint_folder("org/net") == Path(path)
        # The name of an existing folder stays, and so does the name of an absent model.
        own = tmp_path / "mine" / "net"
        own.mkdir(parents=True)
        assert local_name(str(own)) == str(own) and local_name("org/other") == "org/other"
        with local_models(None):
            assert local_name("org/net") == path
    assert local_name("org/net") == "org/net"
    with refused(ConfigError, "models", tmp_path / "none"), local_models(tmp_path / "none"):
        pass


def test_an_adapters_base_is_found_in_the_folder(
    small: dict[str, Path], tmp_path: Path, asked_names: list[str], save_tiny: Callable[..., Path]
) -> None:
    """A base that was a folder is recorded by its name alone; one of the hub by its whole name."""
    from tests.training.export.test_weighted_sum import saved

    base = say_pooling(save_tiny(tmp_path / "there" / "mini"))
    checkpoint = saved(base, tmp_path / "run" / "lora", "lora", 1)
    texts = ["a claim", "b paper"]
    with local_models(None):
        before = resolve(str(checkpoint), "cpu").encoder.encode(texts, "claim")[0]
    (tmp_path / "models").mkdir()
    shutil.move(base, tmp_path / "models" / "mini")
    with refused(InputError, "base.name", "mini"):
        resolve(str(checkpoint), "cpu")
    with local_models(tmp_path / "models"):
        after = resolve(str(checkpoint), "cpu").encoder.encode(texts, "claim")[0]
    assert np.array_equal(before, after) and asked_names == []
