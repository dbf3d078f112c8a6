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

GOLDS = {"dev-en-0": "p1", "dev-en-1": "p2", "dev-de-0": "p2", "dev-de-1": "p3"}
CLAIMS = tuple(
    Claim(name, f"masks and tea {name}", name.split("-")[1], golds=(gold,))
    for name, gold in GOLDS.items()
)
SOURCES = tuple(Source(f"p{i}", f"masks {i}", "and tea") for i in range(5))
DATA = Dataset(
    CLAIMS, SOURCES, Qrels({name: {gold: 1} for name, gold in GOLDS.items()}), "dev", "small"
)


def scores(folder: Path, lang: str, lists: dict[int, list[str]]) -> Path:
    entries = []
    for index, keys in lists.items():
        rows = ((key, 1 / i, None, None) for i, key in enumerate(keys, 1))
        entries.append(claim_of(index, GOLDS.get(f"dev-{lang}-{index}", "None"), *rows))
    return write(folder, json.dumps(entries), f"{lang}.out")


def english(folder: Path) -> Path:
    return scores(folder, "en", {0: ["p1", "p4"], 1: ["p0", "p2", "p3"]})


def german(folder: Path) -> Path:
    return scores(folder, "de", {0: ["p3", "p2"], 1: ["p1", "p0"]})


def lists(run: Run) -> dict[str, list[str]]:
    return {claim: run.sources(claim) for claim in run.claim_ids}


def test_files_and_routes_are_named_by_any_tag_of_a_language(tmp_path: Path) -> None:
    files = {"en-GB": english(tmp_path), "ger": german(tmp_path)}
    system = make_system(
        "S", {"retrieve": {"run": {name: str(path) for name, path in files.items()}}}
    )
    assert run_system(system, DATA).result.sources("dev-de-0") == ["p3", "p2"]
    by_name = {"retrieve": {"bm25": {}}, "routes": {"de-AT": {"run": {"all": str(files["ger"])}}}}
    routed = run_system(make_system("R", by_name), DATA)
    assert routed.result.sources("dev-de-0") == ["p3", "p2"]
    node = {"bm25": {}}
    twice = {"retrieve": node, "routes": {"de": node, "ger": node}}
    with refused(ConfigError, "routes.ger"):
        make_system("T", twice)


def test_files_of_a_system_are_ranked_by_language_with_selections(tmp_path: Path) -> None:
    english(tmp_path), german(tmp_path)
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
    assert lists(alone) == {name: ranking.sources(name) for name in ("dev-en-0", "dev-en-1")}
    selected = lists(run_system(systems["kimi"], DATA).result.run)
    assert selected["dev-en-1"] == ["p2", "p0", "p3"] and selected["dev-de-0"] == ["p2", "p3"]
    assert selected["dev-en-0"] == ["p1", "p4"] and selected["dev-de-1"] == ["p1", "p0"]
    # Either ranking of a file whose lists were re-ranked.
    rows = claim_of(0, "p1", ("p1", 0.5, 2, None), ("p4", 0.4, 1, None))
    run = {"files": {"en": str(write(tmp_path, json.dumps([rows]), "reranked.out"))}}
    for ranked_by, expected in (("reranker", ["p4", "p1"]), ("embedding", ["p1", "p4"])):
        system = make_system("S", {"retrieve": {"run": run | {"ranked_by": ranked_by}}})
        ranked = run_system(system, DATA.with_claims(CLAIMS[:1])).result.run
        assert lists(ranked) == {"dev-en-0": expected}


def test_a_saved_run_is_a_part_of_a_hybrid_and_scores_what_it_ranks(tmp_path: Path) -> None:
    run = Run.from_lists({claim.id: [("p4", 2.0), ("p3", 1.0)] for claim in CLAIMS})
    write_trec_run(run, tmp_path / "all.trec")
    saved = Retrieval(Saved({"all": tmp_path / "all.trec"}))
    for missing in ("lowest", "scored"):
        fusion = FusionConfig(alpha=0.0, missing=missing)  # type: ignore[arg-type]
        mix = Retrieval(Hybrid(Retrieval(BM25()), saved, fusion))
        fused = run_system(System("mix", mix), DATA).result.run
        assert all(fused.sources(claim.id)[:2] == ["p4", "p3"] for claim in CLAIMS)
    only = Claim("dev-en-0", "x", candidates=("p3",))
    index = Saved({"all": tmp_path / "all.trec"}).index(SOURCES)
    assert lists(index.search([only]).run) == {"dev-en-0": ["p3"]}
    assert lists(index.search([CLAIMS[1]], 1).run) == {"dev-en-1": ["p4"]}


def test_what_a_file_may_not_rank_is_named(tmp_path: Path) -> None:
    def refuses(path: Path, *facts: str, **options: Any) -> None:
        config = Saved({"en": path}, **options)
        with refused(InputError, path, *facts):
            config.index(SOURCES).search(CLAIMS[:2])

    strange = scores(tmp_path, "en", {0: ["p1", "x1", "x2", "x3", "x4"], 1: []})
    refuses(strange, "source: ", "'x1', 'x2', 'x3' and 1 more")
    refuses(scores(tmp_path, "en", {8: ["p1"]}), "claim: ", "2 claims", "'dev-")
    trec = tmp_path / "r.trec"
    trec.write_text("dev-en-0 Q0 p1 1 1 t\ndev-en-9 Q0 p1 1 1 t\n")
    refuses(trec, "claim: ", "'dev-en-9'")
    selections = tmp_path / "llm.json"
    selections.write_text('{"en_0": 1}')
    refuses(trec, "selections", selections=selections)
    german_run = Saved({"de": german(tmp_path)}).index(SOURCES)
    with refused(UserError, "run.files: ", "'en'", " de"):
        german_run.search(CLAIMS)
    for settings in ({"files": {"all": trec, "en": trec}}, {"selections": selections}):
        with refused(ConfigError, f"run.{next(iter(settings))}"):
            Saved(**{"files": {"all": trec}} | settings)


def test_a_run_file_has_no_cost_in_a_report(tmp_path: Path) -> None:
    file = tmp_path / "mine.trec"
    write_trec_run(Run.from_lists({c.id: [("p1", 1.0)] for c in CLAIMS}), file, "mine")
    report = evaluate_systems({"R": make_system("R", {"retrieve": {"run": str(file)}})}, DATA)
    (system,) = report.systems.values()
    assert system.cost is None and "cost" not in report.to_json()["systems"]["R.original"]
    assert evaluate(file, DATA, repeats=0).systems["system"].cost is None
    assert known_cost(Cost(0.5, 3)) is not None
