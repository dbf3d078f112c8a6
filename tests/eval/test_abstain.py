"""`eval/abstain.py` from its arguments to its files; papers are removed as if never there."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from claim2source.core.errors import UserError
from claim2source.core.records import Claim, Dataset, Qrels, Source
from claim2source.datasets import load
from claim2source.datasets.beir import write_beir
from claim2source.evaluation.abstention import auroc, risk_coverage, safe_threshold
from claim2source.io.store import Store
from claim2source.pipeline.abstain import fit_abstention, paired_results, papers_of_claims
from claim2source.retrieve import FusionConfig
from claim2source.stages.abstain import NONE, AbstainModel, abstained
from claim2source.systems.nodes import BM25Node, HybridNode
from claim2source.systems.read import read_systems
from claim2source.systems.system import RunSettings, System, SystemRunner
from eval.abstain import main
from tests.llm_server import LLMServer
from tests.llm_server import verifiers as play

FILES = """
A: {retrieve: {bm25: {k1: 1.2}}}
B: {retrieve: {bm25: {analysis: whitespace, k1: 0.9}}}
AB: {retrieve: {hybrid: [A, B], depth: 20}}
"""
MARKED = """
Marked:
  retrieve: AB
  stages:
    - {{verify: abstain, model: {model}}}
Wrong:
  retrieve: A
  stages:
    - {{verify: abstain, model: {model}}}
"""


@pytest.fixture(scope="module")
def systems(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("abstain") / "systems.yaml"
    path.write_text(FILES)
    return path


def rows_of(run) -> dict[str, list[tuple[str, float]]]:
    return {claim: list(run.scored(claim).items()) for claim in run.claim_ids}


def test_a_removed_paper_changes_the_ranking_as_if_it_were_not_there(systems: Path) -> None:
    """The oracle: claims whose candidates are all other papers, through the plain runner."""
    dev = load("demo", "dev")
    dev = dev.with_claims(dev.claims[:40])
    papers = papers_of_claims(dev)
    mine = replace(RunSettings("demo"), depth=30)
    read = read_systems([systems])
    # Shallower than what is kept: the fusion's own depth is not what makes it right.
    hybrid = HybridNode(sparse=read["A"].first, dense=read["B"].first, fusion=FusionConfig(depth=5))
    shallow = System("S", hybrid)
    for system in (read["A"], read["AB"], shallow):
        pairs = paired_results(SystemRunner(dev, mine), system, None, dev)
        claims = [
            replace(c, candidates=tuple(s.id for s in dev.sources if s.id not in papers[c.id]))
            for c in dev.claims
        ]
        other_claims = replace(dev, claims=tuple(claims))
        rankings = SystemRunner(other_claims, mine).run(system).result.run
        last = list(pairs.absent)[-1]
        assert rows_of(pairs.absent[last].run) == rows_of(rankings), system.name
        result = SystemRunner(dev, mine).run(system)
        assert rows_of(pairs.stages[last].run) == rows_of(result.result.run), system.name
        # A filter of the fused list is not that: scores are relative to each list's first.
        right = [bool({*result.result.sources(c.id, 1)} & {*c.golds}) for c in dev.claims]
        assert pairs.outcomes.right.tolist() == right + [False] * 40
    assert pairs.outcomes.present.tolist() == [True] * 40 + [False] * 40
    assert (pairs.outcomes.groups[:40] == pairs.outcomes.groups[40:]).all()
    assert list(pairs.stages) == ["A", "B", "fuse"]


def test_near_duplicates_of_a_gold_go_with_it() -> None:
    title = "the effect of masks on the spread of outbreaks in schools of a large city"
    sources = (
        Source("g", title, "one"),
        Source("copy", title.upper() + ".", "two"),
        Source("other", "another title", "three"),
        Source("far", "a third title", "four five six seven eight nine ten eleven twelve"),
        Source("text", "its preprint", "four five six seven eight nine ten eleven twelve"),
    )
    claims = (Claim("1", "x", golds=("g",)), Claim("2", "y", golds=("text", "other")))
    claims += (Claim("3", "no gold"),)
    qrels = Qrels({"1": {"g": 1}, "2": {"text": 1, "other": 1}})
    data = Dataset(claims, sources, qrels, "dev")
    assert papers_of_claims(data) == {"1": {"g", "copy"}, "2": {"text", "far", "other"}}
    assert papers_of_claims(data, None, None)["1"] == {"g"}
    with pytest.raises(UserError, match="no claim of 'dev' has a gold"):
        dataset = data.with_claims(claims[2:])
        paired_results(SystemRunner(dataset), System("A", BM25Node()), None, dataset)


def small_set(folder: Path, *languages: str) -> str:
    """The demo's dev, and its test in the place of the longer train."""
    dev, test = (load("demo", split, languages or None) for split in ("dev", "test"))
    write_beir([dev, replace(test, split="train")], folder)
    return str(folder)


@pytest.mark.slow
def test_a_model_is_fitted_on_train_and_applied_as_a_stage(
    tmp_path: Path, systems: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = small_set(tmp_path / "data")
    words = ["--files", str(systems), "--system", "AB", "--dataset", data, "--repeats", "40"]
    words += ["--store", str(tmp_path / "store")]
    main([*words, "--out", str(tmp_path / "out")])
    printed = capsys.readouterr().out
    out = tmp_path / "out"
    files = {"abstain.json", "abstention.json", "curve.svg", "report.json", "report.md", "runs"}
    assert files <= {path.name for path in out.iterdir()}
    model = AbstainModel.read(out / "abstain.json")
    assert model.design.stages == ("A", "B", "fuse") and not model.design.none
    assert model.fitted == "300 claims of 100 papers of data, train"
    assert "150 claims of " in printed and "fuse: first score" in printed
    # The file is that of a fit on all of train, chosen on papers held out of it.
    dev = load(data, "dev")
    settings = RunSettings(data)
    runner, system = SystemRunner(dev, settings), read_systems([systems])["AB"]
    train = runner.choosing_claims(system).val
    assert {claim.id for claim in train.claims} == {c.id for c in load(data, "train").claims}
    on_train, on_dev = (paired_results(runner, system, None, dataset) for dataset in (train, dev))
    fitted = fit_abstention(on_train)
    assert fitted.model.weights == pytest.approx(model.weights, rel=1e-6)
    present = on_train.outcomes.present
    sure = np.where(present, fitted.out_of_fold, 1 - fitted.out_of_fold)
    assert fitted.losses[fitted.setting] == pytest.approx(-np.log(sure).mean())
    assert fitted.losses[fitted.setting] == min(fitted.losses.values()) and len(fitted.losses) == 16
    # Held out: fitted on its own claims the model is surer of them.
    own = fitted.model.probabilities(on_train.features(fitted.model.design))
    assert -np.log(np.where(present, own, 1 - own)).mean() < fitted.losses[fitted.setting]
    curve = risk_coverage(fitted.out_of_fold, ~on_train.outcomes.right)
    assert fitted.safe == safe_threshold(curve, 0.1)

    shares = model.probabilities(on_dev.features(model.design))
    measures = json.loads((out / "abstention.json").read_text())
    model_name = "logistic: paper present"
    value = measures["measures"][model_name]["auroc"]["value"]
    assert value == pytest.approx(auroc(shares, on_dev.outcomes.present))
    assert value > 0.53 and model_name in (out / "curve.svg").read_text()
    # As a stage, on the plain split: the same probabilities, the ranking as it was.
    marked_file = tmp_path / "marked.yaml"
    marked_file.write_text(FILES + MARKED.format(model=out / "abstain.json"))
    staged = read_systems([marked_file])
    marked = runner.run(staged["Marked"])
    assert rows_of(marked.result.run) == rows_of(marked.stages[-2].result.run)
    noted = [float(marked.result.notes[claim].rpartition(" ")[2]) for claim in on_dev.claim_ids]
    assert noted == pytest.approx(shares[:150].tolist(), abs=6e-5)
    assert set(abstained(marked.result)) == {
        claim for claim, share in zip(on_dev.claim_ids, shares, strict=False) if share < 0.5
    }
    with pytest.raises(UserError, match="fitted on the stage 'A'; the stages before are retrieve"):
        runner.run(staged["Wrong"])


@pytest.mark.slow
def test_a_verifiers_none_tells_which_claims_have_no_paper(
    tmp_path: Path, llm_server: Callable[..., LLMServer]
) -> None:
    folder = small_set(tmp_path / "data", "en")
    dev, test = load(folder, "dev"), load(folder, "train")
    titles = {source.id: source.title for source in dev.sources}
    posts = {c.text: titles[c.golds[0]] for part in (dev, test) for c in part.claims}
    server = llm_server(play.Verifier(play.perfect(posts)))
    file = tmp_path / "judged.yaml"
    file.write_text(
        FILES + "V:\n  retrieve: {hybrid: [A, B]}\n  stages:\n"
        "    - {verify: letters, depth: 5, simulated: true,"
        f" llm: {{model: m, url: '{server.url}', retries: 0}}}}\n"
    )
    out = tmp_path / "out"
    words = ["--files", str(file), "--system", "V", "--repeats", "20"]
    words += ["--dataset", str(tmp_path / "data"), "--store", str(tmp_path / "store")]
    main([*words, "--out", str(out)])
    model = AbstainModel.read(out / "abstain.json")
    assert model.design.none and model.design.stages[-1] == "verify letters"
    asked_before = server.requests
    settings = RunSettings(str(tmp_path / "data"), store=Store(tmp_path / "store"))
    pairs = paired_results(SystemRunner(dev, settings), read_systems([file])["V"], None, dev)
    assert server.requests == asked_before
    # The judge says none, with 0.8, unless the gold is among the five that it sees.
    listed = pairs.stages["fuse"].run
    seen = [titles[c.golds[0]] in {titles[s] for s in listed.sources(c.id, 5)} for c in dev.claims]
    judge = pairs.stages["verify letters"].details, pairs.absent["verify letters"].details
    shares = [[float(str(details[c.id][NONE])) for c in dev.claims] for details in judge]
    assert shares[0] == pytest.approx([0.2 / 5 if gold else 0.8 for gold in seen])
    assert shares[1] == pytest.approx([0.8] * 50)
    # What follows is known surely of claims whose gold is seen, and of the others nothing.
    measures = json.loads((out / "abstention.json").read_text())["measures"]
    names = ["logistic: paper present", "logistic: paper present, with none"]
    base_value, judged = (measures[name]["auroc"]["value"] for name in names)
    share_found = np.mean(seen)
    assert 0.3 < share_found < 0.95
    assert judged >= max(share_found + (1 - share_found) / 2, base_value) - 0.03
    calls = server.requests
    main([*words, "--out", str(tmp_path / "again")])
    assert server.requests == calls


def test_what_cannot_be_fitted_is_said(tmp_path: Path, systems: Path) -> None:
    words = ["--files", str(systems), "--out", str(tmp_path / "out")]
    with pytest.raises(UserError, match="systems: .C. .*A, B, AB"):
        main([*words, "--system", "C"])
    with pytest.raises(UserError, match="not reported on"):
        main([*words, "--system", "A", "--split", "train"])
    with pytest.raises(UserError, match="risk"):
        main([*words, "--system", "A", "--risk", "1"])
    with pytest.raises(UserError, match="tests: is not read here"):
        main([*words, "--system", "A", "--no_tests"])
    for extra in (["--risk", "0.2"], ["--files", "x.yaml"], ["--target", "right"]):
        with pytest.raises(UserError, match=f"{extra[0][2:]}: is not read with --index"):
            main(["--out", str(tmp_path / "out"), "--index", "idx", *extra])
    assert not (tmp_path / "out").exists()
    dev = load("demo", "dev")
    dataset = dev.with_claims(claim for claim in dev.claims if claim.golds == dev.claims[0].golds)
    runner, system = SystemRunner(dataset, RunSettings("demo")), read_systems([systems])["A"]
    with pytest.raises(UserError, match="on 5 papers at least; there are 1"):
        fit_abstention(paired_results(runner, system, None, dataset))
