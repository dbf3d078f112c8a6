"""`eval/find.py` from a post to its answer: formats, filters, stages, abstention, hostile text."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from claim2source.eval.find import main

from claim2source.core.errors import UserError
from claim2source.core.files import write_json
from claim2source.data.fetch import Fetcher
from claim2source.data.papers import Paper
from claim2source.data.posts import Post
from claim2source.find.abstention import AbstainModel, Design, Tenth
from claim2source.find.answers import as_text
from claim2source.find.finder import INDEX, Finder
from claim2source.search.bm25 import BM25
from claim2source.search.dense import Dense
from claim2source.search.engine import Engine, open_index
from claim2source.search.files import open_files
from claim2source.search.fuse import Hybrid
from claim2source.search.manifest import IndexManifest
from claim2source.stages.learned import FittingData, LearnedFusion, LearnedView
from claim2source.stages.similarities import Scorer, ViewConfig
from claim2source.text import Rendering
from tests.cold import Command, run_cold
from tests.data.social_server import STATUS, serving
from tests.eval.papers import NASTY, PAPERS, POST
from tests.llm_server import LLMServer
from tests.llm_server import verifiers as play
from tests.models.layout import declare
from tests.refusals import refused

Ask = Callable[..., str]
POSTED = Post("0", POST)
CLAIM = POSTED.claim("en")
STAGES = ("lexical", "dense", "fused")


def abstaining(design: Design, weights: tuple[float, ...], bias: float) -> AbstainModel:
    """A model whose features are not scaled."""
    names = tuple(design.names)
    zeros = (0.0,) * len(names)
    ones = (1.0,) * len(names)
    return AbstainModel(design, names, zeros, ones, weights, bias)


def fitted(present: bool) -> AbstainModel:
    """A model that is sure whatever its features are."""
    design = Design(STAGES, 2)
    weights = (0.0,) * len(design.names)
    bias = 3.0 if present else -3.0
    return abstaining(design, weights, bias)


def listed(ask: Ask, post: str, *words: str) -> Any:
    """Return the papers of an answer."""
    return json.loads(ask(post, "--json", *words))


def test_json_is_a_list_of_ten_with_scores_and_their_parts(ask: Ask, index: str) -> None:
    record = listed(ask, POST)
    assert [paper["rank"] for paper in record] == [*range(1, 11)]
    rendering = Rendering("original", "title_abstract")
    dense = Dense(open_index(index).encoder, rendering=rendering)
    by_id = {paper.source.id: paper for paper in PAPERS}
    hybrid = Hybrid(BM25(), dense).index([paper.source for paper in PAPERS])
    expected = hybrid.search([CLAIM], 100).scored("0")
    assert [paper["id"] for paper in record] == list(expected)[:10]
    lexical = hybrid.first.search([CLAIM], 100).scored("0")
    for one in record:
        # Without a model there is no score, null or scaled, that looks like a probability.
        assert one["score"] is one["abstained"] is one["present"] is None
        assert one["verdict"] == "not judged"
        parts = one["parts"]
        assert "fused" not in parts
        key = one["id"]
        if key in lexical:
            assert parts["lexical"] == pytest.approx(lexical[key], rel=1e-5)
        else:
            assert "lexical" not in parts
        paper = by_id[key]
        assert one["title"] == paper.source.title
        assert one["link"] == paper.link
        assert one["authors"] == list(paper.source.authors)
    assert record[0]["link"].startswith("https://doi.org/10.1000/")
    assert listed(ask, POST, "--k", "3") == record[:3]


# Prints the answer, and the slow libraries that were imported for it.
COLD = """
import sys
from claim2source.eval.find import main
main(sys.argv[1:])
slow = "torch transformers sentence_transformers scipy.stats sklearn".split()
print("imported:", *(name for name in slow if name in sys.modules))
"""


@pytest.mark.slow
def test_one_post_is_answered_without_pytorch_and_as_with_it(
    ask: Ask, index: str, tmp_path: Path
) -> None:
    def cold(*words: str) -> tuple[Any, str]:
        words = (*words, "--json", "--index", index, "--store", str(tmp_path / "store"))
        command = [sys.executable, "-c", COLD, *words]
        process = subprocess.run(command, capture_output=True, text=True)
        assert process.returncode == 0, process.stderr
        answer, _, imported = process.stdout.partition("imported:")
        return json.loads(answer), imported.strip()

    for post in (POST, "vaccine", "Masks cut outbreaks. A vaccine works. " * 20):
        expected = listed(ask, post)
        answer, imported = cold(post)
        assert imported == ""
        assert close(answer, expected)
    # The model's folder may be another one, but not its config.
    manifest = json.loads((Path(index) / "manifest.json").read_text())
    folder = shutil.copytree(manifest["model"]["name"], tmp_path / "model")
    declare(folder, sbert={"max_seq_length": 32})
    answer, _ = cold(POST, "--model", str(folder))
    assert close(answer, listed(ask, POST))
    config = json.loads((folder / "config.json").read_text())
    write_json(folder / "config.json", config | {"layer_norm_eps": 1e-5})
    with refused(UserError, index):
        main([POST, "--index", index, "--model", str(folder)])


EARLY = [
    (["--device", "cuda"], "cpu: there is no GPU here"),
    (["--model", "multilingual-e5-smal", "--offline"], "did you mean"),
    (["--index", "nosuch"], "no such folder"),
]


def test_what_cannot_be_is_refused_before_anything_heavy_is_imported(
    index: str, tmp_path: Path
) -> None:
    cases = EARLY[os.path.exists("/dev/nvidiactl") :]
    commands: list[Command] = []
    for words, _ in cases:
        place = [] if "--index" in words else ["--index", index]
        commands.append(Command([POST, *words, *place], str(tmp_path)))
    all_ended = run_cold("eval.find", commands)
    for ended, (words, reason) in zip(all_ended, cases, strict=True):
        assert any(reason in line for line in ended.lines), (words, ended)
        assert ended.heavy == []


def close(left: Any, right: Any) -> bool:
    """Whether JSON values are equal, numbers to 1e-4."""
    if isinstance(left, float):
        return bool(right == pytest.approx(left, abs=1e-4))
    if isinstance(left, dict):
        if left.keys() != right.keys():
            return False
        return all(close(left[key], right[key]) for key in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(close, left, right))
    return bool(left == right)


def test_filters_leave_papers_out(ask: Ask) -> None:
    def ids(*words: str) -> set[str]:
        return {paper["id"] for paper in listed(ask, POST, *words)}

    def ids_of(good: Callable[[Paper], bool]) -> set[str]:
        return {paper.source.id for paper in PAPERS if good(paper)}

    old = ids_of(lambda paper: paper.source.date in ("1 April 2019", ""))
    assert ids("--date", "2019-12") == old
    assert "2021" not in old
    in_nature = ids_of(lambda paper: paper.source.venue == "Nature")
    assert ids("--venue", "NATURE", "--k", "50") == in_nature
    german = ids_of(lambda paper: paper.lang == "de")
    for tag in ("de", "ger", "DE", "de-AT"):
        assert ids("--paper_lang", tag, "--k", "50") == german
    assert ids("--venue", "' OR 1=1") == set()
    assert "no papers" in ask(POST, "--venue", "none")


@contextlib.contextmanager
def knowing(index: str, model: AbstainModel) -> Iterator[None]:
    """An index to which a model of abstention was fitted."""
    before = IndexManifest.read(open_files(index))
    replace(before, abstain=model.as_json()).write(open_files(index))
    try:
        yield
    finally:
        before.write(open_files(index))


def test_none_of_these_is_said_and_the_papers_are_listed_all_the_same(ask: Ask, index: str) -> None:
    not_here = "Not here: the paper is probably not in this index (5 % that it is here)"
    here = "Found: the paper is probably one of these (95 % that it is here)"
    for present in (True, False):
        with knowing(index, fitted(present)):
            record = listed(ask, POST)
            assert len(record) == 10
            assert {paper["abstained"] for paper in record} == {not present}
            share = 0.9526 if present else 0.0474
            assert record[0]["present"] == pytest.approx(share, abs=1e-3)
            text = ask(POST)
            assert (not_here in text) is not present
            assert (here in text) is present
            assert "\n10. " in text and "held-out" not in text
            record = listed(ask, POST, "--threshold", "0.99")
            assert record[0]["abstained"]
    assert ask(POST).startswith("Not judged")


def test_the_features_are_the_scores_of_the_stages(index: str) -> None:
    """Both lists as deep as when it was fitted, whatever is printed."""
    design = Design(STAGES, 3)
    weights = tuple(0.1 * (i + 1) for i in range(len(design.names)))
    model = abstaining(design, weights, -2.0)
    engine = open_index(index)
    results = engine.find([CLAIM], 100)
    stages = {"lexical": results.lexical, "dense": results.dense, "fused": results.fused}
    features = design.features(["0"], stages)
    expected = model.probabilities(features)
    with knowing(index, model):
        for k in (1, 10, 12):
            finder = Finder(open_index(index))
            (answer,) = finder.find([POSTED], k)
            assert answer.present == pytest.approx(float(expected[0]))


def test_papers_that_are_not_built_in_are_told(
    index: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    copy = open_index(shutil.copytree(index, tmp_path / "copy"))
    (rows,) = copy.rows()
    copy.upsert(rows.only([0, 1]))
    copy.close()
    (answer,) = Finder(copy).find([POSTED], 13)
    assert len(answer.matches) == 13
    assert "unfinished" in caplog.text and " 2 papers" in caplog.text
    caplog.clear()
    manifest = replace(copy.manifest, papers=0, stale=False)
    new = tmp_path / "new"
    Engine.create(new, manifest).close()
    (answer,) = Finder(open_index(new)).find([POSTED])
    assert "did not finish" in caplog.text and "unfinished" not in caplog.text
    assert "Version 1 " in as_text(answer)
    caplog.clear()
    Finder(open_index(new, version=1))  # an older state: nobody waits for it
    assert not caplog.text


@pytest.mark.slow
def test_many_posts_keep_their_order_dates_and_languages(
    ask: Ask, tmp_path: Path, index: str
) -> None:
    def answered(path: Path) -> list[dict[str, Any]]:
        text = ask("--input", str(path), "--json")
        return [json.loads(line) for line in text.splitlines()]

    file = tmp_path / "posts.jsonl"
    numbers = [f"n{i}" for i in range(70)]
    posts = [
        {"id": "x", "text": POST},
        {"id": "y", "text": POST, "date": "2019-05-01"},
        {"text": "die Masken claim a", "lang": "de"},
        *({"id": f"n{i}", "text": f"claim {i} a"} for i in range(70)),
    ]
    file.write_text("".join(json.dumps(post) + "\n" for post in posts))
    lines = answered(file)
    assert [line["post"] for line in lines] == ["x", "y", "3", *numbers]
    assert lines[0]["papers"] == listed(ask, POST)
    dates = {paper["date"] for paper in lines[1]["papers"]}
    assert dates == {"2019-04-01", ""}
    rows = list(csv.DictReader(io.StringIO(ask("--input", str(file), "--csv", "--k", "2"))))
    first = [(row["post"], row["rank"]) for row in rows[:4]]
    assert first == [("x", "1"), ("x", "2"), ("y", "1"), ("y", "2")]
    assert len(rows) == 2 * len(posts)
    table = tmp_path / "posts.csv"
    with open(table, "w", newline="") as cells:
        writer = csv.DictWriter(cells, ["Text", "extra", "id", "date", "lang"], delimiter=";")
        writer.writeheader()
        for post in posts:
            named = {"Text" if key == "text" else key: post[key] for key in post}
            writer.writerow({"extra": 'a "b;', **named})
    found = answered(table)
    assert [line["papers"] for line in found] == [line["papers"] for line in lines]
    assert [line["post"] for line in found] == ["x", "y", "4", *numbers]
    for text, reason in ((b"id,words\n1,a\n", "text: "), (b"text\na\n\xff,b\n", ":3")):
        table.write_bytes(text)
        with refused(UserError, table, reason):
            ask("--input", str(table), "--json")
    assert ask("--input", str(file), "--k", "1").count("\npost ") == len(posts) - 1
    german = Post("a", "Eine neue Studie über Masken und Ausbrüche")
    answers = Finder(open_index(index)).find([german, Post("b", "12")])
    assert [answer.lang for answer in answers] == ["de", "en"]


def test_no_text_leaves_its_place_and_a_retraction_is_said(ask: Ask) -> None:
    """A title with a formula, a colour, TeX and a line break, a script for a link: every format."""
    words = (NASTY, "--k", "13")
    text = ask(*words)
    assert "\x1b" not in text and "\u202e" not in text
    assert r"\x1b[31m" in text
    assert text.count("!! RETRACTED, 2021-03-04") == 1
    assert "javascript" not in text
    table = ask(*words, "--csv")
    assert "\x1b" not in table and "javascript" not in table
    rows = list(csv.reader(io.StringIO(table)))
    assert len(rows) == 14
    assert {len(row) for row in rows} == {len(rows[0])}
    cells = next(row for row in rows if "HYPERLINK" in row[3])
    row = dict(zip(rows[0], cells, strict=True))
    assert row["title"].startswith("'=HYPERLINK") and row["authors"] == "'=1+1"
    assert row["id"].startswith("'@bad") and row["venue"] == "'-V"
    assert row["abstained"] == row["score"] == ""
    assert row["verdict"] == "not judged"
    for cells in rows:
        for cell in cells:
            assert not cell[:1] or _number(cell) or cell[:1] not in "=+-@"
    record = json.loads(ask(*words, "--json"))
    (bad,) = [paper for paper in record if paper["retracted"]]
    assert bad["title"] == NASTY
    assert bad["link"] == ""
    assert bad["retracted"] == "retracted, 2021-03-04, <b>"
    entries = ask(*words, "--bibtex")
    assert entries.startswith("% post 0: not judged")
    assert entries.count("@article{") == 13
    assert "\x1b" not in entries
    entry = next(entry for entry in entries.split("\n\n") if "HYPERLINK" in entry)
    assert r"\{\textbackslash{}input\{x\}\} \& 5 \% claim" in entry
    assert "note = {RETRACTED, 2021-03-04, <b>}" in entry
    assert "javascript" not in entry
    assert entry.startswith("@article{_bad_id_,\n  title = {")
    assert "  author = {Ada Lovelace and Émile Zola and C and D}," in entries
    assert "  year = {2019}," in entries and "  doi = {10.1000/" in entries


def _number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


PIPELINE = """
retrieve: {{hybrid: [{{bm25: {{}}}}, {{dense: checkpoint}}], alpha: 0.0}}
depth: 8
stages:
  - {{verify: select, depth: 5, llm: {{model: m, url: '{url}'}}}}
"""


def test_the_stages_of_a_pipeline_follow_the_index(
    ask: Ask, tmp_path: Path, llm_server: Callable[..., LLMServer]
) -> None:
    verifier = play.Verifier(lambda question: len(question.papers) - 1)
    server = llm_server(verifier)
    file = tmp_path / "own.yaml"
    file.write_text(PIPELINE.format(url=server.url))
    first = listed(ask, POST, "--k", "13")
    by_vectors = sorted(first, key=lambda paper: -paper["parts"]["dense"])
    record = listed(ask, POST, "--k", "13", "--pipeline", str(file))
    best, second, *_ = record
    # The pipeline's fusion uses only vectors, and the verifier chose the last of five.
    assert best["id"] == by_vectors[4]["id"]
    assert second["id"] == by_vectors[0]["id"]
    assert "rank 5 chosen: It fits." in best["reasoning"]
    assert server.requests == 1
    assert {"bm25", "dense", "fuse", "verify select"} >= set(best["parts"])
    chosen = max(record, key=lambda paper: paper["parts"].get("verify select", 0))
    assert chosen == best
    assert "Verifier: rank 5 chosen: It fits." in ask(POST, "--pipeline", str(file))
    assert server.requests == 1  # its answer is in the store
    line = verifier.picks[0][0].post
    assert line == POST


def test_a_learned_fusion_counts_terms_over_the_whole_index(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = LearnedView("bm25", ViewConfig(part="title"), "", 1.0, 1.0)
    fitting_data = FittingData("d", "train", 3, 2, "0", "BM25", 10, 0.1)
    fusion_path = tmp_path / "fusion.json"
    LearnedFusion((view,), fitting_data).write(fusion_path)
    file = tmp_path / "own.yaml"
    stage = f"{{rerank: learned, file: {fusion_path}}}"
    file.write_text(f"retrieve: {{bm25: {{}}}}\nstages: [{stage}]\n")
    # Other terms are rare in only the German papers.
    record = listed(ask, POST, "--pipeline", str(file), "--paper_lang", "de")
    ids = [paper["id"] for paper in record]
    sources = [paper.source for paper in PAPERS]
    (scores,) = Scorer(sources).scores(view.view, [CLAIM], [ids])
    printed = [paper["parts"]["rerank learned"] for paper in record]
    assert printed == pytest.approx(scores.tolist(), rel=1e-5)
    pool = [source for source in sources if source.id in ids]
    (others,) = Scorer(pool).scores(view.view, [CLAIM], [ids])
    assert np.abs(others - scores).max() > 0.01
    monkeypatch.setattr("claim2source.systems.opened._POOL", 12)
    with refused(UserError, "rerank learned ", " 12 ", " 13"):
        ask(POST, "--pipeline", str(file), "--store", str(tmp_path / "other"))


REFUSED = [
    ("{bm25: {k1: 0.9}}", ("bm25.k1: ", "1.2", "0.9")),
    ("{dense: {name: OTHER, pooling: mean, max_length: 32}}", ("model",)),
    ("{run: x.trec}", ("bm25, dense or hybrid",)),
    ("{bm25: {}}\nroutes: {de: {dense: checkpoint}}", ("bm25, dense or hybrid",)),
    ("{bm25: {k1: fit}}", ("`fit`",)),
]


@pytest.mark.parametrize(("text", "facts"), REFUSED)
def test_a_pipeline_with_another_first_stage_is_refused(
    ask: Ask,
    tmp_path: Path,
    save_tiny: Callable[..., Path],
    text: str,
    facts: tuple[str, ...],
) -> None:
    if "OTHER" in text:
        other = save_tiny(tmp_path / "other", seed=3)
        text = text.replace("OTHER", str(other))
    stages = "stages: [{rerank: cosine}]"
    file = tmp_path / "own.yaml"
    file.write_text(f"retrieve: {text}\n{stages}\n")
    with refused(UserError, *facts):
        ask(POST, "--pipeline", str(file))


def test_a_pipeline_that_ranks_posts_together_is_refused(ask: Ask, tmp_path: Path) -> None:
    # In `serve`, the posts of one client would change the answers of another.
    file = tmp_path / "own.yaml"
    file.write_text("retrieve: {bm25: {}}\nstages: [{rerank: neighbours}]\n")
    with refused(UserError, "neighbours", "own"):
        ask(POST, "--pipeline", str(file))


def test_a_post_at_its_address_is_asked_about_with_its_date(
    ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = ("https://mastodon.social/@ada/110", "--fetch")

    def dates(*words: str) -> set[str]:
        papers = json.loads(ask(*address, "--json", "--k", "20", *words))
        return {paper["date"] for paper in papers}

    with serving() as server:
        places = {"mastodon.social": server.place}
        monkeypatch.setattr("claim2source.eval.find.Fetcher", partial(Fetcher, base_urls=places))
        # What was published on 4 May 2021 or before, and what is not dated.
        assert dates() == {"2019-04-01", "2020", "2021", ""}
        assert "The post links to https://nature.com/a?b=1&c=2\n" in ask(*address)
        server.say("/api/v1/statuses/110", {**STATUS, "created_at": "2020-12-31T10:00:00Z"})
        assert dates() == {"2019-04-01", "2020", ""}
        assert dates("--date", "2022") == {"2019-04-01", "2020", "2021", ""}


WRONG: list[tuple[list[str], tuple[str, ...]]] = [
    ([], ("post: ", "--input FILE")),
    ([" "], ("post",)),
    (["a", "--input", "x"], ("post: 'a'", "--input FILE")),
    (["a", "--json", "--csv"], ("--json, --csv and --bibtex",)),
    (["a", "--date", "soon"], ("date: 'soon'",)),
    (["https://bsky.app/profile/a.b/post/3k"], ("bsky.app/profile/a.b/post/3k", "--fetch")),
    (["https://example.org/1", "--fetch"], ("https://example.org/1", "bsky.app")),
    (["a", "--model", "none/such"], ("none/such",)),
    (["x" * 2_000_001], ("2000000",)),
    (["--top_k", "3", "a"], ("top_k: ", "mean k?")),
    # Before a model is looked for.
    (["--input", "none.csv", "--model", "none/such"], ("none.csv: ",)),
]


@pytest.mark.parametrize(("words", "facts"), WRONG)
def test_what_is_wrong_is_said_in_one_line(
    ask: Ask, words: list[str], facts: tuple[str, ...]
) -> None:
    with refused(UserError, *facts) as error:
        ask(*words)
    assert len(error.value.lines) == 1


def test_the_index_may_be_named_by_the_environment(
    index: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(INDEX, raising=False)
    with refused(UserError, "index: ", INDEX):
        main([POST])
    monkeypatch.setenv(INDEX, index)
    main([POST, "--k", "1", "--json"])
    assert len(json.loads(capsys.readouterr().out)) == 1


def test_standard_input_is_a_post_of_any_bytes(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    def line(data: bytes) -> str:
        stdin = io.TextIOWrapper(io.BytesIO(data), "ascii")
        monkeypatch.setattr("sys.stdin", stdin)
        return ask("-", "--json")

    answer = line("claim „b“ AND (works\n\0\x1b".encode())
    assert len(json.loads(answer)) == 10
    for data, fact in ((b"\xff\xfe", "UTF-8"), (b" \n", "post: ")):
        with refused(UserError, "standard input", fact):
            line(data)


def test_a_paper_that_is_removed_meanwhile_is_not_shown(index: str) -> None:
    engine = open_index(index)
    fetch = engine.fetch_with_sentences
    engine.fetch_with_sentences = lambda ids: fetch([k for k in ids if k != "p1"])  # type: ignore[method-assign]
    (answer,) = Finder(engine).find([POSTED], 13)
    assert [match.rank for match in answer.matches] == [*range(1, 13)]


def test_an_answer_says_what_matched_and_of_which_state_it_is(ask: Ask, index: str) -> None:
    post = "Zola's Nature study: vaccines cut the outbreak"
    first = listed(ask, post)[0]
    matched = first["words"]
    assert matched["post"] == ["Zola's", "Nature", "vaccines", "cut", "outbreak"]
    assert matched["paper"] == ["vaccine", "cut", "outbreaks", "Zola", "Nature"]
    engine = open_index(index)
    line = first["index"]
    assert line["version"] == engine.version
    assert line["model"] == engine.manifest.model_hash
    record = listed(ask, post)
    assert record[0] == first
    dated = listed(ask, POST, "--date", "2021", "--at", str(engine.version))
    assert dated[0]["index"]["settings"]["until"] == "2021"
    with refused(UserError, "99"):
        ask(POST, "--at", "99")


def test_the_precision_of_a_verdict_and_its_age_are_said(ask: Ask, index: str) -> None:
    tenths = [Tenth()] * 10
    tenths[7] = Tenth(10, 0.75, 7, 5)
    tenths[9] = Tenth(30, 0.95, 29, 28)
    tenths[1] = Tenth(50, 0.1, 4, 0)
    model = replace(fitted(True), threshold=0.3, tenths=tuple(tenths), papers=13)
    line = "Of {} held-out posts with this verdict {} % had their paper in the index, and for {} %"
    with knowing(index, model):
        text = ask(POST)
        assert line.format(40, 90, 82) in text
        assert "fit it again" not in text
        assert line.format(30, 97, 93) in ask(POST, "--threshold", "0.9")
        assert "held-out" not in ask(POST, "--venue", "none")  # nothing was judged
        (answer,) = Finder(open_index(index)).find([POSTED])
        assert answer.measured == Tenth(40, pytest.approx(0.9), 36, 33)  # type: ignore[arg-type]
    with knowing(index, replace(model, bias=-3.0)):
        assert line.format(50, 8, 0) in ask(POST)
    with knowing(index, replace(model, papers=6)):
        assert "The index has grown from 6 to 13 papers since its verdict was fitted" in ask(POST)


def test_a_post_s_language_is_one_that_is_known_or_detected(
    ask: Ask, index: str, tmp_path: Path
) -> None:
    with refused(UserError, "lang: 'xx' ", "auto"):
        ask(POST, "--lang", "xx")
    for tag in ("de-AT", "DE", "ger"):
        assert "This post is" not in ask(POST, "--lang", tag, "--paper_lang", tag)
        (answer,) = Finder(open_index(index)).find([Post("a", "Masken", tag)])
        assert answer.lang == "de"
    finder = Finder(open_index(index))
    spanish = "un nuevo estudio dice que las mascarillas reducen los contagios entre los niños"
    posts = [
        Post("a", "les masques marchent", "und"),
        Post("b", "Masken wirken"),
        Post("c", "12 !"),
        Post("d", spanish),
        Post("e", "x", "fr"),
    ]
    assert [answer.lang for answer in finder.find(posts)] == ["fr", "de", "en", "es", "fr"]
    engine = open_index(index)
    encoder = engine.encoder
    model = replace(engine.manifest.model, name="sentence-transformers/all-MiniLM-L6-v2")  # type: ignore[type-var]
    engine.manifest = replace(engine.manifest, model=model)
    engine._encoder = encoder
    warned = [bool(answer.warnings) for answer in Finder(engine).find(posts)]
    assert warned == [True, True, False, True, True]


def test_three_answers_by_two_thresholds(ask: Ask, index: str) -> None:
    model = replace(fitted(True), threshold=0.3, sure=0.99)
    said = "Uncertain: the paper may be one of these, or not in this index (95 % that it is here)"
    with knowing(index, model):
        first = listed(ask, POST)[0]
        assert first["verdict"] == "uncertain"
        assert said in ask(POST)
    with knowing(index, replace(model, sure=0.7)):
        assert listed(ask, POST)[0]["verdict"] == "found"
    off = replace(fitted(False), topic=None)
    with knowing(index, replace(model, sure=0.7, topic=off)):
        first = listed(ask, POST)[0]
        assert first["verdict"] == "not here" and first["abstained"]
        assert first["present"] == pytest.approx(0.9526 * 0.0474, abs=1e-3)
