"""From the labs' raw files to a submission, judged by a scorer that shares no code with us.

Golds of the test split are kept aside. The scorer's figure for the blind submission is that of our
own report on the same posts with their golds.
"""

from __future__ import annotations

import csv
import json
import re
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas
import pytest
from claim2source.eval import evaluate, rumors, style_grid
from claim2source.train import fusion

from claim2source.core.errors import ConfigError, InputError
from claim2source.core.report import Report
from claim2source.data.prepare import main as prepare
from claim2source.data.rumors import load_rumors, read_verification
from tests.lab_scorer import LANGUAGES, score_2025, score_2026
from tests.llm_server import LLMServer
from tests.llm_server import verifiers as play
from tests.processes import program
from tests.rumor_files import RUMORS, write_rumors
from tests.training.small import TOPICS, save_small_model, say_pooling

Main = Callable[[Sequence[str] | None], None]
Start = Callable[..., LLMServer]
SYSTEMS = """
BM25: {{retrieve: {{bm25: {{k1: 1.2}}}}}}
Words: {{retrieve: {{bm25: {{analysis: whitespace, k1: 0.9}}}}}}
Both: {{retrieve: {{hybrid: [BM25, Words], alpha: fit}}}}
Chosen:
  retrieve: BM25
  stages:
    - {{verify: select, depth: 5, llm: {{model: m, url: '{url}'}}}}
"""
PAPERS = 12


def claims(lang: str, first: int, count: int) -> list[dict[str, object]]:
    """Posts of one language; every third one names another paper's topic first."""
    made: list[dict[str, object]] = []
    for index in range(first, first + count):
        topic = TOPICS[index % PAPERS]
        other = TOPICS[(index + 1) % PAPERS]
        text = f"{other} {other}, not {topic}" if index % 3 == 0 else f"a study of {topic}"
        made.append({"index": index, "text": f"{text} ({lang})", "pubkey": 9000 + index % PAPERS})
    return made


def write_json(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")


class Lab2026:
    """The raw files of 2026, the golds of their test aside, and both prepared."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.golds = folder, folder / "aside"
        collection = [
            {
                "pubkey": 9000 + number,
                "title": f"Effect of {topic} on health",
                "abstract": f"We studied {topic} in {100 + number} adults.",
                "venue": "A Journal",
                "authors": "A. Author",
            }
            for number, topic in enumerate(TOPICS[:PAPERS])
        ]
        for name in ("blind", "known"):
            write_json(folder / name / "collection_data.json", collection)
        for offset, lang in enumerate(LANGUAGES):
            test = claims(lang, offset, 7)
            blind = [{key: post[key] for key in ("index", "text")} for post in test]
            write_json(self.golds / f"{lang}_test.json", test)
            write_json(folder / "known" / f"{lang}_test.json", test)
            write_json(folder / "blind" / f"{lang}_test.json", blind)
            for name in ("blind", "known"):
                write_json(folder / name / f"{lang}_train.json", claims(lang, 0, PAPERS))
        for name in ("blind", "known"):
            prepare(["checkthat2026", f"--input={folder / name}", f"--output={self.data(name)}"])

    def data(self, name: str) -> Path:
        return self.folder / f"{name}-prepared"

    def run(self, main: Main, name: str, out: str, *words: object) -> Path:
        arguments = [f"--dataset={self.data(name)}", "--split=test", f"--out={self.folder / out}"]
        arguments += [f"--store={self.folder / 'store'}", "--repeats=20"]
        main([*arguments, *map(str, words)])
        return self.folder / out


@pytest.fixture
def lab(tmp_path: Path) -> Lab2026:
    return Lab2026(tmp_path / "lab")


@pytest.fixture
def systems(tmp_path: Path, llm_server: Start) -> Path:
    server = llm_server(play.Verifier(lambda question: len(question.papers) - 1))
    path = tmp_path / "systems.yaml"
    path.write_text(SYSTEMS.format(url=server.url))
    return path


def judged_alike(lab: Lab2026, main: Main, row: str, *words: object) -> Path:
    """Submit blind, score outside, and compare with our report on known golds."""
    file = lab.folder / "mine.zip"
    blind = lab.run(main, "blind", "out-blind", *words, f"--submit={file}")
    known = lab.run(main, "known", "out-known", *words)
    ours = Report.read(known).systems[row]
    lab_scores = score_2026(lab.golds, file)
    assert lab_scores["macro"] == pytest.approx(ours.macro["mrr@5"]) and lab_scores["macro"] > 0.2
    for lang in LANGUAGES:
        assert lab_scores[lang] == pytest.approx(ours.languages[lang]["mrr@5"])
    return blind


@pytest.mark.parametrize("name", ["BM25", pytest.param("Both", marks=pytest.mark.slow), "Chosen"])
def test_the_lab_scores_a_systems_submission_as_we_do(
    lab: Lab2026, systems: Path, name: str
) -> None:
    words = [f"--systems={systems}", f"--only={name}", "--claims=original"]
    out = judged_alike(lab, evaluate.main, f"{name}.original", *words)
    folder = out / f"{name}.original" / "submission_2026"
    assert score_2026(lab.golds, folder) == score_2026(lab.golds, lab.folder / "mine.zip")


@pytest.mark.slow
def test_a_given_run_and_a_checkpoint_are_submitted_as_the_lab_has_ids(
    lab: Lab2026, systems: Path
) -> None:
    out = lab.run(evaluate.main, "blind", "first", f"--systems={systems}", "--only=BM25")
    run = ", ".join(f"{lang}: {out / 'BM25.original/runs/0' / lang}.trec" for lang in LANGUAGES)
    given = lab.folder / "given.yaml"
    given.write_text(f"Given: {{retrieve: {{run: {{{run}}}}}}}\n")
    judged_alike(lab, evaluate.main, "Given.original", f"--systems={given}", "--claims=original")
    model = say_pooling(save_small_model(lab.folder / "model"))
    words = [f"--checkpoint={model}", f"--only={model.name}", "--claims=original"]
    judged_alike(lab, evaluate.main, f"{model.name}.original", *words)


def test_a_learned_fusion_is_submitted_as_the_lab_has_ids(lab: Lab2026, systems: Path) -> None:
    views = lab.folder / "views.yaml"
    views.write_text("words: {score: bm25, part: all}\ntitle: {score: bm25, part: title}\n")
    words = [f"--views={views}", f"--files={systems}", "--system=BM25"]
    out = judged_alike(lab, fusion.main, "learned", *words)
    folder_scores = score_2026(lab.golds, out / "submission_2026")
    assert folder_scores == score_2026(lab.golds, lab.folder / "mine.zip")


def test_a_cell_of_the_style_grid_has_ids_as_the_lab_has_them(lab: Lab2026, systems: Path) -> None:
    words = [f"--systems={systems}", "--only=BM25", "--claims=original"]
    words += ['--styles.claim_styles=["C1"]', '--styles.source_styles=["S0"]']
    out = judged_alike(lab, style_grid.main, "BM25.original", *words)
    cell = out / "styles" / "runs" / "BM25.original.S0C1" / "submission_2026"
    ours = Report.read(lab.folder / "out-known").systems["BM25.original.S0C1"]
    assert score_2026(lab.golds, cell)["macro"] == pytest.approx(ours.macro["mrr@5"])


def test_rows_that_an_older_version_wrote_are_written_anew(lab: Lab2026, systems: Path) -> None:
    words = [f"--systems={systems}", "--only=BM25", "--claims=original"]
    out = lab.run(evaluate.main, "blind", "out", *words)
    folder = out / "BM25.original" / "submission_2026"
    right = score_2026(lab.golds, folder)
    for path in folder.iterdir():
        path.write_text(re.sub(r"(\d{4})", r"'\1'", path.read_text()))
    assert score_2026(lab.golds, folder)["macro"] == 0
    lab.run(evaluate.main, "blind", "out", *words)
    assert score_2026(lab.golds, folder) == right


def without_note(data: Path) -> None:
    """Make of a prepared folder what version 1.0 wrote."""
    corpus = data / "corpus.jsonl"
    entries = [json.loads(line) for line in corpus.read_text().splitlines()]
    for entry in entries:
        del entry["metadata"]["numeric_id"]
    corpus.write_text("".join(json.dumps(entry) + "\n" for entry in entries))


@pytest.mark.parametrize("languages", [LANGUAGES, ("en",)])
def test_a_folder_of_version_1_0_is_submitted_with_numbers(
    lab: Lab2026, systems: Path, languages: tuple[str, ...]
) -> None:
    without_note(lab.data("blind"))
    file = lab.folder / "mine.zip"
    words = [f"--systems={systems}", "--only=BM25", "--claims=original", f"--submit={file}"]
    out = lab.run(evaluate.main, "blind", "out", *words, "--languages", *languages)
    if languages == LANGUAGES:
        assert score_2026(lab.golds, file)["macro"] > 0.2
    with zipfile.ZipFile(file) as packed:
        for lang in languages:
            lines = packed.read(f"predictions_{lang}.tsv").decode().splitlines()
            assert re.fullmatch(r"\d+\t\[\d{4}(, \d{4}){4}\]", lines[1])
    # A note says so, because it is inferred.
    assert "prepare checkthat2026" in (out / "report.md").read_text()


def test_a_mixed_data_set_is_not_the_labs(lab: Lab2026, systems: Path) -> None:
    mixed = lab.folder / "mixed"
    prepare(["mixed", "--sets", str(lab.data("known")), "demo", f"--output={mixed}"])
    corpus = [json.loads(line) for line in (mixed / "corpus.jsonl").read_text().splitlines()]
    assert all("numeric_id" not in entry["metadata"] for entry in corpus)
    words = [f"--dataset={mixed}", "--split=test", f"--systems={systems}", "--only=BM25"]
    words += [f"--out={lab.folder / 'out'}", f"--submit={lab.folder / 'mine.zip'}"]
    with pytest.raises(ConfigError) as error:
        evaluate.main([*words, "--claims=original"])
    assert error.value.key == "submit" and not (lab.folder / "out").exists()


@pytest.mark.slow
def test_processes_from_the_raw_files_to_a_zip(lab: Lab2026, systems: Path) -> None:
    def ran(file: str, *words: object) -> None:
        process = program(file, *words, cwd=lab.folder)
        assert process.returncode == 0, process.stderr

    ran("scripts/prepare.py", "checkthat2026", "--input=blind", "--output=data")
    words = ["--dataset=data", "--split=test", f"--systems={systems}", "--only=BM25"]
    ran("eval/evaluate.py", *words, "--claims=original", "--out=out", "--submit=a.zip")
    assert score_2026(lab.golds, lab.folder / "a.zip")["macro"] > 0.2


def write_tsv(path: Path, posts: Sequence[dict[str, object]], columns: Sequence[str]) -> None:
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, delimiter="\t", extrasaction="ignore")
        writer.writeheader()
        writer.writerows(posts)


@pytest.mark.parametrize("numbers", [False, True])
def test_a_submission_of_2025_has_texts_even_of_digits(
    tmp_path: Path, systems: Path, numbers: bool
) -> None:
    """Ids of 2025 are texts in its TSV files, of whatever type they are in the collection."""
    raw, file = tmp_path / "raw", tmp_path / "mine.zip"
    raw.mkdir()
    ids: list[str | int] = [9000 + n if numbers else f"cord{n:04}" for n in range(PAPERS)]
    frame = pandas.DataFrame(
        {
            "cord_uid": ids,
            "title": [f"Effect of {topic} on health" for topic in TOPICS[:PAPERS]],
            "abstract": [f"We studied {topic}." for topic in TOPICS[:PAPERS]],
            "authors": "Doe, Jane",
            "journal": "A Journal",
            "publish_time": "2020-01-01",
        }
    )
    frame.to_pickle(raw / "subtask4b_collection_data.pkl")
    posts = [
        {"post_id": n, "tweet_text": post["text"], "cord_uid": ids[n % PAPERS]}
        for n, post in enumerate(claims("en", 0, PAPERS))
    ]
    columns = ["post_id", "tweet_text", "cord_uid"]
    for split in ("train", "dev"):
        write_tsv(raw / f"subtask4b_query_tweets_{split}.tsv", posts, columns)
    write_tsv(raw / "subtask4b_query_tweets_test.tsv", posts, columns[:2])
    write_tsv(tmp_path / "gold.tsv", posts, columns)
    prepare(["checkthat2025", f"--input={raw}", f"--output={tmp_path / 'data'}"])
    words = [f"--dataset={tmp_path / 'data'}", f"--systems={systems}", "--only=BM25"]
    words += ["--claims=original", f"--store={tmp_path / 'store'}", "--repeats=20"]
    evaluate.main([*words, "--split=test", f"--out={tmp_path / 'a'}", f"--submit={file}"])
    evaluate.main([*words, "--split=dev", f"--out={tmp_path / 'b'}"])
    ours = Report.read(tmp_path / "b").systems["BM25.original"].macro["mrr@5"]
    assert score_2025(tmp_path / "gold.tsv", file) == pytest.approx(ours) and ours > 0.2


def test_rumours_keep_numbers_of_the_organisers_file(tmp_path: Path) -> None:
    numbered = json.loads(json.dumps(RUMORS))
    for number, rumor in enumerate(numbered):
        rumor["id"] = number
        for tweet in (*rumor["timeline"], *rumor["evidence"]):
            tweet[1] = int(tweet[1])
    path = write_rumors(tmp_path / "English_dev.json", numbered)
    (tmp_path / "plain.yaml").write_text("System 0: {retrieve: {fielded: {}}}")
    words = [f"--dataset={path}", f"--systems={tmp_path / 'plain.yaml'}", "--repeats=20"]
    file = tmp_path / "mine.zip"
    rumors.main([*words, f"--out={tmp_path / 'out'}", f"--submit={file}"])
    with zipfile.ZipFile(file) as packed:
        entries = json.loads(packed.read("verification.json"))
    assert [entry["id"] for entry in entries] == [0, 1, 2]
    for entry, rumor in zip(entries, numbered, strict=True):
        timeline = [tweet[:3] for tweet in rumor["timeline"]]
        assert entry["predicted_evidence"]
        assert all(tweet[:3] in timeline for tweet in entry["predicted_evidence"])
    # Texts instead of numbers are refused.
    entries[1]["id"] = "1"
    entries[0]["predicted_evidence"][0][1] = "11"
    write_json(tmp_path / "texts.json", entries)
    with pytest.raises(InputError) as error:
        read_verification(tmp_path / "texts.json", load_rumors(path))
    fields = [problem.field for problem in error.value.problems]
    assert fields == ["0.predicted_evidence.0.id", "1.id"]
