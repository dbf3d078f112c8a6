"""`eval/checkpoint.py`: one checkpoint, a whole run, a plain model."""

from __future__ import annotations

import ast
import csv
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from claim2source.core.config import read_config
from claim2source.core.errors import ConfigError, UserError
from claim2source.datasets import load
from claim2source.io.trec import read_run
from claim2source.metrics.metrics import evaluate
from claim2source.models import resolve
from claim2source.pipeline.attached import read_attached
from claim2source.pipeline.checkpoints import (
    CheckpointConfig,
    evaluate_checkpoints,
    route_words,
)
from claim2source.pipeline.evaluate_systems import form_of_failed
from claim2source.retrieve import BM25, BM25Config, Dense, FusionConfig, fuse
from claim2source.stages.max_sim import MaxSim
from claim2source.systems.read import make_system
from claim2source.systems.system import System, SystemRunner
from claim2source.text import Rendering
from claim2source.training.finetune import finetune
from tests.training.small import small_config, small_setup


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    """A finished run and its data; this file's store holds nothing of other files' tests."""
    folder = tmp_path_factory.mktemp("trained")
    model, data = small_setup(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CLAIM2SOURCE_STORE", str(folder / "store"))
        finetune(small_config(model, data, folder / "run", optimisation__epochs=2))
        yield folder / "run", data


def configured(*arguments: str) -> CheckpointConfig:
    return read_config(CheckpointConfig, list(arguments), program="t", description="t")


def evaluated(checkpoint: Path | str, data: Path, out: Path, *more: str) -> str:
    return evaluate_checkpoints(
        configured(f"--checkpoint={checkpoint}", f"--dataset={data}", f"--out={out}", *more)
    )


def test_a_checkpoint_scores_what_training_reported(
    trained: tuple[Path, Path], tmp_path: Path
) -> None:
    run, data = trained
    said = json.loads((run / "report.json").read_text())
    text = evaluated(
        run / "checkpoints" / f"epoch-{said['training']['chosen_epoch']}", data, tmp_path
    )
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["macro"] == pytest.approx(said["macro"])
    for lang in ("en", "de"):
        assert report["languages"][lang] == pytest.approx(said["languages"][lang])
        assert set(report["languages"][lang]) == {
            "mrr@1",
            "mrr@5",
            "mrr@10",
            "recall@5",
            "recall@100",
            "queries",
        }
    (system,) = report["systems"].values()
    assert (system["claims"], system["sources"]) == ("bilingual", "metadata")
    assert system["cost"]["seconds"] > 0 and system["cost"]["parameters"] > 0
    assert "macro" in text and "macro" in (tmp_path / "report.md").read_text()


def test_its_runs_and_submissions_hold_the_same_ranking(
    trained: tuple[Path, Path], tmp_path: Path
) -> None:
    run, data = trained
    evaluated(run / "checkpoints" / "epoch-1", data, tmp_path)
    dev = load(data, "dev")
    report = json.loads((tmp_path / "report.json").read_text())
    for lang in ("en", "de"):
        part = dev.in_languages([lang])
        ranked = read_run(tmp_path / "runs" / f"{lang}.trec").run
        assert set(ranked.claim_ids) == {claim.id for claim in part.claims}
        scores = evaluate(ranked, part.qrels, ["mrr@5"])
        assert scores.mean("mrr@5") == pytest.approx(report["languages"][lang]["mrr@5"])
        with open(tmp_path / "submission_2026" / f"predictions_{lang}.tsv", newline="") as file:
            rows = list(csv.DictReader(file, delimiter="\t"))
        assert {row["index"] for row in rows} == {c.id.removeprefix("dev-") for c in part.claims}
        for row in rows:
            assert ast.literal_eval(row["preds"]) == ranked.sources(f"dev-{row['index']}", 5)
    with open(tmp_path / "submission_2025" / "predictions.tsv", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    assert list(rows[0]) == ["post_id", "preds"] and len(rows) == 12
    assert all(len(ast.literal_eval(row["preds"])) == 5 for row in rows)


def test_a_run_gives_a_table_of_every_kept_epoch_and_step_zero(
    trained: tuple[Path, Path], tmp_path: Path
) -> None:
    run, data = trained
    evaluated(run, data, tmp_path)
    said = json.loads((run / "report.json").read_text())
    report = json.loads((tmp_path / "report.json").read_text())
    assert list(report["systems"]) == ["epoch-0", "epoch-1", "epoch-2"]
    assert report["chosen"] == f"epoch-{said['training']['chosen_epoch']}"
    zero, chosen = report["systems"]["epoch-0"], report["systems"][report["chosen"]]
    assert zero["macro"] == pytest.approx(said["systems"]["step 0"]["macro"])
    assert chosen["macro"] == pytest.approx(said["macro"])
    table = (tmp_path / "report.md").read_text()
    scores, tests = table.split("Every epoch against step 0: ")
    scores, _, val = scores.partition("Scores on val:")
    assert scores.count("| epoch-") == 3 * 3 and "(chosen)" in scores and " to " in scores
    assert val.count("| epoch-") == 3 * 3
    assert tests.count("| epoch-") == 3 * 3  # macro, English, German


def test_the_chosen_checkpoint_alone(trained: tuple[Path, Path], tmp_path: Path) -> None:
    """What a submission is made of, whatever its name."""
    run, data = trained
    copied = Path(shutil.copytree(run, tmp_path / "run"))
    points = copied / "checkpoints"
    (points / "epoch-1").rename(points / "epoch-1-scale-0.5")
    said = json.loads((copied / "run.json").read_text())
    (copied / "run.json").write_text(json.dumps(said | {"chosen": "epoch-1-scale-0.5"}))
    text = evaluated(copied, data, tmp_path / "out", "--only=chosen")
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    (system,) = report["systems"].values()
    assert system["settings"]["checkpoint"] == str(points / "epoch-1-scale-0.5")
    assert "epoch-1-scale-0.5 (chosen)" in text and "epoch-0" not in text
    assert (tmp_path / "out" / "submission_2026" / "predictions_en.tsv").is_file()
    for place in (points / "epoch-0", "sentence-transformers/all-MiniLM-L6-v2"):
        with pytest.raises(ConfigError, match="only: 'chosen'"):
            evaluated(place, data, tmp_path / "other", "--only=chosen")
    (copied / "run.json").write_text(json.dumps(said | {"chosen": None}))
    with pytest.raises(UserError, match="has not ended"):
        evaluated(copied, data, tmp_path / "other", "--only=chosen")


def test_metrics_deeper_than_the_lists_are_left_out(
    trained: tuple[Path, Path], tmp_path: Path
) -> None:
    run, data = trained
    one = run / "checkpoints" / "epoch-1"
    text = evaluated(one, data, tmp_path / "10", "--depth=10", "--repeats=50")
    report = json.loads((tmp_path / "10" / "report.json").read_text())
    assert set(report["macro"]) == {"mrr@1", "mrr@5", "mrr@10", "recall@5", "queries"}
    assert text.count("recall@100") == 1 and "mrr@10" in text
    assert "\nrecall@100: left out, deeper than --depth 10." in text
    assert "mrr@5" in report["systems"]["epoch-1"]["intervals"]["values"]
    ranked = read_run(tmp_path / "10" / "runs" / "de.trec").run
    assert {len(ranked.sources(claim)) for claim in ranked.claim_ids} == {10}


def test_flags_cannot_contradict_a_manifest(trained: tuple[Path, Path], tmp_path: Path) -> None:
    run, data = trained
    for flag in ("--rendering.claims=original", "--model.pooling=cls", "--model.max_length=16"):
        with pytest.raises(UserError, match="manifest|as it was trained"):
            evaluated(run / "checkpoints" / "epoch-1", data, tmp_path, flag)


def test_a_plain_model_scores_as_step_zero(trained: tuple[Path, Path], tmp_path: Path) -> None:
    run, data = trained
    model = run.parent / "model"
    evaluated(
        model,
        data,
        tmp_path / "plain",
        "--model.pooling=mean",
        "--model.max_length=24",
        "--rendering.claims=bilingual",
    )
    plain = json.loads((tmp_path / "plain" / "report.json").read_text())
    said = json.loads((run / "report.json").read_text())
    assert plain["macro"] == pytest.approx(said["systems"]["step 0"]["macro"])


@pytest.mark.slow
def test_what_training_encoded_is_not_encoded_again(
    trained: tuple[Path, Path], tmp_path: Path
) -> None:
    """The weights trained in memory and those loaded from the checkpoint share one store key."""
    run, data = trained
    chosen = json.loads((run / "report.json").read_text())["training"]["chosen_epoch"]
    evaluated(run, data, tmp_path)
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["systems"][f"epoch-{chosen}"]["cost"]["stored"]
    assert report["systems"]["epoch-0"]["cost"]["stored"]
    # What it cost is what training paid for it.
    assert report["systems"]["epoch-0"]["cost"]["tokens"] > 0


@pytest.fixture(scope="module")
def widely(
    trained: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path, Path]:
    """Step 0 and an epoch of the run, its data and what all settings together write."""
    folder = tmp_path_factory.mktemp("widely")
    run, data = Path(shutil.copytree(trained[0], folder / "run")), trained[1]
    shutil.rmtree(run / "checkpoints" / "epoch-1")
    out = folder / "out"
    evaluated(run, data, out, "--hybrid", "--repeats=50", "--claims", "bilingual", "original")
    return run, data, out


@pytest.mark.slow
def test_other_forms_and_hybrids_stand_beside_each_checkpoint(
    widely: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    run, data, out = widely
    report = json.loads((out / "report.json").read_text())
    epochs = ["epoch-0", "epoch-2"]
    assert list(report["systems"]) == [
        name for e in epochs for name in (e, f"H-{e}", f"{e}.original", f"H-{e}.original")
    ]
    evaluated(run, data, tmp_path, "--no_tests")
    plain = json.loads((tmp_path / "report.json").read_text())["systems"]
    dev = load(data, "dev")
    for name, part in report["systems"].items():
        form = "original" if name.endswith(".original") else "bilingual"
        assert part["claims"] == form
        runs = {lang: read_run(out / name / "runs" / f"{lang}.trec").run for lang in ("en", "de")}
        for lang, ranked in runs.items():
            found = evaluate(ranked, dev.in_languages([lang]).qrels, ["mrr@5"]).mean("mrr@5")
            assert part["languages"][lang]["mrr@5"] == pytest.approx(found)
        if name in plain:  # as trained: the same numbers in the same place
            assert part["macro"] == plain[name]["macro"]
            trec = (tmp_path / name / "runs" / "de.trec").read_bytes()
            assert (out / name / "runs" / "de.trec").read_bytes() == trec
    encoder = resolve(str(run / "checkpoints" / "epoch-2"), "cpu").encoder
    for form, ending in (("bilingual", ""), ("original", ".original")):
        rendering = Rendering(form, "metadata")  # type: ignore[arg-type]
        dense = Dense(encoder, rendering=rendering).index(dev.sources).search(dev.claims)
        papers = BM25Config("whitespace", k1=1.2, b=1.0, claims=form)  # type: ignore[arg-type]
        sparse = BM25(papers).index(dev.sources).search(dev.claims)
        mixed = fuse(sparse.run, dense.run, FusionConfig("linear", alpha=0.5, scale="min-max"))
        for name, expected in (("epoch-2", dense.run), ("H-epoch-2", mixed)):
            ranked = read_run(out / f"{name}{ending}" / "runs" / "de.trec").run
            for claim in ranked.claim_ids:
                assert ranked.sources(claim) == expected.sources(claim)[:100]
    assert report["notes"] == ["bilingual: as trained, so under the checkpoint's own name."]
    assert report["notes"][0] in (out / "report.md").read_text()


@pytest.mark.slow
def test_forms_and_hybrids_are_tested_against_what_they_come_from(
    widely: tuple[Path, Path, Path],
) -> None:
    report = json.loads((widely[2] / "report.json").read_text())
    pairs = {
        test["family"]: [(c["system"], c["baseline"]) for c in test["comparisons"]]
        for test in report["tests"]
        if test["average"] == "macro"
    }
    forms = [
        (f"{front}epoch-{i}.original", f"{front}epoch-{i}") for i in (0, 2) for front in ("", "H-")
    ]
    mixed = [(f"H-epoch-{i}{end}", f"epoch-{i}{end}") for i in (0, 2) for end in ("", ".original")]
    assert pairs == {
        "Every epoch against step 0": [("epoch-2", "epoch-0")],
        "Every epoch against step 0, original claims": [("epoch-2.original", "epoch-0.original")],
        "Other claim forms against the checkpoint's own": forms,
        "Hybrids against their dense part": mixed,
    }


@pytest.mark.slow
def test_step_zero_is_the_model_it_starts_from_and_trained_epochs_are_not(
    widely: tuple[Path, Path, Path],
) -> None:
    run, _, out = widely
    report = json.loads((out / "report.json").read_text())
    models = {name: part["model"] for name, part in report["systems"].items()}
    trained = str(run / "checkpoints" / "epoch-2")
    assert Path(models["epoch-0"]).name == "model"
    assert models["H-epoch-0.original"] == f"hybrid:{models['epoch-0']}"
    assert (models["epoch-2"], models["H-epoch-2"]) == (trained, f"hybrid:{trained}")


@pytest.mark.slow
def test_each_language_may_have_a_checkpoint_of_its_own(
    trained: tuple[Path, Path], tmp_path: Path
) -> None:
    from eval.checkpoint import main

    run, data = trained
    points = run / "checkpoints"
    words = ["--checkpoint", f"en={points / 'epoch-1'}", f"de={points / 'epoch-0'}"]
    common = [f"--dataset={data}", "--repeats=50"]
    main([*words, *common, f"--out={tmp_path / 'routed'}"])
    report = json.loads((tmp_path / "routed" / "report.json").read_text())
    for lang, epoch in (("en", "epoch-1"), ("de", "epoch-0")):
        evaluated(points / epoch, data, tmp_path / epoch, "--no_tests")
        alone = json.loads((tmp_path / epoch / "report.json").read_text())
        assert report["languages"][lang] == pytest.approx(alone["languages"][lang])
        routed, plain = (
            (tmp_path / name / "runs" / f"{lang}.trec").read_bytes() for name in ("routed", epoch)
        )
        assert routed == plain
    (system,) = report["systems"].values()
    assert [stage["name"] for stage in system["stages"]][-1] == "route"
    assert system["settings"]["de"] == str(points / "epoch-0")
    # A plain checkpoint ranks the languages that are not named.
    main(
        [
            "--checkpoint",
            str(points / "epoch-1"),
            f"de={points / 'epoch-0'}",
            *common,
            f"--out={tmp_path / 'default'}",
        ]
    )
    again = json.loads((tmp_path / "default" / "report.json").read_text())
    assert again["languages"] == report["languages"]
    # A checkpoint that two languages share is counted once.
    shared = [f"{lang}={points / 'epoch-1'}" for lang in ("en", "de")]
    main(["--checkpoint", *shared, *common, f"--out={tmp_path / 'shared'}"])
    (once,) = json.loads((tmp_path / "shared" / "report.json").read_text())["systems"].values()
    assert 2 * once["cost"]["parameters"] == system["cost"]["parameters"]


def test_routes_are_read_from_the_words_of_a_command() -> None:
    assert route_words(["--checkpoint", "A", "--out", "o"]) == ["--checkpoint", "A", "--out", "o"]
    assert route_words(["--checkpoint", "A", "de=B", "--out", "o"]) == [
        "--checkpoint",
        "A",
        '--routes={"de": "B"}',
        "--out",
        "o",
    ]
    assert route_words(["--checkpoint", "en=A", "de=B"]) == [
        "--checkpoint",
        "A",
        '--routes={"en": "A", "de": "B"}',
    ]
    assert route_words(["--checkpoint=en=A", "de=B"]) == route_words(
        ["--checkpoint", "en=A", "de=B"]
    )
    # A folder's name may hold the sign.
    assert route_words(["--checkpoint", "runs/lr=1"]) == ["--checkpoint", "runs/lr=1"]
    assert configured("--checkpoint", "A", '--routes={"de": "B"}', "--out=o").routes == {"de": "B"}


@pytest.mark.slow
def test_the_grid_of_styles_is_attached_to_every_checkpoint(
    trained: tuple[Path, Path], tmp_path: Path
) -> None:
    """Its S0C0 is the checkpoint's own score; a bilingual one's translation is rewritten."""
    run, data = trained
    style = "--styles.source_styles=[S3]"
    words = ["--stages", "styles", "--hybrid", "--repeats=50", "--styles.claim_styles=[C1]"]
    text = evaluated(run, data, tmp_path, *words, style)
    grid = json.loads((tmp_path / "styles" / "grid.json").read_text(encoding="utf-8"))
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    names = ["epoch-0", "epoch-1", "epoch-2"]
    assert list(grid) == [name for epoch in names for name in (epoch, f"H-{epoch}")]
    for name, cells in grid.items():
        assert {claims: list(row) for claims, row in cells.items()} == {
            "C0": ["S0", "S3"],
            "C1": ["S0", "S3"],
        }
        assert cells["C0"]["S0"] == pytest.approx(report["systems"][name]["macro"]["mrr@5"])
    assert "Styles:" in text and (tmp_path / "styles" / "heatmap.png").is_file()
    said = (tmp_path / "styles" / "report.md").read_text(encoding="utf-8")
    assert "the translation is rewritten" in said
    for wrong in (["--stages", "no such"], ["--stages", "styles", "--depth=3"]):
        with pytest.raises(ConfigError, match="stages"):
            evaluated(run, data, tmp_path / "no", *wrong)


PIPELINE = """
retrieve: {{hybrid: [{{bm25: {{}}}}, {{dense: elsewhere}}]}}
depth: 12
stages:
  - {{rerank: max_sim, model: {model}, max_length: 24, depth: 6}}
"""


@pytest.mark.slow
def test_a_pipelines_stages_stand_beside_every_checkpoint(
    trained: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, data = trained
    applied: list[MaxSim] = []
    apply = MaxSim.apply

    def counted(self: MaxSim, *arguments: Any) -> Any:
        applied.append(self)
        return apply(self, *arguments)

    monkeypatch.setattr(MaxSim, "apply", counted)
    file, played = tmp_path / "mine.yaml", tmp_path / "played.yaml"
    file.write_text(PIPELINE.format(model=run.parent / "model"))
    played.write_text(file.read_text().replace("depth: 6", "depth: 5, simulated: true"))
    words = ["--stages", str(file), str(played), "--repeats=20"]
    text = evaluated(run, data, tmp_path / "out", *words)
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    epochs = [f"epoch-{i}" for i in range(3)]
    ends = ["mine: first stage", "mine: 1. rerank max_sim", "played: first stage"]
    ends.append("played: 1. rerank max_sim (simulated)")
    # Each checkpoint's stages follow its own row, by language.
    assert list(report["systems"]) == [
        name for epoch in epochs for name in (epoch, *(f"{epoch}+{end}" for end in ends))
    ]
    assert len(applied) == 2 * len(epochs)
    dev = load(data, "dev")
    for name, part in report["systems"].items():
        assert list(part["languages"]) == ["en", "de"] and name in text
        for lang, row in part["languages"].items():
            ranked = read_run(tmp_path / "out" / part["runs"] / f"{lang}.trec").run
            found = evaluate(ranked, dev.in_languages([lang]).qrels, ["mrr@5"]).mean("mrr@5")
            assert row["mrr@5"] == pytest.approx(found)
    # Its first stage is the checkpoint's own ranking, fused as the file says.
    encoder = resolve(str(run / "checkpoints" / "epoch-2"), "cpu").encoder
    dense = Dense(encoder, rendering=Rendering("bilingual", "metadata")).index(dev.sources)
    sparse = BM25(BM25Config(claims="bilingual")).index(dev.sources).search(dev.claims)
    expected = fuse(sparse.run, dense.search(dev.claims).run, FusionConfig())
    ranked = read_run(tmp_path / "out" / "epoch-2+mine" / "runs" / "0" / "de.trec").run
    for claim in ranked.claim_ids:
        assert ranked.sources(claim) == expected.sources(claim)[:12]
    pairs = {
        test["family"]: [(c["system"], c["baseline"]) for c in test["comparisons"]]
        for test in report["tests"]
        if test["average"] == "macro"
    }
    first, last = (f"{{}}+{end}" for end in ends[:2])
    assert pairs == {
        "Every epoch against step 0": [(epoch, "epoch-0") for epoch in epochs[1:]],
        "Each stage against the one before, mine": [
            (last.format(epoch), first.format(epoch)) for epoch in epochs
        ],
        "Every epoch against step 0, after mine": [
            (last.format(epoch), last.format("epoch-0")) for epoch in epochs[1:]
        ],
    }
    assert (tmp_path / "out" / "epoch-1+mine" / "claims.html").is_file()
    assert any(note.startswith("epoch-1+mine: 1. rerank max_sim") for note in report["notes"])
    # The second time all is read; another depth runs the stage again.
    evaluated(run, data, tmp_path / "again", *words)
    assert len(applied) == 2 * len(epochs)
    again = json.loads((tmp_path / "again" / "report.json").read_text())
    assert all(part["cost"]["stored"] for part in again["systems"].values())
    played.write_text(file.read_text().replace("depth: 6", "depth: 4"))
    evaluated(run, data, tmp_path / "other", *words, "--only=chosen", "--no_tests")
    assert len(applied) == 2 * len(epochs) + 1


def test_a_pipeline_that_cannot_run_leaves_the_checkpoints_rows(
    trained: tuple[Path, Path], tmp_path: Path
) -> None:
    run, data = trained

    def failing(system: System, form: str) -> None:
        runner = SystemRunner(load(data, "dev"))
        with pytest.raises(UserError):
            runner.run(system)
        assert form_of_failed(system, runner.runtime) == form

    (tmp_path / "p.yaml").write_text(PIPELINE.format(model=tmp_path / "absent"))
    one = run / "checkpoints" / "epoch-1"
    evaluated(one, data, tmp_path / "out", "--stages", str(tmp_path / "p.yaml"), "--repeats=20")
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert list(report["systems"]) == ["epoch-1"]
    (row,) = report["not_run"]
    assert row["system"] == "epoch-1+p" and "absent" in row["reason"]
    # The form that it would have been run with is the checkpoint's, or the pipeline's own.
    assert row["claims"] == "bilingual"
    broken = tmp_path / "broken"
    shutil.copytree(one, broken)
    for weights in broken.glob("*.safetensors"):
        weights.unlink()
    own = "claims: translated\n" + (tmp_path / "p.yaml").read_text()
    for text, form in ((own, "translated"), ((tmp_path / "p.yaml").read_text(), "bilingual")):
        (tmp_path / "q.yaml").write_text(text)
        pipeline = read_attached("stages", [str(tmp_path / "q.yaml")])[0]
        failing(pipeline.on_checkpoint(str(broken)), form)
    # Routes of which one has no weights here, as the other has none at all.
    routes = {"retrieve": {"dense": f"{tmp_path}/gone"}, "routes": {"de": {"dense": str(broken)}}}
    failing(make_system("q", routes), "bilingual")
