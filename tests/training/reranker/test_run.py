"""Training of small real re-rankers: choice, report, loading, resuming, refusals."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from claim2source.core.errors import ConfigError, InputError, UserError
from claim2source.core.records import Dataset
from claim2source.core.report import Report
from claim2source.data.beir import write_beir
from claim2source.data.loading import load
from claim2source.data.split import carve_val
from claim2source.data.trec import write_trec_run
from claim2source.metrics.metrics import evaluate
from claim2source.models import Manifest, ModelConfig
from claim2source.models.manifest import RerankerManifest
from claim2source.search.bm25 import BM25
from claim2source.stages.cross_encoder import CrossEncoder
from claim2source.stages.learned import LearnedFusion, LearnedView
from claim2source.stages.pairs import Pair, Reranker
from claim2source.stages.similarities import Scorer, ViewConfig
from claim2source.stages.yes_no import YesNo
from claim2source.systems.read import read_stage, read_systems
from claim2source.systems.retrieval import Retrieval
from claim2source.systems.system import RunSettings, System, SystemRunner
from claim2source.training.fusion import gather, known_claims
from claim2source.training.reranker import finetune_reranker
from claim2source.training.reranker_data import first_system
from claim2source.training.run_folder import RunFile
from tests.refusals import refused
from tests.stages.test_learned import FITTED
from tests.training.reranker.small import small_config
from tests.training.small import losses_of, power_cut, same_weights


@pytest.fixture(scope="module")
def trained(tiny: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("trained") / "run"
    config = small_config(tiny, out, optimisation__epochs=3, rule="best")
    finetune_reranker(config)
    return out


def split_of_data(tiny: dict[str, Path], split: str) -> Dataset:
    """Load a split of the small data."""
    return load(str(tiny["data"]), split)


def pipeline(tiny: dict[str, Path], stage: Reranker, part: str) -> float:
    """Score the first stage, re-ranked by a stage, on val or dev."""
    split = "train" if part == "val" else part
    data = split_of_data(tiny, split)
    if part == "val":
        _, data = carve_val(data, 0.4, 13)
    index = BM25().index(data.sources)
    first = index.search(data.claims)
    on_cpu = stage.with_runtime(None, "cpu")
    ranked = on_cpu.apply(data.claims, data.sources, first.run)
    by_lang = []
    for lang in {claim.lang for claim in data.claims}:
        ids = [claim.id for claim in data.claims if claim.lang == lang]
        scores = evaluate(ranked.run, data.qrels, ["mrr@5"], ids)
        by_lang.append(scores["mrr@5"].mean())
    return float(np.mean(by_lang))


@pytest.mark.slow
def test_the_highest_score_of_the_whole_pipeline_is_chosen(
    trained: Path, tiny: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    report = Report.read(trained)
    history = RunFile.read(trained).history
    scores = [entry.score for entry in history]
    assert [entry.epoch for entry in history] == [0, 1, 2, 3]
    assert len(set(scores)) > 2  # of 4
    assert report.training is not None
    assert report.training.choice is not None
    best = report.training.chosen_epoch
    assert scores[best] == max(scores) > min(scores)
    assert report.training.choice.metric == "mrr@5"
    # Each is the checkpoint's, loaded by the ordinary stage.
    for number in (0, best):
        checkpoint = trained / "checkpoints" / f"epoch-{number}"
        stage = CrossEncoder(model=str(checkpoint), depth=10)
        expected = pytest.approx(scores[number])
        assert pipeline(tiny, stage, "val") == expected
        assert stage.trained is not None
        manifest = stage.trained[1]
        assert manifest.scores["val"]["macro"]["mrr@5"] == expected
    chosen = CrossEncoder(model=str(trained), depth=10)
    on_dev = pipeline(tiny, chosen, "dev")
    assert on_dev == pytest.approx(report.macro["mrr@5"])
    assert set(report.systems) == {"first stage", "step 0", "chosen"}
    assert report.tests
    for name in ("first stage", "step 0"):
        on_val = report.systems[name].val["val"]
        assert on_val["macro"]["mrr@5"] != scores[best]


def test_what_is_fitted_over_a_trained_re_ranker_is_fitted_on_its_val(
    trained: Path, tiny: dict[str, Path], tmp_path: Path
) -> None:
    """A learned fusion of the candidates that it has re-ranked, and a mix."""
    train = split_of_data(tiny, "train")
    dev = split_of_data(tiny, "dev")
    _, val = carve_val(train, 0.4, 13)
    views = {
        "bm25": ViewConfig(),
        "title": ViewConfig(part="title"),
    }
    plain = System("S", Retrieval(BM25()))
    stage = read_stage({"rerank": "cross_encoder", "model": str(trained)})
    staged = System("R", plain.first, (stage,))
    settings = RunSettings(str(tiny["data"]), depth=8)
    scorer = Scorer(train.sources)
    for system, claims in ((plain, train.claims), (staged, val.claims)):
        runner = SystemRunner(dev, settings)
        choosing = runner.choosing_claims(system)
        assert choosing.val.claims == claims
        known = known_claims(views, system, runner.held_out)
        assert known.val.claims == claims
    runner = SystemRunner(dev, settings)
    gathered = gather(views, staged, None, runner, scorer)
    assert gathered.data.fingerprint == val.fingerprint
    assert "val" in gathered.note

    # So is a system whose model has moved.
    gone = ViewConfig(score="cosine", model=ModelConfig("gone"))
    fusion = tmp_path / "fusion.json"
    view = LearnedView("v", gone, "", 1.0, 1.0)
    LearnedFusion((view,), FITTED).write(fusion)
    moved = {
        "rerank": "learned",
        "file": str(fusion),
        "models": {"v": str(trained)},
    }
    learned = System("L", plain.first, (read_stage(moved),))
    choosing = SystemRunner(dev, settings).choosing_claims(learned)
    assert choosing.val.claims == val.claims

    # If the data differ, claims that the training saw are left out.
    folder = tmp_path / "other"
    fewer = train.claims[:40]
    write_beir([train.with_claims(fewer), dev], folder)
    other = replace(settings, dataset=str(folder))
    runner = SystemRunner(dev, other)
    gathered = gather(views, staged, None, runner, scorer)
    held_out = {claim.id for claim in val.claims}
    mine = [claim.id for claim in fewer if claim.id in held_out]
    assert [claim.id for claim in gathered.data.claims] == mine
    assert "that training on other data saw" in gathered.note
    assert "its training" not in gathered.note
    choosing = SystemRunner(dev, other).choosing_claims(staged)
    assert choosing.note == gathered.note


def test_the_manifest_says_how_a_checkpoint_is_read(trained: Path) -> None:
    checkpoint = trained / "checkpoints" / "epoch-1"
    model = str(trained)
    manifest = RerankerManifest.read(checkpoint)
    assert manifest.reranker.kind == "cross_encoder"
    assert manifest.reranker.max_length == 48
    assert manifest.rendering.claims == "bilingual"
    assert manifest.depth == 10
    stage = CrossEncoder(model=model)
    assert stage.rendering == manifest.rendering
    assert stage.prompt_settings == (48, None)
    # A pair is cut at the length it was trained with.
    long = "masks " * 60
    features = stage.network.preprocess([(long, long)])
    assert features["input_ids"].shape[1] == 48
    with refused(ConfigError, "max_length", "32"):
        _ = CrossEncoder(model=model, max_length=32).prompt_settings
    with refused(ConfigError, "claims", "'original'"):
        _ = CrossEncoder(model=model, claims="original").rendering
    with refused(ConfigError, "rerank: cross_encoder"):
        _ = YesNo(model=model).trained
    with refused(InputError, "manifest.json: ", "{rerank: cross_encoder}"):
        Manifest.read(checkpoint)
    read = read_stage({"rerank": "cross_encoder", "model": model})
    assert read.stage == stage


def test_a_checkpoint_is_loaded_in_the_type_it_was_trained_in(
    trained: Path, tmp_path: Path
) -> None:
    """The stage's default is float32; a checkpoint that was trained in bfloat16 says so itself."""
    copy = tmp_path / "copy"
    shutil.copytree(trained / "checkpoints" / "epoch-0", copy)
    manifest = RerankerManifest.read(copy)
    half = replace(manifest.reranker, dtype="bfloat16")
    replace(manifest, reranker=half).write(copy)
    for dtype, expected in (("float32", "bfloat16"), ("float16", "float16")):
        stage = CrossEncoder(model=str(copy), dtype=dtype)
        _, identity, settings = stage.files
        assert settings.dtype == identity["dtype"] == expected
    stage = CrossEncoder(model=str(trained))
    _, _, settings = stage.files
    assert settings.dtype == "float32"


def test_a_first_stage_keeps_its_own_stages(tiny: dict[str, Path], tmp_path: Path) -> None:
    files = tmp_path / "systems.yaml"
    files.write_text(
        "sparse: {retrieve: {bm25: {k1: 0.7}}}\n"
        "staged: {retrieve: sparse, stages: [{rerank: max_sim, model: org/m, depth: 7}]}\n"
    )
    config = small_config(
        tiny,
        tmp_path,
        first__system="staged",
        first__files=f'["{files}"]',
    )
    system = first_system(config.first)
    assert system == read_systems([files])["staged"]
    assert len(system.stages) == 1


def test_weights_that_were_exchanged_are_refused(trained: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(trained / "checkpoints" / "epoch-1", copy)
    other_weights = trained / "checkpoints" / "epoch-2" / "model.safetensors"
    shutil.copy(other_weights, copy / "model.safetensors")
    with refused(InputError, copy / "model.safetensors", "sha256"):
        CrossEncoder(model=str(copy)).files  # noqa: B018  it checks the hashes


def test_one_table_has_first_stage_zero_shot_and_every_epoch(
    tiny: dict[str, Path], trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A finished run that is resumed prints its report again, of the same numbers."""
    assert not list(trained.glob("*state*"))
    capsys.readouterr()
    config = small_config(
        tiny,
        trained,
        optimisation__epochs=3,
        rule="best",
        resume=True,
    )
    report = finetune_reranker(config)
    output = capsys.readouterr().out
    assert report is not None
    assert report.training is not None
    parts = output.split("\n\n")
    (table,) = [part for part in parts if "zero-shot" in part]
    starts = ("first", "zero", "epoch ")
    lines = [line for line in table.splitlines() if line.startswith(starts)]
    names = []
    for line in lines:
        name, _, _ = line.partition("  ")
        names.append(name.replace(" (chosen)", ""))
    assert names == [
        "first stage: BM25",
        "zero-shot re-ranker",
        "epoch 1",
        "epoch 2",
        "epoch 3",
    ]
    of_epochs = zip(lines[1:], report.training.history, strict=True)
    for line, entry in of_epochs:
        score = entry.val["macro"]["mrr@5"]
        assert f"{score:.4f}" in line
        is_chosen = entry.epoch == report.training.chosen_epoch
        assert ("(chosen)" in line) is is_chosen
    assert report.tests
    assert report.tests[0].family in output


@pytest.mark.parametrize(
    ("settings", "facts"),
    [
        ({"choose_by": "mmr@5"}, "choose_by: 'mmr@5'|mrr@5"),
        ({"loss__kind": "margin_mse"}, "loss.scores: "),
        ({"model__labels": 2}, "loss.kind: |cross_entropy"),
        ({"loss__kind": "cross_entropy"}, "loss.kind: 'cross_entropy'"),
        ({"model__kind": "yes_no", "model__labels": 2}, "model.labels: 2 "),
        ({"model__dtype": "bfloat16"}, "model.dtype: 'bfloat16'"),
        ({"mined": "null"}, "mined: |train/mine.py"),
        ({"mined": "none.jsonl"}, "none.jsonl"),
        ({"first__checkpoint": "x"}, "first.checkpoint: 'x'"),
        ({"first__system": "BM52"}, "first.system: 'BM52'"),
        ({"model__max_length": 4096}, "model.max_length: 4096 |64"),
        ({"trainer": "{strategy: fsdp2}"}, "trainer.strategy"),
        (
            {"tuning": "lora", "model__labels": 2, "loss__kind": "cross_entropy"},
            "tuning: 'lora'| 2 logits",
        ),
        (
            {"model__kind": "yes_no", "model__instruction": "detailed"},
            "model.max_length: |28 claims",
        ),
    ],
)
def test_what_cannot_be_trained_names_the_key_and_leaves_no_folder(
    settings: dict[str, Any], facts: str, tiny: dict[str, Path], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    with refused(UserError, *facts.split("|")):
        finetune_reranker(small_config(tiny, run, **settings))
    assert not run.exists()


def test_a_tokenizer_without_yes_is_told_before_an_earlier_run_is_moved(
    tiny: dict[str, Path], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    config = small_config(tiny, run, optimisation__epochs=1)
    finetune_reranker(config)
    model = shutil.copytree(tiny["yes_no"], tmp_path / "model")
    for name in ("tokenizer.json", "vocab.txt"):
        file = model / name
        if file.is_file():
            text = file.read_text(encoding="utf-8")
            text = text.replace('"yes"', '"yesyes"')
            text = text.replace("\nyes\n", "\nyesyes\n")
            file.write_text(text, encoding="utf-8")
    extra = {
        "model__kind": "yes_no",
        "model__name": model,
        "overwrite": True,
    }
    with refused(UserError, "'yes'"):
        finetune_reranker(small_config(tiny, run, **extra))
    runs = [path.name for path in tmp_path.iterdir() if "run" in path.name]
    assert runs == ["run"]
    assert (run / "report.json").is_file()


@pytest.mark.parametrize(
    ("options", "phrase"),
    [
        ({}, "epoch 1"),
        # Dropout would make the scores differ in training.
        (
            {
                "optimisation__dropout": 0,
                "optimisation__batch_size": 1,
                "data__repeat": 5,
            },
            "10 steps",
        ),
    ],
)
def test_a_real_collapse_stops_the_run_and_says_so(
    options: dict[str, Any], phrase: str, tiny: dict[str, Path], tmp_path: Path
) -> None:
    """Diverged weights give every pair the same score, which val or the steps detect."""
    absurd = {
        "optimisation__learning_rate": 10,
        "optimisation__warmup_ratio": 0,
        "optimisation__epochs": 1,
        **options,
    }
    run = tmp_path / "run"
    with refused(UserError, "optimisation.learning_rate", phrase) as stopped:
        finetune_reranker(small_config(tiny, run, **absurd))
    assert "\n" not in str(stopped.value)
    assert not (run / "report.json").exists()


@pytest.mark.slow
def test_a_first_stage_of_a_run_and_a_teacher(tiny: dict[str, Path], tmp_path: Path) -> None:
    """BM25's own ranking as a file is re-ranked alike; its scores teach by margins."""
    run = tmp_path / "bm25.trec"
    systems = tmp_path / "systems.yaml"
    train = split_of_data(tiny, "train")
    dev = split_of_data(tiny, "dev")
    claims = [*train.claims, *dev.claims]
    ranked = BM25().index(train.sources).search(claims, 20)
    write_trec_run(ranked.run, run)
    systems.write_text(f"R: {{retrieve: {{run: {run}}}}}\n")
    teacher = Path(shutil.copy(run, tmp_path / "teacher.trec"))
    extra: dict[str, Any] = {"optimisation__epochs": 1}
    taught_folder = tmp_path / "taught"
    plain_folder = tmp_path / "plain"
    taught = small_config(
        tiny,
        taught_folder,
        first__system="R",
        first__files=f'["{systems}"]',
        loss__kind="margin_mse",
        loss__scores=teacher,
        **extra,
    )
    finetune_reranker(taught)
    plain = small_config(tiny, plain_folder, **extra)
    finetune_reranker(plain)
    taught_history = RunFile.read(taught_folder).history
    plain_history = RunFile.read(plain_folder).history
    assert taught_history[0].score == plain_history[0].score
    losses = losses_of(taught_folder)
    assert losses != losses_of(plain_folder)
    assert all(loss > 0 for loss in losses)
    # A run does not resume with another ranking of its first stage.
    finetune_reranker(replace(taught, resume=True))
    lines = run.read_text().splitlines()
    first_of_dev = next(line for line in lines if line.startswith("dev-"))
    lines.remove(first_of_dev)
    run.write_text("\n".join(lines) + "\n")
    with refused(UserError, "first stage", "--overwrite"):
        finetune_reranker(replace(taught, resume=True))


KINDS: dict[str, dict[str, Any]] = {
    "lora": {
        "tuning": "lora",
        "loss__kind": "bce",
    },
    "two labels": {
        "model__labels": 2,
        "loss__kind": "cross_entropy",
    },
    "yes_no": {
        "model__kind": "yes_no",
        "tuning": "lora",
        "model__template": "escaped",
    },
}


def by_its_libraries(kind: str, folder: Path, stage: Any, pairs: list[Pair]) -> np.ndarray:
    """Score pairs with a checkpoint loaded by sentence-transformers, peft or transformers."""
    from peft import PeftModel
    from sentence_transformers import CrossEncoder as Theirs
    from transformers import AutoModelForCausalLM

    base = RerankerManifest.read(folder).base.name
    if kind == "yes_no":
        model = AutoModelForCausalLM.from_pretrained(base)
        causal: Any = PeftModel.from_pretrained(model, str(folder)).eval()
        yes, no = stage.answers
        differences = []
        for ids in stage.tokens(pairs):
            tokens = torch.tensor([ids])
            with torch.inference_mode():
                logits = causal(tokens).logits[0, -1]
            difference = logits[yes] - logits[no]
            differences.append(float(difference))
        return np.array(differences)
    raw = torch.nn.Identity()
    path = base if kind == "lora" else folder
    theirs = Theirs(
        str(path),
        device="cpu",
        max_length=48,
        activation_fn=raw,
    )
    if kind == "lora":
        PeftModel.from_pretrained(theirs[0].model, str(folder)).eval()
    texts = [tuple(pair) for pair in pairs]
    given = theirs.predict(texts, convert_to_tensor=True)
    if kind == "lora":
        return given.numpy()
    difference = given[:, 1] - given[:, 0]
    return difference.numpy()


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(KINDS))
def test_each_kind_is_read_by_its_stage_and_by_its_library(
    kind: str, tiny: dict[str, Path], tmp_path: Path
) -> None:
    out = tmp_path / "run"
    extra = {"optimisation__epochs": 1, **KINDS[kind]}
    config = small_config(tiny, out, **extra)
    finetune_reranker(config)
    name = "yes_no" if kind == "yes_no" else "cross_encoder"
    data = split_of_data(tiny, "dev")
    read = []
    history = RunFile.read(out).history
    for number, entry in enumerate(history):
        folder = out / "checkpoints" / f"epoch-{number}"
        settings = {"rerank": name, "model": str(folder), "depth": 10}
        stage = read_stage(settings).stage
        assert isinstance(stage, Reranker)
        stage = stage.with_runtime(None, "cpu")
        # In training the weights that are there were scored, here those of the folder.
        on_val = pipeline(tiny, stage, "val")
        assert on_val == pytest.approx(entry.score)
        claims = stage.rendering.claim_texts(data.claims[:2])
        sources = stage.rendering.source_texts(data.sources[:5])
        pairs = [Pair(claim, source) for claim in claims for source in sources]
        scored = stage.pair_scores(pairs)
        read.append(scored.scores)
    theirs = by_its_libraries(kind, folder, stage, pairs)
    assert np.allclose(read[-1], theirs, atol=1e-4)
    moved = np.abs(read[1] - read[0])
    assert moved.max() > 1e-3
    assert np.ptp(theirs) > 1e-4


@pytest.mark.slow
def test_chunks_do_not_change_the_training(
    tiny: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does a device with memory for fewer pairs than requested."""
    extra: dict[str, Any] = {"optimisation__dropout": 0}
    for name, size in (("whole", "null"), ("chunks", 7)):
        config = small_config(
            tiny,
            tmp_path / name,
            optimisation__chunk_size=size,
            **extra,
        )
        finetune_reranker(config)
    logits = CrossEncoder.logits

    def of_few(self: Any, features: Any) -> torch.Tensor:
        if len(features["input_ids"]) > 9:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return logits(self, features)

    monkeypatch.setattr(CrossEncoder, "logits", of_few)
    config = small_config(tiny, tmp_path / "small", **extra)
    finetune_reranker(config)
    full = losses_of(tmp_path / "whole")
    chunks = losses_of(tmp_path / "chunks")
    small = losses_of(tmp_path / "small")
    assert chunks == pytest.approx(full, rel=1e-3)
    assert small == pytest.approx(full, rel=1e-3)
    different = {round(loss, 4) for loss in full}
    assert len(different) == len(full)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "extra"),
    [
        ("cross_encoder", {"optimisation__chunk_size": 7}),
        ("cross_encoder", {"tuning": "lora", "loss__kind": "lambda"}),
        ("yes_no", {"tuning": "lora", "loss__kind": "bce"}),
    ],
)
def test_a_killed_run_goes_on_to_the_same_weights(
    kind: str, extra: dict[str, Any], tiny: dict[str, Path], tmp_path: Path
) -> None:
    """In the second epoch, between two saves; dropout is on, and negatives change with epochs."""
    extra = {"model__kind": kind, **extra}
    whole = tmp_path / "whole"
    early = tmp_path / "cut"
    finetune_reranker(small_config(tiny, whole, **extra))
    with power_cut(lambda state: state.batches_done == 6):
        finetune_reranker(small_config(tiny, early, **extra))
    assert not (early / "report.json").exists()
    finetune_reranker(small_config(tiny, early, resume=True, **extra))
    losses = losses_of(early)
    assert losses_of(whole) == losses
    assert len(losses) == 8
    same_weights(whole, early)
    report_of_whole = Report.read(whole)
    report_of_early = Report.read(early)
    assert report_of_whole.macro == report_of_early.macro
    # Other inputs would be another training run.
    reseeded = {"resume": True, "optimisation__seed": 1, **extra}
    with refused(ConfigError, "optimisation.seed: 1 "):
        finetune_reranker(small_config(tiny, early, **reseeded))
