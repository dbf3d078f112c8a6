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
    ranked = [
        {"rank": rank, "corpus_index": rank + 4, "document_text": "A paper"}
        | dict(zip(names, row, strict=True))
        for rank, row in enumerate(rows, 1)
    ]
    text = {"query_index": index, "query_text": "Masks help.", "ground_truth_pubkey": gold}
    return {**text, "candidates": ranked}


FIVE = [("81", 0.506413, 3, 0.4375), ("944", 0.500746, 1, 0.652344)]
FIVE += [("34", 0.496181, 2, 0.4375), ("7", 0.4, None, None)]
SEVEN = [("34", 0.3, 2, 0.1), ("81", 0.2, 1, 0.9)]
GOLDEN = json.dumps([claim_of(5, "944", *FIVE), claim_of(7, "34", *SEVEN)], indent=4)
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
    one = {"rank": 1, "pubkey": "a", "embedding_score": 0.5}
    return {"query_index": 1, "ground_truth_pubkey": "a", "candidates": [one], **options}


def listed(run: Run) -> dict[str, list[str]]:
    return {claim: run.sources(claim) for claim in run.claim_ids}


def test_the_golden_file_is_ranked_by_its_reranker_in_its_order(tmp_path: Path) -> None:
    file = read_run(write(tmp_path, GOLDEN))
    # 81 and 34 tie: the file has 34 first, a run would rank the larger id, 81, first.
    assert listed(file.run) == {"5": ["944", "34", "81"], "7": ["81", "34"]}
    assert file.golds == {"5": "944", "7": "34"} and file.repeated == 0 and file.complete
    scores = list(file.run.scored("5").values())
    assert scores == pytest.approx([0.652344, 0.4375, 0.4375]) and scores[1] > scores[2]


def test_the_first_stage_is_in_the_same_file(tmp_path: Path) -> None:
    path = write(tmp_path, GOLDEN)
    run = read_run(path, "embedding").run
    assert listed(run) == {"5": ["81", "944", "34", "7"], "7": ["34", "81"]}
    assert list(run.scored("7").values()) == pytest.approx([0.3, 0.2])
    # Without a re-ranker its fields are missing, and the embeddings rank.
    record = json.loads(GOLDEN)
    for one in record:
        for candidate in one["candidates"]:
            del candidate["reranker_rank"], candidate["reranker_score"]
    assert list(read_run(write(tmp_path, json.dumps(record), "p")).run) == list(run)


def test_many_ties_keep_the_order_and_nearly_the_score(tmp_path: Path) -> None:
    keys = [f"p{i}" for i in np.random.default_rng(0).permutation(100)]
    candidates = [
        {"rank": i, "pubkey": key, "embedding_score": 0.25} for i, key in enumerate(keys, 1)
    ]
    path = write(tmp_path, json.dumps([entry(candidates=candidates)]))
    run = read_run(path).run
    assert run.sources("1") == keys
    assert min(run.scores) == pytest.approx(0.25, abs=1e-5)
    write_trec_run(run, tmp_path / "r.trec")
    assert read_run(tmp_path / "r.trec").run.sources("1") == keys


GOLDS = {
    "dev-en-5": ("1",),
    "dev-en-7": ("2",),
    "dev-de-5": ("944",),
    "dev-de-7": ("34",),
    "dev-de-8": ("34",),
}


def test_claims_get_the_front_under_which_their_golds_are_the_known_ones(tmp_path: Path) -> None:
    file = named_as(read_run(write(tmp_path, GOLDEN)), GOLDS)
    assert file.front == "dev-de-" and file.golds == {"dev-de-5": "944", "dev-de-7": "34"}
    assert listed(file.run)["dev-de-7"] == ["81", "34"] and len(file.run.claim_ids) == 2
    assert file.run.scored("dev-de-5") and not file.run.scored("5")
    assert file.language_among(["en", "de"]) == "de"
    # Known ids get no prefix.
    same = read_run(write(tmp_path, GOLDEN))
    assert named_as(same, {"5": ("944",), "dev-de-5": ("944",)}) is same
    # Known claims of another collection, and an impossible prefix: ids are unchanged.
    assert named_as(same, {"dev-de-5": ("1",), "dev-de-7": ("34",)}) is same
    assert named_as(same, {"dev-de15": (), "x7": ()}) is same


def test_another_split_is_seen_by_its_golds_and_no_language_is_guessed(tmp_path: Path) -> None:
    file = read_run(write(tmp_path, GOLDEN))
    with refused(InputError, "ground_truth_pubkey: ", "'34'", "'7'"):
        named_as(file, {"5": ("944",), "7": ("81",)})
    file = read_run(write(tmp_path, "index\tpreds\n5\t['944']\n7\t['1']\n"))
    with refused(InputError, "'5'", "'dev-de-5' or 'dev-en-5'"):
        named_as(file, GOLDS)
    german = {claim: golds for claim, golds in GOLDS.items() if "-de-" in claim}
    assert named_as(file, german).run.claim_ids == ("dev-de-5", "dev-de-7")
    file = RunFile(tmp_path, Run.from_lists({}), 0)
    assert file.language_among(["fr"]) == "fr"
    with refused(UserError, "en, de"):
        file.language_among(["en", "de"])


def test_the_selected_source_is_first_and_the_rest_keep_their_order(tmp_path: Path) -> None:
    run = read_run(write(tmp_path, GOLDEN)).run
    path = write(tmp_path, SELECTIONS, "selections")
    selections = read_selections(path)
    assert selections == {"de": {0: 3, 1: None}, "en": {0: 1}}
    selected = with_selected(run, path, selections, "de")
    assert listed(selected) == {"5": ["81", "944", "34"], "7": ["81", "34"]}
    # The paper's bonus: 1 above the best.
    assert selected.scored("5")["81"] == pytest.approx(1.652344)
    assert selected.scored("7") == run.scored("7")
    selections_file = read_selections(write(tmp_path, '{"de_0": 2, "de_1": null}', "bare"))
    assert listed(with_selected(run, path, selections_file, "de"))["5"] == ["34", "944", "81"]


def test_selections_that_are_none_or_of_another_list_are_refused(tmp_path: Path) -> None:
    for content, field in [
        ("[]", None),
        ('{"de_0": {"selected_paper": 0}}', "de_0.selected_paper"),
        ('{"de": {"selected_paper": 1}}', "de"),
    ]:
        with refused(InputError) as error:
            read_selections(write(tmp_path, content))
        assert error.value.problems[0].field == field
    run = read_run(write(tmp_path, GOLDEN)).run
    lacking: list[tuple[dict[str, dict[int, int | None]], str, str]] = [
        ({"de": {2: 1}}, "de_2: ", "2 claims"),
        ({"de": {1: 3}}, "de_1.selected_paper: 3 ", "2 sources"),
        ({"fr": {0: 1}}, "'de'", "fr"),
    ]
    for selections, *facts in lacking:
        with refused(InputError, tmp_path / "s", *facts):
            with_selected(run, tmp_path / "s", selections, "de")


def candidate(**options: Any) -> dict[str, Any]:
    return entry(candidates=[{"rank": 1, "pubkey": "a", "embedding_score": 0.5, **options}])


def test_hostile_files_are_refused_with_place_and_field(tmp_path: Path) -> None:
    for content, *facts in [
        (SELECTIONS, "selections"),
        (json.dumps([entry(), 3]).replace("3]", "[]]"), "entry 2: ", "object"),
        (json.dumps([entry(), entry()]), "query_index: entry 2: '1' "),
        (json.dumps([entry(ground_truth_pubkey=[1])]), "ground_truth_pubkey: entry 1: ", "a list"),
        (json.dumps([candidate(pubkey=None)]), "candidates[0].pubkey: entry 1: "),
        (json.dumps([candidate(embedding_score=float("nan"))]), "embedding_score: entry 1: "),
        (GOLDEN.replace('"rank": 2', '"rank": 1'), "[1].rank: ", ": 1 "),
        (GOLDEN.replace("0.3,", "0.1,"), "entry 2: '81' "),
    ]:
        path = write(tmp_path, content)
        with refused(InputError, *facts) as error:
            read_run(path, "embedding")
        assert all(line.startswith(str(path)) and len(line) < 400 for line in error.value.lines)
    # A claim without re-ranked candidates is not an empty list.
    entries = json.loads(GOLDEN)
    for one in entries[1]["candidates"]:
        one["reranker_rank"] = one["reranker_score"] = None
    with refused(InputError, "candidates: entry 2: ", "reranker_rank"):
        read_run(write(tmp_path, json.dumps(entries)))


def test_the_authors_outputs_are_scored_against_our_judgements(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [f"{claim}\t{gold}\t1" for claim, golds in GOLDS.items() for gold in golds]
    qrels = write(tmp_path, "\n".join(["query-id\tcorpus-id\tscore", *rows]), "dev.tsv")
    scores = write(tmp_path, GOLDEN, "theirs.json")
    selections = write(tmp_path, SELECTIONS, "llm.json")
    words = ["--qrels", str(qrels), "--run", str(scores), "--metrics", "mrr@5", "--json"]

    def means(*options: str) -> dict[str, float]:
        score.main([*words, *options])
        runs = json.loads(capsys.readouterr().out)["runs"]
        return {name: round(5 * value["mrr@5"], 4) for name, value in runs.items()}

    assert means() == {"theirs": 1 + 1 / 2}
    assert means("--ranked_by", "embedding") == {"theirs": 1 / 2 + 1}
    # The LLM moves 81 before the gold, and both are tested against each other.
    assert means("--selections", str(selections)) == {"theirs": 1.5, "theirs + llm": 1.0}
