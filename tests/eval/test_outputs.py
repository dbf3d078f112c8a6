"""If evaluations write: not among a training run's files, and nothing of others stays there."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from claim2source.eval.evaluate import main as evaluate
from claim2source.eval.report import main as report
from claim2source.train.mine import main as mine

from claim2source.core.errors import UserError
from claim2source.core.folders import is_run
from claim2source.evaluation.html.page import FOLDER, GENERATOR, TEMPLATE
from claim2source.mining.files import write_mined
from claim2source.mining.mine import MinedRow
from tests.refusals import refused
from tests.shared_data import FIXTURES
from tests.training.test_run_folder import contents

Main = Callable[[Sequence[str]], None]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = Path(shutil.copytree(FIXTURES / "lora", tmp_path / "run"))
    assert is_run(folder)
    return folder


@pytest.mark.parametrize(
    ("main", "words"), [(evaluate, ["--checkpoint=."]), (evaluate, []), (report, ["--reports=."])]
)
def test_a_training_runs_folder_is_refused(main: Main, words: list[str], run: Path) -> None:
    """Its report is the training's own; so are its checkpoints' folders, and all below them."""
    before = contents(run)
    for subfolder in ("", "checkpoints", "checkpoints/epoch-1", "logs/new"):
        with refused(UserError, "--out", "/run/evaluation"):
            main([*words, f"--out={run / subfolder}"])
    assert contents(run) == before


def test_a_checkpoint_outside_its_run_is_refused(run: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(run / "checkpoints" / "epoch-1", tmp_path / "alone"))
    with pytest.raises(UserError, match="evaluation"):
        evaluate([f"--checkpoint={path}", f"--out={path}"])


@pytest.mark.parametrize(
    ("main", "name", "words"),
    [(mine, "--out=mined.jsonl", []), (report, "--html=report.json", ["--reports=."])],
)
def test_a_file_of_a_training_run_is_refused(
    main: Main, name: str, words: list[str], run: Path
) -> None:
    before, (key, file) = contents(run), name.split("=")
    with pytest.raises(UserError, match=f"{file}: .*{key}"):
        main([*words, f"{key}={run / file}"])
    assert contents(run) == before


def test_a_smaller_evaluation_leaves_nothing_of_other_languages(
    run: Path, tiny_folder: Path, tmp_path: Path
) -> None:
    """Files of the earlier run are removed, others are kept, also in the run's own folder."""
    out = run / "evaluation"
    model = [f"--checkpoint={tiny_folder}", "--model.pooling=mean", "--model.max_length=16"]
    words_of_model = [*model, "--no_tests", f"--out={out}"]
    small = tmp_path / "small"
    (small / "qrels").mkdir(parents=True)
    (small / "corpus.jsonl").write_text(
        '{"_id": "p1", "title": "masks"}\n{"_id": "p2", "title": "tea"}\n'
    )
    lines = [f'{{"_id": "{c}", "text": "x", "metadata": {{"lang": "{c}"}}}}' for c in ("en", "de")]
    (small / "queries.jsonl").write_text("\n".join(lines) + "\n")
    (small / "qrels" / "dev.tsv").write_text("query-id\tcorpus-id\tscore\nen\tp1\t1\nde\tp2\t1\n")
    words = [*words_of_model, f"--dataset={small}"]
    evaluate(words)
    row = out / f"{tiny_folder.name}.original"
    runs, submitted = row / "runs" / "0", row / "submission_2026"
    assert {path.name for path in runs.iterdir()} == {"en.trec", "de.trec"}
    for path in (runs / "fr.trec", runs / "mine.trec", submitted / "predictions_fr.tsv"):
        path.write_text("a user's own\n")
    (runs / "it.trec").write_text("c1 Q0 p1 1 2.0 other\n")
    evaluate([*words, "--languages=en"])
    kept = {"en.trec", "fr.trec", "it.trec", "mine.trec"}
    assert {path.name for path in runs.iterdir()} == kept
    names = {path.name for path in submitted.iterdir()}
    assert names == {"predictions_en.tsv", "predictions_fr.tsv"}


@pytest.mark.parametrize(
    ("main", "words", "name"),
    [
        (evaluate, ["--checkpoint=."], "report.json"),
        (evaluate, [], "report.md"),
        (report, ["--reports=."], "compare.md"),
        (report, ["--published"], "published.md"),
        (report, ["--published"], "published.csv"),
        (report, ["--reports=.", "--html=FILE"], "page.html"),
        (mine, [], "mined.jsonl"),
    ],
)
def test_a_users_file_is_not_replaced(
    main: Main, words: list[str], name: str, tmp_path: Path
) -> None:
    file = tmp_path / name
    file.write_text('{"split": "mine"}' if name.endswith(".md") else "# My own work\n")
    before = contents(tmp_path)
    option = f"--out={file if main is mine else tmp_path}"
    if "--html=FILE" in words:
        words, option = words[:1], f"--html={file}"
    with refused(UserError, f"{file}: "):
        main([*words, option])
    assert contents(tmp_path) == before


def test_files_of_ours_are_replaced(tmp_path: Path) -> None:
    """Their signs are those that the programs write."""
    for _ in range(2):
        report(["--published", f"--out={tmp_path / 'tables'}"])
    mined = tmp_path / "mined.jsonl"
    write_mined([MinedRow("c", "p", ())], mined)
    with refused(UserError, "no-such-set"):
        mine(["--dataset=no-such-set", f"--out={mined}"])
    assert GENERATOR in (FOLDER / TEMPLATE).read_text(encoding="utf-8")
