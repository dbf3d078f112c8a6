"""Trainings of small real re-rankers: what is chosen, reported, read again, resumed, given up."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from claim2source.core.errors import ConfigError, InputError, UserError
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
from tests.stages.test_learned import FITTED
from tests.training.reranker.small import small_config
from tests.training.small import losses_of, power_cut, same_weights


@pytest.fixture(scope="module")
def trained(tiny: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("trained") / "run"
    finetune_reranker(small_config(tiny, out, optimisation__epochs=3, rule="best"))
    return out


def pipeline(tiny: dict[str, Path], stage: Reranker, part: str) -> float:
    """Score the first stage, re-ranked by a stage, on val or dev."""
    data = load(str(tiny["data"]), "train" if part == "val" else part)
    if part == "val":
        _, data = carve_val(data, 0.4, 13)
    first = BM25().index(data.sources).search(data.claims)
    ranked = stage.with_runtime(None, "cpu").apply(data.claims, data.sources, first.run)
    by_lang = []
    for lang in {claim.lang for claim in data.claims}:
        ids = [claim.id for claim in data.claims if claim.lang == lang]
        by_lang.append(evaluate(ranked.run, data.qrels, ["mrr@5"], ids)["mrr@5"].mean())
    return float(np.mean(by_lang))


def test_the_highest_score_of_the_whole_pipeline_is_chosen(
    trained: Path, tiny: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    report, history = Report.read(trained), RunFile.read(trained).history
    scores = [entry.score for entry in history]
    assert [entry.epoch for entry in history] == [0, 1, 2, 3] and len(set(scores)) > 2  # of 4
    assert report.training is not None and report.training.choice is not None
    best = report.training.chosen_epoch
    assert scores[best] == max(scores) > min(scores)
    assert report.training.choice.metric == "mrr@5"
    # Each is that of the checkpoint, read by the stage that anyone uses.
    for number in (0, best):
        stage = CrossEncoder(model=str(trained / "checkpoints" / f"epoch-{number}"), depth=10)
        assert pipeline(tiny, stage, "val") == pytest.approx(scores[number])
        assert stage.trained is not None
        assert stage.trained[1].scores["val"]["macro"]["mrr@5"] == pytest.approx(scores[number])
    chosen = CrossEncoder(model=str(trained), depth=10)
    assert pipeline(tiny, chosen, "dev") == pytest.approx(report.macro["mrr@5"])
    assert set(report.systems) == {"first stage", "step 0", "chosen"} and report.tests
    for name in ("first stage", "step 0"):
        assert report.systems[name].val["val"]["macro"]["mrr@5"] != scores[best]


def test_what_is_fitted_over_a_trained_re_ranker_is_fitted_on_its_val(
    trained: Path, tiny: dict[str, Path], tmp_path: Path
) -> None:
    """A learned fusion of the candidates that it has re-ranked, and a mix."""
    train, dev = load(str(tiny["data"]), "train"), load(str(tiny["data"]), "dev")
    _, val = carve_val(train, 0.4, 13)
    views = {"bm25": ViewConfig(), "title": ViewConfig(part="title")}
    plain = System("S", Retrieval(BM25()))
    staged = System(
        "R", plain.first, (read_stage({"rerank": "cross_encoder", "model": str(trained)}),)
    )
    settings, scorer = RunSettings(str(tiny["data"]), depth=8), Scorer(train.sources)
    for system, claims in ((plain, train.claims), (staged, val.claims)):
        runner = SystemRunner(dev, settings)
        assert runner.choosing_claims(system).val.claims == claims
        assert known_claims(views, system, runner.held_out).val.claims == claims
    gathered = gather(views, staged, None, SystemRunner(dev, settings), scorer)
    assert gathered.data.fingerprint == val.fingerprint and "val" in gathered.note
    # So is what has a model that lies elsewhere now.
    gone = ViewConfig(score="cosine", model=ModelConfig("gone"))
    fusion = tmp_path / "fusion.json"
    LearnedFusion((LearnedView("v", gone, "", 1.0, 1.0),), FITTED).write(fusion)
    moved = {"rerank": "learned", "file": str(fusion), "models": {"v": str(trained)}}
    learned = System("L", plain.first, (read_stage(moved),))
    assert SystemRunner(dev, settings).choosing_claims(learned).val.claims == val.claims
    # Where the data differ, what training on the others saw is left out.
    write_beir([train.with_claims(train.claims[:40]), dev], tmp_path / "other")
    other = replace(settings, dataset=str(tmp_path / "other"))
    gathered = gather(views, staged, None, SystemRunner(dev, other), scorer)
    held_out = {claim.id for claim in val.claims}
    mine = [claim.id for claim in train.claims[:40] if claim.id in held_out]
    assert [claim.id for claim in gathered.data.claims] == mine
    assert (
        "that training on other data saw" in gathered.note and "its training" not in gathered.note
    )
    assert SystemRunner(dev, other).choosing_claims(staged).note == gathered.note


def test_the_manifest_says_how_a_checkpoint_is_read(trained: Path) -> None:
    manifest = RerankerManifest.read(trained / "checkpoints" / "epoch-1")
    assert manifest.reranker.kind == "cross_encoder" and manifest.reranker.max_length == 48
    assert manifest.rendering.claims == "bilingual" and manifest.depth == 10
    stage = CrossEncoder(model=str(trained))
    assert stage.rendering == manifest.rendering and stage.prompt_settings == (48, None)
    # A pair is cut at the length it was trained with.
    long = "masks " * 60
    assert stage.network.preprocess([(long, long)])["input_ids"].shape[1] == 48
    with pytest.raises(ConfigError, match="max_length"):
        _ = CrossEncoder(model=str(trained), max_length=32).prompt_settings
    with pytest.raises(ConfigError, match="claims"):
        _ = CrossEncoder(model=str(trained), claims="original").rendering
    with pytest.raises(ConfigError, match="rerank: cross_encoder"):
        _ = YesNo(model=str(trained)).trained
    with pytest.raises(InputError, match="re-ranker's checkpoint"):
        Manifest.read(trained / "checkpoints" / "epoch-1")
    stage_read = read_stage({"rerank": "cross_encoder", "model": str(trained)}).stage
    assert stage_read == stage


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
        _, identity, settings = CrossEncoder(model=str(copy), dtype=dtype).files
        assert settings.dtype == identity["dtype"] == expected
    _, _, settings = CrossEncoder(model=str(trained)).files
    assert settings.dtype == "float32"


def test_a_first_stage_keeps_its_own_stages(tiny: dict[str, Path], tmp_path: Path) -> None:
    files = tmp_path / "systems.yaml"
    files.write_text(
        "sparse: {retrieve: {bm25: {k1: 0.7}}}\n"
        "staged: {retrieve: sparse, stages: [{rerank: max_sim, model: org/m, depth: 7}]}\n"
    )
    config = small_config(tiny, tmp_path, first__system="staged", first__files=f'["{files}"]')
    system = first_system(config.first)
    assert system == read_systems([files])["staged"] and len(system.stages) == 1


def test_weights_that_were_exchanged_are_refused(trained: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(trained / "checkpoints" / "epoch-1", copy)
    other_weights = trained / "checkpoints" / "epoch-2" / "model.safetensors"
    shutil.copy(other_weights, copy / "model.safetensors")
    with pytest.raises(InputError, match="sha256"):
        CrossEncoder(model=str(copy)).files  # noqa: B018  it checks the hashes


def test_one_table_has_first_stage_zero_shot_and_every_epoch(
    tiny: dict[str, Path], trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A finished run that is resumed prints its report again, of the same numbers."""
    assert not list(trained.glob("*state*"))
    capsys.readouterr()
    report = finetune_reranker(
        small_config(tiny, trained, optimisation__epochs=3, rule="best", resume=True)
    )
    output = capsys.readouterr().out
    assert report is not None and report.training is not None
    (table,) = [part for part in output.split("\n\n") if "zero-shot" in part]
    lines = [line for line in table.splitlines() if line.startswith(("first", "zero", "epoch "))]
    names = ["first stage: BM25", "zero-shot re-ranker", "epoch 1", "epoch 2", "epoch 3"]
    assert [line.partition("  ")[0].replace(" (chosen)", "") for line in lines] == names
    for line, entry in zip(lines[1:], report.training.history, strict=True):
        assert f"{entry.val['macro']['mrr@5']:.4f}" in line
        assert ("(chosen)" in line) is (entry.epoch == report.training.chosen_epoch)
    assert report.tests and report.tests[0].family in output


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"choose_by": "mmr@5"}, r"choose_by: .*mmr@5.*mrr@5"),
        ({"loss__kind": "margin_mse"}, "loss.scores"),
        ({"model__labels": 2}, "loss.kind.*cross_entropy"),
        ({"loss__kind": "cross_entropy"}, "loss.kind"),
        ({"model__kind": "yes_no", "model__labels": 2}, "model.labels"),
        ({"model__dtype": "bfloat16"}, "model.dtype"),
        ({"mined": "null"}, "mined: .*train/mine.py"),
        ({"mined": "none.jsonl"}, "none.jsonl"),
        ({"first__checkpoint": "x"}, "first.checkpoint"),
        ({"first__system": "BM52"}, "first.system.*BM52"),
        ({"model__max_length": 4096}, "model.max_length.*64"),
        ({"trainer": "{strategy: fsdp2}"}, "trainer.strategy"),
        (
            {"tuning": "lora", "model__labels": 2, "loss__kind": "cross_entropy"},
            "tuning: .*lora.*no head of 2",
        ),
        ({"model__kind": "yes_no", "model__instruction": "detailed"}, "28 claims .* no room"),
    ],
)
def test_what_cannot_be_trained_names_the_key_and_leaves_no_folder(
    settings: dict[str, Any], message: str, tiny: dict[str, Path], tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=message):
        finetune_reranker(small_config(tiny, tmp_path / "run", **settings))
    assert not (tmp_path / "run").exists()


def test_a_tokenizer_without_yes_is_told_before_an_earlier_run_is_moved(
    tiny: dict[str, Path], tmp_path: Path
) -> None:
    finetune_reranker(small_config(tiny, tmp_path / "run", optimisation__epochs=1))
    model = shutil.copytree(tiny["yes_no"], tmp_path / "model")
    for file in ("tokenizer.json", "vocab.txt"):
        if (model / file).is_file():
            text = (model / file).read_text(encoding="utf-8")
            text = text.replace('"yes"', '"yesyes"').replace("\nyes\n", "\nyesyes\n")
            (model / file).write_text(text, encoding="utf-8")
    extra = {"model__kind": "yes_no", "model__name": model, "overwrite": True}
    with pytest.raises(UserError, match="tokenizer has the token 'yes'"):
        finetune_reranker(small_config(tiny, tmp_path / "run", **extra))
    assert [path.name for path in tmp_path.iterdir() if "run" in path.name] == ["run"]
    assert (tmp_path / "run" / "report.json").is_file()


@pytest.mark.parametrize(
    ("options", "phrase"),
    [
        ({}, "on val, after epoch 1"),
        # Dropout would make the scores differ in training.
        (
            {"optimisation__dropout": 0, "optimisation__batch_size": 1, "data__repeat": 5},
            "10 steps in a row, to step",
        ),
    ],
)
def test_a_real_collapse_stops_the_run_and_says_so(
    options: dict[str, Any], phrase: str, tiny: dict[str, Path], tmp_path: Path
) -> None:
    """Weights that are thrown far off give every pair the same score: val tells, or the steps."""
    absurd = {"optimisation__learning_rate": 10, "optimisation__warmup_ratio": 0}
    absurd |= {"optimisation__epochs": 1, **options}
    with pytest.raises(UserError, match="has collapsed.*same score.*learning_rate") as stopped:
        finetune_reranker(small_config(tiny, tmp_path / "run", **absurd))
    assert phrase in str(stopped.value) and "\n" not in str(stopped.value)
    assert not (tmp_path / "run" / "report.json").exists()


@pytest.mark.slow
def test_a_first_stage_of_a_run_and_a_teacher(tiny: dict[str, Path], tmp_path: Path) -> None:
    """BM25's own ranking as a file is re-ranked alike; its scores teach by margins."""
    run, systems = tmp_path / "bm25.trec", tmp_path / "systems.yaml"
    splits = [load(str(tiny["data"]), split) for split in ("train", "dev")]
    claims = [claim for data in splits for claim in data.claims]
    write_trec_run(BM25().index(splits[0].sources).search(claims, 20).run, run)
    systems.write_text(f"R: {{retrieve: {{run: {run}}}}}\n")
    teacher = Path(shutil.copy(run, tmp_path / "teacher.trec"))
    extra: dict[str, Any] = {"optimisation__epochs": 1}
    taught = small_config(
        tiny, tmp_path / "taught", first__system="R", first__files=f'["{systems}"]',
        loss__kind="margin_mse", loss__scores=teacher, **extra,
    )  # fmt: skip
    finetune_reranker(taught)
    finetune_reranker(small_config(tiny, tmp_path / "plain", **extra))
    scores = [RunFile.read(tmp_path / name).history[0].score for name in ("taught", "plain")]
    assert scores[0] == scores[1]
    losses = [losses_of(tmp_path / name) for name in ("taught", "plain")]
    assert losses[0] != losses[1] and all(loss > 0 for loss in losses[0])
    # A run does not go on over another ranking of its first stage.
    finetune_reranker(replace(taught, resume=True))
    lines = run.read_text().splitlines()
    lines.remove(next(line for line in lines if line.startswith("dev-")))
    run.write_text("\n".join(lines) + "\n")
    with pytest.raises(UserError, match="first stage is not the one"):
        finetune_reranker(replace(taught, resume=True))


KINDS: dict[str, dict[str, Any]] = {
    "lora": {"tuning": "lora", "loss__kind": "bce"},
    "two labels": {"model__labels": 2, "loss__kind": "cross_entropy"},
    "yes_no": {"model__kind": "yes_no", "tuning": "lora", "model__template": "escaped"},
}


def by_its_libraries(kind: str, folder: Path, stage: Any, pairs: list[Pair]) -> np.ndarray:
    """Score pairs by what sentence-transformers, peft or transformers make of a checkpoint."""
    from peft import PeftModel
    from sentence_transformers import CrossEncoder as Theirs
    from transformers import AutoModelForCausalLM

    base = RerankerManifest.read(folder).base.name
    if kind == "yes_no":
        causal: Any = PeftModel.from_pretrained(
            AutoModelForCausalLM.from_pretrained(base), str(folder)
        ).eval()
        yes, no = stage.answers
        differences = []
        for ids in stage.tokens(pairs):
            with torch.inference_mode():
                logits = causal(torch.tensor([ids])).logits[0, -1]
            differences.append(float(logits[yes] - logits[no]))
        return np.array(differences)
    raw = torch.nn.Identity()
    path = base if kind == "lora" else folder
    theirs = Theirs(str(path), device="cpu", max_length=48, activation_fn=raw)
    if kind == "lora":
        PeftModel.from_pretrained(theirs[0].model, str(folder)).eval()
    given = theirs.predict([tuple(pair) for pair in pairs], convert_to_tensor=True)
    return (given if kind == "lora" else given[:, 1] - given[:, 0]).numpy()


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(KINDS))
def test_each_kind_is_read_by_its_stage_and_by_its_library(
    kind: str, tiny: dict[str, Path], tmp_path: Path
) -> None:
    out, extra = tmp_path / "run", {"optimisation__epochs": 1, **KINDS[kind]}
    finetune_reranker(small_config(tiny, out, **extra))
    name = "yes_no" if kind == "yes_no" else "cross_encoder"
    data = load(str(tiny["data"]), "dev")
    read = []
    for number, entry in enumerate(RunFile.read(out).history):
        folder = out / "checkpoints" / f"epoch-{number}"
        stage = read_stage({"rerank": name, "model": str(folder), "depth": 10}).stage
        assert isinstance(stage, Reranker)
        stage = stage.with_runtime(None, "cpu")
        # In training the weights that are there were scored, here those of the folder.
        assert pipeline(tiny, stage, "val") == pytest.approx(entry.score)
        claims = stage.rendering.claim_texts(data.claims[:2])
        sources = stage.rendering.source_texts(data.sources[:5])
        pairs = [Pair(claim, source) for claim in claims for source in sources]
        read.append(stage.pair_scores(pairs).scores)
    theirs = by_its_libraries(kind, folder, stage, pairs)
    assert np.allclose(read[-1], theirs, atol=1e-4) and np.abs(read[1] - read[0]).max() > 1e-3
    assert np.ptp(theirs) > 1e-4


@pytest.mark.slow
def test_chunks_do_not_change_the_training(
    tiny: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does a device with memory for fewer pairs than were wanted at once."""
    extra: dict[str, Any] = {"optimisation__dropout": 0}
    for name, size in (("whole", "null"), ("chunks", 7)):
        finetune_reranker(
            small_config(tiny, tmp_path / name, optimisation__chunk_size=size, **extra)
        )
    logits = CrossEncoder.logits

    def of_few(self: Any, features: Any) -> torch.Tensor:
        if len(features["input_ids"]) > 9:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return logits(self, features)

    monkeypatch.setattr(CrossEncoder, "logits", of_few)
    finetune_reranker(small_config(tiny, tmp_path / "small", **extra))
    full, chunks, small = (losses_of(tmp_path / name) for name in ("whole", "chunks", "small"))
    assert chunks == pytest.approx(full, rel=1e-3)
    assert small == pytest.approx(full, rel=1e-3)
    assert len({round(loss, 4) for loss in full}) == len(full)


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
    finetune_reranker(small_config(tiny, tmp_path / "whole", **extra))
    early = tmp_path / "cut"
    with power_cut(lambda state: state.batches_done == 6):
        finetune_reranker(small_config(tiny, early, **extra))
    assert not (early / "report.json").exists()
    finetune_reranker(small_config(tiny, early, resume=True, **extra))
    assert losses_of(tmp_path / "whole") == losses_of(early) and len(losses_of(early)) == 8
    same_weights(tmp_path / "whole", early)
    reports = [Report.read(tmp_path / run) for run in ("whole", "cut")]
    assert reports[0].macro == reports[1].macro
    # Other inputs are another training.
    with pytest.raises(ConfigError, match="optimisation.seed"):
        finetune_reranker(small_config(tiny, early, resume=True, optimisation__seed=1, **extra))
