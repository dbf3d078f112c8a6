"""Settings that do not fit data or model, and warnings about texts and temperatures."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from claim2source.core.errors import ConfigError, InputError, UserError
from claim2source.mining.baseline import RandomBaseline, first_loss_sentences
from claim2source.training.early import check_early
from claim2source.training.finetune import finetune
from claim2source.training.loss_list import Losses
from claim2source.training.losses import InfoNCE, KeepBase
from claim2source.training.reranker import finetune_reranker
from claim2source.training.splits import unused_data
from tests.refusals import refused
from tests.training.reranker.small import small_config as reranker_config
from tests.training.small import data_of, small_config


def test_consistency_needs_translations(setup: tuple[Path, Path], untranslated: Path) -> None:
    model, data = setup
    extra: dict[str, Any] = {"losses__consistency__weight": 0.5}
    data_of(small_config(model, data, Path("run"), **extra))
    data_of(small_config(model, untranslated, Path("run")))
    with refused(ConfigError, "losses.consistency.weight: 0.5 "):
        data_of(small_config(model, untranslated, Path("run"), **extra))


def test_protected_languages_must_be_there(setup: tuple[Path, Path]) -> None:
    def check(weight: float, languages: dict[str, float]) -> None:
        config = small_config(*setup, Path("run"))
        losses = Losses([InfoNCE(), KeepBase(weight, languages)])
        data_of(replace(config, losses=losses))

    check(1.0, {"en": 1.0, "de": 0.0})
    check(0.0, {"fr": 1.0})  # the loss is off
    with refused(ConfigError, "losses.keep_base.languages: 'fr' ", "en, de"):
        check(1.0, {"en": 1.0, "fr": 1.0})


@pytest.mark.parametrize(
    ("form", "weight", "has_note"),
    [("bilingual", 0, True), ("original", 0, False), ("original", 1, True)],
)
def test_missing_translations_are_counted(
    form: str, weight: float, has_note: bool, setup: tuple[Path, Path], untranslated: Path
) -> None:
    extra: dict[str, Any] = {"rendering__claims": form, "losses__consistency__weight": weight}
    data = data_of(small_config(setup[0], untranslated, Path("run")))
    german = sum(claim.lang == "de" for claim in data.train.claims)
    config = small_config(setup[0], untranslated, Path("run"), **extra)
    expected = (
        f"{german} of {len(data.train.claims)} claims have no translation and are used as posted"
    )
    assert unused_data(config, data.train, None, 0) == ([expected] if has_note else [])
    translated = data_of(small_config(*setup, Path("r"))).train
    assert unused_data(config, translated, None, 0) == []


def test_the_first_claims_alone_may_be_trained_on(setup: tuple[Path, Path]) -> None:
    full = data_of(small_config(*setup, Path("run")))
    training_data = data_of(small_config(*setup, Path("run"), data__limit=5))
    assert training_data.train.claims == full.train.claims[:5] and training_data.val == full.val
    assert data_of(small_config(*setup, Path("run"), data__limit=999)).train == full.train


def test_a_split_that_is_too_small_for_val_names_its_key(
    setup: tuple[Path, Path], tmp_path: Path
) -> None:
    model, data = setup
    shutil.copytree(data, tmp_path / "data")
    judged = tmp_path / "data" / "qrels" / "train.tsv"
    header, first, *_ = judged.read_text(encoding="utf-8").splitlines(keepends=True)
    judged.write_text(header + first, encoding="utf-8")
    with refused(ConfigError, "data.val_share: ", "val claims"):
        data_of(small_config(model, tmp_path / "data", Path("run")))


SCORES = {"losses__distillation__weight": 1, "losses__distillation__scores": "a.trec"}
CANDIDATES = SCORES | {"losses__distillation__candidates": True}


@pytest.mark.parametrize(
    ("settings", "facts"),
    [
        ({"data__report_split": "train"}, "data.report_split: 'train' ,data.train_split"),
        ({"data__limit": 5, "mined": "m.jsonl"}, "data.limit: 5 ,mined"),
        ({"losses__info_nce__weight": 0}, "losses: ,weight"),
        (
            {"losses__keep_base__weight": 1, "losses__keep_base__languages": '{"en": 0.0}'},
            "losses.keep_base.languages: ,'en': 0.0",
        ),
        (
            {"optimisation__chunk_tokens": 64, "optimisation__chunk_size": 8},
            "optimisation.chunk_tokens: 64 ,optimisation.chunk_size",
        ),
        (
            {"optimisation__negatives": 4, "optimisation__remine_every": 1, "mined": "m.jsonl"},
            "optimisation.negatives: 4 ,mining.hard,(3)",
        ),
        (CANDIDATES | {"optimisation__remine_every": 1}, "optimisation.remine_every: 1 "),
        (CANDIDATES | {"optimisation__negatives": 3}, "optimisation.negatives: 3 ,mining.hard"),
        (CANDIDATES | {"losses__distillation__weight": 0}, "losses.distillation.candidates: "),
        ({"losses__distillation__weight": 1}, "losses.distillation.scores: "),
        ({"tuning": "lora", "optimisation__train_layers": 1}, "optimisation.train_layers: 1 "),
        ({"tuning": "qlora", "optimisation__train_layers": 1}, "optimisation.train_layers: 1 "),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    settings: dict[str, Any], facts: str
) -> None:
    with refused(ConfigError, *facts.split(",")):
        small_config(Path("m"), Path("d"), Path("run"), **settings)


def test_a_rerankers_adapters_have_no_layers_to_choose(tiny: dict[str, Path]) -> None:
    layers: dict[str, Any] = {"optimisation__train_layers": 1}
    reranker_config(tiny, Path("run"), tuning="full", **layers)
    with pytest.raises(ConfigError) as error:
        reranker_config(tiny, Path("run"), tuning="lora", **layers)
    assert error.value.key == "optimisation.train_layers" and error.value.value == 1


def test_settings_that_go_together() -> None:
    """Only another loss; and a file may have more than the config mines, unless it mines again."""
    losses = {"losses__info_nce__weight": 0, "losses__consistency__weight": 1}
    for settings in (losses, {"optimisation__negatives": 4, "mined": "m.jsonl"}):
        small_config(Path("m"), Path("d"), Path("run"), **settings)


def test_files_are_read_before_anything_is_scored(setup: tuple[Path, Path], tmp_path: Path) -> None:
    mined = tmp_path / "mined.jsonl"
    mined.write_text('{"claim": "nobody", "positive": "s00", "negatives": []}\n')
    with refused(InputError, f"{mined}:1: claim: ", "nobody"):
        data_of(small_config(*setup, Path("run"), mined=mined))
    # A run that is resumed has its own copy.
    data_of(small_config(*setup, Path("run"), mined=mined, resume=True))
    extra: dict[str, Any] = {"losses__distillation__scores": tmp_path / "none.trec"}
    data_of(small_config(*setup, Path("run"), **extra))
    with refused(InputError, tmp_path / "none.trec", "losses.distillation.scores"):
        data_of(small_config(*setup, Path("run"), losses__distillation__weight=1, **extra))


def test_a_split_that_shares_a_claim_with_train_is_refused(
    setup: tuple[Path, Path], tmp_path: Path
) -> None:
    shutil.copytree(setup[1], tmp_path / "data")
    with open(tmp_path / "data" / "qrels" / "dev.tsv", "a") as file:
        file.write("train-3\ts03\t1\n")
    with refused(ConfigError, "data.report_split: 'dev' ", "data.train_split", "(1 ", "train-3"):
        data_of(small_config(setup[0], tmp_path / "data", Path("run")))


def warning_of(deviation: float, temperature: float) -> str:
    return "".join(RandomBaseline(0.5, deviation, 99).temperature_sentences(temperature))


def test_flat_and_sharp_ones_are_warned_of_with_one_that_fits() -> None:
    """E5's cosines at other models' temperature, and vice versa; each at its own is fine."""
    flat, sharp = warning_of(0.02, 0.02), warning_of(0.1, 0.01)
    assert " 0.02 " in flat and "flat" in flat and flat.endswith(" 0.01")
    assert " 0.01 " in sharp and "sharp" in sharp and sharp.endswith(" 0.05")
    for deviation, temperature in ((0.1, 0.05), (0.02, 0.01), (0.06, 0.02), (0.014, 0.01)):
        assert warning_of(deviation, temperature) == ""
    assert RandomBaseline(0.0, 0.0, 0).temperature_sentences(0.02) == []


@pytest.mark.parametrize("ratio", [0.5, 0.8, 1.1])
def test_the_share_is_that_of_the_perplexity(ratio: float) -> None:
    scores = np.random.default_rng(0).normal(0.8, 0.02, 100_000) / (0.02 / ratio)
    chances = np.exp(scores - scores.max())
    chances /= chances.sum()
    perplexity = float(np.exp(-(chances * np.log(chances)).sum()))
    percent = re.search(r"(\d+)% of", warning_of(0.02, 0.02 / ratio))
    assert percent is not None
    assert int(percent[1]) == pytest.approx(100 * perplexity / len(scores), abs=1)


def test_a_first_loss_far_above_chance_is_warned_of() -> None:
    assert first_loss_sentences(2.08, 8, 0.05) == first_loss_sentences(3.5, 8, 0.05) == []
    for loss in (322.0, float("inf"), float("nan")):
        (line,) = first_loss_sentences(loss, 8, 0.05)
        assert f"{loss:.3g}" in line and "2.08" in line and "temperature 0.05" in line
    # With more sources guessing is harder, with one there is nothing to guess.
    assert first_loss_sentences(8.0, 512, 0.05) == []
    assert first_loss_sentences(0.0, 1, 0.05) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", ["no negatives", "a mined file", "mined here, by shares of scores"]
)
def test_every_run_looks_at_random_pairs_and_at_its_first_loss(
    case: str,
    setup: tuple[Path, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Dot products of a random BERT's vectors, which are not normalised."""
    extra: dict[str, Any] = {
        "no negatives": {"optimisation__negatives": 0},
        "a mined file": {"mined": tmp_path / "mined.jsonl"},
        "mined here, by shares of scores": {},
    }[case]
    extra |= {"optimisation__epochs": 1, "optimisation__save_every": 0, "optimisation__seed": 1}
    if "mined" in extra:
        finetune(small_config(*setup, tmp_path / "before", **extra | {"mined": "null"}))
        (tmp_path / "before" / "mined.jsonl").rename(tmp_path / "mined.jsonl")
        capsys.readouterr()
        caplog.clear()
    for normalize in (False, True)[: 2 if case == "no negatives" else 1]:
        config = small_config(
            *setup, tmp_path / str(normalize), model__normalize=str(normalize).lower(),
            optimisation__temperature=0.002 if not normalize else 0.05, **extra,
        )  # fmt: skip
        finetune(config)
        wrong = not normalize
        assert ("optimisation.temperature 0.002 " in capsys.readouterr().out) is wrong
        assert any("the first loss is" in line for line in caplog.messages) is wrong
        caplog.clear()


@pytest.mark.parametrize(
    ("trainer", "options", "key"),
    [
        ({"limit_train_batches": 0.1}, {}, "trainer.limit_train_batches"),
        ({"limit_train_batches": 0}, {}, "trainer.limit_train_batches"),
        ({"overfit_batches": 0.1}, {}, "trainer.overfit_batches"),
        ({"max_steps": 0}, {}, "trainer.max_steps"),
        ({}, {"model__max_length": 8, "model__template__source": "a paper, " * 9}, None),
    ],
)
def test_what_would_end_a_run_once_it_is_mined_ends_it_before(
    trainer: dict[str, Any],
    options: dict[str, Any],
    key: str | None,
    setup: tuple[Path, Path],
    tmp_path: Path,
) -> None:
    """Nothing is written."""
    config = replace(small_config(*setup, tmp_path / "run", **options), trainer=trainer)
    with pytest.raises(ConfigError) as error:
        finetune(config)
    assert error.value.key == (key or "model.max_length") and len(error.value.lines) == 1
    assert not (tmp_path / "run").exists()


def test_a_store_that_is_a_file_is_refused_first(setup: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "store").write_text("", encoding="utf-8")
    config = small_config(*setup, tmp_path / "run", store=tmp_path / "store")
    with refused(InputError, tmp_path / "store"):
        check_early(config)
    assert not (tmp_path / "run").exists()


def test_a_reranker_without_a_negative_to_learn_from_is_refused_first(
    tiny: dict[str, Path], tmp_path: Path
) -> None:
    """Before the first stage ranks, and before anything is scored."""
    file = tmp_path / "mined.jsonl"
    rows = [json.loads(line) for line in tiny["mined"].read_text(encoding="utf-8").splitlines()]
    lines = [json.dumps({**row, "negatives": []}) for row in rows]
    file.write_text("\n".join(lines), encoding="utf-8")
    config = reranker_config(tiny, tmp_path / "run", mined=file)
    with refused(UserError, f"{file}: "):
        finetune_reranker(config)
    assert not (tmp_path / "run").exists()
