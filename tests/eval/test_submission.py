"""From the lab's raw files to a checked and zipped submission; what the check refuses."""

from __future__ import annotations

import ast
import csv
import json
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from claim2source.core.errors import ConfigError, InputError, UserError
from claim2source.core.records import Claim, Dataset, Qrels, Source
from claim2source.core.report import Report
from claim2source.core.run import Run
from claim2source.data.submissions import check_submission, lab_source_ids, submission_year
from claim2source.data.trec import read_run
from claim2source.evaluation.files import require_submittable, submit
from claim2source.systems.read import SYSTEMS_FOLDER
from tests.llm_server import LLMServer
from tests.llm_server import verifiers as play
from tests.processes import program
from tests.refusals import refused
from tests.training.reranker.small import small_rerankers
from tests.training.small import TOPICS, say_pooling

LANGUAGES = ("en", "de", "fr")
POOL = tuple(Source(f"p{i}", f"Title {i}", "Text.") for i in range(7))


def raw_files(folder: Path) -> dict[str, list[int]]:
    """Write the task's files, the test without golds; returns the test's indices by language."""
    folder.mkdir()
    papers = [
        {
            "pubkey": 9000 + i,
            "title": f"Effect of {topic} on health",
            "abstract": f"We studied {topic} in {100 + i} adults.",
            "venue": "A Journal",
            "authors": "A. Author",
        }
        for i, topic in enumerate(TOPICS[:15])
    ]
    (folder / "collection_data.json").write_text(json.dumps(papers))
    indices = {}
    translations = []
    for offset, lang in enumerate(LANGUAGES):
        indices[lang] = list(range(3 - offset, 8))  # the same numbers in several languages
        claims = [{"index": i, "text": f"study {i} on {TOPICS[i]} ({lang})"} for i in indices[lang]]
        (folder / f"{lang}_test.json").write_text(json.dumps(claims))
        train = [{"index": i, "text": f"{TOPICS[i]} {lang}", "pubkey": 9000 + i} for i in range(4)]
        (folder / f"{lang}_train.json").write_text(json.dumps(train))
        translations += [
            {"index": i, "lang": lang, "split": "test", "translation": f"study on {TOPICS[i]}"}
            for i in indices[lang]
            if lang != "en"
        ]
    lines = "".join(json.dumps(row) + "\n" for row in translations)
    (folder / "translations.jsonl").write_text(lines)
    return indices


@pytest.mark.slow
def test_the_winning_system_is_submitted_from_the_labs_raw_files(
    tmp_path: Path, llm_server: Callable[..., LLMServer]
) -> None:
    """The shipped pipeline as a process, with small weights and a server that plays the model."""
    verifier = play.Verifier(lambda question: len(question.papers) - 1)
    server = llm_server(verifier, model="moonshotai/Kimi-K2.6")
    indices = raw_files(tmp_path / "raw")
    rerankers, models = small_rerankers(tmp_path / "small"), tmp_path / "models"
    say_pooling(rerankers["encoder"], 64)
    models.mkdir()
    (models / "Qwen3-Reranker-8B").symlink_to(rerankers["yes_no"])
    (models / "GritLM-7B").symlink_to(rerankers["encoder"])
    (models / "gritlm_f_paper").symlink_to(rerankers["encoder"])
    # As shipped, but for the server's address and the small model's length.
    text = (SYSTEMS_FOLDER / "claim2source_2026.yaml").read_text()
    assert text.count("http://localhost:8000/v1") == 1
    config = tmp_path / "claim2source_2026.yaml"
    config.write_text(text.replace("http://localhost:8000/v1", server.url))
    papers = (SYSTEMS_FOLDER / "papers_2026.yaml").read_text()
    (tmp_path / "papers_2026.yaml").write_text(papers.replace("max_length: 512", "max_length: 64"))

    def ran(file: str, *words: object) -> str:
        process = program(file, *words, cwd=tmp_path, HF_HUB_OFFLINE="0")
        assert process.returncode == 0, process.stderr
        return process.stdout + process.stderr

    ran(
        "scripts/prepare.py",
        *("checkthat2026", "--input=raw", "--output=data"),
        "--translations=raw/translations.jsonl",
    )
    output = ran(
        "eval/evaluate.py",
        *("--systems", config, "papers_2026.yaml", "--only=claim2source_2026"),
        *("--models=models", "--offline"),
        *("--dataset=data", "--split=test", "--device=cpu", "--out=out", "--submit=sub/mine.zip"),
    )
    assert "No golds in test" in output and "predictions_fr.tsv (" in output
    assert server.requests == sum(map(len, indices.values()))
    pool_ids = {9000 + i for i in range(15)}
    with zipfile.ZipFile(tmp_path / "sub" / "mine.zip") as packed:
        assert packed.namelist() == [f"predictions_{lang}.tsv" for lang in LANGUAGES]
        for lang in LANGUAGES:
            content = packed.read(f"predictions_{lang}.tsv")
            beside = (
                tmp_path
                / "out"
                / "claim2source_2026.bilingual"
                / "submission_2026"
                / f"predictions_{lang}.tsv"
            )
            assert content == beside.read_bytes()
            header, *rows = csv.reader(content.decode().splitlines(), delimiter="\t")
            assert header == ["index", "preds"]
            assert [int(index) for index, _ in rows] == indices[lang]
            before = read_run(
                tmp_path / "out" / "claim2source_2026.bilingual" / "runs" / "1" / f"{lang}.trec"
            ).run
            for index, listed in rows:
                ids = ast.literal_eval(listed)
                assert len(ids) == len(set(ids)) == 5 and set(ids) <= pool_ids
                # The verifier's own choice: the tenth of the re-ranker's.
                ranked = before.sources(f"test-{lang}-{index}")
                assert [str(key) for key in ids] == [ranked[9], *ranked[:4]]
    report = Report.read(tmp_path / "out")
    assert len(report.systems) == 3 and not report.scored
    assert (tmp_path / "out" / "report.md").is_file()


def dataset(*ids: str, split: str = "test", lang: str = "en") -> Dataset:
    return Dataset(tuple(Claim(claim_id, "text", lang) for claim_id in ids), POOL, Qrels({}), split)


def test_the_year_follows_from_the_claims() -> None:
    assert submission_year(dataset("test-1", "test-2")) == 2025
    assert submission_year(dataset("test-en-1", "test-en-2")) == 2026
    assert submission_year(dataset("test-1", lang="de")) == 2026


def test_a_2025_submission_has_one_file_and_is_filled_up_where_the_ranking_is_short(
    tmp_path: Path,
) -> None:
    data = dataset("test-7", "test-8", "test-9")
    run = Run.from_lists({"test-8": [("p3", 2.0), ("p0", 1.0)], "test-7": [("p6", 1.0)]})
    output = submit(tmp_path / "a.zip", run, data)
    with zipfile.ZipFile(tmp_path / "a.zip") as packed:
        assert packed.namelist() == ["predictions.tsv"]
        text = packed.read("predictions.tsv").decode()
    rows = list(csv.reader(text.splitlines(), delimiter="\t"))
    assert rows == [
        ["post_id", "preds"],
        ["7", "['p6', 'p0', 'p1', 'p2', 'p3']"],
        ["8", "['p3', 'p0', 'p1', 'p2', 'p4']"],
        ["9", "['p0', 'p1', 'p2', 'p3', 'p4']"],
    ]
    assert "3 claims have fewer than 5" in " ".join(output)
    assert submit(None, run, data) == []


def test_a_submission_that_the_lab_would_refuse_is_not_written(tmp_path: Path) -> None:
    run = Run.from_lists({"test-1": [(f"x{i}", -float(i)) for i in range(6)]})
    with refused(InputError, "'x0'"):
        submit(tmp_path / "a.zip", run, dataset("test-1"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("index\tpreds\n1\t{five}\n", ("'2'",)),
        ("index\tpreds\n1\t{five}\n2\t{five}\n3\t{five}\n", (":4: ", "'3'")),
        ("index\tpreds\n1\t{five}\n1\t{five}\n2\t{five}\n", (":3: ", "line 2")),
        ("index\tpreds\n1\t{five}\n2\t['p0','p1','p2','p3']\n", (":3: ", "4 distinct", " 5")),
        ("index\tpreds\n1\t{five}\n2\t['p0','p0','p1','p2','p3']\n", (":3: ", "4 distinct")),
        ("index\tpreds\n1\t{five}\n2\t['p0','p1','p2','p3','p4','p5']\n", (":3: ", "6 distinct")),
        ("index\tpreds\n1\t{five}\n2\t['p0','p1','p2','p3','q']\n", (":3: ", "'q'")),
        ("index\tpreds\n1\t{five}\n2\tp0 p1\n", (":3: ", "list")),
        ("post_id\tpreds\n1\t{five}\n2\t{five}\n", ("index <tab> preds",)),
        ("", ()),
    ],
)
def test_a_file_is_checked_as_the_lab_checks_it(
    tmp_path: Path, text: str, facts: tuple[str, ...]
) -> None:
    file = tmp_path / "predictions_en.tsv"
    file.write_text(text.format(five="['p0','p1','p2','p3','p4']"))
    with refused(InputError, file, *facts):
        check_submission(file, 2026, {"1", "2"}, {source.id for source in POOL})
    file.write_text("index\tpreds\n1\t['p0','p1','p2','p3','p4']\n2\t['p6','p1','p2','p3','p4']\n")
    check_submission(file, 2026, {"1", "2"}, {source.id for source in POOL})


def test_the_check_compares_ids_as_the_lab_has_them(tmp_path: Path) -> None:
    file = tmp_path / "predictions_en.tsv"
    numbers, texts = {9, 1, 2, 3, 44}, {"9", "1", "2", "3", "44"}
    for preds, right, wrong in (
        ("[9, 1, 2, 3, 44]", numbers, texts),
        ("['9', '1', '2', '3', '44']", texts, numbers),
    ):
        file.write_text(f"index\tpreds\n1\t{preds}\n")
        check_submission(file, 2026, {"1"}, right)
        with pytest.raises(InputError) as error:
            check_submission(file, 2026, {"1"}, wrong)
        (problem,) = error.value.problems
        assert (problem.line, problem.field) == (2, "preds")
    file.write_text("index\tpreds\n1\t[9, 1, 2, 3, '44']\n")
    with pytest.raises(InputError):
        check_submission(file, 2026, {"1"}, numbers)
    check_submission(file, 2026, {"1"}, {9, 1, 2, 3, "44"})


@pytest.mark.parametrize(
    ("ids", "claim", "numeric"),
    [
        (("9444", "-1", "0"), "test-de-7", True),
        (("9444", "007"), "test-de-7", False),
        (("9444", "p22"), "test-de-7", False),
        (("9444", "+7"), "test-de-7", False),
        (("9444", "\u0661\u0662"), "test-de-7", False),
        (("9444",), "7", False),
        (("9444",), "test-7", False),
        (("9444",), "train-de-7", True),
    ],
)
def test_a_data_set_without_a_note_has_numbers_if_it_is_of_2026_and_all_could_be(
    ids: tuple[str, ...], claim: str, numeric: bool
) -> None:
    sources = tuple(Source(key, "Title") for key in ids)
    data = Dataset((Claim(claim, "text", "de"),), sources, Qrels({}), "test")
    assert lab_source_ids(data) == {key: int(key) if numeric else key for key in ids}
    noted = replace(data, numeric_ids=frozenset(ids[:1]))
    assert lab_source_ids(noted) == {key: int(key) if key == ids[0] else key for key in ids}


def test_what_is_wrong_with_the_data_is_known_at_once(tmp_path: Path) -> None:
    file, rows = tmp_path / "a.zip", ["a"]
    require_submittable(None, dataset("test-1", lang="xx"), [])
    require_submittable(file, dataset("test-en-1", "test-1"), rows)
    with refused(ConfigError, "submit: ", "xx"):
        require_submittable(file, dataset("test-1", lang="xx"), rows)
    with pytest.raises(InputError, match="'1' "):
        require_submittable(file, dataset("test-de-1", "test-1", lang="de"), rows)
    small = Dataset(dataset("test-1").claims, POOL[:4], Qrels({}), "test")
    with refused(ConfigError, "submit: ", "5 sources", " 4"):
        require_submittable(file, small, rows)
    for wrong in ([], ["a", "b"]):
        with refused(UserError, "submit: ", f" {len(wrong)} ("):
            require_submittable(file, dataset("test-1"), wrong, "choose")
    with zipfile.ZipFile(file, "w") as packed:
        packed.writestr("thesis.tex", "a user's own")
    with refused(InputError, f"{file}: "):
        require_submittable(file, dataset("test-1"), rows)
