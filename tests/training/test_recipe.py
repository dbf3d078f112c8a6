"""Training uses every setting of the config."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

from claim2source.core.errors import UserError
from claim2source.mining import MiningConfig
from claim2source.models import ModelConfig
from claim2source.text import Rendering
from claim2source.training import finetune as retriever
from claim2source.training import reranker
from claim2source.training.config import (
    BatchesConfig,
    FinetuneConfig,
    LoraConfig,
    OptimisationConfig,
    TeacherConfig,
)
from claim2source.training.early import RerankerInputs, RetrieverInputs, find_place
from claim2source.training.loss_list import Losses
from claim2source.training.losses import InfoNCE
from claim2source.training.reranker_config import (
    FirstStageConfig,
    RerankerConfig,
    RerankerLossConfig,
    RerankerModelConfig,
    RerankerStepsConfig,
)


class FarEnough(UserError):
    """End a run after its set-up has received its arguments."""


OF_BOTH: dict[str, Any] = {
    "rendering": Rendering("bilingual"),
    "lora": LoraConfig(r=3),
    "trainer": {"max_steps": 3},
    "choose": "last",
    "rule": "best",
    "keep": "best",
    "languages": ["en"],
    "mined": Path("mined.jsonl"),
}
RETRIEVER = (
    retriever,
    retriever.finetune,
    FinetuneConfig(
        **OF_BOTH,
        tuning="full",
        optimisation=OptimisationConfig(epochs=9, train="query_only"),
        model=ModelConfig("org/model"),
        mining=MiningConfig(hard=2),
        batches=BatchesConfig(order="language"),
        losses=Losses([InfoNCE(weight=0.5)]),
        teacher=TeacherConfig("org/teacher"),
        self_check=True,
    ),
)
RERANKER = (
    reranker,
    reranker.finetune_reranker,
    RerankerConfig(
        **OF_BOTH,
        tuning="lora",
        optimisation=RerankerStepsConfig(epochs=9),
        model=RerankerModelConfig(name="org/model"),
        loss=RerankerLossConfig("bce"),
        choose_by="mrr@1",
        first=FirstStageConfig(depth=7),
    ),
)


@pytest.mark.parametrize(("program", "train", "config"), [RETRIEVER, RERANKER])
def test_every_setting_reaches_the_training(
    program: Any,
    train: Callable[[Any, Any], object],
    config: FinetuneConfig | RerankerConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    received: dict[str, Any] = {}

    def set_up(*parts: object) -> NoReturn:
        received.update({type(part).__name__: part for part in parts})
        raise FarEnough

    monkeypatch.setattr(program, "set_up", set_up)
    config = replace(config, out=tmp_path / "run")
    kind = RerankerInputs if isinstance(config, RerankerConfig) else RetrieverInputs
    nothing: Any = None
    with find_place(config) as place, pytest.raises(FarEnough):
        train(config, kind(place, nothing, False, nothing))
    recipe = received[f"{type(config).__bases__[0].__name__}"]
    for spec in fields(recipe):
        value = getattr(recipe, spec.name)
        assert value == getattr(config, spec.name) != getattr(type(config)(), spec.name), spec.name
    run = received["Session"].run.config
    for name in ("languages", "mined", "choose", "rule", "keep"):
        assert getattr(run, name) == getattr(config, name)
    if isinstance(config, RerankerConfig):
        received_config = received["RerankerConfig"]
        assert received_config.choose_by == config.choose_by
        assert received_config.first == config.first != type(config)().first
