"""The 2026 paper's outputs: golden files, the names of their claims, and refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from claim2source.eval import score

from claim2source.core.errors import InputError, UserError
from claim2source.core.run import Run
from claim2source.data.released import read_selections, with_selected
from claim2source.data.trec import RunFile, named_as, read_run, write_trec_run
from tests.refusals import refused


def claim_of(index: int, gold: str, *rows: tuple[Any, ...]) -> dict[str, Any]:
    """A claim as `save_scores_json` of the released code writes it."""
    names = ("pubkey", "embedding_score", "reranker_rank", "reranker_score")
    ranked: list[dict[str, Any]] = []
    for rank, row in enumerate(rows, 1):
        scored = dict(zip(names, row, strict=True))
        one = {
            "rank": rank,
            "corpus_index": rank + 4,
            "document_text": "A paper",
            **scored,
        }
        ranked.append(one)
    return {
        "query_index": index,
        "query_text": "Masks help.",
        "ground_truth_pubkey": gold,
        "candidates": ranked,
    }


FIVE = [
    ("81", 0.506413, 3, 0.4375),
    ("944", 0.500746, 1, 0.652344),
    ("34", 0.496181, 2, 0.4375),
    ("7", 0.4, None, None),
]
SEVEN = [
    ("34", 0.3, 2, 0.1),
    ("81", 0.2, 1, 0.9),
]
FIRST = claim_of(5, "944", *FIVE)
SECOND = claim_of(7, "34", *SEVEN)
GOLDEN = json.dumps([FIRST, SECOND], indent=4)
SELECTIONS = """{
  "de_0": {"selected_paper": 3, "reasoning": "Paper 3 names the animal."},
  "de_1": {"selected_paper": null, "reasoning": ""},
  "en_0": {"selected_paper": 1, "reasoning": "First."}
}"""


def write(folder: Path, content: str, name: str = "scores") -> Path:
    path = folder / name
    path.write_text(content, encoding="utf-8")
    return path


def entry(**options: Any) -> dict[str, Any]:
    one = {
        "rank": 1,
        "pubkey": "a",
        "embedding_score": 0.5,
    }
    return {
        "query_index": 1,
        "ground_truth_pubkey": "a",
        "candidates": [one],
        **options,
    }


def listed(run: Run) -> dict[str, list[str]]:
    return {claim: run.sources(claim) for claim in run.claim_ids}


def test_the_golden_file_is_ranked_by_its_reranker_in_its_order(tmp_path: Path) -> None:
    path = write(tmp_path, GOLDEN)
    file = read_run(path)
    # 81 and 34 tie: the file has 34 first, a run would rank the larger id, 81, first.
    assert listed(file.run) == {
        "5": ["944", "34", "81"],
        "7": ["81", "34"],
    }
    assert file.golds == {"5": "944", "7": "34"}
    assert file.repeated == 0
    assert file.complete
    scored = file.run.scored("5")
    scores = list(scored.values())
    assert scores == pytest.approx([0.652344, 0.4375, 0.4375])
    assert scores[1] > scores[2]


def test_the_first_stage_is_in_the_same_file(tmp_path: Path) -> None:
    path = write(tmp_path, GOLDEN)
    run = read_run(path, "embedding").run
    assert listed(run) == {
        "5": ["81", "944", "34", "7"],
        "7": ["34", "81"],
    }
    scored = run.scored("7")
    assert list(scored.values()) == pytest.approx([0.3, 0.2])
    # Without a re-ranker its fields are missing, and the embeddings rank.
    record = json.loads(GOLDEN)
    for one in record:
        for candidate in one["candidates"]:
            del candidate["reranker_rank"]
            del candidate["reranker_score"]
    content = json.dumps(record)
    plain = write(tmp_path, content, "p")
    assert list(read_run(plain).run) == list(run)


def test_many_ties_keep_the_order_and_nearly_the_score(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    keys = [f"p{i}" for i in rng.permutation(100)]
    candidates: list[dict[str, Any]] = []
    for rank, key in enumerate(keys, 1):
        one = {
            "rank": rank,
            "pubkey": key,
            "embedding_score": 0.25,
        }
        candidates.append(one)
    content = json.dumps([entry(candidates=candidates)])
    path = write(tmp_path, content)
    run = read_run(path).run
    assert run.sources("1") == keys
    assert min(run.scores) == pytest.approx(0.25, abs=1e-5)
    written = tmp_path / "r.trec"
    write_trec_run(run, written)
    rerun = read_run(written).run
    assert rerun.sources("1") == keys


GOLDS = {
    "dev-en-5": ("1",),
    "dev-en-7": ("2",),
    "dev-de-5": ("944",),
    "dev-de-7": ("34",),
    "dev-de-8": ("34",),
}


def test_claims_get_the_front_under_which_their_golds_are_the_known_ones(tmp_path: Path) -> None:
    unnamed = read_run(write(tmp_path, GOLDEN))
    file = named_as(unnamed, GOLDS)
    assert file.front == "dev-de-"
    assert file.golds == {"dev-de-5": "944", "dev-de-7": "34"}
    run = file.run
    assert run.sources("dev-de-7") == ["81", "34"]
    assert len(run.claim_ids) == 2
    assert run.scored("dev-de-5")
    assert not run.scored("5")
    assert file.language_among(["en", "de"]) == "de"
    # Known ids get no prefix.
    same = read_run(write(tmp_path, GOLDEN))
    known_ids = {"5": ("944",), "dev-de-5": ("944",)}
    assert named_as(same, known_ids) is same
    # Known claims of another collection, and an impossible prefix: ids are unchanged.
    other_collection = {"dev-de-5": ("1",), "dev-de-7": ("34",)}
    assert named_as(same, other_collection) is same
    impossible = {"dev-de15": (), "x7": ()}
    assert named_as(same, impossible) is same


def test_another_split_is_seen_by_its_golds_and_no_language_is_guessed(tmp_path: Path) -> None:
    file = read_run(write(tmp_path, GOLDEN))
    other_split = {"5": ("944",), "7": ("81",)}
    with refused(InputError, "ground_truth_pubkey: ", "'34'", "'7'"):
        named_as(file, other_split)

    submission = "index\tpreds\n5\t['944']\n7\t['1']\n"
    file = read_run(write(tmp_path, submission))
    with refused(InputError, "'5'", "'dev-de-5' or 'dev-en-5'"):
        named_as(file, GOLDS)
    german: dict[str, tuple[str, ...]] = {}
    for claim, golds in GOLDS.items():
        if "-de-" in claim:
            german[claim] = golds
    named = named_as(file, german)
    assert named.run.claim_ids == ("dev-de-5", "dev-de-7")

    empty = Run.from_lists({})
    file = RunFile(tmp_path, empty, 0)
    assert file.language_among(["fr"]) == "fr"
    with refused(UserError, "en, de"):
        file.language_among(["en", "de"])


def test_the_selected_source_is_first_and_the_rest_keep_their_order(tmp_path: Path) -> None:
    golden = write(tmp_path, GOLDEN)
    run = read_run(golden).run
    path = write(tmp_path, SELECTIONS, "selections")
    selections = read_selections(path)
    assert selections == {
        "de": {0: 3, 1: None},
        "en": {0: 1},
    }
    selected = with_selected(run, path, selections, "de")
    assert listed(selected) == {
        "5": ["81", "944", "34"],
        "7": ["81", "34"],
    }
    # The paper's bonus: 1 above the best.
    scored = selected.scored("5")
    assert scored["81"] == pytest.approx(1.652344)
    assert selected.scored("7") == run.scored("7")

    bare = write(tmp_path, '{"de_0": 2, "de_1": null}', "bare")
    selections = read_selections(bare)
    selected = with_selected(run, path, selections, "de")
    assert selected.sources("5") == ["34", "944", "81"]


def test_selections_that_are_none_or_of_another_list_are_refused(tmp_path: Path) -> None:
    broken = [
        ("[]", None),
        ('{"de_0": {"selected_paper": 0}}', "de_0.selected_paper"),
        ('{"de": {"selected_paper": 1}}', "de"),
    ]
    for content, field in broken:
        path = write(tmp_path, content)
        with refused(InputError) as error:
            read_selections(path)
        first = error.value.problems[0]
        assert first.field == field

    golden = write(tmp_path, GOLDEN)
    run = read_run(golden).run
    path = tmp_path / "s"
    lacking: list[tuple[dict[str, dict[int, int | None]], str, str]] = [
        ({"de": {2: 1}}, "de_2: ", "2 claims"),
        ({"de": {1: 3}}, "de_1.selected_paper: 3 ", "2 sources"),
        ({"fr": {0: 1}}, "'de'", "fr"),
    ]
    for selections, *facts in lacking:
        with refused(InputError, path, *facts):
            with_selected(run, path, selections, "de")


def candidate(**options: Any) -> dict[str, Any]:
    one = {
        "rank": 1,
        "pubkey": "a",
        "embedding_score": 0.5,
        **options,
    }
    return entry(candidates=[one])


def test_hostile_files_are_refused_with_place_and_field(tmp_path: Path) -> None:
    with_a_list = json.dumps([entry(), 3]).replace("3]", "[]]")
    gold_list = entry(ground_truth_pubkey=[1])
    without_key = candidate(pubkey=None)
    not_finite = candidate(embedding_score=float("nan"))
    hostile = [
        (SELECTIONS, "selections"),
        (with_a_list, "entry 2: ", "object"),
        (json.dumps([entry(), entry()]), "query_index: entry 2: '1' "),
        (
            json.dumps([gold_list]),
            "ground_truth_pubkey: entry 1: ",
            "a list",
        ),
        (json.dumps([without_key]), "candidates[0].pubkey: entry 1: "),
        (json.dumps([not_finite]), "embedding_score: entry 1: "),
        (
            GOLDEN.replace('"rank": 2', '"rank": 1'),
            "[1].rank: ",
            ": 1 ",
        ),
        (GOLDEN.replace("0.3,", "0.1,"), "entry 2: '81' "),
    ]
    for content, *facts in hostile:
        path = write(tmp_path, content)
        with refused(InputError, *facts) as error:
            read_run(path, "embedding")
        for line in error.value.lines:
            assert line.startswith(str(path))
            assert len(line) < 400

    # A claim without re-ranked candidates is not an empty list.
    entries = json.loads(GOLDEN)
    for one in entries[1]["candidates"]:
        one["reranker_rank"] = None
        one["reranker_score"] = None
    path = write(tmp_path, json.dumps(entries))
    with refused(InputError, "candidates: entry 2: ", "reranker_rank"):
        read_run(path)


def test_the_authors_outputs_are_scored_against_our_judgements(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = ["query-id\tcorpus-id\tscore"]
    for claim, golds in GOLDS.items():
        rows += [f"{claim}\t{gold}\t1" for gold in golds]
    qrels = write(tmp_path, "\n".join(rows), "dev.tsv")
    scores = write(tmp_path, GOLDEN, "theirs.json")
    selections = write(tmp_path, SELECTIONS, "llm.json")
    words = [
        "--qrels",
        str(qrels),
        "--run",
        str(scores),
        "--metrics",
        "mrr@5",
        "--json",
    ]

    def means(*options: str) -> dict[str, float]:
        score.main([*words, *options])
        printed = json.loads(capsys.readouterr().out)
        sums: dict[str, float] = {}
        for name, value in printed["runs"].items():
            sums[name] = round(5 * value["mrr@5"], 4)
        return sums

    assert means() == {"theirs": 1 + 1 / 2}
    by_embedding = means("--ranked_by", "embedding")
    assert by_embedding == {"theirs": 1 / 2 + 1}
    # The LLM moves 81 before the gold, and both are tested against each other.
    by_llm = means("--selections", str(selections))
    assert by_llm == {"theirs": 1.5, "theirs + llm": 1.0}
