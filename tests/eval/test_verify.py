"""`eval/verify.py` from its arguments to its files; the margin that is chosen on another split."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

import claim2source as c2s
from claim2source.core.config import read_config
from claim2source.core.errors import ConfigError, UserError
from claim2source.core.records import Claim, Dataset, Qrels, Source
from claim2source.core.report import Report
from claim2source.core.run import Result, Run
from claim2source.evaluation.moves import Moves
from claim2source.evaluation.verifiers import Place, places_table, verified
from claim2source.io.trec import read_run
from claim2source.pipeline.staged import read_staged
from claim2source.pipeline.sweep import variations
from claim2source.systems.choose import choose_margin
from claim2source.systems.when import WhenConfig
from eval.verify import VerifyConfig, main
from tests.llm_server import LLMServer
from tests.llm_server import verifiers as play
from tests.shared_data import REPOSITORY

Start = Callable[..., LLMServer]


def moved(run: Run, golds: dict[str, str]) -> Run:
    """What a perfect verifier of the first ten makes of a run."""
    found = {}
    for claim in run.claim_ids:
        ids = run.sources(claim)
        gold = golds.get(claim)
        if gold in ids[:10]:
            ids = [gold, *(s for s in ids if s != gold)]
        found[claim] = [(source, float(-i)) for i, source in enumerate(ids)]
    return Run.from_lists(found)


@pytest.fixture
def checked(llm_server: Start, tmp_path: Path) -> tuple[LLMServer, list[str]]:
    """A perfect verifier of the demo's claims, and the arguments of a system that asks it."""
    dev, train = c2s.load("demo", "dev"), c2s.load("demo", "train")
    # Titles repeat, abstracts do not.
    texts = {source.id: " ".join(source.abstract.split()) for source in dev.sources}
    golds = {c.text: texts[c.golds[0]] for d in (dev, train) for c in d.claims}

    def choose(asked: play.Question) -> int:
        return asked.place(golds[asked.post]) or 0

    server = llm_server(play.Verifier(choose))
    files = tmp_path / "systems.yaml"
    llm = f"llm: {{model: m, url: '{server.url}'}}"
    files.write_text(
        "Checked:\n  retrieve: {bm25: {k1: 1.2}}\n  stages:\n"
        f"    - {{verify: select, when: {{margin_below: 0.1}}, {llm}}}\n"
    )
    said = ["--files", str(files), "--repeats", "30", "--store", str(tmp_path / "store")]
    return server, ["--system", "Checked", *said]


@pytest.mark.slow
def test_a_verifier_is_scored_and_costed(
    checked: tuple[LLMServer, list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dev, (server, said) = c2s.load("demo", "dev"), checked
    main(["--out", str(tmp_path / "out"), *said])
    printed = capsys.readouterr().out
    report = Report.read(tmp_path / "out")
    first, last = report.systems.values()
    # Asked are the claims with a narrow margin, of which a perfect verifier moves all golds.
    before = c2s.BM25(k1=1.2).index(dev.sources).search(dev.claims, 100).run
    when = WhenConfig(0.1)
    asked = [c for c in dev.claims if when.reason_to_skip(c.id, before, None) is None]
    assert 0 < len(asked) < len(dev.claims) and server.requests == len(asked)
    gold_of = {c.id: c.golds[0] for c in asked}
    expected = c2s.evaluate(moved(before, gold_of), dev, ["mrr@5"], repeats=0).macro["mrr@5"]
    assert last.macro["mrr@5"] == pytest.approx(expected) and expected > first.macro["mrr@5"]
    line = (
        f"asked about {len(asked)} of {len(dev.claims)} claims ({len(asked) / len(dev.claims):.1%})"
    )
    assert any(line in note for note in report.notes) and line in printed
    assert "tokens/promoted" in printed and "picks by place of the papers" in printed
    share = 1 - len(asked) / len(dev.claims)
    assert f"1. verify select: {share:.1%} of the claims were not in doubt" in printed
    runs = tmp_path / "out" / "runs"
    kept = [c.id for c in dev.claims if c.lang == "de" and c not in asked]
    for folder in ("0", "1"):
        part = read_run(runs / folder / "de.trec").run
        assert all(part.sources(claim) == before.sources(claim) for claim in kept)
    with pytest.raises(ConfigError, match="choose_on.*none with --run"):
        run = ["--run", str(runs / "0" / "de.trec"), "--choose_on", "train"]
        main(["--out", str(tmp_path / "no"), *run, *said])
    for wrong, why in (("dev", "another split"), ("none", "none")):
        with pytest.raises(UserError, match=why):
            main(["--out", str(tmp_path / "no"), "--choose_on", wrong, *said])
    assert not (tmp_path / "no").exists()


@pytest.mark.slow
def test_the_margin_of_a_verifier_is_chosen_on_another_split(
    checked: tuple[LLMServer, list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """That of a perfect one is the widest that still finds more: more claims are asked about."""
    again = ["--out", str(tmp_path / "chosen"), "--choose_on", "train", "--rule", "best"]
    main([*again, *checked[1]])
    printed = capsys.readouterr().out
    (choice,) = list(Report.read(tmp_path / "chosen").systems.values())[-1].choices
    assert (choice.what, choice.split, choice.compared) == ("margin_below", "train", 12)
    assert choice.settings["margin_below"] > 0.1 and "of these claims" in choice.note
    assert f"margin_below {choice.settings['margin_below']}" in printed


def test_the_margin_is_chosen_by_hand() -> None:
    """Margins 0.05, 0.25, 0.6: the first claim gains, the second loses, the third gains."""
    scores = {"a": (1.0, 0.95, 0.0), "b": (1.0, 0.75, 0.0), "c": (1.0, 0.4, 0.0)}
    golds = {"a": "y", "b": "x", "c": "y"}
    claims = tuple(Claim(c, c, golds=(golds[c],)) for c in scores)
    data = Dataset(
        claims, tuple(map(Source, "xyz")), Qrels({c: {g: 1} for c, g in golds.items()}), "val"
    )
    before = Run.from_lists({c: list(zip("xyz", s, strict=True)) for c, s in scores.items()})
    after = Run.from_lists({c: [("y", 3.0), ("x", 2.0), ("z", 1.0)] for c in scores})
    # Of 3 claims: none 2/3; a alone 5/6 (1 + 1 + 1/2); a and b 2/3; all 5/6 (1 + 1/2 + 1).
    margin, choice = choose_margin(before, after, data, margins=(0.0, 0.1, 0.3, 1.0), rule="best")
    assert margin == 0.1 and choice.score == pytest.approx(5 / 6)
    assert choice.note.startswith("asks about 33.3% of these claims; asked about all it scores 0.8")
    # Within one standard error the margin that asks about fewest is taken: none at all.
    assert choose_margin(before, after, data, margins=(1.0, 0.0, 0.1))[0] == 0.0
    # Where the first source changed since the stage before, the claim is asked about anyway.
    earlier = Run.from_lists({c: [("y" if c == "c" else "x", 1.0)] for c in scores})
    both = WhenConfig(0.5, disagree=True)
    margin, choice = choose_margin(
        before, after, data, both, earlier, margins=(0.0, 0.1, 0.3), rule="best"
    )
    assert margin == 0.1 and choice.score == pytest.approx(1.0)


def test_the_bias_of_places_is_measured_against_an_even_spread() -> None:
    run = Run.from_lists({c: [("x", 1.0)] for c in "abcd"})
    details = {
        "a": {"asks": 4, "tokens": 100, "shown": 4, "picked@1": 3, "picked@2": 1},
        "b": {"asks": 2, "tokens": 50, "shown": 2, "picked@2": 1},
        "c": {"asks": 0, "tokens": 0},
    }
    moves = Moves(4, 1.0, 3, 1, 1, 1)
    one = verified(Result(run, details=details), moves, True)
    assert one is not None and (one.claims, one.asked, one.asks, one.tokens) == (4, 2, 6, 150)
    # Of a's picks one was expected at each of four places, of b's half at each of two.
    assert one.places == (Place(1, 3, 1.5), Place(2, 2, 1.5), Place(3, 0, 1.0), Place(4, 0, 1.0))
    assert one.bias == pytest.approx((1.5 + 0.5 + 1 + 1) / 10)
    assert one.tokens_per_promoted == 50 and one.share_asked == 0.5
    assert np.allclose([row[2:] for row in places_table(one).rows][0], [0.6, 0.3])
    assert verified(Result(run), moves, True) is None


def test_the_ablations_that_the_paper_lacks_are_one_file() -> None:
    path = REPOSITORY / "configs" / "verify" / "sweep.yaml"
    said = ["--config", str(path), "--out", "o"]
    config = read_config(VerifyConfig, said, program="t", description="t")
    system = read_staged([REPOSITORY / file for file in config.files], config.system, None)
    assert config.vary is not None
    found = variations(system, config.vary)
    # One more than all values: each is a system that can be read, and no two are the same.
    assert len(found) == 1 + sum(map(len, config.vary.values())) == 19
    stages = {name: [asdict(s) for _, s in one.loaded_stages()] for name, one in found.items()}
    first, base = stages["as it is"]
    assert stages["verify.llm.thinking true"] == [
        first,
        {**base, "llm": {**base["llm"], "thinking": True}},
    ]
    assert stages["rerank.depth 50"] == [{**first, "depth": 50}, base]
    assert stages["verify.when margin_below 0.1"][1]["when"]["margin_below"] == 0.1
    for name, known in stages.items():
        assert [other for other in stages if stages[other] == known] == [name]
    for key, why in (("verify", "a setting"), ("fuse.depth", "a setting"), ("verify.dept", "dept")):
        with pytest.raises(ConfigError, match=why):
            variations(system, {key: [1]})


@pytest.mark.slow
def test_variations_are_tested_against_the_system_as_it_is(
    checked: tuple[LLMServer, list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "sweep.yaml"
    config.write_text("vary: {verify.depth: [1, 20], verify.when: [{margin_below: 0.02}]}\n")
    main(["--config", str(config), "--out", str(tmp_path / "out"), *checked[1]])
    report = Report.read(tmp_path / "out")
    names = ["verify.depth 1", "verify.depth 20", "verify.when margin_below 0.02"]
    assert list(report.systems) == ["as it is", *names]
    family = report.tests[0]
    assert [(c.system, c.baseline) for c in family.comparisons] == [(n, "as it is") for n in names]
    base, shallow, deep, few = (one.macro["mrr@5"] for one in report.systems.values())
    # One paper leaves nothing to choose; a perfect verifier finds more among more.
    assert shallow < few < base < deep
    assert "What verifiers were asked" in capsys.readouterr().out
