"""`eval/evaluate.py`: systems, claim forms, stages, checkpoints and variations in one report."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

import claim2source as c2s
from claim2source.core.errors import UserError
from claim2source.core.report import Report
from claim2source.io.trec import read_run
from claim2source.pipeline.plan import vary_words
from eval.evaluate import main

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
    dev = c2s.load("demo", "dev")
    first = c2s.BM25(k1=1.2).index(dev.sources).search(dev.claims, 100)
    expected = c2s.evaluate(first, dev, repeats=0)
    for name in ("Plain.original", "Two.original: first stage"):
        row = report.systems[name]
        assert row.languages == expected.languages
        for language in ("en", "de", "fr"):
            run_of_file = read_run(tmp_path / "out" / row.runs / f"{language}.trec").run
            for claim in run_of_file.claim_ids:
                assert run_of_file.sources(claim) == first.sources(claim)
    # Two stages move the first five and three only.
    last = report.systems["Two.original"]
    assert last.macro["recall@5"] == report.systems["Plain.original"].macro["recall@5"]
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


def test_what_is_done_is_not_done_again(run: Callable[..., Report], tmp_path: Path) -> None:
    words = ("--only", "Plain", "Two")
    first = run("out", *words)
    run_file = tmp_path / "out" / "Plain.original" / "runs" / "0" / "en.trec"
    before = run_file.stat().st_mtime_ns
    rerun = run("out", *words)
    assert run_file.stat().st_mtime_ns == before
    assert rerun.systems == first.systems and rerun.tests == first.tests
    # Other settings make other rows; a run that is missing is made again.
    run("out", *words, "--seed", "1")
    assert run_file.stat().st_mtime_ns > before
    run_file.unlink()
    run("out", *words, "--seed", "1")
    assert run_file.is_file()


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
    for setting, why in (
        ("stages.3.depth=1", "stages.1.KEY, stages.2.KEY$"),
        ("stages.0.depth=1", "stages.1.KEY, stages.2.KEY$"),
        ("stages.1.deepness=1", "no such key.*depth"),
        ("retrieve.sauce=1", "a setting of a node"),
        ("depth=1", "retrieve.KEY"),
    ):
        with pytest.raises(UserError, match=why):
            run("no", "--only", "Two", "--vary", setting)
    # Said before anything is run: a folder that is not there is a hub's model that is not either.
    with pytest.raises(UserError, match="model 'no/such': .*the hub did not give it"):
        run("none", "--only", "Two", "--checkpoint=no/such")
    with pytest.raises(UserError, match="nosuch.trec: no such file"):
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
    with pytest.raises(UserError, match="KEY=VALUE"):
        vary_words(["--vary", "depth"])


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


def test_a_training_run_gives_every_epoch_and_what_stands_on_it(
    trained: tuple[Path, Path], tmp_path: Path, tiny_folder: Path
) -> None:
    folder, data = trained
    waiting, stages = tmp_path / "waiting.yaml", tmp_path / "behind.yaml"
    waiting.write_text("H: {retrieve: {hybrid: [{bm25: {k1: 1.2}}, {dense: checkpoint}]}}\n")
    stages.write_text(
        "Staged:\n  retrieve: {dense: another/model}\n  stages:\n"
        f"    - {{rerank: max_sim, model: {tiny_folder}, max_length: 64, depth: 5}}\n"
    )
    words = ["--checkpoint", str(folder), "--dataset", str(data), "--repeats", "50"]
    extra = ["--systems", str(waiting), "--stages", str(stages), "--out", str(tmp_path / "out")]
    main([*words, *extra])
    report = Report.read(tmp_path / "out")
    epochs = ["epoch-0", "epoch-1", "epoch-2"]
    wholes = [name for name in report.systems if ":" not in name]
    assert wholes == [
        f"{epoch}{end}.bilingual" for epoch in epochs for end in ("", "+Staged", "+H")
    ]
    trained_report = Report.read(folder)
    assert (
        report.systems["epoch-0.bilingual"].languages == trained_report.systems["step 0"].languages
    )
    assert report.chosen is not None and report.training is not None
    chosen_system = report.systems[f"{report.chosen}.bilingual"]
    assert report.macro == chosen_system.macro and chosen_system.val
    assert set(chosen_system.slices) == {"seen", "unseen"}
    assert not report.systems["epoch-0.bilingual"].slices
    tests = pairs(report)
    after = [(f"{epoch}.bilingual", "epoch-0.bilingual") for epoch in epochs[1:]]
    assert tests["Every epoch against step 0"] == set(after)
    assert tests["Every epoch against step 0, H"] == {
        (f"{epoch}+H.bilingual", "epoch-0+H.bilingual") for epoch in epochs[1:]
    }
    assert tests["Hybrids against their dense part"] == {
        (f"{epoch}+H.bilingual", f"{epoch}.bilingual") for epoch in epochs
    }
    # The chosen one alone can be submitted.
    zipped = tmp_path / "chosen.zip"
    main([*words, "--only", "chosen", "--out", str(tmp_path / "one"), "--submit", str(zipped)])
    (name,) = Report.read(tmp_path / "one").systems
    assert name == f"{report.chosen}.bilingual" and zipfile.is_zipfile(zipped)
    with pytest.raises(UserError, match="choose with --only"):
        main([*words, "--out", str(tmp_path / "no"), "--submit", str(zipped)])


def test_each_language_may_have_a_checkpoint_of_its_own(
    trained: tuple[Path, Path], tmp_path: Path
) -> None:
    folder, data = trained
    zero, two = (str(folder / "checkpoints" / f"epoch-{n}") for n in (0, 2))
    words = ["--dataset", str(data), "--no_tests"]
    main([*words, "--checkpoint", zero, "--out", str(tmp_path / "zero")])
    main([*words, "--checkpoint", two, "--out", str(tmp_path / "two")])
    main([*words, "--checkpoint", zero, "--route", f"de={two}", "--out", str(tmp_path / "both")])
    reports = [Report.read(tmp_path / name) for name in ("zero", "two", "both")]
    (first,), (second,), (routed,) = (report.systems.values() for report in reports)
    assert routed.name == "routed.bilingual"
    for language in routed.languages:
        expected = second if language == "de" else first
        assert routed.languages[language] == expected.languages[language]
