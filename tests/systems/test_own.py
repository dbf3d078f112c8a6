"""A systems file names a custom retriever by its dotted path."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from claim2source.core.errors import ConfigError, InputError
from claim2source.core.records import Dataset
from claim2source.core.report import Report
from claim2source.core.run import Result
from claim2source.data.loading import load
from claim2source.data.store import Store
from claim2source.evaluation.table import EvaluateConfig, evaluate_table
from claim2source.search.bm25 import BM25
from claim2source.search.fuse import FusionConfig, Hybrid
from claim2source.systems.heldout import ChoosingOn, HeldOut
from claim2source.systems.read import make_system
from claim2source.systems.runtime import SystemRuntime
from claim2source.systems.system import RunSettings, SystemResult, run_system
from claim2source.text import render_claim

RETRIEVER = '''
"""Rank sources by the pieces of text that they share with a claim."""
from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from claim2source.core.report import Choice
from claim2source.core.run import Result, Run
from claim2source.core.stage import as_claims

indexed, asked, fitted = [], [], []


@dataclass(frozen=True)
class Pieces:
    """Rank sources by shared pieces of text.

    Args:
        n: characters of a piece.
        marks: characters that are left out.
    """

    n: int = 3
    marks: tuple[str, ...] = ()

    def pieces(self, text):
        for mark in self.marks:
            text = text.replace(mark, "")
        return {text[i : i + self.n].lower() for i in range(len(text))}

    def index(self, sources):
        indexed.append(self)
        return Index(self, sources)


@dataclass(frozen=True)
class Fitted(Pieces):
    """Set `n` itself."""

    def fit(self, val):
        fitted.append(val)
        chosen = replace(self, n=4)
        return chosen, Choice("n", {"n": 4}, 0.5, val.split, len(val.claims))


class Index:
    def __init__(self, owner, sources):
        self.owner, self.ids = owner, [source.id for source in sources]
        self.having = {}
        for number, source in enumerate(sources):
            for piece in owner.pieces(source.title + " " + source.abstract):
                self.having.setdefault(piece, []).append(number)

    def search(self, claims, k=100):
        ranked = {}
        for claim in as_claims(claims):
            asked.append(claim)
            counts = np.zeros(len(self.ids))
            for piece in sorted(self.owner.pieces(claim.text)):
                counts[self.having.get(piece, [])] += 1
            scores = dict(zip(self.ids, counts.tolist()))
            pool = self.ids if claim.candidates is None else claim.candidates
            pairs = [(source, scores[source]) for source in pool]
            ranked[claim.id] = sorted(pairs, key=lambda pair: (pair[1], pair[0]))[::-1][:k]
        return Result(Run.from_lists(ranked))


@dataclass(frozen=True)
class Broken:
    """Return what a retriever must not return."""

    what: str = "index"

    def index(self, sources):
        return 3 if self.what == "index" else self

    def search(self, claims, k=100):
        if self.what == "result":
            return {}
        rows = {} if self.what == "claim" else {claim.id: [("nowhere", 1.0)] for claim in claims}
        return Result(Run.from_lists(rows))

    def fit(self, val):
        return self
'''


@pytest.fixture(scope="module")
def dev() -> Dataset:
    data = load("demo", "dev")
    golds = {gold for claim in data.claims[:40] for gold in claim.golds}
    sources = tuple(source for source in data.sources if source.id in golds)
    return replace(data.with_claims(data.claims[:40]), sources=sources)


@pytest.fixture
def pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A retriever in a folder that is not the repository's."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "pieces.py").write_text(RETRIEVER, encoding="utf-8")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "pieces", raising=False)
    import pieces  # type: ignore[import-not-found]

    return pieces


def result(retrieve: Any, data: Dataset, **given: Any) -> SystemResult:
    settings = RunSettings("demo", ChoosingOn(), **given)
    return run_system(make_system("A", {"retrieve": retrieve}), data, settings=settings)


def plain(retriever: Any, data: Dataset) -> Result:
    found: Result = retriever.index(data.sources).search(data.claims, 100)
    return found


def test_it_ranks_as_from_python_alone_in_a_hybrid_and_in_a_route(
    pieces: Any, dev: Dataset
) -> None:
    own = {"pieces.Pieces": {"n": 4, "marks": ["#", "@"]}}
    retriever = pieces.Pieces(4, ("#", "@"))
    alone = result(own, dev).result
    assert list(alone.run) == list(plain(retriever, dev).run)
    assert alone.cost.seconds > 0 and alone.cost.items == len(dev.claims)
    both = result({"hybrid": [{"bm25": {}}, own], "alpha": 0.3, "missing": "scored"}, dev)
    fusion = FusionConfig(alpha=0.3, missing="scored")
    assert list(both.result.run) == list(plain(Hybrid(BM25(), retriever, fusion), dev).run)
    labels = [
        make_system("A", {"retrieve": {"pieces.Pieces": settings}}).full_label()
        for settings in ({}, {"n": 2}, {"n": [3, 2]})
    ]
    assert labels == ["pieces.Pieces", "pieces.Pieces(n=2)", "pieces.Pieces n fitted"]
    assert [stage.name for stage in both.stages] == ["bm25", "pieces.Pieces", "fuse"]
    routed = make_system("R", {"retrieve": {"bm25": {}}, "routes": {"de": own}})
    run = run_system(routed, dev).result.run
    german = [claim.id for claim in dev.claims if claim.lang == "de"]
    assert german and list(run.restricted(german)) == list(alone.run.restricted(german))


def test_it_is_given_the_claim_form_that_is_wanted(pieces: Any, dev: Dataset) -> None:
    form = result({"pieces.Pieces": {}, "claims": "translated"}, dev).form
    assert form == "translated"
    assert [c.text for c in pieces.asked] == [render_claim(c, "translated") for c in dev.claims]
    assert {claim.lang for claim in pieces.asked} == {"en"}
    pieces.asked.clear()
    result({"pieces.Pieces": None}, dev)
    assert [c.text for c in pieces.asked] == [claim.text for claim in dev.claims]


def test_runs_are_kept_by_settings_code_claims_and_sources(
    pieces: Any, dev: Dataset, tmp_path: Path
) -> None:
    store = Store(tmp_path / "store")

    def is_stored(data: Dataset = dev, **settings: Any) -> bool:
        return result({"pieces.Pieces": settings}, data, store=store).result.stored

    assert not is_stored() and is_stored() and len(pieces.indexed) == 1
    assert not is_stored(n=4) and is_stored(n=3)
    assert not is_stored(dev.with_claims(dev.claims[1:]))
    assert not is_stored(replace(dev, sources=dev.sources[:-1]))
    path = Path(pieces.__file__)
    path.write_text(RETRIEVER + "\n# changed\n", encoding="utf-8")
    linecache.checkcache()
    assert not is_stored() and is_stored()


def test_lists_of_values_are_chosen_from_on_held_out_claims(pieces: Any, dev: Dataset) -> None:
    system = make_system("A", {"retrieve": {"pieces.Pieces": {"n": [3, 1, 2]}}})
    held_out = HeldOut("", "test", own_train=dev)
    fitted = system.fit(SystemRuntime(), held_out)
    (choice,) = fitted.choices
    assert (choice.what, choice.split, choice.compared) == ("pieces.Pieces", "dev", 3)
    assert [trial.settings for trial in choice.tried] == [{"n": 3}, {"n": 1}, {"n": 2}]
    chosen = pieces.Pieces(int(str(choice.settings["n"])))
    assert chosen.n == 3  # one character says little
    run = fitted.index(dev.sources).search(dev.claims).result.run
    assert list(run) == list(plain(chosen, dev).run)
    # A list is the value of a setting that is one.
    assert make_system("A", {"retrieve": {"pieces.Pieces": {"marks": ["#"]}}}).is_fit is False


def test_its_own_fit_sees_the_claims_in_their_form(pieces: Any, dev: Dataset) -> None:
    own = result({"pieces.Fitted": {}, "claims": "translated"}, dev)
    assert [choice.settings for choice in own.choices] == [{"n": 4}]
    (val,) = pieces.fitted
    train = load("demo", "train")
    assert val.split == "train" and val.sources == train.sources
    assert [c.text for c in val.claims] == [render_claim(c, "translated") for c in train.claims]
    assert pieces.indexed[-1].n == 4
    # It is fitted once, in a hybrid and of both routes of a language.
    system = make_system(
        "R",
        {
            "retrieve": {"hybrid": [{"pieces.Fitted": {}}, {"pieces.Pieces": {}}]},
            "routes": {"de": {"pieces.Fitted": {}}},
        },
    )
    pieces.fitted.clear()
    settings = RunSettings("demo", ChoosingOn())
    assert run_system(system, dev, settings=settings).choices and len(pieces.fitted) == 1


@pytest.mark.parametrize(
    ("retrieve", "key"),
    [
        ({"pieces.Nothing": {}}, "retrieve.pieces.Nothing"),
        ({"pieces.Index": {}}, "retrieve.pieces.Index"),  # not a dataclass
        ({"no.such.Retriever": {}}, "retrieve.no.such.Retriever"),
        ({"pieces.Pieces": {"m": 3}}, "retrieve.pieces.Pieces.m"),
        ({"pieces.Pieces": {"n": "x"}}, "retrieve.pieces.Pieces.n"),
        ({"pieces.Pieces": {"n": "fit"}}, "retrieve.pieces.Pieces.n"),
        ({"pieces.Pieces": {"n": [3, "x"]}}, "retrieve.pieces.Pieces.n"),
        ({"pieces.Fitted": {"n": [3, 4]}}, "retrieve.pieces.Fitted.n"),
        ({"pieces.Pieces": {}, "alpha": 0.5}, "retrieve.alpha"),
        ({"pieces.Pieces": {}, "bm25": {}}, "retrieve"),
        ({"pieces.Pieces": {}, "claims": "x"}, "retrieve.claims"),
        ({"hybrid": [{"bm25": {}}, {"pieces.Pieces": 3}]}, "retrieve.hybrid.2.pieces.Pieces"),
    ],
)
def test_what_is_wrong_is_found_when_it_is_read(pieces: Any, retrieve: Any, key: str) -> None:
    with pytest.raises(ConfigError) as error:
        make_system("A", {"retrieve": retrieve})
    assert error.value.key == "A" and error.value.reason.startswith(f"{key}: ")


@pytest.mark.parametrize("what", ["index", "result", "claim", "source"])
def test_what_it_returns_is_checked(
    pieces: Any, dev: Dataset, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(pieces.Broken, "fit")
    with pytest.raises(InputError) as error:
        result({"pieces.Broken": {"what": what}}, dev)
    assert error.value.problems[0].file == "pieces.Broken"


def test_what_its_fit_returns_is_checked(pieces: Any, dev: Dataset) -> None:
    with pytest.raises(InputError) as error:
        result({"pieces.Broken": {}}, dev)
    assert error.value.problems[0].file == "pieces.Broken"


@pytest.fixture
def evaluate(tmp_path: Path) -> Callable[..., Report]:
    def run(text: str, **given: Any) -> Report:
        path = tmp_path / "systems.yaml"
        path.write_text(text, encoding="utf-8")
        fixed: dict[str, Any] = {"dataset": "demo", "out": tmp_path / "out", "repeats": 50}
        evaluate_table(EvaluateConfig(systems=[path], store=tmp_path / "store", **fixed, **given))
        return Report.read(tmp_path / "out")

    return run


SYSTEMS = """\
BM25: {retrieve: {bm25: {}}}
Own: {retrieve: {pieces.Pieces: {n: 3}}}
Both: {retrieve: {hybrid: [BM25, Own]}}
"""


@pytest.mark.slow
def test_rows_variations_tests_and_kept_rows_of_an_evaluation(
    pieces: Any, evaluate: Callable[..., Report]
) -> None:
    report = evaluate(SYSTEMS, only=["Own"], vary={"retrieve.n": [2, 3]})
    rows = report.systems
    assert [*rows] == ["Own.original", "Own retrieve.n=2.original", "Own retrieve.n=3.original"]
    own, two, three = rows.values()
    assert own.languages == three.languages != two.languages
    pieces.indexed.clear()
    report = evaluate(SYSTEMS)
    pairs = {(c.system, c.baseline) for test in report.tests for c in test.comparisons}
    assert ("Own.original", "BM25.original") in pairs
    assert ("Both.original", "Own.original") in pairs
    assert pieces.indexed == []  # its runs are in the store
    # Other code is another system: a finished row of it is not kept.
    path = Path(pieces.__file__)
    path.write_text(RETRIEVER + "\n# changed\n", encoding="utf-8")
    linecache.checkcache()
    evaluate(SYSTEMS, only=["Own"])
    assert pieces.indexed == [pieces.Pieces()]


def test_a_hybrid_with_it_is_put_on_a_checkpoint(pieces: Any, tmp_path: Path) -> None:
    retrieve = {"hybrid": [{"pieces.Pieces": {"n": 2}}, {"dense": "checkpoint"}]}
    system = make_system("Both", {"retrieve": retrieve})
    placed = system.on_checkpoint("some/folder", name="epoch-1")
    first: Any = placed.first
    assert placed.name == "epoch-1+Both" and placed.reason_not_to_run is None
    sparse, dense = first.parts
    assert sparse == system.first.parts[0] and dense.main_model.name == "some/folder"
    with pytest.raises(ConfigError):
        make_system("Own", {"retrieve": {"pieces.Pieces": {}}}).on_checkpoint("some/folder")


def test_its_model_may_have_been_trained_on_claims(pieces: Any) -> None:
    path = Path(pieces.__file__)
    text = RETRIEVER.replace("    n: int = 3", "    n: int = 3\n    model: str = 'org/trained'")
    path.write_text(text, encoding="utf-8")
    del sys.modules["pieces"]
    system = make_system("Own", {"retrieve": {"pieces.Pieces": {}}})
    assert system.models() == ["org/trained"]


def test_code_of_parts_of_ones_own_is_named_and_that_of_the_package_is_not(pieces: Any) -> None:
    hybrid = {"hybrid": [{"pieces.Pieces": {}}, {"bm25": {}}]}
    system = make_system("A", {"retrieve": hybrid, "stages": [{"rerank": "max_sim", "model": "m"}]})
    assert [*system.own_code()] == ["pieces.Pieces"]
    stage = {"rerank": "tests.systems.test_system.Same"}
    system = make_system("A", {"retrieve": {"bm25": {}}, "stages": [stage]})
    assert [*system.own_code()] == ["tests.systems.test_system.Same"]
