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


GRID = (("title_weight", (1, 3)), ("k1", (1.2, 2.0)), ("b", (0.75, 0.3)))


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
    result = BM25().index(dev.sources).search(dev.claims)
    for claim in dev.claims:
        ids = result.run.sources(claim.id)
        four = ids[:4][::-1] + ids[4:]
        assert system_result.stages[0].result.run.sources(claim.id) == ids
        assert system_result.stages[1].result.run.sources(claim.id) == four
        assert system_result.result.run.sources(claim.id) == four[:2][::-1] + four[2:]
    report = score_system("r", system_result, dev, Scoring(repeats=0)).report
    assert [stage.name for stage in report.stages] == [s.name for s in system_result.stages]
    assert report.stages[1].failures == {"no reason": 1} and report.failures == {"no reason": 1}
    assert all(stage.cost.seconds > 0 for stage in report.stages)
    total = sum(stage.cost.seconds for stage in report.stages)
    assert report.cost is not None and report.cost.seconds == pytest.approx(total, abs=0.002)
    assert report.cost.claims == len(dev.claims)
    assert report.macro["mrr@5"] == pytest.approx(
        evaluate(system_result.result, dev, repeats=0).macro["mrr@5"]
    )


def test_a_changed_stage_runs_again_with_what_follows_and_nothing_else(
    outside: Any, dev: Dataset, tmp_path: Path
) -> None:
    settings = RunSettings(store=Store(tmp_path / "store"))

    def stages(first: int, second: int) -> list[bool]:
        given = [{"rerank": "reversing.Reverse", "depth": depth} for depth in (first, second)]
        system = make_system("A", {"retrieve": {"bm25": {}}, "stages": given})
        system_result = run_system(system, dev, settings=settings)
        assert system_result.stages[1].result.notes == {dev.claims[0].id: "seen"}
        assert system_result.stages[1].result.failures == (Failure(dev.claims[1].id, "no reason"),)
        return [stage.result.stored for stage in system_result.stages]

    assert stages(3, 2) == [False, False, False]
    assert stages(3, 2) == [True, True, True] and len(outside.calls) == 2
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
    claims, sources = [Claim("c", "masks work", "de", "masks")], [Source("a", "A"), Source("b")]
    run = Run.from_lists({"c": [("a", 2.0), ("b", 1.0)]})
    store = Store(tmp_path)
    assert not apply_stage(Same(), claims, sources, Result(run), store).stored
    assert apply_stage(Same(), claims, sources, Result(run), store).stored
    if change == "abstract":
        sources = [replace(sources[0], abstract="new"), sources[1]]
    elif change == "ranking":
        run = Run.from_lists({"c": [("a", 2.0), ("b", 1.5)]})
    elif change == "pool":
        claims = [replace(claims[0], candidates=("a",))]
    else:
        claims = [replace(claims[0], **{change: "other"})]
    assert not apply_stage(Same(), claims, sources, Result(run), store).stored


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
    with refused(ConfigError, *facts):
        make_system("A", {"retrieve": {"bm25": {}}, "stages": [entry]})


def bm25(name: str, claims: Any = None, fits: bool = False, **settings: Any) -> Retrieval:
    config, grid = BM25(**settings), GRID if fits else ()
    return Retrieval(config, name=name, claims=claims, grid=grid)


def routes(**given: Retrieval | tuple[Retrieval, ...]) -> Retrieval:
    several = {lang: node if isinstance(node, tuple) else (node,) for lang, node in given.items()}
    return Retrieval(Routes(several), name="both")


PLAIN, WORDS = bm25("plain"), bm25("words", "translated", stemmer=False)


def of(node: Retrieval, **options: Any) -> System:
    return System(node.name, node, **options)


def test_routes_send_every_language_to_its_system(dev: Dataset) -> None:
    runner = SystemRunner(dev)
    routed = runner.run(of(routes(de=WORDS, default=PLAIN)))
    parts = {node.name: runner.run(of(node)).result.run for node in (PLAIN, WORDS)}
    for claim in dev.claims:
        name = "words" if claim.lang == "de" else "plain"
        assert routed.result.run.sources(claim.id) == parts[name].sources(claim.id)
    assert routed.result.run.claim_ids == tuple(claim.id for claim in dev.claims)
    assert [stage.name for stage in routed.stages] == ["plain", "words", "route"]
    costs = [stage.result.cost.seconds for stage in routed.stages]
    assert costs[-1] == pytest.approx(sum(costs[:-1]))
    # Without names the parts are known by their kinds.
    route_node = routes(de=replace(WORDS, name=""), default=replace(PLAIN, name=""))
    assert [name for name, _ in runner.run(of(route_node)).result.parts] == ["bm25", "bm25"]
    with refused(ConfigError, "routes: ", "'fr'"):
        SystemRunner(dev).run(of(routes(de=WORDS, en=PLAIN)))


@pytest.mark.slow
@pytest.mark.parametrize("first", ["plain", "words"])
def test_val_chooses_the_system_of_each_language(dev: Dataset, first: str) -> None:
    nodes = {"plain": PLAIN, "words": bm25("words", "translated", k1=0.1, b=0.0)}
    names = [first, *(name for name in nodes if name != first)]
    route_node = of(routes(fr=PLAIN, default=tuple(nodes[name] for name in names)))
    train = load("demo", "train")
    won = {}
    for rule in ("best", "one_se"):
        settings = RunSettings("demo", ChoosingOn("train", rule=rule))
        result = SystemRunner(dev, settings).run(route_node)
        assert [choice.what for choice in result.choices] == ["route en", "route de"]
        for choice in result.choices:
            language = choice.what.split()[1]
            mine = train.in_languages([language])
            by_hand = {
                name: evaluate(run_system(of(nodes[name]), mine).result.run, mine, repeats=0).macro
                for name in names
            }
            scores = {str(trial.settings["system"]): trial.score for trial in choice.tried}
            assert scores == pytest.approx({k: v["mrr@5"] for k, v in by_hand.items()})
            assert choice.claims == len(mine.claims) and choice.split == "train"
            name = str(choice.settings["system"])
            best = max(scores, key=lambda name: scores[name])
            if rule == "best":
                assert name == best
                won[language] = best
            else:  # the first, unless it is clearly worse
                error = choice.error if name != best else 0
                assert name == first or scores[best] > scores[first]
                assert scores[best] - scores[name] <= (error or 0) + 1e-9
            solo = run_system(of(nodes[name]), dev.in_languages([language])).result.run
            for claim in dev.in_languages([language]).claims:
                assert result.result.run.sources(claim.id) == solo.sources(claim.id)
    assert set(won.values()) == set(names[:2])  # no one system is best for all


@pytest.mark.slow
def test_candidates_that_are_fitted_are_compared_as_fitted(dev: Dataset) -> None:
    """A route's candidate is a tree of its own: what it chooses is chosen first, and reported."""
    odd, tuned = bm25("odd", k1=8.0, b=1.0), bm25("tuned", fits=True, k1=8.0, b=1.0)
    settings = RunSettings("demo", ChoosingOn("train", rule="best"))
    runner = SystemRunner(dev, settings)
    first = runner.run(of(routes(default=(odd, tuned))), "original")
    assert [choice.what for choice in first.choices] == ["route en", "route de", "route fr", "bm25"]
    assert {choice.settings["system"] for choice in first.choices[:3]} == {"tuned"}
    solo = runner.run(of(tuned), "original")
    assert first.choices[3:] == solo.choices
    assert all(first.result.run.scored(c.id) == solo.result.run.scored(c.id) for c in dev.claims)


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
    node, second_node = bm25("one", fits=True), bm25("other", fits=True)
    runner = SystemRunner(dev, RunSettings("demo"))
    first, second = (runner.run(of(node), "original") for node in (node, second_node))
    assert len(fitted) == 1 and first.choices == second.choices != ()
    assert list(first.result.run) == list(second.result.run)
    assert (first.system, second.system) == ("one", "other")
    runner.run(of(routes(de=node, default=replace(second_node, label="x"))), "original")
    runner.run(of(Retrieval(Hybrid(node, PLAIN), name="mix")), "original")
    assert len(fitted) == 1
    # Another text of the claims, or other settings, are another choice.
    runner.run(of(node), "translated")
    runner.run(of(bm25("one", fits=True, stemmer=False)), "original")
    assert len(fitted) == 3


def test_candidates_of_a_route_are_compared_on_claims_that_none_was_trained_on(
    dev: Dataset,
) -> None:
    train = load("demo", "train")
    half = train.with_claims(train.claims[::2], "val")
    dataset = train.with_claims(train.claims[1::2], "val")
    untrained, trained = SelectionData(train, train), SelectionData(train, half, seen_share=0.5)
    assert one_val("de", {"a": untrained, "b": untrained}) is untrained
    assert one_val("de", {"a": untrained, "b": trained}) is trained
    with refused(UserError, "routes.de: b and c "):
        one_val("de", {"a": untrained, "b": trained, "c": SelectionData(train, dataset)})
    english = SelectionData(train, half.in_languages(["en"]))
    with refused(NothingToChooseOn, "routes.de: "):
        one_val("de", {"a": english})


def test_routed_parts_read_the_claim_form_that_is_asked_for(dev: Dataset) -> None:
    tuned = bm25("tuned", fits=True)
    route_node = routes(de=tuned, default=PLAIN)
    runner = SystemRunner(dev, RunSettings("demo"))
    result = runner.run(of(route_node), "translated")
    assert result.form == "translated"
    parts = {node.name: runner.run(of(node), "translated") for node in (PLAIN, tuned)}
    for claim in dev.claims:
        part = parts["tuned" if claim.lang == "de" else "plain"]
        assert result.result.run.scored(claim.id) == part.result.run.scored(claim.id)
    assert result.choices == parts["tuned"].choices != ()
    # The routed system's own form is that of its parts, whatever form is requested.
    own = runner.run(of(route_node, claims="translated"), "original")
    assert list(own.result.run) == list(result.result.run)
    hybrid = runner.run(of(Retrieval(Hybrid(PLAIN, route_node), name="m")), "translated")
    expected = fuse(parts["plain"].result.run, result.result.run, k=100)
    assert all(hybrid.result.run.scored(c.id) == expected.scored(c.id) for c in dev.claims)


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
    hybrid = Hybrid(tuned, bm25("dense", b=1.0), fits=True)
    mix = of(Retrieval(hybrid, name="h"))
    reported = load("demo", "train").in_languages(["fr"])
    reported = reported.with_claims(reported.claims, "other")

    def chosen_on(system: System, **extra: Any) -> set[tuple[str, int]]:
        result = SystemRunner(reported, RunSettings("demo", ChoosingOn(**extra))).run(system)
        return {(choice.split, choice.claims) for choice in result.choices}

    expected = {(split, len(load("demo", split).claims)) for split in ("train", "dev")}
    assert chosen_on(mix) | chosen_on(of(tuned)) == expected
    assert {split for split, _ in chosen_on(mix)} == {"dev"}
    assert {split for split, _ in chosen_on(mix, split="train")} == {"train"}


def test_a_hybrid_is_the_fusion_of_its_parts_and_many_systems_are_one_table(dev: Dataset) -> None:
    a, b, own = bm25("a"), bm25("b", b=1.0, k1=2.0), bm25("own", "translated")
    listed = (
        *(of(a), of(b), of(Retrieval(Hybrid(a, b), name="ab"))),
        of(own, claims="translated"),
        of(Retrieval(Hybrid(a, own), name="a+own")),
        of(replace(a, name="absent"), unsupported="not here"),
    )
    systems = {system.name: system for system in listed}
    report = evaluate_systems(systems, dev, ("original", "translated"), repeats=50)
    names = [f"{name}.{form}" for name in ("a", "b", "ab") for form in ("original", "translated")]
    # A system with its own claims does not run with others.
    names_of_stages = ["a+own.original", "a+own.translated"]
    assert list(report.systems) == [*names, "own.translated", *names_of_stages]
    assert report.systems["a+own.original"].parts == ("a.original", "own.translated")
    assert report.systems["own.translated"].macro == report.systems["a.translated"].macro
    assert [(row.system, row.reason) for row in report.not_run] == [("absent", "not here")] * 2
    translated = BM25(claims="translated")
    parts = [
        config.index(dev.sources).search(dev.claims)
        for config in (translated, replace(translated, b=1.0, k1=2.0))
    ]
    expected = evaluate(fuse(*parts, k=100), dev, repeats=0)
    assert report.systems["ab.translated"].macro == pytest.approx(expected.macro)
    assert report.systems["ab.translated"].parts == ("a.translated", "b.translated")
    result = run_system(systems["ab"], dev, "translated").result
    assert [name for name, _ in result.parts] == ["a", "b"]
    assert [list(part.run) for _, part in result.parts] == [list(part.run) for part in parts]


def test_a_system_without_claims_to_choose_on_is_refused(dev: Dataset) -> None:
    claims = dev.with_claims(dev.claims, "train")
    settings = RunSettings("demo")
    system = of(bm25("A", fits=True))
    with refused(NothingToChooseOn, "split: ", "'train'"):
        run_system(system, claims, settings=settings)
    assert run_system(system, dev.in_languages(["en"]), settings=settings).choices[0].claims > 50


def test_scores_by_seen_golds_are_apart(dev: Dataset) -> None:
    sources = tuple(Source(name) for name in "ab")
    claims = tuple(Claim(f"c{i}", "", golds=(gold,)) for i, gold in enumerate("aab"))
    qrels = Qrels({c.id: {c.golds[0]: 1} for c in claims})
    data = Dataset(claims, sources, qrels, "dev")
    run = Run.from_lists({"c0": [("a", 1.0)], "c1": [("b", 1.0)], "c2": [("b", 1.0)]})
    report = evaluate(run, data, repeats=0, seen_golds=frozenset("a"))
    (system,) = report.systems.values()
    assert system.slices["seen"]["macro"]["mrr@5"] == 0.5
    assert system.slices["unseen"]["en"] == {**system.slices["unseen"]["en"], "queries": 1}
    assert system.slices["unseen"]["macro"]["mrr@5"] == 1.0 and system.intervals is None
    none = evaluate(run, data, repeats=0, seen_golds=frozenset("ab")).systems["system"]
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
    assert counts.counts_terms and over.pool == 2
    others: list[Any] = [CountsWords(counts_terms=False), object()]
    for other in others:
        stage = SystemStage("other", other, {})
        assert not stage.counts_terms and stage.with_corpus_stats(pool) is stage
