"""Cross-encoders: raw logits equal to sentence-transformers' own, whatever is in the batch."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    RobertaConfig,
    RobertaForSequenceClassification,
)

from claim2source.core.errors import ConfigError, InputError, UserError
from claim2source.core.records import Claim, Source
from claim2source.core.run import Run
from claim2source.stages.cross_encoder import CrossEncoder
from claim2source.stages.max_sim import MaxSim
from claim2source.stages.pairs import NOT_A_NUMBER, Pair, Reranker, scored_alone
from tests.models.layout import change_json
from tests.models.mistral import declare_code
from tests.refusals import refused
from tests.stages.tiny import save_cross_encoder, save_qwen

DRAW = random.Random(0)
WORDS = [
    "a",
    "b",
    "c",
    "claim",
    "paper",
    "vaccine",
    "works",
    "passage",
    ".",
]


def text(longest: int) -> str:
    count = DRAW.randint(1, longest)
    words = DRAW.choices(WORDS, k=count)
    return " ".join(words)


PAIRS = [Pair(text(8), text(70)) for _ in range(30)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> Path:
    target = tmp_path_factory.mktemp("cross") / "model"
    return save_cross_encoder(target, tiny_folder)


def scored(stage: Reranker, pairs: Sequence[Pair] = PAIRS) -> np.ndarray:
    ready = stage.with_runtime(None, "cpu")
    return scored_by(ready, pairs)


def scored_by(stage: Reranker, pairs: Sequence[Pair] = PAIRS) -> np.ndarray:
    scores = np.full(len(pairs), 7e7, dtype=np.float32)
    for batch in stage.score(pairs):
        positions = list(batch.positions)
        is_unscored = scores[positions] == np.float32(7e7)
        assert is_unscored.all()  # each once
        scores[positions] = batch.scores
    return scores


def predicted(folder: Path, pairs: Sequence[Pair], **settings: Any) -> np.ndarray:
    """The logits of sentence-transformers, a pair at a time."""
    from sentence_transformers import CrossEncoder as Theirs

    model = Theirs(
        str(folder),
        device="cpu",
        activation_fn=torch.nn.Identity(),
        **settings,
    )
    logits: list[float] = []
    for pair in pairs:
        (logit,) = model.predict([tuple(pair)])
        logits.append(float(logit))
    return np.array(logits)


def test_logits_are_those_of_sentence_transformers(folder: Path) -> None:
    expected = predicted(folder, PAIRS)
    # Not in [0, 1], and not alike.
    is_outside = np.abs(expected) > 1
    assert expected.std() > 1
    assert is_outside.sum() > 9
    for budget in (None, 1, 200, 10**6):
        stage = CrossEncoder(model=str(folder), batch_tokens=budget)
        logits = scored(stage)
        assert np.allclose(logits, expected, atol=1e-4), budget

    short = predicted(folder, PAIRS, max_length=12)
    change = np.abs(short - expected)
    assert change.max() > 0.1
    short_stage = CrossEncoder(model=str(folder), max_length=12)
    assert np.allclose(scored(short_stage), short, atol=1e-4)


def test_the_last_layer_computes_its_first_token_alone(folder: Path) -> None:
    """The same logits, also with padding; the oracle above is the unchanged model."""
    stage = CrossEncoder(model=str(folder)).with_runtime(None, "cpu")
    model: Any = stage.network[0].auto_model
    shapes: list[tuple[int, ...]] = []

    def keep_shape(*args: Any) -> None:
        output = args[-1]
        shapes.append(tuple(output.shape))

    for layer in model.bert.encoder.layer:
        layer.output.register_forward_hook(keep_shape)
    logits = scored_by(stage)
    expected = predicted(folder, PAIRS)
    assert np.allclose(logits, expected, atol=1e-4)
    assert all(shape[1] == 1 for shape in shapes[1::2])
    assert shapes[0][1] > 1


@pytest.mark.parametrize("pads", [True, False])
def test_a_classifier_without_a_padding_token_pads_with_its_tokenizers(
    pads: bool, tmp_path: Path
) -> None:
    """Qwen3ForSequenceClassification, as trainers write it; without a pad token the end one pads."""
    folder = save_qwen(tmp_path / "qwen", pads)
    config = json.loads((folder / "config.json").read_text())
    assert config["pad_token_id"] is None
    stage = CrossEncoder(model=str(folder), batch_tokens=10**6)
    logits = scored(stage)

    model = AutoModelForSequenceClassification.from_pretrained(folder)
    model = model.eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    expected: list[float] = []
    for pair in PAIRS:
        ids = tokenizer(*pair, return_tensors="pt", return_token_type_ids=False)
        with torch.inference_mode():
            output = model(**ids)
            logit = output.logits[0, 0]
            expected.append(float(logit))
    lengths = {len(pair.source) for pair in PAIRS}
    assert np.std(expected) > 0.1
    assert len(lengths) > 1
    assert np.allclose(logits, expected, atol=1e-4)
    if not pads:
        change_json(folder / "tokenizer_config.json", eos_token=None)
        with refused(InputError, folder, "pad_token_id"):
            scored(CrossEncoder(model=str(folder)))


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_a_pair_is_cut_to_what_the_model_has_positions_for(
    kind: str, tmp_path: Path, tiny_folder: Path
) -> None:
    """Its tokenizer states more; RoBERTa keeps two positions for itself."""
    folder = save_cross_encoder(tmp_path / "model", tiny_folder, max_position_embeddings=18)
    if kind == "roberta":
        sizes = json.loads((folder / "config.json").read_text())
        keys = (
            "vocab_size",
            "hidden_size",
            "num_attention_heads",
            "intermediate_size",
        )
        settings = {key: sizes[key] for key in keys}
        config = RobertaConfig(
            **settings,
            pad_token_id=0,
            num_hidden_layers=2,
            max_position_embeddings=19,
            num_labels=1,
            initializer_range=0.5,
        )
        roberta = RobertaForSequenceClassification(config)
        roberta.save_pretrained(folder)
    change_json(folder / "tokenizer_config.json", model_max_length=64)

    logits = scored(CrossEncoder(model=str(folder)))
    expected = predicted(folder, PAIRS, max_length=18)
    assert np.allclose(logits, expected, atol=1e-4)
    shorter = scored(CrossEncoder(model=str(folder), max_length=12))
    change = np.abs(logits - shorter)
    assert change.max() > 1e-3
    with refused(ConfigError, "max_length: 19 ", " 18"):
        scored(CrossEncoder(model=str(folder), max_length=19))


def test_an_activation_that_the_files_name_is_not_applied(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "sigmoid")
    sigmoid = {"activation_fn": "torch.nn.modules.activation.Sigmoid"}
    change_json(copy / "config.json", sentence_transformers=sigmoid)
    stage = CrossEncoder(model=str(copy)).with_runtime(None, "cpu")
    default = CrossEncoder(model=str(folder)).with_runtime(None, "cpu")
    assert np.array_equal(scored(stage), scored(default))
    # Other files may change scores: stored ones are not used.
    assert stage.identity != default.identity


def test_logits_are_float32_where_the_weights_are_not(folder: Path) -> None:
    stage = CrossEncoder(model=str(folder), dtype="bfloat16")
    logits = torch.tensor(scored(stage))
    rounded = logits.bfloat16().float()
    is_between = logits != rounded
    assert is_between.sum() > 20
    full = scored(CrossEncoder(model=str(folder)))
    change = np.abs(logits.numpy() - full)
    assert change.max() < 2


def test_a_pair_that_is_no_number_fails_alone(tmp_path: Path, tiny_folder: Path) -> None:
    folder = save_cross_encoder(tmp_path / "model", tiny_folder)
    weights_file = folder / "model.safetensors"
    weights = load_file(weights_file)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    token = tokenizer["model"]["vocab"]["query"]
    vectors = weights["bert.embeddings.word_embeddings.weight"]
    vectors[token] = float("nan")
    save_file(weights, weights_file, metadata={"format": "pt"})

    sources = [
        Source("a", "a"),
        Source("b", "query"),
        Source("c", "c b"),
    ]
    ranking = [("a", 3.0), ("b", 2.0), ("c", 1.0)]
    run = Run.from_lists({"0": ranking})
    stage = CrossEncoder(model=str(folder), sources="title_abstract")
    ready = stage.with_runtime(None, "cpu")
    result = ready.apply([Claim("0", "claim")], sources, run)
    assert result.failure_counts() == {NOT_A_NUMBER: 1}
    assert result.sources("0")[1] == "b"

    pairs = [Pair("claim", "a"), Pair("claim", "c b")]
    expected = predicted(folder, pairs)
    scores = result.scored("0")
    assert [scores[name] for name in "ac"] == pytest.approx(expected, abs=1e-4)


def test_a_batch_that_does_not_fit_is_scored_in_parts() -> None:
    calls: list[list[int]] = []

    def score(rows: Sequence[int]) -> np.ndarray:
        calls.append(list(rows))
        if len(rows) > 2 or 3 in rows:
            raise torch.OutOfMemoryError("no room\nat all")
        is_together = len(rows) > 1
        values = [np.nan if row == 1 and is_together else row for row in rows]
        return np.float32(values)

    rows = [0, 1, 2, 3, 4]
    parts = list(scored_alone(rows, score, tokens=9))
    scores: dict[int, float] = {}
    for part in parts:
        for position, value in zip(part.positions, part.scores, strict=True):
            scores[position] = float(value)
    expected = {
        0: 0,
        1: 1,
        2: 2,
        3: float("nan"),
        4: 4,
    }
    assert scores == pytest.approx(expected, nan_ok=True)
    reasons = [part.reason for part in parts if part.reason]
    assert reasons == [{3: "no room at all"}]
    assert sum(part.tokens for part in parts) == 9
    assert calls[0] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("kind", [CrossEncoder, MaxSim])
def test_other_weights_and_settings_of_a_model_have_scores_of_their_own(
    kind: type[Reranker], folder: Path, tmp_path: Path, tiny_folder: Path
) -> None:
    def identity(**settings: Any) -> Any:
        args: dict[str, Any] = {"model": str(folder), "max_length": 64}
        stage = kind(**args | settings)
        return stage.with_runtime(None, "cpu").identity

    path = save_cross_encoder(tmp_path / "m", tiny_folder, seed=3)
    changes: list[dict[str, Any]] = [
        {"model": str(path)},
        {"max_length": 9},
    ]
    if kind is CrossEncoder:
        changes.append({"dtype": "bfloat16"})
    assert all(identity(**change) != identity() for change in changes)
    assert identity(mix=0.2, depth=5) == identity()


def test_what_is_no_reranker_is_refused(tmp_path: Path, tiny_folder: Path) -> None:
    two = save_cross_encoder(tmp_path / "two", tiny_folder, num_labels=2)
    with refused(UserError, two, "2 scores"):
        scored(CrossEncoder(model=str(two)))
    weights_file = two / "model.safetensors"
    weights = load_file(weights_file)
    weights_file.unlink()
    torch.save(weights, two / "pytorch_model.bin")
    with refused(InputError, two, "safetensors"):
        scored(CrossEncoder(model=str(two)))


def test_a_models_own_code_runs_only_where_it_is_allowed(tmp_path: Path, tiny_folder: Path) -> None:
    folder = save_cross_encoder(tmp_path / "odd", tiny_folder)
    change_json(folder / "config.json", model_type="odd-bert")
    classes = {
        "AutoConfig": "odd.OddConfig",
        "AutoModel": "odd.OddModel",
    }
    declare_code(folder, classes)
    ran = tmp_path / "ran"
    code = f"open({str(ran)!r}, 'w')\n"
    (folder / "odd.py").write_text(code)
    for allowed in ((), ("org/other",)):
        with refused(UserError, "allow_remote_code"):
            scored(CrossEncoder(model=str(folder), allow_remote_code=allowed))
    assert not ran.exists()

    # Allowed, it is run: this code has no such class.
    with refused(UserError, "odd"):
        scored(CrossEncoder(model=str(folder), allow_remote_code=(str(folder),)))
    assert ran.exists()
