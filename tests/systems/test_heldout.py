"""Choosing settings, and what the choice may look at."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from claim2source.core.errors import UserError
from claim2source.core.records import Claim, Dataset, Qrels, Source
from claim2source.core.report import Choice
from claim2source.core.run import Result, Run
from claim2source.data.beir import write_beir
from claim2source.data.loading import load
from claim2source.data.prepare import PrepareConfig, prepare
from claim2source.data.rumors import load_rumors
from claim2source.data.split import carve_val
from claim2source.evaluation.files import write_runs
from claim2source.metrics.metrics import evaluate
from claim2source.models import (
    Base,
    EncoderSettings,
    Manifest,
    Resolved,
    Weights,
)
from claim2source.models.manifest import DataRecord
from claim2source.models.trained_on import TrainedOn
from claim2source.search.bm25 import BM25, BM25Index
from claim2source.search.choose import Grid
from claim2source.search.dense import Dense
from claim2source.search.fielded import FIELDED_GRID, Fielded
from claim2source.search.fuse import FusionConfig, Hybrid, choose_fusion, fuse
from claim2source.search.routes import Routes
from claim2source.systems import fit_retrieval, heldout
from claim2source.systems.heldout import ChoosingOn, HeldOut, SelectionData, unknown_to_all
from claim2source.systems.read import make_system
from claim2source.systems.retrieval import Retrieval
from claim2source.systems.runtime import SystemRuntime
from claim2source.text import Rendering
from tests.refusals import refused
from tests.rumor_files import with_tags, write_rumors
from tests.training.small import small_splits


def data_of(claims: list[Claim], sources: list[Source]) -> Dataset:
    relevant = {c.id: dict.fromkeys(c.golds, 1) for c in claims if c.golds}
    return Dataset(tuple(claims), tuple(sources), Qrels(relevant), "train")


def ids_in(data: Dataset) -> set[str]:
    """Collect the ids of a data set's claims."""
    return {claim.id for claim in data.claims}


def test_a_choice_is_the_best_of_all_cells_searched_one_by_one() -> None:
    """The mean is over languages: the ten German claims weigh as much as the thirty English."""
    rng = np.random.default_rng(1)
    words = [f"w{i}" for i in range(40)]

    def text_of(words: Sequence[str], count: int) -> str:
        return " ".join(rng.choice(words, count))

    sources = []
    for i in range(60):
        title = text_of(words, 2)
        abstract = text_of(words, rng.integers(3, 30))
        sources.append(Source(f"s{i}", title, abstract))
    claims = []
    for i, source in enumerate(sources[:40]):
        # Words of titles are drawn more often.
        title_words = source.title.split() * 6
        text = text_of([*title_words, *source.abstract.split()], 3)
        lang = "de" if i > 29 else "en"
        claims.append(Claim(f"c{i}", text, lang, golds=(f"s{i}",)))
    data = data_of([*claims, Claim("no gold", "w1")], sources)
    values_tried = {
        "k1": (0.1, 2.0),
        "b": (0.0, 1.0),
        "title_weight": (1, 3),
    }
    grid = tuple(values_tried.items())
    # Metadata, which these sources lack: settings without a choice keep their value.
    config, choice = BM25(metadata=True).fit(data, grid, "best")
    table = {}
    claim_ids = [c.id for c in claims]
    for k1, b, weight in product(*values_tried.values()):
        index = BM25Index(sources, BM25(k1=k1, b=b, title_weight=weight))
        run = index.rank(claims, 5)
        values = evaluate(run, data.qrels, ["mrr@5"], claim_ids)["mrr@5"]
        english = values[:30].mean()
        german = values[30:].mean()
        table[k1, b, weight] = (english + german) / 2
    highest = max(table.values())
    assert len(set(table.values())) > 4
    assert choice.score == pytest.approx(highest)
    best = {"k1": config.k1, "b": config.b, "title_weight": config.title_weight}
    assert table[*best.values()] == highest
    assert config.title_weight == 3
    assert config == BM25(metadata=True, **best)
    assert best.items() <= choice.settings.items()
    assert choice.what == "bm25"
    assert choice.split == "train"
    assert choice.claims == 40


def one_word_each(count: int, claims_of_first: int) -> Dataset:
    """Papers found only by a stop word: the first by many claims, the others by one each."""
    words = ["the", *(f"w{i}" for i in range(1, count))]
    sources = [Source(f"s{i:02d}", word) for i, word in enumerate(words)]
    claims = [Claim(f"a{i}", "the", golds=("s00",)) for i in range(claims_of_first)]
    claims += [Claim(f"c{i}", f"w{i}", golds=(f"s{i:02d}",)) for i in range(1, count)]
    return data_of(claims, sources)


def test_one_paper_with_many_claims_does_not_change_the_analysis() -> None:
    grid: Grid = (("stop_words", (True, False)), ("k1", (1.2, 2.0)))
    config, choice = BM25().fit(one_word_each(12, 50), grid)
    assert config.stop_words
    assert choice.compared == 4
    verdicts = [trial.verdict for trial in choice.tried]
    assert verdicts == ["given", "too few papers differ"]
    assert choice.tried[1].score > choice.score + 0.5


@pytest.mark.parametrize("rule", ["one_se", "best"])
def test_an_analysis_that_is_better_on_many_papers_is_taken(rule: Any) -> None:
    words = [f"{chr(97 + i)}ank" for i in range(20)]
    claims = [Claim(f"c{i}", word, golds=(f"s{i:02d}",)) for i, word in enumerate(words)]
    sources = [Source(f"s{i:02d}", f"{word}s") for i, word in enumerate(words)]
    data = data_of(claims, sources)
    for values, verdict in (((False, True), "better"), ((True, False), "worse")):
        config, choice = BM25().fit(data, (("stemmer", values),), rule)
        assert config.stemmer
        assert [t.verdict for t in choice.tried] == ["given", verdict]


def test_the_best_fusion_of_the_grid_is_chosen() -> None:
    """One claim needs BM25 to weigh much, and ranks to count instead of scores."""
    claims = [Claim("c", "t", golds=("g",)), Claim("other", "t")]
    data = data_of(claims, [Source(s) for s in "gxy"])
    sparse_lists = {
        "c": [("g", 5.0), ("x", 4.9), ("y", 0.0)],
        "other": [("x", 1.0)],
    }
    sparse = Run.from_lists(sparse_lists)
    dense = Run.from_lists({"c": [("x", 1.0), ("y", 0.9), ("g", 0.1)]})
    grid = [
        FusionConfig(),
        FusionConfig("rrf", rrf_k=1),
        FusionConfig(scale="z-score", depth=2),
    ]
    chosen, choice = choose_fusion(sparse, dense, data, grid, rule="best")
    scores = {}
    for (i, config), step in product(enumerate(grid), range(1, 20)):
        fusion = replace(config, alpha=step / 20)
        run = fuse(sparse, dense, fusion)
        scores[i, step] = evaluate(run, data.qrels, ["mrr@5"]).mean("mrr@5")
    assert choice.score == max(scores.values())
    assert choice.score == 1.0
    perfect = [cell for cell, value in scores.items() if value == 1.0]
    first = min(i for i, _ in perfect)
    alphas = [step / 20 for i, step in perfect if i == first]
    middle = alphas[len(alphas) // 2]
    assert chosen == replace(grid[first], alpha=middle)
    assert min(scores.values()) < 1.0


def test_own_scores_of_what_a_list_lacks_are_tried_where_they_are_known() -> None:
    """BM25 did not find the gold, and would score it almost like its last source."""
    claim = Claim("c", "t", golds=("g",))
    data = data_of([claim], [Source(s) for s in "gxyz"])
    sparse = Run.from_lists({"c": [("x", 9.0), ("y", 5.1)]})
    dense = Run.from_lists({"c": [("z", 0.9), ("g", 0.8)]})
    lacking = [("g", 5.0), ("z", 0.5)], [("y", 0.1), ("x", 0.0)]
    scored = tuple(Run.from_lists({"c": ranking}) for ranking in lacking)
    grid = [FusionConfig(), FusionConfig(missing="scored")]
    config, choice = choose_fusion(sparse, dense, data, grid, scored=scored, rule="best")
    assert config.missing == "scored"
    assert choice.score == 1.0
    config, choice = choose_fusion(sparse, dense, data, grid)
    assert config.missing == "lowest"
    assert choice.score < 1.0


def resolved(kind: str | None = None, **data: Any) -> Resolved:
    base = Base("b", None, "0")
    if kind is None:
        return Resolved(None, base, Path())  # type: ignore[arg-type]
    parts: dict[str, Any] = {"weights": Weights(kind), "encoder": EncoderSettings()}  # type: ignore[arg-type]
    manifest = Manifest(base=base, rendering=Rendering(), data=DataRecord(**data), **parts)
    return Resolved(None, base, Path(), manifest)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("hybrid") / "data"
    write_beir(small_splits(), target)
    return target


def selected(
    folder: Path, model: Resolved, split: str = "dev", train_split: Any = None, **options: Any
) -> SelectionData:
    choosing_on = ChoosingOn(train_split, **options)
    held_out = HeldOut(str(folder), split, choosing_on)
    return held_out.claims([model.manifest])


def trained(folder: Path, share: float = 0.25, seed: int = 5, **options: Any) -> Resolved:
    languages = options.get("languages")
    train = load(folder, "train", languages)
    seen_share = options.get("val_seen_share", 0.0)
    _, val = carve_val(train, share, seed, seen_share=seen_share)
    carved = {"val_share": share, "val_seed": seed, "val_sha256": val.fingerprint}
    return resolved("full", **{"train_split": "train", **carved, **options})


def test_an_untrained_model_may_use_all_of_train(folder: Path) -> None:
    for model in (resolved(), resolved("base", val_share=0.2)):
        selection_data = selected(folder, model)
        assert selection_data.val == selection_data.train
        assert selection_data.train.split == "train"
        assert len(selection_data.train.claims) == 48
        assert selection_data.note == ""


def test_a_plain_model_carves_as_training_does_by_default(folder: Path) -> None:
    selection_data = selected(folder, resolved(), val="carved")
    train = load(folder, "train")
    _, val = carve_val(train, 0.1, 13, seen_share=0.1)
    assert selection_data.val == val
    assert not selection_data.note
    # Step 0 of a run is untrained, and its manifest records how the run carves.
    step_0 = resolved("base", val_share=0.3, val_seed=2)
    with_share = selected(folder, step_0, val="carved")
    assert with_share.val == carve_val(train, 0.3, 2)[1]


def test_both_parts_of_val_are_carved_and_weighed_as_the_manifest_says(folder: Path) -> None:
    train = load(folder, "train")
    model = trained(folder, val_seen_share=0.2, seen_share_expected=0.3)
    selection_data = selected(folder, model)
    rest, val = carve_val(train, 0.25, 5, seen_share=0.2)
    assert selection_data.val == val
    assert not selection_data.note
    seen = {claim.id for claim in val.claims if set(claim.golds) & rest.golds}
    assert selection_data.seen == seen
    assert 0 < len(seen) < len(val.claims)
    assert selection_data.seen_share == 0.3
    assert selection_data.weighing().seen_share == 0.3
    # A manifest of version 0.1.0 does not name the part: there is none, and no mix.
    for asked in ("auto", "carved"):
        older = selected(folder, trained(folder), val=asked)
        assert older.seen == frozenset()
        assert older.weighing().seen_share is None
        assert older.val == carve_val(train, 0.25, 5)[1]
        assert not older.note
        assert len(older.train.claims) == 48  # BM25 has no weights: all of train
    # What is not declared is what another claim of train can expect: here each paper has two.
    assert older.seen_share == 1.0


def test_a_run_on_one_language_held_out_of_that(folder: Path) -> None:
    selection_data = selected(folder, trained(folder, languages=("de",)))
    german = load(folder, "train", ["de"])
    _, val = carve_val(german, 0.25, 5)
    assert selection_data.val == val
    assert not selection_data.note
    # A val that is not the training's is noted.
    model = trained(folder, val_sha256="other")
    changed = selected(folder, model)
    assert "differ" in changed.note


def write_mixed(folder: Path, far_claims: list[Claim], target: Path) -> Path:
    """Mix a data set with claims about the sea."""
    far = data_of(far_claims, [Source("p", "of the sea")])
    write_beir(far, target / "far")
    sets = [str(folder), str(target / "far")]
    prepare(PrepareConfig("mixed", target / "mixed", sets=sets))
    return target / "mixed"


def test_a_training_on_a_set_that_holds_this_one(folder: Path, tmp_path: Path) -> None:
    far_claims = [
        Claim("x", "about tides", golds=("p",)),
        Claim("y", "about wind", golds=("p",)),
    ]
    mixed = write_mixed(folder, far_claims, tmp_path)
    shares = {"val_seen_share": 0.2, "seen_share_expected": 0.0}
    model = trained(mixed, dataset=str(mixed), **shares)
    rest, val = carve_val(load(mixed, "train"), 0.25, 5, seen_share=0.2)
    held_out = {claim.text for claim in val.claims}
    selection_data = selected(folder, model)
    val_claims = selection_data.val.claims
    train_claims = selection_data.train.claims
    assert 0 < len(val_claims) < len(train_claims)
    assert len(train_claims) == 48
    assert [*val_claims] == [c for c in train_claims if c.text in held_out]
    count_known = 48 - len(val_claims)
    assert f"without the {count_known} claims" in selection_data.note
    # Claims of papers that training saw do not count where none are expected.
    papers = {gold.split("/", 1)[1] for gold in rest.golds}
    seen = {claim.id for claim in val_claims if papers & set(claim.golds)}
    assert selection_data.seen == seen
    assert 0 < len(seen) < len(val_claims)
    weighing = selection_data.weighing()
    assert set(weighing.weights[weighing.seen]) == {0.0}
    assert weighing.weights.sum() == 1
    # It was only trained on other claims, so all of these are new to it.
    news = load(folder, "train")
    claims = [replace(claim, text=f"news: {claim.text}") for claim in news.claims]
    far_train = tmp_path / "far_train"
    write_beir(replace(news, claims=tuple(claims)), far_train)
    model = trained(far_train, dataset=str(far_train))
    selection_data = selected(folder, model)
    assert selection_data.val == selection_data.train
    assert not selection_data.note
    # If a carved part is requested, it is one.
    selection_data = selected(folder, model, val="carved")
    assert selection_data.val == carve_val(news, 0.25, 5)[1]
    assert not selection_data.note


def test_a_split_that_contradicts_the_manifest(folder: Path) -> None:
    with refused(UserError, "train_split: 'dev'", "train, ", "manifest"):
        selected(folder, trained(folder), split="other", train_split="dev")
    assert selected(folder, trained(folder), train_split="train").note == ""
    # Nothing was trained: it may be chosen on any split.
    untrained = resolved("base", train_split="train")
    selection_data = selected(folder, untrained, split="other", train_split="dev")
    assert selection_data.train.split == "dev"


def test_neither_the_reported_split_nor_what_was_trained_on_is_chosen_on(folder: Path) -> None:
    with refused(heldout.NothingToChooseOn, "split: ", "'train'"):
        selected(folder, resolved(), split="train")
    with refused(UserError, "val: ", "`carved`"):
        selected(folder, trained(folder), val="train")


def begun_from(path: Path, base: Resolved, kind: str = "base", sha256: str = "1") -> Resolved:
    """A model that was trained from a checkpoint at `path`, or not trained further."""
    assert base.manifest is not None
    path.mkdir(exist_ok=True)
    weights = Weights("full", sha256="1")
    replace(base.manifest, weights=weights).write(path)
    own = resolved("base") if kind == "base" else trained(path.parent / "data", 0.4, 9)
    assert own.manifest is not None
    own_base = Base(str(path), None, sha256)
    manifest = replace(own.manifest, base=own_base, weights=Weights(kind))  # type: ignore[arg-type]
    return replace(own, manifest=manifest)


def test_what_a_models_base_was_trained_on_is_no_longer_unknown(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # manifests name a data set without its path
    train = load(folder, "train")
    path = folder.parent / "first"
    _, first = carve_val(train, 0.25, 5)
    _, own = carve_val(train, 0.4, 9)
    # Step 0 is its base; what was trained from it knows the claims of both trainings.
    assert selected(folder, begun_from(path, trained(folder))).val == first
    shared = ids_in(first) & ids_in(own)
    selection_data = selected(folder, begun_from(path, trained(folder), "full"))
    assert ids_in(selection_data.val) == shared
    assert 0 < len(shared) < len(own.claims)
    # Also if the base was trained on a set that contains this one.
    far_claim = Claim("x", "about tides", golds=("p",))
    mixed = write_mixed(folder, [far_claim], tmp_path)
    base = trained(mixed, dataset=str(mixed))
    _, val = carve_val(load(mixed, "train"), 0.25, 5)
    held_out = {claim.text for claim in val.claims}
    selection_data = selected(folder, begun_from(path, base, "full"))
    val_claims = selection_data.val.claims
    assert [*val_claims] == [claim for claim in own.claims if claim.text in held_out]
    assert 0 < len(val_claims) < len(own.claims)
    with refused(UserError, "val: ", "`carved`"):
        selected(folder, begun_from(path, trained(folder)), val="train")
    # Not so a folder of that name with other weights, and a training on other data.
    for model in (
        begun_from(path, trained(folder), sha256="2"),
        begun_from(path, trained(folder, val_sha256="other")),
        begun_from(path, trained(folder, train_split="absent")),
        begun_from(path, resolved("full", train_split="dev")),
    ):
        selection_data = selected(folder, model)
        assert selection_data.val == selection_data.train
        assert not selection_data.note


def test_claims_that_one_of_several_models_knows_are_left_out(folder: Path) -> None:
    left = selected(folder, trained(folder, 0.4, 5))
    right = selected(folder, trained(folder, 0.4, 9))
    untrained = selected(folder, resolved())
    shared = ids_in(left.val) & ids_in(right.val)
    noted_left = replace(left, note="a")
    noted_right = replace(right, note="b")
    selection_data = unknown_to_all([untrained, noted_left, noted_right])
    assert ids_in(selection_data.val) == shared
    assert selection_data.note == "a; b"
    assert selection_data.seen_share == left.seen_share
    assert unknown_to_all([untrained, left]) == left
    assert unknown_to_all([untrained, untrained]) == untrained
    nothing = replace(right, val=right.val.with_claims(()))
    with refused(heldout.NothingToChooseOn, "train"):
        unknown_to_all([left, nothing])


def recorded(folder: Path, share: float, seed: int) -> Manifest:
    """The manifest of a model that records its claims, and nothing else of its data."""
    train = load(folder, "train")
    rest, _ = carve_val(train, share, seed)
    manifest = resolved("full").manifest
    assert manifest is not None
    return replace(manifest, trained_on=TrainedOn.on(rest.claims))


def test_recorded_claims_are_left_out_wherever_the_data_are(folder: Path) -> None:
    first = recorded(folder, 0.25, 5)
    second = recorded(folder, 0.4, 9)
    train = load(folder, "train")
    _, val = carve_val(train, 0.25, 5)
    _, other = carve_val(train, 0.4, 9)
    held_out = HeldOut(str(folder), "dev")
    selection = held_out.claims([first])
    assert selection.val.claims == val.claims
    count_known = len(train.claims) - len(val.claims)
    assert f"{count_known} claims" in selection.note
    shared = ids_in(val) & ids_in(other)
    unknown = held_out.claims([first, second, None]).val
    assert ids_in(unknown) == shared
    assert shared != set()
    with refused(UserError, "val: ", "`carved`"):
        HeldOut(str(folder), "dev", ChoosingOn(val="train")).claims([first])
    # Parts without a manifest: saved runs and fusions. Where all is known, nothing is left.
    three = TrainedOn.on(val.claims[:3])
    both = held_out.claims([first], [three])
    assert both.val.claims == val.claims[3:]
    assert "3 of" in both.note
    with pytest.raises(heldout.NothingToChooseOn):
        held_out.claims([first], [TrainedOn.on(train.claims)])
    everything = replace(first, trained_on=TrainedOn.on(train.claims))
    with pytest.raises(heldout.NothingToChooseOn):
        held_out.claims([everything])
    # Claims of another kind, such as rumours, are not an exception.
    own = HeldOut("", "", own_train=train)
    assert own.claims([first]).val.claims == val.claims
    assert own.claims([None]).val == train


def test_a_fusion_of_two_dense_models_is_chosen_on_what_neither_knows(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = {
        "a": recorded(folder, 0.25, 5),
        "b": recorded(folder, 0.4, 9),
    }

    def by_name(part: Retrieval, _: SystemRuntime) -> Manifest:
        assert part.main_model is not None
        return models[part.main_model.name]

    monkeypatch.setattr(fit_retrieval, "_main_manifest", by_name)
    parts = [Retrieval(Dense(name), name=name) for name in models]
    runtime = SystemRuntime(progress=False)
    held_out = HeldOut(str(folder), "dev")
    expected = held_out.claims([*models.values()]).val
    route = Retrieval(Routes({"default": (parts[0],), "de": (parts[1],)}))
    for node in (
        Retrieval(Hybrid(parts[0], parts[1])),
        Retrieval(Hybrid(Retrieval(BM25()), route)),
    ):
        manifests = fit_retrieval._manifests(node, runtime)
        found = HeldOut(str(folder), "dev").claims(manifests)
        assert found.val == expected


def test_a_saved_run_keeps_the_claims_of_its_system(folder: Path, tmp_path: Path) -> None:
    train = load(folder, "train")
    ranking = BM25Index(train.sources).rank(train.claims, 5)
    known = TrainedOn.on(train.claims[:30])
    write_runs(ranking, train, tmp_path / "runs", known)
    moved = tmp_path / "moved"
    shutil.move(tmp_path / "runs", moved)
    files = {lang: str(moved / f"{lang}.trec") for lang in train.languages}
    hybrid = [{"bm25": {}}, {"run": {"files": files}}]
    entry = {"retrieve": {"hybrid": hybrid, "alpha": "fit"}}
    system = make_system("H", entry)
    assert system.trained_on("") == known
    held_out = HeldOut(str(folder), "dev")
    fitted = system.fit(SystemRuntime(progress=False), held_out)
    (choice,) = fitted.choices
    assert choice.claims == len(train.claims) - 30
    assert "30 of 48" in choice.note
    # The runs of a system that knows no claims have no such file.
    write_runs(ranking, train, moved, TrainedOn())
    assert make_system("H", entry).trained_on("") == TrainedOn()


@dataclass(frozen=True)
class Means:
    """A verifier whose mean stances are the claims' texts."""

    threshold: float = 0.4

    def apply(self, claims: Sequence[Claim], sources: Sequence[Source], run: Run) -> Result:
        details = {claim.id: {"stance": float(claim.text)} for claim in claims}
        return Result(run, details=details)


def test_a_threshold_is_chosen_by_macro_f1_on_given_claims_without_those_left_out() -> None:
    means = {"a": 1.5, "b": 0.6, "c": -1.4, "d": 1.2, "e": -0.7, "f": -1.1}
    verdicts = ["SUPPORTS", "NOT ENOUGH INFO", "REFUTES"] * 2
    labels = dict(zip(means, verdicts, strict=True))
    claims = tuple(Claim(name, str(mean)) for name, mean in means.items())
    data = Dataset(claims, (Source("s", "0.6"),), Qrels(), "train")
    stages = [{"verify": "tests.systems.test_heldout.Means", "threshold": "fit"}]
    system = make_system("A", {"retrieve": {"bm25": {}}, "stages": stages})
    assert system.is_fit
    assert "fitted" in system.full_label()

    def fitted(held_out: HeldOut) -> tuple[float, Choice]:
        result = system.fit(SystemRuntime(progress=False), held_out)
        stage = result.system.stages[0].stage
        return stage.threshold, result.choices[0]

    held_out = HeldOut("", "", own_train=data, labels=labels)
    threshold, choice = fitted(held_out)
    # All right from 0.75 to 1.1: of these, the nearest to 0.4.
    assert threshold == 0.75
    assert choice.metric == "macro_f1"
    assert choice.score == 1
    assert choice.claims == 6
    assert choice.compared == 40
    # Without the open claims the default is kept, and their labels change nothing.
    threshold, _ = fitted(held_out.without({"b", "e"}))
    assert threshold == 0.4
    with refused(UserError, "threshold: fit: ", "verdicts"):
        fitted(HeldOut("", "", own_train=data))
    second = make_system("B", {"retrieve": {"bm25": {"k1": "fit"}}})
    with refused(heldout.NothingToChooseOn, "'train'"):
        second.fit(SystemRuntime(progress=False), held_out)


def test_fields_are_chosen_by_average_precision_once_for_all_folds(tmp_path: Path) -> None:
    """Seven rumours are better with boosted tags, one without: it would only get the latter."""
    tagged = with_tags([True] * 7 + [False])
    file = write_rumors(tmp_path / "dev.json", tagged)
    data = load_rumors(file).dataset
    grid = (
        ("stemmer", (True, False)),
        ("boost", (0.0, 3.0)),
    )
    values_of: dict[str, np.ndarray] = {}
    config, choice = Fielded(boost=0).fit(data, grid, "best", values_of)
    assert config.boost == 3
    assert choice.metric == "map"
    assert choice.score == pytest.approx(7.5 / 8)
    values_by_rumor = [values.tolist() for values in values_of.values()]
    assert values_by_rumor == [[0.5, 1] * 2] * 7 + [[1, 0.5] * 2]
    # On fewer of the claims nothing is ranked again, and the choice is theirs.
    values_of["r7"] = np.array([0.0, 0, 0, 1])
    dataset = data.with_claims(claim for claim in data.claims if claim.id == "r7")
    config, _ = Fielded().fit(dataset, grid, "best", values_of)
    assert not config.stemmer


def test_values_of_a_grid_are_lists_of_which_the_first_is_the_default(tmp_path: Path) -> None:
    bm25 = {"k1": "fit", "b": 0.5, "stemmer": [False, True]}
    node = make_system("A", {"retrieve": {"bm25": bm25}}).first
    assert node.retriever == BM25(stemmer=False)
    names = [name for name, _ in node.grid]
    assert names == ["stemmer", "title_weight", "k1", "b"]
    for grid, key in (
        ({"k1": [1.2, -1]}, "retrieve.bm25.k1: -1"),
        ({"b": []}, "retrieve.bm25.b: "),
        ({"analysis": ["terms", "words"]}, "retrieve.bm25.analysis: 'words'"),
    ):
        with refused(UserError, key):
            make_system("A", {"retrieve": {"bm25": grid}})
    fielded = make_system("F", {"retrieve": {"fielded": {"k1": "fit"}}}).first
    assert fielded.grid == FIELDED_GRID
    assert fielded.retriever == Fielded()
