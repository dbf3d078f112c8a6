"""The grid of text styles: each cell is a system's row over other texts, averaged by claim."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from claim2source.core.errors import ConfigError, InputError
from claim2source.core.records import Claim, Dataset, Qrels, Source
from claim2source.core.report import MACRO, Report
from claim2source.data.store import Store
from claim2source.evaluation.evaluate import Scoring, make_report
from claim2source.evaluation.plan import RowPlan
from claim2source.evaluation.rows import run_row
from claim2source.evaluation.style_grid import StyleOptions, StyleViews, add_styles
from claim2source.evaluation.style_tables import StyleGrid, grid_tables, mean_scores
from claim2source.evaluation.table import scored_rows
from claim2source.metrics.metrics import Scores
from claim2source.models import ModelConfig
from claim2source.search.bm25 import BM25
from claim2source.search.dense import Dense
from claim2source.search.fuse import Hybrid
from claim2source.search.routes import Routes
from claim2source.systems.retrieval import Retrieval
from claim2source.systems.system import RunSettings, System, SystemRunner
from claim2source.text import ClaimForm
from claim2source.text.styles import STYLES, StyleOrigin, originals, require_texts, write_style
from tests.counting import count_loads
from tests.refusals import refused

# Every claim finds at most one source, by the one word that they share. `d` is German.
CLAIMS = {
    "a": "apple",
    "b": "pear",
    "c": "fig",
    "h": "moss",
    "d": "Birne",
}
C1 = {
    "a": "plum",
    "b": "pear kiwi",
    "c": "fig",
    "h": "moss",
    "d": "pear kiwi",
}
SOURCES = {
    "pa": "apple",
    "pb": "pear",
    "pc": "fig",
    "ph": "fern",
}
S1 = {
    "pa": "plum",
    "pb": "kiwi",
    "pc": "fig",
    "ph": "moss",
}
WORDS = Retrieval(
    BM25(stop_words=False, stemmer=False),
    name="BM25",
    label="bm25",
)
BM25 = System("BM25", WORDS)
Versions = Sequence[Mapping[str, str]]


@pytest.fixture
def dataset() -> Dataset:
    golds = {
        "a": "pa",
        "b": "pb",
        "c": "pc",
        "h": "ph",
        "d": "pb",
    }
    claims: list[Claim] = []
    for claim, text in CLAIMS.items():
        is_german = claim == "d"
        lang = "de" if is_german else "en"
        translation = "pear" if is_german else None
        claims.append(Claim(claim, text, lang, translation, (golds[claim],)))
    sources = tuple(Source(i, abstract=text) for i, text in SOURCES.items())
    qrels = Qrels({claim: {gold: 1} for claim, gold in golds.items()})
    return Dataset(
        tuple(claims),
        sources,
        qrels,
        "dev",
        "/data/ct25-tiny",
    )


def write_texts(dataset: Dataset, folder: Path, styles: Mapping[str, Versions]) -> StyleOptions:
    """Write styles, of translations; a version's empty text could not be rewritten."""
    for name, versions in styles.items():
        style = STYLES[name]
        rewrites = []
        for number, new in enumerate(versions, 1):
            for original in originals(dataset, style.side, "translation"):
                text = new[original.id]
                failure = None if text else "is empty"
                rewrite = original.rewritten(text, number, failure)
                rewrites.append(rewrite)
        origin = StyleOrigin(
            "some-model",
            dataset.name,
            "dev",
            len(versions),
        )
        write_style(folder, style, rewrites, origin)
    return StyleOptions(
        claim_styles=tuple(name for name in styles if name < "S"),
        source_styles=tuple(name for name in styles if name > "S"),
        texts=folder,
    )


def run(
    dataset: Dataset,
    options: StyleOptions,
    out: Path,
    systems: Sequence[System] = (BM25,),
    store: Store | None = None,
    form: ClaimForm = "translated",
) -> Report:
    """The report of the systems with their grids."""
    settings = RunSettings(store=store, progress=False)
    runner = SystemRunner(dataset, settings)
    scoring = Scoring(repeats=50)
    rows = [run_row(RowPlan(system, form), runner, scoring) for system in systems]
    scored = scored_rows(rows)
    report = make_report(dataset, scored, None, name="ct25-tiny")
    with_styles = add_styles(
        report,
        rows,
        runner,
        options,
        scoring,
        out,
    )
    return with_styles[0]


def values(report: Report, name: str = "BM25", language: str = MACRO) -> dict[str, float]:
    grid = StyleGrid.of(report)
    assert grid is not None
    row = grid.row(f"{name}.translated", language)
    return {cell.name: cell.value for cell in row}


def check_grid_by_hand(report: Report, name: str) -> None:
    """Check the cells' values and which are best, each test's differences and one interval."""
    english = {"S0C0": 0.75, "S0C1": 0.5, "S1C0": 0.5, "S1C1": 1}
    assert values(report, language="en") == english
    # The German claim is found by its rewritten translation, never by its own text.
    german = {"S0C0": 1, "S0C1": 1, "S1C0": 0, "S1C1": 1}
    assert values(report, language="de") == german
    cells = {"S0C0": 0.875, "S0C1": 0.75, "S1C0": 0.25, "S1C1": 1}
    assert values(report) == cells

    grid = StyleGrid.of(report)
    assert grid is not None
    row = grid.row(name)
    assert {cell.name: cell.value for cell in row} == cells
    for language, best in ((MACRO, "S1C1"), ("de", "S0C0")):
        row = grid.row(name, language)
        assert [cell.name for cell in row if cell.is_best] == [best]

    differences = {}
    for test in report.tests:
        differences[test.average] = {c.system: c.difference for c in test.comparisons}
        assert all(c.baseline == name for c in test.comparisons)
    expected = {
        f"{name}.S0C1": -0.125,
        f"{name}.S1C0": -0.625,
        f"{name}.S1C1": 0.125,
    }
    assert differences["macro"] == pytest.approx(expected)

    cell = report.systems[f"{name}.S1C0"]
    low, high = cell.intervals.of("mrr@5")  # type: ignore[union-attr, misc]
    assert low < 0.25
    assert 0.25 < high


def test_every_cell_is_the_one_that_was_computed_by_hand(dataset: Dataset, tmp_path: Path) -> None:
    """All four differ, so that exchanged styles, versions or sides are detected."""
    styles = {"C1": [C1], "S1": [S1]}
    options = write_texts(dataset, tmp_path / "texts", styles)
    report = run(dataset, options, tmp_path)
    name = "BM25.translated"
    check_grid_by_hand(report, name)
    assert "Styles: Of claims in other languages the translation is rewritten." in report.notes
    # Read from the file: all of it, or one language.
    grid = StyleGrid.of(report)
    assert grid is not None
    report.write(tmp_path)
    read = StyleGrid.of(Report.read(tmp_path))
    table = grid_tables(grid)["grid macro"]
    for last in (read, grid):
        assert last is not None
        assert grid_tables(last)["grid macro"] == table
        assert "some-model" in last.note

    german = StyleGrid.of(report, ["de"])
    assert german is not None
    assert german.languages == (MACRO,)
    assert [cell.value for cell in german.row(name)] == [1, 1, 0, 1]
    only_original = {name: report.systems[name]}
    single = replace(report, systems=only_original)
    assert StyleGrid.of(single) is None


def test_a_claim_has_the_mean_of_its_versions_and_failures_are_counted(
    dataset: Dataset, tmp_path: Path
) -> None:
    second = {**C1, "a": "apple", "b": "", "h": "fern"}  # b falls back to its own text
    styles = {
        "C1": [C1, second],
        "S1": [S1, SOURCES, SOURCES],
    }
    options = write_texts(dataset, tmp_path / "texts", styles)
    report = run(dataset, options, tmp_path)
    last = values(report, language="en")
    # S0C1: a 0 and 1, b 1 and 1, c 1 and 1, h 0 and 1.
    assert last["S0C1"] == pytest.approx((0.5 + 1 + 1 + 0.5) / 4)
    # S1C0: the mean of one ranking of S1 (0.5) and two of sources as they are (0.75 each).
    assert last["S1C0"] == pytest.approx((0.5 + 2 * 0.75) / 3)
    # S1C1, six rankings: S1 finds both of a's halves, h's first; b by kiwi, then not at all.
    in_s1 = (0.5 + 0.5 + 1 + 0.5) / 4
    expected = (in_s1 + 2 * last["S0C1"]) / 3
    assert last["S1C1"] == pytest.approx(expected)

    reason = "C1: not rewritten, the original was used"
    both_rewritten = report.systems["BM25.translated.S1C1"]
    assert both_rewritten.failures[reason] == 1
    sources_rewritten = report.systems["BM25.translated.S1C0"]
    assert reason not in sources_rewritten.failures
    claims_rewritten = report.systems["BM25.translated.S0C1"]
    assert claims_rewritten.runs == ""  # of two versions there is no one run


RECIPROCAL_RANKS = st.integers(0, 5).map(lambda r: 1 / r if r else 0.0)
THREE_CLAIMS = st.lists(
    RECIPROCAL_RANKS,
    min_size=3,
    max_size=3,
)


@given(st.lists(THREE_CLAIMS, min_size=1, max_size=4))
def test_means_over_versions_are_by_claim_and_in_any_order(rows: list[list[float]]) -> None:
    ids = ("x", "y", "z")
    parts = [Scores(ids, {"mrr@5": np.array(row)}) for row in rows]
    mean = mean_scores(parts)["mrr@5"]
    for claim in range(3):
        column = [row[claim] for row in rows]
        least = min(column) - 1e-12
        most = max(column) + 1e-12
        assert least <= mean[claim] <= most
        expected = sum(column) / len(rows)
        assert mean[claim] == pytest.approx(expected)

    backwards = mean_scores(parts[::-1])["mrr@5"]
    assert backwards == pytest.approx(mean)
    of_one = mean_scores(parts[:1])["mrr@5"]
    assert of_one.tolist() == rows[0]
    other_order = Scores(("x", "z", "y"), parts[0].values)
    with refused(ValueError, "claims"):
        mean_scores([*parts, other_order])


def routed(name: str, german: Retrieval) -> System:
    """Make a system that has a route for German of its own."""
    routes = Routes(
        {
            "de": (german,),
            "default": (WORDS,),
        }
    )
    return System(name, Retrieval(routes))


def test_routes_see_the_cells_own_texts_and_must_read_alike(
    dataset: Dataset, tmp_path: Path
) -> None:
    """A language's claims are the same in S0 and S1; only their sources differ."""
    styles = {"C1": [C1], "S1": [S1]}
    options = write_texts(dataset, tmp_path / "texts", styles)
    alike = routed("routed", WORDS)
    posted = replace(WORDS, claims="original")
    mixed = routed("mixed", posted)
    systems = (BM25, alike, mixed)
    report = run(dataset, options, tmp_path, systems)
    assert values(report, "routed") == values(report, "BM25")
    (row,) = report.not_run
    assert row.system == "mixed: styles"
    assert "translations" in row.reason
    assert "mixed.translated" in report.systems


@pytest.mark.slow
def test_twenty_cells_cost_nine_encodings_and_a_further_style_only_itself(
    dataset: Dataset, tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = ModelConfig(
        name=str(tiny_folder),
        pooling="mean",
        max_length=16,
    )
    dense = Dense(model, sources="title_abstract")
    tiny = Retrieval(dense, name="tiny")
    hybrid = Retrieval(Hybrid(WORDS, tiny), name="H-tiny")
    systems = (
        BM25,
        System("tiny", tiny),
        System("H-tiny", hybrid),
    )
    texts = {**CLAIMS, **SOURCES}
    styles = {}
    for name in ("C1", "C2", "C3", "C4", "S1", "S2", "S3"):
        version = {i: f"{text} {name}" for i, text in texts.items()}
        styles[name] = [version]
    options = write_texts(dataset, tmp_path / "texts", styles)
    counts = count_loads(monkeypatch)
    store = Store(tmp_path / "store")

    def costs(options: StyleOptions) -> tuple[dict[str, int], Report]:
        counts.clear()
        report = run(dataset, options, tmp_path, systems, store)
        return dict(counts), report

    fewer_styles = replace(options, claim_styles=("C1", "C2", "C3"))
    fewer, _ = costs(fewer_styles)
    assert fewer == {
        "encodings": 8,
        "dense searches": 16,
        "BM25 searches": 16,
    }
    costs_of_form, report = costs(options)
    assert costs_of_form == {
        "encodings": 1,
        "dense searches": 4,
        "BM25 searches": 4,
    }
    costs_again, same_report = costs(options)
    assert costs_again == {}
    assert values(same_report, "tiny") == values(report, "tiny")
    assert len(report.systems) == 60
    # A hybrid's cell is that of its parts, over the same texts.
    cell = report.systems["H-tiny.translated.S2C3"]
    assert cell.stages[0].name == "BM25"

    store = Store(tmp_path / "all")
    all_costs, _ = costs(options)
    assert all_costs == {
        "encodings": 9,
        "dense searches": 20,
        "BM25 searches": 20,
    }


def test_titles_are_kept_or_dropped_and_the_form_says_which_text_is_rewritten(
    dataset: Dataset,
) -> None:
    sources = tuple(replace(s, title="T") for s in dataset.sources)
    titled = replace(dataset, sources=sources)
    for keep, title in ((True, "T"), (False, "")):
        options = StyleOptions(
            claim_styles=("C4",),
            source_styles=("S1",),
            keep_title=keep,
        )
        views = StyleViews.read(titled, options, "bilingual")
        rewritten = views.sources["S1"][0]
        assert {source.title for source in rewritten} == {title}
        assert views.sources["S0"] == [titled.sources]

    last: dict[str, Claim] = {}
    for form in ("original", "paired"):
        views = StyleViews.read(titled, options, form)  # type: ignore[arg-type]
        last[form] = views.claims["C4"][0][-1]
    assert "birne" in last["original"].text
    assert last["original"].translation == "pear"
    assert last["paired"].text == "Birne"
    assert "pear" in str(last["paired"].translation)


def test_a_folder_must_hold_the_styles_and_the_texts_as_they_were(
    dataset: Dataset, tmp_path: Path
) -> None:
    options = StyleOptions(
        claim_styles=("C1",),
        source_styles=("S1",),
        texts=tmp_path,
    )
    for name, texts in (("C1", C1), ("S1", S1)):
        with refused(InputError, tmp_path, name):
            require_texts(tmp_path, options.rewritten)
        write_texts(dataset, tmp_path, {name: [texts]})
    style_views = StyleViews.read(dataset, options, "translated")
    makers = [text.by for text in style_views.texts.values()]
    assert makers == ["some-model"] * 2

    first, *others = dataset.claims
    claims = (replace(first, text="x"), *others)
    changed = replace(dataset, claims=claims)
    for data, form in ((changed, "translated"), (dataset, "original")):  # not the translation
        with refused(InputError, "C1"):
            StyleViews.read(data, options, form)  # type: ignore[arg-type]


def test_styles_are_those_of_their_side_in_the_papers_order() -> None:
    with refused(ConfigError, "claim_styles"):
        StyleOptions(claim_styles=("S1",))
    options = StyleOptions(claim_styles=("C2", "C1"), source_styles=())
    cells = list(options.cells())
    assert cells == [("C1", "S0"), ("C2", "S0")]
    assert options.rewritten == ("C1", "C2")
    all_cells = list(StyleOptions().cells())
    assert len(all_cells) == 19
