"""Systems are run stage by stage; a stage may come from anywhere."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from claim2source.core.errors import ConfigError, UserError
from claim2source.core.records import Claim, Dataset, Qrels, Source
from claim2source.core.run import Failure, Result, Run
from claim2source.data.loading import load
from claim2source.data.store import Store
from claim2source.evaluation.evaluate import Scoring, evaluate, score_system
from claim2source.evaluation.table import evaluate_systems
from claim2source.models import Base, EncoderSettings, Manifest, Weights
from claim2source.models.manifest import DataRecord
from claim2source.search import fuse as fuse_module
from claim2source.search.bm25 import BM25
from claim2source.search.fuse import FusionConfig, Hybrid, fuse
from claim2source.search.routes import Routes
from claim2source.systems import fit_retrieval
from claim2source.systems.heldout import ChoosingOn, NothingToChooseOn, SelectionData, one_val
from claim2source.systems.read import make_system, read_systems
from claim2source.systems.retrieval import Retrieval
from claim2source.systems.stages import SystemStage, apply_stage
from claim2source.systems.system import RunSettings, System, SystemRunner, run_system
from claim2source.text import Rendering
from tests.refusals import refused

STAGE = '''
"""Reverse the first sources of every claim."""
from dataclasses import dataclass

from claim2source.core.run import Failure, Result, Run

calls = []


@dataclass(frozen=True)
class Reverse:
    """Reverse the first `depth` sources.

    Args:
        depth: how many.
    """

    depth: int = 3

    def apply(self, claims, sources, run):
        calls.append(len(claims))
        ranked = {}
        for claim in claims:
            ids = run.sources(claim.id)
            ids = ids[: self.depth][::-1] + ids[self.depth :]
            ranked[claim.id] = [(s, float(len(ids) - i)) for i, s in enumerate(ids)]
        notes = {claims[0].id: "seen"}
        failures = (Failure(claims[1].id, "no reason"),)
        return Result(Run.from_lists(ranked), notes=notes, failures=failures)
'''


@pytest.fixture(scope="module")
def dev() -> Dataset:
    return load("demo", "dev")


GRID = (
    ("title_weight", (1, 3)),
    ("k1", (1.2, 2.0)),
    ("b", (0.75, 0.3)),
)


@pytest.fixture(autouse=True)
def _small_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole grids are tested if a setting is chosen of them."""
    grid = FusionConfig(), FusionConfig("rrf")
    monkeypatch.setattr(fuse_module, "fusion_grid", lambda: grid)


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A stage in a folder that is not the repository's."""
    folder = tmp_path / "somewhere"
    folder.mkdir()
    (folder / "reversing.py").write_text(STAGE, encoding="utf-8")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "reversing", raising=False)
    import reversing  # type: ignore[import-not-found]

    return reversing


def write_systems(folder: Path, text: str) -> Path:
    path = folder / "systems.yaml"
    path.write_text(text, encoding="utf-8")
    return path


REVERSED = """
Reversed:
  retrieve: {bm25: {k1: 1.2}}
  stages:
    - {rerank: reversing.Reverse, depth: 4}
    - {verify: reversing.Reverse, depth: 2}
"""


def test_a_stage_from_outside_the_repository_is_one_line_of_yaml(
    outside: Any, dev: Dataset, tmp_path: Path
) -> None:
    systems = read_systems([write_systems(tmp_path, REVERSED)])
    system_result = run_system(systems["Reversed"], dev)
    assert [s.name for s in system_result.stages] == [
        "retrieve",
        "rerank reversing.Reverse",
        "verify reversing.Reverse",
    ]
    index = BM25().index(dev.sources)
    by_hand = index.search(dev.claims).run
    retrieved = system_result.stages[0].result.run
    reranked = system_result.stages[1].result.run
    verified = system_result.result.run
    for claim in dev.claims:
        ids = by_hand.sources(claim.id)
        four = ids[:4][::-1] + ids[4:]
        two = four[:2][::-1] + four[2:]
        assert retrieved.sources(claim.id) == ids
        assert reranked.sources(claim.id) == four
        assert verified.sources(claim.id) == two
    scoring = Scoring(repeats=0)
    report = score_system("r", system_result, dev, scoring).report
    names = [stage.name for stage in system_result.stages]
    assert [stage.name for stage in report.stages] == names
    assert report.stages[1].failures == {"no reason": 1}
    assert report.failures == {"no reason": 1}
    seconds = [stage.cost.seconds for stage in report.stages]
    assert all(cost > 0 for cost in seconds)
    total = sum(seconds)
    assert report.cost is not None
    expected_seconds = pytest.approx(total, abs=0.002)
    assert report.cost.seconds == expected_seconds
    assert report.cost.claims == len(dev.claims)
    expected = evaluate(system_result.result, dev, repeats=0).macro
    assert report.macro["mrr@5"] == pytest.approx(expected["mrr@5"])


def test_a_changed_stage_runs_again_with_what_follows_and_nothing_else(
    outside: Any, dev: Dataset, tmp_path: Path
) -> None:
    settings = RunSettings(store=Store(tmp_path / "store"))

    def stages(first: int, second: int) -> list[bool]:
        given = [
            {"rerank": "reversing.Reverse", "depth": first},
            {"rerank": "reversing.Reverse", "depth": second},
        ]
        system = make_system("A", {"retrieve": {"bm25": {}}, "stages": given})
        system_result = run_system(system, dev, settings=settings)
        reranked = system_result.stages[1].result
        first_claim, second_claim = dev.claims[:2]
        failure = Failure(second_claim.id, "no reason")
        assert reranked.notes == {first_claim.id: "seen"}
        assert reranked.failures == (failure,)
        return [stage.result.stored for stage in system_result.stages]

    assert stages(3, 2) == [False, False, False]
    assert stages(3, 2) == [True, True, True]
    assert len(outside.calls) == 2
    assert stages(3, 5) == [True, True, False]
    assert stages(4, 5) == [True, False, False]
    # Other code is another stage.
    path = Path(outside.__file__)
    path.write_text(STAGE + "\n# changed\n", encoding="utf-8")
    import linecache

    linecache.checkcache()
    assert stages(4, 5) == [True, False, False]


@dataclass(frozen=True)
class Same:
    """Give the ranking back."""

    def apply(self, claims: Any, sources: Any, run: Run) -> Result:
        return Result(run)


@pytest.mark.parametrize("change", ["text", "translation", "abstract", "ranking", "pool"])
def test_the_key_of_a_stage_holds_all_that_it_reads(tmp_path: Path, change: str) -> None:
    claim = Claim("c", "masks work", "de", "masks")
    first = Source("a", "A")
    second = Source("b")
    run = Run.from_lists({"c": [("a", 2.0), ("b", 1.0)]})
    store = Store(tmp_path)

    def is_stored() -> bool:
        before = Result(run)
        sources = [first, second]
        result = apply_stage(Same(), [claim], sources, before, store)
        return result.stored

    assert not is_stored()
    assert is_stored()
    if change == "abstract":
        first = replace(first, abstract="new")
    elif change == "ranking":
        run = Run.from_lists({"c": [("a", 2.0), ("b", 1.5)]})
    elif change == "pool":
        claim = replace(claim, candidates=("a",))
    else:
        claim = replace(claim, **{change: "other"})
    assert not is_stored()


@pytest.mark.parametrize(
    ("entry", "facts"),
    [
        ({"rerank": "cross_encodr"}, ("stages.1.rerank: 'cross_encodr'",)),
        ({"rerank": "reversing.Nothing"}, ("stages.1.rerank: 'reversing.Nothing'",)),
        ({"rerank": "no.such.Stage"}, ("stages.1.rerank: 'no.such.Stage'",)),
        ({"rerank": "reversing.Reverse", "dept": 3}, ("stages.1.dept: ", " depth?")),
        ({"rerank": "reversing.Reverse", "depth": "x"}, ("stages.1",)),
        ({"retriev": "bm25"}, ("stages.1: ", "rerank, verify")),
    ],
)
def test_a_mistyped_stage_is_found_when_it_is_read(
    outside: Any, entry: dict[str, Any], facts: tuple[str, ...]
) -> None:
    settings = {"retrieve": {"bm25": {}}, "stages": [entry]}
    with refused(ConfigError, *facts):
        make_system("A", settings)


def bm25(
    name: str,
    claims: Any = None,
    fits: bool = False,
    **settings: Any,
) -> Retrieval:
    config = BM25(**settings)
    grid = GRID if fits else ()
    return Retrieval(config, name=name, claims=claims, grid=grid)


def routes(**given: Retrieval | tuple[Retrieval, ...]) -> Retrieval:
    several = {}
    for lang, node in given.items():
        is_several = isinstance(node, tuple)
        several[lang] = node if is_several else (node,)
    return Retrieval(Routes(several), name="both")


PLAIN = bm25("plain")
WORDS = bm25("words", "translated", stemmer=False)


def of(node: Retrieval, **options: Any) -> System:
    return System(node.name, node, **options)


def require_same_scores(run: Run, expected: Run, data: Dataset) -> None:
    """Require that every claim has the same sources with the same scores in both runs."""
    for claim in data.claims:
        assert run.scored(claim.id) == expected.scored(claim.id)


def test_routes_send_every_language_to_its_system(dev: Dataset) -> None:
    runner = SystemRunner(dev)
    route_node = routes(de=WORDS, default=PLAIN)
    routed = runner.run(of(route_node))
    run = routed.result.run
    plain = runner.run(of(PLAIN)).result.run
    words = runner.run(of(WORDS)).result.run
    for claim in dev.claims:
        part = words if claim.lang == "de" else plain
        assert run.sources(claim.id) == part.sources(claim.id)
    assert run.claim_ids == tuple(claim.id for claim in dev.claims)
    names = [stage.name for stage in routed.stages]
    assert names == ["plain", "words", "route"]
    costs = [stage.result.cost.seconds for stage in routed.stages]
    *of_parts, of_all = costs
    assert of_all == pytest.approx(sum(of_parts))
    # Without names the parts are known by their kinds.
    nameless = routes(
        de=replace(WORDS, name=""),
        default=replace(PLAIN, name=""),
    )
    parts = runner.run(of(nameless)).result.parts
    assert [name for name, _ in parts] == ["bm25", "bm25"]
    without_french = routes(de=WORDS, en=PLAIN)
    with refused(ConfigError, "routes: ", "'fr'"):
        SystemRunner(dev).run(of(without_french))


@pytest.mark.slow
@pytest.mark.parametrize("first", ["plain", "words"])
def test_val_chooses_the_system_of_each_language(dev: Dataset, first: str) -> None:
    words = bm25("words", "translated", k1=0.1, b=0.0)
    nodes = {"plain": PLAIN, "words": words}
    others = [name for name in nodes if name != first]
    names = [first, *others]
    candidates = tuple(nodes[name] for name in names)
    route_node = of(routes(fr=PLAIN, default=candidates))
    train = load("demo", "train")
    won = {}
    for rule in ("best", "one_se"):
        settings = RunSettings("demo", ChoosingOn("train", rule=rule))
        result = SystemRunner(dev, settings).run(route_node)
        chosen = [choice.what for choice in result.choices]
        assert chosen == ["route en", "route de"]
        for choice in result.choices:
            language = choice.what.split()[1]
            mine = train.in_languages([language])
            by_hand = {}
            for name in names:
                run = run_system(of(nodes[name]), mine).result.run
                macro = evaluate(run, mine, repeats=0).macro
                by_hand[name] = macro["mrr@5"]
            scores = {}
            for trial in choice.tried:
                name = str(trial.settings["system"])
                scores[name] = trial.score
            assert scores == pytest.approx(by_hand)
            assert choice.claims == len(mine.claims)
            assert choice.split == "train"
            name = str(choice.settings["system"])
            best = max(scores, key=lambda name: scores[name])
            if rule == "best":
                assert name == best
                won[language] = best
            else:  # the first, unless it is clearly worse
                error = choice.error if name != best else 0
                assert name == first or scores[best] > scores[first]
                loss = scores[best] - scores[name]
                assert loss <= (error or 0) + 1e-9
            reported = dev.in_languages([language])
            routed = result.result.run
            solo = run_system(of(nodes[name]), reported).result.run
            for claim in reported.claims:
                assert routed.sources(claim.id) == solo.sources(claim.id)
    assert set(won.values()) == set(names[:2])  # no one system is best for all


@pytest.mark.slow
def test_candidates_that_are_fitted_are_compared_as_fitted(dev: Dataset) -> None:
    """A route's candidate is a tree of its own: what it chooses is chosen first, and reported."""
    odd = bm25("odd", k1=8.0, b=1.0)
    tuned = bm25("tuned", fits=True, k1=8.0, b=1.0)
    settings = RunSettings("demo", ChoosingOn("train", rule="best"))
    runner = SystemRunner(dev, settings)
    route_node = routes(default=(odd, tuned))
    first = runner.run(of(route_node), "original")
    chosen = [choice.what for choice in first.choices]
    assert chosen == ["route en", "route de", "route fr", "bm25"]
    of_languages = first.choices[:3]
    systems = {choice.settings["system"] for choice in of_languages}
    assert systems == {"tuned"}
    solo = runner.run(of(tuned), "original")
    assert first.choices[3:] == solo.choices
    require_same_scores(first.result.run, solo.result.run, dev)


@pytest.mark.slow
def test_equal_systems_under_two_names_are_fitted_once(
    dev: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also within a tree, and if only a part's further keys differ."""
    fitted: list[BM25] = []
    fit = BM25.fit

    def count_choices(base: BM25, *options: Any) -> Any:
        fitted.append(base)
        return fit(base, *options)

    monkeypatch.setattr(BM25, "fit", count_choices)
    node = bm25("one", fits=True)
    second_node = bm25("other", fits=True)
    runner = SystemRunner(dev, RunSettings("demo"))
    first = runner.run(of(node), "original")
    second = runner.run(of(second_node), "original")
    assert len(fitted) == 1
    assert first.choices == second.choices != ()
    assert list(first.result.run) == list(second.result.run)
    assert first.system == "one"
    assert second.system == "other"
    labelled = replace(second_node, label="x")
    route_node = routes(de=node, default=labelled)
    runner.run(of(route_node), "original")
    mix = Retrieval(Hybrid(node, PLAIN), name="mix")
    runner.run(of(mix), "original")
    assert len(fitted) == 1
    # Another text of the claims, or other settings, are another choice.
    runner.run(of(node), "translated")
    unstemmed = bm25("one", fits=True, stemmer=False)
    runner.run(of(unstemmed), "original")
    assert len(fitted) == 3


def test_candidates_of_a_route_are_compared_on_claims_that_none_was_trained_on(
    dev: Dataset,
) -> None:
    train = load("demo", "train")
    even = train.claims[::2]
    half = train.with_claims(even, "val")
    odd = train.claims[1::2]
    dataset = train.with_claims(odd, "val")
    untrained = SelectionData(train, train)
    trained = SelectionData(train, half, seen_share=0.5)
    other = SelectionData(train, dataset)
    assert one_val("de", {"a": untrained, "b": untrained}) is untrained
    assert one_val("de", {"a": untrained, "b": trained}) is trained
    with refused(UserError, "routes.de: b and c "):
        one_val("de", {"a": untrained, "b": trained, "c": other})
    english = SelectionData(train, half.in_languages(["en"]))
    with refused(NothingToChooseOn, "routes.de: "):
        one_val("de", {"a": english})


def test_routed_parts_read_the_claim_form_that_is_asked_for(dev: Dataset) -> None:
    tuned = bm25("tuned", fits=True)
    route_node = routes(de=tuned, default=PLAIN)
    runner = SystemRunner(dev, RunSettings("demo"))
    result = runner.run(of(route_node), "translated")
    assert result.form == "translated"
    run = result.result.run
    plain_part = runner.run(of(PLAIN), "translated")
    tuned_part = runner.run(of(tuned), "translated")
    for claim in dev.claims:
        part = tuned_part if claim.lang == "de" else plain_part
        expected_scores = part.result.run.scored(claim.id)
        assert run.scored(claim.id) == expected_scores
    assert result.choices == tuned_part.choices != ()
    # The routed system's own form is that of its parts, whatever form is requested.
    own_form = of(route_node, claims="translated")
    own = runner.run(own_form, "original")
    assert list(own.result.run) == list(run)
    mix = Retrieval(Hybrid(PLAIN, route_node), name="m")
    hybrid = runner.run(of(mix), "translated")
    expected = fuse(plain_part.result.run, run, k=100)
    require_same_scores(hybrid.result.run, expected, dev)


@pytest.mark.slow
def test_bm25_is_chosen_on_the_split_that_the_dense_part_was_trained_on(
    dev: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A named split is preferred; without a hybrid there is no checkpoint to name it."""
    data = DataRecord(train_split="dev")
    manifest = Manifest(
        base=Base("b", None, "0"),
        weights=Weights("base"),
        encoder=EncoderSettings(),
        rendering=Rendering(),
        data=data,
    )
    monkeypatch.setattr(fit_retrieval, "_main_manifest", lambda *_: manifest)
    tuned = bm25("bm25", fits=True)
    dense = bm25("dense", b=1.0)
    hybrid = Hybrid(tuned, dense, fits=True)
    mix = of(Retrieval(hybrid, name="h"))
    reported = load("demo", "train").in_languages(["fr"])
    reported = reported.with_claims(reported.claims, "other")

    def chosen_on(system: System, **extra: Any) -> set[tuple[str, int]]:
        settings = RunSettings("demo", ChoosingOn(**extra))
        result = SystemRunner(reported, settings).run(system)
        return {(choice.split, choice.claims) for choice in result.choices}

    expected = set()
    for split in ("train", "dev"):
        claims = load("demo", split).claims
        expected.add((split, len(claims)))
    assert chosen_on(mix) | chosen_on(of(tuned)) == expected
    of_mix = chosen_on(mix)
    assert {split for split, _ in of_mix} == {"dev"}
    as_named = chosen_on(mix, split="train")
    assert {split for split, _ in as_named} == {"train"}


def test_a_hybrid_is_the_fusion_of_its_parts_and_many_systems_are_one_table(dev: Dataset) -> None:
    a = bm25("a")
    b = bm25("b", b=1.0, k1=2.0)
    own = bm25("own", "translated")
    listed = (
        of(a),
        of(b),
        of(Retrieval(Hybrid(a, b), name="ab")),
        of(own, claims="translated"),
        of(Retrieval(Hybrid(a, own), name="a+own")),
        of(replace(a, name="absent"), unsupported="not here"),
    )
    systems = {system.name: system for system in listed}
    forms = ("original", "translated")
    report = evaluate_systems(systems, dev, forms, repeats=50)
    rows = report.systems
    assert list(rows) == [
        "a.original",
        "a.translated",
        "b.original",
        "b.translated",
        "ab.original",
        "ab.translated",
        # A system with its own claims does not run with others.
        "own.translated",
        "a+own.original",
        "a+own.translated",
    ]
    assert rows["a+own.original"].parts == ("a.original", "own.translated")
    assert rows["own.translated"].macro == rows["a.translated"].macro
    not_run = [(row.system, row.reason) for row in report.not_run]
    assert not_run == [("absent", "not here"), ("absent", "not here")]
    first = BM25(claims="translated")
    second = replace(first, b=1.0, k1=2.0)
    parts = [config.index(dev.sources).search(dev.claims) for config in (first, second)]
    fused = fuse(*parts, k=100)
    expected = evaluate(fused, dev, repeats=0)
    assert rows["ab.translated"].macro == pytest.approx(expected.macro)
    assert rows["ab.translated"].parts == ("a.translated", "b.translated")
    result = run_system(systems["ab"], dev, "translated").result
    assert [name for name, _ in result.parts] == ["a", "b"]
    lists = [list(part.run) for _, part in result.parts]
    assert lists == [list(part.run) for part in parts]


def test_a_system_without_claims_to_choose_on_is_refused(dev: Dataset) -> None:
    claims = dev.with_claims(dev.claims, "train")
    settings = RunSettings("demo")
    system = of(bm25("A", fits=True))
    with refused(NothingToChooseOn, "split: ", "'train'"):
        run_system(system, claims, settings=settings)
    english = dev.in_languages(["en"])
    result = run_system(system, english, settings=settings)
    assert result.choices[0].claims > 50


def test_scores_by_seen_golds_are_apart(dev: Dataset) -> None:
    sources = tuple(Source(name) for name in "ab")
    claims = (
        Claim("c0", "", golds=("a",)),
        Claim("c1", "", golds=("a",)),
        Claim("c2", "", golds=("b",)),
    )
    grades = {claim.id: {claim.golds[0]: 1} for claim in claims}
    qrels = Qrels(grades)
    data = Dataset(claims, sources, qrels, "dev")
    lists = {
        "c0": [("a", 1.0)],
        "c1": [("b", 1.0)],
        "c2": [("b", 1.0)],
    }
    run = Run.from_lists(lists)
    report = evaluate(run, data, repeats=0, seen_golds=frozenset("a"))
    (system,) = report.systems.values()
    seen = system.slices["seen"]
    unseen = system.slices["unseen"]
    assert seen["macro"]["mrr@5"] == 0.5
    assert unseen["en"] == {**unseen["en"], "queries": 1}
    assert unseen["macro"]["mrr@5"] == 1.0
    assert system.intervals is None
    all_seen = evaluate(run, data, repeats=0, seen_golds=frozenset("ab"))
    none = all_seen.systems["system"]
    assert none.slices["unseen"] == {}


@dataclass(frozen=True)
class CountsWords:
    """A stage of a user's own, whose scores depend on all sources that there are."""

    counts_terms: bool = True
    pool: int = 0

    def with_corpus_stats(self, pool: Sequence[Source]) -> CountsWords:
        return replace(self, pool=len(pool))


def test_any_stage_may_count_over_all_sources() -> None:
    pool = [Source("a", "t"), Source("b", "t")]
    stage: Any = CountsWords()
    counts = SystemStage("counts", stage, {})
    over: Any = counts.with_corpus_stats(pool).stage
    assert counts.counts_terms
    assert over.pool == 2
    uncounted = CountsWords(counts_terms=False)
    others: list[Any] = [uncounted, object()]
    for other in others:
        stage = SystemStage("other", other, {})
        assert not stage.counts_terms
        assert stage.with_corpus_stats(pool) is stage
