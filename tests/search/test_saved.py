"""Rankings of other programs as systems: alone, fused, by language, with selections."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from claim2source.core.costs import known_cost
from claim2source.core.errors import ConfigError, InputError, UserError
from claim2source.core.records import Claim, Dataset, Qrels, Source
from claim2source.core.run import Cost, Run
from claim2source.data.trec import write_trec_run
from claim2source.evaluation.evaluate import evaluate
from claim2source.evaluation.table import evaluate_systems
from claim2source.search.bm25 import BM25
from claim2source.search.fuse import FusionConfig, Hybrid
from claim2source.search.saved import Saved
from claim2source.systems.read import make_system, read_systems
from claim2source.systems.retrieval import Retrieval
from claim2source.systems.system import System, run_system
from tests.data.test_released import claim_of, write
from tests.refusals import refused

GOLDS = {
    "dev-en-0": "p1",
    "dev-en-1": "p2",
    "dev-de-0": "p2",
    "dev-de-1": "p3",
}


def judged_claim(name: str, gold: str) -> Claim:
    """Make a claim of the language in its name, with its one gold."""
    _, lang, _ = name.split("-")
    text = f"masks and tea {name}"
    return Claim(name, text, lang, golds=(gold,))


CLAIMS = tuple(judged_claim(name, gold) for name, gold in GOLDS.items())
SOURCES = tuple(Source(f"p{i}", f"masks {i}", "and tea") for i in range(5))
GRADES = {name: {gold: 1} for name, gold in GOLDS.items()}
DATA = Dataset(
    CLAIMS,
    SOURCES,
    Qrels(GRADES),
    "dev",
    "small",
)


def scores(folder: Path, lang: str, lists: dict[int, list[str]]) -> Path:
    entries = []
    for index, keys in lists.items():
        gold = GOLDS.get(f"dev-{lang}-{index}", "None")
        rows = [(key, 1 / i, None, None) for i, key in enumerate(keys, 1)]
        entries.append(claim_of(index, gold, *rows))
    content = json.dumps(entries)
    return write(folder, content, f"{lang}.out")


def english(folder: Path) -> Path:
    ranked = {
        0: ["p1", "p4"],
        1: ["p0", "p2", "p3"],
    }
    return scores(folder, "en", ranked)


def german(folder: Path) -> Path:
    ranked = {
        0: ["p3", "p2"],
        1: ["p1", "p0"],
    }
    return scores(folder, "de", ranked)


def lists(run: Run) -> dict[str, list[str]]:
    return {claim: run.sources(claim) for claim in run.claim_ids}


def saved_system(run: object) -> dict[str, Any]:
    """Describe a system that ranks as files do."""
    return {"retrieve": {"run": run}}


def test_files_and_routes_are_named_by_any_tag_of_a_language(tmp_path: Path) -> None:
    english_file = str(english(tmp_path))
    german_file = str(german(tmp_path))
    files = {
        "en-GB": english_file,
        "ger": german_file,
    }
    system = make_system("S", saved_system(files))
    ranking = run_system(system, DATA).result
    assert ranking.sources("dev-de-0") == ["p3", "p2"]

    bm25: dict[str, Any] = {"bm25": {}}
    german_run = {"run": {"all": german_file}}
    by_name = {
        "retrieve": bm25,
        "routes": {"de-AT": german_run},
    }
    routing = make_system("R", by_name)
    routed = run_system(routing, DATA).result
    assert routed.sources("dev-de-0") == ["p3", "p2"]

    twice = {
        "retrieve": bm25,
        "routes": {"de": bm25, "ger": bm25},
    }
    with refused(ConfigError, "routes.ger"):
        make_system("T", twice)


def test_files_of_a_system_are_ranked_by_language_with_selections(tmp_path: Path) -> None:
    english(tmp_path)
    german(tmp_path)
    selections = tmp_path / "llm.json"
    selections.write_text('{"en_1": {"selected_paper": 2}, "de_0": 2, "de_1": null, "fr_9": 1}')
    file = tmp_path / "systems.yaml"
    file.write_text(
        f"theirs: {{retrieve: {{run: {{en: {tmp_path}/en.out, de: {tmp_path}/de.out}}}}}}\n"
        f"kimi:\n  retrieve: {{run: {{files: {{en: {tmp_path}/en.out, de: {tmp_path}/de.out}}, "
        f"selections: {selections}}}}}\n  label: Kimi-K2.6\n"
        f"english: {{retrieve: {{run: {tmp_path}/en.out}}}}\n"
    )
    systems = read_systems([file])
    ranking = run_system(systems["theirs"], DATA).result
    assert lists(ranking.run) == {
        "dev-en-0": ["p1", "p4"],
        "dev-en-1": ["p0", "p2", "p3"],
        "dev-de-0": ["p3", "p2"],
        "dev-de-1": ["p1", "p0"],
    }
    assert ranking.cost == Cost()

    english_only = DATA.with_claims(CLAIMS[:2])
    alone = run_system(systems["english"], english_only).result.run
    english_names = ("dev-en-0", "dev-en-1")
    assert lists(alone) == {name: ranking.sources(name) for name in english_names}

    chosen = run_system(systems["kimi"], DATA).result.run
    selected = lists(chosen)
    assert selected["dev-en-1"] == ["p2", "p0", "p3"]
    assert selected["dev-de-0"] == ["p2", "p3"]
    assert selected["dev-en-0"] == ["p1", "p4"]
    assert selected["dev-de-1"] == ["p1", "p0"]

    # Either ranking of a file whose lists were re-ranked.
    first = ("p1", 0.5, 2, None)
    second = ("p4", 0.4, 1, None)
    rows = claim_of(0, "p1", first, second)
    content = json.dumps([rows])
    reranked = write(tmp_path, content, "reranked.out")
    run = {"files": {"en": str(reranked)}}
    orders = (
        ("reranker", ["p4", "p1"]),
        ("embedding", ["p1", "p4"]),
    )
    one_claim = DATA.with_claims(CLAIMS[:1])
    for ranked_by, expected in orders:
        settings = run | {"ranked_by": ranked_by}
        system = make_system("S", saved_system(settings))
        ranked = run_system(system, one_claim).result.run
        assert lists(ranked) == {"dev-en-0": expected}


def test_a_saved_run_is_a_part_of_a_hybrid_and_scores_what_it_ranks(tmp_path: Path) -> None:
    pairs = [("p4", 2.0), ("p3", 1.0)]
    run = Run.from_lists({claim.id: pairs for claim in CLAIMS})
    path = tmp_path / "all.trec"
    write_trec_run(run, path)
    saved = Retrieval(Saved({"all": path}))
    for missing in ("lowest", "scored"):
        fusion = FusionConfig(alpha=0.0, missing=missing)  # type: ignore[arg-type]
        bm25 = Retrieval(BM25())
        mix = Retrieval(Hybrid(bm25, saved, fusion))
        system = System("mix", mix)
        fused = run_system(system, DATA).result.run
        for claim in CLAIMS:
            ranked = fused.sources(claim.id)
            assert ranked[:2] == ["p4", "p3"]

    only = Claim("dev-en-0", "x", candidates=("p3",))
    index = Saved({"all": path}).index(SOURCES)
    bound = index.search([only]).run
    assert lists(bound) == {"dev-en-0": ["p3"]}
    first = index.search([CLAIMS[1]], 1).run
    assert lists(first) == {"dev-en-1": ["p4"]}


def test_what_a_file_may_not_rank_is_named(tmp_path: Path) -> None:
    def refuses(path: Path, *facts: str, **options: Any) -> None:
        config = Saved({"en": path}, **options)
        with refused(InputError, path, *facts):
            config.index(SOURCES).search(CLAIMS[:2])

    ranked = {
        0: ["p1", "x1", "x2", "x3", "x4"],
        1: [],
    }
    strange = scores(tmp_path, "en", ranked)
    refuses(strange, "source: ", "'x1', 'x2', 'x3' and 1 more")
    unknown = scores(tmp_path, "en", {8: ["p1"]})
    refuses(unknown, "claim: ", "2 claims", "'dev-")
    trec = tmp_path / "r.trec"
    trec.write_text("dev-en-0 Q0 p1 1 1 t\ndev-en-9 Q0 p1 1 1 t\n")
    refuses(trec, "claim: ", "'dev-en-9'")
    selections = tmp_path / "llm.json"
    selections.write_text('{"en_0": 1}')
    refuses(trec, "selections", selections=selections)

    german_file = german(tmp_path)
    german_run = Saved({"de": german_file}).index(SOURCES)
    with refused(UserError, "run.files: ", "'en'", " de"):
        german_run.search(CLAIMS)

    files = {"all": trec}
    more_than_all = {"all": trec, "en": trec}
    wrong: tuple[dict[str, Any], ...] = (
        {"files": more_than_all},
        {"selections": selections},
    )
    for settings in wrong:
        name = next(iter(settings))
        with refused(ConfigError, f"run.{name}"):
            Saved(**{"files": files} | settings)


def test_a_run_file_has_no_cost_in_a_report(tmp_path: Path) -> None:
    file = tmp_path / "mine.trec"
    run = Run.from_lists({claim.id: [("p1", 1.0)] for claim in CLAIMS})
    write_trec_run(run, file, "mine")
    reading = make_system("R", saved_system(str(file)))
    report = evaluate_systems({"R": reading}, DATA)
    (system,) = report.systems.values()
    assert system.cost is None
    written = report.to_json()["systems"]["R.original"]
    assert "cost" not in written
    evaluated = evaluate(file, DATA, repeats=0)
    assert evaluated.systems["system"].cost is None
    assert known_cost(Cost(0.5, 3)) is not None
