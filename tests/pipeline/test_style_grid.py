"""The grid of text styles: each cell is a system's result over other texts, averaged by claim."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from claim2source.core.errors import ConfigError, InputError
from claim2source.core.records import Claim, Dataset, Qrels, Source
from claim2source.core.report import MACRO, NotRun, Report
from claim2source.datasets import write_beir
from claim2source.evaluation.style_grid import StyleGrid, grid_tables, mean_scores
from claim2source.io.store import Store
from claim2source.llm import LLMConfig
from claim2source.metrics.metrics import Scores
from claim2source.models import ModelConfig
from claim2source.pipeline import style_texts
from claim2source.pipeline.style_grid import GridRun, with_cells
from claim2source.pipeline.style_texts import (
    StyleOptions,
    StyleTexts,
    read_texts,
    rewritten_text,
)
from claim2source.retrieve import BM25Config
from claim2source.systems.nodes import BM25Node, DenseNode, HybridNode, RouteNode
from claim2source.systems.system import RunSettings, System, SystemRunner
from claim2source.text.styles import RULES, STYLES, Made, Rewrite, originals, write_style
from tests.counting import counted
from tests.llm_server import Chat, LLMServer

# Every claim finds at most one source, by the one word that they share. `d` is German.
CLAIMS = {"a": "apple", "b": "pear", "c": "fig", "h": "moss", "d": "Birne"}
C1 = {"a": "plum", "b": "pear kiwi", "c": "fig", "h": "moss", "d": "pear kiwi"}
SOURCES = {"pa": "apple", "pb": "pear", "pc": "fig", "ph": "fern"}
S1 = {"pa": "plum", "pb": "kiwi", "pc": "fig", "ph": "moss"}
OPTIONS = StyleOptions(claim_styles=("C1",), source_styles=("S1",))
WORDS = BM25Node(name="BM25", bm25=BM25Config(stop_words=False, stemmer=False), label="bm25")
BM25 = System("BM25", WORDS)


@pytest.fixture
def dataset() -> Dataset:
    golds = {"a": "pa", "b": "pb", "c": "pc", "h": "ph", "d": "pb"}
    claims = tuple(
        Claim(i, text, "de" if i == "d" else "en", "pear" if i == "d" else None, (golds[i],))
        for i, text in CLAIMS.items()
    )
    sources = tuple(Source(i, abstract=text) for i, text in SOURCES.items())
    qrels = Qrels({claim: {gold: 1} for claim, gold in golds.items()})
    return Dataset(claims, sources, qrels, "dev", "/data/ct25-tiny")


def styled(style: str, *versions: Mapping[str, str]) -> StyleTexts:
    """Texts by id, one mapping a version; an empty one could not be rewritten."""
    rewrites = [
        Rewrite(i, n, text, failure=None if text else "is empty")
        for n, texts in enumerate(versions, 1)
        for i, text in texts.items()
    ]
    return StyleTexts(style, rewrites, "some-model")


def grid_of(
    dataset: Dataset,
    texts: Sequence[StyleTexts],
    options: StyleOptions = OPTIONS,
    systems: Sequence[System] = (BM25,),
    store: Store | None = None,
) -> tuple[StyleGrid, GridRun]:
    """The grid of the systems, read in the translated form."""
    by_style = {one.style: one for one in texts}
    run = GridRun(dataset, options, lambda claims: by_style, repeats=50)
    runner = SystemRunner(dataset, RunSettings(store=store, progress=False))
    for system in systems:
        run.add(runner, system, "translated", model=system.label_of())
    return run.grid(name=dataset.name, program="t"), run


def values(grid: StyleGrid, name: str = "BM25", language: str = MACRO) -> dict[str, float]:
    return {f"{s}{c}": grid.value(name, c, s, language) for c, s in grid.cells()}


def test_every_cell_is_the_one_that_was_computed_by_hand(dataset: Dataset) -> None:
    """All four differ, so that neither styles nor versions nor sides can be swapped."""
    grid, run = grid_of(dataset, [styled("C1", C1), styled("S1", S1)])
    assert values(grid, language="en") == {"S0C0": 0.75, "S0C1": 0.5, "S1C0": 0.5, "S1C1": 1}
    # The German claim is found by its rewritten translation, never by its own text.
    assert values(grid, language="de") == {"S0C0": 1, "S0C1": 1, "S1C0": 0, "S1C1": 1}
    macro = {"S0C0": 0.875, "S0C1": 0.75, "S1C0": 0.25, "S1C1": 1}
    assert values(grid) == macro
    # In the file: retriever, then claim style, then source style.
    assert grid.plain() == {
        "BM25": {"C0": {"S0": 0.875, "S1": 0.25}, "C1": {"S0": 0.75, "S1": 1.0}}
    }
    assert grid.best("BM25") == ("C1", "S1") and grid.best("BM25", "de") == ("C0", "S0")
    tests = {t.average: {c.system: c.difference for c in t.comparisons} for t in grid.report.tests}
    assert tests["macro"] == pytest.approx(
        {"BM25.S0C1": -0.125, "BM25.S1C0": -0.625, "BM25.S1C1": 0.125}
    )
    assert all(c.baseline == "BM25.S0C0" for t in grid.report.tests for c in t.comparisons)
    low, high = grid.cell("BM25", "C0", "S1").intervals.of("mrr@5")  # type: ignore[union-attr, misc]
    assert low < 0.25 < high
    assert "Of claims in other languages the translation is rewritten." in grid.report.notes


def test_cells_are_rows_of_the_report_that_has_their_system(dataset: Dataset) -> None:
    """The grid that is read back from it is the same, whole or in one language."""
    grid, _ = grid_of(dataset, [styled("C1", C1, {**C1, "a": ""}), styled("S1", S1)])
    base = replace(grid.cell("BM25", "C0", "S0"), name="BM25")
    missing = NotRun("Gone", "original", "is not there", "")
    whole = replace(grid, report=replace(grid.report, not_run=(missing,)))
    alone = replace(grid.report, systems={"BM25": base}, tests=(), notes=("first",))
    report = with_cells(alone, whole, "styles")
    assert list(report.systems) == ["BM25", "BM25.S0C1", "BM25.S1C0", "BM25.S1C1"]
    # Of two versions there is no one run.
    runs = [one.runs for one in report.systems.values()]
    assert runs == [base.runs, "", "styles/runs/BM25.S1C0", ""]
    assert {c.baseline for test in report.tests for c in test.comparisons} == {"BM25"}
    assert report.notes[0] == "first" and "Styles: C1, S1: rewritten by some-model." in report.notes
    assert [row.system for row in report.not_run] == ["Gone: styles"]
    assert Report.__str__(report).count("BM25.S1C1") == 3  # en, de, macro
    for found in (StyleGrid.of(report), StyleGrid.of(grid.report)):
        assert found is not None and values(found) == values(grid)
        assert grid_tables(found).keys() == grid_tables(grid).keys()
        assert grid_tables(found)["grid macro"] == grid_tables(grid)["grid macro"]
    german = StyleGrid.of(report, ["de"])
    assert german is not None and german.languages == (MACRO,)
    assert values(german) == values(grid, language="de")
    assert StyleGrid.of(alone) is None


@pytest.mark.parametrize("combine", ["append", "fuse"])
def test_rewritings_join_the_texts_as_they_are(dataset: Dataset, combine: Any) -> None:
    """What either text finds is found; nothing is lost where a replaced text loses it."""
    options = replace(OPTIONS, combine=combine)
    grid, run = grid_of(dataset, [styled("C1", C1), styled("S1", S1)], options)
    en = {"append": {"S0C0": 0.75, "S0C1": 0.75, "S1C0": 1, "S1C1": 1}}
    # Where the moss is found, it is by S1's own ranking: fused, not appended, lists.
    en["fuse"] = {"S0C0": 0.75, "S0C1": 0.75, "S1C0": 1, "S1C1": 1}
    assert values(grid, language="en") == en[combine]
    stages = [stage.name for stage in grid.cell("BM25", "C1", "S1").stages]
    assert ("fuse with S0C0" in stages) == (combine == "fuse")
    # None of the papers' cells, which replace the texts.
    assert grid.cell("BM25", "C1", "S0").style == "S0C1, not the papers'"
    assert grid.cell("BM25", "C0", "S0").style == "S0C0"


def test_a_claim_has_the_mean_of_its_versions_and_failures_are_counted(dataset: Dataset) -> None:
    second = {**C1, "a": "apple", "b": "", "h": "fern"}  # b falls back to its own text
    grid, run = grid_of(dataset, [styled("C1", C1, second), styled("S1", S1, SOURCES, SOURCES)])
    found = values(grid, language="en")
    # S0C1: a 0 and 1, b 1 and 1, c 1 and 1, h 0 and 1.
    assert found["S0C1"] == pytest.approx((0.5 + 1 + 1 + 0.5) / 4)
    # S1C0: the mean of one ranking of S1 (0.5) and two of sources as they are (0.75 each).
    assert found["S1C0"] == pytest.approx((0.5 + 2 * 0.75) / 3)
    # S1C1, six rankings: S1 finds both of a's halves, h's first; b by kiwi, then not at all.
    in_s1 = (0.5 + 0.5 + 1 + 0.5) / 4
    assert found["S1C1"] == pytest.approx((in_s1 + 2 * found["S0C1"]) / 3)
    why = "C1: not rewritten, read as it is"
    assert grid.cell("BM25", "C1", "S1").failures[why] == 1
    assert why not in grid.cell("BM25", "C0", "S1").failures
    (quality,) = [part for part in run.parts(grid) if "similarity" in getattr(part, "columns", ())]
    assert [row[:6] for row in quality.rows] == [  # type: ignore[union-attr]
        ["C1", "formal", 2, 10, 1, 0],
        ["S1", "formal", 3, 12, 0, 0],
    ]


@given(
    st.lists(
        st.lists(st.integers(0, 5).map(lambda r: 1 / r if r else 0.0), min_size=3, max_size=3),
        min_size=1,
        max_size=4,
    )
)
def test_means_over_versions_are_by_claim_and_in_any_order(rows: list[list[float]]) -> None:
    ids = ("x", "y", "z")
    parts = [Scores(ids, {"mrr@5": np.array(row)}) for row in rows]
    mean = mean_scores(parts)
    for claim in range(3):
        column = [row[claim] for row in rows]
        assert min(column) - 1e-12 <= mean["mrr@5"][claim] <= max(column) + 1e-12
        assert mean["mrr@5"][claim] == pytest.approx(sum(column) / len(rows))
    assert mean_scores(parts[::-1])["mrr@5"] == pytest.approx(mean["mrr@5"])
    assert mean_scores(parts[:1])["mrr@5"].tolist() == rows[0]
    with pytest.raises(ValueError, match="same claims"):
        mean_scores([*parts, Scores(("x", "z", "y"), parts[0].values)])


def test_routes_and_chosen_settings_see_the_cells_own_texts(dataset: Dataset) -> None:
    """A language's claims are the same in S0 and S1: their sources tell the cells apart."""
    routed = System("routed", RouteNode(routes={"de": (WORDS,), "default": (WORDS,)}))
    grid, _ = grid_of(dataset, [styled("C1", C1), styled("S1", S1)], systems=(BM25, routed))
    assert values(grid, "routed") == values(grid, "BM25")


def test_a_system_that_cannot_run_is_listed_and_the_others_go_on(dataset: Dataset) -> None:
    missing = DenseNode(model=ModelConfig(name="/no/such/model"))
    broken = System("broken", missing, advice="get it")
    texts = [styled("C1", C1), styled("S1", S1)]
    grid, run = grid_of(dataset, texts, systems=(broken, BM25))
    assert grid.retrievers == ("BM25",)
    assert [(row.system, row.advice) for row in grid.report.not_run] == [("broken", "get it")]
    bilingual = replace(broken, claims="bilingual")
    grid, _ = grid_of(dataset, texts, systems=(bilingual, BM25))
    assert [row.claims for row in grid.report.not_run] == ["bilingual"]
    assert "Not run (1):" in run.parts(grid)
    empty, run = grid_of(dataset, [], systems=(broken,))
    assert empty.plain() == {}
    run.parts(empty)


def test_twenty_cells_cost_nine_encodings_and_a_further_style_only_itself(
    dataset: Dataset, tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = ModelConfig(name=str(tiny_folder), pooling="mean", max_length=16)
    tiny = DenseNode(name="tiny", model=model)
    hybrid = HybridNode(name="H-tiny", sparse=WORDS, dense=tiny)
    systems = (BM25, System("tiny", tiny), System("H-tiny", hybrid))
    texts = [
        styled(
            name, {i: f"{text} {name}" for i, text in (CLAIMS if name < "S" else SOURCES).items()}
        )
        for name in ("C1", "C2", "C3", "C4", "S1", "S2", "S3")
    ]
    counts, store = counted(monkeypatch), Store(tmp_path)

    def run(options: StyleOptions) -> tuple[dict[str, int], StyleGrid]:
        counts.clear()
        asked = [one for one in texts if one.style in options.made]
        grid, _ = grid_of(dataset, asked, options, systems, store)
        return dict(counts), grid

    fewer, _ = run(StyleOptions(claim_styles=("C1", "C2", "C3")))
    assert fewer == {"encodings": 8, "dense searches": 16, "BM25 searches": 16}
    more, grid = run(StyleOptions())
    assert more == {"encodings": 1, "dense searches": 4, "BM25 searches": 4}
    again, same = run(StyleOptions())
    assert again == {} and same.plain() == grid.plain()
    assert len(grid.report.systems) == 60
    # A hybrid's cell is that of its parts, over the same texts.
    assert grid.cell("H-tiny", "C3", "S2").stages[0].name == "BM25"
    store = Store(tmp_path / "all")
    whole, _ = run(StyleOptions())
    assert whole == {"encodings": 9, "dense searches": 20, "BM25 searches": 20}


@pytest.mark.parametrize(
    ("asked", "form", "expected"),
    [
        ("auto", "original", "original"),
        ("auto", "translated", "translation"),
        ("auto", "bilingual", "translation"),
        ("original", "bilingual", "original"),
        ("translation", "paired", "translation"),
        ("original", "translated", None),
        ("translation", "original", None),
    ],
)
def test_the_text_that_is_rewritten_is_one_that_the_claims_form_reads(
    dataset: Dataset, asked: str, form: Any, expected: str | None
) -> None:
    if expected is None:
        with pytest.raises(ConfigError, match=f"{form} claims do not read it"):
            rewritten_text(asked, form, dataset)
        english = dataset.with_claims(c for c in dataset.claims if c.lang == "en")
        assert rewritten_text(asked, form, english)  # one text in every form
    else:
        assert rewritten_text(asked, form, dataset) == expected


def test_titles_are_kept_or_dropped(dataset: Dataset) -> None:
    titled = replace(dataset, sources=tuple(replace(s, title="T") for s in dataset.sources))
    before = originals(titled, "sources")
    texts = {"S1": StyleTexts("S1", [one.rewritten("new") for one in before], RULES)}
    for keep, title in ((True, "T"), (False, "")):
        options = StyleOptions(claim_styles=(), source_styles=("S1",), keep_title=keep)
        run = GridRun(titled, options, lambda claims: texts)
        (cell,) = run._styled("original")[1].cell("C0", "S1")
        assert {(s.title, s.abstract) for s in cell.sources} == {(title, "new")}
        (cell,) = run._styled("original")[1].cell("C0", "S0")
        assert cell.sources == titled.sources


def written(dataset: Dataset, folder: Path) -> str:
    """Write the data set, since it is the program that rewrites texts which loads it."""
    write_beir(dataset, folder)
    return str(folder)


PROMPT = """
version: "1"
task: Rewrite the text in {language}.
output: Only the text.
variables: {post: "The text:", language: ""}
"""


def test_a_model_writes_what_the_folder_lacks_and_is_asked_for_nothing_twice(
    dataset: Dataset,
    tmp_path: Path,
    llm_server: Callable[..., LLMServer],
    capsys: pytest.CaptureFixture[str],
) -> None:
    prompt = tmp_path / "prompt.yaml"
    prompt.write_text(PROMPT, encoding="utf-8")

    def reply(chat: Chat) -> str:
        text = next(iter(chat.data.values()))
        return "" if "fig" in text else f"{text} formally"

    server = llm_server(reply)
    options = StyleOptions(
        claim_styles=("C1",),
        source_styles=("S0",),
        texts=tmp_path / "texts",
        llm=LLMConfig(model=server.model, url=server.url, temperature=0.5),
        versions=2,
        prompts={"C1": str(prompt)},
        answers=tmp_path / "answers.sqlite",
    )
    folder = written(dataset, tmp_path / "data")
    versions, _ = style_texts.plan_texts(options, dataset, folder, "translation")
    assert versions["C1"] == 2 and "8 requests to make, 0 stored" in capsys.readouterr().out
    assert server.requests == 0
    texts = read_texts(options, dataset, folder, "translation")["C1"]
    assert texts.versions == 2 and texts.by == server.model
    assert {i: one.text for i, one in texts.version(2).items()} == {
        "a": "apple formally",
        "b": "pear formally",
        "h": "moss formally",
        "d": "pear formally",
    }
    assert texts.lost == 2  # the fig, in both versions
    asked = server.requests
    # From the folder; and where that is gone, from the replies.
    assert read_texts(options, dataset, folder, "translation")["C1"] == texts
    (tmp_path / "texts" / "C1.jsonl").unlink()
    (tmp_path / "texts" / "styles.json").unlink()
    assert read_texts(options, dataset, folder, "translation")["C1"] == texts
    assert server.requests == asked
    # A folder made in another way is neither used for this nor replaced.
    for change, field in ((replace(options, versions=3), "versions"), (options, "claims")):
        claims: Any = "translation" if field == "versions" else "original"
        with pytest.raises(InputError, match=f"C1: its {field} is .* another folder of texts"):
            read_texts(change, dataset, folder, claims)


def test_a_folder_must_hold_the_styles_and_the_texts_as_they_were(
    dataset: Dataset, tmp_path: Path
) -> None:
    options, folder = replace(OPTIONS, texts=tmp_path), "not read"
    before = {side: originals(dataset, side, "translation") for side in ("claims", "sources")}  # type: ignore[arg-type]
    for name in ("C1", "S1"):
        with pytest.raises(InputError, match=f"holds no texts of style {name}"):
            read_texts(options, dataset, folder, "translation")
        style = STYLES[name]
        rewrites = [one.rewritten(f"{one.text} new") for one in before[style.side]]
        write_style(tmp_path, style, rewrites, Made("m", dataset.name, "dev"))
    assert [one.by for one in read_texts(options, dataset, folder, "translation").values()] == [
        "m",
        "m",
    ]
    changed = replace(dataset, claims=(replace(dataset.claims[0], text="x"), *dataset.claims[1:]))
    with pytest.raises(InputError, match="another text when it was rewritten"):
        read_texts(options, changed, folder, "translation")
    with pytest.raises(InputError, match="another text when it was rewritten"):
        read_texts(options, dataset, folder, "original")  # not the translation


def test_settings_that_make_no_sense_are_refused() -> None:
    for wrong, match in (
        ({"claim_styles": ("S1",)}, "claim_styles"),
        ({"prompts": {"C0": "x"}}, "prompts"),
        ({"llm": LLMConfig(model="m")}, "texts"),
    ):
        with pytest.raises(ConfigError, match=match):
            StyleOptions(**wrong)  # type: ignore[arg-type]
    assert StyleOptions(claim_styles=("C2", "C1")).asked_claims == ("C0", "C1", "C2")
    assert json.dumps(StyleOptions(source_styles=()).made) == '["C1", "C2", "C3", "C4"]'
