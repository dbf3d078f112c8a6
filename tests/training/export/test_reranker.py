"""A tuned re-ranker is exported as a `CrossEncoder` of sentence-transformers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from claim2source.train.merge import MergeConfig, merge

from claim2source.core.config import ConfigError
from claim2source.models.hub import weights_hash
from claim2source.models.manifest import RerankerManifest, read_any_manifest
from claim2source.stages.cross_encoder import CrossEncoder
from claim2source.stages.pairs import Pair
from claim2source.stages.yes_no import YesNo
from claim2source.training.reranker import finetune_reranker
from tests.refusals import refused
from tests.shared_data import shared
from tests.training.reranker.small import small_config, small_rerankers

PAIRS = [
    Pair("masks work", "a study of masks"),
    Pair("masks work", "sleep " * 30),
    Pair("sugar and sleep", "coffee, sugar and noise at night"),
    Pair("a b c", "x"),
]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    from safetensors.torch import load_file, save_file

    dirs = small_rerankers(tmp_path_factory.mktemp("small"))
    for kind, head in (("cross_encoder", "classifier.weight"), ("yes_no", "lm_head.weight")):
        file = dirs[kind] / "model.safetensors"
        # Logits with a spread, because near 0 a wrong export would pass.
        state = load_file(file)
        save_file(state | {head: state[head] * 20}, file, {"format": "pt"})
    return dirs


def logits_of(stage: CrossEncoder | YesNo) -> np.ndarray:
    logits = np.zeros(len(PAIRS))
    for batch in stage.with_runtime(None, "cpu").score(PAIRS):
        logits[list(batch.positions)] = batch.scores
    return logits


@pytest.mark.parametrize(
    ("kind", "tuning"),
    [
        ("cross_encoder", "lora"),
        pytest.param("cross_encoder", "full", marks=pytest.mark.slow),
        pytest.param("yes_no", "lora", marks=pytest.mark.slow),
    ],
)
def test_an_exported_reranker_gives_the_checkpoints_logits(
    kind: str, tuning: str, tiny: dict[str, Path], tmp_path: Path
) -> None:
    from sentence_transformers import CrossEncoder as Theirs

    run, out = tmp_path / "run", tmp_path / "out"
    base = weights_hash(tiny[kind])
    extra = {"model__kind": kind, "tuning": tuning, "optimisation__learning_rate": 3e-3}
    finetune_reranker(small_config(tiny, run, **extra, optimisation__save_every=0))
    checkpoint = run / "checkpoints" / "epoch-2"
    stage = (CrossEncoder if kind == "cross_encoder" else YesNo)(model=str(checkpoint))
    expected = logits_of(stage)
    assert np.ptp(expected) > 1
    lines = merge(MergeConfig([str(checkpoint)], out))
    assert any("CrossEncoder" in line for line in lines)
    theirs = Theirs(str(out), device="cpu", local_files_only=True)
    predicted = theirs.predict([tuple(pair) for pair in PAIRS])
    assert predicted == pytest.approx(expected, abs=1e-5 * max(1.0, float(np.abs(expected).max())))
    # The base alone would give others.
    before = logits_of((CrossEncoder if kind == "cross_encoder" else YesNo)(model=str(tiny[kind])))
    assert np.abs(before - expected).max() > 0.01
    assert weights_hash(tiny[kind]) == base
    # The export also records its training claims, so that nothing is chosen on them.
    manifest = read_any_manifest(str(out))
    assert isinstance(manifest, RerankerManifest)
    assert manifest.data.train_sha256 == RerankerManifest.read(checkpoint).data.train_sha256
    assert not (out / "adapter_config.json").exists()
    assert str(tmp_path) not in json.dumps(json.loads((out / "config.json").read_text()))
    # Re-rankers are not summed.
    for key, points, scales in (("checkpoints", 2, None), ("scales", 1, [0.5, 1.0])):
        with refused(ConfigError, f"config: {key}: "):
            merge(MergeConfig([str(checkpoint)] * points, tmp_path / "sum", scales=scales))
    assert not (tmp_path / "sum").exists()


def test_an_export_with_two_logits_is_read_by_its_name(
    tiny: dict[str, Path], tmp_path: Path
) -> None:
    run, out = tmp_path / "run", tmp_path / "out"
    extra = {"model__labels": 2, "loss__kind": "cross_entropy", "optimisation__epochs": 1}
    finetune_reranker(small_config(tiny, run, **extra, optimisation__save_every=0))
    checkpoint = run / "checkpoints" / "epoch-1"
    merge(MergeConfig([str(checkpoint)], out))
    expected = logits_of(CrossEncoder(model=str(checkpoint)))
    assert logits_of(CrossEncoder(model=str(out))) == pytest.approx(expected, abs=1e-5)


@pytest.mark.slow
def test_a_generative_models_prompt_is_its_chat_template(
    tiny: dict[str, Path], tmp_path: Path
) -> None:
    """With a tokenizer that reads line ends, which a template would drop, and special tokens."""
    from sentence_transformers import CrossEncoder as Theirs

    run, out = tmp_path / "run", tmp_path / "out"
    extra = {"model__name": shared("vllm/model"), "model__instruction": 'Say {{ "yes" }}\n{% x %}'}
    epochs = {"optimisation__epochs": 1, "optimisation__save_every": 0}
    config = small_config(tiny, run, model__kind="yes_no", **extra, **epochs)
    finetune_reranker(config)
    checkpoint = run / "checkpoints" / "epoch-1"
    lines = merge(MergeConfig([str(checkpoint)], out))
    assert any("special token" in line for line in lines)
    model, stage = Theirs(str(out), device="cpu"), YesNo(model=str(checkpoint))
    for pair, ids in zip(PAIRS, stage.with_runtime(None, "cpu").tokens(PAIRS), strict=True):
        assert model.preprocess([tuple(pair)])["input_ids"][0].tolist() == ids
