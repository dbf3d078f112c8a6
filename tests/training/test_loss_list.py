"""Losses as a list in YAML, as the mapping of 1.0, as flags; and a user's losses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from claim2source.core.config import as_plain, read_config, to_yaml
from claim2source.core.errors import ConfigError, InputError, UserError
from claim2source.models import Manifest
from claim2source.training.config import FinetuneConfig
from claim2source.training.finetune import finetune
from claim2source.training.loss_list import Losses, loss_name, make_losses
from claim2source.training.losses import (
    Alignment,
    Consistency,
    Distillation,
    InfoNCE,
    KeepBase,
)
from tests.refusals import refused
from tests.training.own_losses import NearBase, Uniformity
from tests.training.small import losses_of, power_cut, same_weights, small_config

OWN = "tests.training.own_losses"
# The whole of what 1.0 writes into a run's folder, with one further loss on.
OF_1_0 = """
losses:
  info_nce: {weight: 1.0}
  distillation: {weight: 0.0, scores: null, temperature: 1.0, candidates: false}
  keep_base: {weight: 0.3, languages: {en: 1.0}}
  consistency: {weight: 0.0}
  alignment: {weight: 0.0, most: 10000}
"""
AS_LIST = "losses: [{info_nce: {}}, {keep_base: {weight: 0.3, languages: {en: 1.0}}}]"


def read(folder: Path, text: str, *words: str) -> Losses:
    """The losses of a config file and flags."""
    file = folder / "my.yaml"
    file.write_text(text)
    words = ("--config", str(file), *words)
    return read_config(FinetuneConfig, words, program="t", description="t").losses


@pytest.mark.parametrize(
    ("text", "words", "expected"),
    [
        ("", [], [InfoNCE()]),
        ("losses: [{info_nce: }]", [], [InfoNCE()]),
        (
            "losses: [{keep_base: {weight: 2}}, {consistency: {}}]",
            [],
            [KeepBase(2.0), Consistency()],
        ),
        (AS_LIST, [], [InfoNCE(), KeepBase(0.3, {"en": 1.0})]),
        (OF_1_0, [], [InfoNCE(), KeepBase(0.3, {"en": 1.0})]),
        ("losses: {keep_base: {weight: 2}}", [], [InfoNCE(), KeepBase(2.0)]),
        # Without a weight it is off, as it was.
        ("losses: {keep_base: {languages: {en: 1}}}", [], [InfoNCE(), KeepBase(0.0, {"en": 1.0})]),
        ("", ["--losses.keep_base.weight", "0.1"], [InfoNCE(), KeepBase(0.1)]),
        (
            AS_LIST,
            ["--losses.keep_base.weight", "0.5", "--losses.info_nce.weight=0.2"],
            [InfoNCE(0.2), KeepBase(0.5, {"en": 1.0})],
        ),
        (OF_1_0, ["--losses.keep_base.weight", "0"], [InfoNCE(), KeepBase(0.0, {"en": 1.0})]),
        (AS_LIST, ["--losses.keep_base.languages", "{de: 1}"], None),
        (
            AS_LIST,
            ["--losses", "[{info_nce: {}}]", "--losses.consistency.weight", "3"],
            [InfoNCE(), Consistency(3.0)],
        ),
        (
            f"losses: [{{info_nce: {{}}}}, {{{OWN}.Uniformity: {{weight: 0.1, sharpness: 3}}}}]",
            [f"--losses.{OWN}.Uniformity.weight", "0.2"],
            [InfoNCE(), Uniformity(0.2, 3.0)],
        ),
        ("", [f"--losses.{OWN}.NearBase.weight=0.2"], [InfoNCE(), NearBase(0.2)]),
    ],
)
def test_losses_are_read(
    text: str, words: list[str], expected: list[Any] | None, tmp_path: Path
) -> None:
    losses = read(tmp_path, text, *words)
    if expected is None:
        # A flag's mapping is laid over the file's, as everywhere.
        expected = [InfoNCE(), KeepBase(0.3, {"en": 1.0, "de": 1.0})]
    assert losses == Losses(expected)
    # What a run's folder says of them is read back alike.
    assert read(tmp_path, to_yaml({"losses": losses})) == losses == make_losses(as_plain(losses))


def test_a_mapping_in_a_file_is_warned_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    read(tmp_path, AS_LIST, "--losses.keep_base.weight", "0.5")
    assert caplog.messages == []
    read(tmp_path, OF_1_0, "--losses.keep_base.weight", "0.5")
    (message,) = caplog.messages
    assert message.startswith(f"{tmp_path / 'my.yaml'}:")


@pytest.mark.parametrize(
    ("losses", "line", "field"),
    [
        ("  - info_nce: {}\n  - keep_base: {weight: -1}", 3, "losses.keep_base.weight"),
        ("  - info_nce: {}\n  - keep_bose: {}", 3, "losses.keep_bose"),
        ("  - keep_base:\n      weight: 1\n      langages: {}", 4, "losses.keep_base.langages"),
        ("  - info_nce: {}\n  - info_nce: {}", 3, "losses"),
        ("  - info_nce: 1", 2, "losses.info_nce"),
        ("  info_nce", 1, "losses"),
        ("  - info_nce: {}\n    consistency: {}", 1, "losses"),
        ("  - distillation: {}", 2, "losses.distillation.scores"),
        ("  - no_such_module.Loss: {}", 2, "losses.no_such_module.Loss"),
        ("  - json.loads: {}", 2, "losses.json.loads"),
        (f"  - {OWN}.Missing: {{}}", 2, f"losses.{OWN}.Missing"),
        (f"  - {OWN}.NoWeight: {{}}", 2, f"losses.{OWN}.NoWeight"),
        (f"  - {OWN}.NeedsMore: {{}}", 2, f"losses.{OWN}.NeedsMore"),
        (f"  - {OWN}.Uniformity: {{weight: -1}}", 2, f"losses.{OWN}.Uniformity.weight"),
        (f"  - {OWN}.Uniformity: {{wait: 1}}", 2, f"losses.{OWN}.Uniformity.wait"),
        ("  - alignment: {}", 2, "losses.alignment.weight"),
    ],
)
def test_a_wrong_loss_is_named_with_its_line(
    losses: str, line: int, field: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError) as error:
        read(tmp_path, f"losses:\n{losses}")
    (problem,) = error.value.problems
    assert (problem.line, problem.field) == (line, field)


@pytest.mark.parametrize(
    "words",
    [
        ["--losses", "[]"],
        ["--losses.info_nce.weight", "0"],
        ["--losses.keep_bose.weight", "1"],
        ["--losses", "[{consistency: {weight: 0}}]"],
    ],
)
def test_losses_that_minimise_nothing_are_refused(words: list[str], tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        read(tmp_path, "", *words)


def test_losses_that_read_one_input_must_agree_on_it() -> None:
    one = Distillation(1.0, Path("a.trec"))
    assert Losses([one, Alignment(most=5)]).setting("aligned_texts", "most", 9) == 5
    losses = Losses([one, _Scored(1.0, Path("b.trec"))])
    with pytest.raises(ConfigError) as error:
        losses.setting("teacher_scores", "scores", None)
    assert error.value.key == f"losses.{loss_name(losses.terms[1])}.scores"
    assert losses.needing("teacher_scores").keys() == losses.active.keys()


class _Scored(Distillation):
    """Another loss that learns from scores."""


@pytest.mark.slow
@pytest.mark.parametrize("text", [AS_LIST, OF_1_0])
def test_both_forms_train_the_same_weights(
    text: str, setup: tuple[Path, Path], tmp_path: Path
) -> None:
    """A run's folder records the list, whichever was read, and its manifest too."""
    from tests.training.small import arguments

    file = tmp_path / "my.yaml"
    file.write_text(text)
    words = arguments(*setup, tmp_path / "form", optimisation__epochs=1)
    words += ["--config", str(file)]
    finetune(read_config(FinetuneConfig, words, program="t", description="t"))
    flags = {"losses__keep_base__weight": 0.3, "losses__keep_base__languages": "{en: 1}"}
    finetune(small_config(*setup, tmp_path / "flags", optimisation__epochs=1, **flags))
    assert losses_of(tmp_path / "form") == losses_of(tmp_path / "flags")
    same_weights(tmp_path / "form", tmp_path / "flags")
    written = yaml.safe_load((tmp_path / "form" / "config.yaml").read_text())["losses"]
    assert written == Manifest.read(tmp_path / "form" / "checkpoints" / "epoch-1").config["losses"]
    assert written == as_plain(Losses([InfoNCE(), KeepBase(0.3, {"en": 1.0})]))


@pytest.mark.slow
def test_a_run_of_1_0_goes_on_and_other_losses_do_not(
    setup: tuple[Path, Path], tmp_path: Path
) -> None:
    extra: dict[str, Any] = {
        "optimisation__epochs": 1,
        "losses__keep_base__weight": 0.3,
        "losses__keep_base__languages": "{en: 1}",
    }
    finetune(small_config(*setup, tmp_path / "whole", **extra))
    with power_cut():
        finetune(small_config(*setup, tmp_path / "run", **extra))
    config = tmp_path / "run" / "config.yaml"
    settings = yaml.safe_load(config.read_text()) | yaml.safe_load(OF_1_0)
    config.write_text(to_yaml(settings))

    def refused(**changes: Any) -> str:
        with pytest.raises(UserError) as error:
            finetune(small_config(*setup, tmp_path / "run", resume=True, **{**extra, **changes}))
        assert isinstance(error.value, ConfigError)
        return error.value.key

    assert refused(losses__keep_base__weight=0.4) == "losses.keep_base.weight"
    assert refused(losses__consistency__weight=1) == "losses.consistency.weight"
    own = {f"losses__{OWN.replace('.', '__')}__Uniformity__weight": 1}
    assert refused(**own) == f"losses.{OWN}.Uniformity.weight"
    order = "[{keep_base: {weight: 0.3, languages: {en: 1}}}, {info_nce: {}}]"
    assert refused(losses=order) == "losses"
    finetune(small_config(*setup, tmp_path / "run", resume=True, **extra))
    assert losses_of(tmp_path / "whole") == losses_of(tmp_path / "run")
    same_weights(tmp_path / "whole", tmp_path / "run")


@pytest.mark.slow
def test_a_run_does_not_go_on_with_changed_code(
    setup: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    extra: dict[str, Any] = {"optimisation__epochs": 1}
    extra["losses"] = f"[{{info_nce: {{}}}}, {{{OWN}.NearBase: {{weight: 0.1}}}}]"
    with power_cut():
        finetune(small_config(*setup, tmp_path / "run", **extra))
    with monkeypatch.context() as changed:
        changed.setattr(Losses, "code", lambda self: {f"{OWN}.NearBase": "another"})
        with refused(UserError, f"losses.{OWN}.NearBase", "--overwrite"):
            finetune(small_config(*setup, tmp_path / "run", resume=True, **extra))
    finetune(small_config(*setup, tmp_path / "run", resume=True, **extra))
