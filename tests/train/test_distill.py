"""train/distill.py: each kind of student, and the table that sets it beside its teacher."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from claim2source.core.config import read_config
from claim2source.core.errors import ConfigError, UserError
from claim2source.core.report import Report
from claim2source.datasets import carve_val, load
from claim2source.io.store import Store
from claim2source.io.trec import read_run
from claim2source.models import Base, EncoderSettings, Manifest, ModelConfig, Weights, resolve
from claim2source.models.manifest import DataRecord
from claim2source.pipeline.results import RunSettings
from claim2source.pipeline.runner import SystemRunner
from claim2source.pipeline.speed import Answering, measure
from claim2source.pipeline.systems import SystemConfig
from claim2source.rerank.learned import LearnedFusion, LearnedView
from claim2source.rerank.similarities import ViewConfig
from claim2source.retrieve import BM25Config, Dense
from claim2source.text import Rendering
from claim2source.training.distill import write_teachers_run
from claim2source.training.distill_config import DistillConfig
from claim2source.training.reranker.first_stage import system_hash
from tests.rerank.test_learned import FITTED
from tests.training.reranker.small import arguments as reranker_arguments
from tests.training.reranker.small import small_rerankers
from tests.training.small import arguments, small_setup
from tests.training.test_source_teacher import save_teacher
from train.distill import main


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return small_setup(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_teacher(tmp_path_factory.mktemp("teacher") / "teacher")


def words(setup: tuple[Path, Path], teacher: Path, out: Path, **more: Any) -> list[str]:
    settings: dict[str, Any] = {
        "teacher.name": teacher,
        "teacher.pooling": "mean",
        "teacher.max_length": 32,
        "optimisation.epochs": 1,
        "store": out.parent / "store",
        "measured": 4,
        "repeats": 50,
        **more,
    }
    return arguments(*setup, out, **settings)


def claims_words(setup: tuple[Path, Path], teacher: Path, out: Path, **more: Any) -> list[str]:
    settings = {"optimisation__train": "query_only", "losses__alignment__weight": 1.0}
    return words(setup, teacher, out, **settings, **more)


@pytest.mark.slow
def test_a_student_of_claims_stands_beside_its_teacher(
    setup: tuple[Path, Path],
    teacher: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "student"
    files = tmp_path / "systems.yaml"
    files.write_text(
        "sparse: {bm25: {k1: 1.2}}\n"
        "again: {bm25: {k1: 1.2}, stages: [{rerank: cosine, depth: 5}]}\n"
        "chosen: {bm25: {}, tune: true}\n"
        "gone: {unsupported: no weights here, bm25: {}}\n"
    )
    beside = '{"BM25": "sparse", "cosine": "again", "tuned": "chosen", "gone": "gone"}'
    main(claims_words(setup, teacher, out, beside=beside, files=f"[{files}]"))
    said = capsys.readouterr().out
    report = Report.read(out / "comparison")
    assert list(report.systems) == ["teacher", "student", "BM25", "cosine", "tuned"]
    # What cannot run, or be timed, is said, and the others stand all the same.
    assert [(one.system, one.reason) for one in report.not_run] == [("gone", "no weights here")]
    assert "gone: not run; no weights here" in said and "tuned: not timed; " in said
    stages, tuned = report.systems["cosine"].speed, report.systems["tuned"].speed
    assert tuned is None and stages is not None and stages.weights_bytes == 0
    own, whole = report.systems["student"], report.systems["teacher"]
    assert own.macro == Report.read(out).systems["chosen"].macro
    share = own.macro["mrr@5"] / whole.macro["mrr@5"]
    assert f"The student has {share:.1%} of the teacher's mrr@5, at " in said
    assert own.speed is not None and whole.speed is not None
    assert own.speed.claims == 4 and own.speed.milliseconds > 0
    # Of the student's own weights, 4 bytes each; both search the teacher's vectors.
    assert own.cost is not None and own.speed.weights_bytes == 4 * (own.cost.parameters or 0)
    assert own.speed.weights_bytes < whole.speed.weights_bytes
    assert own.speed.vectors_bytes == whole.speed.vectors_bytes == 4 * 48 * 36
    times = whole.speed.batch_milliseconds / own.speed.batch_milliseconds
    assert f"at {times:.1f} times its claims a second" in said
    (tests,) = [test for test in report.tests if test.average == "macro"]
    pairs = [(one.system, one.baseline) for one in tests.comparisons]
    assert pairs == [(name, "teacher") for name in ("student", "BM25", "cosine", "tuned")]
    for language in ("en", "de"):
        run = read_run(out / "comparison" / "runs" / "student" / f"{language}.trec").run
        assert len(run.claim_ids) == 6


@pytest.mark.slow
def test_the_teacher_ranks_what_a_retriever_learns_from(
    setup: tuple[Path, Path], teacher: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, scores = tmp_path / "student", tmp_path / "scores"
    more = {"weight": 1.0, "scores": scores, "candidates": "true", "temperature": "null"}
    given = words(
        setup,
        teacher,
        out,
        student="retriever",
        measured=0,
        **{f"losses__distillation__{key}": value for key, value in more.items()},
    )
    main(given)
    said = capsys.readouterr().out
    train = load(setup[1], "train")
    encoder = resolve(ModelConfig(str(teacher), pooling="mean", max_length=32)).encoder
    dense = Dense(encoder, rendering=Rendering("bilingual", "metadata")).index(train.sources)
    expected = dense.search(train.claims).run
    for language in ("en", "de"):
        run = read_run(scores / f"{language}.trec").run
        for claim in run.claim_ids:
            assert run.scored(claim) == pytest.approx(expected.scored(claim), abs=1e-5)
    assert "the teacher scores 40 of 40 training claims" in said
    # Nothing is timed: no such columns.
    assert "CPU ms" not in said
    # What lies there is taken, and the finished student is set beside its teacher again.
    (scores / "en.trec").touch()
    before = (scores / "en.trec").read_bytes()
    main([*given, "--resume"])
    assert (scores / "en.trec").read_bytes() == before
    assert "The student has" in capsys.readouterr().out


@pytest.mark.slow
def test_static_vectors_of_a_teacher_are_a_model_like_others(
    setup: tuple[Path, Path], teacher: Path, tmp_path: Path
) -> None:
    model2vec = pytest.importorskip("model2vec")
    out = tmp_path / "static"
    given = words(setup, teacher, out, student="static", static__dimensions=16, measured=0)
    main(given)
    report = Report.read(out / "comparison")
    assert report.systems["student"].cost is not None
    vectors, _ = resolve(out).encoder.encode(["masks and tea"], "claim")
    theirs = model2vec.StaticModel.from_pretrained(out).encode(["masks and tea"])
    assert vectors == pytest.approx(theirs, abs=1e-5) and vectors.shape == (1, 16)
    # Its claims are read as the teacher's, without being told.
    assert report.systems["student"].claims == "bilingual"
    for file in out.glob("*.json"):
        assert str(tmp_path) not in file.read_text() and str(teacher) not in file.read_text()
    with pytest.raises(UserError, match="--overwrite"):
        main(given)
    made = (out / "model.safetensors").stat().st_mtime_ns
    main([*given, "--resume"])
    assert (out / "model.safetensors").stat().st_mtime_ns == made
    with pytest.raises(ConfigError, match=r"static\.dimensions.*at most 48"):
        wide = words(setup, teacher, tmp_path / "wide", student="static", static__dimensions=64)
        main(wide)


def taught(setup: tuple[Path, Path], teacher: str, out: Path, **more: Any) -> DistillConfig:
    """A retriever that learns the run of a teacher, which comes to lie at `scores` beside it."""
    scores = {"losses.distillation.weight": 1, "losses.distillation.scores": out.parent / "scores"}
    plain = ("teacher.pooling", "teacher.max_length")
    given = words(setup, Path(teacher), out, student="retriever", **scores | more)
    given = [word for word in given if word.lstrip("-").partition("=")[0] not in plain]
    return read_config(DistillConfig, given, program="t", description="t")


def test_a_student_does_not_learn_another_teachers_run(
    setup: tuple[Path, Path], tmp_path: Path
) -> None:
    """A run that was written here says whose it is; a user's own is taken as it is."""
    systems = {
        "A": SystemConfig(bm25=BM25Config(k1=0.5)),
        "B": SystemConfig(bm25=BM25Config(k1=2.5)),
        "same": SystemConfig(bm25=BM25Config(k1=0.5)),
    }
    dev, scores, out = load(setup[1], "dev"), tmp_path / "scores", tmp_path / "out"
    write_teachers_run(taught(setup, "A", out), systems, "A", dev)
    before = (scores / "en.trec").read_bytes()
    said = f"losses.distillation.scores: {scores} has the run of A, made with "
    with pytest.raises(UserError, match=f"{said}another teacher; name another folder"):
        write_teachers_run(taught(setup, "B", out), systems, "B", dev)
    with pytest.raises(UserError, match=f"{said}another depth"):
        write_teachers_run(taught(setup, "A", out, depth=7), systems, "A", dev)
    with pytest.raises(UserError, match=f"{said}other training data"):
        write_teachers_run(taught(setup, "A", out, languages='["en"]'), systems, "A", dev)
    for name in ("A", "same"):
        write_teachers_run(taught(setup, name, out), systems, name, dev)
    (scores / "teacher.json").unlink()
    write_teachers_run(taught(setup, "B", out), systems, "B", dev)
    assert (scores / "en.trec").read_bytes() == before
    assert not (scores / "teacher.json").exists()


def test_a_teacher_chooses_its_settings_off_the_reported_split(
    setup: tuple[Path, Path], tmp_path: Path
) -> None:
    """A system with `tune` ranks the training claims as it was chosen."""
    systems = {"tuned": SystemConfig(bm25=BM25Config(), tune=True)}
    dev, train = load(setup[1], "dev"), load(setup[1], "train")
    write_teachers_run(taught(setup, "tuned", tmp_path / "out"), systems, "tuned", dev)
    chosen = SystemRunner(systems, dev, RunSettings(str(setup[1]))).run("tuned", None, train)
    found = read_run(tmp_path / "scores" / "en.trec").run
    assert set(found.claim_ids) == {claim.id for claim in train.in_languages(["en"]).claims}
    for claim in found.claim_ids:
        assert found.scored(claim) == pytest.approx(chosen.result.run.scored(claim), abs=1e-5)


def test_a_teacher_that_was_trained_on_val_is_refused(
    setup: tuple[Path, Path], tmp_path: Path
) -> None:
    """Where it writes the run, or has written it; its models are found as in the first stage."""
    known = tmp_path / "models" / "known"
    train = load(setup[1], "train")
    rest, val = carve_val(train, 0.2, 5)
    data = DataRecord(str(setup[1]), "train", 0.2, 5, None, rest.fingerprint, val.fingerprint)
    known.mkdir(parents=True)
    base, weights = Base("hub/base", None, "0"), Weights("full", "0")
    settings = EncoderSettings("mean", max_length=24)
    Manifest(base, weights, settings, Rendering(), epoch=1, data=data).write(known)
    systems = {"T": SystemConfig(model=ModelConfig(name="hub/known"))}
    made, scores = small_rerankers(tmp_path / "made"), tmp_path / "scores"
    more = {"reranker.first.models": known.parent, "data.val_share": 0.2}
    given = reranker_words(made, known, tmp_path / "out", scores, **more)
    plain = ("teacher.pooling", "teacher.max_length")
    given = [word for word in given if word.lstrip("-").partition("=")[0] not in plain]
    config = read_config(DistillConfig, given, program="t", description="t")
    with pytest.raises(ConfigError, match=r"teacher\.name: .*known.*data\.val_seed 5"):
        write_teachers_run(config, systems, "T", load(setup[1], "dev"))
    assert not scores.exists()
    record = {
        "teacher": "T",
        "teacher_sha256": system_hash("T", systems, known.parent),
        "data_sha256": train.fingerprint,
        "depth": config.depth,
    }
    scores.mkdir()
    (scores / "teacher.json").write_text(json.dumps(record))
    with pytest.raises(ConfigError, match=r"teacher\.name: .*known.*data\.val_seed 5"):
        write_teachers_run(config, systems, "T", load(setup[1], "dev"))


@pytest.mark.slow
def test_what_contradicts_the_student_is_refused(
    setup: tuple[Path, Path], teacher: Path, tmp_path: Path
) -> None:
    def read(given: list[str]) -> DistillConfig:
        return read_config(DistillConfig, given, program="t", description="t")

    out = tmp_path / "out"
    for more, key in (
        ({}, r"optimisation\.train.*query_only"),
        ({"student": "retriever"}, r"losses\.distillation\.weight.*above 0"),
        ({"student": "static", "losses__alignment__weight": 1}, r"losses\.alignment\.weight"),
        ({"student": "static", "beside": '{"teacher": "x"}'}, "beside.*other names"),
        ({"student": "small"}, "student"),
        ({"student": "retriever", "reranker.choose_by": "mrr@1"}, "reranker.*student: retriever"),
    ):
        with pytest.raises(UserError, match=key):
            read(words(setup, teacher, out, **more))
    for more, key in (
        ({"reranker.loss.scores": "null", "reranker.loss.kind": "listwise"}, r"loss\.kind.*mse"),
        ({"optimisation.epochs": 2}, "optimisation.*student: reranker"),
        ({"losses.alignment.weight": 1}, "losses.*student: reranker"),
        ({"reranker.choose_by": "mrr_5"}, r"config: reranker\.choose_by.*mrr@5"),
        # The retriever's own model.max_length is another key.
        ({"reranker.model.max_length": 3}, r"config: reranker\.model\.max_length: 3"),
        ({"model.max_length": 3}, r"config: model\.max_length: 3"),
        ({"reranker.first.run": "[x.trec]"}, r"first\.run"),
        ({"reranker.first.files": "[x.yaml]"}, r"first\.files"),
        ({"tuning": "qlora"}, "tuning"),
    ):
        if "reranker.first.run" in more:
            more["reranker.first.system"] = "null"
        made = {"data": setup[1], "cross_encoder": setup[0]}
        with pytest.raises(ConfigError, match=key):
            read(reranker_words(made, teacher, out, tmp_path / "scores", **more))
    without = [word for word in arguments(*setup, out) if "teacher" not in word]
    with pytest.raises(ConfigError, match=r"teacher\.name"):
        read([*without, "--student=static"])
    # A name that is no system, no folder and no model of the hub, before anything is trained.
    with pytest.raises(ConfigError, match="beside.*BM52"):
        main(words(setup, teacher, out, student="static", beside='{"b": "BM52"}'))
    assert not out.exists()


def test_a_claim_that_is_timed_is_read_from_nowhere(
    setup: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from claim2source.models import Encoder

    dev, store = load(setup[1], "dev"), Store(tmp_path)
    model = ModelConfig(str(setup[0]), pooling="mean", max_length=24)
    systems = {"dense": SystemConfig(model=model), "BM25": SystemConfig(bm25=BM25Config())}
    settings = RunSettings(store=store, device="cpu", progress=False)
    expected = Dense(model, store=store, rendering=Rendering()).index(dev.sources)
    encoded: list[int] = []
    real = Encoder._encode_chunk

    def counted(self: Encoder, texts: Any, side: Any, *rest: Any) -> Any:
        encoded.append(len(texts))
        return real(self, texts, side, *rest)

    found = expected.search(dev.claims, 10).run  # the store has all of it now
    answering = Answering("dense", systems, dev, settings)
    monkeypatch.setattr(Encoder, "_encode_chunk", counted)
    run = answering(dev.claims)
    sources = {claim: run.sources(claim, 10) for claim in run.claim_ids}
    assert sources == {claim: found.sources(claim) for claim in found.claim_ids}
    encoded.clear()
    speed = measure(answering, dev.claims[:5])
    # Three to warm up, five alone, five together.
    assert encoded == [1] * 8 + [5] and speed.claims == 5
    sparse = Answering("BM25", systems, dev, settings)
    assert measure(sparse, dev.claims[:2]).weights_bytes == 0
    view = LearnedView("all", ViewConfig(), "", 1.0, 1.0)
    LearnedFusion((view,), FITTED).write(tmp_path / "fusion.json")
    learned = {"rerank": "learned", "file": str(tmp_path / "fusion.json")}
    late = {"rerank": "max_sim", "model": str(setup[0])}
    staged = {"s": SystemConfig(bm25=BM25Config(), stages=[learned, late])}
    answering = Answering("s", staged, dev, settings)
    # Terms of the pool are counted once, before any claim is timed; and on the CPU.
    monkeypatch.setattr("claim2source.rerank.learned.Scorer", None)
    assert answering.stages[0].apply(dev.claims, dev.sources, sparse(dev.claims)).run.claim_ids
    assert [vars(stage)["_place"].device for stage in answering.stages] == ["cpu", "cpu"]
    with pytest.raises(UserError, match="BM25, dense models and their fusion only"):
        Answering("t", {"t": SystemConfig(bm25=BM25Config(), tune=True)}, dev, settings)


@pytest.mark.slow
def test_a_re_ranker_learns_the_teachers_scores_and_stands_beside_it(
    teacher: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made, scores, out = small_rerankers(tmp_path), tmp_path / "scores", tmp_path / "student"
    files = tmp_path / "systems.yaml"
    files.write_text(
        "sparse: {bm25: {k1: 1.2}, depth: 20}\n"
        "again: {bm25: {k1: 1.2}, depth: 20, stages: [{rerank: cross_encoder, "
        f"model: {out}, depth: 7}}]}}\n"
    )
    given = reranker_words(made, teacher, out, scores, files=f"[{files}]")
    # The stage that the student is, written by hand: it is the same system.
    beside = {"beside": '{"first stage": "sparse", "by hand": "again"}'}
    main([*given, *(f"--{key}={value}" for key, value in beside.items())])
    said = capsys.readouterr().out
    assert f"{scores}: the teacher's run of 48 training claims" in said
    # It was trained on the teacher's margins, and chosen as re-rankers are.
    trained = Report.read(out)
    assert trained.training is not None and list(trained.systems)[0] == "first stage"
    report = Report.read(out / "comparison")
    assert list(report.systems) == ["teacher", "student", "first stage", "by hand"]
    found = report.systems["student"]
    assert [stage.name for stage in found.stages] == ["retrieve", "rerank cross_encoder"]
    assert found.macro == report.systems["by hand"].macro == trained.systems["chosen"].macro
    assert found.speed is not None and found.speed.milliseconds > 0
    assert "The student has" in said
    # What lies at the scores is taken, and a finished student is set beside its teacher again.
    before = (scores / "en.trec").read_bytes()
    main([*given, "--resume"])
    assert (scores / "en.trec").read_bytes() == before
    assert "The student has" in capsys.readouterr().out


def reranker_words(
    made: dict[str, Path], teacher: Path, out: Path, scores: Path, **more: Any
) -> list[str]:
    settings: dict[str, Any] = {
        "student": "reranker",
        "teacher.name": teacher,
        "teacher.pooling": "mean",
        "teacher.max_length": 32,
        "tuning": "full",
        "measured": 2,
        "repeats": 50,
        "reranker.loss.kind": "margin_mse",
        "reranker.loss.scores": scores,
        "reranker.first.system": "sparse",
        "reranker.first.depth": 7,
        "reranker.optimisation.epochs": 1,
        **more,
    }
    own = ("model", "first", "candidates", "optimisation")
    for word in reranker_arguments(made, out):
        key, _, value = word.removeprefix("--").partition("=")
        key = f"reranker.{key}" if key.partition(".")[0] in own else key
        settings.setdefault(key, value)
    return [f"--{key}={value}" for key, value in settings.items()]
