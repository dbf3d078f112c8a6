"""`eval/evaluate.py`: systems, claim forms, stages, checkpoints and variations in one report."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from claim2source.eval.evaluate import main

from claim2source.core.errors import ConfigError, UserError
from claim2source.core.report import Report
from claim2source.evaluation.plan import plan_rows, vary_words
from claim2source.models import ModelConfig
from claim2source.search.bm25 import BM25
from claim2source.search.dense import Dense
from claim2source.systems.retrieval import Retrieval
from claim2source.systems.system import System
from tests.refusals import refused

SYSTEMS = """\
Plain: {{retrieve: {{bm25: {{k1: 1.2}}}}}}
Papers: {{label: bm25, retrieve: {{bm25: {{analysis: whitespace, k1: 1.2, b: 1.0}}}}}}
Tiny: {{retrieve: {{dense: {{name: {tiny}, pooling: mean, max_length: 64}}}}}}
Both: {{retrieve: {{hybrid: [Papers, Tiny]}}}}
Gone: {{retrieve: {{dense: no/such-model}}, advice: "get it"}}
Two:
  retrieve: Plain
  stages:
    - {{rerank: max_sim, model: {tiny}, max_length: 64, depth: 5}}
    - {{rerank: max_sim, model: {tiny}, max_length: 64, depth: 3, mix: 1.0}}
"""


@pytest.fixture
def systems(tmp_path: Path, tiny_folder: Path) -> Path:
    path = tmp_path / "systems.yaml"
    path.write_text(SYSTEMS.format(tiny=tiny_folder))
    return path


@pytest.fixture
def run(tmp_path: Path, systems: Path) -> Callable[..., Report]:
    """Evaluate systems on the demo's dev split, into a folder of the test's."""

    def evaluate(out: str, *words: str) -> Report:
        fixed = ["--repeats", "50", "--store", str(tmp_path / "store"), "--offline"]
        main(["--systems", str(systems), "--out", str(tmp_path / out), *fixed, *words])
        return Report.read(tmp_path / out)

    return evaluate


def pairs(report: Report) -> dict[str, set[tuple[str, str]]]:
    return {
        test.family: {(c.system, c.baseline) for c in test.comparisons}
        for test in report.tests
        if test.average == "macro"
    }


def test_every_system_form_and_stage_is_a_row(run: Callable[..., Report], tmp_path: Path) -> None:
    report = run("out", "--claims", "original", "translated")
    forms = ("original", "translated")
    two = [
        f"Two.{form}{stage}"
        for form in forms
        for stage in (": first stage", ": 1. rerank max_sim", "")
    ]
    plain = [f"{name}.{form}" for name in ("Plain", "Papers", "Tiny", "Both") for form in forms]
    assert set(report.systems) == {*plain, *two}
    assert [(row.system, row.advice) for row in report.not_run] == [("Gone", "get it")] * 2
    # Two stages move the first five and three only.
    first, last = report.systems["Plain.original"], report.systems["Two.original"]
    assert report.systems["Two.original: first stage"].languages == first.languages
    assert last.macro["recall@5"] == first.macro["recall@5"] and last.macro != first.macro
    tests = pairs(report)
    assert tests["Dense systems against BM25"] == {
        (f"Tiny.{form}", f"Plain.{form}") for form in forms
    }
    assert tests["Hybrids against their dense part"] == {
        (f"Both.{form}", f"Tiny.{form}") for form in forms
    }
    assert tests["Other BM25s against the papers'"] == {
        (f"Plain.{form}", f"Papers.{form}") for form in forms
    }
    assert tests["Each stage against the one before"] == {
        pair
        for form in forms
        for pair in (
            (f"Two.{form}: 1. rerank max_sim", f"Two.{form}: first stage"),
            (f"Two.{form}", f"Two.{form}: 1. rerank max_sim"),
            (f"Two.{form}", f"Two.{form}: first stage"),
        )
    }
    names = ("Plain", "Papers", "Tiny", "Both", "Two")
    assert tests["Other claim forms against original claims"] == {
        (f"{name}.translated", f"{name}.original") for name in names
    }
    assert (tmp_path / "out" / "Two.original" / "claims.html").is_file()


@pytest.mark.slow
def test_one_setting_at_a_time(run: Callable[..., Report], tmp_path: Path) -> None:
    vary = ("--vary", "stages.2.depth=2,4", "retrieve.metadata=true", "retrieve.depth=7")
    report = run("out", "--only", "Two", *vary)
    names = [
        f"Two {setting}"
        for setting in (
            "stages.2.depth=2",
            "stages.2.depth=4",
            "retrieve.metadata=true",
            "retrieve.depth=7",
        )
    ]
    wholes = [name for name in report.systems if ":" not in name]
    assert wholes == [f"{name}.original" for name in ("Two", *names)]
    assert pairs(report)["One setting at a time"] == {
        (f"{name}.original", "Two.original") for name in names
    }
    found = run("deep", "--only", "Two", "--vary", "retrieve.depth=7")
    (deep,) = [name for name in found.systems if name.startswith("Two retrieve.depth=7")][-1:]
    assert (
        found.systems[deep].macro["recall@100"] < found.systems["Two.original"].macro["recall@100"]
    )
    for setting, *facts in (
        ("stages.3.depth=1", "stages.3.depth", "stages.1.KEY, stages.2.KEY"),
        ("stages.0.depth=1", "stages.0.depth", "stages.1.KEY, stages.2.KEY"),
        ("stages.1.deepness=1", "deepness", "depth"),
        ("retrieve.saurces=1", "'retrieve.saurces'", "retrieve.depth, retrieve.sources, "),
        ("depth=1", "'depth'", "retrieve.KEY"),
        ("retrieve.k1=", "vary retrieve.k1: "),
    ):
        with refused(UserError, *facts):
            run("no", "--only", "Two", "--vary", setting)
    # Said before anything is run: a folder that is not there is a hub's model that is not either.
    with pytest.raises(UserError, match="model 'no/such': .*hub"):
        run("none", "--only", "Two", "--checkpoint=no/such")
    with refused(UserError, tmp_path / "nosuch.trec"):
        run("none", "--only", "Two", f"--run={tmp_path / 'nosuch.trec'}")
    assert not (tmp_path / "none").exists()


def test_words_of_variations_and_routes_become_mappings() -> None:
    words = vary_words(
        ["--vary", "stages.1.when={margin_below: 0.1},{disagree: true}", "a=1", "--x", "y"]
    )
    assert words == [
        '--vary={"stages.1.when": [{"margin_below": 0.1}, {"disagree": true}], "a": [1]}',
        *("--x", "y"),
    ]
    assert vary_words(["--route", "de=B", "fr=C"]) == ['--routes={"de": "B", "fr": "C"}']
    with refused(UserError, "--vary", "KEY=VALUE"):
        vary_words(["--vary", "depth"])


def test_values_of_variations_are_read_as_those_of_configs() -> None:
    (word,) = vary_words(["--vary", "a=1:30,010,off,no,1e-1,2026-11-25,0x1F,~", "b={x, y}"])
    assert json.loads(word.removeprefix("--vary=")) == {
        "a": ["1:30", 10, "off", "no", 0.1, "2026-11-25", "0x1F", None],
        "b": [{"x": None, "y": None}],
    }
    for text in ("!!set {a}", "!!python/object:os.system [x]", "1]", "{a: 1, a: 2}"):
        with pytest.raises(UserError):
            vary_words(["--vary", f"a={text}"])


def test_a_varied_depth_is_a_number() -> None:
    plans = {"B": System("B", Retrieval(BM25()))}
    for value in (True, 0, "x", 2.5):
        with pytest.raises(ConfigError) as error:
            plan_rows(plans, {}, [], Dense(ModelConfig()), vary={"retrieve.depth": [value]})
        assert error.value.key == "vary retrieve.depth"


@pytest.mark.slow
def test_a_mix_and_a_margin_are_chosen_on_held_out_claims(
    run: Callable[..., Report], systems: Path, tiny_folder: Path
) -> None:
    stage = f"{{rerank: max_sim, model: {tiny_folder}, max_length: 64, depth: 5"
    systems.write_text(
        f"Fitted:\n  retrieve: {{bm25: {{k1: 1.2}}}}\n  stages:\n    - {stage}, mix: fit}}\n"
        f"    - {stage}, when: {{margin_below: fit}}}}\n"
    )
    report = run("out", "--val", "carved")
    choices = report.systems["Fitted.original"].choices
    assert [choice.what for choice in choices] == ["mix", "margin_below"]
    assert all(choice.split == "val" and choice.compared > 3 for choice in choices)
    # A stage of random vectors gets little: the first stage keeps the greater part.
    assert float(choices[0].settings["mix"]) > 0
    # What was chosen is what is run.
    mix, margin = choices[0].settings["mix"], choices[1].settings["margin_below"]
    systems.write_text(
        f"Fixed:\n  retrieve: {{bm25: {{k1: 1.2}}}}\n  stages:\n    - {stage}, mix: {mix}}}\n"
        f"    - {stage}, when: {{margin_below: {margin}}}}}\n"
    )
    fixed = run("fixed").systems["Fixed.original"]
    assert fixed.languages == report.systems["Fitted.original"].languages


@pytest.mark.slow
def test_a_ranking_of_another_program_takes_the_first_stages_place(
    run: Callable[..., Report], tmp_path: Path
) -> None:
    own = run("out", "--only", "Two")
    runs = tmp_path / "out" / own.systems["Two.original: first stage"].runs
    trec = tmp_path / "all.trec"
    trec.write_text("".join((runs / f"{lang}.trec").read_text() for lang in ("en", "de", "fr")))
    rerun = run("again", "--only", "Two", "--run", str(trec))
    assert [system.languages for system in rerun.systems.values()] == [
        system.languages for system in own.systems.values()
    ]
    # The same file with other content is another run.
    trec.write_text(trec.read_text().replace(" 1 ", " 99 ", 1))
    before = rerun.systems["Two.original: first stage"]
    after = run("again", "--only", "Two", "--run", str(trec)).systems[before.name]
    assert after.key != before.key
