"""What callbacks monitor: names that are logged, in the direction in which they improve."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
from pytorch_lightning.callbacks import EarlyStopping

from claim2source.core.errors import ConfigError
from claim2source.evaluation.evaluate import METRICS
from claim2source.training.finetune import finetune
from claim2source.training.monitors import (
    STEP_VALUES,
    check_callbacks,
    check_monitors,
    logged_names,
    named_monitors,
)
from claim2source.training.reranker import finetune_reranker
from tests.refusals import refused
from tests.shared_data import REPOSITORY
from tests.training.own_callbacks import Own
from tests.training.reranker.small import small_config as reranker_config
from tests.training.small import small_config

LOGGED = [*STEP_VALUES, "val/en/mrr@5", "val/macro/mrr@5", "val/macro/recall@5"]


class Seen(pl.Callback):
    """Record the names that Lightning has at an epoch's end."""

    names: set[str] = set()

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        self.names.update(trainer.callback_metrics)


SEEN = {"class_path": f"{__name__}.Seen"}


def stopping(**init: Any) -> dict[str, Any]:
    return {"class_path": "EarlyStopping", "init_args": init}


@pytest.mark.parametrize(
    "init",
    [
        {"monitor": "val/macro/recall@10", "mode": "max"},
        {"monitor": "val/macro/map", "mode": "max"},
        {"monitor": "val_loss"},
        {"monitor": "val/de/mrr@5", "mode": "max"},  # no claim of val is German
        {"monitor": "val/macro/mrr@5"},
        {"monitor": "val/macro/mrr@5", "mode": "min"},
        {"monitor": "loss", "mode": "max"},
        {"monitor": "loss", "check_on_train_epoch_end": False},
        {"monitor": "val_loss", "strict": False},
    ],
)
def test_a_monitor_that_would_not_do_its_work_is_refused(init: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as error:
        check_callbacks([EarlyStopping(**init)], LOGGED)
    assert error.value.key == "trainer.callbacks" and len(error.value.lines) == 1
    # Of its settings alone, before any callback is made, it is the same error.
    for path in ("EarlyStopping", "pytorch_lightning.callbacks.EarlyStopping"):
        named = named_monitors({"callbacks": [{"class_path": path, "init_args": init}]})
        assert named is not None
        with pytest.raises(ConfigError) as early:
            check_monitors(named, LOGGED)
        assert str(early.value) == str(error.value)


def test_those_that_do_pass() -> None:
    check_callbacks(
        [
            EarlyStopping("loss"),
            EarlyStopping("gradient_norm", mode="max"),
            EarlyStopping("val/macro/mrr@5", mode="max"),
            EarlyStopping("val/en/mrr@5", mode="max", check_on_train_epoch_end=True),
            Seen(),
        ],
        LOGGED,
    )
    # A user's callback may log an unknown name.
    check_callbacks([Own(), EarlyStopping("mine")], LOGGED)
    assert named_monitors({"callbacks": [SEEN, stopping(monitor="mine")]}) is None


class ByMap(EarlyStopping):
    """A user's own, with the monitor in its code."""

    def __init__(self) -> None:
        super().__init__("val/macro/map", mode="max")


def test_any_callback_with_a_monitor_is_checked(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="ByMap"):
        check_callbacks([ByMap()], LOGGED)


@pytest.mark.slow
def test_a_retriever_logs_the_names_that_are_listed(
    setup: tuple[Path, Path], tmp_path: Path
) -> None:
    Seen.names.clear()
    extra: dict[str, Any] = {"data__val_seen_share": 0.2, "losses__keep_base__weight": 0.1}
    extra |= {"optimisation__epochs": 1, "losses__consistency__weight": 0.1}
    config = small_config(*setup, tmp_path / "run", **extra)
    finetune(replace(config, trainer={"callbacks": [SEEN]}))
    refused = replace(config, out=tmp_path / "refused", trainer={})
    # Everything that is logged, except the numbers of claims.
    logged = {name for name in Seen.names if not name.endswith("/queries")}
    with pytest.raises(ConfigError) as error:
        finetune(replace(refused, trainer={"callbacks": [stopping(monitor="val_loss")]}))
    assert not (tmp_path / "refused").exists() and len(error.value.lines) == 1
    names = listed_names(config)
    assert logged == names and {"loss/keep_base", "val/unseen papers/mrr@5"} < names


def listed_names(config: Any) -> set[str]:
    from claim2source.training.config import RetrieverRecipe
    from claim2source.training.run_folder import RunFolder
    from claim2source.training.splits import load_splits

    run = RunFolder(config.out, config)
    return set(logged_names(config.recipe(RetrieverRecipe), load_splits(run)))


def test_a_name_that_an_own_callback_might_log_and_does_not_is_one_line(
    setup: tuple[Path, Path], tmp_path: Path
) -> None:
    own = {"class_path": f"{Own.__module__}.Own"}
    config = small_config(*setup, tmp_path / "run", optimisation__epochs=1)
    with pytest.raises(ConfigError, match="other") as error:
        finetune(replace(config, trainer={"callbacks": [own, stopping(monitor="other")]}))
    assert error.value.key == "trainer.callbacks" and len(error.value.lines) == 1


@pytest.mark.slow
def test_a_reranker_logs_the_names_that_are_listed(tiny: Any, tmp_path: Path) -> None:
    Seen.names.clear()
    config = reranker_config(tiny, tmp_path / "run")
    for monitor in ("val/macro/recall@10", "loss/info_nce"):
        with refused(ConfigError, monitor):
            finetune_reranker(
                replace(config, trainer={"callbacks": [stopping(monitor=monitor, mode="max")]})
            )
    assert not (tmp_path / "run").exists()
    finetune_reranker(replace(config, trainer={"callbacks": [SEEN, stopping(monitor="alike")]}))
    assert {*STEP_VALUES, "alike", "val/macro/mrr@5"} <= Seen.names


def test_the_monitors_that_docs_name_are_logged() -> None:
    named = set[str]()
    for page in [*(REPOSITORY / "docs").glob("*.md"), *(REPOSITORY / "configs").rglob("*.yaml")]:
        named |= set(re.findall(r"\bval/\w+/([a-z]+(?:@\d+)?)", page.read_text(encoding="utf-8")))
    assert named and named <= set(METRICS)
