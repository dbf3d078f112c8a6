"""`eval/index.py` from its arguments to the index."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from claim2source.eval.find import main as find
from claim2source.eval.index import main

from claim2source.core.errors import ConfigError, UserError
from claim2source.core.records import Source
from claim2source.core.validate import validated
from claim2source.data.beir import write_beir
from claim2source.data.loading import load
from claim2source.find.abstention import AbstainModel
from claim2source.find.processes import process_shard
from claim2source.search.engine import Engine, open_index
from tests.refusals import refused
from tests.search.engines import read_any_manifest
from tests.training.small import say_pooling


@pytest.fixture
def model(tiny_folder: Path) -> list[str]:
    return ["--model", str(tiny_folder), "--model.pooling", "mean", "--model.max_length", "32"]


@pytest.fixture
def papers(tmp_path: Path) -> Path:
    rows = "".join(
        f"{i},claim {'abc'[i % 3]} {i},vaccine works,2020-0{1 + i % 9}\n" for i in range(30)
    )
    path = tmp_path / "papers.csv"
    path.write_text(f"pmid,title,summary,date\n{rows}")
    return path


def output(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out


def test_keys_of_a_model_change_the_indexs_own(
    tmp_path: Path, tiny_folder: Path, papers: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = Path(shutil.copytree(tiny_folder, tmp_path / "own"))
    model = ["--model", str(own), "--model.pooling", "mean", "--model.max_length", "32"]
    out = str(tmp_path / "idx")
    words = [str(papers), "--columns", "id=pmid", "abstract=summary", "--out", out]
    main([*words, *model])
    # The attention's kernel does not change vectors, so the index accepts it.
    main([*words, "--model.attention", "eager"])
    assert "0 added, 0 changed, 30 unchanged" in output(capsys)
    # Another length is another model, of the index's own name.
    with refused(UserError, own):
        main([*words, "--model.max_length", "16"])
    # Its folder has moved: the index's other settings of its model are still used.
    moved = own.rename(tmp_path / "moved")
    main([*words, "--model", str(moved)])
    assert "30 unchanged" in output(capsys)
    find(["claim a", "--index", out, "--model", str(moved)])
    assert "vaccine works" in output(capsys)


def test_an_index_is_made_grows_and_shrinks(
    tmp_path: Path, model: list[str], papers: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "idx")
    words = [str(papers), "--columns", "id=pmid", "abstract=summary", "--out", out]
    main([*words, *model])
    text = output(capsys)
    assert "30 added, 0 changed, 0 unchanged; 30 papers in the index" in text
    assert f'"new study: .." --index {out}' in text and "--claims DATASET" in text
    papers.write_text(
        papers.read_text().replace("claim a 0", "claim b 0") + "30,new,new,2021\n31,,,\n"
    )
    # The model is the index's own. One row without a text refuses nothing.
    main(words)
    text = output(capsys)
    assert "1 added, 1 changed, 29 unchanged; 31 papers in the index" in text
    assert "papers without title and abstract, or without an id: 1" in text
    (tmp_path / "gone.txt").write_text("3\nnone\n\n5\n")
    main(["--out", out, "--delete", str(tmp_path / "gone.txt")])
    assert "2 of 3 papers removed" in output(capsys)
    engine = open_index(out)
    assert engine.stats().papers == 29 and engine.stats().unbuilt == 0
    paper = engine.fetch(["0"])["0"]
    assert paper.source == Source("0", "claim b 0", "vaccine works", date="2020-01")
    assert engine.manifest.rendering.sources == "title_abstract"
    # What is deleted is not added by the same call.
    (tmp_path / "gone.txt").write_text("3\n4\n5\n77\n")
    main([*words, "--lenient", "--delete", str(tmp_path / "gone.txt")])
    text = output(capsys)
    assert "1 of 4 papers removed" in text and "28 unchanged; 28 papers" in text
    assert "papers to be deleted: 3" in text
    assert not open_index(out).fetch(["3", "4", "5"])


def test_retractions_are_marked_and_another_model_comes_and_goes(
    tmp_path: Path, papers: Path, capsys: pytest.CaptureFixture[str], save_tiny: Callable[..., Path]
) -> None:
    out = str(tmp_path / "idx")
    first, second = (
        str(say_pooling(save_tiny(tmp_path / name, seed=i), 32)) for i, name in enumerate("ab")
    )
    store = ["--store", str(tmp_path / "store")]
    main([str(papers), "--columns", "id=pmid", "--out", out, "--model", first, *store])
    watch = tmp_path / "watch.csv"
    watch.write_text(
        "RetractionDate,RetractionDOI,OriginalPaperDOI,OriginalPaperPubMedID,RetractionNature\n"
        "5/12/2020,,,3,Retraction\n"
    )
    main(["--out", out, "--retractions", str(watch)])
    assert "1 papers " in output(capsys)
    assert open_index(out).fetch(["3"])["3"].retracted == "retracted, 2020-05-12"
    main(["--out", out, "--re_encode", second, *store])
    text = output(capsys)
    assert "30 papers: about " in text and f"{out}: 30 papers, " in text and second in text
    engine = open_index(out)
    assert engine.manifest.model is not None and engine.manifest.model.name == second
    assert (
        engine.fetch(["3"])["3"].is_retracted and len(engine.search("claim a", 9).sources("0")) == 9
    )
    main(["--out", out, "--undo"])
    assert first in output(capsys)
    assert open_index(out).search("claim a", 9).sources("0")
    with refused(UserError, "re_encode"):
        main([str(papers), "--out", out, "--re_encode", second])


def test_processes_of_an_array_fill_the_store(
    tmp_path: Path,
    model: list[str],
    papers: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = [str(papers), "--columns", "id=pmid", "--out", str(tmp_path / "idx"), *model]
    words += ["--store", str(tmp_path / "store"), "--batch", "8"]
    for name, value in (("MIN", "3"), ("STEP", "2"), ("COUNT", "2")):
        monkeypatch.setenv(f"SLURM_ARRAY_TASK_{name}", value)
    for task, count in (("3", 16), ("5", 14)):
        monkeypatch.setenv("SLURM_ARRAY_TASK_ID", task)
        main(words)
        assert f"of 2: {count} papers encoded into the store" in output(capsys)
    assert not (tmp_path / "idx").exists()
    files = set((tmp_path / "store").rglob("*.safetensors"))
    assert len(files) >= 4
    main([*words, "--shard", "1/1"])
    assert "30 added" in output(capsys)
    # The last run encoded nothing.
    assert set((tmp_path / "store").rglob("*.safetensors")) == files


def test_the_share_of_a_process() -> None:
    assert process_shard(None, {}) == (0, 1)
    assert process_shard("2/8", {"SLURM_ARRAY_TASK_ID": "1"}) == (1, 8)
    assert process_shard(None, {"RANK": "3", "WORLD_SIZE": "4"}) == (3, 4)
    for wrong in ("0/2", "3/2", "1", "a/b", "1/", "١/٢", "１/２", "²/3"):
        with refused(ConfigError, f"shard: {wrong!r} ", "I/N"):
            process_shard(wrong, {})


def test_other_terms_than_the_index_s_are_refused_before_papers_are_read(tmp_path: Path) -> None:
    Engine.create(tmp_path / "idx", read_any_manifest()).close()
    with refused(UserError, "bm25.language: ", " en", " de"):
        main(["none.jsonl", "--out", str(tmp_path / "idx"), "--bm25.language", "de"])


@pytest.mark.parametrize("left", ["manifest.json is gone", "another folder", "cut", "a file"])
def test_a_target_that_is_no_whole_index_is_refused_before_papers_are_read(
    tmp_path: Path, left: str, model: list[str]
) -> None:
    target, bad = tmp_path / "idx", tmp_path / "bad.jsonl"
    bad.write_text("{\n")
    if left == "another folder":
        target.mkdir()
        (target / "notes.txt").write_text("mine")
    elif left == "a file":
        target.write_text("mine")
    else:
        Engine.create(target, read_any_manifest()).close()
        manifest = target / "manifest.json"
        manifest.unlink() if left != "cut" else manifest.write_bytes(manifest.read_bytes()[:40])
        if left != "cut":
            (target / "papers.lance" / "data").mkdir(exist_ok=True)
            (target / "papers.lance" / "data" / "x.lance").write_bytes(b"papers")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UserError) as error:
        main([str(bad), "--out", str(target), *model])
    assert str(target) in str(error.value) and str(bad) not in str(error.value)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.slow
def test_abstention_is_fitted_on_the_training_claims_of_a_data_set(
    tmp_path: Path, model: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    train = load("demo", "train")
    dataset = train.with_claims(train.claims[:60])
    write_beir(dataset, tmp_path / "few")
    out = str(tmp_path / "idx")
    main([str(tmp_path / "few"), "--out", out, *model])
    assert "verdict fitted on 60 claims of " in output(capsys)
    fitted = open_index(out).manifest.abstain
    assert fitted is not None
    design = validated(AbstainModel, json.dumps(fitted), Path(out)).design
    assert design.stages == ("lexical", "dense", "fused")
    # A copy has it too.
    shutil.copytree(out, tmp_path / "copy")
    assert open_index(tmp_path / "copy").manifest.abstain == fitted
    main(["--out", out, "--source", str(tmp_path / "few"), "--no_abstention"])
    assert "verdict fitted" not in output(capsys)
    with refused(ConfigError, "sentences: ", "true"):
        main(["--out", out, "--source", str(tmp_path / "few"), "--no_sentences"])


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        (["--undo", "--claims", "demo"], ("claims: ", "--undo")),
        (["--undo", "--delete", "gone.txt"], ("delete: ", "--undo")),
        (["--re_encode", "x", "--undo"], ("re_encode: ", "--undo")),
        (["--re_encode", "x", "--no_sentences"], ("sentences: ", "--re_encode")),
        (["--re_encode", "x", "--model", "y"], ("model: ", "--re_encode")),
        (["--delete", "gone.txt", "--model", "y"], ("model: ", "papers")),
        (["--claims", "demo", "--batch", "9"], ("batch: ", "papers")),
        (["demo", "--claims", "demo", "--no_abstention"], ("claims: ", "--no_abstention")),
        (["demo", "--claims", "nosuch", "--model", "none/such"], ("nosuch: ",)),
        (["--re_encode", "x", "--claims", "nosuch"], ("nosuch: ",)),
        (["demo", "--claims", "."], ("corpus.jsonl: ",)),
        ([], ("source: ", "--delete, --retractions")),
        (["demo", "--columns", "id"], ("columns: 'id' ",)),
        (["none.txt", "--bm25.k1", "1.5"], ("bm25.k1: 1.5 ", "1.2")),
        (["demo", "--delete", "none.txt"], ("none.txt: ",)),
        (["demo", "--shard", "2/2", "--model", "none/such"], ("none/such",)),
        (["demo", "--launcher", "ray", "--shard", "1/2"], ("launcher: 'ray' ",)),
        (["demo", "--workers", "2"], ("workers: 2 ", "--launcher")),
        pytest.param(
            ["demo", "--launcher", "ray", "--ray", "127.0.0.1:1"],
            ("ray",),  # no cluster there, or no package ray
            marks=pytest.mark.slow,
        ),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], facts: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    with refused(UserError, *facts):
        main([*words, "--out", "idx"])
    assert not (tmp_path / "idx" / "papers.lance").exists()
    with refused(UserError, "qdrant://..: "):
        main(["demo", "--out", "qdrant://localhost:1/x"])


def ris(*lines: str) -> str:
    return "\n".join(["TY  - JOUR", *lines, "ER  - ", ""])


def test_no_call_replaces_another_paper(
    tmp_path: Path, model: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Two libraries with one id, one paper of both, and each library once more."""
    first, second = tmp_path / "a.ris", tmp_path / "b.bib"
    first.write_text(
        ris("ID  - 12", "TI  - Masks in primary schools", "PY  - 2020")
        + ris("ID  - 13", "TI  - Bats fly at night, far away", "PY  - 2019", "AB  - They do.")
    )
    second.write_text(
        "@article{12, title={Rats find tuberculosis}, year={2021}, abstract={Rats.}}\n"
        "@article{bats, title={Bats fly at Night, far away}, year={2019}, doi={10.5555/b}}\n"
        "@misc{note, note={nothing}}\n"
    )
    out, listed = str(tmp_path / "idx"), tmp_path / "merged.jsonl"
    main([str(first), "--out", out, *model])
    main([str(second), "--out", out, "--merged", str(listed)])
    text = output(capsys)
    assert "1 added, 1 changed, 0 unchanged; 3 papers in the index" in text
    assert "3 records: 2 papers, 0 merged into these, 1 left out" in text
    (merge,) = map(json.loads, listed.read_text().splitlines())
    assert (merge["id"], merge["kept"], merge["by"]) == ("bats", "13", "title")

    def stored() -> dict[str, str]:
        engine = open_index(out)
        papers = engine.sample(3, 3)
        return {paper.source.title: paper.source.id for paper in papers}

    ids = stored()
    assert ids["Masks in primary schools"] == "12" and len(set(ids.values())) == 3
    (bats,) = open_index(out).fetch(["13"]).values()
    assert (bats.doi, bats.source.abstract) == ("10.5555/b", "They do.")
    # Either library again is the same papers, and an update stays one.
    for path in (first, second):
        main([str(path), "--out", out])
        assert "0 added, 0 changed, 2 unchanged; 3 papers in the index" in output(capsys)
    second.write_text(second.read_text().replace("{Rats.}", "{Rats do, in Tanzania.}"))
    main([str(second), "--out", out])
    assert "0 added, 1 changed, 1 unchanged; 3 papers in the index" in output(capsys)
    assert stored() == ids
    rats = open_index(out).fetch([ids["Rats find tuberculosis"]])
    assert [paper.source.abstract for paper in rats.values()] == ["Rats do, in Tanzania."]


def test_two_data_sets_with_the_same_ids_are_both_indexed(
    tmp_path: Path, model: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "idx")
    for name, title in (("a", "Masks in primary schools"), ("b", "Rats find tuberculosis")):
        folder = tmp_path / name
        folder.mkdir()
        row = {"_id": "1", "title": title, "text": f"{title} here."}
        (folder / "corpus.jsonl").write_text(json.dumps(row) + "\n")
    for name in "ab":
        main([str(tmp_path / name / "corpus.jsonl"), "--out", out, *model])
    assert "1 added, 0 changed, 0 unchanged; 2 papers in the index" in output(capsys)
    # A new version of a text is the same paper.
    path = tmp_path / "a" / "corpus.jsonl"
    path.write_text(path.read_text().replace("here", "there").replace("in primary", "at primary"))
    main([str(path), "--out", out])
    assert "0 added, 1 changed, 0 unchanged; 2 papers in the index" in output(capsys)
    assert open_index(out).fetch(["1"])["1"].source.title == "Masks at primary schools"
