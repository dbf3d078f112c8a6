"""Arguments are checked: one line names the argument, its value and what is expected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

import claim2source as c2s
from claim2source.core.errors import ConfigError, InputError, UserError
from claim2source.search.fielded import FieldedIndex
from claim2source.search.fuse import FusionConfig
from claim2source.search.saved import SavedIndex

SOURCES = [
    c2s.Source("p1", "Masks", "Masks cut outbreaks."),
    c2s.Source("p2", "Tea", "Tea helps."),
]
FRAME = pd.DataFrame({"text": ["masks"]})
RANKED = [("p1", 2.0), ("p2", 1.0)]
RUN = c2s.Run.from_lists({"q1": RANKED})
DATA = c2s.load(
    papers=[{"_id": "p1", "title": "Masks"}],
    posts=[{"_id": "q1", "text": "masks"}],
    pairs=[{"claim": "q1", "source": "p1"}],
)
BM25 = c2s.BM25().index(SOURCES)
UNSTEMMED = c2s.BM25(stemmer=False)
HYBRID = c2s.Hybrid(c2s.BM25(), UNSTEMMED).index(SOURCES)
RETRIEVE = {"retrieve": {"bm25": {}}}
SYSTEM = c2s.make_system("A", RETRIEVE)


class Vectors:
    """Encode every text as the same vector."""

    source_encoder = None

    def encode(
        self,
        texts: Any,
        side: str,
        **_: Any,
    ) -> Any:
        shape = (len(texts), 2)
        vectors = np.ones(shape, np.float32)
        result = c2s.Result(RUN)
        return vectors, result.cost


DENSE = c2s.Dense(Vectors()).index(SOURCES)  # type: ignore[arg-type]
Call = Callable[[], object]
COUNTS: dict[str, Callable[[Any], object]] = {
    "bm25": lambda k: BM25.search("masks", k),
    "dense": lambda k: DENSE.search("masks", k),
    "hybrid": lambda k: HYBRID.search("masks", k),
    "fielded": lambda k: FieldedIndex(SOURCES).search("masks", k),
    "saved": lambda k: SavedIndex({}).search([], k),
    "fuse": lambda k: c2s.fuse(RUN, RUN, k=k),
    "run top": lambda k: RUN.top(k),
    "result top": lambda k: c2s.Result(RUN).top(k),
    "sources": lambda k: RUN.sources("q1", k),
}


@pytest.mark.parametrize("verb", COUNTS)
@pytest.mark.parametrize("k", [-1, 0, True, 2.5, 2.0, "5", "٥"])
def test_a_count_that_is_none_is_refused_by_name_and_value(verb: str, k: object) -> None:
    is_nothing = k == 0 and k is not False
    if is_nothing and verb in ("run top", "result top", "sources"):
        return  # a ranking may be cut to nothing, but a search for nothing is refused
    count = COUNTS[verb]
    with pytest.raises(ConfigError) as error:
        count(k)
    assert error.value.key == "k"
    assert error.value.value == k
    assert "\n" not in str(error.value)
    assert error.value.allowed


def test_numpy_s_whole_numbers_are_counts() -> None:
    one = np.int64(1)
    result = BM25.search("masks", one)
    assert result.sources("0") == ["p1"]


@pytest.mark.parametrize("value", [True, -1, 1.5, "3"])
def test_draws_and_seeds_are_whole_numbers(value: Any) -> None:
    runs = {"a": RUN}
    systems = {"A": SYSTEM}
    for key in ("repeats", "seed"):
        option = {key: value}
        calls: list[Call] = [
            lambda option=option: c2s.evaluate(RUN, DATA, **option),
            lambda option=option: c2s.compare(runs, DATA, **option),
            lambda option=option: c2s.Evaluator(DATA, **option),
            lambda option=option: c2s.evaluate_systems(systems, DATA, **option),
        ]
        for call in calls:
            with pytest.raises(ConfigError) as error:
                call()
            assert error.value.key == key


@pytest.mark.parametrize(
    "make",
    [
        lambda: FusionConfig(depth=True),
        lambda: FusionConfig(depth=2.0),  # type: ignore[arg-type]
        lambda: FusionConfig(depth="5"),  # type: ignore[arg-type]
        lambda: FusionConfig(alpha="0.5"),  # type: ignore[arg-type]
        lambda: c2s.BM25(k1=True),
    ],
)
def test_settings_take_numbers_alone_for_numbers(make: Call) -> None:
    with pytest.raises(ConfigError):
        make()
    with_alpha = FusionConfig(alpha=1)
    assert with_alpha.alpha == 1
    with_depth = FusionConfig(depth=np.int64(3))  # type: ignore[arg-type]
    assert with_depth.depth == 3


WRONG: dict[str, tuple[str, Call]] = {
    "index(frame)": (
        "sources",
        lambda: c2s.BM25().index(FRAME),  # type: ignore[arg-type]
    ),
    "index(texts)": (
        "sources[0]",
        lambda: c2s.BM25().index(["text"]),  # type: ignore[list-item]
    ),
    "index(text)": (
        "sources",
        lambda: c2s.BM25().index("text"),  # type: ignore[arg-type]
    ),
    "index(claims)": (
        "sources[0]",
        lambda: c2s.BM25().index(DATA.claims),  # type: ignore[arg-type]
    ),
    "index(data)": (
        "sources",
        lambda: c2s.BM25().index(DATA),  # type: ignore[arg-type]
    ),
    "dense": (
        "sources",
        lambda: c2s.Dense(Vectors()).index(FRAME),  # type: ignore[arg-type]
    ),
    "hybrid": (
        "sources[0]",
        lambda: c2s.Hybrid(c2s.BM25(), c2s.BM25()).index(["a"]),  # type: ignore[list-item]
    ),
    "search(frame)": (
        "claims",
        lambda: BM25.search(FRAME),  # type: ignore[arg-type]
    ),
    "search(dict)": (
        "claims",
        lambda: BM25.search({"a": 1}),  # type: ignore[arg-type]
    ),
    "search(numbers)": (
        "claims[0]",
        lambda: BM25.search([1]),  # type: ignore[list-item]
    ),
    "search(None)": (
        "claims",
        lambda: DENSE.search(None),  # type: ignore[arg-type]
    ),
    "search(data)": (
        "claims",
        lambda: HYBRID.search(DATA),  # type: ignore[arg-type]
    ),
    "evaluate": (
        "dataset",
        lambda: c2s.evaluate(RUN, "demo"),  # type: ignore[arg-type]
    ),
    "compare": (
        "dataset",
        lambda: c2s.compare({"a": RUN}, FRAME),  # type: ignore[arg-type]
    ),
    "compare one": (
        "results",
        lambda: c2s.compare(RUN, DATA),  # type: ignore[arg-type]
    ),
    "evaluator": (
        "dataset",
        lambda: c2s.Evaluator(FRAME),  # type: ignore[arg-type]
    ),
    "run_system": (
        "system",
        lambda: c2s.run_system("bm25", DATA),  # type: ignore[arg-type]
    ),
    "systems": (
        "systems.a",
        lambda: c2s.evaluate_systems({"a": 3}, DATA),  # type: ignore[dict-item]
    ),
    "write": (
        "run",
        lambda: c2s.write_trec_run(c2s.Result(RUN), "x"),  # type: ignore[arg-type]
    ),
    "posts": (
        "posts",
        lambda: c2s.load(papers=["a"], posts=5),  # type: ignore[call-overload]
    ),
    "retriever": (
        "first",
        lambda: c2s.Hybrid(BM25, c2s.BM25()),  # type: ignore[arg-type]
    ),
    "model": (
        "model",
        lambda: c2s.Dense(3),  # type: ignore[arg-type]
    ),
    "store": (
        "store",
        lambda: c2s.BM25(store="folder"),
    ),
    "run": (
        "run",
        lambda: c2s.Run.from_pandas(FRAME),
    ),
}


@pytest.mark.parametrize("call", WRONG)
def test_what_is_something_else_is_named_in_one_line(call: str) -> None:
    name, wrong = WRONG[call]
    with pytest.raises(InputError) as error:
        wrong()
    (problem,) = error.value.problems
    assert problem.file == name
    message = str(error.value)
    assert "\n" not in message
    assert len(message) < 250


def test_paths_and_languages_are_named_too() -> None:
    calls: dict[str, Call] = {
        "location": lambda: c2s.open_index(FRAME),  # type: ignore[arg-type]
        "path": lambda: c2s.read_run([1]),  # type: ignore[arg-type]
        "languages": lambda: c2s.load("demo", "dev", 5),  # type: ignore[arg-type]
    }
    for key, call in calls.items():
        with pytest.raises(ConfigError) as error:
            call()
        assert error.value.key == key
    with pytest.raises(UserError):
        c2s.evaluate(BM25, DATA)  # type: ignore[arg-type]


def test_one_metric_and_one_language_need_no_list() -> None:
    report = c2s.evaluate(RUN, DATA, "mrr@5", repeats=0)
    assert report.macro["mrr@5"] == 1.0
    english = DATA.in_languages("en")
    assert [claim.id for claim in english.claims] == ["q1"]


def test_a_repr_is_one_short_line() -> None:
    data = c2s.load("demo", "dev")
    index = c2s.BM25().index(data.sources)
    result = index.search(data.claims)
    unstemmed = c2s.BM25(stemmer=False)
    hybrid = c2s.Hybrid(c2s.BM25(), unstemmed).index(data.sources)
    ran = c2s.run_system(SYSTEM, data)
    both = {"a": result, "b": result}
    report = c2s.evaluate(both, data, repeats=20)
    compared = c2s.compare(both, data, repeats=20)

    many = tuple(map(str, range(5_000)))
    long_text = "x" * 5_000
    long_abstract = "y" * 5_000
    shown = [
        data,
        data.qrels,
        data.claims[0],
        data.sources[0],
        index,
        DENSE,
        hybrid,
        result,
        result.run,
        report,
        *report.systems.values(),
        compared,
        *compared.tests,
        SYSTEM,
        ran,
        ran.stages[0],
        hybrid.search(data.claims),
        c2s.BM25(),
        c2s.Dense(Vectors()),  # type: ignore[arg-type]
        c2s.Claim("1", long_text, candidates=many),
        c2s.Source("1", long_text, long_abstract, many),
    ]
    for value in shown:
        text = repr(value)
        kind = type(value)
        assert "\n" not in text, kind
        assert len(text) < 1_000, kind
        assert text.startswith(kind.__name__)
    assert "claims=150" in repr(data)
    assert "rows=" in repr(result)
    assert "mrr@5" in repr(report)
    assert "<table" in report._repr_html_()
    assert "<table" in compared._repr_html_()
