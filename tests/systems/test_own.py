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
from claim2source.systems.system import RunSettings, System, SystemResult, run_system
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
    claims = data.claims[:40]
    golds: set[str] = set()
    for claim in claims:
        golds.update(claim.golds)
    sources = tuple(source for source in data.sources if source.id in golds)
    fewer = data.with_claims(claims)
    return replace(fewer, sources=sources)


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


def retrieving(retrieve: Any, name: str = "A") -> System:
    """Make a system of a retriever alone."""
    return make_system(name, {"retrieve": retrieve})


def result(retrieve: Any, data: Dataset, **given: Any) -> SystemResult:
    settings = RunSettings("demo", ChoosingOn(), **given)
    system = retrieving(retrieve)
    return run_system(system, data, settings=settings)


def plain(retriever: Any, data: Dataset) -> Result:
    index = retriever.index(data.sources)
    found: Result = index.search(data.claims, 100)
    return found


def translations(data: Dataset) -> list[str]:
    """Render the claims of a data set translated."""
    return [render_claim(claim, "translated") for claim in data.claims]


def test_it_ranks_as_from_python_alone_in_a_hybrid_and_in_a_route(
    pieces: Any, dev: Dataset
) -> None:
    settings = {"n": 4, "marks": ["#", "@"]}
    own = {"pieces.Pieces": settings}
    retriever = pieces.Pieces(4, ("#", "@"))
    alone = result(own, dev).result
    by_hand = plain(retriever, dev)
    assert list(alone.run) == list(by_hand.run)
    assert alone.cost.seconds > 0
    assert alone.cost.items == len(dev.claims)

    hybrid = {
        "hybrid": [{"bm25": {}}, own],
        "alpha": 0.3,
        "missing": "scored",
    }
    both = result(hybrid, dev)
    fusion = FusionConfig(alpha=0.3, missing="scored")
    fused_by_hand = plain(Hybrid(BM25(), retriever, fusion), dev)
    assert list(both.result.run) == list(fused_by_hand.run)

    labels = []
    several: list[dict[str, Any]] = [
        {},
        {"n": 2},
        {"n": [3, 2]},
    ]
    for given in several:
        system = retrieving({"pieces.Pieces": given})
        labels.append(system.full_label())
    assert labels == ["pieces.Pieces", "pieces.Pieces(n=2)", "pieces.Pieces n fitted"]
    names = [stage.name for stage in both.stages]
    assert names == ["bm25", "pieces.Pieces", "fuse"]

    routes = {
        "retrieve": {"bm25": {}},
        "routes": {"de": own},
    }
    routed = make_system("R", routes)
    run = run_system(routed, dev).result.run
    german = [claim.id for claim in dev.claims if claim.lang == "de"]
    assert german
    expected = alone.run.restricted(german)
    assert list(run.restricted(german)) == list(expected)


def test_it_is_given_the_claim_form_that_is_wanted(pieces: Any, dev: Dataset) -> None:
    own = result({"pieces.Pieces": {}, "claims": "translated"}, dev)
    assert own.form == "translated"
    texts = [claim.text for claim in pieces.asked]
    assert texts == translations(dev)
    languages = {claim.lang for claim in pieces.asked}
    assert languages == {"en"}
    pieces.asked.clear()
    result({"pieces.Pieces": None}, dev)
    texts = [claim.text for claim in pieces.asked]
    assert texts == [claim.text for claim in dev.claims]


def test_runs_are_kept_by_settings_code_claims_and_sources(
    pieces: Any, dev: Dataset, tmp_path: Path
) -> None:
    store = Store(tmp_path / "store")

    def is_stored(data: Dataset = dev, **settings: Any) -> bool:
        retrieve = {"pieces.Pieces": settings}
        return result(retrieve, data, store=store).result.stored

    assert not is_stored()
    assert is_stored()
    assert len(pieces.indexed) == 1
    assert not is_stored(n=4)
    assert is_stored(n=3)
    fewer_claims = dev.with_claims(dev.claims[1:])
    assert not is_stored(fewer_claims)
    fewer_sources = replace(dev, sources=dev.sources[:-1])
    assert not is_stored(fewer_sources)
    path = Path(pieces.__file__)
    path.write_text(RETRIEVER + "\n# changed\n", encoding="utf-8")
    linecache.checkcache()
    assert not is_stored()
    assert is_stored()


def test_lists_of_values_are_chosen_from_on_held_out_claims(pieces: Any, dev: Dataset) -> None:
    system = retrieving({"pieces.Pieces": {"n": [3, 1, 2]}})
    held_out = HeldOut("", "test", own_train=dev)
    fitted = system.fit(SystemRuntime(), held_out)
    (choice,) = fitted.choices
    assert choice.what == "pieces.Pieces"
    assert choice.split == "dev"
    assert choice.compared == 3
    tried = [trial.settings for trial in choice.tried]
    assert tried == [
        {"n": 3},
        {"n": 1},
        {"n": 2},
    ]
    length = int(str(choice.settings["n"]))
    chosen = pieces.Pieces(length)
    assert chosen.n == 3  # one character says little
    index = fitted.index(dev.sources)
    run = index.search(dev.claims).result.run
    by_hand = plain(chosen, dev)
    assert list(run) == list(by_hand.run)
    # A list is the value of a setting that is one.
    with_marks = retrieving({"pieces.Pieces": {"marks": ["#"]}})
    assert with_marks.is_fit is False


def test_its_own_fit_sees_the_claims_in_their_form(pieces: Any, dev: Dataset) -> None:
    own = result({"pieces.Fitted": {}, "claims": "translated"}, dev)
    (choice,) = own.choices
    assert choice.settings == {"n": 4}
    (val,) = pieces.fitted
    train = load("demo", "train")
    assert val.split == "train"
    assert val.sources == train.sources
    texts = [claim.text for claim in val.claims]
    assert texts == translations(train)
    assert pieces.indexed[-1].n == 4
    # It is fitted once, in a hybrid and of both routes of a language.
    hybrid = [{"pieces.Fitted": {}}, {"pieces.Pieces": {}}]
    routes = {
        "retrieve": {"hybrid": hybrid},
        "routes": {"de": {"pieces.Fitted": {}}},
    }
    system = make_system("R", routes)
    pieces.fitted.clear()
    settings = RunSettings("demo", ChoosingOn())
    routed = run_system(system, dev, settings=settings)
    assert routed.choices
    assert len(pieces.fitted) == 1


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
        (
            {"hybrid": [{"bm25": {}}, {"pieces.Pieces": 3}]},
            "retrieve.hybrid.2.pieces.Pieces",
        ),
    ],
)
def test_what_is_wrong_is_found_when_it_is_read(pieces: Any, retrieve: Any, key: str) -> None:
    with pytest.raises(ConfigError) as error:
        retrieving(retrieve)
    assert error.value.key == "A"
    assert error.value.reason.startswith(f"{key}: ")


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
        out = tmp_path / "out"
        config = EvaluateConfig(
            systems=[path],
            store=tmp_path / "store",
            dataset="demo",
            out=out,
            repeats=50,
            **given,
        )
        evaluate_table(config)
        return Report.read(out)

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
    vary = {"retrieve.n": [2, 3]}
    report = evaluate(SYSTEMS, only=["Own"], vary=vary)
    rows = report.systems
    assert [*rows] == [
        "Own.original",
        "Own retrieve.n=2.original",
        "Own retrieve.n=3.original",
    ]
    own, two, three = rows.values()
    assert own.languages == three.languages != two.languages
    pieces.indexed.clear()
    report = evaluate(SYSTEMS)
    pairs = set()
    for test in report.tests:
        for comparison in test.comparisons:
            pairs.add((comparison.system, comparison.baseline))
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
    parts = [
        {"pieces.Pieces": {"n": 2}},
        {"dense": "checkpoint"},
    ]
    system = retrieving({"hybrid": parts}, "Both")
    placed = system.on_checkpoint("some/folder", name="epoch-1")
    first: Any = placed.first
    assert placed.name == "epoch-1+Both"
    assert placed.reason_not_to_run is None
    sparse, dense = first.parts
    assert sparse == system.first.parts[0]
    assert dense.main_model.name == "some/folder"
    without_a_model = retrieving({"pieces.Pieces": {}}, "Own")
    with pytest.raises(ConfigError):
        without_a_model.on_checkpoint("some/folder")


def test_its_model_may_have_been_trained_on_claims(pieces: Any) -> None:
    path = Path(pieces.__file__)
    text = RETRIEVER.replace("    n: int = 3", "    n: int = 3\n    model: str = 'org/trained'")
    path.write_text(text, encoding="utf-8")
    del sys.modules["pieces"]
    system = retrieving({"pieces.Pieces": {}}, "Own")
    assert system.models() == ["org/trained"]


def test_code_of_parts_of_ones_own_is_named_and_that_of_the_package_is_not(pieces: Any) -> None:
    hybrid = {"hybrid": [{"pieces.Pieces": {}}, {"bm25": {}}]}
    ours = {"rerank": "max_sim", "model": "m"}
    system = make_system("A", {"retrieve": hybrid, "stages": [ours]})
    assert [*system.own_code()] == ["pieces.Pieces"]
    own = {"rerank": "tests.systems.test_system.Same"}
    system = make_system("A", {"retrieve": {"bm25": {}}, "stages": [own]})
    assert [*system.own_code()] == ["tests.systems.test_system.Same"]
