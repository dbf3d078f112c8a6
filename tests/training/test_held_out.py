"""A model that was trained on claims of val is refused as base, first stage or teacher."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from claim2source.core.errors import ConfigError
from claim2source.core.records import Claim
from claim2source.data.beir import write_beir
from claim2source.data.loading import load
from claim2source.data.prepare import PrepareConfig, prepare
from claim2source.data.split import carve_val
from claim2source.mining import write_mined
from claim2source.models import Base, EncoderSettings, Manifest, ModelConfig, Weights
from claim2source.models.manifest import DataRecord, RerankerManifest, RerankerSettings, SourceModel
from claim2source.stages.learned import LearnedFusion, LearnedView
from claim2source.stages.similarities import ViewConfig
from claim2source.systems.seen import require_held_out
from claim2source.text import Rendering
from claim2source.training.finetune import finetune
from claim2source.training.reranker import finetune_reranker
from tests.stages.test_learned import FITTED
from tests.training.reranker.small import small_config as reranker_config
from tests.training.small import data_of, dataset_of, mined_row, small_config

# As the small configs hold out, and as another training did.
SAME: Mapping[str, Any] = {"val_share": 0.2, "val_seed": 13}
OTHER: Mapping[str, Any] = {"val_share": 0.2, "val_seed": 5}


def record(data: Path, val_share: float, val_seed: int, **options: Any) -> DataRecord:
    rest, val = carve_val(load(data, "train"), val_share, val_seed)
    values = {"dataset": str(data), "train_split": "train", **options}
    prints = {"train_sha256": rest.fingerprint, "val_sha256": val.fingerprint}
    return DataRecord(val_share=val_share, val_seed=val_seed, **values, **prints)


def checkpoint(folder: Path, data: DataRecord, base: str = "hub/base", **options: Any) -> str:
    """Write only the manifest of a trained retriever, which is enough here."""
    weights, settings = Weights("full", "0"), EncoderSettings("mean", max_length=24)
    defaults: dict[str, Any] = {"epoch": 1, "data": data}
    manifest = Manifest(
        base=Base(base, None, "0"),
        weights=weights,
        encoder=settings,
        rendering=Rendering(),
        **defaults | options,
    )
    folder.mkdir(parents=True)
    manifest.write(folder)
    return str(folder)


def refused(setup: tuple[Path, Path], name: str) -> str:
    """Ask for a training from a model; "" where val's claims are new to it."""
    config = small_config(*setup, Path("out"))
    val = data_of(config).val
    try:
        require_held_out("model.name", [name], val, config.data)
    except ConfigError as error:
        return str(error)
    return ""


def test_every_model_of_a_training_is_asked(setup: tuple[Path, Path], tmp_path: Path) -> None:
    """Before it is loaded; the message has the key, the claims, and what to set."""
    model, data = setup
    known = checkpoint(tmp_path / "seed5", record(data, **OTHER))
    _, val = carve_val(load(data, "train"), 0.4, 13)
    trained, _ = carve_val(load(data, "train"), 0.2, 5)
    overlap = {claim.id for claim in val.claims} & {claim.id for claim in trained.claims}
    message = (
        f"was trained on {len(overlap)} of its {len(val.claims)}: set data.val_share 0.2, "
        "data.val_seed 5 and data.val_seen_share 0"
    )
    view = LearnedView("c", ViewConfig(score="cosine", model=ModelConfig("away")), "", 1.0, 1.0)
    LearnedFusion((view,), FITTED).write(tmp_path / "fusion.json")
    files = tmp_path / "systems.yaml"
    files.write_text(
        f"dense: {{retrieve: {{dense: {known}}}}}\n"
        "bm25: {retrieve: {bm25: {}}}\n"
        "fused: {retrieve: {hybrid: [bm25, dense]}}\n"
        f"staged: {{retrieve: bm25, stages: [{{rerank: max_sim, model: {known}}}]}}\n"
        "asked: {retrieve: bm25, stages: [{rerank: max_sim, "
        f"model: {known}, when: {{margin_below: 0.2}}}}]}}\n"
        "learned: {retrieve: bm25, stages: [{rerank: learned, "
        f"file: {tmp_path / 'fusion.json'}, models: {{c: {known}}}}}]}}\n"
    )
    rest, _ = carve_val(load(data, "train"), 0.4, 13)
    mined = tmp_path / "mined.jsonl"
    write_mined([mined_row(rest.claims[0].id, rest.claims[0].golds[0], "s35")], mined)
    dirs = {"data": data, "cross_encoder": model, "encoder": model, "mined": mined}
    cases: list[tuple[str, dict[str, Any]]] = [
        ("model.name", {"model__name": known}),
        ("first.checkpoint", {"first__system": "MiniLM", "first__checkpoint": known}),
    ]
    for system in ("dense", "fused", "staged", "asked", "learned"):
        first = {"first__system": system, "first__files": f'["{files}"]'}
        cases.append(("first.system", first))
    for key, extra in cases:
        with pytest.raises(ConfigError, match=rf"config: {key}: .*seed5.*{message}"):
            finetune_reranker(reranker_config(dirs, tmp_path / "out", **extra))
    teacher = {"teacher__name": known, "optimisation__train": "query_only"}
    with pytest.raises(ConfigError, match=r"config: teacher\.name: .*seed5.*data\.val_seed 5"):
        finetune(small_config(model, data, tmp_path / "out", **teacher))
    assert not (tmp_path / "out").exists()


def test_what_was_trained_on_other_claims_is_free(
    setup: tuple[Path, Path],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)  # manifests name a data set without its path
    data = setup[1]
    train = load(data, "train")
    # A first phase on pairs of the pool: other claims of the same papers, of the same ids even.
    claims = tuple(Claim(c.id, f"about {c.golds[0]}", golds=c.golds) for c in train.claims)
    pairs = dataset_of(claims, train.sources)
    write_beir([pairs, load(data, "dev")], tmp_path / "pairs")
    held_out = checkpoint(tmp_path / "same", record(data, **SAME))
    untrained = checkpoint(tmp_path / "step0", record(data, **OTHER), epoch=0)
    phase = checkpoint(tmp_path / "phase", record(tmp_path / "pairs", **OTHER))
    # Another data set, which is not here any more.
    missing_data = record(tmp_path / "pairs", **OTHER, dataset="elsewhere/pairs")
    away = checkpoint(tmp_path / "away", missing_data)
    for name in (held_out, untrained, phase, "hub/model", str(setup[0])):
        assert refused(setup, name) == "", name
    assert not caplog.records
    # It is unknown: a warning, in one line.
    assert refused(setup, away) == ""
    (warned,) = caplog.messages
    assert "model.name" in warned and away in warned and "\n" not in warned
    caplog.clear()
    # More was held out there: those claims of val are new to the model.
    _, val = carve_val(train, 0.2, 13)
    rest = train.with_claims([c for c in train.claims if c not in val.claims][:-4])
    write_beir([rest, load(data, "dev")], tmp_path / "part")
    part = checkpoint(tmp_path / "of part", record(tmp_path / "part", **OTHER))
    assert refused(setup, part) == "" and not caplog.records


def test_what_knows_val_is_found_wherever_it_comes_from(
    setup: tuple[Path, Path],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)  # manifests name a data set without its path
    data = setup[1]
    other_record = record(data, **OTHER)
    # The same data set at another place, and one that has changed since.
    renamed = checkpoint(tmp_path / "moved", replace(other_record, dataset="was/at/work"))
    assert "val_seed 5" in refused(setup, renamed)
    changed = checkpoint(tmp_path / "changed", replace(other_record, val_sha256="0"))
    assert "of this data set, and held out others" in refused(setup, changed)
    # A part of the data set, under its own name.
    train = load(data, "train")
    write_beir([train.with_claims(train.claims[:30]), load(data, "dev")], tmp_path / "part")
    part = checkpoint(tmp_path / "of part", record(tmp_path / "part", **OTHER))
    assert "was trained on" in refused(setup, part)
    # Mixed with another, which puts names before ids.
    sets = [str(data), str(tmp_path / "part")]
    prepare(PrepareConfig("mixed", tmp_path / "mixed", sets=sets))
    mixed_checkpoint = checkpoint(tmp_path / "of mixed", record(tmp_path / "mixed", **OTHER))
    assert "was trained on" in refused(setup, mixed_checkpoint)
    assert "was trained on" in refused((setup[0], tmp_path / "mixed"), part)
    # An export records it too, and so do a checkpoint's base and its source encoder.
    export = tmp_path / "export"
    export.mkdir()
    seed5 = Manifest.read(checkpoint(tmp_path / "seed5", other_record))
    seed5.write_export(export)
    assert "val_seed 5" in refused(setup, str(export))
    pairs = DataRecord("pairs", "train", 0.1, 13, val_sha256="0")
    tuned = checkpoint(tmp_path / "tuned", pairs, base=str(export))
    assert f"it was made from {export}, which was trained on" in refused(setup, tuned)
    settings = EncoderSettings("mean", max_length=24)
    source = SourceModel(str(tmp_path / "seed5"), None, {}, "", 32, settings)
    student = checkpoint(tmp_path / "student", record(data, **SAME), source_model=source)
    assert "seed5, which was trained on" in refused(setup, student)
    reranker = RerankerManifest(
        base=Base("hub/base", None, "0"), weights=Weights("full", "0"), rendering=Rendering(),
        reranker=RerankerSettings("cross_encoder"), depth=10, epoch=1, data=other_record,
    )  # fmt: skip
    (tmp_path / "reranker").mkdir()
    reranker.write(tmp_path / "reranker")
    assert "val_seed 5" in refused(setup, str(tmp_path / "reranker"))
    # The data of one are not here; the mixed set has claims twice, of which val has no half.
    expected = tuned, f"{tmp_path / 'mixed'}: val is without"
    assert all(any(text in message for text in expected) for message in caplog.messages)
    assert any(tuned in message for message in caplog.messages)
    caplog.clear()
    # A model that does not record its training claims gets a warning, in one line.
    record_file = export / "claim2source.json"
    record_file.write_text(json.dumps(json.loads(record_file.read_text()) | {"data": {}}))
    assert refused(setup, str(export)) == ""
    (warned,) = caplog.messages
    assert "model.name" in warned and str(export) in warned and "\n" not in warned
